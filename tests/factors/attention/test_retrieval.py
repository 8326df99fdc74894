"""Associative memories: the published updates, exact retrieval with a margin, and falling energies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says, unchanged

import unn
from factors import associative_memory
from unn.errors import DeclarationError

D = torch.float64
M, WIDTH = 7, 12


def random(*shape, seed=0):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def declared(selection, axes="n d", patterns=None, state=None):
    g = unn.FactorGraph("memory", m=M, d=WIDTH)
    X = g.variable("X", axes, state or unn.SquaredNorm())
    patterns = random(M, WIDTH, seed=5) if patterns is None else patterns
    memory = associative_memory(g, X, g.constant("M", "m d", patterns), selection=selection)
    return g.double(), memory, patterns


UPDATES = {
    "modern": (unn.Entropy(1 / 3.0), lambda t: torch.softmax(3.0 * t, -1)),
    "sparse": (unn.SimplexNorm(1 / 3.0), lambda t: unn.SimplexNorm().mirror(3.0 * t)),
    "entmax": (unn.TsallisEntropy(1.5, temperature=0.5), lambda t: unn.TsallisEntropy(1.5).mirror(2.0 * t)),
    "structured": (unn.SubsetNorm(2, 0.5), lambda t: unn.SubsetNorm(2).mirror(2.0 * t)),
}


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_round_is_the_published_update(kind, rounds):
    selection, weights_of = UPDATES[kind]
    g, memory, patterns = declared(selection)
    x = random(4, 3, WIDTH)
    out = unn.infer(g, {}, order=memory.order, initial={"X": x}, iterations=rounds)
    for _ in range(rounds):
        x = weights_of(x @ patterns.T) @ patterns
    torch.testing.assert_close(out["X"], x, rtol=1e-10, atol=1e-10)


def test_layer_normalised_states_are_normalised_after_each_round():
    g, memory, patterns = declared(unn.Entropy(0.2), state=unn.LayerNorm())
    x = torch.nn.functional.layer_norm(random(4, 3, WIDTH), (WIDTH,))
    out = unn.infer(g, {}, order=memory.order, initial={"X": x}, iterations=1)
    expected = torch.nn.functional.layer_norm(torch.softmax(x @ patterns.T / 0.2, -1) @ patterns, (WIDTH,))
    torch.testing.assert_close(out["X"], expected, rtol=1e-10, atol=1e-10)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.05, 5.0), noise=st.floats(0.0, 2.0))
@settings(max_examples=60, deadline=None)
def test_sparse_retrieval_is_exact_in_one_round_if_and_only_if_there_is_the_margin(seed, temperature, noise):
    patterns = random(M, WIDTH, seed=seed)
    g, memory, _ = declared(unn.SimplexNorm(temperature), "d", patterns)
    x = patterns[:3] + noise * random(3, WIDTH, seed=seed + 1)
    top = (x @ patterns.T).topk(2, 1)
    margin = top.values[:, 0] - top.values[:, 1]
    out = unn.infer(g, {}, order=memory.order, initial={"X": x}, iterations=1)
    exact = (out["X"] - patterns[top.indices[:, 0]]).abs().amax(1) < 1e-9
    clear = (margin - temperature).abs() > 1e-6
    assert torch.equal(exact[clear], (margin > temperature)[clear])


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.05, 5.0))
@settings(max_examples=60, deadline=None)
def test_structured_retrieval_is_exactly_a_sum_of_patterns_where_there_is_the_margin(seed, temperature):
    patterns = random(M, WIDTH, seed=seed)
    g, memory, _ = declared(unn.SubsetNorm(2, temperature), "d", patterns)
    x = patterns[0:3] + patterns[1:4]
    top = (x @ patterns.T).topk(3, 1)
    margin = top.values[:, 1] - top.values[:, 2]
    out = unn.infer(g, {}, order=memory.order, initial={"X": x}, iterations=1)
    pairs = patterns[top.indices[:, :2]].sum(1)
    exact = (out["X"] - pairs).abs().amax(1) < 1e-9
    clear = (margin - temperature).abs() > 1e-6
    assert torch.equal(exact[clear], (margin > temperature)[clear])


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(UPDATES)))
@settings(max_examples=30, deadline=None)
def test_rounds_never_raise_the_energy_and_converge(seed, kind):
    g, memory, _ = declared(UPDATES[kind][0], patterns=0.5 * random(M, WIDTH, seed=seed))
    assert g.boundedness().bounded
    start = {"X": random(2, 3, WIDTH, seed=seed + 1)}
    out = unn.infer(g, {}, order=memory.order, initial=start, until=1e-8, iterations=5000)
    assert out.converged, out.message
    energy = out.energy[out.energy.isfinite().all(1)]
    assert (energy.diff(dim=0) <= 1e-10 * (1 + energy[1:].abs())).all()


def test_a_query_in_part_retrieves_the_rest_of_the_pattern():
    patterns = random(M, WIDTH, seed=5).sign()
    g, memory, _ = declared(unn.Entropy(0.05), "d", patterns)
    known = torch.arange(WIDTH) < WIDTH // 2
    seen = unn.Partial(torch.where(known, patterns, 0), known.expand(M, WIDTH))
    assert len(torch.unique(patterns[:, known], dim=0)) == M
    out = unn.infer(g, {"X": seen}, order=memory.order, until=1e-8)
    torch.testing.assert_close(out["X"], patterns, rtol=0, atol=1e-3)


def test_memories_may_be_inferred_or_learned():
    g = unn.FactorGraph("memory", m=M, d=WIDTH)
    X, Y = (g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("X", "n d"), ("Y", "m d")))
    associative_memory(g, X, Y, prefix="first_")
    learned = associative_memory(g, X, g.parameter("M", "m d"), prefix="second_")
    assert set(g.variables) == {"X", "Y", "first_weights", "second_weights"}
    assert learned.weights.name == "second_weights"


def test_bad_arrays_are_refused():
    g = unn.FactorGraph("memory", m=M, d=WIDTH)
    X, M_ = g.variable("X", "n d", unn.SquaredNorm()), g.constant("M", "m d")
    other = unn.FactorGraph("other", d=2).variable("Z", "d", unn.SquaredNorm())
    flat = g.variable("flat", "n m d", unn.SquaredNorm())
    for state, memories, match in (
        (other, M_, says("state", "'memory'")),
        (X, other, says("memories", "'memory'")),
        (M_, X, says("state", "constant 'M'")),
        (flat, M_, says("'flat'", "n m d")),
        (X, flat, says("'flat'", "needs two")),
        (X, "M", says("memories", "'M'")),
    ):
        unchanged(g, lambda s=state, m=memories: associative_memory(g, s, m), match=match)
    associative_memory(g, X, M_)
    with pytest.raises(DeclarationError, match=says("'weights'", "in use", "prefix")):
        associative_memory(g, X, M_)
