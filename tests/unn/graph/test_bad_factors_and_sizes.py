"""Bad factors, sizes and values given with a declaration: the right error, what was wrong and what to do."""

import numpy as np
import pytest
import torch
from support.helpers import NAN, UNIFORM, X, done_or_refused, images, mlp, pair, says, unchanged

import unn
from factors import Cardinality, Clique, Conv2d, Depends, Directed, Implicit, Multilinear, SumOfProducts

# -- directed factors ----------------------------------------------------------------------------------------


class Mapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_directed_factors_couple_variables():
    g = mlp()
    for child, parents in (
        ("X", g["H"]),
        (g["W"], g["H"]),
        (g["X"]["i"], g["H"]),
        (g["X"], "H"),
        (g["X"], g["W"]),
        (g["X"], [g["H"], None]),
    ):
        with pytest.raises(unn.DeclarationError, match="Directed takes variables as child and parents"):
            Directed(torch.nn.Linear(5, 4), child, parents)
    with pytest.raises(unn.DeclarationError, match=says("'X'", "own parent")):
        Directed(torch.nn.Linear(4, 4), g["X"], [g["H"], g["X"]])
    with pytest.raises(unn.DeclarationError, match=says("'X'", "at least one parent")):
        Directed(torch.nn.Linear(4, 4), g["X"], [])


@pytest.mark.parametrize("parents", [None, 5])
def test_parents_are_variables_or_a_list_of_them(parents):
    with pytest.raises(unn.DeclarationError, match=says("Directed", "parents")):
        Directed(torch.nn.Linear(4, 4), mlp()["X"], parents)


def test_a_directed_factor_needs_a_module():
    g = mlp()
    z = g.variable("Z", "pixel", unn.SquaredNorm())
    unchanged(g, lambda: g.factor(Directed(lambda x: x, z, g["X"])), match=says("Directed", "Module"))


@pytest.mark.parametrize("name", ["forward", "W", "energy"])
def test_the_module_of_a_factor_may_not_hide_an_attribute_of_the_graph(name):
    g = mlp()
    z = g.variable("Z", "pixel", unn.SquaredNorm())
    unchanged(
        g, lambda: g.factor(Directed(torch.nn.Linear(4, 4), z, g["X"], name=name)), match=says(repr(name))
    )


def test_modules_of_factors_with_similar_names_are_all_kept():
    g = mlp()
    z, u = (g.variable(name, "pixel", unn.SquaredNorm()) for name in "ZU")
    g.factor(Directed(torch.nn.Linear(4, 4), z, g["X"], name="a.b"))
    try:
        g.factor(Directed(torch.nn.Linear(4, 4), u, g["X"], name="a_b"))
    except unn.DeclarationError:
        return
    assert len(list(g.parameters())) == 2 + 2 + 2


@pytest.mark.parametrize("given", ["X", "Y"])
@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x[:, :2], "(2, 2)"),
        (lambda x: x[:1], "(1, 4)"),
        (lambda x: x.sum(), "()"),
        (lambda x: None, "NoneType"),
        (lambda x: (x,), "tuple"),
    ],
)
def test_a_directed_module_returns_the_pre_activation_of_its_child(function, got, given):
    g = mlp()
    z = g.variable("Z", "pixel", unn.SquaredNorm())
    g.factor(Directed(Mapped(function), z, g["X"]))
    with pytest.raises(
        unn.DeclarationError, match=says("'Directed(Z, X)'", got, "child 'Z'", "(2, 4)", "pre-activation")
    ):
        unn.infer(g, {"X": X} if given == "X" else {"Y": UNIFORM})


def test_an_implicit_energy_has_one_value_for_each_batch_element():
    for function, got in (
        (lambda a, b: a.sum(), "()"),
        (lambda a, b: a, "(2, 4)"),
        (lambda a, b: None, "NoneType"),
        (lambda a, b: 0.0, "float"),
    ):
        g = mlp()
        g.factor(Implicit(function, g["X"]["i"], g["H"]["j"]))
        with pytest.raises(
            unn.DeclarationError,
            match=says("'Implicit(X, H)'", "(2,)", got, "sum over all axes but the first"),
        ):
            unn.infer(g, {"X": X})


