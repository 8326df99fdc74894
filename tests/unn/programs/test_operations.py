"""Operations of traced programs: their values, and what they depend on."""

import numpy as np
import pytest
import torch
from support.tracing import check_edges, seeded

import unn
from unn.errors import DeclarationError
from unn.programs import Bernoulli, Categorical, Normal, Poisson

OPERATIONS = {
    "arithmetic": lambda x, y: 2 * x - x / (1 + abs(y[:3, None])) + x**2 % 3 - (-x) // 2,
    "comparisons": lambda x, y: (x > y[0]) & ~(x < 0) | (x <= y[2]) ^ (x >= 1),
    "equality": lambda x, y: (np.floor(x) == np.floor(y)) ^ (np.floor(x) != np.floor(2 * y[1])),
    "sum of truth values": lambda x, y: (x[0] > 0) + (x[1] > 0) - (x[2] > 0) * 2,
    "ufuncs": lambda x, y: np.exp(x) + np.tanh(y) * np.log1p(np.abs(x)) + np.maximum(x, y) + np.hypot(x, 1),
    "sum": lambda x, y: np.sum(x, axis=0) + x.sum() + x.sum(axis=1, keepdims=True),
    "mean of some": lambda x, y: np.mean(x[1:, ::2], axis=(0, 1)) + np.std(x, axis=-1, ddof=1),
    "extremes": lambda x, y: np.max(x, axis=0) - np.min(x) + np.ptp(y),
    "median": lambda x, y: np.median(x, axis=1),
    "product": lambda x, y: np.prod(x[:, :2], 1),
    "positions": lambda x, y: np.argmax(x, axis=1) + np.argmin(y),
    "truth": lambda x, y: np.any(x > 1, axis=0) & np.all(y > -2),
    "counts": lambda x, y: np.count_nonzero(x > 0, axis=1),
    "scan": lambda x, y: np.cumsum(x, axis=1) + np.cumprod(y),
    "flat scan": lambda x, y: np.cumsum(x),
    "sorted": lambda x, y: np.sort(x) + np.sort(x, axis=0),
    "order": lambda x, y: np.argsort(y),
    "differences": lambda x, y: np.diff(x) + np.diff(x, n=3, axis=1)[:, :1],
    "choice": lambda x, y: np.where(x > 0, y, x[:, :1]),
    "clipped": lambda x, y: np.clip(x, -0.5, y),
    "rounded": lambda x, y: np.round(x, 1),
    "rounded numbers": lambda x, y: round(x[0, 0], 1) + round(y[1]),
    "other types": lambda x, y: (x > 0).astype(int) + (y > 0).astype(float) * np.floor(y).astype(bool),
    "matrix and vector": lambda x, y: x @ y,
    "vector and matrix": lambda x, y: x[:, 0] @ x,
    "vectors": lambda x, y: np.dot(y, y[::-1]) + y @ y + np.inner(y, y) + np.vdot(y, x[0]),
    "matrices": lambda x, y: np.matmul(x, x.T),
    "stacked matrices": lambda x, y: np.stack([x, 2 * x]) @ x[0],
    "stacked by vector": lambda x, y: x[0] @ np.stack([x.T, 2 * x.T]),
    "constant matrix": lambda x, y: np.arange(1.0, 13.0).reshape(4, 3) @ x,
    "outer": lambda x, y: np.outer(x[:, 0], y) + np.multiply.outer(x[:, 1], y),
    "einsum": lambda x, y: np.einsum("ik,jk->ij", x, x) + np.einsum("ij,j", x, y)[:, None],
    "einsum of a long diagonal": lambda x, y: np.einsum("iiij->j", np.stack([np.stack([x[:, :3]] * 3)] * 3)),
    "einsum of a diagonal": lambda x, y: np.einsum("ii,i->i", x[:, 1:], y[1:]) + np.einsum("ii", x[:, 1:]),
    "reduction of a ufunc over all axes": lambda x, y: (
        np.add.reduce(x, axis=None) + np.maximum.reduce(y, None)
    ),
    "reduction of a ufunc": lambda x, y: np.logaddexp.reduce(x, axis=1) + np.add.reduce(x[:, :3]),
    "shapes": lambda x, y: np.reshape(x, (2, 6)).T.ravel()[::-1].reshape(4, 3) + np.swapaxes(x, 0, 1),
    "moved": lambda x, y: (
        np.flip(np.roll(x, 1, axis=1), 0) + np.expand_dims(y, 0) + np.broadcast_to(y, (3, 4))
    ),
    "joined": lambda x, y: np.concatenate([x, y[None], np.ones((1, 4))]),
    "stacked": lambda x, y: np.vstack([np.stack([y, x[0]], axis=0), np.hstack([x[:, :2], x[:, 2:]])]),
    "blocks": lambda x, y: np.block([[x[:2, :2], x[:2, 2:]], [x[:1, :2], x[:1, 1:3]]]),
    "triangle": lambda x, y: np.tril(x) + np.diag(y)[:3],
    "methods of ndarrays": lambda x, y: (
        x.std(0, ddof=1)
        + x.var(1).repeat(2)[:4]
        + x.argmax(0)
        + y.argmin()
        + x.cumprod(1)[0]
        + x.clip(-0.5, 0.5)[1]
        + x.round(1)[2]
        + x.dot(y).take([0, 1, 2, 1])
        + x[:1].squeeze()
        + x.swapaxes(0, 1).flatten()[:4]
    ),
    "methods": lambda x, y: (
        x.prod(0)
        + x.mean(1).max()
        - x.min(axis=0)
        + x.cumsum(1)[0]
        + (x > 0).any(0)
        + (x > -1).all()
        + np.shape(x)[0]
    ),
    "zero dimensional": lambda x, y: (
        np.sum(y[0]) + np.max(x[0, 0]) + np.dot(2, y[1]) + np.argmax(x[1]) + np.ones_like(y)[0] + np.size(x)
    ),
    "takes": lambda x, y: np.take(x, [0, 5, -1]) + np.take(x, [1, 2, 0], axis=1)[0],
    "repeated": lambda x, y: np.repeat(y, 2) + np.tile(y, 2),
    "lists": lambda x, y: np.concatenate(
        [y[[0, 2]], x[[0, 1], [1, 2]], x[1, np.array([True, False, True, False])]]
    ),
    "new axes": lambda x, y: x[..., None][:, 1] + y[None, :, None][0, 2],
    "python": lambda x, y: sum(row[0] for row in x) + sum(y) + len(x) + x.ndim + x.size,
    "in place": lambda x, y: _added(x, y),
    "empty": lambda x, y: x[0] + np.sum(x[:, 4:]) + np.zeros_like(y),
}


