"""A diffusion model of the values of a graph, conditional on any subset of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import DeclarationError, ObservationError, suggest
from ..models.denoiser import Denoiser
from ..models.frame import Frame, Given
from .samplers import SAMPLERS
from .schedule import LinearSteps, Schedule, log_snr_levels

Prediction = Literal["x0", "velocity"]
Trace = Callable[[int, dict[str, Tensor]], None]


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

    def part(self, which: slice) -> Condition:
        """Of some batch elements."""
        return Condition(self.frame, self.rows[which], self.nodes[which], self.numbers[which])


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


class Diffusion(nn.Module):
    """A diffusion model: a denoiser, levels of noise, and what the denoiser predicts.

    Args:
        denoiser: of a graph.
        schedule: of the noise.
        prediction: "x0" (the paper's), or "velocity": the network's output is scaled by the level of noise as in Salimans and Ho (2022), which for
            data of unit variance is also the preconditioning of Karras et al. (2022).
        self_conditioning: feed the last estimate back to the network (Chen et al., 2023).

    Attributes:
        offsets: by variable, what is taken off its numbers.
        scales: by variable, what they are divided by; both are found by ``standardise``.
    """

    offsets: Tensor
    scales: Tensor

    def __init__(
        self, denoiser: Denoiser, *, schedule: Schedule | None = None, prediction: Prediction = "x0", self_conditioning: bool = False
    ) -> None:
        super().__init__()
        if prediction not in ("x0", "velocity"):
            raise DeclarationError(f"diffusion: unknown prediction {prediction!r}.{suggest(prediction, ('x0', 'velocity'))}")
        self.denoiser = denoiser
        self.schedule = schedule or LinearSteps()
        self.prediction = prediction
        self.self_conditioning = self_conditioning
        names = list(denoiser.kinds)
        offsets, scales = torch.zeros(len(names)), torch.ones(len(names))
        for k, name in enumerate(names):
            linear = denoiser.read[name]
            assert isinstance(linear, nn.Linear)
            if denoiser.kinds[name] != "real":
                # mean and standard deviation of a one-hot value whose options are equally likely
                share = 1 / max(2, linear.in_features)
                offsets[k], scales[k] = share, (share * (1 - share)) ** 0.5
        self.register_buffer("offsets", offsets)
        self.register_buffer("scales", scales)

    @torch.no_grad()
    def standardise(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Find the mean and the deviation of each continuous variable in some samples, so that noise means the same for all of them.

        Args:
            values: by variable, shape ``(batch, *axes)``.
            sizes: of the axes without a static one.
        """
        frame = self.denoiser.frame(**sizes)
        rows = frame.flatten(values)
        for k, slot in enumerate(frame.slots.values()):
            if slot.kind == "real" and rows[:, slot.numbers].numel() > 1:
                x = rows[:, slot.numbers]
                self.offsets[k] = x.mean()
                self.scales[k] = x.std().clamp(min=1e-6)

    def condition(self, given: Given, count: int, **sizes: int) -> Condition:
        """What is given, for the network.

        Args:
            given: by variable, whole or in part (``unn.Partial``).
            count: of samples.
            sizes: of the axes without a static one.

        Raises:
            ObservationError: for values that do not fit the graph.
        """
        frame = self.denoiser.frame(**sizes)
        rows, nodes = frame.observation(given, count)
        like = self.offsets
        numbers = nodes[:, frame.node_of_number]
        rows = torch.where(numbers, self._standard(rows.to(like), frame), 0)
        return Condition(frame, rows, nodes.to(like.device), numbers.to(like.device))

    def loss(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> Tensor:
        """The mean squared error of the estimates at the nodes that are not observed (structured-diffusion paper, equation 4), a scalar.

        Draws from torch's global generator.

        Args:
            values: samples, by variable, shape ``(batch, *axes)``.
            observed: which nodes the network is given, shape ``(batch, nodes)``, boolean; or by variable, shape ``(batch, *node axes)``.
            sizes: of the axes without a static one.
        """
        frame = self.denoiser.frame(**sizes)
        clean = self._standard(frame.flatten(values).to(self.offsets), frame)
        nodes = self._observed(observed, frame, len(clean))
        numbers = nodes[:, frame.node_of_number.to(nodes.device)]
        condition = Condition(frame, torch.where(numbers, clean, 0), nodes, numbers)
        sigma = self.schedule.draw(len(clean)).to(clean)
        noisy = clean + sigma[:, None] * torch.randn_like(clean)
        previous = None
        if self.self_conditioning:
            with torch.no_grad():
                previous = self.denoise(noisy, sigma, condition)
            previous = previous * (torch.rand(len(clean), 1, device=clean.device) < 0.5)
        estimate = self.denoise(noisy, sigma, condition, previous)
        error = (estimate - clean) ** 2
        if self.prediction == "velocity":
            error = error * (1 + sigma[:, None] ** -2)
        # each node counts the same, however many numbers it has
        weights = (~numbers) / self._channels(frame)
        return (error * weights).sum() / weights.sum().clamp(min=1)

    def denoise(self, x: Tensor, sigma: Tensor, condition: Condition, previous: Tensor | None = None) -> Tensor:
        """The estimate of the clean sample, shape ``(batch, numbers)``, with the known values in their place.

        The call that samplers of other libraries need: ``lambda x, sigma: diffusion.denoise(x, sigma, condition)``.

        Args:
            x: standardised values plus sigma times Gaussian noise, shape ``(batch, numbers)``.
            sigma: level of noise, shape ``(batch,)`` or ``()``.
            condition: what is known.
            previous: an earlier estimate, for self-conditioning.
        """
        sigma = sigma.to(x).expand(len(x))[:, None]
        shrink = (1 + sigma**2).rsqrt()
        seen = torch.where(condition.numbers, condition.rows, shrink * x)
        if self.self_conditioning and previous is None:
            previous = torch.zeros_like(x)
        found = self.denoiser(seen, sigma[:, 0].log() / 4, condition.nodes, condition.frame, previous if self.self_conditioning else None)
        if self.prediction == "velocity":
            found = shrink**2 * x + sigma * shrink * found
        return torch.where(condition.numbers, condition.rows, found)

    @torch.no_grad()
    def sample(
        self,
        given: Given | None = None,
        count: int = 1,
        *,
        steps: int = 100,
        sampler: str = "ancestral",
        spacing: Literal["schedule", "log-snr"] = "schedule",
        seed: int | Sequence[int] | None = None,
        verify: bool = False,
        tries: int = 1,
        at_once: int = 1024,
        trace: Trace | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Samples:
        """Sample all variables that are not given.

        Args:
            given: by variable, whole or in part; a batch axis of 1 is repeated.
            count: of samples.
            steps: estimates of the network, twice as many for "heun".
            sampler: see ``unn.diffusion.SAMPLERS``.
            spacing: of the levels of noise: the schedule's own, or even in the log-SNR over its range.
            seed: of all samples together, or one for each, which then depends on nothing else; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: with ``verify``, how often to sample what meets them not.
            at_once: samples in memory at a time.
            trace: called after each step with its number and the values, by variable, shape ``(batch, *axes)``; continuous ones of categories too.
            sizes: of the axes without a static one.

        Raises:
            DeclarationError: for an unknown sampler, steps, count or tries below 1.
            ObservationError: for values that do not fit the graph.
        """
        if sampler not in SAMPLERS:
            raise DeclarationError(f"diffusion: unknown sampler {sampler!r}.{suggest(sampler, SAMPLERS)}")
        for name, number in (("count", count), ("tries", tries), ("at_once", at_once)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise DeclarationError(f"diffusion: {name} must be a whole number >= 1, got {number!r}.")
        condition = self.condition(given or {}, count, **(sizes or {}))
        levels = (log_snr_levels(self.schedule, steps) if spacing == "log-snr" else self.schedule.levels(steps)).to(condition.rows)
        generators = _generators(seed, count)
        training = self.training
        self.eval()
        try:
            rows = torch.cat(
                [
                    self._draw(condition.part(slice(k, k + at_once)), levels, sampler, generators[k : k + at_once] if generators else None, trace)
                    for k in range(0, count, at_once)
                ]
            )
            values = self._values(rows, condition, given or {})
            valid, tried = None, torch.ones(count, dtype=torch.int64)
            if verify:
                valid = self.valid(values)
                for _ in range(tries - 1):
                    again = (~valid).nonzero().squeeze(1)
                    if not len(again):
                        break
                    for chosen in again.split(at_once):
                        held = Condition(condition.frame, condition.rows[chosen], condition.nodes[chosen], condition.numbers[chosen])
                        some = [generators[int(k)] for k in chosen] if generators else None
                        rows[chosen] = self._draw(held, levels, sampler, some, trace)
                    tried[again] += 1
                    values = self._values(rows, condition, given or {})
                    valid = self.valid(values)
        finally:
            self.train(training)
        return Samples(values, valid, tried)

    def valid(self, values: Mapping[str, Tensor]) -> Tensor:
        """Do values meet every constraint of the graph, shape ``(batch,)``?"""
        found = torch.ones(len(next(iter(values.values()))), dtype=torch.bool)
        for factor in self.denoiser.graph.factors.values():
            broken = factor.violations_of(values)
            if broken is not None:
                found &= broken.cpu() == 0
        return found

    def _draw(self, condition: Condition, levels: Tensor, sampler: str, generators: list[torch.Generator] | None, trace: Trace | None) -> Tensor:
        shape = condition.rows.shape
        like = condition.rows

        def noise() -> Tensor:
            if generators is None:
                return torch.randn_like(like)
            return torch.stack([torch.randn(shape[1], generator=g) for g in generators]).to(like)

        last: list[Tensor] = []

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            found = self.denoise(x, sigma, condition, last[0] if last else None)
            last[:] = [found]
            return found

        def look(step: int, x: Tensor, x0: Tensor) -> None:
            if trace is not None:
                trace(step, self._raw(torch.where(condition.numbers, condition.rows, x), condition.frame))

        start = (1 + levels[0] ** 2).sqrt() * noise()
        return torch.where(condition.numbers, condition.rows, SAMPLERS[sampler](denoise, start, levels, noise, look))

    def _values(self, rows: Tensor, condition: Condition, given: Given) -> dict[str, Tensor]:
        frame = condition.frame
        found = frame.unflatten(self._natural(rows, frame).cpu())
        exact, seen = frame.observation(given, len(rows))
        known = frame.unflatten(exact)
        for name, slot in frame.slots.items():
            if name in given:
                where = seen[:, slot.nodes].reshape(len(rows), *slot.node_shape, *(1,) * (len(slot.shape) - len(slot.node_shape)))
                found[name] = torch.where(where, known[name], found[name].to(known[name].dtype))
        return found

    def _raw(self, rows: Tensor, frame: Frame) -> dict[str, Tensor]:
        natural = self._natural(rows, frame).cpu()
        found = {}
        for name, slot in frame.slots.items():
            x = natural[:, slot.numbers].unflatten(1, (-1, slot.channels))
            found[name] = (x[..., 1] if slot.kind == "binary" else x).reshape(len(rows), *slot.shape)
        return found

    def _observed(self, observed: Tensor | Mapping[str, Tensor], frame: Frame, batch: int) -> Tensor:
        if not isinstance(observed, Tensor):
            nodes = torch.zeros(batch, frame.nodes, dtype=torch.bool, device=self.offsets.device)
            for name, where in observed.items():
                if name not in frame.slots:
                    raise ObservationError(f"graph {frame.graph.name!r} has no variable {name!r}.{suggest(name, frame.slots)}")
                nodes[:, frame.slots[name].nodes] = where.to(nodes.device).expand(batch, *frame.slots[name].node_shape).flatten(1)
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


def _generators(seed: int | Sequence[int] | None, count: int) -> list[torch.Generator] | None:
    if seed is None:
        return None
    if isinstance(seed, int):
        from ..training.batches import seed_of

        seeds = [seed_of(seed, k) for k in range(count)]
    else:
        seeds = [int(k) for k in seed]
        if len(seeds) != count:
            raise ObservationError(f"diffusion: {len(seeds)} seeds are given for {count} samples.")
    return [torch.Generator().manual_seed(k) for k in seeds]
