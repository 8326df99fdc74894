"""Programs that are traced: the graphs of the paper, and what programs must not do."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.helpers import says
from support.tracing import check_edges, circuit, formulas, interacting, product_of_matrices, seeded

import unn
from factors import Depends
from unn.programs import Bernoulli, Categorical, Normal, Permutation, Uniform

GOLDEN = Path(__file__).parents[2] / "golden"


def check_golden(graph, file):
    golden = np.load(GOLDEN / file)
    adjacency = graph.adjacency()
    names = [name.removesuffix("[0]") if name == "K[0]" else str(name) for name in golden["names"]]
    order = [adjacency.names().index(name) for name in names]
    assert len(order) == adjacency.count
    assert np.array_equal(adjacency.dense().numpy()[np.ix_(order, order)], golden["mask"].astype(bool))


# -- programs of the paper -----------------------------------------------------------------------------------


def hand_declared(m=3, n=3, k=2):
    g = unn.FactorGraph("product", i=m, j=n, k=k)
    A, R = g.variable("A", "i k", unn.Box(0, 1)), g.variable("R", "k j", unn.BinaryEntropy())
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
    "formatted": (lambda t, x, z, C: f"{x[0]:.2f}", ["a text", "'.2f'", "'x[0]'", "random"]),
    "whole numbers": (lambda t, x, z, C: x.astype(int), ["astype(int64)", "'x[0]'", "np.floor"]),
    "math": (lambda t, x, z, C: math.exp(x[0]), ["math", "np.exp"]),
    "list index": (lambda t, x, z, C: [1, 2, 3][z], ["'z'", "t.constant(array)[index]"]),
    "key": (lambda t, x, z, C: {0: 1.0}[z], ["'z'", "key", "t.constant(array)[index]"]),
    "set": (lambda t, x, z, C: {x[0]}, ["'x[0]'", "member of a set"]),
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
    "arguments of a method": (lambda t, x, z, C: x.clip(0, 1, 2, 3), ["np.clip", "too many"]),
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


def test_programs_whose_arguments_do_not_fit_are_refused():
    with pytest.raises(unn.DeclarationError, match="too many positional arguments.* tracer t"):
        unn.trace(lambda: None)
    with pytest.raises(unn.DeclarationError, match="missing a required argument: 'n'"):
        unn.trace(lambda t, n: None)


def test_tensors_with_a_gradient_are_constants_of_a_program():
    mean = torch.ones(3, requires_grad=True)
    traced = unn.trace(lambda t: t.sample("x", Normal(mean, 1e-9)))
    assert traced.draw(2, seed=0)["x"].sub(1).abs().max() < 1e-6


def test_values_that_are_no_mapping_are_refused():
    traced = unn.trace(lambda t: t.sample("x", Normal()))
    for attempt in (lambda: traced.log_prob(None), lambda: traced.posterior(["x"])):
        with pytest.raises(unn.ObservationError, match="a mapping from names to tensors"):
            attempt()
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1))
    with pytest.raises(unn.ObservationError, match="a mapping from names to tensors"):
        model.sample("x")
