"""What is known before inference starts: observations, sizes, masks, initial values, each checked against the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..arrays import Array, Constant, Variable
from ..errors import DeclarationError, InferenceError, ObservationError, unknown
from ..graph import FactorGraph
from ..regularizers import Dropped, Elementwise, Regularizer


@dataclass(frozen=True, eq=False)
class Partial:
    """An observation of some entries of a variable; the others are inferred.

    Args:
        value: shape ``(batch, *axes)``; what stands at unobserved entries does not matter, unless it is NaN.
        mask: boolean, true where observed; shape of ``value``, or of its first axes (whole rows, whole batch elements).
    """

    value: Tensor
    mask: Tensor


_LARGEST = torch.finfo(torch.float64).max

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
        fixed: names that no update changes.
        free_rows: for variables of which few whole rows are unobserved, the indices of these rows along the batch and the first axes.
        padding: for observed ragged variables, what was given and where it is padding; computed with as 0, returned as given.
    """

    values: dict[str, Tensor]
    observed: dict[str, tuple[Tensor, Tensor]]
    shapes: dict[str, tuple[int, ...]]
    batch: int
    masks: dict[str, Tensor]
    regularizers: dict[str, Regularizer]
    like: Tensor
    fixed: frozenset[str] = field(default_factory=frozenset)
    padding: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    free_rows: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)


def observe(
    graph: FactorGraph,
    given: Given,
    initial: Initial | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    sizes: Mapping[str, int] | None = None,
    dropout: Mapping[str, float | Tensor] | None = None,
    generator: torch.Generator | None = None,
    check_values: bool = True,
) -> Setting:
    """Bring all that is known together and check it.

    Raises:
        ObservationError: for unknown names, wrong shapes, dtypes or devices, NaN, values outside a domain, contradicting sizes.
        InferenceError: if nothing is known, or an initial value or dropout is asked for that has no meaning.
    """
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
        array = _array(graph, name)
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
        like = _check_tensor(where, array, tensor, like)
        batch = _check_shape(graph, where, array, tensor, solved, batch)
    _missing_constants(graph, given)
    if like is None:
        like = torch.empty(())
    if sizes:
        _take_sizes(graph, sizes, solved)
    try:
        if graph.size_table.has_rules and len(solved) > len(graph.size_table.static):
            solved = graph.size_table.solve(solved)
    except DeclarationError as error:
        raise ObservationError(f"graph {graph.name!r}: {error}") from None
    shapes = _static_shapes(graph) if len(solved) == len(graph.size_table.static) else _all_shapes(graph, solved)
    if batch is None:
        batch = 1
    masks = _masks(graph, lengths, shapes, batch, like.device) if lengths else {}
    padding: dict[str, tuple[Tensor, Tensor]] = {}
    free_rows: dict[str, tuple[Tensor, ...]] = {}
    for name, value in given.items():
        array = graph.arrays[name]
        if isinstance(value, Partial):
            where_observed = _partial_mask(graph.variable_named(name), value)
            full = torch.where(where_observed, value.value, 0)
            if check_values:
                mask = masks.get(name)
                seen = where_observed if mask is None else where_observed & mask
                _check_domain(graph.variable_named(name), value.value, seen, f"{name!r} given in part")
            observed[name] = (_masked(full, masks.get(name)), where_observed)
            if name in masks:
                padding[name] = (full, where_observed & ~masks[name])
            rows = _free_rows(value, masks.get(name))
            if rows is not None:
                free_rows[name] = rows
            values[name] = _masked(full, masks.get(name))
            continue
        if isinstance(array, Variable):
            if check_values:
                _check_domain(array, value, masks.get(name), f"{name!r} given")
            values[name] = _masked(value, masks.get(name))
            if name in masks:
                padding[name] = (value, ~masks[name])
        else:
            if check_values and not bool(value.isfinite().all()):
                raise ObservationError(f"constant {name!r} given: {_describe_non_finite(value)}; clean the data first.")
            values[name] = value
    fixed = frozenset(n for n in given if n not in observed) | frozenset(graph.fixed_values())
    regularizers = {name: variable.regularizer for name, variable in graph.variables.items()}
    if dropout:
        _add_dropout(graph, dropout, fixed, regularizers, shapes, batch, like, generator)
    setting = Setting(values, observed, shapes, batch, masks, regularizers, like, fixed, padding, free_rows)
    if lengths:
        _mask_constants(graph, setting, lengths)
    for name, start in (initial or {}).items():
        value_at_start = initial_value(setting, graph.variable_named(name), start, generator, check_values)
        if value_at_start is None:
            continue
        if name in observed:
            value_at_start = torch.where(observed[name][1], observed[name][0], value_at_start)
        values[name] = _masked(value_at_start, masks.get(name))
    return setting


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
            _check_domain(variable, start, mask, f"{name!r} initial", zero_allowed=True)
        return start
    if start == "zero":
        return None
    if start == "uniform":
        return regularizer.mirror(setting.like.new_zeros(shape), mask)
    if start == "random":
        noise = torch.rand(shape, generator=generator, dtype=setting.like.dtype, device=setting.like.device)
        return regularizer.mirror(noise, mask)
    raise InferenceError(f"initial: variable {name!r} starts at 'zero', 'uniform', 'random' or a tensor, got {start!r}.")


