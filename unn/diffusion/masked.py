"""Sampling discrete variables by revealing them a few at a time: the alternative to Gaussian noise where there are only categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from ..errors import DeclarationError
from ..networks.denoiser import Denoiser
from ..networks.tokens import Given
from .conditional import Condition, ConditionalModel, Samples
from .diffusion import check_counts, generators_of, tried_again


class MaskedDiffusion(ConditionalModel):
    """Learns the distribution of each hidden category given those that are shown, by cross-entropy; samples by revealing nodes in random order.

    Args:
        denoiser: of a graph whose variables are all discrete.

    Raises:
        DeclarationError: if a variable is continuous.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser.frames)
        self.denoiser = denoiser
        for name, kind in self.frames.kinds.items():
            if kind == "real":
                raise DeclarationError(f"variable {name!r} is continuous; revealing needs discrete variables only, so take unn.Diffusion.")

    def loss(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> Tensor:
        """The mean cross-entropy of hidden nodes, a scalar; any share of those that are not observed is shown as well.

        Draws from torch's global generator. Arguments as for ``Diffusion.loss``.
        """
        clean, condition = self.example(values, observed, **sizes)
        shown = torch.rand_like(clean[:, :1]) > torch.rand(condition.nodes.shape, device=clean.device)
        held = _with(condition, condition.nodes | shown, clean)
        frame = condition.frame
        scores = self._scores(held)
        truth = self._natural(clean, frame)
        error = torch.zeros_like(clean)
        for slot in frame.slots.values():
            logs = log_softmax(scores[:, slot.numbers].unflatten(1, (-1, slot.channels)), -1)
            error[:, slot.numbers] = -(logs.flatten(1) * truth[:, slot.numbers]) * slot.channels
        return self.mean_over_unknown(error, held)

    @torch.no_grad()
    def sample(
        self,
        given: Given | None = None,
        count: int = 1,
        *,
        steps: int | None = None,
        seed: int | Sequence[int] | None = None,
        verify: bool = False,
        tries: int = 1,
        at_once: int = 1024,
        sizes: Mapping[str, int] | None = None,
    ) -> Samples:
        """Sample all variables that are not given, revealing nodes in random order.

        Args:
            given: by variable, whole or in part; a batch axis of 1 is repeated.
            count: of samples.
            steps: calls of the network, over which the hidden nodes are spread; None for one a node.
            seed: of all samples together, or one for each; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: with ``verify``, how often to sample what meets them not.
            at_once: samples in memory at a time.
            sizes: of the axes without a static one.

        Raises:
            DeclarationError: for steps, count, tries or at_once below 1.
            ObservationError: for values that do not fit the graph.
        """
        check_counts("sampling", count=count, tries=tries, at_once=at_once, steps=1 if steps is None else steps)
        condition = self.condition(given or {}, count, **(sizes or {}))
        generators = generators_of(seed, count)
        training = self.training
        self.eval()
        try:
            return tried_again(self, condition, given or {}, lambda held, some: self._draw(held, steps, some), generators, verify, tries, at_once)
        finally:
            self.train(training)

    def _draw(self, condition: Condition, steps: int | None, generators: list[torch.Generator] | None) -> Tensor:
        def uniform(numbers: int) -> Tensor:
            if generators is None:
                return torch.rand(len(condition.rows), numbers).to(condition.rows)
            return torch.stack([torch.rand(numbers, generator=g) for g in generators]).to(condition.rows)

        frame = condition.frame
        hidden = ~condition.nodes
        # the rank of each hidden node in the order of revealing; known ones come first
        rank = torch.where(hidden, 1 + uniform(frame.nodes), 0).argsort(1).argsort(1) - condition.nodes.sum(1, keepdim=True)
        own = hidden.sum(1, keepdim=True)
        # each sample spreads its own hidden nodes over its own calls
        calls = own if steps is None else own.clamp(max=steps)
        for k in range(int(calls.max())):
            scores = self._scores(condition)
            chosen = torch.zeros_like(condition.rows)
            for slot in frame.slots.values():
                logits = scores[:, slot.numbers].unflatten(1, (-1, slot.channels))
                noise = uniform(logits[0].numel()).view_as(logits).clamp(1e-20, 1 - 1e-7)
                picked = (logits - (-noise.log()).log()).argmax(-1)
                chosen[:, slot.numbers] = torch.nn.functional.one_hot(picked, slot.channels).to(chosen).flatten(1)
            new = hidden & (rank * calls < own * (k + 1)) & ~condition.nodes
            rows = torch.where(new[:, frame.node_of_number.to(new.device)], self._standard(chosen, frame), condition.rows)
            condition = _with(condition, condition.nodes | new, rows)
        return condition.rows

    def _scores(self, condition: Condition) -> Tensor:
        level = torch.zeros(len(condition.rows), device=condition.rows.device, dtype=condition.rows.dtype)
        found: Tensor = self.denoiser(condition.rows, level, condition.nodes, condition.frame)
        return found


def _with(condition: Condition, nodes: Tensor, rows: Tensor) -> Condition:
    """More nodes known, with the values in some rows."""
    numbers = nodes[:, condition.frame.node_of_number.to(nodes.device)]
    return Condition(condition.frame, torch.where(numbers, rows, 0), nodes, numbers)
