"""Nonograms: the declaration, random pictures and their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import unn
from factors import Among

Hints = Sequence[Sequence[int]]
"""Lengths of the runs of black cells of each line."""


@dataclass(frozen=True)
class BlackRun:
    """A run of black cells.

    Attributes:
        line: number of its row or column.
        first: whether it is the first run of the line.
        length: number of its cells.
        start: first place where it can start.
        end: last place where it can start.
    """

    line: int
    first: bool
    length: int
    start: int
    end: int


def declare(rows: Hints, columns: Hints) -> unn.FactorGraph:
    """A colour for each cell and a start for each run; cells are black where a run of their row covers them,
    and where one of their column does.

    Args:
        rows, columns: lengths of the runs of each row and column, none for an empty line.
    """
    height, width = len(rows), len(columns)
    runs = {"row": runs_of(rows, width), "column": runs_of(columns, height)}
    sizes = {"row_start": width, "column_start": height} | {
        f"{name}_run": len(own) for name, own in runs.items() if own
    }
    g = unn.FactorGraph("nonogram", cell=height * width, colour=2, **sizes)
    X = g.variable("X", "cell | colour", unn.Entropy())
    for name, own in runs.items():
        cover = [
            (run.line * width + place if name == "row" else place * width + run.line, k, start)
            for k, run in enumerate(own)
            for start in range(run.start, run.end + 1)
            for place in range(start, start + run.length)
        ]
        white = g.index(f"white_{name}", "cell", list(range(height * width)), into="cell")
        g.index(f"colour_{name}", "cell", [0] * (height * width), into="colour")
        members = [X[f"white_{name}[c] colour_{name}[c]"]]
        groups = [white]
        if own:
            S = g.variable(f"{name.capitalize()}s", f"{name}_run | {name}_start", unn.Entropy())
            g.index(f"run_{name}", f"cover_{name}", [k for _, k, _ in cover], into=f"{name}_run")
            g.index(f"start_{name}", f"cover_{name}", [s for _, _, s in cover], into=f"{name}_start")
            members.append(S[f"run_{name}[m] start_{name}[m]"])
            groups.append(g.index(f"covers_{name}", f"cover_{name}", [c for c, _, _ in cover], into="cell"))
            _add_order(g, name, own, sizes[f"{name}_start"])
        g.factor(Among(*members, group=groups, equals=1, name=f"cells of {name}s"))
    return g


def _add_order(g: unn.FactorGraph, name: str, runs: Sequence[BlackRun], size: int) -> None:
    """Runs of a line follow each other with a gap, and start within the line."""
    S = g[f"{name.capitalize()}s"]
    late = [
        (k, start) for k, run in enumerate(runs) for start in range(size) if not run.start <= start <= run.end
    ]
    follows: list[tuple[int, int, int]] = []
    group = 0
    for k in range(1, len(runs)):
        if runs[k].first:
            continue
        before = runs[k - 1]
        for start in range(before.start, before.end + 1):
            follows += [(k - 1, s, group) for s in range(start, before.end + 1)]
            follows += [
                (k, s, group) for s in range(runs[k].start, min(start + before.length, runs[k].end) + 1)
            ]
            group += 1
    for kind, entries, most in (("late", [(k, s, 0) for k, s in late], 0), ("order", follows, 1)):
        if entries:
            axis = f"{kind}_{name}"
            g.index(f"{axis}_run", axis, [k for k, _, _ in entries], into=f"{name}_run")
            g.index(f"{axis}_start", axis, [s for _, s, _ in entries], into=f"{name}_start")
            index = g.index(f"{axis}_group", axis, [n for _, _, n in entries], into=f"{axis}_groups")
            members = S[f"{axis}_run[m] {axis}_start[m]"]
            g.factor(Among(members, group=[index], at_most=most, name=f"{kind} of {name}s"))


def runs_of(hints: Hints, size: int) -> list[BlackRun]:
    """The runs of all lines, with the places where the lengths of the others let them start."""
    runs = []
    for line, lengths in enumerate(hints):
        slack = size - sum(lengths) - len(lengths) + 1
        start = 0
        for k, length in enumerate(lengths):
            runs.append(BlackRun(line, k == 0, length, start, start + slack))
            start += length + 1
    return runs


def hints_of(picture: Tensor) -> list[tuple[int, ...]]:
    """Lengths of the runs of ones of each row, shape ``(height, width)``."""
    hints = []
    for row in picture.tolist():
        lengths = [len(run) for run in "".join("#" if x else "." for x in row).replace(".", " ").split()]
        hints.append(tuple(lengths))
    return hints


def draw_pictures(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Black where noise, averaged over 3 x 3 cells, is above its median; shape ``(count, height, width)``."""
    noise = torch.rand(count, 1, height, width, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(noise, 3, 1, 1, count_include_pad=False)[:, 0]
    return (smooth > smooth.flatten(1).median(1).values[:, None, None]).long()
