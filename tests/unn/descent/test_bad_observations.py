"""Bad observations, lengths, orders and initial values: the right error, what was wrong and what to do."""

import numpy as np
import pytest
import torch
from support.helpers import INF, NAN, UNIFORM, X, done_or_refused, images, mlp, says, with_entry

import unn
from factors import Directed, Multilinear

# -- observations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (X.int(), ["int32", "floating point", ".float()"]),
        (X.bool(), ["bool", "floating point"]),
        (X.to(torch.complex64), ["complex64", "floating point"]),
        (X.double(), ["float64", "float32", ".to(torch.float32)"]),
        (X.half(), ["float16", "float32"]),
        (X.to("meta"), ["device meta", "cpu", ".to("]),
        (X[0], ["(4,)", "(batch, pixel)", "x[None]"]),
        (X[None], ["(1, 2, 4)", "3 axes", "(batch, pixel)"]),
        (X[:, :3], ["axis 'pixel'", "size 3", "expected 4", "(2, 3)", "pixel=3"]),
        (X[:0], ["(0, 4)", "empty batch", "at least one"]),
        (X.numpy(), ["torch.Tensor", "ndarray", "torch.as_tensor"]),
        (X.tolist(), ["torch.Tensor", "list"]),
        (None, ["torch.Tensor", "NoneType"]),
        (3.0, ["torch.Tensor", "float"]),
        ("zero", ["torch.Tensor", "str"]),
        (X.clone().fill_(NAN), ["8 entries", "NaN or infinite", "(0, 0)", "nan", "unn.Partial"]),
        (with_entry(X, (1, 2), INF), ["1 entries", "NaN or infinite", "(1, 2)", "inf"]),
        (with_entry(X, (1, 3), -INF), ["1 entries", "NaN or infinite", "(1, 3)", "-inf"]),
    ],
)
def test_observations_must_fit_the_declaration(value, words):
    g = mlp()
    for attempt in (
        lambda: unn.infer(g, {"X": value}),
        lambda: unn.Unrolled(g, "X", "Y")(value),
        lambda: unn.infer(g, {"X": unn.Partial(value, torch.ones(2, 4, dtype=torch.bool))}),
        lambda: (
            unn.infer(g, {}, initial={"X": value})
            if isinstance(value, torch.Tensor)
            else unn.infer(g, {"X": value})
        ),
    ):
        with pytest.raises(unn.ObservationError, match=says("variable 'X'", *words)):
            attempt()


def test_labels_in_place_of_one_hot_vectors_get_their_own_advice():
    with pytest.raises(unn.ObservationError, match=says("'Y'", "int64", "one_hot")):
        unn.infer(mlp(), {"Y": torch.tensor([0, 2])})


def test_infinities_of_other_domains_are_found_too():
    for name, shape in (("H", (2, 5)), ("Y", (2, 3))):
        for bad in (NAN, INF, -INF):
            with pytest.raises(unn.ObservationError, match=says(f"variable '{name}'", "NaN or infinite")):
                unn.infer(mlp(), {name: torch.full(shape, bad)})


@pytest.mark.parametrize("value", [None, [], 5, X])
def test_what_is_given_is_a_mapping_by_name(value):
    with pytest.raises(unn.ObservationError, match="given"):
        unn.infer(mlp(), value)


def test_parameters_cannot_be_observed():
    with pytest.raises(unn.ObservationError, match=says("'W'", "parameter", "load_state_dict")):
        unn.infer(mlp(), {"W": X})


def test_batch_sizes_agree():
    with pytest.raises(unn.ObservationError, match=says("variable 'Y'", "batch size 1", "2")):
        unn.infer(mlp(), {"X": X, "Y": UNIFORM[:1]})
    with pytest.raises(unn.ObservationError, match=says("variable 'H'", "batch size 1", "2")):
        unn.infer(mlp(), {"X": X}, initial={"H": torch.zeros(1, 5)})


OUTSIDE = [
    (unn.NonNegative(), -0.1),
    (unn.BinaryEntropy(), 1.1),
    (unn.SignedEntropy(), -1.1),
    (unn.Entropy(), 0.5),
    (unn.SimplexNorm(), 0.5),
    (unn.TsallisEntropy(1.5), 0.5),
    (unn.Box(-2, 3), 3.1),
    (unn.Ball(), 1.0),
]


