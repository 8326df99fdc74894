"""Equations between variables, up to a tolerance: sums of products."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unn.arrays import Reference
from unn.errors import DeclarationError
from unn.factor import Values
from unn.regularizers.base import batch_sum

from .structure import Depends
from .views import starts_of, view


class SumOfProducts(Depends):
    """A child that was computed from its parents: the product of their entries, summed over the letters that the child lacks.

    Samples that are off by more than the tolerance break the constraint.

    Args:
        child: a reference to a variable.
        parents: references to variables.
        within: the largest difference at which an entry of the child still counts as right.
        name: unique in the graph.
        ordered: letters whose values each have a meaning of their own (ranks, times), so that embeddings must not be shared along them.

    Example:
        ``SumOfProducts(E["i j"], A["i k"], R["k j"], within=0.05)``: E is the matrix product of A and R.
    """

    def __init__(self, child: Reference, *parents: Reference, within: float, name: str | None = None, ordered: str = "") -> None:
        super().__init__(child, *parents, name=name, ordered=ordered)
        if not parents:
            raise DeclarationError(f"factor {self.name!r}: {child} needs the parents that it was computed from.")
        if isinstance(within, bool) or not isinstance(within, (int, float)) or not 0 <= within < math.inf:
            raise DeclarationError(f"factor {self.name!r}: within must be a number >= 0, got {within!r}.")
        self.within = float(within)

    def violations_of(self, values: Values) -> Tensor:
        """How many entries of the child are off by more than the tolerance, or not a number, shape ``(batch,)``.

        Args:
            values: of the variables, shape ``(batch, *axes)``.
        """
        sizes = self.letter_sizes({name: tuple(values[name].shape[1:]) for name in self.variables})
        starts = starts_of(self.references)
        child, *parents = (view(values[r.array.name].double(), r.pattern, sizes, starts) for r in self.references)
        numbers = {letter: k for k, letter in enumerate(sizes, start=1)}
        places, *others = ([0, *(numbers[letter] for letter in r.letters)] for r in self.references)
        operands = [item for x, found in zip(parents, others, strict=True) for item in (x, found)]
        # the ones have the letters of the child that no parent has
        sums = torch.einsum(*operands, torch.ones_like(child), places, places)
        return batch_sum((~((child - sums).abs() <= self.within)).long())

    def formula(self) -> str:
        summed = [x for x in dict.fromkeys(x for parent in self.parents for x in parent.letters) if x not in self.child.letters]
        over = f"sum over {' '.join(summed)} of " if summed else ""
        return f"{self.child} = {over}{' * '.join(map(str, self.parents))} within {self.within:g}"
