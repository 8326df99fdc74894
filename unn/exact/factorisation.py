"""Sparse factorisation of precision matrices by batched elimination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .rounds import Elimination, Round

_SMALLEST = 64 * torch.finfo(torch.float64).eps
"""Largest pivot that counts as zero, relative to the entry of the matrix: what rounding leaves of one."""


class NotPositiveError(ArithmeticError):
    """A matrix that is not positive definite.

    Attributes:
        entry: an entry with a pivot that is not positive.
    """

    def __init__(self, entry: int) -> None:
        super().__init__(f"the matrix is not positive definite at entry {entry}")
        self.entry = entry


@dataclass(frozen=True, eq=False)
class _Eliminated:
    """One round: pivots, shape ``(matrices, m)``; couplings divided by them, shape ``(matrices, m, d)``."""

    round: Round
    pivots: Tensor
    couplings: Tensor


@dataclass(frozen=True, eq=False)
class Factorisation:
    """Positive definite precision matrices P of one pattern, factorised.

    Attributes:
        plan: order of elimination.
        rounds: results by round.
        rest: Cholesky factor of what remained, shape ``(matrices, r, r)``.
        log_determinant: of P, shape ``(matrices,)``.
    """

    plan: Elimination
    rounds: tuple[_Eliminated, ...]
    rest: Tensor
    log_determinant: Tensor

    def select(self, number: int) -> Factorisation:
        """One of the matrices."""
        return self._map(lambda x: x[number : number + 1])

    def detach(self) -> Factorisation:
        """The same without gradients."""
        return self._map(Tensor.detach)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Factorisation:
        rounds = tuple(_Eliminated(d.round, change(d.pivots), change(d.couplings)) for d in self.rounds)
        return Factorisation(self.plan, rounds, change(self.rest), change(self.log_determinant))

    def solve(self, linear: Tensor) -> Tensor:
        """P^-1 linear, shape ``(matrices, entries, batch)``.

        Args:
            linear: shape ``(matrices or 1, entries, batch)``.
        """
        left = linear.expand(len(self.log_determinant), -1, -1)
        for done in self.rounds:
            own = left[:, done.round.pivots]
            sent = (done.couplings[..., None] * own[:, :, None]).flatten(1, 2)
            left = left.index_add(1, done.round.neighbours.flatten(), -sent)
        solution = torch.zeros_like(left)
        rest = self.plan.rest
        if len(rest):
            solution = solution.index_copy(1, rest, torch.cholesky_solve(left[:, rest], self.rest))
        for done in reversed(self.rounds):
            around = solution[:, done.round.neighbours]
            own = left[:, done.round.pivots] / done.pivots[..., None]
            own = own - (done.couplings[..., None] * around).sum(2)
            solution = solution.index_copy(1, done.round.pivots, own)
        return solution

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Samples of normal distributions with mean 0 and precision P, shape ``(matrices, entries, count)``.

        Args:
            count: number of samples of each.
            generator: random number generator; torch's global one by default.
        """
        own = self.detach()
        shape = (len(own.log_determinant), self.plan.entries, count)
        normal = torch.randn(shape, generator=generator, dtype=own.log_determinant.dtype)
        samples = torch.zeros_like(normal)
        rest = self.plan.rest
        if len(rest):
            samples[:, rest] = torch.linalg.solve_triangular(own.rest.mT, normal[:, rest], upper=True)
        for done in reversed(own.rounds):
            around = samples[:, done.round.neighbours]
            free = normal[:, done.round.pivots] / done.pivots.sqrt()[..., None]
            samples[:, done.round.pivots] = free - (done.couplings[..., None] * around).sum(2)
        return samples


def factorise(plan: Elimination, values: Tensor) -> Factorisation:
    """Factorise matrices; differentiable any number of times.

    Args:
        plan: order of elimination of their pattern.
        values: the matrices at the stored pairs that are not fill, shape ``(matrices, given)``.

    Raises:
        NotPositiveError: for a matrix that is not positive definite.
    """
    work = torch.cat([values, values.new_zeros(len(values), plan.stored - plan.given + 1)], 1)
    rounds = []
    log_determinant = values.new_zeros(len(values))
    for step in plan.rounds:
        pivots, column = work[:, step.pivots], work[:, step.column]
        wrong = ~(pivots.detach() > _SMALLEST * values[:, step.pivots].detach().abs())
        if bool(wrong.any()):
            raise NotPositiveError(int(step.pivots[wrong.any(0)][0]))
        couplings = column / pivots[..., None]
        update = couplings[..., step.first] * column[..., step.second]
        # in place: what is read from it are copies, so that gradients need no earlier state
        work.index_add_(1, step.targets.flatten(), -update.flatten(1))
        log_determinant = log_determinant + pivots.log().sum(1)
        rounds.append(_Eliminated(step, pivots, couplings))
    factor, failed = torch.linalg.cholesky_ex(work[:, plan.rest_positions])
    if bool(failed.any()):
        raise NotPositiveError(int(plan.rest[int(failed[failed > 0][0]) - 1]))
    squares = factor.detach().diagonal(dim1=1, dim2=2).square()
    wrong = ~(squares > _SMALLEST * values[:, plan.rest].detach().abs())
    if bool(wrong.any()):
        raise NotPositiveError(int(plan.rest[wrong.any(0)][0]))
    log_determinant = log_determinant + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return Factorisation(plan, tuple(rounds), factor, log_determinant)


def factorise_with_variances(plan: Elimination, values: Tensor) -> tuple[Factorisation, Tensor]:
    """Factorise matrices, and give the diagonals of their inverses, shape ``(matrices, entries)``.

    These are the gradients of the log-determinants by the diagonals. Arguments and errors are those of
    ``factorise``.
    """
    differentiable = torch.is_grad_enabled() and values.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        leaf = values if differentiable else values.detach().clone().requires_grad_()
        factor = factorise(plan, leaf)
        (gradient,) = torch.autograd.grad(factor.log_determinant.sum(), leaf, create_graph=differentiable)
    return (factor if differentiable else factor.detach()), gradient[:, : plan.entries]
