"""A denoiser over a graph: what it is equivariant under, how far its information goes, what it refuses."""

import warnings
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import NAN, says
from support.networks import (
    EMBEDDINGS,
    EVERY_GRAPH,
    GRAPHS,
    SIZES,
    STRUCTURES,
    change_under,
    inputs,
    mixed,
    moved_numbers,
    named,
    network,
    output,
    randomise,
    without_fixed_points,
)
from support.problem_graphs import factorisation, sorting, sudoku
from support.structures import declarations

import unn
from factors import Clique, Depends, Multilinear
from unn.networks import Denoiser
from unn.networks.denoiser import SELF_CONDITIONINGS
from unn.networks.tokens import Frames
from unn.ops.attention import terms as terms_module


def symmetry(frame, name):
    return next(s for s in frame.symmetries if s.name == name)


@contextmanager
def lonely_nodes():
    """Nodes that nothing interacts with are meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


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
    changed = torch.zeros(frame.nodes, dtype=torch.bool)
    return changed.index_put((frame.node_of_number[change],), torch.tensor(True))


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["factorisation", "sorting", "sudoku", "circuit"])
def test_all_kernels_give_the_same_numbers_through_the_whole_network(name):
    by_kernel = {}
    for kernel in ("dense", "packed", "relational", "sparse", "auto"):
        with patch.object(terms_module, "_FEW", 1 if kernel == "relational" else terms_module._FEW):
            net, frame, (rows, level, observed) = named(name, kernel=kernel, depth=3)
            rows.requires_grad_()
            out = net(rows, level, observed, frame)
            by_kernel[kernel] = (
                out.detach(),
                *torch.autograd.grad(out.square().sum(), [rows, net.blocks[0].query_key.weight]),
            )
    for kernel, numbers in by_kernel.items():
        for a, b in zip(numbers, by_kernel["dense"], strict=True):
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
    even_nodes = (torch.arange(frame.nodes) % 2 == 0).expand(2, -1)
    memories = memories_of(net, frame)
    for memory in (None, *memories):
        net.zero_grad()
        net(rows, level, even_nodes, frame, memory).square().sum().backward()
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
    with pytest.raises(unn.ArgumentError, match="no weights for what is fed back"):
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
    with pytest.raises(unn.ArgumentError, match=says(*words)):
        Denoiser(sudoku(2, 2), **{"width": 16, "heads": 2, **options})


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
        Frames(g).at()
    # one node of a variable is enough
    g.factor(Depends(g["Y"]["i"], X["i"]))
    g.factor(Clique(Z["t+1"], X["t"], each="t"))
    with pytest.warns(UserWarning, match=says("nodes of Z interact")):
        Frames(g).at()


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


def test_sizes_that_were_not_used_for_long_are_dropped_and_made_again_with_the_same_numbers():
    with patch("unn.networks.tokens.MOST_SIZES", 2), patch("unn.networks.denoiser.MOST_SIZES", 2):
        net = network(factorisation("binary", True))
    every = [{"i": i, "j": 2, "k": 2} for i in (1, 2, 3)]
    first = [net(*inputs(net.frame(**sizes)), net.frame(**sizes)) for sizes in every]
    assert len(net.frames._made) == len(net._positions) == 2
    for sizes, expected in zip(every, first, strict=True):
        assert torch.equal(net(*inputs(net.frame(**sizes)), net.frame(**sizes)), expected)


@pytest.mark.parametrize("name", ["type", "values", "double", "keys"])
def test_variables_may_have_the_names_of_attributes_of_modules(name, tmp_path):
    g = unn.FactorGraph("names", n=3)
    x, y = g.variable(name, "n", unn.SquaredNorm()), g.variable("y", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], y["i"]))
    model = unn.Diffusion(unn.Denoiser(g, width=8, depth=1, heads=1, self_conditioning="estimate"))
    rows = {name: torch.randn(40, 3), "y": torch.randn(40, 3)}
    model.train()
    model.loss(rows, torch.zeros(40, 6, dtype=torch.bool)).backward()
    other = unn.Diffusion(unn.Denoiser(g, width=8, depth=1, heads=1, self_conditioning="estimate"))
    other.load_state_dict(model.state_dict())
    one, two = (m.double().float().sample({}, 2, seed=0, steps=2)[name] for m in (model, other))
    assert torch.equal(one, two)


def test_a_variable_with_the_name_of_the_state_of_modules_is_refused_by_name():
    g = unn.FactorGraph("names", n=3)
    x, y = g.variable("training", "n", unn.SquaredNorm()), g.variable("y", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], y["i"]))
    with pytest.raises(unn.DeclarationError, match="'training' is the state of a module"):
        unn.Denoiser(g, width=8, depth=1, heads=1)
