"""Groups of entries whose number of ones is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CountGroups:
    """Groups of entries of a variable, in each of which the number of ones lies within bounds.

    Attributes:
        variable: name of the variable.
        entries: flat indices among the entries of one batch element, shape ``(groups, members)``.
        lower: least number of ones in a group.
        upper: greatest number of ones in a group; None without a bound.
    """

    variable: str
    entries: NDArray[np.int64]
    lower: int
    upper: int | None
