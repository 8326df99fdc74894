"""Lightweight Metropolis-Hastings (Wingate, Stuhlmüller and Goodman, 2011) on generative programs, many chains at once.

Where a program would demand something exactly, it is relaxed (structured-diffusion paper, Appendix A): each constraint of sudoku and sorting is a
coin that lands right with probability 0.9999 where it is met and 0.0001 where it is not, and E is Gaussian around A R with deviation 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unn import Partial
from unn.errors import DeclarationError, ObservationError, suggest

Values = Mapping[str, Tensor]
"""By site, shape ``(chains, *shape)``, float64 whatever is drawn."""

CERTAINTY = 0.9999
"""Of a coin for a constraint that is met."""


@dataclass(frozen=True, eq=False)
class Site:
    """Random choices of a program that are independent and have the same prior.

    Attributes:
        shape: of the choices.
        draw: so many choices from the prior, shape ``(count,)``.
        log_density: of the prior at choices of shape ``(count,)``, up to a constant; only needed with a drift.
        drift: standard deviation of Gaussian steps from where a choice is; 0 to propose from the prior, whatever it is now.
    """

    shape: tuple[int, ...]
    draw: Callable[[int, torch.Generator], Tensor]
    log_density: Callable[[Tensor], Tensor]
    drift: float = 0.0

    def propose(self, old: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """New choices for old ones, shape ``(count,)``, and the logarithm of how much more probable they are by prior and proposal together."""
        if not self.drift:
            # the proposal undoes the prior
            return self.draw(len(old), generator).to(old), torch.zeros_like(old)
        new = old + self.drift * torch.randn(len(old), generator=generator).to(old)
        return new, self.log_density(new) - self.log_density(old)


@dataclass(frozen=True, eq=False)
class Program:
    """A generative program whose choices are to be inferred.

    Attributes:
        sites: its random choices, by name.
        log_likelihood: of what was observed, given all choices, shape ``(chains,)``.
        given: choices that are known, by site; their batch axis is 1 or the number of chains.
        outputs: values that follow from the choices, by variable; by default the choices themselves.
    """

    sites: Mapping[str, Site]
    log_likelihood: Callable[[Values], Tensor]
    given: Mapping[str, Partial] = field(default_factory=dict)
    outputs: Callable[[Values], dict[str, Tensor]] = dict


@dataclass(frozen=True, eq=False)
class Chains:
    """Where chains have come to.

    Attributes:
        values: outputs of the program, by variable, shape ``(chains, *axes)``.
        log_likelihood: of each chain, shape ``(chains,)``.
        acceptance: the share of proposals that were accepted, shape ``(chains,)``; those that propose what was there before are.
    """

    values: Mapping[str, Tensor]
    log_likelihood: Tensor
    acceptance: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


def metropolis(program: Program, chains: int, steps: int, seed: int) -> Chains:
    """Start from the prior; in each step propose another value for one choice, taken at random from those that are not given.

    As the choices of these programs do not decide which others there are, the number of them cancels, and with proposals from the prior the ratio of
    the likelihoods alone decides. A chain of likelihood 0 takes whatever is proposed.

    Args:
        program: what to infer.
        chains: how many, independent of each other.
        steps: of each chain.
        seed: of everything random.

    Raises:
        DeclarationError: for a program without choices, chains or steps below 1, or a likelihood of another shape or with NaN.
        ObservationError: for given choices that do not fit the sites.
    """
    _check(program, chains, steps, seed)
    generator = torch.Generator().manual_seed(seed)
    sites = list(program.sites.values())
    owners = torch.cat([torch.full((math.prod(site.shape),), k) for k, site in enumerate(sites)])
    state, free = _start(program, chains, generator)
    # of each chain the places of free choices first
    places, many = (~free).to(torch.uint8).argsort(dim=1, stable=True), free.sum(1)
    current, accepted = _likelihood(program, state), torch.zeros(chains)
    for _ in range(steps):
        pick = (torch.rand(chains, generator=generator, dtype=torch.float64) * many).long()
        place = places.gather(1, pick[:, None])
        old = state.gather(1, place)[:, 0]
        new, ratio = _propose(sites, owners[place[:, 0]], old, generator)
        proposed = state.scatter(1, place, new[:, None])
        found = _likelihood(program, proposed)
        gain = torch.where(current.isneginf(), 0, found - current) + ratio
        taken = (torch.rand(chains, generator=generator, dtype=torch.float64).log() < gain) & (many > 0)
        state, current = torch.where(taken[:, None], proposed, state), torch.where(taken, found, current)
        accepted += taken
    return Chains(program.outputs(_views(program, state)), current, accepted / steps)


def for_chains(name: str, x: Tensor, chains: int) -> Tensor:
    """An observation for each chain, expanded where one serves them all.

    Raises:
        ObservationError: for another number of observations than one or that of the chains.
    """
    if len(x) not in (1, chains):
        raise ObservationError(f"{name} has {len(x)} batch elements, but there are {chains} chains.")
    return x.expand(chains, *x.shape[1:])


def uniform(count: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers between 0 and 1, shape ``(count,)``."""
    return torch.rand(count, generator=generator, dtype=torch.float64)


