"""The attentive variational auto-encoder of a declaration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..diffusion.sampling import generators_of
from ..engine import CanInfer, CanLearn, CanSample, Samples, SamplingOptions, check_model, evaluating
from ..errors import ArgumentError, ObservationError, UnnError, whole_number
from ..exact.model import refuse_steps, verified
from ..graph.declaration import Declaration
from ..graph.dynamic import check_mapping
from ..graph.partial import Partial
from ..networks.tokens import Given, check_fixed_sizes
from ..noise import gumbel_argmax
from .bounds import BoundSummary, Draws, LikelihoodEstimate, bound_summary, log_likelihood
from .gaussians import Normals
from .hierarchy import read, refusal
from .network import AttentionRecord, Condition, LatentNetwork
from .observed import ObservedNodes
from .options import LatentOptions
from .schedules import divergence_weight
from .spectral import SpectralNorms

_INFERRING_SEED = 0
_LARGEST = 1e6
"""Largest latent number that may be given."""


class AttentiveVAE(nn.Module, CanLearn, CanInfer, CanSample):
    """Deep attentive variational auto-encoder over the latent groups of a graph.

    The latent groups are a normal variable with the axis ``layer``; all other variables are observed. Each
    group has a prior given the earlier ones and a posterior given these and the evidence;
    ``unn.LayerAttention`` and ``unn.SpatialAttention`` say who attends to whom. Generation, posterior
    inference and evaluation are three traversals of one network; evidence about some observed nodes is a
    fourth, exact in the limit of many particles.

    Args:
        graph: declaration with one latent variable.
        options: sizes of the networks.
        sizes: sizes of the axes without a static size; the weights serve these alone.

    Raises:
        DeclarationError: for a graph without latent groups, or whose groups do not fit the image.

    Attributes:
        graph: the declaration.
        options: sizes of the networks.
        hierarchy: what was read from the declaration.
        network: prior, posterior and decoder.
        observed: distribution of the observed nodes given the outputs of the decoder.
        updates: number of training steps so far, which sets the weight of the divergence.
    """

    prepared_examples = 1024

    def __init__(self, graph: Declaration, options: LatentOptions, sizes: Mapping[str, int]) -> None:
        super().__init__()
        check_model("AttentiveVAE", options, LatentOptions, refusal(graph))
        self.graph, self.options = graph, options
        self.hierarchy = read(graph, sizes)
        self.observed = ObservedNodes(self.hierarchy, options)
        self.network = LatentNetwork(self.hierarchy, options, self.observed.outputs)
        self.spectral = SpectralNorms(self.network) if options.spectral else None
        self.updates = 0
        self._counted: int | None = None

    # -- training --------------------------------------------------------------------------------------------

    def prepare(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Standardise real variables."""
        values = {name: x for name, x in values.items() if name != self.hierarchy.group}
        self.observed.prepare(self._like(self.hierarchy.rows.flatten(values)))

    def is_prepared(self) -> bool:
        """Whether a real variable has a mean or a deviation, or there is none to standardise."""
        return self.observed.is_prepared()

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean of minus the evidence lower bound in nats, a scalar; draws from torch's global generator.

        The divergence counts by a weight that grows to 1 over the first ``divergence_warmup`` steps in
        training mode; losses between which no weight changes, as of parts of a batch, belong to one step.
        Of the share ``masked`` of the examples, only the observed nodes are seen and counted.

        Args:
            values: examples by variable, shape ``(batch, *axes)``, of all observed variables.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)``.
            sizes: sizes of the axes without a static size.

        Raises:
            ObservationError: for values or masks that do not fit the graph.
        """
        layout = self.hierarchy.rows
        check_fixed_sizes(self.graph, layout.sizes, sizes)
        rows = self._rows_of(values)
        nodes = torch.ones(len(rows), layout.nodes, dtype=torch.bool, device=rows.device)
        if self.options.masked:
            latent = set(self.graph.variables) - set(layout.slots)
            check_mapping("observed", observed)
            given = {name: mask for name, mask in observed.items() if name not in latent}
            seen = layout.observed_nodes(given, len(rows)).to(rows.device)
            chosen = torch.rand(len(rows), 1) < self.options.masked
            nodes = torch.where(chosen.to(rows.device), seen, nodes)
        draws = self.draws(rows, nodes, None)
        warmup = self.options.divergence_warmup
        progress = self._begin_step() / warmup if warmup else 1.0
        weight = divergence_weight(progress, self.options.first_weight)
        divergences = draws.divergences.mean(1).clamp(min=self.options.free_bits)
        loss = weight * divergences.sum() - draws.likelihood.mean()
        if self.spectral is not None:
            loss = loss + self.options.spectral * self.spectral(self.network)
        return loss

    def _begin_step(self) -> int:
        """Number of training steps before the present one."""
        if not self.training:
            return self.updates
        version = self._version_of_weights()
        if version != self._counted:
            self._counted = version
            self.updates += 1
        return self.updates - 1

    def _version_of_weights(self) -> int:
        """A number that changes with the weights."""
        return sum(p._version for p in self.parameters())

    def training_state(self) -> dict[str, Tensor]:
        """The number of training steps, and whether the present weights have begun one, as those that a step
        left as they were."""
        has_begun = self._counted == self._version_of_weights()
        return {"updates": torch.tensor(self.updates), "has_begun": torch.tensor(has_begun)}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of ``training_state``."""
        self.updates = int(state["updates"])
        self._counted = self._version_of_weights() if bool(state.get("has_begun", False)) else None

    # -- traversals ------------------------------------------------------------------------------------------

    def draws(
        self,
        rows: Tensor,
        nodes: Tensor,
        generator: torch.Generator | None,
        record: AttentionRecord | None = None,
    ) -> Draws:
        """One draw of the latent groups for each row from the posterior given the observed nodes.

        Args:
            rows: observed numbers, anything where not observed, shape ``(batch, numbers)``.
            nodes: mask of observed nodes, shape ``(batch, nodes)``.
            generator: random number generator; torch's global one by default.
            record: collects weights of attention.
        """
        noise = torch.randn(len(rows), self._latent_numbers, generator=generator)
        return self._posterior(rows, nodes, self._like(noise), record)[0]

    def log_likelihood(
        self,
        given: Given,
        draws: int = 100,
        *,
        generator: torch.Generator | None = None,
        at_once: int = 512,
    ) -> LikelihoodEstimate:
        """Importance-sampled logarithm of the probability or density of the given observed nodes.

        Args:
            given: evidence by variable, complete or partial.
            draws: number of draws for each row.
            generator: random number generator; torch's global one by default.
            at_once: largest number of rows in memory, over all draws.

        Raises:
            ObservationError: for evidence that does not fit the graph.
            ArgumentError: for fewer than one draw or row.
        """
        rows, nodes = self._evidence(given)
        with evaluating(self):
            return log_likelihood(self, rows, nodes, draws, generator=generator, at_once=at_once)

    def bound_summary(
        self, given: Given, *, generator: torch.Generator | None = None, at_once: int = 512
    ) -> BoundSummary:
        """The evidence lower bound, divergences and active units; arguments as for ``log_likelihood``."""
        rows, nodes = self._evidence(given)
        with evaluating(self):
            return bound_summary(self, rows, nodes, generator=generator, at_once=at_once)

    @torch.no_grad()
    def attention(self, given: Given, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Mean weights of attention over layers given evidence.

        Returns:
            "prior" and "posterior", shape ``(layers, layers)`` each: weights of a layer (row) over others.

        Raises:
            UnnError: for a graph without attention over layers.
        """
        if self.hierarchy.attention is None:
            raise UnnError(f"graph {self.graph.name!r} has no attention over layers (unn.LayerAttention).")
        rows, nodes = self._evidence(given)
        record = AttentionRecord()
        with evaluating(self):
            self.draws(rows, nodes, generator, record)
        result = {}
        for name, mask, weights in (
            ("prior", self.hierarchy.masks[0], record.prior),
            ("posterior", self.hierarchy.masks[1], record.posterior),
        ):
            table = torch.zeros(mask.shape)
            for layer, own in weights.items():
                table[layer, mask[layer]] = own.flatten(1).mean(1).cpu().float()
            result[name] = table
        return result

    @torch.no_grad()
    def decode(self, z: Tensor) -> dict[str, Tensor]:
        """Means of the observed variables given the latent groups, by variable, shape ``(batch, *axes)``.

        Args:
            z: values of the latent variable, shape ``(batch, layer, *axes)``.

        Raises:
            ObservationError: for another shape.
        """
        with evaluating(self):
            parameters = self._decoded(self._groups_of(z))
        return self.hierarchy.rows.expected(self.observed.means(parameters).cpu())

    @torch.no_grad()
    def infer_values(
        self, given: Given, count: int, sizes: Mapping[str, int], iterations: int | None = None
    ) -> dict[str, Tensor]:
        """Means of all variables given evidence, by weighted draws from the posterior; given values are
        unchanged.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: number of draws; ``particles`` of the options by default.

        Raises:
            DeclarationError: for other sizes than those of the weights.
            ObservationError: for evidence that does not fit the graph.
        """
        check_fixed_sizes(self.graph, self.hierarchy.rows.sizes, sizes)
        particles = self.options.particles if iterations is None else iterations
        whole_number("iterations", particles, 1, ArgumentError)
        rows, nodes = self._evidence(given, count)
        groups = self._given_groups(given, count)
        means, latent = [], []
        for row in torch.arange(count).split(1):
            if groups is None:
                # the same draws for each row, so that answers do not depend on the others
                generator = torch.Generator().manual_seed(_INFERRING_SEED)
                noise = self._like(torch.randn(particles, self._latent_numbers, generator=generator))
                own, seen = rows[row].expand(particles, -1), nodes[row].expand(particles, -1)
                with evaluating(self):
                    draws, parameters = self._posterior(own, seen, noise, None)
                values, weights = draws.groups, draws.log_weight.softmax(0)
            else:
                values, weights = [group[row] for group in groups], torch.ones(1).to(rows)
                with evaluating(self):
                    parameters = self._decoded(values)
            means.append(weights @ self.observed.means(parameters))
            latent.append(torch.einsum("k,k...->...", weights, self.hierarchy.to_groups(values)))
        known = nodes[:, self.hierarchy.rows.node_of_number]
        answers = torch.where(known, rows, torch.stack(means)).cpu()
        return {**self.hierarchy.rows.expected(answers), self.hierarchy.group: torch.stack(latent).cpu()}

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
        temperature: float = 1.0,
    ) -> Samples:
        """Sample the latent groups and all observed nodes that are not given.

        Without evidence, samples are those of the prior and the decoder. Given observed nodes, latent groups
        are selected among ``particles`` draws from the posterior by their weights.

        Args:
            given: evidence by variable, complete or partial; the latent variable is given as a whole.
            count: number of samples.
            options: seed and batch size; there are no steps.
            sizes: sizes of the axes without a static size.
            verify: check the constraints of the graph.
            trace: unavailable.
            temperature: factor of the standard deviations of the latent groups, where nothing is given.

        Raises:
            ArgumentError: for options of denoising, or a temperature that is not positive.
            ObservationError: for evidence that does not fit the graph.
            UnnError: for a trace.
        """
        refuse_steps("latent groups", options, trace)
        check_fixed_sizes(self.graph, self.hierarchy.rows.sizes, sizes)
        if not (isinstance(temperature, (int, float)) and 0 < temperature < math.inf):
            raise ArgumentError(f"sampling: the temperature must be positive, got {temperature!r}.")
        rows, nodes = self._evidence(given, count)
        groups = self._given_groups(given, count)
        seed = int(torch.randint(2**62, ())) if options.seed is None else options.seed
        generators = generators_of(seed, count)
        assert generators is not None
        at_once = max(1, options.at_once // (self.options.particles if bool(nodes.any()) else 1))
        numbers, latent = [], []
        for batch in torch.arange(count).split(at_once):
            own = [generators[k] for k in batch.tolist()]
            normal = torch.stack([torch.randn(self._noise_numbers, generator=g) for g in own])
            uniform = torch.stack(
                [torch.rand(self.options.particles + self.observed.noise, generator=g) for g in own]
            )
            with evaluating(self):
                if groups is None:
                    values = self._draw_groups(rows[batch], nodes[batch], normal, uniform, temperature)
                else:
                    values = [group[batch] for group in groups]
                parameters = self._decoded(values)
            last = self._like(uniform[:, self.options.particles :])
            numbers.append(self.observed.sample(parameters, last))
            latent.append(self.hierarchy.to_groups(values))
        known = nodes[:, self.hierarchy.rows.node_of_number]
        answers = torch.where(known, rows, torch.cat(numbers)).cpu()
        sampled = {**self.hierarchy.rows.unflatten(answers), self.hierarchy.group: torch.cat(latent).cpu()}
        return verified(self.graph, sampled, count, verify)

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def _latent_numbers(self) -> int:
        return self.hierarchy.layers * self._group_numbers

    @property
    def _group_numbers(self) -> int:
        return self.hierarchy.channels * math.prod(self.hierarchy.positions)

    @property
    def _noise_numbers(self) -> int:
        return self.options.particles * self._latent_numbers

    def _draw_groups(
        self, rows: Tensor, nodes: Tensor, normal: Tensor, uniform: Tensor, temperature: float
    ) -> list[Tensor]:
        """Latent groups given evidence, of rows without evidence from the prior.

        Args:
            rows, nodes: evidence.
            normal: standard normal noise, shape ``(batch, particles * latent numbers)``.
            uniform: numbers between 0 and 1, shape ``(batch, particles or more)``.
            temperature: factor of the standard deviations of the prior.
        """
        without = ~nodes.any(1)
        groups = [
            torch.zeros(len(rows), self.hierarchy.channels, *self.hierarchy.positions).to(rows)
            for _ in range(self.hierarchy.layers)
        ]
        if bool(without.any()):
            noise = self._like(normal[without.cpu(), : self._latent_numbers])
            for group, own in zip(groups, self._from_prior(temperature * noise), strict=True):
                group[without] = own
        if bool((~without).any()):
            particles, count = self.options.particles, int((~without).sum())
            noise = self._like(normal[~without.cpu()].view(count * particles, -1))
            draws, _ = self._posterior(
                rows[~without].repeat_interleave(particles, 0),
                nodes[~without].repeat_interleave(particles, 0),
                noise,
                None,
            )
            weights = draws.log_weight.view(count, particles)
            selected = gumbel_argmax(weights, self._like(uniform[~without.cpu(), :particles]))
            places = torch.arange(count).to(selected) * particles + selected
            for group, own in zip(groups, draws.groups, strict=True):
                group[~without] = own[places]
        return groups

    def _from_prior(self, noise: Tensor) -> list[Tensor]:
        parts = self._noise_of_groups(noise)
        return self.network.traverse(
            len(noise), lambda condition: condition.prior.at(parts[condition.number])
        )[0]

    def _decoded(self, groups: list[Tensor]) -> Tensor:
        """Parameters of the observed nodes given the groups."""
        return self.network.traverse(len(groups[0]), lambda condition: groups[condition.number])[1]

    def _posterior(
        self, rows: Tensor, nodes: Tensor, noise: Tensor, record: AttentionRecord | None
    ) -> tuple[Draws, Tensor]:
        """Draws from the posterior at given noise, and the parameters of the observed nodes."""
        layout = self.hierarchy
        numbers = self.observed.standardised(rows)
        seen = torch.where(nodes[:, layout.rows.node_of_number], numbers, 0)
        evidence = self.network.evidence(layout.to_image(seen), layout.to_image(nodes))
        parts = self._noise_of_groups(noise)
        pairs: list[tuple[Normals, Normals]] = []

        def choose(condition: Condition) -> Tensor:
            posterior = self.network.posterior(evidence, condition, record)
            pairs.append((posterior, condition.prior))
            return posterior.at(parts[condition.number])

        groups, parameters = self.network.traverse(len(rows), choose, record)
        logs = self.observed.log_probability(parameters, seen)
        priors = [prior.log_density(z) for z, (_, prior) in zip(groups, pairs, strict=True)]
        posteriors = [posterior.log_density(z) for z, (posterior, _) in zip(groups, pairs, strict=True)]
        draws = Draws(
            groups,
            torch.where(nodes, logs, 0).sum(1),
            torch.stack(priors).sum(0),
            torch.stack(posteriors).sum(0),
            [posterior.divergences(prior) for posterior, prior in pairs],
        )
        return draws, parameters

    def _noise_of_groups(self, noise: Tensor) -> list[Tensor]:
        shape = self.hierarchy.channels, *self.hierarchy.positions
        return [part.reshape(len(noise), *shape) for part in noise.split(self._group_numbers, 1)]

    def _rows_of(self, values: Mapping[str, Tensor]) -> Tensor:
        """Rows of the observed variables of complete examples."""
        rows = self.hierarchy.rows.flatten({k: x for k, x in values.items() if k != self.hierarchy.group})
        rows = self._like(rows)
        self.observed.check(rows, torch.ones(1, self.hierarchy.rows.nodes, dtype=torch.bool))
        return rows

    def _evidence(self, given: Given, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Numbers of the observed nodes, 0 elsewhere, and their mask."""
        evidence = {name: x for name, x in given.items() if name != self.hierarchy.group}
        if count is None:
            if self.hierarchy.group in given:
                raise ObservationError(
                    f"variable {self.hierarchy.group!r}: likelihoods are those of the observed variables; "
                    "leave the latent groups out."
                )
            count = max((len(x.value if isinstance(x, Partial) else x) for x in evidence.values()), default=1)
        whole_number("number of answers", count, 1, ArgumentError)
        rows, nodes = self.hierarchy.rows.observation(evidence, count)
        rows, nodes = self._like(rows), nodes.to(self.network.start.device)
        self.observed.check(rows, nodes)
        return rows, nodes

    def _given_groups(self, given: Given, count: int) -> list[Tensor] | None:
        """The latent groups, if they are given.

        Raises:
            ObservationError: for another shape, or a part of them.
        """
        z = given.get(self.hierarchy.group)
        if z is None:
            return None
        if isinstance(z, Partial):
            raise ObservationError(
                f"variable {self.hierarchy.group!r}: latent groups are given as a whole, or not at all."
            )
        groups = self._groups_of(z)
        if len(z) not in (1, count):
            raise ObservationError(
                f"variable {self.hierarchy.group!r}: {len(z)} rows are given, but {count} are wanted."
            )
        return [group.expand(count, -1, -1, -1) for group in groups]

    def _groups_of(self, z: Tensor) -> list[Tensor]:
        shape = self.hierarchy.shape
        if not isinstance(z, Tensor) or tuple(z.shape[1:]) != shape or not len(z):
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ObservationError(
                f"variable {self.hierarchy.group!r} needs a tensor of shape "
                f"({', '.join(map(str, ('batch', *shape)))}), got {got}."
            )
        if not bool((z.abs() <= _LARGEST).all()):
            raise ObservationError(
                f"variable {self.hierarchy.group!r}: values have NaN, infinite entries, or entries beyond "
                f"{_LARGEST:g}."
            )
        return self.hierarchy.from_groups(self._like(z))

    def _like(self, x: Tensor) -> Tensor:
        return x.to(self.network.start.device, self.network.start.dtype)
