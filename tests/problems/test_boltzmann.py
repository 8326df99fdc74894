"""Images of Boltzmann machines."""

import pytest
import torch

import problems.digits.data as data
import unn
from problems.boltzmann import problem as boltzmann
from problems.boltzmann.graph import centre_pixels, declare
from problems.digits.data import load_digits


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


@pytest.mark.parametrize("which", ["all", "hidden"])
@pytest.mark.parametrize("layers", [1, 3])
def test_centred_machines_are_the_others_with_shifted_biases(layers, which):
    centred, plain = (declare(3, 4, 5, layers, name) for name in (which, "none"))
    means = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    if which == "all":
        centre_pixels(centred, means)
    with torch.no_grad():
        for name, parameter in centred.named_parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
        own = dict(centred.named_parameters())
        theirs = {name: x.clone() for name, x in own.items()}
        theirs["b"] -= own["W1"].sum(2) / 2
        if which == "all":
            theirs["c1"] -= (means[..., None] * own["W1"]).sum((0, 1))
        for layer in range(2, layers + 1):
            theirs[f"c{layer - 1}"] -= own[f"W{layer}"].sum(1) / 2
            theirs[f"c{layer}"] -= own[f"W{layer}"].sum(0) / 2
        theirs[f"c{layers}"] -= own["U"].sum(1) / 10
        theirs["d"] -= own["U"].sum(0) / 2
        for name, parameter in plain.named_parameters():
            parameter.copy_(theirs[name])
    generator = torch.Generator().manual_seed(0)
    values = {"x": torch.randint(2, (7, 3, 4), generator=generator).float()}
    for layer in range(1, layers + 1):
        values[f"h{layer}"] = torch.randint(2, (7, 5), generator=generator).float()
    values["y"] = torch.eye(10)[torch.randint(10, (7,), generator=generator)]
    torch.testing.assert_close(centred.energy(values), plain.energy(values), rtol=1e-5, atol=1e-5)


def test_machines_of_earlier_runs_are_centred_as_they_were():
    problem = boltzmann.BoltzmannProblem()
    content = {"engine": "gibbs", "data": "embedded", "units": 8, "layers": 1, "model": {}}
    assert problem.earlier_config(content)["centred"] == "none"
    assert problem.earlier_config({**content, "centred": False})["centred"] == "none"
    assert problem.earlier_config({**content, "centred": True})["centred"] == "hidden"
    assert problem.earlier_config({**content, "centred": "all"})["centred"] == "all"
    assert problem.config_for("gibbs")().centred == "all"


def test_pixels_have_their_mean_intensities_before_weights_are_learned():
    problem = boltzmann.BoltzmannProblem()
    config = problem.config_for("gibbs")(units=3)
    network = problem.network(config, {})
    problem.prepare(config, network)
    graph = problem.graph(network)
    means = (load_digits("embedded").train_images[:, 0].mean(0) + 1) / 2
    torch.testing.assert_close(graph.less_mean, -means)
    with torch.no_grad():
        for name, weight in graph.named_parameters():
            if name != "b":
                weight.zero_()
    pixels = unn.exact.marginals(graph)["x"][0]
    torch.testing.assert_close(pixels.float(), means.clamp(0.01, 0.99), atol=1e-5, rtol=0)
