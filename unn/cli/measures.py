"""Training a model on the examples of a problem, and measuring its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..calibration import Calibration, calibrate_discrete, calibrate_real, summary
from ..draw import Marking, draw_samples
from ..engine import CanInfer, CanLearn, CanSample, CanSolve, SamplingOptions, SolvingOptions
from ..errors import UnnError
from ..graph.declaration import Declaration
from ..graph.devices import moved
from ..graph.partial import Partial
from ..networks.tokens import Frames, Given, Slot, kinds
from ..ops.seeds import seed_of
from ..solver.solve import solve
from ..training import Examples, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .declared import DeclaredProblem, Masks, Query

Batch = tuple[dict[str, int], Sequence[tuple[float, Mapping[str, Tensor], "Masks"]]]
"""Sizes, and the weights, values and observation masks of the queries."""

_CPU = torch.device("cpu")
"""Where metrics are computed, whatever the device of the model."""

_DRAWS = 32
"""Number of samples per example in simulation-based calibration."""

MOST_CALIBRATED, _FEWEST_CALIBRATED = 256, 8
"""Bounds of the number of examples in simulation-based calibration."""

_MOST_NODES, _MOST_NODES_IN_TRAINING = 50_000, 8_000
"""Maximum total number of nodes in calibration, which bounds its run time."""


class ProblemExamples(Examples):
    """Examples of a problem, as an infinite stream or as a fixed set.

    Args:
        problem: problem that generates the examples.
        config: configuration of the run.
    """

    def __init__(self, problem: DeclaredProblem, config: Any) -> None:
        self.problem, self.config = problem, config
        self.samples = problem.training_set(config)

    def __len__(self) -> int:
        return 0 if self.samples is None else len(next(iter(self.samples.values())))

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Examples, one per index, with the queries that they are used for."""
        problem, config = self.problem, self.config
        values: Mapping[str, Tensor]
        if self.samples is None:
            sizes = problem.sizes(config, generator) or problem.test_sizes(config)
            values, observed = problem.examples(config, len(indices), generator, sizes)
        else:
            sizes = problem.test_sizes(config)
            values = {name: x[indices] for name, x in self.samples.items()}
            observed = problem.observed(config, len(indices), generator, sizes)
        queries = problem.training_queries(config, observed)
        return sizes, [
            (weight, problem.augment(config, values, own, generator), own)
            for weight, own in queries
            if weight
        ]


class ExamplesTask(Task):
    """Weighted sum of the losses of a model for the queries of a problem, and the problem's metrics.

    Args:
        problem: problem that generates examples.
        config: configuration of the run.
    """

    def __init__(self, problem: DeclaredProblem, config: Any) -> None:
        self.problem, self.config = problem, config
        self.monitor, self.larger_is_better = problem.monitor, problem.larger_is_better

    def examples(self) -> ProblemExamples:
        """Examples of the problem."""
        return ProblemExamples(self.problem, self.config)

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        """Weighted sum of the losses of the model over the queries."""
        assert isinstance(network, CanLearn)
        sizes, queries = batch
        losses = [weight * network.loss(values, observed, **sizes) for weight, values, observed in queries]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """The problem's metrics on held-out queries."""
        count = self.problem.test_count(self.config, network)
        return measure(
            self.problem, self.config, network, count, SamplingOptions(seed=0), _MOST_NODES_IN_TRAINING
        )


@torch.no_grad()
def answer(
    network: nn.Module,
    given: Given,
    count: int,
    options: SamplingOptions,
    sizes: Mapping[str, int],
    verify: bool,
) -> tuple[Mapping[str, Tensor], float]:
    """Answer a batch of queries: by samples if the model has them, else by its best values, discrete ones
    rounded.

    Args:
        network: trained model.
        given: evidence by variable, complete or partial.
        count: number of queries.
        options: options of sampling; ``steps`` is the number of rounds of a model without samples.
        sizes: sizes of dynamic axes.
        verify: check the constraints of the graph, where the model samples.

    Returns:
        Values by variable, shape ``(count, *axes)``, and the mean number of attempts.
    """
    if isinstance(network, CanSample):
        samples = network.sample_with(given, count, options, sizes, verify=verify)
        return moved(samples.values, _CPU), float(samples.tries.float().mean())
    if isinstance(network, CanSolve):
        limits = SolvingOptions(options.steps, options.tries, seed=options.seed or 0, at_once=options.at_once)
        solutions = solve(network, given, count=count, options=limits, sizes=sizes)
        return solutions.values, float(solutions.tries.float().mean())
    if not isinstance(network, CanInfer):
        raise UnnError(
            f"{type(network).__name__} derives from none of unn.CanSample, unn.CanSolve and unn.CanInfer."
        )
    with torch.random.fork_rng(devices=[]):
        # initial values may be random
        torch.manual_seed(options.seed or 0)
        values = moved(network.infer_values(given, count, sizes, options.steps), _CPU)
    graph: Declaration = network.graph  # type: ignore[assignment]
    check_answers(type(network).__name__, given, count, values)
    kind = kinds(graph)
    return {name: _rounded(x, kind[name]) for name, x in values.items()}, 1.0


