"""Attentive variational auto-encoders: traversals of one network, bounds, and evidence of any part."""

import dataclasses
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

import unn
from factors import Depends, LayerAttention, SpatialAttention
from unn.errors import ArgumentError, DeclarationError, InferenceError, ObservationError, UnnError
from unn.latent.attention import attend
from unn.latent.bounds import Draws, bound_summary, log_likelihood
from unn.latent.cells import Convolution
from unn.latent.engine import LatentEngine
from unn.latent.gaussians import Normals
from unn.latent.spectral import SpectralNorms

SMALL = unn.LatentOptions(width=8, keys=4, spatial_keys=4, divergence_warmup=0, particles=4)


def images(span="all", *, spatial=True, frozen=False, layers=3, side=6, positions=3):
    g = unn.FactorGraph(
        "images", layer=layers, row=positions, column=positions, channel=2, height=side, width=side
    )
    z = g.variable("z", "layer row column | channel", unn.SquaredNorm())
    x = g.variable("x", "height width", unn.BinaryEntropy())
    g.factor(Depends(x["h w"], z["l r c k"], ordered="h w l r c k"))
    if span:
        g.factor(LayerAttention(z["l r c k"], "l", prior=span, posterior=span, frozen=frozen))
    if spatial:
        g.factor(SpatialAttention(z["l r c k"], "l", frozen=frozen))
    return g


def vectors(nodes=3, layers=2):
    """Binary, categorical and real nodes from vectors."""
    g = unn.FactorGraph("vectors", layer=layers, channel=2, node=nodes, option=3)
    z = g.variable("z", "layer channel", unn.SquaredNorm())
    b = g.variable("b", "node", unn.BinaryEntropy())
    c = g.variable("c", "node | option", unn.Entropy())
    r = g.variable("r", "node", unn.SquaredNorm())
    for x in (b["i"], c["i o"], r["i"]):
        g.factor(Depends(x, z["l k"], ordered="i l k" + (" o" if "o" in x.letters else "")))
    g.factor(LayerAttention(z["l k"], "l"))
    return g


def model_of(g, options=SMALL, seed=0):
    torch.manual_seed(seed)
    return unn.AttentiveVAE(g, options, {}).double().eval()


def pixels(count, side=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, side, side, generator=generator) < 0.4).double()


