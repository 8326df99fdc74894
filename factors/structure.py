"""Factors that say who interacts with whom, without an energy."""

from __future__ import annotations

from dataclasses import replace

from unn import Factor
from unn.arrays import Reference, Variable
from unn.errors import DeclarationError, suggest
from unn.interactions import Relation, Shapes, clique_relations, term_relation, told_apart

from .views import refuse_shifted_splits


class Depends(Factor):
    """A child and its parents in a generative program, for each assignment of the letters they share.

    Args:
        child: a reference to a variable.
        parents: references to variables.
        name: unique in the graph.
        ordered: letters whose values each have a meaning of their own (ranks, times), so that embeddings must not be shared along them.

    Example:
        ``Depends(C["i j k"], A["i k"], R["k j"])``: each C[i,j,k] was computed from A[i,k] and R[k,j].
    """

    handles_indices = True

    def __init__(self, child: Reference, *parents: Reference, name: str | None = None, ordered: str = "") -> None:
        super().__init__(child, *parents, name=name)
        variables_only(self)
        self.ordered = parse_letters(self, "ordered", ordered)
        self.child = child
        self.parents = parents

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return [replace(term_relation(self, self.child, parent, shapes), directed=True) for parent in self.parents]

    def ordered_letters(self) -> set[str]:
        return told_apart(self.references) | set(self.ordered)

    def formula(self) -> str:
        return f"{self.child} depends on {', '.join(map(str, self.parents)) or 'nothing'}"


class Clique(Factor):
    """All referenced nodes interact with one another, for each value of some letters.

    Args:
        references: to variables.
        each: letters, separated by spaces, for each value of which there is one clique; without any, all nodes are one clique.
        name: unique in the graph.
        ordered: letters whose values each have a meaning of their own (ranks, times), so that embeddings must not be shared along them.

    Example:
        ``Clique(X["r c"], each="r")``: the entries of each row interact.
    """

    handles_indices = True

    def __init__(self, *references: Reference, each: str = "", name: str | None = None, ordered: str = "") -> None:
        super().__init__(*references, name=name)
        variables_only(self)
        self.each = parse_letters(self, "each", each)
        self.ordered = parse_letters(self, "ordered", ordered)

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return clique_relations(self, self.each, shapes)

    def ordered_letters(self) -> set[str]:
        return told_apart(self.references) | set(self.ordered)

    def formula(self) -> str:
        return f"clique of {', '.join(map(str, self.references))}" + (f" for each {' '.join(self.each)}" if self.each else "")


def parse_letters(factor: Factor, option: str, text: str) -> tuple[str, ...]:
    """The letters named in an option.

    Raises:
        DeclarationError: if one of them is no letter of the factor.
    """
    if not isinstance(text, str):
        raise DeclarationError(f"factor {factor.name!r}: {option}={text!r} is no text such as 'r v'.")
    letters = {letter for reference in factor.references for letter in reference.letters}
    for letter in text.split():
        if letter not in letters:
            raise DeclarationError(f"factor {factor.name!r}: {option}={text!r} names no letter of the factor.{suggest(letter, letters)}")
    return tuple(text.split())


def variables_only(factor: Factor) -> None:
    """Check that a factor refers to variables alone.

    Raises:
        DeclarationError: names the first reference to something else.
    """
    for reference in factor.references:
        if not isinstance(reference.array, Variable):
            raise DeclarationError(f"factor {factor.name!r} relates variables, but {reference.array.name!r} is a {reference.array.kind}.")
    refuse_shifted_splits(factor)
