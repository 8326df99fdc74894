"""Reverse mode, forward mode and differences agree for every regularizer, also where it is saturated and at
borders; or they are refused by name."""

import pytest
import torch
import torch_struct

import unn
from factors import Birkhoff, Budget, Multilinear, Structured, TreeEntropy
from factors.trees.matrix_tree import log_partition, marginals
from unn.testing import check_derivatives

D = torch.float64
ELEMENTWISE = [
    unn.SquaredNorm(),
    unn.NonNegative(),
    unn.BinaryEntropy(),
    unn.SignedEntropy(),
    unn.Box(-0.5, 2.0),
    unn.Box(-8.0, 8.0),
    unn.L1(0.4),
]
ROWS = [
    unn.Entropy(),
    unn.Entropy(0.3),
    unn.Entropy(2.5),
    unn.SimplexNorm(),
    unn.TsallisEntropy(1.5),
    unn.TsallisEntropy(1.2),
    unn.TsallisEntropy(1.0001),
    unn.Ball(),
    Budget(2),
]
STRUCTURES = [
    (TreeEntropy(), (3, 3)),
    (TreeEntropy(single_root=False), (3, 3)),
    (TreeEntropy(layout="rooted"), (4, 3)),
    (Birkhoff(), (3, 3)),
    (Birkhoff(0.3), (3, 3)),
    (Structured(torch_struct.SemiMarkovCRF), (3, 3, 2, 2)),
    (Structured(torch_struct.AlignmentCRF), (3, 3, 3)),
    (Structured(torch_struct.DependencyCRF), (3, 3)),
    (Structured(torch_struct.LinearChainCRF), (2, 3, 3)),
    (Structured(torch_struct.TreeCRF), (3, 3, 2)),
]


def noise(seed, *shape):
    return torch.randn(2, *shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def saturated(shape, size):
    """Entries of one large size, of either sign, beside random ones."""
    t, signs = noise(1, *shape), noise(2, *shape)
    return torch.where(signs.abs() < 0.7, t, size * signs.sign())


@pytest.mark.parametrize("regularizer", ELEMENTWISE, ids=repr)
def test_derivatives_of_elementwise_regularizers_agree_at_every_kind_of_point(regularizer):
    low, high = regularizer.interval()
    borders = [0.0, 1.0, -1.0, 0.4, -0.4, max(low, -1e3), min(high, 1e3)]
    points = [noise(0, 8), saturated((8,), 30.0), saturated((8,), 1e3), torch.tensor([borders], dtype=D)]
    mask = torch.tensor([True] * 6 + [False] * 2)
    for function in (regularizer.mirror, regularizer.conjugate):
        check_derivatives(function, points)
        check_derivatives(lambda t, f=function: f(t, mask), points[:3])
    # away from kinks of the value, at which its slope jumps
    inside = 0.1 + 0.2 * torch.rand(2, 8, dtype=D, generator=torch.Generator().manual_seed(3))
    check_derivatives(regularizer.value, [inside])


@pytest.mark.parametrize("regularizer", ROWS, ids=repr)
def test_derivatives_of_regularizers_of_rows_agree_at_every_kind_of_point(regularizer):
    points = [noise(0, 5), saturated((5,), 30.0), saturated((5,), 1e3), torch.zeros(1, 5, dtype=D)]
    mask = torch.tensor([True] * 3 + [False] * 2)
    for function in (regularizer.mirror, regularizer.conjugate):
        check_derivatives(function, points)
        check_derivatives(lambda t, f=function: f(t, mask), points[:2])


@pytest.mark.parametrize(("regularizer", "shape"), STRUCTURES, ids=repr)
def test_derivatives_of_regularizers_of_structures_agree_or_are_refused(regularizer, shape):
    points = [
        noise(0, *shape),
        saturated(shape, 30.0),
        saturated(shape, 1e3),
        torch.zeros(1, *shape, dtype=D),
    ]
    refuses = isinstance(regularizer, Structured) and regularizer.distribution in (
        torch_struct.LinearChainCRF,
        torch_struct.TreeCRF,
    )
    for function in (regularizer.mirror, regularizer.conjugate):
        check_derivatives(function, points, may_refuse=refuses)
        if refuses:
            with pytest.raises(unn.DerivativeError, match="torch.autograd.grad"):
                torch.func.vmap(function)(noise(0, 1, *shape))
        else:
            torch.testing.assert_close(
                torch.func.vmap(function)(noise(0, 1, *shape))[:, 0],
                function(noise(0, *shape))[:, None].squeeze(1),
            )


@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("kind", ["random", "cycles", "forbidden", "masked", "large"])
def test_derivatives_of_trees_agree_whichever_way_they_are_computed(single_root, kind):
    t = noise(0, 4, 4)
    if kind == "cycles":
        t[:, [0, 1, 2, 3], [1, 0, 3, 2]] += torch.tensor([12.0, 60.0], dtype=D)[:, None]
    if kind == "large":
        t = 1e3 * t
    lengths = torch.tensor([4, 3])
    if kind in ("forbidden", "masked"):
        barred = torch.zeros(4, 4, dtype=torch.bool)
        barred[0, 1:] = True

    def scores(x):
        return (
            x.masked_fill(barred, -torch.inf if kind == "forbidden" else -1e9)
            if kind in ("forbidden", "masked")
            else x
        )

    check_derivatives(lambda x: log_partition(scores(x), lengths, single_root), [t])
    check_derivatives(lambda x: marginals(scores(x), lengths, single_root), [t])


def test_derivatives_under_vmap_are_those_of_each_element():
    t, w = noise(0, 3, 4, 4), noise(1, 3, 4, 4)

    def loss(x, w):
        return (marginals(x, None) * w).sum() + log_partition(x).sum()

    together = torch.func.vmap(torch.func.grad(loss))(t, w)
    torch.testing.assert_close(
        together, torch.stack([torch.func.grad(loss)(x, y) for x, y in zip(t, w, strict=True)])
    )
    torch.testing.assert_close(torch.func.jacrev(marginals)(t[0]), torch.func.jacfwd(marginals)(t[0]))


@pytest.mark.parametrize(
    "regularizer", [TreeEntropy(), Budget(2), Structured(torch_struct.DependencyCRF)], ids=repr
)
def test_values_that_are_found_by_iterations_have_first_derivatives_in_both_modes_and_refuse_second_ones(
    regularizer,
):
    x = regularizer.mirror(noise(0, 3, 3))
    direction = regularizer.mirror(noise(1, 3, 3)) - x
    reverse = (torch.func.grad(lambda x: regularizer.value(x).sum())(x) * direction).sum()
    forward = torch.func.jvp(lambda x: regularizer.value(x).sum(), (x,), (direction,))[1]
    ahead, behind = (regularizer.value(x + step * direction).sum() for step in (1e-4, -1e-4))
    torch.testing.assert_close(forward, reverse)
    torch.testing.assert_close((ahead - behind) / 2e-4, reverse, atol=1e-4, rtol=1e-4)
    for second in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacfwd(f))):
        with pytest.raises(unn.DerivativeError, match="value_at_mirror"):
            second(lambda x: regularizer.value(x).sum())(x)


