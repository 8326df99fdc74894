"""Attention between the layers of latent groups, and within them, as factors without an energy."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import DeclarationError, suggest
from .arrays import Reference, Variable
from .factor import Factor
from .interactions import Relation, Shapes, listed_relation, node_shape
from .structure import Clique, parse_letters, variables_only

Span = Literal["none", "neighbours", "all"]
"""Which layers a layer attends to."""

SPANS: tuple[Span, ...] = get_args(Span)


class LayerAttention(Factor):
    """Depth-wise attention: the conditional of each latent group reads the contexts of other groups, at the
    same position (deep attentive variational paper, Section 2.3 to 2.5).

    The prior of layer l attends to contexts of layers m < l, the posterior to evidence of layers m >= l. The
    attention is one masked operation over layers; an ablation is another mask, or a frozen gate.

    Args:
        groups: reference to the latent variable, with a letter for each axis.
        layer: the letter of the axis of layers.
        prior: "all" earlier layers, "neighbours" (the one before), or "none".
        posterior: "all" layers from the own one on, "neighbours" (the own and the next), or "none".
        frozen: whether the gates stay at zero, so that attention changes nothing: the control of equal width.
        name: unique name in the graph.

    Raises:
        DeclarationError: for an unknown span, or a letter that the reference does not have.

    Example:
        ``LayerAttention(z["l r c k"], layer="l")``
    """

    def __init__(
        self,
        groups: Reference,
        layer: str,
        *,
        prior: Span = "all",
        posterior: Span = "all",
        frozen: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(groups, name=name)
        variables_only(self)
        for option, span in (("prior", prior), ("posterior", posterior)):
            if span not in SPANS:
                raise DeclarationError(
                    f"LayerAttention: {option}={span!r} is unknown.{suggest(str(span), SPANS)}"
                )
        (self.layer,) = _one_letter(self, layer)
        self.prior: Span = prior
        self.posterior: Span = posterior
        self.frozen = bool(frozen)

    def prior_mask(self, layers: int) -> Tensor:
        """Which layers (columns) the prior of a layer (row) attends to, shape ``(layers, layers)``."""
        number = torch.arange(layers)
        back = number[:, None] - number
        return _within(self.prior, back, 1)

    def posterior_mask(self, layers: int) -> Tensor:
        """Which layers (columns) the posterior of a layer (row) attends to, shape ``(layers, layers)``."""
        number = torch.arange(layers)
        return _within(self.posterior, number - number[:, None], 0)

    def interactions(self, shapes: Shapes) -> list[Relation]:
        (groups,) = self.references
        assert isinstance(groups.array, Variable)
        shape = node_shape(groups.array, shapes)
        axis = groups.letters.index(self.layer)
        nodes = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), axis, 0).reshape(shape[axis], -1)
        later, earlier = self.prior_mask(shape[axis]).numpy().nonzero()
        name = groups.array.name
        return [listed_relation(name, nodes[later].reshape(-1), name, nodes[earlier].reshape(-1))]

    def ordered_letters(self) -> set[str]:
        return {self.layer}

    def formula(self) -> str:
        frozen = ", gates frozen" if self.frozen else ""
        return (
            f"{self.references[0]} attends over {self.layer}: prior {self.prior}, posterior "
            f"{self.posterior}{frozen}"
        )


class SpatialAttention(Clique):
    """Attention between all positions of a layer, in the networks of latent groups (non-local blocks; deep
    attentive variational paper, Section 2.6).

    Args:
        groups: reference to the latent variable, with a letter for each axis.
        layer: the letter of the axis of layers.
        frozen: whether the gates stay at zero, so that attention changes nothing: the control of equal width.
        name: unique name in the graph.

    Raises:
        DeclarationError: for a letter that the reference does not have.
    """

    def __init__(
        self, groups: Reference, layer: str, *, frozen: bool = False, name: str | None = None
    ) -> None:
        super().__init__(groups, each=layer, name=name, ordered=" ".join(groups.letters))
        (self.layer,) = _one_letter(self, layer)
        self.frozen = bool(frozen)

    def formula(self) -> str:
        frozen = ", gates frozen" if self.frozen else ""
        return f"{self.references[0]} attends over positions for each {self.layer}{frozen}"


def _one_letter(factor: Factor, layer: str) -> tuple[str, ...]:
    letters = parse_letters(factor, "layer", layer)
    if len(letters) != 1:
        raise DeclarationError(
            f"factor {factor.name!r}: layer={layer!r} must be one letter of its reference, that of the axis "
            "of layers."
        )
    return letters


def _within(span: Span, distance: Tensor, least: int) -> Tensor:
    if span == "none":
        return torch.zeros_like(distance, dtype=torch.bool)
    return (distance >= least) & (distance <= (1 if span == "neighbours" else len(distance)))
