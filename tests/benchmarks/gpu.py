"""The models of the benchmarks on a GPU, eager and compiled, in float32 and bfloat16, against the same loops
written by hand.

Run as ``python -m tests.benchmarks.gpu [--quick] [--only NAME]``, or as the second part of ``unn bench``.
Times are those between two CUDA events, so that they hold whatever bounds a call, the device or the launching
of its kernels; memory is what CUDA's allocator counts.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from tests.benchmarks import core
from tests.benchmarks import measure as bench
from tests.benchmarks.core import Model, Rounds
from tests.benchmarks.measure import Case, Result, Run

LEFT_OUT = "no GPU: its section was left out"

ROUNDS = (1, 3, 5)

MODELS: dict[str, Callable[[str], Model]] = {
    "mlp": lambda device: core.mlp(device=device, check_values=False),
    "convolution": lambda device: core.convolution(device=device, check_values=False),
    "attention": lambda device: core.attention(device=device, check_values=False),
}

DIFFERENCES = {"float32": 1e-3, "bfloat16": math.inf}
"""The share of the largest entry by which the two ways to compute the same may differ, gradients included.

What bfloat16 rounds grows from round to round, so that nothing but finite numbers is asked of it: float32
says that both compute the same.
"""


# -- measuring -----------------------------------------------------------------------------------------------


def event_seconds(run: Run) -> float:
    """The time between the first and the last thing that a call queues on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return max(1e-9, 1e-3 * float(start.elapsed_time(end)))


def allocated_bytes(run: Run) -> int:
    """The most bytes that CUDA's allocator has given out during a call, beyond those before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def measure(case: Case, pairs: int, device: str) -> Result:
    """Time both ways of a case in turns on a device; on the CPU in processor times, and without memory, which
    compiled calls do not tell there."""
    if device == "cpu":
        return bench.measure(case, pairs, memory=lambda run: 0)
    return bench.measure(case, pairs, clock=event_seconds, memory=allocated_bytes)


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products in full, without the shorter mantissas of TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with warnings.catch_warnings():
        # there are two ways to set this; the older is one that every version of torch understands
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


# -- cases ---------------------------------------------------------------------------------------------------


def cases_of(
    model: Model, rounds: Sequence[int], device: str, precision: str, backend: str | None
) -> list[Case]:
    """Forward, then forward and backward, for each number of rounds.

    Args:
        model: on the device.
        rounds: the numbers of rounds, k.
        device: where the model is.
        precision: "float32", or "bfloat16" by autocast.
        backend: of torch.compile, for both ways; None runs them eagerly.
    """
    ours, other = (_prepared(run, rounds, device, precision, backend) for run in (model.ours, model.other))
    return core.cases_of(replace(model, ours=ours, other=other), rounds, {})


def _prepared(run: Rounds, rounds: Sequence[int], device: str, precision: str, backend: str | None) -> Rounds:
    """The same, under autocast or compiled; each number of rounds is a program of its own."""
    calls: dict[int, Callable[[], torch.Tensor]] = {}
    for k in rounds:

        def call(k: int = k) -> torch.Tensor:
            return run(k)

        calls[k] = (
            call if backend is None else torch.compile(call, fullgraph=True, dynamic=False, backend=backend)
        )

    def prepared(k: int) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext():
            # autocast may leave the output in half precision
            return calls[k]().float()

    return prepared


def section(
    device: str,
    pairs: int,
    only: str = "",
    rounds: Sequence[int] = ROUNDS,
    backend: str = "inductor",
    compiled: bool = True,
) -> Iterator[str]:
    """Measure everything; a title and a table for each way to run.

    Args:
        device: "cuda", or "cpu" to try the section itself.
        pairs: how many times each way of a case is timed.
        only: cases whose names contain this.
        rounds: the numbers of rounds.
        backend: of torch.compile.
        compiled: measure that as well?
    """
    from tqdm import tqdm

    for chosen in (None, backend) if compiled else (None,):
        for precision in DIFFERENCES:
            results = []
            for make in MODELS.values():
                torch._dynamo.reset()
                with full_precision(), torch._dynamo.config.patch(recompile_limit=64):
                    cases = [
                        case
                        for case in cases_of(make(device), rounds, device, precision, chosen)
                        if only in case.name
                    ]
                    for case in tqdm(
                        cases, desc=f"measuring, {precision}", unit="case", leave=False, disable=None
                    ):
                        bench.require_equal(case, DIFFERENCES[precision])
                        results.append(measure(case, pairs, device))
            if results:
                title = (
                    f"{'eager' if chosen is None else 'compiled'}, "
                    f"{precision}{' by autocast' if precision == 'bfloat16' else ''}"
                )
                yield f"{title}\n\n{bench.table(results)}\n"


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print, where a GPU is; the names of all cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pairs, and nothing compiled")
    parser.add_argument("--only", default="", metavar="NAME", help="only cases whose names contain this")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        if not options.only:
            print(LEFT_OUT)
        return []
    names = [case.name for make in MODELS.values() for case in core.cases_of(make("cpu"), ROUNDS, {})]
    if not any(options.only in name for name in names):
        return names
    print(
        f"{torch.cuda.get_device_name()}; torch {torch.__version__}; CUDA {torch.version.cuda}; TF32 off; "
        "values not checked",
        end="\n\n",
    )
    for part in section("cuda", 5 if options.quick else 15, options.only, compiled=not options.quick):
        print(part)
    print(
        "other: hand-written loop from zeros, every message computed in every update; compiled too where "
        "ours is"
    )
    return names


if __name__ == "__main__":
    main()
