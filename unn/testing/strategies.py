"""Hypothesis strategies: random points of domains, random graphs, observations and orders."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from .. import regularizers as reg
from ..descent.orders import ForwardBackward, Item, Order, RandomOrder
from ..factor_graph import FactorGraph
from ..graph.arrays import Parameter, Variable
from ..graph.factor import Factor

MakeMultilinear = Callable[..., Factor]

REGULARIZERS: tuple[Callable[[], reg.Regularizer], ...] = (
    reg.SquaredNorm,
    reg.NonNegative,
    reg.BinaryEntropy,
    reg.SignedEntropy,
    reg.Entropy,
    lambda: reg.Entropy(temperature=0.5),
    reg.SimplexNorm,
    lambda: reg.TsallisEntropy(1.5),
    lambda: reg.Box(-0.5, 2.0),
    reg.Ball,
    reg.LayerNorm,
    lambda: reg.SubsetNorm(2),
    lambda: reg.L1(0.3),
)


@dataclass
class GraphCase:
    """A random inference problem.

    Attributes:
        graph: graph in float64.
        values: feasible value of every variable, shape ``(batch, *axes)``.
        given: names of observed variables; at least one variable is free.
        order: list of names, or an order, over the free variables.
        seed: seed of further random draws in a test.
    """

    graph: FactorGraph
    values: dict[str, Tensor]
    given: tuple[str, ...]
    order: Order | list[Item]
    seed: int

    @property
    def observed(self) -> dict[str, Tensor]:
        """Values of the observed variables."""
        return {name: self.values[name] for name in self.given}

    @property
    def free(self) -> list[str]:
        """Names of the other variables."""
        return [name for name in self.graph.variables if name not in self.given]

    @property
    def start(self) -> dict[str, Tensor]:
        """Feasible initial values of the free variables."""
        return {name: self.values[name] for name in self.free}


def domain_point(regularizer: reg.Regularizer, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw a random interior point of a domain, float64.

    For an elementwise domain it is noise mapped into the interval, otherwise the mean of several
    mirrors, which lies in the domain because it is convex. Entries of a simplex that a mask excludes are 0.
    """
    noise = 1.5 * torch.randn(shape, dtype=torch.float64, generator=generator)
    if isinstance(regularizer, reg.Simplex):
        # the mirror of equal entries is positive wherever the domain allows it
        excluded = regularizer.mirror(torch.zeros_like(noise)) == 0
        return torch.softmax(noise.masked_fill(excluded, -torch.inf), regularizer.dim).nan_to_num(0)
    if isinstance(regularizer, reg.Elementwise):
        return _inside(noise, *regularizer.interval())
    if isinstance(regularizer, reg.Ball | reg.LayerNorm | reg.RMSNorm):
        return regularizer.mirror(noise) * 0.98
    others = [1.5 * torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2)]
    return torch.stack([regularizer.mirror(t) for t in (noise, *others)]).mean(0)


def _inside(noise: Tensor, low: float, high: float) -> Tensor:
    """Map noise into an interval with finite or infinite ends."""
    if math.isfinite(low) and math.isfinite(high):
        return (low + high) / 2 + 0.98 * (high - low) / 2 * noise.tanh()
    if math.isfinite(low):
        return low + noise.abs() + 1e-3
    return high - noise.abs() - 1e-3 if math.isfinite(high) else noise


@st.composite
def graph_cases(
    draw: st.DrawFn,
    multilinear: MakeMultilinear,
    max_variables: int = 4,
    max_factors: int = 5,
    max_degree: int = 4,
    batch: int = 3,
) -> GraphCase:
    """Strategy of random graphs with multilinear factors of degree 1 to 4, observations and orders.

    Factors have variables, parameters and shared axes.

    Args:
        draw: draw function of hypothesis.
        multilinear: builds a multilinear factor from references (``factors.Multilinear``).
        max_variables, max_factors, max_degree: limits.
        batch: batch size.
    """
    seed = draw(st.integers(0, 2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    axes = ["a", "b", "c"]
    g = FactorGraph("random", **{axis: draw(st.integers(1, 3)) for axis in axes})
    variables = []
    for k in range(draw(st.integers(2, max_variables))):
        rank = draw(st.integers(1, 2))
        own = draw(st.permutations(axes))[:rank]
        variables.append(g.variable(f"x{k}", " ".join(own), draw(st.sampled_from(REGULARIZERS))()))
    for k in range(draw(st.integers(1, max_factors))):
        g.factor(_random_factor(draw, g, variables, k, multilinear, max_degree, generator))
    g.double()
    table = g.size_table
    values = {}
    for variable in variables:
        shape = tuple(size or 0 for size in table.shape(variable, table.static))
        values[variable.name] = domain_point(variable.regularizer, (batch, *shape), generator)
    names = [variable.name for variable in variables]
    count = draw(st.integers(0, len(names) - 1))
    given = tuple(draw(st.permutations(names))[:count])
    free = draw(st.permutations([name for name in names if name not in given]))
    orders: list[Order | list[Item]] = [list(free), ForwardBackward(free), RandomOrder(free)]
    order = draw(st.sampled_from(orders))
    return GraphCase(g, values, given, order, seed)


def _random_factor(
    draw: st.DrawFn,
    g: FactorGraph,
    variables: list[Variable],
    number: int,
    multilinear: MakeMultilinear,
    max_degree: int,
    generator: torch.Generator,
) -> Factor:
    degree = draw(st.integers(1, min(max_degree, len(variables))))
    chosen = draw(st.permutations(variables))[:degree]
    references = [variable[" ".join(variable.axes)] for variable in chosen]
    letters = sorted({letter for reference in references for letter in reference.letters})
    if draw(st.booleans()):
        own = draw(st.permutations(letters))[: draw(st.integers(1, len(letters)))]
        values = 0.7 * torch.randn([g.sizes[axis] for axis in own], generator=generator)
        parameter: Parameter = g.parameter(f"w{number}", " ".join(own), init=values)
        references.insert(draw(st.integers(0, len(references))), parameter[" ".join(own)])
    return multilinear(*references)
