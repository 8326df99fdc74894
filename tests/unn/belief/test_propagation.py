"""Belief propagation: exact on trees, bounds on loopy graphs, rows that do not depend on one another."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import unn
from factors import AllDifferent, Cardinality, Different, Multilinear, Table
from unn.belief import BeliefOptions
from unn.belief.engine import BeliefEngine
from unn.belief.merging import merged
from unn.belief.model import BeliefModel
from unn.belief.propagation import appearance_probabilities
from unn.errors import ArgumentError, DeclarationError, ObservationError
from unn.exact.tables import Family
from unn.testing.engines import EngineContract


def pairwise(edges, nodes, seed, scale=1.0, states=2):
    """Categories with a table for each edge and each node."""
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("pairs", node=nodes, state=states, edge=len(edges))
    s = g.variable("s", "node | state", unn.Entropy())
    ends = [
        g.index(name, "edge", list(x), into="node")
        for name, x in zip(("one", "two"), zip(*edges, strict=True), strict=True)
    ]
    assert ends
    T = g.parameter(
        "T", "edge state other", init=scale * torch.randn(len(edges), states, states, generator=generator)
    )
    b = g.parameter("b", "node state", init=scale * torch.randn(nodes, states, generator=generator))
    g.factor(Multilinear(T["e i j"], s["one[e] i"], s["two[e] j"]))
    g.factor(Multilinear(b["n i"], s["n i"]))
    return g


@st.composite
def trees(draw):
    nodes = draw(st.integers(2, 6))
    edges = [(draw(st.integers(0, k - 1)), k) for k in range(1, nodes)]
    return pairwise(edges, nodes, draw(st.integers(0, 10_000)), states=draw(st.sampled_from((2, 3))))


@st.composite
def loopy(draw, scale=1.0):
    nodes = draw(st.integers(3, 5))
    every = [(a, b) for b in range(nodes) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(every), min_size=nodes, unique=True))
    return pairwise(edges, nodes, draw(st.integers(0, 10_000)), scale)


def evidence(g, seed, batch=3):
    generator = torch.Generator().manual_seed(seed)
    nodes, states = g.sizes["node"], g.sizes["state"]
    values = torch.eye(states)[torch.randint(states, (batch, nodes), generator=generator)]
    return {"s": unn.Partial(values, torch.rand(batch, nodes, generator=generator) < 0.3)}


@given(trees(), st.integers(0, 100))
@settings(max_examples=30)
def test_means_and_log_partition_are_exact_on_trees(g, seed):
    given = evidence(g, seed)
    ours, exact = unn.belief.marginals(g, given), unn.exact.marginals(g, given)
    assert ours.converged.all()
    torch.testing.assert_close(ours["s"], exact["s"], atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.log_partition, exact.log_partition, atol=1e-6, rtol=0)


@given(trees(), st.integers(0, 100))
@settings(max_examples=30)
def test_max_product_finds_the_most_probable_values_of_trees(g, seed):
    given = evidence(g, seed)
    ours = unn.belief.marginals(g, given, options=BeliefOptions(method="max-product"))
    exact = unn.exact.best_values(g, given)
    # ties have probability zero
    torch.testing.assert_close(ours["s"], exact["s"])


@pytest.mark.slow
@given(loopy(), st.integers(0, 100))
@settings(max_examples=30)
def test_the_tree_reweighted_log_partition_is_an_upper_bound_and_mean_field_a_lower_one(g, seed):
    given = evidence(g, seed)
    exact = unn.exact.log_partition(g, given)
    bound = unn.belief.marginals(g, given, options=BeliefOptions(method="tree-reweighted", rounds=3000))
    assume(bound.converged.all())
    assert (bound.log_partition >= exact - 1e-6).all()
    mean_field = unn.infer(g, given, order=["s"], until=1e-7, iterations=500)
    assert (-mean_field.energy[-1].double() <= exact + 1e-4).all()


@given(loopy(scale=0.3))
@settings(max_examples=20)
def test_weak_couplings_give_means_close_to_exact_ones(g):
    ours, exact = unn.belief.marginals(g), unn.exact.marginals(g)
    assert ours.converged.all()
    torch.testing.assert_close(ours["s"], exact["s"], atol=0.1, rtol=0)


@given(loopy(), st.integers(0, 100))
@settings(max_examples=20)
def test_one_row_has_the_same_answer_alone_and_in_a_batch(g, seed):
    given = evidence(g, seed)
    batch = unn.belief.marginals(g, given)
    for row in range(3):
        x = given["s"]
        alone = unn.belief.marginals(g, {"s": unn.Partial(x.value[row : row + 1], x.mask[row : row + 1])})
        torch.testing.assert_close(alone["s"][0], batch["s"][row], atol=1e-6, rtol=0)


def test_a_frustrated_graph_that_does_not_converge_says_so():
    edges = [(a, b) for b in range(4) for a in range(b)]
    g = pairwise(edges, 4, 0)
    with torch.no_grad():
        g.T.copy_(torch.tensor([[-8.0, 8.0], [8.0, -8.0]]).expand(6, 2, 2))
        g.b.copy_(torch.linspace(-1, 1, 8).view(4, 2))
    answer = unn.belief.marginals(g, options=BeliefOptions(damping=0.0, rounds=50))
    assert not answer.converged.any() and answer.rounds == 50 and (answer.residual > 1e-8).all()


def test_appearance_probabilities_of_a_ring_and_of_a_bridge():
    # a triangle with a pendant edge: each edge of the triangle is in two of three spanning trees
    family = Family(torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3]]), torch.zeros(4, 1, 2, 2))
    (rho,) = appearance_probabilities([family], 4)
    torch.testing.assert_close(rho, torch.tensor([2 / 3, 2 / 3, 2 / 3, 1.0], dtype=torch.float64))


def test_factors_of_three_nodes_are_refused_by_tree_reweighted_propagation():
    g = unn.FactorGraph("triple", n=3)
    x = g.variable("x", "n", unn.BinaryEntropy())
    g.factor(Cardinality(x["i"], each="", equals=2))
    with pytest.raises(DeclarationError, match=r"couples x\[0\], x\[1\], x\[2\]"):
        unn.belief.marginals(g, options=BeliefOptions(method="tree-reweighted"))
    answer = unn.belief.marginals(g)
    torch.testing.assert_close(answer["x"], torch.full((1, 3), 2 / 3, dtype=torch.float64), atol=1e-6, rtol=0)
    assert float(answer.log_partition) == pytest.approx(torch.tensor(3.0).log().item(), abs=1e-6)


def test_impossible_evidence_has_log_partition_minus_infinity():
    g = unn.FactorGraph("triple", n=3)
    x = g.variable("x", "n", unn.BinaryEntropy())
    g.factor(Cardinality(x["i"], each="", equals=2))
    given = {"x": unn.Partial(torch.zeros(1, 3), torch.tensor([[True, True, False]]))}
    answer = unn.belief.marginals(g, given)
    assert answer.log_partition.tolist() == [-torch.inf]


@pytest.mark.parametrize(
    "options",
    [{"method": "loopy"}, {"rounds": 0}, {"damping": 1.0}, {"damping": float("nan")}, {"tolerance": -1.0}],
)
def test_options_out_of_range_are_refused_by_name(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        unn.belief.marginals(pairwise([(0, 1)], 2, 0), options=BeliefOptions(**options))


class TestBelief(EngineContract):
    def engine(self):
        return BeliefEngine()

    def graph(self):
        g = unn.FactorGraph("grid", row=2, column=3)
        X = g.variable("X", "row column", unn.BinaryEntropy())
        Y = g.variable("Y", "row", unn.BinaryEntropy())
        J = g.parameter("J", "", init="ones")
        g.factor(Multilinear(J[""], X["r c"], X["r c+1"]))
        g.factor(Multilinear(X["r c"], Y["r"]))
        return g

    def examples(self, generator):
        return {
            "X": torch.randint(2, (16, 2, 3), generator=generator).float(),
            "Y": torch.randint(2, (16, 2), generator=generator).float(),
        }

    def given(self):
        return ("Y",)


def test_gradients_of_the_loss_on_trees_are_those_of_the_exact_loss():
    from unn.exact import ExactOptions
    from unn.exact.model import ExactModel

    g = pairwise([(0, 1), (1, 2)], 3, 4)
    s = torch.eye(2)[torch.tensor([[0, 1, 1], [1, 1, 0]])]
    observed = {"s": torch.tensor([[True, False, False]])}
    losses = [
        model.loss({"s": s}, observed)
        for model in (BeliefModel(g, BeliefOptions(tolerance=1e-10)), ExactModel(g, ExactOptions()))
    ]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=0)
    gradients = [torch.autograd.grad(loss, [g.T, g.b]) for loss in losses]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_batched_scores_are_evidence_and_invalid_ones_are_refused():
    g = pairwise([(0, 1), (1, 2)], 3, 0)
    scores = {"s": torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))}
    ours, exact = unn.belief.marginals(g, scores=scores), unn.exact.marginals(g, scores=scores)
    torch.testing.assert_close(ours["s"], exact["s"], atol=1e-6, rtol=0)
    with pytest.raises(ObservationError, match="soft evidence"):
        unn.belief.marginals(g, scores={"s": torch.full((1, 3, 2), torch.nan)})
    with pytest.raises(ObservationError, match="different batch sizes"):
        unn.belief.marginals(g, evidence(g, 0), scores=scores)


def test_what_zeros_imply_is_settled_before_the_rest_so_that_equal_solutions_stay_equal():
    # two grids agree with the evidence, which differ in the corners of a rectangle
    g = unn.FactorGraph("sudoku", row=4, column=4, digit=4, R=2, C=2)
    X = g.variable("X", "row column | digit", unn.Entropy())
    g.factor(AllDifferent(X["r c d"], each="r"))
    g.factor(AllDifferent(X["r c d"], each="c"))
    g.factor(AllDifferent(X["(R r) (C c) d"], each="R C"))
    grid = torch.tensor([[3, 0, 2, 1], [1, 2, 0, 3], [2, 3, 1, 0], [0, 1, 3, 2]])
    known = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=torch.bool)
    evidence = {"X": unn.Partial(torch.eye(4)[grid][None], known[None])}
    exact = unn.exact.marginals(g, evidence)["X"]
    assert int((exact == 0.5).sum()) == 8
    for damping in (0.0, 0.3):
        answer = unn.belief.marginals(g, evidence, options=BeliefOptions(damping=damping))
        assert bool(answer.converged.all()) and answer.rounds < 50
        torch.testing.assert_close(answer["X"], exact.double(), atol=1e-6, rtol=0)


@given(trees(), st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_both_schedules_are_exact_on_trees(g, seed):
    given = evidence(g, seed)
    exact = unn.exact.marginals(g, given)
    for schedule in ("all", "residual"):
        answer = unn.belief.marginals(
            g, given, options=BeliefOptions(message_schedule=schedule, tolerance=1e-10)
        )
        assert bool(answer.converged.all())
        torch.testing.assert_close(answer["s"], exact["s"], atol=1e-6, rtol=0)


def test_zeros_without_damping_give_no_nan():
    g = unn.FactorGraph("order", node=3, place=3)
    x = g.variable("x", "node | place", unn.Entropy())
    g.factor(AllDifferent(x["n p"], each=""))
    first = unn.Partial(torch.eye(3)[None], torch.tensor([[True, False, False]]))
    for schedule in ("all", "residual"):
        answer = unn.belief.marginals(
            g, {"x": first}, options=BeliefOptions(damping=0.0, message_schedule=schedule)
        )
        assert bool(answer.converged.all())
        expected = torch.tensor([[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]], dtype=torch.float64)
        torch.testing.assert_close(answer["x"][0], expected)


def test_an_unknown_schedule_is_refused_with_those_that_exist():
    with pytest.raises(ArgumentError, match="message_schedule must be one of all, residual"):
        BeliefOptions(message_schedule="random").check("belief")


@pytest.mark.parametrize("options", [{}, {"method": "sum-product"}, 3])
def test_options_of_another_type_are_refused(options):
    g = unn.FactorGraph("g", n=2)
    g.variable("X", "n", unn.BinaryEntropy())
    with pytest.raises(ArgumentError, match="options must be BeliefOptions"):
        unn.belief.marginals(g, options=options)


@pytest.mark.parametrize("answer", [unn.belief.marginals, unn.exact.marginals])
def test_variables_without_nodes_have_no_means(answer):
    g = unn.FactorGraph("g", n=0, k=1)
    g.variable("X", "n", unn.BinaryEntropy())
    g.variable("Z", "| k", unn.Entropy())
    means = answer(g).means
    assert means["X"].shape == (1, 0) and means["Z"].tolist() == [[1.0]]


MAX_PRODUCT = BeliefOptions(method="max-product", damping=0.0)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_best_values_of_trees_are_best_where_several_are(data, seed):
    nodes = data.draw(st.integers(2, 7))
    edges = [(data.draw(st.integers(0, k - 1)), k) for k in range(1, nodes)]
    g = pairwise(edges, nodes, seed, states=3)
    with torch.no_grad():
        for p in g.parameters():
            # few weights, so that many assignments are equally good
            p.copy_(p.sign().clamp(max=0))
    values = unn.belief.marginals(g, options=MAX_PRODUCT).means
    energies = [g.energy({"s": s.float()}) for s in (values["s"], unn.exact.best_values(g)["s"])]
    torch.testing.assert_close(*energies)


def test_best_values_satisfy_constraints_where_every_state_is_equally_good():
    g = unn.FactorGraph("chain", n=6, q=2)
    X = g.variable("X", "n | q", unn.Entropy())
    different = g.factor(Different(X["i c"], X["i+1 c"]))
    for schedule in ("all", "residual"):
        options = BeliefOptions(method="max-product", message_schedule=schedule)
        values = unn.belief.marginals(g, options=options).means
        assert int(different.violations_of(values)) == 0


def test_best_values_of_a_row_do_not_depend_on_ties_in_others():
    g = unn.FactorGraph("spins", n=4)
    S = g.variable("S", "n", unn.SignedEntropy())
    J = g.constant("J", "", torch.tensor(-1.0))
    g.factor(Multilinear(J[""], S["i"], S["i+1"]))
    mask = torch.tensor([[False] * 4, [True, False, False, False]])
    row = unn.Partial(torch.tensor([[-1.0, 0, 0, 0]]).expand(2, 4), mask)
    values = unn.belief.marginals(g, {"S": row}, options=MAX_PRODUCT)["S"]
    assert values[1].tolist() == [-1, 1, -1, 1]
    assert float(g.energy({"S": values.float()})[0]) == -3


@st.composite
def repeated(draw):
    """Trees whose edges and nodes have several factors: tables of all pairs, of allowed pairs, of counts."""
    nodes, states = draw(st.integers(2, 4)), draw(st.integers(2, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    g = unn.FactorGraph("repeated", node=nodes, state=states, edge=nodes - 1)
    s = g.variable("s", "node | state", unn.Entropy())
    parents = [draw(st.integers(0, k - 1)) for k in range(1, nodes)]
    g.index("above", "edge", parents, into="node")
    g.index("below", "edge", list(range(1, nodes)), into="node")
    above, below = s["above[e] i"], s["below[e] j"]
    for name in "TU":
        values = torch.randn(states, states, generator=generator)
        g.factor(Multilinear(g.constant(name, "state other", values)["i j"], above, below))
    pairs = [(a, b) for a in range(states) for b in range(states)]
    allowed = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    g.factor(Table(below, s["above[e] k"], allowed=[(b, a) for a, b in allowed]))
    b = torch.randn(nodes, states, generator=generator)
    g.factor(Multilinear(g.constant("b", "node state", b)["n i"], s["n i"]))
    return g


@given(repeated(), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_several_factors_of_the_same_nodes_are_no_loop(g, seed):
    given_ = evidence(g, seed)
    total, answer = unn.exact.log_partition(g, given_), unn.belief.marginals(g, given_)
    torch.testing.assert_close(answer.log_partition, total, rtol=0, atol=1e-6)
    possible = total > -torch.inf
    assume(bool(possible.any()))
    exact = unn.exact.marginals(g, given_)["s"]
    torch.testing.assert_close(answer["s"][possible], exact[possible], rtol=0, atol=1e-6)
    best = unn.belief.marginals(g, given_, options=BeliefOptions("max-product"))["s"]
    weights = [
        unn.exact.log_partition(g, {"s": x[possible]}) for x in (best, unn.exact.best_values(g, given_)["s"])
    ]
    torch.testing.assert_close(*weights)


def test_a_table_within_another_multiplies_into_it_in_the_order_of_its_axes():
    generator = torch.Generator().manual_seed(0)
    logs = {k: torch.randn(1, 1, *[2, 3, 4][:k], generator=generator).double() for k in (1, 2, 3)}
    small = Family(torch.tensor([[2, 0]]), torch.randn(1, 1, 4, 2, generator=generator).double())
    families = [Family(torch.tensor([list(range(k))]), x) for k, x in logs.items()]
    one, wide = sorted(merged([families[2], small, families[1], families[0]]), key=lambda f: len(f.states))
    assert one.scopes.tolist() == [[0]] and torch.equal(one.logs, logs[1])
    expected = logs[3] + logs[2][..., None] + small.logs[0, 0].T[:, None]
    torch.testing.assert_close(wide.logs, expected)
    assert wide.scopes.tolist() == [[0, 1, 2]]
