"""The problems for denoisers: what they generate and declare, the files they read, and all of them on the
command line."""

import gzip
import itertools
import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from problems.boolean import graph as boolean
from problems.boolean.problem import BooleanProblem
from problems.factorisation import graph as factorisation
from problems.factorisation.problem import (
    FactorisationProblem,
    HierarchicalProblem,
    InversionProblem,
    any_nodes,
)
from problems.sorting import graph as sorting
from problems.sorting.problem import SortingProblem
from problems.sudoku import grids as sudoku
from problems.sudoku.files import grid_lines, read_puzzles
from problems.sudoku.problem import SudokuProblem
from unn.cli.main import main
from unn.cli.measures import ProblemExamples, measure
from unn.cli.open import open_trained
from unn.diffusion import SAMPLERS
from unn.extending import DenoiserOptions, Query, SamplingOptions
from unn.networks import Frame
from unn.training.batches import seed_of

GOLDEN = Path(__file__).parents[2] / "golden"
KINDS = (
    SudokuProblem,
    SortingProblem,
    FactorisationProblem,
    HierarchicalProblem,
    InversionProblem,
    BooleanProblem,
)
PROBLEMS = {kind.name: kind() for kind in KINDS}
EVERY_PROBLEM = pytest.mark.parametrize("name", PROBLEMS)

CONFIGS = {
    "sudoku": [{}, {"block_rows": 2, "block_columns": 3}],
    "sorting": [
        {},
        {"intermediate": False, "length": 3},
        {"order": "clique"},
        {"order": "none", "observe": "any"},
        {"length": 1},
    ],
    "factorisation": [
        {},
        {"intermediate": False, "rows": 2, "columns": 3, "rank": 4},
        {"vary": True, "observe": "any"},
        {"rows": 1, "rank": 1},
    ],
    "hierarchical": [
        {},
        {"intermediate": False, "rank": 3},
        {"vary": True, "columns": 2},
        {"observe": "any"},
    ],
    "inversion": [{"rows": 3, "columns": 3, "rank": 3}, {"observe": "any", "intermediate": False}],
    "boolean": [{}, {"intermediate": False}, {"layers": 1}, {"layers": 4, "gates": 3}],
}
EVERY_CONFIG = pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, many in CONFIGS.items() for options in many], ids=str
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# -- what all problems generate ------------------------------------------------------------------------------


@EVERY_CONFIG
def test_examples_have_the_variables_shapes_and_kinds_of_the_graph(name, options):
    problem = PROBLEMS[name]
    config = problem.config_for(None)(**options)
    problem.check(config)
    graph = problem.declare(config)
    draws = generator(3)
    for _ in range(5):
        sizes = problem.sizes(config, draws) or problem.test_sizes(config)
        values = problem.generate(config, 7, draws, sizes)
        frame = Frame(graph, sizes)
        assert set(values) == set(graph.variables)
        assert {k: tuple(x.shape[1:]) for k, x in values.items()} == {
            k: slot.shape for k, slot in frame.slots.items()
        }
        assert frame.flatten(values).shape == (7, frame.numbers)
        where = problem.observed(config, 7, draws, sizes)
        for variable, mask in where.items():
            assert mask.dtype == torch.bool
            mask.expand(7, *frame.slots[variable].node_shape)


@EVERY_CONFIG
def test_the_same_seed_generates_the_same_examples(name, options):
    problem = PROBLEMS[name]
    config = problem.config_for(None)(**options)
    examples = ProblemExamples(problem, config)
    assert len(examples) == 0
    first, same, other = (examples.batch(torch.arange(8), generator(seed)) for seed in (1, 1, 2))
    assert first[0] == same[0]
    assert [weight for weight, _ in first[2]] == [weight for weight, _ in same[2]] == [1]
    for a, b in ((first[1], same[1]), (first[2][0][1], same[2][0][1])):
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert first[0] != other[0] or any(not torch.equal(first[1][key], other[1][key]) for key in first[1])


@EVERY_PROBLEM
def test_so_many_examples_are_made_once_and_shown_again(name):
    problem = PROBLEMS[name]
    config = problem.config_for(None)(examples=10)
    examples = problem.task(config).examples()
    assert len(examples) == 10
    every = examples.batch(torch.arange(10), generator(0))[1]
    some = torch.tensor([3, 3, 9])
    again = examples.batch(some, generator(5))[1]
    assert all(torch.equal(again[key], every[key][some]) for key in every)
    other = ProblemExamples(problem, config)
    assert all(torch.equal(other.samples[key], every[key]) for key in every)
    more = ProblemExamples(problem, replace(config, training=replace(config.training, seed=1)))
    assert any(not torch.equal(more.samples[key], every[key]) for key in every)
    drawn = problem.generate(config, 10, generator(seed_of(0, 5)), problem.test_sizes(config))
    assert all(torch.equal(drawn[key], every[key]) for key in every)


@EVERY_CONFIG
def test_measures_of_perfect_samples_are_perfect(name, options):
    problem = PROBLEMS[name]
    config = problem.config_for(None)(**options)
    best = {"valid": 1.0, "violated_pairs": 0.0, "rmse": 0.0, "permutations": 1.0, "accuracy": 1.0}
    sizes = problem.test_sizes(config)
    values = problem.generate(config, 20, generator(1), sizes)
    observed = {"sorting": ["u"], "boolean": ["L0"], "sudoku": ["X"], "inversion": ["A", "E"]}.get(
        name, ["E"]
    )
    found = problem.metrics(config, Query({key: values[key] for key in observed}), values)
    # of few numbers, as they are
    assert found.pop("unused_spread", 1.0) == pytest.approx(1, abs=0.7)
    assert found and all(value == pytest.approx(best[metric], abs=1e-5) for metric, value in found.items())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("factorisation", {"rows": 3, "columns": 2, "rank": 2}),
        ("hierarchical", {"rank": 3}),
        ("sorting", {"length": 3}),
    ],
    ids=str,
)
def test_any_subset_of_the_nodes_is_observed_how_many_is_uniform(name, options):
    problem = PROBLEMS[name]
    graph = problem.declare(problem.config_for(None)(**options))
    sizes = problem.test_sizes(problem.config_for(None)(**options))
    shapes = graph.adjacency(**sizes).shapes
    draws = 12_000
    found = any_nodes(graph, draws, generator(0), sizes)
    assert {key: tuple(x.shape) for key, x in found.items()} == {
        key: (draws, *shape) for key, shape in shapes.items()
    }
    assert all(x.dtype == torch.bool for x in found.values())
    flat = torch.cat([x.reshape(draws, -1) for x in found.values()], 1)
    nodes = flat.shape[1]
    counts = torch.bincount(flat.sum(1), minlength=nodes).double()
    assert len(counts) == nodes and counts.min() > 0
    # chi-square, five standard deviations above its mean
    assert float(((counts - draws / nodes) ** 2 / (draws / nodes)).sum()) < nodes - 1 + 5 * math.sqrt(
        2 * (nodes - 1)
    )
    share = flat.double().mean(0)
    assert (share - (nodes - 1) / (2 * nodes)).abs().max() < 5 * 0.5 / draws**0.5
    again = any_nodes(graph, draws, generator(0), sizes)
    assert all(torch.equal(again[key], found[key]) for key in found)


def test_sizes_that_vary_are_drawn_from_one_to_the_largest():
    problem = PROBLEMS["factorisation"]
    config = problem.config_for(None)(rows=3, columns=2, rank=2, vary=True)
    draws = generator(0)
    seen = {tuple(problem.sizes(config, draws).values()) for _ in range(200)}
    assert seen == set(itertools.product((1, 2, 3), (1, 2), (1, 2)))
    assert (
        problem.sizes(replace(config, vary=False), draws)
        == problem.test_sizes(config)
        == {"i": 3, "j": 2, "k": 2}
    )


# -- sudoku --------------------------------------------------------------------------------------------------


