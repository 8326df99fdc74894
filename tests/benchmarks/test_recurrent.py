"""The training of the recurrent transformer by time: rates, and attention of a network that is known."""

import pytest
import torch

from problems.sudoku.grids import declare, draw_grids, one_hot
from problems.sudoku.puzzles import Puzzles
from tests.benchmarks.recurrent import Schedule, attention_shares, optimizer_of, step_of
from unn.recurrent.model import RecurrentModel
from unn.recurrent.options import RecurrentOptions

SMALL = RecurrentOptions(width=16, heads=2, recurrences=3, dropout=0.0)


def sample(count=32):
    generator = torch.Generator().manual_seed(0)
    return Puzzles(draw_grids(count, 2, 2, generator), torch.rand(count, 4, 4, generator=generator) < 0.5)


def test_the_rate_rises_rests_and_falls_to_zero():
    schedule = Schedule(seconds=10.0, rate=0.5)
    rates = [schedule.rate_at(share) for share in (0, 0.005, 0.01, 0.3, 0.6, 0.8, 1, 1.01)]
    assert rates == pytest.approx([0, 0.25, 0.5, 0.5, 0.5, 0.25, 0, 0])


def test_a_network_without_queries_attends_to_every_cell_alike():
    model = RecurrentModel(declare(2, 2), SMALL, {})
    with torch.no_grad():
        for block in model.network.blocks:
            block.query_key_value.weight.zero_()
    shares = attention_shares(model, sample(), (2, 2))
    for name, cells in (("row", 4), ("column", 4), ("block", 4), ("neighbours", 8)):
        torch.testing.assert_close(shares[name], torch.full((2,), cells / 16))


def test_steps_on_the_same_puzzles_lower_their_loss():
    torch.manual_seed(0)
    model, puzzles = RecurrentModel(declare(2, 2), SMALL, {}), sample()
    rows, nodes = one_hot(puzzles.grids, 4).flatten(1), puzzles.given.flatten(1)
    step = step_of(model, optimizer_of(model, 3e-3, captured=False), rows, nodes, bfloat16=False)
    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]
