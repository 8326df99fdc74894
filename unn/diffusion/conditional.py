"""Base of conditional models of a graph: standardisation, evidence and samples."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..engine import CanLearn, CanSample, SamplingOptions
from ..errors import ArgumentError, InferenceError, ObservationError, suggest
from ..graph.declaration import Declaration
from ..networks.tokens import Frame, Frames, Given
from ..plain import uncompiled
from .coordinates import (
    COORDINATES,
    KNOTS,
    LARGEST_SCORE,
    CoordinateName,
    Coordinates,
    EntryCoordinates,
    coordinates_of,
    interpolated,
    knots_at_scores,
)
from .samples import Condition as Condition
from .samples import Samples as Samples
from .sampling import DrawRows, check_counts, generators_of, sample_with_retries

Trace = Callable[[int, dict[str, Tensor]], None]

_NO_RATE = -1e4
"""Logarithm of the rate of plain logarithms, finite so that it can be averaged."""
_MOST_INDISTINCT = 0.01
"""Share of values too near to their bound to be distinguished, up to which nothing is said."""


class ConditionalModel(nn.Module, CanLearn, CanSample):
    """Model of the variables of a graph conditional on any subset of them.

    A subclass defines ``loss`` and ``drawing``; sampling in batches, with seeds, verification and further
    attempts is the same for all.

    Args:
        frames: frames of the graph.
        coordinates: numbers of continuous variables in which the model works. "domain": coordinates without
            bounds, so that samples stay in the domain of the regularizer. "auto": these, with logarithms
            that become linear where this makes both tails of the training examples equally long.
            "quantiles": those of the domain, warped to a normal distribution of each variable over the
            training examples. "linear": the values.

    Attributes:
        sampling: default options of sampling.
        coordinates: coordinates of each variable, by name.
        offsets: offset of each variable, subtracted from its coordinates, and of further parts of variables
            whose entries have coordinates of several kinds; set by ``standardise``.
        scales: scale of each variable and further part, by which its coordinates are divided; set by
            ``standardise``.
        log_rates: logarithm of the rate of each variable with one bound, at which its tails are balanced, and
            a very negative number for others, shape ``(variables,)``; None if no logarithm becomes linear.
            Set by ``standardise``.
        quantiles: standardised coordinates of each variable and further part at evenly spaced normal scores,
            shape ``(parts, knots)``; None unless coordinates are quantiles. Set by ``standardise``.
        largest_sizes: largest size in training of each axis without a static size, in alphabetic order, shape
            ``(axes,)``; 0 before training. Absent if there is no such axis.

    Raises:
        ArgumentError: for unknown coordinates.
    """

    later_tensors: ClassVar[tuple[str, ...]] = ("largest_sizes",)
    """Buffers that weights of earlier versions do not have."""

    offsets: Tensor
    scales: Tensor
    log_rates: Tensor | None
    quantiles: Tensor | None
    largest_sizes: Tensor

    def __init__(self, frames: Frames, coordinates: CoordinateName = "auto") -> None:
        super().__init__()
        if coordinates not in COORDINATES:
            raise ArgumentError(
                f"unknown coordinates {coordinates!r}.{suggest(str(coordinates), COORDINATES)}"
            )
        self.frames = frames
        self.sampling = SamplingOptions()
        self.coordinates: dict[str, Coordinates | EntryCoordinates] = {
            name: coordinates_of(frames.graph.variables[name], frames.channels[name])
            if kind == "real" and coordinates != "linear"
            else Coordinates()
            for name, kind in frames.kinds.items()
        }
        self._groups = _groups_of(self.coordinates)
        groups = sum(len(group) for group in self._groups.values())
        if coordinates == "auto" and any(own.are_logarithms for own in self.coordinates.values()):
            self.register_buffer("log_rates", torch.full((len(frames.kinds),), _NO_RATE))
            self.register_load_state_dict_pre_hook(_complete_earlier_rates)
        else:
            self.log_rates = None
        if coordinates == "quantiles":
            scores = torch.linspace(-LARGEST_SCORE, LARGEST_SCORE, KNOTS)
            self.register_buffer("quantiles", scores.repeat(groups, 1))
        else:
            self.quantiles = None
        offsets, scales = torch.zeros(groups), torch.ones(groups)
        for k, (name, kind) in enumerate(frames.kinds.items()):
            if kind != "real":
                # mean and standard deviation of a one-hot value whose options are equally likely
                mean = 1 / max(2, frames.channels[name])
                offsets[k], scales[k] = mean, (mean * (1 - mean)) ** 0.5
        self.register_buffer("offsets", offsets)
        self.register_buffer("scales", scales)
        static = frames.graph.size_table.static
        axes = {axis for variable in frames.graph.variables.values() for axis in variable.axes}
        self._dynamic_axes = sorted(axis for axis in axes if axis not in static)
        if self._dynamic_axes:
            self.register_buffer("largest_sizes", torch.zeros(len(self._dynamic_axes)))
            self.register_load_state_dict_pre_hook(_complete_unknown_sizes)
        self._sizes_seen: set[tuple[int, ...]] = set()
        self._was_checked = False

    @property
    def graph(self) -> Declaration:
        """Declaration of the graph."""
        return self.frames.graph

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the networks in place, for training and sampling alike; arguments as for ``torch.compile``.

        Parameters, their names and saved weights stay as they are.
        """
        for network in self.children():
            network.compile(*args, **kwargs)

    @abstractmethod
    def drawing(self, options: SamplingOptions, trace: Trace | None) -> DrawRows:
        """Check the options of sampling, and return the function that draws a batch.

        Args:
            options: options of the call, completed by the defaults of the model.
            trace: callback after each step.

        Raises:
            ArgumentError: for an option that the model does not have, or that is out of range.
        """

    def sample(
        self,
        given: Given | None = None,
        count: int = 1,
        *,
        steps: int | None = None,
        sampler: str | None = None,
        spacing: str | None = None,
        seed: int | Sequence[int] | None = None,
        verify: bool = False,
        tries: int = 1,
        at_once: int | None = None,
        trace: Trace | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Samples:
        """Sample all variables that are not given.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: number of samples.
            steps: number of evaluations of the network per sample, where there are several. By default 100
                for ``Diffusion``, in which "heun" evaluates the network twice per step, and one per masked
                node for ``MaskedDiffusion``.
            sampler: for ``Diffusion``, the name of a sampler in ``unn.diffusion.SAMPLERS``, "dpm-solver" by
                default. With an exact denoiser all of them converge to the right distribution as steps grow;
                the default is within 5% of every standard deviation with 20 steps. "churn" gives too sharp
                samples when steps are few.
            spacing: for ``Diffusion``, the spacing of the noise levels: "log-snr" (default), even in log-SNR
                over the range of the schedule; "schedule", the schedule's own; or "restarts", as in
                ``restarting_levels``, which gives too sharp samples when steps are few but corrects samples
                that violate a constraint.
            seed: seed for all samples, or one seed per sample, so that a sample does not depend on the rest
                of the batch; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: maximum number of attempts per sample; more than 1 needs ``verify``.
            at_once: batch size; None for 256 on a CPU, whose caches hold such a batch, and 1024 elsewhere.
            trace: for ``Diffusion``, a callback after each step with its number and the current values by
                variable, shape ``(batch, *axes)``; values of categories are continuous.
            sizes: sizes of the axes without a static size; those of the evidence by default.

        Raises:
            ArgumentError: for an option that the model does not have, an unknown sampler or spacing; for
                steps, count, tries or at_once below 1; for ``verify`` on a graph without constraints, and
                ``tries`` without ``verify``.
            ObservationError: for values that do not fit the graph, or the wrong number of seeds.
            InferenceError: for samples that are NaN or infinite.
        """
        if at_once is None:
            at_once = 256 if self.offsets.device.type == "cpu" else 1024
        options = SamplingOptions(steps, sampler, spacing, None, tries, at_once)  # type: ignore[arg-type]
        return self._sample(given or {}, count, options, seed, sizes or {}, verify, trace)

    def sample_with(
        self,
        given: Given,
        count: int,
        options: SamplingOptions,
        sizes: Mapping[str, int],
        *,
        verify: bool = False,
        trace: Trace | None = None,
    ) -> Samples:
        """``sample`` with the options of sampling as one object."""
        return self._sample(given, count, options, options.seed, sizes, verify, trace)

    @torch.no_grad()
    def _sample(
        self,
        given: Given,
        count: int,
        options: SamplingOptions,
        seed: int | Sequence[int] | None,
        sizes: Mapping[str, int],
        verify: bool,
        trace: Trace | None,
    ) -> Samples:
        check_counts("sampling", count=count, tries=options.tries, at_once=options.at_once)
        if not self.has_steps:
            self.refuse(steps=options.steps, sampler=options.sampler, spacing=options.spacing, trace=trace)
        draw = self.drawing(options.completed_by(self.sampling), trace)
        condition = self.condition(given, count, **sizes)
        generators = generators_of(seed, count)
        training = self.training
        self.eval()
        try:
            samples = sample_with_retries(
                self, condition, given, draw, generators, verify, options.tries, options.at_once
            )
        finally:
            self.train(training)
        for name, x in samples.values.items():
            if not bool(x.isfinite().all()):
                raise InferenceError(
                    f"sampling: samples of variable {name!r} are NaN or infinite; the evidence may lie too "
                    "far outside the training data for the precision of the network."
                )
        self.warn_of_larger_sizes(condition.frame)
        return samples

    def _sizes_of(self, frame: Frame) -> tuple[int, ...]:
        """Sizes of the axes without a static size, in alphabetic order."""
        variables = self.graph.variables
        sizes = {
            axis: size
            for name, slot in frame.slots.items()
            for axis, size in zip(variables[name].axes, slot.shape, strict=True)
        }
        return tuple(sizes[axis] for axis in self._dynamic_axes)

    @torch.no_grad()
    def _remember_sizes(self, frame: Frame) -> None:
        sizes = self._sizes_of(frame)
        # most steps repeat sizes, and need no copy to the device
        if sizes not in self._sizes_seen:
            self._sizes_seen.add(sizes)
            self.largest_sizes.copy_(self.largest_sizes.maximum(torch.tensor(sizes).to(self.largest_sizes)))

    def warn_of_larger_sizes(self, frame: Frame) -> None:
        """Warn of axes with more entries than any in training, if these are known."""
        if not self._dynamic_axes:
            return
        sizes = zip(self._dynamic_axes, self._sizes_of(frame), self.largest_sizes.tolist(), strict=True)
        larger = [
            f"axis {axis!r} has {size} entries, and at most {largest:g} in training"
            for axis, size, largest in sizes
            if size > largest > 0
        ]
        if larger:
            warnings.warn(
                f"graph {self.graph.name!r}: {'; '.join(larger)}. The network extrapolates there.",
                stacklevel=4,
            )

    def refuse(self, **options: object) -> None:
        """Check that options which the model does not have are left out.

        Raises:
            ArgumentError: names the first that is not None.
        """
        for name, value in options.items():
            if value is not None:
                why = "has no such option" if self.has_steps else "samples in one step"
                raise ArgumentError(f"sampling: {type(self).__name__} {why}; leave out {name}.")

    def prepare(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Standardise continuous variables, as ``standardise``."""
        self.standardise(values, **sizes)

    def is_prepared(self) -> bool:
        """As ``is_standardised``."""
        return self.is_standardised()

    @torch.no_grad()
    def standardise(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Set offsets and scales to the mean and standard deviation of each continuous variable.

        A noise level then has the same meaning for all variables. Training calls this with its first
        batch if it has not been called; more samples give better estimates.

        Args:
            values: samples by variable, shape ``(batch, *axes)``.
            sizes: sizes of the axes without a static size; those of the values by default.

        Warns:
            UserWarning: for a variable with many values so near to their bound that they count as equal.
        """
        frame = self.frames.of(values, sizes)
        rows = frame.flatten(values)
        for k, (name, slot) in enumerate(frame.slots.items()):
            if slot.kind == "real" and rows[:, slot.numbers].numel() > 1:
                own = self.coordinates[name].at(slot.shape, 0.0)
                share = own.indistinct(rows[:, slot.numbers])
                if share > _MOST_INDISTINCT:
                    warnings.warn(
                        f"diffusion: {share:.0%} of the values of variable {name!r} lie too near to a bound "
                        "of their domain to be distinguished; declare the variable in other units, or its "
                        "logarithm.",
                        stacklevel=2,
                    )
                # a generator of its own, so that a seed of training covers training alone
                noise = _noise_for(own, rows[:, slot.numbers], torch.Generator().manual_seed(0))
                if self.log_rates is not None and own.are_logarithms:
                    rate = own.balanced(rows[:, slot.numbers], noise)
                    self.log_rates[k] = math.log(rate) if rate else _NO_RATE
                x = self._coordinates_at(frame)[name].forward(rows[:, slot.numbers], noise)
                part_of_number = own.part_of_number
                for part, group in enumerate(self._groups[name]):
                    own_x = x if part_of_number is None else x[:, part_of_number == part]
                    if own_x.numel() < 2:
                        continue
                    self.offsets[group] = own_x.mean()
                    self.scales[group] = own_x.std().clamp(min=1e-6)
                    if self.quantiles is not None:
                        standard = (own_x.flatten() - self.offsets[group]) / self.scales[group]
                        self.quantiles[group] = knots_at_scores(standard, self.quantiles.shape[1])

    def is_standardised(self) -> bool:
        """True if a continuous variable has an offset or a scale, or if there are no continuous variables."""
        real = torch.tensor(
            [kind == "real" for kind in self.frames.kinds.values()], device=self.offsets.device
        )
        changed = (self.offsets != 0) | (self.scales != 1)
        return not bool(real.any()) or bool(changed[: len(real)][real].any())

    def condition(self, given: Given, count: int, **sizes: int) -> Condition:
        """Convert evidence to the network's inputs.

        Values in a domain that are nearer to its bound than nearly all examples count as if they were as near
        as those.

        Args:
            given: evidence by variable, complete or partial (``unn.Partial``).
            count: number of samples.
            sizes: sizes of the axes without a static size; those of the evidence by default.

        Raises:
            ObservationError: for values that do not fit the graph.
        """
        frame = self.frames.of(given, sizes)
        rows, nodes = frame.observation(given, count)
        like = self.offsets
        rows, nodes = rows.to(like.device), nodes.to(like.device)
        numbers = nodes[:, frame.node_of_number.to(like.device)]
        rows = torch.where(numbers, self._standard_evidence(rows, frame), 0).to(like)
        return Condition(frame, rows, nodes, numbers)

    def example(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> tuple[Tensor, Condition]:
        """Convert training samples to standardised rows, shape ``(batch, numbers)``, and their evidence.

        Args:
            values: training samples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes, boolean, shape ``(batch, nodes)``; or by variable, shape
                ``(batch, *node axes)``.
            sizes: sizes of the axes without a static size; those of the values by default.

        Raises:
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        # reading checks each value, which leaves the compiled code
        return uncompiled(lambda: self._read_example(values, observed, sizes))

    def _read_example(
        self,
        values: Mapping[str, Tensor],
        observed: Tensor | Mapping[str, Tensor],
        sizes: Mapping[str, int],
    ) -> tuple[Tensor, Condition]:
        if self.training and not self._was_checked:
            # only once, because the check synchronises with the device
            self._was_checked = True
            if not self.is_standardised():
                self.standardise(values, **sizes)
        rows, exact, condition = self.rows_and_condition(values, observed, **sizes)
        if self.training and self._dynamic_axes:
            self._remember_sizes(condition.frame)
        if not any(own.whole for own in self.coordinates.values()):
            return exact, condition
        return self._standard(rows, condition.frame, noisy=True).to(exact), condition

    def rows_and_condition(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> tuple[Tensor, Tensor, Condition]:
        """Rows of natural and of standardised values, shape ``(batch, numbers)``, and the evidence in them.

        Arguments and errors as of ``example``.
        """
        frame = self.frames.of(values, sizes)
        rows = frame.flatten(values)
        exact = self._standard(rows, frame).to(self.offsets)
        nodes = self._observed(observed, frame, len(exact))
        numbers = nodes[:, frame.node_of_number.to(nodes.device)]
        return rows, exact, Condition(frame, torch.where(numbers, exact, 0), nodes, numbers)

    def mean_over_unknown(self, error: Tensor, condition: Condition) -> Tensor:
        """Mean of errors, shape ``(batch, numbers)``, over the unobserved nodes, weighting nodes equally."""
        weights = (~condition.numbers) / self._channels(condition.frame)
        return (error * weights).sum() / weights.sum().clamp(min=1)

    def valid(self, values: Mapping[str, Tensor]) -> Tensor:
        """Mask of samples that satisfy every constraint of the graph, shape ``(batch,)``."""
        valid = torch.ones(len(next(iter(values.values()))), dtype=torch.bool)
        for constraint in self.frames.graph.constraints:
            valid &= constraint.violations_of(values).cpu() == 0
        return valid

    def values_of(self, rows: Tensor, condition: Condition, given: Given) -> dict[str, Tensor]:
        """Convert standardised rows to values by variable, on the CPU; given values are exact.

        Args:
            rows: standardised samples, shape ``(batch, numbers)``.
            condition: condition of these samples.
            given: evidence from which the condition was made.
        """
        frame = condition.frame
        values = frame.unflatten(self._natural(rows, frame).cpu())
        exact, observed = frame.observation(given, len(rows))
        known = frame.unflatten(exact)
        for name, slot in frame.slots.items():
            if name in given:
                feature_axes = (1,) * (len(slot.shape) - len(slot.node_shape))
                mask = observed[:, slot.nodes].reshape(len(rows), *slot.node_shape, *feature_axes)
                values[name] = torch.where(mask, known[name], values[name].to(known[name].dtype))
        return values

    def _observed(self, observed: Tensor | Mapping[str, Tensor], frame: Frame, batch: int) -> Tensor:
        if not isinstance(observed, Tensor):
            return frame.observed_nodes(observed, batch).to(self.offsets.device)
        if observed.shape != (batch, frame.nodes) or observed.dtype != torch.bool:
            raise ObservationError(
                f"observed nodes need shape ({batch}, {frame.nodes}) and dtype bool, got "
                f"{tuple(observed.shape)}."
            )
        return observed.to(self.offsets.device)

    def _channels(self, frame: Frame) -> Tensor:
        parts = [
            torch.full((s.numbers.stop - s.numbers.start,), float(s.channels)) for s in frame.slots.values()
        ]
        return torch.cat(parts).to(self.offsets.device)

    def _standard(
        self, rows: Tensor, frame: Frame, noisy: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Standardised rows of natural values; ``noisy`` adds noise to counts."""
        rows = rows.to(self.offsets.device)
        offsets, scales = self._per_number(frame)
        if self._are_linear:
            return (rows.to(offsets) - offsets) / scales
        parts = []
        coordinates = self._coordinates_at(frame)
        for name, slot in frame.slots.items():
            own, x = coordinates[name], rows[:, slot.numbers]
            parts.append(own.forward(x, _noise_for(own, x, generator)) if noisy else own.forward(x))
        return self._standardised(torch.cat(parts, 1), frame)

    def _standard_evidence(self, rows: Tensor, frame: Frame) -> Tensor:
        """Standardised rows of natural values of evidence, within reach of the network."""
        if self._are_linear:
            return self._standard(rows, frame)
        rows = rows.to(self.offsets.device)
        offsets, scales = (x.double() for x in self._per_number(frame))
        parts = []
        coordinates = self._coordinates_at(frame)
        for name, slot in frame.slots.items():
            own, part = coordinates[name], slot.numbers
            parts.append(own.within_reach(own.forward(rows[:, part]), offsets[part], scales[part]))
        return self._standardised(torch.cat(parts, 1), frame)

    def _standardised(self, coordinates: Tensor, frame: Frame) -> Tensor:
        """Coordinates in units of the examples."""
        offsets, scales = self._per_number(frame)
        standard = (coordinates - offsets) / scales
        return (standard if self.quantiles is None else self._warped(standard, frame)).to(offsets)

    def _natural(self, rows: Tensor, frame: Frame) -> Tensor:
        """Natural values of standardised rows."""
        offsets, scales = self._per_number(frame)
        if self._are_linear:
            return rows * scales + offsets
        standard = rows.double()
        if self.quantiles is not None:
            standard = self._warped(standard, frame, back=True)
        rows_of_coordinates = standard * scales + offsets
        coordinates = self._coordinates_at(frame)
        parts = [
            coordinates[name].backward(rows_of_coordinates[:, slot.numbers])
            for name, slot in frame.slots.items()
        ]
        return torch.cat(parts, 1).to(rows)

    def _log_slopes(self, rows: Tensor, frame: Frame) -> Tensor:
        """Logarithm of the derivative of each standardised real number by its natural value, shape ``(batch,
        numbers)``."""
        rows = rows.to(self.offsets.device).double()
        coordinates = self._coordinates_at(frame)
        parts = [coordinates[name].log_slope(rows[:, s.numbers]) for name, s in frame.slots.items()]
        slopes = torch.cat(parts, 1) - self._per_number(frame)[1].log()
        if self.quantiles is not None:
            x = torch.cat([coordinates[n].forward(rows[:, s.numbers]) for n, s in frame.slots.items()], 1)
            offsets, scales = self._per_number(frame)
            with torch.enable_grad():
                x = ((x - offsets) / scales).detach().requires_grad_()
                (warp,) = torch.autograd.grad(self._warped(x, frame).sum(), x)
            slopes = slopes + warp.log()
        return slopes

    def _coordinates_at(self, frame: Frame) -> dict[str, Coordinates | EntryCoordinates]:
        """Coordinates of all variables in their shapes, with their rates."""
        rates = [0.0] * len(frame.slots) if self.log_rates is None else self.log_rates.double().exp()
        return {
            name: self.coordinates[name].at(slot.shape, rate)
            for (name, slot), rate in zip(frame.slots.items(), rates, strict=True)
        }

    @property
    def _are_linear(self) -> bool:
        return self.quantiles is None and all(own.are_linear for own in self.coordinates.values())

    def _warped(self, rows: Tensor, frame: Frame, back: bool = False) -> Tensor:
        """Normal scores of standardised coordinates, or ``back``, shape ``(batch, numbers)``."""
        assert self.quantiles is not None
        scores = torch.linspace(
            -LARGEST_SCORE, LARGEST_SCORE, KNOTS, dtype=torch.float64, device=self.quantiles.device
        )
        parts = []
        for name, slot in frame.slots.items():
            x = warped = rows[:, slot.numbers]
            part_of_number = self.coordinates[name].at(slot.shape, 0.0).part_of_number
            for part, group in enumerate(self._groups[name] if slot.kind == "real" else ()):
                quantiles = self.quantiles[group].double()
                own = interpolated(x, *((scores, quantiles) if back else (quantiles, scores)))
                warped = (
                    own
                    if part_of_number is None
                    else torch.where(part_of_number.to(x.device) == part, own, warped)
                )
            parts.append(warped)
        return torch.cat(parts, 1)

    def _per_number(self, frame: Frame) -> tuple[Tensor, Tensor]:
        """Offset and scale of each number, shape ``(numbers,)`` each."""
        groups = []
        for name, slot in frame.slots.items():
            part = self.coordinates[name].at(slot.shape, 0.0).part_of_number
            if part is None:
                part = torch.zeros(slot.numbers.stop - slot.numbers.start, dtype=torch.int64)
            groups.append(torch.tensor(self._groups[name])[part])
        group = torch.cat(groups).to(self.offsets.device)
        return self.offsets[group], self.scales[group]


def _complete_earlier_rates(model: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """State dicts of earlier versions have logarithms everywhere."""
    assert isinstance(model.log_rates, Tensor)
    if prefix + "offsets" in state and prefix + "log_rates" not in state:
        state[prefix + "log_rates"] = torch.full_like(model.log_rates, _NO_RATE)


def _groups_of(coordinates: Mapping[str, Coordinates | EntryCoordinates]) -> dict[str, list[int]]:
    """Numbers of the offsets and scales of the parts of each variable: first one for each variable, then
    those of further parts."""
    groups = {name: [k] for k, name in enumerate(coordinates)}
    count = len(groups)
    for name, own in coordinates.items():
        part = own.part_of_number
        further = 0 if part is None else int(part.max())
        groups[name] += range(count, count + further)
        count += further
    return groups


def _complete_unknown_sizes(model: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """State dicts of earlier versions do not say the sizes of their training."""
    assert isinstance(model, ConditionalModel)
    model._sizes_seen.clear()
    if prefix + "offsets" in state and prefix + "largest_sizes" not in state:
        state[prefix + "largest_sizes"] = torch.zeros_like(model.largest_sizes)


def _noise_for(
    own: Coordinates | EntryCoordinates, x: Tensor, generator: torch.Generator | None = None
) -> Tensor | float:
    """Noise of counts, shape of ``x``, from torch's global generator by default; 0 for other values."""
    if not own.whole:
        return 0.0
    if generator is None:
        return torch.rand(x.shape, dtype=torch.float64, device=x.device)
    return torch.rand(x.shape, dtype=torch.float64, generator=generator).to(x.device)
