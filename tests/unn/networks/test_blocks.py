"""Transformer blocks over the nodes of a graph, and embeddings of these nodes."""

import math

import pytest
import torch
from support.helpers import says

import unn
from factors import Depends
from unn.networks import ArrayEmbedding, Denoiser, TransformerBlock, node_positions, sinusoids
from unn.networks.tokens import Frames

WIDTH = 8


def chain():
    """Five nodes in a row, each of which interacts with the next."""
    g = unn.FactorGraph("chain", i=5)
    x = g.variable("x", "i", unn.SquaredNorm())
    g.factor(Depends(x["k+1"], x["k"]))
    return g


def block(**options):
    torch.manual_seed(0)
    made = TransformerBlock(WIDTH, 2, **options).double()
    # a new block is nearly the identity, which would show little
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    return made


def tokens(batch=2, nodes=5):
    return torch.randn(batch, nodes, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kernel", ["auto", "dense", "sparse"])
def test_a_block_carries_information_to_neighbours_alone(kernel):
    mask = Frames(chain()).at().masks("graph")
    x = tokens().requires_grad_()
    y = block()(x, mask=mask, kernel=kernel)
    for node in range(5):
        (gradient,) = torch.autograd.grad(y[:, node].square().sum(), x, retain_graph=True)
        reached = gradient.abs().sum((0, 2)) > 0
        assert reached.tolist() == [abs(other - node) <= 1 for other in range(5)]


def test_a_global_token_carries_information_past_the_mask():
    mask = Frames(chain()).at().masks("graph")
    x = tokens().requires_grad_()
    (gradient,) = torch.autograd.grad(block(global_token=True)(x, mask=mask)[:, 0].square().sum(), x)
    assert (gradient.abs().sum((0, 2)) > 0).all()


@pytest.mark.parametrize("conditioned", [True, False])
def test_without_a_mask_a_block_is_equivariant_under_permutations_of_tokens(conditioned):
    made, x = block(conditioned=conditioned), tokens()
    condition = tokens(2, 5) if conditioned else None
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = made(x[:, order], None if condition is None else condition[:, order])
    torch.testing.assert_close(permuted, made(x, condition)[:, order], rtol=1e-10, atol=1e-10)


def test_conditioning_broadcasts_and_changes_every_token():
    made, x = block(), tokens()
    one = torch.randn(2, 1, WIDTH, dtype=torch.float64)
    conditioned = made(x, one)
    torch.testing.assert_close(conditioned, made(x, one.expand(2, 5, WIDTH)), rtol=1e-12, atol=1e-12)
    assert ((conditioned - made(x)).abs().amax(2) > 1e-6).all()


def test_a_new_block_is_nearly_the_identity():
    x = tokens().float()
    assert (TransformerBlock(WIDTH, 2)(x) - x).abs().max() < 0.2


def test_a_conditioning_tensor_needs_weights():
    with pytest.raises(unn.ArgumentError, match=says("conditioning", "conditioned=True")):
        block(conditioned=False)(tokens(), tokens())


def test_weights_of_earlier_names_load():
    torch.manual_seed(0)
    g = chain()
    made, other = (
        Denoiser(g, width=WIDTH, depth=2, global_token=True),
        Denoiser(g, width=WIDTH, depth=2, global_token=True),
    )
    earlier = {
        name.replace(".conditioning.", ".told.").replace(".global_token.", ".everyone."): x
        for name, x in made.state_dict().items()
    }
    assert sum("told" in name or "everyone" in name for name in earlier) == 8
    other.load_state_dict(earlier)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), other.parameters(), strict=True))


def test_sinusoids_are_those_of_the_formula():
    values = sinusoids(torch.tensor([0.0, 3.0], dtype=torch.float64), 6)
    for k in range(3):
        angle = 3 * 10_000 ** (-k / 3)
        assert values[1, k].item() == pytest.approx(math.sin(angle)) and values[
            1, 3 + k
        ].item() == pytest.approx(math.cos(angle))
    assert values[0].tolist() == [0, 0, 0, 1, 1, 1]


def test_nodes_share_positions_along_shared_indices_alone():
    g = unn.FactorGraph("grid", row=3, column=2)
    x = g.variable("x", "row column", unn.SquaredNorm())
    g.factor(Depends(x["r c"], x["r d"]))
    frame = Frames(g).at()
    shared = [symmetry for symmetry in frame.symmetries if symmetry.name == "x.row"]
    assert shared
    apart, together = (node_positions(g, frame, symmetries).view(3, 2, -1) for symmetries in ([], shared))
    assert len(apart.flatten(0, 1).unique(dim=0)) == 6
    assert torch.equal(together[0], together[2]) and not torch.equal(together[:, 0], together[:, 1])
    embedding = ArrayEmbedding(g, WIDTH)(node_positions(g, frame, shared), frame)
    assert embedding.shape == (6, WIDTH) and len(embedding.detach().unique(dim=0)) == 2
