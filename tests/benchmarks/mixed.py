"""One solver trained on sudokus of several sizes, and tested on larger ones.

    UNN_DATA=... python -m tests.benchmarks.mixed FILE STEPS SEED [train | test]

The weights of a solver fit every size. Two solvers, of 9 x 9 and of 16 x 16 cells, share one network: three
of four batches, on average, are hard puzzles of 9 x 9; the others are puzzles of 16 x 16 of the difficulty
"medium", which are not in the test. The weights that come with the package, which were trained on puzzles of
9 x 9 alone, are the control.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import unn
from problems.sudoku.grids import declare, move_grids, one_hot
from problems.sudoku.puzzles import load_puzzles
from tests.benchmarks.sudoku import DATA, Puzzles, difficult, from_file, is_solution, sixteen, twenty_five
from unn.engine import SolvingOptions
from unn.extending import open_trained
from unn.solver.model import Solver
from unn.solver.network import GroupNetwork
from unn.solver.options import SolverOptions

OPTIONS = SolverOptions()
LARGE_POOL = 12
TESTED = 100
"""Puzzles of 16 x 16 in the test, the first of the file; training has none of the first 1,000."""


@dataclass(frozen=True)
class Mixture:
    """Batches of two sizes, and their loss.

    Attributes:
        puzzles: grids of 9 x 9, digits from 0, and their given cells, shape ``(puzzles, 9, 9)``.
        large_puzzles: the same of 16 x 16.
        large: solver of 16 x 16, which shares the network of the trained one.
    """

    puzzles: tuple[Tensor, Tensor]
    large_puzzles: tuple[Tensor, Tensor]
    large: Solver

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """A batch of one size."""
        large = int(torch.randint(4, (), generator=generator)) == 0
        grids, given = self.large_puzzles if large else self.puzzles
        chosen = torch.randint(len(grids), (count,), generator=generator)
        block = 4 if large else 3
        grids, moved = move_grids(grids[chosen], given[chosen], block, block, generator)
        assert moved is not None
        return {"X": one_hot(grids, grids.shape[1]), "given": moved.float()}

    def loss(self, network: Solver, batch: dict[str, Tensor]) -> Tensor:
        """The loss of the solver of the size of a batch."""
        if batch["X"].shape[1] == 9:
            return network.loss({"X": batch["X"]}, {"X": batch["given"] > 0})
        self.large.network = network.network
        self.large.train(network.training)
        return self.large.loss({"X": batch["X"]}, {"X": batch["given"] > 0})


def sixteen_to_train() -> tuple[Tensor, Tensor]:
    """Grids of 16 x 16, digits from 0, and their given cells."""
    data = np.load(DATA / "csp" / "sudoku16.npz")
    packed = data["medium_solution"][1000:]
    grids = np.stack([packed >> 4, packed & 15], -1).reshape(-1, 16, 16).astype(np.int64)
    given = np.unpackbits(data["medium_mask"][1000:], axis=1).astype(bool)
    return torch.from_numpy(grids), torch.from_numpy(given).view(-1, 16, 16)


def train(path: Path, steps: int, seed: int) -> None:
    """Train a network on both sizes and save its weights."""
    torch.set_num_threads(1)
    split = load_puzzles("csp/sudoku_hard_train.csv.gz", 3, 3)
    (puzzles,) = (part.training.first(9000) for part in split.values())
    torch.manual_seed(seed)
    solver = Solver(declare(3, 3), OPTIONS, {})
    large = Solver(declare(4, 4), replace(OPTIONS, pool=LARGE_POOL), {})
    mixture = Mixture((puzzles.grids, puzzles.given), sixteen_to_train(), large)
    started = time.process_time()
    unn.fit(
        solver,
        mixture.draw,
        steps=steps,
        loss=mixture.loss,
        batch=48,
        rate=6e-3,
        warmup=0.03,
        ema=0.998,
        seed=seed,
    )
    print(f"trained for {time.process_time() - started:.0f} CPU-seconds")
    save_file(solver.network.state_dict(), path)


def measure(network: GroupNetwork, puzzles: Puzzles, options: SolverOptions) -> dict[str, object]:
    """Shares of puzzles that a network solves in one try and in 8."""
    n = puzzles.cells.shape[1]
    solver = Solver(declare(puzzles.rows, n // puzzles.rows), options, {}).eval()
    solver.network = network
    given = {"X": unn.Partial(one_hot((puzzles.cells - 1).clamp(min=0), n), puzzles.cells > 0)}
    solving = SolvingOptions(tries=8, steps=256 if n == 9 else 512, at_once=256 if n == 9 else 32)
    solutions = unn.solve(solver, given, options=solving)
    grids = solutions["X"].argmax(-1) + 1
    right = torch.tensor([is_solution(c, g, puzzles.rows) for c, g in zip(puzzles.cells, grids, strict=True)])
    return {
        "solved in one try": float((solutions.solved & (solutions.tries == 1)).float().mean()),
        "solved in 8 tries": float(solutions.solved.float().mean()),
        "invalid": int((solutions.solved & ~right).sum()),
        "ms per puzzle": 1000 * solutions.seconds / len(grids),
    }


def test(path: Path, out: str, seed: int) -> None:
    """Compare weights with those of the package, with propagation and decimation and without."""
    torch.set_num_threads(1)
    _, packaged = open_trained("problems/sudoku/pretrained/sudoku-solver", "solver")
    control: GroupNetwork = packaged.network.network.eval()
    mixed = GroupNetwork(control.kinds, control.width).eval()
    mixed.load_state_dict(load_file(path))
    sets: list[Callable[[], Puzzles]] = [
        lambda: from_file("hard, 17-34 givens", "csp/sudoku_hard_valid.csv.gz", 1000),
        difficult,
        lambda: sixteen("medium", TESTED),
        lambda: twenty_five(0.6, 20),
        lambda: twenty_five(0.5, 20),
    ]
    ways = {
        "": OPTIONS,
        ", network alone": replace(OPTIONS, propagation="once", decimate_every=0),
    }
    with open(out, "w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for make in sets:
            puzzles = make()
            for way, options in ways.items():
                for name, network, trained in (
                    ("9 x 9 alone", control, 0),
                    ("9 x 9 and 16 x 16", mixed, seed),
                ):
                    figures = measure(network, puzzles, options)
                    row: dict[str, object] = {"set": puzzles.name, "trained on": name + way, "seed": trained}
                    row |= figures
                    if writer is None:
                        writer = csv.DictWriter(file, list(row), lineterminator="\n")
                        writer.writeheader()
                    writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
                    file.flush()
                    print(row, flush=True)


if __name__ == "__main__":
    out, steps, seed, *parts = sys.argv[1:]
    weights = Path(out).with_suffix(".safetensors")
    if parts != ["test"]:
        train(weights, int(steps), int(seed))
    if parts != ["train"]:
        test(weights, out, int(seed))
