"""Resampling of weighted particles."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from unn.ops.resampling import effective_number, systematic_resampling


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40), st.floats(0, 0.999))
def test_every_particle_has_as_many_copies_as_expected_up_to_rounding(logs, offset):
    weights = torch.tensor(logs, dtype=torch.float64)
    copies = torch.bincount(systematic_resampling(weights, offset), minlength=len(logs))
    assert ((copies - len(logs) * weights.softmax(0)).abs() < 1 + 1e-6).all() and copies.sum() == len(logs)


def test_particles_without_weight_are_not_drawn():
    weights = torch.tensor([-math.inf, 0.0, -math.inf, 0.0])
    assert set(systematic_resampling(weights, 0.3).tolist()) == {1, 3}


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40), st.floats(-100, 100))
def test_the_effective_number_is_between_one_and_all_and_ignores_constants(logs, constant):
    weights = torch.tensor(logs, dtype=torch.float64)
    number = effective_number(weights)
    assert 1 - 1e-9 <= number <= len(logs) + 1e-9
    assert math.isclose(number, effective_number(weights + constant), rel_tol=1e-6)
    assert math.isclose(effective_number(torch.zeros(len(logs))), len(logs), rel_tol=1e-5)
    assert effective_number(torch.full((3,), -math.inf)) == 0
