"""Constraints between two nodes: their values differ."""

from __future__ import annotations

from torch import Tensor

from unn import Constraint
from unn.errors import DeclarationError
from unn.graph.arrays import Reference
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, node_dimensions, product_relations, told_apart
from unn.graph.structure import variables_only
from unn.graph.views import checked_views
from unn.regularizers.base import batch_sum


class Different(Constraint):
    """Two nodes have different values, for each assignment of the letters that index nodes.

    Two values differ if any of their entries do, by more than one half: one-hot categories, bits, spins -1
    and 1, whole numbers. A node never differs from itself.

    Args:
        one, other: references to variables with the same letters; letters of feature axes (right of the
            bar) index the entries of a value.
        name: unique in the graph.

    Example:
        ``Different(colour["src[e] c"], colour["dst[e] c"])``: the ends of each edge have different colours,
        where ``src`` and ``dst`` are indices of the graph.
    """

    handles_indices = True

    def __init__(self, one: Reference, other: Reference, *, name: str | None = None) -> None:
        super().__init__(one, other, name=name)
        variables_only(self)
        if set(one.letters) != set(other.letters):
            raise DeclarationError(
                f"factor {self.name!r} compares values entry by entry, so that {one} and {other} must have "
                "the same letters; "
                "for pairs of nodes, look both up by the letter of a pair, as in X['src[e] c'] and "
                "X['dst[e] c']."
            )
        features = [self._feature_letters(reference) for reference in (one, other)]
        if features[0] != features[1]:
            raise DeclarationError(
                f"factor {self.name!r}: the letters along feature axes are "
                f"{' '.join(sorted(features[0])) or 'none'} in {one}, but "
                f"{' '.join(sorted(features[1])) or 'none'} in {other}; values are compared along the same "
                "letters."
            )
        self._features = features[0]

    def violations_of(self, values: Values) -> Tensor:
        """Number of node pairs with equal values, shape ``(batch,)``; NaN counts as equal.

        Args:
            values: values of the variables, shape ``(batch, *axes)``.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
        """
        left, right = checked_views(self, values)
        letters, others = (reference.letters for reference in self.references)
        right = right.permute(0, *(1 + others.index(letter) for letter in letters))
        along = [1 + k for k, letter in enumerate(letters) if letter in self._features]
        differ = (left - right).abs() > 0.5
        for axis in reversed(along):
            differ = differ.any(axis)
        return batch_sum((~differ).long())

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return told_apart(self.references)

    def formula(self) -> str:
        one, other = self.references
        return f"{one} differs from {other}"

    @staticmethod
    def _feature_letters(reference: Reference) -> set[str]:
        nodes = {letter for dim in node_dimensions(reference) for letter in dim.letters}
        return set(reference.letters) - nodes
