"""Gradients: how they come back through the rounds of an unrolled network."""

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.helpers import X, mlp, says

import unn
from factors import Directed, Multilinear
from unn.descent.reach import check_reach
from unn.testing import graph_cases

ORDERS = [["H", "Y"], unn.ForwardBackward(["H", "Y"]), unn.RandomOrder(["H"], last="Y")]


def network(g, rounds, **options):
    return unn.Unrolled(g, "X", "Y", order=options.pop("order", ["H", "Y"]), iterations=rounds, **options)


def gradients(net, x, of="preactivations", **call):
    """The result and the gradients of the parameters and of the input."""
    x = x.clone().requires_grad_()
    y = net.preactivations(x, **call) if of == "preactivations" else net(x, **call)
    slope = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
    return y, torch.autograd.grad((y * slope).sum(), [x, *net.parameters()], allow_unused=True)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS, ids=["list", "forward-backward", "random"])
@pytest.mark.parametrize("of", ["preactivations", "values"])
@pytest.mark.parametrize("group", [1, 2, 3, 7])
@pytest.mark.parametrize("update", [unn.Mirror(), unn.Damped(0.5)], ids=["mirror", "damped"])
def test_checkpoints_give_the_gradient_of_unrolling(order, of, group, update):
    g = mlp().double()
    results = [
        gradients(
            network(g, 5, order=order, gradient=gradient, update=update),
            X.double(),
            of,
            generator=torch.Generator().manual_seed(1),
        )
        for gradient in (unn.Unroll(), unn.Checkpoint(group))
    ]
    assert torch.equal(results[0][0], results[1][0])
    assert_same(results[1][1], results[0][1])


