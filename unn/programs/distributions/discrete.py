"""Discrete distributions: truth values, categories, counts and permutations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from ...errors import DeclarationError, whole_number
from ..kinds import BINARY, Array, Kind
from ..recording import Recordable, holds_values, plain_array
from .base import Distribution, Rule
from .continuous import at_least_zero

if TYPE_CHECKING:
    from ..tape import Drawing, Shape

_LARGEST = 1e12
"""Largest rate of a Poisson variable and number of trials, so that counts are exact in double precision."""


def probability_rule(name: str) -> Rule:
    """The condition that a parameter is a probability."""
    return Rule((name,), name, "from 0 to 1", lambda p: p, lambda p: (p >= 0) & (p <= 1))


def simplex_rules(name: str) -> tuple[Rule, Rule]:
    """The conditions that a parameter has probabilities along its last axis."""
    return (
        at_least_zero(name),
        # allows the rounding of single precision
        Rule(
            (name,),
            f"the sum of {name}",
            "one",
            lambda p: p.sum(-1),
            lambda total: np.abs(total - 1) < 1e-4,
        ),
    )


def draw_option(probabilities: Array, uniform: Array) -> Array:
    """Options drawn with probabilities along the last axis by uniform numbers, which have one axis less."""
    below = probabilities.cumsum(-1)
    # relative to the total, so that rounding never selects an option past the last
    above = uniform[..., None] * below[..., -1:] >= below[..., :-1]
    return np.asarray(above.sum(-1))


class Bernoulli(Distribution):
    """A Bernoulli distribution on {0, 1}.

    Args:
        probability: probability of 1.
    """

    kind = BINARY
    rules = (probability_rule("probability"),)

    def __init__(self, probability: Recordable = 0.5) -> None:
        super().__init__(probability=probability)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return drawing.uniform(shape) < parameters["probability"]

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        p = parameters["probability"]
        return np.where(values > 0, np.log(p), np.log1p(-p))


class Categorical(Distribution):
    """A categorical distribution over options 0, 1, ...; entries are one-hot along a last axis in graphs and
    draws.

    Args:
        options: number of options, at least 2; or the probabilities, which give it.
        probabilities: probabilities along the last axis, which sum to one; uniform by default.
    """

    rules = simplex_rules("probabilities")

    def __init__(
        self, options: int | Recordable | None = None, probabilities: Recordable | None = None
    ) -> None:
        if probabilities is None and _last_size(options) is not None:
            options, probabilities = None, options
        count: Any
        if options is None:
            count = _last_size(probabilities)
            whole_number("Categorical: the number of probabilities", count, 2)
        else:
            count = options
            whole_number("Categorical: the number of options", count, 2)
        count = int(count)
        self.kind = Kind("category", count)
        self.parameter_shapes = {"probabilities": (count,)}
        given = [1 / count] * count if probabilities is None else probabilities
        size = np.shape(plain_array(given, "Categorical: probabilities")) if not holds_values(given) else None
        if size is not None and (not size or size[-1] != count):
            raise DeclarationError(
                f"Categorical needs {count} probabilities along the last axis, got shape {size}."
            )
        super().__init__(probabilities=given)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return draw_option(parameters["probabilities"], drawing.uniform(shape))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        p = parameters["probabilities"]
        p = np.broadcast_to(p, (*values.shape, p.shape[-1]))
        option = values.astype(np.int64)[..., None]
        return np.asarray(np.log(np.take_along_axis(p, option, -1)[..., 0] / p.sum(-1)))


def _last_size(x: Any) -> int | None:
    """Size of the last axis of an array or a nested list; None for a number and anything else."""
    if isinstance(x, (list, tuple)):
        inner = _last_size(x[0]) if len(x) else None
        return len(x) if inner is None else inner
    shape: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    return shape[-1] if shape else None


class Poisson(Distribution):
    """A Poisson distribution of counts 0, 1, ...

    Args:
        rate: mean, >= 0.
    """

    kind = Kind("count")
    rules = (Rule(("rate",), "rate", "from 0 to 1e12", lambda x: x, lambda x: (x >= 0) & (x <= _LARGEST)),)

    def __init__(self, rate: Recordable = 1.0) -> None:
        super().__init__(rate=rate)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        return np.asarray(drawing.generator().poisson(parameters["rate"], shape))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        inside = xlogy(values, parameters["rate"]) - parameters["rate"] - gammaln(values + 1.0)
        return np.where(_is_count(values), inside, -np.inf)


class Binomial(Distribution):
    """A binomial distribution: the number of successes.

    Args:
        trials: number of trials, a whole number >= 0.
        probability: probability of a success.
    """

    rules = (
        Rule(
            ("trials",),
            "trials",
            "whole numbers from 0 to 1e12",
            lambda n: n,
            lambda n: (n >= 0) & (n <= _LARGEST) & (n == np.floor(n)),
        ),
        probability_rule("probability"),
    )

    def __init__(self, trials: Recordable, probability: Recordable = 0.5) -> None:
        super().__init__(trials=trials, probability=probability)
        self.kind = Kind("count")
        if not holds_values(trials):
            high = np.asarray(trials, dtype=np.float64)
            self.kind = Kind("count", high=float(high.max(initial=1.0)))
            self.bounds = np.zeros_like(high), high

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        trials = parameters["trials"].astype(np.int64)
        return np.asarray(drawing.generator().binomial(trials, parameters["probability"], shape))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        n, p = parameters["trials"], parameters["probability"]
        choices = gammaln(n + 1) - gammaln(values + 1.0) - gammaln(n - values + 1)
        inside = choices + xlogy(values, p) + xlog1py(n - values, -p)
        return np.where(_is_count(values) & (values <= n), inside, -np.inf)


class Permutation(Distribution):
    """A uniformly random permutation matrix. Entries are drawn jointly: those of a row interact, as do those
    of a column.

    Args:
        size: number of rows and columns, at least 1.
    """

    kind = BINARY
    cliques = ((0,), (1,))
    exchangeable = (0, 1)

    def __init__(self, size: int) -> None:
        whole_number("Permutation: the size", size, 1)
        self.event = (size, size)
        super().__init__()

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        size = self.event[0]
        order = drawing.uniform((*shape, size)).argsort(-1)
        return np.asarray(order[..., None] == np.arange(size))

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        is_permutation = (values.sum(-1) == 1).all(-1) & (values.sum(-2) == 1).all(-1)
        return np.where(is_permutation, -gammaln(self.event[0] + 1.0), -np.inf)

    def __repr__(self) -> str:
        return f"Permutation({self.event[0]})"


def _is_count(values: Array) -> Array:
    return np.asarray((values >= 0) & (values == np.floor(values)))
