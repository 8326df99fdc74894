"""A factor that lists which nodes of two variables interact, for relations that no pattern describes."""

from __future__ import annotations

from dataclasses import replace

from ..graph.arrays import Reference
from ..graph.factor import Factor
from ..graph.interactions import Relation, Shapes, listed_relation
from .tape import Nodes


class Listed(Factor):
    """Pairs of nodes of two variables, or of one, that interact.

    No axis that it refers to is exchangeable, since nothing is known of what the pairs have in common.

    Args:
        one: a reference with a letter of its own for each axis.
        other: a reference with other letters; the parents, if the pairs are directed.
        pairs: flat indices among the nodes of the one and the other, shape ``(pairs,)`` each.
        directed: were the ones computed from the others?
        name: unique in the graph.
    """

    def __init__(self, one: Reference, other: Reference, pairs: tuple[Nodes, Nodes], directed: bool = True, name: str | None = None) -> None:
        super().__init__(one, other, name=name)
        self.pairs = pairs
        self.directed = directed

    def interactions(self, shapes: Shapes) -> list[Relation]:
        one, other = self.references
        return [replace(listed_relation(one.array.name, self.pairs[0], other.array.name, self.pairs[1]), directed=self.directed)]

    def formula(self) -> str:
        one, other = self.references
        pairs = f"{len(self.pairs[0])} listed {'pair' if len(self.pairs[0]) == 1 else 'pairs'}"
        return f"{one} depends on {other} in {pairs}" if self.directed else f"{one} and {other} interact in {pairs}"
