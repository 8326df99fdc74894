"""Bounded attention has a minimum for all weights, and its rounds reach a fixed point."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says
from support.undirected_attention import BAND, WIDTH, D, N, known_rows, random

import unn
from factors import UnrolledAttention, bounded_attention
from unn.errors import DeclarationError

BOUNDED = {"Ball": unn.Ball, "LayerNorm": unn.LayerNorm, "RMSNorm": unn.RMSNorm}


def declared(seed=0, init=None, **options):
    torch.manual_seed(seed)
    g = unn.FactorGraph("words", d=WIDTH)
    X, P = g.variable("X", "n d", unn.SquaredNorm()), g.constant("P", "n d")
    attention = bounded_attention(g, [X, P], init=init, **options)
    return g.double(), attention


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("given_names", [(), ("X",), ("H",)])
def test_the_energy_is_bounded_whatever_is_given(kind, given_names):
    g, _ = declared(regularizers=dict.fromkeys("QKVH", BOUNDED[kind]()))
    assert g.boundedness(given=given_names).bounded


@pytest.mark.parametrize("one", "QK")
@pytest.mark.parametrize("other", "VH")
@pytest.mark.parametrize("kind", BOUNDED)
def test_one_bounded_factor_of_each_product_is_enough_where_the_sources_are_given(one, other, kind):
    open_roles = {role: unn.SquaredNorm() for role in "QKVH" if role not in (one, other)}
    g, _ = declared(regularizers={one: BOUNDED[kind](), other: BOUNDED[kind](), **open_roles})
    assert g.boundedness(given=["X"]).bounded
    assert not g.boundedness().bounded


@given(
    seed=st.integers(0, 10_000),
    init=st.sampled_from([0.1, 1.0, 10.0]),
    heads=st.sampled_from([1, 2]),
    temperature=st.sampled_from([0.03, 0.1, 1.0]),
    kind=st.sampled_from(list(BOUNDED)),
)
@settings(max_examples=40, deadline=None)
def test_no_update_raises_the_energy_for_weights_of_any_size(seed, init, heads, temperature, kind):
    g, attention = declared(
        seed,
        init,
        heads=heads,
        temperature=temperature,
        regularizers={"Q": BOUNDED[kind](), "H": BOUNDED[kind]()},
    )
    seen = unn.Partial(random(3, N, WIDTH, seed=seed), known_rows())
    order = unn.ForwardBackward(attention.order, last="X")
    out = unn.infer(g, {"X": seen, "P": random(N, WIDTH, seed=1)}, order=order, iterations=15)
    energy = out.energy[out.energy.isfinite().all(1)]
    assert len(energy) > 100
    assert (energy.diff(dim=0) <= 1e-10 * (1 + energy[1:].abs())).all()


@pytest.mark.slow
@pytest.mark.parametrize("init", [None, 0.1, 10.0])
@pytest.mark.parametrize("heads", [1, 2])
def test_rounds_reach_a_fixed_point_that_a_further_round_does_not_change(init, heads):
    g, attention = declared(init=init, heads=heads, mask=BAND)
    seen = unn.Partial(random(4, N, WIDTH), known_rows(4))
    order = unn.ForwardBackward(attention.order, last="X")
    evidence = {"X": seen, "P": random(N, WIDTH, seed=1)}
    out = unn.infer(g, evidence, order=order, until=1e-10, iterations=5000)
    assert out.converged, out.message
    start = {name: out[name] for name in (*attention.order, "X")}
    again = unn.infer(g, evidence, order=order, initial=start)
    for name in (*attention.order, "X"):
        torch.testing.assert_close(again[name], out[name], rtol=0, atol=1e-8)


def test_rows_are_at_most_of_norm_one_and_weights_sum_to_one():
    g, attention = declared(init=3.0)
    out = unn.infer(g, {"X": random(2, N, WIDTH), "P": random(N, WIDTH)}, order=attention.order, iterations=3)
    for role in "QKVH":
        assert out[role].norm(dim=-1).max() <= 1 + 1e-12
    torch.testing.assert_close(out["S"].sum(-1), torch.ones(2, N, dtype=D))


def test_fused_passes_equal_the_engine():
    g, attention = declared(heads=2, mask=BAND)
    inputs = (unn.Partial(random(3, N, WIDTH), known_rows()), random(N, WIDTH, seed=1))
    order = unn.ForwardBackward(attention.order, last="X")
    fused = UnrolledAttention(attention, ["X", "P"], "X", order, iterations=4)(*inputs)
    generic = unn.Unrolled(g, ["X", "P"], "X", order, iterations=4, fusions=())(*inputs)
    torch.testing.assert_close(fused, generic, rtol=1e-12, atol=1e-12)


def test_gradients_at_the_fixed_point_are_those_of_long_unrolling():
    g, attention = declared(init=0.5)
    inputs = (unn.Partial(random(2, N, WIDTH), known_rows(2)), random(N, WIDTH, seed=1))
    order = unn.ForwardBackward(attention.order, last="X")

    def gradients(**options):
        network = unn.Unrolled(g, ["X", "P"], "X", order, **options)
        return torch.autograd.grad(network(*inputs).square().sum(), [g.W_Q, g.W_K, g.W_V])

    exact = gradients(iterations=2000, gradient=unn.Implicit(1e-12))
    for one, other in zip(exact, gradients(iterations=400), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_the_temperature_is_that_of_the_weights():
    _, attention = declared(temperature=0.25)
    assert attention.S.regularizer.temperature == 0.25
    with pytest.raises(DeclarationError, match=says("temperature", "0")):
        declared(temperature=0)
