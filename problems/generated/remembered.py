"""Reference posteriors of traced programs, remembered in the user's folder for caches.

A file belongs to a program by the text of its files, and by what it draws and the densities of these draws,
which change with the distributions. The oldest files are removed beyond a total size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from unn import Partial
from unn.errors import DataError
from unn.ops.attention.remember import cache_folder
from unn.programs import Traced
from unn.runs.files import write_atomically

VERSION = "1"
"""Version of the sampler, which changes with its samples."""

MOST_BYTES = 2**28
"""Total size of the files that are kept."""

_FINGERPRINT = 64
"""Draws of a program in its fingerprint."""


def posterior(
    traced: Traced, key: str, given: Mapping[str, Tensor | Partial], particles: int, seed: int
) -> dict[str, Tensor]:
    """``traced.posterior(...).values``, from a file where there is one.

    Args:
        traced: traced program.
        key: what is different for another program.
        given: evidence with a batch axis of 1.
        particles: number of samples.
        seed: random seed.
    """
    place = cache_folder() / "posteriors" / f"{_digest(traced, key, given, particles, seed)}.safetensors"
    remembered = _read(place, traced, particles)
    if remembered is not None:
        return remembered
    values = dict(traced.posterior(given, particles, seed=seed).values)
    _write(place, values)
    return values


def _digest(
    traced: Traced, key: str, given: Mapping[str, Tensor | Partial], particles: int, seed: int
) -> str:
    """Digest of all that the samples depend on."""
    digest = hashlib.sha256(f"{VERSION} {key} {particles} {seed}".encode())
    draws = traced.draw(_FINGERPRINT, seed=0, dtype=torch.float64)
    parts: list[tuple[str, Tensor]] = [*sorted(draws.items()), ("", traced.log_prob(draws))]
    for name, x in sorted(given.items()):
        # values that are not given do not matter
        value = torch.where(_wide(x.mask, x.value), x.value, 0) if isinstance(x, Partial) else x
        parts += [(name, value), (name, x.mask if isinstance(x, Partial) else torch.ones(()))]
    for name, tensor in parts:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _wide(mask: Tensor, value: Tensor) -> Tensor:
    """A mask of nodes with the axes of features."""
    return mask.reshape(mask.shape + (1,) * (value.ndim - mask.ndim))


def _read(place: Path, traced: Traced, particles: int) -> dict[str, Tensor] | None:
    """Samples of a file; None without one, or with another content."""
    try:
        values = load_file(place)
    except (OSError, SafetensorError):
        return None
    names = list(traced.graph.variables)
    if set(values) != set(names) or any(len(x) != particles for x in values.values()):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    # the file has the names in alphabetical order
    return {name: values[name] for name in names}


def _write(place: Path, values: Mapping[str, Tensor]) -> None:
    """Remember samples where the folder can be written, and forget the oldest."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, save({name: x.contiguous() for name, x in values.items()}))
        files = sorted(place.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        excess = sum(file.stat().st_size for file in files) - MOST_BYTES
        for file in files[:-1]:
            if excess <= 0:
                break
            excess -= file.stat().st_size
            file.unlink()
    except (OSError, DataError):
        # samples that cannot be kept are drawn again
        return
