"""Random grammars on binary trees, filtered trees, and exact samples of them (hierarchical-filtering paper,
Section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import ArgumentError, is_whole

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grammar:
    """Rules of a binary tree, and their filtering.

    Attributes:
        rules: ``rules[a, b, c]`` is the probability of the children b (left) and c (right) of a, shape
            ``(q, q, q)``.
        root: prior of the root, shape ``(q,)``.
        levels: depth l; the tree has ``2 ** levels`` leaves.
        filtering: k; the nodes of level k are independent given the root. 0 is the whole tree.
    """

    rules: Array
    root: Array
    levels: int
    filtering: int

    def __post_init__(self) -> None:
        if not isinstance(self.rules, np.ndarray) or not isinstance(self.root, np.ndarray):
            raise ArgumentError("grammar: rules and prior are arrays of numpy; pass numpy.asarray(...).")
        q = len(self.root)
        if self.rules.shape != (q, q, q):
            raise ArgumentError(
                f"grammar: rules of {q} symbols have shape ({q}, {q}, {q}), got {self.rules.shape}."
            )
        if not is_whole(self.levels, 1) or not is_whole(self.filtering, 0) or self.filtering > self.levels:
            raise ArgumentError(
                f"grammar: filtering lies between 0 and the number of levels, which is at least 1, got "
                f"{self.filtering} and {self.levels}."
            )
        for name, table in (("rules", self.rules.reshape(q, -1)), ("prior", self.root[None])):
            if not np.isfinite(table).all() or (table < 0).any() or np.abs(table.sum(1) - 1).max() > 1e-9:
                raise ArgumentError(f"grammar: the {name} must be probabilities that sum to one.")

    @property
    def symbols(self) -> int:
        """Number of symbols q."""
        return len(self.root)

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return 1 << self.levels

    def star(self) -> Array:
        """Transitions from the root to the nodes of level k, shape ``(2 ** k, q, q)``.

        Each is the product of the marginal rules of left and right turns on the path from the root.
        """
        left, right = self.rules.sum(2), self.rules.sum(1)
        transitions = np.eye(self.symbols)[None]
        for _ in range(self.filtering):
            transitions = np.stack([transitions @ left, transitions @ right], 1).reshape(
                -1, self.symbols, self.symbols
            )
        return transitions


def draw_rules(symbols: int, sigma: float, seed: int) -> Array:
    """Random rules in which every pair of children has exactly one parent, shape ``(q, q, q)``.

    The pairs are shuffled and dealt out, q to each parent; the probabilities of the pairs of one parent are a
    softmax of normal numbers.

    Args:
        symbols: number of symbols q.
        sigma: standard deviation of the normal numbers.
        seed: seed of numpy's legacy generator, as in the paper.
    """
    random = np.random.RandomState(seed)
    pairs = [(b, c) for b in range(symbols) for c in range(symbols)]
    random.shuffle(pairs)
    scores = np.full((symbols, symbols, symbols), -np.inf)
    for number, (b, c) in enumerate(pairs):
        scores[number // symbols, b, c] = sigma * random.randn()
    weights = np.exp(scores - scores.max((1, 2), keepdims=True))
    rules: Array = weights / weights.sum((1, 2), keepdims=True)
    return rules


def draw_trees(grammar: Grammar, count: int, generator: torch.Generator) -> dict[int, Tensor]:
    """Exact samples of all nodes.

    Args:
        grammar: rules and filtering.
        count: number of trees.
        generator: random number generator.

    Returns:
        States by level, shape ``(count, 2 ** level)``: of the root and of the levels k to l.
    """
    q, k = grammar.symbols, grammar.filtering
    root = torch.multinomial(torch.from_numpy(grammar.root).expand(count, -1), 1, generator=generator)
    levels = {0: root}
    if k:
        star = torch.from_numpy(grammar.star())
        rows = star[:, root[:, 0]].reshape(-1, q)
        levels[k] = torch.multinomial(rows, 1, generator=generator).view(-1, count).T
    rules = torch.from_numpy(grammar.rules).reshape(q, -1)
    for level in range(k, grammar.levels):
        pairs = torch.multinomial(rules[levels[level]].flatten(0, 1), 1, generator=generator)
        pairs = pairs.view(count, -1)
        levels[level + 1] = torch.stack([pairs // q, pairs % q], 2).flatten(1)
    return levels
