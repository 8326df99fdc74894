"""Where results have to be the same bit for bit from process to process, nothing may be decided by a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_REQUIRED: ContextVar[bool] = ContextVar("reproducible", default=False)


@contextmanager
def reproducible(required: bool = True) -> Iterator[None]:
    """Take no decision by measured times inside: the same inputs give the same bits in each process on one machine.

    ``fit`` trains inside it, so that a run that was stopped and resumed ends with the bits of one that was not, and denoisers
    sample inside it if they are given a seed. A training loop of one's own can do the same.

    Args:
        required: False changes nothing.
    """
    token = _REQUIRED.set(required or _REQUIRED.get())
    try:
        yield
    finally:
        _REQUIRED.reset(token)


def reproducibility_is_required() -> bool:
    """True inside ``reproducible`` and under ``torch.use_deterministic_algorithms``."""
    import torch

    return _REQUIRED.get() or torch.are_deterministic_algorithms_enabled()
