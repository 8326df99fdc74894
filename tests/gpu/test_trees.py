"""Trees: the same numbers as on the CPU, whichever way they are computed."""

import pytest
import torch

import unn
from factors import Multilinear, TreeEntropy
from factors.trees.decoding import decode, sample
from factors.trees.matrix_tree import log_partition_and_marginals

KINDS = {
    "mild": (1.0, 0.0),
    "strong cycles": (1.0, 12.0),
    "very strong cycles": (1.0, 60.0),
    "huge": (1000.0, 0.0),
}


def scores_of(kind, dtype, n=17, batch=5):
    scale, cycle = KINDS[kind]
    scores = scale * torch.randn(batch, n, n, dtype=dtype)
    pairs = torch.arange(0, n - 1, 2)
    scores[:, pairs, pairs + 1] += cycle
    scores[:, pairs + 1, pairs] += cycle
    return scores


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_log_partition_marginals_and_derivatives_are_those_of_the_cpu(
    device, kind, single_root, dtype, slack
):
    scores, slope = scores_of(kind, dtype), torch.randn(5, 17, 17, dtype=dtype)
    lengths = torch.tensor([17, 1, 9, 2, 16])

    def everything(place):
        leaf = scores.to(place).requires_grad_()
        partition, arcs = log_partition_and_marginals(leaf, lengths.to(place), single_root)
        (gradient,) = torch.autograd.grad((arcs * slope.to(place)).sum() + partition.sum(), leaf)
        return partition, arcs, gradient

    for ours, expected in zip(everything(device), everything(torch.device("cpu")), strict=True):
        assert ours.device == device
        torch.testing.assert_close(ours.cpu(), expected, rtol=slack, atol=slack)


def test_trees_and_samples_are_those_of_the_cpu(device):
    scores = scores_of("mild", torch.float64)
    assert torch.equal(decode(scores.to(device)).cpu(), decode(scores))
    drawn = [
        sample(scores.to(place), generator=torch.Generator().manual_seed(0)).cpu()
        for place in (device, torch.device("cpu"))
    ]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_structured_network_trains_as_on_the_cpu(device, compiled):
    torch.manual_seed(0)
    g = unn.FactorGraph("structured", width=6, hidden=8, other=8)
    X = g.variable("X", "word width", unn.SquaredNorm())
    H, M = g.variable("H", "word hidden", unn.NonNegative()), g.variable("M", "word other", unn.NonNegative())
    Y = g.variable("Y", "word modifier", TreeEntropy())
    W, U, V = (
        g.parameter("W", "hidden width"),
        g.parameter("U", "other width"),
        g.parameter("V", "hidden other", init=0.3),
    )
    g.factor(Multilinear(H["i d"], W["d e"], X["i e"]))
    g.factor(Multilinear(M["j d"], U["d e"], X["j e"]))
    g.factor(Multilinear(Y["i j"], H["i d"], V["d e"], M["j e"]))
    x, slope = torch.randn(4, 7, 6), torch.randn(4, 7, 7)
    lengths = torch.tensor([7, 3, 1, 5])

    def gradients(place):
        g.to(place)
        net = unn.Unrolled(g, given="X", want="Y", order=["H", "M", "Y"], iterations=3)
        run = torch.compile(net) if compiled and place == device else net
        y = run(x.to(place), lengths={"word": lengths.to(place)})
        return [
            y.detach(),
            *torch.autograd.grad((y * slope.to(place)).sum(), [g.get_parameter(name) for name in "WUV"]),
        ]

    for gradient, expected in zip(gradients(device), gradients(torch.device("cpu")), strict=True):
        torch.testing.assert_close(gradient.cpu(), expected.cpu(), rtol=1e-3, atol=1e-4)
