"""Coordinate descent as a model: any variables inferred from any others, trained for several queries at
once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn
from ..errors import ArgumentError, DeclarationError, ObservationError, UnnError, suggest, whole_number
from ..graph.arrays import check_batch
from ..graph.bounds import refusal_of_bounds
from ..graph.declaration import Declaration
from ..graph.devices import device_of, moved
from ..graph.dynamic import dynamic_sizes
from ..graph.partial import Partial
from ..no_gradients import no_gradients
from ..regularizers import Regularizer, Simplex
from ..regularizers.elementwise import BinaryEntropy, SignedEntropy
from .contraction import spectral_normalise
from .entries import entries_of
from .evidence import Given
from .gradients import UNROLL, Gradient, Truncate
from .infer import infer
from .options import DescentOptions
from .orders import ForwardBackward, Order, RandomOrder
from .plan import Plan
from .reach import default_order
from .relaxation import relax
from .repeats import repeated_rows
from .solution import Solution
from .unrolled import Unrolled

Pattern = dict[str, int]
"""Whether a variable is observed, by name: not at all, in part, or completely."""

Key = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...], bool]
"""What is given, given in part, wanted, known and derived by a network, and whether it is for training."""

Derived = Callable[[Declaration, Given], Given]
"""Further evidence that follows from what is given, such as embeddings of observed tokens, differentiable in
the parameters of the graph."""

_NONE, _SOME, _ALL = range(3)

_SMALLEST = 1e-7
"""Smallest probability in the loss of a variable whose update has no closed form."""


class DescentModel(nn.Module, CanLearn, CanInfer):
    """Coordinate descent on a graph, with the same weights for every choice of what is given.

    The loss of a query is the sum over its wanted variables of the Fenchel-Young loss of their regularizers,
    each the mean over its unobserved nodes (undirected-network paper, Section 3).

    Args:
        graph: declaration; constraints contribute energies with learned weights.
        options: rounds, order, initial values, dropout, and the limit of the couplings.
        derived: evidence of latent variables that follows from what is given, by a function of the graph and
            the evidence; None for none. It has no loss.

    Raises:
        ArgumentError: for a limit of couplings out of range.
        DeclarationError: for one of couplings of unknown strength, or on axes without a static size.

    Attributes:
        graph: the declaration with the energies of its constraints.
    """

    def __init__(self, graph: Declaration, options: DescentOptions, derived: Derived | None = None) -> None:
        super().__init__()
        self.graph = with_energies(graph, options.penalty)
        self.options = options
        self.derived = derived
        self._networks: dict[Key, Unrolled] = {}
        self._contracted: list[Tensor] | None = None
        if options.contraction:
            options.check("descent")
            unsized = self._without_sizes(tuple(self.graph.variables))
            if unsized:
                raise DeclarationError(
                    f"graph {self.graph.name!r}: the option contraction needs the sizes of all axes, and "
                    f"variable {unsized[0]!r} has one without a static size; declare it, or leave the option "
                    "out."
                )
            try:
                self._limit_couplings()
            except UnnError as error:
                raise DeclarationError(f"the option contraction cannot limit couplings: {error}") from None

    def train(self, mode: bool = True) -> Self:
        """As of every module; evaluation begins with limited couplings."""
        super().train(mode)
        if not mode:
            self._limit_couplings()
        return self

    def _limit_couplings(self) -> None:
        """Scale parameters that have changed down to the largest spectral radius, if there is one.

        With nothing given: what is given removes rows and columns of the gains, whose spectral radius does
        not rise.
        """
        if not self.options.contraction:
            return
        current = [p.detach() for p in self.parameters()]
        # fused optimisers and loaded weights leave no other trace than the numbers
        if self._contracted is None or not all(
            before.device == now.device and torch.equal(before, now)
            for before, now in zip(self._contracted, current, strict=True)
        ):
            # kept entries count 1 / (1 - dropout) times
            spectral_normalise(self.graph, self.options.contraction * (1 - self.options.dropout))
            self._contracted = [p.clone() for p in current]

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Sum of the Fenchel-Young losses of the unobserved entries; 0 if all are observed.

        Variables without values are latent: neither given nor wanted.

        Args:
            values: examples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: not used, because values have all sizes.

        Raises:
            ObservationError: for an unknown variable.
        """
        masks = self._checked(values, observed)
        self._limit_couplings()
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for rows, pattern in _patterns(masks):
            selected = values if rows is None else {name: x[rows] for name, x in values.items()}
            parts = masks if rows is None else {name: x[rows] for name, x in masks.items()}
            for name, loss, count in self._losses(selected, parts, pattern):
                sums[name] = sums[name] + loss if name in sums else loss
                counts[name] = counts.get(name, 0) + count
        if not sums:
            return sum((p.sum() * 0 for p in self.parameters()), torch.zeros(()))
        return torch.stack([sums[name] / max(1, counts[name]) for name in sums]).sum()

    def _checked(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Masks of observed nodes of all variables with values, shape ``(batch, *node axes)``.

        Raises:
            ObservationError: for an unknown variable, or values or masks that do not fit it.
        """
        for name in (*values, *observed):
            if name not in self.graph.variables:
                raise ObservationError(
                    f"graph {self.graph.name!r} has no variable "
                    f"{name!r}.{suggest(name, self.graph.variables)}"
                )
        batch: int | None = None
        masks: dict[str, Tensor] = {}
        for name, x in values.items():
            variable = self.graph.variables[name]
            if not isinstance(x, Tensor):
                raise ObservationError(f"variable {name!r}: expected a torch.Tensor, got {type(x).__name__}.")
            batch = check_batch(repr(name), variable, x, batch)
            if not bool(variable.regularizer.contains(x).all()):
                raise ObservationError(
                    f"variable {name!r}: the examples are NaN or lie outside the domain of "
                    f"{variable.regularizer!r}."
                )
            nodes = x.shape[: 1 + len(variable.node_axes)]
            mask = observed.get(name)
            if mask is None:
                mask = torch.zeros([1] * len(nodes), dtype=torch.bool, device=x.device)
            if (
                not isinstance(mask, Tensor)
                or mask.dtype != torch.bool
                or mask.ndim != len(nodes)
                or any(size not in (1, n) for size, n in zip(mask.shape, nodes, strict=True))
            ):
                shown = f"{mask.dtype}, shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
                raise ObservationError(
                    f"variable {name!r}: the mask of observed nodes is boolean with shape "
                    f"{tuple(nodes)}, axes "
                    f"of size 1 repeated; got {shown:.200}."
                )
            masks[name] = mask.expand(nodes)
        return masks

    def _losses(
        self, values: Mapping[str, Tensor], nodes: Mapping[str, Tensor], pattern: Pattern
    ) -> list[tuple[str, Tensor, int]]:
        """Sum of the losses and number of unobserved nodes of each variable, for rows with one pattern."""
        fixed, partial, want = (
            [name for name, state in pattern.items() if state == kind] for kind in (_ALL, _SOME, _NONE)
        )
        if not want and not partial:
            return []
        masks = {name: _entries(nodes[name], values[name]) for name in partial}
        known = tuple([*fixed, *partial] or [next(iter(self.graph.variables))])
        if not fixed and not partial and known[0] not in want:
            raise ObservationError(
                f"graph {self.graph.name!r}: nothing is given, and variable {known[0]!r} has no examples."
            )
        for name in self._without_sizes(want) or ([known[0]] if not fixed and not partial else []):
            # evidence without an observed entry gives sizes, and the batch size
            want.remove(name)
            partial.append(name)
            masks[name] = torch.zeros_like(values[name], dtype=torch.bool)
        whole = {name: values[name] for name in fixed}
        repeats = None
        if not partial and self._deterministic():
            repeats = repeated_rows(list(whole.values()))
        if repeats is not None:
            whole = {name: x[repeats[0]] for name, x in whole.items()}
        parts = {name: Partial(values[name], masks[name]) for name in partial}
        network, inputs = self.query(whole, parts, want, known)
        wanted = network.want
        rounds = self._training_rounds() if self.training else self.options.iterations
        closed_form = self._closed_form(fixed, wanted)
        if self.training and self.options.round_losses == "every":
            results = network.rounds(*inputs, preactivations=closed_form, iterations=rounds)
        elif closed_form:
            results = [tuple(network.preactivations(*inputs, iterations=rounds))]
        else:
            results = [tuple(network(*inputs, iterations=rounds))]
        if repeats is not None:
            results = [tuple(x[repeats[1]] for x in by_round) for by_round in results]

        def loss_of(name: str, x: Tensor) -> Tensor:
            target, mask = values[name].to(x), masks.get(name)
            if closed_form:
                return self.graph.variables[name].regularizer.loss(x, target, _unobserved(mask)).sum()
            return _loss_of_value(self._divergence(name, fixed), x, target, mask).sum()

        return [
            (
                name,
                torch.stack([loss_of(name, x) for x in by_round]).mean(),
                self._count(name, values[name], masks.get(name)),
            )
            for name, by_round in zip(wanted, zip(*results, strict=True), strict=True)
        ]

    def query(
        self,
        fixed: Mapping[str, Tensor],
        partial: Mapping[str, Partial],
        want: Sequence[str] = (),
        known: Sequence[str] | None = None,
    ) -> tuple[Unrolled, list[Tensor | Partial]]:
        """Unrolled rounds for a query, and their inputs, with the evidence that follows from what is given.

        Args:
            fixed: variables given completely, shape ``(batch, *axes)``.
            partial: those given in part, which are also wanted.
            want, known: as of ``unrolled``.
        """
        given: dict[str, Tensor | Partial] = {**fixed, **partial}
        further = dict(self.derived(self.graph, given)) if self.derived else {}
        network = self.unrolled(tuple(fixed), tuple(partial), tuple(want), known, tuple(further))
        return network, [*given.values(), *further.values()]

    def unrolled(
        self,
        fixed: Sequence[str],
        partial: Sequence[str],
        want: Sequence[str],
        known: Sequence[str] | None = None,
        further: Sequence[str] = (),
    ) -> Unrolled:
        """Unrolled rounds for one choice of what is given; all choices share the weights of the graph.

        Args:
            fixed: names of the variables given completely, the first arguments of the network.
            partial: names of those given in part, its further arguments, which are also wanted.
            want: names of the other wanted variables.
            known: names of the variables by whose distance the others are updated; by default all that are
                given. Evidence without an observed entry, which gives sizes alone, is left out.
            further: names of variables with evidence that follows from the rest, its last arguments, which
                are updated as those without evidence where they are not observed.
        """
        key = (
            tuple(fixed),
            tuple(partial),
            tuple(want),
            tuple(known or (*fixed, *partial)),
            tuple(further),
            self.training,
        )
        if key not in self._networks:
            given = [*fixed, *partial, *further]
            latent = [name for name in self.graph.variables if name not in (*given, *want)]
            network = Unrolled(
                self.graph,
                given,
                [*partial, *want],
                order=self.order(key[3], fixed),
                iterations=self.options.iterations,
                initial=self._initial(fixed),
                dropout=dict.fromkeys(latent, self.options.dropout) if self.options.dropout else None,
                check_values=False,
                gradient=self._gradient(),
            )
            self._networks[key] = network
        return self._networks[key].train(self.training)

    def _deterministic(self) -> bool:
        """Whether equal evidence has equal results: neither dropout nor random initial values."""
        return self.options.initial != "random" and not (self.training and self.options.dropout)

    def _training_rounds(self) -> int:
        """Number of rounds of a training step, drawn where the options say so."""
        if self.options.rounds == "fixed":
            return self.options.iterations
        if self.options.rounds == "random":
            return int(torch.randint(self.options.iterations, ())) + 1
        return int(torch.multinomial(1 / torch.arange(1.0, self.options.iterations + 1), 1)) + 1

    def _gradient(self) -> Gradient:
        """How gradients come back: in training through as many rounds as the options say."""
        if self.training and self.options.gradient_rounds:
            return Truncate(self.options.gradient_rounds)
        return UNROLL

    def _initial(self, fixed: Sequence[str]) -> dict[str, str] | None:
        """Initial values of all variables that are not given completely."""
        if self.options.initial == "zero":
            return None
        return {name: self.options.initial for name in self.graph.variables if name not in fixed}

    def order(self, given: Sequence[str], fixed: Sequence[str]) -> Order | list[str]:
        """Order of updates by distance from the evidence, with variables that are given in part at the end;
        with the sweep ``forward-backward`` also back."""
        names = list(default_order(self.graph, given, fixed))
        outer = [name for name in names if name not in given]
        partial = [name for name in names if name in given]
        if not outer:
            outer, partial = partial, []
        if self.options.sweep == "random":
            last = (partial or outer)[-1]
            return RandomOrder([name for name in names if name != last], last) if len(names) > 1 else names
        if self.options.sweep == "forward" or len(outer) == 1:
            return [*outer, *partial]
        return [*outer, *outer[-2::-1], *partial] if partial else ForwardBackward(outer)

    def infer_values(
        self, given: Given, count: int, sizes: Mapping[str, int], iterations: int | None = None
    ) -> dict[str, Tensor]:
        """Values of all variables after the rounds, with the means of discrete ones.

        Rows of the batch are grouped by the variables that are given in them completely, in part or not at
        all, so that the answer to a query does not depend on the others.
        """
        whole_number("inference: count", count, 1, ArgumentError)
        device = device_of(self.graph)
        evidence = moved({name: expanded(name, x, count) for name, x in given.items()}, device)
        everything = torch.ones(count, 1, dtype=torch.bool, device=device)
        masks = {name: x.mask if isinstance(x, Partial) else everything for name, x in evidence.items()}
        values: dict[str, Tensor] = {}
        for rows, pattern in _patterns(masks):
            selected = {
                name: x
                if rows is None
                else x[rows]
                if isinstance(x, Tensor)
                else Partial(x.value[rows], x.mask[rows])
                for name, x in evidence.items()
                if pattern[name] != _NONE
            }
            # a partial observation without an observed entry still gives sizes
            known = {**sizes, **dynamic_sizes(self.graph, evidence)}
            number = count if rows is None else len(rows)
            if all(pattern.get(name) == _ALL for name in self.graph.variables):
                # nothing is left to infer
                given_values = {
                    name: x.value if isinstance(x, Partial) else x for name, x in selected.items()
                }
                answers = {name: given_values[name] for name in self.graph.variables}
            else:
                solution = self.minimise(selected, number, known, iterations, trace=False)
                answers = {name: solution[name] for name in self.graph.variables}
            for name, x in answers.items():
                x = x.expand(number, *x.shape[1:])
                if rows is None:
                    values[name] = x
                    continue
                if name not in values:
                    values[name] = x.new_zeros(count, *x.shape[1:])
                values[name][rows] = x
        return values

    @no_gradients()
    def minimise(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
        *,
        want: Sequence[str] | None = None,
        trace: bool = True,
        terms: bool = False,
    ) -> Solution:
        """Minimise the energy over all that is not given, as ``unn.infer`` with the options of the model.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: number of rounds; None for that of training.
            want: check that these variables can be reached from what is given.
            trace: record the energy after each update.
            terms: record the share of each factor as well.

        Raises:
            ObservationError: for values that do not fit the graph.
            InferenceError: for variables that cannot be reached.
        """
        self._limit_couplings()
        evidence = {name: expanded(name, x, count) for name, x in given.items()}
        evidence = {name: _completed(x) for name, x in moved(evidence, device_of(self.graph)).items()}
        static = self.graph.size_table.static
        for axis, size in sizes.items():
            if static.get(axis, size) != size:
                raise ObservationError(
                    f"graph {self.graph.name!r}: axis {axis!r} has size {static[axis]}, not {size}; "
                    f"leave it out."
                )
        known = [name for name, x in evidence.items() if not isinstance(x, Partial) or bool(x.mask.any())]
        fixed = [name for name, x in evidence.items() if not isinstance(x, Partial)]
        free = [name for name in self.graph.variables if name not in fixed]
        if self.derived:
            evidence |= self.derived(self.graph, evidence)
        if not evidence:
            # evidence without an observed entry gives the batch size
            table = self.graph.size_table
            solved = table.solve({table.root(axis): size for axis, size in sizes.items()})
            shape = [int(size or 0) for size in table.shape(self.graph.variables[free[0]], solved)]
            nothing = torch.zeros(count, *shape, device=device_of(self.graph))
            evidence[free[0]] = Partial(nothing, torch.zeros_like(nothing, dtype=torch.bool))
        training = self.training
        self.eval()
        try:
            return infer(
                self.graph,
                evidence,
                order=self.order(known or [next(iter(self.graph.variables))], fixed),
                iterations=self.options.iterations if iterations is None else iterations,
                initial=self._initial(fixed),
                want=want,
                trace=trace,
                terms=terms,
                sizes={axis: size for axis, size in sizes.items() if axis not in static},
            )
        finally:
            self.train(training)

    def _without_sizes(self, names: Sequence[str]) -> list[str]:
        """Those of some variables that have an axis without a static size."""
        table = self.graph.size_table
        return [name for name in names if None in table.shape(self.graph.variables[name], table.static)]

    def _closed_form(self, fixed: Sequence[str], names: Sequence[str]) -> bool:
        """Whether the last updates of variables have closed forms, so that their pre-activations are
        known."""
        how = Plan.of(self.graph, list(fixed)).update_kinds
        return all(how.get(name) == "closed form" for name in names)

    def _divergence(self, name: str, fixed: Sequence[str]) -> Regularizer | None:
        """Regularizer of the loss of a value; None for squared error.

        The logarithms of values from the inner solver have gradients that its linear systems cannot solve
        exactly where a value is next to 0 or 1.
        """
        how = Plan.of(self.graph, list(fixed)).update_kinds
        return None if how[name] == "inner solver" else self.graph.variables[name].regularizer

    def _count(self, name: str, value: Tensor, mask: Tensor | None) -> int:
        """Number of unobserved nodes of a variable in a batch."""
        variable = self.graph.variables[name]
        over = variable.regularizer.over_axes(variable.axes)
        features = 1
        for axis, size in zip(variable.axes, value.shape[1:], strict=True):
            features *= size if axis in over else 1
        entries = value.numel() if mask is None else int((~mask).sum())
        return entries // features


def with_energies(graph: Declaration, penalty: float) -> Declaration:
    """The graph itself if coordinate descent can use all of it, else a copy in which constraints have
    energies.

    Raises:
        UnnError: if a factor has no energy, and is no constraint with one.
    """
    reason = refusal_of_bounds(graph)
    if reason:
        raise DeclarationError(f"graph {graph.name!r}: {reason}.")
    if len(graph.energy_factors) == len(graph.factors):
        return graph
    return relax(graph, penalty, learned=True)


def _entries(mask: Tensor, value: Tensor) -> Tensor:
    """Expand a mask of nodes to the entries of a value, ``(batch, *axes)``."""
    return mask.reshape(*mask.shape, *(1,) * (value.ndim - mask.ndim)).expand(value.shape)


def _unobserved(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else ~mask


def _patterns(masks: Mapping[str, Tensor]) -> list[tuple[Tensor | None, Pattern]]:
    """Groups of rows by the variables that are observed in them completely, in part or not at all.

    Returns:
        Indices of rows, None for all of them, with the pattern of the group.
    """
    if not masks:
        return [(None, {})]
    flat = [mask.reshape(len(mask), -1) for mask in masks.values()]
    codes = torch.stack([x.any(1).long() + x.all(1).long() for x in flat], 1)
    distinct, group = codes.unique(dim=0, return_inverse=True)
    patterns = [dict(zip(masks, code, strict=True)) for code in distinct.tolist()]
    if len(patterns) == 1:
        return [(None, patterns[0])]
    return [((group == k).nonzero()[:, 0], pattern) for k, pattern in enumerate(patterns)]


def expanded(name: str, value: Tensor | Partial, count: int) -> Tensor | Partial:
    """Repeat evidence with a batch axis of 1.

    Raises:
        ObservationError: for evidence of another batch size, or that is not a tensor.
    """
    for x in (value.value, value.mask) if isinstance(value, Partial) else (value,):
        if not isinstance(x, Tensor) or not x.ndim or x.shape[0] not in (1, count):
            shown = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"{type(x).__name__}, no tensor"
            size = "1" if count == 1 else f"{count} or 1"
            raise ObservationError(
                f"variable {name!r}: evidence for {count} queries is a tensor with a batch axis of size "
                f"{size}, got {shown}."
            )
    if isinstance(value, Partial):
        full = value.value.expand(count, *value.value.shape[1:])
        return Partial(full, value.mask.expand(count, *value.mask.shape[1:]))
    return value.expand(count, *value.shape[1:])


def _completed(value: Tensor | Partial) -> Tensor | Partial:
    """The value itself of evidence that is observed completely."""
    return value.value if isinstance(value, Partial) and bool(value.mask.all()) else value


def _loss_of_value(
    regularizer: Regularizer | None, value: Tensor, target: Tensor, mask: Tensor | None
) -> Tensor:
    """The Bregman divergence from a value to its target, shape ``(batch,)``: the Fenchel-Young loss of its
    scores.

    For updates without a closed form there are no scores. Half the squared error without a regularizer.
    """
    if isinstance(regularizer, Simplex):
        losses = -target * value.clamp(min=_SMALLEST).log()
    elif isinstance(regularizer, BinaryEntropy | SignedEntropy):
        if isinstance(regularizer, SignedEntropy):
            value, target = (1 + value) / 2, (1 + target) / 2
        right, wrong = value.clamp(min=_SMALLEST).log(), (1 - value).clamp(min=_SMALLEST).log()
        losses = -(target * right + (1 - target) * wrong)
    else:
        losses = (value - target) ** 2 / 2
    if mask is not None:
        losses = losses.masked_fill(mask, 0)
    return entries_of(losses).sum(1)
