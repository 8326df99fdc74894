"""Which indices are exchangeable, which embeddings may be shared along them, and how far information has to
travel."""

import warnings
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import problem_graphs
from support.helpers import says
from support.structures import circuit, declarations, factorisation, hierarchical, sorting, sudoku

import unn
from factors import Clique, Depends, Multilinear
from unn.errors import ExchangeabilityWarning
from unn.graph.adjacency import Adjacency
from unn.graph.diameter import longest_shortest_path
from unn.graph.factor import Factor
from unn.graph.interactions import listed_relation
from unn.graph.symmetries import assumptions, embedding_indices

GOLDEN = Path(__file__).parents[2] / "golden"


def named(symmetries):
    return {symmetry.name: symmetry.size for symmetry in symmetries}


def vectors(*axes, **sizes):
    """A graph of variables X, Y, ... with these axes."""
    g = unn.FactorGraph("g", **sizes)
    return g, *(g.variable(name, text, unn.SquaredNorm()) for name, text in zip("XYZ", axes, strict=False))


# -- what is reported ----------------------------------------------------------------------------------------

FACTORISATION = {"A.k R.k C.k": 2, "A.i E.i C.i": 3, "R.j E.j C.j": 4}
HIERARCHICAL = {"A.k R.k C.k D.k": 2, "A.i E.i C.i": 3, "R.j E.j C.j": 4}
BLOCKS = {"X.row[0]": 3, "X.row[1]": 2, "X.col[0]": 2, "X.col[1]": 3}

