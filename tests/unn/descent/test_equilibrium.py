"""Fixed points of the rounds, and gradients there."""

import math
import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Implicit as ImplicitFactor
from factors import Multilinear, bounded_attention
from unn.descent.fixed_point import at_fixed_point
from unn.errors import ConvergenceWarning, InferenceError

KINDS = (
    unn.SignedEntropy,
    unn.BinaryEntropy,
    unn.SquaredNorm,
    unn.Entropy,
    unn.NonNegative,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_graph(seed, norm=0.45, kinds=KINDS):
    """Three layers that interact, and one with itself, with parameters in float64."""
    pick = torch.randint(len(kinds), (3,), generator=seeded(seed)).tolist()
    g = unn.FactorGraph("random", x=4, a=4, b=3, c=3)
    x = g.variable("X", "x", unn.SquaredNorm())
    a, b, c = (g.variable(name.upper(), name, kinds[k]()) for name, k in zip("abc", pick, strict=True))
    g.factor(Multilinear(x["x"], g.parameter("P", "x a")["x a"], a["a"]))
    g.factor(Multilinear(a["a"], g.parameter("Q", "a b")["a b"], b["b"]))
    g.factor(Multilinear(b["b"], g.parameter("R", "b c")["b c"], c["c"]))
    g.factor(Multilinear(a["a"], g.parameter("S", "a c")["a c"], c["c"]))
    g.double()
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(seed), dtype=torch.float64))
            # each variable has two couplings, so that the energy is strictly convex for norms below a half
            p.mul_(norm / torch.linalg.matrix_norm(p, 2))
    return g, torch.randn(3, 4, generator=seeded(seed + 1), dtype=torch.float64)


def gradients(network, x, higher=False):
    parameters = list(network.graph.parameters())
    loss = (network(x).sin() * torch.arange(1, 4)).sum()
    first = torch.autograd.grad(loss, parameters, create_graph=higher)
    if not higher:
        return first
    return torch.autograd.grad(sum(g.square().sum() for g in first), parameters)


def both(g, **options):
    order = ["A", "B", "C"]
    long = unn.Unrolled(g, "X", "C", order=order, iterations=300)
    return long, unn.Unrolled(g, "X", "C", order=order, gradient=unn.Implicit(1e-13, **options))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), solver=st.sampled_from(["rounds", "anderson"]))
def test_gradients_at_the_fixed_point_are_those_of_long_unrolling(seed, solver):
    g, x = random_graph(seed)
    long, implicit = both(g, solver=solver)
    for expected, ours in zip(gradients(long, x), gradients(implicit, x), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)
    assert implicit.equilibrium is not None
    assert implicit.equilibrium.converged


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_second_derivatives_at_the_fixed_point_are_those_of_long_unrolling(seed):
    g, x = random_graph(seed, kinds=KINDS[:4])
    long, implicit = both(g)
    for expected, ours in zip(gradients(long, x, True), gradients(implicit, x, True), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_gradients_at_the_fixed_point_are_finite_differences(seed):
    g, x = random_graph(seed, kinds=KINDS[:4])
    _, implicit = both(g)
    expected = gradients(implicit, x)
    direction = [torch.randn(p.shape, generator=seeded(seed), dtype=p.dtype) for p in g.parameters()]
    values = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for p, d in zip(g.parameters(), direction, strict=True):
                p.add_(d, alpha=step)
            values.append(float((implicit(x).sin() * torch.arange(1, 4)).sum()))
            for p, d in zip(g.parameters(), direction, strict=True):
                p.sub_(d, alpha=step)
    slope = (values[0] - values[1]) / 2e-6
    assert sum(float((e * d).sum()) for e, d in zip(expected, direction, strict=True)) == pytest.approx(
        slope, abs=1e-6, rel=1e-4
    )


def test_scores_of_the_wanted_variable_have_the_derivative_of_the_fixed_point():
    g, x = random_graph(3)
    long, implicit = both(g)
    parameters = list(g.parameters())
    expected = torch.autograd.grad(long.preactivations(x).square().sum(), parameters)
    ours = torch.autograd.grad(implicit.preactivations(x).square().sum(), parameters)
    for e, o in zip(expected, ours, strict=True):
        torch.testing.assert_close(o, e, atol=1e-8, rtol=1e-8)


def test_gradients_reach_the_evidence():
    g, x = random_graph(4)
    long, implicit = both(g)
    leaf = x.clone().requires_grad_()
    expected, ours = (torch.autograd.grad(net(leaf).square().sum(), leaf)[0] for net in (long, implicit))
    torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)


