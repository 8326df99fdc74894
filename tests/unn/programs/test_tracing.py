"""Programs that are traced: their graphs, the patterns found in them, draws from them, and what they must not
do."""

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Depends
from unn.graph.structure import Pairs
from unn.programs import Bernoulli, Categorical, Normal, Permutation, Uniform
from unn.programs.recognise import recognise

GOLDEN = Path(__file__).parents[2] / "golden"


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
    kept = [
        factor
        for factor in traced.graph.factors.values()
        if isinstance(factor, Depends) or (isinstance(factor, Pairs) and factor.directed)
    ]
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


# -- programs of the paper -----------------------------------------------------------------------------------


def product_of_matrices(t, m=3, n=3, k=2, columns_first=False):
    A = t.sample("A", Uniform(0, 1), shape=(m, k))
    R = t.sample("R", Bernoulli(0.3), shape=(k, n))
    C, E = t.empty("C", (m, n, k)), t.empty("E", (m, n))
    places = [(i, j) for j in range(n) for i in range(m)] if columns_first else list(np.ndindex(m, n))
    for i, j in places:
        for h in range(k):
            C[i, j, h] = t.deterministic(A[i, h] * R[h, j])
        E[i, j] = t.deterministic(sum(C[i, j, h] for h in range(k)))


def hand_declared(m=3, n=3, k=2):
    g = unn.FactorGraph("product", i=m, j=n, k=k)
    A, R = g.variable("A", "i k", unn.SquaredNorm()), g.variable("R", "k j", unn.BinaryEntropy())
    C, E = g.variable("C", "i j k", unn.SquaredNorm()), g.variable("E", "i j", unn.SquaredNorm())
    g.factor(Depends(C["i j k"], A["i k"], R["k j"]))
    g.factor(Depends(E["i j"], C["i j k"]))
    return g


def places_of(graph):
    return {
        frozenset((part.variable, part.axis, part.before, part.after) for part in symmetry.parts)
        for symmetry in graph.symmetries()
    }


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
            for h in range(k):
                C[h, j, i] = t.deterministic(A[h, i] * R[h, j])
            E[j, i] = t.deterministic(sum(C[:, j, i]))

    check_golden(unn.trace(program).graph, "bcmf_m3_n3_k2_int.npz")

    def at_once(t, k=2, m=3):
        A, R = t.sample("A", Normal(), (k, m)), t.sample("R", Bernoulli(0.3), (k, m))
        t.deterministic(R.T @ A, name="E")

    traced = unn.trace(at_once)
    check_golden(traced.graph, "bcmf_m3_n3_k2_noint.npz")
    # which row of A meets which of R is in the program, but not in the mask, so that neither index is
    # exchangeable by itself
    assert formulas(traced) == ["E[l j] depends on A[i j], R[k l] (i, k ordered)"]


def test_a_hierarchical_program_has_the_mask_of_the_paper():
    def program(t, k=2, m=3):
        K = t.sample("K", Categorical(k))
        D = t.deterministic(np.arange(k) <= K, name="D")
        A, R = (
            t.sample("A", Uniform(0, D[:, None]), (k, m)),
            t.sample("R", Bernoulli(0.3 * D[:, None]), (k, m)),
        )
        C = t.deterministic(A[:, None, :] * R[:, :, None], name="C")
        t.deterministic(C.sum(0), name="E")

    traced = unn.trace(program)
    check_golden(traced.graph, "hbcmf_m3_n3_k2_int.npz")
    assert formulas(traced)[:3] == [
        "D[i] depends on K[v] (i ordered)",
        "A[i k] depends on D[i]",
        "R[i j] depends on D[i]",
    ]
    drawn = traced.draw(200, seeded())
    assert torch.equal(drawn["D"], drawn["K"].flip(-1).cumsum(-1).flip(-1))
    assert not drawn["A"][drawn["D"] == 0].any() and not drawn["R"][drawn["D"] == 0].any()


def test_inversion_has_the_mask_of_the_paper():
    def program(t, n=5):
        A, R = t.sample("A", Normal(), (n, n)), t.sample("R", Normal(), (n, n))
        C = t.deterministic(np.stack([np.outer(A[h], R[h]).T for h in range(n)]), name="C")
        t.deterministic(np.sum(C, axis=0), name="E")

    check_golden(unn.trace(program).graph, "matinv_5_int.npz")


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


def test_a_circuit_is_recognised_as_a_split_and_has_the_mask_of_the_paper():
    check_golden(unn.trace(circuit, 2).graph, "boolean_depth2_int.npz")
    check_golden(unn.trace(circuit, 2, intermediate=False).graph, "boolean_depth2_noint.npz")
    traced = unn.trace(circuit, 4)
    assert formulas(traced)[0] == "L1[j] depends on L0[(j c)]"
    assert all(type(factor) is Depends for factor in traced.graph.factors.values())
    assert all(
        isinstance(variable.regularizer, unn.BinaryEntropy) for variable in traced.graph.variables.values()
    )
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
    assert (
        torch.equal(drawn["u"].sort(-1).values, drawn["s"])
        and (drawn["P"].sum(1) == 1).all()
        and (drawn["P"].sum(2) == 1).all()
    )
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
    assert formulas(traced) == [
        "P[i j] depends on u[k] (i ordered)",
        "C[i j] depends on u[j], P[i j]",
        "s[i] depends on C[i j]",
    ]
    check_edges(traced)
    drawn = traced.draw(30, seeded())
    assert torch.equal(drawn["s"], drawn["u"].sort(-1).values)
    assert isinstance(traced.graph.variables["P"].regularizer, unn.BinaryEntropy)


# -- other regular relations ---------------------------------------------------------------------------------


