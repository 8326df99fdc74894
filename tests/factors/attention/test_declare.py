"""Undirected attention in one line equals its factors by hand and respects masks exactly."""

import copy
import itertools
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says, unchanged
from support.undirected_attention import (
    BAND,
    CAUSAL,
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
    small_graph,
)

import unn
from factors import Multilinear, UnrolledAttention, undirected_attention
from unn.errors import DeclarationError, InferenceError, ObservationError
from unn.ops.attention import AttentionMask
from unn.testing import GraphContract
from unn.testing.strategies import GraphCase

# -- the reference -------------------------------------------------------------------------------------------


def golden():
    arrays = np.load(Path(__file__).parents[2] / "golden" / "attention_unn.npz", allow_pickle=False)
    return {key: torch.as_tensor(arrays[key]) for key in arrays.files if arrays[key].dtype.kind != "U"}


def golden_problem(d=8):
    z = golden()
    g, *sources = small_graph(d, positions=True)
    attention = undirected_attention(g, sources, init={role: z[f"W_{role}"] for role in "QKV"})
    emb = z["emb"].clone().requires_grad_()
    missing = z["ids"] == 1
    padding = torch.arange(7) >= z["lengths"][:, None]
    x = torch.where((missing | padding)[..., None], 0, emb[z["ids"]])
    return z, g, attention, emb, missing, unn.Partial(x, ~missing)


ORDERS = [("fb", ROUND_TRIP, k) for k in (1, 2, 3)] + [
    (f"rnd{j}", list(names), k) for j, names in enumerate(("VSQHKX", "HKSVQX")) for k in (1, 2)
]


@pytest.mark.parametrize(("name", "order", "k"), ORDERS)
def test_one_line_declares_the_network_of_the_paper(name, order, k):
    z, g, _, _, _, seen = golden_problem()
    out = unn.infer(g, {"X": seen, "P": z["PE"]}, order=order, iterations=k, lengths={"n": z["lengths"]})
    for variable in "QKVSHX":
        torch.testing.assert_close(out[variable].detach(), z[f"{name}_k{k}_{variable}"], **EXACT)
    energy, reference = out.energy.T, z[f"{name}_k{k}_energy"]
    assert torch.equal(energy.isinf(), reference.isinf())
    torch.testing.assert_close(energy[energy.isfinite()], reference[reference.isfinite()], **EXACT)


@pytest.mark.parametrize(("name", "order", "k"), ORDERS)
def test_fused_passes_equal_the_network_of_the_paper_and_its_gradients(name, order, k):
    z, g, attention, emb, missing, seen = golden_problem()
    want = list("QKVSHX")
    net = UnrolledAttention(attention, ["X", "P"], want, order=order, iterations=k)
    out = dict(zip(want, net(seen, z["PE"], lengths={"n": z["lengths"]}), strict=True))
    for variable in want:
        torch.testing.assert_close(out[variable].detach(), z[f"{name}_k{k}_{variable}"], **EXACT)
    logits = out["X"][missing] @ emb.T
    torch.testing.assert_close(logits.detach(), z[f"{name}_k{k}_logits"], **EXACT)
    if name == "fb":
        torch.nn.functional.cross_entropy(logits, z["targets"]).backward()
        torch.testing.assert_close(emb.grad, z[f"fb_k{k}_grad_emb"], **EXACT)
        for role in "QKV":
            torch.testing.assert_close(getattr(g, f"W_{role}").grad, z[f"fb_k{k}_grad_W_{role}"], **EXACT)


# -- declared by hand ----------------------------------------------------------------------------------------


