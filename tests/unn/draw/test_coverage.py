"""Curves of expected coverage."""

import pytest
from support.helpers import says

from unn.draw import DARK, draw_coverage
from unn.errors import ObservationError


def test_the_curve_reaches_one_at_the_largest_probability():
    (axes,) = draw_coverage([0.2, 0.9, 0.4], DARK).axes
    x, y = axes.lines[1].get_data()
    assert list(x) == [0, 0.2, 0.4, 0.9] and list(y) == pytest.approx([0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize("probabilities", [[], [0.5, 1.2], [-0.1]])
def test_numbers_that_are_no_probabilities_are_refused(probabilities):
    with pytest.raises(ObservationError, match=says("draw_coverage", "[0, 1]")):
        draw_coverage(probabilities)
