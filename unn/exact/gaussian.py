"""Exact inference where the energy is quadratic: all variables have the regularizer ``SquaredNorm``,
and every factor couples at most two of them.

The energy is then 1/2 x'Px - h'x + c with a precision matrix P, and exp(-E) is a normal distribution
if P is positive definite. Gradients of the energy at the unit vectors are the rows of P, so that one
batch gives the whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..descent.energy import energy_terms
from ..errors import ArgumentError, DeclarationError, InferenceError, ObservationError, is_whole, suggest
from ..graph.arrays import Variable
from ..graph.declaration import Declaration
from ..graph.factor import EnergyFactor
from ..graph.partial import Partial
from ..regularizers import SquaredNorm
from .nodes import Given

_MOST = 4096
"""Largest number of entries of all variables: the precision matrix is dense."""


@dataclass(frozen=True, eq=False)
class GaussianMarginals:
    """The normal distribution of the entries that are not given.

    Attributes:
        means: means by variable, shape ``(batch, *axes)``; given entries are unchanged.
        variances: variances by variable, shape ``(batch, *axes)``; 0 for given entries.
        log_partition: logarithm of the integral of ``exp(-E)`` over the entries that are not given, shape
            ``(batch,)``.
        covariances: covariance matrix of all entries in the order of the variables, shape ``(batch, entries,
            entries)``; 0 for given entries.
    """

    means: Mapping[str, Tensor]
    variances: Mapping[str, Tensor]
    log_partition: Tensor
    covariances: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.means[name]

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent samples by variable, shape ``(batch, count, *axes)``.

        Args:
            count: number of samples for each row of evidence.
            generator: random number generator; torch's global one by default.

        Raises:
            ArgumentError: for a count below 1.
        """
        if not is_whole(count, 1):
            raise ArgumentError(f"sample: count must be a whole number of at least 1, got {count!r}.")
        values, vectors = torch.linalg.eigh(self.covariances.detach())
        root = vectors * values.clamp(min=0).sqrt()[:, None]
        batch, size = len(root), root.shape[1]
        noise = torch.randn(batch, count, size, generator=generator, dtype=root.dtype)
        flat = noise @ root.mT
        samples, first = {}, 0
        for name, mean in self.means.items():
            shape = mean.shape[1:]
            part = flat[..., first : first + shape.numel()].reshape(batch, count, *shape)
            samples[name] = mean.detach()[:, None] + part
            first += shape.numel()
        return samples


def gaussian_refusal(graph: Declaration) -> str:
    """Why the energy of a graph is not quadratic, in one sentence that names the variable or factor;
    empty if it
    is."""
    for name, variable in graph.variables.items():
        if type(variable.regularizer) is not SquaredNorm:
            return f"variable {name!r} has the regularizer {variable.regularizer!r}, not SquaredNorm"
    for name, factor in graph.factors.items():
        if not isinstance(factor, EnergyFactor) or factor.product() is None:
            return f"factor {name!r} ({type(factor).__name__}) is no product of arrays"
        degree = sum(isinstance(reference.array, Variable) for reference in factor.references)
        if degree > 2:
            return f"factor {name!r} couples {degree} variables, so that the energy is not quadratic"
    return "" if graph.variables else "the graph has no variables"


