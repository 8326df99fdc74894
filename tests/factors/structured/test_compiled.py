"""Marginals of structures in compiled programs have the gradients of eager ones."""

import warnings

import pytest
import torch
import torch_struct

from factors import Birkhoff, Budget, Structured, TreeEntropy

STRUCTURES = {
    "subsets": (lambda: Budget(2), (2, 4)),
    "permutations": (lambda: Birkhoff(), (2, 3, 3)),
    "trees": (lambda: TreeEntropy(), (2, 3, 3)),
    "sequences": (lambda: Structured(torch_struct.LinearChainCRF), (2, 2, 3, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRUCTURES)
def test_gradients_through_compiled_marginals_are_those_of_eager_ones(name):
    make, shape = STRUCTURES[name]
    regularizer = make()
    t = torch.randn(
        shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )

    def loss(t):
        return (regularizer.mirror(2 * t) ** 2).sum()

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(loss, backend="aot_eager")(t)
        (ours,) = torch.autograd.grad(compiled, t)
    (expected,) = torch.autograd.grad(loss(t), t)
    torch.testing.assert_close(ours, expected)
