"""Two-dimensional convolution between an image-like and a feature-like variable."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unn import SizeRule
from unn.errors import DeclarationError, is_whole, whole_number
from unn.graph.arrays import Array, Reference, Variable
from unn.graph.factor import SharedMessages, Values
from unn.graph.interactions import Relation, Shapes, listed_relation, node_of
from unn.graph.sizes import LetterSizes

from . import subpixel

Pair = int | tuple[int, int]


class Conv2d(SharedMessages):
    """E = -<output, conv2d(input, weight)> (undirected-network paper, eq. 10).

    The message to the output is the cross-correlation, that to the input its exact adjoint, for any stride,
    padding, dilation and groups. Rows and columns of the input outside all windows receive 0.

    Args:
        output: variable with axes channel, row, column; or a reference with three letters.
        weight: parameter or constant with axes output channel, input channel / groups, kernel row, kernel
            column.
        input: variable with axes channel, row, column.
        stride, padding, dilation: one number or (row, column).
        groups: number of separate blocks of channels.
        name: unique in the graph.

    Raises:
        DeclarationError: for arrays with other axes, or numbers out of range.
    """

    multilinear = True
    fresh_messages = True

    def __init__(
        self,
        output: Variable | Reference,
        weight: Array | Reference,
        input: Variable | Reference,
        *,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        name: str | None = None,
    ) -> None:
        references = (
            _whole(output, "o i j", "output"),
            _whole(weight, "o e u v", "weight"),
            _whole(input, "d a b", "input"),
        )
        super().__init__(*references, name=name)
        for role, reference in (("output", references[0]), ("input", references[2])):
            if not isinstance(reference.array, Variable):
                raise DeclarationError(
                    f"factor {self.name!r}: the {role} must be a variable, got {reference.array.kind} "
                    f"{reference.array.name!r}."
                )
        if isinstance(references[1].array, Variable):
            raise DeclarationError(
                f"factor {self.name!r}: the weight must be a parameter or a constant, got variable "
                f"{references[1].array.name!r}."
            )
        if references[0].array is references[2].array:
            raise DeclarationError(
                f"factor {self.name!r}: input and output are the same variable {references[0].array.name!r}; "
                "use two."
            )
        self.output, self.weight, self.input = (reference.array.name for reference in references)
        self.stride = _pair(self.name, "stride", stride, 1)
        self.padding = _pair(self.name, "padding", padding, 0)
        self.dilation = _pair(self.name, "dilation", dilation, 1)
        self.groups = groups
        whole_number(f"factor {self.name!r}: groups", groups, 1)

    def energy(self, values: Values) -> Tensor:
        # the convolution is smaller than its transpose
        return -(values[self.output] * self._convolve(values)).flatten(1).sum(1)

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        if target == self.output:
            return self._convolve(values)
        if shape is None:
            shape = tuple(values[target].shape[1:])
        return self._transpose(values[self.output], self._weight(values), shape)

    def affine_in(self, target: str) -> bool:
        return True

    def degree(self, names: Collection[str]) -> int:
        return (self.output in names) + (self.input in names)

    def size_rules(self) -> list[SizeRule]:
        return [
            SizeRule(("a", "u", "i"), partial(self._spatial_rule, 0)),
            SizeRule(("b", "v", "j"), partial(self._spatial_rule, 1)),
            SizeRule(("d", "e"), self._group_rule),
            SizeRule(("o",), self._filter_rule),
        ]

    def interactions(self, shapes: Shapes) -> list[Relation]:
        channels, rows, columns = shapes[self.output]
        wide, tall, across = shapes[self.input]
        inner = wide // self.groups
        o, i, j, e, u, v = np.indices((channels, rows, columns, inner, *shapes[self.weight][2:])).reshape(
            6, -1
        )
        d = o // max(1, channels // self.groups) * inner + e
        a = i * self.stride[0] - self.padding[0] + u * self.dilation[0]
        b = j * self.stride[1] - self.padding[1] + v * self.dilation[1]
        inside = (a >= 0) & (a < tall) & (b >= 0) & (b < across)
        pairs = node_of(self.references[0], (o, i, j), shapes), node_of(self.references[2], (d, a, b), shapes)
        return [listed_relation(self.output, pairs[0][inside], self.input, pairs[1][inside])]

    def formula(self) -> str:
        options = [
            f"{word}={value}"
            for word, value, usual in (
                ("stride", self.stride, (1, 1)),
                ("padding", self.padding, (0, 0)),
                ("dilation", self.dilation, (1, 1)),
                ("groups", self.groups, 1),
            )
            if value != usual
        ]
        return f"-<{self.output}, conv2d({', '.join([self.input, self.weight, *options])})>"

    def _convolve(self, values: Values) -> Tensor:
        x, weight = values[self.input], self._weight(values)
        if self._coarse(weight):
            return subpixel.convolve(x, weight, self.stride[0], self.padding)
        return F.conv2d(
            x, _channels_last(weight), None, self.stride, self.padding, self.dilation, self.groups
        )

    def _transpose(self, h: Tensor, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self._coarse(weight):
            return subpixel.transpose(h, weight, self.stride[0], self.padding, (shape[1], shape[2]))
        missing = [
            shape[1 + k]
            + 2 * self.padding[k]
            - self.dilation[k] * (weight.shape[2 + k] - 1)
            - 1
            - (h.shape[2 + k] - 1) * self.stride[k]
            for k in (0, 1)
        ]
        return F.conv_transpose2d(
            h, _channels_last(weight), None, self.stride, self.padding, missing, self.groups, self.dilation
        )

    def _weight(self, values: Values) -> Tensor:
        weight = values[self.weight]
        if weight.ndim != 4:
            raise DeclarationError(
                f"factor {self.name!r}: the weight {self.weight!r} has shape {tuple(weight.shape)}; it "
                "cannot have a batch axis."
            )
        return weight

    def _coarse(self, weight: Tensor) -> bool:
        """Whether the sub-pixel form is faster: few input channels, equal strides above 1, and a CPU."""
        return (
            weight.shape[1] <= subpixel.FEW_CHANNELS
            and self.stride[0] == self.stride[1] > 1
            and self.dilation == (1, 1)
            and self.groups == 1
            and weight.device.type == "cpu"
        )

    def _spatial_rule(self, k: int, known: LetterSizes) -> LetterSizes:
        image, kernel, feature = ("a", "u", "i") if k == 0 else ("b", "v", "j")
        stride, padding, dilation = self.stride[k], self.padding[k], self.dilation[k]
        if kernel not in known:
            return {}
        reach = dilation * (known[kernel] - 1) + 1
        if image in known:
            room = known[image] + 2 * padding - reach
            if room < 0:
                raise DeclarationError(
                    f"an input of size {known[image]} with padding {padding} is smaller than the kernel's "
                    f"reach of {reach}; use a larger image, a smaller kernel or more padding"
                )
            return {feature: room // stride + 1}
        if feature in known and stride == 1:
            size = known[feature] - 1 + reach - 2 * padding
            if size < 1:
                raise DeclarationError(
                    f"an output of size {known[feature]} with padding {padding} and a kernel's reach of "
                    f"{reach} has no input"
                )
            return {image: size}
        return {}

    def _filter_rule(self, known: LetterSizes) -> LetterSizes:
        if known.get("o", 0) % self.groups:
            raise DeclarationError(f"{known['o']} output channels cannot be split into {self.groups} groups")
        return {}

    def _group_rule(self, known: LetterSizes) -> LetterSizes:
        if "d" in known and known["d"] % self.groups:
            raise DeclarationError(f"{known['d']} input channels cannot be split into {self.groups} groups")
        if "d" in known:
            return {"e": known["d"] // self.groups}
        return {"d": known["e"] * self.groups} if "e" in known else {}


def _channels_last(weight: Tensor) -> Tensor:
    """Put channels last on a CPU, where float32 kernels are then fastest; the result has the weight's
    layout."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        return weight.contiguous(memory_format=torch.channels_last)
    return weight


def _whole(array: Array | Reference, pattern: str, role: str) -> Reference:
    """Reference an array by the letters of this factor; a user's reference must name each axis once."""
    if isinstance(array, Reference):
        if not array.pattern.plain:
            raise DeclarationError(
                f"Conv2d takes whole arrays, got {array} as its {role}; pass the array, or one letter for "
                "each axis."
            )
        array = array.array
    if not isinstance(array, Array):
        raise DeclarationError(f"Conv2d: the {role} must be a declared array, got {array!r}.")
    if len(array.axes) != len(pattern.split()):
        wanted = (
            "output channel, input channel, kernel row, kernel column"
            if role == "weight"
            else "channel, row, column"
        )
        raise DeclarationError(
            f"Conv2d: the {role} {array.kind} {array.name!r} has {len(array.axes)} axes "
            f"({' '.join(array.axes)}), but needs {len(pattern.split())}: {wanted}."
        )
    return array[pattern]


def _pair(factor: str, word: str, value: Pair, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or not all(is_whole(n, least) for n in pair):
        raise DeclarationError(
            f"factor {factor!r}: {word} must be one whole number or two, each at least {least}, got "
            f"{value!r}."
        )
    return pair[0], pair[1]
