"""Few simulations are not overfitted silently: the best weights are kept, and posteriors are calibrated."""

from dataclasses import replace

import pytest
import torch

from problems.simulators.problem import SimulatorsProblem
from unn.cli.measures import ExamplesTask
from unn.cli.references import coverage_of
from unn.engine import SamplingOptions
from unn.training.loop import fit

pytestmark = pytest.mark.slow

CONDITIONS = 300


class Validated(ExamplesTask):
    """Training with the validation loss alone, which is recorded."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.losses = []

    def evaluate(self, network):
        metrics = self.problem.model_metrics(self.config, network, 0, 0)
        self.losses.append(metrics["validation_loss"])
        return metrics


def test_the_defaults_keep_the_best_weights_of_200_simulations_and_are_calibrated():
    problem = SimulatorsProblem()
    default = problem.config_for("denoiser")()
    assert default.training.patience and default.training.steps // default.training.evaluate_every >= 10
    training = replace(default.training, steps=2500, evaluate_every=250, threads=1)
    config = replace(default, simulator="tree", simulations=200, training=training)
    torch.manual_seed(0)
    network = problem.network(config, {})
    problem.prepare(config, network)
    task = Validated(problem, config)
    network = fit(network, task, training).network
    final_loss = problem.model_metrics(config, network, 0, 0)["validation_loss"]
    assert final_loss == pytest.approx(min(task.losses), abs=1e-5)
    # expected coverage of fresh simulations: uniform, by the Kolmogorov-Smirnov distance of level 0.1%
    coverage = coverage_of(problem, config, network, CONDITIONS, 64, SamplingOptions(steps=20, seed=1))
    levels = (torch.arange(CONDITIONS) + 0.5) / CONDITIONS
    assert float((coverage.probabilities.sort().values - levels).abs().max()) < 1.95 / CONDITIONS**0.5