def is_grid(grid, rows, columns):
    """Every digit once in each row, column and block; digits from 0."""
    n = rows * columns
    cells = [[int(d) for d in row] for row in grid]
    groups = [*cells, *zip(*cells, strict=True)]
    for top, left in itertools.product(range(0, n, rows), range(0, n, columns)):
        groups.append([cells[r][c] for r in range(top, top + rows) for c in range(left, left + columns)])
    return all(sorted(group) == list(range(n)) for group in groups)


BLOCKS = pytest.mark.parametrize(
    ("rows", "columns"), [(2, 2), (2, 3), (3, 3), (3, 2), (1, 4), (4, 1), (1, 2), (2, 5), (5, 3), (4, 4)]
)


@BLOCKS
def test_grids_are_valid_and_differ(rows, columns):
    n = rows * columns
    grids = sudoku.draw_grids(40, rows, columns, generator(0))
    assert grids.shape == (40, n, n) and grids.dtype == torch.int64
    assert all(is_grid(grid, rows, columns) for grid in grids)
    assert len({tuple(grid.flatten().tolist()) for grid in grids}) > (1 if n == 2 else 30)
    assert not sudoku.violated_pairs(grids, rows, columns).any()
    assert torch.equal(sudoku.draw_grids(40, rows, columns, generator(0)), grids)
    X = sudoku.one_hot(grids, n)
    assert X.shape == (40, n, n, n) and torch.equal(X.argmax(3), grids) and (X.sum(3) == 1).all()
    graph = sudoku.declare(rows, columns)
    assert not any(factor.violations(X).any() for factor in graph.factors.values())
    # every digit is as likely in every cell
    draws = 2000
    share = sudoku.one_hot(sudoku.draw_grids(draws, rows, columns, generator(1)), n).mean(0)
    assert (share - 1 / n).abs().max() < 5.5 * math.sqrt((1 / n) * (1 - 1 / n) / draws)


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(2, 2, 288), (1, 4, 576), (4, 1, 576), (1, 3, 12), (1, 2, 2), (1, 1, 1)]
)
def test_small_grids_are_all_known_and_drawn_uniformly(rows, columns, count):
    n = rows * columns
    every = sudoku.all_grids(rows, columns)
    assert every.shape == (count, n, n) and len({tuple(grid.flatten().tolist()) for grid in every}) == count
    assert all(is_grid(grid, rows, columns) for grid in every)
    draws = 100 * count
    found = sudoku.draw_grids(draws, rows, columns, generator(0)).flatten(1)
    weights = n ** torch.arange(n * n)
    hits = (
        torch.searchsorted((every.flatten(1) * weights).sum(1).sort().values, (found * weights).sum(1))
        .bincount(minlength=count)
        .double()
    )
    # chi-square, four standard deviations above its mean
    assert len(hits) == count and float(((hits - 100) ** 2 / 100).sum()) <= count - 1 + 4 * math.sqrt(
        2 * (count - 1)
    )


SEVENTEEN = "000000010400000000020000000000050407008000300001090000300400200050100000000806000"
SOLUTION = "693784512487512936125963874932651487568247391741398625319475268856129743274836159"


def digits_of(text):
    return [int(sign) for sign in text.replace(".", "0")]


@pytest.mark.parametrize(
    ("puzzle", "count"),
    [
        ("." * 16, 288),
        ("1" + "." * 15, 72),
        ("1234" + "." * 12, 12),
        ("1.......2.......", None),
        ("12..34..2...4...", None),
        ("11..............", 0),
        ("1...1...........", 0),
        ("1....1..........", 0),
        ("123....4........", 0),
        ("12....34..1.....", None),
    ],
)
def test_all_completions_are_found(puzzle, count):
    given_digits = digits_of(puzzle)
    found = list(sudoku.completions(given_digits, 2, 2))
    every = (sudoku.all_grids(2, 2) + 1).flatten(1).tolist()
    expected = [grid for grid in every if all(d in (0, e) for d, e in zip(given_digits, grid, strict=True))]
    assert sorted(found) == sorted(expected) and (count is None or len(found) == count)
    shuffled = list(sudoku.completions(given_digits, 2, 2, random.Random(0)))
    assert sorted(shuffled) == sorted(found)


def test_completions_of_larger_puzzles():
    assert list(sudoku.completions(digits_of(SEVENTEEN), 3, 3)) == [digits_of(SOLUTION)]
    # one clue that contradicts the solution leaves none
    wrong = [9 if k == 0 else d for k, d in enumerate(digits_of(SEVENTEEN))]
    assert list(sudoku.completions(wrong, 3, 3)) == []
    assert list(sudoku.completions(digits_of(SOLUTION), 3, 3)) == [digits_of(SOLUTION)]
    assert list(sudoku.completions([5, *digits_of(SOLUTION)[1:]], 3, 3)) == []
    first = next(sudoku.completions([0] * 36, 2, 3, random.Random(1)))
    assert is_grid((torch.tensor(first).view(6, 6) - 1).tolist(), 2, 3)
    shuffled = [next(sudoku.completions([0] * 36, 2, 3, random.Random(seed))) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2]


