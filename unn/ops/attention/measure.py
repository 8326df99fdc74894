"""Choose the attention kernel by its measured time on this machine, once per problem size.

All kernels are exact, so the choice changes results only by rounding. Measured times vary, so a
measured choice must not affect results that have to be reproducible bit for bit:

- A choice is remembered in a file of the user's cache (``unn.ops.attention.remember``), and every process
  on the machine makes the same one. Training by ``fit`` therefore ends with the same bits when a run is
  resumed and when it is not, and the same seed gives the same weights and samples in another process.
- Where that file cannot be written, ``fit`` and seeded sampling, which run inside
  ``unn.ops.reproducible.reproducible``, use the kernel of the cost model, a function of the graph and the
  sizes alone; other calls measure once per process.
- Under ``torch.use_deterministic_algorithms(True)`` the cost model decides, on every machine.
- Compiled and exported programs cannot measure; they use the kernel of the cost model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import Parameter

from ...cache import BoundedCache

CAPACITY = 64
"""Number of measured sizes cached per graph."""

WORTHWHILE = 1e-3
"""Minimum estimated seconds of a call for measuring to be worthwhile."""

HOPELESS = 3.0
"""Kernels with an estimate above this multiple of the fastest are not tried: they may exhaust memory."""

MARGIN = 1.05
"""Speed-up over the cost model's kernel that a kernel needs to replace it; smaller ones may be noise."""

BEHIND = 1.5
"""Kernels slower than this multiple of the fastest are dropped after a round of the trial."""

ROUNDS = 5
BUDGET = 0.5
"""A trial has ``ROUNDS`` rounds, fewer if they take longer than ``BUDGET`` seconds, but at least two."""

KernelCall = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """Problem size: everything that the fastest kernel for a graph depends on.

    Attributes:
        copies: batch size times number of heads, rounded up to a power of two.
        width: width of queries and keys, rounded up to a power of two.
        values: width of values, rounded up to a power of two.
        dtype: dtype of query, key and value.
        device: device on which attention runs.
        gradients: whether derivatives will be taken.
        threads: number of torch's threads.
        autocast: precision of matrix products under autocast; None without autocast.
    """

    copies: int
    width: int
    values: int
    dtype: torch.dtype
    device: torch.device
    gradients: bool
    threads: int
    autocast: torch.dtype | None

    def description(self) -> dict[str, object]:
        """The fields as values that JSON can hold."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor) -> Size:
        """The size of a call."""
        device = query.device
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        gradients = torch.is_grad_enabled() and (
            query.requires_grad or key.requires_grad or value.requires_grad
        )
        copies, width, values = (
            _power_of_two(n) for n in (query.shape[:2].numel(), query.shape[3], value.shape[3])
        )
        return cls(copies, width, values, query.dtype, device, gradients, torch.get_num_threads(), autocast)


class MeasuredKernels(BoundedCache[tuple[Size, bool], str]):
    """Cache of the fastest kernels of one graph by size and whether results have to be reproducible; shared
    by copies of a mask, not pickled with it."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)

    def __deepcopy__(self, memo: dict[int, object]) -> MeasuredKernels:
        return self

    def __reduce__(self) -> tuple[type[MeasuredKernels], tuple[()]]:
        return MeasuredKernels, ()


def can_be_measured(query: Tensor) -> bool:
    """Whether a call may be measured: a plain tensor on a CPU, unless algorithms have to be deterministic."""
    if torch.compiler.is_compiling() or torch.are_deterministic_algorithms_enabled():
        return False
    if query.device.type != "cpu":
        return False
    # functorch-wrapped and fake tensors cannot be passed to another thread
    return type(query) in (Tensor, Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(query)


def candidates_of(estimates: Mapping[str, float]) -> list[str]:
    """Kernels to try, the cost model's choice first; only that one if measuring is not worthwhile.

    Args:
        estimates: estimated seconds by kernel.
    """
    order = sorted(estimates, key=estimates.__getitem__)
    least = estimates[order[0]]
    return [
        name
        for name in order
        if name == order[0] or (least >= WORTHWHILE and estimates[name] <= HOPELESS * least)
    ]


def fastest_kernel(
    runs: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]], size: Size, *given: Tensor
) -> str:
    """Measure kernels on the inputs of a call, with derivatives if the call has them.

    The trial needs the memory of one call of each kernel. It runs in a separate thread, in which no mode
    of the caller is active, such as the saved-tensor hooks of activation checkpointing; no random numbers
    are drawn.

    Args:
        runs: kernels by name, the preferred one first; only a kernel ``MARGIN`` times as fast replaces it.
        size: size of the call.
        given: query, key and value.

    Returns:
        Name of the chosen kernel.
    """
    inference = torch.is_inference_mode_enabled()

    def trial() -> str:
        with (
            torch.inference_mode(inference),
            torch.autocast("cpu", size.autocast, enabled=size.autocast is not None),
        ):
            return fastest({name: _one_call(run, size.gradients, given) for name, run in runs.items()})

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(trial).result()


def fastest(runs: Mapping[str, KernelCall]) -> str:
    """Name of the fastest call, timed alternately; the first unless another is ``MARGIN`` times as fast."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, float] = {}
    for name, run in runs.items():
        # the first call prepares the mask layout that the kernel needs
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


def _finishes(run: KernelCall) -> bool:
    """Whether a call succeeds, for example fits into memory; other errors recur in the actual call."""
    try:
        run()
    except (RuntimeError, MemoryError):
        return False
    return True


def _one_call(
    run: Callable[[Tensor, Tensor, Tensor], Tensor], gradients: bool, given: tuple[Tensor, ...]
) -> KernelCall:
    """Attention, and its derivatives if needed, on inputs with the memory layout of the given ones."""
    query, key, value = (x.detach() for x in given)

    def call() -> object:
        if not gradients:
            with torch.no_grad():
                return run(query, key, value)
        inputs = [x.detach().requires_grad_() for x in (query, key, value)]
        out = run(*inputs)
        return torch.autograd.grad(out, inputs, out.detach())

    return call


def _plain(x: object) -> object:
    return x if isinstance(x, (int, bool)) else str(x)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
