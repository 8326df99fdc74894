"""Training a model of a graph on generated samples, and evaluating it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unn import Partial
from unn.calibration import Calibration, calibrate_discrete, calibrate_real, summary
from unn.diffusion import Diffusion, LinearSteps, LogNormal, LogUniform, MaskedDiffusion, Samples, Schedule
from unn.diffusion.baselines import VAEAC, Regressor
from unn.diffusion.diffusion import Spacing, Trace
from unn.factor_graph import FactorGraph
from unn.networks import Denoiser
from unn.networks.tokens import Frames, Given, Slot
from unn.ops.seeds import seed_of
from unn.training import Examples, Task

from .config import ModelConfig

if TYPE_CHECKING:
    from .problem import DenoisingProblem

Example = tuple[dict[str, int], dict[str, Tensor], dict[str, Tensor]]
"""Sizes, values and observation masks."""


_DRAWS = 32
"""Number of samples per example in simulation-based calibration."""

_MOST_EXAMPLES, _FEWEST_EXAMPLES = 256, 8
"""Bounds of the number of examples in simulation-based calibration."""

_MOST_NODES, _MOST_NODES_IN_TRAINING = 50_000, 8_000
"""Maximum total number of nodes in calibration, which bounds its run time."""

Model = Diffusion | MaskedDiffusion | Regressor | VAEAC
"""Models that ``ModelConfig`` can describe."""


def build(graph: FactorGraph, model: ModelConfig, sizes: Mapping[str, int]) -> Model:
    """Build the configured model with initial weights.

    Args:
        graph: declared graph.
        model: model options.
        sizes: sizes of dynamic axes, used to choose the depth.
    """
    if model.process == "vaeac":
        return VAEAC(graph, width=model.width, depth=model.depth or 3, latent=model.width, sizes=sizes)
    denoiser = Denoiser(
        graph,
        width=model.width,
        depth=model.depth or None,
        heads=model.heads,
        embedding=model.embedding,
        global_token=model.global_token,
        structure=model.structure,
        self_conditioning=model.self_conditioning if model.process == "gaussian" else "none",
        sizes=sizes,
    )
    if model.process == "masked":
        return MaskedDiffusion(denoiser)
    if model.process == "regressor":
        return Regressor(denoiser)
    return Diffusion(denoiser, schedule=_schedule(model), prediction=model.prediction, passes=model.passes)


def _schedule(model: ModelConfig) -> Schedule:
    if model.noise == "linear":
        return LinearSteps(last=model.last_beta)
    return LogUniform() if model.noise == "log-uniform" else LogNormal()


class GeneratedExamples(Examples):
    """Samples generated during training, as an infinite stream or as a fixed set.

    Args:
        problem: problem that generates the samples.
        config: configuration of the run.
        count: number of samples in the fixed set; 0 for a stream.
    """

    def __init__(self, problem: DenoisingProblem, config: Any, count: int) -> None:
        self.problem, self.config, self.count = problem, config, count
        self.samples: dict[str, Tensor] | None = None
        if count:
            generator = torch.Generator().manual_seed(seed_of(config.training.seed, 5))
            self.samples = problem.generate(config, count, generator, problem.test_sizes(config))

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor, generator: torch.Generator) -> Example:
        """Samples, one per index, with their observation masks."""
        if self.samples is None:
            sizes = self.problem.sizes(self.config, generator) or self.problem.test_sizes(self.config)
            return sizes, *self.problem.examples(self.config, len(indices), generator, sizes)
        sizes = self.problem.test_sizes(self.config)
        values = {name: x[indices] for name, x in self.samples.items()}
        return sizes, values, self.problem.observed(self.config, len(indices), generator, sizes)


class DenoisingTask(Task):
    """Loss of a conditional model, and the problem's metrics of its samples.

    Args:
        problem: problem that generates samples.
        config: configuration of the run.
    """

    def __init__(self, problem: DenoisingProblem, config: Any) -> None:
        self.problem, self.config = problem, config

    def examples(self) -> GeneratedExamples:
        """Generated samples."""
        return GeneratedExamples(self.problem, self.config, getattr(self.config, "examples", 0))

    def loss(self, network: nn.Module, batch: Example) -> Tensor:
        """Loss of the model; for a diffusion, the mean squared error of the estimates."""
        assert isinstance(network, Model)
        sizes, values, observed = batch
        return network.loss(values, observed, **sizes)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """The problem's metrics of samples on held-out conditions."""
        return measure(self.problem, self.config, network, 64, 0, Sampling.of(self.config.model), _MOST_NODES_IN_TRAINING)


