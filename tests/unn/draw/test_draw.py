"""Pictures have one look, light or dark, that everyone can read; graphs stay readable up to 30 variables;
files are whole or untouched."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import fields

import matplotlib
import matplotlib.style
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.text import Text
from PIL import Image
from support.problem_graphs import convolutional

import unn
from factors import Cardinality, Multilinear
from unn.draw import (
    DARK,
    LIGHT,
    draw_adjacency,
    draw_attention,
    draw_energy,
    draw_energy_terms,
    draw_graph,
    draw_images,
    draw_metrics,
    save_collage,
    save_figure,
    theme_named,
)
from unn.draw.layout import spread
from unn.errors import DataError, DeclarationError, ObservationError

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def random_graph(count: int, seed: int) -> unn.FactorGraph:
    """Variables with and without plates, short and long names, in a connected or scattered graph."""
    random = np.random.default_rng(seed)
    g = unn.FactorGraph(f"random {seed}", a=2, row=9, a_long_name_of_an_axis=3)
    axes = ["a", "a", "row | a", "n | a", "n row position | a", "a_long_name_of_an_axis n | a"]
    names = [f"variable_{k}" if random.random() < 0.2 else f"x{k}" for k in range(count)]
    variables = [g.variable(name, axes[random.integers(len(axes))], unn.SquaredNorm()) for name in names]

    def seen(k: int, feature: str) -> unn.graph.arrays.Reference:
        count = len(variables[k].node_axes) if variables[k].has_bar else 0
        nodes = [chr(ord(feature) + 1 + j) for j in range(count)]
        return variables[k][" ".join([*nodes, feature])]

    loose = random.random() * 0.6
    for k in range(1, count):
        if random.random() > loose:
            other = int(random.integers(max(0, k - 6), k))
            g.factor(Multilinear(seen(k, "a"), g.parameter(f"W{k}", "a a")["a m"], seen(other, "m")))
    for k in range(int(random.integers(0, count // 2 + 1))):
        chosen = random.choice(count, 3, replace=False)
        name = f"a factor with a long name {k}" if random.random() < 0.3 else None
        g.factor(Multilinear(*(seen(n, letter) for n, letter in zip(chosen, "agm", strict=True)), name=name))
    for k in random.choice(count, count // 2):
        g.factor(Multilinear(seen(k, "a")))
    return g


def sudoku() -> unn.FactorGraph:
    g = unn.FactorGraph("sudoku", row=9, col=9, digit=9, R=3, C=3)
    cell, hint = (g.variable(name, "row col | digit", unn.Entropy()) for name in ("cell", "hint"))
    g.factor(Multilinear(cell["r c v"], hint["r c v"]))
    g.factor(Cardinality(cell["r c v"], each="r v", name="rows"))
    g.factor(Cardinality(cell["(R r) (C c) v"], each="R C v", name="blocks"))
    return g


def gallery(theme) -> dict[str, Figure]:
    """One picture of every kind."""
    energy = torch.arange(40.0).reshape(8, 5)
    terms = {f"_f{k}": energy * (k - 3) for k in range(9)}
    return {
        "graph": draw_graph(sudoku(), ["hint"], theme),
        "energy": draw_energy(energy, list("abcdefgh"), theme),
        "terms": draw_energy_terms(terms, list("abcdefgh"), theme),
        "metrics": draw_metrics(
            {f"run{k}": [{"step": 1, "loss": 1.0, "acc": 0.1}, {"step": 2, "loss": k}] for k in range(8)},
            theme=theme,
        ),
        "adjacency": draw_adjacency([0, 1, 1, 2], [1, 0, 0, 2], [("X", 2), ("Y", 1)], theme, "edges"),
        "attention": draw_attention(torch.eye(3).expand(2, 3, 3), ["a", "b", "c"], theme=theme),
        "images": draw_images(torch.zeros(2, 1, 3, 3), ["a", "b"], theme=theme),
    }


# -- themes --------------------------------------------------------------------------------------------------


def test_a_theme_is_found_by_its_name_and_misspelt_names_are_corrected():
    assert theme_named("light") is LIGHT and theme_named("dark") is DARK
    with pytest.raises(ObservationError, match=r"unknown theme 'drak'. Did you mean 'dark'\?"):
        theme_named("drak")
    with pytest.raises(ObservationError, match="unknown theme None"):
        theme_named(None)


def test_a_graph_draws_itself_in_the_theme_of_a_name():
    assert to_rgba(sudoku().draw(theme="dark").get_facecolor()) == to_rgba(DARK.background)
    with pytest.raises(ObservationError, match="Did you mean 'dark'"):
        sudoku().draw(theme="darkk")


def test_the_name_of_a_theme_is_no_theme():
    with pytest.raises(ObservationError, match=r"theme_named\('dark'\), got 'dark'"):
        draw_graph(sudoku(), theme="dark")


def test_light_and_dark_have_no_colour_in_common():
    for field in fields(LIGHT):
        assert getattr(LIGHT, field.name) != getattr(DARK, field.name)
    assert not set(LIGHT.cycle) & set(DARK.cycle)


@THEMES
def test_colours_stand_out_from_the_background(theme):
    assert min(contrast(theme.background, colour) for colour in (theme.foreground, theme.muted)) >= 4.5
    assert contrast(theme.fill, theme.foreground) >= 4.5
    assert min(contrast(theme.background, colour) for colour in (*theme.cycle, theme.faint)) >= 3
    assert contrast(theme.background, theme.fill) >= 1.5


@THEMES
@pytest.mark.parametrize("vision", ["normal", "protan", "deutan", "tritan"])
def test_line_colours_differ_in_every_vision(theme, vision):
    seen = [cielab(MACHADO[vision] @ linear(colour)) for colour in theme.cycle]
    distances = [np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)]
    # 2.3 is a just noticeable difference; tritan vision is rare
    assert min(distances) >= (15 if vision == "tritan" else 25)


@THEMES
def test_the_sequential_colormap_begins_near_the_background_and_changes_lightness_evenly(theme):
    colours = matplotlib.colormaps[theme.sequential](np.linspace(0, 1, 33))[:, :3]
    lightness = np.array([cielab(linear(colour))[0] for colour in colours])
    steps = np.diff(lightness) * np.sign(lightness[-1] - lightness[0])
    # made even in CAM02-UCS, which CIELAB follows but for the darkest colours
    assert steps.min() > 0.25 * steps.mean() and steps.max() < 1.5 * steps.mean()
    here, start, end = (cielab(linear(colour))[0] for colour in (theme.background, colours[0], colours[-1]))
    assert abs(here - start) < 0.1 * abs(here - end)


def test_notebooks_can_show_a_picture():
    assert draw_graph(sudoku())._repr_png_().startswith(b"\x89PNG")


@pytest.mark.slow
@THEMES
def test_every_text_and_line_of_every_picture_can_be_read(theme):
    for kind, figure in gallery(theme).items():
        rendered(figure)
        assert to_rgba(figure.get_facecolor()) == to_rgba(theme.background)
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        assert texts and all(contrast(theme.background, text.get_color()) >= 4.5 for text in texts), kind
        lines = [line for axes in figure.axes for line in axes.lines]
        assert all(contrast(theme.background, line.get_color()) >= 3 for line in lines), kind


@pytest.mark.slow
@pytest.mark.parametrize("style", ["dark_background", "ggplot"])
def test_pictures_look_the_same_whatever_the_style_of_the_session(style):
    def colours() -> list[object]:
        figures = gallery(LIGHT).values()
        for figure in figures:
            rendered(figure)
        texts = [
            (text.get_text(), to_rgba(text.get_color()))
            for figure in figures
            for text in figure.findobj(Text)
            if text.get_text()
        ]
        return texts + [
            to_rgba(line.get_color()) for figure in figures for axes in figure.axes for line in axes.lines
        ]

    plain = colours()
    with matplotlib.style.context(style):
        assert colours() == plain


@pytest.mark.slow
def test_pictures_and_files_leave_the_global_state_of_matplotlib_alone(tmp_path):
    from matplotlib import _pylab_helpers, rcParams

    before = dict(rcParams)
    for kind, figure in gallery(DARK).items():
        save_figure(figure, tmp_path / f"{kind}.png")
    save_collage(list(gallery(LIGHT).values()), tmp_path / "all.png")
    assert dict(rcParams) == before
    assert not _pylab_helpers.Gcf.figs


def test_importing_loads_neither_torch_nor_matplotlib_and_metrics_never_need_torch():
    code = (
        "import sys, unn.draw; from unn.draw import draw_metrics, draw_adjacency\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
        "draw_metrics({'a': [{'step': 1, 'loss': 2.0}]}); draw_adjacency([0], [1], [('X', 2)])\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- graphs --------------------------------------------------------------------------------------------------


# a smaller graph would say no more, and shrinking takes minutes
@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(st.integers(3, 30), st.integers(0, 10**6), st.booleans())
def test_nothing_in_a_graph_meets_what_it_does_not_belong_to(count, seed, dark):
    g = random_graph(count, seed)
    check_apart(draw_graph(g, [next(iter(g.variables))], DARK if dark else LIGHT), g)


@pytest.mark.parametrize("make", [sudoku, lambda: convolutional(8, 8, 8), unn.FactorGraph])
def test_nothing_in_a_known_graph_meets_what_it_does_not_belong_to(make):
    g = make()
    check_apart(g.draw(), g)


def test_edges_of_a_large_factor_pass_beside_wide_plates():
    g = unn.FactorGraph("star", a=1)
    centre = g.variable("centre", "a", unn.SquaredNorm())
    around = [g.variable(f"x{k}", f"{'m' * 15}{k} | a", unn.SquaredNorm()) for k in range(6)]
    g.factor(
        Multilinear(
            centre["i"], *(variable[f"{'jklmno'[k]} i"] for k, variable in enumerate(around)), name="star"
        )
    )
    figure = g.draw()
    check_apart(figure, g)
    frames = {name: plate.get_window_extent() for name, plate in patches(figure, "plate ").items()}
    for name, other in itertools.permutations(frames, 2):
        edge = patches(figure, "edge ")[f"{name} star"]
        assert (
            not edge.get_transform()
            .transform_path(edge.get_path())
            .intersects_bbox(frames[other], filled=False)
        )


def check_apart(figure: Figure, g: unn.FactorGraph) -> None:
    rendered(figure)
    texts = [text for text in (*figure.axes[0].texts, *figure.legends[0].get_texts()) if text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    variables, factors, plates = (patches(figure, kind) for kind in ("variable ", "factor ", "plate "))
    nodes = [patch.get_window_extent() for patch in (*variables.values(), *factors.values())]
    frames = {name: plate.get_window_extent() for name, plate in plates.items()}
    assert set(variables) == set(g.variables) and set(factors) == set(g.factors)
    for group in (boxes, nodes, list(frames.values())):
        for one, other in itertools.combinations(group, 2):
            assert not one.overlaps(other)
    for text, box in zip(texts, boxes, strict=True):
        assert all(not box.overlaps(node) or holds(node, box) for node in nodes), text.get_text()
        assert all(not box.overlaps(frame) or holds(frame, box) for frame in frames.values()), text.get_text()
        assert holds(figure.bbox, box)
    for name, frame in frames.items():
        inside = [box for box in nodes if frame.overlaps(box)]
        assert (
            len(inside) == 1 and holds(frame, inside[0]) and holds(frame, variables[name].get_window_extent())
        )
        assert holds(figure.bbox, frame)
    for gid, edge in patches(figure, "edge ").items():
        path = edge.get_transform().transform_path(edge.get_path())
        for name in g.variables:
            if not gid.startswith(f"{name} ") and name not in g.factors[gid.partition(" ")[2]].variables:
                assert not path.intersects_bbox(
                    frames.get(name, variables[name].get_window_extent()), filled=False
                ), (gid, name)


@THEMES
def test_observed_variables_are_filled_and_the_others_are_not(theme):
    colours = {
        name: to_rgba(circle.get_facecolor())
        for name, circle in patches(draw_graph(sudoku(), ["hint"], theme), "variable ").items()
    }
    assert colours == {"hint": to_rgba(theme.fill), "cell": to_rgba(theme.background)}


def test_plates_stand_around_variables_with_a_bar_and_name_their_node_axes():
    g = unn.FactorGraph("plates", row=9, col=7, d=3)
    g.variable("grid", "row col | d", unn.SquaredNorm())
    g.variable("text", "n | d", unn.SquaredNorm())
    g.variable("alone", "row d", unn.SignedEntropy())  # its entries are nodes, but nobody declared a bar
    g.variable("whole", "| d", unn.SquaredNorm())
    figure = g.draw()
    rendered(figure)
    frames = {name: plate.get_window_extent() for name, plate in patches(figure, "plate ").items()}
    labels = {
        name: [text.get_text() for text in figure.axes[0].texts if holds(frame, text.get_window_extent())]
        for name, frame in frames.items()
    }
    assert labels == {"grid": ["row 9 × col 7", "grid"], "text": ["n", "text"]}
    assert "repeated" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "repeated" not in [
        text.get_text() for text in convolutional(8, 8, 8).draw().legends[0].get_texts()
    ]


def test_variables_without_neighbours_share_rows():
    g = unn.FactorGraph("crowd", a=1)
    for k in range(30):
        g.variable(f"x{k}", "a", unn.SquaredNorm())
    figure = g.draw()
    assert max(figure.get_size_inches()) < 15
    heights = sorted({round(circle.get_center()[1], 6) for circle in patches(figure, "variable ").values()})
    assert len(heights) == 4


def test_the_same_graph_is_drawn_the_same_way():
    def centres() -> list[object]:
        return [circle.get_center() for circle in patches(random_graph(12, 3).draw(), "variable ").values()]

    assert centres() == centres()


def test_a_graph_refuses_names_that_are_not_declared():
    with pytest.raises(DeclarationError, match=r"unknown array 'hnt'. Did you mean 'hint'\?"):
        draw_graph(sudoku(), ["hnt"])


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.floats(0, 3))
def test_spread_places_keep_their_distance_and_move_no_more_than_needed(wishes, room):
    places = spread(wishes, [room] * (len(wishes) - 1))
    assert all(b - a >= room - 1e-9 for a, b in itertools.pairwise(places))
    assert sum(places) == pytest.approx(sum(wishes), abs=1e-6)
    if all(b - a >= room for a, b in itertools.pairwise(wishes)):
        assert places == pytest.approx(wishes)


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "PNG", "pdf", "svg", "jpg", "webp"])
def test_the_ending_of_a_file_says_its_format(tmp_path, ending):
    path = tmp_path / f"picture.{ending}"
    save_figure(draw_images(torch.zeros(1, 1, 2, 2)), path)
    start = path.read_bytes()[:16]
    expected = {"png": b"PNG", "pdf": b"%PDF", "svg": b"<?xml", "jpg": b"\xff\xd8", "webp": b"WEBP"}[
        ending.lower()
    ]
    assert expected in start
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@THEMES
def test_files_keep_the_background(tmp_path, theme):
    figure = draw_energy(torch.ones(3, 2), theme=theme)
    with matplotlib.rc_context({"savefig.facecolor": "red"}):
        save_figure(figure, tmp_path / "one.png", dpi=50)
        save_collage([figure, figure], tmp_path / "two.png", 200, theme)
    for name in ("one.png", "two.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.convert("RGB").getpixel((0, 0)) == tuple(
                round(255 * channel) for channel in to_rgb(theme.background)
            )


def test_dots_per_inch_scale_the_picture(tmp_path):
    save_figure(draw_energy(torch.ones(3, 2)), tmp_path / "small.png", dpi=50)
    with Image.open(tmp_path / "small.png") as picture:
        assert picture.size == (320, 190)


def test_a_file_that_cannot_be_finished_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "picture.png"
    path.write_text("old")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(DataError, match=r"picture.png cannot be written: No space left on device\.$"):
        save_figure(draw_images(torch.zeros(1, 1, 2, 2)), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["missing/picture.png", "folder.png", "x" * 300 + ".png"])
def test_places_that_cannot_be_written_are_named_in_one_line(tmp_path, name):
    (tmp_path / "folder.png").mkdir()
    figure = draw_images(torch.zeros(1, 1, 2, 2))
    for save in (lambda path: save_figure(figure, path), lambda path: save_collage([figure], path)):
        with pytest.raises(DataError, match="cannot be written") as caught:
            save(tmp_path / name)
        assert "\n" not in str(caught.value) and name in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("a.pgn", r"ending \.pgn"), ("a", "no ending"), (".png", "no ending"), ("a.pgf", r"ending \.pgf")],
)
def test_unknown_endings_are_refused_with_the_known_ones(tmp_path, name, words):
    with pytest.raises(DataError, match=words + r"; end its name in \.png, .* or \.webp"):
        save_figure(draw_images(torch.zeros(1, 1, 2, 2)), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_pictures_that_cannot_be_drawn_are_refused(tmp_path):
    with pytest.raises(DataError, match="at 0 dots per inch"):
        save_figure(draw_images(torch.zeros(1, 1, 2, 2)), tmp_path / "a.png", dpi=0)
    with pytest.raises(DataError, match="too large|dots per inch"):
        save_figure(draw_images(torch.zeros(1, 1, 2, 2)), tmp_path / "a.png", dpi=100_000)
    assert not list(tmp_path.iterdir())


def test_a_collage_has_its_width_and_all_figures(tmp_path):
    figures = [draw_energy(torch.ones(3, 2)), draw_images(torch.ones(1, 1, 2, 2))]
    save_collage(figures, tmp_path / "all.png", 300)
    heights = [round(300 * figure.get_figheight() / figure.get_figwidth()) for figure in figures]
    with Image.open(tmp_path / "all.png") as picture:
        assert picture.size == (300, pytest.approx(sum(heights), abs=2))


@THEMES
def test_a_collage_has_the_background_of_its_theme_below_transparent_figures(tmp_path, theme):
    figure = draw_images(torch.ones(1, 1, 2, 2), theme=theme)
    figure.set_facecolor("none")
    save_collage([figure], tmp_path / "a.png", 100, theme)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.convert("RGB").getpixel((0, 0)) == tuple(
            round(255 * channel) for channel in to_rgb(theme.background)
        )


def test_a_collage_refuses_nothing_and_other_formats(tmp_path):
    with pytest.raises(ObservationError, match="0 figures"):
        save_collage([], tmp_path / "a.png")
    with pytest.raises(ObservationError, match="width=0"):
        save_collage([draw_energy(torch.ones(3, 2))], tmp_path / "a.png", 0)
    with pytest.raises(DataError, match=r"PNG.*a\.pdf"):
        save_collage([draw_energy(torch.ones(3, 2))], tmp_path / "a.pdf")


# -- helpers -------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB
MACHADO = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour) -> np.ndarray:
    channels = np.array(to_rgb(colour))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other) -> float:
    """WCAG 2.1: (L1 + 0.05) / (L2 + 0.05) for the relative luminances L1 >= L2."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def cielab(light: np.ndarray) -> np.ndarray:
    """Linear sRGB to CIELAB under D65."""
    primaries = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = primaries @ light.clip(0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def rendered(figure: Figure) -> None:
    """Find the place of everything, as it would be saved."""
    FigureCanvasAgg(figure).draw()


def patches(figure: Figure, kind: str) -> dict[str, object]:
    by_name = {
        patch.get_gid().removeprefix(kind): patch
        for patch in figure.axes[0].patches
        if (patch.get_gid() or "").startswith(kind)
    }
    assert kind != "variable " or all(isinstance(patch, Circle) for patch in by_name.values())
    return by_name


def holds(outer, inner) -> bool:
    return outer.x0 <= inner.x0 and outer.y0 <= inner.y0 and inner.x1 <= outer.x1 and inner.y1 <= outer.y1