@pytest.mark.parametrize(("regularizer", "entry"), OUTSIDE)
def test_observations_lie_in_the_domain_of_their_regularizer(regularizer, entry):
    g = unn.FactorGraph("g", n=3)
    x, y = g.variable("X", "n", regularizer), g.variable("Y", "n", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], y["i"]))
    inside = regularizer.mirror(torch.zeros(1, 3))
    assert unn.infer(g, {"X": inside})["Y"].equal(inside)
    bad = torch.cat([inside, torch.full((1, 3), entry)])
    words = says(
        "variable 'X'",
        "1 of 2 batch elements",
        "outside the domain",
        repr(regularizer),
        regularizer.formula,
        "batch element 1",
        "rescale",
    )
    everything = torch.ones(2, 3, dtype=torch.bool)
    for attempt in (
        lambda: unn.infer(g, {"X": bad}),
        lambda: unn.infer(g, {"X": unn.Partial(bad, everything)}),
        lambda: unn.Unrolled(g, "X", "Y")(bad),
        lambda: unn.infer(g, {"Y": bad}, initial={"X": bad}),
    ):
        with pytest.raises(unn.ObservationError, match=words):
            attempt()
    assert (
        g.energy({"X": bad, "Y": bad}) == torch.tensor([g.energy({"X": inside, "Y": inside}).item(), INF])
    ).tolist() == [True, True]


def test_observations_that_require_gradients_are_checked_without_a_warning():
    g = mlp()
    x = X.clone().requires_grad_()
    unn.infer(g, {"X": x}, until=1e-3)["Y"][0, 0].backward()
    assert x.grad.abs().sum() > 0
    with pytest.raises(unn.ObservationError, match=says("'H'", "outside the domain")):
        unn.infer(g, {"H": torch.full((2, 5), 3.0, requires_grad=True)})


# -- nothing, everything, wanting ----------------------------------------------------------------------------


def test_nothing_given_is_refused():
    for attempt in (
        lambda: unn.infer(mlp(), {}),
        lambda: unn.infer(mlp(), {}, initial={}),
        lambda: unn.infer(mlp(), {}, order=["X", "H", "Y"]),
    ):
        with pytest.raises(
            unn.InferenceError, match=says("graph 'mlp'", "nothing is given", "X, H, Y", "initial=")
        ):
            attempt()
    with pytest.raises(unn.UnnError):
        unn.infer(unn.FactorGraph("empty"), {})
    with pytest.raises(unn.UnnError):
        unn.FactorGraph("empty").energy({})