def test_forward_mode_through_an_unrolled_network_with_a_tree_agrees_with_differences():
    g = unn.FactorGraph("parser", k=3)
    Y, Z, S = (
        g.variable("Y", "head word", TreeEntropy()),
        g.variable("Z", "k", unn.SignedEntropy()),
        g.variable("S", "head word", unn.SquaredNorm()),
    )
    g.factor(Multilinear(Y["h m"], S["h m"]))
    g.factor(
        Multilinear(
            Y["h m"], S["h m"], g.parameter("w", "k", init=torch.tensor([1.0, -0.5, 2.0]))["k"], Z["k"]
        )
    )
    g.double()
    net = unn.Unrolled(g, "S", "Y", order=["Y", "Z", "Y"])
    (name,) = dict(net.named_parameters())
    scores = noise(0, 3, 3)
    check_derivatives(
        lambda w: torch.func.functional_call(net, {name: w}, (scores,)),
        [net.get_parameter(name).detach()],
        order=1,
    )


class Wrong(torch.autograd.Function):
    """The cube, with the derivatives that ``kind`` says."""

    @staticmethod
    def forward(x, kind):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.kind = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * (x.detach() ** 2 if ctx.kind == "second" else x**2) * (
            1.001 if ctx.kind == "reverse" else 1
        ), None

    @staticmethod
    def jvp(ctx, tangent, _):
        (x,) = ctx.saved_tensors
        return (
            tangent
            * 3
            * (x.detach() ** 2 if ctx.kind == "second" else x**2)
            * (0 if ctx.kind == "forward" else 1)
        )


@pytest.mark.parametrize("kind", ["forward", "reverse", "second"])
def test_a_wrong_derivative_of_either_mode_or_of_second_order_is_noticed(kind):
    points = [noise(0, 4)]
    check_derivatives(lambda x: Wrong.apply(x, "none"), points)
    with pytest.raises(AssertionError, match="second order" if kind == "second" else "first order"):
        check_derivatives(lambda x: Wrong.apply(x, kind), points)


def test_a_gradient_that_goes_on_beyond_a_border_is_noticed():
    with pytest.raises(AssertionError, match="point 1"):
        check_derivatives(
            lambda t: t + (t.clamp(-8, 8) - t).detach(), [noise(0, 4), saturated((4,), 30.0)], order=1
        )
