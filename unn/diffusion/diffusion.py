"""A diffusion model of the values of a graph, conditional on any subset of them."""

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
    """A diffusion model: a denoiser, levels of noise, and what the denoiser predicts.

    Args:
        denoiser: of a graph; its ``self_conditioning`` says what of each estimate is fed back to the next.
        schedule: of the noise; ``LogNormal()`` by default.
        prediction: what the network's output means. "mixed" (default): velocity for continuous variables; for binary variables and categories the
            log-odds of the options, trained by cross-entropy. "x0": the clean sample for all of them (the paper's). "velocity": for all of them.
        passes: with self-conditioning, how many estimates of an example training makes before the one that counts, each told of the one before: so
            many for half of the examples, fewer for the others.
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
        """The mean squared error of the estimates at the nodes that are not observed (structured-diffusion paper, equation 4), a scalar.

        Draws from torch's global generator.

        Args:
            values: samples, by variable, shape ``(batch, *axes)``.
            observed: which nodes the network is given, shape ``(batch, nodes)``, boolean; or by variable, shape ``(batch, *node axes)``.
            sizes: of the axes without a static one.
        """
        clean, condition = self.example(values, observed, **sizes)
        sigma = self.schedule.draw(len(clean)).to(clean)
        noisy = clean + sigma[:, None] * torch.randn_like(clean)
        memory = None if self.denoiser.self_conditioning == "none" else self._rehearsed(noisy, sigma, condition)
        output, _ = self._output(noisy, sigma, condition, memory)
        return self.mean_over_unknown(self._errors(output, clean, noisy, sigma[:, None], condition.frame), condition)

    @torch.no_grad()
    def _rehearsed(self, noisy: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """What earlier estimates have left: ``passes`` of them for half of the examples, for the others fewer, each number as often.

        In sampling nearly all estimates have many before them; a network that was told of one alone in training makes little of more.
        """
        frame = condition.frame
        shape = (frame.nodes, self.denoiser.width) if self.denoiser.self_conditioning == "tokens" else (frame.numbers,)
        memory = noisy.new_zeros(len(noisy), *shape)
        passes = torch.randint(2 * self.passes, (len(noisy),), device=noisy.device).clamp(max=self.passes)
        for done in range(self.passes):
            again = (passes > done).nonzero().squeeze(1)
            if not len(again):
                break
            _, left = self.recall(noisy[again], sigma[again], condition.some(again), memory[again])
            assert left is not None
            memory[again] = left.to(memory)
        return memory

    def denoise(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """The estimate of the clean sample, shape ``(batch, numbers)``, with the known values in their place, and nothing fed back.

        Args:
            x: standardised values plus sigma times Gaussian noise, shape ``(batch, numbers)``.
            sigma: level of noise, shape ``(batch,)`` or ``()``.
            condition: what is known.
        """
        return self.recall(x, sigma, condition)[0]

    def recall(self, x: Tensor, sigma: Tensor, condition: Condition, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The same, told what an earlier estimate has left, and what this one leaves; None without self-conditioning.

        Args:
            x, sigma, condition: as for ``denoise``.
            memory: what an earlier call has left; None for the first.
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
        """The clean sample that an output means, shape ``(batch, numbers)``."""
        if self.prediction == "x0":
            return output
        parts = []
        for k, slot in enumerate(frame.slots.values()):
            out, noisy = output[:, slot.numbers], x[:, slot.numbers]
            if self.prediction == "mixed" and slot.kind != "real":
                shares = out.unflatten(1, (-1, slot.channels)).softmax(-1).flatten(1)
                parts.append((shares - self.offsets[k]) / self.scales[k])
            else:
                # c_skip and c_out of Karras et al. (2022), Table 1, for data of unit variance; v of Salimans and Ho (2022)
                parts.append(noisy / (1 + sigma**2) + sigma * (1 + sigma**2).rsqrt() * out)
        return torch.cat(parts, 1)

    def _errors(self, output: Tensor, clean: Tensor, x: Tensor, sigma: Tensor, frame: Frame) -> Tensor:
        """What training minimises, of each number, shape ``(batch, numbers)``: squared errors of the network's target, or cross-entropies."""
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
        """The function ``(x, sigma) -> x0`` that samplers need, those of other libraries too.

        With self-conditioning it remembers its last call, so that each draw needs a new one.

        Args:
            condition: what is known of the samples.
        """
        memory: Tensor | None = None

        def estimate(x: Tensor, sigma: Tensor) -> Tensor:
            nonlocal memory
            found, memory = self.recall(x, sigma, condition, memory)
            return found

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
            given: by variable, whole or in part; a batch axis of 1 is repeated.
            count: of samples.
            steps: estimates of the network, twice as many for "heun".
            sampler: see ``unn.diffusion.SAMPLERS``. With an exact denoiser each of them has the right distribution as steps grow; the default is
                within 5% of every standard deviation with 20 steps. "churn" sharpens when steps are few.
            spacing: of the levels of noise: even in the log-SNR over the range of the schedule, the schedule's own, or "restarts", as in
                ``restarting_levels``, which sharpens when steps are few and mends samples that break a constraint.
            seed: of all samples together, or one for each, which then depends on nothing else; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: attempts per sample until it meets the constraints; needs ``verify``.
            at_once: samples in memory at a time.
            trace: called after each step with its number and the values, by variable, shape ``(batch, *axes)``; continuous ones of categories too.
            sizes: of the axes without a static one.

        Raises:
            DeclarationError: for an unknown sampler or spacing; for steps, count or tries below 1; for ``verify`` where the graph has no constraint,
                and ``tries`` without ``verify``.
            ObservationError: for values that do not fit the graph.
        """
        if sampler not in SAMPLERS:
            raise DeclarationError(f"diffusion: unknown sampler {sampler!r}.{suggest(sampler, SAMPLERS)}")
        if spacing not in SPACINGS:
            raise DeclarationError(f"diffusion: unknown spacing {spacing!r}.{suggest(spacing, SPACINGS)}")
        check_counts("sampling", count=count, tries=tries, at_once=at_once)
        condition = self.condition(given or {}, count, **(sizes or {}))
        falls = [levels.to(condition.rows) for levels in self._falls(spacing, steps)]
        generators = generators_of(seed, count)
        training = self.training
        self.eval()

        def draw(held: Condition, some: list[torch.Generator] | None) -> Tensor:
            return self._draw(held, falls, sampler, some, trace)

        try:
            return tried_again(self, condition, given or {}, draw, generators, verify, tries, at_once)
        finally:
            self.train(training)

    def _falls(self, spacing: str, steps: int) -> list[Tensor]:
        if spacing == "restarts":
            return restarting_levels(self.schedule, steps)
        return [log_snr_levels(self.schedule, steps) if spacing == "log-snr" else self.schedule.levels(steps)]

    def _draw(
        self, condition: Condition, falls: Sequence[Tensor], sampler: str, generators: list[torch.Generator] | None, trace: Trace | None
    ) -> Tensor:
        shape = condition.rows.shape
        like = condition.rows

        def noise() -> Tensor:
            if generators is None:
                return torch.randn_like(like)
            return torch.stack([torch.randn(shape[1], generator=g) for g in generators]).to(like)

        def look(step: int, x: Tensor, x0: Tensor) -> None:
            if trace is not None:
                trace(step, self._raw(torch.where(condition.numbers, condition.rows, x), condition.frame))

        start = (1 + falls[0][0] ** 2).sqrt() * noise()
        return torch.where(condition.numbers, condition.rows, restarted(SAMPLERS[sampler], self.estimator(condition), start, falls, noise, look))

    def _raw(self, rows: Tensor, frame: Frame) -> dict[str, Tensor]:
        natural = self._natural(rows, frame).cpu()
        found = {}
        for name, slot in frame.slots.items():
            x = natural[:, slot.numbers].unflatten(1, (-1, slot.channels))
            found[name] = (x[..., 1] if slot.kind == "binary" else x).reshape(len(rows), *slot.shape)
        return found


def check_counts(where: str, **counts: int) -> None:
    """Check numbers of samples and the like.

    Args:
        where: they are counted, for the message.
        counts: by name.

    Raises:
        DeclarationError: names the first that is no whole number >= 1.
    """
    for name, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DeclarationError(f"{where}: {name} must be a whole number >= 1, got {number!r}.")


def generators_of(seed: int | Sequence[int] | None, count: int) -> list[torch.Generator] | None:
    """A generator for each sample, from one seed for all or one for each; None where torch's global generator is to be used.

    Raises:
        ObservationError: if there is not one seed for each sample.
    """
    if seed is None:
        return None
    if not isinstance(seed, Sequence):
        seeds = [seed_of(_checked(seed), k) for k in range(count)]
    else:
        seeds = [_checked(k) for k in seed]
        if len(seeds) != count:
            raise ObservationError(f"sampling: {len(seeds)} seeds are given for {count} samples.")
    return [torch.Generator().manual_seed(k) for k in seeds]


def _checked(seed: int) -> int:
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
        raise DeclarationError(f"sampling: tries={tries} draws samples again that break a constraint; that needs verify=True.")


def tried_again(
    model: ConditionalModel,
    condition: Condition,
    given: Given,
    draw: Callable[[Condition, list[torch.Generator] | None], Tensor],
    generators: list[torch.Generator] | None,
    verify: bool,
    tries: int,
    at_once: int,
) -> Samples:
    """Draw samples, ``at_once`` at a time; with ``verify``, draw those that break a constraint again, up to ``tries`` times in all.

    Raises:
        DeclarationError: if there is no constraint to verify, or several tries are asked for without ``verify``.
    """
    _check_verification(model.frames.graph, verify, tries)
    count = len(condition.rows)
    rows = torch.zeros_like(condition.rows)

    def fill(places: Tensor) -> None:
        for chosen in places.split(at_once):
            own = [generators[int(k)] for k in chosen] if generators else None
            # with a seed, not even rounding may depend on the process
            with reproducible(own is not None):
                rows[chosen] = draw(condition.some(chosen), own)

    fill(torch.arange(count, device=rows.device))
    values = model.values_of(rows, condition, given)
    tried = torch.ones(count, dtype=torch.int64)
    if not verify:
        return Samples(values, None, tried)
    valid = model.valid(values)
    for _ in range(tries - 1):
        again = (~valid).nonzero().squeeze(1)
        if not len(again):
            break
        fill(again.to(rows.device))
        tried[again] += 1
        values = model.values_of(rows, condition, given)
        valid = model.valid(values)
    return Samples(values, valid, tried)
