"""Arborescences: reference values, enumeration, networkx; derivatives; any scale, strong cycles, forbidden
arcs, padding."""

from functools import partial
from itertools import product
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors.trees import laplacian
from factors.trees.decoding import decode, sample
from factors.trees.derivatives import differentiable
from factors.trees.elimination import solve_by_elimination
from factors.trees.matrix_tree import (
    _METHODS,
    _solve_with_fallback,
    existing_nodes,
    log_partition,
    log_partition_and_marginals,
    marginals,
)

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "matrix_tree.npz")
ROOTS = pytest.mark.parametrize("roots", ["single", "multi"])


def golden(name):
    return torch.from_numpy(GOLDEN[name])


def is_tree(heads, single_root):
    roots = [m for m, h in enumerate(heads) if h == m]
    if not roots or (single_root and len(roots) != 1):
        return False
    for node in range(len(heads)):
        for _ in range(len(heads)):
            node = heads[node]
        if heads[node] != node:
            return False
    return True


def trees(n, single_root):
    return [heads for heads in product(range(n), repeat=n) if is_tree(heads, single_root)]


def enumerated(scores, single_root):
    """Log-partition, marginals and the best score of one sentence, by listing all trees."""
    n = len(scores)
    every = trees(n, single_root)
    totals = torch.stack([sum(scores[h, m] for m, h in enumerate(heads)) for heads in every])
    chances = torch.softmax(totals, 0)
    arc_marginals = torch.zeros(n, n, dtype=scores.dtype)
    for chance, heads in zip(chances, every, strict=True):
        for m, h in enumerate(heads):
            arc_marginals[h, m] += chance
    return torch.logsumexp(totals, 0), arc_marginals, totals.max()


def score_of(scores, heads):
    return scores.gather(1, heads[:, None]).sum((1, 2))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@ROOTS
