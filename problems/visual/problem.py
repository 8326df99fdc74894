"""Visual sudoku on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unn.errors import DataError
from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    PerceptionOptions,
    Query,
    TrainingConfig,
    check_ranges,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn
    from unn.extending import Trained
    from unn.networks.tokens import Given
    from unn.training import Task

    from .data import Boards


@dataclass(frozen=True)
class VisualConfig:
    """Configuration of a run of the problem of visual sudoku.

    Attributes:
        block_rows: Rows of a block.
        block_columns: Columns of a block; a grid has at most nine digits.
        images: Images of 8 x 8 pixels that come with scikit-learn, or MNIST under $UNN_DATA.
        boards: Random grids with random given cells, or the easy or hard puzzles of 9 x 9 under $UNN_DATA.
        given_share: Share of the cells of random boards that are given.
        labelled: Cells with labels in training: all, or the empty cells alone, so that no image of a digit
            has a label.
    """

    block_rows: int = 2
    block_columns: int = 2
    images: Literal["embedded", "mnist"] = "embedded"
    boards: Literal["random", "easy", "hard"] = "random"
    given_share: float = 0.5
    labelled: Literal["all", "empty"] = "all"


class VisualProblem(DeclaredProblem):
    """Solve a sudoku whose given digits are images of handwriting."""

    name = "visual"
    summary = "sudoku whose given digits are images: read and solve it"
    config = VisualConfig
    noun = "boards"
    monitor, larger_is_better = "boards", True
    defaults = {
        "perception": Defaults(
            PerceptionOptions(filters=8),
            TrainingConfig(steps=1200, evaluate_every=1200, batch=16, rate=2e-3, warmup=0.05, ema=0.99),
            {"labelled": "empty"},
        ),
        "denoiser": Defaults(
            DenoiserOptions(self_conditioning="none", sampling_steps=20),
            TrainingConfig(steps=300, evaluate_every=300, batch=16, rate=1e-3, clip=1.0, ema=0.99),
        ),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        from unn.errors import ArgumentError

        check_ranges(
            self.name,
            {
                "block_rows": (config.block_rows, 1, 9),
                "block_columns": (config.block_columns, 1, 9),
                "given_share": (config.given_share, 0, 1),
            },
        )
        n = config.block_rows * config.block_columns
        if n > 9:
            raise ArgumentError(
                f"{self.name}: a grid has at most nine digits, since there are images of 0 to 9; got blocks "
                f"of {config.block_rows} x {config.block_columns} cells."
            )
        if config.boards != "random" and (n, config.block_rows, config.images) != (9, 3, "mnist"):
            raise ArgumentError(
                f"{self.name}: boards={config.boards} are of 9 x 9 cells with images of MNIST; add "
                "block_rows=3, block_columns=3 and images=mnist."
            )
        super().check(config)

    def declare(self, config: VisualConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        size = 28 if config.images == "mnist" else 8
        return declare(config.block_rows, config.block_columns, size, size)

    def task(self, config: Any) -> Task:
        """Training on boards; checksums of the images and boards detect other data."""
        from unn.runs import tensor_digest

        from .data import digits_of, listed_boards

        task = super().task(config)
        data: dict[str, str] = {}
        if config.boards != "random":
            data["boards"] = tensor_digest(listed_boards(config.boards, "train").images)
        task.facts = {"data": data | digits_of(config.images).checksums(config.images)}
        return task

    def generate(
        self, config: VisualConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Training boards with all labels."""
        from .data import digits_of, values_of

        return values_of(self._training_boards(config, count, generator), digits_of(config.images), "train")

    def examples(
        self, config: VisualConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Training boards; without labels of given cells, if configured."""
        values, observed = super().examples(config, count, generator, sizes)
        return (values if config.labelled == "all" else without_labels(values)), observed

    def observed(
        self, config: VisualConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The images."""
        import torch

        return {"image": torch.ones(1, 1, 1, dtype=torch.bool)}

    def test_count(self, config: VisualConfig, network: Any) -> int:
        """200 boards."""
        return 200

    def test_queries(self, config: VisualConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """Boards of test images."""
        import torch

        from .data import digits_of, values_of

        boards = self.test_boards(config, count)
        boards = boards.select(torch.arange(count) % len(boards.signs))
        values = values_of(boards, digits_of(config.images), "test")
        return {"": Query({"image": values["image"]}, values)}

    def metrics(self, config: VisualConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Shares of boards that are right in all cells and in all empty cells, of given and empty cells that
        are right, and of boards that meet all constraints."""
        import torch

        right = values["X"].argmax(-1) == query.truth["X"].argmax(-1)
        given = query.truth["S"].argmax(-1) > 0
        constraints = self.declare(config).constraints
        violations = torch.stack([c.violations_of(values) for c in constraints]).sum(0)

        def share(x: Tensor) -> float:
            return float(x.float().mean())

        return {
            "boards": share(right.flatten(1).all(1)),
            "empty_boards": share((right | given).flatten(1).all(1)),
            "given_cells": share(right[given]) if bool(given.any()) else 1.0,
            "empty_cells": share(right[~given]) if bool((~given).any()) else 1.0,
            "valid": share(violations == 0),
        }

    def test_boards(self, config: VisualConfig, count: int) -> Boards:
        """At most ``count`` boards of test images."""
        import torch

        from .data import held_out_boards, listed_boards

        if config.boards == "random":
            boards = held_out_boards(
                config.block_rows, config.block_columns, config.given_share, config.images
            )
        else:
            boards = listed_boards(config.boards, "test")
        return boards.select(torch.arange(min(count, len(boards.signs))))

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """Test boards as ``test:NUMBER``, and pictures of boards in files (.png or .npy), with bright digits
        on a dark ground."""
        import torch

        if not texts:
            raise DataError("give a picture of a board (.png, .npy), or a test board such as test:0.")
        images = torch.stack([self._read_board(run.config, text) for text in texts])
        return {"image": images}, {}, len(images)

    def first_numbers(self, config: Any) -> dict[str, int]:
        """The sign of an empty cell is 0."""
        return {"S": 0}

    def encode(self, run: Trained, values: Mapping[str, Tensor]) -> Any:
        """Rows of digits of the solution, and of the signs that were read, 0 for empty cells."""
        return {"solution": (values["X"].argmax(-1) + 1).tolist(), "signs": values["S"].argmax(-1).tolist()}

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """The signs that were read, and the solution, side by side."""
        from ..sudoku.files import grid_lines

        rows, columns = run.config.block_rows, run.config.block_columns
        signs: Any = values["S"][k].argmax(-1).flatten().tolist()
        digits: Any = (values["X"][k].argmax(-1) + 1).flatten().tolist()
        pairs = zip(grid_lines(signs, rows, columns), grid_lines(digits, rows, columns), strict=True)
        return [f"{read}    {solution}" for read, solution in pairs]

    def blocks(self, config: VisualConfig) -> dict[str, tuple[int, int]]:
        """Blocks of the grid."""
        return dict.fromkeys(("X", "S"), (config.block_rows, config.block_columns))

    def _training_boards(self, config: VisualConfig, count: int, generator: torch.Generator) -> Boards:
        import torch

        from .data import digits_of, draw_boards, labels_of, listed_boards

        if config.boards == "random":
            labels = labels_of(digits_of(config.images), "train")
            return draw_boards(
                count, config.block_rows, config.block_columns, config.given_share, labels, generator
            )
        boards = listed_boards(config.boards, "train")
        return boards.select(torch.randint(len(boards.signs), (count,), generator=generator))

    def _read_board(self, config: VisualConfig, text: str) -> Tensor:
        """Images of the cells of a board, shape ``(n, n, height, width)``, values in [-1, 1]."""
        import torch

        from .data import digits_of, images_of

        if text.startswith("test:"):
            number = text.removeprefix("test:")
            boards = self.test_boards(config, 1000)
            if not (number.isascii() and number.isdecimal() and len(number) < 10) or int(number) >= len(
                boards.signs
            ):
                raise DataError(
                    f"unn solve {text}: test boards go from test:0 to test:{len(boards.signs) - 1}."
                )
            return images_of(digits_of(config.images), "test", boards.images[int(number)])
        picture = read_picture(text)
        n = config.block_rows * config.block_columns
        size = 28 if config.images == "mnist" else 8
        if tuple(picture.shape) != (n * size, n * size):
            raise DataError(
                f"{text}: a picture of {' x '.join(map(str, picture.shape))} pixels; a board of {n} x {n} "
                f"cells has {n * size} x {n * size}, {size} x {size} for each cell."
            )
        if not bool(torch.isfinite(picture).all()) or float(picture.min()) < -1 or float(picture.max()) > 1:
            raise DataError(f"{text}: pixels must lie in [-1, 1], from the dark ground to the bright digits.")
        return picture.view(n, size, n, size).transpose(1, 2)


def without_labels(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values in which given cells have no label: any digit, and any sign but that of an empty cell.

    Args:
        values: values of X and S, one-hot, shape ``(boards, n, n, categories)``, and of others.
    """
    import torch

    given = values["S"].argmax(-1, keepdim=True) > 0
    some_digit = torch.ones_like(values["S"])
    some_digit[..., 0] = 0
    return {
        **values,
        "X": torch.where(given, torch.ones_like(values["X"]), values["X"]),
        "S": torch.where(given, some_digit, values["S"]),
    }


def read_picture(path: str) -> Tensor:
    """Read a picture, shape ``(rows, columns)``.

    Grey values of a ``.png`` file are mapped to [-1, 1]; an array is taken as it is.

    Raises:
        DataError: if the file cannot be read.
    """
    import numpy as np
    import torch
    from matplotlib.image import imread

    try:
        if path.endswith(".npy"):
            array = np.load(path, allow_pickle=False)
        else:
            array = imread(path, format="png")
    except Exception as error:
        # image libraries raise errors of their own for files that are no images
        raise DataError(f"{path}: no picture can be read ({error}).") from None
    if array.dtype.kind not in "fiub" or array.ndim not in (2, 3) or not array.size:
        raise DataError(f"{path}: holds no picture, but {array.dtype} of shape {array.shape}.")
    if array.ndim == 3:
        # the mean of red, green and blue, without transparency
        array = array[..., :3].mean(-1)
    pixels = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    return pixels if path.endswith(".npy") else 2 * pixels - 1
