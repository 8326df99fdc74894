"""The joint distribution of all observed nodes given the outputs of a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import ObservationError
from ..networks.tokens import Slot
from .hierarchy import Hierarchy
from .likelihoods import Likelihood, LogisticMixture, Normal, Options, is_on_levels
from .options import LatentOptions

_LEAST_DEVIATION = 1e-6
"""Standard deviation up to which a number counts as constant."""
_FARTHEST = 1e6
"""Largest distance of given values from the mean of the examples, in standard deviations."""


@dataclass(frozen=True, eq=False)
class _Part:
    """One variable: its layout, its distribution, and where its parameters and noise are."""

    slot: Slot
    likelihood: Likelihood
    parameters: slice
    noise: slice

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return math.prod(self.slot.node_shape)


class ObservedNodes(nn.Module):
    """Distributions of the observed variables, with standardised real ones.

    Args:
        hierarchy: layout of the observed nodes.
        options: distribution of real variables.

    Raises:
        ObservationError: for images of another number of channels than 1 or 3 as levels.

    Attributes:
        outputs: parameters at each position of the image.
        noise: uniform numbers for a sample.
    """

    def __init__(self, hierarchy: Hierarchy, options: LatentOptions) -> None:
        super().__init__()
        self.hierarchy = hierarchy
        self.levels = options.reals == "levels"
        self._parts: list[_Part] = []
        first = noise = 0
        for slot in hierarchy.rows.slots.values():
            likelihood = _likelihood(slot, options)
            nodes = slot.nodes.stop - slot.nodes.start
            count = likelihood.parameters * nodes
            self._parts.append(
                _Part(
                    slot,
                    likelihood,
                    slice(first, first + count),
                    slice(noise, noise + likelihood.noise * nodes),
                )
            )
            first, noise = first + count, noise + likelihood.noise * nodes
        self.outputs, self.noise = first // math.prod(hierarchy.image), noise
        numbers = hierarchy.rows.numbers
        self.register_buffer("centre", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))

    def check(self, rows: Tensor, nodes: Tensor) -> None:
        """Check that observed real numbers are levels, if they are to be, and otherwise near the examples.

        Args:
            rows: numbers, shape ``(batch, numbers)``.
            nodes: mask of observed nodes, shape ``(batch or 1, nodes)``.

        Raises:
            ObservationError: names the variable and its range.
        """
        standard = self.standardised(rows)
        for part in self._parts:
            if part.slot.kind == "real":
                seen = nodes[:, part.slot.nodes].repeat_interleave(part.slot.channels, 1).to(rows.device)
                far = torch.where(seen, standard[:, part.slot.numbers], 0).abs() > _FARTHEST
                if bool(far.any()):
                    value = float(rows[:, part.slot.numbers][far][0])
                    raise ObservationError(
                        f"variable {part.slot.name!r}: the value {value:.4g} is more than {_FARTHEST:g} "
                        "standard deviations of the training examples from their mean."
                    )
                x = torch.where(seen, rows[:, part.slot.numbers], 1.0)
                if self.levels and not is_on_levels(x):
                    raise ObservationError(
                        f"variable {part.slot.name!r}: values must be the 256 levels of 8-bit channels, "
                        f"k / 127.5 - 1 for k = 0 to 255, got values from {float(x.min()):.4g} to "
                        f"{float(x.max()):.4g}; or train with --model.reals normal."
                    )

    def prepare(self, rows: Tensor) -> None:
        """Set means and standard deviations of real variables, by number, of pixels together.

        Args:
            rows: examples, shape ``(examples, numbers)``.
        """
        centre, deviation = self._buffers_of()
        for part in self._parts:
            if part.slot.kind != "real" or self.levels:
                continue
            x = rows[:, part.slot.numbers]
            if self.hierarchy.is_image:
                x = x.reshape(-1, part.slot.channels)
                mean, spread = x.mean(0).repeat(part.nodes), x.std(0, correction=0).repeat(part.nodes)
            else:
                mean, spread = x.mean(0), x.std(0, correction=0)
            centre[part.slot.numbers] = mean.to(centre)
            # what is constant in the examples has no scale
            spread = torch.where(spread > _LEAST_DEVIATION, spread, 1)
            deviation[part.slot.numbers] = spread.to(deviation)

    def is_prepared(self) -> bool:
        """Whether ``prepare`` has changed a mean or a deviation, or there is none that it sets."""
        centre, deviation = self._buffers_of()
        is_real = any(part.slot.kind == "real" for part in self._parts) and not self.levels
        return not is_real or bool((centre != 0).any() | (deviation != 1).any())

    def standardised(self, rows: Tensor) -> Tensor:
        """Rows with standardised real numbers, shape ``(batch, numbers)``."""
        centre, deviation = self._buffers_of()
        return (rows - centre) / deviation

    def log_probability(self, parameters: Tensor, rows: Tensor) -> Tensor:
        """Logarithm of the probability or density of each node, shape ``(batch, nodes)``.

        Args:
            parameters: outputs of the network, shape ``(batch, outputs, height, width)``.
            rows: standardised rows; the density is that of the numbers as they are.
        """
        _, deviation = self._buffers_of()
        result = []
        for part, own in self._split(parameters):
            values = rows[:, part.slot.numbers].unflatten(1, (part.nodes, part.slot.channels))
            logs = part.likelihood.log_probability(own, values.transpose(1, 2))
            scale = deviation[part.slot.numbers].view(part.nodes, -1).log().sum(1)
            result.append(logs - scale)
        return torch.cat(result, 1)

    def means(self, parameters: Tensor) -> Tensor:
        """Means of the numbers as they are, shape ``(batch, numbers)``."""
        return self._natural([part.likelihood.mean(own) for part, own in self._split(parameters)])

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        """Samples of all numbers as they are, shape ``(batch, numbers)``.

        Args:
            parameters: outputs of the network.
            uniform: numbers between 0 and 1, shape ``(batch, noise)``.
        """
        samples = []
        for part, own in self._split(parameters):
            noise = uniform[:, part.noise].unflatten(1, (part.likelihood.noise, part.nodes))
            samples.append(part.likelihood.sample(own, noise))
        return self._natural(samples)

    def _natural(self, values: list[Tensor]) -> Tensor:
        centre, deviation = self._buffers_of()
        rows = torch.cat([x.transpose(1, 2).flatten(1) for x in values], 1)
        return rows * deviation + centre

    def _split(self, parameters: Tensor) -> Iterator[tuple[_Part, Tensor]]:
        """The parameters of each variable, shape ``(batch, parameters of a node, nodes)``."""
        flat = parameters.flatten(1)
        for part in self._parts:
            yield part, flat[:, part.parameters].unflatten(1, (part.likelihood.parameters, part.nodes))

    def _buffers_of(self) -> tuple[Tensor, Tensor]:
        centre, deviation = self.centre, self.deviation
        assert isinstance(centre, Tensor) and isinstance(deviation, Tensor)
        return centre, deviation


def _likelihood(slot: Slot, options: LatentOptions) -> Likelihood:
    if slot.kind != "real":
        return Options(slot.channels)
    if options.reals == "normal":
        return Normal(slot.channels)
    if slot.channels not in (1, 3):
        raise ObservationError(
            f"variable {slot.name!r} has {slot.channels} channels; levels are for images of 1 or 3."
        )
    return LogisticMixture(slot.channels, options.components)
