"""Exact probabilities of discrete nodes, and scores of estimated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ...exact.nodes import Nodes
from ...exact.queries import marginals, nodes_of
from .answers import Moments
from .scores import Scores

if TYPE_CHECKING:
    from ...factor_graph import FactorGraph
    from ...networks.tokens import Given

_BINS = 10
"""Bins of probabilities in the calibration error."""


@dataclass(frozen=True, eq=False)
class DiscreteTruth:
    """Exact probabilities of the hidden nodes of some queries.

    Attributes:
        nodes: the nodes of the graph.
        hidden: mask of the nodes that are compared, shape ``(count, nodes)``.
        exact: their probabilities, shape ``(hidden nodes, most states)``, 0 beyond the states of a node.
    """

    nodes: Nodes
    hidden: Tensor
    exact: Tensor

    needs_variances: ClassVar[bool] = False

    def scores_of_exact(self, seconds: float) -> Scores:
        """Scores of the exact probabilities."""
        return score_probabilities(self.exact, self.exact, seconds)

    def scores_of_samples(self, draws: int, seconds: float) -> Scores:
        """Scores of frequencies of independent exact samples: what a perfect sampler would score."""
        generator = torch.Generator().manual_seed(0)
        chosen = torch.multinomial(self.exact, draws, replacement=True, generator=generator)
        ones = torch.ones(chosen.shape, dtype=self.exact.dtype)
        counts = torch.zeros_like(self.exact).scatter_add_(1, chosen, ones)
        return score_probabilities(self.exact, self._smoothed(counts), seconds)

    def scores_of(self, answer: Moments, seconds: float) -> Scores:
        """Scores of an answer of an engine."""
        p = _probabilities(self.nodes, answer.means, self.hidden)
        if answer.draws:
            p = self._smoothed(p * answer.draws)
        return score_probabilities(self.exact, p, seconds)

    def _smoothed(self, counts: Tensor) -> Tensor:
        """Probabilities from counts, with half a count added to each state that a node has."""
        states = torch.tensor(self.nodes.states[: self.nodes.count])
        own = states.expand(len(self.hidden), -1)[self.hidden][:, None]
        there = torch.arange(counts.shape[1]) < own
        return torch.where(there, (counts + 0.5) / (counts.sum(1, keepdim=True) + 0.5 * own), 0)


def discrete_truth(
    graph: FactorGraph, given: Given, observable: Sequence[str], count: int, sizes: Mapping[str, int]
) -> DiscreteTruth | None:
    """Exact probabilities given the evidence; None where it leaves no node open.

    Args:
        graph: graph of discrete variables.
        given: evidence.
        observable: names of the variables that are compared.
        count: number of rows.
        sizes: sizes of the axes without a static size.
    """
    with torch.no_grad():
        exact = marginals(graph, given, sizes=sizes)
    nodes = nodes_of(graph, sizes)[0]
    hidden = nodes.evidence(given, batch=count).values < 0
    for name, own in nodes.ranges.items():
        if name not in observable:
            hidden[:, own.first : own.first + own.nodes] = False
    if not bool(hidden.any()):
        return None
    means = {name: x.cpu().expand(count, *x.shape[1:]) for name, x in exact.means.items()}
    return DiscreteTruth(nodes, hidden, _probabilities(nodes, means, hidden))


def score_probabilities(exact: Tensor, probabilities: Tensor, seconds: float) -> Scores:
    """Score probabilities against exact ones.

    The figures are ``kl``, the mean Kullback-Leibler divergence of a node from the exact probabilities, in
    nats; ``total_variation``, the mean distance of a node; ``log_score``, the expected logarithm of the
    probability of the value of a node, by the exact probabilities; ``calibration_error``, the mean absolute
    difference between probabilities and exact ones in bins of the former; and ``argmax_match``, the share of
    the nodes whose most probable value is the exact one.

    Args:
        exact: shape ``(hidden nodes, most states)``, 0 beyond the states of a node.
        probabilities: the same shape.
        seconds: time of a query.
    """
    safe = probabilities.clamp(min=1e-12)
    log_score = (exact * safe.log()).sum(1)
    entropy: Tensor = torch.special.entr(exact).sum(1)
    flat, true = probabilities.flatten(), exact.flatten()
    place = (flat * _BINS).long().clamp(0, _BINS - 1)
    bins, error = [], 0.0
    for number in range(_BINS):
        here = place == number
        # states that a node does not have would fill the first bin
        here = here & ((flat > 0) | (true > 0))
        if bool(here.any()):
            mean, true_mean = float(flat[here].mean()), float(true[here].mean())
            bins.append((mean, true_mean))
            error += float(here.sum()) * abs(mean - true_mean)
    counted = int(((flat > 0) | (true > 0)).sum())
    # of equally probable values any is right; of tied estimates each is the answer equally often
    right = exact >= exact.amax(1, keepdim=True) - 1e-6
    named = probabilities >= probabilities.amax(1, keepdim=True) - 1e-9
    best = (right & named).sum(1) / named.sum(1)
    figures = {
        "kl": float((-entropy - log_score).mean()),
        "total_variation": float((exact - probabilities).abs().sum(1).mean() / 2),
        "log_score": float(log_score.mean()),
        "calibration_error": error / max(1, counted),
        "argmax_match": float(best.double().mean()),
    }
    return Scores(figures, seconds, tuple(bins))


def _probabilities(nodes: Nodes, means: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Probabilities of the states of hidden nodes, shape ``(hidden nodes, most states)``."""
    count, most = len(hidden), max(nodes.states)
    result = torch.zeros(count, nodes.count, most, dtype=torch.float64)
    for name, own in nodes.ranges.items():
        if name not in means:
            continue
        x = means[name].double().reshape(count, own.nodes, -1)
        if not own.feature_shape:
            share = (x - own.low) / (own.high - own.low)
            x = torch.cat([1 - share, share], 2)
        result[:, own.first : own.first + own.nodes, : own.states] = x
    return result[hidden]
