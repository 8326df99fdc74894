"""Attention over a graph by its definition, and graphs to compare its kernels on."""

import math
from unittest.mock import patch

import torch

import unn
from factors import Depends
from support.structures import circuit, factorisation, sorting, sudoku
from unn.ops.attention import AttentionMask, attention
from unn.ops.attention import terms as terms_module
from unn.ops.attention.terms import Grouped, NodeList, Term, Window

CPU = torch.device("cpu")
KERNELS = ["dense", "packed", "relational", "sparse", "estimated", "auto"]


def worthwhile(fewest):
    """From how many pairs on a term is an operation of its own; 1 takes small graphs apart as large ones."""
    return patch.object(terms_module, "_FEW", fewest)


def regular(graph, **sizes):
    """The mask of a graph, taken apart as a large one."""
    mask = AttentionMask(graph.adjacency(**sizes))
    with worthwhile(1):
        mask.terms(CPU)
    return mask


def inputs(count, seed=0, batch=2, heads=2, width=3, values=None, dtype=torch.float64, scale=1.0):
    """Queries, keys and values, normal with this standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    widths = (width, width, width if values is None else values)
    drawn = [
        scale * torch.randn(batch, heads, count, w, generator=generator, dtype=torch.float64) for w in widths
    ]
    return [x.to(dtype).requires_grad_() for x in drawn]


def by_definition(query, key, value, allowed):
    """Softmax over the neighbours of each node, in float64; zero without neighbours."""
    query, key, value = (x.double() for x in (query, key, value))
    scores = (query @ key.mT / math.sqrt(query.shape[3])).masked_fill(~allowed, -torch.inf)
    most = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_zeros(*scores.shape[:-1], 1)
    weights = (scores - most.clamp(min=torch.finfo(torch.float64).min)).exp()
    return weights @ value / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def with_gradients(run, given, slope):
    out = run(*given)
    return out.detach(), *torch.autograd.grad(out, given, slope.to(out.dtype))


def expected_of(given, allowed, slope):
    wide = [x.detach().double().requires_grad_() for x in given]
    return with_gradients(lambda q, k, v: by_definition(q, k, v, allowed), wide, slope.double())


def slope_of(given, seed=1):
    query, _, value = given
    return torch.randn(
        *query.shape[:3], value.shape[3], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def check(ours, expected, tolerance):
    """Output and gradients, to a share of the largest entry where that is more than one."""
    for a, b in zip(ours, expected, strict=True):
        assert a.shape == b.shape and a.isfinite().all()
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(a.double(), b, atol=tolerance * scale, rtol=0)


# large scores are rounded to more than 1e-6 in float32
PRECISIONS = ((torch.float64, 1.0, 1e-12), (torch.float32, 0.5, 1e-6))


def check_every_kernel(mask, seed, **shape):
    allowed = mask.adjacency.dense()
    for dtype, scale, tolerance in PRECISIONS:
        given = inputs(mask.count, seed, dtype=dtype, scale=scale, **shape)
        slope = slope_of(given)
        expected = expected_of(given, allowed, slope)
        for kernel in KERNELS:
            check(
                with_gradients(lambda q, k, v, kernel=kernel: attention(q, k, v, mask, kernel), given, slope),
                expected,
                tolerance,
            )


GRAPHS = {
    "factorisation": lambda: factorisation(5, 4, 6).adjacency(),
    "sorting": lambda: sorting(7).adjacency(i=7),
    "sorting, children see parents": lambda: sorting(7).adjacency(i=7).directed(),
    "sudoku": lambda: sudoku(3, 3).adjacency(),
    "sudoku of oblong blocks": lambda: sudoku(2, 4).adjacency(),
    "circuit": lambda: circuit(7).adjacency(),
    "random": lambda: factorisation(5, 4, 6).adjacency().random(torch.Generator().manual_seed(0)),
}


def all_kinds():
    """A small mask that is taken apart into terms of every kind."""
    mask = regular(sorting(3), i=3)
    assert {type(term) for term in mask.terms(CPU)} == {Term, Grouped}
    with worthwhile(5):
        mixed = AttentionMask(sorting(3).adjacency(i=3))
        assert {type(term) for term in mixed.terms(CPU)} == {Term, Grouped}
        assert {type(term.queries) for term in mixed.terms(CPU)} == {Window, NodeList}
    return mask, mixed


def chain(n):
    g = unn.FactorGraph("chain", n=n)
    X = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Depends(X["t+1"], X["t"]))
    return g