@pytest.mark.parametrize("order", [None, ["H"], ["H", "Y"]])
def test_everything_given_is_refused(order):
    with pytest.raises(
        unn.InferenceError, match=says("graph 'mlp'", "every variable is given", "nothing is left to infer")
    ):
        unn.infer(mlp(), {"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}, order=order)


def test_what_is_wanted_can_be_reached_and_is_not_given():
    g = mlp()
    g.variable("alone", "pixel", unn.SquaredNorm())
    g.factor(Multilinear(g["alone"]["i"]))
    for run in (lambda want: unn.infer(g, {"X": X}, want=want), lambda want: unn.Unrolled(g, "X", want)):
        with pytest.raises(
            unn.InferenceError,
            match=says("want", "'alone'", "cannot be reached", "(X)", "no chain of factors"),
        ):
            run("alone")
        with pytest.raises(unn.InferenceError, match=says("want", "'X'", "is given", "another one")):
            run(["Y", "X"])
        with pytest.raises(unn.InferenceError, match=says("want", "unknown variable 'W'")):
            run("W")
        with pytest.raises(unn.InferenceError, match=says("want", "unknown variable 7")):
            run(["Y", 7])


def test_what_is_wanted_is_a_name_or_a_list_of_names():
    with pytest.raises(unn.InferenceError, match="want"):
        unn.infer(mlp(), {"X": X}, want=7)


def test_what_is_observed_in_part_may_be_wanted():
    g = mlp()
    seen = torch.tensor([[True, False, True, False]] * 2)
    out = unn.infer(g, {"X": unn.Partial(X, seen), "Y": UNIFORM}, order=["H", "X"], want="X", iterations=2)
    net = unn.Unrolled(g, ["X", "Y"], "X", order=["H", "X"], iterations=2)
    torch.testing.assert_close(net(unn.Partial(X, seen), UNIFORM), out["X"])


def test_an_unrolled_network_wants_what_it_infers():
    with pytest.raises(unn.InferenceError, match=says("want", "'Y'", "not in the order ['H']", "add it")):
        unn.Unrolled(mlp(), "X", "Y", order=["H"], initial={"Y": "uniform"})


def test_an_unrolled_network_takes_all_of_its_inputs():
    net = unn.Unrolled(mlp(), ["X", "Y"], "H")
    for inputs in ((), (X,), (X, UNIFORM, X)):
        with pytest.raises(unn.InferenceError, match=says("2 inputs (X, Y)", f"got {len(inputs)}")):
            net(*inputs)


def test_a_whole_observation_of_a_variable_in_the_order_is_refused_by_an_unrolled_network():
    """Declared for Partial observations: a plain tensor cannot be updated."""
    net = unn.Unrolled(mlp(), "X", "Y", order=["H", "X", "Y"])
    assert net(unn.Partial(X, X > 0)).shape == (2, 3)
    with pytest.raises(unn.UnnError, match=says("'X'", "order")):
        net(X)


# -- energies ------------------------------------------------------------------------------------------------


def test_an_energy_needs_every_variable():
    g = mlp()
    values = {"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}
    with pytest.raises(unn.ObservationError, match=says("energy", "variable 'H'", "no value", "X, H, Y")):
        g.energy({"X": X, "Y": UNIFORM})
    with pytest.raises(unn.ObservationError, match=says("unknown variable 'Q'")):
        g.energy({**values, "Q": X})
    with pytest.raises(
        unn.ObservationError, match=says("variable 'H'", "axis 'hidden'", "size 4", "expected 5")
    ):
        g.energy({**values, "H": X})
    with pytest.raises(unn.ObservationError, match=says("variable 'H'", "torch.Tensor", "str")):
        g.energy({**values, "H": "zero"})
    assert g.energy({**values, "Y": 2 * UNIFORM}).tolist() == [INF, INF]


def test_an_energy_of_a_partial_observation_is_refused():
    with pytest.raises(unn.ObservationError, match=says("'X'", "Partial")):
        mlp().energy({"X": unn.Partial(X, X > 0), "H": torch.zeros(2, 5), "Y": UNIFORM})


# -- lengths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (
            torch.tensor([0, 2]),
            ["batch element 0", "length 0", "size 4", "1 to that size", "empty sequences"],
        ),
        (torch.tensor([-1, 2]), ["batch element 0", "length -1"]),
        (torch.tensor([1, 5]), ["batch element 1", "length 5", "size 4"]),
        (torch.tensor([1.0, 2.0]), ["whole numbers", "(2,)", "float32"]),
        (torch.tensor([1, 2, 3]), ["whole numbers", "(2,)", "(3,)"]),
        (torch.tensor(3), ["whole numbers", "(2,)", "()"]),
        (torch.tensor([[1], [2]]), ["whole numbers", "(2,)", "(2, 1)"]),
        ([1, 2], ["whole numbers", "[1, 2]"]),
        (3, ["whole numbers", "3"]),
        (None, ["whole numbers", "None"]),
        (torch.tensor([True, True]), ["whole numbers", "bool"]),
        (torch.tensor([1, 2], device="meta"), ["meta"]),
    ],
)
def test_lengths_are_whole_numbers_from_one_to_the_size_of_their_axis(length, words):
    for attempt in (
        lambda: unn.infer(mlp(), {"X": X}, lengths={"pixel": length}),
        lambda: unn.Unrolled(mlp(), "X", "Y")(X, lengths={"pixel": length}),
        lambda: mlp().energy({"X": X, "H": torch.zeros(2, 5), "Y": UNIFORM}, lengths={"pixel": length}),
    ):
        with pytest.raises(unn.ObservationError, match=says("lengths", "'pixel'", *words)):
            attempt()


def test_lengths_are_checked_on_axes_that_only_a_constant_has():
    g = unn.FactorGraph("g", d=2)
    x, y, c = (
        g.variable("X", "d", unn.SquaredNorm()),
        g.variable("Y", "d", unn.SquaredNorm()),
        g.constant("C", "n d"),
    )
    g.factor(Multilinear(x["i"], y["i"], c["n i"]))
    for length in ([0, 2], [1, 9]):
        with pytest.raises(unn.ObservationError, match=says("lengths", "'n'")):
            unn.infer(g, {"X": X[:, :2], "C": torch.ones(2, 4, 2)}, lengths={"n": torch.tensor(length)})


