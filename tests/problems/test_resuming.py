"""Runs of problems that stop end with the numbers of runs that do not."""

from dataclasses import replace

import pytest
import torch
from support.toy import same_tensors, tensors_of, without_times

from problems.factorisation.problem import FactorisationProblem
from problems.sudoku.problem import SudokuProblem
from unn.extending import DenoiserOptions
from unn.training import TrainingConfig, fit


class StopError(Exception):
    """Ends a run in the middle of a step."""


TRAINING = TrainingConfig(
    steps=12, batch=4, rate=1e-3, clip=1.0, ema=0.9, checkpoint_every=5, evaluate_every=6, log_every=3
)
TINY = DenoiserOptions(width=8, depth=2, heads=2, sampling_steps=2)
TOKENS = replace(TINY, self_conditioning="tokens", passes=2)

RUNS = {
    "a stream of grids": (
        SudokuProblem,
        SudokuProblem().config_for(None)(model=replace(TINY, self_conditioning="none"), training=TRAINING),
    ),
    "ten grids": (
        SudokuProblem,
        SudokuProblem().config_for(None)(examples=10, model=TINY, training=replace(TRAINING, batch=3)),
    ),
    "sizes that vary": (
        FactorisationProblem,
        FactorisationProblem().config_for(None)(vary=True, observe="any", model=TOKENS, training=TRAINING),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_stops_ends_with_the_numbers_of_one_that_does_not(name, tmp_path):
    kind, config = RUNS[name]
    problem = kind()

    def network(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = problem.network(config, {})
            problem.prepare(config, network)
            return network

    whole = fit(network(0), problem.task(config), config.training)
    task, left = problem.task(config), [8]
    plain = task.loss

    def stopping(*given):
        left[0] -= 1
        if left[0] < 0:
            raise StopError
        return plain(*given)

    task.loss = stopping
    with pytest.raises(StopError):
        fit(network(0), task, config.training, tmp_path)
    result = fit(network(9), problem.task(config), config.training, tmp_path)
    assert result.step == whole.step == 12
    assert same_tensors(tensors_of(result.network), tensors_of(whole.network))
    assert without_times(result.history) == without_times(whole.history)
