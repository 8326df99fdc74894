"""Problems whose instances are graphs of their own, read from files; importing this does not load torch."""

from __future__ import annotations

import math
import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import DataError
from unn.extending import (
    Answer,
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    EncoderOptions,
    Query,
    RecurrentOptions,
    RegressorOptions,
    SearchOptions,
    Trained,
    TrainingConfig,
    check_ranges,
)

from .reading import read_bytes, read_text

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    import unn
    from unn.cli.solve import Solve
    from unn.networks.tokens import Given


def few_steps(steps: int, batch: int = 64, rate: float = 1e-3) -> TrainingConfig:
    """Training of a few steps: a run has one instance, and its solutions are few."""
    return TrainingConfig(steps=steps, evaluate_every=steps, batch=batch, rate=rate, clip=1.0, ema=0.99)


_LEAST_SECONDS = 1e-9
"""Time limit of the instances that remain when the time is over; they are propagated, but not searched."""

Line = tuple[int, str]
"""Number of a line in its file, from 1, and its text."""


@dataclass(frozen=True)
class InstanceConfig:
    """Configuration of a run.

    Attributes:
        puzzle: File of the puzzle; without one, a random puzzle.
        puzzle_seed: Seed of the random puzzle.
        examples: Number of solutions in the training set, which a search draws.
    """

    puzzle: str = ""
    puzzle_seed: int = 0
    examples: int = 64


