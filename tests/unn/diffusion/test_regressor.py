"""The regressor: it learns functions and posterior means."""

import pytest
import torch
from support.diffusion import any_nodes, train
from support.problem_graphs import all_grids, circuit, one_hot_grids, sudoku

import unn
from factors import Clique
from unn.diffusion import Regressor


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def gate():
    """The two inputs of an AND and its output."""
    inputs = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    return {"L0": inputs, "L1": inputs.prod(1, keepdim=True)}


@pytest.mark.parametrize("structure", ["graph", "dense"])
def test_a_regressor_learns_a_function(structure):
    values = gate()
    model = Regressor(unn.Denoiser(circuit(1, True), width=16, depth=2, heads=2, structure=structure))
    seen = {"L0": torch.ones(4, 2, dtype=torch.bool)}
    assert train(model, lambda: (values, seen), 50) < 1e-2
    samples = model.sample({"L0": values["L0"]}, 4)
    assert torch.equal(samples["L1"], values["L1"])
    assert torch.equal(samples["L0"], values["L0"])
    assert samples.valid is None and samples.tries.tolist() == [1, 1, 1, 1]


def test_a_regressor_finds_the_smaller_and_the_larger():
    g = unn.FactorGraph("order", i=2)
    u, s = g.variable("u", "i", unn.SquaredNorm()), g.variable("s", "i", unn.SquaredNorm())
    g.factor(Clique(u["i"], s["j"], ordered="i j"))
    model = Regressor(unn.Denoiser(g, width=32, depth=2, heads=2))

    def batch():
        drawn = torch.randn(64, 2)
        return {"u": drawn, "s": drawn.sort(1).values}, {"u": torch.ones(1, 1, dtype=torch.bool)}

    train(model, batch, 150)
    u = torch.randn(200, 2)
    samples = model.sample({"u": u}, 200)
    assert (samples["s"] - u.sort(1).values).abs().mean() < 0.12
    assert torch.equal(samples["u"], u)


def test_a_regressor_estimates_the_posterior_mean():
    """One free coin that two nodes share: the least error is 1 / 2 for each, in units of variance 1."""
    model = Regressor(unn.Denoiser(circuit(1, True), width=16, depth=2, heads=2))
    coin = torch.tensor([0.0, 1.0] * 32)[:, None]
    values = {"L0": coin.expand(64, 2), "L1": coin}
    train(model, lambda: (values, {}), 50)
    estimate = model._natural(model.estimate(model.condition({}, 1)), model.denoiser.frame())
    torch.testing.assert_close(estimate, torch.full((1, 6), 0.5), atol=0.05, rtol=0)


def test_a_regressor_has_no_noise_and_counts_each_node_once():
    g = sudoku(2, 2)
    model = Regressor(unn.Denoiser(g, width=8, depth=1, heads=2, dropout=0.5))
    x = {"X": one_hot_grids(all_grids(2, 2)[:3], 4)}
    observed = any_nodes(3, 16)
    model.eval()
    loss = model.loss(x, observed)
    assert torch.equal(loss, model.loss(x, observed))
    clean, condition = model.example(x, observed)
    error = ((model.estimate(condition) - clean) ** 2).view(3, 16, 4).mean(2)
    torch.testing.assert_close(loss, error[~observed].mean())
    assert model.loss(x, torch.ones(3, 16, dtype=torch.bool)) == 0
    model.train()
    first, second = model.sample({}, 2, verify=True), model.sample({}, 2, at_once=1)
    assert torch.equal(first["X"], second["X"])
    assert model.training
    assert first.valid.dtype == torch.bool
