"""Attention masks in the layouts that the kernels need, cached per device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.sparse import csgraph
from torch import Tensor

from ...errors import ObservationError
from ...graph.adjacency import Adjacency
from ...plain import planned
from .measure import MeasuredKernels
from .sparse import PairMatrix, max_batch_copies, pairs_of
from .terms import Term, terms_of

MaskLayout = TypeVar("MaskLayout")


class AttentionMask:
    """Attention mask over the nodes of a graph.

    Args:
        adjacency: adjacency of the graph; node i attends to the columns of row i.

    Attributes:
        measured: fastest kernel for each problem size, see ``unn.ops.attention.measure``.
    """

    def __init__(self, adjacency: Adjacency) -> None:
        self.adjacency = adjacency
        self.measured = MeasuredKernels()
        self._on_device: dict[tuple[str, torch.device], Any] = {}

    @classmethod
    def of(cls, matrix: Tensor) -> AttentionMask:
        """Make a mask from a boolean matrix.

        Args:
            matrix: shape ``(nodes, nodes)``, boolean; entry (i, j) is True if node i attends to
                node j. Rows may be empty.

        Raises:
            ObservationError: if the matrix is not a square boolean tensor.
        """
        if (
            not isinstance(matrix, Tensor)
            or matrix.ndim != 2
            or matrix.shape[0] != matrix.shape[1]
            or matrix.dtype != torch.bool
        ):
            is_tensor = isinstance(matrix, Tensor)
            got = f"{tuple(matrix.shape)} and {matrix.dtype}" if is_tensor else type(matrix).__name__
            raise ObservationError(f"attention: a mask needs shape (nodes, nodes) and dtype bool, got {got}.")
        rows, columns = matrix.cpu().numpy().nonzero()
        return cls(Adjacency(rows.astype(np.int64), columns.astype(np.int64), {"node": (len(matrix),)}))

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.adjacency.count

    @property
    def entries(self) -> int:
        """Number of pairs (query, key) in the mask."""
        return len(self.adjacency.rows)

    @cached_property
    def digest(self) -> str:
        """Checksum of the pairs and of the patterns of the declaration that cover them."""
        terms = [f"{type(term).__name__} {term.pairs}" for term in self.terms(torch.device("cpu"))]
        digest = hashlib.sha256(f"{self.count} {terms}".encode())
        for pairs in (self.adjacency.rows, self.adjacency.columns):
            digest.update(np.ascontiguousarray(pairs, dtype="<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def widest(self) -> int:
        """Largest number of neighbours of a node."""
        return int(np.bincount(self.adjacency.rows, minlength=1).max())

    @cached_property
    def has_empty_rows(self) -> bool:
        """True if a node attends to no node."""
        counts = planned(lambda: np.bincount(self.adjacency.rows, minlength=self.count))
        return bool((counts == 0).any())

    def dense(self, device: torch.device) -> Tensor:
        """Dense matrix, shape ``(nodes, nodes)``, boolean."""
        return self._cached("dense", device, lambda: self.adjacency.dense().to(device))

    def neighbours(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Neighbours of each node, padded, shape ``(nodes, widest)``, and the boolean mask of the padding."""

        def make() -> tuple[Tensor, Tensor]:
            packed, padding = self._packed()
            return packed.to(device), padding.to(device)

        return self._cached("neighbours", device, make)

    def terms(self, device: torch.device) -> list[Term]:
        """Disjoint dense terms that cover all pairs."""

        def make() -> list[Term]:
            return [term.to(device) for term in terms_of(self.adjacency)]

        return self._cached("terms", device, make)

    def pairs(self, copies: int, device: torch.device) -> list[PairMatrix]:
        """Block-diagonal sparse matrices that together cover ``copies`` copies of the graph."""

        def make() -> PairMatrix:
            return pairs_of(self.adjacency, max_batch_copies(self.adjacency), device)

        full = self._cached("pairs", device, make)
        rest = copies % full.copies
        return [full] * (copies // full.copies) + ([full.first(rest)] if rest else [])

    def order(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Reverse Cuthill-McKee order, in which neighbours are close, and its inverse, shape ``(nodes,)``."""

        def make() -> tuple[Tensor, Tensor]:
            if not self.count:
                return torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(
                    0, dtype=torch.int64, device=device
                )
            # the matrix need not be symmetric
            order = torch.from_numpy(
                csgraph.reverse_cuthill_mckee(self.adjacency.matrix.tocsr(), symmetric_mode=False).astype(
                    np.int64
                )
            )
            return order.to(device), order.argsort().to(device)

        return self._cached("order", device, make)

    def cached(self, name: str, device: torch.device, make: Callable[[], MaskLayout]) -> MaskLayout:
        """A kernel's own layout of the mask, cached per device."""
        return self._cached(f"kernel {name}", device, make)

    def _packed(self) -> tuple[Tensor, Tensor]:
        counts = np.bincount(self.adjacency.rows, minlength=self.count)
        position = np.arange(self.entries) - np.repeat(np.cumsum(counts) - counts, counts)
        packed = np.zeros((self.count, self.widest), dtype=np.int64)
        packed[self.adjacency.rows, position] = self.adjacency.columns
        return torch.from_numpy(packed), torch.from_numpy(np.arange(self.widest) >= counts[:, None])

    def _cached(self, name: str, device: torch.device, make: Callable[[], MaskLayout]) -> MaskLayout:
        if (name, device) not in self._on_device:
            self._on_device[name, device] = planned(make)
        layout: MaskLayout = self._on_device[name, device]
        return layout

    def __repr__(self) -> str:
        return f"AttentionMask({self.count} nodes, {self.entries} entries, at most {self.widest} in a row)"
