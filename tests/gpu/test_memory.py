"""Memory of a device: nothing piles up, and message reuse costs less than it saves."""

import gc

import pytest
import torch
from support.device_cases import CASES, make

from tests.benchmarks import core
from tests.benchmarks.measure import peak_memory

MODELS = {
    "mlp": lambda device: core.mlp(inputs=784, hidden=512, batch=64, device=device, check_values=False),
    "convolution": lambda device: core.convolution(channels=16, batch=64, device=device, check_values=False),
    "attention": lambda device: core.attention(width=128, batch=32, device=device, check_values=False),
}

LARGEST_RATIOS = {"mlp": 0.5, "convolution": 1.35, "attention": 0.85}
"""Peak memory of 5 rounds, forward and backward, as a share of that of a loop that computes every message in
every update."""


def in_use(device):
    """Bytes of tensors that are alive."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    # isinstance would ask every object for its class, which some answer with warnings
    alive = [x.untyped_storage() for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in alive}
    return sum(storages.values())


def peak(run, device):
    """The most bytes of new tensors that are alive at one time, as the device's allocator counts them."""
    if device.type != "cuda":
        return peak_memory(run)
    # what libraries take for themselves at their first call stays out
    run()
    before = in_use(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@pytest.mark.parametrize("name", CASES)
def test_repeated_inference_keeps_nothing(name, device):
    case = make(name).to(device)
    with torch.no_grad():
        net = case.unrolled()

        def run():
            case.infer()
            net()

        for _ in range(3):
            run()
        before = in_use(device)
        for _ in range(50):
            run()
        assert in_use(device) == before


@pytest.mark.parametrize("name", MODELS)
def test_training_keeps_nothing_but_its_result(name, device):
    model = MODELS[name](device)
    step = core.forward_backward(model.ours, 3, model.parameters)
    for _ in range(3):
        step()
    before = in_use(device)
    for _ in range(10):
        step()
    assert in_use(device) == before


@pytest.mark.parametrize("name", MODELS)
def test_five_rounds_take_no_more_memory_than_a_loop_by_hand(name, device):
    model = MODELS[name](device)
    ours, other = (
        peak(core.forward_backward(run, 5, model.parameters), device) for run in (model.ours, model.other)
    )
    assert ours <= LARGEST_RATIOS[name] * other, f"{ours / other:.2f} of the loop's {other} bytes"