def test_loops_in_either_order_give_the_same_graph():
    one, other = unn.trace(product_of_matrices), unn.trace(product_of_matrices, columns_first=True)
    assert formulas(one) == formulas(other) and one.edges == other.edges
    assert {n: v.axes for n, v in one.graph.variables.items()} == {
        n: v.axes for n, v in other.graph.variables.items()
    }


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
    assert sorted(formulas(traced)) == [
        "s[i+1] depends on s[i]",
        "s[i+2] depends on s[i]",
        "y[i] depends on s[i]",
    ]
    check_edges(traced)


def neighbourhood(t, rows=5, columns=4):
    X, Y = t.sample("X", Normal(), (rows, columns)), t.empty("Y", (rows, columns))
    for r, c in np.ndindex(rows, columns):
        Y[r, c] = t.deterministic(np.mean(X[max(r - 1, 0) : r + 2, max(c - 1, 0) : c + 2]))


def test_neighbourhoods_in_two_dimensions_are_nine_shifts():
    traced = unn.trace(neighbourhood)
    assert len(traced.graph.factors) == 9 and all(
        type(factor) is Depends for factor in traced.graph.factors.values()
    )
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
    assert formulas(traced)[:2] == [
        "x[k j] depends on mu[i j], z[k v]",
        "w[] depends on z[k v] in 1 listed pair",
    ]
    check_edges(traced)
    drawn = traced.draw(64, seeded())
    z = drawn["z"].argmax(-1)
    assert torch.equal(drawn["x"], drawn["mu"].gather(1, z[..., None].expand(-1, -1, 2)))
    assert torch.equal(drawn["w"], torch.tensor([1.0, 2.0, 4.0])[z[:, 0]])
    b = torch.arange(64)
    assert torch.equal(
        drawn["v"], (drawn["mu"][b, 1, z[:, 0] % 2].double() + drawn["mu"][b, z[:, 1], 0]).float()
    )


def test_random_indices_of_arrays_of_entries_select_along_any_axis():
    def program(t):
        z = t.sample("z", Categorical(2), 2)
        C = t.empty("C", (3, 2, 2))
        for k in range(3):
            C[k] = t.sample(Normal(10 * k, 1), shape=(2, 2))
        t.deterministic(C[..., z[0]], name="last")
        t.deterministic(C[1:, z, None, 0], name="middle")
        t.deterministic(C[2, z[1], z[0]], name="both")

    traced = unn.trace(program)
    check_edges(traced)
    drawn = traced.draw(9, seeded())
    for b, C in enumerate(drawn["C"]):
        z = drawn["z"][b].argmax(-1)
        assert torch.equal(drawn["last"][b], C[..., z[0]]) and torch.equal(drawn["both"][b], C[2, z[1], z[0]])
        assert torch.equal(drawn["middle"][b], C[1:, z, None, 0])
    assert {f"C[2,{i},{j}]" for i in range(2) for j in range(2)} | {"z[0]", "z[1]"} == {
        a for a, b in traced.edges if b == "both"
    }


@pytest.mark.parametrize(("size", "count"), [(1, 2), (2, 1), (2, 2), (3, 2)])
def test_entries_of_permutations_interact_along_rows_and_columns_of_each(size, count):
    traced = unn.trace(lambda t: t.sample("P", Permutation(size), count))
    every = list(np.ndindex(count, size, size))
    expected = [
        (a, b) for a in every for b in every if a < b and a[0] == b[0] and (a[1] == b[1] or a[2] == b[2])
    ]
    assert interacting(traced.graph) == {
        frozenset(f"P[{','.join(map(str, x))}]" for x in pair) for pair in expected
    }
    assert traced.edges == [] and not any(
        isinstance(factor, Pairs) for factor in traced.graph.factors.values()
    )


def test_permutations_in_part_of_an_array_are_listed_cliques():
    def program(t):
        P, rest = t.empty("P", (4, 3)), t.sample("rest", Bernoulli(), (4, 3))
        P[[0, 1, 3]] = t.sample(Permutation(3))
        P[2] = t.deterministic(rest[2])

    traced = unn.trace(program)
    rows = [0, 1, 3]
    expected = {frozenset((f"P[{r},{c}]", f"P[{r},{d}]")) for r in rows for c in range(3) for d in range(c)}
    expected |= {
        frozenset((f"P[{r},{c}]", f"P[{q},{c}]")) for r in rows for q in rows if q < r for c in range(3)
    }
    assert interacting(traced.graph) == expected | {
        frozenset((f"P[2,{c}]", f"rest[2,{c}]")) for c in range(3)
    }
    assert any("interact in 18 listed pairs" in text for text in formulas(traced))
    check_edges(traced)


def test_wholes_parts_and_blocks_are_recognised_as_splits():
    def program(t, groups=3):
        x = t.sample("x", Normal(), 2 * groups)
        means = t.deterministic(x.reshape(groups, 2).mean(1), name="means")
        t.deterministic(np.repeat(means, 4), name="spread")
        t.deterministic(np.tile(means, 5), name="tiled")
        t.deterministic(np.repeat(x.reshape(groups, 2).sum(1), 3), name="blocks")

    traced = unn.trace(program)
    assert (
        all(type(factor) is Depends for factor in traced.graph.factors.values())
        and len(traced.graph.factors) == 4
    )
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
    assert isinstance(factor, Pairs) and str(factor) == "Y[j] depends on X[i] in 9 listed pairs"
    assert {
        frozenset((f"X[{j}]", f"Y[{i}]")) for i, group in enumerate(groups) for j in group
    } == interacting(traced.graph)
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
    assert formulas(traced) == ["y[i] depends on x[i]", "y[i] depends on x[j] in 2 listed pairs"]
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
    assert formulas(traced) == ["E[i l] depends on A[i j], B[k l] (j, k ordered)"]
    assert interacting(traced.graph) == {
        frozenset((f"E[{i},{j}]", other))
        for i in range(3)
        for j in range(3)
        for k in range(2)
        for other in (f"A[{i},{k}]", f"B[{k},{j}]")
    }


