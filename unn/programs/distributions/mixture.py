"""Mixtures of distributions of one family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from ...errors import DeclarationError
from ..kinds import Array
from ..recording import Recordable, holds_values, plain_array
from .base import Distribution
from .discrete import draw_option, simplex_rules
from .vectors import entries_of

if TYPE_CHECKING:
    from ..tape import Drawing, Shape


class Mixture(Distribution):
    """A mixture of distributions of one family, which differ in their parameters.

    Args:
        probabilities: probabilities of the components along the last axis, which sum to one.
        components: a distribution of single numbers with its parameters along a last axis, one for each
            component: ``Mixture([0.3, 0.7], Normal([-1.0, 1.0], 0.5))``. Plain numbers are the same for all
            components.

    Raises:
        DeclarationError: for components that are not distributions of single numbers or truth values, or as
            many as the probabilities.
    """

    def __init__(self, probabilities: Recordable, components: Distribution) -> None:
        if not isinstance(components, Distribution) or components.event or components.parameter_shapes:
            raise DeclarationError(
                f"Mixture: components are a distribution of single numbers, such as Normal([-1, 1], 0.5), "
                f"got {components!r}."
            )
        size = entries_of(probabilities, "Mixture: probabilities")
        self.components, self.kind = components, components.kind
        if components.bounds is not None and components.bounds[0].ndim:
            # a draw has the values of any of its components
            low, high = components.bounds
            self.bounds = low.min(-1), high.max(-1)
        self.rules = (*simplex_rules("probabilities"), *components.rules)
        given = {name: _per_component(name, x, size) for name, x in components.parameters.items()}
        self.parameter_shapes = dict.fromkeys(("probabilities", *given), (size,))
        super().__init__(probabilities=probabilities, **given)

    def draw(self, parameters: Mapping[str, Array], shape: Shape, drawing: Drawing) -> Array:
        option = draw_option(parameters["probabilities"], drawing.uniform(shape))
        chosen = {
            name: np.take_along_axis(np.broadcast_to(x, (*shape, x.shape[-1])), option[..., None], -1)[..., 0]
            for name, x in self._own(parameters).items()
        }
        return self.components.draw(chosen, shape, drawing)

    def log_density(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        each = self.components.log_density(values[..., None], self._own(parameters))
        probabilities = parameters["probabilities"]
        # a density may be infinite where its component is impossible
        with np.errstate(invalid="ignore", divide="ignore"):
            weighted = np.where(probabilities > 0, each + np.log(probabilities), -np.inf)
        return np.asarray(logsumexp(weighted, axis=-1))

    def unrounded(self, values: Array, parameters: Mapping[str, Array]) -> Array:
        """As the first component has it that changes a value."""
        each = self.components.unrounded(values[..., None], self._own(parameters))
        each = np.broadcast_to(each, (*values.shape, each.shape[-1]))
        first = (each != values[..., None]).argmax(-1)
        return np.take_along_axis(each, first[..., None], -1)[..., 0]

    def _own(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """The parameters of the components."""
        return {name: parameters[name] for name in self.components.parameters}

    def __repr__(self) -> str:
        return f"Mixture({self.parameters['probabilities']!r}, {self.components!r})"


def _per_component(name: str, x: Recordable, size: int) -> Recordable:
    """A parameter with an axis of components, to which plain numbers are repeated.

    Raises:
        DeclarationError: for another number of components.
    """
    if holds_values(x):
        return x
    array = plain_array(x, f"Mixture: {name}")
    if array.shape[-1:] not in ((), (1,), (size,)):
        raise DeclarationError(
            f"Mixture: {size} probabilities need {size} components along the last axis of {name}, got shape "
            f"{array.shape}."
        )
    return np.broadcast_to(array, (*array.shape[:-1], size))
