"""A denoiser over a graph: what it reads and writes, what it is equivariant under, how far its information
goes, what it refuses."""

import warnings
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import INF, NAN, says
from support.problem_graphs import circuit, factorisation, sorting, sudoku
from support.structures import declarations

import unn
from factors import Clique, Depends
from unn.networks import Denoiser, Frame
from unn.networks.denoiser import SELF_CONDITIONINGS
from unn.networks.tokens import kinds
from unn.ops.attention import terms as terms_module

STRUCTURES = ["graph", "dense", "directed", "random"]
EMBEDDINGS = ["exchangeable", "array", "independent"]

GRAPHS = {
    "factorisation": (lambda: factorisation("binary", True), {"i": 3, "j": 4, "k": 2}),
    "factorisation without products": (
        lambda: factorisation("binary", False),
        {"i": 2, "j": 4, "k": 3},
    ),
    "factorisation of unknown rank": (
        lambda: factorisation("hierarchical", True, 3),
        {"i": 3, "j": 2},
    ),
    "inversion": (lambda: factorisation("inversion", True), {"i": 3, "j": 3, "k": 3}),
    "sorting": (lambda: sorting(4, True, "chain"), {}),
    "sorting without products": (lambda: sorting(4, False, "none"), {}),
    "sorting of any length": (lambda: sorting(None, True, "clique"), {"i": 4, "j": 4}),
    "sudoku": (lambda: sudoku(2, 3), {}),
    "circuit": (lambda: circuit(3, True), {}),
}
EVERY_GRAPH = pytest.mark.parametrize("name", GRAPHS)


def mixed(n=3):
    """One variable of every kind, with and without axes: real, real vectors, binary, categories, one
    category, one number."""
    g = unn.FactorGraph("mixed", **{} if n is None else {"n": n}, d=2, c=4, e=3)
    A, V = g.variable("A", "n", unn.SquaredNorm()), g.variable("V", "n | d e", unn.SquaredNorm())
    B, K = g.variable("B", "n m", unn.BinaryEntropy()), g.variable("K", "n | c", unn.Entropy())
    Z, T = g.variable("Z", "c", unn.Entropy()), g.variable("T", "", unn.SquaredNorm())
    g.factor(Depends(A["i"], V["i p q"], B["i j"], K["i v"], Z["w"], T[""]))
    return g


SIZES = {"m": 2}


def values_of_mixed(batch, n=3, m=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)

    def category(*shape):
        return torch.nn.functional.one_hot(torch.randint(4, (batch, *shape), generator=generator), 4).to(
            dtype
        )

    return {
        "A": torch.randn(batch, n, generator=generator, dtype=dtype),
        "V": torch.randn(batch, n, 2, 3, generator=generator, dtype=dtype),
        "B": torch.randint(2, (batch, n, m), generator=generator).to(dtype),
        "K": category(n),
        "Z": category(),
        "T": torch.randn(batch, generator=generator, dtype=dtype),
    }


def randomise(module, seed=0):
    """Weights of a network in which nothing is small, so that a leak or a broken symmetry is seen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            scale = p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return module


def network(graph, seed=0, **options):
    return randomise(
        Denoiser(graph, **{"width": 16, "depth": 2, "heads": 2, **options}).double(), seed
    ).eval()


def named(name, **options):
    """A network for one of the graphs above, its frame, and an input."""
    make, sizes = GRAPHS[name]
    net = network(make(), sizes=sizes, **options)
    frame = net.frame(**sizes)
    return net, frame, inputs(frame)


def output(name, **options):
    net, frame, given = named(name, **options)
    return net(*given, frame)


def inputs(frame, batch=2, seed=0):
    """Rows, levels, and what is observed."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch, frame.numbers, generator=generator, dtype=torch.float64)
    level = torch.randn(batch, generator=generator, dtype=torch.float64)
    return rows, level, torch.rand(batch, frame.nodes, generator=generator) < 0.4


def moved_numbers(frame, moved):
    """Where each number goes when node k becomes ``moved[k]``."""
    channels = torch.bincount(frame.node_of_number, minlength=frame.nodes)
    start = channels.cumsum(0) - channels
    within = torch.arange(frame.numbers) - start[frame.node_of_number]
    return start[moved[frame.node_of_number]] + within


