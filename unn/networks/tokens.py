"""Token layout of a graph at given sizes: one token per node, one row of numbers per sample."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..cache import BoundedCache
from ..errors import DeclarationError, ObservationError, suggest
from ..graph.adjacency import adjacency
from ..graph.declaration import Declaration
from ..graph.dynamic import check_mapping, check_sizes, dynamic_sizes, shapes_of
from ..graph.partial import Partial
from ..graph.symmetries import Symmetry, candidates, symmetries
from ..ops.attention import AttentionMask
from ..plain import planned
from ..regularizers import BinaryEntropy, Counts, Elementwise, Proportions
from ..regularizers.base import inside_interval, tolerance
from ..regularizers.simplex import is_categorical

Kind = Literal["real", "binary", "category"]
Structure = Literal["graph", "dense", "directed", "random"]
STRUCTURES = ("graph", "dense", "directed", "random")
MOST_SIZES = 64
"""Number of sizes of a graph whose frames, with their attention masks, are cached."""
Given = Mapping[str, Tensor | Partial]


@dataclass(frozen=True)
class Slot:
    """Layout of one variable: the range of its nodes and of its numbers.

    Attributes:
        name: name of the variable.
        kind: "real", "binary" (0 or 1, diffused as two options) or "category" (one-hot along the feature
            axis).
        shape: shape of its values without the batch axis.
        node_shape: sizes of the node axes, the first axes of ``shape``.
        channels: numbers per node.
        nodes: range of its nodes in the tokens.
        numbers: range of its numbers in a row.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    node_shape: tuple[int, ...]
    channels: int
    nodes: slice
    numbers: slice


