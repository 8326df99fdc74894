"""The auto-encoder: conditionals, the joint, its bound, and what it refuses."""

import pytest
import torch
from support.diffusion import any_nodes, train
from support.helpers import says
from support.problem_graphs import all_grids, circuit, one_hot_grids, sudoku

import unn
from factors import Clique
from unn.diffusion import VAEAC, Regressor

CORRELATION = 0.95


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def plane():
    """Two numbers that interact."""
    g = unn.FactorGraph("plane", i=2)
    g.factor(Clique(g.variable("x", "i", unn.SquaredNorm())["i"], ordered="i"))
    return g


def correlated(count):
    a, b = torch.randn(2, count)
    return 3 + 2 * torch.stack([a, CORRELATION * a + (1 - CORRELATION**2) ** 0.5 * b], 1)


@pytest.fixture(scope="module")
def trained():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VAEAC(plane(), width=32, depth=2, latent=4)
        model.standardise({"x": correlated(2000)})
        # half of the time nothing is seen, which is what needs the latent numbers
        train(model, lambda: ({"x": correlated(128)}, any_nodes(128, 2) & (torch.rand(128, 1) < 0.5)), 250)
    return model


def test_the_auto_encoder_learns_a_conditional(trained):
    x = torch.tensor([[5.0, 0.0]])
    samples = trained.sample({"x": unn.Partial(x, torch.tensor([[True, False]]))}, 3000, seed=0)["x"]
    assert (samples[:, 0] == 5).all()
    assert samples[:, 1].mean().item() == pytest.approx(3 + 2 * CORRELATION, abs=0.25)
    assert samples[:, 1].std().item() == pytest.approx(2 * (1 - CORRELATION**2) ** 0.5, abs=0.2)


def test_the_auto_encoder_learns_the_joint(trained):
    samples = trained.sample({}, 3000, seed=0)["x"]
    torch.testing.assert_close(samples.mean(0), torch.full((2,), 3.0), atol=0.25, rtol=0)
    torch.testing.assert_close(samples.std(0), torch.full((2,), 2.0), atol=0.3, rtol=0)
    assert torch.corrcoef(samples.T)[0, 1] > 0.8


def test_samples_of_the_auto_encoder_depend_on_their_seeds_alone(trained):
    all_of_them = trained.sample({}, 5, seed=[4, 5, 6, 7, 8])["x"]
    torch.testing.assert_close(trained.sample({}, 2, seed=[6, 4], at_once=1)["x"], all_of_them[[2, 0]])
    assert torch.equal(trained.sample({}, 5, seed=1)["x"], trained.sample({}, 5, seed=1)["x"])
    assert not torch.equal(trained.sample({}, 5, seed=1)["x"], trained.sample({}, 5, seed=2)["x"])


def test_the_auto_encoder_samples_categories():
    """Grids of which there are only two: what is seen says which it is."""
    model = VAEAC(sudoku(2, 2), width=48, depth=2, latent=4)
    two = one_hot_grids(all_grids(2, 2)[[0, 200]], 4)
    train(model, lambda: ({"X": two[torch.randint(2, (64,))]}, any_nodes(64, 16)), 150)
    differ = (two[0] != two[1]).any(2)
    cell = torch.zeros(4, 4, dtype=torch.bool)
    cell.view(-1)[int(differ.flatten().nonzero()[0])] = True
    samples = model.sample({"X": unn.Partial(two[1:], cell[None])}, 20, seed=0, verify=True, tries=3)
    assert (samples["X"] == two[1]).all(3).float().mean() > 0.95
    assert samples.valid.float().mean() > 0.8
    either = model.sample({}, 60, seed=0)["X"]
    assert ((either == two[0]).all(3).float().mean((1, 2)) > 0.9).float().mean() > 0.2
    assert ((either == two[1]).all(3).float().mean((1, 2)) > 0.9).float().mean() > 0.2


