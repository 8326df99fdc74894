"""A cache of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

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
