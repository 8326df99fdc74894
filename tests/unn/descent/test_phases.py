"""Equilibrium propagation and contrastive Hebbian learning against exact gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Directed, Multilinear
from unn.errors import InferenceError, ObservationError

D = torch.float64


def layers(seed=0, scale=0.3, output=None, sizes=(4, 5, 3)):
    """Two coupled layers behind an input, strongly convex for small weights."""
    torch.manual_seed(seed)
    x, h, y = sizes
    g = unn.FactorGraph("layers", x=x, h=h, y=y)
    X, H = g.variable("X", "x", unn.SquaredNorm()), g.variable("H", "h", unn.SignedEntropy())
    Y = g.variable("Y", "y", output or unn.SignedEntropy())
    g.factor(Multilinear(X["i"], g.parameter("W", "x h", init=scale)["i j"], H["j"]))
    g.factor(Multilinear(H["j"], g.parameter("V", "h y", init=scale)["j k"], Y["k"]))
    g.factor(Multilinear(g.parameter("b", "y")["k"], Y["k"]))
    return g.double()


def examples(batch=6, seed=0, sizes=(4, 5, 3)):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, sizes[0], dtype=D, generator=generator)
    return {"X": x, "Y": torch.rand(batch, sizes[2], dtype=D, generator=generator) - 0.5}


def exact_gradient(g, values):
    network = unn.Unrolled(g, "X", "Y", ["H", "Y"], iterations=3000, gradient=unn.Implicit(1e-13))
    cost = (network(values["X"]) - values["Y"]).square().sum(1).mean() / 2
    return cost, torch.autograd.grad(cost, list(g.parameters()))


def gradient_of(loss, values):
    value = loss(values)
    return value, torch.autograd.grad(value, list(loss.graph.parameters()))


def error(ours, exact):
    difference = torch.cat([(a - b).flatten() for a, b in zip(ours, exact, strict=True)])
    return float(difference.norm() / torch.cat([b.flatten() for b in exact]).norm())


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    output=st.sampled_from([unn.SignedEntropy, unn.BinaryEntropy, unn.Entropy, unn.SquaredNorm]),
)
@settings(max_examples=25, deadline=None)
def test_equilibrium_propagation_tends_to_the_exact_gradient_with_the_square_of_the_nudge(seed, output):
    g, values = layers(seed, 0.2, output()), examples(seed=seed)
    # near a second fixed point the square sets in at smaller nudges only
    unn.spectral_normalise(g, 0.7, {"X": values["X"][:1]})
    cost, exact = exact_gradient(g, values)
    errors = []
    for nudge in (0.08, 0.02):
        loss = unn.EquilibriumPropagation(g, "X", "Y", nudge=nudge, until=1e-12, iterations=5000)
        value, ours = gradient_of(loss, values)
        torch.testing.assert_close(value, cost, rtol=1e-8, atol=1e-10)
        errors.append(error(ours, exact))
    # a sixteenth, up to terms of higher order
    assert errors[1] < errors[0] / 8 + 1e-6


def test_contrastive_hebbian_learning_is_the_gradient_of_the_gap_of_energies():
    g, values = layers(), examples()
    loss = unn.ContrastiveHebbian(g, "X", "Y", until=1e-12, iterations=5000)
    value, ours = gradient_of(loss, values)
    assert float(value.detach()) > 0
    # the gap as a function of the parameters, both minima found anew: differences of the value itself
    for parameter, slope in zip(g.parameters(), ours, strict=True):
        step = torch.randn(parameter.shape, dtype=D, generator=torch.Generator().manual_seed(3))
        ends = []
        for sign in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.add_(sign * step)
                ends.append(float(loss(values)))
                parameter.sub_(sign * step)
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float((slope * step).sum()), rel=1e-5, abs=1e-8)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_gap_of_energies_is_never_negative_and_zero_where_targets_are_what_is_inferred(seed):
    g, values = layers(seed), examples(seed=seed)
    loss = unn.ContrastiveHebbian(g, "X", "Y", until=1e-12, iterations=5000)
    assert float(loss(values).detach()) >= -1e-10
    inferred = unn.infer(g, {"X": values["X"]}, order=["H", "Y"], until=1e-13, iterations=5000)["Y"]
    assert abs(float(loss({"X": values["X"], "Y": inferred}).detach())) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_training_on_either_learns_a_function_that_the_network_can_have(kind):
    teacher, g = layers(5, 0.8), layers(1)
    x = torch.randn(64, 4, dtype=D, generator=torch.Generator().manual_seed(0))
    values = {"X": x, "Y": unn.infer(teacher, {"X": x}, order=["H", "Y"], until=1e-6)["Y"].detach()}
    loss = kind(g, "X", "Y", until=1e-5)
    optimiser = torch.optim.Adam(g.parameters(), 0.03)

    def distance():
        with torch.no_grad():
            return float((unn.infer(g, {"X": x}, until=1e-6)["Y"] - values["Y"]).square().mean())

    before = distance()
    for _ in range(60):
        optimiser.zero_grad()
        loss(values).backward()
        optimiser.step()
    assert distance() < 0.25 * before


@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_losses_hold_the_parameters_of_the_graph_and_no_others(kind):
    g = layers()
    loss = kind(g, "X", "Y")
    assert [id(p) for p in loss.parameters()] == [id(p) for p in g.parameters()]
    assert set(loss.state_dict()) == {f"graph.{name}" for name in g.state_dict()}
    loss.float()
    values = {name: x.float() for name, x in examples().items()}
    assert loss(values).dtype == torch.float32


@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_an_example_has_the_same_loss_alone_and_in_a_batch(kind):
    loss, values = kind(layers(), "X", "Y", until=1e-12, iterations=5000), examples()
    alone = [loss({name: x[k : k + 1] for name, x in values.items()}).detach() for k in range(6)]
    torch.testing.assert_close(loss(values).detach(), torch.stack(alone).mean(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_what_does_not_fit_is_refused(kind):
    g = layers()
    for arguments, options, match in (
        ((g, "X", "Z"), {}, says("targets", "'Z'")),
        ((g, "Q", "Y"), {}, says("given", "'Q'")),
        ((g, "X", []), {}, says("targets", "at least one")),
        ((g, [], ["X", "Y"]), {}, says("given", "at least one", "gibbs")),
        ((g, ["X", "Y"], "Y"), {}, says("'Y'", "is given")),
        (("g", "X", "Y"), {}, says("FactorGraph", "str")),
        ((g, "X", "Y"), {"order": unn.RandomOrder(["H", "Y"])}, says("order", "RandomOrder")),
    ):
        with pytest.raises(InferenceError, match=match):
            kind(*arguments, **options)
    loss = kind(g, "X", "Y")
    with pytest.raises(ObservationError, match=says("'Y'", "examples")):
        loss({"X": examples()["X"]})
    open_graph = unn.FactorGraph("open", n=2)
    A, B, C = (open_graph.variable(name, "n", unn.SquaredNorm()) for name in "ABC")
    open_graph.factor(Multilinear(A["i"], B["i"]))
    open_graph.factor(Multilinear(B["i"], C["i"], open_graph.constant("w", "", torch.tensor(3.0))[""]))
    with pytest.raises(InferenceError, match=says("no fixed point", "unbounded below")):
        kind(open_graph, "A", "B")


def test_any_cost_of_a_target_has_its_gradient():
    g, values = layers(scale=0.2, output=unn.Entropy()), examples()
    classes = torch.eye(3, dtype=D)[torch.arange(6) % 3]

    def cross_entropy(y, target):
        return -(target * y.log()).sum(1)

    loss = unn.EquilibriumPropagation(
        g, "X", "Y", cost=cross_entropy, nudge=0.01, until=1e-12, iterations=5000
    )
    value, ours = gradient_of(loss, {"X": values["X"], "Y": classes})
    network = unn.Unrolled(g, "X", "Y", ["H", "Y"], iterations=3000, gradient=unn.Implicit(1e-13))
    exact = cross_entropy(network(values["X"]), classes).mean()
    torch.testing.assert_close(value, exact, rtol=1e-9, atol=1e-9)
    assert error(ours, torch.autograd.grad(exact, list(g.parameters()))) < 1e-3
    with pytest.raises(InferenceError, match=says("cost", "(2,)", "(6,)")):
        unn.EquilibriumPropagation(g, "X", "Y", cost=lambda y, _: y[:2, 0])({"X": values["X"], "Y": classes})


@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_targets_that_do_not_fit_are_refused(kind):
    loss, values = kind(layers(), "X", "Y"), examples()
    for bad in (values["Y"][:, :1], values["Y"][0], values["Y"][:1], values["Y"] * float("nan")):
        with pytest.raises(ObservationError, match="'Y'"):
            loss({**values, "Y": bad})
    with pytest.raises(ObservationError, match="mapping"):
        loss([values["X"], values["Y"]])


@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
@pytest.mark.parametrize("target", [torch.full((2, 3), torch.nan), torch.full((2, 3), torch.inf)])
def test_targets_that_are_no_numbers_are_refused_without_hidden_variables_too(kind, target):
    g = unn.FactorGraph("direct", x=2, y=3)
    X, Y = g.variable("X", "x", unn.SquaredNorm()), g.variable("Y", "y", unn.Entropy())
    g.factor(Multilinear(X["i"], g.parameter("W", "x y", init=1.0)["i j"], Y["j"]))
    with pytest.raises(ObservationError, match="'Y'"):
        kind(g, "X", "Y")({"X": torch.randn(2, 2), "Y": target})


def test_targets_outside_their_domain_are_refused_without_hidden_variables_too():
    g = unn.FactorGraph("direct", x=2, y=3)
    X, Y = g.variable("X", "x", unn.SquaredNorm()), g.variable("Y", "y", unn.Entropy())
    g.factor(Multilinear(X["i"], g.parameter("W", "x y", init=1.0)["i j"], Y["j"]))
    loss = unn.ContrastiveHebbian(g, "X", "Y")
    with pytest.raises(ObservationError, match="'Y'"):
        loss({"X": torch.randn(2, 2), "Y": 7 * torch.eye(3)[:2]})
    assert float(loss({"X": torch.randn(2, 2), "Y": torch.eye(3)[:2]}).detach()) >= 0


def test_nudged_phases_follow_the_graph_to_other_dtypes_and_parameters():
    g = layers()
    loss, values = unn.EquilibriumPropagation(g, "X", "Y"), examples()
    g.float()
    assert loss({name: x.float() for name, x in values.items()}).dtype == torch.float32
    g.double()
    loss.load_state_dict({f"graph.{k}": x for k, x in layers(3).state_dict().items()}, assign=True)
    _, ours = gradient_of(loss, values)
    _, fresh = gradient_of(unn.EquilibriumPropagation(layers(3), "X", "Y"), values)
    assert error(ours, fresh) < 1e-6


@pytest.mark.parametrize("kind", [unn.ContrastiveHebbian, unn.EquilibriumPropagation])
def test_phases_that_are_not_at_rest_are_reported(kind):
    loss = kind(layers(scale=0.8), "X", "Y", until=1e-12, iterations=2)
    with pytest.warns(unn.ConvergenceWarning, match=says("fixed point", "2 rounds")):
        loss(examples())


@pytest.mark.parametrize("nudge", [0, -1.0, float("inf"), float("nan"), "a", True])
def test_nudges_are_finite_numbers_above_zero(nudge):
    with pytest.raises(InferenceError, match="nudge"):
        unn.EquilibriumPropagation(layers(), "X", "Y", nudge=nudge)


def test_factors_that_are_added_later_count_in_the_nudged_phases():
    g = unn.FactorGraph("layers", x=4, h=5, y=3)
    X, H = g.variable("X", "x", unn.SquaredNorm()), g.variable("H", "h", unn.SignedEntropy())
    Y = g.variable("Y", "y", unn.SignedEntropy())
    torch.manual_seed(0)
    W, V = (g.parameter(n, axes, init=0.3) for n, axes in (("W", "x h"), ("V", "h y")))
    g.factor(Multilinear(X["i"], W["i j"], H["j"]))
    g.factor(Multilinear(g.parameter("b", "y")["k"], Y["k"]))
    g.double()
    loss = unn.EquilibriumPropagation(g, "X", "Y", nudge=1e-3, until=1e-11)
    g.factor(Multilinear(H["j"], V["j k"], Y["k"]))
    _, gradient = gradient_of(loss, examples())
    _, exact = exact_gradient(g, examples())
    assert error(gradient, exact) < 1e-4


def directed_layer(dropout):
    g = unn.FactorGraph("directed", x=4, h=5, y=3)
    X, H = g.variable("X", "x", unn.SquaredNorm()), g.variable("H", "h", unn.SignedEntropy())
    Y = g.variable("Y", "y", unn.SignedEntropy())
    torch.manual_seed(0)
    g.factor(Directed(torch.nn.Sequential(torch.nn.Linear(4, 5), dropout), H, X))
    g.factor(Multilinear(H["j"], g.parameter("V", "h y", init=0.3)["j k"], Y["k"]))
    return g.double()


def test_modules_in_evaluation_are_so_in_all_phases():
    g = directed_layer(torch.nn.Dropout(0.5))
    loss = unn.EquilibriumPropagation(g, "X", "Y", nudge=1e-3, until=1e-11, iterations=5000)
    loss.eval()
    _, gradient = gradient_of(loss, examples())
    _, exact = exact_gradient(g, examples())
    assert error(gradient, exact) < 1e-4


@pytest.mark.parametrize("kind", [unn.EquilibriumPropagation, unn.ContrastiveHebbian])
def test_active_dropout_is_refused_with_the_name_of_its_module(kind):
    loss = kind(directed_layer(torch.nn.Dropout(0.5)), "X", "Y")
    with pytest.raises(InferenceError, match=says("module 'Directed(H, X).1' (Dropout(p=0.5")):
        loss(examples())


@pytest.mark.parametrize("kind", [unn.EquilibriumPropagation, unn.ContrastiveHebbian])
def test_examples_of_unknown_variables_are_refused(kind):
    with pytest.raises(ObservationError, match=says("unknown variable 'Hh'. Did you mean 'H'?")):
        kind(layers(), "X", "Y")({**examples(), "Hh": torch.zeros(6, 5)})
