"""Bad weights end in a status, mistakes change nothing: the right error, what was wrong and what to do."""

import re

import numpy as np
import pytest
import torch
from support.helpers import INF, NAN, UNIFORM, X, mlp, says, unchanged, with_entry

import unn
from factors import Multilinear

# -- nothing is changed by a mistake -------------------------------------------------------------------------


def test_a_failed_declaration_leaves_the_graph_usable():
    g = mlp()
    expected = unn.infer(g, {"X": X}, iterations=3)
    foreign = mlp()["X"]["i"]
    attempts = [
        lambda: g.variable("Z", "a-b", unn.SquaredNorm()),
        lambda: g.variable("Z", "pixel", unn.SquaredNorm),
        lambda: g.variable("Z", "pixel", unn.Entropy(over="hidden")),
        lambda: g.variable("X", "pixel", unn.SquaredNorm()),
        lambda: g.parameter("forward", "pixel"),
        lambda: g.parameter("U", "pixel", init=torch.ones(7)),
        lambda: g.parameter("U", "pixel", init="twos"),
        lambda: g.constant("C", "pixel", torch.ones(7)),
        lambda: g.factor(Multilinear(g["X"]["i"], g["H"]["i"])),
        lambda: g.factor(Multilinear(g["X"]["i"], g["H"]["(i j)"])),
        lambda: g.factor(Multilinear(g["X"]["i"], foreign)),
        lambda: g.factor(Multilinear(g["W"]["i j"])),
        lambda: g.factor(g.factors["Multilinear(Y, V, H)"]),
    ]
    for attempt in attempts:
        unchanged(g, attempt)
    again = unn.infer(g, {"X": X}, iterations=3)
    assert all(torch.equal(again[name], expected[name]) for name in g.variables)
    z = g.variable("Z", "pixel", unn.SquaredNorm())
    g.factor(Multilinear(z["i"], g["X"]["i"]))
    g.factor(Multilinear(g["H"]["h"], g["W"]["h x"], g["X"]["x"]))
    assert list(g.factors)[-2:] == ["Multilinear(Z, X)", "Multilinear(H, W, X)#2"]
    out = unn.infer(g, {"X": X})
    torch.testing.assert_close(out["Z"], X)
    torch.testing.assert_close(out["H"], torch.tanh(2 * X @ g.W.T))


def test_a_failed_factor_does_not_tie_axes():
    g = unn.FactorGraph("g", m=3)
    a, b, c = (
        g.variable(name, axis, unn.SquaredNorm()) for name, axis in (("A", "n"), ("B", "m"), ("C", "p q"))
    )
    with pytest.raises(unn.DeclarationError):
        g.factor(
            Multilinear(
                a["i"],
                c["i j"],
                b["j"],
                b["(j k)"],
                b["(k j)"],
                g.constant("T", "n m", torch.ones(2, 3))["j i"],
            )
        )
    g.factor(Multilinear(a["i"], b["j"]))
    assert unn.infer(g, {"A": torch.ones(1, 2)}, sizes={"p": 4, "q": 5})["C"].shape == (1, 4, 5)


def test_bad_input_never_changes_parameters_or_values():
    g = mlp()
    before = {name: value.clone() for name, value in g.state_dict().items()}
    bad = with_entry(X, (0, 0), NAN)
    values = {"X": X.clone(), "bad": bad.clone()}
    attempts = [
        lambda: unn.infer(g, {"X": bad}),
        lambda: unn.infer(g, {"X": X.double()}),
        lambda: unn.infer(g, {"X": X, "W": X}),
        lambda: unn.infer(g, {"X": X}, initial={"Y": 2 * UNIFORM}),
        lambda: unn.infer(g, {"X": X}, order=["H"]),
        lambda: unn.infer(g, {"X": X}, lengths={"pixel": torch.tensor([0, 1])}),
        lambda: unn.infer(g, {"X": X}, dropout={"H": 2.0}),
        lambda: unn.Unrolled(g, "X", "Y")(bad),
        lambda: g.energy({"X": X}),
        lambda: g.parameter("U", "pixel", init=torch.ones(7)),
    ]
    for attempt in attempts:
        with pytest.raises(unn.UnnError):
            attempt()
    assert all(torch.equal(before[name], value) for name, value in g.state_dict().items())
    assert torch.equal(X, values["X"]) and torch.equal(bad.nan_to_num(), values["bad"].nan_to_num())
    assert all(parameter.grad is None for parameter in g.parameters())


