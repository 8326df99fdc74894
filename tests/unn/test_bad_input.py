"""Bad input: every mistake raises the error of its kind, says what was wrong and what to do, and leaves the graph as it was."""

import json
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

import unn
from factors import Cardinality, Clique, Conv2d, Depends, Directed, Implicit, Multilinear
from unn import runs
from unn.arrays import Variable
from unn.cli import main
from unn.patterns import parse_pattern

NAN, INF = float("nan"), float("inf")
X = torch.linspace(-1, 1, 8).view(2, 4)
UNIFORM = torch.full((2, 3), 1 / 3)


def says(*words):
    """A pattern for messages that hold all these words."""
    return "(?s)" + "".join(f"(?=.*{re.escape(word)})" for word in words)


def mlp():
    """X (pixel=4) - H (hidden=5) - Y (label=3)."""
    torch.manual_seed(0)
    g = unn.FactorGraph("mlp", pixel=4, hidden=5, label=3)
    image = g.variable("X", "pixel", unn.SquaredNorm())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    W, V = g.parameter("W", "hidden pixel"), g.parameter("V", "label hidden")
    g.factor(Multilinear(H["h"], W["h x"], image["x"]))
    g.factor(Multilinear(Y["c"], V["c h"], H["h"]))
    return g


def pair(**sizes):
    """X (d=2) coupled to Z (n d), where nothing says how large n is."""
    g = unn.FactorGraph("pair", **{"d": 2, **sizes})
    x = g.variable("X", "d", unn.SquaredNorm())
    z = g.variable("Z", "n d", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], z["n i"]))
    return g


def images(row=6, column=6, kernel=3, channel=2, feature=4, **options):
    """X (channel row column) convolved to H (feature row1 column1); sizes that are None stay open."""
    sizes = {"channel": channel, "row": row, "column": column, "feature": feature, "kernel": kernel, "block": options.pop("block", None)}
    g = unn.FactorGraph("images", **{axis: size for axis, size in sizes.items() if size is not None})
    x = g.variable("X", "channel row column", unn.SquaredNorm())
    h = g.variable("H", "feature row1 column1", unn.SignedEntropy())
    w = g.parameter("W", f"feature {'block' if options.get('groups') else 'channel'} kernel kernel")
    g.factor(Conv2d(h, w, x, **options))
    return g


@dataclass
class Anatomy:
    """All that a declaration consists of, to compare before and after."""

    arrays: list
    factors: list
    tensors: list
    sizes: dict

    @classmethod
    def of(cls, g):
        return cls(list(g.arrays.items()), list(g.factors.items()), sorted(g.state_dict()), dict(g.sizes))


def unchanged(g, attempt, error=unn.DeclarationError, match=None):
    """The attempt raises and leaves no trace."""
    before, text = Anatomy.of(g), repr(g)
    with pytest.raises(error, match=match):
        attempt()
    assert Anatomy.of(g) == before
    assert repr(g) == text


def done_or_refused(attempt, *words, error=unn.UnnError):
    """The result, or None where it was refused in these words."""
    try:
        return attempt()
    except error as refusal:
        message = str(refusal)
    assert re.search(says(*words), message), message
    return None


def with_entry(x, index, value):
    """A copy with another value at one index."""
    x = x.clone()
    x[index] = value
    return x


# -- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "1x", "class", "a.b", "x-y", 5, None, ["X"]])
@pytest.mark.parametrize("kind", ["variable", "parameter", "constant"])
def test_names_must_be_identifiers(kind, name):
    g = unn.FactorGraph("g", n=2)
    rest = (unn.SquaredNorm(),) if kind == "variable" else ()
    unchanged(g, lambda: getattr(g, kind)(name, "n", *rest), match=says(kind, "Python identifier", repr(name)))


@pytest.mark.parametrize("name", ["forward", "training", "double", "energy", "name", "sizes", "arrays", "_table"])
@pytest.mark.parametrize("kind", ["parameter", "constant"])
def test_names_of_module_attributes_are_refused_where_torch_would_clash(kind, name):
    g = unn.FactorGraph("g", n=2)
    unchanged(g, lambda: getattr(g, kind)(name, "n"), match=says(kind, repr(name), "attribute", "choose another"))


def test_variables_may_bear_names_of_module_attributes():
    g = unn.FactorGraph("g", n=2)
    a, b, c = (g.variable(name, "n", unn.SquaredNorm()) for name in ("forward", "weight", "name"))
    w = g.parameter("W", "n n")
    g.factor(Multilinear(a["i"], w["i j"], b["j"]))
    g.factor(Multilinear(b["i"], c["i"], name="energy"))
    out = unn.infer(g, {"forward": torch.ones(1, 2)}, iterations=2)
    torch.testing.assert_close(out.energy[-1], g.energy(out.values))
    torch.testing.assert_close(out["weight"], g.W.sum(0)[None] + unn.infer(g, {"forward": torch.ones(1, 2)})["name"])


@pytest.mark.parametrize("taken", ["X", "W"])
@pytest.mark.parametrize("kind", ["variable", "parameter", "constant"])
def test_a_name_is_declared_once(kind, taken):
    g = mlp()
    rest = (unn.SquaredNorm(),) if kind == "variable" else ()
    unchanged(g, lambda: getattr(g, kind)(taken, "pixel", *rest), match=says(repr(taken), "in use", g.arrays[taken].kind, "choose another"))


@pytest.mark.parametrize("axes", ["a-b", "1a", "a,b", "a | b | c", "a.b"])
def test_axes_must_be_names(axes):
    g = unn.FactorGraph("g")
    unchanged(g, lambda: g.variable("X", axes, unn.SquaredNorm()), match=says("variable 'X'", "ax"))


@pytest.mark.parametrize("axes", [5, None, ["a"]])
@pytest.mark.parametrize("kind", ["variable", "parameter", "constant"])
def test_axes_must_be_text(kind, axes):
    g = unn.FactorGraph("g")
    rest = (unn.SquaredNorm(),) if kind == "variable" else ()
    unchanged(g, lambda: getattr(g, kind)("X", axes, *rest), match=says(kind, "'X'", repr(axes)))


@pytest.mark.parametrize("kind", ["parameter", "constant"])
def test_only_variables_have_node_axes(kind):
    g = unn.FactorGraph("g")
    unchanged(g, lambda: getattr(g, kind)("W", "a | b"), match=says(kind, "'W'", "bar", "only variables"))


@pytest.mark.parametrize("size", [-1, 2.0, True, "3", None])
def test_sizes_of_a_graph_are_whole_numbers(size):
    with pytest.raises(unn.DeclarationError, match=says("'n'", "whole number", repr(size))):
        unn.FactorGraph("g", n=size)


@pytest.mark.parametrize("regularizer", [unn.SquaredNorm, None, "softmax", torch.relu])
def test_a_variable_needs_a_regularizer(regularizer):
    g = unn.FactorGraph("g")
    unchanged(g, lambda: g.variable("X", "n", regularizer), match=says("variable 'X'", "regularizer", "SquaredNorm()"))


def test_a_regularizer_needs_the_axis_that_it_normalises_over():
    g = unn.FactorGraph("g")
    unchanged(g, lambda: g.variable("X", "", unn.Entropy()), match=says("'X'", "no axes"))
    unchanged(g, lambda: g.variable("X", "row label", unn.Entropy(over="lable")), match=says("'X'", "'lable'", "Did you mean 'label'"))
    unchanged(g, lambda: g.variable("X", "row |", unn.Entropy()), match=says("'X'", "node axis 'row'", "over="))
    unchanged(g, lambda: g.variable("X", "row | label", unn.Entropy(over="row")), match=says("'X'", "node axis 'row'", "over="))


def test_known_names_are_suggested_where_an_array_is_looked_up():
    g = mlp()
    g.variable("picture", "pixel", unn.SquaredNorm())
    with pytest.raises(unn.DeclarationError, match="Did you mean 'picture'"):
        g["pictur"]
    with pytest.raises(unn.DeclarationError, match="Did you mean 'picture'"):
        g.variable_named("pictur")
    with pytest.raises(unn.DeclarationError, match=says("'W'", "parameter", "not a variable")):
        g.variable_named("W")
    with pytest.raises(unn.DeclarationError, match="Did you mean 'picture'"):
        g.boundedness(given=["pictur"])
    with pytest.raises(unn.DeclarationError, match="unknown array 5"):
        g[5]


def named_mlp():
    """mlp() with names that are long enough to be misspelt."""
    g = unn.FactorGraph("named", pixel=4, label=3)
    image, label = g.variable("image", "pixel", unn.SquaredNorm()), g.variable("label", "label", unn.Entropy())
    hidden = g.variable("hidden", "label", unn.SquaredNorm())
    g.factor(Multilinear(label["c"], g.parameter("W", "label pixel")["c x"], image["x"]))
    g.factor(Multilinear(label["c"], hidden["c"]))
    return g


@pytest.mark.parametrize(
    ("error", "word", "arguments"),
    [
        (unn.ObservationError, "given", {"given": {"imag": X}}),
        (unn.InferenceError, "initial", {"initial": {"lable": "zero"}}),
        (unn.InferenceError, "order", {"order": ["lable", "hidden"]}),
        (unn.InferenceError, "order", {"order": [unn.Block("lable", torch.ones(3, dtype=torch.bool)), "hidden", "label"]}),
        (unn.InferenceError, "order", {"order": unn.ForwardBackward(["hiden", "label"])}),
        (unn.InferenceError, "order", {"order": unn.RandomOrder(["hidden", "label"], last="imagee")}),
        (unn.InferenceError, "want", {"want": "lable"}),
        (unn.InferenceError, "want", {"want": ["label", "hiden"]}),
        (unn.ObservationError, "lengths", {"lengths": {"pixl": torch.tensor([1, 2])}}),
        (unn.ObservationError, "sizes", {"sizes": {"pixl": 4}}),
        (unn.InferenceError, "dropout", {"dropout": {"hiden": 0.5}}),
    ],
)
def test_unknown_names_of_a_run_are_named_with_the_closest_known_one(error, word, arguments):
    with pytest.raises(error, match=says(word, "graph 'named'", "unknown", "Did you mean")):
        unn.infer(named_mlp(), **{"given": {"image": X}, **arguments})


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("imag", {"given": "imag", "order": ["hidden", "label"]}),
        ("lable", {"want": "lable"}),
        ("hiden", {"order": ["hiden", "label"]}),
        ("lable", {"initial": {"lable": "zero"}}),
        ("hiden", {"dropout": {"hiden": 0.5}}),
    ],
)
def test_unknown_names_of_an_unrolled_network_are_named_with_the_closest_known_one(word, options):
    def build(given="image", want="label", **rest):
        return unn.Unrolled(named_mlp(), given, want, **rest).train()(X)

    with pytest.raises((unn.InferenceError, unn.ObservationError), match=says("unknown variable", repr(word), "Did you mean")):
        build(**options)