class Rows:
    """Values of some variables of a graph at given sizes as rows of numbers.

    Args:
        graph: declaration of the graph.
        sizes: sizes of the axes without a static size.
        variables: names of the variables; all by default.

    Attributes:
        sizes: sizes as given.
        slots: layout of each variable, by name.

    Raises:
        DeclarationError: for variables without nodes, or sizes that are missing or contradict the
            declaration.
    """

    def __init__(
        self, graph: Declaration, sizes: Mapping[str, int], variables: Collection[str] | None = None
    ) -> None:
        self.graph = graph
        self.sizes = dict(sizes)
        self.slots = _slots(graph, self.sizes, graph.variables if variables is None else variables)
        if not self.nodes:
            raise DeclarationError(
                f"graph {graph.name!r} has no nodes at sizes {self.sizes or '(static)'}, so there is nothing "
                "to sample."
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(slot.nodes.stop - slot.nodes.start for slot in self.slots.values())

    @property
    def numbers(self) -> int:
        """Number of numbers per sample."""
        return sum(slot.numbers.stop - slot.numbers.start for slot in self.slots.values())

    @cached_property
    def node_of_number(self) -> Tensor:
        """Node of each number, shape ``(numbers,)``."""

        def make() -> Tensor:
            return torch.cat(
                [
                    torch.arange(s.nodes.start, s.nodes.stop).repeat_interleave(s.channels)
                    for s in self.slots.values()
                ]
            )

        return planned(make)

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Convert values of all variables to rows of numbers, shape ``(batch, numbers)``.

        Args:
            values: values by variable, shape ``(batch, *axes)``; one-hot along the feature axis for
                categories, 0 or 1 for binary variables.

        Raises:
            ObservationError: for missing or unknown variables, wrong shapes, NaN, or values that do
                not fit their kind.
        """
        self._check_names(values)
        missing = [name for name in self.slots if name not in values]
        if missing:
            raise ObservationError(
                f"samples of graph {self.graph.name!r} need values of all variables; missing: "
                f"{', '.join(missing)}."
            )
        for name, value in values.items():
            self._check_shape(self.slots[name], value)
        batches = {len(x) for x in values.values()}
        if len(batches) > 1:
            raise ObservationError(
                f"values of graph {self.graph.name!r} differ in their batch sizes: {sorted(batches)}."
            )
        return torch.cat([self._row(slot, values[name]) for name, slot in self.slots.items()], 1)

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Convert rows of numbers to values by variable; discrete values are the argmax over their options.

        Args:
            rows: rows of numbers, shape ``(batch, numbers)``.
        """
        values = {}
        for name, slot in self.slots.items():
            x = rows[:, slot.numbers].unflatten(1, (-1, slot.channels))
            if slot.kind == "binary":
                x = x.argmax(-1).to(rows.dtype)
            elif slot.kind == "category":
                x = torch.nn.functional.one_hot(x.argmax(-1), slot.channels).to(rows.dtype)
            values[name] = x.reshape(len(rows), *slot.shape)
        return values

    def expected(self, rows: Tensor) -> dict[str, Tensor]:
        """Convert probabilities of the options of discrete variables to means by variable.

        Args:
            rows: probabilities, shape ``(batch, numbers)``; numbers of continuous variables are their means.

        Returns:
            Means, shape ``(batch, *axes)``; those of binary variables are probabilities of 1.
        """
        values = {}
        for name, slot in self.slots.items():
            x = rows[:, slot.numbers].unflatten(1, (-1, slot.channels))
            x = x[..., 1] if slot.kind == "binary" else x
            values[name] = x.reshape(len(rows), *slot.shape)
        return values

    def observation(self, given: Given, batch: int) -> tuple[Tensor, Tensor]:
        """Convert evidence to rows of numbers and a mask of observed nodes.

        Args:
            given: evidence by variable, complete, or partial with a mask over nodes or entries; a
                batch axis of 1 is repeated.
            batch: number of rows.

        Returns:
            Rows, 0 where unobserved, shape ``(batch, numbers)``, and the mask, shape ``(batch, nodes)``.

        Raises:
            ObservationError: for unknown variables, wrong shapes, NaN, values that do not fit their
                kind, or a partially observed node.
        """
        self._check_names(given)
        rows = torch.zeros(batch, self.numbers)
        observed = torch.zeros(batch, self.nodes, dtype=torch.bool)
        for name, given_value in given.items():
            slot = self.slots[name]
            if isinstance(given_value, Partial):
                value, mask = given_value.value, given_value.mask
            else:
                value, mask = given_value, None
            self._check_shape(slot, value)
            if mask is None:
                nodes = torch.ones(1, *slot.node_shape, dtype=torch.bool)
            else:
                nodes = self._node_mask(slot, mask, value)
            entries = nodes.reshape(*nodes.shape, *(1,) * (len(slot.shape) - len(slot.node_shape)))
            # unobserved entries may hold anything, even NaN
            zero = torch.zeros((), dtype=value.dtype, device=value.device)
            value = torch.where(entries.to(value.device), value, zero)
            numbers = self._row(slot, value, nodes)
            for x in (numbers, nodes):
                if len(x) not in (1, batch):
                    raise ObservationError(
                        f"variable {name!r}: {len(x)} batch elements are given, but {batch} are to be "
                        "sampled."
                    )
            expanded = nodes.reshape(len(nodes), -1).expand(batch, -1)
            observed[:, slot.nodes] = expanded
            if not numbers.is_floating_point() or rows.dtype != numbers.dtype:
                rows = rows.to(torch.promote_types(rows.dtype, numbers.dtype))
            rows[:, slot.numbers] = torch.where(expanded.repeat_interleave(slot.channels, 1), numbers, 0)
        return rows, observed

    def observed_nodes(self, observed: Mapping[str, Tensor], batch: int) -> Tensor:
        """Mask of observed nodes, boolean, shape ``(batch, nodes)``, on the CPU.

        Args:
            observed: mask by variable, boolean, shape ``(batch, *node axes)``, or 1 for any of these.
            batch: batch size.

        Raises:
            ObservationError: for anything but a mapping, an unknown variable, or a mask that does not fit it.
        """
        check_mapping("observed", observed)
        self._check_names(observed)
        nodes = torch.zeros(batch, self.nodes, dtype=torch.bool)
        for name, mask in observed.items():
            slot = self.slots[name]
            full = (batch, *slot.node_shape)
            fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim == len(full)
            if not fits or any(size not in (1, own) for size, own in zip(mask.shape, full, strict=True)):
                is_tensor = isinstance(mask, Tensor)
                got = f"shape {tuple(mask.shape)} and {mask.dtype}" if is_tensor else type(mask).__name__
                raise ObservationError(
                    f"variable {name!r}: observed nodes need dtype bool and shape {full} (or 1 for axes), "
                    f"got {got}."
                )
            nodes[:, slot.nodes] = mask.expand(full).reshape(batch, -1).cpu()
        return nodes

    def _check_names(self, values: Mapping[str, object]) -> None:
        for name in values:
            if name not in self.slots:
                raise ObservationError(
                    f"graph {self.graph.name!r} has no variable {name!r}.{suggest(name, self.slots)}"
                )

    def _row(self, slot: Slot, value: Tensor, observed: Tensor | None = None) -> Tensor:
        """Numbers of one variable, shape ``(batch, nodes * channels)``; checks observed nodes."""
        name = slot.name
        self._check_shape(slot, value)
        if value.is_complex():
            raise ObservationError(f"variable {name!r} needs real numbers, got complex ones.")
        x = value if value.is_floating_point() else _floating(value)
        if not bool(x.isfinite().all()):
            raise ObservationError(f"variable {name!r}: values have NaN or infinite entries.")
        if slot.kind == "binary":
            if not bool(((x == 0) | (x == 1)).all()):
                raise ObservationError(f"variable {name!r} is binary; its values must be 0 or 1.")
            return torch.stack([1 - x, x], -1).flatten(1)
        x = x.reshape(len(x), -1, slot.channels)
        here = None if observed is None else observed.reshape(len(observed), -1)
        if slot.kind == "real":
            self._check_domain(slot, x, here)
        if slot.kind == "category":
            ones = (x == 1).sum(-1) == 1
            if here is not None:
                ones = ones | ~here
            if not bool(((x == 0) | (x == 1)).all() and ones.all()):
                raise ObservationError(
                    f"variable {name!r} has {slot.channels} options; its values must be one-hot along the "
                    "last axis."
                )
        return x.flatten(1)

    def _check_domain(self, slot: Slot, x: Tensor, observed: Tensor | None) -> None:
        """Check the domain of continuous values and counts, shape ``(batch, nodes, channels)``."""
        self._check_bounds(slot, x, observed)
        regularizer = self.graph.variables[slot.name].regularizer
        if isinstance(regularizer, Elementwise):
            low, high = regularizer.interval()
            inside = regularizer.entry_contains(x, tolerance(x.dtype))
            domain = f"from {low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
            if isinstance(regularizer, Counts):
                inside = inside & (x == x.floor())
                domain = f"whole numbers {domain}"
        elif isinstance(regularizer, Proportions):
            inside = (x >= 0) & ((x.sum(-1, keepdim=True) - 1).abs() <= tolerance(x.dtype))
            domain = "positive numbers that sum to one along the last axis"
        else:
            return
        if observed is not None:
            inside = inside | ~observed[..., None]
        if not bool(inside.all()):
            wrong = f"{float(x[~inside.expand_as(x)][0]):g}"
            if isinstance(regularizer, Proportions):
                wrong = ", ".join(f"{entry:g}" for entry in x[~inside.all(-1)][0].tolist())
            raise ObservationError(
                f"variable {slot.name!r}: values are {domain}, got {wrong}; no evidence outside the support "
                "has a posterior."
            )

    def _check_bounds(self, slot: Slot, x: Tensor, observed: Tensor | None) -> None:
        """Check the bounds of entries, where a variable has them; arguments as of ``_check_domain``."""
        bounds = self.graph.variables[slot.name].bounds
        if bounds is None:
            return
        low, high = (
            torch.from_numpy(bound).to(x).expand(slot.shape).reshape(x.shape[1:]) for bound in bounds.arrays()
        )
        outside = ~inside_interval(x, low, high, tolerance(x.dtype))
        if observed is not None:
            outside = outside & observed[..., None]
        if bool(outside.any()):
            row, node, channel = outside.nonzero()[0].tolist()
            flat = torch.tensor(node * slot.channels + channel)
            place = ",".join(str(int(k)) for k in torch.unravel_index(flat, slot.shape))
            raise ObservationError(
                f"variable {slot.name!r}: entry [{place}] lies between {low[node, channel]:g} and "
                f"{high[node, channel]:g}, got {x[row, node, channel]:g}; no evidence outside the support "
                "has a posterior."
            )

    def _check_shape(self, slot: Slot, value: object) -> None:
        if (
            not isinstance(value, Tensor)
            or value.ndim != len(slot.shape) + 1
            or tuple(value.shape[1:]) != slot.shape
        ):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            expected = ", ".join(map(str, ("batch", *slot.shape)))
            raise ObservationError(f"variable {slot.name!r} needs a tensor of shape ({expected}), got {got}.")
        if not len(value):
            raise ObservationError(
                f"variable {slot.name!r}: shape {tuple(value.shape)} is an empty batch; pass at least "
                f"one example."
            )

    def _node_mask(self, slot: Slot, mask: Tensor, value: Tensor) -> Tensor:
        """Mask of the observed nodes, shape ``(batch or 1, *node axes)``."""
        full = tuple(value.shape)
        if (
            not isinstance(mask, Tensor)
            or mask.dtype != torch.bool
            or tuple(mask.shape) != full[: mask.ndim]
            or not mask.ndim
        ):
            raise ObservationError(
                f"variable {slot.name!r}: the mask of a partial observation must be boolean and have the "
                f"shape of the value, {full}, or of its first axes."
            )
        known = 1 + len(slot.node_shape)
        if mask.ndim <= known:
            return mask.reshape(*mask.shape, *(1,) * (known - mask.ndim)).expand(len(mask), *slot.node_shape)
        flat = mask.flatten(known)
        if not torch.equal(flat.all(-1), flat.any(-1)):
            raise ObservationError(
                f"variable {slot.name!r}: the features of a node must be observed together or not at all."
            )
        return flat.all(-1)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__} of graph {self.graph.name!r}: {self.nodes} nodes, {self.numbers} numbers"
            + (f", {self.sizes}" if self.sizes else "")
        )


