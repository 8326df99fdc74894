"""The record of a program's run: what it computed, step by step, so that a whole batch can be drawn without running it again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DeclarationError
from ..graph.interactions import Nodes as Nodes
from .kinds import Array, Kind

if TYPE_CHECKING:
    from .distributions import Distribution

Shape = tuple[int, ...]


@dataclass
class Drawing:
    """One batch of draws under way.

    Attributes:
        count: how many draws.
        normal, uniform: standard numbers of a shape, in double precision.
        rounded: to the precision of the result, in double precision again.
        stored: the variables by name, shape ``(count, entries)``.
    """

    count: int
    normal: Callable[[Shape], Array]
    uniform: Callable[[Shape], Array]
    rounded: Callable[[Array], Array]
    stored: dict[str, Array]


@dataclass(eq=False)
class Statement:
    """A call of ``sample`` or ``deterministic``: the entries of its value are nodes of the graph.

    Attributes:
        what: "sample" or "deterministic".
        line: of the program, for messages.
        kind: of the values.
        nodes: their numbers, in the shape of the value.
        cliques: of entries that were drawn together, families of them: for each, the axes of the value that tell its cliques apart.
        name: of the variable or entries that hold the value; None until it has one.
    """

    what: str
    line: int
    kind: Kind
    nodes: Nodes
    cliques: tuple[tuple[int, ...], ...] = ()
    name: str | None = None


@dataclass(eq=False)
class Recorded:
    """A variable of the program.

    Attributes:
        name: in the program and in the graph.
        nodes: which node each entry is, in the shape of the variable; -1 where it has no value yet.
        kind: of its values; None before the first.
    """

    name: str
    nodes: Nodes
    kind: Kind | None = None

    @property
    def values(self) -> Kind:
        """The kind of its values, once it has some."""
        assert self.kind is not None
        return self.kind

    def entry(self, flat: int) -> str:
        """What an entry is called, such as ``"C[0,1]"``."""
        place = np.unravel_index(flat, self.nodes.shape)
        return f"{self.name}[{','.join(str(int(k)) for k in place)}]" if self.nodes.ndim else self.name


class Step(ABC):
    """Something computed from the results of earlier steps.

    Attributes:
        sources: the numbers of these steps.
    """

    sources: tuple[int, ...]

    @abstractmethod
    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        """The result, shape ``(count, *shape)``, or ``(1, *shape)`` where it is the same in all draws."""


@dataclass(eq=False)
class Constant(Step):
    """A number or an array that the program wrote down."""

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
class Draw(Step):
    """Draws from a distribution whose parameters are the sources.

    Attributes:
        distribution: with the parameters as the program gave them.
        statement: that draws.
        names: of the parameters, in the order of the sources.
        widths: by parameter, how many of its numbers belong to one draw.
        sources: the steps that compute the parameters.
        shape: of the result, that of one draw last.
    """

    distribution: Distribution
    statement: Statement
    names: tuple[str, ...]
    widths: tuple[int, ...]
    sources: tuple[int, ...]
    shape: Shape

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        batch = self.shape[: len(self.shape) - len(self.distribution.event)]
        parameters = {
            name: aligned(x.astype(np.float64), len(batch) + self.distribution.parameter_axes.get(name, 0))
            for name, x in zip(self.names, inputs, strict=True)
        }
        self.distribution.check(parameters, f"program: {self.statement.name!r}")
        return self.distribution.draw(parameters, (drawing.count, *batch), drawing)


@dataclass(eq=False)
class Settle(Step):
    """The value of a statement: checked, of the type of its kind, and rounded as the result will be, so that what follows agrees with it."""

    statement: Statement
    sources: tuple[int, ...]

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        (x,) = inputs
        kind, name = self.statement.kind, self.statement.name
        if kind.name == "real":
            x = drawing.rounded(x.astype(np.float64))
            _refuse_some(~np.isfinite(x), f"{name!r} has NaN or infinite values", drawing.count)
        elif kind.name == "category":
            # no option is negative or fractional; NaN is none either
            _refuse_some(~((x >= 0) & (x < kind.options) & (x == np.floor(x))), f"{name!r} is none of its {kind.options} options", drawing.count)
        return x.astype(kind.dtype)


@dataclass(eq=False)
class Store(Step):
    """Put the value of a statement into entries of a variable, flat indices, in the order of the value's entries."""

    name: str
    places: Nodes
    sources: tuple[int, ...]

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        drawing.stored[self.name][:, self.places] = inputs[0].reshape(len(inputs[0]), -1)
        return inputs[0]


@dataclass(eq=False)
class Load(Step):
    """Take entries of a variable, flat indices in the shape of the result."""

    name: str
    places: Nodes
    sources: tuple[int, ...] = ()

    def run(self, inputs: Sequence[Array], drawing: Drawing) -> Array:
        return drawing.stored[self.name][:, self.places]


@dataclass(eq=False)
class Tape:
    """The steps of a run in order, its variables, and what each node was computed from.

    Attributes:
        steps: in the order of the run.
        statements: in the order of the run.
        variables: by name, in the order of their first mention.
        parents: by node, the numbers of the nodes it was computed from.
        places: by node, its variable and flat index there; None as long as it has no name.
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
        """What a node is called; the line of its statement as long as it has no name."""
        place = self.places[node]
        if place is not None:
            return self.variables[place[0]].entry(place[1])
        return next(f"a t.{s.what} without a name (line {s.line})" for s in self.statements if node in s.nodes)

    def replay(self, drawing: Drawing, releases: Mapping[int, Sequence[int]]) -> None:
        """Draw all variables.

        Args:
            drawing: whose ``stored`` are filled.
            releases: from ``plan``.
        """
        self.execute(lambda step, inputs: step.run(inputs, drawing), releases)

    def execute(self, run: Callable[[Step, Sequence[Array]], Array], releases: Mapping[int, Sequence[int]]) -> None:
        """Run steps in order, each on the results of its sources.

        Args:
            run: gives the result of a step from those of its sources.
            releases: from ``plan``.
        """
        results: dict[int, Array] = {}
        # what overflows or divides by zero is found where a statement takes it, unless the program discards it
        with np.errstate(all="ignore"):
            for k, done in releases.items():
                step = self.steps[k]
                results[k] = run(step, [results[source] for source in step.sources])
                for source in done:
                    del results[source]

    def plan(self) -> dict[int, list[int]]:
        """The steps that variables need, in order, and after each the results that nothing needs any more."""
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
    """A batch with axes of size one after the batch axis, so that it broadcasts against others of so many axes."""
    return x.reshape(x.shape[0], *[1] * (axes + 1 - x.ndim), *x.shape[1:])


def _refuse_some(bad: Array, what: str, count: int) -> None:
    """Raise if a condition holds somewhere.

    Raises:
        DeclarationError: says in how many draws it does.
    """
    wrong = int(bad.reshape(len(bad), -1).any(1).sum())
    if wrong:
        # a batch of one stands for all draws
        draws = wrong if len(bad) == count else count
        raise DeclarationError(f"program: {what} in {draws} of {count} draws; change the statement, or what it is computed from.")
