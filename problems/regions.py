"""Regions and cages of cells on a square grid: random ones, and their files; importing this does not load
torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from unn.errors import DataError

from .instances import Line, numbers, sections, square

_OPERATIONS = {"+": "+", "x": "x", "*": "x", "-": "-", "/": "/", ":": "/", "=": "=", "": ""}


@dataclass(frozen=True)
class Cage:
    """Cells with a result of their numbers.

    Attributes:
        cells: the cells, row by row from 0.
        result: the result.
        operation: one of ``+ x - / =``; empty if the file has none.
    """

    cells: tuple[int, ...]
    result: int
    operation: str


def draw_regions(size: int, exchanges: int, random: Random) -> list[int]:
    """Connected regions of equal sizes: rows, between which random cells on their borders are exchanged.

    Args:
        size: number of rows.
        exchanges: number of exchanges that are tried.
        random: random number generator.
    """
    regions = [k // size for k in range(size * size)]
    for _ in range(exchanges):
        a = random.randrange(size * size)
        others = {regions[k] for k in neighbours(a, size)} - {regions[a]}
        if not others:
            continue
        other = random.choice(sorted(others))
        # a goes to the other region, and a cell of the other one that touches the region of a comes back
        back = [
            k
            for k in range(size * size)
            if regions[k] == other and any(regions[j] == regions[a] and j != a for j in neighbours(k, size))
        ]
        if not back:
            continue
        b = random.choice(back)
        regions[a], regions[b] = regions[b], regions[a]
        if not all(
            connected([k for k, x in enumerate(regions) if x == area], size) for area in {*others, regions[b]}
        ):
            regions[a], regions[b] = regions[b], regions[a]
    return regions


def neighbours(cell: int, size: int) -> list[int]:
    """Cells that share an edge with a cell."""
    r, c = divmod(cell, size)
    places = [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
    return [i * size + j for i, j in places if 0 <= i < size and 0 <= j < size]


def connected(cells: Sequence[int], size: int) -> bool:
    """Whether one can walk between all of some cells."""
    rest, reached = set(cells[1:]), list(cells[:1])
    while reached:
        near = rest.intersection(neighbours(reached.pop(), size))
        rest -= near
        reached += near
    return not rest


def areas(lines: list[Line], source: str) -> list[int]:
    """Number of the area of each cell in order of appearance; cells with equal signs are one area."""
    signs = [sign for row in square(lines, source) for sign in row]
    order = list(dict.fromkeys(signs))
    return [order.index(sign) for sign in signs]


def read_cages(text: str, source: str, operations: str) -> tuple[int, list[Cage], list[int]]:
    """Number of rows, cages, and the cells that a third part of the file gives: numbers from 1, row by row, 0
    for empty cells.

    The first part has a letter for each cell, that of its cage, row by row; ``.`` is a cell without a cage.
    The second one has a line for each cage: its letter and its result, such as ``a 12``, ``a=12`` or
    ``a 12x``.

    Args:
        text: contents of the file.
        source: its name.
        operations: signs of the operations that results may have; a space for none.

    Raises:
        DataError: for a malformed file, with line and reason.
    """
    parts = sections(text, source)
    if not 2 <= len(parts) <= 3:
        raise DataError(
            f"{source}: {len(parts)} parts, expected two or three: rows of letters of cages, an empty line, "
            "the results of the cages, and, after another empty line, the cells that are given."
        )
    letters = [sign for row in square(parts[0], source) for sign in row]
    cages: dict[str, Cage] = {}
    for number, line in parts[1]:
        where = f"{source}, line {number}"
        match = re.fullmatch(r"\s*(\S)\s*[=: ]\s*(\d{1,9})\s*(\D?)\s*", line)
        sign = None if match is None else _OPERATIONS.get(match[3].lower())
        if match is None or sign is None or (sign or " ") not in operations:
            signs = ", ".join(repr(sign) for sign in operations if sign != " ")
            example = f"'a 12{operations.strip()[:1]}'"
            raise DataError(
                f"{where}: {line.strip()!r} is not the letter of a cage and its result, such as {example}"
                + (f"; operations are {signs}." if signs else ".")
            )
        letter = match[1]
        if letter in cages:
            raise DataError(f"{where}: cage {letter!r} has a result already.")
        cells = tuple(k for k, other in enumerate(letters) if other == letter)
        if not cells or letter == ".":
            raise DataError(f"{where}: no cell belongs to cage {letter!r}.")
        if sign in {"-", "/"} and len(cells) != 2:
            raise DataError(f"{where}: {sign!r} takes two cells, but cage {letter!r} has {len(cells)}.")
        cages[letter] = Cage(cells, int(match[2]), sign)
    missing = [letter for letter in dict.fromkeys(letters) if letter not in cages and letter != "."]
    if missing:
        raise DataError(f"{source}: cage {missing[0]!r} has no result; add a line such as '{missing[0]} 12'.")
    size = len(parts[0])
    if len(parts) == 2:
        return size, list(cages.values()), [0] * size**2
    if len(parts[2]) != size:
        raise DataError(
            f"{source}, line {parts[2][0][0]}: {len(parts[2])} rows of cells, but {size} rows of letters."
        )
    return size, list(cages.values()), numbers(parts[2], source, size)


def draw_cages(
    numbers: Sequence[int], largest: int, random: Random, may_join: Callable[[list[int], int], bool]
) -> list[list[int]]:
    """Random connected cages that cover all cells.

    Args:
        numbers: number of each cell, row by row.
        largest: largest number of cells of a cage.
        random: random number generator.
        may_join: whether a cage may be extended by a cell.
    """
    size = round(len(numbers) ** 0.5)
    rest = list(range(len(numbers)))
    random.shuffle(rest)
    cages = []
    while rest:
        cage = [rest.pop()]
        wanted = random.randint(2, largest) if largest > 1 else 1
        while len(cage) < wanted:
            near = [k for k in rest if any(j in cage for j in neighbours(k, size)) and may_join(cage, k)]
            if not near:
                break
            cage.append(random.choice(near))
            rest.remove(cage[-1])
        cages.append(sorted(cage))
    return sorted(cages)
