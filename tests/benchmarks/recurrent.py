"""Train the recurrent transformer on puzzles of sudoku for some seconds; on a GPU a step is one CUDA graph.

    UNN_DATA=... python -m tests.benchmarks.recurrent WEIGHTS --puzzles FILE --seconds 500
    UNN_DATA=... python -m tests.benchmarks.recurrent WEIGHTS --puzzles FILE

A step launches thousands of small kernels, which takes a GPU longer than to run them; a captured step is
launched once. Examples are the training puzzles under random symmetries, made on the device. Without
``--seconds`` the saved weights solve held-out puzzles by one try and by eight, without propagation, and the
cells that attend to one another are measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import unn
from problems.sudoku.grids import declare, move_grids, one_hot
from problems.sudoku.puzzles import Puzzles, load_puzzles, merge_puzzles
from unn.engine import SolvingOptions
from unn.recurrent.model import RecurrentModel
from unn.recurrent.options import RecurrentOptions

TRAINED, TESTED = 9000, 1000
"""Puzzles of each file for training, as many as in the paper, and for the test."""
CHUNK = 100
"""Batches that are made at a time."""
WARMUP = 0.01
HELD = 0.6
"""Shares of the time in which the rate rises, and until it begins to fall to 0."""


@dataclass(frozen=True)
class Schedule:
    """Time and rate of a training.

    Attributes:
        seconds: time of the training.
        batch: puzzles in a step.
        rate: rate of AdamW between warm-up and decay.
        bfloat16: mixed precision.
    """

    seconds: float
    batch: int = 256
    rate: float = 1e-3
    bfloat16: bool = True

    def rate_at(self, share: float) -> float:
        """Rate after a share of the time."""
        return self.rate * max(0.0, min(share / WARMUP, 1.0, (1 - share) / (1 - HELD)))


def optimizer_of(model: nn.Module, rate: float, captured: bool) -> torch.optim.AdamW:
    """AdamW of the paper: weight decay of matrices alone. A captured step reads its rate from a tensor."""
    device = next(model.parameters()).device
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "position" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "position" in name]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    start = torch.tensor(rate, device=device) if captured else rate
    return torch.optim.AdamW(groups, lr=start, betas=(0.9, 0.95), capturable=captured)


def step_of(
    model: RecurrentModel, optimizer: torch.optim.Optimizer, rows: Tensor, nodes: Tensor, bfloat16: bool
) -> Callable[[], Tensor]:
    """A training step on the values that ``rows`` and ``nodes`` have when it is called; returns the loss.

    Args:
        model: in training mode.
        optimizer: of its parameters; capturable on a GPU.
        rows: values, shape ``(batch, numbers)``.
        nodes: mask of given nodes, shape ``(batch, nodes)``.
        bfloat16: mixed precision.
    """
    labelled = torch.ones(len(rows), dtype=torch.bool, device=rows.device)

    def step() -> Tensor:
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=bfloat16):
            loss = model.loss_of_rows(rows, nodes, labelled)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=rows.is_cuda)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    if not rows.is_cuda:
        return step
    # the steps before a capture allocate what stays, on a stream of their own
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""Draws examples on the device of a generator: values, shape ``(count, numbers)``, and masks of given nodes,
shape ``(count, nodes)``."""


def draw_of(puzzles: Puzzles, block: tuple[int, int], device: torch.device) -> Draw:
    """Draws puzzles under random symmetries."""
    grids, given = puzzles.grids.to(device), puzzles.given.to(device)

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(grids), (count,), generator=generator, device=device)
        moved, mask = move_grids(grids[chosen], given[chosen], *block, generator)
        assert mask is not None
        return one_hot(moved, grids.shape[1]).flatten(1), mask.flatten(1)

    return draw


def write_weights(model: nn.Module, path: Path) -> None:
    """Write the weights under their names."""
    save_file({name: x.cpu().contiguous() for name, x in model.state_dict().items()}, path)


def train(model: RecurrentModel, draw: Draw, schedule: Schedule, seed: int, path: Path) -> int:
    """Train for some seconds, after the capture, and write the weights now and then; return the number of
    steps."""
    device = model.network.position.device
    generator = torch.Generator(device).manual_seed(seed)

    def chunk() -> list[Tensor]:
        examples = draw(CHUNK * schedule.batch, generator)
        return [x.unflatten(0, (CHUNK, schedule.batch)) for x in examples]

    model.train()
    optimizer = optimizer_of(model, schedule.rate_at(1e-6), device.type == "cuda")
    first = chunk()
    rows, nodes = first[0][0].clone(), first[1][0].clone()
    step = step_of(model, optimizer, rows, nodes, schedule.bfloat16)
    started, done, share = time.perf_counter(), 0, 0.0
    while share < 1:
        batches = chunk()
        total = torch.zeros((), device=device)
        for k in range(CHUNK):
            share = (time.perf_counter() - started) / schedule.seconds
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(schedule.rate_at(share))
                else:
                    group["lr"] = schedule.rate_at(share)
            rows.copy_(batches[0][k])
            nodes.copy_(batches[1][k])
            total += step()
            done += 1
            if share >= 1:
                break
        # reading the loss keeps the program beside the device
        loss = float(total) / (k + 1) / model.options.recurrences
        if done // CHUNK % 20 == 1 or share >= 1:
            seconds = time.perf_counter() - started
            print(f"{seconds:6.0f} s  step {done}  loss of an output {loss:.4f}", flush=True)
            write_weights(model, path)
    return done


