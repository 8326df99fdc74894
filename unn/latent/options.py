"""Options of the engine ``latent``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError, suggest, whole_number
from ..ranges import check_ranges

Reals = Literal["normal", "levels"]
REALS = ("normal", "levels")


@dataclass(frozen=True)
class LatentOptions:
    """Options of the engine ``latent``.

    Attributes:
        width: Channels of the contexts of a layer.
        cells: Residual cells between two layers.
        keys: Channels of the queries and keys of attention over layers.
        spatial_keys: Channels of those of attention over positions.
        normalised: Normalise contexts around attention over layers.
        divergence_warmup: Training steps during which the weight of the divergence grows to 1.
        first_weight: Weight of the divergence at the first step.
        free_bits: Divergence in nats that each layer has for free; 0 for none.
        spectral: Weight of the largest singular values of all kernels in the loss; 0 for none.
        masked: Share of the training examples of which the posterior sees the observed nodes alone, so that
            any part can be given later; 0 trains on whole examples.
        reals: Distribution of real variables given the latent ones: "normal", or "levels" for 8-bit
            channels from -1 to 1, by mixtures of discretised logistic distributions.
        components: Components of these mixtures.
        particles: Draws of the latent variables from which each conditional sample is selected by its weight.
        recompute: Recompute layers in the backward pass, to save memory.
    """

    width: int = 32
    cells: int = 1
    keys: int = 8
    spatial_keys: int = 8
    normalised: bool = True
    divergence_warmup: int = 1000
    first_weight: float = 0.1
    free_bits: float = 0.0
    spectral: float = 0.0
    masked: float = 0.0
    reals: Reals = "normal"
    components: int = 5
    particles: int = 16
    recompute: bool = False

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "width": (self.width, 1, 16384),
            "cells": (self.cells, 1, 1000),
            "keys": (self.keys, 1, 16384),
            "spatial_keys": (self.spatial_keys, 1, 16384),
            "divergence_warmup": (self.divergence_warmup, 0, 10**12),
            "first_weight": (self.first_weight, 0, 1),
            "free_bits": (self.free_bits, 0, 10**6),
            "spectral": (self.spectral, 0, 10**6),
            "masked": (self.masked, 0, 1),
            "components": (self.components, 1, 1000),
            "particles": (self.particles, 1, 10**6),
        }
        check_ranges(where, ranges)
        for name in (
            "width",
            "cells",
            "keys",
            "spatial_keys",
            "divergence_warmup",
            "components",
            "particles",
        ):
            whole_number(f"{where}: option {name}", getattr(self, name), 0, ArgumentError)
        if self.reals not in REALS:
            raise ArgumentError(f"{where}: reals={self.reals!r} is unknown.{suggest(self.reals, REALS)}")
        if self.keys > self.width:
            raise ArgumentError(
                f"{where}: keys={self.keys} must be at most width={self.width}, since the query of a "
                "posterior is part of its context."
            )
