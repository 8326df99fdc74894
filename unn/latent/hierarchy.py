"""What the engine ``latent`` reads from a declaration: latent groups, their attention, and observed nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import ArgumentError, DeclarationError, whole_number
from ..graph.arrays import Variable
from ..graph.bounds import refusal_of_bounds
from ..graph.declaration import Declaration
from ..graph.layers import LayerAttention, SpatialAttention
from ..networks.tokens import Rows, check_fixed_sizes, kinds
from ..regularizers import LogPartition, SquaredNorm

_Kind = TypeVar("_Kind", LayerAttention, SpatialAttention)

AXIS = "layer"
"""Name of the axis of latent groups."""


def latent_groups(graph: Declaration) -> list[Variable]:
    """The variables that are latent groups: normal, with an axis ``layer``."""
    return [v for v in graph.variables.values() if type(v.regularizer) is SquaredNorm and AXIS in v.axes]


def refusal(graph: Declaration) -> str:
    """Why the engine cannot serve a graph, in one sentence that names the variable; empty if it can."""
    groups = latent_groups(graph)
    if not groups:
        return (
            f"it has no latent groups: a variable with the regularizer SquaredNorm and an axis {AXIS!r}, of "
            "which each index is a group"
        )
    if len(groups) > 1:
        return f"variables {groups[0].name!r} and {groups[1].name!r} are both latent groups; join them in one"
    (group,) = groups
    if len(group.axes) not in (2, 4):
        return (
            f"the latent groups {group.name!r} have the axes {' '.join(group.axes)}, but a group is a vector "
            f"({AXIS} channel) or an image ({AXIS} row column channel)"
        )
    if group.axes[0] != AXIS:
        return f"the first axis of the latent groups {group.name!r} must be {AXIS!r}, not {group.axes[0]!r}"
    others = [v for v in graph.variables.values() if v is not group]
    if not others:
        return f"all of its variables ({group.name}) are latent, so there is nothing to learn from"
    for variable in others:
        if isinstance(variable.regularizer, LogPartition):
            return (
                f"the entries of variable {variable.name!r} form one structure, which has no distribution of "
                "separate nodes"
            )
        if kinds(graph)[variable.name] == "real" and type(variable.regularizer) is not SquaredNorm:
            return (
                f"variable {variable.name!r} has the regularizer {variable.regularizer!r}, but observed "
                "variables are binary (BinaryEntropy, one number a node), categorical (Entropy) or real "
                "(SquaredNorm)"
            )
    if len(group.axes) == 4 and (len(others) > 1 or len(others[0].node_axes) != 2):
        return (
            f"the latent groups {group.name!r} are images, so the observed variable must be one image "
            f"(row column, or row column | feature), not {', '.join(v.name for v in others)}"
        )
    for factor in graph.factors.values():
        if isinstance(factor, (LayerAttention, SpatialAttention)) and (
            factor.references[0].array is not group or factor.references[0].array.axes[0] != AXIS
        ):
            name = factor.references[0].array.name
            return f"factor {factor.name!r} is about {name!r}, not about latent groups"
    return refusal_of_bounds(graph)


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Latent groups and observed nodes at given sizes.

    Attributes:
        graph: the declaration.
        group: name of the latent variable.
        layers: number of groups.
        channels: numbers of a group at each position.
        positions: height and width of a group; 1 and 1 for vectors.
        is_image: whether observed nodes are pixels.
        rows: observed variables as rows of numbers.
        attention: attention over layers, if it is declared.
        spatial: attention over positions, if it is declared.
        image: height and width of the observed image; 1 and 1 for vectors.
    """

    graph: Declaration
    group: str
    layers: int
    channels: int
    positions: tuple[int, int]
    is_image: bool
    rows: Rows
    attention: LayerAttention | None
    spatial: SpatialAttention | None
    image: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the latent variable, without a batch axis."""
        return (self.layers, *(self.positions if self.is_image else ()), self.channels)

    @property
    def halvings(self) -> int:
        """How often the side of an image is halved to that of a group."""
        return max(
            0, math.ceil(math.log2(max(a / b for a, b in zip(self.image, self.positions, strict=True))))
        )

    @property
    def padding(self) -> tuple[int, int]:
        """Empty rows and columns around an image, of which the first half is before it."""
        factor = 2**self.halvings
        return (
            self.positions[0] * factor - self.image[0],
            self.positions[1] * factor - self.image[1],
        )

    @property
    def numbers(self) -> int:
        """Observed numbers at each position of the image."""
        return self.rows.numbers // math.prod(self.image)

    @property
    def masks(self) -> tuple[Tensor, Tensor]:
        """Which layers the priors and the posteriors attend to, shape ``(layers, layers)`` each."""
        if self.attention is None:
            nothing = torch.zeros(self.layers, self.layers, dtype=torch.bool)
            return nothing, nothing
        return self.attention.prior_mask(self.layers), self.attention.posterior_mask(self.layers)

    def to_image(self, rows: Tensor) -> Tensor:
        """Numbers of observed nodes, or their masks, with channels first, shape ``(batch, channels, height,
        width)``.

        Args:
            rows: shape ``(batch, numbers)``, or ``(batch, nodes)``.
        """
        return rows.view(len(rows), *self.image, -1).permute(0, 3, 1, 2)

    def to_rows(self, image: Tensor) -> Tensor:
        """The reverse of ``to_image``."""
        return image.permute(0, 2, 3, 1).flatten(1)

    def to_groups(self, latent: list[Tensor]) -> Tensor:
        """Values of the latent variable, shape ``(batch, layer, *axes)``, from groups with channels first."""
        z = torch.stack(latent, 1)
        return z.permute(0, 1, 3, 4, 2) if self.is_image else z[..., 0, 0]

    def from_groups(self, z: Tensor) -> list[Tensor]:
        """The reverse of ``to_groups``."""
        z = z.permute(0, 1, 4, 2, 3) if self.is_image else z[..., None, None]
        return list(z.unbind(1))


def read(graph: Declaration, sizes: Mapping[str, int]) -> Hierarchy:
    """Read the latent groups of a declaration.

    Args:
        graph: declaration, of which ``refusal`` is empty.
        sizes: sizes of the axes without a static size.

    Raises:
        DeclarationError: for sizes that are missing or contradict the declaration, or groups larger than the
            image.
        ArgumentError: for a size that is no whole number from 1.
    """
    (group,) = latent_groups(graph)
    check_fixed_sizes(graph, {}, sizes)
    for axis, size in sizes.items():
        whole_number(f"sizes: axis {axis!r}", size, 1, ArgumentError)
    rows = Rows(graph, sizes, [name for name in graph.variables if name != group.name])
    shape = Rows(graph, sizes, [group.name]).slots[group.name].shape
    is_image = len(group.axes) == 4
    attention = _only(graph, LayerAttention)
    spatial = _only(graph, SpatialAttention)
    if is_image:
        (slot,) = rows.slots.values()
        image = slot.node_shape[0], slot.node_shape[1]
        positions = shape[1], shape[2]
    else:
        image = positions = 1, 1
    hierarchy = Hierarchy(
        graph, group.name, shape[0], shape[-1], positions, is_image, rows, attention, spatial, image
    )
    if min(hierarchy.padding) < 0 or max(hierarchy.padding) > 2**hierarchy.halvings:
        raise DeclarationError(
            f"graph {graph.name!r}: groups of {positions[0]} x {positions[1]} positions do not fit images of "
            f"{image[0]} x {image[1]}; doubled some times, the sides of a group must be those of the image "
            "or a little more."
        )
    return hierarchy


def _only(graph: Declaration, kind: type[_Kind]) -> _Kind | None:
    factors = [factor for factor in graph.factors.values() if isinstance(factor, kind)]
    if len(factors) > 1:
        raise DeclarationError(
            f"graph {graph.name!r} has {len(factors)} factors of the kind {kind.__name__}; declare one."
        )
    return factors[0] if factors else None
