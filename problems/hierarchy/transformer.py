"""A transformer with hand-set weights that computes exact marginals of filtered trees.

It is the construction of the hierarchical-filtering paper, Appendix F, with corrections. A token belongs to a
leaf. Its numbers are

- ``own``, shape ``(q, q)``: ``own[a, b]`` is proportional to the probability of the known symbols of the
  token's subtree, but for its own, if the leaf has symbol a and the subtree's root has symbol b. At the leaf
  it is 1 for ``a = b``;
- ``up``, shape ``(q,)``: the upward message, the same sum with the evidence of the leaf;
- ``other``, shape ``(q,)``: the upward message of the sibling subtree, which attention writes;
- ``next_own`` and ``next_up``, of the same shapes: results of a layer before they replace the old numbers; at
  the star, the logarithm of ``own``, and the sum over its nodes of the logarithms of their messages;
- the turns on the path from the root to the leaf, +1 to the left and -1 to the right, and the constant 1.

A layer of the tree attends uniformly to the leaves of the sibling subtree and multiplies ``own`` and ``up``
by the message there; no downward sweep is needed, since each token carries its own conditional.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unn.errors import ArgumentError, InferenceError

from .grammar import Grammar

GAP = 60.0
"""Difference of the logits of leaves that a head attends to from those of all others; exp(-60) is 1e-26."""

CLOSED = 4.0
"""What a gate subtracts from the input of a unit, which is at most 2."""

LEAST_PRODUCT = 1e-4
"""Smallest maximum of products of numbers up to 1, whose absolute error is 1e-16."""

LEAST_OF_LOGS = 1e-100
"""Smallest maximum of exponentials of sums of logarithms; below it, logarithms of 0 may have been added."""

SMALLEST_LOG = -300.0
"""Stands for the logarithm of 0 in the layers of the star."""

Activation = Callable[[Tensor], Tensor]


def squared_relu(x: Tensor) -> Tensor:
    """``max(x, 0)**2``; products are differences of squares: ``2 x y = (x + y)**2 - x**2 - y**2``."""
    return x.relu().square()


def floored_log(x: Tensor) -> Tensor:
    """Logarithm, at least ``SMALLEST_LOG``."""
    return x.clamp(min=0).log().clamp(min=SMALLEST_LOG)


class Places:
    """Where the numbers of a token are.

    Args:
        symbols: number of symbols q.
        levels: depth of the tree.

    Attributes:
        own, next_own: indices of the numbers, shape ``(q, q)``.
        up, other, next_up: shape ``(q,)``.
        turns: shape ``(levels,)``.
        one: index of the constant.
        width: numbers of a token, ``2 q**2 + 3 q + levels + 1``.
    """

    def __init__(self, symbols: int, levels: int) -> None:
        q = symbols
        self.own, self.next_own = torch.arange(2 * q * q).view(2, q, q)
        self.up, self.other, self.next_up = torch.arange(2 * q * q, 2 * q * q + 3 * q).split(q)
        self.one = 2 * q * q + 3 * q + levels
        self.turns = torch.arange(self.one - levels, self.one)
        self.width = self.one + 1


class AttentionLayer(nn.Module):
    """One head of attention with a residual connection: ``x + softmax(x Q K^T x^T) x V``.

    Args:
        query, key: matrices of shape ``(width, features)``.
        value: matrix of shape ``(width, width)``.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(x, False) for x in (query, key, value))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of shape ``(batch, leaves, width)``."""
        logits = (x @ self.query) @ (x @ self.key).mT
        return x + logits.softmax(-1) @ (x @ self.value)


class FeedForward(nn.Module):
    """A hidden layer of units with a residual connection; the constant of the tokens serves as bias.

    Args:
        inputs: weights of the units, shape ``(width, units)``.
        outputs: shape ``(units, width)``.
        activation: function of a unit.
    """

    def __init__(self, inputs: Tensor, outputs: Tensor, activation: Activation) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Parameter(inputs, False), nn.Parameter(outputs, False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of shape ``(batch, leaves, width)``."""
        return x + self.activation(x @ self.inputs) @ self.outputs