def test_an_unrolled_network_refuses_an_unknown_given_beside_a_known_one_when_built():
    with pytest.raises((unn.InferenceError, unn.ObservationError), match=says("'imag'", "Did you mean 'image'")):
        unn.Unrolled(named_mlp(), ["image", "imag"], "label", order=["hidden", "label"])


def test_an_unrolled_network_takes_each_input_once():
    with pytest.raises(unn.UnnError, match="image"):
        unn.Unrolled(named_mlp(), ["image", "image"], "label")(X, 2 * X)


def test_looking_up_an_unknown_result_is_an_error_of_this_package():
    out = unn.infer(named_mlp(), {"image": X})
    with pytest.raises(unn.UnnError, match="Did you mean 'label'"):
        out["lable"]


# -- patterns and factors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "i j", "(i j) k"])
def test_a_pattern_has_one_dimension_for_each_axis(pattern):
    count = len(parse_pattern(pattern).dimensions)
    with pytest.raises(unn.DeclarationError, match=says(f"{count} dimensions", "variable 'X'", "1 axes (pixel)", "X['i']")):
        mlp()["X"][pattern]


@pytest.mark.parametrize(
    ("pattern", "character", "why"),
    [
        ("1", 1, "expected a letter"),
        ("i!", 2, "expected a letter"),
        ("i*2", 2, "expected a letter"),
        ("i-", 2, "expected a letter"),
        ("i+1+1", 4, "expected a letter"),
        ("i+1.5", 4, "expected a letter"),
        ("é", 1, "expected a letter"),
        ("((i j) k)", 2, "nested"),
        ("(i", 3, "not closed"),
        ("i)", 2, "unopened"),
        ("()", 2, "empty"),
        ("(i i)", 1, "repeats"),
        ("(i+1 j)", 2, "cannot be shifted"),
    ],
)
def test_patterns_that_cannot_be_read_say_where_and_why(pattern, character, why):
    with pytest.raises(unn.DeclarationError, match=says(repr(pattern), f"character {character}:", why)):
        mlp()["X"][pattern]


@pytest.mark.parametrize("index", [0, None, ("i", "j"), slice(None), 1.5, b"i"])
def test_an_index_must_be_a_pattern_in_quotes(index):
    with pytest.raises(unn.DeclarationError, match=says("variable 'H'", "pattern in quotes", "H['i']")):
        mlp()["H"][index]


@settings(max_examples=300, deadline=None)
@forall(st.text(alphabet=st.sampled_from("ij()+-|1 2_\té²٣,."), max_size=12))
def test_any_text_is_a_pattern_or_a_declaration_error(text):
    parsed = done_or_refused(lambda: parse_pattern(text), repr(text), error=unn.DeclarationError)
    assert parsed is None or parse_pattern(str(parsed)) == parsed


def test_a_shift_of_thousands_of_digits_is_a_declaration_error():
    with pytest.raises(unn.DeclarationError, match="shift"):
        mlp()["X"]["i+" + "9" * 5000]


@pytest.mark.parametrize("kind", [Multilinear, Depends, Clique, lambda *r: Implicit(torch.zeros_like, *r), lambda *r: Cardinality(*r, each="")])
def test_factors_take_references(kind):
    g = mlp()
    for junk in (g["X"], "X", 5, None):
        with pytest.raises(unn.DeclarationError, match=says("takes references such as X['i d']")):
            kind(junk)


def test_factors_need_what_they_couple():
    g = mlp()
    with pytest.raises(unn.DeclarationError, match="at least one reference"):
        Multilinear()
    with pytest.raises(unn.DeclarationError, match=says("'Multilinear(W)'", "no variable", "W[i j]")):
        Multilinear(g["W"]["i j"])
    with pytest.raises(unn.DeclarationError, match=says("'Implicit(W)'", "no variable")):
        Implicit(lambda w: w.sum(1), g["W"]["i j"])
    with pytest.raises(unn.DeclarationError, match="function"):
        Implicit(None, g["X"]["i"])
    for kind in (lambda r: Cardinality(r, each="i"), Depends, Clique):
        with pytest.raises(unn.DeclarationError, match=says("'W'", "parameter", "variable")):
            kind(g["W"]["i j"])


@pytest.mark.parametrize("where", ["i == j", "", "i", "i < 3", "i < j < k", "i ! = j"])
def test_a_condition_compares_two_letters(where):
    g = mlp()
    with pytest.raises(unn.DeclarationError, match=says("'Multilinear(X, H)'", f"where={where!r}", "letter")):
        Multilinear(g["X"]["i"], g["H"]["j"], where=where)


def test_a_condition_names_letters_of_its_factor():
    g = mlp()
    with pytest.raises(unn.DeclarationError, match=says("'Multilinear(X, H)'", "where='pix < hid'", "Did you mean 'pixel'")):
        Multilinear(g["X"]["pixel"], g["H"]["hid"], where="pix < hid")


def test_a_condition_must_be_text():
    g = mlp()
    with pytest.raises(unn.DeclarationError, match=says("'Multilinear(X, H)'", "where=5")):
        Multilinear(g["X"]["i"], g["H"]["j"], where=5)


@pytest.mark.parametrize("reference", ["i+1", "(i j)"])
def test_implicit_factors_take_whole_arrays(reference):
    with pytest.raises(unn.DeclarationError, match=says("'Implicit(X)'", "whole arrays")):
        Implicit(lambda x: x.sum(1), mlp()["X"][reference])


@pytest.mark.parametrize("kind", [Cardinality, Clique])
def test_groups_are_indexed_by_letters_of_the_factor(kind):
    g = mlp()
    with pytest.raises(unn.DeclarationError, match=says(f"'{kind.__name__}(X)'", "each='k'", "letter")):
        kind(g["X"]["i"], each="k")
    with pytest.raises(unn.DeclarationError, match=says(f"'{kind.__name__}(X)'", "each=5")):
        kind(g["X"]["i"], each=5)


@pytest.mark.parametrize("equals", [-1, 1.0, True, "1", None])
def test_a_cardinality_is_a_whole_number(equals):
    with pytest.raises(unn.DeclarationError, match=says("'Cardinality(X)'", "equals", repr(equals))):
        Cardinality(mlp()["X"]["i"], each="i", equals=equals)


def test_a_cardinality_of_all_entries_counts_them():
    x = torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0]])
    factor = Cardinality(mlp()["X"]["i"], each="", equals=1)
    assert factor.counts(x).tolist() == [2, 1]
    assert factor.violations(x).tolist() == [1, 0]


@pytest.mark.parametrize("junk", ["Multilinear", None, Multilinear])
def test_a_graph_takes_factors_only(junk):
    g = mlp()
    unchanged(g, lambda: g.factor(junk), match="factor\\(\\) takes a factor")


def test_factors_refer_to_arrays_of_their_own_graph():
    g, other = mlp(), mlp()
    words = says("'Multilinear(H)'", "variable 'H'", "not the one declared in this graph", "'mlp'")
    unchanged(g, lambda: g.factor(Multilinear(other["H"]["i"])), match=words)
    empty = unn.FactorGraph("empty")
    unchanged(empty, lambda: empty.factor(Multilinear(other["H"]["i"])), match=says("'Multilinear(H)'", "variable 'H'", "another graph"))


def test_a_factor_is_added_once():
    g = mlp()
    unchanged(g, lambda: g.factor(g.factors["Multilinear(H, W, X)"]), match=says("'Multilinear(H, W, X)'", "added already"))


def test_the_name_of_a_factor_is_text():
    g = mlp()
    unchanged(g, lambda: g.factor(Multilinear(g["X"]["i"], name=5)), match=says("name", "5"))


