"""Curves show every number that is there, in order, and never more names than can be read."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba

import unn
from factors import Multilinear
from unn.descent.energy import energy_terms
from unn.draw import DARK, LIGHT, draw_energy, draw_energy_terms, draw_images, draw_metrics
from unn.errors import ObservationError

# -- energies ------------------------------------------------------------------------------------------------


def test_energy_takes_arrays_and_tensors_of_any_dtype_and_with_gradients():
    values = [[3.0, 1.0], [1.0, 0.0]]
    for energy in (
        np.array(values),
        np.array(values, dtype=np.float32),
        torch.tensor(values).bfloat16(),
        torch.tensor(values, requires_grad=True),
    ):
        (line,) = draw_energy(energy).axes[0].lines
        assert line.get_ydata().tolist() == [2.0, 0.5]


def test_energy_of_no_update_or_an_empty_batch_is_an_empty_picture():
    for shape in ((0, 3), (3, 0)):
        figure = draw_energy(torch.zeros(shape))
        rendered(figure)
        assert not len(figure.axes[0].lines[0].get_xdata())


def test_terms_are_means_over_the_finite_entries_and_their_sum_is_the_total():
    one, other = torch.tensor([[torch.inf, 4.0], [3.0, 1.0]]), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    lines = curves(draw_energy_terms({"one": one, "other": other}))
    assert lines["one"] == ([1, 2], [4.0, 2.0])
    assert lines["other"] == ([1, 2], [1.5, 0.5])
    assert lines["total energy"] == ([1, 2], [6.0, 2.5])


def test_terms_of_a_graph_add_up_to_its_energy():
    g = unn.FactorGraph("pair", a=3)
    X, Y = g.variable("X", "a", unn.SquaredNorm()), g.variable("Y", "a", unn.SignedEntropy())
    g.factor(Multilinear(X["i"], Y["i"]))
    generator = torch.Generator().manual_seed(0)
    values = [
        {"X": torch.randn(4, 3, generator=generator), "Y": torch.rand(4, 3, generator=generator) - 0.5}
        for _ in range(5)
    ]
    traces = [energy_terms(g, value) for value in values]
    terms = {name: torch.stack([trace[name].expand(4) for trace in traces]) for name in traces[0]}
    drawn = curves(draw_energy_terms(terms))["total energy"][1]
    # an energy near 0 is a sum of terms of the order of 1
    assert drawn == pytest.approx([float(g.energy(value).mean()) for value in values], rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 6, 7, 8, 30])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_terms_that_change_most_have_colours_and_the_others_are_one_faint_crowd(count, theme):
    terms = {
        f"term {k} {'with a very long name' * 3}": torch.linspace(0, k, 5)[:, None] for k in range(count)
    }
    figure = draw_energy_terms(terms, theme=theme)
    rendered(figure)
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    leading = [f"term {k} " for k in reversed(range(count))][:6]
    assert (
        labels[0] == "total energy"
        and [label[: len(start)] for label, start in zip(labels[1:], leading, strict=False)] == leading
    )
    assert len(labels) <= 8 and max(map(len, labels)) <= 32
    if count > 7:
        assert labels[7] == f"{count - 6} others"
    colours = [to_rgba(line.get_color()) for line in figure.axes[0].lines]
    assert len(colours) == count + 1 and len(set(colours[: 1 + min(6, count)])) == 1 + min(6, count)
    assert set(colours[7:]) <= {to_rgba(theme.faint)}
    check_apart([text.get_window_extent() for text in legend.get_texts()], figure.bbox)
    assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent())


def test_terms_without_a_finite_entry_leave_the_others_alone():
    figure = draw_energy_terms(
        {"out": torch.full((3, 2), torch.inf), "down": -torch.full((3, 2), torch.inf), "in": torch.ones(3, 2)}
    )
    rendered(figure)
    lines = curves(figure)
    assert lines["out"] == lines["down"] == lines["total energy"] == ([], [])
    assert lines["in"] == ([1, 2, 3], [1.0, 1.0, 1.0])


def test_terms_refuse_what_does_not_fit_together():
    with pytest.raises(ObservationError, match="at least one"):
        draw_energy_terms({})
    with pytest.raises(ObservationError, match="by name"):
        draw_energy_terms(torch.ones(3, 2))
    with pytest.raises(
        ObservationError, match=r"'W': energies of shape \(updates, batch\), got shape \(3,\)"
    ):
        draw_energy_terms({"W": torch.ones(3)})
    with pytest.raises(ObservationError, match=r"'V' has shape \(2, 2\), but 'W' has \(3, 2\)"):
        draw_energy_terms({"W": torch.ones(3, 2), "V": torch.ones(2, 2)})
    with pytest.raises(ObservationError, match="3 updates, but 1 names"):
        draw_energy_terms({"W": torch.ones(3, 2)}, ["H"])
    with pytest.raises(ObservationError, match="3 updates, but 'abc'"):
        draw_energy(torch.ones(3, 2), "abc")


@pytest.mark.parametrize("updates", [1, 12, 31, 200])
def test_names_of_updates_never_meet(updates):
    figure = draw_energy_terms(
        {"W": torch.ones(updates, 1)}, [f"a_long_variable_{k}" for k in range(updates)]
    )
    rendered(figure)
    check_apart(
        [label.get_window_extent() for label in figure.axes[0].get_xticklabels() if label.get_text()],
        figure.bbox,
    )


# -- metrics -------------------------------------------------------------------------------------------------


def test_each_metric_has_a_panel_and_each_run_a_line():
    histories = {
        "first": [
            {"step": 10, "epoch": 1, "seconds": 0.1, "loss": 2.0},
            {"step": 20, "epoch": 2, "seconds": 0.2, "loss": 1.0, "accuracy": 0.5},
        ],
        "second": [{"step": 10, "loss": 3.0, "rate": 1e-3}],
    }
    figure = draw_metrics(histories)
    panels = {
        axes.get_title(): [line.get_xydata().tolist() for line in axes.lines]
        for axes in figure.axes
        if axes.get_title()
    }
    assert panels == {
        "loss": [[[10, 2], [20, 1]], [[10, 3]]],
        "accuracy": [[[20, 0.5]], []],
        "rate": [[], [[10, 1e-3]]],
    }
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first", "second"]


def test_a_value_alone_is_a_dot_and_a_gap_is_a_gap():
    values = [1.0, math.nan, 2.0, 3.0, math.inf, 4.0]
    figure = draw_metrics({"run": [{"step": k, "loss": value} for k, value in enumerate(values)]})
    (line,) = figure.axes[0].lines
    assert np.array_equal(np.isnan(line.get_ydata()), [False, True, False, False, True, False])
    assert line.get_markevery() == [0, 5] and line.get_marker() == "o"
    (line,) = draw_metrics({"run": [{"step": 3, "loss": 1.0}]}).axes[0].lines
    assert line.get_markevery() == [0]


def test_metrics_can_be_drawn_over_another_key():
    figure = draw_metrics(
        {
            "run": [
                {"epoch": 1, "loss": 2, "seconds": 0.5},
                {"epoch": 2, "loss": np.float32(1), "seconds": 1.0},
            ]
        },
        x="epoch",
    )
    assert [axes.get_title() for axes in figure.axes] == ["loss"]
    assert figure.axes[0].get_xlabel() == "epoch"
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1, 2], [2, 1]]


def test_what_is_no_number_is_no_metric():
    figure = draw_metrics(
        {"run": [{"step": 1, "loss": 2.0, "name": "digits", "done": True, "nothing": None}], "new": []}
    )
    assert [axes.get_title() for axes in figure.axes] == ["loss"]
    assert len(figure.legends[0].get_texts()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "metrics"), [(1, 1), (2, 2), (3, 4), (10, 5), (10, 12), (26, 1)])
@pytest.mark.filterwarnings("error")
def test_panels_titles_and_names_of_runs_never_meet(runs, metrics):
    entries = [
        {"step": k * 1000, **{f"validation_metric_{m}": 1e-5 * (k + m) for m in range(metrics)}}
        for k in range(5)
    ]
    figure = draw_metrics({f"a run with a long name, number {k:03d}" + "!" * k: entries for k in range(runs)})
    rendered(figure)
    shown = [axes for axes in figure.axes if axes.get_title()]
    assert len(shown) == metrics
    boxes = [axes.get_tightbbox() for axes in shown]
    check_apart([*boxes, *(text.get_window_extent() for text in figure.legends[0].get_texts())], figure.bbox)
    styles = {(line.get_color(), line.get_linestyle()) for line in shown[0].lines}
    assert len(styles) == min(runs, 24)


def test_metrics_refuse_runs_without_the_x_axis_or_without_numbers():
    with pytest.raises(ObservationError, match="at least one run"):
        draw_metrics({})
    with pytest.raises(
        ObservationError, match=r"run 'b' has a number for x='step'.*Known names: epoch, loss"
    ):
        draw_metrics({"a": [{"step": 1, "loss": 1.0}], "b": [{"epoch": 1, "loss": 1.0}]})
    with pytest.raises(ObservationError, match="Did you mean 'step'"):
        draw_metrics({"a": [{"step": 1, "loss": 1.0}]}, x="steps")
    with pytest.raises(ObservationError, match=r"no metric: no entry of 'a', 'b'"):
        draw_metrics({"a": [{"step": 1, "seconds": 2.0}], "b": []})


# -- images --------------------------------------------------------------------------------------------------


def test_images_in_colours_are_shown_in_their_colours():
    images = torch.tensor([[-1.0, 0.0, 1.0], [1.0, 7.0, -9.0]])[:, :, None, None].expand(2, 3, 2, 4)
    shown = [axes.images[0].get_array() for axes in draw_images(images).axes]
    assert all(array.shape == (2, 4, 3) for array in shown)
    assert shown[0][0, 0].tolist() == [0.0, 0.5, 1.0]
    assert shown[1][1, 3].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("shape", [(0, 1, 2, 2), (1, 2, 2, 2), (1, 4, 2, 2), (2, 2), (1, 1, 0, 2)])
def test_images_refuse_other_shapes(shape):
    with pytest.raises(ObservationError, match=r"\(n, 3, rows, columns\)"):
        draw_images(torch.zeros(shape))


# -- helpers -------------------------------------------------------------------------------------------------


def curves(figure) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist())
        for line in figure.axes[0].lines
    }


def rendered(figure) -> None:
    FigureCanvasAgg(figure).draw()


def check_apart(boxes, whole) -> None:
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.x0 >= whole.x0 and box.y0 >= whole.y0 and box.x1 <= whole.x1 and box.y1 <= whole.y1