EXPECTED = {
    "factorisation": (lambda: factorisation(3, 4, 2), {}, FACTORISATION),
    "factorisation without products": (
        lambda: factorisation(3, 4, 2, False),
        {},
        {"A.k R.k": 2, "A.i E.i": 3, "R.j E.j": 4},
    ),
    "unknown rank": (lambda: hierarchical(3, 4, 2), {"one": 1}, HIERARCHICAL),
    "unknown rank, ordered": (
        lambda: hierarchical(3, 4, 2, ordered="k"),
        {"one": 1},
        {"A.i E.i C.i": 3, "R.j E.j C.j": 4},
    ),
    "sorting": (lambda: sorting(4), {"i": 4}, {"u.n P.n C.n": 4}),
    "sorting without products": (lambda: sorting(4, products=False), {"i": 4}, {"u.n P.n": 4}),
    "sorting without a chain": (
        lambda: sorting(4, outputs="clique"),
        {"i": 4},
        {"u.n P.n C.n": 4, "s.n P.i C.i": 4},
    ),
    "sudoku": (lambda: sudoku(2, 3), {}, BLOCKS),
    "circuit": (lambda: circuit(3), {}, {"L0.n0[1]": 2}),
    "circuit without gates": (lambda: circuit(3, gates=False), {}, {"L0.n0": 8}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_exchangeable_indices_are_found(name):
    make, sizes, expected = EXPECTED[name]
    g = make()
    symmetries = g.symmetries(**sizes)
    assert named(symmetries) == expected
    adjacency = g.adjacency(**sizes)
    for symmetry in symmetries:
        check_unchanged(symmetry, adjacency, seed=0)


def check_unchanged(symmetry, adjacency, seed):
    """Any permutation of its values permutes the nodes, within their variables, and leaves the matrix as it
    is."""
    order = torch.randperm(symmetry.size, generator=torch.Generator().manual_seed(seed))
    moved = symmetry.permutation(order)
    assert torch.equal(moved.sort().values, torch.arange(adjacency.count))
    for name in adjacency.shapes:
        nodes = adjacency.nodes(name).flatten()
        assert torch.equal(moved[nodes].sort().values, nodes)
    dense = adjacency.dense()
    assert torch.equal(dense[moved][:, moved], dense)
    assert adjacency.permuted(moved).same_entries(adjacency)


@given(g=declarations(), seed=st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_whatever_is_reported_of_any_declaration_leaves_its_adjacency_unchanged(g, seed):
    adjacency = g.adjacency()
    for symmetry in g.symmetries():
        assert symmetry.size > 1
        check_unchanged(symmetry, adjacency, seed)


def test_a_permutation_of_values_moves_every_array_that_has_them():
    g = factorisation(3, 4, 2)
    adjacency = g.adjacency()
    rows = next(symmetry for symmetry in g.symmetries() if symmetry.name == "A.i E.i C.i")
    moved = rows.permutation([1, 2, 0])
    for name, shape in adjacency.shapes.items():
        axis = {"A": 1, "E": 1, "C": 2}.get(name)
        nodes = adjacency.nodes(name)
        expected = nodes if axis is None else nodes.roll(-1, axis)
        assert torch.equal(moved[nodes], expected), (name, shape)
    assert repr(rows) == "Symmetry('A.i E.i C.i', 3 values)"


def test_orders_of_values_that_are_no_permutation_are_refused():
    symmetry = factorisation(3, 4, 2).symmetries()[0]
    for order in ([0], [0, 0], [1, 2], [0, 1, 2]):
        with pytest.raises(unn.ObservationError, match=says("'A.k R.k C.k'", "2 values")):
            symmetry.permutation(order)


# -- what is not reported ------------------------------------------------------------------------------------


def test_axes_that_nothing_tells_apart_are_exchangeable():
    g, X, Y = vectors("n", "n m | d", n=3, m=4, d=2)
    assert named(g.symmetries()) == {"X.n": 3, "Y.n": 3, "Y.m": 4}
    g.factor(Depends(X["i"], Y["i j d"]))
    assert named(g.symmetries()) == {"X.n Y.n": 3, "Y.m": 4}


def test_shifted_letters_are_not_exchangeable_even_where_the_adjacency_is_symmetric():
    g, X, Y = vectors("n", "n m", n=2, m=3)
    g.factor(Clique(X["i+1"], X["i"], each="i"))
    g.factor(Depends(Y["i j"], X["i"]))
    # two nodes that see one another could be exchanged, but one of them is the first
    assert g.adjacency().dense()[:2, :2].all()
    assert named(g.symmetries()) == {"Y.m": 3}


@pytest.mark.parametrize("kind", ["parameter", "constant"])
def test_letters_along_parameters_and_constants_are_not_exchangeable(kind):
    g, X, Y = vectors("n m", "n", n=3, m=4)
    weights = g.parameter("W", "n") if kind == "parameter" else g.constant("W", "n", torch.ones(3))
    g.factor(Multilinear(X["i j"], Y["k"]))
    assert named(g.symmetries()) == {"X.n": 3, "X.m": 4, "Y.n": 3}
    g.factor(Multilinear(weights["i"], X["i j"]))
    assert named(g.symmetries()) == {"X.m": 4, "Y.n": 3}


@pytest.mark.parametrize(("where", "expected"), [("i != j", {"X.n": 3}), ("i < j", {}), ("i >= j", {})])
def test_letters_that_are_compared_by_size_are_not_exchangeable(where, expected):
    g, X = vectors("n", n=3)
    g.factor(Multilinear(X["i"], X["j"], where=where))
    assert named(g.symmetries()) == expected


@pytest.mark.parametrize("kind", [Depends, Clique])
def test_letters_that_are_declared_ordered_are_not_exchangeable(kind):
    for ordered, expected in (
        ("", {"X.n Y.n": 3, "Y.m": 4}),
        ("i", {"Y.m": 4}),
        ("j", {"X.n Y.n": 3}),
        ("i j", {}),
    ):
        g, X, Y = vectors("n", "n m", n=3, m=4)
        g.factor(kind(X["i"], Y["i j"], ordered=ordered))
        assert named(g.symmetries()) == expected


def test_what_is_told_apart_in_one_factor_is_told_apart_wherever_it_is_tied():
    g, X, Y, Z = vectors("n", "n", "n", n=3)
    g.factor(Depends(X["i"], Y["i"]))
    g.factor(Depends(Y["j"], Z["j"]))
    assert named(g.symmetries()) == {"X.n Y.n Z.n": 3}
    g.factor(Clique(Z["t+1"], Z["t"], each="t"))
    assert g.symmetries() == []


def test_a_letter_in_two_axes_of_one_variable_moves_both():
    g, X = vectors("n m", n=4, m=4)
    g.factor(Clique(X["i i"]))
    assert named(g.symmetries()) == {"X.n X.m": 4}


@pytest.mark.parametrize("others", ["(b a)", "(c d e)"])
@pytest.mark.parametrize("first", [True, False])
def test_axes_that_factors_split_in_two_ways_are_not_exchangeable(others, first):
    # rows of a table of 4 x 2 and of one of 2 x 4, or 2 x 2 x 2, over the same eight nodes
    g, X = vectors("n", n=8, a=4, b=2, c=2, d=2, e=2)
    one, other = Clique(X["(a b)"], each="a"), Clique(X[others], each=others.strip("()").split()[0])
    for factor in (one, other) if first else (other, one):
        g.factor(factor)
    # in the adjacency of all pairs the others do not show
    g.factor(Multilinear(X["i"], X["j"]))
    assert named(g.symmetries()) == {}


def test_an_ordered_part_of_an_axis_that_another_factor_splits_otherwise_stays_in_place():
    g, X = vectors("n", n=6, a=2, b=3)
    g.factor(Clique(X["(a b)"], each="a"))
    g.factor(Clique(X["(b a)"], each="a", ordered="a"))
    parity = torch.arange(6) % 2
    for symmetry in g.symmetries():
        moved = symmetry.permutation(torch.arange(symmetry.size).roll(1))
        assert torch.equal(parity[moved], parity), symmetry


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 3), (0, 3)], ids=str)
def test_what_a_factor_claims_is_verified(pair):
    class Pair(Factor):
        def interactions(self, shapes):
            return [listed_relation("X", np.array(pair[:1]), "X", np.array(pair[1:]))]

        def ordered_letters(self):
            return set()

    g, X = vectors("n m", n=4, m=1)
    assert named(g.symmetries()) == {"X.n": 4}
    g.factor(Pair(X["i j"]))
    assert g.symmetries() == []


