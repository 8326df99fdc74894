"""Observations in which NaN marks missing entries."""

import math

import pytest
import torch
from support.helpers import says

import unn
from unn.programs import Normal


def test_nan_marks_what_is_missing():
    part = unn.Partial.of_missing(torch.tensor([[1.0, math.nan], [math.nan, 2.0]]))
    assert torch.equal(part.mask, torch.tensor([[True, False], [False, True]]))
    assert torch.equal(part.value, torch.tensor([[1.0, 0.0], [0.0, 2.0]]))


def test_a_model_conditions_on_what_is_there():
    traced = unn.trace(lambda t: t.sample("x", Normal(t.sample("m", Normal()), 1.0), 3))
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1))
    x = torch.tensor([[0.5, math.nan, -1.0]])
    samples = model.sample({"x": unn.Partial.of_missing(x)}, 4, steps=2, seed=0)["x"]
    assert (samples[:, 0] == 0.5).all() and (samples[:, 2] == -1).all() and samples.isfinite().all()
    # without being asked to, NaN is refused
    with pytest.raises(unn.ObservationError, match=says("'x'", "NaN")):
        model.sample({"x": x}, 4, steps=2)
    exact = traced.posterior({"x": unn.Partial.of_missing(x)}, 2000, seed=0)["m"]
    assert abs(exact.mean() + 0.5 / 3) < 0.06


@pytest.mark.parametrize("value", [torch.tensor([1, 2]), [1.0, math.nan], torch.tensor([math.inf, 1.0])])
def test_what_cannot_have_missing_entries_is_refused(value):
    with pytest.raises(unn.ObservationError, match=says("of_missing", "NaN")):
        unn.Partial.of_missing(value)
