"""Consistency of derivatives: reverse mode, forward mode and finite differences, up to second order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import DerivativeError

Function = Callable[[Tensor], Tensor]

_EPS = torch.finfo(torch.float64).eps


def check_derivatives(
    function: Function,
    points: Iterable[Tensor],
    *,
    order: int = 2,
    step: float = 1e-5,
    tolerance: float = 1e-6,
    may_refuse: bool = False,
    seed: int = 0,
) -> None:
    """Check that the derivatives of a function agree with one another and with central differences.

    At each point, for a random direction and random weights of the results, it compares
    ``torch.autograd.grad``, ``torch.func.vjp``, ``torch.func.jvp`` and
    ``torch.autograd.forward_ad``; for second order, reverse over reverse, forward over reverse and
    reverse over forward. At a kink, such as that of ``relu`` at 0, any derivative between the
    one-sided ones is correct. A missing or zero derivative is an error; ``DerivativeError`` is
    accepted if ``may_refuse`` is set.

    Args:
        function: function of one tensor that returns one tensor of any shape; finite near the points.
        points: arguments of the function, float64.
        order: 1, or 2 to include second derivatives.
        step: step size of the differences, along a direction of unit variance.
        tolerance: tolerance of the differences, relative to the largest compared entry or to 1,
            besides rounding.
        may_refuse: accept ``DerivativeError`` of any mode except first-order ``torch.autograd.grad``.
        seed: seed of the direction and the weights.

    Raises:
        AssertionError: if derivatives disagree; names the mode, the point and the error.

    Example:
        >>> points = [torch.randn(3), torch.tensor([30.0, -1e3, 0.0])]
        >>> check_derivatives(torch.tanh, [point.double() for point in points])
    """
    generator = torch.Generator().manual_seed(seed)
    for index, at in enumerate(points):
        point = at.detach()
        direction = torch.randn(point.shape, dtype=point.dtype, generator=generator)
        result = function(point)
        weight = torch.randn(result.shape, dtype=result.dtype, generator=generator)
        modes = _first_order(function, point, direction, weight)
        _compare(
            modes,
            f"point {index}, first order",
            may_refuse,
            _differences(function, point, direction, step),
            weight,
            tolerance,
        )
        if order > 1:

            def gradient(x: Tensor, weight: Tensor = weight) -> Tensor:
                leaf = x.detach().requires_grad_()
                return _reverse(function, leaf, weight)

            across = torch.randn(point.shape, dtype=point.dtype, generator=generator)
            second = _second_order(function, point, direction, weight, across)
            _compare(
                second,
                f"point {index}, second order",
                may_refuse,
                _differences(gradient, point, direction, step),
                across,
                tolerance,
            )


def _reverse(function: Function, leaf: Tensor, weight: Tensor, create_graph: bool = False) -> Tensor:
    result = (function(leaf) * weight).sum()
    if not result.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(result, leaf, create_graph=create_graph, materialize_grads=True)
    return gradient


def _first_order(
    function: Function, x: Tensor, direction: Tensor, weight: Tensor
) -> dict[str, Callable[[], Tensor]]:
    """Weighted directional derivative, by mode."""

    def dual() -> Tensor:
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent
        assert tangent is not None, "torch.autograd.forward_ad: the result has no tangent"
        derivative: Tensor = (tangent * weight).sum()
        return derivative

    return {
        "torch.autograd.grad": lambda: (
            _reverse(function, x.clone().requires_grad_(), weight) * direction
        ).sum(),
        "torch.func.vjp": lambda: (torch.func.vjp(function, x)[1](weight)[0] * direction).sum(),
        "torch.func.jvp": lambda: (torch.func.jvp(function, (x,), (direction,))[1] * weight).sum(),
        "torch.autograd.forward_ad": dual,
    }


def _second_order(
    function: Function, x: Tensor, direction: Tensor, weight: Tensor, across: Tensor
) -> dict[str, Callable[[], Tensor]]:
    """Second derivative of the weighted result in two directions, by mode."""

    def gradient(y: Tensor) -> Tensor:
        slope: Tensor = torch.func.vjp(function, y)[1](weight)[0]
        return slope

    def slope_along(y: Tensor) -> Tensor:
        change: Tensor = torch.func.jvp(function, (y,), (across,))[1]
        return (change * weight).sum()

    def twice_in_reverse() -> Tensor:
        leaf = x.clone().requires_grad_()
        slope = _reverse(function, leaf, weight, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros((), dtype=x.dtype)
        return (_reverse(lambda _: slope, leaf, across) * direction).sum()

    return {
        "torch.autograd.grad of torch.autograd.grad": twice_in_reverse,
        "torch.func.jvp of torch.func.vjp": lambda: (
            torch.func.jvp(gradient, (x,), (direction,))[1] * across
        ).sum(),
        "torch.func.grad of torch.func.jvp": lambda: (torch.func.grad(slope_along)(x) * direction).sum(),
    }


def _differences(
    function: Function, x: Tensor, direction: Tensor, step: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One-sided difference quotients and a bound on their rounding errors."""
    before, here, after = (function(x + step * side * direction).detach() for side in (-1, 0, 1))
    size = torch.stack([before, here, after]).abs().amax() if here.numel() else here.sum()
    # the error of a function exceeds the rounding of its result
    rounding = 50 * _EPS * torch.maximum(size, x.abs().amax() if x.numel() else size) / step
    return (here - before) / step, (after - here) / step, rounding


def _compare(
    modes: dict[str, Callable[[], Tensor]],
    what: str,
    may_refuse: bool,
    differences: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    tolerance: float,
) -> None:
    results = {}
    for name, mode in modes.items():
        try:
            results[name] = mode().detach()
        except DerivativeError:
            if not may_refuse or name == "torch.autograd.grad":
                raise
    left, right, rounding = differences
    low, high = (sides * weight for sides in (torch.minimum(left, right), torch.maximum(left, right)))
    bounds = torch.minimum(low, high).sum(), torch.maximum(low, high).sum()
    central = ((left + right) / 2 * weight).sum()
    scale = 1 + (torch.maximum(left.abs(), right.abs()) * weight.abs()).sum()
    slack = tolerance * scale + rounding * weight.abs().sum()
    smooth = float(bounds[1] - bounds[0]) <= 1e3 * float(slack)
    for name, result in results.items():
        if smooth:
            agrees = bool((result - central).abs() <= slack)
        else:
            agrees = bool((result >= bounds[0] - slack) & (result <= bounds[1] + slack))
        assert agrees, (
            f"{what}: {name} gives {float(result):.10g}, differences {float(central):.10g}, to "
            f"{float(slack):.1g}"
        )
    # in exact arithmetic all modes give the same number
    values = torch.stack(list(results.values()))
    spread = float(values.amax() - values.amin())
    allowed = 1e-8 * (1 + float(values.abs().amax()))
    assert spread <= allowed, (
        f"{what}: modes differ by {spread:.2g}: { ({name: float(value) for name, value in results.items()}) }"
    )
