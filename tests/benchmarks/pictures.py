"""Train the recurrent transformer on pictures for some seconds; on a GPU a step is one CUDA graph.

    UNN_DATA=... python -m tests.benchmarks.pictures WEIGHTS --pictures csp/nonogram7.npz --size 7
        --seconds 300
    UNN_DATA=... python -m tests.benchmarks.pictures WEIGHTS --pictures csp/nonogram7.npz --size 7

The training is that of ``tests.benchmarks.recurrent``, with the training pictures of the file, moved at
random. Without ``--seconds`` the saved weights, also those of a run of ``unn train pictures``, paint the
test pictures from their runs, and as many training pictures and pictures of random pixels that their runs
determine.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from safetensors.torch import load_file
from torch import Tensor

from problems.pictures.files import load_pictures
from problems.pictures.graph import declare, draw_determined, move_pictures, values_of
from problems.pictures.problem import PicturesConfig, PicturesProblem
from tests.benchmarks.recurrent import Draw, Schedule, arguments, fit, options_of
from unn.extending import Query
from unn.recurrent.model import RecurrentModel

MOVED = 8
"""Random movements of each training picture, of which one is drawn."""


def draw_of(model: RecurrentModel, pictures: Tensor, device: torch.device) -> Draw:
    """Draws pictures with their runs, of which the runs are given.

    Args:
        model: the network.
        pictures: 1 for black cells, shape ``(pictures, rows, columns)``.
        device: device of the network.
    """
    moved = move_pictures(pictures.repeat(MOVED, 1, 1), torch.Generator().manual_seed(0))
    rows = model.layout.frame.flatten(values_of(moved)).to(device)
    given = {
        name: torch.ones(1, count, dtype=torch.bool)
        for name, count in zip(("rows", "columns"), pictures.shape[1:], strict=True)
    }
    nodes = model.layout.frame.observed_nodes(given, 1).to(device)

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(rows), (count,), generator=generator, device=device)
        return rows[chosen], nodes.expand(count, -1)

    return draw


def test(model: RecurrentModel, name: str, pictures: Tensor) -> None:
    """Print the shares of pictures that are painted right, by the number of recurrences."""
    values = values_of(pictures)
    query = Query({name: values[name] for name in ("rows", "columns")}, values)
    config = PicturesConfig(rows=pictures.shape[1], columns=pictures.shape[2])
    for steps in (model.options.recurrences, model.options.solving_steps):
        answers = model.infer_values(query.given, len(pictures), {}, iterations=steps)
        figures = PicturesProblem().metrics(config, query, answers)
        shares = ", ".join(f"{figure} {share:.4f}" for figure, share in figures.items())
        print(f"{len(pictures)} {name} pictures, {steps} recurrences: {shares}")


def main(chosen: argparse.Namespace) -> None:
    """Train and save weights, or test saved ones if no time is given."""
    torch.manual_seed(chosen.seed)
    size = chosen.size
    model = RecurrentModel(declare(size, size), replace(options_of(chosen), structure="graph"), {})
    pictures = load_pictures(chosen.pictures, size, size)
    schedule = Schedule(chosen.seconds, chosen.batch, chosen.rate)
    if schedule.seconds:
        fit(model, lambda device: draw_of(model, pictures.training, device), schedule, chosen)
    else:
        model.load_state_dict(load_file(chosen.weights))
        count, generator = len(pictures.test), torch.Generator().manual_seed(0)
        test(model.eval(), "test", pictures.test)
        test(model, "training", pictures.training[:count])
        test(model, "random", draw_determined(count, size, size, generator))


if __name__ == "__main__":
    parser = arguments()
    parser.add_argument("--pictures", required=True)
    parser.add_argument("--size", type=int, required=True, help="rows and columns")
    parser.set_defaults(batch=128, rate=8e-4, recurrences=12, position_deviation=0.2)
    main(parser.parse_args())
