"""Draws from traced programs."""

import numpy as np
import pytest
import torch
from support.tracing import circuit, product_of_matrices, seeded

import unn
from unn.programs import Bernoulli, Categorical, Normal, Permutation, Uniform


def many(t, k=3):
    x = t.sample("x", Normal(2, 3))
    t.sample("y", Normal(2 * x, 0.5), 2)
    t.sample("u", Uniform(-1, [1, 3]))
    b = t.sample("b", Bernoulli(0.3), (2, 2))
    c = t.sample("c", Categorical(k, [0.2, 0.5, 0.3]))
    t.sample("d", Categorical(k, np.where((np.arange(3) == c) & b[0, 0], 0.6, np.where(b[0, 0], 0.2, 1 / 3))))
    t.deterministic((c + 1) % k, name="e", options=k)
    t.sample("p", Permutation(3), 2)


def test_moments_of_draws_are_those_of_the_distributions():
    n = 20000
    drawn = unn.trace(many).draw(n, seeded(), torch.float64)
    assert {name: tuple(x.shape[1:]) for name, x in drawn.items()} == {
        "x": (), "y": (2,), "u": (2,), "b": (2, 2), "c": (3,), "d": (3,), "e": (3,), "p": (2, 3, 3),
    }  # fmt: skip

    def near(moment, expected, scale):
        torch.testing.assert_close(
            moment, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=5 * scale / n**0.5
        )

    near(drawn["x"].mean(), 2.0, 3)
    near(drawn["x"].var(), 9.0, 9 * 2**0.5)
    rest = drawn["y"] - 2 * drawn["x"][:, None]
    near(rest.mean(0), [0, 0], 0.5)
    near(rest.T.cov(), [[0.25, 0], [0, 0.25]], 0.4)
    near(drawn["u"].mean(0), [0, 1], 1.2)
    assert (
        drawn["u"].min() >= -1
        and (drawn["u"].max(0).values <= torch.tensor([1, 3])).all()
        and drawn["u"].max() > 2.99
    )
    near(drawn["b"].mean(0), [[0.3, 0.3], [0.3, 0.3]], 0.5)
    assert set(drawn["b"].unique().tolist()) == {0, 1}
    near(drawn["c"].mean(0), [0.2, 0.5, 0.3], 0.5)
    on = drawn["b"][:, 0, 0] == 1
    near((drawn["d"] * drawn["c"]).sum(1)[on].mean(), 0.6, 1)
    near(drawn["d"][~on].mean(0), [1 / 3] * 3, 0.6)
    near(drawn["p"].mean(0), torch.full((2, 3, 3), 1 / 3), 0.5)
    assert torch.equal(drawn["e"], drawn["c"].roll(1, 1))


def test_draws_fit_the_graph_and_repeat_under_a_seed():
    traced = unn.trace(many)
    one, again, other = (traced.draw(16, seeded(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], again[name]) for name in one) and not torch.equal(one["x"], other["x"])
    # what is declared is what is drawn
    g = traced.graph
    for name, x in one.items():
        assert x.dtype == torch.get_default_dtype()
        assert g.variables[name].regularizer.contains(x).all()
        assert tuple(x.shape[1:]) == g.size_table.shape(g[name], g.size_table.static)
    kinds = {name: type(variable.regularizer).__name__ for name, variable in g.variables.items()}
    assert kinds["x"] == "SquaredNorm" and kinds["b"] == kinds["p"] == "BinaryEntropy"
    assert g.variables["u"].regularizer.interval() == (-1, 3)
    assert kinds["c"] == kinds["d"] == kinds["e"] == "Entropy"
    assert g.adjacency().shapes == {
        "x": (),
        "y": (2,),
        "u": (2,),
        "b": (2, 2),
        "c": (),
        "d": (),
        "e": (),
        "p": (2, 3, 3),
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        free = traced.draw(4)["x"]
        torch.manual_seed(5)
        assert torch.equal(traced.draw(4)["x"], free)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_draws_obey_deterministic_relations_exactly(dtype):
    drawn = unn.trace(product_of_matrices, 4, 3, 5).draw(100, seeded(), dtype)
    A, R, C, _ = (drawn[name].double() for name in "ARCE")
    assert all(x.dtype == dtype for x in drawn.values())
    assert torch.equal(drawn["C"], (A[:, :, None] * R.transpose(1, 2)[:, None]).to(dtype))
    # sums are taken in float64, in an order of the library's own
    order = 1e-15 if dtype == torch.float64 else 0.0
    torch.testing.assert_close(drawn["E"], sum(C[..., h] for h in range(5)).to(dtype), rtol=order, atol=0)


def test_draws_are_made_in_steps_that_do_not_grow_with_the_batch():
    calls = []

    def program(t):
        calls.append(1)
        product_of_matrices(t)

    traced = unn.trace(program)
    # a second run tells whether the program does the same again
    assert len(calls) == 2
    assert len(traced.draw(5000, seeded())["E"]) == 5000
    assert len(calls) == 2


def test_a_traced_graph_trains_on_its_own_draws():
    traced = unn.trace(circuit, 2)
    denoiser = unn.Denoiser(traced.graph, width=8, depth=2, heads=2)
    observed = torch.arange(traced.graph.adjacency().count).expand(6, -1) % 2 == 0
    assert torch.isfinite(unn.Diffusion(denoiser).loss(traced.draw(6, seeded()), observed))
