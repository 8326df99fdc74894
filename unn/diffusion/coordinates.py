"""Coordinates without bounds for values in a domain: logarithms that become linear, normal quantiles,
log-ratios.

A model of the coordinates has samples in the domain, however inaccurate it is. Counts become continuous by
adding uniform noise from [0, 1) (dequantisation), which flooring removes exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..graph.arrays import Variable
from ..graph.bounds import EntryBounds
from ..regularizers import Counts, Elementwise, Proportions

CoordinateName = Literal["auto", "domain", "quantiles", "linear"]
COORDINATES = ("auto", "domain", "quantiles", "linear")
KNOTS, LARGEST_SCORE = 49, 3.0
"""Knots of the warp to normal quantiles, and the largest score of a knot; scores beyond are extrapolated."""

_SHARE_OF_IDENTITY = 0.005
"""Share of the normal score in the warp of quantiles."""
_LEAST = 1e-7
"""Least distance from a bound, in widths of the interval; 5.2 standard deviations in its coordinates."""
_LEAST_POSITIVE = 1e-12
"""Least distance from a bound of a half-line, and least proportion."""
_REACH, _REACH_OF_LOGARITHMS = 3.0, 5.0
"""Standard deviations up to which networks are trained well, and those of logarithms, which extrapolate."""
_NEARLY_PLAIN = 0.3
"""Typical distance from a bound, times the rate, below which coordinates are nearly logarithms."""
_NEAR = 0.01
"""A small distance from a bound, in typical ones."""
_TAIL = 0.01
"""Share of the values beyond each of the quantiles whose distances from the median are balanced."""
_HALVINGS = 30
"""Halvings of the interval of logarithms of rates in balancing."""


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of the numbers of one variable.

    Attributes:
        low, high: bounds of each number; infinite for none. Tensors of finite bounds, shape ``(numbers,)``,
            where they differ.
        whole: whether values are whole numbers.
        proportions: number of positive numbers of a node that sum to one; 0 for other values.
        rate: of values with one bound, a scalar r >= 0 by which the coordinate log(exp(r x) - 1) - log(r) of
            the distance x from the bound is a logarithm below 1 / r and linear above; 0 for the logarithm
            everywhere.
    """

    low: float | Tensor = -math.inf
    high: float | Tensor = math.inf
    whole: bool = False
    proportions: int = 0
    rate: Tensor | float = 0.0

    @property
    def are_logarithms(self) -> bool:
        """Whether coordinates are logarithms, at least of small values."""
        return _is_bound(self.low) and not _is_bound(self.high)

    @property
    def are_linear(self) -> bool:
        """Whether coordinates are the values themselves."""
        return not (_is_bound(self.low) or _is_bound(self.high) or self.proportions)

    @property
    def part_of_number(self) -> Tensor | None:
        """Number of the part of each number, where there are several: parts have coordinates of their own,
        with their own offset and scale."""
        return None

    @property
    def numbers_with_logarithms(self) -> Tensor:
        """Mask of the numbers whose coordinates are logarithms, broadcastable to ``(numbers,)``."""
        return torch.tensor([self.are_logarithms])

    def at(self, shape: Sequence[int], rate: Tensor | float) -> Coordinates:
        """The coordinates of a variable of a shape, with a rate."""
        return replace(self, rate=rate)

    def forward(self, values: Tensor, noise: Tensor | float = 0.5) -> Tensor:
        """Coordinates of values, in double precision, shape ``(batch, numbers)``.

        Args:
            values: values, shape ``(batch, numbers)``.
            noise: numbers from [0, 1) added to counts; the middle of the interval by default.
        """
        x = values.double()
        if self.proportions:
            logs = x.unflatten(1, (-1, self.proportions)).clamp(min=_LEAST_POSITIVE).log()
            centred: Tensor = logs - logs.mean(-1, keepdim=True)
            return centred.flatten(1)
        if self.whole:
            x = x + noise
        if not _is_bound(self.low):
            return x
        low, top = _like(self.low, x), _like(self._top, x)
        if not _is_bound(self.high):
            return softened_log((x - low).clamp(min=_LEAST_POSITIVE), self.rate)
        share = (x - low) / (top - low)
        scores: Tensor = torch.special.ndtri(share.clamp(_LEAST, 1 - _LEAST))
        return scores

    def within_reach(self, coordinates: Tensor, offset: Tensor, scale: Tensor) -> Tensor:
        """Coordinates of evidence, away from the bounds as far as nearly all examples are.

        The last thousandth of an interval takes up half of its coordinates, and a bound lies far outside
        those of all examples, where networks extrapolate. Values there differ by less than a hundredth of a
        typical distance from the bound, so that little is lost. Where the examples themselves lie there, they
        are the limit.

        Args:
            coordinates: shape ``(batch, numbers)``.
            offset, scale: mean and standard deviation of the coordinates over examples, shape ``(numbers,)``.
        """
        if self.are_linear:
            return coordinates
        if self.proportions:
            logs = coordinates.unflatten(1, (-1, self.proportions))
            most = (_REACH_OF_LOGARITHMS * scale.max()).clamp(min=_REACH_OF_LOGARITHMS)
            logs = logs.maximum(logs.amax(-1, keepdim=True) - most)
            near_largest: Tensor = logs - logs.mean(-1, keepdim=True)
            return near_largest.flatten(1)
        if self.are_logarithms:
            typical = softened_exp(offset, self.rate)
            near = softened_log((_NEAR * typical).clamp(min=_LEAST_POSITIVE), self.rate)
            # nearly plain logarithms, whose tails are alike, are extrapolated like values without bounds
            reach = torch.where(self.rate * typical < _NEARLY_PLAIN, _REACH_OF_LOGARITHMS, _REACH)
            return coordinates.maximum(near.minimum(offset - reach * scale))
        least = (offset - _REACH * scale).clamp(max=-_REACH)
        greatest = (offset + _REACH * scale).clamp(min=_REACH)
        return coordinates.maximum(least).minimum(greatest)

    def backward(self, coordinates: Tensor) -> Tensor:
        """Values at coordinates, in double precision, shape ``(batch, numbers)``."""
        y = coordinates.double()
        if self.proportions:
            shares: Tensor = y.unflatten(1, (-1, self.proportions)).softmax(-1)
            return shares.flatten(1)
        if not _is_bound(self.low):
            return y
        low, high, top = (_like(bound, y) for bound in (self.low, self.high, self._top))
        if not _is_bound(self.high):
            x = low + softened_exp(y, self.rate)
        else:
            x = low + (top - low) * torch.special.ndtr(y)
        if self.whole:
            x = x.floor()
        return x.clamp(low, high)

    def log_slope(self, values: Tensor) -> Tensor:
        """Logarithm of the derivative of each coordinate of continuous values, shape ``(batch, numbers)``."""
        x = values.double()
        if not _is_bound(self.low):
            return torch.zeros_like(x)
        low, high = _like(self.low, x), _like(self.high, x)
        if not _is_bound(self.high):
            distance = (x - low).clamp(min=_LEAST_POSITIVE)
            # r / (1 - exp(-r x))
            slope: Tensor = self.rate * distance - softened_log(distance, self.rate)
            return slope
        y = self.forward(values)
        # the derivative of the normal quantile is the inverse of the density there
        return 0.5 * y * y + 0.5 * math.log(2 * math.pi) - (high - low).log()

    def balanced(self, values: Tensor, noise: Tensor | float = 0.5) -> float:
        """The rate that balances the tails of some values with one bound; arguments as of ``forward``."""
        x = values.double() + noise if self.whole else values.double()
        return balanced_rate((x - _like(self.low, x)).clamp(min=_LEAST_POSITIVE))

    def indistinct(self, values: Tensor) -> float:
        """Share of the values that lie too near to a bound, though not at it, to differ in their
        coordinates."""
        if self.whole or self.are_linear or not values.numel():
            return 0.0
        x, least = values.double(), _LEAST_POSITIVE
        low, high = _like(self.low, x), _like(self.high, x)
        distance = x if self.proportions else x - low
        if not self.proportions and _is_bound(self.high):
            distance, least = torch.minimum(distance, high - x) / (high - low), _LEAST
        return float(((distance > 0) & (distance < least)).double().mean())

    @property
    def _top(self) -> float | Tensor:
        return self.high + 1 if self.whole else self.high


