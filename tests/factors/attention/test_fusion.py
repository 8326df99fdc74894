"""Fused attention: values, energies and gradients as from the messages one by one, with every rule."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Multilinear, UnrolledAttention, undirected_attention
from unn.errors import DeclarationError, InferenceError
from unn.extending import FusedMessages, Fusion

D = torch.float64
CLOSE = {"rtol": 1e-10, "atol": 1e-11}
N, WIDTH, BATCH = 4, 4, 3
ORDERS = {
    "list": ["Q", "K", "V", "S", "H", "X"],
    "forward-backward": unn.ForwardBackward(["Q", "K", "V", "S", "H"], last="X"),
    "random": unn.RandomOrder(["Q", "K", "V", "S", "H"], last="X"),
}
UPDATES = {"mirror": unn.Mirror(), "damped": unn.Damped(0.6)}
GRADIENTS = {"unroll": unn.Unroll(), "truncate": unn.Truncate(2), "checkpoint": unn.Checkpoint(2)}
LENGTHS = torch.tensor([N, 2, 3])


def random(*shape, seed=0):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def declared(heads=1, masked=False, init=0.3, seed=0):
    """Self-attention over X and positions P, in float64."""
    torch.manual_seed(seed)
    g = unn.FactorGraph("words", d=WIDTH)
    sources = g.variable("X", "n d", unn.SquaredNorm()), g.constant("P", "n d")
    mask = torch.ones(N, N, dtype=torch.bool).tril() if masked else None
    attention = undirected_attention(g, sources, heads=heads, mask=mask, init=init)
    return g.double(), attention


def observation(part, x):
    """X as one of four: whole rows missing, entries missing, most rows missing, nothing missing."""
    rows = torch.ones(len(x), N, dtype=torch.bool)
    rows[:, 1] = False
    if part == "rows":
        return unn.Partial(x, rows)
    if part == "most rows":
        return unn.Partial(x, ~rows)
    return unn.Partial(x, (x.detach() > -0.3) if part == "entries" else torch.ones_like(x, dtype=torch.bool))


def generator():
    return torch.Generator().manual_seed(3)


PARTS = ["rows", "entries", "most rows", "all"]


# -- inference -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("update", UPDATES)
def test_inference_with_and_without_fusions_agrees(update, order, part, lengths, heads):
    g, _ = declared(heads, masked=heads == 2)
    fused, single = (
        unn.infer(
            g,
            {"X": observation(part, random(BATCH, N, WIDTH)), "P": random(N, WIDTH, seed=1)},
            order=ORDERS[order],
            iterations=3,
            lengths=None if lengths is None else {"n": lengths},
            update=UPDATES[update],
            generator=generator(),
            terms=True,
            **options,
        )
        for options in ({}, {"fusions": ()})
    )
    for name in single.values:
        torch.testing.assert_close(fused[name], single[name], **CLOSE)
        torch.testing.assert_close(fused.preactivations[name], single.preactivations[name], **CLOSE)
    torch.testing.assert_close(fused.energy, single.energy, **CLOSE)
    for name in single.terms:
        torch.testing.assert_close(fused.terms[name], single.terms[name], **CLOSE)


@given(
    seed=st.integers(0, 1000),
    heads=st.sampled_from([1, 2]),
    masked=st.booleans(),
    names=st.permutations(["Q", "K", "V", "S", "H", "X"]),
    part=st.sampled_from(PARTS),
    init=st.floats(0.01, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_exact_updates_never_raise_the_energy(seed, heads, masked, names, part, init):
    g, _ = declared(heads, masked, init, seed)
    x, p = random(BATCH, N, WIDTH, seed=seed), random(N, WIDTH, seed=seed + 1)
    given_values = {"X": observation(part, x), "P": p}
    out = unn.infer(g, given_values, order=list(names), iterations=3, initial={"S": "uniform"})
    energy = out.energy[out.energy.isfinite().all(1)]
    rise = (energy[1:] - energy[:-1]) / (1 + energy[:-1].abs())
    assert rise.numel() == 0 or rise.max() <= 1e-10
    expected = g.energy({**out.values, "P": p})
    torch.testing.assert_close(out.energy[-1], expected, rtol=1e-8, atol=1e-8)


def test_batch_elements_that_diverge_are_held_and_the_others_go_on():
    g, _ = declared(init=0.8)
    scale = torch.tensor([0.01, 30.0, 0.01], dtype=D)[:, None, None]
    x = random(BATCH, N, WIDTH) * scale
    outcomes = [
        unn.infer(
            g, {"X": x, "P": torch.zeros(N, WIDTH, dtype=D)}, order=list("QKVSH"), iterations=300, **options
        )
        for options in ({}, {"fusions": ()})
    ]
    assert outcomes[0].status is outcomes[1].status is unn.Status.UNBOUNDED
    for name in outcomes[0].values:
        torch.testing.assert_close(outcomes[0][name], outcomes[1][name], rtol=1e-7, atol=1e-7)


def test_inference_until_convergence_agrees():
    torch.manual_seed(0)
    g = unn.FactorGraph("bounded", d=WIDTH)
    X = g.variable("X", "n d", unn.SquaredNorm())
    undirected_attention(g, X, regularizers={"Q": unn.Ball(), "H": unn.Ball()})
    g.double()
    x = random(BATCH, N, WIDTH)
    fused, single = (
        unn.infer(g, {"X": x}, order=list("QKVSH"), until=1e-9, **options)
        for options in ({}, {"fusions": ()})
    )
    assert fused.converged and fused.rounds == single.rounds
    net = unn.Unrolled(g, "X", "H", order=list("QKVSH"), until=1e-9)
    torch.testing.assert_close(net(x), single["H"], **CLOSE)


# -- unrolled networks ---------------------------------------------------------------------------------------


def run(net, x, p, lengths):
    """Results, pre-activations, and gradients of the input and all parameters."""
    inputs, lengths = (observation(x.part, x.value), p), None if lengths is None else {"n": lengths}
    values = net(*inputs, lengths=lengths, generator=generator())
    sums = net.preactivations(*inputs, lengths=lengths, generator=generator())
    slopes = [random(*value.shape, seed=k) for k, value in enumerate((*values, *sums))]
    total = sum((value * slope).sum() for value, slope in zip((*values, *sums), slopes, strict=True))
    gradients = torch.autograd.grad(total, [x.value, *net.parameters()])
    with torch.no_grad():
        again = net(*inputs, lengths=lengths, generator=generator())
    return [*values, *sums, *gradients, *again]


class Seen:
    """A value that is observed in part."""

    def __init__(self, part, seed=0):
        self.part = part
        self.value = random(BATCH, N, WIDTH, seed=seed).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("update", "gradient"), list(itertools.product(UPDATES, GRADIENTS)))
def test_networks_with_and_without_fusions_agree(update, gradient, order, part, lengths, heads):
    g, _ = declared(heads, masked=heads == 2)
    x, p = Seen(part), random(N, WIDTH, seed=1)
    options = {
        "order": ORDERS[order],
        "iterations": 5,
        "update": UPDATES[update],
        "gradient": GRADIENTS[gradient],
    }
    fused, single = (
        run(unn.Unrolled(g, ["X", "P"], ["X", "S", "H"], **options, **fusions), x, p, lengths)
        for fusions in ({}, {"fusions": ()})
    )
    for ours, theirs in zip(fused, single, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("initial", [{}, {"X": "random", "S": "uniform"}], ids=["absent", "initial"])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_checkpoints_of_any_size_give_the_fused_gradient(rounds, initial, heads):
    g, _ = declared(heads)
    x, p = Seen("rows"), random(N, WIDTH, seed=1)
    options = {"order": ORDERS["forward-backward"], "iterations": 4, "initial": initial}
    unrolled, checkpointed = (
        run(unn.Unrolled(g, ["X", "P"], ["X", "H"], gradient=gradient, **options), x, p, None)
        for gradient in (unn.Unroll(), unn.Checkpoint(rounds))
    )
    for ours, theirs in zip(checkpointed, unrolled, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("gradient", ["unroll", "truncate"])
def test_second_derivatives_agree(update, gradient):
    g, _ = declared(heads=2)
    x, p = random(BATCH, N, WIDTH), random(N, WIDTH, seed=1)
    results = []
    for fusions in ({}, {"fusions": ()}):
        net = unn.Unrolled(
            g,
            ["X", "P"],
            "X",
            ORDERS["forward-backward"],
            3,
            update=UPDATES[update],
            gradient=GRADIENTS[gradient],
            **fusions,
        )
        parameters = list(g.parameters())
        first = torch.autograd.grad(net(observation("rows", x), p).sin().sum(), parameters, create_graph=True)
        results.append(torch.autograd.grad(sum(t.square().sum() for t in first), parameters))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("heads", [1, 2])
def test_networks_are_mapped_and_have_forward_derivatives(heads):
    g, _ = declared(heads)
    net = unn.Unrolled(g, ["X", "P"], "X", ORDERS["forward-backward"], 2, check_values=False)
    known, p = observation("rows", random(BATCH, N, WIDTH)).mask, random(N, WIDTH, seed=1)
    several = random(2, BATCH, N, WIDTH)
    mapped = torch.func.vmap(lambda x: net(unn.Partial(x, known), p))(several)
    for x, ours in zip(several, mapped, strict=True):
        torch.testing.assert_close(ours, net(unn.Partial(x, known), p), **CLOSE)
    x, direction = random(BATCH, N, WIDTH, seed=2), random(BATCH, N, WIDTH, seed=3)
    _, tangent = torch.func.jvp(lambda x: net(unn.Partial(x, known), p), (x,), (direction,))
    step = 1e-6
    ahead, behind = (net(unn.Partial(x + sign * step * direction, known), p) for sign in (1, -1))
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
def test_queries_may_be_observed_in_part_and_have_other_factors(heads):
    torch.manual_seed(0)
    g = unn.FactorGraph("biased", d=WIDTH)
    X, Z = (g.variable(name, "n d", unn.SquaredNorm()) for name in "XZ")
    attention = undirected_attention(g, X, heads=heads, init=0.3)
    letters = "n e" if heads == 1 else "n h e"
    shape = "e d" if heads == 1 else "head e d"
    g.factor(
        Multilinear(attention.Q[letters], g.parameter("U", shape, init=0.3)[f"{letters[2:]} d"], Z["n d"])
    )
    g.double()
    q = random(BATCH, N, *(() if heads == 1 else (heads,)), WIDTH // heads)
    mask = torch.ones(BATCH, N, dtype=torch.bool)
    mask[:, 0] = False
    want = ["Q", "S", "H"]
    for update in UPDATES.values():
        fused, single = (
            unn.Unrolled(g, ["X", "Q"], want, ["Z", "Q", "K", "V", "S", "H"], 3, update=update, **options)(
                random(BATCH, N, WIDTH, seed=1), unn.Partial(q, mask)
            )
            for options in ({}, {"fusions": ()})
        )
        for ours, theirs in zip(fused, single, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_results_share_no_memory():
    g, _ = declared()
    out = unn.infer(g, {"X": random(BATCH, N, WIDTH), "P": random(N, WIDTH, seed=1)}, order=list("QKVSH"))
    tensors = [*out.values.values(), *out.preactivations.values()]
    assert len({x.untyped_storage().data_ptr() for x in tensors}) == len(tensors)


# -- declarations --------------------------------------------------------------------------------------------


def test_each_attention_of_a_graph_is_fused_and_parameters_keep_their_names():
    g, attention = declared()
    assert g.fusions == (attention.fusion,)
    net = unn.Unrolled(g, ["X", "P"], "X", ORDERS["list"])
    assert net.fusions == g.fusions
    assert sorted(net.state_dict()) == ["declaration.W_K", "declaration.W_Q", "declaration.W_V"]
    copied = copy.deepcopy(net)
    x, p = observation("rows", random(BATCH, N, WIDTH)), random(N, WIDTH, seed=1)
    assert torch.equal(copied(x, p), net(x, p))


@pytest.mark.parametrize(("update", "gradient"), list(itertools.product(UPDATES, GRADIENTS)))
def test_a_network_of_an_attention_takes_every_update_and_gradient(update, gradient):
    g, attention = declared()
    x, p = Seen("rows"), random(N, WIDTH, seed=1)
    options = {"update": UPDATES[update], "gradient": GRADIENTS[gradient]}
    ours, theirs = (
        run(make(source, ["X", "P"], ["X", "S"], ORDERS["forward-backward"], 3, **options), x, p, None)
        for make, source in ((UnrolledAttention, attention), (unn.Unrolled, g))
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_network_of_one_of_two_attentions_uses_its_fusion_alone():
    g = unn.FactorGraph("two", d=WIDTH)
    X = g.variable("X", "n d", unn.SquaredNorm())
    first, second = (undirected_attention(g, X, init=0.2, prefix=prefix) for prefix in ("a_", "b_"))
    g.double()
    order = [*first.order, *second.order]
    nets = [
        UnrolledAttention(attentions, "X", ["a_H", "b_H"], order, 2)
        for attentions in (first, second, [first, second])
    ]
    assert [net.fusions for net in nets] == [(first.fusion,), (second.fusion,), g.fusions]
    x = random(BATCH, N, WIDTH)
    expected = unn.infer(g, {"X": x}, order=order, iterations=2, fusions=())
    for net in nets:
        for name, value in zip(net.want, net(x), strict=True):
            torch.testing.assert_close(value, expected[name], **CLOSE)


class Listed(Fusion):
    """A rule for what it is told."""

    def __init__(self, replaces):
        self._replaces = replaces

    @property
    def replaces(self):
        return self._replaces

    def start(self, batch, inferred):
        raise NotImplementedError


def test_fusions_that_do_not_fit_are_refused():
    g, attention = declared()
    other = unn.FactorGraph("other", d=2)
    Y, Z = (other.variable(name, "d", unn.SquaredNorm()) for name in "YZ")
    other.factor(Multilinear(Y["d"], Z["d"]))
    before = g.fusions
    for fusion, words in (
        ("fast", ("fusion", "'fast'")),
        (Listed({"Y": ()}), ("unknown variable 'Y'",)),
        (Listed({"X": ("sum",)}), ("unknown factor 'sum'",)),
        (Listed({"X": (attention.scores.name,)}), ("does not touch", "'X'")),
        (attention.fusion, ("two fusions", "'Q'")),
    ):
        with pytest.raises(DeclarationError, match=says(*words)):
            g.fuse(fusion)
    assert g.fusions == before
    with pytest.raises(DeclarationError, match=says("unknown variable 'Q'")):
        unn.infer(other, {"Y": torch.zeros(1, 2)}, fusions=before)
    with pytest.raises(DeclarationError, match=says("unknown variable 'Q'")):
        unn.Unrolled(other, "Y", "Z", ["Z"], fusions=before)
    with pytest.raises(InferenceError, match=says("fusions", "graph.fusions")):
        unn.infer(g, {"X": random(1, N, WIDTH)}, fusions=attention.fusion)


class Pairwise(Fusion):
    """The messages of a bias and a product to H, as a writer of an extension would fuse them."""

    def __init__(self, factors):
        self._factors = factors
        self.calls = 0

    @property
    def replaces(self):
        return {"H": [factor.name for factor in self._factors]}

    def start(self, batch, inferred):
        return _PairwiseMessages(self)


class _PairwiseMessages(FusedMessages):
    def __init__(self, fusion):
        self._fusion = fusion

    def to(self, target, values, versions, reused):
        self._fusion.calls += 1
        return torch.nn.functional.linear(values["X"], values["W"], values["b"])

    def branch(self):
        return self


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_fusions_of_extensions_are_used_alike(gradient):
    torch.manual_seed(0)
    g = unn.FactorGraph("layer", x=3, h=2)
    X, H = g.variable("X", "x", unn.SquaredNorm()), g.variable("H", "h", unn.NonNegative())
    Y = g.variable("Y", "h", unn.SquaredNorm())
    W, b = g.parameter("W", "h x"), g.parameter("b", "h", init="normal")
    fusion = Pairwise(
        [g.factor(Multilinear(H["h"], W["h x"], X["x"])), g.factor(Multilinear(b["h"], H["h"]))]
    )
    g.factor(Multilinear(H["h"], g.parameter("c", "h", init="normal")["h"], Y["h"]))
    g.fuse(fusion)
    g.double()
    x = random(5, 3).requires_grad_()
    results = []
    for options in ({}, {"fusions": ()}):
        net = unn.Unrolled(g, "X", ["H", "Y"], ["H", "Y"], 4, gradient=GRADIENTS[gradient], **options)
        values = net(x)
        results.append(
            [*values, *torch.autograd.grad(sum(t.sin().sum() for t in values), [x, *g.parameters()])]
        )
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert fusion.calls
