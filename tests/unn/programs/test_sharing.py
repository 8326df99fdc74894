"""Which indices of traced programs share embeddings: those along which the joint law is invariant."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from unn.diffusion import Regressor
from unn.graph.symmetries import embedding_indices
from unn.programs import (
    Bernoulli,
    Categorical,
    Distribution,
    MultivariateNormal,
    Normal,
    Permutation,
    Uniform,
)
from unn.programs.invariance import is_invariant

# -- programs with known symmetries -------------------------------------------------------------------------

WEIGHTS = np.array([[1.0, 2.0, 5.0], [0.5, -1.0, 3.0]])


def sampled(name, distribution, *names_and_shapes):
    """A program of independent standard normal arrays, and a variable drawn given them."""

    def program(t):
        t.sample(name, distribution(*(t.sample(other, Normal(), shape) for other, shape in names_and_shapes)))

    return program


def computed(function, *shapes):
    """The value y of a function of standard normal arrays x0, x1, ..."""

    def program(t):
        t.deterministic(
            function(*(t.sample(f"x{k}", Normal(), shape) for k, shape in enumerate(shapes))), name="y"
        )

    return program


def selected(t):
    x, k = t.sample("x", Normal(), 3), t.sample("k", Categorical(3))
    t.sample("y", Normal(x[k], 0.1))


def mixture(t):
    mu, z = t.sample("mu", Normal(0, 3), 3), t.sample("z", Categorical(3), 4)
    t.sample("y", Normal(mu[z], 0.3))


def chosen_by_a_coin(t):
    x, b = t.sample("x", Normal(), 2), t.sample("b", Bernoulli(0.5))
    t.deterministic(np.where(b, x[0], x[1]), name="y")


def chain(t):
    x = t.empty("x", (4, 3))
    x[0] = t.sample(Normal(), shape=3)
    for k in range(1, 4):
        x[k] = t.sample(Normal(0.9 * x[k - 1], 1))


def coupled_chains(t):
    x = t.empty("x", (3, 3))
    x[0] = t.sample(Normal(), shape=3)
    for k in range(1, 3):
        x[k] = t.sample(Normal(0.9 * x[k - 1] + x[k - 1].mean(), 1))


def plates(t, other=1.0):
    mean, spread = t.sample("mean", Normal(0, 5)), t.sample("spread", Uniform(0, 3))
    theta = t.sample("theta", Normal(mean, spread), 3)
    x = t.empty("x", (3, 4))
    for i in range(3):
        for j in range(4):
            x[i, j] = t.sample(Normal(theta[i], other if j == 3 else 1.0))


def factorisation(t, rows=3, columns=4, rank=2, products=True):
    A, R = t.sample("A", Uniform(0, 1), (rows, rank)), t.sample("R", Bernoulli(0.3), (rank, columns))
    if products:
        C = t.deterministic(A[:, None, :] * R.T[None], name="C")
        t.deterministic(C.sum(2), name="E")
    else:
        t.deterministic(A @ R, name="E")


class Weighted(Distribution):
    """A normal distribution whose scales are no parameter, so that nothing can be said of its entries."""

    def __init__(self, scales):
        super().__init__(mean=0.0)
        self.scales = np.asarray(scales)

    def draw(self, parameters, shape, drawing):
        return parameters["mean"] + self.scales * drawing.normal(shape)


def of_two_classes(t):
    x = t.empty("x", 2)
    x[0], x[1] = t.sample(Normal(0, 1)), t.sample(Uniform(0, 1))


def of_one_class(t):
    x = t.empty("x", 2)
    for k in range(2):
        x[k] = t.sample(Normal(0, 1))


PROGRAMS = {
    "a matrix product": (sampled("y", lambda x: Normal(WEIGHTS @ x, 0.1), ("x", 3)), set()),
    "a line": (sampled("y", lambda w: Normal(w[0] + w[1] * np.arange(4), 0.1), ("w", 2)), set()),
    "a weighted sum": (computed(lambda x: (WEIGHTS[0] * x).sum(), 3), set()),
    "a sum": (computed(lambda x: x.sum(), 3), {"x0.0"}),
    "a sum in any order": (computed(lambda x: 0.1 + x[2] + (x[0] + x[1]), 3), {"x0.0"}),
    "a difference": (computed(lambda x: x[0] - x[1], 2), set()),
    "a distance": (computed(lambda x: abs(x[0] - x[1]), 2), {"x0.0"}),
    "a mixed sum": (computed(lambda x: x[0] + x[1] ** 2 + np.exp(x[2]), 3), set()),
    "a maximum": (computed(lambda x: x.max(), 3), {"x0.0"}),
    "a position": (computed(lambda x: np.argmax(x), 3), set()),
    "sorting": (computed(np.sort, 4), {"x0.0"}),
    "centring": (computed(lambda x: x - x.mean(), 4), set()),
    "entries one by one": (computed(lambda x: 2 * x, 4), {"x0.0 y.0"}),
    "a product of two arrays": (computed(lambda x, y: (x * y).sum(), 3, 3), set()),
    "a product of two rows": (computed(lambda x: (x[0] * x[1]).sum(), (2, 3)), {"x0.0"}),
    "scales": (lambda t: t.sample("x", Normal(0, [0.1, 1, 10])), set()),
    "almost equal scales": (lambda t: t.sample("x", Normal(0, [1, 1, 1.001])), set()),
    "tiny unequal scales": (lambda t: t.sample("x", Normal(0, [1e-12, 2e-12])), set()),
    "one scale": (lambda t: t.sample("x", Normal(0, [2.0, 2.0, 2.0])), {"x.0"}),
    "coins": (lambda t: t.sample("b", Bernoulli([0.1, 0.9])), set()),
    "equal coins": (lambda t: t.sample("b", Bernoulli(0.1), 3), {"b.0"}),
    "dice": (lambda t: t.sample("z", Categorical(2, [[0.1, 0.9], [0.9, 0.1]])), set()),
    "equal dice": (lambda t: t.sample("z", Categorical(2, [[0.1, 0.9], [0.1, 0.9]])), {"z.0"}),
    "constants": (lambda t: (t.sample("x", Normal()), t.deterministic(np.arange(3.0), name="c")), set()),
    "an index": (selected, set()),
    "a mixture": (mixture, {"z.0 y.0"}),
    "a coin that selects": (chosen_by_a_coin, set()),
    "chains": (chain, {"x.1"}),
    "coupled chains": (coupled_chains, set()),
    "plates": (plates, {"theta.0 x.0", "x.1"}),
    "plates with an exception": (lambda t: plates(t, 2.0), {"theta.0 x.0"}),
    "permutations": (lambda t: t.sample("P", Permutation(3), 2), {"P.0", "P.1", "P.2"}),
    "a factorisation": (factorisation, {"A.0 C.0 E.0", "R.1 C.1 E.1", "A.1 R.0 C.2"}),
    "a factorisation without products": (lambda t: factorisation(t, products=False), {"A.0 E.0", "R.1 E.1"}),
    "two distributions": (of_two_classes, set()),
    "one distribution, drawn one by one": (of_one_class, {"x.0"}),
    "a distribution of its own": (lambda t: t.sample("x", Weighted([1.0, 2.0])), set()),
    "a program that fails": (lambda t: t.sample("y", Normal(0, t.sample("x", Normal(), 3).sum())), set()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_indices_are_shared_exactly_where_the_program_treats_them_alike(name):
    program, expected = PROGRAMS[name]
    traced = unn.trace(program)
    symmetries = traced.graph.symmetries()
    places = {frozenset(f"{part.variable}.{part.axis}" for part in symmetry.parts) for symmetry in symmetries}
    assert places == {frozenset(text.split()) for text in expected}
    assert all(is_invariant(traced.tape, symmetry) for symmetry in symmetries)


# -- laws by brute force -------------------------------------------------------------------------------------


def automorphisms(traced):
    """All permutations of nodes that keep the mask, and the embeddings that the reported symmetries share."""
    graph = traced.graph
    adjacency = graph.adjacency()
    embeddings = embedding_indices(adjacency, graph.symmetries())
    mask = adjacency.dense()
    groups = [torch.nonzero(embeddings == number).flatten() for number in embeddings.unique()]
    for orders in itertools.product(*(itertools.permutations(group.tolist()) for group in groups)):
        moved = torch.empty(adjacency.count, dtype=torch.int64)
        for group, order in zip(groups, orders):
            moved[group] = torch.tensor(order)
        if torch.equal(mask[moved][:, moved], mask):
            yield moved.numpy()


@st.composite
def linear_programs(draw):
    """Arrays of a linear Gaussian program: name, shape, weights of all earlier entries, means, scales.

    Weights, means and scales are equal or not, so that programs with many symmetries and with none occur.
    """
    arrays = []
    total = 0
    for name in "xyz"[: draw(st.integers(2, 3))]:
        shape = draw(st.sampled_from([(2,), (3,), (2, 2), ()] if total else [(2,), (3,), (2, 2)]))
        if total + int(np.prod(shape)) > 7:
            break
        count = int(np.prod(shape))
        numbers = st.sampled_from([1.0, 1.0, 1.0, 2.0])
        weights = np.zeros((count, total))
        start = 0
        for _, other, *_ in arrays:
            size = int(np.prod(other))
            block = np.full((count, size), 0.0)
            kind = draw(st.sampled_from(["none", "sum", "sums", "dense", "own", "centred"]))
            if kind == "sum":
                block[:] = [draw(numbers) for _ in range(size)]
            elif kind == "sums":
                block[:] = np.array([draw(numbers) for _ in range(count)])[:, None]
            elif kind == "dense":
                block[:] = np.array([draw(numbers) for _ in range(size * count)]).reshape(count, size)
            elif size == count:
                block[:] = np.eye(size) * draw(numbers) - (0.25 if kind == "centred" else 0)
            weights[:, start : start + size] = block
            start += size
        means = np.array([draw(st.sampled_from([0.0, 0.0, 0.0, 1.0])) for _ in range(count)])
        scales = np.array([draw(numbers) for _ in range(count)]) * draw(
            st.sampled_from([0.0, 1.0] if total else [1.0])
        )
        arrays.append((name, shape, weights, means, scales))
        total += count
    return arrays


def linear_program(t, arrays):
    values = []
    for name, shape, weights, means, scales in arrays:
        inputs = np.concatenate([value.ravel() for value in values]) if values else np.zeros(0)
        # entry by entry, so that a weight of zero is no dependence
        entries = [
            sum((w * inputs[k] for k, w in enumerate(row) if w), mean) for row, mean in zip(weights, means)
        ]
        mean = np.stack(entries).reshape(shape) if values else means.reshape(shape)
        if scales.any():
            values.append(t.sample(name, Normal(mean, scales.reshape(shape))))
        else:
            values.append(t.deterministic(mean, name=name))


def gaussian_law(arrays):
    """Mean and covariance of all nodes."""
    total = sum(len(means) for *_, means, _ in arrays)
    mean, mixing = np.zeros(total), np.zeros((total, total))
    start = 0
    for _, _, weights, means, scales in arrays:
        rows = slice(start, start + len(means))
        mean[rows] = means + weights @ mean[:start]
        mixing[rows] = weights @ mixing[:start]
        mixing[rows, rows] += np.diag(scales)
        start += len(means)
    return mean, mixing @ mixing.T


@given(arrays=linear_programs())
@settings(max_examples=60, deadline=None)
def test_a_network_that_shares_embeddings_can_represent_the_law_of_a_linear_program(arrays):
    traced = unn.trace(linear_program, arrays)
    mean, covariance = gaussian_law(arrays)
    for moved in automorphisms(traced):
        np.testing.assert_allclose(mean[moved], mean, atol=1e-9)
        np.testing.assert_allclose(covariance[np.ix_(moved, moved)], covariance, atol=1e-9)


PROBABILITIES = {
    "equal": lambda b, z, j: 0.3 + 0 * sum(b),
    "own": lambda b, z, j: 0.2 + 0.6 * b[j],
    "average": lambda b, z, j: 0.1 + 0.8 * sum(b) / len(b),
    "weighted": lambda b, z, j: 0.1 + 0.2 * b[0] + 0.5 * b[1],
    "own and average": lambda b, z, j: 0.1 + 0.4 * b[j] + 0.4 * sum(b) / len(b),
    "by place": lambda b, z, j: (1 + j + sum(b)) / 9,
    "selected": lambda b, z, j: 0.1 + 0.7 * sum((z == k) * b[k] for k in range(len(b))),
    "rare": lambda b, z, j: 0.5 + 0.4 * b[0] * b[1] * (1 - b[-1]),
}


def binary_program(t, priors, options, rule, children):
    b = t.sample("b", Bernoulli(np.array(priors)))
    z = t.sample("z", Categorical(len(options), options))
    c = t.empty("c", children)
    for j in range(children):
        c[j] = t.sample(Bernoulli(PROBABILITIES[rule](b, z, j % len(priors))))


def binary_law(priors, options, rule, children):
    """The probability of each joint value of b, z and c, shape ``(2, ..., options, 2, ...)``."""
    law = np.zeros([2] * len(priors) + [len(options)] + [2] * children)
    for values in np.ndindex(*law.shape):
        b, z, c = values[: len(priors)], values[len(priors)], values[len(priors) + 1 :]
        terms = [p if x else 1 - p for p, x in zip(priors, b)] + [options[z]]
        for j, x in enumerate(c):
            p = PROBABILITIES[rule](b, z, j % len(priors))
            terms.append(p if x else 1 - p)
        law[values] = np.prod(terms)
    return law


@given(
    priors=st.lists(st.sampled_from([0.1, 0.1, 0.1, 0.001]), min_size=2, max_size=3),
    rule=st.sampled_from(sorted(PROBABILITIES)),
    children=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_a_network_that_shares_embeddings_can_represent_the_law_of_a_program_of_coins(priors, rule, children):
    options = [1 / len(priors)] * len(priors)
    traced = unn.trace(binary_program, priors, options, rule, children)
    law = binary_law(priors, options, rule, children)
    for moved in automorphisms(traced):
        np.testing.assert_allclose(law.transpose(moved), law, atol=1e-12)


def test_a_coin_that_is_rarely_tossed_otherwise_tells_its_place():
    def program(t):
        b = t.sample("b", Bernoulli(1e-4), 3)
        t.deterministic(b[0] & b[1] & ~b[2], name="y")

    assert unn.trace(program).graph.symmetries() == []


@pytest.mark.parametrize("entries", [40, 100, 150, 400])
def test_one_option_of_many_by_which_entries_differ_is_seen_in_programs_of_any_size(entries):
    def program(t):
        site = t.sample("site", Categorical(30))
        table = np.random.default_rng(1).dirichlet(np.ones(60), 30)
        t.sample("code", Categorical(t.constant(table)[site]), entries)
        shift = np.zeros((30, 3))
        shift[19] = [5.0, -2.0, 0.0]
        t.sample("lab", Normal(t.constant(shift)[site], 1.0))

    (symmetry,) = unn.trace(program).graph.symmetries()
    assert symmetry.size == entries


def test_draws_of_unshared_programs_and_random_numbers_of_others_are_unchanged():
    """Verification has random numbers of its own."""
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(2), np.random.rand(2)
    torch.manual_seed(3)
    np.random.seed(3)
    unn.trace(mixture)
    assert torch.equal(torch.rand(2), expected[0]) and np.array_equal(np.random.rand(2), expected[1])


def test_what_is_not_shared_is_part_of_the_declaration():
    graph = unn.trace(PROGRAMS["a line"][0]).graph
    (factor,) = graph.factors.values()
    assert str(factor) == "y[j] depends on w[i] (i, j ordered)"
    assert str(factor) in graph.explain()
    (alone,) = unn.trace(PROGRAMS["scales"][0]).graph.factors.values()
    assert str(alone) == "x[i] depends on nothing (i ordered)"
    frame = unn.Denoiser(graph, width=8, heads=2, depth=1).frame()
    assert frame.symmetries == frame.candidates == []


# -- learning ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_with_default_embeddings_learns_the_posterior_mean_of_a_line():
    """Intercept and slope are told apart, and so are the points, whose abscissae are constants of the
    program."""
    abscissae, noise, steps, batch = np.linspace(-1, 1, 6), 0.3, 1000, 64

    def line(t):
        w = t.sample("w", Normal(), 2)
        t.sample("y", Normal(w[0] + w[1] * abscissae, noise))

    traced = unn.trace(line)
    torch.manual_seed(0)
    model = Regressor(unn.Denoiser(traced.graph, width=32, depth=2, heads=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drawn = traced.draw(steps * batch, torch.Generator().manual_seed(0))
    observed = {"y": torch.ones(1, 6, dtype=torch.bool)}
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        loss = model.loss({name: x[rows] for name, x in drawn.items()}, observed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    y = traced.draw(400, torch.Generator().manual_seed(1))["y"]
    design = torch.stack([torch.ones(6), torch.tensor(abscissae, dtype=y.dtype)], 1)
    mean = torch.linalg.solve(design.T @ design + noise**2 * torch.eye(2), design.T @ y.T).T
    error = (model.sample({"y": y}, 400)["w"] - mean).square().mean(0).sqrt()
    assert (error < 0.15).all(), error


@pytest.mark.parametrize("kind", ["many nodes", "one node"])
def test_vectors_are_exchangeable_where_the_program_treats_them_alike(kind):
    covariance, one = [[2.0, 0.5], [0.5, 1.0]], kind == "one node"

    def alike(t):
        m = t.sample("m", Normal())
        x = t.sample("x", MultivariateNormal([m, 1.0], covariance, one_node=one), 3)
        t.sample("y", Normal(x[:, 0] - 2 * x[:, 1], 1.0))

    def shifted(t):
        m = t.sample("m", Normal())
        means = np.stack([m + np.arange(3.0), np.zeros(3)], 1)
        t.sample("x", MultivariateNormal(means, covariance, one_node=one))

    assert [symmetry.size for symmetry in unn.trace(alike).graph.symmetries()] == [3]
    assert not unn.trace(shifted).graph.symmetries()


@pytest.mark.parametrize("rows", [(0, 1), (0, 3), (1, 2), (2, 1)])
def test_columns_of_two_coupled_rows_are_ordered_wherever_these_rows_are(rows):
    coupled, other = rows
    rest = [i for i in range(4) if i not in rows]

    def program(t):
        X = t.sample("X", Normal(), (4, 3))
        t.sample("y", Normal(X[rest[0]].sum() + X[rest[1]].sum() + (X[coupled] * X[other]).sum(), 0.1))

    assert not unn.trace(program).graph.symmetries()


def test_columns_of_rows_that_are_summed_are_exchangeable():
    def program(t):
        X = t.sample("X", Normal(), (4, 3))
        t.sample("y", Normal((X * np.arange(1.0, 5.0)[:, None]).sum(), 0.1))

    assert [symmetry.size for symmetry in unn.trace(program).graph.symmetries()] == [3]


def differences(t, n=4, symmetric=False):
    y = t.sample("y", Normal(), n)
    apart = np.abs(y[:, None] - y[None, :]) if symmetric else y[:, None] - y[None, :]
    return t.sample("x", Normal(apart, 0.5))


def noisy_differences(t, symmetric=False):
    t.sample("o", Normal(differences(t, symmetric=symmetric), 1.0))


def wins(t, n=4):
    s = t.sample("s", Normal(0, 1.5), n)
    t.sample("w", Bernoulli(1 / (1 + np.exp(s[None, :] - s[:, None]))))


def added_to_its_transpose(t, n=3):
    a = t.sample("a", Normal(), (n, n))
    t.sample("b", Normal(a + 2 * a.T, 1))


def product_of_differences(t):
    x = t.sample("x", Normal(), (2, 2, 2))
    t.sample("y", Normal((x[0] - x[1]).prod(), 1))


@pytest.mark.parametrize("program", [differences, wins, added_to_its_transpose, product_of_differences])
def test_nodes_with_equal_neighbours_and_another_law_share_no_embedding(program):
    traced = unn.trace(program)
    adjacency = traced.graph.adjacency()
    embeddings, matrix = embedding_indices(adjacency, traced.graph.symmetries()), adjacency.dense()
    x = traced.draw(8, seed=0, dtype=torch.float64)
    flat = torch.cat([value.reshape(8, -1) for value in x.values()], 1)
    before = traced.log_prob(x)
    for one, other in itertools.combinations(range(adjacency.count), 2):
        order = torch.arange(adjacency.count)
        order[[one, other]] = order[[other, one]]
        if embeddings[one] != embeddings[other] or not torch.equal(matrix[order][:, order], matrix):
            continue
        parts = flat[:, order].split([value[0].numel() for value in x.values()], 1)
        moved = {n: part.reshape(v.shape) for (n, v), part in zip(x.items(), parts, strict=True)}
        torch.testing.assert_close(traced.log_prob(moved), before)


def test_pairs_whose_law_is_symmetric_share_embeddings_and_others_none():
    symmetric = unn.trace(lambda t: differences(t, symmetric=True)).graph
    assert [s.name for s in symmetric.symmetries()] == ["y.i x.i x.j"]
    graph = unn.trace(differences).graph
    assert graph.symmetries() == []
    (factor,) = graph.factors.values()
    assert factor.ordered_letters() == {"i", "j"}


def test_pairs_with_neighbours_of_their_own_are_compared_with_their_transposes():
    symmetric = unn.trace(lambda t: noisy_differences(t, symmetric=True)).graph
    assert [s.size for s in symmetric.symmetries()] == [4]
    assert unn.trace(noisy_differences).graph.symmetries() == []


def test_independent_nodes_and_points_of_a_regression_still_share_embeddings():
    def regression(t):
        w = t.sample("w", Normal(), 3)
        X = t.sample("X", Normal(), (6, 3))
        t.sample("y", Normal(X @ w, 1))

    def points(t):
        theta = t.sample("theta", Normal(), 2)
        t.sample("x", Normal(np.broadcast_to(theta, (5, 2)) * np.array([1.0, 2.0]), 1))

    assert {s.size for s in unn.trace(regression).graph.symmetries()} == {6}
    assert {s.size for s in unn.trace(points).graph.symmetries()} >= {5}