@dataclass(frozen=True)
class EntryCoordinates:
    """Coordinates of a variable whose entries have different bounds.

    Methods are those of ``Coordinates``; numbers without bounds, with one and with two are parts that are
    converted apart.

    Attributes:
        bounds: bounds of the entries.
        whole: whether values are whole numbers.
        rate: as of ``Coordinates``, for the numbers with one bound.
        shape: shape of the variable; that of the bounds by default.
    """

    bounds: EntryBounds
    whole: bool = False
    rate: Tensor | float = 0.0
    shape: tuple[int, ...] | None = None
    proportions = 0
    are_linear = False

    @property
    def low(self) -> Tensor:
        """Lower bounds, of the shape of the variable."""
        return self._bounds[0]

    @property
    def high(self) -> Tensor:
        """Upper bounds, of the shape of the variable."""
        return self._bounds[1]

    @property
    def are_logarithms(self) -> bool:
        """Whether the coordinates of some numbers are logarithms."""
        return bool((self.low.isfinite() & self.high.isinf()).any())

    def at(self, shape: Sequence[int], rate: Tensor | float) -> EntryCoordinates:
        return replace(self, rate=rate, shape=tuple(shape))

    def forward(self, values: Tensor, noise: Tensor | float = 0.5) -> Tensor:
        return self._joined([own.forward(values[:, at], _at(noise, at)) for at, own in self._parts])

    def within_reach(self, coordinates: Tensor, offset: Tensor, scale: Tensor) -> Tensor:
        return self._joined(
            [own.within_reach(coordinates[:, at], offset[at], scale[at]) for at, own in self._parts]
        )

    def backward(self, coordinates: Tensor) -> Tensor:
        return self._joined([own.backward(coordinates[:, at]) for at, own in self._parts])

    def log_slope(self, values: Tensor) -> Tensor:
        return self._joined([own.log_slope(values[:, at]) for at, own in self._parts])

    def balanced(self, values: Tensor, noise: Tensor | float = 0.5) -> float:
        rates = [own.balanced(values[:, at], _at(noise, at)) for at, own in self._parts if own.are_logarithms]
        return rates[0] if rates else 0.0

    def indistinct(self, values: Tensor) -> float:
        shares = [own.indistinct(values[:, at]) * len(at) for at, own in self._parts]
        return sum(shares) / self.low.numel()

    @property
    def part_of_number(self) -> Tensor | None:
        if len(self._parts) == 1:
            return None
        part = torch.empty(self.low.numel(), dtype=torch.int64)
        for k, (columns, _) in enumerate(self._parts):
            part[columns] = k
        return part

    @property
    def numbers_with_logarithms(self) -> Tensor:
        return (self.low.isfinite() & self.high.isinf()).reshape(-1)

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        low, high = (torch.from_numpy(x) for x in self.bounds.arrays())
        shape = self.bounds.shape if self.shape is None else self.shape
        return low.expand(shape), high.expand(shape)

    @cached_property
    def _parts(self) -> list[tuple[Tensor, Coordinates]]:
        """Columns of the numbers without bounds, with one and with two, each with their coordinates."""
        low, high = (x.reshape(-1) for x in self._bounds)
        has_low, has_high = low.isfinite(), high.isfinite()
        linear, half, whole = (x.nonzero()[:, 0] for x in (~has_low, has_low & ~has_high, has_high))
        parts = [
            (linear, Coordinates(whole=self.whole)),
            (half, Coordinates(low[half], math.inf, self.whole, rate=self.rate)),
            (whole, Coordinates(low[whole], high[whole], self.whole)),
        ]
        return [(columns, own) for columns, own in parts if len(columns)]

    @cached_property
    def _order(self) -> Tensor:
        return torch.cat([columns for columns, _ in self._parts]).argsort()

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), 1)[:, self._order.to(parts[0].device)]


