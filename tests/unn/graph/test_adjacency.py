"""Who interacts with whom: the reference masks of the structured-diffusion paper, brute force, symmetry,
sizes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says
from support.problem_graphs import convolutional
from support.structures import circuit, declarations, enumerated, factorisation, hierarchical, sorting, sudoku

import unn
from factors import Cardinality, Clique, Conv2d, Depends, Directed, Implicit, Multilinear

GOLDEN = Path(__file__).parents[2] / "golden"


# -- the masks of the paper ----------------------------------------------------------------------------------


def in_golden_order(adjacency, golden):
    """The matrix with its nodes in the order of the reference, by their names."""
    order = [adjacency.names().index(name) for name in golden["names"]]
    assert sorted(order) == list(range(adjacency.count))
    return adjacency.dense().numpy()[np.ix_(order, order)]


def check_golden(adjacency, file):
    golden = np.load(GOLDEN / file)
    assert np.array_equal(in_golden_order(adjacency, golden), golden["mask"].astype(bool))


PRODUCTS = pytest.mark.parametrize("products", [True, False])


def kind_of(products):
    return "int" if products else "noint"


@PRODUCTS
def test_a_product_of_matrices_has_the_mask_of_the_paper(products):
    check_golden(factorisation(3, 3, 2, products).adjacency(), f"bcmf_m3_n3_k2_{kind_of(products)}.npz")


@PRODUCTS
def test_a_product_of_unknown_rank_has_the_mask_of_the_paper(products):
    check_golden(hierarchical(3, 3, 2, products).adjacency(one=1), f"hbcmf_m3_n3_k2_{kind_of(products)}.npz")


@PRODUCTS
def test_the_inverse_of_a_matrix_has_the_mask_of_the_paper(products):
    check_golden(factorisation(5, 5, 5, products).adjacency(), f"matinv_5_{kind_of(products)}.npz")


@pytest.mark.parametrize(("file", "block"), [("sudoku_block2x2.npz", 2), ("sudoku_block3x3.npz", 3)])
@pytest.mark.parametrize("kind", [Clique, Cardinality])
def test_sudoku_has_the_mask_of_the_paper(file, block, kind):
    check_golden(sudoku(block, block, kind).adjacency(), file)


@pytest.mark.parametrize(("variant", "outputs"), [(0, "chain"), (1, "clique"), (2, "nothing")])
def test_sorting_has_the_mask_of_the_paper(variant, outputs):
    check_golden(sorting(3, outputs=outputs).adjacency(i=3), f"sorting_n3_int_variant{variant}.npz")


def test_sorting_without_products_has_the_mask_of_the_paper():
    check_golden(sorting(3, products=False).adjacency(i=3), "sorting_n3_noint_variant0.npz")


def test_sorting_in_which_only_children_see_their_parents_has_the_mask_of_the_paper():
    check_golden(sorting(3).adjacency(i=3).directed(), "sorting_n3_int_variant4.npz")


@pytest.mark.parametrize("gates", [True, False])
def test_a_boolean_circuit_has_the_mask_of_the_paper(gates):
    check_golden(circuit(2, gates).adjacency(), f"boolean_depth2_{kind_of(gates)}.npz")


# -- any declaration -----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(g=declarations())
@settings(max_examples=300, deadline=None)
def test_nodes_interact_where_some_values_of_all_letters_bring_them_together(g):
    adjacency = g.adjacency()
    assert torch.equal(adjacency.dense(), enumerated(g))
    if adjacency.relations:
        assert torch.equal(adjacency.directed().dense(), enumerated(g, directed=True))


def test_a_condition_holds_also_where_a_third_array_has_its_letter():
    g = unn.FactorGraph("g", n=3)
    A, B, C = (g.variable(name, "n", unn.SquaredNorm()) for name in "ABC")
    g.factor(Multilinear(A["i"], B["j"], C["k"], where="i < j"))
    adjacency = g.adjacency()
    assert torch.equal(adjacency.dense(), enumerated(g))
    # no term has the last of A, nor the first of B
    assert adjacency.dense()[adjacency.nodes("A")].sum(1).tolist() == [1 + 2 + 3, 1 + 1 + 3, 1]
    assert adjacency.dense()[adjacency.nodes("B")].sum(1).tolist() == [1, 1 + 1 + 3, 1 + 2 + 3]


def test_nobody_interacts_where_no_value_of_a_letter_is_inside_of_all_arrays():
    g = unn.FactorGraph("g", n=3, one=1)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n | one", unn.SquaredNorm())
    g.factor(Depends(X["i"], Y["j s+1"]))
    g.factor(Clique(X["i"], Y["i s+1"]))
    assert torch.equal(g.adjacency().dense(), torch.eye(6, dtype=torch.bool))


@pytest.mark.parametrize("kind", [Depends, Clique])
def test_a_letter_that_is_shifted_cannot_split_an_axis_as_well(kind):
    g = unn.FactorGraph("g", n=3, m=6, j=2)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", unn.SquaredNorm())
    for pattern in ("i-1", "i+1"):
        with pytest.raises(unn.DeclarationError, match=says("'both'", "'i'", "split")):
            g.factor(kind(Y["(i j)"], X[pattern], X["i"], name="both"))


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    where=st.sampled_from([None, "i != j", "i < j"]),
)
@settings(max_examples=30, deadline=None)
def test_nodes_of_a_product_interact_where_one_of_its_terms_holds_both(sizes, where):
    n, m, d = sizes
    g = unn.FactorGraph("g", n=n, m=m, d=d)
    A = g.variable("A", "n | d", unn.SquaredNorm())
    B = g.variable("B", "m", unn.BinaryEntropy())
    g.factor(Multilinear(A["i x"], A["j x"], where=where or "i != j"))
    if where is None:
        g.factor(Multilinear(A["i x"], B["k"]))
    adjacency = g.adjacency()
    expected = np.eye(n + m, dtype=bool)
    for i in range(n):
        for j in range(n):
            expected[i, j] |= i != j
    if where is None:
        expected[:n, n:] = expected[n:, :n] = True
    assert np.array_equal(adjacency.dense().numpy(), expected)
    assert adjacency.blocks == [("A", n), ("B", m)] and adjacency.nodes("B").tolist() == list(range(n, n + m))


OPTIONS = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"groups": 2},
    {"stride": (1, 2), "padding": (2, 0)},
]


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
    adjacency = g.adjacency()
    dense = adjacency.dense()[adjacency.nodes("H").flatten()][:, adjacency.nodes("X").flatten()]
    assert torch.equal(dense, expected)


def test_factors_that_know_no_better_let_all_of_their_nodes_interact():
    g = unn.FactorGraph("g", n=2, m=3)
    A, B, C = (
        g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("A", "n"), ("B", "m"), ("C", "n"))
    )
    g.factor(Directed(torch.nn.Linear(2, 3), B, A))
    g.factor(Implicit(lambda a, c: (a * c).sum(1), A["i"], C["i"]))
    dense = g.adjacency().dense()
    assert dense[:5, :5].all() and dense[0, 5:].all() and not dense[2:5, 5:].any()


def test_the_matrix_is_symmetric_sorted_and_sees_itself():
    adjacency = convolutional(8, 8, 3).adjacency()
    dense = adjacency.dense()
    assert torch.equal(dense, dense.T) and dense.diagonal().all()
    key = adjacency.rows * adjacency.count + adjacency.columns
    assert (np.diff(key) > 0).all()
    assert torch.equal(adjacency.index(), dense.nonzero().T)
    assert adjacency.shapes["label"] == () and adjacency.nodes("label").ndim == 0


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


# -- large graphs and odd sizes ------------------------------------------------------------------------------


def test_more_than_a_million_entries_are_all_there():
    m, n, k = 70, 70, 32
    adjacency = factorisation(m, n, k).adjacency()
    nodes = k * m + k * n + m * n + k * m * n
    assert adjacency.count == nodes
    # each product meets one entry of A, one of R and one of E
    assert len(adjacency.rows) == nodes + 6 * k * m * n > 1_000_000
    counts = np.diff(adjacency.matrix.indptr)
    expected = {"A": 1 + n, "R": 1 + m, "E": 1 + k, "C": 4}
    for name, count in expected.items():
        assert (counts[adjacency.nodes(name).flatten()] == count).all()


@pytest.mark.parametrize("n", [0, 1])
def test_graphs_of_no_node_and_of_one_have_no_neighbours(n):
    g = unn.FactorGraph("g", n=n)
    X = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Clique(X["i"]))
    g.factor(Depends(X["i+1"], X["i"]))
    adjacency = g.adjacency()
    assert (adjacency.count, len(adjacency.rows), adjacency.index().shape, adjacency.dense().shape) == (
        n,
        n,
        (2, n),
        (n, n),
    )
    for other in (adjacency.directed(), adjacency.random(torch.Generator()), adjacency.permuted(range(n))):
        assert other.same_entries(adjacency)
    assert adjacency.names() == ["X[0]"][:n]


def test_a_graph_without_variables_has_no_nodes():
    adjacency = unn.FactorGraph("nothing").adjacency()
    assert (adjacency.count, adjacency.names(), adjacency.blocks) == (0, [], [])


# -- names, orders and ablations -----------------------------------------------------------------------------


def test_nodes_are_named_by_their_place_in_the_order_of_the_blocks():
    g = unn.FactorGraph("g", n=2, m=1, d=3)
    g.variable("C", "n m n", unn.SquaredNorm())
    g.variable("X", "n | d", unn.Entropy())
    g.variable("label", "d", unn.Entropy())
    adjacency = g.adjacency()
    assert adjacency.names() == ["C[0,0,0]", "C[0,0,1]", "C[1,0,0]", "C[1,0,1]", "X[0]", "X[1]", "label"]
    assert adjacency.names()[adjacency.nodes("C")[1, 0, 0]] == "C[1,0,0]"
    assert adjacency.names()[adjacency.nodes("label")] == "label"


@given(g=declarations(), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_renamed_matrix_has_its_entries_at_the_new_numbers(g, seed):
    adjacency = g.adjacency()
    order = torch.randperm(adjacency.count, generator=torch.Generator().manual_seed(seed))
    moved = adjacency.permuted(order)
    assert torch.equal(moved.dense()[order][:, order], adjacency.dense())
    assert moved.permuted(order.argsort()).same_entries(adjacency)
    assert moved.same_entries(adjacency) == torch.equal(moved.dense(), adjacency.dense())
    assert moved.shapes == adjacency.shapes and moved.names() == adjacency.names()


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], [[0, 1, 2]]], ids=str)
def test_orders_that_are_no_permutation_are_refused(order):
    g = unn.FactorGraph("g", n=3)
    g.variable("X", "n", unn.SquaredNorm())
    with pytest.raises(unn.ObservationError, match=says("permutation", "3 nodes")):
        g.adjacency().permuted(order)


def test_only_the_arrows_of_dependencies_are_kept_in_one_direction():
    g = unn.FactorGraph("g", n=2)
    A, B, C = (g.variable(name, "n", unn.SquaredNorm()) for name in "ABC")
    g.factor(Depends(B["i"], A["i"]))
    g.factor(Clique(B["i"], C["i"], each="i"))
    one_way = g.adjacency().directed()
    names = np.array(one_way.names())
    seen = {str(name): sorted(names[row]) for name, row in zip(names, one_way.dense().numpy(), strict=True)}
    assert seen == {
        f"{name}[{k}]": [f"{x}[{k}]" for x in sees]
        for name, sees in (("A", "A"), ("B", "ABC"), ("C", "BC"))
        for k in (0, 1)
    }
    # what a clique holds together sees one another whichever depends on which
    g.factor(Clique(A["i"], B["i"]))
    assert torch.equal(g.adjacency().directed().dense(), g.adjacency().dense())


def test_without_relations_there_is_no_direction():
    with pytest.raises(unn.DeclarationError, match=says("direction")):
        sudoku(2, 2).adjacency().random(torch.Generator()).directed()


@given(g=declarations(), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_random_entries_are_as_many_symmetric_and_on_the_diagonal(g, seed):
    adjacency = g.adjacency()
    drawn = adjacency.random(torch.Generator().manual_seed(seed))
    assert len(drawn.rows) == len(adjacency.rows) and drawn.shapes == adjacency.shapes
    assert torch.equal(drawn.dense(), drawn.dense().T) and drawn.dense().diagonal().all()
    assert drawn.same_entries(adjacency.random(torch.Generator().manual_seed(seed)))


def test_random_entries_are_drawn_from_all_pairs_alike():
    adjacency = sorting(3).adjacency(i=3)
    generator = torch.Generator().manual_seed(0)
    shares = sum(adjacency.random(generator).dense().double() for _ in range(2000)) / 2000
    n = adjacency.count
    density = (len(adjacency.rows) - n) / (n * (n - 1))
    off = shares[~torch.eye(n, dtype=torch.bool)]
    assert (off - density).abs().max() < 6 * (density * (1 - density) / 2000) ** 0.5
