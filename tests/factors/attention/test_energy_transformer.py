"""The energy transformer: the published energy, its gradient, and updates that never raise it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says, unchanged

import unn
from factors import energy_transformer

D = torch.float64
N, WIDTH, HEADS, E, MEMORIES = 6, 8, 2, 3, 5
OTHERS = ~torch.eye(N, dtype=torch.bool)


def declared(seed=0, init=0.5, mask=OTHERS, kind=unn.LayerNorm):
    torch.manual_seed(seed)
    g = unn.FactorGraph("tokens", n=N, d=WIDTH)
    x = g.variable("x", "n d", kind())
    block = energy_transformer(g, x, heads=HEADS, width=E, memories=MEMORIES, mask=mask, init=init)
    return g.double(), block


def tokens(seed=0, batch=3):
    x = torch.randn(batch, N, WIDTH, dtype=D, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.layer_norm(x, (WIDTH,))


def published_energy(g, x, mask=OTHERS):
    """Hoover et al., 2023, eq. 3 to 5, with beta = 1 / sqrt(E)."""
    beta = 1 / math.sqrt(E)
    Q, K = (torch.einsum("hed,bnd->bhne", W, x) for W in (g.W_Q, g.W_K))
    scores = torch.einsum("bhne,bhme->bhnm", Q, K)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    attention = -(beta * scores).logsumexp(-1).sum((1, 2)) / beta
    hopfield = -0.5 * torch.relu(x @ g.patterns.T).square().sum((1, 2))
    return attention + hopfield


@pytest.mark.parametrize("mask", [OTHERS, None])
def test_minimised_over_weights_and_memories_it_is_the_published_energy(mask):
    g, _ = declared(mask=mask)
    x = tokens()
    out = unn.infer(g, {"x": x}, order=["S", "F"])
    regularizer = g.variables["x"].regularizer.value(x)
    torch.testing.assert_close(
        g.energy(out.values) - regularizer, published_energy(g, x, mask), rtol=1e-10, atol=1e-9
    )


def test_the_message_to_the_tokens_is_the_published_update():
    g, block = declared()
    x = tokens().requires_grad_()
    (gradient,) = torch.autograd.grad(published_energy(g, x).sum(), x)
    out = unn.infer(g, {"x": x.detach()}, order=["S", "F"])
    values = {**out.values, **dict(g.named_parameters())}
    message = sum(factor.message("x", values, (N, WIDTH)) for factor in (block.attention, block.retrieval))
    torch.testing.assert_close(message, -gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    init=st.sampled_from([0.1, 0.5, 2.0]),
    kind=st.sampled_from([unn.LayerNorm, unn.RMSNorm, unn.Ball]),
)
@settings(max_examples=25, deadline=None)
def test_no_update_raises_the_energy(seed, init, kind):
    g, block = declared(seed, init, kind=kind)
    start = kind().mirror(tokens(seed + 1))
    out = unn.infer(g, {}, order=block.order, initial={"x": start}, iterations=6)
    energy = out.energy[out.energy.isfinite().all(1)]
    assert len(energy) >= 15
    assert (energy.diff(dim=0) <= 1e-9 * (1 + energy[1:].abs())).all()


def test_it_is_bounded_and_masked_tokens_are_completed_at_a_fixed_point():
    g, block = declared(init=0.3, kind=unn.RMSNorm)
    assert g.boundedness().bounded
    known = torch.arange(N) != 2
    seen = unn.Partial(tokens(), known[None, :, None].expand(3, N, WIDTH))
    out = unn.infer(g, {"x": seen}, order=block.order, until=1e-6, iterations=3000)
    assert out.converged, out.message
    assert torch.equal(out["x"][:, known], tokens()[:, known])
    assert (out["x"][:, 2].norm(dim=1) > 0).all()


def test_tokens_do_not_attend_to_themselves_where_the_mask_says_so():
    g, _ = declared()
    S = unn.infer(g, {"x": tokens()}, order=["S", "F"])["S"]
    assert not S.diagonal(dim1=-2, dim2=-1).any()
    torch.testing.assert_close(S.sum(-1), torch.ones(3, HEADS, N, dtype=D))


def test_what_does_not_fit_is_refused():
    g = unn.FactorGraph("tokens", n=N, d=WIDTH)
    x, open_tokens = g.variable("x", "n d", unn.LayerNorm()), g.variable("y", "n d", unn.SquaredNorm())
    unsized = g.variable("z", "n c", unn.LayerNorm())
    sizes = {"heads": 2, "width": 3, "memories": 4}
    for tokens_, options, match in (
        (open_tokens, {}, says("'y'", "unbounded", "LayerNorm")),
        (unsized, {}, says("'c'", "no size")),
        ("x", {}, says("tokens", "'x'")),
        (x, {"heads": 0}, says("heads", "0")),
        (x, {"memories": 1.5}, says("memories", "1.5")),
        (x, {"mask": torch.ones(N, N)}, says("mask", "boolean")),
    ):
        unchanged(g, lambda t=tokens_, o=options: energy_transformer(g, t, **{**sizes, **o}), match=match)
    energy_transformer(g, x, **sizes)
    unchanged(g, lambda: energy_transformer(g, x, **sizes), match=says("'S'", "in use", "prefix"))
