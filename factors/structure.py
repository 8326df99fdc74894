"""Factors that say who interacts with whom, without an energy."""

from __future__ import annotations

from unn import Factor
from unn.arrays import Reference, Variable
from unn.errors import DeclarationError, suggest
from unn.interactions import Pairs, Shapes, clique_pairs, term_pairs


class Depends(Factor):
    """A child and its parents in a generative program, for each assignment of the letters they share.

    Args:
        child: a reference to a variable.
        parents: references to variables.
        name: unique in the graph.

    Example:
        ``Depends(C["i j k"], A["i k"], R["k j"])``: each C[i,j,k] was computed from A[i,k] and R[k,j].
    """

    def __init__(self, child: Reference, *parents: Reference, name: str | None = None) -> None:
        super().__init__(child, *parents, name=name)
        _variables_only(self)
        self.child = child
        self.parents = parents

    def interactions(self, shapes: Shapes) -> list[Pairs]:
        found: list[Pairs] = []
        for parent in self.parents:
            i, j = term_pairs(self, self.child, parent, shapes)
            found.append((self.child.array.name, i, parent.array.name, j))
        return found

    def formula(self) -> str:
        return f"{self.child} depends on {', '.join(map(str, self.parents)) or 'nothing'}"


class Clique(Factor):
    """All referenced nodes interact with one another, for each value of some letters.

    Args:
        references: to variables.
        each: letters, separated by spaces, for each value of which there is one clique; without any, all nodes are one clique.
        name: unique in the graph.

    Example:
        ``Clique(X["r c"], each="r")``: the entries of each row interact.
    """

    def __init__(self, *references: Reference, each: str = "", name: str | None = None) -> None:
        super().__init__(*references, name=name)
        _variables_only(self)
        self.each = parse_each(self, each)

    def interactions(self, shapes: Shapes) -> list[Pairs]:
        return clique_pairs(self, self.each, shapes)

    def formula(self) -> str:
        return f"clique of {', '.join(map(str, self.references))}" + (f" for each {' '.join(self.each)}" if self.each else "")


def parse_each(factor: Factor, each: str) -> tuple[str, ...]:
    """The letters named in ``each``.

    Raises:
        DeclarationError: if one of them is no letter of the factor.
    """
    if not isinstance(each, str):
        raise DeclarationError(f"factor {factor.name!r}: each={each!r} is no text such as 'r v'.")
    letters = {letter for reference in factor.references for letter in reference.letters}
    for letter in each.split():
        if letter not in letters:
            raise DeclarationError(f"factor {factor.name!r}: each={each!r} names no letter of the factor.{suggest(letter, letters)}")
    return tuple(each.split())


def _variables_only(factor: Factor) -> None:
    for reference in factor.references:
        if not isinstance(reference.array, Variable):
            raise DeclarationError(f"factor {factor.name!r} relates variables, but {reference.array.name!r} is a {reference.array.kind}.")
