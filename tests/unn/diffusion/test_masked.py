"""Masked diffusion: values are revealed instead of noise removed."""

import math

import pytest
import torch
from support.diffusion import declared, violations, watched, with_network
from support.helpers import says
from support.problem_graphs import all_grids, one_hot_grids, sudoku

import unn
from factors import Clique
from unn.diffusion import MaskedDiffusion
from unn.networks import Denoiser


def twins():
    """Two categories of three options and a binary value, all tied together."""
    g = unn.FactorGraph("twins", n=2, c=3)
    K, B = g.variable("K", "n | c", unn.Entropy()), g.variable("B", "m", unn.BinaryEntropy())
    g.factor(Clique(K["i v"], B["j"]))
    return g


def masked(graph, seed=0, **sizes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MaskedDiffusion(Denoiser(graph, width=8, heads=2, depth=2, sizes=sizes))
        for p in model.denoiser.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5)
    return model.double().eval()


SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def knowing(model):
    """A network that knows the distribution: both categories are the same, with these shares, and binary
    values say whether it is the first."""

    def network(rows, level, observed, frame, memory=None):
        K, B = rows[:, :6].view(-1, 2, 3), rows[:, 6:].view(len(rows), -1, 2)
        scores = SHARES.log().expand(len(rows), 3)
        for k in range(2):
            scores = torch.where(observed[:, k, None], 50.0 * (K[:, k] > 0), scores)
        for k in range(B.shape[1]):
            first = torch.tensor([0.0, -50.0, -50.0])
            scores = scores + torch.where(
                observed[:, 2 + k, None], torch.where(B[:, k, 1:] > 0, first, -50 - first), 0
            )
        chance = scores.softmax(1)[:, :1]
        binary = torch.cat([1 - chance, chance], 1).clamp(min=1e-12).log()
        return torch.cat([scores, scores, binary.repeat(1, B.shape[1])], 1)

    return with_network(model, network)


def test_revealed_one_by_one_samples_have_the_distribution_that_the_network_knows():
    model = knowing(masked(twins(), m=2))
    samples = model.sample(count=4000, seed=0, sizes={"m": 2})
    K, B = samples["K"].argmax(2), samples["B"]
    assert torch.equal(K[:, 0], K[:, 1]) and torch.equal(B, (K == 0).double())
    shares = K[:, 0].bincount(minlength=3) / 4000
    assert (shares - SHARES).abs().max() < 5 * 0.5 / 4000**0.5
    # all at once they know nothing of one another
    K = model.sample(count=4000, seed=0, steps=1, sizes={"m": 2})["K"].argmax(2)
    assert float((K[:, 0] == K[:, 1]).double().mean()) == pytest.approx(
        float(SHARES.square().sum()), abs=5 * 0.5 / 4000**0.5
    )
    # what is given is known from the start
    third = torch.tensor([[[0, 0, 1.0], [0, 0, 0]]])
    samples = model.sample(
        {"K": unn.Partial(third, torch.tensor([[True, False]]))}, 20, seed=0, sizes={"m": 2}
    )
    assert (samples["K"].argmax(2) == 2).all() and not samples["B"].any()


def test_the_loss_of_masked_diffusion_is_the_cross_entropy_of_masked_nodes():
    model = masked(twins(), m=1)
    K = torch.nn.functional.one_hot(torch.arange(300) % 3, 3).double()[:, None].expand(-1, 2, -1)
    values = {"K": K, "B": K[:, :1, 0]}
    nothing = {"B": torch.zeros(1, 1, dtype=torch.bool)}
    torch.manual_seed(0)
    assert float(
        with_network(model, lambda rows, *_: torch.zeros_like(rows)).loss(values, {"B": ~nothing["B"]}, m=1)
    ) == pytest.approx(math.log(3))
    clean = model.example(values, nothing, m=1)[0]
    assert float(with_network(model, lambda *_: 100 * clean).loss(values, nothing, m=1)) == pytest.approx(
        0, abs=1e-6
    )
    everything = {"K": torch.ones(1, 2, dtype=torch.bool), "B": ~nothing["B"]}
    assert (
        float(with_network(model, lambda rows, *_: torch.randn_like(rows)).loss(values, everything, m=1)) == 0
    )
    with torch.random.fork_rng(devices=[]):
        fresh = masked(twins(), m=1)
        fresh.loss(values, nothing, m=1).backward()
        assert all(p.grad.isfinite().all() for p in fresh.parameters())


@pytest.mark.parametrize("steps", [None, 1, 3, 1000])
def test_revealing_evaluates_the_network_once_per_step_and_keeps_given_values(steps):
    model = masked(sudoku(2, 2))
    calls = []
    watched(model, lambda rows, *_: calls.append(len(rows)))
    X = one_hot_grids(all_grids(2, 2)[:3], 4)
    where = torch.zeros(3, 4, 4, dtype=torch.bool)
    where[:, :2] = True
    samples = model.sample({"X": unn.Partial(X, where)}, 3, steps=steps, seed=0)
    assert len(calls) == min(steps or 8, 8) and torch.equal(samples["X"][where], X[where].double())
    assert ((samples["X"] == 0) | (samples["X"] == 1)).all() and (samples["X"].sum(3) == 1).all()
    calls.clear()
    assert torch.equal(model.sample({"X": X}, 3, steps=steps)["X"], X.double()) and not calls


@pytest.mark.parametrize("steps", [None, 1, 3, 5])
def test_a_revealed_sample_depends_on_its_own_seed_alone(steps):
    model = masked(sudoku(2, 2))
    X = one_hot_grids(all_grids(2, 2)[:4], 4)
    # some have more to reveal than others
    where = torch.zeros(4, 4, 4, dtype=torch.bool)
    where[1, 0], where[2, :3] = True, True
    given_all = {"X": unn.Partial(X, where)}
    whole = model.sample(given_all, 4, steps=steps, seed=[1, 2, 3, 4])
    assert torch.equal(model.sample(given_all, 4, steps=steps, seed=[1, 2, 3, 4])["X"], whole["X"])
    assert torch.equal(model.sample(given_all, 4, steps=steps, seed=[1, 2, 3, 4], at_once=1)["X"], whole["X"])
    order = [2, 0, 3, 1]
    mixed = model.sample(
        {"X": unn.Partial(X[order], where[order])}, 4, steps=steps, seed=[3, 1, 4, 2], at_once=2
    )
    assert torch.equal(mixed["X"], whole["X"][order])
    assert not torch.equal(model.sample(given_all, 4, steps=steps, seed=[5, 6, 7, 8])["X"], whole["X"])


def test_revealing_checks_tries_and_refuses_as_noise_does():
    model = masked(sudoku(2, 2))
    samples = model.sample(count=6, steps=2, verify=True, tries=3, seed=0)
    assert (
        torch.equal(samples.valid, violations(samples["X"]) == 0)
        and (samples.tries[~samples.valid] == 3).all()
    )
    for options in (
        {"count": 0},
        {"tries": 0},
        {"at_once": 0},
        {"steps": 0},
        {"steps": 1.5},
        {"count": 2, "seed": [1]},
        {"given": {"Y": 1}},
    ):
        with pytest.raises(unn.UnnError):
            model.sample(**options)
    with pytest.raises(unn.DeclarationError, match=says("'A'", "continuous", "unn.Diffusion")):
        MaskedDiffusion(Denoiser(declared(), width=8, heads=2))
