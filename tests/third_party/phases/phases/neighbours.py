"""An engine of somebody else's: sample the unobserved part of an example whose observed part is near."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unn.extending import Engine


@dataclass(frozen=True)
class NeighboursOptions:
    """Options of the engine ``neighbours``.

    Attributes:
        stored: Number of stored examples.
        bandwidth: Initial standard deviation of the kernel, in standard deviations of each variable.
    """

    stored: int = 256
    bandwidth: float = 0.3


class NeighboursEngine(Engine):
    name = "neighbours"
    summary = "an example whose observed values are near the given ones, with learned bandwidth"
    options = NeighboursOptions
    answers = ("sample",)
    one_size = True

    def refusal(self, graph: Any) -> str:
        real = [
            name
            for name, variable in graph.variables.items()
            if type(variable.regularizer).__name__ == "Ball"
        ]
        return f"the distance of values of {real[0]!r} is not defined" if real else ""

    def build(self, graph: Any, options: NeighboursOptions, sizes: Any) -> Any:
        from .neighbours_model import Neighbours

        return Neighbours(graph, options, sizes)
