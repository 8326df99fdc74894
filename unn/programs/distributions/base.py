"""The base class of distributions, whose parameters may depend on earlier random variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DeclarationError
from ..kinds import REAL, Array, Kind, count_of_draws
from ..recording import Recordable, holds_values, plain_array

if TYPE_CHECKING:
    from ..tape import Drawing, Shape


@dataclass(frozen=True)
class Rule:
    """A condition on parameters.

    Attributes:
        names: names of the parameters.
        subject: name of the measured quantity, for messages.
        bounds: description of its bounds, for messages.
        measure: function of the parameters that computes the quantity.
        holds: function that returns a mask of values within the bounds.
    """

    names: tuple[str, ...]
    subject: str
    bounds: str
    measure: Callable[..., Array]
    holds: Callable[[Array], Array]


_DESCRIBED = ("parameters", "kind", "bounds", "event", "parameter_shapes", "cliques", "exchangeable", "rules")
"""Attributes that the base class defines."""


class Distribution(ABC):
    """A distribution for ``t.sample``; the entries of an array are independent unless the distribution has
    event axes.

    The law of an entry depends only on its parameters, not on its position in the array. Further attributes
    that determine the law must be numbers or strings; with other attributes, no two entries are considered
    equal in law, so that a graph shares nothing between them.

    Args:
        parameters: numbers, arrays, or values of the program, by name; broadcast against one another.

    Attributes:
        parameters: parameters as given.
        kind: kind of the values.
        bounds: lower and upper bounds of the draws, which broadcast to their shape, where they differ from
            one draw to the next; None for those of the kind.
        event: shape of one draw.
        parameter_shapes: shape of the trailing axes of each parameter that belong to one draw; () for
            parameters that are not named.
        cliques: families of cliques of jointly drawn entries; each is given by the axes of one draw that
            index its cliques, so that ``((),)`` makes one clique of all entries of a draw.
        exchangeable: axes of one draw along which permutations preserve the law.
        rules: conditions on parameters.

    Raises:
        DeclarationError: for a parameter that is not a number, not finite or out of range. Computed
            parameters are checked in every draw.
    """

    kind: Kind = REAL
    bounds: tuple[Array, Array] | None = None
    event: tuple[int, ...] = ()
    parameter_shapes: Mapping[str, tuple[int, ...]] = {}
    cliques: tuple[tuple[int, ...], ...] = ()
    exchangeable: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()

    def __init__(self, **parameters: Recordable) -> None:
        self.parameters = parameters
        arrays: dict[str, Array] = {}
        for name, x in parameters.items():
            if not holds_values(x):
                arrays[name] = plain_array(x, f"{type(self).__name__}: {name}")
        self.check(arrays, type(self).__name__)

    def family(self) -> Hashable | None:
        """Key of the law without its parameters, equal for distributions whose laws are equal if their
        parameters are; None if unknown, which it is for attributes that are not numbers, strings or
        distributions."""
        attributes: list[tuple[str, Hashable]] = []
        for name, x in sorted(vars(self).items()):
            if name in _DESCRIBED:
                continue
            key = x.family() if isinstance(x, Distribution) else x
            if key is None or not isinstance(x, (bool, int, float, str, Distribution)):
                return None
            attributes.append((name, key))
        return type(self), self.kind, self.event, tuple(attributes)

    def axes_of(self, name: str) -> int:
        """Number of trailing axes of a parameter that belong to one draw."""
        return len(self.parameter_shapes.get(name, ()))

    def check(self, parameters: Mapping[str, Array], where: str, draws: int = 0) -> None:
        """Check the given parameters, which may be a subset.

        Args:
            parameters: values by name; may have a batch axis.
            where: context for the message.
            draws: number of draws along the batch axis, which may be of size 1 for draws with equal
                parameters; 0 without a batch axis.

        Raises:
            DeclarationError: names the parameter and an invalid value, and the number of draws that have one.
        """
        title = type(self).__name__
        for name, x in parameters.items():
            wanted = self.parameter_shapes.get(name, ())
            if not x.size:
                raise DeclarationError(f"{where}: {name} of {title} is empty, of shape {x.shape}.")
            if x.shape[max(0, x.ndim - len(wanted)) :] != wanted:
                raise DeclarationError(
                    f"{where}: {name} of {title} needs the shape {wanted} along its last axes, got {x.shape}."
                )
        try:
            np.broadcast_shapes(*(x.shape[: x.ndim - self.axes_of(name)] for name, x in parameters.items()))
        except ValueError:
            shapes = ", ".join(f"{name} {x.shape}" for name, x in parameters.items())
            raise DeclarationError(
                f"{where}: parameters of {title} have shapes that do not fit one another: {shapes}."
            ) from None
        finite = [Rule((name,), name, "finite", lambda x: x, np.isfinite) for name in parameters]
        for rule in (*finite, *self.rules):
            if all(name in parameters for name in rule.names):
                values = rule.measure(*(parameters[name] for name in rule.names))
                holds = rule.holds(values)
                if not holds.all():
                    number = f" in {count_of_draws(~holds, draws)}" if draws else ""
                    raise DeclarationError(
                        f"{where}: {rule.subject} of {title} must be {rule.bounds}, got "
                        f"{values[~holds].ravel()[0]}{number}."
                    )

    def in_range(self, parameters: Mapping[str, Array]) -> Array:
        """Mask of the draws whose parameters meet the rules, broadcastable to the shape of the draws.

        Args:
            parameters: values by name, as for ``log_density``; NaN is out of range where 0 is.
        """
        mask = np.ones((), dtype=bool)
        for rule in self.rules:
            values = [np.nan_to_num(parameters[name]) for name in rule.names]
            with np.errstate(all="ignore"):
                holds = np.asarray(rule.holds(rule.measure(*values)))
            draws = max(x.ndim - self.axes_of(name) for name, x in zip(rule.names, values, strict=True))
            mask = mask & holds.all(tuple(range(draws, holds.ndim)))
        return mask

    @abstractmethod
    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        """Draws, shape ``(*shape, *event)``.

        Args:
            parameters: values by name, broadcastable to ``shape`` plus their trailing axes.
            shape: shape of the draws, batch axis first.
            drawing: source of random numbers.
        """

    def unrounded(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        """Draws that rounding to single precision took just outside a computed support, back at its bounds,
        or away from a point mass; all others as they are. Arguments as for ``log_density``."""
        return values

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        """Natural logarithm of the density of draws, or of their probability, with -inf outside the support.

        A distribution of one's own needs it for ``Traced.log_prob`` and ``Traced.posterior`` alone.

        Args:
            values: draws, shape ``(*shape, *event)``.
            parameters: values by name, broadcastable to ``shape`` plus their trailing axes. Where they are
                out of range, what is returned does not count: the density is 0.

        Returns:
            Shape ``(*shape,)``.

        Raises:
            DeclarationError: for a distribution without a density.
        """
        raise DeclarationError(
            f"program: {type(self).__name__} has no density; define log_density(self, values, parameters)."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={x!r}' for name, x in self.parameters.items())})"