class Frame(Rows):
    """Token layout of a graph at given sizes.

    Args:
        graph: declaration of the graph.
        sizes: sizes of the axes without a static size.

    Attributes:
        adjacency: adjacency of the nodes.

    Raises:
        DeclarationError: for a graph without nodes, or sizes that are missing or contradict the declaration.
    """

    def __init__(self, graph: Declaration, sizes: Mapping[str, int]) -> None:
        self.adjacency = adjacency(graph, sizes)
        self._masks: dict[str, AttentionMask | None] = {"graph": AttentionMask(self.adjacency), "dense": None}
        super().__init__(graph, sizes)

    def masks(self, structure: Structure) -> AttentionMask | None:
        """Attention mask of a structure; None for dense attention."""
        if structure not in self._masks:
            directed = structure == "directed"
            generator = torch.Generator().manual_seed(0)
            changed = self.adjacency.directed() if directed else self.adjacency.random(generator)
            self._masks[structure] = AttentionMask(changed)
        return self._masks[structure]

    @property
    def isolated(self) -> list[str]:
        """Names of the variables with a node that interacts with no other."""
        return [name for name, slot in self.slots.items() if self._has_isolated_node(slot)]

    @cached_property
    def symmetries(self) -> list[Symmetry]:
        """Exchangeable indices of the graph at these sizes."""
        return symmetries(self.graph, self.sizes)

    @cached_property
    def candidates(self) -> list[Symmetry]:
        """Exchangeable indices by the declared patterns, including those of size 1."""
        return candidates(self.graph, self.adjacency.shapes)

    def _has_isolated_node(self, slot: Slot) -> bool:
        degree = self.adjacency.matrix.indptr[1:] - self.adjacency.matrix.indptr[:-1]
        return bool((degree[slot.nodes] == 1).any())


