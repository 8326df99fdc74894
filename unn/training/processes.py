"""Distributed training processes as started by ``torchrun``; a single process needs no setup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError


@dataclass(frozen=True)
class Processes:
    """Rank, world size and device of this process.

    Attributes:
        rank: rank of this process.
        count: number of processes (world size).
        device: device of this process.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this process writes the files (rank 0)."""
        return self.rank == 0

    def sum(self, numbers: Tensor) -> Tensor:
        """Elementwise sum over all processes of a tensor on the CPU."""
        if self.count == 1:
            return numbers
        # NCCL reduces tensors on GPUs, gloo those on the CPU
        total = numbers.to(self.device) if self.device.type == "cuda" else numbers
        dist.all_reduce(total)
        return total

    def from_main(self, content: Any) -> Any:
        """Broadcast an object from the main process; for small picklable objects from trusted code."""
        if self.count == 1:
            return content
        box = [content]
        dist.broadcast_object_list(box, src=0)
        return box[0]


@contextlib.contextmanager
def several_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the process group of ``torchrun`` within a context.

    Args:
        device: "auto", "cpu" or another torch device; each process uses the GPU of its local rank.

    Raises:
        ArgumentError: if the device is not available.
    """
    count, rank, local = (
        int(os.environ.get(name, default))
        for name, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0))
    )
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
    """Device with the given name; "auto" is an accelerator if there is one.

    Args:
        name: "auto", "cpu", "cuda", "cuda:1", ...
        local: local rank of this process, the index of its accelerator if the name has none.

    Raises:
        ArgumentError: if the device is not available.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        name = accelerator.type if accelerator is not None else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(
            f"training: option device is 'auto', 'cpu', 'cuda', 'cuda:1' and so on, got {name!r}."
        ) from None
    if device.type == "cpu":
        return device
    number = local if device.index is None else device.index
    if accelerator is None or accelerator.type != device.type or number >= torch.accelerator.device_count():
        available = (
            f"{torch.accelerator.device_count()} of type {accelerator.type}"
            if accelerator is not None
            else "none"
        )
        raise ArgumentError(
            f"training: device {name!r} is not available (accelerators found: {available}); use --device "
            "auto or cpu."
        )
    return torch.device(device.type, number)
