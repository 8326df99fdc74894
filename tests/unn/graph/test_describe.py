"""Explanations and pictures say what is declared, completely and exactly."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch, Rectangle
from torch import Tensor

import unn
from factors import Clique, Conv2d, Multilinear
from unn.draw import draw_energy, draw_images
from unn.draw.energy import round_length
from unn.errors import DeclarationError, ObservationError
from unn.graph.describe import factor_label


class Depends(unn.Factor):
    """A factor that only says who interacts."""


class Cubic(unn.EnergyFactor):
    """A factor that is not multilinear."""

    def energy(self, values: Mapping[str, Tensor]) -> Tensor:
        return sum(values[name].flatten(1).sum(1) for name in self.variables) ** 3


def classifier() -> unn.FactorGraph:
    g = unn.FactorGraph("mlp", x=4, h=3, c=2)
    X, H, Y = (
        g.variable("X", "x", unn.SquaredNorm()),
        g.variable("H", "h", unn.NonNegative()),
        g.variable("Y", "c", unn.Entropy(2.0)),
    )
    W, V, b = g.parameter("W", "h x"), g.parameter("V", "c h"), g.parameter("b", "h")
    g.factor(Multilinear(H["h"], W["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], V["c h"], H["h"]))
    g.factor(Multilinear(b["h"], H["h"]))
    return g


def grid() -> unn.FactorGraph:
    """A field that meets itself, with letters that differ from factor to factor, shifts, splits and a
    condition."""
    g = unn.FactorGraph("grid", r=3, c=4, v=2, k=2)
    X, Z = g.variable("X", "r c | v", unn.Entropy()), g.variable("Z", "k v", unn.SquaredNorm())
    W, U = g.parameter("W", "v v", init="normal"), g.constant("U", "r c v")
    g.factor(Multilinear(X["i j v"], W["v w"], X["i+1 j w"]))
    g.factor(Multilinear(X["j i w"], W["w v"], X["j i-2 v"], name='right "x" #1 (a, b); <c>'))
    g.factor(Multilinear(U["i j v"], X["i j v"]))
    g.factor(Multilinear(X["a b c"], X["d b c"], where="a < d"))
    g.factor(Multilinear(Z["j i"], W["i v"], X["n m v"], name="swap"))
    g.factor(Multilinear(X["j b i"], W["i v"], Z["k v"], name="cycle"))
    g.factor(Multilinear(X["i (p q) v"], Z["q v"], name="split"))
    return g


def mixed() -> unn.FactorGraph:
    """Factors of every kind, an isolated variable, and axes of unknown size."""
    g = unn.FactorGraph('mi"x$ed')
    A, B, C = (g.variable(name, "n", unn.BinaryEntropy()) for name in ("A", "B", "C_with_a_long_name"))
    g.variable("alone", "n m", unn.Ball(over="n"))
    g.parameter("P", "m")
    g.factor(Cubic(A["i"], B["i"]))
    g.factor(Depends(B["i"], C["i"], name="who $asks$ #1"))
    g.factor(Multilinear(B["i"], B["i+1"]))
    g.factor(Multilinear(A["i"], name="first bias"))
    g.factor(Multilinear(A["i"], name="second bias"))
    return g


def random_graph(count: int, seed: int) -> unn.FactorGraph:
    random = np.random.default_rng(seed)
    g = unn.FactorGraph(f"random {seed}", a=2)
    names = [f"variable_{k}" if random.random() < 0.2 else f"x{k}" for k in range(count)]
    variables = [g.variable(name, "a", unn.SquaredNorm()) for name in names]
    for k, variable in enumerate(variables[1:], 1):
        other = variables[random.integers(max(0, k - 6), k)]
        g.factor(Multilinear(variable["i"], g.parameter(f"W{k}", "a a")["i j"], other["j"]))
    for k in range(count // 2):
        chosen = [variables[n]["i"] for n in random.choice(count, 3, replace=False)]
        g.factor(
            Multilinear(*chosen, name=f"a factor with a long name {k}" if random.random() < 0.3 else None)
        )
    for k in random.choice(count, count // 2):
        g.factor(Multilinear(variables[k]["i"]))
    return g


ALL = [classifier, grid, mixed, lambda: random_graph(20, 0), unn.FactorGraph]


# -- words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declare", ALL)
def test_explain_names_every_array_and_factor(declare):
    g = declare()
    text = " ".join(g.explain().split())
    for name in g.arrays:
        assert re.search(rf"\b{name}: (axes|parameter|constant)", text)
    for name, factor in g.factors.items():
        assert f"{factor.formula()} (factor {name})" in text.replace("  ", " ")


@pytest.mark.parametrize("declare", ALL)
def test_explain_keeps_to_its_width(declare):
    assert max(map(len, declare().explain().splitlines())) <= 100


def test_explain_gives_sizes_and_entries_where_known():
    text = grid().explain()
    assert "X: axes r = 3, c = 4, v = 2; one node for each r, c" in text
    assert "W: parameter, axes v = 2, v = 2; 4 entries" in text
    assert "U: constant, axes r = 3, c = 4, v = 2; 24 entries, passed to each call" in text
    assert "A: axes n = dynamic; one node for each n" in mixed().explain()
    assert "P: parameter, axes m = dynamic; number of entries dynamic" in mixed().explain()


def test_explain_counts_all_parameter_entries():
    assert "3 variables, 3 factors, 21 parameter entries." in classifier().explain().splitlines()[0]


def test_explain_gives_domain_and_activation_of_each_variable():
    text = classifier().explain()
    assert "Psi(x) = 1/2 ||x||^2, x >= 0, by NonNegative()" in text
    assert "activation: softmax over c" in text


def test_explain_writes_the_update_of_the_textbook_example():
    text = classifier().explain()
    assert "H[h] <- relu(W[h x] X[x] + V[c h] Y[c] + b[h])" in text
    assert "Y[c] <- softmax(V[c h] H[h]; temperature=2)" in text


@pytest.mark.parametrize("declare", [classifier, grid])
def test_explained_updates_evaluate_to_the_messages_of_the_factors(declare):
    g = declare()
    torch.manual_seed(0)
    values = {
        name: torch.randn(g.size_table.shape(array, g.size_table.static)).double()
        for name, array in g.arrays.items()
    }
    for name in g.variables:
        expected = torch.zeros_like(values[name])
        for factor in g.factors.values():
            if name in factor.variables:
                batched = {n: x[None] if n in g.variables else x for n, x in values.items()}
                expected = expected + factor.message(name, batched)[0]
        assert torch.allclose(_evaluated(g.explain(), name, values), expected)


def test_explain_places_terms_whose_pattern_cannot_be_renamed():
    g = grid()
    assert "(Z[q v] at [i (p q) v])" in g.explain()
    first = unn.FactorGraph("late", n=3)
    X, Y = first.variable("X", "n", unn.SquaredNorm()), first.variable("Y", "n", unn.SquaredNorm())
    first.factor(Multilinear(X["i+1"], Y["i+1"]))  # i begins at 0: X[0] and Y[0] do not meet
    assert "X[i] <- identity((Y[i+1] at [i+1]))" in first.explain()


def test_explain_refers_to_factors_that_are_not_products_by_name():
    g = unn.FactorGraph("conv", row=5, col=5, u=2, ch=1)
    X, H = g.variable("X", "ch row col", unn.SignedEntropy()), g.variable("H", "out r c", unn.SignedEntropy())
    g.factor(Conv2d(H, g.parameter("W", "out ch u u"), X))
    g.factor(Multilinear(g.parameter("b", "out")["o"], H["o i j"]))
    assert "H[o i j] <- tanh(message of Conv2d(H, W, X) + b[o])" in g.explain()
    assert "X <- tanh(message of Conv2d(H, W, X))" in g.explain()


def test_explain_says_how_variables_without_a_single_exact_step_are_updated():
    text = " ".join(grid().explain().split())
    assert "X meets itself in Multilinear(X, W, X)" in text and "colour classes" in text
    assert "Z meets itself" not in text
    text = " ".join(mixed().explain().split())
    assert "A has no closed form in Cubic(A, B): a monotone inner solver" in text
    assert "B has no closed form in Cubic(A, B), Multilinear(B, B): a monotone inner solver" in text
    assert "colour classes" not in text
    g = unn.FactorGraph("one node")
    S = g.variable("S", "n", unn.Entropy())
    g.factor(Multilinear(S["i"], S["j"]))
    assert "S has no closed form in Multilinear(S, S)" in g.explain()


def test_explain_keeps_factors_without_energy_out_of_energy_and_updates():
    sections = mixed().explain().split("\n\n")
    (structure,) = [section for section in sections if section.startswith("Factors without energy")]
    assert "Depends(B[i], C_with_a_long_name[i])" in structure
    assert all("Depends" not in section for section in sections if section is not structure)
    assert "Factors without energy" not in grid().explain()


@pytest.mark.parametrize("declare", ALL)
def test_explain_ends_with_the_boundedness(declare):
    g = declare()
    assert " ".join(g.explain().split()).endswith(" ".join(f"Boundedness: {g.boundedness()}".split()))


def test_graphs_without_any_energy_are_explained_without_energy_updates_and_boundedness():
    g = unn.FactorGraph("structure", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Clique(x["i"], name="order"))
    text = g.explain()
    assert "clique of x[i]" in text
    for word in ("Energy", "Psi(x) +", "updates", "identity(0)", "no factor with an energy", "Boundedness"):
        assert word not in text
    g.factor(Multilinear(x["i"], name="bias"))
    assert "Boundedness" in g.explain() and "updates" in g.explain()
    lonely = unn.FactorGraph("lonely", n=3)
    lonely.variable("x", "n", unn.SquaredNorm())
    assert "no factor with an energy touches it" in lonely.explain()


# -- text formats --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declare", ALL)
def test_mermaid_has_one_edge_for_each_variable_of_each_factor(declare):
    g = declare()
    first, *lines = g.to_mermaid().splitlines()
    assert first == "graph LR"
    nodes, edges = {}, []
    for line in lines:
        node = re.fullmatch(r'    (\w+)(\(\("[^"]*"\)\)|\["[^"]*"\])', line)
        edge = re.fullmatch(r"    (\w+) (---|-\.-) (\w+)", line)
        assert node or edge, line
        if node:
            nodes[node.group(1)] = re.sub(r"#(\d+);", lambda m: chr(int(m.group(1))), node.group(2))
        else:
            edges.append((edge.group(1), edge.group(3), edge.group(2)))
    wanted = [
        (
            f'(("{name}"))',
            f'["{factor_label(factor) or "product"}"]',
            "---" if isinstance(factor, unn.EnergyFactor) else "-.-",
        )
        for factor in g.factors.values()
        for name in factor.variables
    ]
    assert [(nodes[v], nodes[f], style) for v, f, style in edges] == wanted
    assert len(nodes) == len(g.variables) + len(g.factors)


def test_mermaid_labels_hold_no_sign_with_a_meaning():
    (label,) = [line for line in grid().to_mermaid().splitlines() if "right" in line]
    text = label.partition('["')[2].removesuffix('"]')
    assert text == "right #34;x#34; #35;1 (a, b)#59; #60;c#62;: W"


@pytest.mark.parametrize("declare", ALL)
def test_dot_is_a_bipartite_graph_with_the_declared_edges(declare):
    g = declare()
    text = g.to_dot()
    head, *lines, last = text.splitlines()
    quoted = r'"((?:[^"\\]|\\.)*)"'
    assert re.fullmatch(f"graph {quoted} {{", head) and last == "}" and lines[0] == "    rankdir=LR;"
    labels, edges = {}, []
    for line in lines[1:]:
        node = re.fullmatch(rf"    (\w+) \[label={quoted}, shape=(circle|box).*\];", line)
        edge = re.fullmatch(r"    (v\d+) -- (f\d+)( \[style=dashed\])?;", line)
        assert node or edge, line
        if node:
            labels[node.group(1)] = (node.group(3), re.sub(r"\\(.)", r"\1", node.group(2)))
        else:
            edges.append((labels[edge.group(1)], labels[edge.group(2)]))
    wanted = [
        (("circle", name), ("box", factor_label(f) or "product"))
        for f in g.factors.values()
        for name in f.variables
    ]
    assert edges == wanted


def test_labels_of_factors_list_parameters_but_not_variables():
    labels = [factor_label(factor) for factor in grid().factors.values()]
    assert labels == ["W", 'right "x" #1 (a, b); <c>: W', "U", "", "swap: W", "cycle: W", "split"]
    assert [factor_label(factor) for factor in mixed().factors.values()][:2] == ["Cubic", "who $asks$ #1"]


# -- pictures ------------------------------------------------------------------------------------------------


def test_draw_shades_observed_variables():
    figure = classifier().draw(given=["X", "Y"])
    colours = {
        name: to_rgba(circle.get_facecolor()) for name, circle in _patches(figure, "variable ").items()
    }
    assert colours["X"] == colours["Y"] != to_rgba("white")
    assert colours["H"] == to_rgba("white")


def test_draw_orders_variables_by_their_distance_from_the_given_ones():
    across = {
        name: circle.get_center()[0]
        for name, circle in _patches(classifier().draw(given="Y"), "variable ").items()
    }
    assert across["Y"] < across["H"] < across["X"]
    across = {
        name: circle.get_center()[0] for name, circle in _patches(classifier().draw(), "variable ").items()
    }
    assert across["X"] < across["H"] < across["Y"]


@pytest.mark.parametrize("declare", ALL)
def test_draw_has_every_variable_factor_and_edge(declare):
    g = declare()
    figure = g.draw()
    assert set(_patches(figure, "variable ")) == set(g.variables)
    assert set(_patches(figure, "factor ")) == set(g.factors)
    assert set(_patches(figure, "edge ")) == {
        f"{name} {f.name}" for f in g.factors.values() for name in f.variables
    }


def test_draw_marks_factors_without_energy():
    figure = mixed().draw()
    faces = {name: to_rgba(square.get_facecolor()) for name, square in _patches(figure, "factor ").items()}
    assert [name for name, face in faces.items() if face == to_rgba("white")] == ["who $asks$ #1"]
    dashed = [name for name, edge in _patches(figure, "edge ").items() if edge.get_linestyle() == "--"]
    assert dashed == ["B who $asks$ #1", "C_with_a_long_name who $asks$ #1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "declare", [*ALL[:3], *(lambda n=n, s=s: random_graph(n, s) for n in (3, 12, 20, 30) for s in range(2))]
)
def test_draw_lets_no_labels_or_nodes_overlap_or_leave_the_figure(declare):
    g = declare()
    figure = g.draw(given=[next(iter(g.variables))])
    figure.canvas.draw()
    texts = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    nodes = [patch for kind in ("variable ", "factor ") for patch in _patches(figure, kind).values()]
    squares = [patch.get_window_extent() for patch in nodes]
    for one, other in itertools.combinations(texts, 2):
        assert not one.overlaps(other)
    for one, other in itertools.combinations(squares, 2):
        assert not one.overlaps(other)
    for text, (patch, box) in itertools.product(texts, zip(nodes, squares, strict=True)):
        assert not text.overlaps(box) or (isinstance(patch, Circle) and _holds(box, text))
    for box in (*texts, *squares):
        assert _holds(figure.bbox, box)


def test_draw_folds_a_long_chain():
    g = unn.FactorGraph("chain", a=1)
    variables = [g.variable(f"x{k}", "a", unn.SquaredNorm()) for k in range(30)]
    for one, other in itertools.pairwise(variables):
        g.factor(Multilinear(one["i"], other["i"]))
    figure = g.draw()
    assert figure.get_figwidth() < 15
    centres = [circle.get_center() for circle in _patches(figure, "variable ").values()]
    steps = [np.hypot(a - c, b - d) for (a, b), (c, d) in itertools.pairwise(centres)]
    assert max(steps) < 2


def test_draw_of_a_tree_has_no_crossing_edges():
    g = unn.FactorGraph("tree", a=1)
    variables = [g.variable(f"x{k}", "a", unn.SquaredNorm()) for k in range(15)]
    for k in np.random.default_rng(0).permutation(range(1, 15)):
        g.factor(Multilinear(variables[k]["i"], variables[(k - 1) // 2]["i"]))
    height = {name: circle.get_center()[1] for name, circle in _patches(g.draw(), "variable ").items()}
    for level in ([1, 2], [3, 4, 5, 6], range(7, 15)):
        parents = [height[f"x{(k - 1) // 2}"] for k in sorted(level, key=lambda k: height[f"x{k}"])]
        assert parents == sorted(parents)


def test_draw_refuses_names_that_are_not_declared():
    with pytest.raises(DeclarationError, match="unknown array 'Image'"):
        classifier().draw(given=["X", "Image"])


def test_pictures_leave_the_global_state_of_matplotlib_alone():
    from matplotlib import _pylab_helpers, rcParams

    before = dict(rcParams)
    figures = [classifier().draw(), draw_energy(torch.ones(2, 2)), draw_images(torch.zeros(1, 1, 2, 2))]
    assert all(isinstance(figure, Figure) for figure in figures)
    assert dict(rcParams) == before
    assert not _pylab_helpers.Gcf.figs


def test_energy_plot_skips_infinite_entries():
    energy = torch.tensor([[torch.inf, torch.inf], [torch.inf, 4.0], [3.0, 1.0], [1.0, torch.nan]])
    (line,) = draw_energy(energy).axes[0].lines
    assert line.get_xdata().tolist() == [2, 3, 4]
    assert line.get_ydata().tolist() == [4.0, 2.0, 1.0]


def test_energy_plot_draws_a_band_over_the_batch():
    energy = torch.arange(11.0).expand(3, 11)
    (band,) = draw_energy(energy).axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(1) and heights.max() == pytest.approx(9)
    assert not draw_energy(energy[:, :1]).axes[0].collections


def test_energy_plot_names_updates_by_the_schedule():
    g = classifier()
    out = unn.infer(g, {"X": torch.randn(3, 4)}, order=["H", "Y"], iterations=2)
    axes = draw_energy(out.energy, out.schedule).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["H", "Y", "H", "Y"]


@pytest.mark.parametrize("order", ["ax", "abcdefg", "HYH"])
def test_energy_plot_of_many_updates_numbers_the_rounds_and_names_all_updates_of_one(order):
    rounds = 80
    axes = draw_energy(torch.zeros(rounds * len(order), 1), list(order) * rounds).axes[0]
    numbers = [int(label.get_text()) for label in axes.get_xticklabels()]
    assert numbers == [1, 10, 20, 30, 40, 50, 60, 70, 80]
    assert list(axes.get_xticks()) == [(number - 1) * len(order) + 1 for number in numbers]
    assert ", ".join(order) in axes.get_xlabel()


def test_energy_plot_of_many_updates_without_rounds_names_none():
    axes = draw_energy(torch.zeros(90, 1), [str(k) for k in range(90)]).axes[0]
    axes.figure.canvas.draw()
    # places, not names of updates
    assert all(
        label.get_text() == f"{place:.0f}"
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    )


@pytest.mark.parametrize(
    ("schedule", "length"),
    [("axax", 2), ("axaxa", 2), ("aaa", 1), ("axbcd", 5), ("HYHHYH", 3), ("a", 1), ("abaab", 5)],
)
def test_the_length_of_a_round_is_after_how_many_updates_a_schedule_repeats(schedule, length):
    assert round_length(list(schedule)) == length


@pytest.mark.filterwarnings("error")
def test_energy_plot_accepts_runs_without_a_finite_energy():
    figure = draw_energy(torch.full((3, 2), torch.inf))
    figure.canvas.draw()
    assert not figure.axes[0].lines[0].get_xdata().size


def test_energy_plot_refuses_what_is_not_updates_by_batch():
    with pytest.raises(ObservationError, match=r"\(updates, batch\), got shape \(3,\)"):
        draw_energy(torch.zeros(3))
    with pytest.raises(ObservationError, match="trace=True"):
        draw_energy(None)
    with pytest.raises(ObservationError, match="3 updates, but 1"):
        draw_energy(torch.zeros(3, 1), ["H"])


def test_images_fill_a_grid_in_order_with_one_scale():
    images = torch.linspace(-1, 1, 7 * 6).view(7, 1, 2, 3)
    figure = draw_images(images, titles=list("abcdefg"), columns=3)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(figure.axes) == 9 and [axes.get_title() for axes in shown] == list("abcdefg")
    for axes, image in zip(shown, images, strict=True):
        assert np.array_equal(axes.images[0].get_array(), image[0].numpy())
        assert axes.images[0].get_clim() == (-1, 1)
    figure.canvas.draw()
    places = [axes.get_position() for axes in shown]
    assert places[0].x0 < places[1].x0 < places[2].x0 and places[3].y0 < places[0].y0


def test_images_refuse_wrong_shapes_titles_and_columns():
    images = torch.zeros(2, 1, 4, 4)
    with pytest.raises(ObservationError, match="shape"):
        draw_images(images[:, 0])
    with pytest.raises(ObservationError, match="shape"):
        draw_images(images.expand(2, 2, 4, 4))
    with pytest.raises(ObservationError, match="2 images, but 1 titles"):
        draw_images(images, ["a"])
    with pytest.raises(ObservationError, match="columns=0"):
        draw_images(images, columns=0)
    for low, high in ((1, 1), (1, -1), (0, float("inf")), (float("nan"), 1)):
        with pytest.raises(ObservationError, match=f"low={low} and high={high}"):
            draw_images(images, low=low, high=high)


def test_images_of_another_range_use_all_of_the_scale():
    grey = draw_images(torch.tensor([0.0, 0.2]).view(1, 1, 1, 2), low=0, high=0.2)
    assert grey.axes[0].images[0].get_clim() == (0, 0.2)
    colours = draw_images(torch.tensor([0.0, 0.2, 0.4]).view(1, 3, 1, 1), low=0, high=0.2)
    assert colours.axes[0].images[0].get_array().tolist() == [[[0.0, 1.0, 1.0]]]


# -- helpers -------------------------------------------------------------------------------------------------


def _patches(figure: Figure, kind: str) -> dict[str, Patch]:
    patches = {
        p.get_gid().removeprefix(kind): p
        for p in figure.axes[0].patches
        if (p.get_gid() or "").startswith(kind)
    }
    wanted = {"variable ": Circle, "factor ": Rectangle, "edge ": Patch}[kind]
    assert all(isinstance(patch, wanted) for patch in patches.values())
    return patches


def _holds(outer, inner) -> bool:
    return outer.x0 <= inner.x0 and outer.y0 <= inner.y0 and inner.x1 <= outer.x1 and inner.y1 <= outer.y1


def _evaluated(text: str, name: str, values: Mapping[str, Tensor]) -> Tensor:
    """The argument of the activation in the explained update of one variable, by running through all values
    of all letters."""
    flat = " ".join(text.split())
    left, terms = re.search(
        rf" {name}\[([^]]*)\] <- \w+\((.*?\]\)?)(?:; [^()]*)?\)(?= \w+(?:\[| meets)| A term| Bound)", flat
    ).groups()
    terms = re.sub(r"\((\w) (\w)\)", r"\1*2+\2", terms)  # a split axis, its faster letter of size 2
    result = torch.zeros_like(values[name])
    for term in terms.split(" + "):
        term, _, condition = term.strip("()").partition(" where ")
        product, _, place = term.partition(" at ")
        operands = [(name, place.strip("[]") or left), *re.findall(r"(\w+)\[([^]]*)\]", product)]
        letters = sorted(set(re.findall("[a-z]", " ".join(pattern for _, pattern in operands))))
        for index in itertools.product(range(4), repeat=len(letters)):
            known = dict(zip(letters, index, strict=True))
            spots = [
                (array, tuple(eval(dim, {}, known) for dim in pattern.split())) for array, pattern in operands
            ]
            inside = all(
                0 <= i < n for array, spot in spots for i, n in zip(spot, values[array].shape, strict=True)
            )
            if inside and (not condition or eval(condition, {}, known)):
                result[spots[0][1]] += np.prod([float(values[array][spot]) for array, spot in spots[1:]])
    return result