def test_only_statements_are_nodes_and_unused_variables_are_alone():
    def program(t):
        x, _ = t.sample("x", Normal(), 2), t.sample("lonely", Normal(), 3)
        hidden = np.exp(x[0]) + 2 * x[1] ** 2
        t.deterministic(abs(hidden) / 3, name="y")
        t.deterministic(7.0, name="seven")

    traced = unn.trace(program)
    assert traced.edges == [("x[0]", "y"), ("x[1]", "y")]
    assert traced.graph.adjacency().names() == [
        "x[0]",
        "x[1]",
        "lonely[0]",
        "lonely[1]",
        "lonely[2]",
        "y",
        "seven",
    ]
    check_edges(traced)
    assert repr(traced) == "Traced 'program': 4 variables (x, lonely, y, seven), 7 nodes, 2 edges"
    assert traced.draw(2)["seven"].tolist() == [7, 7]


# -- recognition against brute force -------------------------------------------------------------------------


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
@settings(max_examples=100, deadline=None)
def test_templates_and_what_they_leave_are_the_pairs_given(child, parent, data):
    size = math.prod(child), math.prod(parent)
    kind = data.draw(st.sampled_from(["any", "shift", "full", "modulo"]))
    every = list(itertools.product(range(size[0]), range(size[1])))
    if kind == "any":
        pairs = data.draw(st.lists(st.sampled_from(every), unique=True, max_size=30))
    else:
        by = data.draw(st.integers(-2, 2))
        keep = {
            "shift": lambda a, b: b == a + by,
            "full": lambda a, b: True,
            "modulo": lambda a, b: b == a % max(1, abs(by) + 1),
        }[kind]
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
    assert set(pairs) == set().union(
        {pairs[k] for k in rest.tolist()}, *(spelled_out(template, child, parent) for template in templates)
    )
    if kind == "full" and pairs:
        assert len(templates) == 1 and not len(rest)


def test_searches_that_would_take_long_end_in_a_list(monkeypatch):
    every = np.indices((9, 9)).reshape(2, -1)
    band = every[:, abs(every[0] - every[1]) <= 1]
    templates, rest = recognise((9,), (9,), tuple(band))
    assert len(templates) == 3 and not len(rest)
    monkeypatch.setattr("unn.programs.recognise._BUDGET", 10)
    templates, rest = recognise((9,), (9,), tuple(band))
    assert not templates and rest.tolist() == list(range(band.shape[1]))
    monkeypatch.undo()
    monkeypatch.setattr("unn.programs.recognise.MOST_TEMPLATES", 2)
    templates, rest = recognise((9,), (9,), tuple(band))
    assert not templates and len(rest) == band.shape[1]


