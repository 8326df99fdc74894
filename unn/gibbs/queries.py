"""Queries about declarations: draws, and means with their errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..descent.checks import check_generator, given_array
from ..descent.collect import check_mappings
from ..descent.lengths import check_length
from ..errors import (
    ArgumentError,
    ConvergenceWarning,
    DeclarationError,
    InferenceError,
    ObservationError,
    UnknownNameError,
    unknown,
    whole_number,
)
from ..exact.mixed import continuous_variables
from ..graph.boundedness import boundedness_of
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from .chains import Chains, check_evidence, is_unbatched, refusal
from .diagnostics import bulk_size, effective_size, scale_reduction
from .options import GibbsOptions

Given = Mapping[str, Tensor | Partial]

_ENTRIES_AT_ONCE = 2**22
"""Draws of entries that diagnostics hold in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of Markov chains.

    Attributes:
        values: by variable, shape ``(queries, chains, draws, *axes)``; given values are repeated.
        free: names of the variables that are not given completely.
    """

    values: Mapping[str, Tensor]
    free: tuple[str, ...]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values:
            raise UnknownNameError(unknown("variable", name, self.values))
        return self.values[name]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in self.values.items())
        return f"Draws({shapes}; free: {', '.join(self.free) or 'none'})"


@dataclass(frozen=True, eq=False)
class GibbsMarginals:
    """Means that chains estimate, and how far to trust them.

    All are by variable, shape ``(queries, *axes)``.

    Attributes:
        means: probabilities of the options of categories and of the value 1 of binary nodes, means of other
            variables. Given values are unchanged.
        errors: standard deviation of the means over repetitions (Monte Carlo standard error); 0 where a value
            is given. Of an entry whose draws are all equal nothing is known, and its error is NaN.
        effective: effective number of draws of the bulk (``bulk_size``).
        reduction: rank-normalised R-hat (``scale_reduction``). Where all draws are equal it is NaN, or
            infinite for an entry of a continuous variable, whose chains have not moved.
    """

    means: Mapping[str, Tensor]
    errors: Mapping[str, Tensor]
    effective: Mapping[str, Tensor]
    reduction: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.means:
            raise UnknownNameError(unknown("variable", name, self.means))
        return self.means[name]

    @cached_property
    def worst_reduction(self) -> float:
        """Largest R-hat of all entries; chains above 1.01 have not forgotten where they started."""
        peaks = [float(x.nan_to_num(1.0, torch.inf).amax()) for x in self.reduction.values() if x.numel()]
        return max(peaks, default=1.0)

    @cached_property
    def converged(self) -> bool:
        """Whether R-hat is at most 1.01 for all entries."""
        return self.worst_reduction <= 1.01


@torch.no_grad()
def sample(
    graph: Declaration,
    given: Given | None = None,
    *,
    queries: int | None = None,
    sizes: Mapping[str, int] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    options: GibbsOptions | None = None,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draws from exp(-E / temperature) given evidence, by block Gibbs sampling.

    Categories, binary nodes, signs and structures take their discrete values; other variables any value of
    their domain. Each chain runs ``options.burn_in`` sweeps before its first draw. Draws of one chain depend
    on one another: see ``marginals`` for how much.

    Args:
        graph: declaration whose factors have energies.
        given: evidence by variable, complete or partial, and values of constants, a row for each query.
            Values of discrete variables need not be those that they take: the energy is that of grey pixels
            or probabilities as they are.
        queries: number of queries; that of the rows of the evidence by default.
        sizes: sizes of the axes without a static size.
        lengths: lengths of ragged axes by axis, shape ``(queries,)``.
        options: number of chains and draws, temperature.
        generator: random number generator; torch's global one by default.

    Raises:
        DeclarationError: for a factor without an energy, or a variable without an exact conditional.
        ObservationError: for evidence that does not fit the graph.
        InferenceError: for a variable that neither exact draws nor Langevin dynamics can move, or an energy
            without a lower bound.
        DivergenceError: if chains leave for infinity, as they do where the energy has no minimum.
        ArgumentError: for options out of range.

    Warns:
        ConvergenceWarning: for chains that constraints hold in place.
    """
    options = checked(options)
    chains = start(graph, given or {}, options, queries, sizes, lengths, generator)
    drawn: dict[str, list[Tensor]] = {}
    free = chains.state.plan.free
    for number in range(options.burn_in):
        chains.sweep(adapts=2 * number < options.burn_in)
    for _ in range(options.chain_draws):
        for _ in range(options.thinning):
            chains.sweep()
        for name, x in chains.values(free).items():
            drawn.setdefault(name, []).append(x)
    chains.check()
    values = {name: torch.stack(xs, 2) for name, xs in drawn.items()}
    fixed = tuple(name for name in graph.variables if name not in free)
    for name, x in chains.values(fixed).items():
        values[name] = x[:, :, None].expand(-1, -1, options.chain_draws, *x.shape[2:])
    return Draws({name: values[name] for name in graph.variables}, free)


