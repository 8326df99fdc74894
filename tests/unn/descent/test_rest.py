"""Batch elements stop by themselves, and accelerated rounds never raise the energy."""

import pytest
import torch
from hypothesis import given, settings
from support.helpers import says

import unn
from factors import Multilinear
from unn.errors import InferenceError
from unn.testing.strategies import graph_cases

D = torch.float64


def pair(gain=0.9, size=6):
    """Two layers that act on one another, with a field C; slow where the field is small."""
    torch.manual_seed(0)
    g = unn.FactorGraph("pair", n=size)
    A, B, C = (g.variable(name, "n", unn.SignedEntropy()) for name in "ABC")
    w = torch.linalg.qr(torch.randn(size, size)).Q * gain
    g.factor(Multilinear(A["i"], g.constant("W", "n m", w)["i j"], B["j"]))
    g.factor(Multilinear(A["i"], C["i"]))
    return g.double()


def fields(batch):
    generator = torch.Generator().manual_seed(1)
    scale = torch.logspace(-2, 0, batch, dtype=D)[:, None]
    return scale * torch.rand(batch, 6, dtype=D, generator=generator).sub(0.5).mul(1.9)


def descend(c, **options):
    return unn.infer(pair(), {"C": c}, order=["A", "B"], until=1e-8, iterations=2000, **options)


def test_one_example_has_exactly_the_answer_and_the_energies_of_its_row_in_a_batch():
    c = fields(9)
    together = descend(c, terms=True)
    assert together.converged
    rounds = set()
    for k in range(9):
        alone = descend(c[k : k + 1], terms=True)
        rounds.add(alone.rounds)
        for name in "AB":
            torch.testing.assert_close(together[name][k], alone[name][0], rtol=0, atol=1e-13)
            torch.testing.assert_close(
                together.preactivations[name][k], alone.preactivations[name][0], rtol=0, atol=1e-13
            )
        own = together.energy[: alone.updates, k]
        torch.testing.assert_close(own, alone.energy[:, 0], rtol=0, atol=1e-12)
        later = together.energy[alone.updates :, k]
        torch.testing.assert_close(later, alone.energy[-1:, 0].expand(len(later)), rtol=0, atol=1e-12)
    assert together.rounds == max(rounds) and len(rounds) > 3


def test_terms_of_a_batch_that_is_divided_add_up_to_its_energies():
    out = descend(fields(9), terms=True)
    assert len(out.energy) == out.updates == len(out.schedule)
    total = torch.stack(list(out.terms.values())).sum(0)
    finite = out.energy.isfinite()
    torch.testing.assert_close(total[finite], out.energy[finite], rtol=0, atol=1e-10)
    torch.testing.assert_close(out.energy[-1], pair().energy(out.values), rtol=0, atol=1e-10)


class Counting(Multilinear):
    """Counts the batch elements of its messages."""

    elements = 0

    def message(self, target, values, shape=None):
        Counting.elements += len(values[target]) if target in values else 0
        return super().message(target, values, shape)


def test_elements_at_rest_cost_nothing_more():
    g = unn.FactorGraph("counted", n=2)
    A, B = g.variable("A", "n", unn.SignedEntropy()), g.variable("B", "n", unn.SignedEntropy())
    C = g.variable("C", "n", unn.SquaredNorm())
    g.factor(Counting(A["i"], B["i"], g.constant("w", "", torch.tensor(1.0))[""]))
    g.factor(Multilinear(A["i"], C["i"]))
    g = g.double()
    # one element of 64 needs many rounds, since its field is nearly 0 at the critical coupling
    c = torch.full((64, 2), 3.0, dtype=D)
    c[5] = 1e-3

    def elements(values):
        Counting.elements = 0
        out = unn.infer(g, {"C": values}, order=["A", "B"], until=1e-9, iterations=2000)
        assert out.converged
        return Counting.elements, out.rounds

    whole, rounds = elements(c)
    _, few = elements(c[:1])
    hard, many = elements(c[5:6])
    assert rounds == many > 4 * few
    assert whole < hard + 64 * (few + 1) * 2 * 1.5
    assert whole < 0.5 * 64 * hard


def test_elements_that_reach_the_limit_are_reported_and_those_at_rest_stay():
    c = fields(9)
    needed = sorted(descend(c[k : k + 1]).rounds for k in range(9))
    out = unn.infer(pair(), {"C": c}, order=["A", "B"], until=1e-8, iterations=needed[6])
    assert out.status is unn.Status.LIMIT and out.rounds == needed[6]
    longer = descend(c)
    settled = (out["A"] - longer["A"]).abs().amax(1) == 0
    assert settled.any() and not settled.all()


