"""Whether evidence on a program has a density above zero, as far as values that are given decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import DeclarationError, ObservationError
from .density import agrees, density_in_range, observed_nodes, places_of, refused, wide
from .kinds import Array
from .tape import Drawing, RecordedDraw, Settle, Statement, Step, Tape


def require_possible(
    tape: Tape,
    given: Mapping[str, tuple[Array, Array]],
    plan: Mapping[int, Sequence[int]],
    *,
    single: bool,
) -> None:
    """Check that values whose parents are all given have a density above zero, and that computed ones agree.

    Args:
        tape: tape of a complete run.
        given: stored values ``(1, nodes, *features)`` and masks ``(nodes,)`` of evidence, by variable.
        plan: result of ``tape.plan``.
        single: result of ``in_single_precision`` of the evidence.

    Raises:
        ObservationError: names the entry whose density is zero, or that contradicts what it is computed from.
    """
    observed = observed_nodes(tape, given)
    known = _known(tape, observed)
    has_known_parents = np.array([bool(known[sorted(parents)].all()) for parents in tape.parents], dtype=bool)
    stored = {
        name: np.zeros((1, recorded.nodes.size, *recorded.values.features), recorded.values.dtype)
        for name, recorded in tape.variables.items()
    }
    # an index that is not decided may be out of bounds
    drawing = Drawing(1, refused, refused, lambda x: x, stored, outside=[])

    def run(step: Step, inputs: Sequence[Array]) -> Array:
        if isinstance(step, RecordedDraw):
            values = _evidence_at(tape, given, step.statement)
            nodes = step.statement.nodes.reshape(int(np.prod(step.batch, dtype=np.int64)), -1)
            decided = observed[nodes].all(1) & has_known_parents[nodes].all(1)
            if decided.any():
                impossible = decided & (_densities(step, values, inputs, single) == -np.inf)
                if impossible.any():
                    name = tape.node_name(int(nodes[impossible][0, 0]))
                    raise ObservationError(
                        f"program: the evidence has density zero: {name!r} cannot have its value where what "
                        "it depends on is given as it is."
                    )
            return values
        if not isinstance(step, Settle):
            return step.run(inputs, drawing)
        dtype = step.statement.kind.dtype
        # what is not given is NaN, which whole numbers do not have
        computed = wide(inputs[0]) if dtype == np.float64 else np.nan_to_num(inputs[0]).astype(dtype)
        nodes = step.statement.nodes
        if step.statement.role == "sample" or not observed[nodes].any():
            return computed
        values = _evidence_at(tape, given, step.statement)
        decided = (observed & has_known_parents)[nodes]
        features = (1,) * (values.ndim - 1 - nodes.ndim)
        wrong = decided.reshape(nodes.shape + features) & ~agrees(wide(values), wide(computed))[0]
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0][: nodes.ndim])
            raise ObservationError(
                f"program: the evidence has density zero: {tape.node_name(int(nodes[place]))!r} is computed "
                "from values that are given, and differs from the result."
            )
        return np.where(observed[nodes].reshape(nodes.shape + features), values, computed)

    tape.execute(run, plan)


def _known(tape: Tape, observed: Array) -> Array:
    """Nodes that are given, or computed from such, shape ``(nodes,)``."""
    known = observed.copy()
    # children come after their parents
    for statement in tape.statements:
        if statement.role != "sample":
            for node in statement.nodes.ravel().tolist():
                known[node] |= bool(known[sorted(tape.parents[node])].all())
    return known


def _evidence_at(tape: Tape, given: Mapping[str, tuple[Array, Array]], statement: Statement) -> Array:
    """Evidence on the nodes of a statement, shape ``(1, *nodes, *features)``; NaN, or 0, where there is
    none."""
    name, places = places_of(tape, statement)
    kind = tape.variables[name].values
    unknown = np.nan if kind.dtype == np.float64 else 0
    if name not in given:
        return np.full((1, *places.shape, *kind.features), unknown, kind.dtype)
    values, mask = given[name]
    mask = mask[places].reshape(places.shape + (1,) * len(kind.features))
    return np.where(mask, values[:, places], np.asarray(unknown, kind.dtype))


def _densities(step: RecordedDraw, values: Array, inputs: Sequence[Array], single: bool) -> Array:
    """Log-density of each draw, shape ``(draws,)``, -inf where its parameters are out of range; 0 for a
    distribution without a density."""
    try:
        density = density_in_range(step, values, inputs, single)
    except DeclarationError:
        return np.zeros(int(np.prod(step.batch, dtype=np.int64)))
    return np.broadcast_to(density, (1, *step.batch)).reshape(-1)
