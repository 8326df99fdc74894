"""Doubly stochastic matrices: the contract, plain Sinkhorn, the best permutation, any scale, padding,
forbidden entries, inference."""

from itertools import permutations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Multilinear
from factors.structured.birkhoff import Birkhoff
from unn.testing import RegularizerContract

D = torch.float64


class TestBirkhoff(RegularizerContract):
    shape = (3, 2, 3, 3)
    has_sample = False
    full_dimensional = False
    works_under_vmap = False
    compiles_whole = False

    def regularizer(self):
        return Birkhoff()

    def padding(self):
        mask = torch.zeros(self.shape, dtype=torch.bool)
        mask[..., :2, :2] = True
        return mask, (slice(None), slice(None), slice(0, 2), slice(0, 2))


class TestColdBirkhoff(TestBirkhoff):
    def regularizer(self):
        return Birkhoff(temperature=0.3)


def sinkhorn(t, rounds=20_000):
    """The alternation itself, in the logarithmic domain."""
    for _ in range(rounds):
        t = t - t.logsumexp(2, keepdim=True)
        t = t - t.logsumexp(1, keepdim=True)
    return t.exp()


@given(
    n=st.integers(1, 6),
    scale=st.sampled_from([0.1, 1.0, 4.0]),
    temperature=st.sampled_from([1.0, 2.0]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=15, deadline=None)
def test_mirror_is_the_limit_of_alternate_normalisation(n, scale, temperature, seed):
    t = scale * torch.randn(2, n, n, dtype=D, generator=torch.Generator().manual_seed(seed))
    expected = sinkhorn(t / temperature, 3000)
    # the alternation is slow where the limit is nearly a permutation
    assume(((expected.sum(2) - 1).abs() < 1e-10).all())
    torch.testing.assert_close(Birkhoff(temperature).mirror(t), expected, atol=1e-8, rtol=0)


@given(
    n=st.integers(1, 12),
    scale=st.sampled_from([1.0, 30.0, 1000.0, 1e4]),
    ties=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_rows_and_columns_sum_to_one_and_duality_is_tight_at_every_scale(n, scale, ties, seed):
    t = torch.randn(3, n, n, dtype=D, generator=torch.Generator().manual_seed(seed))
    t = scale * (t.round() if ties else t)
    r = Birkhoff()
    x = r.mirror(t)
    exact = 1e-12 * max(1.0, scale / 100)
    assert ((x.sum(1) - 1).abs() <= exact).all() and ((x.sum(2) - 1).abs() <= exact).all()
    gap = r.value(x) + r.conjugate(t) - (x * t).sum((1, 2))
    assert (gap.abs() <= 1e-11 * scale * n * n).all()


@given(n=st.integers(1, 5), forbid=st.sampled_from([0.0, 0.3, 0.6]), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_the_best_permutation_is_that_of_all_permutations_and_low_temperatures_tend_to_it(n, forbid, seed):
    generator = torch.Generator().manual_seed(seed)
    t = torch.randn(1, n, n, dtype=D, generator=generator).masked_fill(
        torch.rand(1, n, n, generator=generator) < forbid, -torch.inf
    )
    scores = torch.stack([t[0, torch.arange(n), torch.tensor(p)].sum() for p in permutations(range(n))])
    if scores.max() == -torch.inf:
        assert Birkhoff().conjugate(t) == -torch.inf and (Birkhoff().mirror(t) == 0).all()
        with pytest.raises(unn.ObservationError, match=says("matrix 0", "no permutation")):
            Birkhoff().argmax(t)
        return
    best = Birkhoff().argmax(t)
    assert best.sum(1).eq(1).all() and best.sum(2).eq(1).all()
    torch.testing.assert_close((best * torch.where(best > 0, t, 0)).sum(), scores.max())
    # Psi of a permutation is 0, and -n log n at least
    low = Birkhoff(1e-3).conjugate(t)
    assert scores.max() - 1e-9 <= low <= scores.max() + 1e-3 * n * torch.tensor(n, dtype=D).log() + 1e-9
    x = Birkhoff().mirror(t)
    assert Birkhoff().contains(x) and (x[t == -torch.inf] == 0).all()


def test_entries_that_no_permutation_has_vanish():
    t = (
        torch.zeros(1, 4, 4, dtype=D)
        .masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        .requires_grad_()
    )
    x = Birkhoff().mirror(t)
    torch.testing.assert_close(x[0], torch.eye(4, dtype=D), atol=1e-9, rtol=0)
    (gradient,) = torch.autograd.grad(x.square().sum() + Birkhoff().conjugate(t).sum(), t)
    assert gradient.isfinite().all()


@given(
    junk=st.sampled_from([0.0, 1e4, float("inf"), float("nan")]),
    more=st.integers(0, 3),
    scale=st.sampled_from([1.0, 1000.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_ragged_batches_are_their_elements_whatever_stands_in_the_padding(junk, more, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = [2, 4, 1]
    t, mask = (
        torch.full((3, 4 + more, 4 + more), junk, dtype=D),
        torch.zeros(3, 4 + more, 4 + more, dtype=torch.bool),
    )
    for b, n in enumerate(sizes):
        t[b, :n, :n], mask[b, :n, :n] = scale * torch.randn(n, n, dtype=D, generator=generator), True
    t.requires_grad_()
    r = Birkhoff()
    x, maximum, best = r.mirror(t, mask), r.conjugate(t, mask), r.argmax(t, mask)
    (gradient,) = torch.autograd.grad((x * x.detach()).sum(), t)
    assert (
        gradient.isfinite().all()
        and (gradient[~mask] == 0).all()
        and (x[~mask] == 0).all()
        and r.contains(x, mask).all()
    )
    for b, n in enumerate(sizes):
        torch.testing.assert_close(x[b, :n, :n], r.mirror(t[b : b + 1, :n, :n])[0], atol=1e-10, rtol=0)
        torch.testing.assert_close(maximum[b], r.conjugate(t[b : b + 1, :n, :n])[0])
        assert torch.equal(best[b, :n, :n], r.argmax(t[b : b + 1, :n, :n])[0]) and best[b].sum() == n


def test_values_of_permutations_and_of_the_middle_are_known():
    r = Birkhoff(temperature=2.0)
    middle = torch.full((1, 4, 4), 0.25, dtype=D)
    torch.testing.assert_close(
        r.value(torch.cat([torch.eye(4, dtype=D)[None], middle])),
        torch.tensor([0.0, -16.0 * torch.tensor(2.0).log()], dtype=D),
    )
    assert (
        r.value(torch.ones(1, 2, 2) / 3) == torch.inf
        and r.value(torch.tensor([[[1.1, -0.1], [-0.1, 1.1]]])) == torch.inf
    )


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_derivatives_are_those_of_the_fixed_point(scale):
    t = scale * torch.randn(1, 3, 3, dtype=D, generator=torch.Generator().manual_seed(1))
    t.requires_grad_()
    assert torch.autograd.gradcheck(Birkhoff(5.0).mirror, t, fast_mode=True)
    assert torch.autograd.gradgradcheck(Birkhoff(5.0).mirror, t, fast_mode=True)
    (gradient,) = torch.autograd.grad(Birkhoff().mirror(t).square().sum(), t, create_graph=True)
    u = t.detach().requires_grad_()
    (unrolled,) = torch.autograd.grad(sinkhorn(u, 400).square().sum(), u)
    if scale == 1:
        torch.testing.assert_close(gradient, unrolled, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize(
    ("attempt", "error", "words"),
    [
        (lambda: Birkhoff(0.0), unn.DeclarationError, ("temperature > 0", "0.0")),
        (lambda: Birkhoff(float("nan")), unn.DeclarationError, ("temperature > 0", "nan")),
        (
            lambda: unn.FactorGraph("g").variable("P", "a", Birkhoff()),
            unn.DeclarationError,
            ("'P'", "needs two"),
        ),
        (
            lambda: Birkhoff().mirror(torch.zeros(1, 2, 3)),
            unn.ObservationError,
            ("as many rows as columns", "(1, 2, 3)"),
        ),
        (lambda: Birkhoff().sample(torch.zeros(1, 2, 2)), unn.UnnError, ("Birkhoff", "no sample")),
    ],
)
def test_what_makes_no_sense_is_refused(attempt, error, words):
    with pytest.raises(error, match=says(*words)):
        attempt()


def test_energies_never_rise_and_padding_is_left_out():
    g = unn.FactorGraph("match", k=3)
    p = g.variable("P", "left right", Birkhoff(0.5))
    x, y = g.variable("X", "left k", unn.SquaredNorm()), g.variable("Y", "right k", unn.SquaredNorm())
    g.factor(Multilinear(p["i j"], x["i k"], y["j k"]))
    g.double()
    generator = torch.Generator().manual_seed(0)
    given = {"Y": torch.randn(2, 4, 3, dtype=D, generator=generator)}
    lengths = {"left": torch.tensor([4, 2]), "right": torch.tensor([4, 2])}
    start = {"X": torch.randn(2, 4, 3, dtype=D, generator=generator)}
    out = unn.infer(g, given, order=["P", "X"], initial=start, iterations=8, lengths=lengths)
    assert out.energy.isfinite().all() and (out.energy.diff(dim=0) <= 1e-9).all()
    alone = unn.infer(
        g, {"Y": given["Y"][1:, :2]}, order=["P", "X"], initial={"X": start["X"][1:, :2]}, iterations=8
    )
    torch.testing.assert_close(out["P"][1, :2, :2], alone["P"][0])
    torch.testing.assert_close(out.energy[:, 1], alone.energy[:, 0])
    assert (out["P"][1, 2:] == 0).all() and (out["P"][1, :, 2:] == 0).all()
