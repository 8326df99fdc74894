"""Values of variables on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import DataError, ObservationError, UnnError
from ..graph.partial import Partial

if TYPE_CHECKING:
    from ..factor_graph import FactorGraph


_MATRIX = 256
"""Largest number of entries of a matrix that is printed."""


def read_value(graph: FactorGraph, name: str, text: str) -> Tensor | Partial:
    """Parse the value of a variable from a command-line argument, shape ``(batch, *axes)``.

    Args:
        graph: graph that declares the variable.
        name: name of the variable.
        text: a .npy file (one value, or a batch of them), the index of a category for each node of a variable
            on a simplex, or numbers, both separated by commas, ? for those that are not given.

    Raises:
        DataError: if a file cannot be read.
        ObservationError: if the text has another form, or does not match the shape.
    """
    from ..regularizers.simplex import Simplex

    variable = graph.variable_named(name)
    shape = graph.size_table.shape(variable, graph.size_table.static)
    if text.endswith(".npy"):
        return _with_batch(read_array(f"{name}={text}", text), name, text, shape)
    parts = [part.strip() for part in text.split(",")]
    if isinstance(variable.regularizer, Simplex):
        categories = _categories(name, text, parts, shape)
        nodes = len(variable.node_axes)
        if isinstance(categories, Tensor) or (categories is not None and nodes == len(shape) - 1):
            return categories
    known = torch.tensor([part != "?" for part in parts])
    try:
        numbers = torch.tensor([0.0 if part == "?" else float(part) for part in parts])
    except ValueError:
        raise ObservationError(
            f"--given {name}={text}: give numbers separated by commas (? for those that are not given), a "
            "category, or a file ending in .npy."
        ) from None
    wanted = [size for size in shape if size is not None]
    if len(wanted) == len(shape) and numbers.numel() == torch.Size(wanted).numel():
        value, mask = numbers.reshape(1, *wanted), known.reshape(1, *wanted)
    else:
        value, mask = _with_batch(numbers, name, text, shape), _with_batch(known, name, text, shape)
    if bool(known.all()):
        return value
    features = mask.ndim - 1 - len(variable.node_axes)
    if features:
        entries = mask.flatten(mask.ndim - features)
        mask = entries.all(-1)
        if bool((entries.any(-1) != mask).any()):
            raise ObservationError(
                f"--given {name}={text}: the entries along {', '.join(variable.feature_axes)} are one "
                f"value; give "
                "all of them or none."
            )
    return Partial(value, mask)


def _categories(
    name: str, text: str, parts: Sequence[str], shape: tuple[int | None, ...]
) -> Tensor | Partial | None:
    """Categories of the nodes of a variable, of which the last axis has the options; None if the text is no
    list of as many categories as nodes.

    Raises:
        ObservationError: for a category that the variable does not have.
    """
    *nodes, options = shape
    if options is None or not all(part == "?" or (part.isascii() and part.isdecimal()) for part in parts):
        return None
    if len(nodes) == 1 and nodes[0] is None:
        nodes = [len(parts)]
    sizes = [size for size in nodes if size is not None]
    if len(sizes) < len(nodes) or len(parts) != torch.Size(sizes).numel():
        return None
    numbers = [0 if part == "?" else int(part) for part in parts]
    if max(numbers, default=0) >= options:
        raise ObservationError(f"--given {name}={text}: categories of {name!r} go from 0 to {options - 1}.")
    value = torch.eye(options)[numbers].reshape(1, *sizes, options)
    mask = torch.tensor([part != "?" for part in parts]).reshape(1, *sizes)
    return value if bool(mask.all()) else Partial(value, mask)


def assignments(texts: Sequence[str]) -> Mapping[str, str]:
    """Parse arguments NAME=VALUE into a mapping.

    Raises:
        UnnError: if an argument has no name or no equals sign, or a name occurs twice.
    """
    given: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UnnError(f"--given takes NAME=VALUE, such as label=3, got {text!r}.")
        if name in given:
            raise UnnError(f"--given names {name!r} twice.")
        given[name] = value
    return given


def read_array(where: str, path: str) -> Tensor:
    """Read an array of numbers from a ``.npy`` file, as float32.

    Raises:
        DataError: if there is no such file, or it contains no array of numbers.
    """
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"--given {where}: there is no file {path}.") from None
    except Exception as error:
        # of a damaged header numpy raises errors of many kinds
        raise DataError(f"--given {where}: not a readable .npy file ({error}).") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise DataError(f"--given {where}: holds no array of numbers.")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def describe_value(value: Tensor) -> str:
    """Describe a value: up to 20 numbers in a line, a small matrix row by row, else shape and range.

    Args:
        value: shape ``(1, *axes)``.
    """
    if value.numel() <= 20 and (value.ndim < 3 or 1 in value.shape[1:]):
        return ", ".join(f"{x:.4g}" for x in value.flatten().tolist())
    if value.ndim == 3 and value.numel() <= _MATRIX:
        rows = [[f"{x:.4g}" for x in row] for row in value[0].tolist()]
        width = max(len(x) for row in rows for x in row)
        return "\n" + "\n".join("  " + " ".join(x.rjust(width) for x in row) for row in rows)
    return f"shape {tuple(value.shape[1:])}, from {float(value.min()):.3f} to {float(value.max()):.3f}"


def _with_batch(value: Tensor, name: str, text: str, shape: tuple[int | None, ...]) -> Tensor:
    for candidate in (value[None], value):
        if candidate.ndim == len(shape) + 1 and all(
            size in (None, n) for size, n in zip(shape, candidate.shape[1:], strict=True)
        ):
            return candidate
    wanted = " x ".join("any" if size is None else str(size) for size in shape) or "a single number"
    raise ObservationError(f"--given {name}={text}: has shape {tuple(value.shape)}, expected {wanted}.")
