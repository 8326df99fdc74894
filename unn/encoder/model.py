"""A transformer encoder over the nodes of a declaration, which estimates the marginals of hidden nodes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn, check_model, evaluating
from ..errors import DeclarationError, ObservationError, suggest
from ..graph.declaration import Declaration
from ..networks.labels import labels_cross_entropy, value_probabilities, value_tokens, vocabulary_of
from ..networks.tokens import Given, check_fixed_sizes
from ..solver.layout import Layout, without_candidates
from .network import EncoderNetwork
from .options import EncoderOptions

_AT_ONCE = 1024
"""Queries in memory at a time."""


def refusal(graph: Declaration) -> str:
    """Why a graph has no encoder, in one sentence that names the variable; empty if it has."""
    return without_candidates(graph)


class Encoder(nn.Module, CanLearn, CanInfer):
    """A transformer encoder over the nodes of a graph (hierarchical-filtering paper, Section 3).

    The token of a node is its value, or one for unknown values. Each output estimates the marginal of its
    node given all known ones: the cross-entropy of the hidden nodes is smallest for the exact marginals.
    Marginals are no joint distribution: values of several nodes that are each most probable may contradict
    one another.

    Args:
        graph: declaration with categorical or binary variables.
        options: sizes, and which variables have tokens and targets.
        sizes: sizes of the axes without a static size; the weights serve these alone.

    Raises:
        DeclarationError: for a continuous variable, or an option that names an unknown one.

    Attributes:
        graph: the declaration.
        network: the transformer.
    """

    has_rounds = False

    def __init__(self, graph: Declaration, options: EncoderOptions, sizes: Mapping[str, int]) -> None:
        super().__init__()
        check_model("Encoder", options, EncoderOptions, refusal(graph))
        self.graph, self.options = graph, options
        self.layout = Layout(graph, sizes)
        frame = self.layout.frame
        with_token = self._mask_of("tokens", options.tokens)
        order = (~with_token).long().argsort(stable=True)
        self.register_buffer("_with_token", with_token, persistent=False)
        self.register_buffer("_place", order.argsort(), persistent=False)
        self.register_buffer("_trained", self._mask_of("targets", options.targets), persistent=False)
        tokens = int(with_token.sum())
        self.network = EncoderNetwork(
            vocabulary_of(frame),
            tokens,
            max(slot.channels for slot in frame.slots.values()),
            frame.nodes - tokens,
            options.width,
            options.blocks,
            options.heads,
            options.hidden,
            options.dropout,
        )

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean cross-entropy in nats of the hidden nodes of the variables in ``targets``; a scalar.

        Args:
            values: examples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph, or an observed node without a
                token.
        """
        check_fixed_sizes(self.graph, self.layout.frame.sizes, sizes)
        rows = self.layout.frame.flatten(values)
        nodes = self.layout.frame.observed_nodes(observed, len(rows)).to(rows.device)
        logits = self.logits(rows, nodes)
        return labels_cross_entropy(self.layout.frame, logits[None], rows, nodes | ~self._buffer("_trained"))

    def logits(self, rows: Tensor, nodes: Tensor) -> Tensor:
        """Logits of all nodes, shape ``(batch, nodes, classes)``.

        Args:
            rows: values, shape ``(batch, numbers)``.
            nodes: mask of the nodes whose value is given, shape ``(batch, nodes)``.

        Raises:
            ObservationError: for a given node without a token.
        """
        logits: Tensor = self.network(self.tokens(rows, nodes))
        return logits[:, self._buffer("_place")]

    def tokens(self, rows: Tensor, nodes: Tensor) -> Tensor:
        """Input tokens, shape ``(batch, tokens)``; the arguments are those of ``logits``.

        Raises:
            ObservationError: for a given node without a token.
        """
        with_token = self._buffer("_with_token")
        ignored = nodes & ~with_token
        if bool(ignored.any()):
            node = int(ignored.any(0).nonzero()[0])
            slots = self.layout.frame.slots.items()
            (name,) = (name for name, slot in slots if slot.nodes.start <= node < slot.nodes.stop)
            raise ObservationError(
                f"variable {name!r} is given, but it has no token in this network: tokens="
                f"{self.options.tokens}; train with its name among them."
            )
        return value_tokens(self.layout.frame, rows, nodes)[:, with_token]

    @torch.no_grad()
    def infer_values(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Estimated marginals of all values; values that are given are unchanged.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: without effect, since the network is applied once.

        Raises:
            DeclarationError: for other sizes than those of the weights.
            ObservationError: for evidence that does not fit the graph, or on a node without a token.
        """
        check_fixed_sizes(self.graph, self.layout.frame.sizes, sizes)
        frame = self.layout.frame
        rows, nodes = frame.observation(given, count)
        device = self._buffer("_place").device
        with evaluating(self):
            parts = [
                value_probabilities(
                    frame, self.logits(rows[places].to(device), nodes[places].to(device)).cpu()
                )
                for places in torch.arange(count).split(_AT_ONCE)
            ]
        known = nodes[:, frame.node_of_number]
        return frame.expected(torch.where(known, rows.to(parts[0]), torch.cat(parts)))

    def _mask_of(self, option: str, names: tuple[str, ...]) -> Tensor:
        """Mask of the nodes of some variables, all without names, shape ``(nodes,)``."""
        slots = self.layout.frame.slots
        mask = torch.zeros(self.layout.frame.nodes, dtype=torch.bool)
        for name in names or slots:
            if name not in slots:
                raise DeclarationError(
                    f"Encoder: {option} names the variable {name!r}, which graph {self.graph.name!r} does "
                    f"not have.{suggest(name, slots)}"
                )
            mask[slots[name].nodes] = True
        return mask

    def _buffer(self, name: str) -> Tensor:
        buffer = getattr(self, name)
        assert isinstance(buffer, Tensor)
        return buffer
