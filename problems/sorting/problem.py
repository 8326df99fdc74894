"""Sorting on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unn.extending import DeclaredProblem, Defaults, DenoiserOptions, Query, TrainingConfig, check_ranges

from ..generated.observations import any_nodes, check_observe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given


@dataclass(frozen=True)
class SortingConfig:
    """Configuration of a run of the sorting problem.

    Attributes:
        length: Length of the list.
        intermediate: Declare the products C[i,j] = P[i,j] u[j] as variables.
        order: Interactions in the sorted list: "chain" (neighbours in rank), "clique" or "none".
        observe: Observed in training: "u" as in the paper, or "any" subset of all entries.
        examples: Number of training examples; 0 for an infinite stream.
    """

    length: int = 5
    intermediate: bool = True
    order: Literal["chain", "clique", "none"] = "chain"
    observe: str = "u"
    examples: int = 0


class SortingProblem(DeclaredProblem):
    """Sort a list: sample the permutation and the sorted list."""

    name = "sorting"
    summary = "sorting: sample the permutation that sorts a list, and the sorted list"
    config = SortingConfig
    noun = "permutations"
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(prediction="x0", noise="linear"),
            TrainingConfig(steps=2000, evaluate_every=2000, batch=16, rate=2e-3, clip=1.0, ema=0.99),
        ),
    }

    def check(self, config: SortingConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name, {"length": (config.length, 1, 10_000), "examples": (config.examples, 0, 10**9)}
        )
        check_observe(self.name, config.observe, ("u", "any"))
        super().check(config)

    def declare(self, config: SortingConfig) -> unn.FactorGraph:
        """The graph for lists of the configured length."""
        from .graph import declare

        return declare(config.length, config.intermediate, config.order)

    def generate(
        self, config: SortingConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Gaussian lists with their permutations and sorted lists."""
        from .graph import generate

        return generate(count, config.length, config.intermediate, generator)

    def observed(
        self, config: SortingConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The list; or any entries."""
        import torch

        if config.observe == "u":
            return {"u": torch.ones(1, 1, dtype=torch.bool)}
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(self, config: SortingConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """Held-out lists."""
        values = self.generate(config, count, generator, {})
        return {"": Query({"u": values["u"]}, values)}

    def metrics(self, config: SortingConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """RMSE of the sorted list against P u, and the fraction of samples in which P is a permutation."""
        from .graph import error, is_permutation

        u: Any = query.given["u"]
        return {
            "rmse": error(u, values["P"]),
            "permutations": float(is_permutation(values["P"]).float().mean()),
        }

    def untrained(
        self, config: SortingConfig, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """Metropolis-Hastings on the program that draws an entry of the list for each rank."""
        from ..generated.metropolis import metropolis
        from .chain import sorting

        u: Any = given["u"]
        return {"Metropolis-Hastings": metropolis(sorting(u), count, chain_steps, seed=0).values}
