"""Blocks without a closed form: the minimum is reached, its derivative is exact, and what is not reached is
said."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Implicit, Multilinear

DOUBLE = torch.float64


def quadratic(coupling, field, regularizer=None):
    """E = Psi(x) - x' W x - b' x."""
    g = unn.FactorGraph("quadratic", n=len(field), m=len(field))
    x = g.variable("X", "n", regularizer or unn.SquaredNorm())
    W, b = g.parameter("W", "n m", init=coupling), g.parameter("b", "n", init=field)
    g.factor(Multilinear(W["i j"], x["i"], x["j"]))
    g.factor(Multilinear(b["i"], x["i"]))
    return g.to(field.dtype)


def run(g, rounds=1, start=None, **options):
    start = torch.zeros(1, g.sizes["n"], dtype=g.b.dtype) if start is None else start
    return unn.infer(g, {}, initial={"X": start}, order=["X"], iterations=rounds, **options)


def test_a_scalar_is_minimised_too():
    g = unn.FactorGraph("scalar")
    x = g.variable("X", "", unn.SquaredNorm())
    g.factor(Multilinear(x[""], x[""], g.parameter("w", "", init=torch.tensor(0.4, dtype=DOUBLE))[""]))
    g.factor(Multilinear(x[""], g.parameter("b", "", init=torch.tensor(1.0, dtype=DOUBLE))[""]))
    out = unn.infer(g, {}, initial={"X": torch.zeros(2, dtype=DOUBLE)}, order=["X"])
    torch.testing.assert_close(out["X"], torch.full((2,), 5.0, dtype=DOUBLE))
    assert torch.autograd.grad(out["X"].sum(), g.b)[0].item() == pytest.approx(10.0)


@pytest.mark.parametrize("weight", [-3.0, 0.0, 0.1, 0.4, 0.45, 0.48, 0.499, 0.4999])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_quadratic_energy_of_one_entry_is_minimised_exactly(weight, rounds):
    g = quadratic(torch.tensor([[weight]], dtype=DOUBLE), torch.ones(1, dtype=DOUBLE))
    out = run(g, rounds)
    exact = 1 / (1 - 2 * weight)
    assert out["X"].item() == pytest.approx(exact, rel=1e-6)
    assert out.energy[-1].item() == pytest.approx(-exact / 2, rel=1e-9)
    out["X"].sum().backward()
    assert g.b.grad.item() == pytest.approx(exact, rel=1e-6)
    assert g.W.grad.item() == pytest.approx(2 * exact**2, rel=1e-6)
    assert out.status is unn.Status.LIMIT


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), exponent=st.floats(0, 3.5), concave=st.booleans(), seed=st.integers(0, 999))
def test_a_quadratic_energy_is_minimised_in_one_update_or_the_status_says_that_it_is_not(
    n, exponent, concave, seed
):
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(n, n, dtype=DOUBLE, generator=generator))[0]
    curvatures = torch.logspace(0, -exponent, n, dtype=DOUBLE)
    if concave:
        curvatures[-1] = -curvatures[-1]
    hessian = basis @ torch.diag(curvatures) @ basis.T
    b = torch.randn(n, dtype=DOUBLE, generator=generator)
    g = quadratic((torch.eye(n, dtype=DOUBLE) - hessian) / 2, b)
    out = run(g)
    if concave:
        assert out.status in (
            unn.Status.UNBOUNDED,
            unn.Status.STOPPED_EARLY,
        ) and "'X'" in out.message.replace("(X)", "'X'")
        return
    exact = torch.linalg.solve(hessian, b)
    torch.testing.assert_close(out["X"][0], exact, rtol=1e-6, atol=1e-6 * float(exact.abs().max()))
    assert out.status is unn.Status.LIMIT
    weights = torch.randn(n, dtype=DOUBLE, generator=generator)
    gradient = torch.autograd.grad(out["X"][0] @ weights, g.b)[0]
    expected = torch.linalg.solve(hessian, weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


REGULARIZERS = [
    unn.SquaredNorm,
    unn.NonNegative,
    unn.SignedEntropy,
    unn.Entropy,
    unn.Ball,
    lambda: unn.Box(-0.5, 2.0),
]


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(REGULARIZERS),
    n=st.integers(1, 6),
    scale=st.floats(0.05, 2.0),
    seed=st.integers(0, 999),
)
def test_energies_never_rise_and_converged_blocks_are_stationary(kind, n, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    W = scale * torch.randn(n, n, dtype=DOUBLE, generator=generator) / n**0.5
    g = quadratic(W, torch.randn(n, dtype=DOUBLE, generator=generator), kind())
    start = g["X"].regularizer.mirror(torch.randn(3, n, dtype=DOUBLE, generator=generator))
    out = run(g, 4, start, trace=True)
    energies = torch.cat([g.energy({"X": start})[None], out.energy])
    assert (
        out.status is unn.Status.UNBOUNDED or (energies.diff(dim=0) <= 1e-9 * (1 + energies[1:].abs())).all()
    )
    if out.status is unn.Status.LIMIT:
        t = out["X"] @ (W + W.T) + g.b
        torch.testing.assert_close(g["X"].regularizer.mirror(t), out["X"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [unn.SquaredNorm, unn.SignedEntropy, unn.Entropy, unn.Ball])
def test_first_and_second_derivatives_of_a_network_with_an_inner_solver_are_those_of_finite_differences(kind):
    torch.manual_seed(0)
    g = unn.FactorGraph("net", n=3, m=3)
    x, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", kind())
    W = g.parameter("W", "n m", init=0.1)
    g.factor(Multilinear(W["i j"], y["i"], y["j"]))
    g.factor(Multilinear(x["i"], y["i"]))
    g.factor(Implicit(lambda x, y: 0.1 * (x * y).cosh().sum(1), x["i"], y["i"], bounded_below=True))
    g.double()
    net = unn.Unrolled(g, "X", "Y", iterations=2, check_values=False)
    inputs = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)

    def function(inputs, weights):
        return torch.func.functional_call(net, {"declaration.W": weights}, (inputs,))

    weights = g.W.detach().clone().requires_grad_()
    torch.autograd.gradcheck(function, (inputs, weights), atol=1e-6, fast_mode=True)
    torch.autograd.gradgradcheck(function, (inputs, weights), atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("weight", [0.5001, 0.51, 0.6, 10.0])
def test_a_block_without_a_minimum_is_reported_after_one_round(weight):
    g = quadratic(torch.tensor([[weight]], dtype=DOUBLE), torch.ones(1, dtype=DOUBLE))
    out = run(g)
    assert out.status in (unn.Status.UNBOUNDED, unn.Status.STOPPED_EARLY) and "X" in out.message
    net = unn.Unrolled(g, "X", "X", order=["X"])
    part = unn.Partial(torch.zeros(1, 1, dtype=DOUBLE), torch.zeros(1, 1, dtype=torch.bool))
    # warnings are errors in these tests
    with pytest.raises((unn.DivergenceError, unn.ConvergenceWarning), match=says("'X'")):
        net(part)


def test_an_unfinished_block_is_a_status_and_a_warning_with_variable_and_remedy(monkeypatch):
    monkeypatch.setattr("unn.descent.conditional_gradient.MAX_STEPS", 2)
    torch.manual_seed(0)
    g = quadratic(0.2 * torch.randn(5, 5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE))
    out = run(g)
    assert out.status is unn.Status.STOPPED_EARLY and not out.converged
    for words in ("'X'", "1 of 1", "more rounds", "minimum"):
        assert words in out.message
    part = unn.Partial(torch.zeros(1, 5, dtype=DOUBLE), torch.zeros(1, 5, dtype=torch.bool))
    with pytest.warns(unn.ConvergenceWarning, match=says("'X'", "iterations")):
        unn.Unrolled(g, "X", "X", order=["X"])(part)
    settled = run(g, None, until=1e-9)
    assert settled.converged and settled.rounds > 2