def test_lengths_of_tied_axes_do_not_contradict():
    g = unn.FactorGraph("g")
    x, y = g.variable("X", "n", unn.SquaredNorm()), g.variable("Y", "m", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], y["i"]))
    with pytest.raises(unn.ObservationError, match=says("lengths", "'n'", "'m'")):
        unn.infer(g, {"X": X}, lengths={"n": torch.tensor([1, 2]), "m": torch.tensor([3, 4])})


def attempt_padded(g, given, cut, **options):
    """Padded to 6 rows with length 4, and cut to 4 rows: equal, or refused with an error of this package."""
    padded = done_or_refused(
        lambda: unn.infer(g, given, lengths={"row": torch.tensor([4])}, **options),
        "lengths",
        error=unn.ObservationError,
    )
    if padded is not None:
        alone = unn.infer(g, {name: cut(x) for name, x in given.items()}, **options)
        torch.testing.assert_close(padded.energy[-1], alone.energy[-1], rtol=1e-5, atol=1e-5)


def test_padding_is_left_out_of_directed_factors_or_refused():
    g = unn.FactorGraph("g", d=3)
    x, h = g.variable("X", "row d", unn.SquaredNorm()), g.variable("H", "row d", unn.SignedEntropy())
    torch.manual_seed(0)
    g.factor(Directed(torch.nn.Linear(3, 3), h, x))
    attempt_padded(g, {"X": torch.randn(1, 6, 3)}, lambda v: v[:, :4])


def test_padding_is_left_out_of_convolutions_or_refused():
    attempt_padded(
        images(row=None, column=None, channel=1), {"X": torch.rand(1, 1, 6, 6)}, lambda v: v[:, :, :4]
    )


def test_padding_is_left_out_of_sums_over_another_letter_or_refused():
    """Nothing masks the letter j of the parameter, though another letter carries the ragged axis."""
    g = unn.FactorGraph("g", row=6)
    x, h = g.variable("X", "row", unn.SquaredNorm()), g.variable("H", "row", unn.SquaredNorm())
    g.factor(Multilinear(h["i"], x["i"], g.parameter("b", "row", init="ones")["j"]))
    x = torch.randn(1, 6)
    out = done_or_refused(
        lambda: unn.infer(g, {"X": x}, lengths={"row": torch.tensor([4])}), "'b'", error=unn.ObservationError
    )
    if out is not None:
        torch.testing.assert_close(out["H"][:, :4], 4 * x[:, :4])


def test_a_parameter_summed_over_padding_is_refused_by_name():
    g = unn.FactorGraph("g", row=6)
    x, z = g.variable("X", "row", unn.SquaredNorm()), g.variable("Z", "", unn.SquaredNorm())
    g.factor(Multilinear(z[""], g.parameter("b", "row", init="ones")["j"]))
    g.factor(Multilinear(x["i"], z[""]))
    with pytest.raises(
        unn.ObservationError,
        match=says("lengths", "'Multilinear(Z, b)'", "parameter 'b'", "'row'", "constant of ones"),
    ):
        unn.infer(g, {"X": torch.randn(1, 6)}, lengths={"row": torch.tensor([4])})


# -- orders and iterations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (["H"], ["'Y'", "neither given nor in the order ['H']", "add it", "initial="]),
        ("H", ["'Y'", "neither given nor in the order"]),
        ([], ["order is empty", "at least one variable"]),
        ("", ["unknown variable ''"]),
        (["H", "W"], ["unknown variable 'W'"]),
        ([5], ["names of variables", "5"]),
        ([None, "H"], ["names of variables", "None"]),
        ([["H", "Y"]], ["names of variables", "['H', 'Y']"]),
        (5, ["order", "5"]),
        (unn.Block("H", torch.ones(5, dtype=torch.bool)), ["order"]),
    ],
)
def test_orders_list_every_free_variable_and_nothing_else(order, words):
    for attempt in (
        lambda: unn.infer(mlp(), {"X": X}, order=order),
        lambda: unn.Unrolled(mlp(), "X", "H", order=order),
    ):
        with pytest.raises(unn.InferenceError, match=says("order", *words)):
            attempt()


def test_an_order_does_not_name_what_is_given():
    with pytest.raises(
        unn.InferenceError, match=says("order", "'X'", "is given", "cannot be updated", "leave it out")
    ):
        unn.infer(mlp(), {"X": X}, order=["H", "X", "Y"])


