"""Base of conditional models of a graph: standardisation, evidence and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import ObservationError, suggest
from ..networks.tokens import Frame, Frames, Given


@dataclass(frozen=True, eq=False)
class Condition:
    """Evidence for a batch of samples.

    Attributes:
        frame: frame of the graph at the sizes of the samples.
        rows: standardised known values, 0 elsewhere, shape ``(batch, numbers)``.
        nodes: mask of known nodes, shape ``(batch, nodes)``, boolean.
        numbers: mask of known numbers, shape ``(batch, numbers)``, boolean.
    """

    frame: Frame
    rows: Tensor
    nodes: Tensor
    numbers: Tensor

    def some(self, chosen: Tensor) -> Condition:
        """The condition of a subset of the samples, selected by indices or a boolean mask."""
        return Condition(self.frame, self.rows[chosen], self.nodes[chosen], self.numbers[chosen])


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples and the result of their verification.

    Attributes:
        values: values by variable, shape ``(count, *axes)``; given values are returned unchanged.
        valid: mask of samples that satisfy all constraints of the graph, shape ``(count,)``; None
            without ``verify``.
        tries: number of attempts per sample, shape ``(count,)``.
    """

    values: Mapping[str, Tensor]
    valid: Tensor | None
    tries: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


class ConditionalModel(nn.Module):
    """Model of the variables of a graph conditional on any subset of them.

    Args:
        frames: frames of the graph.

    Attributes:
        offsets: offset of each variable, subtracted from its values; set by ``standardise``.
        scales: scale of each variable, by which its values are divided; set by ``standardise``.
    """

    offsets: Tensor
    scales: Tensor

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self.frames = frames
        offsets, scales = torch.zeros(len(frames.kinds)), torch.ones(len(frames.kinds))
        for k, (name, kind) in enumerate(frames.kinds.items()):
            if kind != "real":
                # mean and standard deviation of a one-hot value whose options are equally likely
                mean = 1 / max(2, frames.channels[name])
                offsets[k], scales[k] = mean, (mean * (1 - mean)) ** 0.5
        self.register_buffer("offsets", offsets)
        self.register_buffer("scales", scales)
        self._was_checked = False

    @torch.no_grad()
    def standardise(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Set offsets and scales to the mean and standard deviation of each continuous variable.

        A noise level then has the same meaning for all variables. Training calls this with its first
        batch if it has not been called; more samples give better estimates.

        Args:
            values: samples by variable, shape ``(batch, *axes)``.
            sizes: sizes of the axes without a static size.
        """
        frame = self.frames.at(**sizes)
        rows = frame.flatten(values)
        for k, slot in enumerate(frame.slots.values()):
            if slot.kind == "real" and rows[:, slot.numbers].numel() > 1:
                x = rows[:, slot.numbers]
                self.offsets[k] = x.mean()
                self.scales[k] = x.std().clamp(min=1e-6)

    def is_standardised(self) -> bool:
        """True if a continuous variable has an offset or a scale, or if there are no continuous variables."""
        real = torch.tensor([kind == "real" for kind in self.frames.kinds.values()], device=self.offsets.device)
        return not bool(real.any()) or bool(((self.offsets != 0) | (self.scales != 1))[real].any())

    def condition(self, given: Given, count: int, **sizes: int) -> Condition:
        """Convert evidence to the network's inputs.

        Args:
            given: evidence by variable, complete or partial (``unn.Partial``).
            count: number of samples.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values that do not fit the graph.
        """
        frame = self.frames.at(**sizes)
        rows, nodes = frame.observation(given, count)
        like = self.offsets
        numbers = nodes[:, frame.node_of_number]
        rows = torch.where(numbers, self._standard(rows.to(like), frame), 0)
        return Condition(frame, rows, nodes.to(like.device), numbers.to(like.device))

    def example(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> tuple[Tensor, Condition]:
        """Convert training samples to standardised rows, shape ``(batch, numbers)``, and their evidence.

        Args:
            values: training samples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes, boolean, shape ``(batch, nodes)``; or by variable, shape
                ``(batch, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        if self.training and not self._was_checked:
            # only once, because the check synchronises with the device
            self._was_checked = True
            if not self.is_standardised():
                self.standardise(values, **sizes)
        frame = self.frames.at(**sizes)
        clean = self._standard(frame.flatten(values).to(self.offsets), frame)
        nodes = self._observed(observed, frame, len(clean))
        numbers = nodes[:, frame.node_of_number.to(nodes.device)]
        return clean, Condition(frame, torch.where(numbers, clean, 0), nodes, numbers)

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
            nodes = torch.zeros(batch, frame.nodes, dtype=torch.bool, device=self.offsets.device)
            for name, mask in observed.items():
                if name not in frame.slots:
                    raise ObservationError(f"graph {frame.graph.name!r} has no variable {name!r}.{suggest(name, frame.slots)}")
                slot = frame.slots[name]
                nodes[:, slot.nodes] = _observed_nodes(name, mask, slot.node_shape, batch).to(nodes.device)
            return nodes
        if observed.shape != (batch, frame.nodes) or observed.dtype != torch.bool:
            raise ObservationError(f"observed nodes need shape ({batch}, {frame.nodes}) and dtype bool, got {tuple(observed.shape)}.")
        return observed.to(self.offsets.device)

    def _channels(self, frame: Frame) -> Tensor:
        parts = [torch.full((s.numbers.stop - s.numbers.start,), float(s.channels)) for s in frame.slots.values()]
        return torch.cat(parts).to(self.offsets.device)

    def _standard(self, rows: Tensor, frame: Frame) -> Tensor:
        offsets, scales = self._per_number(frame)
        return (rows - offsets) / scales

    def _natural(self, rows: Tensor, frame: Frame) -> Tensor:
        offsets, scales = self._per_number(frame)
        return rows * scales + offsets

    def _per_number(self, frame: Frame) -> tuple[Tensor, Tensor]:
        counts = torch.tensor([s.numbers.stop - s.numbers.start for s in frame.slots.values()], device=self.offsets.device)
        return self.offsets.repeat_interleave(counts), self.scales.repeat_interleave(counts)


def _observed_nodes(name: str, mask: Tensor, shape: tuple[int, ...], batch: int) -> Tensor:
    """Mask of the observed nodes of a variable, shape ``(batch, nodes of the variable)``."""
    full = (batch, *shape)
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim == len(full)
    if not fits or any(size not in (1, expected) for size, expected in zip(mask.shape, full, strict=True)):
        is_tensor = isinstance(mask, Tensor)
        got = f"shape {tuple(mask.shape)} and {mask.dtype}" if is_tensor else type(mask).__name__
        raise ObservationError(
            f"variable {name!r}: observed nodes need dtype bool and shape {full} (or 1 for axes), got {got}."
        )
    return mask.expand(full).reshape(batch, -1)
