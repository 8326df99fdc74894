"""How fast attention over a graph is: its kernels against one another on the graphs of the
structured-diffusion paper, and how its cost grows.

Run as ``python -m tests.benchmarks.attention [--quick] [--only NAME]``, or as a section of ``unn bench``.
Every time is that of the output and of the gradients of query, key and value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

import unn
from problems.boolean import graph as boolean
from problems.factorisation import graph as factorisation
from problems.sorting import graph as sorting
from problems.sudoku import grids as sudoku
from tests.benchmarks import measure as bench
from tests.benchmarks.core import report
from tests.benchmarks.measure import Case, Figure, Run
from unn.ops.attention import AttentionMask, attention

KERNELS = ("dense", "relational", "sparse", "packed")

NOTES = {
    "packed": "packed: the neighbours of each node, padded to the widest row, as the structured-diffusion "
    "paper computes (Appendix C)",
    "dense": "dense: scaled_dot_product_attention with a boolean mask",
    "best": "best: of dense, relational and sparse, the fastest in a trial",
}

CHOICES = ("dense", "relational", "sparse")
"""Kernels that can be the fastest on a processor."""

CHOICE_BATCHES = (1, 2, 4, 8)
"""Batches in which "auto" is compared with the fastest kernel."""

DEEP, SHALLOW = 16, 13
"""Layers of gates of the circuits whose costs are compared."""


@dataclass(frozen=True)
class Setting:
    """A graph and the sizes of the denoiser that the paper trains on it.

    Attributes:
        name: for the tables.
        graph: declares it.
        sizes: of its axes.
        heads: how many.
        width: of a head.
        batch: examples at once, beside one alone.
        faster_than_packed: the largest share of the time of the packed kernel that "auto" may take; None if
            any.
        faster_than_dense: the same of the dense kernel.
        choice: the largest ratio of the time of "auto" to that of the fastest kernel; None if any.
    """

    name: str
    graph: Callable[[], unn.FactorGraph]
    sizes: dict[str, int]
    heads: int
    width: int
    batch: int
    faster_than_packed: float | None = None
    faster_than_dense: float | None = None
    choice: float | None = None


def settings() -> list[Setting]:
    """The graphs of the paper; in batches of four for sudoku, of which the packed kernel takes 32 too
    slowly."""
    grids = [
        Setting(f"sudoku {n * n}x{n * n}", partial(sudoku.declare, n, n), {}, 8, 16, 4, choice=1.2)
        for n in (3, 4, 5)
    ]
    products = {"i": 16, "j": 10, "k": 8}
    return [
        *grids,
        Setting("sorting 20", partial(sorting.declare, 20, True, "chain"), {}, 8, 8, 16, 1 / 6, 1 / 2.5, 1.2),
        Setting(
            "factorisation 16x10x8",
            partial(factorisation.declare, "binary", True),
            products,
            2,
            32,
            8,
            1 / 6,
            1 / 2.5,
            1.2,
        ),
        Setting("circuit of depth 10", partial(boolean.declare, 10, True), {}, 2, 32, 16),
    ]


def forward_backward(
    mask: AttentionMask, kernel: str, batch: int, heads: int, width: int
) -> Callable[[], tuple[Tensor, ...]]:
    """The output, and the gradients of query, key and value in a fixed direction."""
    generator = torch.Generator().manual_seed(0)
    *given, slope = (torch.randn(batch, heads, mask.count, width, generator=generator) for _ in range(4))
    for x in given:
        x.requires_grad_()

    def call() -> tuple[Tensor, ...]:
        out = attention(*given, mask, kernel)
        return (out.detach(), *torch.autograd.grad(out, given, slope))

    return call


# -- kernels against one another -----------------------------------------------------------------------------


def cases(quick: bool) -> list[Case]:
    """Every graph with one example, and with a batch unless in a hurry; the choice of "auto" with every
    batch."""
    result: list[Case] = []
    for setting in settings():
        mask = AttentionMask(setting.graph().adjacency(**setting.sizes))
        for batch in (1,) if quick else (1, setting.batch):
            result += cases_of(setting, mask, batch)
        result += choice_cases(setting, mask)
    return result


def cases_of(setting: Setting, mask: AttentionMask, batch: int) -> list[Case]:
    """The kernels of one graph against one another."""
    runs = {
        kernel: forward_backward(mask, kernel, batch, setting.heads, setting.width)
        for kernel in (*KERNELS, "auto")
    }
    start = f"attention {setting.name}, batch {batch}:"
    return [
        Case(
            f"{start} auto against packed",
            runs["auto"],
            runs["packed"],
            setting.faster_than_packed,
            NOTES["packed"],
        ),
        Case(
            f"{start} auto against dense",
            runs["auto"],
            runs["dense"],
            setting.faster_than_dense,
            NOTES["dense"],
        ),
        Case(f"{start} relational against packed", runs["relational"], runs["packed"], None, NOTES["packed"]),
        Case(f"{start} sparse against packed", runs["sparse"], runs["packed"], None, NOTES["packed"]),
    ]


def choice_cases(setting: Setting, mask: AttentionMask) -> list[Case]:
    """What "auto" chooses against the fastest kernel."""
    cases = []
    for batch in CHOICE_BATCHES if setting.choice is not None else ():
        runs = {
            kernel: forward_backward(mask, kernel, batch, setting.heads, setting.width)
            for kernel in (*CHOICES, "auto")
        }
        best = fastest([runs[kernel] for kernel in CHOICES])
        name = f"attention {setting.name}, batch {batch}: auto against the best"
        cases.append(Case(name, runs["auto"], best, setting.choice, NOTES["best"]))
    return cases


def fastest(runs: Sequence[Run]) -> Run:
    """The fastest of some calls, measured at the first call."""

    @cache
    def measured() -> Run:
        return min(runs, key=lambda run: bench.median_seconds(run, samples=3, warmup=1))

    return lambda: measured()()


# -- a large graph -------------------------------------------------------------------------------------------


def growth_figures(samples: int) -> list[Figure]:
    """Time and memory of one example on a circuit of 131,071 nodes, against one of an eighth of its edges."""
    large, small = (AttentionMask(boolean.declare(depth, True).adjacency()) for depth in (DEEP, SHALLOW))
    runs = [forward_backward(mask, "auto", batch=1, heads=2, width=32) for mask in (large, small)]
    preparing = bench.median_seconds(
        lambda: AttentionMask(boolean.declare(DEEP, True).adjacency()).terms(torch.device("cpu")), 1, warmup=0
    )
    result = bench.measure(Case("growth", *runs, None, ""), min(samples, 5), warmup=1)
    edges = large.entries / small.entries
    name = f"attention circuit of {large.count:,} nodes"
    return [
        Figure(f"{name}: declare and take apart", preparing, "s"),
        Figure(f"{name}: forward+backward", result.ours_ms, "ms"),
        Figure(f"{name}: peak memory", result.ours_bytes / 2**30, "GiB", 8.0),
        Figure(
            f"{name}: time against {small.count:,} nodes, {edges:.3g} times fewer edges",
            result.ratio,
            "x",
            1.5 * edges,
        ),
        Figure(f"{name}: memory against the same", result.memory_ratio, "x", 1.5 * edges),
    ]


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    quick = "--quick" in (sys.argv[1:] if arguments is None else arguments)
    # sums over neighbours in another order
    return report(
        __doc__, lambda: cases(quick), {"attention growth": growth_figures}, arguments, lambda case: 1e-3
    )


if __name__ == "__main__":
    main()
