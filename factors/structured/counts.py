"""Bits whose number of ones is bounded: exact log-partition, marginals and distribution of the count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unn.errors import ArgumentError, ObservationError, whole_number
from unn.ops.semirings import NEVER, Total, log_sum, possible


@dataclass(frozen=True)
class CountDistribution:
    """Independent bits conditioned on their number of ones.

    Attributes:
        log_partition: logarithm of the sum over all allowed bits of exp(sum of the scores of the ones), shape
            ``(*batch,)``; -inf where no count within the bounds is possible.
        marginals: probability of each bit, shape ``(*batch, n)``; 0 where nothing is possible.
        counts: probability of each number of ones from 0 to n, shape ``(*batch, n + 1)``.
    """

    log_partition: Tensor
    marginals: Tensor
    counts: Tensor


def count_distribution(scores: Tensor, lower: int = 0, upper: int | None = None) -> CountDistribution:
    """Condition independent bits on a number of ones between bounds: the exact factor of a ``Cardinality``.

    The generating polynomial of the count is multiplied out by a tree of products in the logarithmic domain,
    in float64 (counting recursion; Tarlow, Swersky, Zemel, Adams and Frey, 2012). Marginals are its gradient.

    Args:
        scores: log-odds of the bits without the condition, shape ``(*batch, n)``; -inf for bits that are 0.
        lower: least number of ones.
        upper: greatest number of ones; None without a bound.

    Raises:
        ArgumentError: for bounds that are not whole numbers >= 0.
        ObservationError: for scores that are NaN or +inf, without entries, or no real floating-point numbers.

    Example:
        >>> count_distribution(torch.zeros(3), 1, 1).marginals
        tensor([0.3333, 0.3333, 0.3333])
    """
    whole_number("count_distribution: lower", lower, 0, ArgumentError)
    if upper is not None:
        whole_number("count_distribution: upper", upper, lower, ArgumentError)
    if not scores.ndim or not scores.shape[-1] or bool((scores.isnan() | (scores == torch.inf)).any()):
        raise ObservationError(
            f"count_distribution takes scores of shape (*batch, n) with n >= 1 that are numbers or -inf, got "
            f"{tuple(scores.shape)}."
        )
    if not scores.is_floating_point():
        raise ObservationError(
            f"count_distribution takes scores of a floating-point type, got {scores.dtype}; convert them, as "
            "by scores.double()."
        )
    n = scores.shape[-1]
    highest = n if upper is None else min(upper, n)
    rows = scores.double().reshape(-1, n)
    rows = torch.where(rows == -torch.inf, NEVER, rows)
    with torch.enable_grad():
        leaf = rows if rows.requires_grad else rows.requires_grad_()
        coefficients = count_polynomial(leaf, n, log_sum)
        allowed = coefficients[:, lower : highest + 1]
        if not allowed.shape[1]:
            allowed = coefficients[:, :1] * 0 + NEVER
        total = log_sum(allowed, 1)
        (marginals,) = torch.autograd.grad(total.sum(), leaf, create_graph=scores.requires_grad)
    exists = possible(total)
    marginals = torch.where(exists[:, None], marginals, 0)
    index = torch.arange(n + 1, device=scores.device)
    within = (index >= lower) & (index <= highest) & exists[:, None] & possible(coefficients)
    counts = torch.where(within, (coefficients - total[:, None]).clamp(max=0).exp(), 0)
    if not scores.requires_grad:
        total, counts = total.detach(), counts.detach()
    total = torch.where(exists, total, -torch.inf)
    batch = scores.shape[:-1]
    return CountDistribution(
        total.view(batch).to(scores.dtype),
        marginals.view(scores.shape).to(scores.dtype),
        counts.view(*batch, n + 1).to(scores.dtype),
    )


def count_polynomial(scores: Tensor, degree: int, total: Total, required: Tensor | None = None) -> Tensor:
    """Totals over all subsets by their size, from 0 to ``degree``: a tree of products of polynomials.

    Args:
        scores: scores of the members of a subset, shape ``(rows, n)`` with n >= 1.
        degree: largest size.
        total: sum of the semiring along an axis.
        required: mask of the members that all subsets have, shape of ``scores``; none by default.

    Returns:
        Shape ``(rows, degree + 1)``; ``NEVER`` for sizes that are impossible.
    """
    without = torch.zeros_like(scores)
    if required is not None:
        without = without.masked_fill(required, NEVER)
    polynomials = torch.stack([without, scores], 2)
    while polynomials.shape[1] > 1:
        if polynomials.shape[1] % 2:
            # pad by the polynomial 1
            one = torch.nn.functional.pad(
                torch.zeros_like(polynomials[:, :1, :1]), (0, polynomials.shape[2] - 1), value=NEVER
            )
            polynomials = torch.cat([polynomials, one], 1)
        polynomials = _product(polynomials[:, 0::2], polynomials[:, 1::2], degree, total)
    missing = degree + 1 - polynomials.shape[2]
    result = polynomials[:, 0]
    return (
        torch.nn.functional.pad(result, (0, missing), value=NEVER) if missing > 0 else result[:, : degree + 1]
    )


def _product(a: Tensor, b: Tensor, degree: int, total: Total) -> Tensor:
    """Multiply polynomials up to a degree, coefficients on the last axis, in the semiring of ``total``."""
    size = a.shape[-1]
    j, i = (
        torch.arange(min(2 * size - 2, degree) + 1, device=a.device)[:, None],
        torch.arange(size, device=a.device),
    )
    other = j - i
    fits = (other >= 0) & (other < size)
    return total(a[..., None, :] + torch.where(fits, b[..., other.clamp(0, size - 1)], NEVER), -1)
