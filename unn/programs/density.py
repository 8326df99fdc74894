"""The log-density of the values of a program, from a replay of its tape with the values in place of draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ObservationError, suggest
from ..graph.partial import Partial
from ..networks.tokens import Rows
from .kinds import Array
from .tape import Drawing, Recorded, RecordedDraw, Settle, Shape, Statement, Step, Tape

_AGREEMENT = 1e-4
"""Largest difference of a given computed value, relative to its size or 1, that counts as rounding."""


def log_prob(
    tape: Tape, values: Mapping[str, Array], plan: Mapping[int, Sequence[int]], *, single: bool
) -> Array:
    """Logarithm of the joint density of values, shape ``(batch,)``.

    Args:
        tape: tape of a complete run.
        values: values of all random variables, and of some computed ones, by name, shape ``(batch, nodes,
            *features)``.
        plan: result of ``tape.plan``.
        single: result of ``in_single_precision`` of the values.
    """
    count = len(next(iter(values.values())))
    total, impossible = np.zeros(count), np.zeros(count, dtype=bool)
    for _, density in log_densities(tape, values, plan, single=single):
        rows = density.reshape(len(density), -1)
        total = total + rows.sum(1)
        impossible |= (rows == -np.inf).any(1)
    # a point mass or a pole elsewhere does not make up for it
    return np.where(impossible, -np.inf, total)


def log_densities(
    tape: Tape, values: Mapping[str, Array], plan: Mapping[int, Sequence[int]], *, single: bool
) -> list[tuple[Statement, Array]]:
    """Log-density of the draws of each statement given their parents, shape ``(batch, *batch of draws)``; of
    given values of computed variables 0 where they agree with what is computed, and -inf elsewhere.

    Arguments as for ``log_prob``.

    Raises:
        DeclarationError: for an index out of bounds at values of which none has density zero.
    """
    count = len(next(iter(values.values())))
    computed = {
        recorded.name: np.zeros(
            (count, recorded.nodes.size, *recorded.values.features), recorded.values.dtype
        )
        for recorded in tape.variables.values()
    }
    drawing = Drawing(count, refused, refused, lambda x: x, computed, outside=[])
    densities: list[tuple[Statement, Array]] = []

    def run(step: Step, inputs: Sequence[Array]) -> Array:
        if isinstance(step, RecordedDraw):
            given = _values_at(tape, values, step.statement)
            assert given is not None
            density = np.broadcast_to(density_in_range(step, given, inputs, single), (count, *step.batch))
            densities.append((step.statement, density))
            if step.statement.kind.name == "count" and density.shape == given.shape:
                # a count beyond its computed bound may be no index of an array; 0 stands in for it
                given = np.where(density == -np.inf, 0, given).astype(given.dtype)
            return given
        if isinstance(step, Settle):
            result = inputs[0].astype(step.statement.kind.dtype)
            given = _values_at(tape, values, step.statement)
            if step.statement.role != "sample" and given is not None:
                densities.append((step.statement, np.where(agrees(wide(given), wide(result)), 0.0, -np.inf)))
            return result
        return step.run(inputs, drawing)

    tape.execute(run, plan)
    for rows, error in drawing.outside or ():
        possible = np.ones(count, dtype=bool)
        for _, density in densities:
            possible &= (density > -np.inf).reshape(count, -1).all(1)
        if (rows & possible).any():
            raise error
    return densities


def in_single_precision(values: Mapping[str, Tensor | Partial]) -> bool:
    """Whether some values by variable are rounded to single precision, or less."""
    tensors = (x.value if isinstance(x, Partial) else x for x in values.values())
    return any(isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 for x in tensors)


def density_in_range(step: RecordedDraw, values: Array, inputs: Sequence[Array], single: bool) -> Array:
    """Log-density of draws, broadcastable to their batch; -inf where computed parameters are out of range.

    Args:
        step: the draw.
        values: drawn values, shape ``(batch, *nodes, *features)``.
        inputs: inputs of the step.
        single: result of ``in_single_precision`` of the values.

    Raises:
        DeclarationError: for a distribution without a density.
    """
    parameters, x = step.parameters(inputs), wide(values)
    if single:
        x = step.distribution.unrounded(x, parameters)
    density = step.distribution.log_density(x, parameters)
    return np.where(step.distribution.in_range(parameters) & ~np.isnan(density), density, -np.inf)


def stored_values(tape: Tape, values: Mapping[str, Tensor]) -> dict[str, Array]:
    """Check values by variable, and convert them to the values inside a program.

    Args:
        tape: tape of a complete run.
        values: values by variable, shape ``(batch, *shape)``; categories one-hot along a last axis.

    Returns:
        Shape ``(batch, nodes, *features)`` each.

    Raises:
        ObservationError: for missing or unknown variables, shapes or batches that do not fit, NaN, or
            categories that are not one-hot.
    """
    _check_mapping(values)
    for name in values:
        if name not in tape.variables:
            raise ObservationError(f"program: there is no variable {name!r}.{suggest(name, tape.variables)}")
    drawn = tape.drawn_nodes()
    missing = [
        name
        for name, recorded in tape.variables.items()
        if name not in values and not drawn.isdisjoint(recorded.nodes.ravel().tolist())
    ]
    if missing:
        raise ObservationError(
            f"program: a density needs all random variables; missing: {', '.join(missing)}."
        )
    stored = {name: as_stored(tape.variables[name], value) for name, value in values.items()}
    counts = {name: len(x) for name, x in stored.items()}
    if len(set(counts.values())) > 1:
        raise ObservationError(f"program: values differ in their batch sizes: {counts}.")
    return stored


def _check_mapping(values: object) -> None:
    if not isinstance(values, Mapping):
        raise ObservationError(
            "program: values are a mapping from names to tensors such as {'x': x}, got "
            f"{type(values).__name__}."
        )


def stored_evidence(
    tape: Tape, rows: Rows, given: Mapping[str, Tensor | Partial]
) -> dict[str, tuple[Array, Array]]:
    """Check evidence, and convert it to stored values ``(1, nodes, *features)`` and masks ``(nodes,)``.

    Args:
        tape: tape of a complete run.
        rows: layout of its graph.
        given: evidence by variable, with a batch axis of 1 or none.

    Raises:
        ObservationError: for unknown variables, values outside their domain, or values and masks that do not
            fit the variables.
    """
    _check_mapping(given)
    numbers, nodes = rows.observation({name: _with_batch(rows, name, x) for name, x in given.items()}, 1)
    evidence = {}
    for name in given:
        slot, kind = rows.slots[name], tape.variables[name].values
        x = numbers[:, slot.numbers].double().numpy().reshape(1, -1, slot.channels)
        if slot.kind != "real":
            x = x.argmax(-1)
        stored = x.reshape(*x.shape[:2], *kind.features).astype(kind.dtype)
        evidence[name] = stored, nodes[0, slot.nodes].numpy()
    return evidence


def observed_nodes(tape: Tape, given: Mapping[str, tuple[Array, Array]]) -> Array:
    """Mask of the nodes with evidence, shape ``(nodes,)``.

    Args:
        tape: tape of a complete run.
        given: result of ``stored_evidence``.
    """
    observed = np.zeros(len(tape.parents), dtype=bool)
    for name, (_, mask) in given.items():
        observed[tape.variables[name].nodes.ravel()[mask]] = True
    return observed


def _with_batch(rows: Rows, name: str, x: Tensor | Partial) -> Tensor | Partial:
    """Evidence with a batch axis, which single values may leave out."""
    value = x.value if isinstance(x, Partial) else x
    if name not in rows.slots or not isinstance(value, Tensor) or value.ndim != len(rows.slots[name].shape):
        return x
    return Partial(value[None], x.mask[None]) if isinstance(x, Partial) else value[None]


def as_stored(recorded: Recorded, value: Tensor) -> Array:
    """Check the values of a variable, and convert them, shape ``(batch, nodes, *features)``.

    Raises:
        ObservationError: for another shape, NaN, or categories that are not one-hot.
    """
    kind, name = recorded.values, recorded.name
    inner: Shape = (kind.options,) if kind.options else ()
    shape = (*recorded.nodes.shape, *inner)
    if not isinstance(value, Tensor) or tuple(value.shape[1:]) != shape or not value.ndim or not len(value):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        expected = ", ".join(map(str, ("batch", *shape)))
        raise ObservationError(f"variable {name!r} needs a tensor of shape ({expected}), got {got}.")
    if value.is_complex():
        raise ObservationError(f"variable {name!r} needs real numbers, got {value.dtype}.")
    x = value.detach().cpu().double().numpy().reshape(len(value), recorded.nodes.size, *inner)
    if np.isnan(x).any():
        raise ObservationError(f"variable {name!r}: values have NaN entries.")
    if kind.name == "category":
        if not (((x == 0) | (x == 1)).all() and (x.sum(-1) == 1).all()):
            raise ObservationError(
                f"variable {name!r} is {kind}; its values must be one-hot along the last axis."
            )
        return np.asarray(x.argmax(-1))
    if kind.name == "binary" and not ((x == 0) | (x == 1)).all():
        raise ObservationError(f"variable {name!r} is binary; its values must be 0 or 1.")
    return np.asarray(x > 0) if kind.name == "binary" else np.asarray(x)


def _values_at(tape: Tape, values: Mapping[str, Array], statement: Statement) -> Array | None:
    """Values of the nodes of a statement, shape ``(batch, *nodes, *features)``; None if not given."""
    name, places = places_of(tape, statement)
    return np.asarray(values[name][:, places]) if name in values else None


def places_of(tape: Tape, statement: Statement) -> tuple[str, Array]:
    """Variable of a statement, and the flat indices of its nodes there, in their shape."""
    places = [tape.places[node] for node in statement.nodes.ravel().tolist()]
    name = next(place[0] for place in places if place is not None)
    flat = [place[1] for place in places if place is not None]
    return name, np.array(flat, dtype=np.int64).reshape(statement.nodes.shape)


def agrees(given: Array, computed: Array) -> Array:
    """Whether given values equal computed ones up to rounding."""
    return np.asarray(np.abs(given - computed) <= _AGREEMENT * np.maximum(1, np.abs(computed)))


def wide(x: Array) -> Array:
    """Values in double precision."""
    return x.astype(np.float64)


def refused(shape: Shape) -> Array:
    """In place of random numbers, which a density does not draw."""
    raise AssertionError("a density draws no random numbers")
