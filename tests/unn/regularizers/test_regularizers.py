"""Every regularizer keeps its contract, and equals independent implementations."""

import entmax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from unn.errors import DeclarationError
from unn.regularizers import Dropped
from unn.testing import RegularizerContract


class TestSquaredNorm(RegularizerContract):
    def regularizer(self):
        return unn.SquaredNorm()


class TestNonNegative(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.NonNegative()


class TestBinaryEntropy(RegularizerContract):
    def regularizer(self):
        return unn.BinaryEntropy()


class TestSignedEntropy(RegularizerContract):
    def regularizer(self):
        return unn.SignedEntropy()


class TestEntropy(RegularizerContract):
    def regularizer(self):
        return unn.Entropy()


class TestWarmEntropy(RegularizerContract):
    def regularizer(self):
        return unn.Entropy(temperature=2.5)

    def test_coupled_axes_are_named(self):
        assert unn.Entropy(2.5, over="row").bind(("row", "entry"), "X").over_axes(("row", "entry")) == (
            "row",
        )


class TestSimplexNorm(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.SimplexNorm()


class TestColdSimplexNorm(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.SimplexNorm(0.2)


class TestSubsetNorm(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.SubsetNorm(2)


class TestWarmSubsetNorm(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.SubsetNorm(4, temperature=3.0)


class TestLayerNorm(RegularizerContract):
    has_sample = False
    full_dimensional = False

    def regularizer(self):
        return unn.LayerNorm(1e-2)


class TestRMSNorm(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.RMSNorm(1e-2)


class TestWarmTsallisEntropy(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.TsallisEntropy(1.5, temperature=2.0)


class TestTsallisEntropy(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.TsallisEntropy()


class TestTsallisEntropyNearSoftmax(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.TsallisEntropy(1.2)

    def test_coupled_axes_are_named(self):
        assert unn.TsallisEntropy(1.2, over="row").bind(("row", "entry"), "X").over_axes(
            ("row", "entry")
        ) == ("row",)


class TestBox(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.Box(-0.5, 2.0)


class TestBall(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.Ball()


class TestL1(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.L1(0.4)


ACTIVATIONS = [
    (unn.SquaredNorm(), lambda t: t),
    (unn.NonNegative(), torch.relu),
    (unn.BinaryEntropy(), torch.sigmoid),
    (unn.SignedEntropy(), torch.tanh),
    (unn.Entropy(), lambda t: torch.softmax(t, -1)),
    (unn.Box(-1, 1), torch.nn.functional.hardtanh),
    (unn.L1(0.5), lambda t: torch.nn.functional.softshrink(t, 0.5)),
    (unn.LayerNorm(1e-3), lambda t: torch.nn.functional.layer_norm(t, t.shape[-1:], eps=1e-3)),
    (unn.RMSNorm(1e-3), lambda t: torch.nn.functional.rms_norm(t, t.shape[-1:], eps=1e-3)),
    (unn.SubsetNorm(1, 0.5), lambda t: entmax.sparsemax(t / 0.5, -1)),
    (unn.SimplexNorm(0.5), lambda t: entmax.sparsemax(t / 0.5, -1)),
    (unn.TsallisEntropy(1.5, temperature=2.0), lambda t: entmax.entmax15(t / 2, -1)),
    (unn.SimplexNorm(), lambda t: entmax.sparsemax(t, -1)),
    (unn.TsallisEntropy(1.5), lambda t: entmax.entmax15(t, -1)),
    (unn.TsallisEntropy(1.3), lambda t: entmax.entmax_bisect(t, 1.3, -1, n_iter=100)),
]


@pytest.mark.parametrize(
    ("regularizer", "activation"),
    ACTIVATIONS,
    ids=lambda a: repr(a) if isinstance(a, unn.Regularizer) else "",
)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.3, 3.0, 30.0]))
@settings(max_examples=15, deadline=None)
def test_mirror_is_the_well_known_activation(regularizer, activation, seed, scale):
    t = scale * torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(regularizer.mirror(t), activation(t), rtol=1e-9, atol=1e-9)


def test_losses_are_the_well_known_losses():
    t = torch.randn(4, 6, dtype=torch.float64)
    one_hot = torch.nn.functional.one_hot(torch.tensor([0, 5, 2, 2]), 6).double()
    cross_entropy = torch.nn.functional.cross_entropy(t, one_hot, reduction="none")
    torch.testing.assert_close(unn.Entropy().loss(t, one_hot), cross_entropy)
    pixels = torch.rand(4, 6, dtype=torch.float64)
    binary = torch.nn.functional.binary_cross_entropy_with_logits(2 * t, pixels, reduction="none")
    entropy = -unn.BinaryEntropy().value(pixels)
    torch.testing.assert_close(unn.SignedEntropy().loss(t, 2 * pixels - 1) + entropy, binary.sum(1))


def test_borders_of_the_domains_have_the_limits_of_the_values():
    log2 = torch.log(torch.tensor(2.0, dtype=torch.float64))
    edge = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert unn.BinaryEntropy().value(edge) == 0
    assert unn.SignedEntropy().value(torch.tensor([[-1.0, 1.0]], dtype=torch.float64)) == 0
    torch.testing.assert_close(
        unn.SignedEntropy().value(torch.zeros(1, 2, dtype=torch.float64)), -2 * log2[None]
    )
    assert unn.Entropy().value(edge) == 0
    assert unn.SimplexNorm().value(edge) == 0.5
    assert unn.Entropy().value(torch.zeros(1, 2)) == torch.inf
    assert unn.BinaryEntropy().value(torch.tensor([[1.1]])) == torch.inf
    assert unn.NonNegative().value(torch.tensor([[-0.1]])) == torch.inf
    assert unn.Ball().value(torch.tensor([[1.0, 1.0]])) == torch.inf


def test_infinite_scores_reach_the_border():
    t = torch.tensor([[torch.inf, -torch.inf]])
    assert unn.BinaryEntropy().mirror(t).tolist() == [[1, 0]]
    assert unn.SignedEntropy().mirror(t).tolist() == [[1, -1]]
    assert unn.Box(0, 2).mirror(t).tolist() == [[2, 0]]
    for regularizer in (unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy()):
        forbidden = torch.tensor([[0.3, -torch.inf, 0.1]])
        assert regularizer.mirror(forbidden)[0, 1] == 0
        assert regularizer.mirror(torch.full((1, 3), -torch.inf)).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("dim", [2, 5, 60])
def test_sparsemax_keeps_its_support_at_large_offsets_in_float32(dim):
    t = torch.randn(3, dim) + 3e4
    expected = entmax.sparsemax(t.double(), -1)
    torch.testing.assert_close(unn.SimplexNorm().mirror(t).double(), expected, atol=1e-6, rtol=0)


def test_dropout_is_the_scaled_regularizer():
    """m Psi(x/m): mirror m mirror(t), Fenchel-Young tight, and dropped entries confined to zero."""
    torch.manual_seed(0)
    scale = (torch.rand(3, 2, 5, dtype=torch.float64) > 0.3).double() / 0.7
    for inner in (
        unn.SignedEntropy(),
        unn.NonNegative(),
        unn.SquaredNorm(),
        unn.BinaryEntropy(),
        unn.L1(0.2),
    ):
        r = Dropped(inner, scale)
        t = torch.randn(3, 2, 5, dtype=torch.float64)
        x = r.mirror(t)
        torch.testing.assert_close(x, scale * inner.mirror(t))
        tight = r.value(x) + r.conjugate(t) - (x * t).sum((1, 2))
        assert tight.abs().max() < 1e-10
        other = scale * inner.mirror(torch.randn_like(t))
        assert (r.value(other) + r.conjugate(t) - (other * t).sum((1, 2)) >= -1e-10).all()
        moved = x + (scale == 0)
        assert (r.value(moved) == torch.inf).all() and not r.contains(moved).any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: unn.Entropy(temperature=0), "temperature"),
        (lambda: unn.Entropy(temperature=float("nan")), "temperature"),
        (lambda: unn.TsallisEntropy(1.0), "use Entropy"),
        (lambda: unn.TsallisEntropy(3.0), "alpha"),
        (lambda: unn.Box(1, 1), "low < high"),
        (lambda: unn.Ball(-1), "radius"),
        (lambda: unn.L1(-1), "strength"),
    ],
)
def test_senseless_options_are_refused(build, message):
    with pytest.raises(DeclarationError, match=message):
        build()


def test_nan_among_the_scores_of_subsets_is_not_hidden():
    x = unn.SubsetNorm(2).mirror(torch.tensor([[1.0, torch.nan, 2.0], [1.0, 0.0, 2.0]]))
    assert x[0].isnan().any() and torch.equal(x[1], torch.tensor([1.0, 0.0, 1.0]))


@given(st.floats(-1e4, 1e4), st.floats(-8, 2))
def test_the_tolerance_of_a_box_is_relative_to_its_width(low, log_width):
    high = low + 10**log_width
    box = unn.Box(low, high)
    for x in torch.tensor([low, high]):
        assert bool(box.contains(x.view(1, 1)))
    outside = 0.1 * (high - low)
    for x in torch.tensor([low - outside, high + outside], dtype=torch.float64):
        assert not bool(box.contains(x.view(1, 1)))
