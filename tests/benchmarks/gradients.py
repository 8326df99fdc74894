"""Gradients through k rounds, and at the fixed point: error, memory and time on three graphs.

    python -m tests.benchmarks.gradients docs/results/gradients.csv

The reference is the implicit gradient at a fixed point to 1e-12, in float64. Losses are half the squared
error of what is inferred.
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import unn
from factors import Multilinear, bounded_attention
from problems.digits.network import declare
from tests.benchmarks.measure import one_thread, peak_memory

ROUNDS = (1, 3, 10, 30, 100, 300, 1000)
FIELDS = ["graph", "gradient", "rounds", "error", "cosine", "memory (MB)", "time (ms)"]


@dataclass(frozen=True)
class Study:
    """A graph, what is given, and what is inferred.

    Attributes:
        name: for the table.
        graph: the declaration, in float64.
        inputs: values of the given variables.
        given, want: names.
        order: order of a round.
        target: of the loss.
    """

    name: str
    graph: unn.FactorGraph
    inputs: tuple[Tensor | unn.Partial, ...]
    given: tuple[str, ...]
    want: str
    order: unn.Order | list[str]
    target: Tensor

    def network(self, gradient: unn.Gradient, rounds: int) -> unn.Unrolled:
        """The network of some rounds."""
        return unn.Unrolled(
            self.graph, self.given, self.want, self.order, iterations=rounds, gradient=gradient
        )

    def gradient(self, network: unn.Unrolled) -> Tensor:
        """The gradient of the loss for all parameters, side by side."""
        for parameter in self.graph.parameters():
            parameter.grad = None
        output = network(*self.inputs)
        assert isinstance(output, Tensor)
        ((output - self.target) ** 2).sum().div(2).backward()
        return torch.cat([p.grad.flatten() for p in self.graph.parameters() if p.grad is not None])


def convolutional() -> Study:
    """The network of the digits for images of 8 x 8 pixels: labels from images."""
    graph = declare(8, 8, 8).double()
    labels = torch.eye(10, dtype=torch.float64)[torch.arange(16) % 10]
    images = torch.rand(16, 1, 8, 8, dtype=torch.float64) * 2 - 1
    return Study(
        "convolutional network", graph, (images,), ("image",), "label", ["H1", "H2", "label"], labels
    )


def attention() -> Study:
    """Bounded attention over 8 positions, two of them missing."""
    graph = unn.FactorGraph("attention", d=16)
    X = graph.variable("X", "n d", unn.SquaredNorm())
    declared = bounded_attention(graph, X, heads=2)
    graph.double()
    x = torch.randn(16, 8, 16, dtype=torch.float64)
    known = (torch.arange(8) % 4 != 1)[None, :, None].expand(16, 8, 16)
    order = unn.ForwardBackward(declared.order, last="X")
    return Study(
        "bounded attention", graph, (unn.Partial(x, known),), ("X",), "X", order, torch.zeros_like(x)
    )


def contraction() -> Study:
    """Two layers whose couplings are scaled to a spectral radius of 0.9."""
    graph = unn.FactorGraph("layers", x=16, a=32, b=32)
    X, A, B = (graph.variable(n, a, unn.SignedEntropy()) for n, a in (("X", "x"), ("A", "a"), ("B", "b")))
    graph.factor(Multilinear(X["i"], graph.parameter("W", "x a", init=1.0)["i j"], A["j"]))
    graph.factor(Multilinear(A["j"], graph.parameter("V", "a b", init=1.0)["j k"], B["k"]))
    graph.double()
    x = torch.rand(16, 16, dtype=torch.float64) * 2 - 1
    unn.spectral_normalise(graph, 0.9, {"X": x[:1]})
    return Study(
        "contraction", graph, (x,), ("X",), "B", ["A", "B"], torch.zeros(16, 32, dtype=torch.float64)
    )


def rows(study: Study, rounds: Sequence[int] = ROUNDS) -> list[dict[str, str]]:
    """Measure all ways to differentiate one graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", unn.ConvergenceWarning)
        exact = study.gradient(study.network(unn.Implicit(1e-12), 20_000))
    made: list[tuple[str, int, Callable[[], unn.Gradient]]] = []
    for k in rounds:
        made += [("unrolled", k, unn.Unroll), ("last round", k, lambda: unn.Truncate(1))]
    for tolerance in (1e-2, 1e-4, 1e-8):
        made.append((f"implicit, {tolerance:g}", 20_000, lambda tolerance=tolerance: unn.Implicit(tolerance)))
        made.append(
            (
                f"implicit, {tolerance:g}, Anderson",
                20_000,
                lambda tolerance=tolerance: unn.Implicit(tolerance, "anderson"),
            )
        )
    table = []
    for name, k, make in made:
        network = study.network(make(), k)
        gradient = study.gradient(network)
        started = time.process_time()
        for _ in range(3):
            study.gradient(network)
        seconds = (time.process_time() - started) / 3
        memory = peak_memory(lambda network=network: study.gradient(network))
        error = float((gradient - exact).norm() / exact.norm())
        cosine = float(torch.cosine_similarity(gradient, exact, 0))
        number = k if network.equilibrium is None else network.equilibrium.rounds
        numbers = [
            str(number),
            f"{error:.2g}",
            f"{cosine:.4f}",
            f"{memory / 1e6:.1f}",
            f"{1e3 * seconds:.1f}",
        ]
        table.append(dict(zip(FIELDS, [study.name, name, *numbers], strict=True)))
        print(*table[-1].values(), sep=", ", flush=True)
    return table


def main(path: str) -> None:
    """Measure and write the table."""
    table: list[dict[str, str]] = []
    with one_thread():
        for make in (convolutional, attention, contraction):
            torch.manual_seed(0)
            table += rows(make())
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