def test_an_implicit_energy_may_ignore_one_of_its_variables():
    g = mlp()
    plain = unn.infer(g, {"X": X}, iterations=3)
    g.factor(Implicit(lambda x, h: x.square().sum(1), g["X"]["i"], g["H"]["j"]))
    out = unn.infer(g, {"X": X}, order=["H", "Y"], iterations=3)
    torch.testing.assert_close(out["Y"], plain["Y"], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "kind",
    [
        lambda h, x: Depends(h["i"], x["j"]),
        lambda h, x: Clique(h["i"]),
        lambda h, x: Cardinality(h["i"], each="i"),
        lambda h, x: SumOfProducts(h["i"], x["j"], within=0.1),
    ],
    ids=["Depends", "Clique", "Cardinality", "SumOfProducts"],
)
def test_factors_without_an_energy_are_refused_by_name(kind):
    g = mlp()
    factor = kind(g["H"], g["X"])
    g.factor(factor)
    values = {"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}
    for attempt in (
        lambda: unn.infer(g, {"X": X}),
        lambda: g.energy(values),
        lambda: unn.Unrolled(g, "X", "Y"),
    ):
        with pytest.raises(
            unn.InferenceError, match=says("'mlp'", repr(factor.name), "no energy", "Multilinear, Implicit")
        ):
            attempt()
    assert g.explain() and g.to_mermaid() and g.to_dot()


# -- sizes ---------------------------------------------------------------------------------------------------


def test_one_letter_does_not_tie_axes_of_different_sizes():
    g = mlp()
    words = says("'Multilinear(X, H)'", "'i'", "'pixel' (size 4)", "'hidden' (size 5)", "different letters")
    unchanged(g, lambda: g.factor(Multilinear(g["X"]["i"], g["H"]["i"])), match=words)
    unchanged(
        g, lambda: g.factor(Multilinear(g["W"]["i i"], g["X"]["x"])), match=says("'i'", "'hidden'", "'pixel'")
    )
    dynamic = unn.FactorGraph("g", n=3, m=4)
    a, b, c = (
        dynamic.variable(name, axis, unn.SquaredNorm()) for name, axis in (("A", "n"), ("B", "p"), ("C", "m"))
    )
    dynamic.factor(Multilinear(a["i"], b["i"]))
    unchanged(
        dynamic,
        lambda: dynamic.factor(Multilinear(b["k"], c["k"])),
        match=says("'n', 'p' (size 3)", "'m' (size 4)"),
    )
    torch.testing.assert_close(unn.infer(dynamic, {"A": X[:, :3], "C": X}, order=["B"])["B"], X[:, :3])


def test_values_do_not_contradict_tied_axes():
    g = unn.FactorGraph("g")
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "p", unn.SquaredNorm())
    g.factor(Multilinear(a["i"], b["i"]))
    seen = unn.Partial(X, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(unn.ObservationError, match=says("'B'", "'p'", "tied to 'n'", "size 4", "expected 3")):
        unn.infer(g, {"A": X[:, :3], "B": seen})


@pytest.mark.parametrize("static", [True, False])
def test_splits_divide_their_axis(static):
    g = unn.FactorGraph("g", part=4, **({"whole": 6} if static else {}))
    a, b = g.variable("A", "whole", unn.SquaredNorm()), g.variable("B", "part", unn.SquaredNorm())
    words = says("'Multilinear(A, B)'", "A[(p q)]", "size 6", "4")
    if static:
        unchanged(g, lambda: g.factor(Multilinear(a["(p q)"], b["p"])), match=words)
    else:
        g.factor(Multilinear(a["(p q)"], b["p"]))
        with pytest.raises(unn.ObservationError, match=words):
            unn.infer(g, {"A": torch.ones(2, 6)})


def test_a_split_of_unknown_parts_is_an_error_that_names_the_letter():
    g = unn.FactorGraph("g", n=6, m=6)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "m", unn.SquaredNorm())

    def run():
        g.factor(Multilinear(a["(p q)"], b["(q p)"]))
        return unn.infer(g, {"A": torch.ones(1, 6)})

    with pytest.raises(unn.UnnError, match=says("'Multilinear(A, B)'", "(p q)", "size", "'p'", "declare")):
        run()


@pytest.mark.parametrize("static", [True, False])
def test_the_kernel_of_a_convolution_fits_into_its_image(static):
    words = says("'Conv2d(H, W, X)'", "size 6", "kernel", "reach of 7", "larger image")
    if static:
        with pytest.raises(unn.DeclarationError, match=words):
            images(kernel=7)
    else:
        g = images(row=None, column=None, kernel=7)
        with pytest.raises(unn.ObservationError, match=words):
            unn.infer(g, {"X": torch.ones(1, 2, 6, 6)})


