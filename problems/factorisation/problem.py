"""Factorisation, its hierarchical version and inversion on the command line; importing it does not load
torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    Query,
    TrainingConfig,
    check_ranges,
)

from ..generated.observations import any_nodes, check_observe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.networks.tokens import Given

    from .graph import Kind

_DRIFT = 0.1
"""Standard deviation of steps of Metropolis-Hastings in an entry of A, which lies between 0 and 1."""

MODEL = DenoiserOptions(
    depth=4,
    heads=2,
    prediction="x0",
    noise="linear",
    last_beta=0.01,
    self_conditioning="tokens",
    passes=4,
    sampler="churn",
    spacing="schedule",
)
TRAINING = TrainingConfig(steps=3000, evaluate_every=3000, batch=16, rate=2e-3, clip=1.0, ema=0.99)


@dataclass(frozen=True)
class FactorisationConfig:
    """Configuration of a run of a factorisation problem.

    Attributes:
        rows: Rows of E.
        columns: Columns of E.
        rank: Columns of A and rows of R; the maximum in the hierarchical problem.
        vary: Draw the sizes of each training batch uniformly from 1 to these.
        intermediate: Declare the products C[i,j,k] = A[i,k] R[k,j] as variables; in the hierarchical problem
            also D[k] = [k <= K].
        observe: Observed in training: "E" as in the paper, or "any" subset of all entries.
        examples: Number of training examples; 0 for an infinite stream.
    """

    rows: int = 4
    columns: int = 4
    rank: int = 2
    vary: bool = False
    intermediate: bool = True
    observe: str = "E"
    examples: int = 0


class FactorisationProblem(DeclaredProblem):
    """A matrix as the product of a continuous and a binary one."""

    name = "factorisation"
    summary = "binary-continuous matrix factorisation: sample A and binary R with A R = E"
    config = FactorisationConfig
    kind: ClassVar[Kind] = "binary"
    noun = "factorisations"
    defaults = {
        "denoiser": Defaults(MODEL, TRAINING),
        # an energy couples E, A and R alone
        "descent": Defaults(
            DescentOptions(iterations=5, initial="random"),
            TrainingConfig(steps=30, evaluate_every=30, batch=16, rate=2e-2, clip=1.0),
            {"intermediate": False},
        ),
    }

    def check(self, config: FactorisationConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "rows": (config.rows, 1, 10_000),
                "columns": (config.columns, 1, 10_000),
                "rank": (config.rank, 1, 10_000),
                "examples": (config.examples, 0, 10**9),
            },
        )
        check_observe(self.name, config.observe, ("E", "any"))
        super().check(config)

    def sizes_vary(self, config: FactorisationConfig) -> bool:
        """With the option ``vary``."""
        return config.vary

    def declare(self, config: FactorisationConfig) -> unn.FactorGraph:
        """The graph; its sizes are dynamic."""
        from .graph import declare

        return declare(self.kind, config.intermediate, config.rank)

    def sizes(self, config: FactorisationConfig, generator: torch.Generator) -> dict[str, int]:
        """Drawn for each batch, if they vary."""
        import torch

        whole = self.test_sizes(config)
        if not config.vary:
            return whole
        return {
            axis: int(torch.randint(1, size + 1, (), generator=generator)) for axis, size in whole.items()
        }

    def test_sizes(self, config: FactorisationConfig) -> dict[str, int]:
        """Those of the options."""
        sizes = {"i": config.rows, "j": config.columns}
        return sizes if self.kind == "hierarchical" else {**sizes, "k": config.rank}

    def generate(
        self, config: FactorisationConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Entries of A and R from their priors, and the variables computed from them."""
        from .graph import generate

        return generate(
            self.kind,
            config.intermediate,
            count,
            sizes["i"],
            sizes["j"],
            sizes.get("k", config.rank),
            generator,
        )

    def observed(
        self, config: FactorisationConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """E; or any entries."""
        import torch

        if config.observe == "E":
            return {"E": torch.ones(1, 1, 1, dtype=torch.bool)}
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(
        self, config: FactorisationConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """E of held-out samples."""
        values = self.generate(config, count, generator, self.test_sizes(config))
        return {"": Query({"E": values["E"]}, values)}

    def metrics(
        self, config: FactorisationConfig, query: Query, values: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """RMSE of E against A R of the samples; for binary R also the spread of entries of A that E leaves
        undetermined."""
        from .graph import error, unused_spread

        E: Any = query.given["E"]
        figures = {"rmse": error(values, E)}
        if self.kind == "binary" and not math.isnan(spread := unused_spread(values)):
            figures["unused_spread"] = spread
        return figures

    def compared_variables(self, config: FactorisationConfig) -> tuple[str, ...]:
        """R, since E is invariant to permutations of its rows; used entries of A have hardly any spread."""
        return ("R",) if self.kind == "binary" else ()

    def untrained(
        self, config: FactorisationConfig, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """The heuristics of the paper's Appendix M, and Metropolis-Hastings with steps of the entries of
        A."""
        from ..generated.metropolis import metropolis
        from .baselines import greedy, k_means, nmf
        from .chain import factorisation

        if self.kind != "binary":
            return {}
        E: Any = given["E"]
        return {
            "k-means": k_means(E, config.rank, seed=0),
            "NMF, second factor rounded": nmf(E, config.rank, seed=0, refit=False),
            "NMF, cut and refitted": nmf(E, config.rank, seed=0),
            "largest columns": greedy(E, config.rank),
            "Metropolis-Hastings": metropolis(
                factorisation(E, config.rank, drift=_DRIFT), count, chain_steps, seed=0
            ).values,
        }


class HierarchicalProblem(FactorisationProblem):
    """Factorisation with unknown rank."""

    name = "hierarchical"
    summary = "hierarchical factorisation: sample the rank K, A and binary R with A R = E"
    kind = "hierarchical"


@dataclass(frozen=True)
class InversionConfig(FactorisationConfig):
    """Configuration of a run of the inversion problem.

    Attributes:
        rows: Rows of E.
        columns: Columns of E.
        rank: Columns of A and rows of R.
        vary: Draw the sizes of each training batch uniformly from 1 to these.
        intermediate: Declare the products C[i,j,k] = A[i,k] R[k,j] as variables.
        observe: Observed in training: "E" stands for A and E, as in the paper; or "any" subset of all
            entries.
        examples: Number of training examples; 0 for an infinite stream.
    """

    rows: int = 5
    columns: int = 5
    rank: int = 5


class InversionProblem(FactorisationProblem):
    """Solve A R = E for R; with E the identity, R is the inverse."""

    name = "inversion"
    summary = "matrix inversion: sample R with A R = E for given A and E; tested with E the identity"
    config = InversionConfig
    kind = "inversion"
    noun = "inverses"

    def observed(
        self, config: FactorisationConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """A and E; or any entries."""
        import torch

        if config.observe == "E":
            every = torch.ones(1, 1, 1, dtype=torch.bool)
            return {"A": every, "E": every}
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(
        self, config: FactorisationConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """A of held-out samples, with E the identity; and with E = A R of a Gaussian R, as in training."""
        import torch

        values = self.generate(config, count, generator, self.test_sizes(config))
        identity = torch.eye(config.rows, config.columns).expand(count, -1, -1)
        as_trained = Query({"A": values["A"], "E": values["E"]}, values)
        return {"": Query({"A": values["A"], "E": identity}), "as trained": as_trained}
