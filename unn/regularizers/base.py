"""The interface of a regularizer Psi: value, conjugate, mirror, sample, contains."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import DeclarationError, ObservationError, UnnError

if TYPE_CHECKING:
    from ..graph.sizes import SizeRule

_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


class Regularizer(ABC):
    """A strictly convex function Psi over the values of one variable.

    Values ``x`` and pre-activations ``t`` have shape ``(batch, *axes)``. A boolean ``mask``, broadcastable to
    them, is true at existing entries: padded entries contribute nothing and have activation 0, even if a
    whole row is padded.

    For all x, t: ``value(x) + conjugate(t) >= <x, t>``, with equality exactly at ``x = mirror(t)``
    (Fenchel-Young).
    """

    bounded: ClassVar[bool] = False
    """True if the domain is bounded, so that multilinear energies are bounded below in this variable."""

    formula: ClassVar[str] = "a strictly convex function"
    """Psi as one line of text, used by ``explain``."""

    activation: ClassVar[str] = "mirror"
    """Common name of the gradient of the conjugate."""

    @property
    def lipschitz(self) -> float:
        """A Lipschitz constant of ``mirror`` in the Euclidean norm; infinite where none is known."""
        return math.inf

    @abstractmethod
    def value(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Psi(x), shape ``(batch,)``; +inf outside the domain."""

    @abstractmethod
    def conjugate(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """Psi*(t) = sup_x <x, t> - Psi(x), shape ``(batch,)``."""

    @abstractmethod
    def mirror(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The activation grad Psi*(t) = argmax_x <x, t> - Psi(x), shape of ``t``."""

    @abstractmethod
    def contains(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Whether x is in the domain, up to the tolerance of its dtype; shape ``(batch,)``, boolean, false
        for NaN."""

    def sample(
        self, t: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """A draw from the exponential family with mean ``mirror(t)``, shape of ``t``.

        Raises:
            UnnError: if the regularizer is not the entropy of an exponential family with that mean.
        """
        raise UnnError(
            f"{type(self).__name__} is not the entropy of an exponential family with mean mirror(t), so it "
            "has no sample(); use Entropy, BinaryEntropy, SignedEntropy or SquaredNorm for variables to be "
            "sampled."
        )

    def treats_nodes_alike(self, feature_axes: int) -> bool:
        """Whether the value of a node does not depend on which node it is; always by default.

        Args:
            feature_axes: number of last axes that do not index nodes.
        """
        return True

    def conditional_sample(
        self,
        t: Tensor,
        temperature: float | Tensor = 1.0,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """A draw of x with probability proportional to exp((<x, t> - Psi(x)) / temperature), shape of ``t``.

        This is the distribution of a block given all others under exp(-E / temperature). Where x is the mean
        of categories, signs or structures, it ranges over these, the corners of the domain, where Psi is 0;
        elsewhere over the whole domain. At the temperature 1 and for corners it is that of ``sample`` for
        ``Psi = -H``.

        Args:
            t: sum of the messages, shape ``(batch, *axes)``.
            temperature: above 0; a number, or a tensor that broadcasts to ``t``.
            mask: mask of existing entries; the others are 0.
            generator: random number generator; torch's global one by default.

        Raises:
            UnnError: if the distribution has no exact sampler.
        """
        raise UnnError(
            f"{type(self).__name__} has no exact sampler of its conditional distribution "
            "(conditional_sample); Entropy, BinaryEntropy, SignedEntropy, SquaredNorm, NonNegative, Box, L1 "
            "and the structured regularizers have."
        )

    def conditional_log_partition(
        self, t: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
    ) -> Tensor:
        """Logarithm of the sum, or integral, of exp((<x, t> - Psi(x)) / temperature), shape ``(batch,)``.

        Differentiable in t; the gradient times the temperature is the mean of ``conditional_sample``.
        Arguments and errors as there.
        """
        raise UnnError(
            f"{type(self).__name__} has no closed form of the partition function of its conditional "
            "distribution."
        )

    def value_at_mirror(self, x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """``value(x)`` for x known to be ``mirror(t)``, which can be cheaper; shape ``(batch,)``."""
        return self.value(x, mask)

    def restricted(self, value: Tensor, where: Tensor) -> Regularizer | None:
        """This regularizer restricted to the points of its domain with some entries fixed.

        None, the default, if only all entries along ``over_axes`` can be fixed together.

        Args:
            value: values of the fixed entries, shape ``(batch, *axes)``.
            where: boolean, true at fixed entries, shape of ``value``.

        Raises:
            ObservationError: if no point of the domain has these entries.
        """
        return None

    def size_rules(self, axes: tuple[str, ...]) -> Sequence[SizeRule]:
        """Rules between the sizes of the named axes of a variable; none by default."""
        return ()

    def loss(self, t: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The Fenchel-Young loss Psi(target) + Psi*(t) - <target, t>, shape ``(batch,)``: never negative, 0
        at mirror(t).

        For ``Entropy`` and a one-hot target it is the cross-entropy of softmax(t); for ``SignedEntropy`` the
        binary cross-entropy of the mean parameter sigmoid(2t) (Blondel et al., 2020, Section 3).

        Args:
            t: scores, shape ``(batch, *axes)``; -inf where an entry is excluded. The loss of a target with an
                excluded entry is inf.
            target: a point of the domain, shape of ``t`` or broadcastable by axes of size 1. For a
                regularizer on the simplex also class numbers, of an integer dtype and the shape of ``t``
                without the axis that sums to one, as in ``torch.nn.functional.cross_entropy``.
            mask: mask of existing entries, as in all methods.

        Raises:
            ObservationError: for a target of another shape, or class numbers out of range.
        """
        target = self._point_of(target, t, mask)
        if mask is not None:
            # before the product, so that padding does not enter the gradient
            target, t = torch.where(mask, target, 0), torch.where(mask, t, 0)
        # 0 * -inf would be NaN
        finite = torch.where((target == 0) & torch.isneginf(t), 0, t)
        return self.value(target, mask) + self.conjugate(t, mask) - batch_sum(target * finite)

    def _point_of(self, target: Tensor, t: Tensor, mask: Tensor | None) -> Tensor:
        """Convert the target of a loss to a point of the domain that broadcasts to the scores."""
        sizes = zip(target.shape, t.shape, strict=False)
        if target.ndim != t.ndim or any(own not in (1, size) for own, size in sizes):
            raise ObservationError(
                f"{self!r}: loss needs a target of the shape of the scores, {tuple(t.shape)}, got "
                f"{tuple(target.shape)} of {target.dtype}.{self._target_hint(t)}"
            )
        return target if target.is_floating_point() else target.to(t.dtype)

    def _target_hint(self, t: Tensor) -> str:
        """Hint on other accepted targets, for messages; empty by default."""
        return ""

    def over_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes along which entries depend on one another; none for an elementwise regularizer."""
        return ()

    def bind(self, axes: tuple[str, ...], name: str) -> Regularizer:
        """Bind this regularizer to a variable with these axes.

        Raises:
            DeclarationError: if it normalises over an axis that the variable does not have.
        """
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def real_number(owner: str, argument: str, value: object, over: bool = False) -> float:
    """Check a numeric argument of a constructor.

    Args:
        owner: name of the class, for the message.
        argument: name of the argument, for the message.
        value: the argument.
        over: whether the class has an argument ``over``, for which a string in place of a number is probably
            meant.

    Raises:
        DeclarationError: if the value is not a number.
    """
    if not isinstance(value, (str, bytes, bool)):
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
    hint = f" An axis is given by name: {owner}(over={value!r})." if over and isinstance(value, str) else ""
    raise DeclarationError(f"{owner}: {argument} must be a number, got {value!r}.{hint}")


def batch_sum(x: Tensor) -> Tensor:
    """Sum over all axes but the first: ``(batch, *axes)`` to ``(batch,)``."""
    return x if x.ndim < 2 else x.sum(tuple(range(1, x.ndim)))


def batch_flat(x: Tensor) -> Tensor:
    """All entries of each batch element in a row: ``(batch, *axes)`` to ``(batch, entries)``."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def batch_all(x: Tensor) -> Tensor:
    """Conjunction over all axes but the first."""
    return x if x.ndim < 2 else x.flatten(1).all(1)


def is_transformed(*tensors: Tensor) -> bool:
    """Whether ``torch.func`` transforms are active or a tensor is differentiated in forward mode.

    In that case ``requires_grad`` does not indicate whether derivatives are needed.
    """
    active: bool = torch._C._are_functorch_transforms_active()
    return active or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


@contextmanager
def outer_forward_mode() -> Iterator[Callable[..., list[Any]]]:
    """Propagate tangents of outer forward modes in the method ``jvp`` of an autograd function.

    PyTorch calls it with forward mode disabled, so that the derivative of what it computes would be 0 in an
    outer forward mode, silently.

    Yields:
        A function that takes the tangents of the present forward mode off tensors (None is left as it is);
        those of outer ones stay.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        yield lambda *tensors: [None if x is None else forward_ad.unpack_dual(x).primal for x in tensors]


def merged(size: int, x: Tensor, dim: int | None) -> Tensor:
    """Merge the axis ``dim`` of a ``torch.func.vmap`` (None if x lacks it) into the batch axis, which is the
    first."""
    return (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)


def ordinary(x: Tensor) -> Tensor:
    """A tensor that autograd may save: a copy of one that was made in inference mode."""
    return x.clone() if x.is_inference() else x


def tolerance(dtype: torch.dtype) -> float:
    """Largest distance to the domain at which a value of this dtype counts as inside."""
    return _TOLERANCE.get(dtype, 0.0)


def inside_interval(x: Tensor, low: float | Tensor, high: float | Tensor, tolerance: float) -> Tensor:
    """Mask of the entries between two bounds, up to a tolerance, in the shape of ``x``.

    An interval narrower than one has a tolerance relative to its width, and bounds are rounded.

    Args:
        x: values.
        low, high: bounds, broadcastable to ``x``; infinite for none.
        tolerance: distance to the bounds of an interval of width one.
    """
    # numbers are made on the device of the values, not copied there
    low, high = (
        bound if isinstance(bound, Tensor) else torch.full((), bound, dtype=x.dtype, device=x.device)
        for bound in (low, high)
    )
    size = torch.maximum(*(torch.where(bound.isfinite(), bound.abs(), 0) for bound in (low, high)))
    margin = (tolerance * (high - low).clamp(max=1.0)).maximum(4 * torch.finfo(x.dtype).eps * size)
    return (x >= low - margin) & (x <= high + margin)


def widened(x: Tensor) -> Tensor:
    """Convert half precision to float32, for accurate sums and thresholds."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
