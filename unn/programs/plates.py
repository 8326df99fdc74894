"""Programs with plates whose sizes vary: one graph for all sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import ArgumentError, DeclarationError, UnnError, suggest
from ..factor_graph import FactorGraph
from .build import build
from .tape import Tape
from .traced import Traced, record_twice

_CACHED = 64
"""Number of sizes whose traces are cached."""
_TRIED = 50
"""Largest number of sizes of a plate that are considered for tracing."""


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
        """The tape at given sizes.

        Raises:
            DeclarationError: if the program fails there.
        """
        try:
            return record_twice(self.program, (), {**self.options, **sizes})
        except UnnError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"program: it fails at {_shown(sizes)}: {type(error).__name__}: {error}."
            ) from error

    def _common_graph(self) -> FactorGraph:
        """The graph with free plates, equal at two choices of sizes that occur on no other axis.

        Raises:
            DeclarationError: if the graphs differ in more than these sizes, or a size does not determine all
                axes.
        """
        trials = self._trial_sizes()
        tapes = [self._record(sizes) for sizes in trials]
        graphs = [
            build(self._title, tape, {size: name for name, size in sizes.items()})
            for sizes, tape in zip(trials, tapes, strict=True)
        ]
        common = graphs[0]
        one, other = (_description(graph) for graph in graphs)
        if one != other:
            differing = next(line for line in [*one, *other] if line not in one or line not in other)
            raise DeclarationError(
                f"program: its graph depends on the sizes of its plates {', '.join(self.plates)} in more "
                f"than their number of entries, first in {differing!r}; trace each size with unn.trace."
            )
        for name in self.plates:
            if not any(name in variable.axes for variable in common.variables.values()):
                raise DeclarationError(
                    f"program: no variable has an axis of the size {name!r} (at {_shown(trials[0])})."
                )
        for sizes, tape in zip(trials, tapes, strict=True):
            try:
                same = common.adjacency(**sizes).same_entries(build(self._title, tape).adjacency())
            except DeclarationError as error:
                raise DeclarationError(
                    f"program: the sizes of its plates do not determine all axes ({error}); give each "
                    "variable at most one axis of a plate, or trace each size with unn.trace."
                ) from None
            if not same:
                raise DeclarationError(
                    f"program: its graph at {_shown(sizes)} is not the common one; trace each size with "
                    "unn.trace."
                )
        return common

    def _trial_sizes(self) -> list[dict[str, int]]:
        """Two choices of sizes, within the ranges of the plates if possible, that differ from those of all
        other axes and between plates."""
        ends = [self._record({name: bounds[end] for name, bounds in self.plates.items()}) for end in (0, 1)]
        shapes = [{name: x.nodes.shape for name, x in tape.variables.items()} for tape in ends]
        fixed = {x.values.options for x in ends[0].variables.values()}
        for name, shape in shapes[0].items():
            fixed |= {a for a, b in zip(shape, shapes[1].get(name, ()), strict=False) if a == b}
        trials: list[dict[str, int]] = [{}, {}]
        for name, (least, most) in self.plates.items():
            # patterns of few entries are ambiguous
            within = range(least, min(most, least + _TRIED) + 1)
            rising, falling = (sorted(within, key=lambda n: (n < 3, sign * n)) for sign in (1, -1))
            for trial, candidates in zip(trials, (rising, falling), strict=True):
                used = {*fixed, *trial.values(), *(other.get(name, 0) for other in trials), 0, 1}
                beyond = itertools.count(max(3, most + 1))
                trial[name] = next(size for size in itertools.chain(candidates, beyond) if size not in used)
        return trials

    def __repr__(self) -> str:
        plates = ", ".join(f"{name} {least} to {most}" for name, (least, most) in self.plates.items())
        return f"Plated {self.graph.name!r}: {len(self.graph.variables)} variables, plates {plates}"


_TAKEN = frozenset({"self", "count", "generator", "dtype", "seed", "values", "observed", "given"})
"""Names of arguments beside sizes in methods of programs and of models."""


def trace_plates(
    program: Callable[..., object], plates: Mapping[str, tuple[int, int]], /, **options: Any
) -> Plated:
    """Trace a program at all sizes of its plates at once, as ``unn.trace`` does at one size.

    A network of the graph is trained and sampled at any of these sizes. The dependences must be the
    same patterns at all sizes, which is checked at two of them; where the ranges have no two sizes
    that occur on no other axis, beyond the ranges.

    Args:
        program: function whose first argument is the tracer ``t``, and whose arguments named in ``plates``
            are the sizes of axes.
        plates: least and largest size of each plate, by name.
        options: its other arguments, by name.

    Raises:
        ArgumentError: for ranges that are not whole numbers ``1 <= least <= largest``, and names of arguments
            of methods that take sizes.
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
        if not isinstance(bounds, (tuple, list)):
            raise ArgumentError(f"program: plate {name!r} needs a least and a largest size, got {bounds!r}.")
        whole = len(bounds) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in bounds)
        if not whole or not 1 <= bounds[0] <= bounds[1]:
            raise ArgumentError(
                f"program: plate {name!r} needs a least and a largest size, whole numbers >= 1, got "
                f"{bounds!r}."
            )
        if name in _TAKEN:
            raise ArgumentError(
                f"program: a plate cannot be named {name!r}, which is an argument of methods that take sizes "
                f"too; rename it, such as {name}_."
            )
    if not plates:
        raise ArgumentError("program: trace_plates needs a plate; without one, use unn.trace.")
    return Plated(program, plates, options)


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _description(graph: FactorGraph) -> list[str]:
    """Variables and factors as text, with the static sizes."""
    return [
        *(f"{v.name} [{v.pattern}] {v.regularizer!r} {v.bounds!r}" for v in graph.variables.values()),
        *(str(factor) for factor in graph.factors.values()),
        *(f"{axis} = {size}" for axis, size in sorted(graph.sizes.items())),
    ]
