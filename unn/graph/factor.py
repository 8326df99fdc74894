"""Factors: how referenced arrays interact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DeclarationError
from .arrays import Indices, Reference, Variable
from .interactions import Relation, Shapes, complete_relations
from .sizes import LetterSizes, SizeRule, letter_sizes

Values = Mapping[str, Tensor]
Products = dict["Factor", tuple[Tensor, Tensor]]
"""By factor, a value of a variable and what was computed from it for several messages."""


_BASES = {
    "energy": "EnergyFactor",
    "message": "EnergyFactor",
    "violations_of": "Constraint",
    "fresh_messages": "SharedMessages",
    "shares_products": "SharedMessages",
    "message_sharing": "SharedMessages",
    "message_rows": "SharedMessages",
    "row_aligned": "SharedMessages",
}
"""What a class of factors needs to derive from, by what it defines."""


class Factor:
    """What couples some arrays: who interacts with whom.

    A subclass of this class alone is structure without an energy, as for denoisers; one with an energy derives from ``EnergyFactor``, one that values
    meet or violate from ``Constraint``.

    Args:
        references: the arrays, each seen through a pattern.
        name: unique in the graph; made from the arrays by default.

    Attributes:
        variables: the names of the variables that this factor couples, each once.
        operands: the names of all its arrays, each once.
    """

    handles_indices: ClassVar[bool] = False
    """True if references may look up entries of an axis in an index of the graph, as in ``X["src[e] d"]``."""

    indices: Indices = {}
    """The indices that its references name; set when the factor is added to a graph."""

    module: nn.Module | None = None
    """A module with parameters of its own; the graph registers it under the factor's name."""

    split_sizes: Mapping[str, int] = {}
    """Sizes of letters that split axes, as far as the graph knows them; set when the factor is added to a graph."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parents = [parent.__name__ for parent in cls.__mro__]
        for member, base in _BASES.items():
            if member in cls.__dict__ and base not in parents:
                raise DeclarationError(f"class {cls.__name__} has {member}, so it derives from {base} of unn.extending.")

    def __init__(self, *references: Reference, name: str | None = None) -> None:
        for reference in references:
            if not isinstance(reference, Reference):
                raise DeclarationError(
                    f"{type(self).__name__} takes references such as X['i d'], got {reference!r}; "
                    "index the array by a pattern with one letter for each axis."
                )
        if name is not None and (not isinstance(name, str) or not name):
            raise DeclarationError(f"{type(self).__name__}: the name must be text, got {name!r}.")
        if not references:
            raise DeclarationError(f"{type(self).__name__} needs at least one reference such as X['i d'].")
        self.references = references
        self.variables = tuple(dict.fromkeys(r.array.name for r in references if isinstance(r.array, Variable)))
        self.operands = tuple(dict.fromkeys(r.array.name for r in references))
        self.name = name or f"{type(self).__name__}({', '.join(r.array.name for r in references)})"

    def size_rules(self) -> list[SizeRule]:
        """Rules between the sizes of this factor's letters, beyond equal letters."""
        return []

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Do once-only work ahead of the first run, given the sizes of axes known from the declaration."""

    def letter_sizes(self, shapes: Mapping[str, Sequence[int]]) -> LetterSizes:
        """The extent of each letter, given the shapes of the arrays without batch axes.

        Raises:
            DeclarationError: if the parts of a split axis remain unknown, or an index, before the factor is
                added to a graph.
        """
        try:
            return letter_sizes(self.references, shapes, self.split_sizes, self.indices)
        except DeclarationError as error:
            raise DeclarationError(f"factor {self.name!r}: {error}") from None

    def keeps(self, index: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_] | None:
        """Which terms exist, given the index of each letter in each term; None if all do."""
        return None

    def interactions(self, shapes: Shapes) -> list[Relation]:
        """Which nodes interact; all nodes of its variables with one another, where a factor does not know better.

        Args:
            shapes: of all arrays without batch axes, by name.

        Returns:
            Relations between the nodes of two variables, or of one.
        """
        return complete_relations(list(dict.fromkeys(r.array for r in self.references if isinstance(r.array, Variable))), shapes)

    def ordered_letters(self) -> set[str]:
        """The letters whose values the factor tells apart, so that permuting them changes its meaning; all, where it does not know better."""
        return {letter for reference in self.references for letter in reference.letters}

    def assumed_exchangeable(self) -> list[tuple[str, str]]:
        """Pairs of letters, each value of one related to each value of the other, that nothing in the declaration says to be exchangeable.

        A denoiser that shares embeddings along both warns. None by default: a factor with an energy shows what it treats alike.
        """
        return []

    def refusal(self) -> str:
        """Why coordinate descent cannot use this factor, and what to do."""
        return (
            f"factor {self.name!r} ({type(self).__name__}) says who interacts or what samples must meet, but has no energy, so coordinate "
            "descent cannot use it; leave it to denoisers, or add a factor with an energy (Multilinear, Implicit)."
        )

    def formula(self) -> str:
        """The factor in one line of text: its energy, if it has one."""
        return f"{type(self).__name__}({', '.join(map(str, self.references))})"

    def __repr__(self) -> str:
        return self.formula()


class EnergyFactor(Factor):
    """A term of the energy.

    A new one needs only ``energy``; its messages then come from autograd, and its blocks are minimised by the monotone inner solver. One that is
    affine in a variable says so in ``affine_in`` and is then solved in closed form.
    """

    handles_padding: bool = False
    """True if entries that are zero in its variables leave its energy and the other entries' messages as if they were not there."""

    multilinear: ClassVar[bool] = False
    """True if the energy is zero whenever one of its variables is, so that absent operands cost nothing."""

    completed_by: str | None = None
    """The variable whose regularizer, added to the energy of this factor, makes it bounded below whatever all others are; None for none."""

    def energy(self, values: Values) -> Tensor:
        """The energy, shape ``(batch,)``, from the values of all arrays by name."""
        raise NotImplementedError(f"{type(self).__name__} needs a method energy(values).")

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        """Minus the gradient of the energy with respect to ``target``, broadcastable to ``(batch, *shape)``.

        Args:
            target: the name of a variable of this factor.
            values: all arrays by name; may lack the target if the energy is affine in it.
            shape: the target's shape without its batch axis, needed where ``values`` lacks the target.
        """
        outer = torch.is_grad_enabled()
        # inference mode would record nothing, and make every message zero
        with torch.inference_mode(False), torch.enable_grad():
            values = {name: x.clone() if x.is_inference() else x for name, x in values.items() if name in self.operands}
            x = values[target]
            # a node of its own, so that other values computed from x do not count
            leaf = x.view_as(x) if outer and x.requires_grad else x.detach().requires_grad_()
            energy = self.energy({**values, target: leaf})
            if not energy.requires_grad:
                return torch.zeros_like(x)
            (gradient,) = torch.autograd.grad(energy.sum(), leaf, create_graph=outer, allow_unused=True)
        return torch.zeros_like(x) if gradient is None else -gradient

    def affine_in(self, target: str) -> bool:
        """Does the message to ``target`` not depend on the target's own value?"""
        return False

    def degree(self, names: Collection[str]) -> int | None:
        """How fast the energy can fall in these variables together: the least d known, with ``energy >= -C (1 + |x|^d)``.

        Here x are the values of these variables, and C is one number for all values of the others in a bounded set. For a
        polynomial it is the degree, for an energy that is bounded below whatever these variables are it is 0. None says
        that it is not known. Energies are taken to be finite and continuous on the whole closed domain.
        """
        return None

    def product(self) -> str | None:
        """Where the energy is minus the sum over all letters of the product of the references: the condition on the letters.

        Returns:
            ``""`` if all terms exist; None for every other energy, such as a convolution.
        """
        return None


