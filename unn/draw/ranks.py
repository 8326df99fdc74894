"""Rank histograms of simulation-based calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ObservationError
from .theme import LIGHT, Theme, add_title, new_panels, shortened, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS, WIDTH, HEIGHT = 4, 2.4, 1.9  # panels per row, and size of a panel in inches
BINS = 16


def draw_ranks(ranks: Mapping[str, Sequence[float]], theme: Theme = LIGHT) -> Figure:
    """Draw a rank histogram per variable, with the 95% band of bin counts for uniform ranks.

    A calibrated posterior has a flat histogram; one that is too narrow has a U shape, one that is
    too wide a hump.

    Args:
        ranks: ranks of true values among their samples, in [0, 1], by the name of the variable.
        theme: light or dark.

    Raises:
        ObservationError: if there is nothing to draw, or ranks lie outside [0, 1].
    """
    if not ranks or not all(len(values) for values in ranks.values()):
        raise ObservationError("draw_ranks: no ranks to draw.")
    for name, values in ranks.items():
        if not all(0 <= value <= 1 for value in values):
            raise ObservationError(f"draw_ranks: ranks of {name!r} must lie in [0, 1].")
    figure, panels = new_panels(theme, len(ranks), ACROSS, WIDTH, HEIGHT)
    for axes, (name, values) in zip(panels, ranks.items(), strict=True):
        style_axes(axes, theme)
        add_title(axes, theme, shortened(name, 24))
        expected = len(values) / BINS
        # two standard deviations of a binomial count
        margin = 2 * math.sqrt(expected * (1 - 1 / BINS))
        axes.axhspan(max(0, expected - margin), expected + margin, color=theme.fill, alpha=0.45, zorder=3)
        axes.hist(values, bins=BINS, range=(0, 1), color=theme.cycle[0])
        axes.set_xlim(0, 1)
        axes.locator_params(nbins=4)
        axes.set_xlabel("rank of the truth", parse_math=False)
    return figure
