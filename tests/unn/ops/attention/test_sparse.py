"""Attention over pairs of nodes: what is made once, and what is taken in parts."""

import tracemalloc
from unittest.mock import patch

import pytest
import torch
from support.graph_attention import (
    CPU,
    all_kinds,
    chain,
    check,
    expected_of,
    inputs,
    slope_of,
    with_gradients,
)
from support.structures import circuit

from tests.benchmarks.measure import peak_memory
from unn.ops.attention import AttentionMask, attention, relational, sparse


def test_pairs_of_several_copies_are_made_once_and_the_first_of_them_are_those_of_fewer():
    mask = AttentionMask.of(torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) < 0.4)
    with patch.object(sparse, "_AT_ONCE", 4 * mask.entries):
        whole, rest = mask.pairs(7, CPU)
        assert (
            (whole.copies, rest.copies) == (4, 3)
            and mask.pairs(4, CPU)[0] is whole
            and len(mask.pairs(8, CPU)) == 2
        )
    fewer = sparse.pairs_of(mask.adjacency, 3, CPU)
    for name, x in vars(fewer).items():
        assert x == rest.copies if name == "copies" else torch.equal(x, getattr(rest, name))


@pytest.mark.parametrize("graph", ["chain", "tree"])
def test_no_matrix_of_nodes_by_nodes_is_made_for_twenty_thousand_nodes(graph):
    tracemalloc.start()
    try:
        mask = AttentionMask((chain(20_000) if graph == "chain" else circuit(14)).adjacency())
        mask.terms(CPU), mask.pairs(1, CPU), mask.neighbours(CPU)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    given = inputs(mask.count, batch=1, heads=1, width=4, dtype=torch.float32)
    assert mask.count**2 > 400e6 / 4
    for kernel in ("relational", "sparse", "packed", "auto"):
        assert (
            peak_memory(
                lambda kernel=kernel: torch.autograd.grad(attention(*given, mask, kernel).sum(), given)
            )
            < 60e6
        )
    slope = slope_of(given)
    expected = [
        x.double() for x in with_gradients(lambda q, k, v: attention(q, k, v, mask, "packed"), given, slope)
    ]
    for kernel in ("relational", "sparse", "auto"):
        check(
            with_gradients(lambda q, k, v, kernel=kernel: attention(q, k, v, mask, kernel), given, slope),
            expected,
            2e-6,
        )


def test_batches_that_are_too_large_to_gather_at_once_are_taken_in_parts():
    mask = all_kinds()[1]
    given = inputs(mask.count, batch=3, heads=2)
    slope = slope_of(given)
    expected = expected_of(given, mask.adjacency.dense(), slope)
    for most in (0, 1, 200, 500):
        with patch.object(relational, "_AT_ONCE", most), patch.object(sparse, "_AT_ONCE", most):
            for kernel in ("relational", "sparse"):
                mask = AttentionMask(mask.adjacency)
                check(
                    with_gradients(
                        lambda q, k, v, kernel=kernel: attention(q, k, v, mask, kernel), given, slope
                    ),
                    expected,
                    1e-12,
                )
