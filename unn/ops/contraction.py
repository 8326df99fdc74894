"""Contractions of named dimensions, compiled once per pattern to few tensor operations.

A contraction is given by the letters of each operand and of its result; the order of pairwise products comes
from opt_einsum. Each pair becomes ``linear``, ``matmul`` or a broadcast product where the letters allow, and
an einsum of two operands otherwise. Operands without a batch letter are not expanded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import opt_einsum
import torch
import torch.nn.functional as F
from opt_einsum.paths import linear_to_ssa
from torch import Tensor

BATCH = "*"
Letters = tuple[str, ...]
_Step = tuple[tuple[int, ...], Callable[..., Tensor]]


class Contraction:
    """Compiled sum over products of operands.

    Args:
        operands: letters of each operand; ``BATCH`` marks a batch dimension.
        result: letters of the result; letters that no operand has become dimensions of size 1.
        sizes: typical sizes of letters, for the choice of the path.
    """

    def __init__(self, operands: tuple[Letters, ...], result: Letters, sizes: dict[str, int]) -> None:
        present = {letter for operand in operands for letter in operand}
        inner = tuple(letter for letter in result if letter in present)
        # operands and results are numbered in the order in which they are made
        self._steps: list[_Step] = []
        known = dict(enumerate(operands))
        for numbers in linear_to_ssa(_path(operands, inner, sizes)):
            pair = [known.pop(number) for number in sorted(numbers)]
            last = not known
            needed = set(inner).union(*known.values())
            if len(pair) == 1:
                letters, run = _single(pair[0], inner)
            else:
                letters, run = _pair(pair[0], pair[1], needed, inner if last else None)
            known[len(operands) + len(self._steps)] = letters
            self._steps.append((tuple(sorted(numbers)), run))
        self._missing = [k for k, letter in enumerate(result) if letter not in present]
        self._only = self._steps[0][1] if len(self._steps) == 1 else None

    def __call__(self, operands: Sequence[Tensor]) -> Tensor:
        out = self._run_steps(operands) if self._only is None else self._only(*operands)
        for axis in self._missing:
            out = out.unsqueeze(axis)
        return out

    def _run_steps(self, operands: Sequence[Tensor]) -> Tensor:
        # a list that only grows: torch.compile is silently wrong about positions in one that shrinks
        made = list(operands)
        for numbers, run in self._steps:
            made.append(run(*[made[number] for number in numbers]))
        return made[-1]


def contraction(
    operands: tuple[Letters, ...], result: Letters, sizes: dict[str, int] | None = None
) -> Contraction:
    """Return the contraction for a pattern, cached."""
    return _contraction(operands, result, tuple(sorted((sizes or {}).items())))


@lru_cache(maxsize=4096)
def _contraction(
    operands: tuple[Letters, ...], result: Letters, sizes: tuple[tuple[str, int], ...]
) -> Contraction:
    return Contraction(operands, result, dict(sizes))


def _path(operands: tuple[Letters, ...], result: Letters, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    if len(operands) <= 2:
        return [tuple(range(len(operands)))]
    symbols = _symbols(operands)
    equation = ",".join("".join(symbols[x] for x in operand) for operand in operands)
    equation += "->" + "".join(symbols[x] for x in result)
    shapes = [tuple(sizes.get(x, 64 if x == BATCH else 24) for x in operand) for operand in operands]
    path, _ = opt_einsum.contract_path(
        equation, *shapes, shapes=True, optimize="optimal" if len(operands) <= 5 else "auto"
    )
    return [tuple(step) for step in path]


def _symbols(operands: Sequence[Letters]) -> dict[str, str]:
    return {
        x: opt_einsum.get_symbol(k)
        for k, x in enumerate(dict.fromkeys(x for operand in operands for x in operand))
    }


def _single(letters: Letters, result: Letters) -> tuple[Letters, Callable[..., Tensor]]:
    summed = tuple(k for k, x in enumerate(letters) if x not in result)
    remaining = [x for x in letters if x in result]
    order = [remaining.index(x) for x in result]

    def run(a: Tensor) -> Tensor:
        if summed:
            a = a.sum(summed)
        return a.permute(order) if order != sorted(order) else a

    return result, run


def _pair(
    a: Letters, b: Letters, needed: set[str], result: Letters | None
) -> tuple[Letters, Callable[..., Tensor]]:
    only_a = [x for x in a if x not in b and x not in needed]
    only_b = [x for x in b if x not in a and x not in needed]
    if only_a or only_b:
        left = tuple(x for x in a if x not in only_a)
        right = tuple(x for x in b if x not in only_b)
        letters, inner = _pair(left, right, needed, result)
        _, reduce_a = _single(a, left)
        _, reduce_b = _single(b, right)
        return letters, lambda s, t: inner(reduce_a(s), reduce_b(t))
    summed = [x for x in a if x in b and x not in needed]
    if not summed:
        return _product(a, b, result)
    for swapped, (s, t) in ((False, (a, b)), (True, (b, a))):
        lowered = _linear(s, t, summed, result) or _matmul(s, t, summed, result)
        if lowered is not None:
            letters, run = lowered
            return letters, (lambda x, y, run=run: run(y, x)) if swapped else run
    return _einsum(a, b, summed, result)


def _product(a: Letters, b: Letters, result: Letters | None) -> tuple[Letters, Callable[..., Tensor]]:
    letters = result or a + tuple(x for x in b if x not in a)
    align_a, align_b = _aligner(a, letters), _aligner(b, letters)
    return letters, lambda s, t: align_a(s) * align_b(t)


def _aligner(letters: Letters, result: Letters) -> Callable[[Tensor], Tensor]:
    order = [letters.index(x) for x in result if x in letters]
    missing = [k for k, x in enumerate(result) if x not in letters]

    def align(s: Tensor) -> Tensor:
        if order != sorted(order):
            s = s.permute(order)
        for axis in missing:
            s = s.unsqueeze(axis)
        return s

    return align


def _linear(
    a: Letters, b: Letters, summed: list[str], result: Letters | None
) -> tuple[Letters, Callable[..., Tensor]] | None:
    """Lower to ``linear``: the summed letters end ``a``, start or end ``b``, and are the only shared ones."""
    count = len(summed)
    tail = a[len(a) - count :]
    free_b = tuple(x for x in b if x not in summed)
    free_a = a[: len(a) - count]
    letters = free_a + free_b
    if (
        set(tail) != set(summed)
        or set(free_a) & set(free_b)
        or not free_b
        or (result is not None and result != letters)
    ):
        return None
    if b[len(b) - count :] == tail:
        transposed = False
    elif b[:count] == tail:
        transposed = True
    else:
        return None
    several = len(free_b)

    def run(s: Tensor, t: Tensor) -> Tensor:
        shape = t.shape[count:] if transposed else t.shape[:several]
        if count > 1:
            s = s.flatten(-count)
            t = t.flatten(0, count - 1) if transposed else t.flatten(-count)
        if several > 1:
            t = t.flatten(-several) if transposed else t.flatten(0, several - 1)
        out = torch.matmul(s, t) if transposed else F.linear(s, t)
        return out.unflatten(-1, shape) if several > 1 else out

    return letters, run


def _matmul(
    a: Letters, b: Letters, summed: list[str], result: Letters | None
) -> tuple[Letters, Callable[..., Tensor]] | None:
    """Lower to ``matmul``: stacks of matrices over the same leading letters, with one summed letter."""
    if len(summed) != 1 or len(a) != len(b) or len(a) < 3 or a[:-2] != b[:-2]:
        return None
    if summed[0] not in a[-2:] or summed[0] not in b[-2:]:
        return None
    flip_a, flip_b = a[-2] == summed[0], b[-1] == summed[0]
    letters = (*a[:-2], a[-1] if flip_a else a[-2], b[-2] if flip_b else b[-1])
    if len(set(letters)) != len(letters) or (result is not None and result != letters):
        return None
    return letters, lambda s, t: torch.matmul(s.mT if flip_a else s, t.mT if flip_b else t)


def _einsum(
    a: Letters, b: Letters, summed: list[str], result: Letters | None
) -> tuple[Letters, Callable[..., Tensor]]:
    letters = result or tuple(x for x in a if x not in summed) + tuple(x for x in b if x not in a)
    symbols = _symbols((a, b))
    names = ["".join(symbols[x] for x in operand) for operand in (a, b, letters)]
    equation = f"{names[0]},{names[1]}->{names[2]}"
    return letters, lambda s, t: torch.einsum(equation, s, t)
