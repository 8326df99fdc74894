"""Tables of allowed combinations of categories."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, permutations, product

import numpy as np
import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference, Variable
from unn.graph.factor import Values
from unn.graph.groups import AllowedCombinations, CountGroups
from unn.graph.interactions import Relation, Shapes, node_dimensions, ordered_letters_of, product_relations
from unn.graph.structure import variables_only
from unn.graph.views import checked_views
from unn.regularizers import Simplex
from unn.regularizers.base import batch_flat, batch_sum

from ..energies.weighted import LossEnergy


class Table(Constraint):
    """The categories of several nodes are one of the allowed combinations, for each assignment of letters.

    Args:
        references: references to variables on the simplex over one feature axis each; equal letters of nodes
            tie them, as in einsum.
        allowed: allowed combinations, each with the number of the category of every reference.
        name: unique in the graph.

    Raises:
        DeclarationError: for references to other variables, letters of categories that are shared, or
            combinations of another length.

    Example:
        ``Table(X["i v"], X["i+1 w"], allowed=[(0, 1), (1, 2), (2, 0)])``: each category is followed by the
        next one.
    """

    handles_indices = True
    multiaffine = True

    def __init__(
        self, *references: Reference, allowed: Sequence[Sequence[int]], name: str | None = None
    ) -> None:
        super().__init__(*references, name=name)
        variables_only(self)
        self._values = [_letter_of_values(self, reference) for reference in references]
        nodes = {
            letter
            for reference, own in zip(references, self._values, strict=True)
            for letter in reference.letters
            if letter != own
        }
        if len(set(self._values)) < len(references) or nodes & set(self._values):
            raise DeclarationError(
                f"factor {self.name!r}: the letters of categories ({', '.join(self._values)}) must "
                f"differ from "
                "each other and from those of nodes; the table relates them."
            )
        self.allowed = _combinations(self, allowed, len(references))
        self._letters = tuple(
            dict.fromkeys(
                letter
                for reference, own in zip(references, self._values, strict=True)
                for letter in reference.letters
                if letter != own
            )
        )

    def violations_of(self, values: Values) -> Tensor:
        """Number of assignments of letters whose categories are not allowed, shape ``(batch,)``.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
            DeclarationError: for a table with categories that the variables do not have.
        """
        binary = {name: (values[name] > 0.5).double() for name in self.variables if name in values}
        # negated, so that values of nodes without a category count as violations
        return batch_sum((~(self._probability(binary) > 0.5)).long())

    def part_losses(self, values: Values) -> Tensor:
        """Probability that the categories are not allowed, for independent nodes, shape ``(batch,
        parts)``."""
        return 1 - self._probability({name: values[name] for name in self.variables if name in values})

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss, ``LossEnergy``, which is affine in each variable that occurs once."""
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """Combinations that are not allowed, as counts of at most all but one of their categories.

        Categories, and pairs of them, that no allowed combination has, come first, so that counting alone
        excludes categories that another one leaves no support.

        Raises:
            DeclarationError: for a table with categories that the variables do not have.
        """
        return _merged([group for own in self.combinations(shapes) for group in _groups(own)])

    def combinations(self, shapes: Shapes) -> list[AllowedCombinations]:
        """The table, for assignments of letters with different nodes; where a node occurs several times, the
        combinations in which it has one category, with one column for it.

        Raises:
            DeclarationError: for a table with categories that the variables do not have.
        """
        names = [reference.array.name for reference in self.references]
        entries = self._entries(shapes)
        sizes = [shapes[name][-1] for name in names]
        numbers = torch.stack([x[:, 0] // size for x, size in zip(entries, sizes, strict=True)], 1)
        # the first column of the node of each column, by assignment
        first = [
            tuple(list(zip(names, row, strict=True)).index(node) for node in zip(names, row, strict=True))
            for row in numbers.tolist()
        ]
        if not first:
            return []
        # an index along the categories may list them in another order
        categories = torch.stack(
            [
                (x[0] % size)[self.allowed[:, k]]
                for k, (x, size) in enumerate(zip(entries, sizes, strict=True))
            ],
            1,
        )
        tables = []
        for pattern in sorted(set(first)):
            rows = [k for k, own in enumerate(first) if own == pattern]
            columns = sorted(set(pattern))
            agree = (categories == categories[:, list(pattern)]).all(1)
            tables.append(
                AllowedCombinations(
                    tuple(names[k] for k in columns),
                    tuple(
                        (numbers[rows, k, None] * sizes[k] + torch.arange(sizes[k])).numpy() for k in columns
                    ),
                    categories[agree][:, columns].unique(dim=0).numpy(),
                )
            )
        return tables

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references) | {*self._values}

    def formula(self) -> str:
        nodes = ", ".join(map(str, self.references))
        return f"({nodes}) in a table of {len(self.allowed)} combinations"

    @cached_property
    def _different(self) -> Tensor:
        """The allowed combinations without those that an index along categories makes equal to others."""
        columns = []
        for k, (reference, own) in enumerate(zip(self.references, self._values, strict=True)):
            (dimension,) = (dim for dim in reference.pattern.dimensions if own in dim.letters)
            numbers = self.allowed[:, k]
            columns.append(
                numbers if dimension.index is None else self.indices[dimension.index].numbers[numbers]
            )
        first: dict[tuple[int, ...], int] = {}
        for row, categories in enumerate(torch.stack(columns, 1).tolist()):
            first.setdefault(tuple(categories), row)
        return self.allowed[list(first.values())]

    def _probability(self, values: Values) -> Tensor:
        """Probability of the allowed combinations, shape ``(batch, parts)``."""
        result: Tensor | None = None
        # the views check that there are such categories
        for k, x in enumerate(self._views(values)):
            chosen = x.index_select(-1, self._different[:, k].to(x.device))
            result = chosen if result is None else result * chosen
        assert result is not None
        return batch_flat(result.sum(-1))

    def _views(self, values: Values) -> list[Tensor]:
        """Entries of each reference by assignment of letters, of size 1 for letters that it lacks; shape
        ``(batch, *letters, categories)``."""
        views = []
        for k, (reference, own, x) in enumerate(
            zip(self.references, self._values, checked_views(self, values), strict=True)
        ):
            position = 1 + reference.letters.index(own)
            largest, size = int(self.allowed[:, k].max()), x.shape[position]
            if largest >= size:
                raise DeclarationError(
                    f"factor {self.name!r}: the table has category {largest} of {reference}, which has "
                    f"{size} categories, numbered from 0."
                )
            letters = [letter for letter in reference.letters if letter != own]
            order = [letters.index(letter) for letter in self._letters if letter in letters]
            x = x.movedim(position, -1).permute(0, *(1 + n for n in order), len(letters) + 1)
            for n, letter in enumerate(self._letters):
                if letter not in letters:
                    x = x.unsqueeze(1 + n)
            views.append(x)
        return views

    def _entries(self, shapes: Shapes) -> list[Tensor]:
        """Flat indices of the entries of each reference, shape ``(assignments, categories)``."""
        numbers = {
            name: torch.arange(math.prod(shapes[name])).view(1, *shapes[name]) for name in self.variables
        }
        views = self._views(numbers)
        letters = torch.broadcast_shapes(*(x.shape[1:-1] for x in views))
        return [x[0].expand(*letters, x.shape[-1]).reshape(-1, x.shape[-1]) for x in views]


def _groups(table: AllowedCombinations) -> list[CountGroups]:
    """Combinations that a table does not have, as counts of at most all but one of their categories."""
    allowed = torch.from_numpy(table.allowed)
    entries = [torch.from_numpy(x) for x in table.entries]
    sizes = [x.shape[1] for x in entries]
    if not len(allowed):
        # no category of the first node is possible
        return [CountGroups({table.names[0]: table.entries[0]}, 0, 0)]
    columns_of_table = range(len(sizes))
    # pairs in both orders, so that each of the two excludes what the other one leaves no support
    parts: list[tuple[int, ...]] = [(k,) for k in columns_of_table]
    parts += list(permutations(columns_of_table, 2))
    groups = []
    counted = set()
    for part in dict.fromkeys([*parts, tuple(columns_of_table)]):
        for first, last in _excluded(allowed[:, list(part)], [sizes[k] for k in part]):
            key = frozenset([*zip(part, first, strict=False), *((part[-1], v) for v in last)])
            if key in counted:
                continue
            counted.add(key)
            columns = [(k, [v]) for k, v in zip(part, first, strict=False)]
            columns += [(part[-1], last)] if last else []
            members: dict[str, list[Tensor]] = {}
            for k, categories in columns:
                members.setdefault(table.names[k], []).append(entries[k][:, categories])
            numbers = {name: torch.cat(x, 1).numpy() for name, x in members.items()}
            groups.append(CountGroups(numbers, 0, len(columns) - 1))
    return groups


def _letter_of_values(factor: Table, reference: Reference) -> str:
    """The letter along the categories of a reference.

    Raises:
        DeclarationError: for a variable that is not on the simplex over one whole axis.
    """
    array = reference.array
    assert isinstance(array, Variable)
    nodes = {letter for dim in node_dimensions(reference) for letter in dim.letters}
    features = [letter for letter in reference.letters if letter not in nodes]
    if not isinstance(array.regularizer, Simplex) or len(features) != 1:
        raise DeclarationError(
            f"factor {factor.name!r}: a table relates categories, so {reference} must refer to a variable on "
            "the simplex over one feature axis, such as g.variable('X', 'cell | value', unn.Entropy())."
        )
    return features[0]


def _combinations(factor: Table, allowed: Sequence[Sequence[int]], count: int) -> Tensor:
    """Distinct allowed combinations, shape ``(combinations, references)``, int64.

    Raises:
        DeclarationError: for an empty table, or one that is not of whole numbers >= 0 for every reference.
    """
    try:
        rows = [tuple(row) for row in allowed]
    except TypeError:
        raise DeclarationError(
            f"factor {factor.name!r}: the table must list combinations such as (0, 1), got {allowed!r:.200}."
        ) from None
    if not rows:
        raise DeclarationError(f"factor {factor.name!r}: the table is empty, so no values satisfy it.")
    for number, row in enumerate(rows):
        if len(row) != count or not all(map(_is_category, row)):
            raise DeclarationError(
                f"factor {factor.name!r}: row {number} of the table must be {count} numbers of "
                f"categories >= 0, "
                f"one for each reference, got {row!r}."
            )
    return torch.tensor(sorted({tuple(map(int, row)) for row in rows}), dtype=torch.int64)


def _is_category(x: object) -> bool:
    """Whether an entry of a table is a whole number >= 0."""
    try:
        return not isinstance(x, bool) and int(x) == x and int(x) >= 0  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return False


def _excluded(allowed: Tensor, sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Combinations that are not in a table, by their first categories and the list of their last ones.

    An empty list stands for all last categories. Combinations with categories that no row has, or in tables
    of three and more columns with pairs of categories that no row has, are left out.

    Args:
        allowed: rows of the table, shape ``(combinations, columns)``.
        sizes: number of categories of each column.
    """
    rows = set(map(tuple, allowed.tolist()))
    columns = [sorted({row[k] for row in rows}) for k in range(len(sizes))]
    if len(sizes) == 1:
        missing = sorted(set(range(sizes[0])) - set(columns[0]))
        if missing:
            yield (), missing
        return
    last_of: dict[tuple[int, ...], set[int]] = {}
    for row in rows:
        last_of.setdefault(row[:-1], set()).add(row[-1])
    pairs = {
        (a, b): {(row[a], row[b]) for row in rows}
        for a, b in combinations(range(len(sizes)), 2)
        if len(sizes) > 2
    }
    end = len(sizes) - 1
    for first in product(*columns[:-1]):
        if any((first[a], first[b]) not in seen for (a, b), seen in pairs.items() if b < end):
            continue
        present = last_of.get(first, set())
        missing = [
            last
            for last in columns[-1]
            if last not in present
            and all((first[a], last) in seen for (a, b), seen in pairs.items() if b == end)
        ]
        if not present:
            yield first, []
        elif missing:
            yield first, missing


def _merged(groups: Sequence[CountGroups]) -> list[CountGroups]:
    """Groups of the same bounds and numbers of members, together."""
    alike: dict[tuple[object, ...], list[CountGroups]] = {}
    for group in groups:
        widths = tuple((name, x.shape[1]) for name, x in group.entries.items())
        alike.setdefault((widths, group.upper), []).append(group)
    return [
        CountGroups(
            {name: np.concatenate([group.entries[name] for group in same]) for name in same[0].entries},
            same[0].lower,
            same[0].upper,
        )
        for same in alike.values()
    ]
