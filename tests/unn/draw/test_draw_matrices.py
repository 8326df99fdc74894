"""Matrices show every edge and every name, however many there are."""

from __future__ import annotations

import itertools
import re
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba

from unn.draw import DARK, LIGHT, adjacency_text, draw_adjacency, draw_attention
from unn.draw.adjacency import binned_edges, edges_per_pair
from unn.errors import ObservationError

EXACT = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


def edges(nodes: int, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.random.default_rng(seed).integers(0, nodes, (2, count))
    return rows, columns


def named(sizes) -> list[tuple[str, int]]:
    return [(f"block {k}", size) for k, size in enumerate(sizes)]


# -- counting ------------------------------------------------------------------------------------------------


@EXACT
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99), st.integers(0, 80))
def test_cells_are_sums_of_the_dense_matrix(nodes, limit, seed, count):
    rows, columns = edges(nodes, seed, count)
    dense = np.zeros((nodes, nodes), dtype=int)
    np.add.at(dense, (rows, columns), 1)
    counts, width = binned_edges(rows, columns, nodes, limit)
    assert len(counts) <= limit and counts.sum() == count
    starts = range(0, nodes, width)
    blocks = [[dense[i : i + width, j : j + width] for j in starts] for i in starts]
    assert np.array_equal(counts, [[block.sum() for block in row] for row in blocks])
    assert np.allclose(
        edges_per_pair(counts, nodes, width), [[block.mean() for block in row] for row in blocks]
    )
    if nodes <= limit:
        assert np.array_equal(counts, dense)


def test_a_small_picture_is_the_dense_matrix():
    rows, columns = edges(30, 0, 200)
    dense = np.zeros((30, 30))
    np.add.at(dense, (rows, columns), 1)
    for convert in (
        list,
        np.array,
        torch.tensor,
        lambda x: x.astype(np.uint8),
        lambda x: torch.tensor(x, dtype=torch.int32),
    ):
        (image,) = draw_adjacency(convert(rows), convert(columns), [("X", 10), ("Y", 20)]).axes[1].images
        shown = image.get_array()
        assert np.array_equal(shown.filled(0), dense) and np.array_equal(
            np.ma.getmaskarray(shown), dense == 0
        )


def test_a_large_picture_conserves_the_edges_and_shows_each():
    rows, columns = edges(12_345, 0, 500)
    figure = draw_adjacency(rows, columns, [("X", 12_000), ("Y", 345)])
    (image,) = figure.axes[1].images
    shown = image.get_array()
    cells, width = len(shown), int(image.get_extent()[1]) // len(shown)
    sides = np.minimum(width, 12_345 - width * np.arange(cells))
    assert (shown.filled(0) * np.outer(sides, sides)).sum() == pytest.approx(500)
    # each cell is a pixel or more
    assert min(figure.axes[1].get_window_extent().size) * 80 / figure.dpi >= cells


