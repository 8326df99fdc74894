"""Factors: how referenced arrays interact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DeclarationError
from ..regularizers.base import batch_sum
from .arrays import Indices, Reference, Variable
from .groups import AllowedCombinations, CountGroups
from .interactions import Relation, Shapes, complete_relations
from .sizes import LetterSizes, SizeRule, letter_sizes

Values = Mapping[str, Tensor]
Products = dict["Factor", tuple[Tensor, Tensor]]
"""Cache of partial contractions shared between messages: by factor, the input value and the result."""


_BASES = {
    "energy": "EnergyFactor",
    "message": "EnergyFactor",
    "violations_of": "Constraint",
    "penalties": "Constraint",
    "fresh_messages": "SharedMessages",
    "shares_products": "SharedMessages",
    "message_sharing": "SharedMessages",
    "message_rows": "SharedMessages",
    "row_aligned": "SharedMessages",
}
"""Required base class of a factor class, by the member it defines."""


class Factor:
    """A coupling of arrays, which determines the interacting nodes.

    A direct subclass is structure without an energy, as used by denoisers. Factors with an energy derive from
    ``EnergyFactor``, conditions on values from ``Constraint``.

    Args:
        references: arrays with their patterns.
        name: unique name in the graph; generated from the arrays by default.

    Attributes:
        variables: distinct names of the coupled variables.
        operands: distinct names of all arrays.
    """

    handles_indices: ClassVar[bool] = False
    """True if references may look up entries of an axis in an index of the graph, as in ``X["src[e] d"]``."""

    indices: Indices = {}
    """The indices used by the references; set when the factor is added to a graph."""

    module: nn.Module | None = None
    """A module with its own parameters; the graph registers it under the name of the factor."""

    split_sizes: Mapping[str, int] = {}
    """Sizes of letters that split axes, as far as known; set when the factor is added to a graph."""

    axis_sizes: Mapping[str, int] = {}
    """Static sizes of axes of the graph; set when the factor is added to it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parents = [parent.__name__ for parent in cls.__mro__]
        for member, base in _BASES.items():
            if member in cls.__dict__ and base not in parents:
                raise DeclarationError(
                    f"class {cls.__name__} has {member}, so it derives from {base} of unn.extending."
                )

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
        self.variables = tuple(
            dict.fromkeys(r.array.name for r in references if isinstance(r.array, Variable))
        )
        self.operands = tuple(dict.fromkeys(r.array.name for r in references))
        self.name = name or f"{type(self).__name__}({', '.join(r.array.name for r in references)})"

    def size_rules(self) -> list[SizeRule]:
        """Rules between the sizes of letters, in addition to the ties of equal letters."""
        return []

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Precompute what depends only on sizes, before the first run, from the declared sizes of axes."""

    def letter_sizes(self, shapes: Mapping[str, Sequence[int]]) -> LetterSizes:
        """Extents of the letters, from the shapes of the arrays without batch axes.

        Raises:
            DeclarationError: if the sizes in a split or an index are unknown because the factor has not been
                added to a graph.
        """
        try:
            return letter_sizes(self.references, shapes, self.split_sizes, self.indices)
        except DeclarationError as error:
            raise DeclarationError(f"factor {self.name!r}: {error}") from None

    def keeps(self, index: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_] | None:
        """Mask of the terms that exist, from the index of each letter in each term; None if all exist."""
        return None

    def interactions(self, shapes: Shapes) -> list[Relation]:
        """Relations between interacting nodes; all pairs of nodes of its variables by default.

        Args:
            shapes: shapes of all arrays without batch axes, by name.

        Returns:
            Relations between nodes of two variables, or within one.
        """
        return complete_relations(
            list(dict.fromkeys(r.array for r in self.references if isinstance(r.array, Variable))), shapes
        )

    def ordered_letters(self) -> set[str]:
        """Letters whose values are not exchangeable in the factor; all of them by default."""
        return {letter for reference in self.references for letter in reference.letters}

    def assumed_exchangeable(self) -> list[tuple[str, str]]:
        """Pairs of fully related letters that are assumed, not declared, to be exchangeable.

        A denoiser that shares embeddings along both letters warns. Empty by default: the energy of a factor
        determines its exchangeable letters.
        """
        return []

    def refusal(self) -> str:
        """Message on why coordinate descent cannot use this factor, with a remedy."""
        return (
            f"factor {self.name!r} ({type(self).__name__}) declares interactions or a condition on samples "
            "but has no energy, so coordinate descent cannot use it; leave it to denoisers, or add a factor "
            "with an energy (Multilinear, Implicit)."
        )

    def formula(self) -> str:
        """The factor in one line of text: its energy, if it has one."""
        return f"{type(self).__name__}({', '.join(map(str, self.references))})"

    def __repr__(self) -> str:
        return self.formula()


class EnergyFactor(Factor):
    """A term of the energy.

    A subclass needs only ``energy``: messages come from autograd, and blocks are minimised by the monotone
    inner solver. Where ``affine_in`` declares the energy affine in a variable, its update has a closed form.
    """

    handles_padding: bool = False
    """True if zero entries of its variables affect neither the energy nor the messages to other entries.
    Where ``moved_by_padding`` names variables, and these are given, they may add a constant to the energy."""

    multilinear: bool = False
    """True if the energy is zero whenever one of its variables is, so that absent operands cost nothing."""

    completed_by: str | None = None
    """Variable whose regularizer plus this energy is bounded below for all values of the others, or None."""

    def energy(self, values: Values) -> Tensor:
        """Energy from the values of all arrays by name, shape ``(batch,)``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method energy(values).")

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        """Minus the gradient of the energy with respect to ``target``, broadcastable to ``(batch, *shape)``.

        Args:
            target: name of a variable of this factor.
            values: values of all arrays by name; the target may be absent if the energy is affine in it.
            shape: shape of the target without its batch axis, needed if it is absent from ``values``.
        """
        outer = torch.is_grad_enabled()
        # inference mode records no graph, so every message would be zero
        with torch.inference_mode(False), torch.enable_grad():
            values = {
                name: x.clone() if x.is_inference() else x
                for name, x in values.items()
                if name in self.operands
            }
            if target not in values and shape is not None:
                # an affine energy has the same gradient everywhere
                like, batch = next(iter(values.values())), max(map(len, values.values()))
                values[target] = like.new_zeros(batch, *shape)
            x = values[target]
            # a separate autograd node, so that values computed from x elsewhere do not contribute
            leaf = x.view_as(x) if outer and x.requires_grad else x.detach().requires_grad_()
            energy = self.energy({**values, target: leaf})
            if not energy.requires_grad:
                return torch.zeros_like(x)
            (gradient,) = torch.autograd.grad(energy.sum(), leaf, create_graph=outer, allow_unused=True)
        return torch.zeros_like(x) if gradient is None else -gradient

    def moved_by_padding(self, ragged: Collection[str]) -> Sequence[str]:
        """Names of variables whose messages padded entries change although ``handles_padding``; none by
        default. Runs with ``lengths`` need them given.

        Args:
            ragged: names of the variables and constants with padded entries.
        """
        return ()

    def affine_in(self, target: str) -> bool:
        """Whether the message to ``target`` is independent of the value of the target."""
        return False

    def degree(self, names: Collection[str]) -> int | None:
        """Growth order of the energy in the variables jointly: the least known d with ``energy >= -C (1 +
        |x|^d)``.

        Here x holds the values of these variables, and C is uniform over the other values in a bounded set.
        It is the degree of a polynomial, 0 for an energy that is bounded below in these variables, and None
        if unknown. Energies are assumed finite and continuous on the closed domain.
        """
        return None

    def product(self) -> str | None:
        """Condition on the letters of an energy that is minus a sum of products of the references.

        Returns:
            ``""`` if the sum runs over all letters; None for other energies, such as a convolution.
        """
        return None


