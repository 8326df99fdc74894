"""Undirected attention unrolled and fused: the numbers of the engine, from fewer passes over memory."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unn import Entropy, Factor, Unrolled
from unn.descent.evidence import Evidence, Initial
from unn.descent.orders import Item, Order
from unn.descent.plan import Plan, Step
from unn.descent.state import State
from unn.errors import DeclarationError
from unn.graph.arrays import Array

from .declare import UndirectedAttention

_MIXED = {"Q": "K", "K": "Q", "V": "H", "H": "V"}
"""To each of these, S sends itself times one other: S K, S' Q, S' H, S V."""

_OF_KEYS = ("K", "V")
"""To these, it sends S transposed."""

Stamp = tuple[int, ...]


class UnrolledAttention(Unrolled):
    """``Unrolled`` on a graph with undirected attention: the same numbers to rounding, in less time and memory.

    All messages to Q, K, V, S or H are made at once: a product is added to the projection where that is stored, what is observed is projected once
    for all rounds, and of what is observed in part only the rows that were inferred are projected anew. Other variables and factors of the graph
    run as in ``Unrolled``.

    Args:
        attention: declared by ``undirected_attention``; several if the graph has them.
        given, want, order, iterations, initial, dropout, check_values: as of ``Unrolled``.

    Raises:
        DeclarationError: for attentions of different graphs, or none.
        InferenceError: as ``Unrolled``.

    Example:
        >>> attention = undirected_attention(g, [X, P])
        >>> order = unn.ForwardBackward(attention.order, last="X")
        >>> net = UnrolledAttention(attention, given=["X", "P"], want="X", order=order, iterations=3)
        >>> completed = net(unn.Partial(x, known), positions)
    """

    def __init__(
        self,
        attention: UndirectedAttention | Sequence[UndirectedAttention],
        given: str | Sequence[str],
        want: str | Sequence[str],
        order: Order | Sequence[Item] | str | None = None,
        iterations: int | range = 1,
        initial: Initial | None = None,
        dropout: Mapping[str, float] | None = None,
        check_values: bool = True,
    ) -> None:
        attentions = (attention,) if isinstance(attention, UndirectedAttention) else tuple(attention)
        if not attentions or any(one.graph is not attentions[0].graph for one in attentions):
            raise DeclarationError("UnrolledAttention takes what undirected_attention(...) returns, or several of these for one graph.")
        super().__init__(attentions[0].graph, given, want, order, iterations, initial, dropout, check_values)
        self.attentions = attentions

    def _state(self, plan: Plan, evidence: Evidence, remember: Sequence[str]) -> State:
        return _State(plan, evidence, remember, self.attentions)


class _State(State):
    """A run in which the variables of attentions receive all messages of their attention at once.

    Args:
        plan: of the graph.
        evidence: what is fixed.
        remember: as of ``State``.
        attentions: of the graph.
    """

    def __init__(self, plan: Plan, evidence: Evidence, remember: Collection[str] | None, attentions: Sequence[UndirectedAttention]) -> None:
        self._fused: dict[str, tuple[_Messages, str]] = {}
        left_out: dict[str, tuple[Factor, ...]] = {}
        for attention in attentions:
            messages = _Messages(attention, plan, evidence)
            for role, variable in attention.variables.items():
                # what a further factor bends is minimised by the inner solver, which asks for every message by itself
                if plan.how.get(variable.name) == "closed form":
                    self._fused[variable.name] = messages, role
                    left_out[variable.name] = attention.factors_of(role)
        super().__init__(_without(plan, left_out), evidence, remember)

    def preactivation(self, step: Step) -> Tensor:
        name = step.name
        if name not in self._fused:
            return super().preactivation(step)
        messages, role = self._fused[name]
        total = messages.to(role, self.values, self._version, step.reused)
        if total is None or self.plan.static[name] or self.plan.changing[name]:
            # the messages of further factors, or zeros
            rest = super().preactivation(step)
            total = rest if total is None else total + rest
        return total

    def _activate(self, name: str, t: Tensor, mask: Tensor | None) -> Tensor:
        regularizer = self.evidence.regularizers[name]
        if mask is None and name in self._fused and type(regularizer) is Entropy and t.dtype == self.evidence.like.dtype:
            # finite scores leave no row empty, so that there is nothing to look for
            return torch.softmax(t / regularizer.temperature, regularizer.dim)
        return super()._activate(name, t, mask)


def _without(plan: Plan, left_out: Mapping[str, Collection[Factor]]) -> Plan:
    """The plan without the messages of some factors to some variables."""
    rest = copy.copy(plan)
    rest.static, rest.changing = (
        {name: [inlet for inlet in inlets if inlet.factor not in left_out.get(name, ())] for name, inlets in kind.items()}
        for kind in (plan.static, plan.changing)
    )
    return rest


class _Messages:
    """The messages of one attention in one run.

    Inside, arrays have shape ``(batch * heads, positions, width of a head)``.

    Args:
        attention: of the graph.
        plan: of the graph.
        evidence: what is fixed.
    """

    def __init__(self, attention: UndirectedAttention, plan: Plan, evidence: Evidence) -> None:
        self._attention = attention
        self._evidence = evidence
        self._names = {role: variable.name for role, variable in attention.variables.items()}
        self._keys = {role: _key_of_product(attention, role, plan) for role in attention.variables}
        self._kept: dict[str, tuple[Stamp, Tensor]] = {}
        self._included: dict[str, dict[str, Tensor]] = {}
        self._row_numbers: dict[str, Tensor] = {}
        self._values: Mapping[str, Tensor] = {}
        self._versions: Mapping[str, int] = {}

    def to(self, role: str, values: Mapping[str, Tensor], versions: Mapping[str, int], reused: frozenset[int] | None) -> Tensor | None:
        """The sum of all messages to a variable, shape ``(batch, *axes)``; batch may be 1. None if every operand is absent.

        Args:
            role: of the variable.
            values: by name, as far as they are present.
            versions: of variables, which grow with each update.
            reused: keys of the messages worth keeping; None if that is not known.
        """
        self._values, self._versions = values, versions
        key = self._keys[role]
        keep = reused is None or key is None or key in reused
        found = self._to_weights(keep) if role == "S" else self._to_rows(role, keep)
        if found is None or self._attention.heads == 1:
            return found
        by_head = found.view(-1, self._attention.heads, *found.shape[1:])
        return by_head if role == "S" else by_head.transpose(1, 2)

    def _to_weights(self, keep: bool) -> Tensor | None:
        """Q K' + H V' (undirected-network paper, eq. 14, where the printed V H' is an error)."""
        stamp = self._stamp("Q", "K")
        q, k, h, v = (self._by_head(role) for role in ("Q", "K", "H", "V"))
        matches = self._recall("matches", stamp)
        if matches is None and q is not None and k is not None:
            matches = torch.bmm(q, k.mT)
        if keep and matches is not None:
            self._kept["matches"] = stamp, matches
        if h is None or v is None:
            return matches
        return torch.bmm(h, v.mT) if matches is None else torch.baddbmm(matches, h, v.mT)

    def _to_rows(self, role: str, keep: bool) -> Tensor | None:
        """X W_Q' + S K to Q, X W_K' + S' Q to K, X W_V' + S' H to V, S V to H (undirected-network paper, eq. 14)."""
        stamp = (*self._stamp("S", _MIXED[role]), *self._versions_at_rest(role))
        found, fresh = self._recall(role, stamp), False
        if found is None:
            self._included[role] = {}
            found, fresh = self._at_rest(role)
        if found is None:
            return None
        for source in self._in_part(role):
            found, fresh = self._with_rows(found, fresh, role, source), True
        if keep:
            self._kept[role] = stamp, found
        return found

    def _at_rest(self, role: str) -> tuple[Tensor | None, bool]:
        """What ``_to_rows`` returns if no rows of what is observed in part had been inferred, and whether nobody else holds that tensor."""
        projected = self._projected(role)
        weights, mixed = self._by_head("S"), self._by_head(_MIXED[role])
        if weights is None or mixed is None:
            return projected, False
        weights = weights.mT if role in _OF_KEYS else weights
        return (torch.bmm(weights, mixed) if projected is None else torch.baddbmm(projected, weights, mixed)), True

    def _projected(self, role: str) -> Tensor | None:
        """The projection of what is present, inferred rows of what is observed in part left out."""
        sources = self._attention.sources.get(role, ())
        key, stamp = f"projected {role}", self._versions_at_rest(role)
        found = self._recall(key, stamp)
        if found is None:
            total = self._sum_at_rest(sources, stamp)
            if total is None:
                return None
            found = self._split(F.linear(total, self._weights(role)))
        self._kept[key] = stamp, found
        return found

    def _sum_at_rest(self, sources: Sequence[Array], stamp: Stamp) -> Tensor | None:
        """The sum of what is projected, shape ``(batch, positions, features)``; batch may be 1."""
        key = " ".join(["sum", *(array.name for array in sources)])
        total = self._recall(key, stamp)
        if total is None:
            for array in sources:
                if array.name not in self._values:
                    continue
                x = self._evidence.observed[array.name][0] if array.name in self._evidence.free_rows else self._values[array.name]
                total = x if total is None else total + x
        if total is None:
            return None
        self._kept[key] = stamp, total
        return total if total.ndim == 3 else total[None]

    def _in_part(self, role: str) -> list[str]:
        """What is projected of which few rows are inferred, and have been."""
        names = [array.name for array in self._attention.sources.get(role, ()) if array.name in self._evidence.free_rows]
        return [name for name in names if self._values[name] is not self._evidence.observed[name][0]]

    def _with_rows(self, found: Tensor, fresh: bool, role: str, source: str) -> Tensor:
        """With the projection of inferred rows, instead of that of earlier ones which is included already; in place if ``fresh``."""
        rows, before = self._projected_rows(role, source), self._included[role].get(source)
        self._included[role][source] = rows
        change = (rows if before is None else rows - before).view(-1, found.shape[-1])
        changed: Tensor = _AddRows.apply(found, self._numbers_of_rows(source, found.shape[1]), change, fresh)
        return changed

    def _projected_rows(self, role: str, source: str) -> Tensor:
        """The projection of inferred rows alone, shape ``(rows, width)``."""
        stamp = (self._versions.get(source, 0),)
        key = f"rows {source} {role}"
        found = self._recall(key, stamp)
        if found is None:
            inferred = self._recall(f"rows {source}", stamp)
            if inferred is None:
                inferred = self._values[source][self._evidence.free_rows[source]]
            self._kept[f"rows {source}"] = stamp, inferred
            found = F.linear(inferred, self._weights(role))
        self._kept[key] = stamp, found
        return found

    def _numbers_of_rows(self, source: str, positions: int) -> Tensor:
        """Where the inferred rows lie once batch, heads and positions are one axis."""
        if source not in self._row_numbers:
            element, position = self._evidence.free_rows[source]
            head = torch.arange(self._attention.heads, device=position.device)
            first = element[:, None] * self._attention.heads + head
            self._row_numbers[source] = (first * positions + position[:, None]).flatten()
        return self._row_numbers[source]

    def _by_head(self, role: str) -> Tensor | None:
        """The value of a variable; None if it is absent."""
        x = self._values.get(self._names[role])
        if x is None or self._attention.heads == 1:
            return x
        return (x if role == "S" else x.transpose(1, 2)).flatten(0, 1)

    def _split(self, projected: Tensor) -> Tensor:
        """From ``(batch, positions, width)``; batch may be 1 with one head."""
        heads = self._attention.heads
        if heads == 1:
            return projected
        by_head = projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)
        return by_head.expand(self._evidence.batch, -1, -1, -1).flatten(0, 1)

    def _weights(self, role: str) -> Tensor:
        """The weights of a projection, shape ``(width, features)``."""
        return self._values[self._attention.weights[role].name].flatten(0, -2)

    def _stamp(self, *roles: str) -> Stamp:
        return tuple([self._versions.get(self._names[role], 0) for role in roles])

    def _versions_at_rest(self, role: str) -> Stamp:
        """The versions of what is projected, those aside of which only rows change."""
        sources = self._attention.sources.get(role, ())
        return tuple([self._versions.get(array.name, 0) for array in sources if array.name not in self._evidence.free_rows])

    def _recall(self, key: str, stamp: Stamp) -> Tensor | None:
        """What was kept, unless it is out of date; it is then kept no longer, to be kept again."""
        kept = self._kept.pop(key, None)
        return None if kept is None or kept[0] != stamp else kept[1]


class _AddRows(torch.autograd.Function):
    """``found`` with an update added to some of its rows; in place, unlike autograd's own, without a copy of the gradient."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, numbers: Tensor, update: Tensor, in_place: bool) -> Tensor:
        ctx.save_for_backward(numbers)
        if in_place:
            ctx.mark_dirty(found)
        out = found if in_place else found.clone(memory_format=torch.contiguous_format)
        out.view(-1, out.shape[-1]).index_add_(0, numbers, update)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (numbers,) = ctx.saved_tensors
        return gradient, None, gradient.reshape(-1, gradient.shape[-1]).index_select(0, numbers), None


def _key_of_product(attention: UndirectedAttention, role: str, plan: Plan) -> int | None:
    """The key of the message that S has a part in, or of that from Q and K to S; None if it never changes."""
    factor = attention.scores if role in "QKS" else attention.mixing
    inlets = plan.changing.get(attention.variables[role].name, [])
    return next((inlet.key for inlet in inlets if inlet.factor is factor), None)
