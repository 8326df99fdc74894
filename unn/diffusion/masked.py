"""Masked diffusion: reveal discrete variables a few at a time, instead of denoising Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from ..engine import SamplingOptions
from ..errors import DeclarationError
from ..networks.denoiser import Denoiser
from ..noise import gumbel_argmax
from .conditional import Condition, ConditionalModel, Trace
from .sampling import DrawRows, check_counts


class MaskedDiffusion(ConditionalModel):
    """Masked diffusion: predict masked nodes from the visible ones; sample by revealing them in random order.

    Args:
        denoiser: denoiser of a graph whose variables are all discrete.

    Raises:
        DeclarationError: if a variable is continuous.
    """

    has_steps = True

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser.frames)
        self.denoiser = denoiser
        for name, kind in self.frames.kinds.items():
            if kind == "real":
                raise DeclarationError(
                    f"variable {name!r} is continuous, but MaskedDiffusion needs discrete variables; "
                    "use unn.Diffusion."
                )

    def loss(
        self, values: Mapping[str, Tensor], observed: Tensor | Mapping[str, Tensor], **sizes: int
    ) -> Tensor:
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

    def drawing(self, options: SamplingOptions, trace: Trace | None) -> DrawRows:
        """Reveal masked nodes in random order, in at most ``steps`` evaluations of the network."""
        self.refuse(sampler=options.sampler, spacing=options.spacing, trace=trace)
        check_counts("sampling", steps=1 if options.steps is None else options.steps)

        def draw(batch: Condition, generators: list[torch.Generator] | None) -> Tensor:
            return self._draw(batch, options.steps, generators)

        return draw

    def _draw(
        self, condition: Condition, steps: int | None, generators: list[torch.Generator] | None
    ) -> Tensor:
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
            rows = torch.where(
                new[:, frame.node_of_number.to(new.device)], self._standard(chosen, frame), condition.rows
            )
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
