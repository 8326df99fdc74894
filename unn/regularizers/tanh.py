"""The hyperbolic tangent, fast on CPUs in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tanh(t: Tensor) -> Tensor:
    """tanh(t); in float32 on a CPU by way of the sigmoid, which takes a quarter of the time.

    The absolute error is then below 2e-7, about one unit in the last place of 1. Elsewhere it is ``torch.tanh``.
    """
    if t.dtype == torch.float32 and t.device.type == "cpu" and not torch.compiler.is_compiling():
        result: Tensor = _SigmoidTanh.apply(t)
        return result
    return t.tanh()


class _SigmoidTanh(torch.autograd.Function):
    """2 sigmoid(2t) - 1, which like ``torch.tanh`` keeps no more than its result for the backward pass."""

    @staticmethod
    def forward(t: Tensor) -> Tensor:
        s = (t + t).sigmoid_()
        return torch.add(s.new_full((), -1.0), s, alpha=2, out=s)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], t: Tensor) -> tuple[Tensor, int | None]:
        return tanh(t), in_dims[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradients[0], y)  # type: ignore[no-any-return]
