"""Products of tables over the same variables, arranged in halves.

The messages of many neighbours of a variable can be multiplied in any order at the same cost. If each product
multiplies the first half of isomorphic ones by the second half, a compiled tree takes few operations, over
slices.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .tree import Tree


def halve(tree: Tree, kinds: Sequence[int]) -> None:
    """Rearrange a tree in place wherever all operands of some products have the same variables.

    Args:
        tree: the tree.
        kinds: number of the block of each leaf.
    """
    parents = {child: node for node, pair in tree.children.items() for child in pair}
    inner = {
        node
        for node in tree.children
        if node in parents and _is_uniform(tree, node) and _is_uniform(tree, parents[node])
        if tree.scopes[node] == tree.scopes[tree.children[node][0]]
    }
    shapes = _Shapes(tree, kinds)
    for node in tree.order():
        if node in inner:
            continue
        operands, free = list(tree.children[node]), []
        for operand in operands:
            if operand in inner:
                # operands of operands come after them in the list that is read
                operands += tree.children[operand]
                free.append(operand)
        if free:
            _rearrange(tree, node, [operand for operand in operands if operand not in inner], free, shapes)
        shapes.add(node)


def _is_uniform(tree: Tree, node: int) -> bool:
    """Whether both factors of a product have the same variables."""
    a, b = tree.children[node]
    return tree.scopes[a] == tree.scopes[b]


class _Shapes:
    """What the subtrees of a tree look like.

    Attributes:
        numbers: a number of each subtree that isomorphic ones share; others may share it too.
        heights: number of levels of products.
        firsts: first leaf.
    """

    def __init__(self, tree: Tree, kinds: Sequence[int]) -> None:
        self._tree = tree
        self._known: dict[tuple[int, ...], int] = {}
        self.numbers = {
            leaf: self._known.setdefault((kind,), len(self._known)) for leaf, kind in enumerate(kinds)
        }
        self.heights = dict.fromkeys(range(tree.leaves), 0)
        self.firsts = {leaf: leaf for leaf in range(tree.leaves)}

    def add(self, node: int) -> None:
        """Describe a product, after its factors."""
        a, b = self._tree.children[node]
        pattern = (*sorted((self.numbers[a], self.numbers[b])), self._tree.scopes[node].bit_count())
        self.numbers[node] = self._known.setdefault(pattern, len(self._known))
        self.heights[node] = 1 + max(self.heights[a], self.heights[b])
        self.firsts[node] = min(self.firsts[a], self.firsts[b])


def _rearrange(tree: Tree, node: int, operands: list[int], free: list[int], shapes: _Shapes) -> None:
    """Multiply operands to a product.

    Args:
        tree: the tree.
        node: the product.
        operands: tables over the same variables.
        free: numbers of the other products that this takes.
        shapes: those of the operands; those of the new products are added.
    """

    def product(a: int, b: int) -> int:
        number = free.pop()
        tree.children[number] = a, b
        shapes.add(number)
        return number

    isomorphic: dict[int, list[int]] = {}
    for operand in sorted(operands, key=lambda each: shapes.firsts[each]):
        isomorphic.setdefault(shapes.numbers[operand], []).append(operand)
    single = []
    for alike in isomorphic.values():
        while len(alike) > 2 or (len(alike) == 2 and free):
            half = len(alike) // 2
            single += alike[2 * half :]
            alike = [product(a, b) for a, b in zip(alike[:half], alike[half : 2 * half], strict=True)]
        single += alike
    heap = [(shapes.heights[operand], operand) for operand in single]
    heapq.heapify(heap)
    while len(heap) > 2:
        a, b = heapq.heappop(heap)[1], heapq.heappop(heap)[1]
        number = product(a, b)
        heapq.heappush(heap, (shapes.heights[number], number))
    tree.children[node] = heap[0][1], heap[1][1]
