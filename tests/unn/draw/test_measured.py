"""Measures of several queries."""

import pytest

from unn.draw import draw_measured
from unn.errors import ObservationError


def test_each_measure_has_a_panel_with_its_values_in_order_and_its_mean():
    panels = list(draw_measured({"c2st": [0.7, 0.5, 0.9], "mmd": [0.1]}, {"c2st": 0.5}).axes)
    ideal, mean, points = panels[0].lines
    assert list(ideal.get_ydata()) == [0.5, 0.5] and list(mean.get_ydata()) == pytest.approx([0.7, 0.7])
    assert list(points.get_ydata()) == [0.5, 0.7, 0.9]
    assert len(panels[1].lines) == 2


@pytest.mark.parametrize("values", [{}, {"c2st": []}, {"c2st": [float("nan")]}])
def test_values_that_cannot_be_drawn_are_refused(values):
    with pytest.raises(ObservationError, match="draw_measured"):
        draw_measured(values, {})