def by_hand(weights, heads, positions):
    """The same network from its factors, one by one."""
    g, *sources = small_graph(positions=positions)
    h, inner = ("", "e") if heads == 1 else ("h ", "head e")
    Q, K, V, H = (g.variable(name, f"n {inner}", unn.SquaredNorm()) for name in "QKVH")
    S = g.variable("S", "n m" if heads == 1 else "head n m", unn.Entropy(math.sqrt(WIDTH // heads), over="m"))
    for variable in (Q, K, V):
        W = g.parameter(f"W_{variable.name}", f"{inner} d", init=weights[f"W_{variable.name}"])
        for source in sources:
            g.factor(Multilinear(variable[f"n {h}e"], W[f"{h}e d"], source["n d"]))
    g.factor(Multilinear(S[f"{h}n m"], Q[f"n {h}e"], K[f"m {h}e"]))
    g.factor(Multilinear(H[f"n {h}e"], S[f"{h}n m"], V[f"m {h}e"]))
    return g


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("rounds", range(1, 6))
def test_declared_graph_equals_its_factors_by_hand(heads, rounds, positions):
    g, _ = declared(positions, heads=heads, init=0.15)
    other = by_hand(dict(g.named_parameters()), heads, positions)
    assert list(other.factors) == list(g.factors)
    values = {
        "X": unn.Partial(random(3, N, WIDTH), known_rows()),
        **({"P": random(N, WIDTH, seed=1)} if positions else {}),
    }
    ours, theirs = (unn.infer(graph, values, order=ROUND_TRIP, iterations=rounds) for graph in (g, other))
    for name in "XQKVSH":
        torch.testing.assert_close(ours[name], theirs[name], **EXACT)
        torch.testing.assert_close(ours.preactivations[name], theirs.preactivations[name], **EXACT)
    finite = theirs.energy.isfinite()
    assert torch.equal(ours.energy.isfinite(), finite) and finite[-1].all()
    torch.testing.assert_close(ours.energy[finite], theirs.energy[finite], **EXACT)
    shares = other.energy({**theirs.values, **values, "X": theirs["X"]}, by_factor=True)
    for name, share in g.energy({**ours.values, **values, "X": ours["X"]}, by_factor=True).items():
        torch.testing.assert_close(share, shares[name], **EXACT)


@pytest.mark.parametrize("heads", [1, 2])
def test_energy_is_that_of_the_paper(heads):
    g, _ = declared(heads=heads, mask=BAND)
    e = WIDTH // heads
    x = random(2, N, WIDTH)
    q, k, v, h = (random(2, N, *(() if heads == 1 else (heads,)), e, seed=seed) for seed in range(1, 5))
    s = torch.softmax(
        random(2, *(() if heads == 1 else (heads,)), N, N, seed=5).masked_fill(~BAND, -torch.inf), -1
    )
    Q, K, V, H = (t.view(2, N, heads, e) for t in (q, k, v, h))
    S = s.view(2, heads, N, N)
    expected = 0.5 * sum(t.square().sum((1, 2)) for t in (x,)) + 0.5 * sum(
        t.square().sum((1, 2, 3)) for t in (Q, K, V, H)
    )
    expected = expected - math.sqrt(e) * torch.special.entr(S).sum((1, 2, 3))
    for name, t in (("W_Q", Q), ("W_K", K), ("W_V", V)):
        expected = expected - torch.einsum("bnhe,hed,bnd->b", t, getattr(g, name).view(heads, e, WIDTH), x)
    expected = (
        expected - torch.einsum("bhnm,bnhe,bmhe->b", S, Q, K) - torch.einsum("bnhe,bhnm,bmhe->b", H, S, V)
    )
    torch.testing.assert_close(g.energy({"X": x, "Q": q, "K": k, "V": v, "H": h, "S": s}), expected, **EXACT)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("heads", "mask"), [(1, None), (1, CAUSAL), (2, None), (2, BAND), (2, torch.stack([BAND, CAUSAL]))]
)
def test_one_pass_from_zero_is_scaled_dot_product_attention(heads, mask, fused):
    g, attention = declared(heads=heads, mask=mask)
    x = random(3, N, WIDTH)
    q, k, v = (
        (x @ getattr(g, f"W_{role}").reshape(WIDTH, WIDTH).T).view(3, N, heads, -1).transpose(1, 2)
        for role in "QKV"
    )
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
    attended = (
        UnrolledAttention(attention, "X", "H", attention.order)(x)
        if fused
        else unn.infer(g, {"X": x}, order=attention.order)["H"]
    )
    torch.testing.assert_close(attended.view(3, N, heads, -1), expected, **EXACT)


def test_names_axes_and_sizes_of_what_is_declared():
    g, X = small_graph(axes="n | d")
    first = undirected_attention(g, X, heads=2, prefix="first_")
    second = undirected_attention(g, X, width=8, prefix="second_", regularizers={"H": unn.SignedEntropy()})
    assert first.order == ("first_Q", "first_K", "first_V", "first_S", "first_H")
    assert [first.Q.pattern, first.S.pattern, first.H.pattern] == [
        "n | first_head first_e",
        "first_head n | n_key",
        "n | first_head first_e",
    ]
    assert [second.Q.pattern, second.S.pattern] == ["n | second_e", "n | n_key"]
    assert tuple(g.first_W_Q.shape) == (2, 3, WIDTH) and tuple(g.second_W_K.shape) == (8, WIDTH)
    assert first.S.regularizer.temperature == math.sqrt(3) and second.S.regularizer.temperature == math.sqrt(
        8
    )
    assert isinstance(second.H.regularizer, unn.SignedEntropy) and isinstance(
        second.Q.regularizer, unn.SquaredNorm
    )
    assert set(first.factors_of("S")) == {first.scores, first.mixing} and set(first.factors_of("V")) == {
        *first.projections["V"],
        first.mixing,
    }
    assert "masked" not in g.explain()
    out = unn.infer(g, {"X": torch.randn(2, 4, WIDTH)}, order=[*first.order, *second.order])
    assert out["first_S"].shape == (2, 2, 4, 4) and out["second_H"].shape == (2, 4, 8)


def test_weights_start_as_asked():
    bound = WIDTH**-0.5
    torch.manual_seed(3)
    g, X = small_graph()
    undirected_attention(g, X, heads=2)
    torch.manual_seed(3)
    linear = [torch.empty(2, 3, WIDTH).uniform_(-bound, bound) for _ in range(3)]
    for role, expected in zip("QKV", linear, strict=True):
        assert torch.equal(getattr(g, f"W_{role}"), expected)
    g, X = small_graph(d=300)
    undirected_attention(g, X, init=0.02)
    assert g.W_V.std().item() == pytest.approx(0.02, rel=0.02)
    g, X = small_graph()
    undirected_attention(g, X, init=0)
    assert not g.W_Q.any()


def test_cross_attention_between_arrays_of_different_lengths_and_widths():
    g = unn.FactorGraph("cross", d=4, c=3)
    X, Z, U = (
        g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("X", "n d"), ("Z", "k c"), ("U", "k d"))
    )
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[0, 0] = mask[1, 1] = mask[2, 2] = True
    attention = undirected_attention(g, X, Z, U, width=6, heads=2, mask=mask)
    g.double()
    assert attention.S.axes == ("head", "n", "k") and attention.K.axes == ("k", "head", "e")
    x, z, u = random(2, 3, 4), random(2, 5, 3), random(2, 5, 4, seed=1)
    q, k, v = (
        (t @ W.reshape(6, -1).T).view(2, -1, 2, 3).transpose(1, 2)
        for t, W in ((x, g.W_Q), (z, g.W_K), (u, g.W_V))
    )
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
    values = {"X": x, "Z": z, "U": u}
    torch.testing.assert_close(unn.infer(g, values, order=attention.order)["H"], expected, **EXACT)
    torch.testing.assert_close(
        UnrolledAttention(attention, list(values), "H", attention.order)(x, z, u), expected, **EXACT
    )


def test_learned_queries_attend_to_a_sequence():
    g = unn.FactorGraph("pooling", d=4, place=3)
    X = g.variable("X", "n d", unn.SquaredNorm())
    start = g.parameter("start", "place d")
    attention = undirected_attention(g, start, X, heads=2)
    g.double()
    x, lengths = random(3, 5, 4), {"n": torch.tensor([5, 2, 3])}
    generic = unn.Unrolled(g, "X", "H", attention.order, 2)(x, lengths=lengths)
    fused = UnrolledAttention(attention, "X", "H", attention.order, 2)(x, lengths=lengths)
    torch.testing.assert_close(fused, generic, **EXACT)
    assert generic.shape == (3, 3, 2, 2)


# -- masks ---------------------------------------------------------------------------------------------------


def neighbours_on_a_ring():
    g = unn.FactorGraph("ring", place=N)
    C = g.variable("C", "place |", unn.SquaredNorm())
    g.factor(Multilinear(C["i"], C["i+1"]))
    return g.adjacency()


def test_a_mask_from_an_adjacency_is_the_mask_of_its_matrix():
    adjacency = neighbours_on_a_ring()
    assert torch.equal(adjacency.dense(), BAND)
    x = random(2, N, WIDTH)
    outputs = []
    for mask in (BAND, BAND[None], adjacency, AttentionMask(adjacency), AttentionMask.of(BAND)):
        g, attention = declared(mask=mask)
        outputs.append(unn.infer(g, {"X": x}, order=attention.order, iterations=2)["H"])
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], **EXACT)
    x = random(2, N, WIDTH)
    heads = [declared(mask=mask, heads=2) for mask in (BAND, adjacency, BAND.expand(2, N, N))]
    outputs = [unn.infer(g, {"X": x}, order=attention.order, iterations=2)["H"] for g, attention in heads]
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], **EXACT)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("heads", "mask"), [(1, BAND), (1, HOLES), (2, HOLES), (2, EACH_HEAD)])
def test_forbidden_weights_are_exactly_zero_and_rows_without_keys_too(heads, mask, fused):
    g, attention = declared(heads=heads, mask=mask, init=0.15)
    lengths = torch.tensor([N, 3, 1])
    exists = torch.arange(N) < lengths[:, None]
    allowed = (
        mask & exists[:, None, None, :] & exists[:, None, :, None]
        if heads > 1
        else mask & exists[:, None] & exists[:, :, None]
    )
    allowed = allowed.expand(3, *([heads] if heads > 1 else []), N, N)
    seen = unn.Partial(random(3, N, WIDTH), known_rows())
    for rounds in (1, 3):
        if fused:
            s, h = UnrolledAttention(attention, "X", ["S", "H"], ROUND_TRIP, rounds)(
                seen, lengths={"n": lengths}
            )
        else:
            out = unn.infer(g, {"X": seen}, order=ROUND_TRIP, iterations=rounds, lengths={"n": lengths})
            s, h = out["S"], out["H"]
            assert out.energy[-1].isfinite().all()
        assert (s[~allowed] == 0).all() and (s[allowed] > 0).all()
        rows = allowed.any(-1)
        torch.testing.assert_close(s.sum(-1), rows.to(D), **EXACT)
        by_head = h if heads == 1 else h.transpose(1, 2)
        assert (by_head[~rows] == 0).all() and (by_head[rows] != 0).all()
    s.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in g.parameters())


