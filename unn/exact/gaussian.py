"""Exact inference where the energy is quadratic: all variables have the regularizer ``SquaredNorm``,
and every factor couples at most two of them.

The energy is then 1/2 x'Px - h'x + c with a precision matrix P, and exp(-E) is a normal distribution
if P is positive definite. P is sparse as the graph is, and is factorised by elimination.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..descent.checks import check_generator, given_array
from ..errors import DeclarationError, InferenceError, ObservationError, suggest
from ..graph.arrays import Constant
from ..graph.bounds import refusal_of_bounds
from ..graph.declaration import Declaration
from ..graph.dynamic import check_mapping, shapes_of, sizes_with
from ..graph.factor import Constraint, EnergyFactor
from ..graph.partial import Partial
from ..regularizers import SquaredNorm
from .factorisation import Factorisation, NotPositiveError, factorise_with_variances
from .nodes import Given, check_shape, on_cpu, ordinary_evidence
from .options import ExactOptions, check_count
from .quadratic import Pattern, Quadratic, pattern_of, quadratic_form, split
from .rounds import Elimination, plan_elimination

_MOST = 8192
"""Largest number of entries of which all covariances are given: they are a dense matrix."""

_PATTERNS = 16
"""Number of patterns of evidence of a graph whose orders are kept."""


@dataclass(frozen=True, eq=False)
class Normals:
    """Normal distributions of the entries that are not given, for several energies and rows of evidence.

    Attributes:
        means: of all entries, shape ``(energies, batch, entries)``.
        variances: of all entries, 0 for given ones, shape ``(energies, entries)``.
        log_partition: logarithm of the integral of ``exp(-E)``, shape ``(energies, batch)``.
        factorisation: of the precision matrices of the entries that are not given.
        free: numbers of these entries, shape ``(free,)``.
    """

    means: Tensor
    variances: Tensor
    log_partition: Tensor
    factorisation: Factorisation
    free: Tensor

    def sample(self, which: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples of all entries, shape ``(batch, count, entries)``.

        Args:
            which: number of the energy of each sample, shape ``(batch, count)``.
            generator: random number generator; torch's global one by default.
        """
        samples = self.means.detach()[which, torch.arange(len(which))[:, None]]
        if len(self.free):
            for energy in which.unique().tolist():
                row, place = (which == energy).nonzero(as_tuple=True)
                noise = self.factorisation.select(energy).noise(len(row), generator)[0]
                samples[row[:, None], place[:, None], self.free] += noise.T
        return samples