@torch.no_grad()
def marginals(
    graph: Declaration,
    given: Given | None = None,
    *,
    queries: int | None = None,
    sizes: Mapping[str, int] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    options: GibbsOptions | None = None,
    generator: torch.Generator | None = None,
) -> GibbsMarginals:
    """Means of all variables under exp(-E / temperature) given evidence, with their errors.

    Arguments and errors as for ``sample``; at least 4 draws.
    """
    options = checked(options)
    if options.chain_draws < 4:
        raise ArgumentError(
            f"gibbs: errors of means need at least 4 draws of each chain, got {options.chain_draws}."
        )
    draws = sample(
        graph, given, queries=queries, sizes=sizes, lengths=lengths, options=options, generator=generator
    )
    continuous = set(continuous_variables(graph))
    means, errors, effective, reduction = {}, {}, {}, {}
    for name, x in draws.values.items():
        means[name] = x.mean((1, 2))
        if name not in draws.free:
            zero = torch.zeros_like(means[name], dtype=torch.float64)
            errors[name], effective[name], reduction[name] = zero, zero + x.shape[1] * x.shape[2], zero + 1
            continue
        parts = [_judged(part) for part in _parts(x)]
        errors[name], effective[name], reduction[name] = (
            torch.cat([part[k] for part in parts]).view(means[name].shape) for k in range(3)
        )
        stuck = reduction[name].isnan()
        if name not in continuous or lengths is not None:
            # nodes that are certain, and padding, have equal draws
            stuck = torch.zeros_like(stuck)
        observed = (given or {}).get(name)
        if isinstance(observed, Partial):
            where = _mask_like(observed.mask, means[name]).cpu()
            errors[name], stuck = torch.where(where, 0, errors[name]), stuck & ~where
        reduction[name] = torch.where(stuck, torch.inf, reduction[name])
    return GibbsMarginals(means, errors, effective, reduction)


def _mask_like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (x.ndim - mask.ndim)).expand(x.shape)


def _parts(x: Tensor) -> list[Tensor]:
    """Draws in parts of few entries, shape ``(chains, draws, entries)`` each."""
    flat = x.flatten(3).movedim(0, 2) if x.ndim > 3 else x[..., None].movedim(0, 2)
    flat = flat.flatten(2)
    size = max(1, _ENTRIES_AT_ONCE // (flat.shape[0] * flat.shape[1]))
    return list(flat.split(size, 2))


def _judged(draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Error of the mean, effective size of the bulk and R-hat of each entry."""
    wide = draws.double().cpu()
    deviation = wide.flatten(0, 1).std(0)
    error = deviation / effective_size(wide).sqrt()
    error = torch.where(deviation == 0, torch.nan, error)
    return error, bulk_size(wide), scale_reduction(wide)


def checked(options: GibbsOptions | None) -> GibbsOptions:
    """Options, checked.

    Raises:
        ArgumentError: for another type, or a value out of range.
    """
    if options is None:
        return GibbsOptions()
    if not isinstance(options, GibbsOptions):
        raise ArgumentError(f"gibbs: options must be a unn.gibbs.GibbsOptions, got {options!r}.")
    options.check("gibbs")
    return options


def start(
    graph: Declaration,
    given: Given,
    options: GibbsOptions,
    queries: int | None,
    sizes: Mapping[str, int] | None,
    lengths: Mapping[str, Tensor] | None,
    generator: torch.Generator | None,
) -> Chains:
    """Chains for some queries, before their first sweep; errors as for ``sample``."""
    reason = refusal(graph)
    if reason:
        raise DeclarationError(f"graph {graph.name!r}: {reason}.")
    check_generator(generator)
    check_mappings(given, None, lengths, sizes)
    for name in given:
        given_array(graph, name)
    require_bounded(graph, given)
    if queries is None:
        rows = [len(x.value if isinstance(x, Partial) else x) for x in _rows_of(graph, given)]
        queries = max(rows, default=1)
    whole_number("gibbs: queries", queries, 1, ArgumentError)
    for axis, length in (lengths or {}).items():
        check_length(axis, length, queries, torch.device("cpu"))
    try:
        return Chains(
            graph,
            given,
            queries,
            options.chains,
            options.tempering,
            sizes=sizes,
            lengths=lengths,
            temperature=options.temperature,
            generator=generator,
        )
    except ObservationError:
        check_evidence(graph, given, queries, sizes, lengths or {})
        raise


def require_bounded(graph: Declaration, given: Given) -> None:
    """Check that exp(-E) may have a finite sum, as far as the declaration tells.

    Raises:
        InferenceError: for an energy without a lower bound; says what to bound.

    Warns:
        ConvergenceWarning: where only what is observed of a variable in part could bound the energy.
    """
    names = [name for name, x in given.items() if name in graph.arrays and not _is_empty(x)]
    partial = [name for name in names if _is_partial(given[name])]
    verdict = boundedness_of(graph, [name for name in names if name not in partial])
    if verdict.bounded is not False:
        return
    if not partial or boundedness_of(graph, names).bounded is False:
        raise InferenceError(f"graph {graph.name!r}: exp(-E) has no finite sum. The energy: {verdict}")
    warnings.warn(
        f"graph {graph.name!r}: without the observed entries of {', '.join(partial)}, exp(-E) has no finite "
        f"sum, and whether it has one given these entries is not known. The energy: {verdict}",
        ConvergenceWarning,
        stacklevel=5,
    )


def _is_empty(value: Tensor | Partial) -> bool:
    """Whether evidence observes no entry."""
    return isinstance(value, Partial) and isinstance(value.mask, Tensor) and not bool(value.mask.any())


def _is_partial(value: Tensor | Partial) -> bool:
    """Whether evidence leaves entries open."""
    return isinstance(value, Partial) and isinstance(value.mask, Tensor) and not bool(value.mask.all())


def _rows_of(graph: Declaration, given: Given) -> list[Tensor | Partial]:
    return [
        x
        for name, x in given.items()
        if name in graph.arrays
        and isinstance(x, (Tensor, Partial))
        and (x.value if isinstance(x, Partial) else x).ndim
        and not is_unbatched(graph, name, x)
    ]
