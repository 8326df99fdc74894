"""Images of handwritten digits: the 8x8 set inside scikit-learn, or MNIST from IDX files."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from unn.errors import DataError
from unn.runs import tensor_digest

_MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class Digits:
    """Images in [-1, 1], shape ``(n, 1, rows, columns)``, float32; labels 0 to 9, shape ``(n,)``, int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def image_shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.train_images.shape[2], self.train_images.shape[3]

    def checksums(self, data: str) -> dict[str, str]:
        """SHA-256 of each part, by the name of its file for MNIST.

        Args:
            data: "embedded" or "mnist".
        """
        parts = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        files = [name for pair in _MNIST_FILES.values() for name in pair]
        embedded = [
            f"scikit-learn digits: {part}"
            for part in ("training images", "training labels", "test images", "test labels")
        ]
        return {
            name: tensor_digest(x)
            for name, x in zip(files if data == "mnist" else embedded, parts, strict=True)
        }


def load_digits(data: Literal["embedded", "mnist"] = "embedded", folder: str | Path | None = None) -> Digits:
    """Load one of the two sets.

    Args:
        data: "embedded" (1,797 images of 8x8, split 80/20 by a fixed permutation) or "mnist" (60,000 + 10,000
            of 28x28).
        folder: folder of the four MNIST files, gzipped or not; ``$UNN_DATA/mnist`` by default.

    Raises:
        DataError: if files are missing, truncated or corrupt; with the remedy.
    """
    if data == "embedded":
        return _embedded()
    if data == "mnist":
        return _mnist(folder)
    raise DataError(f"unknown data {data!r} for digits: choose 'embedded' or 'mnist'.")


def move(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Images that are moved by random numbers of pixels along both axes, with background where nothing was.

    Args:
        images: shape ``(n, 1, rows, columns)``, in [-1, 1]; -1 is the background.
        most: largest number of pixels.
        generator: source of the numbers, uniform from ``-most`` to ``most``.
    """
    count, _, rows, columns = images.shape
    first = torch.randint(2 * most + 1, (2, count), generator=generator).to(images.device)
    windows = pad(images[:, 0], (most, most, most, most), value=-1.0).unfold(1, rows, 1).unfold(2, columns, 1)
    return windows[torch.arange(count, device=images.device), first[0], first[1]][:, None]


def read_idx(path: Path) -> NDArray[np.generic]:
    """Read one IDX file, gzipped (by its content, not its name) or not.

    Raises:
        DataError: for an unreadable, truncated, overlong or otherwise corrupt file, with its name.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again.") from None
    if len(raw) < 4:
        raise DataError(f"{path}: only {len(raw)} bytes, too short for an IDX header; download it again.")
    if raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(
            f"{path}: starts with bytes {raw[:4].hex(' ')}, not with the header of an IDX file (00 00 type "
            "rank)."
        )
    rank = raw[3]
    if rank > 8:
        raise DataError(
            f"{path}: the IDX header claims {rank} axes; no such file is known; download it again."
        )
    start = 4 + 4 * rank
    if len(raw) < start:
        raise DataError(
            f"{path}: the IDX header is cut off after {len(raw)} of {start} bytes; download it again."
        )
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", rank, 4))
    dtype = np.dtype(_IDX_TYPES[raw[2]])
    expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(raw) - start != expected:
        fault = "truncated" if len(raw) - start < expected else "too long"
        raise DataError(
            f"{path}: {fault}: shape {shape} needs {expected} bytes of data, found {len(raw) - start}; "
            "download it again."
        )
    try:
        return np.frombuffer(raw, dtype, offset=start).reshape(shape)
    except ValueError as error:
        raise DataError(
            f"{path}: shape {shape} in the IDX header is invalid ({error}); download it again."
        ) from None


def _embedded() -> Digits:
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = torch.from_numpy(bunch.images / 8.0 - 1.0).float().unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    cut = round(0.8 * len(labels))
    train, test = order[:cut], order[cut:]
    return Digits(images[train], labels[train], images[test], labels[test])


def _mnist(folder: str | Path | None) -> Digits:
    if folder is None:
        root = os.environ.get("UNN_DATA")
        if not root:
            raise DataError(
                "MNIST: the variable UNN_DATA is not set. Download train-images-idx3-ubyte.gz, "
                "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz (for "
                "example from the 'ossci-datasets' mirror of MNIST) into a folder mnist/ and set UNN_DATA to "
                "the folder that holds it; or use the embedded digits, which need no files (--data embedded, "
                "or --images embedded of visual)."
            )
        folder = Path(root) / "mnist"
    folder = Path(folder)
    parts = []
    for images_name, labels_name in _MNIST_FILES.values():
        images, labels = read_idx(_find(folder, images_name)), read_idx(_find(folder, labels_name))
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{folder}: {images_name} has shape {images.shape} and {labels_name} shape {labels.shape}; "
                "expected (n, rows, columns) and (n,)."
            )
        if images.dtype.kind != "u" or images.dtype.itemsize != 1:
            raise DataError(
                f"{folder / images_name}: pixels are of type {images.dtype}, expected unsigned bytes 0 to "
                "255."
            )
        if images.size == 0 and len(labels):
            raise DataError(f"{folder / images_name}: images have no pixels, shape {images.shape}.")
        if (
            len(labels) == 0
            or labels.dtype.kind not in "iu"
            or int(labels.min()) < 0
            or int(labels.max()) > 9
        ):
            raise DataError(f"{folder / labels_name}: labels must be digits 0 to 9 of at least one image.")
        pixels = torch.from_numpy(images.astype(np.float32) / 127.5 - 1.0).unsqueeze(1)
        parts += [pixels, torch.from_numpy(labels.astype(np.int64))]
    if parts[0].shape[1:] != parts[2].shape[1:]:
        raise DataError(
            f"{folder}: training images have shape {tuple(parts[0].shape[2:])}, test images "
            f"{tuple(parts[2].shape[2:])}."
        )
    return Digits(*parts)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise DataError(
        f"MNIST: neither {name}.gz nor {name} is in {folder}. Download the four files of MNIST "
        "(train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
        "t10k-labels-idx1-ubyte.gz) into that folder, or use the embedded digits (--data embedded, or "
        "--images embedded of visual)."
    )
