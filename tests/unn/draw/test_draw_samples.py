"""Pictures of samples: what is written, what is marked, where panels lie."""

import pytest
import torch
from matplotlib.colors import to_hex
from torch.nn.functional import one_hot

from unn.draw import DARK, LIGHT, Marking, draw_samples
from unn.errors import ObservationError

CELLS = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])


def samples(*cells):
    return [{"X": one_hot(x, 4).float()} for x in cells]


def panels(figure):
    return [axes for axes in figure.axes if axes.axison]


def texts(axes):
    return {(round(text.get_position()[1]), round(text.get_position()[0])): text for text in axes.texts}


def test_categories_are_written_from_one_in_their_cells():
    (axes,) = panels(draw_samples(samples(CELLS), ["1"], ["X"]))
    assert {place: int(text.get_text()) for place, text in texts(axes).items()} == {
        (i, j): int(CELLS[i, j]) + 1 for i in range(4) for j in range(4)
    }


def test_given_cells_are_bold_and_shaded_and_others_are_neither():
    given = torch.zeros(4, 4, dtype=torch.bool)
    given[1, 2] = given[3, 0] = True
    for theme in (LIGHT, DARK):
        (axes,) = panels(draw_samples(samples(CELLS), ["1"], ["X"], theme, Marking(given={"X": given})))
        bold = {place for place, text in texts(axes).items() if text.get_fontweight() == "bold"}
        assert bold == {(1, 2), (3, 0)}
        (image,) = axes.images
        shades = image.cmap(image.norm(image.get_array()))
        fill = torch.tensor([[to_hex(colour) == theme.fill.lower() for colour in row] for row in shades])
        assert torch.equal(fill, given)


def test_cells_that_changed_since_the_panel_before_are_marked_and_only_when_asked_for():
    after = CELLS.clone()
    after[0, 3], after[2, 2] = 0, 0
    for asked in (True, False):
        first, second = panels(
            draw_samples(samples(CELLS, after), ["1", "2"], ["X"], marking=Marking(changes=asked))
        )
        marked = [
            {place for place, text in texts(axes).items() if text.get_bbox_patch() is not None}
            for axes in (first, second)
        ]
        assert marked == [set(), {(0, 3), (2, 2)} if asked else set()]


def test_thick_lines_part_the_blocks():
    (axes,) = panels(draw_samples(samples(CELLS), ["1"], ["X"], marking=Marking(blocks={"X": (2, 1)})))
    thick = [line for line in axes.lines if line.get_linewidth() > 1]
    across = sorted(line.get_ydata()[0] for line in thick if line.get_ydata()[0] == line.get_ydata()[1])
    down = sorted(line.get_xdata()[0] for line in thick if line.get_xdata()[0] == line.get_xdata()[1])
    assert across == [1.5] and down == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(("count", "columns"), [(1, 4), (5, 2), (8, 4)])
def test_samples_fill_rows_of_several_columns_in_order(count, columns):
    names = [str(k) for k in range(count)]
    figure = draw_samples(samples(*[CELLS] * count), names, ["X"], columns=columns)
    figure.canvas.draw()
    shown = panels(figure)
    assert [axes.get_ylabel() for axes in shown] == names
    places = [axes.get_position() for axes in shown]
    for k in range(1, count):
        if k % columns:
            assert places[k].x0 > places[k - 1].x0 and places[k].y0 == pytest.approx(places[k - 1].y0)
        else:
            assert places[k].y0 < places[k - 1].y0


def test_numbers_are_colours_of_one_scale_beside_written_categories():
    rows = [
        {"A": torch.tensor([[0.0, 1.0]]), "X": one_hot(CELLS, 4)},
        {"A": torch.tensor([[2.0, 3.0]]), "X": one_hot(CELLS, 4)},
    ]
    shown = panels(draw_samples(rows, ["1", "2"], ["X"]))
    assert [axes.images[0].get_clim() for axes in shown[::2]] == [(0, 3), (0, 3)]
    assert [len(axes.texts) for axes in shown] == [0, 16, 0, 16]


def test_wrong_marks_and_columns_are_refused():
    with pytest.raises(ObservationError, match="'X' must be boolean with 16 entries"):
        draw_samples(
            samples(CELLS), ["1"], ["X"], marking=Marking(given={"X": torch.zeros(3, dtype=torch.bool)})
        )
    with pytest.raises(ObservationError, match="columns=0"):
        draw_samples(samples(CELLS), ["1"], ["X"], columns=0)


def test_each_sample_can_have_its_own_given_cells():
    given = torch.zeros(2, 4, 4, dtype=torch.bool)
    given[0, 1, 2] = given[1, 3, 0] = True
    figure = draw_samples(samples(CELLS, CELLS), ["1", "2"], ["X"], LIGHT, Marking(given={"X": given}))
    for axes, place in zip(panels(figure), ((1, 2), (3, 0)), strict=True):
        assert {p for p, text in texts(axes).items() if text.get_fontweight() == "bold"} == {place}


def test_the_first_category_can_have_another_number():
    (axes,) = panels(draw_samples(samples(CELLS), ["1"], ["X"], LIGHT, Marking(first={"X": 0})))
    assert {place: int(text.get_text()) for place, text in texts(axes).items()} == {
        (i, j): int(CELLS[i, j]) for i in range(4) for j in range(4)
    }
