"""Tables of declarations have the weights exp(-E) at all values of the domains' corners."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import (
    AllDifferent,
    Among,
    Cardinality,
    Different,
    Multilinear,
    SquaredResidual,
    Table,
    TreeEntropy,
)
from unn.errors import ArgumentError, DeclarationError, ObservationError
from unn.exact import ExactOptions, inference
from unn.exact.ground import ground
from unn.exact.nodes import Nodes
from unn.exact.reduction import reduce

SMALL = ExactOptions(search_seconds=0.1, attempts=6)


def chain(states=3, length=4):
    g = unn.FactorGraph("chain", time=length, state=states)
    s = g.variable("s", "time | state", unn.Entropy())
    T = g.parameter("T", "state next", init=1.0)
    b = g.parameter("b", "time state", init=1.0)
    g.factor(Multilinear(s["t i"], T["i j"], s["t+1 j"]))
    g.factor(Multilinear(b["t i"], s["t i"]))
    return g


def time_dependent():
    """A table for each step; that of the last time is used by no factor."""
    g = unn.FactorGraph("steps", time=4, state=2)
    s = g.variable("s", "time | state", unn.Entropy())
    T = g.parameter("T", "time state next", init=1.0)
    g.factor(Multilinear(s["t i"], T["t i j"], s["t+1 j"]))
    return g


def edges():
    g = unn.FactorGraph("edges", node=4, colour=3, edge=5)
    s = g.variable("s", "node | colour", unn.Entropy())
    src, dst = (
        g.index(n, "edge", e, into="node") for n, e in (("src", [0, 1, 2, 3, 1]), ("dst", [1, 2, 3, 0, 3]))
    )
    J = g.parameter("J", "edge", init=1.0)
    assert src and dst
    g.factor(Multilinear(J["e"], s["src[e] v"], s["dst[e] v"]))
    return g


def spins():
    g = unn.FactorGraph("spins", row=2, column=3)
    s = g.variable("s", "row column", unn.SignedEntropy())
    J = g.parameter("J", "", init=1.0)
    h = g.parameter("h", "row column", init=1.0)
    g.factor(Multilinear(J[""], s["r c"], s["r+1 c"]))
    g.factor(Multilinear(J[""], s["r c"], s["r c+1"]))
    g.factor(Multilinear(h["r c"], s["r c"]))
    return g


def mixed():
    """Binary nodes, categories, a third-order factor, a letter that is a node here and a feature there."""
    g = unn.FactorGraph("mixed", unit=3, option=3)
    x = g.variable("x", "unit", unn.BinaryEntropy())
    y = g.variable("y", "option", unn.Entropy())
    W = g.parameter("W", "unit option", init=1.0)
    g.factor(Multilinear(W["i c"], x["i"], y["c"]))
    g.factor(Multilinear(x["i"], y["i"], name="shared"))
    g.factor(Multilinear(W["i j"], x["i"], x["j"], where="i < j"))
    return g


def squares():
    """The same node twice in one term."""
    g = unn.FactorGraph("squares", unit=3)
    x = g.variable("x", "unit", unn.SignedEntropy())
    W = g.parameter("W", "unit other", init=1.0)
    g.factor(Multilinear(W["i j"], x["i"], x["j"]))
    return g


def unlike():
    """A condition between letters of features."""
    g = unn.FactorGraph("unlike", node=3, colour=3)
    s = g.variable("s", "node | colour", unn.Entropy())
    J = g.parameter("J", "colour other", init=1.0)
    g.factor(Multilinear(J["c d"], s["i c"], s["i+1 d"], where="c != d"))
    return g


def batched_constant():
    g = unn.FactorGraph("scored", word=3, tag=2)
    s = g.variable("s", "word | tag", unn.Entropy())
    b = g.constant("b", "word tag")
    T = g.parameter("T", "tag next", init=1.0)
    g.factor(Multilinear(b["i t"], s["i t"]))
    g.factor(Multilinear(s["i t"], T["t u"], s["i+1 u"]))
    return g


def split_features():
    g = unn.FactorGraph("split", node=2, a=2, b=2)
    t = g.variable("t", "node | pair", unn.Entropy())
    W = g.parameter("W", "a b", init=1.0)
    g.factor(Multilinear(W["x y"], t["i (x y)"]))
    return g


GRAPHS = {
    f.__name__: f for f in (chain, time_dependent, edges, spins, mixed, squares, unlike, split_features)
}


def corners(nodes):
    states = [range(size) for size in nodes.states]
    return torch.tensor(list(product(*states)))


def filled(g, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in g.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return g


@pytest.mark.parametrize("name", GRAPHS)
def test_weights_of_tables_are_those_of_the_energy(name):
    g = filled(GRAPHS[name]())
    nodes = Nodes(g, {})
    states = corners(nodes)
    values = nodes.values(states)
    energy = g.energy({n: x.float() for n, x in values.items()}).double()
    torch.testing.assert_close(ground(nodes).log_weight(states), -energy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_log_partition_and_marginals_are_those_of_all_values(name):
    g = filled(GRAPHS[name]())
    nodes = Nodes(g, {})
    values = nodes.values(corners(nodes))
    logs = -g.energy({n: x.float() for n, x in values.items()}).double()
    answer = unn.exact.marginals(g, options=SMALL)
    torch.testing.assert_close(answer.log_partition[0], logs.logsumexp(0), rtol=1e-5, atol=1e-5)
    for variable, x in values.items():
        mean = torch.einsum("k,k...->...", logs.softmax(0), x)
        torch.testing.assert_close(answer[variable][0], mean, rtol=1e-5, atol=1e-5)
    best = unn.exact.best_values(g, options=SMALL)
    torch.testing.assert_close(best.energy[0], -logs.amax(), rtol=1e-5, atol=1e-5)


def test_gradients_by_parameters_are_minus_the_expected_gradients_of_the_energy():
    g = filled(chain())
    nodes = Nodes(g, {})
    values = {n: x.float() for n, x in nodes.values(corners(nodes)).items()}
    gradients = torch.autograd.grad(unn.exact.log_partition(g, options=SMALL).sum(), list(g.parameters()))
    logs = -g.energy(values).double()
    expected = torch.autograd.grad(logs.logsumexp(0), list(g.parameters()))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_constants_of_a_batch_give_each_row_its_owntables_of():
    g = filled(batched_constant())
    b = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    answer = unn.exact.marginals(g, {"b": b}, options=SMALL)
    assert answer["s"].shape == (4, 3, 2)
    for row in range(4):
        alone = unn.exact.marginals(g, {"b": b[row : row + 1]}, options=SMALL)
        torch.testing.assert_close(alone["s"][0], answer["s"][row])
    with pytest.raises(ObservationError, match="constant 'b'"):
        unn.exact.marginals(g, options=SMALL)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_evidence_in_part_leaves_given_values_unchanged_and_conditions_the_rest(seed):
    generator = torch.Generator().manual_seed(seed)
    g = filled(chain(2, 4), seed)
    nodes = Nodes(g, {})
    states = corners(nodes)
    values = nodes.values(states)["s"]
    X = torch.eye(2)[torch.randint(2, (3, 4), generator=generator)]
    mask = torch.rand(3, 4, generator=generator) < 0.5
    answer = unn.exact.marginals(g, {"s": unn.Partial(X, mask)}, options=SMALL)
    logs = -g.energy({"s": values.float()}).double()
    for row in range(3):
        agrees = ((values == X[row]).all(2) | ~mask[row]).all(1)
        expected = torch.einsum("k,kts->ts", torch.where(agrees, logs, -torch.inf).softmax(0), values)
        torch.testing.assert_close(answer["s"][row], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(answer["s"][mask].float(), X[mask])


def counted(kind):
    g = unn.FactorGraph("counted", cell=4, value=4)
    x = g.variable("x", "cell | value", unn.Entropy())
    b = g.parameter("b", "cell value", init=1.0)
    g.factor(Multilinear(b["i v"], x["i v"]))
    g.factor(
        {
            "exactly": lambda: Cardinality(x["i v"], equals=1, each="v"),
            "at most": lambda: Cardinality(x["i v"], at_most=2, each="v"),
            "differ": lambda: AllDifferent(x["i v"], each=""),
            "neighbours": lambda: Different(x["i v"], x["i+1 v"]),
            "table": lambda: Table(x["i v"], x["i+1 w"], allowed=[(0, 1), (1, 2), (2, 3), (3, 0), (1, 0)]),
            "among": lambda: Among(
                x["i v"], group=[g.index("group", "cell", [0, 1, 1, 0], into="part")], each="v", at_most=1
            ),
        }[kind]()
    )
    return g


@pytest.mark.parametrize("chains", [False, True])
@pytest.mark.parametrize("kind", ["exactly", "at most", "differ", "neighbours", "table", "among"])
def test_constraints_that_count_leave_exactly_the_values_without_violations(kind, chains, monkeypatch):
    if chains:
        monkeypatch.setattr("unn.exact.counting._DIRECT", 1)
        monkeypatch.setattr("unn.exact.counting._LISTED", 1)
    g = filled(counted(kind))
    nodes = Nodes(g, {})
    values = nodes.values(corners(nodes))
    factors = g.factors.values()
    b = next(f for f in factors if isinstance(f, Multilinear))
    logs = -b.energy({"x": values["x"].float(), "b": g.b}).double()
    violated = torch.stack([c.violations_of(values) for c in g.constraints]).sum(0) > 0
    logs = torch.where(violated, -torch.inf, logs)
    answer = unn.exact.marginals(g, options=SMALL)
    torch.testing.assert_close(answer.log_partition[0], logs.logsumexp(0), rtol=1e-5, atol=1e-5)
    mean = torch.einsum("k,k...->...", logs.softmax(0), values["x"])
    torch.testing.assert_close(answer["x"][0], mean, rtol=1e-5, atol=1e-5)
    states = unn.exact.sample(g, 200, options=SMALL, generator=torch.Generator().manual_seed(0))["x"][0]
    assert torch.stack([c.violations_of({"x": states}) for c in g.constraints]).sum() == 0


def test_the_number_of_small_sudokus_is_exact():
    g = unn.FactorGraph("sudoku", row=4, column=4, digit=4, R=2, C=2)
    X = g.variable("X", "row column | digit", unn.Entropy())
    g.factor(AllDifferent(X["r c d"], each="r"))
    g.factor(AllDifferent(X["r c d"], each="c"))
    g.factor(AllDifferent(X["(R r) (C c) d"], each="R C"))
    count = unn.exact.log_partition(g, sizes={}).exp()
    assert float(count) == pytest.approx(288, rel=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"t": torch.zeros(1, 4, 3)}, "no variable 't'"),
        ({"s": torch.zeros(1, 4, 2)}, r"shape \(batch, 4, 3\)"),
        ({"s": torch.full((1, 4, 3), 0.3)}, "one-hot"),
        ({"s": unn.Partial(torch.zeros(1, 4, 3), torch.ones(1, 3, dtype=torch.bool))}, "mask"),
    ],
)
def test_evidence_that_does_not_fit_is_refused_by_name(given, message):
    with pytest.raises(ObservationError, match=message):
        unn.exact.marginals(chain(), given)


def test_graphs_without_tables_are_refused_with_the_variable_or_factor():
    g = unn.FactorGraph("real", n=2)
    x = g.variable("x", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], x["i+1"]))
    with pytest.raises(DeclarationError, match="variable 'x' is neither"):
        unn.exact.marginals(g)
    h = unn.FactorGraph("residual", n=2)
    y = h.variable("y", "n", unn.BinaryEntropy())
    h.factor(SquaredResidual(y["i"], y["i+1"]))
    with pytest.raises(DeclarationError, match="SquaredResidual"):
        unn.exact.marginals(h)


def test_a_long_chain_takes_operations_for_each_level_and_not_for_each_node():
    g = filled(chain(2, 2000))
    _, model, evidence = unn.exact.queries.tables_of(g, None, None, None)
    plan = reduce(model, evidence, SMALL).plan
    assert plan is not None and len(plan.products) < 400
    log_partition = unn.exact.log_partition(g, options=SMALL)
    logs = g.b[0].double()
    for t in range(1, 2000):
        logs = torch.logsumexp(logs[:, None] + g.T.double(), 0) + g.b[t]
    torch.testing.assert_close(log_partition[0], logs.logsumexp(0))


def test_the_cost_of_a_query_is_explained_before_it_runs():
    g = filled(chain())
    assert "4 variables" in g.explain_exact() and "multiplications" in g.explain_exact()
    one_hot = torch.eye(3)[torch.zeros(1, 4, dtype=torch.long)]
    given = {"s": unn.Partial(one_hot, torch.tensor([[True, False, False, False]]))}
    assert "3 variables" in g.explain_exact(given) == g.explain_exact(given=given)


def test_factors_and_graphs_without_terms_contribute_nothing():
    g = unn.FactorGraph("short", state=2)
    c = g.variable("c", "time | state", unn.Entropy())
    W = g.constant("W", "state", torch.tensor([0.2, 0.7]))
    g.factor(Multilinear(W["f"], c["t f"], c["t+1 f"]))
    one = unn.exact.log_partition(g, sizes={"time": 1})
    torch.testing.assert_close(one, torch.tensor([2.0]).double().log())
    assert unn.exact.marginals(g, sizes={"time": 1})["c"].tolist() == [[[0.5, 0.5]]]
    assert float(unn.exact.log_partition(g, sizes={"time": 0})) == 0
    h = unn.FactorGraph("single", n=1)
    x = h.variable("x", "n", unn.BinaryEntropy())
    J = h.constant("J", "n other", torch.ones(1, 1))
    h.factor(Multilinear(J["i j"], x["i"], x["j"], where="i != j"))
    assert unn.exact.marginals(h)["x"].tolist() == [[0.5]]
    assert unn.belief.marginals(h)["x"].tolist() == [[0.5]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_constants_and_parameters_that_are_not_finite_are_refused_by_name(value):
    g = filled(batched_constant())
    b = torch.zeros(1, 3, 2)
    b[0, 1, 1] = value
    with pytest.raises(ObservationError, match="constant 'b'.*NaN or infinite"):
        unn.exact.marginals(g, {"b": b})
    with torch.no_grad():
        g.T[0, 0] = value
    with pytest.raises(ObservationError, match="parameter 'T'"):
        unn.exact.marginals(g, {"b": torch.zeros(1, 3, 2)})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sizes": {"time": -1}}, DeclarationError, "axis 'time'"),
        ({"sizes": {"state": 5}}, DeclarationError, "has size 3, but 5 was given"),
        ({"sizes": {"time": 2.5}}, DeclarationError, "axis 'time'"),
        ({"sizes": [3]}, ObservationError, "sizes: expected a mapping"),
        ({"given": torch.zeros(3)}, ObservationError, "evidence: expected a mapping"),
        ({"scores": torch.zeros(3)}, ObservationError, "scores: expected a mapping"),
        ({"options": {"memory": 3}}, ArgumentError, "ExactOptions"),
        ({"options": ExactOptions(attempts=1.5)}, ArgumentError, "attempts"),
        ({"scores": {"s": torch.ones(0, 4, 3)}}, ObservationError, "empty batch"),
        ({"scores": {"s": torch.full((1, 4, 3), torch.nan)}}, ObservationError, "soft evidence"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        unn.exact.marginals(chain(), **arguments)


def test_queries_in_inference_mode_and_after_it_are_right():
    g = filled(chain())
    expected = unn.exact.marginals(filled(chain()))["s"]
    with torch.inference_mode():
        inside = unn.exact.marginals(g)["s"]
        _, model, evidence = unn.exact.queries.tables_of(g, None, None, None)
        tables = inference.table_marginals(model, evidence)
    torch.testing.assert_close(inside.clone(), expected.detach())
    assert all(float(x.flatten(2).sum(2).min()) == pytest.approx(1) for x in tables)
    torch.autograd.grad(unn.exact.log_partition(g).sum(), list(g.parameters()))
    # energies so large that the query goes through logarithms
    h = unn.FactorGraph("large", node=3)
    x = h.variable("x", "node", unn.BinaryEntropy())
    k = h.constant("k", "node", torch.tensor([900.0, -900, 500]))
    h.factor(Multilinear(k["i"], x["i"], x["i+1"]))
    q = h.constant("q", "node", torch.tensor([-900.0, 900, -500]))
    h.factor(Multilinear(q["i"], x["i"]))
    with torch.inference_mode():
        inside = unn.exact.marginals(h)["x"].clone()
    torch.testing.assert_close(inside, unn.exact.marginals(h)["x"])


def test_an_impossible_tree_in_inference_mode_has_log_partition_minus_infinity():
    g = unn.FactorGraph("parse", head=3, word=3)
    Y = g.variable("Y", "head word", TreeEntropy())
    s = g.parameter("s", "head word", init=1.0)
    g.factor(Multilinear(s["h m"], Y["h m"]))
    no_root = {"Y": unn.Partial(torch.zeros(1, 3, 3), torch.eye(3).bool()[None])}
    with torch.inference_mode():
        assert unn.exact.marginals(g, no_root).log_partition.tolist() == [-math.inf]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_marginals_of_a_batch_are_contiguous(count):
    g = filled(chain())
    given = {"s": unn.Partial(torch.zeros(count, 4, 3), torch.zeros(count, 4, dtype=torch.bool))}
    means = unn.exact.marginals(g, given)["s"]
    assert means.is_contiguous() and means.view(count, -1).shape == (count, 12)


@pytest.mark.parametrize("size", [1.0, 1e12, 1e16])
def test_the_entropy_does_not_depend_on_the_size_of_the_energies(size):
    g = unn.FactorGraph("offset", node=2)
    x = g.variable("x", "node", unn.SignedEntropy())
    k = g.constant("k", "node", torch.full((2,), size, dtype=torch.float64))
    g.factor(Multilinear(k["i"], x["i"], x["i"]))
    assert float(unn.exact.entropy(g)) == pytest.approx(2 * math.log(2), abs=1e-9)


def test_the_energy_of_best_values_has_no_derivative_whatever_is_given():
    g = unn.FactorGraph("g", n=2)
    x = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.parameter("w", "n", init="ones")["i"], x["i"]))
    for observed in (False, True):
        seen = unn.Partial(torch.ones(1, 2), torch.full((1, 2), observed))
        best = unn.exact.best_values(g, {"X": seen})
        assert best.energy.tolist() == [-2.0] and not best.energy.requires_grad


@pytest.mark.parametrize(
    ("bounds", "values"), [({"equals": 1}, 0), ({"at_least": 1}, 0), ({"at_most": 1}, 4)]
)
def test_a_group_without_entries_has_no_ones(bounds, values):
    g = unn.FactorGraph("empty", n=2)
    x = g.variable("x", "n m", unn.BinaryEntropy())
    g.variable("y", "n", unn.BinaryEntropy())
    constraint = g.factor(Cardinality(x["i j"], each="i", **bounds))
    count = unn.exact.log_partition(g, sizes={"m": 0}, semiring="count").exp()
    assert int(count) == values
    is_violated = bool(constraint.violations_of({"x": torch.zeros(1, 2, 0), "y": torch.zeros(1, 2)}))
    assert is_violated == (values == 0)
    partition = unn.belief.marginals(g, sizes={"m": 0}).log_partition
    torch.testing.assert_close(partition.exp(), torch.tensor([float(values)]).double())


@pytest.mark.parametrize(("n", "allowed"), [(3, list(product(range(2), repeat=2))), (1, [(0, 1)])])
def test_constraints_that_always_hold_change_nothing(n, allowed):
    g = unn.FactorGraph("free", n=n, v=2)
    X = g.variable("X", "n | v", unn.Entropy())
    g.factor(Table(X["n v"], X["n+1 w"], allowed=allowed))
    assert float(unn.exact.log_partition(g, semiring="count").exp()) == pytest.approx(2**n)
    draws = unn.gibbs.sample(g, options=unn.GibbsOptions(chains=8, chain_draws=2, burn_in=2))["X"]
    assert torch.equal(draws.sum(-1), torch.ones(1, 8, 2, n))


def test_a_table_of_thousands_of_entries_needs_no_other_variables():
    line = list(product((0, 1), repeat=10))
    ones = [sum(bits) for bits in line]
    g = unn.FactorGraph("line", cell=10, number=11, colour=2)
    for k in range(10):
        g.index(f"cell{k}", "one", [k], into="cell")
    X = g.variable("X", "cell | colour", unn.Entropy())
    count = g.variable("count", "one | number", unn.Entropy())
    cells = [X[f"cell{k}[o] {'stuvwxyzab'[k]}"] for k in range(10)]
    allowed = [(number, *bits) for number, bits in zip(ones, line, strict=True)]
    g.factor(Table(count["o n"], *cells, allowed=allowed))
    assert len(ground(Nodes(g, {})).states) == 11
    answer = unn.exact.marginals(g)
    assert float(answer.log_partition.exp()) == pytest.approx(2**10)
    binomial = torch.tensor([math.comb(10, k) for k in range(11)]) / 2**10
    torch.testing.assert_close(answer["count"][0, 0], binomial, check_dtype=False)
    given = {"count": torch.eye(11)[None, None, 3]}
    torch.testing.assert_close(
        unn.exact.marginals(g, given)["X"][0, :, 1], torch.full((10,), 0.3), check_dtype=False
    )


def test_evidence_in_part_on_a_variable_without_nodes_is_accepted():
    g = unn.FactorGraph("empty", n=2)
    g.variable("x", "m", unn.BinaryEntropy())
    g.variable("X", "m | n", unn.Entropy())
    g.variable("y", "n", unn.BinaryEntropy())
    none = {
        name: unn.Partial(torch.zeros(3, *shape), torch.zeros(3, *shape, dtype=torch.bool))
        for name, shape in (("x", (0,)), ("X", (0, 2)))
    }
    partition = unn.exact.log_partition(g, none, sizes={"m": 0}).exp()
    torch.testing.assert_close(partition, torch.full((3,), 4.0).double())


@pytest.mark.parametrize("relation", ["<", "<=", "!=", ">"])
@pytest.mark.parametrize("shifted", [("i-1", "j"), ("i-2", "j-1"), ("i+1", "j-1")])
def test_conditions_between_letters_hold_for_the_indices_that_shifts_leave(relation, shifted):
    g = unn.FactorGraph("shifted", n=5)
    s = g.variable("s", "n", unn.SignedEntropy())
    J = g.parameter("J", "", init=torch.tensor(0.5))
    g.double()
    one, other = shifted
    g.factor(Multilinear(J[""], s[one], s[other], where=f"i {relation} j"))
    values = torch.tensor(list(product([-1.0, 1.0], repeat=5)), dtype=torch.float64)
    energies = g.energy({"s": values})
    assert unn.exact.log_partition(g).item() == pytest.approx((-energies).logsumexp(0).item(), abs=1e-10)
    best = unn.exact.best_values(g)
    assert best.energy.item() == pytest.approx(energies.min().item(), abs=1e-10)


def test_conditions_between_letters_of_states_hold_for_the_indices_that_shifts_leave():
    g = unn.FactorGraph("states", n=2, k=3, w=2)
    x = g.variable("x", "n | k", unn.Entropy())
    J = g.parameter("J", "k w", init=1.0)
    g.double()
    g.factor(Multilinear(J["v w"], x["i v"], x["j w-1"], where="v < w"))
    eye = torch.eye(3, dtype=torch.float64)
    values = torch.stack([eye[list(v)] for v in product(range(3), repeat=2)])
    expected = (-g.energy({"x": values})).logsumexp(0).item()
    assert unn.exact.log_partition(g).item() == pytest.approx(expected, abs=1e-10)


def test_regularizers_that_are_not_zero_at_the_corners_count_in_the_weights():
    g = unn.FactorGraph("norms", n=2, k=3)
    x = g.variable("x", "n | k", unn.SimplexNorm(temperature=2.0))
    W = g.parameter("W", "n k", init=1.0)
    g.double()
    g.factor(Multilinear(W["n k"], x["n k"]))
    eye = torch.eye(3, dtype=torch.float64)
    values = torch.stack([eye[list(v)] for v in product(range(3), repeat=2)])
    energies = g.energy({"x": values})
    expected = (-energies).logsumexp(0).item()
    assert unn.exact.log_partition(g).item() == pytest.approx(expected, abs=1e-10)
    assert unn.exact.best_values(g).energy.item() == pytest.approx(energies.min().item(), abs=1e-10)
    # as in a graph with continuous variables beside them
    g.variable("y", "", unn.SquaredNorm())
    mixed = unn.exact.mixed_marginals(g).log_partition.item()
    assert mixed - 0.5 * math.log(2 * math.pi) == pytest.approx(expected, abs=1e-6)


def test_counters_of_several_shapes_of_groups_have_different_names():
    g = unn.FactorGraph("areas", n=29)
    x = g.variable("x", "n", unn.BinaryEntropy())
    region = g.index("region", "n", [0] * 14 + [1] * 15, into="area")
    g.factor(Among(x["i"], group=[region], equals=2))
    names = ground(Nodes(g, {})).names
    assert len(set(names)) == len(names) > 29
