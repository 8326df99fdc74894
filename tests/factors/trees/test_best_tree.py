"""Decoding, the k best trees and the best tree of the regularizer, against exact sums over all trees, under
masks of any magnitude."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factors import TreeEntropy
from factors.trees.best_tree import best_trees
from factors.trees.decoding import decode
from factors.trees.k_best import k_best

D = torch.float64
MASKS = [
    -50.0,
    -1e4,
    -1e6,
    -1e9,
    -1e12,
    -1e15,
    -1e17,
    -1e20,
    -1e30,
    torch.finfo(torch.float32).min,
    torch.finfo(D).min,
]


def all_trees(n, single_root):
    def hangs(node, heads):
        for _ in range(n):
            node = heads[node]
        return heads[node] == node

    every = [heads for heads in product(range(n), repeat=n) if all(hangs(node, heads) for node in range(n))]
    return [heads for heads in every if not single_root or sum(h == m for m, h in enumerate(heads)) == 1]


TREES = {(n, single): all_trees(n, single) for n in range(1, 5) for single in (True, False)}


def exact_score(scores, heads):
    """The sum of a tree's scores as a fraction; None where it needs a forbidden arc."""
    own = [float(scores[h, m]) for m, h in enumerate(heads)]
    return None if -np.inf in own else sum(map(Fraction, own))


def ranking(scores, single_root):
    totals = [exact_score(scores, heads) for heads in TREES[len(scores), single_root]]
    return sorted((total for total in totals if total is not None), reverse=True)


@st.composite
def masked_scores(draw):
    n, seed = draw(st.integers(1, 4)), draw(st.integers(0, 100_000))
    generator = torch.Generator().manual_seed(seed)
    dtype = draw(st.sampled_from([D, torch.float32, torch.float16, torch.bfloat16]))
    scores = 5 * torch.randn(n, n, dtype=D, generator=generator)
    if draw(st.booleans()):
        scores = scores.round()
    for mask in draw(st.lists(st.sampled_from([*MASKS, -torch.inf]), max_size=2)):
        share = draw(st.sampled_from([0.2, 0.5, 0.9]))
        scores = torch.where(torch.rand(n, n, generator=generator) < share, mask, scores)
    lowest = torch.finfo(dtype).min
    return torch.where(scores == -torch.inf, scores, scores.clamp_min(lowest)).to(dtype)


@given(scores=masked_scores(), single_root=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_best_tree_is_the_best_of_all_trees_under_masks_of_any_magnitude(scores, single_root):
    best = ranking(scores, single_root)
    if not best:
        return
    heads = tuple(decode(scores[None], None, single_root)[0].tolist())
    assert heads in TREES[len(scores), single_root]
    # scores of 1e6 are rounded by 1e-10 where no exact arithmetic is needed
    assert best[0] - exact_score(scores, heads) <= 1e-8
    assert torch.equal(
        TreeEntropy(single_root).argmax(scores[None])[0].argmax(0), decode(scores[None], None, single_root)[0]
    )


@given(scores=masked_scores(), single_root=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_best_trees_are_in_their_order_under_masks_of_any_magnitude(scores, single_root):
    best = ranking(scores, single_root)[:5]
    if not best:
        return
    ranked = [
        tuple(heads) for heads in k_best(scores[None], 5, None, single_root)[0][0].tolist() if heads[0] >= 0
    ]
    assert len(set(ranked)) == len(ranked) == len(best)
    assert all(
        abs(exact_score(scores, heads) - total) <= 1e-8 for heads, total in zip(ranked, best, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, D])
def test_a_tree_that_breaks_several_masks_has_the_lowest_finite_score(dtype):
    lowest = torch.finfo(dtype).min
    scores = torch.tensor([[[lowest, lowest], [-10.0, 2.0]]], dtype=dtype)
    heads, totals = k_best(scores, 5, None, single_root=False)
    assert heads[0].tolist() == [[1, 1], [0, 1], [0, 0], [-1, -1], [-1, -1]]
    assert totals[0].tolist() == [-8.0, lowest, lowest, -torch.inf, -torch.inf]


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_of_any_magnitude_gives_the_same_tree_as_minus_infinity(mask):
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(60, 6, 6, dtype=D, generator=generator)
    masked = torch.rand(60, 6, 6, generator=generator) < 0.3
    forbidden = scores.masked_fill(masked, -torch.inf)
    possible = torch.from_numpy(best_trees(forbidden.numpy(), np.full(60, 6), True)[1])
    # a mask of this size outweighs all other scores
    mask = min(mask, -1e4)
    expected = decode(forbidden[possible])
    assert possible.sum() > 30 and torch.equal(decode(scores.masked_fill(masked, mask)[possible]), expected)


@given(n=st.integers(2, 9), single_root=st.booleans(), seed=st.integers(0, 10_000), ties=st.booleans())
@settings(max_examples=30, deadline=None)
def test_arithmetic_in_integers_and_in_float64_agree(n, single_root, seed, ties):
    scores = torch.randn(4, n, n, dtype=D, generator=torch.Generator().manual_seed(seed))
    scores = (4 * scores).round() if ties else scores
    # a power of two changes no digit, but is beyond what float64 is trusted with
    heads, large = (decode(scale * scores, None, single_root) for scale in (1.0, 2.0**40))
    torch.testing.assert_close(
        *(scores.gather(1, own[:, None]).sum((1, 2)) for own in (heads, large)), atol=1e-9, rtol=0
    )
