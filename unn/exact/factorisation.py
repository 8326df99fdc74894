"""Sparse factorisation of precision matrices by batched elimination."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rounds import Elimination, Round


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
        one = slice(number, number + 1)
        rounds = tuple(_Eliminated(done.round, done.pivots[one], done.couplings[one]) for done in self.rounds)
        return Factorisation(self.plan, rounds, self.rest[one], self.log_determinant[one])

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
        like = self.log_determinant
        shape = (len(like), len(self.plan.diagonal), count)
        normal = torch.randn(shape, generator=generator, dtype=like.dtype)
        samples = torch.zeros_like(normal)
        rest = self.plan.rest
        if len(rest):
            samples[:, rest] = torch.linalg.solve_triangular(
                self.rest.detach().mT, normal[:, rest], upper=True
            )
        for done in reversed(self.rounds):
            around = samples[:, done.round.neighbours]
            own = normal[:, done.round.pivots] / done.pivots.detach().sqrt()[..., None]
            samples[:, done.round.pivots] = own - (done.couplings.detach()[..., None] * around).sum(2)
        return samples


def factorise(plan: Elimination, values: Tensor) -> Factorisation:
    """Factorise matrices; differentiable any number of times.

    Args:
        plan: order of elimination of its pattern.
        values: the matrices at the stored pairs that are not fill, shape ``(matrices, given)``.

    Raises:
        NotPositiveError: for a matrix that is not positive definite.
    """
    work = torch.cat([values, values.new_zeros(len(values), len(plan.rows) - plan.given + 1)], 1)
    rounds = []
    log_determinant = values.new_zeros(len(values))
    for step in plan.rounds:
        pivots, column = work[:, step.diagonal], work[:, step.column]
        _check_positive(pivots, step.pivots)
        couplings = column / pivots[..., None]
        update = couplings[..., step.first] * column[..., step.second]
        # in place: what is read from it are copies, so that gradients need no earlier state
        work.index_add_(1, step.targets.flatten(), -update.flatten(1))
        log_determinant = log_determinant + pivots.log().sum(1)
        rounds.append(_Eliminated(step, pivots, couplings))
    factor, failed = torch.linalg.cholesky_ex(work[:, plan.rest_positions])
    if bool(failed.any()):
        raise NotPositiveError(int(plan.rest[int(failed[failed > 0][0]) - 1]))
    log_determinant = log_determinant + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return Factorisation(plan, tuple(rounds), factor, log_determinant)


def variances(plan: Elimination, values: Tensor) -> Tensor:
    """Diagonals of the inverses: gradients of the log-determinants by the diagonals.

    Arguments and errors as for ``factorise``; the shape is ``(matrices, entries)``.
    """
    differentiable = torch.is_grad_enabled() and values.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        leaf = values.view_as(values) if differentiable else values.detach().clone().requires_grad_()
        total = factorise(plan, leaf).log_determinant.sum()
        (gradient,) = torch.autograd.grad(total, leaf, create_graph=differentiable)
    return gradient[:, plan.diagonal]


def _check_positive(pivots: Tensor, entries: Tensor) -> None:
    wrong = ~(pivots.detach() > 0)
    if bool(wrong.any()):
        raise NotPositiveError(int(entries[wrong.any(0)][0]))
