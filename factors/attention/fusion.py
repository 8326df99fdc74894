"""The fusion of undirected attention: all messages to Q, K, V, S or H in few passes over memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unn.extending import FusedMessages, Fusion, InferredRows, Values

_MIXED = {"Q": "K", "K": "Q", "V": "H", "H": "V"}
"""Factor of S in its message to each role: S K to Q, S' Q to K, S' H to V, S V to H."""

_OF_KEYS = ("K", "V")
"""Roles whose message contains S transposed."""

Stamp = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AttentionFusion(Fusion):
    """All messages to Q, K, V, S or H of one attention at once.

    Products are added to the stored projections, observed values are projected once for all rounds, and for
    partially observed ones only the inferred rows are projected again.

    Attributes:
        variables: names of the variables by "Q", "K", "V", "S" and "H".
        sources: names of the projected arrays by "Q", "K" and "V".
        weights: names of the projection parameters by "Q", "K" and "V".
        projections: names of the factors of the projections by "Q", "K" and "V".
        scores: name of the factor of S, Q and K.
        mixing: name of the factor of H, S and V.
        heads: number of attention heads.
    """

    variables: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, str]
    projections: Mapping[str, tuple[str, ...]]
    scores: str
    mixing: str
    heads: int

    @property
    def replaces(self) -> dict[str, tuple[str, ...]]:
        """By name of a variable, the names of the factors of the attention that touch it."""
        products = {role: (self.product(role),) for role in "QKVH"} | {"S": (self.scores, self.mixing)}
        return {
            name: (*self.projections.get(role, ()), *products[role]) for role, name in self.variables.items()
        }

    def product(self, role: str) -> str:
        """Name of the factor whose message to a variable is kept; for S, that of Q and K."""
        return self.scores if role in ("Q", "K", "S") else self.mixing

    def start(self, batch: int, inferred: Mapping[str, InferredRows]) -> AttentionMessages:
        return AttentionMessages(self, batch, inferred)


class AttentionMessages(FusedMessages):
    """Messages of one attention in one run.

    Internal arrays have shape ``(batch * heads, positions, width of a head)``.

    Args:
        fusion: of the attention.
        batch: number of batch elements.
        inferred: by name, the sources of which only few rows are inferred.
    """

    def __init__(self, fusion: AttentionFusion, batch: int, inferred: Mapping[str, InferredRows]) -> None:
        self._fusion = fusion
        self._batch = batch
        self._inferred = inferred
        self._roles = {name: role for role, name in fusion.variables.items()}
        self._static: dict[str, Tensor] = {}
        self._cache: dict[str, tuple[Stamp, Tensor]] = {}
        self._included: dict[str, dict[str, Tensor]] = {}
        self._positions: dict[str, tuple[Tensor, Tensor]] = {}
        self._values: Values = {}
        self._versions: Mapping[str, int] = {}

    def to(
        self, target: str, values: Values, versions: Mapping[str, int], reused: Collection[str] | None
    ) -> Tensor | None:
        self._values, self._versions = values, versions
        role, heads = self._roles[target], self._fusion.heads
        cache = reused is None or self._fusion.product(role) in reused
        message = self._to_weights(cache) if role == "S" else self._to_rows(role, cache)
        if message is None or heads == 1:
            return message
        by_head = message.view(-1, heads, *message.shape[1:])
        return by_head if role == "S" else by_head.transpose(1, 2)

    def sum_static(self, targets: Iterable[str], values: Values, versions: Mapping[str, int]) -> None:
        self._values, self._versions = values, versions
        for target in targets:
            role = self._roles[target]
            if self._projection_is_static(role):
                self._projected(role)

    def branch(self) -> AttentionMessages:
        branch = AttentionMessages(self._fusion, self._batch, self._inferred)
        branch._static, branch._positions = dict(self._static), self._positions
        return branch

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
        """X W_Q' + S K to Q, X W_K' + S' Q to K, X W_V' + S' H to V, S V to H (undirected-network paper, eq.
        14).
        """
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
        """Message without inferred rows, and whether its tensor may be modified in place."""
        projected = self._projected(role)
        weights, mixed = self._by_head("S"), self._by_head(_MIXED[role])
        if weights is None or mixed is None:
            return projected, False
        weights = weights.mT if role in _OF_KEYS else weights
        return (
            torch.bmm(weights, mixed) if projected is None else torch.baddbmm(projected, weights, mixed)
        ), True

    def _projected(self, role: str) -> Tensor | None:
        """Projection of the present sources, without inferred rows of partially observed ones."""
        static, key, stamp = (
            self._projection_is_static(role),
            f"projected {role}",
            self._versions_at_rest(role),
        )
        projection = self._static.get(key) if static else self._recall(key, stamp)
        if projection is None:
            total = self._sum_at_rest(role, static, stamp)
            if total is None:
                return None
            projection = self._split(F.linear(total, self._weights(role)))
        if static:
            self._static[key] = projection
        else:
            self._cache[key] = stamp, projection
        return projection

    def _sum_at_rest(self, role: str, static: bool, stamp: Stamp) -> Tensor | None:
        """Sum of the projected sources, shape ``(batch, positions, features)``; batch may be 1."""
        sources = self._fusion.sources.get(role, ())
        key = " ".join(["sum", *sources])
        total = self._static.get(key) if static else self._recall(key, stamp)
        if total is None:
            for name in sources:
                if name not in self._values:
                    continue
                x = self._inferred[name].observed if name in self._inferred else self._values[name]
                total = x if total is None else total + x
        if total is None:
            return None
        if static:
            self._static[key] = total
        else:
            self._cache[key] = stamp, total
        return total if total.ndim == 3 else total[None]

    def _projection_is_static(self, role: str) -> bool:
        """Is what ``_projected`` returns the same in the whole run?"""
        sources = self._fusion.sources.get(role, ())
        return all(name in self._inferred or name not in self._versions for name in sources)

    def _updated_sources(self, role: str) -> list[str]:
        """Names of the partially observed sources whose inferred rows are not 0."""
        names = [name for name in self._fusion.sources.get(role, ()) if name in self._inferred]
        return [name for name in names if self._versions.get(name, 0) or self._inferred[name].initial]

    def _replace_rows(self, message: Tensor, fresh: bool, role: str, source: str) -> Tensor:
        """Replace the included projection of inferred rows by the current one; in place if ``fresh``."""
        rows, before = self._projected_rows(role, source), self._included[role].get(source)
        self._included[role][source] = rows
        change = (rows if before is None else rows - before).view(-1, message.shape[-1])
        # the derivative of index_put_ copies no gradient, that of index_add_ into a view does
        add = message.index_put_ if fresh else message.index_put
        changed: Tensor = add(self._positions_of_rows(source), change.to(message.dtype), accumulate=True)
        return changed

    def _projected_rows(self, role: str, source: str) -> Tensor:
        """Projection of the inferred rows alone, shape ``(rows, width)``."""
        stamp = (self._versions.get(source, 0),)
        key = f"rows {source} {role}"
        projection = self._recall(key, stamp)
        if projection is None:
            inferred = self._recall(f"rows {source}", stamp)
            if inferred is None:
                inferred = self._values[source][self._inferred[source].rows]
            self._cache[f"rows {source}"] = stamp, inferred
            projection = F.linear(inferred, self._weights(role))
        self._cache[key] = stamp, projection
        return projection

    def _positions_of_rows(self, source: str) -> tuple[Tensor, Tensor]:
        """Indices of the inferred rows along the batch axis, with heads, and along the positions."""
        if source not in self._positions:
            element, position = self._inferred[source].rows
            heads = self._fusion.heads
            head = torch.arange(heads, device=position.device)
            first = element[:, None] * heads + head
            self._positions[source] = first.flatten(), position.repeat_interleave(heads)
        return self._positions[source]

    def _by_head(self, role: str) -> Tensor | None:
        """Value of a variable with heads in the batch axis; None if absent."""
        x = self._values.get(self._fusion.variables[role])
        if x is None or self._fusion.heads == 1:
            return x
        return (x if role == "S" else x.transpose(1, 2)).flatten(0, 1)

    def _split(self, projected: Tensor) -> Tensor:
        """Split ``(batch, positions, width)`` into heads; batch may be 1 with one head."""
        heads = self._fusion.heads
        if heads == 1:
            return projected
        by_head = projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)
        return by_head.expand(self._batch, -1, -1, -1).flatten(0, 1)

    def _weights(self, role: str) -> Tensor:
        """The weights of a projection, shape ``(width, features)``."""
        return self._values[self._fusion.weights[role]].flatten(0, -2)

    def _stamp(self, *roles: str) -> Stamp:
        return tuple([self._versions.get(self._fusion.variables[role], 0) for role in roles])

    def _versions_at_rest(self, role: str) -> Stamp:
        """Versions of the projected sources, except those in which only rows change."""
        sources = self._fusion.sources.get(role, ())
        return tuple([self._versions.get(name, 0) for name in sources if name not in self._inferred])

    def _recall(self, key: str, stamp: Stamp) -> Tensor | None:
        """Take a cached tensor out of the cache; None if it is absent or out of date."""
        entry = self._cache.pop(key, None)
        return None if entry is None or entry[0] != stamp else entry[1]
