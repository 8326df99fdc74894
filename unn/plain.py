"""Plain tensors, whatever traces or transforms a call: what plans are made of, and read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


def planned(make: Callable[[], Value]) -> Value:
    """What ``make`` returns, made of plain tensors.

    Compilation and export would trace loops over nodes and calls of numpy, and a cached plan outlives them:
    it must hold no tensor of theirs or of ``torch.func``. A call in compiled code is a graph break; code
    under ``fullgraph=True`` needs one call before, uncompiled.
    """
    return uncompiled(lambda: _plain(make))


def uncompiled(make: Callable[[], Value]) -> Value:
    """What ``make`` returns, of which ``torch.compile`` traces nothing."""
    if torch.compiler.is_dynamo_compiling():
        # here, since it imports the compiler, which takes a second
        from .uncompiled import call

        value: Value = call(make)
        return value
    return make()


def without_compilation(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """The function, of which ``torch.compile`` traces nothing: it runs as it is, between compiled graphs."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        return uncompiled(lambda: function(*args, **kwargs))

    return call


def _plain(make: Callable[[], Value]) -> Value:
    with (
        unset_fake_temporarily(),
        disable_proxy_modes_tracing(),
        disable_functional_mode(),
        temporarily_clear_interpreter_stack(),
    ):
        return make()


def array_of(x: Tensor) -> NDArray[Any]:
    """The values of a tensor that no transform varies, such as numbers of nodes, under ``torch.func`` too."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    plain = x
    array: NDArray[Any] = planned(lambda: plain.detach().cpu().numpy())
    return array


def is_vmapped(x: Tensor) -> bool:
    """Whether ``torch.func.vmap`` runs over a tensor, so that its numbers cannot be read."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return True
        x = get_unwrapped(x)
    return False
