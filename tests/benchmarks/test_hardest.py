"""The training on difficult puzzles: rates, and examples of each set alike."""

import pytest
import torch

from problems.sudoku.grids import draw_grids, violated_pairs
from problems.sudoku.puzzles import Puzzles
from tests.benchmarks.hardest import Schedule, draw


def sample(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return Puzzles(draw_grids(count, 3, 3, generator), torch.rand(count, 9, 9, generator=generator) < 0.4)


def test_the_rate_rises_rests_and_falls_to_a_thirtieth():
    schedule = Schedule(seconds=10.0, rate=0.5)
    rates = [schedule.rate_at(share) for share in (0, 0.005, 0.01, 0.3, 0.65, 1, 1.01)]
    assert rates == pytest.approx([0, 0.25, 0.5, 0.5, 0.5 * (1 + 0.03) / 2, 0.015, 0.015])


def test_each_set_gives_about_as_many_examples_whatever_its_size():
    few, many = sample(3, 0), sample(60, 1)
    X, given = draw([few, many], 400, torch.Generator().manual_seed(0))
    grids = X.argmax(-1)
    assert not bool(violated_pairs(grids, 3, 3).any())
    assert given.shape == (400, 9, 9)
    of_few = (grids[:, None] == few.grids).flatten(2).all(2)
    assert 160 < int(of_few.any(1).sum()) < 240
    # grids have their own masks
    for k in range(3):
        assert torch.equal(given[of_few[:, k]], few.given[k].expand(int(of_few[:, k].sum()), 9, 9))
