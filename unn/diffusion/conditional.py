"""What models of the values of a graph share: standardised rows of numbers, what is given, what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import ObservationError, suggest
from ..networks.tokens import Frame, Frames, Given


@dataclass(frozen=True, eq=False)
class Condition:
    """What is known of some samples.

    Attributes:
        frame: of the graph at their sizes.
        rows: the known values, standardised, shape ``(batch, numbers)``.
        nodes: which nodes are known, shape ``(batch, nodes)``, boolean.
        numbers: which numbers are known, shape ``(batch, numbers)``, boolean.
    """

    frame: Frame
    rows: Tensor
    nodes: Tensor
    numbers: Tensor

    def some(self, chosen: Tensor) -> Condition:
        """That of some of the samples, by number or boolean."""
        return Condition(self.frame, self.rows[chosen], self.nodes[chosen], self.numbers[chosen])


@dataclass(frozen=True, eq=False)
class Samples:
    """What was sampled.

    Attributes:
        values: by variable, shape ``(count, *axes)``; given values are returned as given.
        valid: do the values meet all constraints of the graph, shape ``(count,)``; None where it was not asked for.
        tries: how often each was sampled, shape ``(count,)``.
    """

    values: Mapping[str, Tensor]
    valid: Tensor | None
    tries: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


class ConditionalModel(nn.Module):
    """A model of the values of a graph given any subset of them.

    Args:
        frames: of the graph.

    Attributes:
        offsets: by variable, what is taken off its numbers.
        scales: by variable, what they are divided by; both are found by ``standardise``.
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
                share = 1 / max(2, frames.channels[name])
                offsets[k], scales[k] = share, (share * (1 - share)) ** 0.5
        self.register_buffer("offsets", offsets)
        self.register_buffer("scales", scales)
        self._was_checked = False

    @torch.no_grad()
    def standardise(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Find the mean and the deviation of each continuous variable in some samples, so that noise means the same for all of them.

        The first batch of training does so where it was not done before; with more samples the figures are more exact.

        Args:
            values: by variable, shape ``(batch, *axes)``.
            sizes: of the axes without a static one.
        """
        frame = self.frames.at(**sizes)
        rows = frame.flatten(values)
        for k, slot in enumerate(frame.slots.values()):
            if slot.kind == "real" and rows[:, slot.numbers].numel() > 1:
                x = rows[:, slot.numbers]
                self.offsets[k] = x.mean()
                self.scales[k] = x.std().clamp(min=1e-6)

    def is_standardised(self) -> bool:
        """Has some continuous variable an offset or a scale of its own, or is there none?"""
        real = torch.tensor([kind == "real" for kind in self.frames.kinds.values()], device=self.offsets.device)
        return not bool(real.any()) or bool(((self.offsets != 0) | (self.scales != 1))[real].any())

    def condition(self, given: Given, count: int, **sizes: int) -> Condition:
        """What is given, for the network.

        Args:
            given: by variable, whole or in part (``unn.Partial``).
            count: of samples.
            sizes: of the axes without a static one.

        Raises:
            ObservationError: for values that do not fit the graph.
        """
        frame = self.frames.at(**sizes)
        rows, nodes = frame.observation(given, count)
        like = self.offsets
        numbers = nodes[:, frame.node_of_number]
        rows = torch.where(numbers, self._standard(rows.to(like), frame), 0)
        return Condition(frame, rows, nodes.to(like.device), numbers.to(like.device))

    def example(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> tuple[Tensor, Condition]:
        """Samples to learn from: their standardised rows, shape ``(batch, numbers)``, and what the network is given of them.

        Args:
            values: samples, by variable, shape ``(batch, *axes)``.
            observed: which nodes the network is given, shape ``(batch, nodes)``, boolean; or by variable, shape ``(batch, *node axes)``.
            sizes: of the axes without a static one.

        Raises:
            ObservationError: for values or observed nodes that do not fit the graph.
        """
        if self.training and not self._was_checked:
            # once, as it waits for the device
            self._was_checked = True
            if not self.is_standardised():
                self.standardise(values, **sizes)
        frame = self.frames.at(**sizes)
        clean = self._standard(frame.flatten(values).to(self.offsets), frame)
        nodes = self._observed(observed, frame, len(clean))
        numbers = nodes[:, frame.node_of_number.to(nodes.device)]
        return clean, Condition(frame, torch.where(numbers, clean, 0), nodes, numbers)

    def mean_over_unknown(self, error: Tensor, condition: Condition) -> Tensor:
        """The mean of errors, shape ``(batch, numbers)``, where nothing is known; each node counts the same, however many numbers it has."""
        weights = (~condition.numbers) / self._channels(condition.frame)
        return (error * weights).sum() / weights.sum().clamp(min=1)

    def valid(self, values: Mapping[str, Tensor]) -> Tensor:
        """Do values meet every constraint of the graph, shape ``(batch,)``?"""
        found = torch.ones(len(next(iter(values.values()))), dtype=torch.bool)
        for constraint in self.frames.graph.constraints:
            found &= constraint.violations_of(values).cpu() == 0
        return found

    def values_of(self, rows: Tensor, condition: Condition, given: Given) -> dict[str, Tensor]:
        """Standardised rows as values by variable, on the CPU, with what is given in its place, exactly.

        Args:
            rows: shape ``(batch, numbers)``.
            condition: that they were sampled under.
            given: that the condition was made of.
        """
        frame = condition.frame
        found = frame.unflatten(self._natural(rows, frame).cpu())
        exact, seen = frame.observation(given, len(rows))
        known = frame.unflatten(exact)
        for name, slot in frame.slots.items():
            if name in given:
                where = seen[:, slot.nodes].reshape(len(rows), *slot.node_shape, *(1,) * (len(slot.shape) - len(slot.node_shape)))
                found[name] = torch.where(where, known[name], found[name].to(known[name].dtype))
        return found

    def _observed(self, observed: Tensor | Mapping[str, Tensor], frame: Frame, batch: int) -> Tensor:
        if not isinstance(observed, Tensor):
            nodes = torch.zeros(batch, frame.nodes, dtype=torch.bool, device=self.offsets.device)
            for name, where in observed.items():
                if name not in frame.slots:
                    raise ObservationError(f"graph {frame.graph.name!r} has no variable {name!r}.{suggest(name, frame.slots)}")
                nodes[:, frame.slots[name].nodes] = _nodes_of(name, where, frame.slots[name].node_shape, batch).to(nodes.device)
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


def _nodes_of(name: str, where: Tensor, shape: tuple[int, ...], batch: int) -> Tensor:
    """Which nodes of a variable are observed, shape ``(batch, nodes of the variable)``."""
    full = (batch, *shape)
    fits = isinstance(where, Tensor) and where.dtype == torch.bool and where.ndim == len(full)
    if not fits or any(size not in (1, expected) for size, expected in zip(where.shape, full, strict=True)):
        found = f"shape {tuple(where.shape)} and {where.dtype}" if isinstance(where, Tensor) else type(where).__name__
        raise ObservationError(f"variable {name!r}: observed nodes need shape {full}, or 1 for an axis, and dtype bool, got {found}.")
    return where.expand(full).reshape(batch, -1)