@pytest.mark.parametrize(
    "nodes",
    [
        torch.ones(5),
        torch.ones(4, dtype=torch.bool),
        torch.ones(5, 1, dtype=torch.bool),
        [True] * 5,
        None,
        torch.ones(5, dtype=torch.bool, device="meta"),
    ],
)
def test_the_nodes_of_a_block_are_boolean_and_of_the_shape_of_the_node_axes(nodes):
    with pytest.raises(unn.InferenceError, match=says("order", "'H'", "nodes")):
        unn.infer(mlp(), {"X": X}, order=[unn.Block("H", nodes), "Y"])


@pytest.mark.parametrize("kind", [unn.ForwardBackward, unn.RandomOrder])
@pytest.mark.parametrize("names", ["Hidden", [], [5], ["H", "H"], 5, None, ["H", None]])
def test_orders_are_made_of_lists_of_different_names(kind, names):
    with pytest.raises(unn.InferenceError, match=says(kind.__name__, "takes")):
        kind(names)


@pytest.mark.parametrize("kind", [unn.ForwardBackward, unn.RandomOrder])
def test_the_last_of_an_order_is_a_name(kind):
    with pytest.raises(unn.InferenceError, match="5"):
        unn.infer(mlp(), {"X": X}, order=kind(["H", "Y"], last=5))


@pytest.mark.parametrize(
    "iterations",
    [0, -1, True, False, 1.0, "3", [3], torch.tensor(3), range(0), range(0, 3), range(-2, 5), range(5, 1)],
)
def test_iterations_are_whole_numbers_from_one(iterations):
    for attempt in (
        lambda: unn.infer(mlp(), {"X": X}, iterations=iterations),
        lambda: unn.Unrolled(mlp(), "X", "Y", iterations=iterations),
        lambda: unn.Unrolled(mlp(), "X", "Y")(X, iterations=iterations),
    ):
        with pytest.raises(unn.InferenceError, match=says("iterations", "range(1, 6)", str(iterations))):
            attempt()


@pytest.mark.parametrize("until", [0, 0.0, -1e-6, NAN, "1e-6", [1]])
def test_a_tolerance_is_a_positive_number(until):
    with pytest.raises(unn.InferenceError, match=says("until", "> 0", repr(until))):
        unn.infer(mlp(), {"X": X}, until=until)


# -- partial observations, initial values, dropout -----------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, 4), ["boolean", "float32"]),
        (torch.ones(2, 4, dtype=torch.int), ["boolean", "int32"]),
        (3, ["boolean", "int"]),
        ([True] * 4, ["boolean", "list"]),
        (torch.ones(4, 2, dtype=torch.bool), ["(4, 2)", "(2, 4)"]),
        (torch.ones(4, dtype=torch.bool), ["(4,)", "(2, 4)"]),
        (torch.ones(2, 4, 1, dtype=torch.bool), ["(2, 4, 1)", "(2, 4)"]),
        (torch.ones(2, 4, dtype=torch.bool, device="meta"), ["meta"]),
    ],
)
def test_the_mask_of_a_partial_observation_is_boolean_and_fits(mask, words):
    with pytest.raises(unn.ObservationError, match=says("variable 'X'", "mask", *words)):
        unn.infer(mlp(), {"X": unn.Partial(X, mask)})


@pytest.mark.parametrize("regularizer", [unn.Entropy(), unn.SimplexNorm(), unn.TsallisEntropy(), unn.Ball()])
def test_a_mask_does_not_split_a_row_whose_entries_depend_on_one_another(regularizer):
    g = unn.FactorGraph("g", n=2, k=3)
    s = g.variable("S", "n k", regularizer)
    g.factor(Multilinear(s["n k"]))
    mask = torch.zeros(1, 2, 3, dtype=torch.bool)
    mask[0, 1, 2] = True
    value = torch.full((1, 2, 3), 1 / 3)
    with pytest.raises(
        unn.ObservationError,
        match=says("variable 'S'", "mask", "axis 'k'", repr(regularizer), "whole rows or none"),
    ):
        unn.infer(g, {"S": unn.Partial(value, mask)})
    mask[0, 1] = True
    assert unn.infer(g, {"S": unn.Partial(value, mask)})["S"][0, 1].allclose(value[0, 1])


