"""The Boolean circuit on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    Query,
    TrainingConfig,
    check_ranges,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn


@dataclass(frozen=True)
class BooleanConfig:
    """Configuration of a run of the Boolean problem.

    Attributes:
        layers: Number of layers of gates; there are 2 ** layers inputs.
        gates: Seed that chooses AND and OR gates.
        intermediate: Declare the outputs of all gates as variables.
        energy: Couple the inputs and outputs of gates by learned weights, as coordinate descent needs.
        examples: Number of training examples; 0 for an infinite stream.
    """

    layers: int = 3
    gates: int = 0
    intermediate: bool = True
    energy: bool = False
    examples: int = 0


class BooleanProblem(DeclaredProblem):
    """Predict the output of a circuit of unknown gates from its inputs."""

    name = "boolean"
    summary = (
        "a circuit of unknown AND and OR gates: sample its output and those of all gates from the inputs"
    )
    config = BooleanConfig
    noun = "outputs"
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(
                width=32, depth=4, heads=2, embedding="independent", prediction="x0", noise="linear"
            ),
            TrainingConfig(steps=400, evaluate_every=400, batch=32, rate=4e-3, clip=1.0, ema=0.98),
        ),
        "descent": Defaults(
            DescentOptions(),
            TrainingConfig(steps=2000, evaluate_every=2000, batch=64, rate=3e-2, clip=1.0),
            {"energy": True},
        ),
    }

    def check(self, config: BooleanConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "layers": (config.layers, 1, 20),
                "gates": (config.gates, 0, 2**62),
                "examples": (config.examples, 0, 10**9),
            },
        )
        super().check(config)

    def declare(self, config: BooleanConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        return declare(config.layers, config.intermediate, config.energy)

    def generate(
        self, config: BooleanConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Inputs and outputs of the gates."""
        from .graph import gates_of, generate

        return generate(gates_of(config.layers, config.gates), count, config.intermediate, generator)

    def observed(
        self, config: BooleanConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The inputs."""
        import torch

        return {"L0": torch.ones(1, 1, dtype=torch.bool)}

    def test_queries(self, config: BooleanConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """Held-out inputs."""
        values = self.generate(config, count, generator, {})
        return {"": Query({"L0": values["L0"]}, values)}

    def metrics(self, config: BooleanConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Accuracy of the output of the circuit."""
        from .graph import gates_of, run

        inputs: Any = query.given["L0"]
        right = run(gates_of(config.layers, config.gates), inputs > 0.5)[-1]
        return {"accuracy": float((values[f"L{config.layers}"] == right.float()).float().mean())}
