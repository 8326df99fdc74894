"""Training a model of a graph on generated samples, and measuring it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unn.diffusion import Diffusion, LinearSteps, LogNormal, LogUniform, MaskedDiffusion, Samples, Schedule
from unn.diffusion.diffusion import Trace
from unn.graph import FactorGraph
from unn.models import Denoiser
from unn.models.baselines import VAEAC, Regressor
from unn.models.frame import Given
from unn.training import Examples, Task
from unn.training.batches import seed_of

from .denoising import DenoisingProblem, ModelConfig

Example = tuple[dict[str, int], dict[str, Tensor], dict[str, Tensor]]
"""Sizes, values and which nodes are observed."""


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
            values = self.problem.generate(self.config, len(indices), generator, sizes)
        else:
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
        return measure(self.problem, self.config, network, count=64, seed=0, steps=self.config.model.sampling_steps)


def draw(
    network: nn.Module,
    model: ModelConfig,
    given: Given,
    count: int,
    sizes: Mapping[str, int],
    steps: int | None = None,
    seed: int | None = None,
    verify: bool = False,
    tries: int = 1,
    trace: Trace | None = None,
) -> Samples:
    """Samples by a trained model, as its options say.

    Args:
        network: trained.
        model: its options.
        given: by variable, whole or in part.
        count: of samples.
        sizes: of the axes without a static one.
        steps: if not those of the options.
        seed: of all samples; None draws from torch's global generator.
        verify: check the constraints of the graph.
        tries: with ``verify``, how often to sample what meets them not.
        trace: called after each step with its number and the values; Gaussian noise alone has one.
    """
    steps = steps or model.sampling_steps
    if isinstance(network, Regressor):
        # a second try would give the same
        return network.sample(given, count, verify=verify, at_once=256, sizes=sizes)
    if isinstance(network, VAEAC):
        return network.sample(given, count, seed=seed, verify=verify, tries=tries, at_once=256, sizes=sizes)
    if isinstance(network, MaskedDiffusion):
        return network.sample(given, count, steps=steps, seed=seed, verify=verify, tries=tries, at_once=256, sizes=sizes)
    assert isinstance(network, Diffusion)
    return network.sample(
        given, count, steps=steps, sampler=model.sampler, spacing=model.spacing, seed=seed, verify=verify, tries=tries, at_once=256,
        trace=trace, sizes=sizes,
    )  # fmt: skip


@torch.no_grad()
def measure(problem: DenoisingProblem, config: Any, network: nn.Module, count: int, seed: int, steps: int, tries: int = 1) -> dict[str, float]:
    """The metrics of a problem on its test conditions; with more than one try their average number as well.

    Args:
        problem: whose metrics.
        config: of the run.
        network: trained.
        count: of conditions, one sample for each.
        seed: of conditions and samples.
        steps: of sampling.
        tries: how often to sample what does not meet the constraints.
    """
    found: dict[str, float] = {}
    for name, given in _conditions(problem, config, count, seed).items():
        samples = draw(network, config.model, given, count, problem.test_sizes(config), steps=steps, seed=seed, verify=tries > 1, tries=tries)
        found |= _measures(problem, config, name, given, samples.values)
        if tries > 1:
            found |= _named({"tries": float(samples.tries.float().mean())}, name)
    return found


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