MAPS = {
    "same": lambda i, shape: [tuple(x % n for x, n in zip(i, shape))],
    "shift": lambda i, shape: [j for j in [tuple(x + 1 for x in i)] if all(x < n for x, n in zip(j, shape))],
    "back": lambda i, shape: [
        j for j in [tuple(x - 1 for x in i)] if all(0 <= x < n for x, n in zip(j, shape))
    ],
    "all": lambda i, shape: list(np.ndindex(*shape)),
    "row": lambda i, shape: [j for j in np.ndindex(*shape) if not j or not i or j[0] == i[0]],
    "near": lambda i, shape: [j for j in np.ndindex(*shape) if all(abs(x - y) <= 1 for x, y in zip(i, j))],
    "pairs": lambda i, shape: [j for j in np.ndindex(*shape) if all(y // 2 == x for x, y in zip(i, j))],
    "half": lambda i, shape: [j for j in np.ndindex(*shape) if all(x // 2 == y for x, y in zip(i, j))],
    "turned": lambda i, shape: [
        j for j in [tuple(reversed(i))] if len(j) == len(shape) and all(x < n for x, n in zip(j, shape))
    ],
    "odd": lambda i, shape: [j for j in np.ndindex(*shape) if (sum(j) * 7 + sum(i) * 5) % 3 == 0],
}


@st.composite
def programs(draw):
    """Arrays: name, shape, kind, and from which entries of earlier arrays each entry is computed."""
    arrays = []
    for k in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
        maps = (
            draw(st.lists(st.tuples(st.integers(0, k - 1), st.sampled_from(sorted(MAPS))), max_size=3))
            if k
            else []
        )
        arrays.append(
            (
                f"X{k}",
                shape,
                draw(st.sampled_from(["sample", "deterministic"])) if k else "sample",
                maps,
                draw(st.booleans()),
            )
        )
    return arrays


@given(arrays=programs(), seed=st.integers(0, 100))
@settings(max_examples=50, deadline=None)
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

    expected = {
        (called(*parent), called(k, i))
        for k, array in enumerate(arrays)
        for i in np.ndindex(*array[1])
        for parent in parents_of(k, i)
    }
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
            terms = [
                drawn[arrays[j][0]][(slice(None), *place)] * (2 if inner else 1)
                for j, place in parents_of(k, i)
            ]
            torch.testing.assert_close(
                drawn[name][(slice(None), *i)], sum(terms, torch.full((3,), 0.5, dtype=torch.float64))
            )


# -- operations ----------------------------------------------------------------------------------------------

OPERATIONS = {
    "arithmetic": lambda x, y: 2 * x - x / (1 + abs(y[:3, None])) + x**2 % 3 - (-x) // 2,
    "comparisons": lambda x, y: (x > y[0]) & ~(x < 0) | (x <= y[2]) ^ (x >= 1),
    "equality": lambda x, y: (np.floor(x) == np.floor(y)) ^ (np.floor(x) != np.floor(2 * y[1])),
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
    "einsum of a long diagonal": lambda x, y: np.einsum("iiij->j", np.stack([np.stack([x[:, :3]] * 3)] * 3)),
    "einsum of a diagonal": lambda x, y: np.einsum("ii,i->i", x[:, 1:], y[1:]) + np.einsum("ii", x[:, 1:]),
    "reduction of a ufunc": lambda x, y: np.logaddexp.reduce(x, axis=1) + np.add.reduce(x[:, :3]),
    "shapes": lambda x, y: np.reshape(x, (2, 6)).T.ravel()[::-1].reshape(4, 3) + np.swapaxes(x, 0, 1),
    "moved": lambda x, y: (
        np.flip(np.roll(x, 1, axis=1), 0) + np.expand_dims(y, 0) + np.broadcast_to(y, (3, 4))
    ),
    "joined": lambda x, y: np.concatenate([x, y[None], np.ones((1, 4))]),
    "stacked": lambda x, y: np.vstack([np.stack([y, x[0]], axis=0), np.hstack([x[:, :2], x[:, 2:]])]),
    "blocks": lambda x, y: np.block([[x[:2, :2], x[:2, 2:]], [x[:1, :2], x[:1, 1:3]]]),
    "triangle": lambda x, y: np.tril(x) + np.diag(y)[:3],
    "methods": lambda x, y: (
        x.prod(0)
        + x.mean(1).max()
        - x.min(axis=0)
        + x.cumsum(1)[0]
        + (x > 0).any(0)
        + (x > -1).all()
        + np.shape(x)[0]
    ),
    "zero dimensional": lambda x, y: (
        np.sum(y[0]) + np.max(x[0, 0]) + np.dot(2, y[1]) + np.argmax(x[1]) + np.ones_like(y)[0] + np.size(x)
    ),
    "takes": lambda x, y: np.take(x, [0, 5, -1]) + np.take(x, [1, 2, 0], axis=1)[0],
    "repeated": lambda x, y: np.repeat(y, 2) + np.tile(y, 2),
    "lists": lambda x, y: np.concatenate(
        [y[[0, 2]], x[[0, 1], [1, 2]], x[1, np.array([True, False, True, False])]]
    ),
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
        plain = (
            [np.asarray(operation(_Counting(a), b)) for a, b in zip(x, y)]
            if "truth values" in name
            else [operation(a, b) for a, b in zip(x, y)]
        )
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
            expected |= {
                (parent, f"z[{','.join(map(str, i))}]" if z.ndim > 1 else "z")
                for i in np.ndindex(*z.shape[1:])
                if changed[i]
            }
    assert set(traced.edges) == expected


class _Counting(np.ndarray):
    """Comparisons of it are counts."""

    def __new__(cls, x):
        return np.asarray(x).view(cls)

    def __gt__(self, other):
        return np.asarray(self).__gt__(other).astype(int)


# -- functions of torch --------------------------------------------------------------------------------------

MATRIX = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) / 5
OF_TORCH = {
    "tanh": lambda x: torch.tanh(x),
    "exp and log": lambda x: torch.log1p(torch.exp(x)) + torch.log(torch.abs(x)),
    "sigmoid": lambda x: torch.sigmoid(x) + torch.special.expit(2 * x),
    "relu": lambda x: torch.relu(x) + torch.nn.functional.relu(-x) + torch.nn.functional.softplus(x),
    "clamp": lambda x: torch.clamp(x, -0.5, 1) + torch.clamp(x, min=0.1),
    "choice": lambda x: torch.where(x > 0, torch.square(x), torch.neg(x)),
    "two": lambda x: torch.maximum(x, x[0]) + torch.sub(x, 1) * torch.atan2(x, x[1]),
    "powers": lambda x: torch.pow(torch.abs(x), 1.5) + torch.rsqrt(torch.abs(x)) + torch.reciprocal(x),
    "rounded": lambda x: torch.round(x) + torch.floor(x) + torch.sign(x),
    "tensors": lambda x: MATRIX[0] * x + (MATRIX[1] - x) / (1 + MATRIX[2]) + torch.add(x, MATRIX[3]),
    "matrices": lambda x: MATRIX @ x + torch.matmul(MATRIX, x),
    "weights": lambda x: torch.ones(3, dtype=torch.float64, requires_grad=True) * x,
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_functions_of_torch_of_single_entries_agree_with_torch(name):
    traced = unn.trace(lambda t: t.deterministic(OF_TORCH[name](t.sample("x", Normal(), 3)), name="y"))
    drawn = traced.draw(20, seeded(), torch.float64)
    expected = torch.stack([OF_TORCH[name](x) for x in drawn["x"]]).detach()
    torch.testing.assert_close(drawn["y"], expected, rtol=1e-12, atol=1e-12)
    check_edges(traced)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.sum(x), ["torch.sum", "'x[0]'", "np.sum"]),
        (lambda x: torch.softmax(x, 0), ["torch.softmax", "'x[0]'"]),
        (lambda x: torch.stack([x, x]), ["torch.stack", "np.stack"]),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), ["torch.div", "'rounding_mode'"]),
        (lambda x: torch.nn.functional.softplus(x, 2.0), ["torch.softplus", "arguments"]),
    ],
)
def test_other_functions_of_torch_are_refused_by_name(function, words):
    with pytest.raises(unn.DeclarationError, match=says("program", *words)):
        unn.trace(lambda t: function(t.sample("x", Normal(), 3)))


# -- randomness of its own -----------------------------------------------------------------------------------


def branch_by(coin):
    def program(t):
        x = t.sample("x", Normal())
        t.sample("y", Normal(x if coin() else -x, 1))

    return program


