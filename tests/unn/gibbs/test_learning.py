"""Energies learned from examples."""

import copy
import math

import pytest
import torch

import unn
from factors import Implicit, Multilinear
from unn.engine import SamplingOptions
from unn.errors import ArgumentError, InferenceError, ObservationError
from unn.gibbs import GibbsModel, GibbsOptions
from unn.gibbs.chains import Chains
from unn.gibbs.learning import completed, contrast


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def spins(rows=3, columns=3):
    g = unn.FactorGraph("spins", r=rows, c=columns)
    s = g.variable("S", "r c", unn.SignedEntropy())
    for name, shift in (("down", "i+1 j"), ("right", "i j+1")):
        g.factor(Multilinear(s["i j"], g.parameter(name, "r c", init="zeros")["i j"], s[shift]))
    g.factor(Multilinear(s["i j"], g.parameter("field", "r c", init="zeros")["i j"]))
    return g


def machine(visible=4, hidden=3, seed=0):
    """A restricted Boltzmann machine."""
    g = unn.FactorGraph("machine", visible=visible, hidden=hidden)
    v = g.variable("v", "visible", unn.BinaryEntropy())
    h = g.variable("h", "hidden", unn.BinaryEntropy())
    g.factor(Multilinear(v["i"], g.parameter("W", "visible hidden")["i j"], h["j"]))
    g.factor(Multilinear(v["i"], g.parameter("b", "visible")["i"]))
    g.factor(Multilinear(h["j"], g.parameter("c", "hidden")["j"]))
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(seed)))
    return g


@pytest.fixture(scope="module")
def examples():
    g = spins()
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=seeded(3)))
    return g, unn.exact.sample(g, count=4000, generator=seeded(1))["S"][0].float()


@pytest.mark.slow
@pytest.mark.parametrize(
    "learning", ["likelihood", "pseudolikelihood", "persistent", "contrastive", "energy-discrepancy"]
)
def test_couplings_are_recovered_from_samples(learning, examples):
    truth, x = examples
    g = spins()
    model = GibbsModel(g, GibbsOptions(learning=learning, chains=1000))
    optimizer = torch.optim.Adam(g.parameters(), lr=0.05)
    torch.manual_seed(0)
    for _ in range(120):
        optimizer.zero_grad()
        model.loss({"S": x}, {}).backward()
        optimizer.step()
    for name, shape in (("down", (2, 3)), ("right", (3, 2)), ("field", (3, 3))):
        learned, known = (getattr(one, name).detach()[: shape[0], : shape[1]] for one in (g, truth))
        # the standard error of a coupling from 4,000 samples is about 0.02
        assert float((learned - known).abs().amax()) < 0.12


def gradient(graph, loss):
    graph.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in graph.parameters()])


def test_the_gradient_of_the_contrast_is_that_of_the_likelihood_on_average(examples):
    g = machine()
    x = torch.bernoulli(torch.full((64, 4), 0.5), generator=seeded(2))
    exact = gradient(g, GibbsModel(g, GibbsOptions(learning="likelihood")).loss({"v": x}, {}))
    draws = completed(Chains(g, {}, 1, 40_000, generator=seeded(0)), 60)
    hidden = completed(Chains(g, {"v": x.repeat(200, 1)}, 64 * 200, 1, generator=seeded(1)), 1)
    estimate = gradient(g, contrast(g, hidden, draws))
    torch.testing.assert_close(estimate, exact, atol=0.02, rtol=0)


def test_the_variable_drawn_last_is_replaced_by_its_exact_mean():
    g = machine()
    x = torch.bernoulli(torch.full((5, 4), 0.5), generator=seeded(2))
    values = completed(Chains(g, {"v": x}, 5, 1, generator=seeded(0)), 1)
    torch.testing.assert_close(values["h"], torch.sigmoid(x @ g.W + g.c).detach())
    assert torch.equal(values["v"], x)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_pseudolikelihood_is_the_product_of_the_conditionals_of_the_energy(temperature, examples):
    g, x = examples
    x = x[:6]
    model = GibbsModel(g, GibbsOptions(learning="pseudolikelihood", temperature=temperature))
    total = torch.zeros(len(x))
    for i in range(3):
        for j in range(3):
            flipped = x.clone()
            flipped[:, i, j] *= -1
            rise = (g.energy({"S": flipped}) - g.energy({"S": x})) / temperature
            total = total + torch.nn.functional.logsigmoid(rise)
    torch.testing.assert_close(model.loss({"S": x}, {}), -total.mean())


