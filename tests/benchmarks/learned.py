"""How much declared constraints are worth: networks that learn the rules of small sudokus from puzzles alone,
from puzzles with constraint losses, with few labels, with attention between neighbours alone, or that receive
the rules.

    python -m tests.benchmarks.learned FILE --block 2 2 --steps 1500 --puzzles 300 3000

All are trained on the same puzzles with one solution each, without symmetries, and tested by one try on
others, without propagation.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

import torch
from torch import Tensor

import unn
from problems.sudoku.grids import completions, declare, draw_grids, one_hot
from unn.engine import SolvingOptions
from unn.recurrent.model import RecurrentModel
from unn.recurrent.options import RecurrentOptions
from unn.solver.model import Solver
from unn.solver.options import SolverOptions

TESTED = 1000
RECURRENT = RecurrentOptions(width=64, heads=4, recurrences=16, solving_steps=32)
PLACED = replace(RECURRENT, position_deviation=0.2)
"""Position embeddings ten times as large as those of the values, where the published code has zeros."""
Puzzles = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Board:
    """Rows and columns of a block."""

    rows: int
    columns: int

    @property
    def n(self) -> int:
        """Rows, columns and digits."""
        return self.rows * self.columns

    def graph(self) -> unn.FactorGraph:
        """The declaration."""
        return declare(self.rows, self.columns)

    def neighbours(self) -> Tensor:
        """Pairs of cells in a row, column or block, and each cell with itself; shape ``(cells, cells)``."""
        near = torch.from_numpy(self.graph().adjacency().matrix.toarray()).bool()
        return near | torch.eye(self.n**2, dtype=torch.bool)


def has_one_solution(board: Board, cells: list[int]) -> bool:
    """Whether cells, 0 for empty ones, have exactly one completion."""
    return len(list(islice(completions(cells, board.rows, board.columns), 2))) == 1


def puzzles(board: Board, number: int, seed: int) -> Puzzles:
    """Grids, shape ``(number, n, n)``, and their given cells, with one solution: a quarter to two fifths of
    the cells or more, if no further one can be removed in a random order."""
    random, cells_of_all = Random(seed), board.n**2
    grids = draw_grids(number, board.rows, board.columns, torch.Generator().manual_seed(seed))
    given = torch.ones(number, cells_of_all, dtype=torch.bool)
    for grid, mask in zip(grids.flatten(1).tolist(), given, strict=True):
        cells, wanted = (
            [digit + 1 for digit in grid],
            random.randint(cells_of_all // 4, 2 * cells_of_all // 5),
        )
        for k in random.sample(range(cells_of_all), cells_of_all):
            if sum(map(bool, cells)) <= wanted:
                break
            digit, cells[k] = cells[k], 0
            if not has_one_solution(board, cells):
                cells[k] = digit
        mask.copy_(torch.tensor(cells) > 0)
    return grids, given.view(grids.shape)


def without(training: Puzzles, tested: Puzzles) -> Puzzles:
    """Training puzzles that are not among those of the test."""
    known = {tuple(row) for row in _clues(tested).tolist()}
    new = torch.tensor([tuple(row) not in known for row in _clues(training).tolist()])
    return training[0][new], training[1][new]


def _clues(sample: Puzzles) -> Tensor:
    grids, given = sample
    return torch.where(given, grids + 1, 0).flatten(1)


METHODS: dict[str, RecurrentOptions | SolverOptions] = {
    "recurrent, puzzles alone": RECURRENT,
    "recurrent, constraint loss": replace(RECURRENT, constraint_weight=1.0),
    "recurrent, attention loss": replace(RECURRENT, attention_weight=1.0),
    "recurrent, constraint loss of weight 0.1": replace(RECURRENT, constraint_weight=0.1),
    "recurrent, constraint loss, a tenth of the labels": replace(
        RECURRENT, constraint_weight=1.0, labelled_share=0.1
    ),
    "recurrent, constraint loss of weight 0.1, a tenth of the labels": replace(
        RECURRENT, constraint_weight=0.1, labelled_share=0.1
    ),
    "recurrent, random positions": PLACED,
    "recurrent, random positions of deviation 0.02": replace(PLACED, position_deviation=0.02),
    "recurrent, random positions of deviation 1": replace(PLACED, position_deviation=1.0),
    "recurrent, random positions, constraint loss": replace(PLACED, constraint_weight=1.0),
    "recurrent, random positions, constraint loss of weight 0.1, a tenth of the labels": replace(
        PLACED, constraint_weight=0.1, labelled_share=0.1
    ),
    "recurrent, attention of neighbours": replace(RECURRENT, structure="graph", dropout=0.0),
    "solver": SolverOptions(propagation="once", decimate_every=0, solving_steps=64),
    "solver, constraint loss, no labels": SolverOptions(
        propagation="once", decimate_every=0, solving_steps=64, labels=False
    ),
}


def attention_on_neighbours(board: Board, model: RecurrentModel, tested: Puzzles) -> float:
    """Mean attention that a cell pays to itself and to the cells of its row, column and block."""
    near, network = board.neighbours(), model.network.eval()
    with torch.no_grad():
        embedded = state = network.embed(_clues(tested))
        shares = []
        for _ in range(RECURRENT.recurrences):
            (hidden,) = network.recur(embedded, state, None, True)
            assert hidden.attention is not None
            shares.append((hidden.attention.softmax(-1) * near).sum(-1).mean())
            state = hidden.state
    return float(torch.stack(shares).mean())


def measure(
    board: Board, name: str, training: Puzzles, tested: Puzzles, steps: int, seed: int
) -> dict[str, object]:
    """Train a model and test it."""
    options = METHODS[name]
    torch.manual_seed(seed)
    model: RecurrentModel | Solver
    if isinstance(options, RecurrentOptions):
        model, rate = RecurrentModel(board.graph(), options, {}), 1e-3
    else:
        model, rate = Solver(board.graph(), options, {}), 6e-3
    grids, given = training
    values = {"X": one_hot(grids, board.n), "given": given.float()}

    def loss(network: RecurrentModel | Solver, batch: dict[str, Tensor]) -> Tensor:
        return network.loss({"X": batch["X"]}, {"X": batch["given"] > 0})

    started = time.process_time()
    fitted = unn.fit(model, values, steps=steps, loss=loss, batch=32, rate=rate, ema=0.99, seed=seed)
    if fitted.interrupted:
        raise KeyboardInterrupt(f"{name}: interrupted after {len(fitted.losses)} steps; nothing is measured")
    seconds = time.process_time() - started
    grids, given = tested
    evidence = {"X": unn.Partial(one_hot(grids, board.n), given)}
    answers = unn.solve(model.eval(), evidence, options=SolvingOptions(tries=1))
    right = (answers["X"].argmax(-1) == grids).flatten(1).all(1)
    assert bool((right >= answers.solved).all()), "a verified answer of a puzzle with one solution is wrong"
    attention: float | str = ""
    if isinstance(model, RecurrentModel) and model.options.structure == "dense":
        attention = attention_on_neighbours(board, model, tested)
    return {
        "board": f"{board.n} x {board.n}",
        "training puzzles": len(training[0]),
        "model": name,
        "seed": seed,
        "solved": float(answers.solved.float().mean()),
        "attention on neighbours": attention,
        "parameters": sum(p.numel() for p in model.parameters()),
        "training seconds": round(seconds),
    }


def main(
    out: str, board: Board, steps: int, numbers: Sequence[int], seeds: Sequence[int], methods: Sequence[str]
) -> None:
    """Measure models with some numbers of puzzles."""
    torch.set_num_threads(1)
    tested = puzzles(board, TESTED, 1)
    every = without(puzzles(board, 2 * max(numbers), 0), tested)
    cells = tested[1].flatten(1).sum(1).float().mean()
    print(f"given cells: {cells:.1f}; uniform attention {board.neighbours().float().mean():.3f}")
    with open(out, "w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for seed in seeds:
            for number in numbers:
                training = every[0][:number], every[1][:number]
                for name in methods:
                    row = measure(board, name, training, tested, steps, seed)
                    if writer is None:
                        writer = csv.DictWriter(file, list(row), lineterminator="\n")
                        writer.writeheader()
                    writer.writerow({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()})
                    file.flush()
                    print(row, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--block", type=int, nargs=2, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--puzzles", type=int, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--models", nargs="+", choices=list(METHODS), default=list(METHODS))
    chosen = parser.parse_args()
    main(chosen.file, Board(*chosen.block), chosen.steps, chosen.puzzles, chosen.seeds, chosen.models)
