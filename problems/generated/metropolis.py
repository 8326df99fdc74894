"""Lightweight Metropolis-Hastings (Wingate, Stuhlmüller and Goodman, 2011) on generative programs, many
chains at once.

Exact constraints are relaxed (structured-diffusion paper, Appendix A): each constraint of sudoku and sorting
is an observed Bernoulli variable, true with probability 0.9999 if the constraint holds and 0.0001 otherwise,
and E is Gaussian around A R with standard deviation 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unn import Partial
from unn.errors import ArgumentError, ObservationError, suggest

Values = Mapping[str, Tensor]
"""Values by site, shape ``(chains, *shape)``, always float64."""

CERTAINTY = 0.9999
"""Probability of the observation if a constraint holds."""


@dataclass(frozen=True, eq=False)
class Site:
    """Independent random choices of a program with a common prior.

    Attributes:
        shape: shape of the choices.
        draw: draws ``count`` choices from the prior, shape ``(count,)``.
        log_density: log-density of the prior at choices ``(count,)``, up to a constant; used with a drift
            only.
        drift: standard deviation of Gaussian random-walk proposals; 0 for independent proposals from the
            prior.
    """

    shape: tuple[int, ...]
    draw: Callable[[int, torch.Generator], Tensor]
    log_density: Callable[[Tensor], Tensor]
    drift: float = 0.0

    def propose(self, old: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Propose new choices ``(count,)``; returns them and the log ratio of prior and proposal
        densities."""
        if not self.drift:
            # prior and proposal densities cancel
            return self.draw(len(old), generator).to(old), torch.zeros_like(old)
        new = old + self.drift * torch.randn(len(old), generator=generator).to(old)
        return new, self.log_density(new) - self.log_density(old)


@dataclass(frozen=True, eq=False)
class Program:
    """Generative program whose random choices are inferred.

    Attributes:
        sites: random choices by name.
        log_likelihood: log-likelihood of the observations given all choices, shape ``(chains,)``.
        given: observed choices by site; their batch axis is 1 or the number of chains.
        outputs: computes values by variable from the choices; by default the choices themselves.
    """

    sites: Mapping[str, Site]
    log_likelihood: Callable[[Values], Tensor]
    given: Mapping[str, Partial] = field(default_factory=dict)
    outputs: Callable[[Values], dict[str, Tensor]] = dict


@dataclass(frozen=True, eq=False)
class Chains:
    """Final states of the chains.

    Attributes:
        values: outputs of the program, by variable, shape ``(chains, *axes)``.
        log_likelihood: log-likelihood of each chain, shape ``(chains,)``.
        acceptance: acceptance rate, shape ``(chains,)``; proposals equal to the current value count as
            accepted.
    """

    values: Mapping[str, Tensor]
    log_likelihood: Tensor
    acceptance: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


def metropolis(program: Program, chains: int, steps: int, seed: int) -> Chains:
    """Run chains from the prior; each step proposes a value for one random choice that is not given.

    The set of choices is fixed in these programs, so its size cancels from the acceptance ratio; with
    proposals from the prior it is the likelihood ratio. A chain with likelihood 0 accepts every proposal.

    Args:
        program: program to infer.
        chains: number of independent chains.
        steps: number of steps of each chain.
        seed: random seed.

    Raises:
        ArgumentError: for a program without choices, chains or steps below 1, or a likelihood of another
            shape or with NaN.
        ObservationError: for given choices that do not match the sites.
    """
    _check(program, chains, steps, seed)
    generator = torch.Generator().manual_seed(seed)
    sites = list(program.sites.values())
    owners = torch.cat([torch.full((math.prod(site.shape),), k) for k, site in enumerate(sites)])
    state, free = _start(program, chains, generator)
    # sort the free choices of each chain first
    places, free_count = (~free).to(torch.uint8).argsort(dim=1, stable=True), free.sum(1)
    current, accepted = _likelihood(program, state), torch.zeros(chains)
    for _ in range(steps):
        pick = (torch.rand(chains, generator=generator, dtype=torch.float64) * free_count).long()
        place = places.gather(1, pick[:, None])
        old = state.gather(1, place)[:, 0]
        new, ratio = _propose(sites, owners[place[:, 0]], old, generator)
        proposed = state.scatter(1, place, new[:, None])
        likelihood = _likelihood(program, proposed)
        gain = torch.where(current.isneginf(), 0, likelihood - current) + ratio
        accept = (torch.rand(chains, generator=generator, dtype=torch.float64).log() < gain) & (
            free_count > 0
        )
        state = torch.where(accept[:, None], proposed, state)
        current = torch.where(accept, likelihood, current)
        accepted += accept
    return Chains(program.outputs(_views(program, state)), current, accepted / steps)