class Normalization(nn.Module):
    """Divides groups of numbers by their maxima, so that messages neither overflow nor vanish.

    Args:
        groups: indices of each group.
        least: smallest maximum at which the numbers have all their digits.
    """

    def __init__(self, *groups: Tensor, least: float) -> None:
        super().__init__()
        self.least = least
        self.groups = [group.flatten() for group in groups]

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of shape ``(batch, leaves, width)``."""
        x = x.clone()
        for group in self.groups:
            largest = x[..., group].amax(-1, keepdim=True)
            unlikely = ~(largest >= self.least).flatten(1).all(1)
            if bool(unlikely.any()):
                raise InferenceError(
                    f"sequence {int(unlikely.nonzero()[0])} of the batch is impossible by the rules, or so "
                    "unlikely that this transformer would lose digits; unn.exact.marginals has the answer."
                )
            x[..., group] = x[..., group] / largest
        return x


class Units:
    """Units of a feed-forward layer, collected one after another.

    Args:
        places: where the numbers of a token are.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def add(self, reads: dict[int, float], writes: dict[int, float]) -> None:
        """A unit with the weights of what it reads and writes, by index."""
        for collected, weights in ((self._inputs, reads), (self._outputs, writes)):
            row = torch.zeros(self.places.width, dtype=torch.float64)
            for index, weight in weights.items():
                row[index] += weight
            collected.append(row)

    def layer(self, activation: Activation) -> FeedForward:
        """The layer of all units."""
        return FeedForward(torch.stack(self._inputs, 1), torch.stack(self._outputs), activation)


