"""Partitions of elements, coarsened by merging two sets at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


class DisjointSets(Generic[E]):
    """A partition of elements; each forms a set of its own until it is merged with another."""

    def __init__(self) -> None:
        self._parent: dict[E, E] = {}

    def root(self, element: E) -> E:
        """The representative of the set of an element, which is added if it is new."""
        parent = self._parent.setdefault(element, element)
        while parent != element:
            # each element on the way points to its grandparent afterwards
            grandparent = self._parent[element] = self._parent[parent]
            element, parent = parent, grandparent
        return element

    def merge(self, one: E, other: E) -> None:
        """Merge the sets of two elements; the representative of the second represents both."""
        self._parent[self.root(one)] = self.root(other)

    def elements(self) -> list[E]:
        """All elements, in order of first use."""
        return list(self._parent)

    def sets(self) -> dict[E, list[E]]:
        """The elements of each set by its representative, in order of first use."""
        members: dict[E, list[E]] = {}
        for element in self.elements():
            members.setdefault(self.root(element), []).append(element)
        return members