def test_rows_without_keys_have_no_energy():
    nobody = torch.zeros(N, N, dtype=torch.bool)
    g, attention = declared(mask=nobody)
    out = unn.infer(g, {"X": random(2, N, WIDTH)}, order=attention.order, iterations=2)
    assert not out["S"].any() and not out["H"].any()
    shares = g.energy(out.values, by_factor=True)
    assert not shares["S"].any() and not shares[attention.scores.name].any()
    one = nobody.clone()
    one[0] = True
    g, attention = declared(mask=one)
    out = unn.infer(g, {"X": random(2, N, WIDTH)}, order=attention.order)
    row = out["S"][:, 0]
    expected = -math.sqrt(WIDTH) * torch.special.entr(row).sum(1)
    torch.testing.assert_close(g.energy(out.values, by_factor=True)["S"], expected, **EXACT)


@pytest.mark.parametrize("fused", [False, True])
def test_what_may_not_be_attended_to_changes_nothing(fused):
    g, attention = declared(mask=HOLES)
    x = random(2, N, WIDTH)
    run = (
        UnrolledAttention(attention, "X", "H", attention.order)
        if fused
        else unn.Unrolled(g, "X", "H", attention.order, fusions=())
    )
    before = run(x)
    for j in range(N):
        other = x.clone()
        other[:, j] = 1e6
        changed = run(other)
        blind = ~HOLES[:, j]
        blind[j] = False
        assert torch.equal(changed[:, blind], before[:, blind])
        sighted = HOLES[:, j] & (torch.arange(N) != j)
        assert (changed[:, sighted] != before[:, sighted]).any() or not sighted.any()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("heads", "mask"), [(1, None), (1, HOLES), (2, EACH_HEAD)])
