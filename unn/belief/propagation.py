"""Belief propagation on families of tables: all messages of a family are renewed at once, in logarithms.

A message of a table to a variable is the logarithm of a sum (or the maximum) over its other variables. In
tree-reweighted belief propagation (Wainwright, Jaakkola and Willsky, 2005) a table with appearance
probability rho has its logarithms divided by rho, and its messages count rho times; with rho = 1 this
is the sum-product algorithm (Kschischang, Frey and Loeliger, 2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..exact.sweeps import Total, log_sum, maximum
from ..exact.tables import Family
from .options import BeliefOptions

_SHARE = 0.5
"""Share of the largest change from which a message is renewed by the schedule "residual"."""

Messages = list[list[Tensor]]
"""Messages to each axis of each family, shape ``(tables, batch, states)``."""


@dataclass(frozen=True, eq=False)
class Beliefs:
    """The result of belief propagation.

    Attributes:
        variables: logarithms of the beliefs, shape ``(variables, batch, most states)``; -inf beyond
            the states.
        tables: beliefs of the tables by family, shape ``(tables, batch, *states)``.
        residual: largest change of a message in the last round, shape ``(batch,)``.
        rounds: number of rounds.
    """

    variables: Tensor
    tables: list[Tensor]
    residual: Tensor
    rounds: int


def propagate(
    families: Sequence[Family], states: Sequence[int], weights: Sequence[Tensor], options: BeliefOptions
) -> Beliefs:
    """Renew all messages until they rest.

    Args:
        families: tables over variables whose states all have support in each table.
        states: number of states of each variable.
        weights: appearance probabilities of the tables by family, shape ``(tables,)``.
        options: method and limits.
    """
    batch = max(family.logs.shape[1] for family in families)
    most = max(states)
    total: Total = maximum if options.method == "max-product" else log_sum
    exists = torch.arange(most) < torch.tensor(states)[:, None]
    messages: Messages = [
        [family.logs.new_zeros(len(family.scopes), batch, size) for size in family.states]
        for family in families
    ]
    scaled = [
        family.logs / rho.view(-1, 1, *[1] * len(family.states))
        for family, rho in zip(families, weights, strict=True)
    ]
    residual = torch.full((batch,), torch.inf, dtype=torch.float64)
    rounds = 0
    sums = _sums(families, messages, weights, exists, batch)
    while rounds < options.rounds and bool((residual > options.tolerance).any()):
        rounds += 1
        # rows at rest stay, so that no row depends on the others of its batch
        active = residual > options.tolerance
        renewed = _renewed(families, messages, scaled, sums, total, options.damping)
        changes = [
            [torch.where(new == old, 0, (new - old).abs()).amax(2) for new, old in zip(*pair, strict=True)]
            for pair in zip(renewed, messages, strict=True)
        ]
        largest = torch.stack([change.amax(0) for own in changes for change in own]).amax(0)
        residual = torch.where(active, largest, residual)
        # what zeros imply is settled first: other messages would take sides between equal solutions
        share = _SHARE if options.message_schedule == "residual" else 0.0
        least = torch.where(largest < torch.inf, share * largest, torch.inf)
        for own, new, change in zip(messages, renewed, changes, strict=True):
            for axis, each in enumerate(change):
                chosen = active & (each >= least)
                own[axis] = torch.where(chosen[..., None], new[axis], own[axis])
        sums = _sums(families, messages, weights, exists, batch)
    tables = []
    for number, family in enumerate(families):
        sent = _to_tables(family, messages[number], sums)
        joint = scaled[number]
        for axis, message in enumerate(sent):
            joint = joint + _along(message, axis, len(sent))
        tables.append(_normalised(joint.flatten(2)).view(joint.shape).exp())
    return Beliefs(_normalised(sums.logs(exists)), tables, residual, rounds)


def _renewed(
    families: Sequence[Family],
    messages: Messages,
    scaled: Sequence[Tensor],
    sums: _Sums,
    total: Total,
    damping: float,
) -> Messages:
    """All messages anew, from those of the last round."""
    result: Messages = []
    for own, family, logs in zip(messages, families, scaled, strict=True):
        sent = _to_tables(family, own, sums)
        new = [_to_variable(logs, sent, axis, total) for axis in range(len(family.states))]
        if damping:
            # 0 times the logarithm of 0 would be NaN
            new = [damping * old + (1 - damping) * x for old, x in zip(own, new, strict=True)]
        result.append(new)
    return result


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of the messages to each variable, shape ``(variables, batch, most states)``.

    Attributes:
        finite: sum of the finite ones.
        infinite: number of those that are -inf.
    """

    finite: Tensor
    infinite: Tensor

    def logs(self, exists: Tensor) -> Tensor:
        """The sums, -inf beyond the states of each variable."""
        impossible = (self.infinite > 0) | ~exists[:, None]
        return self.finite.masked_fill(impossible, -torch.inf)