def test_a_factor_named_like_a_variable_does_not_hide_its_regularizer():
    """Their shares of the energy must not collide: refuse the name, or count both."""
    g = unn.FactorGraph("g", n=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    ones = torch.ones(1, 3)
    try:
        g.factor(Multilinear(a["i"], b["i"], name="A"))
    except unn.DeclarationError:
        return
    assert g.energy({"A": ones, "B": ones}).item() == pytest.approx(1.5 + 1.5 - 3)


# -- directed factors --------------------------------------------------------------------------------------------------------


class Mapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_directed_factors_couple_variables():
    g = mlp()
    for child, parents in (("X", g["H"]), (g["W"], g["H"]), (g["X"]["i"], g["H"]), (g["X"], "H"), (g["X"], g["W"]), (g["X"], [g["H"], None])):
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
    unchanged(g, lambda: g.factor(Directed(torch.nn.Linear(4, 4), z, g["X"], name=name)), match=says(repr(name)))


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
    with pytest.raises(unn.DeclarationError, match=says("'Directed(Z, X)'", got, "child 'Z'", "(2, 4)", "pre-activation")):
        unn.infer(g, {"X": X} if given == "X" else {"Y": UNIFORM})


def test_an_implicit_energy_has_one_value_for_each_batch_element():
    for function, got in ((lambda a, b: a.sum(), "()"), (lambda a, b: a, "(2, 4)"), (lambda a, b: None, "NoneType"), (lambda a, b: 0.0, "float")):
        g = mlp()
        g.factor(Implicit(function, g["X"]["i"], g["H"]["j"]))
        with pytest.raises(unn.DeclarationError, match=says("'Implicit(X, H)'", "(2,)", got, "sum over all axes but the first")):
            unn.infer(g, {"X": X})


def test_an_implicit_energy_may_ignore_one_of_its_variables():
    g = mlp()
    plain = unn.infer(g, {"X": X}, iterations=3)
    g.factor(Implicit(lambda x, h: x.square().sum(1), g["X"]["i"], g["H"]["j"]))
    out = unn.infer(g, {"X": X}, order=["H", "Y"], iterations=3)
    torch.testing.assert_close(out["Y"], plain["Y"], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", [lambda h, x: Depends(h["i"], x["j"]), lambda h, x: Clique(h["i"]), lambda h, x: Cardinality(h["i"], each="i")])
def test_factors_without_an_energy_are_refused_by_name(kind):
    g = mlp()
    factor = kind(g["H"], g["X"])
    g.factor(factor)
    values = {"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}
    for attempt in (lambda: unn.infer(g, {"X": X}), lambda: g.energy(values), lambda: unn.Unrolled(g, "X", "Y")):
        with pytest.raises(unn.InferenceError, match=says("'mlp'", repr(factor.name), "no energy", "Multilinear, Implicit")):
            attempt()
    assert g.explain() and g.to_mermaid() and g.to_dot()


# -- sizes -----------------------------------------------------------------------------------------------------------------


def test_one_letter_does_not_tie_axes_of_different_sizes():
    g = mlp()
    words = says("'Multilinear(X, H)'", "'i'", "'pixel' (size 4)", "'hidden' (size 5)", "different letters")
    unchanged(g, lambda: g.factor(Multilinear(g["X"]["i"], g["H"]["i"])), match=words)
    unchanged(g, lambda: g.factor(Multilinear(g["W"]["i i"], g["X"]["x"])), match=says("'i'", "'hidden'", "'pixel'"))
    dynamic = unn.FactorGraph("g", n=3, m=4)
    a, b, c = (dynamic.variable(name, axis, unn.SquaredNorm()) for name, axis in (("A", "n"), ("B", "p"), ("C", "m")))
    dynamic.factor(Multilinear(a["i"], b["i"]))
    unchanged(dynamic, lambda: dynamic.factor(Multilinear(b["k"], c["k"])), match=says("'n', 'p' (size 3)", "'m' (size 4)"))
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
    x, h = g.variable("X", "channel row column", unn.SquaredNorm()), g.variable("H", "feature row1 column1", unn.SquaredNorm())
    w = g.parameter("W", "feature channel kernel kernel")
    unchanged(g, lambda: g.factor(Conv2d(h, w, x)), match=says("'Conv2d(H, W, X)'", "'row1'", "size 5", "4"))


@pytest.mark.parametrize(("groups", "channel", "feature"), [(3, 2, 3), (2, 3, 4), (2, 4, 3), (4, 4, 6)])
def test_groups_divide_the_channels_on_both_sides(groups, channel, feature):
    with pytest.raises(unn.UnnError, match=says("'Conv2d(H, W, X)'", "channels", f"{groups} groups")):
        unn.infer(images(channel=channel, feature=feature, groups=groups), {"X": torch.ones(1, channel, 6, 6)})


@pytest.mark.parametrize("groups", [0, -1, 1.5, "2", None, True])
def test_groups_are_a_whole_number(groups):
    g = images()
    h, w, x = (g[name] for name in "HWX")
    with pytest.raises(unn.DeclarationError, match=says("'Conv2d(H, W, X)'", "groups", repr(groups))):
        Conv2d(h, w, x, groups=groups)


@pytest.mark.parametrize("option", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("value", [-1, (1, 2, 3), (1,), "ab", (1, -1), True, (1.0, 1), 1.5, None])
def test_strides_paddings_and_dilations_are_one_or_two_whole_numbers(option, value):
    with pytest.raises(unn.DeclarationError, match=says("'Conv2d(H, W, X)'", option, "whole number", repr(value))):
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
    x, h = g.variable("X", "channel row column", unn.SquaredNorm()), g.variable("H", "feature row1 column1", unn.SquaredNorm())
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
    for attempt in (lambda: unn.infer(g, {"X": X}), lambda: unn.Unrolled(g, "X", "H"), lambda: g.energy({"X": X, "H": X[:, :2]})):
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
    with pytest.raises(unn.ObservationError, match=says("axis 'n'", "variable 'Z'", "not known", "sizes={'n': ...}")):
        unn.infer(pair(), {"X": X[:, :2]})


def test_an_axis_of_size_0_is_refused_before_anything_runs():
    with pytest.raises(unn.UnnError, match=says("'n'", "0")):
        unn.infer(pair(n=0), {"X": X[:, :2]})
    with pytest.raises(unn.ObservationError, match=says("variable 'Z'", "axis 'n'", "size 0", "empty sequences")):
        unn.infer(pair(), {"Z": torch.ones(1, 0, 2)})


# -- values given with a declaration ---------------------------------------------------------------------------------------


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

    with pytest.raises(OSError, match="no such file"):
        g.parameter("W", "n", init=fail)
    assert "W" not in g.arrays
    assert g.parameter("V", "n").axes == ("n",)


def test_an_axis_named_twice_has_one_size():
    for declare in (lambda g: g.parameter("W", "n n", init=torch.ones(2, 3)), lambda g: g.constant("W", "n n", torch.ones(2, 3))):
        g = unn.FactorGraph("g")
        unchanged(g, lambda: declare(g), match=says("'W'", "'n'", "(2, 3)"))


@pytest.mark.parametrize(
    ("value", "words"),
    [(torch.ones(3), ["size 2", "axis 'n'", "(3,)"]), (torch.tensor(1.0), ["1 axes (n)", "()"]), ("abc", []), ([[1], [2, 3]], []), (None, None)],
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
    x, y, c = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm()), g.constant("C", "n")
    g.factor(Multilinear(c["i"], x["i"], y["i"]))
    x = X[:, :2]
    for attempt in (lambda: unn.infer(g, {"X": x}), lambda: unn.Unrolled(g, "X", "Y")(x), lambda: g.energy({"X": x, "Y": x})):
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
    x, y, c = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm()), g.constant("C", "n", torch.ones(2))
    g.factor(Multilinear(c["i"], x["i"], y["i"]))
    other = torch.tensor([5.0, 7.0])
    out = done_or_refused(lambda: unn.infer(g, {"X": X[:, :2], "C": other}), "'C'", error=unn.ObservationError)
    if out is not None:
        torch.testing.assert_close(out.energy[-1], g.energy({**out.values, "C": other}))


# -- observations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (X.int(), ["int32", "floating point", ".float()"]),
        (X.bool(), ["bool", "floating point"]),
        (X.to(torch.complex64), ["complex64", "floating point"]),
        (X.double(), ["float64", "float32", ".to(torch.float32)"]),
        (X.half(), ["float16", "float32"]),
        (X.to("meta"), ["device meta", "cpu", ".to("]),
        (X[0], ["(4,)", "(batch, pixel)", "x[None]"]),
        (X[None], ["(1, 2, 4)", "3 axes", "(batch, pixel)"]),
        (X[:, :3], ["axis 'pixel'", "size 3", "expected 4", "(2, 3)", "pixel=3"]),
        (X[:0], ["(0, 4)", "empty batch", "at least one"]),
        (X.numpy(), ["torch.Tensor", "ndarray", "torch.as_tensor"]),
        (X.tolist(), ["torch.Tensor", "list"]),
        (None, ["torch.Tensor", "NoneType"]),
        (3.0, ["torch.Tensor", "float"]),
        ("zero", ["torch.Tensor", "str"]),
        (X.clone().fill_(NAN), ["8 entries", "NaN or infinite", "(0, 0)", "nan", "unn.Partial"]),
        (with_entry(X, (1, 2), INF), ["1 entries", "NaN or infinite", "(1, 2)", "inf"]),
        (with_entry(X, (1, 3), -INF), ["1 entries", "NaN or infinite", "(1, 3)", "-inf"]),
    ],
)
def test_observations_must_fit_the_declaration(value, words):
    g = mlp()
    for attempt in (
        lambda: unn.infer(g, {"X": value}),
        lambda: unn.Unrolled(g, "X", "Y")(value),
        lambda: unn.infer(g, {"X": unn.Partial(value, torch.ones(2, 4, dtype=torch.bool))}),
        lambda: unn.infer(g, {}, initial={"X": value}) if isinstance(value, torch.Tensor) else unn.infer(g, {"X": value}),
    ):
        with pytest.raises(unn.ObservationError, match=says("variable 'X'", *words)):
            attempt()


def test_labels_in_place_of_one_hot_vectors_get_their_own_advice():
    with pytest.raises(unn.ObservationError, match=says("'Y'", "int64", "one_hot")):
        unn.infer(mlp(), {"Y": torch.tensor([0, 2])})


def test_infinities_of_other_domains_are_found_too():
    for name, shape in (("H", (2, 5)), ("Y", (2, 3))):
        for bad in (NAN, INF, -INF):
            with pytest.raises(unn.ObservationError, match=says(f"variable '{name}'", "NaN or infinite")):
                unn.infer(mlp(), {name: torch.full(shape, bad)})


@pytest.mark.parametrize("value", [None, [], 5, X])
def test_what_is_given_is_a_mapping_by_name(value):
    with pytest.raises(unn.ObservationError, match="given"):
        unn.infer(mlp(), value)


def test_parameters_cannot_be_observed():
    with pytest.raises(unn.ObservationError, match=says("'W'", "parameter", "load_state_dict")):
        unn.infer(mlp(), {"W": X})


def test_batch_sizes_agree():
    with pytest.raises(unn.ObservationError, match=says("variable 'Y'", "batch size 1", "2")):
        unn.infer(mlp(), {"X": X, "Y": UNIFORM[:1]})
    with pytest.raises(unn.ObservationError, match=says("variable 'H'", "batch size 1", "2")):
        unn.infer(mlp(), {"X": X}, initial={"H": torch.zeros(1, 5)})


OUTSIDE = [
    (unn.NonNegative(), -0.1),
    (unn.BinaryEntropy(), 1.1),
    (unn.SignedEntropy(), -1.1),
    (unn.Entropy(), 0.5),
    (unn.SimplexNorm(), 0.5),
    (unn.TsallisEntropy(1.5), 0.5),
    (unn.Box(-2, 3), 3.1),
    (unn.Ball(), 1.0),
]


@pytest.mark.parametrize(("regularizer", "entry"), OUTSIDE)
def test_observations_lie_in_the_domain_of_their_regularizer(regularizer, entry):
    g = unn.FactorGraph("g", n=3)
    x, y = g.variable("X", "n", regularizer), g.variable("Y", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], y["i"]))
    inside = regularizer.mirror(torch.zeros(1, 3))
    assert unn.infer(g, {"X": inside})["Y"].equal(inside)
    bad = torch.cat([inside, torch.full((1, 3), entry)])
    words = says("variable 'X'", "1 of 2 batch elements", "outside the domain", repr(regularizer), regularizer.formula, "batch element 1", "rescale")
    everything = torch.ones(2, 3, dtype=torch.bool)
    for attempt in (
        lambda: unn.infer(g, {"X": bad}),
        lambda: unn.infer(g, {"X": unn.Partial(bad, everything)}),
        lambda: unn.Unrolled(g, "X", "Y")(bad),
        lambda: unn.infer(g, {"Y": bad}, initial={"X": bad}),
    ):
        with pytest.raises(unn.ObservationError, match=words):
            attempt()
    assert (g.energy({"X": bad, "Y": bad}) == torch.tensor([g.energy({"X": inside, "Y": inside}).item(), INF])).tolist() == [True, True]