def _array(graph: FactorGraph, name: str) -> Array:
    array = graph.arrays.get(name)
    if array is None:
        known = [n for n, a in graph.arrays.items() if isinstance(a, (Variable, Constant))]
        raise ObservationError(f"given: graph {graph.name!r}: " + unknown("variable", name, known))
    if not isinstance(array, (Variable, Constant)):
        raise ObservationError(
            f"given: {name!r} is a parameter; its value belongs to the graph (load_state_dict, or graph.{name}.data), not to an observation."
        )
    return array


def _check_tensor(where: str, array: Array, x: object, like: Tensor | None) -> Tensor:
    if not isinstance(x, Tensor):
        raise ObservationError(f"{array.kind} {where}: expected a torch.Tensor, got {type(x).__name__}; convert it with torch.as_tensor(...).")
    if not x.is_floating_point():
        remedy = "one-hot labels with torch.nn.functional.one_hot(...).float()" if x.ndim <= len(array.axes) else "call .float()"
        raise ObservationError(f"{array.kind} {where}: dtype {x.dtype} is not floating point; {remedy}.")
    if like is not None and x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ObservationError(
            f"{array.kind} {where}: dtype {x.dtype} differs from {like.dtype} of the graph's parameters or the other values; "
            f"convert it with .to({like.dtype}), or the graph with graph.to({x.dtype})."
        )
    if like is not None and x.device != like.device:
        raise ObservationError(f"{array.kind} {where}: on device {x.device}, but the graph is on {like.device}; move one of them with .to(...).")
    return x if like is None else like


def _check_shape(graph: FactorGraph, where: str, array: Array, x: Tensor, solved: dict[str, int], batch: int | None) -> int | None:
    """Check the shape of a value, note the sizes of its dynamic axes, and return the batch size."""
    table = graph.size_table
    rank = len(array.axes)
    expected = f"(batch{''.join(', ' + a for a in array.axes)})"
    if x.ndim == rank and isinstance(array, Constant):
        own = x.shape
    elif x.ndim != rank + 1:
        remedy = "; add a batch axis with x[None]" if x.ndim == rank else ""
        raise ObservationError(f"{array.kind} {where}: shape {tuple(x.shape)} has {x.ndim} axes, expected {expected}{remedy}.")
    else:
        own = x.shape[1:]
        if x.shape[0] == 0:
            raise ObservationError(f"{array.kind} {where}: shape {tuple(x.shape)} is an empty batch; pass at least one example.")
        if batch is not None and x.shape[0] != batch:
            raise ObservationError(f"{array.kind} {where}: batch size {x.shape[0]} differs from {batch} of the values before it.")
        batch = x.shape[0]
    for axis, size in zip(array.axes, own, strict=True):
        root = table.root(axis)
        if root in solved and solved[root] != size:
            tied = [name for name in table.tied(axis) if name != axis]
            also = f" (tied to {', '.join(map(repr, tied))})" if tied else ""
            raise ObservationError(
                f"{array.kind} {where}: axis {axis!r}{also} has size {size}, expected {solved[root]}: "
                f"shape {tuple(x.shape)} does not fit {expected}; reshape the value, or declare {axis}={size}."
            )
        if size == 0:
            raise ObservationError(f"{array.kind} {where}: axis {axis!r} has size 0 (shape {tuple(x.shape)}); drop empty sequences first.")
        solved[root] = size
    return batch


