"""Lightweight Metropolis-Hastings (Wingate, Stuhlmüller and Goodman, 2011) on the generative programs of the problems, many chains at once.

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

from ..factorisation.baselines import check_matrices
from ..sudoku.grids import declare, one_hot

Values = Mapping[str, Tensor]
"""By site, shape ``(chains, *shape)``, float64 whatever is drawn."""

CERTAINTY = 0.9999
"""Of a coin for a constraint that is met."""
NOISE = 0.01
"""Deviation of E."""


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


def sudoku(puzzles: Tensor, rows: int, columns: int, certainty: float = CERTAINTY) -> Program:
    """Each empty cell has a digit, all equally probable; each pair of cells that must differ is a constraint.

    Args:
        puzzles: digits from 1, 0 where a cell is empty, shape ``(count, n, n)``; a chain for each, or one puzzle for all chains.
        rows, columns: of a block.
        certainty: that a constraint is met.

    Returns:
        A program of X, one-hot, shape ``(chains, n, n, n)``.

    Raises:
        DeclarationError: for a certainty that is not between 0.5 and 1.
        ObservationError: for puzzles of another shape, or with other digits.
    """
    n = rows * columns
    if not isinstance(puzzles, Tensor) or puzzles.is_floating_point() or puzzles.ndim != 3 or tuple(puzzles.shape[1:]) != (n, n):
        found = f"{puzzles.dtype} of shape {tuple(puzzles.shape)}" if isinstance(puzzles, Tensor) else type(puzzles).__name__
        raise ObservationError(f"puzzles with blocks of {rows} x {columns} are whole numbers of shape (count, {n}, {n}), got {found}.")
    if not bool(((puzzles >= 0) & (puzzles <= n)).all()):
        raise ObservationError(f"puzzles with blocks of {rows} x {columns} have digits from 1 to {n}, and 0 for an empty cell.")
    pairs = declare(rows, columns).adjacency()
    ordered = pairs.rows < pairs.columns
    first, second = torch.from_numpy(pairs.rows[ordered]), torch.from_numpy(pairs.columns[ordered])
    relaxed = _relaxed(certainty)

    def log_likelihood(values: Values) -> Tensor:
        cells = values["X"].flatten(1)
        return relaxed(cells[:, first] != cells[:, second])

    def outputs(values: Values) -> dict[str, Tensor]:
        return {"X": one_hot(values["X"].long(), n)}

    return Program({"X": _whole_numbers((n, n), n)}, log_likelihood, {"X": Partial(puzzles - 1, puzzles > 0)}, outputs)


def sorting(u: Tensor, certainty: float = CERTAINTY) -> Program:
    """Each rank has an entry of the list, all equally probable; no two ranks may have the same one, and neighbours in rank must be in order.

    Args:
        u: lists, shape ``(count, n)``; a chain for each, or one list for all chains.
        certainty: that a constraint is met.

    Returns:
        A program of P, whose rows are one-hot, shape ``(chains, n, n)``, and s = P u, shape ``(chains, n)``.

    Raises:
        DeclarationError: for a certainty that is not between 0.5 and 1.
        ObservationError: for lists of another shape, or with NaN or infinite entries.
    """
    if not isinstance(u, Tensor) or u.ndim != 2 or not u.numel() or not u.is_floating_point() or not bool(u.isfinite().all()):
        found = f"shape {tuple(u.shape)} and dtype {u.dtype}" if isinstance(u, Tensor) else type(u).__name__
        raise ObservationError(f"u must be a floating-point tensor of shape (count, n) of finite numbers, got {found}.")
    n = u.shape[1]
    first, second = torch.triu_indices(n, n, 1)
    relaxed = _relaxed(certainty)

    def sort(choice: Tensor) -> Tensor:
        return _for_chains("u", u, len(choice)).gather(1, choice.long())

    def log_likelihood(values: Values) -> Tensor:
        choice, s = values["choice"], sort(values["choice"])
        return relaxed(torch.cat([choice[:, first] != choice[:, second], s[:, 1:] >= s[:, :-1]], 1))

    def outputs(values: Values) -> dict[str, Tensor]:
        choice = values["choice"].long()
        return {"P": torch.nn.functional.one_hot(choice, n).to(u), "s": sort(choice)}

    return Program({"choice": _whole_numbers((n,), n)}, log_likelihood, outputs=outputs)


def factorisation(E: Tensor, rank: int, deviation: float = NOISE, drift: float = 0.0) -> Program:
    """A has uniform entries between 0 and 1, R is 1 with probability 0.3, E is Gaussian around A R.

    Args:
        E: shape ``(count, rows, columns)``; a chain for each, or one for all chains.
        rank: of the factorisation.
        deviation: of E.
        drift: of proposals for A; 0 to propose from the prior.

    Returns:
        A program of A, shape ``(chains, rows, rank)``, and R, shape ``(chains, rank, columns)``.

    Raises:
        DeclarationError: for a rank below 1, a deviation that is not positive, or a negative drift.
        ObservationError: for an E of another shape, or with NaN or infinite entries.
    """
    check_matrices(E, rank, 0)
    if not 0 < deviation < math.inf or not 0 <= drift < math.inf:
        raise DeclarationError(f"metropolis: the deviation must be positive and the drift at least 0, got {deviation!r} and {drift!r}.")
    target = E.double()
    A = Site((E.shape[1], rank), _uniform, lambda x: torch.where((x >= 0) & (x <= 1), 0.0, -math.inf).to(x), drift)
    R = Site((rank, E.shape[2]), lambda count, g: _uniform(count, g) < 0.3, lambda x: torch.where(x > 0.5, math.log(0.3), math.log(0.7)).to(x))

    def log_likelihood(values: Values) -> Tensor:
        product = values["A"] @ values["R"]
        return -((product - _for_chains("E", target, len(product))) ** 2).sum((1, 2)) / (2 * deviation**2)

    def outputs(values: Values) -> dict[str, Tensor]:
        return {name: x.to(E) for name, x in values.items()}

    return Program({"A": A, "R": R}, log_likelihood, outputs=outputs)


def _for_chains(name: str, x: Tensor, chains: int) -> Tensor:
    """What is observed, for each chain."""
    if len(x) not in (1, chains):
        raise ObservationError(f"{name} has {len(x)} batch elements, but there are {chains} chains.")
    return x.expand(chains, *x.shape[1:])


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _whole_numbers(shape: tuple[int, ...], options: int) -> Site:
    """Choices from 0 to one less than the options, all equally probable."""
    return Site(shape, lambda count, generator: torch.randint(options, (count,), generator=generator), torch.zeros_like)


def _relaxed(certainty: float) -> Callable[[Tensor], Tensor]:
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
