"""Effective sizes and R-hat."""

import json
import math
from pathlib import Path

import pytest
import torch

from unn.errors import ArgumentError
from unn.gibbs import bulk_size, effective_size, scale_reduction

CASES = json.loads((Path(__file__).parents[2] / "golden" / "diagnostics.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_diagnostics_equal_those_of_arviz(case):
    draws = torch.tensor(case["draws"], dtype=torch.float64)
    assert float(effective_size(draws)) == pytest.approx(case["size_of_mean"], rel=1e-9)
    assert float(bulk_size(draws)) == pytest.approx(case["size_of_bulk"], rel=1e-9)
    if not math.isnan(case["reduction"]):
        assert float(scale_reduction(draws)) == pytest.approx(case["reduction"], rel=1e-9)


def test_entries_are_judged_each_by_itself():
    draws = torch.randn(4, 30, 2, 3, generator=torch.Generator().manual_seed(0))
    draws[:, :, 1, 2] = draws[:, :, 1, 2].cumsum(1)
    for judge in (effective_size, bulk_size, scale_reduction):
        together = judge(draws)
        assert together.shape == (2, 3)
        for i in range(2):
            for j in range(3):
                assert float(together[i, j]) == pytest.approx(float(judge(draws[:, :, i, j])), rel=1e-12)
    assert float(scale_reduction(draws)[1, 2]) > 1.2


def test_the_error_of_a_mean_is_that_of_repetitions():
    generator = torch.Generator().manual_seed(0)
    chains, length, repetitions, memory = 4, 400, 200, 0.8
    x = torch.randn(chains, repetitions, generator=generator)
    draws = []
    for _ in range(length):
        x = memory * x + math.sqrt(1 - memory**2) * torch.randn(x.shape, generator=generator)
        draws.append(x)
    draws = torch.stack(draws, 1)
    spread = draws.mean((0, 1)).std()
    stated = draws.flatten(0, 1).std(0) / effective_size(draws).sqrt()
    assert float(stated.mean() / spread) == pytest.approx(1, abs=0.15)


def test_draws_that_are_all_equal_have_no_reduction_and_the_size_of_their_number():
    draws = torch.ones(3, 10, 2)
    assert bool(scale_reduction(draws).isnan().all())
    assert effective_size(draws).tolist() == [30, 30]


@pytest.mark.parametrize("shape", [(4, 3), (0, 10), (5,)])
def test_too_few_draws_are_refused(shape):
    with pytest.raises(ArgumentError, match="at least 4 draws"):
        effective_size(torch.zeros(shape))
