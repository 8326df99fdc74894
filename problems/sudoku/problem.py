"""Sudoku on the command line; importing it does not load torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import DataError
from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    Query,
    RecurrentOptions,
    SearchOptions,
    SolverOptions,
    TakesData,
    TrainingConfig,
    check_ranges,
)

from ..instances import cells_named
from ..reading import locate, read_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.extending import Trained
    from unn.networks.tokens import Given
    from unn.training import Task

    from .puzzles import Puzzles


@dataclass(frozen=True)
class SudokuConfig:
    """Configuration of a run of the sudoku problem.

    Attributes:
        block_rows: Rows of a block.
        block_columns: Columns of a block; the grid has as many rows, columns and digits as a block has cells.
        examples: Number of training grids; 0 for an infinite stream.
        puzzles: File of puzzles, one per line, or a folder of such files (.gz too). Training examples are
            these under random symmetries, and evaluation uses the held-out fifth of each file.
        puzzle_share: Share of the training examples that are puzzles; the others are grids with random cells
            given.
        most_puzzles: Maximum number of training puzzles of each file; 0 for all.
    """

    block_rows: int = 2
    block_columns: int = 2
    examples: int = 0
    puzzles: str = ""
    puzzle_share: float = 0.5
    most_puzzles: int = 0


class SudokuProblem(DeclaredProblem, TakesData):
    """Complete grids from any given cells."""

    name = "sudoku"
    summary = "sudoku with blocks of any shape: sample grids that complete a puzzle"
    config = SudokuConfig
    noun = "grids"
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(prediction="x0", noise="linear", sampler="dpm-solver-sde", spacing="restarts"),
            TrainingConfig(steps=800, evaluate_every=800, batch=64, rate=1e-3, clip=1.0, ema=0.99),
        ),
        "descent": Defaults(
            DescentOptions(iterations=10, initial="random"),
            TrainingConfig(steps=50, evaluate_every=50, batch=64, rate=2e-2, clip=1.0),
        ),
        "recurrent": Defaults(
            RecurrentOptions(width=64, recurrences=16, solving_steps=32, dropout=0.0, position_deviation=0.2),
            TrainingConfig(steps=800, evaluate_every=800, batch=64, rate=2e-3, clip=1.0, ema=0.99),
        ),
        "search": Defaults(SearchOptions(mode="depth-first", solving_steps=100_000)),
        "solver": Defaults(
            # most random cells leave several completions, which labels would average
            SolverOptions(labels=False),
            TrainingConfig(
                steps=3000, evaluate_every=3000, batch=128, rate=6e-3, warmup=0.03, clip=1.0, ema=0.998
            ),
        ),
    }

    def check(self, config: SudokuConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "block_rows": (config.block_rows, 1, 16),
                "block_columns": (config.block_columns, 1, 16),
                "examples": (config.examples, 0, 10**9),
                "puzzle_share": (config.puzzle_share, 0, 1),
                "most_puzzles": (config.most_puzzles, 0, 10**9),
            },
        )
        super().check(config)

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the configuration of a run of an earlier version, in which half of the examples were
        puzzles."""
        earlier = {"puzzle_share": 0.5, "most_puzzles": 0}
        return {**earlier, **super().earlier_config(content)}

    def task(self, config: SudokuConfig) -> Task:
        """Grids generated during training; a checksum of the first detects versions that generate others."""
        import torch

        from unn.runs import tensor_digest

        task = super().task(config)
        first = self.generate(config, 64, torch.Generator().manual_seed(0), {})["X"]
        data = {"generated grids": tensor_digest(first)}
        if config.puzzles:
            puzzles = self.puzzles(config)
            data["puzzles"] = tensor_digest(torch.stack([puzzles.grids, puzzles.given.long()]))
        task.facts = {"data": data}
        return task

    def declare(self, config: SudokuConfig) -> unn.FactorGraph:
        """The graph."""
        from .grids import declare

        return declare(config.block_rows, config.block_columns)

    def generate(
        self, config: SudokuConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Filled grids."""
        from .grids import draw_grids, one_hot

        grids = draw_grids(count, config.block_rows, config.block_columns, generator)
        return {"X": one_hot(grids, config.block_rows * config.block_columns)}

    def observed(
        self, config: SudokuConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Random cells; their number is uniform (structured-diffusion paper, Section 4)."""
        import torch

        n = config.block_rows * config.block_columns
        rank = torch.rand(count, n * n, generator=generator).argsort(1).argsort(1)
        return {"X": (rank < torch.randint(n * n, (count, 1), generator=generator)).view(count, n, n)}

    def examples(
        self, config: SudokuConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Grids and their given cells; a share of them puzzles, if configured."""
        import torch

        from .grids import move_grids, one_hot

        values, observed = super().examples(config, count, generator, sizes)
        if not config.puzzles:
            return values, observed
        puzzles = self.puzzles(config)
        share = round(config.puzzle_share * count)
        chosen = torch.randint(len(puzzles.grids), (share,), generator=generator)
        grids, given = move_grids(
            puzzles.grids[chosen], puzzles.given[chosen], config.block_rows, config.block_columns, generator
        )
        assert given is not None
        values["X"][:share] = one_hot(grids, config.block_rows * config.block_columns)
        observed["X"][:share] = given
        return values, observed

    def puzzles(self, config: SudokuConfig, held_out: bool = False) -> Puzzles:
        """Training puzzles, or the held-out puzzles of all files.

        Raises:
            DataError: if the files cannot be read.
        """
        from .puzzles import load_puzzles, merge_puzzles

        files = load_puzzles(config.puzzles, config.block_rows, config.block_columns)
        if held_out:
            return merge_puzzles([split.held_out for split in files.values()])
        most = config.most_puzzles or None
        return merge_puzzles([split.training.first(most) for split in files.values()])

    def test_queries(self, config: SudokuConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """No cells given; half of the cells of held-out grids; and held-out puzzles by file, if the files
        exist; a warning where they do not."""
        import warnings

        import torch

        from unn import Partial

        from .grids import one_hot
        from .puzzles import load_puzzles

        X = self.generate(config, count, generator, {})["X"]
        n = X.shape[1]
        half = torch.rand(count, n * n, generator=generator).argsort(1).argsort(1) < n * n // 2
        queries = {"": Query({}), "half given": Query({"X": Partial(X, half.view(count, n, n))}, {"X": X})}
        if config.puzzles and not locate(config.puzzles).exists():
            warnings.warn(
                f"sudoku: the puzzles of the run, {locate(config.puzzles)}, do not exist, so that held-out "
                "ones are not measured; give others with --data.",
                stacklevel=2,
            )
        elif config.puzzles:
            for name, split in load_puzzles(config.puzzles, config.block_rows, config.block_columns).items():
                # repeat puzzles to fill the number of conditions
                place = torch.arange(count) % len(split.held_out.grids)
                grids = one_hot(split.held_out.grids[place], n)
                queries[name] = Query({"X": Partial(grids, split.held_out.given[place])}, {"X": grids})
        return queries

    def compared_variables(self, config: SudokuConfig) -> tuple[str, ...]:
        """All cells."""
        return ("X",)

    def on_data(self, run: Trained, data: Path) -> Trained:
        """The run with the held-out puzzles of another file or folder for evaluation."""
        from .puzzles import load_puzzles

        load_puzzles(str(data), run.config.block_rows, run.config.block_columns)
        return replace(run, config=replace(run.config, puzzles=str(data)))

    def metrics(self, config: SudokuConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Fraction of valid grids, and mean number of violated pairs of cells."""
        from .grids import violated_pairs

        wrong = violated_pairs(values["X"].argmax(3), config.block_rows, config.block_columns)
        return {"valid": float((wrong == 0).float().mean()), "violated_pairs": float(wrong.float().mean())}

    def untrained(
        self, config: SudokuConfig, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """Metropolis-Hastings on the program that draws a digit for each empty cell."""
        import torch

        from ..generated.metropolis import metropolis
        from .chain import sudoku

        n = config.block_rows * config.block_columns
        known: Any = given.get("X")
        empty = torch.zeros(1, n, n, dtype=torch.int64)
        puzzles = empty if known is None else torch.where(known.mask, known.value.argmax(3) + 1, empty)
        program = sudoku(puzzles, config.block_rows, config.block_columns)
        return {"Metropolis-Hastings": metropolis(program, count, chain_steps, seed=0).values}

    def blocks(self, config: SudokuConfig) -> dict[str, tuple[int, int]]:
        """Blocks of the puzzle."""
        return {"X": (config.block_rows, config.block_columns)}

    def read_given(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int]]:
        """Read a puzzle from a file, or from its cells in one line."""
        import torch

        from unn import Partial

        from .grids import one_hot

        if not texts:
            return {}, {}
        if len(texts) > 1:
            raise DataError(f"--given takes one puzzle, got {len(texts)}.")
        config = run.config
        n = config.block_rows * config.block_columns
        puzzles = _read(texts[0], "--given", config)
        if len(puzzles) > 1:
            raise DataError(f"{texts[0]}: {len(puzzles)} puzzles; give one at a time.")
        cells = torch.tensor(puzzles[0]).view(1, n, n)
        return {"X": Partial(one_hot((cells - 1).clamp(min=0), n), cells > 0)}, {}

    def run_for(self, run: Trained, texts: tuple[str, ...]) -> Trained:
        """The run with blocks of the shape of the puzzles, by their number of cells; weights are the same."""
        n = run.config.block_rows * run.config.block_columns
        sizes = {_size(text, n) for text in texts}
        if not sizes or sizes == {n}:
            return run
        if len(sizes) > 1:
            raise DataError(
                f"the puzzles have {' and '.join(map(str, sorted(sizes)))} digits; give one size."
            )
        (size,) = sizes
        rows = max(k for k in range(1, int(size**0.5) + 1) if size % k == 0)
        return self.with_options(run, {"block_rows": rows, "block_columns": size // rows})

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """Read the puzzles of some files, or one from its cells in a line."""
        import torch

        from unn import Partial

        from .grids import one_hot

        config = run.config
        n = config.block_rows * config.block_columns
        if not texts:
            raise DataError(
                "give a file of puzzles, or the cells of one in a line: unn solve sudoku puzzle.txt."
            )
        grids = torch.tensor([grid for text in texts for grid in _read(text, "unn solve", config)])
        cells = grids.view(-1, n, n)
        return {"X": Partial(one_hot((cells - 1).clamp(min=0), n), cells > 0)}, {}, len(cells)

    def explain(self, run: Trained, reason: str) -> str:
        """Cells and digits from 1, such as ``r1c3=5``."""
        return cells_named(reason)

    def encode(self, run: Trained, values: Mapping[str, Tensor]) -> Any:
        """A grid as rows of digits from 1."""
        return (values["X"].argmax(-1) + 1).tolist()

    def show_value(self, run: Trained, name: str, value: Tensor) -> str:
        """The most probable digits of the first grid."""
        return "\n".join(["", *self.describe(run, {name: value}, 0)])

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """A grid with rules between its blocks."""
        from .files import grid_lines

        digits: Any = (values["X"][k].argmax(2) + 1).flatten().tolist()
        return grid_lines(digits, run.config.block_rows, run.config.block_columns)


_SIGNS = "0123456789._?xX*"
"""Digits and signs of empty cells of a puzzle in a line."""


def _size(text: str, usual: int) -> int:
    """Number of digits of the puzzles of a file, or of one in a line."""
    from .files import digits_of

    return digits_of(text if all(sign in _SIGNS for sign in text) else read_text(text, "puzzle"), usual)


def _read(text: str, option: str, config: SudokuConfig) -> list[list[int]]:
    """Read the puzzles of a file, or one from its cells in a line.

    Raises:
        DataError: if there is no such file, or for malformed puzzles, with line, column and reason.
    """
    from .files import read_puzzles

    n = config.block_rows * config.block_columns
    if len(text) == n * n and all(sign in _SIGNS for sign in text):
        return read_puzzles(text, config.block_rows, config.block_columns, option)
    path = Path(text)
    if "=" in text and not os.path.isfile(path):
        raise DataError(
            f"{option} {text}: give the puzzle alone, as a file or as {n * n} cells in a line, without a "
            "name."
        )
    if all(sign in _SIGNS for sign in text) and not os.path.isfile(path):
        raise DataError(
            f"{option} {text}: {len(text)} symbols, but a puzzle in a line has {n * n}: the digits 1 to {n} "
            f"and . or 0 for an empty cell. There is no file of that name either."
        )
    return read_puzzles(read_text(text, "puzzle"), config.block_rows, config.block_columns, str(path))
