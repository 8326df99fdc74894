"""The solver: a recurrent network over the candidates of a declaration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import BoundedCache
from ..engine import (
    Attempt,
    CanInfer,
    CanLearn,
    CanSolve,
    TakesWeights,
    check_iterations,
    check_model,
)
from ..errors import DeclarationError, ObservationError
from ..graph.declaration import Declaration
from ..graph.dynamic import check_mapping
from ..networks.tokens import Given
from .energies import EnergyNetwork, Surroundings, refusal
from .layout import Layout
from .losses import RowLosses, constraint_surprises, label_losses, preferences
from .network import GroupNetwork
from .options import SolverOptions
from .packing import Packed, group_sums, log_probabilities, pack
from .pool import Entering, Pool
from .propagation import Known, evidence, exclude, propagate, suppose

CHECKED_EVERY = 4
"""Steps between two answers of a try."""

_LAYOUTS = 64
"""Number of sizes of a graph whose layouts and pools are kept."""

_LEAST = 16
"""Smallest number of new examples whose evidence is propagated together."""

_SHARPNESS = 4.0
"""Factor of the log-probabilities by which values are drawn in decimation."""

_Sizes = tuple[tuple[str, int], ...]
"""Sizes of the axes without a static size, sorted by axis."""

_OLD = 40
"""Steps after which a solved example leaves the pool in any case."""

_BREADTH = 8
"""Random initial states of each query of probabilities, among which the residual selects."""

_AT_ONCE = 256
"""Queries of probabilities in memory at a time."""


class Solver(nn.Module, CanLearn, CanInfer, CanSolve, TakesWeights):
    """A network of constraint groups, which is equivariant under every symmetry of these.

    Each candidate (node, value) has a state; one shared gated update maps it to the next, from sums over
    the groups of the candidate: its node and the counting constraints. Where the graph has factors with an
    energy, their messages at the present estimates are inputs of the update, and continuous nodes that are
    not given have states and estimates of their own. States of candidates begin at random, so that tries
    differ. Weights fit every size of the graph, and every graph whose kinds of groups they have; training
    may mix sizes, each of which has a pool of examples. Of several training processes each has its own pools,
    and checkpoints contain those of the first.

    Args:
        graph: declaration with categorical or binary variables and counting constraints; it may have
            continuous variables in factors with an energy.
        options: width, steps and training.
        sizes: sizes of the axes without a static size.

    Raises:
        DeclarationError: for a continuous variable in no factor with an energy, or no constraint that counts.

    Attributes:
        graph: the declaration.
        network: the shared update.
        energies: inputs from the factors with an energy; None if the graph has none.
    """

    def __init__(self, graph: Declaration, options: SolverOptions, sizes: Mapping[str, int]) -> None:
        super().__init__()
        check_model("Solver", options, SolverOptions, refusal(graph))
        self.graph = graph
        self.options = options
        self._layouts: BoundedCache[_Sizes, Layout] = BoundedCache(_LAYOUTS)
        self.network = GroupNetwork(self.layout(sizes).kinds, options.width)
        self.energies = EnergyNetwork(graph, options.width) if graph.energy_factors else None
        self._pools: dict[_Sizes, Pool] = {}

    def layout(self, sizes: Mapping[str, int]) -> Layout:
        """Candidates and groups at given sizes.

        Raises:
            DeclarationError: for sizes that are missing or contradict the declaration.
        """
        return self._layouts.get_or_make(_key(sizes), lambda: Layout(self.graph, sizes))

    def take_weights(self, trained: nn.Module) -> None:
        """Share the update of a solver that has weights for all kinds of groups of this graph.

        Raises:
            DeclarationError: for a kind of groups without weights, another width, or other factors with an
                energy.
        """
        same_width = isinstance(trained, Solver) and trained.network.width == self.network.width
        if not isinstance(trained, Solver) or not same_width:
            raise DeclarationError(f"the solver needs weights of width {self.network.width}.")
        for kind in self.network.kinds:
            trained.network.number_of(kind)
        if self.energies is not None:
            state = {} if trained.energies is None else trained.energies.state_dict()
            try:
                self.energies.load_state_dict(state)
            except RuntimeError:
                raise DeclarationError("the solver has weights for other factors with an energy.") from None
        self.network = trained.network

    def prepare(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Set the units of continuous variables and of messages, by their mean and standard deviation."""
        if self.energies is not None:
            self.energies.standardise(self.layout(sizes), values)

    def is_prepared(self) -> bool:
        """Whether units have been set, or there are none."""
        return self.energies is None or self.energies.is_standardised()

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean loss over ``truncation`` steps of the examples in the pool, whose states persist.

        It is the loss of the candidates, from labels or from the constraints alone, plus the squared error of
        continuous nodes that are not given, in units of their variances.

        In training, examples enter the pool when others leave: those that are solved, and those that are not
        after ``oldest`` steps. Each enters with as many random states as ``breadth``, and is solved when one
        of them is. Examples without an open candidate do not enter. In evaluation mode the states of the
        examples themselves begin at random, one each.

        Args:
            values: examples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph.
        """
        layout = self.layout(sizes)
        # examples wait on the CPU; those in the pool are on the device of the weights
        rows = layout.frame.flatten(layout.discrete_part(values)).cpu()
        check_mapping("observed", observed)
        nodes = layout.frame.observed_nodes(layout.discrete_part(observed), len(rows))
        source = _Source(layout, rows == 1, nodes, *_numbers(layout, values, observed, rows))
        device = self.network.score.weight.device
        if not self.training:
            return self._steps(layout, source.take(len(rows)).to(device).pool(self.options.width), 1)[0]
        key, breadth = _key(sizes), self.options.breadth
        if key not in self._pools:
            entering = source.take(self.options.pool // breadth)
            if not len(entering.truth):
                return torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
            places = torch.arange(self.options.pool) // breadth % len(entering.truth)
            self._pools[key] = entering.select(places).to(device).pool(self.options.width)
            if len(self._pools) > _LAYOUTS:
                del self._pools[next(iter(self._pools))]
        pool = self._pools[key] = self._pools[key].to(device)
        loss, state, packed, scores = self._steps(layout, pool, breadth)
        with torch.no_grad():
            pool.state[packed.row, packed.candidate] = state.to(pool.state)
            pool.age += self.options.truncation
            solved = self._solved(layout, pool, packed, scores).view(-1, breadth).any(1)
            age = pool.age[::breadth]
            leaves = (torch.rand(len(solved), device=device) < self.options.leave) | (age >= _OLD)
            leaves = (age >= self.options.oldest) | (solved & leaves)
            leaves |= ~pool.state.flatten(1).isfinite().all(1).view(-1, breadth).all(1)
            entering = source.take(int(leaves.sum())).to(device)
            places = torch.arange(len(entering.truth), device=device).repeat_interleave(breadth)
            pool.replace(leaves.repeat_interleave(breadth).nonzero()[:, 0], entering.select(places))
        return loss

    def _steps(self, layout: Layout, pool: Pool, breadth: int) -> tuple[Tensor, Tensor, Packed, Tensor]:
        """Mean loss, last states, packed candidates and last scores of rows, of which those of one example
        follow one another."""
        weight = self.network.score.weight
        packed = pack(layout, pool.known)
        state = pool.state[packed.row, packed.candidate].to(weight)
        truth = pool.truth[packed.row, packed.candidate].to(weight)
        beside, numbers = pool.surroundings.to(weight), pool.numbers.to(weight)
        losses: list[RowLosses] = []
        errors: list[RowLosses] = []
        for _ in range(self.options.truncation):
            state, beside = self.step(layout, packed, _disturbed(state, self.options.noise), beside)
            scores = self.network.scores(state)
            losses.append(
                label_losses(scores, truth, packed)
                if self.options.labels
                else constraint_surprises(scores, packed)
            )
            if self.energies is not None:
                errors.append(self.energies.losses(layout, beside, numbers))
        pool.reals = beside.state.detach().clone()
        means = [
            RowLosses(torch.stack([x.sums for x in steps]).mean(0), steps[0].counts)
            for steps in (losses, errors)
            if steps
        ]
        weights = preferences(torch.stack([x.by_row() for x in means]).sum(0), breadth)
        return torch.stack([x.mean(weights) for x in means]).sum(), state.detach(), packed, scores.detach()

    def step(
        self, layout: Layout, packed: Packed, state: Tensor, beside: Surroundings
    ) -> tuple[Tensor, Surroundings]:
        """One update of the states of open candidates, shape ``(candidates, width)``, and continuous nodes.

        Args:
            layout: candidates and groups.
            packed: open candidates of a batch.
            state: their states.
            beside: the rest of the batch.
        """
        if self.energies is None:
            return self.network(state, packed), beside
        inputs, beside = self.energies(layout, packed, self.network.scores(state), beside)
        return self.network(state, packed, inputs), beside

    def _solved(self, layout: Layout, pool: Pool, packed: Packed, scores: Tensor) -> Tensor:
        """Mask of the examples whose present answers meet all counts, shape ``(pool,)``."""
        counts = group_sums(chosen(packed, scores)[:, None].to(scores), packed)[:, 0]
        wrong = (counts < packed.lower) | (counts > packed.upper)
        bad = torch.zeros(packed.batch, device=scores.device)
        bad.index_add_(0, packed.group_row, wrong.float())
        bad.index_add_(0, packed.row, (~scores.isfinite()).float())
        return bad == 0

    def attempt(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        steps: int | None,
        generator: torch.Generator,
        number: int,
    ) -> Attempt:
        """Start from random states; tries after the first decimate.

        Raises:
            ObservationError: for evidence that does not fit the graph.
        """
        layout = self.layout(sizes)
        known, _, beside = self._begin(layout, given, count)
        steps = steps or self.options.solving_steps
        every = self.options.decimate_every if number and self.options.propagation == "full" else 0
        return _Attempt(self, layout, known, beside, steps, every, generator)

    def _begin(self, layout: Layout, given: Given, count: int) -> tuple[Known, Tensor, Surroundings]:
        """What evidence implies for the candidates of a batch of queries, the group that refutes each of them
        (-1 for none), and their continuous nodes."""
        known = evidence(layout, *layout.frame.observation(layout.discrete_part(given), count))
        known, impossible = (
            propagate(layout, known)
            if self.options.propagation == "full"
            else (
                exclude(layout, known),
                torch.full((count,), -1),
            )
        )
        if layout.continuous is None:
            none = torch.zeros(count, 0)
            return known, impossible, Surroundings.of(known.true, none, none.bool(), self.options.width)
        numbers, nodes = layout.continuous.observation(layout.continuous_part(given), count)
        mask = nodes[:, layout.continuous.node_of_number]
        return known, impossible, Surroundings.of(known.true, numbers, mask, self.options.width)

    @torch.no_grad()
    def infer_values(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Probabilities of all values, without verification.

        Of several random initial states that is chosen whose states change least in the last step. The states
        of one query do not depend on the others.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: number of steps; ``solving_steps`` by default.

        Raises:
            ArgumentError: for a number of steps below 1.
            ObservationError: for evidence that does not fit the graph, or that propagation refutes.
        """
        check_iterations(iterations)
        layout = self.layout(sizes)
        known, impossible, beside = self._begin(layout, given, count)
        refuted = (impossible >= 0).nonzero()[:, 0]
        if len(refuted):
            row = int(refuted[0])
            raise ObservationError(
                f"graph {self.graph.name!r}: the evidence of row {row} contradicts "
                f"{layout.describe(int(impossible[row]))}."
            )
        steps = iterations or self.options.solving_steps
        parts = [
            self._estimates(layout, known.select(places), beside.select(places), steps)
            for places in torch.arange(count).split(_AT_ONCE)
        ]
        candidates, numbers = (torch.cat(x) for x in zip(*parts, strict=True))
        values = layout.frame.expected(candidates)
        return values if layout.continuous is None else values | layout.continuous.unflatten(numbers)

    def _estimates(
        self, layout: Layout, known: Known, beginning: Surroundings, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Probabilities of all candidates, shape ``(batch, candidates)``, and means of the numbers of
        continuous nodes, shape ``(batch, numbers)``."""
        weight = self.network.score.weight
        waiting = pack(layout, known)
        packed = waiting.to(weight.device)
        best, best_numbers = known.true.to(weight.dtype).cpu(), beginning.value.to(weight.dtype).cpu()
        least = torch.full((len(best),), torch.inf)
        for restart in range(_BREADTH):
            generator = torch.Generator().manual_seed(restart)
            state = self._draw(layout, waiting, generator)
            change, beside = torch.zeros_like(state), beginning.to(weight)
            for _ in range(steps):
                before = state + self.options.noise * self._draw(layout, waiting, generator)
                state, beside = self.step(layout, packed, before, beside)
                change = state - before
            residual = torch.zeros(len(best)).index_add(0, waiting.row, change.square().mean(1).float().cpu())
            scores = self.network.scores(state).cpu()
            rows = known.true.to(scores)
            rows[waiting.row, waiting.candidate] = log_probabilities(waiting, scores).exp()
            better = residual < least
            best, least = torch.where(better[:, None], rows, best), torch.where(better, residual, least)
            if self.energies is not None:
                numbers = self.energies.means(layout, beside).cpu()
                best_numbers = torch.where(better[:, None], numbers, best_numbers)
        return best, best_numbers

    def _draw(self, layout: Layout, packed: Packed, generator: torch.Generator) -> Tensor:
        """Standard normal states of packed candidates, equal for the same candidate of all rows."""
        states = torch.randn(layout.candidates, self.options.width, generator=generator)
        return states[packed.candidate].to(self.network.score.weight)

    def training_state(self) -> dict[str, Tensor]:
        """The examples in the pools and their states; names begin with the sizes, if there are any."""
        return {
            "".join(f"{axis}={size}/" for axis, size in key) + name: x.cpu()
            for key, pool in self._pools.items()
            for name, x in pool.tensors().items()
        }

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the pools."""
        parts: dict[_Sizes, dict[str, Tensor]] = {}
        for path, x in state.items():
            *sizes, name = path.split("/")
            pairs = (text.split("=") for text in sizes)
            parts.setdefault(tuple((axis, int(size)) for axis, size in pairs), {})[name] = x
        self._pools = {key: Pool.from_tensors(tensors) for key, tensors in parts.items()}

    def __getstate__(self) -> dict[str, object]:
        # copies, such as averages of weights, have no examples of their own; sparse matrices cannot be copied
        return {**self.__dict__, "_pools": {}, "_layouts": BoundedCache(_LAYOUTS)}


class _Attempt(Attempt):
    def __init__(
        self,
        solver: Solver,
        layout: Layout,
        known: Known,
        beside: Surroundings,
        steps: int,
        every: int,
        generator: torch.Generator,
    ) -> None:
        network = solver.network
        self.solver, self.layout, self.steps = solver, layout, steps
        self.noise, self.generator = solver.options.noise, generator
        self.every, self.taken = every, 0
        self.known = self.root = known
        self.weight = network.score.weight
        self.packed = pack(layout, known)
        self.on_device = self.packed.to(self.weight.device)
        self.state = network.initial(self.packed, generator).to(self.weight.device)
        self.beside = beside.to(self.weight)

    @torch.no_grad()
    def advance(self) -> dict[str, Tensor] | None:
        if not self.steps:
            return None
        for _ in range(min(CHECKED_EVERY, self.steps)):
            if time.perf_counter() >= self.ends:
                break
            state = _disturbed(self.state, self.noise, self.generator)
            self.state, self.beside = self.solver.step(self.layout, self.on_device, state, self.beside)
        self.steps -= min(CHECKED_EVERY, self.steps)
        rows = self.known.true.to(self.weight.dtype)
        scores = self.solver.network.scores(self.state).cpu()
        here = chosen(self.packed, scores)
        rows[self.packed.row, self.packed.candidate] = here.to(rows)
        self.taken += CHECKED_EVERY
        if self.every and self.taken >= self.every:
            self.taken = 0
            self._decimate(scores)
        return self.layout.frame.unflatten(rows)

    def _decimate(self, scores: Tensor) -> None:
        """Fix a probable value in each row, and propagate; rows that are then refuted start again."""
        packed, width = self.packed, self.state.shape[1]
        confidence = scores.new_full(self.known.true.shape, -torch.inf)
        confidence[packed.row, packed.candidate] = _SHARPNESS * log_probabilities(packed, scores)
        noise = torch.rand(confidence.shape, generator=self.generator).clamp(1e-9, 1 - 1e-6)
        # the Gumbel-max trick
        best = (confidence - (-noise.log()).log()).argmax(1)
        chosen = F.one_hot(best, confidence.shape[1]).bool() & self.known.open
        known, refuted = suppose(self.layout, self.known, chosen)
        # a complete answer that comes here was not verified
        refuted |= ~self.known.open.any(1)
        true = torch.where(refuted[:, None], self.root.true, known.true)
        false = torch.where(refuted[:, None], self.root.false, known.false)
        state = torch.randn(*true.shape, width, generator=self.generator, dtype=self.weight.dtype)
        continues = ~refuted[packed.row]
        state[packed.row[continues], packed.candidate[continues]] = self.state.cpu()[continues]
        self._place(Known(true, false), state)

    def _place(self, known: Known, state: Tensor) -> None:
        """Continue with other knowledge, and states of shape ``(rows, candidates, width)``."""
        self.known = known
        self.beside = replace(self.beside, true=known.true.to(self.weight.device))
        self.packed = pack(self.layout, known)
        self.on_device = self.packed.to(self.weight.device)
        self.state = state[self.packed.row, self.packed.candidate].to(self.weight.device)

    def keep(self, rows: Tensor) -> None:
        unsolved = torch.zeros(self.packed.batch, dtype=torch.bool)
        unsolved[rows] = True
        self.state = self.state[unsolved[self.packed.row].to(self.state.device)]
        self.known, self.root = self.known.select(unsolved), self.root.select(unsolved)
        self.beside = self.beside.select(unsolved.to(self.state.device))
        self.packed = pack(self.layout, self.known)
        self.on_device = self.packed.to(self.state.device)


def chosen(packed: Packed, scores: Tensor) -> Tensor:
    """Mask of the best open candidate of each node, boolean, shape ``(candidates,)``; the first of equals."""
    scores = scores.nan_to_num(nan=-torch.inf)
    best = scores.new_full((len(packed.group),), -torch.inf)
    best = best.scatter_reduce(0, packed.node, scores, "amax")
    largest = scores >= best[packed.node]
    number = torch.arange(len(scores), device=scores.device)
    place = torch.where(largest, number, len(scores))
    first = number.new_full((len(packed.group),), len(scores)).scatter_reduce(0, packed.node, place, "amin")
    return place == first[packed.node]


def _disturbed(state: Tensor, noise: float, generator: torch.Generator | None = None) -> Tensor:
    """States with normal noise."""
    if not noise:
        return state
    if generator is None:
        return state + noise * torch.randn_like(state)
    return state + noise * torch.randn(state.shape, generator=generator, dtype=state.dtype).to(state.device)


class _Source:
    """Examples that can enter the pool, in order; those without an unknown node are left out."""

    def __init__(self, layout: Layout, truth: Tensor, nodes: Tensor, numbers: Tensor, given: Tensor) -> None:
        self.layout, self.truth, self.nodes = layout, truth, nodes
        self.numbers, self.given = numbers, given
        self.taken = 0

    def take(self, count: int) -> Entering:
        """The next examples, at most ``count``."""
        entering = [
            Entering(self.truth[:0], self.truth[:0], self.truth[:0], self.numbers[:0], self.given[:0])
        ]
        missing = count
        while missing and self.taken < len(self.truth):
            # what evidence implies is computed for about as many examples as are needed
            part = slice(self.taken, self.taken + max(_LEAST, 4 * missing))
            self.taken = min(part.stop, len(self.truth))
            truth = self.truth[part]
            known = exclude(self.layout, evidence(self.layout, truth, self.nodes[part]))
            unknown = known.open.any(1) | ~self.given[part].all(1)
            places = unknown.nonzero()[:missing, 0]
            examples = Entering(truth, known.true, known.false, self.numbers[part], self.given[part])
            entering.append(examples.select(places))
            missing -= len(places)
        return Entering.join(entering)


def _numbers(
    layout: Layout, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Numbers of continuous nodes of examples, and the mask of those that are given, each of shape
    ``(batch, numbers)``.

    Raises:
        ObservationError: for values or masks that do not fit the graph.
    """
    frame, count = layout.continuous, len(rows)
    if frame is None:
        return torch.zeros(count, 0), torch.zeros(count, 0, dtype=torch.bool)
    numbers = frame.flatten(layout.continuous_part(values)).cpu()
    if len(numbers) != count:
        raise ObservationError(
            f"values of graph {layout.graph.name!r} differ in their batch sizes: {len(numbers)} of "
            f"continuous variables, {count} of others."
        )
    return numbers, frame.observed_nodes(layout.continuous_part(observed), count)[:, frame.node_of_number]


def _key(sizes: Mapping[str, int]) -> _Sizes:
    return tuple(sorted(sizes.items()))
