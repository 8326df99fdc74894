"""Regularizers refuse nonsense by the name of the argument, and losses take points or class numbers and
nothing else."""

import pytest
import torch
from support.helpers import says

import unn
from factors import Birkhoff, Budget, MaskedEntropy

NONSENSE = ["n", "0", None, b"n", [1.0], True, {}]
ARGUMENTS = [
    (unn.Entropy, "temperature", True),
    (MaskedEntropy, "temperature", True),
    (unn.TsallisEntropy, "alpha", True),
    (unn.Ball, "radius", True),
    (unn.L1, "strength", False),
    (unn.Box, "low", False),
    (Birkhoff, "temperature", False),
    (Budget, "k", True),
]


@pytest.mark.parametrize(("make", "argument", "over"), ARGUMENTS)
@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_what_is_no_number_is_refused_by_the_name_of_the_argument(make, argument, over, value):
    for attempt in (lambda: make(value), lambda: make(**{argument: value})):
        if make is Budget and value is True:
            with pytest.raises(unn.DeclarationError, match=says("Budget", "k", "True")):
                attempt()
            continue
        with pytest.raises(unn.DeclarationError, match=says(make.__name__, argument, repr(value))) as caught:
            attempt()
        assert ("over=" in str(caught.value)) == (over and isinstance(value, str))


@pytest.mark.parametrize("make", [unn.Entropy, unn.SimplexNorm, unn.TsallisEntropy, unn.Ball])
@pytest.mark.parametrize("over", [1, 0.5, ["n"], True])
def test_the_axis_to_act_along_is_given_by_name(make, over):
    with pytest.raises(unn.DeclarationError, match=says(make.__name__, "over", repr(over))):
        make(over=over)


@pytest.mark.parametrize("value", [2, 2.0, torch.tensor(2.0)])
def test_numbers_of_any_kind_are_accepted(value):
    assert (
        unn.Entropy(value).temperature == 2.0
        and unn.Ball(value).radius == 2.0
        and unn.Box(0, value).high == 2.0
    )


def test_a_variable_without_a_regularizer_and_a_partial_without_a_mask_are_refused():
    with pytest.raises(
        unn.DeclarationError, match=says("variable 'X'", "needs a regularizer", "unn.SquaredNorm()")
    ):
        unn.FactorGraph("g").variable("X", "n")
    with pytest.raises(unn.ObservationError, match=says("Partial", "mask", "boolean")):
        unn.Partial(torch.zeros(2, 3))


# -- losses --------------------------------------------------------------------------------------------------

SIMPLICES = [unn.Entropy(), unn.Entropy(0.5), unn.SimplexNorm(), unn.TsallisEntropy(1.5), MaskedEntropy()]


@pytest.mark.parametrize("regularizer", SIMPLICES, ids=repr)
@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 3), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_loss_of_class_numbers_is_that_of_the_one_hot_target(regularizer, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    t = torch.randn(shape, dtype=torch.float64, generator=generator)
    numbers = torch.randint(shape[-1], shape[:-1], generator=generator)
    expected = regularizer.loss(t, torch.nn.functional.one_hot(numbers, shape[-1]).double())
    torch.testing.assert_close(regularizer.loss(t, numbers.to(dtype)), expected)
    torch.testing.assert_close(regularizer.loss(t, torch.nn.functional.one_hot(numbers, shape[-1])), expected)


def test_a_loss_of_class_numbers_is_the_cross_entropy_of_torch_along_any_axis_and_under_vmap():
    t, numbers = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    expected = torch.nn.functional.cross_entropy(t, numbers, reduction="none")
    torch.testing.assert_close(unn.Entropy().loss(t, numbers), expected)
    each = torch.func.vmap(lambda row, number: unn.Entropy().loss(row[None], number[None])[0])(t, numbers)
    torch.testing.assert_close(each, expected)
    t, numbers = torch.randn(4, 3, 6), torch.randint(3, (4, 6))
    along = unn.Entropy(over="label").bind(("label", "place"), "X")
    torch.testing.assert_close(
        along.loss(t, numbers), torch.nn.functional.cross_entropy(t, numbers, reduction="none").sum(1)
    )


def test_class_numbers_of_rows_that_do_not_exist_do_not_matter():
    t, numbers = torch.randn(2, 3, 4), torch.tensor([[0, 1, -100], [3, 2, 99]])
    mask = torch.tensor([True, True, False])[:, None].expand(3, 4)
    torch.testing.assert_close(
        unn.Entropy().loss(t, numbers, mask), unn.Entropy().loss(t[:, :2], numbers[:, :2])
    )


@pytest.mark.parametrize("numbers", [[0, 1, 3], [0, -1, 2]])
def test_class_numbers_out_of_range_are_refused(numbers):
    with pytest.raises(
        unn.ObservationError, match=says("class numbers", "0 to 2", str(min(numbers)), str(max(numbers)))
    ):
        unn.Entropy().loss(torch.randn(3, 3), torch.tensor(numbers))


@pytest.mark.parametrize(
    ("regularizer", "target"),
    [
        (unn.Entropy(), torch.zeros(5)),
        (unn.Entropy(), torch.zeros(5, dtype=torch.bool)),
        (unn.Entropy(), torch.zeros(4, dtype=torch.int64)),
        (unn.Entropy(), torch.zeros(5, 4)),
        (unn.Entropy(), torch.zeros(3)),
        (unn.SquaredNorm(), torch.zeros(5, dtype=torch.int64)),
        (unn.SignedEntropy(), torch.zeros(3)),
        (unn.SignedEntropy(), torch.zeros(5, 3, 1)),
        (Budget(2), torch.zeros(5, dtype=torch.int64)),
    ],
)
def test_targets_of_another_shape_are_refused_with_both_shapes(regularizer, target):
    with pytest.raises(unn.ObservationError, match=says("(5, 3)", str(tuple(target.shape)))) as caught:
        regularizer.loss(torch.randn(5, 3), target)
    assert ("Class numbers" in str(caught.value)) == isinstance(regularizer, unn.Entropy)
