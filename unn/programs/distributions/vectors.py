"""Distributions of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, xlogy

from ...errors import DeclarationError
from ..kinds import Array, Kind
from ..recording import Recordable, holds_values, plain_array
from .base import Distribution, Rule
from .continuous import above_zero

if TYPE_CHECKING:
    from ..tape import Drawing, Shape

_LOG_TAU = math.log(2 * math.pi)


class MultivariateNormal(Distribution):
    """A normal vector. By default its entries are separate nodes, all of which interact, so that any of them
    can be given; or the vector is one node.

    Args:
        mean: mean, shape ``(..., d)``; its last axis determines the number of entries.
        covariance: covariance, symmetric and positive definite, shape ``(..., d, d)``.
        one_node: whether the vector is one node, with its entries along a feature axis.

    Raises:
        DeclarationError: for a mean without an axis, besides the errors of all distributions.
    """

    rules = (
        Rule(
            ("covariance",),
            "asymmetry of covariance",
            "0",
            lambda c: np.abs(c - c.swapaxes(-1, -2)).max((-1, -2)) - 1e-6 * np.abs(c).max((-1, -2)),
            lambda asymmetry: asymmetry <= 0,
        ),
        Rule(
            ("covariance",),
            "the smallest eigenvalue of covariance",
            "> 0",
            lambda c: np.linalg.eigvalsh(c)[..., 0],
            lambda least: least > 0,
        ),
    )

    def __init__(self, mean: Recordable, covariance: Recordable, one_node: bool = False) -> None:
        size = entries_of(mean, "MultivariateNormal: mean")
        self.parameter_shapes = {"mean": (size,), "covariance": (size, size)}
        if one_node:
            self.kind = Kind("vector", size)
        else:
            self.event, self.cliques = (size,), ((),)
        super().__init__(mean=mean, covariance=covariance)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        root = np.linalg.cholesky(parameters["covariance"])
        noise = drawing.normal((*shape, root.shape[-1]))
        return np.asarray(parameters["mean"] + (root @ noise[..., None])[..., 0])

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        covariance = parameters["covariance"]
        size = covariance.shape[-1]
        sign, volume = np.linalg.slogdet(covariance)
        # at parents outside their support a covariance can be singular
        safe = np.where((sign > 0)[..., None, None], covariance, np.eye(size))
        difference = (values - parameters["mean"])[..., None]
        solved = np.linalg.solve(safe, difference)
        inside = -0.5 * ((difference * solved).sum((-1, -2)) + volume + size * _LOG_TAU)
        return np.where(sign > 0, inside, -np.inf)


_SMALL = 0.1
"""Concentrations below which proportions are drawn in logarithms."""


class Dirichlet(Distribution):
    """A Dirichlet distribution: proportions, which are positive and sum to one along a last axis. They are
    one node.

    Args:
        concentration: shape parameters, > 0, shape ``(..., k)``.

    Raises:
        DeclarationError: for a concentration without an axis, besides the errors of all distributions.
    """

    rules = (above_zero("concentration"),)

    def __init__(self, concentration: Recordable) -> None:
        size = entries_of(concentration, "Dirichlet: concentration")
        if size < 2:
            raise DeclarationError("Dirichlet: concentration needs two entries or more along the last axis.")
        self.kind = Kind("proportions", size)
        self.parameter_shapes = {"concentration": (size,)}
        super().__init__(concentration=concentration)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        concentration = parameters["concentration"]
        generator, size = drawing.generator(), (*shape, concentration.shape[-1])
        least = np.finfo(np.float64).tiny
        draws = np.maximum(generator.standard_gamma(concentration, size), least)
        shares = draws / draws.sum(-1, keepdims=True)
        small = np.broadcast_to((concentration < _SMALL).any(-1, keepdims=True), size)
        if not small.any():
            return np.asarray(shares)
        # all draws of a row may underflow, but not their logarithms (Marsaglia and Tsang, 2000)
        logs = np.log(generator.standard_gamma(concentration + 1, size))
        logs += np.log1p(-generator.random(size)) / concentration
        precise = np.exp(logs - logs.max(-1, keepdims=True))
        precise = np.maximum(precise / precise.sum(-1, keepdims=True), least)
        return np.asarray(np.where(small, precise, shares))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        a = parameters["concentration"]
        constant = gammaln(a.sum(-1)) - gammaln(a).sum(-1)
        inside = constant + xlogy(a - 1, values).sum(-1)
        # allows the rounding of single precision
        on_simplex = (values >= 0).all(-1) & (np.abs(values.sum(-1) - 1) < 1e-4)
        return np.where(on_simplex, inside, -np.inf)


def entries_of(x: Recordable, what: str) -> int:
    """Size of the last axis of a parameter.

    Raises:
        DeclarationError: for a single number.
    """
    while isinstance(x, (list, tuple)) and holds_values(x) and any(np.ndim(y) for y in x):
        x = x[0]
    shape = (len(x),) if isinstance(x, (list, tuple)) and holds_values(x) else None
    if shape is None:
        shape = x.shape if holds_values(x) else plain_array(x, what).shape
    if not shape:
        raise DeclarationError(f"{what} needs a last axis, got a single number.")
    return int(shape[-1])
