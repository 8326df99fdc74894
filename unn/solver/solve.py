"""Verified solutions of a declaration's constraints, by repeated tries of a model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..engine import CanSolve, SolvingOptions
from ..errors import DeclarationError
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from ..networks.tokens import Given
from ..ops.seeds import seed_of
from .layout import Layout
from .propagation import evidence, propagate

Outcome = Literal["solved", "unsolved", "impossible"]
"""Whether an instance has a verified answer, none within the limits, or none at all."""


@dataclass(frozen=True, eq=False)
class Solutions:
    """Answers to a batch of instances.

    Attributes:
        outcomes: outcome of each instance.
        values: one answer to each instance by variable, shape ``(instances, *axes)``: a verified one, or the
            one with the fewest violations.
        violations: number of violated parts of all constraints in that answer, shape ``(instances,)``.
        answers: the different verified answers to each instance, by variable, shape ``(answers, *axes)``.
        tries: number of tries of each instance, shape ``(instances,)``.
        reasons: for an instance without a solution the group of candidates that proves it; else empty.
        seconds: time of the call.
    """

    outcomes: tuple[Outcome, ...]
    values: Mapping[str, Tensor]
    violations: Tensor
    answers: tuple[Mapping[str, Tensor], ...]
    tries: Tensor
    reasons: tuple[str, ...]
    seconds: float

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    @property
    def solved(self) -> Tensor:
        """Mask of the instances with a verified answer, shape ``(instances,)``."""
        return torch.tensor([outcome == "solved" for outcome in self.outcomes])


@dataclass(eq=False)
class _Progress:
    """The best answers so far."""

    given: Mapping[str, Partial]
    options: SolvingOptions
    best: dict[str, Tensor] = field(default_factory=dict)
    violations: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    answers: list[dict[str, Tensor]] = field(default_factory=list)

    def add(self, graph: Declaration, instances: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Verify answers to some instances, and return the mask of those that are verified."""
        violations = violations_of(graph, {name: x[instances] for name, x in self._masked().items()}, values)
        better = violations < self.violations[instances]
        chosen = instances[better]
        self.violations[chosen] = violations[better]
        for name, x in values.items():
            if name not in self.best:
                self.best[name] = x.new_zeros(len(self.violations), *x.shape[1:])
            self.best[name][chosen] = x[better]
        for place in (violations == 0).nonzero()[:, 0].tolist():
            self._keep(int(instances[place]), {name: x[place] for name, x in values.items()})
        return violations == 0

    def _masked(self) -> Mapping[str, _Rows]:
        return {name: _Rows(x) for name, x in self.given.items()}

    def _keep(self, instance: int, values: dict[str, Tensor]) -> None:
        """Add a verified answer, if it differs from the others."""
        answers = self.answers[instance]
        count = len(next(iter(answers.values()))) if answers else 0
        if count >= self.options.count:
            return
        if count and any(all(torch.equal(answers[n][k], values[n]) for n in values) for k in range(count)):
            return
        for name, x in values.items():
            answers[name] = torch.cat([answers[name], x[None]]) if count else x[None]

    def open(self, tries: Tensor) -> Tensor:
        """Instances that need more answers, and have tries left."""
        counts = torch.tensor([len(next(iter(a.values()))) if a else 0 for a in self.answers])
        return ((counts < self.options.count) & (tries < self.options.tries)).nonzero()[:, 0]


class _Rows:
    """Partial evidence that is indexed by its rows."""

    def __init__(self, evidence: Partial) -> None:
        self.evidence = evidence

    def __getitem__(self, rows: Tensor) -> Partial:
        return Partial(self.evidence.value[rows], self.evidence.mask[rows])


