"""Graph colouring on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import DataError
from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    EncoderOptions,
    Query,
    RecurrentOptions,
    SearchOptions,
    SolverOptions,
    TrainingConfig,
    check_ranges,
)

from ..instances import few_steps
from ..reading import read_bytes, read_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.extending import Trained
    from unn.networks.tokens import Given


@dataclass(frozen=True)
class ColouringConfig:
    """Configuration of a run of the colouring problem.

    Attributes:
        graph: File of a graph: DIMACS (.col), or two nodes per line. Without one, a random graph that has a
            colouring.
        colours: Number of colours.
        nodes: Number of nodes of the random graph.
        degree: Average number of neighbours in the random graph.
        graph_seed: Seed of the random graph.
        examples: Number of colourings in the training set, which the search draws.
    """

    graph: str = ""
    colours: int = 3
    nodes: int = 32
    degree: float = 4.0
    graph_seed: int = 0
    examples: int = 1024


class ColouringProblem(DeclaredProblem):
    """Colour the nodes of a graph so that neighbours differ."""

    name = "colouring"
    summary = "graph colouring: colour the nodes of a graph so that neighbours differ"
    config = ColouringConfig
    noun = "colourings"
    defaults = {
        "search": Defaults(SearchOptions()),
        "denoiser": Defaults(DenoiserOptions(), few_steps(steps=800)),
        "encoder": Defaults(EncoderOptions(width=64, blocks=2, hidden=128), few_steps(steps=300, batch=32)),
        "recurrent": Defaults(
            RecurrentOptions(width=64, recurrences=8, solving_steps=16, dropout=0.0, constraint_weight=1.0),
            few_steps(steps=500, batch=32, rate=2e-3),
        ),
        "solver": Defaults(
            SolverOptions(labels=False),
            TrainingConfig(
                steps=500, evaluate_every=500, batch=32, rate=6e-3, warmup=0.03, clip=1.0, ema=0.99
            ),
        ),
    }

    def check(self, config: ColouringConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "colours": (config.colours, 1, 10_000),
                "nodes": (config.nodes, 2, 10**6),
                "degree": (config.degree, 0, 10**6),
                "graph_seed": (config.graph_seed, 0, 2**63 - 1),
                "examples": (config.examples, 1, 10**7),
            },
        )
        super().check(config)

    def files(self, config: ColouringConfig) -> Mapping[str, bytes]:
        """The file of the graph."""
        if not config.graph:
            return {}
        return {Path(config.graph).name: read_bytes(config.graph, "graph")}

    def in_folder(self, config: ColouringConfig, folder: Path) -> ColouringConfig:
        """The configuration with the copy of the graph in a run folder."""
        copy = folder / Path(config.graph).name
        return replace(config, graph=str(copy)) if config.graph and copy.is_file() else config

    def declare(self, config: ColouringConfig) -> unn.FactorGraph:
        """The graph of the file, or a random one."""
        import torch

        from .graph import colourable_edges, declare, read_graph

        if not config.graph:
            if config.colours < 2:
                raise DataError("colouring: a random graph with edges needs at least 2 --colours.")
            generator = torch.Generator().manual_seed(config.graph_seed)
            edges = colourable_edges(config.nodes, config.degree, config.colours, generator)
            return declare(config.nodes, edges, config.colours)
        nodes, edges = read_graph(read_text(config.graph, "graph"), config.graph)
        return declare(nodes, edges, config.colours)

    def generate(
        self, config: ColouringConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Valid colourings, each by a search of its own.

        Raises:
            DataError: if a search ends without one.
        """
        import torch

        import unn

        seed = int(torch.randint(2**31, (), generator=generator))
        search = unn.Search(self.declare(config), SearchOptions(chains=1))
        solutions = unn.solve(search, {}, count=count, options=unn.SolvingOptions(seed=seed))
        if not bool(solutions.solved.all()):
            raise DataError(
                f"colouring: the search ended without a valid colouring with {config.colours} colours; give "
                "more --colours, or train from the constraints alone (--engine solver)."
            )
        return dict(solutions.values)

    def training_set(self, config: Any) -> Mapping[str, Tensor] | None:
        """Colourings that the search draws; none where training uses the constraints alone."""
        return super().training_set(config) if getattr(config.model, "labels", True) else None

    def examples(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Colourings, nothing given; arbitrary colours where training uses the constraints alone."""
        if getattr(config.model, "labels", True):
            return super().examples(config, count, generator, sizes)
        import torch

        graph = self.declare(config)
        nodes = graph.size_table.static[graph.size_table.root("node")]
        colours = torch.randint(config.colours, (count, nodes), generator=generator)
        values = {"X": torch.nn.functional.one_hot(colours, config.colours).float()}
        return values, self.observed(config, count, generator, sizes)

    def observed(
        self, config: ColouringConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Nothing is given."""
        return {}

    def test_queries(
        self, config: ColouringConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """Nothing is given."""
        return {"": Query({})}

    def metrics(
        self, config: ColouringConfig, query: Query, values: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Fraction of valid colourings, and mean number of edges whose ends are equal."""
        conflicts = self.declare(config).constraints[0].violations_of(values)
        return {
            "valid": float((conflicts == 0).float().mean()),
            "conflicts": float(conflicts.float().mean()),
        }

    def run_for(self, run: Trained, texts: tuple[str, ...]) -> Trained:
        """The run with the graph of a file."""
        if not texts:
            return run
        if len(texts) > 1:
            raise DataError(f"{len(texts)} files; give one graph at a time.")
        return self.with_options(run, {"graph": texts[0]})

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """One instance, without given colours."""
        return {}, {}, 1

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """The colours of all nodes, in order."""
        return [" ".join(str(colour) for colour in values["X"][k].argmax(-1).tolist())]

    def first_numbers(self, config: Any) -> dict[str, int]:
        """Colours are numbered from 0."""
        return {"X": 0}

    def encode(self, run: Trained, values: Mapping[str, Tensor]) -> Any:
        """The colours of all nodes, in order."""
        return values["X"].argmax(-1).tolist()
