"""Feed-forward pieces and free energies inside undirected graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Directed, Implicit, Multilinear
from unn.testing import FactorContract, domain_point
from unn.testing.strategies import REGULARIZERS

BATCH = 4


def noise(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Bilinear(torch.nn.Module):
    """Two parents to one child of two axes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(2, 4)

    def forward(self, a, b):
        return torch.tanh(self.first(a))[:, None, :] * self.second(b)


def directed(regularizer, parent=None):
    """A child under a small network."""
    torch.manual_seed(0)
    g = unn.FactorGraph("directed", x=3, h=4)
    H, X = g.variable("H", "h", regularizer), g.variable("X", "x", parent or unn.SquaredNorm())
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    g.factor(Directed(net, H, X, name="net"))
    return g.double(), net


@settings(max_examples=40, deadline=None)
@given(make=st.sampled_from(REGULARIZERS), seed=st.integers(0, 999))
def test_with_the_regularizer_of_the_child_the_energy_is_positive_except_at_the_feed_forward_result(
    make, seed
):
    r = make()
    g, net = directed(r)
    f = g.factors["net"]
    x = 2 * noise(BATCH, 3, seed=seed)
    r = g.variables["H"].regularizer
    result = r.mirror(net(x)).detach()
    here = f.energy({"X": x, "H": result}) + r.value(result)
    torch.testing.assert_close(here, torch.zeros(BATCH, dtype=torch.float64), atol=1e-11, rtol=0)
    h = domain_point(r, (BATCH, 4), torch.Generator().manual_seed(seed))
    there = f.energy({"X": x, "H": h}) + r.value(h)
    # strong convexity: the inverse of the Lipschitz constant of the activation
    assert (there >= 0.5 * (h - result).square().sum(1) / max(8.0, r.lipschitz)).all()
    assert (there > 1e-9).all()


def test_with_a_squared_norm_it_is_half_the_squared_distance():
    g, net = directed(unn.SquaredNorm())
    x, h = noise(BATCH, 3), noise(BATCH, 4, seed=1)
    values = {"X": x, "H": h}
    distance = g.factors["net"].energy(values) + g.variables["H"].regularizer.value(h)
    torch.testing.assert_close(distance, 0.5 * (h - net(x)).square().sum(1))


@pytest.mark.parametrize("make", REGULARIZERS)
def test_forward_inference_is_the_module_followed_by_the_activation_exactly(make):
    g, net = directed(make())
    x = noise(BATCH, 3)
    out = unn.infer(g, {"X": x}, order=["H"])
    assert torch.equal(out["H"], g.variables["H"].regularizer.mirror(net(x)))
    assert torch.equal(out.preactivations["H"], net(x))


def test_several_parents_reach_the_module_in_the_order_given():
    torch.manual_seed(0)
    g = unn.FactorGraph("two", a=3, n=5, b=2, h=4)
    H = g.variable("H", "n h", unn.Entropy())
    B, A = g.variable("B", "n b", unn.SquaredNorm()), g.variable("A", "a", unn.SquaredNorm())
    net = Bilinear()
    g.factor(Directed(net, H, [A, B]))
    g.double()
    a, b = noise(BATCH, 3), noise(BATCH, 5, 2)
    out = unn.infer(g, {"A": a, "B": b})
    assert torch.equal(out["H"], torch.softmax(net(a, b), -1))


def test_the_parameters_of_the_module_are_parameters_of_the_graph_and_receive_gradients():
    g, net = directed(unn.SignedEntropy())
    assert {id(p) for p in g.parameters()} == {id(p) for p in net.parameters()}
    assert set(g.state_dict()) == {f"net.{name}" for name in net.state_dict()}
    x = noise(BATCH, 3)
    unn.infer(g, {"X": x}, order=["H"])["H"].square().sum().backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    g.zero_grad()
    net(x).tanh().square().sum().backward()
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, p.grad)