def coordinates_of(variable: Variable, channels: int) -> Coordinates | EntryCoordinates:
    """Coordinates of a variable by the domain of its regularizer, or the bounds of its entries.

    Args:
        variable: variable with continuous values or counts.
        channels: numbers of a node.
    """
    regularizer = variable.regularizer
    if isinstance(regularizer, Proportions):
        return Coordinates(proportions=channels)
    if variable.bounds is not None:
        return EntryCoordinates(variable.bounds, isinstance(regularizer, Counts))
    if not isinstance(regularizer, Elementwise):
        return Coordinates()
    low, high = regularizer.interval()
    if math.isinf(low) and not math.isinf(high):
        return Coordinates()
    return Coordinates(low, high, isinstance(regularizer, Counts))


def _is_bound(bound: float | Tensor) -> bool:
    return isinstance(bound, Tensor) or not math.isinf(bound)


def _like(bound: float | Tensor, x: Tensor) -> Tensor:
    return torch.as_tensor(bound, dtype=x.dtype, device=x.device)


def _at(noise: Tensor | float, columns: Tensor) -> Tensor | float:
    return noise[:, columns] if isinstance(noise, Tensor) else noise


def softened_log(x: Tensor, rate: Tensor | float) -> Tensor:
    """log(exp(r x) - 1) - log(r), which is log(x) for r = 0.

    Args:
        x: positive numbers, any shape, float64.
        rate: r >= 0, a scalar.
    """
    rate = torch.as_tensor(rate, dtype=x.dtype, device=x.device)
    safe = torch.where(rate > 0, rate, 1)
    return rate * x + torch.where(rate > 0, -torch.expm1(-safe * x) / safe, x).log()


