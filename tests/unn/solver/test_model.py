"""The solver learns, keeps the states of its examples, resumes exactly and refuses what does not fit."""

import copy
from dataclasses import replace

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from factors import AllDifferent, Cardinality
from unn.errors import ArgumentError, DeclarationError, ObservationError
from unn.solver import model as solver_model
from unn.solver.model import Solver, chosen
from unn.solver.options import SolverOptions
from unn.solver.packing import pack
from unn.solver.propagation import Known, evidence, exclude
from unn.training import Examples, Task, TrainingConfig, fit

BASE = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])
SMALL = SolverOptions(width=8, pool=8, truncation=4, oldest=16, solving_steps=32, propagation="once")


def grids(count, generator):
    names = torch.rand(count, 4, generator=generator).argsort(1)
    return torch.eye(4)[names[:, BASE]]


def masks(count, generator, share=0.4):
    return torch.rand(count, 4, 4, generator=generator) < share


def solver(seed=0, options=SMALL):
    torch.manual_seed(seed)
    return Solver(declare_sudoku(2, 2), options, {})


class Puzzles(Examples):
    def __len__(self):
        return 0

    def batch(self, indices, generator):
        count = len(indices)
        return {"X": grids(count, generator)}, {"X": masks(count, generator)}


class PuzzleTask(Task):
    def examples(self):
        return Puzzles()

    def loss(self, network, batch):
        return network.loss(*batch)


def test_a_short_training_lowers_the_loss_and_solves_most_small_puzzles():
    model = solver()
    result = unn.fit(
        model,
        lambda count, generator: {"X": grids(count, generator)},
        observed=lambda count, generator: {"X": masks(count, generator)},
        steps=150,
        batch=16,
        rate=0.01,
        seed=0,
    )
    assert float(result.losses[-20:].mean()) < 0.9 * float(result.losses[:20].mean())
    generator = torch.Generator().manual_seed(5)
    X, given = grids(40, generator), masks(40, generator)
    solutions = unn.solve(model, {"X": unn.Partial(X, given)})
    untrained = unn.solve(solver(), {"X": unn.Partial(X, given)})
    assert int(solutions.solved.sum()) >= max(28, int(untrained.solved.sum()) + 8)


def test_training_from_the_constraints_alone_lowers_their_surprise():
    options = SolverOptions(width=8, pool=8, truncation=4, oldest=16, labels=False)
    result = unn.fit(
        solver(options=options),
        lambda count, generator: {"X": grids(count, generator)[:, torch.randperm(4, generator=generator)]},
        observed=lambda count, generator: {"X": masks(count, generator, 0.0)},
        steps=100,
        batch=8,
        rate=0.01,
        seed=0,
    )
    assert float(result.losses[-20:].mean()) < 0.8 * float(result.losses[:20].mean())


@pytest.mark.parametrize(("breadth", "least", "most"), [(1, 0.5, 0.7), (8, 0.8, 1.0)])
def test_networks_that_are_trained_in_breadth_guess_where_two_answers_are_equally_likely(
    breadth, least, most
):
    g = unn.FactorGraph("pair", i=2, v=2)
    X = g.variable("X", "i | v", unn.Entropy())
    g.factor(Cardinality(X["i v"], each="v", equals=1, name="different"))

    def pairs(count, generator):
        first = torch.randint(2, (count,), generator=generator)
        return {"X": torch.nn.functional.one_hot(torch.stack([first, 1 - first], 1), 2).float()}

    torch.manual_seed(0)
    model = Solver(g, SolverOptions(width=8, pool=32, breadth=breadth, truncation=4, oldest=16), {})
    unn.fit(
        model,
        pairs,
        observed=lambda count, generator: {"X": torch.zeros(count, 2, dtype=torch.bool)},
        steps=200,
        batch=32,
        rate=0.01,
        seed=0,
    )
    probability = model.eval().infer_values({}, 1, {}, 16)["X"]
    assert bool(((least <= probability.amax(-1)) & (probability.amax(-1) <= most)).all())


def test_rows_of_an_example_enter_and_leave_the_pool_together():
    model = solver(options=replace(SMALL, breadth=2)).train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        model.loss({"X": grids(16, generator)}, {"X": masks(16, generator)})
        pool = model.training_state()
        for name in ("truth", "true", "false", "age"):
            assert torch.equal(pool[name][::2], pool[name][1::2])
        assert not torch.equal(pool["state"][::2], pool["state"][1::2])
        assert len(pool["truth"].unique(dim=0)) > 1


