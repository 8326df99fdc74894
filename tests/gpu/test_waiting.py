"""Exact updates are queued on a GPU without waiting for it."""

import pytest
import torch
from support.device_cases import CASES, make

import unn


@pytest.fixture
def no_waiting(cuda):
    """A context in which waiting for the GPU is an error."""

    class NoWaiting:
        def __enter__(self):
            torch.cuda.synchronize(cuda)
            torch.cuda.set_sync_debug_mode("error")

        def __exit__(self, *error):
            torch.cuda.set_sync_debug_mode("default")

    return NoWaiting()


pytestmark = pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")


def test_waiting_is_noticed(cuda, no_waiting):
    x = torch.ones(1, device=cuda)
    with pytest.raises(RuntimeError, match="synchronizing"), no_waiting:
        float(x)


@pytest.mark.parametrize("name", [name for name in CASES if not make(name).waits])
def test_an_unrolled_network_waits_for_nothing_if_values_are_not_checked(name, cuda, no_waiting):
    case = make(name).to(cuda, torch.float32)
    run = case.unrolled(check_values=False)
    parameters = list(case.graph.parameters())
    # the first call brings schedules and nodes to the device
    torch.autograd.grad(run().sum(), parameters, allow_unused=True)
    with no_waiting:
        torch.autograd.grad(run().sum(), parameters, allow_unused=True)
        with torch.no_grad():
            run()


def test_training_with_dropout_and_random_orders_waits_for_nothing(cuda, no_waiting):
    case = make("mlp forward").to(cuda, torch.float32)
    net = unn.Unrolled(
        case.graph,
        "X",
        "Y",
        unn.RandomOrder(["H", "Y"]),
        range(1, 4),
        {"H": "random"},
        {"H": 0.3},
        check_values=False,
    )
    net(case.given["X"]).sum().backward()
    with no_waiting:
        for _ in range(5):
            net(case.given["X"]).sum().backward()
