"""Programs with plates whose sizes vary: one graph for all sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import ArgumentError, DeclarationError, suggest
from ..factor_graph import FactorGraph
from .build import build
from .tape import Tape
from .traced import Traced, record_twice

_CACHED = 64
"""Number of sizes whose traces are cached."""


class Plated:
    """A traced program with plates: axes whose sizes are arguments of the program.

    Attributes:
        graph: variables and their dependences, in which the plates are axes without a static size, named
            after the arguments.
        plates: least and largest size of each plate, by name.
    """

    def __init__(
        self, program: Callable[..., object], plates: Mapping[str, tuple[int, int]], options: dict[str, Any]
    ) -> None:
        self.program, self.plates, self.options = program, dict(plates), options
        self._traces: BoundedCache[tuple[tuple[str, int], ...], Traced] = BoundedCache(_CACHED)
        self.graph = self._common_graph()

    def at(self, **sizes: int) -> Traced:
        """The program at given sizes of its plates.

        Raises:
            ArgumentError: for missing or unknown plates, or sizes out of their ranges.
        """
        for name in sizes:
            if name not in self.plates:
                raise ArgumentError(f"program: there is no plate {name!r}.{suggest(name, self.plates)}")
        for name, (least, most) in self.plates.items():
            size = sizes.get(name)
            if not isinstance(size, int) or isinstance(size, bool) or not least <= size <= most:
                raise ArgumentError(
                    f"program: plate {name!r} needs a whole number from {least} to {most}, got {size!r}."
                )
        key = tuple(sorted(sizes.items()))
        return self._traces.get_or_make(key, lambda: Traced(self._title, self._record(sizes)))

    def draw(
        self,
        count: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        *,
        seed: int | None = None,
        **sizes: int,
    ) -> dict[str, Tensor]:
        """Draws at given sizes, as ``Traced.draw``."""
        return self.at(**sizes).draw(count, generator, dtype, seed=seed)

    def random_sizes(self, generator: torch.Generator) -> dict[str, int]:
        """Uniform sizes of all plates within their ranges."""
        return {
            name: int(torch.randint(least, most + 1, (), generator=generator))
            for name, (least, most) in self.plates.items()
        }

    @property
    def _title(self) -> str:
        return str(getattr(self.program, "__name__", "program"))

    def _record(self, sizes: Mapping[str, int]) -> Tape:
        return record_twice(self.program, (), {**self.options, **sizes})

    def _common_graph(self) -> FactorGraph:
        """The graph with free plates, equal at two choices of sizes that occur on no other axis.

        Raises:
            DeclarationError: if the graphs differ in more than these sizes.
        """
        least = self._record({name: bounds[0] for name, bounds in self.plates.items()})
        most = self._record({name: bounds[1] for name, bounds in self.plates.items()})
        taken = {size for tape in (least, most) for x in tape.variables.values() for size in x.nodes.shape}
        taken |= {x.values.options for x in least.variables.values()}
        fresh = (size for size in itertools.count(3) if size not in taken)
        graphs = []
        for _ in range(2):
            sizes = {name: next(fresh) for name in self.plates}
            tape = self._record(sizes)
            graphs.append(build(self._title, tape, {size: name for name, size in sizes.items()}))
        one, other = (_description(graph) for graph in graphs)
        if one != other:
            differing = next(line for line in [*one, *other] if line not in one or line not in other)
            raise DeclarationError(
                f"program: its graph depends on the sizes of its plates {', '.join(self.plates)} in more "
                f"than their number of entries, first in {differing!r}; trace each size with unn.trace."
            )
        for name in self.plates:
            if not any(name in variable.axes for variable in graphs[0].variables.values()):
                raise DeclarationError(f"program: no variable has an axis of the size {name!r}.")
        return graphs[0]

    def __repr__(self) -> str:
        plates = ", ".join(f"{name} {least} to {most}" for name, (least, most) in self.plates.items())
        return f"Plated {self.graph.name!r}: {len(self.graph.variables)} variables, plates {plates}"


def trace_plates(
    program: Callable[..., object], plates: Mapping[str, tuple[int, int]], /, **options: Any
) -> Plated:
    """Trace a program at all sizes of its plates at once, as ``unn.trace`` does at one size.

    A network of the graph is trained and sampled at any of these sizes. The dependences must be the same
    patterns at all sizes, which is checked at two of them.

    Args:
        program: function whose first argument is the tracer ``t``, and whose arguments named in ``plates``
            are the sizes of axes.
        plates: least and largest size of each plate, by name.
        options: its other arguments, by name.

    Raises:
        ArgumentError: for ranges that are not whole numbers ``1 <= least <= largest``.
        DeclarationError: if the dependences differ between sizes in more than the number of entries; and as
            of ``unn.trace``.

    Example:
        >>> from unn.programs import Normal, trace_plates
        >>> def model(t, points):
        ...     m = t.sample("m", Normal())
        ...     t.sample("x", Normal(m, 1.0), points)
        >>> plated = trace_plates(model, {"points": (1, 20)})
        >>> list(plated.graph.factors.values()), plated.graph.variables["x"].axes
        ([x[points] depends on m[]], ('points',))
        >>> plated.draw(2, seed=0, points=7)["x"].shape
        torch.Size([2, 7])
    """
    if not callable(program):
        raise DeclarationError(
            f"program: trace_plates takes a function whose first argument is the tracer t, got {program!r}."
        )
    for name, bounds in plates.items():
        whole = len(bounds) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in bounds)
        if not whole or not 1 <= bounds[0] <= bounds[1]:
            raise ArgumentError(
                f"program: plate {name!r} needs a least and a largest size, whole numbers >= 1, got "
                f"{bounds!r}."
            )
    if not plates:
        raise ArgumentError("program: trace_plates needs a plate; without one, use unn.trace.")
    return Plated(program, plates, options)


def _description(graph: FactorGraph) -> list[str]:
    """Variables and factors as text, with the static sizes."""
    return [
        *(f"{v.name} [{v.pattern}] {v.regularizer!r}" for v in graph.variables.values()),
        *(str(factor) for factor in graph.factors.values()),
        *(f"{axis} = {size}" for axis, size in sorted(graph.sizes.items())),
    ]
