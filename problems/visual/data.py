"""Boards of visual sudoku: the signs of cells, their solutions and the images of the signs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import unn
from unn.errors import DataError
from unn.extending import SearchOptions

from ..digits.data import Digits, load_digits
from ..reading import read_arrays
from ..sudoku.grids import declare, draw_grids, one_hot

_FILE = Path("csp") / "visual_sudoku_idx.npz"
_SEED, _HELD_OUT = 20_231, 1000
"""Seed and number of the test boards that are drawn at random."""


@dataclass(frozen=True)
class Boards:
    """Boards of one size.

    Attributes:
        signs: given digits, 0 in empty cells, shape ``(boards, n, n)``.
        solutions: digits from 1, shape ``(boards, n, n)``.
        images: number of the image of each sign among those of its part, shape ``(boards, n, n)``.
    """

    signs: Tensor
    solutions: Tensor
    images: Tensor

    def select(self, rows: Tensor) -> Boards:
        """Some boards."""
        return Boards(self.signs[rows], self.solutions[rows], self.images[rows])


@lru_cache(maxsize=2)
def digits_of(images: str) -> Digits:
    """Images and labels, "embedded" or "mnist".

    Raises:
        DataError: if files are missing or corrupt.
    """
    return load_digits("mnist" if images == "mnist" else "embedded")


def labels_of(digits: Digits, part: str) -> Tensor:
    """Labels of the images of a part, "train" or "test"."""
    return digits.train_labels if part == "train" else digits.test_labels


def images_of(digits: Digits, part: str, numbers: Tensor) -> Tensor:
    """Images by their numbers, shape ``(*numbers, rows, columns)``."""
    images = digits.train_images if part == "train" else digits.test_images
    return images[numbers.flatten(), 0].view(*numbers.shape, *digits.image_shape)


def draw_boards(
    count: int, rows: int, columns: int, given: float, labels: Tensor, generator: torch.Generator
) -> Boards:
    """Random solutions with random given cells, and a random image for each sign.

    Args:
        count: number of boards.
        rows, columns: size of a block.
        given: share of the cells that are given.
        labels: label of each image.
        generator: random number generator.
    """
    n = rows * columns
    solutions = draw_grids(count, rows, columns, generator) + 1
    rank = torch.rand(count, n * n, generator=generator).argsort(1).argsort(1).view(count, n, n)
    signs = torch.where(rank < round(given * n * n), solutions, 0)
    images = torch.zeros_like(signs)
    for sign in range(n + 1):
        own = (labels == sign).nonzero()[:, 0]
        here = signs == sign
        images[here] = own[torch.randint(len(own), (int(here.sum()),), generator=generator)]
    return Boards(signs, solutions, images)


@lru_cache(maxsize=4)
def listed_boards(kind: str, part: str) -> Boards:
    """The boards of the file of indices under ``$UNN_DATA``, whose signs are the labels of their images.

    Args:
        kind: "easy" (31 to 42 given digits) or "hard" (17 to 34).
        part: "train" or "test".

    Raises:
        DataError: if the file is missing or corrupt, or a board has no solution.
    """
    root = os.environ.get("UNN_DATA")
    path = Path(root or "") / _FILE
    if not root or not path.is_file():
        raise DataError(
            f"visual sudoku: boards={kind} needs {_FILE} in the folder $UNN_DATA; or use boards=random."
        )
    name, arrays = f"{kind}_{part}_idx", read_arrays(path, "boards")
    if name not in arrays or arrays[name].dtype.kind not in "iu" or arrays[name].size % 81:
        raise DataError(f"{path}: {name} must be an array of whole numbers, 81 for each board.")
    numbers = torch.from_numpy(arrays[name].astype(np.int64)).view(-1, 9, 9)
    labels = labels_of(digits_of("mnist"), part)
    if not len(numbers) or int(numbers.max()) >= len(labels) or int(numbers.min()) < 0:
        raise DataError(f"{path}: {kind}_{part}_idx must number the {len(labels)} images of MNIST.")
    signs = labels[numbers]
    return Boards(signs, solve_boards(signs, 3, 3), numbers)


def solve_boards(signs: Tensor, rows: int, columns: int) -> Tensor:
    """Solutions of boards, digits from 1.

    Raises:
        DataError: if a board has none.
    """
    n = rows * columns
    search = unn.Search(declare(rows, columns), SearchOptions(mode="depth-first", chains=1))
    given = {"X": unn.Partial(one_hot((signs - 1).clamp(min=0), n), signs > 0)}
    solutions = unn.solve(search, given)
    if not bool(solutions.solved.all()):
        raise DataError(f"visual sudoku: board {int((~solutions.solved).nonzero()[0])} has no solution.")
    return solutions["X"].argmax(-1) + 1


@lru_cache(maxsize=4)
def held_out_boards(rows: int, columns: int, given: float, images: str) -> Boards:
    """1,000 random boards with test images, always the same."""
    generator = torch.Generator().manual_seed(_SEED)
    return draw_boards(_HELD_OUT, rows, columns, given, labels_of(digits_of(images), "test"), generator)


def values_of(boards: Boards, digits: Digits, part: str) -> dict[str, Tensor]:
    """Values of all variables, by name, shape ``(boards, n, n, ...)``."""
    n = boards.signs.shape[1]
    return {
        "X": one_hot(boards.solutions - 1, n),
        "S": one_hot(boards.signs, n + 1),
        "image": images_of(digits, part, boards.images),
    }