class InstanceProblem(DeclaredProblem):
    """A problem that declares a graph for each instance.

    Instances are files, or drawn at random. Their main variable is X; others count what X implies. A search
    tree needs no training and is the default engine.

    Attributes:
        ranges: range of each option that is a number.
    """

    config = InstanceConfig
    noun = "solutions"
    defaults = {
        "search": Defaults(SearchOptions(mode="depth-first", solving_steps=100_000)),
        "denoiser": Defaults(DenoiserOptions(), few_steps(steps=800)),
        "encoder": Defaults(EncoderOptions(width=64, blocks=2, hidden=128), few_steps(steps=300, batch=32)),
        "regressor": Defaults(RegressorOptions(), few_steps(steps=300)),
        "recurrent": Defaults(
            RecurrentOptions(width=64, recurrences=8, solving_steps=16, dropout=0.0),
            few_steps(steps=500, batch=32, rate=2e-3),
        ),
        "descent": Defaults(DescentOptions(iterations=10, initial="random"), few_steps(steps=50, rate=2e-2)),
    }
    ranges: Mapping[str, tuple[float, float]] = {}

    @abstractmethod
    def parse(self, text: str, source: str) -> Any:
        """Read an instance.

        Args:
            text: contents of the file.
            source: its name, for messages.

        Raises:
            DataError: for a malformed file, with line, column and reason.
        """

    @abstractmethod
    def draw(self, config: Any, generator: torch.Generator) -> Any:
        """A random instance that has a solution."""

    @abstractmethod
    def declare_instance(self, instance: Any) -> unn.FactorGraph:
        """The graph of an instance."""

    @abstractmethod
    def given(self, instance: Any) -> Given:
        """Evidence of an instance, one row."""

    @abstractmethod
    def show(self, instance: Any, values: Mapping[str, Tensor]) -> list[str]:
        """One answer as lines of text, from values of shape ``(*axes)``."""

    def instance(self, config: Any) -> Any:
        """The instance of the file, or a random one.

        Raises:
            DataError: if the file cannot be read.
        """
        if config.puzzle:
            return self.parse(read_text(config.puzzle, "puzzle"), config.puzzle)
        return _drawn(self, self.config(**{x.name: getattr(config, x.name) for x in fields(self.config)}))

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        common = {"puzzle_seed": (0, 2**63 - 1), "examples": (1, 10**7)}
        ranges = {**common, **self.ranges}
        check_ranges(self.name, {name: (getattr(config, name), *bounds) for name, bounds in ranges.items()})
        super().check(config)

    def files(self, config: Any) -> Mapping[str, bytes]:
        """The file of the instance."""
        return {Path(config.puzzle).name: read_bytes(config.puzzle, "puzzle")} if config.puzzle else {}

    def in_folder(self, config: Any, folder: Path) -> Any:
        """The configuration with the copy of the file in a run folder."""
        copy = folder / Path(config.puzzle).name
        return replace(config, puzzle=str(copy)) if config.puzzle and copy.is_file() else config

    def declare(self, config: Any) -> unn.FactorGraph:
        """The graph of the instance."""
        return self.declare_instance(self.instance(config))

    def generate(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Solutions of the instance, each by a search of its own.

        Raises:
            DataError: if a search ends without one.
        """
        import torch

        instance = self.instance(config)
        seed = int(torch.randint(2**31, (), generator=generator))
        values = solved(self.declare_instance(instance), self.given(instance), count, seed)
        if values is None:
            raise DataError(f"{self.name}: the search ended without a solution of this instance.")
        return values

    def observed(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """What the instance gives."""
        return {name: x.mask for name, x in partials(self.given(self.instance(config)), 1).items()}

    def test_queries(self, config: Any, count: int, generator: torch.Generator) -> dict[str, Query]:
        """The instance."""
        return {"": Query(partials(self.given(self.instance(config)), count))}

    def metrics(self, config: Any, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Fraction of values that meet all constraints, and mean number of violations."""
        import torch

        constraints = self.declare(config).constraints
        violations = torch.stack([c.violations_of(values) for c in constraints]).sum(0)
        return {
            "valid": float((violations == 0).float().mean()),
            "violations": float(violations.float().mean()),
        }

    def solve(self, run: Trained, request: Solve) -> Answer:
        """Verified answers to the instances of some files, each with what remains of the time limit and a
        picture of its own; the pictures are numbered."""
        if len(request.instances) < 2:
            return super().solve(run, request)
        # a file that cannot be read ends the command before the work for others begins
        for text in request.instances:
            self.run_for(run, (text,))
        lines: list[str] = []
        data: dict[str, Any] = {}
        solving, began = request.solving, time.perf_counter()
        for number, text in enumerate(request.instances, 1):
            if request.solving.seconds is not None:
                rest = request.solving.seconds - (time.perf_counter() - began)
                solving = replace(request.solving, seconds=max(rest, _LEAST_SECONDS))
            draw = request.draw
            if draw is not None:
                draw = draw.with_stem(f"{draw.stem}-{number}")
            answer = super().solve(run, replace(request, instances=(text,), draw=draw, solving=solving))
            lines += [f"{text}:", *answer.lines]
            for name, value in answer.data.items():
                data[name] = data[name] + value if name in data else value
        return Answer(tuple(lines), data)

    def run_for(self, run: Trained, texts: tuple[str, ...]) -> Trained:
        """The run with the graph of a file."""
        return self.with_options(run, {"puzzle": texts[0]}) if texts else run

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """The evidence of the instance.

        Raises:
            DataError: for an option ``puzzle`` beside another file.
        """
        if texts and run.config.puzzle != texts[0]:
            raise DataError(
                f"{texts[0]}: the option puzzle={run.config.puzzle} names another file; give one."
            )
        return self.given(self.instance(run.config)), {}, 1

    def columns_of(self, instance: Any, cells: int) -> int:
        """Number of columns in which pictures show the cells of an instance; those of a square by default."""
        root = math.isqrt(cells)
        return root if root**2 == cells else cells

    def picture(self, run: Trained, values: Mapping[str, Tensor], given: Given) -> Figure:
        """Draw the cells of samples in their places, without what they imply."""
        import unn

        instance = self.instance(run.config)
        if len(self.declare_instance(instance).variables["X"].node_axes) > 1:
            return super().picture(run, values, given)
        shape = (-1, self.columns_of(instance, values["X"].shape[1]))
        own: dict[str, Tensor | unn.Partial] = {}
        known = given.get("X")
        if isinstance(known, unn.Partial):
            own["X"] = unn.Partial(known.value.unflatten(1, shape), known.mask.unflatten(1, shape))
        return super().picture(run, {"X": values["X"].unflatten(1, shape)}, own)

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """One answer as lines of text."""
        return self.show(self.instance(run.config), {name: x[k] for name, x in values.items()})


@lru_cache(maxsize=32)
def _drawn(problem: InstanceProblem, config: Any) -> Any:
    import torch

    return problem.draw(config, torch.Generator().manual_seed(config.puzzle_seed))


def solved(graph: unn.FactorGraph, given: Given, count: int, seed: int) -> dict[str, Tensor] | None:
    """Solutions of a graph by depth-first search in random order, shape ``(count, *axes)``; None if one of
    the searches ends without."""
    import unn

    search = unn.Search(graph, SearchOptions(mode="depth-first", solving_steps=100_000))
    solutions = unn.solve(
        search, partials(given, count), count=count, options=unn.SolvingOptions(seed=seed, tries=1)
    )
    return dict(solutions.values) if bool(solutions.solved.all()) else None


def partials(given: Given, count: int) -> dict[str, unn.Partial]:
    """Evidence of one instance, repeated."""
    import unn

    expanded = {}
    for name, x in given.items():
        assert isinstance(x, unn.Partial)
        expanded[name] = unn.Partial(
            x.value.expand(count, *x.value.shape[1:]), x.mask.expand(count, *x.mask.shape[1:])
        )
    return expanded


def cells_given(values: list[int], categories: int) -> Given:
    """Evidence on X, one category for each cell: values from 1, 0 for unknown ones."""
    import torch

    import unn

    cells = torch.tensor([values])
    one_hot = torch.nn.functional.one_hot((cells - 1).clamp(min=0), categories).float()
    return {"X": unn.Partial(one_hot, cells > 0)}


def sections(text: str, source: str) -> list[list[Line]]:
    """Lines of a file in sections, which empty lines separate; lines that begin with # are left out.

    Raises:
        DataError: for a file without lines.
    """
    result: list[list[Line]] = [[]]
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        if line.strip():
            result[-1].append((number, line.rstrip()))
        elif result[-1]:
            result.append([])
    result = [section for section in result if section]
    if not result:
        raise DataError(f"{source}: the file has no content.")
    return result


def cells_named(reason: str, columns: int | None = None) -> str:
    """Why an instance has no answer, with cells and numbers of a square from 1, such as ``r1c3=5``.

    Args:
        reason: groups of nodes, as propagation names them.
        columns: number of columns, where the cells have one index; None where they have two.
    """

    def named(match: re.Match[str]) -> str:
        *cell, number = match.groups()
        row, column = map(int, cell) if columns is None else divmod(int(cell[0]), columns)
        return f"r{row + 1}c{column + 1}" + ("" if number is None else f"={int(number) + 1}")

    place = r"(\d+), (\d+)" if columns is None else r"(\d+)"
    return re.sub(rf"X\[{place}\](?: = (\d+))?", named, reason)


def only_section(text: str, source: str) -> list[Line]:
    """Lines of a file of one section; errors as for ``sections``, and for a second one."""
    first, *others = sections(text, source)
    if others:
        raise DataError(
            f"{source}, line {others[0][0][0]}: another part begins after an empty line; a file has one "
            "instance, so write this part into a file of its own."
        )
    return first


def square(lines: list[Line], source: str) -> list[list[str]]:
    """Signs of a square of cells, one row per line; signs longer than one are separated by spaces.

    Raises:
        DataError: for a row of another length, with its line.
    """
    rows = []
    for number, line in lines:
        words = line.split()
        row = words if len(words) > 1 else list(line.strip())
        if len(row) != len(lines):
            raise DataError(
                f"{source}, line {number}: {len(row)} cells, expected {len(lines)}, since there are "
                f"{len(lines)} rows."
            )
        rows.append(row)
    return rows


def numbers(lines: list[Line], source: str, most: int) -> list[int]:
    """Numbers from 1 in a square of cells, row by row; 0 for empty cells, which are any of ``0 . _ ? x *``.

    Raises:
        DataError: for a sign that is no such number, with line and cell.
    """
    result = []
    for (number, _), row in zip(lines, square(lines, source), strict=True):
        for place, sign in enumerate(row, 1):
            if sign in {"0", ".", "_", "?", "x", "*"}:
                result.append(0)
            elif sign.isascii() and sign.isdecimal() and len(sign) < 9 and int(sign) <= most:
                result.append(int(sign))
            else:
                raise DataError(
                    f"{source}, line {number}, cell {place}: {sign!r} is neither a number from 1 to {most} "
                    "nor an empty cell (0 . _ ? x *)."
                )
    return result


def grid_text(values: list[int], columns: int) -> list[str]:
    """Rows of numbers, in columns of equal width; 0 as a dot."""
    wide = len(str(max(values, default=0)))
    words = [(str(value) if value else ".").rjust(wide) for value in values]
    return [" ".join(words[k : k + columns]) for k in range(0, len(words), columns)]