@dataclass(frozen=True)
class Sampling:
    """Sampling options of a trained model.

    Attributes:
        steps: number of denoising steps.
        sampler: sampler for Gaussian noise.
        spacing: spacing of noise levels.
        tries: maximum number of attempts per sample to satisfy the constraints.
        at_once: number of samples in memory at a time.
    """

    steps: int
    sampler: str
    spacing: Spacing
    tries: int = 1
    at_once: int = 256

    @classmethod
    def of(cls, model: ModelConfig, sampler: str | None = None, spacing: Any = None, tries: int = 1, at_once: int = 256) -> Sampling:
        """Options of a model, unless overridden."""
        return cls(model.sampling_steps, sampler or model.sampler, spacing or model.spacing, tries, at_once)


def draw(
    network: nn.Module,
    sampling: Sampling,
    given: Given,
    count: int,
    sizes: Mapping[str, int],
    seed: int | None = None,
    verify: bool = False,
    trace: Trace | None = None,
) -> Samples:
    """Sample from a trained model.

    Args:
        network: trained model.
        sampling: sampling options.
        given: full or partial evidence by variable.
        count: number of samples.
        sizes: sizes of dynamic axes.
        seed: seed of all samples; None uses torch's global generator.
        verify: check the constraints of the graph.
        trace: called after each step with its number and the values; for Gaussian noise only.
    """
    steps, tries, at_once = sampling.steps, sampling.tries, sampling.at_once
    if isinstance(network, Regressor):
        # deterministic, so further tries would give the same result
        return network.sample(given, count, verify=verify, at_once=at_once, sizes=sizes)
    if isinstance(network, VAEAC):
        return network.sample(given, count, seed=seed, verify=verify, tries=tries, at_once=at_once, sizes=sizes)
    if isinstance(network, MaskedDiffusion):
        return network.sample(given, count, steps=steps, seed=seed, verify=verify, tries=tries, at_once=at_once, sizes=sizes)
    assert isinstance(network, Diffusion)
    return network.sample(
        given, count, steps=steps, sampler=sampling.sampler, spacing=sampling.spacing, seed=seed, verify=verify, tries=tries,
        at_once=at_once, trace=trace, sizes=sizes,
    )  # fmt: skip


def has_constraints(graph: FactorGraph) -> bool:
    """Whether the graph has constraints that a sample can violate."""
    return bool(graph.constraints)


@torch.no_grad()
def measure(
    problem: DenoisingProblem, config: Any, network: nn.Module, count: int, seed: int, sampling: Sampling, most: int = _MOST_NODES
) -> dict[str, float]:
    """Metrics of a problem on its test conditions, and calibration of the sample distribution.

    Args:
        problem: problem that defines the metrics.
        config: configuration of the run.
        network: trained model.
        count: number of conditions, with one sample each.
        seed: seed of conditions and samples.
        sampling: sampling options; with more than one try, their average number is also a metric.
        most: see ``calibrations``.
    """
    figures: dict[str, float] = {}
    for name, given in _conditions(problem, config, count, seed).items():
        samples = draw(network, sampling, given, count, problem.test_sizes(config), seed=seed, verify=sampling.tries > 1)
        figures |= _measures(problem, config, name, given, samples.values)
        if sampling.tries > 1:
            figures |= _add_condition({"tries": float(samples.tries.float().mean())}, name)
    return figures | summary(calibrations(problem, config, network, seed, sampling, most))


