"""Block coordinate descent: any variables from any others."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import InferenceError, ObservationError
from ..graph.declaration import Declaration
from ..graph.fusion import Fusion
from ..graph.partial import Partial
from .checks import check_generator, choose_fusions
from .collect import collect_evidence, require_inferred_parts
from .evidence import Given, Initial
from .orders import Item, Order, as_order
from .ownership import input_storages, separate
from .plan import Plan, Step, check_order, check_reach, default_order, steps_by_round
from .solution import Solution, Status
from .state import Snapshot, State
from .trace import Energies, Terms
from .updates import MIRROR, Update, check_update
from .verdict import Divergence, find_divergence, judge_convergence, limit_message, stopped_early_message

ROUND_CAP = 1000


def infer(
    graph: Declaration,
    given: Given,
    *,
    order: Order | Sequence[Item] | str | None = None,
    iterations: int | range | None = None,
    until: float | None = None,
    initial: Initial | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    sizes: Mapping[str, int] | None = None,
    dropout: Mapping[str, float | Tensor] | None = None,
    want: str | Collection[str] | None = None,
    trace: bool = True,
    terms: bool = False,
    generator: torch.Generator | None = None,
    update: Update = MIRROR,
    fusions: Collection[Fusion] | None = None,
) -> Solution:
    """Minimise the energy over everything that is not given, one block update after another.

    Args:
        graph: the declaration.
        given: observed variables (and constants without a value) by name, shape ``(batch, *axes)``; ``Partial`` for some entries.
        order: the blocks of a round: names, ``Block``, ``ForwardBackward``, ``RandomOrder``. By distance from what is given if left out.
        iterations: how many rounds; a range draws the number. 1 by default, or 1000 with ``until``.
        until: stop after the round in which no entry changed by more than this.
        initial: first values by name: a tensor, "uniform", "random", or "zero" (the default: absent, its messages cost nothing).
        lengths: for ragged axes by name, the length of each batch element, shape ``(batch,)``. Padding is left out exactly.
        sizes: of axes that follow neither from the declaration nor from what is given.
        dropout: by variable, a probability or a mask of shape ``(batch, *axes)``, held fixed over the run as part of the energy.
        want: check that these variables can be reached from what is given.
        trace: record the energy after each update.
        terms: record the share of each regularizer and each factor as well; costs their energies in each update.
        generator: of random orders, initial values and dropout.
        update: what is done with the exact minimiser of a block: ``Mirror()`` takes it, ``Damped(step)`` goes part of the way.
        fusions: rules that compute the messages of several factors at once, up to rounding with the same sum; those of
            the graph by default, ``()`` for none.

    Returns:
        Values of all variables, the energies, and a status; divergence ends the run with a status and finite values. They
        share no memory with what was given, nor with one another.

    Raises:
        ObservationError: for values that do not fit the declaration.
        InferenceError: for an order, a number of iterations or a want that makes no sense, and for factors without an energy.
        DeclarationError: for fusions of another graph.

    Example:
        >>> out = unn.infer(g, {"X": x}, order=["H", "Y"], iterations=3)
        >>> out["Y"], out.energy, out.converged
    """
    if not isinstance(graph, Declaration):
        raise InferenceError(f"infer takes a unn.FactorGraph first, got {type(graph).__name__}.")
    check_generator(generator)
    check_update(update)
    chosen_fusions = choose_fusions(graph, fusions)
    if not isinstance(trace, bool) or not isinstance(terms, bool):
        raise InferenceError(f"trace and terms are True or False, got {trace!r} and {terms!r}.")
    if not isinstance(given, Mapping):
        raise ObservationError(f"given: a mapping from names to tensors such as {{'X': x}}, got {type(given).__name__}.")
    limit = round_limit(iterations, until, generator)
    partial = [name for name, value in given.items() if isinstance(value, Partial)]
    fixed = [name for name in given if name not in partial]
    if want is not None:
        if not isinstance(want, (str, Collection)):
            raise InferenceError(f"want: a name or a list of names, got {want!r}.")
        check_reach(graph, given, fixed, [want] if isinstance(want, str) else want)
    plan = Plan.of(graph, fixed)
    evidence = collect_evidence(graph, given, initial, lengths, sizes, dropout, generator)
    if all(name in fixed for name in graph.variables):
        raise InferenceError(f"graph {graph.name!r}: every variable is given, so nothing is left to infer; leave out the ones you want.")
    chosen = as_order(default_order(graph, given, fixed) if order is None else order)
    check_order(graph, chosen, fixed, [*partial, *(initial or {})])
    require_inferred_parts(evidence, chosen.names, initial or {})
    state = State(plan, evidence, rule=update, fusions=chosen_fusions)
    record = Energies(state) if trace else None
    shares = Terms(state) if terms else None

    schedule: list[Step] = []
    every = steps_by_round(plan, chosen, evidence.shapes, evidence.like.device, generator)
    status, message, rounds = Status.LIMIT, "", 0
    diverged: Divergence | None = None
    while rounds < limit and status is Status.LIMIT and not state.all_frozen:
        before = state.snapshot()
        steps = next(every)
        schedule += steps
        rounds += 1
        divergence = _run_round(state, before, steps, rounds, record, shares)
        diverged = diverged or divergence
        if not state.all_frozen:
            status, message = judge_convergence(state, before, steps, rounds, until)
    if status is Status.LIMIT:
        message = stopped_early_message(state, rounds)
        status = Status.STOPPED_EARLY if message else Status.LIMIT
    message = message or limit_message(rounds, until)
    if diverged is not None:
        status, message = diverged.status, diverged.message("" if state.all_frozen else message)

    taken = input_storages(evidence, initial or {})
    preactivations = {name: state.resulting_preactivation(name) for name in state.preactivations}
    flags = [name in state.raw for name in graph.variables]
    values = dict(zip(graph.variables, separate([state.result(name) for name in graph.variables], taken, flags)))
    flags = [name in state.raw for name in preactivations]
    preactivations = dict(zip(preactivations, separate(preactivations.values(), taken, flags)))
    return Solution(
        values=values,
        preactivations=preactivations,
        energy=None if record is None else record.stacked()["energy"],
        terms=None if shares is None else shares.stacked(),
        schedule=tuple(map(str, schedule)),
        rounds=rounds,
        status=status,
        message=message,
    )


def _run_round(
    state: State, before: Snapshot, steps: Sequence[Step], rounds: int, record: Energies | None, shares: Terms | None
) -> Divergence | None:
    """Run a round; batch elements that diverge in it go back to their values before it and stay there.

    Returns:
        The first divergence; None if there is none.
    """
    marks = None if record is None else record.mark(), None if shares is None else shares.mark()
    energies: dict[str, list[Tensor]] = {}
    first: Divergence | None = None
    while True:
        for step in steps:
            old = state.update(step)
            if record is not None:
                record.record(step, old)
            if shares is not None:
                shares.record(step, old)
        if record is not None and first is not None and state.frozen is not None:
            record.overwrite(energies, state.frozen)
        divergence = find_divergence(state, before, steps, rounds)
        if divergence is None:
            return first
        first = first or divergence
        state.freeze(divergence.elements, before)
        if state.all_frozen:
            return first
        if record is not None and marks[0] is not None:
            energies = record.rewind(marks[0])
        if shares is not None and marks[1] is not None:
            shares.rewind(marks[1])


def round_limit(iterations: int | range | None, until: float | None, generator: torch.Generator | None) -> int:
    """The number of rounds to run.

    Raises:
        InferenceError: for fewer than one, an empty range, or a tolerance that is not positive.
    """
    if until is not None:
        number = isinstance(until, (numbers.Real, np.floating)) and not isinstance(until, (bool, np.bool_))
        if not number or not 0 < until < math.inf:
            raise InferenceError(f"until: the tolerance must be a finite number > 0, got {until!r}.")
    if iterations is None:
        return 1 if until is None else ROUND_CAP
    if isinstance(iterations, range):
        if not len(iterations) or min(iterations) < 1:
            raise InferenceError(f"iterations: {iterations} must hold at least one number, all >= 1; range(1, 6) draws from 1 to 5.")
        place = "cpu" if generator is None else generator.device
        return iterations[int(torch.randint(len(iterations), (), generator=generator, device=place))]
    if isinstance(iterations, np.integer):
        iterations = int(iterations)
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise InferenceError(f"iterations: must be a whole number >= 1 or a range such as range(1, 6), got {iterations!r}.")
    return iterations
