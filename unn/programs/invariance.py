"""Permutations of the nodes of a program under which its joint law is invariant.

The joint law of a program is the product of the laws of its nodes, each given the values of its
parents. It is invariant under a permutation pi of the nodes if, for all values x that the program
can draw, the law of node pi(n) given pi x is that of node n given x. This is compared node by node:
the tape is replayed with given values x in place of all draws, and the parameters of each
distribution and the value of each deterministic node are recorded; then the same with pi x. Generic
real values make accidental agreement improbable; binary values and categories are drawn many
times, half of them with probabilities that make rare values frequent.

The comparison is conservative: it rejects a symmetry that appears only after two statements are
combined, or one of a threshold that is met exactly while rounding depends on the order of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UnnError
from ..graph.symmetries import Symmetry, generators
from .kinds import Array, Kind
from .tape import Drawing, Load, Nodes, RecordedDraw, Settle, Shape, Statement, Step, Store, Tape

_BUDGET = 4_000_000
"""Numbers in one array of a replay: rows times parameters of all nodes times permutations, about 32 MB."""
_FEWEST_ROWS, _MOST_ROWS = 8, 2048
"""Least and largest number of draws in a replay."""
_ROWS_OF_AN_OPTION, _MOST_REPLAYS = 8, 24
"""Compared draws for each option of a category, of which half are ordinary, so that an option which alone
breaks a symmetry is not missed; and the largest number of replays that they may take."""
_RELATIVE = 1e-9
"""Rounding tolerance for equal parameters, relative to them."""
_RELATIVE_TO_PARENTS = 1e-12
"""Rounding tolerance relative to the largest parent, for sums that cancel."""
_STRETCH = 8.0
"""Largest factor of standard normal numbers, and largest power of uniform ones, in rows of rare values."""

# a program whose draws fail has no law to compare; drawing from it reports the error
_FAILURES = (UnnError, ArithmeticError, LookupError, TypeError, ValueError)


def is_invariant(tape: Tape, symmetry: Symmetry) -> bool:
    """Whether the joint law of a program is invariant under all permutations of an index.

    Args:
        tape: tape of a complete run.
        symmetry: symmetry of the graph of this run.
    """
    return not any(
        altered_variables(tape, [symmetry.permutation(order).numpy() for order in generators(symmetry.size)])
    )


def altered_variables(tape: Tape, permutations: Sequence[Nodes]) -> list[frozenset[str]]:
    """Variables whose law given their parents changes under each permutation of the nodes.

    Args:
        tape: tape of a complete run.
        permutations: new number of each node, numbered as in the adjacency, shape ``(nodes,)`` each.

    Returns:
        A set for each permutation, empty if the joint law is invariant;
        all variables that it moves if drawing from the program fails.
    """
    layout = _Layout.of(tape)
    altered = [layout.structurally_altered(moved) for moved in permutations]
    trials = [number for number, names in enumerate(altered) if not names]
    for number, names in zip(trials, _numerically_altered(tape, layout, [permutations[k] for k in trials])):
        altered[number] = names
    return [frozenset(names) for names in altered]


def _numerically_altered(tape: Tape, layout: _Layout, moves: Sequence[Nodes]) -> list[set[str]]:
    """Compare parameters at drawn values, for permutations that are not structurally excluded."""
    altered: list[set[str]] = [set() for _ in moves]
    if not moves:
        return altered
    rows = int(np.clip(_BUDGET // (layout.slots * (len(moves) + 1)), _FEWEST_ROWS, _MOST_ROWS))
    options = max((kind.options for kind in layout.kinds.values() if kind.name == "category"), default=0)
    replays = min(_MOST_REPLAYS, -(-_ROWS_OF_AN_OPTION * options // rows))
    generator = np.random.default_rng(0)
    for _ in range(max(1, replays)):
        remaining = [k for k, names in enumerate(altered) if not names]
        if not remaining:
            break
        here = _altered_in_rows(tape, layout, [moves[k] for k in remaining], rows, generator)
        for k, names in zip(remaining, here, strict=True):
            altered[k] = names
    return altered


def _altered_in_rows(
    tape: Tape, layout: _Layout, moves: Sequence[Nodes], rows: int, generator: np.random.Generator
) -> list[set[str]]:
    """Compare parameters in some draws."""
    at_once = max(1, _BUDGET // (rows * layout.slots))
    try:
        values = _sample_values(tape, layout, rows, generator)
        expected = _laws(tape, layout, values)
    except _FAILURES:
        return [layout.moving(moved) for moved in moves]
    altered = []
    for start in range(0, len(moves), at_once):
        group = moves[start : start + at_once]
        for moved, laws in zip(group, _moved_laws(tape, layout, values, group)):
            if laws is None:
                altered.append(layout.moving(moved))
            else:
                same_order = laws[:, layout.moved_slots(moved)]
                altered.append(layout.differing(tape, values, expected, same_order))
    return altered


@dataclass(frozen=True, eq=False)
class _Event:
    """The entries of a statement whose distribution has event axes.

    Attributes:
        nodes: positions, shape ``(draws, *event)``.
        exchangeable: axes of one draw along which its law is invariant.
    """

    nodes: Nodes
    exchangeable: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Layout:
    """Layout of values and parameters of nodes. Positions number the nodes as the adjacency does.

    Attributes:
        position: position of each node of the tape, shape ``(nodes,)``.
        variable_of: name of the variable, by position.
        ranges: positions of each variable, by name.
        columns: numbers of each variable, by name; a node has as many as features.
        number: first number, by position.
        kinds: kind of each variable, by name.
        law: number of the family of laws, equal for laws that differ only in parameters, shape ``(nodes,)``.
        start: first parameter, by position.
        width: number of parameters, by position.
        events: entries of distributions with event axes.
        slots: total number of parameters.
    """

    position: Nodes
    variable_of: Sequence[str]
    ranges: dict[str, slice]
    columns: dict[str, slice]
    number: Nodes
    kinds: dict[str, Kind]
    law: Nodes
    start: Nodes
    width: Nodes
    events: Sequence[_Event]
    slots: int

    @classmethod
    def of(cls, tape: Tape) -> _Layout:
        count = len(tape.parents)
        position = np.empty(count, dtype=np.int64)
        variable_of: list[str] = []
        ranges, columns = {}, {}
        numbers_of: list[int] = []
        for name, recorded in tape.variables.items():
            first, begin = len(variable_of), sum(numbers_of)
            variable_of += [name] * recorded.nodes.size
            numbers_of += [int(np.prod(recorded.values.features, dtype=np.int64))] * recorded.nodes.size
            ranges[name], columns[name] = slice(first, len(variable_of)), slice(begin, sum(numbers_of))
            position[recorded.nodes.ravel()] = np.arange(first, len(variable_of))
        number = np.cumsum(numbers_of, dtype=np.int64) - np.array(numbers_of, dtype=np.int64)
        draws = {id(step.statement): step for step in tape.steps if isinstance(step, RecordedDraw)}
        numbers: dict[Hashable, int] = {}
        law, width = np.empty(count, dtype=np.int64), np.ones(count, dtype=np.int64)
        events = []
        for statement in tape.statements:
            nodes = position[statement.nodes.ravel()]
            draw = draws.get(id(statement))
            if draw is None:
                law[nodes] = numbers.setdefault(statement.role, len(numbers))
                continue
            width[nodes] = sum(draw.widths) or 1
            key = _law_key(draw)
            if key is None:
                law[nodes] = [numbers.setdefault(("own", int(node)), len(numbers)) for node in nodes]
            else:
                law[nodes] = numbers.setdefault(key, len(numbers))
            if draw.distribution.event:
                events.append(
                    _Event(nodes.reshape(-1, *draw.distribution.event), draw.distribution.exchangeable)
                )
        start = np.cumsum(width) - width
        kinds = {name: recorded.values for name, recorded in tape.variables.items()}
        return cls(
            position, variable_of, ranges, columns, number, kinds, law, start, width, events, int(width.sum())
        )

    def numbers_at(self, positions: Nodes, kind: Kind) -> Nodes:
        """Numbers of nodes of a kind, shape ``(*positions, *features)``."""
        size = int(np.prod(kind.features, dtype=np.int64))
        numbers = self.number[positions][..., None] + np.arange(size)
        return numbers.reshape((*positions.shape, *kind.features))

    def numbers_of(self, positions: Nodes) -> Nodes:
        """Numbers of nodes of any kinds, shape ``(numbers,)``."""
        parts = [
            self.numbers_at(positions[k : k + 1], self.kind_at(node)) for k, node in enumerate(positions)
        ]
        return np.concatenate([part.ravel() for part in parts]) if parts else np.empty(0, dtype=np.int64)

    def kind_at(self, position: int) -> Kind:
        """Kind of the node at a position."""
        return self.kinds[self.variable_of[position]]

    def moved_numbers(self, moved: Nodes) -> Nodes:
        """Where a permutation of nodes of equal kinds moves each number, shape ``(numbers,)``."""
        parts = [self.numbers_at(moved[self.ranges[name]], kind).ravel() for name, kind in self.kinds.items()]
        return np.concatenate(parts)

    def moving(self, moved: Nodes) -> set[str]:
        """Variables with nodes that a permutation moves."""
        return {self.variable_of[node] for node in np.flatnonzero(moved != np.arange(len(moved))).tolist()}

    def structurally_altered(self, moved: Nodes) -> set[str]:
        """Variables with nodes that are mapped to another distribution, or to inconsistent entries of an
        event."""
        nodes: list[int] = np.flatnonzero(self.law[moved] != self.law).tolist()
        block = np.full(len(self.law), -1, dtype=np.int64)
        coordinates = np.zeros(
            (len(self.law), max((event.nodes.ndim - 1 for event in self.events), default=0)), dtype=np.int64
        )
        count = 0
        for event in self.events:
            index = np.indices(event.nodes.shape)
            block[event.nodes] = index[0] + count
            count += len(event.nodes)
            for axis in range(event.nodes.ndim - 1):
                coordinates[event.nodes, axis] = index[axis + 1]
        for event in self.events:
            target = moved[event.nodes]
            axes = tuple(range(1, target.ndim))
            first = (slice(None), *[slice(0, 1)] * len(axes))
            holds = (block[target] == block[target][first]).all(axis=axes)
            for axis in range(len(axes)):
                along = coordinates[target, axis]
                others = (slice(None), *(slice(None) if k == axis else slice(0, 1) for k in range(len(axes))))
                expected = along[others] if axis in event.exchangeable else np.indices(target.shape)[axis + 1]
                holds &= (along == expected).all(axis=axes)
            nodes += event.nodes[~holds].ravel().tolist()
        return {self.variable_of[node] for node in nodes}

    def moved_slots(self, moved: Nodes) -> Nodes:
        """Slots of the parameters of pi(n) in the order of those of n, which has as many, shape
        ``(slots,)``."""
        offsets = np.arange(self.slots) - np.repeat(self.start, self.width)
        return np.repeat(self.start[moved], self.width) + offsets

    def differing(self, tape: Tape, values: Array, expected: Array, laws: Array) -> set[str]:
        """Variables with parameters that differ by more than rounding in some row.

        Args:
            tape: tape of the run.
            values: values of all nodes, shape ``(rows, nodes)``.
            expected, laws: parameters to compare, shape ``(rows, slots)``.
        """
        with np.errstate(invalid="ignore"):
            difference = np.abs(expected - laws) - _RELATIVE * np.maximum(np.abs(expected), np.abs(laws))
        # NaN and infinite values must agree exactly
        odd = ~(np.isfinite(expected) & np.isfinite(laws))
        same = (expected == laws) | (np.isnan(expected) & np.isnan(laws))
        difference[odd] = np.where(same, -1.0, np.inf)[odd]
        node_of_slot = np.repeat(np.arange(len(self.width)), self.width)
        tape_node = np.argsort(self.position)
        altered: set[str] = set()
        for slot in np.flatnonzero((difference > 0).any(axis=0)):
            node = int(node_of_slot[slot])
            if self.variable_of[node] not in altered:
                parents = self.position[sorted(tape.parents[tape_node[node]])]
                scale = np.abs(values[:, self.numbers_of(parents)]).max(axis=1, initial=0.0)
                if (difference[:, slot] > _RELATIVE_TO_PARENTS * scale).any():
                    altered.add(self.variable_of[node])
        return altered


def _law_key(draw: RecordedDraw) -> Hashable | None:
    """Key of the family of laws of a draw, which with equal parameters gives equal laws; None if unknown."""
    family = draw.distribution.family()
    return None if family is None else (family, draw.names, draw.widths)


# -- replays -------------------------------------------------------------------------------------------------


def _sample_values(tape: Tape, layout: _Layout, rows: int, generator: np.random.Generator) -> Array:
    """Values drawn from the program, half of them with rare values made frequent, shape ``(rows, nodes)``."""
    plain = _ancestral_sample(tape, layout, rows - rows // 2, generator, stretch=1.0)
    try:
        rare = _ancestral_sample(tape, layout, rows // 2, generator, stretch=_STRETCH)
    except _FAILURES:
        # stretched values can be out of range where ordinary ones are not
        rare = _ancestral_sample(tape, layout, rows // 2, generator, stretch=1.0)
    return np.concatenate([plain, rare])


def _ancestral_sample(
    tape: Tape, layout: _Layout, rows: int, generator: np.random.Generator, stretch: float
) -> Array:
    """Values of all nodes, each drawn after its parents, shape ``(rows, nodes)``."""
    scales = (
        np.exp(generator.uniform(-np.log(stretch), np.log(stretch), rows)) if stretch > 1 else np.ones(rows)
    )
    powers = (
        np.exp(generator.uniform(-np.log(stretch) * 2, np.log(stretch) * 2, rows))
        if stretch > 1
        else np.ones(rows)
    )
    mirrored = generator.random(rows) < 0.5

    def along_rows(x: Array, shape: Shape) -> Array:
        return x.reshape(-1, *[1] * (len(shape) - 1))

    def normal(shape: Shape) -> Array:
        return np.asarray(generator.standard_normal(shape) * along_rows(scales, shape))

    def uniform(shape: Shape) -> Array:
        return generator.random(shape)

    def tilted(shape: Shape) -> Array:
        """Near 0 in some rows and near 1 in others, so that rare options occur."""
        x = generator.random(shape) ** along_rows(powers, shape)
        return np.clip(np.where(along_rows(mirrored, shape), 1 - x, x), 0, 1 - 2.0**-53)

    stored = {
        name: np.zeros((rows, recorded.nodes.size, *recorded.values.features), recorded.values.dtype)
        for name, recorded in tape.variables.items()
    }
    ordinary = Drawing(rows, normal, uniform, lambda x: x, stored, lambda: generator)
    # tilted continuous numbers would be rounded to ties, which have probability zero
    discrete = replace(ordinary, uniform=tilted)

    def run(step: Step, inputs: Sequence[Array]) -> Array:
        is_discrete = isinstance(step, RecordedDraw) and step.statement.kind.name in ("binary", "category")
        return step.run(inputs, discrete if is_discrete else ordinary)

    tape.execute(run, tape.plan())
    return np.concatenate(
        [stored[name].astype(np.float64).reshape(rows, -1) for name in layout.columns], axis=1
    )


def _moved_laws(tape: Tape, layout: _Layout, values: Array, moves: Sequence[Nodes]) -> list[Array | None]:
    """The laws at permuted values, in a single replay if possible; None where the program fails."""
    permuted = []
    for moved in moves:
        rows = np.empty_like(values)
        rows[:, layout.moved_numbers(moved)] = values
        permuted.append(rows)
    try:
        return list(np.split(_laws(tape, layout, np.concatenate(permuted)), len(moves)))
    except _FAILURES:
        if len(moves) == 1:
            return [None]
    return [laws for moved in moves for laws in _moved_laws(tape, layout, values, [moved])]


def _laws(tape: Tape, layout: _Layout, values: Array) -> Array:
    """The parameters of the law of each node given its parents, shape ``(rows, slots)``.

    Args:
        tape: tape of the run.
        layout: layout of its nodes.
        values: values of all nodes, shape ``(rows, nodes)``.
    """
    rows = len(values)
    laws = np.zeros((rows, layout.slots))
    unused: Callable[[Shape], Array] = np.zeros
    drawing = Drawing(rows, unused, unused, lambda x: x, {})

    def record(statement: Statement, parameters: Array) -> None:
        """Store parameters of shape ``(rows, entries, width)``."""
        starts = layout.start[layout.position[statement.nodes.ravel()]]
        slots = starts[:, None] + np.arange(parameters.shape[2])
        laws[:, slots.ravel()] = parameters.reshape(rows, -1)

    def run(step: Step, inputs: Sequence[Array]) -> Array:
        if isinstance(step, RecordedDraw):
            if step.names:
                record(step.statement, _parameters(step, inputs, rows))
            # the given values replace the draws
            return np.zeros(1)
        if isinstance(step, Settle):
            statement = step.statement
            if statement.role != "sample":
                record(
                    statement, np.broadcast_to(inputs[0], (rows, *statement.nodes.shape)).reshape(rows, -1, 1)
                )
            given = values[:, layout.numbers_at(layout.position[statement.nodes], statement.kind)]
            return given.astype(statement.kind.dtype)
        if isinstance(step, Store):
            return inputs[0]
        if isinstance(step, Load):
            kind = layout.kinds[step.name]
            stored = values[:, layout.columns[step.name]].reshape(rows, -1, *kind.features)
            return stored[:, step.places].astype(kind.dtype)
        return step.run(inputs, drawing)

    tape.execute(run, tape.plan())
    return laws


def _parameters(draw: RecordedDraw, inputs: Sequence[Array], rows: int) -> NDArray[np.float64]:
    """The parameters of each entry of a draw, shape ``(rows, entries, width)``."""
    distribution, batch = draw.distribution, draw.batch
    columns = []
    for x in draw.parameters(inputs).values():
        trailing = x.shape[len(batch) + 1 :]
        columns.append(np.broadcast_to(x, (rows, *batch, *trailing)).reshape(rows, int(np.prod(batch)), -1))
    return np.repeat(np.concatenate(columns, axis=2), int(np.prod(distribution.event)), axis=1)
