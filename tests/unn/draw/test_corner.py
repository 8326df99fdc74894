"""Corner plots."""

import pytest
import torch
from support.helpers import says

from unn.draw import DARK, draw_corner
from unn.errors import ObservationError


def samples(seed, count=200):
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(count, generator=generator), "b": torch.randn(count, 2, generator=generator)}


def test_every_number_has_a_row_and_every_pair_a_panel():
    figure = draw_corner(
        samples(0), samples(1), {"a": torch.tensor(0.5), "b": torch.tensor([1.0, -1.0])}, DARK
    )
    axes = figure.axes
    assert len(axes) == 9
    assert [axes[k].get_xlabel() for k in (6, 7, 8)] == ["a", "b[0]", "b[1]"]
    shown = [panel.axison for panel in axes]
    assert shown == [True, False, False, True, True, False, True, True, True]
    # samples, reference, and the two lines of the truth
    assert len(axes[3].lines) == 4


def test_a_constant_number_is_drawn():
    draw_corner({"a": torch.zeros(10), "b": torch.ones(10)})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw_corner({}), ["no variable"]),
        (lambda: draw_corner({"a": torch.zeros(5, 13)}), ["13 numbers", "12"]),
        (lambda: draw_corner({"a": torch.full((5,), torch.nan)}), ["'a'", "finite"]),
        (lambda: draw_corner(samples(0), {"a": torch.zeros(5)}), ["reference", "'b'"]),
        (lambda: draw_corner(samples(0), truth={"b": torch.zeros(2)}), ["truth", "'a'"]),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(ObservationError, match=says(*words)):
        call()
