"""Relations between the sizes of axes: honoured wherever sizes are found, and named where they would help."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Multilinear
from unn.graph.sizes import SizeRelation


def tagger(relation="step = word - 1"):
    """Words (word feature) and transitions between their labels (step label), related in size."""
    g = unn.FactorGraph("tagger", feature=2, label=3)
    X = g.variable("X", "word feature", unn.SquaredNorm())
    Y = g.variable("Y", "step | label", unn.Entropy())
    V = g.parameter("V", "label feature")
    g.factor(Multilinear(Y["i c"], V["c f"], X["i+1 f"], name="emission"))
    if relation:
        g.relate_sizes(relation)
    return g


@given(st.integers(-5, 5), st.integers(6, 12))
def test_each_size_follows_from_the_other(by, size):
    text = f"a = b {'-' if by < 0 else '+'} {abs(by)}" if by else "a = b"
    assert str(SizeRelation.parse(text)) == text
    for axis, other, expected in (("b", "a", size + by), ("a", "b", size - by)):
        g = unn.FactorGraph("two", **{axis: size})
        g.variable("A", "a", unn.SquaredNorm())
        g.variable("B", "b", unn.SquaredNorm())
        g.relate_sizes(text)
        assert g.size_table.static[g.size_table.root(other)] == expected


def test_parameters_appear_when_a_relation_gives_their_size_and_later_declarations_keep_it():
    g = unn.FactorGraph("later", word=5)
    g.variable("X", "word", unn.SquaredNorm())
    g.parameter("T", "step", init="ones")
    g.relate_sizes("step = word - 1")
    assert g.T.shape == (4,)
    # a value with sizes of its own makes the graph unify everything anew
    g.constant("c", "other", torch.ones(2))
    g.parameter("U", "step", init="ones")
    assert g.U.shape == (4,)


def test_inference_finds_the_related_size_and_adjacency_does():
    g = tagger()
    for words in (2, 5):
        assert unn.infer(g, {"X": torch.randn(3, words, 2)}, order=["Y"])["Y"].shape == (3, words - 1, 3)
    assert g.adjacency(word=4).shapes["Y"] == (3,)


def test_without_the_relation_the_error_names_it():
    with pytest.raises(
        unn.ObservationError, match=says("'step'", "g.relate_sizes('step = word - 1')", "'emission'")
    ):
        unn.infer(tagger(None), {"X": torch.randn(1, 4, 2)}, order=["Y"])


def test_values_that_break_a_relation_are_refused_by_both_axes():
    values = {"X": torch.randn(1, 4, 2), "Y": torch.full((1, 4, 3), 1 / 3)}
    with pytest.raises(unn.ObservationError, match=says("step = word - 1", "'step': 4", "'word'", "5")):
        tagger().energy(values)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 5), st.data())
def test_lengths_of_one_axis_give_those_of_the_other(words, data):
    g = tagger()
    torch.nn.init.normal_(g.V)
    lengths = data.draw(st.lists(st.integers(2, words), min_size=2, max_size=3))
    x = torch.randn(len(lengths), words, 2)
    out = unn.infer(g, {"X": x}, order=["Y"], lengths={"word": torch.tensor(lengths)})
    both = unn.infer(
        g, {"X": x}, order=["Y"], lengths={"word": torch.tensor(lengths), "step": torch.tensor(lengths) - 1}
    )
    torch.testing.assert_close(out["Y"], both["Y"])
    for k, length in enumerate(lengths):
        alone = unn.infer(g, {"X": x[k : k + 1, :length]}, order=["Y"])["Y"]
        torch.testing.assert_close(out["Y"][k : k + 1, : length - 1], alone)
        torch.testing.assert_close(out["Y"][k, length - 1 :], torch.zeros_like(out["Y"][k, length - 1 :]))


def test_lengths_that_break_a_relation_are_refused_by_both_axes():
    lengths = {"word": torch.tensor([3, 2]), "step": torch.tensor([2, 2])}
    with pytest.raises(unn.ObservationError, match=says("step = word - 1", "'step'", "'word'")):
        unn.infer(tagger(), {"X": torch.randn(2, 3, 2)}, order=["Y"], lengths=lengths)


@pytest.mark.parametrize("relate_first", [True, False])
def test_a_letter_that_ties_related_axes_is_refused_by_name(relate_first):
    g = tagger("step = word - 1" if relate_first else None)
    tie = Multilinear(g["Y"]["i c"], g["V"]["c f"], g["X"]["i f"], name="same")
    words = says("'step'", "'word'", "step = word - 1", "'i'", "'same'")
    if relate_first:
        with pytest.raises(unn.DeclarationError, match=words):
            g.factor(tie)
        assert "same" not in g.factors
        assert unn.infer(g, {"X": torch.randn(1, 4, 2)}, order=["Y"])["Y"].shape == (1, 3, 3)
    else:
        g.factor(tie)
        with pytest.raises(unn.DeclarationError, match=says("step = word - 1", "'i'", "'same'")):
            g.relate_sizes("step = word - 1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step = wrod - 1", ("unknown axis 'wrod'", "'word'")),
        ("step = 2 word", ("'step = 2 word'", "not of the form")),
        ("step", ("not of the form",)),
        (3, ("not of the form",)),
        ("word = word + 1", ("'word'", "both sides")),
        ("feature = label", ("'feature = label'", "(size 2)", "(size 3)")),
        ("feature = label + 1", ("'feature = label + 1'", "'feature'", "'label'")),
    ],
)
def test_wrong_relations_are_refused_and_leave_no_trace(text, words):
    g = tagger(None)
    before = g.explain()
    with pytest.raises(unn.DeclarationError, match=says(*words)):
        g.relate_sizes(text)
    assert g.explain() == before


def test_explain_says_which_axes_are_one_and_how_sizes_follow():
    def sizes(g):
        text = " ".join(g.explain().split())
        return text[text.index("Sizes") : text.index("Energy")] if "Sizes" in text else ""

    assert "step = word - 1: as declared" in sizes(tagger())
    loose = sizes(tagger(None))
    assert "letter 'i' of factor 'emission'" in loose
    assert "relate_sizes('step = word - 1')" in loose
    tied = tagger(None)
    tied.factor(Multilinear(tied["Y"]["i c"], tied["V"]["c f"], tied["X"]["i f"], name="same"))
    assert "word = step: one axis, by letter 'i' of factor 'same'" in sizes(tied)
    assert "but they are one axis" in sizes(tied)
    plain = unn.FactorGraph("plain", n=2)
    s = plain.variable("s", "n", unn.SignedEntropy())
    plain.factor(Multilinear(s["i"], s["i+1"]))
    assert sizes(plain) == ""


def test_an_axis_tied_under_another_name_says_why_where_its_size_is_wrong():
    g = tagger(None)
    g.factor(Multilinear(g["Y"]["i c"], g["V"]["c f"], g["X"]["i f"], name="same"))
    values = {"X": torch.randn(1, 4, 2), "Y": torch.full((1, 3, 3), 1 / 3)}
    with pytest.raises(
        unn.ObservationError, match=says("'step'", "'word'", "'same'", "g.relate_sizes('step = word - 1')")
    ):
        g.energy(values)
