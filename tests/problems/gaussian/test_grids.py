"""Gaussian fields: declaration, samples and figures against dense linear algebra."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from problems.gaussian.grids import declare_coupled, exact_samples, precision
from problems.gaussian.problem import GaussianConfig, GaussianProblem
from problems.generated.neighbours import neighbour_product
from unn.cli.declared import Query
from unn.errors import UnnError
from unn.exact.mixed_model import MixedModel
from unn.exact.options import ExactOptions


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.floats(-0.25, 0.25))
def test_the_precision_matrix_is_that_of_the_declaration(rows, columns, coupling):
    exact = unn.exact.gaussian_marginals(declare_coupled(rows, columns, coupling))
    # the parameter is float32
    inverse = torch.linalg.inv(precision(rows, columns, float(torch.tensor(coupling))))
    torch.testing.assert_close(exact.covariances[0], inverse)


def test_samples_have_the_exact_covariance():
    x = exact_samples(3, 2, 0.24, 40_000, torch.Generator().manual_seed(0)).double().flatten(1)
    covariance = torch.linalg.inv(precision(3, 2, 0.24))
    variances = covariance.diag()
    error = (covariance**2 + variances[:, None] * variances[None]).div(len(x)).sqrt()
    assert ((x.T @ x / len(x) - covariance).abs() < 5 * error).all()
    assert neighbour_product(x.view(-1, 3, 2)) == pytest.approx(
        float(torch.stack([covariance[0, 1], covariance[0, 2], covariance[1, 3]]).mean()), rel=0.2
    )


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_moments_of_rows_that_give_different_entries_are_those_of_dense_conditioning(seed):
    generator = torch.Generator().manual_seed(seed)
    x = exact_samples(3, 3, 0.2, 4, generator)
    known = torch.rand(x.shape, generator=generator) < 0.5
    model = MixedModel(declare_coupled(3, 3, 0.2), ExactOptions())
    means, variances = model.moments({"X": unn.Partial(x, known)}, 4, {})
    whole = precision(3, 3, float(torch.tensor(0.2)))
    for row, seen, mean, variance in zip(
        x.double().flatten(1), known.flatten(1), means["X"].flatten(1), variances["X"].flatten(1), strict=True
    ):
        free = ~seen
        covariance = torch.linalg.inv(whole[free][:, free])
        torch.testing.assert_close(mean[free], -covariance @ whole[free][:, seen] @ row[seen])
        torch.testing.assert_close(variance[free], covariance.diag())
        assert (mean[seen] == row[seen]).all() and (variance[seen] == 0).all()


@pytest.mark.slow
def test_the_error_is_one_for_exact_means_and_the_root_of_two_for_exact_samples():
    problem, config = GaussianProblem(), GaussianConfig(rows=4, columns=4)
    queries = problem.test_queries(config, 400, torch.Generator().manual_seed(0))
    query = queries["half given"]
    results = problem.untrained(config, query.given, 400, 0)
    error = {name: problem.metrics(config, query, values)["error"] for name, values in results.items()}
    assert error["exact means"] == pytest.approx(1, abs=0.05)
    assert error["exact samples"] == pytest.approx(2**0.5, abs=0.06)
    results = problem.untrained(config, {}, 4000, 0)
    excess = {
        name: problem.metrics(config, Query({}), values)["excess_correlation"]
        for name, values in results.items()
    }
    assert abs(excess["exact samples"]) < 0.03 and excess["exact means"] < -0.2


@pytest.mark.parametrize(
    ("options", "named"),
    [({"rows": 0}, "rows"), ({"coupling": 0.3}, "coupling"), ({"rows": 100, "columns": 100}, "rows times")],
)
def test_options_out_of_range_are_named(options, named):
    problem = GaussianProblem()
    with pytest.raises(UnnError, match=named):
        problem.check(problem.config_for("exact")(**options))


def test_figures_without_neighbours_or_hidden_numbers_are_left_out():
    problem, config = GaussianProblem(), GaussianConfig(rows=1, columns=1)
    values = {"X": torch.ones(2, 1, 1)}
    assert problem.metrics(config, Query({}), values) == {}
    everything = unn.Partial(values["X"], torch.ones(2, 1, 1, dtype=torch.bool))
    assert problem.metrics(config, Query({"X": everything}, values), values) == {}