@pytest.mark.parametrize("n", [0, 1])
def test_an_axis_of_no_value_or_one_has_nothing_to_exchange(n):
    g, X, Y = vectors("n", "n m", n=n, m=3)
    g.factor(Depends(Y["i j"], X["i"]))
    assert "X.n Y.n" not in named(g.symmetries())


def test_graphs_without_nodes_have_no_symmetries():
    assert unn.FactorGraph("nothing").symmetries() == []


def test_sizes_of_symmetries_are_given_and_checked():
    g, _ = vectors("n q", n=3)
    with pytest.raises(unn.DeclarationError, match=says("'X'", "'q'")):
        g.symmetries()
    assert named(g.symmetries(q=2)) == {"X.n": 3, "X.q": 2}
    with pytest.raises(unn.DeclarationError, match=says("axis 'p'", "Known names")):
        g.symmetries(p=2)


# -- what sharing assumes ------------------------------------------------------------------------------------


def product(ordered=None, shared=None, embedding="exchangeable", **sizes):
    """A denoiser of y = W x, declared by what depends on what, and a batch of zeros."""
    g = unn.FactorGraph("product", **({"n": 3, "m": 4} if not sizes else {}))
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "m", unn.SquaredNorm())
    g.factor(Depends(y["j"], x["i"], ordered=ordered, name="product"))
    net = unn.Denoiser(g, width=8, heads=2, depth=1, shared=shared, embedding=embedding)

    def estimate(**sizes):
        frame = net.frame(**sizes)
        return net(
            torch.zeros(1, frame.numbers),
            torch.zeros(1),
            torch.zeros(1, frame.nodes, dtype=torch.bool),
            frame,
        )

    return estimate


