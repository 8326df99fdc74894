"""Fused passes of undirected attention give the engine's numbers."""

import copy

import pytest
import torch
from support.undirected_attention import (
    BAND,
    EACH_HEAD,
    EXACT,
    HOLES,
    ROUND_TRIP,
    WIDTH,
    D,
    N,
    declared,
    known_rows,
    random,
)

import unn
from factors import Multilinear, UnrolledAttention, undirected_attention


def compare(attention, given_names, want, inputs, order, rounds=3, lengths=None, **options):
    """Values, pre-activations and gradients of both engines agree."""
    graph, generator_seed = attention.graph, 5
    leaves = [x.value if isinstance(x, unn.Partial) else x for x in inputs]
    results = []
    for net in (
        UnrolledAttention(attention, given_names, want, order, rounds, **options),
        unn.Unrolled(graph, given_names, want, order, rounds, fusions=(), **options),
    ):
        learned = [*graph.parameters(), *(x for x in leaves if x.requires_grad)]
        out = net(*inputs, lengths=lengths, generator=torch.Generator().manual_seed(generator_seed))
        t = net.preactivations(
            *inputs, lengths=lengths, generator=torch.Generator().manual_seed(generator_seed)
        )
        slopes = [random(*x.shape, seed=k) for k, x in enumerate(out)]
        gradients = torch.autograd.grad(
            sum((x * slope).sum() for x, slope in zip(out, slopes, strict=True)), learned, allow_unused=True
        )
        with torch.no_grad():
            again = net(*inputs, lengths=lengths, generator=torch.Generator().manual_seed(generator_seed))
        results.append(
            (
                [*out, *t, *again],
                [torch.zeros_like(x) if g is None else g for x, g in zip(learned, gradients, strict=True)],
            )
        )
    for ours, theirs in zip(results[0], results[1], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, **EXACT)
    assert any(gradient.any() for gradient in results[0][1])


SCHEDULES = [
    ROUND_TRIP,
    ["Q", "K", "V", "S", "H", "X"],
    ["H", "X", "S", "V", "X", "Q", "K"],
    ["X", "S", "S", "Q", "Q", "K", "V", "X", "H", "H"],
    unn.RandomOrder(["Q", "K", "V", "S", "H"], last="X"),
]


@pytest.mark.parametrize("lengths", [None, torch.tensor([N, 3, 4])])
@pytest.mark.parametrize(("heads", "mask"), [(1, None), (1, HOLES), (2, None), (3, BAND), (2, EACH_HEAD)])
@pytest.mark.parametrize("order", SCHEDULES, ids=str)
def test_fused_equals_generic_where_rows_are_inferred(order, heads, mask, lengths):
    _, attention = declared(True, heads=heads, mask=mask, init=0.2)
    x = random(3, N, WIDTH).requires_grad_()
    for p in (random(N, WIDTH, seed=1), random(3, N, WIDTH, seed=1)):
        inputs = [unn.Partial(x, known_rows()), p]
        compare(
            attention,
            ["X", "P"],
            list("XSHQKV"),
            inputs,
            order,
            2,
            None if lengths is None else {"n": lengths},
        )


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("rounds", range(1, 6))
def test_fused_equals_generic_after_every_number_of_rounds(rounds, heads):
    _, attention = declared(True, heads=heads, init=0.1)
    x = random(3, N, WIDTH).requires_grad_()
    compare(
        attention,
        ["X", "P"],
        ["X", "H"],
        [unn.Partial(x, known_rows()), random(N, WIDTH, seed=1)],
        ROUND_TRIP,
        rounds,
    )


@pytest.mark.parametrize("heads", [1, 2])
def test_fused_equals_generic_where_all_is_observed_or_entries_are(heads):
    _, attention = declared(heads=heads, mask=BAND, init=0.2)
    x = random(3, N, WIDTH).requires_grad_()
    compare(attention, "X", list("SHQKV"), [x], unn.ForwardBackward(attention.order))
    # entries instead of rows, and more than half of the rows
    for known in (random(3, N, WIDTH) > 0, known_rows() & (torch.arange(N) == 0)):
        compare(attention, "X", list("XSHQKV"), [unn.Partial(x, known)], ROUND_TRIP)