def test_what_is_observed_in_part_stays_and_passes_gradients():
    g, x = random_graph(5, kinds=(unn.SignedEntropy,))
    mask = torch.tensor([True, False, False, True])
    leaf = (0.5 * torch.randn(3, 4, generator=seeded(), dtype=torch.float64)).tanh().requires_grad_()
    networks = [
        unn.Unrolled(g, ["X", "A"], "A", order=["A", "B", "C"], **options)
        for options in ({"iterations": 300}, {"gradient": unn.Implicit(1e-13)})
    ]
    results = [net(x, unn.Partial(leaf, mask.expand(3, 4))) for net in networks]
    torch.testing.assert_close(results[1], results[0], atol=1e-10, rtol=0)
    expected, ours = (torch.autograd.grad(r.square().sum(), leaf)[0] for r in results)
    torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)


def test_a_batch_element_settles_as_it_does_alone():
    g, x = random_graph(6)
    _, implicit = both(g)
    alone = torch.cat([implicit(row[None]) for row in x])
    torch.testing.assert_close(implicit(x), alone, atol=1e-11, rtol=0)


def test_random_orders_settle_at_the_same_point():
    g, x = random_graph(7)
    long, _ = both(g)
    order = unn.RandomOrder(["A", "B", "C"])
    network = unn.Unrolled(g, "X", "C", order=order, gradient=unn.Implicit(1e-12))
    torch.testing.assert_close(network(x), long(x), atol=1e-9, rtol=0)


def strongly_coupled(strength):
    """Two variables whose rounds shrink deviations by strength squared."""
    g = unn.FactorGraph("pair", n=2)
    x = g.variable("X", "n", unn.SquaredNorm())
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    w = g.parameter("W", "n n", init=strength * torch.eye(2))
    g.factor(Multilinear(x["i"], a["i"]))
    g.factor(Multilinear(a["i"], w["i j"], b["j"]))
    return g


def test_extrapolation_takes_fewer_rounds_where_rounds_converge_slowly():
    g = strongly_coupled(0.99).double()
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    rounds = {}
    for solver in ("rounds", "anderson"):
        network = unn.Unrolled(
            g, "X", "B", order=["A", "B"], iterations=5000, gradient=unn.Implicit(1e-9, solver)
        )
        w = g.W.detach()[0, 0]
        torch.testing.assert_close(network(x), w * x / (1 - w**2), atol=1e-6, rtol=0)
        rounds[solver] = network.equilibrium.rounds
    assert rounds["anderson"] < 20 < 500 < rounds["rounds"]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_extrapolated_rounds_end_at_no_higher_an_energy_than_they_began(seed):
    g, x = random_graph(seed, norm=2.0, kinds=(unn.SignedEntropy, unn.BinaryEntropy, unn.Entropy))
    energies = []
    for limit in (1, 2, 3, 5, 9, 20):
        network = unn.Unrolled(
            g, "X", ["A", "B", "C"], ["A", "B", "C"], limit, gradient=unn.Implicit(1e-12, "anderson")
        )
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore", ConvergenceWarning)
            a, b, c = network(x)
        energies.append(g.energy({"X": x, "A": a, "B": b, "C": c}))
    for before, after in pairwise(energies):
        assert bool((after <= before + 1e-9 * (1 + before.abs())).all())


def test_memory_does_not_grow_with_the_number_of_rounds():
    g, x = strongly_coupled(0.99), torch.ones(1, 2)
    saved = {}

    def count(limit):
        sizes = []
        network = unn.Unrolled(g, "X", "B", ["A", "B"], limit, gradient=unn.Implicit(1e-12))
        with (
            warnings.catch_warnings(),
            torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t),
        ):
            warnings.simplefilter("ignore", ConvergenceWarning)
            network(x)
        saved[limit] = sum(sizes)

    count(2)
    count(50)
    assert saved[50] == saved[2]


def test_rounds_that_do_not_settle_are_reported_with_the_factor_of_a_round():
    g = strongly_coupled(0.9)
    network = unn.Unrolled(g, "X", "B", ["A", "B"], 3, gradient=unn.Implicit(1e-9))
    with pytest.warns(ConvergenceWarning, match=r"after 3 rounds.*about 0\.81.*more iterations"):
        network(torch.ones(1, 2))
    assert not network.equilibrium.converged
    assert network.equilibrium.rounds == 3


