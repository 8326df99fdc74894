"""Masks: their forms, copies, text, and matrices that are none."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graph_attention import CPU, KERNELS, all_kinds, inputs
from support.helpers import says
from support.structures import sorting, sudoku

import unn
from unn.ops.attention import AttentionMask, attention


def test_forms_of_a_mask_are_made_once():
    mask = AttentionMask(sorting(4).adjacency(i=4))
    for form in (mask.dense, mask.neighbours, mask.terms, mask.order):
        assert form(CPU) is form(CPU)
    made = []
    for _ in range(2):
        assert mask.cached("own", CPU, lambda: made.append(1) or "form") == "form"
    assert made == [1]
    # a kernel's own forms do not hide the mask's
    assert mask.cached("dense", CPU, lambda: "other") == "other" and mask.dense(CPU).dtype == torch.bool


@given(n=st.integers(0, 9), density=st.sampled_from([0.0, 0.2, 0.6, 1.0]), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_forms_of_a_mask_have_its_entries(n, density, seed):
    allowed = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < density
    mask = AttentionMask.of(allowed)
    assert torch.equal(mask.dense(CPU), allowed)
    counts = allowed.sum(1)
    assert (mask.count, mask.entries) == (n, int(allowed.sum()))
    assert mask.widest == (int(counts.max()) if n else 0) and mask.has_empty_rows == bool((counts == 0).any())
    neighbours, padding = mask.neighbours(CPU)
    assert neighbours.shape == padding.shape == (n, mask.widest)
    rebuilt = torch.zeros(n, n, dtype=torch.bool)
    for node in range(n):
        rebuilt[node, neighbours[node][~padding[node]]] = True
    assert torch.equal(rebuilt, allowed) and torch.equal((~padding).sum(1), counts)
    order, back = mask.order(CPU)
    assert torch.equal(order.sort().values, torch.arange(n)) and torch.equal(order[back], torch.arange(n))


def test_masks_are_copied_and_pickled_with_what_they_made():
    mask = all_kinds()[1]
    given = [x.detach() for x in inputs(mask.count)]
    for kernel in KERNELS:
        expected = attention(*given, mask, kernel)
        for copied in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
            assert torch.equal(attention(*given, copied, kernel), expected)


def test_masks_say_what_they_are():
    assert (
        repr(AttentionMask(sudoku(2, 2).adjacency()))
        == "AttentionMask(16 nodes, 128 entries, at most 8 in a row)"
    )


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (torch.ones(3, 3), ("(3, 3)", "torch.float32")),
        (torch.ones(3, 3, dtype=torch.uint8), ("torch.uint8",)),
        (torch.ones(3, 4, dtype=torch.bool), ("(3, 4)",)),
        (torch.ones(3, dtype=torch.bool), ("(3,)",)),
        (torch.ones(1, 3, 3, dtype=torch.bool), ("(1, 3, 3)",)),
        (np.ones((3, 3), dtype=bool), ("ndarray",)),
        (None, ("NoneType",)),
    ],
    ids=str,
)
def test_matrices_that_are_no_mask_are_refused(matrix, words):
    with pytest.raises(unn.ObservationError, match=says("mask", "bool", *words)):
        AttentionMask.of(matrix)
