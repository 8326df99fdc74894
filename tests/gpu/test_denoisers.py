"""Denoisers: the same numbers as on the CPU, every kernel of attention, training and sampling."""

import pytest
import torch

import unn
from problems.sorting import graph as sorting
from problems.sudoku import grids as sudoku
from unn.ops.attention import attention, kernel_names

GRAPHS = {"sudoku": lambda: sudoku.declare(3, 3), "sorting": lambda: sorting.declare(6, True, "chain")}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kernel", [*kernel_names(), "auto"])
def test_attention_over_a_graph_is_that_of_the_cpu_with_its_gradients(device, graph, kernel):
    if kernel == "blocks" and device.type == "cpu":
        pytest.skip("flex_attention has no gradients on the CPU")
    mask = unn.AttentionMask(GRAPHS[graph]().adjacency())
    inputs = [torch.randn(2, 2, mask.count, 16) for _ in range(4)]

    def everything(place, chosen):
        q, k, v = (x.to(place).requires_grad_() for x in inputs[:3])
        out = attention(q, k, v, mask, chosen)
        return out, *torch.autograd.grad((out * inputs[3].to(place)).sum(), (q, k, v))

    for ours, expected in zip(
        everything(device, kernel), everything(torch.device("cpu"), "dense"), strict=True
    ):
        assert ours.device == device
        torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", GRAPHS)
def test_estimates_are_those_of_the_cpu(device, graph):
    diffusion = unn.Diffusion(unn.Denoiser(GRAPHS[graph](), width=32, depth=2, heads=2))
    x = torch.randn(3, diffusion.denoiser.frame().numbers)
    here = diffusion.denoise(x, torch.tensor(2.0), diffusion.condition({}, 3))
    diffusion.to(device)
    there = diffusion.denoise(x.to(device), torch.tensor(2.0, device=device), diffusion.condition({}, 3))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("self_conditioning", ["tokens", "estimate", "none"])
def test_a_model_learns_and_samples_and_keeps_what_is_given(device, self_conditioning):
    g = sudoku.declare(2, 2)
    denoiser = unn.Denoiser(g, width=32, depth=3, heads=2, self_conditioning=self_conditioning)
    diffusion = unn.Diffusion(denoiser, passes=2).to(device)
    grids = sudoku.one_hot(sudoku.all_grids(2, 2), 4).to(device)
    optimizer = torch.optim.Adam(diffusion.parameters(), lr=2e-3)
    losses = []
    for _ in range(100):
        loss = diffusion.loss(
            {"X": grids[torch.randint(288, (32,))]}, torch.rand(32, 16, device=device) < 0.4
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    where = torch.rand(5, 4, 4) < 0.5
    given = unn.Partial(grids[:5].cpu(), where)
    samples = diffusion.sample({"X": given}, 5, steps=5, seed=0, verify=True, tries=2)
    assert torch.equal(samples["X"][where], grids[:5].cpu()[where]) and samples.valid is not None
