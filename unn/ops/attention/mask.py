"""Who attends to whom, in the forms that the kernels need, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.sparse import csgraph
from torch import Tensor

from ...errors import ObservationError
from ...graph.adjacency import Adjacency
from .measure import MeasuredKernels
from .sparse import Pairs, copies_at_once, pairs_of
from .terms import Term, terms_of, to_device

Form = TypeVar("Form")


class AttentionMask:
    """Who attends to whom among the nodes of a graph.

    Args:
        adjacency: of the graph; node i attends to the columns of row i.

    Attributes:
        measured: fastest kernels by size of problem, see ``unn.ops.attention.measure``.
    """

    def __init__(self, adjacency: Adjacency) -> None:
        self.adjacency = adjacency
        self.measured = MeasuredKernels()
        self._on_device: dict[tuple[str, torch.device], Any] = {}

    @classmethod
    def of(cls, matrix: Tensor) -> AttentionMask:
        """From a matrix.

        Args:
            matrix: shape ``(nodes, nodes)``, boolean; row i says to whom node i attends. Rows may be empty.

        Raises:
            ObservationError: for anything else.
        """
        if not isinstance(matrix, Tensor) or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype != torch.bool:
            found = f"{tuple(matrix.shape)} and {matrix.dtype}" if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ObservationError(f"attention: a mask needs shape (nodes, nodes) and dtype bool, got {found}.")
        rows, columns = matrix.cpu().numpy().nonzero()
        return cls(Adjacency(rows.astype(np.int64), columns.astype(np.int64), {"node": (len(matrix),)}))

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return self.adjacency.count

    @property
    def entries(self) -> int:
        """How many pairs attend."""
        return len(self.adjacency.rows)

    @cached_property
    def widest(self) -> int:
        """The largest number of neighbours of a node."""
        return int(np.bincount(self.adjacency.rows, minlength=1).max())

    @cached_property
    def has_empty_rows(self) -> bool:
        """Is there a node that attends to nobody?"""
        return bool((np.bincount(self.adjacency.rows, minlength=self.count) == 0).any())

    def dense(self, device: torch.device) -> Tensor:
        """The matrix, shape ``(nodes, nodes)``, boolean."""
        return self._kept("dense", device, lambda: self.adjacency.dense().to(device))

    def neighbours(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The neighbours of each node, shape ``(nodes, widest)``, and which of them are padding, boolean."""

        def make() -> tuple[Tensor, Tensor]:
            packed, padding = self._packed()
            return packed.to(device), padding.to(device)

        return self._kept("neighbours", device, make)

    def terms(self, device: torch.device) -> list[Term]:
        """All pairs in few dense pieces, each pair once."""
        return self._kept("terms", device, lambda: [to_device(term, device) for term in terms_of(self.adjacency)])

    def pairs(self, copies: int, device: torch.device) -> list[Pairs]:
        """All pairs of so many copies of the graph, as sparse matrices of some copies each."""
        whole = self._kept("pairs", device, lambda: pairs_of(self.adjacency, copies_at_once(self.adjacency), device))
        rest = copies % whole.copies
        return [whole] * (copies // whole.copies) + ([whole.first(rest)] if rest else [])

    def order(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """An order of the nodes in which neighbours are close, and its inverse, shape ``(nodes,)`` each (reverse Cuthill-McKee)."""

        def make() -> tuple[Tensor, Tensor]:
            if not self.count:
                return torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(0, dtype=torch.int64, device=device)
            # the matrix need not be symmetric
            order = torch.from_numpy(csgraph.reverse_cuthill_mckee(self.adjacency.matrix.tocsr(), symmetric_mode=False).astype(np.int64))
            return order.to(device), order.argsort().to(device)

        return self._kept("order", device, make)

    def kept(self, name: str, device: torch.device, make: Callable[[], Form]) -> Form:
        """A form that a kernel makes for itself, made once for each device."""
        return self._kept(f"kernel {name}", device, make)

    def _packed(self) -> tuple[Tensor, Tensor]:
        counts = np.bincount(self.adjacency.rows, minlength=self.count)
        place = np.arange(self.entries) - np.repeat(np.cumsum(counts) - counts, counts)
        packed = np.zeros((self.count, self.widest), dtype=np.int64)
        packed[self.adjacency.rows, place] = self.adjacency.columns
        return torch.from_numpy(packed), torch.from_numpy(np.arange(self.widest) >= counts[:, None])

    def _kept(self, name: str, device: torch.device, make: Callable[[], Form]) -> Form:
        if (name, device) not in self._on_device:
            self._on_device[name, device] = make()
        form: Form = self._on_device[name, device]
        return form

    def __repr__(self) -> str:
        return f"AttentionMask({self.count} nodes, {self.entries} entries, at most {self.widest} in a row)"

