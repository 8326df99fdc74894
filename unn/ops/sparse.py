"""Sums over sets of rows, as sparse matrices."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


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
    pointer = torch.zeros(shape[0] + 1, dtype=torch.long)
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
        ones = torch.ones(len(members), dtype=dtype)
        return torch.sparse_csr_tensor(pointer, members, ones, shape, check_invariants=False)
