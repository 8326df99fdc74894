"""Multilinear factors against a loop over all index assignments."""

import itertools
import math
import operator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import unn
import unn.ops.contraction as lowering
from factors import Multilinear
from unn.testing import FactorContract

BATCH = 2
RELATIONS = {"!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


# -- the oracle ----------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A factor and what the oracle needs to know of it, none of it computed by the package.

    Attributes:
        factor: under test.
        values: of all arrays, torch, float64.
        terms: for each reference, the name of its array and, for each axis, its letters and its shift.
        sizes: of the letters that split axes.
        where: left letter, relation, right letter; or None.
    """

    factor: Multilinear
    values: dict
    terms: list
    sizes: dict
    where: tuple | None

    def own_shape(self, name):
        """The shape of an array without its batch axis."""
        rank = next(len(dims) for other, dims in self.terms if other == name)
        return tuple(self.values[name].shape[self.values[name].ndim - rank :])

    def assignments(self):
        """For each assignment of the letters at which every reference lies inside its array: one position for
        each reference."""
        letters = list(dict.fromkeys(x for _, dims in self.terms for group, _ in dims for x in group))
        widest = max([1, *(size for name, _ in self.terms for size in self.own_shape(name))])
        reach = widest + max([0, *(abs(shift) for _, dims in self.terms for _, shift in dims)])
        for index in itertools.product(*(range(self.sizes.get(x, reach)) for x in letters)):
            at = dict(zip(letters, index, strict=True))
            if self.where is not None and not RELATIONS[self.where[1]](at[self.where[0]], at[self.where[2]]):
                continue
            positions = [
                tuple(self.along(group, shift, at) for group, shift in dims) for _, dims in self.terms
            ]
            shapes = [self.own_shape(name) for name, _ in self.terms]
            if all(
                0 <= p < n
                for place, shape in zip(positions, shapes, strict=True)
                for p, n in zip(place, shape, strict=True)
            ):
                yield positions

    def along(self, group, shift, at):
        position = 0
        for x in group:
            position = position * self.sizes.get(x, 0) + at[x]
        return position + shift

    def entry(self, place, position):
        name, dims = self.terms[place]
        value = self.values[name].numpy()
        return value[(..., *position)] if value.ndim > len(dims) else value[position]

    def expected(self):
        """The energy, and the message to each variable, by one product for each assignment."""
        energy = np.zeros(BATCH)
        messages = {name: np.zeros((BATCH, *self.own_shape(name))) for name in self.factor.variables}
        for positions in self.assignments():
            entries = [self.entry(k, position) for k, position in enumerate(positions)]
            energy -= math.prod(entries)
            for k, (name, _) in enumerate(self.terms):
                if name in messages:
                    messages[name][(slice(None), *positions[k])] += math.prod(entries[:k] + entries[k + 1 :])
        return energy, messages


def pattern(dims):
    return " ".join(
        f"({' '.join(group)})" if len(group) > 1 else group[0] + (f"{shift:+d}" if shift else "")
        for group, shift in dims
    )


@st.composite
def cases(draw):
    """Random references: shared and free letters, splits, shifts, diagonals, repeated variables, constants
    with and without batch."""
    sizes = {"R": draw(st.integers(1, 3)), "r": draw(st.integers(1, 2)), "k": draw(st.integers(1, 3))}
    tied = {(x, 0): n for x, n in sizes.items()}
    g = unn.FactorGraph("random", **sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    fresh = itertools.count()

    def axis(size):
        """The letters and shift of an axis whose size is known, or free to be chosen (None)."""
        choices = [((x,), s) for x in "ij" for s in (0, 0, 1, -1, 2)] + [((x,), 0) for x in "kRr"]
        choices += [(group, 0) for group in (("R", "r"), ("r", "R"), ("k", "r"))]
        if size is not None:
            choices = [c for c in choices if extent(c) in (None, size)] + [((f"u{next(fresh)}",), 0)]
        group, shift = draw(st.sampled_from(choices))
        if len(group) == 1:
            tied.setdefault((group[0], shift), draw(st.integers(1, 3)) if size is None else size)
        return (group, shift), extent((group, shift))

    def extent(choice):
        group, shift = choice
        return math.prod(sizes[x] for x in group) if len(group) > 1 else tied.get((group[0], shift))

    def noise(shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    values, terms, references, arrays = {}, [], [], {}
    degree, others = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    for kind in draw(st.permutations(["variable"] * degree + ["other"] * others)):
        again = [name for name in arrays if kind == "variable" and name[0] == "x"]
        name = draw(st.sampled_from(again)) if again and draw(st.booleans()) else None
        known = (
            arrays[name][1]
            if name
            else (None,) * draw(st.sampled_from([0, 1, 1, 2, 2, 3] if degree + others < 5 else [0, 1, 2]))
        )
        dims, shape = [], []
        for size in known:
            dim, length = axis(size)
            dims.append(dim)
            shape.append(length)
        if name is None:
            number = len(arrays)
            axes = " ".join(f"a{number}_{k}" for k in range(len(shape)))
            if kind == "variable":
                name = f"x{number}"
                arrays[name] = g.variable(name, axes, unn.SquaredNorm()), tuple(shape)
                values[name] = noise((BATCH, *shape))
            elif draw(st.booleans()):
                name = f"w{number}"
                arrays[name] = g.parameter(name, axes, init=noise(shape)), tuple(shape)
                values[name] = getattr(g, name).detach()
            else:
                name = f"c{number}"
                arrays[name] = g.constant(name, axes), tuple(shape)
                values[name] = noise((BATCH, *shape) if draw(st.booleans()) else shape)
        terms.append((name, dims))
        references.append(arrays[name][0][pattern(dims)])
    letters = sorted({x for _, dims in terms for group, _ in dims for x in group})
    where = None
    if len(letters) > 1 and draw(st.booleans()):
        left, right = draw(st.permutations(letters))[:2]
        where = left, draw(st.sampled_from(["!=", "<", "!=", "<", ">", "<=", ">="])), right
    factor = Multilinear(*references, where=None if where is None else " ".join(where))
    g.factor(factor)
    return Case(factor, values, terms, sizes, where)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(cases())
def test_energies_and_messages_equal_the_loop_over_all_assignments(case):
    energy, messages = case.expected()
    factor_energy = case.factor.energy(case.values)
    assert factor_energy.shape == (BATCH,)
    torch.testing.assert_close(factor_energy, torch.from_numpy(energy), rtol=1e-10, atol=1e-10)
    for name, expected in messages.items():
        message = case.factor.message(name, case.values)
        assert message.dtype == torch.float64
        torch.testing.assert_close(
            message.expand(expected.shape), torch.from_numpy(expected), rtol=1e-10, atol=1e-10
        )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(cases())
def test_messages_have_one_dimension_for_each_axis_and_a_batch_only_if_an_operand_has_one(case):
    for name in case.factor.variables:
        message = case.factor.message(name, case.values)
        shape = case.own_shape(name)
        assert message.ndim == 1 + len(shape)
        assert all(length in (1, size) for length, size in zip(message.shape[1:], shape, strict=True))
        ranks = {other: len(dims) for other, dims in case.terms}
        names = [other for other, _ in case.terms]
        names.remove(name)
        batched = any(case.values[other].ndim > ranks[other] for other in names)
        assert message.shape[0] == (BATCH if batched else 1)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(cases())
def test_affine_messages_need_only_the_shape_of_an_absent_target(case):
    for name in case.factor.variables:
        if case.factor.affine_in(name):
            absent = {other: x for other, x in case.values.items() if other != name}
            if not absent:
                continue
            message = case.factor.message(name, absent, case.own_shape(name))
            assert torch.equal(message, case.factor.message(name, case.values))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(cases())
def test_degree_counts_occurrences_and_affine_means_one(case):
    names = [name for name, _ in case.terms if name in case.factor.variables]
    for name in case.factor.variables:
        assert case.factor.degree([name]) == names.count(name)
        assert case.factor.affine_in(name) == (names.count(name) == 1)
    assert case.factor.degree(case.factor.variables) == len(names)
    assert case.factor.degree(["unrelated"]) == 0


# -- what random cases may miss ------------------------------------------------------------------------------


def pair(first, second, sizes=None, **options):
    """Two variables of the axes of their patterns, under one factor."""
    g = unn.FactorGraph("pair", **(sizes or {}))
    X = g.variable("X", " ".join(f"a{k}" for k in range(first[1])), unn.SquaredNorm())
    Y = g.variable("Y", " ".join(f"b{k}" for k in range(second[1])), unn.SquaredNorm())
    f = Multilinear(X[first[0]], Y[second[0]], **options)
    g.factor(f)
    return g, f


def noise(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def test_shifts_pair_each_entry_with_its_neighbour():
    _, f = pair(("i", 1), ("i+1", 1))
    x, y = noise(BATCH, 4), noise(BATCH, 6)
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), -(x * y[:, 1:5]).sum(1))
    torch.testing.assert_close(f.message("Y", {"X": x, "Y": y}), torch.nn.functional.pad(x, [1, 1]))
    _, f = pair(("i-2", 1), ("i", 1))
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), -(x * y[:, 2:]).sum(1))


@pytest.mark.parametrize("amount", [1, 2, 5])
def test_a_shift_beyond_the_axis_leaves_no_terms(amount):
    _, f = pair(("i", 1), (f"i+{amount}", 1))
    values = {"X": noise(BATCH, 3), "Y": noise(BATCH, 1)}
    torch.testing.assert_close(f.energy(values), torch.zeros(BATCH, dtype=torch.float64))
    for name, x in values.items():
        torch.testing.assert_close(f.message(name, values).expand(x.shape), torch.zeros_like(x))


def test_a_split_is_slowest_letter_first():
    _, f = pair(("(R r) c", 2), ("R r c", 3))
    x, y = noise(BATCH, 6, 2), noise(BATCH, 3, 2, 2)
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), -(x.view(BATCH, 3, 2, 2) * y).sum((1, 2, 3)))
    torch.testing.assert_close(f.message("X", {"X": x, "Y": y}), y.flatten(1, 2))
    torch.testing.assert_close(f.message("Y", {"X": x, "Y": y}), x.view(BATCH, 3, 2, 2))


def test_the_one_unknown_letter_of_a_split_follows_from_the_axis():
    _, f = pair(("(R r)", 1), ("r", 1))
    x, y = noise(BATCH, 6), noise(BATCH, 2)
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), -(x.view(BATCH, 3, 2).sum(1) * y).sum(1))
    torch.testing.assert_close(f.message("X", {"X": x, "Y": y}).expand(-1, 6), y.repeat(1, 3))


@pytest.mark.parametrize("flip", [False, True])
def test_splits_that_solve_one_another_do_so_in_any_order_of_references(flip):
    g = unn.FactorGraph("chain", s=2)
    X, Y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", unn.SquaredNorm())
    references = [X["(R r)"], Y["(r s)"]]
    f = Multilinear(*(references[::-1] if flip else references))
    g.factor(f)
    x, y = noise(BATCH, 6), noise(BATCH, 4)
    expected = -torch.einsum("bRr,brs->b", x.view(BATCH, 3, 2), y.view(BATCH, 2, 2))
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), expected)


def test_a_split_with_two_unknown_letters_is_refused_by_name():
    _, f = pair(("(R r)", 1), ("(r s)", 1))
    values = {"X": noise(BATCH, 6), "Y": noise(BATCH, 4)}
    with pytest.raises(unn.UnnError, match="Multilinear.*'[Rrs]'"):
        f.energy(values)
    with pytest.raises(unn.UnnError, match="Multilinear.*'[Rrs]'"):
        f.message("X", values)


def test_diagonals_take_equal_indices_and_spread_messages_on_the_diagonal():
    _, f = pair(("i i", 2), ("i", 1))
    x, y = noise(BATCH, 3, 3), noise(BATCH, 3)
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), -(x.diagonal(dim1=1, dim2=2) * y).sum(1))
    torch.testing.assert_close(f.message("X", {"X": x, "Y": y}), torch.diag_embed(y))


def test_shifted_diagonals_take_neighbours_of_one_array():
    g = unn.FactorGraph("band", n=4)
    X = g.variable("X", "n m", unn.SquaredNorm())
    f = Multilinear(X["i i+1"])
    g.factor(f)
    x = noise(BATCH, 4, 4)
    torch.testing.assert_close(f.energy({"X": x}), -x.diagonal(1, 1, 2).sum(1))
    torch.testing.assert_close(
        f.message("X", {"X": x}).expand(1, 4, 4), torch.diag_embed(torch.ones(1, 3, dtype=torch.float64), 1)
    )


@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_conditions_keep_the_terms_that_they_name(relation):
    g = unn.FactorGraph("condition", n=4)
    s = g.variable("s", "n", unn.SignedEntropy())
    W = g.parameter("W", "n m", init=noise(4, 4))
    f = Multilinear(W["i j"], s["i"], s["j"], where=f"i {relation} j")
    g.factor(f)
    kept = torch.tensor(
        [[RELATIONS[relation](i, j) for j in range(4)] for i in range(4)], dtype=torch.float64
    )
    values = {"W": g.W.detach(), "s": noise(BATCH, 4)}
    w = values["W"] * kept
    torch.testing.assert_close(f.energy(values), -torch.einsum("bi,ij,bj->b", values["s"], w, values["s"]))
    torch.testing.assert_close(f.message("s", values), values["s"] @ (w + w.T))


def test_conditions_compare_letters_and_not_positions_of_shifted_axes():
    _, f = pair(("i-1", 1), ("j", 1), where="i < j")
    x, y = noise(BATCH, 3), noise(BATCH, 4)
    expected = -sum(x[:, i - 1] * y[:, j] for i in (1, 2, 3) for j in range(4) if i < j)
    torch.testing.assert_close(f.energy({"X": x, "Y": y}), expected)


def test_a_condition_on_a_single_array_sends_messages_of_its_dtype():
    g = unn.FactorGraph("triangle", n=3)
    X = g.variable("X", "n m", unn.SquaredNorm())
    f = Multilinear(X["i j"], where="i < j")
    g.factor(f)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = noise(BATCH, 3, 3).to(dtype)
        message = f.message("X", {"X": x})
        assert message.dtype == dtype
        assert torch.equal(message.expand(1, 3, 3), torch.ones(1, 3, 3, dtype=dtype).triu(1))


def ordered_pairs():
    g = unn.FactorGraph("pairs", n=4)
    s, W = g.variable("s", "n", unn.SignedEntropy()), g.parameter("W", "n m", init=noise(4, 4))
    f = Multilinear(W["i j"], s["i"], s["j"], where="i < j")
    g.factor(f)
    return g, f


def test_a_condition_seen_first_without_gradients_can_be_trained_with_later():
    g, f = ordered_pairs()
    values = {"W": g.W, "s": noise(BATCH, 4)}
    with torch.inference_mode():
        before = f.energy(values)
    after = f.energy(values)
    after.sum().backward()
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(g.W.grad, -torch.einsum("bi,bj->ij", values["s"], values["s"]).triu(1))


def test_a_condition_seen_first_inside_a_function_transform_holds_outside_of_it():
    g, f = ordered_pairs()
    values = {"W": g.W.detach(), "s": noise(BATCH, 4)}
    hessian = torch.func.hessian(lambda x: f.energy({**values, "s": x[None]})[0])(values["s"][0])
    w = values["W"].triu(1)
    torch.testing.assert_close(hessian, -(w + w.T))
    torch.testing.assert_close(f.message("s", values), values["s"] @ (w + w.T))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("i ~ j", "not a condition"),
        ("i !=", "not a condition"),
        ("i != k", "'k' is not a letter"),
        ("i < i", "two letters"),
        ("", "not a condition"),
    ],
)
def test_conditions_that_cannot_hold_a_meaning_are_refused_by_name(where, words):
    with pytest.raises(unn.DeclarationError, match=f"Multilinear.*{words}"):
        pair(("i", 1), ("j", 1), where=where)


def test_a_factor_without_variables_is_refused():
    g = unn.FactorGraph("none", n=2)
    W = g.parameter("W", "n")
    with pytest.raises(unn.DeclarationError, match="no variable"):
        Multilinear(W["i"])
    with pytest.raises(unn.DeclarationError, match="at least one reference"):
        Multilinear()
    with pytest.raises(unn.DeclarationError, match="references such as"):
        Multilinear(g.variable("X", "n", unn.SquaredNorm()))


def test_a_shifted_message_without_the_shape_of_its_target_is_refused():
    _, f = pair(("i", 1), ("i+1", 1))
    with pytest.raises(unn.DeclarationError, match="target's shape"):
        f.message("Y", {"X": noise(BATCH, 3)})


# -- nothing is expanded -------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Remembers the most entries that any new tensor had."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.entries = max(self.entries, x.numel())
        return out


def dense(batch):
    g = unn.FactorGraph("dense", h=11, x=7)
    H, X = g.variable("H", "h", unn.SquaredNorm()), g.variable("X", "x", unn.SquaredNorm())
    W = g.parameter("W", "h x", init="normal")
    f = Multilinear(H["h"], W["h x"], X["x"])
    g.factor(f)
    g.double()
    return f, {"H": noise(batch, 11), "X": noise(batch, 7), "W": g.W.detach()}


@pytest.mark.parametrize("target", ["H", "X", None])
def test_parameters_are_never_expanded_along_the_batch(target):
    f, values = dense(50)
    with Largest() as seen:
        f.energy(values) if target is None else f.message(target, values)
    assert 0 < seen.entries <= 50 * 11 < 50 * values["W"].numel()


def test_dense_messages_are_one_linear_map_with_the_parameter_itself(monkeypatch):
    f, values = dense(5)
    weights = []
    original = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda x, w, *rest: (weights.append(w), original(x, w, *rest))[1]
    )
    message = f.message("H", values)
    assert [w.data_ptr() for w in weights] == [values["W"].data_ptr()]
    assert weights[0].numel() == values["W"].numel()
    assert message.untyped_storage().nbytes() == message.numel() * message.element_size()


def test_the_message_of_a_bias_is_the_bias_with_a_batch_of_one():
    g = unn.FactorGraph("bias", n=4, m=3)
    X = g.variable("X", "n m", unn.SquaredNorm())
    b, c = g.parameter("b", "n m", init="normal"), g.parameter("c", "m", init="normal")
    whole, shared = Multilinear(b["i j"], X["i j"]), Multilinear(X["i j"], c["j"])
    g.factor(whole)
    g.factor(shared)
    values = {"X": noise(9, 4, 3).float(), "b": g.b.detach(), "c": g.c.detach()}
    message = whole.message("X", values)
    assert message.shape == (1, 4, 3)
    assert message.untyped_storage().data_ptr() == values["b"].untyped_storage().data_ptr()
    message = shared.message("X", values)
    assert message.shape == (1, 1, 3)
    assert message.untyped_storage().data_ptr() == values["c"].untyped_storage().data_ptr()


def test_a_sum_alone_sends_a_single_one():
    g = unn.FactorGraph("sum", n=4)
    X = g.variable("X", "n m", unn.SquaredNorm())
    f = Multilinear(X["i j"])
    g.factor(f)
    message = f.message("X", {"X": noise(3, 4, 5)})
    assert message.shape == (1, 1, 1)
    assert message.item() == 1


# -- paths are found once ------------------------------------------------------------------------------------


def attention(letters):
    n, m, d = letters
    g = unn.FactorGraph("attention", n=3, m=3, d=2)
    Q, K = g.variable("Q", "n d", unn.SquaredNorm()), g.variable("K", "m d", unn.SquaredNorm())
    S, U = g.variable("S", "n m", unn.SquaredNorm()), g.parameter("U", "d e", init=noise(2, 2))
    f = Multilinear(S[f"{n} {m}"], Q[f"{n} {d}"], U[f"{d} e"], K[f"{m} e"])
    g.factor(f)
    return f, {"Q": noise(2, 3, 2), "K": noise(2, 3, 2), "S": noise(2, 3, 3), "U": g.U.detach()}


def test_paths_are_found_once_for_a_pattern_even_by_another_factor(monkeypatch):
    searched = []
    original = lowering.opt_einsum.contract_path
    monkeypatch.setattr(
        lowering.opt_einsum,
        "contract_path",
        lambda *args, **options: (searched.append(args), original(*args, **options))[1],
    )
    letters = ("once_n", "once_m", "once_d")
    f, values = attention(letters)
    for _ in range(3):
        f.energy(values)
        for name in ("S", "Q", "K"):
            f.message(name, values)
    assert len(searched) == 4
    f, values = attention(letters)
    f.energy(values)
    for name in ("S", "Q", "K"):
        f.message(name, values)
    assert len(searched) == 4


def test_prepare_leaves_no_path_to_be_found_in_the_first_run(monkeypatch):
    f, values = attention(("ahead_n", "ahead_m", "ahead_d"))
    f.prepare({"n": 3, "m": 3, "d": 2})
    monkeypatch.setattr(
        lowering.opt_einsum, "contract_path", lambda *args, **options: pytest.fail("searched for a path")
    )
    f.energy(values)
    for name in ("S", "Q", "K"):
        f.message(name, values)


# -- the contract --------------------------------------------------------------------------------------------


class TestDenseAndBias(FactorContract):
    def graph(self):
        g = unn.FactorGraph("dense", h=4, x=3)
        H, X = g.variable("H", "h", unn.SignedEntropy()), g.variable("X", "x", unn.SquaredNorm())
        W, b = g.parameter("W", "h x"), g.parameter("b", "h", init="normal")
        g.factor(Multilinear(H["h"], W["h x"], X["x"]))
        g.factor(Multilinear(b["h"], H["h"]))
        return g


class TestAttention(FactorContract):
    def graph(self):
        g = unn.FactorGraph("attention", n=3, d=2)
        Q, K, X = (g.variable(name, "n d", unn.SignedEntropy()) for name in "QKX")
        S = g.variable("S", "n m", unn.Entropy())
        U = g.parameter("U", "d e")
        g.factor(Multilinear(S["i j"], Q["i d"], K["j d"]))
        g.factor(Multilinear(S["i j"], Q["i d"], U["d e"], X["j e"]))
        return g


class TestPottsGridWithShifts(FactorContract):
    def graph(self):
        g = unn.FactorGraph("potts", r=3, c=2, v=3)
        s = g.variable("s", "r c | v", unn.Entropy())
        T = g.parameter("T", "v w", init="normal")
        g.factor(Multilinear(s["i j v"], T["v w"], s["i+1 j w"]))
        g.factor(Multilinear(s["i j v"], T["v w"], s["i j-1 w"]))
        return g


class TestSplitsAndDiagonals(FactorContract):
    def graph(self):
        g = unn.FactorGraph("blocks", n=6, m=3, R=3)
        X, Y = g.variable("X", "n m", unn.SquaredNorm()), g.variable("Y", "m", unn.BinaryEntropy())
        Z = g.variable("Z", "m k", unn.Entropy())
        W = g.parameter("W", "m l", init=0.5 * torch.ones(3, 2))
        g.factor(Multilinear(X["(R r) c"], Y["c"], W["c r"]))
        g.factor(Multilinear(Z["i i"], Y["i"]))
        return g


class TestFourPlacesOfThreeVariablesUnderACondition(FactorContract):
    def graph(self):
        g = unn.FactorGraph("four", n=3)
        a, b, c = (g.variable(name, "n", unn.SignedEntropy()) for name in "abc")
        J = g.parameter("J", "", init=lambda t: t.fill_(0.7))
        g.factor(Multilinear(J[""], a["i"], b["j"], c["j"], a["k"], where="i != k"))
        return g


class TestOneNodeMeetsItself(FactorContract):
    def graph(self):
        g = unn.FactorGraph("self", n=4)
        s = g.variable("s", "n", unn.Ball())
        W = g.parameter("W", "n m", init="normal")
        g.factor(Multilinear(W["i j"], s["i"], s["j"]))
        return g


class TestVariableWithoutAxes(FactorContract):
    def graph(self):
        g = unn.FactorGraph("scalar", n=2)
        a, X = g.variable("a", "", unn.SignedEntropy()), g.variable("X", "n", unn.SquaredNorm())
        g.factor(Multilinear(a[""], X["i"]))
        g.factor(Multilinear(a[""]))
        return g


@given(seed=st.integers(0, 10_000), rounds=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_messages_that_share_a_product_are_those_computed_alone(seed, rounds):
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("biaffine", d=3, e=4)
    Y = g.variable("Y", "i j", unn.Entropy())
    H, M = g.variable("H", "i d", unn.SignedEntropy()), g.variable("M", "j e", unn.SignedEntropy())
    V = g.parameter("V", "d e", init=torch.randn(3, 4, generator=generator))
    shared = Multilinear(Y["i j"], H["i d"], V["d e"], M["j e"])
    assert shared.shares_products
    g.factor(shared)
    start = {"H": torch.rand(2, 5, 3, generator=generator), "M": torch.rand(2, 6, 4, generator=generator)}
    solution = unn.infer(g, {}, order=["Y", "H", "M", "Y", "M"], iterations=rounds, initial=start)
    shared.shares_products = False
    expected = unn.infer(g, {}, order=["Y", "H", "M", "Y", "M"], iterations=rounds, initial=start)
    for name in "YHM":
        torch.testing.assert_close(solution[name], expected[name])
    torch.testing.assert_close(solution.energy, expected.energy)