def softened_exp(y: Tensor, rate: Tensor | float) -> Tensor:
    """The inverse of ``softened_log``: log(1 + r exp(y)) / r, which is exp(y) for r = 0.

    Args:
        y: numbers, any shape, float64.
        rate: r >= 0, a scalar.
    """
    rate = torch.as_tensor(rate, dtype=y.dtype, device=y.device)
    safe = torch.where(rate > 0, rate, 1)
    linear = torch.nn.functional.softplus(y + safe.log(), threshold=700.0) / safe
    return torch.where(rate > 0, linear, y.clamp(max=80).exp())


def balanced_rate(x: Tensor) -> float:
    """The rate at which the tails of ``softened_log`` are equally long, in which it is nearest to normal.

    Logarithms of many distributions, such as the exponential and the gamma, have a long left tail and a short
    right one, in which a small error is a large one in the value. 0 where the logarithm itself has no longer
    left tail.

    Args:
        x: positive numbers, any shape.
    """
    ordered = x.double().flatten().sort().values
    # exact zeros are no part of a tail
    ordered = ordered[ordered > _LEAST_POSITIVE]
    if len(ordered) < 3:
        return 0.0
    # increasing functions keep the order
    low, middle, high = (ordered[int(q * (len(ordered) - 1))] for q in (_TAIL, 0.5, 1 - _TAIL))

    def is_left_tailed(rate: float) -> bool:
        below, at, above = (softened_log(value, rate) for value in (low, middle, high))
        return bool(at - below > above - at)

    if not is_left_tailed(0.0):
        return 0.0
    # between nearly logarithms and nearly the values themselves
    smallest, largest = math.log(1e-4 / float(high)), math.log(1e2 / float(middle))
    for _ in range(_HALVINGS):
        middle_rate = (smallest + largest) / 2
        if is_left_tailed(math.exp(middle_rate)):
            smallest = middle_rate
        else:
            largest = middle_rate
    return math.exp(smallest)


def knots_at_scores(values: Tensor, knots: int) -> Tensor:
    """Quantiles of values at evenly spaced normal scores, strictly increasing, shape ``(knots,)``.

    Args:
        values: standardised values, shape ``(count,)``.
        knots: number of scores.
    """
    scores = torch.linspace(-LARGEST_SCORE, LARGEST_SCORE, knots, dtype=torch.float64, device=values.device)
    ordered = values.double().sort().values
    # the middle of the step of each value
    place = torch.special.ndtr(scores) * len(ordered) - 0.5
    place = place.clamp(0, len(ordered) - 1)
    low = place.floor().long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    quantiles = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    # a part of the identity keeps ties apart, and bounds the slope of the warp
    mixed: Tensor = quantiles + _SHARE_OF_IDENTITY * scores
    return mixed


def interpolated(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """The piecewise linear function with values at increasing knots, extrapolated at both ends.

    Args:
        x: arguments, any shape.
        knots: increasing, shape ``(knots,)``.
        values: shape ``(knots,)``.
    """
    place = torch.searchsorted(knots, x.contiguous()).clamp(1, len(knots) - 1)
    slope = (values[place] - values[place - 1]) / (knots[place] - knots[place - 1])
    return values[place - 1] + slope * (x - knots[place - 1])
