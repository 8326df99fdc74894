"""Training a diffusion model on generated samples, and measuring it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unn.diffusion import Diffusion, LinearSteps, LogNormal, LogUniform, Schedule
from unn.graph import FactorGraph
from unn.models import Denoiser
from unn.training import Examples, Task
from unn.training.batches import seed_of

from .denoising import DenoisingProblem, ModelConfig

Example = tuple[dict[str, int], dict[str, Tensor], dict[str, Tensor]]
"""Sizes, values and which nodes are observed."""


def build(graph: FactorGraph, model: ModelConfig, sizes: Mapping[str, int]) -> Diffusion:
    """The diffusion model that the options describe, with fresh weights.

    Args:
        graph: the declaration.
        model: the options.
        sizes: of the axes without a static one, at which the depth is found.
    """
    denoiser = Denoiser(
        graph,
        width=model.width,
        depth=model.depth or None,
        heads=model.heads,
        embedding=model.embedding,
        global_token=model.global_token,
        structure=model.structure,
        sizes=sizes,
    )
    return Diffusion(denoiser, schedule=_schedule(model), prediction=model.prediction, self_conditioning=model.self_conditioning)


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
    """The loss of a diffusion model, and the problem's own metrics of its samples.

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
        """The mean squared error of the estimates."""
        assert isinstance(network, Diffusion)
        sizes, values, observed = batch
        return network.loss(values, observed, **sizes)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """The problem's metrics of samples on held-out conditions."""
        assert isinstance(network, Diffusion)
        return measure(self.problem, self.config, network, count=64, seed=0, steps=self.config.model.sampling_steps)


@torch.no_grad()
def measure(problem: DenoisingProblem, config: Any, diffusion: Diffusion, count: int, seed: int, steps: int) -> dict[str, float]:
    """The metrics of a problem on its test conditions.

    Args:
        problem: whose metrics.
        config: of the run.
        diffusion: trained.
        count: of conditions, one sample for each.
        seed: of conditions and samples.
        steps: of sampling.
    """
    found: dict[str, float] = {}
    generator = torch.Generator().manual_seed(seed_of(seed, 6))
    for name, given in problem.conditions(config, count, generator).items():
        samples = diffusion.sample(
            given, count, steps=steps, sampler=config.model.sampler, spacing=config.model.spacing,
            seed=seed, at_once=256, sizes=problem.test_sizes(config),
        )  # fmt: skip
        for metric, value in problem.measures(config, given, samples.values).items():
            found[f"{metric} {name}".strip().replace(" ", "_")] = value
    return found