def test_a_pool_that_is_no_multiple_of_the_breadth_is_refused():
    with pytest.raises(ArgumentError, match="the pool must be a multiple of the breadth, got 32 and 5"):
        solver(options=SolverOptions(breadth=5))


@pytest.mark.parametrize("breadth", [1, 4])
def test_a_resumed_training_ends_like_one_that_did_not_stop(tmp_path, breadth):
    options = replace(SMALL, breadth=breadth)
    config = TrainingConfig(steps=12, batch=8, rate=1e-2, checkpoint_every=4, device="cpu", threads=1)
    for name in ("whole", "part"):
        (tmp_path / name).mkdir()
    whole = fit(solver(options=options), PuzzleTask(), config, tmp_path / "whole")

    class Stops(PuzzleTask):
        taken = 0

        def loss(self, network, batch):
            Stops.taken += 1
            if Stops.taken > 9:
                raise KeyboardInterrupt
            return super().loss(network, batch)

    with pytest.raises(KeyboardInterrupt):
        fit(solver(options=options), Stops(), config, tmp_path / "part")
    resumed = fit(solver(options=options, seed=3), PuzzleTask(), config, tmp_path / "part")
    assert resumed.begun == 8
    for name, x in whole.network.state_dict().items():
        torch.testing.assert_close(resumed.network.state_dict()[name], x, rtol=0, atol=0)
    for one, other in zip(
        whole.network.training_state().values(), resumed.network.training_state().values(), strict=True
    ):
        assert torch.equal(one, other)


def test_examples_stay_in_the_pool_until_they_are_solved_or_old():
    model = solver().train()
    generator = torch.Generator().manual_seed(0)
    ages = []
    for _ in range(6):
        model.loss({"X": grids(16, generator)}, {"X": masks(16, generator)})
        ages.append(model.training_state()["age"].clone())
    assert int(torch.stack(ages).max()) == SMALL.oldest - SMALL.truncation
    assert all(bool((age % SMALL.truncation == 0).all()) for age in ages)


def test_an_evaluation_leaves_the_pool_alone_and_copies_have_none():
    model = solver().train()
    generator = torch.Generator().manual_seed(0)
    X, given = {"X": grids(16, generator)}, {"X": masks(16, generator)}
    model.loss(X, given)
    before = {name: x.clone() for name, x in model.training_state().items()}
    model.eval()
    with torch.no_grad():
        assert bool(model.loss(X, given).isfinite())
    assert all(torch.equal(x, before[name]) for name, x in model.training_state().items())
    assert copy.deepcopy(model).training_state() == {}


def columns(rows, cols, count, generator):
    """Columns of different values, shape ``(count, rows, cols, 3)``."""
    values = torch.rand(count, cols, 3, generator=generator).argsort(2)[..., :rows]
    return torch.eye(3)[values.mT]


def solver_of_columns():
    g = unn.FactorGraph("columns", value=3)
    X = g.variable("X", "row col | value", unn.Entropy())
    g.factor(Cardinality(X["r c v"], each="c v", at_most=1))
    torch.manual_seed(0)
    return Solver(g, SMALL, SIZES[0])


SIZES = ({"row": 2, "col": 6}, {"row": 3, "col": 4})
"""Sizes with equally many candidates."""


def learn(model, size, seed):
    """The loss of a batch of one size."""
    generator = torch.Generator().manual_seed(seed)
    X = columns(size["row"], size["col"], 16, generator)
    given = torch.rand(16, size["row"], size["col"], generator=generator) < 0.4
    torch.manual_seed(seed)
    return model.train().loss({"X": X}, {"X": given}, **size)


def test_each_size_has_a_pool_of_its_own_which_the_others_leave_alone():
    mixed, alone = solver_of_columns(), solver_of_columns()
    for seed in range(4):
        loss = learn(mixed, SIZES[0], seed)
        learn(mixed, SIZES[1], seed + 10)
        torch.testing.assert_close(loss, learn(alone, SIZES[0], seed), rtol=0, atol=0)


def test_training_on_several_sizes_continues_from_the_saved_pools():
    whole = solver_of_columns()
    for seed, size in enumerate((*SIZES, *SIZES)):
        learn(whole, size, seed)
    resumed = solver_of_columns()
    resumed.load_training_state({name: x.clone() for name, x in whole.training_state().items()})
    for seed, size in enumerate(SIZES):
        torch.testing.assert_close(learn(resumed, size, seed), learn(whole, size, seed), rtol=0, atol=0)


