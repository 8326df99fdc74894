"""Dropout of a run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InferenceError, unknown
from ..graph.declaration import Declaration
from ..noise import uniform
from ..regularizers import Dropped, Elementwise
from .evidence import Evidence


def apply_dropout(
    graph: Declaration,
    dropout: Mapping[str, float | Tensor],
    fixed: frozenset[str],
    evidence: Evidence,
    generator: torch.Generator | None,
    check: bool,
) -> None:
    """Put dropout into the regularizers of a run, as part of its energy.

    Args:
        graph: the declaration.
        dropout: by variable, a probability or a mask that broadcasts to ``(batch, *axes)``; observed entries
            are kept as they are.
        fixed: names of what is not inferred.
        evidence: of the run; its regularizers are replaced.
        generator: of random masks.
        check: look at the numbers of masks.

    Raises:
        InferenceError: for variables that cannot be dropped, and for masks or probabilities that make no
            sense.
    """
    like = evidence.like
    for name, amount in dropout.items():
        if name not in graph.variables:
            raise InferenceError(
                f"dropout: graph {graph.name!r}: " + unknown("variable", name, graph.variables)
            )
        inner = evidence.regularizers[name]
        if name in fixed:
            raise InferenceError(
                f"dropout: variable {name!r} is given; only inferred variables can be dropped."
            )
        if not isinstance(inner, Elementwise):
            raise InferenceError(
                f"dropout: variable {name!r} has {inner!r}, whose entries depend on one another; drop "
                "elementwise variables only."
            )
        shape = (evidence.batch, *evidence.shapes[name])
        if isinstance(amount, Tensor):
            if amount.device != like.device:
                raise InferenceError(
                    f"dropout: the mask of {name!r} is on {amount.device}, the run on {like.device}; move it."
                )
            try:
                scale = amount.to(like.dtype).expand(shape)
            except RuntimeError:
                raise InferenceError(
                    f"dropout: the mask of {name!r} has shape {tuple(amount.shape)}, expected {shape}."
                ) from None
            if check and not bool((scale >= 0).all() & scale.isfinite().all()):
                raise InferenceError(
                    f"dropout: the mask of {name!r} must be finite and >= 0 everywhere: 0 where dropped, "
                    "1/(1-p) where kept."
                )
        else:
            if isinstance(amount, bool) or not isinstance(amount, (int, float)):
                raise InferenceError(
                    f"dropout: {name!r} takes a probability in [0, 1) or a mask, got {amount!r}."
                )
            if not 0 <= amount < 1:
                raise InferenceError(f"dropout: the probability of {name!r} must be in [0, 1), got {amount}.")
            if amount == 0:
                continue
            scale = (uniform(shape, like, generator) >= amount).to(like.dtype) / (1 - amount)
        if name in evidence.observed:
            # what is observed may lie outside of the domain that a mask leaves
            scale = torch.where(evidence.observed[name][1], 1, scale)
        evidence.regularizers[name] = Dropped(inner, scale)
