"""Coordinate descent as a model: any variables inferred from any others, trained for several queries at
once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..engine import CanInfer, CanLearn
from ..errors import ObservationError, suggest
from ..graph.declaration import Declaration
from ..graph.partial import Partial
from ..regularizers import Regularizer, Simplex
from ..regularizers.elementwise import BinaryEntropy, SignedEntropy
from .evidence import Given
from .infer import infer
from .options import DescentOptions
from .orders import ForwardBackward, Order
from .plan import Plan
from .reach import default_order
from .relaxation import relax
from .solution import Solution
from .unrolled import Unrolled

_SMALLEST = 1e-7
"""Smallest probability in the loss of a variable whose update has no closed form."""


class DescentModel(nn.Module, CanLearn, CanInfer):
    """Coordinate descent on a graph, with the same weights for every choice of what is given.

    The loss of a query is the sum over its wanted variables of the Fenchel-Young loss of their regularizers,
    each the mean over its unobserved nodes (undirected-network paper, Section 3).

    Args:
        graph: declaration; constraints contribute energies with learned weights.
        options: rounds, order, initial values and dropout.

    Attributes:
        graph: the declaration with the energies of its constraints.
    """

    def __init__(self, graph: Declaration, options: DescentOptions) -> None:
        super().__init__()
        self.graph = with_energies(graph, options.penalty)
        self.options = options
        self._networks: dict[tuple[tuple[str, ...], ...], Unrolled] = {}

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Sum of the Fenchel-Young losses of the unobserved entries; 0 if all are observed.

        Variables without values are latent: neither given nor wanted.

        Args:
            values: examples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: not used, because values have all sizes.

        Raises:
            ObservationError: for an unknown variable.
        """
        for name in (*values, *observed):
            if name not in self.graph.variables:
                raise ObservationError(
                    f"graph {self.graph.name!r} has no variable "
                    f"{name!r}.{suggest(name, self.graph.variables)}"
                )
        fixed, partial, want = [], [], []
        for name in values:
            mask = observed.get(name)
            if mask is None or not bool(mask.any()):
                want.append(name)
            elif bool(mask.all()):
                fixed.append(name)
            else:
                partial.append(name)
        if not want and not partial:
            return sum((p.sum() * 0 for p in self.parameters()), torch.zeros(()))
        inputs: list[Tensor | Partial] = [values[name] for name in fixed]
        masks = {name: _entries(observed[name], values[name]) for name in partial}
        inputs += [Partial(values[name], masks[name]) for name in partial]
        batch = len(next(iter(values.values())))
        for name in self._without_sizes(want) or (want[:1] if not inputs else []):
            # evidence without an observed entry gives sizes, and the batch size
            want.remove(name)
            partial.append(name)
            masks[name] = torch.zeros_like(values[name], dtype=torch.bool)
            inputs.append(Partial(values[name], masks[name]))
        network = self.unrolled(tuple(fixed), tuple(partial), tuple(want))
        wanted = network.want
        if self._closed_form(fixed, wanted):
            scores = network.preactivations(*inputs)
            assert isinstance(scores, tuple)
            losses = [
                self.graph.variables[name].regularizer.loss(
                    t, values[name].to(t), _unobserved(masks.get(name))
                )
                for name, t in zip(wanted, scores, strict=True)
            ]
        else:
            results = network(*inputs)
            losses = [
                _loss_of_value(self._divergence(name, fixed), x, values[name].to(x), masks.get(name))
                for name, x in zip(wanted, results, strict=True)
            ]
        total = torch.zeros((), device=losses[0].device, dtype=losses[0].dtype)
        for name, loss in zip(wanted, losses, strict=True):
            total = total + loss.sum() / self._count(name, values[name], masks.get(name), batch)
        return total

    def unrolled(self, fixed: Sequence[str], partial: Sequence[str], want: Sequence[str]) -> Unrolled:
        """Unrolled rounds for one choice of what is given; all choices share the weights of the graph.

        Args:
            fixed: names of the variables given completely, the first arguments of the network.
            partial: names of those given in part, its further arguments, which are also wanted.
            want: names of the other wanted variables.
        """
        key = (tuple(fixed), tuple(partial), tuple(want))
        if key not in self._networks:
            given = [*fixed, *partial]
            latent = [name for name in self.graph.variables if name not in (*given, *want)]
            initial = None
            if self.options.initial != "zero":
                initial = dict.fromkeys((*partial, *want), self.options.initial)
            network = Unrolled(
                self.graph,
                given,
                [*partial, *want],
                order=self.order(given, fixed),
                iterations=self.options.iterations,
                initial=initial,
                dropout=dict.fromkeys(latent, self.options.dropout) if self.options.dropout else None,
                check_values=False,
            )
            self._networks[key] = network
        return self._networks[key].train(self.training)

    def order(self, given: Sequence[str], fixed: Sequence[str]) -> Order | list[str]:
        """Order of updates by distance from the evidence; with the sweep ``forward-backward`` also back."""
        names = list(default_order(self.graph, given, fixed))
        return (
            ForwardBackward(names) if self.options.sweep == "forward-backward" and len(names) > 1 else names
        )

    def infer_values(
        self, given: Given, count: int, sizes: Mapping[str, int], iterations: int | None = None
    ) -> dict[str, Tensor]:
        """Values of all variables after the rounds, with the means of discrete ones."""
        solution = self.minimise(given, count, sizes, iterations, trace=False)
        return {
            name: solution[name].expand(count, *solution[name].shape[1:]) for name in self.graph.variables
        }

    @torch.no_grad()
    def minimise(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
        *,
        want: Sequence[str] | None = None,
        trace: bool = True,
        terms: bool = False,
    ) -> Solution:
        """Minimise the energy over all that is not given, as ``unn.infer`` with the options of the model.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: number of rounds; None for that of training.
            want: check that these variables can be reached from what is given.
            trace: record the energy after each update.
            terms: record the share of each factor as well.

        Raises:
            ObservationError: for values that do not fit the graph.
            InferenceError: for variables that cannot be reached.
        """
        evidence: dict[str, Tensor | Partial] = {name: _expanded(x, count) for name, x in given.items()}
        fixed = [name for name, x in evidence.items() if not isinstance(x, Partial)]
        free = [name for name in self.graph.variables if name not in fixed]
        if not evidence:
            # evidence without an observed entry gives the batch size
            table = self.graph.size_table
            solved = table.solve({table.root(axis): size for axis, size in sizes.items()})
            shape = [int(size or 0) for size in table.shape(self.graph.variables[free[0]], solved)]
            nothing = torch.zeros(count, *shape)
            evidence[free[0]] = Partial(nothing, torch.zeros_like(nothing, dtype=torch.bool))
        initial = None if self.options.initial == "zero" else dict.fromkeys(free, self.options.initial)
        training = self.training
        self.eval()
        try:
            return infer(
                self.graph,
                evidence,
                order=self.order(list(evidence), fixed),
                iterations=iterations or self.options.iterations,
                initial=initial,
                want=want,
                trace=trace,
                terms=terms,
                sizes={
                    axis: size for axis, size in sizes.items() if axis not in self.graph.size_table.static
                },
            )
        finally:
            self.train(training)

    def _without_sizes(self, names: Sequence[str]) -> list[str]:
        """Those of some variables that have an axis without a static size."""
        table = self.graph.size_table
        return [name for name in names if None in table.shape(self.graph.variables[name], table.static)]

    def _closed_form(self, fixed: Sequence[str], names: Sequence[str]) -> bool:
        """Whether the last updates of variables have closed forms, so that their pre-activations are
        known."""
        how = Plan.of(self.graph, list(fixed)).update_kinds
        return all(how.get(name) == "closed form" for name in names)

    def _divergence(self, name: str, fixed: Sequence[str]) -> Regularizer | None:
        """Regularizer of the loss of a value; None for squared error.

        The logarithms of values from the inner solver have gradients that its linear systems cannot solve
        exactly where a value is next to 0 or 1.
        """
        how = Plan.of(self.graph, list(fixed)).update_kinds
        return None if how[name] == "inner solver" else self.graph.variables[name].regularizer

    def _count(self, name: str, value: Tensor, mask: Tensor | None, batch: int) -> float:
        """Number of unobserved nodes of a variable in a batch."""
        variable = self.graph.variables[name]
        over = variable.regularizer.over_axes(variable.axes)
        features = 1
        for axis, size in zip(variable.axes, value.shape[1:], strict=True):
            features *= size if axis in over else 1
        entries = value.numel() if mask is None else int((~mask).sum())
        return max(1, entries // features)


def with_energies(graph: Declaration, penalty: float) -> Declaration:
    """The graph itself if coordinate descent can use all of it, else a copy in which constraints have
    energies.

    Raises:
        UnnError: if a factor has no energy, and is no constraint with one.
    """
    if len(graph.energy_factors) == len(graph.factors):
        return graph
    return relax(graph, penalty, learned=True)


def _entries(mask: Tensor, value: Tensor) -> Tensor:
    """Expand a mask of nodes to the entries of a value, ``(batch, *axes)``."""
    return mask.reshape(*mask.shape, *(1,) * (value.ndim - mask.ndim)).expand(value.shape)


def _unobserved(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else ~mask


def _expanded(value: Tensor | Partial, count: int) -> Tensor | Partial:
    """Repeat evidence with a batch axis of 1."""
    if isinstance(value, Partial):
        full = value.value.expand(count, *value.value.shape[1:])
        return Partial(full, value.mask.expand(count, *value.mask.shape[1:]))
    return value.expand(count, *value.shape[1:])


def _loss_of_value(
    regularizer: Regularizer | None, value: Tensor, target: Tensor, mask: Tensor | None
) -> Tensor:
    """The Bregman divergence from a value to its target, shape ``(batch,)``: the Fenchel-Young loss of its
    scores.

    For updates without a closed form there are no scores. Half the squared error without a regularizer.
    """
    if isinstance(regularizer, Simplex):
        losses = -target * value.clamp(min=_SMALLEST).log()
    elif isinstance(regularizer, BinaryEntropy | SignedEntropy):
        if isinstance(regularizer, SignedEntropy):
            value, target = (1 + value) / 2, (1 + target) / 2
        right, wrong = value.clamp(min=_SMALLEST).log(), (1 - value).clamp(min=_SMALLEST).log()
        losses = -(target * right + (1 - target) * wrong)
    else:
        losses = (value - target) ** 2 / 2
    if mask is not None:
        losses = losses.masked_fill(mask, 0)
    return losses.flatten(1).sum(1)
