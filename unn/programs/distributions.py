"""Distributions that programs draw from. Their parameters may be computed from earlier random variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import DeclarationError
from .kinds import BINARY, REAL, Array, Kind
from .recording import Recordable, holds_values, plain_array

if TYPE_CHECKING:
    from .tape import Drawing, Shape


@dataclass(frozen=True)
class Rule:
    """What parameters must fulfil.

    Attributes:
        names: of the parameters it is about.
        subject: what is measured, for messages.
        bounds: of the measure, for messages.
        measure: of these parameters.
        holds: where the measure is within its bounds.
    """

    names: tuple[str, ...]
    subject: str
    bounds: str
    measure: Callable[..., Array]
    holds: Callable[[Array], Array]


class Distribution(ABC):
    """What ``t.sample`` draws from; entries of an array are drawn one by one unless the distribution has axes of its own.

    The law of an entry follows from its parameters, whatever its place in the array. What else tells the laws of two distributions of one
    class apart is a number or a text among their attributes; with other attributes, no two entries count as equal in law, so that a graph
    shares nothing between them.

    Args:
        parameters: by name; numbers, arrays, or values of the program, which broadcast against one another.

    Attributes:
        parameters: as given.
        kind: of the values.
        event: the shape of one draw.
        parameter_axes: how many trailing axes of a parameter belong to one draw.
        cliques: which axes of one draw tell apart the cliques of entries that were drawn together.
        exchangeable: axes of one draw along each of which its entries can be permuted without a change of the law.

    Raises:
        DeclarationError: for a parameter that is no number, not finite or out of its range. Parameters that a program computes are
            checked in every draw.
    """

    kind: Kind = REAL
    event: tuple[int, ...] = ()
    parameter_axes: ClassVar[Mapping[str, int]] = {}
    cliques: ClassVar[tuple[int, ...]] = ()
    exchangeable: ClassVar[tuple[int, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    def __init__(self, **parameters: Recordable) -> None:
        self.parameters = parameters
        known: dict[str, Array] = {}
        for name, x in parameters.items():
            if not holds_values(x):
                known[name] = plain_array(x, f"{type(self).__name__}: {name}")
        self.check(known, type(self).__name__)

    def check(self, parameters: Mapping[str, Array], where: str) -> None:
        """Check parameters, or those among them that are known.

        Args:
            parameters: by name; may carry a batch axis.
            where: for the message.

        Raises:
            DeclarationError: names the parameter and a value that does not fit.
        """
        title = type(self).__name__
        try:
            np.broadcast_shapes(*(x.shape[: x.ndim - self.parameter_axes.get(name, 0)] for name, x in parameters.items()))
        except ValueError:
            shapes = ", ".join(f"{name} {x.shape}" for name, x in parameters.items())
            raise DeclarationError(f"{where}: parameters of {title} have shapes that do not fit one another: {shapes}.") from None
        finite = [Rule((name,), name, "finite", lambda x: x, np.isfinite) for name in parameters]
        for rule in (*finite, *self.rules):
            if all(name in parameters for name in rule.names):
                found = rule.measure(*(parameters[name] for name in rule.names))
                holds = rule.holds(found)
                if not holds.all():
                    raise DeclarationError(f"{where}: {rule.subject} of {title} must be {rule.bounds}, got {found[~holds].ravel()[0]}.")

    @abstractmethod
    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        """Draws, shape ``(*shape, *event)``.

        Args:
            parameters: by name, broadcastable to ``shape`` (and their own trailing axes).
            shape: the batch axis first.
            drawing: the source of random numbers.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={x!r}' for name, x in self.parameters.items())})"


class Normal(Distribution):
    """A normal distribution; a scale of zero gives its mean.

    Args:
        mean: any number.
        scale: the standard deviation, not negative.
    """

    rules = (Rule(("scale",), "scale", ">= 0", lambda scale: scale, lambda scale: scale >= 0),)

    def __init__(self, mean: Recordable = 0.0, scale: Recordable = 1.0) -> None:
        super().__init__(mean=mean, scale=scale)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(parameters["mean"] + parameters["scale"] * drawing.normal(shape))


class Uniform(Distribution):
    """Any number between two, each as likely; equal bounds give that number.

    Args:
        low: the lower bound.
        high: the upper bound, not below the lower.
    """

    rules = (Rule(("low", "high"), "high - low", ">= 0", lambda low, high: high - low, lambda width: width >= 0),)

    def __init__(self, low: Recordable = 0.0, high: Recordable = 1.0) -> None:
        super().__init__(low=low, high=high)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        low, high = parameters["low"], parameters["high"]
        return np.asarray(low + (high - low) * drawing.uniform(shape))


class Bernoulli(Distribution):
    """1 with some probability, else 0.

    Args:
        probability: of 1, from 0 to 1.
    """

    kind = BINARY
    rules = (Rule(("probability",), "probability", "from 0 to 1", lambda p: p, lambda p: (p >= 0) & (p <= 1)),)

    def __init__(self, probability: Recordable = 0.5) -> None:
        super().__init__(probability=probability)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return drawing.uniform(shape) < parameters["probability"]


class Categorical(Distribution):
    """One of several options, counted from 0. In the graph and in draws of it, an entry is one-hot along a last axis.

    Args:
        options: how many there are, at least 2.
        probabilities: of the options, along the last axis; all the same if left out. They sum to one.
    """

    parameter_axes = {"probabilities": 1}
    rules = (
        Rule(("probabilities",), "probabilities", ">= 0", lambda p: p, lambda p: p >= 0),
        # single precision is allowed its rounding
        Rule(("probabilities",), "the sum of probabilities", "one", lambda p: p.sum(-1), lambda total: np.abs(total - 1) < 1e-4),
    )

    def __init__(self, options: int, probabilities: Recordable | None = None) -> None:
        if isinstance(options, bool) or not isinstance(options, int) or options < 2:
            raise DeclarationError(f"Categorical needs a number of options that is a whole number >= 2, got {options!r}.")
        self.kind = Kind("category", options)
        given = [1 / options] * options if probabilities is None else probabilities
        size = np.shape(plain_array(given, "Categorical: probabilities")) if not holds_values(given) else None
        if size is not None and (not size or size[-1] != options):
            raise DeclarationError(f"Categorical needs {options} probabilities along the last axis, got shape {size}.")
        super().__init__(probabilities=given)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        below = parameters["probabilities"].cumsum(-1)
        # relative to the last sum, so that rounding never leads past the last option
        above = drawing.uniform(shape)[..., None] * below[..., -1:] >= below[..., :-1]
        return np.asarray(above.sum(-1))


class Permutation(Distribution):
    """A permutation matrix, each as likely. Its entries are drawn together: those of a row interact, and those of a column.

    Args:
        size: of its rows and columns, at least 1.
    """

    kind = BINARY
    cliques = (0, 1)
    exchangeable = (0, 1)

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise DeclarationError(f"Permutation needs a size that is a whole number >= 1, got {size!r}.")
        self.event = (size, size)
        super().__init__()

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        size = self.event[0]
        order = drawing.uniform((*shape, size)).argsort(-1)
        return np.asarray(order[..., None] == np.arange(size))

    def __repr__(self) -> str:
        return f"Permutation({self.event[0]})"
