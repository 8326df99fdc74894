"""Weights of a module as safetensors, with a checksum in the metadata of the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError, suggest
from ..renamed import current_name
from .files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "model.safetensors"
CHECKSUM = "sha256"
"""Key of the checksum in the metadata of the file; older files have no metadata."""
_FOREIGN = (None, {"format": "pt"})
"""Metadata of files without a checksum: of older versions, and of other packages."""


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a shared tensor appears once, under its first name."""
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, x in dict(module.state_dict(keep_vars=True)).items():
        # the state of a module may contain other objects than tensors
        if isinstance(x, Tensor) and id(x) not in seen:
            seen.add(id(x))
            tensors[name] = x
    return tensors


def save_weights(folder: Path, module: nn.Module) -> None:
    """Save all parameters and buffers as safetensors, atomically, with a SHA-256 checksum in the same file.

    Raises:
        DataError: if the file cannot be written.
    """
    from .tree import to_bytes

    tensors = named_tensors(module)
    write_atomically(folder / WEIGHTS, to_bytes(tensors, {CHECKSUM: _checksum(to_bytes(tensors))}))


def load_weights(path: Path, module: nn.Module) -> None:
    """Load the weights of ``save_weights`` into a module of the same structure.

    Args:
        path: the file, or the run folder.
        module: module to load into; unchanged if loading fails.

    Raises:
        DataError: if the file is missing, truncated or corrupt, its checksum differs, or its names,
            shapes and kinds of numbers do not match the module. Files without a checksum (of older
            versions, or with the metadata ``{"format": "pt"}`` of other packages) are read without this
            check.
    """
    from .tree import from_bytes

    if path.is_dir():
        path = path / WEIGHTS
    if not path.is_file():
        raise DataError(f"{path.parent} has no {path.name}; the run has not finished.")
    try:
        content = path.read_bytes()
        tensors = from_bytes(content)
        metadata = _metadata(content)
        intact = metadata in _FOREIGN or metadata == {CHECKSUM: _checksum(content)}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}).") from None
    if not intact:
        raise DataError(
            f"{path} is corrupt: its content does not match its SHA-256 checksum. Delete it, then unn resume "
            f"{path.parent} writes it again from the last checkpoint; or copy it again from its source."
        )
    copy_weights(tensors, module, str(path))


def _header(content: bytes) -> tuple[dict[str, object], bytes]:
    """Split a safetensors file into its header (a length of 8 bytes, then JSON) and the data after it."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _metadata(content: bytes) -> object:
    """Metadata of a safetensors file; None if it has none."""
    return _header(content)[0].get("__metadata__")


def _checksum(content: bytes) -> str:
    """SHA-256 of names, dtypes, shapes and values, independent of the metadata."""
    header, numbers = _header(content)
    header.pop("__metadata__", None)
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(numbers)
    return digest.hexdigest()


def _current_name(name: str, own: Mapping[str, Tensor]) -> str:
    """The name of a tensor now, by its name now or in an earlier version, when the declaration of
    ``unn.Unrolled`` was called ``graph``."""
    if name in own:
        return name
    name = current_name(name)
    renamed = ".".join("declaration" if part == "graph" else part for part in name.split("."))
    return renamed if name not in own and renamed in own else name


def copy_weights(tensors: Mapping[str, Tensor], module: nn.Module, where: str) -> None:
    """Copy tensors by name into a module.

    Args:
        tensors: tensors by name, from ``named_tensors``. Those that a module names in ``later_tensors`` may
            be missing, as they are in weights of earlier versions, and are then left as they are.
        module: module to copy into; unchanged if copying fails.
        where: source of the tensors, for messages.

    Raises:
        DataError: if names, shapes or kinds of numbers do not match the module, or a tensor of the module
            cannot be written to.
    """
    later = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in getattr(part, "later_tensors", ())
    }
    own = named_tensors(module)
    tensors = {_current_name(name, own): x for name, x in tensors.items()}
    own = {name: x for name, x in own.items() if name in tensors or name not in later}
    for name, x in own.items():
        if name not in tensors:
            raise DataError(f"{where} lacks {name!r}; it belongs to another graph.{suggest(name, tensors)}")
        if tensors[name].shape != x.shape:
            raise DataError(
                f"{where}: {name!r} has shape {tuple(tensors[name].shape)}, but this graph needs "
                f"{tuple(x.shape)}."
            )
        if tensors[name].is_floating_point() != x.is_floating_point():
            raise DataError(
                f"{where}: {name!r} has the dtype {tensors[name].dtype}, but this graph needs {x.dtype}."
            )
        if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
            raise DataError(
                f"{where}: {name!r} of the module is an expanded tensor, which cannot be written to; clone "
                "it."
            )
    for name in tensors:
        if name not in own:
            raise DataError(f"{where} has {name!r}, but this graph does not; it belongs to another graph.")
    for name, x in own.items():
        x.data.copy_(tensors[name])
