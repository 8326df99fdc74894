"""Options of the engine ``recurrent``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class RecurrentOptions:
    """Options of the engine ``recurrent``; the defaults are those of the paper.

    Attributes:
        width: Numbers per token.
        blocks: Number of different attention blocks.
        heads: Number of attention heads.
        recurrences: Number of times that the blocks are applied in training.
        solving_steps: Number of times that they are applied in a try.
        dropout: Dropout probability.
        position_deviation: Standard deviation of the position embeddings before training; 0 in the published
            code, which learns late which tokens belong together.
        inject: Add the embedding of the input again before each recurrence.
        detach: Number of recurrences after which gradients of the state stop; 0 for never.
        structure: Which tokens attend to one another: all, or the neighbours in the graph.
            With dropout, the weights of all pairs are in memory either way.
        constraint_weight: Weight of the constraint loss of each output, of the constraints that have one.
        attention_weight: Weight of the attention loss of each block.
        labelled_share: Share of the training examples whose labels are used; the others have constraint and
            attention losses alone. Which ones depends on what is observed of an example, not on the seed.
    """

    width: int = 128
    blocks: int = 1
    heads: int = 4
    recurrences: int = 32
    solving_steps: int = 64
    dropout: float = 0.1
    position_deviation: float = 0.0
    inject: bool = False
    detach: int = 0
    structure: Literal["dense", "graph"] = "dense"
    constraint_weight: float = 0.0
    attention_weight: float = 0.0
    labelled_share: float = 1.0

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "width": (self.width, 1, 16384),
            "blocks": (self.blocks, 1, 1000),
            "heads": (self.heads, 1, 1024),
            "recurrences": (self.recurrences, 1, 10_000),
            "solving_steps": (self.solving_steps, 1, 10**6),
            "dropout": (self.dropout, 0, 0.99),
            "position_deviation": (self.position_deviation, 0, 100),
            "detach": (self.detach, 0, 10_000),
            "constraint_weight": (self.constraint_weight, 0, 1e6),
            "attention_weight": (self.attention_weight, 0, 1e6),
            "labelled_share": (self.labelled_share, 0, 1),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if self.width % self.heads:
            raise ArgumentError(
                f"{where}: the width must be a multiple of the heads, got width {self.width} and "
                f"{self.heads} heads."
            )
        if self.labelled_share < 1 and not self.constraint_weight and not self.attention_weight:
            raise ArgumentError(
                f"{where}: examples without labels have constraint losses alone; set --constraint-weight or "
                "--attention-weight, or leave --labelled-share at 1."
            )
        if self.structure == "graph" and self.attention_weight:
            raise ArgumentError(
                f"{where}: masked attention gives all its weight to neighbours, so that the attention loss "
                "is always 0; set --attention-weight 0, or --structure dense."
            )
