"""Orders: which blocks are updated in each round, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import InferenceError


@dataclass(frozen=True, eq=False)
class Block:
    """Some nodes of a variable, updated at once while its other nodes stay.

    Args:
        name: of the variable.
        nodes: boolean, shape of the variable's node axes (of all its axes if its regularizer is elementwise
            and it has no bar).
    """

    name: str
    nodes: Tensor


Item = str | Block


class Order(ABC):
    """A rule that gives the blocks of each round."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The variables that this order updates, each once."""

    @abstractmethod
    def round(self, generator: torch.Generator | None = None) -> tuple[Item, ...]:
        """The blocks of the next round."""


@dataclass(frozen=True)
class Listed(Order):
    """The same blocks in every round."""

    items: tuple[Item, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return _names_of(self.items)

    def round(self, generator: torch.Generator | None = None) -> tuple[Item, ...]:
        return self.items


def ForwardBackward(names: Sequence[str], last: str | None = None) -> Listed:  # noqa: N802 - reads as a noun in calls
    """There and back: A, B, C, B, then A again in the next round; with ``last``: A, B, C, B, A, last.

    These are the orders of the undirected-network paper, Section 3 (H1, H2, Y, H2) and Section 4 (Q, K, V, S,
    H, S, V, K, Q, X). Without ``last`` the first block is not repeated at the end of a round, since the next
    round begins with it.
    """
    _check_names("ForwardBackward", names)
    _check_last("ForwardBackward", last)
    names = tuple(names)
    back = names[-2::-1] if last is not None else names[-2:0:-1]
    return Listed(names + back + (() if last is None else (last,)))


class RandomOrder(Order):
    """A fresh random permutation every round; ``last`` is always updated at its end.

    Args:
        names: the variables to permute.
        last: a variable updated last in each round, not permuted.
    """

    def __init__(self, names: Sequence[str], last: str | None = None) -> None:
        _check_names("RandomOrder", names)
        _check_last("RandomOrder", last)
        self._permuted = tuple(names)
        self._last = () if last is None else (last,)

    @property
    def names(self) -> tuple[str, ...]:
        return self._permuted + self._last

    def round(self, generator: torch.Generator | None = None) -> tuple[Item, ...]:
        place = "cpu" if generator is None else generator.device
        permutation = torch.randperm(len(self._permuted), generator=generator, device=place).tolist()
        return tuple(self._permuted[k] for k in permutation) + self._last

    def __repr__(self) -> str:
        return f"RandomOrder({list(self._permuted)}{f', last={self._last[0]!r}' if self._last else ''})"


class Chosen(Order):
    """Blocks of which the engine chooses how to update them: base of ``Greedy`` and ``Coloured``.

    Args:
        items: names of variables, and blocks of their nodes.

    Raises:
        InferenceError: for anything else.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        kind = type(self).__name__
        good = isinstance(items, Sequence) and not isinstance(items, str) and len(items)
        if not good or not all(isinstance(item, (str, Block)) for item in items):
            raise InferenceError(
                f"{kind} takes a list of names of variables or unn.Block(name, nodes), got {items!r:.200}."
            )
        self.items = tuple(items)

    @property
    def names(self) -> tuple[str, ...]:
        return _names_of(self.items)

    def round(self, generator: torch.Generator | None = None) -> tuple[Item, ...]:
        return self.items

    def __repr__(self) -> str:
        shown = [
            item if isinstance(item, str) else f"{item.name} ({int(item.nodes.sum())} nodes)"
            for item in self.items
        ]
        return f"{type(self).__name__}({shown})"


class Greedy(Chosen):
    """The block whose update lowers the energy most, in each batch element by itself; a round is one update.

    Every round computes the updates of all blocks to compare them. Variables without a value come first, in
    the order of the list. With ``until``, the run stops once no update would change an entry by more: where
    the best one does not, the block with the largest change is updated instead. Nutini et al. (2015) compare
    rules that choose blocks.

    Args:
        items: names of variables, and blocks of their nodes.
    """


class Coloured(Chosen):
    """Blocks that do not interact, side by side: equal to one update after another, in fewer steps.

    Blocks are coloured greedily in the order of the list, so that no two of a colour meet in a factor; a
    round updates one colour after another, with all blocks of a variable at once. A variable whose nodes
    interact is a list of blocks of its own, as in any order.

    Args:
        items: names of variables, and blocks of their nodes, each node at most once.
    """


def _names_of(items: Sequence[Item]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item if isinstance(item, str) else item.name for item in items))


def as_order(order: Order | Sequence[Item] | str) -> Order:
    """A list of names, one name, or an order, as an order.

    Raises:
        InferenceError: if it is empty or holds something else.
    """
    if isinstance(order, Order):
        return order
    if not isinstance(order, (str, Sequence)):
        raise InferenceError(
            f"order: a list of names of variables or an order such as ForwardBackward([...]), got {order!r}."
        )
    items = (order,) if isinstance(order, str) else tuple(order)
    if not items:
        raise InferenceError(
            "the order is empty; list at least one variable to update, such as order=['H', 'Y']."
        )
    for item in items:
        if not isinstance(item, (str, Block)):
            raise InferenceError(
                f"an order lists names of variables or unn.Block(name, nodes), got {item!r}."
            )
    return Listed(items)


def _check_names(kind: str, names: Sequence[str]) -> None:
    if (
        isinstance(names, str)
        or not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        raise InferenceError(f"{kind} takes a list of names of variables such as ['H', 'Y'], got {names!r}.")
    if len(set(names)) < len(names):
        raise InferenceError(f"{kind} takes each name once, got {list(names)}.")


def _check_last(kind: str, last: object) -> None:
    if last is not None and not isinstance(last, str):
        raise InferenceError(f"{kind}: last is the name of a variable, got {last!r}.")
