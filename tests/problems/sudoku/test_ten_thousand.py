"""Ten thousand puzzles, many of them contradictory: no answer is wrong, and search decides each."""

import pytest
import torch

import unn
from problems.sudoku.grids import all_grids, declare, one_hot
from unn.extending import SearchOptions, SolverOptions, SolvingOptions

COUNT = 10_000


def puzzles():
    """Cells with random digits, some of them wrong, and whether any grid has them."""
    generator = torch.Generator().manual_seed(0)
    grids = all_grids(2, 2)
    chosen = grids[torch.randint(len(grids), (COUNT,), generator=generator)]
    wrong = torch.rand(COUNT, 4, 4, generator=generator) < 0.05
    digits = torch.where(wrong, torch.randint(4, (COUNT, 4, 4), generator=generator), chosen)
    share = torch.rand(COUNT, 1, 1, generator=generator)
    given = torch.rand(COUNT, 4, 4, generator=generator) < share
    possible = ((digits[:, None] == grids) | ~given[:, None]).all((2, 3)).any(1)
    return digits, given, possible


ENGINES = {
    "depth-first": lambda graph: unn.Search(graph, SearchOptions(mode="depth-first")),
    "focused": lambda graph: unn.Search(graph, SearchOptions(chains=2, solving_steps=20)),
    "solver": lambda graph: unn.Solver(graph, SolverOptions(width=8, solving_steps=16), {}),
    "solver without propagation": lambda graph: unn.Solver(
        graph, SolverOptions(width=8, solving_steps=16, propagation="once"), {}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_no_answer_of_ten_thousand_is_wrong_and_nothing_possible_is_called_impossible(engine):
    digits, given, possible = puzzles()
    assert 0.2 < float(possible.float().mean()) < 0.9
    torch.manual_seed(0)
    model = ENGINES[engine](declare(2, 2))
    evidence = {"X": unn.Partial(one_hot(digits, 4), given)}
    solutions = unn.solve(model, evidence, options=SolvingOptions(tries=2, at_once=COUNT))
    grids = solutions["X"].argmax(-1)
    kept = ((grids == digits) | ~given).all((1, 2))
    is_grid = (grids[:, None] == all_grids(2, 2)).all((2, 3)).any(1)
    solved = solutions.solved
    impossible = torch.tensor([outcome == "impossible" for outcome in solutions.outcomes])
    assert (kept & is_grid)[solved].all() and int(solved.sum()) > 1000
    assert not (impossible & possible).any() and int(impossible.sum()) > 1000
    if engine == "depth-first":
        assert torch.equal(solved, possible) and torch.equal(impossible, ~possible)
