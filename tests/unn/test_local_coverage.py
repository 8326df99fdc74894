"""Coverage near each evidence: right posteriors pass, and those that are right on average alone do not."""

import pytest
import torch
from support.helpers import says

import unn
from unn.calibration import expected_coverage, uniformity
from unn.draw import draw_local_coverage
from unn.local_coverage import local_coverage

CONDITIONS, DRAWS = 300, 64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def coverage(width, seed=0):
    """Evidence y and the coverage of samples of m given y, for m ~ N(0, 1) and y ~ N(m, 1), whose deviation
    is multiplied by a width that depends on y."""
    g = generator(seed)
    m = torch.randn(CONDITIONS, 1, generator=g)
    y = m + torch.randn(CONDITIONS, 1, generator=g)
    noise = torch.randn(CONDITIONS, DRAWS, 1, generator=g)
    samples = y[:, None] / 2 + width(y)[:, None] * noise / 2**0.5
    centres = torch.randn(CONDITIONS, 1, generator=g)
    everything = torch.ones(CONDITIONS, 1, dtype=torch.bool)
    return expected_coverage(m, samples, centres, everything, generator()), y


def test_the_right_posterior_passes_near_each_evidence():
    p_values = []
    for seed in range(8):
        probabilities, y = coverage(torch.ones_like, seed)
        answer = local_coverage(probabilities, y, generator())
        assert answer.shares.shape == (CONDITIONS, len(answer.levels)) and answer.error < 0.5
        p_values.append(answer.p_value)
    assert min(p_values) > 0.002 and max(p_values) > 0.2


def test_a_posterior_that_is_wrong_for_some_evidence_alone_leaves_the_band_there():
    probabilities, y = coverage(lambda y: torch.where(y < -1, 0.2, 1.0))
    answer = local_coverage(probabilities, y, generator())
    assert answer.p_value == 1 / 500
    outside = ((answer.shares - answer.levels).abs() > answer.band).any(1)
    assert bool(outside.any()) and float(y[outside].median()) < -1


def test_a_posterior_that_ignores_the_evidence_is_right_on_average_alone():
    g = generator(3)
    m = torch.randn(CONDITIONS, 1, generator=g)
    y = m + 0.3 * torch.randn(CONDITIONS, 1, generator=g)
    samples = torch.randn(CONDITIONS, DRAWS, 1, generator=g)
    centres = torch.randn(CONDITIONS, 1, generator=g)
    probabilities = expected_coverage(m, samples, centres, torch.ones_like(m, dtype=torch.bool), generator())
    assert uniformity(probabilities) > 0.01
    assert local_coverage(probabilities, y, generator()).p_value == 1 / 500


def test_all_conditions_as_neighbours_are_the_coverage_over_all_evidence():
    probabilities, y = coverage(torch.ones_like)
    answer = local_coverage(probabilities, y, generator(), neighbours=CONDITIONS)
    whole = (probabilities[:, None] <= answer.levels).double().mean(0)
    torch.testing.assert_close(answer.shares, whole.expand(CONDITIONS, -1), atol=1e-5, rtol=0)


def test_conditions_with_the_same_evidence_are_all_neighbours():
    evidence = (torch.arange(64) % 2)[:, None].double()
    uniform = torch.rand(64, generator=generator(), dtype=torch.float64)
    answer = local_coverage(uniform, evidence, generator(), neighbours=8)
    for value in (0, 1):
        own = uniform[evidence[:, 0] == value]
        whole = (own[:, None] <= answer.levels).double().mean(0)
        shares = answer.shares[evidence[:, 0] == value]
        torch.testing.assert_close(shares, whole.expand(len(shares), -1), atol=1e-5, rtol=0)


def test_the_band_holds_all_conditions_of_uniform_numbers_in_most_cases():
    inside = 0
    evidence = torch.linspace(0, 1, 64)[:, None]
    for seed in range(40):
        uniform = torch.rand(64, generator=generator(seed), dtype=torch.float64)
        answer = local_coverage(uniform, evidence, generator(seed + 100))
        middle = len(answer.levels) // 2
        inside += bool(((answer.shares - answer.levels).abs() <= answer.band)[:, middle].all())
    assert 33 <= inside <= 40


@pytest.mark.parametrize(
    ("probabilities", "evidence", "words"),
    [
        (torch.rand(8), torch.rand(8, 1), ("16 conditions", "(8,)")),
        (torch.rand(20), torch.rand(19, 1), ("evidence", "(19, 1)")),
        (torch.rand(20, 1), torch.rand(20, 1), ("probabilities", "(20, 1)")),
        (torch.rand(20) + 1, torch.rand(20, 1), ("[0, 1]",)),
        (torch.rand(20), torch.full((20, 1), torch.nan), ("evidence", "NaN")),
        (torch.full((20,), torch.nan), torch.rand(20, 1), ("[0, 1]",)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(probabilities, evidence, words):
    with pytest.raises(unn.ObservationError, match=says("local_coverage", *words)):
        local_coverage(probabilities, evidence, generator())


@pytest.mark.parametrize("neighbours", [1, 21, 2.5, True])
def test_numbers_of_neighbours_out_of_range_are_refused(neighbours):
    with pytest.raises(unn.ArgumentError, match=says("neighbours", "from 2 to 20")):
        local_coverage(torch.rand(20), torch.rand(20, 1), generator(), neighbours=neighbours)


def test_the_picture_has_a_line_for_each_condition():
    (axes,) = draw_local_coverage([0.25, 0.75], [[0.2, 0.8], [0.3, 0.5]], [0.1, 0.1]).axes
    assert len(axes.lines) == 3
    assert list(axes.lines[2].get_ydata()) == pytest.approx([0.05, -0.25])
    for shares in ([], [[0.2]]):
        with pytest.raises(unn.ObservationError, match=says("draw_local_coverage")):
            draw_local_coverage([0.25, 0.75], shares, [0.1, 0.1])
