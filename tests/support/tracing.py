"""Programs to trace, and the edges that their graphs must have."""

import numpy as np
import torch

from factors import Depends
from unn.graph.structure import Pairs
from unn.programs import Bernoulli, Uniform


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def formulas(traced):
    return [str(factor) for factor in traced.graph.factors.values()]


def interacting(graph):
    """The pairs of names of different nodes that see each other."""
    adjacency = graph.adjacency()
    names = adjacency.names()
    return {frozenset((names[i], names[j])) for i, j in adjacency.index().T.tolist() if i != j}


def check_edges(traced):
    """The adjacency of the graph has the edges of the run and no others, but for cliques."""
    directed = {frozenset(edge) for edge in traced.edges}
    assert len(directed) == len(traced.edges)
    kept = [
        factor
        for factor in traced.graph.factors.values()
        if isinstance(factor, Depends) or (isinstance(factor, Pairs) and factor.directed)
    ]
    if len(kept) == len(traced.graph.factors):
        assert interacting(traced.graph) == directed
    else:
        assert directed <= interacting(traced.graph)


def product_of_matrices(t, m=3, n=3, k=2, columns_first=False):
    A = t.sample("A", Uniform(0, 1), shape=(m, k))
    R = t.sample("R", Bernoulli(0.3), shape=(k, n))
    C, E = t.empty("C", (m, n, k)), t.empty("E", (m, n))
    places = [(i, j) for j in range(n) for i in range(m)] if columns_first else list(np.ndindex(m, n))
    for i, j in places:
        for h in range(k):
            C[i, j, h] = t.deterministic(A[i, h] * R[h, j])
        E[i, j] = t.deterministic(sum(C[i, j, h] for h in range(k)))


def circuit(t, depth=3, intermediate=True):
    level = t.sample("L0", Bernoulli(0.5), 2**depth)
    for k in range(1, depth + 1):
        gates = [
            (level[2 * i] & level[2 * i + 1]) if (i + k) % 2 else (level[2 * i] | level[2 * i + 1])
            for i in range(2 ** (depth - k))
        ]
        if intermediate or k == depth:
            level = t.deterministic(gates, name=f"L{k}")
        else:
            level = gates
