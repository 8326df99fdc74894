"""Residual cells with weight normalisation, batch normalisation and swish, and non-local blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import ChannelNorm

_SHARE = 0.1
"""Weight of the change that a cell makes."""


class Convolution(nn.Module):
    """Convolution with weight normalisation: kernel = exp(log_scale) direction / ||direction||.

    The norm is that over all inputs of an output channel (Salimans and Kingma, 2016; logarithmic scales as in
    the published code).

    Args:
        inputs, outputs: numbers of channels.
        size: side of the kernel, odd.
        stride: 1, or 2 to halve positions.
    """

    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.direction = nn.Parameter(0.05 * torch.randn(outputs, inputs, size, size))
        self.log_scale = nn.Parameter(torch.zeros(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def kernel(self) -> Tensor:
        """The kernel, shape ``(outputs, inputs, size, size)``."""
        norm = self.direction.flatten(1).norm(dim=1)
        kernel: Tensor = self.direction * (self.log_scale.exp() / norm)[:, None, None, None]
        return kernel

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, with zeros around, shape ``(batch, channels, height, width)``."""
        size = self.direction.shape[-1]
        return F.conv2d(x, self.kernel(), self.bias, self.stride, size // 2)


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation; a single number for each channel, which has no variance, is normalised by the
    running means."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == input.shape[1]:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(input)


class NonlocalBlock(nn.Module):
    """Attention between all positions with a residual gate, which starts at zero (Wang et al., 2018).

    Args:
        channels: number of channels.
        keys: channels of queries and keys.
        subsampled: whether keys and values are maxima over 2 x 2 positions.
        normalised: whether the input is normalised first, and the result convolved after another
            normalisation.
        frozen: whether the gate stays at zero.
    """

    def __init__(
        self,
        channels: int,
        keys: int,
        subsampled: bool = False,
        normalised: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.subsampled = subsampled
        self.query, self.key = Convolution(channels, keys), Convolution(channels, keys)
        self.value = Convolution(channels, channels)
        self.scale = nn.Parameter(torch.ones(()))
        self.gate = nn.Parameter(torch.zeros(()), requires_grad=not frozen)
        self.before = ChannelNorm(channels) if normalised else None
        self.after = nn.Sequential(ChannelNorm(channels), Convolution(channels, channels))
        if not normalised:
            self.after = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        """Shape as the input, ``(batch, channels, height, width)``."""
        y = x if self.before is None else self.before(x)
        query = self.query(y).flatten(2).transpose(1, 2)
        if self.subsampled:
            y = F.max_pool2d(y, 2)
        key, value = (part(y).flatten(2).transpose(1, 2) for part in (self.key, self.value))
        # the learned scale replaces 1 / sqrt(d)
        attended = F.scaled_dot_product_attention(self.scale * query, key, value, scale=1.0)
        y = x + self.gate * attended.transpose(1, 2).reshape(x.shape)
        return y if self.before is None else x + self.after(y)


class ResidualCell(nn.Module):
    """x + 0.1 F(x), with F = [batch normalisation, (non-local block), swish, convolution] twice; the output
    may have more channels, then the first ones are residual.

    Args:
        inputs, outputs: numbers of channels; at least as many outputs.
        size: side of the kernels.
        spatial: channels of the keys of non-local blocks; 0 for none.
        frozen: whether their gates stay at zero.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int = 3, spatial: int = 0, frozen: bool = False
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for channels in (inputs, outputs):
            parts.append(BatchNorm(inputs))
            if spatial:
                parts.append(NonlocalBlock(inputs, spatial, frozen=frozen))
            parts += [nn.SiLU(), Convolution(inputs, channels, size)]
        self.change = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(batch, outputs, height, width)``."""
        change: Tensor = self.change(x)
        extra = change.shape[1] - x.shape[1]
        if not extra:
            return x + _SHARE * change
        # queries and keys have no residual part
        return torch.cat([x + _SHARE * change[:, :-extra], change[:, -extra:]], 1)