def test_sharing_along_a_matrix_product_that_states_nothing_is_warned_of_once_with_the_remedy():
    estimate = product()
    words = [
        "'x.n'",
        "'y.m'",
        "'product'",
        "y[j] depends on x[i]",
        'ordered="i j"',
        'ordered=""',
        "shared=[...]",
        'embedding="array"',
    ]
    with pytest.warns(ExchangeabilityWarning, match=says(*words)) as caught:
        estimate()
    assert len(caught) == 1
    # warnings are errors here
    estimate()


@pytest.mark.parametrize(
    "stated",
    [
        {"ordered": ""},
        {"ordered": "i"},
        {"ordered": "j"},
        {"ordered": "i j"},
        {"shared": ["x.n"]},
        {"shared": []},
        {"embedding": "array"},
    ],
    ids=str,
)
def test_sharing_that_is_stated_is_not_warned_of(stated):
    product(**stated)()


def test_sharing_is_warned_of_at_the_first_size_at_which_there_is_something_to_share():
    estimate = product(dynamic=True)
    estimate(n=1, m=4)
    estimate(n=3, m=1)
    with pytest.warns(ExchangeabilityWarning, match=says("'x.n'", "'y.m'")):
        estimate(n=3, m=4)


@pytest.mark.parametrize(
    ("child", "parents"),
    [
        ("n", ["n"]),
        ("", ["n"]),
        ("n", [""]),
        ("n m", ["n k", "k m"]),
        ("n m", ["n m k"]),
        ("n m", ["n"]),
        ("n", ["n m"]),
    ],
    ids=str,
)
def test_plates_sums_and_products_of_parents_assume_nothing(child, parents):
    g = unn.FactorGraph("g", n=3, m=4, k=2)
    references = [
        g.variable(f"X{k}", axes, unn.SquaredNorm())[axes] for k, axes in enumerate([child, *parents])
    ]
    g.factor(Depends(*references))
    assert g.symmetries() and assumptions(g, g.symmetries()) == []


FACTORS = {"i": 3, "j": 4}
PACKAGED = {
    "factorisation": (lambda: problem_graphs.factorisation("binary", True), {**FACTORS, "k": 2}),
    "factorisation without products": (
        lambda: problem_graphs.factorisation("binary", False),
        {**FACTORS, "k": 2},
    ),
    "unknown rank": (lambda: problem_graphs.factorisation("hierarchical", True, 3), FACTORS),
    "unknown rank without products": (
        lambda: problem_graphs.factorisation("hierarchical", False, 3),
        FACTORS,
    ),
    "inversion": (lambda: problem_graphs.factorisation("inversion", True), {"i": 3, "j": 3, "k": 3}),
    "sudoku": (lambda: problem_graphs.sudoku(2, 3), {}),
    "sorting": (lambda: problem_graphs.sorting(4, True, "chain"), {}),
    "sorting without products": (lambda: problem_graphs.sorting(4, False, "chain"), {}),
    "circuit": (lambda: problem_graphs.circuit(3, True), {}),
    "circuit without gates": (lambda: problem_graphs.circuit(3, False), {}),
}


@pytest.mark.parametrize("name", PACKAGED)
def test_the_problems_of_the_package_state_what_they_share(name):
    make, sizes = PACKAGED[name]
    g = make()
    assert assumptions(g, g.symmetries(**sizes)) == []


# -- sharing embeddings --------------------------------------------------------------------------------------


def share(numbers):
    """Which pairs of nodes have one embedding, whatever its number."""
    return numbers[:, None] == numbers[None, :]


def golden_numbers(adjacency, file):
    """The reference's numbers in our order of nodes."""
    golden = np.load(GOLDEN / file)
    numbers = dict(zip(golden["names"].tolist(), golden["embed_id_EE"].tolist(), strict=True))
    return torch.tensor([numbers[name] for name in adjacency.names()])


