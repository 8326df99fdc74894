"""A cache of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """The values made for the most recently used keys; the least recently used one is dropped when it is full.

    Args:
        size: the largest number of values.
    """

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value for a key, made now if there is none."""
        if key in self._values:
            value = self._values[key]
            try:  # noqa: SIM105 - this runs inside torch.compile
                self._values.move_to_end(key)
            except KeyError:
                # another thread has dropped it since
                pass
            return value
        value = self._values[key] = make()
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return value
