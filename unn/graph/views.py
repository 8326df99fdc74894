"""Views of arrays by patterns (shifts, splits, diagonals and indices) and their adjoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DeclarationError, ObservationError
from .arrays import Index, Indices, Reference, check_batch
from .factor import Factor, Values
from .patterns import Lookup, Pattern
from .sizes import LetterSizes


def view(
    x: Tensor, pattern: Pattern, sizes: LetterSizes, starts: dict[str, int], indices: Indices | None = None
) -> Tensor:
    """View ``x`` with one dimension per letter of the pattern, after its leading batch dimensions.

    Args:
        x: shape ``(*batch, *axes)``.
        pattern: pattern of the reference, one dimension per axis.
        sizes: extent of each letter.
        starts: first index of each shifted letter; 0 where absent.
        indices: indices used by the pattern.
    """
    if indices and pattern.indices:
        return _gather(x, pattern, sizes, starts, indices)
    lead = x.ndim - len(pattern.dimensions)
    for axis, dim in enumerate(pattern.dimensions):
        if len(dim.letters) == 1:
            letter = dim.letters[0]
            start = starts.get(letter, 0) + dim.shift
            if start or x.shape[lead + axis] != sizes[letter]:
                x = x.narrow(lead + axis, min(start, x.shape[lead + axis]), sizes[letter])
    for axis in reversed(range(len(pattern.dimensions))):
        letters = pattern.dimensions[axis].letters
        if len(letters) > 1:
            x = x.unflatten(lead + axis, [sizes[letter] for letter in letters])
    flat = [letter for dim in pattern.dimensions for letter in dim.letters]
    while len(set(flat)) < len(flat):
        second = next(k for k in range(len(flat)) if flat[k] in flat[:k])
        first = flat.index(flat[second])
        x = x.diagonal(dim1=lead + first, dim2=lead + second).movedim(-1, lead + first)
        del flat[second]
    return x


def adjoint(
    m: Tensor,
    pattern: Pattern,
    sizes: LetterSizes,
    starts: dict[str, int],
    shape: tuple[int, ...],
    indices: Indices | None = None,
) -> Tensor:
    """The adjoint of ``view``: scatter a message to the axes of the array, zero at entries outside the view.

    Dimensions of size 1 are kept where the message can be broadcast.

    Args:
        m: shape ``(*batch, *letters)``, the letters in the order of ``pattern.letters``; 1 where broadcast.
        pattern: pattern of the reference.
        sizes: extent of each letter.
        starts: first index of each shifted letter.
        shape: shape of the array, without batch dimensions.
        indices: indices used by the pattern.
    """
    if indices and pattern.indices:
        return _scatter(m, pattern, sizes, starts, shape, indices)
    flat = [letter for dim in pattern.dimensions for letter in dim.letters]
    letters = list(pattern.letters)
    lead = m.ndim - len(letters)
    for second in range(len(flat)):
        first = flat.index(flat[second])
        if first != second:
            m = _expand(m, lead + first, sizes[flat[second]])
            m = torch.diag_embed(m.movedim(lead + first, -1), dim1=lead + first, dim2=lead + second)
    position = lead
    for dim in pattern.dimensions:
        count = len(dim.letters)
        if count > 1:
            if any(m.shape[position + k] != 1 for k in range(count)):
                for k, letter in enumerate(dim.letters):
                    m = _expand(m, position + k, sizes[letter])
            m = m.flatten(position, position + count - 1)
        position += 1
    for axis, dim in enumerate(pattern.dimensions):
        if len(dim.letters) == 1:
            letter = dim.letters[0]
            start = starts.get(letter, 0) + dim.shift
            start = min(start, shape[axis])
            rest = shape[axis] - start - sizes[letter]
            if start or rest:
                m = _expand(m, lead + axis, sizes[letter])
                after = m.ndim - 1 - (lead + axis)
                m = F.pad(m, [0, 0] * after + [start, rest])
    return m


def _entries(
    lookup: Lookup,
    pattern: Pattern,
    shape: Sequence[int],
    sizes: LetterSizes,
    starts: dict[str, int],
    indices: Indices,
    device: torch.device,
) -> Tensor:
    """Flat index into the axes of a lookup, for each value of its letters.

    Returns:
        Shape ``(gathered entries,)``, letters in order, the last one fastest.
    """
    entry = torch.zeros([1] * len(lookup.letters), dtype=torch.int64, device=device)
    for axis in lookup.axes:
        dim = pattern.dimensions[axis]
        along = torch.zeros_like(entry)
        for letter in dim.letters:
            run = torch.arange(sizes[letter], device=device) + (starts.get(letter, 0) + dim.shift)
            along = along * sizes[letter] + run.view(
                [-1 if other == letter else 1 for other in lookup.letters]
            )
        if dim.index is not None:
            along = indices[dim.index].on(device)[along]
        entry = entry * shape[axis] + along
    return entry.expand([sizes[letter] for letter in lookup.letters]).reshape(-1)


def _gather(
    x: Tensor, pattern: Pattern, sizes: LetterSizes, starts: dict[str, int], indices: Indices
) -> Tensor:
    """``view`` for a pattern with indices: gather their axes into leading dimensions, then view the
    others."""
    gathering = pattern.gathering
    lookups, rest, others = gathering.lookups, gathering.rest, gathering.others
    lead = x.ndim - len(pattern.dimensions)
    shape = x.shape[lead:]
    x = x.permute(
        *range(lead),
        *(lead + axis for lookup in lookups for axis in lookup.axes),
        *(lead + axis for axis in others),
    )
    position = lead
    for lookup in lookups:
        entries = _entries(lookup, pattern, shape, sizes, starts, indices, x.device)
        x = x.flatten(position, position + len(lookup.axes) - 1).index_select(position, entries)
        x = x.unflatten(position, [sizes[letter] for letter in lookup.letters])
        position += len(lookup.letters)
    x = view(x, rest, sizes, starts)
    letters = [letter for lookup in lookups for letter in lookup.letters] + list(rest.letters)
    return x.permute(*range(lead), *(lead + letters.index(letter) for letter in pattern.letters))


def _scatter(
    m: Tensor,
    pattern: Pattern,
    sizes: LetterSizes,
    starts: dict[str, int],
    shape: tuple[int, ...],
    indices: Indices,
) -> Tensor:
    """``adjoint`` for a pattern with indices: messages to the same entry are summed."""
    gathering = pattern.gathering
    lookups, rest, others = gathering.lookups, gathering.rest, gathering.others
    lead = m.ndim - len(pattern.letters)
    letters = [letter for lookup in lookups for letter in lookup.letters] + list(rest.letters)
    m = m.permute(*range(lead), *(lead + pattern.letters.index(letter) for letter in letters))
    m = adjoint(m, rest, sizes, starts, tuple(shape[axis] for axis in others))
    position = lead
    for lookup in lookups:
        for k, letter in enumerate(lookup.letters):
            m = _expand(m, position + k, sizes[letter])
        m = m.flatten(position, position + len(lookup.letters) - 1)
        entries = _entries(lookup, pattern, shape, sizes, starts, indices, m.device)
        extents = [shape[axis] for axis in lookup.axes]
        zeros = m.new_zeros(*m.shape[:position], math.prod(extents), *m.shape[position + 1 :])
        m = zeros.index_add(position, entries, m).unflatten(position, extents)
        position += len(extents)
    axes = [axis for lookup in lookups for axis in lookup.axes] + list(others)
    return m.permute(*range(lead), *(lead + axes.index(axis) for axis in range(len(axes))))


def starts_of(references: tuple[Reference, ...]) -> dict[str, int]:
    """First index of each shifted letter, large enough for its most negative shift."""
    starts: dict[str, int] = {}
    for reference in references:
        for dim in reference.pattern.dimensions:
            if dim.shift < 0:
                starts[dim.letters[0]] = max(starts.get(dim.letters[0], 0), -dim.shift)
    return starts


def checked_views(factor: Factor, values: Values) -> list[Tensor]:
    """Check the values of the variables of a factor and view them by its patterns, shape ``(batch,
    *letters)``.

    Args:
        factor: factor whose references are viewed.
        values: values of its variables by name, shape ``(batch, *axes)``.

    Raises:
        ObservationError: for values that are missing, have the wrong shape, or are inconsistent.
    """
    batch: int | None = None
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in {r.array.name: r.array for r in factor.references}.items():
        where = f"{name!r} of factor {factor.name!r}"
        if name not in values:
            raise ObservationError(
                f"variable {where} has no value; pass all of {', '.join(factor.variables)}."
            )
        x = values[name]
        if not isinstance(x, Tensor) or x.is_complex():
            kind = f"dtype {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise ObservationError(f"variable {where}: expected a torch.Tensor of real numbers, got {kind}.")
        batch = check_batch(where, array, x, batch)
        shapes[name] = tuple(x.shape[1:])
        for axis, size in zip(array.axes, shapes[name], strict=True):
            if size != factor.axis_sizes.get(axis, size):
                raise ObservationError(
                    f"variable {where}: axis {axis!r} has size {size}, but {factor.axis_sizes[axis]} in the "
                    "declaration."
                )
    sizes = factor.letter_sizes(shapes)
    for reference in factor.references:
        for axis, size, dim in zip(
            reference.array.axes, shapes[reference.array.name], reference.pattern.dimensions, strict=True
        ):
            if dim.index is not None:
                _check_numbers(factor, reference, factor.indices[dim.index], size)
                continue
            expected = math.prod(sizes[letter] for letter in dim.letters)
            if size != expected and not _shifted(factor, dim.letters):
                raise ObservationError(
                    f"variable {reference.array.name!r} of factor {factor.name!r}: axis {axis!r} has size "
                    f"{size}, but {' '.join(dim.letters)!r} runs over {expected} in the other values."
                )
    starts = starts_of(factor.references)
    return [view(values[r.array.name], r.pattern, sizes, starts, factor.indices) for r in factor.references]


def _check_numbers(factor: Factor, reference: Reference, index: Index, size: int) -> None:
    try:
        index.check_size(size)
    except DeclarationError as error:
        raise ObservationError(
            f"variable {reference.array.name!r} of factor {factor.name!r}: {error}"
        ) from None


def _shifted(factor: Factor, letters: tuple[str, ...]) -> bool:
    return any(
        dim.shift and dim.letters[0] in letters for r in factor.references for dim in r.pattern.dimensions
    )


def _expand(m: Tensor, axis: int, size: int) -> Tensor:
    return m if m.shape[axis] == size else m.expand([size if k == axis else -1 for k in range(m.ndim)])


def refuse_shifted_splits(factor: Factor) -> None:
    """Check that no letter is both shifted and part of a split.

    Raises:
        DeclarationError: if one is; the message names the first.
    """
    dims = [dim for r in factor.references for dim in r.pattern.dimensions]
    split = {letter for dim in dims if len(dim.letters) > 1 for letter in dim.letters}
    for letter in sorted({dim.letters[0] for dim in dims if dim.shift} & split):
        raise DeclarationError(
            f"factor {factor.name!r}: letter {letter!r} is shifted in one place and part of a split in "
            "another; use two letters."
        )
