"""Ising grids on the command line; importing it does not load torch."""

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


@dataclass(frozen=True)
class IsingConfig:
    """Options of the Ising problem.

    Attributes:
        rows: Rows of the grid.
        columns: Columns of the grid, at most 12: exact samples are drawn by transfer over all states of a
            row.
        coupling: Coupling J of neighbouring spins of the examples; the infinite grid is critical at 0.4407.
        examples: Number of training examples; 0 for an infinite stream.
    """

    rows: int = 5
    columns: int = 5
    coupling: float = 0.4
    examples: int = 0


class IsingProblem(DeclaredProblem):
    """Complete grids of spins, any of which may be given."""

    name = "ising"
    summary = (
        "Ising grids: complete spins of which any are given, from exact samples; checked against exact "
        "marginals"
    )
    config = IsingConfig
    noun = "grids of spins"
    defaults = {
        "denoiser": Defaults(DenoiserOptions(width=32, depth=4, heads=2, sampling_steps=50), _TRAINING),
        "descent": Defaults(
            DescentOptions(iterations=5),
            TrainingConfig(steps=200, evaluate_every=200, batch=64, rate=2e-2, clip=1.0),
        ),
        "exact": Defaults(
            ExactOptions(), TrainingConfig(steps=200, evaluate_every=200, batch=64, rate=5e-2, clip=1.0)
        ),
        "gibbs": Defaults(
            GibbsOptions(learning="pseudolikelihood"),
            TrainingConfig(steps=300, evaluate_every=300, batch=64, rate=2e-2, clip=1.0),
        ),
        "regressor": Defaults(RegressorOptions(width=32, depth=4, heads=2), _TRAINING),
        "vaeac": Defaults(VAEACOptions(width=64, depth=3), _TRAINING),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "rows": (config.rows, 1, 1000),
            "columns": (config.columns, 2, 12),
            "coupling": (config.coupling, -10, 10),
            "examples": (config.examples, 0, 10**9),
        }
        check_ranges(self.name, ranges)
        super().check(config)

    def declare(self, config: IsingConfig) -> unn.FactorGraph:
        """The graph."""
        from .grids import declare

        return declare(config.rows, config.columns)

    def generate(
        self, config: IsingConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Exact samples."""
        import torch

        from .grids import conditional

        nothing = torch.zeros(1, config.rows, config.columns)
        values = nothing.expand(count, -1, -1)
        return {"X": conditional(config.coupling, values, values.bool(), generator)[0]}

    def observed(
        self, config: IsingConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any subset of the spins."""
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(self, config: IsingConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """No spin given; and half of the spins of held-out grids."""
        import torch

        from unn import Partial

        values = self.generate(config, count, generator, {})
        half = torch.rand(values["X"].shape, generator=generator) < 0.5
        return {"": Query({}), "half given": Query({"X": Partial(values["X"], half)}, values)}

    def exact_graph(self, config: IsingConfig) -> unn.FactorGraph:
        """The graph with the coupling of the examples."""
        from .grids import declare_coupled

        return declare_coupled(config.rows, config.columns, config.coupling)

    def compared_variables(self, config: IsingConfig) -> tuple[str, ...]:
        """All spins."""
        return ("X",)

    def metrics(self, config: IsingConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Correlation of neighbours against that of exact samples, and the error of hidden spins.

        ``excess_correlation`` is 0 for samples of the model and positive for best values, which are too
        smooth. ``error`` is the expected share of wrong hidden spins by the exact marginals, and
        ``lowest_error`` that of the most probable value of each spin, which no method can beat; an exact
        sample has about twice that error.
        """
        import torch

        from ..generated.neighbours import neighbour_product
        from .grids import conditional

        x = values["X"]
        generator = torch.Generator().manual_seed(2)
        given: Any = query.given.get("X")
        observed = torch.zeros_like(x, dtype=torch.bool) if given is None else given.mask.expand(x.shape)
        evidence = torch.zeros_like(x) if given is None else given.value.expand(x.shape)
        exact, marginals = conditional(config.coupling, evidence, observed, generator)
        excess = neighbour_product(2 * x - 1) - neighbour_product(2 * exact - 1)
        if given is None:
            return {"excess_correlation": excess}
        hidden = ~observed
        wrong = torch.where(x > 0.5, 1 - marginals, marginals)[hidden]
        lowest = torch.minimum(marginals, 1 - marginals)[hidden]
        return {
            "error": float(wrong.double().mean()),
            "lowest_error": float(lowest.double().mean()),
            "excess_correlation": excess,
        }

    def untrained(
        self, config: IsingConfig, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """Exact samples, and the most probable value of each spin, both by transfer over rows."""
        import torch

        from .grids import conditional

        evidence: Any = given.get("X")
        nothing = torch.zeros(count, config.rows, config.columns)
        value, mask = (nothing, nothing.bool()) if evidence is None else (evidence.value, evidence.mask)
        exact, marginals = conditional(config.coupling, value, mask, torch.Generator().manual_seed(3))
        return {"exact samples": {"X": exact}, "exact marginals, rounded": {"X": (marginals > 0.5).float()}}
