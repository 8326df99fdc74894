"""Undirected attention (Section 4 of the undirected-network paper): multilinear factors and an entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unn import Entropy, FactorGraph, Regularizer, SquaredNorm
from unn.errors import DeclarationError, suggest
from unn.graph.adjacency import Adjacency
from unn.graph.arrays import Array, Parameter, Variable
from unn.ops.attention import AttentionMask

from ..energies.multilinear import Multilinear
from .fusion import AttentionFusion
from .masked_entropy import MaskedEntropy

Sources = Array | Sequence[Array]
Mask = Tensor | AttentionMask | Adjacency

_PROJECTED = ("Q", "K", "V")
_ROLES = (*_PROJECTED, "H")


@dataclass(frozen=True, eq=False)
class UndirectedAttention:
    """Arrays and factors declared by ``undirected_attention``, to name in orders, observations and factors.

    Attributes:
        graph: graph of the declaration.
        Q, K, V: queries, keys and values, axes ``positions e`` (``positions head e`` with several heads).
        S: attention weights, axes ``queries keys`` (``head queries keys``).
        H: attention outputs, axes as of Q.
        heads: number of heads.
        sources: projected arrays by "Q", "K" and "V".
        weights: projection parameters by "Q", "K" and "V", axes ``e features`` (``head e features``).
        projections: by "Q", "K" and "V", one factor per source.
        scores: factor of S, Q and K.
        mixing: factor of H, S and V.
        fusion: rule that computes all messages to a variable of the attention at once.
    """

    graph: FactorGraph = field(repr=False)
    Q: Variable
    K: Variable
    V: Variable
    S: Variable
    H: Variable
    heads: int
    sources: Mapping[str, tuple[Array, ...]]
    weights: Mapping[str, Parameter]
    projections: Mapping[str, tuple[Multilinear, ...]]
    scores: Multilinear
    mixing: Multilinear
    fusion: AttentionFusion = field(repr=False)

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables by "Q", "K", "V", "S" and "H"."""
        return {"Q": self.Q, "K": self.K, "V": self.V, "S": self.S, "H": self.H}

    @property
    def order(self) -> tuple[str, ...]:
        """Names of Q, K, V, S and H.

        One round from zero is standard attention; ``ForwardBackward`` of it is the paper's order.
        """
        return tuple(variable.name for variable in self.variables.values())

    def factors_of(self, role: str) -> tuple[Multilinear, ...]:
        """The factors that touch "Q", "K", "V", "S" or "H"."""
        products = {
            "Q": (self.scores,),
            "K": (self.scores,),
            "V": (self.mixing,),
            "H": (self.mixing,),
            "S": (self.scores, self.mixing),
        }
        return (*self.projections.get(role, ()), *products[role])


