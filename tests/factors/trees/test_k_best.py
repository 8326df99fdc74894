"""The k best trees, against the list of all of them."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import TreeEntropy
from factors.trees.k_best import k_best


def trees(n, single_root):
    """The heads of all arborescences, a root its own head."""

    def hangs(node, heads):
        for _ in range(n):
            node = heads[node]
        return heads[node] == node

    every = (heads for heads in product(range(n), repeat=n) if all(hangs(node, heads) for node in range(n)))
    return [heads for heads in every if not single_root or sum(h == m for m, h in enumerate(heads)) == 1]


@given(
    n=st.integers(1, 4),
    single_root=st.booleans(),
    forbidden=st.booleans(),
    k=st.integers(1, 12),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_they_are_the_first_of_all_trees_in_order_of_their_scores(n, single_root, forbidden, k, seed):
    scores = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if forbidden and n > 2:
        scores[0, 1] = -torch.inf
    every = torch.tensor(trees(n, single_root))
    totals = scores.gather(0, every).sum(1).sort(descending=True).values
    totals = totals[totals > -torch.inf][:k]
    heads, best_totals = k_best(scores[None], k, single_root=single_root)
    torch.testing.assert_close(best_totals[0, : len(totals)], totals)
    assert (best_totals[0, len(totals) :] == -torch.inf).all() and (heads[0, len(totals) :] == -1).all()
    own = heads[0, : len(totals)]
    assert len(set(map(tuple, own.tolist()))) == len(totals) and set(map(tuple, own.tolist())) <= set(
        map(tuple, every.tolist())
    )
    torch.testing.assert_close(scores.gather(0, own).sum(1), totals)


@pytest.mark.parametrize("layout", ["packed", "rooted"])
def test_the_regularizer_ranks_trees_in_its_layout_and_leaves_out_padding(layout):
    trees_of = TreeEntropy(layout=layout)
    n = 4
    scores = torch.randn(2, n + (layout == "rooted"), n, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(scores, dtype=torch.bool)
    mask[1, 3:] = False
    mask[1, :, 2:] = False
    mask[1, 2 + (layout == "rooted") :] = False
    best_trees, totals = trees_of.k_best(scores, 3, mask)
    assert torch.equal(best_trees[0], trees_of.argmax(scores, mask))
    assert trees_of.contains(best_trees[0], mask).all() and trees_of.contains(best_trees[1], mask).all()
    torch.testing.assert_close((best_trees * scores).sum((2, 3))[:2], totals[:2])
    # two words have two trees with one root
    assert totals[2, 1] == -torch.inf and not best_trees[2, 1].any()


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(unn.ObservationError, match=says("whole number >= 1", "0")):
        k_best(torch.zeros(1, 2, 2), 0)
    with pytest.raises(unn.ObservationError, match=says("sentence 1", "no arborescence")):
        k_best(torch.stack([torch.zeros(2, 2), torch.full((2, 2), -torch.inf)]), 2)
    with pytest.raises(unn.ObservationError, match=says("(1, 2, 3, 3)")):
        TreeEntropy().k_best(torch.zeros(1, 2, 3, 3), 2)