def attention_shares(model: RecurrentModel, puzzles: Puzzles, block: tuple[int, int]) -> dict[str, Tensor]:
    """Attention of empty cells to the cells of their row, column and block, and to all these neighbours.

    A cell is its own neighbour. Each share is a mean over the recurrences of training, shape ``(heads,)``.
    """
    n = puzzles.grids.shape[1]
    row, column = torch.arange(n * n) // n, torch.arange(n * n) % n
    places = {
        "row": row,
        "column": column,
        "block": row // block[0] * n + column // block[1],
    }
    near = {name: place[:, None] == place for name, place in places.items()}
    near["neighbours"] = near["row"] | near["column"] | near["block"]
    tokens = torch.where(puzzles.given, puzzles.grids + 1, 0).flatten(1)
    network, recurrences = model.network.eval(), model.options.recurrences
    shares = {name: torch.zeros(model.options.heads) for name in near}
    with torch.no_grad():
        embedded = state = network.embed(tokens)
        for _ in range(recurrences):
            (hidden,) = network.recur(embedded, state, None, True)
            assert hidden.attention is not None
            # empty cells of all puzzles, by head
            attention = hidden.attention.softmax(-1).transpose(1, 2)[tokens == 0]
            for name, cells in near.items():
                seen = cells.expand(len(tokens), -1, -1)[tokens == 0]
                shares[name] += (attention * seen[:, None]).sum(-1).mean(0) / recurrences
            state = hidden.state
    return shares


def test(model: RecurrentModel, puzzles: Puzzles, block: tuple[int, int]) -> None:
    """Print the shares of puzzles that are solved, as they are and by verified tries, and of attention."""
    n = puzzles.grids.shape[1]
    X = one_hot(puzzles.grids, n)
    evidence = {"X": unn.Partial(X, puzzles.given)}
    for steps in (model.options.recurrences, model.options.solving_steps):
        values = model.infer_values(evidence, len(X), {}, iterations=steps)["X"]
        equal = values.argmax(-1) == puzzles.grids
        cells = float(equal[~puzzles.given].float().mean())
        print(
            f"{steps} recurrences: {float(equal.flatten(1).all(1).float().mean()):.4f} of {len(X)} boards, "
            f"{cells:.4f} of the empty cells"
        )
    for tries in (1, 8):
        answers = unn.solve(model, evidence, options=SolvingOptions(tries=tries))
        wrong = answers.solved & (answers["X"].argmax(-1) != puzzles.grids).flatten(1).any(1)
        print(
            f"{tries} tries: {float(answers.solved.float().mean()):.4f} verified, {int(wrong.sum())} of them "
            f"another solution, {answers.seconds:.0f} s"
        )
    for name, shares in attention_shares(model, puzzles.first(64), block).items():
        heads = " ".join(f"{share:.2f}" for share in shares.tolist())
        print(f"attention of empty cells to their {name}, by head: {heads}; mean {float(shares.mean()):.3f}")


def fit(
    model: RecurrentModel,
    draw: Callable[[torch.device], Draw],
    schedule: Schedule,
    chosen: argparse.Namespace,
) -> None:
    """Train on the GPU where there is one, and write the weights.

    Args:
        model: with its first weights.
        draw: makes the draws of examples on a device.
        schedule: time and rate.
        chosen: what ``arguments`` has read.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}", flush=True)
    if chosen.compile:
        # in place, so that the weights have the same names
        for part in model.network.blocks:
            part.compile()
    train(model.to(device), draw(device), schedule, chosen.seed, chosen.weights)


def arguments() -> argparse.ArgumentParser:
    """Arguments of a training by time, or of a test without ``--seconds``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--recurrences", type=int, default=32)
    parser.add_argument("--position-deviation", type=float, default=0.0)
    parser.add_argument("--dropout", type=float, default=0.1)
    return parser


def options_of(chosen: argparse.Namespace) -> RecurrentOptions:
    """Options of the network; twice as many recurrences in the test as in training."""
    return RecurrentOptions(
        width=chosen.width,
        recurrences=chosen.recurrences,
        position_deviation=chosen.position_deviation,
        dropout=chosen.dropout,
        solving_steps=2 * chosen.recurrences,
    )


def main(chosen: argparse.Namespace) -> None:
    """Train and save weights, or test saved ones if no time is given."""
    torch.manual_seed(chosen.seed)
    block = tuple(chosen.block)
    model = RecurrentModel(declare(*block), options_of(chosen), {})
    splits = load_puzzles(chosen.puzzles, *block).values()
    schedule = Schedule(chosen.seconds, chosen.batch, chosen.rate)
    if schedule.seconds:
        puzzles = merge_puzzles([s.training.first(TRAINED) for s in splits])
        fit(model, lambda device: draw_of(puzzles, block, device), schedule, chosen)
    else:
        model.load_state_dict(load_file(chosen.weights))
        test(model.eval(), merge_puzzles([s.held_out.first(TESTED) for s in splits]), block)


if __name__ == "__main__":
    parser = arguments()
    parser.add_argument("--puzzles", required=True)
    parser.add_argument("--block", type=int, nargs=2, default=(3, 3))
    main(parser.parse_args())
