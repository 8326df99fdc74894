"""Multilinear factor: minus the einsum of its operands."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unn.errors import DeclarationError, suggest
from unn.graph.arrays import Constant, Parameter, Reference, Variable
from unn.graph.factor import Products, SharedMessages, Values
from unn.graph.interactions import Relation, Shapes, ordered_letters_of, product_relations
from unn.graph.sizes import LetterSizes
from unn.graph.views import adjoint, refuse_shifted_splits, starts_of, view
from unn.ops.contraction import BATCH, Contraction, contraction

_RELATIONS = {"!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|<|>)\s*(\w+)\s*")


@dataclass(frozen=True)
class _Shared:
    """Positions of a variable and a parameter, and the letters of their product."""

    variable: int
    parameter: int
    letters: tuple[str, ...]

    @property
    def positions(self) -> tuple[int, int]:
        return self.variable, self.parameter


class Multilinear(SharedMessages):
    """E = -sum over all letters of the product of all operands (undirected-network paper, eq. 3).

    Dense layers, biases, attention, biaffine scores and potential tables are all of this form. The message to
    a variable is the einsum of the other operands (Lemma 1); a variable that occurs several times receives
    one such term per occurrence.

    Args:
        references: variables, parameters and constants, each with a pattern; ``X["src[e] d"]`` looks up rows
            of X by an index of the graph.
        where: condition between two letters that selects terms, such as ``"i != j"`` or ``"i < j"``.
        name: unique in the graph.

    Example:
        ``Multilinear(H["h"], W["h x"], X["x"])`` is E = -<H, W X>.
    """

    multilinear = True
    handles_padding: bool = True
    handles_indices = True

    def __init__(self, *references: Reference, where: str | None = None, name: str | None = None) -> None:
        super().__init__(*references, name=name)
        if not self.variables:
            raise DeclarationError(
                f"factor {self.name!r} has no variable among its references "
                f"{', '.join(map(str, references))}."
            )
        self.where = where
        self._condition = None if where is None else self._parse_condition(where)
        self._plain = all(reference.pattern.plain for reference in references)
        if not self._plain:
            refuse_shifted_splits(self)
        self._starts = {} if self._plain else starts_of(references)
        self._direct = (True,) * len(references) if self._plain else _direct(references)
        self._positions = {
            name: [k for k, r in enumerate(references) if r.array.name == name] for name in self.variables
        }
        self._has_constants = any(isinstance(r.array, Constant) for r in references)
        self._names = tuple(r.array.name for r in references)
        self._others = _other_positions(len(references))
        self._whole = self._plain and where is None and len(references) > 1
        self._variable_flags = _flags_of_others(tuple(isinstance(r.array, Variable) for r in references))
        self._masks: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}
        self._contractions: dict[tuple[int | None, tuple[bool, ...]], Contraction] = {}
        self._contractions_after: dict[tuple[int, tuple[bool, ...]], Contraction] = {}
        self._product: Contraction | None = None
        self._shared = self._find_shared()
        self.shares_products = self._shared is not None

    def __getstate__(self) -> dict[str, Any]:
        """Omit compiled contractions and masks, which are recreated on demand."""
        return {
            **self.__dict__,
            "_contractions": {},
            "_contractions_after": {},
            "_product": None,
            "_masks": {},
        }

    def energy(self, values: Values) -> Tensor:
        sizes = self._letter_sizes(values, None, None)
        operands = [self._operand(k, values, sizes) for k in range(len(self.references))]
        run = self._contraction(None, self._flags(None, values))
        return -run(self._with_condition(operands, values, sizes))

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        positions = self._positions[target]
        if self._whole:
            total = self._message_of_arrays(positions[0], values)
            for position in positions[1:]:
                total = total + self._message_of_arrays(position, values)
            return total
        if shape is None and target in values:
            shape = tuple(values[target].shape[1:])
        sizes = self._letter_sizes(values, target, shape)
        total = self._message(positions[0], values, sizes, shape)
        for position in positions[1:]:
            total = total + self._message(position, values, sizes, shape)
        return total

    def message_sharing(
        self, target: str, values: Values, shape: tuple[int, ...] | None, products: Products
    ) -> Tensor:
        if self._shared is None or target == self.references[self._shared.variable].array.name:
            return self.message(target, values, shape)
        shared = self._shared
        x = values[self.references[shared.variable].array.name]
        kept = products.get(self)
        if kept is None or kept[0] is not x:
            kept = products[self] = (
                x,
                self._contraction_of(shared)([x, values[self.references[shared.parameter].array.name]]),
            )
        position = self._positions[target][0]
        run = self._contraction_after(shared, position, self._flags(position, values))
        return run(
            [
                kept[1],
                *(
                    values[self.references[k].array.name]
                    for k in self._others[position]
                    if k not in shared.positions
                ),
            ]
        )

    def message_rows(self, target: str, values: Values, rows: tuple[Tensor, ...]) -> Tensor | None:
        position = self._positions[target][0]
        letters = self.references[position].letters
        along, rest = letters[: len(rows) - 1], letters[len(rows) - 1 :]
        if not (
            self._plain and self._condition is None and self.affine_in(target) and self._others[position]
        ):
            return None
        flags = self._flags(position, values)
        operands: list[Tensor] = []
        patterns: list[tuple[str, ...]] = []
        for k in self._others[position]:
            own = self.references[k].letters
            x = values[self.references[k].array.name]
            if not flags[k] and not set(along) & set(own):
                patterns.append(own)
            elif flags[k] and own[: len(along)] == along:
                x = x[rows]
                patterns.append((BATCH, *own[len(along) :]))
            else:
                return None
            operands.append(x)
        return contraction(tuple(patterns), (BATCH, *rest))(operands)

    def row_aligned(self, target: str, source: str, count: int) -> bool:
        if not (
            self._plain and self._condition is None and self.affine_in(target) and self.affine_in(source)
        ):
            return False
        there, here = (self.references[self._positions[name][0]].letters for name in (target, source))
        others = [r for r in self.references if r.array.name not in (target, source)]
        aligned = there[:count] == here[:count] and not set(here[:count]) & set(here[count:] + there[count:])
        return aligned and all(
            isinstance(r.array, Parameter) and not set(r.letters) & set(here[:count]) for r in others
        )

    def affine_in(self, target: str) -> bool:
        return len(self._positions[target]) == 1

    def degree(self, names: Collection[str]) -> int:
        return sum(len(self._positions[name]) for name in names if name in self._positions)

    def keeps(self, index: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_] | None:
        if self._condition is None:
            return None
        left, relation, right = self._condition
        if left not in index or right not in index:
            return None
        selected: NDArray[np.bool_] = _RELATIONS[relation](index[left], index[right])
        return selected

    def ordered_letters(self) -> set[str]:
        compared = (
            set()
            if self._condition is None or self._condition[1] == "!="
            else {self._condition[0], self._condition[2]}
        )
        return ordered_letters_of(self.references) | compared

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Compile all contraction paths for typical axis sizes, before the first run."""
        typical = {
            dim.letters[0]: sizes[axis]
            for r in self.references
            for axis, dim in zip(r.array.axes, r.pattern.dimensions, strict=True)
            if axis in sizes and len(dim.letters) == 1 and dim.index is None
        }
        for constants in (False, True):
            for position in (None, *range(len(self.references))):
                if position is not None and len(self.references) == 1 and self._condition is None:
                    continue
                batched = tuple(
                    k != position
                    and (isinstance(r.array, Variable) or (constants and isinstance(r.array, Constant)))
                    for k, r in enumerate(self.references)
                )
                self._contraction(position, batched, typical)
                if (
                    self._shared is not None
                    and position is not None
                    and position not in self._shared.positions
                ):
                    self._contraction_of(self._shared)
                    self._contraction_after(self._shared, position, batched)

    def product(self) -> str:
        return self.where or ""

    def formula(self) -> str:
        condition = f", {self.where}" if self.where else ""
        return f"-sum {' '.join(map(str, self.references))}{condition}"

    def _find_shared(self) -> _Shared | None:
        """Find a variable whose product with a parameter can be shared by the messages to all other
        variables.

        The product must be no larger than the variable itself.
        """
        if (
            len(self.variables) < 3
            or not self._plain
            or self._condition is not None
            or any(len(positions) > 1 for positions in self._positions.values())
        ):
            return None
        for parameter, weights in enumerate(self.references):
            if not isinstance(weights.array, Parameter):
                continue
            for variable, reference in enumerate(self.references):
                if not isinstance(reference.array, Variable):
                    continue
                rest = {
                    x
                    for k, r in enumerate(self.references)
                    if k not in (variable, parameter)
                    for x in r.letters
                }
                summed = (set(reference.letters) & set(weights.letters)) - rest
                letters = tuple(
                    x for x in dict.fromkeys((*reference.letters, *weights.letters)) if x not in summed
                )
                if summed and len(letters) <= len(reference.letters):
                    return _Shared(variable, parameter, letters)
        return None

    def _contraction_of(self, shared: _Shared) -> Contraction:
        """Contraction that computes the shared product."""
        if self._product is None:
            variable, parameter = (self.references[k].letters for k in shared.positions)
            self._product = contraction(((BATCH, *variable), parameter), (BATCH, *shared.letters))
        return self._product

    def _contraction_after(self, shared: _Shared, position: int, batched: tuple[bool, ...]) -> Contraction:
        """Contraction that computes a message from the shared product and the other operands."""
        compiled = self._contractions_after.get((position, batched))
        if compiled is None:
            others = [k for k in self._others[position] if k not in shared.positions]
            patterns = [((BATCH,) if batched[k] else ()) + self.references[k].letters for k in others]
            compiled = contraction(
                ((BATCH, *shared.letters), *patterns), (BATCH, *self.references[position].letters)
            )
            self._contractions_after[position, batched] = compiled
        return compiled

    def _message_of_arrays(self, position: int, values: Values) -> Tensor:
        """The message where no operand needs a view, and no condition selects terms."""
        operands = [values[self._names[k]] for k in self._others[position]]
        return self._contraction(position, self._flags(position, values))(operands)

    def _message(
        self, position: int, values: Values, sizes: LetterSizes, shape: tuple[int, ...] | None
    ) -> Tensor:
        operands = [self._operand(k, values, sizes) for k in self._others[position]]
        operands = self._with_condition(operands, values, sizes)
        pattern = self.references[position].pattern
        if operands:
            message = self._contraction(position, self._flags(position, values))(operands)
        else:
            like = next(iter(values.values()), torch.empty(()))
            message = like.new_ones([1] * (1 + len(pattern.letters)))
        if self._direct[position]:
            return message
        if shape is None:
            raise DeclarationError(
                f"factor {self.name!r}: the message to {self.references[position]} needs the target's shape."
            )
        return adjoint(message, pattern, sizes, self._starts, shape, self.indices)

    def _flags(self, position: int | None, values: Values) -> tuple[bool, ...]:
        """Flags of operands with a batch axis; false for the target."""
        if not self._has_constants:
            return self._variable_flags[position]
        return tuple(k != position and self._batched(r, values) for k, r in enumerate(self.references))

    def _contraction(
        self, position: int | None, batched: tuple[bool, ...], typical: LetterSizes | None = None
    ) -> Contraction:
        key = (position, batched)
        compiled = self._contractions.get(key)
        if compiled is None:
            operands = tuple(
                ((BATCH,) if flag else ()) + r.letters
                for k, (r, flag) in enumerate(zip(self.references, batched, strict=True))
                if k != position
            )
            if self._condition is not None:
                operands += ((self._condition[0], self._condition[2]),)
            result = (BATCH,) if position is None else (BATCH, *self.references[position].letters)
            compiled = contraction(operands, result, typical)
            self._contractions[key] = compiled
        return compiled

    def _operand(self, position: int, values: Values, sizes: LetterSizes) -> Tensor:
        reference = self.references[position]
        x = values[reference.array.name]
        if self._direct[position]:
            return x
        return view(x, reference.pattern, sizes, self._starts, self.indices)

    def _batched(self, reference: Reference, values: Values) -> bool:
        if isinstance(reference.array, Constant):
            return values[reference.array.name].ndim > len(reference.array.axes)
        return isinstance(reference.array, Variable)

    def _letter_sizes(self, values: Values, target: str | None, shape: tuple[int, ...] | None) -> LetterSizes:
        if self._plain and self._condition is None:
            return {}
        shapes: dict[str, tuple[int, ...]] = {}
        for reference in self.references:
            name = reference.array.name
            if name == target and shape is not None:
                shapes[name] = shape
            elif name in values:
                x = values[name]
                shapes[name] = tuple(x.shape[x.ndim - len(reference.array.axes) :])
        return self.letter_sizes(shapes)

    def _with_condition(self, operands: list[Tensor], values: Values, sizes: LetterSizes) -> list[Tensor]:
        if self._condition is None:
            return operands
        left, relation, right = self._condition
        like = operands[0] if operands else next(iter(values.values()))
        key = (sizes[left], sizes[right], like.dtype, like.device)
        if key not in self._masks:
            with torch.inference_mode(False):
                rows = torch.arange(sizes[left], device=like.device) + self._starts.get(left, 0)
                columns = torch.arange(sizes[right], device=like.device) + self._starts.get(right, 0)
                self._masks[key] = _RELATIONS[relation](rows[:, None], columns[None, :]).to(like.dtype)
        return [*operands, self._masks[key]]

    def _parse_condition(self, where: str) -> tuple[str, str, str]:
        if not isinstance(where, str):
            raise DeclarationError(f"factor {self.name!r}: where={where!r} is not a string such as 'i != j'.")
        match = _CONDITION.fullmatch(where)
        letters = {letter for reference in self.references for letter in reference.letters}
        if match is None:
            raise DeclarationError(
                f"factor {self.name!r}: where={where!r} is not a condition between two letters such as 'i != "
                "j'."
            )
        left, relation, right = match.groups()
        if left == right:
            raise DeclarationError(
                f"factor {self.name!r}: where={where!r} must compare two letters, not {left!r} with itself."
            )
        for letter in (left, right):
            if letter not in letters:
                raise DeclarationError(
                    f"factor {self.name!r}: where={where!r}: {letter!r} is not a letter of the factor."
                    f"{suggest(letter, letters)}"
                )
        return left, relation, right


def _direct(references: tuple[Reference, ...]) -> tuple[bool, ...]:
    """Whether each array needs no view: it is plain, and none of its letters is shifted elsewhere."""
    shifted = {dim.letters[0] for r in references for dim in r.pattern.dimensions if dim.shift}
    return tuple(r.pattern.plain and shifted.isdisjoint(r.letters) for r in references)


@lru_cache(maxsize=256)
def _other_positions(count: int) -> tuple[tuple[int, ...], ...]:
    """All positions but one, for each of them."""
    return tuple(tuple(k for k in range(count) if k != position) for position in range(count))


@lru_cache(maxsize=256)
def _flags_of_others(are_variables: tuple[bool, ...]) -> Mapping[int | None, tuple[bool, ...]]:
    """Which operands are variables, by the position of one that does not count; None if all count."""
    return {
        position: tuple(flag and k != position for k, flag in enumerate(are_variables))
        for position in (None, *range(len(are_variables)))
    }
