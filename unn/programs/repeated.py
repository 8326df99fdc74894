"""Comparison of two runs of a program: one that uses global randomness has no unique graph."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from ..errors import DeclarationError
from .kinds import Kind
from .tape import Compute, Load, RecordedConstant, RecordedDraw, Settle, Statement, Step, Store, Tape
from .values import Value

_COMPARED = (bool, int, float, complex, str, bytes, slice, np.generic, np.ufunc, BuiltinFunctionType, Kind)


def global_randomness() -> tuple[object, ...]:
    """States of the global generators of Python, numpy and torch, for comparison."""
    name, keys, *rest = np.random.get_state(legacy=True)
    of_torch = torch.get_rng_state().numpy().tobytes()
    return (random.getstate(), name, np.asarray(keys).tobytes(), *rest, of_torch)


@contextmanager
def other_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch, and restore their states on exit."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def refuse_difference(one: Tape, other: Tape) -> None:
    """Check that two runs of a program recorded equal steps.

    Raises:
        DeclarationError: names the line of the first different statement.
    """
    for k, (a, b) in enumerate(zip_longest(one.steps, other.steps)):
        if a is None or b is None or not _same_step(a, b):
            lines = [line for tape in (one, other) if (line := _line_from(tape, k)) is not None]
            where = " or ".join(f"line {line}" for line in dict.fromkeys(lines)) or "its last line"
            raise DeclarationError(
                f"program: two runs of it differ, first in what {where} computes. Random numbers of its own "
                "(random, np.random, torch.rand) must not decide what a program does: draw them with "
                "t.sample. Make random constants before the program runs, or in it with a fixed seed, "
                "np.random.default_rng(0); pass what one run uses up, such as an iterator, as a list."
            )


def _line_from(tape: Tape, start: int) -> int | None:
    """Line of the first statement that completes at step ``start`` or later."""
    return next((step.statement.line for step in tape.steps[start:] if isinstance(step, Settle)), None)


def _same_step(one: Step, other: Step) -> bool:
    if type(one) is not type(other) or one.sources != other.sources:
        return False
    if isinstance(one, RecordedConstant) and isinstance(other, RecordedConstant):
        return _are_equal(one.value, other.value)
    if isinstance(one, Compute) and isinstance(other, Compute):
        return _are_equal(one.function, other.function)
    if isinstance(one, RecordedDraw) and isinstance(other, RecordedDraw):
        a, b = ({**vars(step.distribution), "parameters": None} for step in (one, other))
        fixed = [(type(step.distribution), step.names, step.shape) for step in (one, other)]
        return fixed[0] == fixed[1] and _are_equal(a, b)
    if isinstance(one, Settle) and isinstance(other, Settle):
        return _same_statement(one.statement, other.statement)
    if isinstance(one, (Store, Load)) and isinstance(other, (Store, Load)):
        return one.name == other.name and _are_equal(one.places, other.places)
    return True


def _same_statement(one: Statement, other: Statement) -> bool:
    a, b = ((x.role, x.line, x.kind, x.cliques, x.name) for x in (one, other))
    return a == b and _are_equal(one.nodes, other.nodes)


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two constants or functions are equal; objects of unknown classes are if their classes are."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, FunctionType):
        cells = [[cell.cell_contents for cell in f.__closure__ or ()] for f in (one, other)]
        return bool(one.__code__ == other.__code__) and _are_equal(cells[0], cells[1])
    if isinstance(one, Value):
        return bool(one.step == other.step and one.shape == other.shape)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_are_equal(a, b) for a, b in zip(one, other))
    if isinstance(one, dict):
        return bool(one.keys() == other.keys()) and all(_are_equal(x, other[key]) for key, x in one.items())
    return not isinstance(one, _COMPARED) or bool(one == other or (one != one and other != other))
