"""Factors with an energy inform the solver, and continuous nodes are evidence or are estimated."""

import copy
from itertools import permutations

import pytest
import torch

import unn
from factors import AllDifferent, Cardinality, Depends, Multilinear
from unn.errors import DeclarationError, ObservationError
from unn.solver.energies import Surroundings
from unn.solver.model import Solver
from unn.solver.packing import pack
from unn.solver.pool import Pool
from unn.solver.propagation import Known

OPTIONS = unn.SolverOptions(width=8, pool=16, truncation=4, oldest=16, solving_steps=16, noise=0.0)


def assignment(n=4):
    g = unn.FactorGraph("assignment", worker=n, task=n)
    X = g.variable("X", "worker | task", unn.Entropy())
    gain = g.variable("gain", "worker task", unn.SquaredNorm())
    g.factor(AllDifferent(X["w t"], each=""))
    g.factor(Multilinear(gain["w t"], X["w t"]))
    return g


def best_assignments(gains):
    n = gains.shape[1]
    orders = torch.tensor([list(p) for p in permutations(range(n))])
    totals = torch.stack([gains[:, torch.arange(n), order].sum(1) for order in orders], 1)
    return torch.eye(n)[orders[totals.argmax(1)]]


def assignments(count, generator):
    gains = torch.randn(count, 4, 4, generator=generator)
    return {"X": best_assignments(gains), "gain": gains}


def all_gains(count, generator):
    return {
        "X": torch.zeros(1, 4, dtype=torch.bool),
        "gain": torch.ones(1, 4, 4, dtype=torch.bool),
    }


def sensors():
    """One of five nodes is active, and each has a reading around its level."""
    g = unn.FactorGraph("sensors", node=5)
    active = g.variable("active", "node", unn.BinaryEntropy())
    reading = g.variable("reading", "node", unn.SquaredNorm())
    g.factor(Cardinality(active["n"], each="", equals=1))
    g.factor(Multilinear(reading["n"], active["n"]))
    return g


def readings(count, generator):
    active = torch.eye(5)[torch.randint(5, (count,), generator=generator)]
    noise = torch.randn(count, 5, generator=generator)
    return {"active": active, "reading": 100 + 20 * active + noise}


@pytest.mark.slow
def test_a_short_training_finds_most_optimal_assignments_from_real_gains():
    torch.manual_seed(0)
    model = Solver(assignment(), OPTIONS, {})
    unn.fit(model, assignments, observed=all_gains, steps=250, batch=16, rate=0.01, seed=0)
    test = assignments(200, torch.Generator().manual_seed(1))
    solutions = unn.solve(model, {"gain": test["gain"]})
    optimal = (solutions["X"] == test["X"]).flatten(1).all(1) & solutions.solved
    assert float(optimal.float().mean()) > 0.75
    expected = model.infer_values({"gain": test["gain"]}, 200, {})
    torch.testing.assert_close(expected["gain"], test["gain"])
    chosen = torch.eye(4)[expected["X"].argmax(-1)]
    assert float((chosen == test["X"]).flatten(1).all(1).float().mean()) > 0.75


@pytest.mark.slow
def test_continuous_nodes_that_are_not_given_are_estimated_in_their_units():
    torch.manual_seed(0)
    model = Solver(sensors(), OPTIONS, {})
    model.prepare(readings(200, torch.Generator().manual_seed(9)))
    rule = {"active": torch.ones(1, 5, dtype=torch.bool), "reading": torch.zeros(1, 5, dtype=torch.bool)}
    unn.fit(model, readings, observed=lambda count, generator: rule, steps=300, batch=16, rate=0.01, seed=0)
    test = readings(100, torch.Generator().manual_seed(1))
    estimate = model.infer_values({"active": test["active"]}, 100, {})["reading"]
    exact = 100 + 20 * test["active"]
    assert float((estimate - exact).square().mean().sqrt()) < 2.5, "the readings vary by 8"


@pytest.mark.slow
def test_partial_readings_are_kept_and_inform_the_discrete_nodes():
    torch.manual_seed(0)
    model = Solver(sensors(), OPTIONS, {})
    model.prepare(readings(200, torch.Generator().manual_seed(9)))

    def half(count, generator):
        mask = torch.rand(count, 5, generator=generator) < 0.6
        return {"active": torch.zeros(1, 5, dtype=torch.bool), "reading": mask}

    unn.fit(model, readings, observed=half, steps=250, batch=16, rate=0.01, seed=0)
    test = readings(200, torch.Generator().manual_seed(2))
    mask = torch.rand(200, 5, generator=torch.Generator().manual_seed(3)) < 0.6
    values = model.infer_values({"reading": unn.Partial(test["reading"], mask)}, 200, {})
    torch.testing.assert_close(values["reading"][mask], test["reading"][mask])
    shown = (mask * test["active"]).any(1)
    right = values["active"].argmax(1) == test["active"].argmax(1)
    assert float(right[shown].float().mean()) > 0.9
    hidden = values["active"][~shown] * mask[~shown]
    assert float(hidden.sum(1).mean()) < 0.2, "a node whose reading is low is not active"


