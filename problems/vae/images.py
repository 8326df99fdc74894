"""Images by name or from a folder, as intensities from 0 to 1."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unn.errors import DataError

from ..digits.data import load_digits

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_TEST_SHARE = 0.1
"""Share of the images of a folder that are kept for tests."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images, shape ``(count, height, width, channels)``, 8-bit intensities from 0 to 255.

    Attributes:
        train: images to learn from.
        test: held-out images.
    """

    train: Tensor
    test: Tensor

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = self.train.shape[1:]
        return height, width, channels


@functools.lru_cache(4)
def load_images(data: str, folder: str = "") -> Images:
    """Load images; the same ones are read once.

    Args:
        data: "digits" (8 x 8, embedded), "mnist" or "omniglot" (28 x 28, under ``$UNN_DATA``), or "folder".
        folder: folder of image files, all of one size, for "folder"; every tenth is kept for tests.

    Raises:
        DataError: for missing, unreadable or differing images; names the file and the remedy.
    """
    if data == "digits":
        digits = load_digits("embedded")
        # 17 grey levels, spread over 8 bits
        parts = (((x + 1) / 2 * 255).round() for x in (digits.train_images, digits.test_images))
        return Images(*(x[:, 0, :, :, None] for x in parts))
    if data == "mnist":
        digits = load_digits("mnist")
        parts = (((x + 1) / 2 * 255).round() for x in (digits.train_images, digits.test_images))
        return Images(*(x[:, 0, :, :, None] for x in parts))
    if data == "omniglot":
        return _omniglot()
    return _folder(Path(folder))


def _omniglot() -> Images:
    """The full set in the file of the importance-weighted auto-encoder paper, or else a part of it."""
    root = os.environ.get("UNN_DATA")
    folder = Path(root or "") / "omniglot"
    whole, path = folder / "chardata.mat", folder / "omniglot_small_28x28.npz"
    if root and whole.exists():
        return _whole_omniglot(whole)
    if not root or not path.exists():
        raise DataError(
            f"OMNIGLOT: neither {whole} nor {path} exists; set UNN_DATA to a folder with one of them: "
            "omniglot/chardata.mat (arrays data and testdata, 784 rows), or "
            "omniglot/omniglot_small_28x28.npz (arrays x_train and x_test of shape (n, 28, 28))."
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = (torch.from_numpy(arrays[name]).float() for name in ("x_train", "x_test"))
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again.") from None
    return Images(train[..., None], test[..., None])


def _whole_omniglot(path: Path) -> Images:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        arrays = loadmat(path, variable_names=["data", "testdata"])
        # one image a column, of which the columns follow one another
        parts = [torch.from_numpy(arrays[name]).T.reshape(-1, 28, 28).mT for name in ("data", "testdata")]
    except (MatReadError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again.") from None
    return Images(*((part.float() * 255).round()[..., None] for part in parts))


def _folder(folder: Path) -> Images:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of images.")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
    if len(paths) < 2:
        raise DataError(
            f"{folder}: {len(paths)} images ({', '.join(_ENDINGS)}), but at least two are needed, one of "
            "them for tests."
        )
    images = [_read(path) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape != images[0].shape:
            raise DataError(
                f"{path}: an image of {_size(image)}, but {paths[0].name} has {_size(images[0])}; all must "
                "have one size."
            )
    stacked = torch.stack(images)
    step = round(1 / _TEST_SHARE)
    test = torch.arange(len(stacked)) % step == min(step, len(stacked)) - 1
    return Images(stacked[~test], stacked[test])


def _read(path: Path) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            mode = picture.mode
            array = np.asarray(picture.convert("L" if mode in ("1", "L", "LA") else "RGB"))
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: no readable image ({error}); remove it, or save it again.") from None
    if mode.startswith(("I", "F")):
        raise DataError(
            f"{path}: an image of mode {mode!r}, with more than 8 bits for each channel; save it with 8 bits."
        )
    x = torch.from_numpy(array.astype(np.float32))
    return x[..., None] if x.ndim == 2 else x


def _size(image: Tensor) -> str:
    return f"{image.shape[0]} x {image.shape[1]} pixels and {image.shape[2]} channels"