def undirected_attention(
    graph: FactorGraph,
    queries: Sources,
    keys: Sources | None = None,
    values: Sources | None = None,
    *,
    heads: int = 1,
    width: int | None = None,
    mask: Mask | None = None,
    temperature: float | None = None,
    regularizers: Mapping[str, Regularizer] | None = None,
    init: float | Mapping[str, Tensor] | None = None,
    prefix: str = "",
) -> UndirectedAttention:
    """Declare undirected attention: variables Q, K, V, S, H, parameters W_Q, W_K, W_V and their factors.

    E = (||Q||^2 + ||K||^2 + ||V||^2 + ||H||^2) / 2 - sqrt(e) sum_i H(S_i)
    - <Q, X W_Q'> - <K, X W_K'> - <V, X W_V'> - <S, Q K'> - <H, S V>

    (undirected-network paper, Section 4), where e is the width of a head and rows of S sum to one. The update
    of S is softmax((Q K' + H V') / sqrt(e)), unless another temperature is given; the paper's eq. 14 prints V
    H'. Updating Q, K, V, S, H once from zero is standard attention with its result in H; other orders, and
    inferring X from H, need no other declaration. The messages to each of its variables are computed at once,
    in less time and memory (``graph.fuse``).

    The energy is unbounded below for all weights: S may have a norm of 1 or more, which outweighs the
    quadratic regularizers of Q and K, and those of V and H. A few rounds stay finite. ``bounded_attention``
    declares the same with bounded domains. With X observed, one of Q and K and one of V and H in a bounded
    domain are enough, ``regularizers={"Q": unn.Ball(), "H": unn.Ball()}``
    (``graph.boundedness(given=["X"])``).

    Args:
        graph: graph to extend.
        queries: array with axes ``positions features``, or several whose projections are added, such as
            ``[X, P]`` for words and positions.
        keys: arrays projected to keys; the queries by default (self-attention).
        values: arrays projected to values; the keys by default.
        heads: number of attention heads; each has ``width / heads`` features.
        width: total width of all heads; the number of query features by default.
        mask: true where a query may attend to a key: boolean, shape ``(queries, keys)``, or ``(heads,
            queries, keys)`` with one mask per head; or an ``AttentionMask`` or ``Adjacency`` over the
            positions. It fixes the sizes of these axes. Forbidden weights are exactly 0; a query without keys
            has only zeros. Padding beyond ``lengths`` needs no mask. The graph's ``adjacency()`` still
            contains all pairs.
        temperature: temperature of the attention weights; the square root of the width of a head by default.
        regularizers: regularizers by "Q", "K", "V" and "H"; ``SquaredNorm()`` by default.
        init: initial weights: a standard deviation, or tensors by "Q", "K" and "V", shape ``(e, features)``
            or ``(heads, e, features)``; uniform in +-1/sqrt(features) by default, as in ``torch.nn.Linear``.
        prefix: prefix of all new names, so that one graph can contain several.

    Raises:
        DeclarationError: for arrays that do not fit, a mask of another shape or dtype, heads that do not
            divide the width, names in use.

    Example:
        >>> g = unn.FactorGraph("completion", d=256)
        >>> X, P = g.variable("X", "n d", unn.SquaredNorm()), g.constant("P", "n d")
        >>> attention = undirected_attention(g, [X, P])
        >>> attention.order
        ('Q', 'K', 'V', 'S', 'H')
        >>> out = unn.infer(g, {"X": x, "P": positions}, order=attention.order)
    """
    return declare_attention(
        graph, queries, keys, values, heads, width, mask, temperature, regularizers, init, prefix,
        SquaredNorm(),
    )  # fmt: skip


