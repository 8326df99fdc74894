"""Measuring: two ways to compute the same thing, run in pairs in one process, with times, peak memory and a
verdict."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Run = Callable[[], object]
Clock = Callable[[Run], float]
Memory = Callable[[Run], int]

PAIR_SECONDS = 0.02
"""How long a pair takes at least: of shorter calls, a pair takes the fastest of several."""


@dataclass(frozen=True)
class Case:
    """Two ways to compute the same thing.

    Attributes:
        name: for the table.
        ours: computes it by the package.
        other: computes it by other means.
        limit: the largest ratio of the time of ``ours`` to that of ``other`` that passes; None if any does.
        note: what the other is, in a few words.
    """

    name: str
    ours: Run
    other: Run
    limit: float | None
    note: str


@dataclass(frozen=True)
class Result:
    """What was measured of a case.

    Attributes:
        case: that was run.
        ours_ms: median over the pairs of the time of one call of ours, milliseconds.
        other_ms: the same of the other.
        ratio: median over the pairs of ours / other.
        spread: lower and upper quartile of the ratios.
        ours_bytes: peak memory of one call of ours (see ``peak_memory``).
        other_bytes: peak memory of one call of the other.
    """

    case: Case
    ours_ms: float
    other_ms: float
    ratio: float
    spread: tuple[float, float]
    ours_bytes: int
    other_bytes: int

    @property
    def memory_ratio(self) -> float:
        """Peak memory of ours / that of the other; NaN if the other needs none."""
        return self.ours_bytes / self.other_bytes if self.other_bytes else math.nan

    @property
    def passed(self) -> bool | None:
        """Is the ratio within the limit? None without a limit."""
        return None if self.case.limit is None else self.ratio <= self.case.limit


@dataclass(frozen=True)
class Figure:
    """A measured number that is compared with nothing but its own limit.

    Attributes:
        name: for the table.
        value: the number.
        unit: of the number and its limit.
        limit: the largest value that passes; None if any does.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def passed(self) -> bool | None:
        """Is the value within the limit? None without a limit."""
        return None if self.limit is None else self.value <= self.limit


def measure(
    case: Case, pairs: int = 15, warmup: int = 3, clock: Clock | None = None, memory: Memory | None = None
) -> Result:
    """Time both ways of a case in turns, on one thread.

    Times are processor times, kernel included: pauses while something else runs do not count. What it does to
    caches slows both members of a pair alike, so that the median of the pairs' ratios tells more than the
    ratio of two medians. Which of the two goes first changes from pair to pair.

    Args:
        case: to run.
        pairs: how many times each is timed.
        warmup: how many times each runs before.
        clock: other than of processor times, gives the seconds of one call.
        memory: other than ``peak_memory``, gives the most bytes of one call.

    Raises:
        ValueError: for fewer than one pair.
    """
    if pairs < 1:
        raise ValueError(f"measure: at least one pair is needed, got {pairs}.")
    clock, memory = clock or _seconds, memory or peak_memory
    with one_thread():
        for _ in range(warmup):
            case.ours()
            case.other()
        repeats = max(1, math.ceil(PAIR_SECONDS / max(1e-6, clock(case.ours) + clock(case.other))))
        timed = [_pair(case, repeats, pair % 2 == 1, clock) for pair in range(pairs)]
        ratios = [a / b for a, b in timed]
        return Result(
            case,
            ours_ms=1e3 * statistics.median(a for a, _ in timed),
            other_ms=1e3 * statistics.median(b for _, b in timed),
            ratio=statistics.median(ratios),
            spread=_quartiles(ratios),
            ours_bytes=memory(case.ours),
            other_bytes=memory(case.other),
        )


def median_seconds(run: Run, samples: int = 15, warmup: int = 3) -> float:
    """The median processor time of one call, on one thread, in seconds."""
    with one_thread():
        for _ in range(warmup):
            run()
        return statistics.median(_seconds(run) for _ in range(samples))


