"""Paths in a graph whose edges are binary variables: the constraint on degrees."""

from __future__ import annotations

import torch
from torch import Tensor

from unn import Constraint, EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference
from unn.graph.factor import Values
from unn.graph.interactions import Relation, Shapes, ordered_letters_of, product_relations
from unn.graph.structure import variables_only
from unn.graph.views import checked_views
from unn.regularizers.base import batch_sum

from ..energies.weighted import LossEnergy
from .ones import binary_ones, shares_of_ones, undefined_entries


class Incidence(Constraint):
    """A constraint on the used edges and visited nodes of a graph.

    Args:
        edge: reference to a binary variable, whether each edge is used, with one letter.
        source: reference to a binary variable, whether each node is visited, looked up at one end of the
            edge.
        target: the same, at the other end of the edge.
        others: further references to variables of nodes.
        name: unique in the graph.

    Raises:
        DeclarationError: for references with other patterns.
    """

    handles_indices = True

    def __init__(
        self,
        edge: Reference,
        source: Reference,
        target: Reference,
        *others: Reference,
        name: str | None = None,
    ) -> None:
        super().__init__(edge, source, target, *others, name=name)
        variables_only(self)
        ends = [reference.pattern.dimensions for reference in (source, target)]
        by_edge = [
            len(dims) == 1 and dims[0].index is not None and dims[0].letters == edge.letters for dims in ends
        ]
        if len(edge.letters) != 1 or not all(by_edge) or source.array is not target.array:
            raise DeclarationError(
                f"factor {self.name!r} takes the edges with one letter and their nodes looked up at "
                f"both ends, "
                f"such as used['e'], visited['src[e]'], visited['dst[e]'], got {edge}, {source} and {target}."
            )
        if any(len(reference.letters) != 1 or reference.pattern.indices for reference in others):
            raise DeclarationError(
                f"factor {self.name!r} takes variables of nodes with one letter, such as ends['n'], got "
                f"{', '.join(map(str, others))}."
            )
        self._ends = tuple(dims[0].index for dims in ends)

    def degrees(self, values: Values) -> Tensor:
        """Sum of the edges at each node, shape ``(batch, nodes)``; an edge from a node to itself counts
        twice.

        Raises:
            ObservationError: for values that are missing, of another shape, or of inconsistent sizes.
        """
        checked_views(self, values)
        edges, nodes = (values[reference.array.name] for reference in self.references[:2])
        result = edges.new_zeros(len(edges), nodes.shape[1])
        for index in self.incidence(edges.device):
            result = result.index_add(1, index, edges)
        return result

    def incidence(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The nodes at both ends of each edge, shape ``(edges,)`` each."""
        first, second = (self.indices[name].on(device) for name in self._ends if name is not None)
        return first, second

    def interactions(self, shapes: Shapes) -> list[Relation]:
        return product_relations(self, shapes)

    def ordered_letters(self) -> set[str]:
        return ordered_letters_of(self.references)


class Path(Incidence):
    """Used edges form paths between visited ends: the degree of an end is 1, of another visited node 2, of
    others 0.

    These are the constraints on degrees of the recurrent-transformer paper (Appendix D.1). Cycles apart from
    the path satisfy them too; ``Connected`` excludes cycles.

    Args:
        edge: reference to a binary variable, whether each edge is used, with one letter.
        source: reference to a binary variable, whether each node is visited, looked up at one end of the
            edge.
        target: the same, at the other end of the edge.
        ends: reference to a binary variable, whether each node is an end of a path.
        name: unique in the graph.

    Example:
        ``Path(used["e"], visited["src[e]"], visited["dst[e]"], ends["n"])``
    """

    def __init__(
        self,
        edge: Reference,
        source: Reference,
        target: Reference,
        ends: Reference,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(edge, source, target, ends, name=name)

    def violations_of(self, values: Values) -> Tensor:
        """Number of nodes with a wrong degree, and of entries that are NaN; shape ``(batch,)``."""
        wrong = batch_sum((self._excess(binary_ones(self, values)) != 0).long())
        return wrong + undefined_entries(self, values)

    def part_losses(self, values: Values) -> Tensor:
        """(degree - 2 visited + end)^2 of each node, shape ``(batch, nodes)``."""
        return self._excess(shares_of_ones(self, values)).square()

    def penalties(self, weight: float = 1.0, log_weight: Reference | None = None) -> list[EnergyFactor]:
        """The loss, ``LossEnergy``, which the inner solver minimises."""
        return [LossEnergy(self, weight, log_weight, name=self.name)]

    def formula(self) -> str:
        edge, node, _, end = (reference.array.name for reference in self.references)
        return f"degree in {edge} = 2 {node} - {end} at each node"

    def _excess(self, values: Values) -> Tensor:
        visited, ends = (values[self.references[k].array.name] for k in (1, 3))
        return self.degrees(values) - 2 * visited + ends


class Connected(Incidence):
    """Used edges connect all visited nodes.

    It has no differentiable loss: solvers are checked by it and not trained on it.

    Args:
        edge: reference to a binary variable, whether each edge is used, with one letter.
        source: reference to a binary variable, whether each node is visited, looked up at one end of the
            edge.
        target: the same, at the other end of the edge.
        name: unique in the graph.

    Example:
        ``Connected(used["e"], visited["src[e]"], visited["dst[e]"])``
    """

    has_loss = False

    def __init__(
        self, edge: Reference, source: Reference, target: Reference, *, name: str | None = None
    ) -> None:
        super().__init__(edge, source, target, name=name)

    def violations_of(self, values: Values) -> Tensor:
        """Number of visited nodes that no used edges connect to the first visited one, and of entries that
        are NaN; shape ``(batch,)``."""
        checked_views(self, values)
        shares = shares_of_ones(self, values)
        edges, nodes = (shares[reference.array.name] > 0.5 for reference in self.references[:2])
        first, second = self.incidence(edges.device)
        reached = nodes & (nodes.long().cumsum(1) == 1)
        while True:
            forward, backward = reached[:, first] & edges, reached[:, second] & edges
            further = torch.zeros(reached.shape, device=edges.device).index_add(1, second, forward.float())
            further = further.index_add(1, first, backward.float()) > 0
            if not bool((further & ~reached).any()):
                return (nodes & ~reached).sum(1) + undefined_entries(self, values)
            reached = reached | further

    def formula(self) -> str:
        edge, node = (reference.array.name for reference in self.references[:2])
        return f"edges in {edge} connect the nodes in {node}"