def test_a_fixed_point_that_repels_is_reported():
    g = strongly_coupled(1.5)
    network = unn.Unrolled(g, "X", "B", ["A", "B"], 4, gradient=unn.Implicit(1e-9))
    with pytest.warns(ConvergenceWarning, match=r"about 2\.2.*does not attract"):
        network(torch.ones(1, 2))


@pytest.mark.slow
def test_blocks_without_a_closed_form_have_the_gradient_of_the_fixed_point_too():
    g = unn.FactorGraph("curved", n=3)
    x = g.variable("X", "n", unn.SquaredNorm())
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SignedEntropy())
    w = g.parameter("W", "n n", init=0.4 * torch.randn(3, 3, generator=seeded(1)))
    g.factor(Multilinear(x["i"], a["i"]))
    g.factor(
        ImplicitFactor(
            lambda a, w, b: 0.3 * (a @ w - b).square().sum(1).cosh().log(), a["i"], w["i j"], b["j"]
        )
    )
    g.double()
    values = torch.randn(2, 3, generator=seeded(2), dtype=torch.float64)
    long = unn.Unrolled(g, "X", "B", ["A", "B"], 60)
    implicit = unn.Unrolled(g, "X", "B", ["A", "B"], gradient=unn.Implicit(1e-12))
    expected, ours = (torch.autograd.grad(n(values).square().sum(), g.W)[0] for n in (long, implicit))
    torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf, True, "small"])
def test_tolerances_that_are_none_are_refused(tolerance):
    with pytest.raises(InferenceError, match="tolerance"):
        unn.Implicit(tolerance)


def test_unknown_solvers_are_refused_with_the_closest():
    with pytest.raises(InferenceError, match="'andersen'.*anderson"):
        unn.Implicit(1e-6, "andersen")


def test_samples_have_no_fixed_point():
    g, _ = random_graph(0)
    with pytest.raises(InferenceError, match="no fixed point"):
        unn.Unrolled(g, "X", "C", update=unn.Sample(), gradient=unn.Implicit())


def test_energies_without_a_minimum_have_no_equilibrium_and_are_refused_with_what_to_bound():
    g = unn.FactorGraph("open", n=2)
    x = g.variable("X", "n", unn.SquaredNorm())
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], a["i"]))
    g.factor(Multilinear(a["i"], g.constant("J", "", torch.tensor(3.0))[""], b["i"]))
    with pytest.raises(InferenceError, match="fixed point.*unbounded below.*Bound one of A, B"):
        unn.Unrolled(g, "X", "B", gradient=unn.Implicit())


@pytest.mark.slow
def test_accelerated_rounds_settle_where_the_rounding_of_the_energy_is_larger_than_its_decrease():
    torch.manual_seed(0)
    g = unn.FactorGraph("attention", d=16)
    X = g.variable("X", "n d", unn.SquaredNorm())
    attention = bounded_attention(g, X, heads=2)
    g.double()
    x = torch.randn(16, 8, 16, dtype=torch.float64)
    known = (torch.arange(8) % 4 != 1)[None, :, None].expand(16, 8, 16)
    network = unn.Unrolled(
        g,
        "X",
        "X",
        unn.ForwardBackward(attention.order, last="X"),
        iterations=3000,
        gradient=unn.Implicit(1e-4, "anderson"),
    )
    network(unn.Partial(x, known))
    assert network.equilibrium.converged


def slow_map(entries, coupling=0.4995):
    """A chain whose rounds shrink deviations by a thousandth."""
    matrix = torch.zeros(entries, entries, dtype=torch.float64)
    matrix.diagonal(1).fill_(coupling)
    return matrix + matrix.T


