"""A time limit is kept to within one update of the engine, not one answer."""

import time

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from unn.engine import SolvingOptions
from unn.search import tree
from unn.search.model import _Attempt as Chains
from unn.solver.model import Solver
from unn.solver.options import SolverOptions

SEARCHES = [
    ("annealed", Chains, "_update"),
    ("focused", Chains, "_update"),
    ("depth-first", tree.DepthFirst, "_visit"),
]


class Clock:
    """A clock that a function moves on by a second at each call."""

    def __init__(self, monkeypatch, owner, name):
        self.calls, inner = 0, getattr(owner, name)

        def counted(*args, **options):
            self.calls += 1
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, counted)
        monkeypatch.setattr(time, "perf_counter", lambda: float(self.calls))


@pytest.mark.parametrize(("mode", "owner", "name"), SEARCHES)
def test_a_search_stops_with_the_update_in_which_the_time_ends(monkeypatch, mode, owner, name):
    clock = Clock(monkeypatch, owner, name)
    model = unn.Search(declare_sudoku(3, 3), unn.SearchOptions(mode=mode, chains=1))
    solutions = unn.solve(model, {}, count=1, options=SolvingOptions(seconds=3.5, tries=100))
    assert clock.calls == 4
    assert solutions.seconds == 4


def test_a_solver_stops_with_the_step_in_which_the_time_ends(monkeypatch):
    clock = Clock(monkeypatch, Solver, "step")
    torch.manual_seed(0)
    model = Solver(declare_sudoku(3, 3), SolverOptions(), {})
    solutions = unn.solve(model, {}, count=1, options=SolvingOptions(seconds=4.5, tries=100))
    assert clock.calls == 5
    assert solutions.outcomes == ("unsolved",)
