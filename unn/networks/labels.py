"""Tokens, losses and probabilities of networks that estimate the values of discrete nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .tokens import Rows


def vocabulary_of(frame: Rows) -> int:
    """Number of different tokens: for each variable one for unknown values, then its values."""
    return sum(slot.channels + 1 for slot in frame.slots.values())


def value_tokens(frame: Rows, rows: Tensor, nodes: Tensor) -> Tensor:
    """Input tokens, shape ``(batch, nodes)``.

    Args:
        frame: layout of discrete values.
        rows: values, shape ``(batch, numbers)``.
        nodes: mask of the nodes whose value is given, shape ``(batch, nodes)``.
    """
    tokens, first = [], 0
    for slot in frame.slots.values():
        value = rows[:, slot.numbers].unflatten(1, (-1, slot.channels)).argmax(-1)
        tokens.append(first + torch.where(nodes[:, slot.nodes], value + 1, 0))
        first += slot.channels + 1
    return torch.cat(tokens, 1)


def labels_cross_entropy(frame: Rows, logits: Tensor, rows: Tensor, unlabelled: Tensor) -> Tensor:
    """Sum over the outputs of the mean over the nodes with a label; 0 without any.

    Args:
        frame: layout of discrete values.
        logits: shape ``(outputs, batch, nodes, classes)``; nodes may have fewer values than classes.
        rows: values, shape ``(batch, numbers)``.
        unlabelled: mask of the nodes without a label, shape ``(batch, nodes)``.
    """
    losses = []
    for slot in frame.slots.values():
        scores = logits[:, :, slot.nodes, : slot.channels]
        truth = rows[:, slot.numbers].unflatten(1, (-1, slot.channels)).argmax(-1)
        truth = truth.masked_fill(unlabelled[:, slot.nodes], -100).expand(scores.shape[:-1])
        losses.append(F.cross_entropy(scores.flatten(0, 2), truth.flatten(), reduction="sum"))
    return torch.stack(losses).sum() / (~unlabelled).sum().clamp(min=1)


def value_probabilities(frame: Rows, logits: Tensor) -> Tensor:
    """Probabilities of all values, shape ``(batch, numbers)``.

    Args:
        frame: layout of discrete values.
        logits: shape ``(batch, nodes, classes)``.
    """
    slots = frame.slots.values()
    return torch.cat([logits[:, s.nodes, : s.channels].softmax(-1).flatten(1) for s in slots], 1)
