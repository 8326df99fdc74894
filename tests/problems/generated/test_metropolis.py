"""Metropolis-Hastings: its chains end where enumeration and algebra say, for models of the tests and for the
programs of the problems."""

import itertools
import math

import pytest
import torch
from scipy import stats
from support.helpers import says

import unn
from problems.factorisation import graph as factorisation
from problems.factorisation.chain import factorisation as factorisation_program
from problems.generated.metropolis import Program, Site, metropolis
from problems.sorting import graph as sorting
from problems.sorting.chain import sorting as sorting_program
from problems.sudoku import grids as sudoku
from problems.sudoku.chain import sudoku as sudoku_program

PUZZLE = torch.tensor([[1, 2, 3, 4], [3, 4, 1, 2], [2, 0, 4, 3], [4, 3, 0, 0]])[None]


def table(seed=0):
    """A coin a that is 1 with probability 0.3 and two choices b among three: 18 states with a likelihood
    each."""
    likelihood = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
    likelihood[1, 0, 1] = 0
    sites = {
        "a": Site((), lambda count, g: torch.rand(count, generator=g) < 0.3, torch.zeros_like),
        "b": Site((2,), lambda count, g: torch.randint(3, (count,), generator=g), torch.zeros_like),
    }

    def log_likelihood(values):
        a, b = values["a"].long(), values["b"].long()
        return likelihood[a, b[:, 0], b[:, 1]].log()

    prior = torch.tensor([0.7, 0.3], dtype=torch.float64).view(2, 1, 1)
    return sites, log_likelihood, prior * likelihood


def chi_square(states, weights):
    """The probability of a worse fit, over the states that are possible."""
    hits = torch.bincount(states, minlength=weights.numel()).double()
    assert not hits[weights == 0].any()
    possible = weights > 0
    expected = weights[possible] / weights.sum() * len(states)
    return stats.chisquare(hits[possible].numpy(), expected.numpy()).pvalue


def test_chains_end_in_the_posterior_of_a_discrete_model():
    sites, log_likelihood, joint = table()
    states = metropolis(Program(sites, log_likelihood), 4000, 150, seed=0)
    a, b = states["a"].long(), states["b"].long()
    assert chi_square(a * 9 + b[:, 0] * 3 + b[:, 1], joint.flatten()) > 1e-3
    assert states["a"].shape == (4000,) and states["b"].shape == (4000, 2)
    assert 0.2 < states.acceptance.mean() < 0.95


def test_given_choices_stay_in_some_chains_or_all():
    """In even chains the first b is given, in odd ones the second; the coin nowhere."""
    sites, log_likelihood, joint = table()
    chains = 4000
    mask = torch.tensor([[True, False], [False, True]]).repeat(chains // 2, 1)
    given = {"b": unn.Partial(torch.full((chains, 2), 2), mask)}
    states = metropolis(Program(sites, log_likelihood, given), chains, 100, seed=1)
    assert (states["b"][mask] == 2).all()
    a, b = states["a"].long(), states["b"].long()
    assert chi_square(a[::2] * 3 + b[::2, 1], joint[:, 2].flatten()) > 1e-3
    assert chi_square(a[1::2] * 3 + b[1::2, 0], joint[:, :, 2].flatten()) > 1e-3


def test_where_all_is_given_nothing_moves():
    sites, log_likelihood, _ = table()
    given = {
        "a": unn.Partial(torch.ones(1), torch.ones(1, dtype=torch.bool)),
        "b": unn.Partial(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)),
    }
    states = metropolis(Program(sites, log_likelihood, given), 3, 10, seed=0)
    assert (states["a"] == 1).all() and (states["b"] == 1).all() and not states.acceptance.any()


@pytest.mark.parametrize("drift", [0.0, 0.9])
def test_chains_end_in_the_posterior_of_a_gaussian_model(drift):
    """x is standard normal, y = x0 + x1 + noise of deviation 0.5 is 1.5: x0 + x1 and x0 - x1 are independent
    normal numbers."""
    site = Site((2,), lambda count, g: torch.randn(count, generator=g), lambda x: -(x**2) / 2, drift)
    program = Program({"x": site}, lambda values: -((values["x"].sum(1) - 1.5) ** 2) / (2 * 0.25))
    x = metropolis(program, 2500, 150, seed=0)["x"]
    total, difference = x.sum(1), x[:, 0] - x[:, 1]
    shrink = 2 / 2.25
    assert stats.kstest(total.numpy(), "norm", (1.5 * shrink, math.sqrt(2 * 0.25 / 2.25))).pvalue > 1e-3
    assert stats.kstest(difference.numpy(), "norm", (0, math.sqrt(2))).pvalue > 1e-3


