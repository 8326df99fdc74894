"""Block coordinate descent: any variables from any others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import InferenceError, ObservationError, suggest
from ..graph.declaration import Declaration
from ..graph.fusion import Fusion
from ..graph.partial import Partial
from .checks import check_generator, choose_fusions
from .collect import collect_evidence, require_inferred_parts
from .descend import Stopping, descend
from .equilibrium import SOLVERS, Solver
from .evidence import Given, Initial
from .orders import Greedy, Item, Order, as_order
from .ownership import input_storages, separate
from .plan import Plan
from .reach import check_order, check_reach, default_order
from .rounds import round_limit
from .solution import Solution
from .state import State
from .updates import MIRROR, Sample, Update, check_update


def infer(
    graph: Declaration,
    given: Given,
    *,
    order: Order | Sequence[Item] | str | None = None,
    iterations: int | range | None = None,
    until: float | None = None,
    solver: Solver = "rounds",
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
        given: observed variables (and constants without a value) by name, shape ``(batch, *axes)``;
            ``Partial`` for some entries.
        order: the blocks of a round: names, ``Block``, ``ForwardBackward``, ``RandomOrder``, ``Greedy``,
            ``Coloured``. By distance from what is given if left out.
        iterations: how many rounds; a range draws the number. 1 by default, or 1000 with ``until``.
        until: stop after the round in which no entry changed by more than this. Each batch element stops by
            itself. When half of those that are left have stopped, the others go on in a smaller batch, unless
            there is dropout or evidence on structures.
        solver: "rounds", or "anderson" to start each round from an extrapolation of those before it, where
            that lowers the energy (Anderson, 1965); needs ``until``. Its results have no derivatives, which
            ``Implicit`` has, and are those of an element alone up to the tolerance.
        initial: first values by name: a tensor, "uniform", "random", or "zero" (the default: absent, its
            messages cost nothing).
        lengths: for ragged axes by name, the length of each batch element, shape ``(batch,)``. Padding is
            left out exactly.
        sizes: of axes that follow neither from the declaration nor from what is given.
        dropout: by variable, a probability or a mask of shape ``(batch, *axes)``, held fixed over the run as
            part of the energy. Observed entries are not dropped.
        want: check that these variables can be reached from what is given.
        trace: record the energy after each update.
        terms: record the share of each regularizer and each factor as well; costs their energies in each
            update.
        generator: of random orders, initial values, dropout and samples.
        update: what is done with the exact minimiser of a block: ``Mirror()`` takes it, ``Damped(step)`` goes
            part of the way; ``Sample(temperature)`` draws the block instead.
        fusions: rules that compute the messages of several factors at once, up to rounding with the same sum;
            those of the graph by default, ``()`` for none.

    Returns:
        Values of all variables, the energies, and a status; divergence ends the run with a status and finite
        values. They share no memory with what was given, nor with one another.

    Raises:
        ObservationError: for values that do not fit the declaration.
        InferenceError: for an order, a number of iterations or a want that is invalid, and for factors
            without an energy.
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
        raise ObservationError(
            f"given: a mapping from names to tensors such as {{'X': x}}, got {type(given).__name__}."
        )
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
        raise InferenceError(
            f"graph {graph.name!r}: every variable is given, so nothing is left to infer; leave out the ones "
            "you want."
        )
    chosen = as_order(default_order(graph, given, fixed) if order is None else order)
    check_order(graph, chosen, fixed, [*partial, *(initial or {})])
    require_inferred_parts(evidence, chosen.names, initial or {})
    _check_solver(solver, until, chosen, update)
    state = State(plan, evidence, rule=update, fusions=chosen_fusions, generator=generator)
    # rounds that start from an extrapolation have other derivatives than the fixed point
    with torch.set_grad_enabled(torch.is_grad_enabled() and solver == "rounds"):
        run = descend(state, chosen, Stopping(limit, until, solver), trace, terms, generator)
    status, message = run.verdict()

    taken = input_storages(evidence, initial or {})
    preactivations = {name: state.resulting_preactivation(name) for name in state.preactivations}
    flags = [name in state.raw for name in graph.variables]
    values = dict(
        zip(graph.variables, separate([state.result(name) for name in graph.variables], taken, flags))
    )
    flags = [name in state.raw for name in preactivations]
    preactivations = dict(zip(preactivations, separate(preactivations.values(), taken, flags)))
    return Solution(
        values=values,
        preactivations=preactivations,
        energy=run.energy,
        terms=run.terms,
        schedule=tuple(map(str, run.schedule)),
        rounds=run.rounds,
        status=status,
        message=message,
    )


def _check_solver(solver: Solver, until: float | None, order: Order, update: Update) -> None:
    """Check that rounds can be accelerated.

    Raises:
        InferenceError: for an unknown solver, or one that these rounds do not allow.
    """
    if solver not in SOLVERS:
        raise InferenceError(f"solver={solver!r} is unknown.{suggest(str(solver), SOLVERS)}")
    if solver == "rounds":
        return
    if until is None:
        raise InferenceError(f"solver={solver!r} runs to a fixed point; give the tolerance, until=1e-6.")
    if isinstance(order, Greedy) or isinstance(update, Sample):
        what = "Greedy(), whose rounds are single updates" if isinstance(order, Greedy) else "Sample()"
        raise InferenceError(f"solver={solver!r} does not go with {what}; use solver='rounds'.")