def test_the_bound_of_the_auto_encoder_is_below_the_evidence(trained):
    """In nats: no model has less loss than the true density, on average over many samples."""
    x = correlated(4000)
    covariance = 4 * torch.tensor([[1.0, CORRELATION], [CORRELATION, 1.0]])
    truth = (
        torch.distributions.MultivariateNormal(torch.full((2,), 3.0), covariance).log_prob(x).mean()
        + 2 * trained.scales[0].log()
    )
    with torch.no_grad():
        loss = trained.loss({"x": x}, torch.zeros(4000, 2, dtype=torch.bool))
        none = trained.loss({"x": x}, torch.ones(4000, 2, dtype=torch.bool))
    assert -0.03 < (loss + truth).item() < 0.9
    # where nothing is hidden, the proposal is the prior but for what training leaves
    assert -0.01 < none.item() < 0.3


def test_binary_values_and_a_unit_deviation_are_modelled():
    g = circuit(1, True)
    model = VAEAC(g, width=16, depth=1, latent=2)
    samples = model.sample({"L0": torch.tensor([[1.0, 0.0]])}, 6, seed=0)
    assert torch.equal(samples["L0"], torch.tensor([[1.0, 0.0]]).expand(6, 2))
    assert set(samples["L1"].flatten().tolist()) <= {0.0, 1.0}
    spread = VAEAC(plane(), width=8, depth=1, latent=1, deviation="unit")
    for weight in spread.decoder.last.parameters():
        torch.nn.init.zeros_(weight)
    assert spread.sample({}, 2000, seed=0)["x"].std().item() == pytest.approx(1, abs=0.05)


def test_the_auto_encoder_is_for_one_size():
    g = unn.FactorGraph("line")
    g.factor(Clique(g.variable("x", "i", unn.SquaredNorm())["i"]))
    model = VAEAC(g, width=8, depth=1, latent=2, sizes={"i": 3})
    assert model.sample({}, 2, sizes={"i": 3})["x"].shape == (2, 3)
    with pytest.raises(unn.ArgumentError, match=says("shapes", "(3,)", "(4,)")):
        model.sample({}, 2, sizes={"i": 4})
    with pytest.raises(unn.ArgumentError, match=says("(5,)")):
        model.loss({"x": torch.randn(2, 5)}, torch.zeros(2, 5, dtype=torch.bool), i=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 0}, ["width", "0"]),
        ({"depth": 1.5}, ["depth", "1.5"]),
        ({"latent": True}, ["latent", "True"]),
        ({"deviation": "lerned"}, ["deviation", "lerned", "learned"]),
    ],
)
def test_bad_options_of_the_auto_encoder_are_refused(options, words):
    with pytest.raises(unn.ArgumentError, match=says("vaeac", *words)):
        VAEAC(plane(), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: VAEAC(plane(), width=8, depth=1, latent=2),
        lambda: Regressor(unn.Denoiser(plane(), width=8, heads=2)),
    ],
)
def test_bad_values_and_counts_are_refused(make):
    model = make()
    none = torch.zeros(2, 2, dtype=torch.bool)
    with pytest.raises(unn.ArgumentError, match=says("count", "0")):
        model.sample({}, 0)
    with pytest.raises(unn.ArgumentError, match=says("at_once", "-1")):
        model.sample({}, 1, at_once=-1)
    with pytest.raises(unn.ObservationError, match=says("'y'", "x")):
        model.sample({"y": torch.zeros(1, 2)}, 1)
    with pytest.raises(unn.ObservationError, match="NaN"):
        model.sample({"x": torch.full((1, 2), torch.nan)}, 1)
    with pytest.raises(unn.ObservationError, match=says("(batch, 2)", "(2, 3)")):
        model.loss({"x": torch.zeros(2, 3)}, none)
    with pytest.raises(unn.ObservationError, match=says("(2, 2)", "bool")):
        model.loss({"x": torch.zeros(2, 2)}, none.float())
