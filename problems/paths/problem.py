"""Shortest paths on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from unn.errors import DataError
from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    EncoderOptions,
    Query,
    RecurrentOptions,
    RegressorOptions,
    SearchOptions,
    SolverOptions,
    TakesData,
    TrainingConfig,
    check_ranges,
)

from ..instances import few_steps
from ..reading import read_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.extending import Trained
    from unn.networks.tokens import Given

    from .grid import Grid, Instance


@dataclass(frozen=True)
class PathsConfig:
    """Configuration of a run of the problem of shortest paths.

    Attributes:
        rows: Rows of nodes.
        columns: Columns of nodes.
        removed: Share of the edges that are removed.
        declared: Declared are the distances of all nodes, which prove that a path is shortest, or only the
            degrees of the nodes of a path, by a loss or by counts, which solvers read.
        levels: Number of distances, from 0; 0 for twice the rows and columns.
        grids: File of grids (.npz). Training uses its training part and evaluation its test part; without
            one, grids are drawn at random.
        examples: Number of training examples; 0 for an infinite stream, or for all of the file.
    """

    rows: int = 4
    columns: int = 4
    removed: float = 1 / 3
    declared: Literal["distances", "degrees", "counts"] = "distances"
    levels: int = 0
    grids: str = ""
    examples: int = 0


class PathsProblem(DeclaredProblem, TakesData):
    """A shortest path between two nodes of a grid with removed edges."""

    name = "paths"
    summary = "shortest paths between two nodes of grids with removed edges"
    config = PathsConfig
    noun = "paths"
    defaults = {
        "search": Defaults(SearchOptions(mode="depth-first")),
        "solver": Defaults(
            SolverOptions(oldest=32),
            TrainingConfig(
                steps=3000, evaluate_every=3000, batch=32, rate=6e-3, warmup=0.03, clip=1.0, ema=0.998
            ),
            problem={"declared": "counts"},
        ),
        # distances have hundreds of nodes, which are too many for dense attention
        "denoiser": Defaults(DenoiserOptions(), few_steps(steps=300), problem={"declared": "degrees"}),
        "encoder": Defaults(
            EncoderOptions(width=64, blocks=2, hidden=128),
            few_steps(steps=300, batch=32),
            problem={"declared": "degrees"},
        ),
        "regressor": Defaults(RegressorOptions(), few_steps(steps=300), problem={"declared": "degrees"}),
        "descent": Defaults(
            DescentOptions(iterations=10, initial="random"),
            few_steps(steps=50, batch=16, rate=2e-2),
            problem={"declared": "degrees"},
        ),
        "recurrent": Defaults(
            RecurrentOptions(recurrences=16, solving_steps=32, dropout=0.0),
            TrainingConfig(
                steps=150, evaluate_every=150, batch=32, rate=1e-3, warmup=0.03, clip=1.0, ema=0.99
            ),
            problem={"declared": "degrees"},
        ),
    }

    def check(self, config: PathsConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "rows": (config.rows, 1, 100),
                "columns": (config.columns, 1, 100),
                "removed": (config.removed, 0, 0.9),
                "levels": (config.levels, 0, 10_000),
                "examples": (config.examples, 0, 10**9),
            },
        )
        if config.rows * config.columns < 2:
            raise DataError(f"{self.name}: a grid has at least two nodes; give more --rows or --columns.")
        edges = len(_grid(config).edges)
        if round(config.removed * edges) == edges:
            raise DataError(f"{self.name}: all {edges} edges would be removed; give a smaller --removed.")
        if config.levels == 1:
            raise DataError(f"{self.name}: levels are at least 2: the end of a path and a node beside it.")
        super().check(config)

    def declare(self, config: PathsConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare_counts, declare_degrees, declare_distances

        grid = _grid(config)
        if config.declared == "distances":
            return declare_distances(grid, _levels(config))
        return declare_degrees(grid) if config.declared == "degrees" else declare_counts(grid)

    def generate(
        self, config: PathsConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Grids of the file or random ones, and the first of their shortest paths in the order of nodes, an
        answer that depends on the grid alone; with counts, whose networks have no order of nodes, any of
        them."""
        import torch

        from .graph import values_of

        grid = _grid(config)
        instances = self._instances(config, count, generator, held_out=False)
        if config.declared == "counts":
            random = Random(int(torch.randint(2**62, (), generator=generator)))
            paths = [grid.random_path(instance, random) for instance in instances]
        else:
            paths = [grid.first_path(instance) for instance in instances]
        return values_of(grid, instances, paths, config.declared, _levels(config))

    def observed(
        self, config: PathsConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The open edges and the two nodes."""
        import torch

        grid = _grid(config)
        edges = "closed" if config.declared == "counts" else "open"
        nodes = "role" if config.declared == "distances" else "ends"
        return {
            edges: torch.ones(1, len(grid.edges), dtype=torch.bool),
            nodes: torch.ones(1, grid.rows * grid.columns, dtype=torch.bool),
        }

    def test_queries(self, config: PathsConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """Grids of the test part of the file, or random ones."""
        from .graph import given_of

        instances = self._instances(config, count, generator, held_out=True)
        return {"": Query(dict(given_of(_grid(config), instances, config.declared)))}

    def metrics(self, config: PathsConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Fractions of answers that are a path, that use open edges alone, and that are a shortest path; by
        breadth-first search, not by the constraints."""
        from .graph import instances_of, used_edges

        grid = _grid(config)
        used: Any = used_edges(grid, values).tolist()
        instances = instances_of(query.given)
        pairs = list(zip(instances, used, strict=True))
        open_grid = (True,) * len(grid.edges)
        return {
            "path": _mean(grid.is_path(replace(instance, open_edges=open_grid), x) for instance, x in pairs),
            "open": _mean(all(k or not n for k, n in zip(instance.open_edges, x)) for instance, x in pairs),
            "shortest": _mean(grid.is_shortest(instance, x) for instance, x in pairs),
        }

    def on_data(self, run: Trained, data: Path) -> Trained:
        """The run with the test part of another file of grids for evaluation, of their size."""
        from .files import grid_of_file

        grid = grid_of_file(str(data))
        return self.with_options(run, {"grids": str(data), "rows": grid.rows, "columns": grid.columns})

    def run_for(self, run: Trained, texts: tuple[str, ...]) -> Trained:
        """The run with grids of the size of those in the files."""
        if not texts:
            return run
        grid, _ = _read(texts)
        size = {"rows": grid.rows, "columns": grid.columns}
        if all(getattr(run.config, name) == value for name, value in size.items()):
            return run
        return self.with_options(run, size)

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """Read the grids of some files; without one, draw a random grid.

        Raises:
            DataError: for a malformed file, with line, column and reason; for a path that needs more levels.
        """
        import torch

        from .graph import given_of

        if not texts:
            generator = torch.Generator().manual_seed(0)
            return dict(self.test_queries(run.config, 1, generator)[""].given), {}, 1
        grid, instances = _read(texts)
        levels = _levels(run.config)
        for number, instance in enumerate(instances, 1):
            distance = grid.distances(instance.open_edges, instance.end)[instance.start]
            if run.config.declared == "distances" and distance is not None and distance >= levels:
                raise DataError(
                    f"grid {number}: its shortest path may have more than {levels - 1} edges, the greatest "
                    f"distance declared; give --options levels={grid.rows * grid.columns}."
                )
        given = given_of(grid, instances, run.config.declared)
        return dict(given), {}, len(instances)

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """The grid with its path."""
        from .graph import instances_of, used_edges
        from .grid import grid_text

        grid = _grid(run.config)
        one = {name: x[k : k + 1] for name, x in values.items()}
        used: Any = used_edges(grid, one)[0].tolist()
        instance = instances_of(one)[0]
        lines = grid_text(grid, instance, used)
        if grid.is_path(instance, used) and not grid.is_shortest(instance, used):
            shortest = grid.distances(instance.open_edges, instance.end)[instance.start]
            lines.append(f"a detour of {sum(used)} edges, where {shortest} are enough")
        return lines

    def explain(self, run: Trained, reason: str) -> str:
        """No path joins the two nodes, since nothing else is given."""
        return "that a path of open edges joins the start and the end"

    def first_numbers(self, config: Any) -> dict[str, int]:
        """All categories are numbered from 0, which is false for those with two."""
        return dict.fromkeys(("open", "role", "within", "across", "used"), 0)

    def encode(self, run: Trained, values: Mapping[str, Tensor]) -> Any:
        """Pairs of nodes, the edges of the path."""
        from .graph import used_edges

        grid = _grid(run.config)
        used = used_edges(grid, {name: x.unsqueeze(0) for name, x in values.items()})[0]
        return [list(edge) for edge, x in zip(grid.edges, used.tolist(), strict=True) if x]

    def _instances(
        self, config: PathsConfig, count: int, generator: torch.Generator, held_out: bool
    ) -> list[Instance]:
        import torch

        from .files import load_grids

        random = Random(int(torch.randint(2**62, (), generator=generator)))
        if not config.grids:
            grid = _grid(config)
            return [grid.draw(config.removed, _levels(config) - 1, random) for _ in range(count)]
        parts = load_grids(config.grids, _grid(config))
        if not held_out:
            return random.choices(parts.training, k=count)
        return [parts.test[k % len(parts.test)] for k in range(count)]


def _grid(config: PathsConfig) -> Grid:
    from .grid import Grid

    return Grid(config.rows, config.columns)


def _levels(config: PathsConfig) -> int:
    return config.levels or 2 * (config.rows + config.columns)


def _read(texts: tuple[str, ...]) -> tuple[Grid, list[Instance]]:
    from .grid import common_size, read_grids

    grids = [read_grids(read_text(text, "grid"), text) for text in texts]
    grid = common_size([grid for grid, _ in grids], texts)
    return grid, [instance for _, instances in grids for instance in instances]


def _mean(answers: Iterable[bool]) -> float:
    values = list(answers)
    return float(sum(values) / len(values))