@torch.no_grad()
def calibrations(
    problem: DenoisingProblem, config: Any, network: nn.Module, seed: int, sampling: Sampling, most: int = _MOST_NODES
) -> dict[str, Calibration]:
    """Simulation-based calibration of the variables that the problem compares, by name.

    Examples are drawn from the problem, observed as in training, and each is sampled several times.

    Args:
        problem: problem that generates examples.
        config: configuration of the run.
        network: trained model.
        seed: seed of examples and samples.
        sampling: sampling options; samples that violate constraints are included.
        most: maximum total number of nodes of all samples, which bounds the number of examples.
    """
    names = problem.compared_variables(config)
    if not names:
        return {}
    sizes = problem.test_sizes(config)
    generator = torch.Generator().manual_seed(seed_of(seed, 7))
    graph = problem.graph(network)
    frame = Frames(graph).at(**sizes)
    count = min(_MOST_EXAMPLES, max(_FEWEST_EXAMPLES, most // (_DRAWS * frame.nodes)))
    truth = problem.generate(config, count, generator, sizes)
    observed = problem.observed(config, count, generator, sizes)
    given = {name: Partial(_repeat(truth[name]), _repeat(_mask(mask, truth[name]))) for name, mask in observed.items()}
    once = replace(sampling, tries=1)
    samples = draw(network, once, given, count * _DRAWS, sizes, seed=seed).values
    compared: dict[str, Calibration] = {}
    for name in names:
        slot = frame.slots[name]
        nodes = slot.nodes.stop - slot.nodes.start
        unobserved = torch.ones(count, nodes, dtype=torch.bool)
        if name in observed:
            unobserved = ~_mask(observed[name], truth[name]).reshape(count, nodes)
        if not bool(unobserved.any()):
            continue
        true, drawn = (_numbers(x[name], slot) for x in (truth, samples))
        drawn = drawn.unflatten(0, (count, _DRAWS))
        if slot.kind == "real":
            unobserved = unobserved.repeat_interleave(slot.channels, 1)
            compared[name] = calibrate_real(true, drawn, unobserved, generator)
        else:
            compared[name] = calibrate_discrete(true, drawn, unobserved, slot.channels, generator)
    return compared


def _repeat(x: Tensor) -> Tensor:
    return x.repeat_interleave(_DRAWS, 0)


def _mask(mask: Tensor, values: Tensor) -> Tensor:
    """Expand an observation mask to ``(batch, *node axes)``."""
    return mask.expand(len(values), *values.shape[1 : mask.ndim])


def _numbers(values: Tensor, slot: Slot) -> Tensor:
    """Values as real numbers or category indices, ``(batch, nodes)``; features of a real node count as nodes."""
    return (values if slot.kind != "category" else values.argmax(-1)).reshape(len(values), -1)


def measure_untrained(problem: DenoisingProblem, config: Any, count: int, seed: int, chain_steps: int) -> dict[str, dict[str, float]]:
    """Metrics of training-free methods, by method; empty if there are none.

    Args:
        problem: problem that defines methods and metrics.
        config: configuration of a run.
        count: number of conditions.
        seed: seed of the conditions.
        chain_steps: number of steps of each Markov chain.
    """
    metrics: dict[str, dict[str, float]] = {}
    for name, given in _conditions(problem, config, count, seed).items():
        for method, values in problem.untrained(config, given, count, chain_steps).items():
            metrics.setdefault(method, {}).update(_measures(problem, config, name, given, values))
    return metrics


def _conditions(problem: DenoisingProblem, config: Any, count: int, seed: int) -> dict[str, Given]:
    return problem.conditions(config, count, torch.Generator().manual_seed(seed_of(seed, 6)))


def _measures(problem: DenoisingProblem, config: Any, name: str, given: Given, values: Mapping[str, Tensor]) -> dict[str, float]:
    return _add_condition(problem.measures(config, given, values), name)


def _add_condition(measures: Mapping[str, float], condition: str) -> dict[str, float]:
    """Append the name of the condition to the names of metrics."""
    return {f"{metric} {condition}".strip().replace(" ", "_"): value for metric, value in measures.items()}
