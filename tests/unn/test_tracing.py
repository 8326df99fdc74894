"""Programs that are traced: their graphs, the patterns found in them, draws from them, and what they must not do."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import says
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Clique, Depends
from unn.tracing import Bernoulli, Categorical, Listed, Normal, Permutation, Uniform
from unn.tracing.recognise import recognise

GOLDEN = Path(__file__).parents[1] / "golden"


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def formulas(traced):
    return [str(factor) for factor in traced.graph.factors.values()]


def interacting(graph):
    """The pairs of names of different nodes that see each other."""
    found = graph.adjacency()
    names = found.names()
    return {frozenset((names[i], names[j])) for i, j in found.index().T.tolist() if i != j}


def check_edges(traced):
    """The adjacency of the graph has the edges of the run and no others, but for cliques."""
    directed = {frozenset(edge) for edge in traced.edges}
    assert len(directed) == len(traced.edges)
    kept = [factor for factor in traced.graph.factors.values() if isinstance(factor, Depends) or (isinstance(factor, Listed) and factor.directed)]
    if len(kept) == len(traced.graph.factors):
        assert interacting(traced.graph) == directed
    else:
        assert directed <= interacting(traced.graph)


def check_golden(graph, file):
    golden = np.load(GOLDEN / file)
    found = graph.adjacency()
    names = [name.removesuffix("[0]") if name == "K[0]" else str(name) for name in golden["names"]]
    order = [found.names().index(name) for name in names]
    assert len(order) == found.count
    assert np.array_equal(found.dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool))


# -- programs of the paper -------------------------------------------------------------------------------------------------


def product_of_matrices(t, m=3, n=3, k=2, columns_first=False):
    A = t.sample("A", Uniform(0, 1), shape=(m, k))
    R = t.sample("R", Bernoulli(0.3), shape=(k, n))
    C, E = t.empty("C", (m, n, k)), t.empty("E", (m, n))
    places = [(i, j) for j in range(n) for i in range(m)] if columns_first else list(np.ndindex(m, n))
    for i, j in places:
        for l in range(k):
            C[i, j, l] = t.deterministic(A[i, l] * R[l, j])
        E[i, j] = t.deterministic(sum(C[i, j, l] for l in range(k)))


def hand_declared(m=3, n=3, k=2):
    g = unn.FactorGraph("product", i=m, j=n, k=k)
    A, R = g.variable("A", "i k", unn.SquaredNorm()), g.variable("R", "k j", unn.BinaryEntropy())
    C, E = g.variable("C", "i j k", unn.SquaredNorm()), g.variable("E", "i j", unn.SquaredNorm())
    g.factor(Depends(C["i j k"], A["i k"], R["k j"]))
    g.factor(Depends(E["i j"], C["i j k"]))
    return g


def places_of(graph):
    return {frozenset((part.variable, part.axis, part.before, part.after) for part in symmetry.parts) for symmetry in graph.symmetries()}


@pytest.mark.parametrize("sizes", [(3, 3, 2), (2, 2, 2), (4, 3, 1), (5, 2, 3)])
def test_the_product_of_matrices_gives_the_hand_declared_graph(sizes):
    traced, hand = unn.trace(product_of_matrices, *sizes), hand_declared(*sizes)
    assert formulas(traced) == [str(factor) for factor in hand.factors.values()] or 1 in sizes
    for name, variable in hand.variables.items():
        assert type(traced.graph.variables[name].regularizer) is type(variable.regularizer)
        assert traced.graph.variables[name].axes == variable.axes or 1 in sizes
    assert interacting(traced.graph) == interacting(hand)
    assert traced.graph.adjacency().same_entries(hand.adjacency())
    assert places_of(traced.graph) == places_of(hand)
    check_edges(traced)


def test_the_product_of_matrices_has_the_mask_of_the_paper():
    def program(t, k=2, m=3):
        A, R = t.sample("A", Normal(), (k, m)), t.sample("R", Bernoulli(0.3), (k, m))
        C, E = t.empty("C", (k, m, m)), t.empty("E", (m, m))
        for j, i in np.ndindex(m, m):
            for l in range(k):
                C[l, j, i] = t.deterministic(A[l, i] * R[l, j])
            E[j, i] = t.deterministic(sum(C[:, j, i]))

    check_golden(unn.trace(program).graph, "bcmf_m3_n3_k2_int.npz")

    def at_once(t, k=2, m=3):
        A, R = t.sample("A", Normal(), (k, m)), t.sample("R", Bernoulli(0.3), (k, m))
        t.deterministic(R.T @ A, name="E")

    traced = unn.trace(at_once)
    check_golden(traced.graph, "bcmf_m3_n3_k2_noint.npz")
    assert formulas(traced) == ["E[l j] depends on A[i j], R[k l]"]


def test_a_hierarchical_program_has_the_mask_of_the_paper():
    def program(t, k=2, m=3):
        K = t.sample("K", Categorical(k))
        D = t.deterministic(np.arange(k) <= K, name="D")
        A, R = t.sample("A", Uniform(0, D[:, None]), (k, m)), t.sample("R", Bernoulli(0.3 * D[:, None]), (k, m))
        C = t.deterministic(A[:, None, :] * R[:, :, None], name="C")
        t.deterministic(C.sum(0), name="E")

    traced = unn.trace(program)
    check_golden(traced.graph, "hbcmf_m3_n3_k2_int.npz")
    assert formulas(traced)[:3] == ["D[i] depends on K[v]", "A[i k] depends on D[i]", "R[i j] depends on D[i]"]
    drawn = traced.draw(200, seeded())
    assert torch.equal(drawn["D"], drawn["K"].flip(-1).cumsum(-1).flip(-1))
    assert not drawn["A"][drawn["D"] == 0].any() and not drawn["R"][drawn["D"] == 0].any()


def test_inversion_has_the_mask_of_the_paper():
    def program(t, n=5):
        A, R = t.sample("A", Normal(), (n, n)), t.sample("R", Normal(), (n, n))
        C = t.deterministic(np.stack([np.outer(A[l], R[l]).T for l in range(n)]), name="C")
        t.deterministic(np.sum(C, axis=0), name="E")

    check_golden(unn.trace(program).graph, "matinv_5_int.npz")


def circuit(t, depth=3, intermediate=True):
    level = t.sample("L0", Bernoulli(0.5), 2**depth)
    for k in range(1, depth + 1):
        gates = [(level[2 * i] & level[2 * i + 1]) if (i + k) % 2 else (level[2 * i] | level[2 * i + 1]) for i in range(2 ** (depth - k))]
        if intermediate or k == depth:
            level = t.deterministic(gates, name=f"L{k}")
        else:
            level = gates


def test_a_circuit_is_recognised_as_a_split_and_has_the_mask_of_the_paper():
    check_golden(unn.trace(circuit, 2).graph, "boolean_depth2_int.npz")
    check_golden(unn.trace(circuit, 2, intermediate=False).graph, "boolean_depth2_noint.npz")
    traced = unn.trace(circuit, 4)
    assert formulas(traced)[0] == "L1[j] depends on L0[(j c)]"
    assert all(type(factor) is Depends for factor in traced.graph.factors.values())
    assert all(isinstance(variable.regularizer, unn.BinaryEntropy) for variable in traced.graph.variables.values())
    check_edges(traced)
    drawn = traced.draw(50, seeded())
    first = drawn["L0"].reshape(50, 8, 2).bool()
    gates = torch.where(torch.arange(8) % 2 == 0, first.all(-1), first.any(-1))
    assert torch.equal(drawn["L1"].bool(), gates)


def sorting(t, n=3):
    """From sorted values to values in any order: the same graph as the other way round."""
    s = t.empty("s", n)
    s[0] = t.sample(Normal())
    for i in range(1, n):
        s[i] = t.sample(Uniform(s[i - 1], s[i - 1] + 1))
    P = t.sample("P", Permutation(n))
    C = t.deterministic(P * np.expand_dims(s, 1), name="C")
    t.deterministic(C.sum(0), name="u")


def test_sorting_has_the_mask_of_the_paper_and_the_symmetries_declared_by_hand():
    traced = unn.trace(sorting)
    check_golden(traced.graph, "sorting_n3_int_variant0.npz")
    assert formulas(traced) == [
        "s[i+1] depends on s[i]",
        "clique of P[i j] for each i",
        "clique of P[i j] for each j",
        "C[i j] depends on s[i], P[i j]",
        "u[j] depends on C[i j]",
    ]
    assert places_of(traced.graph) == {frozenset({("u", 0, 1, 1), ("C", 1, 1, 1), ("P", 1, 1, 1)})}
    drawn = unn.trace(sorting, 7).draw(40, seeded())
    assert torch.equal(drawn["u"].sort(-1).values, drawn["s"]) and (drawn["P"].sum(1) == 1).all() and (drawn["P"].sum(2) == 1).all()
    assert len({tuple(row.argmax(-1).tolist()) for row in drawn["P"]}) > 30


def test_a_program_that_sorts_depends_on_all_that_is_sorted():
    def program(t, n=4):
        u = t.sample("u", Normal(), n)
        P, C = t.empty("P", (n, n)), t.empty("C", (n, n))
        for j in range(n):
            rank = sum(u[k] < u[j] for k in range(n))
            for i in range(n):
                P[i, j] = t.deterministic(rank == i)
                C[i, j] = t.deterministic(P[i, j] * u[j])
        t.deterministic(np.sum(C, axis=1), name="s")

    traced = unn.trace(program)
    assert formulas(traced) == ["P[j i] depends on u[i2]", "C[j i] depends on u[i], P[j i]", "s[j] depends on C[j i]"]
    check_edges(traced)
    drawn = traced.draw(30, seeded())
    assert torch.equal(drawn["s"], drawn["u"].sort(-1).values)
    assert isinstance(traced.graph.variables["P"].regularizer, unn.BinaryEntropy)


# -- other regular relations -----------------------------------------------------------------------------------------------


def test_loops_in_either_order_give_the_same_graph():
    one, other = unn.trace(product_of_matrices), unn.trace(product_of_matrices, columns_first=True)
    assert formulas(one) == formulas(other) and one.edges == other.edges
    assert {n: v.axes for n, v in one.graph.variables.items()} == {n: v.axes for n, v in other.graph.variables.items()}


def chain(t, n=6, lag=1):
    s = t.empty("s", n)
    for i in range(n):
        s[i] = t.sample(Normal(sum(s[i - d] for d in range(1, lag + 1) if i >= d), 1))
    t.sample("y", Normal(s, 0.1))


@pytest.mark.parametrize("n", [2, 3, 6])
def test_chains_are_recognised_as_shifts(n):
    traced = unn.trace(chain, n)
    assert formulas(traced) == ["s[i+1] depends on s[i]", "y[i] depends on s[i]"]
    check_edges(traced)
    traced = unn.trace(chain, n + 1, 2)
    assert sorted(formulas(traced)) == ["s[i+1] depends on s[i]", "s[i+2] depends on s[i]", "y[i] depends on s[i]"]
    check_edges(traced)


def neighbourhood(t, rows=5, columns=4):
    X, Y = t.sample("X", Normal(), (rows, columns)), t.empty("Y", (rows, columns))
    for r, c in np.ndindex(rows, columns):
        Y[r, c] = t.deterministic(np.mean(X[max(r - 1, 0) : r + 2, max(c - 1, 0) : c + 2]))


def test_neighbourhoods_in_two_dimensions_are_nine_shifts():
    traced = unn.trace(neighbourhood)
    assert len(traced.graph.factors) == 9 and all(type(factor) is Depends for factor in traced.graph.factors.values())
    assert {"Y[i j] depends on X[i j]", "Y[i+1 j] depends on X[i j+1]"} <= set(formulas(traced))
    check_edges(traced)


def test_plates_in_a_hierarchical_model_share_their_axes():
    def program(t, schools=4, pupils=3):
        mu, tau = t.sample("mu", Normal(0, 5)), t.sample("tau", Uniform(0, 3))
        theta = t.sample("theta", Normal(mu, tau), schools)
        x = t.empty("x", (schools, pupils))
        for s in range(schools):
            for p in range(pupils):
                x[s, p] = t.sample(Normal(theta[s], 1))

    traced = unn.trace(program)
    assert formulas(traced) == ["theta[i] depends on mu[], tau[]", "x[i j] depends on theta[i]"]
    assert [variable.axes for variable in traced.graph.variables.values()] == [(), (), ("i",), ("i", "j")]
    assert {symmetry.name for symmetry in traced.graph.symmetries()} == {"theta.i x.i", "x.j"}
    check_edges(traced)


def test_random_indices_depend_on_all_that_they_may_select():
    def program(t, n=5, k=3):
        mu, z = t.sample("mu", Normal(0, 10), (k, 2)), t.sample("z", Categorical(k), n)
        t.sample("x", Normal(mu[z], 0))
        t.deterministic(np.take(t.constant([1.0, 2.0, 4.0]), z[0]), name="w")
        t.deterministic(mu[1, z[0] % 2] + mu[z[1], 0], name="v")

    traced = unn.trace(program)
    assert formulas(traced)[:2] == ["x[k j] depends on mu[i j], z[k v]", "w[] depends on z[k v] in 1 listed pair"]
    check_edges(traced)
    drawn = traced.draw(64, seeded())
    z = drawn["z"].argmax(-1)
    assert torch.equal(drawn["x"], drawn["mu"].gather(1, z[..., None].expand(-1, -1, 2)))
    assert torch.equal(drawn["w"], torch.tensor([1.0, 2.0, 4.0])[z[:, 0]])
    b = torch.arange(64)
    assert torch.equal(drawn["v"], (drawn["mu"][b, 1, z[:, 0] % 2].double() + drawn["mu"][b, z[:, 1], 0]).float())


def test_wholes_parts_and_blocks_are_recognised_as_splits():
    def program(t, groups=3):
        x = t.sample("x", Normal(), 2 * groups)
        means = t.deterministic(x.reshape(groups, 2).mean(1), name="means")
        t.deterministic(np.repeat(means, 4), name="spread")
        t.deterministic(np.tile(means, 5), name="tiled")
        t.deterministic(np.repeat(x.reshape(groups, 2).sum(1), 3), name="blocks")

    traced = unn.trace(program)
    assert all(type(factor) is Depends for factor in traced.graph.factors.values()) and len(traced.graph.factors) == 4
    check_edges(traced)
    traced.graph.symmetries()


def test_irregular_loops_are_listed_exactly():
    groups = [[0, 3], [1], [5, 2, 0], [], [3], [1, 4]]

    def program(t):
        X, Y = t.sample("X", Normal(), 6), t.empty("Y", 6)
        for i, group in enumerate(groups):
            Y[i] = t.deterministic(sum((X[j] for j in group), 0.0))

    traced = unn.trace(program)
    (factor,) = traced.graph.factors.values()
    assert isinstance(factor, Listed) and str(factor) == "Y[j] depends on X[i] in 9 listed pairs"
    assert {frozenset((f"X[{j}]", f"Y[{i}]")) for i, group in enumerate(groups) for j in group} == interacting(traced.graph)
    check_edges(traced)
    assert traced.graph.symmetries() == []
    assert traced.graph.adjacency().directed().dense().sum() == 12 + 9
    assert "listed pairs" in traced.graph.explain()
    with pytest.raises(unn.InferenceError):
        unn.infer(traced.graph, {}, order=["X"], iterations=1)


def test_a_few_exceptions_do_not_hide_what_is_regular():
    def program(t, n=8):
        x = t.sample("x", Normal(), n)
        y = t.empty("y", n)
        for i in range(n):
            y[i] = t.deterministic(x[i] + (x[6] + x[1] if i == 3 else 0))

    traced = unn.trace(program)
    assert formulas(traced) == ["y[i] depends on x[i]", "y[j] depends on x[i] in 2 listed pairs"]
    check_edges(traced)


def test_helper_functions_and_recursion_are_programs_too():
    def total(values):
        return values[0] + total(values[1:]) if len(values) > 1 else values[0]

    def dot(t, one, other):
        return t.deterministic(total([a * b for a, b in zip(one, other)]))

    def program(t, n=3):
        A, B = t.sample("A", Normal(), (n, 2)), t.sample("B", Normal(), (2, n))
        E = t.empty("E", (n, n))
        for i in range(n):
            for j, column in enumerate(B.T):
                E[i, j] = dot(t, A[i], column)

    traced = unn.trace(program)
    assert formulas(traced) == ["E[i j] depends on A[i k], B[l j]"]
    assert interacting(traced.graph) == {
        frozenset((f"E[{i},{j}]", other)) for i in range(3) for j in range(3) for k in range(2) for other in (f"A[{i},{k}]", f"B[{k},{j}]")
    }


def test_only_statements_are_nodes_and_unused_variables_are_alone():
    def program(t):
        x, _ = t.sample("x", Normal(), 2), t.sample("lonely", Normal(), 3)
        hidden = np.exp(x[0]) + 2 * x[1] ** 2
        t.deterministic(abs(hidden) / 3, name="y")
        t.deterministic(7.0, name="seven")

    traced = unn.trace(program)
    assert traced.edges == [("x[0]", "y"), ("x[1]", "y")]
    assert traced.graph.adjacency().names() == ["x[0]", "x[1]", "lonely[0]", "lonely[1]", "lonely[2]", "y", "seven"]
    check_edges(traced)
    assert repr(traced) == "Traced 'program': 4 variables (x, lonely, y, seven), 7 nodes, 2 edges"
    assert traced.draw(2)["seven"].tolist() == [7, 7]


# -- recognition against brute force ---------------------------------------------------------------------------------------


def spelled_out(template, child, parent):
    """All pairs of a template, letter by letter."""
    pairs = set()
    for values in itertools.product(*map(range, template.sizes)):
        flat = []
        for places, shape in ((template.child, child), (template.parent, parent)):
            index = []
            for place in places:
                along = 0
                for letter in place.letters:
                    along = along * template.sizes[letter] + values[letter]
                index.append(along + place.shift)
            flat.append(int(np.ravel_multi_index(tuple(index), shape)) if shape else 0)
        pairs.add(tuple(flat))
    return pairs


SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@given(child=SHAPES, parent=SHAPES, data=st.data())
@settings(max_examples=150, deadline=None)
def test_templates_and_what_they_leave_are_the_pairs_given(child, parent, data):
    size = math.prod(child), math.prod(parent)
    kind = data.draw(st.sampled_from(["any", "shift", "full", "modulo"]))
    every = list(itertools.product(range(size[0]), range(size[1])))
    if kind == "any":
        pairs = data.draw(st.lists(st.sampled_from(every), unique=True, max_size=30))
    else:
        by = data.draw(st.integers(-2, 2))
        keep = {"shift": lambda a, b: b == a + by, "full": lambda a, b: True, "modulo": lambda a, b: b == a % max(1, abs(by) + 1)}[kind]
        pairs = [pair for pair in every if keep(*pair)]
    pairs = sorted(pairs)
    columns = tuple(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    templates, rest = recognise(child, parent, columns)
    found = {pairs[k] for k in rest.tolist()}
    assert len(found) == len(rest)
    for template in templates:
        covered = spelled_out(template, child, parent)
        assert covered <= set(pairs) and not covered & found
        found |= covered if template is templates[-1] else set()
    assert set(pairs) == set().union({pairs[k] for k in rest.tolist()}, *(spelled_out(template, child, parent) for template in templates))
    if kind == "full" and pairs:
        assert len(templates) == 1 and not len(rest)


MAPS = {
    "same": lambda i, shape: [tuple(x % n for x, n in zip(i, shape))],
    "shift": lambda i, shape: [j for j in [tuple(x + 1 for x in i)] if all(x < n for x, n in zip(j, shape))],
    "back": lambda i, shape: [j for j in [tuple(x - 1 for x in i)] if all(0 <= x < n for x, n in zip(j, shape))],
    "all": lambda i, shape: list(np.ndindex(*shape)),
    "row": lambda i, shape: [j for j in np.ndindex(*shape) if not j or not i or j[0] == i[0]],
    "near": lambda i, shape: [j for j in np.ndindex(*shape) if all(abs(x - y) <= 1 for x, y in zip(i, j))],
    "pairs": lambda i, shape: [j for j in np.ndindex(*shape) if all(y // 2 == x for x, y in zip(i, j))],
    "half": lambda i, shape: [j for j in np.ndindex(*shape) if all(x // 2 == y for x, y in zip(i, j))],
    "turned": lambda i, shape: [j for j in [tuple(reversed(i))] if len(j) == len(shape) and all(x < n for x, n in zip(j, shape))],
    "odd": lambda i, shape: [j for j in np.ndindex(*shape) if (sum(j) * 7 + sum(i) * 5) % 3 == 0],
}


@st.composite
def programs(draw):
    """Arrays: name, shape, kind, and from which entries of earlier arrays each entry is computed."""
    arrays = []
    for k in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
        maps = draw(st.lists(st.tuples(st.integers(0, k - 1), st.sampled_from(sorted(MAPS))), max_size=3)) if k else []
        arrays.append((f"X{k}", shape, draw(st.sampled_from(["sample", "deterministic"])) if k else "sample", maps, draw(st.booleans())))
    return arrays


@given(arrays=programs(), seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_the_adjacency_of_random_programs_is_that_of_their_dependences(arrays, seed):
    def parents_of(k, i):
        places = [(j, place) for j, name in arrays[k][3] for place in MAPS[name](i, arrays[j][1])]
        return [(j, place) for j, place in places if len(place) == len(arrays[j][1])]

    def program(t):
        values = []
        for k, (name, shape, what, _, inner) in enumerate(arrays):
            x = t.empty(name, shape)
            order = list(np.ndindex(*shape))
            for i in order[:: -1 if seed % 2 else 1]:
                total = 0.5
                for j, place in parents_of(k, i):
                    # an intermediate value that is no variable
                    total = total + (values[j][place] * 2 if inner else values[j][place])
                x[i] = t.deterministic(total) if what == "deterministic" else t.sample(Normal(total, 1))
            values.append(x)

    def called(k, i):
        return arrays[k][0] + (f"[{','.join(map(str, i))}]" if i else "")

    expected = {(called(*parent), called(k, i)) for k, array in enumerate(arrays) for i in np.ndindex(*array[1]) for parent in parents_of(k, i)}
    traced = unn.trace(program)
    assert set(traced.edges) == expected and len(traced.edges) == len(expected)
    assert interacting(traced.graph) == {frozenset(edge) for edge in expected}
    found = traced.graph.adjacency()
    assert found.names() == [called(k, i) for k, array in enumerate(arrays) for i in np.ndindex(*array[1])]
    # arrows are kept: a child sees its parents
    names, one_way = found.names(), found.directed().dense() if expected else found.dense()
    assert {(names[j], names[i]) for i, j in one_way.nonzero().tolist() if i != j} == expected
    drawn = traced.draw(3, seeded(seed), torch.float64)
    for k, (name, shape, what, _, inner) in enumerate(arrays):
        for i in np.ndindex(*shape) if what == "deterministic" else ():
            total = sum((drawn[arrays[j][0]][(slice(None), *place)] * (2 if inner else 1) for j, place in parents_of(k, i)), torch.tensor(0.5).double())
            torch.testing.assert_close(drawn[name][(slice(None), *i)], total.expand(3))


# -- operations ------------------------------------------------------------------------------------------------------------

OPERATIONS = {
    "arithmetic": lambda x, y: 2 * x - x / (1 + abs(y[:3, None])) + x**2 % 3 - (-x) // 2,
    "comparisons": lambda x, y: (x > y[0]) & ~(x < 0) | (x <= y[2]) ^ (x >= 1),
    "equality": lambda x, y: (np.floor(x) == np.floor(y)) ^ (np.floor(x) != np.floor(y[1])),
    "sum of truth values": lambda x, y: (x[0] > 0) + (x[1] > 0) - (x[2] > 0) * 2,
    "ufuncs": lambda x, y: np.exp(x) + np.tanh(y) * np.log1p(np.abs(x)) + np.maximum(x, y) + np.hypot(x, 1),
    "sum": lambda x, y: np.sum(x, axis=0) + x.sum() + x.sum(axis=1, keepdims=True),
    "mean of some": lambda x, y: np.mean(x[1:, ::2], axis=(0, 1)) + np.std(x, axis=-1, ddof=1),
    "extremes": lambda x, y: np.max(x, axis=0) - np.min(x) + np.ptp(y),
    "median": lambda x, y: np.median(x, axis=1),
    "product": lambda x, y: np.prod(x[:, :2], 1),
    "positions": lambda x, y: np.argmax(x, axis=1) + np.argmin(y),
    "truth": lambda x, y: np.any(x > 1, axis=0) & np.all(y > -2),
    "counts": lambda x, y: np.count_nonzero(x > 0, axis=1),
    "scan": lambda x, y: np.cumsum(x, axis=1) + np.cumprod(y),
    "flat scan": lambda x, y: np.cumsum(x),
    "sorted": lambda x, y: np.sort(x) + np.sort(x, axis=0),
    "order": lambda x, y: np.argsort(y),
    "differences": lambda x, y: np.diff(x) + np.diff(x, n=3, axis=1)[:, :1],
    "choice": lambda x, y: np.where(x > 0, y, x[:, :1]),
    "clipped": lambda x, y: np.clip(x, -0.5, y),
    "rounded": lambda x, y: np.round(x, 1),
    "matrix and vector": lambda x, y: x @ y,
    "vector and matrix": lambda x, y: x[:, 0] @ x,
    "vectors": lambda x, y: np.dot(y, y[::-1]) + y @ y + np.inner(y, y) + np.vdot(y, x[0]),
    "matrices": lambda x, y: np.matmul(x, x.T),
    "stacked matrices": lambda x, y: np.stack([x, 2 * x]) @ x[0],
    "stacked by vector": lambda x, y: x[0] @ np.stack([x.T, 2 * x.T]),
    "constant matrix": lambda x, y: np.arange(1.0, 13.0).reshape(4, 3) @ x,
    "outer": lambda x, y: np.outer(x[:, 0], y) + np.multiply.outer(x[:, 1], y),
    "einsum": lambda x, y: np.einsum("ik,jk->ij", x, x) + np.einsum("ij,j", x, y)[:, None],
    "einsum of a diagonal": lambda x, y: np.einsum("ii,i->i", x[:, 1:], y[1:]) + np.einsum("ii", x[:, 1:]),
    "reduction of a ufunc": lambda x, y: np.logaddexp.reduce(x, axis=1) + np.add.reduce(x[:, :3]),
    "shapes": lambda x, y: np.reshape(x, (2, 6)).T.ravel()[::-1].reshape(4, 3) + np.swapaxes(x, 0, 1),
    "moved": lambda x, y: np.flip(np.roll(x, 1, axis=1), 0) + np.expand_dims(y, 0) + np.broadcast_to(y, (3, 4)),
    "joined": lambda x, y: np.concatenate([x, y[None], np.ones((1, 4))]),
    "stacked": lambda x, y: np.vstack([np.stack([y, x[0]], axis=0), np.hstack([x[:, :2], x[:, 2:]])]),
    "blocks": lambda x, y: np.block([[x[:2, :2], x[:2, 2:]], [x[:1, :2], x[:1, 1:3]]]),
    "triangle": lambda x, y: np.tril(x) + np.diag(y)[:3],
    "repeated": lambda x, y: np.repeat(y, 2) + np.tile(y, 2),
    "lists": lambda x, y: np.concatenate([y[[0, 2]], x[[0, 1], [1, 2]], x[1, np.array([True, False, True, False])]]),
    "new axes": lambda x, y: x[..., None][:, 1] + y[None, :, None][0, 2],
    "python": lambda x, y: sum(row[0] for row in x) + sum(y) + len(x) + x.ndim + x.size,
    "in place": lambda x, y: _added(x, y),
    "empty": lambda x, y: x[0] + np.sum(x[:, 4:]) + np.zeros_like(y),
}


def _added(x, y):
    total = x[0] + 0
    total += y
    total *= 2
    return total


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_agree_with_numpy_in_value_and_in_what_they_depend_on(name):
    operation = OPERATIONS[name]

    def program(t):
        x, y = t.sample("x", Normal(), (3, 4)), t.sample("y", Normal(), 4)
        t.deterministic(operation(x, y), name="z")

    traced = unn.trace(program)
    check_edges(traced)
    drawn = {key: value.numpy() for key, value in traced.draw(40, seeded(1), torch.float64).items()}
    x, y, z = drawn["x"], drawn["y"], drawn["z"]

    def evaluated(x, y):
        # numpy reads + of truth values as "or", a program as a sum
        plain = [np.asarray(operation(_Counting(a), b)) for a, b in zip(x, y)] if "truth values" in name else [operation(a, b) for a, b in zip(x, y)]
        return np.array(plain, dtype=float)

    before = evaluated(x, y)
    np.testing.assert_allclose(z, before, rtol=1e-12, atol=1e-12)
    rng = np.random.default_rng(0)
    expected = set()
    for key, values in (("x", x), ("y", y)):
        for place in np.ndindex(*values.shape[1:]):
            changed = np.zeros(z.shape[1:], dtype=bool)
            for _ in range(8):
                other = values.copy()
                other[(slice(None), *place)] = rng.normal(size=40) * 3
                pair = (other, y) if key == "x" else (x, other)
                changed |= (abs(evaluated(*pair) - before) > 1e-9).any(0)
            parent = f"{key}[{','.join(map(str, place))}]"
            expected |= {(parent, f"z[{','.join(map(str, i))}]" if z.ndim > 1 else "z") for i in np.ndindex(*z.shape[1:]) if changed[i]}
    assert set(traced.edges) == expected


class _Counting(np.ndarray):
    """Comparisons of it are counts."""

    def __new__(cls, x):
        return np.asarray(x).view(cls)

    def __gt__(self, other):
        return np.asarray(self).__gt__(other).astype(int)
