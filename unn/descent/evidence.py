"""Evidence: everything that is given before inference starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..graph.partial import Partial
from ..regularizers import Regularizer

Given = Mapping[str, Tensor | Partial]
Initial = Mapping[str, Tensor | str]


@dataclass
class Evidence:
    """One inference problem: everything that stays fixed while updates run.

    Attributes:
        values: observed variables, parameters and constants, and initial values of the others where they have
            one.
        observed: for partially observed variables, the observed values and where they are.
        shapes: of all arrays, without batch axes.
        batch: the number of batch elements.
        masks: for ragged variables, which entries exist, shape ``(batch, *axes)``.
        regularizers: by variable, with dropout where it was asked for.
        like: a tensor with the dtype and device of the run.
        padding: for observed ragged variables, what was given and where it is padding; computed with as 0,
            returned as given.
        free_rows: for variables of which few whole rows are unobserved, the indices of these rows along the
            batch and the first axes.
        restricted: partially observed variables whose regularizer is restricted to what is observed.
    """

    values: dict[str, Tensor]
    shapes: dict[str, tuple[int, ...]]
    batch: int
    masks: dict[str, Tensor]
    regularizers: dict[str, Regularizer]
    like: Tensor
    observed: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    padding: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    free_rows: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    restricted: set[str] = field(default_factory=set)
