"""Sizes of axes without a static size, from evidence, and the shapes that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from ..errors import DeclarationError, ObservationError, unknown, whole_number
from .arrays import Constant, Variable
from .declaration import Declaration
from .partial import Partial


def dynamic_sizes(graph: Declaration, evidence: Mapping[str, Tensor | Partial]) -> dict[str, int]:
    """Sizes of the axes of given variables and constants that have no static size, by axis.

    Args:
        graph: the declaration.
        evidence: values by name, shape ``(batch, *axes)``, those of constants also ``axes``; unknown names,
            and what is no tensor, are left out.
    """
    static = graph.size_table.static
    sizes: dict[str, int] = {}
    for name, x in evidence.items():
        value = x.value if isinstance(x, Partial) else x
        array = graph.arrays.get(name)
        if isinstance(array, (Variable, Constant)) and isinstance(value, Tensor):
            alone = isinstance(array, Constant) and value.ndim == len(array.axes)
            axes = zip(array.axes, value.shape if alone else value.shape[1:], strict=False)
            sizes |= {axis: size for axis, size in axes if axis not in static}
    return sizes


def sizes_with(
    graph: Declaration, evidence: Mapping[str, Tensor | Partial] | None, sizes: Mapping[str, int] | None
) -> dict[str, int]:
    """Sizes of axes without a static size: those that are passed, and of other axes those of the evidence.

    Raises:
        DeclarationError: for sizes that are passed for an unknown axis, or are no whole numbers.
    """
    check_sizes(graph, sizes or {})
    return {**dynamic_sizes(graph, evidence or {}), **(sizes or {})}


def shapes_of(
    graph: Declaration, sizes: Mapping[str, int], names: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """Shapes of some arrays of a graph, without batch axes.

    Raises:
        DeclarationError: for an unknown size or axis, a size that is no whole number, or sizes that
            contradict the declaration.
    """
    check_sizes(graph, sizes)
    table = graph.size_table
    solved = table.solve({table.root(axis): size for axis, size in sizes.items()})
    shapes = {}
    for name in names:
        array = graph.arrays[name]
        shape = table.shape(array, solved)
        if None in shape:
            axis = array.axes[shape.index(None)]
            raise DeclarationError(
                f"graph {graph.name!r}: the size of axis {axis!r} of {name!r} is unknown; pass "
                f"sizes={{{axis!r}: ...}}."
            )
        shapes[name] = tuple(int(size or 0) for size in shape)
    return shapes


def check_sizes(graph: Declaration, sizes: Mapping[str, int]) -> None:
    """Check the sizes of a query.

    Raises:
        DeclarationError: for anything but a mapping, an axis that no array has, a size that is no whole
            number, or one that differs from another size of the same axis.
    """
    if not isinstance(sizes, Mapping):
        raise DeclarationError(
            f"graph {graph.name!r}: sizes must be a mapping such as {{'i': 3}}, got {type(sizes).__name__}."
        )
    table = graph.size_table
    axes = list(dict.fromkeys(axis for array in graph.arrays.values() for axis in array.axes))
    known = dict(table.static)
    for axis, size in sizes.items():
        if axis not in axes and axis not in graph.sizes:
            raise DeclarationError(f"graph {graph.name!r}: " + unknown("axis", axis, axes))
        whole_number(f"graph {graph.name!r}: the size of axis {axis!r}", size, 0)
        other = known.setdefault(table.root(axis), size)
        if other != size:
            raise DeclarationError(
                f"graph {graph.name!r}: axis {axis!r} has size {other}, but {size} was given."
            )


def check_mapping(what: str, mapping: object) -> None:
    """Check that evidence, or another part of a query, is a mapping or None.

    Raises:
        ObservationError: for anything else.
    """
    if mapping is not None and not isinstance(mapping, Mapping):
        raise ObservationError(
            f"{what}: expected a mapping from names such as {{'x': ...}}, got {type(mapping).__name__}."
        )
