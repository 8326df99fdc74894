"""Metrics of a run on the test queries of its problem, and two-sample measures against reference samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..engine import CanInfer, CanSample, CanSolve, SamplingOptions
from ..errors import UnnError
from .capabilities import check_tries, refusal
from .options import check_picture
from .problem import Trained
from .verb import Answer

if TYPE_CHECKING:
    from .declared import DeclaredProblem
    from .evaluate import Evaluate

TEST_SEED = 1
"""Seed of the queries for evaluating runs and baselines."""

CONDITIONS = 256
"""Default number of test queries, with one answer each."""

_COMPARED = 20
"""Default number of queries that are compared with reference samples."""

_REFERENCED = 1000
"""Default number of samples of each query that are compared with reference samples."""

_COVERING, _FEWEST_COVERED = 100, 16
"""Default number of samples of each condition in expected coverage, and the smallest number of conditions."""


def evaluation_of(problem: DeclaredProblem, run: Trained, request: Evaluate) -> Answer:
    """Metrics with other sampling options; with several attempts, also their average number."""
    from .measures import MOST_CALIBRATED, calibrations, measure

    options = request.sampling
    unavailable = replace(options, steps=None, tries=1, seed=None, at_once=256)
    if not isinstance(run.network, CanSolve):
        unavailable = options
    changed = unavailable != SamplingOptions() or request.draw is not None
    if not isinstance(run.network, CanSample) and changed:
        raise UnnError(
            refusal(problem, run, "draws no samples; leave out the options of sampling and --draw", CanSample)
        )
    check_tries(problem, run, options.tries)
    if request.iterations and options.steps is not None:
        raise UnnError("--iterations and --steps are the same number here; give one of them.")
    if isinstance(run.network, CanSample) and not run.network.has_steps and request.iterations:
        raise UnnError(f"--iterations: engine {run.config.engine!r} of this run samples in one step.")
    if isinstance(run.network, CanInfer) and not run.network.has_rounds and request.iterations:
        raise UnnError(f"--iterations: engine {run.config.engine!r} of this run answers in one step.")
    seed = TEST_SEED if options.seed is None else options.seed
    numbers = request.iterations or (options.steps,)
    data: dict[str, Any] = {}
    lines = []
    if request.metric:
        return _compare_with_reference(problem, run, request, numbers, seed)
    for number in numbers:
        now = replace(options, steps=number, seed=seed)
        figures = measure(
            problem,
            run.config,
            run.network,
            request.count or max(CONDITIONS, problem.test_count(run.config, run.network)),
            now,
            calibrated=request.count or MOST_CALIBRATED,
        )
        text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        shown = number or _default_number(problem, run)
        data[str(shown or 1)] = figures
        lines.append(text if shown is None else f"{shown} {_unit(run)}: {text}")
    if request.draw is not None:
        from ..draw import draw_ranks, save_figure

        compared = calibrations(problem, run.config, run.network, replace(options, seed=seed))
        if not compared:
            raise UnnError(
                f"--draw: problem {problem.name!r} has no variable whose distribution is compared with the "
                "truth."
            )
        save_figure(draw_ranks({name: c.ranks.tolist() for name, c in compared.items()}), request.draw)
        lines.append(f"rank histograms drawn in {request.draw}")
    return Answer(tuple(lines), data)


def _compare_with_reference(
    problem: DeclaredProblem, run: Trained, request: Evaluate, numbers: Sequence[int | None], seed: int
) -> Answer:
    """Two-sample measures for several numbers of steps."""
    import torch

    from ..calibration import coverage_error, uniformity
    from ..local_coverage import local_coverage
    from ..ops.seeds import seed_of
    from .references import compare_with_reference, coverage_of, draw_comparison

    if request.draw is not None:
        check_picture(request.draw, several=len({*request.metric} & {"coverage", "local-coverage"}) > 0)
        if len(numbers) > 1:
            raise UnnError("--draw has one picture; give one number of --iterations.")
    coverages = ("coverage", "local-coverage")
    for metric in coverages:
        if metric in request.metric and (request.count or CONDITIONS) < _FEWEST_COVERED:
            raise UnnError(f"--metric {metric} needs --count {_FEWEST_COVERED} or more, got {request.count}.")
    metrics = [metric for metric in request.metric if metric not in coverages]
    lines: list[str] = []
    data: dict[str, Any] = {}
    for number in numbers:
        now = replace(request.sampling, steps=number, seed=seed)
        shown = number or _default_number(problem, run)
        figures: dict[str, float] = {}
        entry: dict[str, Any] = {}
        each: dict[str, list[float]] = {}
        covered = local = None
        if metrics:
            count = request.count or _COMPARED
            each = compare_with_reference(
                problem, run.config, run.network, metrics, count, request.draws or _REFERENCED, now
            )
            figures |= _means(each)
            entry["queries"] = each
        if not set(coverages).isdisjoint(request.metric):
            count = request.count or CONDITIONS
            examined = coverage_of(problem, run.config, run.network, count, request.draws or _COVERING, now)
            if "coverage" in request.metric:
                covered = examined.probabilities
                figures |= {"coverage_error": coverage_error(covered), "coverage_p": uniformity(covered)}
            if "local-coverage" in request.metric:
                generator = torch.Generator().manual_seed(seed_of(seed, 15))
                local = local_coverage(examined.probabilities, examined.evidence, generator)
                figures |= {"local_coverage_error": local.error, "local_coverage_p": local.p_value}
        if request.draw is not None:
            draw_comparison(each, covered, local, request.draw)
        text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        lines.append(text if shown is None else f"{shown} {_unit(run)}: {text}")
        data[str(shown or 1)] = {**figures, **entry}
    if request.draw is not None:
        lines.append(f"measures drawn in {request.draw}")
    return Answer(tuple(lines), data)


def _means(measures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean of each measure over the queries where it is defined, and the number of the others, if any.

    Bias and spread are in deviations of the exact values; where these do not vary, but samples do, both are
    undefined.
    """
    figures = {}
    for name, values in measures.items():
        defined = [value for value in values if not math.isnan(value)]
        figures[name] = sum(defined) / len(defined) if defined else math.nan
        if len(defined) < len(values):
            figures[f"{name}_undefined"] = len(values) - len(defined)
    return figures


def _unit(run: Trained) -> str:
    if isinstance(run.network, CanSolve):
        return "steps"
    return "sampling steps" if isinstance(run.network, CanSample) else "iterations"


def _default_number(problem: DeclaredProblem, run: Trained) -> int | None:
    """Number of sampling steps or rounds of the model; None if it has neither."""
    if isinstance(run.network, CanSample):
        sampling = getattr(run.network, "sampling", SamplingOptions())
        return sampling.steps if isinstance(sampling, SamplingOptions) else None
    if isinstance(run.network, CanSolve):
        return int(getattr(run.config.model, "solving_steps", 0)) or None
    return problem.iterations(run)
