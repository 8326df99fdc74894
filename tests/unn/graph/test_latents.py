"""Contraction of latent variables: the edges of elimination."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Depends, Multilinear


def chain(lengths):
    """Variables in a chain of multilinear factors over one axis each."""
    g = unn.FactorGraph("chain", **{f"n{k}": size for k, size in enumerate(lengths)})
    variables = [g.variable(f"X{k}", f"n{k}", unn.SquaredNorm()) for k in range(len(lengths))]
    for k in range(len(lengths) - 1):
        W = g.parameter(f"W{k}", f"n{k} n{k + 1}")
        g.factor(Multilinear(variables[k]["i"], W["i j"], variables[k + 1]["j"]))
    return g


def eliminated(matrix, hidden):
    """Edges after eliminating nodes one at a time, by the textbook rule."""
    edges = matrix.copy()
    for node in hidden:
        neighbours = [k for k in range(len(edges)) if edges[node, k] and k not in hidden]
        others = [k for k in range(len(edges)) if edges[node, k]]
        for a in others:
            for b in others:
                edges[a, b] = True
        assert set(neighbours) <= set(others)
    keep = [k for k in range(len(edges)) if k not in hidden]
    return edges[keep][:, keep]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_contraction_gives_the_edges_of_elimination(seed, count):
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("random", n=3)
    variables = [g.variable(f"X{k}", "n", unn.SquaredNorm()) for k in range(count)]
    for k, one in enumerate(variables):
        for other in variables[k + 1 :]:
            kind = int(torch.randint(3, (), generator=generator))
            if kind == 1:
                g.factor(Depends(one["i"], other["i"]))
            elif kind == 2:
                g.factor(Depends(one["i"], other["j"], ordered="i j"))
    hidden = [f"X{k}" for k in range(count) if int(torch.randint(2, (), generator=generator)) and k]
    contracted = unn.contract_latents(g, [v.name for v in variables if v.name not in hidden])
    whole = g.adjacency()
    nodes = [start + k for name, start in whole.starts.items() if name in hidden for k in range(3)]
    expected = eliminated(whole.matrix.toarray().astype(bool), nodes)
    assert (contracted.adjacency().matrix.toarray().astype(bool) == expected).all()
    assert list(contracted.variables) == [name for name in g.variables if name not in hidden]


def test_contraction_of_nothing_is_the_graph_and_unknown_names_are_refused():
    g = chain([2, 3, 4])
    assert unn.contract_latents(g, ["X0", "X1", "X2"]) is g
    with pytest.raises(unn.DeclarationError, match="X3"):
        unn.contract_latents(g, ["X0", "X3"])
    with pytest.raises(unn.DeclarationError, match="no variable"):
        unn.contract_latents(g, [])
    ends = unn.contract_latents(g, ["X0", "X2"])
    assert ends.adjacency().matrix.toarray().all()
