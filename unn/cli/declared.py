"""Problems that any engine can serve: a declaration, examples, queries and metrics."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..engine import (
    CanInfer,
    CanLearn,
    CanSample,
    CanSolve,
    Engine,
    SamplingOptions,
    Verdict,
    build_model,
    engine_names,
    load_engine,
)
from ..errors import ArgumentError, DeclarationError, UnnError, unknown
from ..training.options import TrainingConfig
from .evaluate import Evaluate
from .options import check_picture, read_options
from .problem import HasBaselines, Problem, Sampleable, Solvable, Trained
from .sample import Sample
from .solve import Solve
from .verb import Answer

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from ..descent.solution import Solution
    from ..diffusion.samples import Samples
    from ..factor_graph import FactorGraph
    from ..networks.tokens import Given
    from ..solver.solve import Solutions
    from ..training import Task

Masks = Mapping[str, "Tensor"]
"""Masks of observed nodes by variable, boolean, shape ``(count or 1, *node axes)``."""

TEST_SEED = 1
"""Seed of the queries for evaluating runs and baselines."""

CONDITIONS = 256
"""Default number of test queries, with one answer each."""

_TAKEN = frozenset(
    {option.name for option in fields(TrainingConfig)}
    | {"engine", "model", "training", "config", "folder", "json", "quiet"}
)
"""Names of options of training and of commands."""

_SHOWN_INSTANCES = 20
"""Largest number of solved instances that are printed one by one."""

_LATER_OPTIONS: dict[str, dict[str, Any]] = {
    "DescentOptions": {"rounds": "fixed", "gradient_rounds": 0, "contraction": 0.0, "round_losses": "last"},
    "SolverOptions": {"decimate_every": 0},
    "RecurrentOptions": {"labelled_share": 1.0, "position_deviation": 0.0},
    "RegressorOptions": {"coordinates": "linear", "dropout": 0.0},
    "VAEACOptions": {"coordinates": "linear"},
    "DenoiserOptions": {
        "preconditioning": "scalar",
        "coordinates": "linear",
        "dropout": 0.0,
        "noise_mean": -0.5,
        "noise_deviation": 1.6,
        "lowest_noise": 0.002,
        "highest_noise": 80.0,
    },
}
"""Options of engines, by their class, that runs of earlier versions do not have, with values that change
nothing."""

_COMPARED = 20
"""Default number of queries that are compared with reference samples."""

_REFERENCED = 1000
"""Default number of samples of each query that are compared with reference samples."""

_COVERING, _FEWEST_COVERED = 100, 16
"""Default number of samples of each condition in expected coverage, and the smallest number of conditions."""

_DRAWN = 8
"""Maximum number of samples or steps in a picture."""


_OF_RUNS = ("engine", "model", "training")
"""Options that a run has besides those of its problem."""


@dataclass(frozen=True)
class Defaults:
    """Measured defaults of a problem for one engine.

    Attributes:
        options: options of the engine.
        training: options of training.
        problem: options of the problem whose defaults differ with this engine, by name.
    """

    options: Any
    training: TrainingConfig = TrainingConfig(
        steps=2000, evaluate_every=2000, batch=64, rate=1e-3, clip=1.0, ema=0.99
    )
    problem: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Query:
    """Evidence for a batch of test queries.

    Attributes:
        given: evidence by variable, complete or partial.
        truth: values of the examples from which the evidence comes, by variable; empty if unknown.
    """

    given: Given
    truth: Mapping[str, Tensor] = field(default_factory=dict)


class DeclaredProblem(Problem, Sampleable, Solvable, HasBaselines):
    """A problem that any engine can serve.

    It declares its graph, draws or loads examples, and says what is observed in training and in tests, and
    how answers are measured; it names no network. ``config`` has the options of data and declaration alone:
    those of the engine and of training are added for the chosen engine, as ``model`` and ``training``.

    Attributes:
        defaults: measured defaults by engine; the first engine is the default. Other engines run with their
            own defaults, with the training of the first and its options of the same name.
        noun: plural of what a sample is, for texts.
        monitor: metric that selects the best weights with ``--patience``, or "loss".
        larger_is_better: whether larger values of ``monitor`` are better.
    """

    defaults: ClassVar[Mapping[str, Defaults]]
    noun: ClassVar[str] = "samples"
    monitor: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool] = False

    # -- what a problem defines ------------------------------------------------------------------------------

    @abstractmethod
    def generate(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Examples: values of all observable variables, by name, shape ``(count, *axes)``.

        Args:
            config: options of the problem.
            count: number of examples.
            generator: random number generator.
            sizes: sizes of dynamic axes.
        """

    @abstractmethod
    def observed(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Observation masks for training, by variable, shape ``(count or 1, *node axes)``; drawn per
        example."""

    @abstractmethod
    def metrics(self, config: Any, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Metrics of answers to a batch of queries.

        Args:
            config: options of the problem.
            query: evidence of the answers, and the truth where it is known.
            values: values of all observable variables, shape ``(count, *axes)``.
        """

    def model_metrics(self, config: Any, network: nn.Module, count: int, seed: int) -> dict[str, float]:
        """Figures of the model itself on held-out examples, such as a bound of their likelihood; none by
        default.

        Args:
            config: options of the problem.
            network: trained model.
            count: number of examples.
            seed: seed of everything random.
        """
        return {}

    def observable(self, config: Any) -> tuple[str, ...]:
        """Names of the variables that examples have values of; by default all of the graph."""
        return tuple(self.declare(config).variables)

    def examples(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Training examples and observation masks; by default the two are independent.

        Args:
            config: options of the problem.
            count: number of examples.
            generator: random number generator.
            sizes: sizes of dynamic axes.
        """
        return self.generate(config, count, generator, sizes), self.observed(config, count, generator, sizes)

    def training_set(self, config: Any) -> Mapping[str, Tensor] | None:
        """A fixed set of training examples; None (default) for a stream from ``generate``, unless the option
        ``examples`` sets a number of them."""
        import torch

        from ..ops.seeds import seed_of

        count = getattr(config, "examples", 0)
        if not count:
            return None
        generator = torch.Generator().manual_seed(seed_of(config.training.seed, 5))
        return self.generate(config, count, generator, self.test_sizes(config))

    def augment(
        self, config: Any, values: Mapping[str, Tensor], observed: Masks, generator: torch.Generator
    ) -> Mapping[str, Tensor]:
        """Examples as one query of a training step sees them, such as images that are evidence moved at
        random; unchanged by default.

        Args:
            config: options of the problem.
            values: examples by variable, shape ``(batch, *axes)``.
            observed: observation masks of the query by variable.
            generator: random number generator.
        """
        return values

    def training_queries(self, config: Any, observed: Masks) -> Sequence[tuple[float, Masks]]:
        """Weights and observation masks of the queries of which the training loss is the weighted sum; by
        default the masks that were drawn, with weight 1."""
        return [(1.0, observed)]

    def sizes(self, config: Any, generator: torch.Generator) -> dict[str, int]:
        """Sizes of dynamic axes for one training batch; none by default."""
        return {}

    def sizes_vary(self, config: Any) -> bool:
        """Whether ``sizes`` differ between batches."""
        return False

    def test_count(self, config: Any, network: nn.Module) -> int:
        """Number of test queries in training evaluations; 64 by default."""
        return 64

    def test_queries(self, config: Any, count: int, generator: torch.Generator) -> dict[str, Query]:
        """Queries for evaluation, by name; by default one, named "", observed as in training."""
        from ..graph.partial import Partial

        sizes = self.test_sizes(config)
        values = self.generate(config, count, generator, sizes)
        masks = self.observed(config, count, generator, sizes)
        given = {
            name: Partial(values[name], mask.expand(count, *values[name].shape[1 : mask.ndim]))
            for name, mask in masks.items()
        }
        return {"": Query(given, values)}

    def compared_variables(self, config: Any) -> tuple[str, ...]:
        """Variables whose samples are compared with the truth as distributions, by simulation-based
        calibration; none by default.

        These should be uncertain given the evidence: a continuous variable that is determined by the others
        has no spread to compare.
        """
        return ()

    def reference(self, config: Any, given: Given, count: int, seed: int) -> Mapping[str, Tensor] | None:
        """Samples of the exact conditional distribution, ``(count, *axes)``, for two-sample measures; None
        (default) if there are none.

        Args:
            config: options of the problem.
            given: evidence of one query.
            count: number of samples.
            seed: random seed.
        """
        return None

    def reference_nodes(self, config: Any, sizes: Mapping[str, int]) -> Masks:
        """Nodes on which ``reference`` takes evidence, by variable, boolean, shape ``(*node axes)``; all
        nodes of variables without an entry, and by default of all.

        Args:
            config: options of the problem.
            sizes: sizes of dynamic axes.
        """
        return {}

    def exact_graph(self, config: Any) -> FactorGraph | None:
        """The declaration whose distribution is that of the examples, for comparisons with exact inference.

        By default the graph, if it has no parameters that are learned; None if there is none.
        """
        graph = self.declare(config)
        return None if next(graph.parameters(), None) is not None else graph

    def untrained(
        self, config: Any, given: Given, count: int, chain_steps: int
    ) -> dict[str, Mapping[str, Tensor]]:
        """Results of training-free methods: by method, values by variable, ``(count, *axes)``; none by
        default.

        Args:
            config: options of the problem.
            given: evidence.
            count: number of queries.
            chain_steps: number of steps of each Markov chain.
        """
        return {}

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """One sample as lines of text; by default the values of all variables."""
        from .values import describe_value

        return [f"{name}: {describe_value(value[k : k + 1])}" for name, value in values.items()]

    def read_instances(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int], int]:
        """Read instances to solve: evidence, sizes of the graph and number of instances; by default the
        evidence as ``NAME=VALUE``.

        Raises:
            UnnError: for malformed evidence, with the item and the place in it.
        """
        from ..graph.partial import Partial

        given, sizes = self.read_given(run, texts)
        lengths = [len(x.value if isinstance(x, Partial) else x) for x in given.values()]
        return given, sizes, max(lengths, default=1)

    def with_options(self, run: Trained, options: Mapping[str, Any]) -> Trained:
        """A run with other options of the problem or of its engine, and the same weights.

        Args:
            run: the trained run.
            options: values by the name of the option.

        Raises:
            UnnError: for an unknown option, a value out of range, or a graph that the weights do not serve.
        """
        own = {option.name for option in fields(self.config)}
        known = own | {option.name for option in fields(run.config.model)}
        for name in options:
            if name not in known:
                raise UnnError(f"problem {self.name!r}: {unknown('option', name, known)}")
        model = replace(run.config.model, **{name: x for name, x in options.items() if name not in own})
        config = replace(run.config, model=model, **{name: options[name] for name in own & options.keys()})
        self.check(config)
        network = self.network(config, run.facts)
        weights = {name: tuple(x.shape) for name, x in run.network.state_dict().items()}
        needed = {name: tuple(x.shape) for name, x in network.state_dict().items()}
        if weights != needed:
            raise UnnError(
                f"{run.folder}: the weights of engine {config.engine!r} do not serve the graph with "
                f"{', '.join(f'{name}={value}' for name, value in options.items())}."
            )
        network.load_state_dict(run.network.state_dict())
        return replace(run, config=config, network=network.eval())

    def run_for(self, run: Trained, texts: tuple[str, ...]) -> Trained:
        """The run with the graph of the instances to solve, such as another size; by default unchanged.

        Raises:
            UnnError: if the weights do not serve this graph, or a file cannot be read.
        """
        return run

    def encode(self, run: Trained, values: Mapping[str, Tensor]) -> Any:
        """One answer, values by variable of shape ``(*axes)``, as JSON; by default categories as their
        numbers."""
        from ..networks.tokens import kinds

        kind = kinds(self.graph(run.network))
        return {
            name: (x.argmax(-1) if kind[name] == "category" else x).tolist() for name, x in values.items()
        }

    def explain(self, run: Trained, reason: str) -> str:
        """Why an instance is impossible, in the words of the problem; by default with indices from 0."""
        return reason

    def blocks(self, config: Any) -> dict[str, tuple[int, int]]:
        """Rows and columns of the blocks that pictures separate by lines, by variable; none by default."""
        return {}

    def first_numbers(self, config: Any) -> dict[str, int]:
        """Number of the first category by variable in pictures; 1 for those that are left out."""
        return {}

    def picture(self, run: Trained, values: Mapping[str, Tensor], given: Given) -> Figure:
        """Draw samples of all variables, at most eight of them, with the evidence of all or of each."""
        from .measures import draw_values

        rows = [{name: x[k] for name, x in values.items()} for k in range(min(_DRAWN, _count(values)))]
        names = [str(k + 1) for k in range(len(rows))]
        return draw_values(
            run.network, rows, names, given, self.blocks(run.config), self.first_numbers(run.config)
        )

    # -- engines ---------------------------------------------------------------------------------------------

    def config_for(self, engine: str | None) -> type:
        """The configuration of a run with an engine: the options of the problem, the engine and training.

        Raises:
            UnnError: if the engine is not installed.
        """
        return run_config(type(self), engine or self.default_engine)

    @property
    def default_engine(self) -> str:
        """The first engine of ``defaults``."""
        return next(iter(self.defaults))

    def verdicts(self) -> dict[str, Verdict]:
        """Whether each installed engine serves the problem with its default options, and why not."""
        verdicts: dict[str, Verdict] = {}
        for name in engine_names():
            try:
                verdicts[name] = self.verdict_of(self.config_for(name)(), load_engine(name))
            except UnnError as error:
                verdicts[name] = Verdict(str(error).rstrip("."))
            except Exception as error:  # a broken engine must not disable the others
                verdicts[name] = Verdict(f"engine {name!r} failed: {type(error).__name__}: {error}")
        return verdicts

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the configuration of a run of an earlier version, in which the process named the engine, or
        the engine had fewer options."""
        model = content.get("model")
        if not isinstance(model, Mapping):
            return content
        if "engine" in content:
            engine = str(content["engine"])
            return {**content, "model": {**_later_options(engine), **model}}
        process = model.get("process")
        engine = process if process in ("regressor", "vaeac") else "denoiser"
        names = {option.name for option in fields(load_engine(engine).options)}
        options = {name: value for name, value in model.items() if name in names or engine == "denoiser"}
        return {**content, "engine": engine, "model": {**_later_options(engine), **options}}

    def engine_of(self, config: Any) -> Engine:
        """The engine of a configuration."""
        return load_engine(config.engine)

    def verdict_of(self, config: Any, engine: Engine) -> Verdict:
        """Whether an engine can serve the graph of the problem, and why not."""
        if engine.one_size and self.sizes_vary(config):
            return Verdict("it has weights for one size of the graph, and the sizes of the examples vary")
        try:
            graph = self.graph_for(self.declare(config), config, engine)
        except DeclarationError as error:
            return Verdict(str(error).rstrip("."))
        try:
            return Verdict(engine.refusal(graph))
        except Exception as error:  # a broken engine must not disable the others
            return Verdict(f"engine {engine.name!r} failed to answer: {type(error).__name__}: {error}")

    def graph_for(self, graph: FactorGraph, config: Any, engine: Engine) -> FactorGraph:
        """The graph that an engine works on, without latent variables if it needs values of all."""
        from ..graph.latents import contract_latents

        if not engine.needs_all_values:
            return graph
        contracted = contract_latents(graph, self.observable(config), self.test_sizes(config))
        return cast("FactorGraph", contracted)

    def check(self, config: Any) -> None:
        """Check the ranges of the options of the engine and of training, and that the engine serves the
        graph.

        Raises:
            ArgumentError: names the option.
            DeclarationError: says why the engine cannot serve the graph, and which can.
        """
        engine = self.engine_of(config)
        if hasattr(config.model, "check"):
            config.model.check(self.name)
        config.training.check()
        verdict = self.verdict_of(config, engine)
        if not verdict:
            others = [
                name for name in engine_names() if name != engine.name and self._can_serve(config, name)
            ]
            able = f" Engines that serve it: {', '.join(others)}." if others else ""
            raise DeclarationError(
                f"{self.name}: engine {engine.name!r} cannot serve this problem: {verdict.reason}.{able}"
            )

    def _can_serve(self, config: Any, name: str) -> bool:
        """Whether an engine serves the problem with the options that differ from their defaults."""
        usual = type(config)()
        try:
            changed = {
                option.name: getattr(config, option.name)
                for option in fields(self.config)
                if getattr(config, option.name) != getattr(usual, option.name)
            }
            return bool(self.verdict_of(self.config_for(name)(**changed), load_engine(name)))
        except Exception:  # a broken engine must not disable the others
            return False

    def network(self, config: Any, facts: Mapping[str, Any]) -> nn.Module:
        """The model of the engine with fresh weights."""
        engine = self.engine_of(config)
        graph = self.graph_for(self.declare(config), config, engine)
        return build_model(engine, graph, config.model, self.test_sizes(config))

    def prepare(self, config: Any, network: nn.Module) -> None:
        """Adapt a fresh model to the training set, or to examples of the stream, if the engine learns."""
        import torch

        if not self.engine_of(config).trains:
            return
        assert isinstance(network, CanLearn)
        values, sizes = self.training_set(config), self.test_sizes(config)
        if values is None:
            generator = torch.Generator().manual_seed(20_231)
            values, _ = self.examples(config, network.prepared_examples, generator, sizes)
        network.prepare(values, **sizes)

    def graph(self, network: nn.Module) -> FactorGraph:
        """The graph of the model."""
        graph: FactorGraph = network.graph  # type: ignore[assignment]
        return graph

    def task(self, config: Any) -> Task:
        """Training on the examples of the problem."""
        from .measures import ExamplesTask

        return ExamplesTask(self, config)

    def infer(
        self,
        run: Trained,
        given: Given,
        sizes: Mapping[str, int],
        iterations: int | None,
        want: tuple[str, ...],
        terms: bool,
    ) -> Solution:
        """The answer of the model, with its energies if it has any."""
        import torch

        from ..descent.model import DescentModel
        from ..descent.solution import Solution, Status
        from ..graph.partial import Partial
        from .measures import check_answers

        network = run.network
        assert isinstance(network, CanInfer)
        for name in want:
            if name in given and not isinstance(given[name], Partial):
                raise UnnError(f"--want {name}: variable {name!r} is given, so there is nothing to infer.")
        count = max((len(x.value if isinstance(x, Partial) else x) for x in given.values()), default=1)
        with torch.random.fork_rng(devices=[]):
            # initial values may be random
            torch.manual_seed(0)
            if isinstance(network, DescentModel):
                return network.minimise(given, count, sizes, iterations, want=want, terms=terms)
            values = dict(network.infer_values(given, count, sizes, iterations))
        check_answers(f"engine {run.config.engine!r}", given, count, values)
        for name in want:
            if name not in values:
                raise UnnError(
                    f"--want {name}: engine {run.config.engine!r} infers {', '.join(values)} only."
                )
        return Solution(values, {}, None, None, (), iterations or self.iterations(run), Status.LIMIT, "")

    def iterations(self, run: Trained) -> int:
        """Number of rounds in training, where the engine has rounds."""
        return int(getattr(run.config.model, "iterations", 10))

    # -- verbs -----------------------------------------------------------------------------------------------

    def baselines(self, config: Any, count: int, chain_steps: int) -> Answer:
        """Metrics of the problem on its test queries, by method."""
        from .measures import measure_untrained

        metrics_by_method = measure_untrained(self, config, count, TEST_SEED, chain_steps)
        if not metrics_by_method:
            raise UnnError(
                f"problem {self.name!r} has no baselines without training; --engine regressor and vaeac "
                "train some."
            )
        lines = [
            f"{method}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            for method, metrics in metrics_by_method.items()
        ]
        return Answer(tuple(lines), metrics_by_method)

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """Metrics of the problem on its test queries, for each number of rounds or sampling steps."""
        return self.evaluate_samples(run, Evaluate(run.folder, iterations))

    def evaluate_samples(self, run: Trained, request: Evaluate) -> Answer:
        """Metrics with other sampling options; with several attempts, also their average number."""
        from .measures import MOST_CALIBRATED, calibrations, measure

        options = request.sampling
        unavailable = replace(options, steps=None, tries=1, seed=None, at_once=256)
        if not isinstance(run.network, CanSolve):
            unavailable = options
        changed = unavailable != SamplingOptions() or request.draw is not None
        if not isinstance(run.network, CanSample) and changed:
            raise UnnError(
                self._refusal(
                    run, "draws no samples; leave out the options of sampling and --draw", CanSample
                )
            )
        self._check_tries(run, options.tries)
        if request.iterations and options.steps is not None:
            raise UnnError("--iterations and --steps are the same number here; give one of them.")
        if isinstance(run.network, CanSample) and not run.network.has_steps and request.iterations:
            raise UnnError(f"--iterations: engine {run.config.engine!r} of this run samples in one step.")
        seed = TEST_SEED if options.seed is None else options.seed
        numbers = request.iterations or (options.steps,)
        data: dict[str, Any] = {}
        lines = []
        if request.metric:
            return self._compare_with_reference(run, request, numbers, seed)
        for number in numbers:
            now = replace(options, steps=number, seed=seed)
            figures = measure(
                self,
                run.config,
                run.network,
                request.count or max(CONDITIONS, self.test_count(run.config, run.network)),
                now,
                calibrated=request.count or MOST_CALIBRATED,
            )
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            shown = number or self._default_number(run)
            data[str(shown or 1)] = figures
            lines.append(text if shown is None else f"{shown} {self._unit(run)}: {text}")
        if request.draw is not None:
            from ..draw import draw_ranks, save_figure

            compared = calibrations(self, run.config, run.network, replace(options, seed=seed))
            if not compared:
                raise UnnError(
                    f"--draw: problem {self.name!r} has no variable whose distribution is compared with the "
                    "truth."
                )
            save_figure(draw_ranks({name: c.ranks.tolist() for name, c in compared.items()}), request.draw)
            lines.append(f"rank histograms drawn in {request.draw}")
        return Answer(tuple(lines), data)

    def _compare_with_reference(
        self, run: Trained, request: Evaluate, numbers: Sequence[int | None], seed: int
    ) -> Answer:
        """Two-sample measures for several numbers of steps."""
        import torch

        from ..calibration import coverage_error, uniformity
        from ..local_coverage import local_coverage
        from ..ops.seeds import seed_of
        from .references import compare_with_reference, coverage_of, draw_comparison

        if request.draw is not None:
            check_picture(request.draw, several=len({*request.metric} & {"coverage", "local-coverage"}) > 0)
            if len(numbers) > 1:
                raise UnnError("--draw has one picture; give one number of --iterations.")
        coverages = ("coverage", "local-coverage")
        for metric in coverages:
            if metric in request.metric and (request.count or CONDITIONS) < _FEWEST_COVERED:
                raise UnnError(
                    f"--metric {metric} needs --count {_FEWEST_COVERED} or more, got {request.count}."
                )
        metrics = [metric for metric in request.metric if metric not in coverages]
        lines: list[str] = []
        data: dict[str, Any] = {}
        for number in numbers:
            now = replace(request.sampling, steps=number, seed=seed)
            shown = number or self._default_number(run)
            figures: dict[str, float] = {}
            entry: dict[str, Any] = {}
            each: dict[str, list[float]] = {}
            covered = local = None
            if metrics:
                count = request.count or _COMPARED
                each = compare_with_reference(
                    self, run.config, run.network, metrics, count, request.draws or _REFERENCED, now
                )
                figures |= {name: sum(values) / len(values) for name, values in each.items()}
                entry["queries"] = each
            if not set(coverages).isdisjoint(request.metric):
                count = request.count or CONDITIONS
                examined = coverage_of(self, run.config, run.network, count, request.draws or _COVERING, now)
                if "coverage" in request.metric:
                    covered = examined.probabilities
                    figures |= {"coverage_error": coverage_error(covered), "coverage_p": uniformity(covered)}
                if "local-coverage" in request.metric:
                    generator = torch.Generator().manual_seed(seed_of(seed, 15))
                    local = local_coverage(examined.probabilities, examined.evidence, generator)
                    figures |= {"local_coverage_error": local.error, "local_coverage_p": local.p_value}
            if request.draw is not None:
                draw_comparison(each, covered, local, request.draw)
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            lines.append(text if shown is None else f"{shown} {self._unit(run)}: {text}")
            data[str(shown or 1)] = {**figures, **entry}
        if request.draw is not None:
            lines.append(f"measures drawn in {request.draw}")
        return Answer(tuple(lines), data)

    def _unit(self, run: Trained) -> str:
        if isinstance(run.network, CanSolve):
            return "steps"
        return "sampling steps" if isinstance(run.network, CanSample) else "iterations"

    def _default_number(self, run: Trained) -> int | None:
        """Number of sampling steps or rounds of the model; None if it has neither."""
        if isinstance(run.network, CanSample):
            sampling = getattr(run.network, "sampling", SamplingOptions())
            return sampling.steps if isinstance(sampling, SamplingOptions) else None
        if isinstance(run.network, CanSolve):
            return int(getattr(run.config.model, "solving_steps", 0)) or None
        return self.iterations(run)

    def sample(self, run: Trained, request: Sample) -> Answer:
        """Sample the variables that are not given."""
        from ..draw import save_figure
        from .measures import draw_values

        network = run.network
        if not isinstance(network, CanSample):
            raise UnnError(self._refusal(run, f"has no samples{_instead(network)}", CanSample))
        self._check_tries(run, request.sampling.tries)
        if request.trace is not None and not network.has_steps:
            raise UnnError(
                f"--trace: engine {run.config.engine!r} samples in one step, so there are no steps to "
                f"draw; leave "
                "it out."
            )
        given, sizes = self.read_given(run, request.given)
        steps: list[tuple[int, dict[str, Tensor]]] = []

        def trace(step: int, values: dict[str, Tensor]) -> None:
            # record the first batch and the first attempt only
            if step == len(steps):
                steps.append((step, {name: x[0] for name, x in values.items()}))

        samples = network.sample_with(
            given,
            request.count,
            request.sampling,
            sizes,
            verify=bool(self.graph(network).constraints),
            trace=None if request.trace is None else trace,
        )
        lines: list[str] = []
        for k in range(request.count):
            lines += [*self.describe(run, samples.values, k), ""]
        lines.append(self.verdict(run, samples))
        if request.draw is not None:
            save_figure(self.picture(run, samples.values, given), request.draw)
            lines.append(f"samples drawn in {request.draw}")
        if request.trace is not None and steps:
            shown = steps
            if len(steps) > _DRAWN:
                shown = [steps[round(k * (len(steps) - 1) / (_DRAWN - 1))] for k in range(_DRAWN)]
            names = [f"step {k + 1}" for k, _ in shown]
            blocks = self.blocks(run.config)
            picture = draw_values(
                network,
                [values for _, values in shown],
                names,
                given,
                blocks,
                self.first_numbers(run.config),
                changes=True,
            )
            save_figure(picture, request.trace)
            lines.append(f"the first sample, step by step, drawn in {request.trace}")
        data = {name: value.tolist() for name, value in samples.values.items()}
        valid = None if samples.valid is None else samples.valid.tolist()
        return Answer(tuple(lines), {"values": data, "valid": valid, "tries": samples.tries.tolist()})

    def solve(self, run: Trained, request: Solve) -> Answer:
        """Verified answers to instances, or the best partial ones and what they violate."""
        from ..solver.solve import solve

        if request.draw is not None:
            check_picture(request.draw)

        # options may fit the graph of the instances alone
        run = self.run_for(run, request.instances)
        if request.options:
            configs = self.config, type(run.config.model)
            run = self.with_options(run, read_options(configs, request.options))
        network = run.network
        if not isinstance(network, CanSolve):
            raise UnnError(self._refusal(run, "does not solve", CanSolve))
        given, sizes, count = self.read_instances(run, request.instances)
        solutions = solve(network, given, count=count, options=request.solving, sizes=sizes)
        instances = [self._instance(run, solutions, k) for k in range(count)]
        lines: list[str] = []
        if count <= _SHOWN_INSTANCES:
            for k in range(count):
                lines += self._instance_lines(run, solutions, k, count, request.solving.count)
        number = {name: solutions.outcomes.count(name) for name in ("solved", "unsolved", "impossible")}
        shown = ", ".join(f"{value} {name}" for name, value in number.items() if value or name == "solved")
        lines.append(f"{shown} of {count}, {solutions.seconds:.3g} s")
        if request.draw is not None:
            lines.append(self._draw_answers(run, solutions, given, request.draw))
        data = {"instances": instances, **number, "seconds": solutions.seconds}
        return Answer(tuple(lines), data)

    def _draw_answers(self, run: Trained, solutions: Solutions, given: Given, file: Path) -> str:
        """Draw the first answers to the instances that have one, and say so in a line."""
        import torch

        from ..draw import save_figure
        from ..graph.partial import rows_of

        possible = torch.tensor([outcome != "impossible" for outcome in solutions.outcomes])
        drawn = (possible & solutions.is_assigned).nonzero()[:, 0]
        if not len(drawn):
            return f"nothing is drawn in {file}: no instance has an answer"
        values = {name: x[drawn] for name, x in solutions.values.items()}
        count = len(solutions.outcomes)
        own = {name: rows_of(x, drawn, count) for name, x in given.items()}
        save_figure(self.picture(run, values, own), file)
        shown = ", ".join(str(k + 1) for k in drawn[:_DRAWN].tolist())
        which = "answers" if len(drawn) == count <= _DRAWN else f"answers to instances {shown}"
        return f"{which} drawn in {file}"

    def _instance(self, run: Trained, solutions: Solutions, k: int) -> dict[str, Any]:
        """Result of one instance as JSON."""
        answers = solutions.answers[k]
        numbers = range(_count(answers) if answers else 0)
        result: dict[str, Any] = {
            "outcome": solutions.outcomes[k],
            "answers": [self.encode(run, {name: x[j] for name, x in answers.items()}) for j in numbers],
            "tries": int(solutions.tries[k]),
            "complete": bool(solutions.is_complete[k]),
        }
        if solutions.outcomes[k] == "unsolved":
            best = {name: x[k] for name, x in solutions.values.items()}
            has_best = bool(solutions.is_assigned[k])
            result["best"] = self.encode(run, best) if has_best else None
            result["violations"] = self._violations(run, solutions, k) if has_best else {}
        if solutions.reasons[k]:
            result["reason"] = self.explain(run, solutions.reasons[k])
        return result

    def _instance_lines(
        self, run: Trained, solutions: Solutions, k: int, count: int, wanted: int
    ) -> list[str]:
        """Result of one instance as text, of which some answers are wanted."""
        title = [f"instance {k + 1}: {solutions.outcomes[k]}"] if count > 1 else []
        if solutions.outcomes[k] == "impossible":
            reason = solutions.reasons[k]
            why = f"{self.explain(run, reason)} cannot hold" if reason else "the search visited every case"
            return [*title, f"impossible: {why}", ""]
        if solutions.outcomes[k] == "unsolved" and not solutions.is_assigned[k]:
            return [*title, "unsolved; no complete answer within the limits", ""]
        if solutions.outcomes[k] == "unsolved":
            violated = self._violations(run, solutions, k)
            text = ", ".join(f"{number} of {name!r}" for name, number in violated.items())
            lines = self.describe(run, solutions.values, k)
            why = f"the best answer violates {text}" if text else "no answer within the limits"
            return [*title, f"unsolved; {why}", *lines, ""]
        answers = solutions.answers[k]
        lines = title
        for j in range(_count(answers)):
            lines = [*lines, *self.describe(run, answers, j), ""]
        if solutions.is_complete[k]:
            lines = [*lines, "there is no other answer: the search visited every case", ""]
        elif _count(answers) < wanted:
            few = (
                f"{_count(answers)} of the {wanted} answers that were asked for; more --tries may find others"
            )
            lines = [*lines, few, ""]
        return lines

    def _violations(self, run: Trained, solutions: Solutions, k: int) -> dict[str, int]:
        """Number of violated parts of each violated constraint in the best answer to an instance."""
        values = {name: x[k : k + 1] for name, x in solutions.values.items()}
        counts = {c.name: int(c.violations_of(values)) for c in self.graph(run.network).constraints}
        return {name: number for name, number in counts.items() if number}

    def verdict(self, run: Trained, samples: Samples) -> str:
        """Describe in one line how many samples satisfy the constraints."""
        count = len(samples.tries)
        if samples.valid is None:
            return f"{count} {self.noun}"
        wrong = [str(k + 1) for k in range(count) if not samples.valid[k]]
        not_valid = f"; not valid: {', '.join(wrong)}" if wrong else ""
        return f"{count - len(wrong)} of {count} {self.noun} are valid{not_valid}"

    def require_inference(self, run: Trained) -> None:
        """Check that ``unn infer`` can answer.

        Raises:
            UnnError: if the model of the run has no best values; names the engines that do.
        """
        if not isinstance(run.network, CanInfer):
            raise UnnError(self._refusal(run, f"has no best values{_instead(run.network)}", CanInfer))

    def _check_tries(self, run: Trained, tries: int) -> None:
        if tries > 1 and not self.graph(run.network).constraints:
            raise ArgumentError(
                f"--tries: the graph of problem {self.name!r} has no constraint that a sample could violate."
            )

    def _refusal(self, run: Trained, what: str, capability: type) -> str:
        """Why a run does not answer a kind of query, and the engines that do."""
        queries: dict[type, str] = {CanSample: "sample", CanSolve: "solve"}
        query = queries.get(capability, "infer")
        able = []
        for name in engine_names():
            # a broken engine must not disable the others
            with contextlib.suppress(Exception):
                if query in load_engine(name).answers and self._can_serve(run.config, name):
                    able.append(name)
        others = f" Engines of this problem that do: {', '.join(able)}." if able else ""
        return f"{run.folder}: engine {run.config.engine!r} {what}.{others}"


@cache
def run_config(problem: type[DeclaredProblem], engine: str) -> type:
    """The configuration of a run: the options of a problem, its engine's as ``model``, and ``training``.

    Raises:
        UnnError: if the engine is not installed, or an option occurs twice.
    """
    options = load_engine(engine).options
    defaults = problem.defaults.get(engine) or _borrowed_defaults(problem, options)
    own = {option.name for option in fields(problem.config)}
    for option in fields(options):
        if option.name in _TAKEN:
            raise UnnError(
                f"engine {engine!r}: the option {option.name!r} is one of training or of a command; give it "
                "another name."
            )
        if option.name in own:
            raise UnnError(
                f"problem {problem.name!r} and engine {engine!r} both have an option {option.name!r}; rename "
                "one."
            )
    for option_name in defaults.problem:
        if option_name not in own:
            raise UnnError(
                f"problem {problem.name!r}: its defaults for engine {engine!r} have an "
                f"{unknown('option', option_name, own)}"
            )
    changed = [
        (option.name, option.type, field(default=defaults.problem[option.name]))
        for option in fields(problem.config)
        if option.name in defaults.problem
    ]
    reserved = [option.name for option in fields(problem.config) if option.name in _OF_RUNS]
    if reserved:
        raise UnnError(
            f"problem {problem.name!r}: the option {reserved[0]!r} of {problem.config.__name__} is one of "
            "every run; give it another name."
        )
    made = make_dataclass(
        problem.config.__name__,
        [
            *changed,
            ("engine", str, field(default=engine)),
            ("model", options, field(default=defaults.options)),
            ("training", TrainingConfig, field(default=defaults.training)),
        ],
        bases=(problem.config,),
        frozen=True,
    )
    made.__module__ = problem.config.__module__
    made.__doc__ = (
        f"{(problem.config.__doc__ or '').rstrip()}\n"
        f"        engine: Engine of the run; {', '.join(engine_names())}.\n"
        f"        model: Options of the engine.\n"
        f"        training: Options of training.\n"
    )
    return made


def _later_options(engine: str) -> dict[str, Any]:
    """Options of an engine that runs of earlier versions do not have; none if it is not installed."""
    try:
        return _LATER_OPTIONS.get(load_engine(engine).options.__name__, {})
    except UnnError:
        return {}


def _borrowed_defaults(problem: type[DeclaredProblem], options: type) -> Defaults:
    """Defaults of an engine without measured ones: the training of the default engine of the problem, and the
    engine's own options, except for those that it shares by inheritance with that engine."""
    first = next(iter(problem.defaults.values()))
    bases = (base for base in type(first.options).__mro__ if issubclass(options, base))
    common = next(bases)
    shared = [option.name for option in fields(common)] if is_dataclass(common) else []
    return Defaults(options(**{name: getattr(first.options, name) for name in shared}), first.training)


def _instead(network: nn.Module) -> str:
    """The commands that the model of a run does answer, as the end of a refusal."""
    kinds = {"sample": CanSample, "infer": CanInfer, "solve": CanSolve}
    commands = [f"unn {name}" for name, kind in kinds.items() if isinstance(network, kind)]
    return f"; use {' or '.join(commands)}" if commands else ""


def _count(values: Mapping[str, Tensor]) -> int:
    return len(next(iter(values.values())))
