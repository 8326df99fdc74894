"""The tasks: their densities in closed form, their graphs, and the references of their posteriors."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import unn
from problems.simulators.densities import Crescent, TwoScales
from problems.simulators.masks import any_conditional, posterior
from problems.simulators.tasks import TASKS, trajectory

ALL = pytest.mark.parametrize("name", TASKS)


@pytest.fixture(scope="module")
def traced():
    return {name: unn.trace(task.program) for name, task in TASKS.items()}


@ALL
def test_draws_have_a_finite_density_and_repeat_under_a_seed(name, traced):
    one, again = (traced[name].draw(200, seed=3, dtype=torch.float64) for _ in range(2))
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert traced[name].log_prob(one).isfinite().all()
    assert set(TASKS[name].parameters) < set(one)


def test_the_tree_has_the_published_laws(traced):
    x = {name: value.numpy() for name, value in traced["tree"].draw(50, seed=0, dtype=torch.float64).items()}
    expected = (
        stats.norm.logpdf(x["t1"])
        + stats.norm.logpdf(x["t2"], x["t1"])
        + stats.norm.logpdf(x["t3"], x["t1"])
        + stats.norm.logpdf(x["x1"], np.sin(x["t2"]) ** 2, 0.2)
        + stats.norm.logpdf(x["x2"], 0.1 * x["t2"] ** 2, 0.2)
        + stats.norm.logpdf(x["x3"], 0.1 * x["t3"] ** 2, 0.6)
        + stats.norm.logpdf(x["x4"], np.cos(x["t3"]) ** 2, 0.1)
    )
    values = {name: torch.from_numpy(value) for name, value in x.items()}
    np.testing.assert_allclose(traced["tree"].log_prob(values).numpy(), expected, rtol=1e-9)


def test_the_points_of_slcp_have_the_published_covariance(traced):
    values = traced["slcp"].draw(50, seed=0, dtype=torch.float64)
    theta, x = values["theta"].numpy(), values["x"].numpy()
    for row in range(50):
        s1, s2, correlation = theta[row, 2] ** 2, theta[row, 3] ** 2, math.tanh(theta[row, 4])
        mixed = correlation * s1 * s2
        covariance = np.array([[s1**2, mixed], [mixed, s2**2]]) + 1e-6 * np.eye(2)
        law = stats.multivariate_normal(theta[row, :2], covariance, allow_singular=True)
        expected = law.logpdf(x[row]).sum() - 5 * math.log(6)
        one = {name: value[row : row + 1] for name, value in values.items()}
        assert math.isclose(traced["slcp"].log_prob(one).item(), expected, rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize(("law", "reach"), [(Crescent([0.0, 0.0]), 0.2), (TwoScales([0.0, 0.0]), 8.0)])
def test_the_densities_of_the_plane_integrate_to_one(law, reach):
    grid = np.linspace(-reach, reach, 1201)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.exp(law.log_density(points, {name: np.array(x) for name, x in law.parameters.items()}))
    total = integrate.trapezoid(integrate.trapezoid(np.nan_to_num(density, posinf=0), grid), grid)
    assert abs(total - 1) < 0.01


def test_points_of_a_crescent_have_its_density():
    traced = unn.trace(lambda t: t.sample("x", Crescent([1.0, 2.0])))
    x = traced.draw(20_000, seed=0, dtype=torch.float64)["x"].numpy() - [1.0, 2.0]
    radius, angle = np.hypot(*x.T), np.arctan2(x[:, 1], x[:, 0])
    assert stats.kstest(radius, stats.norm(0.1, 0.01).cdf).pvalue > 1e-4
    assert stats.kstest(angle, stats.uniform(-math.pi / 2, math.pi).cdf).pvalue > 1e-4


@pytest.mark.slow
def test_the_reference_of_two_moons_is_the_inverse_of_the_program(traced):
    """Given x, a crescent's point determines theta up to the sign of the sum."""
    x = np.array([0.1, -0.2])
    theta = traced["two-moons"].posterior({"x": torch.tensor(x)}, 4000, seed=0)["theta"].numpy()
    # the prior is uniform, so that the law of the offset is that of the program where theta is in its support
    radius = 0.1 + 0.01 * stats.norm.rvs(size=40_000, random_state=0)
    angle = math.pi * (stats.uniform.rvs(size=40_000, random_state=1) - 0.5)
    total = math.sqrt(2) * (0.25 + radius * np.cos(angle) - x[0])
    difference = math.sqrt(2) * (x[1] - radius * np.sin(angle))
    assert stats.ks_2samp(np.abs(theta.sum(1)), total).statistic < 0.05
    assert stats.ks_2samp(theta[:, 1] - theta[:, 0], difference).statistic < 0.05
    assert abs((theta.sum(1) > 0).mean() - 0.5) < 0.05


def test_the_reference_of_a_linear_regression_is_its_closed_form(traced):
    values = traced["linear-regression"].draw(1, seed=5, dtype=torch.float64)
    given = {"place": values["place"], "y": values["y"]}
    result = traced["linear-regression"].posterior(given, 4000, seed=0)
    design = torch.stack([values["place"][0], torch.ones(10).double()], 1)
    covariance = torch.linalg.inv(design.T @ design / 0.25 + torch.eye(2).double())
    mean = covariance @ design.T @ values["y"][0] / 0.25
    for k, name in enumerate(("slope", "intercept")):
        law = stats.norm(float(mean[k]), float(covariance[k, k]) ** 0.5)
        assert stats.kstest(result[name].numpy(), law.cdf).statistic < 0.05


def test_the_points_of_slcp_and_of_a_regression_are_exchangeable(traced):
    assert [s.size for s in traced["slcp"].graph.symmetries()] == [4]
    assert [s.size for s in traced["linear-regression"].graph.symmetries()] == [10]


def test_trajectories_solve_their_differential_equation():
    states = trajectory(lambda s: [-s[0]], [1.0], (0.5, 1.0, 3.0), 0.1)
    np.testing.assert_allclose([s[0] for s in states], np.exp([-0.5, -1.0, -3.0]), rtol=1e-5)


def test_masks_are_of_five_kinds_and_never_complete():
    shapes = {"theta": (5,), "x": (4, 2)}
    masks = any_conditional(shapes, ("theta",), 5000, torch.Generator().manual_seed(0))
    theta, x = masks["theta"], masks["x"].flatten(1)
    flat = torch.cat([theta, x], 1)
    assert not flat.all(1).any()
    nothing = ~flat.any(1)
    data = x.all(1) & ~theta.any(1)
    parameters = theta.all(1) & ~x.any(1)
    for kind in (nothing, data, parameters):
        assert abs(kind.double().mean() - 0.2) < 0.03
    rest = flat[~(nothing | data | parameters)].double().mean(1)
    assert (rest < 0.5).any() and abs(rest.mean() - 0.5) < 0.03


def test_the_usual_posterior_has_all_data_given():
    masks = posterior({"theta": (5,), "x": (4, 2)}, ("theta",))
    assert not masks["theta"].any() and masks["x"].all() and masks["x"].shape == (1, 4, 2)
