"""Samples that break a constraint are drawn again, each from its own seed."""

import pytest
import torch
from support.diffusion import made, violations, with_network
from support.helpers import says
from support.problem_graphs import all_grids, one_hot_grids, sudoku
from support.toy import same_tensors

import unn
from factors import Cardinality
from unn.diffusion import SAMPLERS

EVERY_SAMPLER = pytest.mark.parametrize("sampler", list(SAMPLERS))


def undecided(model):
    """The model with a network that makes a valid grid or a wrong one of what it sees in the first cell."""
    grids = all_grids(2, 2)
    wrong = grids[0].clone()
    wrong[3, 3] = (wrong[3, 3] + 1) % 4
    good, bad = (
        (one_hot_grids(grid[None], 4).flatten().double() - 0.25) / 0.1875**0.5 for grid in (grids[-1], wrong)
    )
    assert good[0] < bad[0]
    return with_network(model, lambda rows, *_: torch.where(rows[:, :1] < 0.3, good, bad))


@EVERY_SAMPLER
def test_samples_that_break_a_constraint_are_drawn_again(sampler):
    model = undecided(made(sudoku(2, 2)))
    options = {"steps": 3, "sampler": sampler, "seed": 1, "at_once": 5}
    plain = model.sample(count=24, **options)
    assert plain.valid is None and plain.tries.tolist() == [1] * 24
    first = None
    for tries in (1, 2, 4):
        samples = model.sample(count=24, verify=True, tries=tries, **options)
        assert torch.equal(samples.valid, violations(samples["X"]) == 0) and samples.valid.dtype == torch.bool
        assert (
            (samples.tries[~samples.valid] == tries).all()
            and samples.tries.min() >= 1
            and samples.tries.max() <= tries
        )
        if first is None:
            first = samples
            assert same_tensors(samples.values, plain.values) and 0 < int(samples.valid.sum()) < 24
        # what was valid at once is left alone
        assert (
            torch.equal(samples["X"][first.valid], first["X"][first.valid])
            and (samples.tries[first.valid] == 1).all()
        )
        assert torch.equal(samples.tries == 1, first.valid | torch.tensor(tries == 1))
    assert samples.valid.sum() > first.valid.sum()


def test_samples_are_drawn_again_from_their_own_seed():
    model = undecided(made(sudoku(2, 2)))
    whole = model.sample(count=8, steps=3, seed=range(8), verify=True, tries=3)
    for k in range(8):
        alone = model.sample(count=1, steps=3, seed=[k], verify=True, tries=3)
        assert (
            torch.equal(alone["X"][0], whole["X"][k])
            and alone.tries[0] == whole.tries[k]
            and alone.valid[0] == whole.valid[k]
        )


def test_validity_is_what_the_factors_say():
    g = sudoku(2, 2)
    model = made(g)
    X = one_hot_grids(all_grids(2, 2), 4)
    assert model.valid({"X": X}).all() and not violations(X).any()
    X = X[torch.arange(288).roll(1)].clone()
    X[::2, 1] = X[::2, 2]
    expected = sum(factor.violations(X) for factor in g.factors.values() if isinstance(factor, Cardinality))
    assert torch.equal(model.valid({"X": X}), expected == 0) and torch.equal(expected, violations(X).long())
    with pytest.raises(unn.ArgumentError, match=says("no constraint")):
        made().sample(count=2, steps=1, verify=True)


@EVERY_SAMPLER
def test_a_puzzle_without_a_solution_is_sampled_and_reported(sampler):
    model = made(sudoku(2, 2))
    # the same digit twice in a row
    X = one_hot_grids(torch.zeros(1, 4, 4, dtype=torch.int64), 4)
    where = torch.zeros(1, 4, 4, dtype=torch.bool)
    where[0, 0, :2] = True
    samples = model.sample({"X": unn.Partial(X, where)}, 3, steps=2, sampler=sampler, verify=True, tries=3)
    assert samples.valid.tolist() == [False] * 3 and samples.tries.tolist() == [3] * 3
    assert (samples["X"][:, 0, :2].argmax(2) == 0).all()
    samples = model.sample({"X": X}, 2, steps=2, sampler=sampler, verify=True, tries=2)
    assert samples.valid.tolist() == [False] * 2 and torch.equal(
        samples["X"], X.expand(2, -1, -1, -1).double()
    )
