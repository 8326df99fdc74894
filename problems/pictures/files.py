"""Files of pictures, split into training and test pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from unn.errors import DataError

from ..reading import locate, read_arrays

_HELD_OUT = 1000
"""Pictures at the end of a file that are the test pictures; at most a fifth."""


@dataclass(frozen=True, eq=False)
class PictureSplit:
    """Pictures of one file, 1 for black cells, shape ``(pictures, rows, columns)``.

    Attributes:
        training: training pictures.
        test: test pictures.
    """

    training: Tensor
    test: Tensor


@lru_cache(maxsize=4)
def load_pictures(path: str, rows: int, columns: int) -> PictureSplit:
    """Pictures of a file (.npz) with an array ``grid`` of zeros and ones, shape ``(pictures, rows,
    columns)``; the last 1,000, at most a fifth, are the test pictures.

    Args:
        path: the file, looked up in ``$UNN_DATA`` if missing.
        rows, columns: size of the pictures.

    Raises:
        DataError: for a file that is missing or malformed, and for pictures of another size.
    """
    arrays = read_arrays(locate(path), "pictures")
    if "grid" not in arrays:
        raise DataError(f"{path}: the file lacks the array 'grid'.")
    grid = arrays["grid"]
    if grid.ndim != 3 or grid.dtype.kind not in "biu" or ((grid != 0) & (grid != 1)).any():
        raise DataError(
            f"{path}: 'grid' must have zeros and ones alone, and the shape (pictures, rows, columns); it is "
            f"{grid.dtype} of shape {grid.shape}."
        )
    if grid.shape[1:] != (rows, columns):
        raise DataError(
            f"{path}: its pictures have {grid.shape[1]} rows and {grid.shape[2]} columns, but those of the "
            f"run {rows} and {columns}."
        )
    if len(grid) < 5:
        raise DataError(f"{path}: {len(grid)} pictures; at least five are needed to hold some out.")
    pictures = torch.from_numpy(grid.astype("int64"))
    held_out = min(_HELD_OUT, len(pictures) // 5)
    return PictureSplit(pictures[:-held_out], pictures[-held_out:])
