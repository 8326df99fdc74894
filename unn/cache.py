"""A cache of bounded size, and plans that are made outside of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """A cache that evicts the least recently used entry.

    Args:
        capacity: maximum number of entries, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: dict[Key, Value] = {}

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the entry of a key, created by ``make`` if missing, and mark it as the most recently
        used."""
        value = self._entries.pop(key) if key in self._entries else make()
        # dictionaries preserve insertion order
        self._entries[key] = value
        while len(self._entries) > self.capacity:
            del self._entries[next(iter(self._entries))]
        return value

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


@torch.compiler.disable(reason="plans are made outside of compiled code")  # type: ignore[untyped-decorator]
def made_uncompiled(make: Callable[[], Value]) -> Value:
    """What ``make`` returns, of which ``torch.compile`` traces nothing: loops over nodes, and calls of numpy.

    A call in compiled code is a graph break; code under ``fullgraph=True`` needs one call before, uncompiled.
    """
    return make()
