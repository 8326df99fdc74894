"""The small language of references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unn
from unn.graph.patterns import Dimension, Pattern, parse_pattern

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,3}", fullmatch=True)
SINGLES = st.builds(lambda name, shift: Dimension((name,), shift), NAMES, st.integers(-12, 12))
GROUPS = st.lists(NAMES, min_size=2, max_size=4, unique=True).map(lambda names: Dimension(tuple(names)))
PATTERNS = st.lists(st.one_of(SINGLES, GROUPS), max_size=5).map(lambda dimensions: Pattern(tuple(dimensions)))
GAP = st.sampled_from(["", " ", "  ", "\t"])
SPACE = st.sampled_from([" ", "  ", "\t "])


@given(PATTERNS)
def test_printing_and_parsing_is_the_identity(pattern):
    assert parse_pattern(str(pattern)) == pattern
    assert str(parse_pattern(str(pattern))) == str(pattern)


@given(PATTERNS, st.data())
def test_spaces_do_not_matter(pattern, data):
    def written(dim):
        if len(dim.letters) > 1:
            inner = data.draw(SPACE).join(dim.letters)
            return f"({data.draw(GAP)}{inner}{data.draw(GAP)})"
        sign = "-" if dim.shift < 0 else "+"
        return dim.letters[0] + (
            f"{data.draw(GAP)}{sign}{data.draw(GAP)}{abs(dim.shift)}" if dim.shift else ""
        )

    text = data.draw(GAP) + "".join(written(dim) + data.draw(SPACE) for dim in pattern.dimensions)
    assert parse_pattern(text) == pattern


@given(PATTERNS)
def test_letters_are_those_of_all_dimensions_in_order_each_once(pattern):
    flat = [letter for dim in pattern.dimensions for letter in dim.letters]
    assert list(pattern.letters) == sorted(set(flat), key=flat.index)


@given(PATTERNS)
def test_plain_means_one_unshifted_letter_of_its_own_for_each_axis(pattern):
    words = str(pattern).split()
    assert pattern.plain == (len(set(words)) == len(words) and all(word.isidentifier() for word in words))


@pytest.mark.parametrize(
    ("text", "dimensions"),
    [
        ("", ()),
        ("   ", ()),
        ("i", (Dimension(("i",)),)),
        ("i+1 j-2", (Dimension(("i",), 1), Dimension(("j",), -2))),
        ("i + 10", (Dimension(("i",), 10),)),
        ("i+0", (Dimension(("i",)),)),
        ("(R r) c", (Dimension(("R", "r")), Dimension(("c",)))),
        ("(row)", (Dimension(("row",)),)),
        ("i i", (Dimension(("i",)), Dimension(("i",)))),
        ("e2 _x", (Dimension(("e2",)), Dimension(("_x",)))),
        ("(a b)(c d)", (Dimension(("a", "b")), Dimension(("c", "d")))),
    ],
)
def test_examples_mean_what_they_look_like(text, dimensions):
    assert parse_pattern(text).dimensions == dimensions


@pytest.mark.parametrize(
    ("text", "character", "words"),
    [
        ("i ? j", 3, "expected a letter"),
        ("i    ?", 6, "expected a letter"),
        ("  ?", 3, "expected a letter"),
        ("1", 1, "expected a letter"),
        ("i j+", 4, "expected a letter"),
        ("i +x", 3, "expected a letter"),
        ("i.j", 2, "expected a letter"),
        ("(a b", 5, "not closed"),
        ("a)", 2, "unopened"),
        ("a ()", 4, "empty"),
        ("(a  (b c))", 5, "nested"),
        ("(a  b+1)", 5, "inside a group cannot be shifted"),
        ("(a b)+1", 6, "expected a letter"),
    ],
)
def test_errors_point_at_the_character_that_fits_no_rule(text, character, words):
    with pytest.raises(unn.DeclarationError) as caught:
        parse_pattern(text)
    assert repr(text) in str(caught.value)
    assert f"at character {character}:" in str(caught.value)
    assert words in str(caught.value)


def test_a_group_cannot_repeat_a_letter():
    with pytest.raises(unn.DeclarationError, match=r"'\(r r\)' repeats a letter"):
        parse_pattern("x (r r)")


def test_a_pattern_must_have_one_dimension_for_each_axis_and_be_text():
    g = unn.FactorGraph("axes")
    X = g.variable("X", "n d", unn.SquaredNorm())
    assert str(X["(i j) k"]) == "X[(i j) k]"
    assert X["(i j) k"].letters == ("i", "j", "k")
    with pytest.raises(unn.DeclarationError, match="has 1 dimensions, but variable 'X' has 2 axes"):
        X["i"]
    with pytest.raises(unn.DeclarationError, match="has 3 dimensions"):
        X["i j k"]
    for other in (0, slice(None), ("i", "j")):
        with pytest.raises(unn.DeclarationError, match="pattern in quotes"):
            X[other]
