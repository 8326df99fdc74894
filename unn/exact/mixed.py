"""Exact inference where the energy is quadratic given the discrete nodes, and these are few.

For each joint state of the discrete nodes, ``exp(-E)`` is a normal distribution of the continuous ones (a
conditional Gaussian model; Lauritzen, 1992). The joint states are enumerated together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..descent.checks import check_generator
from ..errors import DeclarationError, InferenceError, ObservationError, suggest
from ..graph.bounds import refusal_of_bounds
from ..graph.declaration import Declaration
from ..graph.dynamic import check_mapping, shapes_of, sizes_with
from ..graph.partial import Partial
from ..regularizers import SquaredNorm
from .gaussian import Normals, constants_given, entries_given, normal_given, refusal_of_factors
from .ground import NEVER
from .nodes import Given, Nodes, check_shape, has_states, ordinary_evidence
from .options import ExactOptions, check_count
from .quadratic import Quadratic, Shapes, pattern_of, quadratic_form, split

_MOST = 2**14
"""Largest number of joint states of the discrete nodes."""


@dataclass(frozen=True, eq=False)
class MixedMarginals:
    """Exact marginals of discrete and continuous variables.

    Attributes:
        means: by variable, shape ``(batch, *axes)``: probabilities of the options of categories and of the
            value 1 of binary nodes, means of spins and of continuous variables. Given values are unchanged.
        variances: variances of continuous variables, shape ``(batch, *axes)``; 0 for given entries.
        log_partition: logarithm of ``exp(-E)``, summed over the discrete nodes and integrated over the
            continuous ones, shape ``(batch,)``; -inf where no values agree with the evidence, and then
            probabilities and variances are 0.
        states: joint states of the discrete nodes, by variable, shape ``(joint states, *axes)``.
        probabilities: their probabilities, shape ``(batch, joint states)``.
        normals: normal distributions of the continuous variables given each joint state.
        shapes: shapes of the continuous variables.
    """

    means: Mapping[str, Tensor]
    variances: Mapping[str, Tensor]
    log_partition: Tensor
    states: Mapping[str, Tensor]
    probabilities: Tensor
    normals: Normals
    shapes: Shapes

    def __getitem__(self, name: str) -> Tensor:
        return self.means[name]

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent samples by variable, shape ``(batch, count, *axes)``.

        Args:
            count: number of samples for each row of evidence.
            generator: random number generator; torch's global one by default.

        Raises:
            ArgumentError: for a count below 1.
            InferenceError: for evidence of probability zero, or a seed instead of a generator.
        """
        check_count(count)
        check_generator(generator)
        impossible = (self.log_partition == -math.inf).nonzero()[:, 0]
        if len(impossible):
            raise InferenceError(
                f"row {int(impossible[0])} of the evidence has probability zero, so there is nothing to "
                "sample."
            )
        weights = self.probabilities.detach()
        which = weights.multinomial(count, replacement=True, generator=generator)
        discrete = {name: x[which] for name, x in self.states.items()}
        return discrete | split(self.normals.sample(which, generator), self.shapes)


def continuous_variables(graph: Declaration) -> list[str]:
    """Names of the variables with a quadratic regularizer."""
    return [name for name, variable in graph.variables.items() if type(variable.regularizer) is SquaredNorm]


def mixed_refusal(graph: Declaration) -> str:
    """Why the energy of a graph is not quadratic given its discrete nodes, in one sentence that names the
    variable or factor; empty if it is."""
    continuous = continuous_variables(graph)
    for name, variable in graph.variables.items():
        if name not in continuous and not has_states(variable):
            return (
                f"variable {name!r} is neither categorical, binary nor a spin, and has the regularizer "
                f"{variable.regularizer!r}, not SquaredNorm"
            )
    if not continuous:
        return "the graph has no continuous variables"
    return refusal_of_bounds(graph) or refusal_of_factors(graph, continuous)


