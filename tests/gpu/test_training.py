"""The training loop on a device."""

from dataclasses import replace

import pytest
import torch
from support.toy import ToyTask, tensors_of, toy_network, without_times

from unn import runs
from unn.training import TrainingConfig, fit

pytestmark = [
    # a process with a GPU has threads; its workers do not touch it
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    # where there are several GPUs, generators of all are kept
    pytest.mark.filterwarnings("ignore:.*CUDA reports that you have:UserWarning"),
]

SHORT = TrainingConfig(epochs=4, batch=8, rate=0.05, log_every=3, checkpoint_every=5, ema=0.9, clip=1.0)


class StopError(Exception):
    """Ends a run in the middle of a step."""


class DeviceTask(ToyTask):
    """Measures where the network is, and can stop in the loss of one step."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.left = stop_at

    def loss(self, network, batch):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StopError
        return super().loss(network, batch)

    def evaluate(self, network):
        there = next(network.parameters()).device
        return {
            "accuracy": float((network(self.inputs.to(there)).argmax(1).cpu() == self.labels).double().mean())
        }


@pytest.fixture
def config(device):
    return replace(SHORT, device=str(device))


def losses(result):
    return [entry["loss"] for entry in result.history]


def check_same(ours, expected, tolerance):
    assert len(ours.history) == len(expected.history)
    assert losses(ours) == pytest.approx(losses(expected), rel=tolerance)
    for name, x in tensors_of(expected.network).items():
        torch.testing.assert_close(
            tensors_of(ours.network)[name].cpu(), x.cpu(), rtol=10 * tolerance, atol=10 * tolerance
        )


def test_losses_and_weights_are_those_of_the_cpu(device, config):
    result, expected = (
        fit(toy_network(dropout=0), DeviceTask(), replace(config, device=str(place)))
        for place in (device, "cpu")
    )
    assert next(result.network.parameters()).device == device
    check_same(result, expected, 1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd"},
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"accumulate": 3},
        {"workers": 1},
        {"patience": 2},
        {"schedule": "linear"},
    ],
    ids=str,
)
def test_every_option_gives_what_it_gives_on_the_cpu(change, device, config):
    result, expected = (
        fit(toy_network(dropout=0), DeviceTask(), replace(config, device=str(place), **change))
        for place in (device, "cpu")
    )
    check_same(result, expected, 1e-3)


def test_dropout_on_the_device_lowers_the_loss_and_is_repeatable(config):
    first, again = (fit(toy_network(dropout=0.3), DeviceTask(), replace(config, epochs=20)) for _ in range(2))
    assert losses(first)[-1] < 0.8 * losses(first)[0]
    assert losses(again) == pytest.approx(losses(first), rel=1e-4)


@pytest.mark.parametrize("at", [0, 4, 13, 27])
def test_a_run_that_stops_ends_with_the_numbers_of_one_that_never_stopped(at, config, tmp_path):
    expected = fit(toy_network(), DeviceTask(), config)
    with pytest.raises(StopError):
        fit(toy_network(), DeviceTask(stop_at=at), config, tmp_path)
    start = toy_network(seed=9) if at >= 5 else toy_network()
    result = fit(start, DeviceTask(), config, tmp_path)
    check_same(result, expected, 1e-4)
    assert [e["step"] for e in without_times(runs.read_metrics(tmp_path))] == [
        e["step"] for e in expected.history
    ]


@pytest.mark.parametrize("there_first", [True, False], ids=["device, then cpu", "cpu, then device"])
@pytest.mark.parametrize("change", [{}, {"optimizer": "sgd"}, {"patience": 5}], ids=str)
def test_a_checkpoint_of_one_device_goes_on_on_the_other(change, there_first, device, config, tmp_path):
    first, second = (str(device), "cpu") if there_first else ("cpu", str(device))
    expected = fit(toy_network(dropout=0), DeviceTask(), replace(config, device="cpu", **change))
    with pytest.raises(StopError):
        fit(toy_network(dropout=0), DeviceTask(stop_at=13), replace(config, device=first, **change), tmp_path)
    result = fit(
        toy_network(seed=9, dropout=0), DeviceTask(), replace(config, device=second, **change), tmp_path
    )
    check_same(result, expected, 1e-3)
    assert str(next(result.network.parameters()).device) == second


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1, 1000], ids=["", "gradients that overflow at first"])
def test_half_precision_trains_and_keeps_its_weights_in_float32(precision, scale, config):
    class Scaled(DeviceTask):
        def loss(self, network, batch):
            return super().loss(network, batch) * scale

    result = fit(toy_network(dropout=0), Scaled(), replace(config, epochs=15, precision=precision))
    assert losses(result)[-1] < 0.8 * losses(result)[0]
    assert all(x.dtype == torch.float32 for x in tensors_of(result.network).values())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_resumes_to_the_same_numbers(precision, config, tmp_path):
    config = replace(config, precision=precision)
    expected = fit(toy_network(dropout=0), DeviceTask(), config)
    with pytest.raises(StopError):
        fit(toy_network(dropout=0), DeviceTask(stop_at=13), config, tmp_path)
    check_same(fit(toy_network(seed=9, dropout=0), DeviceTask(), config, tmp_path), expected, 1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
def test_training_compiled_gives_the_losses_of_training_eager(cuda, config):
    config = replace(config, epochs=1)
    check_same(
        fit(toy_network(dropout=0), DeviceTask(), replace(config, compile=True)),
        fit(toy_network(dropout=0), DeviceTask(), config),
        1e-3,
    )


def test_auto_takes_the_gpu_and_leaves_its_generator_as_it_was(cuda, config):
    # drawing its weights seeds the GPU's generator as well
    network = toy_network()
    torch.manual_seed(5)
    before = torch.cuda.get_rng_state(cuda)
    result = fit(network, DeviceTask(), replace(config, epochs=1, device="auto"))
    assert next(result.network.parameters()).device.type == "cuda"
    assert torch.equal(torch.cuda.get_rng_state(cuda), before)
