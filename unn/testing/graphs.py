"""The contract of inference on a graph: properties for all graphs, observations and orders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..descent.infer import infer
from ..descent.plan import PlannedUpdate
from ..descent.solution import Solution
from ..descent.state import State
from ..graph.partial import Partial
from ..regularizers.base import batch_sum
from .strategies import GraphCase, domain_point


class GraphContract(ABC):
    """Property tests of coordinate descent on the cases of a hypothesis strategy.

    Cases have exact updates only (multilinear factors in which each variable occurs once).
    """

    examples: ClassVar[int] = 40
    """Number of cases per property."""

    @staticmethod
    @abstractmethod
    def cases() -> st.SearchStrategy[GraphCase]:
        """Strategy of random inference problems, such as ``graph_cases``."""

    def _run(self, check: object) -> None:
        settings(max_examples=self.examples, deadline=None)(given(self.cases())(check))()  # type: ignore[arg-type]

    def test_no_single_update_raises_the_energy(self) -> None:
        def check(case: GraphCase) -> None:
            out = _solve(case)
            assert out.energy is not None
            start = case.graph.energy({**case.observed, **case.start})
            energies = torch.cat([start[None], out.energy])
            rise = energies.diff(dim=0) / (1 + energies[1:].abs())
            assert rise.max() <= 1e-9

        self._run(check)

    def test_the_trace_is_the_energy_of_the_values(self) -> None:
        def check(case: GraphCase) -> None:
            out = _solve(case)
            assert out.energy is not None
            torch.testing.assert_close(out.energy[-1], case.graph.energy(out.values), rtol=1e-9, atol=1e-9)

        self._run(check)

    def test_every_update_is_block_optimal_against_feasible_perturbations(self) -> None:
        def check(case: GraphCase) -> None:
            out = _solve(case)
            name = out.schedule[-1]
            regularizer = case.graph.variables[name].regularizer
            best = case.graph.energy(out.values)
            generator = torch.Generator().manual_seed(case.seed)
            for weight in (1.0, 0.1, 1e-2, 1e-4):
                point = domain_point(regularizer, tuple(out[name].shape), generator)
                other = case.graph.energy({**out.values, name: torch.lerp(out[name], point, weight)})
                assert (other >= best - 1e-9 * (1 + best.abs())).all()

        self._run(check)

    def test_preactivations_are_minus_the_gradient_of_the_factors(self) -> None:
        def check(case: GraphCase) -> None:
            out = _solve(case)
            name = out.schedule[-1]
            x = out[name].detach().clone().requires_grad_()
            values = {**case.graph.fixed_values(), **out.values, name: x}
            total = sum(f.energy(values).sum() for f in case.graph.energy_factors if name in f.variables)
            expected = (
                -torch.autograd.grad(total, x)[0] if isinstance(total, torch.Tensor) else torch.zeros_like(x)
            )
            torch.testing.assert_close(out.preactivations[name].detach(), expected, rtol=1e-9, atol=1e-9)

        self._run(check)

    def test_message_reuse_changes_nothing(self) -> None:
        def check(case: GraphCase) -> None:
            reused = _solve(case)
            original = State._receive
            try:
                State._receive = _receive_without_reuse  # type: ignore[method-assign, assignment]
                fresh = _solve(case)
            finally:
                State._receive = original  # type: ignore[method-assign]
            for name in case.graph.variables:
                assert torch.equal(reused[name], fresh[name])

        self._run(check)

    def test_structural_zeros_equal_explicit_zeros(self) -> None:
        def check(case: GraphCase) -> None:
            if not case.given:
                return
            absent = infer(
                case.graph, case.observed, order=case.order, iterations=2, generator=_generator(case)
            )
            zeros = {name: torch.zeros_like(x) for name, x in case.start.items()}
            explicit = infer(
                case.graph,
                case.observed,
                initial=zeros,
                order=case.order,
                iterations=2,
                generator=_generator(case),
            )
            for name in case.graph.variables:
                torch.testing.assert_close(absent[name], explicit[name], rtol=1e-12, atol=1e-12)

        self._run(check)

    def test_batch_elements_do_not_interact(self) -> None:
        def check(case: GraphCase) -> None:
            whole = _solve(case)
            single = GraphCase(
                case.graph, {n: x[1:2] for n, x in case.values.items()}, case.given, case.order, case.seed
            )
            for name in case.graph.variables:
                torch.testing.assert_close(_solve(single)[name], whole[name][1:2], rtol=1e-11, atol=1e-11)

        self._run(check)

    def test_observing_every_entry_in_part_equals_observing_the_whole(self) -> None:
        def check(case: GraphCase) -> None:
            if not case.given:
                return
            parts = {n: Partial(x, torch.ones_like(x, dtype=torch.bool)) for n, x in case.observed.items()}
            part = infer(
                case.graph,
                parts,
                initial=case.start,
                order=case.order,
                iterations=2,
                generator=_generator(case),
            )
            for name, x in _solve(case).values.items():
                torch.testing.assert_close(part[name], x, rtol=1e-12, atol=1e-12)

        self._run(check)

    def test_values_stay_in_their_domains(self) -> None:
        def check(case: GraphCase) -> None:
            out = _solve(case)
            for name, variable in case.graph.variables.items():
                assert variable.regularizer.contains(out[name]).all()

        self._run(check)

    def test_energy_is_the_sum_of_its_shares(self) -> None:
        def check(case: GraphCase) -> None:
            shares = case.graph.energy(case.values, by_factor=True)
            assert set(shares) == {*case.graph.variables, *case.graph.factors}
            total = case.graph.energy(case.values)
            torch.testing.assert_close(sum(shares.values()), total)
            for name, variable in case.graph.variables.items():
                torch.testing.assert_close(shares[name], variable.regularizer.value(case.values[name]))

        self._run(check)

    def test_fenchel_young_bounds_every_block(self) -> None:
        def check(case: GraphCase) -> None:
            out = _solve(case)
            name = out.schedule[-1]
            regularizer, t, x = case.graph.variables[name].regularizer, out.preactivations[name], out[name]
            gap = regularizer.value(x) + regularizer.conjugate(t) - batch_sum(x * t)
            assert (gap.abs() <= 1e-9 * (1 + batch_sum((x * t).abs()))).all()

        self._run(check)


def _solve(case: GraphCase) -> Solution:
    return infer(
        case.graph,
        case.observed,
        initial=case.start,
        order=case.order,
        iterations=2,
        generator=_generator(case),
    )


def _generator(case: GraphCase) -> torch.Generator:
    return torch.Generator().manual_seed(case.seed)


def _receive_without_reuse(state: State, inlet: object, step: PlannedUpdate) -> torch.Tensor | None:
    state._cached.clear()
    if any(source not in state.values for source in inlet.sources):  # type: ignore[attr-defined]
        return None
    return state._compute(inlet, step.name)  # type: ignore[arg-type]
