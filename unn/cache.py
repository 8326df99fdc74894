"""A cache of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Keep the entries that were used last.

    Args:
        capacity: largest number of entries, at least 1; the entry that was not used for longest is dropped for a new one.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: dict[Key, Value] = {}

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The entry of a key, made where there is none; it becomes the one that was used last."""
        value = self._entries.pop(key) if key in self._entries else make()
        # a dictionary keeps the order of insertion
        self._entries[key] = value
        while len(self._entries) > self.capacity:
            del self._entries[next(iter(self._entries))]
        return value

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