def test_padding_changes_nothing_whatever_it_holds(heads, mask, fused):
    g, attention = declared(True, heads=heads, mask=mask, init=0.2)
    lengths = {"n": torch.tensor([N, 3, 4])}
    known = known_rows()
    x, p = random(3, N, WIDTH), random(3, N, WIDTH, seed=1)
    junk = torch.where((torch.arange(N) < lengths["n"][:, None])[..., None], 0, 1e4)
    make = UnrolledAttention if fused else unn.Unrolled
    net = make(attention if fused else g, ["X", "P"], list("QKVSH"), ROUND_TRIP, 2)
    clean = net(unn.Partial(x, known), p, lengths=lengths)
    dirty = net(unn.Partial(x + junk, known), p + junk, lengths=lengths)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_padded_sequences_equal_short_ones(heads, fused):
    g, attention = declared(True, heads=heads, init=0.2)
    lengths = torch.tensor([N, 3, 2])
    x, p, known = random(3, N, WIDTH), random(N, WIDTH, seed=1), known_rows()
    make = UnrolledAttention if fused else unn.Unrolled
    net = make(attention if fused else g, ["X", "P"], list("QKVSH"), ROUND_TRIP, 2)
    padded = net(unn.Partial(x, known), p, lengths={"n": lengths})
    for element, length in enumerate(lengths.tolist()):
        own = slice(element, element + 1)
        if known[own, :length].all():
            continue
        short = net(unn.Partial(x[own, :length], known[own, :length]), p[:length])
        for name, long, alone in zip("QKVSH", padded, short, strict=True):
            part = long[own, ..., :length, :length] if name == "S" else long[own, :length]
            torch.testing.assert_close(part, alone, **EXACT)
            assert long[own].abs().sum().item() == pytest.approx(alone.abs().sum().item())


