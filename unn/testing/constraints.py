"""The contract of a constraint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ..factor_graph import FactorGraph
from ..graph.arrays import Variable
from ..graph.factor import Constraint
from ..ops.straight_through import straight_through
from ..regularizers import Elementwise, LogPartition, Simplex
from .strategies import domain_point

_DRAWS = 24


class ConstraintContract(ABC):
    """Tests that every constraint with a ``loss`` must pass; all constraints of ``graph`` are tested.

    Penalties are compared with the violations here; that they are right as energies is tested by a
    ``FactorContract`` whose graph is ``unn.relax`` of this one. Every axis of the graph needs a static size.
    """

    tolerance = 1e-9
    """Absolute tolerance in float64 below which a loss counts as 0."""

    @abstractmethod
    def graph(self) -> FactorGraph:
        """Make a new small graph with constraints, whose axes have static sizes."""

    @abstractmethod
    def satisfying(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Draw discrete values that satisfy all constraints: one-hot, ends of intervals, whole numbers.

        Returns:
            Values of all variables by name, shape ``(batch, *axes)``.
        """

    def test_values_that_satisfy_a_constraint_have_no_loss_and_no_violations(self) -> None:
        g, satisfying, _ = self._case(0)
        for factor in g.constraints:
            violations = factor.violations_of(satisfying)
            assert (violations == 0).all(), (
                f"{_where(factor)}: satisfying() has {violations.tolist()} violations"
            )
            loss = factor.loss(satisfying)
            assert (loss.abs() <= self.tolerance).all(), (
                f"{_where(factor)}: the loss is {loss.tolist()} where nothing is violated; it must be 0"
            )

    def test_the_loss_is_zero_exactly_where_nothing_is_violated(self) -> None:
        for seed in range(_DRAWS):
            g, satisfying, generator = self._case(seed)
            values = _changed(g, satisfying, generator)
            for factor in g.constraints:
                violated = factor.violations_of(values) > 0
                loss = factor.loss(values)
                wrong = ((loss > self.tolerance) != violated).nonzero().flatten()
                assert not len(wrong), (
                    f"{_where(factor)}: batch element {int(wrong[0])} has "
                    f"{int(factor.violations_of(values)[wrong[0]])} violations, but loss "
                    f"{float(loss[wrong[0]]):.3g}"
                )

    def test_the_loss_has_one_finite_value_of_at_least_zero_for_each_batch_element(self) -> None:
        g, satisfying, generator = self._case(1)
        for values in (satisfying, _soft(g, satisfying, generator)):
            batch = len(next(iter(values.values())))
            for factor in g.constraints:
                loss = factor.loss(values)
                assert tuple(loss.shape) == (batch,), (
                    f"{_where(factor)}: the loss has shape {tuple(loss.shape)} for {batch} batch elements"
                )
                right = loss.isfinite() & (loss >= -self.tolerance)
                assert right.all(), (
                    f"{_where(factor)}: the loss is {loss.tolist()}; it must be finite and >= 0"
                )

    def test_gradients_of_the_loss_are_finite(self) -> None:
        g, satisfying, generator = self._case(2)
        for values in (satisfying, _changed(g, satisfying, generator), _soft(g, satisfying, generator)):
            for factor in g.constraints:
                leaves = {name: x.clone().requires_grad_() for name, x in values.items()}
                loss = factor.loss(leaves)
                assert loss.requires_grad, f"{_where(factor)}: the loss cannot be differentiated"
                own = [leaves[name] for name in factor.variables]
                for name, gradient in zip(
                    factor.variables, torch.autograd.grad(loss.sum(), own), strict=True
                ):
                    assert gradient.isfinite().all(), (
                        f"{_where(factor)}: a gradient with respect to {name} is not finite"
                    )

    def test_soft_values_with_a_loss_can_be_improved_by_a_gradient_step(self) -> None:
        g, satisfying, generator = self._case(3)
        values = _soft(g, satisfying, generator)
        for factor in g.constraints:
            leaves = {name: values[name].clone().requires_grad_() for name in factor.variables}
            loss = factor.loss({**values, **leaves})
            gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
            steps = {n: x.detach() - 1e-6 * d for (n, x), d in zip(leaves.items(), gradients, strict=True)}
            after = factor.loss({**values, **steps})
            assert (after <= loss + self.tolerance).all(), (
                f"{_where(factor)}: a small step along minus the gradient raises the loss"
            )

    def test_batch_elements_do_not_interact(self) -> None:
        g, satisfying, generator = self._case(4)
        values = _soft(g, satisfying, generator)
        for factor in g.constraints:
            whole = factor.loss(values)
            for k in range(len(whole)):
                alone = factor.loss({name: x[k : k + 1] for name, x in values.items()})
                assert torch.allclose(alone, whole[k : k + 1], rtol=1e-9, atol=self.tolerance), (
                    f"{_where(factor)}: the loss of batch element {k} differs between a batch of 1 and of "
                    f"{len(whole)}"
                )

    def test_groups_hold_exactly_where_nothing_is_violated(self) -> None:
        for seed in range(_DRAWS):
            g, satisfying, generator = self._case(seed)
            values = _changed(g, satisfying, generator)
            ones = {name: (x > 0.5).flatten(1).long() for name, x in values.items()}
            for factor in g.constraints:
                if not factor.is_counted:
                    continue
                violated = factor.violations_of(values) > 0
                broken = torch.zeros_like(violated)
                for part in factor.groups({name: tuple(x.shape[1:]) for name, x in values.items()}):
                    count = torch.stack(
                        [ones[n][:, torch.from_numpy(x)].sum(2) for n, x in part.entries.items()]
                    ).sum(0)
                    above = count > part.upper if part.upper is not None else count < 0
                    broken = broken | ((count < part.lower) | above).any(1)
                wrong = (broken != violated).nonzero().flatten()
                assert not len(wrong), (
                    f"{_where(factor)}: in batch element {int(wrong[0])} its groups "
                    f"{'do not hold' if bool(broken[wrong[0]]) else 'hold'}, with "
                    f"{int(factor.violations_of(values)[wrong[0]])} violations; they define the constraint "
                    "where is_counted is true"
                )

    def test_penalties_are_smallest_where_nothing_is_violated(self) -> None:
        for seed in range(_DRAWS):
            g, satisfying, generator = self._case(seed)
            changed = _changed(g, satisfying, generator)
            for factor in g.constraints:
                penalties = factor.penalties(1.5)
                for penalty in penalties:
                    penalty.indices, penalty.split_sizes = factor.indices, factor.split_sizes
                if not penalties:
                    continue
                best, energy = (sum(p.energy(x) for p in penalties) for x in (satisfying, changed))
                assert isinstance(best, Tensor) and isinstance(energy, Tensor)
                excess = energy - best.amin()
                assert (best - best.amin()).amax() <= self.tolerance, (
                    f"{_where(factor)}: values that satisfy it have different energies {best.tolist()} of "
                    "penalties"
                )
                wrong = (excess > self.tolerance) != (factor.violations_of(changed) > 0)
                assert not wrong.any(), (
                    f"{_where(factor)}: the energies of its penalties are {excess.tolist()} above those of "
                    f"values that satisfy it, for {factor.violations_of(changed).tolist()} violations"
                )

    def _case(self, seed: int) -> tuple[FactorGraph, dict[str, Tensor], torch.Generator]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        g = self.graph().double()
        return g, {name: x.double() for name, x in self.satisfying(generator).items()}, generator


