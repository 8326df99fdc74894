"""Schedules of the published configurations: the weight of the divergence, and learning rates."""

from __future__ import annotations

import math


def divergence_weight(progress: float, first: float) -> float:
    """Weight of the divergence of posterior and prior, which grows linearly to 1.

    Args:
        progress: share of the warm-up that has passed; 1 or more after it.
        first: weight at the beginning.
    """
    return min(1.0, first + (1 - first) * progress)


def cosine_rate(
    step: int, highest: float, lowest: float, steps_per_epoch: int, warmup_epochs: int, decay_epochs: int
) -> float:
    """Learning rate that rises linearly from ``lowest`` to ``highest`` and falls by a cosine to ``lowest``.

    The rise is by steps, the fall by whole epochs, as in the published code.

    Args:
        step: number of the step, from 1.
        highest: rate after the warm-up.
        lowest: rate at the beginning and the end.
        steps_per_epoch: number of steps of an epoch.
        warmup_epochs: epochs of the rise.
        decay_epochs: epochs of the fall.
    """
    warmup = warmup_epochs * steps_per_epoch
    if step <= warmup:
        return lowest + step / warmup * (highest - lowest)
    epoch = step // steps_per_epoch - warmup_epochs
    share = min(1.0, epoch / decay_epochs)
    return lowest + (highest - lowest) * 0.5 * (1 + math.cos(math.pi * share))


def restarted_cosine_rate(
    step: int, highest: float, lowest: float, steps_per_epoch: int, warmup_epochs: int, first_epochs: int
) -> float:
    """As ``cosine_rate``, but the fall starts anew from ``highest`` at its end, each time over twice as many
    epochs (Loshchilov and Hutter, 2017).

    Args:
        step: number of the step, from 1.
        highest: rate after the warm-up and at each restart.
        lowest: rate at the beginning, and the limit before each restart.
        steps_per_epoch: number of steps of an epoch.
        warmup_epochs: epochs of the rise.
        first_epochs: epochs of the first fall.
    """
    warmup = warmup_epochs * steps_per_epoch
    if step <= warmup:
        return lowest + step / warmup * (highest - lowest)
    share = (step // steps_per_epoch - warmup_epochs) / first_epochs
    restarts = math.floor(math.log2(1 + share))
    share = (share - (2**restarts - 1)) / 2**restarts
    return lowest + (highest - lowest) * 0.5 * (1 + math.cos(math.pi * share))
