"""How a run ended is said truly: nothing is left out silently, and nothing converges at an infinite
energy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_cases import CASES, make
from support.helpers import says

import unn
from factors import Implicit, Multilinear
from unn.testing.strategies import GraphCase, graph_cases


def simplex_pair():
    """X on the simplex (n rows), Y unbounded."""
    g = unn.FactorGraph("pair", n=2, v=3)
    X, Y = g.variable("X", "n | v", unn.Entropy()), g.variable("Y", "n | v", unn.SquaredNorm())
    g.factor(Multilinear(X["i v"], Y["i v"]))
    return g


ROWS = torch.full((1, 2, 3), 1 / 3)
HALF = torch.tensor([[True, False]])


# -- observed in part ----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(case=graph_cases(Multilinear), data=st.data())
def test_a_variable_given_in_part_is_inferred_held_or_refused_by_name(case: GraphCase, data: st.DataObject):
    names = list(case.graph.variables)
    name = data.draw(st.sampled_from(names))
    others = [other for other in names if other != name]
    observed = torch.zeros(3, dtype=torch.bool)
    observed[: data.draw(st.integers(0, 3))] = True
    part = {name: unn.Partial(case.values[name], observed)}
    start = {other: case.values[other] for other in others}
    if observed.all():
        out = unn.infer(case.graph, part, initial=start, order=others)
        torch.testing.assert_close(out[name], case.values[name])
        return
    with pytest.raises(unn.InferenceError, match=says(repr(name), "in part", "order")):
        unn.infer(case.graph, part, initial=start, order=others)
    held = unn.infer(case.graph, part, initial={**start, name: case.values[name]}, order=others)
    torch.testing.assert_close(held[name], case.values[name])


def test_padding_need_not_be_observed():
    g = make("sequence").graph
    words = torch.randn(2, 4, 3, dtype=torch.float64)
    exists = torch.arange(4) < torch.tensor([[4], [2]])
    tags = {"tags": "uniform"}
    options = {"order": ["tags"], "initial": tags, "lengths": {"n": torch.tensor([4, 2])}}
    part = unn.infer(g, {"words": unn.Partial(words, exists)}, **options)
    torch.testing.assert_close(part["tags"], unn.infer(g, {"words": words}, **options)["tags"])
    with pytest.raises(unn.InferenceError, match=says("'words'", "3 of its 24")):
        unn.infer(
            g, {"words": unn.Partial(words, exists & (torch.arange(4) > 0) | exists & HALF.T)}, **options
        )


@pytest.mark.parametrize("check_values", [True, False])
def test_a_network_refuses_a_part_that_it_would_never_infer(check_values):
    net = unn.Unrolled(simplex_pair(), "X", "Y", order=["Y"], check_values=check_values)
    assert torch.equal(net(ROWS), ROWS)
    with pytest.raises(unn.InferenceError, match=says("'X'", "in part")):
        net(unn.Partial(ROWS, HALF))


# -- energies that are not finite ----------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(case=graph_cases(Multilinear), data=st.data())
def test_a_converged_run_has_a_finite_energy_and_values_in_their_domains(
    case: GraphCase, data: st.DataObject
):
    names = list(case.graph.variables)
    free = data.draw(st.permutations(names))[: data.draw(st.integers(1, len(names)))]
    starts = {name: data.draw(st.sampled_from(["zero", "uniform"])) for name in names}
    out = unn.infer(case.graph, {}, initial=starts, order=list(free), until=1e-3, iterations=60)
    if out.converged:
        assert case.graph.energy(out.values).isfinite().all()
        assert all(v.regularizer.contains(out[name]).all() for name, v in case.graph.variables.items())


def test_a_simplex_variable_held_at_zero_does_not_converge():
    out = unn.infer(simplex_pair(), {}, initial={"X": "zero"}, order=["Y"], until=1e-6)
    assert out.status is unn.Status.INFINITE and not out.converged
    for word in ("'X'", "Entropy", "1 of 1", "initial={'X': 'uniform'}"):
        assert word in out.message
    assert unn.infer(simplex_pair(), {}, initial={"X": "uniform"}, order=["Y"], until=1e-6).converged


def test_a_factor_without_a_finite_energy_does_not_converge():
    g = unn.FactorGraph("log", n=2)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm())
    g.factor(Multilinear(X["i"], Y["i"]))
    g.factor(Implicit(lambda x: x.log().sum(1), X["i"], name="logarithm"))
    out = unn.infer(g, {"X": torch.tensor([[1.0, 1.0], [-1.0, 1.0]])}, order=["Y"], until=1e-6)
    assert out.status is unn.Status.INFINITE and "'logarithm'" in out.message and "1 of 2" in out.message


@pytest.mark.parametrize("name", CASES)
def test_the_energy_of_a_case_is_finite_where_it_converges(name):
    case = make(name)
    case.iterations = 200
    out = unn.infer(
        case.graph,
        case.given,
        order=case.order,
        initial=case.initial or None,
        lengths=case.lengths or None,
        dropout=case.dropout or None,
        until=1e-6,
        iterations=200,
    )
    assert not out.converged or out.energy[-1].isfinite().all()
