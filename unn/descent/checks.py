"""Checks of values at run time: names, dtypes, devices, shapes, sizes, domains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from ..errors import InferenceError, ObservationError, unknown
from ..graph.arrays import Array, Constant, Index, Variable, batched_axes, check_batch
from ..graph.declaration import Declaration
from ..graph.fusion import Fusion, check_fusions
from ..plain import is_vmapped
from ..regularizers import Elementwise
from .lengths import masked

_LARGEST = torch.finfo(torch.float64).max


def check_generator(generator: object) -> None:
    """Check that a source of randomness is one.

    Raises:
        InferenceError: for other types than ``torch.Generator`` and None, such as a seed.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InferenceError(
            f"generator: a torch.Generator such as torch.Generator().manual_seed({generator!r}), got "
            f"{generator!r}."
        )


def check_readable(values: Iterable[object]) -> None:
    """Check that numbers of values can be read.

    Raises:
        InferenceError: under ``torch.func.vmap``.
    """
    if any(isinstance(x, Tensor) and is_vmapped(x) for x in values):
        raise InferenceError(
            "under torch.func.vmap no values can be checked; make the network with check_values=False, and "
            "give it values that fit."
        )


def given_array(graph: Declaration, name: str) -> Array:
    """The declared variable or constant that an observation names.

    Raises:
        ObservationError: for an unknown name or a parameter.
    """
    array = graph.arrays.get(name)
    if array is None:
        known = [n for n, a in graph.arrays.items() if isinstance(a, (Variable, Constant))]
        raise ObservationError(f"given: graph {graph.name!r}: " + unknown("variable", name, known))
    if name in graph._buffers:
        raise ObservationError(
            f"given: constant {name!r} has a value since its declaration; declare it without one to give it "
            "in each call."
        )
    if isinstance(array, Index):
        raise ObservationError(
            f"given: {name!r} is an index; its numbers belong to the declaration, not to an observation."
        )
    if not isinstance(array, (Variable, Constant)):
        raise ObservationError(
            f"given: {name!r} is a parameter; its value belongs to the graph (load_state_dict, or "
            f"graph.{name}.data), not to an observation."
        )
    return array


def check_tensor(where: str, array: Array, x: object, like: Tensor | None) -> Tensor:
    """Check type, dtype and device of a value; returns the tensor that sets them for the run.

    Raises:
        ObservationError: with the remedy.
    """
    if not isinstance(x, Tensor):
        raise ObservationError(
            f"{array.kind} {where}: expected a torch.Tensor, got {type(x).__name__}; convert it with "
            "torch.as_tensor(...)."
        )
    if x.layout != torch.strided:
        raise ObservationError(f"{array.kind} {where}: a sparse tensor ({x.layout}); call .to_dense().")
    if not x.is_floating_point():
        remedy = (
            "one-hot labels with torch.nn.functional.one_hot(...).float()"
            if x.ndim <= len(array.axes)
            else "call .float()"
        )
        raise ObservationError(f"{array.kind} {where}: dtype {x.dtype} is not floating point; {remedy}.")
    if like is not None and x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ObservationError(
            f"{array.kind} {where}: dtype {x.dtype} differs from {like.dtype} of the graph's parameters or "
            f"the other values; convert it with .to({like.dtype}), or the graph with graph.to({x.dtype})."
        )
    if like is not None and x.device != like.device:
        raise ObservationError(
            f"{array.kind} {where}: on device {x.device}, but the graph is on {like.device}; move one of "
            "them with .to(...)."
        )
    return x if like is None else like


def check_dtypes(values: Mapping[str, Tensor]) -> None:
    """Check that the parameters and constants of a graph have one dtype.

    Raises:
        ObservationError: names two that differ.
    """
    first: tuple[str, Tensor] | None = None
    for name, x in values.items():
        if first is None:
            first = name, x
        elif x.dtype != first[1].dtype:
            raise ObservationError(
                f"{name!r} has dtype {x.dtype}, but {first[0]!r} has {first[1].dtype}; convert the graph "
                f"with graph.to({first[1].dtype})."
            )


def check_shape(
    graph: Declaration, where: str, array: Array, x: Tensor, solved: dict[str, int], batch: int | None
) -> int | None:
    """Check the shape of a value, note the sizes of its dynamic axes, and return the batch size."""
    table = graph.size_table
    if x.ndim == len(array.axes) and isinstance(array, Constant):
        own = x.shape
    else:
        batch = check_batch(where, array, x, batch)
        own = x.shape[1:]
    for axis, size in zip(array.axes, own, strict=True):
        root = table.root(axis)
        if root in solved and solved[root] != size:
            tied = [name for name in table.tied(axis) if name != axis]
            also = f" (tied to {', '.join(map(repr, tied))})" if tied else ""
            hint = table.relation_hint(axis, size, solved[root])
            raise ObservationError(
                f"{array.kind} {where}: axis {axis!r}{also} has size {size}, expected {solved[root]}: "
                f"shape {tuple(x.shape)} does not fit {batched_axes(array)}; reshape the value, or declare "
                f"{axis}={size}.{hint}"
            )
        if size == 0:
            raise ObservationError(
                f"{array.kind} {where}: axis {axis!r} has size 0 (shape {tuple(x.shape)}); drop empty "
                "sequences first."
            )
        solved[root] = size
    return batch