def test_an_update_commutes_with_renaming_workers_and_tasks():
    torch.manual_seed(0)
    model = Solver(assignment(), OPTIONS, {})
    generator = torch.Generator().manual_seed(0)
    gains, state = torch.randn(2, 4, 4, generator=generator), torch.randn(2, 4, 4, 8, generator=generator)
    workers, tasks = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 3, 0, 2])
    layout = model.layout({})
    unknown = torch.zeros(2, 16, dtype=torch.bool)
    packed = pack(layout, Known(unknown, unknown))

    def update(gains, state):
        beside = Surroundings.of(unknown, gains.flatten(1), torch.ones(2, 16, dtype=torch.bool), 8)
        new, _ = model.step(layout, packed, state.reshape(-1, 8), beside)
        return new.view(2, 4, 4, 8)

    renamed = update(gains[:, workers][:, :, tasks], state[:, workers][:, :, tasks])
    torch.testing.assert_close(renamed, update(gains, state)[:, workers][:, :, tasks])
    swapped = gains.clone()
    swapped[:, 0] = gains[:, 0, tasks]
    assert not torch.allclose(update(swapped, state), update(gains, state)), "gains matter"


def test_a_copy_that_restores_the_pools_continues_equally():
    torch.manual_seed(0)
    model = Solver(sensors(), OPTIONS, {})
    generator = torch.Generator().manual_seed(4)
    rule = {"active": torch.zeros(1, 5, dtype=torch.bool), "reading": torch.zeros(1, 5, dtype=torch.bool)}
    model.loss(readings(32, generator), rule)
    again = copy.deepcopy(model)
    again.load_training_state(model.training_state())
    batch = readings(32, generator)
    losses = []
    for m in (model, again):
        torch.manual_seed(7)
        losses.append(float(m.loss(batch, rule).detach()))
    assert losses[0] == losses[1]
    assert float(model.training_state()["reals"].abs().sum()) > 0


def test_pools_of_graphs_without_continuous_nodes_load_from_older_checkpoints():
    torch.manual_seed(0)
    g = unn.FactorGraph("colours", node=3, colour=3)
    g.factor(AllDifferent(g.variable("X", "node | colour", unn.Entropy())["n c"], each=""))
    model = Solver(g, OPTIONS, {})
    assert model.energies is None
    model.loss({"X": torch.eye(3)[None]}, {"X": torch.zeros(1, 3, dtype=torch.bool)})
    older = {k: x for k, x in model.training_state().items() if k not in ("numbers", "given", "reals")}
    pool = Pool.from_tensors(older)
    assert pool.numbers.shape == (16, 0) and pool.reals.shape == (16, 0, 8)


def test_a_continuous_variable_without_an_energy_is_refused_with_the_engine_that_reads_it():
    g = unn.FactorGraph("seen", node=3, colour=3, pixel=4)
    X, image = (
        g.variable("X", "node | colour", unn.Entropy()),
        g.variable("image", "node | pixel", unn.SquaredNorm()),
    )
    g.factor(AllDifferent(X["n c"], each=""))
    g.factor(Depends(X["n c"], image["n p"]))
    with pytest.raises(DeclarationError, match="'image' is continuous.*perception"):
        Solver(g, OPTIONS, {})


def test_a_constant_without_a_value_is_refused():
    g = assignment()
    weight = g.constant("weight", "worker")
    g.factor(Multilinear(weight["w"], g["gain"]["w t"], g["X"]["w t"]))
    with pytest.raises(DeclarationError, match="constant 'weight'"):
        Solver(g, OPTIONS, {})


def test_values_that_are_missing_or_do_not_fit_are_named():
    model = Solver(assignment(), OPTIONS, {})
    batch = assignments(4, torch.Generator().manual_seed(0))
    rule = all_gains(4, torch.Generator())
    with pytest.raises(ObservationError, match="missing: gain"):
        model.loss({"X": batch["X"]}, rule)
    with pytest.raises(ObservationError, match="batch sizes"):
        model.loss({"X": batch["X"], "gain": batch["gain"][:2]}, rule)
    with pytest.raises(ObservationError, match="NaN"):
        unn.solve(model, {"gain": torch.full((1, 4, 4), torch.nan)})
