"""Forward mode nests: tangents that autograd functions compute are differentiated again."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, jvp

from factors import Birkhoff, Budget, TreeEntropy
from factors.trees import matrix_tree

SCORES = torch.tensor([[0.3, -0.2, 0.5], [0.9, 0.1, -0.4], [-0.6, 0.2, 0.8]], dtype=torch.float64)
DIRECTION = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.5], [-0.5, 0.7, 0.2]], dtype=torch.float64)
FUNCTIONS = {
    "trees": lambda t: TreeEntropy().conjugate(t[None])[0],
    "trees of several roots": lambda t: TreeEntropy(single_root=False).conjugate(t[None])[0],
    "tree marginals": lambda t: (TreeEntropy().mirror(t[None])[0] * DIRECTION).sum(),
    "matrix-tree function": lambda t: matrix_tree.log_partition(t[None])[0],
    "matchings": lambda t: Birkhoff().conjugate(t[None])[0],
    "matchings' marginals": lambda t: (Birkhoff().mirror(t[None])[0] * DIRECTION).sum(),
    "budgets": lambda t: Budget(2).conjugate(t[None])[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_agree_in_every_nesting(name):
    function = FUNCTIONS[name]
    step = 1e-4 * DIRECTION
    differences = (function(SCORES + step) - 2 * function(SCORES) + function(SCORES - step)) / 1e-8
    expected = hessian(function)(SCORES)
    along = (torch.einsum("ijkl,ij,kl", expected, DIRECTION, DIRECTION)).double()
    torch.testing.assert_close(along, differences, rtol=1e-4, atol=1e-6)
    for nested in (jacfwd(jacfwd(function)), jacrev(jacfwd(function)), jacrev(jacrev(function))):
        torch.testing.assert_close(nested(SCORES), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["trees", "matchings", "budgets"])
def test_third_derivatives_in_forward_mode_are_those_of_reverse_mode(name):
    function = FUNCTIONS[name]

    def along(inner, t):
        # the direction depends on the scores as well
        return jvp(inner, (t,), (DIRECTION * t,))[1]

    nested = along(lambda t: along(lambda u: along(function, u), t), SCORES)

    def reverse(inner):
        return lambda t: (jacrev(inner)(t) * DIRECTION * t).sum()

    torch.testing.assert_close(nested, reverse(reverse(reverse(function)))(SCORES), rtol=1e-8, atol=1e-10)
