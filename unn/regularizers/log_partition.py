"""Entropies of distributions over structures, defined by their log-partition."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import DerivativeError
from .base import Regularizer, batch_sum, is_transformed, merged, ordinary, tolerance

_NOTHING = 1e-14
"""Lower bound of probabilities in the search for the scores of a point."""


class LogPartition(Regularizer):
    """Psi(x) = -H(x), the largest entropy of a distribution over structures with mean x, on the convex hull
    of the structures.

    The conjugate is the log-partition log sum_s exp <t, s>, its gradient the marginals (undirected-network
    paper, eq. 17, 18 and 20; Wainwright and Jordan, 2008, Section 3.6). A subclass defines ``conjugate``,
    ``argmax`` and, if possible, ``sample``. The other methods have defaults; override those with a closed
    form, such as ``contains``.
    """

    bounded = True
    formula = "-H(x) on the convex hull of the structures"
    activation = "marginals"

    _allowed: Tensor | None = None
    """The entries that evidence in part leaves possible (``restricted``), shape ``(batch, *axes)``."""

    @abstractmethod
    def argmax(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The structure with the largest score, entries 0 and 1, shape of ``t``."""

    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        t = self._expand(t)
        if torch.compiler.is_compiling():
            # compiled code has no second backward pass, and loses this gradient
            eager: Tensor = torch.compiler.disable(LogPartition.mirror)(self, t, mask)
            return eager
        if is_transformed(t):
            # supports nesting in both modes; a detached leaf would have no tangent
            marginals: Tensor = torch.func.grad(lambda scores: self.conjugate(scores, mask).sum())(t)
            return marginals
        differentiable = torch.is_grad_enabled() and t.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            leaf = t if differentiable else ordinary(t.detach()).requires_grad_()
            mask = None if mask is None else ordinary(mask)
            (x,) = torch.autograd.grad(self.conjugate(leaf, mask).sum(), leaf, create_graph=differentiable)
        return x

    def conditional_sample(
        self,
        t: Tensor,
        temperature: float | Tensor = 1.0,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return self.sample(t / temperature, mask, generator)

    def conditional_log_partition(
        self, t: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
    ) -> Tensor:
        return self.conjugate(t / temperature, mask)

    def entropy(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of the distribution over structures with scores t, in nats, shape ``(batch,)``."""
        return -self.value_at_mirror(self.mirror(t, mask), t, mask)

    def value_at_mirror(self, x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        return inner(x, t) - self.conjugate(t, mask)

    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Psi(x), shape ``(batch,)``; +inf outside the convex hull.

        The supremum of <x, t> - conjugate(t) over t, computed by L-BFGS in float64 for each batch element:
        slow, and differentiable once. For known scores, ``value_at_mirror`` is exact and cheap.

        Raises:
            DerivativeError: for a second derivative, in either mode.
        """
        if torch.compiler.is_compiling():
            eager: Tensor = torch.compiler.disable(LogPartition.value)(self, x, mask)
            return eager
        psi: Tensor
        psi, _ = _Supremum.apply(x if mask is None else torch.where(mask, x, 0), mask, self)
        return psi

    def _supremum(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Psi(x) and maximising scores, which are 0 outside the convex hull; without autograd."""
        if type(self).contains is LogPartition.contains:
            dual, reached = self.scores_of(x, mask)
            inside = _near(x, reached)
        else:
            inside = self.contains(x, mask)
            dual = x.new_zeros(x.shape, dtype=torch.float64)
            if bool(inside.any()):
                own = self._of_elements(inside)
                dual[inside] = own.scores_of(
                    x[inside], None if mask is None else mask.expand(x.shape)[inside]
                )[0]
        dual = torch.where(inside.view(-1, *[1] * (x.ndim - 1)), dual, 0)
        supremum = inner(x.double(), dual) - self.conjugate(dual, mask)
        return torch.where(inside, supremum, torch.inf).to(x.dtype), dual.to(x.dtype)

    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Whether x is the mean of a distribution over structures, up to a tolerance; by default, searches
        for its scores."""
        return _near(x, self.scores_of(x, mask)[1])

    @torch.no_grad()
    def scores_of(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores whose marginals approximate x, and their marginals; shape of x each, float64.

        Zero entries of x have no finite scores; theirs are low enough for vanishing marginals.
        """
        if torch.compiler.is_compiling():
            eager: tuple[Tensor, Tensor] = torch.compiler.disable(type(self).scores_of)(self, x, mask)
            return eager
        from scipy.optimize import minimize

        wide = x.detach().double().cpu()
        scores = torch.zeros_like(wide)
        for b in range(len(wide)):
            own = self._of_elements(torch.tensor([b]))
            goal = torch.nan_to_num(wide[b : b + 1], 0.0)
            row_mask = None if mask is None else mask.expand(x.shape)[b : b + 1].cpu()

            def negative(
                flat: np.ndarray[Any, np.dtype[np.float64]],
                goal: Tensor = goal,
                row_mask: Tensor | None = row_mask,
                own: LogPartition = own,
            ) -> tuple[float, Any]:
                t = torch.from_numpy(flat).view_as(goal).requires_grad_()
                with torch.enable_grad():
                    partition = own.conjugate(t, row_mask).sum()
                    (marginals,) = torch.autograd.grad(partition, t)
                return float(partition.detach() - inner(goal, t.detach()).sum()), (
                    marginals - goal
                ).flatten().numpy()

            start = goal.clamp(min=_NOTHING).log().flatten().numpy()
            options = {"maxiter": 2000, "maxfun": 4000, "ftol": 0.0, "gtol": 1e-11, "maxcor": 30}
            best = minimize(negative, start, jac=True, method="L-BFGS-B", options=options)
            scores[b] = torch.from_numpy(best.x).view_as(goal[0])
        scores = scores.to(x.device)
        return scores, self.mirror(scores, mask)

    def _expand(self, t: Tensor) -> Tensor:
        """Scores of all batch elements, where the evidence differs between these."""
        return t if self._allowed is None else t.expand(torch.broadcast_shapes(t.shape, self._allowed.shape))

    def _of_elements(self, elements: Tensor) -> Self:
        """This regularizer with the evidence of some batch elements.

        Args:
            elements: their numbers, or a mask of them.
        """
        if self._allowed is None or len(self._allowed) == 1:
            return self
        own = copy.copy(self)
        own._allowed = self._allowed[elements.to(self._allowed.device)]
        return own


def _near(x: Tensor, reached: Tensor) -> Tensor:
    # written so that NaN fails
    return ((x.detach().double() - reached).abs() <= 10 * tolerance(x.dtype)).flatten(1).all(1)


def inner(x: Tensor, t: Tensor) -> Tensor:
    """<x, t> per batch element, where zero entries of x contribute 0 even if their score is -inf."""
    return batch_sum(torch.where(x == 0, 0, x * torch.where(x == 0, 0, t)))


class _Supremum(torch.autograd.Function):
    """The supremum over t of <x, t> - Psi*(t), whose gradient is the maximiser t (Danskin)."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor | None, regularizer: LogPartition) -> tuple[Tensor, Tensor]:
        return regularizer._supremum(x.detach(), mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, _, ctx.regularizer = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])
        ctx.save_for_forward(x, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        x, dual = ctx.saved_tensors
        return gradient.view(-1, *[1] * (x.ndim - 1)) * _Slope.apply(x, dual, ctx.regularizer), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> tuple[Tensor, None]:
        x, dual = ctx.saved_tensors
        return batch_sum(_Slope.apply(x, dual, ctx.regularizer) * direction), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, mask: Tensor | None, regularizer: LogPartition
    ) -> tuple[Any, Any]:
        flat = merged(info.batch_size, x, in_dims[0])
        whole = None if mask is None else merged(info.batch_size, mask, in_dims[1])
        psi, dual = _Supremum.apply(flat, whole, regularizer)
        return (psi.unflatten(0, (info.batch_size, -1)), dual.unflatten(0, (info.batch_size, -1))), (0, 0)


class _Slope(torch.autograd.Function):
    """The gradient of the supremum, which is not differentiable again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slope: Tensor, regularizer: LogPartition) -> Tensor:
        return slope.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.regularizer = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        raise _no_second_derivative(ctx.regularizer)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        raise _no_second_derivative(ctx.regularizer)


def _no_second_derivative(regularizer: LogPartition) -> DerivativeError:
    return DerivativeError(
        f"{regularizer!r}.value(x) is computed iteratively and has only a first derivative; "
        "value_at_mirror(mirror(t), t) has derivatives of any order."
    )