class Frames:
    """Frames of a graph by sizes; the last ones used are cached.

    Args:
        graph: declaration of the graph.

    Attributes:
        kinds: kind of values of each variable.
        channels: numbers per node of each variable.

    Raises:
        DeclarationError: for a graph without variables, or with a feature axis whose size is not static.
    """

    def __init__(self, graph: Declaration) -> None:
        self.graph = graph
        self.kinds = kinds(graph)
        self.channels = _channels(graph, self.kinds)
        self._made: BoundedCache[tuple[tuple[str, int], ...], Frame] = BoundedCache(MOST_SIZES)

    def at(self, **sizes: int) -> Frame:
        """Return the frame at given sizes.

        Raises:
            DeclarationError: for sizes that are missing or contradict the declaration.
        """
        key = tuple(sorted(sizes.items()))
        is_new = key not in self._made
        frame = self._made.get_or_make(key, lambda: planned(lambda: Frame(self.graph, sizes)))
        if is_new:
            self._warn_of_isolated_nodes(frame)
        return frame

    def of(self, values: Given, sizes: Mapping[str, int]) -> Frame:
        """Return the frame at given sizes, or if none are given at those of values, shape ``(batch, *axes)``.

        Errors as for ``at``, and an ObservationError for values that are no mapping.
        """
        if not isinstance(values, Mapping):
            raise ObservationError(
                f"graph {self.graph.name!r}: values are a mapping from names to tensors such as "
                f"{{'x': x}}, got {type(values).__name__}."
            )
        return self.at(**(sizes or dynamic_sizes(self.graph, values)))

    def _warn_of_isolated_nodes(self, frame: Frame) -> None:
        isolated = frame.isolated
        if isolated and frame.nodes > 1:
            warnings.warn(
                f"graph {self.graph.name!r}: nodes of {', '.join(isolated)} interact with no other node; "
                "their samples will be independent of the rest.",
                stacklevel=3,
            )


