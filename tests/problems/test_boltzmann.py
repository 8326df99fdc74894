"""Images of Boltzmann machines."""

import torch

import problems.digits.data as data
from problems.boltzmann import problem as boltzmann


def test_images_are_read_once_for_all_batches(monkeypatch):
    loaded = []
    load = data.load_digits
    monkeypatch.setattr(data, "load_digits", lambda *given: loaded.append(given) or load(*given))
    boltzmann._digits.cache_clear()
    problem = boltzmann.BoltzmannProblem()
    config = problem.config_for("gibbs")()
    for seed in range(3):
        values = problem.generate(config, 4, torch.Generator().manual_seed(seed), {})
        assert values["x"].shape == (4, 8, 8)
    assert len(loaded) == 1
