"""Factors over edge lists equal dense couplings with the same edges."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Cardinality, Clique, Conv2d, Depends, Different, Implicit, Multilinear, SumOfProducts
from unn.diffusion import MaskedDiffusion
from unn.graph.patterns import parse_pattern
from unn.graph.signature import graph_signature
from unn.graph.views import adjoint, view
from unn.ops.attention import AttentionMask, attention
from unn.testing import FactorContract

BATCH = 3
PENTAGON = ([0, 1, 2, 3, 4], [1, 2, 3, 4, 0])


def coupled(nodes, edges, values=2, regularizer=unn.Entropy, weights=None, dtype=torch.float64):
    """A variable s (node | value) and its couplings along edges: as an edge list, and as a matrix."""
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    listed = unn.FactorGraph("listed", node=nodes, value=values)
    s = listed.variable("s", "node | value", regularizer())
    listed.index("src", "edge", src, into="node")
    listed.index("dst", "edge", dst, into="node")
    weights = torch.ones(len(edges), dtype=torch.float64) if weights is None else weights.double()
    J = listed.parameter("J", "edge", init=weights)
    listed.factor(Multilinear(J["e"], s["src[e] v"], s["dst[e] v"], name="pairs"))
    matrix = torch.zeros(nodes, nodes, dtype=torch.float64)
    for (i, j), weight in zip(edges, weights.tolist(), strict=True):
        matrix[i, j] += weight
    dense = unn.FactorGraph("dense", node=nodes, value=values)
    t = dense.variable("s", "node | value", regularizer())
    # two axes of nodes, so that "other" is tied to "node" by the letters alone
    dense.factor(
        Multilinear(dense.parameter("J", "node node", init=matrix)["i j"], t["i v"], t["j v"], name="pairs")
    )
    return listed.to(dtype), dense.to(dtype)


@st.composite
def graphs(draw, loops=True):
    """The number of nodes of a graph and its edges: none, repeated ones and loops among them."""
    nodes = draw(st.integers(1, 6))
    every = [pair for pair in itertools.product(range(nodes), repeat=2) if loops or pair[0] != pair[1]]
    edges = draw(st.lists(st.sampled_from(every), max_size=9)) if every else []
    return nodes, edges


def point(nodes, values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(BATCH, nodes, values, dtype=torch.float64, generator=generator), 2)


# -- energies, messages, derivatives -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_energies_and_messages_are_those_of_a_matrix_with_the_same_edges(case, seed):
    nodes, edges = case
    weights = torch.randn(len(edges), generator=torch.Generator().manual_seed(seed))
    listed, dense = coupled(nodes, edges, weights=weights)
    x = point(nodes, 2, seed)
    torch.testing.assert_close(listed.energy({"s": x}), dense.energy({"s": x}))
    messages = [g.factors["pairs"].message("s", {"s": x, "J": g.J}).expand(x.shape) for g in (listed, dense)]
    torch.testing.assert_close(*messages)


@settings(max_examples=20, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_gradients_of_weights_are_those_of_the_entries_of_a_matrix(case, seed):
    nodes, edges = case
    listed, dense = coupled(nodes, edges)
    x = point(nodes, 2, seed)
    gradient, matrix = (
        torch.autograd.grad(g.factors["pairs"].message("s", {"s": x, "J": g.J}).square().sum(), g.J)[0]
        for g in (listed, dense)
    )
    torch.testing.assert_close(
        gradient, torch.stack([matrix[i, j] for i, j in edges]) if edges else matrix.new_zeros(0)
    )


def test_second_derivatives_of_energies_and_messages_are_right():
    listed, _ = coupled(5, list(zip(*PENTAGON, strict=True)), weights=torch.linspace(-1, 1, 5))
    factor = listed.factors["pairs"]
    x = point(5, 2)[:1].requires_grad_()
    J = listed.J.detach().clone().requires_grad_()
    torch.autograd.gradgradcheck(lambda x, J: factor.energy({"s": x, "J": J}), (x, J), fast_mode=True)
    torch.autograd.gradgradcheck(
        lambda x, J: factor.message("s", {"s": x, "J": J}).sin(), (x, J), fast_mode=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_have_the_dtype_of_the_values(dtype):
    listed, _ = coupled(3, [(0, 1), (1, 2)], dtype=dtype)
    message = listed.factors["pairs"].message("s", {"s": point(3, 2).to(dtype), "J": listed.J})
    assert message.dtype == dtype


PATTERNS = [
    "src[e]",
    "src[e] d",
    "d src[e]",
    "src[e] dst[e]",
    "src[e] d dst[e]",
    "src[e] d dst[f]",
    "src[e+1] d",
    "src[e] e",
    "src[e] (e f)",
]
PATTERNS += ["src[e] (d f) dst[e]", "d dst[f] e src[f]", "src[e] d d", "src[e] d+1", "src[e-1] e+1"]


@pytest.mark.parametrize("text", PATTERNS)
def test_a_view_has_the_entries_that_the_pattern_names_and_its_adjoint_is_the_transpose(text):
    pattern = parse_pattern(text)
    g = unn.FactorGraph("numbers")
    indices = {
        "src": g.index("src", "edge", [4, 0, 4, 2], into="node"),
        "dst": g.index("dst", "edge", [1, 1, 3, 0], into="node"),
    }
    sizes = {"e": 2, "f": 3, "d": 2}
    starts = {letter: 1 for letter in "ed" if f"{letter}-1" in text}
    shape = tuple({"e f": 6, "d f": 6}.get(" ".join(dim.letters), 5) for dim in pattern.dimensions)
    shape = tuple(
        2 if dim.letters == ("d",) and not dim.shift and dim.index is None else n
        for dim, n in zip(pattern.dimensions, shape, strict=True)
    )
    x = torch.randn(BATCH, *shape, dtype=torch.float64)
    seen = view(x, pattern, sizes, starts, indices)
    assert seen.shape == (BATCH, *(sizes[letter] for letter in pattern.letters))
    for values in itertools.product(*(range(sizes[letter]) for letter in pattern.letters)):
        at = {letter: k + starts.get(letter, 0) for letter, k in zip(pattern.letters, values, strict=True)}
        entry = []
        for dim in pattern.dimensions:
            along = 0
            for letter in dim.letters:
                along = along * sizes[letter] + at[letter]
            along += dim.shift
            entry.append(int(indices[dim.index].numbers[along]) if dim.index else along)
        torch.testing.assert_close(seen[(slice(None), *values)], x[(slice(None), *entry)])
    m = torch.randn_like(seen)
    back = adjoint(m, pattern, sizes, starts, shape, indices)
    torch.testing.assert_close((back.expand(x.shape) * x).sum(), (m * seen).sum())


class TestEdgeListContract(FactorContract):
    def graph(self):
        g = unn.FactorGraph("edges", node=4, v=2)
        s = g.variable("s", "node | v", unn.Entropy())
        z = g.variable("z", "edge", unn.SignedEntropy())
        g.index("src", "edge", [0, 1, 2, 0, 0], into="node")
        g.index("dst", "edge", [1, 2, 3, 3, 1], into="node")
        T, W = g.parameter("T", "v w", init="normal"), g.parameter("W", "node node", init="normal")
        g.factor(Multilinear(z["e"], s["src[e] v"], T["v w"], s["dst[e] w"]))
        g.factor(Multilinear(W["src[e] dst[e]"], s["src[e] v"], s["dst[e] v"]))
        g.factor(Multilinear(z["e"], z["e+1"], s["src[e] v"]))
        return g


# -- inference -----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_energies_never_rise_and_the_end_is_stationary(case, seed):
    nodes, edges = case
    weights = 2 * torch.randn(len(edges), generator=torch.Generator().manual_seed(seed))
    listed, dense = coupled(nodes, edges, weights=weights)
    x = point(nodes, 2, seed)
    out = unn.infer(listed, {}, order=["s"], initial={"s": x}, iterations=6)
    assert float(out.energy.diff(dim=0).amax()) <= 1e-9 if len(out.energy) > 1 else True
    assert (out.energy[-1] <= listed.energy({"s": x}) + 1e-9).all()
    torch.testing.assert_close(out.energy[-1], dense.energy({"s": out["s"]}))


@settings(max_examples=20, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_inference_of_a_strictly_convex_energy_finds_the_minimum_of_the_matrix(case, seed):
    nodes, edges = case
    # every node has at most 2 * 9 * 0.05 of coupling, below the curvature 1 of the squared norm
    listed, dense = coupled(nodes, edges, regularizer=unn.SquaredNorm, weights=0.05 * torch.ones(len(edges)))
    field = torch.randn(nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for g in (listed, dense):
        g.factor(Multilinear(g.constant("h", "node value", field)["i v"], g["s"]["i v"]))
    out = unn.infer(listed, {}, order=["s"], initial={"s": "uniform"}, until=1e-12, iterations=400)
    hessian = torch.eye(nodes, dtype=torch.float64) - dense.J.detach() - dense.J.detach().T
    torch.testing.assert_close(out["s"][0], torch.linalg.solve(hessian, field), rtol=1e-4, atol=1e-5)


def test_nodes_without_an_edge_between_them_are_updated_together_and_loops_by_the_inner_solver():
    hexagon, _ = coupled(6, [(k, (k + 1) % 6) for k in range(6)])
    out = unn.infer(hexagon, {}, order=["s"], initial={"s": "random"}, iterations=1)
    assert out.schedule == ("s (3 nodes)", "s (3 nodes)")
    loop, _ = coupled(3, [(0, 1), (2, 2)])
    assert unn.infer(loop, {}, order=["s"], initial={"s": "random"}, iterations=1).schedule == ("s",)


def test_an_edge_list_with_variables_of_edges_runs_both_ways():
    g = unn.FactorGraph("network", node=4, v=3)
    s, z = g.variable("s", "node | v", unn.Entropy()), g.variable("z", "edge", unn.SignedEntropy())
    g.index("src", "edge", [0, 1, 2], into="node")
    g.index("dst", "edge", [1, 2, 3], into="node")
    g.factor(Multilinear(z["e"], s["src[e] v"], s["dst[e] v"]))
    x = torch.softmax(torch.randn(2, 4, 3), 2)
    forward = unn.infer(g, {"s": x}, order=["z"])
    torch.testing.assert_close(forward["z"], torch.tanh((x[:, :-1] * x[:, 1:]).sum(2)))
    back = unn.infer(g, {"z": forward["z"]}, order=["s"], initial={"s": "random"}, iterations=5)
    assert back["s"].shape == (2, 4, 3)
    assert float(back.energy.diff(dim=0).amax()) <= 1e-6


def test_a_graph_without_edges_has_no_coupling():
    listed, _ = coupled(3, [])
    out = unn.infer(listed, {}, order=["s"], initial={"s": "random"}, iterations=2)
    torch.testing.assert_close(out["s"], torch.full((1, 3, 2), 0.5, dtype=torch.float64))
    assert listed.adjacency().dense().equal(torch.eye(3, dtype=torch.bool))


def test_one_example_is_its_row_in_a_batch():
    listed, _ = coupled(5, list(zip(*PENTAGON, strict=True)))
    x = point(5, 2)
    whole = unn.infer(listed, {}, order=["s"], initial={"s": x}, iterations=4)["s"]
    for k in range(BATCH):
        torch.testing.assert_close(
            unn.infer(listed, {}, order=["s"], initial={"s": x[k : k + 1]}, iterations=4)["s"],
            whole[k : k + 1],
        )


def test_weights_of_edges_can_differ_between_examples():
    g = unn.FactorGraph("weighted", node=3)
    s, J = g.variable("s", "node", unn.SignedEntropy()), g.constant("J", "edge")
    g.index("src", "edge", [0, 1], into="node")
    g.index("dst", "edge", [1, 2], into="node")
    g.factor(Multilinear(J["e"], s["src[e]"], s["dst[e]"]))
    x, weights = torch.rand(2, 3), torch.tensor([[1.0, 2.0], [0.0, -3.0]])
    expected = -(weights * x[:, :-1] * x[:, 1:]).sum(1)
    torch.testing.assert_close(
        g.energy({"s": x, "J": weights}, by_factor=True)["Multilinear(J, s, s)"], expected
    )


def test_the_number_of_nodes_may_be_dynamic():
    g = unn.FactorGraph("open")
    s = g.variable("s", "node", unn.SignedEntropy())
    h = g.constant("h", "node")
    g.index("src", "edge", [0, 1], into="node")
    g.index("dst", "edge", [1, 2], into="node")
    g.factor(Multilinear(s["src[e]"], s["dst[e]"]))
    g.factor(Multilinear(h["i"], s["i"]))
    for nodes in (3, 5):
        assert unn.infer(g, {"h": torch.ones(nodes)}, order=["s"], initial={"s": "uniform"})["s"].shape == (
            1,
            nodes,
        )
    with pytest.raises(unn.ObservationError, match="entry 1 of index 'dst' is 2, but axis 'node' has size 2"):
        unn.infer(g, {"h": torch.ones(2)}, order=["s"], initial={"s": "uniform"})


def test_padded_nodes_and_their_edges_leave_the_result_of_the_others():
    g = unn.FactorGraph("ragged")
    s, h = g.variable("s", "node", unn.SignedEntropy()), g.constant("h", "node")
    g.index("src", "edge", [0, 1, 2], into="node")
    g.index("dst", "edge", [1, 2, 3], into="node")
    J = g.constant("J", "edge", torch.tensor([0.3, -0.5, 0.7]))
    g.factor(Multilinear(J["e"], s["src[e]"], s["dst[e]"]))
    g.factor(Multilinear(h["i"], s["i"]))
    field = torch.randn(2, 4)
    out = unn.infer(
        g,
        {"h": field},
        order=["s"],
        initial={"s": "uniform"},
        until=1e-7,
        lengths={"node": torch.tensor([4, 2])},
    )
    short = unn.FactorGraph("short")
    t = short.variable("s", "node", unn.SignedEntropy())
    short.factor(Multilinear(short.constant("J", "", torch.tensor(0.3))[""], t["i"], t["i+1"]))
    short.factor(Multilinear(short.constant("h", "node")["i"], t["i"]))
    expected = unn.infer(short, {"h": field[1:, :2]}, order=["s"], initial={"s": "uniform"}, until=1e-7)
    torch.testing.assert_close(out["s"][1, :2], expected["s"][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", ["edge", "node"])
def test_padding_that_would_count_is_refused(axis):
    g = unn.FactorGraph("ragged", node=3)
    s = g.variable("s", "node", unn.SignedEntropy())
    z = g.variable("z", "edge", unn.SignedEntropy())
    g.index("src", "edge", [0, 1, 2], into="node")
    g.index("dst", "edge", [1, 2, 0], into="node")
    if axis == "edge":
        g.factor(Multilinear(s["src[e]"], s["dst[e]"], g.parameter("J", "edge", init="ones")["e"]))
    else:
        g.factor(Multilinear(z["e"], g.parameter("p", "node", init="ones")["src[e]"]))
    with pytest.raises(unn.ObservationError, match=f"ragged axis '{axis}'"):
        unn.infer(
            g,
            {
                "s": torch.zeros(1, 3),
                "z": unn.Partial(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool)),
            },
            lengths={axis: torch.tensor([2])},
            order=["z"],
        )


# -- structure -----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(graphs(), st.sampled_from(["Multilinear", "Different", "Depends", "Clique", "Cardinality"]))
def test_two_nodes_interact_if_an_edge_joins_them(case, kind):
    nodes, edges = case
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    g = unn.FactorGraph("edges", node=nodes, value=3)
    s = g.variable("s", "node | value", unn.Entropy())
    g.index("src", "edge", src, into="node")
    g.index("dst", "edge", dst, into="node")
    one, other = s["src[e] v"], s["dst[e] v"]
    factors = {
        "Multilinear": lambda: Multilinear(one, other),
        "Different": lambda: Different(one, other),
        "Depends": lambda: Depends(one, other),
        "Clique": lambda: Clique(one, other, each="e"),
        # pairs of ends, one below the other
        "Cardinality": lambda: Cardinality(s["ends[k] v"], each="v"),
    }
    if kind == "Cardinality":
        g.index("ends", "end", [*src, *dst], into="node")
    g.factor(factors[kind]())
    joined = torch.eye(nodes, dtype=torch.bool)
    members = sorted({*src, *dst})
    for i, j in itertools.product(members, members) if kind == "Cardinality" else edges:
        joined[i, j] = joined[j, i] = True
    adjacency = g.adjacency()
    assert adjacency.dense().equal(joined)


@settings(max_examples=15, deadline=None)
@given(graphs(), st.sampled_from(["dense", "relational", "packed", "sparse"]), st.integers(0, 100))
def test_attention_over_edges_is_masked_attention(case, kernel, seed):
    nodes, edges = case
    mask = AttentionMask(coupled(nodes, edges)[0].adjacency())
    q, k, v = torch.randn(3, 2, 1, nodes, 4, generator=torch.Generator().manual_seed(seed))
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.adjacency.dense())
    torch.testing.assert_close(attention(q, k, v, mask, kernel), dense, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [Multilinear, Different, Clique, Depends])
def test_no_relation_holds_a_pair_twice(make):
    g = unn.FactorGraph("repeated", node=4, value=2)
    s = g.variable("s", "node | value", unn.Entropy())
    g.index("src", "edge", [0, 0, 1, 3, 0], into="node")
    g.index("dst", "edge", [1, 1, 2, 3, 2], into="node")
    options = {"each": "e"} if make is Clique else {}
    factor = g.factor(make(s["src[e] v"], s["dst[e] v"], **options))
    for relation in factor.interactions({"s": (4, 2)}):
        pairs = list(zip(*(nodes.tolist() for nodes in relation.pairs), strict=True))
        assert len(pairs) == len(set(pairs)) > 0


def test_looked_up_axes_are_not_exchangeable():
    g = unn.FactorGraph("star", node=4, value=2, copy=3)
    s, t = g.variable("s", "copy node | value", unn.Entropy()), g.variable("t", "node", unn.SignedEntropy())
    g.index("src", "edge", [0, 0, 0], into="node")
    g.index("dst", "edge", [1, 2, 3], into="node")
    g.factor(Different(s["k src[e] v"], s["k dst[e] v"]))
    g.factor(Clique(s["k i v"], t["i"], each="i"))
    assert [symmetry.name for symmetry in g.symmetries()] == ["s.copy"]


# -- declaring -----------------------------------------------------------------------------------------------


def test_sizes_follow_from_an_index():
    g = unn.FactorGraph("sizes", node=4)
    s = g.variable("s", "place", unn.SignedEntropy())
    g.index("src", "edge", torch.tensor([0, 1, 3], dtype=torch.int32), into="node")
    J = g.parameter("J", "weight")
    g.factor(Multilinear(J["e"], s["src[e]"]))
    assert g.J.shape == (3,)
    assert g.size_table.shape(s, g.size_table.static) == (4,)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 5], "entry 1 of index 'src' is 5, but axis 'node' has size 5"),
        ([0, -1], "index 'src': entry 1 is -1"),
        ([0.0, 1.0], "index 'src': its numbers have dtype torch.float32.*long"),
        (torch.tensor([True]), "index 'src': its numbers have dtype torch.bool"),
        ([[0, 1]], "index 'src' has 1 axes.*shape"),
        ([0, 1, 2], "index 'src' has size 2 along axis 'edge'.*\\(3,\\)"),
        ("ab", "index 'src': its numbers cannot be made a tensor"),
    ],
)
def test_wrong_numbers_are_refused_by_name_and_leave_no_trace(numbers, message):
    g = unn.FactorGraph("wrong", node=5, edge=2)
    g.variable("s", "node", unn.SignedEntropy())
    with pytest.raises(unn.DeclarationError, match=message):
        g.index("src", "edge", numbers, into="node")
    assert "src" not in g.arrays
    g.index("src", "edge", [0, 1], into="node")


def test_wrong_uses_of_an_index_are_refused_by_name():
    g = unn.FactorGraph("wrong", node=5, row=3, column=3)
    s, image = g.variable("s", "node", unn.SignedEntropy()), g.variable("X", "row column", unn.SquaredNorm())
    src, J = g.index("src", "edge", [0, 1], into="node"), g.parameter("J", "edge")
    for reference, words in {
        s["scr[e]"]: "unknown index 'scr'.*Did you mean 'src'",
        s["J[e]"]: "'J' is a parameter, not an index",
        image["src[e] j"]: "index 'src' ties axis 'node' \\(size 5\\) to axis 'row' \\(size 3\\)",
    }.items():
        with pytest.raises(unn.DeclarationError, match=words):
            g.factor(Multilinear(J["e"], reference))
    with pytest.raises(unn.DeclarationError, match="index 'src' has no values to multiply"):
        src["e"]
    with pytest.raises(unn.DeclarationError, match="Wholesale cannot look up entries"):
        g.factor(Wholesale(s["src[e]"]))
    with pytest.raises(unn.DeclarationError, match="one axis"):
        g.index("pairs", "edge end", [[0, 1]], into="node")
    with pytest.raises(unn.ObservationError, match="'src' is an index"):
        unn.infer(g, {"src": torch.zeros(2)}, order=["s"])
    with pytest.raises(unn.DeclarationError, match="index 'src' is not known before the factor is added"):
        Multilinear(s["src[e]"]).energy({"s": torch.zeros(1, 5)})
    assert not g.factors


class Wholesale(unn.EnergyFactor):
    """A factor of another package that knows nothing of indices."""

    def energy(self, values):
        return values["s"].sum(1)


@pytest.mark.parametrize(
    "text",
    ["src[]", "src[e", "src[e f]", "src[(e f)]", "(src[e] f)", "src[e]]", "[e]", "src[dst[e]]", "src[e*2]"],
)
def test_brackets_hold_one_letter(text):
    with pytest.raises(unn.DeclarationError, match="cannot be read at character"):
        parse_pattern(text)


@pytest.mark.parametrize("text", ["src[e]", "src[e+1] d", "i src[e-2] (a b)"])
def test_printing_and_parsing_of_indices_is_the_identity(text):
    assert str(parse_pattern(text)) == text
    assert parse_pattern(text.replace("[", " [ ").replace("]", " ]")) == parse_pattern(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda g: Conv2d(g["X"], g["W"], g["X"]),
        lambda g: Implicit(lambda x: x.sum((1, 2)), g["X"]["src[e] j"]),
    ],
)
def test_factors_of_whole_arrays_refuse_indices(make):
    g = unn.FactorGraph("whole", row=3, column=3)
    g.variable("X", "row column", unn.SquaredNorm())
    g.parameter("W", "a b")
    g.index("src", "edge", [0, 1], into="row")
    with pytest.raises(unn.DeclarationError):
        g.factor(make(g))


def test_the_graph_describes_its_edges():
    listed, _ = coupled(5, list(zip(*PENTAGON, strict=True)))
    text = " ".join(listed.explain().split())
    assert "src: index along edge = 5; its numbers are entries of axis node" in text
    assert "-sum J[e] s[src[e] v] s[dst[e] v]" in text
    assert "(J[e] s[dst[e] v] at [src[e] v]) + (J[e] s[src[e] v] at [dst[e] v])" in text
    for picture in (listed.to_mermaid(), listed.to_dot()):
        assert "J" in picture


def test_weights_of_other_edges_have_another_signature():
    first, same, other = (
        coupled(3, edges)[0] for edges in ([(0, 1), (1, 2)], [(0, 1), (1, 2)], [(0, 1), (2, 1)])
    )
    assert graph_signature(first) == graph_signature(same)
    assert graph_signature(first) != graph_signature(other)


def test_indices_survive_copies_and_stay_out_of_the_weights():
    listed, _ = coupled(5, list(zip(*PENTAGON, strict=True)))
    assert set(listed.state_dict()) == {"J"}
    x = {"s": point(5, 2)}
    buffer = io.BytesIO(pickle.dumps(listed))
    for again in (copy.deepcopy(listed), pickle.load(buffer)):
        torch.testing.assert_close(again.energy(x), listed.energy(x))


# -- constraints ---------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(0, 10_000))
def test_violations_are_the_edges_whose_ends_are_equal(case, seed):
    nodes, edges = case
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    g = unn.FactorGraph("colouring", node=nodes, colour=3)
    cell = g.variable("cell", "node | colour", unn.Entropy())
    g.index("src", "edge", src, into="node")
    g.index("dst", "edge", dst, into="node")
    factor = g.factor(Different(cell["src[e] c"], cell["dst[e] c"]))
    colours = torch.randint(3, (4, nodes), generator=torch.Generator().manual_seed(seed))
    values = {"cell": torch.nn.functional.one_hot(colours, 3).float()}
    expected = [sum(row[i] == row[j] for i, j in edges) for row in colours.tolist()]
    assert factor.violations_of(values).tolist() == expected
    assert isinstance(factor, unn.Constraint)


def test_different_compares_shifted_neighbours_and_spins_as_well():
    g = unn.FactorGraph("alternating", place=4)
    s = g.variable("s", "place", unn.SignedEntropy())
    factor = g.factor(Different(s["i"], s["i+1"]))
    values = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, float("nan")]])
    assert factor.violations_of({"s": values}).tolist() == [0, 2]


def test_different_refuses_values_that_cannot_be_compared():
    g = unn.FactorGraph("wrong", node=3, colour=3)
    x, y = (
        g.variable("x", "node | colour", unn.Entropy()),
        g.variable("y", "node colour", unn.SignedEntropy()),
    )
    with pytest.raises(unn.DeclarationError, match="same letters"):
        Different(x["i c"], x["j c"])
    with pytest.raises(unn.DeclarationError, match="feature axes are c in x.*none in y"):
        Different(x["i c"], y["i c"])
    with pytest.raises(unn.DeclarationError, match="'W' is a parameter"):
        Different(x["i c"], g.parameter("W", "node colour")["i c"])


def test_values_with_fewer_nodes_than_the_edges_name_are_refused():
    g = unn.FactorGraph("open", colour=2)
    x = g.variable("x", "node | colour", unn.Entropy())
    g.index("src", "edge", [0, 3], into="node")
    g.index("dst", "edge", [1, 2], into="node")
    factor = g.factor(Different(x["src[e] c"], x["dst[e] c"], name="ends"))
    with pytest.raises(
        unn.ObservationError, match="'ends'.*entry 1 of index 'src' is 3, but axis 'node' has size 3"
    ):
        factor.violations_of({"x": torch.zeros(1, 3, 2)})


def test_sums_of_products_over_edges_are_checked():
    g = unn.FactorGraph("flows", node=3)
    x, d = g.variable("x", "node", unn.SquaredNorm()), g.variable("d", "edge", unn.SquaredNorm())
    g.index("src", "edge", [0, 1], into="node")
    g.index("dst", "edge", [1, 2], into="node")
    factor = g.factor(SumOfProducts(d["e"], x["src[e]"], x["dst[e]"], within=0.0))
    values = {"x": torch.tensor([[2.0, 3.0, 4.0]]), "d": torch.tensor([[6.0, 11.0]])}
    assert factor.violations_of(values).tolist() == [1]


def test_samples_that_break_a_constraint_over_edges_are_drawn_again():
    torch.manual_seed(0)
    g = unn.FactorGraph("path", node=3, colour=3)
    cell = g.variable("cell", "node | colour", unn.Entropy())
    g.index("src", "edge", [0, 1], into="node")
    g.index("dst", "edge", [1, 2], into="node")
    ends = g.factor(Different(cell["src[e] c"], cell["dst[e] c"]))
    model = MaskedDiffusion(unn.Denoiser(g, width=8, heads=1, depth=1))
    once = model.sample({}, count=24, verify=True, seed=0)
    often = model.sample({}, count=24, verify=True, tries=60, seed=0)
    assert once.valid.tolist() == (ends.violations_of(once.values) == 0).tolist()
    assert not once.valid.all()
    assert often.valid.all()
    assert (ends.violations_of(often.values) == 0).all()
