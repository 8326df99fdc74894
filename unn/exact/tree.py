"""Contraction trees: pairwise products of tables, each summed over the variables that occur nowhere else.

The tree of an elimination order multiplies the tables of each variable in pairs. Its tables are
smaller than the cliques of the order, since a variable is summed out with the last product that
contains it. Subtrees are then reordered by exact dynamic programming over their frontier (subtree
reconfiguration; Gray and Kourtis, 2021).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from .elimination import (
    OPERATIONS_PER_SECOND,
    SECONDS_PER_LEVEL,
    WORK_PER_SECOND,
    Order,
    Scope,
    attempt,
    members,
    neighbours,
)
from .progress import report

_WRITTEN = 8.0
"""Cost of an entry of a result in multiplications."""
_SEARCH = "order of elimination"
_PROMISING = 8.0
"""Largest ratio of the cost of an order to the cheapest one at which it becomes a tree."""


@dataclass
class Tree:
    """A binary tree of products.

    Nodes 0 to ``leaves - 1`` are the tables; further ones are products, each after its children.

    Attributes:
        scopes: variables of each node, as bit sets.
        children: the two factors of each product, by the number of the node.
        uses: number of leaves with each variable.
        log_sizes: log2 of the number of states of each variable.
        leaves: number of tables.
        roots: the last product of each connected component.
    """

    scopes: list[int]
    children: dict[int, tuple[int, int]]
    uses: list[int]
    log_sizes: list[float]
    leaves: int
    roots: list[int] = field(default_factory=list)

    def size(self, bits: int) -> float:
        """log2 of the number of entries of a table over some variables."""
        total = 0.0
        for v in members(bits):
            total += self.log_sizes[v]
        return total

    def order(self) -> list[int]:
        """The products of the tree, each after its children."""
        result: list[int] = []
        stack = [root for root in self.roots if root in self.children]
        while stack:
            node = stack.pop()
            result.append(node)
            stack += [child for child in self.children[node] if child in self.children]
        return result[::-1]

    def log_cost(self) -> float:
        """log2 of the number of multiplications, with ``_WRITTEN`` for each entry of a result."""
        total = 0.0
        for node in self.order():
            a, b = self.children[node]
            total += 2.0 ** self.size(self.scopes[a] | self.scopes[b])
            total += _WRITTEN * 2.0 ** self.size(self.scopes[node])
        return math.log2(total) if total else 0.0

    def levels(self) -> int:
        """Largest number of products that depend on one another."""
        level = dict.fromkeys(range(self.leaves), 0)
        for node in self.order():
            a, b = self.children[node]
            level[node] = 1 + max(level[a], level[b])
        return max(level.values(), default=0)

    def seconds(self, batch: int = 1) -> float:
        """Estimated time of the contraction of a batch."""
        operations = batch * math.exp2(self.log_cost())
        return operations / OPERATIONS_PER_SECOND + SECONDS_PER_LEVEL * self.levels()

    def log_largest(self) -> float:
        """log2 of the number of entries of the largest table, leaves included."""
        nodes = [*range(self.leaves), *self.children]
        return max((self.size(self.scopes[node]) for node in nodes), default=0.0)


def tree_of(order: Order, scopes: Sequence[Scope], log_sizes: Sequence[float]) -> Tree:
    """The tree of an elimination order.

    Args:
        order: order of elimination of all variables in the scopes.
        scopes: variables of each table, at least one each.
        log_sizes: log2 of the number of states of each variable.
    """
    bits = [sum(1 << v for v in scope) for scope in scopes]
    uses = [0] * len(log_sizes)
    for scope in scopes:
        for v in scope:
            uses[v] += 1
    tree = Tree(bits, {}, uses, list(log_sizes), len(scopes))
    holders: list[set[int]] = [set() for _ in log_sizes]
    for node, scope in enumerate(scopes):
        for v in scope:
            holders[v].add(node)
    for v in order.variables:
        parts = sorted(holders[v], key=lambda node: (tree.size(tree.scopes[node]), node))
        if not parts:
            continue
        heap = [(tree.size(tree.scopes[node]), node) for node in parts]
        heapq.heapify(heap)
        while len(heap) > 1:
            # the two smallest tables first; what occurs in no other table is summed out at once
            (_, a), (_, b) = heapq.heappop(heap), heapq.heappop(heap)
            node = len(tree.scopes)
            union = tree.scopes[a] | tree.scopes[b]
            needed = 0
            for u in members(union):
                holders[u] -= {a, b}
                if holders[u]:
                    holders[u].add(node)
                    needed |= 1 << u
            tree.scopes.append(needed)
            tree.children[node] = (a, b)
            heapq.heappush(heap, (tree.size(needed), node))
        top = heap[0][1]
        for u in members(tree.scopes[top]):
            if holders[u] == {top}:
                # a leaf with variables of its own; they are summed out in its first product
                holders[u] = set()
        if not any(holders[u] for u in members(tree.scopes[top])):
            tree.roots.append(top)
    used = {child for pair in tree.children.values() for child in pair}
    tree.roots = [node for node in range(len(tree.scopes)) if node not in used]
    return tree


def reconfigure(tree: Tree, limit: float, width: int = 8) -> float:
    """Improve a tree in place: replace expensive subtrees by the best trees over their frontiers.

    Args:
        tree: the tree.
        limit: work after which to stop.
        width: number of nodes in a frontier.

    Returns:
        The work.
    """
    work = 0.0
    while True:
        work += 4 * len(tree.children)
        costs = {
            node: math.exp2(tree.size(tree.scopes[a] | tree.scopes[b]))
            + _WRITTEN * math.exp2(tree.size(tree.scopes[node]))
            for node, (a, b) in tree.children.items()
        }
        total = sum(costs.values())
        expensive = sorted(costs, key=lambda node: -costs[node])
        improved = False
        for node in expensive:
            if node not in tree.children or costs.get(node, 0.0) < 1e-3 * total:
                continue
            if work > limit:
                return work
            gain, spent = _reconfigure_at(tree, node, width)
            work += spent
            improved |= gain > 1e-3 * total
        if not improved:
            return work


def _reconfigure_at(tree: Tree, root: int, width: int) -> tuple[float, float]:
    """Replace the top of the subtree at a node by the best tree over its frontier; return the gain and the
    work."""
    frontier = [root]
    inner: list[int] = []
    while len(frontier) < width:
        # expand the largest product of the frontier
        candidates = [node for node in frontier if node in tree.children]
        if not candidates:
            break
        node = max(candidates, key=lambda each: tree.size(tree.scopes[each]) if each != root else math.inf)
        frontier.remove(node)
        inner.append(node)
        frontier += tree.children[node]
    if len(frontier) < 3:
        return 0.0, 1.0
    work = 2.0 * 3.0 ** len(frontier)
    before = sum(
        math.exp2(tree.size(tree.scopes[tree.children[node][0]] | tree.scopes[tree.children[node][1]]))
        + _WRITTEN * math.exp2(tree.size(tree.scopes[node]))
        for node in inner
    )
    best = _best_subtree(tree, frontier, tree.scopes[root], before)
    if best is None or best[0] >= before * (1 - 1e-9):
        return 0.0, work
    cost, splits, scopes = best
    free = [node for node in inner if node != root]
    full = (1 << len(frontier)) - 1

    def build(subset: int, node: int | None) -> int:
        if subset & (subset - 1) == 0:
            return frontier[subset.bit_length() - 1]
        left = splits[subset]
        children = build(left, None), build(subset ^ left, None)
        place = free.pop() if node is None else node
        tree.children[place] = children
        tree.scopes[place] = scopes[subset]
        return place

    build(full, root)
    return before - cost, work


def _best_subtree(
    tree: Tree, frontier: Sequence[int], result: int, bound: float
) -> tuple[float, list[int], list[int]] | None:
    """Dynamic program over the subsets of a frontier: cost, the left part of each subset, and its scope.

    Subsets whose cost exceeds the bound are left out; None if this leaves no tree.
    """
    count = len(frontier)
    full = (1 << count) - 1
    leaf_scopes = [tree.scopes[node] for node in frontier]
    sizes: dict[int, float] = {}

    def entries(bits: int) -> float:
        if bits not in sizes:
            sizes[bits] = math.exp2(tree.size(bits))
        return sizes[bits]

    union = [0] * (full + 1)
    for subset in range(1, full + 1):
        low = subset & -subset
        union[subset] = union[subset ^ low] | leaf_scopes[low.bit_length() - 1]
    scopes = [0] * (full + 1)
    cost = [math.inf] * (full + 1)
    splits = [0] * (full + 1)
    for subset in range(1, full + 1):
        outside = union[full ^ subset] | result
        scopes[subset] = union[subset] & outside
        if subset & (subset - 1) == 0:
            # leaves keep variables of their own until their first product
            scopes[subset] = union[subset]
            cost[subset] = 0.0
            continue
        written = _WRITTEN * entries(scopes[subset])
        if written > bound:
            continue
        low = subset & -subset
        rest = subset ^ low
        part = rest
        while True:
            # the part that contains the lowest element, each split once
            left = subset ^ part
            if part:
                spent = cost[left] + cost[part]
                if spent + written < cost[subset] and spent < bound:
                    spent += written + entries(scopes[left] | scopes[part])
                    if spent < cost[subset]:
                        cost[subset], splits[subset] = spent, left
            if not part:
                break
            part = (part - 1) & rest
    return None if cost[full] == math.inf else (cost[full], splits, scopes)


def search_tree(
    scopes: Sequence[Scope],
    states: Sequence[int],
    seconds: float,
    attempts: int,
    seed: int = 0,
    batch: int = 1,
) -> Tree:
    """The cheapest tree of several orders of elimination, after reconfiguration.

    The cheapest order need not give the cheapest tree, so that promising orders become trees at once.
    The search stops after its time, or when it has taken a quarter of the estimated time of the
    contraction; both are counted as work, so that the tree does not depend on the machine.

    Args:
        scopes: variables of each table, at least one each.
        states: number of states of each variable.
        seconds: time limit, roughly; the first two attempts are always completed.
        attempts: maximum number of attempts.
        seed: seed of the noise.
        batch: number of contractions that run at once. Few levels are worth most for a single one, and few
            multiplications for many.
    """
    generator = random.Random(seed)
    log_sizes = [math.log2(max(1, size)) for size in states]
    adjacent = neighbours(scopes, len(states))
    best: Tree | None = None
    cheapest = rough = math.inf
    work, limit = 0.0, seconds * WORK_PER_SECOND
    for number in range(attempts):
        bound = _PROMISING * math.exp2(cheapest) if best is not None else math.inf
        order, spent = attempt(adjacent, log_sizes, number, generator, bound)
        work += spent
        if order is not None:
            cheapest = min(cheapest, order.log_cost)
            tree = tree_of(order, scopes, log_sizes)
            cost = tree.log_cost()
            rough = min(rough, cost)
            work += 20 * len(scopes)
            if cost <= rough + math.log2(_PROMISING):
                if batch * math.exp2(cost) / OPERATIONS_PER_SECOND > SECONDS_PER_LEVEL:
                    allowed = min(max(limit - work, 0.0), tree.seconds(batch) * WORK_PER_SECOND)
                    work += reconfigure(tree, 0.05 * WORK_PER_SECOND + 0.25 * allowed)
                if best is None or tree.seconds(batch) < best.seconds(batch):
                    best = tree
        enough = min(limit, (0.25 * best.seconds(batch) + 0.02) * WORK_PER_SECOND) if best else math.inf
        report(_SEARCH, work / enough if 0 < enough < math.inf else 0.0)
        if number and work > enough:
            break
    report(_SEARCH, 1.0)
    assert best is not None
    return best
