"""Regularizers over the probability simplex: softmax, sparsemax, entmax."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import DeclarationError, ObservationError, suggest
from ..noise import gumbel_argmax, uniform
from .base import Regularizer, batch_all, batch_sum, real_number, tolerance, widened


class AlongAxis(Regularizer):
    """A regularizer that couples entries along one axis: the last, or the one named ``over``."""

    def __init__(self, over: str | None = None) -> None:
        if over is not None and not isinstance(over, str):
            raise DeclarationError(
                f"{type(self).__name__}: over is the name of an axis such as over='label', got {over!r}."
            )
        self.over = over
        self.dim = -1

    def over_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return (axes[self.dim],)

    def row_norm(self, size: float) -> float:
        """The largest Euclidean norm of a row of ``size`` entries (infinite if not known) in the domain."""
        return math.inf

    def bind(self, axes: tuple[str, ...], name: str) -> Regularizer:
        if not axes:
            raise DeclarationError(f"variable {name!r} has no axes, but {self!r} needs one to act along.")
        if self.over is None:
            return self
        if self.over not in axes:
            raise DeclarationError(
                f"variable {name!r} has no axis {self.over!r} for {self!r}.{suggest(self.over, axes)}"
            )
        bound = copy.copy(self)
        bound.dim = axes.index(self.over) - len(axes)
        return bound

    def _options(self) -> list[str]:
        return [] if self.over is None else [f"over={self.over!r}"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._options())})"


def is_categorical(regularizer: Regularizer, axes: tuple[str, ...], feature_axes: tuple[str, ...]) -> bool:
    """Whether a node of a variable is a category: a point on the simplex over its features.

    Args:
        regularizer: regularizer of the variable.
        axes: its axes.
        feature_axes: those that do not index nodes.
    """
    is_option = isinstance(regularizer, Simplex) and regularizer.of_categories
    return is_option and regularizer.over_axes(axes) == feature_axes


class Simplex(AlongAxis):
    """A regularizer over the simplex. Padded entries have probability 0; rows without entries are all 0."""

    bounded = True

    of_categories: ClassVar[bool] = True
    """True if values are categories, the corners of the simplex; false if they are points inside it."""

    def row_norm(self, size: float) -> float:
        return 1.0

    @abstractmethod
    def row_value(self, x: Tensor) -> Tensor:
        """Psi of each row, the simplex axis reduced; entries are not negative."""

    @abstractmethod
    def row_conjugate(self, t: Tensor) -> Tensor:
        """Psi* of each row; entries may be -inf, but not all of a row."""

    @abstractmethod
    def row_mirror(self, t: Tensor) -> Tensor:
        """The probabilities of each row; entries may be -inf, but not all of a row."""

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = widened(x).clamp(min=0)
        if mask is not None:
            wide = torch.where(mask, wide, 0)
        rows = self.row_value(wide)
        if mask is not None:
            rows = torch.where(mask.expand(x.shape).any(self.dim), rows, 0)
        # a value with a single axis has no batch axis after reduction
        total = batch_sum(rows)
        return torch.where(self.contains(x, mask), total, torch.inf).to(x.dtype)

    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        wide, empty = self._rows(widened(t), mask)
        return batch_sum(torch.where(empty.squeeze(self.dim), 0, self.row_conjugate(wide))).to(t.dtype)

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        rows, empty = self._rows(t, mask)
        return self.row_mirror(rows).masked_fill(empty, 0)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        slack = tolerance(x.dtype)
        wide = widened(x)
        if mask is not None:
            wide = torch.where(mask, wide, 0)
        full = (wide.sum(self.dim) - 1).abs() <= slack * max(1.0, math.sqrt(x.shape[self.dim]) / 8)
        if mask is not None:
            full = full | ~mask.expand(x.shape).any(self.dim)
        return batch_all(full) & batch_all((wide >= -slack).all(self.dim))

    def _point_of(self, target: Tensor, t: Tensor, mask: Tensor | None) -> Tensor:
        shape = list(t.shape)
        count = shape.pop(self.dim)
        is_classes = not target.is_floating_point() and target.dtype != torch.bool
        if not is_classes or list(target.shape) != shape:
            return super()._point_of(target, t, mask)
        classes = torch.arange(count, device=t.device).view([-1] + [1] * (-1 - self.dim))
        point = (target.unsqueeze(self.dim) == classes).to(t.dtype)
        exists = (
            torch.ones_like(target, dtype=torch.bool) if mask is None else mask.expand(t.shape).any(self.dim)
        )
        try:
            invalid = bool((exists & ((target < 0) | (target >= count))).any())
        except RuntimeError:
            # values cannot be inspected under vmap; an invalid target has loss +inf
            invalid = False
        if invalid:
            raise ObservationError(
                f"{self!r}: class numbers of a loss go from 0 to {count - 1}, got {int(target.amin())} to "
                f"{int(target.amax())}."
            )
        return point

    def _target_hint(self, t: Tensor) -> str:
        shape = list(t.shape)
        del shape[self.dim]
        return f" Class numbers have an integer dtype and the shape {tuple(shape)}."

    def _rows(self, t: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores with -inf at padding, and a mask of empty rows, whose scores are set to 0 to avoid NaN."""
        if mask is not None:
            t = t.masked_fill(~mask, -torch.inf)
        if t.shape[self.dim] == 0:
            return t, torch.ones_like(t.sum(self.dim, keepdim=True), dtype=torch.bool)
        empty = t.detach().amax(self.dim, keepdim=True) == -torch.inf
        return t.masked_fill(empty, 0), empty


