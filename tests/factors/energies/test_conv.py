"""Convolutions against torch.nn.functional.conv2d and its adjoint by autograd."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Conv2d
from factors.energies import subpixel
from unn.testing import FactorContract

BATCH = 2


@dataclass(frozen=True)
class Case:
    """A convolution and its shapes."""

    image: tuple[int, int, int]
    weight: tuple[int, int, int, int]
    options: dict
    seed: int

    def declared(self, sizes=True):
        """The graph, and random values of all arrays."""
        known = dict(zip("dab", self.image, strict=True)) if sizes else {}
        g = unn.FactorGraph("conv", **known)
        H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
        generator = torch.Generator().manual_seed(self.seed)
        W = g.parameter("W", "o e u v", init=torch.randn(self.weight, generator=generator))
        g.factor(Conv2d(H, W, X, **self.options))
        g.double()
        x = torch.randn(BATCH, *self.image, dtype=torch.float64, generator=generator)
        w = g.W.detach()
        h = torch.randn(F.conv2d(x, w, **self.options).shape, dtype=torch.float64, generator=generator)
        return g, {"X": x, "W": w, "H": h}

    @property
    def factor(self):
        g, values = self.declared()
        return next(iter(g.factors.values())), values


@st.composite
def cases(draw):
    """Rectangular images and kernels, any stride, padding, dilation and groups; remainders of the stride
    included."""
    pairs = {
        "stride": draw(st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3)))),
        "padding": draw(st.one_of(st.integers(0, 3), st.tuples(st.integers(0, 3), st.integers(0, 3)))),
        "dilation": draw(
            st.one_of(st.just(1), st.integers(1, 3), st.tuples(st.integers(1, 2), st.integers(1, 2)))
        ),
    }
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    each = draw(st.integers(1, 5 if groups == 1 else 2))
    image = []
    for k in (0, 1):
        dilation, padding = (p if isinstance(p, int) else p[k] for p in (pairs["dilation"], pairs["padding"]))
        least = max(1, dilation * (kernel[k] - 1) + 1 - 2 * padding)
        image.append(least + draw(st.integers(0, 5)))
    weight = (groups * draw(st.integers(1, 2)), each, *kernel)
    return Case((groups * each, *image), weight, {**pairs, "groups": groups}, draw(st.integers(0, 999)))


def adjoint(h, w, shape, **options):
    """The message to the image: the derivative of <h, conv2d(x)>, by autograd."""
    x = torch.zeros(shape, dtype=h.dtype, requires_grad=True)
    return torch.autograd.grad((F.conv2d(x, w, **options) * h).sum(), x)[0]


@settings(max_examples=120, deadline=None)
@given(cases())
def test_energies_and_messages_are_those_of_conv2d_and_its_adjoint(case):
    f, values = case.factor
    out = F.conv2d(values["X"], values["W"], **case.options)
    torch.testing.assert_close(f.energy(values), -(values["H"] * out).sum((1, 2, 3)), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(f.message("H", values), out, rtol=1e-10, atol=1e-10)
    back = adjoint(values["H"], values["W"], values["X"].shape, **case.options)
    torch.testing.assert_close(f.message("X", values), back, rtol=1e-10, atol=1e-10)
    absent = {name: value for name, value in values.items() if name != "X"}
    assert torch.equal(f.message("X", absent, case.image), f.message("X", values))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_adjoint_pairs_with_the_convolution(case):
    f, values = case.factor
    left = (f.message("H", values) * values["H"]).sum((1, 2, 3))
    right = (f.message("X", values) * values["X"]).sum((1, 2, 3))
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("channels", [2, 6])
@pytest.mark.parametrize("size", range(5, 12))
@pytest.mark.parametrize("stride", [2, 3])
def test_messages_to_images_have_their_size_where_the_stride_leaves_a_remainder(stride, size, channels):
    """Several image sizes give one feature size; rows and columns that no window reaches receive zero."""
    case = Case((channels, size, size + 1), (3, channels, 3, 3), {"stride": stride}, 0)
    f, values = case.factor
    message = f.message("X", values)
    assert message.shape == values["X"].shape
    torch.testing.assert_close(message, adjoint(values["H"], values["W"], values["X"].shape, stride=stride))
    rows, columns = ((n - 3) % stride for n in (size, size + 1))
    assert (message[:, :, size - rows :] == 0).all()
    assert (message[..., size + 1 - columns :] == 0).all()
    assert (message[:, :, : size - rows, : size + 1 - columns] != 0).all()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_sub_pixel_forms_equal_strided_convolutions_and_their_adjoints(data):
    stride = data.draw(st.integers(1, 4))
    padding = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    size = tuple(
        max(1, k - 2 * p) + data.draw(st.integers(0, 6)) for k, p in zip(kernel, padding, strict=True)
    )
    channels, filters = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 3)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    x, w = (
        torch.randn(s, dtype=torch.float64, generator=generator)
        for s in ((BATCH, channels, *size), (filters, channels, *kernel))
    )
    out = F.conv2d(x, w, stride=stride, padding=padding)
    torch.testing.assert_close(subpixel.convolve(x, w, stride, padding), out, rtol=1e-10, atol=1e-10)
    h = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    back = subpixel.transpose(h, w, stride, padding, size)
    torch.testing.assert_close(
        back, adjoint(h, w, x.shape, stride=stride, padding=padding), rtol=1e-10, atol=1e-10
    )


def test_sub_pixel_forms_have_exact_first_and_second_derivatives():
    generator = torch.Generator().manual_seed(0)
    x, w, h = (
        torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((1, 1, 5, 6), (2, 1, 3, 2), (1, 2, 3, 4))
    )
    assert torch.autograd.gradcheck(lambda x, w: subpixel.convolve(x, w, 2, (1, 1)), (x, w))
    assert torch.autograd.gradcheck(lambda h, w: subpixel.transpose(h, w, 2, (1, 1), (5, 6)), (h, w))
    assert torch.autograd.gradgradcheck(lambda h, w: subpixel.transpose(h, w, 2, (1, 1), (5, 6)), (h, w))


@settings(max_examples=50, deadline=None)
@given(cases())
def test_sizes_of_features_follow_from_the_image(case):
    g, values = case.declared()
    assert g.size_table.shape(g["H"], g.size_table.static) == tuple(values["H"].shape[1:])
    g, values = case.declared(sizes=False)
    assert None in g.size_table.shape(g["H"], g.size_table.static)
    out = unn.infer(g, {"X": values["X"]}, order=["H"])
    torch.testing.assert_close(
        out["H"], F.conv2d(values["X"], values["W"], **case.options), rtol=1e-10, atol=1e-10
    )


def test_sizes_pass_through_a_stack_of_convolutions():
    g = unn.FactorGraph("stack", c=1, row=28, col=26)
    X = g.variable("X", "c row col", unn.SquaredNorm())
    A, B = g.variable("A", "f r1 c1", unn.SignedEntropy()), g.variable("B", "k r2 c2", unn.SignedEntropy())
    V = g.parameter("V", "f c u v", init=torch.zeros(4, 1, 6, 5))
    W = g.parameter("W", "k f p q", init=torch.zeros(5, 4, 3, 4))
    g.factor(Conv2d(A, V, X, stride=2))
    g.factor(Conv2d(B, W, A, stride=(2, 1), padding=1))
    table = g.size_table
    assert table.shape(A, table.static) == (4, 12, 11)
    assert table.shape(B, table.static) == (5, 6, 10)


def test_the_image_size_follows_from_the_features_only_without_stride():
    for stride, expected in ((1, (3, 9, 8)), (2, (3, None, None))):
        g = unn.FactorGraph("reverse", i=7, j=6)
        H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
        g.factor(Conv2d(H, g.parameter("W", "o d u v", init=torch.zeros(4, 3, 3, 3)), X, stride=stride))
        assert g.size_table.shape(X, g.size_table.static) == expected


def test_channels_of_the_weight_follow_from_the_image_and_the_groups():
    g = unn.FactorGraph("groups", d=6, o=4, u=3, v=3)
    H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
    g.factor(Conv2d(H, g.parameter("W", "o e u v"), X, groups=2))
    assert g.W.shape == (4, 3, 3, 3)


def conv(sizes=None, weight=(4, 3, 3, 3), **options):
    g = unn.FactorGraph("wrong", **(sizes or {}))
    H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
    g.factor(Conv2d(H, g.parameter("W", "o e u v", init=torch.zeros(weight)), X, **options))
    return g


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ({"a": 2}, {}, "size 2 .*smaller than the kernel"),
        ({"a": 8, "i": 7}, {}, "axis 'i' has size 7, but 6"),
        ({"d": 4}, {}, "axis 'e' has size 3, but 4"),
        ({"d": 7}, {"groups": 2}, "7 input channels cannot be split into 2 groups"),
        ({}, {"groups": 3}, "4 output channels cannot be split into 3 groups"),
        ({"i": 1}, {"padding": 2}, "padding"),
        ({}, {"stride": 0}, "stride must be"),
        ({}, {"padding": (1, -1)}, "padding must be"),
        ({}, {"dilation": (1, 2, 3)}, "dilation must be"),
        ({}, {"stride": True}, "stride must be"),
        ({}, {"groups": 0}, "groups must be"),
    ],
)
def test_what_does_not_fit_is_refused_when_declared_by_the_name_of_the_factor(sizes, options, words):
    with pytest.raises(unn.DeclarationError, match=rf"Conv2d\(H, W, X\).*({words})"):
        conv(sizes, **options)


def test_an_image_that_is_too_small_is_refused_at_run_time():
    with pytest.raises(unn.ObservationError, match=r"Conv2d\(H, W, X\).*smaller than the kernel"):
        unn.infer(conv(), {"X": torch.zeros(1, 3, 2, 9)})


def test_a_weight_for_each_batch_element_is_refused_by_the_name_of_the_factor():
    g = unn.FactorGraph("each", d=3, a=5, b=5)
    H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.SquaredNorm())
    g.factor(Conv2d(H, g.constant("W", "o d u v"), X))
    with pytest.raises(unn.UnnError, match=r"Conv2d\(H, W, X\)|'W'"):
        unn.infer(g, {"X": torch.zeros(2, 3, 5, 5), "W": torch.zeros(2, 4, 3, 2, 2)})


@pytest.mark.parametrize("role", ["output", "input", "weight"])
def test_arrays_of_another_kind_or_rank_are_refused(role):
    g = unn.FactorGraph("kinds")
    right = {
        "output": g.variable("H", "o i j", unn.SquaredNorm()),
        "weight": g.parameter("W", "o d u v"),
        "input": g.variable("X", "d a b", unn.SquaredNorm()),
    }
    flat = g.variable("flat", "d a", unn.SquaredNorm())
    with pytest.raises(unn.DeclarationError, match=f"{role} variable 'flat' has 2 axes"):
        Conv2d(**{**right, role: flat})
    kind = {
        "output": g.constant("A", "p q r"),
        "input": g.constant("B", "p q r"),
        "weight": g.variable("C", "p q r s", unn.SquaredNorm()),
    }[role]
    with pytest.raises(unn.DeclarationError, match=f"{role} must be"):
        Conv2d(**{**right, role: kind})
    with pytest.raises(unn.DeclarationError, match="whole arrays"):
        Conv2d(**{**right, role: right[role][" ".join(["q+1", *"rst"][: len(right[role].axes)])]})
    with pytest.raises(unn.DeclarationError, match="same variable"):
        Conv2d(right["input"], right["weight"], right["input"])


def test_references_with_letters_mean_the_whole_arrays():
    case = Case((2, 6, 6), (3, 2, 2, 2), {"stride": 2}, 1)
    g, values = case.declared()
    lettered = Conv2d(g["H"]["p q r"], g["W"]["a b c d"], g["X"]["x y z"], stride=2)
    torch.testing.assert_close(lettered.energy(values), next(iter(g.factors.values())).energy(values))


class TestSquareStridedOnOneChannel(FactorContract):
    def graph(self):
        torch.manual_seed(0)
        g = unn.FactorGraph("sub-pixel", d=1, a=8, b=7)
        H, X = g.variable("H", "o i j", unn.SignedEntropy()), g.variable("X", "d a b", unn.SquaredNorm())
        g.factor(
            Conv2d(H, g.parameter("W", "o d u v", init=0.3 * torch.randn(2, 1, 3, 3)), X, stride=2, padding=1)
        )
        return g


class TestGroupedDilatedRectangular(FactorContract):
    def graph(self):
        torch.manual_seed(0)
        g = unn.FactorGraph("grouped", d=4, a=8, b=6)
        H, X = g.variable("H", "o i j", unn.NonNegative()), g.variable("X", "d a b", unn.BinaryEntropy())
        W = g.parameter("W", "o e u v", init=0.3 * torch.randn(6, 2, 3, 2))
        g.factor(Conv2d(H, W, X, stride=(2, 1), padding=(0, 1), dilation=(1, 2), groups=2))
        return g


class TestConstantWeight(FactorContract):
    def graph(self):
        g = unn.FactorGraph("constant", d=5, a=5, b=5)
        H, X = g.variable("H", "o i j", unn.SquaredNorm()), g.variable("X", "d a b", unn.BinaryEntropy())
        g.factor(
            Conv2d(H, g.constant("W", "o d u v", torch.linspace(-0.2, 0.2, 2 * 5 * 9).view(2, 5, 3, 3)), X)
        )
        return g
