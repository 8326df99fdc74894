"""Scores of answers against exact ones, and their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLUMNS = {
    "kl": ("KL", "7.4f"),
    "total_variation": ("TV", "7.4f"),
    "log_score": ("log score", "10.4f"),
    "calibration_error": ("calibration", "12.4f"),
    "argmax_match": ("argmax", "7.3f"),
    "mean_error": ("mean", "8.4f"),
    "largest_mean_error": ("largest", "8.3f"),
    "deviation_ratio": ("deviation", "10.3f"),
    "coverage_error": ("coverage", "9.4f"),
}
"""Titles and formats of the columns of the table, by figure; the last column has milliseconds."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Answers for hidden nodes against the exact ones.

    Attributes:
        figures: figures by name, in the order of the table.
        seconds: time of a query.
        bins: points of the reliability diagram: mean estimated probability and mean exact probability, of
            states or of central intervals.
    """

    figures: Mapping[str, float]
    seconds: float
    bins: tuple[tuple[float, float], ...]


def table(rows: Mapping[str, Scores]) -> list[str]:
    """The scores as lines of text; a dash stands for a figure that an answer does not have.

    Args:
        rows: scores by the name of the answer.
    """
    names = [name for name in COLUMNS if any(name in row.figures for row in rows.values())]
    widths = {name: int(COLUMNS[name][1].partition(".")[0]) for name in names}
    label = max(map(len, rows))
    head = " ".join(f"{COLUMNS[name][0]:>{widths[name]}}" for name in names)
    lines = [f"{'':{label}} {head} {'ms':>6}"]
    for title, row in rows.items():
        figures = " ".join(
            f"{row.figures[name]:{COLUMNS[name][1]}}" if name in row.figures else f"{'-':>{widths[name]}}"
            for name in names
        )
        lines.append(f"{title:{label}} {figures} {1000 * row.seconds:6.1f}")
    return lines