def test_observations_that_require_gradients_are_checked_without_a_warning():
    g = mlp()
    x = X.clone().requires_grad_()
    unn.infer(g, {"X": x}, until=1e-3)["Y"][0, 0].backward()
    assert x.grad.abs().sum() > 0
    with pytest.raises(unn.ObservationError, match=says("'H'", "outside the domain")):
        unn.infer(g, {"H": torch.full((2, 5), 3.0, requires_grad=True)})


# -- nothing, everything, wanting ------------------------------------------------------------------------------------------


def test_nothing_given_is_refused():
    for attempt in (lambda: unn.infer(mlp(), {}), lambda: unn.infer(mlp(), {}, initial={}), lambda: unn.infer(mlp(), {}, order=["X", "H", "Y"])):
        with pytest.raises(unn.InferenceError, match=says("graph 'mlp'", "nothing is given", "X, H, Y", "initial=")):
            attempt()
    with pytest.raises(unn.UnnError):
        unn.infer(unn.FactorGraph("empty"), {})
    with pytest.raises(unn.UnnError):
        unn.FactorGraph("empty").energy({})


@pytest.mark.parametrize("order", [None, ["H"], ["H", "Y"]])
def test_everything_given_is_refused(order):
    with pytest.raises(unn.InferenceError, match=says("graph 'mlp'", "every variable is given", "nothing is left to infer")):
        unn.infer(mlp(), {"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}, order=order)


def test_what_is_wanted_can_be_reached_and_is_not_given():
    g = mlp()
    g.variable("alone", "pixel", unn.SquaredNorm())
    g.factor(Multilinear(g["alone"]["i"]))
    for run in (lambda want: unn.infer(g, {"X": X}, want=want), lambda want: unn.Unrolled(g, "X", want)):
        with pytest.raises(unn.InferenceError, match=says("want", "'alone'", "cannot be reached", "(X)", "no chain of factors")):
            run("alone")
        with pytest.raises(unn.InferenceError, match=says("want", "'X'", "is given", "another one")):
            run(["Y", "X"])
        with pytest.raises(unn.InferenceError, match=says("want", "unknown variable 'W'")):
            run("W")
        with pytest.raises(unn.InferenceError, match=says("want", "unknown variable 7")):
            run(["Y", 7])


def test_what_is_wanted_is_a_name_or_a_list_of_names():
    with pytest.raises(unn.InferenceError, match="want"):
        unn.infer(mlp(), {"X": X}, want=7)


def test_what_is_observed_in_part_may_be_wanted():
    g = mlp()
    seen = torch.tensor([[True, False, True, False]] * 2)
    out = unn.infer(g, {"X": unn.Partial(X, seen), "Y": UNIFORM}, order=["H", "X"], want="X", iterations=2)
    net = unn.Unrolled(g, ["X", "Y"], "X", order=["H", "X"], iterations=2)
    torch.testing.assert_close(net(unn.Partial(X, seen), UNIFORM), out["X"])


def test_an_unrolled_network_wants_what_it_infers():
    with pytest.raises(unn.InferenceError, match=says("want", "'Y'", "not in the order ['H']", "add it")):
        unn.Unrolled(mlp(), "X", "Y", order=["H"], initial={"Y": "uniform"})


def test_an_unrolled_network_takes_all_of_its_inputs():
    net = unn.Unrolled(mlp(), ["X", "Y"], "H")
    for inputs in ((), (X,), (X, UNIFORM, X)):
        with pytest.raises(unn.InferenceError, match=says("2 inputs (X, Y)", f"got {len(inputs)}")):
            net(*inputs)


def test_a_whole_observation_of_a_variable_in_the_order_is_refused_by_an_unrolled_network():
    """Declared for Partial observations: a plain tensor cannot be updated."""
    net = unn.Unrolled(mlp(), "X", "Y", order=["H", "X", "Y"])
    assert net(unn.Partial(X, X > 0)).shape == (2, 3)
    with pytest.raises(unn.UnnError, match=says("'X'", "order")):
        net(X)


# -- energies --------------------------------------------------------------------------------------------------------------


def test_an_energy_needs_every_variable():
    g = mlp()
    values = {"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}
    with pytest.raises(unn.ObservationError, match=says("energy", "variable 'H'", "no value", "X, H, Y")):
        g.energy({"X": X, "Y": UNIFORM})
    with pytest.raises(unn.ObservationError, match=says("unknown variable 'Q'")):
        g.energy({**values, "Q": X})
    with pytest.raises(unn.ObservationError, match=says("variable 'H'", "axis 'hidden'", "size 4", "expected 5")):
        g.energy({**values, "H": X})
    with pytest.raises(unn.ObservationError, match=says("variable 'H'", "torch.Tensor", "str")):
        g.energy({**values, "H": "zero"})
    assert g.energy({**values, "Y": 2 * UNIFORM}).tolist() == [INF, INF]


def test_an_energy_of_a_partial_observation_is_refused():
    with pytest.raises(unn.ObservationError, match=says("'X'", "Partial")):
        mlp().energy({"X": unn.Partial(X, X > 0), "H": torch.zeros(2, 5), "Y": UNIFORM})


# -- lengths -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (torch.tensor([0, 2]), ["batch element 0", "length 0", "size 4", "1 to that size", "empty sequences"]),
        (torch.tensor([-1, 2]), ["batch element 0", "length -1"]),
        (torch.tensor([1, 5]), ["batch element 1", "length 5", "size 4"]),
        (torch.tensor([1.0, 2.0]), ["whole numbers", "(2,)", "float32"]),
        (torch.tensor([1, 2, 3]), ["whole numbers", "(2,)", "(3,)"]),
        (torch.tensor(3), ["whole numbers", "(2,)", "()"]),
        (torch.tensor([[1], [2]]), ["whole numbers", "(2,)", "(2, 1)"]),
        ([1, 2], ["whole numbers", "[1, 2]"]),
        (3, ["whole numbers", "3"]),
        (None, ["whole numbers", "None"]),
        (torch.tensor([True, True]), ["whole numbers", "bool"]),
        (torch.tensor([1, 2], device="meta"), ["meta"]),
    ],
)
def test_lengths_are_whole_numbers_from_one_to_the_size_of_their_axis(length, words):
    for attempt in (
        lambda: unn.infer(mlp(), {"X": X}, lengths={"pixel": length}),
        lambda: unn.Unrolled(mlp(), "X", "Y")(X, lengths={"pixel": length}),
        lambda: mlp().energy({"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}, lengths={"pixel": length}),
    ):
        with pytest.raises(unn.ObservationError, match=says("lengths", "'pixel'", *words)):
            attempt()


def test_lengths_are_checked_on_axes_that_only_a_constant_has():
    g = unn.FactorGraph("g", d=2)
    x, y, c = g.variable("X", "d", unn.SquaredNorm()), g.variable("Y", "d", unn.SquaredNorm()), g.constant("C", "n d")
    g.factor(Multilinear(x["i"], y["i"], c["n i"]))
    for length in ([0, 2], [1, 9]):
        with pytest.raises(unn.ObservationError, match=says("lengths", "'n'")):
            unn.infer(g, {"X": X[:, :2], "C": torch.ones(2, 4, 2)}, lengths={"n": torch.tensor(length)})


def test_lengths_of_tied_axes_do_not_contradict():
    g = unn.FactorGraph("g")
    x, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], y["i"]))
    with pytest.raises(unn.ObservationError, match=says("lengths", "'n'", "'m'")):
        unn.infer(g, {"X": X}, lengths={"n": torch.tensor([1, 2]), "m": torch.tensor([3, 4])})


def attempt_padded(g, given, cut, **options):
    """Padded to 6 rows with length 4, and cut to 4 rows: equal, or refused with an error of this package."""
    padded = done_or_refused(lambda: unn.infer(g, given, lengths={"row": torch.tensor([4])}, **options), "lengths", error=unn.ObservationError)
    if padded is not None:
        alone = unn.infer(g, {name: cut(x) for name, x in given.items()}, **options)
        torch.testing.assert_close(padded.energy[-1], alone.energy[-1], rtol=1e-5, atol=1e-5)