def test_chains_that_start_in_the_impossible_find_their_way():
    """Only one of 8 states has a likelihood, and its neighbours have none."""
    site = Site((3,), lambda count, g: torch.randint(2, (count,), generator=g), torch.zeros_like)
    program = Program({"x": site}, lambda values: values["x"].prod(1).log())
    states = metropolis(program, 100, 100, seed=0)
    assert (states["x"] == 1).all() and (states.log_likelihood == 0).all()


def test_a_seed_says_all():
    sites, log_likelihood, _ = table()
    runs = [metropolis(Program(sites, log_likelihood), 20, 5, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(runs[0]["b"], runs[1]["b"]) and torch.equal(runs[0].acceptance, runs[1].acceptance)
    assert not torch.equal(runs[0]["b"], runs[2]["b"])


def test_small_puzzles_are_completed():
    states = metropolis(sudoku_program(PUZZLE, 2, 2), 50, 400, seed=0)
    grids = states["X"].argmax(3) + 1
    assert states["X"].shape == (50, 4, 4, 4)
    assert (grids == PUZZLE)[(PUZZLE > 0).expand(50, -1, -1)].all()
    wrong = sudoku.violated_pairs(grids - 1, 2, 2)
    assert (wrong == 0).float().mean() > 0.9
    right = (56 - wrong) * math.log(0.9999) + wrong * math.log(1e-4)
    torch.testing.assert_close(states.log_likelihood, right.double(), atol=1e-4, rtol=0)


def test_two_completions_are_equally_frequent():
    two = torch.tensor([[0, 0, 3, 4], [3, 4, 0, 0], [0, 0, 4, 3], [4, 3, 0, 0]])
    possible = torch.tensor(list(sudoku.completions(two.flatten().tolist(), 2, 2))).view(-1, 4, 4)
    grids = metropolis(sudoku_program(two[None], 2, 2, certainty=0.9), 400, 300, seed=0)["X"].argmax(3) + 1
    hits = torch.tensor([int((grids == grid).all(2).all(1).sum()) for grid in possible])
    assert hits.sum() > 40
    assert stats.chisquare(hits.numpy()).pvalue > 1e-3


def test_each_chain_has_its_own_puzzle():
    grids = sudoku.all_grids(2, 2)[:6] + 1
    puzzles = grids.clone()
    puzzles[:, 0, :2] = 0
    puzzles[3] = grids[3]
    states = metropolis(sudoku_program(puzzles, 2, 2), 6, 200, seed=0)
    assert torch.equal(states["X"].argmax(3) + 1, grids)
    assert states.acceptance[3] == 0


def test_short_lists_are_sorted_as_often_as_enumeration_says():
    u = torch.tensor([[0.3, -1.0, 0.8]])
    program = sorting_program(u, certainty=0.8)
    states = metropolis(program, 3000, 100, seed=0)
    every = torch.tensor(list(itertools.product(range(3), repeat=3)))
    weights = program.log_likelihood({"choice": every.double()}).exp()
    choice = states["P"].argmax(2)
    assert chi_square(choice @ torch.tensor([9, 3, 1]), weights) > 1e-3
    torch.testing.assert_close(states["s"], (states["P"] @ u[0, :, None])[:, :, 0])
    # all five constraints are met by the sorted list alone
    assert every[int(weights.argmax())].tolist() == [1, 0, 2]
    assert weights.max().item() == pytest.approx(0.8**5)
    assert weights.sort(descending=True).values[1].item() == pytest.approx(0.8**4 * 0.2)


def test_longer_lists_become_more_sorted():
    u = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    before, after = (metropolis(sorting_program(u, certainty=0.98), 40, steps, seed=0) for steps in (1, 800))
    assert sorting.error(u, after["P"]) < 0.8 * sorting.error(u, before["P"])
    assert after.log_likelihood.mean() > before.log_likelihood.mean() + 5


@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_matrices_are_factorised_by_chains(drift):
    values = factorisation.generate("binary", False, 30, 3, 3, 2, torch.Generator().manual_seed(0))
    E = values["E"]
    program = factorisation_program(E, 2, deviation=0.03, drift=drift)
    states = metropolis(program, 30, 1500, seed=0)
    assert set(states["R"].flatten().tolist()) == {0.0, 1.0}
    assert (states["A"] >= 0).all() and (states["A"] <= 1).all()
    assert factorisation.error(states.values, E) < 0.2
    log_likelihood = -((states["A"].double() @ states["R"].double() - E.double()) ** 2).sum((1, 2)) / (
        2 * 0.03**2
    )
    torch.testing.assert_close(states.log_likelihood, log_likelihood, atol=1e-2, rtol=1e-4)


def test_one_observation_serves_all_chains():
    assert metropolis(sorting_program(torch.randn(1, 3)), 5, 2, seed=0)["P"].shape == (5, 3, 3)
    assert metropolis(factorisation_program(torch.rand(1, 2, 3), 2), 5, 2, seed=0)["A"].shape == (5, 2, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((0, 1, 0), ["chains", "0"]),
        ((1, 0, 0), ["steps", "0"]),
        ((1, 1.5, 0), ["steps", "1.5"]),
        ((1, 1, -1), ["seed", "-1"]),
    ],
)
def test_bad_counts_of_chains_are_refused(options, words):
    sites, log_likelihood, _ = table()
    with pytest.raises(unn.ArgumentError, match=says("metropolis", *words)):
        metropolis(Program(sites, log_likelihood), *options)


def test_bad_programs_are_refused():
    sites, log_likelihood, _ = table()
    for bad in (lambda values: values["b"], lambda values: values["a"] * torch.nan):
        with pytest.raises(unn.ArgumentError, match=says("log-likelihood", "(3,)")):
            metropolis(Program(sites, bad), 3, 1, 0)
    for empty in ({}, {"a": Site((0,), lambda count, g: torch.rand(count, generator=g), torch.zeros_like)}):
        with pytest.raises(unn.ArgumentError, match="no random choices"):
            metropolis(Program(empty, log_likelihood), 3, 1, 0)
    good = unn.Partial(torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool))
    for given, words in [
        ({"c": good}, ["'c'", "a", "b"]),
        ({"b": unn.Partial(torch.zeros(3, 3), good.mask)}, ["'b'", "(3, 3)"]),
        ({"b": unn.Partial(torch.zeros(2, 2), good.mask)}, ["'b'", "3 chains", "(2, 2)"]),
        ({"b": unn.Partial(good.value, good.value)}, ["mask", "boolean"]),
    ]:
        with pytest.raises(unn.ObservationError, match=says(*words)):
            metropolis(Program(sites, log_likelihood, given), 3, 1, 0)


