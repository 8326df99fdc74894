"""Lowered contractions against einsum, whatever the letters."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from unn.ops.contraction import BATCH, contraction

SIZES = {BATCH: 4, "a": 2, "b": 3, "c": 1, "d": 2, "e": 3}
SYMBOLS = dict(zip(SIZES, "zabcde", strict=True))


def einsum(operands, result, tensors):
    """The same by torch.einsum; letters of the result that no operand has become dimensions of size 1."""
    present = {letter for operand in operands for letter in operand}
    equation = ",".join("".join(SYMBOLS[x] for x in operand) for operand in operands)
    out = torch.einsum(equation + "->" + "".join(SYMBOLS[x] for x in result if x in present), *tensors)
    return out.reshape([SIZES[x] if x in present else 1 for x in result])


def tensors_for(operands, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn([SIZES[x] for x in operand], dtype=torch.float64, generator=generator)
        for operand in operands
    ]


@st.composite
def problems(draw, most=5):
    letters = list(SIZES)
    operands = tuple(
        tuple(draw(st.permutations(letters))[: draw(st.integers(0, 4))])
        for _ in range(draw(st.integers(1, most)))
    )
    result = tuple(draw(st.permutations(letters))[: draw(st.integers(0, 4))])
    return operands, result, draw(st.integers(0, 999))


@settings(max_examples=250, deadline=None)
@given(problems())
def test_any_letters_give_what_einsum_gives(problem):
    operands, result, seed = problem
    tensors = tensors_for(operands, seed)
    contracted = contraction(operands, result)(tensors)
    torch.testing.assert_close(contracted, einsum(operands, result, tensors), rtol=1e-11, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(problems(most=4))
def test_gradients_are_those_of_einsum(problem):
    operands, result, seed = problem
    tensors = [t.requires_grad_() for t in tensors_for(operands, seed)]
    outs = [contraction(operands, result)(tensors), einsum(operands, result, tensors)]
    weight = torch.randn(outs[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ours, expected = (torch.autograd.grad((out * weight).sum(), tensors, allow_unused=True) for out in outs)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))))
def test_every_order_of_letters_and_operands_of_a_pair_is_right(order):
    """All layouts of two operands over three letters: those that are linear maps or stacks of matrices, and
    those that are not."""
    a = tuple((BATCH, "a", "b")[k] for k in order)
    for shared in ("a", "b", BATCH):
        for b in itertools.permutations((shared, "d")):
            for count in range(4):
                for result in itertools.permutations(dict.fromkeys((*a, *b)), count):
                    for pair in ((a, b), (b, a)):
                        tensors = tensors_for(pair)
                        contracted = contraction(pair, result)(tensors)
                        torch.testing.assert_close(
                            contracted, einsum(pair, result, tensors), rtol=1e-12, atol=1e-12
                        )


@pytest.mark.parametrize("stack", [("a", "e"), ("a", "a"), (BATCH, BATCH)])
def test_every_layout_of_a_first_step_is_right_whether_its_operands_share_their_stack_or_not(stack):
    """The product of the first two, over d, is an intermediate of free layout: a wrong one shows only in the
    last step."""
    first, second = stack
    third = tuple(dict.fromkeys((BATCH, first, "b", second, "c")))
    typical = {"d": 2, BATCH: 1000}
    for a, b in itertools.product(
        itertools.permutations((first, "b", "d")), itertools.permutations((second, "c", "d"))
    ):
        operands = (a, b, third)
        tensors = tensors_for(operands)
        contracted = contraction(operands, (BATCH,), typical)(tensors)
        torch.testing.assert_close(contracted, einsum(operands, (BATCH,), tensors), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("operands", "result"),
    [
        (((BATCH, "a", "b"), (BATCH, "b", "d")), (BATCH, "a", "d")),
        (((BATCH, "a", "b"), (BATCH, "d", "b")), (BATCH, "a", "d")),
        (((BATCH, "a", "b"), (BATCH, "d", "b")), (BATCH, "d", "a")),
        (((BATCH, "b", "a"), (BATCH, "d", "b")), (BATCH, "a", "d")),
    ],
)
def test_products_of_stacks_of_matrices_are_one_matmul(operands, result, monkeypatch):
    tensors = tensors_for(operands)
    expected = einsum(operands, result, tensors)
    calls = []
    original = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda *args: (calls.append(args), original(*args))[1])
    monkeypatch.setattr(
        torch, "einsum", lambda *args: pytest.fail("einsum in place of a product of matrices")
    )
    torch.testing.assert_close(contraction(operands, result)(tensors), expected)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("operands", "result"),
    [
        (((BATCH, "b"), ("a", "b")), (BATCH, "a")),
        (((BATCH, "a"), ("a", "b")), (BATCH, "b")),
        (((BATCH, "d", "b"), ("a", "b")), (BATCH, "d", "a")),
        (((BATCH, "d", "b"), ("a", "e", "d", "b")), (BATCH, "a", "e")),
        ((("a", "e", "d", "b"), (BATCH, "d", "b")), (BATCH, "a", "e")),
        (((BATCH, "a", "e"), ("a", "e", "d", "b")), (BATCH, "d", "b")),
    ],
)
def test_maps_by_a_weight_without_batch_are_never_einsums_and_leave_the_weight_in_place(
    operands, result, monkeypatch
):
    """The weight reaches the kernel in its own storage, not expanded, whatever the layout of its letters."""
    tensors = tensors_for(operands)
    expected = einsum(operands, result, tensors)
    weight = next(t for t, letters in zip(tensors, operands, strict=True) if BATCH not in letters)
    used = []

    def spy(original):
        return lambda x, w: (used.append(w), original(x, w))[1]

    monkeypatch.setattr(torch, "matmul", spy(torch.matmul))
    monkeypatch.setattr(torch.nn.functional, "linear", spy(torch.nn.functional.linear))
    monkeypatch.setattr(torch, "einsum", lambda *args: pytest.fail("einsum in place of a linear map"))
    torch.testing.assert_close(contraction(operands, result)(tensors), expected)
    assert [(w.data_ptr(), w.numel()) for w in used] == [(weight.data_ptr(), weight.numel())]


def test_a_single_operand_that_is_only_reordered_is_a_view():
    x = torch.randn(4, 2, 3)
    out = contraction(((BATCH, "a", "b"),), (BATCH, "c", "b", "a"))([x])
    assert out.shape == (4, 1, 3, 2)
    assert out.data_ptr() == x.data_ptr()


def test_letters_of_the_result_that_no_operand_has_are_dimensions_of_size_one():
    out = contraction((("a",), ("a", "b")), (BATCH, "d", "b", "e"))(tensors_for((("a",), ("a", "b"))))
    assert out.shape == (1, 1, 3, 1)


def test_one_pattern_is_lowered_once():
    operands, result = ((BATCH, "once"), ("once", "a"), ("a", "b")), (BATCH, "b")
    first = contraction(operands, result)
    assert contraction(tuple(map(tuple, map(list, operands))), (BATCH, "b")) is first
    assert contraction(operands, result, {}) is first
    assert contraction(operands, (BATCH, "a")) is not first


class NewEntries(TorchDispatchMode):
    """Remembers the most entries that any tensor with storage of its own had."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not any(isinstance(x, torch.Tensor) and x.data_ptr() == out.data_ptr() for x in args):
            self.most = max(self.most, out.numel())
        return out


