"""A device that is not the CPU, made of CPU memory: what would fail or wait on an accelerator can be tested
without one.

Inside ``Elsewhere()`` tensors moved to ``DEVICE`` keep their values. As on an accelerator, operators refuse
to mix them with tensors on the CPU (of more than 0 axes), and random numbers refuse a generator of the other
device. Reading a value is an error where waiting is forbidden.
"""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

# autograd runs on this device wherever torch was built, and no other code computes on it
DEVICE = torch.device("meta")

_READING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
}
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


class MixedDevicesError(RuntimeError):
    """An operator got tensors, or a generator, of two devices."""


class WaitError(RuntimeError):
    """The program waited for a value that the device computes."""


class There(Tensor):
    """A tensor on ``DEVICE``, whose values lie in a CPU tensor."""

    @staticmethod
    def __new__(cls, inner):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        tensor.inner = inner
        return tensor

    def __repr__(self, *, tensor_contents=None):
        return f"There({self.inner!r})"

    def tolist(self):
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise MixedDevicesError(f"{func} outside of Elsewhere()")


class Elsewhere(TorchDispatchMode):
    """Computes on ``DEVICE``.

    Args:
        waiting: may the program read values, or copy between devices?
    """

    def __init__(self, waiting=True):
        super().__init__()
        self.waiting = waiting
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        there = [x for x in leaves if isinstance(x, There)]
        here = [x for x in leaves if not isinstance(x, There)]
        target = kwargs.get("device")
        target = None if target is None else torch.device(target)
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if not there and target != DEVICE:
            return func(*args, **kwargs)
        self.seen += 1
        if there and any(x.ndim for x in here) and not copies:
            raise MixedDevicesError(f"{func} of {[(tuple(x.shape), x.device.type) for x in leaves]}")
        if kwargs.get("generator") is not None:
            raise MixedDevicesError(
                f"{func}: a generator of {kwargs['generator'].device} for tensors elsewhere"
            )
        by_mask = func in _INDEXING and any(
            x.dtype == torch.bool for x in tree_leaves(args[1]) if isinstance(x, Tensor)
        )
        reads = (
            func in _READING or by_mask or (copies and (here or (target is not None and target != DEVICE)))
        )
        if reads and not self.waiting:
            raise WaitError(f"{func} of {[tuple(x.shape) for x in leaves]}")
        if target is not None:
            kwargs["device"] = "cpu"
        inner_args, inner_kwargs = tree_map_only(There, lambda x: x.inner, (args, kwargs))
        out = func(*inner_args, **inner_kwargs)
        if target is not None and target != DEVICE:
            return out
        out = tree_map_only(Tensor, There, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if there else out


@contextmanager
def modules_elsewhere():
    """``Elsewhere``, where modules move with their parameters: these are replaced, not filled, so that they
    can be of another class."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with Elsewhere():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def values(x):
    """The values of a tensor elsewhere, or of tensors in lists, tuples and dictionaries, on the CPU."""
    return tree_map_only(There, lambda y: y.inner.detach(), x)
