"""How fast attention over layers is, against a loop over layers that stacks contexts, written by hand.

Run as ``python -m tests.benchmarks.vae [--quick] [--only NAME]``. The loop stacks the contexts of all earlier
layers anew at every layer, as the published code does, and computes scores and sums of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import unn
from problems.vae.graph import Shape, declare
from tests.benchmarks import measure as bench
from tests.benchmarks.core import report
from tests.benchmarks.measure import Case, Figure
from unn.latent.attention import attend

BATCH, CHANNELS, KEYS, SIDE = 32, 32, 8, 8


class Inputs(nn.Module):
    """Contexts, queries and keys of all layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)

        def parameters(channels: int) -> nn.ParameterList:
            return nn.ParameterList(torch.randn(BATCH, channels, SIDE, SIDE) for _ in range(layers))

        self.contexts, self.keys, self.queries = (parameters(c) for c in (CHANNELS, KEYS, KEYS))

    def step(self, attention: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        """The sum of what all layers read, and the gradients of the first layer."""
        self.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for layer in range(1, len(self.contexts)):
            own = attention(self.queries[layer], self.keys[:layer], self.contexts[:layer])
            total = total + own.square().sum()
        total.backward()
        gradients = self.contexts[0].grad, self.keys[0].grad
        assert gradients[0] is not None and gradients[1] is not None
        return total.detach(), *gradients


def ours(query: Tensor, keys: Sequence[Tensor], contexts: Sequence[Tensor]) -> Tensor:
    """Attention that reads a cache in place."""
    return attend(query, list(keys), list(contexts), 1.0)[0]


def recomputed(query: Tensor, keys: Sequence[Tensor], contexts: Sequence[Tensor]) -> Tensor:
    """The same, computed again in the backward pass."""
    result: Tensor = checkpoint(ours, query, list(keys), list(contexts), use_reentrant=False)  # type: ignore[no-untyped-call]
    return result


def by_hand(query: Tensor, keys: Sequence[Tensor], contexts: Sequence[Tensor]) -> Tensor:
    """Attention over a stack of the contexts."""
    stacked_keys, stacked = torch.stack(list(keys), 1), torch.stack(list(contexts), 1)
    weights = torch.einsum("bqhw,bnqhw->bnhw", query, stacked_keys).softmax(1)
    return torch.einsum("bnhw,bnchw->bchw", weights, stacked)


def cases() -> list[Case]:
    """A training step of attention alone, for 8 and 16 layers."""
    result = []
    for layers in (8, 16):
        inputs = Inputs(layers)
        for name, attention in (("", ours), (", recomputed", recomputed)):
            result.append(
                Case(
                    f"latent: attention over {layers} layers{name}",
                    lambda inputs=inputs, attention=attention: inputs.step(attention),
                    lambda inputs=inputs: inputs.step(by_hand),
                    0.8,
                    "contexts stacked anew at each layer",
                )
            )
    return result


def step_figures(samples: int) -> list[Figure]:
    """Time and memory of a training step of a whole network, with layers recomputed or not."""
    figures = []
    x = {"x": (torch.rand(64, 28, 28) < 0.2).float()}
    for layers in (8, 16):
        peaks = []
        for recompute in (False, True):
            torch.manual_seed(0)
            options = unn.LatentOptions(width=16, keys=8, recompute=recompute)
            model = unn.AttentiveVAE(declare(Shape(28, 28, 0, layers, 4, 2), spatial=False), options, {})
            peaks.append(bench.peak_memory(lambda model=model: model.loss(x, {}).backward()))
            seconds = bench.median_seconds(lambda model=model: model.loss(x, {}).backward(), samples, 1)
            kind = ", layers recomputed" if recompute else ""
            figures.append(Figure(f"latent: training step, {layers} layers{kind}", 1e3 * seconds, "ms"))
        name = f"latent: memory of a step, {layers} layers, recomputed / kept"
        figures.append(Figure(name, peaks[1] / peaks[0], "x"))
    return figures


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    return report(__doc__, cases, {"latent: steps": step_figures}, arguments)


if __name__ == "__main__":
    main()
