"""Groups of entries whose number of ones is bounded, and tables of entries that are one together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CountGroups:
    """Groups of entries of variables, in each of which the number of ones lies within bounds.

    Attributes:
        entries: members by variable: flat indices among the entries of one batch element, shape ``(groups,
            members)``. An entry that occurs several times in a group counts as often.
        lower: least number of ones in a group.
        upper: greatest number of ones in a group; None without a bound.
    """

    entries: Mapping[str, NDArray[np.int64]]
    lower: int
    upper: int | None


@dataclass(frozen=True, eq=False)
class AllowedCombinations:
    """Combinations of categories of several nodes; in each assignment of letters the nodes have one of them.

    Attributes:
        names: variable of each node of an assignment, one for every column.
        entries: for each column, flat indices of the entries of its node among those of one batch element,
            one for each category in their order, shape ``(assignments, categories)``. The nodes of an
            assignment differ.
        allowed: category of every column, shape ``(combinations, columns)``; combinations differ.
    """

    names: tuple[str, ...]
    entries: tuple[NDArray[np.int64], ...]
    allowed: NDArray[np.int64]
