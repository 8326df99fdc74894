"""Attention over a graph: every kernel gives the numbers of the definition, whatever the graph, precision,
layout and size."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graph_attention import (
    CPU,
    GRAPHS,
    KERNELS,
    all_kinds,
    by_definition,
    chain,
    check,
    check_every_kernel,
    expected_of,
    inputs,
    regular,
    slope_of,
    with_gradients,
    worthwhile,
)
from support.helpers import says
from support.structures import declarations, factorisation, sorting, sudoku

import unn
from factors import Depends
from unn.ops.attention import AttentionMask, attention, choose_kernel, kernel_names

EVERY = pytest.mark.parametrize("kernel", KERNELS)

SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2),
        "heads": st.integers(1, 2),
        "width": st.integers(1, 4),
        "values": st.integers(1, 4),
        "seed": st.integers(0, 10_000),
    }
)


# -- all kernels are one function ----------------------------------------------------------------------------


@given(g=declarations(), shape=SHAPES, fewest=st.sampled_from([1, 1, 6, 200]))
@settings(max_examples=60, deadline=None)
def test_kernels_agree_on_any_declaration_in_value_and_gradient(g, shape, fewest):
    mask = AttentionMask(g.adjacency())
    with worthwhile(fewest):
        check_every_kernel(mask, **shape)


@given(n=st.integers(1, 14), density=st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]), shape=SHAPES)
@settings(max_examples=40, deadline=None)
def test_kernels_agree_on_any_matrix_in_value_and_gradient(n, density, shape):
    allowed = torch.rand(n, n, generator=torch.Generator().manual_seed(shape["seed"])) < density
    check_every_kernel(AttentionMask.of(allowed), **shape)


@pytest.mark.parametrize("fewest", [1, 200])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_agree_on_the_graphs_of_the_paper(name, fewest):
    mask = AttentionMask(GRAPHS[name]())
    with worthwhile(fewest):
        check_every_kernel(mask, seed=0, batch=2, heads=2, width=4)


@EVERY
def test_nodes_take_the_mean_of_their_neighbours_if_all_scores_are_equal(kernel):
    mask = regular(sorting(4), i=4)
    value = torch.arange(1.0, 1 + mask.count).view(1, 1, -1, 1)
    neighbours = [np.flatnonzero(row) for row in mask.adjacency.dense().numpy()]
    expected = torch.tensor([1.0 + row.mean() for row in neighbours]).float()
    zeros = torch.zeros(1, 1, mask.count, 3)
    torch.testing.assert_close(attention(zeros, zeros, value, mask, kernel).flatten(), expected)


@EVERY
def test_a_node_depends_on_its_neighbours_only(kernel):
    mask = regular(sorting(4), i=4)
    allowed = mask.adjacency.dense()
    query, key, value = inputs(mask.count, batch=1, heads=1)
    out = attention(query, key, value, mask, kernel)
    for node in range(mask.count):
        slope = torch.zeros_like(out)
        slope[0, 0, node] = 1 + torch.arange(3)
        by_query, by_key, by_value = torch.autograd.grad(out, (query, key, value), slope, retain_graph=True)
        assert torch.equal(by_value[0, 0].ne(0).any(1), allowed[node])
        assert not by_key[0, 0, ~allowed[node]].any()
        assert not by_query[0, 0, torch.arange(mask.count) != node].any()


@EVERY
def test_renaming_nodes_renames_the_output(kernel):
    mask = regular(sorting(4), i=4)
    order = torch.randperm(mask.count, generator=torch.Generator().manual_seed(0))
    renamed = AttentionMask(mask.adjacency.permuted(order))
    query, key, value = inputs(mask.count)
    moved = [x[:, :, order.argsort()] for x in (query, key, value)]
    torch.testing.assert_close(
        attention(*moved, renamed, kernel)[:, :, order],
        attention(query, key, value, mask, kernel),
        atol=1e-12,
        rtol=0,
    )


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
@pytest.mark.parametrize("name", ["sudoku", "circuit", "empty rows"])
def test_blocks_give_the_same_values(name):
    if name == "empty rows":
        mask = AttentionMask.of(torch.rand(150, 150, generator=torch.Generator().manual_seed(0)) < 0.01)
        assert mask.has_empty_rows
    else:
        mask = AttentionMask(GRAPHS[name]())
    query, key, value = (x.detach() for x in inputs(mask.count, width=16, dtype=torch.float32))
    torch.testing.assert_close(
        attention(query, key, value, mask, "blocks"),
        attention(query, key, value, mask, "dense"),
        atol=1e-5,
        rtol=0,
    )


# -- rows without neighbours ---------------------------------------------------------------------------------


@EVERY
def test_nodes_without_neighbours_get_zero_and_give_no_gradient(kernel):
    allowed = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    given = inputs(4)
    out, by_query, by_key, by_value = with_gradients(
        lambda q, k, v: attention(q, k, v, AttentionMask.of(allowed), kernel), given, slope_of(given)
    )
    for x in (out, by_query):
        assert (x[:, :, [1, 3]] == 0).all() and (x[:, :, [0, 2]] != 0).all()
    # no node attends to the last node
    for x in (by_key, by_value):
        assert (x[:, :, 3] == 0).all() and (x[:, :, :2] != 0).all()


@EVERY
def test_the_output_is_zero_if_no_node_has_neighbours(kernel):
    given = inputs(5)
    for tensor in with_gradients(
        lambda q, k, v: attention(q, k, v, AttentionMask.of(torch.zeros(5, 5, dtype=torch.bool)), kernel),
        given,
        slope_of(given),
    ):
        assert (tensor == 0).all()


# -- derivatives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["relational", "sparse"])
def test_derivatives_are_those_of_finite_differences(kernel):
    for mask in all_kinds():
        given = inputs(mask.count, batch=1, heads=2, width=2)
        assert torch.autograd.gradcheck(
            lambda q, k, v, mask=mask: attention(q, k, v, mask, kernel), given, fast_mode=True
        )


def test_second_derivatives_of_packed_neighbours_are_those_of_finite_differences():
    mask = regular(sorting(2), i=2)
    given = inputs(mask.count, batch=1, heads=1, width=2)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attention(q, k, v, mask, "packed"), given, fast_mode=True
    )


@pytest.mark.parametrize("kernel", ["relational", "sparse"])
def test_second_derivatives_of_the_others_are_refused_and_not_wrong(kernel):
    mask = regular(sorting(2), i=2)
    query, key, value = inputs(mask.count)
    (first,) = torch.autograd.grad(
        attention(query, key, value, mask, kernel).square().sum(), query, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (first.square().sum() + query.sum()).backward()


LAYOUTS = {
    "contiguous": lambda x: x,
    "heads behind nodes": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "reversed axes": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "a part of something wider": lambda x: torch.cat([x, x], 3)[..., : x.shape[3]],
    "every other node": lambda x: torch.stack([x, x], 3).flatten(2, 3)[:, :, ::2],
}


@EVERY
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_inputs_and_gradients_lie_in_memory_does_not_matter(layout, batch, kernel):
    mask = all_kinds()[1]
    given = inputs(mask.count, batch=batch)
    slope = slope_of(given)
    expected = expected_of(given, mask.adjacency.dense(), slope)
    lay = LAYOUTS[layout]
    check(
        with_gradients(lambda q, k, v: attention(q, k, v, mask, kernel), given, lay(slope)), expected, 1e-12
    )
    check(
        with_gradients(lambda q, k, v: attention(lay(q), lay(k), lay(v), mask, kernel), given, slope),
        expected,
        1e-12,
    )


@EVERY
@pytest.mark.parametrize("batch", [1, 2])
def test_what_follows_attention_may_reorder_and_sum_it(batch, kernel):
    mask = all_kinds()[0]
    given = inputs(mask.count, batch=batch)
    allowed = mask.adjacency.dense()
    weights = slope_of(given).transpose(1, 2).reshape(batch, mask.count, -1)

    def gradients(run):
        """Of the heads of a node side by side, as the next layer takes them, and of a plain sum."""
        out = run(*given)
        merged = (out.transpose(1, 2).reshape(batch, mask.count, -1) * weights).sum()
        return [
            *torch.autograd.grad(merged, given, retain_graph=True),
            *torch.autograd.grad(out.sum(), given),
        ]

    expected = gradients(lambda q, k, v: by_definition(q, k, v, allowed))
    check(gradients(lambda q, k, v: attention(q, k, v, mask, kernel)), expected, 1e-12)


@EVERY
def test_inputs_that_are_one_tensor_get_the_sum_of_their_gradients(kernel):
    mask = all_kinds()[0]
    x = inputs(mask.count)[0]
    allowed = mask.adjacency.dense()
    (expected,) = torch.autograd.grad(by_definition(x, x, x, allowed).square().sum(), x)
    (gradient,) = torch.autograd.grad(attention(x, x, x, mask, kernel).square().sum(), x)
    torch.testing.assert_close(gradient, expected, atol=1e-11, rtol=0)


@EVERY
def test_gradients_of_some_inputs_alone_can_be_taken(kernel):
    mask = all_kinds()[1]
    given = inputs(mask.count)
    slope = slope_of(given)
    _, *expected = expected_of(given, mask.adjacency.dense(), slope)
    for k in range(3):
        arrays = [x if i == k else x.detach() for i, x in enumerate(given)]
        (gradient,) = torch.autograd.grad(attention(*arrays, mask, kernel), arrays[k], slope)
        torch.testing.assert_close(gradient, expected[k], atol=1e-12, rtol=0)


@EVERY
def test_inputs_are_not_written_to_and_results_repeat_exactly(kernel):
    mask = all_kinds()[1]
    given = inputs(mask.count, dtype=torch.float32)
    before = [x.detach().clone() for x in given]
    slope = slope_of(given).float()
    kept = slope.clone()
    first, second = (
        with_gradients(lambda q, k, v: attention(q, k, v, mask, kernel), given, slope) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True)) and torch.equal(slope, kept)


# -- precision -----------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 5e-3)], ids=str)
def test_half_precision_rounds_and_no_more(kernel, dtype, tolerance):
    for mask in all_kinds():
        given = inputs(mask.count, dtype=dtype, width=4)
        slope = slope_of(given).to(dtype)
        results = with_gradients(lambda q, k, v, mask=mask: attention(q, k, v, mask, kernel), given, slope)
        assert all(x.dtype == dtype for x in results)
        check(results, expected_of(given, mask.adjacency.dense(), slope), tolerance)


@EVERY
def test_autocast_rounds_and_no_more(kernel):
    mask = all_kinds()[1]
    given = inputs(mask.count, dtype=torch.float32, width=4)
    slope = slope_of(given)
    expected = expected_of(given, mask.adjacency.dense(), slope)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(*given, mask, kernel)
    check((out, *torch.autograd.grad(out, given, slope.to(out.dtype))), expected, 4e-2)


def hub(spokes):
    """One node that sees many, all of which see it."""
    g = unn.FactorGraph("hub", spokes=spokes)
    centre, rim = (
        g.variable("centre", "one", unn.SquaredNorm()),
        g.variable("rim", "spokes", unn.SquaredNorm()),
    )
    g.factor(Depends(centre["o"], rim["i"]))
    return g.adjacency(one=1)


@pytest.mark.parametrize(("kernel", "spokes"), [("relational", 4000), ("sparse", 4000), ("packed", 1000)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_over_many_neighbours_are_not_taken_in_half_precision(kernel, spokes, dtype):
    mask = AttentionMask(hub(spokes))
    query, key, value = inputs(mask.count, batch=1, heads=1, width=2, dtype=dtype)
    with torch.no_grad():
        query.zero_(), value.fill_(30.0)
    # a mean of thirties, and for each neighbour its share of what the hub passes back
    out, _, _, by_value = with_gradients(
        lambda q, k, v: attention(q, k, v, mask, kernel), (query, key, value), torch.ones(1, 1, mask.count, 2)
    )
    torch.testing.assert_close(out, torch.full_like(out, 30.0), rtol=1e-2, atol=0)
    expected = torch.full((mask.count, 2), 0.5 + 1 / mask.count)
    expected[0] = 0.5 * (mask.count - 1) + 1 / mask.count
    torch.testing.assert_close(by_value[0, 0].float(), expected, rtol=1e-2, atol=0)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_extreme_scores_stay_finite_and_choose_the_largest(kernel, dtype):
    for mask in all_kinds():
        given = inputs(mask.count, dtype=dtype, width=1)
        with torch.no_grad():
            given[0].mul_(1e4)
        slope = slope_of(given)
        results = with_gradients(lambda q, k, v, mask=mask: attention(q, k, v, mask, kernel), given, slope)
        assert all(x.isfinite().all() for x in results)
        expected = expected_of(given, mask.adjacency.dense(), slope)
        # float32 knows scores of 1e4 to about 1e-3
        torch.testing.assert_close(
            results[0].double(), expected[0], atol=1e-9 if dtype == torch.float64 else 2e-2, rtol=0
        )


@EVERY
def test_adding_a_constant_to_all_scores_of_a_node_changes_nothing(kernel):
    mask = all_kinds()[1]
    query, key, value = (x.detach() for x in inputs(mask.count))
    query, key = (
        torch.cat([query, torch.full_like(query[..., :1], 1e3)], 3),
        torch.cat([key, torch.ones_like(key[..., :1])], 3),
    )
    plain = query.clone()
    plain[..., -1] = 0
    torch.testing.assert_close(
        attention(query, key, value, mask, kernel),
        attention(plain, key, value, mask, kernel),
        atol=1e-11,
        rtol=0,
    )


# -- memory --------------------------------------------------------------------------------------------------


def saved_bytes(run):
    """What autograd keeps for the backward pass, each storage once."""
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = run()
    del out
    return sum(kept.values())


@pytest.mark.parametrize("kernel", ["relational", "sparse"])
@pytest.mark.parametrize(
    "make",
    [lambda k: factorisation(4, 5, 8 * k), lambda k: chain(500 * k), lambda k: sudoku(3, 3 * k)],
    ids=["factorisation", "chain", "sudoku"],
)
def test_memory_kept_for_the_backward_pass_is_one_number_a_pair(make, kernel):
    for k in (1, 2, 4):
        mask = AttentionMask(make(k).adjacency())
        given = inputs(mask.count, batch=2, heads=3, width=4, dtype=torch.float32)
        pairs = sum(term.pairs for term in mask.terms(CPU)) if kernel == "relational" else mask.entries
        # queries scaled, keys, values, outputs, and the sum of weights
        numbers = 6 * (pairs + mask.count * (4 * 4 + 1))
        assert pairs <= 1.5 * mask.entries
        assert (
            saved_bytes(lambda given=given, mask=mask: attention(*given, mask, kernel)) <= 4 * numbers + 1000
        )


@pytest.mark.parametrize("kernel", ["relational", "sparse", "packed"])
@pytest.mark.parametrize("width", [3, 24, 32])
def test_queries_in_half_precision_are_not_rounded_before_their_products(kernel, width):
    mask = all_kinds()[0]
    wide = [20 * x.detach() if k < 2 else x.detach() for k, x in enumerate(inputs(mask.count, width=width))]
    given = [x.bfloat16() for x in wide]
    expected = attention(*(x.double() for x in given), mask, "packed")
    assert (attention(*given, mask, kernel) - expected).abs().max() < 0.01 * expected.abs().max()


@EVERY
def test_without_gradients_nothing_is_kept(kernel):
    mask = all_kinds()[0]
    given = inputs(mask.count)
    expected = attention(*given, mask, kernel).detach()
    with torch.no_grad():
        out = attention(*given, mask, kernel)
        assert saved_bytes(lambda: attention(*given, mask, kernel)) == 0
    assert not out.requires_grad
    # torch may take another kernel where no gradients are needed
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    with torch.inference_mode():
        torch.testing.assert_close(attention(*given, mask, kernel), expected, atol=1e-12, rtol=0)


# -- odd sizes -----------------------------------------------------------------------------------------------


EMPTY = {
    "no batch element": {"batch": 0},
    "no head": {"heads": 0},
    "no width of values": {"values": 0},
    "no width of queries": {"width": 0, "values": 2},
    "no node": {"count": 0},
}


@EVERY
@pytest.mark.parametrize("what", EMPTY)
def test_inputs_without_entries_give_outputs_and_gradients_without_or_of_zero(what, kernel):
    shape = {"count": 5, **EMPTY[what]}
    allowed = torch.rand(shape["count"], shape["count"], generator=torch.Generator().manual_seed(0)) < 0.5
    mask = AttentionMask.of(allowed)
    given = inputs(**shape)
    slope = slope_of(given)
    wide = [x.detach().requires_grad_() for x in given]
    scores = torch.zeros(*wide[0].shape[:3], shape["count"], dtype=torch.float64).masked_fill(
        ~allowed, -torch.inf
    )
    weights = scores.softmax(-1).nan_to_num(0) if shape["count"] else scores
    out, *gradients = with_gradients(lambda q, k, v: attention(q, k, v, mask, kernel), given, slope)
    assert [x.shape for x in gradients] == [x.shape for x in given]
    if what == "no width of queries":
        # all scores are zero
        torch.testing.assert_close(out, weights @ wide[2].detach(), atol=1e-12, rtol=0)
    else:
        assert out.shape == slope.shape and not any(x.any() for x in gradients)


@pytest.mark.parametrize("n", [0, 1])
def test_declared_graphs_of_no_node_and_of_one(n):
    mask = AttentionMask(chain(n).adjacency())
    assert (mask.count, mask.entries, mask.widest, mask.has_empty_rows) == (n, n, n, False)
    query, key, value = inputs(n)
    for kernel in KERNELS:
        torch.testing.assert_close(attention(query, key, value, mask, kernel), value)


# -- what is refused, and what is chosen ---------------------------------------------------------------------


def test_unknown_kernels_are_refused_with_the_likely_one():
    mask = AttentionMask(sudoku(2, 2).adjacency())
    for wrong, meant in (("relationl", "relational"), ("Dense", "dense"), ("spars", "sparse")):
        with pytest.raises(unn.ObservationError, match=says(repr(wrong), repr(meant))):
            attention(*inputs(16), mask, wrong)
    assert sorted(kernel_names()) == ["blocks", "dense", "packed", "relational", "sparse"]


BAD = {
    "nodes of the mask": (((2, 2, 5, 3),) * 3, ("16 nodes", "5")),
    "widths of query and key": (
        ((2, 2, 16, 3), (2, 2, 16, 4), (2, 2, 16, 3)),
        ("(2, 2, 16, 3)", "(2, 2, 16, 4)"),
    ),
    "nodes of the values": (((2, 2, 16, 3), (2, 2, 16, 3), (2, 2, 15, 3)), ("(2, 2, 15, 3)",)),
    "heads": (((2, 2, 16, 3), (2, 2, 16, 3), (2, 1, 16, 3)), ("(2, 1, 16, 3)",)),
    "axes": (((2, 16, 3),) * 3, ("(2, 16, 3)", "(batch, heads, nodes, width)")),
    "axes of the values": (((2, 2, 16, 3), (2, 2, 16, 3), (2, 2, 16)), ("(2, 2, 16)",)),
}


@EVERY
@pytest.mark.parametrize("what", BAD)
def test_shapes_that_do_not_fit_are_refused(what, kernel):
    shapes, words = BAD[what]
    with pytest.raises(unn.ObservationError, match=says("attention", *words)):
        attention(*(torch.zeros(shape) for shape in shapes), AttentionMask(sudoku(2, 2).adjacency()), kernel)


@EVERY
def test_dtypes_that_differ_are_refused(kernel):
    query, key, value = inputs(16)
    with pytest.raises(unn.ObservationError, match=says("dtype", "torch.float32", "torch.float64")):
        attention(query, key, value.float(), AttentionMask(sudoku(2, 2).adjacency()), kernel)


def test_the_kernel_is_chosen_by_size_sparsity_and_device():
    small, large = AttentionMask(sudoku(3, 3).adjacency()), AttentionMask(chain(20_000).adjacency())
    products, grids = (
        AttentionMask(factorisation(16, 10, 8).adjacency()),
        AttentionMask(sudoku(5, 5).adjacency()),
    )
    for available, fastest in ((True, "sparse"), (False, "relational")):
        with patch("unn.ops.attention.kernels._HAS_MKL", available):
            assert choose_kernel(small, 8, 16, CPU) == "dense"
            assert choose_kernel(grids, 8, 16, CPU) == "relational"
            assert choose_kernel(products, 2, 32, CPU) == choose_kernel(large, 2, 16, CPU) == fastest
    gpu = torch.device("cuda")
    middle = AttentionMask(chain(5000).adjacency())
    assert [choose_kernel(mask, 2, 16, gpu) for mask in (small, middle, large)] == [
        "dense",
        "blocks",
        "relational",
    ]
    # blocks need a width of 16
    assert choose_kernel(middle, 2, 8, gpu) == "relational"


def test_the_chosen_kernel_is_the_one_that_runs():
    mask = AttentionMask(sudoku(3, 3).adjacency())
    given = [x.detach() for x in inputs(81)]
    for kernel in ("dense", "relational", "sparse"):
        with patch("unn.ops.attention.kernels.choose_kernel", lambda *_, kernel=kernel: kernel):
            assert torch.equal(attention(*given, mask, "estimated"), attention(*given, mask, kernel))
