"""The contract of a factor."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..engine.infer import infer
from ..graph import FactorGraph
from .strategies import domain_point

BATCH = 3


class FactorContract(ABC):
    """Tests that every factor with an energy must pass. Give a graph that holds it; all its factors are tested.

    Every axis of the graph needs a static size.
    """

    tolerance = 1e-9
    """Relative, in float64."""

    @abstractmethod
    def graph(self) -> FactorGraph:
        """A fresh small graph whose variables, parameters and factors have static sizes."""

    def test_energy_has_one_value_for_each_batch_element(self) -> None:
        g, values = self._case(0)
        for factor in g.factors.values():
            assert factor.energy(values).shape == (BATCH,)

    def test_message_is_minus_the_gradient_of_the_energy(self) -> None:
        g, values = self._case(1)
        for factor in g.factors.values():
            for target in factor.variables:
                x = values[target].clone().requires_grad_()
                (gradient,) = torch.autograd.grad(factor.energy({**values, target: x}).sum(), x)
                message = factor.message(target, values).expand(x.shape)
                torch.testing.assert_close(message, -gradient, rtol=self.tolerance, atol=self.tolerance)

    def test_message_keeps_the_graph_of_derivatives(self) -> None:
        g, values = self._case(2)
        for factor in g.factors.values():
            for target in factor.variables:
                leaves = {n: x.clone().requires_grad_() for n, x in values.items()}
                message = factor.message(target, leaves)
                others = [x for n, x in leaves.items() if n in factor.operands and n != target]
                if others:
                    assert message.requires_grad
                    gradients = torch.autograd.grad(message.square().sum(), others, allow_unused=True)
                    assert all(d is None or d.isfinite().all() for d in gradients)

    def test_message_keeps_no_graph_under_no_grad(self) -> None:
        g, values = self._case(2)
        leaves = {n: x.clone().requires_grad_() for n, x in values.items()}
        with torch.no_grad():
            for factor in g.factors.values():
                for target in factor.variables:
                    assert factor.message(target, leaves).grad_fn is None

    def test_affine_targets_have_messages_that_ignore_their_own_value(self) -> None:
        g, values = self._case(3)
        for factor in g.factors.values():
            for target in factor.variables:
                if factor.affine_in(target):
                    other = {**values, target: values[target] * 0.3}
                    torch.testing.assert_close(factor.message(target, values), factor.message(target, other))

    def test_multilinear_energies_vanish_with_any_variable(self) -> None:
        g, values = self._case(4)
        for factor in g.factors.values():
            if factor.multilinear:
                for target in factor.variables:
                    zero = {**values, target: torch.zeros_like(values[target])}
                    torch.testing.assert_close(factor.energy(zero), torch.zeros(BATCH, dtype=torch.float64))

    def test_batch_elements_do_not_interact(self) -> None:
        g, values = self._case(5)
        for factor in g.factors.values():
            whole = factor.energy(values)
            for k in range(BATCH):
                single = {n: x[k : k + 1] if n in g.variables else x for n, x in values.items()}
                torch.testing.assert_close(factor.energy(single), whole[k : k + 1])

    def test_no_update_raises_the_energy(self) -> None:
        g, values = self._case(6)
        start = {name: values[name] for name in g.variables}
        out = infer(g, {}, initial=start, order=list(g.variables), iterations=3)
        assert out.energy is not None
        energies = torch.cat([g.energy(start)[None], out.energy])
        rises = energies.diff(dim=0) / (1 + energies[1:].abs())
        assert rises.max() <= self.tolerance

    def _case(self, seed: int) -> tuple[FactorGraph, dict[str, Tensor]]:
        torch.manual_seed(seed)
        g = self.graph().double()
        generator = torch.Generator().manual_seed(seed)
        table = g.size_table
        values = dict(g.fixed_values())
        for name, variable in g.variables.items():
            shape = tuple(size or 0 for size in table.shape(variable, table.static))
            values[name] = domain_point(variable.regularizer, (BATCH, *shape), generator)
        return g, {name: x.detach() for name, x in values.items()}