def change_under(net, frame, given, moved):
    """How far the output of moved inputs is from the moved output, at most."""
    rows, level, observed = given
    numbers = moved_numbers(frame, moved)
    there, seen = torch.empty_like(rows), torch.empty_like(observed)
    there[:, numbers], seen[:, moved] = rows, observed
    with torch.no_grad():
        return float(
            (net(there, level, seen, frame)[:, numbers] - net(rows, level, observed, frame)).abs().max()
        )


def without_fixed_points(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(size, generator=generator)
        if not (order == torch.arange(size)).any():
            return order


def symmetry(frame, name):
    return next(s for s in frame.symmetries if s.name == name)


@contextmanager
def lonely_nodes():
    """Nodes that nothing interacts with are meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


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
    found = frame.unflatten(rows)
    assert list(found) == list(values)
    for name, value in values.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def test_whole_numbers_and_truth_values_are_values_too():
    frame = Frame(mixed(), SIZES)
    values = values_of_mixed(2)
    mine = {**values, "B": values["B"].bool(), "K": values["K"].long(), "A": torch.arange(6).view(2, 3)}
    assert torch.equal(frame.flatten(mine), frame.flatten({**values, "A": torch.arange(6.0).view(2, 3)}))


def test_the_largest_of_the_numbers_of_a_choice_is_taken_for_it():
    frame = Frame(mixed(), SIZES)
    rows = torch.randn(5, frame.numbers, generator=torch.Generator().manual_seed(0))
    found = frame.unflatten(rows)
    K = rows[:, frame.slots["K"].numbers].view(5, 3, 4)
    B = rows[:, frame.slots["B"].numbers].view(5, 3, 2, 2)
    assert torch.equal(found["K"].argmax(2), K.argmax(2)) and torch.equal(found["K"].sum(2), torch.ones(5, 3))
    assert torch.equal(found["B"], (B[..., 1] > B[..., 0]).float())


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


# -- symmetries ----------------------------------------------------------------------------------------------


@EVERY_GRAPH
@pytest.mark.parametrize("structure", ["graph", "dense", "directed"])
def test_permuting_exchangeable_indices_permutes_the_output(name, structure):
    net, frame, given = named(name, structure=structure)
    assert frame.symmetries or name == "circuit"
    for s in frame.symmetries:
        for seed in range(2):
            order = (
                torch.randperm(s.size, generator=torch.Generator().manual_seed(seed))
                if seed
                else without_fixed_points(s.size)
            )
            assert change_under(net, frame, given, s.permutation(order)) < 1e-9, s


@given(g=declarations(), seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_output_for_any_declaration_is_permuted_as_the_symmetries_say(g, seed):
    with lonely_nodes():
        net = network(g, width=8)
        frame = net.frame()
    given = inputs(frame, seed=seed)
    for s in frame.symmetries:
        order = torch.randperm(s.size, generator=torch.Generator().manual_seed(seed))
        assert change_under(net, frame, given, s.permutation(order)) < 1e-9, s


@pytest.mark.parametrize(
    "sizes", [{"i": 1, "j": 5, "k": 2}, {"i": 6, "j": 2, "k": 1}, {"i": 4, "j": 4, "k": 4}]
)
def test_one_network_is_equivariant_at_every_size(sizes):
    net = network(factorisation("binary", True))
    frame = net.frame(**sizes)
    assert len(frame.symmetries) == sum(size > 1 for size in sizes.values())
    for s in frame.symmetries:
        assert change_under(net, frame, inputs(frame), s.permutation(without_fixed_points(s.size))) < 1e-9


@pytest.mark.parametrize("shared", [["X.col[1]"], ["X.row[0]", "X.col[1]"], []])
def test_sudoku_is_equivariant_exactly_under_the_symmetries_whose_embeddings_are_shared(shared):
    net, frame, given = named("sudoku", shared=shared)
    assert [s.name for s in frame.symmetries] == ["X.row[0]", "X.row[1]", "X.col[0]", "X.col[1]"]
    for s in frame.symmetries:
        change = change_under(net, frame, given, s.permutation(without_fixed_points(s.size)))
        assert change < 1e-9 if s.name in shared else change > 1e-3, s


@EVERY_GRAPH
@pytest.mark.parametrize("embedding", ["array", "independent"])
def test_embeddings_that_are_not_shared_break_the_symmetry(name, embedding):
    net, frame, given = named(name, embedding=embedding)
    for s in frame.symmetries:
        assert change_under(net, frame, given, s.permutation(without_fixed_points(s.size))) > 1e-3, s


@pytest.mark.parametrize(
    ("name", "which", "variables"),
    [
        ("factorisation", "A.i C.i E.i", {"A", "E"}), ("factorisation", "A.k R.k C.k", {"R", "C"}),
        ("sorting", "u.j P.j C.j", {"u"}), ("sorting", "u.j P.j C.j", {"P", "C"}),
    ],
)  # fmt: skip
def test_permuting_only_some_of_the_arrays_of_an_index_is_no_symmetry(name, which, variables):
    net, frame, given = named(name)
    s = symmetry(frame, which)
    half = replace(s, parts=tuple(part for part in s.parts if part.variable in variables))
    assert change_under(net, frame, given, half.permutation(without_fixed_points(s.size))) > 1e-3


@pytest.mark.parametrize(
    ("name", "variable", "cycle"),
    [("sorting", "s", (0, 1)), ("sudoku", "X", (0, 7)), ("circuit", "L0", (1, 2))],
)
def test_exchanging_two_nodes_that_are_not_alike_is_no_symmetry(name, variable, cycle):
    net, frame, given = named(name)
    moved = torch.arange(frame.nodes)
    a, b = (frame.adjacency.starts[variable] + k for k in cycle)
    moved[a], moved[b] = b, a
    assert change_under(net, frame, given, moved) > 1e-3


def test_attention_at_random_places_breaks_the_symmetry():
    net, frame, given = named("factorisation", structure="random")
    assert all(
        change_under(net, frame, given, s.permutation(without_fixed_points(s.size))) > 1e-3
        for s in frame.symmetries
    )


def test_observations_move_with_their_nodes():
    net, frame, (rows, level, observed) = named("factorisation")
    s = frame.symmetries[0]
    moved = s.permutation(without_fixed_points(s.size))
    numbers = moved_numbers(frame, moved)
    there = torch.empty_like(rows)
    there[:, numbers] = rows
    assert (
        net(there, level, observed, frame)[:, numbers] - net(rows, level, observed, frame)
    ).abs().max() > 1e-3


# -- how far information goes --------------------------------------------------------------------------------


def dense_mask(frame, structure):
    """Who attends to whom in one layer."""
    if structure == "dense":
        return torch.ones(frame.nodes, frame.nodes, dtype=torch.bool)
    if structure == "directed":
        return frame.adjacency.directed().dense()
    return frame.masks(structure).adjacency.dense() if structure == "random" else frame.adjacency.dense()


def reached(frame, structure, depth):
    """Which nodes (rows) know of which (columns) after some layers."""
    mask = dense_mask(frame, structure).double()
    return torch.linalg.matrix_power(mask, depth) > 0


def changed_nodes(net, frame, given, node, observed_too=False):
    """The nodes whose outputs change at all when the numbers at one node do."""
    rows, level, observed = given
    other, seen = rows.clone(), observed.clone()
    other[:, frame.node_of_number == node] += 1.5
    if observed_too:
        seen[:, node] = ~seen[:, node]
    with torch.no_grad():
        change = (net(other, level, seen, frame) != net(rows, level, observed, frame)).any(0)
    found = torch.zeros(frame.nodes, dtype=torch.bool)
    return found.index_put((frame.node_of_number[change],), torch.tensor(True))


@EVERY_GRAPH
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("structure", ["graph", "directed"])
def test_information_reaches_exactly_the_nodes_within_as_many_steps_as_layers(name, depth, structure):
    net, frame, given = named(name, depth=depth, structure=structure)
    expected = reached(frame, structure, depth)
    for node in range(0, frame.nodes, max(1, frame.nodes // 12)):
        for observed_too in (False, True):
            assert torch.equal(changed_nodes(net, frame, given, node, observed_too), expected[:, node]), (
                frame.adjacency.names()[node]
            )


@pytest.mark.parametrize("kernel", ["dense", "packed", "relational", "sparse"])
def test_no_kernel_lets_information_pass_by_the_mask(kernel):
    for name in ("sorting", "sudoku"):
        with patch.object(terms_module, "_FEW", 1):
            net, frame, given = named(name, depth=1, kernel=kernel)
            for node in (0, frame.nodes // 2, frame.nodes - 1):
                assert torch.equal(changed_nodes(net, frame, given, node), frame.adjacency.dense()[:, node])


@given(
    g=declarations(),
    depth=st.integers(1, 3),
    structure=st.sampled_from(["graph", "random"]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=15, deadline=None)
def test_in_any_declaration_nothing_passes_by_the_mask(g, depth, structure, seed):
    with lonely_nodes():
        net = network(g, width=8, depth=depth, structure=structure)
        frame = net.frame()
    node = seed % frame.nodes
    mask = torch.zeros(frame.nodes, frame.nodes, dtype=torch.bool)
    # who attends to whom, seen from outside: one layer, one node after another
    one = network(g, width=8, depth=1, structure=structure)
    with lonely_nodes():
        one.frame()
    for other in range(frame.nodes):
        mask[:, other] = changed_nodes(one, one.frame(), inputs(frame, seed=seed), other)
    if structure == "graph":
        assert torch.equal(mask, g.adjacency().dense())
    else:
        assert torch.equal(mask, mask.T) and mask.sum() == len(g.adjacency().rows)
    far = torch.linalg.matrix_power(mask.double(), depth) == 0
    assert not (changed_nodes(net, frame, inputs(frame, seed=seed), node) & far[:, node]).any()


def test_a_global_token_carries_information_past_the_mask():
    for name in ("sorting", "sudoku", "circuit"):
        net, frame, given = named(name, depth=1, global_token=True)
        assert not frame.adjacency.dense().all()
        assert all(changed_nodes(net, frame, given, node).all() for node in (0, frame.nodes - 1))


def test_a_dense_mask_carries_information_everywhere_in_one_layer():
    net, frame, given = named("circuit", depth=1, structure="dense")
    assert all(changed_nodes(net, frame, given, node).all() for node in range(frame.nodes))


def test_one_batch_element_knows_nothing_of_another():
    net, frame, (rows, level, observed) = named("sorting")
    other = rows.clone()
    other[1] += 1
    with torch.no_grad():
        a, b = net(rows, level, observed, frame), net(other, level, observed, frame)
    assert torch.equal(a[0], b[0]) and (a[1] != b[1]).all()


@pytest.mark.parametrize("name", ["factorisation", "sorting", "sudoku", "circuit"])
def test_left_to_itself_it_is_as_deep_as_information_needs(name):
    make, sizes = GRAPHS[name]
    g = make()
    net = Denoiser(g, width=8, heads=2, sizes=sizes)
    assert len(net.blocks) == max(2, g.depth(**sizes))
    randomise(net.double())
    frame = net.frame(**sizes)
    assert all(changed_nodes(net, frame, inputs(frame), node).all() for node in (0, frame.nodes - 1))


def test_it_has_two_layers_at_least():
    g = unn.FactorGraph("clique", n=3)
    g.factor(Clique(g.variable("X", "n", unn.SquaredNorm())["i"]))
    assert g.depth() == 1 and len(Denoiser(g, width=8, heads=2).blocks) == 2


# -- all options run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("global_token", [False, True])
def test_all_structures_and_embeddings_run(structure, embedding, global_token):
    for name in ("factorisation of unknown rank", "sorting of any length", "sudoku", "circuit"):
        net, frame, given = named(
            name, structure=structure, embedding=embedding, global_token=global_token, width=8
        )
        out = net(*given, frame)
        assert out.shape == given[0].shape and out.isfinite().all() and out.std() > 1e-3


def test_all_kinds_of_variables_run_at_all_sizes():
    net = network(mixed(None))
    for n, m in ((1, 1), (2, 3), (5, 2), (2, 3)):
        frame = net.frame(n=n, m=m)
        out = net(*inputs(frame, 3), frame)
        assert out.shape == (3, frame.numbers) and out.isfinite().all()
    with lonely_nodes():
        empty = net.frame(n=0, m=2)
    assert empty.nodes == 2 and net(*inputs(empty, 3), empty).shape == (3, 5)


@pytest.mark.parametrize("embedding", ["exchangeable", "array"])
def test_one_network_runs_at_several_sizes_and_keeps_no_state_of_them(embedding):
    net = network(factorisation("binary", True), embedding=embedding)
    first = {"i": 3, "j": 4, "k": 2}
    before = net(*inputs(net.frame(**first)), net.frame(**first))
    for sizes in ({"i": 5, "j": 2, "k": 3}, {"i": 1, "j": 1, "k": 1}, {"i": 7, "j": 6, "k": 5}):
        frame = net.frame(**sizes)
        assert frame is net.frame(**dict(reversed(sizes.items())))
        assert net(*inputs(frame), frame).shape == (2, frame.numbers)
    again = network(factorisation("binary", True), embedding=embedding)
    assert torch.equal(net(*inputs(net.frame(**first)), net.frame(**first)), before)
    assert torch.equal(again(*inputs(again.frame(**first)), again.frame(**first)), before)


def test_embeddings_of_each_node_are_for_one_size():
    g = factorisation("binary", True)
    net = network(g, embedding="independent", sizes={"i": 3, "j": 4, "k": 2})
    with pytest.raises(
        unn.DeclarationError, match=says("50 independent embeddings", "'i': 2", "array", "exchangeable")
    ):
        net(*inputs(net.frame(i=2, j=4, k=2)), net.frame(i=2, j=4, k=2))
    with pytest.raises(unn.DeclarationError, match=says("size", "axis")):
        Denoiser(g, embedding="independent")
    with pytest.raises(unn.DeclarationError, match=says("size", "axis")):
        Denoiser(g, depth=None)


def test_an_index_that_is_shared_may_have_one_value():
    g = factorisation("binary", True)
    name = next(s.name for s in g.symmetries(i=3, j=4, k=2) if "A.i" in s.name)
    net = network(g, shared=[name])
    for i in (3, 1):
        frame = net.frame(i=i, j=4, k=2)
        assert net(*inputs(frame), frame).shape == (2, frame.numbers)


def test_naming_a_symmetry_twice_changes_nothing():
    once, frame, given = named("sudoku", shared=["X.col[1]"])
    assert torch.equal(output("sudoku", shared=["X.col[1]", "X.col[1]"]), once(*given, frame))


@pytest.mark.parametrize("name", ["factorisation", "sorting", "sudoku", "circuit"])
def test_all_kernels_give_the_same_numbers_through_the_whole_network(name):
    found = {}
    for kernel in ("dense", "packed", "relational", "sparse", "auto"):
        with patch.object(terms_module, "_FEW", 1 if kernel == "relational" else terms_module._FEW):
            net, frame, (rows, level, observed) = named(name, kernel=kernel, depth=3)
            rows.requires_grad_()
            out = net(rows, level, observed, frame)
            found[kernel] = (
                out.detach(),
                *torch.autograd.grad(out.square().sum(), [rows, net.blocks[0].query_key.weight]),
            )
    for kernel, numbers in found.items():
        for a, b in zip(numbers, found["dense"], strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=kernel)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("structure", ["graph", "dense"])
@pytest.mark.parametrize("self_conditioning", SELF_CONDITIONINGS)
def test_every_parameter_has_a_gradient_those_of_self_conditioning_if_it_has_a_state(
    embedding, structure, self_conditioning
):
    net = network(
        mixed(),
        embedding=embedding,
        structure=structure,
        self_conditioning=self_conditioning,
        global_token=True,
        sizes=SIZES,
    )
    frame = net.frame(**SIZES)
    rows, level, _ = inputs(frame)
    some = (torch.arange(frame.nodes) % 2 == 0).expand(2, -1)
    memories = memories_of(net, frame)
    for memory in (None, *memories):
        net.zero_grad()
        net(rows, level, some, frame, memory).square().sum().backward()
        unused = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
        assert all(name.startswith("previous.") for name in unused)
        assert bool(unused) == (memory is None and bool(memories))


def memories_of(net, frame):
    """What can be fed back to a network."""
    shape = {"tokens": (2, frame.nodes, net.width), "estimate": (2, frame.numbers)}.get(net.self_conditioning)
    return (
        []
        if shape is None
        else [torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)]
    )


@pytest.mark.parametrize("self_conditioning", ["tokens", "estimate"])
def test_self_conditioning_starts_without_influence_and_zeros_never_have_one(self_conditioning):
    torch.manual_seed(0)
    net = Denoiser(mixed(), width=8, heads=2, depth=2, self_conditioning=self_conditioning).double()
    frame = net.frame(**SIZES)
    rows, level, observed = inputs(frame)
    (memory,) = memories_of(net, frame)
    assert torch.equal(net(rows, level, observed, frame, memory), net(rows, level, observed, frame))
    randomise(net)
    without = net(rows, level, observed, frame)
    assert (net(rows, level, observed, frame, memory) - without).abs().min(1).values.max() > 1e-6
    assert torch.equal(net(rows, level, observed, frame, torch.zeros_like(memory)), without)


def test_without_self_conditioning_nothing_can_be_fed_back():
    net, frame, given = named("factorisation")
    with pytest.raises(unn.DeclarationError, match="no weights for what is fed back"):
        net(*given, frame, given[0])


def test_the_level_and_the_observation_mask_matter_at_every_node():
    net, frame, (rows, level, observed) = named("factorisation")
    out = net(rows, level, observed, frame)
    assert ((net(rows, level + 0.3, observed, frame) - out).abs() > 1e-9).all()
    assert ((net(rows, level, ~observed, frame) - out).abs() > 1e-9).all()


def test_weights_are_functions_of_the_seed():
    def made(seed):
        torch.manual_seed(seed)
        return Denoiser(sorting(3, True, "chain"), width=8, heads=2)

    a, b, c = made(1), made(1), made(2)
    given = inputs(a.frame())
    given = given[0].float(), given[1].float(), given[2]
    assert torch.equal(a(*given, a.frame()), b(*given, b.frame())) and not torch.equal(
        a(*given, a.frame()), c(*given, c.frame())
    )


def test_dropout_is_for_training_alone():
    net, frame, given = named("sorting", dropout=0.5)
    assert torch.equal(net(*given, frame), net(*given, frame))
    net.train()
    torch.manual_seed(0)
    assert not torch.equal(net(*given, frame), net(*given, frame))


def test_weights_are_loaded_whatever_sizes_were_seen():
    a = network(factorisation("binary", True), seed=1)
    b = network(factorisation("binary", True), seed=2)
    frame = a.frame(i=2, j=3, k=2)
    expected = a(*inputs(frame), frame)
    b(*inputs(b.frame(i=4, j=3, k=2)), b.frame(i=4, j=3, k=2))
    b.load_state_dict(a.state_dict())
    assert torch.equal(b(*inputs(frame), b.frame(i=2, j=3, k=2)), expected)


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embedding": "exchangable"}, ["unknown embedding 'exchangable'", "Did you mean 'exchangeable'?"]),
        ({"embedding": "none"}, ["unknown embedding 'none'", "independent"]),
        ({"structure": "directd"}, ["unknown structure 'directd'", "Did you mean 'directed'?"]),
        ({"self_conditioning": "token"}, ["unknown self_conditioning 'token'", "Did you mean 'tokens'?"]),
        ({"self_conditioning": True}, ["unknown self_conditioning True", "tokens"]),
        ({"width": 0}, ["width", "0"]),
        ({"width": 8.0}, ["width", "8.0"]),
        ({"width": True}, ["width", "True"]),
        ({"width": -4}, ["width", "-4"]),
        ({"heads": 0}, ["heads", "0"]),
        ({"heads": 3}, ["width 16", "3 heads"]),
        ({"heads": 32}, ["width 16", "32 heads"]),
        ({"width": 9, "heads": 3}, ["even", "9"]),
        ({"depth": 0}, ["depth", "0"]),
        ({"depth": 1.5}, ["depth", "1.5"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
        ({"dropout": -0.1}, ["dropout", "-0.1"]),
        ({"dropout": NAN}, ["dropout", "nan"]),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(unn.DeclarationError, match=says(*words)):
        Denoiser(sudoku(2, 2), **{"width": 16, "heads": 2, **options})


def test_unknown_symmetries_are_refused():
    with pytest.raises(unn.DeclarationError, match=says("'sudoku'", "'X.col[2]'", "Did you mean", "X.col[")):
        output("sudoku", shared=["X.col[1]", "X.col[2]"])
    with pytest.raises(unn.DeclarationError, match=says("'sorting'", "'s.i'", "u.j P.j C.j")):
        output("sorting", shared=["s.i"])


def test_unknown_kernels_are_refused():
    with pytest.raises(unn.UnnError, match=says("unknown kernel 'relationl'", "Did you mean 'relational'?")):
        output("sudoku", kernel="relationl")


def test_a_graph_without_variables_is_refused():
    with pytest.raises(unn.DeclarationError, match=says("'nothing'", "no variables", "nothing to sample")):
        Denoiser(unn.FactorGraph("nothing"))


def test_features_need_a_static_size():
    g = unn.FactorGraph("open", n=2)
    X = g.variable("X", "n | d", unn.SquaredNorm())
    g.factor(Clique(X["i p"]))
    with pytest.raises(unn.DeclarationError, match=says("'X'", "feature axis 'd'", "static", "d=...")):
        Denoiser(g, sizes={"d": 3})
    g = unn.FactorGraph("choices", n=2)
    K = g.variable("K", "n option", unn.Entropy())
    g.factor(Clique(K["i v"]))
    with pytest.raises(unn.DeclarationError, match=says("'K'", "'option'", "static")):
        Denoiser(g, sizes={"option": 3})


def test_nodes_that_nothing_interacts_with_are_pointed_out():
    g = unn.FactorGraph("lonely", n=3)
    X, _, Z = (g.variable(name, "n", unn.SquaredNorm()) for name in "XYZ")
    g.factor(Clique(X["i"]))
    with pytest.warns(UserWarning, match=says("'lonely'", "Y, Z", "no other node", "independent")):
        Frame(g, {})
    # one node of a variable is enough
    g.factor(Depends(g["Y"]["i"], X["i"]))
    g.factor(Clique(Z["t+1"], X["t"], each="t"))
    with pytest.warns(UserWarning, match=says("nodes of Z interact")):
        Frame(g, {})


def test_a_single_node_is_not_pointed_out():
    g = unn.FactorGraph("one")
    g.variable("X", "", unn.SquaredNorm())
    net = network(g)
    assert net(*inputs(net.frame()), net.frame()).shape == (2, 1)


def test_a_graph_without_nodes_is_refused():
    g = factorisation("binary", True)
    with pytest.raises(
        unn.DeclarationError, match=says("'binary_factorisation'", "no nodes", "'i': 0", "nothing to sample")
    ):
        Denoiser(g, depth=2).frame(i=0, j=0, k=0)
    g = unn.FactorGraph("void", n=0)
    g.variable("X", "n", unn.SquaredNorm())
    with pytest.raises(unn.DeclarationError, match=says("'void'", "no nodes", "(static)")):
        Denoiser(g, depth=2).frame()


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"i": 2, "j": 3}, ["'k'"]),
        ({"i": 2, "j": 3, "k": 2, "l": 3}, ["'l'"]),
        ({"i": -1, "j": 3, "k": 2}, ["'i'", "-1"]),
    ],
    ids=str,
)
def test_sizes_that_are_missing_unknown_or_impossible_are_refused(sizes, words):
    with pytest.raises(unn.DeclarationError, match=says(*words)):
        Denoiser(factorisation("binary", True), depth=2).frame(**sizes)
    with pytest.raises(unn.DeclarationError, match=says("'i'", "4", "3")):
        Denoiser(sorting(4, True, "chain"), depth=2).frame(i=3)


def test_positions_are_finite_for_long_axes():
    g = unn.FactorGraph("chain", n=500)
    X = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Clique(X["t+1"], X["t"], each="t"))
    net = network(g, depth=1)
    place = net._embeddings(net.frame())
    apart = torch.cdist(place, place).detach().fill_diagonal_(1)
    assert place.isfinite().all() and apart.min() > 1e-6


def test_sizes_that_were_not_used_for_long_are_dropped_and_made_again_with_the_same_numbers():
    with patch("unn.networks.tokens.MOST_SIZES", 2), patch("unn.networks.denoiser.MOST_SIZES", 2):
        net = network(factorisation("binary", True))
    every = [{"i": i, "j": 2, "k": 2} for i in (1, 2, 3)]
    first = [net(*inputs(net.frame(**sizes)), net.frame(**sizes)) for sizes in every]
    assert len(net.frames._made) == len(net._positions) == 2
    for sizes, expected in zip(every, first, strict=True):
        assert torch.equal(net(*inputs(net.frame(**sizes)), net.frame(**sizes)), expected)
