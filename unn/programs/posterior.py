"""Samples of the posterior of a program from its density: annealed sequential Monte Carlo.

Particles start as draws of the program with the evidence in place, and are weighted, resampled and moved
while the density of the evidence is raised to powers from 0 to 1 (Del Moral, Doucet and Jasra, 2006), chosen
so that a given share of the effective sample size remains. Moves are those of differential evolution (ter
Braak, 2006; Vrugt et al., 2009): differences of particles of the other half of the population, along random
subsets of the coordinates, and symmetric changes of single discrete values, with Metropolis acceptance.
Unobserved values without observed descendants are drawn afterwards from the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import logsumexp, softmax

from ..errors import ArgumentError, ObservationError
from ..ops.resampling import effective_number, systematic_resampling
from .density import log_densities, observed_nodes, places_of
from .kinds import Array
from .tape import Drawing, RecordedDraw, Settle, Statement, Step, Tape

_KEPT = 0.9
"""Share of the effective sample size that remains from one power to the next."""
_ACCEPTED, _ACCEPTED_AT_LAST = 10.0, 100.0
"""Mean number of accepted moves per particle at a power, and at the power 1."""
_MOST_MOVES, _MOST_AT_LAST = 300, 6000
"""Largest numbers of moves per particle at a power, and at the power 1."""
_REAL_MOVES, _JOINT_MOVES = 0.6, 0.2
"""Share of moves that change real numbers where there are discrete values as well, and the share that also
changes those."""
_DISCRETE = ("binary", "category", "count")
_LEAST = 1e-300
"""Smallest proportion of which logarithms are taken."""
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
    tape: Tape,
    given: Mapping[str, tuple[Array, Array]],
    count: int,
    generator: np.random.Generator,
    *,
    single: bool,
) -> Particles:
    """Sample all values given some.

    Args:
        tape: tape of a complete run.
        given: stored values ``(1, nodes, *features)`` and masks ``(nodes,)`` of evidence, by variable.
        count: number of particles, at least 8.
        generator: random number generator.
        single: result of ``in_single_precision`` of the evidence.

    Raises:
        ArgumentError: for unobserved discrete values that are drawn jointly, on which the evidence depends.
        ObservationError: for evidence on computed variables, or with density zero in all attempts.
    """
    return _Sampler(tape, given, count, generator, single=single).run()


class _Sampler:
    """One run: which numbers are evidence, which are moved, and which are drawn afterwards.

    Attributes:
        moved: columns of the real numbers that are moved, by variable.
        moved_nodes: node of each of these numbers, side by side.
        joint: those of them that are drawn jointly with evidence.
        discrete: columns of the discrete values that are moved, by variable.
        weighted, started: draws of each statement with evidence, and other relevant ones, boolean, shape
            ``(draws,)``.
    """

    def __init__(
        self,
        tape: Tape,
        given: Mapping[str, tuple[Array, Array]],
        count: int,
        generator: np.random.Generator,
        *,
        single: bool,
    ) -> None:
        self.tape, self.count, self.generator, self.given = tape, count, generator, given
        self.single = single
        self.plan = tape.plan()
        observed = observed_nodes(tape, given)
        relevant = _relevant(tape, observed)
        self.evidence = self._masks(observed)
        self.fixed_at_last = self._masks(observed | relevant)
        drawn, joint, several = (np.zeros_like(observed) for _ in range(3))
        self.weighted: dict[int, Array] = {}
        self.started: dict[int, Array] = {}
        for statement, nodes in _draws(tape):
            drawn[nodes] = True
            has_evidence = np.asarray(observed[nodes].any(1))
            self.weighted[id(statement)] = has_evidence
            self.started[id(statement)] = np.asarray(~has_evidence & relevant[nodes].any(1))
            joint[nodes[has_evidence]] = True
            several[nodes] = nodes.shape[1] > 1
        if (observed & ~drawn).any():
            name = tape.node_name(int(np.flatnonzero(observed & ~drawn)[0]))
            raise ObservationError(
                f"program: {name!r} is computed, so evidence on it has density zero; give random variables."
            )
        free = relevant & drawn & ~observed
        self._check_movable(free & several)
        self.moved = self._columns(free, ("real", "vector", "proportions"))
        self.moved_nodes = np.concatenate(
            [
                tape.variables[name].nodes.ravel()[columns // _features(tape, name)]
                for name, columns in self.moved.items()
            ]
            or [np.zeros(0, dtype=np.int64)]
        )
        self.joint = self._columns(free & joint, ("real", "vector"))
        self.discrete = self._columns(free, _DISCRETE)
        self.fixed_at_first = self._masks(observed | (free & joint))

    def _masks(self, nodes: Array) -> dict[str, Array]:
        return {name: nodes[recorded.nodes.ravel()] for name, recorded in self.tape.variables.items()}

    def _check_movable(self, jointly_drawn: Array) -> None:
        """Check that all values that must move can.

        Raises:
            ArgumentError: for discrete values of which several are one draw, such as those of a permutation.
        """
        for name, mask in self._masks(jointly_drawn).items():
            kind = self.tape.variables[name].values
            if mask.any() and kind.name in _DISCRETE:
                raise ArgumentError(
                    f"program: evidence depends on {name!r}, which is {kind}, drawn jointly and not given; "
                    "the posterior is sampled for discrete values that are drawn one by one. Give it, or use "
                    "a denoiser."
                )

    def _columns(self, nodes: Array, kinds: tuple[str, ...]) -> dict[str, Array]:
        """Numbers of nodes in the flat rows of each variable of some kinds that has any."""
        columns = {}
        for name, mask in self._masks(nodes).items():
            kind = self.tape.variables[name].values
            if mask.any() and kind.name in kinds:
                columns[name] = np.flatnonzero(np.repeat(mask, _features(self.tape, name)))
        return columns

    def run(self) -> Particles:
        """Sample."""
        values = self._forward(self.given, self.evidence)
        reference = self._spread_joint(values)
        if reference:
            # what depends on the changed numbers is drawn again
            fixed = {name: (x, self.fixed_at_first[name]) for name, x in values.items()}
            values = self._forward(fixed, self.fixed_at_first)
        start, weight, poles = self._terms(values, reference)
        infinite = self._evidence_poles(poles)
        weight[infinite < infinite.max()] = -np.inf
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
            start, weight, poles = start[chosen], weight[chosen], poles[chosen]
            power = 1.0 if step >= 1 - power else power + step
            limits = (_ACCEPTED_AT_LAST, _MOST_AT_LAST) if power == 1 else (_ACCEPTED, _MOST_MOVES)
            accepted = self._move(values, start, weight, poles, power, reference, *limits)
        if infinite.max() > 0:
            log_evidence = math.inf
        fixed = {name: (x, self.fixed_at_last[name]) for name, x in values.items()}
        return Particles(self._forward(fixed, self.fixed_at_last), log_evidence, powers, accepted)

    def _move(
        self,
        values: dict[str, Array],
        start: Array,
        weight: Array,
        poles: Array,
        power: float,
        reference: Mapping[str, tuple[Array, Array]],
        wanted: float,
        most: int,
    ) -> float:
        """Move all particles in place, each half by differences of the other; returns accepted moves per
        particle.

        Numbers at a pole of their density, as those of a point mass are, stay where they are while others
        move: states with different poles have densities that do not compare, and no move joins them.
        """
        if not self.moved and not self.discrete:
            return 0.0
        halves = np.array_split(self.generator.permutation(self.count), 2)
        accepted = 0.0
        for _ in range(most):
            for own, other in (halves, halves[::-1]):
                candidate = {name: x[own] for name, x in values.items()}
                volume = self._log_volume(candidate)
                choice = self.generator.random() if self.discrete and self.moved else float(not self.moved)
                if self.moved and choice < _REAL_MOVES:
                    change = self._differences(self._moving(values, other), len(own))
                    self._change(candidate, np.where(poles[own][:, self.moved_nodes], 0, change))
                if self.discrete and choice >= _REAL_MOVES - _JOINT_MOVES:
                    self._jump(candidate, {name: values[name][other] for name in self.discrete})
                new_start, new_weight, new_poles = self._terms(candidate, reference)
                new_volume = self._log_volume(candidate)
                with np.errstate(invalid="ignore"):
                    gain = new_start - start[own] + power * (new_weight - weight[own]) + new_volume - volume
                possible = np.isfinite(new_start) & np.isfinite(new_weight) & np.isfinite(new_volume)
                possible &= (new_poles == poles[own]).all(1)
                # a start at a vanishing proportion, where densities have poles, has no probability
                gain = np.where(possible, np.where(np.isfinite(volume), gain, np.inf), -np.inf)
                take = np.log(self.generator.random(len(own))) < gain
                moved = own[take]
                changed = np.zeros(len(own), dtype=bool)
                for name in (*self.moved, *self.discrete):
                    changed |= (candidate[name] != values[name][own]).reshape(len(own), -1).any(1)
                accepted += (take & changed).sum() / self.count
                for name in values:
                    values[name][moved] = candidate[name][take]
                start[moved], weight[moved] = new_start[take], new_weight[take]
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
        """The moved numbers of some particles, logarithms of proportions, shape ``(rows, moved numbers)``."""
        parts = []
        for name, columns in self.moved.items():
            x = values[name][rows].reshape(len(rows), -1)[:, columns]
            parts.append(np.log(np.maximum(x, _LEAST)) if self._has_proportions(name) else x)
        return np.concatenate(parts, 1)

    def _has_proportions(self, name: str) -> bool:
        return self.tape.variables[name].values.name == "proportions"

    def _change(self, values: dict[str, Array], change: Array) -> None:
        """Add changes, shape ``(rows, moved numbers)``, to copies of rows; to logarithms of proportions."""
        first = 0
        for name, columns in self.moved.items():
            rows = values[name].reshape(len(change), -1)
            own = change[:, first : first + len(columns)]
            if self._has_proportions(name):
                options = self.tape.variables[name].values.options
                logs = (np.log(np.maximum(rows[:, columns], _LEAST)) + own).reshape(len(change), -1, options)
                rows[:, columns] = softmax(logs, -1).reshape(len(change), -1)
            else:
                rows[:, columns] += own
            first += len(columns)

    def _log_volume(self, values: Mapping[str, Array]) -> Array:
        """Logarithm of the volume of values by that of the numbers in which they move, up to a constant."""
        total = np.zeros(len(next(iter(values.values()))))
        for name, columns in self.moved.items():
            if self._has_proportions(name):
                x = values[name].reshape(len(values[name]), -1)[:, columns]
                logs = np.where(x > _LEAST, np.log(np.maximum(x, _LEAST)), -np.inf)
                total = total + logs.sum(1)
        return total

    def _jump(self, values: dict[str, Array], others: Mapping[str, Array]) -> None:
        """Change one discrete value of each copy of a row, or several, symmetrically.

        Args:
            values: copies of rows, by variable, which are changed.
            others: rows of the other half of the particles, which decide the length of steps.
        """
        count = len(next(iter(values.values())))
        sizes = [len(columns) for columns in self.discrete.values()]
        total = sum(sizes)
        # one value in three quarters of the moves, and each with a random probability else
        share = np.where(self.generator.random((count, 1)) < 0.25, self.generator.random((count, 1)), 0.0)
        chosen = self.generator.random((count, total)) < share
        chosen[np.arange(count), self.generator.integers(total, size=count)] = True
        first = 0
        for (name, columns), size in zip(self.discrete.items(), sizes, strict=True):
            changed = chosen[:, first : first + size]
            flat = values[name].reshape(count, -1)
            spread = others[name].reshape(len(others[name]), -1)[:, columns].std(0)
            neighbours = self._neighbours(name, flat[:, columns], spread)
            flat[:, columns] = np.where(changed, neighbours, flat[:, columns])
            first += size

    def _neighbours(self, name: str, x: Array, spread: Array) -> Array:
        """Other values, with symmetric probabilities: another option; of counts, a step of random length.

        Args:
            name: name of the variable.
            x: values, shape ``(rows, values)``.
            spread: standard deviations of counts, shape ``(values,)``.
        """
        kind = self.tape.variables[name].values
        if kind.name == "binary":
            return np.asarray(~x)
        if kind.name == "category":
            return np.asarray((x + self.generator.integers(1, kind.options, x.shape)) % kind.options)
        length = self.generator.geometric(np.exp(-self.generator.uniform(0.0, np.log1p(spread), x.shape)))
        moved = x + length * self.generator.choice([-1, 1], x.shape)
        # what leaves the support stays, since it could be an index of an array
        return np.where((moved < 0) | (moved > kind.high), x, moved)

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

    def _evidence_poles(self, poles: Array) -> Array:
        """Number of draws with evidence whose density is infinite, shape ``(particles,)``."""
        total = np.zeros(len(poles), dtype=np.int64)
        for statement, nodes in _draws(self.tape):
            total += poles[:, nodes[self.weighted[id(statement)], 0]].sum(1)
        return total

    def _terms(
        self, values: Mapping[str, Array], reference: Mapping[str, tuple[Array, Array]]
    ) -> tuple[Array, Array, Array]:
        """Log-densities of the start, and of what is weighted relative to it, shape ``(particles,)`` each,
        without those that are infinite; and the nodes whose densities are, boolean, shape ``(particles,
        nodes)``."""
        size = len(next(iter(values.values())))
        start, weight = np.zeros(size), np.zeros(size)
        poles = np.zeros((size, len(self.tape.parents)), dtype=bool)
        for statement, density in log_densities(self.tape, values, self.plan, single=self.single):
            if statement.role == "sample":
                flat = density.reshape(size, -1)
                infinite = flat == np.inf
                if infinite.any():
                    flat = np.where(infinite, 0.0, flat)
                    nodes = statement.nodes.reshape(infinite.shape[1], -1)
                    poles[:, nodes] |= infinite[:, :, None]
                weight += flat[:, self.weighted[id(statement)]].sum(1)
                start += flat[:, self.started[id(statement)]].sum(1)
        for name, (mean, deviation) in reference.items():
            z = (values[name].reshape(size, -1)[:, self.joint[name]] - mean) / deviation
            density = (-0.5 * z * z - np.log(deviation) - 0.5 * math.log(2 * math.pi)).sum(1)
            start, weight = start + density, weight - density
        return start, weight, poles

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
            # draws need not agree with evidence on what depends on them
            outside=[],
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


def _features(tape: Tape, name: str) -> int:
    """Numbers of a node of a variable."""
    return int(np.prod(tape.variables[name].values.features, dtype=np.int64))


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
