"""Dependency parsing with an undirected network: heads, modifiers and the tree in one energy
(undirected-network paper, Section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import unn
from factors import Directed, Multilinear, TreeEntropy

from .config import ParsingConfig

LABEL_WIDTH = 100
ORDER = ("H", "M", "Y")


def declare(config: ParsingConfig, encoder: nn.Module) -> unn.FactorGraph:
    """The graph of Section 5, eq. 15 to 18: factors {XH, XM, YHM}, and the encoder as a directed part.

    ``words`` are the ids of the root and of n words, ``X`` their representations, ``H`` those of heads (the
    root in row 0), ``M`` those of modifiers, and ``Y[i, j]`` the probability that i is the head of word j +
    1. Updating H, M, Y once from zero is a biaffine parser (Dozat and Manning, 2017).

    Args:
        config: sizes and the activation of H and M.
        encoder: maps ``(batch, n + 1, features)`` to ``(batch, n + 1, width)``, zeros in padding to zeros.
    """
    g = unn.FactorGraph("parsing", width=config.width, hidden=config.hidden, modifier_hidden=config.hidden)
    words = g.constant("words", "node feature")
    X = g.variable("X", "node width", unn.SquaredNorm())
    H = g.variable("H", "node hidden", _regularizer(config.activation))
    M = g.variable("M", "word modifier_hidden", _regularizer(config.activation))
    Y = g.variable("Y", "node word", TreeEntropy(layout="rooted"))
    W_H = g.parameter("W_H", "hidden width")
    W_M = g.parameter("W_M", "modifier_hidden width")
    b_H = g.parameter("b_H", "hidden", init="zeros")
    b_M = g.parameter("b_M", "modifier_hidden", init="zeros")
    V = g.parameter("V", "hidden modifier_hidden", init="normal")
    g.factor(Directed(encoder, X, words, name="encoder", handles_padding=True))
    g.factor(Multilinear(H["i d"], W_H["d e"], X["i e"], name="XH"))
    g.factor(Multilinear(M["j d"], W_M["d e"], X["j+1 e"], name="XM"))
    g.factor(Multilinear(b_H["d"], H["i d"], name="bias H"))
    g.factor(Multilinear(b_M["d"], M["j d"], name="bias M"))
    g.factor(Multilinear(Y["i j"], H["i d"], V["d e"], M["j e"], name="YHM"))
    return g


@dataclass(frozen=True)
class Parse:
    """Parser output for a batch.

    Attributes:
        heads: shape ``(batch, n)``, int64: 0 for the root, words from 1; -1 in padding.
        marginals: marginal probability of each arc, shape ``(batch, n + 1, n)``.
        labels: label ids, shape ``(batch, n)``; None without labels.
    """

    heads: Tensor
    marginals: Tensor
    labels: Tensor | None


class ParsingNetwork(nn.Module):
    """Coordinate descent on the graph of ``declare``, unrolled: the encoder once, then rounds of H, M, Y.

    Args:
        config: configuration of the run.
        encoder: see ``declare``.
        label_count: number of arc labels; 0 for none. They are predicted from the representations of a word
            and its head by a bilinear form, which does not influence the tree.
        root_label: id of the label reserved for the arc from the root; None if there is none.
    """

    def __init__(
        self, config: ParsingConfig, encoder: nn.Module, label_count: int = 0, root_label: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.graph = declare(config, encoder)
        self.label_count = label_count
        self.root_label = root_label
        if label_count:
            self.label_head = nn.Linear(config.width, LABEL_WIDTH)
            self.label_modifier = nn.Linear(config.width, LABEL_WIDTH)
            self.label_form = nn.Parameter(torch.randn(label_count, LABEL_WIDTH + 1, LABEL_WIDTH + 1) * 0.01)
        self._unrolled: dict[tuple[int, bool], unn.Unrolled] = {}

    @property
    def trees(self) -> TreeEntropy:
        """The regularizer of Y."""
        regularizer = self.graph.variables["Y"].regularizer
        assert isinstance(regularizer, TreeEntropy)
        return regularizer

    def scores(
        self, words: Tensor, lengths: Tensor, iterations: int | None = None, arcs: unn.Partial | None = None
    ) -> tuple[Tensor, Tensor]:
        """Representations X ``(batch, n + 1, width)`` and arc scores ``(batch, n + 1, n)`` of the last
        update.

        Args:
            words: token ids, shape ``(batch, n + 1, features)``.
            lengths: numbers of words, shape ``(batch,)``.
            iterations: number of rounds; that of training by default.
            arcs: partially observed arcs, 1 given and 0 forbidden, shape ``(batch, n + 1, n)``.
        """
        net = self.unrolled(iterations or self.config.iterations, arcs is not None)
        inputs = (words,) if arcs is None else (words, arcs)
        preactivations = net.preactivations(*inputs, lengths={"node": lengths + 1, "word": lengths})
        assert isinstance(preactivations, tuple)
        return preactivations[0], preactivations[1]

    def unrolled(self, iterations: int, observed: bool = False) -> unn.Unrolled:
        """Unrolled rounds of the graph, sharing its weights; ``observed`` for partially observed arcs."""
        if (iterations, observed) not in self._unrolled:
            self._unrolled[iterations, observed] = unn.Unrolled(
                self.graph,
                given=["words", "Y"] if observed else "words",
                want=["X", "Y"],
                order=["X", *ORDER * iterations],
                dropout={"H": self.config.dropout, "M": self.config.dropout}
                if self.config.activation != "ball"
                else None,
            )
        return self._unrolled[iterations, observed].train(self.training)

    def loss(self, words: Tensor, lengths: Tensor, gold: Tensor, labels: Tensor | None) -> Tensor:
        """Mean over sentences of -log p(gold tree), plus the loss of arc labels if there are any.

        The matrix-tree theorem runs once for the last update of Y: its log-partition enters the loss, and its
        marginals are the gradient (footnote 3).

        Args:
            words: shape ``(batch, n + 1, features)``.
            lengths: shape ``(batch,)``.
            gold: heads, 0 for the root, shape ``(batch, n)``; anything in padding.
            labels: numbers of labels, shape ``(batch, n)``.
        """
        x, scores = self.scores(words, lengths)
        here = torch.arange(gold.shape[1], device=gold.device) < lengths[:, None]
        partition = self.trees.conjugate(scores, here[:, None].expand_as(scores))
        chosen = scores.gather(1, gold.clamp(0, gold.shape[1])[:, None])[:, 0]
        total = partition.sum() - torch.where(here, chosen, 0).sum()
        if labels is not None and self.label_count:
            total = total + nn.functional.cross_entropy(
                self.label_scores(x, gold)[here], labels[here], reduction="sum"
            )
        return total / len(gold)

    def label_scores(self, x: Tensor, heads: Tensor) -> Tensor:
        """Scores of labels for the arcs of a tree, shape ``(batch, n, labels)``."""
        ones = x.new_ones(*heads.shape, 1)
        head = torch.relu(self.label_head(x)).gather(
            1, heads.clamp(0, heads.shape[1])[:, :, None].expand(-1, -1, LABEL_WIDTH)
        )
        modifier = torch.relu(self.label_modifier(x[:, 1:]))
        return torch.einsum(
            "bnd,lde,bne->bnl", torch.cat([head, ones], 2), self.label_form, torch.cat([modifier, ones], 2)
        )

    def _labels(self, x: Tensor, heads: Tensor) -> Tensor:
        """Best label of each arc."""
        scores = self.label_scores(x, heads)
        if self.root_label is not None and self.label_count > 1:
            own = torch.arange(self.label_count, device=x.device) == self.root_label
            scores = scores.masked_fill(own != (heads == 0)[:, :, None], -torch.inf)
        return scores.argmax(2)

    @torch.no_grad()
    def parse(
        self, words: Tensor, lengths: Tensor, iterations: int | None = None, arcs: unn.Partial | None = None
    ) -> Parse:
        """Best trees and arc marginals under the scores of the last update; arguments as for ``scores``."""
        x, scores = self.scores(words, lengths, iterations, arcs)
        here = torch.arange(scores.shape[2], device=scores.device) < lengths[:, None]
        mask = here[:, None].expand_as(scores)
        trees = self.trees if arcs is None else self.trees.restricted(arcs.value, arcs.mask & mask)
        heads = torch.where(here, trees.argmax(scores, mask).argmax(1), -1)
        labels = self._labels(x, heads) if self.label_count else None
        return Parse(heads, trees.mirror(scores, mask), labels)


def _regularizer(activation: str) -> unn.Regularizer:
    if activation == "relu":
        return unn.NonNegative()
    return unn.SignedEntropy() if activation == "tanh" else unn.Ball()
