"""Models made of tables over discrete variables, and evidence about them.

The distribution is the normalised product of the tables. Tables are logarithms of nonnegative weights,
-inf for
0, stacked by shape: a plate of factors is one family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import ArgumentError, ObservationError
from .plan import Plan

_PLANS = 64
"""Number of plans that are kept for one model, by what is observed."""


@dataclass(frozen=True, eq=False)
class Family:
    """Tables of one shape.

    Attributes:
        scopes: variables of the axes of each table, shape ``(tables, axes)``; those of one table differ.
        logs: logarithms of the weights, shape ``(tables, batch or 1, *states)``.
        is_partial: whether the tables are what only some rows of a batch observe: 0 and -inf, and 0 for every
            state in some row.
    """

    scopes: Tensor
    logs: Tensor
    is_partial: bool = False

    @property
    def states(self) -> tuple[int, ...]:
        """Number of states of each axis."""
        return tuple(self.logs.shape[2:])


@dataclass(frozen=True, eq=False)
class TableModel:
    """Tables over variables with finitely many states.

    Args:
        states: number of states of each variable.
        families: tables.
        names: names of the variables, for messages; their numbers by default.
        name: name of the model, for messages.
        device: where tables are multiplied and answers are; scopes and evidence stay on the CPU.

    Raises:
        ArgumentError: for tables that do not fit the variables, or weights that are NaN or +inf.
    """

    states: tuple[int, ...]
    families: tuple[Family, ...]
    names: tuple[str, ...] = ()
    name: str = "tables"
    plans: BoundedCache[object, Plan] = field(default_factory=lambda: BoundedCache(_PLANS), repr=False)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(map(str, range(len(self.states)))))
        if len(self.names) != len(self.states):
            raise ArgumentError(
                f"model {self.name!r} has {len(self.states)} variables and {len(self.names)} names."
            )
        sizes = torch.tensor(self.states, dtype=torch.long)
        for number, family in enumerate(self.families):
            where = f"model {self.name!r}, family {number} of tables"
            scopes, logs = family.scopes, family.logs
            if scopes.ndim != 2 or logs.ndim != 2 + scopes.shape[1] or len(scopes) != len(logs):
                raise ArgumentError(
                    f"{where}: scopes have shape (tables, axes) and logarithms (tables, batch, *states), got "
                    f"{tuple(scopes.shape)} and {tuple(logs.shape)}."
                )
            if scopes.numel() and not 0 <= int(scopes.min()) <= int(scopes.max()) < len(self.states):
                raise ArgumentError(f"{where}: a scope names a variable outside 0 to {len(self.states) - 1}.")
            if not bool((sizes[scopes] == torch.tensor(family.states, dtype=torch.long)).all()):
                raise ArgumentError(
                    f"{where}: tables have {family.states} states, but their variables have others."
                )
            ordered = scopes.sort(1).values
            if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
                raise ArgumentError(f"{where}: a variable occurs twice in one scope.")
            if bool(logs.detach().isnan().any()) or bool((logs.detach() == torch.inf).any()):
                raise ArgumentError(f"{where}: weights must be finite and >= 0, so logarithms below +inf.")

    @property
    def batch(self) -> int:
        """Batch size of the tables, 1 if they have none."""
        return max((family.logs.shape[1] for family in self.families), default=1)

    def log_weight(self, values: Tensor) -> Tensor:
        """Logarithm of the product of all tables at values of all variables, shape ``(batch,)``.

        Args:
            values: states of all variables, shape ``(batch, variables)``.
        """
        total = torch.zeros(len(values), dtype=torch.float64, device=values.device)
        for family in self.families:
            flat = family.logs.reshape(*family.logs.shape[:2], math.prod(family.states))
            index = torch.zeros(len(values), len(family.scopes), dtype=torch.long, device=values.device)
            for axis, size in enumerate(family.states):
                index = index * size + values[:, family.scopes[:, axis]]
            rows = flat.expand(-1, len(values), -1).gather(2, index.T[:, :, None])[:, :, 0]
            total = total + rows.sum(0)
        return total


@dataclass(frozen=True, eq=False)
class TableEvidence:
    """Evidence about the variables of a table model.

    Attributes:
        values: observed states, -1 where unobserved, shape ``(batch, variables)``.
        scores: soft evidence: logarithms of weights of the states of some variables, by variable, shape
            ``(batch or 1, states)``.
    """

    values: Tensor
    scores: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: TableModel, observed: dict[int, int] | None = None) -> TableEvidence:
        """Evidence of one row.

        Args:
            model: the model.
            observed: state by variable.

        Raises:
            ObservationError: for a variable or a state that the model does not have.
        """
        values = torch.full((1, len(model.states)), -1)
        for variable, state in (observed or {}).items():
            if not 0 <= variable < len(model.states):
                raise ObservationError(
                    f"evidence: variable {variable} is not among the {len(model.states)} of "
                    f"model {model.name!r}, which are numbered from 0."
                )
            values[0, variable] = state
        evidence = cls(values)
        evidence.check(model)
        return evidence

    def rows(self, rows: Tensor) -> TableEvidence:
        """Evidence of some batch elements."""
        values = self.values[rows] if len(self.values) > 1 else self.values
        scores = {v: x[rows] if len(x) > 1 else x for v, x in self.scores.items()}
        return TableEvidence(values, scores)

    def check(self, model: TableModel) -> None:
        """Check evidence against a model.

        Raises:
            ObservationError: for another shape, or a state that a variable does not have.
        """
        count = len(model.states)
        if self.values.ndim != 2 or self.values.shape[1] != count or not len(self.values):
            raise ObservationError(
                f"evidence about model {model.name!r} has shape (batch, {count}), got "
                f"{tuple(self.values.shape)}."
            )
        if self.values.dtype != torch.long:
            raise ObservationError(f"evidence holds numbers of states, got dtype {self.values.dtype}.")
        states = torch.tensor(model.states, device=self.values.device)
        fewest, most = self.values.aminmax(dim=0)
        if bool(((fewest < -1) | (most >= states)).any()):
            wrong = (self.values < -1) | (self.values >= states)
            row, variable = (int(k) for k in wrong.nonzero()[0])
            raise ObservationError(
                f"evidence, row {row}: variable {model.names[variable]!r} has states 0 to "
                f"{model.states[variable] - 1}, got {int(self.values[row, variable])}."
            )
        for variable, scores in self.scores.items():
            if not 0 <= variable < count:
                raise ObservationError(
                    f"soft evidence about variable {variable}, but the {count} of model {model.name!r} are "
                    "numbered from 0."
                )
            if scores.ndim != 2 or scores.shape[1] != model.states[variable]:
                raise ObservationError(
                    f"soft evidence about {model.names[variable]!r} has shape (batch, "
                    f"{model.states[variable]}), got {tuple(scores.shape)}."
                )
            if bool(scores.isnan().any()) or bool((scores == torch.inf).any()):
                raise ObservationError(
                    f"soft evidence about {model.names[variable]!r} must be logarithms below +inf."
                )


def absorb(model: TableModel, evidence: TableEvidence) -> tuple[list[Family], Tensor, Tensor]:
    """Fix what every row observes, and add tables for the other evidence.

    Args:
        model: the model.
        evidence: evidence, which fits it.

    Returns:
        The tables over the other variables, the logarithm of the weights that remain, shape ``(batch
        or 1,)``, and the mask of the variables that every row observes.
    """
    values = evidence.values
    fewest, most = values.aminmax(dim=0)
    fixed, sometimes = fewest >= 0, most >= 0
    constant = torch.zeros(1, dtype=torch.float64, device=values.device)
    families: list[Family] = []
    for family in model.families:
        if not len(family.scopes):
            continue
        if not family.states:
            constant = constant + family.logs.double().sum(0)
            continue
        observed = fixed[family.scopes]
        if not bool(observed.any()):
            families.append(family)
            continue
        patterns, which = observed.unique(dim=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows = (which == number).nonzero()[:, 0]
            part = family if len(patterns) == 1 else Family(family.scopes[rows], family.logs[rows])
            reduced = _fix(part, pattern.tolist(), values)
            if reduced.scopes.shape[1]:
                families.append(reduced)
            else:
                constant = constant + reduced.logs.double().sum(0)
    partly = (sometimes & ~fixed).nonzero()[:, 0]
    sizes = torch.tensor(model.states, device=values.device)[partly]
    for size in sizes.unique().tolist():
        scope = partly[sizes == size]
        own = values.T[scope][:, None]
        states = torch.arange(size, device=values.device)[:, None]
        allowed = (own < 0) | (own == states)
        # 0 where allowed, else -inf; faster than torch.where
        logs = 1 - allowed.float().reciprocal_()
        families.append(Family(scope[:, None], logs.movedim(1, 2), is_partial=True))
    for variable, scores in evidence.scores.items():
        scores = scores.double()
        if fixed[variable]:
            index = values[:, variable, None].expand(max(len(values), len(scores)), -1)
            constant = constant + scores.expand(len(index), -1).gather(1, index)[:, 0]
        else:
            families.append(_unary(variable, scores))
    return families, constant, fixed


def _unary(variable: int, logs: Tensor) -> Family:
    return Family(torch.tensor([[variable]], device=logs.device), logs[None])


def _fix(family: Family, observed: Sequence[bool], values: Tensor) -> Family:
    """Select the observed states of some axes."""
    if not any(observed):
        return family
    known = [k for k, flag in enumerate(observed) if flag]
    open_axes = [k for k, flag in enumerate(observed) if not flag]
    index = torch.zeros(len(values), len(family.scopes), dtype=torch.long, device=values.device)
    for axis in known:
        index = index * family.states[axis] + values[:, family.scopes[:, axis]]
    logs = family.logs.permute(0, 1, *(2 + k for k in known), *(2 + k for k in open_axes))
    logs = logs.flatten(2, 1 + len(known))
    same = values.shape[0] == 1 or bool((index == index[:1]).all())
    if same:
        selected = logs[torch.arange(len(logs), device=logs.device), :, index[0]]
    else:
        batch = len(values)
        logs = logs.expand(-1, batch, *logs.shape[2:])
        rows = torch.arange(len(logs), device=logs.device)[:, None]
        selected = logs[rows, torch.arange(batch, device=logs.device), index.T]
    return Family(family.scopes[:, open_axes], selected)


def supports(model_states: Sequence[int], families: Sequence[Family]) -> Tensor:
    """States that some combination of the states of the others in each table allows (arc consistency).

    Args:
        model_states: number of states of each variable.
        families: tables.

    Returns:
        Mask of the states that remain, shape ``(variables, most states)``.
    """
    most = max(model_states, default=1)
    device = families[0].logs.device if families else None
    numbers = torch.arange(most, device=device)
    domain = numbers < torch.tensor(model_states, device=device)[:, None]
    masks = [(f, (f.logs.detach() > -torch.inf).any(1)) for f in families if not f.is_partial]
    masks = [(family, mask) for family, mask in masks if not bool(mask.all())]
    changed = bool(masks)
    while changed:
        changed = False
        for family, mask in masks:
            inside = mask
            for axis, size in enumerate(family.states):
                own = domain[family.scopes[:, axis], :size]
                inside = inside & own.view(
                    len(own), *(size if k == axis else 1 for k in range(mask.ndim - 1))
                )
            for axis, size in enumerate(family.states):
                others = [1 + k for k in range(mask.ndim - 1) if k != axis]
                possible = inside.amax(others) if others else inside
                variables = family.scopes[:, axis]
                allowed = torch.ones_like(domain, dtype=torch.uint8)
                full = torch.ones(len(variables), most, dtype=torch.uint8, device=device)
                full[:, :size] = possible.to(torch.uint8)
                allowed.scatter_reduce_(0, variables[:, None].expand(-1, most), full, "amin")
                remaining = domain & allowed.bool()
                if not torch.equal(remaining, domain):
                    domain, changed = remaining, True
    return domain


def restrict(
    families: Sequence[Family], domain: Tensor, model_states: Sequence[int]
) -> tuple[list[Family], list[int]]:
    """Leave out states, and regroup the tables by their new shapes.

    Args:
        families: tables.
        domain: mask of the states that remain, shape ``(variables, most states)``.
        model_states: number of states of each variable before.

    Returns:
        The smaller tables, and the number of states of each variable.
    """
    sizes = domain.sum(1)
    reduced = sizes < torch.tensor(model_states, device=domain.device)
    if not bool(reduced.any()):
        return list(families), list(model_states)
    remaining_states = [domain[v].nonzero()[:, 0] for v in range(len(model_states))]
    groups: dict[tuple[int, ...], list[Family]] = {}
    for family in families:
        touched = reduced[family.scopes].any(1)
        whole = (~touched).nonzero()[:, 0]
        if len(whole):
            part = family if len(whole) == len(touched) else Family(family.scopes[whole], family.logs[whole])
            groups.setdefault(part.states, []).append(part)
        for row in touched.nonzero()[:, 0].tolist():
            logs = family.logs[row : row + 1]
            for axis, variable in enumerate(family.scopes[row].tolist()):
                logs = logs.index_select(2 + axis, remaining_states[variable])
            part = Family(family.scopes[row : row + 1], logs)
            groups.setdefault(part.states, []).append(part)
    return [_joined(parts) for parts in groups.values()], sizes.tolist()


def _joined(parts: Sequence[Family]) -> Family:
    if len(parts) == 1:
        return parts[0]
    batch = max(part.logs.shape[1] for part in parts)
    logs = [part.logs.expand(-1, batch, *part.states) for part in parts]
    is_partial = all(part.is_partial for part in parts)
    return Family(torch.cat([part.scopes for part in parts]), torch.cat(logs), is_partial)


def grouped(families: Sequence[Family]) -> list[Family]:
    """Families joined by shape and batch size."""
    groups: dict[tuple[object, ...], list[Family]] = {}
    for family in families:
        groups.setdefault((family.is_partial, *family.logs.shape[1:]), []).append(family)
    return [_joined(parts) for parts in groups.values()]


def linear(families: Sequence[Family]) -> tuple[list[Tensor], Tensor]:
    """Tables divided by their largest entries, and the logarithm of all divisors, shape ``(batch or 1,)``."""
    tables = []
    device = families[0].logs.device if families else None
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for family in families:
        if family.is_partial:
            tables.append((family.logs == 0).double())
            continue
        logs = family.logs.double()
        shift = logs.detach().flatten(2).amax(2)
        shift = torch.where(shift > -torch.inf, shift, 0)
        tables.append((logs - shift.view(*shift.shape, *[1] * len(family.states))).exp())
        total = total + shift.sum(0)
    return tables, total


def rows_of(model: TableModel, rows: Tensor) -> TableModel:
    """The tables of some batch elements; the model itself if its tables have no batch.

    Args:
        model: tables.
        rows: numbers of batch elements.
    """
    if model.batch == 1:
        return model
    families = [replace(f, logs=f.logs[:, rows]) if f.logs.shape[1] > 1 else f for f in model.families]
    return replace(model, families=tuple(families))