def check_answers(model: str, given: Given, count: int, values: Mapping[str, Tensor]) -> None:
    """Check that inferred values are finite, one for each query, and contain the evidence.

    Raises:
        UnnError: names the model and the first variable whose values are not.
    """
    for name, x in values.items():
        if not isinstance(x, Tensor) or len(x) != count or not bool(x.isfinite().all()):
            shape = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise UnnError(
                f"{model}: the values of {name!r} must be finite, one for each of {count} queries, got "
                f"{shape}."
            )
        evidence = given.get(name)
        if evidence is None:
            continue
        known = evidence.value if isinstance(evidence, Partial) else evidence
        off = (x - known.to(x)).abs()
        if isinstance(evidence, Partial):
            mask = evidence.mask.reshape(*evidence.mask.shape, *(1,) * (off.ndim - evidence.mask.ndim))
            off = torch.where(mask, off, 0)
        if bool((off > 1e-4 * (1 + known.abs().max())).any()):
            raise UnnError(f"{model}: the answer changes the given values of {name!r}.")


def _rounded(value: Tensor, kind: str) -> Tensor:
    if kind == "binary":
        return (value > 0.5).to(value)
    if kind == "category":
        return torch.nn.functional.one_hot(value.argmax(-1), value.shape[-1]).to(value)
    return value


def measure(
    problem: DeclaredProblem,
    config: Any,
    network: nn.Module,
    count: int,
    options: SamplingOptions,
    most: int = _MOST_NODES,
    calibrated: int = MOST_CALIBRATED,
) -> dict[str, float]:
    """Metrics of a problem on its test queries, and calibration of the sample distribution.

    Args:
        problem: problem that defines the metrics.
        config: configuration of the run.
        network: trained model.
        count: number of queries, with one answer each.
        options: sampling options, with the seed of queries and samples; with more than one attempt per
            sample, their average number is also a metric.
        most: see ``calibrations``.
        calibrated: maximum number of examples in calibration.
    """
    figures: dict[str, float] = {}
    for name, query in _queries(problem, config, count, options.seed or 0).items():
        values, tries = answer(
            network, query.given, count, options, problem.test_sizes(config), verify=options.tries > 1
        )
        figures |= _metrics(problem, config, name, query, values)
        if options.tries > 1:
            figures |= _add_query({"tries": tries}, name)
    figures |= problem.model_metrics(config, network, count, options.seed or 0)
    return figures | summary(calibrations(problem, config, network, options, most, calibrated))


