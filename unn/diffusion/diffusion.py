"""Diffusion model of the variables of a graph, conditional on any subset of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..engine import SamplingOptions
from ..errors import ArgumentError, suggest
from ..networks.denoiser import Denoiser
from ..networks.tokens import Frame
from ..no_gradients import no_gradients
from ..ops.seeds import generator_for
from .conditional import Condition, ConditionalModel, Trace
from .coordinates import CoordinateName
from .density import flow_log_density
from .preconditioning import (
    MOST_NUMBERS,
    PRECONDITIONINGS,
    LinearEstimate,
    LinearPreconditioner,
    PreconditioningName,
    number_permutations,
    scalar_estimate,
    static_numbers,
)
from .samplers import SAMPLERS, restart_sampling
from .sampling import DrawRows, check_counts
from .schedule import LogNormal, Schedule, log_snr_levels, restarting_levels

Prediction = Literal["mixed", "x0", "velocity"]
PREDICTIONS = ("mixed", "x0", "velocity")
Spacing = Literal["log-snr", "schedule", "restarts"]
SPACINGS = ("log-snr", "schedule", "restarts")

_FINENESS = 0.1
"""Smallest level of noise in sampling, in the narrowest conditional deviation: 0.5% of it is lost."""

_PREPARED = 50_000
"""Examples of an endless stream from which the moments of linear preconditioning are estimated. A small error
of a mean in deviations of the variable is a larger one in those of a narrow conditional."""


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
        coordinates: numbers of continuous variables that are diffused, as for ``ConditionalModel``.
        preconditioning: estimate of continuous values to which the network adds a correction, in units of
            its error. "scalar": the best estimate of each from its own noisy value, for data of unit variance
            (Karras et al., 2022, Table 1). "linear": the best linear estimate from all noisy values and the
            evidence, by the mean and the covariance that ``standardise`` sets, so that the network has only
            to learn how the data differ from a Gaussian distribution; for static sizes. "auto" (default):
            "linear" for at most 64 numbers of static size.

    Attributes:
        linear: moments for "linear" preconditioning, which is "scalar" until ``standardise`` receives at
            least ten samples for each number; None for "scalar".
    """

    has_steps = True

    def __init__(
        self,
        denoiser: Denoiser,
        *,
        schedule: Schedule | None = None,
        prediction: Prediction = "mixed",
        passes: int = 1,
        coordinates: CoordinateName = "auto",
        preconditioning: PreconditioningName = "auto",
    ) -> None:
        super().__init__(denoiser.frames, coordinates)
        self.denoiser = denoiser
        if prediction not in PREDICTIONS:
            raise ArgumentError(
                f"diffusion: unknown prediction {prediction!r}.{suggest(str(prediction), PREDICTIONS)}"
            )
        check_counts("diffusion", passes=passes)
        self.schedule = schedule or LogNormal()
        self.prediction = prediction
        self.passes = passes
        self.sampling = SamplingOptions(steps=100, sampler="dpm-solver", spacing="log-snr")
        self.linear: LinearPreconditioner | None = None
        if self._is_linear(preconditioning):
            self.linear = LinearPreconditioner(self.frames, denoiser.width)
            self.prepared_examples = max(_PREPARED, self.linear.samples)

    def _is_linear(self, preconditioning: str) -> bool:
        if preconditioning not in PRECONDITIONINGS:
            raise ArgumentError(
                f"diffusion: unknown preconditioning "
                f"{preconditioning!r}.{suggest(preconditioning, PRECONDITIONINGS)}"
            )
        if preconditioning == "scalar":
            return False
        numbers = static_numbers(self.frames)
        is_served = self.prediction != "x0" and "real" in self.frames.kinds.values()
        if preconditioning == "auto":
            return is_served and numbers is not None and numbers <= MOST_NUMBERS
        if not is_served or numbers is None:
            raise ArgumentError(
                "diffusion: linear preconditioning needs continuous variables, static sizes and a prediction "
                'other than "x0"; leave out preconditioning.'
            )
        return True

    @property
    def sampling_schedule(self) -> Schedule:
        """The schedule in sampling: with a lower smallest level where a number is narrow given all others.

        The last step returns the mean of what a noisy value may have been, so that deviations below the
        smallest level would be lost. Without linear preconditioning they are not measured.
        """
        if self.linear is None:
            return self.schedule
        frame = self.frames.at()
        real = torch.zeros(frame.numbers, dtype=torch.bool)
        for slot in frame.slots.values():
            real[slot.numbers] = slot.kind == "real"
        return self.schedule.reaching(_FINENESS * self.linear.narrowest(real))

    @torch.no_grad()
    def standardise(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """As of ``ConditionalModel``, and the moments of linear preconditioning."""
        super().standardise(values, **sizes)
        if self.linear is None:
            return
        frame = self.frames.of(values, sizes)
        # a generator of its own, as for scales
        generator = torch.Generator().manual_seed(0)
        rows = self._standard(frame.flatten(values), frame, noisy=True, generator=generator)
        self.linear.standardise(rows, number_permutations(frame, self.denoiser.shared_symmetries(frame)))

    def loss(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> Tensor:
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
        base = self._base(noisy, sigma, condition)
        output, _ = self._output(noisy, sigma, condition, memory, base)
        return self.mean_over_unknown(self._errors(output, clean, base, condition.frame), condition)

    @no_gradients()
    def _simulate_self_conditioning(self, noisy: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Self-conditioning state after ``passes`` passes for half of the examples, fewer for the others.

        Self-conditioning is recursive in sampling; training with a single pass does not prepare the
        network for it. The other examples have 0 to ``passes - 1`` passes with equal probability.
        """
        frame = condition.frame
        shape = (
            (frame.nodes, self.denoiser.width)
            if self.denoiser.self_conditioning == "tokens"
            else (frame.numbers,)
        )
        memory = noisy.new_zeros(len(noisy), *shape)
        passes = torch.randint(2 * self.passes, (len(noisy),), device=noisy.device).clamp(max=self.passes)
        for done in range(self.passes):
            active = (passes > done).nonzero().squeeze(1)
            if not len(active):
                break
            _, state = self.denoise_step(
                noisy[active], sigma[active], condition.select(active), memory[active]
            )
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
        # one level of all rows stays one, whose embedding is computed once
        sigma = sigma.to(x).reshape(-1)
        base = self._base(x, sigma, condition)
        output, tokens = self._output(x, sigma, condition, memory, base)
        estimate = torch.where(
            condition.numbers, condition.rows, self._estimate(output, base, condition.frame)
        )
        return estimate, {"tokens": tokens, "estimate": estimate, "none": None}[
            self.denoiser.self_conditioning
        ]

    def _output(
        self, x: Tensor, sigma: Tensor, condition: Condition, memory: Tensor | None, base: LinearEstimate
    ) -> tuple[Tensor, Tensor]:
        """The network's output, shape ``(batch, numbers)``, and its tokens, shape ``(batch, nodes,
        width)``."""
        inputs = torch.where(condition.numbers, condition.rows, (1 + sigma[:, None] ** 2).rsqrt() * x)
        # training has hardly any level below the least one of its schedule
        level = (sigma if self.training else sigma.clamp(min=self.schedule.least)).log() / 4
        frame = condition.frame
        added = None
        if self.linear is not None:
            added = self.denoiser.embed(self.linear.innovations, base.innovation, frame)
        tokens = self.denoiser.tokens(inputs, level, condition.nodes, frame, memory, added)
        return self.denoiser.estimate(tokens, frame), tokens

    def _base(self, x: Tensor, sigma: Tensor, condition: Condition) -> LinearEstimate:
        """The estimate that the network corrects."""
        if self.linear is None:
            return scalar_estimate(x, sigma)
        rows = torch.where(condition.numbers, condition.rows, x)
        noise = torch.where(condition.numbers, 0.0, sigma[:, None].double() ** 2)
        # the rows of a sampler have the same evidence and level, so that one factorisation serves them all
        if not self.training and bool((noise == noise[:1]).all()):
            noise = noise[:1]
        base: LinearEstimate = self.linear(rows, noise)
        return base

    def _estimate(self, output: Tensor, base: LinearEstimate, frame: Frame) -> Tensor:
        """Convert the network's output to an estimate of the clean sample, shape ``(batch, numbers)``."""
        if self.prediction == "x0":
            return output
        parts = []
        for k, slot in enumerate(frame.slots.values()):
            out = output[:, slot.numbers]
            if self.prediction == "mixed" and slot.kind != "real":
                probabilities = out.unflatten(1, (-1, slot.channels)).softmax(-1).flatten(1)
                parts.append((probabilities - self.offsets[k]) / self.scales[k])
            else:
                parts.append(base.mean[:, slot.numbers] + base.deviation[:, slot.numbers] * out)
        return torch.cat(parts, 1)

    def _errors(self, output: Tensor, clean: Tensor, base: LinearEstimate, frame: Frame) -> Tensor:
        """Squared error of the target or cross-entropy per number, shape ``(batch, numbers)``."""
        if self.prediction == "x0":
            return (output - clean) ** 2
        parts = []
        for k, slot in enumerate(frame.slots.values()):
            out, right = output[:, slot.numbers], clean[:, slot.numbers]
            if self.prediction == "mixed" and slot.kind != "real":
                one_hot = right * self.scales[k] + self.offsets[k]
                logs = out.unflatten(1, (-1, slot.channels)).log_softmax(-1).flatten(1)
                parts.append(-slot.channels * one_hot * logs)
            else:
                target = (right - base.mean[:, slot.numbers]) / base.deviation[:, slot.numbers]
                parts.append((out - target) ** 2)
        return torch.cat(parts, 1)

    def log_prob(
        self,
        values: Mapping[str, Tensor],
        observed: Tensor | Mapping[str, Tensor] | None = None,
        *,
        steps: int = 100,
        probes: int = 0,
        seed: int | None = None,
        sizes: Mapping[str, int] | None = None,
        **named_sizes: int,
    ) -> Tensor:
        """Log-density of the unobserved variables given the observed ones, shape ``(batch,)``.

        It is that of the deterministic samplers, by the probability-flow ODE (Song et al., 2021), without
        self-conditioning. Evaluations of the network: four per step, each with a derivative for every
        unobserved number, or for every probe. Positive values nearer to zero than nearly all examples have
        the density of the nearest value that is not, since networks extrapolate their logarithms there.

        Args:
            values: values by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes as for ``loss``; None for none.
            steps: number of Runge-Kutta steps.
            probes: random vectors of Hutchinson's estimate of the divergence, which is unbiased for the
                logarithm; 0 computes it exactly.
            seed: seed of the probes; torch's global generator by default.
            sizes: sizes of the axes without a static size.
            named_sizes: such sizes by the names of axes, where these are none of the arguments above.

        Raises:
            ArgumentError: for unobserved discrete variables, counts or proportions, which have no density;
                for steps below 1 or probes below 0.
            ObservationError: for values or masks that do not fit the graph, or a seed that is none.
        """
        probing = generator_for("log_prob", None, seed)
        rows, exact, condition = self.rows_and_condition(
            values, {} if observed is None else observed, **(sizes or {}), **named_sizes
        )
        numbers, frame = condition.numbers, condition.frame
        within_reach = self._standard_evidence(rows, frame).to(exact)
        condition = replace(condition, rows=torch.where(numbers, within_reach, 0))
        one_sided = torch.zeros(frame.numbers, dtype=torch.bool, device=exact.device)
        for name, slot in frame.slots.items():
            own = self.coordinates[name].at(slot.shape, 0.0)
            one_sided[slot.numbers] = own.numbers_with_logarithms.to(exact.device)
        exact = torch.where(one_sided, within_reach, exact)
        rows = torch.where(one_sided, self._natural(exact, frame).to(rows), rows.to(exact.device))
        for name, slot in frame.slots.items():
            own = self.coordinates[name]
            if (slot.kind != "real" or own.whole or own.proportions) and not bool(
                numbers[:, slot.numbers].all()
            ):
                raise ArgumentError(
                    f"log_prob: variable {name!r} is not real, so it has no density here; observe it."
                )
        self.warn_of_larger_sizes(frame)
        levels = self.sampling_schedule.levels(2)
        training = self.training
        self.eval()
        try:
            density = flow_log_density(
                lambda x, sigma: self.denoise(x, sigma, condition),
                exact,
                ~numbers,
                float(levels[1]),
                float(levels[0]),
                steps,
                probes,
                probing,
            )
        finally:
            self.train(training)
        slopes = self._log_slopes(rows, frame).to(density)
        return density + torch.where(numbers, 0, slopes).sum(1)

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

    def drawing(self, options: SamplingOptions, trace: Trace | None) -> DrawRows:
        """Reverse diffusion, from noise to a sample."""
        sampler, spacing, steps = options.sampler, options.spacing, options.steps
        if sampler not in SAMPLERS:
            raise ArgumentError(f"diffusion: unknown sampler {sampler!r}.{suggest(str(sampler), SAMPLERS)}")
        if spacing not in SPACINGS:
            raise ArgumentError(f"diffusion: unknown spacing {spacing!r}.{suggest(str(spacing), SPACINGS)}")
        assert steps is not None
        schedules = self._level_schedules(spacing, steps)

        def draw(batch: Condition, generators: list[torch.Generator] | None) -> Tensor:
            return self._draw(
                batch, [levels.to(batch.rows) for levels in schedules], sampler, generators, trace
            )

        return draw

    def _level_schedules(self, spacing: str, steps: int) -> list[Tensor]:
        schedule = self.sampling_schedule
        if spacing == "restarts":
            return restarting_levels(schedule, steps)
        return [log_snr_levels(schedule, steps) if spacing == "log-snr" else schedule.levels(steps)]

    def _draw(
        self,
        condition: Condition,
        schedules: Sequence[Tensor],
        sampler: str,
        generators: list[torch.Generator] | None,
        trace: Trace | None,
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
        rows = restart_sampling(
            SAMPLERS[sampler], self.estimator(condition), start, schedules, noise, callback
        )
        return torch.where(condition.numbers, condition.rows, rows)

    def _continuous_values(self, rows: Tensor, frame: Frame) -> dict[str, Tensor]:
        """Values by variable on their natural scale, without rounding discrete ones."""
        natural = self._natural(rows, frame).cpu()
        values = {}
        for name, slot in frame.slots.items():
            x = natural[:, slot.numbers].unflatten(1, (-1, slot.channels))
            values[name] = (x[..., 1] if slot.kind == "binary" else x).reshape(len(rows), *slot.shape)
        return values
