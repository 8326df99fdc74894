"""Orders that choose blocks by their decrease, and blocks side by side."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Implicit, Multilinear
from unn.errors import InferenceError

KINDS = (unn.SignedEntropy, unn.BinaryEntropy, unn.Entropy, unn.SquaredNorm)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_graph(seed, norm=0.4):
    pick = torch.randint(len(KINDS), (3,), generator=seeded(seed)).tolist()
    g = unn.FactorGraph("random", x=4, a=4, b=3, c=3)
    x = g.variable("X", "x", unn.SquaredNorm())
    a, b, c = (g.variable(name.upper(), name, KINDS[k]()) for name, k in zip("abc", pick, strict=True))
    for one, other, name, axes in (
        (x, a, "P", "x a"),
        (a, b, "Q", "a b"),
        (b, c, "R", "b c"),
        (a, c, "S", "a c"),
    ):
        first, second = axes.split()
        g.factor(Multilinear(one[first], g.parameter(name, axes)[axes], other[second]))
    g.double()
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(seed), dtype=torch.float64))
            p.mul_(norm / torch.linalg.matrix_norm(p, 2))
    return g, torch.randn(3, 4, generator=seeded(seed + 1), dtype=torch.float64)


def grid(rows=5, columns=4, coupling=0.3, regularizer=unn.SignedEntropy):
    g = unn.FactorGraph("grid", r=rows, c=columns)
    s = g.variable("S", "r c", regularizer())
    j, h = (
        g.constant("J", "", torch.tensor(coupling)),
        g.constant("h", "r c", torch.rand(rows, columns, generator=seeded(1))),
    )
    g.factor(Multilinear(j[""], s["i j"], s["i+1 j"]))
    g.factor(Multilinear(j[""], s["i j"], s["i j+1"]))
    g.factor(Multilinear(h["i j"], s["i j"]))
    return g


def cells(rows=5, columns=4):
    blocks = []
    for k in range(rows * columns):
        nodes = torch.zeros(rows * columns, dtype=torch.bool)
        nodes[k] = True
        blocks.append(unn.Block("S", nodes.view(rows, columns)))
    return blocks


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_all_orders_end_at_the_same_fixed_point_of_a_strictly_convex_energy(seed):
    g, x = random_graph(seed)
    names = ["A", "B", "C"]
    ends = [
        unn.infer(g, {"X": x}, order=order, until=1e-12, generator=seeded(seed))
        for order in (names, unn.RandomOrder(names), unn.Greedy(names), unn.Coloured(names))
    ]
    for out in ends:
        assert out.converged
        for name in names:
            torch.testing.assert_close(out[name], ends[0][name], atol=1e-6, rtol=0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), norm=st.sampled_from([0.4, 2.0]))
def test_energies_never_rise_under_greedy_and_coloured_orders(seed, norm):
    g, x = random_graph(seed, norm if norm < 1 else 0.45)
    for order in (unn.Greedy(["A", "B", "C"]), unn.Coloured(["C", "A", "B"])):
        energy = unn.infer(
            g, {"X": x}, order=order, iterations=12, initial=dict.fromkeys("ABC", "uniform")
        ).energy
        for before, after in pairwise(energy):
            assert bool((after <= before + 1e-9 * (1 + before.abs())).all())


def alternatives(g, x, values):
    """The energy after an update of each variable alone, shape (variables, batch)."""
    names = list(values)
    result = []
    for name in names:
        out = unn.infer(g, {"X": x}, order=[name], iterations=1, initial=values)
        result.append(out.energy[-1])
    return names, torch.stack(result)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_greedy_round_takes_the_update_with_the_lowest_energy_in_each_batch_element(seed):
    g, x = random_graph(seed)
    values = {
        name: g.variables[name].regularizer.mirror(
            torch.randn(
                3, *(g.size_table.static[name.lower()],), generator=seeded(seed + k), dtype=torch.float64
            )
        )
        for k, name in enumerate("ABC")
    }
    _, energies = alternatives(g, x, values)
    out = unn.infer(g, {"X": x}, order=unn.Greedy(["A", "B", "C"]), iterations=1, initial=values)
    torch.testing.assert_close(out.energy[-1], energies.amin(0), atol=1e-10, rtol=0)


def test_a_batch_element_is_greedy_as_it_is_alone():
    g, x = random_graph(3)
    options = {"order": unn.Greedy(["A", "B", "C"]), "iterations": 7}
    together = unn.infer(g, {"X": x}, **options)
    for k in range(3):
        alone = unn.infer(g, {"X": x[k : k + 1]}, **options)
        for name in "ABC":
            torch.testing.assert_close(together[name][k], alone[name][0])
            torch.testing.assert_close(together.preactivations[name][k], alone.preactivations[name][0])


def test_greedy_orders_reach_blocks_without_a_closed_form():
    g = unn.FactorGraph("curved", n=3)
    x = g.variable("X", "n", unn.SquaredNorm())
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SignedEntropy())
    g.factor(Multilinear(x["i"], b["i"]))
    g.factor(Implicit(lambda a, b: 0.2 * (a - b).square().sum(1).cosh(), a["i"], b["i"]))
    x = torch.tensor([[1.0, -0.5, 0.2]], dtype=torch.float64)
    listed = unn.infer(g, {"X": x}, order=["A", "B"], until=1e-10)
    greedy = unn.infer(g, {"X": x}, order=unn.Greedy(["A", "B"]), until=1e-10)
    torch.testing.assert_close(greedy["B"], listed["B"], atol=1e-7, rtol=0)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1000.0])
@pytest.mark.parametrize(("dtype", "until"), [(torch.float32, 1e-3), (torch.float64, 1e-10)])
def test_no_update_changes_more_than_the_tolerance_where_greedy_orders_have_converged(offset, dtype, until):
    # decreases of the energy are lost beside the energy of a large entry
    g = unn.FactorGraph("pair", n=3)
    x, y = (g.variable(name, "n", unn.SquaredNorm()) for name in "xy")
    generator = torch.Generator().manual_seed(0)
    couplings = 0.2 * torch.randn(3, 3, generator=generator, dtype=dtype)
    bias = torch.tensor([offset, 0.3, -0.5], dtype=dtype)
    g.factor(Multilinear(g.constant("w", "n m", couplings)["i j"], x["i"], y["j"]))
    g.factor(Multilinear(g.constant("b", "n", bias)["i"], x["i"]))
    start = {"x": torch.zeros(1, 3, dtype=dtype), "y": torch.ones(1, 3, dtype=dtype)}
    out = unn.infer(g, {}, order=unn.Greedy(["x", "y"]), initial=start, until=until, iterations=3000)
    assert out.status.value == "converged"
    further = unn.infer(g, {}, order=["x", "y"], initial=out.values, iterations=1)
    assert all(float((further[name] - out[name]).abs().max()) <= until for name in "xy")


def test_networks_unroll_greedy_orders_with_gradients():
    g, x = random_graph(5)
    network = unn.Unrolled(g, "X", "C", unn.Greedy(["A", "B", "C"]), 40)
    long = unn.Unrolled(g, "X", "C", ["A", "B", "C"], 40)
    torch.testing.assert_close(network(x), long(x), atol=1e-6, rtol=0)
    ours, expected = (torch.autograd.grad(net(x).square().sum(), [g.P, g.Q, g.R]) for net in (network, long))
    for o, e in zip(ours, expected, strict=True):
        torch.testing.assert_close(o, e, atol=1e-6, rtol=0)


def test_cells_of_a_grid_are_two_colours_and_equal_one_after_another():
    g = grid()
    blocks = cells()
    once = unn.infer(g, {}, initial={"S": "uniform"}, order=unn.Coloured(blocks), iterations=1)
    assert once.updates == 2
    by_colour = [b for parity in (0, 1) for k, b in enumerate(blocks) if (k // 4 + k % 4) % 2 == parity]
    listed = unn.infer(g, {}, initial={"S": "uniform"}, order=by_colour, iterations=1)
    assert listed.updates == 20
    assert torch.equal(once["S"], listed["S"])
    assert torch.equal(once["S"], unn.infer(g, {}, initial={"S": "uniform"}, order=["S"])["S"])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_blocks_of_several_variables_equal_one_after_another(seed):
    g, x = random_graph(seed)
    halves = []
    for name, n in (("A", 4), ("B", 3), ("C", 3)):
        if isinstance(g.variables[name].regularizer, unn.Entropy):
            halves.append(name)
            continue
        nodes = torch.arange(n) < 2
        halves += [unn.Block(name, nodes), unn.Block(name, ~nodes)]
    coloured = unn.infer(g, {"X": x}, order=unn.Coloured(halves), iterations=2)
    listed = unn.infer(g, {"X": x}, order=["A", "B", "C"], iterations=2)
    assert coloured.updates == 6
    for name in "ABC":
        torch.testing.assert_close(coloured[name], listed[name])


def test_networks_take_coloured_orders():
    g, x = random_graph(2)
    coloured = unn.Unrolled(g, "X", "C", unn.Coloured(["A", "B", "C"]), 3)
    listed = unn.Unrolled(g, "X", "C", ["A", "B", "C"], 3)
    assert torch.equal(coloured(x), listed(x))


def test_nodes_in_two_blocks_are_refused():
    nodes = torch.ones(5, 4, dtype=torch.bool)
    with pytest.raises(InferenceError, match="'S'.*once"):
        unn.infer(grid(), {}, initial={"S": "uniform"}, order=unn.Coloured(["S", *cells()]))
    del nodes


@pytest.mark.parametrize("kind", [unn.Greedy, unn.Coloured])
@pytest.mark.parametrize("items", [[], "A", [1], None])
def test_orders_of_nothing_are_refused(kind, items):
    with pytest.raises(InferenceError, match=kind.__name__):
        kind(items)


def test_gradients_that_fix_the_updates_refuse_greedy_orders():
    g, _ = random_graph(0)
    with pytest.raises(InferenceError, match="Greedy chooses"):
        unn.Unrolled(g, "X", "C", unn.Greedy(["A", "B", "C"]), 3, gradient=unn.Checkpoint())


def test_orders_show_their_blocks():
    assert repr(unn.Greedy(["A", *cells()[:1]])) == "Greedy(['A', 'S (1 nodes)'])"
    assert repr(unn.Coloured(["A"])) == "Coloured(['A'])"


def split_choice():
    """A graph and initial values from which each of two batch elements first updates another variable."""
    g = unn.FactorGraph("split", d=3)
    a, b = g.variable("A", "d", unn.RMSNorm(epsilon=0.1)), g.variable("B", "d", unn.SignedEntropy())
    g.factor(Multilinear(a["i"], g.parameter("W", "d e", init=1.0)["i j"], b["j"]))
    g.double()
    with torch.no_grad():
        g.W.copy_(torch.randn(3, 3, generator=seeded(), dtype=torch.float64))
    scores = torch.tensor([[3.0, -2.0, 1.0], [-1.0, 0.5, 2.0]], dtype=torch.float64)
    initial = torch.tensor([[-0.5, 0.5, 0.2], [0.1, 0.3, -0.2]], dtype=torch.float64)
    return g, {"A": a.regularizer.mirror(scores), "B": initial}


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_greedy_energies_are_those_of_the_values_in_every_batch_element(rounds):
    g, start = split_choice()
    out = unn.infer(g, {}, order=unn.Greedy(["A", "B"]), initial=start, iterations=rounds)
    torch.testing.assert_close(out.energy[-1], g.energy(dict(out.values)))
    for element in range(2):
        alone = {name: x[element : element + 1] for name, x in start.items()}
        single = unn.infer(g, {}, order=unn.Greedy(["A", "B"]), initial=alone, iterations=rounds)
        torch.testing.assert_close(single.energy[-1], out.energy[-1, element : element + 1])


def test_greedy_energies_of_nodes_of_one_variable_are_those_of_the_values_in_every_batch_element():
    g = unn.FactorGraph("spins", n=2)
    X, s = g.variable("X", "n", unn.SquaredNorm()), g.variable("s", "n", unn.SignedEntropy())
    g.factor(Multilinear(s["i"], X["i"]))
    g.factor(Multilinear(s["i"], s["i+1"]))
    # each element first updates the node with the stronger field
    fields = torch.tensor([[2.0, 0.1], [0.1, 2.0]])
    for rounds in range(1, 5):
        out = unn.infer(g, {"X": fields}, order=unn.Greedy(["s"]), iterations=rounds)
        torch.testing.assert_close(out.energy[-1], g.energy(dict(out.values)))
        assert bool(out.energy.isfinite().all()) and bool((out.energy.diff(dim=0) < 1e-6).all())


def test_sums_of_messages_of_a_greedy_order_belong_to_the_values_or_are_nan():
    g, start = split_choice()
    out = unn.infer(g, {}, order=unn.Greedy(["A", "B"]), initial=start, iterations=1)
    for name, number in (("A", 1), ("B", 0)):
        t, regularizer = out.preactivations[name], g.variables[name].regularizer
        assert bool(t[1 - number].isnan().all())
        torch.testing.assert_close(regularizer.mirror(t[number, None])[0], out[name][number])
        assert torch.equal(out[name][1 - number], start[name][1 - number])


def test_a_greedy_network_refuses_sums_of_messages_of_a_variable_that_it_has_not_chosen():
    g, start = split_choice()
    c = g.variable("C", "d", unn.SquaredNorm())
    g.factor(Multilinear(c["i"], g.variables["A"]["i"]))
    given, options = torch.zeros(2, 3, dtype=torch.float64), {"initial": start}
    net = unn.Unrolled(g, "C", ["A", "B"], order=unn.Greedy(["A", "B"]), iterations=1, **options)
    with pytest.raises(InferenceError, match="greedy order has not chosen variable 'A' in 1 of 2"):
        net.preactivations(given)
    net = unn.Unrolled(g, "C", ["A", "B"], order=unn.Greedy(["A", "B"]), iterations=8, **options)
    assert all(bool(t.isfinite().all()) for t in net.preactivations(given))


def test_sums_of_messages_of_coloured_nodes_are_those_of_their_own_updates():
    g = unn.FactorGraph("line", label=2)
    y = g.variable("Y", "n | label", unn.Entropy())
    g.factor(Multilinear(y["i a"], g.parameter("T", "label other", init=1.0)["a b"], y["i+1 b"]))
    start = torch.rand(2, 5, 2, generator=seeded(1))
    start = start / start.sum(-1, keepdim=True)
    out = unn.infer(g, {}, order=["Y"], initial={"Y": start}, iterations=1)
    torch.testing.assert_close(out.preactivations["Y"].softmax(-1), out["Y"])
