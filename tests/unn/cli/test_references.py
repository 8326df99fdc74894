"""Comparison of samples with those of a reference."""

import pytest
import torch

from unn import Partial
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
