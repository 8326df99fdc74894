"""Corner plots: the joint distribution of several numbers in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..errors import ObservationError
from .theme import LIGHT, Theme, new_figure, shortened, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

CELL, MOST, BINS = 1.6, 12, 30  # size of a panel in inches, largest number of rows, bins of histograms


def draw_corner(
    values: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None = None,
    truth: Mapping[str, Tensor] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw samples of several numbers: histograms of each, and points of each pair.

    Args:
        values: samples by variable, shape ``(count, *shape)``; the entries of a variable are numbers of their
            own.
        reference: samples of another distribution of the same variables, drawn below as a second colour.
        truth: values that are marked, shape ``(*shape)``.
        theme: light or dark.

    Raises:
        ObservationError: for no samples, more than 12 numbers, or variables that the reference or the truth
            lacks.
    """
    numbers = _numbers("samples", values)
    other = (
        None if reference is None else _numbers("the reference", _parts("the reference", reference, values))
    )
    marked = None
    if truth is not None:
        parts = _parts("the truth", truth, values)
        marked = _numbers("the truth", {name: x[None] for name, x in parts.items()})
    if len(numbers) > MOST:
        raise ObservationError(
            f"draw_corner: {len(numbers)} numbers are too many for one picture, at most {MOST}; "
            "choose variables."
        )
    figure = new_figure(theme, CELL * len(numbers) + 0.6, CELL * len(numbers) + 0.4)
    grid = figure.subplots(len(numbers), len(numbers), squeeze=False)
    names = list(numbers)
    for row, below in enumerate(names):
        for column, name in enumerate(names):
            axes = grid[row, column]
            if column > row:
                axes.set_axis_off()
                continue
            style_axes(axes, theme)
            axes.locator_params(nbins=3)
            for k, part in enumerate(x for x in (other, numbers) if x is not None):
                colour = theme.cycle[0] if part is numbers else theme.cycle[1]
                if row == column:
                    ends = _ends(numbers[name], None if other is None else other[name])
                    axes.hist(
                        part[name].numpy(),
                        BINS,
                        range=ends,
                        density=True,
                        histtype="step",
                        color=colour,
                        zorder=3 + k,
                    )
                else:
                    axes.plot(
                        part[name][:2000], part[below][:2000], ".", markersize=1.5, alpha=0.4, color=colour
                    )
            if marked is not None:
                axes.axvline(float(marked[name][0]), color=theme.foreground, linewidth=0.8, zorder=5)
                if row != column:
                    axes.axhline(float(marked[below][0]), color=theme.foreground, linewidth=0.8, zorder=5)
            if row == len(names) - 1:
                axes.set_xlabel(shortened(name, 16), parse_math=False)
            if column == 0 and row:
                axes.set_ylabel(shortened(below, 16), parse_math=False)
            if row == column:
                axes.set_yticks([])
    return figure


def _parts(what: str, values: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The values of some variables."""
    for name in names:
        if name not in values:
            raise ObservationError(f"draw_corner: {what} has no variable {name!r}.")
    return {name: values[name] for name in names}


def _numbers(what: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Samples of each number by its name, shape ``(count,)``."""
    from torch import Tensor

    numbers: dict[str, Tensor] = {}
    for name, x in values.items():
        if not isinstance(x, Tensor) or not x.ndim or not len(x) or not bool(x.isfinite().all()):
            raise ObservationError(
                f"draw_corner: {what} of {name!r} need finite values of at least one sample."
            )
        flat = x.detach().cpu().reshape(len(x), -1)
        for k in range(flat.shape[1]):
            numbers[name if x.ndim == 1 else f"{name}[{k}]"] = flat[:, k]
    if not numbers:
        raise ObservationError(f"draw_corner: {what} have no variable.")
    return numbers


def _ends(one: Tensor, other: Tensor | None) -> tuple[float, float]:
    parts = [one] if other is None else [one, other]
    low, high = min(float(x.min()) for x in parts), max(float(x.max()) for x in parts)
    return (low, high) if low < high else (low - 0.5, high + 0.5)
