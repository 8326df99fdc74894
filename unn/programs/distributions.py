"""Distributions for programs, with parameters that may depend on earlier random variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import DeclarationError, whole_number
from .kinds import BINARY, REAL, Array, Kind
from .recording import Recordable, holds_values, plain_array

if TYPE_CHECKING:
    from .tape import Drawing, Shape


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
        event: shape of one draw.
        parameter_axes: number of trailing axes of each parameter that belong to one draw.
        cliques: axes of one draw that index cliques of jointly drawn entries.
        exchangeable: axes of one draw along which permutations preserve the law.

    Raises:
        DeclarationError: for a parameter that is not a number, not finite or out of range. Computed
            parameters are checked in every draw.
    """

    kind: Kind = REAL
    event: tuple[int, ...] = ()
    parameter_axes: ClassVar[Mapping[str, int]] = {}
    cliques: ClassVar[tuple[int, ...]] = ()
    exchangeable: ClassVar[tuple[int, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    def __init__(self, **parameters: Recordable) -> None:
        self.parameters = parameters
        arrays: dict[str, Array] = {}
        for name, x in parameters.items():
            if not holds_values(x):
                arrays[name] = plain_array(x, f"{type(self).__name__}: {name}")
        self.check(arrays, type(self).__name__)

    def check(self, parameters: Mapping[str, Array], where: str) -> None:
        """Check the given parameters, which may be a subset.

        Args:
            parameters: values by name; may have a batch axis.
            where: context for the message.

        Raises:
            DeclarationError: names the parameter and an invalid value.
        """
        title = type(self).__name__
        try:
            np.broadcast_shapes(
                *(x.shape[: x.ndim - self.parameter_axes.get(name, 0)] for name, x in parameters.items())
            )
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
                    raise DeclarationError(
                        f"{where}: {rule.subject} of {title} must be {rule.bounds}, got "
                        f"{values[~holds].ravel()[0]}."
                    )

    @abstractmethod
    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        """Draws, shape ``(*shape, *event)``.

        Args:
            parameters: values by name, broadcastable to ``shape`` plus their trailing axes.
            shape: shape of the draws, batch axis first.
            drawing: source of random numbers.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={x!r}' for name, x in self.parameters.items())})"


class Normal(Distribution):
    """A normal distribution; with scale zero, a point mass at the mean.

    Args:
        mean: mean.
        scale: standard deviation, >= 0.
    """

    rules = (Rule(("scale",), "scale", ">= 0", lambda scale: scale, lambda scale: scale >= 0),)

    def __init__(self, mean: Recordable = 0.0, scale: Recordable = 1.0) -> None:
        super().__init__(mean=mean, scale=scale)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(parameters["mean"] + parameters["scale"] * drawing.normal(shape))


class Uniform(Distribution):
    """The uniform distribution between two bounds; with equal bounds, a point mass.

    Args:
        low: lower bound.
        high: upper bound, >= ``low``.
    """

    rules = (
        Rule(("low", "high"), "high - low", ">= 0", lambda low, high: high - low, lambda width: width >= 0),
    )

    def __init__(self, low: Recordable = 0.0, high: Recordable = 1.0) -> None:
        super().__init__(low=low, high=high)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        low, high = parameters["low"], parameters["high"]
        return np.asarray(low + (high - low) * drawing.uniform(shape))


class Bernoulli(Distribution):
    """A Bernoulli distribution on {0, 1}.

    Args:
        probability: probability of 1.
    """

    kind = BINARY
    rules = (
        Rule(("probability",), "probability", "from 0 to 1", lambda p: p, lambda p: (p >= 0) & (p <= 1)),
    )

    def __init__(self, probability: Recordable = 0.5) -> None:
        super().__init__(probability=probability)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return drawing.uniform(shape) < parameters["probability"]


class Categorical(Distribution):
    """A categorical distribution over options 0, 1, ...; entries are one-hot along a last axis in graphs and
    draws.

    Args:
        options: number of options, at least 2.
        probabilities: probabilities along the last axis, which sum to one; uniform by default.
    """

    parameter_axes = {"probabilities": 1}
    rules = (
        Rule(("probabilities",), "probabilities", ">= 0", lambda p: p, lambda p: p >= 0),
        # allows the rounding of single precision
        Rule(
            ("probabilities",),
            "the sum of probabilities",
            "one",
            lambda p: p.sum(-1),
            lambda total: np.abs(total - 1) < 1e-4,
        ),
    )

    def __init__(self, options: int, probabilities: Recordable | None = None) -> None:
        whole_number("Categorical: the number of options", options, 2)
        self.kind = Kind("category", options)
        given = [1 / options] * options if probabilities is None else probabilities
        size = np.shape(plain_array(given, "Categorical: probabilities")) if not holds_values(given) else None
        if size is not None and (not size or size[-1] != options):
            raise DeclarationError(
                f"Categorical needs {options} probabilities along the last axis, got shape {size}."
            )
        super().__init__(probabilities=given)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        below = parameters["probabilities"].cumsum(-1)
        # relative to the total, so that rounding never selects an option past the last
        above = drawing.uniform(shape)[..., None] * below[..., -1:] >= below[..., :-1]
        return np.asarray(above.sum(-1))


class Permutation(Distribution):
    """A uniformly random permutation matrix. Entries are drawn jointly: those of a row interact, as do those
    of a column.

    Args:
        size: number of rows and columns, at least 1.
    """

    kind = BINARY
    cliques = (0, 1)
    exchangeable = (0, 1)

    def __init__(self, size: int) -> None:
        whole_number("Permutation: the size", size, 1)
        self.event = (size, size)
        super().__init__()

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        size = self.event[0]
        order = drawing.uniform((*shape, size)).argsort(-1)
        return np.asarray(order[..., None] == np.arange(size))

    def __repr__(self) -> str:
        return f"Permutation({self.event[0]})"
