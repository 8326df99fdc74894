"""Attention between layers of latent groups is a mask, and part of the graph's structure."""

import pytest
import torch

import unn
from factors import LayerAttention, SpatialAttention
from unn.errors import DeclarationError


def groups(layers=4, side=2):
    g = unn.FactorGraph("groups", layer=layers, row=side, column=side, channel=3)
    return g, g.variable("z", "layer row column | channel", unn.SquaredNorm())


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_priors_attend_to_earlier_layers_and_posteriors_to_later_ones_and_themselves(layers):
    _, z = groups()
    everything = LayerAttention(z["l r c k"], "l")
    ones = torch.ones(layers, layers).bool()
    assert torch.equal(everything.prior_mask(layers), ones.tril(-1))
    assert torch.equal(everything.posterior_mask(layers), ones.triu())
    near = LayerAttention(z["l r c k"], "l", prior="neighbours", posterior="neighbours")
    assert torch.equal(near.prior_mask(layers), ones.tril(-1) & ones.triu(-1))
    assert torch.equal(near.posterior_mask(layers), ones.triu() & ones.tril(1))
    nothing = LayerAttention(z["l r c k"], "l", prior="none", posterior="none")
    assert not nothing.prior_mask(layers).any() and not nothing.posterior_mask(layers).any()


def test_the_graph_has_the_pairs_of_layers_at_each_position():
    g, z = groups(layers=3)
    g.factor(LayerAttention(z["l r c k"], "l"))
    matrix = torch.from_numpy(g.adjacency().matrix.toarray()).bool().view(3, 4, 3, 4)
    for a in range(4):
        for b in range(4):
            pairs = ~torch.eye(3).bool() if a == b else torch.zeros(3, 3).bool()
            assert torch.equal(matrix[:, a, :, b] & ~torch.eye(3).bool(), pairs)


def test_positions_of_a_layer_attend_to_one_another():
    g, z = groups(layers=2)
    g.factor(SpatialAttention(z["l r c k"], "l"))
    matrix = torch.from_numpy(g.adjacency().matrix.toarray()).bool().view(2, 4, 2, 4)
    assert matrix[0, :, 0, :].logical_or(torch.eye(4).bool()).all()
    assert not matrix[0, :, 1, :].any()


def test_the_graph_explains_its_attention():
    g, z = groups()
    g.factor(LayerAttention(z["l r c k"], "l", prior="neighbours", frozen=True))
    g.factor(SpatialAttention(z["l r c k"], "l"))
    text = g.explain()
    assert "attends over l: prior neighbours, posterior all, gates frozen" in text
    assert "attends over positions for each l" in text


def test_wrong_letters_and_spans_are_refused():
    _, z = groups()
    with pytest.raises(DeclarationError, match="prior='al' is unknown.*all"):
        LayerAttention(z["l r c k"], "l", prior="al")
    with pytest.raises(DeclarationError, match="names no letter"):
        LayerAttention(z["l r c k"], "m")
    with pytest.raises(DeclarationError, match="one letter"):
        LayerAttention(z["l r c k"], "l r")
    with pytest.raises(DeclarationError, match="one letter"):
        SpatialAttention(z["l r c k"], "")
