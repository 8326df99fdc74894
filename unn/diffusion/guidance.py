"""Evidence other than exact values at sampling time: intervals, uncertain values, any likelihood.

Samples are particles of twisted diffusion sampling (Wu et al., 2023): the estimates of the denoiser are
changed by the gradient of an approximate likelihood of the noisy particles, and weights correct what is
approximate, so that the distribution is right in the limit of many particles and steps.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..errors import ArgumentError, ObservationError, suggest
from ..graph.partial import Partial
from ..networks.tokens import Frame, Given
from ..ops.resampling import effective_number, systematic_resampling
from ..ops.seeds import generator_for
from ..regularizers.base import batch_sum
from .diffusion import Diffusion
from .samplers import midpoint_correction
from .samples import Condition
from .sampling import check_counts
from .schedule import log_snr_levels

_FEWEST_EFFECTIVE = 0.5
"""Share of the particles below which the effective number leads to resampling."""


class Guide(ABC):
    """Evidence on samples, a likelihood of their values."""

    @abstractmethod
    def log_likelihood(self, values: Mapping[str, Tensor]) -> Tensor:
        """Logarithm of the likelihood of values, shape ``(batch,)``; -inf where they are impossible.

        Args:
            values: values by variable, shape ``(batch, *axes)``.
        """

    @abstractmethod
    def smoothed(
        self, values: Mapping[str, Tensor], spread: Mapping[str, Tensor], uncertainty: Tensor
    ) -> Tensor:
        """An approximation of the likelihood's mean over values around estimates, as its logarithm, shape
        ``(batch,)``, finite and differentiable.

        Args:
            values: estimates by variable, shape ``(batch, *axes)``.
            spread: standard deviations around them, of the same shapes.
            uncertainty: variance of standardised numbers around them, from 0 to 1, shape ``()``.
        """

    def smoothed_along(
        self, line: CoordinateLine, value: Tensor, spread: Tensor, coordinate: Tensor, deviation: Tensor
    ) -> Tensor:
        """As ``smoothed``, for a guide on one variable whose coordinates are not linear in its values.

        Values around an estimate are taken as normal in coordinates, in which they have no bounds: by a
        derivative at the estimate alone, the likelihood of distant values would be far too small.

        Args:
            line: the coordinates.
            value, spread: estimates of the variable and standard deviations around them, shape ``(batch,
                *axes)``.
            coordinate: the estimates in standardised coordinates, of the same shape.
            deviation: standard deviation around them, from 0 to 1, shape ``()``.
        """
        name = self.names()[0]
        return self.smoothed({name: value}, {name: spread}, deviation**2)

    def names(self) -> Sequence[str]:
        """Variables that the guide reads; any real ones by default."""
        return ()

    def settings(self) -> Mapping[str, float | Tensor]:
        """Numbers of the guide by name, each single or of the shape of its variable; none by default."""
        return {}


@dataclass(frozen=True)
class CoordinateLine:
    """The standardised coordinates of a real variable.

    Attributes:
        low, high: bounds of its values, each a number or of the shape of the variable.
        place: increasing function from values to coordinates, of the shape of the variable.
    """

    low: float | Tensor
    high: float | Tensor
    place: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Within(Guide):
    """A variable has all its entries in an interval.

    Attributes:
        name: name of the variable.
        low, high: bounds, each a number or of the shape of the variable; infinite for none.
    """

    name: str
    low: float | Tensor = -math.inf
    high: float | Tensor = math.inf

    def __post_init__(self) -> None:
        _check_settings("Within", self.name, self.settings())
        if not bool((torch.as_tensor(self.low) <= torch.as_tensor(self.high)).all()):
            raise ArgumentError(
                f"Within: the interval of {self.name!r} must not end below its low end, got {self.low} "
                f"and {self.high}."
            )

    def names(self) -> Sequence[str]:
        return (self.name,)

    def settings(self) -> Mapping[str, float | Tensor]:
        return {"low": self.low, "high": self.high}

    def log_likelihood(self, values: Mapping[str, Tensor]) -> Tensor:
        x = values[self.name]
        inside = ((x >= self.low) & (x <= self.high)).reshape(len(x), -1).all(1)
        return torch.where(inside, 0.0, -math.inf).to(x)

    def smoothed(
        self, values: Mapping[str, Tensor], spread: Mapping[str, Tensor], uncertainty: Tensor
    ) -> Tensor:
        return _log_inside(values[self.name], spread[self.name], self.low, self.high)

    def smoothed_along(
        self, line: CoordinateLine, value: Tensor, spread: Tensor, coordinate: Tensor, deviation: Tensor
    ) -> Tensor:
        low, high = (torch.as_tensor(x).to(value) for x in (self.low, self.high))
        low = torch.where(low > line.low, line.place(low), -math.inf)
        high = torch.where(high < line.high, line.place(high), math.inf)
        return _log_inside(coordinate, deviation, low, high)


def _log_inside(x: Tensor, deviation: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Logarithm of the probability of an interval under normal distributions, shape ``(batch,)``: that of
    both bounds as if they were independent, which is exact for one bound."""
    deviation = deviation.clamp(min=1e-6)
    above, below = (high - x) / deviation, (x - low) / deviation
    total: Tensor = torch.special.log_ndtr(above) + torch.special.log_ndtr(below)
    return total.reshape(len(x), -1).sum(1)


