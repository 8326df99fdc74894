"""Tokens, losses and probabilities of networks that estimate discrete nodes."""

import math

import torch

import unn
from unn.networks.labels import (
    labels_cross_entropy,
    value_probabilities,
    value_tokens,
    vocabulary_of,
)
from unn.networks.tokens import Rows


def frame() -> Rows:
    """Two categories of three values, and two bits."""
    g = unn.FactorGraph("both", node=2, colour=3)
    g.variable("X", "node | colour", unn.Entropy())
    g.variable("b", "node", unn.BinaryEntropy())
    return Rows(g, {}, ["X", "b"])


def test_tokens_number_the_unknown_value_and_the_values_of_each_variable():
    rows = frame()
    values = rows.flatten({"X": torch.eye(3)[torch.tensor([[2, 0]])], "b": torch.tensor([[1.0, 0.0]])})
    known = torch.tensor([[True, False, True, True]])
    channels = [slot.channels for slot in rows.slots.values()]
    assert vocabulary_of(rows) == sum(channels) + 2
    tokens = value_tokens(rows, values, known)[0].tolist()
    assert tokens[:2] == [3, 0]
    # tokens of the second variable begin after those of the first
    assert min(tokens[2:]) >= 4 and len(set(tokens[2:])) == 2


def test_cross_entropy_is_the_mean_over_the_nodes_with_a_label():
    rows = frame()
    values = rows.flatten({"X": torch.eye(3)[torch.tensor([[2, 0]])], "b": torch.tensor([[1.0, 0.0]])})
    logits = torch.zeros(1, 1, 4, 3)
    logits[0, 0, 0] = torch.tensor([0.0, 0.0, math.log(2.0)])
    one = torch.tensor([[False, True, True, True]])
    two = torch.tensor([[False, False, True, True]])
    assert float(labels_cross_entropy(rows, logits, values, one)) == float(torch.tensor(math.log(2.0)))
    expected = (math.log(2.0) + math.log(3.0)) / 2
    torch.testing.assert_close(labels_cross_entropy(rows, logits, values, two), torch.tensor(expected))
    nothing = torch.ones(1, 4, dtype=torch.bool)
    assert float(labels_cross_entropy(rows, logits, values, nothing)) == 0


def test_probabilities_of_each_node_sum_to_one():
    rows = frame()
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    p = value_probabilities(rows, logits)
    assert p.shape == (5, rows.numbers)
    sums = torch.zeros(5, 4).index_add(1, rows.node_of_number, p)
    torch.testing.assert_close(sums, torch.ones(5, 4))