class ExactTransformer(nn.Module):
    """The transformer of a grammar; all weights are float64 and constant.

    Args:
        grammar: rules, prior of the root, depth and filtering.

    Attributes:
        layers: attention, feed-forward and normalisation layers in turn.
    """

    def __init__(self, grammar: Grammar) -> None:
        super().__init__()
        self.grammar = grammar
        self.places = Places(grammar.symbols, grammar.levels)
        layers: list[nn.Module] = []
        for height in range(grammar.levels - grammar.filtering):
            layers += self._tree_layer(grammar.levels - 1 - height)
        if grammar.filtering:
            layers += self._star_layers()
        self.layers = nn.Sequential(*layers)

    def forward(self, leaves: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Exact marginals.

        Args:
            leaves: symbols, shape ``(batch, leaves)``; those of masked leaves are ignored.
            known: mask of the leaves that are not masked, boolean, same shape.

        Returns:
            Marginals of the root, shape ``(batch, q)``, and of the leaves, ``(batch, leaves, q)``; those of
            known leaves are one-hot.

        Raises:
            ArgumentError: for sequences of another length, or symbols that the grammar does not have.
            InferenceError: for sequences that are impossible, or so unlikely that digits are lost.
        """
        q, p = self.grammar.symbols, self.places
        x = self.layers(self.embed(leaves, known))
        leaves = torch.where(known, leaves, 0)
        prior = torch.from_numpy(self.grammar.root)
        root = x[..., p.up][:, 0] * prior
        conditional = x[..., p.own.flatten()].unflatten(-1, (q, q)) @ prior
        evidence = torch.where(known[..., None], nn.functional.one_hot(leaves, q).bool(), True)
        marginals = torch.where(evidence, conditional, 0.0)
        return root / root.sum(-1, keepdim=True), marginals / marginals.sum(-1, keepdim=True)

    def embed(self, leaves: Tensor, known: Tensor) -> Tensor:
        """Tokens of the leaves, shape ``(batch, leaves, width)``; the arguments are those of ``forward``.

        Raises:
            ArgumentError: as for ``forward``.
        """
        grammar, p = self.grammar, self.places
        q, n = grammar.symbols, grammar.leaves
        if leaves.shape[1:] != (n,) or known.shape != leaves.shape or known.dtype != torch.bool:
            raise ArgumentError(
                f"this transformer reads sequences of {n} leaves and a boolean mask of the same shape, got "
                f"shapes {tuple(leaves.shape)} and {tuple(known.shape)} ({known.dtype})."
            )
        if leaves.dtype != torch.long:
            raise ArgumentError(f"the symbols of the leaves are numbers of dtype int64, got {leaves.dtype}.")
        leaves = torch.where(known, leaves, 0)
        if not bool(((leaves >= 0) & (leaves < q)).all()):
            raise ArgumentError(f"the symbols of the leaves lie between 0 and {q - 1}.")
        x = torch.zeros(*leaves.shape, p.width, dtype=torch.float64)
        x[..., p.own.flatten()] = torch.eye(q, dtype=torch.float64).flatten()
        x[..., p.up] = torch.where(known[..., None], nn.functional.one_hot(leaves, q).double(), 1 / q)
        turns = torch.arange(n)[:, None] >> torch.arange(grammar.levels - 1, -1, -1) & 1
        x[..., p.turns] = 1 - 2 * turns.double()
        x[..., p.one] = 1
        return x

    def _tree_layer(self, level: int) -> list[nn.Module]:
        """From the messages of the nodes of ``level + 1`` to those of ``level``."""
        p = self.places
        # the turns above are the same in the sibling subtree, this one differs, those below do not matter
        above = torch.zeros(p.width, level + 1, dtype=torch.float64)
        above[p.turns[: level + 1], torch.arange(level + 1)] = 1
        wanted = above.clone()
        wanted[p.turns[level], level] = -1
        attention = AttentionLayer(above * (GAP / 2), wanted, self._copied(p.up, p.other))
        units = Units(p)
        rules = torch.from_numpy(self.grammar.rules)
        for side, table in ((1.0, rules), (-1.0, rules.transpose(1, 2))):
            # open where the turn of the leaf is this side
            gate = {p.one: -CLOSED / 2, int(p.turns[level]): side * CLOSED / 2}
            self._add_products(units, table, gate)
        products = Normalization(p.own, p.up, least=LEAST_PRODUCT)
        return [attention, units.layer(squared_relu), self._replacement(), products]

    def _add_products(self, units: Units, table: Tensor, gate: dict[int, float]) -> None:
        """``new[., c] = sum table[c, b, d] old[., b] other[d]`` for the rows of ``own`` and for ``up``.

        Each product is half of ``(x + y)**2 - x**2 - y**2``; squares of single numbers are shared.
        """
        p = self.places
        for old_row, new_row in zip([*p.own, p.up], [*p.next_own, p.next_up], strict=True):
            shared: list[dict[int, float]] = [{} for _ in p.other]
            for b, old in enumerate(old_row.tolist()):
                single: dict[int, float] = {}
                for d, other in enumerate(p.other.tolist()):
                    half = {new: float(table[c, b, d]) / 2 for c, new in enumerate(new_row.tolist())}
                    units.add({old: 1.0, other: 1.0, **gate}, half)
                    for new, weight in half.items():
                        single[new] = single.get(new, 0.0) - weight
                        shared[d][new] = shared[d].get(new, 0.0) - weight
                units.add({old: 1.0, **gate}, single)
            for other, writes in zip(p.other.tolist(), shared, strict=True):
                units.add({other: 1.0, **gate}, writes)

    def _replacement(self) -> FeedForward:
        """Moves the results of a layer to the place of the old numbers, and clears what attention wrote."""
        p = self.places
        units = Units(p)
        results = torch.cat([p.next_own.flatten(), p.next_up])
        for old, new in zip(torch.cat([p.own.flatten(), p.up]).tolist(), results.tolist(), strict=True):
            units.add({old: 1.0}, {old: -1.0})
            units.add({new: 1.0}, {old: 1.0, new: -1.0})
        for other in p.other.tolist():
            units.add({other: 1.0}, {other: -1.0})
        return units.layer(torch.relu)

    def _star_layers(self) -> list[nn.Module]:
        """From the nodes of level k to the root: logarithms, a sum over all leaves, and exponentials."""
        p, grammar = self.places, self.grammar
        k = grammar.filtering
        rows = [*p.own, p.up]
        transitions = Units(p)
        for node, star in enumerate(torch.from_numpy(grammar.star())):
            signs = [1 - 2 * (node >> (k - 1 - t) & 1) for t in range(k)]
            # open where all k turns are those of the path to the node
            gate = {p.one: -k * CLOSED / 2} | {int(p.turns[t]): s * CLOSED / 2 for t, s in enumerate(signs)}
            for row in rows:
                for c, new in enumerate(row.tolist()):
                    reads = {old: float(star[c, b]) for b, old in enumerate(row.tolist())}
                    transitions.add(reads | gate, {new: 1.0})
        for x in torch.cat(rows).tolist():
            transitions.add({x: 1.0}, {x: -1.0})
        logarithms, cleared, exponentials = Units(p), Units(p), Units(p)
        for x in torch.cat(rows).tolist():
            cleared.add({x: 1.0}, {x: -1.0})
        for c, (up, other, total) in enumerate(
            zip(*(x.tolist() for x in (p.up, p.other, p.next_up)), strict=True)
        ):
            logarithms.add({up: 1.0}, {other: 1.0})
            exponentials.add({total: 1.0}, {up: 1.0})
            for own, log in zip(p.own[:, c].tolist(), p.next_own[:, c].tolist(), strict=True):
                logarithms.add({own: 1.0}, {log: 1.0})
                # the messages of the other nodes: the sum without the own
                exponentials.add({log: 1.0, total: 1.0, other: -1.0}, {own: 1.0})
        # attention is a mean over the leaves, and each node has equally many
        nothing = torch.zeros(p.width, 1, dtype=torch.float64)
        summing = AttentionLayer(nothing, nothing, self._copied(p.other, p.next_up) * 2.0**k)
        return [
            transitions.layer(torch.relu),
            Normalization(p.own, p.up, least=LEAST_PRODUCT),
            logarithms.layer(floored_log),
            cleared.layer(torch.relu),
            summing,
            exponentials.layer(torch.exp),
            Normalization(p.own, p.up, least=LEAST_OF_LOGS),
        ]

    def _copied(self, source: Tensor, target: Tensor) -> Tensor:
        """Matrix that copies numbers of a token, shape ``(width, width)``."""
        matrix = torch.zeros(self.places.width, self.places.width, dtype=torch.float64)
        matrix[source, target] = 1
        return matrix
