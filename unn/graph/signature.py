"""The signature of a declaration as lines of text, so that differences can be reported."""

from __future__ import annotations

from zlib import crc32

from .arrays import Index, Variable
from .declaration import Declaration
from .describe import factor_label


def graph_signature(graph: Declaration) -> tuple[str, ...]:
    """One line per axis, array and factor of a graph, in the order of declaration."""
    lines = [f"axis {name}: {size}" for name, size in graph.sizes.items()]
    for array in graph.arrays.values():
        regularizer = bounds = ""
        if isinstance(array, Variable):
            regularizer = repr(array.regularizer)
            bounds = f"bounds {crc32(repr(array.bounds).encode()):08x}" if array.bounds else ""
        numbers = (
            f"into {array.into}, checksum {crc32(array.array.tobytes()):08x}"
            if isinstance(array, Index)
            else ""
        )
        lines.append(
            " ".join(
                f"{array.kind} {array.name}: [{' '.join(array.axes)}] {regularizer} {bounds}{numbers}".split()
            )
        )
    lines += [
        f"factor {name}: {factor.formula()} {factor_label(factor)}".rstrip()
        for name, factor in graph.factors.items()
    ]
    return tuple(lines)