class SharedMessages(EnergyFactor):
    """An energy factor whose messages share intermediate results or can be computed in parts.

    The defaults share nothing; the contract suite checks that each method agrees with ``message``.
    """

    fresh_messages: ClassVar[bool] = False
    """True if every message is a new tensor, never an operand or a view of one, and may be modified in
    place."""

    shares_products: bool = False
    """True if messages have common partial contractions, so that ``message_sharing`` saves time."""

    def message_sharing(
        self, target: str, values: Values, shape: tuple[int, ...] | None, products: Products
    ) -> Tensor:
        """Compute ``message``, reusing the contractions that several messages have in common.

        Args:
            target: see ``message``.
            values: see ``message``.
            shape: see ``message``.
            products: cache of this run, to which the factor adds.
        """
        return self.message(target, values, shape)

    def message_rows(self, target: str, values: Values, rows: tuple[Tensor, ...]) -> Tensor | None:
        """The message to the given rows of ``target`` only; None if that is impossible or saves nothing.

        Args:
            target: name of a variable in which the energy is affine.
            values: values of all other arrays by name.
            rows: indices of the rows along the batch axis and the first axes of the target, shape ``(rows,)``
                each.

        Returns:
            Shape ``(rows, *other axes)``.
        """
        return None

    def row_aligned(self, target: str, source: str, count: int) -> bool:
        """Whether a row of the message to ``target`` depends on the same row of ``source`` only.

        Rows are indexed by the batch axis and the first ``count`` axes.
        """
        return False