@settings(max_examples=25, deadline=None)
@given(make=st.sampled_from(REGULARIZERS), parent=st.sampled_from(REGULARIZERS), seed=st.integers(0, 999))
def test_inferring_the_parent_from_the_child_never_raises_the_energy(make, parent, seed):
    g, _ = directed(make(), parent())
    generator = torch.Generator().manual_seed(seed)
    h = domain_point(g.variables["H"].regularizer, (BATCH, 4), generator)
    x = domain_point(g.variables["X"].regularizer, (BATCH, 3), generator)
    with torch.no_grad():
        out = unn.infer(g, {"H": h}, initial={"X": x}, order=["X"], iterations=3)
        energies = torch.cat([g.energy({"X": x, "H": h})[None], out.energy])
    assert (energies.diff(dim=0) <= 1e-9 * (1 + energies[1:].abs())).all()
    assert (energies[-1] < energies[0]).all()
    torch.testing.assert_close(energies[-1], g.energy(out.values).detach(), rtol=1e-9, atol=1e-9)


def test_a_child_with_other_factors_adds_their_messages_to_the_module():
    g, net = directed(unn.SignedEntropy())
    Y = g.variable("Y", "y", unn.Entropy())
    V = g.parameter("V", "y h", init=noise(2, 4))
    g.factor(Multilinear(Y["c"], V["c h"], g["H"]["h"]))
    x, y = noise(BATCH, 3), torch.softmax(noise(BATCH, 2), 1)
    out = unn.infer(g, {"X": x, "Y": y}, order=["H"])
    torch.testing.assert_close(out["H"], torch.tanh(net(x) + y @ g.V))


def test_directed_factors_are_affine_in_the_child_alone_and_bounded_with_its_regularizer():
    g, _ = directed(unn.SquaredNorm())
    f = g.factors["net"]
    assert f.affine_in("H") and not f.affine_in("X") and not f.multilinear
    assert f.completed_by == "H" and f.degree(["X"]) == 0 and f.degree(["H"]) == 1
    assert g.boundedness().bounded


@pytest.mark.parametrize(
    ("module", "degree"),
    [
        (torch.nn.Linear(2, 2), 2),
        (torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)), 2),
        (torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)), 1),
        (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)), None),
    ],
)
def test_the_degree_of_a_directed_factor_is_one_more_than_the_growth_of_its_module(module, degree):
    g = unn.FactorGraph("growth", n=2)
    X, H = (g.variable(name, "n", unn.SquaredNorm()) for name in "XH")
    assert g.factor(Directed(module, H, X)).degree(["X", "H"]) == degree


def test_wrong_roles_and_wrong_modules_are_refused():
    g = unn.FactorGraph("wrong", x=3, h=4)
    H, X, W = (
        g.variable("H", "h", unn.SquaredNorm()),
        g.variable("X", "x", unn.SquaredNorm()),
        g.parameter("W", "x"),
    )
    net = torch.nn.Linear(3, 4)
    for child, parents, words in (
        (H, [H], "own parent"),
        (H, [], "at least one parent"),
        (W, X, "takes variables"),
        (H, [X, W], "takes variables"),
    ):
        with pytest.raises(unn.DeclarationError, match=words):
            Directed(net, child, parents)
    wide = Directed(torch.nn.Linear(3, 5), H, X, name="wide")
    with pytest.raises(unn.DeclarationError, match="'wide'.*'H'"):
        wide.energy({"X": torch.zeros(2, 3), "H": torch.zeros(2, 4)})


# -- implicit ------------------------------------------------------------------------------------------------


def coupled(x, y):
    """Neither bilinear nor separable."""
    return (x - y).square().sum(1).cosh().log() + (x * y).sin().sum(1)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(first=st.sampled_from(REGULARIZERS), second=st.sampled_from(REGULARIZERS), seed=st.integers(0, 999))
