"""Comparison of samples with those of a reference."""

import math

import pytest
import torch

from unn import Partial
from unn.cli.evaluations import _means
from unn.cli.references import measured, unobserved_numbers


def test_numbers_of_samples_and_of_a_reference_are_compared_by_variable_not_by_order():
    generator = torch.Generator().manual_seed(0)
    slope, place = (torch.randn(500, *shape, generator=generator) for shape in ((), (2,)))
    reference = {"slope": slope, "intercept": 10 + slope, "place": place}
    samples = dict(reversed(reference.items()))
    given = {"place": Partial(place[:1], torch.tensor([[True, False]]))}
    one, other = (unobserved_numbers(values, given) for values in (reference, samples))
    assert one.shape == (500, 3) and torch.equal(one, other)
    assert measured("bias", one, other) == pytest.approx(0)


def test_queries_where_a_measure_is_undefined_are_counted_apart_from_its_mean():
    means = _means({"bias": [0.1, 0.3], "spread": [1.0, math.nan, 2.0], "mmd": [math.nan]})
    assert means == {
        "bias": pytest.approx(0.2), "spread": pytest.approx(1.5), "spread_undefined": 1,
        "mmd": pytest.approx(math.nan, nan_ok=True), "mmd_undefined": 1,
    }  # fmt: skip