def _added(x, y):
    total = x[0] + 0
    total += y
    total *= 2
    return total


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_agree_with_numpy_in_value_and_in_what_they_depend_on(name):
    operation = OPERATIONS[name]

    def program(t):
        x, y = t.sample("x", Normal(), (3, 4)), t.sample("y", Normal(), 4)
        t.deterministic(operation(x, y), name="z")

    traced = unn.trace(program)
    check_edges(traced)
    drawn = {key: value.numpy() for key, value in traced.draw(40, seeded(1), torch.float64).items()}
    x, y, z = drawn["x"], drawn["y"], drawn["z"]

    def evaluated(x, y):
        # numpy reads + of truth values as "or", a program as a sum
        plain = (
            [np.asarray(operation(_Counting(a), b)) for a, b in zip(x, y)]
            if "truth values" in name
            else [operation(a, b) for a, b in zip(x, y)]
        )
        return np.array(plain, dtype=float)

    before = evaluated(x, y)
    np.testing.assert_allclose(z, before, rtol=1e-12, atol=1e-12)
    rng = np.random.default_rng(0)
    expected = set()
    for key, values in (("x", x), ("y", y)):
        for place in np.ndindex(*values.shape[1:]):
            changed = np.zeros(z.shape[1:], dtype=bool)
            for _ in range(8):
                other = values.copy()
                other[(slice(None), *place)] = rng.normal(size=40) * 3
                pair = (other, y) if key == "x" else (x, other)
                changed |= (abs(evaluated(*pair) - before) > 1e-9).any(0)
            parent = f"{key}[{','.join(map(str, place))}]"
            expected |= {
                (parent, f"z[{','.join(map(str, i))}]" if z.ndim > 1 else "z")
                for i in np.ndindex(*z.shape[1:])
                if changed[i]
            }
    assert set(traced.edges) == expected


