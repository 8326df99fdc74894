"""A denoiser whose body is an energy: who sees whom, tied weights, the engine's numbers."""

import pytest
import torch
from support.helpers import says
from support.problem_graphs import all_grids, one_hot_grids, sudoku

import unn
from factors import Clique, EnergyBody


def chain(n):
    g = unn.FactorGraph("chain", n=n)
    X = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Clique(X["i"], X["i+1"], each="i"))
    return g


@pytest.mark.parametrize("heads", [1, 2])
def test_each_round_after_the_first_carries_information_over_one_or_two_edges(heads):
    torch.manual_seed(0)
    rounds = 3
    body = EnergyBody(chain(9).adjacency(), width=8, heads=heads, rounds=rounds).double()
    tokens, condition = torch.randn(1, 9, 8, dtype=torch.float64), torch.zeros(1, 1, 8, dtype=torch.float64)
    moved = tokens.clone()
    moved[0, 0, 0] += 1
    changed = (body(tokens, condition) - body(moved, condition)).abs().amax(2)[0]
    # from keys to queries, and back
    assert (changed[:rounds] > 1e-12).all() and (changed[2 * (rounds - 1) + 1 :] == 0).all()


def test_all_rounds_share_their_weights():
    counts = {
        sum(p.numel() for p in EnergyBody(chain(4).adjacency(), 8, 2, rounds).parameters())
        for rounds in (1, 5)
    }
    assert len(counts) == 1


def test_no_round_raises_the_energy():
    torch.manual_seed(0)
    body = EnergyBody(chain(6).adjacency(), width=8, heads=2, rounds=4).double()
    network = body.network
    solution = unn.infer(
        network.graph, {"T": torch.randn(3, 6, 8, dtype=torch.float64)}, order=network.order, iterations=4
    )
    energy = solution.energy[torch.isfinite(solution.energy).all(1)]
    assert len(energy) > 10 and (energy.diff(dim=0) <= 1e-9).all()


def test_a_denoiser_with_this_body_learns_and_is_equivariant():
    torch.manual_seed(0)
    g = sudoku(2, 2)
    diffusion = unn.Diffusion(unn.Denoiser(g, width=16, body=EnergyBody(g.adjacency(), 16, 2, 3)))
    assert not len(diffusion.denoiser.blocks)
    grids = one_hot_grids(all_grids(2, 2), 4)
    optimizer = torch.optim.Adam(diffusion.parameters(), lr=5e-3)
    losses = []
    for _ in range(60):
        loss = diffusion.loss({"X": grids[torch.randint(288, (32,))]}, torch.rand(32, 16) < 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    frame = diffusion.denoiser.frame()
    order = frame.symmetries[0].permutation([1, 0])
    numbers = (order[:, None] * 4 + torch.arange(4)).flatten()
    x = torch.randn(2, 64)
    condition = diffusion.condition({}, 2)
    with torch.no_grad():
        there, here = (
            diffusion.denoise(x[:, numbers], torch.tensor(1.0), condition),
            diffusion.denoise(x, torch.tensor(1.0), condition),
        )
    torch.testing.assert_close(there, here[:, numbers], rtol=0, atol=1e-4)


def test_what_does_not_fit_is_refused():
    body = EnergyBody(chain(4).adjacency(), 8, 2)
    with pytest.raises(unn.ArgumentError, match=says("4 nodes", "5")):
        body(torch.zeros(1, 5, 8), torch.zeros(1, 1, 8))
    with pytest.raises(unn.ArgumentError, match=says("rounds", "0")):
        EnergyBody(chain(4).adjacency(), 8, 2, rounds=0)
    with pytest.raises(unn.DeclarationError, match=says("heads", "3")):
        EnergyBody(chain(4).adjacency(), 8, 3)
