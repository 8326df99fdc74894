"""Sums over sets of rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SetSums:
    """Sums of the rows of a matrix over sets of them, which are not differentiated.

    In float32 they take less time on a CPU than products with a sparse matrix, unless x has few columns.

    Attributes:
        pointer: place of the first member of each set, and the number of members, shape ``(sets + 1,)``.
        members: rows of the sets, one set after another, shape ``(members,)``.
    """

    pointer: Tensor
    members: Tensor

    def to(self, device: torch.device) -> SetSums:
        """The same on another device."""
        return SetSums(self.pointer.to(device), self.members.to(device))

    def of(self, x: Tensor) -> Tensor:
        """The sums.

        Args:
            x: shape ``(rows, width)``.

        Returns:
            Shape ``(sets, width)``.
        """
        if x.device.type == "cpu" and x.dtype != torch.float32:
            # other types have no fast sums over bags on a CPU
            return from_pointer(self.pointer, self.members, (len(self.pointer) - 1, len(x)), x.dtype) @ x
        return F.embedding_bag(self.members, x, self.pointer, mode="sum", include_last_offset=True)


def sums(sets: Tensor, members: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Matrix whose product with rows x is the sum of x over the members of each set, in CSR layout.

    Products with such matrices are several times faster on a CPU than ``index_add``.

    Args:
        sets: set of each pair, shape ``(pairs,)``, in any order.
        members: member of each pair, shape ``(pairs,)``.
        shape: number of sets and of rows.
        dtype: type of the rows.
    """
    order = sets.argsort(stable=True)
    pointer = torch.zeros(shape[0] + 1, dtype=torch.long, device=sets.device)
    pointer[1:] = torch.bincount(sets, minlength=shape[0]).cumsum(0)
    return from_pointer(pointer, members[order], shape, dtype)


def from_pointer(pointer: Tensor, members: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The same matrix from members sorted by set, and the place of the first member of each set.

    Args:
        pointer: shape ``(sets + 1,)``.
        members: shape ``(pairs,)``.
        shape: number of sets and of rows.
        dtype: type of the rows.
    """
    with warnings.catch_warnings():
        # products of this matrix are all that is needed of the sparse layout
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        # torch 2.11 says so although the check is turned off in the call
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
        ones = torch.ones(len(members), dtype=dtype, device=members.device)
        return torch.sparse_csr_tensor(pointer, members, ones, shape, check_invariants=False)
