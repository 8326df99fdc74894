"""Associative memories: Hopfield retrieval with dense, sparse and structured weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from unn import Entropy, FactorGraph, Regularizer
from unn.errors import DeclarationError
from unn.graph.arrays import Array, Variable

from ..energies.multilinear import Multilinear


@dataclass(frozen=True, eq=False)
class AssociativeMemory:
    """Arrays and the factor declared by ``associative_memory``.

    Attributes:
        graph: graph of the declaration.
        state: variable that is retrieved.
        memories: stored patterns, axes ``memories features``.
        weights: variable of the weights of the patterns.
        factor: factor of the three.
    """

    graph: FactorGraph = field(repr=False)
    state: Variable
    memories: Array
    weights: Variable
    factor: Multilinear

    @property
    def order(self) -> tuple[str, str]:
        """Names of the weights and the state; one round of them is the published update."""
        return (self.weights.name, self.state.name)


def associative_memory(
    graph: FactorGraph,
    state: Variable,
    memories: Array,
    *,
    selection: Regularizer | None = None,
    prefix: str = "",
) -> AssociativeMemory:
    """Declare Hopfield retrieval: weights of stored patterns, and their factor with the state.

    E = Psi(state) + Psi(weights) - <weights, state memories'>. With ``SquaredNorm()`` for the state X, a
    round of the weights and the state is X <- mirror(X M') M (Hopfield-Fenchel-Young networks, Santos et al.,
    2024), in which the regularizer of the weights, ``selection``, determines the kind of memory:

    - ``Entropy(1 / beta)``: modern Hopfield networks, softmax(beta X M') M (Ramsauer et al., 2021, eq. 3),
    - ``SimplexNorm(1 / beta)``, ``TsallisEntropy(temperature=1 / beta)``: sparse ones. Sparsemax retrieves
      pattern i exactly, in one round, if <x, m_i> exceeds <x, m_j> for all others by at least 1 / beta,
    - ``SubsetNorm(k, 1 / beta)``: associations of k patterns, exactly their sum if each of them exceeds each
      of the others by 1 / beta.

    A state with ``LayerNorm()`` is normalised after each round. With these weights the energy is bounded
    below for all memories, and falls in each update, so that rounds converge (``unn.infer(..., until=...)``).
    The query is an initial value of the state, ``initial={"X": query}``, or evidence in part, ``Partial``.

    Args:
        graph: graph to extend.
        state: variable with the axis of the features, or with one of queries before it.
        memories: patterns, axes ``memories features``: a constant, a parameter or a variable.
        selection: regularizer of the weights, over the patterns; ``Entropy()`` by default.
        prefix: prefix of the name of the weights, ``weights``.

    Raises:
        DeclarationError: for arrays that do not fit, and names in use.

    Example:
        >>> g = unn.FactorGraph("memory", m=3, d=16)
        >>> X, M = g.variable("X", "d", unn.SquaredNorm()), g.constant("M", "m d", patterns)
        >>> memory = associative_memory(g, X, M, selection=unn.SimplexNorm(0.1))
        >>> out = unn.infer(g, {}, order=memory.order, initial={"X": query}, until=1e-6)
    """
    where = "associative_memory"
    for what, array in (("state", state), ("memories", memories)):
        if not isinstance(array, Array) or graph.arrays.get(array.name) is not array:
            raise DeclarationError(f"{where}: {what} is an array of graph {graph.name!r}, got {array!r}.")
    if not isinstance(state, Variable) or len(state.axes) not in (1, 2):
        raise DeclarationError(
            f"{where}: the state is a variable with an axis of features, and perhaps one of queries before "
            f"it, got {state.kind} {state.name!r} with the axes {' '.join(state.axes) or 'none'}."
        )
    if len(memories.axes) != 2:
        raise DeclarationError(
            f"{where}: {memories.kind} {memories.name!r} has the axes "
            f"{' '.join(memories.axes) or 'none'}, but needs two, memories and features."
        )
    name = f"{prefix}weights"
    if name in graph.arrays:
        raise DeclarationError(
            f"{where}: the name {name!r} is in use by a {graph.arrays[name].kind} of graph {graph.name!r}; "
            "choose a prefix, associative_memory(..., prefix='first_')."
        )
    leading = f"{state.axes[0]} | " if len(state.axes) == 2 else ""
    weights = graph.variable(name, leading + memories.axes[0], selection or Entropy())
    n = "n " if leading else ""
    factor = graph.factor(Multilinear(weights[f"{n}m"], state[f"{n}d"], memories["m d"]))
    return AssociativeMemory(graph, state, memories, weights, factor)
