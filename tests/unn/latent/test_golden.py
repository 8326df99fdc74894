"""The parts of attentive hierarchies equal the published implementation's values."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unn.latent.attention import PosteriorAttention, PriorAttention, attend
from unn.latent.cells import Convolution, NonlocalBlock, ResidualCell
from unn.latent.gaussians import normals, standard
from unn.latent.likelihoods import LogisticMixture
from unn.latent.schedules import cosine_rate, divergence_weight, restarted_cosine_rate

FOLDER = Path(__file__).parents[2] / "golden" / "attentive_vae"


def load(name):
    data = np.load(FOLDER / f"{name}.npz")
    return {key: torch.from_numpy(np.asarray(data[key])) for key in data}


def cases(name):
    data = load(name)
    for k in range(int(data["n_cases"])):
        yield {key[len(f"c{k}_") :]: x for key, x in data.items() if key.startswith(f"c{k}_")}


def channels_first(x):
    return x.movedim(-1, -3)


def same(x, expected, tolerance=1e-9):
    assert x.shape == expected.shape
    assert (x - expected).abs().max() <= tolerance


def set_convolution(part, v, log_g, b):
    kernel = v if v.ndim == 4 else v[None, None]
    part.direction.data = kernel.permute(3, 2, 0, 1).contiguous()
    part.log_scale.data, part.bias.data = log_g, b


def set_norm(part, weight, bias):
    part.weight.data, part.bias.data = weight, bias


def test_attention_over_layers():
    for case in cases("attend"):
        keys, values = (channels_first(case[name]).unbind(1) for name in ("keys", "values"))
        total, weights = attend(channels_first(case["query"]), keys, values, case["scale"])
        same(total, channels_first(case["out"]))
        same(weights[:, :, 0].movedim(0, -1), case["weights"])


def test_normal_distributions_and_their_divergence():
    for case in cases("gauss_kl"):
        low_p, high_p, low_q, high_q = case["bounds"].tolist()
        raw = channels_first(case["prior_raw"])
        prior = normals(raw, (low_p, high_p))
        posterior = normals(raw + channels_first(case["delta_raw"]), (low_q, high_q))
        same(prior.mean, channels_first(case["p_loc"]))
        same(prior.scale, channels_first(case["p_scale"]))
        same(posterior.mean, channels_first(case["q_loc"]))
        same(posterior.scale, channels_first(case["q_scale"]))
        same(posterior.divergence(prior), case["kl"])
        # the first layer has no prior parameters to add to
        first = normals(channels_first(case["delta_raw"]), (low_q, high_q))
        same(first.divergence(standard(first.mean)), case["kl_first"])
        z = posterior.at(channels_first(case["eps"]))
        same(z, channels_first(case["z"]))
        same(posterior.log_density(z), case["q_logp"])
        same(prior.log_density(z), case["p_logp"])


def test_nonlocal_blocks():
    for case in cases("nonlocal"):
        x = channels_first(case["x"])
        normalised = bool(case["layer_norm"])
        block = NonlocalBlock(x.shape[1], len(case["key_b"]), bool(case["subsample"]), normalised).double()
        for name, part in (("query", block.query), ("key", block.key), ("value", block.value)):
            set_convolution(part, *(case[f"{name}_{key}"] for key in ("v", "log_g", "b")))
        block.gate.data, block.scale.data = case["gamma"], case["scale"]
        if normalised:
            set_norm(block.before, case["lna_gamma"], case["lna_beta"])
            set_norm(block.after[0], case["lnb_gamma"], case["lnb_beta"])
            set_convolution(block.after[1], *(case[f"ln_{key}"] for key in ("v", "log_g", "b")))
        same(block(x), channels_first(case["out"]))


def test_residual_cells():
    case = load("resnet_cell")
    cell = ResidualCell(4, 4).double().eval()
    for k, (norm, convolution) in enumerate(
        [(cell.change[0], cell.change[2]), (cell.change[3], cell.change[5])]
    ):
        set_norm(norm, case[f"n{k}_bn_gamma"], case[f"n{k}_bn_beta"])
        norm.running_mean, norm.running_var = case[f"n{k}_bn_mean"], case[f"n{k}_bn_var"]
        set_convolution(convolution, *(case[f"n{k}_{key}"] for key in ("v", "log_g", "b")))
    same(cell(channels_first(case["x"])), channels_first(case["out"]))


def test_the_attention_of_a_layer():
    for case in cases("layer_attention"):
        q, c, ce, _, prior_norm, posterior_norm = case["meta"].tolist()
        w = {key[2:]: x for key, x in case.items() if key.startswith("w_")}
        prior = PriorAttention(c, bool(prior_norm), False).double()
        posterior = PosteriorAttention(ce, bool(posterior_norm), False).double()
        prior.gate.data, prior.scale.data = w["gamma"], w["dec_scale"]
        posterior.gate.data, posterior.scale.data = w["enc_gamma"], w["enc_scale"]
        if prior_norm:
            for part, name in (
                (prior.stored.norm, "_ctx_layer_norm_layer"),
                (prior.last, "_attention_layer_norm_layer"),
                (prior.attended.norm, "_attention_layer_norm_layer2"),
            ):
                set_norm(part, w[f"{name}_g"], w[f"{name}_b"])
        if posterior_norm:
            set_norm(
                posterior.own.norm,
                w["_cond_attention_layer_norm_layer_g"],
                w["_cond_attention_layer_norm_layer_b"],
            )
            set_norm(
                posterior.attended.norm,
                w["_encoder_attention_layer_norm_layer_g"],
                w["_encoder_attention_layer_norm_layer_b"],
            )
        contexts, evidence = (channels_first(case[name]).unbind(1) for name in ("ctx", "ev"))
        raw, merged = channels_first(case["raw"]), channels_first(case["merged"])
        context, query = raw[:, :c], raw[:, -q:]
        _, condition, _ = prior(context, query, [x[:, c:] for x in contexts], [x[:, :c] for x in contexts])
        same(condition, channels_first(case["prior_condition"]), 1e-8)
        values = [merged[:, :ce], *(x[:, :ce] for x in evidence[1:])]
        keys = [merged[:, ce:], *(x[:, ce:] for x in evidence[1:])]
        # the query of the posterior is the beginning of the context
        own, _ = posterior(context[:, :q], keys, values)
        same(torch.cat([own, merged[:, ce:]], 1), channels_first(case["posterior_condition"]), 1e-8)


def test_schedules():
    data = load("schedules")
    per_epoch = int(data["steps_per_epoch"])
    warmup, decay, first = (int(data[f"{name}_epochs"]) for name in ("warmup", "decay", "first_decay"))
    # the published code computes rates after the warm-up in float32
    for step, rate in zip(data["steps"].tolist(), data["lr_cosine_warmup"].tolist(), strict=True):
        assert cosine_rate(step, 0.01, 1e-4, per_epoch, warmup, decay) == pytest.approx(rate, rel=1e-5)
    for step, rate in zip(data["steps_restart"].tolist(), data["lr_cosine_restart"].tolist(), strict=True):
        own = restarted_cosine_rate(step, 0.01, 1e-4, per_epoch, warmup, first)
        assert own == pytest.approx(rate, rel=2e-5)
    for epoch, weight in zip(data["epoch"].tolist(), data["kl_beta"].tolist(), strict=True):
        assert divergence_weight(epoch / 16, 0.1) == pytest.approx(weight, abs=1e-12)


def test_weight_normalised_kernels_have_the_norm_of_their_scale():
    part = Convolution(3, 5, 3)
    part.log_scale.data = torch.randn(5)
    assert torch.allclose(part.kernel().flatten(1).norm(dim=1), part.log_scale.exp())
    assert math.prod(part.kernel().shape) == 5 * 3 * 9


def approximated(likelihood, parameters, x):
    """The log-probabilities with what the published code approximates: the density for masses below 1e-5, and
    all levels above 0.99 for the last one."""
    logits, means, log_scales, (a, b, c) = (
        part.unbind(1) if k == 3 else part for k, part in enumerate(likelihood._split(parameters))
    )
    x = x[:, :, None]
    means = means + torch.stack([0 * a, a * x[:, 0], b * x[:, 0] + c * x[:, 1]], 1)
    inverse = (-log_scales).exp()
    centred = x - means
    upper, lower = inverse * (centred + 1 / 255), inverse * (centred - 1 / 255)
    mass = upper.sigmoid() - lower.sigmoid()
    middle = inverse * centred
    density = middle - log_scales - 2 * F.softplus(middle) - math.log(127.5)
    inside = torch.where(mass > 1e-5, mass.clamp(min=1e-12).log(), density)
    each = torch.where(x < -0.999, F.logsigmoid(upper), torch.where(x > 0.99, F.logsigmoid(-lower), inside))
    return (each.sum(1) + logits.log_softmax(1)).logsumexp(1), mass


def test_mixtures_of_discretised_logistic_distributions():
    compared = 0
    for case in cases("dmol"):
        parameters, x = channels_first(case["params"]), channels_first(case["x"])
        likelihood = LogisticMixture(3, int(case["n_mix"]))
        published, mass = approximated(likelihood, parameters, x)
        # masses near 1e-5 lose digits as differences of two sigmoids
        same(published, case["logp_per_pixel"], 1e-8)
        same(published.flatten(1).sum(1), case["logp"], 1e-7)
        # without the approximations the same numbers where these are not used
        used = ((mass < 1e-5) | ((x > 0.99) & (x < 0.999))[:, :, None]).flatten(1, 2).any(1)
        own = likelihood.log_probability(parameters, x)
        assert ((own - published).abs()[~used] <= 1e-9).all()
        compared += int((~used).sum())
    assert compared > 10
