"""The processes that train together, as ``torchrun`` starts them; one process needs nothing of this."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DeclarationError


@dataclass(frozen=True)
class Processes:
    """This process among those that train together.

    Attributes:
        rank: its number.
        count: of all processes.
        device: that it computes on.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Does this process write the files?"""
        return self.rank == 0

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all processes, elementwise, of numbers on the CPU."""
        if self.count == 1:
            return numbers
        # NCCL adds up what lies on GPUs, gloo what lies on the CPU
        there = numbers.to(self.device) if self.device.type == "cuda" else numbers
        dist.all_reduce(there)
        return there

    def from_main(self, content: Any) -> Any:
        """What the main process passed; for small picklable things that our own code makes."""
        if self.count == 1:
            return content
        box = [content]
        dist.broadcast_object_list(box, src=0)
        return box[0]


@contextlib.contextmanager
def several_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started, for as long as the context lasts.

    Args:
        device: "auto", "cpu", or any that torch knows; each process takes the GPU of its local number.

    Raises:
        DeclarationError: for a device that is not there.
    """
    count, rank, local = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    chosen = choose_device(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if count == 1 or dist.is_initialized():
        yield Processes(rank, count, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", rank=rank, world_size=count)
    try:
        yield Processes(rank, count, chosen)
    finally:
        dist.destroy_process_group()


def choose_device(name: str, local: int = 0) -> torch.device:
    """The device with this name; "auto" is an accelerator if there is one.

    Args:
        name: "auto", "cpu", "cuda", "cuda:1", ...
        local: number of this process on its machine, which is its accelerator's if the name has none.

    Raises:
        DeclarationError: for a device that is not there.
    """
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        name = there.type if there is not None else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeclarationError(f"training: option device is 'auto', 'cpu', 'cuda', 'cuda:1' and so on, got {name!r}.") from None
    if device.type == "cpu":
        return device
    number = local if device.index is None else device.index
    if there is None or there.type != device.type or number >= torch.accelerator.device_count():
        found = f"{torch.accelerator.device_count()} of type {there.type}" if there is not None else "none"
        raise DeclarationError(f"training: device {name!r} is not here (accelerators found: {found}); use --device auto or cpu.")
    return torch.device(device.type, number)
