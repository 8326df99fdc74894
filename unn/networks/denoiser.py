"""Denoiser: a transformer over the nodes of a graph, masked by its adjacency, tied by its symmetries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ..cache import BoundedCache
from ..errors import ArgumentError, ExchangeabilityWarning, suggest, whole_number
from ..graph.adjacency import adjacency
from ..graph.declaration import Declaration
from ..graph.diameter import longest_shortest_path
from ..graph.symmetries import Assumption, Symmetry, assumptions
from ..plain import planned
from ..renamed import current_name
from .blocks import TransformerBlock
from .by_variable import ByVariable
from .embeddings import ArrayEmbedding, node_positions, sinusoids
from .tokens import MOST_SIZES, STRUCTURES, Frame, Frames, Structure

Embedding = Literal["exchangeable", "array", "independent"]
EMBEDDINGS = ("exchangeable", "array", "independent")
SelfConditioning = Literal["tokens", "estimate", "none"]
SELF_CONDITIONINGS = ("tokens", "estimate", "none")


class Denoiser(nn.Module):
    """Network that estimates a clean sample from noisy values and exact evidence.

    A transformer with one token per node, in which a node attends to its neighbours in the graph
    (structured-diffusion paper, Section 3 and Appendix D). LayerNorm is per token, so no
    information bypasses the mask.

    Args:
        graph: declaration of the graph.
        width: token width.
        depth: number of transformer blocks; None for the number that propagates information across
            the graph, at least two.
        heads: number of attention heads; divides the width.
        embedding: node embeddings. "exchangeable": one per variable, and positions along the
            indices that are not exchangeable; "array": one per variable, and positions along all of
            its axes; "independent": one per node, for one size of the graph.
        shared: names of the symmetries (``g.symmetries()``) whose indices share embeddings, for
            "exchangeable"; None for all of them, with an ``ExchangeabilityWarning`` at the first
            use if a factor does not state whether they are symmetries of the problem.
        dropout: dropout probability in the residual blocks.
        global_token: add a linear function of the mean of all tokens to each token in each block;
            this bypasses the mask.
        structure: attention mask: "graph", or an ablation (structured-diffusion paper, Figure 7):
            "dense", no mask; "directed", children attend to parents but not conversely; "random",
            the same number of random pairs.
        kernel: attention kernel, see ``unn.ops.attention.attention``.
        self_conditioning: part of the previous estimate that the next one is conditioned on:
            "tokens", the last token of each node (Jabri et al., 2023); "estimate", the estimate
            (Chen et al., 2023); "none".
        sizes: sizes of the axes without a static size, for "independent" embeddings.
        body: module that replaces the blocks: it takes tokens and their conditioning on time and
            position, shape ``(batch, nodes, width)`` each, and returns tokens; for example
            ``factors.EnergyBody``.

    Raises:
        ArgumentError: for options out of range.
    """

    def __init__(
        self,
        graph: Declaration,
        *,
        width: int = 64,
        depth: int | None = None,
        heads: int = 4,
        embedding: Embedding = "exchangeable",
        shared: Sequence[str] | None = None,
        dropout: float = 0.0,
        global_token: bool = False,
        structure: Structure = "graph",
        kernel: str = "auto",
        self_conditioning: SelfConditioning = "none",
        sizes: Mapping[str, int] | None = None,
        body: nn.Module | None = None,
    ) -> None:
        super().__init__()
        _check_options(width, depth, heads, embedding, structure, self_conditioning, dropout)
        self.graph = graph
        self.width, self.heads, self.embedding, self.structure, self.kernel = (
            width,
            heads,
            embedding,
            structure,
            kernel,
        )
        self.shared = None if shared is None else tuple(shared)
        self.frames = Frames(graph)
        self._positions: BoundedCache[tuple[object, ...], Tensor] = BoundedCache(MOST_SIZES)
        self._warned = False
        channels = self.frames.channels
        self.read = ByVariable({name: nn.Linear(count, width) for name, count in channels.items()})
        self.write = ByVariable({name: nn.Linear(width, count) for name, count in channels.items()})
        self.independent = (
            nn.Embedding(self.frame(**(sizes or {})).nodes, width) if embedding == "independent" else None
        )
        self.arrays = None if self.independent is not None else ArrayEmbedding(graph, width)
        self.observed = nn.Parameter(torch.randn(width) / math.sqrt(width))
        self.self_conditioning = self_conditioning
        self.previous: nn.Module | None = None
        if self_conditioning == "tokens":
            self.previous = nn.Linear(width, width, bias=False)
        elif self_conditioning == "estimate":
            self.previous = ByVariable(
                {name: nn.Linear(count, width, bias=False) for name, count in channels.items()}
            )
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.body = body
        if body is not None:
            depth = 0
        elif depth is None:
            depth = max(2, longest_shortest_path(adjacency(graph, sizes or {})))
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, dropout, global_token) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.register_load_state_dict_pre_hook(_rename_earlier_keys)
        if self.previous is not None:
            for weight in self.previous.parameters():
                nn.init.zeros_(weight)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile each block, or the body, in place; arguments as for ``torch.compile``.

        Blocks share their code, so that compiling all takes the time of one.
        """
        for block in self.blocks:
            block.compile(*args, **kwargs)
        if self.body is not None:
            self.body.compile(*args, **kwargs)

    def frame(self, **sizes: int) -> Frame:
        """Return the frame of the graph at given sizes, cached for the last sizes used.

        Raises:
            ArgumentError: for sizes that are missing or contradict the declaration.
        """
        return self.frames.at(**sizes)

    def forward(
        self, rows: Tensor, level: Tensor, observed: Tensor, frame: Frame, memory: Tensor | None = None
    ) -> Tensor:
        """Estimate of the clean sample, shape ``(batch, numbers)``; undefined at observed nodes.

        Arguments as for ``tokens``.
        """
        return self.estimate(self.tokens(rows, level, observed, frame, memory), frame)

    def tokens(
        self,
        rows: Tensor,
        level: Tensor,
        observed: Tensor,
        frame: Frame,
        memory: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """Final token of each node, shape ``(batch, nodes, width)``.

        Args:
            rows: exact values at observed nodes, noisy values of unit scale elsewhere, shape
                ``(batch, numbers)``.
            level: log-ratio of noise to data, shape ``(batch,)``, or ``(1,)`` for all rows alike.
            observed: mask of observed nodes, shape ``(batch, nodes)``, boolean.
            frame: frame of the graph at the sizes of these rows.
            memory: self-conditioning state: the tokens of the previous call, shape ``(batch, nodes,
                width)``, or its estimate, shape ``(batch, numbers)``; None is equivalent to zeros.
            added: vectors that are added to the tokens before the first block, shape ``(batch, nodes,
                width)``; None for none.
        """
        tokens = self.embed(self.read, rows, frame)
        if added is not None:
            tokens = tokens + added
        if memory is not None:
            tokens = tokens + self._embed_memory(memory, frame)
        embeddings = self._embeddings(frame)
        tokens = tokens + embeddings + observed[..., None] * self.observed
        conditioning = silu(self.time(sinusoids(level * 250, self.width)))[:, None] + embeddings
        mask = frame.masks(self.structure)
        for block in self.blocks:
            tokens = block(tokens, conditioning, mask, self.kernel)
        if self.body is not None:
            tokens = self.body(tokens, conditioning.expand(len(tokens), -1, -1))
        return silu(self.norm(tokens))

    def estimate(self, tokens: Tensor, frame: Frame) -> Tensor:
        """Estimate of the clean sample from the final tokens, shape ``(batch, numbers)``.

        Args:
            tokens: final tokens, shape ``(batch, nodes, width)``.
            frame: frame of the graph at their sizes.
        """
        return torch.cat(
            [self.write[name](tokens[:, slot.nodes]).flatten(1) for name, slot in frame.slots.items()], 1
        )

    def _embed_memory(self, memory: Tensor, frame: Frame) -> Tensor:
        if isinstance(self.previous, nn.ModuleDict):
            return self.embed(self.previous, memory, frame)
        if self.previous is None:
            raise ArgumentError(
                'the denoiser has no weights for what is fed back; make it with self_conditioning="tokens" '
                'or "estimate".'
            )
        tokens: Tensor = self.previous(memory)
        return tokens

    def embed(self, linears: nn.ModuleDict, rows: Tensor, frame: Frame) -> Tensor:
        """Linear functions of the numbers of each node, shape ``(batch, nodes, width)``.

        Args:
            linears: a linear function of each variable, by name, from its channels to the width.
            rows: shape ``(batch, numbers)``.
            frame: frame of the graph at the sizes of these rows.
        """
        parts = [
            linears[name](rows[:, slot.numbers].unflatten(1, (-1, slot.channels)))
            for name, slot in frame.slots.items()
        ]
        return torch.cat(parts, 1)

    def _embeddings(self, frame: Frame) -> Tensor:
        """Embeddings of all nodes, shape ``(nodes, width)``."""
        if self.independent is not None:
            if self.independent.num_embeddings != frame.nodes:
                raise ArgumentError(
                    f"the denoiser has {self.independent.num_embeddings} independent embeddings, but the "
                    f"graph at {frame.sizes} has "
                    f'{frame.nodes} nodes; train with embedding="array" or "exchangeable" to change sizes.'
                )
            return self.independent.weight
        assert self.arrays is not None
        device = self.observed.device
        key = (tuple(sorted(frame.sizes.items())), device)

        def positions_of_nodes() -> Tensor:
            return node_positions(self.graph, frame, self.shared_symmetries(frame)).to(device)

        positions = self._positions.get_or_make(key, lambda: planned(positions_of_nodes))
        embeddings: Tensor = self.arrays(positions, frame)
        return embeddings

    def shared_symmetries(self, frame: Frame) -> list[Symmetry]:
        """Symmetries along whose indices nodes share embeddings.

        Raises:
            ArgumentError: for a name in ``shared`` that is not a symmetry of the graph.
        """
        known = [symmetry.name for symmetry in frame.candidates]
        for name in self.shared or ():
            if name not in known:
                raise ArgumentError(
                    f"graph {self.graph.name!r} has no symmetry {name!r}.{suggest(name, known)}"
                )
        if self.embedding != "exchangeable":
            return []
        shared = [
            symmetry for symmetry in frame.symmetries if self.shared is None or symmetry.name in self.shared
        ]
        if self.shared is None and not self._warned:
            for assumption in assumptions(self.graph, shared):
                self._warned = True
                _warn(assumption)
        return shared


def _rename_earlier_keys(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Rename the keys of state dicts from earlier versions, in which parts of the blocks had other names."""
    for key in [key for key in state if key.startswith(prefix) and current_name(key) != key]:
        state[current_name(key)] = state.pop(key)


def _warn(assumption: Assumption) -> None:
    """Warn that embeddings are shared along indices that are not declared exchangeable."""
    factor, (left, right) = assumption.factor, assumption.shared
    if left is right:
        one, other = assumption.letters
        unequal = (
            f"denoiser: embeddings are shared along {left.name!r}, but both letters {one!r} and {other!r} of "
            f"factor {factor.name!r} ({factor.formula()}) run over its values, and the factor does not state "
            "that they are exchangeable. A relation that treats them unequally, such as a difference of "
            "their values, cannot be learned with shared embeddings. "
        )
    else:
        unequal = (
            f"denoiser: embeddings are shared along {left.name!r} and {right.name!r}, but factor "
            f"{factor.name!r} ({factor.formula()}) relates each value of one to each value of the other and "
            "does not state that they are exchangeable. A relation that treats them unequally, such as a "
            "matrix product with fixed weights, cannot be learned with shared embeddings. "
        )
    warnings.warn(
        unequal + "State in the factor "
        f'ordered="{" ".join(sorted(assumption.letters))}" if the values differ, or ordered="" if they do '
        "not; or "
        'pass the denoiser shared=[...] or embedding="array".',
        ExchangeabilityWarning,
        stacklevel=2,
    )


def _check_options(
    width: int,
    depth: int | None,
    heads: int,
    embedding: str,
    structure: str,
    self_conditioning: str,
    dropout: float,
) -> None:
    named = (
        ("embedding", embedding, EMBEDDINGS),
        ("structure", structure, STRUCTURES),
        ("self_conditioning", self_conditioning, SELF_CONDITIONINGS),
    )
    for option, chosen, known in named:
        if chosen not in known:
            raise ArgumentError(f"denoiser: unknown {option} {chosen!r}.{suggest(str(chosen), known)}")
    for name, value in (("width", width), ("heads", heads), ("depth", depth)):
        if value is not None:
            whole_number(f"denoiser: {name}", value, 1, ArgumentError)
    if width % heads or width % 2:
        raise ArgumentError(
            f"denoiser: the width must be even and a multiple of the heads, got width {width} and {heads} "
            "heads."
        )
    if not 0 <= dropout < 1:
        raise ArgumentError(f"denoiser: dropout must be in [0, 1), got {dropout!r}.")