def test_a_million_edges_need_no_dense_matrix():
    generator = np.random.default_rng(0)
    rows, columns = generator.integers(0, 100_000, (2, 1_000_000))
    blocks = [("few", 10), ("many", 99_000), ("rest", 990)]
    tracemalloc.start()
    FigureCanvasAgg(draw_adjacency(rows, columns, blocks)).draw()
    adjacency_text(rows, columns, blocks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(st.integers(1, 30), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_names_of_blocks_never_meet(count, seed, dark, titled):
    random = np.random.default_rng(seed)
    sizes = [int(size) for size in np.ceil(10 ** random.uniform(0, 4, count))]
    blocks = [
        ("x" * int(random.integers(1, 40)) if random.random() < 0.3 else f"H{k}", size)
        for k, size in enumerate(sizes)
    ]
    rows, columns = edges(sum(sizes), seed, 1000)
    figure = draw_adjacency(rows, columns, blocks, DARK if dark else LIGHT, "a title" if titled else "")
    FigureCanvasAgg(figure).draw()
    paper, matrix, *bars = figure.axes
    texts = [text for text in paper.texts if text.get_text()]
    assert len(texts) == 2 * count + titled
    check_apart(
        [text.get_window_extent() for text in texts] + [axes.get_tightbbox() for axes in (matrix, *bars)],
        figure.bbox,
    )
    lines = [line for line in matrix.lines if line.get_gid() == "border"]
    assert sorted(line.get_ydata()[0] for line in lines[::2]) == np.cumsum(sizes)[:-1].tolist()
    # names keep the order of their blocks
    beside = [text.get_position() for text in texts[titled:] if text.get_ha() == "right"]
    assert beside == sorted(beside, key=lambda place: place[1]) and len(beside) == count


@pytest.mark.parametrize("sizes", [[1] * 29 + [50_000], [50_000] + [1] * 29, [20_000] + [1] * 28 + [20_000]])
def test_names_of_crowded_blocks_stay_in_the_picture(sizes):
    figure = draw_adjacency([0, 0], [0, 0], [(f"block {k}", size) for k, size in enumerate(sizes)])
    FigureCanvasAgg(figure).draw()
    paper, matrix = figure.axes
    check_apart(
        [text.get_window_extent() for text in paper.texts if text.get_text()] + [matrix.get_tightbbox()],
        figure.bbox,
    )
    frame, middles = (
        matrix.get_window_extent(),
        [text.get_window_extent() for text in paper.texts if text.get_text()],
    )
    assert all(
        frame.y0 <= (box.y0 + box.y1) / 2 <= frame.y1 or frame.x0 <= (box.x0 + box.x1) / 2 <= frame.x1
        for box in middles
    )


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_cells_without_edges_have_the_colour_of_the_background(theme):
    for rows in ([0, 1], [0, 1, 1]):
        (image,) = draw_adjacency(rows, rows, [("X", 3)], theme).axes[1].images
        assert np.allclose(image.to_rgba(image.get_array())[2, 2], to_rgba(theme.background), atol=1 / 255)


def test_edges_that_are_all_alike_have_one_colour_and_no_scale():
    figure = draw_adjacency([0, 1], [1, 0], [("X", 2)])
    assert len(figure.axes) == 2
    assert len(draw_adjacency([0, 1, 1], [1, 0, 0], [("X", 2)]).axes) == 3


def test_a_matrix_without_edges_is_empty():
    figure = draw_adjacency([], torch.zeros(0, dtype=torch.long), [("X", 3), ("nothing", 0), ("Y", 1)])
    FigureCanvasAgg(figure).draw()
    assert np.ma.getmaskarray(figure.axes[1].images[0].get_array()).all()


@pytest.mark.parametrize("draw", [draw_adjacency, adjacency_text])
def test_edges_and_blocks_that_do_not_fit_are_refused(draw):
    blocks = [("X", 2), ("Y", 3)]
    with pytest.raises(
        ObservationError, match="rows go from 0 to 5, but the blocks have 5 nodes, from 0 to 4"
    ):
        draw([0, 5], [0, 1], blocks)
    with pytest.raises(ObservationError, match="columns go from -1"):
        draw([0, 1], [0, -1], blocks)
    with pytest.raises(ObservationError, match="1 rows, but 2 columns"):
        draw([0], [0, 1], blocks)
    with pytest.raises(ObservationError, match=r"rows are integers of shape \(edges,\).*float64"):
        draw(np.array([0.0]), [0], blocks)
    with pytest.raises(ObservationError, match=r"got shape \(2, 2\)"):
        draw(np.zeros((2, 2), dtype=int), [0], blocks)
    with pytest.raises(ObservationError, match="got None"):
        draw(None, [0], blocks)
    with pytest.raises(ObservationError, match=r"such as \('label', 10\), got \('X', -1\)"):
        draw([0], [0], [("X", -1)])
    with pytest.raises(ObservationError, match="at least one node"):
        draw([0], [0], [])


# -- text ----------------------------------------------------------------------------------------------------


def test_text_of_a_small_matrix():
    text = adjacency_text([0, 1, 2, 3, 3], [1, 0, 3, 2, 3], [("X", 2), ("Y", 2)])
    assert text.splitlines() == [
        "    a |b",
        "a X  @|",
        "    @ |",
        "    --+--",
        "b Y   | @",
        "      |@@",
        "5 edges between 4 nodes; '@' is 1 edge per pair of nodes",
    ]


@EXACT
@given(SIZES, st.integers(0, 99), st.integers(0, 40), st.integers(20, 90))
def test_text_keeps_to_its_width_and_blanks_exactly_the_cells_without_edges(sizes, seed, count, width):
    nodes = sum(sizes)
    rows, columns = edges(nodes, seed, count)
    text = adjacency_text(rows, columns, named(sizes), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert [line[0] for line in lines if re.match(r"[a-z] b", line)] == list("abcdef"[: len(sizes)])
    body = "".join(
        line for line in lines[1:] if "edges" not in line and "---" not in line and "-+-" not in line
    )
    assert bool(re.search(r"[.:=*#%@]", body)) == bool(count)


def test_text_marks_the_blocks_that_meet():
    blocks = [("one", 1), ("two", 500), ("three", 3)]
    lines = adjacency_text([0] * 5, [503] * 5, blocks, 40).splitlines()
    row = next(line for line in lines if line.startswith("a "))
    assert row.endswith("|@") and not row.removesuffix("@").strip(" |aone")
    assert sum("@" in line for line in lines) == 2  # the other is the scale


def test_text_shows_a_single_edge_beside_a_crowd():
    lines = adjacency_text([0] * 1000 + [1], [0] * 1000 + [1], [("X", 2)], 40).splitlines()
    assert lines[1:3] == ["a X @", "     ."]


def test_text_refuses_a_width_without_room():
    with pytest.raises(ObservationError, match="width of at least 16 for these 9 blocks, got 12"):
        adjacency_text([0], [0], [(f"block {k}", 2) for k in range(9)], 12)


# -- attention -----------------------------------------------------------------------------------------------


def test_attention_has_one_panel_a_head_and_one_scale():
    weights = torch.softmax(torch.arange(24.0).reshape(2, 3, 4), -1).requires_grad_()
    figure = draw_attention(weights, list("abc"), list("wxyz"))
    *panels, bar = figure.axes
    assert [axes.get_title() for axes in panels] == ["head 1", "head 2"]
    for axes, weight in zip(panels, weights, strict=True):
        assert np.allclose(axes.images[0].get_array(), weight.detach())
        assert axes.images[0].get_clim() == (0, float(weights.detach().max()))
    assert [label.get_text() for label in panels[0].get_yticklabels()] == list("abc")
    assert [label.get_text() for label in panels[1].get_xticklabels()] == list("wxyz")
    assert bar.get_ylabel() == "weight"


def test_one_head_needs_no_title():
    panel, _ = draw_attention(np.eye(3)).axes
    assert panel.get_title() == "" and [label.get_text() for label in panel.get_xticklabels()] == [
        "0",
        "1",
        "2",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(1, 1), (9, 9), (1, 60), (100, 100), (1, 3, 3), (2, 40, 7), (5, 7, 40), (8, 12, 12), (13, 2, 2)]
)
def test_labels_of_tokens_never_meet(shape):
    rows, columns = (
        [f"{'long' * 8}{k}" if k % 5 == 0 else f"w{k}" for k in range(size)] for size in shape[-2:]
    )
    figure = draw_attention(np.random.default_rng(0).random(shape), rows, columns)
    FigureCanvasAgg(figure).draw()
    *maps, bar = figure.axes
    # the scale has a tick beyond its end, which is not drawn
    scale = [label for label in bar.get_yticklabels() if label.get_position()[1] <= bar.get_ylim()[1]]
    labels = [
        label
        for axes in maps
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels())
        if label.get_text()
    ] + scale
    panels = [axes.get_window_extent() for axes in figure.axes]
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    boxes = [label.get_window_extent() for label in labels]
    check_apart([*boxes, *panels, *titles], figure.bbox)
    assert max(len(label.get_text()) for label in labels) <= 16


def test_attention_refuses_what_is_no_attention():
    with pytest.raises(ObservationError, match=r"got shape \(3,\)"):
        draw_attention(torch.ones(3))
    with pytest.raises(ObservationError, match="nowhere 0"):
        draw_attention(torch.ones(0, 3))
    with pytest.raises(ObservationError, match="after the softmax"):
        draw_attention(-torch.ones(2, 2))
    with pytest.raises(ObservationError, match="finite"):
        draw_attention(torch.full((2, 2), torch.nan))
    with pytest.raises(ObservationError, match="2 names of rows, got 3 names"):
        draw_attention(torch.ones(2, 2), list("abc"))
    with pytest.raises(ObservationError, match="2 names of columns, got 'ab'"):
        draw_attention(torch.ones(2, 2), None, "ab")


def check_apart(boxes, whole) -> None:
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.x0 >= whole.x0 and box.y0 >= whole.y0 and box.x1 <= whole.x1 and box.y1 <= whole.y1


@pytest.mark.parametrize(("edges", "text"), [(1, "1 edge between 2 nodes"), (2, "2 edges between 2 nodes")])
def test_one_edge_is_not_written_as_several(edges, text):
    assert text in adjacency_text([0] * edges, [1] * edges, [("A", 2)])


def test_one_node_is_not_written_as_several():
    assert "0 edges between 1 node" in adjacency_text([], [], [("A", 1)])
    assert "1 nodes" not in adjacency_text([], [], [("A", 1)])
