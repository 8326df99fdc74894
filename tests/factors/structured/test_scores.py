"""Scores of structures that are no numbers: seen in every result, never read as forbidden entries."""

import math

import pytest
import torch
import torch_struct
from support.helpers import says

from factors import Birkhoff, Budget, Structured, TreeEntropy
from unn.errors import ObservationError

# the shape of scores, and an entry that a structure has
REGULARIZERS = {
    "trees": (TreeEntropy(), (2, 3, 3), (1, 0)),
    "projective trees": (Structured(torch_struct.DependencyCRF), (2, 3, 3), (1, 0)),
    "chains": (Structured(torch_struct.LinearChainCRF), (2, 2, 3, 3), (0, 1, 0)),
    "segments": (Structured(torch_struct.SemiMarkovCRF), (2, 2, 3, 2, 2), (0, 1, 1, 0)),
    "subsets": (Budget(2), (2, 4), (1,)),
    "matchings": (Birkhoff(), (2, 3, 3), (1, 0)),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_scores_that_are_no_numbers_have_no_log_partition_and_choose_nothing(name, bad):
    regularizer, shape, entry = REGULARIZERS[name]
    t = torch.randn(shape, dtype=torch.float64)
    right = regularizer.conjugate(t), regularizer.mirror(t)
    t[(1, *entry)] = bad
    for result, other in zip((regularizer.conjugate(t), regularizer.mirror(t)), right, strict=True):
        assert bool(result[1].isnan().any())
        torch.testing.assert_close(result[0], other[0])
    for choose in (regularizer.argmax, regularizer.sample):
        if name == "matchings" and choose == regularizer.sample:
            continue
        with pytest.raises(ObservationError, match=says("+inf")):
            choose(t)


@pytest.mark.parametrize("name", REGULARIZERS)
def test_without_a_possible_structure_the_log_partition_is_minus_infinity(name):
    regularizer, shape, _ = REGULARIZERS[name]
    assert regularizer.conjugate(torch.full(shape, -math.inf)).tolist() == [-math.inf] * 2
