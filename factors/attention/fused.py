"""Fused unrolled undirected attention: the results of the engine with fewer passes over memory."""

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
"""Factor of S in its message to each role: S K to Q, S' Q to K, S' H to V, S V to H."""

_OF_KEYS = ("K", "V")
"""Roles whose message contains S transposed."""

Stamp = tuple[int, ...]


class UnrolledAttention(Unrolled):
    """``Unrolled`` on a graph with undirected attention: equal up to rounding, in less time and memory.

    All messages to Q, K, V, S or H are computed at once: products are added to the stored projections,
    observed values are projected once for all rounds, and for partially observed ones only the inferred rows
    are projected again. Other variables and factors of the graph run as in ``Unrolled``.

    Args:
        attention: attention declared by ``undirected_attention``, or several of the same graph.
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
        if not attentions or any(item.graph is not attentions[0].graph for item in attentions):
            raise DeclarationError("UnrolledAttention takes what undirected_attention(...) returns, or several of these for one graph.")
        super().__init__(attentions[0].graph, given, want, order, iterations, initial, dropout, check_values)
        self.attentions = attentions

    def _state(self, plan: Plan, evidence: Evidence, recorded: Sequence[str]) -> State:
        return _State(plan, evidence, recorded, self.attentions)


class _State(State):
    """Run state in which attention variables receive all messages of their attention at once.

    Args:
        plan: plan of the graph.
        evidence: evidence of the run.
        recorded: as of ``State``.
        attentions: attentions of the graph.
    """

    def __init__(self, plan: Plan, evidence: Evidence, recorded: Collection[str] | None, attentions: Sequence[UndirectedAttention]) -> None:
        self._fused: dict[str, tuple[_Messages, str]] = {}
        left_out: dict[str, tuple[Factor, ...]] = {}
        for attention in attentions:
            messages = _Messages(attention, plan, evidence)
            for role, variable in attention.variables.items():
                # variables in a non-affine factor use the inner solver, which needs the separate messages
                if plan.how.get(variable.name) == "closed form":
                    self._fused[variable.name] = messages, role
                    left_out[variable.name] = attention.factors_of(role)
        super().__init__(_without(plan, left_out), evidence, recorded)

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
            # with finite scores no row is empty, so the check of empty rows is skipped
            return torch.softmax(t / regularizer.temperature, regularizer.dim)
        return super()._activate(name, t, mask)


def _without(plan: Plan, left_out: Mapping[str, Collection[Factor]]) -> Plan:
    """Copy the plan without the messages of ``left_out`` factors, by target variable."""
    rest = copy.copy(plan)
    rest.static, rest.changing = (
        {name: [inlet for inlet in inlets if inlet.factor not in left_out.get(name, ())] for name, inlets in kind.items()}
        for kind in (plan.static, plan.changing)
    )
    return rest


class _Messages:
    """Messages of one attention in one run.

    Internal arrays have shape ``(batch * heads, positions, width of a head)``.

    Args:
        attention: attention of the graph.
        plan: plan of the graph.
        evidence: evidence of the run.
    """

    def __init__(self, attention: UndirectedAttention, plan: Plan, evidence: Evidence) -> None:
        self._attention = attention
        self._evidence = evidence
        self._names = {role: variable.name for role, variable in attention.variables.items()}
        self._keys = {role: _key_of_product(attention, role, plan) for role in attention.variables}
        self._cache: dict[str, tuple[Stamp, Tensor]] = {}
        self._included: dict[str, dict[str, Tensor]] = {}
        self._row_numbers: dict[str, Tensor] = {}
        self._values: Mapping[str, Tensor] = {}
        self._versions: Mapping[str, int] = {}

    def to(self, role: str, values: Mapping[str, Tensor], versions: Mapping[str, int], reused: frozenset[int] | None) -> Tensor | None:
        """Sum of all messages to a variable, shape ``(batch, *axes)``; batch may be 1. None if all operands are absent.

        Args:
            role: role of the variable.
            values: present values by name.
            versions: update counters by variable.
            reused: keys of the messages to cache; None to cache all.
        """
        self._values, self._versions = values, versions
        key = self._keys[role]
        cache = reused is None or key is None or key in reused
        message = self._to_weights(cache) if role == "S" else self._to_rows(role, cache)
        if message is None or self._attention.heads == 1:
            return message
        by_head = message.view(-1, self._attention.heads, *message.shape[1:])
        return by_head if role == "S" else by_head.transpose(1, 2)

    def _to_weights(self, cache: bool) -> Tensor | None:
        """Q K' + H V' (undirected-network paper, eq. 14, where the printed V H' is an error)."""
        stamp = self._stamp("Q", "K")
        q, k, h, v = (self._by_head(role) for role in ("Q", "K", "H", "V"))
        matches = self._recall("matches", stamp)
        if matches is None and q is not None and k is not None:
            matches = torch.bmm(q, k.mT)
        if cache and matches is not None:
            self._cache["matches"] = stamp, matches
        if h is None or v is None:
            return matches
        return torch.bmm(h, v.mT) if matches is None else torch.baddbmm(matches, h, v.mT)

    def _to_rows(self, role: str, cache: bool) -> Tensor | None:
        """X W_Q' + S K to Q, X W_K' + S' Q to K, X W_V' + S' H to V, S V to H (undirected-network paper, eq. 14)."""
        stamp = (*self._stamp("S", _MIXED[role]), *self._versions_at_rest(role))
        message, fresh = self._recall(role, stamp), False
        if message is None:
            self._included[role] = {}
            message, fresh = self._at_rest(role)
        if message is None:
            return None
        for source in self._updated_sources(role):
            message, fresh = self._replace_rows(message, fresh, role, source), True
        if cache:
            self._cache[role] = stamp, message
        return message

    def _at_rest(self, role: str) -> tuple[Tensor | None, bool]:
        """Message from values at rest, without inferred rows, and whether its tensor may be modified in place."""
        projected = self._projected(role)
        weights, mixed = self._by_head("S"), self._by_head(_MIXED[role])
        if weights is None or mixed is None:
            return projected, False
        weights = weights.mT if role in _OF_KEYS else weights
        return (torch.bmm(weights, mixed) if projected is None else torch.baddbmm(projected, weights, mixed)), True

    def _projected(self, role: str) -> Tensor | None:
        """Projection of the present sources, without inferred rows of partially observed ones."""
        sources = self._attention.sources.get(role, ())
        key, stamp = f"projected {role}", self._versions_at_rest(role)
        projection = self._recall(key, stamp)
        if projection is None:
            total = self._sum_at_rest(sources, stamp)
            if total is None:
                return None
            projection = self._split(F.linear(total, self._weights(role)))
        self._cache[key] = stamp, projection
        return projection

    def _sum_at_rest(self, sources: Sequence[Array], stamp: Stamp) -> Tensor | None:
        """Sum of the projected sources, shape ``(batch, positions, features)``; batch may be 1."""
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
        self._cache[key] = stamp, total
        return total if total.ndim == 3 else total[None]

    def _updated_sources(self, role: str) -> list[str]:
        """Names of the partially observed sources whose inferred rows have been updated."""
        names = [array.name for array in self._attention.sources.get(role, ()) if array.name in self._evidence.free_rows]
        return [name for name in names if self._values[name] is not self._evidence.observed[name][0]]

    def _replace_rows(self, message: Tensor, fresh: bool, role: str, source: str) -> Tensor:
        """Replace the included projection of earlier inferred rows by the current one; in place if ``fresh``."""
        rows, before = self._projected_rows(role, source), self._included[role].get(source)
        self._included[role][source] = rows
        change = (rows if before is None else rows - before).view(-1, message.shape[-1])
        changed: Tensor = _AddRows.apply(message, self._numbers_of_rows(source, message.shape[1]), change, fresh)
        return changed

    def _projected_rows(self, role: str, source: str) -> Tensor:
        """Projection of the inferred rows alone, shape ``(rows, width)``."""
        stamp = (self._versions.get(source, 0),)
        key = f"rows {source} {role}"
        projection = self._recall(key, stamp)
        if projection is None:
            inferred = self._recall(f"rows {source}", stamp)
            if inferred is None:
                inferred = self._values[source][self._evidence.free_rows[source]]
            self._cache[f"rows {source}"] = stamp, inferred
            projection = F.linear(inferred, self._weights(role))
        self._cache[key] = stamp, projection
        return projection

    def _numbers_of_rows(self, source: str, positions: int) -> Tensor:
        """Row numbers of the inferred rows after flattening batch, heads and positions."""
        if source not in self._row_numbers:
            element, position = self._evidence.free_rows[source]
            head = torch.arange(self._attention.heads, device=position.device)
            first = element[:, None] * self._attention.heads + head
            self._row_numbers[source] = (first * positions + position[:, None]).flatten()
        return self._row_numbers[source]

    def _by_head(self, role: str) -> Tensor | None:
        """Value of a variable with heads in the batch axis; None if absent."""
        x = self._values.get(self._names[role])
        if x is None or self._attention.heads == 1:
            return x
        return (x if role == "S" else x.transpose(1, 2)).flatten(0, 1)

    def _split(self, projected: Tensor) -> Tensor:
        """Split ``(batch, positions, width)`` into heads; batch may be 1 with one head."""
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
        """Versions of the projected sources, except those in which only rows change."""
        sources = self._attention.sources.get(role, ())
        return tuple([self._versions.get(array.name, 0) for array in sources if array.name not in self._evidence.free_rows])

    def _recall(self, key: str, stamp: Stamp) -> Tensor | None:
        """Take a cached tensor out of the cache; None if it is absent or out of date."""
        entry = self._cache.pop(key, None)
        return None if entry is None or entry[0] != stamp else entry[1]


class _AddRows(torch.autograd.Function):
    """Add an update to rows of ``base``, optionally in place; the backward pass does not copy the gradient."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, numbers: Tensor, update: Tensor, in_place: bool) -> Tensor:
        ctx.save_for_backward(numbers)
        if in_place:
            ctx.mark_dirty(base)
        out = base if in_place else base.clone(memory_format=torch.contiguous_format)
        out.view(-1, out.shape[-1]).index_add_(0, numbers, update)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (numbers,) = ctx.saved_tensors
        return gradient, None, gradient.reshape(-1, gradient.shape[-1]).index_select(0, numbers), None


def _key_of_product(attention: UndirectedAttention, role: str, plan: Plan) -> int | None:
    """Key of the message through S, or of that from Q and K to S; None if it never changes."""
    factor = attention.scores if role in "QKS" else attention.mixing
    inlets = plan.changing.get(attention.variables[role].name, [])
    return next((inlet.key for inlet in inlets if inlet.factor is factor), None)
