"""The recurrent transformer of a declaration: a token for each node, losses of labels and constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..engine import Attempt, CanInfer, CanLearn, CanSolve, check_iterations, check_model, evaluating
from ..errors import ArgumentError, DeclarationError
from ..graph.declaration import Declaration
from ..networks.labels import labels_cross_entropy, value_probabilities, value_tokens, vocabulary_of
from ..networks.tokens import Frame, Given, check_fixed_sizes
from ..ops.attention import AttentionMask
from ..ops.constraint_loss import attention_loss, constraint_loss
from ..solver.layout import Layout, without_candidates
from ..solver.model import CHECKED_EVERY
from .network import Hidden, RecurrentTransformer
from .options import RecurrentOptions
from .permutations import Renaming, renamings

_AT_ONCE = 256
"""Queries of probabilities in memory at a time."""


def refusal(graph: Declaration) -> str:
    """Why a graph has no recurrent transformer, in one sentence that names the variable; empty if it has."""
    return without_candidates(graph) or ("" if graph.constraints else "the graph has no constraints")


class RecurrentModel(nn.Module, CanLearn, CanInfer, CanSolve):
    """A recurrent transformer over the nodes of a graph (recurrent-transformer paper).

    The token of a node is its value, or one for unknown values; every output estimates the values of all
    nodes. It is trained by the cross-entropy of the unknown nodes at every output, and by the constraint
    losses of the graph, which need no labels.

    Args:
        graph: declaration with categorical or binary variables.
        options: sizes, recurrences and weights of the losses.
        sizes: sizes of the axes without a static size; the weights serve these alone.

    Raises:
        DeclarationError: for a continuous variable, or a graph without constraints.

    Attributes:
        graph: the declaration.
        network: the recurrent transformer.
    """

    def __init__(self, graph: Declaration, options: RecurrentOptions, sizes: Mapping[str, int]) -> None:
        super().__init__()
        check_model("RecurrentModel", options, RecurrentOptions, refusal(graph))
        self.graph, self.options = graph, options
        self.layout = Layout(graph, sizes)
        self.frame = Frame(graph, sizes)
        slots = self.layout.frame.slots.values()
        self.network = RecurrentTransformer(
            vocabulary_of(self.layout.frame),
            self.layout.frame.nodes,
            max(slot.channels for slot in slots),
            options.width,
            options.blocks,
            options.heads,
            options.dropout,
            options.inject,
            options.position_deviation,
        )
        self._with_loss = [constraint.name for constraint in graph.constraints if constraint.has_loss]
        if options.constraint_weight and not self._with_loss:
            raise DeclarationError(
                f"graph {graph.name!r}: no constraint has a differentiable loss; set constraint_weight to 0."
            )
        neighbours = torch.from_numpy(self.frame.adjacency.matrix.toarray()).float()
        self.register_buffer("neighbours", neighbours, persistent=False)

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Sum over all outputs of cross-entropy and weighted constraint and attention losses; a scalar.

        Args:
            values: examples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph.
        """
        check_fixed_sizes(self.graph, self.layout.frame.sizes, sizes)
        rows = self.layout.frame.flatten(values)
        nodes = self.layout.frame.observed_nodes(observed, len(rows)).to(rows.device)
        labelled = chosen_by_content(
            value_tokens(self.layout.frame, rows, nodes), self.options.labelled_share
        )
        return self.loss_of_rows(rows, nodes, labelled)

    def unlabelled_loss(self, given: Given, count: int) -> Tensor:
        """Sum over all outputs of the weighted constraint and attention losses, of inputs without labels.

        Added to ``loss`` of labelled examples, it makes training semi-supervised (Section 5.3).

        Args:
            given: evidence by variable, complete or partial.
            count: number of inputs.

        Raises:
            ArgumentError: if both weights are 0.
            ObservationError: for evidence that does not fit the graph.
        """
        if not self.options.constraint_weight and not self.options.attention_weight:
            raise ArgumentError(
                "unlabelled inputs have constraint losses alone; set constraint_weight or attention_weight."
            )
        rows, nodes = self.layout.frame.observation(given, count)
        device = self.network.position.device
        unlabelled = torch.zeros(len(rows), dtype=torch.bool, device=device)
        return self.loss_of_rows(rows.to(device), nodes.to(device), unlabelled)

    def loss_of_rows(self, rows: Tensor, nodes: Tensor, labelled: Tensor) -> Tensor:
        """The loss of rows of numbers that need no check, without waiting for the device; a scalar.

        Args:
            rows: values, shape ``(batch, numbers)``.
            nodes: mask of the nodes that are given, shape ``(batch, nodes)``.
            labelled: mask of the examples whose labels are used, shape ``(batch,)``.
        """
        options, frame = self.options, self.layout.frame
        embedded = state = self.network.embed(value_tokens(frame, rows, nodes))
        hidden: list[Hidden] = []
        for recurrence in range(options.recurrences):
            if options.detach and recurrence and recurrence % options.detach == 0:
                state = state.detach()
            hidden += self.network.recur(embedded, state, self._mask(), options.attention_weight > 0)
            state = hidden[-1].state
        # one call of the head for all outputs
        logits = self.network.classify(torch.stack([h.state for h in hidden]))
        total = labels_cross_entropy(frame, logits, rows, nodes | ~labelled[:, None])
        if options.constraint_weight:
            probabilities = self.layout.frame.expected(
                value_probabilities(self.layout.frame, logits.flatten(0, 1))
            )
            loss = constraint_loss(self.graph, probabilities, reduction="mean", names=self._with_loss)
            total = total + options.constraint_weight * len(hidden) * loss.mean()
        for h in hidden:
            if h.attention is not None:
                neighbours = self.neighbours
                assert isinstance(neighbours, Tensor)
                loss = attention_loss(h.attention.softmax(-1), neighbours, reduction="mean")
                total = total + options.attention_weight * loss.mean()
        return total

    def _mask(self) -> AttentionMask | None:
        return self.frame.masks(self.options.structure)

    def attempt(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        steps: int | None,
        generator: torch.Generator,
        number: int,
    ) -> Attempt:
        """Start from the evidence, with the values renamed at random where the constraints allow it.

        Raises:
            ObservationError: for evidence that does not fit the graph.
        """
        check_fixed_sizes(self.graph, self.layout.frame.sizes, sizes)
        rows, nodes = self.layout.frame.observation(given, count)
        return _Attempt(self, rows, nodes, steps or self.options.solving_steps, generator)

    @torch.no_grad()
    def infer_values(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Probabilities of all values at the last output; values that are given are unchanged.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: number of recurrences; ``solving_steps`` by default.

        Raises:
            ArgumentError: for a number of recurrences below 1.
            DeclarationError: for other sizes than those of the weights.
            ObservationError: for evidence that does not fit the graph.
        """
        check_iterations(iterations)
        check_fixed_sizes(self.graph, self.layout.frame.sizes, sizes)
        frame = self.layout.frame
        rows, nodes = frame.observation(given, count)
        steps = iterations or self.options.solving_steps
        parts = []
        with evaluating(self):
            for places in torch.arange(count).split(_AT_ONCE):
                tokens = value_tokens(frame, rows[places], nodes[places]).to(self.network.position.device)
                embedded = self.network.embed(tokens)
                state = self.network.advance(embedded, embedded, steps, self._mask())
                parts.append(value_probabilities(frame, self.network.classify(state).cpu()))
        probabilities = torch.cat(parts)
        known = nodes[:, frame.node_of_number]
        return frame.expected(torch.where(known, rows.to(probabilities), probabilities))


def chosen_by_content(tokens: Tensor, share: float) -> Tensor:
    """Whether each row is among a share of all rows, the same for equal rows, shape ``(batch,)``, boolean.

    Args:
        tokens: integers, shape ``(batch, n)``.
        share: of all different rows, between 0 and 1.
    """
    if share >= 1:
        return torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    # integers wrap around: a polynomial in an odd number, whose upper bits are then mixed into the lower
    digest = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    for token in tokens.unbind(1):
        digest = (digest + token + 1) * _MULTIPLIER
        digest = digest ^ (digest >> 29)
    return (digest & 0xFFFFFF).double() < share * 2**24


_MULTIPLIER = 6364136223846793005
"""Of Knuth's linear congruential generator modulo 2**64."""


class _Attempt(Attempt):
    def __init__(
        self, model: RecurrentModel, rows: Tensor, nodes: Tensor, steps: int, generator: torch.Generator
    ) -> None:
        self.model, self.steps = model, steps
        self.renaming: Renaming = renamings(model.layout, len(rows), generator)
        self.rows, self.nodes = rows, nodes
        with torch.no_grad():
            tokens = value_tokens(model.layout.frame, self.renaming.apply(rows), nodes).to(
                model.network.position.device
            )
            self.embedded = self.state = model.network.embed(tokens)

    @torch.no_grad()
    def advance(self) -> dict[str, Tensor] | None:
        if not self.steps:
            return None
        steps = min(CHECKED_EVERY, self.steps)
        self.steps -= steps
        network = self.model.network
        self.state = network.advance(self.embedded, self.state, steps, self.model._mask())
        logits = network.classify(self.state).cpu()
        frame = self.model.layout.frame
        rows = [logits[:, s.nodes, : s.channels].flatten(1) for s in frame.slots.values()]
        scores = self.renaming.undo(torch.cat(rows, 1))
        known = self.nodes[:, frame.node_of_number]
        return frame.unflatten(torch.where(known, self.rows.to(scores), scores))

    def keep(self, rows: Tensor) -> None:
        self.rows, self.nodes = self.rows[rows], self.nodes[rows]
        here = rows.to(self.state.device)
        self.embedded, self.state = self.embedded[here], self.state[here]
        self.renaming = replace(self.renaming, order=self.renaming.order[rows])
