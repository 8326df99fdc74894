"""Frames: values as rows of numbers and back, what is observed, and what does not fit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import INF, NAN, says
from support.networks import EVERY_GRAPH, GRAPHS, SIZES, mixed, values_of_mixed

import unn
from factors import Clique
from unn.networks import Frame
from unn.networks.tokens import Frames, kinds

# -- values and rows -----------------------------------------------------------------------------------------


def test_kinds_are_those_of_the_regularizers():
    assert kinds(mixed()) == {
        "A": "real",
        "V": "real",
        "B": "binary",
        "K": "category",
        "Z": "category",
        "T": "real",
    }
    frame = Frame(mixed(), SIZES)
    assert [slot.channels for slot in frame.slots.values()] == [1, 6, 2, 4, 4, 1]
    assert [slot.node_shape for slot in frame.slots.values()] == [(3,), (3,), (3, 2), (3,), (), ()]
    assert frame.nodes == 3 + 3 + 6 + 3 + 1 + 1 and frame.numbers == 3 + 18 + 12 + 12 + 4 + 1
    assert repr(frame) == "Frame of graph 'mixed': 17 nodes, 50 numbers, {'m': 2}"


@pytest.mark.parametrize("regularizer", [unn.Ball(), unn.NonNegative(), unn.SquaredNorm()])
def test_features_that_are_not_on_a_simplex_are_real(regularizer):
    g = unn.FactorGraph("points", d=3)
    g.variable("y", "n | d", regularizer)
    assert kinds(g) == {"y": "real"}


@given(
    batch=st.integers(1, 4),
    n=st.integers(1, 4),
    m=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    double=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_values_come_back_from_rows_unchanged(batch, n, m, seed, double):
    frame = Frame(mixed(n), {"m": m})
    values = values_of_mixed(batch, n, m, seed, torch.float64 if double else torch.float32)
    rows = frame.flatten(values)
    assert rows.shape == (batch, frame.numbers)
    restored = frame.unflatten(rows)
    assert list(restored) == list(values)
    for name, value in values.items():
        assert restored[name].dtype == value.dtype and torch.equal(restored[name], value), name


def test_whole_numbers_and_truth_values_are_values_too():
    frame = Frame(mixed(), SIZES)
    values = values_of_mixed(2)
    mine = {**values, "B": values["B"].bool(), "K": values["K"].long(), "A": torch.arange(6).view(2, 3)}
    assert torch.equal(frame.flatten(mine), frame.flatten({**values, "A": torch.arange(6.0).view(2, 3)}))


def test_the_largest_of_the_numbers_of_a_choice_is_taken_for_it():
    frame = Frame(mixed(), SIZES)
    rows = torch.randn(5, frame.numbers, generator=torch.Generator().manual_seed(0))
    values = frame.unflatten(rows)
    K = rows[:, frame.slots["K"].numbers].view(5, 3, 4)
    B = rows[:, frame.slots["B"].numbers].view(5, 3, 2, 2)
    assert torch.equal(values["K"].argmax(2), K.argmax(2)) and torch.equal(
        values["K"].sum(2), torch.ones(5, 3)
    )
    assert torch.equal(values["B"], (B[..., 1] > B[..., 0]).float())


@EVERY_GRAPH
def test_nodes_lie_in_the_order_of_the_adjacency(name):
    make, sizes = GRAPHS[name]
    g = make()
    frame = Frame(g, sizes)
    names = [
        f"{v}[{','.join(map(str, at))}]" if s.node_shape else v
        for v, s in frame.slots.items()
        for at in np.ndindex(*s.node_shape)
    ]
    adjacency = g.adjacency(**sizes)
    assert names == adjacency.names() and frame.nodes == adjacency.count == len(names)
    for variable, slot in frame.slots.items():
        assert torch.equal(torch.arange(frame.nodes)[slot.nodes], adjacency.nodes(variable).flatten())
    # a number belongs to the node whose value it is a part of
    number = torch.arange(frame.numbers, dtype=torch.float64)[None]
    for slot in frame.slots.values():
        if slot.kind == "real":
            index = frame.unflatten(number)[slot.name][0].long()
            nodes = adjacency.nodes(slot.name)
            assert torch.equal(
                frame.node_of_number[index],
                nodes.reshape(*nodes.shape, *(1,) * (index.ndim - nodes.ndim)).expand_as(index),
            )


# -- observations --------------------------------------------------------------------------------------------


def test_whole_values_are_observed_at_all_nodes():
    frame = Frame(mixed(), SIZES)
    values = values_of_mixed(3)
    rows, seen = frame.observation(values, 3)
    assert seen.all() and torch.equal(rows, frame.flatten(values))
    rows, seen = frame.observation({"V": values["V"], "Z": values["Z"]}, 3)
    assert (
        seen.sum() == 3 * (3 + 1)
        and seen[:, frame.slots["V"].nodes].all()
        and seen[:, frame.slots["Z"].nodes].all()
    )
    numbers = seen[:, frame.node_of_number]
    assert torch.equal(rows, torch.where(numbers, frame.flatten(values), 0))


def test_nothing_given_is_nothing_observed():
    rows, seen = Frame(mixed(), SIZES).observation({}, 4)
    assert rows.shape == (4, 50) and not rows.any() and seen.shape == (4, 17) and not seen.any()


@given(
    seed=st.integers(0, 10_000),
    entries=st.booleans(),
    batch=st.integers(1, 3),
    name=st.sampled_from("AVBKZT"),
)
@settings(max_examples=60, deadline=None)
def test_partial_evidence_is_observed_at_its_nodes_and_other_entries_do_not_matter(
    seed, entries, batch, name
):
    frame = Frame(mixed(), SIZES)
    values = values_of_mixed(batch, seed=seed)
    slot = frame.slots[name]
    where = torch.rand(batch, *slot.node_shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    spread = where.reshape(*where.shape, *(1,) * (values[name].ndim - where.ndim)).expand_as(values[name])
    mask = spread if entries else where
    rows, seen = frame.observation({name: unn.Partial(values[name], mask)}, batch)
    expected = torch.zeros(batch, frame.nodes, dtype=torch.bool)
    expected[:, slot.nodes] = where.reshape(batch, -1)
    assert torch.equal(seen, expected)
    assert torch.equal(rows, torch.where(expected[:, frame.node_of_number], frame.flatten(values), 0))
    for nonsense in (NAN, INF, 7.0, -1.0):
        other = torch.where(spread, values[name], torch.tensor(nonsense))
        again, same = frame.observation({name: unn.Partial(other, mask)}, batch)
        assert torch.equal(again, rows) and torch.equal(same, seen)


def test_a_mask_over_the_first_axes_observes_whole_rows_and_whole_batch_elements():
    frame = Frame(mixed(), SIZES)
    B = values_of_mixed(2)["B"]
    _, seen = frame.observation(
        {"B": unn.Partial(B, torch.tensor([[True, False, True], [False, False, True]]))}, 2
    )
    assert seen[:, frame.slots["B"].nodes].view(2, 3, 2).tolist() == [
        [[True] * 2, [False] * 2, [True] * 2],
        [[False] * 2, [False] * 2, [True] * 2],
    ]
    _, seen = frame.observation({"B": unn.Partial(B, torch.tensor([True, False]))}, 2)
    assert seen[0, frame.slots["B"].nodes].all() and not seen[1].any()


def test_one_batch_element_is_repeated():
    frame = Frame(mixed(), SIZES)
    one, many = values_of_mixed(1, seed=1), values_of_mixed(4, seed=2)
    where = torch.tensor([[True, False, True]])
    rows, seen = frame.observation({"K": unn.Partial(one["K"], where), "V": one["V"], "A": many["A"]}, 4)
    for k in range(4):
        alone, here = frame.observation(
            {"K": unn.Partial(one["K"], where), "V": one["V"], "A": many["A"][k : k + 1]}, 1
        )
        assert torch.equal(rows[k], alone[0]) and torch.equal(seen[k], here[0])
    with pytest.raises(unn.ObservationError, match=says("'A'", "4 batch elements", "3 are to be sampled")):
        frame.observation({"A": many["A"]}, 3)


def test_observed_values_keep_their_bits_in_any_precision():
    frame = Frame(mixed(), SIZES)
    A = torch.tensor([[1 / 3, -0.0, 1e-300]], dtype=torch.float64)
    rows, _ = frame.observation({"A": A, "B": torch.ones(1, 3, 2)}, 2)
    assert rows.dtype == torch.float64 and torch.equal(rows[:, frame.slots["A"].numbers], A.expand(2, 3))
    assert str(rows[0, 1].item()) == "-0.0"


def bad_values():
    values = values_of_mixed(2)
    K = values["K"]
    yield "unknown", {"Va": values["V"]}, ["'mixed'", "no variable 'Va'", "Did you mean 'V'?"]
    yield "unknown, nothing alike", {"whatever": values["V"]}, ["'whatever'", "A, B, K, T, V, Z"]
    yield "axes", {"V": values["V"].flatten(2)}, ["'V'", "(batch, 3, 2, 3)", "(2, 3, 6)"]
    yield "no batch", {"V": values["V"][0]}, ["'V'", "(batch, 3, 2, 3)", "(3, 2, 3)"]
    yield "a number", {"V": torch.tensor(1.0)}, ["'V'", "(batch, 3, 2, 3)", "()"]
    yield "size", {"B": torch.zeros(2, 3, 3)}, ["'B'", "(batch, 3, 2)", "(2, 3, 3)"]
    yield "a list", {"A": [[0.0, 1.0, 2.0]]}, ["'A'", "list"]
    yield "NaN", {"A": torch.tensor([[0.0, NAN, 1.0]] * 2)}, ["'A'", "NaN"]
    yield "infinite", {"A": torch.tensor([[0.0, INF, 1.0]] * 2)}, ["'A'", "infinite"]
    yield "not binary", {"B": torch.full((2, 3, 2), 0.5)}, ["'B'", "binary", "0 or 1"]
    yield "binary, 2", {"B": torch.full((2, 3, 2), 2.0)}, ["'B'", "0 or 1"]
    yield "no option", {"K": torch.zeros(2, 3, 4)}, ["'K'", "4 options", "one-hot"]
    yield "two options", {"K": K + K.roll(1, 2)}, ["'K'", "one-hot"]
    yield "shares", {"K": torch.full((2, 3, 4), 0.25)}, ["'K'", "one-hot"]
    yield "another number beside the one", {"K": K - 1e-3 * K.roll(1, 2)}, ["'K'", "one-hot"]
    yield "categories by number", {"K": K.argmax(2).float()}, ["'K'", "(batch, 3, 4)", "(2, 3)"]
    yield "mask of numbers", {"A": unn.Partial(values["A"], torch.ones(2, 3))}, ["'A'", "mask", "boolean"]
    yield (
        "mask of another shape",
        {"A": unn.Partial(values["A"], torch.ones(2, 2, dtype=torch.bool))},
        ["'A'", "mask", "(2, 3)"],
    )
    yield (
        "mask of another batch",
        {"A": unn.Partial(values["A"], torch.ones(1, 3, dtype=torch.bool))},
        ["'A'", "mask"],
    )
    yield "mask without axes", {"A": unn.Partial(values["A"], torch.tensor(True))}, ["'A'", "mask"]
    yield "partial of a number", {"A": unn.Partial(torch.tensor(1.0), torch.tensor([True]))}, ["'A'"]
    yield (
        "partial NaN",
        {"A": unn.Partial(torch.full((2, 3), NAN), torch.ones(2, 3, dtype=torch.bool))},
        ["'A'", "NaN"],
    )
    half = torch.zeros(2, 3, 2, 3, dtype=torch.bool)
    half[:, 1, 0] = True
    yield "half a vector", {"V": unn.Partial(values["V"], half)}, ["'V'", "together"]
    yield "half a choice", {"K": unn.Partial(K, K.bool())}, ["'K'", "together"]
    yield (
        "batches that differ",
        {"A": values["A"], "T": torch.zeros(3)},
        ["3 batch elements", "2 are to be sampled"],
    )


@pytest.mark.parametrize(
    ("given", "words"), [pytest.param(given, words, id=name) for name, given, words in bad_values()]
)
def test_observations_that_do_not_fit_are_refused(given, words):
    with pytest.raises(unn.ObservationError, match=says(*words)):
        Frame(mixed(), SIZES).observation(given, 2)


def bad_samples():
    values = values_of_mixed(2)
    yield "missing", {name: x for name, x in values.items() if name not in "BT"}, ["'mixed'", "missing: B, T"]
    yield "unknown", {**values, "Bb": values["B"]}, ["'Bb'", "Did you mean 'B'?"]
    yield "batches", {**values, "A": torch.zeros(3, 3)}, ["batch", "2, 3"]
    yield "shape", {**values, "A": torch.zeros(2, 4)}, ["'A'", "(batch, 3)", "(2, 4)"]
    yield "a number", {**values, "T": torch.tensor(1.0)}, ["'T'", "(batch"]
    yield "a list", {**values, "A": [[0.0, 1.0, 2.0]] * 2}, ["'A'", "list"]
    yield "a float", {**values, "T": 1.0}, ["'T'", "float"]
    yield "NaN", {**values, "V": torch.full((2, 3, 2, 3), NAN)}, ["'V'", "NaN"]
    yield "category", {**values, "Z": torch.zeros(2, 4)}, ["'Z'", "one-hot"]


@pytest.mark.parametrize(
    ("values", "words"), [pytest.param(values, words, id=name) for name, values, words in bad_samples()]
)
def test_samples_that_do_not_fit_are_refused(values, words):
    with pytest.raises(unn.ObservationError, match=says(*words)):
        Frame(mixed(), SIZES).flatten(values)


def test_an_empty_batch_is_refused_by_the_name_of_the_variable():
    g = unn.FactorGraph("line", n=3)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Clique(x["i"]))
    model = unn.Diffusion(unn.Denoiser(g, width=8, heads=2, depth=1))
    with pytest.raises(unn.ObservationError, match="'x'.*empty batch"):
        model.sample({"x": torch.zeros(0, 3)}, 1)


def test_nodes_that_interact_with_none_are_named_once_where_the_frame_is_asked_for():
    g = unn.FactorGraph("apart", n=3)
    g.variable("X", "n", unn.SquaredNorm())
    frames = Frames(g)
    with pytest.warns(UserWarning, match="nodes of X interact with no other node") as caught:
        frame = frames.at()
    assert [warning.filename for warning in caught] == [__file__]
    # a warning would be an error
    assert frames.at() is frame