def test_partly_observed_and_ragged_values_of_a_divided_batch_are_those_of_each_row():
    g = unn.FactorGraph("ragged", h=3)
    X, H = g.variable("X", "n", unn.BinaryEntropy()), g.variable("H", "n h", unn.SignedEntropy())
    torch.manual_seed(0)
    g.factor(Multilinear(X["n"], g.parameter("W", "h", init=1.0)["k"], H["n k"]))
    g.factor(Multilinear(H["n k"], g.parameter("V", "h h", init=0.3)["k l"], H["n+1 l"]))
    g = g.double()
    x = torch.rand(6, 5, dtype=D, generator=torch.Generator().manual_seed(0)).round()
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    lengths = torch.tensor([5, 2, 3, 5, 1, 4])
    options = {"order": ["H", "X"], "until": 1e-9, "iterations": 3000}
    together = unn.infer(g, {"X": unn.Partial(x, mask)}, lengths={"n": lengths}, **options)
    for k in range(6):
        part = unn.Partial(x[k : k + 1], mask[k : k + 1])
        alone = unn.infer(g, {"X": part}, lengths={"n": lengths[k : k + 1]}, **options)
        for name in ("X", "H"):
            torch.testing.assert_close(together[name][k], alone[name][0], rtol=0, atol=1e-12)


def test_gradients_through_a_divided_batch_are_those_of_each_row():
    c = fields(5)

    def gradient(rows):
        given_c = c[rows].requires_grad_()
        out = descend(given_c)
        return torch.autograd.grad(out["B"].square().sum(), given_c)[0]

    together = gradient(slice(0, 5))
    for k in range(5):
        torch.testing.assert_close(together[k], gradient(slice(k, k + 1))[0], rtol=0, atol=1e-12)


def test_greedy_orders_may_update_variables_after_the_batch_was_divided():
    g = pair()
    c = fields(4)
    c[:2] = 0
    start = {name: torch.zeros(4, 6, dtype=D) for name in "AB"}
    out = unn.infer(g, {"C": c}, order=unn.Greedy(["A", "B"]), initial=start, until=1e-5, iterations=4000)
    assert out.converged and set(out.preactivations) == {"A", "B"}


def test_an_element_that_diverges_does_not_keep_another_from_converging():
    g = unn.FactorGraph("square", n=1)
    c, y = (g.variable(name, "n", unn.SquaredNorm()) for name in "cy")
    z = g.variable("z", "n", unn.SignedEntropy())
    g.factor(Multilinear(y["i"], c["i"], y["i"]))
    g.factor(Multilinear(z["i"], y["i"]))
    options = {"order": ["z", "y"], "until": 1e-4, "iterations": 60}

    def run(values):
        start = {"y": torch.full((len(values), 1), 0.3)}
        return unn.infer(g, {"c": torch.tensor(values)}, initial=start, **options)

    both, alone = run([[0.1], [2.0]]), run([[0.1]])
    assert alone.converged and "converged" in both.message
    torch.testing.assert_close(both["y"][0], alone["y"][0])


# -- acceleration --------------------------------------------------------------------------------------------


def test_accelerated_rounds_end_at_the_same_fixed_point_in_fewer_rounds():
    c = fields(9)
    plain, fast = descend(c), descend(c, solver="anderson")
    assert plain.converged and fast.converged
    for name in "AB":
        torch.testing.assert_close(fast[name], plain[name], rtol=0, atol=1e-6)
    assert fast.rounds < 0.5 * plain.rounds


@given(case=graph_cases(Multilinear, max_degree=2))
@settings(max_examples=60, deadline=None)
def test_accelerated_rounds_never_raise_the_energy(case):
    out = unn.infer(
        case.graph,
        case.observed,
        order=case.free,
        initial=case.start,
        until=1e-7,
        iterations=40,
        solver="anderson",
    )
    if out.status is unn.Status.UNBOUNDED or any(x.abs().amax() > 1e3 for x in out.values.values()):
        # where values grow without limit, rounding is larger than any rise
        return
    energy = out.energy
    assert (energy.diff(dim=0) <= 1e-9 * (1 + energy[1:].abs())).all()
    torch.testing.assert_close(energy[-1], case.graph.energy(out.values), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("solver", ["rounds", "anderson"])
def test_networks_run_until_rest_as_infer_does(solver):
    c = fields(5)
    out = descend(c, solver=solver)
    network = unn.Unrolled(pair(), "C", "B", ["A", "B"], until=1e-8, iterations=2000)
    torch.testing.assert_close(network(c), out["B"], rtol=0, atol=1e-6)


def test_acceleration_is_refused_where_there_is_no_fixed_point_to_reach():
    g, c = pair(), fields(2)
    for options, match in (
        ({"solver": "newton", "until": 1e-6}, says("newton", "unknown")),
        ({"solver": "andersen", "until": 1e-6}, says("andersen", "anderson")),
        ({"solver": "anderson"}, says("until")),
        ({"solver": "anderson", "until": 1e-6, "order": unn.Greedy(["A", "B"])}, says("Greedy")),
        ({"solver": "anderson", "until": 1e-6, "update": unn.Sample()}, says("Sample")),
    ):
        with pytest.raises(InferenceError, match=match):
            unn.infer(g, {"C": c}, **{"order": ["A", "B"], **options})
