"""Networks that read the value of a node from its features."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .options import PerceptionOptions

_STAGES = 3
"""Largest number of stages of convolutions, each of which halves the image."""

_SMALLEST = 4
"""Smallest number of rows and columns of an image that is halved."""


class Reader(nn.Module):
    """Logits of the values of a node from its features.

    Features with two axes or more are images, with rows and columns last and channels before them: stages of
    two convolutions and a maximum over 2 x 2 pixels precede the hidden layer. Others are vectors, with two
    hidden layers.

    Args:
        shape: sizes of the feature axes.
        classes: number of values.
        options: filters, hidden units, dropout and shift.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], classes: int, options: PerceptionOptions) -> None:
        super().__init__()
        self.shape, self.shift = shape, options.shift
        self.register_buffer("center", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        layers: list[nn.Module] = []
        if self.reads_images:
            rows, columns = shape[-2:]
            channels, width = math.prod(shape[:-2]), options.filters
            for _ in range(_STAGES):
                if min(rows, columns) < _SMALLEST:
                    break
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
                channels, width, rows, columns = (
                    width,
                    min(2 * width, 4 * options.filters),
                    rows // 2,
                    columns // 2,
                )
            layers += [nn.Flatten(), nn.Linear(channels * rows * columns, options.hidden), nn.ReLU()]
        else:
            layers += [nn.Linear(math.prod(shape), options.hidden), nn.ReLU()]
            layers += [nn.Linear(options.hidden, options.hidden), nn.ReLU()]
        layers += [nn.Dropout(options.dropout), nn.Linear(options.hidden, classes)]
        self.layers = nn.Sequential(*layers)
        # on CPUs convolutions are faster where channels are adjacent
        self.layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def reads_images(self) -> bool:
        """Whether the features of a node are an image."""
        return len(self.shape) >= 2

    def standardise(self, features: Tensor) -> None:
        """Set the mean and the standard deviation by which features are standardised.

        Args:
            features: shape ``(nodes, *feature axes)``.
        """
        self.center.copy_(features.mean())
        self.scale.copy_(features.std().clamp(min=1e-6) if features.numel() > 1 else torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape ``(nodes, classes)``.

        Args:
            features: shape ``(nodes, *feature axes)``.
        """
        x = (features - self.center) / self.scale
        if self.reads_images:
            x = x.reshape(len(x), -1, *self.shape[-2:])
            if self.training and self.shift:
                x = shifted(x, self.shift)
            x = x.contiguous(memory_format=torch.channels_last)
        else:
            x = x.reshape(len(x), -1)
        logits: Tensor = self.layers(x)
        return logits


def shifted(images: Tensor, most: int) -> Tensor:
    """Shift every image by random whole pixels in both directions; its border is repeated.

    Args:
        images: shape ``(images, channels, rows, columns)``.
        most: largest shift.
    """
    count, _, rows, columns = images.shape
    padded = F.pad(images, (most,) * 4, mode="replicate")
    row, column = torch.randint(2 * most + 1, (2, count), device=images.device)
    row = (row[:, None] + torch.arange(rows, device=images.device))[:, :, None]
    column = (column[:, None] + torch.arange(columns, device=images.device))[:, None]
    image = torch.arange(count, device=images.device)[:, None, None]
    # the channels come last where indices are separated by a slice
    return padded[image, :, row, column].permute(0, 3, 1, 2)
