"""Averages, monitors, options and data of the training loop: what each of them must leave alone."""

import math

import pytest
import torch
from support.helpers import says
from support.toy import SIZE, ToyTask, same_tensors, tensors_of, toy_network
from torch import nn
from torch.utils.data import Dataset

from unn.errors import ArgumentError, DivergenceError
from unn.training import DatasetExamples, TrainingConfig, fit

SHORT = TrainingConfig(steps=12, batch=8, rate=0.05, device="cpu")


class Masked(nn.Module):
    """A line with indices, an infinite mask, and a buffer that changes."""

    def __init__(self, persistent):
        super().__init__()
        self.line = nn.Linear(SIZE, 3)
        self.register_buffer("order", torch.arange(1000), persistent=persistent)
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1), persistent=persistent)
        self.register_buffer("seen", torch.zeros(()), persistent=persistent)

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.line(x)


class Lines(ToyTask):
    def loss(self, network, batch):
        return nn.functional.cross_entropy(network(batch[0]), batch[1])


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("ema", [0.0, 0.9, 0.95])
def test_averages_of_weights_leave_indices_and_infinite_masks_as_they_are(ema, persistent, tmp_path):
    torch.manual_seed(0)
    network = Masked(persistent)
    first = tensors_of(network.line)
    config = TrainingConfig(steps=12, batch=8, rate=0.05, ema=ema, device="cpu")
    result = fit(network, Lines(), config, tmp_path)
    assert torch.equal(result.network.order, torch.arange(1000))
    assert torch.equal(result.network.mask, torch.full((4, 4), -math.inf).triu(1))
    assert float(result.network.seen) == float(network.seen) > 0
    assert not same_tensors(tensors_of(result.network.line), first)
    assert (result.network is network) == (not ema)


def test_weights_that_become_infinite_are_still_found():
    class Broken(Lines):
        def loss(self, network, batch):
            network.seen.fill_(math.nan)
            return super().loss(network, batch)

    with pytest.raises(DivergenceError, match="'seen' has NaN or infinite entries"):
        fit(Masked(True), Broken(), SHORT)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("optimizer", "AdamW", ["optimizer", "'AdamW'", "adamw"]),
        ("schedule", "Cosine", ["schedule", "'Cosine'", "cosine"]),
        ("precision", "bf16", ["precision", "'bf16'", "bfloat16"]),
        ("batch", 8.5, ["batch", "whole number", "8.5"]),
        ("accumulate", 2.0, ["accumulate", "whole number"]),
        ("evaluate_every", 2.5, ["evaluate_every", "whole number"]),
        ("patience", True, ["patience", "whole number", "True"]),
        ("seed", 1.5, ["seed", "whole number"]),
    ],
)
def test_options_of_another_kind_are_refused_by_name(option, value, words):
    with pytest.raises(ArgumentError, match=says(*words)):
        fit(toy_network(), ToyTask(), TrainingConfig(**{option: value}))


class Noisy(ToyTask):
    """Stops early by the training loss, which is noisy."""

    monitor, larger_is_better = "loss", False

    def evaluate(self, network):
        return {}


@pytest.mark.parametrize("log_every", [1, 2, 3, 7])
def test_the_interval_of_logging_changes_neither_early_stopping_nor_weights(log_every):
    results = []
    for every in (0, log_every):
        config = TrainingConfig(
            steps=300, batch=5, rate=0.05, evaluate_every=4, patience=3, log_every=every, device="cpu"
        )
        results.append(fit(toy_network(), Noisy(), config))
    one, other = results
    assert one.stopped_early == other.stopped_early != ""
    assert same_tensors(tensors_of(one.network), tensors_of(other.network))


def test_weights_that_are_restored_after_the_last_step_are_named():
    class Falling(ToyTask):
        def __init__(self):
            super().__init__()
            self.values = iter([0.1, 0.9, 0.4])

        def evaluate(self, network):
            return {"accuracy": next(self.values)}

    config = TrainingConfig(steps=12, evaluate_every=4, batch=8, patience=5, device="cpu")
    result = fit(toy_network(), Falling(), config)
    assert result.restored == "the weights are those of step 8, where accuracy was 0.9"
    assert result.stopped_early == ""
    assert fit(toy_network(), ToyTask(), SHORT).restored == ""


class Augmented(Dataset):
    """Numbers with noise from torch's global generator."""

    def __init__(self):
        self.inputs = torch.randn(24, SIZE, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 24

    def __getitem__(self, k):
        return self.inputs[k] + torch.randn(SIZE), k % 3


class Random(Lines):
    def examples(self):
        return DatasetExamples(Augmented())


def test_random_datasets_depend_on_the_seed_alone():
    def trained(global_seed, workers=0):
        torch.manual_seed(0)
        network = Masked(True)
        torch.manual_seed(global_seed)
        config = TrainingConfig(steps=6, batch=4, rate=0.05, workers=workers, device="cpu")
        return tensors_of(fit(network, Random(), config).network.line)

    expected = trained(1)
    assert same_tensors(trained(2), expected)
    assert same_tensors(trained(3, workers=2), expected)


def test_metrics_without_names_and_folders_as_text_are_understood(tmp_path):
    class Single(ToyTask):
        def evaluate(self, network):
            return 0.5

    with pytest.raises(ArgumentError, match=says("Single.evaluate", "by name", "float")):
        fit(toy_network(), Single(), SHORT)
    fit(toy_network(), ToyTask(), SHORT, str(tmp_path))
    assert (tmp_path / "model.safetensors").is_file()
