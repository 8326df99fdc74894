"""Functions of torch in traced programs."""

import pytest
import torch
from support.helpers import says
from support.tracing import check_edges, seeded

import unn
from unn.programs import Normal

MATRIX = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) / 5

OF_TORCH = {
    "tanh": lambda x: torch.tanh(x),
    "exp and log": lambda x: torch.log1p(torch.exp(x)) + torch.log(torch.abs(x)),
    "sigmoid": lambda x: torch.sigmoid(x) + torch.special.expit(2 * x),
    "relu": lambda x: torch.relu(x) + torch.nn.functional.relu(-x) + torch.nn.functional.softplus(x),
    "clamp": lambda x: torch.clamp(x, -0.5, 1) + torch.clamp(x, min=0.1),
    "choice": lambda x: torch.where(x > 0, torch.square(x), torch.neg(x)),
    "two": lambda x: torch.maximum(x, x[0]) + torch.sub(x, 1) * torch.atan2(x, x[1]),
    "powers": lambda x: torch.pow(torch.abs(x), 1.5) + torch.rsqrt(torch.abs(x)) + torch.reciprocal(x),
    "rounded": lambda x: torch.round(x) + torch.floor(x) + torch.sign(x),
    "tensors": lambda x: MATRIX[0] * x + (MATRIX[1] - x) / (1 + MATRIX[2]) + torch.add(x, MATRIX[3]),
    "matrices": lambda x: MATRIX @ x + torch.matmul(MATRIX, x),
    "weights": lambda x: torch.ones(3, dtype=torch.float64, requires_grad=True) * x,
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_functions_of_torch_of_single_entries_agree_with_torch(name):
    traced = unn.trace(lambda t: t.deterministic(OF_TORCH[name](t.sample("x", Normal(), 3)), name="y"))
    drawn = traced.draw(20, seeded(), torch.float64)
    expected = torch.stack([OF_TORCH[name](x) for x in drawn["x"]]).detach()
    torch.testing.assert_close(drawn["y"], expected, rtol=1e-12, atol=1e-12)
    check_edges(traced)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.sum(x), ["torch.sum", "'x[0]'", "np.sum"]),
        (lambda x: torch.softmax(x, 0), ["torch.softmax", "'x[0]'"]),
        (lambda x: torch.stack([x, x]), ["torch.stack", "np.stack"]),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), ["torch.div", "'rounding_mode'"]),
        (lambda x: torch.nn.functional.softplus(x, 2.0), ["torch.softplus", "arguments"]),
    ],
)
def test_other_functions_of_torch_are_refused_by_name(function, words):
    with pytest.raises(unn.DeclarationError, match=says("program", *words)):
        unn.trace(lambda t: function(t.sample("x", Normal(), 3)))