@dataclass(frozen=True)
class Near(Guide):
    """A variable was measured with normal noise.

    Attributes:
        name: name of the variable.
        value: measured values, a number or of the shape of the variable.
        deviation: standard deviation of the noise, > 0.
    """

    name: str
    value: float | Tensor
    deviation: float | Tensor

    def __post_init__(self) -> None:
        _check_settings("Near", self.name, self.settings())
        deviation = torch.as_tensor(self.deviation)
        if not bool(((deviation > 0) & deviation.isfinite()).all()):
            raise ArgumentError(
                f"Near: the deviation of {self.name!r} must be > 0 and finite, got {self.deviation}."
            )
        if not bool(torch.as_tensor(self.value).isfinite().all()):
            raise ArgumentError(f"Near: the value of {self.name!r} must be finite, got {self.value}.")

    def names(self) -> Sequence[str]:
        return (self.name,)

    def settings(self) -> Mapping[str, float | Tensor]:
        return {"value": self.value, "deviation": self.deviation}

    def log_likelihood(self, values: Mapping[str, Tensor]) -> Tensor:
        return self._log_density(values[self.name], torch.zeros_like(values[self.name]))

    def smoothed(
        self, values: Mapping[str, Tensor], spread: Mapping[str, Tensor], uncertainty: Tensor
    ) -> Tensor:
        return self._log_density(values[self.name], spread[self.name])

    def smoothed_along(
        self, line: CoordinateLine, value: Tensor, spread: Tensor, coordinate: Tensor, deviation: Tensor
    ) -> Tensor:
        measured, noise = (torch.as_tensor(x).to(value) for x in (self.value, self.deviation))
        # an interval of the noise within the bounds says how wide the likelihood is in coordinates
        low, high = (torch.as_tensor(x).to(value) for x in (line.low, line.high))
        margin = torch.minimum(noise, high - low) / 8
        start = torch.clamp(measured - noise, low + margin, high - 2 * margin)
        end = torch.clamp(measured + noise, start + margin, high - margin)
        first, last = line.place(start), line.place(end)
        width, natural = (last - first) / 2, (end - start) / 2
        variance = width**2 + deviation**2
        density = -0.5 * (((first + last) / 2 - coordinate) ** 2 / variance + variance.log())
        density = density + (width / natural).log() - 0.5 * math.log(2 * math.pi)
        far = density.reshape(len(value), -1).sum(1)
        # the derivative at an estimate is right near it, the interval far from it
        return torch.logaddexp(self._log_density(value, spread), far) - math.log(2)

    def _log_density(self, x: Tensor, spread: Tensor) -> Tensor:
        variance = torch.as_tensor(self.deviation).to(x) ** 2 + spread**2
        density = -0.5 * ((self.value - x) ** 2 / variance + variance.log() + math.log(2 * math.pi))
        return density.reshape(len(x), -1).sum(1)


