"""Half precision by autocast: finite, and close to what float64 gives on the CPU."""

import pytest
import torch
from support.device_cases import CASES, check_close, make

import unn
from factors import Multilinear

TOLERANCES = {torch.bfloat16: (0.08, 0.15), torch.float16: (0.02, 0.05)}
"""The share of the largest entry by which values and gradients may differ."""

EXACT = [name for name in CASES if not make(name).waits]

halves = pytest.mark.parametrize("half", TOLERANCES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@halves
@pytest.mark.parametrize("name", EXACT)
def test_unrolled_values_and_gradients_are_close_to_those_of_the_cpu(name, half, device):
    case = make(name)
    there = case.to(device, torch.float32)
    with torch.autocast(device.type, half):
        value, gradients = there.unrolled()(), there.gradients()
    assert all(d.dtype == torch.float32 for d in gradients.values())
    check_close({"value": value}, {"value": case.unrolled()()}, TOLERANCES[half][0], device)
    check_close(gradients, case.gradients(), TOLERANCES[half][1], device)


@halves
@pytest.mark.parametrize("name", EXACT)
def test_inference_stays_in_its_domains_and_its_energies_are_close_to_those_of_the_cpu(name, half, device):
    case = make(name)
    there = case.to(device, torch.float32)
    with torch.autocast(device.type, half):
        out = there.infer()
    check_close({"energy": out.energy}, {"energy": case.infer().energy}, TOLERANCES[half][0], device)
    for variable, declared in case.graph.variables.items():
        x = out[variable].detach()
        # padding and dropped entries are 0, and those kept are scaled
        if not case.lengths and variable not in case.dropout:
            assert declared.regularizer.contains(x).all()
        if isinstance(declared.regularizer, unn.Entropy):
            # rows of padding are all zero
            sums = x.float().sum(declared.regularizer.dim)
            assert (
                float(torch.minimum(sums.abs() if case.lengths else (sums - 1).abs(), (sums - 1).abs()).max())
                <= 1e-4
            )


@halves
@pytest.mark.parametrize("make_regularizer", [unn.Entropy, unn.SimplexNorm, unn.TsallisEntropy])
def test_the_simplex_still_sums_to_one(make_regularizer, half, device):
    """In networks to float32; by itself, on values of half precision, to their rounding."""
    g = unn.FactorGraph("wide", x=64, y=100)
    X, Y = g.variable("X", "x", unn.SquaredNorm()), g.variable("Y", "y", make_regularizer())
    g.factor(Multilinear(Y["y"], g.parameter("W", "y x", init=0.3)["y x"], X["x"]))
    g.to(device)
    with torch.autocast(device.type, half):
        out = unn.Unrolled(g, "X", "Y")(torch.randn(8, 64, device=device))
    torch.testing.assert_close(out.float().sum(1), torch.ones(8, device=device), rtol=0, atol=1e-5)
    alone = make_regularizer().mirror(torch.randn(8, 100, device=device).to(half))
    assert alone.dtype == half
    torch.testing.assert_close(
        alone.float().sum(1), torch.ones(8, device=device), rtol=0, atol=float(torch.finfo(half).eps)
    )


def test_float64_is_left_alone(device):
    case = make("mlp forward")
    there = case.to(device)
    with torch.autocast(device.type, torch.bfloat16):
        value = there.unrolled()()
    check_close({"value": value}, {"value": case.unrolled()()}, 1e-9, device)
