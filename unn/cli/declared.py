"""Problems that any engine can serve: a declaration, examples, queries and metrics."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..engine import (
    CanInfer,
    CanLearn,
    CanSample,
    CanSolve,
    Engine,
    TakesWeights,
    Verdict,
    build_model,
    engine_names,
    load_engine,
)
from ..errors import DeclarationError, UnnError, unknown
from .capabilities import check_tries, instead, refusal
from .evaluate import Evaluate
from .evaluations import TEST_SEED, evaluation_of
from .options import DRAWN, check_picture, read_options
from .problem import HasBaselines, Problem, Sampleable, Solvable, Trained
from .run_options import Defaults, later_options, run_config
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
    from ..training import Task

Masks = Mapping[str, "Tensor"]
"""Masks of observed nodes by variable, boolean, shape ``(count or 1, *node axes)``."""


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
        if isinstance(network, TakesWeights):
            try:
                network.take_weights(run.network)
            except DeclarationError as error:
                raise UnnError(f"{run.folder}: {error}") from None
            return replace(run, config=config, network=network.eval())
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

        rows = [
            {name: x[k] for name, x in values.items()}
            for k in range(min(DRAWN, len(next(iter(values.values())))))
        ]
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
            return {**content, "model": {**later_options(engine), **model}}
        process = model.get("process")
        engine = process if process in ("regressor", "vaeac") else "denoiser"
        names = {option.name for option in fields(load_engine(engine).options)}
        options = {name: value for name, value in model.items() if name in names or engine == "denoiser"}
        return {**content, "engine": engine, "model": {**later_options(engine), **options}}

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
            others = [name for name in engine_names() if name != engine.name and self.can_serve(config, name)]
            able = f" Engines that serve it: {', '.join(others)}." if others else ""
            raise DeclarationError(
                f"{self.name}: engine {engine.name!r} cannot serve this problem: {verdict.reason}.{able}"
            )

    def can_serve(self, config: Any, name: str) -> bool:
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
        # a problem may return one graph to every call, which models would train and move to their device
        declared = copy.deepcopy(self.declare(config))
        graph = self.graph_for(declared, config, engine)
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
        if iterations is not None and not network.has_rounds:
            raise UnnError(f"--iterations: engine {run.config.engine!r} answers in one step; leave it out.")
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
        return evaluation_of(self, run, request)

    def sample(self, run: Trained, request: Sample) -> Answer:
        """Sample the variables that are not given."""
        from ..draw import save_figure
        from .measures import draw_values

        network = run.network
        if not isinstance(network, CanSample):
            raise UnnError(refusal(self, run, f"has no samples{instead(network)}", CanSample))
        check_tries(self, run, request.sampling.tries)
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
            if len(steps) > DRAWN:
                shown = [steps[round(k * (len(steps) - 1) / (DRAWN - 1))] for k in range(DRAWN)]
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
        from .solutions import answer_of

        if request.draw is not None:
            check_picture(request.draw)

        # options may fit the graph of the instances alone
        run = self.run_for(run, request.instances)
        if request.options:
            configs = self.config, type(run.config.model)
            run = self.with_options(run, read_options(configs, request.options))
        network = run.network
        if not isinstance(network, CanSolve):
            raise UnnError(refusal(self, run, "does not solve", CanSolve))
        given, sizes, count = self.read_instances(run, request.instances)
        solutions = solve(network, given, count=count, options=request.solving, sizes=sizes)
        return answer_of(self, run, solutions, given, request)

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
            raise UnnError(refusal(self, run, f"has no best values{instead(run.network)}", CanInfer))
