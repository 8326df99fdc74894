"""Distributions of the tasks that are products of no standard ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from unn.programs import Distribution
from unn.programs.kinds import Array
from unn.programs.tape import Drawing, Shape

_RADIUS, _SPREAD = 0.1, 0.01
"""Mean and standard deviation of the radius of a crescent."""


class Crescent(Distribution):
    """Points of a crescent: at the radius N(0.1, 0.01) and a uniform angle from -pi/2 to pi/2 of a centre.

    The density of a point at the radius r is that of the radius divided by pi r, the change of variables
    included, which the published reference of the task leaves out.

    Args:
        centre: centre of the circle, shape ``(..., 2)``.
    """

    event = (2,)
    cliques = ((),)
    parameter_shapes = {"centre": (2,)}

    def __init__(self, centre: Any) -> None:
        super().__init__(centre=centre)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        radius = _RADIUS + _SPREAD * drawing.normal(shape)
        angle = math.pi * (drawing.uniform(shape) - 0.5)
        point = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
        return np.asarray(parameters["centre"] + point)

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        offset = values - parameters["centre"]
        radius = np.hypot(offset[..., 0], offset[..., 1])
        z = (radius - _RADIUS) / _SPREAD
        normal = -0.5 * z * z - math.log(_SPREAD) - 0.5 * math.log(2 * math.pi)
        # a negative radius, ten deviations away, is neglected
        return np.where(offset[..., 0] >= 0, normal - np.log(math.pi * radius), -np.inf)


class TwoScales(Distribution):
    """A point of the plane around a mean, with the standard deviation 1 or 0.1 with equal probability.

    Args:
        mean: mean, shape ``(..., 2)``.
    """

    event = (2,)
    cliques = ((),)
    parameter_shapes = {"mean": (2,)}

    def __init__(self, mean: Any) -> None:
        super().__init__(mean=mean)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        scale = np.where(drawing.uniform(shape) < 0.5, 1.0, 0.1)
        return np.asarray(parameters["mean"] + scale[..., None] * drawing.normal((*shape, 2)))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        square = ((values - parameters["mean"]) ** 2).sum(-1)
        parts = [-0.5 * square / s**2 - 2 * math.log(s) for s in (1.0, 0.1)]
        return np.asarray(np.logaddexp(*parts) - math.log(2 * 2 * math.pi))
