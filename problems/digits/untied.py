"""Baseline of Table 3: the unrolled network with untied weights and about as many parameters in total."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unn import Declaration, Partial
from unn.errors import ArgumentError, InferenceError
from unn.extending import CanInfer, CanLearn


class UntiedDigits(nn.Module, CanLearn, CanInfer):
    """Rounds of H1, H2, label as feed-forward layers without shared weights.

    Args:
        image_shape: rows and columns.
        iterations: number of rounds, each with its own weights.
        channels: channels of H1 in the tied network whose number of parameters is matched.
        dropout: dropout probability for H1 and H2 in training, one mask for all rounds as in the tied
            network.
        graph: declaration of the tied network.
    """

    def __init__(
        self,
        image_shape: tuple[int, int],
        iterations: int,
        channels: int,
        dropout: float,
        graph: Declaration | None = None,
    ) -> None:
        super().__init__()
        # the parameters of the graph are not those of this network
        object.__setattr__(self, "graph", graph)
        small = min(image_shape) < 20
        self.stride = 1 if small else 2
        kernels = (3, 3) if small else (6, 4)
        first = [(n - kernels[0]) // self.stride + 1 for n in image_shape]
        second = [(n - kernels[1]) // self.stride + 1 for n in first]
        self.dropout = dropout

        def shapes(width: int) -> dict[str, tuple[int, ...]]:
            return {
                "W1": (width, 1, kernels[0], kernels[0]),
                "b1": (width,),
                "W2": (2 * width, width, kernels[1], kernels[1]),
                "b2": (2 * width,),
                "V": (10, 2 * width, *second),
                "b": (10,),
            }

        def count(width: int) -> int:
            return sum(math.prod(shape) for shape in shapes(width).values())

        target = count(channels)
        self.width = min(range(1, channels + 1), key=lambda width: abs(iterations * count(width) - target))
        self.rounds = nn.ModuleList()
        self._layers: list[nn.ParameterDict] = []
        for _ in range(iterations):
            layer = nn.ParameterDict()
            for name, shape in shapes(self.width).items():
                bound = 1 / math.sqrt(math.prod(shape[1:]))
                layer[name] = nn.Parameter(
                    torch.empty(shape).uniform_(-bound, bound) if len(shape) > 1 else torch.zeros(shape)
                )
            self.rounds.append(layer)
            self._layers.append(layer)

    def logits(self, images: Tensor, iterations: int | None = None) -> Tensor:
        """Pre-activations of the label, shape ``(batch, 10)``.

        Raises:
            InferenceError: for a number of rounds other than in training.
        """
        if iterations not in (None, len(self.rounds)):
            raise InferenceError(
                f"the untied network has weights for {len(self.rounds)} rounds, not {iterations}."
            )
        h2: Tensor | None = None
        logits: Tensor | None = None
        y: Tensor | None = None
        masks: tuple[Tensor, Tensor] | None = None
        for layer in self._layers:
            t1 = F.conv2d(images, layer["W1"], layer["b1"], self.stride)
            if h2 is not None:
                t1 = t1 + F.conv_transpose2d(h2, layer["W2"], None, self.stride)
            if masks is None:
                t2_shape = (len(images), 2 * self.width, *layer["V"].shape[2:])
                masks = (self._mask(t1.shape, images), self._mask(t2_shape, images))
            h1 = masks[0] * t1.tanh()
            t2 = F.conv2d(h1, layer["W2"], layer["b2"], self.stride)
            if y is not None:
                t2 = t2 + torch.tensordot(y, layer["V"], 1)
            h2 = masks[1] * t2.tanh()
            logits = torch.tensordot(h2, layer["V"], ([1, 2, 3], [1, 2, 3])) + layer["b"]
            y = logits.softmax(1)
        assert logits is not None
        return logits

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Cross-entropy of the label given the image.

        Raises:
            ArgumentError: for the other direction, which the network does not have.
        """
        if "image" not in observed:
            raise ArgumentError("digits: the untied baseline has no reverse direction; set gamma to 0.")
        return F.cross_entropy(self.logits(values["image"]), values["label"].argmax(1))

    @torch.no_grad()
    def infer_values(
        self,
        given: Mapping[str, Tensor | Partial],
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Label probabilities of images.

        Raises:
            ArgumentError: if images are not given completely.
        """
        images = given.get("image")
        if not isinstance(images, Tensor):
            raise ArgumentError("digits: the untied baseline infers labels from whole images only.")
        images = images.to(next(self.parameters()).device)
        return {"image": images, "label": self.logits(images, iterations).softmax(1)}

    def _mask(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        if not self.training or not self.dropout:
            return like.new_ones(())
        keep = torch.rand(shape, dtype=like.dtype, device=like.device) >= self.dropout
        return keep.to(like.dtype) / (1 - self.dropout)