def _sums(
    families: Sequence[Family], messages: Messages, weights: Sequence[Tensor], exists: Tensor, batch: int
) -> _Sums:
    """Sums of the messages, each counted as often as its table is weighted."""
    finite = torch.zeros(len(exists), batch, exists.shape[1], dtype=torch.float64)
    infinite = torch.zeros_like(finite)
    for family, own, rho in zip(families, messages, weights, strict=True):
        for axis, message in enumerate(own):
            is_finite = message > -torch.inf
            part = rho[:, None, None] * torch.where(is_finite, message, 0)
            finite[..., : message.shape[2]].index_add_(0, family.scopes[:, axis], part)
            infinite[..., : message.shape[2]].index_add_(0, family.scopes[:, axis], (~is_finite).double())
    return _Sums(finite, infinite)


def _to_tables(family: Family, messages: Sequence[Tensor], sums: _Sums) -> list[Tensor]:
    """Messages of the variables of each axis to the tables of a family: the sums without their own."""
    result = []
    for axis, message in enumerate(messages):
        scope, size = family.scopes[:, axis], message.shape[2]
        is_finite = message > -torch.inf
        finite = sums.finite[scope, :, :size] - torch.where(is_finite, message, 0)
        infinite = sums.infinite[scope, :, :size] - (~is_finite).double()
        result.append(finite.masked_fill(infinite > 0, -torch.inf))
    return result


def _along(message: Tensor, axis: int, count: int) -> Tensor:
    """A message as a table that is constant along all other axes."""
    return message.view(*message.shape[:2], *(message.shape[2] if k == axis else 1 for k in range(count)))


def _to_variable(logs: Tensor, sent: Sequence[Tensor], axis: int, total: Total) -> Tensor:
    """Normalised messages of tables to the variables of one axis."""
    joint = logs
    for other, message in enumerate(sent):
        if other != axis:
            joint = joint + _along(message, other, len(sent))
    joint = joint.movedim(2 + axis, 2).flatten(3) if len(sent) > 1 else joint[..., None]
    return _normalised(total(joint))


def _normalised(message: Tensor) -> Tensor:
    """Logarithms whose exponentials sum to one; unchanged where all are -inf."""
    total = log_sum(message)[..., None]
    normalised: Tensor = message - torch.where(total > -torch.inf, total, 0)
    return normalised


def log_partition(
    families: Sequence[Family], beliefs: Beliefs, weights: Sequence[Tensor], count: int
) -> Tensor:
    """The Bethe approximation of the log-partition, or its tree-reweighted bound, shape ``(batch,)``.

    Differentiable by the logarithms of the tables: at messages at rest the derivatives are the beliefs.

    Args:
        families: tables.
        beliefs: result of belief propagation.
        weights: appearance probabilities of the tables by family.
        count: number of variables.
    """
    p = beliefs.variables.exp()
    entropies: Tensor = torch.special.entr(p).sum(2)
    result: Tensor = torch.zeros(p.shape[1], dtype=torch.float64)
    degree = torch.zeros(count, dtype=torch.float64)
    for family, table, rho in zip(families, beliefs.tables, weights, strict=True):
        logs = torch.where(family.logs > -torch.inf, family.logs, 0)
        result = result + (table * logs).flatten(2).sum(2).sum(0)
        result = result + (rho[:, None] * torch.special.entr(table).flatten(2).sum(2)).sum(0)
        for axis in range(len(family.states)):
            degree.index_add_(0, family.scopes[:, axis], rho)
    return result + ((1 - degree)[:, None] * entropies).sum(0)


def appearance_probabilities(families: Sequence[Family], count: int) -> list[Tensor]:
    """Probability that a uniformly random spanning forest has the edge of each table, 1 for tables of
    one variable.

    It is the effective resistance of the edge (Kirchhoff's theorem).

    Args:
        families: tables over one or two variables.
        count: number of variables.
    """
    laplacian = torch.zeros(count, count, dtype=torch.float64)
    for family in families:
        if len(family.states) == 2:
            one, other = family.scopes.T
            ones = torch.ones(len(one), dtype=torch.float64)
            for a, b, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
                laplacian.index_put_((a, b), sign * ones, accumulate=True)
    inverse = torch.linalg.pinv(laplacian, hermitian=True)
    result = []
    for family in families:
        if len(family.states) == 2:
            one, other = family.scopes.T
            resistance = inverse[one, one] + inverse[other, other] - 2 * inverse[one, other]
            result.append(resistance.clamp(1e-6, 1.0))
        else:
            result.append(torch.ones(len(family.scopes), dtype=torch.float64))
    return result
