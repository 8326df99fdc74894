"""Factors that say who interacts with whom, without an energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import DeclarationError, suggest
from .arrays import Reference, Variable
from .factor import Factor
from .interactions import Nodes, Relation, Shapes, clique_relations, listed_relation, node_axis_count, term_relation, told_apart
from .views import refuse_shifted_splits


class Depends(Factor):
    """A child and its parents in a generative program, for each assignment of the letters they share.

    Args:
        child: a reference to a variable.
        parents: references to variables.
        name: unique in the graph.
        ordered: letters whose values each have a meaning of their own (ranks, times, rows of a weight matrix), so that embeddings must not be
            shared along them; ``""`` states that there are none. If it is left out, a denoiser takes the values of each letter for
            interchangeable, and warns (``unn.errors.ExchangeabilityWarning``) where a letter of the child alone meets a letter of a parent
            alone, as in ``Depends(y["j"], x["i"])``: with shared embeddings all y have the same law given x, which y = W x has not.

    Example:
        ``Depends(C["i j k"], A["i k"], R["k j"])``: each C[i,j,k] was computed from A[i,k] and R[k,j].
    """

    handles_indices = True

    def __init__(self, child: Reference, *parents: Reference, name: str | None = None, ordered: str | None = None) -> None:
        super().__init__(child, *parents, name=name)
        variables_only(self)
        self.states_order = ordered is not None
        self.ordered = parse_letters(self, "ordered", "" if ordered is None else ordered)
        self.child = child
        self.parents = parents

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return [replace(term_relation(self, self.child, parent, shapes), directed=True) for parent in self.parents]

    def ordered_letters(self) -> set[str]:
        return told_apart(self.references) | set(self.ordered)

    def assumed_exchangeable(self) -> list[tuple[str, str]]:
        if self.states_order:
            return []
        child = _node_letters(self.child)
        parents = {letter for parent in self.parents for letter in _node_letters(parent)}
        return [(one, other) for one in sorted(child - parents) for other in sorted(parents - child)]

    def formula(self) -> str:
        return f"{self.child} depends on {', '.join(map(str, self.parents)) or 'nothing'}{_shown(self.ordered)}"


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
        return f"clique of {', '.join(map(str, self.references))}" + (f" for each {' '.join(self.each)}" if self.each else "") + _shown(self.ordered)


def _node_letters(reference: Reference) -> set[str]:
    """The letters along axes that index nodes."""
    assert isinstance(reference.array, Variable)
    dimensions = reference.pattern.dimensions[: node_axis_count(reference.array)]
    return {letter for dimension in dimensions for letter in dimension.letters}


def _shown(ordered: Sequence[str]) -> str:
    return f" ({', '.join(ordered)} ordered)" if ordered else ""


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


class Pairs(Factor):
    """Pairs of nodes of two variables, or of one, that interact.

    No axis that it refers to is exchangeable, since nothing is known of what the pairs have in common.

    Args:
        one: a reference with a letter of its own for each axis.
        other: a reference with other letters; the parents, if the pairs are directed.
        pairs: flat indices among the nodes of the one and the other, shape ``(pairs,)`` each.
        directed: were the ones computed from the others?
        name: unique in the graph.
    """

    def __init__(self, one: Reference, other: Reference, pairs: tuple[Nodes, Nodes], directed: bool = True, name: str | None = None) -> None:
        super().__init__(one, other, name=name)
        self.pairs = pairs
        self.directed = directed

    def interactions(self, shapes: Shapes) -> list[Relation]:
        one, other = self.references
        return [replace(listed_relation(one.array.name, self.pairs[0], other.array.name, self.pairs[1]), directed=self.directed)]

    def formula(self) -> str:
        one, other = self.references
        pairs = f"{len(self.pairs[0])} listed {'pair' if len(self.pairs[0]) == 1 else 'pairs'}"
        return f"{one} depends on {other} in {pairs}" if self.directed else f"{one} and {other} interact in {pairs}"