def test_the_pseudolikelihood_of_real_variables_is_a_density():
    g = unn.FactorGraph("real", n=2)
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "n", unn.SquaredNorm())
    a = g.parameter("A", "n n")
    g.factor(Multilinear(x["i"], a["i j"], y["j"]))
    values = {name: torch.randn(5, 2, generator=seeded(k)) for k, name in enumerate("xy")}
    loss = GibbsModel(g, GibbsOptions(learning="pseudolikelihood")).loss(values, {})
    means = values["y"] @ g.A.T, values["x"] @ g.A
    logs = [
        torch.distributions.Normal(m, 1.0).log_prob(values[name]).sum(1)
        for m, name in zip(means, "xy", strict=True)
    ]
    torch.testing.assert_close(loss, -(logs[0] + logs[1]).mean())


def normal_graph():
    g = unn.FactorGraph("normal", n=2)
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], g.parameter("A", "n n", init="zeros")["i j"], y["j"]))
    g.factor(Multilinear(g.parameter("b", "n", init="zeros")["i"], x["i"]))
    return g


@pytest.mark.slow
@pytest.mark.parametrize("learning", ["score-matching", "energy-discrepancy", "likelihood"])
def test_real_losses_recover_a_normal_distribution(learning):
    a, b = torch.tensor([[0.4, -0.2], [0.1, 0.3]]), torch.tensor([0.5, -0.3])
    precision = torch.eye(4)
    precision[:2, 2:], precision[2:, :2] = -a, -a.T
    mean = precision.inverse() @ torch.cat([b, torch.zeros(2)])
    torch.manual_seed(0)
    draws = torch.distributions.MultivariateNormal(mean, precision_matrix=precision).sample((20_000,))
    model = GibbsModel(normal_graph(), GibbsOptions(learning=learning, noise=0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        rows = draws[torch.randint(len(draws), (4000,))]
        optimizer.zero_grad()
        model.loss({"x": rows[:, :2], "y": rows[:, 2:]}, {}).backward()
        optimizer.step()
    torch.testing.assert_close(model.graph.A.detach(), a, atol=0.06, rtol=0)
    torch.testing.assert_close(model.graph.b.detach(), b, atol=0.06, rtol=0)


def test_score_matching_is_that_of_the_log_density():
    g = unn.FactorGraph("curved", n=2)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda x: (x[:, 0] * x[:, 1]).cosh(), x["i"]))
    values = torch.randn(3, 2, generator=seeded(0), dtype=torch.float64)
    loss = GibbsModel(g, GibbsOptions(learning="score-matching", temperature=2.0)).loss({"x": values}, {})

    def log_density(v):
        return -(0.5 * v.square().sum() + (v[0] * v[1]).cosh()) / 2.0

    expected = []
    for v in values:
        slope = torch.autograd.functional.jacobian(log_density, v)
        curvature = torch.autograd.functional.hessian(log_density, v)
        expected.append(0.5 * slope.square().sum() + curvature.trace())
    torch.testing.assert_close(loss, torch.stack(expected).mean())


def test_persistent_chains_go_on_where_they_were_and_are_saved(examples):
    _, x = examples
    model = GibbsModel(spins(), GibbsOptions(chains=10, learning_sweeps=2))
    torch.manual_seed(0)
    model.loss({"S": x[:20]}, {})
    state = {name: value.clone() for name, value in model.training_state().items()}
    assert {value.shape for value in state.values()} == {(10, 3, 3)}
    other = copy.deepcopy(model)
    other.load_training_state(state)
    torch.manual_seed(1)
    first = model.loss({"S": x[:20]}, {})
    torch.manual_seed(1)
    assert torch.equal(first, other.loss({"S": x[:20]}, {}))
    fresh = GibbsModel(spins(), GibbsOptions(chains=10))
    assert fresh.training_state() == {}


@pytest.mark.parametrize("chains", [5, 25])
def test_persistent_chains_go_on_in_another_number(chains, examples):
    _, x = examples
    model = GibbsModel(spins(), GibbsOptions(chains=10))
    model.loss({"S": x[:20]}, {})
    (before,) = model.training_state().values()
    other = GibbsModel(spins(), GibbsOptions(chains=chains))
    other.load_training_state(model.training_state())
    initial = []
    restarted = Chains.restart
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Chains, "restart", lambda self, start=None: initial.append(start) or restarted(self, start)
        )
        other.loss({"S": x[:20]}, {})
    assert torch.equal(initial[-1]["S"], before[torch.arange(chains) % 10])
    (after,) = other.training_state().values()
    assert after.shape == (chains, 3, 3)


