"""The Boolean circuit on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.training.options import TrainingConfig, check_ranges

from ..generated.config import ModelConfig
from ..generated.problem import DenoisingProblem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given


@dataclass(frozen=True)
class BooleanConfig:
    """Configuration of a run of the Boolean problem.

    Attributes:
        layers: Number of layers of gates; there are 2 ** layers inputs.
        gates: Seed that chooses AND and OR gates.
        intermediate: Declare the outputs of all gates as variables.
        examples: Number of training examples; 0 for an infinite stream.
        model: Options of the denoiser and its diffusion, or of a baseline.
        training: Options of training.
    """

    layers: int = 3
    gates: int = 0
    intermediate: bool = True
    examples: int = 0
    model: ModelConfig = ModelConfig(width=32, depth=4, heads=2, embedding="independent", prediction="x0", noise="linear")
    training: TrainingConfig = TrainingConfig(steps=400, evaluate_every=400, batch=32, rate=4e-3, clip=1.0, ema=0.98)


class BooleanProblem(DenoisingProblem):
    """Predict the output of a circuit of unknown gates from its inputs."""

    name = "boolean"
    summary = "a circuit of unknown AND and OR gates: sample its output and those of all gates from the inputs"
    config = BooleanConfig
    noun = "outputs"

    def check(self, config: BooleanConfig) -> None:
        """Check the ranges of all options."""
        super().check(config)
        check_ranges(self.name, {"layers": (config.layers, 1, 20), "gates": (config.gates, 0, 2**62), "examples": (config.examples, 0, 10**9)})

    def declare(self, config: BooleanConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        return declare(config.layers, config.intermediate)

    def generate(self, config: BooleanConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Inputs and outputs of the gates."""
        from .graph import gates_of, generate

        return generate(gates_of(config.layers, config.gates), count, config.intermediate, generator)

    def observed(self, config: BooleanConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """The inputs."""
        import torch

        return {"L0": torch.ones(1, 1, dtype=torch.bool)}

    def conditions(self, config: BooleanConfig, count: int, generator: torch.Generator) -> dict[str, Given]:
        """Held-out inputs."""
        return {"": {"L0": self.generate(config, count, generator, {})["L0"]}}

    def measures(self, config: BooleanConfig, given: Given, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Accuracy of the output of the circuit."""
        from .graph import gates_of, run

        inputs: Any = given["L0"]
        right = run(gates_of(config.layers, config.gates), inputs > 0.5)[-1]
        return {"accuracy": float((values[f"L{config.layers}"] == right.float()).float().mean())}
