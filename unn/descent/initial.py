"""Initial values of variables."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InferenceError
from ..graph.arrays import Variable
from ..noise import uniform
from .checks import check_domain
from .evidence import Evidence


def initial_value(
    evidence: Evidence,
    variable: Variable,
    start: Tensor | str,
    generator: torch.Generator | None,
    check_values: bool,
) -> Tensor | None:
    """The first value of a variable: None for a structural zero, ``mirror(0)`` for "uniform", the mirror of
    uniform noise for "random".

    Raises:
        InferenceError: for another word.
        ObservationError: for a tensor outside the domain.
    """
    name = variable.name
    regularizer, mask = evidence.regularizers[name], evidence.masks.get(name)
    shape = (evidence.batch, *evidence.shapes[name])
    if isinstance(start, Tensor):
        if check_values:
            check_domain(variable, start, mask, f"{name!r} initial", zero_allowed=True)
        return start
    if isinstance(start, str) and start == "zero":
        return None
    if isinstance(start, str) and start == "uniform":
        return regularizer.mirror(evidence.like.new_zeros(shape), mask)
    if isinstance(start, str) and start == "random":
        return regularizer.mirror(uniform(shape, evidence.like, generator), mask)
    raise InferenceError(
        f"initial: variable {name!r} starts at 'zero', 'uniform', 'random' or a tensor, got {start!r}."
    )
