"""Posteriors of simulators on the command line: any conditional of a task from simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unn.errors import ArgumentError
from unn.extending import DeclaredProblem, Defaults, DenoiserOptions, TrainingConfig, check_ranges

from ..generated.plates import check_sizes, middle_sizes, random_sizes
from ..generated.references import program_reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    import unn
    from unn.extending import Query, Trained
    from unn.networks.tokens import Given
    from unn.programs import Plated, Traced

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
                steps=5000, evaluate_every=2500, batch=256, rate=5e-3, warmup=0.01, clip=1.0, ema=0.999
            ),
        ),
    }

    def __init__(self) -> None:
        self._traced: dict[str, Traced] = {}
        self._plated: dict[str, Plated] = {}

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        check_ranges(self.name, {"simulations": (config.simulations, 0, 10**9)})
        if 0 < config.simulations < _FEWEST:
            raise ArgumentError(
                f"{self.name}: option simulations must be 0, for a stream, or at least {_FEWEST}, got "
                f"{config.simulations}."
            )
        super().check(config)

    def traced(self, config: Any, sizes: Mapping[str, int] | None = None) -> Traced:
        """The program of a task, at given sizes of its plates."""
        from unn.programs import trace, trace_plates

        name, task = config.simulator, self._task(config)
        if task.plates:
            if name not in self._plated:
                self._plated[name] = trace_plates(task.program, task.plates)
            return self._plated[name].at(**(sizes or self.test_sizes(config)))
        if name not in self._traced:
            self._traced[name] = trace(task.program)
        return self._traced[name]

    def declare(self, config: Any) -> unn.FactorGraph:
        """The graph of the program."""
        from unn.programs import trace, trace_plates

        task = self._task(config)
        # a separate graph for each network
        return (trace_plates(task.program, task.plates) if task.plates else trace(task.program)).graph

    def generate(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Simulations."""
        return self.traced(config, sizes).draw(count, generator)

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

    def sizes(self, config: Any, generator: torch.Generator) -> dict[str, int]:
        """Random sizes of the plates."""
        return random_sizes(self._task(config).plates, generator)

    def sizes_vary(self, config: Any) -> bool:
        """Whether the task has plates of any size."""
        return bool(self._task(config).plates)

    def test_sizes(self, config: Any) -> dict[str, int]:
        """Sizes in the middle of their ranges."""
        return middle_sizes(self._task(config).plates)

    def read_given(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int]]:
        """Evidence on plates of the sizes of training.

        Raises:
            ArgumentError: for more or fewer entries of a plate than in training.
        """
        given, sizes = super().read_given(run, texts)
        check_sizes(self.name, self._task(run.config).plates, sizes)
        return given, sizes

    def observed(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any entries, or all data."""
        from .masks import any_conditional, posterior

        shapes = self.traced(config, sizes).graph.adjacency().shapes
        if config.query == "posterior":
            return posterior(shapes, self._task(config).parameters)
        return any_conditional(shapes, self._task(config).parameters, count, generator)

    def compared_variables(self, config: Any) -> tuple[str, ...]:
        """All variables; each is drawn."""
        return self.traced(config).random_variables

    def reference(self, config: Any, given: Given, count: int, seed: int) -> Mapping[str, Tensor]:
        """Samples by sequential Monte Carlo on the density of the program."""
        return program_reference(self.traced(config), given, count, seed)

    def metrics(self, config: Any, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """None but calibration, which all problems with ``compared_variables`` have."""
        return {}

    def model_metrics(self, config: Any, network: nn.Module, count: int, seed: int) -> dict[str, float]:
        """The training loss on simulations that are not trained on."""
        import torch

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
                loss = network.loss(values, observed, **sizes)  # type: ignore[operator]
                return {"validation_loss": float(loss)}
        finally:
            network.train(training)

    def _task(self, config: Any) -> SimulatorTask:
        # the tasks import torch, which the options do not need
        from .tasks import TASKS

        return TASKS[config.simulator]

    def _simulations(self, config: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The simulations that train, and those that validate, with plates of their largest sizes."""
        import torch

        from unn.ops.seeds import seed_of

        largest = {name: most for name, (_, most) in self._task(config).plates.items()}
        generator = torch.Generator().manual_seed(seed_of(config.training.seed, 5))
        values = self.traced(config, largest).draw(config.simulations, generator)
        kept = config.simulations - int(_HELD_OUT * config.simulations)
        return {name: x[:kept] for name, x in values.items()}, {name: x[kept:] for name, x in values.items()}

    def _part(
        self, config: Any, values: Mapping[str, Tensor], sizes: Mapping[str, int], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Random entries of plates of their largest sizes, the same in all variables."""
        import torch

        chosen = {
            name: torch.randperm(most, generator=generator)[: sizes[name]]
            for name, (_, most) in self._task(config).plates.items()
        }
        variables = self._plated[config.simulator].graph.variables if chosen else {}
        part = dict(values)
        for name in part:
            for k, axis in enumerate(variables[name].axes if chosen else ()):
                if axis in chosen:
                    part[name] = part[name].index_select(k + 1, chosen[axis])
        return part
