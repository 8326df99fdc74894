"""Choose the kernel of attention by its time on this machine, once for each size of problem.

All kernels are exact, so a choice changes results by rounding alone. A clock does not give the same answer twice, so a choice by
time must not reach what has to be the same bit for bit:

- Training by ``fit`` promises that a run that was stopped and resumed ends with the bits of one that was not, and that the same
  seed gives the same weights in another process. Choices stored in the checkpoint would keep neither promise: the run that was
  not stopped is another process, with measurements of its own. So ``fit`` runs inside ``unn.ops.reproducible.reproducible``, where
  the kernel is a function of the graph and the sizes alone (the model of costs), in training and in the evaluations between.
- Samples drawn with a seed are the same in each process for the same reason: many steps of sampling can turn a difference in
  rounding into another sample.
- ``torch.use_deterministic_algorithms(True)`` has the same effect.
- Inside one process a size is measured once, and its choice is reused: the same call gives the same bits again (unless more
  than ``CAPACITY`` other sizes of the same graph come between).
- Compiled and exported programs have no clock either; they get the kernel of the model of costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from ...cache import BoundedCache
from ..reproducible import reproducibility_is_required

CAPACITY = 64
"""Measured sizes that are remembered for one graph."""

WORTHWHILE = 1e-3
"""Seconds that a call should take, by the model of costs, before measuring pays."""

HOPELESS = 3.0
"""Kernels that the model of costs makes so many times slower than the fastest are not tried: they could need too much memory."""

MARGIN = 1.05
"""How many times faster than the kernel of the model another has to be to replace it; smaller differences may be noise."""

BEHIND = 1.5
"""Kernels that are so many times slower than the fastest in a round of the trial are out."""

ROUNDS = 5
BUDGET = 0.5
"""A trial has ``ROUNDS`` rounds, fewer when they take longer than ``BUDGET`` seconds, but two at least."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """What the fastest kernel for a graph depends on.

    Attributes:
        copies: batch elements times heads, rounded up to a power of two.
        width: of queries and keys, rounded up to a power of two.
        values: width of values, rounded up to a power of two.
        dtype: of all three.
        device: on which attention runs.
        gradients: whether derivatives will be taken.
        threads: of torch.
        autocast: precision of matrix products under autocast; None without.
    """

    copies: int
    width: int
    values: int
    dtype: torch.dtype
    device: torch.device
    gradients: bool
    threads: int
    autocast: torch.dtype | None

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor) -> Size:
        """The size of a call."""
        device = query.device
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        gradients = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        copies, width, values = (_power_of_two(n) for n in (query.shape[:2].numel(), query.shape[3], value.shape[3]))
        return cls(copies, width, values, query.dtype, device, gradients, torch.get_num_threads(), autocast)


class MeasuredKernels(BoundedCache[Size, str]):
    """Fastest kernels of one graph, as measured in this process: shared by copies of a mask, not pickled with it."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)

    def __deepcopy__(self, memo: dict[int, object]) -> MeasuredKernels:
        return self

    def __reduce__(self) -> tuple[type[MeasuredKernels], tuple[()]]:
        return MeasuredKernels, ()


def can_be_measured(query: Tensor) -> bool:
    """Whether a call may be decided by time: a plain tensor on a processor, where no reproducible choice is required."""
    if torch.compiler.is_compiling() or reproducibility_is_required() or query.device.type != "cpu":
        return False
    # under vmap, or as a tensor without values, it cannot be passed on to another thread
    return type(query) in (Tensor, Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(query)


def candidates_of(estimates: Mapping[str, float]) -> list[str]:
    """Kernels to try, the one that the model of costs prefers first; no other where measuring does not pay.

    Args:
        estimates: seconds by kernel.
    """
    order = sorted(estimates, key=estimates.__getitem__)
    least = estimates[order[0]]
    return [name for name in order if name == order[0] or (least >= WORTHWHILE and estimates[name] <= HOPELESS * least)]


def fastest_kernel(runs: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]], size: Size, *given: Tensor) -> str:
    """Try kernels on the inputs of a call, with derivatives if the call has them.

    The trial needs the memory of one call of each kernel. It runs in a thread of its own, in which no mode of the caller is
    active, such as the hooks on saved tensors of activation checkpointing; no random numbers are drawn.

    Args:
        runs: kernels by name, the preferred one first; it is replaced only by one that is ``MARGIN`` times as fast.
        size: of the call.
        given: query, key and value.

    Returns:
        The name of a kernel.
    """
    inference = torch.is_inference_mode_enabled()

    def trial() -> str:
        with torch.inference_mode(inference), torch.autocast("cpu", size.autocast, enabled=size.autocast is not None):
            return fastest({name: _one_call(run, size.gradients, given) for name, run in runs.items()})

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(trial).result()


def fastest(runs: Mapping[str, Run]) -> str:
    """The name of the fastest of some calls, timed in turns; the first unless another is ``MARGIN`` times as fast."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, float] = {}
    for name, run in runs.items():
        # the first call prepares the form of the mask that its kernel needs
        if _finishes(run):
            seconds[name] = float("inf")
    preferred = next(iter(runs))
    start = time.perf_counter()
    for number in range(ROUNDS):
        for name in seconds:
            before = clock()
            runs[name]()
            seconds[name] = min(seconds[name], clock() - before)
        least = min(seconds.values(), default=0.0)
        seconds = {name: t for name, t in seconds.items() if t <= BEHIND * least}
        if len(seconds) < 2 or (number and time.perf_counter() - start > BUDGET):
            break
    if not seconds or seconds.get(preferred, float("inf")) <= MARGIN * least:
        return preferred
    return min(seconds, key=seconds.__getitem__)


def _finishes(run: Run) -> bool:
    """Whether a call fits into memory; what else is wrong with it will show when it is made in earnest."""
    try:
        run()
    except (RuntimeError, MemoryError):
        return False
    return True


def _one_call(run: Callable[[Tensor, Tensor, Tensor], Tensor], gradients: bool, given: tuple[Tensor, ...]) -> Run:
    """Attention, and its derivatives if they are needed, on inputs that lie in memory like the given ones."""
    query, key, value = (x.detach() for x in given)

    def call() -> object:
        if not gradients:
            with torch.no_grad():
                return run(query, key, value)
        inputs = [x.detach().requires_grad_() for x in (query, key, value)]
        out = run(*inputs)
        return torch.autograd.grad(out, inputs, out.detach())

    return call


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
