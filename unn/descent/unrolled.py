"""Unrolled inference as a module to train."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Self

import torch
from torch import Tensor, nn

from ..cache import BoundedCache
from ..errors import ConvergenceWarning, DivergenceError, InferenceError, unknown
from ..graph.boundedness import boundedness_of
from ..graph.declaration import Declaration
from ..graph.fusion import Fusion
from ..graph.partial import Partial
from .checks import check_generator, check_readable, choose_fusions, describe_bad_parameters
from .collect import collect_evidence, require_inferred_parts
from .conditional_gradient import MAX_STEPS
from .equilibrium import Equilibrium
from .evidence import Initial
from .gradients import UNROLL, Gradient, Implicit, Unroll
from .orders import Block, Coloured, Greedy, Item, Listed, Order, as_order
from .ownership import input_storages, separate, separate_sum
from .plan import Plan, PlannedUpdate
from .reach import check_order, check_reach, default_order
from .rounds import ROUND_CAP, UntilRest, round_limit, run_rounds
from .schedule import live_steps, mark_reuse, round_of, steps_by_round
from .state import State
from .updates import MIRROR, Sample, Update, check_update
from .verdict import unfinished_blocks


class Unrolled(nn.Module):
    """Coordinate descent on a graph as a feed-forward module with tied weights.

    This is Lemma 1 of the undirected-network paper. Gradients are exact by default: they flow through every
    update that was run. Updates that cannot influence what is wanted are left out. An update that the inner
    solver cannot finish raises ``unn.ConvergenceWarning``.

    Args:
        graph: the declaration; its parameters become those of this module.
        given: the observed variable, or several in the order of the call's arguments.
        want: the variable to return, or several.
        order: as in ``infer``.
        iterations: rounds; a range draws the number anew for each call in training, and takes its middle in
            evaluation. 1 by default, or at most 1000 with ``until``.
        initial: first values by name ("uniform", "random", or a tensor); absent by default.
        dropout: by variable, a probability; masks are drawn once a call, in training only.
        check_values: in each call check observations for NaN and for their domain, masks and lengths for
            their extent, and what is wanted for NaN and infinity (never inside ``torch.compile``). The checks
            wait for the device; without them exact updates wait for nothing.
        until: stop after the round in which no entry of an updated variable changed by more than this, each
            batch element by itself; gradients are those of the rounds that were run. The number of rounds
            then depends on the values, so that such a network can be neither compiled nor exported. If the
            last round still changes more, ``unn.ConvergenceWarning``.
        update: as in ``infer``.
        gradient: how gradients come back: ``Unroll()`` through every update, ``Truncate(rounds)`` through the
            last rounds alone, ``Checkpoint(rounds)`` through all of them from less memory,
            ``Implicit(tolerance)`` at the fixed point of up to ``iterations`` rounds (1000 by default); with
            ``until``, ``Unroll()``.
        fusions: as in ``infer``; those that the graph has when the network is made by default.

    Raises:
        InferenceError: for invalid names, orders or iterations, or a want that cannot be reached.
        DeclarationError: for fusions of another graph.

    Example:
        >>> net = unn.Unrolled(g, given="X", want="Y", order=["H", "Y"], iterations=3)
        >>> net(x).shape
        torch.Size([64, 10])
    """

    def __init__(
        self,
        graph: Declaration,
        given: str | Sequence[str],
        want: str | Sequence[str],
        order: Order | Sequence[Item] | str | None = None,
        iterations: int | range | None = None,
        initial: Initial | None = None,
        dropout: Mapping[str, float] | None = None,
        check_values: bool = True,
        until: float | None = None,
        update: Update = MIRROR,
        gradient: Gradient = UNROLL,
        fusions: Collection[Fusion] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(graph, Declaration):
            raise InferenceError(f"Unrolled takes a unn.FactorGraph first, got {type(graph).__name__}.")
        for option, names in (("given", given), ("want", want)):
            if not isinstance(names, (str, Sequence)) or not names:
                raise InferenceError(f"{option}: the name of a variable or a list of names, got {names!r}.")
        for option, mapping in (("initial", initial), ("dropout", dropout)):
            if mapping is not None and not isinstance(mapping, Mapping):
                raise InferenceError(f"{option}: a mapping by name such as {{'H': ...}}, got {mapping!r}.")
        for name in dropout or {}:
            if name not in graph.variables:
                raise InferenceError(
                    f"dropout: graph {graph.name!r}: " + unknown("variable", name, graph.variables)
                )
        # "graph" would clash with the attribute of that name which every module of torch.export has
        self.declaration = graph
        self.register_load_state_dict_pre_hook(_rename_earlier_keys)
        self.given = (given,) if isinstance(given, str) else tuple(given)
        self.want = (want,) if isinstance(want, str) else tuple(want)
        self._single = isinstance(want, str)
        for name in self.given:
            if name not in graph.arrays:
                raise InferenceError(
                    f"given: graph {graph.name!r}: " + unknown("variable", name, graph.variables)
                )
            if self.given.count(name) > 1:
                raise InferenceError(
                    f"given: variable {name!r} is listed twice; each input is one argument of the call."
                )
        self.order = as_order(default_order(graph, self.given, self.given) if order is None else order)
        # a given variable that the order updates is one that calls observe in part
        fixed = [name for name in self.given if name not in self.order.names]
        check_reach(graph, self.given, fixed, self.want)
        check_order(graph, self.order, fixed, list(initial or {}))
        for name in self.want:
            if name not in self.order.names:
                raise InferenceError(
                    f"want: variable {name!r} is not in the order {list(self.order.names)}, so it is never "
                    "inferred; add it."
                )
        check_update(update)
        if not isinstance(gradient, Gradient):
            raise InferenceError(
                "gradient: an object such as Unroll(), Truncate(1), Checkpoint() or Implicit(), got "
                f"{gradient!r}."
            )
        if iterations is None and isinstance(gradient, Implicit):
            iterations = ROUND_CAP
        self.iterations = round_limit(iterations, until, None) if iterations is None else iterations
        # a generator of its own: networks that are built later must not change what a seed draws
        round_limit(iterations, until, torch.Generator())
        if isinstance(gradient, Implicit) and isinstance(update, Sample):
            raise InferenceError(
                "gradient: samples have no fixed point; Implicit() needs Mirror() or Damped()."
            )
        if isinstance(self.order, Greedy) and not isinstance(gradient, Unroll):
            raise InferenceError(
                f"gradient: {gradient} needs the same updates in every batch element, and Greedy chooses "
                "them by their values; use Unroll()."
            )
        if until is not None and not isinstance(gradient, Unroll):
            raise InferenceError(
                f"gradient: {gradient} needs to know the number of rounds, which until= leaves open; give "
                "iterations= instead."
            )
        self.update, self.gradient = update, gradient
        self.fusions = choose_fusions(graph, fusions)
        self.until = until
        self.initial: dict[str, Tensor | str] = dict(initial or {})
        self.dropout = dict(dropout or {})
        self.check_values = check_values
        self._has_blocks = isinstance(self.order, (Listed, Coloured)) and any(
            isinstance(item, Block) for item in self.order.items
        )
        self.equilibrium: Equilibrium | None = None
        self._live: BoundedCache[object, list[PlannedUpdate]] = BoundedCache(64)
        Plan.of(graph, fixed).prepare()
        if isinstance(gradient, Implicit):
            verdict = boundedness_of(graph, self.given)
            if verdict.bounded is False:
                raise InferenceError(f"gradient: Implicit() needs a fixed point. The energy: {verdict}")

    @property
    def graph(self) -> Declaration:
        """The declaration."""
        return self.declaration

    def forward(
        self,
        *inputs: Tensor | Partial,
        lengths: Mapping[str, Tensor] | None = None,
        iterations: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """The wanted values, shape ``(batch, *axes)`` each.

        Args:
            inputs: the observed variables, in the order of ``given``.
            lengths: for ragged axes by name, shape ``(batch,)``.
            iterations: another number of rounds for this call.
            generator: of random orders, numbers of rounds, initial values, dropout and samples.

        Raises:
            ObservationError: for values that do not fit the declaration.
        """
        state, rounds = self._start(inputs, lengths, iterations, generator, recorded=())
        self._run(state, rounds, generator, takes_sums=False)
        return self._checked(self._read(state, preactivations=False))

    def preactivations(
        self,
        *inputs: Tensor | Partial,
        lengths: Mapping[str, Tensor] | None = None,
        iterations: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """The sums of messages at the last update of what is wanted: logits, for ``Entropy``.

        Arguments as of a call.

        Raises:
            ObservationError: for values that do not fit the declaration.
            InferenceError: for batch elements for which a greedy order has not chosen what is wanted.
        """
        state, rounds = self._start(inputs, lengths, iterations, generator, recorded=self.want)
        self._run(state, rounds, generator, takes_sums=True)
        if isinstance(self.order, Greedy):
            self._require_sums(state)
        return self._checked(self._read(state, preactivations=True))

    def rounds(
        self,
        *inputs: Tensor | Partial,
        preactivations: bool = False,
        lengths: Mapping[str, Tensor] | None = None,
        iterations: int | None = None,
        generator: torch.Generator | None = None,
    ) -> list[tuple[Tensor, ...]]:
        """The wanted values after each round, or the sums of messages at their last updates.

        Args:
            inputs, lengths, iterations, generator: as of a call.
            preactivations: whether to return sums of messages.

        Raises:
            InferenceError: with ``until``, a greedy order or a gradient other than ``Unroll()``.
        """
        if self.until is not None or isinstance(self.order, Greedy) or not isinstance(self.gradient, Unroll):
            raise InferenceError(
                "rounds: every round is returned and differentiated, which needs a number of rounds, an "
                f"order that does not depend on the values, and gradient=Unroll(); got until={self.until}, "
                f"order={self.order}, gradient={self.gradient}."
            )
        recorded = self.want if preactivations else ()
        state, count = self._start(inputs, lengths, iterations, generator, recorded)
        steps = self._steps(state.plan, state, count, generator, prunes=False)
        result = []
        for _, updates in groupby(steps, lambda step: step.round):
            run_rounds(state, [list(updates)])
            result.append(tuple(self._read(state, preactivations)))
        self._warn_unfinished(state)
        for values in result:
            self._checked(values)
        return result

    def _read(self, state: State, preactivations: bool) -> list[Tensor]:
        """What is wanted of a state: values, or sums of messages, in storage of their own."""
        raw = [name in state.raw for name in self.want]
        if not preactivations:
            taken = input_storages(state.evidence, self.initial)
            return separate([state.result(name) for name in self.want], taken, raw)
        sums = [state.resulting_preactivation(name) for name in self.want]
        return [separate_sum(t, raw=own) for t, own in zip(sums, raw, strict=True)]

    def _require_sums(self, state: State) -> None:
        """Check that every batch element has updated what is wanted, in a greedy order."""
        for name in self.want:
            sums, batch = state.preactivations.get(name), state.evidence.batch
            missing = batch
            if sums is not None:
                finite = state.value(name).isfinite().flatten(1).all(1)
                missing = int((sums.isnan().flatten(1).any(1) & finite).sum())
            if missing:
                raise InferenceError(
                    f"preactivations: the greedy order has not chosen variable {name!r} in {missing} of "
                    f"{batch} batch elements, which have no sum of messages; raise iterations, or use "
                    "another order."
                )

    def _checked(self, results: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        """One result, or several, finite."""
        if self.check_values and not torch.compiler.is_compiling():
            self._check_finite(results)
        return results[0] if self._single else tuple(results)

    def _check_finite(self, results: Sequence[Tensor]) -> None:
        # parameters may be vmapped where the inputs are not
        check_readable(results)
        for name, x in zip(self.want, results, strict=True):
            least, most = torch.aminmax(x.detach())
            if math.isfinite(float(least)) and math.isfinite(float(most)):
                continue
            bad = int((~x.detach().isfinite()).reshape(len(x), -1).any(1).sum())
            fixed = [other for other in self.given if other not in self.order.names]
            raise DivergenceError(
                f"want: variable {name!r} is NaN or infinite in {bad} of {len(x)} batch elements. "
                f"{describe_bad_parameters(self.graph)} The energy: {boundedness_of(self.graph, fixed)} "
                "Run unn.infer on the same values to find the update at which it happened."
            )

    def _run(self, state: State, rounds: int, generator: torch.Generator | None, takes_sums: bool) -> None:
        """Run all rounds; with ``takes_sums`` the last update may be left at its sum of messages."""
        if self.until is not None:
            self._run_until(state, rounds, self.until, generator)
        elif isinstance(self.order, Greedy):
            run_rounds(state, islice(steps_by_round(state, self.order), rounds))
        else:
            steps = self._steps(state.plan, state, rounds, generator)
            last = takes_sums and state.closed_form(steps[-1])
            self.equilibrium = self.gradient.run(state, steps, receive_last=last)
        self._warn_unfinished(state)

    def _start(
        self,
        inputs: Sequence[Tensor | Partial],
        lengths: Mapping[str, Tensor] | None,
        iterations: int | None,
        generator: torch.Generator | None,
        recorded: Sequence[str],
    ) -> tuple[State, int]:
        """The state before the first round, and the number of rounds."""
        if len(inputs) != len(self.given):
            raise InferenceError(
                f"this network takes {len(self.given)} inputs ({', '.join(self.given)}), got {len(inputs)}."
            )
        given = dict(zip(self.given, inputs, strict=True))
        for name, value in given.items():
            if name in self.order.names and not isinstance(value, Partial):
                raise InferenceError(
                    f"variable {name!r} is in the order, so it must be given in part, as unn.Partial({name}, "
                    "mask)."
                )
        fixed = [name for name, value in given.items() if not isinstance(value, Partial)]
        check_generator(generator)
        readable = self.check_values and not torch.compiler.is_compiling()
        if readable:
            check_readable(inputs)
        graph = self.declaration
        evidence = collect_evidence(
            graph,
            given,
            self.initial,
            lengths,
            dropout=self.dropout if self.training else None,
            generator=generator,
            check_values=readable,
            check_masks=self.check_values,
        )
        require_inferred_parts(evidence, self.order.names, self.initial, readable=readable)
        plan = Plan.of(graph, fixed)
        state = State(plan, evidence, recorded, self.update, self.fusions, generator)
        return state, self._rounds(iterations, generator)

    def _warn_unfinished(self, state: State) -> None:
        """Warn of blocks that the inner solver has not minimised."""
        blocks = unfinished_blocks(state) if state.unfinished else ""
        if blocks:
            warnings.warn(
                f"the inner solver has not reached the minimum of {blocks} in {MAX_STEPS} steps, so that "
                "values and gradients of this call are those of an update that is not exact; raise "
                "iterations, or check graph.boundedness() for whether there is a minimum.",
                ConvergenceWarning,
                stacklevel=6,
            )

    def _run_until(self, state: State, rounds: int, until: float, generator: torch.Generator | None) -> None:
        """Run rounds until none changes more than the tolerance."""
        if torch.compiler.is_compiling():
            raise InferenceError(
                "until: the number of rounds would depend on the values, which a compiled or exported "
                "network cannot follow; leave out until=, and fix the number with iterations=."
            )
        watch = UntilRest(state, until)
        every = steps_by_round(state, self.order, generator, until)
        run_rounds(state, islice(every, rounds), watch)
        if watch.at_rest:
            return
        change = math.inf if watch.change is None else watch.change
        warnings.warn(
            f"after {rounds} rounds some entry still changes by {change:.2g}, more than until={until:g}; "
            "raise iterations, or check graph.boundedness() for whether the energy has a minimum.",
            ConvergenceWarning,
            stacklevel=5,
        )

    def _rounds(self, iterations: int | None, generator: torch.Generator | None) -> int:
        if iterations is not None:
            return round_limit(iterations, None, generator)
        if isinstance(self.iterations, range) and not self.training:
            return self.iterations[len(self.iterations) // 2]
        if isinstance(self.iterations, int):
            return self.iterations
        return round_limit(self.iterations, None, generator)

    def _steps(
        self,
        plan: Plan,
        state: State,
        rounds: int,
        generator: torch.Generator | None,
        prunes: bool = True,
    ) -> list[PlannedUpdate]:
        """The updates of all rounds; with ``prunes`` those that can influence the last values of what is
        wanted."""
        device, shapes = state.evidence.like.device, state.evidence.shapes
        if not isinstance(self.order, (Listed, Coloured)):
            return self._schedule(
                plan, [plan.steps(self.order.round(generator), shapes, device) for _ in range(rounds)], prunes
            )
        # only the nodes of steps depend on the device and on sizes
        nodes = self._has_blocks or "coloured" in plan.update_kinds.values()
        key = (plan, rounds, prunes, (device, tuple(shapes.items())) if nodes else None)
        order = self.order
        return self._live.get_or_make(
            key, lambda: self._schedule(plan, [round_of(plan, order, shapes, device)] * rounds, prunes)
        )

    def _schedule(
        self, plan: Plan, rounds: Sequence[Sequence[PlannedUpdate]], prunes: bool
    ) -> list[PlannedUpdate]:
        steps = [replace(step, round=number) for number, items in enumerate(rounds) for step in items]
        if prunes and not self.gradient.keeps_all_rounds:
            steps = live_steps(plan, steps, self.want, self.update.exact)
        return mark_reuse(plan, steps, cyclic=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Also move initial values, except learnable ones, which belong to modules of their own."""
        self.initial = {
            name: fn(x) if isinstance(x, Tensor) and not x.requires_grad else x
            for name, x in self.initial.items()
        }
        super()._apply(fn, recurse)
        return self

    def extra_repr(self) -> str:
        names = f"{', '.join(self.given)} -> {', '.join(self.want)}"
        return f"{names}, order={self.order}, iterations={self.iterations}"


def _rename_earlier_keys(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Accept states of earlier versions, in which the declaration was the submodule ``graph``."""
    for key in [key for key in state if key.startswith(f"{prefix}graph.")]:
        state[f"{prefix}declaration.{key.removeprefix(f'{prefix}graph.')}"] = state.pop(key)