def mixed_marginals(
    graph: Declaration,
    given: Given | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    options: ExactOptions | None = None,
) -> MixedMarginals:
    """Marginals of a graph whose energy is quadratic given its discrete nodes.

    All joint states of the discrete nodes that agree with some row of the evidence are enumerated, at most
    16,384. Differentiable by the parameters of the graph; computed in float64.

    Args:
        graph: declaration whose variables are discrete or have the regularizer ``SquaredNorm``, and whose
            factors are products of at most two continuous variables and any discrete ones, or constraints on
            discrete variables.
        given: evidence by variable, complete or partial; of continuous variables the same entries are given
            in each row. Values of constants by name, shape ``(1, *axes)`` or ``(*axes)``.
        sizes: sizes of the axes without a static size; those of the evidence by default.
        options: limits of the number of multiplications (``operations``) and of memory.

    Raises:
        DeclarationError: for another graph; names the variable or factor.
        ObservationError: for evidence that does not fit the graph.
        InferenceError: for an energy that is not bounded below, or a graph beyond the limits.

    Example:
        >>> import torch, unn
        >>> from factors import Multilinear
        >>> g = unn.FactorGraph("mixture", k=2)
        >>> z = g.variable("z", "| k", unn.Entropy())
        >>> x = g.variable("x", "", unn.SquaredNorm())
        >>> m = g.constant("m", "k", torch.tensor([-2.0, 2.0]))
        >>> g.factor(Multilinear(m["k"], z["k"], x[""]))
        -sum m[k] z[k] x[]
        >>> unn.exact.mixed_marginals(g, {"x": torch.tensor([0.5])})["z"]
        tensor([[0.1192, 0.8808]], dtype=torch.float64)
    """
    reason = mixed_refusal(graph)
    if reason:
        raise DeclarationError(f"graph {graph.name!r}: {reason}.")
    options = ExactOptions() if options is None else options
    options.check("mixed_marginals")
    if torch.is_inference_mode_enabled():
        # elimination computes with autograd, which saves no tensors of this mode
        with torch.inference_mode(False), torch.no_grad():
            return mixed_marginals(graph, ordinary_evidence(given), sizes=sizes, options=options)
    check_mapping("evidence", given)
    sizes = sizes_with(graph, given, sizes)
    constants, given = constants_given(graph, {} if given is None else given, sizes)
    for name, constant in constants.items():
        if len(constant) > 1:
            raise ObservationError(
                f"constant {name!r}: {len(constant)} rows are given, but discrete and continuous variables "
                "together take one; ask one row at a time, or use the engine exact, which does."
            )
    shapes = shapes_of(graph, sizes, graph.variables)
    for name, x in given.items():
        if name not in graph.variables:
            raise ObservationError(
                f"graph {graph.name!r} has no variable {name!r}.{suggest(name, graph.variables)}"
            )
        check_shape(name, x.value if isinstance(x, Partial) else x, shapes[name])
    continuous = continuous_variables(graph)
    discrete = [name for name in graph.variables if name not in continuous]
    batch = max((_rows(x) for x in given.values()), default=1)
    for name, x in given.items():
        if _rows(x) not in (1, batch):
            raise ObservationError(
                f"variable {name!r}: {_rows(x)} batch elements are given, but {batch} by other variables."
            )
    nodes = Nodes(graph, sizes, discrete)
    evidence = nodes.evidence({name: x for name, x in given.items() if name in discrete}, batch=batch)
    states, allowed = _joint_states(graph, nodes, evidence.values)
    values_of_states = nodes.values(states)
    agrees = ((evidence.values[:, None] == states) | (evidence.values[:, None] < 0)).all(2) & allowed
    pattern = pattern_of(graph, sizes, continuous)
    rows = {name: x for name, x in given.items() if name in continuous}
    values, known = entries_given(graph, rows, pattern.shapes)
    _check_memory(graph, len(states) * batch * pattern.entries, options)
    form = quadratic_form(graph, pattern, {**values_of_states, **constants})
    never = form.constant >= -NEVER
    # a state that no row has may be one whose energy has no minimum
    form, agrees = _without(form, never | ~agrees.any(0), pattern.entries), agrees & ~never
    normals = normal_given(graph, pattern, form, values.expand(batch, -1).T[None], known, options)
    logs = torch.where(agrees, normals.log_partition.T, -math.inf)
    total = logs.logsumexp(1)
    possible = total > -math.inf
    shares = torch.where(agrees, (logs - torch.where(possible, total, 0)[:, None]).exp(), 0)
    by_row = normals.means.transpose(0, 1)
    mean = torch.where(known, values, (shares[..., None] * by_row).sum(1))
    spread = (shares[..., None] * (normals.variances + (by_row - mean[:, None]).square())).sum(1)
    spread = torch.where(known, 0, spread)
    marginal = {name: torch.einsum("bc,c...->b...", shares, x) for name, x in values_of_states.items()}
    # probabilities of given states are 1 up to rounding
    for name, x in nodes.values(evidence.values.clamp(min=0)).items():
        own = nodes.ranges[name]
        observed = (evidence.values[:, own.first : own.first + own.nodes] >= 0) & possible[:, None]
        observed = observed.reshape(batch, *own.node_shape, *(1,) * len(own.feature_shape))
        marginal[name] = torch.where(observed, x, marginal[name])
    return MixedMarginals(
        {**marginal, **split(mean, pattern.shapes)},
        split(spread, pattern.shapes),
        total,
        values_of_states,
        shares,
        normals,
        pattern.shapes,
    )


