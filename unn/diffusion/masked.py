"""Masked diffusion: reveal discrete variables a few at a time, instead of denoising Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from ..errors import DeclarationError
from ..networks.denoiser import Denoiser
from ..networks.tokens import Given
from ..noise import gumbel_argmax
from .conditional import Condition, ConditionalModel, Samples
from .diffusion import check_counts, generators_of, sample_with_retries


class MaskedDiffusion(ConditionalModel):
    """Masked diffusion: predict masked nodes from the visible ones; sample by revealing them in random order.

    Args:
        denoiser: denoiser of a graph whose variables are all discrete.

    Raises:
        DeclarationError: if a variable is continuous.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser.frames)
        self.denoiser = denoiser
        for name, kind in self.frames.kinds.items():
            if kind == "real":
                raise DeclarationError(
                    f"variable {name!r} is continuous, but MaskedDiffusion needs discrete variables; "
                    "use unn.Diffusion."
                )

    def loss(self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean cross-entropy of masked nodes, a scalar; a random share of the unobserved nodes is visible.

        Draws from torch's global generator. Arguments as for ``Diffusion.loss``.
        """
        clean, condition = self.example(values, observed, **sizes)
        visible = torch.rand_like(clean[:, :1]) > torch.rand(condition.nodes.shape, device=clean.device)
        masked = _reveal(condition, condition.nodes | visible, clean)
        frame = condition.frame
        scores = self._scores(masked)
        truth = self._natural(clean, frame)
        error = torch.zeros_like(clean)
        for slot in frame.slots.values():
            logs = log_softmax(scores[:, slot.numbers].unflatten(1, (-1, slot.channels)), -1)
            error[:, slot.numbers] = -(logs.flatten(1) * truth[:, slot.numbers]) * slot.channels
        return self.mean_over_unknown(error, masked)

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
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: number of samples.
            steps: number of network evaluations per sample; None for one per masked node.
            seed: seed for all samples, or one seed per sample; None draws from torch's global generator.
            verify: check the constraints of the graph.
            tries: maximum number of attempts per sample; more than 1 needs ``verify``.
            at_once: batch size.
            sizes: sizes of the axes without a static size.

        Raises:
            DeclarationError: for steps, count, tries or at_once below 1.
            ObservationError: for values that do not fit the graph.
        """
        check_counts("sampling", count=count, tries=tries, at_once=at_once, steps=1 if steps is None else steps)
        condition = self.condition(given or {}, count, **(sizes or {}))
        generators = generators_of(seed, count)
        training = self.training
        self.eval()

        def draw(batch: Condition, batch_generators: list[torch.Generator] | None) -> Tensor:
            return self._draw(batch, steps, batch_generators)

        try:
            return sample_with_retries(self, condition, given or {}, draw, generators, verify, tries, at_once)
        finally:
            self.train(training)

    def _draw(self, condition: Condition, steps: int | None, generators: list[torch.Generator] | None) -> Tensor:
        def uniform(numbers: int) -> Tensor:
            if generators is None:
                return torch.rand(len(condition.rows), numbers).to(condition.rows)
            return torch.stack([torch.rand(numbers, generator=g) for g in generators]).to(condition.rows)

        frame = condition.frame
        hidden = ~condition.nodes
        # rank of each masked node in the random order of revealing; observed nodes come first
        order = torch.where(hidden, 1 + uniform(frame.nodes), 0).argsort(1).argsort(1)
        rank = order - condition.nodes.sum(1, keepdim=True)
        hidden_count = hidden.sum(1, keepdim=True)
        # the number of masked nodes, and so of network evaluations, differs between samples
        calls = hidden_count if steps is None else hidden_count.clamp(max=steps)
        for k in range(int(calls.max())):
            scores = self._scores(condition)
            chosen = torch.zeros_like(condition.rows)
            for slot in frame.slots.values():
                logits = scores[:, slot.numbers].unflatten(1, (-1, slot.channels))
                options = gumbel_argmax(logits, uniform(logits[0].numel()).view_as(logits))
                chosen[:, slot.numbers] = one_hot(options, slot.channels).to(chosen).flatten(1)
            new = hidden & (rank * calls < hidden_count * (k + 1)) & ~condition.nodes
            rows = torch.where(new[:, frame.node_of_number.to(new.device)], self._standard(chosen, frame), condition.rows)
            condition = _reveal(condition, condition.nodes | new, rows)
        return condition.rows

    def _scores(self, condition: Condition) -> Tensor:
        level = torch.zeros(len(condition.rows), device=condition.rows.device, dtype=condition.rows.dtype)
        scores: Tensor = self.denoiser(condition.rows, level, condition.nodes, condition.frame)
        return scores


def _reveal(condition: Condition, nodes: Tensor, rows: Tensor) -> Condition:
    """The condition in which ``nodes`` are known, with their values in ``rows``."""
    numbers = nodes[:, condition.frame.node_of_number.to(nodes.device)]
    return Condition(condition.frame, torch.where(numbers, rows, 0), nodes, numbers)