def for_chains(name: str, x: Tensor, chains: int) -> Tensor:
    """Expand an observation to all chains, if there is only one.

    Raises:
        ObservationError: if the number of observations is neither one nor the number of chains.
    """
    if len(x) not in (1, chains):
        raise ObservationError(f"{name} has {len(x)} batch elements, but there are {chains} chains.")
    return x.expand(chains, *x.shape[1:])


def uniform(count: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers between 0 and 1, shape ``(count,)``."""
    return torch.rand(count, generator=generator, dtype=torch.float64)


def whole_numbers(shape: tuple[int, ...], options: int) -> Site:
    """Uniform choices from 0 to ``options`` - 1."""
    return Site(
        shape,
        lambda count, generator: torch.randint(options, (count,), generator=generator),
        torch.zeros_like,
    )


def relaxed(certainty: float) -> Callable[[Tensor], Tensor]:
    """Relaxed log-likelihood ``(chains,)`` as a function of satisfied constraints ``(chains,
    constraints)``."""
    if not 0.5 < certainty < 1:
        raise ArgumentError(f"metropolis: the certainty must be between 0.5 and 1, got {certainty!r}.")
    right, wrong = math.log(certainty), math.log1p(-certainty)

    def log_probability(met: Tensor) -> Tensor:
        number = met.sum(1).double()
        return number * right + (met.shape[1] - number) * wrong

    return log_probability


def _propose(
    sites: list[Site], owner: Tensor, old: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Propose choices; returns them and their log ratios, ``(chains,)`` each. ``owner`` is the site
    number."""
    new, ratio = old.clone(), torch.zeros_like(old)
    for k, site in enumerate(sites):
        mine = (owner == k).nonzero()[:, 0]
        if len(mine):
            new[mine], ratio[mine] = site.propose(old[mine], generator)
    return new, ratio


def _start(program: Program, chains: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw choices from the prior unless given; returns them and the mask of free ones, ``(chains,
    choices)``."""
    states, frees = [], []
    for name, site in program.sites.items():
        entries = math.prod(site.shape)
        state = site.draw(chains * entries, generator).double().view(chains, entries)
        free = torch.ones(chains, entries, dtype=torch.bool)
        if name in program.given:
            known = program.given[name]
            where = known.mask.expand(chains, *site.shape).reshape(chains, entries)
            state = torch.where(
                where, known.value.double().expand(chains, *site.shape).reshape(chains, entries), state
            )
            free = ~where
        states.append(state)
        frees.append(free)
    return torch.cat(states, 1), torch.cat(frees, 1)


def _views(program: Program, state: Tensor) -> dict[str, Tensor]:
    parts = state.split([math.prod(site.shape) for site in program.sites.values()], 1)
    return {
        name: part.reshape(len(state), *site.shape)
        for (name, site), part in zip(program.sites.items(), parts, strict=True)
    }


def _likelihood(program: Program, state: Tensor) -> Tensor:
    values = program.log_likelihood(_views(program, state))
    if values.shape != (len(state),) or bool(values.isnan().any()):
        raise ArgumentError(
            f"metropolis: the log-likelihood needs shape ({len(state)},) and no NaN, got "
            f"{tuple(values.shape)}."
        )
    return values.double()


def _check(program: Program, chains: int, steps: int, seed: int) -> None:
    for name, number, least in (("chains", chains, 1), ("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ArgumentError(f"metropolis: {name} must be a whole number >= {least}, got {number!r}.")
    if not sum(math.prod(site.shape) for site in program.sites.values()):
        raise ArgumentError("metropolis: the program has no random choices.")
    for name, known in program.given.items():
        if name not in program.sites:
            raise ObservationError(
                f"metropolis: the program has no site {name!r}.{suggest(name, program.sites)}"
            )
        shape = program.sites[name].shape
        for x in (known.value, known.mask):
            if tuple(x.shape[1:]) != shape or len(x) not in (1, chains):
                raise ObservationError(
                    f"site {name!r}: {chains} chains need given choices of shape (1 or {chains}, *{shape}), "
                    f"got {tuple(x.shape)}."
                )
        if known.mask.dtype != torch.bool:
            raise ObservationError(
                f"site {name!r}: the mask of given choices must be boolean, got {known.mask.dtype}."
            )
