"""Sparse sums over open candidates agree with loops, and have the right gradients."""

import pytest
import torch
from support.sudoku_graph import declare_sudoku

from unn.solver.layout import Layout
from unn.solver.packing import group_sums, pack, rectified_pair_sums
from unn.solver.propagation import evidence, exclude


def packed(seed=0):
    layout = Layout(declare_sudoku(2, 2), {})
    generator = torch.Generator().manual_seed(seed)
    grid = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])
    rows = torch.eye(4)[grid].view(1, -1).expand(2, -1)
    nodes = torch.rand(2, 16, generator=generator) < 0.3
    known = exclude(layout, evidence(layout, rows, nodes))
    return layout, known, pack(layout, known)


def test_candidates_and_groups_are_those_that_are_open():
    layout, known, p = packed()
    assert p.count == int(known.open.sum())
    assert bool(known.open[p.row, p.candidate].all())
    open_groups = {
        (row, int(group))
        for row in range(2)
        for candidate, group in zip(layout.candidate.tolist(), layout.group.tolist(), strict=True)
        if known.open[row, candidate]
    }
    assert {(int(r), int(g)) for r, g in zip(p.group_row, p.group, strict=True)} == open_groups
    assert bool((p.lower == 1).all()) and bool((p.upper == 1).all())
    assert sum(p.kinds) == len(p.group)
    for place in range(p.count):
        node = int(p.node[place])
        assert int(p.group[node]) == int(layout.node[p.candidate[place]])
        assert int(p.group_row[node]) == int(p.row[place])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_agree_with_loops_over_pairs(dtype):
    _, _, p = packed()
    x, y = torch.randn(p.count, 3, dtype=dtype), torch.randn(len(p.group), 3, dtype=dtype)
    sums = torch.zeros(len(p.group), 3, dtype=dtype)
    pairs = torch.zeros(p.count, 3, dtype=dtype)
    for candidate, group in zip(p.pair_candidate.tolist(), p.pair_group.tolist(), strict=True):
        sums[group] += x[candidate]
        pairs[candidate] += (x[candidate] + y[group]).relu()
    torch.testing.assert_close(group_sums(x, p), sums)
    torch.testing.assert_close(rectified_pair_sums(x, y, p), pairs)


def test_gradients_of_sums_agree_with_finite_differences():
    _, _, p = packed(seed=3)
    x = torch.randn(p.count, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(len(p.group), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: group_sums(x, p), (x,))
    assert torch.autograd.gradcheck(lambda x, y: rectified_pair_sums(x, y, p), (x, y))
