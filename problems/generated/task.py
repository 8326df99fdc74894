"""Training a model of a graph on generated samples, and measuring it."""

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
"""Sizes, values and which nodes are observed."""


_DRAWS = 32
"""Samples of each example in simulation-based calibration."""

_MOST_EXAMPLES, _FEWEST_EXAMPLES = 256, 8
"""In simulation-based calibration."""

_MOST_NODES, _MOST_NODES_IN_TRAINING = 50_000, 8_000
"""Nodes of all samples together there, which bounds the time that it takes."""

Model = Diffusion | MaskedDiffusion | Regressor | VAEAC
"""What the options of a problem can describe."""


def build(graph: FactorGraph, model: ModelConfig, sizes: Mapping[str, int]) -> Model:
    """The model that the options describe, with fresh weights.

    Args:
        graph: the declaration.
        model: the options.
        sizes: of the axes without a static one, at which the depth is found.
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
    """Samples made as training goes, a stream without an end; or so many, made once and shown again and again.

    Args:
        problem: that generates them.
        config: of the run.
        count: how many there are; 0 for a stream.
    """

    def __init__(self, problem: DenoisingProblem, config: Any, count: int) -> None:
        self.problem, self.config, self.count = problem, config, count
        self.kept: dict[str, Tensor] | None = None
        if count:
            generator = torch.Generator().manual_seed(seed_of(config.training.seed, 5))
            self.kept = problem.generate(config, count, generator, problem.test_sizes(config))

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor, generator: torch.Generator) -> Example:
        """As many samples as there are indices, with what is observed of each."""
        if self.kept is None:
            sizes = self.problem.sizes(self.config, generator) or self.problem.test_sizes(self.config)
            return sizes, *self.problem.examples(self.config, len(indices), generator, sizes)
        sizes = self.problem.test_sizes(self.config)
        values = {name: x[indices] for name, x in self.kept.items()}
        return sizes, values, self.problem.observed(self.config, len(indices), generator, sizes)


class DenoisingTask(Task):
    """The loss of a conditional model, and the problem's own metrics of its samples.

    Args:
        problem: that generates samples.
        config: of the run.
    """

    def __init__(self, problem: DenoisingProblem, config: Any) -> None:
        self.problem, self.config = problem, config

    def examples(self) -> GeneratedExamples:
        """Generated samples."""
        return GeneratedExamples(self.problem, self.config, getattr(self.config, "examples", 0))

    def loss(self, network: nn.Module, batch: Example) -> Tensor:
        """That of the model: of a diffusion the mean squared error of the estimates."""
        assert isinstance(network, Model)
        sizes, values, observed = batch
        return network.loss(values, observed, **sizes)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """The problem's metrics of samples on held-out conditions."""
        return measure(self.problem, self.config, network, 64, 0, Sampling.of(self.config.model), _MOST_NODES_IN_TRAINING)


@dataclass(frozen=True)
class Sampling:
    """How to draw samples by a trained model.

    Attributes:
        steps: denoising steps.
        sampler: of Gaussian noise.
        spacing: of its levels.
        tries: attempts per sample until it meets the constraints.
        at_once: samples in memory at a time.
    """

    steps: int
    sampler: str
    spacing: Spacing
    tries: int = 1
    at_once: int = 256

    @classmethod
    def of(cls, model: ModelConfig, sampler: str | None = None, spacing: Any = None, tries: int = 1, at_once: int = 256) -> Sampling:
        """The options of a model, where no others are given."""
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
    """Samples by a trained model.

    Args:
        network: trained.
        sampling: options.
        given: by variable, whole or in part.
        count: of samples.
        sizes: of the axes without a static one.
        seed: of all samples; None draws from torch's global generator.
        verify: check the constraints of the graph.
        trace: called after each step with its number and the values; Gaussian noise alone has one.
    """
    steps, tries, at_once = sampling.steps, sampling.tries, sampling.at_once
    if isinstance(network, Regressor):
        # a second try would give the same
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
    """Can a sample of this graph break a constraint?"""
    return bool(graph.constraints)


@torch.no_grad()
def measure(
    problem: DenoisingProblem, config: Any, network: nn.Module, count: int, seed: int, sampling: Sampling, most: int = _MOST_NODES
) -> dict[str, float]:
    """The metrics of a problem on its test conditions, and how the distribution of samples compares with the truth.

    Args:
        problem: whose metrics.
        config: of the run.
        network: trained.
        count: of conditions, one sample for each.
        seed: of conditions and samples.
        sampling: options; with more than one try, their average number is a metric as well.
        most: see ``calibrations``.
    """
    figures: dict[str, float] = {}
    for name, given in _conditions(problem, config, count, seed).items():
        samples = draw(network, sampling, given, count, problem.test_sizes(config), seed=seed, verify=sampling.tries > 1)
        figures |= _measures(problem, config, name, given, samples.values)
        if sampling.tries > 1:
            figures |= _named({"tries": float(samples.tries.float().mean())}, name)
    return figures | summary(calibrations(problem, config, network, seed, sampling, most))


@torch.no_grad()
def calibrations(
    problem: DenoisingProblem, config: Any, network: nn.Module, seed: int, sampling: Sampling, most: int = _MOST_NODES
) -> dict[str, Calibration]:
    """Simulation-based calibration of the variables that the problem compares, by name.

    Examples are drawn from the problem, observed as in training, and each is sampled several times.

    Args:
        problem: that generates examples.
        config: of the run.
        network: trained.
        seed: of examples and samples.
        sampling: options; samples are taken as they come, whether they meet the constraints or not.
        most: nodes of all samples together, which bounds the number of examples.
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
    given = {name: Partial(_repeated(truth[name]), _repeated(_mask(mask, truth[name]))) for name, mask in observed.items()}
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


def _repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(_DRAWS, 0)


def _mask(mask: Tensor, values: Tensor) -> Tensor:
    """Which nodes are observed, shape ``(batch, *node axes)``."""
    return mask.expand(len(values), *values.shape[1 : mask.ndim])


def _numbers(values: Tensor, slot: Slot) -> Tensor:
    """Values of a variable as real numbers or numbers of options, shape ``(batch, nodes)``, with the features of a real node as nodes."""
    return (values if slot.kind != "category" else values.argmax(-1)).reshape(len(values), -1)


def measure_untrained(problem: DenoisingProblem, config: Any, count: int, seed: int, chain_steps: int) -> dict[str, dict[str, float]]:
    """The same, by method, of those that need no training; empty if there are none.

    Args:
        problem: whose methods and metrics.
        config: of a run.
        count: of conditions.
        seed: of conditions.
        chain_steps: of each Markov chain.
    """
    found: dict[str, dict[str, float]] = {}
    for name, given in _conditions(problem, config, count, seed).items():
        for method, values in problem.untrained(config, given, count, chain_steps).items():
            found.setdefault(method, {}).update(_measures(problem, config, name, given, values))
    return found


def _conditions(problem: DenoisingProblem, config: Any, count: int, seed: int) -> dict[str, Given]:
    return problem.conditions(config, count, torch.Generator().manual_seed(seed_of(seed, 6)))


def _measures(problem: DenoisingProblem, config: Any, name: str, given: Given, values: Mapping[str, Tensor]) -> dict[str, float]:
    return _named(problem.measures(config, given, values), name)


def _named(measures: Mapping[str, float], condition: str) -> dict[str, float]:
    """Metrics with the name of their condition in theirs."""
    return {f"{metric} {condition}".strip().replace(" ", "_"): value for metric, value in measures.items()}
