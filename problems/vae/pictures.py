"""Pictures of what latent groups hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

import unn
from unn.draw import draw_attention, draw_images
from unn.draw.theme import LIGHT, new_figure, style_axes
from unn.ops.seeds import seed_of


def reconstructions(model: unn.AttentiveVAE, x: Tensor) -> Figure:
    """Test images, and below them their means given the latent groups of one draw."""
    z = _latent(model, x)
    return _draw(torch.cat([x, model.decode(z)["x"]]), len(x))


def completions(model: unn.AttentiveVAE, given: unn.Partial, rows: int, seed: int) -> Figure:
    """Given parts of images, hidden pixels in between, and below some completions of each."""
    mask = given.mask.view(*given.mask.shape, *[1] * (given.value.ndim - 3))
    grey = 0.5 if _is_binary(model) else 0.0
    shown = [torch.where(mask, given.value, grey)]
    for row in range(rows):
        options = unn.SamplingOptions(seed=seed_of(seed, row))
        shown.append(model.sample_with({"x": given}, len(given.value), options, {})["x"])
    return _draw(torch.cat(shown), len(given.value))


def temperatures(model: unn.AttentiveVAE, values: Sequence[float], count: int, seed: int) -> Figure:
    """Means of images whose latent groups are drawn from the prior, a row for each temperature."""
    options = unn.SamplingOptions(seed=seed)
    rows = [
        model.decode(model.sample_with({}, count, options, {}, temperature=value)["z"])["x"]
        for value in values
    ]
    return _draw(torch.cat(rows), count)


def interpolations(model: unn.AttentiveVAE, first: Tensor, second: Tensor, steps: int) -> Figure:
    """Means of images between the latent groups of two images, a row for each pair."""
    ends = _latent(model, torch.cat([first, second])).chunk(2)
    share = torch.linspace(0, 1, steps).view(1, -1, *[1] * (ends[0].ndim - 1))
    z = ends[0][:, None] * (1 - share) + ends[1][:, None] * share
    return _draw(model.decode(z.flatten(0, 1))["x"], steps)


def attention(model: unn.AttentiveVAE, x: Tensor) -> Figure:
    """Mean weights of attention over layers: of priors, then of posteriors."""
    tables = model.attention({"x": x})
    names = [f"layer {k + 1}" for k in range(model.hierarchy.layers)]
    weights = torch.stack([tables["prior"], tables["posterior"]])
    return draw_attention(weights, names, names, titles=["priors", "posteriors"])


def divergences(model: unn.AttentiveVAE, x: Tensor, seed: int) -> Figure:
    """Mean divergence of the posterior of each layer from its prior, with the share of active units."""
    summary = model.bound_summary({"x": x}, generator=torch.Generator().manual_seed(seed))
    figure = new_figure(LIGHT, 1.5 + 0.5 * len(summary.divergences), 3.2)
    axes = figure.subplots()
    style_axes(axes, LIGHT)
    layers = [str(k + 1) for k in range(len(summary.divergences))]
    bars = axes.bar(layers, summary.divergences.tolist(), color=LIGHT.cycle[0])
    shares = [f"{100 * share:.0f}%" for share in summary.active.tolist()]
    axes.bar_label(bars, shares, fontsize=7, color=LIGHT.foreground)
    axes.set_xlabel("layer (share of active units above)", parse_math=False)
    axes.set_ylabel("divergence in nats", parse_math=False)
    return figure


def _latent(model: unn.AttentiveVAE, x: Tensor) -> Tensor:
    return model.infer_values({"x": x}, len(x), {}, iterations=1)["z"]


def _is_binary(model: unn.AttentiveVAE) -> bool:
    return model.hierarchy.rows.slots["x"].kind == "binary"


def _draw(x: Tensor, columns: int) -> Figure:
    images = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)
    low = 0.0 if x.ndim == 3 else -1.0
    return draw_images(images.float(), columns=columns, low=low, high=1.0)
