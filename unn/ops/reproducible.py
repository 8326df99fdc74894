"""Context in which no choice depends on times that this process measured, for results that are bitwise
reproducible on a machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_REQUIRED: ContextVar[bool] = ContextVar("reproducible", default=False)


@contextmanager
def reproducible(required: bool = True) -> Iterator[None]:
    """Forbid choices by times that only this process measured: the same inputs give the same bits in every
    process on one machine.

    ``fit`` trains inside it, so that a resumed run ends with the same bits as an uninterrupted one, and
    denoisers sample inside it if they have a seed. Custom training loops can do the same.

    Args:
        required: False has no effect.
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
