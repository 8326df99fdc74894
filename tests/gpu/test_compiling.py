"""torch.compile without graph breaks gives on a device what running step by step gives."""

import pytest
import torch
from support.device_cases import check_close, make
from torch._dynamo.utils import counters

# advice on speed
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")


@pytest.mark.parametrize("name", ["convolution forward", "attention", "grid", "patterns"])
def test_a_compiled_network_gives_the_values_and_gradients_of_the_eager_one(name, device):
    # the compiler of the CPU is no subject here, and slow
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    case = make(name).to(device, torch.float32)
    eager = case.unrolled()
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(eager, fullgraph=True, backend=backend)
    parameters = dict(case.graph.named_parameters())

    def everything(run):
        out = run()
        slope = torch.linspace(-1, 1, out.numel(), device=device).reshape(out.shape)
        return {"value": out} | dict(
            zip(parameters, torch.autograd.grad((out * slope).sum(), parameters.values()), strict=True)
        )

    expected = {name: x.detach().cpu() for name, x in everything(eager).items()}
    for _ in range(2):
        check_close(everything(compiled), expected, 1e-3, device)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_compiled_network_under_autocast_is_close_to_the_eager_one(device):
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    case = make("convolution forward").to(device, torch.float32)
    eager = case.unrolled()
    torch._dynamo.reset()
    with torch.autocast(device.type, torch.bfloat16), torch.no_grad():
        value = torch.compile(eager, fullgraph=True, backend=backend)()
    check_close({"value": value}, {"value": eager().cpu()}, 0.05, device)
