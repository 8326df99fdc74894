"""Diffusion model of the variables of a graph, conditional on any subset of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..errors import DeclarationError, ObservationError, suggest
from ..graph.declaration import Declaration
from ..networks.denoiser import Denoiser
from ..networks.tokens import Frame, Given
from ..ops.reproducible import reproducible
from ..ops.seeds import seed_of
from .conditional import Condition, ConditionalModel, Samples
from .samplers import SAMPLERS, restarted
from .schedule import LogNormal, Schedule, log_snr_levels, restarting_levels

Prediction = Literal["mixed", "x0", "velocity"]
PREDICTIONS = ("mixed", "x0", "velocity")
Spacing = Literal["log-snr", "schedule", "restarts"]
SPACINGS = ("log-snr", "schedule", "restarts")
Trace = Callable[[int, dict[str, Tensor]], None]


class Diffusion(ConditionalModel):
    """A diffusion model: a denoiser, a noise schedule and a prediction target.

    Args:
        denoiser: denoiser of a graph; its ``self_conditioning`` selects the part of each estimate
            that is fed back.
        schedule: noise schedule; ``LogNormal()`` by default.
        prediction: prediction target. "mixed" (default): velocity for continuous variables, logits
            of the options for binary variables and categories, trained by cross-entropy. "x0": the
            clean sample for all variables (as in the paper). "velocity": velocity for all
            variables.
        passes: number of self-conditioning passes in training before the one with a loss:
            ``passes`` for half of the examples, fewer for the others.
    """

    def __init__(self, denoiser: Denoiser, *, schedule: Schedule | None = None, prediction: Prediction = "mixed", passes: int = 1) -> None:
        super().__init__(denoiser.frames)
        self.denoiser = denoiser
        if prediction not in PREDICTIONS:
            raise DeclarationError(f"diffusion: unknown prediction {prediction!r}.{suggest(str(prediction), PREDICTIONS)}")
        check_counts("diffusion", passes=passes)
        self.schedule = schedule or LogNormal()
        self.prediction = prediction
        self.passes = passes

    def loss(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean training loss over the unobserved nodes (structured-diffusion paper, equation 4), a scalar.

        Draws from torch's global generator.

        Args:
            values: training samples, by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes, boolean, shape ``(batch, nodes)``; or by variable, shape
                ``(batch, *node axes)``.
            sizes: sizes of the axes without a static size.
        """
        clean, condition = self.example(values, observed, **sizes)
        sigma = self.schedule.draw(len(clean)).to(clean)
        noisy = clean + sigma[:, None] * torch.randn_like(clean)
        memory = None
        if self.denoiser.self_conditioning != "none":
            memory = self._simulate_self_conditioning(noisy, sigma, condition)
        output, _ = self._output(noisy, sigma, condition, memory)
        return self.mean_over_unknown(self._errors(output, clean, noisy, sigma[:, None], condition.frame), condition)

    @torch.no_grad()
    def _simulate_self_conditioning(self, noisy: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Self-conditioning state after ``passes`` passes for half of the examples, fewer for the others.

        Self-conditioning is recursive in sampling; training with a single pass does not prepare the
        network for it. The other examples have 0 to ``passes - 1`` passes with equal probability.
        """
        frame = condition.frame
        shape = (frame.nodes, self.denoiser.width) if self.denoiser.self_conditioning == "tokens" else (frame.numbers,)
        memory = noisy.new_zeros(len(noisy), *shape)
        passes = torch.randint(2 * self.passes, (len(noisy),), device=noisy.device).clamp(max=self.passes)
        for done in range(self.passes):
            active = (passes > done).nonzero().squeeze(1)
            if not len(active):
                break
            _, state = self.denoise_step(noisy[active], sigma[active], condition.some(active), memory[active])
            assert state is not None
            memory[active] = state.to(memory)
        return memory

    def denoise(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Estimate the clean sample without self-conditioning, shape ``(batch, numbers)``.

        The estimate contains the observed values exactly.

        Args:
            x: standardised values plus sigma times Gaussian noise, shape ``(batch, numbers)``.
            sigma: noise level, shape ``(batch,)`` or ``()``.
            condition: evidence.
        """
        return self.denoise_step(x, sigma, condition)[0]

    def denoise_step(
        self, x: Tensor, sigma: Tensor, condition: Condition, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """One self-conditioned denoising step; returns the estimate and the new self-conditioning state.

        Args:
            x, sigma, condition: as for ``denoise``.
            memory: self-conditioning state of the previous step; None for the first.

        Returns:
            The estimate, shape ``(batch, numbers)``, and the state; None without self-conditioning.
        """
        sigma = sigma.to(x).expand(len(x))
        output, tokens = self._output(x, sigma, condition, memory)
        estimate = torch.where(condition.numbers, condition.rows, self._estimate(output, x, sigma[:, None], condition.frame))
        return estimate, {"tokens": tokens, "estimate": estimate, "none": None}[self.denoiser.self_conditioning]

    def _output(self, x: Tensor, sigma: Tensor, condition: Condition, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """The network's output, shape ``(batch, numbers)``, and its tokens, shape ``(batch, nodes, width)``."""
        inputs = torch.where(condition.numbers, condition.rows, (1 + sigma[:, None] ** 2).rsqrt() * x)
        tokens = self.denoiser.tokens(inputs, sigma.log() / 4, condition.nodes, condition.frame, memory)
        return self.denoiser.estimate(tokens, condition.frame), tokens

    def _estimate(self, output: Tensor, x: Tensor, sigma: Tensor, frame: Frame) -> Tensor:
        """Convert the network's output to an estimate of the clean sample, shape ``(batch, numbers)``."""
        if self.prediction == "x0":
            return output
        parts = []
        for k, slot in enumerate(frame.slots.values()):
            out, noisy = output[:, slot.numbers], x[:, slot.numbers]
            if self.prediction == "mixed" and slot.kind != "real":
                probabilities = out.unflatten(1, (-1, slot.channels)).softmax(-1).flatten(1)
                parts.append((probabilities - self.offsets[k]) / self.scales[k])
            else:
                # c_skip and c_out of Karras et al. (2022), Table 1, for data of unit variance; v of Salimans and Ho (2022)
                parts.append(noisy / (1 + sigma**2) + sigma * (1 + sigma**2).rsqrt() * out)
        return torch.cat(parts, 1)

    def _errors(self, output: Tensor, clean: Tensor, x: Tensor, sigma: Tensor, frame: Frame) -> Tensor:
        """Squared error of the target or cross-entropy per number, shape ``(batch, numbers)``."""
        if self.prediction == "x0":
            return (output - clean) ** 2
        parts = []
        for k, slot in enumerate(frame.slots.values()):
            out, noisy, right = output[:, slot.numbers], x[:, slot.numbers], clean[:, slot.numbers]
            if self.prediction == "mixed" and slot.kind != "real":
                one_hot = right * self.scales[k] + self.offsets[k]
                logs = out.unflatten(1, (-1, slot.channels)).log_softmax(-1).flatten(1)
                parts.append(-slot.channels * one_hot * logs)
            else:
                target = ((1 + sigma**2) * right - noisy) * (1 + sigma**2).rsqrt() / sigma
                parts.append((out - target) ** 2)
        return torch.cat(parts, 1)

    def estimator(self, condition: Condition) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function ``(x, sigma) -> x0`` for samplers, including those of other libraries.

        With self-conditioning the function stores the state of its last call; use a new one for each draw.

        Args:
            condition: evidence for the samples.
        """
        memory: Tensor | None = None

        def estimate(x: Tensor, sigma: Tensor) -> Tensor:
            nonlocal memory
            x0, memory = self.denoise_step(x, sigma, condition, memory)
            return x0

        return estimate

    @torch.no_grad()
    def sample(
        self,
        given: Given | None = None,
        count: int = 1,
        *,
        steps: int = 100,
        sampler: str = "dpm-solver",
        spacing: Spacing = "log-snr",
        seed: int | Sequence[int] | None = None,
        verify: bool = False,
        tries: int = 1,
        at_once: int = 1024,
        trace: Trace | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Samples:
        """Sample all variables that are not given.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: number of samples.
            steps: number of denoising steps; "heun" evaluates the network twice per step.
            sampler: name of a sampler in ``unn.diffusion.SAMPLERS``. With an exact denoiser all of
                them converge to the right distribution as steps grow; the default is within 5% of
                every standard deviation with 20 steps. "churn" gives too sharp samples when steps
                are few.
            spacing: spacing of the noise levels: "log-snr", even in log-SNR over the range of the
                schedule; "schedule", the schedule's own; or "restarts", as in
                ``restarting_levels``, which gives too sharp samples when steps are few but corrects
                samples that violate a constraint.
            seed: seed for all samples, or one seed per sample, so that a sample does not depend on the
                rest of the batch; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: maximum number of attempts per sample; more than 1 needs ``verify``.
            at_once: batch size.
            trace: callback after each step with its number and the current values by variable, shape
                ``(batch, *axes)``; values of categories are continuous.
            sizes: sizes of the axes without a static size.

        Raises:
            DeclarationError: for an unknown sampler or spacing; for steps, count or tries below 1;
                for ``verify`` on a graph without constraints, and ``tries`` without ``verify``.
            ObservationError: for values that do not fit the graph.
        """
        if sampler not in SAMPLERS:
            raise DeclarationError(f"diffusion: unknown sampler {sampler!r}.{suggest(sampler, SAMPLERS)}")
        if spacing not in SPACINGS:
            raise DeclarationError(f"diffusion: unknown spacing {spacing!r}.{suggest(spacing, SPACINGS)}")
        check_counts("sampling", count=count, tries=tries, at_once=at_once)
        condition = self.condition(given or {}, count, **(sizes or {}))
        schedules = [levels.to(condition.rows) for levels in self._level_schedules(spacing, steps)]
        generators = generators_of(seed, count)
        training = self.training
        self.eval()

        def draw(batch: Condition, batch_generators: list[torch.Generator] | None) -> Tensor:
            return self._draw(batch, schedules, sampler, batch_generators, trace)

        try:
            return sample_with_retries(self, condition, given or {}, draw, generators, verify, tries, at_once)
        finally:
            self.train(training)

    def _level_schedules(self, spacing: str, steps: int) -> list[Tensor]:
        if spacing == "restarts":
            return restarting_levels(self.schedule, steps)
        return [log_snr_levels(self.schedule, steps) if spacing == "log-snr" else self.schedule.levels(steps)]

    def _draw(
        self, condition: Condition, schedules: Sequence[Tensor], sampler: str,
        generators: list[torch.Generator] | None, trace: Trace | None,
    ) -> Tensor:
        shape = condition.rows.shape
        like = condition.rows

        def noise() -> Tensor:
            if generators is None:
                return torch.randn_like(like)
            return torch.stack([torch.randn(shape[1], generator=g) for g in generators]).to(like)

        def callback(step: int, x: Tensor, x0: Tensor) -> None:
            if trace is not None:
                rows = torch.where(condition.numbers, condition.rows, x)
                trace(step, self._continuous_values(rows, condition.frame))

        start = (1 + schedules[0][0] ** 2).sqrt() * noise()
        rows = restarted(SAMPLERS[sampler], self.estimator(condition), start, schedules, noise, callback)
        return torch.where(condition.numbers, condition.rows, rows)

    def _continuous_values(self, rows: Tensor, frame: Frame) -> dict[str, Tensor]:
        """Values by variable on their natural scale, without rounding discrete ones."""
        natural = self._natural(rows, frame).cpu()
        values = {}
        for name, slot in frame.slots.items():
            x = natural[:, slot.numbers].unflatten(1, (-1, slot.channels))
            values[name] = (x[..., 1] if slot.kind == "binary" else x).reshape(len(rows), *slot.shape)
        return values


def check_counts(where: str, **counts: int) -> None:
    """Check that counts are integers >= 1.

    Args:
        where: caller, for the message.
        counts: counts by name.

    Raises:
        DeclarationError: for the first count that is not an integer >= 1.
    """
    for name, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DeclarationError(f"{where}: {name} must be a whole number >= 1, got {number!r}.")


def generators_of(seed: int | Sequence[int] | None, count: int) -> list[torch.Generator] | None:
    """One generator per sample, from a single seed or one seed per sample; None for torch's global generator.

    Raises:
        ObservationError: if the number of seeds is not ``count``.
    """
    if seed is None:
        return None
    if not isinstance(seed, Sequence):
        seeds = [seed_of(_check_seed(seed), k) for k in range(count)]
    else:
        seeds = [_check_seed(k) for k in seed]
        if len(seeds) != count:
            raise ObservationError(f"sampling: {len(seeds)} seeds are given for {count} samples.")
    return [torch.Generator().manual_seed(k) for k in seeds]


def _check_seed(seed: int) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise DeclarationError(f"sampling: a seed is a whole number from 0 to 2**63 - 1, got {seed!r}.")
    return number


def _check_verification(graph: Declaration, verify: bool, tries: int) -> None:
    if verify and not graph.constraints:
        raise DeclarationError(
            f"sampling: verify=True, but graph {graph.name!r} has no constraint to verify; declare one, such as factors.Cardinality, "
            "or leave out verify."
        )
    if tries > 1 and not verify:
        raise DeclarationError(
            f"sampling: tries={tries} resamples what violates a constraint, which needs verify=True."
        )


def sample_with_retries(
    model: ConditionalModel,
    condition: Condition,
    given: Given,
    draw: Callable[[Condition, list[torch.Generator] | None], Tensor],
    generators: list[torch.Generator] | None,
    verify: bool,
    tries: int,
    at_once: int,
) -> Samples:
    """Draw samples in batches of ``at_once``; with ``verify``, resample those that violate a constraint.

    Each sample is drawn at most ``tries`` times.

    Raises:
        DeclarationError: for ``verify`` on a graph without constraints, or ``tries`` > 1 without ``verify``.
    """
    _check_verification(model.frames.graph, verify, tries)
    count = len(condition.rows)
    rows = torch.zeros_like(condition.rows)

    def fill(indices: Tensor) -> None:
        for batch in indices.split(at_once):
            batch_generators = [generators[int(k)] for k in batch] if generators else None
            # with a seed, results must not depend on the process, not even by rounding
            with reproducible(batch_generators is not None):
                rows[batch] = draw(condition.some(batch), batch_generators)

    fill(torch.arange(count, device=rows.device))
    values = model.values_of(rows, condition, given)
    attempts = torch.ones(count, dtype=torch.int64)
    if not verify:
        return Samples(values, None, attempts)
    valid = model.valid(values)
    for _ in range(tries - 1):
        invalid = (~valid).nonzero().squeeze(1)
        if not len(invalid):
            break
        fill(invalid.to(rows.device))
        attempts[invalid] += 1
        values = model.values_of(rows, condition, given)
        valid = model.valid(values)
    return Samples(values, valid, attempts)
