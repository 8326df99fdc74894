"""What remains of a table model after evidence and zeros, and answers about it placed in the whole model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from ..plain import array_of, planned
from .elimination import Order, Scope, greedy_order, neighbours
from .halving import halve
from .options import ExactOptions
from .plan import Plan, compile_plan
from .tables import Family, TableEvidence, TableModel, absorb, grouped, restrict, supports
from .tree import search_tree

_BATCH_BITS = 3
"""Batches whose sizes have the same number of digits of this many bits share a plan."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """A model after evidence and zeros, with its plan.

    Attributes:
        families: tables over the variables that remain, which are numbered anew; their logarithms on the
            device of the model.
        constant: logarithm of the weights without a variable, shape ``(batch or 1,)``; on that device too.
        remaining: variables of the model that remain.
        domain: mask of the states that remain, shape ``(variables, most states)``.
        plan: compiled tree; None if no variable remains.
    """

    families: list[Family]
    constant: Tensor
    remaining: Tensor
    domain: Tensor
    plan: Plan | None


def reduce(model: TableModel, evidence: TableEvidence, options: ExactOptions) -> Reduced:
    """Absorb evidence, drop states that zeros exclude, and compile a plan for what remains."""
    reduced, sizes = remaining_tables(model, evidence)
    families = [replace(family, logs=family.logs.to(model.device)) for family in reduced.families]
    reduced = replace(reduced, families=families, constant=reduced.constant.to(model.device))
    if not families:
        return reduced
    digits = (max(f.logs.shape[1] for f in families).bit_length() - 1) // _BATCH_BITS
    batch = 2 ** (_BATCH_BITS * digits)
    scopes = [array_of(f.scopes) for f in families]
    keys = tuple((own.tobytes(), f.states) for own, f in zip(scopes, families, strict=True))
    blocks: list[list[Scope]] = [[tuple(scope) for scope in own.tolist()] for own in scopes]

    def make() -> Plan:
        return planned(lambda: _plan(blocks, sizes, options, batch))

    return replace(reduced, plan=model.plans.get_or_make((sizes, keys, options, batch), make))


def width(model: TableModel, log_bound: float) -> Order | None:
    """A quick order of elimination of a model without evidence; None if its cost exceeds a bound.

    Args:
        model: tables.
        log_bound: log2 of the largest number of entries of all products.
    """
    reduced, sizes = remaining_tables(model, TableEvidence.of(model))
    scopes = [tuple(scope) for f in reduced.families for scope in f.scopes.tolist()]
    log_sizes = [math.log2(size) for size in sizes]
    near = neighbours(scopes, len(sizes))
    return greedy_order(near, log_sizes, 1.0, 0.5, 0.0, 0.0, Random(0), 2.0**log_bound)[0]


def remaining_tables(model: TableModel, evidence: TableEvidence) -> tuple[Reduced, tuple[int, ...]]:
    """What remains of a model without a plan, and the number of states of each variable that remains."""
    families, constant, fixed = absorb(model, evidence)
    states = list(model.states)
    remaining = ~fixed
    if families:
        domain = supports(states, families)
    else:
        most = max(states, default=1)
        domain = torch.arange(most) < torch.tensor(states)[:, None]
    if bool((domain.sum(1) == 0).any()):
        return Reduced([], torch.full_like(constant, -torch.inf), remaining & False, domain, None), ()
    families, states = restrict(families, domain, states)
    single = torch.tensor(states, device=remaining.device) == 1
    remaining = remaining & ~single
    numbers = remaining.cumsum(0) - 1
    families_left: list[Family] = []
    touched = torch.zeros_like(remaining)
    for family in families:
        axes = [k for k, size in enumerate(family.states) if size > 1]
        scopes, logs = family.scopes, family.logs
        if len(axes) < len(family.states):
            logs = logs.reshape(*logs.shape[:2], *(family.states[k] for k in axes))
            scopes = scopes[:, axes]
        if not axes:
            constant = constant + logs.double().sum(0)
            continue
        touched[scopes.flatten()] = True
        families_left.append(Family(numbers[scopes], logs, family.is_partial))
    for variable in (remaining & ~touched).nonzero()[:, 0].tolist():
        logs = torch.zeros(1, 1, states[variable], dtype=torch.float64, device=constant.device)
        families_left.append(Family(numbers[variable].view(1, 1), logs))
    sizes = tuple(size for size, flag in zip(states, remaining.tolist(), strict=True) if flag)
    return Reduced(grouped(families_left), constant, remaining, domain, None), sizes


def _plan(blocks: Sequence[list[Scope]], states: Sequence[int], options: ExactOptions, batch: int) -> Plan:
    scopes = [scope for block in blocks for scope in block]
    # a plan that is made in inference mode must serve queries with gradients too
    with torch.inference_mode(False):
        tree = search_tree(
            scopes, states, options.search_seconds, options.attempts, options.order_seed, batch
        )
        halve(tree, [number for number, block in enumerate(blocks) for _ in block])
        return compile_plan(tree, blocks, states, batch)


def place_probabilities(
    model: TableModel,
    evidence: TableEvidence,
    reduced: Reduced,
    parts: Sequence[tuple[Tensor, Tensor]],
    possible: Tensor,
) -> Tensor:
    """Probabilities of all variables of the model, shape ``(batch, variables, most states)``, not contiguous.

    Args:
        model: the model.
        evidence: evidence.
        reduced: what remains of the model.
        parts: remaining variables and their probabilities, shape ``(variables, batch or 1, states)``.
        possible: mask of the batch elements with values that agree with the evidence.
    """
    device = possible.device
    values, domain, remaining = (x.to(device) for x in (evidence.values, reduced.domain, reduced.remaining))
    most = max(model.states, default=1)
    batch = max(len(values), len(possible), *(p.shape[1] for _, p in parts), 1)
    # the batch is the last axis in memory, as in the sweeps
    result = torch.zeros(len(model.states), most, batch, dtype=torch.float64, device=device)
    fixed = (values >= 0).all(0)
    known = fixed.nonzero()[:, 0]
    ones = torch.nn.functional.one_hot(values[:, known].clamp(min=0), most).double()
    result[known] = ones.permute(1, 2, 0).expand(-1, -1, batch)
    single = (~fixed & ~remaining).nonzero()[:, 0]
    # variables with one state left; none at all only where nothing is possible
    result[single] = domain[single].double()[..., None].expand(-1, -1, batch)
    numbers = remaining.nonzero()[:, 0]
    for variables, probabilities in parts:
        own = numbers[variables.to(device)]
        places = domain[own].nonzero()[:, 1].view(len(own), -1)
        first, count = int(own[0]), places.shape[1]
        if bool((own.diff() == 1).all()) and bool((places == torch.arange(count, device=device)).all()):
            # neighbours, of which no state is excluded
            result[first : first + len(own), :count] = probabilities.mT
        else:
            result[own[:, None], places] = probabilities.mT.expand(-1, -1, batch)
    if not bool(possible.all()):
        result = torch.where(possible, result, 0)
    return result.permute(2, 0, 1)


def place_states(
    evidence: TableEvidence, reduced: Reduced, states: Tensor | None, batch: int, count: int
) -> Tensor:
    """States of all variables of the model, shape ``(batch, count, variables)``.

    Args:
        evidence: evidence.
        reduced: what remains of the model.
        states: states of the remaining variables among those that remain of each; None if there are none.
        batch: batch size.
        count: number of assignments.
    """
    device = reduced.constant.device
    values, domain = evidence.values.to(device), reduced.domain.to(device)
    first = domain.to(torch.uint8).argmax(1)
    known = torch.where(values >= 0, values, first)
    result = known[:, None].expand(batch, count, -1).clone()
    if states is not None:
        numbers = reduced.remaining.nonzero()[:, 0].to(device)
        # place of the k-th state that remains
        places = (~domain[numbers]).to(torch.uint8).argsort(dim=1, stable=True)
        result[..., numbers] = places.T[states, torch.arange(len(numbers), device=device)]
    return result
