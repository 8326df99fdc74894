"""How fast fused passes of undirected attention are, and the engine that they replace, against the updates
written by hand as the undirected-network paper writes them. Run as ``python -m
tests.benchmarks.undirected_attention [--quick] [--only NAME]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import unn
from factors import undirected_attention
from tests.benchmarks.core import Model, cases_of, report
from tests.benchmarks.measure import Case

ROUNDS = (1, 3)


@dataclass(frozen=True)
class Problem:
    """Sequences with missing rows, and attention over them.

    Attributes:
        g: the graph.
        fused: from a partly observed X, after a number of rounds.
        generic: the same by the engine.
        by_hand: the same by a loop.
    """

    g: unn.FactorGraph
    fused: Callable[[int], Tensor]
    generic: Callable[[int], Tensor]
    by_hand: Callable[[int], Tensor]

    def model(self, name: str, ours: Callable[[int], Tensor]) -> Model:
        """One of the two against the loop."""
        return Model(name, tuple(self.g.parameters()), ours, self.by_hand)


def completion(
    heads: int = 1,
    masked: bool = False,
    width: int = 256,
    length: int = 25,
    missing: int = 3,
    batch: int = 64,
    device: str = "cpu",
) -> Problem:
    """The network of Section 4; order Q, K, V, S, H, S, V, K, Q, then the missing rows of X.

    Args:
        heads: of the attention.
        masked: does each position attend to at most eight before and behind it?
        width: of an embedding, and of all heads together.
        length: of the sequences.
        missing: rows of each.
        batch: sequences in a call.
        device: that all compute on.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        positions = torch.randn(length, width)
        known = torch.rand(batch, length).argsort(1) >= missing
        x = torch.randn(batch, length, width) * known[:, :, None]
        places = torch.arange(length)
        band = (places[:, None] - places).abs() <= 8
        g = unn.FactorGraph("attention", d=width)
        X, P = g.variable("X", "n d", unn.SquaredNorm()), g.constant("P", "n d", positions)
        # small weights: the energy is unbounded below, and these few rounds must stay finite
        attention = undirected_attention(g, [X, P], heads=heads, mask=band if masked else None, init=0.02)
        g.to(device)
    positions, known, x, band = (tensor.to(device) for tensor in (positions, known, x, band))
    seen = unn.Partial(x, known[:, :, None])
    order = unn.ForwardBackward(attention.order, last="X")
    fused = unn.Unrolled(g, "X", "X", order)
    generic = unn.Unrolled(g, "X", "X", order, fusions=())
    W_Q, W_K, W_V = (g.get_parameter(name) for name in ("W_Q", "W_K", "W_V"))

    def project(z: Tensor, W: Tensor) -> Tensor:
        out = F.linear(z + positions, W.flatten(0, -2))
        return out if heads == 1 else out.unflatten(2, (heads, -1)).transpose(1, 2)

    def back(y: Tensor, W: Tensor) -> Tensor:
        return (y if heads == 1 else y.transpose(1, 2).flatten(2)) @ W.flatten(0, -2)

    def weigh(q: Tensor, k: Tensor, v: Tensor, h: Tensor) -> Tensor:
        scores = (q @ k.mT + h @ v.mT) / math.sqrt(width // heads)
        return torch.softmax(scores.masked_fill(~band, -torch.inf) if masked else scores, -1)

    def by_hand(rounds: int) -> Tensor:
        z = x
        q = k = v = h = x.new_zeros(batch, *(() if heads == 1 else (heads,)), length, width // heads)
        s = x.new_zeros(*q.shape[:-1], length)
        for _ in range(rounds):
            q = project(z, W_Q) + s @ k
            k = project(z, W_K) + s.mT @ q
            v = project(z, W_V) + s.mT @ h
            s = weigh(q, k, v, h)
            h = s @ v
            s = weigh(q, k, v, h)
            v = project(z, W_V) + s.mT @ h
            k = project(z, W_K) + s.mT @ q
            q = project(z, W_Q) + s @ k
            z = torch.where(known[:, :, None], x, back(v, W_V) + back(q, W_Q) + back(k, W_K))
        return z

    return Problem(
        g,
        lambda rounds: _tensor(fused(seen, iterations=rounds)),
        lambda rounds: _tensor(generic(seen, iterations=rounds)),
        by_hand,
    )


def cases() -> list[Case]:
    """Fused passes at the size of the paper with their limits, with a mask, and with several heads; and the
    engine at the size of the paper."""
    paper, masked, several = completion(), completion(masked=True), completion(heads=8)
    return [
        *cases_of(paper.model("fused", paper.fused), ROUNDS, {3: 0.50}),
        *cases_of(paper.model("engine", paper.generic), ROUNDS, {}),
        *cases_of(masked.model("fused, masked", masked.fused), (3,), {}),
        *cases_of(several.model("fused, 8 heads", several.fused), (3,), {}),
        *cases_of(several.model("engine, 8 heads", several.generic), (3,), {}),
    ]


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    return report(__doc__, cases, {}, arguments)


def _tensor(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    assert isinstance(output, Tensor)
    return output


if __name__ == "__main__":
    main()
