"""Half precision: energies in float32, values up to the largest of their dtype; a bad batch element spares
the others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Implicit, Multilinear
from unn.testing.strategies import graph_cases

HALVES = [torch.float16, torch.bfloat16]


def copying():
    """Y becomes X."""
    g = unn.FactorGraph("copy", n=2)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm())
    g.factor(Multilinear(X["i"], Y["i"]))
    return g


def amplifier():
    """A and B drive one another: bounded below where C < 1, and growing without limit beyond."""
    g = unn.FactorGraph("amplifier", n=2)
    A, B, C = (g.variable(name, "n", unn.SquaredNorm()) for name in "ABC")
    g.factor(Multilinear(A["i"], B["i"], C["i"]))
    g.factor(Multilinear(B["i"], g.parameter("w", "n", init="ones")["i"]))
    return g.double()


@pytest.mark.parametrize("dtype", HALVES)
def test_any_value_that_the_dtype_holds_is_bounded(dtype):
    x = torch.tensor([[1.0, 2.0], [300.0, -2000.0], [60000.0, 0.0]], dtype=dtype)
    out = unn.infer(copying(), {"X": x}, order=["Y"], until=1e-3)
    assert out.converged and torch.equal(out["Y"], x)
    assert out.energy.dtype == torch.float32
    torch.testing.assert_close(out.energy[-1], torch.zeros(3), rtol=0, atol=1e-3 * 60000**2 * 1e-3)
    torch.testing.assert_close(copying().energy({"X": x, "Y": x}), torch.zeros(3), rtol=0, atol=1.0)


@settings(max_examples=30, deadline=None)
@given(case=graph_cases(Multilinear), dtype=st.sampled_from(HALVES))
def test_energies_of_half_precision_are_those_of_the_same_values_in_full(case, dtype):
    graph = case.graph.to(dtype)
    values = {name: x.to(dtype) for name, x in case.values.items()}
    energy = graph.energy(values)
    full = graph.double().energy({name: x.double() for name, x in values.items()})
    finite = full.isfinite()
    assert energy.dtype == torch.float32
    torch.testing.assert_close(energy[finite].double(), full[finite], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("order", [["A", "B"], unn.RandomOrder(["A", "B"])])
def test_a_diverging_batch_element_spares_the_others(dtype, order):
    g = amplifier().to(dtype)
    c = torch.tensor([[0.3, 0.5], [3.0, 0.5], [-0.2, 0.1], [0.5, 5.0]], dtype=dtype)

    def run(c):
        generator = torch.Generator().manual_seed(0)
        return unn.infer(
            g, {"C": c}, order=order, iterations=400, until=1e-2, generator=generator, terms=True
        )

    out = run(c)
    assert (
        out.status is unn.Status.UNBOUNDED and "converged" in out.message and "batch elements" in out.message
    )
    for k in (0, 2):
        alone = run(c[k : k + 1])
        assert alone.converged
        for name in "AB":
            torch.testing.assert_close(out[name][k], alone[name][0], rtol=0.02, atol=0.02)
    assert all(x.isfinite().all() for x in (*out.values.values(), *out.preactivations.values()))
    total = torch.stack([share[-1] for share in out.terms.values()]).sum(0)
    torch.testing.assert_close(total, g.energy(out.values), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(out.energy[-1, [0, 2]], g.energy(out.values)[[0, 2]], rtol=1e-2, atol=1e-2)


def test_gradients_of_healthy_batch_elements_are_those_of_a_run_without_the_bad_one():
    c = torch.tensor([[0.3, 0.5], [3.0, 0.5], [-0.2, 0.1]], dtype=torch.float64)

    def gradient(chosen):
        g = amplifier()
        out = unn.infer(g, {"C": c[chosen]}, order=["A", "B"], iterations=400)
        healthy = out["B"][[0, -1]]
        healthy.square().sum().backward()
        return g.w.grad

    torch.testing.assert_close(gradient([0, 1, 2]), gradient([0, 2]), rtol=1e-9, atol=1e-12)


def test_nan_in_one_batch_element_spares_the_others():
    g = unn.FactorGraph("root", n=1)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm())
    g.factor(Implicit(lambda x, y: -(x.sqrt() * y).sum(1), X["i"], Y["i"]))
    out = unn.infer(g, {"X": torch.tensor([[4.0], [-1.0]])}, order=["Y"], iterations=3)
    assert out.status in (unn.Status.NOT_A_NUMBER, unn.Status.UNBOUNDED) and "1 of 2" in out.message
    torch.testing.assert_close(out["Y"][0], torch.tensor([2.0]))
    assert out["Y"].isfinite().all()