def declare_attention(
    graph: FactorGraph,
    queries: Sources,
    keys: Sources | None,
    values: Sources | None,
    heads: int,
    width: int | None,
    mask: Mask | None,
    temperature: float | None,
    regularizers: Mapping[str, Regularizer] | None,
    init: float | Mapping[str, Tensor] | None,
    prefix: str,
    default: Regularizer,
) -> UndirectedAttention:
    """Declare attention with the arguments of ``undirected_attention``.

    Args:
        graph, queries, keys, values, heads, width, mask, temperature, regularizers, init, prefix: as there.
        default: regularizer of Q, K, V and H where none is given.
    """
    arrays = {"Q": _sources(graph, "queries", queries)}
    arrays["K"] = arrays["Q"] if keys is None else _sources(graph, "keys", keys)
    arrays["V"] = arrays["K"] if values is None else _sources(graph, "values", values)
    shapes = {role: _common_shape(graph, sources) for role, sources in arrays.items()}
    _require_one_size(arrays, shapes)
    per_head = _width_of_heads(heads, width, shapes["Q"][1])
    weights = _initial_weights(
        init, {role: ((heads,) if heads > 1 else ()) + (per_head, shape[1]) for role, shape in shapes.items()}
    )
    chosen = _regularizers(regularizers, default)
    allowed = None if mask is None else _dense(mask, heads, arrays, shapes)

    inner = {f"{prefix}head": heads, f"{prefix}e": per_head} if heads > 1 else {f"{prefix}e": per_head}
    _require_free_names(graph, prefix, inner, arrays)

    first = {**{role: sources[0] for role, sources in arrays.items()}, "H": arrays["Q"][0]}
    made = {role: _projected(graph, prefix + role, first[role], inner, chosen[role]) for role in _PROJECTED}
    columns = _key_axis(arrays)
    warmth = math.sqrt(per_head) if temperature is None else temperature
    entropy = Entropy(warmth, columns) if allowed is None else MaskedEntropy(warmth, columns, allowed)
    leading = "" if heads == 1 else f"{prefix}head "
    S = graph.variable(f"{prefix}S", f"{leading}{_with_bar(first['Q'], columns)}", entropy)
    made["H"] = _projected(graph, f"{prefix}H", first["H"], inner, chosen["H"])
    W = {
        role: graph.parameter(
            f"{prefix}W_{role}", " ".join((*inner, first[role].axes[1])), init=weights[role]
        )
        for role in _PROJECTED
    }
    h = "" if heads == 1 else "h "
    projections = {
        role: tuple(
            graph.factor(Multilinear(made[role][f"n {h}e"], W[role][f"{h}e d"], array["n d"]))
            for array in sources
        )
        for role, sources in arrays.items()
    }
    scores = graph.factor(Multilinear(S[f"{h}n m"], made["Q"][f"n {h}e"], made["K"][f"m {h}e"]))
    mixing = graph.factor(Multilinear(made["H"][f"n {h}e"], S[f"{h}n m"], made["V"][f"m {h}e"]))
    fusion = AttentionFusion(
        variables={**{role: variable.name for role, variable in made.items()}, "S": S.name},
        sources={role: tuple(array.name for array in sources) for role, sources in arrays.items()},
        weights={role: parameter.name for role, parameter in W.items()},
        projections={role: tuple(factor.name for factor in factors) for role, factors in projections.items()},
        scores=scores.name,
        mixing=mixing.name,
        heads=heads,
    )
    graph.fuse(fusion)
    return UndirectedAttention(
        graph,
        made["Q"],
        made["K"],
        made["V"],
        S,
        made["H"],
        heads,
        arrays,
        W,
        projections,
        scores,
        mixing,
        fusion,
    )


def _sources(graph: FactorGraph, what: str, given: Sources) -> tuple[Array, ...]:
    """Validate the arrays to project: each of this graph, with two axes."""
    sources = (given,) if isinstance(given, Array) else tuple(given) if isinstance(given, Sequence) else ()
    if not sources or not all(isinstance(array, Array) for array in sources):
        raise DeclarationError(
            f"undirected_attention: {what} are a variable, or a list of arrays such as [X, P], got {given!r}."
        )
    for array in sources:
        if graph.arrays.get(array.name) is not array:
            raise DeclarationError(
                f"undirected_attention: {what}: {array.kind} {array.name!r} belongs to another graph than "
                f"{graph.name!r}."
            )
        if len(array.axes) != 2:
            raise DeclarationError(
                f"undirected_attention: {what}: {array.kind} {array.name!r} has the axes "
                f"{' '.join(array.axes) or 'none'}, but needs two, positions and features."
            )
        if sources.count(array) > 1:
            raise DeclarationError(
                f"undirected_attention: {what}: {array.kind} {array.name!r} is listed twice; list it once."
            )
    return sources


def _common_shape(graph: FactorGraph, sources: Sequence[Array]) -> tuple[int | None, int]:
    """Sizes of positions, if known, and features of arrays that are summed."""
    table = graph.size_table
    shapes = [table.shape(array, table.static) for array in sources]
    common: list[int | None] = []
    for axis in range(2):
        known = {
            shape[axis]: array
            for shape, array in zip(shapes, sources, strict=True)
            if shape[axis] is not None
        }
        if len(known) > 1:
            actual = ", ".join(
                f"{array.axes[axis]!r} of {array.name!r} has size {size}" for size, array in known.items()
            )
            raise DeclarationError(
                f"undirected_attention: arrays that are projected together need one size: axis {actual}."
            )
        common.append(next(iter(known), None))
    if common[1] is None:
        array = sources[0]
        raise DeclarationError(
            f"undirected_attention: axis {array.axes[1]!r} of {array.kind} {array.name!r} has no size, which "
            f"determines that of the weights; give it with the graph, FactorGraph({graph.name!r}, "
            f"{array.axes[1]}=...)."
        )
    return common[0], common[1]