def test_convolutions_do_not_contradict_declared_sizes():
    g = unn.FactorGraph("g", channel=1, row=6, row1=5, feature=2, kernel=3)
    x, h = (
        g.variable("X", "channel row column", unn.SquaredNorm()),
        g.variable("H", "feature row1 column1", unn.SquaredNorm()),
    )
    w = g.parameter("W", "feature channel kernel kernel")
    unchanged(g, lambda: g.factor(Conv2d(h, w, x)), match=says("'Conv2d(H, W, X)'", "'row1'", "size 5", "4"))


@pytest.mark.parametrize(("groups", "channel", "feature"), [(3, 2, 3), (2, 3, 4), (2, 4, 3), (4, 4, 6)])
def test_groups_divide_the_channels_on_both_sides(groups, channel, feature):
    with pytest.raises(unn.UnnError, match=says("'Conv2d(H, W, X)'", "channels", f"{groups} groups")):
        unn.infer(
            images(channel=channel, feature=feature, groups=groups), {"X": torch.ones(1, channel, 6, 6)}
        )


@pytest.mark.parametrize("groups", [0, -1, 1.5, "2", None, True])
def test_groups_are_a_whole_number(groups):
    g = images()
    h, w, x = (g[name] for name in "HWX")
    with pytest.raises(unn.DeclarationError, match=says("'Conv2d(H, W, X)'", "groups", repr(groups))):
        Conv2d(h, w, x, groups=groups)


