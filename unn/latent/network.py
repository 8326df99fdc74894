"""Prior, posterior and decoder of latent groups: one network, traversed from the first group to the last.

Generation, posterior inference and evaluation differ in how the values of a group are chosen, a callable; the
traversal is the same. Contexts and keys of earlier layers are kept, not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import PosteriorAttention, PriorAttention
from .cells import Convolution, ResidualCell
from .gaussians import Normals, normals, standard
from .hierarchy import Hierarchy
from .options import LatentOptions


@dataclass(frozen=True, eq=False)
class Condition:
    """What the posterior of a layer reads of the generative network.

    Attributes:
        number: number of the layer.
        raw: raw parameters of the prior, shape ``(batch, 2 channels, *positions)``; None for the first
            layer, whose prior is standard normal.
        context: condition of the prior, shape ``(batch, width, *positions)``.
        query: beginning of the context, shape ``(batch, keys, *positions)``.
        prior: the prior.
    """

    number: int
    raw: Tensor | None
    context: Tensor
    query: Tensor
    prior: Normals


Choose = Callable[[Condition], Tensor]
"""Values of a layer, shape ``(batch, channels, *positions)``."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The bottom-up features of an image.

    Attributes:
        values: features of each layer, shape ``(batch, width, *positions)``.
        keys: their keys, shape ``(batch, keys, *positions)``; empty without attention.
    """

    values: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]


@dataclass(eq=False)
class AttentionRecord:
    """Weights of attention over layers in a traversal, by layer, shape ``(layers, batch, 1, *positions)``."""

    prior: dict[int, Tensor] = field(default_factory=dict)
    posterior: dict[int, Tensor] = field(default_factory=dict)


class LatentNetwork(nn.Module):
    """Networks of a hierarchy of latent groups (deep attentive variational paper, Section 2).

    Args:
        hierarchy: groups, their attention and observed nodes.
        options: sizes.
        outputs: parameters of the likelihood at each position of the image.
    """

    def __init__(self, hierarchy: Hierarchy, options: LatentOptions, outputs: int) -> None:
        super().__init__()
        self.hierarchy, self.recomputes = hierarchy, options.recompute
        self.width = width = options.width
        attention, spatial = hierarchy.attention, hierarchy.spatial
        self.keys = keys = options.keys if attention is not None else 0
        size = 3 if hierarchy.is_image else 1
        spatial_keys = options.spatial_keys if spatial is not None and hierarchy.is_image else 0
        frozen_spatial = spatial is not None and spatial.frozen
        frozen = attention is not None and attention.frozen
        layers, channels = hierarchy.layers, hierarchy.channels
        self.prior_mask, self.posterior_mask = (mask.tolist() for mask in hierarchy.masks)

        def cells(outputs: int) -> nn.Sequential:
            inner = [
                ResidualCell(width, width, size, spatial_keys, frozen_spatial)
                for _ in range(options.cells - 1)
            ]
            return nn.Sequential(*inner, ResidualCell(width, outputs, size, spatial_keys, frozen_spatial))

        inputs = hierarchy.numbers + hierarchy.rows.nodes // (hierarchy.image[0] * hierarchy.image[1])
        self.down = nn.Sequential(Convolution(inputs, width, size))
        for _ in range(hierarchy.halvings):
            self.down.append(ResidualCell(width, width, size))
            self.down.append(Convolution(width, width, size, 2))
        # the first layer is the last of the way up; its successors are computed first
        self.up_cells = nn.ModuleList(cells(width + keys) for _ in range(layers))
        self.start = nn.Parameter(0.05 * torch.randn(1, width + 2 * keys, *hierarchy.positions))
        self.merge_latent = nn.ModuleList(Convolution(width + channels, width) for _ in range(layers - 1))
        self.down_cells = nn.ModuleList(
            cells(width + (2 * keys if layer < layers - 1 else keys)) for layer in range(1, layers)
        )
        self.merge_evidence = nn.ModuleList(Convolution(2 * width, width + keys) for _ in range(layers - 1))
        normalised = options.normalised
        self.prior_attention = nn.ModuleList()
        self.posterior_attention = nn.ModuleList()
        if keys:
            for _ in range(layers):
                self.prior_attention.append(PriorAttention(width, normalised, frozen))
                self.posterior_attention.append(PosteriorAttention(width, normalised, frozen))
        self.prior_heads = nn.ModuleList(Convolution(width, 2 * channels) for _ in range(layers - 1))
        self.posterior_heads = nn.ModuleList(Convolution(width + keys, 2 * channels) for _ in range(layers))
        self.last_merge = Convolution(width + channels, width)
        self.out = nn.Sequential(ResidualCell(width, width, size))
        for _ in range(hierarchy.halvings):
            self.out.append(nn.Upsample(scale_factor=2.0, mode="nearest"))
            self.out.append(Convolution(width, width, size))
            self.out.append(ResidualCell(width, width, size))
        self.out.append(nn.ELU())
        self.out.append(Convolution(width, outputs, size))

    def evidence(self, numbers: Tensor, nodes: Tensor) -> Evidence:
        """Bottom-up features.

        Args:
            numbers: observed numbers, 0 where not observed, shape ``(batch, channels, height, width)``.
            nodes: mask of observed nodes, shape ``(batch, nodes of a position, height, width)``.
        """
        x = torch.cat([numbers, nodes.to(numbers)], 1)
        rows, columns = self.hierarchy.padding
        x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        x = self.down(x)
        values: list[Tensor] = []
        keys: list[Tensor] = []
        for cell in reversed(self.up_cells):
            y = self._run(cell, x)
            x, key = y[:, : self.width], y[:, self.width :]
            values.insert(0, x)
            keys.insert(0, key)
        return Evidence(tuple(values), tuple(keys) if self.keys else ())

    def traverse(
        self, batch: int, choose: Choose, record: AttentionRecord | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Go through all layers, and decode.

        Args:
            batch: number of rows.
            choose: gives the values of each layer.
            record: collects weights of attention.

        Returns:
            The values of the groups, shape ``(batch, channels, *positions)`` each, and the parameters of the
            likelihood, shape ``(batch, outputs, height, width)``.
        """
        contexts: list[Tensor] = []
        keys: list[Tensor] = []
        latent: list[Tensor] = []
        for layer in range(self.hierarchy.layers):
            if layer == 0:
                y = self.start.expand(batch, -1, -1, -1)
            else:
                merged = self.merge_latent[layer - 1](torch.cat([contexts[-1], latent[-1]], 1))
                y = self._run(self.down_cells[layer - 1], merged)
            context = y[:, : self.width]
            query = context[:, : self.keys]
            condition, context, key = self._attend_prior(layer, y, context, contexts, keys, record)
            if layer == 0:
                raw = None
                prior = standard(context.new_zeros(batch, self.hierarchy.channels, *self.hierarchy.positions))
            else:
                raw = self.prior_heads[layer - 1](F.elu(condition))
                prior = normals(raw)
            contexts.append(context)
            keys.append(key)
            latent.append(choose(Condition(layer, raw, condition, query, prior)))
        y = self.out(self.last_merge(torch.cat([contexts[-1], latent[-1]], 1)))
        rows, columns = self.hierarchy.padding
        height, width = self.hierarchy.image
        y = y[:, :, rows // 2 : rows // 2 + height, columns // 2 : columns // 2 + width]
        return latent, y

    def posterior(
        self, evidence: Evidence, condition: Condition, record: AttentionRecord | None = None
    ) -> Normals:
        """The posterior of a layer given the evidence and the values of earlier layers.

        Its raw parameters are added to those of the prior.

        Args:
            evidence: bottom-up features.
            condition: condition of the layer.
            record: collects weights of attention.
        """
        layer = condition.number
        value = evidence.values[layer]
        key = evidence.keys[layer] if self.keys else None
        if layer:
            merged = self.merge_evidence[layer - 1](torch.cat([value, condition.context], 1))
            value = merged[:, : self.width]
            key = merged[:, self.width :] if self.keys else None
        if key is not None:
            sources = [m for m, reads in enumerate(self.posterior_mask[layer]) if reads]
            attention = self.posterior_attention[layer]
            if sources:
                values = [value, *(evidence.values[m] for m in sources if m != layer)]
                keys = [key, *(evidence.keys[m] for m in sources if m != layer)]
                value, weights = self._run(attention, condition.query, keys, values)
                if record is not None:
                    record.posterior[layer] = weights
            else:
                value = attention.own(value)  # type: ignore[operator]
            value = torch.cat([value, key], 1)
        raw = self.posterior_heads[layer](F.elu(value))
        return normals(raw if condition.raw is None else raw + condition.raw)

    def _attend_prior(
        self,
        layer: int,
        y: Tensor,
        context: Tensor,
        contexts: Sequence[Tensor],
        keys: Sequence[Tensor],
        record: AttentionRecord | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The condition of the prior, the context to keep and its key."""
        if not self.keys:
            return context, context, context[:, :0]
        query, key = y[:, -self.keys :], y[:, self.width : self.width + self.keys]
        sources = [m for m, reads in enumerate(self.prior_mask[layer]) if reads]
        read = [keys[m] for m in sources], [contexts[m] for m in sources]
        stored, condition, weights = self._run(self.prior_attention[layer], context, query, *read)
        if record is not None and weights is not None:
            record.prior[layer] = weights
        return condition, stored, key

    def _run(self, module: nn.Module, *inputs: object) -> Any:
        if self.recomputes and self.training and torch.is_grad_enabled():
            contexts = nullcontext(), _without_statistics(module)
            return checkpoint(module, *inputs, use_reentrant=False, context_fn=lambda: contexts)
        return module(*inputs)


@contextmanager
def _without_statistics(module: nn.Module) -> Iterator[None]:
    """Batch normalisation without running means, for a second pass over the same batch."""
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