OWN_RANDOMNESS = {
    "python": branch_by(lambda: random.random() < 0.5),
    "numpy": branch_by(lambda: np.random.rand() < 0.5),
    "torch": branch_by(lambda: torch.rand(()) < 0.5),
    "unseeded constants": lambda t: t.sample(
        "y", Normal(t.sample("x", Normal()) * np.random.default_rng().normal(), 1)
    ),
    "a loop": lambda t: t.sample("x", Normal(), 1 + np.random.poisson(5)),
    "a function": lambda t: t.deterministic(
        random.choice([np.exp, np.tanh, np.sin, np.cos])(t.sample("x", Normal())), name="y"
    ),
    "a distribution": lambda t: t.sample(
        "x", random.choice([Normal(0, 1), Uniform(0, 1), Normal(1, 1), Normal(0, 2)])
    ),
    "a name": lambda t: t.sample(f"x{random.randrange(1000)}", Normal()),
    "an index": lambda t: t.deterministic(t.sample("x", Normal(), 100)[random.randrange(100)], name="y"),
}


@pytest.mark.parametrize("name", OWN_RANDOMNESS)
@pytest.mark.parametrize("seed", range(3))
def test_a_program_that_decides_by_random_numbers_of_its_own_is_refused_with_its_line(name, seed):
    program = OWN_RANDOMNESS[name]
    line = program.__code__.co_firstlineno + (2 if "coin" in program.__code__.co_freevars else 0)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with pytest.raises(
        unn.DeclarationError, match=says("program", "two runs", f"line {line} ", "t.sample", "default_rng")
    ):
        unn.trace(program)


def test_a_program_may_use_random_numbers_with_a_fixed_seed_and_leaves_the_generators_as_one_run_does():
    def program(t, weights):
        np.random.seed(5)
        noise = np.random.default_rng(0).normal(size=3)
        t.sample("y", Normal(weights * noise * np.random.rand() * t.sample("x", Normal(), 3), 1))
        random.random()
        torch.rand(3)

    def after(run):
        random.seed(1)
        torch.manual_seed(1)
        run()
        return random.random(), np.random.rand(), torch.rand(()).item()

    weights = np.random.default_rng(1).normal(size=3)
    expected = after(lambda: (np.random.seed(5), np.random.rand(), random.random(), torch.rand(3)))
    assert after(lambda: unn.trace(program, weights)) == expected


def test_an_iterator_that_the_first_run_uses_up_is_refused():
    numbers = iter([1.0, 2.0])
    with pytest.raises(unn.DeclarationError, match=says("two runs", "iterator", "list")):
        unn.trace(lambda t: t.sample("x", Normal(sum(numbers), 1)))


# -- draws ---------------------------------------------------------------------------------------------------


def many(t, k=3):
    x = t.sample("x", Normal(2, 3))
    t.sample("y", Normal(2 * x, 0.5), 2)
    t.sample("u", Uniform(-1, [1, 3]))
    b = t.sample("b", Bernoulli(0.3), (2, 2))
    c = t.sample("c", Categorical(k, [0.2, 0.5, 0.3]))
    t.sample("d", Categorical(k, np.where((np.arange(3) == c) & b[0, 0], 0.6, np.where(b[0, 0], 0.2, 1 / 3))))
    t.deterministic((c + 1) % k, name="e", options=k)
    t.sample("p", Permutation(3), 2)


def test_moments_of_draws_are_those_of_the_distributions():
    n = 20000
    drawn = unn.trace(many).draw(n, seeded(), torch.float64)
    assert {name: tuple(x.shape[1:]) for name, x in drawn.items()} == {
        "x": (), "y": (2,), "u": (2,), "b": (2, 2), "c": (3,), "d": (3,), "e": (3,), "p": (2, 3, 3),
    }  # fmt: skip

    def near(found, expected, scale):
        torch.testing.assert_close(
            found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=5 * scale / n**0.5
        )

    near(drawn["x"].mean(), 2.0, 3)
    near(drawn["x"].var(), 9.0, 9 * 2**0.5)
    rest = drawn["y"] - 2 * drawn["x"][:, None]
    near(rest.mean(0), [0, 0], 0.5)
    near(rest.T.cov(), [[0.25, 0], [0, 0.25]], 0.4)
    near(drawn["u"].mean(0), [0, 1], 1.2)
    assert (
        drawn["u"].min() >= -1
        and (drawn["u"].max(0).values <= torch.tensor([1, 3])).all()
        and drawn["u"].max() > 2.99
    )
    near(drawn["b"].mean(0), [[0.3, 0.3], [0.3, 0.3]], 0.5)
    assert set(drawn["b"].unique().tolist()) == {0, 1}
    near(drawn["c"].mean(0), [0.2, 0.5, 0.3], 0.5)
    on = drawn["b"][:, 0, 0] == 1
    near((drawn["d"] * drawn["c"]).sum(1)[on].mean(), 0.6, 1)
    near(drawn["d"][~on].mean(0), [1 / 3] * 3, 0.6)
    near(drawn["p"].mean(0), torch.full((2, 3, 3), 1 / 3), 0.5)
    assert torch.equal(drawn["e"], drawn["c"].roll(1, 1))