class _Counting(np.ndarray):
    """Comparisons of it are counts."""

    def __new__(cls, x):
        return np.asarray(x).view(cls)

    def __gt__(self, other):
        return np.asarray(self).__gt__(other).astype(int)


def test_a_mask_of_the_entries_is_no_index():
    def masked(t):
        x = t.sample("x", Normal(), 4)
        t.deterministic(x[x > 0].sum(), "s")

    with pytest.raises(DeclarationError, match="truth values.*np.where"):
        unn.trace(masked)

    def constant(t):
        x = t.sample("x", Normal(), 4)
        t.sample("y", Normal(t.constant(np.arange(4.0))[x > 0].sum(), 1))

    with pytest.raises(DeclarationError, match="truth values"):
        unn.trace(constant)


def test_truth_values_select_one_of_two_entries():
    def assigned(t):
        z, mu = t.sample("z", Bernoulli(0.5), 6), t.sample("mu", Normal(), 2)
        t.deterministic(mu[z], "chosen")

    draws = unn.trace(assigned).draw(50, seed=0)
    assert torch.equal(draws["chosen"], draws["mu"].gather(1, draws["z"].long()))


@pytest.mark.parametrize(
    "index", [lambda w: (0, slice(None), w), lambda w: (w, slice(1, 3), 2), lambda w: (w, None, 0)]
)
def test_numbers_that_a_slice_separates_from_an_array_are_refused(index):
    table = np.arange(60.0).reshape(3, 4, 5)

    def separated(t):
        w = t.sample("w", Categorical(probabilities=[1 / 3] * 3), 5)
        t.sample("y", Normal(t.constant(table)[index(w)].sum(), 1))

    with pytest.raises(DeclarationError, match="a slice between"):
        unn.trace(separated)


def test_numbers_beside_an_array_select_as_numpy_does():
    table = np.arange(60.0).reshape(3, 4, 5)

    def beside(t):
        w = t.sample("w", Categorical(probabilities=[1 / 3] * 3), 7)
        t.deterministic(t.constant(table)[w, 2], "chosen")

    draws = unn.trace(beside).draw(20, seed=0)
    expected = torch.from_numpy(table[draws["w"].argmax(-1).numpy(), 2]).float()
    torch.testing.assert_close(draws["chosen"], expected)


@pytest.mark.parametrize("bounds", [{"a_min": -1, "a_max": 1}, {"min": -1, "max": 1}, {"min": -1}])
def test_clip_has_the_bounds_of_numpy_by_name(bounds):
    def clipped(t):
        t.deterministic(np.clip(t.sample("x", Normal(0, 3), 5), **bounds), "y")

    draws = unn.trace(clipped).draw(20, seed=0)
    torch.testing.assert_close(draws["y"], draws["x"].clamp(-1, bounds.get("a_max", bounds.get("max"))))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.diff(x, prepend=0),
        lambda x: np.clip(x, low=0),
        lambda x: np.zeros_like(x, dtype=float),
        lambda x: np.take(x, 0, mode="clip"),
    ],
)
def test_arguments_that_are_not_recorded_are_refused_by_name(call):
    with pytest.raises(DeclarationError, match=r"program: np\.\w+ of a value computed from 'x.*argument"):
        unn.trace(lambda t: call(t.sample("x", Normal(), 3)))