@pytest.mark.parametrize("heads", [1, 2])
def test_fused_equals_generic_in_reverse_and_from_other_starts(heads):
    _, attention = declared(True, heads=heads, init=0.2)
    shape = (3, N, WIDTH) if heads == 1 else (3, N, heads, WIDTH // heads)
    h, p = random(*shape).requires_grad_(), random(N, WIDTH, seed=1)
    compare(attention, ["H", "P"], list("XVSQK"), [h, p], ["V", "X", "Q", "K", "S", "X"], 2)
    starts = {"Q": random(*shape, seed=3), "S": "uniform", "X": random(3, N, WIDTH, seed=4)}
    x = random(3, N, WIDTH, seed=2).requires_grad_()
    compare(
        attention,
        ["X", "P"],
        list("XVSQKH"),
        [unn.Partial(x, known_rows()), p],
        ["K", "V", "H", "S", "Q", "X"],
        2,
        initial=starts,
    )
    s = torch.softmax(random(3, *((heads,) if heads > 1 else ()), N, N), -1)
    compare(attention, ["S", "K", "P"], list("XVHQ"), [s, random(*shape, seed=5), p], ["Q", "X", "V", "H"], 3)


@pytest.mark.parametrize("heads", [1, 2])
def test_fused_equals_generic_where_rows_of_several_arrays_are_inferred(heads):
    torch.manual_seed(0)
    g = unn.FactorGraph("two", d=WIDTH)
    X, Z = (g.variable(name, "n d", unn.SquaredNorm()) for name in "XZ")
    attention = undirected_attention(g, [X, Z], heads=heads, init=0.2)
    g.double()
    x, z = (random(3, N, WIDTH, seed=seed).requires_grad_() for seed in range(2))
    inputs = [unn.Partial(x, known_rows()), unn.Partial(z, known_rows(seed=2))]
    order = ["Q", "K", "V", "X", "Q", "S", "Z", "V", "H", "X", "Z", "K", "X", "Q", "Z"]
    compare(attention, ["X", "Z"], list("XZSHQKV"), inputs, order, 2)


def test_fused_equals_generic_with_other_regularizers_and_dropout():
    for regularizers in (
        {"Q": unn.Ball(), "H": unn.Ball()},
        {"V": unn.Box(-0.5, 0.5), "K": unn.NonNegative()},
    ):
        _, attention = declared(True, heads=2, regularizers=regularizers, mask=BAND)
        x = random(3, N, WIDTH).requires_grad_()
        inputs = [unn.Partial(x, known_rows()), random(N, WIDTH, seed=1)]
        compare(
            attention, ["X", "P"], list("XSHQKV"), inputs, ROUND_TRIP, lengths={"n": torch.tensor([3, N, 4])}
        )
    _, attention = declared(True, init=0.2)
    compare(attention, ["X", "P"], list("XSH"), inputs, ROUND_TRIP, dropout={"Q": 0.5, "H": 0.3, "X": 0.2})


def test_fused_equals_generic_inside_a_larger_graph():
    """Two attentions, a bias of queries, a head on the result, and a variable that another factor bends."""
    torch.manual_seed(0)
    g = unn.FactorGraph("layers", d=WIDTH, label=3)
    X, M = g.variable("X", "n d", unn.SquaredNorm()), g.variable("M", "n d", unn.SquaredNorm())
    first = undirected_attention(g, [X, M], init=0.1, prefix="a_", heads=2, mask=BAND)
    second = undirected_attention(g, M, X, [M, X], init=0.1, prefix="b_")
    Y = g.variable("Y", "n label", unn.Entropy())
    W, b = g.parameter("W", "label a_head a_e", init=0.3), g.parameter("b", "b_e", init="normal")
    g.factor(Multilinear(Y["n y"], W["y h e"], first.H["n h e"]))
    g.factor(Multilinear(b["e"], second.Q["n e"]))
    g.factor(
        Multilinear(first.K["n h e"], second.V["n f"], g.parameter("U", "a_head a_e b_e", init=0.1)["h e f"])
    )
    g.double()
    order = [*first.order, "M", *second.order, "Y", "X"]
    x = random(3, N, WIDTH).requires_grad_()
    results = []
    for net in (
        UnrolledAttention([first, second], "X", ["X", "Y", "b_H"], order, 3),
        unn.Unrolled(g, "X", ["X", "Y", "b_H"], order, 3, fusions=()),
    ):
        out = net(unn.Partial(x, known_rows()), lengths={"n": torch.tensor([N, 4, 3])})
        results.append([*out, *torch.autograd.grad(sum(t.sin().sum() for t in out), [x, *g.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_fused_leaves_bent_variables_to_the_inner_solver():
    from factors import Implicit

    _, attention = declared(init=0.2)
    attention.graph.factor(Implicit(lambda h: 0.1 * h.cosh().sum((1, 2)), attention.H["n e"]))
    x = random(2, N, WIDTH)
    order = list("QKVSH")
    ours = UnrolledAttention(attention, "X", ["H", "S"], order, 2)(x)
    theirs = unn.Unrolled(attention.graph, "X", ["H", "S"], order, 2, fusions=())(x)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_fused_has_second_derivatives():
    g, attention = declared(init=0.3)
    x, known = random(2, N, WIDTH), known_rows(2)
    derivatives = []
    for net in (
        UnrolledAttention(attention, "X", "X", ROUND_TRIP, 2),
        unn.Unrolled(g, "X", "X", ROUND_TRIP, 2, fusions=()),
    ):
        gradients = torch.autograd.grad(
            net(unn.Partial(x, known)).sin().sum(), list(g.parameters()), create_graph=True
        )
        derivatives.append(
            torch.autograd.grad(sum(t.square().sum() for t in gradients), list(g.parameters()))
        )
    for a, b in zip(*derivatives, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_fused_compiles_without_graph_breaks():
    torch._dynamo.reset()
    _, attention = declared(True, init=0.2, heads=2, mask=BAND)
    net = UnrolledAttention(attention, ["X", "P"], "H", attention.order, 2)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    x, p = random(2, N, WIDTH), random(N, WIDTH, seed=1)
    torch.testing.assert_close(compiled(x, p), net(x, p))


@pytest.mark.parametrize("heads", [1, 2])
def test_fused_runs_under_autocast_and_in_half_precision(heads):
    g, attention = declared(heads=heads, init=0.2, mask=BAND)
    x, known = random(3, N, WIDTH), known_rows()
    net = UnrolledAttention(attention, "X", ["X", "S"], ROUND_TRIP, 2)
    expected = net(unn.Partial(x, known))
    g.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = net(unn.Partial(x.float(), known))
    g.bfloat16()
    for out in (under_autocast, net(unn.Partial(x.bfloat16(), known))):
        for a, b in zip(out, expected, strict=True):
            torch.testing.assert_close(a.to(D), b, rtol=0.1, atol=0.05)


def test_fused_is_a_module_like_any_unrolled_network():
    g, attention = declared(True, heads=2)
    net = UnrolledAttention(attention, ["X", "P"], "X", ROUND_TRIP, iterations=range(1, 6))
    assert sorted(name for name, _ in net.named_parameters()) == [
        "declaration.W_K",
        "declaration.W_Q",
        "declaration.W_V",
    ]
    inputs = unn.Partial(random(3, N, WIDTH), known_rows()), random(N, WIDTH, seed=1)
    other = copy.deepcopy(net)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(*inputs), net.eval()(*inputs))
    with torch.no_grad():
        other.graph.W_Q.zero_()
    assert not torch.equal(other(*inputs), net(*inputs)) and g.W_Q.any()
    assert "X, P -> X" in repr(net)


def test_training_on_fused_passes_lowers_the_loss():
    torch.manual_seed(0)
    _, attention = declared(True, init=0.2)
    net = UnrolledAttention(attention, ["X", "P"], "X", ROUND_TRIP)
    x, p, known = random(16, 1, WIDTH).expand(16, N, WIDTH), random(N, WIDTH, seed=1), known_rows(16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = (net(unn.Partial(x, known), p) - x)[~known].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
