"""Certificates of a single fixed point."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import printed
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import unn
from factors import Conv2d, Implicit, Multilinear, TreeEntropy
from unn.cli.open import open_trained
from unn.descent.model import DescentModel
from unn.descent.options import DescentOptions
from unn.errors import ArgumentError, DeclarationError, ObservationError

KINDS = (
    unn.SignedEntropy,
    unn.BinaryEntropy,
    unn.SquaredNorm,
    lambda: unn.Entropy(temperature=0.7),
    unn.NonNegative,
    unn.SimplexNorm,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_graph(seed, scale):
    pick = torch.randint(len(KINDS), (2,), generator=seeded(seed)).tolist()
    g = unn.FactorGraph("random", x=3, a=4, b=3)
    x = g.variable("X", "x", unn.SquaredNorm())
    a, b = g.variable("A", "a", KINDS[pick[0]]()), g.variable("B", "b", KINDS[pick[1]]())
    g.factor(Multilinear(x["x"], g.parameter("P", "x a")["x a"], a["a"]))
    g.factor(Multilinear(a["a"], g.parameter("Q", "a b")["a b"], b["b"]))
    g.factor(Multilinear(x["x"], a["a"], g.parameter("R", "x a b")["x a b"], b["b"]))
    g.double()
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=seeded(seed), dtype=torch.float64))
    return g, torch.randn(1, 3, generator=seeded(seed + 1), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 0.25, 0.6]))
def test_certified_graphs_have_one_fixed_point_and_shrink_as_fast_as_is_said(seed, scale):
    g, x = random_graph(seed, scale)
    certificate = g.contraction({"X": x})
    if not certificate:
        return
    ends = []
    for k in range(3):
        start = {
            name: g.variables[name].regularizer.mirror(
                3 * torch.randn(1, n, generator=seeded(k), dtype=torch.float64)
            )
            for name, n in (("A", 4), ("B", 3))
        }
        out = unn.infer(g, {"X": x}, order=["A", "B"], initial=start, until=1e-12, iterations=5000)
        assert out.converged
        ends.append(torch.cat([out["A"], out["B"]], 1))
    for end in ends:
        torch.testing.assert_close(end, ends[0], atol=1e-9 / (1 - certificate.factor), rtol=0)
    # two rounds from points that differ in B alone
    b = [
        g.variables["B"].regularizer.mirror(torch.randn(1, 3, generator=seeded(k), dtype=torch.float64))
        for k in (7, 8)
    ]
    after = [unn.infer(g, {"X": x}, order=["A", "B"], initial={"B": start}, iterations=1)["B"] for start in b]
    gain = certificate.gains["A", "B"] * certificate.gains["B", "A"]
    assert (
        float((after[0] - after[1]).norm().detach())
        <= gain * float((b[0] - b[1]).norm()) * (1 + 1e-9) + 1e-12
    )


def test_the_gain_of_a_pair_is_the_norm_of_the_matrix_between_them():
    g = unn.FactorGraph("pair", a=3, b=5)
    a, b = g.variable("A", "a", unn.SquaredNorm()), g.variable("B", "b", unn.BinaryEntropy())
    w = g.parameter("W", "a b")
    g.factor(Multilinear(a["a"], w["a b"], b["b"]))
    certificate = g.contraction()
    norm = float(torch.linalg.matrix_norm(g.W.detach(), 2))
    assert certificate.gains["A", "B"] == pytest.approx(norm, rel=1e-5)
    assert certificate.gains["B", "A"] == pytest.approx(norm / 4, rel=1e-5)
    assert certificate.factor == pytest.approx(norm / 2, rel=1e-5)


@pytest.mark.parametrize(("coupling", "certified"), [(0.2, True), (0.3, False)])
def test_a_ring_of_spins_is_certified_up_to_half_its_coupling(coupling, certified):
    g = unn.FactorGraph("ring", n=6)
    s = g.variable("S", "n", unn.SignedEntropy())
    i, j = torch.arange(6), (torch.arange(6) + 1) % 6
    w = torch.zeros(6, 6)
    w[i, j] = 2 * coupling
    g.factor(Multilinear(s["i"], g.constant("J", "n n", w)["i j"], s["j"]))
    certificate = g.contraction()
    # the energy is -2 J sum of neighbours; every spin has two
    assert certificate.factor == pytest.approx(4 * coupling, rel=1e-5)
    assert bool(certificate) is certified


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certificates_and_normalisation_serve_the_dtype_of_the_graph(dtype):
    g = unn.FactorGraph("ring", n=3)
    s = g.variable("s", "n", unn.SignedEntropy())
    g.factor(Multilinear(g.parameter("J", "", init=0.2)[""], s["i"], s["i+1"]))
    with torch.no_grad():
        g.J.fill_(2.0)
    g.to(dtype)
    assert not g.contraction()
    assert unn.spectral_normalise(g, 0.5).factor <= 0.5 + 1e-6 and g.J.dtype == dtype


def test_shared_kernels_count_with_the_norm_of_the_convolution():
    g = unn.FactorGraph("conv", channel=1, row=6, column=6, filter=2, up=4, across=4, height=3, width=3)
    x = g.variable("X", "channel row column", unn.SquaredNorm())
    h = g.variable("H", "filter up across", unn.SignedEntropy())
    k = g.parameter("K", "filter channel height width")
    g.factor(Conv2d(h, k, x))
    certificate = g.contraction()
    basis = torch.eye(36).view(36, 1, 6, 6)
    matrix = torch.nn.functional.conv2d(basis, g.K.detach()).flatten(1)
    assert certificate.gains["H", "X"] == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-4)


def test_what_is_given_acts_on_nothing():
    g, x = random_graph(0, 5.0)
    assert not g.contraction({"X": x})
    certificate = g.contraction(
        {"X": x, "A": g.variables["A"].regularizer.mirror(torch.zeros(1, 4).double())}
    )
    assert certificate.factor == 0
    assert certificate.gains == {}


def test_what_is_given_in_part_counts_as_not_given():
    g = unn.FactorGraph("layers", n=4, m=3)
    X, H = g.variable("X", "n", unn.SignedEntropy()), g.variable("H", "m", unn.SignedEntropy())
    g.factor(Multilinear(H["h"], g.parameter("W", "m n", init=torch.full((3, 4), 3.0))["h x"], X["x"]))
    x, one = torch.zeros(1, 4), torch.tensor([[True, False, False, False]])
    free, partial = g.contraction(), g.contraction({"X": unn.Partial(x, one)})
    assert free.factor == partial.factor > 1
    assert free.gains == partial.gains
    assert unn.spectral_normalise(g, 0.9, {"X": unn.Partial(x, one)}).factor <= 0.9
    assert g.contraction().factor <= 0.9


def test_what_is_not_known_is_named():
    g = unn.FactorGraph("triple", n=2)
    a, b, c = (g.variable(name, "n", unn.SignedEntropy()) for name in "ABC")
    g.factor(Multilinear(a["i"], b["i"], c["i"], name="product"))
    assert math.isinf(g.contraction().factor)
    assert "'product'" in str(g.contraction())
    assert g.contraction({"A": torch.full((1, 2), 0.5)}).factor == pytest.approx(0.5)
    h = unn.FactorGraph("curved", n=2)
    h.factor(Implicit(lambda x: x.sum(1).cosh(), h.variable("X", "n", unn.SquaredNorm())["i"], name="cosh"))
    assert "'cosh'" in str(h.contraction())
    t = unn.FactorGraph("trees", head=3, modifier=3)
    t.factor(
        Multilinear(
            t.variable("A", "head modifier", TreeEntropy())["h m"], t.parameter("W", "head modifier")["h m"]
        )
    )
    assert "'A'" in str(t.contraction())


def test_the_text_says_what_is_certified_and_which_gain_is_too_large():
    g = unn.FactorGraph("pair", a=1, b=1)
    a, b = g.variable("A", "a", unn.SquaredNorm()), g.variable("B", "b", unn.SquaredNorm())
    w = g.parameter("W", "a b", init=torch.tensor([[0.5]]))
    g.factor(Multilinear(a["a"], w["a b"], b["b"]))
    assert "one fixed point" in str(g.contraction())
    with torch.no_grad():
        g.W.fill_(2.0)
    assert "2" in str(g.contraction())
    assert "no certificate" in str(g.contraction())


def test_several_rows_are_refused():
    g, x = random_graph(0, 0.1)
    with pytest.raises(ObservationError, match="one example"):
        g.contraction({"X": x.expand(2, 3)})


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 30.0]), factor=st.floats(0.2, 0.95))
def test_spectral_normalisation_certifies_one_fixed_point_and_changes_weak_couplings_not_at_all(
    seed, scale, factor
):
    g, x = random_graph(seed, scale)
    before = {name: p.detach().clone() for name, p in g.named_parameters()}
    weak = g.contraction({"X": x}).factor <= factor
    certificate = unn.spectral_normalise(g, factor, {"X": x})
    assert certificate and certificate.factor <= factor
    assert certificate.factor == pytest.approx(g.contraction({"X": x}).factor)
    # P couples A to what is given alone
    assert torch.equal(g.P, before["P"])
    for name in ("Q", "R"):
        ratio = g.get_parameter(name).detach() / before[name]
        torch.testing.assert_close(ratio, torch.full_like(ratio, float(ratio.flatten()[0])))
        assert bool((ratio == 1).all()) == weak
    if not weak:
        assert certificate.factor == pytest.approx(factor, rel=1e-3)


def test_training_with_spectral_normalisation_stays_at_one_fixed_point():
    g, x = random_graph(1, 0.5)
    optimiser = torch.optim.Adam(g.parameters(), 0.1)
    network = unn.Unrolled(g, "X", "B", ["A", "B"], iterations=3)
    for _ in range(20):
        optimiser.zero_grad()
        (-network(x).square().sum()).backward()
        optimiser.step()
        assert unn.spectral_normalise(g, 0.8, {"X": x}).factor <= 0.8


def test_couplings_within_a_variable_are_scaled():
    torch.manual_seed(0)
    g = unn.FactorGraph("lateral", n=4)
    s = g.variable("S", "n", unn.SignedEntropy())
    g.factor(Multilinear(s["i"], g.parameter("J", "n n", init=1.0)["i j"], s["j"]))
    assert unn.spectral_normalise(g, 0.9).factor <= 0.9


def test_what_cannot_be_normalised_is_refused():
    g, x = random_graph(0, 1.0)
    for factor in (0, 1, 1.5, float("nan"), "a", True):
        with pytest.raises(DeclarationError, match="between 0 and 1"):
            unn.spectral_normalise(g, factor, {"X": x})
    fixed = unn.FactorGraph("fixed", n=2)
    a, b = fixed.variable("A", "n", unn.SignedEntropy()), fixed.variable("B", "n", unn.SignedEntropy())
    fixed.factor(Multilinear(a["i"], b["i"], fixed.constant("w", "", torch.tensor(2.0))[""]))
    with pytest.raises(DeclarationError, match=r"'fixed'.*radius 2.*constants"):
        unn.spectral_normalise(fixed)
    unknown = unn.FactorGraph("unknown", n=2)
    y = unknown.variable("Y", "n", unn.SignedEntropy())
    unknown.factor(Implicit(lambda v: v.square().sum(1), y["i"]))
    with pytest.raises(DeclarationError, match=r"'unknown'.*not multilinear"):
        unn.spectral_normalise(unknown)


def coupled(scale):
    torch.manual_seed(0)
    g = unn.FactorGraph("coupled", a=3, b=4, c=2)
    A, B, C = (g.variable(name.upper(), name, unn.SignedEntropy()) for name in "abc")
    g.factor(Multilinear(A["i"], g.parameter("V", "a b", init=scale)["i j"], B["j"]))
    g.factor(Multilinear(B["j"], g.parameter("W", "b c", init=scale)["j k"], C["k"]))
    g.factor(Multilinear(g.parameter("bias", "b", init=scale)["j"], B["j"]))
    return g


def test_a_model_with_the_option_has_one_fixed_point_for_any_evidence_during_training():
    g = coupled(3.0)
    bias = g.bias.detach().clone()
    model = DescentModel(g, DescentOptions(contraction=0.8))
    assert g.contraction().factor <= 0.8 and torch.equal(g.bias, bias)
    # the optimiser of training, which is fused
    optimiser = torch.optim.Adam(model.parameters(), 0.5, fused=True)
    values = {name: torch.rand(6, n) * 1.8 - 0.9 for name, n in (("A", 3), ("B", 4), ("C", 2))}
    for known in ("A", "B", "C"):
        observed = {name: torch.full((1, x.shape[1]), name == known) for name, x in values.items()}
        optimiser.zero_grad()
        model.loss(values, observed).backward()
        assert g.contraction().factor <= 0.8
        assert g.contraction({known: values[known][:1]}).factor <= 0.8
        optimiser.step()
    # the last step is followed by inference
    assert g.contraction().factor > 0.8
    model.infer_values({"A": values["A"]}, 6, {})
    assert g.contraction().factor <= 0.8
    # and weights that are loaded, by evaluation
    g.W.data.mul_(10)
    assert not model.eval().training and g.contraction().factor <= 0.8
    unchanged = [p.detach().clone() for p in model.parameters()]
    model.infer_values({"A": values["A"]}, 6, {})
    assert all(torch.equal(p, before) for p, before in zip(model.parameters(), unchanged, strict=True))


def test_the_option_refuses_couplings_of_unknown_strength_or_size():
    limit = DescentOptions(contraction=0.9)
    g = unn.FactorGraph("sized")
    s = g.variable("S", "n", unn.SignedEntropy())
    g.factor(Multilinear(g.parameter("w", "", init=1.0)[""], s["i"], s["i+1"]))
    with pytest.raises(DeclarationError, match=r"'sized'.*contraction.*'S'"):
        DescentModel(g, limit)
    three = unn.FactorGraph("three", n=2)
    x, y, z = (three.variable(name, "n", unn.SignedEntropy()) for name in "XYZ")
    three.factor(Multilinear(x["i"], y["i"], z["i"], name="product"))
    with pytest.raises(DeclarationError, match=r"'product'.*3 variables"):
        DescentModel(three, limit)
    open_constant = unn.FactorGraph("open", n=2)
    a, b = (open_constant.variable(name, "n", unn.SignedEntropy()) for name in "AB")
    open_constant.factor(Multilinear(a["i"], open_constant.constant("K", "n n")["i j"], b["j"]))
    with pytest.raises(DeclarationError, match=r"option contraction.*'K'"):
        DescentModel(open_constant, limit)
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(ArgumentError, match="contraction"):
            DescentModel(coupled(1.0), DescentOptions(contraction=wrong))
    broken = coupled(1.0)
    with torch.no_grad():
        broken.W.fill_(float("nan"))
    with pytest.raises(DeclarationError, match=r"gain of 'C' on 'B' is nan"):
        DescentModel(broken, limit)


def test_frozen_parameters_are_not_scaled():
    g = coupled(3.0)
    g.V.requires_grad_(False)
    before = g.V.clone()
    with pytest.raises(DeclarationError, match="frozen"):
        unn.spectral_normalise(g, 0.5)
    assert torch.equal(g.V, before)


def test_parametrized_couplings_are_scaled_through_their_parametrization():
    g = coupled(3.0)
    weight_norm(g, "V")
    before, bias = g.V.detach().clone(), g.bias.detach().clone()
    assert unn.spectral_normalise(g, 0.9).factor <= 0.9
    shrunk = g.V / before
    torch.testing.assert_close(shrunk, shrunk[0, 0].expand_as(shrunk))
    assert 0 < float(shrunk[0, 0].detach()) < 1 and torch.equal(g.bias, bias)


class Doubled(torch.nn.Module):
    """A parametrization without an inverse."""

    def forward(self, x):
        return 2 * x


def test_parametrizations_without_an_inverse_are_refused_by_name():
    g = coupled(3.0)
    parametrize.register_parametrization(g, "V", Doubled())
    with pytest.raises(DeclarationError, match=r"'V' has no inverse"):
        unn.spectral_normalise(g, 0.9)


@pytest.mark.slow
def test_a_run_with_the_option_ends_with_a_contraction(tmp_path, capsys):
    folder = tmp_path / "run"
    options = ["--rows", 3, "--columns", 3, "--steps", 40, "--rate", 0.02, "--contraction", 0.1]
    printed(capsys, "train", "gaussian", "--engine", "descent", *options, "--quiet", "--folder", folder)
    network = open_trained(folder)[1].network
    assert network.graph.contraction().factor <= 0.1
    assert abs(network.graph.coupling.item()) > 0.01


def test_certificates_need_the_size_of_every_axis():
    g = unn.FactorGraph("chain")
    x = g.variable("x", "n", unn.SignedEntropy())
    g.factor(Multilinear(g.parameter("J", "", init=torch.tensor(5.0))[""], x["i"], x["i+1"]))
    for certify in (g.contraction, lambda: unn.spectral_normalise(g)):
        with pytest.raises(DeclarationError, match=r"the size of axis 'n' of 'x' is unknown.*sizes=\{'n'"):
            certify()
    assert g.contraction(sizes={"n": 1}).factor == 0
    # the norm of a chain of n nodes is 2 cos(pi / (n + 1)) times the coupling
    assert g.contraction(sizes={"n": 20}).factor == pytest.approx(10 * math.cos(math.pi / 21), rel=1e-4)
    assert unn.spectral_normalise(g, 0.9, sizes={"n": 20}).factor <= 0.9
    ends = [
        unn.infer(g, {}, initial={"x": s * torch.ones(1, 20) / 2}, order=["x"], until=1e-6) for s in (1, -1)
    ]
    torch.testing.assert_close(ends[0]["x"], ends[1]["x"], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_the_rate_of_a_variable_that_acts_on_itself_is_not_said_for_its_nodes_may_be_slower():
    # a symmetric matrix whose lower triangle has a larger norm than the whole
    distance = (torch.arange(200)[:, None] - torch.arange(200)).abs().double()
    matrix = torch.cos(1.5586844658863253 * distance + 1.6535839695817316) / (distance + 1)
    matrix.fill_diagonal_(0)
    matrix *= 0.5 / torch.linalg.matrix_norm(matrix, 2)
    g = unn.FactorGraph("line", i=200)
    x = g.variable("X", "i", unn.SquaredNorm())
    g.factor(Multilinear(g.constant("J", "i k", matrix / 2)["i k"], x["i"], x["k"], where="i != k"))
    certificate = g.contraction()
    assert certificate and "one fixed point" in str(certificate) and "shrinks" not in str(certificate)
    start = torch.randn(1, 200, generator=seeded(0), dtype=torch.float64)
    early, late = (
        float(unn.infer(g, {}, initial={"X": start}, order=["X"], iterations=k)["X"].norm()) for k in (20, 40)
    )
    assert (late / early) ** (1 / 20) > 1.1 * certificate.factor


def test_the_certificate_is_about_the_energy_without_dropout_and_messages_say_so():
    g = unn.FactorGraph("pair", a=1, b=1)
    a, b = (g.variable(name.upper(), name, unn.SquaredNorm()) for name in "ab")
    g.factor(Multilinear(a["i"], g.constant("W", "a b", torch.tensor([[0.8]]))["i j"], b["j"]))
    assert g.contraction() and g.boundedness().bounded
    one = torch.ones(1, 1)
    masks = {"A": 2 * one, "B": 2 * one}
    out = unn.infer(g, {}, initial={"A": one, "B": one}, dropout=masks, until=1e-6, iterations=2000)
    assert out.status is unn.Status.UNBOUNDED and "without dropout: bounded" in out.message


def test_a_model_with_dropout_has_one_fixed_point_in_training_too():
    g = coupled(3.0)
    DescentModel(g, DescentOptions(contraction=0.8, dropout=0.5))
    assert g.contraction().factor <= 0.4
