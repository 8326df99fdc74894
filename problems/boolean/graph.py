"""A circuit of AND and OR gates in a tree over 2^depth inputs (structured-diffusion paper, Section 3.3)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

import unn
from factors import Depends, Multilinear
from unn.extending import Variable

_DRAWS = 64
"""Number of random circuits to choose from."""


def declare(depth: int, intermediate: bool, energy: bool = False) -> unn.FactorGraph:
    """The graph: a variable for each layer, the inputs first; without intermediate variables the output
    depends on all inputs.

    With an energy, each gate has a learned weight for each of its inputs and a learned threshold. AND and OR
    are threshold functions, so that such a gate can be either.

    Args:
        depth: number of layers of gates.
        intermediate: declare the outputs of all gates as variables.
        energy: couple inputs and outputs of gates by learned weights, for coordinate descent.
    """
    g = unn.FactorGraph("boolean", two=2, **{f"n{layer}": 2 ** (depth - layer) for layer in range(depth + 1)})
    layers = [
        g.variable(f"L{k}", f"n{k}", unn.BinaryEntropy())
        for k in range(depth + 1)
        if intermediate or k in (0, depth)
    ]
    for inputs, outputs in itertools.pairwise(layers):
        # each gate is a different function of its inputs
        if intermediate:
            g.factor(Depends(outputs["i"], inputs["(i two)"], ordered="i two"))
        else:
            g.factor(Depends(outputs["o"], inputs["i"], ordered="o i"))
        if energy:
            _couple(g, inputs, outputs, intermediate)
    return g


def _couple(g: unn.FactorGraph, inputs: Variable, outputs: Variable, gates: bool) -> None:
    """Add learned weights and thresholds of the outputs of a layer."""
    (source,), (target,) = inputs.axes, outputs.axes
    threshold = g.parameter(f"b_{outputs.name}", target, init="zeros")
    g.factor(Multilinear(threshold["i"], outputs["i"]))
    if gates:
        weight = g.parameter(f"W_{outputs.name}", f"{target} two")
        g.factor(Multilinear(weight["i t"], outputs["i"], inputs["(i t)"]))
    else:
        weight = g.parameter(f"W_{outputs.name}", f"{target} {source}")
        g.factor(Multilinear(weight["o i"], outputs["o"], inputs["i"]))


@cache
def gates_of(depth: int, seed: int) -> tuple[Tensor, ...]:
    """Mask of OR gates by layer, shape ``(2**(depth - 1 - k),)`` for layer k; the others are AND.

    Chooses the circuit with the least predictable output among several random ones; the output of most is
    nearly constant.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        tuple(torch.rand(2 ** (depth - 1 - k), generator=generator) < 0.5 for k in range(depth))
        for _ in range(_DRAWS)
    ]
    return min(drawn, key=lambda gates: abs(share_of_ones(gates) - 0.5))


def share_of_ones(gates: Sequence[Tensor]) -> float:
    """Probability that the output is 1 for independent uniform inputs."""
    p = torch.full((2 ** len(gates),), 0.5, dtype=torch.float64)
    for is_or in gates:
        a, b = p[0::2], p[1::2]
        p = torch.where(is_or, a + b - a * b, a * b)
    return float(p)


def run(gates: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """The outputs of all layers, the inputs first; inputs are boolean, shape ``(count, 2**depth)``."""
    layers = [inputs]
    for is_or in gates:
        a, b = layers[-1][:, 0::2], layers[-1][:, 1::2]
        layers.append(torch.where(is_or, a | b, a & b))
    return layers


def generate(
    gates: Sequence[Tensor], count: int, intermediate: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """Uniform random inputs and the outputs of the gates, 0 or 1, by layer, shape ``(count, nodes)``."""
    depth = len(gates)
    layers = run(gates, torch.rand(count, 2**depth, generator=generator) < 0.5)
    return {f"L{k}": x.float() for k, x in enumerate(layers) if intermediate or k in (0, depth)}
