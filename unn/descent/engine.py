"""The engine of block coordinate descent; it loads torch when it builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..engine import Engine
from ..ranges import check_ranges

if TYPE_CHECKING:
    from ..graph.declaration import Declaration
    from .model import DescentModel


@dataclass(frozen=True)
class DescentOptions:
    """Options of the engine ``descent``.

    Attributes:
        iterations: Number of rounds of coordinate descent in training and evaluation (k).
        sweep: Order of updates: "forward-backward" (away from the evidence and back, as H1, H2, Y, H2) or "forward"
            (H1, H2, Y).
        initial: Initial value of the wanted variables: "zero", "random" or "uniform".
        dropout: Dropout probability for variables that are neither given nor wanted, in training, with one mask
            for all iterations.
        penalty: Initial weight of the energies of constraints, where they have one; the weights are learned.
    """

    iterations: int = 3
    sweep: Literal["forward-backward", "forward"] = "forward-backward"
    initial: Literal["zero", "random", "uniform"] = "zero"
    dropout: float = 0.0
    penalty: float = 1.0

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            DeclarationError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "iterations": (self.iterations, 1, 10_000),
            "dropout": (self.dropout, 0, 0.999),
            "penalty": (self.penalty, 1e-6, 1e6),
        }
        check_ranges(where, ranges)


class DescentEngine(Engine):
    """Block coordinate descent on the energy, unrolled for training: an undirected neural network."""

    name = "descent"
    summary = "coordinate descent on the energy, unrolled for training: the best values of any variables given others"
    options = DescentOptions
    answers = ("infer",)
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """A factor without an energy that is no constraint with one, or a parameter of unknown size."""
        from ..errors import UnnError
        from .model import with_energies

        try:
            graph.require_parameters()
            with_energies(graph, 1.0)
        except UnnError as error:
            return str(error).rstrip(".")
        return ""

    def build(self, graph: Declaration, options: DescentOptions, sizes: Mapping[str, int]) -> DescentModel:
        """A ``DescentModel``."""
        from .model import DescentModel

        return DescentModel(graph, options)
