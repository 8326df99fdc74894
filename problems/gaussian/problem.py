"""Gaussian fields on the command line; importing it does not load torch."""

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

_TRAINING = TrainingConfig(steps=1000, evaluate_every=1000, batch=64, rate=2e-3, clip=1.0, ema=0.99)
_LEARNING = TrainingConfig(steps=300, evaluate_every=300, batch=64, rate=5e-3, clip=1.0)


@dataclass(frozen=True)
class GaussianConfig:
    """Options of the Gaussian fields.

    Attributes:
        rows: Rows of the grid.
        columns: Columns of the grid; at most 4,096 numbers.
        coupling: Coupling J of neighbouring numbers of the examples, between -0.25 and 0.25.
        examples: Number of training examples; 0 for an infinite stream.
    """

    rows: int = 5
    columns: int = 5
    coupling: float = 0.23
    examples: int = 0


class GaussianProblem(DeclaredProblem):
    """Complete fields of numbers, any of which may be given."""

    name = "gaussian"
    summary = (
        "Gaussian fields on a grid: complete numbers of which any are given; checked against exact "
        "distributions"
    )
    config = GaussianConfig
    noun = "fields"
    defaults = {
        "exact": Defaults(
            ExactOptions(),
            TrainingConfig(steps=100, evaluate_every=100, batch=32, rate=1e-2, clip=1.0),
        ),
        "descent": Defaults(DescentOptions(iterations=10), _LEARNING),
        "denoiser": Defaults(DenoiserOptions(width=32, depth=4, heads=2, sampling_steps=50), _TRAINING),
        "gibbs": Defaults(GibbsOptions(learning="pseudolikelihood"), _LEARNING),
        "regressor": Defaults(RegressorOptions(width=32, depth=4, heads=2), _TRAINING),
        "vaeac": Defaults(VAEACOptions(width=64, depth=3), _TRAINING),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "rows": (config.rows, 1, 4096),
            "columns": (config.columns, 1, 4096),
            "rows times columns": (config.rows * config.columns, 1, 4096),
            "coupling": (config.coupling, -0.25, 0.25),
            "examples": (config.examples, 0, 10**9),
        }
        check_ranges(self.name, ranges)
        super().check(config)

    def declare(self, config: GaussianConfig) -> unn.FactorGraph:
        """The graph."""
        from .grids import declare

        return declare(config.rows, config.columns)

    def generate(
        self, config: GaussianConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Exact samples."""
        from .grids import exact_samples

        return {"X": exact_samples(config.rows, config.columns, config.coupling, count, generator)}

    def observed(
        self, config: GaussianConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any subset of the numbers."""
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(
        self, config: GaussianConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """No number given; and half of the numbers of held-out fields."""
        import torch

        from unn import Partial

        values = self.generate(config, count, generator, {})
        half = torch.rand(values["X"].shape, generator=generator) < 0.5
        return {"": Query({}), "half given": Query({"X": Partial(values["X"], half)}, values)}

    def exact_graph(self, config: GaussianConfig) -> unn.FactorGraph:
        """The graph with the coupling of the examples."""
        from .grids import declare_coupled

        return declare_coupled(config.rows, config.columns, config.coupling)

    def compared_variables(self, config: GaussianConfig) -> tuple[str, ...]:
        """All numbers."""
        return ("X",)

    def metrics(self, config: GaussianConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Root mean squared distance of hidden numbers from their true values in exact deviations, 1 for
        exact means and 1.41 for exact samples; and the mean product of neighbours less that of exact samples,
        0 for samples and negative for means."""
        import torch

        from unn.exact.mixed_model import MixedModel

        from ..generated.neighbours import neighbour_product
        from .grids import exact_samples

        x = values["X"].double()
        if not query.truth:
            if config.rows * config.columns == 1:
                return {}
            generator = torch.Generator().manual_seed(2)
            fields = exact_samples(config.rows, config.columns, config.coupling, len(x), generator)
            return {"excess_correlation": neighbour_product(x) - neighbour_product(fields)}
        given: Any = query.given["X"]
        hidden = ~given.mask.expand(x.shape)
        if not bool(hidden.any()):
            return {}
        _, variances = MixedModel(self.exact_graph(config), ExactOptions()).moments(query.given, len(x), {})
        distance = (x - query.truth["X"].double())[hidden] / variances["X"].sqrt()[hidden]
        return {"error": float(distance.square().mean().sqrt())}

    def untrained(
        self, config: GaussianConfig, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """Exact samples and exact means."""
        from unn.engine import SamplingOptions
        from unn.exact.mixed_model import MixedModel

        model = MixedModel(self.exact_graph(config), ExactOptions())
        samples = model.sample_with(given, count, SamplingOptions(seed=3), {}).values
        return {"exact samples": samples, "exact means": model.infer_values(given, count, {})}
