"""Evidence: everything that is given before inference starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from ..graph.partial import Partial
from ..regularizers import Dropped, Regularizer

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
        of: the number of batch elements of the whole call, where these are some of them.
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
    of: int | None = None

    @property
    def whole(self) -> int:
        """The number of batch elements of the call, of which these may be some."""
        return self.batch if self.of is None else self.of

    @property
    def divisible(self) -> bool:
        """Whether no regularizer holds values of single batch elements, so that some of them can be taken."""
        return not self.restricted and not any(isinstance(r, Dropped) for r in self.regularizers.values())

    def part(self, rows: Tensor) -> Evidence:
        """The evidence of some batch elements, if it is divisible.

        Args:
            rows: their numbers, shape ``(count,)``.
        """

        def own(x: Tensor, name: str) -> Tensor:
            batched = x.ndim == len(self.shapes[name]) + 1 and len(x) == self.batch
            return x[rows] if batched else x

        def both(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
            return {name: (own(x, name), own(y, name)) for name, (x, y) in pairs.items()}

        return replace(
            self,
            values={name: own(x, name) for name, x in self.values.items()},
            batch=len(rows),
            masks={name: own(x, name) for name, x in self.masks.items()},
            observed=both(self.observed),
            padding=both(self.padding),
            # single rows of other batch elements are not worth an update of their own
            free_rows={},
            of=self.whole,
        )