def test_bad_observations_of_programs_are_refused():
    for puzzles in (PUZZLE[0], PUZZLE.float(), PUZZLE[:, :3], PUZZLE + 3, -PUZZLE, PUZZLE.tolist()):
        with pytest.raises(unn.ObservationError, match=says("puzzles", "2 x 2")):
            sudoku_program(puzzles, 2, 2)
    with pytest.raises(unn.ArgumentError, match=says("certainty", "1.0")):
        sudoku_program(PUZZLE, 2, 2, certainty=1.0)
    for u in (
        torch.rand(3),
        torch.rand(0, 3),
        torch.tensor([[torch.nan]]),
        torch.ones(1, 3, dtype=torch.int64),
        [[1.0]],
    ):
        with pytest.raises(unn.ObservationError, match=says("u", "(count, n)")):
            sorting_program(u)
    with pytest.raises(unn.ObservationError, match=says("u", "2", "3 chains")):
        metropolis(sorting_program(torch.rand(2, 3)), 3, 1, 0)
    with pytest.raises(unn.ObservationError, match=says("E", "2", "3 chains")):
        metropolis(factorisation_program(torch.rand(2, 3, 3), 2), 3, 1, 0)
    with pytest.raises(unn.ArgumentError, match=says("rank", "0")):
        factorisation_program(torch.rand(1, 2, 2), 0)
    with pytest.raises(unn.ObservationError, match="NaN"):
        factorisation_program(torch.full((1, 2, 2), torch.nan), 1)
    for deviation, drift in ((0.0, 0.0), (0.1, -1.0)):
        with pytest.raises(unn.ArgumentError, match=says("deviation", "drift")):
            factorisation_program(torch.rand(1, 2, 2), 1, deviation, drift)
