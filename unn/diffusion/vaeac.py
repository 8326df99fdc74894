"""Variational auto-encoder with arbitrary conditioning, a baseline that ignores the structure of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import leaky_relu, log_softmax, one_hot, softplus

from ..engine import SamplingOptions
from ..errors import ArgumentError, suggest
from ..graph.declaration import Declaration
from ..networks.tokens import Frame, Frames
from ..noise import gumbel_argmax
from .conditional import Condition, ConditionalModel, Trace
from .coordinates import CoordinateName
from .sampling import DrawRows

Deviation = Literal["learned", "unit"]
DEVIATIONS = ("learned", "unit")

_MIN_LATENT_DEVIATION = 1e-3
"""Smallest standard deviation of a latent variable."""

_MIN_VALUE_DEVIATION = 1e-2
"""Smallest standard deviation of a value given the latent variables."""


class VAEAC(ConditionalModel):
    """Variational auto-encoder with arbitrary conditioning (Ivanov, Figurnov and Vetrov, 2019).

    It uses the kinds of variables of the graph but not its structure. Fully connected networks over
    all numbers of a sample, for one size of the graph: a proposal q(z | x, b), a prior p(z |
    x_observed, b) and a decoder p(x | z, x_observed, b), where b is the mask of observed nodes.
    Latent variables are Gaussian. Given z, continuous values are Gaussian, binary ones and
    categories are categorical. Differences from the published networks: no batch norm, so that
    samples are independent; and the decoder receives the observed values directly instead of by
    skip connections from the prior.

    Args:
        graph: declaration of the graph.
        width: width of hidden layers.
        depth: number of residual blocks of each network.
        latent: number of latent variables.
        deviation: standard deviation of continuous values given z, on their standardised scale:
            "learned", at least 0.01; or "unit".
        sizes: sizes of the axes without a static size.
        coordinates: as for ``ConditionalModel``.

    Raises:
        ArgumentError: for options out of range, or sizes that are missing or contradict the declaration.
    """

    def __init__(
        self,
        graph: Declaration,
        *,
        width: int = 128,
        depth: int = 3,
        latent: int = 32,
        deviation: Deviation = "learned",
        sizes: Mapping[str, int] | None = None,
        coordinates: CoordinateName = "auto",
    ) -> None:
        if deviation not in DEVIATIONS:
            raise ArgumentError(f"vaeac: unknown deviation {deviation!r}.{suggest(deviation, DEVIATIONS)}")
        for name, number in (("width", width), ("depth", depth), ("latent", latent)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ArgumentError(f"vaeac: {name} must be a whole number >= 1, got {number!r}.")
        super().__init__(Frames(graph), coordinates)
        frame = self.frames.at(**(sizes or {}))
        self.shapes = _shapes(frame)
        self.deviation, self.latent = deviation, latent
        inputs = frame.numbers + frame.nodes
        self.proposal = _Residual(inputs, 2 * latent, width, depth)
        self.prior = _Residual(inputs, 2 * latent, width, depth)
        self.decoder = _Residual(inputs + latent, 2 * frame.numbers, width, depth)

    def loss(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> Tensor:
        """Mean negative evidence lower bound on the unobserved values, in nats per sample; a scalar.

        A weak hyperprior regularises the prior. Draws from torch's global generator.

        Args:
            values: training samples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes, boolean, shape ``(batch, nodes)``; or by variable, shape
                ``(batch, *node axes)``.
            sizes: sizes of the axes without a static size; must be those of the networks.

        Raises:
            ArgumentError: for sizes other than those of the networks.
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        clean, condition = self.example(values, observed, **sizes)
        evidence = self._evidence(condition)
        prior = _gaussian(self.prior(evidence))
        proposal = _gaussian(self.proposal(torch.cat([clean, condition.nodes.to(clean)], 1)))
        likelihood = self._log_likelihood(clean, condition, *self._decode(proposal.rsample(), evidence))
        bound = likelihood - kl_divergence(proposal, prior).sum(1) + _hyperprior(prior)
        return -bound.mean()

    def drawing(self, options: SamplingOptions, trace: Trace | None) -> DrawRows:
        """A draw from the prior of the latent variables, decoded."""
        return self._draw

    def _draw(self, condition: Condition, generators: list[torch.Generator] | None) -> Tensor:
        """Draw standardised rows, shape ``(batch, numbers)``."""
        evidence, numbers = self._evidence(condition), condition.rows.shape[1]
        noise = _noise(condition.rows, self.latent + numbers, generators)
        prior = _gaussian(self.prior(evidence))
        centre, deviation = self._decode(prior.mean + prior.stddev * noise[:, : self.latent], evidence)
        noise = noise[:, self.latent :]
        rows = centre + deviation * noise
        for slot in condition.frame.slots.values():
            if slot.kind != "real":
                channels = (-1, slot.channels)
                uniform = torch.special.ndtr(noise[:, slot.numbers]).unflatten(1, channels)
                options = gumbel_argmax(centre[:, slot.numbers].unflatten(1, channels), uniform)
                rows[:, slot.numbers] = one_hot(options, slot.channels).flatten(1).to(rows)
        slots = condition.frame.slots.values()
        real = torch.cat([torch.full((s.numbers.stop - s.numbers.start,), s.kind == "real") for s in slots])
        rows = torch.where(real.to(rows.device), rows, self._standard(rows, condition.frame))
        return torch.where(condition.numbers, condition.rows, rows)

    def _evidence(self, condition: Condition) -> Tensor:
        """Observed values and the mask of observed nodes, shape ``(batch, numbers + nodes)``."""
        shapes = _shapes(condition.frame)
        if shapes != self.shapes:
            raise ArgumentError(
                f"vaeac: the networks were made for variables of shapes {self.shapes}, "
                f"but at these sizes the shapes are {shapes}."
            )
        return torch.cat([condition.rows, condition.nodes.to(condition.rows)], 1)

    def _decode(self, z: Tensor, evidence: Tensor) -> tuple[Tensor, Tensor]:
        """Means of continuous values or logits of options, and deviations; shape ``(batch, numbers)``."""
        centre, spread = self.decoder(torch.cat([evidence, z], 1)).chunk(2, 1)
        if self.deviation == "unit":
            return centre, torch.ones_like(spread)
        return centre, softplus(spread).clamp(min=_MIN_VALUE_DEVIATION)

    def _log_likelihood(
        self, clean: Tensor, condition: Condition, centre: Tensor, deviation: Tensor
    ) -> Tensor:
        """Log-likelihood of the unobserved nodes, shape ``(batch,)``."""
        truth = self._natural(clean, condition.frame)
        by_node = []
        for slot in condition.frame.slots.values():
            numbers, channels = slot.numbers, (-1, slot.channels)
            if slot.kind == "real":
                distribution = Normal(centre[:, numbers], deviation[:, numbers], validate_args=False)
                logs = distribution.log_prob(clean[:, numbers]).unflatten(1, channels)
            else:
                log_probabilities = log_softmax(centre[:, numbers].unflatten(1, channels), -1)
                logs = log_probabilities * truth[:, numbers].unflatten(1, channels)
            by_node.append(logs.sum(2))
        return (torch.cat(by_node, 1) * ~condition.nodes).sum(1)


class _Residual(nn.Module):
    """Residual network: a linear layer, residual blocks, a linear layer."""

    def __init__(self, inputs: int, outputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.LeakyReLU(), nn.Linear(width, width)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        outputs: Tensor = self.last(leaky_relu(x))
        return outputs


def _gaussian(numbers: Tensor) -> Normal:
    mean, spread = numbers.chunk(2, 1)
    return Normal(mean, softplus(spread).clamp(min=_MIN_LATENT_DEVIATION), validate_args=False)


def _hyperprior(prior: Normal) -> Tensor:
    """Log-density of nearly flat priors on means (normal) and deviations (gamma), shape ``(batch,)``."""
    of_means = -(prior.mean**2) / (2 * 1e4**2)
    return (of_means + 1e-4 * (prior.stddev.log() - prior.stddev)).sum(1)


def _noise(like: Tensor, width: int, generators: list[torch.Generator] | None) -> Tensor:
    if generators is None:
        return torch.randn(len(like), width).to(like)
    return torch.stack([torch.randn(width, generator=generator) for generator in generators]).to(like)


def _shapes(frame: Frame) -> dict[str, tuple[int, ...]]:
    return {name: slot.shape for name, slot in frame.slots.items()}
