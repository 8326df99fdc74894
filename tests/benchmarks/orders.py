"""Energy against updates and against time, for every order on six graphs.

    python -m tests.benchmarks.orders docs/results/orders.csv docs/results/orders.png

All orders start from the same values of eight examples. Reported are the updates, and the processor time,
after which their mean energy is within a thousandth, and a millionth, of its whole decrease above the end of
the run, and the energy there. The picture has how far the mean energy is above the lowest that any order
reaches on the graph, as a share of the size of that energy.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import unn
from factors import Multilinear, associative_memory, bounded_attention
from problems.digits.network import declare
from tests.benchmarks.equilibrium import cells, grid
from tests.benchmarks.measure import one_thread
from unn.draw import LIGHT, save_figure
from unn.draw.theme import add_title, line_style, new_figure, style_axes

FIELDS = ["graph", "order", "updates to 1e-3", "ms to 1e-3", "updates to 1e-6", "ms to 1e-6", "energy"]
BATCH = 8
ROUNDS = 3000


@dataclass(frozen=True)
class Study:
    """A graph and its blocks.

    Attributes:
        name: for the table.
        graph: the declaration.
        given: evidence of a batch of examples.
        blocks: in the order of the list.
        start: initial values by name.
    """

    name: str
    graph: unn.FactorGraph
    given: Mapping[str, Tensor | unn.Partial]
    blocks: list[str | unn.Block]
    start: Mapping[str, Tensor | str] = field(default_factory=dict)


def studies() -> list[Study]:
    """Six graphs with random weights, all bounded below."""
    torch.manual_seed(0)
    layers = unn.FactorGraph("layers", a=32, b=32, c=32, d=32)
    variables = [
        layers.variable(name, axis, unn.SignedEntropy()) for name, axis in zip("ABCD", "abcd", strict=True)
    ]
    for one, other, axes in zip(variables, variables[1:], ("a b", "b c", "c d"), strict=False):
        weight = layers.parameter(f"W_{one.name}", axes, init=0.25)
        layers.factor(Multilinear(one["i"], weight["i j"], other["j"]))
    image = torch.rand(BATCH, 32) * 2 - 1

    chain = unn.FactorGraph("chain", n=48)
    x = chain.variable("x", "n", unn.SquaredNorm())
    chain.factor(Multilinear(x["i"], x["i+1"], chain.constant("w", "", torch.tensor(0.45))[""]))
    chain.factor(Multilinear(chain.constant("field", "n", torch.randn(48))["i"], x["i"]))
    places = [unn.Block("x", torch.arange(48) == k) for k in range(48)]

    attention = unn.FactorGraph("attention", d=32)
    X = attention.variable("X", "n d", unn.SquaredNorm())
    declared = bounded_attention(attention, X, heads=4)
    known = (torch.arange(12) % 4 != 1)[None, :, None].expand(BATCH, 12, 32)
    words = unn.Partial(torch.randn(BATCH, 12, 32), known)

    memory = unn.FactorGraph("memory", m=20, d=64)
    state = memory.variable("state", "d", unn.SquaredNorm())
    patterns = torch.randn(20, 64) / 3
    recall = associative_memory(memory, state, memory.constant("M", "m d", patterns))
    queries = patterns[:BATCH] + 0.3 * torch.randn(BATCH, 64)
    conv = declare(8, 8, 8)
    return [
        Study("four layers", layers, {"A": image}, ["B", "C", "D"]),
        Study(
            "convolutional network",
            conv,
            {"image": torch.rand(BATCH, 1, 8, 8) * 2 - 1},
            ["H1", "H2", "label"],
        ),
        Study("bounded attention", attention, {"X": words}, [*declared.order, "X"]),
        Study("associative memory", memory, {}, list(recall.order), {"state": queries}),
        Study("Ising grid, 64 nodes", grid(8), {}, cells(8), {"S": 0.2 * torch.rand(BATCH, 8, 8)}),
        Study("Gaussian chain, 48 nodes", chain, {}, places, {"x": torch.randn(BATCH, 48)}),
    ]


def orders(study: Study) -> dict[str, tuple[unn.Order | list[str | unn.Block], str]]:
    """Orders by name, each with its solver."""
    blocks = study.blocks
    names = [block for block in blocks if isinstance(block, str)]
    made: dict[str, tuple[unn.Order | list[str | unn.Block], str]] = {"list": (blocks, "rounds")}
    if len(names) > 2:
        made["forward-backward"] = (unn.ForwardBackward(names), "rounds")
    if names:
        made["random"] = (unn.RandomOrder(names), "rounds")
    else:
        made["coloured"] = (unn.Coloured(blocks), "rounds")
    made["greedy"] = (unn.Greedy(blocks), "rounds")
    made["list, Anderson"] = (blocks, "anderson")
    return made


def run(
    study: Study, order: unn.Order | list[str | unn.Block], solver: str, trace: bool, until: float
) -> unn.Solution:
    """One run from the start of the study."""
    return unn.infer(
        study.graph,
        study.given,
        order=order,
        initial=study.start or None,
        until=until,
        iterations=ROUNDS,
        solver=solver,
        trace=trace,
        generator=torch.Generator().manual_seed(0),
    )


def measured(make: Callable[[], object]) -> float:
    """Processor time of one call in milliseconds, the best of three."""
    times = []
    for _ in range(3):
        started = time.process_time()
        make()
        times.append(time.process_time() - started)
    return 1e3 * min(times)


@dataclass(frozen=True)
class Curve:
    """The mean energy after each update of one order on one graph.

    Attributes:
        study, order: names for the table.
        energy: mean energy over the examples, infinite before all variables have values, shape
            ``(updates,)``.
        milliseconds: processor time of an update.
    """

    study: str
    order: str
    energy: Tensor
    milliseconds: float


def curve(study: Study, name: str, order: unn.Order | list[str | unn.Block], solver: str) -> Curve:
    """Run one order on one graph."""
    with torch.no_grad():
        out = run(study, order, solver, True, 1e-6)
        milliseconds = measured(lambda: run(study, order, solver, False, 1e-6)) / out.updates
    assert out.energy is not None
    return Curve(study.name, name, out.energy.mean(1), milliseconds)


def row(own: Curve) -> dict[str, str]:
    """Figures of one order on one graph."""
    energy = own.energy
    finite = energy.isfinite().nonzero()[:, 0]
    first, last = energy[finite[0]], energy[-1]
    figures: list[str] = []
    for share in (1e-3, 1e-6):
        close = (energy - last <= share * (first - last)).nonzero()[:, 0]
        number = int(close[0]) + 1
        figures += [str(number), f"{number * own.milliseconds:.3g}"]
    values = [own.study, own.order, *figures, f"{float(last):.5g}"]
    print(*values, sep=", ", flush=True)
    return dict(zip(FIELDS, values, strict=True))


def draw(curves: list[Curve], path: Path) -> None:
    """Energies above the lowest of each graph against updates, and against time."""
    names = list(dict.fromkeys(c.study for c in curves))
    labels = list(dict.fromkeys(c.order for c in curves))
    figure = new_figure(LIGHT, 7.2, 1.7 * len(names))
    grid = figure.subplots(len(names), 2, squeeze=False)
    for panels, name in zip(grid, names, strict=True):
        own = [c for c in curves if c.study == name]
        lowest = min(float(c.energy[-1]) for c in own)
        for axes, unit in zip(panels, ("updates", "milliseconds"), strict=True):
            style_axes(axes, LIGHT)
            add_title(axes, LIGHT, name)
            for c in own:
                places = c.energy.isfinite().nonzero()[:, 0]
                gap = (c.energy[places] - lowest).clamp(min=1e-7 * abs(lowest)) / abs(lowest)
                x = (places + 1) * (1 if unit == "updates" else c.milliseconds)
                style = line_style(LIGHT, labels.index(c.order))
                axes.plot(x.numpy(), gap.numpy(), label=c.order, **style)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel(unit, parse_math=False)
        panels[0].set_ylabel("energy above lowest", parse_math=False)
    handles = {}
    for axes in grid[:, 0]:
        handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        handles.values(), handles.keys(), fontsize=7, frameon=False, loc="outside upper center", ncols=6
    )
    save_figure(figure, path)


def main(path: str, picture: str) -> None:
    """Measure, and write the table and the picture."""
    with one_thread():
        curves = [
            curve(study, name, order, solver)
            for study in studies()
            for name, (order, solver) in orders(study).items()
        ]
    table = [row(own) for own in curves]
    draw(curves, Path(picture))
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
