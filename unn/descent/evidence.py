"""What is known before inference starts: observations, sizes, masks, initial values, each checked against the declaration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import DeclarationError, InferenceError, ObservationError, unknown
from ..graph.arrays import Array, Index, Variable
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from ..regularizers import AlongAxis, Dropped, Elementwise, Regularizer
from ..regularizers.base import uniform
from .checks import check_constants, check_domain, check_dtypes, check_shape, check_tensor, describe_non_finite, given_array, take_sizes
from .lengths import mask_constants, masked, ragged_masks

Given = Mapping[str, Tensor | Partial]
Initial = Mapping[str, Tensor | str]


@dataclass
class Setting:
    """One inference problem: everything that stays fixed while the engine runs.

    Attributes:
        values: observed variables, parameters and constants, and initial values of the others where they have one.
        observed: for partly observed variables, the observed values and where they are.
        shapes: of all arrays, without batch axes.
        batch: the number of batch elements.
        masks: for ragged variables, which entries exist, shape ``(batch, *axes)``.
        regularizers: by variable, with dropout where it was asked for.
        like: a tensor with the dtype and device of the run.
        free_rows: for variables of which few whole rows are unobserved, the indices of these rows along the batch and the first axes.
        restricted: partly observed variables whose regularizer knows what is observed.
        padding: for observed ragged variables, what was given and where it is padding; computed with as 0, returned as given.
    """

    values: dict[str, Tensor]
    observed: dict[str, tuple[Tensor, Tensor]]
    shapes: dict[str, tuple[int, ...]]
    batch: int
    masks: dict[str, Tensor]
    regularizers: dict[str, Regularizer]
    like: Tensor
    padding: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    free_rows: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    restricted: frozenset[str] = frozenset()


def observe(
    graph: Declaration,
    given: Given,
    initial: Initial | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    sizes: Mapping[str, int] | None = None,
    dropout: Mapping[str, float | Tensor] | None = None,
    generator: torch.Generator | None = None,
    check_values: bool = True,
    check_masks: bool = True,
) -> Setting:
    """Bring all that is known together and check it. Checks of what tensors hold wait for their device: of values, and of masks and lengths.

    Raises:
        ObservationError: for unknown names, wrong shapes, dtypes or devices, NaN, values outside a domain, contradicting sizes.
        InferenceError: if nothing is known, or an initial value or dropout is asked for that has no meaning.
    """
    if not isinstance(given, Mapping):
        raise ObservationError(f"given: a mapping from names to tensors such as {{'X': x}}, got {type(given).__name__}.")
    for option, mapping, example in (
        ("initial", initial, "{'Y': 'uniform'}"),
        ("dropout", dropout, "{'H': 0.5}"),
        ("lengths", lengths, "{'n': torch.tensor([5, 2])}, by axis"),
        ("sizes", sizes, "{'n': 3}, by axis"),
    ):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise InferenceError(f"{option}: a mapping such as {option}={example}, got {type(mapping).__name__}.")
    check_masks = check_masks and not torch.compiler.is_compiling()
    values = graph.fixed_values()
    like = next((x for x in values.values() if x.is_floating_point()), None)
    observed: dict[str, tuple[Tensor, Tensor]] = {}
    batch: int | None = None
    solved = dict(graph.size_table.static)
    tensors: list[tuple[str, Array, Tensor]] = []
    if not given and not initial:
        raise InferenceError(
            f"graph {graph.name!r}: nothing is given, so there is nothing to infer from; give at least one of "
            f"{', '.join(graph.variables)}, or initial values (initial={{name: tensor}})."
        )
    for name, value in given.items():
        array = given_array(graph, name)
        if isinstance(value, Partial):
            if not isinstance(array, Variable):
                raise ObservationError(f"{array.kind} {name!r} cannot be observed in part; give all of it.")
            tensor = value.value
        else:
            tensor = value
        tensors.append((f"{name!r} given", array, tensor))
    for name, start in (initial or {}).items():
        if name not in graph.variables:
            raise InferenceError(f"initial: graph {graph.name!r}: " + unknown("variable", name, graph.variables))
        if name in given and not isinstance(given[name], Partial):
            raise InferenceError(f"initial: variable {name!r} is given, so it has no initial value; drop one of the two.")
        if isinstance(start, Tensor):
            tensors.append((f"{name!r} initial", graph.arrays[name], start))
    for where, array, tensor in tensors:
        like = check_tensor(where, array, tensor, like)
        batch = check_shape(graph, where, array, tensor, solved, batch)
    check_constants(graph, given)
    check_dtypes(values)
    if like is None:
        like = torch.empty(())
    if sizes:
        take_sizes(graph, sizes, solved)
    try:
        if graph.size_table.has_rules and len(solved) > len(graph.size_table.static):
            solved = graph.size_table.solve(solved)
    except DeclarationError as error:
        raise ObservationError(f"graph {graph.name!r}: {error}") from None
    shapes = _static_shapes(graph) if len(solved) == len(graph.size_table.static) else _all_shapes(graph, solved)
    if batch is None:
        batch = 1
    masks = ragged_masks(graph, lengths, shapes, batch, like.device, check_masks) if lengths else {}
    padding: dict[str, tuple[Tensor, Tensor]] = {}
    free_rows: dict[str, tuple[Tensor, ...]] = {}
    regularizers = {name: variable.regularizer for name, variable in graph.variables.items()}
    restricted: set[str] = set()
    for name, value in given.items():
        array = graph.arrays[name]
        if isinstance(value, Partial):
            variable = graph.variable_named(name)
            where_observed = _partial_mask(variable, value)
            mask = masks.get(name)
            seen = where_observed if mask is None else where_observed & mask
            full = torch.where(where_observed, value.value, 0)
            own = variable.regularizer.restricted(full, seen)
            if own is not None:
                regularizers[name] = own
                restricted.add(name)
            else:
                if check_masks:
                    _require_whole_rows(variable, where_observed)
                if check_values:
                    check_domain(variable, value.value, seen, f"{name!r} given in part")
            observed[name] = (masked(full, masks.get(name)), where_observed)
            if name in masks:
                padding[name] = (full, where_observed & ~masks[name])
            rows = _free_rows(value, masks.get(name))
            if rows is not None:
                free_rows[name] = rows
            values[name] = masked(full, masks.get(name))
            continue
        if isinstance(array, Variable):
            if check_values:
                check_domain(array, value, masks.get(name), f"{name!r} given")
            values[name] = masked(value, masks.get(name))
            if name in masks:
                padding[name] = (value, ~masks[name])
        else:
            if check_values and not bool(value.isfinite().all()):
                raise ObservationError(f"constant {name!r} given: {describe_non_finite(value)}; clean the data first.")
            values[name] = value
    fixed = frozenset(n for n in given if n not in observed) | frozenset(graph.fixed_values())
    if dropout:
        _add_dropout(graph, dropout, fixed, regularizers, shapes, batch, like, generator, check_masks)
    setting = Setting(values, observed, shapes, batch, masks, regularizers, like, padding, free_rows, frozenset(restricted))
    if lengths:
        mask_constants(graph, setting)
    for name, start in (initial or {}).items():
        value_at_start = initial_value(setting, graph.variable_named(name), start, generator, check_values)
        if value_at_start is None:
            continue
        if name in observed:
            value_at_start = torch.where(observed[name][1], observed[name][0], value_at_start)
        values[name] = masked(value_at_start, masks.get(name))
    return setting


def require_inferred_parts(
    setting: Setting, updated: Collection[str], held: Collection[str], may_read: bool = True
) -> None:
    """Check that no entry stays without a value: what is observed in part is updated, held, or observed in full.

    Args:
        setting: of the run.
        updated: the variables of the order.
        held: the variables with an initial value.
        may_read: whether masks can be read; without that, full masks are refused as well.

    Raises:
        InferenceError: names the variable.
    """
    for name, (_, where) in setting.observed.items():
        if name in updated or name in held:
            continue
        share = "part of it"
        if may_read:
            mask = setting.masks.get(name)
            missing = int((~where if mask is None else ~where & mask).sum())
            if not missing:
                continue
            share = f"{missing} of its {where.numel()} entries"
        raise InferenceError(
            f"order: variable {name!r} is given in part (unn.Partial), and {share} would never be inferred, because the "
            f"order {list(updated)} leaves it out; add it to the order, give all of it, or hold the rest with "
            f"initial={{{name!r}: 'zero'}}."
        )


def initial_value(setting: Setting, variable: Variable, start: Tensor | str, generator: torch.Generator | None, check_values: bool) -> Tensor | None:
    """The first value of a variable: None for a structural zero, ``mirror(0)`` for "uniform", the mirror of uniform noise for "random".

    Raises:
        InferenceError: for another word.
        ObservationError: for a tensor outside the domain.
    """
    name = variable.name
    regularizer, mask = setting.regularizers[name], setting.masks.get(name)
    shape = (setting.batch, *setting.shapes[name])
    if isinstance(start, Tensor):
        if check_values:
            check_domain(variable, start, mask, f"{name!r} initial", zero_allowed=True)
        return start
    if isinstance(start, str) and start == "zero":
        return None
    if isinstance(start, str) and start == "uniform":
        return regularizer.mirror(setting.like.new_zeros(shape), mask)
    if isinstance(start, str) and start == "random":
        return regularizer.mirror(uniform(shape, setting.like, generator), mask)
    raise InferenceError(f"initial: variable {name!r} starts at 'zero', 'uniform', 'random' or a tensor, got {start!r}.")


def _all_shapes(graph: Declaration, solved: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in graph.arrays.items():
        shape = graph.size_table.shape(array, solved)
        if None in shape:
            axis = array.axes[shape.index(None)]
            if not isinstance(array, Variable):
                graph.require_parameters()
            raise ObservationError(
                f"the size of axis {axis!r} of {array.kind} {name!r} is not known from the declaration or from what is given; "
                f"pass sizes={{{axis!r}: ...}}{graph.size_table.missing_size_hint(axis, solved)}."
            )
        if 0 in shape and not _edgeless(graph, array, shape):
            axis = array.axes[shape.index(0)]
            raise ObservationError(f"axis {axis!r} of {array.kind} {name!r} has size 0; there is nothing to infer along it.")
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


def _static_shapes(graph: Declaration) -> dict[str, tuple[int, ...]]:
    """The shapes of a graph without dynamic axes; found once for a declaration."""
    return graph.memo((_static_shapes, "shapes"), lambda: _all_shapes(graph, graph.size_table.static))


def _partial_mask(variable: Variable, partial: Partial) -> Tensor:
    value, mask = partial.value, partial.mask
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ObservationError(f"variable {variable.name!r}: the mask of Partial must be boolean, got {got}.")
    if mask.ndim < value.ndim and tuple(mask.shape) == tuple(value.shape[: mask.ndim]):
        mask = mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim))
    if mask.ndim != value.ndim or any(m not in (1, v) for m, v in zip(mask.shape, value.shape, strict=True)):
        raise ObservationError(
            f"variable {variable.name!r}: the mask of Partial has shape {tuple(mask.shape)}, which fits neither the value's shape "
            f"{tuple(value.shape)} nor its first axes."
        )
    if mask.device != value.device:
        raise ObservationError(f"variable {variable.name!r}: the mask of Partial is on {mask.device}, its value on {value.device}; move one of them.")
    return mask.expand(value.shape)


def _require_whole_rows(variable: Variable, mask: Tensor) -> None:
    """Refuse a mask that varies along axes whose entries depend on one another."""
    for axis in variable.regularizer.over_axes(variable.axes):
        dim = variable.regularizer.dim if isinstance(variable.regularizer, AlongAxis) else variable.axes.index(axis) + 1
        if bool((mask.any(dim) != mask.all(dim)).any()):
            raise ObservationError(
                f"variable {variable.name!r}: the mask of Partial varies along axis {axis!r}, but {variable.regularizer!r} ties "
                "the entries along it; observe whole rows or none."
            )


def _free_rows(partial: Partial, exists: Tensor | None) -> tuple[Tensor, ...] | None:
    """The unobserved rows of a mask that covers only the first axes, if they are few and the run is on a CPU (elsewhere finding them waits)."""
    mask = partial.mask
    while mask.ndim > 1 and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    if torch.compiler.is_compiling() or mask.device.type != "cpu" or mask.ndim >= partial.value.ndim or mask.ndim < 2:
        return None
    if tuple(mask.shape) != tuple(partial.value.shape[: mask.ndim]):
        return None
    free = ~mask
    if exists is not None:
        while exists.ndim > mask.ndim:
            if exists.shape[-1] != 1:
                return None
            exists = exists.squeeze(-1)
        free = free & exists
    rows = free.nonzero(as_tuple=True)
    return rows if 2 * len(rows[0]) <= free.numel() else None


def _add_dropout(
    graph: Declaration,
    dropout: Mapping[str, float | Tensor],
    fixed: frozenset[str],
    regularizers: dict[str, Regularizer],
    shapes: Mapping[str, tuple[int, ...]],
    batch: int,
    like: Tensor,
    generator: torch.Generator | None,
    check: bool,
) -> None:
    for name, amount in dropout.items():
        if name not in graph.variables:
            raise InferenceError(f"dropout: graph {graph.name!r}: " + unknown("variable", name, graph.variables))
        inner = regularizers[name]
        if name in fixed:
            raise InferenceError(f"dropout: variable {name!r} is given; only inferred variables can be dropped.")
        if not isinstance(inner, Elementwise):
            raise InferenceError(f"dropout: variable {name!r} has {inner!r}, whose entries depend on one another; drop elementwise variables only.")
        shape = (batch, *shapes[name])
        if isinstance(amount, Tensor):
            if amount.device != like.device:
                raise InferenceError(f"dropout: the mask of {name!r} is on {amount.device}, the run on {like.device}; move it.")
            try:
                scale = amount.to(like.dtype).expand(shape)
            except RuntimeError:
                raise InferenceError(f"dropout: the mask of {name!r} has shape {tuple(amount.shape)}, expected {shape}.") from None
            if check and not bool((scale >= 0).all() & scale.isfinite().all()):
                raise InferenceError(f"dropout: the mask of {name!r} must be finite and >= 0 everywhere: 0 where dropped, 1/(1-p) where kept.")
        else:
            if isinstance(amount, bool) or not isinstance(amount, (int, float)):
                raise InferenceError(f"dropout: {name!r} takes a probability in [0, 1) or a mask, got {amount!r}.")
            if not 0 <= amount < 1:
                raise InferenceError(f"dropout: the probability of {name!r} must be in [0, 1), got {amount}.")
            if amount == 0:
                continue
            scale = (uniform(shape, like, generator) >= amount).to(like.dtype) / (1 - amount)
        regularizers[name] = Dropped(inner, scale)
