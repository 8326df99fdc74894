"""unn evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..engine import SamplingOptions
from .open import open_trained
from .options import Json, RunFolder, require_number, require_rounds
from .problem import Sampleable, TakesData, require
from .verb import Answer, Verb

Metric = Literal["c2st", "c2st-perceptron", "mmd", "bias", "spread", "coverage", "local-coverage"]
"""Measures of samples; all but the last two compare with exact ones."""


@dataclass(frozen=True)
class Evaluate(Verb):
    """Measure a trained run."""

    name: ClassVar[str] = "evaluate"

    run: RunFolder
    iterations: tuple[int, ...] = ()
    """Numbers of rounds (or sampling steps) to measure with; several are compared. That of training by
    default."""
    data: Path | None = None
    """Measure on these data instead of the run's own, where the problem offers it."""
    count: int | None = None
    """Conditions to measure on, with one sample each, where the run samples; also the largest number of
    examples in calibration, which has at least 8."""
    metric: tuple[Metric, ...] = ()
    """Compare samples with those of the exact conditional distributions, where there are any: the accuracy of
    a classifier, a random forest or a perceptron, which is 0.5 at best; the maximum mean discrepancy; the
    error of means in exact deviations; or the ratio of deviations. The last two are undefined for queries
    whose exact values do not vary while samples do; these are counted apart. ``coverage`` needs no exact
    distribution: the largest error of the expected coverage; ``local-coverage`` is that near each evidence.
    ``--count`` queries, 20 by default, and 256 for both coverages."""
    draws: int | None = None
    """Samples of each query for ``--metric``; 1,000 by default, and 100 for both coverages."""
    sampling: SamplingOptions = SamplingOptions()
    draw: Path | None = None
    """File for a picture: rank histograms of simulation-based calibration, or with ``--metric`` the measures
    of each query and the curves of coverage."""
    json: Json = False

    def __call__(self) -> Answer:
        require_rounds(*self.iterations)
        if self.count is not None:
            require_number("count", self.count)
        if self.draws is not None:
            require_number("draws", self.draws)
        self.sampling.check()
        problem, run = open_trained(self.run)
        if self.data is not None:
            run = require(problem, TakesData, "is evaluated on its own data only; leave out --data").on_data(
                run, self.data
            )
        if (self.count, self.metric, self.sampling, self.draw) == (None, (), SamplingOptions(), None):
            return problem.evaluate(run, self.iterations)
        options = "--steps, --tries, --sampler, --spacing, --count, --seed, --at-once, --metric and --draw"
        return require(
            problem, Sampleable, f"is evaluated without sampling; leave out {options}"
        ).evaluate_samples(run, self)
