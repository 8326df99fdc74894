"""Measure solvers of sudoku on files of puzzles: trained runs, the bitmask search and CP-SAT.

    UNN_DATA=... python -m tests.benchmarks.sudoku docs/results/sudoku.csv RUN [RUN ...]

Each run is measured on all sets; every answer is checked again by sets of digits. CP-SAT needs
``pip install unn[rivals]``.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import unn
from problems.sudoku.grids import completions, declare, draw_grids, one_hot
from unn.extending import SearchOptions, SolvingOptions, open_trained
from unn.solver.layout import Layout
from unn.solver.propagation import evidence, propagate

FIELDS = [
    "set",
    "puzzles",
    "method",
    "solved in one try",
    "solved in 8 tries",
    "solved in 64 tries",
    "invalid",
    "ms per puzzle",
    "parameters",
]
DATA = Path(os.environ.get("UNN_DATA", ""))
PUBLISHED = (
    ".......39.....1..5..3.5.8....8.9...6.7...2...1..4.......9.8..5..2....6..4..7.....",
    "1.......2.9.4...5...6...7...5.9.3.......7.......85..4.7.....6...3...9.8...2.....1",
    "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4..",
    "1....7.9..3..2...8..96..5....53..9...1..8...26....4...3......1..4......7..7...3..",
    ".......12........3..23..4....18....5.6..7.8.......9.....85.....9...4.5..47...6...",
    ".2..5.7..4..1....68....3...2....8..3.4..2.5.....6...1...2.9.....9......57.4...9..",
    "........3..1..56...9..4..7......9.5.7.......8.5.4.2....8..2..9...35..1..6........",
    "12.3....435....1....4........54..2..6...7.........8.9...31..5.......9.7.....6...8",
)


@dataclass(frozen=True)
class Puzzles:
    """Puzzles of one size.

    Attributes:
        name: for the table.
        cells: digits from 1, 0 for empty cells, shape ``(puzzles, n, n)``.
        rows: rows of a block.
        tries: maximum number of tries, 8 or 64.
    """

    name: str
    cells: Tensor
    rows: int
    tries: int = 8


def from_file(name: str, path: str, count: int, first: int = 0) -> Puzzles:
    """The puzzles of a file of lines."""
    with gzip.open(DATA / path, "rt") as file:
        lines = [line.split(",")[0] for line in file if line[0].isdecimal()][first : first + count]
    return Puzzles(name, torch.tensor([[int(sign) for sign in line] for line in lines]).view(-1, 9, 9), 3)


def by_givens(puzzles: Puzzles) -> list[Puzzles]:
    """Puzzles by their number of given cells."""
    givens = (puzzles.cells > 0).flatten(1).sum(1)
    parts = [(17, 19), (20, 22), (23, 25), (26, 34)]
    return [
        Puzzles(f"{puzzles.name}, {a}-{b} givens", puzzles.cells[(givens >= a) & (givens <= b)], 3)
        for a, b in parts
    ]


def sixteen(kind: str, count: int) -> Puzzles:
    """Grids of 16 x 16 cells."""
    data = np.load(DATA / "csp" / "sudoku16.npz")
    packed = data[f"{kind}_solution"][:count]
    digits = np.stack([packed >> 4, packed & 15], -1).reshape(count, 256).astype(np.int64) + 1
    given = np.unpackbits(data[f"{kind}_mask"][:count], axis=1).astype(bool)
    return Puzzles(f"16x16 {kind}", torch.from_numpy(np.where(given, digits, 0)).view(-1, 16, 16), 4)


def difficult() -> Puzzles:
    """Puzzles that a Markov chain made difficult for search (``tests.benchmarks.difficult``)."""
    lines = (Path(__file__).parents[1] / "golden" / "difficult_sudokus.csv").read_text().split()
    cells = [[int(sign) for sign in line.split(",")[0]] for line in lines]
    return Puzzles("difficult for search", torch.tensor(cells).view(-1, 9, 9), 3, 64)


def published() -> Puzzles:
    """Eight puzzles that were published as among the hardest."""
    cells = [[0 if sign == "." else int(sign) for sign in line] for line in PUBLISHED]
    return Puzzles("published as the hardest", torch.tensor(cells).view(-1, 9, 9), 3, 64)


def twenty_five(share: float, count: int) -> Puzzles:
    """Random grids of 25 x 25 cells with a share of the cells given; most have several completions."""
    generator = torch.Generator().manual_seed(0)
    grids = draw_grids(count, 5, 5, generator) + 1
    rank = torch.rand(count, 625, generator=generator).argsort(1).argsort(1).view(-1, 25, 25)
    return Puzzles(f"25x25, {share:.0%} given", torch.where(rank < share * 625, grids, 0), 5)


def sets() -> Iterable[Puzzles]:
    """All sets of puzzles."""
    hard = from_file("hard, 17-34 givens", "csp/sudoku_hard_valid.csv.gz", 3000)
    yield hard
    yield from by_givens(hard)
    yield from_file("17 clues, singles", "sudoku/clue17_singles.txt.gz", 1000)
    yield from_file("17 clues, locked subsets", "sudoku/clue17_locked_subsets.txt.gz", 1000)
    yield from_file("diabolical", "sudoku/diabolical_se5to6.txt.gz", 500)
    yield difficult()
    yield published()
    yield sixteen("simple", 100)
    yield sixteen("medium", 100)
    yield twenty_five(0.6, 20)
    yield twenty_five(0.5, 20)
    yield twenty_five(0.45, 20)


def is_solution(cells: Tensor, grid: Tensor, rows: int) -> bool:
    """Whether a grid contains the given cells and every digit once in each row, column and block."""
    n = len(grid)
    columns = n // rows
    table = grid.tolist()
    groups = [*table, *zip(*table, strict=True)]
    for top in range(0, n, rows):
        for left in range(0, n, columns):
            groups.append([table[top + i][left + j] for i in range(rows) for j in range(columns)])
    complete = all(set(group) == set(range(1, n + 1)) for group in groups)
    return complete and bool((grid == cells)[cells > 0].all())


def measure_propagation(puzzles: Puzzles) -> dict[str, object]:
    """Share of puzzles that counting alone solves: naked and hidden singles."""
    n = puzzles.cells.shape[1]
    layout = Layout(declare(puzzles.rows, n // puzzles.rows), {})
    given = {"X": unn.Partial(one_hot((puzzles.cells - 1).clamp(min=0), n), puzzles.cells > 0)}
    started = time.perf_counter()
    rows, nodes = layout.frame.observation(given, len(puzzles.cells))
    known, impossible = propagate(layout, evidence(layout, rows, nodes))
    seconds = time.perf_counter() - started
    share = float((~known.open.any(1) & (impossible < 0)).float().mean())
    return {
        "method": "propagation alone",
        "solved in one try": share,
        "solved in 8 tries": share,
        "invalid": 0,
        "ms per puzzle": 1000 * seconds / len(puzzles.cells),
        "parameters": 0,
    }


@dataclass(frozen=True)
class Variant:
    """A way to use trained weights.

    Attributes:
        name: for the table, after the name of the run.
        propagation: what the evidence implies before a try.
        decimate_every: see ``SolverOptions``.
        trained: whether weights are those of the run, or random ones.
    """

    name: str = ""
    propagation: Literal["once", "full"] = "full"
    decimate_every: int = 4
    trained: bool = True


FIRST_RUN = (
    Variant(" without decimation", decimate_every=0),
    Variant(" without propagation", propagation="once", decimate_every=0),
    Variant(" with random weights", trained=False),
)


def measure_run(folder: str, puzzles: Puzzles, variant: Variant) -> dict[str, object]:
    """Share of puzzles that a run solves."""
    problem, run = open_trained(folder, "solver")
    run.network.options = replace(
        run.network.options, propagation=variant.propagation, decimate_every=variant.decimate_every
    )
    if not variant.trained:
        torch.manual_seed(0)
        network = run.network.network
        run.network.network = type(network)(network.kinds, network.width)
    n = puzzles.cells.shape[1]
    if n != run.config.block_rows * run.config.block_columns:
        config = replace(run.config, model=run.network.options)
        shape = {"block_rows": puzzles.rows, "block_columns": n // puzzles.rows}
        run = problem.with_options(replace(run, config=config), shape)
    given = {"X": unn.Partial(one_hot((puzzles.cells - 1).clamp(min=0), n), puzzles.cells > 0)}
    options = SolvingOptions(tries=puzzles.tries, steps=256 if n == 9 else 512, at_once=256 if n == 9 else 32)
    solutions = unn.solve(run.network, given, options=options)
    solved = solutions.solved
    grids = solutions["X"].argmax(-1) + 1
    right = [is_solution(c, g, puzzles.rows) for c, g in zip(puzzles.cells, grids, strict=True)]
    shares = {tries: float((solved & (solutions.tries <= tries)).float().mean()) for tries in (1, 8, 64)}
    return {
        "method": Path(folder).name + variant.name,
        "solved in one try": shares[1],
        "solved in 8 tries": shares[8],
        "solved in 64 tries": shares[64] if puzzles.tries == 64 else "",
        "invalid": sum(s and not r for s, r in zip(solved.tolist(), right, strict=True)),
        "ms per puzzle": 1000 * solutions.seconds / len(grids),
        "parameters": sum(p.numel() for p in run.network.parameters()),
    }


def measure_search(puzzles: Puzzles) -> dict[str, object]:
    """Share of puzzles that depth-first search solves within 3,000 nodes of each tree."""
    n = puzzles.cells.shape[1]
    search = unn.Search(
        declare(puzzles.rows, n // puzzles.rows), SearchOptions(mode="depth-first", solving_steps=3000)
    )
    given = {"X": unn.Partial(one_hot((puzzles.cells - 1).clamp(min=0), n), puzzles.cells > 0)}
    solutions = unn.solve(search, given, options=SolvingOptions(tries=1, at_once=256 if n == 9 else 32))
    grids = solutions["X"].argmax(-1) + 1
    solved = solutions.solved.tolist()
    right = [is_solution(c, g, puzzles.rows) for c, g in zip(puzzles.cells, grids, strict=True)]
    return {
        "method": "depth-first search",
        "solved in one try": sum(solved) / len(solved),
        "solved in 8 tries": "",
        "invalid": sum(s and not r for s, r in zip(solved, right, strict=True)),
        "ms per puzzle": 1000 * solutions.seconds / len(grids),
        "parameters": 0,
    }


def measure_exact(
    name: str, solve: Callable[[list[int], int], list[int] | None], puzzles: Puzzles
) -> dict[str, object]:
    """Share of puzzles that an exact solver solves, at most 50 of them."""
    tested = puzzles.cells[:50]
    started = time.perf_counter()
    grids = [solve(cells.flatten().tolist(), puzzles.rows) for cells in tested]
    seconds = time.perf_counter() - started
    n = tested.shape[1]
    right = [
        grid is not None and is_solution(cells, torch.tensor(grid).view(n, n), puzzles.rows)
        for cells, grid in zip(tested, grids, strict=True)
    ]
    share = sum(right) / len(right)
    return {
        "method": name,
        "solved in one try": share,
        "solved in 8 tries": share,
        "invalid": sum(g is not None and not r for g, r in zip(grids, right, strict=True)),
        "ms per puzzle": 1000 * seconds / len(grids),
        "parameters": 0,
    }


def bitmask(cells: list[int], rows: int) -> list[int] | None:
    """Depth-first search on the cell with the fewest options, in Python."""
    n = round(len(cells) ** 0.5)
    return next(completions(cells, rows, n // rows), None)


def cp_sat(cells: list[int], rows: int) -> list[int] | None:
    """OR-tools CP-SAT on one core."""
    from ortools.sat.python import cp_model

    n = round(len(cells) ** 0.5)
    model = cp_model.CpModel()
    x = [model.new_int_var(digit or 1, digit or n, "") for digit in cells]
    for k in range(n):
        model.add_all_different(x[k * n : (k + 1) * n])
        model.add_all_different(x[k::n])
        top, left = k // rows * rows, k % rows * (n // rows)
        model.add_all_different([x[(top + i) * n + left + j] for i in range(rows) for j in range(n // rows)])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return [solver.value(v) for v in x] if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def main(out: str, runs: list[str]) -> None:
    """Measure all methods on all sets, and write a row for each."""
    torch.set_num_threads(1)
    with open(out, "w", newline="") as file:
        csv.DictWriter(file, FIELDS, lineterminator="\n").writeheader()
    for puzzles in sets():
        measured = [measure_propagation(puzzles)]
        measured += [measure_run(folder, puzzles, Variant()) for folder in runs]
        if not puzzles.name.startswith("hard, 17-34 givens, "):
            measured += [measure_run(runs[0], puzzles, variant) for variant in FIRST_RUN]
            measured += [measure_search(puzzles)]
            if puzzles.rows == 3 and puzzles.tries == 8:
                measured.append(measure_exact("bitmask search", bitmask, puzzles))
            measured += [measure_exact("CP-SAT", cp_sat, puzzles)]
        rows = [{"set": puzzles.name, "puzzles": len(puzzles.cells), **row} for row in measured]
        with open(out, "a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writerows(
                {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row.items()} for row in rows
            )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
