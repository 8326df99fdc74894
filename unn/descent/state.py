"""The state of a run: values, messages that are still valid, and the exact block update."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InferenceError
from ..graph.factor import EnergyFactor, Products
from ..graph.fusion import FusedMessages, Fusion, InferredRows
from ..regularizers import AlongAxis, Dropped, LogPartition
from ..regularizers.simplex import mirror_of_finite
from .conditional_gradient import minimise_block
from .evidence import Evidence
from .plan import Inlet, Plan, PlannedUpdate
from .updates import Mirror, Sample, Update


@dataclass(frozen=True)
class Snapshot:
    """The values and pre-activations of a state at one moment."""

    values: dict[str, Tensor]
    preactivations: dict[str, Tensor]


class State:
    """Values of all arrays and the messages between them.

    A variable without a value is a structural zero: multilinear messages with an absent operand are not
    computed at all. A message is cached until one of its operands changes; the sum of those that never change
    is computed once. What a fusion computes at once is received as one message.

    Args:
        plan: which messages reach which variable.
        evidence: what is fixed.
        recorded: the variables whose last pre-activations are wanted; all if None.
        rule: what an update does with the minimiser of its block.
        fusions: rules that compute the messages of several factors at once.
        generator: of rules that sample; torch's global one by default.

    Attributes:
        frozen: the batch elements that are at rest or diverged and are no longer updated, shape ``(batch,)``;
            None if there are none.
        raw: the variables whose last sum of messages is one message, just as its factor returned it.
        unfinished: for variables that the inner solver updates, the batch elements that it left without a
            minimum.
    """

    def __init__(
        self,
        plan: Plan,
        evidence: Evidence,
        recorded: Collection[str] | None = None,
        rule: Update | None = None,
        fusions: tuple[Fusion, ...] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        self.plan = plan
        self.rule = rule or Mirror()
        self._generator = generator
        self.evidence = evidence
        self._recorded = recorded
        self.values = dict(evidence.values)
        self.preactivations: dict[str, Tensor] = {}
        self.unfinished: dict[str, Tensor] = {}
        self.frozen: Tensor | None = None
        self._frozen_preactivations: dict[str, Tensor] = {}
        self.raw: set[str] = set()
        self._version = dict.fromkeys(plan.free, 0)
        self._static: dict[str, Tensor | None] = {}
        self._refreshable = self._refreshable_inlets() if evidence.free_rows else frozenset()
        self._cached: dict[int, tuple[tuple[int, ...], Tensor]] = {}
        self._products: Products = {}
        # entries that have no value yet although others of their variable have one
        self._absent: dict[str, Tensor] = {}
        self._fusions = fusions
        self._reception = plan.reception(fusions)
        self._messages = self._start_fusions()
        for name in plan.free:
            if name in self.values:
                if name in evidence.observed and evidence.values[name] is evidence.observed[name][0]:
                    self._absent[name] = ~evidence.observed[name][1]
                continue
            regularizer = evidence.regularizers[name]
            if name in plan.curved_neighbours or plan.update_kinds[name] == "inner solver":
                zero = evidence.like.new_zeros(evidence.batch, *evidence.shapes[name])
                self.values[name] = regularizer.mirror(zero, evidence.masks.get(name))
            elif plan.update_kinds[name] == "coloured":
                self.values[name] = evidence.like.new_zeros(evidence.batch, *evidence.shapes[name])
                self._absent[name] = self._nowhere(name)

    def _nowhere(self, name: str) -> Tensor:
        """The mask of a variable of which no entry has a value."""
        shape = (1, *self.evidence.shapes[name])
        return torch.ones(shape, dtype=torch.bool, device=self.evidence.like.device)

    def _refreshable_inlets(self) -> frozenset[int]:
        """The messages of which single rows can be computed anew after an update of single rows."""
        free_rows = self.evidence.free_rows
        return frozenset(
            inlet.key
            for name in self.plan.free
            for inlet in self.plan.changing[name]
            if len(inlet.sources) == 1
            and (rows := free_rows.get(inlet.sources[0])) is not None
            and inlet.shared is not None
            and inlet.shared.row_aligned(name, inlet.sources[0], len(rows) - 1)
        )

    def update(self, step: PlannedUpdate) -> Tensor | None:
        """Update one block from the minimiser of the energy in it, grad Psi*(sum of messages).

        Returns:
            The value before; None if the variable was absent.
        """
        name = step.name
        old = self.values.get(name)
        rows = self._update_rows(step)
        if rows is not None:
            self.values[name] = rows
            self._version[name] += 1
            return old
        if self.closed_form(step):
            x = self._activate(name, self.receive(step), self.evidence.masks.get(name))
        elif isinstance(self.rule, Sample):
            raise InferenceError(
                f"update: variable {name!r} has no closed form given the others, so that Sample() cannot "
                "draw it; unn.gibbs.sample moves such variables by Langevin dynamics."
            )
        else:
            x = minimise_block(self, step)
        if not self.rule.exact:
            x = self._move(step, old, x)
        shape = (self.evidence.batch, *self.evidence.shapes[name])
        if x.shape != shape:
            x = x.expand(shape)
        self.values[name] = self.hold(step, x)
        self._version[name] += 1
        return old

    def _move(self, step: PlannedUpdate, old: Tensor | None, minimiser: Tensor) -> Tensor:
        """The new value by the rule; entries that had none take the minimiser."""
        name = step.name
        moved = self.rule.move(old, minimiser)
        absent = self._absent.get(name)
        if absent is not None:
            moved = torch.where(absent, minimiser, moved)
        if step.nodes is None and step.rows is None:
            self._absent.pop(name, None)
            return moved
        if absent is None and old is None:
            absent = self._nowhere(name)
        if absent is not None:
            untouched = torch.zeros_like(absent) if step.nodes is None else ~step.nodes
            if step.rows is not None:
                untouched = untouched | ~_along(step.rows, untouched)
            self._absent[name] = absent & untouched
        return moved

    def replace(self, step: PlannedUpdate, x: Tensor) -> None:
        """Give a block a value that was computed elsewhere, shape ``(batch, *axes)``; observed entries and
        other nodes stay."""
        self.values[step.name] = self.hold(step, x)
        self._version[step.name] += 1

    def value(self, name: str) -> Tensor:
        """The value that the engine computes with: zeros if the variable is absent."""
        x = self.values.get(name)
        return (
            self.evidence.like.new_zeros(self.evidence.batch, *self.evidence.shapes[name]) if x is None else x
        )

    def result(self, name: str) -> Tensor:
        """The value of a variable for the caller: zeros if it is absent, padding as it was given."""
        x = self.value(name)
        if name in self.evidence.padding:
            given, where = self.evidence.padding[name]
            x = torch.where(where, given, x)
        return x

    def present_factors(self, name: str) -> list[EnergyFactor]:
        """The factors of a variable whose other variables have values; the energy of the rest is zero."""
        return [
            f
            for f in self.plan.factors_of(name)
            if all(other in self.values or other == name for other in f.variables)
        ]

    def snapshot(self) -> Snapshot:
        """The current values and pre-activations, to go back to."""
        return Snapshot(dict(self.values), dict(self.preactivations))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to earlier values; cached messages are dropped."""
        self.values = dict(snapshot.values)
        self.preactivations = dict(snapshot.preactivations)
        self._drop_changing()

    def freeze(self, elements: Tensor, before: Snapshot) -> None:
        """Go back to earlier values and hold these batch elements there from now on.

        Args:
            elements: boolean, shape ``(batch,)``.
            before: the values to go back to.
        """
        self._freeze_at(
            elements,
            {
                name: before.preactivations.get(name, torch.zeros_like(t)).detach()
                for name, t in self.preactivations.items()
            },
        )
        self.restore(before)

    def hold_at_rest(self, elements: Tensor) -> None:
        """Hold batch elements where they are from now on; boolean, shape ``(batch,)``."""
        self._freeze_at(elements, self.preactivations)

    def _freeze_at(self, elements: Tensor, preactivations: Mapping[str, Tensor]) -> None:
        """Update batch elements no more, with these pre-activations as their last ones."""
        for name, t in preactivations.items():
            last = t.expand(self.evidence.batch, *self.evidence.shapes[name])
            frozen = self._frozen_preactivations.get(name, torch.zeros_like(last))
            self._frozen_preactivations[name] = torch.where(_along(elements, last), last, frozen)
        self.frozen = elements if self.frozen is None else self.frozen | elements

    @property
    def all_frozen(self) -> bool:
        """Whether no batch element is updated any more."""
        return self.frozen is not None and bool(self.frozen.all())

    def keep_frozen(self, new: Tensor, old: Tensor | None) -> Tensor:
        """New values, and the old ones (0 if None) in frozen batch elements; shape ``(batch, ...)`` each."""
        if self.frozen is None:
            return new
        return torch.where(_along(self.frozen, new), 0 if old is None else old, new)

    def resulting_preactivation(self, name: str) -> Tensor:
        """The sum of messages at the last update (before rest or divergence), shape ``(batch, *axes)``."""
        t = self.preactivations[name].expand(self.evidence.batch, *self.evidence.shapes[name])
        return self.keep_frozen(t, self._frozen_preactivations.get(name))

    def _update_rows(self, step: PlannedUpdate) -> Tensor | None:
        """Update only the unobserved rows of a variable; None where all of it must be computed."""
        name = step.name
        rows = self.evidence.free_rows.get(name)
        if rows is None or not self.rule.exact or self.records(name) or step.rows is not None:
            return None
        if self.plan.static[name] or self.plan.update_kinds[name] != "closed form" or step.nodes is not None:
            return None
        regularizer = self.evidence.regularizers[name]
        if isinstance(regularizer, Dropped) or self._coupled_rows(name, len(rows) - 1):
            return None
        total: Tensor | None = None
        for inlet in self.plan.changing[name]:
            if any(source not in self.values for source in inlet.sources):
                continue
            message = None if inlet.shared is None else inlet.shared.message_rows(name, self.values, rows)
            if message is None:
                return None
            total = message if total is None else total + message
        if total is None:
            return None
        value = self.evidence.observed[name][0]
        return value.index_put(rows, self._activate(name, total, None).to(value.dtype))

    def _activate(self, name: str, t: Tensor, mask: Tensor | None) -> Tensor:
        """The mirror of a sum of messages; under autocast these may be of another dtype than the run."""
        regularizer = self.evidence.regularizers[name]
        if isinstance(self.rule, Sample):
            t = t.expand(self.evidence.batch, *t.shape[1:]).to(self.evidence.like.dtype)
            return self.rule.draw(regularizer, t, self.separate(name), mask, self._generator)
        fused = self._reception.fused.get(name)
        if fused is not None and fused.complete and mask is None and t.dtype == self.evidence.like.dtype:
            return mirror_of_finite(regularizer, t)
        if mask is not None and t.shape != mask.shape:
            t = t.expand(torch.broadcast_shapes(t.shape, mask.shape))
        if t.dtype != self.evidence.like.dtype and isinstance(regularizer, (AlongAxis, LogPartition)):
            # rounded to half precision, probabilities would not sum to one
            t = t.to(self.evidence.like.dtype)
        return regularizer.mirror(t, mask)

    def _coupled_rows(self, name: str, count: int) -> bool:
        """Does the regularizer tie entries of different rows?"""
        variable = self.plan.graph.variables[name]
        return any(
            axis in variable.axes[:count]
            for axis in self.evidence.regularizers[name].over_axes(variable.axes)
        )

    def receive(self, step: PlannedUpdate) -> Tensor:
        """The sum of all messages to a variable, recorded as its pre-activation where that is wanted."""
        t = self.preactivation(step)
        if self.records(step.name):
            self.record(step, t)
        return t

    def record(self, step: PlannedUpdate, t: Tensor) -> None:
        """Record the sum of messages at an update as the last one of the nodes and batch elements it updates.

        Batch elements that have not updated the variable have NaN.
        """
        before = self.preactivations.get(step.name)
        if step.nodes is not None and before is not None:
            t = torch.where(step.nodes, t, before)
        if step.rows is not None:
            t = torch.where(_along(step.rows, t), t, torch.nan if before is None else before)
        self.preactivations[step.name] = t

    def records(self, name: str) -> bool:
        """Is the last pre-activation of this variable wanted?"""
        return self._recorded is None or name in self._recorded

    def closed_form(self, step: PlannedUpdate) -> bool:
        """Is the energy of the factors affine in this block?"""
        how = self.plan.update_kinds[step.name]
        return how == "closed form" or (how == "coloured" and step.nodes is not None)

    def preactivation(self, step: PlannedUpdate) -> Tensor:
        """The sum of all messages to a variable, shape ``(batch, *axes)``; batch may be 1 if all agree."""
        name = step.name
        single = len(self._reception.static[name]) <= 1
        if name not in self._static:
            self._static[name] = self._static_sum(name)
        total = self._static[name]
        if name in self._reception.fused:
            fused = self._receive_fused(step)
            if fused is not None:
                single = False
                total = fused if total is None else fused + total
        for inlet in self._reception.changing[name]:
            received = self._receive(inlet, step)
            if received is None:
                continue
            single = total is None
            if total is None:
                total = received
            elif (
                inlet.shared is not None
                and inlet.shared.fresh_messages
                and inlet.key not in self._cached
                and not torch.is_grad_enabled()
                and not torch._C._are_functorch_transforms_active()
            ):
                total = received.add_(total)
            else:
                total = total + received
        (self.raw.add if single else self.raw.discard)(name)
        shape = self.evidence.shapes[name]
        if total is None:
            return self.evidence.like.new_zeros(1, *shape)
        # a regularizer that normalises must see every entry of a broadcast message
        return total if total.shape[1:] == shape else total.expand(-1, *shape)

    def separate(self, name: str) -> Tensor:
        """The sum of the messages to a variable that never change, shape ``(batch or 1, *axes)``."""
        if name not in self._static:
            self._static[name] = self._static_sum(name)
        total = self._static[name]
        zero = self.evidence.like.new_zeros(1, *self.evidence.shapes[name])
        return zero if total is None else total.to(zero.dtype) + zero

    def sum_static(self, names: Iterable[str]) -> None:
        """Compute the sums of those messages to some variables that never change, unless they are kept."""
        for name in names:
            if name not in self._static:
                self._static[name] = self._static_sum(name)
            fused = self._reception.fused.get(name)
            if fused is not None:
                self._messages[fused.number].sum_static((name,), self.values, self._version)

    def _static_sum(self, name: str) -> Tensor | None:
        total = None
        for inlet in self._reception.static[name]:
            message = self._compute(inlet, name)
            total = message if total is None else total + message
        return total

    def _receive_fused(self, step: PlannedUpdate) -> Tensor | None:
        """The messages that a fusion computes at once; None if their operands are absent."""
        fused = self._reception.fused[step.name]
        return self._messages[fused.number].to(step.name, self.values, self._version, fused.reused(step))

    def _start_fusions(self) -> list[FusedMessages]:
        if not self._reception.fusions:
            return []
        evidence = self.evidence
        inferred: dict[str, InferredRows] = {}
        for name, rows in evidence.free_rows.items():
            observed = evidence.observed[name][0]
            inferred[name] = InferredRows(observed, rows, initial=evidence.values[name] is not observed)
        return [fusion.start(evidence.batch, inferred) for fusion in self._reception.fusions]

    def detach_past(self, names: Collection[str], held: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Go on from values that earlier updates computed, which count as constant.

        All messages are computed again, and what no update computed is put in place once more, the observed
        entries and the nodes that are held: derivatives reach these.

        Args:
            names: of the variables that were updated.
            held: values of nodes that were not, and where they are, by variable.
        """
        for name in names:
            # derivatives in forward mode pass through what is computed without a graph
            self.values[name] = self.values[name].detach()
        for name, (value, where) in (*held.items(), *self.evidence.observed.items()):
            self.values[name] = torch.where(where, value, self.values[name])
        self._cached.clear()
        self._products.clear()
        self._static.clear()
        self._messages = self._start_fusions()

    def _drop_changing(self) -> None:
        """Drop the cached messages, except those that never change."""
        self._cached.clear()
        self._products.clear()
        self._messages = self._branched_fusions()

    def _branched_fusions(self) -> list[FusedMessages]:
        return [messages.branch() for messages in self._messages]

    @property
    def generator(self) -> torch.Generator | None:
        """Source of the draws of rules that sample; None for torch's global one."""
        return self._generator

    def branch(self, values: Mapping[str, Tensor]) -> State:
        """A state that goes on from other values of some variables; it shares messages that never change."""
        branch = copy.copy(self)
        branch.values = {**self.values, **values}
        branch.preactivations, branch.unfinished = dict(self.preactivations), dict(self.unfinished)
        branch.raw, branch._absent = set(self.raw), dict(self._absent)
        branch._version, branch._static = dict(self._version), dict(self._static)
        branch._cached, branch._products = {}, {}
        branch._messages = self._branched_fusions()
        return branch

    def part(self, rows: Tensor) -> State:
        """A state of some batch elements, which goes on from their values; the evidence must be divisible.

        Args:
            rows: their numbers, shape ``(count,)``.
        """
        part = State(
            self.plan, self.evidence.part(rows), self._recorded, self.rule, self._fusions, self._generator
        )
        for name, x in self.values.items():
            if name in self.plan.free:
                part.values[name] = x[rows]
        part.preactivations = {
            name: t[rows] if len(t) == self.evidence.batch else t for name, t in self.preactivations.items()
        }
        part.unfinished = {name: flags[rows] for name, flags in self.unfinished.items()}
        part._absent = {
            name: absent[rows] if len(absent) == self.evidence.batch else absent
            for name, absent in self._absent.items()
        }
        return part

    def take(self, part: State, rows: Tensor) -> None:
        """Go on from where some batch elements have arrived.

        Args:
            part: made by ``part``, and updated since.
            rows: the numbers of its elements, which are not frozen here.
        """
        batch = self.evidence.batch
        for name in part.values:
            if name in self.plan.free:
                self.values[name] = self.value(name).index_put((rows,), part.values[name])
        for name in part.preactivations:
            # a greedy order may not have updated it before the batch was divided
            t = self.preactivations.get(name, torch.full_like(self.value(name), torch.nan))
            t = t.expand(batch, *self.evidence.shapes[name])
            self.preactivations[name] = t.index_put((rows,), part.resulting_preactivation(name).to(t.dtype))
        for name, flags in part.unfinished.items():
            none = torch.zeros(batch, dtype=torch.bool, device=flags.device)
            self.unfinished[name] = self.unfinished.get(name, none).index_put((rows,), flags)
        for name, absent in self._absent.items():
            left = part._absent.get(name, torch.zeros_like(absent[:1]))
            whole = absent.expand(batch, *absent.shape[1:])
            self._absent[name] = whole.index_put((rows,), left.expand(len(rows), *left.shape[1:]))
        # a result of several parts is no message as a factor returned it
        self.raw -= set(part.preactivations)
        self._drop_changing()

    def adopt(
        self, branch: State, values: Mapping[str, Tensor], preactivations: Mapping[str, Tensor]
    ) -> None:
        """Go on from where a branch has arrived.

        Args:
            branch: made by ``branch``, and updated since.
            values: of the variables, in place of those of the branch.
            preactivations: likewise.
        """
        self.values.update(values)
        self.preactivations = dict(preactivations)
        self.unfinished, self.raw = dict(branch.unfinished), set(branch.raw)
        self._absent = dict(branch._absent)
        self._version = dict(branch._version)
        self._drop_changing()

    def _receive(self, inlet: Inlet, step: PlannedUpdate) -> Tensor | None:
        """A message: None if an operand is absent, the cached one if its operands have not changed."""
        for source in inlet.sources:
            if source not in self.values:
                return None
        stamp = tuple([self._version[source] for source in inlet.sources])
        cached = self._cached.pop(inlet.key, None)
        refreshable = inlet.key in self._refreshable
        if cached is not None and cached[0] == stamp:
            message = cached[1]
        elif cached is not None and refreshable:
            message = self._refresh(inlet, step.name, cached[1])
        else:
            message = self._compute(inlet, step.name)
        if step.reused is None or inlet.key in step.reused or refreshable:
            self._cached[inlet.key] = (stamp, message)
        return message

    def _refresh(self, inlet: Inlet, name: str, old: Tensor) -> Tensor:
        """A cached message with new values in the inferred rows of its partially observed source."""
        rows = self.evidence.free_rows[inlet.sources[0]]
        assert inlet.shared is not None
        fresh = inlet.shared.message_rows(name, self.values, rows)
        assert fresh is not None
        fresh = fresh.to(old.dtype)
        return old.index_put(rows, fresh)

    def _compute(self, inlet: Inlet, name: str) -> Tensor:
        if inlet.shared is not None and inlet.shared.shares_products:
            return inlet.shared.message_sharing(name, self.values, self.evidence.shapes[name], self._products)
        return inlet.factor.message(name, self.values, self.evidence.shapes[name])

    def hold(self, step: PlannedUpdate, x: Tensor) -> Tensor:
        """Keep what this step must not touch: other nodes and batch elements, and observed entries."""
        old = self.values.get(step.name)
        if step.nodes is not None:
            x = torch.where(step.nodes, x, 0 if old is None else old)
        if step.rows is not None:
            x = torch.where(_along(step.rows, x), x, 0 if old is None else old)
        if step.name in self.evidence.observed:
            value, where = self.evidence.observed[step.name]
            x = torch.where(where, value, x)
        return self.keep_frozen(x, old)


def _along(elements: Tensor, x: Tensor) -> Tensor:
    """Flags of batch elements with axes of size 1 for the others of x."""
    return elements.view(-1, *[1] * (x.ndim - 1))