def test_draws_fit_the_graph_and_repeat_under_a_seed():
    traced = unn.trace(many)
    one, again, other = (traced.draw(16, seeded(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], again[name]) for name in one) and not torch.equal(one["x"], other["x"])
    # what is declared is what is drawn
    g = traced.graph
    for name, x in one.items():
        assert x.dtype == torch.get_default_dtype()
        assert g.variables[name].regularizer.contains(x).all()
        assert tuple(x.shape[1:]) == g.size_table.shape(g[name], g.size_table.static)
    kinds = {name: type(variable.regularizer).__name__ for name, variable in g.variables.items()}
    assert kinds["x"] == kinds["u"] == "SquaredNorm" and kinds["b"] == kinds["p"] == "BinaryEntropy"
    assert kinds["c"] == kinds["d"] == kinds["e"] == "Entropy"
    assert g.adjacency().shapes == {
        "x": (),
        "y": (2,),
        "u": (2,),
        "b": (2, 2),
        "c": (),
        "d": (),
        "e": (),
        "p": (2, 3, 3),
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        free = traced.draw(4)["x"]
        torch.manual_seed(5)
        assert torch.equal(traced.draw(4)["x"], free)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_draws_obey_deterministic_relations_exactly(dtype):
    drawn = unn.trace(product_of_matrices, 4, 3, 5).draw(100, seeded(), dtype)
    A, R, C, _ = (drawn[name].double() for name in "ARCE")
    assert all(x.dtype == dtype for x in drawn.values())
    assert torch.equal(drawn["C"], (A[:, :, None] * R.transpose(1, 2)[:, None]).to(dtype))
    # sums are taken in float64, in an order of the library's own
    order = 1e-15 if dtype == torch.float64 else 0.0
    torch.testing.assert_close(drawn["E"], sum(C[..., h] for h in range(5)).to(dtype), rtol=order, atol=0)


def test_draws_are_made_in_steps_that_do_not_grow_with_the_batch():
    calls = []

    def program(t):
        calls.append(1)
        product_of_matrices(t)

    traced = unn.trace(program)
    # a second run tells whether the program does the same again
    assert len(calls) == 2
    assert len(traced.draw(5000, seeded())["E"]) == 5000
    assert len(calls) == 2


def test_a_traced_graph_trains_on_its_own_draws():
    traced = unn.trace(circuit, 2)
    denoiser = unn.Denoiser(traced.graph, width=8, depth=2, heads=2)
    observed = torch.arange(traced.graph.adjacency().count).expand(6, -1) % 2 == 0
    assert torch.isfinite(unn.Diffusion(denoiser).loss(traced.draw(6, seeded()), observed))


# -- what programs must not do -------------------------------------------------------------------------------


def declared(body):
    """A program with some variables, then a body."""

    def program(t):
        x, z = t.sample("x", Normal(), 3), t.sample("z", Categorical(3))
        body(t, x, z, t.empty("C", (2, 2)))

    return program


def _fill(t, C, value=1.0):
    for i, j in np.ndindex(2, 2):
        C[i, j] = t.deterministic(value)


def _other_run():
    kept = []
    unn.trace(lambda t: kept.append(t.sample("far", Normal())))
    return kept[0]


BAD = {
    "if": (lambda t, x, z, C: 1 if x[1] > 0 else 2, ["condition", "'x[1]'", "the graph", "np.where"]),
    "while": (
        lambda t, x, z, C: [1 for _ in iter(lambda: bool(x[0] * x[2] > 0), False)],
        ["'x[0]', 'x[2]'", "random"],
    ),
    "and": (lambda t, x, z, C: (x[0] > 0) and (x[1] > 0), ["condition", "& | ~"]),
    "chained": (lambda t, x, z, C: 0 < x[0] < 1, ["condition", "'x[0]'"]),
    "max": (lambda t, x, z, C: max(x), ["condition", "np.maximum"]),
    "range": (lambda t, x, z, C: list(range(z)), ["range", "'z'"]),
    "float": (lambda t, x, z, C: float(x[0]), ["float()", "'x[0]'"]),
    "int": (lambda t, x, z, C: int(z), ["int()", "'z'"]),
    "math": (lambda t, x, z, C: math.exp(x[0]), ["math", "np.exp"]),
    "list index": (lambda t, x, z, C: [1, 2, 3][z], ["'z'", "t.constant(array)[index]"]),
    "array index": (lambda t, x, z, C: np.arange(3)[z], ["'z'", "t.constant(array)[index]"]),
    "array of values": (lambda t, x, z, C: np.array([x[0], x[1]]), ["np.stack"]),
    "sum of a list": (lambda t, x, z, C: np.sum([x[0], x[1]]), ["np.stack"]),
    "into a plain array": (lambda t, x, z, C: np.zeros(3).__setitem__(0, x[0]), ["'x[0]'", "t.empty"]),
    "onto a plain array": (
        lambda t, x, z, C: np.add(np.zeros(3), x, out=np.zeros(3)),
        ["np.add", "numpy array"],
    ),
    "stacked by numpy": (lambda t, x, z, C: np.asarray(C), ["'C[0,0]'", "before it has a value"]),
    "accumulated": (lambda t, x, z, C: np.add.at(x, 0, 1), ["np.add.at", "not recorded"]),
    "complex": (lambda t, x, z, C: complex(x[0]), ["complex()", "'x[0]'"]),
    "where without cases": (lambda t, x, z, C: np.where(x > 0), ["np.where", "two cases"]),
    "lists and values": (
        lambda t, x, z, C: t.sample("w", Normal(), (3, 3))[[0, 1], z],
        ["one after the other"],
    ),
    "two arrays of values": (
        lambda t, x, z, C: t.sample("w", Normal(), (3, 3))[z + np.arange(2), z + np.arange(2)],
        ["'w'", "one axis"],
    ),
    "formula": (lambda t, x, z, C: np.einsum("...i->i", x), ["np.einsum", "letters"]),
    "product of many axes": (lambda t, x, z, C: np.dot(x[None, None], x), ["np.dot", "np.einsum"]),
    "reduction option": (lambda t, x, z, C: np.add.reduce(x, initial=1.0), ["np.add.reduce", "'initial'"]),
    "complex number": (lambda t, x, z, C: x + 1j, ["1j"]),
    "ragged numbers": (lambda t, x, z, C: x * [[1.0], [1.0, 2.0]], ["is a number, an array"]),
    "of another run": (lambda t, x, z, C: C.__setitem__((0, 0), _other_run()), ["'C[0,0]'", "another"]),
    "ragged": (lambda t, x, z, C: t.deterministic([x, [1.0]], name="w"), ["stack"]),
    "unknown function": (lambda t, x, z, C: np.fft.fft(x), ["np.fft.fft", "not recorded", "'x[0]'"]),
    "two results": (lambda t, x, z, C: np.divmod(x, 2), ["divmod", "not recorded"]),
    "option": (lambda t, x, z, C: np.sum(x, where=[True, False, True]), ["np.sum", "'where'"]),
    "bad option": (lambda t, x, z, C: np.std(x, mean=1.0), ["np.std", "'mean'"]),
    "bad axis": (lambda t, x, z, C: np.sum(x, axis=1), ["axis 1", "(3,)"]),
    "out of range": (lambda t, x, z, C: x[3], ["'x'", "[3]", "out of bounds"]),
    "too many indices": (lambda t, x, z, C: x[0, :], ["'x'", "[0, :]", "too many"]),
    "entries out of range": (
        lambda t, x, z, C: C.__setitem__((2, 0), t.deterministic(1.0)),
        ["'C'", "(2, 2)", "index 2"],
    ),
    "unread": (lambda t, x, z, C: C[0, 1] + 1, ["'C[0,1]'", "before it has a value"]),
    "nested index": (lambda t, x, z, C: C[0], ["'C[0,0]'", "all indices at once"]),
    "real index": (lambda t, x, z, C: x[x[0]], ["whole number", "'x[0]'"]),
    "random place": (
        lambda t, x, z, C: C.__setitem__((z, 0), t.deterministic(1.0)),
        ["'C'", "assigned at", "'z'"],
    ),
    "no statement": (
        lambda t, x, z, C: C.__setitem__((0, 0), x[0] * 2),
        ["'C[0,0]'", "t.deterministic(...)"],
    ),
    "plain number": (
        lambda t, x, z, C: C.__setitem__((0, 0), 1.0),
        ["'C[0,0]'", "t.deterministic(...)", "1.0"],
    ),
    "named twice": (
        lambda t, x, z, C: C.__setitem__(0, t.sample("w", Normal(), 2)),
        ["'C[0,0]'", "'w'", "copy"],
    ),
    "wrong shape": (lambda t, x, z, C: C.__setitem__(0, t.sample(Normal(), shape=3)), ["(2,)", "(3,)"]),
    "twice": (lambda t, x, z, C: (_fill(t, C), _fill(t, C)), ["'C[0,0]'", "already"]),
    "kinds in one array": (
        lambda t, x, z, C: [C.__setitem__(k, t.deterministic(y)) for k, y in ((0, x[:2]), (1, x[:2] > 0))],
        ["binary", "real"],
    ),
    "changed": (lambda t, x, z, C: x.__setitem__(0, 1.0), ["'x'", "t.empty"]),
    "unassigned": (
        lambda t, x, z, C: C.__setitem__(0, t.sample(Normal(), shape=2)),
        ["'C[1,0]' and 1 more", "never got a value"],
    ),
    "nameless": (lambda t, x, z, C: (_fill(t, C), t.sample(Normal(x[0]))), ["t.sample in line", "no name"]),
    "nameless in use": (lambda t, x, z, C: bool(t.sample(Normal()) > 0), ["t.sample without a name"]),
    "name in use": (lambda t, x, z, C: t.sample("x", Normal()), ["'x'", "in use", "t.empty"]),
    "name of entries in use": (lambda t, x, z, C: t.deterministic(1.0, name="C"), ["'C'", "in use"]),
    "no name": (lambda t, x, z, C: t.sample("x[0]", Normal()), ["'x[0]'", "identifier"]),
    "keyword": (lambda t, x, z, C: t.empty("lambda", 3), ["'lambda'", "identifier"]),
    "no distribution": (lambda t, x, z, C: t.sample("w", 3.0), ["'w'", "distribution", "3.0"]),
    "no shape": (lambda t, x, z, C: t.sample("w", Normal(), shape=0), ["'w'", "whole numbers >= 1", "0"]),
    "shape": (lambda t, x, z, C: t.sample("w", Normal(x), shape=2), ["'w'", "mean (3,)", "2"]),
    "smaller shape": (
        lambda t, x, z, C: t.sample("w", Normal(0, abs(x)), shape=1),
        ["'w'", "scale (3,)", "1"],
    ),
    "option of a method": (lambda t, x, z, C: x.sum(axes=0), ["np.sum", "'axes'"]),
    "rows of entries": (lambda t, x, z, C: list(C), ["'C[0,0]'", "before it has a value"]),
    "shapes": (
        lambda t, x, z, C: x + t.sample("w", Normal(), 2),
        ["(3,) (from 'x[0]', 'x[1]', 'x[2]')", "(2,)"],
    ),
    "matrices": (lambda t, x, z, C: x @ np.ones((2, 3)), ["(3,)", "(2, 3)"]),
    "einsum": (lambda t, x, z, C: np.einsum("ij,j->i", x, x), ["'ij,j->i'", "(3,)"]),
    "reshape": (lambda t, x, z, C: x.reshape(2, 2), ["reshape"]),
    "bits of reals": (lambda t, x, z, C: x & 1, ["'x[0]'", "do not go together"]),
    "text": (lambda t, x, z, C: x + "a", ["'a'"]),
    "None": (lambda t, x, z, C: t.deterministic(None, name="w"), ["None"]),
    "name first": (lambda t, x, z, C: t.deterministic("w", x), ["value first", "name='w'"]),
    "options": (lambda t, x, z, C: t.deterministic(z, name="w", options=1), ["options", "1"]),
    "too few probabilities": (
        lambda t, x, z, C: t.sample("w", Categorical(2, abs(x))),
        ["'w'", "2 probabilities", "(3,)"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_program_cannot_do_is_refused_by_name(name):
    body, words = BAD[name]
    with pytest.raises(unn.UnnError, match=says("program", *words)):
        unn.trace(declared(body))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Normal(0, -1), ["scale of Normal", ">= 0", "-1"]),
        (lambda: Normal(float("nan")), ["mean of Normal", "finite", "nan"]),
        (lambda: Normal(0, [1, float("inf")]), ["scale of Normal", "finite", "inf"]),
        (lambda: Uniform(2, 1), ["high - low of Uniform", ">= 0", "-1"]),
        (lambda: Uniform([0, 0], [1, 1, 1]), ["low (2,)", "high (3,)"]),
        (lambda: Bernoulli(1.5), ["probability of Bernoulli", "from 0 to 1", "1.5"]),
        (lambda: Bernoulli([0.5, -0.1]), ["-0.1"]),
        (lambda: Categorical(1), ["options", ">= 2", "1"]),
        (lambda: Categorical(3, [0.5, 0.5]), ["3 probabilities", "(2,)"]),
        (lambda: Categorical(2, [0.5, 0.4]), ["sum of probabilities", "one", "0.9"]),
        (lambda: Categorical(2, [1.5, -0.5]), ["probabilities of Categorical", "-0.5"]),
        (lambda: Permutation(0), ["Permutation", ">= 1", "0"]),
        (lambda: Normal("a"), ["Normal: mean", "'a'"]),
    ],
)
def test_parameters_of_distributions_are_checked(make, words):
    with pytest.raises(unn.UnnError, match=says(*words)):
        make()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda t, x: t.sample("y", Normal(0, x)), ["'y'", "scale of Normal"]),
        (lambda t, x: t.sample("y", Bernoulli(x * 2)), ["'y'", "probability of Bernoulli"]),
        (lambda t, x: t.sample("y", Uniform(x, 0)), ["'y'", "high - low of Uniform"]),
        (
            lambda t, x: t.sample("y", Categorical(2, np.stack([x, x]) ** 2 + 1)),
            ["'y'", "sum of probabilities"],
        ),
        (lambda t, x: t.sample("y", Normal(np.log(x))), ["'y'", "mean of Normal", "finite", "nan"]),
        (lambda t, x: t.deterministic(np.sqrt(x), name="y"), ["'y'", "NaN", "of 50 draws"]),
        (lambda t, x: t.deterministic(x / 0, name="y"), ["'y'", "infinite", "50 of 50 draws"]),
        (lambda t, x: t.deterministic(float("inf"), name="y"), ["'y'", "50 of 50 draws"]),
        (lambda t, x: t.deterministic(np.floor(x), name="y", options=2), ["'y'", "2 options", "of 50 draws"]),
        (
            lambda t, x: t.deterministic(t.constant([1, 2])[(x > 0) * 2], name="y"),
            ["'x'", "is 2", "2 entries"],
        ),
    ],
)
def test_what_depends_on_the_draw_is_checked_in_the_draw(body, words):
    traced = unn.trace(lambda t: body(t, t.sample("x", Normal())))
    with pytest.raises(unn.DeclarationError, match=says("program", *words)):
        traced.draw(50, seeded())