@dataclass(frozen=True, eq=False)
class GaussianMarginals:
    """The normal distribution of the entries that are not given.

    Attributes:
        means: means by variable, shape ``(batch, *axes)``; given entries are unchanged.
        variances: variances by variable, shape ``(batch, *axes)``; 0 for given entries.
        log_partition: logarithm of the integral of ``exp(-E)`` over the entries that are not given, shape
            ``(batch,)``.
        normals: the same by entry, in the order of the variables.
    """

    means: Mapping[str, Tensor]
    variances: Mapping[str, Tensor]
    log_partition: Tensor
    normals: Normals

    def __getitem__(self, name: str) -> Tensor:
        return self.means[name]

    @cached_property
    def covariances(self) -> Tensor:
        """Covariance matrix of all entries in the order of the variables, 0 for given entries, shape
        ``(batch, entries, entries)``.

        Raises:
            InferenceError: for more entries than a dense matrix takes.
        """
        free, entries = self.normals.free, self.normals.variances.shape[1]
        if entries > _MOST:
            raise InferenceError(
                f"the covariances of {entries} entries are a dense matrix, which is given for at most "
                f"{_MOST}; use variances, or sample."
            )
        identity = torch.eye(len(free), dtype=torch.float64)[None]
        inverse = self.normals.factorisation.solve(identity) if len(free) else identity
        covariance = inverse.new_zeros(entries, entries, len(inverse))
        covariance = covariance.index_put(
            (free[:, None], free[None]), (inverse + inverse.mT).movedim(0, 2) / 2
        )
        return covariance.movedim(2, 0).expand(len(self.log_partition), -1, -1)

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent samples by variable, shape ``(batch, count, *axes)``.

        Args:
            count: number of samples for each row of evidence.
            generator: random number generator; torch's global one by default.

        Raises:
            ArgumentError: for a count below 1.
            InferenceError: for a seed instead of a generator.
        """
        check_count(count)
        check_generator(generator)
        rows = len(self.log_partition)
        one = len(self.normals.variances) == 1
        which = (torch.zeros(rows, dtype=torch.long) if one else torch.arange(rows))[:, None].expand(
            -1, count
        )
        flat = self.normals.sample(which, generator)
        return split(flat, {name: tuple(mean.shape[1:]) for name, mean in self.means.items()})


def gaussian_refusal(graph: Declaration) -> str:
    """Why the energy of a graph is not quadratic, in one sentence that names the variable or factor; empty if
    it is."""
    for name, variable in graph.variables.items():
        if type(variable.regularizer) is not SquaredNorm:
            return f"variable {name!r} has the regularizer {variable.regularizer!r}, not SquaredNorm"
    if not graph.variables:
        return "the graph has no variables"
    return refusal_of_bounds(graph) or refusal_of_factors(graph, graph.variables)


def refusal_of_factors(graph: Declaration, continuous: Collection[str]) -> str:
    """Why the factors are not quadratic in continuous variables, in one sentence that names one; empty if
    they are. Constraints may be on other variables."""
    for name, factor in graph.factors.items():
        names = [reference.array.name for reference in factor.references]
        degree = sum(name in continuous for name in names)
        if isinstance(factor, Constraint):
            if degree:
                return f"constraint {name!r} is on continuous variables"
        elif not isinstance(factor, EnergyFactor) or factor.product() is None:
            return f"factor {name!r} ({type(factor).__name__}) is no product of arrays"
        elif degree > 2:
            return (
                f"factor {name!r} couples {degree} continuous variables, so that the energy is not quadratic"
            )
    return ""


def gaussian_marginals(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    options: ExactOptions | None = None,
) -> GaussianMarginals:
    """Means, variances, covariances and log-partition of a graph with a quadratic energy.

    By sparse elimination, whose order is searched once for a pattern of evidence: the cost of a chain is
    proportional to its length. Differentiable by the parameters of the graph; computed in float64.

    Args:
        graph: declaration whose variables have the regularizer ``SquaredNorm`` and whose factors are
            products of at most two of them.
        given: evidence by variable, complete or partial; the same entries are given in each row. Values of
            constants by name, shape ``(batch, *axes)`` or ``(*axes)``: each row has its own energy.
        sizes: sizes of the axes without a static size; those of the evidence by default.
        options: limit of the number of multiplications (``operations``).

    Raises:
        DeclarationError: for another graph; names the variable or factor.
        ObservationError: for evidence that does not fit the graph, or masks that differ between rows.
        InferenceError: for an energy that is not bounded below, or a graph beyond the limit.

    Example:
        >>> import torch, unn
        >>> from factors import Multilinear
        >>> g = unn.FactorGraph("pair", n=2)
        >>> x = g.variable("x", "n", unn.SquaredNorm())
        >>> w = g.constant("w", "", torch.tensor(0.5))
        >>> g.factor(Multilinear(w[""], x["i"], x["i+1"]))
        -sum w[] x[i] x[i+1]
        >>> given = {"x": unn.Partial(torch.ones(1, 2), torch.tensor([[True, False]]))}
        >>> unn.exact.gaussian_marginals(g, given)["x"]
        tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """
    reason = gaussian_refusal(graph)
    if reason:
        raise DeclarationError(f"graph {graph.name!r}: {reason}.")
    options = ExactOptions() if options is None else options
    options.check("gaussian_marginals")
    if torch.is_inference_mode_enabled():
        # elimination computes with autograd, which saves no tensors of this mode
        with torch.inference_mode(False), torch.no_grad():
            return gaussian_marginals(graph, ordinary_evidence(given), sizes=sizes, options=options)
    given = {} if given is None else given
    check_mapping("evidence", given)
    sizes = sizes_with(graph, given, sizes)
    pattern = pattern_of(graph, sizes, graph.variables)
    constants, evidence = constants_given(graph, given, sizes)
    values, known = entries_given(graph, evidence, pattern.shapes)
    form = quadratic_form(graph, pattern, constants)
    energies = len(form.constant)
    if energies == 1:
        normal = normal_given(graph, pattern, form, values.T[None], known, options)
        means, log_partition = normal.means[0], normal.log_partition[0]
    else:
        if len(values) not in (1, energies):
            raise ObservationError(
                f"graph {graph.name!r}: {energies} rows of constants are given, and {len(values)} of the "
                "evidence."
            )
        # one row for each energy
        normal = normal_given(graph, pattern, form, values[..., None], known, options)
        means, log_partition = normal.means[:, 0], normal.log_partition[:, 0]
        normal = replace(normal, means=normal.means.expand(-1, energies, -1))
    return GaussianMarginals(
        split(means, pattern.shapes),
        split(normal.variances.expand(len(means), -1), pattern.shapes),
        log_partition,
        normal,
    )


def normal_given(
    graph: Declaration,
    pattern: Pattern,
    form: Quadratic,
    x: Tensor,
    known: Tensor,
    options: ExactOptions,
) -> Normals:
    """The normal distributions of some entries of quadratic energies, given the others.

    Args:
        graph: the declaration, for messages.
        pattern: coupled entries.
        form: the energies.
        x: given values, 0 elsewhere, shape ``(energies or 1, entries, batch)``.
        known: mask of the given entries, shape ``(entries,)``.
        options: limits.

    Raises:
        InferenceError: for an energy that is not bounded below, or a graph beyond the limit.
    """
    where = f"graph {graph.name!r}"
    cache: BoundedCache[object, Elimination]
    cache = graph.memo((__name__, "orders"), lambda: BoundedCache(_PATTERNS))
    free = (~known).nonzero()[:, 0]
    place = torch.cumsum(~known, 0) - 1
    row, column = pattern.rows, pattern.columns
    inner = ~known[row] & ~known[column]
    pairs = torch.stack([place[row[inner]], place[column[inner]]])
    # the diagonal comes first, as in the order
    count = len(free)
    key = (pattern.key, known.numpy().tobytes(), options.operations)
    plan = cache.get_or_make(
        key,
        lambda: plan_elimination(pairs.T[count:].tolist(), count, 2.0**options.operations, where),
    )
    try:
        factor, own = factorise_with_variances(plan, form.precision[:, inner])
    except NotPositiveError as error:
        raise InferenceError(
            f"{where}: the energy is not bounded below: the precision matrix of what is not given is not "
            f"positive definite at {pattern.entry_name(int(free[error.entry]))}; give more, or weaken the "
            "couplings."
        ) from None
    # the energy of the free entries given the others, as a quadratic form
    product = form.times(pattern, x)
    shift = (form.linear[..., None] - product)[:, free]
    rest = form.constant[:, None] + (x * (product / 2 - form.linear[..., None])).sum(1)
    mean = factor.solve(shift)
    log_partition = 0.5 * count * math.log(2 * math.pi) - factor.log_determinant[:, None] / 2
    log_partition = log_partition + (shift * mean).sum(1) / 2 - rest
    means = x.expand(len(mean), -1, -1).index_copy(1, free, mean)
    spread = own.new_zeros(len(own), len(known)).index_copy(1, free, own)
    return Normals(means.mT, spread, log_partition, factor, free)


def constants_given(
    graph: Declaration, given: Given, sizes: Mapping[str, int]
) -> tuple[dict[str, Tensor], dict[str, Tensor | Partial]]:
    """The values of constants that come with a query, and the evidence on variables.

    Args:
        graph: declaration.
        given: evidence, and values of constants, shape ``(rows, *axes)`` or ``(*axes)``.
        sizes: sizes of the axes without a static size.

    Returns:
        Constants by name, float64, shape ``(rows, *axes)``, and the rest of ``given``, on the CPU.

    Raises:
        ObservationError: for a constant without a value or with two, values that do not fit, or other numbers
            of rows.
    """
    check_mapping("evidence", given)
    given = on_cpu(given)
    names = [name for name, array in graph.arrays.items() if isinstance(array, Constant)]
    constants: dict[str, Tensor] = {}
    for name in names:
        if name not in given:
            if name not in graph.fixed_values():
                raise ObservationError(f"constant {name!r} has no value; pass it with the evidence.")
            continue
        given_array(graph, name)
        x, shape = given[name], shapes_of(graph, sizes, [name])[name]
        real = isinstance(x, Tensor) and x.numel() > 0 and not x.is_complex()
        if not isinstance(x, Tensor) or not real or shape not in (tuple(x.shape), tuple(x.shape[1:])):
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ObservationError(
                f"constant {name!r} needs a tensor of real numbers of shape "
                f"({', '.join(map(str, ('batch', *shape)))}), got {got}."
            )
        constants[name] = x.double().reshape(-1, *shape)
        if not bool(constants[name].isfinite().all()):
            raise ObservationError(f"constant {name!r} has NaN or infinite entries.")
    rows = {name: len(x) for name, x in constants.items() if len(x) > 1}
    if len(set(rows.values())) > 1:
        raise ObservationError(
            f"graph {graph.name!r}: the constants have different numbers of rows: "
            + ", ".join(f"{name} {count}" for name, count in rows.items())
            + "."
        )
    return constants, {name: x for name, x in given.items() if name not in names}


def entries_given(
    graph: Declaration, given: Given, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Tensor, Tensor]:
    """Given values, 0 where there are none, shape ``(batch, entries)``, and the mask of the given entries,
    shape ``(entries,)``.

    Raises:
        ObservationError: for evidence that does not fit, or masks that differ between rows.
    """
    for name, own in given.items():
        if name not in shapes:
            raise ObservationError(f"graph {graph.name!r} has no variable {name!r}.{suggest(name, shapes)}")
        check_shape(name, own.value if isinstance(own, Partial) else own, shapes[name])
    values, masks = [], []
    batch = max((len(x.value if isinstance(x, Partial) else x) for x in given.values()), default=1)
    for name, shape in shapes.items():
        x = given.get(name)
        value = x.value if isinstance(x, Partial) else x
        if value is None:
            values.append(torch.zeros(batch, math.prod(shape), dtype=torch.float64))
            masks.append(torch.zeros(math.prod(shape), dtype=torch.bool))
            continue
        if len(value) not in (1, batch):
            raise ObservationError(
                f"variable {name!r}: {len(value)} batch elements are given, but {batch} by other variables."
            )
        mask = x.mask if isinstance(x, Partial) else torch.ones(value.shape, dtype=torch.bool)
        fits = (
            isinstance(mask, Tensor)
            and mask.dtype == torch.bool
            and 0 < mask.ndim <= value.ndim
            # engines repeat axes of size 1
            and all(own in (1, size) for own, size in zip(mask.shape, value.shape, strict=False))
        )
        if not fits:
            raise ObservationError(
                f"variable {name!r}: the mask of a partial observation must be boolean and have the shape of "
                f"the value, {tuple(value.shape)}, or of its first axes."
            )
        mask = (
            mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
            .expand(value.shape)
            .reshape(len(value), -1)
        )
        if not bool((mask == mask[:1]).all()):
            raise ObservationError(
                f"variable {name!r}: the rows of the evidence give different entries; ask one pattern at a "
                "time."
            )
        flat = torch.where(mask, value.double().reshape(len(value), -1), 0)
        if not bool(flat.isfinite().all()):
            raise ObservationError(f"variable {name!r}: given values have NaN or infinite entries.")
        values.append(flat.expand(batch, -1))
        masks.append(mask[0])
    return torch.cat(values, 1), torch.cat(masks)