@pytest.mark.parametrize("over", ["n", None])
def test_a_mask_is_checked_along_the_axis_that_is_normalised_when_its_name_occurs_twice(over):
    g = unn.FactorGraph("g", n=3)
    s = g.variable("S", "n n", unn.Entropy(over=over))
    g.factor(Multilinear(s["i j"]))
    value, whole = torch.full((1, 3, 3), 1 / 3), torch.zeros(1, 3, 3, dtype=torch.bool)
    whole.select(s.regularizer.dim, 0).fill_(True)
    with pytest.raises(unn.ObservationError, match=says("variable 'S'", "axis 'n'")):
        unn.infer(g, {"S": unn.Partial(value, whole)})
    assert unn.infer(g, {"S": unn.Partial(value, whole.mT)}).values


@pytest.mark.parametrize(
    ("error", "initial", "words"),
    [
        (unn.InferenceError, {"Y": "rnd"}, ["'Y'", "'zero', 'uniform', 'random'", "'rnd'"]),
        (unn.InferenceError, {"Y": None}, ["'Y'", "'zero', 'uniform', 'random'", "None"]),
        (unn.InferenceError, {"Y": 0}, ["'Y'", "'zero', 'uniform', 'random'", "0"]),
        (unn.InferenceError, {"X": "zero"}, ["'X'", "is given", "drop one"]),
        (unn.InferenceError, {"X": X}, ["'X'", "is given", "drop one"]),
        (unn.InferenceError, {"W": "zero"}, ["unknown variable 'W'"]),
        (unn.ObservationError, {"Y": 2 * UNIFORM}, ["'Y'", "outside the domain", "Entropy()", "sum to 2"]),
        (
            unn.ObservationError,
            {"H": torch.full((2, 5), -1.5)},
            ["'H'", "outside the domain", "SignedEntropy()"],
        ),
        (unn.ObservationError, {"H": torch.full((2, 5), NAN)}, ["'H'", "NaN"]),
        (unn.ObservationError, {"H": torch.zeros(2, 4)}, ["'H'", "axis 'hidden'", "size 4", "expected 5"]),
        (unn.ObservationError, {"H": torch.zeros(2, 5, device="meta")}, ["'H'", "device meta"]),
        (unn.ObservationError, {"H": torch.zeros(2, 5).double()}, ["'H'", "float64"]),
        ((unn.InferenceError, unn.ObservationError), {"H": np.zeros((2, 5))}, ["'H'", "tensor"]),
        ((unn.InferenceError, unn.ObservationError), ["H"], ["initial"]),
    ],
)
def test_initial_values_are_words_or_tensors_inside_the_domain(error, initial, words):
    with pytest.raises(error, match=says(*words)):
        unn.infer(mlp(), {"X": X}, initial=initial)
    if isinstance(initial, dict):
        with pytest.raises(error, match=says(*words)):
            unn.Unrolled(mlp(), "X", "Y", initial=initial)(X)


@pytest.mark.parametrize(
    ("dropout", "words"),
    [
        ({"H": 1.0}, ["'H'", "[0, 1)", "1.0"]),
        ({"H": -0.1}, ["'H'", "[0, 1)", "-0.1"]),
        ({"H": NAN}, ["'H'", "[0, 1)", "nan"]),
        ({"H": "half"}, ["'H'", "half"]),
        ({"H": None}, ["'H'", "None"]),
        ({"X": 0.5}, ["'X'", "is given", "only inferred"]),
        ({"Y": 0.5}, ["'Y'", "Entropy()", "elementwise"]),
        ({"W": 0.5}, ["unknown variable 'W'"]),
        ({"H": torch.ones(3, 5)}, ["'H'", "(3, 5)", "(2, 5)"]),
        ({"H": -torch.ones(2, 5)}, ["'H'", "mask"]),
        ({"H": torch.full((2, 5), NAN)}, ["'H'", "mask"]),
        ({"H": torch.ones(2, 5, device="meta")}, ["'H'", "meta"]),
    ],
)
def test_dropout_is_a_probability_or_a_mask_on_inferred_elementwise_variables(dropout, words):
    for attempt in (
        lambda: unn.infer(mlp(), {"X": X}, dropout=dropout),
        lambda: unn.Unrolled(mlp(), "X", "Y", dropout=dropout).train()(X),
    ):
        with pytest.raises(unn.InferenceError, match=says("dropout", *words)):
            attempt()
