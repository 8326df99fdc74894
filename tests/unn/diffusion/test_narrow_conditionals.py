"""Deviations far below the scale of a variable, through the default call, against closed forms."""

import math

import pytest
import torch

import unn
from unn.diffusion import Diffusion, LinearSteps, LogNormal, LogUniform
from unn.programs import Normal


def linear_model(program, schedule=None):
    """A model whose network corrects nothing, so that its estimates are exact for normal distributions."""
    traced = unn.trace(program)
    model = Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1), schedule=schedule)
    for linear in model.denoiser.write.values():
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    model.standardise(traced.draw(50_000, seed=1, dtype=torch.float64))
    return model.double(), traced


def precise(t):
    t.sample("y", Normal(t.sample("a", Normal(0.0, 100.0)), 0.1))


def trend(t):
    t.sample("x", Normal(t.sample("a", Normal()) + torch.tensor([0.0, 500.0, 1000.0]), 1.0))


@pytest.mark.parametrize(("steps", "tolerance"), [(None, 0.03), (20, 0.06)])
@pytest.mark.parametrize("sampler", [None, "dpm-solver-sde"])
def test_the_default_call_keeps_deviations_far_below_the_scale_of_a_variable(steps, tolerance, sampler):
    model, _ = linear_model(precise)
    given = {"y": torch.tensor([37.0], dtype=torch.float64)}
    posterior = model.sample(given, 4000, seed=0, steps=steps, sampler=sampler)["a"]
    assert abs(posterior.std() / 0.1 - 1) < tolerance
    assert abs(posterior.mean() - 37) < 0.02

    model, _ = linear_model(trend)
    samples = model.sample({}, 4000, seed=0, steps=steps, sampler=sampler)
    x, a = samples["x"], samples["a"]
    assert (x.std(0) / math.sqrt(2) - 1).abs().max() < tolerance
    assert ((x - a[:, None]).std(0) - 1).abs().max() < tolerance
    correlations = torch.corrcoef(x.T)[torch.triu_indices(3, 3, 1).unbind()]
    assert (correlations - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("program", [precise, trend], ids=["precise", "trend"])
def test_the_density_of_narrow_conditionals_is_that_of_the_program(program):
    model, traced = linear_model(program)
    values = traced.draw(50, seed=2, dtype=torch.float64)
    gap = model.log_prob(values) - traced.log_prob(values)
    assert abs(gap.mean()) < 0.05 and gap.abs().max() < 0.2


def test_only_narrow_numbers_lower_the_smallest_level_and_determined_ones_do_not():
    def wide(t):
        t.sample("y", Normal(t.sample("a", Normal()), 1.0))

    def determined(t):
        x = t.sample("x", Normal(), 2)
        t.deterministic(2 * x[0] + x[1], "twice")

    for program in (wide, determined):
        model, _ = linear_model(program)
        assert model.sampling_schedule == model.schedule
    model, _ = linear_model(precise)
    # 0.1 / 100 given all others, of which a tenth
    assert model.sampling_schedule.least == pytest.approx(1e-4, rel=0.02)
    assert model.schedule.least == 0.002


@pytest.mark.parametrize("schedule", [LogNormal(), LogUniform(), LinearSteps()])
def test_schedules_reach_a_level_where_it_can_be_chosen_and_never_rise(schedule):
    assert schedule.reaching(1.0) == schedule
    lower = schedule.reaching(1e-4)
    assert lower.least == (schedule.least if isinstance(schedule, LinearSteps) else 1e-4)
    assert schedule.least == pytest.approx(float(schedule.levels(7)[-2]), rel=1e-5)


def test_the_network_is_evaluated_at_levels_of_its_schedule_alone():
    model, _ = linear_model(precise)
    seen = []
    tokens = model.denoiser.tokens
    model.denoiser.tokens = lambda rows, level, *rest: seen.append(level) or tokens(rows, level, *rest)
    model.sample({}, 2, seed=0, steps=30)
    assert min(float(level.min()) for level in seen) == pytest.approx(math.log(0.002) / 4)
