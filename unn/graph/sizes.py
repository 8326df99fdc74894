"""Unification of axis sizes.

Axes of the same name are one axis. A factor ties axes that share a letter at the same shift. Splits, and
factors such as convolutions, add rules that derive one size from others. Sizes known at declaration are
static; the others are dynamic, inferred from the values of each call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DeclarationError, UnnError
from .arrays import Array, Index, Indices, Reference, Variable
from .disjoint_sets import DisjointSets

if TYPE_CHECKING:
    from .factor import Factor

LetterSizes = dict[str, int]


@dataclass(frozen=True)
class SizeRule:
    """Rule that derives sizes of letters of a factor from those of others.

    Attributes:
        letters: the letters that the rule relates.
        derive: maps known sizes of these letters to derived ones; raises ``DeclarationError`` on a
            contradiction.
        offset: of two letters, by how much the size of the first always exceeds that of the second, so that
            the same holds of lengths in a ragged batch; None for other rules.
    """

    letters: tuple[str, ...]
    derive: Callable[[LetterSizes], LetterSizes]
    offset: int | None = None


_RELATION = re.compile(r"\s*([^\W\d]\w*)\s*=\s*([^\W\d]\w*)\s*(?:([+-])\s*(\d{1,9}))?\s*")


_SMALL_DIFFERENCE = 3
"""The largest difference between two sizes for which a message proposes a relation."""


@dataclass(frozen=True)
class SizeRelation:
    """Relation ``axis = other + by`` between the sizes of two axes.

    Attributes:
        axis: left-hand side.
        other: axis on the right-hand side; either size determines the other.
        by: signed difference.
    """

    axis: str
    other: str
    by: int

    @classmethod
    def parse(cls, text: str) -> SizeRelation:
        """Read ``"step = word - 1"``.

        Raises:
            DeclarationError: for text of another form, or the same axis on both sides.
        """
        match = _RELATION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DeclarationError(
                f"relation {text!r} is not of the form 'step = word - 1', 'a = b + 2' or 'a = b'."
            )
        axis, other, sign, amount = match.groups()
        if axis == other:
            raise DeclarationError(f"relation {text!r} has axis {axis!r} on both sides; relate two axes.")
        return cls(axis, other, int(sign + amount) if sign else 0)

    def __str__(self) -> str:
        by = f" {'-' if self.by < 0 else '+'} {abs(self.by)}" if self.by else ""
        return f"{self.axis} = {self.other}{by}"

    def rule(self) -> SizeRule:
        """The rule between the two sizes."""
        if self.by < 0:
            return offset_rule(self.other, self.axis, -self.by)
        return offset_rule(self.axis, self.other, self.by)


class Tie(NamedTuple):
    """Two axes, or an axis and a letter of a factor, that have the same size.

    Attributes:
        what: reason, such as "letter 'i'".
        where: place of the reason, such as "factor 'emission'".
        one, other: names of axes, or of letters prefixed with their factor.
    """

    what: str
    where: str
    one: str
    other: str

    @property
    def reason(self) -> str:
        """The reason and its place, such as "letter 'i' of factor 'emission'"."""
        return self.what if self.what == self.where else f"{self.what} of {self.where}"


@dataclass(frozen=True)
class ShiftedPair:
    """Two axes of different names that a factor indexes by the same letter at different shifts.

    Attributes:
        reason: description, such as "letter 'i' of factor 'emission'".
        relation: relation of their sizes under which the letter covers both axes.
    """

    reason: str
    relation: SizeRelation


def split_rule(axis: str, letters: tuple[str, ...]) -> SizeRule:
    """Rule: the size of ``axis`` is the product of the sizes of ``letters``."""
    return SizeRule((axis, *letters), partial(_derive_split, axis, letters))


def offset_rule(larger: str, smaller: str, by: int = 0) -> SizeRule:
    """Rule ``larger = smaller + by``."""
    return SizeRule((larger, smaller), partial(_derive_offset, larger, smaller, by), by)


def index_rule(index: Index) -> SizeRule:
    """Rule: the axis that an index refers to has an entry for each of its integers."""
    return SizeRule((index.into,), partial(_check_numbers, index))


def _check_numbers(index: Index, known: LetterSizes) -> LetterSizes:
    if index.into in known:
        index.check_size(known[index.into])
    return {}


def _derive_offset(larger: str, smaller: str, by: int, known: LetterSizes) -> LetterSizes:
    if smaller in known:
        return {larger: known[smaller] + by}
    if larger in known and known[larger] < by:
        raise DeclarationError(
            f"axis {larger!r} of size {known[larger]} must be {by} longer than axis {smaller!r}"
        )
    return {smaller: known[larger] - by} if larger in known else {}


def _derive_split(axis: str, letters: tuple[str, ...], known: LetterSizes) -> LetterSizes:
    missing = [letter for letter in letters if letter not in known]
    product = math.prod(known[letter] for letter in letters if letter in known)
    if not missing:
        if axis in known and known[axis] != product:
            parts = " x ".join(f"{letter}={known[letter]}" for letter in letters)
            raise DeclarationError(
                f"an axis of size {known[axis]} is split as ({' '.join(letters)}), but {parts} = {product}"
            )
        return {axis: product}
    if len(missing) == 1 and axis in known:
        if product == 0 or known[axis] % product:
            raise DeclarationError(
                f"an axis of size {known[axis]} cannot be split as ({' '.join(letters)}) with the others "
                f"{product}"
            )
        return {missing[0]: known[axis] // product}
    return {}


class SizeTable:
    """The tied axes of a graph and the rules between their sizes, extended by each declaration.

    Args:
        sizes: static sizes of axes by name.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._classes = DisjointSets[str]()
        self._known: dict[str, int] = {}
        self._named: set[str] = set()
        self._axes: set[str] = set()
        self._rules: list[tuple[str, dict[str, str], SizeRule]] = []
        self._ties: list[Tie] = []
        self._pairs: list[ShiftedPair] = []
        self.relations: list[SizeRelation] = []
        self._solved: dict[str, int] | None = None
        self._declared = dict(sizes)
        for axis, size in sizes.items():
            self.declare(axis, size)

    @classmethod
    def of(
        cls,
        arrays: Iterable[Array],
        factors: Iterable[Factor],
        sizes: Mapping[str, int],
        relations: Iterable[SizeRelation] = (),
    ) -> SizeTable:
        """Unify all axes of a graph.

        Raises:
            DeclarationError: if two sizes contradict; the message names the factor and the axes.
        """
        table = cls(sizes)
        for array in arrays:
            table.add_array(array)
        for relation in relations:
            table.add_relation(relation)
        for factor in factors:
            table.add_factor(factor)
        return table

    @property
    def static(self) -> dict[str, int]:
        """The sizes determined by the declaration alone, by class of tied axes."""
        if self._solved is None:
            self._solved = self.solve({})
        return self._solved

    @property
    def has_rules(self) -> bool:
        """Whether some sizes derive from others, so that contradictions appear only in the solution."""
        return bool(self._rules)

    def declare(self, axis: str, size: int) -> None:
        """Set the size of an axis whose size is not known yet."""
        self._known[self._name(axis)] = size
        self._declared[axis] = size
        self._solved = None

    def add_array(self, array: Array) -> None:
        """Add the axes of an array."""
        for axis in array.axes:
            self._name(axis)
        if isinstance(array, Index):
            self._name(array.into)
            self._rules.append((f"index {array.name!r}", {array.into: array.into}, index_rule(array)))
        if isinstance(array, Variable):
            own = {axis: axis for axis in array.axes}
            self._rules.extend(
                (f"variable {array.name!r}", own, rule) for rule in array.regularizer.size_rules(array.axes)
            )

    def add_relation(self, relation: SizeRelation) -> None:
        """Add a declared relation between the sizes of two axes.

        Raises:
            DeclarationError: if it contradicts the known sizes. The table is then invalid.
        """
        where = f"relation '{relation}'"
        for axis in (relation.axis, relation.other):
            self._name(axis)
        if relation.by == 0:
            self._tie(where, where, relation.axis, relation.other)
        elif self.root(relation.axis) == self.root(relation.other):
            raise DeclarationError(
                f"{where}: the two axes have the same size, by "
                f"{self.reasons(relation.axis, relation.other)}; give them different letters or shifts "
                "there, or drop the relation."
            )
        else:
            classes = {axis: axis for axis in (relation.axis, relation.other)}
            self._rules.append((where, classes, relation.rule()))
        self.relations.append(relation)
        self._solved = None

    def reasons(self, axis: str, other: str) -> str:
        """Explain why two axes are tied: the letters, indices and relations between them."""
        reached: dict[str, tuple[str, ...]] = {axis: ()}
        queue = [axis]
        for name in queue:
            for tie in self._ties:
                for start, end in ((tie.one, tie.other), (tie.other, tie.one)):
                    if start == name and end not in reached:
                        reached[end] = (*reached[name], tie.reason)
                        queue.append(end)
        return " and ".join(dict.fromkeys(reached.get(other, ())))

    def tied_groups(self) -> list[list[str]]:
        """Groups of at least two tied axis names, in order of first use."""
        groups = ([name for name in names if name in self._axes] for names in self._classes.sets().values())
        return [names for names in groups if len(names) > 1]

    def loose_pairs(self) -> list[ShiftedPair]:
        """Pairs of axes that a factor indexes at different shifts, without a declared relation of their
        sizes."""
        related = {frozenset((self.root(r.axis), self.root(r.other))) for r in self.relations}
        pairs = {pair.relation: pair for pair in self._pairs}.values()
        roots = [frozenset((self.root(pair.relation.axis), self.root(pair.relation.other))) for pair in pairs]
        return [pair for pair, pair_roots in zip(pairs, roots, strict=True) if pair_roots not in related]

    def relation_hint(self, axis: str, size: int, expected: int) -> str:
        """Explain why an axis is tied to others, and which relation to declare if their sizes differ.

        Args:
            axis: axis along which a value has an unexpected size.
            size: size of the value.
            expected: size of the tied axes.

        Returns:
            The hint; empty if no other name is tied to the axis.
        """
        others = [name for name in self.tied(axis) if name != axis and name in self._axes]
        if not others:
            return ""
        hint = f" They are one axis by {self.reasons(axis, others[0])}"
        relation = SizeRelation(axis, others[0], size - expected)
        if abs(relation.by) > _SMALL_DIFFERENCE:
            return f"{hint}."
        return (
            f"{hint}; if {relation} is meant, use different letters or shifts there and declare "
            f"g.relate_sizes('{relation}')."
        )

    def missing_size_hint(self, axis: str, known: Mapping[str, int]) -> str:
        """Suggest a relation that gives the size of an axis; empty if no factor pairs it with an axis of
        known size."""
        for pair in self.loose_pairs():
            relation = pair.relation
            if relation.other == axis:
                relation = SizeRelation(relation.other, relation.axis, -relation.by)
            if relation.axis == axis and self.root(relation.other) in known:
                return f", or declare g.relate_sizes('{relation}') as {pair.reason} suggests"
        return ""

    def _name(self, axis: str) -> str:
        root = self.root(axis)
        self._named.add(root)
        self._axes.add(axis)
        return root

    def root(self, axis: str) -> str:
        """The representative of the class of tied axes to which ``axis`` belongs."""
        return self._classes.root(axis)

    def tied(self, axis: str) -> list[str]:
        """All axis names tied to this one, itself included."""
        root = self.root(axis)
        return [name for name in self._classes.elements() if "/" not in name and self.root(name) == root]

    def solve(self, known: Mapping[str, int]) -> dict[str, int]:
        """Derive all sizes from the static and the given ones, by class.

        Raises:
            DeclarationError: if a rule contradicts them; the message names the factor.
        """
        sizes = {**(self._known if self._solved is None else self._solved), **known}
        changed = bool(self._rules)
        while changed:
            changed = False
            for where, classes, rule in self._rules:
                local = {}
                for letter in rule.letters:
                    root = self.root(classes[letter])
                    if root in sizes:
                        local[letter] = sizes[root]
                try:
                    derived = rule.derive(local)
                except UnnError as error:
                    raise DeclarationError(f"{where}: {error}") from None
                for letter, size in derived.items():
                    root = self.root(classes[letter])
                    if root not in sizes:
                        sizes[root] = size
                        changed = True
                    elif sizes[root] != size:
                        names = ", ".join(repr(name) for name in self.tied(root)) or f"'{letter}'"
                        raise DeclarationError(
                            f"{where}: axis {names} has size {sizes[root]}, but {size} follows from the "
                            f"others {local}."
                        )
        return sizes

    def shape(self, array: Array, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
        """The shape of an array without its batch axis; None where a size is not known."""
        return tuple(sizes.get(self.root(axis)) for axis in array.axes)

    def add_factor(self, factor: Factor) -> None:
        """Tie the axes that share a letter at the same shift in a factor, and add its size rules.

        Raises:
            DeclarationError: if tied axes have different sizes. The table is then invalid.
        """
        where = f"factor {factor.name!r}"
        prefix = f"{factor.name}/"
        shifted = False
        classes: dict[str, str] = {}
        splits: list[tuple[Reference, str, tuple[str, ...]]] = []
        for reference in factor.references:
            for axis, dim in zip(reference.array.axes, reference.pattern.dimensions, strict=True):
                if len(dim.letters) > 1:
                    splits.append((reference, axis, dim.letters))
                    continue
                letter = dim.letters[0]
                key = prefix + letter
                if dim.shift:
                    shifted = True
                    key = f"{key}{dim.shift:+d}"
                if dim.index is None:
                    self._tie(where, f"letter '{dim if dim.shift else letter}'", key, axis)
                else:
                    index = factor.indices[dim.index]
                    self._tie(where, f"letter '{letter}'", key, index.axes[0])
                    self._tie(where, f"index {index.name!r}", index.into, axis)
                classes.setdefault(letter, prefix + letter)
        if shifted:
            self._pairs += _shifted_pairs(factor)
        for reference, axis, letters in splits:
            for letter in letters:
                root = self.root(classes.setdefault(letter, prefix + letter))
                if letter in self._declared and root not in self._known and root not in self._named:
                    self._known[root] = self._declared[letter]
            self._rules.append((f"{where}, {reference}", {**classes, axis: axis}, split_rule(axis, letters)))
        self._rules.extend((where, classes, rule) for rule in factor.size_rules())
        self._solved = None

    def split_letters(self, factor: Factor) -> LetterSizes:
        """Static sizes of the letters that split axes in a factor."""
        letters = {
            x
            for r in factor.references
            for dim in r.pattern.dimensions
            if len(dim.letters) > 1
            for x in dim.letters
        }
        roots = {letter: self.root(f"{factor.name}/{letter}") for letter in letters}
        return {letter: self.static[root] for letter, root in roots.items() if root in self.static}

    def _tie(self, where: str, what: str, one: str, other: str) -> None:
        self._ties.append(Tie(what, where, one, other))
        root = self._classes.root
        a, b = root(one), root(other)
        if a == b:
            return
        for relation in self.relations:
            if relation.by and {self.root(relation.axis), self.root(relation.other)} == {a, b}:
                raise DeclarationError(
                    f"{where}: {what} ties axis {relation.axis!r} to axis {relation.other!r}, but "
                    f"{relation} is declared; "
                    "shift one of the references, as in X['i+1'], or give them different letters."
                )
        size_a, size_b = self._known.get(a), self._known.get(b)
        if size_a is not None and size_b is not None and size_a != size_b:
            left = ", ".join(repr(name) for name in self.tied(a))
            right = ", ".join(repr(name) for name in self.tied(b))
            raise DeclarationError(
                f"{where}: {what} ties axis {left} (size {size_a}) to axis {right} (size {size_b}); "
                "give them different letters, or declare one size."
            )
        self._classes.merge(a, b)
        if a in self._named:
            self._named.add(b)
        if size_a is not None:
            self._known[b] = size_a


def letter_sizes(
    references: Sequence[Reference],
    shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, int] | None = None,
    indices: Indices | None = None,
) -> LetterSizes:
    """Extents of the letters of a factor.

    A shifted letter runs over the positions at which all its references lie within their axes.

    Args:
        references: references of the factor.
        shapes: shapes of its arrays by name, without batch axes.
        known: sizes of letters known in advance.
        indices: indices used by the references.
    """
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    splits = []
    for reference in references:
        dimensions = reference.pattern.dimensions
        lengths = [_index_size(dim.index, indices) if dim.index is not None else None for dim in dimensions]
        if reference.array.name in shapes:
            lengths = [
                size if length is None else length
                for size, length in zip(shapes[reference.array.name], lengths, strict=True)
            ]
        for size, dim in zip(lengths, dimensions, strict=True):
            if size is None:
                continue
            if len(dim.letters) > 1:
                splits.append((size, dim.letters))
                continue
            letter = dim.letters[0]
            low[letter] = max(low.get(letter, 0), -dim.shift)
            high[letter] = min(high[letter], size - dim.shift) if letter in high else size - dim.shift
    sizes = {**(known or {}), **{letter: max(0, high[letter] - low[letter]) for letter in low}}
    while splits:
        solvable = [
            k for k, (_, letters) in enumerate(splits) if sum(letter not in sizes for letter in letters) <= 1
        ]
        if not solvable:
            _, letters = splits[0]
            unknown = [letter for letter in letters if letter not in sizes]
            raise DeclarationError(
                f"in the split ({' '.join(letters)}) the sizes of {', '.join(map(repr, unknown))} are not "
                f"known; declare one with the graph, FactorGraph(..., {unknown[0]}=...)."
            )
        size, letters = splits.pop(solvable[0])
        for letter in letters:
            if letter not in sizes:
                rest = math.prod(sizes[other] for other in letters if other != letter)
                sizes[letter] = size // rest if rest else 0
    return sizes


def _shifted_pairs(factor: Factor) -> list[ShiftedPair]:
    """Pairs of axes of different names that a factor indexes by the same letter at different shifts."""
    uses = [
        (axis, dim)
        for reference in factor.references
        for axis, dim in zip(reference.array.axes, reference.pattern.dimensions, strict=True)
        if len(dim.letters) == 1 and dim.index is None
    ]
    pairs = []
    for k, (axis, dim) in enumerate(uses):
        for other, other_dim in uses[:k]:
            if axis != other and dim.letters == other_dim.letters and dim.shift != other_dim.shift:
                # the letter covers both axes if size - shift is equal
                left, right = (other, other_dim), (axis, dim)
                relation = SizeRelation(left[0], right[0], left[1].shift - right[1].shift)
                pairs.append(ShiftedPair(f"letter '{dim.letters[0]}' of factor {factor.name!r}", relation))
    return pairs


def _index_size(name: str, indices: Indices | None) -> int:
    if not indices or name not in indices:
        raise DeclarationError(
            f"index {name!r} is not known before the factor is added to a graph that declares it"
        )
    return len(indices[name].numbers)