@pytest.mark.parametrize("thin", ["a", "e"])
def test_typical_sizes_choose_the_path_with_small_intermediates(thin):
    sizes = {"a": 50, "b": 50, "d": 50, "e": 50, thin: 1}
    operands, result = (("a", "b"), ("b", "d"), ("d", "e")), ("a", "e")
    tensors = [torch.randn([sizes[x] for x in operand], dtype=torch.float64) for operand in operands]
    run = contraction(operands, result, sizes)
    with NewEntries() as new:
        out = run(tensors)
    torch.testing.assert_close(out, tensors[0] @ tensors[1] @ tensors[2])
    assert new.most == 50


def test_contractions_of_any_orders_compile_in_one_process():
    """Orders that vary between contractions become symbols of torch.compile, which cannot place operands by
    them in lists that shrink."""

    def contracted(lowered, tensors):
        return lowered(tensors)

    torch._dynamo.reset()
    compiled = torch.compile(contracted, backend="eager")
    chains = [
        ("ab", "bc", "cd", "de"),
        ("cd", "ab", "de", "bc"),
        ("ab", "de", "bc", "cd"),
        ("e", "ab", "b", "a"),
    ]
    for chain in chains:
        operands = tuple(tuple(operand) for operand in chain)
        lowered, tensors = contraction(operands, ("a", "e")), tensors_for(operands)
        torch.testing.assert_close(compiled(lowered, tensors), einsum(operands, ("a", "e"), tensors))