def test_padding_is_left_out_of_directed_factors_or_refused():
    g = unn.FactorGraph("g", d=3)
    x, h = g.variable("X", "row d", unn.SquaredNorm()), g.variable("H", "row d", unn.SignedEntropy())
    torch.manual_seed(0)
    g.factor(Directed(torch.nn.Linear(3, 3), h, x))
    attempt_padded(g, {"X": torch.randn(1, 6, 3)}, lambda v: v[:, :4])


def test_padding_is_left_out_of_convolutions_or_refused():
    attempt_padded(images(row=None, column=None, channel=1), {"X": torch.rand(1, 1, 6, 6)}, lambda v: v[:, :, :4])


def test_padding_is_left_out_of_sums_over_another_letter_or_refused():
    """Nothing masks the letter j of the parameter, though another letter carries the ragged axis."""
    g = unn.FactorGraph("g", row=6)
    x, h = g.variable("X", "row", unn.SquaredNorm()), g.variable("H", "row", unn.SquaredNorm())
    g.factor(Multilinear(h["i"], x["i"], g.parameter("b", "row", init="ones")["j"]))
    x = torch.randn(1, 6)
    out = done_or_refused(lambda: unn.infer(g, {"X": x}, lengths={"row": torch.tensor([4])}), "'b'", error=unn.ObservationError)
    if out is not None:
        torch.testing.assert_close(out["H"][:, :4], 4 * x[:, :4])


def test_a_parameter_summed_over_padding_is_refused_by_name():
    g = unn.FactorGraph("g", row=6)
    x, z = g.variable("X", "row", unn.SquaredNorm()), g.variable("Z", "", unn.SquaredNorm())
    g.factor(Multilinear(z[""], g.parameter("b", "row", init="ones")["j"]))
    g.factor(Multilinear(x["i"], z[""]))
    with pytest.raises(unn.ObservationError, match=says("lengths", "'Multilinear(Z, b)'", "parameter 'b'", "'row'", "constant of ones")):
        unn.infer(g, {"X": torch.randn(1, 6)}, lengths={"row": torch.tensor([4])})


# -- orders and iterations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (["H"], ["'Y'", "neither given nor in the order ['H']", "add it", "initial="]),
        ("H", ["'Y'", "neither given nor in the order"]),
        ([], ["order is empty", "at least one variable"]),
        ("", ["unknown variable ''"]),
        (["H", "W"], ["unknown variable 'W'"]),
        ([5], ["names of variables", "5"]),
        ([None, "H"], ["names of variables", "None"]),
        ([["H", "Y"]], ["names of variables", "['H', 'Y']"]),
        (5, ["order", "5"]),
        (unn.Block("H", torch.ones(5, dtype=torch.bool)), ["order"]),
    ],
)
def test_orders_list_every_free_variable_and_nothing_else(order, words):
    for attempt in (lambda: unn.infer(mlp(), {"X": X}, order=order), lambda: unn.Unrolled(mlp(), "X", "H", order=order)):
        with pytest.raises(unn.InferenceError, match=says("order", *words)):
            attempt()


def test_an_order_does_not_name_what_is_given():
    with pytest.raises(unn.InferenceError, match=says("order", "'X'", "is given", "cannot be updated", "leave it out")):
        unn.infer(mlp(), {"X": X}, order=["H", "X", "Y"])


@pytest.mark.parametrize(
    "nodes",
    [
        torch.ones(5),
        torch.ones(4, dtype=torch.bool),
        torch.ones(5, 1, dtype=torch.bool),
        [True] * 5,
        None,
        torch.ones(5, dtype=torch.bool, device="meta"),
    ],
)
def test_the_nodes_of_a_block_are_boolean_and_of_the_shape_of_the_node_axes(nodes):
    with pytest.raises(unn.InferenceError, match=says("order", "'H'", "nodes")):
        unn.infer(mlp(), {"X": X}, order=[unn.Block("H", nodes), "Y"])


@pytest.mark.parametrize("kind", [unn.ForwardBackward, unn.RandomOrder])
@pytest.mark.parametrize("names", ["Hidden", [], [5], ["H", "H"], 5, None, ["H", None]])
def test_orders_are_made_of_lists_of_different_names(kind, names):
    with pytest.raises(unn.InferenceError, match=says(kind.__name__, "takes")):
        kind(names)


@pytest.mark.parametrize("kind", [unn.ForwardBackward, unn.RandomOrder])
def test_the_last_of_an_order_is_a_name(kind):
    with pytest.raises(unn.InferenceError, match="5"):
        unn.infer(mlp(), {"X": X}, order=kind(["H", "Y"], last=5))


@pytest.mark.parametrize("iterations", [0, -1, True, False, 1.0, "3", [3], torch.tensor(3), range(0), range(0, 3), range(-2, 5), range(5, 1)])
def test_iterations_are_whole_numbers_from_one(iterations):
    for attempt in (
        lambda: unn.infer(mlp(), {"X": X}, iterations=iterations),
        lambda: unn.Unrolled(mlp(), "X", "Y", iterations=iterations),
        lambda: unn.Unrolled(mlp(), "X", "Y")(X, iterations=iterations),
    ):
        with pytest.raises(unn.InferenceError, match=says("iterations", "range(1, 6)", str(iterations))):
            attempt()


@pytest.mark.parametrize("until", [0, 0.0, -1e-6, NAN, "1e-6", [1]])
def test_a_tolerance_is_a_positive_number(until):
    with pytest.raises(unn.InferenceError, match=says("until", "> 0", repr(until))):
        unn.infer(mlp(), {"X": X}, until=until)


# -- partial observations, initial values, dropout ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, 4), ["boolean", "float32"]),
        (torch.ones(2, 4, dtype=torch.int), ["boolean", "int32"]),
        (None, ["boolean", "NoneType"]),
        ([True] * 4, ["boolean", "list"]),
        (torch.ones(4, 2, dtype=torch.bool), ["(4, 2)", "(2, 4)"]),
        (torch.ones(4, dtype=torch.bool), ["(4,)", "(2, 4)"]),
        (torch.ones(2, 4, 1, dtype=torch.bool), ["(2, 4, 1)", "(2, 4)"]),
        (torch.ones(2, 4, dtype=torch.bool, device="meta"), ["meta"]),
    ],
)
def test_the_mask_of_a_partial_observation_is_boolean_and_fits(mask, words):
    with pytest.raises(unn.ObservationError, match=says("variable 'X'", "mask", *words)):
        unn.infer(mlp(), {"X": unn.Partial(X, mask)})


@pytest.mark.parametrize("regularizer", [unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy(), unn.Ball()])
def test_a_mask_does_not_split_a_row_whose_entries_depend_on_one_another(regularizer):
    g = unn.FactorGraph("g", n=2, k=3)
    s = g.variable("S", "n k", regularizer)
    g.factor(Multilinear(s["n k"]))
    mask = torch.zeros(1, 2, 3, dtype=torch.bool)
    mask[0, 1, 2] = True
    value = torch.full((1, 2, 3), 1 / 3)
    with pytest.raises(unn.ObservationError, match=says("variable 'S'", "mask", "axis 'k'", repr(regularizer), "whole rows or none")):
        unn.infer(g, {"S": unn.Partial(value, mask)})
    mask[0, 1] = True
    assert unn.infer(g, {"S": unn.Partial(value, mask)})["S"][0, 1].allclose(value[0, 1])


@pytest.mark.parametrize("over", ["n", None])
def test_a_mask_is_checked_along_the_axis_that_is_normalised_when_its_name_occurs_twice(over):
    g = unn.FactorGraph("g", n=3)
    s = g.variable("S", "n n", unn.Entropy(over=over))
    g.factor(Multilinear(s["i j"]))
    value, whole = torch.full((1, 3, 3), 1 / 3), torch.zeros(1, 3, 3, dtype=torch.bool)
    whole.select(s.regularizer.dim, 0).fill_(True)
    with pytest.raises(unn.ObservationError, match=says("variable 'S'", "axis 'n'")):
        unn.infer(g, {"S": unn.Partial(value, whole)})
    assert unn.infer(g, {"S": unn.Partial(value, whole.mT)}).values


@pytest.mark.parametrize(
    ("error", "initial", "words"),
    [
        (unn.InferenceError, {"Y": "rnd"}, ["'Y'", "'zero', 'uniform', 'random'", "'rnd'"]),
        (unn.InferenceError, {"Y": None}, ["'Y'", "'zero', 'uniform', 'random'", "None"]),
        (unn.InferenceError, {"Y": 0}, ["'Y'", "'zero', 'uniform', 'random'", "0"]),
        (unn.InferenceError, {"X": "zero"}, ["'X'", "is given", "drop one"]),
        (unn.InferenceError, {"X": X}, ["'X'", "is given", "drop one"]),
        (unn.InferenceError, {"W": "zero"}, ["unknown variable 'W'"]),
        (unn.ObservationError, {"Y": 2 * UNIFORM}, ["'Y'", "outside the domain", "Entropy()", "sum to 2"]),
        (unn.ObservationError, {"H": torch.full((2, 5), -1.5)}, ["'H'", "outside the domain", "SignedEntropy()"]),
        (unn.ObservationError, {"H": torch.full((2, 5), NAN)}, ["'H'", "NaN"]),
        (unn.ObservationError, {"H": torch.zeros(2, 4)}, ["'H'", "axis 'hidden'", "size 4", "expected 5"]),
        (unn.ObservationError, {"H": torch.zeros(2, 5, device="meta")}, ["'H'", "device meta"]),
        (unn.ObservationError, {"H": torch.zeros(2, 5).double()}, ["'H'", "float64"]),
        ((unn.InferenceError, unn.ObservationError), {"H": np.zeros((2, 5))}, ["'H'", "tensor"]),
        ((unn.InferenceError, unn.ObservationError), ["H"], ["initial"]),
    ],
)
def test_initial_values_are_words_or_tensors_inside_the_domain(error, initial, words):
    with pytest.raises(error, match=says(*words)):
        unn.infer(mlp(), {"X": X}, initial=initial)
    if isinstance(initial, dict):
        with pytest.raises(error, match=says(*words)):
            unn.Unrolled(mlp(), "X", "Y", initial=initial)(X)