def _without(form: Quadratic, never: Tensor, entries: int) -> Quadratic:
    """The energies, with standard normal distributions in place of those of weight zero."""
    identity = (torch.arange(form.precision.shape[1]) < entries).to(form.precision)
    return Quadratic(
        torch.where(never[:, None], identity, form.precision),
        torch.where(never[:, None], 0, form.linear),
        torch.where(never, 0, form.constant),
    )


def _joint_states(graph: Declaration, nodes: Nodes, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Joint states that agree with some row of the evidence, shape ``(joint states, nodes)``, and the mask of
    those that meet all constraints, which are all of them if there is any.

    Args:
        graph: the declaration, for messages.
        nodes: the discrete nodes.
        observed: observed states, -1 where there are none, shape ``(batch, nodes)``.

    Raises:
        InferenceError: for too many.
    """
    always = (observed >= 0).all(0)
    given = observed[:, always].unique(dim=0) if bool(always.any()) else observed.new_zeros(1, 0)
    free = [k for k, own in enumerate(always.tolist()) if not own]
    count = len(given) * math.prod(nodes.states[k] for k in free)
    if count > _MOST:
        raise InferenceError(
            f"graph {graph.name!r}: {len(free)} discrete nodes are not given in all rows, and have too many "
            f"joint states: {count:,} are to be enumerated, and {_MOST:,} are allowed; give more of them."
        )
    axes = [torch.arange(nodes.states[k]) for k in free]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(free)) if free else torch.zeros(1, 0).long()
    states = torch.zeros(len(given), len(grid), nodes.count, dtype=torch.long)
    states[:, :, always] = given[:, None]
    states[:, :, ~always] = grid
    states = states.flatten(0, 1)
    if not graph.constraints:
        return states, torch.ones(len(states), dtype=torch.bool)
    values = nodes.values(states)
    allowed = torch.stack([c.violations_of(values) for c in graph.constraints]).sum(0) == 0
    # what constraints exclude needs no normal distribution; one state remains where they exclude all
    taken = allowed if bool(allowed.any()) else torch.arange(len(states)) == 0
    return states[taken], allowed[taken]


def _check_memory(graph: Declaration, means: int, options: ExactOptions) -> None:
    """Refuse means of all joint states, rows and entries that do not fit into memory.

    Raises:
        InferenceError: names the size.
    """
    # means, their squares and products with probabilities
    needed = 4 * 8 * means / 2**30
    if needed > options.memory:
        raise InferenceError(
            f"graph {graph.name!r}: the means given each joint state need {needed:.1f} GiB, and "
            f"{options.memory:g} are allowed (option memory); give fewer rows at a time, or more nodes."
        )


def _rows(x: Tensor | Partial) -> int:
    return len(x.value if isinstance(x, Partial) else x)