def kinds(graph: Declaration) -> dict[str, Kind]:
    """Kind of values of each variable, determined by its regularizer."""
    kinds: dict[str, Kind] = {}
    for name, variable in graph.variables.items():
        if is_categorical(variable.regularizer, variable.axes, variable.feature_axes):
            kinds[name] = "category"
        elif isinstance(variable.regularizer, BinaryEntropy) and not variable.feature_axes:
            kinds[name] = "binary"
        else:
            kinds[name] = "real"
    return kinds


def _floating(whole: Tensor) -> Tensor:
    """Whole numbers or truth values as floating-point numbers, in single precision where it has them all."""
    wide = whole.double()
    return whole.float() if torch.equal(whole.float().double(), wide) else wide


def check_fixed_sizes(graph: Declaration, own: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Check that the sizes of a query are those of the weights.

    Args:
        graph: declaration.
        own: sizes that the weights were made for, of the axes without a static size.
        sizes: sizes of the query.

    Raises:
        DeclarationError: for another size, or an axis that the graph does not have.
    """
    check_sizes(graph, sizes)
    known = {**graph.sizes, **own}
    for axis, size in sizes.items():
        if known.get(axis, size) != size:
            raise DeclarationError(
                f"graph {graph.name!r}: these weights serve {axis}={known[axis]} alone, got {size!r}."
            )


def _channels(graph: Declaration, kinds: Mapping[str, Kind]) -> dict[str, int]:
    """Numbers per node of each variable; they must be static, because weights depend on them."""
    channels = {}
    for name, kind in kinds.items():
        variable = graph.variables[name]
        features = graph.size_table.shape(variable, graph.size_table.static)[len(variable.node_axes) :]
        if None in features:
            axis = variable.feature_axes[features.index(None)]
            raise DeclarationError(
                f"variable {name!r}: feature axis {axis!r} needs a static size, FactorGraph(..., {axis}=...)."
            )
        channels[name] = 2 if kind == "binary" else math.prod(size for size in features if size is not None)
    if not channels:
        raise DeclarationError(f"graph {graph.name!r} has no variables, so there is nothing to sample.")
    return channels


def _slots(graph: Declaration, sizes: Mapping[str, int], variables: Collection[str]) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    node = number = 0
    chosen = {name: kind for name, kind in kinds(graph).items() if name in variables}
    shapes = shapes_of(graph, sizes, chosen)
    for name, kind in chosen.items():
        shape = shapes[name]
        node_shape = shape[: len(graph.variables[name].node_axes)]
        count = torch.Size(node_shape).numel()
        channels = 2 if kind == "binary" else torch.Size(shape[len(node_shape) :]).numel()
        slots[name] = Slot(
            name,
            kind,
            shape,
            node_shape,
            channels,
            slice(node, node + count),
            slice(number, number + count * channels),
        )
        node, number = node + count, number + count * channels
    return slots
