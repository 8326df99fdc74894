"""Nonograms of one size on the command line; importing it does not load torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from ..nonogram.problem import NonogramProblem
from ..reading import read_text

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    import unn
    from unn.extending import Trained
    from unn.networks.tokens import Given
    from unn.training import Task

    from ..nonogram.problem import Nonogram


_DRAWN = 8
"""Answers in a picture."""


@dataclass(frozen=True)
class PicturesConfig:
    """Configuration of a run of the problem of pictures.

    Attributes:
        rows: Rows of the pictures.
        columns: Columns of the pictures.
        pictures: File of pictures (.npz). Training uses its first part and evaluation its last; without one,
            pictures that their runs determine are drawn at random.
        moved: Mirror the training pictures of a file at random, and transpose those of squares.
        examples: Number of training examples; 0 for an infinite stream, or for all of the file.
    """

    rows: int = 7
    columns: int = 7
    pictures: str = ""
    moved: bool = True
    examples: int = 0


class PicturesProblem(DeclaredProblem, TakesData):
    """Paint pictures from the runs of their rows and columns."""

    name = "pictures"
    summary = "nonograms of one size, one declaration for all: learned from solved ones"
    config = PicturesConfig
    noun = "pictures"
    defaults = {
        "search": Defaults(SearchOptions(mode="depth-first")),
        "recurrent": Defaults(
            # attention along the lines is learned sooner than which cells have a line in common
            RecurrentOptions(
                width=64,
                recurrences=12,
                solving_steps=24,
                dropout=0.0,
                position_deviation=0.2,
                structure="graph",
            ),
            TrainingConfig(
                steps=2000, evaluate_every=1000, batch=64, rate=1e-3, warmup=0.03, clip=1.0, ema=0.998
            ),
        ),
        # its groups exclude all pictures of a line but those with its runs: thousands
        "solver": Defaults(SolverOptions(), few_steps(steps=8, batch=32)),
        "denoiser": Defaults(DenoiserOptions(), few_steps(steps=800)),
        "encoder": Defaults(EncoderOptions(width=64, blocks=2, hidden=128), few_steps(steps=300, batch=32)),
        "regressor": Defaults(RegressorOptions(), few_steps(steps=300)),
        "descent": Defaults(
            DescentOptions(iterations=10, initial="random"), few_steps(steps=50, batch=16, rate=2e-2)
        ),
    }

    def check(self, config: PicturesConfig) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "rows": (config.rows, 1, 10),
                "columns": (config.columns, 1, 10),
                "examples": (config.examples, 0, 10**9),
            },
        )
        super().check(config)

    def task(self, config: PicturesConfig) -> Task:
        """Training on pictures; a checksum of those of the file detects that they changed."""
        from unn.runs import tensor_digest

        from .files import load_pictures

        task = super().task(config)
        if config.pictures:
            training = load_pictures(config.pictures, config.rows, config.columns).training
            task.facts = {"data": {"pictures": tensor_digest(training)}}
        return task

    def declare(self, config: PicturesConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        return declare(config.rows, config.columns)

    def generate(
        self, config: PicturesConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Training pictures of the file, moved if configured, or random ones; with their runs."""
        import torch

        from .files import load_pictures
        from .graph import draw_determined, move_pictures, values_of

        if not config.pictures:
            return values_of(draw_determined(count, config.rows, config.columns, generator))
        training = load_pictures(config.pictures, config.rows, config.columns).training
        chosen = training[torch.randint(len(training), (count,), generator=generator)]
        return values_of(move_pictures(chosen, generator) if config.moved else chosen)

    def observed(
        self, config: PicturesConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The runs of all rows and columns."""
        import torch

        return {name: torch.ones(1, getattr(config, name), dtype=torch.bool) for name in ("rows", "columns")}

    def test_queries(
        self, config: PicturesConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """The runs of test pictures of the file, or of random ones."""
        import torch

        from .files import load_pictures
        from .graph import draw_determined, values_of

        if config.pictures:
            test = load_pictures(config.pictures, config.rows, config.columns).test
            pictures = test[torch.arange(count) % len(test)]
        else:
            pictures = draw_determined(count, config.rows, config.columns, generator)
        values = values_of(pictures)
        return {"": Query({name: values[name] for name in ("rows", "columns")}, values)}

    def metrics(self, config: PicturesConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Fractions of pictures that have the runs, of pictures and of cells that are those that were
        meant."""
        import torch

        from .graph import numbers_of

        X = values["X"].argmax(-1)
        solved = torch.ones(len(X), dtype=torch.bool)
        for name, numbers in zip(("rows", "columns"), numbers_of(X), strict=True):
            given = query.given[name]
            assert isinstance(given, torch.Tensor)
            solved &= (numbers == given.argmax(-1)).all(1)
        figures = {"solved": float(solved.float().mean())}
        if query.truth is not None:
            same = query.truth["X"].argmax(-1) == X
            figures |= {
                "pictures": float(same.flatten(1).all(1).float().mean()),
                "cells": float(same.float().mean()),
            }
        return figures

    def on_data(self, run: Trained, data: Path) -> Trained:
        """The run with the test part of another file of pictures for evaluation."""
        return self.with_options(run, {"pictures": str(data)})

    def run_for(self, run: Trained, texts: tuple[str, ...]) -> Trained:
        """The run with pictures of the size of those in the files."""
        if not texts:
            return run
        sizes = {(len(puzzle.rows), len(puzzle.columns)) for puzzle in map(_read, texts)}
        if len(sizes) > 1:
            raise DataError(f"{', '.join(texts)}: pictures of {len(sizes)} sizes; give one size.")
        ((rows, columns),) = sizes
        if (rows, columns) == (run.config.rows, run.config.columns):
            return run
        return self.with_options(run, {"rows": rows, "columns": columns})

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """Read the nonograms of some files; without one, draw a random picture.

        Raises:
            DataError: for a malformed file, with line, column and reason.
        """
        import torch

        from .graph import given_of, runs_of_lines

        rows, columns = run.config.rows, run.config.columns
        if not texts:
            generator = torch.Generator().manual_seed(0)
            return dict(self.test_queries(run.config, 1, generator)[""].given), {}, 1
        puzzles = [_read(text) for text in texts]
        for text, puzzle in zip(texts, puzzles, strict=True):
            if (len(puzzle.rows), len(puzzle.columns)) != (rows, columns):
                raise DataError(
                    f"{text}: {len(puzzle.rows)} rows and {len(puzzle.columns)} columns, but the options say "
                    f"{rows} and {columns}; leave out rows and columns."
                )
        by_row = torch.tensor([[runs_of_lines(columns).index(x) for x in p.rows] for p in puzzles])
        by_column = torch.tensor([[runs_of_lines(rows).index(x) for x in p.columns] for p in puzzles])
        return dict(given_of(by_row, by_column, rows, columns)), {}, len(puzzles)

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """The picture, black cells as #."""
        picture: Any = values["X"][k].argmax(-1).tolist()
        return ["".join("#" if cell else "." for cell in row) for row in picture]

    def picture(self, run: Trained, values: Mapping[str, Tensor], given: Given) -> Figure:
        """Draw at most eight answers as they are painted."""
        from unn.draw import draw_images

        white = values["X"][:_DRAWN, None, :, :, 0]
        return draw_images(white, [str(k + 1) for k in range(len(white))], columns=4, low=0.0)

    def first_numbers(self, config: Any) -> dict[str, int]:
        """White cells are 0, black cells 1; runs are numbered from 0."""
        return dict.fromkeys(("X", "rows", "columns"), 0)

    def explain(self, run: Trained, reason: str) -> str:
        """Cells with rows and columns from 1, such as ``r1c3 black``."""

        def named(match: re.Match[str]) -> str:
            row, column, colour = map(int, match.groups())
            return f"r{row + 1}c{column + 1} {'black' if colour else 'white'}"

        return re.sub(r"X\[(\d+), (\d+)\] = ([01])", named, reason)

    def encode(self, run: Trained, values: Mapping[str, Tensor]) -> Any:
        """Rows of cells, 1 for black ones."""
        return values["X"].argmax(-1).tolist()


def _read(text: str) -> Nonogram:
    puzzle: Nonogram = NonogramProblem().parse(read_text(text, "puzzle"), text)
    return puzzle
