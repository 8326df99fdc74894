"""Values perceived from continuous nodes, and the most probable ones that meet all constraints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor, nn

from ..cache import BoundedCache
from ..engine import Attempt, CanLearn, CanSolve, check_model
from ..errors import ObservationError
from ..graph.declaration import Declaration
from ..networks.by_variable import ByVariable
from ..networks.tokens import Given, Rows
from ..solver.layout import Layout
from ..solver.propagation import Known, evidence, propagate
from .attempt import ReadingSearch
from .network import Reader
from .options import PerceptionOptions
from .readings import readings
from .sensors import Sensor, refusal, sensors

_LAYOUTS = 64
"""Number of sizes of a graph whose layouts are kept."""

_AT_ONCE = 4096
"""Number of nodes that are read at a time."""


class Perception(nn.Module, CanLearn, CanSolve):
    """Networks that read discrete values from continuous nodes, and a search for values that meet the
    constraints.

    It learns from labels of any nodes: what the constraints imply from these is propagated, and a network is
    trained to read one of the values that remain possible at its nodes, so that nodes without a label are
    learned from the labels of others (weak supervision by the constraints). A query is answered by the
    readings of its nodes in order of falling probability: the first that a complete search extends to values
    that meet all constraints. As long as no search is cut off, this reading is the most probable one that is
    possible.

    Args:
        graph: declaration with continuous variables, each joined to a discrete one by a factor ``Depends``.
        options: network, number of readings and of nodes of the search.

    Raises:
        DeclarationError: for a graph without a continuous variable, with one that belongs to no discrete
            variable or to several, or without a constraint that counts.

    Attributes:
        graph: the declaration.
        readers: network of each continuous variable.
    """

    is_ranked = True

    def __init__(self, graph: Declaration, options: PerceptionOptions) -> None:
        super().__init__()
        check_model("Perception", options, PerceptionOptions, refusal(graph))
        self.graph, self.options = graph, options
        self.sensors = sensors(graph)
        self._layouts: BoundedCache[tuple[tuple[str, int], ...], Layout] = BoundedCache(_LAYOUTS)
        table = graph.size_table
        readers = {}
        for sensor in self.sensors:
            feature_shape = []
            for name in (sensor.features, sensor.value):
                variable = graph.variables[name]
                shape = table.shape(variable, table.static)[len(variable.node_axes) :]
                feature_shape.append(tuple(int(size or 0) for size in shape))
            # the one feature axis of a category, or none of a binary variable
            classes = feature_shape[1][0] if feature_shape[1] else 2
            readers[sensor.features] = Reader(feature_shape[0], classes, options)
        self.readers = ByVariable(readers)

    def __getstate__(self) -> dict[str, object]:
        # sparse matrices cannot be copied
        return {**self.__dict__, "_layouts": BoundedCache(_LAYOUTS)}

    def prepare(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Standardise the features by their mean and standard deviation.

        Raises:
            ObservationError: for values that are missing, do not fit the graph, or are not finite.
        """
        layout, features = self.layouts(sizes)
        nodes = features.flatten(layout.continuous_part(values))
        for sensor in self.sensors:
            numbers = features.slots[sensor.features].numbers
            self._reader(sensor).standardise(self._nodes(sensor, nodes[:, numbers]))

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Minus the log-probability that each node is read as one of its possible values; a scalar, the mean
        over the nodes of which some value is excluded.

        Args:
            values: examples by variable, shape ``(batch, *axes)``. A discrete node has its label, or the set
                of its possible values: 1 for several or all values of a category, 0.5 for a binary node.
            observed: not used; the networks read all continuous nodes.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values that do not fit the graph, or labels that no values of the other
                nodes agree with; names the group of the constraint.
        """
        layout, features = self.layouts(sizes)
        possible = possible_values(layout, values)
        nodes = features.flatten(layout.continuous_part(values))
        if len(nodes) != len(possible):
            raise ObservationError(
                f"values of graph {self.graph.name!r} differ in their batch sizes: {len(nodes)} of "
                f"continuous variables, {len(possible)} of others."
            )
        total = torch.zeros((), device=self._device)
        count = 0
        for sensor in self.sensors:
            slot = layout.frame.slots[sensor.value]
            own = possible[:, slot.numbers].reshape(-1, slot.channels)
            informative = ~own.all(1)
            if not bool(informative.any()):
                continue
            seen = self._nodes(sensor, nodes[:, features.slots[sensor.features].numbers])
            logits = self._reader(sensor)(seen[informative.to(seen.device)])
            excluded = ~own[informative].to(logits.device)
            right = logits.masked_fill(excluded, -math.inf).logsumexp(1)
            total = total + (logits.logsumexp(1) - right).sum()
            count += len(logits)
        if not count:
            return torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
        return total / count

    @torch.no_grad()
    def log_probabilities(self, sensor: Sensor, features: Tensor) -> Tensor:
        """Log-probabilities of the values of nodes, shape ``(nodes, values)``, on the CPU.

        Args:
            sensor: one of ``sensors``.
            features: shape ``(nodes, *feature axes)``.
        """
        reader = self._reader(sensor)
        training = reader.training
        reader.eval()
        like = next(self.parameters())
        parts = [reader(x.to(like)).log_softmax(1).cpu() for x in features.split(_AT_ONCE)]
        reader.train(training)
        return torch.cat(parts)

    def layouts(self, sizes: Mapping[str, int]) -> tuple[Layout, Rows]:
        """Candidates of the discrete variables, and rows of the continuous ones, at given sizes.

        Raises:
            DeclarationError: for sizes that are missing or contradict the declaration.
        """
        layout = self._layouts.get_or_make(tuple(sorted(sizes.items())), lambda: Layout(self.graph, sizes))
        # every continuous variable is one of the sensors', and there is at least one
        assert layout.continuous is not None
        return layout, layout.continuous

    def attempt(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        steps: int | None,
        generator: torch.Generator,
        number: int,
    ) -> Attempt:
        """Search the readings of each instance; later tries continue with less probable ones.

        Raises:
            ObservationError: for evidence that does not fit the graph.
        """
        layout, features = self.layouts(sizes)
        rows, nodes = layout.frame.observation(layout.discrete_part(given), count)
        base, _ = propagate(layout, evidence(layout, rows, nodes))
        seen, observed = features.observation(layout.continuous_part(given), count)
        scores = torch.zeros(count, layout.candidates)
        read = torch.zeros(count, layout.frame.nodes, dtype=torch.bool)
        for sensor in self.sensors:
            slot, own = layout.frame.slots[sensor.value], features.slots[sensor.features]
            here = observed[:, own.nodes]
            if bool(here.any()):
                nodes_seen = self._nodes(sensor, seen[:, own.numbers])[here.flatten().to(self._device)]
                logs = torch.zeros(*here.shape, slot.channels)
                logs[here] = self.log_probabilities(sensor, nodes_seen).to(logs)
                scores[:, slot.numbers] += logs.flatten(1)
                read[:, slot.nodes] |= here
        scores = scores.masked_fill(base.false, -math.inf)
        first = number * self.options.readings
        choices = [
            islice(_candidates(layout, scores[row], read[row]), first, first + self.options.readings)
            for row in range(count)
        ]
        return ReadingSearch(
            layout, base, choices, steps or self.options.solving_steps, self.options.unique, generator
        )

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _reader(self, sensor: Sensor) -> Reader:
        reader = self.readers[sensor.features]
        assert isinstance(reader, Reader)
        return reader

    def _nodes(self, sensor: Sensor, rows: Tensor) -> Tensor:
        """Features of all nodes, shape ``(nodes, *feature axes)``, like the parameters of the network."""
        return rows.reshape(-1, *self._reader(sensor).shape).to(next(self.parameters()))


def possible_values(layout: Layout, values: Mapping[str, Tensor]) -> Tensor:
    """Candidates that labels and constraints leave possible, boolean, shape ``(batch, candidates)``.

    Args:
        layout: candidates and groups.
        values: label or set of possible values of each discrete node, by variable, shape ``(batch, *axes)``.

    Raises:
        ObservationError: for missing variables, wrong shapes, a node without a possible value, or labels that
            contradict a constraint.
    """
    parts = []
    for name, slot in layout.frame.slots.items():
        if name not in values:
            raise ObservationError(f"samples of graph {layout.graph.name!r} need values of {name!r}.")
        x = values[name]
        if tuple(x.shape[1:]) != slot.shape:
            raise ObservationError(
                f"variable {name!r} needs a tensor of shape (batch, {', '.join(map(str, slot.shape))}), got "
                f"{tuple(x.shape)}."
            )
        if not len(x):
            raise ObservationError(f"variable {name!r}: there are no examples.")
        if slot.kind == "binary":
            x = torch.stack([1 - x, x], -1)
        parts.append(x.reshape(len(x), -1).cpu() > 0)
    if len({len(part) for part in parts}) > 1:
        batches = sorted({len(part) for part in parts})
        raise ObservationError(
            f"values of graph {layout.graph.name!r} differ in their batch sizes: {batches}."
        )
    allowed = torch.cat(parts, 1)
    known = Known(torch.zeros_like(allowed), ~allowed | layout.never)
    known, impossible = propagate(layout, known)
    if bool((impossible >= 0).any()):
        row = int((impossible >= 0).nonzero()[0, 0])
        raise ObservationError(
            f"example {row}: its labels contradict a constraint: {layout.describe(int(impossible[row]))}."
        )
    return ~known.false


def _candidates(layout: Layout, scores: Tensor, read: Tensor) -> Iterator[Tensor]:
    """Candidates of the readings of an instance in order of falling probability.

    Args:
        layout: candidates.
        scores: log-probabilities of the candidates, shape ``(candidates,)``.
        read: mask of the nodes that are read, shape ``(nodes,)``.
    """
    slots = layout.frame.slots.values()
    most = max(slot.channels for slot in slots)
    tables, firsts = [], []
    for slot in slots:
        own = read[slot.nodes]
        table = scores[slot.numbers].view(-1, slot.channels)[own]
        tables.append(torch.nn.functional.pad(table, (0, most - slot.channels), value=-math.inf))
        firsts.append(torch.arange(slot.numbers.start, slot.numbers.stop, slot.channels)[own])
    first = torch.cat(firsts)
    return (first + values for values in readings(torch.cat(tables)))