class _Tempered(Simplex):
    """A regularizer over the simplex with a temperature, its weight.

    Args:
        temperature: the activation is that of t / temperature.
        over: the axis along which entries sum to one; the last by default.
    """

    def __init__(self, temperature: float = 1.0, over: str | None = None) -> None:
        super().__init__(over)
        self.temperature = real_number(type(self).__name__, "temperature", temperature, over=True)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise DeclarationError(
                f"{type(self).__name__} needs a finite temperature > 0, got {temperature}."
            )

    def _options(self) -> list[str]:
        return ([f"temperature={self.temperature:g}"] if self.temperature != 1 else []) + super()._options()


class Entropy(_Tempered):
    """Psi(x) = -temperature * H(x) on the simplex: the softmax activation. Samples are one-hot.

    Args:
        temperature: temperature of softmax(t / temperature); sqrt(d) for undirected attention.
        over: the axis along which entries sum to one; the last by default.
    """

    formula = "-temperature H(x) on the simplex"
    activation = "softmax"

    @property
    def lipschitz(self) -> float:
        return 0.5 / self.temperature

    def row_value(self, x: Tensor) -> Tensor:
        negative: Tensor = torch.special.entr(x).sum(self.dim) * -self.temperature
        return negative

    def row_conjugate(self, t: Tensor) -> Tensor:
        if self.temperature >= 1:
            return self.temperature * torch.logsumexp(t / self.temperature, self.dim)
        peak = t.detach().amax(self.dim, keepdim=True)
        return peak.squeeze(self.dim) + self.temperature * torch.logsumexp(
            (t - peak) / self.temperature, self.dim
        )

    def row_mirror(self, t: Tensor) -> Tensor:
        if self.temperature == 1:
            return torch.softmax(t, self.dim)
        wide = widened(t)
        if self.temperature < 1:
            # large scores over a low temperature would overflow
            wide = wide - wide.detach().amax(self.dim, keepdim=True)
        return torch.softmax(wide / self.temperature, self.dim).to(t.dtype)

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        rows, empty = self._rows(t, mask)
        noise = uniform(t.shape, widened(t), generator)
        wide = widened(rows)
        wide = (wide - wide.amax(self.dim, keepdim=True)) / self.temperature
        winner = gumbel_argmax(wide, noise, self.dim).unsqueeze(self.dim)
        return torch.zeros_like(t).scatter(self.dim, winner, 1.0).masked_fill(empty, 0)

    def conditional_sample(
        self,
        t: Tensor,
        temperature: float | Tensor = 1.0,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return self._of_corners().sample(widened(t) / temperature, mask, generator).to(t.dtype)

    def conditional_log_partition(
        self, t: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
    ) -> Tensor:
        return self._of_corners().conjugate(t / temperature, mask)

    def _of_corners(self) -> Entropy:
        """This regularizer at the temperature 1: where Psi is 0, its own temperature does not count."""
        if self.temperature == 1:
            return self
        plain = copy.copy(self)
        plain.temperature = 1.0
        return plain


def mirror_of_finite(regularizer: Regularizer, t: Tensor) -> Tensor:
    """``regularizer.mirror(t)`` of finite scores, without the search of ``Entropy`` for rows of -inf
    alone."""
    return regularizer.row_mirror(t) if type(regularizer) is Entropy else regularizer.mirror(t)


class SimplexNorm(_Tempered):
    """Psi(x) = temperature ||x||^2 / 2 on the simplex: the sparsemax activation (Martins and Astudillo,
    2016).

    Args:
        temperature: temperature of sparsemax(t / temperature).
        over: the axis along which entries sum to one; the last by default.
    """

    formula = "temperature/2 ||x||^2 on the simplex"
    activation = "sparsemax"

    @property
    def lipschitz(self) -> float:
        return 1 / self.temperature

    def row_value(self, x: Tensor) -> Tensor:
        return 0.5 * self.temperature * (x * x).sum(self.dim)

    def row_conjugate(self, t: Tensor) -> Tensor:
        x = self.row_mirror(t)
        score = torch.where(x > 0, t, 0)
        return (x * score - 0.5 * self.temperature * x * x).sum(self.dim)

    def row_mirror(self, t: Tensor) -> Tensor:
        wide = widened(t)
        with torch.no_grad():
            ordered = wide.detach().sort(self.dim, descending=True).values
            rank = torch.arange(1, t.shape[self.dim] + 1, dtype=wide.dtype, device=t.device)
            rank = rank.view([-1] + [1] * (-1 - self.dim))
            # relative to the largest score: in cumulative sums of large scores, the 1 would be lost to
            # rounding
            shifted = (ordered - ordered.narrow(self.dim, 0, 1)) / self.temperature
            # 0 occurs only for NaN, which must propagate to the result
            size = (1 + rank * shifted > shifted.cumsum(self.dim)).sum(self.dim, keepdim=True).clamp(min=1)
            support = wide.detach() >= ordered.gather(self.dim, size - 1)
        peak = ordered.narrow(self.dim, 0, 1)
        relative = torch.where(support, (wide - peak) / self.temperature, 0)
        threshold = (relative.sum(self.dim, keepdim=True) - 1) / support.sum(self.dim, keepdim=True)
        x = torch.where(support, relative - threshold, 0)
        return torch.where(peak.isfinite(), x, torch.nan).to(t.dtype)


class TsallisEntropy(_Tempered):
    """Psi(x) = temperature sum(x^alpha - x) / (alpha (alpha - 1)) on the simplex: the entmax activation
    (Peters et al., 2019).

    Args:
        alpha: 1 < alpha <= 2; sparser as it grows. alpha = 2 is sparsemax, alpha -> 1 is softmax (use
            ``Entropy``).
        over: the axis along which entries sum to one; the last by default.
        temperature: temperature of entmax(t / temperature).
    """

    formula = "temperature sum(x^alpha - x) / (alpha (alpha-1)) on the simplex"
    activation = "entmax"

    def __init__(self, alpha: float = 1.5, over: str | None = None, temperature: float = 1.0) -> None:
        super().__init__(temperature, over)
        self.alpha = real_number("TsallisEntropy", "alpha", alpha, over=True)
        if not 1 < self.alpha <= 2:
            raise DeclarationError(
                f"TsallisEntropy needs 1 < alpha <= 2, got {alpha}; for alpha = 1 use Entropy()."
            )

    @property
    def lipschitz(self) -> float:
        return 1 / self.temperature

    def row_value(self, x: Tensor) -> Tensor:
        positive = x > 0
        power = torch.where(positive, torch.where(positive, x, 1) ** self.alpha, 0)
        return self.temperature * (power - x).sum(self.dim) / (self.alpha * (self.alpha - 1))

    def row_conjugate(self, t: Tensor) -> Tensor:
        x = self.row_mirror(t)
        return (x * torch.where(x > 0, t, 0)).sum(self.dim) - self.row_value(x)

    def row_mirror(self, t: Tensor) -> Tensor:
        wide = widened(t)
        peak = wide.detach().amax(self.dim, keepdim=True)
        scores = (wide - peak) / self.temperature
        with torch.no_grad():
            threshold = self._threshold(scores.detach())
        # two Newton steps from the detached root carry exact first and second derivatives
        for _ in range(2):
            threshold = self._newton(scores, threshold)
        x, _ = self._powers(scores - threshold)
        return torch.where(peak.isfinite(), x, torch.nan).to(t.dtype)

    def _threshold(self, scores: Tensor) -> Tensor:
        """The root of sum (1 + (alpha-1) (scores - threshold))_+^(1/(alpha-1)) = 1; scores have maximum 0."""
        low = torch.zeros_like(scores.narrow(self.dim, 0, 1))
        # the largest threshold, which occurs for equal scores
        width = -math.expm1(-(self.alpha - 1) * math.log(max(scores.shape[self.dim], 2))) / (self.alpha - 1)
        for _ in range(20):
            width /= 2
            middle = low + width
            total = self._powers(scores - middle)[0].sum(self.dim, keepdim=True)
            low = torch.where(total >= 1, middle, low)
        # the sum is convex and decreasing, so Newton's method from below increases to the root without
        # overshooting
        for _ in range(4):
            low = self._newton(scores, low)
        return low

    def _newton(self, scores: Tensor, threshold: Tensor) -> Tensor:
        power, slope = self._powers(scores - threshold)
        return threshold + (power.sum(self.dim, keepdim=True) - 1) / slope.sum(self.dim, keepdim=True)

    def _powers(self, excess: Tensor) -> tuple[Tensor, Tensor]:
        """(1 + (alpha-1) excess)_+^(1/(alpha-1)) and its derivative, which is exp(excess) as alpha tends to
        1."""
        change, exponent = (self.alpha - 1) * excess, 1 / (self.alpha - 1)
        positive = change > -1
        change = torch.where(positive, change, 0)
        base = 1 + change
        # for a high power of a number near 1, log1p preserves precision
        power = base**exponent if exponent <= 10 else torch.exp(exponent * torch.log1p(change))
        slope = base ** (exponent - 1) if exponent <= 10 else power / base
        return torch.where(positive, power, 0), torch.where(positive, slope, 0)

    def _options(self) -> list[str]:
        return [f"alpha={self.alpha:g}", *super()._options()]
