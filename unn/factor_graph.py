"""A factor graph: a declaration with its queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor

from .descent.contraction import Contraction
from .descent.contraction import contraction as contraction_of
from .descent.energy import energy_terms, total_energy
from .errors import ArgumentError, unknown
from .graph import describe
from .graph.adjacency import Adjacency
from .graph.adjacency import adjacency as adjacency_of
from .graph.boundedness import Boundedness, boundedness_of
from .graph.declaration import Declaration
from .graph.diameter import longest_shortest_path
from .graph.symmetries import Symmetry
from .graph.symmetries import symmetries as symmetries_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .graph.partial import Partial


class FactorGraph(Declaration):
    """Variables with regularizers, parameters, constants, and the factors that couple them.

    The graph is an ``nn.Module``: its parameters are trained, moved and saved like those of any module.

    Args:
        name: used in messages and figures.
        sizes: static sizes of axes by name; the sizes of other axes are dynamic, inferred from the values of
            each call.

    Example:
        >>> import unn
        >>> from factors import Multilinear
        >>> g = unn.FactorGraph("toy", pixel=4, label=3)
        >>> X = g.variable("X", "pixel", unn.SquaredNorm())
        >>> Y = g.variable("Y", "label", unn.Entropy())
        >>> W = g.parameter("W", "label pixel")
        >>> g.factor(Multilinear(Y["c"], W["c x"], X["x"]))
        >>> g
        FactorGraph 'toy': 2 variables (X, Y), 1 factor, 12 parameters
    """

    @overload
    def energy(
        self,
        values: Mapping[str, Tensor],
        by_factor: Literal[False] = False,
        lengths: Mapping[str, Tensor] | None = None,
    ) -> Tensor: ...
    @overload
    def energy(
        self,
        values: Mapping[str, Tensor],
        by_factor: Literal[True],
        lengths: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]: ...
    def energy(
        self,
        values: Mapping[str, Tensor],
        by_factor: bool = False,
        lengths: Mapping[str, Tensor] | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """E(x) = sum of Psi over variables + sum of factor energies (undirected-network paper, eq. 1).

        Args:
            values: values of all variables, shape ``(batch, *axes)``, and of all constants without declared
                values.
            by_factor: return the term of each regularizer (by the name of its variable) and each factor (by
                its name).
            lengths: length of each batch element along ragged axes, by axis, shape ``(batch,)``.

        Returns:
            Shape ``(batch,)``; +inf where a value lies outside its domain.

        Raises:
            ObservationError: if a value is missing or has the wrong shape.
        """
        terms = energy_terms(self, values, lengths)
        if by_factor:
            return terms
        return total_energy(terms)

    def boundedness(self, given: Collection[str] = ()) -> Boundedness:
        """Decide whether the energy, without dropout, is bounded below when ``given`` are observed.

        Args:
            given: names of observed variables and constants, in a list, tuple or set.

        Raises:
            ArgumentError: for undeclared names, or a string in place of a collection of names.
        """
        if isinstance(given, str) or not isinstance(given, Collection):
            raise ArgumentError(
                f"boundedness: given is a collection of names such as given=['X'], got {given!r}."
            )
        for name in given:
            if name not in self.arrays:
                raise ArgumentError(f"graph {self.name!r}: " + unknown("variable", name, self.variables))
        return boundedness_of(self, given)

    def contraction(
        self, given: Mapping[str, Tensor | Partial] | None = None, sizes: Mapping[str, int] | None = None
    ) -> Contraction:
        """Certify that the energy has one fixed point, to which every order of updates converges.

        Args:
            given: observed variables and constants by name, one row, shape ``(1, *axes)``; their values count
                only where a factor multiplies them with two others. A variable that is given in part counts
                as not given.
            sizes: sizes of the axes that follow neither from the declaration nor from ``given``.

        Raises:
            ObservationError: for values that do not fit, or of several rows.
            DeclarationError: for the size of an axis that is missing.

        Example:
            >>> bool(g.contraction({"X": x[:1]}))
            True
        """
        return contraction_of(self, given, sizes)

    def adjacency(self, /, **sizes: int) -> Adjacency:
        """Adjacency of the nodes, a sparse symmetric matrix with named blocks.

        Args:
            sizes: sizes of the dynamic axes.

        Raises:
            DeclarationError: for a size that is missing, unknown or contradicts the declaration.
        """
        return adjacency_of(self, sizes)

    def symmetries(self, /, **sizes: int) -> list[Symmetry]:
        """Exchangeable indices of nodes: permuting one everywhere at once leaves the adjacency invariant.

        This is a property of the declaration. The problem has the same symmetry if factors have an energy
        (parameters and constants break the exchangeability of their letters) and in graphs of ``unn.trace``,
        whose programs are checked; for factors without an energy, their option ``ordered`` declares it.

        Args:
            sizes: sizes of the dynamic axes.

        Raises:
            DeclarationError: for a size that is missing, unknown or contradicts the declaration.
        """
        return symmetries_of(self, sizes)

    def depth(self, /, **sizes: int) -> int:
        """Number of attention layers after which every node can depend on every other: the longest shortest
        path.

        Args:
            sizes: sizes of the dynamic axes.

        Raises:
            DeclarationError: for a size that is missing, unknown or contradicts the declaration.
        """
        return longest_shortest_path(adjacency_of(self, sizes))

    def explain(self) -> str:
        """Describe the graph in words and formulas: arrays, energy, updates, boundedness."""
        return describe.explain(self)

    def explain_exact(self, given: Mapping[str, Tensor | Partial] | None = None, **sizes: int) -> str:
        """What exact inference costs given evidence, before it runs: multiplications, largest table, memory.

        Args:
            given: evidence by variable, complete or partial.
            sizes: sizes of the dynamic axes.

        Raises:
            DeclarationError: for a graph without tables; names the variable or factor.
            ObservationError: for evidence that does not fit the graph.
        """
        from .exact.queries import cost

        return str(cost(self, given, sizes=sizes))

    def to_mermaid(self) -> str:
        """The graph as Mermaid text."""
        return describe.to_mermaid(self)

    def to_dot(self) -> str:
        """The graph as Graphviz text."""
        return describe.to_dot(self)

    def draw(self, given: Collection[str] = (), theme: str = "light") -> Figure:
        """The graph as a matplotlib figure: variables as circles (observed ones shaded), factors as squares,
        and plates for repeated nodes.

        Args:
            given: names of observed variables.
            theme: "light" or "dark".

        Raises:
            ArgumentError: for a name that is not declared.
            ObservationError: for an unknown theme.
        """
        from .draw import draw_graph, theme_named

        return draw_graph(self, given, theme_named(theme))
