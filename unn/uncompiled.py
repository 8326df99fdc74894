"""Calls that leave compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Value = TypeVar("Value")


@torch.compiler.disable(
    reason="plans and exact inference stay outside of compiled code; call the model once uncompiled"
)  # type: ignore[untyped-decorator]
def call(make: Callable[[], Value]) -> Value:
    """What ``make`` returns."""
    return make()
