"""Markov chains as the model of an engine, and energies learned from examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..descent.collect import collect_evidence
from ..descent.model import expanded
from ..engine import CanInfer, CanLearn, CanSample, Samples, SamplingOptions, check_model
from ..errors import ArgumentError, ObservationError, suggest, whole_number
from ..exact.mixed import continuous_variables
from ..exact.mixed_model import MixedModel
from ..exact.model import ExactModel
from ..exact.options import ExactOptions
from ..graph.declaration import Declaration
from ..graph.devices import device_of, moved
from ..graph.partial import Partial, rows_of
from .chains import Chains, is_unbatched, refusal
from .learning import (
    completed,
    contrast,
    energy_discrepancy,
    minus_log_pseudolikelihood,
    score_matching,
)
from .options import GibbsOptions
from .queries import Given, marginals, require_bounded

_FEWEST_SWEEPS = 10
"""Sweeps of latent variables that interact, which start anew for each batch of examples."""

_WARM_UP = 100
"""Sweeps in which step sizes of Langevin dynamics adapt before the first training step."""

_STEPS = "log steps:"
"""Beginning of the names of step sizes in the state of training."""


class GibbsModel(nn.Module, CanLearn, CanInfer, CanSample):
    """Means and samples by Markov chains, of an energy that examples may teach.

    Its parameters are those of the graph. Training fits the joint distribution of all variables with
    examples, whichever are observed; the others are latent.

    Args:
        graph: declaration whose factors have energies.
        options: chains, and what training maximises.

    Raises:
        DeclarationError: for a factor without an energy, or a variable without an exact conditional.

    Attributes:
        graph: the declaration.
        options: chains, and what training maximises.
    """

    has_steps = True

    def __init__(self, graph: Declaration, options: GibbsOptions) -> None:
        super().__init__()
        check_model("GibbsModel", options, GibbsOptions, refusal(graph))
        self.graph, self.options = graph, options
        self._persistent: dict[str, dict[str, Tensor]] = {}
        self._steps: dict[str, dict[str, Tensor]] = {}

    def loss(self, values: Given, observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """A scalar whose gradient is that of what training minimises, or an estimate of it.

        For "likelihood" and "pseudolikelihood" it is the mean of minus the logarithm; with chains, the
        difference of two mean energies, whose value means nothing; else what its name says.

        Args:
            values: examples by variable, shape ``(batch, *axes)``; variables that are left out are latent,
                and so are entries outside of the mask of ``unn.Partial``.
            observed: not used, because the joint distribution is learned.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for an unknown variable, examples that do not fit their variable or lie outside
                its domain, or that violate a constraint.
            InferenceError: for a graph or examples to which the loss does not apply.
        """
        for name in values:
            if name not in self.graph.variables:
                raise ObservationError(
                    f"graph {self.graph.name!r} has no variable "
                    f"{name!r}.{suggest(name, self.graph.variables)}"
                )
        batch = collect_evidence(self.graph, values, sizes=sizes).batch
        complete = {name: x for name, x in values.items() if not isinstance(x, Partial)}
        for constraint in self.graph.constraints:
            if set(constraint.variables) <= set(complete):
                violated = (constraint.violations_of(complete) > 0).nonzero()[:, 0].tolist()
                if violated:
                    raise ObservationError(
                        f"graph {self.graph.name!r}: example {violated[0]} violates constraint "
                        f"{constraint.name!r}, and {len(violated)} of {batch} do; "
                        "leave them out, or the constraint."
                    )
        options = self.options
        if options.learning == "likelihood":
            if options.temperature != 1:
                raise ArgumentError("GibbsModel: learning='likelihood' is exact at the temperature 1 alone.")
            kind = MixedModel if continuous_variables(self.graph) else ExactModel
            return kind(self.graph, ExactOptions()).loss(values, {}, **sizes)
        if options.learning == "pseudolikelihood":
            return minus_log_pseudolikelihood(self.graph, values, options.temperature)
        if options.learning == "energy-discrepancy":
            return energy_discrepancy(self.graph, values, options.temperature, options.noise, options.copies)
        if options.learning == "score-matching":
            return score_matching(self.graph, values, options.temperature)
        key = ",".join(f"{axis}={size}" for axis, size in sorted(sizes.items()))
        examples, drawn = complete, complete
        if len(complete) < len(self.graph.variables):
            hidden = Chains(self.graph, values, batch, 1, sizes=sizes, temperature=options.temperature)
            sweeps = options.learning_sweeps
            if not hidden.are_independent:
                sweeps = max(sweeps, _FEWEST_SWEEPS)
            # what is given in part has step sizes of its own
            given = [name for name in self.graph.variables if name in values]
            names = ",".join(name if name in complete else f"{name}?" for name in given)
            examples = self._completed(hidden, sweeps, f"{key};{names}", {})
            # chains continue from draws: from means the truth would be no fixed point of the gradient
            drawn = {name: hidden.state.result(name) for name in self.graph.variables}
        count = options.chains if options.learning == "persistent" else batch
        start = drawn if options.learning == "contrastive" else self._persistent.get(key, {})
        # chains of a checkpoint with another number of them are repeated, or left out
        start = {name: x[torch.arange(count, device=x.device) % len(x)] for name, x in start.items()}
        chains = Chains(self.graph, {}, 1, count, sizes=sizes, temperature=options.temperature, initial=start)
        draws = self._completed(chains, options.learning_sweeps, key, start)
        if options.learning == "persistent":
            self._persistent[key] = {name: chains.state.values[name] for name in self.graph.variables}
        return contrast(self.graph, examples, draws) / options.temperature

    def _completed(
        self, chains: Chains, sweeps: int, key: str, start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Values after some sweeps, whose Langevin dynamics begin with the step sizes of the last training
        step.

        Args:
            chains: one level.
            sweeps: number of sweeps.
            key: what these chains are for; step sizes are kept under it.
            start: the values in which the chains start.
        """
        if key in self._steps:
            chains.set_log_steps(self._steps[key])
        elif chains.has_langevin:
            for _ in range(_WARM_UP):
                chains.sweep(adapts=True)
            chains.restart(start)
        values = completed(chains, sweeps)
        if chains.has_langevin:
            self._steps[key] = chains.log_steps()
        return values

    def training_state(self) -> dict[str, Tensor]:
        """The states of the persistent chains, and the step sizes of Langevin dynamics."""
        parts = {"": self._persistent, _STEPS: self._steps}
        return {
            f"{kind}{key}/{name}": x
            for kind, keyed in parts.items()
            for key, values in keyed.items()
            for name, x in values.items()
        }

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the states of the persistent chains, and the step sizes of Langevin dynamics."""
        self._persistent, self._steps = {}, {}
        for place, x in state.items():
            key, name = place.rsplit("/", 1)
            part = self._steps if key.startswith(_STEPS) else self._persistent
            part.setdefault(key.removeprefix(_STEPS), {})[name] = x

    @torch.no_grad()
    def infer_values(
        self,
        given: Given,
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> dict[str, Tensor]:
        """Means of all variables; ``iterations`` is the number of draws of each chain.

        Raises:
            ObservationError: for evidence that does not fit the graph, or of another number of rows.
        """
        options = self.options
        if iterations is not None:
            options = replace(options, chain_draws=max(4, iterations))
        answer = marginals(
            self.graph, moved(given, device_of(self.graph)), queries=count, sizes=sizes, options=options
        )
        return {name: x.float() for name, x in answer.means.items()}

    @torch.no_grad()
    def sample_with(
        self,
        given: Given,
        count: int,
        options: SamplingOptions,
        sizes: Mapping[str, int],
        *,
        verify: bool = False,
        trace: Callable[[int, dict[str, Tensor]], None] | None = None,
    ) -> Samples:
        """Samples, each the state of a chain of its own after ``options.steps`` sweeps (``burn_in`` by
        default).

        Raises:
            ArgumentError: for options of denoising.
            ObservationError: for evidence that does not fit the graph, or of another number of rows.
            InferenceError: for an energy without a lower bound.
        """
        options.check()
        whole_number("samples: count", count, 1, ArgumentError)
        given = moved(given, device_of(self.graph))
        require_bounded(self.graph, given)
        for name in ("sampler", "spacing"):
            if getattr(options, name) is not None:
                raise ArgumentError(f"samples of Markov chains have no {name}; leave out --{name}.")
        generator = None if options.seed is None else torch.Generator().manual_seed(options.seed)
        sweeps = options.steps or max(1, self.options.burn_in)
        parts: list[dict[str, Tensor]] = []
        for first in range(0, count, options.at_once):
            rows = torch.arange(first, min(count, first + options.at_once))
            own = {
                name: x
                if is_unbatched(self.graph, name, x)
                else rows_of(expanded(name, x, count), rows, count)
                for name, x in given.items()
            }
            chains = Chains(
                self.graph,
                own,
                len(rows),
                1,
                self.options.tempering,
                sizes=sizes,
                temperature=self.options.temperature,
                generator=generator,
            )
            for number in range(sweeps):
                chains.sweep(adapts=2 * number < sweeps)
                if trace is not None:
                    trace(number, {name: x[:, 0] for name, x in chains.values().items()})
            chains.check()
            parts.append({name: x[:, 0].float() for name, x in chains.values().items()})
        values = {name: torch.cat([part[name] for part in parts]) for name in self.graph.variables}
        return Samples(values, None, torch.ones(count, dtype=torch.long))
