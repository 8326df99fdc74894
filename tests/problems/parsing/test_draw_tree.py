"""Trees are drawn as they are, each arc once and with room for its label; as text they can be read back; what
is no tree is refused."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba

from problems.parsing.draw import draw_arcs, draw_marginals, heat_text, tree_text
from problems.parsing.draw.arcs import arc_levels
from problems.parsing.draw.sentences import checked_heads
from problems.parsing.draw.text import columns_of, padded
from unn.draw import DARK, LIGHT, save_figure
from unn.errors import ObservationError

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
FEW = settings(max_examples=15, deadline=None, derandomize=True, database=None)
SEEDS, LENGTHS = st.integers(0, 10**6), st.integers(1, 24)

SENTENCE = ["She", "sent", "her", "parents", "a", "letter"]
HEADS = [2, 0, 4, 2, 6, 2]
LABELS = ["nsubj", "root", "nmod:poss", "iobj", "det", "obj"]
CROSSING = [3, 4, 0, 3, 2]  # the arc from 4 to 2 crosses that from 3 to 1


def tree_of_scores(n: int, seed: int) -> list[int]:
    """From a random word on, always the best arc to a word that has no head yet; arcs may cross."""
    scores = np.random.default_rng(seed).normal(size=(n + 1, n))
    heads = [-1] * n
    heads[int(scores[0].argmax())] = 0
    while -1 in heads:
        arcs = [
            (scores[h, m], h, m)
            for h in range(1, n + 1)
            if heads[h - 1] >= 0
            for m in range(n)
            if heads[m] < 0
        ]
        _, head, modifier = max(arcs)
        heads[modifier] = head
    return heads


def probabilities(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(n + 1, 0.3), size=n).T


def words_of(n: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return ["x" * int(random.integers(1, 12)) + str(k) for k in range(n)]


def arcs_of(figure, kind: str = "arc") -> dict[tuple[int, int], np.ndarray]:
    """Head and modifier of the arcs of a kind, and the points of each."""
    points = {}
    for patch in figure.axes[0].patches:
        if match := re.fullmatch(rf"{kind} (\d+) (\d+)", patch.get_gid() or ""):
            arc = (int(match[1]), int(match[2]))
            assert arc not in points
            points[arc] = patch.get_path().vertices
    return points


def arcs(heads) -> set[tuple[int, int]]:
    return {(head, k) for k, head in enumerate(heads, 1)}


def texts_of(figure, kind: str):
    return [text for text in figure.axes[0].texts if text.get_gid() == kind]


def read_back(text: str) -> list[int]:
    """The heads, from numbers and indentation alone."""
    path, heads = [], {}
    for line in text.splitlines():
        marks, number = re.match(r"((?:│   |    )*(?:├── |└── )?)(\d+) ", line + " ").groups()
        depth = len(marks) // 4
        path = [*path[:depth], int(number)]
        heads[int(number)] = path[-2] if depth else 0
    return [heads[k] for k in range(1, len(heads) + 1)]


# -- arcs ----------------------------------------------------------------------------------------------------


@FEW
@given(LENGTHS, SEEDS, st.booleans())
def test_every_arc_is_drawn_once_and_arcs_on_one_level_do_not_overlap(n, seed, labelled):
    heads = tree_of_scores(n, seed)
    figure = draw_arcs(heads, words_of(n, seed), ["label"] * n if labelled else None)
    drawn = arcs_of(figure)
    assert set(drawn) == arcs(heads) and len(arcs_of(figure, "tip")) == n
    spans = [
        (points[:, 1].max(), points[:, 0].min(), points[:, 0].max())
        for (head, _), points in drawn.items()
        if head
    ]
    for (top, left, right), (other, start, end) in itertools.combinations(spans, 2):
        assert top != pytest.approx(other) or right < start or end < left
    # an arc over another, with both ends outside or at its ends, is higher
    for (top, left, right), (other, start, end) in itertools.permutations(spans, 2):
        if left < start and end < right:
            assert top > other


@MANY
@given(st.integers(2, 30), SEEDS)
def test_levels_are_no_more_than_needed(n, seed):
    spans = [(min(arc), max(arc)) for arc in arcs(tree_of_scores(n, seed)) if arc[0]]
    levels = arc_levels(spans)
    for k, (span, level) in enumerate(zip(spans, levels, strict=True)):
        meets = {
            levels[j] for j, other in enumerate(spans) if j != k and other[0] < span[1] and span[0] < other[1]
        }
        assert level not in meets
        assert set(range(1, level)) <= meets or level == 1 + max(
            levels[j]
            for j, other in enumerate(spans)
            if j != k and span[0] <= other[0] and other[1] <= span[1]
        )


@FEW
@given(LENGTHS, SEEDS, st.booleans(), st.booleans())
def test_words_and_labels_never_meet_and_nothing_is_cut_off(n, seed, dark, judged):
    heads, words = tree_of_scores(n, seed), words_of(n, seed)
    labels = [("a-long:label", "x", None)[k % 3] for k in range(n)]
    gold = tree_of_scores(n, seed + 1) if judged else None
    figure = draw_arcs(heads, words, labels, gold=gold, theme=DARK if dark else LIGHT)
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for kind in ("word", "label") for text in texts_of(figure, kind)]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in [*boxes, *(patch.get_window_extent() for patch in figure.axes[0].patches)]:
        assert (
            figure.bbox.x0 <= box.x0
            and box.x1 <= figure.bbox.x1
            and figure.bbox.y0 <= box.y0
            and box.y1 <= figure.bbox.y1
        )
    assert [text.get_text() for text in texts_of(figure, "word")] == words


@pytest.mark.parametrize("heads", [HEADS, tree_of_scores(15, 3), [2, 3, 4, 5, 0], [0, 1, 1, 1, 1]])
def test_an_arrow_points_at_its_modifier_and_the_root_comes_from_above(heads):
    words = [f"w{k}" for k in range(len(heads))]
    figure = draw_arcs(heads, words)
    places = [text.get_position()[0] for text in texts_of(figure, "word")]
    lines = arcs_of(figure)
    for (head, modifier), corners in arcs_of(figure, "tip").items():
        tip, low = corners[corners[:, 1].argmin()]
        assert low == 0 and abs(places[modifier - 1] - tip) == min(abs(place - tip) for place in places)
        points = lines[head, modifier]
        assert points[:, 0] == pytest.approx(tip) if not head else tip in (points[0, 0], points[-1, 0])
    assert [text.get_text() for text in texts_of(figure, "label")] == ["root"]


def test_arcs_of_one_projective_tree_do_not_cross():
    lines = {
        arc: (points[:, 0].min(), points[:, 0].max())
        for arc, points in arcs_of(draw_arcs(HEADS, SENTENCE, LABELS)).items()
    }
    for (left, right), (start, end) in itertools.permutations(lines.values(), 2):
        assert not left < start < right < end


@pytest.mark.slow
def test_a_picture_grows_with_the_sentence_up_to_200_words():
    widths = []
    for n in (1, 20, 200):
        figure = draw_arcs(
            tree_of_scores(n, 0) if n < 200 else [0, *range(1, 200)], words_of(n), ["label"] * n
        )
        assert {text.get_size() for text in texts_of(figure, "word")} == {9.0}
        widths.append(figure.get_size_inches()[0])
    assert widths[0] < 1.5 and widths[1] < widths[2] / 5


def test_labels_stand_above_their_arcs():
    figure = draw_arcs(HEADS, SENTENCE, LABELS)
    tops = {
        LABELS[m - 1]: (points[:, 1].max(), points[:, 0].min(), points[:, 0].max())
        for (_, m), points in arcs_of(figure).items()
    }
    for text in texts_of(figure, "label"):
        (x, y), (top, left, right) = text.get_position(), tops[text.get_text()]
        assert left <= x <= right and 0 < y - top < 0.1


@THEMES
def test_arcs_that_differ_from_gold_have_another_colour_and_the_gold_ones_are_dashed(theme):
    wrong = [2, 0, 4, 6, 6, 2]
    figure = draw_arcs(wrong, SENTENCE, gold=HEADS, theme=theme)
    assert set(arcs_of(figure, "arc")) == arcs(HEADS) & arcs(wrong)
    assert set(arcs_of(figure, "wrong")) == {(6, 4)} and set(arcs_of(figure, "gold")) == {(2, 4)}
    looks = {patch.get_gid(): patch for patch in figure.axes[0].patches}
    colours = [to_rgba(looks[gid].get_edgecolor()) for gid in ("arc 2 1", "wrong 6 4", "gold 2 4")]
    assert len(set(colours)) == 3 and to_rgba(theme.background) not in colours
    assert looks["gold 2 4"].get_linestyle() not in ("-", "solid") and looks["wrong 6 4"].get_linestyle() in (
        "-",
        "solid",
    )
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["right", "wrong", "gold"]


def test_a_wrong_root_is_drawn_beside_the_gold_one():
    figure = draw_arcs([0, 1], [",", "."], gold=[2, 0])
    assert set(arcs_of(figure, "wrong")) == {(0, 1), (1, 2)} and set(arcs_of(figure, "gold")) == {
        (2, 1),
        (0, 2),
    }
    FigureCanvasAgg(figure).draw()
    one, other = [text.get_window_extent() for text in texts_of(figure, "label")]
    assert not one.overlaps(other)


def test_a_right_tree_is_drawn_as_one_without_gold():
    figure = draw_arcs(HEADS, SENTENCE, gold=HEADS)
    assert set(arcs_of(figure)) == arcs(HEADS) and not arcs_of(figure, "gold") and not figure.legends


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor])
def test_arcs_are_wider_and_darker_the_more_probable_they_are(convert):
    values = [0.1, 0.9, 0.3, 0.5, 1.0, 0.0]
    figure = draw_arcs(HEADS, SENTENCE, weights=convert(values))
    looks = {patch.get_gid(): patch for patch in figure.axes[0].patches}
    lines = [looks[f"arc {head} {k}"] for k, head in enumerate(HEADS, 1)]
    for look in ([line.get_linewidth() for line in lines], [line.get_alpha() for line in lines]):
        assert np.argsort(look).tolist() == np.argsort(values).tolist() and min(look) > 0.3


def test_the_weights_of_arcs_may_be_taken_from_the_marginals():
    marginals = probabilities(6)
    chosen = [marginals[head, k] for k, head in enumerate(HEADS)]
    one, other = (
        draw_arcs(HEADS, SENTENCE, weights=weights).axes[0].patches for weights in (marginals, chosen)
    )
    assert [patch.get_alpha() for patch in one] == [patch.get_alpha() for patch in other]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["ఎ.", "గారు", "ఈ"],
        ["كتب", "الولدُ", "رسالةً"],
        ["漢字", "e\u0301\u0323", "\U0010ffff"],
        ["$a$", "", "a\nb\x00\ud800"],
    ],
)
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_words_of_any_script_are_drawn_without_a_warning(tmp_path, words, ending):
    # warnings are errors in these tests
    save_figure(draw_arcs([2, 0, 2], words, words), tmp_path / f"arcs.{ending}")
    save_figure(draw_marginals(probabilities(3), words), tmp_path / f"heat.{ending}")
    assert len(tree_text([2, 0, 2], words, words).splitlines()) == 3
    assert len(heat_text(probabilities(3), words).splitlines()) == 5


# -- heat maps -----------------------------------------------------------------------------------------------


@THEMES
def test_a_heat_map_has_a_row_for_the_root_and_each_head_and_a_column_for_each_modifier(theme):
    marginals = probabilities(6)
    figure = draw_marginals(torch.tensor(marginals, requires_grad=True), SENTENCE, theme=theme)
    axes, bar = figure.axes
    assert np.allclose(axes.images[0].get_array(), marginals) and axes.images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["root", *SENTENCE]
    assert [label.get_text() for label in axes.get_xticklabels()] == SENTENCE
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("head", "modifier", "probability")
    assert axes.images[0].get_cmap()(np.linspace(0, 1, 256)) == pytest.approx(
        matplotlib.colormaps[theme.sequential](np.linspace(0, 1, 256))
    )


def test_the_cells_of_gold_arcs_are_outlined():
    axes, _ = draw_marginals(probabilities(6), SENTENCE, gold=HEADS).axes
    middles = {tuple(np.round(patch.get_center()).astype(int).tolist()) for patch in axes.patches}
    assert middles == {(k, head) for k, head in enumerate(HEADS)}
    assert not draw_marginals(probabilities(6), SENTENCE).axes[0].patches


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 6, 40, 90, 200])
def test_names_in_a_heat_map_never_meet_and_nothing_is_cut_off(n):
    figure = draw_marginals(probabilities(n), words_of(n), gold=[0, *range(1, n)])
    FigureCanvasAgg(figure).draw()
    axes, bar = figure.axes
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        for one, other in itertools.pairwise(labels):
            assert not one.get_window_extent().overlaps(other.get_window_extent())
    boxes = [part.get_tightbbox() for part in (axes, bar)] + [
        text.get_window_extent() for text in figure.texts
    ]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert (
            figure.bbox.x0 <= box.x0
            and box.x1 <= figure.bbox.x1
            and figure.bbox.y0 <= box.y0
            and box.y1 <= figure.bbox.y1
        )


# -- text ----------------------------------------------------------------------------------------------------


def test_the_text_of_a_small_tree():
    text = tree_text(HEADS, SENTENCE, LABELS, [0.75, 1, 0.5, 0.996, 0.25, 0])
    assert text.splitlines() == [
        "2 sent         root       1.00",
        "├── 1 She      nsubj      0.75",
        "├── 4 parents  iobj       1.00",
        "│   └── 3 her  nmod:poss  0.50",
        "└── 6 letter   obj        0.00",
        "    └── 5 a    det        0.25",
    ]


def test_the_text_of_a_tree_with_crossing_arcs():
    assert tree_text(CROSSING, list("abcde")).splitlines() == [
        "3 c",
        "├── 1 a",
        "└── 4 d",
        "    └── 2 b",
        "        └── 5 e",
    ]


@MANY
@given(st.integers(1, 40), SEEDS)
def test_a_tree_as_text_has_each_word_once_and_can_be_read_back(n, seed):
    heads = tree_of_scores(n, seed)
    words = [f"word{k}." for k in range(1, n + 1)]
    text = tree_text(heads, words, [f"label{k}" for k in range(n)], probabilities(n, seed))
    assert len(text.splitlines()) == n and read_back(text) == heads
    assert sorted(re.findall(r"word\d+\.", text)) == sorted(words)
    # modifiers of one head keep the order of the sentence
    order = [int(re.search(r"word(\d+)\.", line)[1]) for line in text.splitlines()]
    for one, other in itertools.combinations(order, 2):
        assert heads[one - 1] != heads[other - 1] or one < other


def test_a_tree_deeper_than_python_recurses_has_a_text():
    n = 1200
    assert len(tree_text([*range(2, n + 1), 0], ["w"] * n).splitlines()) == n


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("漢字", 4), ("e\u0301\u0323", 1), ("మాట", 2), ("a\u200db", 2), ("", 0)]
)
def test_wide_characters_take_two_columns_and_combining_ones_none(text, columns):
    assert columns_of(text) == columns and columns_of(padded(text, 9)) == 9


@MANY
@given(st.integers(1, 12), SEEDS)
def test_the_columns_of_a_text_are_aligned_whatever_the_script(n, seed):
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list("aé漢\u0301字తె"), size=random.integers(1, 6))) for _ in range(n)]
    lines = tree_text(tree_of_scores(n, seed), words, ["|"] * n).splitlines()
    assert len({columns_of(line) for line in lines}) == 1 and all(line.endswith("  |") for line in lines)


def test_probabilities_as_text_are_shades_below_the_numbers_of_modifiers():
    marginals = [[1, 0, 0.3], [0, 0.5, 0], [0, 0.2, 0.7], [0, 0.1, 0]]
    assert heat_text(marginals, ["a", "字", "c"]).splitlines() == [
        "        1  2  3",
        "0 root ██    ░░",
        "1 a       ▒▒",
        "2 字      ░░ ▓▓",
        "3 c",
    ]


@MANY
@given(st.integers(1, 120), SEEDS)
def test_probabilities_as_text_have_a_line_for_each_head_and_a_darker_shade_for_more(n, seed):
    marginals = probabilities(n, seed)
    head, *lines = heat_text(marginals, [f"w{k}" for k in range(1, n + 1)]).splitlines()
    assert len(lines) == n + 1 and head.split() == [str(k) for k in range(1, n + 1)]
    assert [line.split()[1] for line in lines] == ["root", *(f"w{k}" for k in range(1, n + 1))]
    cell, digits = max(2, len(str(n))), len(str(n))
    start = digits + 1 + max(4, digits + 1)
    shades = [
        [" ░▒▓█".index(line.ljust(start + n * (cell + 1))[start + (cell + 1) * k + 1]) for k in range(n)]
        for line in lines
    ]
    assert np.abs(np.array(shades) / 4 - marginals).max() <= 0.125 + 1e-9


# -- bad input -----------------------------------------------------------------------------------------------

TREES = pytest.mark.parametrize("draw", [draw_arcs, tree_text])
TABLES = pytest.mark.parametrize("draw", [draw_marginals, heat_text])


@TREES
@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ([2, 0, 4, 2, 6], "6 words, but 5 heads"),
        ([2, 0, 4, 2, 7, 2], r"word 5 'a' the head 7; heads are words from 1 to 6, or 0 for the root"),
        ([2, 0, 4, 2, -1, 2], r"word 5 'a' the head -1"),
        ([2, 0, 3, 2, 6, 2], r"word 3 'her' is its own head"),
        ([2, 0, 4, 3, 6, 2], r"cycle: word 3 'her' has the head 4, word 4 'parents' has the head 3\."),
        ([2, 3, 4, 5, 6, 1], r"cycle: word 1 'She' has the head 2, .*, \.\.\.\."),
        ([2, 0, 4, 0, 6, 2], r"2 words have the head 0, word 2 'sent', word 4 'parents'; one root is needed"),
        ([2.0, 0, 4, 2, 6, 2], r"integers of shape \(n,\)"),
        (None, r"integers of shape \(n,\)"),
        ("202", r"integers of shape \(n,\)"),
        ([[2, 0, 4, 2, 6, 2]], r"integers of shape \(n,\)"),
        (np.zeros((2, 3), dtype=int), r"got shape \(2, 3\)"),
    ],
)
def test_what_is_no_tree_is_refused_and_the_word_named(draw, heads, words):
    with pytest.raises(ObservationError, match=f"{draw.__name__}.*{words}"):
        draw(heads, SENTENCE)


@MANY
@given(st.lists(st.integers(0, 6), min_size=6, max_size=6))
def test_heads_are_accepted_exactly_if_every_word_leads_to_the_one_root(heads):
    reached = {0}
    for _ in heads:
        reached |= {k for k, head in enumerate(heads, 1) if head in reached}
    tree = len(reached) == 7 and heads.count(0) == 1
    try:
        assert checked_heads("draw", heads, SENTENCE) == heads and tree
    except ObservationError:
        assert not tree


@TREES
def test_words_and_labels_that_are_not_one_for_each_are_refused(draw):
    with pytest.raises(ObservationError, match="empty sentence"):
        draw([], [])
    with pytest.raises(ObservationError, match="sequence of words.*got 'She sent'"):
        draw([0], "She sent")
    with pytest.raises(ObservationError, match=r"sequence of words.*got \[1\]"):
        draw([0], [1])
    with pytest.raises(ObservationError, match="6 words, but 2 labels"):
        draw(HEADS, SENTENCE, ["a", "b"])
    with pytest.raises(ObservationError, match="sequence of labels.*got 'abcdef'"):
        draw(HEADS, SENTENCE, "abcdef")


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5] * 5, r"6 words have shape \(6,\), or as marginals \(7, 6\)"),
        ([0.5, 0.5, np.nan, 0, 0, 0], r"\[0, 1\], but the arc to word 3 'her' has nan"),
        ([0.5, 1.1, 0, 0, 0, 0], "the arc to word 2 'sent' has 1.1"),
        (np.zeros((6, 6)), r"6 words have shape \(7, 6\).*got shape \(6, 6\)"),
        (["a"] * 6, r"shape \(6,\)"),
    ],
)
def test_weights_that_are_no_probabilities_of_arcs_are_refused(weights, words):
    with pytest.raises(ObservationError, match=f"draw_arcs: weights.*{words}"):
        draw_arcs(HEADS, SENTENCE, weights=weights)
    with pytest.raises(ObservationError, match=f"tree_text: marginals.*{words}"):
        tree_text(HEADS, SENTENCE, None, weights)


@TABLES
def test_what_are_no_marginals_is_refused_and_the_arc_named(draw):
    with pytest.raises(
        ObservationError,
        match=r"shape \(3, 2\), a row for each head, the first for the root.*got shape \(2, 2\)",
    ):
        draw(np.zeros((2, 2)), ["a", "b"])
    for value in (np.nan, np.inf, -0.01, 1.01):
        marginals = np.zeros((3, 2))
        marginals[0, 1] = value
        with pytest.raises(ObservationError, match=rf"the arc from the root to word 2 'b' has {value}"):
            draw(marginals, ["a", "b"])
    with pytest.raises(ObservationError, match="got None"):
        draw(None, ["a"])
    with pytest.raises(ObservationError, match="empty sentence"):
        draw(np.zeros((1, 0)), [])


@TABLES
def test_rounding_errors_of_marginals_are_no_mistake(draw):
    draw(torch.tensor([[1 + 1e-6], [-1e-7]]), ["a"])


def test_gold_heads_that_are_no_tree_and_names_of_themes_are_refused():
    with pytest.raises(ObservationError, match="6 words, but 1 gold heads"):
        draw_arcs(HEADS, SENTENCE, gold=[0])
    with pytest.raises(ObservationError, match="gold heads are not a tree: word 1 'She' is its own head"):
        draw_marginals(probabilities(6), SENTENCE, gold=[1, 0, 4, 2, 6, 2])
    for draw in (
        lambda theme: draw_arcs(HEADS, SENTENCE, theme=theme),
        lambda theme: draw_marginals(probabilities(6), SENTENCE, theme=theme),
    ):
        with pytest.raises(ObservationError, match=r"theme_named\('dark'\), got 'dark'"):
            draw("dark")


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_tree_drawn_twice_gives_the_same_file(tmp_path, ending, monkeypatch):
    # matplotlib writes the time and random names of clips into SVG unless told not to
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    with matplotlib.rc_context({"svg.hashsalt": "unn"}):
        for name in "ab":
            save_figure(
                draw_arcs(CROSSING, list("abcde"), list("vwxyz"), gold=[2, 0, 2, 2, 2]),
                tmp_path / f"arcs {name}.{ending}",
            )
            save_figure(
                draw_marginals(probabilities(6), SENTENCE, gold=HEADS), tmp_path / f"heat {name}.{ending}"
            )
    for kind in ("arcs", "heat"):
        assert (tmp_path / f"{kind} a.{ending}").read_bytes() == (
            tmp_path / f"{kind} b.{ending}"
        ).read_bytes()


def test_trees_leave_the_global_state_of_matplotlib_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    save_figure(draw_arcs(HEADS, SENTENCE, LABELS, theme=DARK), tmp_path / "arcs.png")
    save_figure(draw_marginals(probabilities(6), SENTENCE, theme=DARK), tmp_path / "heat.png")
    assert dict(matplotlib.rcParams) == before


def test_trees_as_text_need_neither_torch_nor_matplotlib():
    code = (
        "import sys; from problems.parsing.draw import tree_text, heat_text\n"
        "tree_text([0], ['a']); heat_text([[1.0], [0.0]], ['a'])\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