@torch.no_grad()
def calibrations(
    problem: DeclaredProblem,
    config: Any,
    network: nn.Module,
    options: SamplingOptions,
    most: int = _MOST_NODES,
    examples: int = MOST_CALIBRATED,
) -> dict[str, Calibration]:
    """Simulation-based calibration of the variables that the problem compares, by name; none without samples.

    Examples are drawn from the problem, observed as in training, and each is sampled several times.

    Args:
        problem: problem that generates examples.
        config: configuration of the run.
        network: trained model.
        options: sampling options with the seed of examples and samples; samples that violate constraints are
            included.
        most: maximum total number of nodes of all samples, which bounds the number of examples.
        examples: maximum number of examples, of which there are at least 8 and at most 256.
    """
    names = problem.compared_variables(config)
    if not names or not isinstance(network, CanSample):
        return {}
    sizes = problem.test_sizes(config)
    seed = options.seed or 0
    generator = torch.Generator().manual_seed(seed_of(seed, 7))
    frame = Frames(problem.graph(network)).at(**sizes)
    count = min(MOST_CALIBRATED, max(_FEWEST_CALIBRATED, min(examples, most // (_DRAWS * frame.nodes))))
    truth = problem.generate(config, count, generator, sizes)
    observed = problem.observed(config, count, generator, sizes)
    given = {
        name: Partial(_repeat(truth[name]), _repeat(expanded_mask(mask, truth[name])))
        for name, mask in observed.items()
    }
    samples = moved(
        network.sample_with(given, count * _DRAWS, replace(options, tries=1, seed=seed), sizes).values, _CPU
    )
    compared: dict[str, Calibration] = {}
    for name in names:
        slot = frame.slots[name]
        nodes = slot.nodes.stop - slot.nodes.start
        unobserved = torch.ones(count, nodes, dtype=torch.bool)
        if name in observed:
            unobserved = ~expanded_mask(observed[name], truth[name]).reshape(count, nodes)
        if not bool(unobserved.any()):
            continue
        true, drawn = (_numbers(x[name], slot) for x in (truth, samples))
        drawn = drawn.unflatten(0, (count, _DRAWS))
        if slot.kind == "real":
            unobserved = unobserved.repeat_interleave(slot.channels, 1)
            compared[name] = calibrate_real(true, drawn, unobserved, generator)
        else:
            compared[name] = calibrate_discrete(true, drawn, unobserved, slot.channels, generator)
    return compared


def _repeat(x: Tensor) -> Tensor:
    return x.repeat_interleave(_DRAWS, 0)


def expanded_mask(mask: Tensor, values: Tensor) -> Tensor:
    """Expand an observation mask to ``(batch, *node axes)``."""
    return mask.expand(len(values), *values.shape[1 : mask.ndim])


def _numbers(values: Tensor, slot: Slot) -> Tensor:
    """Values as real numbers or category indices, ``(batch, nodes)``; features of a real node count as
    nodes."""
    return (values if slot.kind != "category" else values.argmax(-1)).reshape(len(values), -1)


def measure_untrained(
    problem: DeclaredProblem, config: Any, count: int, seed: int, chain_steps: int
) -> dict[str, dict[str, float]]:
    """Metrics of training-free methods, by method; empty if there are none.

    Args:
        problem: problem that defines methods and metrics.
        config: configuration of a run.
        count: number of queries.
        seed: seed of the queries.
        chain_steps: number of steps of each Markov chain.
    """
    metrics: dict[str, dict[str, float]] = {}
    for name, query in _queries(problem, config, count, seed).items():
        for method, values in problem.untrained(config, query.given, count, chain_steps).items():
            metrics.setdefault(method, {}).update(_metrics(problem, config, name, query, values))
    return metrics


def draw_values(
    network: nn.Module,
    rows: Sequence[Mapping[str, Tensor]],
    names: Sequence[str],
    given: Given,
    blocks: Mapping[str, tuple[int, int]],
    first: Mapping[str, int],
    changes: bool = False,
) -> Figure:
    """Draw values of all variables, one picture for each row.

    Args:
        network: model of the graph.
        rows: values by variable, shape ``(*axes)``.
        names: titles of the rows.
        given: evidence of all rows or of each, whose cells are marked in variables of categories.
        blocks: rows and columns of the blocks that are separated by lines, by variable.
        first: number of the first category by variable; 1 where it is left out.
        changes: mark changes between successive rows.
    """
    graph: Declaration = network.graph  # type: ignore[assignment]
    categories = [name for name, kind in kinds(graph).items() if kind == "category"]
    cells = {
        name: _given_cells(given[name], rows[0][name].shape[:-1], len(rows))
        for name in categories
        if name in given
    }
    # several variables are already drawn side by side
    columns = 4 if len(rows[0]) == 1 else 1
    return draw_samples(
        list(rows),
        list(names),
        categories,
        marking=Marking(cells, dict(blocks), first, changes),
        columns=columns,
    )


def _given_cells(value: Tensor | Partial, shape: tuple[int, ...], rows: int) -> Tensor:
    """Masks of the given nodes of each row, shape ``(rows, *node axes)``."""
    if not isinstance(value, Partial):
        return torch.ones(rows, *shape, dtype=torch.bool)
    mask = value.mask[:rows]
    mask = mask.reshape(*mask.shape, *[1] * (1 + len(shape) - mask.ndim))
    if mask.ndim > 1 + len(shape):
        mask = mask.flatten(1 + len(shape)).all(-1)
    return mask.expand(rows, *shape)


def _queries(problem: DeclaredProblem, config: Any, count: int, seed: int) -> dict[str, Query]:
    return problem.test_queries(config, count, torch.Generator().manual_seed(seed_of(seed, 6)))


def _metrics(
    problem: DeclaredProblem, config: Any, name: str, query: Query, values: Mapping[str, Tensor]
) -> dict[str, float]:
    return _add_query(problem.metrics(config, query, values), name)


def _add_query(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """Append the name of the query to the names of metrics."""
    return {f"{metric} {name}".strip().replace(" ", "_"): value for metric, value in metrics.items()}
