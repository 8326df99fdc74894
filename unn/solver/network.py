"""The shared update of the states of all candidates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import DeclarationError
from .layout import Bounds, count_text
from .packing import Packed, group_sums, rectified_pair_sums

_LARGEST = 12.0
"""Bound on the exponents of log-sum-exp summaries."""


class GroupNetwork(nn.Module):
    """One gated update of the state of every candidate from sums over its groups, and a score.

    Weights are shared by all candidates and by all groups of one kind, so the update commutes with every
    permutation of candidates that maps groups to groups of the same kind.

    Args:
        kinds: bounds of the kinds of groups; a kind that counts to more than one has further weights for the
            numbers of true candidates that a group still needs and admits.
        width: numbers in the state of a candidate, even.
    """

    def __init__(self, kinds: list[tuple[int, int | None]], width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.kinds = list(kinds)
        self.summand = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.summary = nn.Parameter(torch.empty(len(kinds), width, width).uniform_(-1, 1) / width**0.5)
        self.summary_bias = nn.Parameter(torch.empty(width).uniform_(-1, 1) / width**0.5)
        self.update = nn.Linear(width, 2 * width)
        self.score = nn.Linear(width, 1)
        counting = [k for k, (lower, upper) in enumerate(kinds) if (lower, upper) not in ((1, 1), (0, 1))]
        self.needs = nn.ParameterDict({str(k): nn.Parameter(torch.zeros(2, width)) for k in counting})
        with torch.no_grad():
            self.update.weight.mul_(0.7)
            self.update.bias[:width] = -1.0
            self.update.bias[width:] = 0.0

    def initial(self, packed: Packed, generator: torch.Generator | None = None) -> Tensor:
        """Random states, standard normal, shape ``(candidates, width)``."""
        like = self.score.weight
        return torch.randn(packed.count, self.width, generator=generator, dtype=like.dtype)

    def forward(self, state: Tensor, packed: Packed, inputs: Tensor | None = None) -> Tensor:
        """One update.

        Args:
            state: shape ``(candidates, width)``.
            packed: candidates and their groups.
            inputs: added to the sums over the groups of each candidate, shape ``(candidates, width)``.
        """
        half = self.width // 2
        summands = self.summand(state)
        parts = [summands[:, :half].relu(), summands[:, half:].clamp(-_LARGEST, _LARGEST).exp()]
        sums = group_sums(torch.cat(parts, 1), packed)
        summary = torch.cat([sums[:, :half], (sums[:, half:] + 1e-6).log()], 1)
        sent = rectified_pair_sums(self.query(state), self._messages(summary, packed), packed)
        if inputs is not None:
            sent = sent + inputs
        gate, value = self.update(sent).split(self.width, 1)
        updated: Tensor = state + gate.sigmoid() * (value.tanh() - state)
        return updated

    def scores(self, state: Tensor) -> Tensor:
        """Logit of each candidate, shape ``(candidates,)``."""
        scores: Tensor = self.score(state)
        return scores[:, 0]

    def number_of(self, bounds: Bounds) -> int:
        """Number of a kind of groups.

        Raises:
            DeclarationError: for a kind that has no weights.
        """
        if bounds not in self.kinds:
            known = ", ".join(map(count_text, self.kinds))
            raise DeclarationError(
                f"the solver has weights for groups with {known} true candidates, and none for "
                f"{count_text(bounds)}, which this graph has; train it on one with all kinds."
            )
        return self.kinds.index(bounds)

    def _messages(self, summary: Tensor, packed: Packed) -> Tensor:
        """Messages of the groups, shape ``(groups, width)``: an affine map for each kind, with one bias."""
        messages = []
        first = 0
        for bounds, count in zip(packed.bounds, packed.kinds, strict=True):
            k = self.number_of(bounds)
            part = slice(first, first + count)
            message = torch.addmm(self.summary_bias, summary[part], self.summary[k].T)
            if str(k) in self.needs:
                counts = torch.stack([packed.lower[part], packed.upper[part]], 1).to(summary)
                message = message + counts.log1p() @ self.needs[str(k)]
            messages.append(message)
            first += count
        return torch.cat(messages)