def test_means_and_samples_of_the_model_are_those_of_its_energy(examples):
    g, _ = examples
    model = GibbsModel(g, GibbsOptions(chains=300, burn_in=30, chain_draws=30))
    exact = unn.exact.marginals(g)["S"][0].detach().float()
    torch.manual_seed(0)
    torch.testing.assert_close(model.infer_values({}, 2, {})["S"][1], exact, atol=0.04, rtol=0)
    drawn = model.sample_with({}, 3000, SamplingOptions(steps=30, seed=1, at_once=1000), {})
    torch.testing.assert_close(drawn["S"].mean(0), exact, atol=0.08, rtol=0)
    again = model.sample_with({}, 3000, SamplingOptions(steps=30, seed=1, at_once=1000), {})
    assert torch.equal(drawn["S"], again["S"])


def test_sampling_reports_every_sweep():
    steps = []
    model = GibbsModel(spins(), GibbsOptions())
    model.sample_with(
        {}, 2, SamplingOptions(steps=3), {}, trace=lambda k, values: steps.append((k, set(values)))
    )
    assert steps == [(k, {"S"}) for k in range(3)]


# -- bad input -----------------------------------------------------------------------------------------------


def test_unknown_variables_are_refused(examples):
    _, x = examples
    with pytest.raises(ObservationError, match="'T'"):
        GibbsModel(spins(), GibbsOptions()).loss({"T": x}, {})


def test_the_pseudolikelihood_refuses_latent_variables_by_name():
    with pytest.raises(InferenceError, match="'h'.*persistent"):
        GibbsModel(machine(), GibbsOptions(learning="pseudolikelihood")).loss({"v": torch.ones(2, 4)}, {})


def test_the_pseudolikelihood_refuses_variables_without_a_closed_form_by_name():
    g = unn.FactorGraph("curved", n=3)
    x = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda x: x.sum(1).cosh(), x["i"]))
    with pytest.raises(InferenceError, match="'X'.*closed form"):
        GibbsModel(g, GibbsOptions(learning="pseudolikelihood")).loss({"X": torch.ones(2, 3)}, {})


@pytest.mark.parametrize("learning", ["score-matching", "energy-discrepancy"])
def test_losses_of_all_values_refuse_latent_variables_by_name(learning):
    with pytest.raises(InferenceError, match="'h'.*persistent"):
        GibbsModel(machine(), GibbsOptions(learning=learning)).loss({"v": torch.ones(2, 4)}, {})


@pytest.mark.parametrize("learning", ["pseudolikelihood", "score-matching", "energy-discrepancy"])
def test_losses_of_all_values_refuse_examples_that_are_given_in_part_by_name(learning, examples):
    _, x = examples
    partial = unn.Partial(x[:2], torch.ones(2, 3, 3, dtype=torch.bool))
    with pytest.raises(InferenceError, match="'S' are given in part.*persistent"):
        GibbsModel(spins(), GibbsOptions(learning=learning)).loss({"S": partial}, {})


def test_the_likelihood_of_examples_in_part_is_the_marginal_one():
    g = machine()
    v = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    partial = unn.Partial(v, torch.tensor([[True, True, False, True], [True, False, True, True]]))
    model = GibbsModel(g, GibbsOptions(learning="likelihood"))
    expected = []
    for row, mask in zip(v, partial.mask, strict=True):
        fillings = torch.cartesian_prod(
            *[torch.tensor([x]) if m else torch.tensor([0.0, 1.0]) for x, m in zip(row, mask)]
        )
        logs = torch.stack([-model.loss({"v": x[None]}, {}) for x in fillings])
        expected.append(-logs.logsumexp(0))
    torch.testing.assert_close(model.loss({"v": partial}, {}), torch.stack(expected).mean())


