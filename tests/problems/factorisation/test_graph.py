"""Factorisation: matrices as products of their factors, and the graph."""

import pytest
import torch

from problems.factorisation import graph as factorisation


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


KIND = pytest.mark.parametrize("kind", ["binary", "hierarchical", "inversion"])


@KIND
@pytest.mark.parametrize("intermediate", [True, False])
def test_a_matrix_is_the_product_of_its_factors(kind, intermediate):
    values = factorisation.generate(kind, intermediate, 50, 3, 5, 4, generator(0))
    A, R, E = values["A"], values["R"], values["E"]
    assert A.shape == (50, 3, 4) and R.shape == (50, 4, 5) and E.shape == (50, 3, 5)
    torch.testing.assert_close(E, A @ R)
    assert ("C" in values) is intermediate and ("D" in values) is (intermediate and kind == "hierarchical")
    if intermediate:
        torch.testing.assert_close(values["C"].sum(3), E)
        torch.testing.assert_close(values["C"], torch.einsum("bik,bkj->bijk", A, R))
    assert factorisation.error(values, E) == pytest.approx(0, abs=1e-6)
    assert factorisation.error(values, E + 0.5) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("kind", ["binary", "hierarchical", "inversion"])
@pytest.mark.parametrize("intermediate", [True, False])
def test_the_product_of_the_factors_is_a_constraint_whatever_the_intermediate_products_are(
    kind, intermediate
):
    g = factorisation.declare(kind, intermediate, 4)
    values = factorisation.generate(kind, intermediate, 20, 3, 5, 4, generator(0))
    (equation,) = g.constraints
    assert equation.violations_of(values).tolist() == [0] * 20
    values |= {"C": values["C"] + 1} if intermediate else {}
    values["E"][3] += 0.099
    assert equation.violations_of(values).tolist() == [0] * 20
    values["E"][7, 1, 2] += 0.101
    assert equation.violations_of(values).nonzero().flatten().tolist() == [7]


def test_in_the_hierarchical_problem_everything_beyond_the_rank_is_zero():
    values = factorisation.generate("hierarchical", True, 600, 3, 4, 5, generator(0))
    A, R, K, D = (values[name] for name in "ARKD")
    assert torch.equal(K.sum(1), torch.ones(600)) and ((K == 0) | (K == 1)).all()
    rank = K.argmax(1) + 1
    assert torch.equal(D, (torch.arange(1, 6) <= rank[:, None]).float())
    assert not (A * (1 - D)[:, None]).any() and not (R * (1 - D)[:, :, None]).any()
    # what is used is not zero
    assert ((A != 0).any(1).sum(1) == rank).all()
    counts = rank.bincount(minlength=6)[1:].double()
    assert float(((counts - 120) ** 2 / 120).sum()) < 20


def test_factors_have_their_priors():
    A, R = (factorisation.generate("binary", False, 2000, 3, 3, 2, generator(0))[name] for name in "AR")
    assert (
        A.min() >= 0
        and A.max() <= 1
        and A.mean() == pytest.approx(0.5, abs=0.02)
        and A.var() == pytest.approx(1 / 12, rel=0.05)
    )
    assert ((R == 0) | (R == 1)).all() and R.mean() == pytest.approx(0.3, abs=0.02)
    A, R = (factorisation.generate("inversion", False, 2000, 3, 3, 3, generator(0))[name] for name in "AR")
    for x in (A, R):
        assert x.mean().abs() < 0.04 and x.var() == pytest.approx(1, abs=0.05)