def solve(
    model: CanSolve,
    given: Given,
    *,
    count: int | None = None,
    options: SolvingOptions | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Solutions:
    """Find values of all variables that agree with the evidence and meet all constraints.

    Every answer is verified by the constraints themselves; what is not verified is not called solved. An
    instance is impossible where counting alone proves it.

    Args:
        model: model with the capability ``CanSolve`` and the attribute ``graph``.
        given: evidence by variable, complete or partial, shape ``(instances, *axes)``.
        count: number of instances; that of the evidence by default.
        options: limits and seed.
        sizes: sizes of the axes without a static size.

    Raises:
        DeclarationError: for a graph without constraints.
        ObservationError: for evidence that does not fit the graph.
        UnnError: for an option that is out of range.

    Example:
        >>> solutions = unn.solve(model, {"X": unn.Partial(grids, cells)})
        >>> solutions.outcomes[0], solutions["X"][0].argmax(-1) + 1
    """
    began = time.perf_counter()
    options = options or SolvingOptions()
    options.check()
    graph: Declaration = model.graph  # type: ignore[attr-defined]
    if not graph.constraints:
        raise DeclarationError(
            f"solve: graph {graph.name!r} has no constraint by which an answer could be verified."
        )
    lengths = [len(x.value if isinstance(x, Partial) else x) for x in given.values()]
    instances = count or max(lengths, default=1)
    layout = Layout(graph, sizes or {})
    rows, nodes = layout.frame.observation(given, instances)
    _, impossible = propagate(layout, evidence(layout, rows, nodes))
    reasons = tuple(layout.describe(int(g)) if g >= 0 else "" for g in impossible)
    expanded = {name: _expanded(x, instances) for name, x in given.items()}
    progress = _Progress(expanded, options)
    progress.violations = torch.full((instances,), torch.iinfo(torch.long).max)
    progress.answers = [{} for _ in range(instances)]
    tries = torch.zeros(instances, dtype=torch.long)
    tries[impossible >= 0] = options.tries
    # a first answer to every instance, also without time: the evidence itself
    progress.add(graph, torch.arange(instances), layout.frame.unflatten(rows))
    while len(waiting := progress.open(tries)) and not _over(began, options):
        for first in range(0, len(waiting), options.at_once):
            if _over(began, options):
                break
            chunk = waiting[first : first + options.at_once]
            generator = torch.Generator().manual_seed(seed_of(options.seed, int(tries.max()), first))
            evidence_of_chunk = {name: _Rows(x)[chunk] for name, x in expanded.items()}
            attempt = model.attempt(evidence_of_chunk, len(chunk), sizes or {}, options.steps, generator)
            tries[chunk] += 1
            while len(chunk) and not _over(began, options):
                values = attempt.advance()
                if values is None:
                    break
                verified = progress.add(graph, chunk, values)
                if bool(verified.any()):
                    kept = (~verified).nonzero()[:, 0]
                    attempt.keep(kept)
                    chunk = chunk[kept]
    tries[impossible >= 0] = 0
    outcomes: tuple[Outcome, ...] = tuple(
        "impossible" if g >= 0 else "solved" if a else "unsolved"
        for g, a in zip(impossible.tolist(), progress.answers, strict=True)
    )
    return Solutions(
        outcomes,
        progress.best,
        progress.violations,
        tuple(progress.answers),
        tries,
        reasons,
        time.perf_counter() - began,
    )


def violations_of(graph: Declaration, given: Mapping[str, Partial], values: Mapping[str, Tensor]) -> Tensor:
    """Number of violated parts of all constraints and of nodes that differ from the evidence, ``(batch,)``.

    Args:
        graph: declaration with constraints.
        given: evidence by variable.
        values: discrete values of all variables, shape ``(batch, *axes)``.
    """
    violations = torch.stack([c.violations_of(values) for c in graph.constraints]).sum(0)
    for name, x in given.items():
        mask = x.mask.reshape(*x.mask.shape, *(1,) * (x.value.ndim - x.mask.ndim)).expand(x.value.shape)
        differs = mask & (x.value != values[name].to(x.value.dtype))
        violations = violations + differs.flatten(1).sum(1)
    return violations


def _over(began: float, options: SolvingOptions) -> bool:
    return options.seconds is not None and time.perf_counter() - began >= options.seconds


def _expanded(x: Tensor | Partial, count: int) -> Partial:
    value, mask = (x.value, x.mask) if isinstance(x, Partial) else (x, torch.ones(len(x), dtype=torch.bool))
    if mask.ndim == 0:
        mask = mask[None]
    return Partial(value.expand(count, *value.shape[1:]), mask.expand(count, *mask.shape[1:]))
