"""Verified solutions of a declaration's constraints, by repeated tries of a model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..engine import CanSolve, SolvingOptions, evaluating
from ..errors import DeclarationError, ObservationError, UnnError, is_whole
from ..graph.declaration import Declaration
from ..graph.dynamic import sizes_with
from ..graph.partial import Partial
from ..networks.tokens import Given, kinds
from ..ops.seeds import seed_of
from ..regularizers.base import batch_sum
from .layout import Layout, refusal_of_constraints
from .propagation import evidence, propagate

_NO_ANSWER = torch.iinfo(torch.long).max
"""Number of violations that stands for an answer without a value at some node."""

Outcome = Literal["solved", "unsolved", "impossible"]
"""Whether an instance has a verified answer, none within the limits, or none at all."""


@dataclass(frozen=True, eq=False)
class Solutions:
    """Answers to a batch of instances.

    Attributes:
        outcomes: outcome of each instance.
        values: one answer to each instance by discrete variable, shape ``(instances, *axes)``: a verified
            one, or the one with the fewest violations.
        is_assigned: mask of the instances in which this answer has a value at every node, shape
            ``(instances,)``; where no try reached one, open nodes have none.
        violations: number of violated parts of all constraints in that answer, shape ``(instances,)``.
        answers: the different verified answers to each instance, by variable, shape ``(answers, *axes)``.
        tries: number of tries of each instance, shape ``(instances,)``.
        reasons: for an instance without a solution the group of candidates that proves it; else empty.
        is_complete: mask of the instances that are proved to have no other answers, shape ``(instances,)``.
        seconds: time of the call.
    """

    outcomes: tuple[Outcome, ...]
    values: Mapping[str, Tensor]
    is_assigned: Tensor
    violations: Tensor
    answers: tuple[Mapping[str, Tensor], ...]
    tries: Tensor
    reasons: tuple[str, ...]
    is_complete: Tensor
    seconds: float

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    @property
    def solved(self) -> Tensor:
        """Mask of the instances with a verified answer, shape ``(instances,)``."""
        return torch.tensor([outcome == "solved" for outcome in self.outcomes])


@dataclass(eq=False)
class _Progress:
    """The best answers so far, and all verified ones.

    Attributes:
        graph: declaration with constraints.
        given: evidence of all instances on discrete variables.
        wanted: number of different answers to each instance.
        best: answer with the fewest violations, by variable, shape ``(instances, *axes)``.
        violations: number of its violations, shape ``(instances,)``.
        answers: verified answers to each instance, all different.
        seen: their values as bytes.
    """

    graph: Declaration
    given: Mapping[str, Partial]
    wanted: int
    best: dict[str, Tensor]
    violations: Tensor
    answers: list[list[dict[str, Tensor]]]
    seen: list[set[bytes]]

    @classmethod
    def of(
        cls,
        graph: Declaration,
        given: Mapping[str, Partial],
        wanted: int,
        first: dict[str, Tensor],
        is_ranked: bool,
    ) -> _Progress:
        """Begin with one answer to each instance, which for a model that ranks answers is none of its own."""
        count = len(next(iter(first.values())))
        most = torch.full((count,), _NO_ANSWER)
        none: list[list[dict[str, Tensor]]] = [[] for _ in range(count)]
        progress = cls(graph, given, wanted, dict(first), most, none, [set() for _ in range(count)])
        progress.add(torch.arange(count), first)
        # an answer with a value at every node is better than the evidence, whatever it violates
        progress.violations[_open_nodes(graph, first) > 0] = _NO_ANSWER
        if is_ranked:
            progress.answers = [[] for _ in range(count)]
            progress.seen = [set() for _ in range(count)]
            # any answer of the model is better
            progress.violations = progress.violations.clamp(min=1)
        return progress

    def add(self, instances: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Verify answers to some instances, and return the mask of those that are verified."""
        violations = violations_of(self.graph, _rows(self.given, instances), values)
        better = violations < self.violations[instances]
        chosen = instances[better]
        self.violations[chosen] = violations[better]
        for name, x in values.items():
            self.best[name][chosen] = x[better].to(self.best[name])
        verified = violations == 0
        for place in verified.nonzero()[:, 0].tolist():
            answer = {name: x[place].to(self.best[name]) for name, x in values.items()}
            self._keep(int(instances[place]), answer)
        return verified

    def _keep(self, instance: int, values: dict[str, Tensor]) -> None:
        """Add a verified answer, if it differs from the others."""
        key = b"".join(x.contiguous().numpy().tobytes() for x in values.values())
        if len(self.answers[instance]) < self.wanted and key not in self.seen[instance]:
            self.answers[instance].append(values)
            self.seen[instance].add(key)

    def incomplete(self) -> Tensor:
        """Mask of the instances that need more answers, shape ``(instances,)``."""
        return torch.tensor([len(answers) for answers in self.answers]) < self.wanted

    def stacked(self) -> tuple[dict[str, Tensor], ...]:
        """All verified answers to each instance by variable, shape ``(answers, *axes)``; empty without."""
        return tuple(
            {name: torch.stack([x[name] for x in answers]) for name in self.best} if answers else {}
            for answers in self.answers
        )


