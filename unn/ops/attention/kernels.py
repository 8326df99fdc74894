"""Attention over a graph: the function, its kernels and their selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ...errors import ObservationError, suggest
from ..reproducible import reproducibility_is_required
from .mask import AttentionMask
from .measure import Size, can_be_measured, candidates_of, fastest_kernel
from .relational import attention_by_terms
from .remember import remember
from .sparse import attention_by_pairs, max_batch_copies
from .terms import Grouped, NodeList, Term

Kernel = Callable[[Tensor, Tensor, Tensor, AttentionMask], Tensor]


def attention(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, kernel: str = "auto") -> Tensor:
    """softmax(Q K^T / sqrt(width)) V over the neighbours of each node; zero for nodes without neighbours.

    All kernels agree up to rounding. Second derivatives need the kernel "packed".

    Args:
        query, key, value: shape ``(batch, heads, nodes, width)``; values may have another width.
        mask: attention mask.
        kernel: "auto", the fastest on this machine: on a CPU measured once per problem size and
            remembered, unless the problem is tiny (see ``unn.ops.attention.measure``); "estimated" by the
            cost model, a function of the graph and the sizes alone; "dense" (PyTorch's
            scaled_dot_product_attention), "relational" (dense products along the axes of the
            declaration), "packed" (the neighbours of each node, padded: the structured-diffusion paper's,
            Appendix C), "sparse"
            (products of sparse matrices), or "blocks" (PyTorch's flex_attention over blocks of 128
            nodes, in an order that places neighbours close; on a GPU).

    Returns:
        Shape ``(batch, heads, nodes, width of values)``.

    Raises:
        ObservationError: for shapes that do not fit, or an unknown kernel.
    """
    _check(query, key, value, mask)
    if kernel not in _KERNELS and kernel not in _CHOICES:
        raise ObservationError(
            f"attention: unknown kernel {kernel!r}.{suggest(kernel, [*kernel_names(), *_CHOICES])}"
        )
    if not value.numel():
        # keep the result in the autograd graph
        return value + 0 * (query.sum() + key.sum())
    if kernel == "auto":
        kernel = _measure_kernel(query, key, value, mask)
    elif kernel == "estimated":
        kernel = choose_kernel(mask, query.shape[0] * query.shape[1], query.shape[3], query.device)
    return _KERNELS[kernel](query, key, value, mask)


def kernel_names() -> list[str]:
    """Names of the kernels; "auto" and "estimated" select one of them."""
    return list(_KERNELS)


def choose_kernel(mask: AttentionMask, batch: int, width: int, device: torch.device) -> str:
    """The fastest kernel by the cost model; independent of measurements.

    Args:
        mask: attention mask.
        batch: batch size times number of heads.
        width: width of a head.
        device: device on which attention runs.
    """
    if device.type != "cpu":
        # launching many small kernels costs more than computing masked pairs
        n = mask.count
        return "dense" if n <= 2048 else "blocks" if n <= 16384 and width >= 16 else "relational"
    costs = _estimates(mask, batch, width)
    fastest = "dense"
    # a loop, because torch.compile has no minimum with a key where the batch varies
    for name, cost in costs.items():
        if cost < costs[fastest]:
            fastest = name
    return fastest


def _measure_kernel(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> str:
    """The measured fastest kernel of a call; by the cost model where measuring is not worthwhile."""
    batch, width = query.shape[0] * query.shape[1], query.shape[3]
    if not can_be_measured(query):
        return choose_kernel(mask, batch, width, query.device)
    size, required = Size.of(query, key, value), reproducibility_is_required()

    def choose() -> str:
        # of the rounded size, so that a choice does not depend on which batch came first
        costs = _estimates(mask, size.copies, size.width)
        estimates = {name: 1e-9 * cost for name, cost in costs.items()}
        names = candidates_of(estimates)
        if len(names) == 1:
            return names[0]
        runs = {name: _bind_mask(mask, _KERNELS[name]) for name in names}

        def measure() -> str:
            return fastest_kernel(runs, size, query, key, value)

        problem = {
            "mask": mask.digest,
            "candidates": names,
            "revision": _REVISION,
            **size.description(),
        }
        kernel = remember(problem, names, measure)
        # without a remembered choice, one that depends on measured times would not be reproducible
        return kernel or (names[0] if required else measure())

    return mask.measured.get_or_make((size, required), choose)


def _bind_mask(mask: AttentionMask, kernel: Kernel) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda query, key, value: kernel(query, key, value, mask)


def _estimates(mask: AttentionMask, batch: int, width: int) -> dict[str, float]:
    """Cost model: nanoseconds of forward and backward per kernel, on one thread of an Intel Xeon."""
    n = mask.count
    dense = 80_000 + batch * n * (150 + n * (2.4 + 0.073 * width))
    costs = {
        # the kernels with many operations lose more to cold caches than the single operation of this one
        "dense": dense / _COLD_CACHE_FACTOR,
        "relational": sum(_cost(term, batch, width) for term in mask.terms(torch.device("cpu"))),
    }
    if _HAS_MKL:
        parts = math.ceil(batch / max_batch_copies(mask.adjacency))
        pairs, nodes = mask.entries * (11 + 0.34 * width), n * (44 + 3.3 * width)
        costs["sparse"] = 277_000 + parts * 169_000 + batch * (pairs + nodes)
    return costs


def _cost(term: Term, batch: int, width: int) -> float:
    if isinstance(term, Grouped):
        ends = math.prod(term.queries.sizes) + math.prod(term.keys.sizes)
        return 300_000 + batch * (6 * term.pairs + ends * (30 + 2.4 * width))
    per_pair = 66 + 7 * width if isinstance(term.queries, NodeList) else 28 + 3.5 * width
    return 173_000 + batch * term.pairs * per_pair


_COLD_CACHE_FACTOR = 1.4
"""Slowdown of the other kernels between other work, relative to their measured times with warm caches."""
_HAS_MKL = torch.backends.mkl.is_available()
"""Without MKL, sparse matrix products are slow."""


def _check(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if query.ndim != 4 or value.ndim != 4 or key.shape != query.shape or value.shape[:3] != query.shape[:3]:
        raise ObservationError(
            f"attention: query, key and value need shape (batch, heads, nodes, width), got {shapes}."
        )
    if query.shape[2] != mask.count:
        raise ObservationError(
            f"attention: the mask has {mask.count} nodes, but the query has {query.shape[2]}."
        )
    if len({(x.dtype, x.device) for x in (query, key, value)}) > 1:
        dtypes = [(x.dtype, str(x.device)) for x in (query, key, value)]
        raise ObservationError(f"attention: query, key and value differ in dtype or device: {dtypes}.")


def _dense(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    allowed = mask.dense(query.device)
    empty = ~allowed.any(1, keepdim=True) if mask.has_empty_rows else None
    if empty is not None:
        allowed = allowed | empty
    rest = mask.count % _VECTOR
    if query.device.type == "cpu" and mask.count <= _MOST_PADDED and rest >= _FEWEST_LEFT:
        # pad with excluded keys, because scores that do not fill a vector are exponentiated one by one
        added = _VECTOR - rest
        key, value = (pad(x, (0, 0, 0, added)) for x in (key, value))
        allowed = pad(allowed, (0, added))
    result = scaled_dot_product_attention(query, key, value, allowed)
    return result if empty is None else result.masked_fill(empty, 0)


def _packed(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    q, k, v = _promote(query, key, value)
    neighbours, padding = mask.neighbours(query.device)
    scores = (q[:, :, None] * k[:, neighbours]).sum(-1).masked_fill(padding, -torch.inf)
    if mask.has_empty_rows:
        scores = scores.masked_fill(padding.all(1, keepdim=True), 0)
    weights = scores.softmax(-1).masked_fill(padding, 0)
    return (weights[..., None] * v[:, neighbours]).sum(2).view(value.shape).to(value.dtype)


def _relational(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    q, k, v = _promote(query, key, value)
    return attention_by_terms(q, k, v, mask.terms(query.device)).view(value.shape).to(value.dtype)


def _sparse(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    q, k, v = _promote(query, key, value)
    return attention_by_pairs(q, k, v, mask.pairs(len(q), query.device)).view(value.shape).to(value.dtype)


def _promote(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled query, key and value, shape ``(batch * heads, nodes, width)``, in at least float32.

    In half precision, sums over many neighbours overflow or stall.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (x.to(dtype).flatten(0, 1) for x in (query, key, value))
    return q * max(1, query.shape[3]) ** -0.5, k, v


def _blocks(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    device = query.device
    order, inverse = mask.order(device)

    def make() -> Any:
        allowed = mask.dense(device)[order][:, order]
        # compiled code indexes the mask by position
        return create_block_mask(
            lambda b, h, i, j: allowed[i, j], None, None, mask.count, mask.count, device=str(device)
        )

    blocks = mask.cached("blocks", device, make)
    run: Any = (
        flex_attention
        if device.type == "cpu"
        else mask.cached("compiled", device, lambda: torch.compile(flex_attention, dynamic=False))
    )
    q, k, v = (x.index_select(2, order) for x in (query, key, value))
    out: Tensor = run(q, k, v, block_mask=blocks)
    return out.index_select(2, inverse)


_REVISION = 2
"""Raised where a kernel becomes faster, so that choices of earlier versions are measured again."""

_VECTOR = 16
"""Numbers of single precision in a vector of the widest processors."""

_FEWEST_LEFT = 5
"""Scores left over by full vectors from which padding them to a vector pays."""

_MOST_PADDED = 64
"""Largest number of nodes whose keys are padded; beyond, the rest of a row is a small part of it."""

_CHOICES = ("auto", "estimated")
_KERNELS: dict[str, Kernel] = {
    "dense": _dense,
    "relational": _relational,
    "packed": _packed,
    "sparse": _sparse,
    "blocks": _blocks,
}
