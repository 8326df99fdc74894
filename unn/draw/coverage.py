"""Curves of expected coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ObservationError
from .theme import LIGHT, Theme, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_coverage(probabilities: Sequence[float], theme: Theme = LIGHT) -> Figure:
    """Draw the share of conditions whose coverage probability is below each level.

    It is the diagonal for the right posterior, within the band of 95% of the curves of uniform numbers
    (Kolmogorov).

    Args:
        probabilities: numbers in [0, 1], such as those of ``unn.calibration.expected_coverage``.
        theme: light or dark.

    Raises:
        ObservationError: for no probabilities, or some outside [0, 1].
    """
    ordered = sorted(float(p) for p in probabilities)
    if not ordered or not 0 <= ordered[0] <= ordered[-1] <= 1:
        raise ObservationError("draw_coverage: probabilities in [0, 1] are needed, at least one.")
    count = len(ordered)
    margin = 1.36 / math.sqrt(count)
    figure = new_figure(theme, 3.2, 3.0)
    axes = figure.subplots()
    style_axes(axes, theme)
    axes.fill_between([0, 1], [-margin, 1 - margin], [margin, 1 + margin], color=theme.fill, alpha=0.45)
    axes.plot([0, 1], [0, 1], color=theme.muted, linewidth=0.8)
    steps = [k / count for k in range(count + 1)]
    axes.step([0, *ordered], steps, where="post", color=theme.cycle[0])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("level", parse_math=False)
    axes.set_ylabel("expected coverage", parse_math=False)
    return figure


def draw_local_coverage(
    levels: Sequence[float],
    shares: Sequence[Sequence[float]],
    band: Sequence[float],
    theme: Theme = LIGHT,
) -> Figure:
    """Draw by how much the coverage near each condition differs from its level.

    Args:
        levels: levels in (0, 1).
        shares: coverage at each level near each condition, as ``unn.local_coverage.local_coverage`` has it.
        band: largest difference at each level that is expected of the right posterior.
        theme: light or dark.

    Raises:
        ObservationError: for no conditions, or rows of another length than the levels.
    """
    if not len(shares) or any(len(row) != len(levels) for row in (*shares, band)):
        raise ObservationError("draw_local_coverage: a share of each level is needed for every condition.")
    figure = new_figure(theme, 3.2, 3.0)
    axes = figure.subplots()
    style_axes(axes, theme)
    axes.fill_between(levels, [-x for x in band], band, color=theme.fill, alpha=0.45)
    axes.axhline(0, color=theme.muted, linewidth=0.8)
    opacity = max(0.08, min(0.8, 12 / len(shares)))
    for row in shares:
        difference = [share - level for share, level in zip(row, levels, strict=True)]
        axes.plot(levels, difference, color=theme.cycle[0], linewidth=0.7, alpha=opacity)
    axes.set_xlim(0, 1)
    axes.set_xlabel("level", parse_math=False)
    axes.set_ylabel("local coverage - level", parse_math=False)
    return figure
