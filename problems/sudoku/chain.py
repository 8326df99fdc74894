"""Sudoku as a program of random choices with relaxed constraints, for Markov chains."""

from __future__ import annotations

import torch
from torch import Tensor

from unn import Partial
from unn.errors import ObservationError

from ..generated.metropolis import CERTAINTY, Program, Values, relaxed, whole_numbers
from .grids import declare, one_hot


def sudoku(puzzles: Tensor, rows: int, columns: int, certainty: float = CERTAINTY) -> Program:
    """Draw a digit for each empty cell, uniformly; each pair of cells that must differ is a constraint.

    Args:
        puzzles: digits from 1, 0 for empty cells, shape ``(count, n, n)``; one per chain, or one for all
            chains.
        rows, columns: size of a block.
        certainty: probability of the observation if a constraint holds.

    Returns:
        A program of X, one-hot, shape ``(chains, n, n, n)``.

    Raises:
        DeclarationError: for a certainty that is not between 0.5 and 1.
        ObservationError: for puzzles of another shape, or with other digits.
    """
    n = rows * columns
    if (
        not isinstance(puzzles, Tensor)
        or puzzles.is_floating_point()
        or puzzles.ndim != 3
        or tuple(puzzles.shape[1:]) != (n, n)
    ):
        actual = (
            f"{puzzles.dtype} of shape {tuple(puzzles.shape)}"
            if isinstance(puzzles, Tensor)
            else type(puzzles).__name__
        )
        raise ObservationError(
            f"puzzles with blocks of {rows} x {columns} are whole numbers of shape (count, {n}, {n}), got "
            f"{actual}."
        )
    if not bool(((puzzles >= 0) & (puzzles <= n)).all()):
        raise ObservationError(
            f"puzzles with blocks of {rows} x {columns} have digits from 1 to {n}, and 0 for an empty cell."
        )
    pairs = declare(rows, columns).adjacency()
    ordered = pairs.rows < pairs.columns
    first, second = torch.from_numpy(pairs.rows[ordered]), torch.from_numpy(pairs.columns[ordered])
    log_probability = relaxed(certainty)

    def log_likelihood(values: Values) -> Tensor:
        cells = values["X"].flatten(1)
        return log_probability(cells[:, first] != cells[:, second])

    def outputs(values: Values) -> dict[str, Tensor]:
        return {"X": one_hot(values["X"].long(), n)}

    return Program(
        {"X": whole_numbers((n, n), n)}, log_likelihood, {"X": Partial(puzzles - 1, puzzles > 0)}, outputs
    )
