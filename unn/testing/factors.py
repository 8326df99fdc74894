"""The contract of a factor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from ..descent.infer import infer
from ..factor_graph import FactorGraph
from ..graph.arrays import Constant, Parameter, Variable
from ..graph.factor import EnergyFactor, Factor, Products, SharedMessages
from .strategies import domain_point

BATCH = 3
_NEAR, _FAR = 1e4, 1e10
_DIRECTIONS = 24


class FactorContract(ABC):
    """Tests that every factor with an energy must pass; all factors of ``graph`` are tested.

    Every axis of the graph needs a static size.
    """

    tolerance = 1e-9
    """Relative tolerance in float64."""

    @abstractmethod
    def graph(self) -> FactorGraph:
        """Make a new small graph whose variables, parameters and factors have static sizes."""

    # -- energy and messages ---------------------------------------------------------------------------------

    def test_energy_has_one_value_for_each_batch_element(self) -> None:
        g, values = self._case(0)
        for factor in g.energy_factors:
            shape = tuple(factor.energy(values).shape)
            assert shape == (BATCH,), (
                f"{_where(factor)}: the energy has shape {shape} for {BATCH} batch elements"
            )

    def test_energy_is_finite_at_the_borders_of_the_domains(self) -> None:
        g, values = self._case(0)
        for scale in (1e2, 1e4):
            border = dict(values)
            for name, variable in g.variables.items():
                if variable.regularizer.bounded:
                    border[name] = variable.regularizer.mirror(scale * values[name].sub(values[name].mean()))
            for factor in g.energy_factors:
                energy = factor.energy(border)
                assert energy.isfinite().all(), (
                    f"{_where(factor)}: the energy is {energy.tolist()} where bounded variables lie at the "
                    "border of their domains; it must be finite and continuous on the whole closed domain"
                )

    def test_message_is_minus_the_gradient_of_the_energy(self) -> None:
        g, values = self._case(1)
        for factor in g.energy_factors:
            for target in factor.variables:
                x = values[target].clone().requires_grad_()
                (gradient,) = torch.autograd.grad(factor.energy({**values, target: x}).sum(), x)
                message = factor.message(target, values).expand(x.shape)
                self._equal(
                    message,
                    -gradient,
                    f"{_where(factor, target)}: message() is not minus the gradient of energy()",
                )

    def test_message_keeps_the_graph_of_derivatives(self) -> None:
        g, values = self._case(2)
        for factor in g.energy_factors:
            for target in factor.variables:
                leaves = {n: x.clone().requires_grad_() for n, x in values.items()}
                message = factor.message(target, leaves)
                others = [x for n, x in leaves.items() if n in factor.operands and n != target]
                if others:
                    assert message.requires_grad, (
                        f"{_where(factor, target)}: the message cannot be differentiated"
                    )
                    gradients = torch.autograd.grad(message.square().sum(), others, allow_unused=True)
                    finite = all(d is None or d.isfinite().all() for d in gradients)
                    assert finite, f"{_where(factor, target)}: derivatives of the message are not finite"

    def test_message_keeps_no_graph_under_no_grad(self) -> None:
        g, values = self._case(2)
        leaves = {n: x.clone().requires_grad_() for n, x in values.items()}
        with torch.no_grad():
            for factor in g.energy_factors:
                for target in factor.variables:
                    node = factor.message(target, leaves).grad_fn
                    assert node is None, (
                        f"{_where(factor, target)}: under torch.no_grad the message still has grad_fn {node}"
                    )

    def test_affine_targets_have_messages_that_ignore_their_own_value(self) -> None:
        g, values = self._case(3)
        for factor in g.energy_factors:
            for target in factor.variables:
                if factor.affine_in(target):
                    other = {**values, target: values[target] * 0.3}
                    why = (
                        f"{_where(factor, target)}: affine_in() is True, but the message changes with the "
                        "target's own value"
                    )
                    self._equal(factor.message(target, values), factor.message(target, other), why)

    def test_multilinear_energies_vanish_with_any_variable(self) -> None:
        g, values = self._case(4)
        for factor in g.energy_factors:
            if factor.multilinear:
                for target in factor.variables:
                    zero = {**values, target: torch.zeros_like(values[target])}
                    why = (
                        f"{_where(factor)}: multilinear is True, but the energy is not 0 where {target} is 0"
                    )
                    self._equal(factor.energy(zero), torch.zeros(BATCH, dtype=torch.float64), why)

    def test_batch_elements_do_not_interact(self) -> None:
        g, values = self._case(5)
        for factor in g.energy_factors:
            whole = factor.energy(values)
            for k in range(BATCH):
                single = {n: x[k : k + 1] if n in g.variables else x for n, x in values.items()}
                why = (
                    f"{_where(factor)}: the energy of batch element {k} differs between a batch of 1 and a "
                    f"batch of {BATCH}"
                )
                self._equal(factor.energy(single), whole[k : k + 1], why)

    # -- what the engine relies on ---------------------------------------------------------------------------

    def test_no_update_raises_the_energy(self) -> None:
        g, values = self._case(6)
        now = {name: values[name] for name in g.variables}
        energy = g.energy(now)
        for name in list(g.variables) * 3:
            now = infer(g, {}, initial=now, order=[name]).values
            after = g.energy(now)
            rise = ((after - energy) / (1 + after.abs())).detach().max()
            assert rise <= self.tolerance, (
                f"the update of {name} raises graph.energy by {float(rise):.3g} (relative); look at the "
                f"messages to {name} of "
                f"{', '.join(f.name for f in g.factors.values() if name in f.variables)}, and at affine_in"
            )
            energy = after

    def test_exact_updates_reach_the_minimum_over_their_variable(self) -> None:
        g, values = self._case(6)
        generator = torch.Generator().manual_seed(0)
        for name, variable in g.variables.items():
            touching = [f for f in g.energy_factors if name in f.variables]
            if not all(f.affine_in(name) for f in touching):
                continue
            out = infer(g, {}, initial={n: values[n] for n in g.variables}, order=[name]).values
            best = g.energy(out).detach()
            for weight in (1.0, 0.1, 1e-3):
                point = domain_point(variable.regularizer, tuple(out[name].shape), generator)
                excess = g.energy({**out, name: torch.lerp(out[name], point, weight)}).detach() - best
                assert (excess >= -self.tolerance * (1 + best.abs())).all(), (
                    f"the update of {name} is not the minimum of graph.energy over {name}, but "
                    f"{', '.join(f.name for f in touching)} say by affine_in that it is exact: another point "
                    f"is lower by {-excess.min().item():.3g}"
                )

    def test_the_trace_of_a_run_is_the_energy_of_its_values(self) -> None:
        g, values = self._case(6)
        out = infer(
            g, {}, initial={name: values[name] for name in g.variables}, order=list(g.variables), iterations=3
        )
        assert out.energy is not None
        why = (
            "infer(...).energy, which is made of messages, is not graph.energy of the values reached: a "
            "message or message_sharing is wrong"
        )
        self._equal(out.energy[-1], g.energy(out.values), why)

    def test_messages_that_share_products_equal_the_others(self) -> None:
        g, values = self._case(7)
        for factor in _shared_factors(g):
            products: Products = {}
            for target in (*factor.variables, *factor.variables):
                shared = factor.message_sharing(target, values, tuple(values[target].shape[1:]), products)
                message = factor.message(target, values).expand(values[target].shape)
                why = f"{_where(factor, target)}: message_sharing() differs from message()"
                self._equal(shared.expand(values[target].shape), message, why)
            for changed in factor.variables:
                other = {**values, changed: values[changed] * 0.5}
                for target in factor.variables:
                    shared = factor.message_sharing(target, other, tuple(values[target].shape[1:]), products)
                    message = factor.message(target, other).expand(values[target].shape)
                    why = (
                        f"{_where(factor, target)}: message_sharing() uses a product of {changed} that is "
                        "out of date"
                    )
                    self._equal(shared.expand(values[target].shape), message, why)

    def test_fresh_messages_are_tensors_of_their_own(self) -> None:
        g, values = self._case(8)
        before = {name: x.clone() for name, x in values.items()}
        for factor in _shared_factors(g):
            if not factor.fresh_messages:
                continue
            for target in factor.variables:
                with torch.no_grad():
                    message = factor.message(target, values)
                    expected = message.clone()
                    message.add_(1.0)
                    for name, x in before.items():
                        why = (
                            f"{_where(factor, target)}: fresh_messages is True, but the message is a view of "
                            f"{name}"
                        )
                        self._equal(values[name], x, why)
                    why = (
                        f"{_where(factor, target)}: fresh_messages is True, but the factor keeps the tensor "
                        "that it returned"
                    )
                    self._equal(factor.message(target, values), expected, why)

    def test_aligned_rows_depend_on_the_same_row_alone(self) -> None:
        g, values = self._case(9)
        _, others = self._case(10)
        for factor in _shared_factors(g):
            for target in factor.variables:
                for source in factor.variables:
                    x = values[source]
                    for count in range(min(x.ndim, values[target].ndim)):
                        if source == target or not factor.row_aligned(target, source, count):
                            continue
                        claim = (
                            f"{_where(factor, target)}: row_aligned({target!r}, {source!r}, {count}) is "
                            "True, but"
                        )
                        rows = x.shape[: count + 1]
                        assert rows == values[target].shape[: count + 1], (
                            f"{claim} the two have different rows"
                        )
                        row = tuple(size - 1 for size in rows)
                        changed = others[source].clone()
                        changed[row] = x[row]
                        message = factor.message(target, values).expand(values[target].shape)
                        moved = factor.message(target, {**values, source: changed}).expand(
                            values[target].shape
                        )
                        self._equal(
                            moved[row],
                            message[row],
                            f"{claim} row {row} of the message changes with other rows of {source}",
                        )

    def test_messages_to_some_rows_are_rows_of_the_message(self) -> None:
        g, values = self._case(11)
        for factor in _shared_factors(g):
            for target in factor.variables:
                shape = values[target].shape
                for count in range(len(shape) if factor.affine_in(target) else 0):
                    rows = tuple(torch.tensor([0, size - 1]) for size in shape[: count + 1])
                    part = factor.message_rows(target, values, rows)
                    if part is not None:
                        message = factor.message(target, values).expand(shape)[rows]
                        self._equal(
                            part.expand(message.shape),
                            message,
                            f"{_where(factor, target)}: message_rows() differs from message()",
                        )

    def test_padding_leaves_energy_and_messages_as_they_are(self) -> None:
        g, values = self._case(12)
        table = g.size_table
        for factor in g.energy_factors:
            if not factor.handles_padding:
                continue
            for axis in _ragged_axes(g, factor):
                size = table.static[axis]
                padded, short = dict(values), dict(values)
                for name in factor.operands:
                    x, array = values[name], g.arrays[name]
                    first = x.ndim - len(array.axes)
                    for dim in (first + k for k, own in enumerate(array.axes) if table.root(own) == axis):
                        short[name] = short[name].narrow(dim, 0, size - 1)
                        if not isinstance(array, Parameter):
                            padded[name] = padded[name].clone()
                            padded[name].select(dim, size - 1).zero_()
                why = f"{_where(factor)}: handles_padding is True, but with zeros at the end of axis {axis!r}"
                self._equal(
                    factor.energy(padded),
                    factor.energy(short),
                    f"{why} the energy is not that of the shorter axis",
                )
                for target in factor.variables:
                    message = factor.message(target, padded).expand(padded[target].shape)
                    expected = factor.message(target, short).expand(short[target].shape)
                    part = message[tuple(slice(0, n) for n in expected.shape)]
                    self._equal(
                        part, expected, f"{why} the message to {target} is not that of the shorter axis"
                    )

    # -- boundedness -----------------------------------------------------------------------------------------

    def test_energy_falls_no_faster_than_its_degree(self) -> None:
        g, values = self._case(13)
        for factor in g.energy_factors:
            # a product is defined everywhere, any other energy only on the domains
            names = [
                n for n in factor.variables if factor.multilinear or not g.variables[n].regularizer.bounded
            ]
            for group in (
                group for count in range(1, len(names) + 1) for group in combinations(names, count)
            ):
                degree = factor.degree(list(group))
                if degree is not None:
                    power = self._falling_power(g, values, group, factor.energy)
                    assert power <= degree + 0.5, (
                        f"{_where(factor)}: degree({list(group)}) is {degree}, but the energy falls like "
                        f"-t^{power:.1f} where {', '.join(group)} {'grows' if len(group) == 1 else 'grow'} "
                        "like t"
                    )
            outside = factor.degree([name for name in g.variables if name not in factor.variables])
            assert outside == 0 or outside is None, (
                f"{_where(factor)}: the degree in variables of other factors is {outside}, not 0"
            )

    def test_the_regularizer_that_completes_a_factor_makes_it_bounded_below(self) -> None:
        g, values = self._case(14)
        for factor in g.energy_factors:
            name = factor.completed_by
            if name is None:
                continue
            assert name in factor.variables, (
                f"{_where(factor)}: completed_by is {name!r}, which is not a variable of the factor"
            )
            regularizer = g.variables[name].regularizer

            def together(x: dict[str, Tensor], factor: EnergyFactor = factor, name: str = name) -> Tensor:
                return factor.energy(x) + g.variables[name].regularizer.value(x[name])

            names = [n for n in factor.variables if not g.variables[n].regularizer.bounded]
            for group in (
                group for count in range(1, len(names) + 1) for group in combinations(names, count)
            ):
                power = self._falling_power(g, values, group, together)
                assert power <= 0.5, (
                    f"{_where(factor)}: completed_by is {name!r}, but together with {regularizer!r} the "
                    f"energy falls like -t^{power:.1f} where {', '.join(group)} grow like t"
                )

    def _falling_power(
        self,
        g: FactorGraph,
        values: dict[str, Tensor],
        names: tuple[str, ...],
        energy: Callable[[dict[str, Tensor]], Tensor],
    ) -> float:
        """Largest power of t with which the energy falls as the given variables grow like t; 0 if
        it does not fall."""
        generator = torch.Generator().manual_seed(0)
        powers = [0.0]
        for _ in range(_DIRECTIONS):
            direction = {}
            for name in names:
                low = g.variables[name].regularizer.contains(-torch.ones_like(values[name])).all()
                noise = torch.randn(values[name].shape, dtype=torch.float64, generator=generator)
                direction[name] = noise if low or g.variables[name].regularizer.bounded else noise.abs()
            with torch.no_grad():
                start, near, far = (
                    energy({**values, **{n: values[n] + t * d for n, d in direction.items()}})
                    for t in (0, _NEAR, _FAR)
                )
            for a, b, c in zip(start.tolist(), near.tolist(), far.tolist(), strict=True):
                if c < a:
                    powers.append(
                        math.log((a - c) / (1 + abs(a - b))) / math.log(_FAR / _NEAR)
                        if math.isfinite(c)
                        else math.inf
                    )
        return max(powers)

    def _equal(self, ours: Tensor, expected: Tensor, why: str) -> None:
        torch.testing.assert_close(
            ours, expected, rtol=self.tolerance, atol=self.tolerance, msg=lambda text: f"{why}.\n{text}"
        )

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


def _shared_factors(g: FactorGraph) -> list[SharedMessages]:
    return [factor for factor in g.energy_factors if isinstance(factor, SharedMessages)]


def _where(factor: Factor, target: str | None = None) -> str:
    return f"factor {factor.name!r}" + (f", message to {target!r}" if target is not None else "")


def _ragged_axes(g: FactorGraph, factor: Factor) -> list[str]:
    """Axes of a factor, of size 2 or more, that may be ragged in a batch; without axes of splits
    and indices."""
    table = g.size_table
    carried = {
        letter for r in factor.references if isinstance(r.array, (Variable, Constant)) for letter in r.letters
    }
    split = {
        letter
        for r in factor.references
        for dim in r.pattern.dimensions
        if len(dim.letters) > 1
        for letter in dim.letters
    }
    axes: dict[str, bool] = {}
    for reference in factor.references:
        for axis, dim in zip(reference.array.axes, reference.pattern.dimensions, strict=True):
            root = table.root(axis)
            allowed = not set(dim.letters) & split and set(dim.letters) <= carried and table.static[root] > 1
            axes[root] = axes.get(root, True) and allowed
    indexed = {table.root(axis) for index in factor.indices.values() for axis in (index.axes[0], index.into)}
    return [axis for axis, allowed in axes.items() if allowed and axis not in indexed]