def whole_numbers(shape: tuple[int, ...], options: int) -> Site:
    """Choices from 0 to one less than the options, all equally probable."""
    return Site(shape, lambda count, generator: torch.randint(options, (count,), generator=generator), torch.zeros_like)


def relaxed(certainty: float) -> Callable[[Tensor], Tensor]:
    """The log-likelihood of coins that all say that constraints are met, of shape ``(chains,)``, by which of them are, ``(chains, constraints)``."""
    if not 0.5 < certainty < 1:
        raise DeclarationError(f"metropolis: the certainty must be between 0.5 and 1, got {certainty!r}.")
    right, wrong = math.log(certainty), math.log1p(-certainty)

    def found(met: Tensor) -> Tensor:
        number = met.sum(1).double()
        return number * right + (met.shape[1] - number) * wrong

    return found


def _propose(sites: list[Site], owner: Tensor, old: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """New choices and the logarithms of their ratios, each of shape ``(chains,)``; owner says of which site each is."""
    new, ratio = old.clone(), torch.zeros_like(old)
    for k, site in enumerate(sites):
        mine = (owner == k).nonzero()[:, 0]
        if len(mine):
            new[mine], ratio[mine] = site.propose(old[mine], generator)
    return new, ratio


def _start(program: Program, chains: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """All choices from the prior, or as given, and which are free, each of shape ``(chains, choices)``."""
    states, frees = [], []
    for name, site in program.sites.items():
        many = math.prod(site.shape)
        state = site.draw(chains * many, generator).double().view(chains, many)
        free = torch.ones(chains, many, dtype=torch.bool)
        if name in program.given:
            known = program.given[name]
            where = known.mask.expand(chains, *site.shape).reshape(chains, many)
            state = torch.where(where, known.value.double().expand(chains, *site.shape).reshape(chains, many), state)
            free = ~where
        states.append(state)
        frees.append(free)
    return torch.cat(states, 1), torch.cat(frees, 1)


def _views(program: Program, state: Tensor) -> dict[str, Tensor]:
    parts = state.split([math.prod(site.shape) for site in program.sites.values()], 1)
    return {name: part.reshape(len(state), *site.shape) for (name, site), part in zip(program.sites.items(), parts, strict=True)}


def _likelihood(program: Program, state: Tensor) -> Tensor:
    found = program.log_likelihood(_views(program, state))
    if found.shape != (len(state),) or bool(found.isnan().any()):
        raise DeclarationError(f"metropolis: the log-likelihood needs shape ({len(state)},) and no NaN, got {tuple(found.shape)}.")
    return found.double()


def _check(program: Program, chains: int, steps: int, seed: int) -> None:
    for name, number, least in (("chains", chains, 1), ("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise DeclarationError(f"metropolis: {name} must be a whole number >= {least}, got {number!r}.")
    if not sum(math.prod(site.shape) for site in program.sites.values()):
        raise DeclarationError("metropolis: the program has no random choices.")
    for name, known in program.given.items():
        if name not in program.sites:
            raise ObservationError(f"metropolis: the program has no site {name!r}.{suggest(name, program.sites)}")
        shape = program.sites[name].shape
        for x in (known.value, known.mask):
            if tuple(x.shape[1:]) != shape or len(x) not in (1, chains):
                raise ObservationError(f"site {name!r}: {chains} chains need given choices of shape (1 or {chains}, *{shape}), got {tuple(x.shape)}.")
        if known.mask.dtype != torch.bool:
            raise ObservationError(f"site {name!r}: the mask of given choices must be boolean, got {known.mask.dtype}.")