def _require_one_size(
    arrays: Mapping[str, tuple[Array, ...]], shapes: Mapping[str, tuple[int | None, int]]
) -> None:
    """Check that numbers of values and keys agree, and those of keys and queries if they share an axis."""
    pairs = [("V", "K")] if arrays["Q"][0].axes[0] != arrays["K"][0].axes[0] else [("V", "K"), ("Q", "K")]
    for first, second in pairs:
        a, b = shapes[first][0], shapes[second][0]
        if None not in (a, b) and a != b:
            left, right = arrays[first][0], arrays[second][0]
            raise DeclarationError(
                f"undirected_attention: axis {left.axes[0]!r} of {left.name!r} has size {a}, but axis "
                f"{right.axes[0]!r} of {right.name!r} has size {b}; there are as many values as keys."
            )


def _width_of_heads(heads: int, width: int | None, features: int) -> int:
    """Width of each head."""
    width = features if width is None else width
    for what, number in (("heads", heads), ("width", width)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DeclarationError(
                f"undirected_attention: {what} must be a whole number >= 1, got {number!r}."
            )
    if width % heads:
        divisors = [k for k in range(1, width + 1) if width % k == 0]
        raise DeclarationError(
            f"undirected_attention: heads={heads} does not divide the width {width}; heads can be "
            f"{', '.join(map(str, divisors))}."
        )
    return width // heads


def _initial_weights(
    init: float | Mapping[str, Tensor] | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Initial values of W_Q, W_K and W_V."""
    if isinstance(init, Mapping):
        for role, shape in shapes.items():
            value = init.get(role)
            if not isinstance(value, Tensor) or not value.is_floating_point() or tuple(value.shape) != shape:
                actual = (
                    f"shape {tuple(value.shape)} and {value.dtype}"
                    if isinstance(value, Tensor)
                    else type(value).__name__
                )
                raise DeclarationError(
                    f"undirected_attention: init[{role!r}] must be a floating-point tensor of shape {shape}, "
                    f"got {actual}."
                )
        return {role: init[role] for role in shapes}
    if init is None:
        # the bound of torch.nn.Linear, whatever the number of heads
        return {
            role: torch.empty(shape).uniform_(-(shape[-1] ** -0.5), shape[-1] ** -0.5)
            for role, shape in shapes.items()
        }
    if (
        isinstance(init, bool)
        or not isinstance(init, (int, float))
        or not (math.isfinite(init) and init >= 0)
    ):
        raise DeclarationError(
            "undirected_attention: init is a standard deviation >= 0, or tensors by 'Q', 'K' and 'V', got "
            f"{init!r}."
        )
    return {role: init * torch.randn(shape) for role, shape in shapes.items()}


def _regularizers(given: Mapping[str, Regularizer] | None, default: Regularizer) -> dict[str, Regularizer]:
    """Regularizers of Q, K, V and H."""
    for role in given or {}:
        if role not in _ROLES:
            raise DeclarationError(
                "undirected_attention: regularizers go by 'Q', 'K', 'V' and 'H', got "
                f"{role!r}.{suggest(str(role), _ROLES)}"
            )
    return {role: (given or {}).get(role, default) for role in _ROLES}


def _dense(
    mask: Mask,
    heads: int,
    arrays: Mapping[str, tuple[Array, ...]],
    shapes: Mapping[str, tuple[int | None, int]],
) -> Tensor:
    """Convert a mask to a boolean tensor, with an axis of heads if there are several."""
    if isinstance(mask, AttentionMask):
        mask = mask.adjacency
    if isinstance(mask, Adjacency):
        mask = mask.dense()
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        actual = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DeclarationError(
            "undirected_attention: mask is a boolean tensor, true where a query may attend to a key, an "
            f"AttentionMask or an Adjacency, got {actual}; make one by a comparison, such as mask > 0."
        )
    if mask.ndim == 3 and len(mask) == heads == 1:
        mask = mask[0]
    if mask.ndim != 2 and not (mask.ndim == 3 and len(mask) == heads):
        raise DeclarationError(
            f"undirected_attention: mask has shape {tuple(mask.shape)}, expected (queries, keys), or "
            f"({heads}, queries, keys) for {heads} heads."
        )
    for role, axis in (("Q", -2), ("K", -1)):
        array, expected = arrays[role][0], shapes[role][0]
        if expected not in (None, mask.shape[axis]):
            raise DeclarationError(
                f"undirected_attention: mask has shape {tuple(mask.shape)}, but axis {array.axes[0]!r} of "
                f"{array.name!r} has size {expected}; pass a mask for {expected} "
                f"{'queries' if role == 'Q' else 'keys'}."
            )
    if arrays["Q"][0].axes[0] == arrays["K"][0].axes[0] and mask.shape[-2] != mask.shape[-1]:
        raise DeclarationError(
            f"undirected_attention: mask has shape {tuple(mask.shape)}, but queries and keys share axis "
            f"{arrays['Q'][0].axes[0]!r}; pass a square one."
        )
    return mask if heads == 1 or mask.ndim == 3 else mask.expand(heads, -1, -1)


def _require_free_names(
    graph: FactorGraph, prefix: str, inner: Mapping[str, int], arrays: Mapping[str, tuple[Array, ...]]
) -> None:
    """Check that all new names of arrays and axes are valid and unused."""
    remedy = "choose a prefix, undirected_attention(..., prefix='first_')"
    if not isinstance(prefix, str) or not f"{prefix}Q".isidentifier():
        raise DeclarationError(
            "undirected_attention: names start with the prefix, so it must be letters, digits and "
            f"underscores, got {prefix!r}."
        )
    for name in (*(f"{prefix}{role}" for role in "QKVSH"), *(f"{prefix}W_{role}" for role in _PROJECTED)):
        if name in graph.arrays:
            raise DeclarationError(
                f"undirected_attention: the name {name!r} is in use by a {graph.arrays[name].kind} of graph "
                f"{graph.name!r}; {remedy}."
            )
    table = graph.size_table
    used = {axis for array in graph.arrays.values() for axis in array.axes} | set(graph.sizes)
    for axis, size in inner.items():
        if axis in used and table.static.get(table.root(axis)) != size:
            actual = table.static.get(table.root(axis), "no fixed size")
            raise DeclarationError(
                f"undirected_attention: axis {axis!r} is in use in graph {graph.name!r} with size {actual}, "
                f"but is needed with size {size}; {remedy}."
            )
    columns = _key_axis(arrays)
    keys = arrays["K"][0].axes[0]
    if columns in used and table.root(columns) != table.root(keys):
        raise DeclarationError(
            f"undirected_attention: axis {columns!r} is in use in graph {graph.name!r}, but is needed for "
            "the keys of S; rename the existing one."
        )


def _key_axis(arrays: Mapping[str, tuple[Array, ...]]) -> str:
    """Axis of S along which rows sum to one: that of the keys, renamed if queries share it."""
    rows, columns = arrays["Q"][0].axes[0], arrays["K"][0].axes[0]
    return f"{rows}_key" if rows == columns else columns


def _projected(
    graph: FactorGraph, name: str, source: Array, inner: Mapping[str, int], regularizer: Regularizer
) -> Variable:
    """A variable with the positions of an array and the axes of a head."""
    return graph.variable(name, _with_bar(source, " ".join(inner)), regularizer)


def _with_bar(source: Array, features: str) -> str:
    """Axes of a projection; positions are node axes if they are in the source."""
    bar = "| " if isinstance(source, Variable) and source.has_bar else ""
    return f"{source.axes[0]} {bar}{features}"