class SharedMessages(EnergyFactor):
    """An energy factor whose messages can be computed in parts, so that an engine computes nothing twice.

    Every method has a default that saves nothing; the contract suite checks that each agrees with ``message``.
    """

    fresh_messages: ClassVar[bool] = False
    """True if every message is a tensor of its own, never an operand or a view of one, so that others may be added in place."""

    shares_products: bool = False
    """True if part of one message serves another, so that ``message_sharing`` saves time."""

    def message_sharing(self, target: str, values: Values, shape: tuple[int, ...] | None, products: Products) -> Tensor:
        """The same as ``message``, with what several messages have in common computed once.

        Args:
            target: see ``message``.
            values: see ``message``.
            shape: see ``message``.
            products: what was kept in this run, by factor, with the value it was computed from; the factor adds to it.
        """
        return self.message(target, values, shape)

    def message_rows(self, target: str, values: Values, rows: tuple[Tensor, ...]) -> Tensor | None:
        """The message to some rows of ``target`` alone; None where that is not possible or saves nothing.

        Args:
            target: a variable in which the energy is affine.
            values: all other arrays by name.
            rows: the indices of the rows along the batch axis and the first axes of the target, shape ``(rows,)`` each.

        Returns:
            Shape ``(rows, *other axes)``.
        """
        return None

    def row_aligned(self, target: str, source: str, count: int) -> bool:
        """Does each row of the message to ``target`` depend on the same row of ``source`` alone, along the batch and the first ``count`` axes?"""
        return False


class Constraint(Factor):
    """A condition that values meet or violate."""

    def violations_of(self, values: Values) -> Tensor:
        """How many parts of the condition values violate, shape ``(batch,)``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method violations_of(values).")
