"""How far a long query is, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import ArgumentError

Watch = Callable[[str, float], None]
"""Called with a stage of a query, and the share of it that is done, from 0 to 1; a stage can come again."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Report the progress of all queries of this thread within the block; an exception of the watch ends
    the query.

    Raises:
        ArgumentError: for a watch that cannot be called.

    Example:
        >>> with watched(lambda stage, share: print(f"{stage}: {share:.0%}")):
        ...     log_partition(model)
    """
    if not callable(watch):
        raise ArgumentError(f"watched: a function of a stage and a share, got {watch!r}.")
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def is_watched() -> bool:
    """Whether someone waits for this query."""
    return _watch.get() is not None


def report(stage: str, share: float) -> None:
    """Tell the watch, if there is one."""
    watch = _watch.get()
    if watch is not None:
        watch(stage, min(1.0, share))
