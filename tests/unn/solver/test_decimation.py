"""Tries after the first fix values one after the other, and propagate what follows from them."""

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from unn.solver.layout import Layout
from unn.solver.model import Solver
from unn.solver.options import SolverOptions
from unn.solver.packing import log_probabilities, pack
from unn.solver.propagation import Known, evidence, propagate

HARD = [
    "800000000003600000070090200050007000000045700000100030001000068008500010090000400",
    "000000039000001005003050800008090006070002000100400000009080050020000600400700000",
]
"""A hard puzzle for people, and one for solvers."""


def sudoku(lines):
    cells = torch.tensor([[int(sign) for sign in line] for line in lines]).view(-1, 9, 9)
    hot = torch.nn.functional.one_hot((cells - 1).clamp(min=0), 9).float()
    return {"X": unn.Partial(hot, cells > 0)}


def solver(rows=3, **options):
    torch.manual_seed(0)
    return Solver(declare_sudoku(rows, rows), SolverOptions(width=8, **options), {})


def attempt(model, given, count, number, seed=0):
    return model.attempt(given, count, {}, 64, torch.Generator().manual_seed(seed), number)


def test_the_first_try_is_that_of_the_network_alone():
    given = sudoku(HARD)
    plain = attempt(solver(decimate_every=0), given, 2, 0)
    first = attempt(solver(decimate_every=4), given, 2, 0)
    later = attempt(solver(decimate_every=4), given, 2, 1)
    for _ in range(3):
        a, b, c = plain.advance(), first.advance(), later.advance()
        assert torch.equal(a["X"], b["X"])
    assert torch.equal(first.known.true, first.root.true)
    assert bool((later.known.true != later.root.true).any()) and not torch.equal(b["X"], c["X"])


def test_without_full_propagation_nothing_is_fixed():
    later = attempt(solver(decimate_every=4, propagation="once"), sudoku(HARD), 2, 3)
    for _ in range(4):
        later.advance()
    assert torch.equal(later.known.true, later.root.true)


def test_steps_between_two_fixed_values_are_those_of_the_option():
    later = attempt(solver(decimate_every=12), sudoku(HARD[:1]), 1, 1)
    changes = []
    for _ in range(9):
        before = later.known.open
        later.advance()
        changes.append(not torch.equal(later.known.open, before))
    assert changes == [False, False, True] * 3


def test_what_is_known_follows_from_the_evidence_and_is_never_contradictory():
    model = solver(decimate_every=4)
    layout = Layout(model.graph, {})
    given = sudoku(HARD)
    later = attempt(model, given, 2, 1)
    restarts = 0
    for _ in range(16):
        before = later.known
        later.advance()
        known = later.known
        assert not (known.true & known.false).any()
        assert (known.true >= later.root.true).all() and (known.false >= later.root.false).all()
        assert (propagate(layout, known)[1] < 0).all()
        restarts += int((known.true.sum(1) < before.true.sum(1)).sum())
        assert len(later.state) == later.packed.count == int(known.open.sum())
    assert restarts > 0


def test_a_row_without_an_open_candidate_starts_again():
    model = solver(2, decimate_every=4)
    later = attempt(model, {}, 3, 1)
    for _ in range(40):
        later.steps = 64
        later.advance()
        complete = ~later.known.open.any(1)
        if complete.any():
            break
    assert complete.any()
    later.steps = 64
    later.advance()
    assert later.known.open.any(1)[complete].all()


def test_kept_rows_continue_with_their_own_evidence():
    later = attempt(solver(decimate_every=4), sudoku(HARD), 2, 1)
    later.advance()
    later.keep(torch.tensor([1]))
    only = evidence(Layout(declare_sudoku(3, 3), {}), *later.layout.frame.observation(sudoku(HARD[1:]), 1))
    assert torch.equal(later.root.true, propagate(later.layout, only)[0].true)
    for _ in range(5):
        later.advance()
    assert (later.known.true >= later.root.true).all()


def test_probabilities_are_those_of_a_softmax_over_the_values_of_each_node():
    layout = Layout(declare_sudoku(2, 2), {})
    none = torch.zeros(2, layout.candidates, dtype=torch.bool)
    packed = pack(layout, Known(none, none))
    scores = torch.randn(packed.count)
    expected = scores.view(-1, 4).log_softmax(1).flatten()
    torch.testing.assert_close(log_probabilities(packed, scores), expected)
    assert log_probabilities(packed, torch.full_like(scores, torch.nan)).isfinite().all()
    assert log_probabilities(packed, 1e9 * scores).isfinite().all()


@pytest.mark.slow
def test_difficult_puzzles_are_verified_within_64_tries():
    solutions = unn.solve(
        solver(decimate_every=4), sudoku(HARD), options=unn.SolvingOptions(tries=64, steps=128)
    )
    assert solutions.outcomes == ("solved", "solved")