@pytest.mark.parametrize("learning", ["persistent", "contrastive"])
def test_the_gradient_of_chains_draws_what_examples_lack(learning):
    # given v and one of two hidden units, the other one has a known mean
    g = unn.FactorGraph("one", visible=1, hidden=2)
    v, h = (g.variable(name, axis, unn.BinaryEntropy()) for name, axis in (("v", "visible"), ("h", "hidden")))
    g.factor(Multilinear(v["i"], g.parameter("W", "visible hidden", init=1.5)["i j"], h["j"]))
    hidden = unn.Partial(torch.tensor([[0.0, 1.0]]), torch.tensor([[False, True]]))
    model = GibbsModel(g, GibbsOptions(learning=learning, chains=4000))
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "unn.gibbs.model.contrast", lambda graph, x, draws: seen.append(x) or contrast(graph, x, draws)
        )
        model.loss({"v": torch.ones(1, 1), "h": hidden}, {})
    assert torch.equal(seen[0]["v"], torch.ones(1, 1)) and float(seen[0]["h"][0, 1]) == 1
    torch.testing.assert_close(seen[0]["h"][0, 0], g.W[0, 0].sigmoid())


def test_score_matching_refuses_discrete_variables_by_name(examples):
    _, x = examples
    with pytest.raises(InferenceError, match="'S'.*SignedEntropy"):
        GibbsModel(spins(), GibbsOptions(learning="score-matching")).loss({"S": x[:2]}, {})


def test_the_energy_discrepancy_refuses_half_lines_by_name():
    g = unn.FactorGraph("half", n=3)
    x = g.variable("X", "n", unn.NonNegative())
    g.factor(Multilinear(x["i"], g.parameter("b", "n")["i"]))
    with pytest.raises(InferenceError, match="'X'.*NonNegative"):
        GibbsModel(g, GibbsOptions(learning="energy-discrepancy")).loss({"X": torch.ones(2, 3)}, {})


def test_the_pseudolikelihood_refuses_nodes_that_interact_with_themselves_by_name():
    g = unn.FactorGraph("square", n=3)
    s = g.variable("S", "n", unn.SignedEntropy())
    g.factor(Multilinear(s["i"], g.parameter("W", "n")["i"], s["i"]))
    # chains cannot draw them either
    with pytest.raises(InferenceError, match="'S'.*closed form.*energy-discrepancy"):
        GibbsModel(g, GibbsOptions(learning="pseudolikelihood")).loss({"S": torch.ones(2, 3)}, {})
    assert (
        GibbsModel(g, GibbsOptions(learning="energy-discrepancy"))
        .loss({"S": torch.ones(2, 3)}, {})
        .isfinite()
    )


def test_the_exact_likelihood_refuses_other_temperatures():
    with pytest.raises(ArgumentError, match="temperature 1"):
        GibbsModel(machine(), GibbsOptions(learning="likelihood", temperature=2.0)).loss(
            {"v": torch.ones(2, 4)}, {}
        )


def test_options_of_denoising_are_refused():
    with pytest.raises(ArgumentError, match="sampler"):
        GibbsModel(spins(), GibbsOptions()).sample_with({}, 1, SamplingOptions(sampler="ddim"), {})


@pytest.mark.parametrize("order", ["vh", "hv"])
def test_contrastive_divergence_rests_at_the_truth_in_any_order_of_declaration(order):
    torch.manual_seed(0)
    g = unn.FactorGraph("rbm", v=2, h=2)
    x = {name: g.variable(name, name, unn.BinaryEntropy()) for name in order}
    W = g.parameter("W", "v h", init=torch.tensor([[3.0, -3.0], [2.5, -1.0]]))
    a, b = (
        g.parameter("a", "v", init=torch.tensor([-1.0, 0.5])),
        g.parameter("b", "h", init=torch.tensor([-2.0, 1.0])),
    )
    g.factor(Multilinear(W["i j"], x["v"]["i"], x["h"]["j"]))
    g.factor(Multilinear(a["i"], x["v"]["i"]))
    g.factor(Multilinear(b["j"], x["h"]["j"]))
    v = unn.exact.sample(g, 150_000, generator=torch.Generator().manual_seed(0))["v"][0].float()
    GibbsModel(g, GibbsOptions(learning="contrastive", learning_sweeps=1)).loss({"v": v}, {}).backward()
    # the standard error of an entry is 0.0013
    for parameter in g.parameters():
        assert float(parameter.grad.abs().max()) < 0.006


def test_chains_keep_the_mean_of_the_step_sizes_of_their_adaptation():
    g = unn.FactorGraph("stiff", n=2)
    x, z = g.variable("x", "n", unn.SquaredNorm()), g.variable("z", "", unn.SquaredNorm())
    stiff = Implicit(lambda x, z: 200 * (x[:, 1] - 0.1 * z) ** 2, x["i"], z[""], bounded_below=True)
    g.factor(stiff)
    chains = Chains(g, {}, 1, 400, generator=torch.Generator().manual_seed(0))
    for _ in range(300):
        chains.sweep(adapts=True)
    accepted = torch.zeros(400)
    for _ in range(60):
        chains.sweep()
        accepted += chains._langevin["x"].accepted / 60
    assert float(accepted.min()) > 0.5
    assert 0.7 < float(accepted.mean()) < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("learning", ["persistent", "contrastive"])
