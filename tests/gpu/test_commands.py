"""Every engine trains and is evaluated on the GPU by the command line, and its runs answer."""

import pytest

from unn.cli.main import main

TRAINED = {
    "digits": ["digits"],
    "digits, bfloat16": ["digits", "--precision", "bfloat16"],
    "digits, untied": ["digits", "--engine", "untied"],
    "boltzmann": ["boltzmann"],
    "completion": ["completion", "--attention", "bounded"],
    "hopfield": ["hopfield"],
    "denoiser": ["sudoku", "--engine", "denoiser"],
    "solver": ["sudoku", "--engine", "solver"],
    "recurrent": ["sudoku", "--engine", "recurrent", "--constraint-weight", "0.1"],
    "encoder": ["hierarchy", "--engine", "encoder"],
    "vaeac": ["sudoku", "--engine", "vaeac"],
    "regressor": ["boolean", "--engine", "regressor"],
    "belief": ["ising", "--engine", "belief"],
    "descent": ["ising", "--engine", "descent"],
    "gibbs": ["ising", "--engine", "gibbs"],
    "exact": ["ising", "--engine", "exact"],
    "exact, Gaussian": ["gaussian"],
    "exact, without steps": ["tables"],
    "latent": ["vae"],
    "perception": ["visual", "--images", "embedded"],
    "parsing": ["parsing"],
    "simulators": ["simulators"],
}
SAMPLED = ["denoiser", "gibbs", "exact", "latent", "simulators"]


def train(name, folder, device):
    few = ["--steps", "6", "--batch", "8", "--device", str(device), "--quiet", "--folder", str(folder)]
    return main(["train", *TRAINED[name], *few])


@pytest.mark.parametrize("name", TRAINED)
def test_an_engine_trains_and_is_evaluated_on_the_device(name, device, tmp_path, capsys):
    assert not train(name, tmp_path / "run", device), capsys.readouterr().err


@pytest.mark.parametrize("name", SAMPLED)
def test_a_run_of_the_device_samples(name, device, tmp_path, capsys):
    assert not train(name, tmp_path / "run", device)
    assert not main(["sample", str(tmp_path / "run"), "--count", "2", "--seed", "0"]), capsys.readouterr().err