def _missing_constants(graph: FactorGraph, given: Given) -> None:
    for name, array in graph.arrays.items():
        if isinstance(array, Constant) and name not in given and name not in graph._buffers:
            raise ObservationError(f"constant {name!r} ({' '.join(array.axes)}) has no value; pass it with what is given, {{{name!r}: ...}}.")


def _take_sizes(graph: FactorGraph, sizes: Mapping[str, int], solved: dict[str, int]) -> None:
    axes = {axis for array in graph.arrays.values() for axis in array.axes}
    for axis, size in sizes.items():
        if axis not in axes:
            raise ObservationError(f"sizes: graph {graph.name!r}: " + unknown("axis", axis, axes))
        root = graph.size_table.root(axis)
        if solved.get(root, size) != size:
            raise ObservationError(f"sizes: axis {axis!r} is {size}, but {solved[root]} follows from the declaration or the values.")
        solved[root] = size


def _all_shapes(graph: FactorGraph, solved: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in graph.arrays.items():
        shape = graph.size_table.shape(array, solved)
        if None in shape:
            axis = array.axes[shape.index(None)]
            if not isinstance(array, Variable):
                graph.require_parameters()
            raise ObservationError(
                f"the size of axis {axis!r} of {array.kind} {name!r} is not known from the declaration or from what is given; "
                f"pass sizes={{{axis!r}: ...}}."
            )
        shapes[name] = tuple(size for size in shape if size is not None)
    return shapes


def _static_shapes(graph: FactorGraph) -> dict[str, tuple[int, ...]]:
    """The shapes of a graph without dynamic axes; found once for a declaration."""
    found = graph._plans.get("shapes")
    if not isinstance(found, dict):
        found = graph._plans["shapes"] = _all_shapes(graph, graph.size_table.static)
    return found


def _masks(
    graph: FactorGraph, lengths: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], batch: int, device: torch.device
) -> dict[str, Tensor]:
    """Which entries of each ragged variable exist, shape ``(batch, *axes)``, 1 along regular axes."""
    table = graph.size_table
    known = {axis for array in graph.arrays.values() for axis in array.axes}
    ragged: dict[str, Tensor] = {}
    for axis, length in lengths.items():
        if axis not in known:
            raise ObservationError(f"lengths: graph {graph.name!r}: " + unknown("axis", axis, known))
        if not isinstance(length, Tensor) or length.is_floating_point() or tuple(length.shape) != (batch,):
            got = f"{length.dtype} of shape {tuple(length.shape)}" if isinstance(length, Tensor) else repr(length)
            raise ObservationError(f"lengths: axis {axis!r} needs whole numbers of shape ({batch},), got {got}.")
        ragged[table.root(axis)] = length.to(device)
    masks: dict[str, Tensor] = {}
    for name, variable in graph.variables.items():
        mask: Tensor | None = None
        for k, axis in enumerate(variable.axes):
            if (root := table.root(axis)) in ragged:
                size = shapes[name][k]
                length = ragged[root]
                if not torch.compiler.is_compiling() and not bool(((length > 0) & (length <= size)).all()):
                    bad = int(((length <= 0) | (length > size)).nonzero()[0])
                    raise ObservationError(
                        f"lengths: batch element {bad} has length {int(length[bad])} along axis {axis!r} of {name!r}, which has size {size}; "
                        "lengths go from 1 to that size. Drop empty sequences first."
                    )
                own = torch.arange(size, device=device) < length[:, None]
                own = own.view(batch, *[size if j == k else 1 for j in range(len(variable.axes))])
                mask = own if mask is None else mask & own
        if mask is not None:
            masks[name] = mask
    return masks


