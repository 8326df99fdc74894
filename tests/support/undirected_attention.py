"""Undirected attention over a few words, masks, and rows that are observed."""

import torch

import unn
from factors import undirected_attention

D = torch.float64
EXACT = {"rtol": 1e-12, "atol": 1e-12}
ROUND_TRIP = unn.ForwardBackward(["Q", "K", "V", "S", "H"], last="X")
N, WIDTH = 5, 6


def random(*shape, seed=0):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def small_graph(d=WIDTH, positions=False, axes="n d"):
    """X, and P for positions."""
    g = unn.FactorGraph("words", d=d)
    X = g.variable("X", axes, unn.SquaredNorm())
    return (g, X, g.constant("P", "n d")) if positions else (g, X)


def declared(positions=False, seed=0, init=0.4, **options):
    """Self-attention over X, or X and P, in float64."""
    torch.manual_seed(seed)
    g, *sources = small_graph(positions=positions)
    attention = undirected_attention(g, sources, init=init, **options)
    return g.double(), attention


BAND = (torch.arange(N)[:, None] - torch.arange(N)).abs() <= 1
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
HOLES = CAUSAL.clone()
HOLES[2] = False
HOLES[:, 0] = False
EACH_HEAD = torch.stack([BAND, HOLES])


def known_rows(batch=3, n=N, seed=1):
    """True where a row is observed: all but one or two of each batch element."""
    known = torch.ones(batch, n, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for element in range(batch):
        known[element, torch.randperm(n, generator=generator)[: 1 + element % 2]] = False
    return known