def test_reference_values_hold_at_every_scale(n, roots):
    scores = golden(f"n{n}_scores").requires_grad_()
    partition, arcs = log_partition_and_marginals(scores, single_root=roots == "single")
    expected = golden(f"n{n}_{roots}_logZ")
    assert ((partition - expected).abs() <= 1e-13 * expected.abs().clamp_min(1)).all()
    torch.testing.assert_close(arcs, golden(f"n{n}_{roots}_mu"), atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(partition.sum(), scores, retain_graph=True)
    assert torch.equal(gradient, arcs)
    (second,) = torch.autograd.grad((arcs * golden(f"n{n}_g")).sum(), scores)
    torch.testing.assert_close(second, golden(f"n{n}_{roots}_hvp"), atol=1e-11, rtol=1e-10)
    best = score_of(scores.detach(), decode(scores, single_root=roots == "single"))
    torch.testing.assert_close(best, golden(f"n{n}_{roots}_maxscore"), atol=1e-9, rtol=1e-13)


@ROOTS
def test_reference_values_hold_with_padding_and_forbidden_arcs(roots):
    single = roots == "single"
    partition, arcs = log_partition_and_marginals(golden("pad_scores"), golden("pad_lengths"), single)
    torch.testing.assert_close(partition, golden(f"pad_{roots}_logZ"), atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(arcs, golden(f"pad_{roots}_mu"), atol=1e-12, rtol=0)
    scores = golden("inf_scores").requires_grad_()
    partition, arcs = log_partition_and_marginals(scores, None, single)
    torch.testing.assert_close(partition, golden(f"inf_{roots}_logZ"), atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(arcs, golden(f"inf_{roots}_mu"), atol=1e-12, rtol=0)
    (second,) = torch.autograd.grad((arcs * arcs.detach()).sum(), scores)
    assert second.isfinite().all() and (second[scores == -torch.inf] == 0).all()


@given(
    n=st.integers(1, 5),
    single=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 10.0, 100.0, 1000.0]),
    forbid=st.sampled_from([0.0, 0.2, 0.5]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_every_sum_and_maximum_is_that_of_all_trees(n, single, scale, forbid, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(1, n, n, generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.rand(1, n, n, generator=generator) < forbid, -torch.inf)
    partition, arc_marginals, best = enumerated(scores[0], single)
    ours = log_partition_and_marginals(scores, None, single)
    if partition == -torch.inf:
        assert ours[0] == -torch.inf and (ours[1] == 0).all()
        for function in (decode, sample):
            with pytest.raises(unn.ObservationError, match=says("sentence 0", "no arborescence")):
                function(scores, None, single)
        return
    torch.testing.assert_close(ours[0][0], partition, atol=1e-11, rtol=1e-13)
    torch.testing.assert_close(ours[1][0], arc_marginals, atol=1e-11, rtol=0)
    heads = decode(scores, None, single)
    assert is_tree(heads[0].tolist(), single)
    torch.testing.assert_close(score_of(scores, heads)[0], best, atol=1e-9, rtol=1e-13)
    drawn = sample(scores, None, single, generator)
    assert is_tree(drawn[0].tolist(), single) and score_of(scores, drawn).isfinite().all()


@given(n=st.integers(2, 12), single=st.booleans(), seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_best_tree_is_that_of_networkx(n, single, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, n, n, generator=generator, dtype=torch.float64)
    graph = networkx.DiGraph()
    for h, m in product(range(n), repeat=2):
        # a penalty on roots larger than any difference, so that there is one only
        weight = float(scores[0, h, m]) - (1000 if single and h == m else 0)
        graph.add_edge(-1 if h == m else h, m, weight=weight + 2000)
    tree = networkx.maximum_spanning_arborescence(graph)
    expected = sum(float(scores[0, m if h == -1 else h, m]) for h, m in tree.edges)
    assert float(score_of(scores, decode(scores, None, single))[0]) == pytest.approx(expected)


@ROOTS
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_derivatives_are_exact_to_second_order_on_both_paths(roots, scale):
    scores = (scale * golden("n4_scores")[:2] / golden("n4_scores")[:2].std()).requires_grad_()
    lengths = torch.tensor([4, 3])

    def partition(x):
        return log_partition(x, lengths, roots == "single")

    assert torch.autograd.gradcheck(partition, scores, fast_mode=True)
    assert torch.autograd.gradgradcheck(partition, scores, fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda x: marginals(x, lengths, roots == "single"), scores, atol=1e-4, fast_mode=True
    )


@given(
    scale=st.sampled_from([1.0, 10.0, 100.0, 1000.0]),
    single=st.booleans(),
    seed=st.integers(0, 1000),
    n=st.integers(1, 30),
)
@settings(max_examples=25, deadline=None)
def test_marginals_are_probabilities_and_do_not_depend_on_padding_or_on_the_rest_of_the_batch(
    scale, single, seed, n
):
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(3, n, n, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, n + 1, (3,), generator=generator)
    partition, arcs = log_partition_and_marginals(scores, lengths, single)
    assert (arcs >= -1e-12).all() and (arcs <= 1 + 1e-12).all()
    for b, length in enumerate(lengths.tolist()):
        inside = arcs[b, :length, :length]
        torch.testing.assert_close(inside.sum(0), torch.ones(length, dtype=torch.float64), atol=1e-10, rtol=0)
        assert (arcs[b, length:] == 0).all() and (arcs[b, :, length:] == 0).all()
        expected_roots = inside.diagonal().sum()
        assert expected_roots >= 1 - 1e-9 and (not single or expected_roots <= 1 + 1e-9)
        alone = log_partition_and_marginals(scores[b : b + 1, :length, :length], None, single)
        torch.testing.assert_close(partition[b], alone[0][0], atol=1e-10, rtol=1e-12)
        torch.testing.assert_close(inside, alone[1][0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0, 1000.0])
@ROOTS
def test_float32_agrees_with_float64_to_its_precision(scale, roots):
    scores = (scale * torch.randn(50, 12, 12, generator=torch.Generator().manual_seed(3))).requires_grad_()
    ours = log_partition_and_marginals(scores, None, roots == "single")
    exact = log_partition_and_marginals(scores.detach().double(), None, roots == "single")
    assert ours[0].dtype == ours[1].dtype == torch.float32
    assert ((ours[0] - exact[0]).abs() <= 2e-6 * exact[0].abs().clamp_min(1)).all()
    torch.testing.assert_close(ours[1].double(), exact[1], atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad((ours[1] * ours[1].detach()).sum(), scores)
    assert gradient.isfinite().all()


def test_samples_come_with_the_probabilities_of_their_trees():
    scores = torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = sample(scores.expand(20_000, 3, 3), generator=torch.Generator().manual_seed(1)).tolist()
    partition = float(log_partition(scores)[0])
    for heads in trees(3, single_root=True):
        expected = float(torch.exp(score_of(scores, torch.tensor([heads]))[0] - partition))
        assert drawn.count(list(heads)) / 20_000 == pytest.approx(
            expected, abs=4 * (expected * (1 - expected) / 20_000) ** 0.5 + 1e-4
        )


def test_padding_has_no_heads_and_empty_batches_and_sentences_are_themselves():
    scores, lengths = torch.zeros(3, 4, 4), torch.tensor([4, 1, 0])
    for heads in (decode(scores, lengths), sample(scores, lengths)):
        assert (heads >= 0).sum(1).tolist() == [4, 1, 0]
    assert log_partition(scores, lengths).tolist() == pytest.approx([np.log(64), 0, 0], abs=1e-6)
    assert decode(torch.zeros(0, 4, 4)).shape == (0, 4) and log_partition(torch.zeros(0, 4, 4)).shape == (0,)
    partition, arcs = log_partition_and_marginals(torch.zeros(2, 0, 0))
    assert (
        partition.tolist() == [0, 0]
        and arcs.shape == (2, 0, 0)
        and decode(torch.zeros(2, 0, 0)).shape == (2, 0)
    )


@pytest.mark.parametrize(
    ("scores", "lengths", "words"),
    [
        (torch.zeros(2, 3, 4), None, "(2, 3, 4)"),
        (torch.zeros(3, 3), None, "(3, 3)"),
        (torch.zeros(1, 3, 3, dtype=torch.int64), None, "int64"),
        ([[0.0]], None, "list"),
        (torch.full((1, 2, 2), torch.nan), None, "NaN"),
        (torch.full((1, 2, 2), torch.inf), None, "+inf"),
        (torch.zeros(2, 3, 3), torch.tensor([3]), "lengths need shape (2,)"),
        (torch.zeros(2, 3, 3), torch.tensor([3.0, 2.0]), "whole numbers"),
    ],
)
@pytest.mark.parametrize("function", [log_partition, marginals, decode, sample])
def test_scores_and_lengths_that_make_no_sense_are_refused(function, scores, lengths, words):
    with pytest.raises(unn.ObservationError, match=says(words)):
        function(scores, lengths)


@given(
    n=st.integers(2, 12),
    cycle=st.floats(0, 12),
    roots=st.booleans(),
    forbidden=st.booleans(),
    ragged=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_all_ways_agree_on_values_and_second_derivatives_where_arcs_are_in_strong_cycles(
    n, cycle, roots, forbidden, ragged, seed
):
    generator = torch.Generator().manual_seed(seed)
    scores, slope = torch.randn(2, 6, n, n, dtype=torch.float64, generator=generator)
    for a in range(0, n - 1, 2):
        scores[:, a, a + 1] += cycle
        scores[:, a + 1, a] += cycle
    if forbidden:
        scores[:, 0, 1:] = -torch.inf
    lengths = torch.randint(1, n + 1, (6,), generator=generator) if ragged else None
    exists = existing_nodes(scores, lengths)
    kept = scores.masked_fill(~(exists[:, :, None] & exists[:, None]), -torch.inf)

    def everything(function):
        leaf = kept.clone().requires_grad_()
        partition, arcs = function(leaf)
        total = (torch.where(partition.isfinite(), partition, 0)).sum() + (arcs * slope).sum()
        (gradient,) = torch.autograd.grad(total, leaf) if total.requires_grad else (torch.zeros_like(leaf),)
        return partition, arcs, gradient

    expected = everything(lambda s: solve_by_elimination(s, exists, roots))

    def solve(s, methods):
        return differentiable(s, exists, partial(_solve_with_fallback, single_root=roots, methods=methods))

    for methods in (_METHODS[torch.float64], _METHODS[torch.float64][1:]):
        for ours, right in zip(everything(lambda s, w=methods: solve(s, w)), expected, strict=True):
            torch.testing.assert_close(ours, right, atol=1e-10, rtol=1e-12)
    single = everything(lambda s: solve(s.float(), _METHODS[torch.float32]))
    for ours, right in zip(single, expected, strict=True):
        torch.testing.assert_close(ours.double(), right, atol=2e-4, rtol=1e-5)


def hard_scores(kind, strength, batch, n, generator):
    """Scores whose Laplacian is near to singular, or whose roots, heads or arcs differ much in size."""
    scores = torch.randn(batch, n, n, dtype=torch.float64, generator=generator)
    nodes = torch.arange(n)
    if kind == "scaled":
        return scores * strength
    if kind in ("roots", "few roots"):
        scores.diagonal(dim1=1, dim2=2).add_(
            strength * (torch.randn(batch, n, generator=generator) if kind == "roots" else (nodes < 2))
        )
    if kind == "no roots":
        scores.diagonal(dim1=1, dim2=2).sub_(strength)
    if kind == "heads":
        scores += strength * torch.randn(batch, n, 1, generator=generator)
    if kind in ("cycles", "cycles with roots"):
        scores[:, nodes[:-1:2], nodes[1::2]] += strength
        scores[:, nodes[1::2], nodes[:-1:2]] += strength
        if kind == "cycles with roots":
            scores.diagonal(dim1=1, dim2=2)[:, ::3] += strength
    if kind == "tree":
        heads = [0, *(int(torch.randint(m, (1,), generator=generator)) for m in range(1, n))]
        scores[:, heads, nodes] += strength
    if kind == "forbidden":
        scores[torch.rand(batch, n, n, generator=generator) < strength / 50] = -torch.inf
    if kind == "two with the root alone":
        scores[:, 1:, 0] = -torch.inf
        scores[:, :1, 1:2] = -torch.inf
        scores[:, 2:, 1:2] -= 4 * strength
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("strength", [3.0, 10.0, 20.0, 40.0])
@pytest.mark.parametrize(
    "kind",
    [
        "scaled",
        "roots",
        "few roots",
        "no roots",
        "heads",
        "cycles",
        "cycles with roots",
        "tree",
        "forbidden",
        "two with the root alone",
    ],
)
@ROOTS
def test_each_way_alone_is_right_where_it_is_trusted(roots, kind, strength, monkeypatch):
    # halves even of small batches
    monkeypatch.setattr(laplacian, "_LITTLE", 0)
    generator = torch.Generator().manual_seed(0)
    for n, batch in ((1, 3), (2, 30), (5, 30), (18, 20), (44, 6)):
        scores = hard_scores(kind, strength, batch, n, generator)
        for dtype, closest, relative in ((torch.float64, 2e-12, 1e-13), (torch.float32, 1e-5, 3e-6)):
            given_scores = scores.to(dtype)
            partition, exact = solve_by_elimination(given_scores.double(), None, roots == "single")
            for method in _METHODS[dtype]:
                solved = method.solve(given_scores.to(method.dtype), None, roots == "single")
                trusted = solved.cancelled <= method.max_cancellation
                assert ((solved.marginals.double() - exact)[trusted].abs() <= closest).all()
                assert (
                    (solved.partition - partition)[trusted].abs()
                    <= relative * partition[trusted].abs().clamp_min(1)
                ).all()


@ROOTS
@pytest.mark.parametrize("n", [1, 4])
def test_scores_are_left_as_they_are(roots, n):
    scores = torch.randn(1, n, n, generator=torch.Generator().manual_seed(0))
    before = scores.clone()
    log_partition_and_marginals(scores, torch.tensor([n]), roots == "single")
    assert torch.equal(scores, before)


def test_scores_as_of_a_parser_take_the_fast_way_whatever_its_root():
    generator = torch.Generator().manual_seed(0)
    for n in (5, 20, 60):
        for kind, strength in (
            ("tree", 3.0),
            ("tree", 10.0),
            ("no roots", 10.0),
            ("scaled", 1.0),
            ("heads", 5.0),
        ):
            method = _METHODS[torch.float32][0]
            solved = method.solve(hard_scores(kind, strength, 50, n, generator).float(), None, True)
            assert (solved.cancelled <= method.max_cancellation).float().mean() > 0.95


def soft_masked(mask, dtype, seed):
    """Scores in which most arcs have one soft mask, and the same with the mask left out of the digits of the
    rest."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(20, 4, 4, generator=generator, dtype=torch.float64).to(dtype)
    return scores, torch.rand(20, 4, 4, generator=generator) < 0.7


@pytest.mark.parametrize("mask", [-1e4, -1e6, -1e9, -1e15, -1e20, -1e30, -3e38])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@ROOTS
def test_soft_masks_that_every_tree_must_break_leave_exact_probabilities(roots, dtype, slack, mask):
    single = roots == "single"
    scores, masked = soft_masked(mask, dtype, seed=int(-mask % 97))
    arcs = marginals(scores.masked_fill(masked, mask), None, single)
    assert (arcs >= -slack).all() and (arcs <= 1 + slack).all()
    torch.testing.assert_close(arcs.sum(1), torch.ones(20, 4, dtype=dtype), atol=slack, rtol=0)
    # trees with more masked arcs than they must have count for nothing
    every = torch.tensor(trees(4, single))
    for b in range(20):
        broken = masked[b].gather(0, every)
        fewest = every[broken.sum(1) == broken.sum(1).min()]
        own = torch.where(masked[b], 0, scores[b].double())
        chances = torch.softmax(own.gather(0, fewest).sum(1), 0)
        expected = torch.stack([(chances[:, None] * (fewest == h)).sum(0) for h in range(4)])
        torch.testing.assert_close(arcs[b].double(), expected, atol=slack, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 10.0, 20.0, 60.0, 1e3, 1e4, 1e5, 1e6])
@ROOTS
def test_float32_and_its_derivatives_are_exact_at_any_scale(roots, scale):
    generator = torch.Generator().manual_seed(0)
    for kind in ("scaled", "roots", "heads", "cycles", "no roots"):
        scores = hard_scores(kind, scale, 10, 6, generator).float()
        slope = torch.randn(10, 6, 6, generator=generator)
        exact = scores.double().requires_grad_()
        _, expected = solve_by_elimination(exact, None, roots == "single")
        (product,) = torch.autograd.grad((expected * slope).sum(), exact)
        leaf = scores.clone().requires_grad_()
        partition, arcs = log_partition_and_marginals(leaf, None, roots == "single")
        (gradient,) = torch.autograd.grad(partition.sum(), leaf, create_graph=True)
        (by_mirror,) = torch.autograd.grad((arcs * slope).sum(), leaf, retain_graph=True)
        (by_gradient,) = torch.autograd.grad((gradient * slope).sum(), leaf)
        for ours, right in (
            (arcs, expected),
            (gradient, expected),
            (by_mirror, product),
            (by_gradient, product),
        ):
            torch.testing.assert_close(ours.double(), right, atol=1e-5, rtol=0)


def test_a_constant_in_all_scores_of_float32_takes_no_digits_from_the_others():
    # whole numbers, which float32 holds beside the constant
    scores = torch.randint(-3, 4, (20, 6, 6), generator=torch.Generator().manual_seed(0)).float()
    torch.testing.assert_close(marginals(scores + 1e6), marginals(scores), atol=2e-6, rtol=0)


@pytest.mark.parametrize("function", [log_partition, marginals, decode, sample])
@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_that_the_scores_do_not_have_are_refused(function, length):
    with pytest.raises(unn.ObservationError, match=says("from 0 to 3", "batch element 1", str(length))):
        function(torch.zeros(2, 3, 3), torch.tensor([3, length]))


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e30])
def test_whatever_stands_in_padding_is_left_out(junk):
    scores, lengths = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 2])
    filled = scores.clone()
    filled[1, 2:], filled[1, :, 2:] = junk, junk
    filled.requires_grad_()
    partition, arcs = log_partition_and_marginals(filled, lengths)
    torch.testing.assert_close(partition, log_partition(scores, lengths))
    (gradient,) = torch.autograd.grad(partition.sum() + (arcs * scores).sum(), filled)
    assert gradient.isfinite().all() and (gradient[1, 2:] == 0).all() and (arcs[1, :, 2:] == 0).all()
    assert torch.equal(decode(filled, lengths), decode(scores, lengths)) and sample(
        filled, lengths
    ).shape == (2, 4)
    with pytest.raises(unn.ObservationError, match="NaN"):
        log_partition(torch.full((1, 2, 2), torch.nan), torch.tensor([2]))
