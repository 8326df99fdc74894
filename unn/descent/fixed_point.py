"""Fixed points of a block: Anderson acceleration towards them, and their exact derivatives."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, InferenceError
from .entries import entries_of

Map = Callable[[Tensor], Tensor]

_PRODUCTS = 240
"""Largest number of products with the Jacobian in the solution of one linear system."""
_BASIS = 40
_BASIS_OF_LARGE_BLOCKS = 10
_LARGE_SYSTEM = 256
"""Entries of a batch element from which a short basis saves memory."""
_FORMED = 2048
"""Largest number of entries of a batch element whose Jacobian is formed."""
_LARGEST = 2**26
"""Largest number of entries of the Jacobians that are formed at a time."""
_PROGRESS = 0.9
"""Share of the residual below which a restart is worth another one."""
_STAGNATION = 100.0
"""Multiple of the tolerance above which a system counts as not solved."""
_MEMORY = 40
_MEMORY_OF_LARGE_BLOCKS = 10
_LARGE = 4096


class Iterates:
    """The last evaluations of a fixed-point map, from which the next point is extrapolated (Anderson, 1965).

    Args:
        memory: the number of evaluations.
    """

    def __init__(self, memory: int) -> None:
        self._residuals: deque[Tensor] = deque(maxlen=memory)
        self._points: deque[Tensor] = deque(maxlen=memory)

    @classmethod
    def of(cls, x: Tensor) -> Iterates:
        """A history for points like x: as many evaluations as entries of a batch element, up to a limit of
        space."""
        entries = x[0].numel()
        return cls(_MEMORY_OF_LARGE_BLOCKS if entries > _LARGE else min(_MEMORY, entries + 1))

    def add(self, residual: Tensor, point: Tensor) -> None:
        """Take in one evaluation.

        Args:
            residual: by how much the map moved its argument, shape ``(batch, *axes)``.
            point: what is to be extrapolated, of the same shape.
        """
        self._residuals.append(residual)
        self._points.append(point)

    def __len__(self) -> int:
        return len(self._points)

    def extrapolate(self) -> Tensor:
        """The combination of the points, weights summing to 1, whose combined residual is smallest in each
        batch element.

        With an affine map and as many evaluations as dimensions this is the fixed point.
        """
        residuals = (
            torch.stack([x.reshape(len(x), -1) for x in self._residuals], 1)
            .double()
            .nan_to_num(0.0, 0.0, 0.0)
        )
        last = residuals[:, -1]
        differences = residuals[:, :-1] - last[:, None]
        norms = differences.norm(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        directions = differences / norms
        # columns become dependent as the iteration converges: small eigenvalues carry rounding alone
        eigenvalues, vectors = torch.linalg.eigh(directions @ directions.mT)
        inverse = torch.where(eigenvalues > 1e-13 * eigenvalues[:, -1:], 1 / eigenvalues, 0)
        right = vectors.mT @ (directions @ last[:, :, None])
        weights = -(vectors @ (inverse[:, :, None] * right)) / norms
        weights = torch.cat([weights, 1 - weights.sum(1, keepdim=True)], 1)
        points = torch.stack([x.reshape(len(x), -1) for x in self._points], 1)
        mixed = (weights.to(points.dtype).mT @ points)[:, 0]
        return mixed.view_as(self._points[-1])


def at_fixed_point(function: Map, x: Tensor, tolerance: float = 0.0) -> Tensor:
    """The value x with the first and second derivatives of the fixed point ``x = function(x)``.

    By the implicit function theorem dx = (I - J)^-1 (d function at constant x), with J the Jacobian of the
    function in x; only products with the transposed J are needed. Derivatives above the second are not exact,
    and there is no forward mode. Transforms of torch.func (``vmap``, ``grad``, ``jvp``) cannot run the
    solver; under these J is formed.

    Args:
        function: differentiable in x and in the tensors that it closes over; batch elements do not interact.
        x: its fixed point, shape ``(batch, *axes)``.
        tolerance: residual of the linear systems relative to their right side; that of rounding by default.

    Raises:
        InferenceError: under a transform, for more entries of a batch element than a Jacobian may have.
    """
    x = x.detach()
    if torch._C._are_functorch_transforms_active():
        return _by_newton_steps(function, x)
    y = function(x)
    if not y.requires_grad:
        return x
    first = _FixedPoint.apply(y, x, function, tolerance)
    # the derivative of y is taken at constant x there, so that its own derivative would lack that of x
    second: Tensor = _FixedPoint.apply(function(first.view_as(first)), first, function, tolerance)
    return second


def _by_newton_steps(function: Map, x: Tensor) -> Tensor:
    """As ``at_fixed_point``, by operations that every transform of torch.func knows.

    A Newton step x + (I - J)^-1 (function(x) - x) with constant J and x has the first derivative of the fixed
    point, and a second one from there the second derivative.
    """
    count = x[0].numel()
    if count > _FORMED:
        raise InferenceError(
            "Implicit: under a transform of torch.func the Jacobian of a round is formed, of at most "
            f"{_FORMED} entries of a batch element, and there are {count}; differentiate without the "
            "transform, or use Truncate."
        )
    pull = torch.func.vjp(function, x)[1]
    basis = torch.eye(count, dtype=x.dtype, device=x.device).view(count, 1, *x.shape[1:])
    rows = [entries_of(pull(direction.expand(x.shape))[0]) for direction in basis]
    jacobian = torch.stack(rows, 1).detach()
    unit = torch.eye(count, dtype=x.dtype, device=x.device)
    inverse = torch.linalg.inv((unit - jacobian).double()).to(x.dtype)
    for _ in range(2):
        residual = entries_of(function(x) - x)[:, :, None]
        x = x + (inverse @ residual).view(x.shape)
    return x


class _FixedPoint(torch.autograd.Function):
    """x with the derivative that y = function(x) gives it; that of y with respect to x does not count
    twice."""

    @staticmethod
    def forward(y: Tensor, x: Tensor, function: Map, tolerance: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Map, float], output: Tensor) -> None:
        _, _, ctx.function, ctx.tolerance = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        differentiable = torch.is_grad_enabled()
        if not differentiable and not bool(gradient.any()):
            return gradient, None, None, None
        with torch.enable_grad():
            z = x.view_as(x) if differentiable else x.detach().requires_grad_()
            y = ctx.function(z)
        if not y.requires_grad:
            return gradient, None, None, None

        def product(u: Tensor) -> Tensor:
            (transposed,) = torch.autograd.grad(
                y, z, u, retain_graph=True, create_graph=differentiable, allow_unused=True
            )
            return torch.zeros_like(z) if transposed is None else transposed

        def equation(u: Tensor) -> Tensor:
            return gradient + product(u)

        with _full_precision(gradient.device):
            solution = _solve_linear(product, gradient.detach(), ctx.tolerance)
        if differentiable:
            solution = _FixedPoint.apply(equation(solution), solution, equation, ctx.tolerance)
        return solution, -product(solution) if ctx.needs_input_grad[1] else None, None, None


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Without autocast, under which backward passes may run as well."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _solve_linear(product: Map, right: Tensor, relative: float) -> Tensor:
    """The solution u of u - product(u) = right by restarted GMRES (Saad and Schultz, 1986), each batch
    element by itself; where it stagnates, from the matrix.

    Args:
        product: linear, of tensors of the shape of ``right``.
        right: shape ``(batch, *axes)``.
        relative: norm of the residual relative to that of ``right``, if above rounding. Where a batch element
            has too many entries for a matrix and does not reach it, there is a ``ConvergenceWarning``.
    """
    # small dense problems are not solved in half precision
    work = right.dtype if right.dtype in (torch.float32, torch.float64) else torch.float32
    flat = right.reshape(len(right), -1).to(work)
    tolerance = max(relative, 8 * torch.finfo(right.dtype).eps) * flat.norm(dim=1)
    dimension = min(_BASIS if flat.shape[1] <= _LARGE_SYSTEM else _BASIS_OF_LARGE_BLOCKS, flat.shape[1])

    def transposed(u: Tensor) -> Tensor:
        return product(u.view_as(right).to(right.dtype)).detach().reshape(u.shape).to(work)

    def image(u: Tensor) -> Tensor:
        return u - transposed(u)

    solution = torch.zeros_like(flat)
    smallest = flat.norm(dim=1)
    for _ in range(max(1, _PRODUCTS // dimension)):
        residual = flat - image(solution)
        if not bool(residual.isfinite().all()):
            # an overflow in some element; the caller reports a gradient that is not a number
            return torch.full_like(right, torch.nan)
        waiting = residual.norm(dim=1) > tolerance
        if not bool(waiting.any()):
            break
        candidate = solution + _krylov_correction(image, residual, dimension, tolerance)
        norm = (flat - image(candidate)).norm(dim=1)
        better = norm < smallest
        solution = torch.where(better[:, None], candidate, solution)
        improved = waiting & (norm < _PROGRESS * smallest)
        smallest = torch.where(better, norm, smallest)
        if not bool(improved.any()):
            break
    # what rounding leaves of a residual is no stagnation
    left = (smallest > _STAGNATION * tolerance).nonzero()[:, 0]
    if len(left):
        solution = _solved_from_matrix(transposed, flat, solution, smallest, left)
    return solution.view_as(right).to(right.dtype)


def _solved_from_matrix(
    transposed: Map, right: Tensor, solution: Tensor, smallest: Tensor, rows: Tensor
) -> Tensor:
    """The solutions with those of some batch elements from their matrices, where these are more exact.

    Args:
        transposed: product with the transposed Jacobians, of tensors of the shape of ``right``.
        right: shape ``(batch, n)``.
        solution: solutions so far, the same shape.
        smallest: norms of their residuals, shape ``(batch,)``.
        rows: numbers of the elements.
    """
    count = right.shape[1]
    if count <= _FORMED and len(rows) * count**2 <= _LARGEST:
        unit = torch.eye(count, dtype=right.dtype, device=right.device)
        columns = torch.stack([transposed(u.expand(right.shape).contiguous())[rows] for u in unit], 2)
        matrix = (unit - columns).double()
        solved, singular = torch.linalg.solve_ex(matrix, right[rows, :, None].double())
        own = torch.where(singular[:, None] == 0, solved[:, :, 0], solution[rows].double()).to(right.dtype)
        candidate = solution.index_copy(0, rows, own)
        norm = (right - candidate + transposed(candidate)).norm(dim=1)
        better = norm < smallest
        solution = torch.where(better[:, None], candidate, solution)
        smallest = torch.where(better, norm, smallest)
        # a matrix that was solved is as exact as rounding allows
        rows = rows[~better[rows]]
    if len(rows):
        share = float((smallest[rows] / right[rows].norm(dim=1)).amax())
        warnings.warn(
            f"Implicit: the linear system of {len(rows)} of {len(right)} batch elements was solved up to a "
            f"residual of {share:.2g} of its right side alone, so that their gradients are not exact; the "
            "fixed point hardly attracts. Use Checkpoint, or weaken the couplings.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return solution


def _krylov_correction(image: Map, residual: Tensor, dimension: int, tolerance: Tensor) -> Tensor:
    """The vector of the Krylov space whose image is nearest to the residual, shape ``(batch, n)``."""
    norm = residual.norm(dim=1)
    basis = [_unit(residual)]
    images: list[Tensor] = []
    for _ in range(dimension):
        images.append(image(basis[-1]))
        known = torch.stack(basis, 1)
        following = images[-1]
        # twice, as one pass loses orthogonality where columns are nearly dependent
        for _ in range(2):
            following = following - ((known @ following[:, :, None]).mT @ known)[:, 0]
        # the space is complete where nothing but rounding is left
        new = following.norm(dim=1, keepdim=True) > 1e-14 * images[-1].norm(dim=1, keepdim=True)
        basis.append(torch.where(new, _unit(following), 0))
        columns = torch.stack(images, 2)
        small = torch.stack(basis, 1) @ columns
        if not bool(small.isfinite().all()):
            return torch.full_like(residual, torch.nan)
        # the residual is the first vector of the basis times its norm
        weights = torch.linalg.pinv(small)[:, :, :1] * norm[:, None, None]
        left = (residual[:, :, None] - columns @ weights)[:, :, 0].norm(dim=1)
        if not bool((left > tolerance).any()):
            break
    correction: Tensor = (torch.stack(basis[:-1], 2) @ weights)[:, :, 0]
    return correction


def _unit(x: Tensor) -> Tensor:
    lengths: Tensor = x.norm(dim=1, keepdim=True)
    return x / lengths.clamp(min=torch.finfo(x.dtype).tiny)