class Constraint(Factor):
    """A condition on values.

    A subclass needs only ``violations_of``, by which samples are checked. A differentiable loss of each of
    its parts (``part_losses``) trains solvers to satisfy it; ``penalties`` are energies in its place for
    coordinate descent (``unn.relax``).
    """

    multiaffine: bool = False
    """True if the loss is affine in each reference, the others fixed, so that its energy has exact
    updates."""
    has_loss: bool = True
    """False if the condition has no differentiable loss (``part_losses``)."""

    def violations_of(self, values: Values) -> Tensor:
        """Number of violated parts of the condition, shape ``(batch,)``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method violations_of(values).")

    def part_losses(self, values: Values) -> Tensor:
        """Differentiable measure of the violation of each part, shape ``(batch, parts)``: >= 0, and 0 where
        the part is not violated.

        Args:
            values: values of the variables by name, shape ``(batch, *axes)``: probabilities for variables on
                the simplex or in [0, 1], real numbers otherwise. Gradients are finite.

        Raises:
            NotImplementedError: if the constraint has none.
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
        """
        raise NotImplementedError(
            f"factor {self.name!r}: {type(self).__name__} has no differentiable loss; give the class a "
            "method part_losses(values) that returns a number >= 0 for each part and batch element, or set "
            "has_loss = False, so that training leaves it out."
        )

    def loss(self, values: Values) -> Tensor:
        """Sum of the losses of all parts, shape ``(batch,)``; see ``part_losses``.

        ``unn.constraint_loss`` is that of all constraints of a graph, at binary values with gradients.
        """
        return batch_sum(self.part_losses(values))

    def groups(self, shapes: Shapes) -> list[CountGroups]:
        """Groups of entries of which a number within bounds is one; none by default.

        They define the constraint where it is a count: exact marginals and solvers are derived from them. A
        constraint with ``is_counted`` and without groups always holds.

        Args:
            shapes: shapes of all arrays without batch axes, by name.
        """
        return []

    @property
    def is_counted(self) -> bool:
        """Whether groups define the constraint, by default if the class has them.

        A class whose declarations are not all counts overrides it. At some sizes there may be no groups.
        """
        return type(self).groups is not Constraint.groups

    def combinations(self, shapes: Shapes) -> list[AllowedCombinations]:
        """Allowed combinations of categories, where they define the constraint; none by default.

        Search propagates them in place of ``groups``: a category without an allowed combination is excluded.

        Args:
            shapes: shapes of all arrays without batch axes, by name.
        """
        return []

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """Energy factors whose sum is smallest where the values satisfy the condition; none by default.

        The name is that of constrained optimisation (Nocedal and Wright, 2006, Chapter 17): terms that are
        added to an objective, with a weight, in place of a condition. Constants are left out.

        Args:
            weight: a number > 0.
            log_weight: reference to a parameter without axes, of the graph to which the factors will be
                added; the weight is multiplied by its exponential.

        Returns:
            New factors, which refer to the same variables and belong to no graph yet.
        """
        return []

    def refusal(self) -> str:
        return (
            f"factor {self.name!r} ({type(self).__name__}) is a condition on samples and has no energy, so "
            "coordinate descent cannot use it; replace constraints by penalties with unn.relax(graph), leave "
            "them to denoisers, or add a factor with an energy (Multilinear, Implicit)."
        )