@pytest.mark.parametrize("option", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("value", [-1, (1, 2, 3), (1,), "ab", (1, -1), True, (1.0, 1), 1.5, None])
def test_strides_paddings_and_dilations_are_one_or_two_whole_numbers(option, value):
    with pytest.raises(
        unn.DeclarationError, match=says("'Conv2d(H, W, X)'", option, "whole number", repr(value))
    ):
        images(**{option: value})


@pytest.mark.parametrize("option", ["stride", "dilation"])
def test_strides_and_dilations_are_at_least_one(option):
    with pytest.raises(unn.DeclarationError, match=says("'Conv2d(H, W, X)'", option, "at least 1", "0")):
        images(**{option: 0})


def test_convolutions_take_arrays_with_the_right_axes():
    g = images()
    label = g.variable("label", "y", unn.Entropy())
    image_weight = g.variable("U", "feature channel kernel kernel", unn.SquaredNorm())
    matrix, table = g.parameter("M", "feature channel"), g.constant("T", "channel row column")
    x, h, w = (g[name] for name in "XHW")
    cases = [
        ((label, w, x), ("output variable 'label'", "1 axes (y)", "needs 3", "channel, row, column")),
        ((h, w, label), ("input variable 'label'", "1 axes (y)", "needs 3", "channel, row, column")),
        ((h, matrix, x), ("weight parameter 'M'", "2 axes (feature channel)", "needs 4", "kernel row")),
        ((h, image_weight, x), ("weight", "parameter or a constant", "variable 'U'")),
        ((h, w, table), ("input", "variable", "constant 'T'")),
        ((x, w, x), ("same variable 'X'", "two")),
        ((h, w, x["c i+1 j"]), ("X[c i+1 j]", "input", "whole arrays")),
        ((h, None, x), ("weight", "declared array", "None")),
    ]
    for arrays, words in cases:
        with pytest.raises(unn.DeclarationError, match=says("Conv2d", *words)):
            Conv2d(*arrays)


def test_the_weight_of_a_convolution_has_no_batch_axis():
    g = unn.FactorGraph("g", channel=1, row=6, column=6, feature=2, kernel=3)
    x, h = (
        g.variable("X", "channel row column", unn.SquaredNorm()),
        g.variable("H", "feature row1 column1", unn.SquaredNorm()),
    )
    g.factor(Conv2d(h, g.constant("W", "feature channel kernel kernel"), x))
    assert unn.infer(g, {"X": torch.ones(2, 1, 6, 6), "W": torch.ones(2, 1, 3, 3)})["H"].shape == (2, 2, 4, 4)
    with pytest.raises(unn.UnnError, match=says("'W'", "batch")):
        unn.infer(g, {"X": torch.ones(2, 1, 6, 6), "W": torch.ones(2, 2, 1, 3, 3)})


@pytest.mark.parametrize("axes", ["hidden pixel", "pixel hidden"])
def test_a_parameter_without_sizes_is_named_with_its_axes(axes):
    g = unn.FactorGraph("open", hidden=2)
    x, h = g.variable("X", "pixel", unn.SquaredNorm()), g.variable("H", "hidden", unn.SquaredNorm())
    g.factor(Multilinear(h["h"], g.parameter("W", axes)["h x" if axes.startswith("h") else "x h"], x["x"]))
    words = says("parameter 'W'", "no size", "'pixel'", "FactorGraph('open', pixel=...)")
    for attempt in (
        lambda: unn.infer(g, {"X": X}),
        lambda: unn.Unrolled(g, "X", "H"),
        lambda: g.energy({"X": X, "H": X[:, :2]}),
    ):
        with pytest.raises(unn.DeclarationError, match=words):
            attempt()
    assert "unknown size" in repr(g)


@pytest.mark.parametrize("size", [0, -1, "3", 2.5, True, None])
def test_sizes_of_a_run_are_whole_numbers_from_one(size):
    with pytest.raises(unn.ObservationError, match=says("size", "'n'")):
        unn.infer(pair(), {"X": X[:, :2]}, sizes={"n": size})


def test_sizes_of_a_run_do_not_contradict_what_is_known():
    with pytest.raises(unn.ObservationError, match=says("sizes", "'pixel'", "5", "4")):
        unn.infer(mlp(), {"X": X}, sizes={"pixel": 5})
    with pytest.raises(
        unn.ObservationError, match=says("axis 'n'", "variable 'Z'", "not known", "sizes={'n': ...}")
    ):
        unn.infer(pair(), {"X": X[:, :2]})


def test_an_axis_of_size_0_is_refused_before_anything_runs():
    with pytest.raises(unn.UnnError, match=says("'n'", "0")):
        unn.infer(pair(n=0), {"X": X[:, :2]})
    with pytest.raises(
        unn.ObservationError, match=says("variable 'Z'", "axis 'n'", "size 0", "empty sequences")
    ):
        unn.infer(pair(), {"Z": torch.ones(1, 0, 2)})


# -- values given with a declaration -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("fanin", ["unknown init 'fanin'", "Did you mean 'fan_in'"]),
        ("0.1", ["unknown init '0.1'"]),
        (torch.ones(3), ["size 2", "axis 'n'", "(3,)"]),
        (torch.ones(2, 2), ["1 axes (n)", "(2, 2)"]),
        (torch.arange(2), ["int64"]),
        (-1.0, ["-1"]),
        (NAN, ["nan"]),
        ([1.0, 2.0], ["[1.0, 2.0]"]),
        (np.ones(2), ["init"]),
    ],
)
def test_initial_values_of_a_parameter_must_fit_and_a_bad_one_leaves_no_trace(init, words):
    g = unn.FactorGraph("g", n=2)
    unchanged(g, lambda: g.parameter("W", "n", init=init), match=says("parameter 'W'", *words))
    g.parameter("W", "n", init="ones")
    assert g.W.tolist() == [1, 1]


def test_a_failing_init_function_leaves_the_graph_usable():
    g = unn.FactorGraph("g", n=2)

    def fail(values):
        raise OSError("no such file")

    with pytest.raises(unn.DeclarationError, match="'W'.*no such file") as caught:
        g.parameter("W", "n", init=fail)
    assert isinstance(caught.value.__cause__, OSError)
    assert "W" not in g.arrays
    assert g.parameter("V", "n").axes == ("n",)


def test_an_axis_named_twice_has_one_size():
    for declare in (
        lambda g: g.parameter("W", "n n", init=torch.ones(2, 3)),
        lambda g: g.constant("W", "n n", torch.ones(2, 3)),
    ):
        g = unn.FactorGraph("g")
        unchanged(g, lambda: declare(g), match=says("'W'", "'n'", "(2, 3)"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(3), ["size 2", "axis 'n'", "(3,)"]),
        (torch.tensor(1.0), ["1 axes (n)", "()"]),
        ("abc", []),
        ([[1], [2, 3]], []),
        (None, None),
    ],
)
def test_values_of_a_constant_must_fit_and_a_bad_one_leaves_no_trace(value, words):
    g = unn.FactorGraph("g", n=2)
    if words is None:
        g.constant("C", "n", value)
        with pytest.raises(unn.DeclarationError, match="in use"):
            g.constant("C", "n", value)
        return
    unchanged(g, lambda: g.constant("C", "n", value), match=says("constant 'C'", *words))
    g.constant("C", "n", torch.ones(2))