def test_narrow_real_variables_are_learned_by_chains(learning):
    width = 1 / math.sqrt(501)
    g = unn.FactorGraph("narrow", n=1)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda v: 250 * v.square().sum(1), x["i"], bounded_below=True))
    g.factor(Multilinear(g.parameter("b", "n", init="zeros")["i"], x["i"]))
    data = 0.1 + width * torch.randn(1000, 1, generator=seeded())
    torch.manual_seed(0)
    model = GibbsModel(g, GibbsOptions(learning=learning, chains=500, learning_sweeps=3))
    optimizer = torch.optim.Adam(g.parameters(), 2.0)
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 2.0 * (1 - step / 150)
        optimizer.zero_grad()
        model.loss({"x": data}, {}).backward()
        optimizer.step()
    assert float(g.b.detach()) / 501 == pytest.approx(float(data.mean()), abs=0.2 * width)


def test_step_sizes_of_learning_are_saved_with_the_chains():
    g = unn.FactorGraph("narrow", n=1)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda v: 250 * v.square().sum(1), x["i"], bounded_below=True))
    g.factor(Multilinear(g.parameter("b", "n", init="zeros")["i"], x["i"]))
    model, resumed = (GibbsModel(g, GibbsOptions(chains=20)) for _ in range(2))
    torch.manual_seed(0)
    model.loss({"x": torch.zeros(5, 1)}, {})
    resumed.load_training_state(model.training_state())
    gradients = []
    for each in (model, resumed):
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(each.loss({"x": torch.zeros(5, 1)}, {}), g.b)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert math.exp(float(model.training_state()["log steps:/x"])) < 0.1


def test_latent_layers_that_interact_are_drawn_until_the_truth_is_a_point_of_rest():
    g = unn.FactorGraph("deep", v=4, h=3, k=3)
    v, h, k = (g.variable(name, name.lower(), unn.SignedEntropy()) for name in ("v", "h", "k"))
    g.factor(Multilinear(v["i"], g.parameter("W", "v h")["i j"], h["j"]))
    g.factor(Multilinear(h["j"], g.parameter("U", "h k")["j l"], k["l"]))
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(1)))
    x = unn.exact.sample(g, count=8000, generator=seeded(2))["v"][0].float()
    model = GibbsModel(g, GibbsOptions(learning="contrastive"))
    torch.manual_seed(0)
    ours = torch.autograd.grad(model.loss({"v": x}, {}), list(g.parameters()))
    exact = torch.autograd.grad(
        GibbsModel(g, GibbsOptions(learning="likelihood")).loss({"v": x}, {}), list(g.parameters())
    )
    for estimate, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(estimate, right.to(estimate), rtol=0, atol=0.06)


@pytest.mark.parametrize(
    "learning", ["persistent", "contrastive", "pseudolikelihood", "energy-discrepancy", "likelihood"]
)
@pytest.mark.parametrize("value", [5.0, float("nan")])
def test_examples_outside_their_domain_are_refused_by_every_loss(learning, value):
    with pytest.raises(ObservationError, match="variable 'S'"):
        GibbsModel(spins(), GibbsOptions(learning=learning)).loss({"S": torch.full((2, 3, 3), value)}, {})


def test_samples_in_parts_take_the_rows_and_constants_that_samples_at_once_take():
    g = unn.FactorGraph("fields", n=4)
    S = g.variable("S", "n", unn.SignedEntropy())
    g.factor(Multilinear(g.constant("h", "n")["i"], S["i"]))
    model, field = GibbsModel(g, GibbsOptions(burn_in=3)), torch.tensor([50.0, -50.0, 50.0, -50.0])
    values = model.sample_with({"h": field}, 4, SamplingOptions(at_once=2), {}).values["S"]
    assert torch.equal(values, field.sign().expand(4, 4))
    with pytest.raises(ObservationError, match="evidence for 4 queries"):
        model.sample_with({"h": field, "S": torch.ones(2, 4)}, 4, SamplingOptions(at_once=2), {})
    with pytest.raises(ArgumentError, match="count must be a whole number >= 1"):
        model.sample_with({"h": field}, 0, SamplingOptions(), {})
