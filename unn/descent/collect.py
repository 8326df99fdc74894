"""Collecting evidence: given values, masks, lengths and initial values, checked against the declaration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import DeclarationError, InferenceError, ObservationError, unknown
from ..graph.arrays import Array, Index, Variable
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from .checks import (
    check_constants,
    check_domain,
    check_dtypes,
    check_shape,
    check_tensor,
    describe_non_finite,
    given_array,
    take_sizes,
)
from .dropout import apply_dropout
from .evidence import Evidence, Given, Initial
from .initial import initial_value
from .lengths import mask_constants, masked, ragged_masks
from .partial import free_rows, observation_mask, require_whole_rows

_EXAMPLES = {
    "initial": "{'Y': 'uniform'}",
    "dropout": "{'H': 0.5}",
    "lengths": "{'n': torch.tensor([5, 2])}, by axis",
    "sizes": "{'n': 3}, by axis",
}
"""Options of ``collect_evidence`` that are mappings, with an example of each."""

_Named = tuple[str, Array, Tensor]
"""Where a tensor comes from, for messages; the array that it is a value of; the tensor."""


def collect_evidence(
    graph: Declaration,
    given: Given,
    initial: Initial | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    sizes: Mapping[str, int] | None = None,
    dropout: Mapping[str, float | Tensor] | None = None,
    generator: torch.Generator | None = None,
    check_values: bool = True,
    check_masks: bool = True,
) -> Evidence:
    """Collect what is given and check it against the declaration.

    Checks of values, masks and lengths wait for the device that holds them.

    Args:
        graph: the declaration.
        given: observed values by name, all of them or in part.
        initial: first values of variables by name.
        lengths: of ragged axes by name, shape ``(batch,)``.
        sizes: of axes that follow neither from the declaration nor from values.
        dropout: by variable, a probability or a mask.
        generator: of random masks and initial values.
        check_values: look for NaN and for values outside their domains.
        check_masks: check the values of masks and lengths.

    Raises:
        ObservationError: for unknown names, wrong shapes, dtypes or devices, NaN, values outside a domain,
            contradicting sizes.
        InferenceError: if nothing is given, or for an initial value or dropout that has no meaning.
    """
    check_mappings(given, initial, lengths, sizes, dropout)
    check_masks = check_masks and not torch.compiler.is_compiling()
    tensors = _named_tensors(graph, given, initial or {})
    values = graph.fixed_values()
    like, batch, known = _extent(graph, tensors, values)
    check_constants(graph, given)
    check_dtypes(values)
    shapes = _solved_shapes(graph, known, sizes)
    masks = ragged_masks(graph, lengths, shapes, batch, like.device, check_masks) if lengths else {}
    regularizers = {name: variable.regularizer for name, variable in graph.variables.items()}
    evidence = Evidence(values, shapes, batch, masks, regularizers, like)
    for name, value in given.items():
        if isinstance(value, Partial):
            _observe_part(evidence, graph.variable_named(name), value, check_values, check_masks)
        else:
            _observe_whole(evidence, graph.arrays[name], value, check_values)
    whole = frozenset(name for name in given if name not in evidence.observed) | set(graph.fixed_values())
    _refuse_moved_by_padding(graph, masks, whole)
    if dropout:
        apply_dropout(graph, dropout, whole, evidence, generator, check_masks)
    if lengths:
        mask_constants(graph, evidence)
    for name, start in (initial or {}).items():
        _start(evidence, graph.variable_named(name), start, generator, check_values)
    return evidence


def _refuse_moved_by_padding(graph: Declaration, ragged: Collection[str], fixed: Collection[str]) -> None:
    """Refuse factors of which padded entries change what is inferred."""
    for factor in graph.energy_factors if ragged else ():
        for name in factor.moved_by_padding(ragged):
            if name not in fixed:
                raise ObservationError(
                    f"lengths: padded entries of factor {factor.name!r} ({type(factor).__name__}) would "
                    f"change {name!r}, which is inferred; give {name!r}, or run sequences of one length "
                    "together."
                )


def check_mappings(
    given: object, initial: object, lengths: object, sizes: object, dropout: object = None
) -> None:
    """Check that evidence and options that are mappings are such.

    Raises:
        ObservationError: for evidence of another type.
        InferenceError: for an option of another type.
    """
    if not isinstance(given, Mapping):
        raise ObservationError(
            f"given: a mapping from names to tensors such as {{'X': x}}, got {type(given).__name__}."
        )
    for option, mapping in (
        ("initial", initial),
        ("dropout", dropout),
        ("lengths", lengths),
        ("sizes", sizes),
    ):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise InferenceError(
                f"{option}: a mapping such as {option}={_EXAMPLES[option]}, got {type(mapping).__name__}."
            )


def _named_tensors(graph: Declaration, given: Given, initial: Initial) -> list[_Named]:
    """All tensors that are given, observed values first.

    Raises:
        ObservationError: for names that cannot be given.
        InferenceError: if nothing is given, or for names that have no initial value.
    """
    if not given and not initial:
        raise InferenceError(
            f"graph {graph.name!r}: nothing is given, so there is nothing to infer from; give at least one "
            f"of {', '.join(graph.variables)}, or initial values (initial={{name: tensor}})."
        )
    tensors: list[_Named] = []
    for name, value in given.items():
        array = given_array(graph, name)
        if isinstance(value, Partial):
            if not isinstance(array, Variable):
                raise ObservationError(f"{array.kind} {name!r} cannot be observed in part; give all of it.")
            value = value.value
        tensors.append((f"{name!r} given", array, value))
    for name, start in initial.items():
        if name not in graph.variables:
            raise InferenceError(
                f"initial: graph {graph.name!r}: " + unknown("variable", name, graph.variables)
            )
        if name in given and not isinstance(given[name], Partial):
            raise InferenceError(
                f"initial: variable {name!r} is given, so it has no initial value; drop one of the two."
            )
        if isinstance(start, Tensor):
            tensors.append((f"{name!r} initial", graph.arrays[name], start))
    return tensors


def _extent(
    graph: Declaration, tensors: Sequence[_Named], fixed: Mapping[str, Tensor]
) -> tuple[Tensor, int, dict[str, int]]:
    """A tensor with the dtype and device of the run, the batch size, and the sizes of axes as far as tensors
    and the declaration fix them.

    Raises:
        ObservationError: for tensors of different dtypes, devices, batch sizes, or of shapes that contradict
            the declaration.
    """
    like = next((x for x in fixed.values() if x.is_floating_point()), None)
    known, batch = dict(graph.size_table.static), None
    for where, array, tensor in tensors:
        like = check_tensor(where, array, tensor, like)
        batch = check_shape(graph, where, array, tensor, known, batch)
    return torch.empty(()) if like is None else like, 1 if batch is None else batch, known


def _solved_shapes(
    graph: Declaration, known: dict[str, int], sizes: Mapping[str, int] | None
) -> dict[str, tuple[int, ...]]:
    """The shapes of all arrays, without batch axes.

    Raises:
        ObservationError: for sizes that contradict one another or remain unknown.
    """
    if sizes:
        take_sizes(graph, sizes, known)
    if len(known) == len(graph.size_table.static):
        return graph.memo((_all_shapes, "static"), lambda: _all_shapes(graph, graph.size_table.static))
    if graph.size_table.has_rules:
        try:
            known = graph.size_table.solve(known)
        except DeclarationError as error:
            raise ObservationError(f"graph {graph.name!r}: {error}") from None
    return _all_shapes(graph, known)


def _observe_whole(evidence: Evidence, array: Array, value: Tensor, check_values: bool) -> None:
    """Add a value that is given as a whole; padding counts as 0."""
    name = array.name
    if not isinstance(array, Variable):
        if check_values and not bool(value.isfinite().all()):
            raise ObservationError(
                f"constant {name!r} given: {describe_non_finite(value)}; clean the data first."
            )
        evidence.values[name] = value
        return
    mask = evidence.masks.get(name)
    if check_values:
        check_domain(array, value, mask, f"{name!r} given")
    evidence.values[name] = masked(value, mask)
    if mask is not None:
        evidence.padding[name] = (value, ~mask)


def _observe_part(
    evidence: Evidence, variable: Variable, partial: Partial, check_values: bool, check_masks: bool
) -> None:
    """Add a value that is given in part; unobserved entries count as 0 until they are inferred."""
    name = variable.name
    exists = evidence.masks.get(name)
    where = observation_mask(variable, partial)
    present = where if exists is None else where & exists
    value = torch.where(where, partial.value, 0)
    restricted = variable.regularizer.restricted(value, present)
    if restricted is not None:
        evidence.regularizers[name] = restricted
        evidence.restricted.add(name)
    else:
        if check_masks:
            require_whole_rows(variable, where)
        if check_values:
            check_domain(variable, partial.value, present, f"{name!r} given in part")
    if exists is not None:
        evidence.padding[name] = (value, where & ~exists)
    value = masked(value, exists)
    evidence.observed[name] = (value, where)
    evidence.values[name] = value
    rows = free_rows(partial, exists)
    if rows is not None:
        evidence.free_rows[name] = rows


def _start(
    evidence: Evidence,
    variable: Variable,
    start: Tensor | str,
    generator: torch.Generator | None,
    check_values: bool,
) -> None:
    """Add an initial value, with what is observed of the variable in its place."""
    name = variable.name
    value = initial_value(evidence, variable, start, generator, check_values)
    if value is None:
        return
    if name in evidence.observed:
        observed, where = evidence.observed[name]
        value = torch.where(where, observed, value)
    evidence.values[name] = masked(value, evidence.masks.get(name))


def require_inferred_parts(
    evidence: Evidence, updated: Collection[str], initialised: Collection[str], readable: bool = True
) -> None:
    """Check that no entry stays without a value: what is observed in part is updated, held, or observed in
    full.

    Args:
        evidence: of the run.
        updated: the variables of the order.
        initialised: the variables with an initial value.
        readable: whether masks can be read; without that, full masks are refused as well.

    Raises:
        InferenceError: names the variable.
    """
    for name, (_, where) in evidence.observed.items():
        if name in updated or name in initialised:
            continue
        share = "part of it"
        if readable:
            mask = evidence.masks.get(name)
            missing = int((~where if mask is None else ~where & mask).sum())
            if not missing:
                continue
            share = f"{missing} of its {where.numel()} entries"
        raise InferenceError(
            f"order: variable {name!r} is given in part (unn.Partial), and {share} would never be inferred, "
            f"because the order {list(updated)} leaves it out; add it to the order, give all of it, or hold "
            f"the rest with initial={{{name!r}: 'zero'}}."
        )


def _all_shapes(graph: Declaration, solved: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in graph.arrays.items():
        shape = graph.size_table.shape(array, solved)
        if None in shape:
            axis = array.axes[shape.index(None)]
            if not isinstance(array, Variable):
                graph.require_parameters()
            raise ObservationError(
                f"the size of axis {axis!r} of {array.kind} {name!r} is not known from the declaration or "
                f"from what is given; pass sizes={{{axis!r}: "
                f"...}}{graph.size_table.missing_size_hint(axis, solved)}."
            )
        if 0 in shape and not _edgeless(graph, array, shape):
            axis = array.axes[shape.index(0)]
            raise ObservationError(
                f"axis {axis!r} of {array.kind} {name!r} has size 0; there is nothing to infer along it."
            )
        shapes[name] = tuple(size for size in shape if size is not None)
    return shapes


def _edgeless(graph: Declaration, array: Array, shape: tuple[int | None, ...]) -> bool:
    """Is an array empty only because an index along its axis has no numbers, so that its terms are absent?"""
    empty = {
        graph.size_table.root(other.axes[0]) for other in graph.arrays.values() if isinstance(other, Index)
    }
    absent = all(
        size != 0 or graph.size_table.root(axis) in empty
        for axis, size in zip(array.axes, shape, strict=True)
    )
    return absent and not isinstance(array, Variable)