def without(symmetry, *variables):
    """The same index, except in some variables."""
    return replace(symmetry, parts=tuple(part for part in symmetry.parts if part.variable not in variables))


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize(("file", "size"), [("bcmf_m3_n3_k2", (3, 3, 2)), ("matinv_5", (5, 5, 5))])
def test_embeddings_of_a_factorisation_are_shared_as_in_the_paper(products, file, size):
    g = factorisation(*size, products)
    adjacency = g.adjacency()
    expected = golden_numbers(adjacency, f"{file}_{'int' if products else 'noint'}.npz")
    numbers = embedding_indices(adjacency, g.symmetries())
    assert torch.equal(share(numbers), share(expected))
    assert sorted(numbers.unique().tolist()) == list(range(len(adjacency.blocks)))


def test_embeddings_of_a_factorisation_of_unknown_rank_are_shared_as_in_the_paper():
    g = hierarchical(3, 3, 2, products=False)
    adjacency = g.adjacency(one=1)
    expected = golden_numbers(adjacency, "hbcmf_m3_n3_k2_noint.npz")
    assert torch.equal(share(embedding_indices(adjacency, g.symmetries(one=1))), share(expected))
    g = hierarchical(3, 3, 2)
    adjacency = g.adjacency(one=1)
    # the paper lets only D tell the ranks apart
    shared = [without(symmetry, "D") for symmetry in g.symmetries(one=1)]
    assert torch.equal(
        share(embedding_indices(adjacency, shared)),
        share(golden_numbers(adjacency, "hbcmf_m3_n3_k2_int.npz")),
    )


@pytest.mark.parametrize("block", [2, 3])
def test_embeddings_of_sudoku_are_shared_within_a_row_of_a_block_as_in_the_paper(block):
    g = sudoku(block, block)
    adjacency = g.adjacency()
    shared = [symmetry for symmetry in g.symmetries() if symmetry.name == "X.col[1]"]
    assert torch.equal(
        share(embedding_indices(adjacency, shared)),
        share(golden_numbers(adjacency, f"sudoku_block{block}x{block}.npz")),
    )


@pytest.mark.parametrize("file", ["int_variant0", "int_variant1", "int_variant2", "noint_variant0"])
def test_embeddings_of_sorting_are_never_shared_where_those_of_the_paper_are_not(file):
    g = sorting(3, products=file.startswith("int"))
    adjacency = g.adjacency(i=3)
    expected = golden_numbers(adjacency, f"sorting_n3_{file}.npz")
    indices = embedding_indices(adjacency, g.symmetries(i=3))
    assert not (share(indices) & ~share(expected)).any()
    # the paper lets only s tell the ranks apart
    free = sorting(3, products=file.startswith("int"), outputs="nothing")
    shared = [without(symmetry, "s") for symmetry in free.symmetries(i=3)]
    assert torch.equal(share(embedding_indices(adjacency, shared)), share(expected))


