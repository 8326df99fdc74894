"""Unrolled inference with the fusions of chosen attentions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from unn import Block, Gradient, Order, Unrolled, Update
from unn.descent.gradients import UNROLL
from unn.descent.updates import MIRROR
from unn.errors import DeclarationError

from .declare import UndirectedAttention


class UnrolledAttention(Unrolled):
    """``Unrolled`` on the graph of an attention, with the fusions of the attentions that are passed.

    ``Unrolled(graph, ...)`` uses the fusions of all attentions of the graph and is the same where one is
    passed here.

    Args:
        attention: attention declared by ``undirected_attention``, or several of the same graph.
        given, want, order, iterations, initial, dropout, check_values, update, gradient: as of ``Unrolled``.

    Raises:
        DeclarationError: for attentions of different graphs, or none.
        InferenceError: as ``Unrolled``.

    Example:
        >>> attention = undirected_attention(g, [X, P])
        >>> order = unn.ForwardBackward(attention.order, last="X")
        >>> net = UnrolledAttention(attention, given=["X", "P"], want="X", order=order, iterations=3)
        >>> completed = net(unn.Partial(x, known), positions)
    """

    def __init__(
        self,
        attention: UndirectedAttention | Sequence[UndirectedAttention],
        given: str | Sequence[str],
        want: str | Sequence[str],
        order: Order | Sequence[str | Block] | str | None = None,
        iterations: int | range = 1,
        initial: Mapping[str, Tensor | str] | None = None,
        dropout: Mapping[str, float] | None = None,
        check_values: bool = True,
        update: Update = MIRROR,
        gradient: Gradient = UNROLL,
    ) -> None:
        attentions = (attention,) if isinstance(attention, UndirectedAttention) else tuple(attention)
        if not attentions or any(item.graph is not attentions[0].graph for item in attentions):
            raise DeclarationError(
                "UnrolledAttention takes what undirected_attention(...) returns, or several of these for one "
                "graph."
            )
        super().__init__(
            attentions[0].graph, given, want, order, iterations, initial, dropout, check_values,
            update=update, gradient=gradient, fusions=[item.fusion for item in attentions],
        )  # fmt: skip
        self.attentions = attentions