def test_completely_given_examples_have_no_loss():
    model = solver().train()
    X = grids(4, torch.Generator().manual_seed(0))
    loss = model.loss({"X": X}, {"X": torch.ones(1, 4, 4, dtype=torch.bool)})
    loss.backward()
    assert float(loss.detach()) == 0


def test_each_node_has_one_chosen_candidate_even_among_equals():
    layout = solver().layout({})
    none = torch.zeros(2, layout.candidates, dtype=torch.bool)
    p = pack(layout, Known(none, none.clone()))
    for scores in (torch.zeros(p.count), torch.full((p.count,), torch.nan), torch.randn(p.count)):
        assert bool((chosen(p, scores).view(2, 16, 4).sum(2) == 1).all())


def test_values_masks_and_names_that_do_not_fit_are_refused():
    model = solver()
    X = grids(2, torch.Generator().manual_seed(0))
    with pytest.raises(ObservationError, match="'X'"):
        model.loss({"X": X[:, :3]}, {})
    with pytest.raises(ObservationError, match="'X'"):
        model.loss({"X": X * torch.nan}, {})
    with pytest.raises(ObservationError, match="'X'"):
        model.loss({"X": X}, {"X": torch.zeros(2, 4, 4)})
    for mask in (torch.zeros(4, 4, dtype=torch.bool), torch.zeros(3, 4, 4, dtype=torch.bool), [[True]]):
        with pytest.raises(ObservationError, match=r"'X'.*\(2, 4, 4\)"):
            model.loss({"X": X}, {"X": mask})
    with pytest.raises(ObservationError, match="mapping"):
        model.loss({"X": X}, torch.zeros(2, 4, 4, dtype=torch.bool))
    with pytest.raises(ObservationError, match="'Y'"):
        model.loss({"X": X}, {"Y": torch.zeros(2, 4, 4, dtype=torch.bool)})
    with pytest.raises(ObservationError, match="X"):
        model.loss({}, {})


@pytest.mark.parametrize(
    "options",
    [
        {"width": 3},
        {"width": 0},
        {"leave": 0.0},
        {"leave": 1.5},
        {"pool": 0},
        {"truncation": 0},
        {"solving_steps": 0},
        {"oldest": 0},
    ],
)
def test_options_out_of_range_are_refused_by_name(options):
    with pytest.raises(unn.ArgumentError, match=next(iter(options))):
        SolverOptions(**options).check("here")


def test_probabilities_of_the_values_of_a_node_sum_to_one_and_contain_the_evidence():
    generator = torch.Generator().manual_seed(1)
    X, given = grids(5, generator), masks(5, generator)
    probabilities = solver().infer_values({"X": unn.Partial(X, given)}, 5, {})["X"]
    assert torch.allclose(probabilities.sum(-1), torch.ones(5, 4, 4), atol=1e-5)
    assert torch.equal(probabilities[given], X[given])
    assert not torch.equal(probabilities, X)


def test_more_steps_than_one_change_probabilities():
    X, given = grids(2, torch.Generator().manual_seed(1)), torch.zeros(2, 4, 4, dtype=torch.bool)
    one, several = (
        solver().infer_values({"X": unn.Partial(X, given)}, 2, {}, iterations=k)["X"] for k in (1, 8)
    )
    assert not torch.allclose(one, several, atol=1e-3)


def test_probabilities_are_those_of_the_initial_state_whose_last_change_is_smallest():
    """Against the restarts one by one, through the same network."""
    model, steps = solver(options=replace(SMALL, noise=0.0)), 6
    X, given = grids(1, torch.Generator().manual_seed(1)), torch.zeros(1, 4, 4, dtype=torch.bool)
    given[0, 0] = True
    layout = model.layout({})
    known = exclude(layout, evidence(layout, *layout.frame.observation({"X": unn.Partial(X, given)}, 1)))
    packed = pack(layout, known)
    answers, residuals = [], []
    with torch.no_grad():
        for restart in range(solver_model._BREADTH):
            generator = torch.Generator().manual_seed(restart)
            state = torch.randn(layout.candidates, SMALL.width, generator=generator)[packed.candidate]
            for _ in range(steps):
                before, state = state, model.network(state, packed)
            residuals.append(float((state - before).square().mean()))
            scores = torch.full((1, layout.candidates), -torch.inf)
            scores[packed.row, packed.candidate] = model.network.scores(state)
            answers.append(scores.view(1, 4, 4, 4).softmax(-1))
    assert len(set(residuals)) > 1
    expected = torch.where(given[..., None], X, answers[residuals.index(min(residuals))])
    inferred = model.infer_values({"X": unn.Partial(X, given)}, 1, {}, iterations=steps)["X"]
    assert torch.allclose(inferred, expected, atol=1e-5)