@pytest.mark.parametrize(
    ("dropout", "words"),
    [
        ({"H": 1.0}, ["'H'", "[0, 1)", "1.0"]),
        ({"H": -0.1}, ["'H'", "[0, 1)", "-0.1"]),
        ({"H": NAN}, ["'H'", "[0, 1)", "nan"]),
        ({"H": "half"}, ["'H'", "half"]),
        ({"H": None}, ["'H'", "None"]),
        ({"X": 0.5}, ["'X'", "is given", "only inferred"]),
        ({"Y": 0.5}, ["'Y'", "Entropy()", "elementwise"]),
        ({"W": 0.5}, ["unknown variable 'W'"]),
        ({"H": torch.ones(3, 5)}, ["'H'", "(3, 5)", "(2, 5)"]),
        ({"H": -torch.ones(2, 5)}, ["'H'", "mask"]),
        ({"H": torch.full((2, 5), NAN)}, ["'H'", "mask"]),
        ({"H": torch.ones(2, 5, device="meta")}, ["'H'", "meta"]),
    ],
)
def test_dropout_is_a_probability_or_a_mask_on_inferred_elementwise_variables(dropout, words):
    for attempt in (lambda: unn.infer(mlp(), {"X": X}, dropout=dropout), lambda: unn.Unrolled(mlp(), "X", "Y", dropout=dropout).train()(X)):
        with pytest.raises(unn.InferenceError, match=says("dropout", *words)):
            attempt()


# -- nothing is changed by a mistake ---------------------------------------------------------------------------------------


def test_a_failed_declaration_leaves_the_graph_usable():
    g = mlp()
    expected = unn.infer(g, {"X": X}, iterations=3)
    foreign = mlp()["X"]["i"]
    attempts = [
        lambda: g.variable("Z", "a-b", unn.SquaredNorm()),
        lambda: g.variable("Z", "pixel", unn.SquaredNorm),
        lambda: g.variable("Z", "pixel", unn.Entropy(over="hidden")),
        lambda: g.variable("X", "pixel", unn.SquaredNorm()),
        lambda: g.parameter("forward", "pixel"),
        lambda: g.parameter("U", "pixel", init=torch.ones(7)),
        lambda: g.parameter("U", "pixel", init="twos"),
        lambda: g.constant("C", "pixel", torch.ones(7)),
        lambda: g.factor(Multilinear(g["X"]["i"], g["H"]["i"])),
        lambda: g.factor(Multilinear(g["X"]["i"], g["H"]["(i j)"])),
        lambda: g.factor(Multilinear(g["X"]["i"], foreign)),
        lambda: g.factor(Multilinear(g["W"]["i j"])),
        lambda: g.factor(g.factors["Multilinear(Y, V, H)"]),
    ]
    for attempt in attempts:
        unchanged(g, attempt)
    again = unn.infer(g, {"X": X}, iterations=3)
    assert all(torch.equal(again[name], expected[name]) for name in g.variables)
    z = g.variable("Z", "pixel", unn.SquaredNorm())
    g.factor(Multilinear(z["i"], g["X"]["i"]))
    g.factor(Multilinear(g["H"]["h"], g["W"]["h x"], g["X"]["x"]))
    assert list(g.factors)[-2:] == ["Multilinear(Z, X)", "Multilinear(H, W, X)#2"]
    out = unn.infer(g, {"X": X})
    torch.testing.assert_close(out["Z"], X)
    torch.testing.assert_close(out["H"], torch.tanh(2 * X @ g.W.T))


def test_a_failed_factor_does_not_tie_axes():
    g = unn.FactorGraph("g", m=3)
    a, b, c = (g.variable(name, axis, unn.SquaredNorm()) for name, axis in (("A", "n"), ("B", "m"), ("C", "p q")))
    with pytest.raises(unn.DeclarationError):
        g.factor(Multilinear(a["i"], c["i j"], b["j"], b["(j k)"], b["(k j)"], g.constant("T", "n m", torch.ones(2, 3))["j i"]))
    g.factor(Multilinear(a["i"], b["j"]))
    assert unn.infer(g, {"A": torch.ones(1, 2)}, sizes={"p": 4, "q": 5})["C"].shape == (1, 4, 5)


def test_bad_input_never_changes_parameters_or_values():
    g = mlp()
    before = {name: value.clone() for name, value in g.state_dict().items()}
    bad = with_entry(X, (0, 0), NAN)
    values = {"X": X.clone(), "bad": bad.clone()}
    attempts = [
        lambda: unn.infer(g, {"X": bad}),
        lambda: unn.infer(g, {"X": X.double()}),
        lambda: unn.infer(g, {"X": X, "W": X}),
        lambda: unn.infer(g, {"X": X}, initial={"Y": 2 * UNIFORM}),
        lambda: unn.infer(g, {"X": X}, order=["H"]),
        lambda: unn.infer(g, {"X": X}, lengths={"pixel": torch.tensor([0, 1])}),
        lambda: unn.infer(g, {"X": X}, dropout={"H": 2.0}),
        lambda: unn.Unrolled(g, "X", "Y")(bad),
        lambda: g.energy({"X": X}),
        lambda: g.parameter("U", "pixel", init=torch.ones(7)),
    ]
    for attempt in attempts:
        with pytest.raises(unn.UnnError):
            attempt()
    assert all(torch.equal(before[name], value) for name, value in g.state_dict().items())
    assert torch.equal(X, values["X"]) and torch.equal(bad.nan_to_num(), values["bad"].nan_to_num())
    assert all(parameter.grad is None for parameter in g.parameters())


def test_a_constant_keeps_its_value_when_the_tensor_it_was_made_from_changes():
    g = unn.FactorGraph("g", n=2)
    value = torch.ones(2)
    g.constant("C", "n", value)
    value.fill_(9.0)
    assert g.C.tolist() == [1, 1]


# -- divergence ------------------------------------------------------------------------------------------------------------


def coupled(weight, axes="n", dtype=torch.float64):
    g = unn.FactorGraph("coupled", n=2)
    a, b = g.variable("A", axes, unn.SquaredNorm()), g.variable("B", axes, unn.SquaredNorm())
    J = g.parameter("J", "", init=lambda values: values.fill_(weight))
    g.factor(Multilinear(J[""], a[axes.replace("n", "i")], b[axes.replace("n", "i")]))
    return g.to(dtype)