def gaussian_marginals(
    graph: Declaration, given: Given | None = None, *, sizes: Mapping[str, int] | None = None
) -> GaussianMarginals:
    """Means, covariances and log-partition of a graph with a quadratic energy.

    Differentiable by the parameters of the graph; computed in float64.

    Args:
        graph: declaration whose variables have the regularizer ``SquaredNorm`` and whose factors are
            products of at most two of them.
        given: evidence by variable, complete or partial; the same entries are given in each row.
        sizes: sizes of the axes without a static size.

    Raises:
        DeclarationError: for another graph; names the variable or factor.
        ObservationError: for evidence that does not fit the graph, or masks that differ between rows.
        InferenceError: for an energy that is not bounded below.

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
    shapes = _shapes(graph, sizes or {})
    precision, linear, constant = _quadratic(graph, shapes)
    values, known = _evidence(graph, given or {}, shapes)
    free = ~known
    inner = precision[free][:, free]
    factor, failed = torch.linalg.cholesky_ex(inner)
    if bool(failed):
        least = float(torch.linalg.eigvalsh(inner.detach())[0]) if len(inner) else 0.0
        raise InferenceError(
            f"graph {graph.name!r}: the energy is not bounded below, since the precision matrix of what is "
            f"not given has the eigenvalue {least:.3g}; give more, or weaken the couplings."
        )
    observed = values[:, known]
    # the energy of the free entries given the others, as a quadratic form
    shift = linear[free] - observed @ precision[known][:, free]
    mean = torch.cholesky_solve(shift.T, factor).T if len(inner) else shift
    rest = constant - observed @ linear[known]
    rest = rest + (observed @ precision[known][:, known] * observed).sum(1) / 2
    log_partition = 0.5 * len(inner) * math.log(2 * math.pi) - factor.diagonal().log().sum()
    log_partition = log_partition + (shift * mean).sum(1) / 2 - rest
    full = values.index_copy(1, free.nonzero()[:, 0], mean)
    inverse = torch.cholesky_inverse(factor) if len(inner) else inner
    places = free.nonzero()[:, 0]
    covariance = torch.zeros_like(precision)
    covariance = covariance.index_put((places[:, None], places[None]), inverse)
    variances = covariance.diagonal().expand(len(values), -1)
    return GaussianMarginals(
        _split(full, shapes),
        _split(variances, shapes),
        log_partition.expand(len(values)),
        covariance.expand(len(values), -1, -1),
    )


def _shapes(graph: Declaration, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables.

    Raises:
        DeclarationError: for an unknown size, or more entries than a dense matrix takes.
    """
    table = graph.size_table
    solved = table.solve({table.root(axis): size for axis, size in sizes.items()})
    shapes = {}
    for name, variable in graph.variables.items():
        shape = table.shape(variable, solved)
        if None in shape:
            axis = variable.axes[shape.index(None)]
            raise DeclarationError(
                f"graph {graph.name!r}: the size of axis {axis!r} of {name!r} is unknown; pass "
                f"sizes={{{axis!r}: ...}}."
            )
        shapes[name] = tuple(int(size or 0) for size in shape)
    entries = sum(math.prod(shape) for shape in shapes.values())
    if entries > _MOST:
        raise DeclarationError(
            f"graph {graph.name!r} has {entries} entries; exact inference of Gaussians takes at most {_MOST}."
        )
    return shapes


def _quadratic(graph: Declaration, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """Precision matrix, linear term and constant of the energy, float64."""
    entries = sum(math.prod(shape) for shape in shapes.values())
    points = torch.cat([torch.zeros(1, entries), torch.eye(entries)])
    like = next((p for p in graph.parameters()), next((b for b in graph.buffers()), points))
    differentiable = torch.is_grad_enabled() and any(p.requires_grad for p in graph.parameters())
    with torch.enable_grad():
        leaves = {n: x.to(like.dtype).requires_grad_() for n, x in _split(points, shapes).items()}
        terms = energy_terms(graph, leaves)
        energy = torch.stack(torch.broadcast_tensors(*(t.double() for t in terms.values()))).sum(0)
        gradients = torch.autograd.grad(energy.sum(), list(leaves.values()), create_graph=differentiable)
    flat = torch.cat([x.double().flatten(1) for x in gradients], 1)
    precision, constant = flat[1:] - flat[:1], energy[0]
    if not differentiable:
        precision, flat, constant = precision.detach(), flat.detach(), constant.detach()
    return (precision + precision.T) / 2, -flat[0], constant


def _evidence(
    graph: Declaration, given: Given, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Tensor, Tensor]:
    """Given values, 0 where there are none, shape ``(batch, entries)``, and the mask of the given
    entries, shape
    ``(entries,)``."""
    for name in given:
        if name not in shapes:
            raise ObservationError(f"graph {graph.name!r} has no variable {name!r}.{suggest(name, shapes)}")
    values, masks = [], []
    batch = max((len(x.value if isinstance(x, Partial) else x) for x in given.values()), default=1)
    for name, shape in shapes.items():
        x = given.get(name)
        value = x.value if isinstance(x, Partial) else x
        if value is None:
            values.append(torch.zeros(batch, math.prod(shape), dtype=torch.float64))
            masks.append(torch.zeros(math.prod(shape), dtype=torch.bool))
            continue
        if tuple(value.shape[1:]) != shape or len(value) not in (1, batch):
            raise ObservationError(
                f"variable {name!r} needs a tensor of shape ({', '.join(map(str, (batch, *shape)))}), got "
                f"{tuple(value.shape)}."
            )
        mask = x.mask if isinstance(x, Partial) else torch.ones(1, dtype=torch.bool)
        mask = mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim)).expand(value.shape).flatten(1)
        if not bool((mask == mask[:1]).all()):
            raise ObservationError(
                f"variable {name!r}: the rows of the evidence give different entries; ask one pattern at a "
                "time."
            )
        flat = torch.where(mask, value.double().flatten(1), 0)
        if not bool(flat.isfinite().all()):
            raise ObservationError(f"variable {name!r}: given values have NaN or infinite entries.")
        values.append(flat.expand(batch, -1))
        masks.append(mask[0])
    return torch.cat(values, 1), torch.cat(masks)


def _split(flat: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Rows of entries as values by variable."""
    parts = flat.split([math.prod(shape) for shape in shapes.values()], 1)
    return {
        name: part.reshape(len(flat), *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
