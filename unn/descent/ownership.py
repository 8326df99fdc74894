"""Results that share no memory with what was given, with what the engine keeps, or with one another."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from .evidence import Evidence, Initial


def input_storages(evidence: Evidence, initial: Initial) -> set[int | None]:
    """The memory of everything that a run starts from; not asked for while compiling."""
    if torch.compiler.is_compiling():
        return set()
    tensors = [*evidence.values.values()]
    if initial:
        tensors.extend(x for x in initial.values() if isinstance(x, Tensor))
    for parts in (evidence.observed, evidence.padding):
        for pair in parts.values():
            tensors.extend(pair)
    try:
        return {x.untyped_storage()._cdata for x in tensors}
    except (NotImplementedError, RuntimeError):
        return {storage for x in tensors if (storage := _storage(x)) is not None}


def separate(results: Iterable[Tensor], taken: set[int | None], raw: Collection[bool]) -> list[Tensor]:
    """The results, copied where their memory is taken, is shared inside (expanded axes), or may belong to a
    factor.

    Args:
        results: tensors to be handed out.
        taken: the memory of other tensors; the memory of the results is added.
        raw: for each result, may it be a message just as a factor returned it?
    """
    separated: list[Tensor] = []
    # a compiled program has no addresses to compare; there a copy costs no pass of its own
    comparable = not torch.compiler.is_compiling()
    for x, as_returned in zip(results, raw, strict=True):
        key = _storage(x) if comparable else None
        if key is None or key in taken or as_returned or _overlaps_itself(x):
            x = _copy(x)
            key = None if key is None else _storage(x)
        if key is not None:
            taken.add(key)
        separated.append(x)
    return separated


def separate_sum(t: Tensor, raw: bool) -> Tensor:
    """A sum of messages to be handed out, copied where several entries lie in one place.

    Args:
        t: the sum; that of several messages has memory of its own.
        raw: may it be one message, just as a factor returned it? It is copied as well.
    """
    return _copy(t) if raw or _overlaps_itself(t) else t


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _overlaps_itself(x: Tensor) -> bool:
    """Do several entries lie in one place, as after expand()?"""
    if x.is_contiguous():
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True))


def _storage(x: Tensor) -> int | None:
    """Identifies the memory of a tensor; None for those that have none of their own, as under vmap."""
    try:
        return x.untyped_storage()._cdata  # type: ignore[no-any-return]
    except (NotImplementedError, RuntimeError):
        return None