@given(rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_violated_pairs_are_counted_once_each(rows, columns, seed):
    n = rows * columns
    grids = torch.randint(n, (3, n, n), generator=generator(seed))
    expected = []
    for grid in grids.tolist():
        cells = [(r, c) for r in range(n) for c in range(n)]
        expected.append(
            sum(
                (r == p or c == q or (r // rows == p // rows and c // columns == q // columns))
                and grid[r][c] == grid[p][q]
                for (r, c), (p, q) in itertools.combinations(cells, 2)
            )
        )
    assert sudoku.violated_pairs(grids, rows, columns).tolist() == expected


def test_coverage_measures_how_evenly_samples_are_spread():
    every = sudoku.all_grids(2, 2)
    even = sudoku.coverage(every.repeat(3, 1, 1), every)
    assert (
        even["valid"] == 1
        and even["kl"] == pytest.approx(0, abs=1e-12)
        and even["expected_kl"] == pytest.approx(287 / (2 * 864))
    )
    one = sudoku.coverage(every[:1].expand(50, -1, -1), every)
    assert one["valid"] == 1 and one["kl"] == pytest.approx(math.log(288))
    half = sudoku.coverage(every[:144], every)
    assert half["kl"] == pytest.approx(math.log(2))
    wrong = torch.zeros(30, 4, 4, dtype=torch.int64)
    mixed = sudoku.coverage(torch.cat([wrong, every[:10]]), every)
    assert mixed["valid"] == 0.25 and mixed["kl"] == pytest.approx(math.log(28.8))
    nothing = sudoku.coverage(wrong, every)
    assert nothing["valid"] == 0 and nothing["kl"] == math.inf and math.isnan(nothing["expected_kl"])
    # uniform draws are about as uneven as they should be
    found = [sudoku.coverage(sudoku.draw_grids(3000, 2, 2, generator(seed)), every) for seed in range(5)]
    assert sum(f["kl"] for f in found) / 5 == pytest.approx(found[0]["expected_kl"], rel=0.1)


def test_any_number_of_cells_is_given_in_training():
    problem = PROBLEMS["sudoku"]
    found = problem.observed(problem.config_for(None)(), 8000, generator(0), {})["X"]
    assert found.shape == (8000, 4, 4)
    counts = found.flatten(1).sum(1).bincount(minlength=16).double()
    assert len(counts) == 16 and float(((counts - 500) ** 2 / 500).sum()) < 15 + 5 * math.sqrt(30)
    assert (found.double().mean(0) - 7.5 / 16).abs().max() < 0.03


# -- sorting -------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 8), seed=st.integers(0, 10_000), intermediate=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_list_is_sorted_by_its_permutation(n, seed, intermediate):
    found = sorting.generate(6, n, intermediate, generator(seed))
    u, s, P = found["u"], found["s"], found["P"]
    assert sorted(found) == sorted(["u", "s", "P", "C"] if intermediate else ["u", "s", "P"])
    assert sorting.is_permutation(P).all() and ((P == 0) | (P == 1)).all()
    assert (
        torch.equal((P @ u[:, :, None])[:, :, 0], s)
        and torch.equal(s, u.sort(1).values)
        and (s.diff() >= 0).all()
    )
    if intermediate:
        assert torch.equal(found["C"], P * u[:, None, :]) and torch.equal(found["C"].sum(2), s)
    assert sorting.error(u, P) == pytest.approx(0, abs=1e-6)


def test_lists_are_gaussian():
    u = sorting.generate(4000, 3, False, generator(0))["u"]
    assert u.mean().abs() < 0.05 and u.var() == pytest.approx(1, abs=0.06)


def test_errors_of_permutations_are_root_mean_squares():
    u, P = torch.tensor([[3.0, 1.0]]), torch.eye(2)[None]
    # sorted (1, 3), but P u is (3, 1)
    assert sorting.error(u, P) == pytest.approx(2) and sorting.is_permutation(P).tolist() == [True]
    assert sorting.error(u, P.flip(1)) == 0
    repeated = torch.tensor(
        [
            [[1.0, 0.0], [1.0, 0.0]],
            [[0.0, 0.0], [1.0, 1.0]],
            [[0.0, 1.0], [1.0, 0.0]],
            [[0.0, 0.0], [0.0, 0.0]],
        ]
    )
    assert sorting.is_permutation(repeated).tolist() == [False, False, True, False]


# -- factorisation -------------------------------------------------------------------------------------------


KIND = pytest.mark.parametrize("kind", ["binary", "hierarchical", "inversion"])


@KIND
@pytest.mark.parametrize("intermediate", [True, False])
def test_a_matrix_is_the_product_of_its_factors(kind, intermediate):
    found = factorisation.generate(kind, intermediate, 50, 3, 5, 4, generator(0))
    A, R, E = found["A"], found["R"], found["E"]
    assert A.shape == (50, 3, 4) and R.shape == (50, 4, 5) and E.shape == (50, 3, 5)
    torch.testing.assert_close(E, A @ R)
    assert ("C" in found) is intermediate and ("D" in found) is (intermediate and kind == "hierarchical")
    if intermediate:
        torch.testing.assert_close(found["C"].sum(3), E)
        torch.testing.assert_close(found["C"], torch.einsum("bik,bkj->bijk", A, R))
    assert factorisation.error(found, E) == pytest.approx(0, abs=1e-6)
    assert factorisation.error(found, E + 0.5) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("kind", ["binary", "hierarchical", "inversion"])
@pytest.mark.parametrize("intermediate", [True, False])
def test_the_product_of_the_factors_is_a_constraint_whatever_the_intermediate_products_are(
    kind, intermediate
):
    g = factorisation.declare(kind, intermediate, 4)
    found = factorisation.generate(kind, intermediate, 20, 3, 5, 4, generator(0))
    (equation,) = g.constraints
    assert equation.violations_of(found).tolist() == [0] * 20
    found |= {"C": found["C"] + 1} if intermediate else {}
    found["E"][3] += 0.099
    assert equation.violations_of(found).tolist() == [0] * 20
    found["E"][7, 1, 2] += 0.101
    assert equation.violations_of(found).nonzero().flatten().tolist() == [7]


def test_in_the_hierarchical_problem_everything_beyond_the_rank_is_zero():
    found = factorisation.generate("hierarchical", True, 600, 3, 4, 5, generator(0))
    A, R, K, D = (found[name] for name in "ARKD")
    assert torch.equal(K.sum(1), torch.ones(600)) and ((K == 0) | (K == 1)).all()
    rank = K.argmax(1) + 1
    assert torch.equal(D, (torch.arange(1, 6) <= rank[:, None]).float())
    assert not (A * (1 - D)[:, None]).any() and not (R * (1 - D)[:, :, None]).any()
    # what is used is not zero
    assert ((A != 0).any(1).sum(1) == rank).all()
    counts = rank.bincount(minlength=6)[1:].double()
    assert float(((counts - 120) ** 2 / 120).sum()) < 20


def test_factors_have_their_priors():
    A, R = (factorisation.generate("binary", False, 2000, 3, 3, 2, generator(0))[name] for name in "AR")
    assert (
        A.min() >= 0
        and A.max() <= 1
        and A.mean() == pytest.approx(0.5, abs=0.02)
        and A.var() == pytest.approx(1 / 12, rel=0.05)
    )
    assert ((R == 0) | (R == 1)).all() and R.mean() == pytest.approx(0.3, abs=0.02)
    A, R = (factorisation.generate("inversion", False, 2000, 3, 3, 3, generator(0))[name] for name in "AR")
    for x in (A, R):
        assert x.mean().abs() < 0.04 and x.var() == pytest.approx(1, abs=0.05)


def test_inversion_is_tested_on_the_identity():
    problem = PROBLEMS["inversion"]
    config = problem.config_for(None)(rows=3, columns=3, rank=3)
    queries = problem.test_queries(config, 4, generator(0))
    identity, trained = queries[""].given, queries["as trained"].given
    assert torch.equal(identity["E"], torch.eye(3).expand(4, 3, 3)) and torch.equal(
        identity["A"], trained["A"]
    )
    R = torch.linalg.inv(identity["A"])
    assert problem.metrics(config, queries[""], {"A": identity["A"], "R": R})["rmse"] == pytest.approx(
        0, abs=1e-3
    )
    where = problem.observed(config, 2, generator(0), problem.test_sizes(config))
    assert sorted(where) == ["A", "E"] and all(mask.all() for mask in where.values())


# -- boolean circuits ----------------------------------------------------------------------------------------


def test_gates_and_truth_tables_are_those_of_the_reference():
    golden = np.load(GOLDEN / "boolean_depth2_int.npz")
    is_or = [gate == "or" for gate in golden["gates"].tolist()]
    layers = boolean.run(
        [torch.tensor(is_or[:2]), torch.tensor(is_or[2:])], torch.from_numpy(golden["truth_inputs"]).bool()
    )
    assert torch.equal(layers[0], torch.from_numpy(golden["truth_inputs"]).bool())
    assert torch.equal(torch.cat(layers[1:], 1), torch.from_numpy(golden["truth_activations"]).bool())


def evaluated(gates, inputs):
    """The outputs of all layers for one example, gate by gate."""
    layers = [list(inputs)]
    for layer in gates:
        below = layers[-1]
        layers.append(
            [(any if is_or else all)(below[2 * k : 2 * k + 2]) for k, is_or in enumerate(layer.tolist())]
        )
    return layers


@given(depth=st.integers(1, 5), gates=st.integers(0, 2**62), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_outputs_are_those_of_the_gates_one_by_one(depth, gates, seed):
    is_or = boolean.gates_of(depth, gates)
    assert [len(layer) for layer in is_or] == [2 ** (depth - 1 - k) for k in range(depth)]
    found = boolean.generate(is_or, 4, True, generator(seed))
    assert list(found) == [f"L{k}" for k in range(depth + 1)]
    for k in range(4):
        expected = evaluated(is_or, [bool(x) for x in found["L0"][k]])
        assert [found[f"L{layer}"][k].bool().tolist() for layer in range(depth + 1)] == expected
    ends = boolean.generate(is_or, 4, False, generator(seed))
    assert list(ends) == ["L0", f"L{depth}"] and all(torch.equal(ends[name], found[name]) for name in ends)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_share_of_ones_is_that_among_all_inputs(depth):
    inputs = torch.cartesian_prod(*[torch.tensor([False, True])] * 2**depth)
    for seed in range(5):
        gates = [torch.rand(2 ** (depth - 1 - k), generator=generator(seed)) < 0.5 for k in range(depth)]
        assert boolean.share_of_ones(gates) == pytest.approx(
            boolean.run(gates, inputs)[-1].double().mean().item(), abs=1e-12
        )


@pytest.mark.parametrize("depth", range(2, 13))
def test_no_constant_predicts_the_output_of_a_circuit(depth):
    assert all(0.25 < boolean.share_of_ones(boolean.gates_of(depth, seed)) < 0.75 for seed in range(5))


def test_gates_are_a_function_of_their_seed_and_of_both_sorts():
    gates = [torch.cat(boolean.gates_of(6, seed)) for seed in (0, 0, 1)]
    assert torch.equal(gates[0], gates[1]) and not torch.equal(gates[0], gates[2])
    assert all(10 < int(g.sum()) < 53 for g in gates)
    inputs = boolean.generate(boolean.gates_of(3, 0), 4000, False, generator(0))["L0"]
    assert inputs.mean() == pytest.approx(0.5, abs=0.015)


# -- the graphs of the paper ---------------------------------------------------------------------------------


def renamed(name, transposed):
    """What the reference calls a node: it lays out some arrays with their axes the other way round."""
    array, _, index = name.partition("[")
    if not index:
        return f"{array}[0]"
    places = index.rstrip("]").split(",")
    return f"{array}[{','.join(reversed(places) if array in transposed else places)}]"


GRAPHS = {
    "bcmf_m3_n3_k2_int": (lambda: factorisation.declare("binary", True), {"i": 3, "j": 3, "k": 2}, "ACE"),
    "bcmf_m3_n3_k2_noint": (lambda: factorisation.declare("binary", False), {"i": 3, "j": 3, "k": 2}, "ACE"),
    "hbcmf_m3_n3_k2_int": (lambda: factorisation.declare("hierarchical", True, 2), {"i": 3, "j": 3}, "ACE"),
    "hbcmf_m3_n3_k2_noint": (
        lambda: factorisation.declare("hierarchical", False, 2),
        {"i": 3, "j": 3},
        "ACE",
    ),
    "matinv_5_int": (lambda: factorisation.declare("inversion", True), {"i": 5, "j": 5, "k": 5}, "ACE"),
    "matinv_5_noint": (lambda: factorisation.declare("inversion", False), {"i": 5, "j": 5, "k": 5}, "ACE"),
    "sorting_n3_int_variant0": (lambda: sorting.declare(3, True, "chain"), {}, ""),
    "sorting_n3_int_variant1": (lambda: sorting.declare(3, True, "clique"), {}, ""),
    "sorting_n3_int_variant2": (lambda: sorting.declare(3, True, "none"), {}, ""),
    "sorting_n3_noint_variant0": (lambda: sorting.declare(3, False, "chain"), {}, ""),
    "sudoku_block2x2": (lambda: sudoku.declare(2, 2), {}, ""),
    "sudoku_block3x3": (lambda: sudoku.declare(3, 3), {}, ""),
    "boolean_depth2_int": (lambda: boolean.declare(2, True), {}, ""),
    "boolean_depth2_noint": (lambda: boolean.declare(2, False), {}, ""),
}


@pytest.mark.parametrize("file", GRAPHS)
def test_the_graphs_have_the_masks_of_the_paper(file):
    make, sizes, transposed = GRAPHS[file]
    golden = np.load(GOLDEN / f"{file}.npz")
    found = make().adjacency(**sizes)
    names = [renamed(name, transposed) for name in found.names()]
    order = [names.index(name) for name in golden["names"].tolist()]
    assert sorted(order) == list(range(found.count))
    assert np.array_equal(found.dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool))
    # as many options as the reference has: 0 for real numbers there
    if "n_options" in golden:
        channels = torch.bincount(Frame(make(), sizes).node_of_number)[order]
        options = torch.from_numpy(golden["n_options"].astype(np.int64))
        assert (
            torch.equal(channels[options > 1], options[options > 1]) and (channels[options <= 1] == 1).all()
        )


def test_sorting_in_which_only_children_see_their_parents_has_the_mask_of_the_paper():
    golden = np.load(GOLDEN / "sorting_n3_int_variant4.npz")
    found = sorting.declare(3, True, "chain").adjacency()
    order = [found.names().index(name) for name in golden["names"].tolist()]
    assert np.array_equal(found.directed().dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool))


def test_a_list_of_any_length_has_the_graph_of_its_length():
    for order in ("chain", "clique", "none"):
        for intermediate in (True, False):
            open_, fixed = sorting.declare(None, intermediate, order), sorting.declare(4, intermediate, order)
            assert open_.adjacency(i=4, j=4).same_entries(fixed.adjacency())


# -- files of puzzles ----------------------------------------------------------------------------------------

FOUR = [1, 0, 0, 4, 0, 4, 1, 0, 0, 1, 0, 0, 4, 0, 0, 1]

FORMATS = {
    "a line": "1004041001004001",
    "dots": "1..4.41..1..4..1\n",
    "all signs for empty cells": "1_?4x41X*1.04001",
    "a solution after a comma": "1..4.41..1..4..1,1234341221434321,more",
    "rows": "1..4\n.41.\n.1..\n4..1\n",
    "rows with spaces": "1 . . 4\n . 4 1 .\n. 1\t. .\n4 . . 1   \n",
    "rows and rules": "+----+----+\n| 1 .|. 4 |\n| . 4|1 . |\n|----+----|\n|. 1 |. . |\n|4 . |. 1 "
    "|\n+----+----+\n",
    "other rules": "1 . | . 4\n. 4 | 1 .\n====|====\n. 1 | . .\n4 . | . 1",
    "blank lines and comments": "# easy\n\n1..4\n.41.\n\n  # half\n.1..\n4..1\n\n",
    "CRLF": "1..4\r\n.41.\r\n.1..\r\n4..1\r\n",
    "old Mac": "1..4\r.41.\r.1..\r4..1\r",
    "byte order mark": "\ufeff1..4\n.41.\n.1..\n4..1\n",
    "byte order mark before a line": "\ufeff1004041001004001\r\n",
    "a line with bars": "1..4|.41.|.1..|4..1",
}


@pytest.mark.parametrize("which", FORMATS)
def test_puzzles_are_read_in_all_formats(which):
    assert read_puzzles(FORMATS[which], 2, 2, "p.txt") == [FOUR]


def test_several_puzzles_are_read_a_line_each_or_row_by_row():
    line, rows = FORMATS["dots"], FORMATS["rows"]
    assert read_puzzles(line * 3, 2, 2, "p") == [FOUR] * 3
    assert read_puzzles(f"{rows}\n{line}{rows}", 2, 2, "p") == [FOUR] * 3
    assert read_puzzles(f"{SEVENTEEN},{SOLUTION}\n{SOLUTION}\n", 3, 3, "p") == [
        digits_of(SEVENTEEN),
        digits_of(SOLUTION),
    ]
    assert read_puzzles("1\n.\n", 1, 1, "p") == [[1], [0]]


@pytest.mark.parametrize("which", ["one line", "rows", "rules"])
def test_above_nine_digits_are_numbers_with_spaces(which):
    n = 12
    grid = [(3 * (r % 3) + r + c) % n + 1 if (r + c) % 3 else 0 for r in range(n) for c in range(n)]
    words = [str(d) if d else random.Random(k).choice("0._?xX*") for k, d in enumerate(grid)]
    lines = [" ".join(words[k : k + n]) for k in range(0, n * n, n)]
    ruled = [*lines[:3], "---+---", *(f"| {line} |" for line in lines[3:])]
    text = {"one line": " ".join(words), "rows": "\n".join(lines), "rules": "\n".join(ruled)}[which]
    assert read_puzzles(text, 3, 4, "p") == [grid]
    assert read_puzzles(text.replace("\n", "\r\n") + "\r\n", 3, 4, "p") == [grid]


MALFORMED = {
    "empty": ("", ["no puzzle", "4 rows of 4 cells", "16 cells"]),
    "blank": (" \n\t\n\r\n", ["no puzzle"]),
    "comments": ("# 1..4\n", ["no puzzle"]),
    "rules": ("----+----\n", ["no puzzle"]),
    "a letter": ("1..4\n.4a.\n.1..\n4..1", ["line 2", "column 3", "'a'", "1 to 4"]),
    "a digit too large": ("1..4\n.41.\n.15.\n4..1", ["line 3", "column 3", "'5'", "1 to 4"]),
    "a digit too large in a line": ("1..4.41..1..4..9", ["line 1", "column 16", "'9'"]),
    "a rule in a row": ("1-.4\n", ["line 1", "column 2", "'-'"]),
    "a digit of another script": ("1..٤\n", ["line 1", "column 4", "'٤'"]),
    "a superscript": ("1..²\n", ["line 1", "column 4", "'²'"]),
    "a control character": ("1..4\n.\x0041\n", ["line 2", "column 2"]),
    "a header": ("puzzle,solution\n1..4.41..1..4..1,1\n", ["line 1", "column 1", "'p'"]),
    "after a byte order mark": ("\ufeff1.a4", ["line 1", "column 3", "'a'"]),
    "a short row": ("1..4\n.41\n.1..\n4..1", ["line 2", "3 cells", "expected 4"]),
    "a long row": ("1..4\n.41..\n.1..\n4..1", ["line 2", "5 cells", "expected 4"]),
    "a short line": ("1..4.41..1..4..", ["line 1", "15 cells", "4", "16"]),
    "a long line": ("1..4.41..1..4..11", ["line 1", "17 cells", "16"]),
    "a line amid rows": ("1..4\n1..4.41..1..4..1\n", ["line 2", "16 cells", "expected 4"]),
    "a comma at the start": (",1..4\n", ["line 1", "0 cells"]),
    "truncated": ("1..4\n.41.\n.1..\n", ["line 3", "3 of 4 rows"]),
    "the second truncated": ("1..4.41..1..4..1\n\n1..4\n# end\n", ["line 3", "1 of 4 rows"]),
    "CRLF": ("1..4\r\n.4!.\r\n", ["line 2", "column 3", "'!'"]),
    "UTF-16": ("1..4".encode("utf-16").decode("latin-1"), ["line 1", "column 1"]),
}


@pytest.mark.parametrize("which", MALFORMED)
def test_malformed_puzzles_are_refused_with_line_and_column(which):
    text, words = MALFORMED[which]
    with pytest.raises(unn.DataError, match=says("p.txt", *words)):
        read_puzzles(text, 2, 2, "p.txt")


MALFORMED_NUMBERS = {
    "too large": (" ".join(["1"] * 11 + ["13"]), ["line 1", "cell 12", "'13'", "1 to 12"]),
    "negative": (" ".join(["1"] * 4 + ["-1"] + ["."] * 7), ["line 1", "cell 5", "'-1'"]),
    "a word": ("1 2 three" + " ." * 9, ["line 1", "cell 3", "'three'"]),
    "no spaces": ("." * 144, ["line 1"]),
    "two signs for one cell": (" ".join(["1", "._"] + ["."] * 10), ["line 1", "cell 2", "'._'"]),
    "another script": (" ".join(["٣"] + ["."] * 11), ["line 1", "cell 1"]),
    "an endless number": (" ".join(["9" * 5000] + ["."] * 11), ["line 1", "cell 1"]),
    "a short row": ("1 2 3", ["line 1", "3 cells", "12"]),
    "truncated": ("\n".join([" ".join(["."] * 12)] * 11), ["line 11", "11 of 12 rows"]),
}


@pytest.mark.parametrize("which", MALFORMED_NUMBERS)
def test_malformed_puzzles_of_numbers_are_refused_with_line_and_cell(which):
    text, words = MALFORMED_NUMBERS[which]
    with pytest.raises(unn.DataError, match=says("p.txt", *words)):
        read_puzzles(text, 3, 4, "p.txt")


@given(text=st.text(alphabet="01234.x_,|+- \n\r\t#5a\ufeff", max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    try:
        found = read_puzzles(text, 2, 2, "p")
    except unn.DataError:
        return
    assert found and all(len(grid) == 16 and set(grid) <= set(range(5)) for grid in found)


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_printed_grids_are_read_again(rows, columns, seed):
    n = rows * columns
    grid = torch.randint(n + 1, (n * n,), generator=generator(seed)).tolist()
    lines = grid_lines(grid, rows, columns)
    assert read_puzzles("\n".join(lines), rows, columns, "p") == [grid]
    assert len({len(line) for line in lines}) == 1 and len(lines) == n + n // rows - 1


def test_a_printed_grid_has_rules_between_its_blocks():
    assert grid_lines(FOUR, 2, 2) == ["1 . | . 4", ". 4 | 1 .", "----+----", ". 1 | . .", "4 . | . 1"]
    assert grid_lines([1, 2, 3, 0, 1, 2, 2, 3, 1], 1, 3) == ["1 2 3", "-----", ". 1 2", "-----", "2 3 1"]
    wide = grid_lines([10, *[0] * 99], 2, 5)
    assert wide[0].startswith("10  .  .") and wide[1].startswith(" .  .")


EASY = Path(os.environ.get("UNN_DATA", "")) / "sudoku" / "easy_18to36clues.txt.gz"


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("UNN_DATA") or not EASY.is_file(), reason="no sudoku under $UNN_DATA")
def test_real_puzzles_have_the_one_solution_that_is_given():
    with gzip.open(EASY, "rt", encoding="utf-8") as file:
        lines = list(itertools.islice(file, 20))
    puzzles = read_puzzles("".join(lines), 3, 3, EASY.name)
    solutions = read_puzzles("".join(line.split(",")[1] for line in lines), 3, 3, EASY.name)
    assert len(puzzles) == len(solutions) == 20
    for puzzle, solution in zip(puzzles, solutions, strict=True):
        assert is_grid((torch.tensor(solution).view(9, 9) - 1).tolist(), 3, 3)
        assert list(itertools.islice(sudoku.completions(puzzle, 3, 3), 2)) == [solution]


# -- the command line ----------------------------------------------------------------------------------------

TINY = [
    "--steps",
    "2",
    "--batch",
    "4",
    "--width",
    "8",
    "--depth",
    "2",
    "--heads",
    "2",
    "--sampling-steps",
    "2",
    "--quiet",
]


def tiny(options):
    """Small sizes for the engine that the options name."""
    if "--engine" not in options:
        return TINY
    common = ["--steps", "2", "--batch", "4", "--width", "8", "--depth", "2", "--quiet"]
    return common + ([] if "vaeac" in options else ["--heads", "2"])


def done(capsys, *arguments):
    """What a command prints."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def data_of(capsys, *arguments):
    """What a command prints for machines."""

    def no(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(done(capsys, *arguments, "--json"), parse_constant=no)


def refused(capsys, *arguments):
    """What the command says on standard error; it exits with code 2 and prints nothing else."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2 and not out, out
    assert err.startswith("unn: ") and err.count("\n") == 1 and "Traceback" not in err, err
    return err


@pytest.fixture
def undrawn(monkeypatch):
    """Training draws no pictures."""
    monkeypatch.setattr("unn.cli.train._draw", lambda *_: None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of any problem, trained when it is first asked for."""
    made = {}

    def run(name, *options):
        if (name, options) not in made:
            folder = tmp_path_factory.mktemp("runs") / name
            assert main(["train", name, *tiny(options), *options, "--folder", str(folder)]) == 0
            made[name, options] = folder
        return made[name, options]

    return run


@pytest.fixture(scope="module")
def grids(runs):
    """A run of sudoku with blocks of 2 x 2 cells."""
    return runs("sudoku")


def grids_in(text, rows=2, columns=2):
    """The grids among the lines of an answer."""
    return read_puzzles(
        "\n".join(line for line in text.splitlines() if "grids are valid" not in line),
        rows,
        columns,
        "answer",
    )


def test_training_makes_a_run_that_is_evaluated(capsys, tmp_path):
    report = data_of(capsys, "train", "sudoku", *TINY, "--folder", tmp_path / "run")
    metrics = {
        "valid",
        "violated_pairs",
        "valid_half_given",
        "violated_pairs_half_given",
        "sbc_p",
        "coverage_50",
        "coverage_90",
        "calibration_error",
    }
    assert report["step"] == 2 and metrics < set(report) and report["folder"] == str(tmp_path / "run")
    assert {"config.json", "metrics.jsonl", "model.safetensors"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert (tmp_path / "run" / "plots" / "metrics.png").stat().st_size > 500
    found = data_of(capsys, "evaluate", tmp_path / "run")
    assert set(found) == {"2"} and set(found["2"]) == metrics and 0 <= found["2"]["valid"] <= 1
    text = done(capsys, "evaluate", tmp_path / "run", "--iterations", 1, 2)
    assert (
        "1 sampling steps: valid " in text and f"2 sampling steps: valid {found['2']['valid']:.4g}, " in text
    )


def test_samples_that_break_a_constraint_are_drawn_again_in_evaluation(runs, capsys, undrawn):
    once, again = (
        data_of(capsys, "evaluate", runs("factorisation"), "--tries", tries)["2"] for tries in (1, 4)
    )
    assert {"rmse", "unused_spread", "sbc_p"} < set(once) and set(again) == set(once) | {"tries"}
    assert 3 < again["tries"] <= 4
    grids = data_of(capsys, "evaluate", runs("sudoku"), "--tries", 3)["2"]
    assert {"valid", "valid_half_given", "tries", "tries_half_given"} < set(grids) and grids["tries"] > 2
    assert "no constraint" in refused(capsys, "evaluate", runs("sorting"), "--tries", 3)
    assert "no constraint" in refused(capsys, "sample", runs("sorting"), "--tries", 3)
    for tries in (0, -1, 10**7):
        assert "--tries must lie between 1 and 1000000" in refused(
            capsys, "evaluate", runs("factorisation"), "--tries", tries
        )


def test_grids_are_sampled_and_judged(grids, capsys):
    text = done(capsys, "sample", grids, "--count", 3, "--seed", 1)
    found = grids_in(text)
    assert len(found) == 3 and all(min(grid) >= 1 for grid in found)
    data = data_of(capsys, "sample", grids, "--count", 3, "--seed", 1)
    X = torch.tensor(data["values"]["X"])
    assert X.shape == (3, 4, 4, 4) and (X.argmax(3) + 1).flatten(1).tolist() == found
    valid = [is_grid(grid.tolist(), 2, 2) for grid in X.argmax(3)]
    assert data["valid"] == valid and data["tries"] == [1, 1, 1]
    wrong = ", ".join(str(k + 1) for k in range(3) if not valid[k])
    assert text.splitlines()[-1] == f"{sum(valid)} of 3 grids are valid" + (
        f"; not valid: {wrong}" if wrong else ""
    )
    assert done(capsys, "sample", grids, "--count", 3, "--seed", 1) == text
    assert len(grids_in(done(capsys, "sample", grids))) == 1


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_every_sampler_and_number_of_steps_is_offered(grids, capsys, sampler):
    assert sampler in get_args(get_type_hints(DenoiserOptions)["sampler"])
    for steps in (1, 4):
        assert (
            len(
                grids_in(
                    done(
                        capsys,
                        "sample",
                        grids,
                        "--sampler",
                        sampler,
                        "--steps",
                        steps,
                        "--count",
                        2,
                        "--seed",
                        0,
                    )
                )
            )
            == 2
        )


@pytest.mark.parametrize("how", ["inline", "line", "rows", "CRLF", "byte order mark", "rules"])
def test_a_puzzle_is_completed(grids, capsys, tmp_path, how):
    puzzle = "12...4..........3"[:16]
    rows = [puzzle[k : k + 4] for k in range(0, 16, 4)]
    text = {
        "line": puzzle,
        "rows": "\n".join(rows) + "\n",
        "CRLF": "\r\n".join(rows) + "\r\n",
        "byte order mark": "\ufeff" + "\n".join(rows),
        "rules": "\n".join(grid_lines(digits_of(puzzle), 2, 2)),
    }.get(how)
    where = puzzle
    if text is not None:
        where = tmp_path / "puzzle.txt"
        where.write_bytes(text.encode())
    found = grids_in(done(capsys, "sample", grids, "--given", where, "--count", 2, "--seed", 3))
    assert len(found) == 2
    for grid in found:
        assert all(d in (0, e) for d, e in zip(digits_of(puzzle), grid, strict=True))
    assert grids_in(done(capsys, "sample", grids, "--given", puzzle, "--count", 2, "--seed", 3)) == found


def test_a_puzzle_without_a_solution_is_completed_and_reported(grids, capsys):
    puzzle = "11.............."
    text = done(capsys, "sample", grids, "--given", puzzle, "--count", 2, "--seed", 0, "--tries", 3)
    assert (
        all(grid[:2] == [1, 1] for grid in grids_in(text))
        and "0 of 2 grids are valid; not valid: 1, 2" in text
    )
    data = data_of(capsys, "sample", grids, "--given", puzzle, "--count", 2, "--seed", 0, "--tries", 3)
    assert data["valid"] == [False, False] and data["tries"] == [3, 3]


def test_a_grid_that_is_given_whole_is_judged(grids, capsys):
    for puzzle, valid in (("1234341221434321", True), ("1234341221434322", False)):
        data = data_of(capsys, "sample", grids, "--given", puzzle)
        assert data["valid"] == [valid]
        assert (torch.tensor(data["values"]["X"])[0].argmax(2) + 1).flatten().tolist() == digits_of(puzzle)


def test_puzzles_that_cannot_be_read_are_refused_with_file_line_and_column(grids, capsys, tmp_path):
    path = tmp_path / "puzzle.txt"
    for which in (
        "empty",
        "a digit too large",
        "a short row",
        "after a byte order mark",
        "truncated",
        "CRLF",
    ):
        text, words = MALFORMED[which]
        path.write_bytes(text.encode())
        message = refused(capsys, "sample", grids, "--given", path)
        assert all(word in message for word in (str(path), *words)), (which, message)
    for raw in (b"\xff\xfe1\x00.\x00", "1..4\n.41ü".encode("latin-1")):
        path.write_bytes(raw)
        assert str(path) in refused(capsys, "sample", grids, "--given", path)
    path.write_text(FORMATS["dots"] * 2)
    assert "2 puzzles" in refused(capsys, "sample", grids, "--given", path)
    assert "none.txt" in refused(capsys, "sample", grids, "--given", tmp_path / "none.txt")
    assert str(tmp_path) in refused(capsys, "sample", grids, "--given", tmp_path)


def test_puzzles_on_the_command_line_that_cannot_be_read_are_refused(grids, capsys):
    message = refused(capsys, "sample", grids, "--given", "1..5............")
    assert "--given" in message and "column 4" in message and "'5'" in message
    assert "one puzzle" in refused(capsys, "sample", grids, "--given", "1...............", "2...............")
    assert "X=3" in refused(capsys, "sample", grids, "--given", "X=3")
    assert "--given" in refused(capsys, "sample", grids, "--given", "1..4")
    # too long for the name of a file
    assert "--given" in refused(capsys, "sample", grids, "--given", "." * 300)


def test_sudoku_of_other_blocks_and_of_more_than_nine_digits(runs, capsys, tmp_path, undrawn):
    run = runs("sudoku", "--block-rows", "2", "--block-columns", "3", "--examples", "5")
    puzzle = "12345." + "." * 30
    (grid,) = grids_in(done(capsys, "sample", run, "--given", puzzle), 2, 3)
    assert grid[:5] == [1, 2, 3, 4, 5]
    run = runs("sudoku", "--block-rows", "2", "--block-columns", "5")
    (tmp_path / "p").write_text(" ".join(["10", "9"] + ["."] * 98))
    (grid,) = grids_in(done(capsys, "sample", run, "--given", tmp_path / "p"), 2, 5)
    assert grid[:2] == [10, 9] and max(grid) <= 10


def test_a_grid_of_one_cell_is_a_sudoku_too(runs, capsys, undrawn):
    run = runs("sudoku", "--block-rows", "1", "--block-columns", "1")
    assert "1 of 1 grids are valid" in done(capsys, "sample", run)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--count", "0"], ["--count", "0"]),
        (["--count", "-1"], ["--count", "-1"]),
        (["--steps", "0"], ["--steps", "0"]),
        (["--tries", "0"], ["--tries", "0"]),
        (["--seed", "-1"], ["seed", "-1"]),
    ],
)
def test_numbers_out_of_range_are_refused(grids, capsys, options, words):
    message = refused(capsys, "sample", grids, *options)
    assert all(word in message for word in words)


def test_unknown_samplers_and_missing_runs_are_refused(grids, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["sample", str(grids), "--sampler", "nope"])
    assert end.value.code == 2
    assert "none" in refused(capsys, "sample", tmp_path / "none")


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        ("sudoku", "--width 9", ["width 9", "even"]),
        ("sudoku", "--heads 3", ["width 8", "3 heads"]),
        ("sudoku", "--depth -1", ["depth"]),
        ("sudoku", "--sampling-steps 0", ["sampling_steps"]),
        ("sudoku", "--block-rows 0", ["block_rows"]),
        ("sudoku", "--last-beta 1", ["last_beta"]),
        ("sudoku", "--examples -1", ["examples"]),
        ("sorting", "--length 0", ["length"]),
        ("sorting", "--observe nope", ["observe", "u, any"]),
        ("factorisation", "--rank 0", ["rank"]),
        ("factorisation", "--observe U", ["observe", "E, any"]),
        ("boolean", "--layers 0", ["layers"]),
        ("inversion", "--rows 0", ["rows"]),
        ("factorisation", "--engine vaeac --vary", ["vaeac", "vary"]),
        ("sorting", "--process masked", ["continuous"]),
    ],
)
def test_options_that_cannot_be_are_refused_before_a_run_folder_is_made(
    capsys, tmp_path, problem, options, words
):
    message = refused(
        capsys, "train", problem, *tiny(options), *options.split(), "--folder", tmp_path / "run"
    )
    assert all(word in message for word in words) and not (tmp_path / "run").exists()


OTHERS = {
    "sorting": {"u", "s", "P", "C"},
    "factorisation": {"A", "R", "C", "E"},
    "hierarchical": {"A", "R", "C", "E", "K", "D"},
    "inversion": {"A", "R", "C", "E"},
    "boolean": {"L0", "L1", "L2", "L3"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_problem_trains_evaluates_and_samples(runs, capsys, name, undrawn):
    run = runs(name)
    found = data_of(capsys, "evaluate", run)
    assert set(found) == {"2"} and all(math.isfinite(value) for value in found["2"].values()) and found["2"]
    data = data_of(capsys, "sample", run, "--count", 3, "--seed", 1)
    assert set(data["values"]) == OTHERS[name] and data["tries"] == [1] * 3
    assert all(len(value) == 3 for value in data["values"].values())
    noun = PROBLEMS[name].noun
    ending = f"3 {noun}"
    if name in ("factorisation", "hierarchical", "inversion"):
        A, R, E = (torch.tensor(data["values"][x], dtype=torch.float64) for x in "ARE")
        valid = ((A @ R - E).abs() <= 0.1).flatten(1).all(1)
        ending = f"{int(valid.sum())} of 3 {noun} are valid"
        assert data["valid"] == valid.tolist()
    text = done(capsys, "sample", run, "--count", 3, "--seed", 1)
    assert text.splitlines()[-1].split(";")[0] == ending
    assert all(text.count(f"{variable}: ") == 3 for variable in OTHERS[name])
    assert done(capsys, "sample", run, "--count", 3, "--seed", 1) == text


def test_values_are_given_by_name(runs, capsys, tmp_path, undrawn):
    data = data_of(capsys, "sample", runs("sorting"), "--given", "u=3,1,2,5,4", "--count", 2)
    assert data["values"]["u"] == [[3, 1, 2, 5, 4]] * 2
    data = data_of(capsys, "sample", runs("boolean"), "--given", "L0=1,0,1,0,1,1,1,0")
    assert data["values"]["L0"] == [[1, 0, 1, 0, 1, 1, 1, 0]]
    E = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.save(tmp_path / "E.npy", E)
    data = data_of(capsys, "sample", runs("factorisation"), "--given", f"E={tmp_path / 'E.npy'}")
    assert data["values"]["E"] == [E.tolist()]
    data = data_of(capsys, "sample", runs("hierarchical"), "--given", "K=1", "--count", 2)
    assert data["values"]["K"] == [[0, 1]] * 2


def test_factorisations_whose_product_is_off_are_drawn_again_and_named(runs, capsys, tmp_path, undrawn):
    found = factorisation.generate("binary", True, 1, 4, 4, 2, generator(0))
    for name, x in found.items():
        np.save(tmp_path / f"{name}.npy", x[0].numpy())
    whole = [f"{name}={tmp_path / name}.npy" for name in found]
    assert "1 of 1 factorisations are valid" in done(
        capsys, "sample", runs("factorisation"), "--given", *whole
    )
    np.save(tmp_path / "E.npy", found["E"][0].numpy() + 0.11)
    ask = ("sample", runs("factorisation"), "--given", *whole, "--count", 2, "--tries", 3)
    assert "0 of 2 factorisations are valid; not valid: 1, 2" in done(capsys, *ask)
    data = data_of(capsys, *ask)
    assert data["valid"] == [False, False] and data["tries"] == [3, 3]


def test_arrays_of_another_size_than_in_training_are_sampled_at_their_size(runs, capsys, tmp_path, undrawn):
    E, A = tmp_path / "E.npy", tmp_path / "A.npy"
    np.save(E, np.ones((3, 5), dtype=np.float32))
    np.save(A, np.ones((3, 4), dtype=np.float32))
    values = data_of(capsys, "sample", runs("factorisation"), "--given", f"E={E}")["values"]
    assert {name: np.shape(x) for name, x in values.items()} == {
        "E": (1, 3, 5),
        "A": (1, 3, 2),
        "R": (1, 2, 5),
        "C": (1, 3, 5, 2),
    }
    values = data_of(capsys, "sample", runs("factorisation"), "--given", f"E={E}", f"A={A}")["values"]
    assert np.shape(values["R"]) == (1, 4, 5) and values["A"] == [np.load(A).tolist()]
    np.save(A, np.ones((4, 4), dtype=np.float32))
    assert "'E'" in refused(capsys, "sample", runs("factorisation"), "--given", f"E={E}", f"A={A}")
    fixed = runs("factorisation", "--embedding", "independent")
    assert "independent embeddings" in refused(capsys, "sample", fixed, "--given", f"E={E}")


def test_values_that_do_not_fit_are_refused(runs, capsys, tmp_path, undrawn):
    assert "'v'" in refused(capsys, "sample", runs("sorting"), "--given", "v=1,2")
    assert "u=1,2" in refused(capsys, "sample", runs("sorting"), "--given", "u=1,2")
    assert "u" in refused(capsys, "sample", runs("sorting"), "--given", "u=nan,1,2,3,4")
    assert "binary" in refused(capsys, "sample", runs("boolean"), "--given", "L0=1,0,1,0,1,1,1,0.5")
    assert "K=7" in refused(capsys, "sample", runs("hierarchical"), "--given", "K=7")
    np.save(tmp_path / "E.npy", np.zeros((3, 5, 1, 1), dtype=np.float32))
    assert "E=" in refused(capsys, "sample", runs("factorisation"), "--given", f"E={tmp_path / 'E.npy'}")
    np.save(tmp_path / "two.npy", np.zeros((2, 4, 4), dtype=np.float32))
    assert "'E'" in refused(
        capsys, "sample", runs("factorisation"), "--given", f"E={tmp_path / 'two.npy'}", "--count", 3
    )


VARIANTS = [
    "sudoku --structure dense --embedding array",
    "sudoku --structure directed --embedding independent",
    "sudoku --structure random --global-token",
    "sudoku --prediction velocity --noise log-uniform --sampler heun --spacing log-snr",
    "sudoku --noise log-normal --self-conditioning none --sampler ddim",
    "sudoku --process masked",
    "sudoku --engine regressor --structure dense",
    "sorting --engine vaeac --depth 1",
    "factorisation --engine vaeac",
    "factorisation --engine regressor",
    "sudoku --examples 3 --batch 2 --depth 0",
    "sorting --structure directed --no-intermediate",
    "sorting --structure dense --order clique --observe any",
    "sorting --order none --length 1",
    "factorisation --structure random --embedding array --vary",
    "factorisation --observe any --no-intermediate --self-conditioning estimate --passes 1",
    "factorisation --structure directed --embedding independent --rows 2 --columns 3 --rank 1",
    "hierarchical --no-intermediate --vary --structure dense",
    "hierarchical --observe any",
    "hierarchical --structure directed --embedding array",
    "inversion --no-intermediate --observe any --rows 2 --columns 2 --rank 2",
    "inversion --embedding independent --prediction velocity --rows 3 --columns 3 --rank 3",
    "boolean --no-intermediate --layers 2",
    "boolean --structure dense --embedding exchangeable --process masked",
    "boolean --structure random --layers 1",
]


@pytest.mark.parametrize("command", VARIANTS)
def test_all_options_of_the_model_train_evaluate_and_sample(capsys, tmp_path, command, undrawn):
    name, *options = command.split()
    report = data_of(capsys, "train", name, *tiny(command), *options, "--folder", tmp_path / "run")
    assert report["step"] == 2 and math.isfinite(report["loss"])
    in_one_step = "regressor" in command or "vaeac" in command
    assert set(
        data_of(capsys, "evaluate", tmp_path / "run", *([] if in_one_step else ["--iterations", 1]))
    ) == {"1"}
    data = data_of(capsys, "sample", tmp_path / "run", "--count", 2, "--seed", 0)
    assert all(np.isfinite(value).all() and len(value) == 2 for value in data["values"].values())


def test_samples_and_how_they_came_about_are_drawn(runs, capsys, tmp_path, undrawn):
    for name in ("sudoku", "hierarchical"):
        one, two = tmp_path / f"{name}.png", tmp_path / f"{name}.svg"
        text = done(capsys, "sample", runs(name), "--count", 2, "--draw", one, "--trace", two, "--seed", 0)
        assert (
            str(one) in text and str(two) in text and one.stat().st_size > 500 and "<svg" in two.read_text()
        )


def test_what_is_drawn_step_by_step_is_the_first_sample_alone(grids, capsys, tmp_path, monkeypatch):
    drawn = []

    def draw_samples(rows, names, *rest, **options):
        from matplotlib.figure import Figure

        drawn.append(names)
        return Figure()

    monkeypatch.setattr("unn.cli.measures.draw_samples", draw_samples)
    # none of these can be valid, so that all are tried again
    done(
        capsys,
        "sample",
        grids,
        "--given",
        "11..............",
        "--count",
        3,
        "--steps",
        4,
        "--trace",
        tmp_path / "t.png",
        "--tries",
        2,
    )
    assert drawn == [["step 1", "step 2", "step 3", "step 4"]]
    drawn.clear()
    done(capsys, "sample", grids, "--count", 300, "--steps", 3, "--trace", tmp_path / "t.png")
    assert drawn == [["step 1", "step 2", "step 3"]]


@pytest.mark.parametrize("options", ["--process masked", "--engine regressor", "--engine vaeac"])
def test_pictures_and_samplers_that_a_model_does_not_offer_are_refused(
    runs, capsys, tmp_path, undrawn, options
):
    run = runs("sudoku", *options.split())
    assert "trace" in refused(capsys, "sample", run, "--trace", tmp_path / "t.png")
    assert "sampler" in refused(capsys, "sample", run, "--sampler", "ddim")


@pytest.mark.parametrize("engine", ["regressor", "vaeac"])
def test_numbers_of_steps_of_models_without_steps_are_refused(runs, capsys, undrawn, engine):
    run = runs("sudoku", "--engine", engine)
    assert "leave out steps" in refused(capsys, "sample", run, "--steps", 3)
    assert "--iterations" in refused(capsys, "evaluate", run, "--iterations", 3)
    assert "steps" not in done(capsys, "evaluate", run)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_are_shown(capsys, tmp_path, name):
    text = done(capsys, "show", name)
    assert PROBLEMS[name].summary in text
    assert "Who interacts with whom" in text
    data = data_of(capsys, "show", name)
    assert data["problem"] == name and data["graph"]
    if name == "sorting":
        assert data["nodes"] == {"u": 5, "s": 5, "P": 25, "C": 25} and data["entries"] == len(
            sorting.declare(5, True, "chain").adjacency().rows
        )
        shown = data_of(
            capsys,
            "show",
            name,
            "--length",
            3,
            "--no-intermediate",
            "--order",
            "clique",
            "--out",
            tmp_path / "out",
        )
        assert shown["nodes"] == {"u": 3, "s": 3, "P": 9} and {
            p.name for p in (tmp_path / "out").iterdir()
        } == {"graph.svg", "adjacency.png"}


def test_what_is_shown_of_a_graph_of_dynamic_sizes_has_the_sizes_of_the_options(capsys):
    nodes = data_of(capsys, "show", "factorisation", "--rows", 2, "--columns", 3, "--rank", 4)["nodes"]
    assert nodes == {"A": 8, "R": 12, "C": 24, "E": 6}


# -- baselines -----------------------------------------------------------------------------------------------

FEW = ["--count", 3, "--chain-steps", 20]
UNTRAINED = {
    "sudoku": (
        {"Metropolis-Hastings"},
        {"valid", "violated_pairs", "valid_half_given", "violated_pairs_half_given"},
    ),
    "sorting": ({"Metropolis-Hastings"}, {"rmse", "permutations"}),
    "factorisation": (
        {
            "k-means",
            "NMF, second factor rounded",
            "NMF, cut and refitted",
            "largest columns",
            "Metropolis-Hastings",
        },
        {"rmse"},
    ),
}


@pytest.mark.parametrize("name", UNTRAINED)
def test_methods_without_training_are_measured_on_test_conditions(capsys, name):
    methods, metrics = UNTRAINED[name]
    found = data_of(capsys, "baselines", name, *FEW)
    assert set(found) == methods and all(set(row) == metrics for row in found.values())
    lines = done(capsys, "baselines", name, *FEW).splitlines()
    assert lines == [
        f"{method}: " + ", ".join(f"{m} {value:.4g}" for m, value in row.items())
        for method, row in found.items()
    ]


def test_longer_chains_fill_more_of_small_grids(capsys):
    short, long = (
        data_of(capsys, "baselines", "sudoku", "--count", 40, "--chain-steps", n)["Metropolis-Hastings"]
        for n in (10, 3000)
    )
    assert (
        long["violated_pairs_half_given"] < 0.3 * short["violated_pairs_half_given"]
        and long["valid_half_given"] > 0.5
    )


@pytest.mark.parametrize("name", ["boolean", "inversion", "hierarchical", "digits"])
def test_problems_without_such_methods_say_so(capsys, name):
    assert "no baselines" in refused(capsys, "baselines", name)


@pytest.mark.parametrize("option", ["--count", "--chain-steps"])
def test_numbers_of_baselines_out_of_range_are_refused(capsys, option):
    assert option in refused(capsys, "baselines", "sorting", option, 0)


def test_baselines_are_measured_on_the_conditions_of_trained_runs(monkeypatch, capsys, runs, undrawn):
    asked = []
    queries = SortingProblem.test_queries
    monkeypatch.setattr(
        SortingProblem, "test_queries", lambda *given: asked.append(queries(*given)) or asked[-1]
    )
    done(capsys, "evaluate", runs("sorting"))
    done(capsys, "baselines", "sorting", "--chain-steps", 1)
    assert torch.equal(asked[-1][""].given["u"], asked[-2][""].given["u"])


def test_all_problems_are_listed(capsys):
    listed = done(capsys, "problems")
    assert all(name in listed and problem.summary in listed for name, problem in PROBLEMS.items())


def test_the_model_that_comes_with_sudoku_fills_grids_of_which_half_is_given():
    problem, run = open_trained(Path("sudoku"))
    found = measure(problem, run.config, run.network, 12, SamplingOptions(steps=20, seed=0), most=0)
    assert found["valid_half_given"] >= 0.9 and found["violated_pairs_half_given"] < 0.5