def test_programs_that_sample_nothing_or_are_none_are_refused():
    with pytest.raises(unn.DeclarationError, match=says("samples nothing", "t.sample")):
        unn.trace(lambda t: None)
    with pytest.raises(unn.DeclarationError, match=says("samples nothing")):
        unn.trace(lambda t: t.deterministic(1.0, name="x"))
    with pytest.raises(unn.DeclarationError, match=says("takes a function", "3")):
        unn.trace(3)
    kept = []
    unn.trace(lambda t: kept.append(t.sample("x", Normal())))
    with pytest.raises(unn.DeclarationError, match=says("'x'", "another run")):
        unn.trace(lambda t: t.sample("y", Normal(kept[0])))
    with pytest.raises(ZeroDivisionError):
        unn.trace(lambda t: 1 / 0)


def test_bad_draws_are_refused():
    traced = unn.trace(lambda t: t.sample("x", Normal()))
    for count in (0, -1, 1.5, True, "a"):
        with pytest.raises(unn.UnnError, match=says("draws", repr(count))):
            traced.draw(count)
    with pytest.raises(unn.UnnError, match=says("dtype", "int64")):
        traced.draw(2, dtype=torch.int64)


def test_values_describe_themselves():
    seen = []

    def program(t):
        x, C = t.sample("x", Normal(), (2, 2)), t.empty("C", 2)
        seen[:] = map(repr, (x, x[0, 1] * 2, x @ x, C, t.sample("y", Normal())))
        C[:] = t.sample(Normal(x[0], np.exp(x[1])))
        assert (
            len(C) == 2
            and C.ndim == 1
            and C.size == 2
            and x.T.shape == (2, 2)
            and x.transpose(1, 0).shape == (2, 2)
        )
        with pytest.raises(TypeError):
            len(x[0, 0])
        with pytest.raises(TypeError):
            hash(x)

    traced = unn.trace(program)
    assert seen == [
        "array of shape (2, 2) named 'x'",
        "value computed from 'x[0,1]'",
        "array of shape (2, 2) computed from 'x[0,0]', 'x[0,1]', 'x[1,0]' and 1 more",
        "entries of 'C', shape (2,)",
        "value named 'y'",
    ]
    assert (
        set(formulas(traced))
        and repr(Normal(0, 2)) == "Normal(mean=0, scale=2)"
        and repr(Permutation(3)) == "Permutation(3)"
    )