def _rows(given: Mapping[str, Partial], rows: Tensor) -> dict[str, Partial]:
    """Evidence of some instances."""
    return {name: Partial(x.value[rows], x.mask[rows]) for name, x in given.items()}


def solve(
    model: CanSolve,
    given: Given,
    *,
    count: int | None = None,
    options: SolvingOptions | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Solutions:
    """Find values of all discrete variables that agree with the evidence and meet all constraints.

    Every answer is verified by the constraints themselves; what is not verified is not called solved. An
    instance is impossible where counting alone proves it.

    Args:
        model: model with the capability ``CanSolve`` and the attribute ``graph``.
        given: evidence by variable, complete or partial, shape ``(instances, *axes)``.
        count: number of instances; that of the evidence by default.
        options: limits and seed.
        sizes: sizes of the axes without a static size; those of the evidence by default.

    Raises:
        DeclarationError: for a graph without constraints, a constraint with a continuous variable, or an axis
            of unknown size.
        ObservationError: for evidence that does not fit the graph.
        UnnError: for an option that is out of range.

    Example:
        >>> solutions = unn.solve(model, {"X": unn.Partial(grids, cells)})
        >>> solutions.outcomes[0], solutions["X"][0].argmax(-1) + 1
    """
    options = SolvingOptions() if options is None else options
    _check_arguments(model, given, count, options)
    with evaluating(model) if isinstance(model, nn.Module) else nullcontext():
        return _solve(model, given, count, options, sizes)


def _solve(
    model: CanSolve,
    given: Given,
    count: int | None,
    options: SolvingOptions,
    sizes: Mapping[str, int] | None,
) -> Solutions:
    began = time.perf_counter()
    graph: Declaration = model.graph  # type: ignore[attr-defined]
    if not graph.constraints:
        raise DeclarationError(
            f"solve: graph {graph.name!r} has no constraint by which an answer could be verified."
        )
    reason = refusal_of_constraints(graph)
    if reason:
        raise DeclarationError(
            f"solve: {reason}, and answers are values of discrete variables; declare what is continuous by "
            "factors with an energy."
        )
    lengths = [len(x.value if isinstance(x, Partial) else x) for x in given.values()]
    instances = count or max(lengths, default=1)
    sizes = sizes_with(graph, given, sizes)
    layout = Layout(graph, sizes, with_tables=True)
    rows, nodes = layout.frame.observation(layout.discrete_part(given), instances)
    _, impossible = propagate(layout, evidence(layout, rows, nodes))
    reasons = tuple(layout.describe(int(g)) if g >= 0 else "" for g in impossible)
    expanded = {name: _expanded(x, instances) for name, x in given.items()}
    # a first answer to every instance, also without time for a try
    evident = _evident_values(layout, rows, nodes)
    progress = _Progress.of(graph, layout.discrete_part(expanded), options.count, evident, model.is_ranked)
    tries = torch.zeros(instances, dtype=torch.long)
    exhausted = torch.zeros(instances, dtype=torch.bool)
    for number in range(options.tries):
        waiting = (progress.incomplete() & (impossible < 0) & ~exhausted).nonzero()[:, 0]
        for first in range(0, len(waiting), options.at_once):
            if _over(began, options):
                break
            chunk = waiting[first : first + options.at_once]
            generator = torch.Generator().manual_seed(seed_of(options.seed, number, first))
            evidence_of_chunk = _rows(expanded, chunk)
            attempt = model.attempt(evidence_of_chunk, len(chunk), sizes, options.steps, generator, number)
            if options.seconds is not None:
                attempt.ends = began + options.seconds
            tries[chunk] += 1
            while len(chunk) and not _over(began, options):
                values = attempt.advance()
                if values is None:
                    break
                leaves = progress.add(chunk, values)
                if model.enumerates:
                    # its next answers come in the same try
                    leaves = ~progress.incomplete()[chunk]
                refuted = attempt.refuted()
                if refuted is not None:
                    exhausted[chunk[refuted]] = True
                    leaves |= refuted
                if bool(leaves.any()):
                    kept = (~leaves).nonzero()[:, 0]
                    attempt.keep(kept)
                    chunk = chunk[kept]
        if not len(waiting) or _over(began, options):
            break
    outcomes: tuple[Outcome, ...] = tuple(
        "impossible" if group >= 0 else "solved" if answers else "impossible" if proved else "unsolved"
        for group, answers, proved in zip(
            impossible.tolist(), progress.answers, exhausted.tolist(), strict=True
        )
    )
    return Solutions(
        outcomes,
        progress.best,
        _open_nodes(graph, progress.best) == 0,
        torch.where(
            progress.violations < _NO_ANSWER,
            progress.violations,
            violations_of(graph, progress.given, progress.best),
        ),
        progress.stacked(),
        tries,
        reasons,
        exhausted | (impossible >= 0),
        time.perf_counter() - began,
    )


def _evident_values(layout: Layout, rows: Tensor, nodes: Tensor) -> dict[str, Tensor]:
    """The evidence by discrete variable, shape ``(instances, *axes)``, zeros at nodes that are not given.

    Args:
        layout: candidates.
        rows: values, shape ``(instances, numbers)``.
        nodes: mask of the given nodes, shape ``(instances, nodes)``.
    """
    values = layout.frame.unflatten(rows)
    for name, slot in layout.frame.slots.items():
        x = values[name]
        known = nodes[:, slot.nodes].reshape(len(nodes), *slot.node_shape)
        values[name] = x * known.reshape(*known.shape, *(1,) * (x.ndim - known.ndim))
    return values


def _check_arguments(model: object, given: object, count: object, options: object) -> None:
    """Check the kinds of the arguments.

    Raises:
        UnnError: names the first that is wrong.
    """
    if not isinstance(model, CanSolve):
        raise UnnError(
            "solve: the model must derive from unn.CanSolve, as unn.Search(graph, unn.SearchOptions()) does, "
            f"got {type(model).__name__}."
        )
    if not isinstance(given, Mapping):
        raise UnnError(
            f"solve: the evidence is a mapping from variables to values, got {type(given).__name__}."
        )
    for name, x in given.items():
        if not isinstance(x, Tensor | Partial):
            raise ObservationError(
                f"solve: variable {name!r} needs a tensor or a unn.Partial, got {type(x).__name__}."
            )
    if count is not None and not is_whole(count, 1):
        raise UnnError(f"solve: count must be a whole number of instances, at least 1, got {count!r}.")
    if not isinstance(options, SolvingOptions):
        raise UnnError(f"solve: options must be a unn.SolvingOptions, got {type(options).__name__}.")
    options.check()


def violations_of(graph: Declaration, given: Mapping[str, Partial], values: Mapping[str, Tensor]) -> Tensor:
    """Number of violated parts of all constraints, of entries that differ from the evidence, and of nodes
    without a discrete value, shape ``(batch,)``.

    Args:
        graph: declaration with constraints.
        given: evidence by variable.
        values: discrete values of all variables, shape ``(batch, *axes)``.
    """
    violations = torch.stack([c.violations_of(values) for c in graph.constraints]).sum(0)
    for name, x in given.items():
        mask = x.mask.reshape(*x.mask.shape, *(1,) * (x.value.ndim - x.mask.ndim)).expand(x.value.shape)
        differs = mask & (x.value != values[name].to(x.value.dtype))
        violations = violations + batch_sum(differs.long())
    return violations + _open_nodes(graph, values)


def _open_nodes(graph: Declaration, values: Mapping[str, Tensor]) -> Tensor:
    """Number of nodes without a discrete value, shape ``(batch,)``."""
    numbers = []
    for name, kind in kinds(graph).items():
        if kind != "real":
            value = values[name]
            discrete = (value == 0) | (value == 1)
            if kind == "category":
                first = 1 + len(graph.variables[name].node_axes)
                discrete = discrete.flatten(first).all(-1) & (value.flatten(first).sum(-1) == 1)
            numbers.append(batch_sum((~discrete).long()))
    return torch.stack(numbers).sum(0)


def _over(began: float, options: SolvingOptions) -> bool:
    return options.seconds is not None and time.perf_counter() - began >= options.seconds


def _expanded(x: Tensor | Partial, count: int) -> Partial:
    value, mask = (x.value, x.mask) if isinstance(x, Partial) else (x, torch.ones(len(x), dtype=torch.bool))
    if mask.ndim == 0:
        mask = mask[None]
    return Partial(value.expand(count, *value.shape[1:]), mask.expand(count, *mask.shape[1:]))