def test_energies_never_rise_with_a_free_energy(first, second, seed):
    g = unn.FactorGraph("free", n=3)
    X, Y = g.variable("X", "n", first()), g.variable("Y", "n", second())
    g.factor(Implicit(coupled, X["i"], Y["i"]))
    generator = torch.Generator().manual_seed(seed)
    start = {name: domain_point(g.variables[name].regularizer, (BATCH, 3), generator) for name in "XY"}
    out = unn.infer(g, {}, initial=start, order=["X", "Y"], iterations=4)
    energies = torch.cat([g.energy(start)[None], out.energy])
    assert (energies.diff(dim=0) <= 1e-9 * (1 + energies[1:].abs())).all()
    assert (energies[-1] < energies[0]).all()
    for name in "XY":
        assert g.variables[name].regularizer.contains(out[name]).all()


def test_messages_are_minus_the_gradient_also_where_a_variable_does_not_matter():
    g = unn.FactorGraph("free", n=3)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm())
    f = Implicit(lambda x, y: x.sin().sum(1), X["i"], Y["j"])
    g.factor(f)
    values = {"X": noise(BATCH, 3), "Y": noise(BATCH, 3)}
    torch.testing.assert_close(f.message("X", values), -values["X"].cos())
    assert torch.equal(f.message("Y", values), torch.zeros(BATCH, 3, dtype=torch.float64))


def test_messages_are_partial_derivatives_even_if_another_value_was_computed_from_the_target():
    """After an update Y carries the history of X; the message to X must not follow it, but must keep its own
    history."""
    g = unn.FactorGraph("history", n=3)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm())
    f = Implicit(lambda x, y: -(x.square() * y).sum(1), X["i"], Y["i"])
    g.factor(f)
    x = noise(BATCH, 3).requires_grad_()
    y = 3 * x
    message = f.message("X", {"X": x, "Y": y})
    torch.testing.assert_close(message, 2 * x * y)
    torch.testing.assert_close(torch.autograd.grad(message.sum(), x)[0], 12 * x)
    net = Directed(torch.nn.Linear(3, 3).double(), Y, X)
    free = {"X": x.detach(), "Y": y.detach()}
    torch.testing.assert_close(net.message("X", {"X": x, "Y": y}), net.message("X", free))


