"""Factors without an energy, which declare the interacting nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from ..errors import DeclarationError, suggest
from .arrays import Reference, Variable
from .factor import Factor
from .interactions import (
    Nodes,
    Relation,
    Shapes,
    clique_relations,
    listed_relation,
    node_dimensions,
    ordered_letters_of,
    term_relation,
)
from .views import refuse_shifted_splits


class Depends(Factor):
    """A child and its parents in a generative program, for each assignment of the letters they share.

    Args:
        child: a reference to a variable.
        parents: references to variables.
        name: unique name in the graph.
        ordered: letters whose values are not exchangeable (ranks, times, rows of a weight matrix), so that
            embeddings must not be shared along them; ``""`` declares that there are none. If left out, a
            denoiser assumes the values of each letter to be exchangeable, and warns
            (``unn.errors.ExchangeabilityWarning``) where a letter only of the child is combined with a letter
            only of a parent, as in ``Depends(y["j"], x["i"])``: with shared embeddings all y have the same
            law given x, which is false for y = W x; and where two letters of the child index the same values,
            as in ``Depends(x["i j"], y["i"], y["j"])``: x[i, j] and x[j, i] have the same law given y, which
            is false for y[i] - y[j].

    Example:
        ``Depends(C["i j k"], A["i k"], R["k j"])``: each C[i,j,k] was computed from A[i,k] and R[k,j].
    """

    handles_indices = True

    def __init__(
        self, child: Reference, *parents: Reference, name: str | None = None, ordered: str | None = None
    ) -> None:
        super().__init__(child, *parents, name=name)
        variables_only(self)
        self.states_order = ordered is not None
        self.ordered = parse_letters(self, "ordered", "" if ordered is None else ordered)
        self.child = child
        self.parents = parents

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return [
            replace(term_relation(self, self.child, parent, shapes), directed=True) for parent in self.parents
        ]

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references) | set(self.ordered)

    def assumed_exchangeable(self) -> list[tuple[str, str]]:
        if self.states_order:
            return []
        child = _node_letters(self.child)
        parents = {letter for parent in self.parents for letter in _node_letters(parent)}
        apart = [(one, other) for one in sorted(child - parents) for other in sorted(parents - child)]
        return apart + list(combinations(sorted(child & parents), 2))

    def formula(self) -> str:
        return (
            f"{self.child} depends on "
            f"{', '.join(map(str, self.parents)) or 'nothing'}{_ordered_suffix(self.ordered)}"
        )


class Clique(Factor):
    """All referenced nodes interact with one another, for each value of the letters ``each``.

    Args:
        references: references to variables.
        each: letters that index the cliques, separated by spaces; if empty, all nodes form one clique.
        name: unique name in the graph.
        ordered: letters whose values are not exchangeable (ranks, times), so that embeddings must not be
            shared along them.

    Example:
        ``Clique(X["r c"], each="r")``: the entries of each row interact.
    """

    handles_indices = True

    def __init__(
        self, *references: Reference, each: str = "", name: str | None = None, ordered: str = ""
    ) -> None:
        super().__init__(*references, name=name)
        variables_only(self)
        self.each = parse_letters(self, "each", each)
        self.ordered = parse_letters(self, "ordered", ordered)

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return clique_relations(self, self.each, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references) | set(self.ordered)

    def formula(self) -> str:
        each = f" for each {' '.join(self.each)}" if self.each else ""
        return f"clique of {', '.join(map(str, self.references))}{each}{_ordered_suffix(self.ordered)}"


def _node_letters(reference: Reference) -> set[str]:
    """The letters along axes that index nodes."""
    return {letter for dimension in node_dimensions(reference) for letter in dimension.letters}


def _ordered_suffix(ordered: Sequence[str]) -> str:
    return f" ({', '.join(ordered)} ordered)" if ordered else ""


def parse_letters(factor: Factor, option: str, text: str) -> tuple[str, ...]:
    """Parse the letters given in an option.

    Raises:
        DeclarationError: if a name is not a letter of the factor.
    """
    if not isinstance(text, str):
        raise DeclarationError(
            f"factor {factor.name!r}: {option}={text!r} must be a string of letters such as 'r v'."
        )
    letters = {letter for reference in factor.references for letter in reference.letters}
    for letter in text.split():
        if letter not in letters:
            raise DeclarationError(
                f"factor {factor.name!r}: {option}={text!r} names no letter of the "
                f"factor.{suggest(letter, letters)}"
            )
    return tuple(text.split())


def variables_only(factor: Factor) -> None:
    """Check that a factor refers to variables only.

    Raises:
        DeclarationError: names the first reference to something else.
    """
    for reference in factor.references:
        if not isinstance(reference.array, Variable):
            raise DeclarationError(
                f"factor {factor.name!r} relates variables, but {reference.array.name!r} is a "
                f"{reference.array.kind}."
            )
    refuse_shifted_splits(factor)


class Pairs(Factor):
    """Listed pairs of interacting nodes of two variables, or of one.

    None of its axes is exchangeable, since a list of pairs declares no structure.

    Args:
        one: reference with a distinct letter for each axis.
        other: reference with different letters; the parents, if the pairs are directed.
        pairs: flat indices of the nodes of ``one`` and ``other``, shape ``(pairs,)`` each.
        directed: whether ``one`` was computed from ``other``.
        name: unique name in the graph.
    """

    def __init__(
        self,
        one: Reference,
        other: Reference,
        pairs: tuple[Nodes, Nodes],
        directed: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(one, other, name=name)
        self.pairs = pairs
        self.directed = directed

    def interactions(self, shapes: Shapes) -> list[Relation]:
        one, other = self.references
        return [
            replace(
                listed_relation(one.array.name, self.pairs[0], other.array.name, self.pairs[1]),
                directed=self.directed,
            )
        ]

    def formula(self) -> str:
        one, other = self.references
        pairs = f"{len(self.pairs[0])} listed {'pair' if len(self.pairs[0]) == 1 else 'pairs'}"
        return (
            f"{one} depends on {other} in {pairs}"
            if self.directed
            else f"{one} and {other} interact in {pairs}"
        )
