"""Ragged batches: which entries exist, and how padding is left out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import ObservationError, unknown
from ..graph.arrays import Constant, Parameter, Variable
from ..graph.declaration import Declaration
from ..graph.sizes import SizeRelation
from .evidence import Evidence


def ragged_masks(
    graph: Declaration,
    lengths: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    batch: int,
    device: torch.device,
    check: bool,
) -> dict[str, Tensor]:
    """Which entries of each ragged variable exist, shape ``(batch, *axes)``, 1 along regular axes."""
    table = graph.size_table
    known = {axis for array in graph.arrays.values() for axis in array.axes}
    ragged: dict[str, tuple[str, Tensor]] = {}
    for axis, length in lengths.items():
        if axis not in known:
            raise ObservationError(f"lengths: graph {graph.name!r}: " + unknown("axis", axis, known))
        length = check_length(axis, length, batch, device)
        other = ragged.setdefault(table.root(axis), (axis, length))
        if check and not torch.equal(other[1], length):
            raise ObservationError(
                f"lengths: axes {other[0]!r} and {axis!r} are tied to one size, but their lengths differ; "
                "give one of them."
            )
    _add_related_lengths(graph, ragged, check)
    _refuse_what_counts_padding(graph, set(ragged))
    masks: dict[str, Tensor] = {}
    for name, array in graph.arrays.items():
        mask: Tensor | None = None
        for k, axis in enumerate(array.axes):
            if (root := table.root(axis)) in ragged:
                size = shapes[name][k]
                length = ragged[root][1]
                if check and not bool(((length > 0) & (length <= size)).all()):
                    bad = int(((length <= 0) | (length > size)).nonzero()[0])
                    raise ObservationError(
                        f"lengths: batch element {bad} has length {int(length[bad])} along axis {axis!r} of "
                        f"{name!r}, which has size {size}; lengths go from 1 to that size. Drop empty "
                        "sequences first."
                    )
                own = torch.arange(size, device=device) < length[:, None]
                own = own.view(batch, *[size if j == k else 1 for j in range(len(array.axes))])
                mask = own if mask is None else mask & own
        if mask is not None and not isinstance(array, Parameter):
            masks[name] = mask
    return masks


def _add_related_lengths(graph: Declaration, ragged: dict[str, tuple[str, Tensor]], check: bool) -> None:
    """Add the lengths that follow from others by the relations between sizes, declared or of regularizers."""
    table = graph.size_table
    relations = [*table.relations, *_relations_of_regularizers(graph)]
    # each relation leads one step further
    for relation in [relation for _ in relations for relation in relations]:
        for axis, other, by in (
            (relation.axis, relation.other, relation.by),
            (relation.other, relation.axis, -relation.by),
        ):
            if table.root(other) not in ragged:
                continue
            length = ragged[table.root(other)][1] + by
            known = ragged.setdefault(table.root(axis), (axis, length))
            if check and not torch.equal(known[1], length):
                raise ObservationError(
                    f"lengths: the sizes are related as {relation}, but the lengths of axes {known[0]!r} and "
                    f"{ragged[table.root(other)][0]!r} "
                    "differ otherwise; give one of them."
                )


def _relations_of_regularizers(graph: Declaration) -> list[SizeRelation]:
    """The relations between sizes that the regularizers of variables have, such as those of square arrays."""
    return [
        SizeRelation(rule.letters[0], rule.letters[1], rule.offset)
        for variable in graph.variables.values()
        for rule in variable.regularizer.size_rules(variable.axes)
        if rule.offset is not None
    ]


def mask_constants(graph: Declaration, evidence: Evidence) -> None:
    """Zero the padded part of constants; they then have a batch axis."""
    for name, array in graph.arrays.items():
        if isinstance(array, Constant) and name in evidence.masks:
            evidence.values[name] = masked(evidence.values[name], evidence.masks[name])


def check_length(axis: str, length: object, batch: int, device: torch.device) -> Tensor:
    """Lengths of a ragged axis, on the device of a run.

    Raises:
        ObservationError: for anything but a whole number for each batch element.
    """
    if (
        not isinstance(length, Tensor)
        or length.is_floating_point()
        or length.dtype == torch.bool
        or tuple(length.shape) != (batch,)
    ):
        got = f"{length.dtype} of shape {tuple(length.shape)}" if isinstance(length, Tensor) else repr(length)
        raise ObservationError(f"lengths: axis {axis!r} needs whole numbers of shape ({batch},), got {got}.")
    if length.device.type == "meta" != device.type:
        raise ObservationError(
            f"lengths: axis {axis!r} is on device {length.device}, which holds no values; the run is on "
            f"{device}."
        )
    # a narrow integer could not hold the size that lengths are compared with
    return length.to(device, torch.int64)


def _refuse_what_counts_padding(graph: Declaration, ragged: set[str]) -> None:
    """Refuse factors in which padded entries would count although they are zero."""
    table = graph.size_table
    for factor in graph.energy_factors:
        # what is zero in padding: entries of variables and constants under these letters, looked up or not
        zeroed = {
            dim
            for r in factor.references
            if isinstance(r.array, (Variable, Constant))
            for dim in r.pattern.dimensions
        }
        carried = {letter for dim in zeroed if dim.index is None for letter in dim.letters}
        for reference in factor.references:
            for axis, dim in zip(reference.array.axes, reference.pattern.dimensions, strict=True):
                along = axis if dim.index is None else factor.indices[dim.index].axes[0]
                if table.root(axis) not in ragged and table.root(along) not in ragged:
                    continue
                if not factor.handles_padding:
                    raise ObservationError(
                        f"lengths: factor {factor.name!r} ({type(factor).__name__}) does not leave out "
                        f"padding along axis {axis!r} of {reference.array.name!r}; run sequences of one "
                        "length together, or use a Multilinear factor."
                    )
                if dim.index is not None and table.root(along) in ragged and not set(dim.letters) <= carried:
                    raise ObservationError(
                        f"lengths: factor {factor.name!r} looks up {reference} along the ragged axis "
                        f"{along!r}, which no variable or constant "
                        "of it has; multiply in a constant of ones along it under the letter "
                        f"{dim.letters[0]!r}, so that padding can be left out."
                    )
                if table.root(axis) in ragged and not (
                    set(dim.letters) <= carried if dim.index is None else dim in zeroed
                ):
                    raise ObservationError(
                        f"lengths: factor {factor.name!r} sums parameter {reference.array.name!r} over the "
                        f"ragged axis {axis!r}, which no variable has under that letter; multiply in a "
                        "constant of ones along it, so that padding can be left out."
                    )


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """``x`` with zeros where the mask is false."""
    return x if mask is None else torch.where(mask, x, 0)
