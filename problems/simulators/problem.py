"""Posteriors of simulators on the command line: any conditional of a task from simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unn.extending import DeclaredProblem, Defaults, DenoiserOptions, TrainingConfig, check_ranges

from .tasks import TASKS, SimulatorTask

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    import unn
    from unn.extending import Query
    from unn.networks.tokens import Given
    from unn.programs import Traced

_HELD_OUT = 0.1
"""Share of the simulations that validates and does not train."""

_PARTICLES = 10_000
"""Smallest number of particles of a reference posterior."""

_FRESH = 1000
"""Number of simulations that validate a stream."""


@dataclass(frozen=True)
class SimulatorsConfig:
    """Configuration of a run of a simulator.

    Attributes:
        simulator: Simulator.
        simulations: Number of simulations, a tenth of which validates; 0 for an infinite stream.
        query: Values that are given in training: "any" subset, or all data for the usual "posterior".
    """

    simulator: Literal[
        "tree",
        "hmm",
        "two-moons",
        "slcp",
        "gaussian-linear",
        "gaussian-mixture",
        "linear-regression",
        "logistic-regression",
        "lotka-volterra",
        "sir",
    ] = "tree"
    simulations: int = 10_000
    query: Literal["any", "posterior"] = "any"


class SimulatorsProblem(DeclaredProblem):
    """Learn every conditional distribution of the parameters and data of a simulator."""

    name = "simulators"
    summary = "posteriors of ten simulators: sample any parameters and data given any others"
    config = SimulatorsConfig
    monitor = "validation_loss"
    larger_is_better = False
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(width=32, depth=4, heads=2, self_conditioning="none", sampling_steps=20),
            TrainingConfig(
                steps=10_000, evaluate_every=1000, batch=256, rate=3e-3, warmup=0.01, clip=1.0, ema=0.999
            ),
        ),
    }

    def __init__(self) -> None:
        self._traced: dict[str, Traced] = {}

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        check_ranges(self.name, {"simulations": (config.simulations, 0, 10**9)})
        super().check(config)

    def traced(self, config: Any) -> Traced:
        """The program of a task, run once."""
        if config.simulator not in self._traced:
            from unn.programs import trace

            self._traced[config.simulator] = trace(TASKS[config.simulator].program)
        return self._traced[config.simulator]

    def declare(self, config: Any) -> unn.FactorGraph:
        """The graph of the program."""
        from unn.programs import trace

        # a separate graph for each network
        return trace(TASKS[config.simulator].program).graph

    def generate(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Simulations."""
        return self.traced(config).draw(count, generator)

    def training_set(self, config: Any) -> Mapping[str, Tensor] | None:
        """The simulations that train."""
        return None if not config.simulations else self._simulations(config)[0]

    def observed(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any entries, or all data."""
        from .masks import any_conditional, posterior

        shapes = self.traced(config).graph.adjacency().shapes
        if config.query == "posterior":
            return posterior(shapes, self._task(config).parameters)
        return any_conditional(shapes, self._task(config).parameters, count, generator)

    def compared_variables(self, config: Any) -> tuple[str, ...]:
        """All variables; each is drawn."""
        return self.traced(config).random_variables

    def reference(self, config: Any, given: Given, count: int, seed: int) -> Mapping[str, Tensor]:
        """Samples by sequential Monte Carlo on the density of the program, of at least 10,000 particles."""
        import torch

        from unn import Partial

        evidence = {
            name: Partial(x.value.double(), x.mask) if isinstance(x, Partial) else x.double()
            for name, x in given.items()
        }
        particles = max(count, _PARTICLES)
        values = self.traced(config).posterior(evidence, particles, seed=seed).values
        order = torch.randperm(particles, generator=torch.Generator().manual_seed(seed))[:count]
        return {name: x[order] for name, x in values.items()}

    def metrics(self, config: Any, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """None but calibration, which all problems with ``compared_variables`` have."""
        return {}

    def model_metrics(self, config: Any, network: nn.Module, count: int, seed: int) -> dict[str, float]:
        """The training loss on simulations that are not trained on."""
        import torch

        generator = torch.Generator().manual_seed(20_232)
        if config.simulations:
            values = self._simulations(config)[1]
        else:
            values = self.generate(config, _FRESH, generator, {})
        repeats = max(1, _FRESH // len(next(iter(values.values()))))
        values = {name: x.repeat(repeats, *[1] * (x.ndim - 1)) for name, x in values.items()}
        observed = self.observed(config, len(next(iter(values.values()))), generator, {})
        training = network.training
        network.eval()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                return {"validation_loss": float(network.loss(values, observed))}  # type: ignore[operator]
        finally:
            network.train(training)

    def _task(self, config: Any) -> SimulatorTask:
        return TASKS[config.simulator]

    def _simulations(self, config: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The simulations that train, and those that validate."""
        import torch

        from unn.ops.seeds import seed_of

        generator = torch.Generator().manual_seed(seed_of(config.training.seed, 5))
        values = self.traced(config).draw(config.simulations, generator)
        kept = config.simulations - int(_HELD_OUT * config.simulations)
        return {name: x[:kept] for name, x in values.items()}, {name: x[kept:] for name, x in values.items()}