@pytest.mark.parametrize("directed_factor", [False, True])
def test_inference_finds_the_same_values_with_and_without_gradients(directed_factor):
    g, _ = directed(unn.SignedEntropy(), unn.BinaryEntropy())
    if not directed_factor:
        g = unn.FactorGraph("free", x=3, h=4)
        H, X = g.variable("H", "h", unn.SignedEntropy()), g.variable("X", "x", unn.L1(0.1))
        W = g.parameter("W", "h x", init=noise(4, 3))
        g.factor(
            Implicit(lambda h, w, x: (h - x @ w.T).square().sum(1).cosh().log(), H["h"], W["h x"], X["x"])
        )
        g.double()
    start = {"H": 0.5 * torch.tanh(noise(BATCH, 4)), "X": torch.sigmoid(noise(BATCH, 3, seed=1))}
    runs = []
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            runs.append(unn.infer(g, {}, initial=start, order=["H", "X"], iterations=4))
    for name in "HX":
        torch.testing.assert_close(runs[0][name].detach(), runs[1][name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", REGULARIZERS)
def test_a_bilinear_energy_in_disguise_gives_the_closed_form(make):
    w = 0.4 * noise(4, 3)
    start = domain_point(make(), (BATCH, 3), torch.Generator().manual_seed(1))
    solutions = []
    for disguised in (True, False):
        g = unn.FactorGraph("disguise", h=4, x=3)
        H, X = g.variable("H", "h", unn.SignedEntropy()), g.variable("X", "x", make())
        W = g.parameter("W", "h x", init=w)
        if disguised:
            g.factor(
                Implicit(lambda h, w, x: -torch.einsum("bh,hx,bx->b", h, w, x), H["h"], W["h x"], X["x"])
            )
        else:
            g.factor(Multilinear(H["h"], W["h x"], X["x"]))
        out = unn.infer(
            g,
            {},
            initial={"X": start, "H": torch.zeros(BATCH, 4, dtype=torch.float64)},
            order=["H", "X"],
            iterations=3,
        )
        solutions.append(out)
    disguised, plain = solutions
    for name in "HX":
        torch.testing.assert_close(disguised[name], plain[name], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(disguised.energy, plain.energy, rtol=1e-9, atol=1e-9)


def test_a_quadratic_energy_is_minimised_to_the_solution_of_its_linear_system():
    a = 0.3 * noise(4, 4)
    a = a @ a.T
    g = unn.FactorGraph("quadratic", n=4)
    X, B = g.variable("X", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    A = g.parameter("A", "n m", init=a)
    g.factor(
        Implicit(
            lambda x, a, b: 0.5 * torch.einsum("bi,ij,bj->b", x, a, x) - (x * b).sum(1),
            X["i"],
            A["i j"],
            B["i"],
        )
    )
    b = noise(BATCH, 4, seed=1)
    out = unn.infer(g, {"B": b}, order=["X"], iterations=5)
    exact = torch.linalg.solve(torch.eye(4, dtype=torch.float64) + a, b[..., None])[..., 0]
    torch.testing.assert_close(out["X"], exact, rtol=0, atol=1e-5)


def test_gradients_through_inference_are_those_of_finite_differences():
    """With a fixed number of rounds, the solver included; loose, since the solver stops at a tolerance."""
    b = noise(2, 2, seed=1)

    def solve(w):
        g = unn.FactorGraph("gradient", n=2)
        X, Y, B = (
            g.variable(name, "n", r)
            for name, r in (("X", unn.SquaredNorm()), ("Y", unn.SignedEntropy()), ("B", unn.SquaredNorm()))
        )
        W = g.constant("W", "n m")
        g.factor(
            Implicit(lambda x, w, y: 0.1 * ((x @ w - y).square() + 1).sqrt().sum(1), X["i"], W["i j"], Y["j"])
        )
        g.factor(Multilinear(X["i"], B["i"]))
        out = unn.infer(g, {"B": b, "W": w}, order=["X", "Y"], iterations=2)
        return (out["Y"] + out["X"].square()).sum()

    w = noise(2, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(solve(w), w)
    expected = torch.zeros_like(w)
    step = 1e-3
    for i in range(2):
        for j in range(2):
            shift = torch.zeros_like(w)
            shift[i, j] = step
            expected[i, j] = (solve(w.detach() + shift) - solve(w.detach() - shift)) / (2 * step)
    assert expected.abs().min() > 1e-3
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_the_degree_is_known_only_if_stated_or_if_no_variable_is_free():
    g = unn.FactorGraph("degree", n=3)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "n", unn.SquaredNorm())
    unknown, stated = Implicit(coupled, X["i"], Y["i"]), Implicit(coupled, X["i"], Y["i"], bounded_below=True)
    assert unknown.degree(["X"]) is None and unknown.degree(["Z"]) == 0
    assert stated.degree(["X", "Y"]) == 0
    assert not unknown.affine_in("X") and not unknown.multilinear


def test_energies_of_wrong_shape_and_references_that_need_a_view_are_refused_by_name():
    g = unn.FactorGraph("wrong", n=3)
    X, W = g.variable("X", "n", unn.SquaredNorm()), g.parameter("W", "n")
    f = Implicit(lambda x: x.sum(), X["i"], name="total")
    with pytest.raises(unn.DeclarationError, match="'total'.*one value for each batch element"):
        f.energy({"X": torch.zeros(2, 3)})
    with pytest.raises(unn.DeclarationError, match="'moved'.*cannot be shifted"):
        Implicit(coupled, X["i"], X["i+1"], name="moved")
    with pytest.raises(unn.DeclarationError, match="no variable"):
        Implicit(coupled, W["i"])
    with pytest.raises(unn.DeclarationError, match="takes a function"):
        Implicit(X["i"], X["i"])


# -- the contract --------------------------------------------------------------------------------------------


class TestDirectedChain(FactorContract):
    def graph(self):
        g, _ = directed(unn.SignedEntropy(), unn.Entropy())
        Y = g.variable("Y", "y", unn.SquaredNorm())
        g.factor(Directed(torch.nn.Linear(4, 2), Y, g["H"]))
        g.sizes["y"] = 2
        g.size_table.declare("y", 2)
        return g


class TestDirectedWithTwoParents(FactorContract):
    def graph(self):
        g = unn.FactorGraph("two", a=3, n=2, b=2, h=4)
        H = g.variable("H", "n h", unn.Entropy())
        B, A = g.variable("B", "n b", unn.BinaryEntropy()), g.variable("A", "a", unn.SquaredNorm())
        g.factor(Directed(Bilinear(), H, [A, B]))
        return g


class TestImplicitWithParameter(FactorContract):
    def graph(self):
        g = unn.FactorGraph("implicit", n=3, m=2)
        X, Y = g.variable("X", "n", unn.SignedEntropy()), g.variable("Y", "m", unn.Entropy())
        W = g.parameter("W", "n m", init="normal")
        g.factor(Implicit(lambda x, w, y: (x @ w - y).square().sum(1).cosh(), X["i"], W["i j"], Y["j"]))
        g.factor(Multilinear(X["i"], Y["j"], W["i j"]))
        return g


class Rows(torch.nn.Module):
    """Doubles rows, and leaves out rows of zeros by their count."""

    def forward(self, words):
        return 2 * words * (words != 0).any(2).sum(1)[:, None, None]


def rows_graph(handles_padding):
    g = unn.FactorGraph("rows", width=2)
    words = g.constant("words", "word width")
    X = g.variable("X", "word width", unn.SquaredNorm())
    g.factor(Directed(Rows(), X, words, handles_padding=handles_padding))
    return g


def test_a_constant_can_be_the_parent_of_a_directed_factor():
    words = torch.ones(2, 3, 2)
    out = unn.infer(rows_graph(False), {"words": words}, order=["X"])
    assert torch.equal(out["X"], 6 * words)


def test_a_module_that_leaves_out_padding_by_itself_runs_with_lengths_and_others_are_refused():
    words, lengths = torch.ones(2, 3, 2), {"word": torch.tensor([3, 1])}
    out = unn.infer(rows_graph(True), {"words": words}, order=["X"], lengths=lengths)
    assert torch.equal(out["X"][0], 6 * words[0]) and out["X"][1].tolist() == [[2, 2], [0, 0], [0, 0]]
    with pytest.raises(unn.ObservationError, match=says("'Directed", "does not leave out padding", "'word'")):
        unn.infer(rows_graph(False), {"words": words}, order=["X"], lengths=lengths)


def test_parents_of_a_child_with_padding_are_refused_with_lengths_unless_they_are_given():
    g = unn.FactorGraph("rows", width=2)
    P, X = (
        g.variable("P", "word width", unn.SquaredNorm()),
        g.variable("X", "word width", unn.SignedEntropy()),
    )
    g.factor(Directed(torch.nn.Linear(2, 2), X, P, name="net", handles_padding=True))
    bias = g.constant("bias", "word width")
    g.factor(Multilinear(bias["i w"], P["i w"]))
    lengths = {"word": torch.tensor([3, 1])}
    given = {"bias": torch.ones(2, 3, 2)}
    with pytest.raises(unn.ObservationError, match=says("'net'", "'P'", "give 'P'")):
        unn.infer(g, given, order=["P", "X"], lengths=lengths)
    parents = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    out = unn.infer(g, {**given, "P": parents}, order=["X"], lengths=lengths)
    alone = unn.infer(g, {"bias": given["bias"][1:, :1], "P": parents[1:, :1]}, order=["X"])
    torch.testing.assert_close(out["X"][1:, :1], alone["X"])


def test_the_parameters_of_a_module_in_an_implicit_factor_are_those_of_the_graph():
    class Bowl(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.depth = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.depth**2 * x.square().sum(1)

    g = unn.FactorGraph("g", n=2)
    X = g.variable("X", "n", unn.SquaredNorm())
    factor = g.factor(Implicit(Bowl(), X["i"]))
    assert [name for name, _ in g.named_parameters()] == ["Implicit(X).depth"]
    assert factor.formula() == "Bowl(X[i])"
    (gradient,) = torch.autograd.grad(g.energy({"X": torch.ones(1, 2)}).sum(), list(g.parameters()))
    assert float(gradient) == 4