def test_a_given_weight_on_a_forbidden_pair_is_refused():
    g, _ = declared(mask=BAND)
    s = torch.full((1, N, N), 1 / N, dtype=D)
    with pytest.raises(ObservationError, match=says("'S'", "outside the domain", "MaskedEntropy")):
        unn.infer(g, {"X": random(1, N, WIDTH), "S": s}, order=list("QKVH"))
    fine = (BAND.to(D) / BAND.sum(1, keepdim=True))[None]
    out = unn.infer(
        g, {"X": random(1, N, WIDTH), "S": fine}, order=list("VH"), initial={"Q": "zero", "K": "zero"}
    )
    torch.testing.assert_close(out["H"], fine @ random(1, N, WIDTH) @ g.W_V.T, **EXACT)


def test_graphs_with_a_mask_can_be_copied_saved_and_explained():
    g, _ = declared(mask=HOLES)
    x = random(2, N, WIDTH)
    expected = unn.infer(g, {"X": x}, order=list("QKVSH"), iterations=2)["H"]
    for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert torch.equal(unn.infer(other, {"X": x}, order=list("QKVSH"), iterations=2)["H"], expected)
    assert "allowed=8 of 25" in repr(g.variables["S"].regularizer) and "masked softmax" in g.explain()


def test_a_mask_fixes_the_number_of_positions():
    g, _ = declared(mask=BAND)
    with pytest.raises(ObservationError, match=says("'X'", "axis 'n'", "size 4", "expected 5")):
        unn.infer(g, {"X": random(1, 4, WIDTH)}, order=list("QKVSH"))


