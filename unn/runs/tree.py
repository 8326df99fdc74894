"""Conversion of a nested ``state_dict()`` to JSON and named tensors, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TENSOR, _PAIRS, _TUPLE = "$tensor", "$pairs", "$tuple"


def split_tensors(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a state into JSON, in which tensors are replaced by names, and the tensors by name.

    Args:
        state: nested dictionaries, lists, tuples, tensors, numbers, strings and None.

    Raises:
        TypeError: names the path of a value of another type.
    """
    tensors: dict[str, Tensor] = {}
    return _convert(state, "state", tensors), tensors


def join_tensors(content: Any, tensors: dict[str, Tensor]) -> Any:
    """Restore a state from the result of ``split_tensors``.

    Raises:
        KeyError: if a tensor is missing.
    """
    if isinstance(content, list):
        return [join_tensors(item, tensors) for item in content]
    if not isinstance(content, dict):
        return content
    if content.keys() == {_TENSOR}:
        return tensors[content[_TENSOR]]
    if content.keys() == {_TUPLE}:
        return tuple(join_tensors(item, tensors) for item in content[_TUPLE])
    if content.keys() == {_PAIRS}:
        return {join_tensors(key, tensors): join_tensors(value, tensors) for key, value in content[_PAIRS]}
    return {key: join_tensors(value, tensors) for key, value in content.items()}


def _convert(state: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, Tensor):
        tensors[where] = state.detach()
        return {_TENSOR: where}
    if isinstance(state, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in state):
            return {key: _convert(value, f"{where}.{key}", tensors) for key, value in state.items()}
        return {
            _PAIRS: [
                [_convert(key, where, tensors), _convert(value, f"{where}.{key}", tensors)]
                for key, value in state.items()
            ]
        }
    if isinstance(state, (list, tuple)):
        items = [_convert(item, f"{where}.{k}", tensors) for k, item in enumerate(state)]
        return items if isinstance(state, list) else {_TUPLE: items}
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    raise TypeError(
        f"{where} is of type {type(state).__name__}, which cannot be stored in a checkpoint; "
        "use tensors, numbers, strings, lists and dictionaries."
    )


def to_bytes(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Serialise tensors as safetensors; each tensor is copied, so that none share memory.

    Args:
        tensors: tensors by name.
        metadata: strings for the header of the file; none by default.
    """
    from safetensors.torch import save

    return save({name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}, metadata)


def from_bytes(content: bytes) -> dict[str, Tensor]:
    """Read tensors by name from safetensors.

    Raises:
        ValueError: if the content is truncated or corrupt.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(content))
    except (SafetensorError, RuntimeError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from None


def first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    """Name of the first tensor with a NaN or infinite entry; None if all are finite."""
    return next(
        (name for name, x in tensors.items() if x.is_floating_point() and not bool(torch.isfinite(x).all())),
        None,
    )
