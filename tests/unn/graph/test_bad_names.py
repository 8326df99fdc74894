"""Bad names, patterns and references: the right error, what was wrong and what to do."""

import pytest
import torch
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st
from support.helpers import X, done_or_refused, mlp, named_mlp, says, unchanged

import unn
from factors import Cardinality, Clique, Depends, Implicit, Multilinear, SumOfProducts
from unn.graph.patterns import parse_pattern

# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "1x", "class", "a.b", "x-y", 5, None, ["X"]])
@pytest.mark.parametrize("kind", ["variable", "parameter", "constant"])
def test_names_must_be_identifiers(kind, name):
    g = unn.FactorGraph("g", n=2)
    rest = (unn.SquaredNorm(),) if kind == "variable" else ()
    unchanged(
        g, lambda: getattr(g, kind)(name, "n", *rest), match=says(kind, "Python identifier", repr(name))
    )


@pytest.mark.parametrize(
    "name", ["forward", "training", "double", "energy", "name", "sizes", "arrays", "_table"]
)
@pytest.mark.parametrize("kind", ["parameter", "constant"])
def test_names_of_module_attributes_are_refused_where_torch_would_clash(kind, name):
    g = unn.FactorGraph("g", n=2)
    unchanged(
        g, lambda: getattr(g, kind)(name, "n"), match=says(kind, repr(name), "attribute", "choose another")
    )


def test_variables_may_bear_names_of_module_attributes():
    g = unn.FactorGraph("g", n=2)
    a, b, c = (g.variable(name, "n", unn.SquaredNorm()) for name in ("forward", "weight", "name"))
    w = g.parameter("W", "n n")
    g.factor(Multilinear(a["i"], w["i j"], b["j"]))
    g.factor(Multilinear(b["i"], c["i"], name="energy"))
    out = unn.infer(g, {"forward": torch.ones(1, 2)}, iterations=2)
    torch.testing.assert_close(out.energy[-1], g.energy(out.values))
    torch.testing.assert_close(
        out["weight"], g.W.sum(0)[None] + unn.infer(g, {"forward": torch.ones(1, 2)})["name"]
    )


@pytest.mark.parametrize("taken", ["X", "W"])
@pytest.mark.parametrize("kind", ["variable", "parameter", "constant"])
def test_a_name_is_declared_once(kind, taken):
    g = mlp()
    rest = (unn.SquaredNorm(),) if kind == "variable" else ()
    unchanged(
        g,
        lambda: getattr(g, kind)(taken, "pixel", *rest),
        match=says(repr(taken), "in use", g.arrays[taken].kind, "choose another"),
    )


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
    unchanged(
        g,
        lambda: g.variable("X", "n", regularizer),
        match=says("variable 'X'", "regularizer", "SquaredNorm()"),
    )


def test_a_regularizer_needs_the_axis_that_it_normalises_over():
    g = unn.FactorGraph("g")
    unchanged(g, lambda: g.variable("X", "", unn.Entropy()), match=says("'X'", "no axes"))
    unchanged(
        g,
        lambda: g.variable("X", "row label", unn.Entropy(over="lable")),
        match=says("'X'", "'lable'", "Did you mean 'label'"),
    )
    unchanged(
        g, lambda: g.variable("X", "row |", unn.Entropy()), match=says("'X'", "node axis 'row'", "over=")
    )
    unchanged(
        g,
        lambda: g.variable("X", "row | label", unn.Entropy(over="row")),
        match=says("'X'", "node axis 'row'", "over="),
    )


def test_known_names_are_suggested_where_an_array_is_looked_up():
    g = mlp()
    g.variable("picture", "pixel", unn.SquaredNorm())
    with pytest.raises(unn.DeclarationError, match="Did you mean 'picture'"):
        g["pictur"]
    with pytest.raises(unn.DeclarationError, match="Did you mean 'picture'"):
        g.variable_named("pictur")
    with pytest.raises(unn.DeclarationError, match=says("'W'", "parameter", "not a variable")):
        g.variable_named("W")
    with pytest.raises(unn.ArgumentError, match="Did you mean 'picture'"):
        g.boundedness(given=["pictur"])
    with pytest.raises(unn.DeclarationError, match="unknown array 5"):
        g[5]


@pytest.mark.parametrize(
    ("error", "word", "arguments"),
    [
        (unn.ObservationError, "given", {"given": {"imag": X}}),
        (unn.InferenceError, "initial", {"initial": {"lable": "zero"}}),
        (unn.InferenceError, "order", {"order": ["lable", "hidden"]}),
        (
            unn.InferenceError,
            "order",
            {"order": [unn.Block("lable", torch.ones(3, dtype=torch.bool)), "hidden", "label"]},
        ),
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

    with pytest.raises(
        (unn.InferenceError, unn.ObservationError), match=says("unknown variable", repr(word), "Did you mean")
    ):
        build(**options)


def test_an_unrolled_network_refuses_an_unknown_given_beside_a_known_one_when_built():
    with pytest.raises(
        (unn.InferenceError, unn.ObservationError), match=says("'imag'", "Did you mean 'image'")
    ):
        unn.Unrolled(named_mlp(), ["image", "imag"], "label", order=["hidden", "label"])


def test_an_unrolled_network_takes_each_input_once():
    with pytest.raises(unn.UnnError, match="image"):
        unn.Unrolled(named_mlp(), ["image", "image"], "label")(X, 2 * X)


def test_looking_up_an_unknown_result_is_an_error_of_this_package():
    out = unn.infer(named_mlp(), {"image": X})
    with pytest.raises(unn.UnnError, match="Did you mean 'label'"):
        out["lable"]


# -- patterns and factors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "i j", "(i j) k"])
def test_a_pattern_has_one_dimension_for_each_axis(pattern):
    count = len(parse_pattern(pattern).dimensions)
    with pytest.raises(
        unn.DeclarationError, match=says(f"{count} dimensions", "variable 'X'", "1 axes (pixel)", "X['i']")
    ):
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


@pytest.mark.parametrize(
    "kind",
    [
        Multilinear,
        Depends,
        Clique,
        lambda *r: Implicit(torch.zeros_like, *r),
        lambda *r: Cardinality(*r, each=""),
        lambda *r: SumOfProducts(mlp()["X"]["i"], *r, within=0.1),
    ],
    ids=["Multilinear", "Depends", "Clique", "Implicit", "Cardinality", "SumOfProducts"],
)
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
    with pytest.raises(
        unn.DeclarationError, match=says("'Multilinear(X, H)'", "where='pix < hid'", "Did you mean 'pixel'")
    ):
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


@pytest.mark.parametrize("equals", [-1, 1.0, True, "1"])
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
    unchanged(
        empty,
        lambda: empty.factor(Multilinear(other["H"]["i"])),
        match=says("'Multilinear(H)'", "variable 'H'", "another graph"),
    )


def test_a_factor_is_added_once():
    g = mlp()
    unchanged(
        g,
        lambda: g.factor(g.factors["Multilinear(H, W, X)"]),
        match=says("'Multilinear(H, W, X)'", "added already"),
    )


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
