"""Who interacts with whom: the reference masks of the structured-diffusion paper, brute force, symmetry, sizes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import says
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Cardinality, Clique, Conv2d, Depends, Directed, Implicit, Multilinear
from problems.digits import declare

GOLDEN = Path(__file__).parents[1] / "golden"


def names_of(found):
    names = []
    for name, shape in found.shapes.items():
        names += [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
    return names


def check_golden(graph, file):
    golden = np.load(GOLDEN / file)
    found = graph.adjacency()
    order = [names_of(found).index(name) for name in golden["names"]]
    assert len(order) == found.count
    assert np.array_equal(found.dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool))


@pytest.mark.parametrize("products", [True, False])
def test_a_product_of_matrices_has_the_mask_of_the_paper(products):
    # the reference lays its arrays out as A[k, i], R[k, j], C[k, j, i] and E[j, i]
    g = unn.FactorGraph("bcmf", k=2, i=3, j=3)
    A, R, E = (g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("A", "k i"), ("R", "k j"), ("E", "j i")))
    if products:
        C = g.variable("C", "k j i", unn.SquaredNorm())
        g.factor(Depends(C["k j i"], A["k i"], R["k j"]))
        g.factor(Depends(E["j i"], C["k j i"]))
    else:
        g.factor(Depends(E["j i"], A["k i"], R["k j"]))
    check_golden(g, f"bcmf_m3_n3_k2_{'int' if products else 'noint'}.npz")


@pytest.mark.parametrize(("file", "block"), [("sudoku_block2x2.npz", 2), ("sudoku_block3x3.npz", 3)])
@pytest.mark.parametrize("kind", [Clique, Cardinality])
def test_sudoku_has_the_mask_of_the_paper(file, block, kind):
    n = block * block
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, R=block, C=block)
    X = g.variable("X", "row col | digit", unn.Entropy())
    for pattern, each in (("r c v", "r"), ("r c v", "c"), ("(R r) (C c) v", "R C")):
        g.factor(kind(X[pattern], each=each if kind is Clique else f"{each} v"))
    check_golden(g, file)


@pytest.mark.parametrize("variant", [0, 1])
def test_sorting_has_the_mask_of_the_paper(variant):
    g = unn.FactorGraph("sorting", n=3)
    u, s = g.variable("u", "n", unn.SquaredNorm()), g.variable("s", "n", unn.SquaredNorm())
    C, P = g.variable("C", "i n", unn.SquaredNorm()), g.variable("P", "i n", unn.SquaredNorm())
    g.factor(Depends(C["i j"], P["i j"], u["j"]))
    g.factor(Depends(s["i"], C["i j"]))
    g.factor(Clique(P["i j"], each="i"))
    g.factor(Clique(P["i j"], each="j"))
    g.factor(Depends(s["i+1"], s["i"]) if variant == 0 else Clique(s["i"]))
    check_golden(g, f"sorting_n3_int_variant{variant}.npz")


@given(sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)), where=st.sampled_from([None, "i != j", "i < j"]))
@settings(max_examples=30)
def test_nodes_of_a_product_interact_where_one_of_its_terms_holds_both(sizes, where):
    n, m, d = sizes
    g = unn.FactorGraph("g", n=n, m=m, d=d)
    A = g.variable("A", "n | d", unn.SquaredNorm())
    B = g.variable("B", "m", unn.BinaryEntropy())
    g.factor(Multilinear(A["i x"], A["j x"], where=where or "i != j"))
    if where is None:
        g.factor(Multilinear(A["i x"], B["k"]))
    found = g.adjacency()
    expected = np.eye(n + m, dtype=bool)
    for i in range(n):
        for j in range(n):
            expected[i, j] |= i != j
    if where is None:
        expected[:n, n:] = expected[n:, :n] = True
    assert np.array_equal(found.dense().numpy(), expected)
    assert found.blocks == [("A", n), ("B", m)] and found.nodes("B").tolist() == list(range(n, n + m))


OPTIONS = [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}, {"stride": (1, 2), "padding": (2, 0)}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_nodes_of_a_convolution_interact_where_the_derivative_is_not_zero(options):
    g = unn.FactorGraph("g", c=2, row=6, col=5, o=4, u=3, v=2)
    X, H = g.variable("X", "c row col", unn.SquaredNorm()), g.variable("H", "o r s", unn.SquaredNorm())
    W = g.parameter("W", "o e u v", init="ones")
    f = g.factor(Conv2d(H, W, X, **options))
    shape = g.size_table.shape(g["H"], g.size_table.static)
    x = torch.ones(1, 2, 6, 5)
    jacobian = torch.autograd.functional.jacobian(lambda x: f.message("H", {"X": x, "W": g.W}, shape), x)
    expected = jacobian.reshape(int(np.prod(shape)), 60) != 0
    found = g.adjacency()
    dense = found.dense()[found.nodes("H").flatten()][:, found.nodes("X").flatten()]
    assert torch.equal(dense, expected)


def test_factors_that_know_no_better_let_all_of_their_nodes_interact():
    g = unn.FactorGraph("g", n=2, m=3)
    A, B, C = (g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("A", "n"), ("B", "m"), ("C", "n")))
    g.factor(Directed(torch.nn.Linear(2, 3), B, A))
    g.factor(Implicit(lambda a, c: (a * c).sum(1), A["i"], C["i"]))
    dense = g.adjacency().dense()
    assert dense[:5, :5].all() and dense[0, 5:].all() and not dense[2:5, 5:].any()


def test_the_matrix_is_symmetric_sorted_and_sees_itself():
    found = declare(8, 8, 3).adjacency()
    dense = found.dense()
    assert torch.equal(dense, dense.T) and dense.diagonal().all()
    key = found.rows * found.count + found.columns
    assert (np.diff(key) > 0).all()
    assert torch.equal(found.index(), dense.nonzero().T)
    assert found.shapes["label"] == () and found.nodes("label").ndim == 0


def test_sizes_of_dynamic_axes_are_given_and_checked():
    g = unn.FactorGraph("products")
    A, C = g.variable("A", "i k", unn.SquaredNorm()), g.variable("C", "i j k", unn.SquaredNorm())
    g.factor(Depends(C["i j k"], A["i k"]))
    assert g.adjacency(i=2, j=3, k=4).count == 8 + 24
    with pytest.raises(unn.DeclarationError, match=says("'A'", "'k'", "k=...")):
        g.adjacency(i=2, j=3)
    with pytest.raises(unn.DeclarationError, match=says("axis 'q'", "Known names")):
        g.adjacency(i=2, j=3, q=4)
    with pytest.raises(unn.DeclarationError, match=says("axis 'i'", "-1")):
        g.adjacency(i=-1, j=3, k=4)
    fixed = unn.FactorGraph("g", n=3)
    fixed.variable("A", "n", unn.SquaredNorm())
    with pytest.raises(unn.DeclarationError, match=says("axis 'n'", "size 3", "4")):
        fixed.adjacency(n=4)
    with pytest.raises(unn.UnnError, match=says("'B'")):
        fixed.adjacency().nodes("B")
