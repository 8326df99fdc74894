"""Options of the engine ``encoder``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class EncoderOptions:
    """Options of the engine ``encoder``; the defaults are those of the paper but for ``hidden``, 2048 there.

    Attributes:
        width: Numbers per token.
        blocks: Number of transformer blocks, each with weights of its own.
        heads: Number of attention heads.
        hidden: Number of units of the feed-forward layers.
        dropout: Dropout probability.
        tokens: Variables with a token for each node, all by default. The nodes of the others are
            estimated from the concatenation of all tokens, and cannot be given.
        targets: Variables whose hidden nodes are trained, all by default.
    """

    width: int = 128
    blocks: int = 4
    heads: int = 1
    hidden: int = 256
    dropout: float = 0.1
    tokens: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "width": (self.width, 2, 16384),
            "blocks": (self.blocks, 1, 1000),
            "heads": (self.heads, 1, 1024),
            "hidden": (self.hidden, 1, 10**6),
            "dropout": (self.dropout, 0, 0.99),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if self.width % self.heads or self.width % 2:
            raise ArgumentError(
                f"{where}: the width must be even and a multiple of the heads, got width {self.width} and "
                f"{self.heads} heads."
            )
