"""How much declared constraints are worth: networks that learn the rules of 6 x 6 sudoku from puzzles alone,
from puzzles with constraint losses, with attention between neighbours alone, or that receive them.

    python -m tests.benchmarks.learned docs/results/learned.csv [STEPS [SEEDS]]

All are trained on the same puzzles with one solution each, without symmetries, and tested by one try on
others, without propagation.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from torch import Tensor, nn

import unn
from problems.sudoku.grids import declare, draw_grids, one_hot
from unn.engine import SolvingOptions
from unn.recurrent.model import RecurrentModel
from unn.recurrent.options import RecurrentOptions
from unn.solver.model import Solver
from unn.solver.options import SolverOptions

ROWS, COLUMNS = 2, 3
N = ROWS * COLUMNS
TESTED = 1000
RECURRENT = RecurrentOptions(width=64, heads=4, recurrences=16, solving_steps=32)
Puzzles = tuple[Tensor, Tensor]


def solutions(cells: list[int], limit: int = 2) -> int:
    """Number of completions of cells, 0 for empty ones, up to a limit; depth-first with sets of digits."""
    rows, columns, blocks = [0] * N, [0] * N, [0] * N
    empty = []
    for k, digit in enumerate(cells):
        r, c = divmod(k, N)
        if digit:
            rows[r] |= 1 << digit
            columns[c] |= 1 << digit
            blocks[_block(r, c)] |= 1 << digit
        else:
            empty.append((r, c, _block(r, c)))

    def count(left: list[tuple[int, int, int]], still: int) -> int:
        if not left:
            return 1
        used = [rows[r] | columns[c] | blocks[b] for r, c, b in left]
        k = max(range(len(left)), key=lambda i: used[i].bit_count())
        r, c, b = left[k]
        total = 0
        for digit in range(1, N + 1):
            bit = 1 << digit
            if used[k] & bit:
                continue
            rows[r], columns[c], blocks[b] = rows[r] | bit, columns[c] | bit, blocks[b] | bit
            total += count(left[:k] + left[k + 1 :], still - total)
            rows[r], columns[c], blocks[b] = rows[r] & ~bit, columns[c] & ~bit, blocks[b] & ~bit
            if total >= still:
                break
        return total

    return count(empty, limit)


def puzzles(number: int, seed: int) -> Puzzles:
    """Grids, shape ``(number, N, N)``, and their given cells, with one solution: 8 to 14 cells or more, if
    no further one can be removed in a random order."""
    random = Random(seed)
    grids = draw_grids(number, ROWS, COLUMNS, torch.Generator().manual_seed(seed))
    given = torch.ones(number, N * N, dtype=torch.bool)
    for grid, mask in zip(grids.flatten(1).tolist(), given, strict=True):
        cells, wanted = [digit + 1 for digit in grid], random.randint(8, 14)
        for k in random.sample(range(N * N), N * N):
            if sum(map(bool, cells)) <= wanted:
                break
            digit, cells[k] = cells[k], 0
            if solutions(cells) > 1:
                cells[k] = digit
        mask.copy_(torch.tensor(cells) > 0)
    return grids, given.view(number, N, N)


def recurrent(**options: object) -> Callable[[], nn.Module]:
    """Makes a recurrent transformer."""
    return lambda: RecurrentModel(declare(ROWS, COLUMNS), replace(RECURRENT, **options), {})  # type: ignore[arg-type]


def solver() -> nn.Module:
    """The network that is derived from the declaration."""
    options = SolverOptions(propagation="once", decimate_every=0, solving_steps=64)
    return Solver(declare(ROWS, COLUMNS), options, {})


METHODS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "recurrent, puzzles alone": (recurrent(), 1e-3),
    "recurrent, constraint loss": (recurrent(constraint_weight=1.0), 1e-3),
    "recurrent, attention of neighbours": (recurrent(structure="graph", dropout=0.0), 1e-3),
    "solver": (solver, 6e-3),
}
"""Models and learning rates."""


def attention_on_neighbours(model: RecurrentModel, tested: Puzzles) -> float:
    """Mean attention that a cell pays to itself and to the cells of its row, column and block."""
    grids, given = tested
    tokens = torch.where(given, grids + 1, 0).flatten(1)
    near = model.neighbours.bool() | torch.eye(N * N, dtype=torch.bool)
    network = model.network.eval()
    with torch.no_grad():
        embedded = state = network.embed(tokens)
        shares = []
        for _ in range(RECURRENT.recurrences):
            (hidden,) = network.recur(embedded, state, None, True)
            assert hidden.attention is not None
            shares.append((hidden.attention.softmax(-1) * near).sum(-1).mean())
            state = hidden.state
    return float(torch.stack(shares).mean())


def measure(name: str, training: Puzzles, tested: Puzzles, steps: int, seed: int) -> dict[str, object]:
    """Train a model and test it."""
    make, rate = METHODS[name]
    torch.manual_seed(seed)
    model = make()
    grids, given = training
    values = {"X": one_hot(grids, N), "given": given.float()}

    def loss(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        value: Tensor = network.loss({"X": batch["X"]}, {"X": batch["given"] > 0})  # type: ignore[operator]
        return value

    started = time.process_time()
    unn.fit(model, values, steps=steps, loss=loss, batch=32, rate=rate, ema=0.99, seed=seed)
    seconds = time.process_time() - started
    grids, given = tested
    evidence = {"X": unn.Partial(one_hot(grids, N), given)}
    answers = unn.solve(model.eval(), evidence, options=SolvingOptions(tries=1))
    right = (answers["X"].argmax(-1) == grids).flatten(1).all(1)
    assert bool((right >= answers.solved).all()), "a verified answer of a puzzle with one solution is wrong"
    dense = isinstance(model, RecurrentModel) and model.options.structure == "dense"
    return {
        "training puzzles": len(training[0]),
        "model": name,
        "seed": seed,
        "solved": float(answers.solved.float().mean()),
        "attention on neighbours": attention_on_neighbours(model, tested) if dense else "",
        "parameters": sum(p.numel() for p in model.parameters()),
        "training seconds": round(seconds),
    }


def main(out: str, steps: int, seeds: int) -> None:
    """Measure all models with two amounts of puzzles."""
    torch.set_num_threads(1)
    every, tested = puzzles(3000, 0), puzzles(TESTED, 1)
    near = (attention_mask() | torch.eye(N * N, dtype=torch.bool)).float().mean()
    print(f"given cells: {every[1].flatten(1).sum(1).float().mean():.1f}; uniform attention {near:.3f}")
    with open(out, "w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for seed in range(seeds):
            for number in (300, 3000):
                training = every[0][:number], every[1][:number]
                for name in METHODS:
                    row = measure(name, training, tested, steps, seed)
                    if writer is None:
                        writer = csv.DictWriter(file, list(row), lineterminator="\n")
                        writer.writeheader()
                    writer.writerow({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()})
                    file.flush()
                    print(row, flush=True)


def attention_mask() -> Tensor:
    """Pairs of cells in a row, column or block."""
    return torch.from_numpy(declare(ROWS, COLUMNS).adjacency().matrix.toarray()).bool()


def _block(row: int, column: int) -> int:
    return row // ROWS * ROWS + column // COLUMNS


if __name__ == "__main__":
    main(sys.argv[1], *(int(x) for x in [*sys.argv[2:], "3000", "1"][:2]))