@pytest.mark.parametrize("axes", ["n", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_unbounded_quadratic_energy_ends_as_unbounded_with_finite_values(dtype, axes):
    g = coupled(3.0, axes, dtype)
    start = torch.ones((2, 2) if axes else (2,), dtype=dtype)
    out = unn.infer(g, {}, initial={"A": start}, order=["B", "A"], iterations=1000)
    assert out.status is unn.Status.UNBOUNDED and not out.converged
    assert all(x.isfinite().all() for x in out.values.values())
    powers = [torch.ones((), dtype=dtype)]
    while powers[-1] <= float(torch.finfo(dtype).max) ** 0.5:
        powers.append(3 * powers[-1])
    updates = len(powers) - 1
    place = f"update {2 - updates % 2} of round {(updates + 1) // 2} ({'BA'[(updates + 1) % 2]})"
    assert place in out.message and "2 of 2 batch elements" in out.message
    assert out.rounds == (updates + 1) // 2
    torch.testing.assert_close(out["A"].detach(), start * powers[2 * (out.rounds - 1)])
    assert "depends on the weights" in out.message and "A, B" in out.message


def test_the_message_about_an_unbounded_energy_is_a_sentence():
    out = unn.infer(coupled(3.0), {}, initial={"A": torch.ones(1, 2, dtype=torch.float64)}, order=["B", "A"], iterations=1000)
    assert "is depends" not in out.message


@pytest.mark.parametrize("regularizer", [unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy(1.5)])
def test_weightless_attention_ends_as_unbounded_with_finite_values(regularizer):
    g = unn.FactorGraph("attention", d=4, n=3, m=3)
    q, k, s = g.variable("Q", "n d", unn.SquaredNorm()), g.variable("K", "m d", unn.SquaredNorm()), g.variable("S", "n m", regularizer)
    g.factor(Multilinear(s["n m"], q["n d"], k["m d"]))
    assert g.boundedness().bound is unn.Bound.UNBOUNDED
    generator = torch.Generator().manual_seed(0)
    start = {name: 3 * torch.randn(2, 3, 4, generator=generator) for name in "QK"}
    out = unn.infer(g, {}, initial=start, order=["S", "Q", "K"], iterations=1000)
    assert out.status is unn.Status.UNBOUNDED and 1 < out.rounds < 1000
    assert all(x.isfinite().all() for x in out.values.values())
    assert (regularizer.contains(out["S"])).all()
    assert re.search(rf"at update [123] of round {out.rounds} \([SQK]\)", out.message)
    assert "unbounded below" in out.message and "Ball, Box" in out.message


@pytest.mark.parametrize(
    "regularizer",
    [
        unn.SquaredNorm(),
        unn.NonNegative(),
        unn.BinaryEntropy(),
        unn.SignedEntropy(),
        unn.Box(),
        unn.L1(),
        unn.Entropy(),
        unn.SimplexNorm(),
        unn.TsallisEntropy(1.5),
        unn.TsallisEntropy(2.0),
        unn.Ball(),
    ],
)
def test_a_nan_parameter_ends_as_not_a_number_with_finite_values(regularizer):
    g = unn.FactorGraph("g", n=2, m=3)
    x, h, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("H", "n", unn.SquaredNorm()), g.variable("Y", "m", regularizer)
    w = g.parameter("W", "m n", init="ones")
    g.factor(Multilinear(h["i"], x["i"]))
    g.factor(Multilinear(y["j"], w["j i"], h["i"]))
    g.W.data[1, 0] = NAN
    out = unn.infer(g, {"X": X[:, :2]}, order=["H", "Y"], iterations=5)
    assert out.status is unn.Status.NOT_A_NUMBER and not out.converged
    assert all(value.isfinite().all() for value in out.values.values())
    assert "update 2 of round 1 (Y)" in out.message and "2 of 2 batch elements" in out.message
    assert "parameters" in out.message and out.rounds == 1


def test_a_nan_parameter_of_a_scalar_ends_as_not_a_number():
    g = coupled(NAN, "")
    out = unn.infer(g, {"A": torch.ones(2, dtype=torch.float64)})
    assert out.status is unn.Status.NOT_A_NUMBER and "update 1 of round 1 (B)" in out.message
    assert out["B"].isfinite().all()


@pytest.mark.parametrize("regularizer", [unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy(1.5), unn.Ball(), unn.SquaredNorm()])
@pytest.mark.parametrize("value", [INF, -INF])
def test_an_infinite_parameter_never_ends_in_a_traceback_or_outside_the_domain(regularizer, value):
    g = unn.FactorGraph("g", n=2, m=3)
    x, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", regularizer)
    g.factor(Multilinear(y["j"], g.parameter("W", "m n", init="ones")["j i"], x["i"]))
    g.W.data[1, 0] = value
    out = unn.infer(g, {"X": torch.ones(1, 2)}, iterations=3)
    assert out["Y"].isfinite().all()
    if out.status is unn.Status.LIMIT:
        assert regularizer.contains(out["Y"]).all()


def test_only_the_batch_elements_that_diverged_are_counted():
    g = coupled(3.0)
    start = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    out = unn.infer(g, {}, initial={"A": start}, order=["B", "A"], iterations=1000)
    assert out.status is unn.Status.UNBOUNDED and "1 of 2 batch elements" in out.message
    assert out["A"][0].tolist() == [0, 0]


# -- odd, but legal ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-9, -4, -3, -1, 1, 2, 3, 4, 9])
def test_shifts_beyond_an_axis_sum_over_nothing(shift):
    g = unn.FactorGraph("g", n=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    g.factor(Multilinear(a[f"i{shift:+d}"], b["i"]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    expected = [[float(x[0, i + shift]) if 0 <= i + shift < 3 else 0.0 for i in range(3)]]
    assert unn.infer(g, {"A": x}, order=["B"])["B"].tolist() == expected
    back = [[float(x[0, i - shift]) if 0 <= i - shift < 3 else 0.0 for i in range(3)]]
    assert unn.infer(g, {"B": x}, order=["A"])["A"].tolist() == back


def test_shifts_beyond_an_axis_of_size_one_sum_over_nothing():
    g = unn.FactorGraph("g", n=1, m=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "m", unn.SquaredNorm())
    g.factor(Multilinear(a["i+3"], b["i"]))
    assert unn.infer(g, {"B": torch.ones(1, 3)})["A"].tolist() == [[0.0]]


def test_a_letter_that_is_shifted_in_one_place_and_splits_an_axis_in_another_is_right_or_refused():
    g = unn.FactorGraph("g", n=6, m=3, i=3, j=2)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "m", unn.SquaredNorm())
    try:
        g.factor(Multilinear(a["(i j)"], b["i-1"]))
    except unn.DeclarationError:
        return
    x, y = torch.arange(6.0)[None], torch.tensor([[1.0, 10.0, 100.0]])
    products = sum(float(x[0, 2 * i + j] * y[0, i - 1]) for i in (1, 2) for j in (0, 1))
    regularizers = float(x.square().sum() / 2 + y.square().sum() / 2)
    assert g.energy({"A": x, "B": y}).item() == pytest.approx(regularizers - products)


@pytest.mark.parametrize("backwards", [False, True])
def test_sizes_of_splits_are_found_in_any_order_of_the_references(backwards):
    g = unn.FactorGraph("g")
    a, b, c = (g.variable(name, name.lower(), unn.SquaredNorm()) for name in "ABC")
    references = [a["(p q)"], b["(q r)"], c["r"]]
    g.factor(Multilinear(*(references[::-1] if backwards else references)))
    x, y, z = torch.ones(1, 6), torch.ones(1, 10), torch.ones(1, 5)
    assert g.energy({"A": x, "B": y, "C": z}).item() == pytest.approx(6 / 2 + 10 / 2 + 5 / 2 - 3 * 2 * 5)


def test_a_conditional_sum_over_a_single_variable_keeps_the_dtype_of_the_run():
    g = unn.FactorGraph("g", n=3)
    a = g.variable("A", "n n", unn.SquaredNorm())
    g.factor(Multilinear(a["i j"], where="i < j"))
    g.parameter("W", "n")
    g.double()
    out = unn.infer(g, {}, initial={"A": "zero"})
    assert out["A"].dtype == torch.float64
    assert out["A"][0].tolist() == torch.ones(3, 3).triu(1).tolist()


def test_a_weightless_sum_over_a_single_variable_runs_on_its_own():
    g = unn.FactorGraph("g", n=3)
    a = g.variable("A", "n", unn.SquaredNorm())
    g.factor(Multilinear(a["i"]))
    assert unn.infer(g, {}, initial={"A": "zero"})["A"].tolist() == [[1.0, 1.0, 1.0]]


def test_scalars_and_axes_of_size_one_run_like_any_other():
    g = unn.FactorGraph("g", n=1)
    a, b = g.variable("A", "", unn.SignedEntropy()), g.variable("B", "n", unn.Entropy())
    J, v = g.parameter("J", "", init="ones"), g.parameter("v", "n", init="ones")
    g.factor(Multilinear(J[""], a[""]))
    g.factor(Multilinear(a[""], v["i"], b["i"]))
    out = unn.infer(g, {"B": torch.ones(3, 1)}, until=1e-6)
    torch.testing.assert_close(out["A"], torch.tensor([2.0, 2.0, 2.0]).tanh())
    part = unn.infer(g, {"A": unn.Partial(torch.full((2,), 0.5), torch.tensor([True, False])), "B": torch.ones(2, 1)}, order=["A"])
    torch.testing.assert_close(part["A"], torch.tensor([0.5, float(np.tanh(2.0))]))
    with pytest.raises(unn.ObservationError, match=says("'A'", "()", "x[None]")):
        unn.infer(g, {"A": torch.tensor(0.5)})


@pytest.mark.parametrize("layout", ["transposed", "expanded", "strided"])
def test_the_layout_of_an_observation_in_memory_does_not_matter(layout):
    g = mlp()
    x = {"transposed": X.T.contiguous().T, "expanded": X[:1].expand(2, 4), "strided": torch.stack([X, X], -1)[..., 0]}[layout]
    assert not x.is_contiguous()
    seen = (torch.arange(8).view(4, 2) % 3 > 0).T
    for given, same in (({"X": x}, {"X": x.contiguous()}), ({"X": unn.Partial(x, seen)}, {"X": unn.Partial(x.contiguous(), seen.contiguous())})):
        one, other = unn.infer(g, given, iterations=2), unn.infer(g, same, iterations=2)
        assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in g.variables)


# -- run folders -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """A configuration."""

    epochs: int = 3
    rate: float = 0.1


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    runs.write_config(folder, "toy", Options(epochs=5), {"size": 4})
    runs.save_weights(folder, mlp())
    return folder


def test_a_run_folder_is_read_as_it_was_written(run):
    assert runs.read_config(run, Options) == ("toy", Options(epochs=5), {"size": 4})
    assert runs.read_config(run)[1] == {"epochs": 5, "rate": 0.1}
    g = mlp()
    g.W.data.zero_()
    runs.load_weights(run, g)
    assert torch.equal(g.W, mlp().W)


def test_a_missing_run_folder_is_named(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(unn.DataError, match=says(str(folder), "no run folder", "config.json", "unn train")):
            runs.read_config(folder)


WHOLE = {"problem": "toy", "config": {"epochs": 5}, "facts": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(WHOLE)[:30],
        json.dumps(WHOLE) + "x",
        "null",
        "[]",
        "3",
        '"toy"',
        "{}",
        json.dumps({"problem": "toy", "config": {}}),
        json.dumps({**WHOLE, "config": None}),
        json.dumps({**WHOLE, "config": 5}),
        json.dumps({**WHOLE, "config": []}),
        json.dumps({**WHOLE, "facts": None}),
        "[" * 100_000,
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_a_corrupt_configuration_is_named(run, text):
    (run / "config.json").write_text(text)
    with pytest.raises(unn.DataError, match=says(str(run / "config.json"))):
        runs.read_config(run, Options)


def test_a_configuration_of_bytes_is_corrupt(run):
    (run / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(unn.DataError, match=says("config.json", "corrupt")):
        runs.read_config(run, Options)


def test_an_unknown_option_is_named_with_the_closest_known_one(run):
    (run / "config.json").write_text(json.dumps({**WHOLE, "config": {"epoch": 5}}))
    with pytest.raises(unn.DataError, match=says("config.json", "unknown option 'epoch'", "another version", "Did you mean 'epochs'")):
        runs.read_config(run, Options)


def test_a_missing_option_without_default_is_an_error(run):
    @dataclass(frozen=True)
    class Needed:
        epochs: int
        width: int

    with pytest.raises(unn.DataError, match=says("config.json")):
        runs.read_config(run, Needed)


def test_a_folder_that_holds_a_run_is_not_written_into(run, tmp_path):
    before = (run / "config.json").read_bytes()
    with pytest.raises(unn.DataError, match=says(str(run), "holds a run already", "--folder")):
        runs.write_config(run, "toy", Options(), {})
    assert (run / "config.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(unn.DataError, match=says(str(folder), "cannot be made")):
            runs.write_config(folder, "toy", Options(), {})


@pytest.mark.parametrize("keep", [0, 4, 9, 60, 0.5, -1])
def test_truncated_weights_are_named_and_change_nothing(run, keep):
    path = run / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    check_weights(run, mlp(), "truncated or corrupt", "model.safetensors")


@pytest.mark.parametrize("content", [b"junk" * 50, b"\0" * 100, b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"])
def test_corrupt_weights_are_named_and_change_nothing(run, content):
    (run / "model.safetensors").write_bytes(content)
    check_weights(run, mlp(), "model.safetensors")


def test_missing_weights_are_named(run):
    (run / "model.safetensors").unlink()
    check_weights(run, mlp(), str(run), "model.safetensors", "not finished")


def test_weights_of_another_graph_are_refused_and_change_nothing(run):
    g = mlp()
    g.parameter("Q", "pixel")
    check_weights(run, g, "lacks 'Q'", "another graph")
    smaller = unn.FactorGraph("smaller", hidden=5, pixel=4)
    smaller.parameter("W", "hidden pixel")
    check_weights(run, smaller, "'V'", "another graph")
    narrow = unn.FactorGraph("narrow", hidden=5, pixel=4, label=2)
    narrow.parameter("W", "hidden pixel")
    narrow.parameter("V", "label hidden")
    check_weights(run, narrow, "'V'", "(3, 5)", "(2, 5)")


def check_weights(folder, module, *words):
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(unn.DataError, match=says(*words)):
        runs.load_weights(folder, module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_constants_that_share_memory_are_saved_and_loaded(tmp_path):
    def build(values):
        g = unn.FactorGraph("g")
        g.constant("A", "n", values)
        g.constant("B", "m", values[:2])
        return g

    runs.save_weights(tmp_path, build(torch.arange(4.0)))
    loaded = build(torch.zeros(4))
    runs.load_weights(tmp_path, loaded)
    assert loaded.A.tolist() == [0, 1, 2, 3] and loaded.B.tolist() == [0, 1]


def test_buffers_that_are_not_saved_are_not_asked_for(tmp_path):
    def build():
        g = mlp()
        module = torch.nn.Linear(4, 4)
        module.register_buffer("positions", torch.arange(4.0), persistent=False)
        g.factor(Directed(module, g.variable("Z", "pixel", unn.SquaredNorm()), g["X"]))
        return g

    runs.save_weights(tmp_path, build())
    runs.load_weights(tmp_path, build())


# -- command line ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(monkeypatch):
    """The digits problem is installed."""
    entry = EntryPoint("digits", "problems.digits_task:DigitsTask", "unn.problems")
    monkeypatch.setattr("unn.problem.entry_points", lambda group: [entry])


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    from problems.digits import DigitsConfig, build

    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = DigitsConfig(channels=2)
    runs.write_config(folder, "digits", config, {"image_shape": [8, 8]})
    runs.save_weights(folder, build(config, (8, 8)))
    return folder


def refused(capsys, *arguments):
    """What the command says on standard error; it exits with code 2 and prints nothing else."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2 and not out
    assert err.startswith("unn: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


@pytest.mark.usefixtures("digits")
def test_an_unknown_problem_is_named_with_the_closest_known_one(capsys):
    assert "unknown problem 'digit'. Did you mean 'digits'?" in refused(capsys, "train", "digit")
    assert "unknown problem 'nope'. Known names: digits." in refused(capsys, "demo", "nope")


@pytest.mark.usefixtures("digits")
def test_commands_name_a_missing_run_folder(capsys, tmp_path):
    folder = tmp_path / "none"
    for arguments in (["evaluate", folder], ["infer", folder, "--given", "label=3", "--want", "image"]):
        message = refused(capsys, *arguments)
        assert str(folder) in message and "no run folder" in message and "unn train" in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("label", ["--given takes NAME=VALUE", "label=3", "'label'"]),
        ("=3", ["--given takes NAME=VALUE", "'=3'"]),
        ("label=12", ["label=12", "0 to 9"]),
        ("label=-1", ["label=-1", "0 to 9"]),
        ("label=", ["label=", "0 to 9"]),
        ("label=three", ["label=three", "0 to 9"]),
        ("label=²", ["label=²", "0 to 9"]),
        ("lable=3", ["lable", "image and label", "Did you mean 'label'"]),
        ("H1=3", ["H1", "image and label"]),
        ("image=test:359", ["test:359", "test:0 to test:358"]),
        ("image=test:-1", ["test:-1", "test:0 to test:358"]),
        ("image=test:x", ["test:x", "test:0 to test:358"]),
        ("image=test:²", ["test:²", "test:0 to test:358"]),
        ("image=none.npy", ["none.npy", "not a readable .npy", "test:NUMBER"]),
    ],
)
def test_what_is_given_on_the_command_line_must_be_readable(capsys, digits_run, given, words):
    want = "label" if given.startswith("image") else "image"
    message = refused(capsys, "infer", digits_run, "--given", given, "--want", want)
    assert all(word in message for word in words)


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((7, 8)), ["(7, 8)", "(8, 8)"]),
        (np.full((8, 8), NAN), ["'image'", "NaN"]),
        (np.full((8, 8), 2.0), ["'image'", "outside the domain"]),
        (np.full((8, 8), "x"), ["x.npy"]),
    ],
)
def test_images_on_the_command_line_must_fit(capsys, digits_run, tmp_path, array, words):
    np.save(tmp_path / "x.npy", array)
    message = refused(capsys, "infer", digits_run, "--given", f"image={tmp_path / 'x.npy'}", "--want", "label")
    assert all(word in message for word in words)


@pytest.mark.usefixtures("digits")
def test_an_archive_of_arrays_is_no_image(capsys, digits_run, tmp_path):
    np.savez(tmp_path / "x.npz", image=np.zeros((8, 8)))
    assert "x.npz" in refused(capsys, "infer", digits_run, "--given", f"image={tmp_path / 'x.npz'}", "--want", "label")


@pytest.mark.usefixtures("digits")
def test_wants_on_the_command_line_must_make_sense(capsys, digits_run):
    assert "Did you mean 'image'" in refused(capsys, "infer", digits_run, "--given", "label=3", "--want", "imag")
    assert "is given" in refused(capsys, "infer", digits_run, "--given", "label=3", "--want", "label")


@pytest.mark.usefixtures("digits")
def test_a_variable_is_given_once_on_the_command_line(capsys, digits_run):
    assert "label" in refused(capsys, "infer", digits_run, "--given", "label=3", "label=4", "--want", "H1")


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("rounds", ["-1", "0"])
def test_iterations_on_the_command_line_are_at_least_one(capsys, digits_run, rounds):
    assert "iterations" in refused(capsys, "evaluate", digits_run, "--iterations", rounds)
    message = refused(capsys, "infer", digits_run, "--given", "label=3", "--want", "H1", "--iterations", rounds)
    assert "iterations" in message and rounds in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("out", ["none/x.png", "x.xyz"])
def test_a_picture_that_cannot_be_written_is_an_error_of_one_line(capsys, digits_run, tmp_path, out):
    message = refused(capsys, "infer", digits_run, "--given", "label=3", "--want", "image", "--out", tmp_path / out)
    assert out.rpartition("/")[2] in message


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", "0"),
        ("epochs", "-1"),
        ("batch", "0"),
        ("batch", "-5"),
        ("channels", "0"),
        ("channels", "-1"),
        ("dropout", "1.5"),
        ("iterations", "0"),
        ("rate", "nan"),
        ("rate", "-1"),
        ("threads", "-1"),
        ("gamma", "nan"),
    ],
)
def test_options_out_of_range_are_refused_before_a_run_folder_is_made(capsys, tmp_path, option, value):
    options = {"epochs": "1", "channels": "2", "batch": "1437", option: value}
    folder = tmp_path / "run"
    message = refused(capsys, "train", "digits", "--folder", folder, *(part for name, text in options.items() for part in (f"--{name}", text)))
    assert option in message
    assert not folder.exists()


@pytest.mark.usefixtures("digits")
def test_training_does_not_write_into_a_folder_that_holds_a_run(capsys, digits_run):
    before = (digits_run / "model.safetensors").read_bytes()
    assert "holds a run already" in refused(capsys, "train", "digits", "--epochs", "1", "--folder", digits_run)
    assert (digits_run / "model.safetensors").read_bytes() == before


@pytest.mark.usefixtures("digits")
def test_training_without_data_says_what_to_download_and_leaves_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("UNN_DATA", raising=False)
    message = refused(capsys, "train", "digits", "--data", "mnist", "--folder", tmp_path / "run")
    assert "UNN_DATA" in message and "train-images-idx3-ubyte.gz" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    "change",
    [
        {"facts": {}},
        {"facts": {"image_shape": "ab"}},
        {"facts": {"image_shape": [8, 8, 8]}},
        {"facts": {"image_shape": [2, 2]}},
        {"problem": "digts"},
        {"problem": None},
        {"config": {"channels": 3}},
        {"config": {"channels": "x"}},
        {"config": {"data": "nope"}},
    ],
    ids=str,
)
def test_a_run_whose_configuration_was_tampered_with_is_refused(capsys, digits_run, tmp_path, change):
    content = json.loads((digits_run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, **change}))
    (tmp_path / "model.safetensors").write_bytes((digits_run / "model.safetensors").read_bytes())
    refused(capsys, "evaluate", tmp_path)


@pytest.mark.parametrize("arguments", [[], ["frob"], ["infer", "run", "--want", "image"], ["evaluate"], ["evaluate", "run", "--frob"]])
def test_commands_that_cannot_be_parsed_exit_with_code_2_and_show_their_usage(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: unn" in capsys.readouterr().err


def test_every_error_of_this_package_is_one_class():
    for error in (unn.DeclarationError, unn.ObservationError, unn.InferenceError, unn.DataError):
        assert issubclass(error, unn.UnnError) and issubclass(error, ValueError)
    assert isinstance(mlp()["X"], Variable)
