"""Energy curves: the total and the term of each factor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ObservationError
from .theme import FINE, LIGHT, Theme, add_legend, line_style, new_figure, shortened, style_axes
from .values import as_array, check_schedule, described

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

NAMED = 30  # maximum number of updates with names on the x axis
ROUNDS = 12  # maximum number of numbered rounds on the x axis, besides the first


def draw_energy(energy: Tensor, schedule: Sequence[str] | None = None, theme: Theme = LIGHT) -> Figure:
    """Plot the energy after each update: the mean over the batch and the band between its 10% and
    90% quantiles.

    Args:
        energy: shape ``(updates, batch)``, as in ``Solution.energy``; non-finite entries are skipped.
        schedule: name of each update, as in ``Solution.schedule``. Up to 30 updates are named; otherwise the
            rounds are numbered.
        theme: light or dark.

    Raises:
        ObservationError: if the energy has another shape, or the schedule another length.
    """
    values = _updates_by_batch("draw_energy", energy)
    check_schedule("draw_energy", len(values), schedule)
    figure = new_figure(theme, 6.4, 3.8)
    axes = figure.add_subplot()
    style_axes(axes, theme)
    numbers, means = _finite_means(values)
    handles: list[Artist] = []
    if values.shape[1] > 1:
        finite = [row[np.isfinite(row)] for row in values[numbers - 1]]
        low, high = ([float(np.quantile(row, q)) for row in finite] for q in (0.1, 0.9))
        label = "10% to 90% of the batch"
        handles.append(
            axes.fill_between(numbers, low, high, color=theme.cycle[0], alpha=0.25, linewidth=0, label=label)
        )
    handles += axes.plot(
        numbers, means, color=theme.cycle[0], marker="o", markersize=3, label="mean over the batch"
    )
    _name_updates(axes, theme, len(values), schedule)
    add_legend(axes, theme, handles)
    return figure


def draw_energy_terms(
    terms: Mapping[str, Tensor], schedule: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Figure:
    """Plot the energy of each regularizer and factor after each update, and their sum, as means
    over the batch.

    The terms that change most are coloured, sorted by their change in the legend; the others are faint.

    Args:
        terms: energies by name, shape ``(updates, batch)`` each; non-finite entries are skipped.
        schedule: name of each update, as in ``Solution.schedule``.
        theme: light or dark.

    Raises:
        ObservationError: if there are no terms, a shape is wrong, or the schedule has another length.
    """
    shares = _shares(terms)
    updates = len(next(iter(shares.values())))
    check_schedule("draw_energy_terms", updates, schedule)
    means = {name: _finite_means(share) for name, share in shares.items()}
    order = sorted(
        means, key=lambda name: -float(np.ptp(means[name][1])) if len(means[name][1]) else math.inf
    )
    leading, rest = order[: len(theme.cycle)], order[len(theme.cycle) :]
    figure = new_figure(theme, 7.6, 4.2)
    axes = figure.add_subplot()
    style_axes(axes, theme)
    small: dict[str, Any] = {"marker": "o", "markersize": 2.5}
    with np.errstate(invalid="ignore"):
        total = _finite_means(np.sum(list(shares.values()), axis=0))
    handles = axes.plot(
        *total, color=theme.foreground, linewidth=2.2, zorder=4, label="total energy", **small
    )
    for number, name in enumerate(leading):
        handles += axes.plot(
            *means[name],
            linewidth=1.4,
            zorder=3,
            label=shortened(name, 32),
            **small,
            **line_style(theme, number),
        )
    crowd = [
        line
        for name in rest
        for line in axes.plot(*means[name], color=theme.faint, linewidth=0.7, zorder=2, **small)
    ]
    if crowd:
        crowd[0].set_label(shortened(rest[0], 32) if len(rest) == 1 else f"{len(rest)} others")
    _name_updates(axes, theme, updates, schedule)
    add_legend(figure, theme, [*handles, *crowd[:1]], loc="outside right upper")
    return figure


def _updates_by_batch(who: str, energy: object, what: str = "energies") -> NDArray[np.float64]:
    values = as_array(energy)
    if values is None or values.ndim != 2:
        raise ObservationError(
            f"{who} takes {what} of shape (updates, batch), got {described(energy)}; infer gives them with "
            "trace=True."
        )
    return values.astype(np.float64, copy=False)


def _shares(terms: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    if not isinstance(terms, Mapping) or not terms:
        raise ObservationError(
            f"draw_energy_terms takes energies of shape (updates, batch) by name, at least one, got "
            f"{terms!r}."
        )
    shares = {
        str(name): _updates_by_batch("draw_energy_terms", share, f"{name!r}: energies")
        for name, share in terms.items()
    }
    first = next(iter(shares))
    for name, share in shares.items():
        if share.shape != shares[first].shape:
            raise ObservationError(
                f"draw_energy_terms: {name!r} has shape {share.shape}, but {first!r} has "
                f"{shares[first].shape}; pass all terms of one run."
            )
    return shares


def _finite_means(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers (from 1) of the updates at which some entry of the batch is finite, and the means of those
    that are."""
    finite = np.isfinite(values)
    counts = finite.sum(1)
    rows = np.flatnonzero(counts)
    return rows + 1, np.where(finite, values, 0).sum(1)[rows] / counts[rows]


def _name_updates(axes: Axes, theme: Theme, updates: int, schedule: Sequence[str] | None) -> None:
    axes.set(xlabel="update", ylabel="energy", xlim=(0.5, max(1, updates) + 0.5))
    axes.locator_params(axis="x", integer=True)
    if not schedule:
        return
    names = [shortened(name, 24) for name in schedule]
    length = round_length(schedule)
    rounds = math.ceil(len(names) / length)
    if len(names) <= NAMED:
        axes.set_xticks(
            range(1, len(names) + 1),
            names,
            rotation=90,
            fontsize=FINE,
            color=theme.foreground,
            parse_math=False,
        )
    elif rounds > 1:
        step = next(
            nice
            for power in range(9)
            for nice in (10**power, 2 * 10**power, 5 * 10**power)
            if nice * ROUNDS >= rounds
        )
        numbered = sorted({1, *range(step, rounds + 1, step)})
        axes.set_xticks(
            [(number - 1) * length + 1 for number in numbered], [str(number) for number in numbered]
        )
        axes.set_xlabel(
            shortened(f"round, each of the updates {', '.join(names[:length])}", 90), parse_math=False
        )
    if 1 < rounds <= NAMED and length > 1:
        for number in range(1, rounds):
            axes.axvline(number * length + 0.5, color=theme.faint, linewidth=0.5, zorder=0)


def round_length(schedule: Sequence[str]) -> int:
    """Period of a schedule in updates; its full length if it does not repeat."""
    names = list(schedule)
    for length in range(1, len(names) // 2 + 1):
        if names[length:] == names[:-length]:
            return length
    return len(names)