def _mask_constants(graph: FactorGraph, setting: Setting, lengths: Mapping[str, Tensor]) -> None:
    """Zero the padded part of constants, and refuse parameters that would be summed over padding."""
    table = graph.size_table
    ragged = {table.root(axis): length for axis, length in lengths.items()}
    for name, array in graph.arrays.items():
        if not isinstance(array, Constant):
            continue
        x = setting.values[name]
        for k, axis in enumerate(array.axes):
            if (length := ragged.get(table.root(axis))) is not None:
                own = torch.arange(setting.shapes[name][k], device=x.device) < length.to(x.device)[:, None]
                own = own.view(setting.batch, *[-1 if j == k else 1 for j in range(len(array.axes))])
                x = torch.where(own, x, 0)
        setting.values[name] = x
    for factor in graph.factors.values():
        carried = {table.root(a) for r in factor.references if isinstance(r.array, (Variable, Constant)) for a in r.array.axes}
        for reference in factor.references:
            for axis in reference.array.axes:
                root = table.root(axis)
                if root in ragged and root not in carried:
                    raise ObservationError(
                        f"lengths: factor {factor.name!r} sums parameter {reference.array.name!r} over the ragged axis {axis!r}, which no variable "
                        "of the factor has; multiply in a constant of ones along that axis, so that padding can be left out."
                    )


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
    mask = mask.expand(value.shape)
    for axis in variable.regularizer.over_axes(variable.axes):
        dim = variable.axes.index(axis) + 1 if variable.axes.count(axis) == 1 else value.ndim - 1
        if not torch.compiler.is_compiling() and bool((mask.any(dim) != mask.all(dim)).any()):
            raise ObservationError(
                f"variable {variable.name!r}: the mask of Partial varies along axis {axis!r}, but {variable.regularizer!r} ties "
                "the entries along it; observe whole rows or none."
            )
    return mask


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


def _check_domain(variable: Variable, x: Tensor, mask: Tensor | None, where: str, zero_allowed: bool = False) -> None:
    if mask is None and isinstance(variable.regularizer, Elementwise) and x.numel():
        # one pass over the values; NaN spreads to both ends and fails the comparison
        low, high = variable.regularizer.interval()
        least, most = torch.aminmax(x.detach())
        if max(low, -_LARGEST) <= float(least) and float(most) <= min(high, _LARGEST):
            return
    seen = _masked(x, mask)
    inside = variable.regularizer.contains(seen, mask)
    if bool(inside.all()) or (zero_allowed and bool((seen == 0).all())):
        return
    if not bool(seen.isfinite().all()):
        raise ObservationError(f"variable {where}: {_describe_non_finite(seen)}; clean the data, or observe only part of it with unn.Partial.")
    outside = (~inside).nonzero().flatten()
    first = int(outside[0])
    entries = seen[first]
    raise ObservationError(
        f"variable {where}: {len(outside)} of {len(inside)} batch elements lie outside the domain of {variable.regularizer!r} "
        f"({variable.regularizer.formula}), first batch element {first}, whose entries go from {float(entries.min()):.4g} to "
        f"{float(entries.max()):.4g} and sum to {float(entries.sum()):.4g}; rescale the values, or declare another regularizer."
    )


def _describe_non_finite(x: Tensor) -> str:
    bad = (~x.isfinite()).nonzero()
    first = tuple(int(k) for k in bad[0])
    return f"{len(bad)} entries are NaN or infinite, the first at index {first} ({float(x[first])})"


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask, x, 0)


def _add_dropout(
    graph: FactorGraph,
    dropout: Mapping[str, float | Tensor],
    fixed: frozenset[str],
    regularizers: dict[str, Regularizer],
    shapes: Mapping[str, tuple[int, ...]],
    batch: int,
    like: Tensor,
    generator: torch.Generator | None,
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
            try:
                scale = amount.to(like.dtype).expand(shape)
            except RuntimeError:
                raise InferenceError(f"dropout: the mask of {name!r} has shape {tuple(amount.shape)}, expected {shape}.") from None
        else:
            if not 0 <= amount < 1:
                raise InferenceError(f"dropout: the probability of {name!r} must be in [0, 1), got {amount}.")
            if amount == 0:
                continue
            keep = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device) >= amount
            scale = keep.to(like.dtype) / (1 - amount)
        regularizers[name] = Dropped(inner, scale)
