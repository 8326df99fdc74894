"""Associative memory on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    ExactOptions,
    GibbsOptions,
    Query,
    RegressorOptions,
    TrainingConfig,
    VAEACOptions,
    check_ranges,
)

from ..generated.observations import any_nodes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given

_TRAINING = TrainingConfig(steps=600, evaluate_every=600, batch=64, rate=2e-3, clip=1.0, ema=0.99)


@dataclass(frozen=True)
class HopfieldConfig:
    """Options of the associative memory.

    Attributes:
        units: Number of units.
        patterns: Number of stored patterns.
        pattern_seed: Seed of the patterns.
        examples: Number of training examples; 0 for an infinite stream.
    """

    units: int = 16
    patterns: int = 4
    pattern_seed: int = 0
    examples: int = 0


class HopfieldProblem(DeclaredProblem):
    """Recall stored patterns from any part of them."""

    name = "hopfield"
    summary = "associative memory: recall stored patterns from any of their units"
    config = HopfieldConfig
    noun = "patterns"
    defaults = {
        "descent": Defaults(
            DescentOptions(iterations=2, sweep="forward"),
            TrainingConfig(steps=300, evaluate_every=300, batch=64, rate=2e-2, clip=1.0),
        ),
        "denoiser": Defaults(
            DenoiserOptions(width=32, depth=3, heads=2, embedding="independent", sampling_steps=50), _TRAINING
        ),
        "exact": Defaults(
            ExactOptions(), TrainingConfig(steps=200, evaluate_every=200, batch=64, rate=5e-2, clip=1.0)
        ),
        "gibbs": Defaults(
            GibbsOptions(learning="pseudolikelihood"),
            TrainingConfig(steps=300, evaluate_every=300, batch=64, rate=2e-2, clip=1.0),
        ),
        "regressor": Defaults(
            RegressorOptions(width=32, depth=3, heads=2, embedding="independent"), _TRAINING
        ),
        "vaeac": Defaults(VAEACOptions(width=64, depth=3), _TRAINING),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "units": (config.units, 2, 2000),
            "patterns": (config.patterns, 1, 10_000),
            "pattern_seed": (config.pattern_seed, 0, 2**62),
            "examples": (config.examples, 0, 10**9),
        }
        check_ranges(self.name, ranges)
        super().check(config)

    def declare(self, config: HopfieldConfig) -> unn.FactorGraph:
        """The graph."""
        from .memory import declare

        return declare(config.units)

    def generate(
        self, config: HopfieldConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Stored patterns, all with the same probability."""
        import torch

        from .memory import stored_patterns

        patterns = stored_patterns(config.patterns, config.units, config.pattern_seed)
        return {"x": patterns[torch.randint(config.patterns, (count,), generator=generator)]}

    def observed(
        self, config: HopfieldConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any subset of the units."""
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(
        self, config: HopfieldConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """No unit given; and half of the units of stored patterns."""
        import torch

        from unn import Partial

        values = self.generate(config, count, generator, {})
        rank = torch.rand(values["x"].shape, generator=generator).argsort(1).argsort(1)
        return {
            "": Query({}),
            "half given": Query({"x": Partial(values["x"], rank < config.units // 2)}, values),
        }

    def compared_variables(self, config: HopfieldConfig) -> tuple[str, ...]:
        """All units."""
        return ("x",)

    def metrics(self, config: HopfieldConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Share of answers that are the right pattern; without evidence, that are a stored pattern, and how
        many of the patterns occur."""
        from .memory import stored_patterns

        x = values["x"]
        if query.truth:
            return {"recalled": float((x == query.truth["x"]).all(1).double().mean())}
        patterns = stored_patterns(config.patterns, config.units, config.pattern_seed)
        equal = (x[:, None] == patterns).all(2)
        return {
            "stored": float(equal.any(1).double().mean()),
            "distinct": float(equal.any(0).double().mean()),
        }

    def untrained(
        self, config: HopfieldConfig, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """Sign updates with couplings that project onto the patterns."""
        import torch

        from .memory import recall_by_projection, stored_patterns

        patterns = stored_patterns(config.patterns, config.units, config.pattern_seed)
        evidence: Any = given.get("x")
        nothing = torch.zeros(count, config.units)
        value, mask = (nothing, nothing.bool()) if evidence is None else (evidence.value, evidence.mask)
        return {"projection rule": {"x": recall_by_projection(patterns, value, mask)}}
