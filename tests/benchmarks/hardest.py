"""Train the solver for some seconds on puzzles that are difficult for search, and test the network alone.

    UNN_DATA=... python -m tests.benchmarks.hardest WEIGHTS --puzzles FILE [FILE ...] --seconds 300
        [--start WEIGHTS] [--breadth 8]
    UNN_DATA=... python -m tests.benchmarks.hardest WEIGHTS --test FILE [--count 500]

An example is drawn from each file with the same probability; ``tests.benchmarks.difficult`` draws difficult
puzzles. The test counts verified answers by the number of tries without decimation, so that nothing but the
network searches, and verifies them again by the rules.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unn
from problems.reading import locate, read_text
from problems.sudoku.files import read_puzzles
from problems.sudoku.grids import declare, one_hot, violated_pairs
from problems.sudoku.puzzles import Puzzles, load_puzzles, merge_puzzles
from tests.benchmarks.recurrent import write_weights
from unn.extending import SolvingOptions

BLOCK = (3, 3)
MOST = 9000
"""Puzzles of a file with easy ones; files of ``tests.benchmarks.difficult`` are taken as a whole."""
ENTERING = 4
"""Examples that wait to enter the pool in an update: this share of the pool, one in so many."""
WARMUP, HELD = 0.01, 0.3
"""Shares of the time in which the rate rises, and until it falls."""
AVERAGE = 0.998
"""Decay of the mean of the weights."""
TRIES = (1, 8, 64)


@dataclass(frozen=True)
class Schedule:
    """Time and rate of a training.

    Attributes:
        seconds: time of the training.
        rate: rate of Adam between its rise and its fall.
        last: share of the rate that is left at the end.
        seed: of the weights, the states and the examples.
    """

    seconds: float
    rate: float
    last: float = 0.03
    seed: int = 0

    def rate_at(self, share: float) -> float:
        """Rate after a share of the time: it rises, rests, and falls as a cosine."""
        fallen = (1 - math.cos(math.pi * min(1.0, max(0.0, share - HELD) / (1 - HELD)))) / 2
        return self.rate * min(1.0, share / WARMUP) * (1 - (1 - self.last) * fallen)


def draw(sets: list[Puzzles], count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Values of random puzzles, shape ``(count, 9, 9, 9)``, and masks of their given cells."""
    of_set = torch.randint(len(sets), (count,), generator=generator)
    parts = [
        Puzzles(s.grids[places], s.given[places])
        for k, s in enumerate(sets)
        for places in [torch.randint(len(s.grids), (int((of_set == k).sum()),), generator=generator)]
    ]
    puzzles = merge_puzzles(parts)
    mixed = torch.randperm(count, generator=generator)
    return one_hot(puzzles.grids[mixed], 9), puzzles.given[mixed]


def train(model: unn.Solver, sets: list[Puzzles], schedule: Schedule, path: Path) -> tuple[nn.Module, int]:
    """Train for some seconds; return the mean of the weights, which is also written to ``path`` now and then,
    and the number of updates."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), foreach=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    generator = torch.Generator().manual_seed(schedule.seed)
    model.train()
    started, updates, share = time.perf_counter(), 0, 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(share)
        X, given = draw(sets, max(16, model.options.pool // model.options.breadth // ENTERING), generator)
        loss = model.loss({"X": X}, {"X": given})
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        updates += 1
        share = (time.perf_counter() - started) / schedule.seconds
        if updates % 500 == 0:
            print(f"{updates:,} updates, {100 * share:.0f}%: loss {float(loss.detach()):.4f}", flush=True)
            write_weights(average.module, path)
    return average.module, updates


def test(model: unn.Solver, file: str, count: int, numbers_of_tries: Sequence[int]) -> None:
    """Print the share of puzzles that are verified by the number of tries.

    Args:
        model: the network.
        file: puzzles, looked up in ``$UNN_DATA`` if missing.
        count: number of puzzles, spread evenly over the file; 0 for all.
        numbers_of_tries: numbers of tries, each begun anew.
    """
    every = read_puzzles(read_text(locate(file), "puzzles"), *BLOCK, file)
    step = max(1, len(every) // count) if count else 1
    puzzles = torch.tensor(every[::step][: count or None]).view(-1, 9, 9)
    given = puzzles > 0
    X = one_hot((puzzles - 1).clamp(min=0), 9)
    for tries in numbers_of_tries:
        answers = unn.solve(model, {"X": unn.Partial(X, given)}, options=SolvingOptions(tries=tries))
        grids = answers["X"].argmax(-1)
        right = (violated_pairs(grids, *BLOCK) == 0) & ((grids + 1 == puzzles) | ~given).flatten(1).all(1)
        print(
            f"{tries} tries: {float(answers.solved.float().mean()):.3f} of {len(X)} puzzles verified, "
            f"{int((answers.solved & ~right).sum())} of them wrong, {answers.seconds:.0f} s",
            flush=True,
        )


def main(
    weights: Path,
    start: Path | None,
    files: list[str],
    tested: str | None,
    count: int,
    numbers_of_tries: Sequence[int],
    options: unn.SolverOptions,
    schedule: Schedule,
) -> None:
    """Train, from other weights if there are any, and save weights if there are files of puzzles, and test
    them if there is one to test."""
    torch.manual_seed(schedule.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = unn.Solver(declare(*BLOCK), options, {}).to(device)
    if start is not None:
        model.load_state_dict(load_file(start))
    if files:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}", flush=True)
        splits = [split for file in files for split in load_puzzles(file, *BLOCK).values()]
        sets = [split.training.first(MOST if k == 0 else None) for k, split in enumerate(splits)]
        average, updates = train(model, sets, schedule, weights)
        print(f"{updates:,} updates", flush=True)
        model.load_state_dict(average.state_dict())
        write_weights(model, weights)
    else:
        model.load_state_dict(load_file(weights))
    if tested is not None:
        test(model.eval(), tested, count, numbers_of_tries)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("--puzzles", nargs="*", default=[], help="the first file: its first 9,000 puzzles")
    parser.add_argument("--test", help="file of puzzles")
    parser.add_argument("--count", type=int, default=0, help="number of puzzles of the test; 0 for all")
    parser.add_argument("--tries", type=int, nargs="+", default=list(TRIES))
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--start", type=Path, help="weights with which training begins")
    parser.add_argument("--pool", type=int, default=256)
    parser.add_argument("--breadth", type=int, default=1)
    parser.add_argument("--oldest", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--last", type=float, default=0.03, help="share of the rate that is left at the end")
    parser.add_argument("--solving-steps", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    main(
        chosen.weights,
        chosen.start,
        chosen.puzzles,
        chosen.test,
        chosen.count,
        chosen.tries,
        unn.SolverOptions(
            width=chosen.width,
            pool=chosen.pool,
            breadth=chosen.breadth,
            oldest=chosen.oldest,
            solving_steps=chosen.solving_steps,
            decimate_every=0,
        ),
        Schedule(chosen.seconds, chosen.rate, chosen.last, chosen.seed),
    )
