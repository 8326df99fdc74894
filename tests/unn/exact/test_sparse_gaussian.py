"""Sparse elimination agrees with dense matrices, for any pattern and evidence, and long chains are cheap."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solveh_banded

import unn
from factors import Multilinear
from unn.errors import InferenceError
from unn.exact.factorisation import NotPositiveError, factorise, factorise_with_variances
from unn.exact.rounds import plan_elimination


def random_pattern(entries, pairs, seed):
    generator = np.random.default_rng(seed)
    chosen = {tuple(sorted(generator.choice(entries, 2, replace=False).tolist())) for _ in range(pairs)}
    return sorted(chosen)


def dense_matrices(pairs, entries, count, seed):
    generator = torch.Generator().manual_seed(seed)
    values = 0.4 * torch.randn(count, len(pairs), generator=generator, dtype=torch.float64)
    matrices = torch.zeros(count, entries, entries, dtype=torch.float64)
    for k, (a, b) in enumerate(pairs):
        matrices[:, a, b] = matrices[:, b, a] = values[:, k]
    diagonal = matrices.abs().sum(2) + 0.5
    return torch.cat([diagonal, values], 1), matrices + torch.diag_embed(diagonal)


@given(st.integers(60, 90), st.integers(0, 200), st.integers(0, 10**6))
@settings(max_examples=25)
def test_determinants_solutions_and_variances_are_those_of_the_dense_matrices(entries, number, seed):
    pairs = random_pattern(entries, number, seed)
    plan = plan_elimination(pairs, entries, 1e9, "test")
    values, matrices = dense_matrices(pairs, entries, 3, seed)
    assert plan.rounds, "more entries than are left to a dense matrix"
    factor, variances = factorise_with_variances(plan, values)
    torch.testing.assert_close(factor.log_determinant, torch.logdet(matrices))
    linear = torch.randn(1, entries, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inverse = torch.linalg.inv(matrices)
    torch.testing.assert_close(factor.solve(linear), inverse @ linear)
    torch.testing.assert_close(variances, inverse.diagonal(dim1=1, dim2=2))


def test_samples_have_the_covariance_of_the_inverse():
    pairs = [(k, k + 1) for k in range(59)]
    plan = plan_elimination(pairs, 60, 1e9, "test")
    values, matrices = dense_matrices(pairs, 60, 2, 0)
    noise = factorise(plan, values).noise(40_000, torch.Generator().manual_seed(0))
    inverse = torch.linalg.inv(matrices)
    sampled = noise @ noise.mT / noise.shape[2]
    torch.testing.assert_close(sampled, inverse, atol=0.05 * float(inverse.abs().max()), rtol=0)


def test_variances_have_second_derivatives():
    pairs = [(k, k + 1) for k in range(51)]
    plan = plan_elimination(pairs, 52, 1e9, "test")
    values = dense_matrices(pairs, 52, 1, 0)[0].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: factorise_with_variances(plan, x)[1].sum(), values, fast_mode=True
    )


def test_a_matrix_that_is_not_positive_is_refused_with_an_entry():
    pairs = [(k, k + 1) for k in range(79)]
    plan = plan_elimination(pairs, 80, 1e9, "test")
    values = dense_matrices(pairs, 80, 1, 0)[0]
    values[0, 5] = -1
    with pytest.raises(NotPositiveError, match="entry"):
        factorise(plan, values)


def test_a_pattern_beyond_the_limit_is_refused_with_the_cost():
    pairs = [(a, b) for a in range(60) for b in range(a + 1, 60)]
    with pytest.raises(InferenceError, match="test: elimination needs .* multiplications"):
        plan_elimination(pairs, 60, 1e4, "test")


def chain(length, coupling=0.45):
    g = unn.FactorGraph("chain", time=length)
    z = g.variable("z", "time", unn.SquaredNorm())
    w = g.parameter("w", "", init=torch.tensor(coupling))
    h = g.parameter("h", "time", init=1.0)
    g.factor(Multilinear(w[""], z["t"], z["t+1"]))
    g.factor(Multilinear(h["t"], z["t"]))
    g = g.double()
    with torch.no_grad():
        g.w.fill_(coupling)
    return g


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_agrees_with_a_banded_solver():
    length = 100_000
    g = chain(length)
    with torch.no_grad():
        answer = unn.exact.gaussian_marginals(g)
    bands = np.stack([np.r_[0.0, np.full(length - 1, -0.45)], np.ones(length)])
    mean = solveh_banded(bands, g.h.detach().numpy())
    torch.testing.assert_close(answer["z"][0], torch.from_numpy(mean))
    # determinants of tridiagonal matrices, by their recursion
    pivots = [1.0]
    for _ in range(length - 1):
        pivots.append(1 - 0.45**2 / pivots[-1])
    expected = 0.5 * length * math.log(2 * math.pi) - 0.5 * sum(map(math.log, pivots))
    expected += 0.5 * float(g.h.detach() @ torch.from_numpy(mean))
    assert float(answer.log_partition) == pytest.approx(expected, rel=1e-10)
    # in the middle of a long chain, the variance of a stationary process
    assert float(answer.variances["z"][0, length // 2]) == pytest.approx((1 - 0.81) ** -0.5, rel=1e-9)
    with pytest.raises(InferenceError, match="use variances, or sample"):
        _ = answer.covariances
    assert answer.sample(2, torch.Generator().manual_seed(0))["z"].shape == (1, 2, length)


@given(st.integers(0, 1000))
@settings(max_examples=8)
def test_grids_of_vectors_given_in_part_agree_with_their_dense_precision(seed):
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("grid", row=6, column=6, d=2)
    x = g.variable("x", "row column | d", unn.SquaredNorm())
    W = g.parameter("W", "d other", init=0.3 * torch.randn(2, 2, generator=generator))
    b = g.parameter("b", "row d", init=torch.randn(6, 2, generator=generator))
    g.factor(Multilinear(W["d e"], x["r c d"], x["r+1 c e"]))
    g.factor(Multilinear(W["d e"], x["r c d"], x["r c+1 e"]))
    g.factor(Multilinear(b["r d"], x["r c d"]))
    g = g.double()
    for p in g.parameters():
        p.requires_grad_(False)
    with torch.no_grad():
        g.W.mul_(0.3 / max(0.3, float(torch.linalg.matrix_norm(g.W, 2))) / 1.5)
    values = torch.randn(3, 6, 6, 2, generator=generator, dtype=torch.float64)
    mask = (torch.rand(6, 6, generator=generator) < 0.2)[None, ..., None].expand(3, 6, 6, 2)
    answer = unn.exact.gaussian_marginals(g, {"x": unn.Partial(values, mask)})

    def energy(flat):
        return g.energy({"x": flat.view(1, 6, 6, 2)})[0]

    P = torch.autograd.functional.hessian(energy, torch.zeros(72, dtype=torch.float64))
    h = -torch.autograd.functional.jacobian(energy, torch.zeros(72, dtype=torch.float64))
    known = mask[0].reshape(-1)
    free = ~known
    shift = h[free] - values.view(3, 72)[:, known] @ P[known][:, free]
    inverse = torch.linalg.inv(P[free][:, free])
    torch.testing.assert_close(answer["x"].reshape(3, 72)[:, free], shift @ inverse)
    torch.testing.assert_close(answer.variances["x"].reshape(3, 72)[1, free], inverse.diagonal())
    torch.testing.assert_close(answer.covariances[0][free][:, free], inverse)
    assert not answer.covariances[0][known].any()
