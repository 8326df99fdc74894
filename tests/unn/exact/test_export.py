"""Declared graphs become models of files with the same distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import AllDifferent, Multilinear
from unn.exact import (
    ModelFile,
    inference,
    read_bif,
    read_uai,
    to_bayesian_network,
    to_model_file,
    write_bif,
    write_uai,
)


def declared(seed: int, scale: float = 1.0) -> unn.FactorGraph:
    """A ring of spins with categories, of random energies, two categories of which differ."""
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("ring", site=4, colour=3)
    x = g.variable("x", "site | colour", unn.Entropy())
    s = g.variable("s", "site", unn.SignedEntropy())
    a = g.constant("a", "site colour other", scale * torch.randn(4, 3, 3, generator=generator).double())
    b = g.constant("b", "site colour", scale * torch.randn(4, 3, generator=generator).double())
    g.factor(Multilinear(a["i c d"], x["i c"], x["i+1 d"]))
    g.factor(Multilinear(b["i c"], x["i c"], s["i"]))
    g.factor(Multilinear(s["i"], s["i+1"]))
    pair = g.variable("pair", "cell | colour", unn.Entropy())
    g.factor(AllDifferent(pair["n c"], each=""))
    return g


def random_file(seed: int, zeros: float) -> ModelFile:
    """Random tables over up to three of six variables."""
    random = np.random.default_rng(seed)
    states = random.integers(1, 4, 6)
    scopes, weights = [], []
    for _ in range(7):
        scope = tuple(int(v) for v in random.permutation(6)[: random.integers(0, 4)])
        shape = [int(states[v]) for v in scope]
        weights.append(random.exponential(size=shape) * (random.random(shape) >= zeros))
        scopes.append(scope)
    names = tuple(f"v{k}" for k in range(6))
    return ModelFile(
        "MARKOV", names, tuple(tuple(map(str, range(s))) for s in states), tuple(scopes), tuple(weights)
    )


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_the_model_of_a_graph_has_its_log_partition_and_its_marginals(seed: int) -> None:
    g = declared(seed)
    sizes = {"cell": 2}
    model = to_model_file(g, sizes=sizes).model
    answer = inference.marginals(model)
    expected = unn.exact.marginals(g, sizes=sizes)
    torch.testing.assert_close(answer.log_partition, expected.log_partition)
    first = model.names.index("x[0]")
    own = answer.probabilities[:, first : first + 4, :3]
    torch.testing.assert_close(own, expected["x"].double())


def test_a_written_graph_is_read_to_the_last_bit(tmp_path: Path) -> None:
    file = to_model_file(declared(3), sizes={"cell": 2})
    path = tmp_path / "ring.uai"
    path.write_text(write_uai(file))
    again = read_uai(path)
    assert again.scopes == file.scopes
    assert all(np.array_equal(a, b) for a, b in zip(again.weights, file.weights, strict=True))


@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2]))
def test_the_bayesian_network_of_a_model_has_its_distribution(seed: int, zeros: float) -> None:
    file = random_file(seed, zeros)
    expected = inference.marginals(file.model)
    if not bool(expected.log_partition > -torch.inf):
        with pytest.raises(unn.UnnError, match="zero"):
            to_bayesian_network(file)
        return
    network = to_bayesian_network(file)
    answer = inference.marginals(network.model)
    torch.testing.assert_close(answer.log_partition, torch.zeros(1, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(answer.probabilities, expected.probabilities, atol=1e-9, rtol=0)
    # the joint distribution, through samples' weights: differences of logarithms are the same
    states = torch.stack([torch.randint(len(s), (50,)) for s in file.states], 1)
    ours, theirs = network.model.log_weight(states), file.model.log_weight(states)
    possible = theirs.flatten() > -torch.inf
    gap = ours.flatten()[possible] - theirs.flatten()[possible]
    torch.testing.assert_close(gap, -expected.log_partition.expand_as(gap), atol=1e-8, rtol=0)


def test_a_graph_as_a_bayesian_network_is_written_and_read(tmp_path: Path) -> None:
    g = declared(5)
    network = to_bayesian_network(to_model_file(g, sizes={"cell": 2}))
    path = tmp_path / "ring.bif"
    path.write_text(write_bif(network))
    again = read_bif(path)
    assert again.names == network.names
    answer = inference.marginals(again.model).probabilities
    torch.testing.assert_close(answer, inference.marginals(network.model).probabilities)


def test_weights_beyond_float64_evidence_and_batches_are_refused() -> None:
    sizes = {"cell": 2}
    with pytest.raises(unn.UnnError, match=r"exp\("):
        to_model_file(declared(0, scale=1e4), sizes=sizes)
    with pytest.raises(unn.UnnError, match="no evidence"):
        to_model_file(declared(0), {"s": torch.ones(1, 4)}, sizes=sizes)
    h = unn.FactorGraph("one", k=2)
    y = h.variable("y", "k", unn.Entropy())
    h.factor(Multilinear(h.constant("w", "k")["k"], y["k"]))
    with pytest.raises(unn.UnnError, match="batch of 3"):
        to_model_file(h, {"w": torch.zeros(3, 2)})


def test_a_network_of_large_width_is_refused_with_the_variable() -> None:
    states = tuple(("0", "1") for _ in range(26))
    pairs = tuple((i, j) for i in range(26) for j in range(i))
    file = ModelFile(
        "MARKOV", tuple(f"v{k}" for k in range(26)), states, pairs, (np.ones((2, 2)),) * len(pairs)
    )
    with pytest.raises(unn.UnnError, match="given 25 others.*UAI"):
        to_bayesian_network(file)


def one_variable(*energies: tuple[float, float]) -> unn.FactorGraph:
    g = unn.FactorGraph("one", k=2)
    y = g.variable("y", "k", unn.Entropy())
    for number, (a, b) in enumerate(energies):
        table = g.constant(f"w{number}", "k", torch.tensor([a, b], dtype=torch.float64))
        g.factor(Multilinear(table["k"], y["k"]))
    return g


@pytest.mark.parametrize("shift", [500.0, -500.0])
def test_networks_of_large_and_small_weights_keep_their_digits(shift: float) -> None:
    network = to_bayesian_network(to_model_file(one_variable((shift, shift + 1), (shift, shift + 1))))
    expected = torch.softmax(torch.tensor([0.0, 2.0], dtype=torch.float64), 0)
    torch.testing.assert_close(torch.from_numpy(network.weights[0]), expected)


def test_weights_that_a_file_would_round_to_zero_are_refused() -> None:
    with pytest.raises(unn.UnnError, match=r"exp\(-744\)"):
        to_model_file(one_variable((-744.0, -746.0)))


def test_anything_but_a_model_file_is_refused() -> None:
    with pytest.raises(unn.UnnError, match="FactorGraph"):
        to_bayesian_network(one_variable((0.0, 1.0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ['x"y', "a\nb", "", ",", "[]"])
def test_names_that_the_format_cannot_have_are_refused(name: str) -> None:
    file = ModelFile("BAYES", (name,), (("0", "1"),), ((0,),), (np.array([0.5, 0.5]),))
    with pytest.raises(unn.UnnError, match="no way to write"):
        write_bif(file)
    twice = ModelFile("BAYES", ("a", "a"), (("0",),) * 2, ((0,), (1,)), (np.ones(1),) * 2)
    with pytest.raises(unn.UnnError, match="two variables"):
        write_bif(twice)


def test_the_bayesian_network_of_a_network_with_rounded_rows_has_its_distribution(tmp_path: Path) -> None:
    path = tmp_path / "rounded.bif"
    path.write_text("""network n { }
variable A { type discrete [ 2 ] { a0, a1 }; }
variable B { type discrete [ 3 ] { b0, b1, b2 }; }
probability ( A ) { table 0.5, 0.5; }
probability ( B | A ) { (a0) 0.3330, 0.3330, 0.3330; (a1) 0.3335, 0.3335, 0.3335; }
""")
    network = to_bayesian_network(read_bif(path))
    assert inference.marginals(network.model).probabilities[0, 0, :2].tolist() == pytest.approx([0.5, 0.5])