def rows_of_four():
    g = unn.FactorGraph("row", value=4)
    X = g.variable("X", "node | value", unn.Entropy())
    g.factor(AllDifferent(X["i v"], each=""))
    return g


def test_kinds_of_groups_are_found_by_their_bounds_at_every_size():
    # three different values of four are counted at most once, four of four exactly once
    model = Solver(rows_of_four(), SolverOptions(width=4, solving_steps=3), {"node": 3})
    kinds = model.network.kinds
    assert kinds == [(0, 1), (1, 1)]
    with torch.no_grad():
        model.network.summary[kinds.index((0, 1))].fill_(torch.nan)
    # weights of the kind that this size has not are not read
    assert model.infer_values({}, 1, {"node": 4})["X"].isfinite().all()
    with torch.no_grad():
        model.network.summary[kinds.index((1, 1))].fill_(torch.nan)
    score = model.network.score.weight
    layout = model.layout({"node": 4})
    none = torch.zeros(1, layout.candidates, dtype=torch.bool)
    packed = pack(layout, Known(none, none.clone()))
    assert model.network(torch.zeros(packed.count, 4).to(score), packed).isnan().any()


def test_a_size_with_a_kind_of_groups_that_has_no_weights_is_refused():
    model = Solver(rows_of_four(), SolverOptions(width=4, solving_steps=3), {"node": 4})
    with pytest.raises(DeclarationError, match="none for 0 to 1"):
        model.infer_values({}, 1, {"node": 3})


def test_probabilities_given_contradictory_evidence_are_refused_with_the_group():
    model = Solver(rows_of_four(), SolverOptions(width=4, solving_steps=3), {"node": 4})
    X = torch.eye(4)[torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]])]
    given = {"X": unn.Partial(X, torch.tensor([True, True, False, False]).expand(2, 4))}
    with pytest.raises(ObservationError, match=r"row 1 contradicts exactly 1 of .*X\[0\] = 0"):
        model.infer_values(given, 2, {"node": 4})


@pytest.mark.parametrize("steps", [0, -3, 1.5])
def test_numbers_of_steps_that_are_none_are_refused(steps):
    model = Solver(rows_of_four(), SolverOptions(width=4), {"node": 4})
    with pytest.raises(ArgumentError, match="whole number"):
        model.infer_values({}, 1, {"node": 4}, steps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_evidence_of_every_type_is_solved_with_different_answers(dtype):
    model = unn.Search(rows_of_four(), unn.SearchOptions(mode="depth-first"))
    X = torch.eye(4)[torch.tensor([[0, 1, 2, 3]])].to(dtype)
    given = {"X": unn.Partial(X, torch.tensor([[True, True, False, False]]))}
    solutions = unn.solve(model, given, options=unn.SolvingOptions(count=3))
    assert solutions.outcomes == ("solved",)
    answers = {tuple(x.argmax(-1).tolist()) for x in solutions.answers[0]["X"].float()}
    assert answers == {(0, 1, 2, 3), (0, 1, 3, 2)} and len(solutions.answers[0]["X"]) == 2


def counted(**bounds):
    """Nodes with a group of each kind, beside that of their values."""
    g = unn.FactorGraph("counted", n=4)
    b = g.variable("b", "n", unn.BinaryEntropy())
    for name, bound in bounds.items():
        g.factor(Cardinality(b["i"], each="", name=name, **bound))
    torch.manual_seed(len(bounds))
    return Solver(g, SMALL, {})


def test_weights_serve_graphs_whose_kinds_of_groups_they_have():
    trained = counted(two={"equals": 2}, few={"at_most": 3})
    other = counted(few={"at_most": 3})
    assert other.network.kinds != trained.network.kinds
    other.take_weights(trained)
    assert other.network is trained.network
    assert unn.solve(other, {}).solved.all()


def test_weights_are_not_taken_for_another_kind_of_groups_or_another_width():
    trained = counted(few={"at_most": 3})
    # as many kinds, whose weights have the same names and shapes
    with pytest.raises(DeclarationError, match="none for 0 to 2, which this graph has"):
        counted(few={"at_most": 2}).take_weights(trained)
    wider = Solver(trained.graph, replace(SMALL, width=16), {})
    with pytest.raises(DeclarationError, match="weights of width 16"):
        wider.take_weights(trained)