# -- inference -----------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    """Attention of any kind with any variables observed, in any order."""
    seed, n, heads = draw(st.integers(0, 2**31 - 1)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    generator = torch.Generator().manual_seed(seed)
    masks = {
        "none": None,
        "all heads": torch.rand(n, n, generator=generator) > 0.4,
        "each head": torch.rand(heads, n, n, generator=generator) > 0.4,
    }
    g = unn.FactorGraph("random", d=3)
    X = g.variable("X", "n d", unn.SquaredNorm())
    regularizer = draw(st.sampled_from([unn.SquaredNorm, unn.Ball, unn.NonNegative, unn.SignedEntropy]))
    weights = {
        role: 0.7 * torch.randn((2, 2, 3) if heads == 2 else (4, 3), generator=generator) for role in "QKV"
    }
    mask = masks[draw(st.sampled_from(list(masks)))]
    undirected_attention(
        g,
        X,
        heads=heads,
        width=4,
        mask=mask,
        init=weights,
        regularizers={draw(st.sampled_from("QKVH")): regularizer()},
    )
    g.double()
    sizes = {"n": n, "n_key": n, "d": 3, "head": heads, "e": 4 // heads}
    noise = {
        name: torch.randn((3, *(sizes[a] for a in v.axes)), dtype=D, generator=generator)
        for name, v in g.variables.items()
    }
    values = {
        name: variable.regularizer.mirror(noise[name]) * (1 if name == "S" else 0.98)
        for name, variable in g.variables.items()
    }
    names = draw(st.permutations(list(g.variables)))
    observed = draw(st.integers(0, len(names) - 1))
    given, free = tuple(names[:observed]), names[observed:]
    return GraphCase(
        g,
        values,
        given,
        draw(st.sampled_from([list(free), unn.ForwardBackward(free), unn.RandomOrder(free)])),
        seed,
    )


class TestAnyAttention(GraphContract):
    """The energy never rises, messages are gradients, values stay in their domains, and whatever else holds
    of every graph."""

    @staticmethod
    def cases():
        return problems()


@given(case=problems(), name=st.sampled_from("XQKVSH"))
@settings(max_examples=60, deadline=None)
def test_each_update_is_the_best_of_its_block(case, name):
    fixed = {other: x for other, x in case.values.items() if other != name}
    out = unn.infer(case.graph, fixed, order=[name], sizes={"n": case.values["X"].shape[1]})
    best = case.graph.energy(out.values)
    regularizer = case.graph.variables[name].regularizer
    generator = torch.Generator().manual_seed(case.seed)
    for weight in (1.0, 0.1, 1e-3):
        point = regularizer.mirror(torch.randn(out[name].shape, dtype=D, generator=generator))
        moved = case.graph.energy({**out.values, name: torch.lerp(out[name], point, weight)})
        assert moved.isfinite().all()
        assert (moved >= best - 1e-9 * (1 + best.abs())).all()


def test_the_energy_falls_along_the_passes_of_the_paper():
    g, _ = declared(True, mask=BAND, heads=2, init=0.2)
    seen = unn.Partial(random(3, N, WIDTH), known_rows())
    energy = unn.infer(g, {"X": seen, "P": random(N, WIDTH, seed=1)}, order=ROUND_TRIP, iterations=4).energy
    energy = energy[energy.isfinite().all(1)]
    assert (
        len(energy) == 4 * 10 - 3
        and (energy.diff(dim=0) <= 1e-12 * energy[1:].abs()).all()
        and energy[-1].max() < energy[0].min()
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("heads", "mask"), [(1, None), (2, HOLES)])
def test_what_was_attended_to_is_inferred_from_the_result(heads, mask, fused):
    """One step of each: S starts uniform, V = S' H, X = V W_V."""
    g, attention = declared(heads=heads, mask=mask)
    shape = (2, N, WIDTH) if heads == 1 else (2, N, heads, WIDTH // heads)
    h, start = random(*shape), {"Q": "zero", "K": "zero", "S": "uniform"}
    if fused:
        x, v = UnrolledAttention(attention, "H", ["X", "V"], ["V", "X"], initial=start)(h)
    else:
        out = unn.infer(g, {"H": h}, order=["V", "X"], initial=start, sizes={"n": N})
        x, v = out["X"], out["V"]
    allowed = torch.ones(N, N, dtype=torch.bool) if mask is None else mask
    s = allowed.to(D) / allowed.sum(1, keepdim=True).clamp(min=1)
    expected = torch.einsum("nm,bn...->bm...", s, h)
    torch.testing.assert_close(v, expected, **EXACT)
    torch.testing.assert_close(x, expected.reshape(2, N, -1) @ g.W_V.reshape(WIDTH, WIDTH), **EXACT)


def test_the_verdict_on_boundedness_is_that_of_the_documentation():
    g, _ = declared()
    for given_names in ((), ("X",)):
        verdict = g.boundedness(given=given_names)
        assert str(verdict).startswith("unbounded below")
    for one, other in itertools.product("QK", "VH"):
        g, _ = declared(regularizers={one: unn.Ball(), other: unn.Ball()}, mask=BAND)
        assert g.boundedness(given=["X"]).bounded
    for one in "QKVH":
        g, _ = declared(regularizers={one: unn.Ball()})
        assert not g.boundedness(given=["X"]).bounded
    g, attention = declared(regularizers={"Q": unn.Ball(), "H": unn.Ball()}, mask=BAND)
    out = unn.infer(g, {"X": random(2, N, WIDTH)}, order=attention.order, until=1e-8)
    assert out.converged, out.message


def test_the_unbounded_energy_diverges_in_some_rounds_and_is_reported():
    _, attention = declared(init=2.0)
    with pytest.raises(unn.errors.DivergenceError, match=says("'H'", "unbounded below")):
        UnrolledAttention(attention, "X", "H", attention.order, iterations=400)(random(1, N, WIDTH))


# -- bad input -----------------------------------------------------------------------------------------------


def bad(match, positions=False, **options):
    g, *sources = small_graph(positions=positions)
    unchanged(g, lambda: undirected_attention(g, sources, **options), match=match)


def test_bad_masks_are_refused():
    bad(says("mask", "boolean", "torch.float32", "mask > 0"), mask=torch.ones(N, N))
    bad(says("mask", "boolean", "list"), mask=[[True]])
    bad(says("mask", "(5, 4)", "'n'", "square"), mask=torch.ones(N, 4, dtype=torch.bool))
    bad(says("mask", "(3, 5, 5)", "(2, queries, keys)"), mask=torch.ones(3, N, N, dtype=torch.bool), heads=2)
    bad(says("mask", "(5,)", "(queries, keys)"), mask=torch.ones(N, dtype=torch.bool))
    g = unn.FactorGraph("fixed", n=7, k=4, d=WIDTH)
    X, Z = (g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("X", "n d"), ("Z", "k d")))
    unchanged(
        g, lambda: undirected_attention(g, X, mask=BAND), match=says("mask", "(5, 5)", "'n'", "'X'", "7")
    )
    short = torch.ones(7, 3, dtype=torch.bool)
    unchanged(
        g,
        lambda: undirected_attention(g, X, Z, mask=short),
        match=says("mask", "(7, 3)", "'k'", "'Z'", "4 keys"),
    )
    unchanged(
        g, lambda: undirected_attention(g, X, mask=neighbours_on_a_ring()), match=says("mask", "(5, 5)", "7")
    )


def test_bad_heads_and_widths_are_refused():
    bad(says("heads=4", "width 6", "1, 2, 3, 6"), heads=4)
    bad(says("heads=5", "width 8", "1, 2, 4, 8"), heads=5, width=8)
    for heads in (0, -1, 1.5, True, "2"):
        bad(says("heads", "whole number", repr(heads)), heads=heads)
    bad(says("width", "whole number", "0"), width=0)


def test_names_in_use_are_refused_with_the_remedy():
    for name in ("Q", "K", "V", "S", "H", "W_Q", "W_V"):
        g, X = small_graph()
        g.variable(name, "n d", unn.SquaredNorm())
        unchanged(
            g,
            lambda g=g, X=X: undirected_attention(g, X),
            match=says(repr(name), "in use", "variable", "prefix="),
        )
        undirected_attention(g, X, prefix="own_")
    g = unn.FactorGraph("axes", d=WIDTH, e=4)
    X = g.variable("X", "n d", unn.SquaredNorm())
    unchanged(g, lambda: undirected_attention(g, X), match=says("'e'", "size 4", "size 6", "prefix="))
    undirected_attention(g, X, width=4)
    g, X = small_graph()
    Z = g.variable("Z", "n_key head", unn.SquaredNorm())
    unchanged(
        g, lambda: undirected_attention(g, X, heads=2), match=says("'head'", "no fixed size", "prefix=")
    )
    unchanged(g, lambda: undirected_attention(g, X), match=says("'n_key'", "rename"))
    unchanged(g, lambda: undirected_attention(g, X, prefix="1"), match=says("prefix", "'1'"))
    assert Z.axes == ("n_key", "head")


def test_bad_sources_are_refused():
    other, Y = small_graph()
    g = unn.FactorGraph("mine", d=4, f=5)
    X, U = g.variable("X", "n d", unn.SquaredNorm()), g.variable("U", "n f", unn.SquaredNorm())
    R, L = g.variable("R", "n i j", unn.SquaredNorm()), g.variable("L", "n free", unn.SquaredNorm())
    for sources, words in (
        (Y, ("'X'", "another graph", "'mine'")),
        ([X, U], ("'d' of 'X' has size 4", "'f' of 'U' has size 5")),
        (R, ("'R'", "n i j", "two")),
        (L, ("'free'", "'L'", "no size", "FactorGraph('mine', free=...)")),
        ([X, X], ("'X'", "twice")),
        ([], ("queries", "[X, P]")),
        ("X", ("queries", "[X, P]")),
        (X["n d"], ("queries", "[X, P]")),
    ):
        unchanged(g, lambda sources=sources: undirected_attention(g, sources), match=says(*words))
    g = unn.FactorGraph("sizes", n=3, k=4, d=4)
    X, Z, U = (
        g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("X", "n d"), ("Z", "k d"), ("U", "n d"))
    )
    unchanged(
        g,
        lambda: undirected_attention(g, X, Z, U),
        match=says("'n' of 'U' has size 3", "'k' of 'Z' has size 4"),
    )
    assert other.name == "words"


def test_bad_initial_weights_and_regularizers_are_refused():
    bad(says("init", "standard deviation", "-1"), init=-1)
    bad(says("init", "nan"), init=float("nan"))
    bad(says("init['Q']", "(6, 6)", "(6, 5)"), init=dict.fromkeys("QKV", torch.zeros(6, 5)))
    bad(says("init['K']", "(2, 3, 6)", "NoneType"), init={"Q": torch.zeros(2, 3, 6)}, heads=2)
    bad(says("'Q', 'K', 'V' and 'H'", "'S'"), regularizers={"S": unn.Ball()})


def test_bad_networks_are_refused():
    _, attention = declared()
    _, other = declared()
    for wrong in ((), (attention, other)):
        with pytest.raises(DeclarationError, match=says("undirected_attention", "one graph")):
            UnrolledAttention(wrong, "X", "H")
    with pytest.raises(InferenceError, match=says("'Z'")):
        UnrolledAttention(attention, "X", "Z")
    net = UnrolledAttention(attention, "X", "X", ROUND_TRIP)
    with pytest.raises(InferenceError, match=says("1 inputs", "got 2")):
        net(random(1, N, WIDTH), random(1, N, WIDTH))
    with pytest.raises(InferenceError, match=says("'X'", "unn.Partial")):
        net(random(1, N, WIDTH))
