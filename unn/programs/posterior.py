"""Samples of the posterior of a program from its density: annealed sequential Monte Carlo.

Particles start as draws of the program with the evidence in place, and are weighted, resampled and moved
while the density of the evidence is raised to powers from 0 to 1 (Del Moral, Doucet and Jasra, 2006), chosen
so that a given share of the effective sample size remains. Moves are those of differential evolution (ter
Braak, 2006; Vrugt et al., 2009): differences of particles of the other half of the population, along random
subsets of the coordinates, with Metropolis acceptance. Unobserved values without observed descendants are
drawn afterwards from the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import logsumexp

from ..errors import ArgumentError, ObservationError
from ..ops.resampling import effective_number, systematic_resampling
from .density import log_densities, places_of
from .kinds import Array
from .tape import Drawing, RecordedDraw, Settle, Statement, Step, Tape

_KEPT = 0.9
"""Share of the effective sample size that remains from one power to the next."""
_ACCEPTED, _ACCEPTED_AT_LAST = 10.0, 100.0
"""Mean number of accepted moves per particle at a power, and at the power 1."""
_MOST_MOVES, _MOST_AT_LAST = 300, 6000
"""Largest numbers of moves per particle at a power, and at the power 1."""
_MOST_POWERS = 500
"""Largest number of powers, after which the evidence counts as impossible."""
_WIDER = 1.5
"""Width of the start of values that are drawn jointly with evidence, in their standard deviations."""


@dataclass(frozen=True, eq=False)
class Particles:
    """Samples of a posterior.

    Attributes:
        values: values of all variables, by name, shape ``(count, nodes, *features)``.
        log_evidence: estimate of the logarithm of the density of the evidence.
        powers: number of powers of the density of the evidence.
        accepted: mean number of accepted moves per particle at the power 1.
    """

    values: dict[str, Array]
    log_evidence: float
    powers: int
    accepted: float


def sample_posterior(
    tape: Tape, given: Mapping[str, tuple[Array, Array]], count: int, generator: np.random.Generator
) -> Particles:
    """Sample all values given some.

    Args:
        tape: tape of a complete run.
        given: stored values ``(1, nodes, *features)`` and masks ``(nodes,)`` of evidence, by variable.
        count: number of particles, at least 8.
        generator: random number generator.

    Raises:
        ArgumentError: for unobserved discrete variables or proportions on which the evidence depends.
        ObservationError: for evidence on computed variables, or with density zero in all attempts.
    """
    return _Sampler(tape, given, count, generator).run()


class _Sampler:
    """One run: which numbers are evidence, which are moved, and which are drawn afterwards.

    Attributes:
        moved: columns of the numbers that are moved, by variable.
        joint: those of them that are drawn jointly with evidence.
        weighted, started: draws of each statement with evidence, and other relevant ones, boolean, shape
            ``(draws,)``.
    """

    def __init__(
        self,
        tape: Tape,
        given: Mapping[str, tuple[Array, Array]],
        count: int,
        generator: np.random.Generator,
    ) -> None:
        self.tape, self.count, self.generator, self.given = tape, count, generator, given
        self.plan = tape.plan()
        observed = np.zeros(len(tape.parents), dtype=bool)
        for name, (_, mask) in given.items():
            observed[tape.variables[name].nodes.ravel()[mask]] = True
        relevant = _relevant(tape, observed)
        self.evidence = self._masks(observed)
        self.fixed_at_last = self._masks(observed | relevant)
        drawn, joint = np.zeros_like(observed), np.zeros_like(observed)
        self.weighted: dict[int, Array] = {}
        self.started: dict[int, Array] = {}
        for statement, nodes in _draws(tape):
            drawn[nodes] = True
            has_evidence = np.asarray(observed[nodes].any(1))
            self.weighted[id(statement)] = has_evidence
            self.started[id(statement)] = np.asarray(~has_evidence & relevant[nodes].any(1))
            joint[nodes[has_evidence]] = True
        if (observed & ~drawn).any():
            name = tape.node_name(int(np.flatnonzero(observed & ~drawn)[0]))
            raise ObservationError(
                f"program: {name!r} is computed, so evidence on it has density zero; give random variables."
            )
        free = relevant & drawn & ~observed
        self.moved = self._columns(free)
        self.joint = self._columns(free & joint)
        self.fixed_at_first = self._masks(observed | (free & joint))

    def _masks(self, nodes: Array) -> dict[str, Array]:
        return {name: nodes[recorded.nodes.ravel()] for name, recorded in self.tape.variables.items()}

    def _columns(self, nodes: Array) -> dict[str, Array]:
        """Numbers of nodes in the flat rows of each variable that has some.

        Raises:
            ArgumentError: for nodes without densities on the real line.
        """
        columns = {}
        for name, mask in self._masks(nodes).items():
            kind = self.tape.variables[name].values
            if mask.any() and kind.name not in ("real", "vector"):
                raise ArgumentError(
                    f"program: evidence depends on {name!r}, which is {kind} and not given; the posterior is "
                    "sampled for real variables alone. Give it, or use a denoiser."
                )
            if mask.any():
                columns[name] = np.flatnonzero(np.repeat(mask, int(np.prod(kind.features, dtype=np.int64))))
        return columns

    def run(self) -> Particles:
        """Sample."""
        values = self._forward(self.given, self.evidence)
        reference = self._spread_joint(values)
        if reference:
            # what depends on the changed numbers is drawn again
            fixed = {name: (x, self.fixed_at_first[name]) for name, x in values.items()}
            values = self._forward(fixed, self.fixed_at_first)
        start, weight = self._terms(values, reference)
        if not (weight > -np.inf).any():
            raise ObservationError(
                f"program: the evidence has density zero in all of {self.count} draws of the program; is it "
                "possible?"
            )
        power, log_evidence, powers, accepted = 0.0, 0.0, 0, 0.0
        while power < 1:
            powers += 1
            step = _next_step(weight, 1 - power)
            if powers > _MOST_POWERS or step <= 0:
                raise ObservationError(
                    "program: the density of the evidence varies too much between draws of the program to "
                    "approach it; is the evidence possible?"
                )
            log_evidence += float(logsumexp(step * weight)) - math.log(self.count)
            offset = self.generator.random()
            chosen = systematic_resampling(torch.from_numpy(step * weight), offset).numpy()
            values = {name: x[chosen] for name, x in values.items()}
            start, weight = start[chosen], weight[chosen]
            power = 1.0 if step >= 1 - power else power + step
            limits = (_ACCEPTED_AT_LAST, _MOST_AT_LAST) if power == 1 else (_ACCEPTED, _MOST_MOVES)
            accepted = self._move(values, start, weight, power, reference, *limits)
        fixed = {name: (x, self.fixed_at_last[name]) for name, x in values.items()}
        return Particles(self._forward(fixed, self.fixed_at_last), log_evidence, powers, accepted)

    def _move(
        self,
        values: dict[str, Array],
        start: Array,
        weight: Array,
        power: float,
        reference: Mapping[str, tuple[Array, Array]],
        wanted: float,
        most: int,
    ) -> float:
        """Move all particles in place, each half by differences of the other; returns accepted moves per
        particle."""
        if not self.moved:
            return 0.0
        halves = np.array_split(self.generator.permutation(self.count), 2)
        accepted = 0.0
        for _ in range(most):
            for own, other in (halves, halves[::-1]):
                change = self._differences(self._moving(values, other), len(own))
                candidate = {name: x[own] for name, x in values.items()}
                self._change(candidate, change)
                new_start, new_weight = self._terms(candidate, reference)
                with np.errstate(invalid="ignore"):
                    gain = new_start - start[own] + power * (new_weight - weight[own])
                take = np.log(self.generator.random(len(own))) < np.nan_to_num(gain, nan=-np.inf)
                moved = own[take]
                for name in values:
                    values[name][moved] = candidate[name][take]
                start[moved], weight[moved] = new_start[take], new_weight[take]
                accepted += len(moved) / self.count
            if accepted >= wanted:
                break
        return accepted

    def _differences(self, others: Array, count: int) -> Array:
        """Proposed changes, shape ``(count, moved numbers)``."""
        size = others.shape[1]
        first, second = (self.generator.integers(len(others), size=count) for _ in range(2))
        # a subset of coordinates: all of them in half of the moves
        share = np.where(self.generator.random(count) < 0.5, 1.0, self.generator.random(count))
        subset = self.generator.random((count, size)) < share[:, None]
        subset[np.arange(count), self.generator.integers(size, size=count)] = True
        chosen = subset.sum(1)
        scale = 2.38 / np.sqrt(2 * chosen) * np.exp(self.generator.uniform(-3.0, 0.5, count))
        # whole differences jump between modes
        scale = np.where(self.generator.random(count) < 0.1, 1.0, scale)
        spread = others.std(0) + 1e-12
        jitter = 1e-4 * spread * self.generator.standard_normal((count, size))
        return np.asarray(subset * (scale[:, None] * (others[first] - others[second]) + jitter))

    def _moving(self, values: Mapping[str, Array], rows: Array) -> Array:
        """The moved numbers of some particles, shape ``(rows, moved numbers)``."""
        parts = [
            values[name][rows].reshape(len(rows), -1)[:, columns] for name, columns in self.moved.items()
        ]
        return np.concatenate(parts, 1)

    def _change(self, values: dict[str, Array], change: Array) -> None:
        """Add changes, shape ``(rows, moved numbers)``, to copies of rows."""
        first = 0
        for name, columns in self.moved.items():
            rows = values[name].reshape(len(change), -1)
            rows[:, columns] += change[:, first : first + len(columns)]
            first += len(columns)

    def _spread_joint(self, values: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Draw numbers that are drawn jointly with evidence from a wide normal distribution instead; returns
        its means and standard deviations, by variable."""
        free = self._forward({}, {name: np.zeros_like(mask) for name, mask in self.evidence.items()})
        reference = {}
        for name, columns in self.joint.items():
            own = free[name].reshape(self.count, -1)[:, columns]
            mean, deviation = own.mean(0), _WIDER * own.std(0)
            noise = self.generator.standard_normal(own.shape)
            values[name].reshape(self.count, -1)[:, columns] = mean + deviation * noise
            reference[name] = mean, deviation
        return reference

    def _terms(
        self, values: Mapping[str, Array], reference: Mapping[str, tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Log-densities of the start, and of what is weighted relative to it, shape ``(particles,)`` each."""
        size = len(next(iter(values.values())))
        start, weight = np.zeros(size), np.zeros(size)
        for statement, density in log_densities(self.tape, values, self.plan):
            if statement.role == "sample":
                flat = density.reshape(size, -1)
                weight += flat[:, self.weighted[id(statement)]].sum(1)
                start += flat[:, self.started[id(statement)]].sum(1)
        for name, (mean, deviation) in reference.items():
            z = (values[name].reshape(size, -1)[:, self.joint[name]] - mean) / deviation
            density = (-0.5 * z * z - np.log(deviation) - 0.5 * math.log(2 * math.pi)).sum(1)
            start, weight = start + density, weight - density
        return start, weight

    def _forward(
        self, fixed: Mapping[str, tuple[Array, Array]], masks: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Draws of the program in which some nodes have fixed values.

        Args:
            fixed: values, shape ``(particles or 1, nodes, *features)``, by variable.
            masks: fixed nodes, shape ``(nodes,)``, by variable.
        """
        stored = {
            name: np.zeros(
                (self.count, recorded.nodes.size, *recorded.values.features), recorded.values.dtype
            )
            for name, recorded in self.tape.variables.items()
        }
        drawing = Drawing(
            self.count,
            self.generator.standard_normal,
            self.generator.random,
            lambda x: x,
            stored,
            lambda: self.generator,
        )

        def run(step: Step, inputs: Sequence[Array]) -> Array:
            result = step.run(inputs, drawing)
            if isinstance(step, Settle) and step.statement.role == "sample":
                name, places = places_of(self.tape, step.statement)
                mask = masks[name][places]
                if mask.any():
                    values = fixed[name][0][:, places].astype(result.dtype)
                    mask = mask.reshape(mask.shape + (1,) * (values.ndim - 1 - mask.ndim))
                    result = np.where(mask, values, result)
            return result

        self.tape.execute(run, self.plan)
        return stored


def _draws(tape: Tape) -> list[tuple[Statement, Array]]:
    """Statements that draw, with the nodes of each draw, shape ``(draws, entries)``."""
    return [
        (step.statement, step.statement.nodes.reshape(int(np.prod(step.batch, dtype=np.int64)), -1))
        for step in tape.steps
        if isinstance(step, RecordedDraw)
    ]


def _relevant(tape: Tape, observed: Array) -> Array:
    """Nodes that are drawn jointly with evidence or its ancestors, and their ancestors, shape
    ``(nodes,)``."""
    relevant = np.array(observed)
    together = {id(statement): nodes for statement, nodes in _draws(tape)}
    # children come after their parents
    for statement in reversed(tape.statements):
        for nodes in together.get(id(statement), statement.nodes.reshape(-1, 1)):
            if relevant[nodes].any():
                relevant[nodes] = True
                for node in nodes.tolist():
                    relevant[sorted(tape.parents[node])] = True
    return relevant


def _next_step(weight: Array, most: float) -> float:
    """The largest step of the power, at most ``most``, that keeps a share of the effective sample size."""

    def effective_share(step: float) -> float:
        return effective_number(torch.from_numpy(step * weight)) / len(weight)

    possible = float((weight > -np.inf).mean())
    if effective_share(most) >= _KEPT * possible:
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_share(middle) >= _KEPT * possible else (low, middle)
    return low
