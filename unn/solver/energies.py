"""What the energy of a graph adds to the states of the solver: messages, and states of continuous nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..graph.arrays import Constant
from ..graph.declaration import Declaration
from ..networks.tokens import Rows
from .layout import Layout, continuous, refusal_of_groups, without_tokens
from .losses import RowLosses
from .packing import Packed, log_probabilities

_FEATURES = 3
"""Numbers about a continuous node in each step: its message, its value if it is given, and whether it is."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """A batch beside its open candidates.

    Attributes:
        true: true candidates, boolean, shape ``(batch, candidates)``.
        value: numbers of continuous nodes, 0 where they are not given, shape ``(batch, numbers)``.
        given: mask of those that are given, shape ``(batch, numbers)``.
        state: states of continuous nodes, shape ``(batch, numbers, width)``.
    """

    true: Tensor
    value: Tensor
    given: Tensor
    state: Tensor

    @classmethod
    def of(cls, true: Tensor, value: Tensor, given: Tensor, width: int) -> Surroundings:
        """The beginning: states of zero."""
        return cls(true, value, given, value.new_zeros(*value.shape, width))

    def select(self, rows: Tensor) -> Surroundings:
        """Some rows of the batch, by indices or a mask."""
        return Surroundings(self.true[rows], self.value[rows], self.given[rows], self.state[rows])

    def to(self, like: Tensor) -> Surroundings:
        """The same on the device and in the type of another tensor."""
        return Surroundings(
            self.true.to(like.device), self.value.to(like), self.given.to(like.device), self.state.to(like)
        )


class EnergyNetwork(nn.Module):
    """Maps the messages of the energy factors to inputs of the candidates, and updates continuous nodes.

    Messages are taken at the present estimates: the probabilities of open candidates, given values, and the
    means of continuous nodes that are not given. Weights are shared by all nodes, and the messages commute
    with the symmetries of the energy. Numbers of each continuous variable, and the messages to each discrete
    one, are in units of their standard deviations in training.

    Args:
        graph: declaration with energy factors.
        width: numbers in the state of a candidate.
    """

    def __init__(self, graph: Declaration, width: int) -> None:
        super().__init__()
        self.candidate = nn.Linear(1, width, bias=False)
        names = continuous(graph)
        if names:
            self.feature = nn.Linear(_FEATURES, width)
            self.recurrent = nn.Linear(width, width)
            self.update = nn.Linear(width, 2 * width)
            self.mean = nn.Linear(width, 1)
        # with a prefix: the names of buffers must not be those of attributes
        for name in graph.variables:
            self.register_buffer(f"centre_{name}", torch.zeros(()))
            self.register_buffer(f"scale_{name}", torch.ones(()))

    @torch.no_grad()
    def standardise(self, layout: Layout, values: Mapping[str, Tensor]) -> None:
        """Set the units of continuous variables, and of messages to discrete ones, from examples.

        What does not vary keeps its unit.

        Args:
            layout: candidates of the graph.
            values: examples by variable, shape ``(examples, *axes)``.
        """
        truth = layout.frame.flatten(layout.discrete_part(values))
        messages = _messages(layout.graph, layout.frame, values, truth)
        samples = {name: messages[:, slot.numbers] for name, slot in layout.frame.slots.items()}
        samples |= layout.continuous_part(values)
        for name, x in samples.items():
            slot = layout.frame.slots.get(name)
            # the messages to the two values of a binary node are opposite, and those to all options sum to 0
            x = x[:, 1::2].double() if slot is not None and slot.kind == "binary" else x.double()
            deviation = x.std(correction=0)
            if deviation > 0:
                getattr(self, f"centre_{name}").copy_(x.mean())
                getattr(self, f"scale_{name}").copy_(deviation)

    def is_standardised(self) -> bool:
        """Whether a centre or a scale has been set."""
        return any(bool(x != name.startswith("scale_")) for name, x in self.named_buffers())

    def units(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Centre and scale of each number, shape ``(numbers,)`` each: of the values of continuous variables,
        and of the messages to discrete ones."""
        parts = []
        for name, slot in rows.slots.items():
            centre, scale = getattr(self, f"centre_{name}"), getattr(self, f"scale_{name}")
            numbers = slot.numbers.stop - slot.numbers.start
            if slot.kind == "binary":
                signs = centre.new_tensor([-1.0, 1.0]).repeat(numbers // 2)
                parts.append(torch.stack([centre * signs, scale.expand(numbers)]))
            else:
                parts.append(torch.stack([centre.expand(numbers), scale.expand(numbers)]))
        centre, scale = torch.cat(parts, 1)
        return centre, scale

    def means(self, layout: Layout, beside: Surroundings) -> Tensor:
        """Given values, and estimates of the others, shape ``(batch, numbers)``."""
        if layout.continuous is None:
            return beside.value
        centre, scale = self.units(layout.continuous)
        return torch.where(beside.given, beside.value, centre + scale * self.mean(beside.state)[..., 0])

    def forward(
        self, layout: Layout, packed: Packed, scores: Tensor, beside: Surroundings
    ) -> tuple[Tensor, Surroundings]:
        """Inputs of the packed candidates, shape ``(candidates, width)``, and the updated surroundings.

        Args:
            layout: candidates of the graph.
            packed: open candidates.
            scores: logits of the open candidates, shape ``(candidates,)``.
            beside: the rest of the batch.
        """
        probabilities = beside.true.to(scores)
        probabilities = probabilities.index_put(
            (packed.row, packed.candidate), log_probabilities(packed, scores).exp()
        )
        values = layout.frame.expected(probabilities)
        rows = layout.continuous
        if rows is not None:
            values |= rows.unflatten(self.means(layout, beside))
        centre, scale = self.units(layout.frame)
        messages = (_messages(layout.graph, layout.frame, values, probabilities) - centre) / scale
        inputs = self.candidate(messages.asinh()[packed.row, packed.candidate, None])
        if rows is None or bool(beside.given.all()):
            return inputs, beside
        centre, scale = self.units(rows)
        message = _messages(layout.graph, rows, values, beside.value) * scale
        value = torch.where(beside.given, (beside.value - centre) / scale, 0)
        features = torch.stack([message.asinh(), value, beside.given.to(value)], -1)
        sent = (self.recurrent(beside.state) + self.feature(features)).relu()
        gate, new = self.update(sent).chunk(2, -1)
        state = beside.state + gate.sigmoid() * (new.tanh() - beside.state)
        return inputs, replace(beside, state=state)

    def losses(self, layout: Layout, beside: Surroundings, truth: Tensor) -> RowLosses:
        """Squared errors of the continuous nodes that are not given, in units of their variances.

        Args:
            layout: candidates of the graph.
            beside: the rest of the batch.
            truth: numbers of the continuous nodes, shape ``(batch, numbers)``.
        """
        unknown = ~beside.given
        if layout.continuous is None or not bool(unknown.any()):
            return RowLosses(truth.new_zeros(len(truth)), truth.new_zeros(len(truth)))
        _, scale = self.units(layout.continuous)
        errors = ((self.means(layout, beside) - truth) / scale)[unknown].square()
        return RowLosses.of(errors, unknown.nonzero()[:, 0], len(truth))


def _messages(graph: Declaration, rows: Rows, values: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Minus the gradient of the energy of the factors, by number, shape ``(batch, numbers)``; that of a
    discrete node relative to the mean over its options."""
    arrays = {**graph.fixed_values(), **values}
    messages = torch.zeros_like(like)
    for name, slot in rows.slots.items():
        total: Tensor | None = None
        for factor in graph.energy_factors:
            if name in factor.variables:
                message = factor.message(name, arrays, slot.shape)
                total = message if total is None else total + message
        if total is None:
            continue
        x = total.to(like).expand(len(like), *slot.shape).reshape(len(like), -1)
        if slot.kind == "binary":
            x = torch.stack([-x, x], -1).flatten(1) / 2
        elif slot.kind == "category":
            x = x.unflatten(1, (-1, slot.channels))
            x = (x - x.mean(-1, keepdim=True)).flatten(1)
        messages[:, slot.numbers] = x
    return messages


def refusal(graph: Declaration) -> str:
    """Why the solver cannot take a graph, in one sentence that names the variable or constraint; empty if it
    can."""
    names = continuous(graph)
    if len(names) == len(graph.variables):
        return "no variable is categorical or binary, so there are no candidate values"
    with_energy = {name for factor in graph.energy_factors for name in factor.variables}
    for name in names:
        if name not in with_energy:
            return (
                f"variable {name!r} is continuous and in no factor with an energy, by which the solver could "
                "read it; the engine perception reads values from continuous nodes"
            )
    for factor in graph.energy_factors:
        for name in factor.operands:
            array = graph[name]
            if isinstance(array, Constant) and name not in graph.fixed_values():
                return f"constant {name!r} of factor {factor.name!r} has no declared value"
    return without_tokens(graph) or refusal_of_groups(graph)