def _changed(g: FactorGraph, values: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Discrete values, partly drawn again: from none in the first batch element to all in the last."""
    changed = {}
    for name, x in values.items():
        other = _discrete(g.variables[name], tuple(x.shape), generator)
        share = torch.linspace(0, 1, len(x), dtype=x.dtype).view(-1, *[1] * (x.ndim - 1))
        regularizer = g.variables[name].regularizer
        noise = torch.rand(x.shape, dtype=x.dtype, generator=generator)
        if isinstance(regularizer, Simplex):
            noise = noise.narrow(regularizer.dim, 0, 1)
        elif not isinstance(regularizer, Elementwise):
            noise = noise.flatten(1)[:, 0].view(-1, *[1] * (x.ndim - 1))
        changed[name] = torch.where(noise < share, other, x)
    return changed


def _discrete(variable: Variable, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random discrete values of a domain."""
    regularizer = variable.regularizer
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    bounded = isinstance(regularizer, Elementwise) and regularizer.bounded
    if isinstance(regularizer, (Simplex, LogPartition)):
        return straight_through(noise, regularizer)
    if bounded:
        return straight_through(domain_point(regularizer, shape, generator), regularizer)
    return domain_point(regularizer, shape, generator).round()


def _soft(g: FactorGraph, values: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Random interior points of the domains."""
    return {n: domain_point(g.variables[n].regularizer, tuple(x.shape), generator) for n, x in values.items()}


def _where(factor: Constraint) -> str:
    return f"factor {factor.name!r}"