@dataclass(frozen=True)
class Likelihood(Guide):
    """Any differentiable likelihood.

    The best of all particles says how far the others lie below the maximum, so that many are needed.

    Attributes:
        function: log-likelihood ``(batch,)`` of the values of real variables by name, shape ``(batch,
            *axes)``; finite.
    """

    function: Callable[[Mapping[str, Tensor]], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ArgumentError(
                f"Likelihood: a function of the values of real variables by name, got {self.function!r}."
            )

    def log_likelihood(self, values: Mapping[str, Tensor]) -> Tensor:
        return _logarithms(lambda: self.function(values), values)

    def smoothed(
        self, values: Mapping[str, Tensor], spread: Mapping[str, Tensor], uncertainty: Tensor
    ) -> Tensor:
        logs = self.log_likelihood(values)
        if not logs.requires_grad:
            return (1 - uncertainty) * logs
        xs = list(values.values())
        slopes = torch.autograd.grad(logs.sum(), xs, retain_graph=True, allow_unused=True)
        rise = torch.zeros_like(logs)
        for slope, deviation in zip(slopes, spread.values(), strict=True):
            if slope is not None:
                rise = rise + batch_sum((slope * deviation) ** 2)
        # a sharp likelihood of uncertain estimates would choose particles by chance. The mean of
        # exp(-r^2 / 2) over an r of the standard deviation s is exp(-r^2 / (2 (1 + s^2))) up to a factor
        below = (logs.max() - logs).detach()
        share = (1 - uncertainty) * below / (below + 0.5 * rise).clamp(min=1e-30)
        pull = share * logs
        return pull - (pull + share * below).detach()


def _logarithms(likelihood: Callable[[], Tensor], values: Mapping[str, Tensor]) -> Tensor:
    """What a likelihood returns, shape ``(batch,)``.

    Raises:
        ObservationError: for a name that is not among the values, or a result of another shape.
    """
    try:
        logs = likelihood()
    except KeyError as error:
        raise ObservationError(
            f"guided sampling: a likelihood reads {error}, and it is called with the real variables that are "
            f"not given: {', '.join(values)}."
        ) from error
    count = len(next(iter(values.values())))
    if not isinstance(logs, Tensor) or logs.shape != (count,):
        shown = f"shape {tuple(logs.shape)}" if isinstance(logs, Tensor) else type(logs).__name__
        raise ObservationError(
            f"guided sampling: a likelihood returns one logarithm for each particle, shape ({count},), got "
            f"{shown}; sum over all axes but the first."
        )
    return logs


@dataclass(frozen=True, eq=False)
class Guided:
    """Samples under guidance.

    Attributes:
        values: values by variable, shape ``(count, *axes)``; dependent as those of resampled particles are.
        log_evidence: estimate of the logarithm of the mean likelihood, such as the probability of an
            interval, given the exact evidence.
        effective: smallest effective number of particles before a resampling.
    """

    values: Mapping[str, Tensor]
    log_evidence: float
    effective: float

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


def guided_samples(
    model: Diffusion,
    guides: Sequence[Guide],
    given: Given | None = None,
    count: int = 1000,
    *,
    steps: int = 100,
    seed: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Guided:
    """Sample all variables that are not given, weighted by the likelihoods of guides.

    Args:
        model: diffusion model, used without self-conditioning.
        guides: evidence other than exact values.
        given: exact evidence by variable, complete or partial, with a batch axis of 1: one condition.
        count: number of particles, which are sampled together.
        steps: number of steps of ancestral sampling.
        seed: seed; torch's global generator by default.
        sizes: sizes of the axes without a static size.

    Raises:
        ArgumentError: for no guides, or counts below 1.
        ObservationError: for a guide on a variable that is unknown, discrete or given, or whose values do not
            fit it; for evidence of several conditions, or with likelihood zero for all particles.
    """
    check_counts("guided sampling", count=count, steps=steps)
    if not isinstance(guides, Sequence) or not all(isinstance(guide, Guide) for guide in guides):
        raise ArgumentError(
            "guided sampling takes a list of guides such as [unn.diffusion.Within('x', 0, 1)], got "
            f"{guides!r:.200}."
        )
    if not guides:
        raise ArgumentError("guided sampling needs a guide; without one, use model.sample.")
    for name, evidence in (given or {}).items():
        value = evidence.value if isinstance(evidence, Partial) else evidence
        if not isinstance(value, Tensor) or not value.ndim or len(value) != 1:
            raise ObservationError(
                f"guided sampling: variable {name!r} needs evidence with a batch axis of 1, since all "
                "particles have the same; sample several conditions one after another."
            )
    condition = model.condition(given or {}, count, **(sizes or {}))
    model.warn_of_larger_sizes(condition.frame)
    _check_guides(model, guides, condition)
    generator = generator_for("guided sampling", None, seed)
    twist = _Twist(model, guides, condition)
    levels = log_snr_levels(model.sampling_schedule, steps).to(condition.rows)

    def noise() -> Tensor:
        return torch.randn(condition.rows.shape, generator=generator).to(condition.rows)

    def offset() -> float:
        return float(torch.rand((), generator=generator, dtype=torch.float64))

    training = model.training
    model.eval()
    try:
        x = (1 + levels[0] ** 2).sqrt() * noise()
        log_twist, estimate, shift = twist(x, levels[0])
        previous = estimate
        logs, log_evidence, effective = log_twist.clone(), 0.0, float(count)
        for k, (now, after) in enumerate(itertools.pairwise(levels)):
            own = effective_number(logs)
            effective = min(effective, own)
            if own < _FEWEST_EFFECTIVE * count:
                log_evidence += float(logs.logsumexp(0)) - math.log(count)
                chosen = systematic_resampling(logs, offset())
                x, estimate, previous, shift, log_twist = (
                    y[chosen] for y in (x, estimate, previous, shift, log_twist)
                )
                logs = torch.zeros_like(logs)
            if after == 0:
                final = torch.where(condition.numbers, condition.rows, estimate)
                exact = twist.exact(model.values_of(final, condition, given or {}))
                logs = logs + exact.to(logs) - log_twist
                break
            # the stochastic solver of second order: its steps are the law that the guides change
            ratio, variance = (after / now) ** 2, after**2 * (1 - (after / now) ** 2)
            straight = estimate + midpoint_correction(estimate, previous if k else None, levels, k)
            mean = straight + ratio * (x - straight)
            moved = mean + (1 - ratio) * shift
            x_new = moved + variance.sqrt() * noise()
            free = ~condition.numbers
            corrected = _log_normal(x_new, mean, variance, free) - _log_normal(x_new, moved, variance, free)
            previous = estimate
            new_twist, estimate, shift = twist(x_new, after)
            logs = logs + corrected + new_twist - log_twist
            x, log_twist = x_new, new_twist
    finally:
        model.train(training)
    if not bool((logs > -math.inf).any()):
        raise ObservationError(
            f"guided sampling: the guides have likelihood zero for all of {count} particles; use more "
            "particles or steps, or wider evidence."
        )
    log_evidence += float(logs.logsumexp(0)) - math.log(count)
    effective = min(effective, effective_number(logs))
    rows = final[systematic_resampling(logs, offset())]
    return Guided(model.values_of(rows, condition, given or {}), log_evidence, effective)


class _Twist:
    """The approximate likelihood of noisy particles, and the estimates that it changes."""

    def __init__(self, model: Diffusion, guides: Sequence[Guide], condition: Condition) -> None:
        self.model, self.guides, self.condition = model, guides, condition
        self._lines = [self._line_of(guide) for guide in guides]

    def __call__(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Its logarithm ``(batch,)``, the estimate, and the change of the estimate, ``(batch, numbers)``."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            estimate = self.model.denoise(x, sigma, self.condition)
            # of a standardised number with a normal distribution, given its noisy value
            deviation = sigma * (1 + sigma**2).rsqrt()
            values, spread = self._values(estimate, deviation)
            terms = []
            for guide, line in zip(self.guides, self._lines, strict=True):
                smoothed = partial(self._smoothed, guide, line, values, spread, estimate, deviation)
                terms.append(_logarithms(smoothed, values))
            log_twist = torch.stack(terms).sum(0)
            if not bool(log_twist.isfinite().all()):
                raise ObservationError(
                    "guided sampling: a likelihood is NaN or infinite at the estimates of some particles; "
                    "return finite numbers everywhere, or use Within for intervals."
                )
            gradient = torch.zeros_like(x)
            # a likelihood may be constant
            if log_twist.requires_grad:
                (gradient,) = torch.autograd.grad(log_twist.sum(), x)
        shift = torch.where(self.condition.numbers, 0, sigma**2 * gradient)
        return log_twist.detach(), estimate.detach(), shift

    def _smoothed(
        self,
        guide: Guide,
        line: CoordinateLine | None,
        values: Mapping[str, Tensor],
        spread: Mapping[str, Tensor],
        estimate: Tensor,
        deviation: Tensor,
    ) -> Tensor:
        if line is None:
            return guide.smoothed(values, spread, deviation**2)
        name = guide.names()[0]
        coordinate = estimate[:, self.condition.frame.slots[name].numbers].view_as(values[name])
        return guide.smoothed_along(line, values[name], spread[name], coordinate, deviation)

    def exact(self, values: Mapping[str, Tensor]) -> Tensor:
        """The logarithm of the likelihood of samples, shape ``(batch,)``; it may be that of 0.

        Raises:
            ObservationError: for one that is NaN or infinite.
        """
        with torch.no_grad():
            terms = [_logarithms(partial(guide.log_likelihood, values), values) for guide in self.guides]
            total = torch.stack(terms).sum(0)
        bad = int((total.isnan() | (total == math.inf)).sum())
        if bad:
            raise ObservationError(
                f"guided sampling: the logarithm of a likelihood is NaN or +inf for {bad} of {len(total)} "
                "samples; return finite numbers, or -inf where the likelihood is zero."
            )
        return total

    def _line_of(self, guide: Guide) -> CoordinateLine | None:
        """The coordinates of the only variable that a guide reads, if they are not linear in its values."""
        model, frame = self.model, self.condition.frame
        if len(guide.names()) != 1:
            return None
        (name,) = guide.names()
        slot = frame.slots[name]
        own = model.coordinates[name].at(slot.shape, 0.0)
        if own.are_linear and model.quantiles is None:
            return None

        def place(x: Tensor) -> Tensor:
            rows = x.new_zeros(1, frame.numbers)
            rows[:, slot.numbers] = x.expand(slot.shape).reshape(1, -1)
            return model._standard(rows, frame)[:, slot.numbers].reshape(slot.shape).to(x)

        return CoordinateLine(own.low, own.high, place)

    def _values(self, rows: Tensor, deviation: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Natural values of real variables and the standard deviations around them."""
        frame: Frame = self.condition.frame
        natural = self.model._natural(rows, frame)
        around = deviation * torch.exp(-self.model._log_slopes(natural.detach(), frame)).to(natural)
        values, spread = {}, {}
        for name, slot in frame.slots.items():
            if slot.kind == "real":
                shape = (len(rows), *slot.shape)
                values[name] = natural[:, slot.numbers].reshape(shape)
                spread[name] = around[:, slot.numbers].reshape(shape)
        return values, spread


def _check_settings(kind: str, name: object, settings: Mapping[str, object]) -> None:
    if not isinstance(name, str):
        raise ArgumentError(f"{kind}: the name of a variable comes first, got {name!r}.")
    for what, x in settings.items():
        if isinstance(x, (bool, str)) or x is None:
            raise ArgumentError(f"{kind}: {what} of {name!r} is a number or a tensor, got {x!r}.")


def _check_guides(model: Diffusion, guides: Sequence[Guide], condition: Condition) -> None:
    slots = condition.frame.slots
    for guide in guides:
        for name in guide.names():
            if name not in slots:
                raise ObservationError(
                    f"graph {model.graph.name!r} has no variable {name!r}.{suggest(name, slots)}"
                )
            own = model.coordinates[name]
            if slots[name].kind != "real" or own.whole or own.proportions:
                raise ObservationError(f"guided sampling: variable {name!r} is not real; give it exactly.")
            if bool(condition.numbers[:, slots[name].numbers].all()):
                raise ObservationError(f"guided sampling: variable {name!r} is given, and also guided.")
            for what, x in guide.settings().items():
                shape = tuple(x.shape) if isinstance(x, Tensor) else ()
                if not isinstance(x, (int, float, Tensor)) or shape not in ((), slots[name].shape):
                    raise ObservationError(
                        f"guided sampling: {what} of {name!r} is a number or a tensor of shape "
                        f"{slots[name].shape}, got {shape or type(x).__name__}."
                    )


def _log_normal(x: Tensor, mean: Tensor, variance: Tensor, free: Tensor) -> Tensor:
    """Log-density up to a constant, over the free numbers, shape ``(batch,)``."""
    return -0.5 * torch.where(free, (x - mean) ** 2, 0).sum(1) / variance
