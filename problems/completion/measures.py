"""Accuracy on the whole test set, and pictures of attention weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import unn
from unn.cli.problem import Trained
from unn.draw import draw_attention, save_figure
from unn.runs import PLOTS, make_folder

from .data import LENGTHS, Split, masks_of, sequences, values_of

_AT_ONCE = 2048
"""Number of sequences whose completions are computed at once."""


@torch.no_grad()
def complete(
    model: unn.DescentModel, tokens: Tensor, missing: Tensor, features: int, iterations: int
) -> Tensor:
    """The most probable numbers less 1, shape ``(count, n)``.

    Args:
        model: trained model.
        tokens: numbers less 1, shape ``(count, n)``; those that are missing are not used.
        missing: boolean, shape ``(count, n)``.
        features: width of an embedding.
        iterations: number of rounds.
    """
    model.eval()
    results = []
    for start in range(0, len(tokens), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        values = values_of(tokens[part], features)
        known = masks_of(missing[part])["token"][..., None].expand_as(values["token"])
        network, inputs = model.query({"P": values["P"]}, {"token": unn.Partial(values["token"], known)})
        (scores,) = network(*inputs, iterations=iterations)
        results.append(scores.argmax(-1))
    return torch.cat(results)


def measure(model: unn.DescentModel, features: int, split: Split, iterations: int) -> dict[str, float]:
    """Shares of right tokens among the missing ones of the test set.

    Returns:
        "accuracy" of all; "ends" of the first and the last token of a sequence, which have one neighbour;
        "shortest", of sequences of the least length; "worst", of the length with the lowest share; and
        "sequences", the share of sequences without an error.
    """
    right_by_length: dict[int, tuple[int, int]] = {}
    at_ends, whole = [0, 0], [0, 0]
    for length in LENGTHS:
        tokens, missing = sequences(length, split).all_instances(test=True)
        right = complete(model, tokens, missing, features, iterations) == tokens
        right_by_length[length] = (int((right & missing).sum()), int(missing.sum()))
        ends = torch.zeros(length, dtype=torch.bool)
        ends[[0, -1]] = True
        at_ends[0] += int((right & missing & ends).sum())
        at_ends[1] += int((missing & ends).sum())
        whole[0] += int((right | ~missing).all(1).sum())
        whole[1] += len(tokens)
    shares = {length: right / total for length, (right, total) in right_by_length.items()}
    right, total = (sum(part) for part in zip(*right_by_length.values(), strict=True))
    return {
        "accuracy": right / total,
        "ends": at_ends[0] / at_ends[1],
        "shortest": shares[LENGTHS[0]],
        "worst": min(shares.values()),
        "sequences": whole[0] / whole[1],
    }


def draw_weights(run: Trained) -> Path:
    """Draw the attention weights of an ascending and a descending sequence with a missing token.

    Returns:
        The file, in the folder of the run.
    """
    assert isinstance(run.network, unn.DescentModel)
    tokens, missing = sequences(16, run.config.split).all_instances(test=True)
    rising = tokens[:, 1] > tokens[:, 0]
    rows = [int(rising.int().argmax()), int(rising.int().argmin())]
    values = values_of(tokens[rows], run.config.features)
    known = masks_of(missing[rows])["token"][..., None].expand_as(values["token"])
    given: dict[str, Tensor | unn.Partial] = {"token": unn.Partial(values["token"], known), "P": values["P"]}
    weights = run.network.minimise(given, 2, {}, trace=False)["S"]
    heads = weights.flatten(0, -3)
    per_sequence = len(heads) // 2
    titles = [
        word + (f" {head}" if per_sequence > 1 else "")
        for word in ("ascending", "descending")
        for head in range(per_sequence)
    ]
    folder = run.folder / PLOTS
    make_folder(folder)
    save_figure(draw_attention(heads, titles=titles), folder / "attention.png")
    return folder / "attention.png"