def test_a_value_that_contradicts_a_factor_is_refused_and_leaves_the_graph_usable():
    """Row 8 and a kernel of 3 make row1 6, not 5."""
    for declare in ("parameter", "constant"):
        g = images(row=None, column=None, channel=1)
        options = {"init" if declare == "parameter" else "value": torch.ones(8, 5)}
        unchanged(g, lambda: getattr(g, declare)("C", "row row1", **options), match=says("'row1'", "5", "6"))
        assert unn.infer(g, {"X": torch.ones(1, 1, 9, 9)})["H"].shape == (1, 4, 7, 7)


@pytest.mark.parametrize("value", [torch.eye(3).long(), torch.eye(3).double()])
def test_constants_of_another_dtype_never_reach_torch(value):
    """Converted where that loses nothing, or refused by name."""
    g = unn.FactorGraph("g", n=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    w = g.parameter("W", "n n", init=torch.eye(3))
    g.factor(Multilinear(a["i"], w["i j"], b["j"]))

    def run():
        g.factor(Multilinear(a["i"], g.constant("C", "n n", value)["i j"], b["j"]))
        return unn.infer(g, {"A": torch.ones(1, 3)})

    out = done_or_refused(run, "'C'", "dtype")
    assert out is None or out["B"].tolist() == [[2, 2, 2]]


def test_parameters_of_different_dtypes_are_refused_by_name():
    g = unn.FactorGraph("g", n=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    g.factor(Multilinear(a["i"], g.parameter("V", "n n")["i j"], b["j"]))

    def run():
        g.factor(Multilinear(a["i"], g.parameter("W", "n n", init=torch.eye(3).double())["i j"], b["j"]))
        return unn.infer(g, {"A": torch.ones(1, 3)})

    with pytest.raises(unn.UnnError, match=says("'W'", "dtype")):
        run()


def test_a_constant_without_value_is_asked_for():
    g = unn.FactorGraph("g", n=2)
    x, y, c = (
        g.variable("X", "n", unn.SquaredNorm()),
        g.variable("Y", "n", unn.SquaredNorm()),
        g.constant("C", "n"),
    )
    g.factor(Multilinear(c["i"], x["i"], y["i"]))
    x = X[:, :2]
    for attempt in (
        lambda: unn.infer(g, {"X": x}),
        lambda: unn.Unrolled(g, "X", "Y")(x),
        lambda: g.energy({"X": x, "Y": x}),
    ):
        with pytest.raises(unn.ObservationError, match=says("constant 'C' (n)", "no value", "'C': ...")):
            attempt()
    with pytest.raises(unn.ObservationError, match=says("constant 'C'", "in part")):
        unn.infer(g, {"X": x, "C": unn.Partial(x, x > 0)})
    for bad, words in (
        (torch.ones(3), ["axis 'n'", "size 3", "expected 2"]),
        (torch.ones(3, 2), ["batch size 3", "2"]),
        (torch.tensor([1.0, NAN]), ["NaN or infinite", "(1,)"]),
        (torch.ones(2).long(), ["int64", "floating point"]),
    ):
        with pytest.raises(unn.ObservationError, match=says("constant 'C'", *words)):
            unn.infer(g, {"X": x, "C": bad})


def test_a_constant_with_a_value_has_that_value_in_the_run_and_in_the_energy():
    """Given another one with the observations, either both use it or it is refused."""
    g = unn.FactorGraph("g", n=2)
    x, y, c = (
        g.variable("X", "n", unn.SquaredNorm()),
        g.variable("Y", "n", unn.SquaredNorm()),
        g.constant("C", "n", torch.ones(2)),
    )
    g.factor(Multilinear(c["i"], x["i"], y["i"]))
    other = torch.tensor([5.0, 7.0])
    out = done_or_refused(
        lambda: unn.infer(g, {"X": X[:, :2], "C": other}), "'C'", error=unn.ObservationError
    )
    if out is not None:
        torch.testing.assert_close(out.energy[-1], g.energy({**out.values, "C": other}))
