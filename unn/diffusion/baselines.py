"""What a denoiser is compared with: a network that estimates without noise, and a variational auto-encoder with arbitrary conditioning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import leaky_relu, log_softmax, one_hot, softplus

from ..errors import DeclarationError, suggest
from ..graph.declaration import Declaration
from ..networks.denoiser import Denoiser
from ..networks.tokens import Frame, Frames, Given
from .conditional import Condition, ConditionalModel, Samples
from .diffusion import check_counts, generators_of, tried_again

Deviation = Literal["learned", "unit"]
DEVIATIONS = ("learned", "unit")

_LEAST = 1e-3
"""The smallest standard deviation of a latent number."""

_LEAST_OF_VALUES = 1e-2
"""The smallest standard deviation of a value given the latent numbers."""


class Regressor(ConditionalModel):
    """A denoiser without noise: one estimate of all that is unknown, the mean of what is possible rather than a sample of it.

    Zeros take the place of the noisy values and of the time (structured-diffusion paper, Appendix D: "Regressor + GS"; "Regressor" is the same with
    ``Denoiser(..., structure="dense")``).

    Args:
        denoiser: of a graph.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser.frames)
        self.denoiser = denoiser

    def estimate(self, condition: Condition) -> Tensor:
        """The estimate, standardised, with the known values in their place, shape ``(batch, numbers)``."""
        level = condition.rows.new_zeros(len(condition.rows))
        found = self.denoiser(condition.rows, level, condition.nodes, condition.frame)
        return torch.where(condition.numbers, condition.rows, found)

    def loss(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> Tensor:
        """The mean squared error at the nodes that are not observed, each node counting the same; a scalar.

        Args:
            values: samples, by variable, shape ``(batch, *axes)``.
            observed: which nodes the network is given, shape ``(batch, nodes)``, boolean; or by variable, shape ``(batch, *node axes)``.
            sizes: of the axes without a static one.

        Raises:
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        clean, condition = self.example(values, observed, **sizes)
        return self.mean_over_unknown((self.estimate(condition) - clean) ** 2, condition)

    def sample(
        self, given: Given | None = None, count: int = 1, *, verify: bool = False, at_once: int = 1024, sizes: Mapping[str, int] | None = None
    ) -> Samples:
        """Estimate all variables that are not given; the same condition gives the same estimate.

        Args:
            given: by variable, whole or in part; a batch axis of 1 is repeated.
            count: of estimates.
            verify: check the constraints of the graph.
            at_once: estimates in memory at a time.
            sizes: of the axes without a static one.

        Raises:
            DeclarationError: for count or at_once below 1.
            ObservationError: for values that do not fit the graph.
        """
        return _sample(self, lambda held, _: self.estimate(held), given, count, None, verify, 1, at_once, sizes)


class VAEAC(ConditionalModel):
    """A variational auto-encoder with arbitrary conditioning (Ivanov, Figurnov and Vetrov, 2019); of the graph it knows the kinds of values alone.

    Fully connected networks over all numbers of a sample, for one size of the graph: a proposal q(z | x, b), a prior p(z | x_observed, b) and a
    decoder p(x | z, x_observed, b), where b says which nodes are observed. Latent numbers are Gaussian. Continuous values are Gaussian given z,
    binary ones and categories categorical. Unlike the published networks there is no batch norm, so that samples do not depend on each other; and
    what is observed reaches the decoder as it is, not by connections from the layers of the prior.

    Args:
        graph: the declaration.
        width: of hidden layers.
        depth: residual blocks of each network.
        latent: how many latent numbers there are.
        deviation: of continuous values given z, on their standardised scale: "learned", at least 0.01; or "unit".
        sizes: of the axes without a static one.

    Raises:
        DeclarationError: for options out of range, or sizes that are missing or contradict the declaration.
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
    ) -> None:
        if deviation not in DEVIATIONS:
            raise DeclarationError(f"vaeac: unknown deviation {deviation!r}.{suggest(deviation, DEVIATIONS)}")
        for name, number in (("width", width), ("depth", depth), ("latent", latent)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise DeclarationError(f"vaeac: {name} must be a whole number >= 1, got {number!r}.")
        super().__init__(Frames(graph))
        # among the modules, where problems look for it
        self.graph = graph
        frame = self.frames.at(**(sizes or {}))
        self.shapes = _shapes(frame)
        self.deviation, self.latent = deviation, latent
        known = frame.numbers + frame.nodes
        self.proposal = _Residual(known, 2 * latent, width, depth)
        self.prior = _Residual(known, 2 * latent, width, depth)
        self.decoder = _Residual(known + latent, 2 * frame.numbers, width, depth)

    def loss(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> Tensor:
        """The negative evidence lower bound on the unobserved values, in nats per sample on average, with the prior kept from diverging; a scalar.

        Draws from torch's global generator.

        Args:
            values: samples, by variable, shape ``(batch, *axes)``.
            observed: which nodes the networks are given, shape ``(batch, nodes)``, boolean; or by variable, shape ``(batch, *node axes)``.
            sizes: of the axes without a static one; those of the networks.

        Raises:
            DeclarationError: for other sizes than those of the networks.
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        clean, condition = self.example(values, observed, **sizes)
        known = self._known(condition)
        prior = _gaussian(self.prior(known))
        proposal = _gaussian(self.proposal(torch.cat([clean, condition.nodes.to(clean)], 1)))
        gain = self._log_likelihood(clean, condition, *self._decode(proposal.rsample(), known))
        bound = gain - kl_divergence(proposal, prior).sum(1) + _hyperprior(prior)
        return -bound.mean()

    def sample(
        self,
        given: Given | None = None,
        count: int = 1,
        *,
        seed: int | Sequence[int] | None = None,
        verify: bool = False,
        tries: int = 1,
        at_once: int = 1024,
        sizes: Mapping[str, int] | None = None,
    ) -> Samples:
        """Sample all variables that are not given.

        Args:
            given: by variable, whole or in part; a batch axis of 1 is repeated.
            count: of samples.
            seed: of all samples together, or one for each, which then depends on nothing else; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: with ``verify``, how often to sample what meets them not.
            at_once: samples in memory at a time.
            sizes: of the axes without a static one; those of the networks.

        Raises:
            DeclarationError: for count, tries or at_once below 1, or other sizes than those of the networks.
            ObservationError: for values that do not fit the graph, or the wrong number of seeds.
        """
        return _sample(self, self._draw, given, count, seed, verify, tries, at_once, sizes)

    def _draw(self, condition: Condition, generators: list[torch.Generator] | None) -> Tensor:
        """Standardised rows, shape ``(batch, numbers)``."""
        known, numbers = self._known(condition), condition.rows.shape[1]
        noise = _noise(condition.rows, self.latent + numbers, generators)
        prior = _gaussian(self.prior(known))
        centre, deviation = self._decode(prior.mean + prior.stddev * noise[:, : self.latent], known)
        noise = noise[:, self.latent :]
        found = centre + deviation * noise
        for slot in condition.frame.slots.values():
            if slot.kind != "real":
                # the largest logit plus Gumbel noise is a sample of the softmax
                uniform = torch.special.ndtr(noise[:, slot.numbers]).clamp(1e-7, 1 - 1e-7)
                chosen = (centre[:, slot.numbers] - (-uniform.log()).log()).unflatten(1, (-1, slot.channels)).argmax(2)
                found[:, slot.numbers] = one_hot(chosen, slot.channels).flatten(1).to(found)
        kinds = torch.cat([torch.full((s.numbers.stop - s.numbers.start,), s.kind == "real") for s in condition.frame.slots.values()])
        found = torch.where(kinds.to(found.device), found, self._standard(found, condition.frame))
        return torch.where(condition.numbers, condition.rows, found)

    def _known(self, condition: Condition) -> Tensor:
        """What is observed and where, shape ``(batch, numbers + nodes)``."""
        shapes = _shapes(condition.frame)
        if shapes != self.shapes:
            raise DeclarationError(f"vaeac: the networks are for variables of shapes {self.shapes}, but at these sizes they have {shapes}.")
        return torch.cat([condition.rows, condition.nodes.to(condition.rows)], 1)

    def _decode(self, z: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Means of continuous numbers or logits of options, and deviations, each of shape ``(batch, numbers)``."""
        centre, spread = self.decoder(torch.cat([known, z], 1)).chunk(2, 1)
        return centre, torch.ones_like(spread) if self.deviation == "unit" else softplus(spread).clamp(min=_LEAST_OF_VALUES)

    def _log_likelihood(self, clean: Tensor, condition: Condition, centre: Tensor, deviation: Tensor) -> Tensor:
        """Of the unobserved nodes, shape ``(batch,)``."""
        truth = self._natural(clean, condition.frame)
        found = []
        for slot in condition.frame.slots.values():
            here, channels = slot.numbers, (-1, slot.channels)
            if slot.kind == "real":
                logs = Normal(centre[:, here], deviation[:, here], validate_args=False).log_prob(clean[:, here]).unflatten(1, channels)
            else:
                logs = log_softmax(centre[:, here].unflatten(1, channels), -1) * truth[:, here].unflatten(1, channels)
            found.append(logs.sum(2))
        return (torch.cat(found, 1) * ~condition.nodes).sum(1)


class _Residual(nn.Module):
    """A linear layer, residual blocks, a linear layer."""

    def __init__(self, inputs: int, outputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.LeakyReLU(), nn.Linear(width, width)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.last(leaky_relu(x))
        return found


def _gaussian(numbers: Tensor) -> Normal:
    mean, spread = numbers.chunk(2, 1)
    return Normal(mean, softplus(spread).clamp(min=_LEAST), validate_args=False)


def _hyperprior(prior: Normal) -> Tensor:
    """A normal prior on means and a gamma prior on deviations, both nearly flat, up to constants, shape ``(batch,)``."""
    found: Tensor = (-(prior.mean**2) / (2 * 1e4**2) + 1e-4 * (prior.stddev.log() - prior.stddev)).sum(1)
    return found


def _noise(like: Tensor, width: int, generators: list[torch.Generator] | None) -> Tensor:
    if generators is None:
        return torch.randn(len(like), width).to(like)
    return torch.stack([torch.randn(width, generator=generator) for generator in generators]).to(like)


def _shapes(frame: Frame) -> dict[str, tuple[int, ...]]:
    return {name: slot.shape for name, slot in frame.slots.items()}


@torch.no_grad()
def _sample(
    model: ConditionalModel,
    draw: Callable[[Condition, list[torch.Generator] | None], Tensor],
    given: Given | None,
    count: int,
    seed: int | Sequence[int] | None,
    verify: bool,
    tries: int,
    at_once: int,
    sizes: Mapping[str, int] | None,
) -> Samples:
    check_counts("sampling", count=count, tries=tries, at_once=at_once)
    condition = model.condition(given or {}, count, **(sizes or {}))
    training = model.training
    model.eval()
    try:
        return tried_again(model, condition, given or {}, draw, generators_of(seed, count), verify, tries, at_once)
    finally:
        model.train(training)
