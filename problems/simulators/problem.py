"""Posteriors of simulators on the command line: any conditional of a task from simulations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unn.errors import ArgumentError
from unn.extending import Defaults, DenoiserOptions, TrainingConfig, check_ranges

from ..generated.traced import Source, TracedProblem

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from unn.extending import Query

    from .tasks import SimulatorTask

_HELD_OUT = 0.1
"""Share of the simulations that validates and does not train."""

_VALIDATED = 1000
"""Number of simulations in the validation loss; fewer are repeated, with other evidence."""

_FEWEST = 20
"""Smallest number of simulations, of which two validate."""


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


class SimulatorsProblem(TracedProblem):
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
                steps=5000,
                evaluate_every=500,
                batch=256,
                rate=5e-3,
                warmup=0.01,
                clip=1.0,
                ema=0.999,
                # the best of ten evaluations, since networks overfit few simulations
                patience=10,
            ),
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._drawn: tuple[object, dict[str, Tensor], dict[str, Tensor]] | None = None

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        check_ranges(self.name, {"simulations": (config.simulations, 0, 10**9)})
        if 0 < config.simulations < _FEWEST:
            raise ArgumentError(
                f"{self.name}: option simulations must be 0, for a stream, or at least {_FEWEST}, got "
                f"{config.simulations}."
            )
        super().check(config)

    def source(self, config: Any) -> Source:
        """The program of a task."""
        task = self._task(config)
        return Source((config.simulator, _digest()), task.program, task.plates)

    def examples(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Simulations and masks; from a fixed set whose plates vary, some of the entries of each plate."""
        import torch

        if not (config.simulations and self.sizes_vary(config)):
            return super().examples(config, count, generator, sizes)
        pool = self._simulations(config)[0]
        rows = torch.randint(len(next(iter(pool.values()))), (count,), generator=generator)
        values = {name: x[rows] for name, x in pool.items()}
        return self._part(config, values, sizes, generator), self.observed(config, count, generator, sizes)

    def training_set(self, config: Any) -> Mapping[str, Tensor] | None:
        """The simulations that train, unless the sizes of plates vary."""
        return self._simulations(config)[0] if config.simulations and not self.sizes_vary(config) else None

    def observed(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any entries, or all data."""
        from .masks import any_conditional, posterior

        shapes = self.traced(config, sizes).graph.adjacency().shapes
        if config.query == "posterior":
            return posterior(shapes, self._task(config).parameters)
        return any_conditional(shapes, self._task(config).parameters, count, generator)

    def metrics(self, config: Any, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """None but calibration, which all problems with ``compared_variables`` have."""
        return {}

    def model_metrics(self, config: Any, network: nn.Module, count: int, seed: int) -> dict[str, float]:
        """The training loss on simulations that are not trained on."""
        import torch

        from unn import CanLearn

        assert isinstance(network, CanLearn)
        generator = torch.Generator().manual_seed(20_232)
        sizes = self.test_sizes(config)
        if config.simulations:
            held_out = self._simulations(config)[1]
            rows = torch.arange(_VALIDATED) % len(next(iter(held_out.values())))
            values = {name: x[rows] for name, x in held_out.items()}
            values = self._part(config, values, sizes, generator)
        else:
            values = self.generate(config, _VALIDATED, generator, sizes)
        observed = self.observed(config, _VALIDATED, generator, sizes)
        training = network.training
        network.eval()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                return {"validation_loss": float(network.loss(values, observed, **sizes))}
        finally:
            network.train(training)

    def _task(self, config: Any) -> SimulatorTask:
        # the tasks import torch, which the options do not need
        from .tasks import TASKS

        return TASKS[config.simulator]

    def _simulations(self, config: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The simulations that train, and those that validate, with plates of their largest sizes."""
        key = (config.simulator, config.simulations, config.training.seed)
        if self._drawn is None or self._drawn[0] != key:
            import torch

            from unn.ops.seeds import seed_of

            largest = {name: most for name, (_, most) in self._task(config).plates.items()}
            generator = torch.Generator().manual_seed(seed_of(config.training.seed, 5))
            values = self.traced(config, largest).draw(config.simulations, generator)
            training = config.simulations - int(_HELD_OUT * config.simulations)
            self._drawn = (
                key,
                {name: x[:training] for name, x in values.items()},
                {name: x[training:] for name, x in values.items()},
            )
        return self._drawn[1:]

    def _part(
        self, config: Any, values: Mapping[str, Tensor], sizes: Mapping[str, int], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Random entries of plates of their largest sizes, the same in all variables."""
        import torch

        chosen = {
            name: torch.randperm(most, generator=generator)[: sizes[name]]
            for name, (_, most) in self._task(config).plates.items()
        }
        variables = self.plated(config).graph.variables if chosen else {}
        part = dict(values)
        for name in part:
            for k, axis in enumerate(variables[name].axes if chosen else ()):
                if axis in chosen:
                    part[name] = part[name].index_select(k + 1, chosen[axis])
        return part


@cache
def _digest() -> str:
    """Digest of the files that define the tasks."""
    folder = Path(__file__).parent
    content = b"".join((folder / name).read_bytes() for name in ("tasks.py", "densities.py"))
    return hashlib.sha256(content).hexdigest()