def mixed_values(count, nodes=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    option = torch.randint(3, (count, nodes), generator=generator)
    return {
        "b": (torch.rand(count, nodes, generator=generator) < 0.5).double(),
        "c": F.one_hot(option, 3).double(),
        "r": 3 + 2 * torch.randn(count, nodes, dtype=torch.float64, generator=generator),
    }


# -- attention -----------------------------------------------------------------------------------------------


def test_attention_over_earlier_layers_is_masked_dot_product_attention():
    torch.manual_seed(0)
    layers, batch, q, c, side = 5, 2, 3, 4, 2
    queries, keys = torch.randn(2, layers, batch, q, side, side, dtype=torch.float64)
    values = torch.randn(layers, batch, c, side, side, dtype=torch.float64)
    flat = [x.permute(1, 3, 4, 0, 2).flatten(0, 2) for x in (queries, keys, values)]
    mask = torch.ones(layers, layers, dtype=torch.bool).tril(-1)
    mask[0, 0] = True  # an empty row has no softmax; it is not compared
    expected = F.scaled_dot_product_attention(*flat, attn_mask=mask, scale=1.0)
    expected = expected.view(batch, side, side, layers, c).permute(3, 0, 4, 1, 2)
    for layer in range(1, layers):
        total, _ = attend(queries[layer], keys[:layer].unbind(), values[:layer].unbind(), 1.0)
        assert (total - expected[layer]).abs().max() <= 1e-12


def test_with_gates_at_zero_attention_changes_nothing_bit_for_bit():
    attentive, plain = model_of(images("all")), model_of(images("none"))
    plain.load_state_dict(attentive.state_dict())
    rows, nodes = attentive._evidence({"x": pixels(4)})
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    own, other = (
        model.draws(rows, nodes, generator)
        for model, generator in zip((attentive, plain), generators, strict=True)
    )
    assert torch.equal(own.likelihood, other.likelihood)
    assert torch.equal(own.divergences, other.divergences)


def test_open_gates_change_the_answer_and_frozen_ones_are_not_trained():
    model = model_of(images("all"))
    before = model.log_likelihood({"x": pixels(3)}, 1, generator=torch.Generator().manual_seed(0)).value
    for name, parameter in model.named_parameters():
        if name.endswith("gate"):
            parameter.data.fill_(0.5)
    after = model.log_likelihood({"x": pixels(3)}, 1, generator=torch.Generator().manual_seed(0)).value
    assert not torch.allclose(before, after)
    frozen = model_of(images("all", frozen=True))
    gates = [p for name, p in frozen.named_parameters() if name.endswith("gate")]
    assert gates and not any(p.requires_grad for p in gates)
    assert sum(p.numel() for p in frozen.parameters()) == sum(p.numel() for p in model.parameters())


def test_a_layer_attends_to_what_its_mask_allows():
    neighbours = model_of(images("neighbours")).attention({"x": pixels(2)})
    prior, posterior = neighbours["prior"], neighbours["posterior"]
    assert torch.equal(prior > 0, torch.eye(3).bool().roll(-1, 1) & torch.ones(3, 3).tril(-1).bool())
    assert torch.allclose(posterior.sum(1), torch.ones(3))
    assert posterior[0, 2] == 0
    with pytest.raises(UnnError, match="no attention over layers"):
        model_of(images("")).attention({"x": pixels(2)})


def test_recomputing_layers_changes_neither_loss_nor_gradients_nor_running_means():
    losses, gradients, means = [], [], []
    for recompute in (False, True):
        torch.manual_seed(0)
        options = unn.LatentOptions(width=8, keys=4, spatial_keys=4, recompute=recompute)
        model = unn.AttentiveVAE(images(), options, {}).double().train()
        torch.manual_seed(1)
        loss = model.loss({"x": pixels(4)}, {})
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        means.append(torch.cat([x for name, x in model.named_buffers() if "running" in name]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert torch.allclose(*gradients, rtol=1e-9)
    assert torch.allclose(*means, rtol=1e-12)


# -- bounds --------------------------------------------------------------------------------------------------


class LinearGaussian:
    """z1 ~ N(0, 1), z2 ~ N(a z1, 1), x ~ N(b z2, s^2), with its exact posterior, or a wider one."""

    def __init__(self, widening=1.0):
        self.a, self.b, self.s, self.widening = 0.8, 1.5, 0.7, widening

    def exact(self, x):
        variance = self.b**2 * (1 + self.a**2) + self.s**2
        return -0.5 * x**2 / variance - 0.5 * math.log(2 * math.pi * variance)

    def draws(self, rows, nodes, generator):
        x = rows[:, 0]
        precision = torch.tensor(
            [[1 + self.a**2, -self.a], [-self.a, 1 + self.b**2 / self.s**2]], dtype=torch.float64
        )
        covariance = precision.inverse()
        mean = covariance @ torch.tensor([0.0, self.b / self.s**2], dtype=torch.float64)
        one = torch.ones_like(x)
        first = Normals(x * mean[0], one * covariance[0, 0].sqrt() * self.widening)
        noise = torch.randn(2, len(x), dtype=torch.float64, generator=generator)
        z1 = first.at(noise[0])
        slope = covariance[0, 1] / covariance[0, 0]
        rest = (covariance[1, 1] - slope * covariance[0, 1]).sqrt()
        second = Normals(x * mean[1] + slope * (z1 - x * mean[0]), one * rest * self.widening)
        z2 = second.at(noise[1])
        priors = Normals(0 * one, one), Normals(self.a * z1, one)
        likelihood = Normals(self.b * z2[:, None], one[:, None] * self.s).log_density(x[:, None])
        groups = [z1[:, None], z2[:, None]]
        as_rows = [Normals(n.mean[:, None], n.scale[:, None]) for n in (first, second, *priors)]
        return Draws(
            groups,
            likelihood,
            sum(p.log_density(z) for p, z in zip(as_rows[2:], groups, strict=True)),
            sum(q.log_density(z) for q, z in zip(as_rows[:2], groups, strict=True)),
            [q.divergences(p) for q, p in zip(as_rows[:2], as_rows[2:], strict=True)],
        )


def test_the_bound_and_the_importance_estimate_are_exact_with_the_exact_posterior():
    model = LinearGaussian()
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    nodes = torch.ones_like(x).bool()
    estimate = log_likelihood(model, x, nodes, 5, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(estimate.value, model.exact(x[:, 0]), atol=1e-10)
    assert torch.allclose(estimate.effective, torch.full((7,), 5.0, dtype=torch.float64))
    many = x.repeat(20_000, 1)
    summary = bound_summary(model, many, nodes.repeat(20_000, 1), generator=torch.Generator().manual_seed(0))
    assert summary.bound == pytest.approx(float(model.exact(x[:, 0]).mean()), abs=0.01)


def test_the_importance_estimate_rises_with_the_draws_towards_the_exact_value_and_above_the_bound():
    model = LinearGaussian(widening=2.0)
    x = torch.full((4000, 1), 0.9, dtype=torch.float64)
    nodes = torch.ones_like(x).bool()
    exact = float(model.exact(x[0, 0]))
    bound = bound_summary(model, x, nodes, generator=torch.Generator().manual_seed(0)).bound
    means = [
        float(log_likelihood(model, x, nodes, k, generator=torch.Generator().manual_seed(0)).value.mean())
        for k in (1, 4, 16, 256)
    ]
    assert bound == pytest.approx(means[0], abs=0.1)
    assert means == sorted(means)
    assert means[-1] == pytest.approx(exact, abs=0.01)
    one = log_likelihood(model, x[:1], nodes[:1], 20_000, generator=torch.Generator().manual_seed(0))
    assert abs(float(one.value) - exact) < 4 * float(one.error)
    with pytest.raises(ArgumentError, match="draws must be a whole number >= 1, got 0"):
        log_likelihood(model, x, nodes, 0)


def test_a_posterior_equal_to_the_prior_has_no_divergence():
    model = model_of(images())
    for head in model.network.posterior_heads[1:]:
        head.log_scale.data.fill_(-math.inf)
        head.bias.data.zero_()
    rows, nodes = model._evidence({"x": pixels(3)})
    divergences = model.draws(rows, nodes, torch.Generator().manual_seed(0)).divergences
    assert torch.equal(divergences[1:], torch.zeros_like(divergences[1:]))
    assert (divergences[0] > 0).all()
    # the means of these posteriors still vary with the first group, but their units are not active
    assert model.bound_summary({"x": pixels(3)}).active[1:].tolist() == [0, 0]


def test_the_loss_is_minus_the_bound_with_a_weight_that_grows():
    options = unn.LatentOptions(width=8, keys=4, spatial_keys=4, divergence_warmup=10, first_weight=0.1)
    model = model_of(images(), options)
    rows, nodes = model._evidence({"x": pixels(4)})
    torch.manual_seed(5)
    draws = model.draws(rows, nodes, None)
    for updates, weight in ((0, 0.1), (5, 0.55), (10, 1.0), (99, 1.0)):
        model.updates = updates
        torch.manual_seed(5)
        loss = model.loss({"x": pixels(4)}, {})
        expected = weight * draws.divergences.sum(0) - draws.likelihood
        assert torch.allclose(loss, expected.mean())
    assert model.updates == 99  # only training counts
    model.train()
    model.loss({"x": pixels(4)}, {})
    other = model_of(images(), options)
    other.load_training_state(model.training_state())
    assert other.updates == 100


def test_free_bits_leave_small_divergences_out_of_the_gradient():
    options = unn.LatentOptions(width=8, keys=4, spatial_keys=4, divergence_warmup=0, free_bits=1e5)
    model = model_of(images(), options)
    torch.manual_seed(0)
    loss = model.loss({"x": pixels(4)}, {})
    torch.manual_seed(0)
    rows, nodes = model._evidence({"x": pixels(4)})
    likelihood = model.draws(rows, nodes, None).likelihood.mean()
    assert torch.allclose(loss, 3e5 - likelihood)


# -- any part given ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    """Four binary pixels, two of which mostly agree and two differ, learned from any part of them."""
    options = unn.LatentOptions(width=8, keys=2, spatial_keys=2, divergence_warmup=50, masked=1.0)
    torch.manual_seed(0)
    model = unn.AttentiveVAE(images(side=2, positions=2, layers=2), options, {}).double().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        a, b = (torch.rand(2, 64, generator=generator) < torch.tensor([[0.5], [0.3]])).double()
        flipped = (torch.rand(2, 64, generator=generator) < 0.1).double()
        x = torch.stack([a, (a - flipped[0]).abs(), b, 1 - (b - flipped[1]).abs()], 1).view(-1, 2, 2)
        loss = model.loss({"x": x}, {"x": torch.rand(64, 2, 2, generator=generator) < 0.5})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def enumerated(model):
    """All images and their probabilities, by draws from the prior alone."""
    grid = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    z = model.sample_with({}, 20_000, unn.SamplingOptions(seed=9, at_once=20_000), {})["z"]
    black = model.decode(z)["x"].flatten(1)
    each = torch.where(grid[:, None] == 1, black, 1 - black).prod(2)
    return grid.view(-1, 2, 2), each.mean(1)


@pytest.mark.slow
def test_importance_sampling_gives_the_probabilities_of_all_images_and_samples_have_them(tiny):
    grid, p = enumerated(tiny)
    estimate = tiny.log_likelihood({"x": grid}, 2000, generator=torch.Generator().manual_seed(0))
    assert ((estimate.value.exp() - p).abs() < 5 * p * (estimate.error + 0.01)).all()
    samples = tiny.sample_with({}, 8000, unn.SamplingOptions(seed=3, at_once=8000), {})["x"]
    codes = samples.flatten(1) @ torch.tensor([8.0, 4, 2, 1]).double()
    counts = torch.bincount(codes.long(), minlength=16)
    deviation = (p * (1 - p) / 8000).sqrt()
    assert ((counts / 8000 - p).abs() < 5 * deviation + 0.01 * p).all()


@pytest.mark.slow
def test_samples_given_a_part_have_the_conditional_distribution_of_the_model(tiny):
    model = tiny
    grid, p = enumerated(model)
    mask = torch.tensor([[[True, False], [False, True]]])
    x = torch.tensor([[[1.0, 0], [0, 0]]], dtype=torch.float64)
    options = unn.SamplingOptions(seed=3, at_once=3000)
    samples = model.sample_with({"x": unn.Partial(x, mask)}, 3000, options, {})["x"]
    assert (samples[:, 0, 0] == 1).all() and (samples[:, 1, 1] == 0).all()
    agree = (grid[:, 0, 0] == 1) & (grid[:, 1, 1] == 0)
    conditional = p[agree] / p[agree].sum()
    counts = torch.stack([(samples == image).flatten(1).all(1).sum() for image in grid[agree]])
    deviation = (conditional * (1 - conditional) / 3000).sqrt()
    assert ((counts / 3000 - conditional).abs() < 5 * deviation + 0.02).all()
    means = model.infer_values({"x": unn.Partial(x, mask)}, 1, {}, iterations=3000)["x"][0]
    expected = (conditional[:, None, None] * grid[agree]).sum(0)
    assert (means - expected).abs().max() < 0.05


def test_answers_do_not_depend_on_other_rows():
    for g, values in ((images(), {"x": pixels(3)}), (vectors(), mixed_values(3))):
        model = model_of(g)
        nodes = {name: x.shape[: len(g.variables[name].node_axes) + 1] for name, x in values.items()}
        given = {name: unn.Partial(x, torch.rand(nodes[name]) < 0.5) for name, x in values.items()}
        together = model.infer_values(given, 3, {})
        for row in range(3):
            part = slice(row, row + 1)
            own = {name: unn.Partial(x.value[part], x.mask[part]) for name, x in given.items()}
            alone = model.infer_values(own, 1, {})
            for name, x in alone.items():
                assert torch.allclose(x[0], together[name][row], atol=1e-10), name
        first = model.sample_with(given, 3, unn.SamplingOptions(seed=1), {})
        one = {name: unn.Partial(x.value[:1], x.mask[:1]) for name, x in given.items()}
        again = model.sample_with(one, 1, unn.SamplingOptions(seed=1), {})
        for name, x in again.values.items():
            assert torch.allclose(x[0], first[name][0], atol=1e-9), name


def test_answers_of_a_model_in_training_are_those_of_evaluation():
    model = model_of(images())
    x = pixels(3)
    mask = torch.zeros(3, 6, 6).bool()
    mask[:, :2] = True
    given = {"x": unn.Partial(x, mask)}

    def answers():
        generator = torch.Generator().manual_seed(0)
        return [
            model.log_likelihood({"x": x}, 3, generator=generator).value,
            model.infer_values(given, 3, {})["x"],
            model.sample_with(given, 3, unn.SamplingOptions(seed=0), {})["z"],
            model.bound_summary({"x": x}, generator=generator).divergences,
        ]

    expected = answers()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(torch.equal(a, b) for a, b in zip(answers(), expected, strict=True))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_vectors_of_all_kinds_are_learned_sampled_and_given():
    model = model_of(vectors(nodes=4))
    values = mixed_values(300, nodes=4)
    model.prepare(values)
    samples = model.sample_with({}, 20, unn.SamplingOptions(seed=0), {})
    assert samples["z"].shape == (20, 2, 2)
    assert ((samples["c"] == 0) | (samples["c"] == 1)).all() and (samples["c"].sum(2) == 1).all()
    assert ((samples["b"] == 0) | (samples["b"] == 1)).all()
    loss = model.train().loss(values, {})
    loss.backward()
    assert loss.isfinite()
    # the density of real numbers is that of the numbers as they are
    model.eval()
    wide = {**values, "r": 10 * values["r"]}
    other = model_of(vectors(nodes=4))
    other.prepare(wide)
    prepared = model_of(vectors(nodes=4))
    prepared.prepare(values)
    own, scaled = (
        m.log_likelihood(x, 3, generator=torch.Generator().manual_seed(0)).value
        for m, x in ((prepared, values), (other, wide))
    )
    assert torch.allclose(own - 4 * math.log(10), scaled, atol=1e-6)


def test_a_batch_of_one_is_learned():
    model = model_of(vectors()).train()
    loss = model.loss(mixed_values(1), {})
    loss.backward()
    assert loss.isfinite()


def test_given_latent_groups_are_decoded():
    model = model_of(images())
    z = torch.randn(2, 3, 3, 3, 2, dtype=torch.float64)
    means = model.decode(z)["x"]
    inferred = model.infer_values({"z": z}, 2, {})
    assert torch.allclose(inferred["x"], means) and torch.allclose(inferred["z"], z)
    samples = model.sample_with({"z": z}, 2, unn.SamplingOptions(seed=0), {})
    assert torch.allclose(samples["z"], z)
    with pytest.raises(ObservationError, match="as a whole"):
        model.infer_values({"z": unn.Partial(z, torch.ones(2, 3).bool())}, 2, {})
    with pytest.raises(ObservationError, match="needs a tensor of shape"):
        model.decode(z[:, :2])
    with pytest.raises(ObservationError, match="NaN"):
        model.decode(z * math.nan)


def test_lower_temperatures_give_latent_groups_nearer_to_their_means():
    model = model_of(images())
    options = unn.SamplingOptions(seed=0)
    usual = model.sample_with({}, 50, options, {})["z"][:, 0]
    cold = model.sample_with({}, 50, options, {}, temperature=0.5)["z"][:, 0]
    assert torch.allclose(cold, 0.5 * usual)
    with pytest.raises(ArgumentError, match="temperature must be positive"):
        model.sample_with({}, 1, options, {}, temperature=0.0)


# -- spectral regularisation ---------------------------------------------------------------------------------


def test_spectral_norms_are_the_largest_singular_values():
    torch.manual_seed(0)
    network = torch.nn.Sequential(Convolution(3, 5, 3), Convolution(5, 2))
    norms = SpectralNorms(network)
    for _ in range(200):
        total = norms(network)
    expected = sum(torch.linalg.matrix_norm(part.kernel().flatten(1), 2) for part in network)
    assert torch.allclose(total, expected, atol=1e-5)
    total.backward()
    assert network[0].log_scale.grad.abs().sum() > 0


# -- refusals ------------------------------------------------------------------------------------------------


def test_graphs_without_fitting_groups_are_refused_with_what_to_declare():
    engine = LatentEngine()
    plain = unn.FactorGraph("plain", node=3)
    plain.variable("x", "node", unn.BinaryEntropy())
    assert "no latent groups" in engine.refusal(plain)
    alone = unn.FactorGraph("alone", layer=2, channel=3)
    alone.variable("z", "layer channel", unn.SquaredNorm())
    assert "nothing to learn from" in engine.refusal(alone)
    late = unn.FactorGraph("late", layer=2, channel=3, node=2)
    late.variable("z", "channel layer", unn.SquaredNorm())
    late.variable("x", "node", unn.BinaryEntropy())
    assert "first axis" in engine.refusal(late)
    with pytest.raises(DeclarationError, match="do not fit images of 6 x 6"):
        unn.AttentiveVAE(images(positions=5), SMALL, {})
    spins = unn.FactorGraph("spins", layer=2, channel=3, node=2)
    spins.variable("z", "layer channel", unn.SquaredNorm())
    spins.variable("s", "node", unn.SignedEntropy())
    assert "variable 's' has the regularizer SignedEntropy()" in engine.refusal(spins)
    two = images()
    two.factor(LayerAttention(two.variables["z"]["l r c k"], "l"))
    with pytest.raises(DeclarationError, match="2 factors of the kind LayerAttention"):
        unn.AttentiveVAE(two, SMALL, {})


def test_values_that_do_not_fit_are_refused_with_their_place():
    model = model_of(images())
    with pytest.raises(ObservationError, match="needs a tensor of shape"):
        model.loss({"x": pixels(2, side=5)}, {})
    with pytest.raises(ObservationError, match="must be 0 or 1"):
        model.loss({"x": pixels(2) * 0.5}, {})
    with pytest.raises(ObservationError, match="NaN"):
        model.log_likelihood({"x": pixels(2) * math.nan}, 2)
    with pytest.raises(ArgumentError, match="draws must be a whole number"):
        model.log_likelihood({"x": pixels(2)}, 0)
    with pytest.raises(ArgumentError, match="latent groups have no steps"):
        model.sample_with({}, 1, unn.SamplingOptions(steps=3), {})
    with pytest.raises(DeclarationError, match="axis 'height' has size 6, but 7 was given"):
        model.infer_values({}, 1, {"height": 7})
    with pytest.raises(DeclarationError, match="unknown axis 'heigth'.*height"):
        model.sample_with({}, 1, unn.SamplingOptions(), {"heigth": 6})
    seen = model_of(vectors(), dataclasses.replace(SMALL, masked=1.0))
    values, mask = mixed_values(4), torch.ones(4, 3, dtype=torch.bool)
    for observed, words in (
        ({"cc": mask}, "'cc'"),
        ({"c": mask[:3]}, r"'c'.*\(4, 3\).*\(3, 3\)"),
        ({"c": mask[:, :2]}, r"'c'.*\(4, 3\).*\(4, 2\)"),
        ({"c": mask.tolist()}, "'c'.*list"),
        (mask, "a mapping.*Tensor"),
    ):
        with pytest.raises(ObservationError, match=words):
            seen.loss(values, observed)
    assert bool(seen.loss(values, {"c": mask, "z": mask}).isfinite())
    with pytest.raises(DeclarationError, match="axis 'height' has size 6, but 12 was given"):
        unn.AttentiveVAE(images(), SMALL, {"height": 12, "width": 12})
    with pytest.raises(ArgumentError, match="number of answers must be a whole number >= 1, got 0"):
        model.infer_values({}, 0, {})
    with pytest.raises(ArgumentError, match="at_once must be a whole number"):
        model.bound_summary({"x": pixels(2)}, at_once=0)
    with pytest.raises(InferenceError, match=r"torch.Generator\(\).manual_seed\(3\)"):
        model.log_likelihood({"x": pixels(2)}, 1, generator=3)
    z = torch.zeros(2, 3, 3, 3, 2, dtype=torch.float64)
    with pytest.raises(ObservationError, match="leave the latent groups out"):
        model.log_likelihood({"x": pixels(2), "z": z}, 1)
    with pytest.raises(ObservationError, match="entries beyond"):
        model.decode(z + 1e30)


def test_real_values_far_from_the_examples_are_refused_instead_of_giving_nan():
    model = model_of(vectors())
    values = mixed_values(50)
    model.prepare(values)
    far = unn.Partial(torch.full((1, 3), 1e20, dtype=torch.float64), torch.tensor([[True, False, False]]))
    with pytest.raises(ObservationError, match="variable 'r': the value 1e.20 is more than 1e.06 standard"):
        model.infer_values({"r": far}, 1, {})
    # what is constant in the examples may take other values
    constant = model_of(vectors())
    constant.prepare({**values, "r": torch.full_like(values["r"], 3.0)})
    assert constant.log_likelihood(values, 2).value.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width"),
        ({"keys": 64, "width": 32}, "keys=64 must be at most width=32"),
        ({"reals": "grey"}, "reals='grey' is unknown"),
        ({"particles": 0}, "particles"),
        ({"masked": 1.5}, "masked"),
        ({"width": 8.5}, "width must be a whole number"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ArgumentError, match=message):
        unn.AttentiveVAE(images(), unn.LatentOptions(**options), {})


def test_the_weight_of_the_divergence_counts_steps_and_not_losses():
    model = model_of(
        vectors(), unn.LatentOptions(width=8, keys=4, spatial_keys=4, divergence_warmup=10)
    ).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    values = mixed_values(4)
    for step in range(3):
        for _ in range(4):
            model.loss(values, {}).backward()
            assert model.updates == step + 1
        optimizer.step()
    model.eval().loss(values, {})
    assert model.updates == 3


def test_a_step_that_changed_no_weight_is_begun_once_also_after_a_resumption():
    options = unn.LatentOptions(width=8, keys=4, spatial_keys=4, divergence_warmup=10)
    model, values = model_of(vectors(), options).train(), mixed_values(4)
    model.loss(values, {})
    resumed = model_of(vectors(), options).train()
    resumed.load_state_dict(model.state_dict())
    resumed.load_training_state(model.training_state())
    for one in (model, resumed):
        one.loss(values, {})
    assert model.updates == resumed.updates == 1
    with torch.no_grad():
        for one in (model, resumed):
            next(one.parameters()).mul_(2)
            one.loss(values, {})
    assert model.updates == resumed.updates == 2
