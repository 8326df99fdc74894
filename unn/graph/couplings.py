"""Upper bounds on the coupling of variables by products, from values of constants and sizes of domains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DeclarationError
from ..regularizers import (
    L1,
    AlongAxis,
    Elementwise,
    LogPartition,
    NonNegative,
    Regularizer,
    Simplex,
    SquaredNorm,
)
from .arrays import Constant, Reference, Variable

if TYPE_CHECKING:
    from .declaration import Declaration
    from .factor import EnergyFactor

_ROUNDING = 1e-12


def grows_like_a_square(regularizer: Regularizer) -> bool:
    """Whether Psi(x) >= ||x||^2 / 2 with the same growth; known for classes of this package, not their
    subclasses."""
    return type(regularizer) in (SquaredNorm, NonNegative, L1)


def never_negative(graph: Declaration, factor: EnergyFactor) -> bool:
    """Whether the energy of a product is >= 0 by the signs of domains and constants."""
    if factor.product() is None:
        return False
    sign = -1.0
    for reference in factor.references:
        if isinstance(reference.array, Variable):
            own = 1.0 if _domain_is_nonnegative(reference.array.regularizer) else math.nan
        else:
            own = _sign_of_constant(graph, reference)
        if own == 0:
            return True
        sign *= own
    return sign > 0


def dominated(
    graph: Declaration,
    undecided: Sequence[EnergyFactor],
    factors: Sequence[EnergyFactor],
    decrease: dict[EnergyFactor, int | None],
    open_names: set[str],
) -> set[EnergyFactor]:
    """Factors of degree 2 that quadratic regularizers outweigh jointly.

    With |E_f| <= c_f |u| |v| for the two unbounded variables of each factor, the energy is at least the form
    1/2 sum |u|^2 - sum c_f |u| |v| in the norms of the variables, which is bounded below, together with all
    factors of degree at most 1, if it is positive definite. A positive semidefinite form suffices only
    without such factors.

    Args:
        graph: graph of the factors.
        undecided: factors of degree 2 or more.
        factors: all factors with an energy.
        decrease: degree of the fall of each factor in the unbounded variables.
        open_names: names of unobserved variables with unbounded domains.
    """
    bounds = {
        f: bound
        for f in undecided
        if decrease[f] == 2 and (bound := _coupling_bound(graph, f, open_names)) is not None
    }
    pairs = {f: [r.array.name for r in f.references if r.array.name in open_names] for f in bounds}
    small: set[EnergyFactor] = set()
    for group in _components(pairs):
        names = sorted({name for f in group for name in pairs[f]})
        form = 0.5 * np.eye(len(names))
        for f in group:
            a, b = (names.index(name) for name in pairs[f])
            form[a, b] -= bounds[f] / 2
            form[b, a] -= bounds[f] / 2
        least = float(np.linalg.eigvalsh(form)[0])
        alone = not any(set(f.variables) & set(names) for f in factors if f not in group and decrease[f] != 0)
        if least > _ROUNDING or (alone and least >= -_ROUNDING):
            small |= set(group)
    return small


def _components(pairs: dict[EnergyFactor, list[str]]) -> list[list[EnergyFactor]]:
    """Factors grouped by common variables."""
    groups: list[tuple[set[str], list[EnergyFactor]]] = []
    for factor, names in pairs.items():
        touching = [group for group in groups if group[0] & set(names)]
        merged = (
            {*names}.union(*(group[0] for group in touching)),
            [f for group in touching for f in group[1]] + [factor],
        )
        groups = [group for group in groups if group not in touching] + [merged]
    return [members for _, members in groups]


def _coupling_bound(graph: Declaration, factor: EnergyFactor, open_names: set[str]) -> float | None:
    """c with |E| <= c |u| |v| for the two occurrences u and v of unbounded variables; None if not known.

    By the Cauchy-Schwarz inequality, a contraction is at most the product of the norms of its operands if
    each letter occurs in at least two of them; a letter in only one contributes the square root of its size.
    For a matrix between u and v, the spectral norm replaces the Frobenius norm. Entries that an index gathers
    several times count as often.
    """
    ends = [r for r in factor.references if r.array.name in open_names]
    others = [r for r in factor.references if r.array.name not in open_names]
    condition = factor.product()
    if condition is None or not all(
        grows_like_a_square(graph.variables[r.array.name].regularizer) for r in ends
    ):
        return None
    bound = 1.0
    for reference in others:
        norm = _norm(graph, reference)
        if norm is None:
            return None
        bound *= norm
    if len(others) == 1 and isinstance(others[0].array, Constant) and not condition:
        bound = min(bound, _spectral_norm(graph, others[0], ends))
    bound *= math.sqrt(math.prod(_repetitions(factor, reference) for reference in factor.references))
    letters = {letter for reference in factor.references for letter in reference.letters}
    single = [letter for letter in letters if sum(letter in r.letters for r in factor.references) == 1]
    if single:
        sizes = _letter_sizes(graph, factor)
        if not set(single) <= set(sizes):
            return None
        bound *= math.prod(sizes[letter] for letter in single) ** 0.5
    return bound


def _repetitions(factor: EnergyFactor, reference: Reference) -> int:
    """How often a reference has an entry of its array at most, as an index can repeat it."""
    return math.prod(
        int(np.bincount(factor.indices[dimension.index].array).max(initial=0))
        for dimension in reference.pattern.dimensions
        if dimension.index is not None
    )


def _spectral_norm(graph: Declaration, weight: Reference, ends: Sequence[Reference]) -> float:
    """The largest singular value of a constant between two variables; infinite if it is not a matrix between
    them."""
    left = [
        letter for letter in weight.letters if letter in ends[0].letters and letter not in ends[1].letters
    ]
    right = [
        letter for letter in weight.letters if letter in ends[1].letters and letter not in ends[0].letters
    ]
    plain = all(r.pattern.plain and len(set(r.letters)) == len(r.letters) for r in (weight, *ends))
    if not plain or len(left) + len(right) != len(weight.letters):
        return math.inf
    value = graph.fixed_values()[weight.array.name].detach().double().cpu()
    order = [weight.letters.index(letter) for letter in (*left, *right)]
    rows = math.prod(value.shape[k] for k in order[: len(left)])
    matrix = value.permute(order).reshape(rows, -1).numpy()
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


def _norm(graph: Declaration, reference: Reference) -> float | None:
    """The largest Frobenius norm that an array can have; None if not known."""
    array = reference.array
    if isinstance(array, Constant):
        value = graph.fixed_values().get(array.name)
        return None if value is None or value.is_meta else float(value.detach().double().norm())
    if not isinstance(array, Variable):
        return None
    regularizer = array.regularizer
    shape = graph.size_table.shape(array, graph.size_table.static)
    if isinstance(regularizer, AlongAxis):
        row, others = shape[regularizer.dim], list(shape)
        del others[regularizer.dim]
        return _scaled_root(regularizer.row_norm(math.inf if row is None else row), others)
    if isinstance(regularizer, Elementwise):
        return _scaled_root(max(map(abs, regularizer.interval())), shape)
    return None


def _scaled_root(radius: float, sizes: Sequence[int | None]) -> float | None:
    """The norm of an array whose rows or entries have norm ``radius``; None if a size is unknown or the
    radius infinite."""
    known = [size for size in sizes if size is not None]
    return radius * math.prod(known) ** 0.5 if len(known) == len(sizes) and math.isfinite(radius) else None


def _domain_is_nonnegative(regularizer: Regularizer) -> bool:
    if isinstance(regularizer, Elementwise):
        return regularizer.interval()[0] >= 0
    return isinstance(regularizer, (Simplex, LogPartition))


def _sign_of_constant(graph: Declaration, reference: Reference) -> float:
    """Common sign of all entries, 1, -1 or 0; NaN for mixed signs, parameters and constants without
    values."""
    value = graph.fixed_values().get(reference.array.name)
    if not isinstance(reference.array, Constant) or value is None or value.is_meta:
        return math.nan
    low, high = (float(value.amin()), float(value.amax())) if value.numel() else (0.0, 0.0)
    return 0.0 if low == high == 0 else 1.0 if low >= 0 else -1.0 if high <= 0 else math.nan


def _letter_sizes(graph: Declaration, factor: EnergyFactor) -> dict[str, int]:
    """Sizes of letters, from arrays whose sizes are all static."""
    table = graph.size_table
    shapes = {r.array.name: table.shape(r.array, table.static) for r in factor.references}
    static_shapes = {
        name: [size for size in shape if size is not None]
        for name, shape in shapes.items()
        if None not in shape
    }
    try:
        return factor.letter_sizes(static_shapes)
    except DeclarationError:
        return {}
