"""What is true of every problem for denoisers: the examples that it generates, its graph, its commands."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import answered, printed, refused, tiny

from problems.boolean import graph as boolean
from problems.boolean.problem import BooleanProblem
from problems.factorisation import graph as factorisation
from problems.factorisation.problem import FactorisationProblem, HierarchicalProblem, InversionProblem
from problems.sorting import graph as sorting
from problems.sorting.problem import SortingProblem
from problems.sudoku import grids as sudoku
from problems.sudoku.problem import SudokuProblem
from unn.cli.measures import ProblemExamples
from unn.extending import Query
from unn.networks import Frame
from unn.training.batches import seed_of

GOLDEN = Path(__file__).parents[1] / "golden"

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
    ((weight, *one),), ((same_weight, *two),), ((_, values, _),) = first[1], same[1], other[1]
    assert weight == same_weight == 1
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert first[0] != other[0] or any(not torch.equal(x, values[key]) for key, x in one[0].items())


@EVERY_PROBLEM
def test_so_many_examples_are_made_once_and_shown_again(name):
    problem = PROBLEMS[name]
    config = problem.config_for(None)(examples=10)
    examples = problem.task(config).examples()
    assert len(examples) == 10
    chosen = torch.tensor([3, 3, 9])
    every, again = (
        examples.batch(rows, generator(seed))[1][0][1] for rows, seed in ((torch.arange(10), 0), (chosen, 5))
    )
    assert all(torch.equal(again[key], every[key][chosen]) for key in every)
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
    metrics = problem.metrics(config, Query({key: values[key] for key in observed}), values)
    # of few numbers, as they are
    assert metrics.pop("unused_spread", 1.0) == pytest.approx(1, abs=0.7)
    assert metrics and all(
        value == pytest.approx(best[metric], abs=1e-5) for metric, value in metrics.items()
    )


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
    adjacency = make().adjacency(**sizes)
    names = [renamed(name, transposed) for name in adjacency.names()]
    order = [names.index(name) for name in golden["names"].tolist()]
    assert sorted(order) == list(range(adjacency.count))
    assert np.array_equal(adjacency.dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool))
    # as many options as the reference has: 0 for real numbers there
    if "n_options" in golden:
        channels = torch.bincount(Frame(make(), sizes).node_of_number)[order]
        options = torch.from_numpy(golden["n_options"].astype(np.int64))
        assert (
            torch.equal(channels[options > 1], options[options > 1]) and (channels[options <= 1] == 1).all()
        )


# -- the command line ----------------------------------------------------------------------------------------


def test_samples_that_break_a_constraint_are_drawn_again_in_evaluation(runs, capsys, undrawn):
    once, again = (
        answered(capsys, "evaluate", runs("factorisation"), "--tries", tries)["2"] for tries in (1, 4)
    )
    assert {"rmse", "unused_spread", "sbc_p"} < set(once) and set(again) == set(once) | {"tries"}
    assert 3 < again["tries"] <= 4
    grids = answered(capsys, "evaluate", runs("sudoku"), "--tries", 3)["2"]
    assert {"valid", "valid_half_given", "tries", "tries_half_given"} < set(grids) and grids["tries"] > 2
    assert "no constraint" in refused(capsys, "evaluate", runs("sorting"), "--tries", 3)
    assert "no constraint" in refused(capsys, "sample", runs("sorting"), "--tries", 3)
    for tries in (0, -1, 10**7):
        assert "--tries must lie between 1 and 1000000" in refused(
            capsys, "evaluate", runs("factorisation"), "--tries", tries
        )


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
    metrics_by_steps = answered(capsys, "evaluate", run)
    assert (
        set(metrics_by_steps) == {"2"}
        and all(math.isfinite(value) for value in metrics_by_steps["2"].values())
        and metrics_by_steps["2"]
    )
    data = answered(capsys, "sample", run, "--count", 3, "--seed", 1)
    assert set(data["values"]) == OTHERS[name] and data["tries"] == [1] * 3
    assert all(len(value) == 3 for value in data["values"].values())
    noun = PROBLEMS[name].noun
    ending = f"3 {noun}"
    if name in ("factorisation", "hierarchical", "inversion"):
        A, R, E = (torch.tensor(data["values"][x], dtype=torch.float64) for x in "ARE")
        valid = ((A @ R - E).abs() <= 0.1).flatten(1).all(1)
        ending = f"{int(valid.sum())} of 3 {noun} are valid"
        assert data["valid"] == valid.tolist()
    text = printed(capsys, "sample", run, "--count", 3, "--seed", 1)
    assert text.splitlines()[-1].split(";")[0] == ending
    assert all(text.count(f"{variable}: ") == 3 for variable in OTHERS[name])
    assert printed(capsys, "sample", run, "--count", 3, "--seed", 1) == text


def test_values_are_given_by_name(runs, capsys, tmp_path, undrawn):
    data = answered(capsys, "sample", runs("sorting"), "--given", "u=3,1,2,5,4", "--count", 2)
    assert data["values"]["u"] == [[3, 1, 2, 5, 4]] * 2
    data = answered(capsys, "sample", runs("boolean"), "--given", "L0=1,0,1,0,1,1,1,0")
    assert data["values"]["L0"] == [[1, 0, 1, 0, 1, 1, 1, 0]]
    E = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.save(tmp_path / "E.npy", E)
    data = answered(capsys, "sample", runs("factorisation"), "--given", f"E={tmp_path / 'E.npy'}")
    assert data["values"]["E"] == [E.tolist()]
    data = answered(capsys, "sample", runs("hierarchical"), "--given", "K=1", "--count", 2)
    assert data["values"]["K"] == [[0, 1]] * 2


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


@pytest.mark.slow
@pytest.mark.parametrize("command", VARIANTS)
def test_all_options_of_the_model_train_evaluate_and_sample(capsys, tmp_path, command, undrawn):
    name, *options = command.split()
    report = answered(capsys, "train", name, *tiny(command), *options, "--folder", tmp_path / "run")
    assert report["step"] == 2 and math.isfinite(report["loss"])
    in_one_step = "regressor" in command or "vaeac" in command
    assert set(
        answered(capsys, "evaluate", tmp_path / "run", *([] if in_one_step else ["--iterations", 1]))
    ) == {"1"}
    data = answered(capsys, "sample", tmp_path / "run", "--count", 2, "--seed", 0)
    assert all(np.isfinite(value).all() and len(value) == 2 for value in data["values"].values())


def test_samples_and_how_they_came_about_are_drawn(runs, capsys, tmp_path, undrawn):
    for name in ("sudoku", "hierarchical"):
        one, two = tmp_path / f"{name}.png", tmp_path / f"{name}.svg"
        text = printed(capsys, "sample", runs(name), "--count", 2, "--draw", one, "--trace", two, "--seed", 0)
        assert (
            str(one) in text and str(two) in text and one.stat().st_size > 500 and "<svg" in two.read_text()
        )


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_are_shown(capsys, tmp_path, name):
    text = printed(capsys, "show", name)
    assert PROBLEMS[name].summary in text
    assert "Who interacts with whom" in text
    data = answered(capsys, "show", name)
    assert data["problem"] == name and data["graph"]
    if name == "sorting":
        assert data["nodes"] == {"u": 5, "s": 5, "P": 25, "C": 25} and data["entries"] == len(
            sorting.declare(5, True, "chain").adjacency().rows
        )
        shown = answered(
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
    rows = answered(capsys, "baselines", name, *FEW)
    assert set(rows) == methods and all(set(row) == metrics for row in rows.values())
    lines = printed(capsys, "baselines", name, *FEW).splitlines()
    assert lines == [
        f"{method}: " + ", ".join(f"{m} {value:.4g}" for m, value in row.items())
        for method, row in rows.items()
    ]


@pytest.mark.parametrize("name", ["boolean", "inversion", "hierarchical", "digits"])
def test_problems_without_such_methods_say_so(capsys, name):
    assert "no baselines" in refused(capsys, "baselines", name)


@pytest.mark.parametrize("option", ["--count", "--chain-steps"])
def test_numbers_of_baselines_out_of_range_are_refused(capsys, option):
    assert option in refused(capsys, "baselines", "sorting", option, 0)


# -- names ---------------------------------------------------------------------------------------------------


def test_a_name_is_suggested_only_where_it_is_like_the_one_that_was_typed(capsys):
    for name in ("nothing", "xyz", "training"):
        message = refused(capsys, "show", name)
        assert f"unknown problem {name!r}. Known names:" in message and "Did you mean" not in message
    for name, meant in (
        ("sodoku", "sudoku"),
        ("digit", "digits"),
        ("parsin", "parsing"),
        ("factorization", "factorisation"),
    ):
        assert f"Did you mean '{meant}'?" in refused(capsys, "show", name)


def test_a_problem_with_nothing_to_solve_says_so_whatever_the_engine(capsys):
    message = refused(capsys, "solve", "parsing")
    assert "has no constraints to solve" in message and "sudoku" in message and "--engine" not in message