@given(g=declarations(), seed=st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_nodes_share_an_embedding_where_a_shared_index_takes_one_to_the_other(g, seed):
    adjacency = g.adjacency()
    generator = torch.Generator().manual_seed(seed)
    shared = [symmetry for symmetry in g.symmetries() if torch.rand((), generator=generator) < 0.7]
    numbers = embedding_indices(adjacency, shared)
    assert torch.equal(numbers.unique(), torch.arange(len(numbers.unique())))
    together = torch.eye(adjacency.count, dtype=torch.bool)
    for symmetry in shared:
        for value in range(1, symmetry.size):
            order = list(range(symmetry.size))
            order[0], order[value] = value, 0
            moved = symmetry.permutation(order)
            assert torch.equal(numbers[moved], numbers)
            together[torch.arange(adjacency.count), moved] = True
    places = [(part.variable, part.axis) for symmetry in shared for part in symmetry.parts]
    variables = [variable for symmetry in shared for variable in {part.variable for part in symmetry.parts}]
    if len(places) == len(set(places)) == len(variables):
        # and only there, unless an index moves two axes of one variable
        assert len(numbers.unique()) == components(together)


def components(matrix):
    return networkx.number_connected_components(networkx.from_numpy_array(matrix.numpy()))


def test_without_shared_indices_every_node_has_an_embedding_of_its_own():
    adjacency = sudoku(2, 2).adjacency()
    assert torch.equal(embedding_indices(adjacency, []), torch.arange(16))
    assert embedding_indices(unn.FactorGraph("nothing").adjacency(), []).shape == (0,)


# -- how far information travels -----------------------------------------------------------------------------


def of_edges(n, edges):
    """The adjacency of an undirected graph."""
    matrix = np.eye(n, dtype=bool)
    for i, j in edges:
        matrix[i, j] = matrix[j, i] = True
    rows, columns = matrix.nonzero()
    return Adjacency(rows.astype(np.int64), columns.astype(np.int64), {"node": (n,)})


def largest_eccentricity(graph):
    parts = [graph.subgraph(part) for part in networkx.connected_components(graph)]
    return max((max(networkx.eccentricity(part).values()) for part in parts), default=0)


@given(
    n=st.integers(0, 40), degree=st.sampled_from([0.0, 0.5, 1.0, 1.3, 2.0, 4.0]), seed=st.integers(0, 10_000)
)
@settings(max_examples=150, deadline=None)
def test_the_longest_shortest_path_is_the_largest_eccentricity_of_a_connected_part(n, degree, seed):
    graph = networkx.fast_gnp_random_graph(n, min(1.0, degree / max(1, n)), seed=seed)
    assert longest_shortest_path(of_edges(n, graph.edges)) == largest_eccentricity(graph)


GRAPHS = {
    "path": (networkx.path_graph(50), 49),
    "even ring": (networkx.cycle_graph(30), 15),
    "odd ring": (networkx.cycle_graph(31), 15),
    "star": (networkx.star_graph(20), 2),
    "complete": (networkx.complete_graph(12), 1),
    "grid": (networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(6, 9)), 13),
    "no edges": (networkx.empty_graph(7), 0),
    "one node": (networkx.empty_graph(1), 0),
    "no node": (networkx.empty_graph(0), 0),
    "a long path and a large star": (
        networkx.disjoint_union(networkx.path_graph(8), networkx.star_graph(30)),
        7,
    ),
    "two rings and a node": (
        networkx.disjoint_union_all(
            [networkx.cycle_graph(9), networkx.cycle_graph(12), networkx.empty_graph(1)]
        ),
        6,
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_longest_shortest_path_of_known_graphs(name):
    graph, expected = GRAPHS[name]
    assert longest_shortest_path(of_edges(len(graph), graph.edges)) == expected


def test_the_depth_of_declared_graphs():
    assert sudoku(3, 3).depth() == 2
    assert circuit(5).depth() == 10 and circuit(5, gates=False).depth() == 2
    # from an entry of A through products of other rows and columns to one of R
    assert factorisation(3, 4, 2).depth() == 6 and factorisation(3, 4, 2, products=False).depth() == 4
    assert sorting(4).depth(i=4) == 4
    chain, X = vectors("n")
    chain.factor(Depends(X["t+1"], X["t"]))
    assert [chain.depth(n=n) for n in (0, 1, 2, 10, 3000)] == [0, 0, 1, 9, 2999]
    with pytest.raises(unn.DeclarationError, match=says("'X'", "'n'")):
        chain.depth()


def test_information_travels_as_far_in_a_matrix_that_only_children_see():
    adjacency = circuit(4).adjacency()
    assert longest_shortest_path(adjacency.directed()) == longest_shortest_path(adjacency) == 8


@pytest.mark.parametrize("ordered", [None, "", "i j"])
def test_letters_of_a_child_that_run_over_the_same_values_are_assumed_exchangeable_unless_stated(ordered):
    g, X, Y = vectors("n n", "n", n=5)
    g.factor(Depends(X["i j"], Y["i"], Y["j"], ordered=ordered))
    denoiser = unn.Denoiser(g, width=8, depth=1, heads=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shared = denoiser.shared_symmetries(denoiser.frames.at())
    stated = [str(w.message) for w in caught if issubclass(w.category, ExchangeabilityWarning)]
    assert len(shared) == (ordered != "i j")
    assert len(stated) == (ordered is None)
    assert all("'i' and 'j'" in text and 'ordered="i j"' in text for text in stated)
