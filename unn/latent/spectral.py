"""Spectral regularisation: the sum of the largest singular values of all kernels (Vahdat and Kautz, 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..no_gradients import no_gradients
from .cells import Convolution

_FIRST = 8
"""Power iterations before the first use; one more with each use."""


class SpectralNorms(nn.Module):
    """Largest singular values of the kernels of a network, by power iterations that go on from use to use.

    Args:
        network: network with weight-normalised convolutions.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for number, part in enumerate(_convolutions(network)):
            matrix = part.kernel().detach().flatten(1)
            u = torch.nn.functional.normalize(torch.randn(len(matrix)), dim=0)
            self.register_buffer(f"left{number}", _iterated(matrix, u, _FIRST))

    def forward(self, network: nn.Module) -> Tensor:
        """The sum of the largest singular values, a scalar."""
        total = torch.zeros((), device=next(network.parameters()).device)
        for number, part in enumerate(_convolutions(network)):
            matrix = part.kernel().flatten(1)
            u = getattr(self, f"left{number}")
            with no_gradients():
                u.copy_(_iterated(matrix, u, 1))
                v = torch.nn.functional.normalize(matrix.T @ u, dim=0)
            total = total + u.clone() @ matrix @ v
        return total


def _convolutions(network: nn.Module) -> list[Convolution]:
    return [part for part in network.modules() if isinstance(part, Convolution)]


def _iterated(matrix: Tensor, u: Tensor, count: int) -> Tensor:
    for _ in range(count):
        v = torch.nn.functional.normalize(matrix.T @ u, dim=0)
        u = torch.nn.functional.normalize(matrix @ v, dim=0)
    return u