def test_linear_systems_on_which_iterations_stagnate_are_solved_from_their_matrix():
    matrix = slow_map(300)
    b = torch.randn(3, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    inverse = torch.linalg.inv(torch.eye(300, dtype=torch.float64) - matrix)
    y = at_fixed_point(lambda x: x @ matrix + b, (b @ inverse).detach(), 1e-8)
    slope = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((y * slope).sum(), b)
    torch.testing.assert_close(gradient, slope @ inverse, rtol=1e-6, atol=1e-6)


def test_linear_systems_that_are_too_large_for_a_matrix_warn_of_what_is_left():
    entries = 2100
    matrix = slow_map(entries, 0.49999)
    b = torch.ones(1, entries, dtype=torch.float64, requires_grad=True)
    x = torch.linalg.solve(torch.eye(entries, dtype=torch.float64) - matrix, b.detach().T).T
    y = at_fixed_point(lambda x: x @ matrix + b, x, 1e-8)
    with pytest.warns(ConvergenceWarning, match="residual of .* of its right side"):
        y.sum().backward()


def on_both_sides(regularizer, seed, dtype):
    """A variable that meets itself in a factor, so that an inner solver minimises over its domain."""
    torch.manual_seed(seed)
    g = unn.FactorGraph("inner", d=6, e=6)
    X, T = g.variable("X", "d", unn.SquaredNorm()), g.variable("T", "d", regularizer)
    Y = g.variable("Y", "d", unn.SignedEntropy())
    C, B = g.parameter("C", "d e", init=0.6), g.parameter("B", "d e", init=1.0)
    g.factor(Multilinear(C["a b"], T["a"], T["b"]))
    g.factor(Multilinear(T["a"], X["a"]))
    g.factor(Multilinear(B["a b"], Y["a"], T["b"]))
    return g.to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("regularizer", [unn.Ball(1.0), unn.LayerNorm(), unn.RMSNorm()], ids=repr)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=2, deadline=None)
def test_extrapolated_rounds_end_in_the_domain_where_plain_rounds_do(regularizer, seed):
    g = on_both_sides(regularizer, seed, torch.float64)
    x = torch.randn(8, 6, dtype=torch.float64)
    ends = {}
    for solver in ("rounds", "anderson"):
        network = unn.Unrolled(
            g, "X", ["T", "Y"], ["Y", "T"], iterations=1000, gradient=unn.Implicit(1e-10, solver)
        )
        T, Y = network(x)
        ends[solver] = T.detach(), g.energy({"X": x, "T": T.detach(), "Y": Y.detach()}).detach()
        assert network.equilibrium.converged
        # scaled towards the centre by less than the tolerance of values, the energy stays finite
        assert g.energy({"X": x, "T": T.detach() * (1 - 1e-9), "Y": Y.detach()}).isfinite().all()
    same = (ends["rounds"][1] - ends["anderson"][1]).abs() < 1e-8
    torch.testing.assert_close(ends["rounds"][0][same], ends["anderson"][0][same], atol=1e-6, rtol=0)
    largest = ends["rounds"][0].norm(dim=1).max()
    assert float(ends["anderson"][0].norm(dim=1).max()) <= max(1.0, float(largest)) * (1 + 1e-9)


def held(gradient, iterations, starts=True):
    """Four spins of which two are updated, and the derivatives of these by all that acts on them; the others
    stay at given values, or at zero."""
    g = unn.FactorGraph("held", n=4, x=3)
    s, X = g.variable("s", "n", unn.SignedEntropy()), g.variable("X", "x", unn.SignedEntropy())
    generator = torch.Generator().manual_seed(0)
    A, W = torch.randn(4, 4, generator=generator), torch.randn(4, 3, generator=generator)
    g.factor(Multilinear(s["i"], s["j"], g.parameter("A", "n m", init=0.3 * A)["i j"], where="i < j"))
    g.factor(Multilinear(s["i"], g.parameter("W", "n x", init=W)["i x"], X["x"]))
    g.double()
    x = torch.rand(2, 3, generator=generator).double()
    start = (torch.rand(2, 4, generator=generator).double() * 2 - 1).requires_grad_()
    order = [unn.Block("s", torch.arange(4) == k) for k in (0, 2)]
    network = unn.Unrolled(
        g,
        "X",
        "s",
        order=order,
        initial={"s": start} if starts else None,
        gradient=gradient,
        iterations=iterations,
    )
    leaves = [g.A, g.W, *([start] if starts else [])]
    return torch.autograd.grad((network(x) * torch.tensor([1.0, 0, 2, 0])).sum(), leaves)


@pytest.mark.parametrize(
    "gradient", [unn.Implicit(1e-13), unn.Implicit(1e-13, "anderson"), unn.Truncate(60)], ids=str
)
def test_nodes_that_no_update_changes_count_with_their_initial_values(gradient):
    expected = held(unn.Unroll(), 100)
    assert bool((expected[2][:, [1, 3]] != 0).all())
    for ours, theirs in zip(held(gradient, 100), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("solver", ["rounds", "anderson"])
def test_nodes_that_no_update_changes_stay_at_zero_without_initial_values(solver):
    expected = held(unn.Unroll(), 100, starts=False)
    for ours, theirs in zip(held(unn.Implicit(1e-13, solver), 100, starts=False), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