def test_powers_of_whole_numbers_with_drawn_or_negative_exponents_are_real():
    def program(t):
        z = t.sample("z", Poisson(25), 3)
        t.deterministic(2 ** (-z), name="small")
        t.deterministic(10**z, name="large")
        t.deterministic((z + 1) ** -2, name="inverse")
        t.deterministic(z**2, name="square")

    draws = unn.trace(program).draw(20, seed=0, dtype=torch.float64)
    z = draws["z"]
    torch.testing.assert_close(draws["small"], 2.0 ** (-z))
    torch.testing.assert_close(draws["large"], 10.0**z)
    torch.testing.assert_close(draws["inverse"], (z + 1) ** -2)
    torch.testing.assert_close(draws["square"], z**2)


@pytest.mark.parametrize("function", [np.argmax, np.argmin])
def test_the_place_of_the_largest_of_all_entries_keeps_the_axes_that_are_asked_for(function):
    def program(t):
        x = t.sample("x", Normal(), (2, 3))
        t.deterministic(function(x, keepdims=True), name="place")
        t.deterministic(function(x), name="number")

    draws = unn.trace(program).draw(10, seed=0, dtype=torch.float64)
    expected = np.stack([function(x, keepdims=True) for x in draws["x"].numpy()])
    assert np.array_equal(draws["place"].numpy(), expected)
    assert np.array_equal(draws["number"].numpy(), expected[:, 0, 0])


def test_sums_of_counts_that_64_bits_do_not_hold_are_real_numbers():
    def program(t):
        k = t.sample("k", Poisson(1.5e9), 5)
        t.deterministic((k * k).sum(), "sum")
        t.deterministic(np.add.reduce(k * k), "reduced")
        t.deterministic(np.cumsum(k * k)[-1], "scanned")
        t.deterministic(k * k + k * k + k * k + k * k + k * k, "plus")
        t.deterministic(-(k * k) - k * k - k * k - k * k - k * k, "minus")
        t.deterministic(k @ k, "product")
        t.deterministic(np.dot(k, k), "dot")
        t.deterministic(np.einsum("i,i->", k, k), "contracted")
        few = t.sample("few", Poisson(9e5), 20)
        t.deterministic(np.einsum("i,i,i->", few, few, few), "thrice")
        # what is small stays whole, as an index must
        table = t.constant(np.arange(9.0))
        t.deterministic(table[(k - k).sum() + (k - k) @ (k - k)], "indexed")

    draws = unn.trace(program).draw(20, seed=0, dtype=torch.float64)
    squares = draws["k"].square()
    whole = {"sum", "reduced", "scanned", "product", "dot", "contracted"}
    for name in whole:
        torch.testing.assert_close(draws[name], squares.sum(1))
    torch.testing.assert_close(draws["thrice"], draws["few"].pow(3).sum(1))
    torch.testing.assert_close(draws["plus"], 5 * squares)
    torch.testing.assert_close(draws["minus"], -5 * squares)
    assert not bool(draws["indexed"].any())


def test_products_of_counts_that_64_bits_do_not_hold_are_real_numbers():
    def program(t):
        k = t.sample("k", Poisson(60.0), 12)
        t.deterministic(k[0] ** 12, "power")
        t.deterministic(np.prod(k), "product")
        t.deterministic(np.multiply.reduce(k), "reduced")
        t.deterministic(np.cumprod(k)[-1], "scanned")
        t.deterministic(k[0] ** 6 * k[1] ** 6, "times")
        t.deterministic(np.square(k[0] ** 6), "square")
        # what is small stays whole, as an index must
        table = t.constant(np.arange(200.0))
        t.deterministic(table[np.prod(k[:2]) - k[0] * k[1]], "indexed")

    draws = unn.trace(program).draw(20, seed=0, dtype=torch.float64)
    k = draws["k"]
    for name, expected in {
        "power": k[:, 0] ** 12,
        "product": k.prod(1),
        "reduced": k.prod(1),
        "scanned": k.prod(1),
        "times": k[:, 0] ** 6 * k[:, 1] ** 6,
        "square": k[:, 0] ** 12,
        "indexed": torch.zeros(20, dtype=torch.float64),
    }.items():
        torch.testing.assert_close(draws[name], expected, rtol=1e-12, atol=0)
