"""Orders in which the variables of a table model are eliminated, by randomised greedy search.

Eliminating a variable multiplies the tables that contain it and sums it out; the result is a table over its
neighbours, which become neighbours of one another. The cost of an order is the total number of entries of
these products, not the size of the largest one alone: the total is what the time depends on.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Scope = tuple[int, ...]

_FIRST_KEYS = ((1.0, 0.0, 0.0), (1.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (0.5, 1.0, 0.2))
"""Weights of fill, size and level in the first, noiseless attempts."""

OPERATIONS_PER_SECOND = 1.5e9
"""Multiplications of a processor core in a second, roughly, for estimated times."""
SECONDS_PER_LEVEL = 3e-4
"""Time of the calls that products of one level of the tree need, roughly."""
WORK_PER_SECOND = 3e6
"""Units of work of a search in a second, roughly. Limits count work and not time, so that the same
search finds the
same order on every machine, however busy it is."""


@dataclass(frozen=True)
class Order:
    """An order of elimination.

    Attributes:
        variables: the variables in the order of their elimination.
        log_cost: log2 of the total number of entries of all products.
        log_largest: log2 of the number of entries of the largest product.
        levels: largest number of eliminations that depend on one another.
    """

    variables: tuple[int, ...]
    log_cost: float
    log_largest: float
    levels: int


def neighbours(scopes: Sequence[Scope], count: int) -> list[int]:
    """Neighbours of each variable as bit sets."""
    adjacent = [0] * count
    for scope in scopes:
        bits = 0
        for v in scope:
            bits |= 1 << v
        for v in scope:
            adjacent[v] |= bits & ~(1 << v)
    return adjacent


def members(bits: int) -> Iterator[int]:
    """Elements of a bit set, in increasing order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def greedy_order(
    adjacent: Sequence[int],
    log_sizes: Sequence[float],
    alpha: float,
    beta: float,
    gamma: float,
    noise: float,
    generator: random.Random,
    bound: float = math.inf,
) -> tuple[Order | None, float]:
    """Eliminate the variable with the smallest key next.

    The key is ``alpha * log2(1 + fill) + beta * log2(entries of the product) + gamma * level`` plus
    exponential noise, where fill is the number of pairs of neighbours that are not yet neighbours, and the
    level the number of eliminations on which the tables of the variable depend. The weight of the level makes
    the trees of chains balanced.

    Args:
        adjacent: neighbours as bit sets; variables without neighbours included.
        log_sizes: log2 of the number of states of each variable.
        alpha: weight of the fill.
        beta: weight of the size.
        gamma: weight of the level.
        noise: scale of the noise.
        generator: random number generator.
        bound: total number of entries beyond which the attempt is given up.

    Returns:
        The order, None if its cost exceeds the bound, and the work.
    """
    adjacent = list(adjacent)
    work = 0.0
    version = [0] * len(adjacent)
    level = [0] * len(adjacent)
    heap: list[tuple[float, float, int, int, float]] = []

    def push(v: int) -> None:
        nonlocal work
        near = adjacent[v]
        work += 2 + near.bit_count()
        size = log_sizes[v]
        missing = 0
        for u in members(near):
            size += log_sizes[u]
            missing += (near & ~adjacent[u]).bit_count() - 1
        key = alpha * math.log2(1 + missing // 2) + beta * size + gamma * level[v]
        if noise:
            key += noise * generator.expovariate(1.0)
        heapq.heappush(heap, (key, generator.random(), v, version[v], size))

    for v in range(len(adjacent)):
        push(v)
    order, total, largest = [], 0.0, 0.0
    while heap:
        _, _, v, pushed, size = heapq.heappop(heap)
        if pushed != version[v]:
            continue
        version[v] = -1
        order.append(v)
        total += 2.0**size
        largest = max(largest, size)
        if total > bound:
            return None, work
        near = adjacent[v]
        changed = near
        for u in members(near):
            level[u] = max(level[u], level[v] + 1)
            before = adjacent[u]
            adjacent[u] = (before | near) & ~((1 << v) | (1 << u))
            if adjacent[u] & ~before:
                # the fill of common neighbours of the new pair falls
                changed |= before & ~(1 << v)
        for u in members(changed):
            if version[u] >= 0:
                version[u] += 1
                push(u)
    levels = max(level, default=0)
    return Order(tuple(order), math.log2(total) if total else 0.0, largest, levels), work


def quick_order(scopes: Sequence[Scope], states: Sequence[int]) -> tuple[int, ...]:
    """One greedy order of elimination of all variables, without a search.

    Args:
        scopes: variables of each table.
        states: number of states of each variable.
    """
    sizes = [math.log2(size) for size in states]
    order, _ = greedy_order(neighbours(scopes, len(states)), sizes, 1.0, 1.0, 0.0, 0.0, random.Random(0))
    assert order is not None, "no bound is given"
    return order.variables


def attempt(
    adjacent: Sequence[int],
    log_sizes: Sequence[float],
    number: int,
    generator: random.Random,
    bound: float = math.inf,
) -> tuple[Order | None, float]:
    """One attempt of the search: the first ones without noise, then with random weights and noise.

    Args:
        adjacent: neighbours as bit sets.
        log_sizes: log2 of the number of states of each variable.
        number: number of the attempt, from 0.
        generator: random number generator.
        bound: total number of entries beyond which the attempt is given up.

    Returns:
        The order, None if its cost exceeds the bound, and the work.
    """
    if number < len(_FIRST_KEYS):
        alpha, beta, gamma = _FIRST_KEYS[number]
        return greedy_order(adjacent, log_sizes, alpha, beta, gamma, 0.0, generator, bound)
    alpha, beta, noise = generator.random(), generator.random(), 0.6 * generator.random() ** 2
    return greedy_order(adjacent, log_sizes, alpha, beta, 0.0, noise, generator, bound)
