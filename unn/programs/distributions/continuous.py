"""Continuous distributions of one number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaln, gammaln, xlog1py, xlogy

from ..kinds import Array, Kind
from ..recording import Recordable, holds_values
from ..values import Value
from .base import Distribution, Rule

if TYPE_CHECKING:
    from ..tape import Drawing, Shape

_LOG_TAU = math.log(2 * math.pi)
_SINGLE_ROUNDING, _DOUBLE_ROUNDING = 2.0**-23, 2.0**-52
POSITIVE = Kind("real", low=0.0)
"""Kind of positive numbers."""


def above_zero(name: str) -> Rule:
    """The condition that a parameter is positive."""
    return Rule((name,), name, "> 0", lambda x: x, lambda x: x > 0)


def at_least_zero(name: str) -> Rule:
    """The condition that a parameter is not negative."""
    return Rule((name,), name, ">= 0", lambda x: x, lambda x: x >= 0)


class Normal(Distribution):
    """A normal distribution; with scale zero, a point mass at the mean, whose density is infinite there.

    Args:
        mean: mean.
        scale: standard deviation, >= 0.
    """

    rules = (at_least_zero("scale"),)

    def __init__(self, mean: Recordable = 0.0, scale: Recordable = 1.0) -> None:
        super().__init__(mean=mean, scale=scale)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(parameters["mean"] + parameters["scale"] * drawing.normal(shape))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        mean, scale = parameters["mean"], parameters["scale"]
        z = (values - mean) / scale
        regular = -0.5 * z * z - np.log(scale) - 0.5 * _LOG_TAU
        return np.where(scale > 0, regular, np.where((scale == 0) & (values == mean), np.inf, -np.inf))

    def unrounded(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        mean, scale = parameters["mean"], parameters["scale"]
        rounded = (scale == 0) & (np.abs(values - mean) <= _SINGLE_ROUNDING * np.abs(mean))
        return np.where(rounded, mean, values)


class LogNormal(Distribution):
    """The exponential of a normal variable.

    Args:
        mean: mean of the logarithm.
        scale: standard deviation of the logarithm, > 0.
    """

    kind = POSITIVE
    rules = (above_zero("scale"),)

    def __init__(self, mean: Recordable = 0.0, scale: Recordable = 1.0) -> None:
        super().__init__(mean=mean, scale=scale)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(np.exp(parameters["mean"] + parameters["scale"] * drawing.normal(shape)))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        logarithm = np.log(values)
        z = (logarithm - parameters["mean"]) / parameters["scale"]
        inside = -0.5 * z * z - np.log(parameters["scale"]) - 0.5 * _LOG_TAU - logarithm
        return np.where(values > 0, inside, -np.inf)


class Laplace(Distribution):
    """A Laplace distribution.

    Args:
        mean: mean.
        scale: mean absolute deviation, > 0.
    """

    rules = (above_zero("scale"),)

    def __init__(self, mean: Recordable = 0.0, scale: Recordable = 1.0) -> None:
        super().__init__(mean=mean, scale=scale)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        # from (-1/2, 1/2]; the least positive number keeps the logarithm finite
        u = 0.5 - drawing.uniform(shape)
        size = -np.log(np.maximum(1 - 2 * np.abs(u), np.finfo(np.float64).tiny))
        return np.asarray(parameters["mean"] + parameters["scale"] * np.sign(u) * size)

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        scale = parameters["scale"]
        return np.asarray(-np.abs(values - parameters["mean"]) / scale - np.log(2 * scale))


class StudentT(Distribution):
    """A Student t distribution.

    Args:
        degrees: degrees of freedom, > 0.
        mean: location, which is the mean for ``degrees`` > 1.
        scale: scale, > 0.
    """

    rules = (above_zero("degrees"), above_zero("scale"))

    def __init__(self, degrees: Recordable, mean: Recordable = 0.0, scale: Recordable = 1.0) -> None:
        super().__init__(degrees=degrees, mean=mean, scale=scale)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        draws = drawing.generator().standard_t(parameters["degrees"], shape)
        return np.asarray(parameters["mean"] + parameters["scale"] * draws)

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        degrees, scale = parameters["degrees"], parameters["scale"]
        z = (values - parameters["mean"]) / scale
        # the difference of two logarithms of gamma functions would cancel for many degrees of freedom
        constant = -betaln(degrees / 2, 0.5) - 0.5 * np.log(degrees)
        return np.asarray(constant - np.log(scale) - (degrees + 1) / 2 * np.log1p(z * z / degrees))


class Exponential(Distribution):
    """An exponential distribution.

    Args:
        rate: rate, the inverse of the mean, > 0.
    """

    kind = POSITIVE
    rules = (above_zero("rate"),)

    def __init__(self, rate: Recordable = 1.0) -> None:
        super().__init__(rate=rate)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(-np.log1p(-drawing.uniform(shape)) / parameters["rate"])

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        rate = parameters["rate"]
        return np.where(values >= 0, np.log(rate) - rate * values, -np.inf)


class Gamma(Distribution):
    """A gamma distribution.

    Args:
        concentration: shape parameter, > 0.
        rate: rate, the inverse of the scale, > 0.
    """

    kind = POSITIVE
    rules = (above_zero("concentration"), above_zero("rate"))

    def __init__(self, concentration: Recordable, rate: Recordable = 1.0) -> None:
        super().__init__(concentration=concentration, rate=rate)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        draws = drawing.generator().standard_gamma(parameters["concentration"], shape)
        # small concentrations underflow, and zero is outside the open support
        return np.asarray(np.maximum(draws, np.finfo(np.float64).tiny) / parameters["rate"])

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        concentration, rate = parameters["concentration"], parameters["rate"]
        constant = concentration * np.log(rate) - gammaln(concentration)
        return np.where(values >= 0, constant + xlogy(concentration - 1, values) - rate * values, -np.inf)


class Beta(Distribution):
    """A beta distribution.

    Args:
        one, other: shape parameters, > 0; the mean is ``one / (one + other)``.
    """

    kind = Kind("real", low=0.0, high=1.0)
    rules = (above_zero("one"), above_zero("other"))

    def __init__(self, one: Recordable, other: Recordable) -> None:
        super().__init__(one=one, other=other)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(drawing.generator().beta(parameters["one"], parameters["other"], shape))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        one, other = parameters["one"], parameters["other"]
        inside = xlogy(one - 1, values) + xlog1py(other - 1, -values) - betaln(one, other)
        return np.where((values >= 0) & (values <= 1), inside, -np.inf)


def _range_of(x: Recordable) -> tuple[Array, Array] | None:
    """Least and largest values of the entries of a constant, or of a draw; None where they are not known."""
    if isinstance(x, (list, tuple)) and holds_values(x):
        ranges = [_range_of(y) for y in x]
        known = [r for r in ranges if r is not None]
        if len(known) < len(ranges):
            return None
        if len({r[0].shape for r in known}) > 1:
            return None
        low, high = (np.stack(side) for side in zip(*known, strict=True))
        return low, high
    if holds_values(x):
        statement = x.statement if isinstance(x, Value) else None
        if statement is None or statement.role != "sample" or statement.kind.name != "real":
            return None
        kind = statement.kind
        return statement.bounds or (np.full(x.shape, kind.low), np.full(x.shape, kind.high))
    numbers = np.asarray(x, dtype=np.float64)
    return (numbers, numbers) if numbers.size and np.isfinite(numbers).all() else None


def _fit(one: Array, other: Array) -> bool:
    """Whether two shapes broadcast."""
    return all(a == b or 1 in (a, b) for a, b in zip(one.shape[::-1], other.shape[::-1], strict=False))


class Uniform(Distribution):
    """The uniform distribution between two bounds; with equal bounds, a point mass, whose density is infinite
    there.

    The domain of each entry lies between the least value of its lower bound and the largest of its upper
    one, where both are constants or whole draws. Computed bounds, entries of draws among them, are not known.
    Point masses have the domain of the other entries.

    Args:
        low: lower bound.
        high: upper bound, >= ``low``.
    """

    rules = (
        Rule(("low", "high"), "high - low", ">= 0", lambda low, high: high - low, lambda width: width >= 0),
    )

    def __init__(self, low: Recordable = 0.0, high: Recordable = 1.0) -> None:
        super().__init__(low=low, high=high)
        lower, upper = _range_of(low), _range_of(high)
        # sampling refuses shapes that do not fit one another
        if lower is not None and upper is not None and _fit(lower[0], upper[1]):
            least, greatest = np.broadcast_arrays(lower[0], upper[1])
            if least.min() < greatest.max():
                kind = Kind("real", low=float(least.min()), high=float(greatest.max()))
                # a point mass has no interior
                inside = least < greatest
                self.kind = kind
                self.bounds = np.where(inside, least, kind.low), np.where(inside, greatest, kind.high)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        low, high = parameters["low"], parameters["high"]
        return np.asarray(low + (high - low) * drawing.uniform(shape))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        low, high = parameters["low"], parameters["high"]
        margin = _DOUBLE_ROUNDING * np.maximum(np.abs(low), np.abs(high))
        inside = (values >= low - margin) & (values <= high + margin)
        return np.where(inside & (high >= low), -np.log(high - low), -np.inf)

    def unrounded(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        low, high = parameters["low"], parameters["high"]
        bounded = np.clip(values, np.minimum(low, high), high)
        margin = _SINGLE_ROUNDING * np.maximum(np.abs(low), np.abs(high))
        return np.where(np.abs(values - bounded) <= margin, bounded, values)