@given(case=graph_cases(Multilinear), rounds=st.integers(1, 4), group=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_checkpoints_give_the_gradient_of_unrolling_on_any_graph(case, rounds, group):
    want = list(case.start)[-1]
    assume(case.observed)
    try:
        check_reach(case.graph, case.observed, case.given, [want])
    except unn.InferenceError:
        assume(False)
    results = []
    for gradient in (unn.Unroll(), unn.Checkpoint(group)):
        net = unn.Unrolled(
            case.graph,
            list(case.observed),
            want,
            order=list(case.start),
            iterations=rounds,
            initial=case.start,
            gradient=gradient,
        )
        y = net(*case.observed.values())
        slope = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
        parameters = list(net.parameters())
        results.append(
            torch.autograd.grad((y * slope).sum(), parameters, allow_unused=True)
            if y.requires_grad and parameters
            else []
        )
    assert_same(results[1], results[0])


def bytes_kept(net, x):
    """Bytes of different tensors that the backward pass needs."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = net(x)
        del y
    return sum(kept.values())


def test_checkpoints_keep_less():
    g = mlp()
    x = torch.randn(500, X.shape[1])
    unrolled, checkpointed = (
        bytes_kept(network(g, 40, gradient=gradient), x) for gradient in (unn.Unroll(), unn.Checkpoint(8))
    )
    assert checkpointed < unrolled / 2


@pytest.mark.parametrize("order", ORDERS[:2], ids=["list", "forward-backward"])
@pytest.mark.parametrize("update", [unn.Mirror(), unn.Damped(0.5)], ids=["mirror", "damped"])
@pytest.mark.parametrize(("rounds", "last"), [(4, 1), (4, 2), (5, 3)])
def test_truncated_gradients_are_those_of_the_last_rounds_from_constant_values(order, update, rounds, last):
    g = mlp().double()
    x = X.double()
    with torch.no_grad():
        before = unn.infer(g, {"X": x}, order=order, iterations=rounds - last, update=update)
    start = {name: before[name] for name in ("H", "Y")}
    ours = gradients(network(g, rounds, order=order, update=update, gradient=unn.Truncate(last)), x)
    theirs = gradients(network(g, last, order=order, update=update, initial=start), x)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    assert_same(ours[1], theirs[1])


@pytest.mark.parametrize("rows", [True, False], ids=["whole rows", "entries"])
def test_truncated_gradients_reach_what_is_observed_in_part(rows):
    torch.manual_seed(0)
    g = unn.FactorGraph("pairs", n=3, d=4, h=2)
    x, y = g.variable("X", "n d", unn.SquaredNorm()), g.variable("Y", "n h", unn.SignedEntropy())
    g.factor(Multilinear(y["n h"], g.parameter("W", "h d")["h d"], x["n d"]))
    g.double()
    value, mask = torch.randn(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool)
    mask[:, 1] = False
    mask = mask if rows else torch.rand(2, 3, 4) > 0.3
    with torch.no_grad():
        before = unn.infer(g, {"X": unn.Partial(value, mask)}, order=["Y", "X"], iterations=3)
    start = {name: before[name] for name in "XY"}

    def differentiated(**options):
        leaf = value.clone().requires_grad_()
        out = unn.Unrolled(g, "X", "X", order=["Y", "X"], **options)(unn.Partial(leaf, mask))
        unknown = mask if mask.ndim == 3 else mask[..., None]
        return out, torch.autograd.grad((out * ~unknown).sin().sum(), [leaf, g.W])

    ours, theirs = (
        differentiated(iterations=5, gradient=unn.Truncate(2)),
        differentiated(iterations=2, initial=start),
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    assert_same(ours[1], theirs[1])


@pytest.mark.parametrize("last", [3, 10])
def test_truncation_to_all_rounds_is_unrolling(last):
    g = mlp().double()
    assert_same(
        gradients(network(g, 3, gradient=unn.Truncate(last)), X.double())[1],
        gradients(network(g, 3), X.double())[1],
    )


def test_what_truncation_leaves_out_falls_with_the_rounds_that_are_differentiated():
    g = mlp().double()
    exact = gradients(network(g, 30), X.double())[1]
    off = []
    for last in (1, 2, 4, 8):
        truncated = gradients(network(g, 30, gradient=unn.Truncate(last)), X.double())[1]
        off.append(
            max(float((a - b).abs().max()) for a, b in zip(truncated, exact, strict=True) if a is not None)
        )
    assert (
        off[0] > 1e-6
        and all(after < before for before, after in itertools.pairwise(off))
        and off[-1] < off[0] / 10
    )


@pytest.mark.parametrize("kind", [unn.Truncate, unn.Checkpoint])
@pytest.mark.parametrize("rounds", [0, -1, 1.5, "two", True])
def test_numbers_of_rounds_that_make_no_sense_are_refused(kind, rounds):
    with pytest.raises(unn.InferenceError, match=says(kind.__name__, "rounds", repr(rounds))):
        kind(rounds)


@pytest.mark.parametrize("gradient", [unn.Unroll, 3, None, "truncate"])
def test_what_is_no_gradient_is_refused(gradient):
    with pytest.raises(unn.InferenceError, match=says("gradient", "Truncate")):
        network(mlp(), 2, gradient=gradient)


@pytest.mark.parametrize("gradient", [unn.Truncate(1), unn.Checkpoint()])
def test_a_number_of_rounds_that_depends_on_the_values_takes_the_exact_gradient(gradient):
    with pytest.raises(unn.InferenceError, match=says("gradient", type(gradient).__name__, "until")):
        network(mlp(), None, until=1e-3, gradient=gradient)


def real_chain():
    """A graph X-H-Y whose draws are reparametrised, with products of the drawn values."""
    g = unn.FactorGraph("chain", i=4, h=3, o=2)
    x, h, y = (g.variable(n, a, unn.SquaredNorm()) for n, a in (("X", "i"), ("H", "h"), ("Y", "o")))
    generator = torch.Generator().manual_seed(0)
    w = [
        g.parameter(n, a, init=0.3 * torch.randn(s, generator=generator))
        for n, a, s in (("W", "i h", (4, 3)), ("V", "h o", (3, 2)), ("U", "i h o", (4, 3, 2)))
    ]
    g.factor(Multilinear(w[0]["i j"], x["i"], h["j"]))
    g.factor(Multilinear(w[1]["j k"], h["j"], y["k"]))
    g.factor(Multilinear(w[2]["i j k"], x["i"], h["j"], y["k"]))
    return g.double()


@pytest.mark.parametrize("group", [1, 2, 7])
@pytest.mark.parametrize("own", [True, False])
def test_checkpoints_repeat_the_draws_of_sampled_updates(group, own):
    results = []
    for gradient in (unn.Unroll(), unn.Checkpoint(group)):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(1) if own else None
        net = network(real_chain(), 4, gradient=gradient, update=unn.Sample(0.5))
        x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(2, 4)
        value, slopes = gradients(net, x, "values", generator=generator)
        later = torch.rand(3, generator=generator)
        results.append((value, slopes, later))
    assert torch.equal(results[0][0], results[1][0])
    assert_same(results[1][1], results[0][1])
    assert torch.equal(results[0][2], results[1][2])


def test_checkpoints_under_a_transform_are_refused_by_name():
    net = network(mlp(), 2, gradient=unn.Checkpoint(), check_values=False)
    with pytest.raises(unn.InferenceError, match="use Unroll, Truncate or Implicit"):
        torch.func.grad(lambda x: net(x).sum())(X)


def test_truncation_holds_in_forward_mode_too():
    g = unn.FactorGraph("layers", x=4, h=5, y=3)
    X, H, Y = (
        g.variable(name.upper(), name, regularizer)
        for name, regularizer in (("x", unn.SquaredNorm()), ("h", unn.SignedEntropy()), ("y", unn.Entropy()))
    )
    torch.manual_seed(0)
    g.factor(Multilinear(H["h"], g.parameter("W", "h x", init=0.7)["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "y h", init=0.7)["c h"], H["h"]))
    g.double()
    net = unn.Unrolled(
        g, "X", "Y", order=["H", "Y"], iterations=7, gradient=unn.Truncate(2), check_values=False
    )
    x, direction = torch.randn(2, 1, 4, dtype=torch.float64)
    weights = torch.randn(1, 3, dtype=torch.float64)

    def total(x):
        return (net(x) * weights).sum()

    _, forward = torch.func.jvp(total, (x,), (direction,))
    leaf = x.clone().requires_grad_()
    (reverse,) = torch.autograd.grad(total(leaf), leaf)
    torch.testing.assert_close(forward, (reverse * direction).sum(), rtol=1e-10, atol=0)


def test_the_search_of_a_block_runs_once_in_the_forward_pass_of_a_checkpoint():
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, y):
            calls.append(1)
            return y.tanh()

    g = unn.FactorGraph("directed", x=3, y=3)
    X, Y, Z = (g.variable(name, axis, unn.SquaredNorm()) for name, axis in zip("XYZ", "xyy", strict=True))
    g.factor(Multilinear(X["a"], g.parameter("W", "x y", init=torch.eye(3))["a b"], Y["b"]))
    g.factor(Directed(Counted(), Z, Y))

    def run(gradient):
        calls.clear()
        network = unn.Unrolled(g, "X", "Z", order=["Y", "Z"], iterations=6, gradient=gradient)
        out = network(torch.ones(2, 3))
        forward = len(calls)
        return forward, torch.autograd.grad(out.square().sum(), [g.W])[0]

    (unrolled, expected), (recomputed, ours) = run(unn.Unroll()), run(unn.Checkpoint(1))
    torch.testing.assert_close(ours, expected)
    # the derivatives of messages run a round again, those of the search do not
    assert recomputed < 4 * unrolled
