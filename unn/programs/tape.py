"""The tape of a run of a program: its steps, from which batches are drawn without running the program
again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DeclarationError
from ..graph.interactions import Nodes as Nodes
from .kinds import Array, Kind, count_of_draws
from .kinds import Shape as Shape

if TYPE_CHECKING:
    from .distributions import Distribution


@dataclass
class Drawing:
    """State of drawing a batch.

    Attributes:
        count: number of draws.
        normal, uniform: functions from a shape to standard random numbers in double precision.
        rounded: function that rounds to the precision of the result, in double precision again.
        stored: values of the variables by name, shape ``(count, nodes, *features)``.
        generator: function that returns the source of all other random numbers, always the same.
        least: smallest positive number of the precision of the result.
        below_one: largest number below 1 of this precision.
        outside: indices out of bounds, which are collected where values may have density zero: the rows,
            shape ``(count or 1,)``, and the error. None in draws, where such an index is an error.
    """

    count: int
    normal: Callable[[Shape], Array]
    uniform: Callable[[Shape], Array]
    rounded: Callable[[Array], Array]
    stored: dict[str, Array]
    generator: Callable[[], np.random.Generator] = np.random.default_rng
    least: float = float(np.finfo(np.float64).tiny)
    below_one: float = 1 - float(np.finfo(np.float64).epsneg)
    outside: list[tuple[Array, DeclarationError]] | None = None


@dataclass(eq=False)
class Statement:
    """A call of ``sample`` or ``deterministic``: the entries of its value are nodes of the graph.

    Attributes:
        role: "sample" or "deterministic".
        line: line of the program, for messages.
        kind: kind of the values.
        nodes: numbers of the nodes, in the shape of the value.
        cliques: families of cliques of jointly drawn entries; for each, the axes of the value that index its
            cliques.
        name: name of the variable or entries with the value; None before it is assigned.
        bounds: lower and upper bounds of the entries, each in the shape of the value, where these differ;
            None for those of the kind.
    """

    role: str
    line: int
    kind: Kind
    nodes: Nodes
    cliques: tuple[tuple[int, ...], ...] = ()
    name: str | None = None
    bounds: tuple[Array, Array] | None = None


@dataclass(eq=False)
class Recorded:
    """A variable of the program.

    Attributes:
        name: name in the program and in the graph.
        nodes: node of each entry, in the shape of the variable without the features of a node; -1 before it
            is assigned.
        kind: kind of its values; None before the first assignment.
    """

    name: str
    nodes: Nodes
    kind: Kind | None = None

    @property
    def values(self) -> Kind:
        """The kind of its values, after the first assignment."""
        assert self.kind is not None
        return self.kind

    def entry(self, flat: int) -> str:
        """Name of an entry, such as ``"C[0,1]"``."""
        place = np.unravel_index(flat, self.nodes.shape)
        return f"{self.name}[{','.join(str(int(k)) for k in place)}]" if self.nodes.ndim else self.name


class Step(ABC):
    """A computation on the results of earlier steps.

    Attributes:
        sources: numbers of these steps.
    """

    sources: tuple[int, ...]

    @abstractmethod
    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        """The result, shape ``(count, *shape)``, or ``(1, *shape)`` if it is equal in all draws."""


@dataclass(eq=False)
class RecordedConstant(Step):
    """A constant number or array of the program."""

    value: Array
    sources: tuple[int, ...] = ()

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        return self.value[None]


@dataclass(eq=False)
class Compute(Step):
    """A function of batches, shape ``(batch, *shape)`` each."""

    function: Callable[..., Array]
    sources: tuple[int, ...]

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        return self.function(*inputs)


@dataclass(eq=False)
class Select(Compute):
    """A function of a batch and of a whole number that is an index.

    Attributes:
        size: number of entries that the index selects from.
        name: what the index is computed from, for messages.
    """

    size: int
    name: str

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        """The selected entries; entry 0 for an index out of bounds, if ``drawing`` collects those.

        Raises:
            DeclarationError: for an index out of bounds, if it does not.
        """
        x, at = inputs
        if at.dtype == np.bool_:
            at = at.astype(np.int64)
        wrong = (at < 0) | (at >= self.size)
        if wrong.any():
            error = DeclarationError(
                f"program: an index computed from {self.name} is {int(at[wrong][0])} in a draw, but there "
                f"are {self.size} entries, counted from 0."
            )
            if drawing.outside is None:
                raise error
            drawing.outside.append((np.asarray(wrong.reshape(len(at), -1).any(1)), error))
            at = np.where(wrong, 0, at)
        return self.function(x, at)


@dataclass(eq=False)
class RecordedDraw(Step):
    """Draws from a distribution whose parameters are the sources.

    Attributes:
        distribution: distribution with the parameters as given by the program.
        statement: statement that draws.
        names: names of the parameters, in the order of the sources.
        widths: numbers per draw, by parameter.
        sources: numbers of the steps that compute the parameters.
        shape: shape of the result, event axes last.
    """

    distribution: Distribution
    statement: Statement
    names: tuple[str, ...]
    widths: tuple[int, ...]
    sources: tuple[int, ...]
    shape: Shape

    @property
    def batch(self) -> Shape:
        """Shape of the independent draws."""
        return self.shape[: len(self.shape) - len(self.distribution.event)]

    def parameters(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """The parameters by name, in double precision; they broadcast to a batch axis, ``batch`` and their
        trailing axes."""
        return {
            name: aligned(x.astype(np.float64), len(self.batch) + self.distribution.axes_of(name))
            for name, x in zip(self.names, inputs, strict=True)
        }

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        parameters = self.parameters(inputs)
        self.distribution.check(parameters, f"program: {self.statement.name!r}", drawing.count)
        return self.distribution.draw(parameters, (drawing.count, *self.batch), drawing)


@dataclass(eq=False)
class Settle(Step):
    """The value of a statement: checked, cast to its kind, and rounded like the result, so that dependent
    values agree."""

    statement: Statement
    sources: tuple[int, ...]

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        (x,) = inputs
        kind, name = self.statement.kind, self.statement.name
        if kind.dtype == np.float64:
            x = drawing.rounded(x.astype(np.float64))
            if self.statement.role == "sample" and (kind.low == 0 or kind.name == "proportions"):
                # a density can have a pole at the bounds, where rounding must not put a draw
                x = np.clip(x, drawing.least, drawing.below_one if kind.high == 1 else np.inf)
            _refuse_any(~np.isfinite(x), f"{name!r} has NaN or infinite values", drawing.count)
        elif kind.name == "count":
            x = drawing.rounded(x.astype(np.float64))
            _refuse_any(
                ~((x >= 0) & (x == np.floor(x)) & np.isfinite(x)), f"{name!r} is no count", drawing.count
            )
        elif kind.name == "category":
            # options are whole and >= 0; the comparison also rejects NaN
            _refuse_any(
                ~((x >= 0) & (x < kind.options) & (x == np.floor(x))),
                f"{name!r} is none of its {kind.options} options",
                drawing.count,
            )
        return x.astype(kind.dtype)


@dataclass(eq=False)
class Store(Step):
    """Store the value of a statement in entries of a variable, at flat indices in the order of the value."""

    name: str
    places: Nodes
    sources: tuple[int, ...]

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        stored = drawing.stored[self.name]
        stored[:, self.places] = inputs[0].reshape(len(inputs[0]), -1, *stored.shape[2:])
        return inputs[0]


@dataclass(eq=False)
class Load(Step):
    """Load entries of a variable, at flat indices in the shape of the result."""

    name: str
    places: Nodes
    sources: tuple[int, ...] = ()

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        return drawing.stored[self.name][:, self.places]


@dataclass(eq=False)
class Tape:
    """The steps of a run, its variables, and the parents of each node.

    Attributes:
        steps: steps in order of execution.
        statements: statements in order of execution.
        variables: variables by name, in order of first use.
        parents: numbers of the parents of each node.
        places: variable and flat index of each node; None before it is assigned.
    """

    steps: list[Step] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    variables: dict[str, Recorded] = field(default_factory=dict)
    parents: list[frozenset[int]] = field(default_factory=list)
    places: list[tuple[str, int] | None] = field(default_factory=list)

    def add(self, step: Step) -> int:
        """Record a step and return its number."""
        self.steps.append(step)
        return len(self.steps) - 1

    def node_name(self, node: int) -> str:
        """Name of a node; the line of its statement before it is assigned."""
        place = self.places[node]
        if place is not None:
            return self.variables[place[0]].entry(place[1])
        return next(
            f"a t.{s.role} without a name (line {s.line})" for s in self.statements if node in s.nodes
        )

    def drawn_nodes(self) -> frozenset[int]:
        """Numbers of the nodes that are drawn, not computed."""
        return frozenset(
            node for s in self.statements if s.role == "sample" for node in s.nodes.ravel().tolist()
        )

    def replay(self, drawing: Drawing, releases: Mapping[int, Sequence[int]]) -> None:
        """Draw all variables.

        Args:
            drawing: state whose ``stored`` is filled.
            releases: result of ``plan``.
        """
        self.execute(lambda step, inputs: step.run(inputs, drawing), releases)

    def execute(
        self, run: Callable[[Step, Sequence[Array]], Array], releases: Mapping[int, Sequence[int]]
    ) -> None:
        """Run steps in order, each on the results of its sources.

        Args:
            run: computes the result of a step from those of its sources.
            releases: result of ``plan``.
        """
        results: dict[int, Array] = {}
        # overflow and division by zero are detected in statements, unless the program discards the values
        with np.errstate(all="ignore"):
            for k, done in releases.items():
                step = self.steps[k]
                results[k] = run(step, [results[source] for source in step.sources])
                for source in done:
                    del results[source]

    def plan(self) -> dict[int, list[int]]:
        """The steps required by variables, in order, each with the results that can be released after it."""
        needed = {k for k, step in enumerate(self.steps) if isinstance(step, Store)}
        for k in range(len(self.steps) - 1, -1, -1):
            if k in needed:
                needed.update(self.steps[k].sources)
        last: dict[int, int] = {}
        for k in sorted(needed):
            last.update(dict.fromkeys((k, *self.steps[k].sources), k))
        releases: dict[int, list[int]] = {k: [] for k in sorted(needed)}
        for source, k in last.items():
            releases[k].append(source)
        return releases


def aligned(x: Array, axes: int) -> Array:
    """Insert axes of size one after the batch axis, so that the batch broadcasts against others with ``axes``
    axes."""
    return x.reshape(x.shape[0], *[1] * (axes + 1 - x.ndim), *x.shape[1:])


def _refuse_any(bad: Array, fact: str, count: int) -> None:
    """Check that a condition holds nowhere.

    Raises:
        DeclarationError: with the number of draws in which it holds.
    """
    if bad.any():
        raise DeclarationError(
            f"program: {fact} in {count_of_draws(bad, count)}; change the statement, or what it is computed "
            "from."
        )