def check_constants(graph: Declaration, given: Collection[str]) -> None:
    """Check that every constant without a value of its own is given.

    Raises:
        ObservationError: names the first that is not.
    """
    for name, array in graph.arrays.items():
        if isinstance(array, Constant) and name not in given and name not in graph._buffers:
            raise ObservationError(
                f"constant {name!r} ({' '.join(array.axes)}) has no value; pass it with what is given, "
                f"{{{name!r}: ...}}."
            )


def take_sizes(graph: Declaration, sizes: Mapping[str, int], solved: dict[str, int]) -> None:
    """Add sizes that the caller states to those solved so far.

    Raises:
        ObservationError: for unknown axes or contradictions.
    """
    axes = {axis for array in graph.arrays.values() for axis in array.axes}
    for axis, size in sizes.items():
        if axis not in axes:
            raise ObservationError(f"sizes: graph {graph.name!r}: " + unknown("axis", axis, axes))
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ObservationError(f"sizes: axis {axis!r} needs a whole number >= 1, got {size!r}.")
        root = graph.size_table.root(axis)
        if solved.get(root, size) != size:
            raise ObservationError(
                f"sizes: axis {axis!r} is {size}, but {solved[root]} follows from the declaration or the "
                "values."
            )
        solved[root] = size


def check_domain(
    variable: Variable, x: Tensor, mask: Tensor | None, where: str, zero_allowed: bool = False
) -> None:
    """Check that observed values lie in the domain of their variable.

    Raises:
        ObservationError: says whether they are not finite, or where they go beyond the domain.
    """
    if mask is None and isinstance(variable.regularizer, Elementwise) and x.numel():
        # one pass over the values; NaN spreads to both ends and fails the comparison
        low, high = variable.regularizer.interval()
        least, most = torch.aminmax(x.detach())
        if max(low, -_LARGEST) <= float(least) and float(most) <= min(high, _LARGEST):
            return
    seen = masked(x, mask)
    inside = variable.regularizer.contains(seen, mask)
    if bool(inside.all()) or (zero_allowed and bool((seen == 0).all())):
        return
    if not bool(seen.isfinite().all()):
        raise ObservationError(
            f"variable {where}: {describe_non_finite(seen)}; clean the data, or observe only part of it with "
            "unn.Partial."
        )
    outside = (~inside).nonzero().flatten()
    first = int(outside[0])
    entries = seen[first].detach()
    raise ObservationError(
        f"variable {where}: {len(outside)} of {len(inside)} batch elements lie outside the domain of "
        f"{variable.regularizer!r} ({variable.regularizer.formula}), first batch element {first}, whose "
        f"entries go from {float(entries.min()):.4g} to {float(entries.max()):.4g} and sum to "
        f"{float(entries.sum()):.4g}; rescale the values, or declare another regularizer."
    )


def describe_non_finite(x: Tensor) -> str:
    """Number of entries that are NaN or infinite, and the index of the first."""
    bad = (~x.isfinite()).nonzero()
    first = tuple(int(k) for k in bad[0])
    return f"{len(bad)} entries are NaN or infinite, the first at index {first} ({float(x[first].detach())})"


def describe_bad_parameters(graph: Declaration, names: Collection[str] | None = None) -> str:
    """Which parameters are NaN or infinite, and where; empty if none is.

    Args:
        graph: that owns them.
        names: of declared parameters to look at; all, and those of the factors' modules, if None.
    """
    for name, parameter in graph.named_parameters():
        if (names is None or name in names or "." in name) and not bool(parameter.isfinite().all()):
            problem = describe_non_finite(parameter.detach())
            return f"Parameter {name!r}: {problem}; restore it, and look at what set it."
    return ""


def choose_fusions(graph: Declaration, fusions: Collection[Fusion] | None) -> tuple[Fusion, ...]:
    """The fusions of a run: those of the graph if None are passed.

    Raises:
        InferenceError: for other types than collections.
        DeclarationError: for fusions that do not fit the graph.
    """
    if fusions is None:
        return graph.fusions
    if not isinstance(fusions, Collection):
        raise InferenceError(
            f"fusions: a list of fusions such as graph.fusions, or () for none, got {fusions!r}."
        )
    check_fusions(graph.name, graph.variables, graph.factors, list(fusions))
    return tuple(fusions)