def test_a_constant_keeps_its_value_when_the_tensor_it_was_made_from_changes():
    g = unn.FactorGraph("g", n=2)
    value = torch.ones(2)
    g.constant("C", "n", value)
    value.fill_(9.0)
    assert g.C.tolist() == [1, 1]


# -- divergence ----------------------------------------------------------------------------------------------


def coupled(weight, axes="n", dtype=torch.float64):
    g = unn.FactorGraph("coupled", n=2)
    a, b = g.variable("A", axes, unn.SquaredNorm()), g.variable("B", axes, unn.SquaredNorm())
    J = g.parameter("J", "", init=lambda values: values.fill_(weight))
    g.factor(Multilinear(J[""], a[axes.replace("n", "i")], b[axes.replace("n", "i")]))
    return g.to(dtype)


@pytest.mark.parametrize("axes", ["n", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_unbounded_quadratic_energy_ends_as_unbounded_with_finite_values(dtype, axes):
    g = coupled(3.0, axes, dtype)
    start = torch.ones((2, 2) if axes else (2,), dtype=dtype)
    out = unn.infer(g, {}, initial={"A": start}, order=["B", "A"], iterations=1000)
    assert out.status is unn.Status.UNBOUNDED and not out.converged
    assert all(x.isfinite().all() for x in out.values.values())
    powers = [torch.ones((), dtype=dtype)]
    while powers[-1] <= float(torch.finfo(dtype).max) ** 0.5:
        powers.append(3 * powers[-1])
    updates = len(powers) - 1
    place = f"update {2 - updates % 2} of round {(updates + 1) // 2} ({'BA'[(updates + 1) % 2]})"
    assert place in out.message and "2 of 2 batch elements" in out.message
    assert out.rounds == (updates + 1) // 2
    torch.testing.assert_close(out["A"].detach(), start * powers[2 * (out.rounds - 1)])
    assert "depends on the weights" in out.message and "A, B" in out.message


def test_the_message_about_an_unbounded_energy_is_a_sentence():
    out = unn.infer(
        coupled(3.0),
        {},
        initial={"A": torch.ones(1, 2, dtype=torch.float64)},
        order=["B", "A"],
        iterations=1000,
    )
    assert "is depends" not in out.message


@pytest.mark.parametrize("regularizer", [unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy(1.5)])
def test_weightless_attention_ends_as_unbounded_with_finite_values(regularizer):
    g = unn.FactorGraph("attention", d=4, n=3, m=3)
    q, k, s = (
        g.variable("Q", "n d", unn.SquaredNorm()),
        g.variable("K", "m d", unn.SquaredNorm()),
        g.variable("S", "n m", regularizer),
    )
    g.factor(Multilinear(s["n m"], q["n d"], k["m d"]))
    assert g.boundedness().bound is unn.Bound.UNBOUNDED
    generator = torch.Generator().manual_seed(0)
    start = {name: 3 * torch.randn(2, 3, 4, generator=generator) for name in "QK"}
    out = unn.infer(g, {}, initial=start, order=["S", "Q", "K"], iterations=1000)
    assert out.status is unn.Status.UNBOUNDED and 1 < out.rounds < 1000
    assert all(x.isfinite().all() for x in out.values.values())
    assert (regularizer.contains(out["S"])).all()
    place = re.search(r"at update [123] of round (\d+) \([SQK]\)", out.message)
    assert place and 1 < int(place[1]) <= out.rounds
    assert "unbounded below" in out.message and "Ball, Box" in out.message


@pytest.mark.parametrize(
    "regularizer",
    [
        unn.SquaredNorm(),
        unn.NonNegative(),
        unn.BinaryEntropy(),
        unn.SignedEntropy(),
        unn.Box(),
        unn.L1(),
        unn.Entropy(),
        unn.SimplexNorm(),
        unn.TsallisEntropy(1.5),
        unn.TsallisEntropy(2.0),
        unn.Ball(),
    ],
)
def test_a_nan_parameter_ends_as_not_a_number_with_finite_values(regularizer):
    g = unn.FactorGraph("g", n=2, m=3)
    x, h, y = (
        g.variable("X", "n", unn.SquaredNorm()),
        g.variable("H", "n", unn.SquaredNorm()),
        g.variable("Y", "m", regularizer),
    )
    w = g.parameter("W", "m n", init="ones")
    g.factor(Multilinear(h["i"], x["i"]))
    g.factor(Multilinear(y["j"], w["j i"], h["i"]))
    g.W.data[1, 0] = NAN
    out = unn.infer(g, {"X": X[:, :2]}, order=["H", "Y"], iterations=5)
    assert out.status is unn.Status.NOT_A_NUMBER and not out.converged
    assert all(value.isfinite().all() for value in out.values.values())
    assert "update 2 of round 1 (Y)" in out.message and "2 of 2 batch elements" in out.message
    assert "Parameter 'W'" in out.message and out.rounds == 1


def test_a_nan_parameter_of_a_scalar_ends_as_not_a_number():
    g = coupled(NAN, "")
    out = unn.infer(g, {"A": torch.ones(2, dtype=torch.float64)})
    assert out.status is unn.Status.NOT_A_NUMBER and "update 1 of round 1 (B)" in out.message
    assert out["B"].isfinite().all()


@pytest.mark.parametrize(
    "regularizer", [unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy(1.5), unn.Ball(), unn.SquaredNorm()]
)
@pytest.mark.parametrize("value", [INF, -INF])
def test_an_infinite_parameter_never_ends_in_a_traceback_or_outside_the_domain(regularizer, value):
    g = unn.FactorGraph("g", n=2, m=3)
    x, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", regularizer)
    g.factor(Multilinear(y["j"], g.parameter("W", "m n", init="ones")["j i"], x["i"]))
    g.W.data[1, 0] = value
    out = unn.infer(g, {"X": torch.ones(1, 2)}, iterations=3)
    assert out["Y"].isfinite().all()
    if out.status is unn.Status.LIMIT:
        assert regularizer.contains(out["Y"]).all()


def test_only_the_batch_elements_that_diverged_are_counted():
    g = coupled(3.0)
    start = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    out = unn.infer(g, {}, initial={"A": start}, order=["B", "A"], iterations=1000)
    assert out.status is unn.Status.UNBOUNDED and "1 of 2 batch elements" in out.message
    assert out["A"][0].tolist() == [0, 0]


# -- odd, but legal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-9, -4, -3, -1, 1, 2, 3, 4, 9])
def test_shifts_beyond_an_axis_sum_over_nothing(shift):
    g = unn.FactorGraph("g", n=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "n", unn.SquaredNorm())
    g.factor(Multilinear(a[f"i{shift:+d}"], b["i"]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    expected = [[float(x[0, i + shift]) if 0 <= i + shift < 3 else 0.0 for i in range(3)]]
    assert unn.infer(g, {"A": x}, order=["B"])["B"].tolist() == expected
    back = [[float(x[0, i - shift]) if 0 <= i - shift < 3 else 0.0 for i in range(3)]]
    assert unn.infer(g, {"B": x}, order=["A"])["A"].tolist() == back


def test_shifts_beyond_an_axis_of_size_one_sum_over_nothing():
    g = unn.FactorGraph("g", n=1, m=3)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "m", unn.SquaredNorm())
    g.factor(Multilinear(a["i+3"], b["i"]))
    assert unn.infer(g, {"B": torch.ones(1, 3)})["A"].tolist() == [[0.0]]


def test_a_letter_that_is_shifted_in_one_place_and_splits_an_axis_in_another_is_right_or_refused():
    g = unn.FactorGraph("g", n=6, m=3, i=3, j=2)
    a, b = g.variable("A", "n", unn.SquaredNorm()), g.variable("B", "m", unn.SquaredNorm())
    try:
        g.factor(Multilinear(a["(i j)"], b["i-1"]))
    except unn.DeclarationError:
        return
    x, y = torch.arange(6.0)[None], torch.tensor([[1.0, 10.0, 100.0]])
    products = sum(float(x[0, 2 * i + j] * y[0, i - 1]) for i in (1, 2) for j in (0, 1))
    regularizers = float(x.square().sum() / 2 + y.square().sum() / 2)
    assert g.energy({"A": x, "B": y}).item() == pytest.approx(regularizers - products)


@pytest.mark.parametrize("backwards", [False, True])
def test_sizes_of_splits_are_found_in_any_order_of_the_references(backwards):
    g = unn.FactorGraph("g")
    a, b, c = (g.variable(name, name.lower(), unn.SquaredNorm()) for name in "ABC")
    references = [a["(p q)"], b["(q r)"], c["r"]]
    g.factor(Multilinear(*(references[::-1] if backwards else references)))
    x, y, z = torch.ones(1, 6), torch.ones(1, 10), torch.ones(1, 5)
    assert g.energy({"A": x, "B": y, "C": z}).item() == pytest.approx(6 / 2 + 10 / 2 + 5 / 2 - 3 * 2 * 5)


def test_a_conditional_sum_over_a_single_variable_keeps_the_dtype_of_the_run():
    g = unn.FactorGraph("g", n=3)
    a = g.variable("A", "n n", unn.SquaredNorm())
    g.factor(Multilinear(a["i j"], where="i < j"))
    g.parameter("W", "n")
    g.double()
    out = unn.infer(g, {}, initial={"A": "zero"})
    assert out["A"].dtype == torch.float64
    assert out["A"][0].tolist() == torch.ones(3, 3).triu(1).tolist()


def test_a_weightless_sum_over_a_single_variable_runs_on_its_own():
    g = unn.FactorGraph("g", n=3)
    a = g.variable("A", "n", unn.SquaredNorm())
    g.factor(Multilinear(a["i"]))
    assert unn.infer(g, {}, initial={"A": "zero"})["A"].tolist() == [[1.0, 1.0, 1.0]]


def test_scalars_and_axes_of_size_one_run_like_any_other():
    g = unn.FactorGraph("g", n=1)
    a, b = g.variable("A", "", unn.SignedEntropy()), g.variable("B", "n", unn.Entropy())
    J, v = g.parameter("J", "", init="ones"), g.parameter("v", "n", init="ones")
    g.factor(Multilinear(J[""], a[""]))
    g.factor(Multilinear(a[""], v["i"], b["i"]))
    out = unn.infer(g, {"B": torch.ones(3, 1)}, until=1e-6)
    torch.testing.assert_close(out["A"], torch.tensor([2.0, 2.0, 2.0]).tanh())
    part = unn.infer(
        g,
        {"A": unn.Partial(torch.full((2,), 0.5), torch.tensor([True, False])), "B": torch.ones(2, 1)},
        order=["A"],
    )
    torch.testing.assert_close(part["A"], torch.tensor([0.5, float(np.tanh(2.0))]))
    with pytest.raises(unn.ObservationError, match=says("'A'", "()", "x[None]")):
        unn.infer(g, {"A": torch.tensor(0.5)})


@pytest.mark.parametrize("layout", ["transposed", "expanded", "strided"])
def test_the_layout_of_an_observation_in_memory_does_not_matter(layout):
    g = mlp()
    x = {
        "transposed": X.T.contiguous().T,
        "expanded": X[:1].expand(2, 4),
        "strided": torch.stack([X, X], -1)[..., 0],
    }[layout]
    assert not x.is_contiguous()
    seen = (torch.arange(8).view(4, 2) % 3 > 0).T
    for given, same in (
        ({"X": x}, {"X": x.contiguous()}),
        ({"X": unn.Partial(x, seen)}, {"X": unn.Partial(x.contiguous(), seen.contiguous())}),
    ):
        one, other = unn.infer(g, given, iterations=2), unn.infer(g, same, iterations=2)
        assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in g.variables)


@pytest.mark.slow
@pytest.mark.parametrize(("regularizer", "seed"), [(unn.SquaredNorm(), 3), (unn.L1(0.3), 1)], ids=repr)
def test_a_cubic_energy_that_falls_out_of_range_has_not_converged(regularizer, seed):
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("cubic", d=3)
    v = g.variable("v", "d", regularizer)
    w = g.constant("w", "d e f", torch.randn(3, 3, 3, generator=generator).double())
    g.factor(Multilinear(w["a b c"], v["a"], v["b"], v["c"]))
    start = torch.randn(3, 3, generator=generator).double()
    out = unn.infer(g, {}, order=["v"], initial={"v": start}, until=1e-6, iterations=30)
    assert not out.converged
