"""Latent groups on the GPU: losses, bounds and samples as on the CPU."""

import copy

import torch

import unn
from problems.vae.graph import Shape, declare


def model():
    torch.manual_seed(0)
    options = unn.LatentOptions(width=8, keys=4, spatial_keys=4, divergence_warmup=0, particles=4)
    return unn.AttentiveVAE(declare(Shape(6, 6, 0, 3, 2, 1)), options, {})


def images(count=8):
    return {"x": (torch.rand(count, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.4).float()}


def test_the_loss_and_its_gradients_are_those_of_the_cpu(device):
    one = model().train()
    other = copy.deepcopy(one).to(device)
    results = []
    for network, where in ((one, "cpu"), (other, device)):
        # noise comes from the CPU's generator
        torch.manual_seed(1)
        loss = network.loss({"x": images()["x"].to(where)}, {})
        gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        results.append([loss.detach().cpu(), *(g.cpu() for g in gradients if g is not None)])
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-3, atol=1e-3)


def test_bounds_and_completions_are_those_of_the_cpu(device):
    one = model().eval()
    other = copy.deepcopy(one).to(device)
    mask = torch.zeros(8, 6, 6, dtype=torch.bool)
    mask[:, :3] = True
    values, samples = [], []
    for network in (one, other):
        generator = torch.Generator().manual_seed(0)
        values.append(network.log_likelihood(images(), 10, generator=generator).value.cpu())
        given = {"x": unn.Partial(images()["x"], mask)}
        samples.append(network.sample_with(given, 8, unn.SamplingOptions(seed=0), {})["x"])
    torch.testing.assert_close(*values, rtol=1e-3, atol=1e-2)
    assert (samples[0] == samples[1]).double().mean() > 0.95
