"""Updates: what is done with the exact minimiser of a block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import X, mlp, says

import unn
from factors import Multilinear
from unn.testing import graph_cases


@given(case=graph_cases(Multilinear), step=st.floats(0.05, 1.0))
@settings(max_examples=60, deadline=None)
def test_damped_updates_never_raise_the_energy(case, step):
    out = unn.infer(
        case.graph,
        case.observed,
        initial=case.start,
        order=list(case.start),
        iterations=3,
        update=unn.Damped(step),
    )
    energies = torch.cat([case.graph.energy({**case.observed, **case.start})[None], out.energy])
    rise = (energies[1:] - energies[:-1]) / (1 + energies[:-1].abs())
    assert rise.max() <= 1e-9
    torch.testing.assert_close(out.energy[-1], case.graph.energy(out.values), rtol=1e-9, atol=1e-9)


@given(case=graph_cases(Multilinear), step=st.floats(0.1, 1.0))
@settings(max_examples=30, deadline=None)
def test_a_damped_update_is_a_convex_combination_of_the_old_value_and_the_minimiser(case, step):
    for name in case.start:
        rest = {**case.observed, **{other: x for other, x in case.start.items() if other != name}}
        exact = unn.infer(case.graph, rest, initial={name: case.start[name]}, order=[name])[name]
        damped = unn.infer(
            case.graph, rest, initial={name: case.start[name]}, order=[name], update=unn.Damped(step)
        )[name]
        torch.testing.assert_close(damped, (1 - step) * case.start[name] + step * exact, rtol=1e-9, atol=1e-9)


@given(case=graph_cases(Multilinear))
@settings(max_examples=20, deadline=None)
def test_a_step_of_one_is_the_minimiser(case):
    exact, damped = (
        unn.infer(
            case.graph, case.observed, initial=case.start, order=list(case.start), iterations=2, update=update
        )
        for update in (unn.Mirror(), unn.Damped(1.0))
    )
    for name in case.start:
        torch.testing.assert_close(damped[name], exact[name], rtol=1e-12, atol=1e-12)


def test_damped_rounds_converge_to_the_fixed_points_of_exact_ones():
    g = mlp().double()
    x = X.double()
    exact = unn.infer(g, {"X": x}, order=["H", "Y"], until=1e-12)
    damped = unn.infer(g, {"X": x}, order=["H", "Y"], until=1e-12, update=unn.Damped(0.5))
    assert exact.converged and damped.converged and damped.rounds > exact.rounds
    torch.testing.assert_close(damped["Y"], exact["Y"], rtol=0, atol=1e-9)


def test_a_variable_that_was_absent_takes_the_minimiser():
    g = mlp()
    exact, damped = (
        unn.infer(g, {"X": X}, order=["H"], initial={"Y": "uniform"}, update=update)
        for update in (unn.Mirror(), unn.Damped(0.3))
    )
    assert torch.equal(exact["H"], damped["H"])


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_an_unrolled_network_damps_as_inference_does(rounds):
    g = mlp().double()
    out = unn.infer(g, {"X": X.double()}, order=["H", "Y"], iterations=rounds, update=unn.Damped(0.4))
    net = unn.Unrolled(g, "X", "Y", order=["H", "Y"], iterations=rounds, update=unn.Damped(0.4))
    torch.testing.assert_close(net(X.double()), out["Y"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        net.preactivations(X.double()), out.preactivations["Y"], rtol=1e-12, atol=1e-12
    )


def test_entries_that_are_observed_stay_as_they_are():
    g = mlp()
    value, mask = torch.randn_like(X), torch.arange(X.shape[1]) < 2
    out = unn.infer(
        g,
        {"X": unn.Partial(value, mask.expand_as(X))},
        order=["H", "Y", "X"],
        iterations=2,
        update=unn.Damped(0.5),
    )
    assert torch.equal(out["X"][:, :2], value[:, :2])


@pytest.mark.parametrize("step", [0, -0.5, 1.5, float("nan"), "half", True, None])
def test_steps_that_make_no_sense_are_refused(step):
    with pytest.raises(unn.InferenceError, match=says("Damped", "above 0", repr(step))):
        unn.Damped(step)


@pytest.mark.parametrize("update", [unn.Mirror, 0.5, None, "mirror"])
def test_what_is_no_update_is_refused(update):
    g = mlp()
    with pytest.raises(unn.InferenceError, match=says("update", "Damped")):
        unn.infer(g, {"X": X}, order=["H", "Y"], update=update)
    with pytest.raises(unn.InferenceError, match=says("update", "Damped")):
        unn.Unrolled(g, "X", "Y", update=update)


def chain_of_labels():
    g = unn.FactorGraph("chain", d=3, label=3)
    x, y = g.variable("X", "n d", unn.SquaredNorm()), g.variable("Y", "n | label", unn.Entropy())
    g.factor(Multilinear(y["i c"], g.parameter("E", "label d")["c d"], x["i d"]))
    g.factor(Multilinear(y["i a"], g.parameter("T", "label other", init=1.0)["a b"], y["i+1 b"]))
    return g, torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seen", [False, True], ids=["none observed", "one observed"])
@pytest.mark.parametrize("order", ["whole", "blocks", "greedy"])
def test_damped_nodes_that_had_no_value_take_the_minimiser_and_are_in_their_domain(order, seen):
    g, x = chain_of_labels()
    even = torch.tensor([True, False, True, False])
    orders = {
        "whole": ["Y"],
        "blocks": [unn.Block("Y", even), unn.Block("Y", ~even)],
        "greedy": unn.Greedy([unn.Block("Y", even), unn.Block("Y", ~even)]),
    }
    given = {"X": x}
    if seen:
        label = torch.tensor([0.0, 1, 0]).expand(2, 4, 3)
        given["Y"] = unn.Partial(label, torch.tensor([[True, False, False, False]] * 2))
    rounds = 4 if order == "greedy" else 1
    for update in (unn.Damped(0.5), unn.Damped(0.01)):
        out = unn.infer(g, given, order=orders[order], iterations=rounds, update=update)
        assert torch.allclose(out["Y"].sum(-1), torch.ones(2, 4))
        assert bool(out.energy[-1].isfinite().all())
        names = list(given)
        for gradient in (unn.Unroll(), unn.Checkpoint(1)) if order == "blocks" else ():
            net = unn.Unrolled(
                g, names, "Y", order=orders[order], iterations=rounds, update=update, gradient=gradient
            )
            torch.testing.assert_close(net(*given.values()), out["Y"])


def test_the_first_damped_round_of_coloured_nodes_is_that_of_the_minimiser():
    g, x = chain_of_labels()
    mirror, damped = (
        unn.infer(g, {"X": x}, order=["Y"], iterations=1, update=update)["Y"]
        for update in (unn.Mirror(), unn.Damped(0.3))
    )
    torch.testing.assert_close(damped, mirror)
