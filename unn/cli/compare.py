"""unn compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from ..errors import UnnError
from ..runs.folder import open_run
from ..runs.metrics import read_metrics
from .evaluate import Evaluate, Metric
from .options import Json, Theme, check_picture
from .verb import Answer, Verb


@dataclass(frozen=True)
class Compare(Verb):
    """Compare runs: print a table of the options in which they differ and of their last metrics, and plot
    these."""

    name: ClassVar[str] = "compare"

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Folders of runs."""
    out: Path | None = None
    """File for a plot of their metrics, or of the measures of ``--metric`` for each query."""
    theme: Theme = "light"
    metric: tuple[Metric, ...] = ()
    """Measures of samples, as of unn evaluate, that are taken of each run; runs of the same problem and
    options answer the same queries."""
    count: int | None = None
    """Queries for ``--metric``."""
    draws: int | None = None
    """Samples of each query for ``--metric``; 1,000 by default, and 100 for both coverages."""
    json: Json = False

    def __call__(self) -> Answer:
        if not self.metric and (self.count is not None or self.draws is not None):
            raise UnnError("--count and --draws are options of --metric; give a measure, or leave them out.")
        if self.out is not None:
            check_picture(self.out)
            if self.metric and {*self.metric} <= {"coverage", "local-coverage"}:
                raise UnnError("--out draws measures of single queries, not coverages; leave it out.")
        measure = Measure(self.metric, self.count, self.draws) if self.metric else None
        return compare(self.runs, self.out, self.theme, measure)


@dataclass(frozen=True)
class Measure:
    """What is measured of each run.

    Attributes:
        metric: names of measures of ``unn evaluate``.
        count: number of queries; None for the default.
        draws: number of samples of each; None for the default.
    """

    metric: tuple[Metric, ...]
    count: int | None
    draws: int | None

    def of(self, folder: Path) -> dict[str, Any]:
        """The figures of a run.

        Raises:
            UnnError: names the run that cannot be measured.
        """
        try:
            answer = Evaluate(folder, metric=self.metric, count=self.count, draws=self.draws)()
        except UnnError as error:
            raise UnnError(f"{folder}: {error}") from None
        (figures,) = answer.data.values()
        return dict(figures)


def compare(folders: Sequence[Path], out: Path | None, theme: str, measure: Measure | None = None) -> Answer:
    """Tabulate the options in which runs differ and their last metrics, and plot the metrics.

    Args:
        folders: run folders.
        out: file for the plot; None draws no plot.
        theme: "light" or "dark".
        measure: what is measured of each run, and plotted, instead of the metrics of training.

    Raises:
        UnnError: if there are no runs, or a run cannot be read or measured.
    """
    if not folders:
        raise UnnError("unn compare needs the folder of at least one run.")
    runs = [open_run(folder) for folder in folders]
    histories = {str(folder): read_metrics(folder) for folder in folders}
    options = {str(run.folder): {"problem": run.problem, **flattened(run.config)} for run in runs}
    names = dict.fromkeys(name for config in options.values() for name in config)
    differing = [name for name in names if len({repr(config.get(name)) for config in options.values()}) > 1]
    queries: dict[str, Sequence[float]] = {}
    if measure is None:
        metrics = {folder: _last(history) for folder, history in histories.items()}
    else:
        metrics = {str(folder): measure.of(folder) for folder in folders}
        for folder, figures in metrics.items():
            queries |= {f"{name} {folder}": each for name, each in figures.pop("queries", {}).items()}
    rows = [
        {"run": folder, **{name: options[folder].get(name) for name in differing}, **metrics[folder]}
        for folder in options
    ]
    lines = _table(rows).splitlines()
    if out is not None and measure is not None:
        from ..draw import draw_measured, save_figure, theme_named
        from .references import IDEAL

        ideal = {name: IDEAL[name.split()[0]] for name in queries}
        save_figure(draw_measured(queries, ideal, theme_named(theme)), out)
        lines.append(f"plot: {out}")
    elif out is not None:
        from ..draw import draw_metrics, save_figure, theme_named

        shown = {run: [_without_rate(entry) for entry in history] for run, history in histories.items()}
        save_figure(draw_metrics(shown, theme=theme_named(theme)), out)
        lines.append(f"plot: {out}")
    return Answer(tuple(lines), {"runs": rows})


def _without_rate(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the learning rate, which follows from the options."""
    return {name: value for name, value in entry.items() if name != "rate"}


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested options to dotted names."""
    options: dict[str, Any] = {}
    for name, value in config.items():
        options |= (
            flattened(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        )
    return options


def _last(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last value of each metric."""
    latest: dict[str, Any] = {}
    for entry in history:
        latest |= entry
    return latest


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
