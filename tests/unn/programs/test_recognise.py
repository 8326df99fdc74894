"""Regular relations in programs: those that are recognised, and the adjacency of any program."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tracing import check_edges, formulas, interacting, product_of_matrices, seeded

import unn
from factors import Depends
from unn.graph.structure import Pairs
from unn.programs import Bernoulli, Categorical, Normal, Permutation, Uniform
from unn.programs.recognise import recognise

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
        t.deterministic(C[1:, z, 0, None], name="middle")
        t.deterministic(C[2, z[1], z[0]], name="both")

    traced = unn.trace(program)
    check_edges(traced)
    drawn = traced.draw(9, seeded())
    for b, C in enumerate(drawn["C"]):
        z = drawn["z"][b].argmax(-1)
        assert torch.equal(drawn["last"][b], C[..., z[0]]) and torch.equal(drawn["both"][b], C[2, z[1], z[0]])
        assert torch.equal(drawn["middle"][b], C[1:, z, 0, None])
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
    taken = {pairs[k] for k in rest.tolist()}
    assert len(taken) == len(rest)
    for template in templates:
        covered = spelled_out(template, child, parent)
        assert covered <= set(pairs) and not covered & taken
        taken |= covered if template is templates[-1] else set()
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
    adjacency = traced.graph.adjacency()
    assert adjacency.names() == [
        called(k, i) for k, array in enumerate(arrays) for i in np.ndindex(*array[1])
    ]
    # arrows are kept: a child sees its parents
    names, one_way = adjacency.names(), adjacency.directed().dense() if expected else adjacency.dense()
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
