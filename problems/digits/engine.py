"""The baseline of Table 3 as an engine, for the graph of this problem alone; importing it does not load
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unn.extending import DescentOptions, Engine

if TYPE_CHECKING:
    from unn import Declaration

    from .untied import UntiedDigits

_VARIABLES = ("image", "H1", "H2", "label")


class UntiedEngine(Engine):
    """The unrolled network of the digits with separate weights for each round, in one direction."""

    name = "untied"
    summary = "baseline of the digits: separate weights for each round, labels given images only"
    options = DescentOptions
    answers = ("infer",)
    needs_all_values = False

    def refusal(self, graph: Declaration) -> str:
        """Any graph but that of the digits."""
        if tuple(graph.variables) == _VARIABLES:
            return ""
        return f"it is a baseline of the digits, whose graph has the variables {', '.join(_VARIABLES)}"

    def build(self, graph: Declaration, options: DescentOptions, sizes: Mapping[str, int]) -> UntiedDigits:
        """A network with about as many parameters as the graph."""
        from .untied import UntiedDigits

        static = graph.size_table.static
        rows, columns = (static[axis] for axis in ("row", "column"))
        return UntiedDigits((rows, columns), options.iterations, static["channel1"], options.dropout, graph)