def peak_memory(run: Run) -> int:
    """The most bytes of new tensors that are alive at one time during a call.

    Counted are the storages of all tensors that operators return, in the forward and in the backward pass,
    each once however many views it has, from the operator that makes it until its last owner is gone
    (autograd counts as an owner). Not counted are tensors that existed before the call, and scratch space
    that a kernel takes and frees inside one operator. The number is exact and the same in each
    run: it depends on neither the allocator nor what else runs.
    """
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    alive: dict[int, int] = {}
    total = peak = 0

    def storages(tree: object) -> Iterator[torch.UntypedStorage]:
        leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        parts = (
            part
            for x in leaves
            for part in (
                (x.values(), x.crow_indices(), x.col_indices()) if x.layout == torch.sparse_csr else (x,)
            )
        )
        return (part.untyped_storage() for part in parts)

    def freed(address: int) -> None:
        nonlocal total
        total -= alive.pop(address)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal total, peak
            # an output that shares the storage of an input is a view, or was written in place
            before = {storage.data_ptr() for storage in storages((args, kwargs))}
            out = func(*args, **(kwargs or {}))
            for storage in storages(out):
                address = storage.data_ptr()
                if address and address not in before and address not in alive:
                    alive[address] = storage.nbytes()
                    total += storage.nbytes()
                    weakref.finalize(storage, freed, address).atexit = False
            peak = max(peak, total)
            return out

    with Watch():
        result = run()
    del result
    return peak


def require_equal(case: Case, relative: float = 1e-4) -> None:
    """Check that both ways return the same tensor, or tuple of tensors, to a share of the largest entry of
    each.

    Raises:
        ArithmeticError: names the case, the number of the tensor and the distance.
    """
    from torch.utils._pytree import tree_leaves

    for number, (a, b) in enumerate(zip(tree_leaves(case.ours()), tree_leaves(case.other()), strict=True)):
        distance = float((a - b).abs().max()) / max(float(b.abs().max()), 1e-30)
        # written so that NaN fails too
        if not distance <= relative:
            raise ArithmeticError(
                f"{case.name}: tensor {number} differs by {distance:.2g} of its largest entry, more than "
                f"{relative:g}."
            )


def table(results: Sequence[Result]) -> str:
    """A markdown table: times in milliseconds, the median ratio with half the distance of its quartiles, the
    verdict."""
    rows = [
        (
            r.case.name,
            f"{r.ours_ms:.3g}",
            f"{r.other_ms:.3g}",
            f"{r.ratio:.2f} ± {(r.spread[1] - r.spread[0]) / 2:.2f}",
            _limit(r.case.limit),
            "-" if math.isnan(r.memory_ratio) else f"{r.memory_ratio:.2f}",
            _verdict(r.passed),
        )
        for r in results
    ]
    return _markdown(("case", "ours ms", "other ms", "ratio", "limit", "memory ratio", "verdict"), rows)


def figure_table(figures: Sequence[Figure]) -> str:
    """A markdown table of absolute figures."""
    rows = [(f.name, f"{f.value:.3g} {f.unit}", _limit(f.limit), _verdict(f.passed)) for f in figures]
    return _markdown(("figure", "value", "limit", "verdict"), rows)


def machine() -> str:
    """The processor and the version of torch."""
    from unn.ops.attention.remember import machine

    return f"{machine()['processor']}; torch {machine()['torch']}"


def keep_memory() -> None:
    """Let this process keep freed memory from now on (glibc; does nothing elsewhere).

    By default large tensors are given back to the system and cleared anew, page by page, at the next use.
    That can cost more than the arithmetic, and whether it happens depends on what ran before, so that the
    same code takes one or two times as long.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if platform.system() == "Linux" else None
    if mallopt is not None:
        trim_threshold, top_pad, mmap_max = -1, -2, -4
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 2**26)
        mallopt(mmap_max, 0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, and on as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pair(case: Case, repeats: int, other_first: bool, clock: Clock) -> tuple[float, float]:
    """Seconds of the fastest call of ours and of the other, timed in turns."""
    first, second = (case.other, case.ours) if other_first else (case.ours, case.other)
    timed = [(clock(first), clock(second)) for _ in range(repeats)]
    fastest = min(a for a, _ in timed), min(b for _, b in timed)
    return (fastest[1], fastest[0]) if other_first else fastest


def _seconds(run: Run) -> float:
    """Processor time of one call; waiting does not count."""
    start = time.process_time()
    run()
    return max(1e-9, time.process_time() - start)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _limit(limit: float | None) -> str:
    return "-" if limit is None else f"{limit:.2f}"


def _verdict(passed: bool | None) -> str:
    return "-" if passed is None else "passes" if passed else "fails"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to one width, the first aligned left, the others right."""
    widths = [max(3, *(len(row[k]) for row in (header, *rows))) for k in range(len(header))]
    rule = ["-" * width if k == 0 else "-" * (width - 1) + ":" for k, width in enumerate(widths)]
    lines = [
        [
            cell.ljust(w) if k == 0 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (header, *rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))
