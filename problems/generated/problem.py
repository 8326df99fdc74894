"""Base class of denoising problems: options, training on generated samples, evaluation, sampling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from unn.errors import DeclarationError, UnnError
from unn.extending import Answer, Evaluate, HasBaselines, Problem, Sample, Sampleable, Trained

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from unn import Partial
    from unn.diffusion import Samples
    from unn.networks.tokens import Given

    from .task import DenoisingTask


_WITHOUT_STEPS = ("regressor", "vaeac")
"""Processes that sample all variables in one step."""

_TEST_SEED = 1
"""Seed of the conditions for evaluating runs and baselines."""

_CONDITIONS = 256
"""Default number of conditions, with one sample each."""

_DRAWN = 8
"""Maximum number of samples or steps in a picture."""


class DenoisingProblem(Problem, Sampleable, HasBaselines):
    """A problem whose samples are generated, and whose graph becomes a denoiser.

    Subclasses declare the graph, generate samples, choose the observed nodes and define metrics; this class
    implements training, evaluation and sampling.
    """

    noun: ClassVar[str] = "samples"

    @abstractmethod
    def generate(self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Samples of all variables of the graph, by name, shape ``(count, *axes)``.

        Args:
            config: configuration of the run.
            count: number of samples.
            generator: random number generator.
            sizes: sizes of dynamic axes.
        """

    @abstractmethod
    def observed(self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Observation masks for training, by variable, shape ``(count or 1, *node axes)``; drawn per example."""

    def examples(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Training samples and observation masks; by default the two are independent.

        Args:
            config: configuration of the run.
            count: number of samples.
            generator: random number generator.
            sizes: sizes of dynamic axes.
        """
        values = self.generate(config, count, generator, sizes)
        return values, self.observed(config, count, generator, sizes)

    @abstractmethod
    def measures(self, config: Any, given: Given, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Metrics of samples.

        Args:
            config: configuration of the run.
            given: evidence of the samples.
            values: sampled values by variable, shape ``(count, *axes)``.
        """

    def sizes(self, config: Any, generator: torch.Generator) -> dict[str, int]:
        """Sizes of dynamic axes for one training batch; none by default."""
        return {}

    def conditions(self, config: Any, count: int, generator: torch.Generator) -> dict[str, Given]:
        """Evidence for evaluation, by name of the condition; by default as observed in training."""
        from unn import Partial

        sizes = self.test_sizes(config)
        values = self.generate(config, count, generator, sizes)
        where = self.observed(config, count, generator, sizes)
        return {"": {name: Partial(values[name], mask.expand(count, *values[name].shape[1 : mask.ndim])) for name, mask in where.items()}}

    def read_given(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int]]:
        """Read the evidence from the command line, by name, and the sizes of the graph; by default NAME=VALUE.

        Dynamic axes have the sizes of the evidence, or else those of the options.

        Raises:
            UnnError: for malformed evidence, with the item and the place in it.
        """
        from unn.cli.infer import assignments

        given = {name: self.read_value(run, name, text) for name, text in assignments(texts).items()}
        sizes = self.test_sizes(run.config)
        for name, value in given.items():
            axes = zip(self.graph(run.network).variables[name].axes, value.shape[1:], strict=True)
            sizes |= {axis: size for axis, size in axes if axis in sizes}
        return given, sizes

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """One sample as lines of text; by default the values of all variables."""
        from unn.cli.values import describe_value

        return [f"{name}: {describe_value(value[k : k + 1])}" for name, value in values.items()]

    def check(self, config: Any) -> None:
        """Check the options of the model and of training."""
        config.model.check(self.name)
        config.training.check()

    def network(self, config: Any, facts: Mapping[str, Any]) -> nn.Module:
        """The model with fresh weights."""
        import torch

        from .task import build

        model = build(self.declare(config), config.model, self.test_sizes(config))
        generator = torch.Generator().manual_seed(20_231)
        model.standardise(self.generate(config, 256, generator, self.test_sizes(config)), **self.test_sizes(config))
        return model

    def task(self, config: Any) -> DenoisingTask:
        """Samples generated during training."""
        from .task import DenoisingTask

        return DenoisingTask(self, config)

    def untrained(self, config: Any, given: Given, count: int, chain_steps: int) -> dict[str, Mapping[str, Tensor]]:
        """Results of training-free methods: by method, values by variable, ``(count, *axes)``; none by default.

        Args:
            config: configuration of a run.
            given: test conditions.
            count: number of conditions.
            chain_steps: number of steps of each Markov chain.
        """
        return {}

    def baselines(self, config: Any, count: int, chain_steps: int) -> Answer:
        """Metrics of the problem on its test conditions, by method."""
        from .task import measure_untrained

        metrics_by_method = measure_untrained(self, config, count, _TEST_SEED, chain_steps)
        if not metrics_by_method:
            raise UnnError(f"problem {self.name!r} has no baselines without training; --process regressor and vaeac train some.")
        lines = [
            f"{method}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            for method, metrics in metrics_by_method.items()
        ]
        return Answer(tuple(lines), metrics_by_method)

    def compared_variables(self, config: Any) -> tuple[str, ...]:
        """Variables whose samples are compared with the truth as distributions, by simulation-based calibration; none by default.

        These should be uncertain given the evidence: a continuous variable that is determined by the others has
        no spread to compare.
        """
        return ()

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """Metrics of the problem on its test conditions, for each number of denoising steps."""
        return self.evaluate_samples(run, Evaluate(run.folder, iterations))

    def evaluate_samples(self, run: Trained, request: Evaluate) -> Answer:
        """Metrics with other sampling options; with several tries, also their average number."""
        from .task import Sampling, calibrations, measure

        process = run.config.model.process
        if process in _WITHOUT_STEPS and request.iterations:
            raise DeclarationError(f"--iterations: this run was trained with --process {process}, which samples in one step.")
        self._check_process(run, sampler=request.sampling.sampler, spacing=request.sampling.spacing)
        self._check_tries(run, request.sampling.tries)
        sampling = Sampling.of(run.config.model, request.sampling.sampler, request.sampling.spacing, request.sampling.tries, request.sampling.at_once)
        seed = _TEST_SEED if request.sampling.seed is None else request.sampling.seed
        data: dict[str, Any] = {}
        lines = []
        for steps in request.iterations or (run.config.model.sampling_steps,):
            now = replace(sampling, steps=steps)
            data[str(steps)] = measure(self, run.config, run.network, request.count or _CONDITIONS, seed, now)
            figures = ", ".join(f"{name} {value:.4g}" for name, value in data[str(steps)].items())
            lines.append(figures if process in _WITHOUT_STEPS else f"{steps} sampling steps: {figures}")
        if request.draw is not None:
            from unn.draw import draw_ranks, save_figure

            compared = calibrations(self, run.config, run.network, seed, sampling)
            if not compared:
                raise UnnError(f"--draw: problem {self.name!r} has no variable whose distribution is compared with the truth.")
            save_figure(draw_ranks({name: c.ranks.tolist() for name, c in compared.items()}), request.draw)
            lines.append(f"rank histograms drawn in {request.draw}")
        return Answer(tuple(lines), data)

    def _check_tries(self, run: Trained, tries: int) -> None:
        from .task import has_constraints

        if tries > 1 and not has_constraints(self.graph(run.network)):
            raise DeclarationError(f"--tries: the graph of problem {self.name!r} has no constraint that a sample could violate.")

    def _check_process(self, run: Trained, **options: object) -> None:
        process = run.config.model.process
        for name, value in options.items():
            if value is not None and process != "gaussian":
                raise DeclarationError(f"--{name}: this run was trained with --process {process}; only Gaussian noise has that.")

    def sample(self, run: Trained, request: Sample) -> Answer:
        """Sample the variables that are not given."""
        from unn.draw import Marking, draw_samples, save_figure
        from unn.networks.tokens import kinds

        from .task import Sampling, draw, has_constraints

        given, sizes = self.read_given(run, request.given)
        model = run.config.model
        steps: list[tuple[int, dict[str, Tensor]]] = []
        self._check_process(run, trace=request.trace, sampler=request.sampling.sampler, spacing=request.sampling.spacing)
        if request.steps is not None and model.process in _WITHOUT_STEPS:
            raise DeclarationError(f"--steps: this run was trained with --process {model.process}, which samples in one step.")

        def trace(step: int, values: dict[str, Tensor]) -> None:
            # record the first batch and the first try only
            if step == len(steps):
                steps.append((step, {name: x[0] for name, x in values.items()}))

        sampling = Sampling.of(model, request.sampling.sampler, request.sampling.spacing, request.sampling.tries, request.sampling.at_once)
        self._check_tries(run, request.sampling.tries)
        samples = draw(
            run.network,
            replace(sampling, steps=request.steps or sampling.steps),
            given,
            request.count,
            sizes,
            seed=request.sampling.seed,
            verify=has_constraints(self.graph(run.network)),
            trace=None if request.trace is None else trace,
        )
        lines: list[str] = []
        for k in range(request.count):
            lines += [*self.describe(run, samples.values, k), ""]
        lines.append(self.verdict(run, samples))
        categories = [name for name, kind in kinds(self.graph(run.network)).items() if kind == "category"]
        cells = {
            name: _given_cells(given[name], samples.values[name].shape[1:-1])
            for name in categories
            if name in given
        }
        # several variables are already drawn side by side
        columns = 4 if len(samples.values) == 1 else 1
        if request.draw is not None:
            rows = [{name: x[k] for name, x in samples.values.items()} for k in range(min(request.count, _DRAWN))]
            names = [str(k + 1) for k in range(len(rows))]
            marking = Marking(cells, self.blocks(run.config))
            save_figure(draw_samples(rows, names, categories, marking=marking, columns=columns), request.draw)
            lines.append(f"samples drawn in {request.draw}")
        if request.trace is not None and steps:
            shown = [steps[round(k * (len(steps) - 1) / max(1, _DRAWN - 1))] for k in range(_DRAWN)] if len(steps) > _DRAWN else steps
            names = [f"step {k + 1}" for k, _ in shown]
            marking = Marking(cells, self.blocks(run.config), changes=True)
            picture = draw_samples(
                [values for _, values in shown], names, categories, marking=marking, columns=columns
            )
            save_figure(picture, request.trace)
            lines.append(f"the first sample, step by step, drawn in {request.trace}")
        data = {name: value.tolist() for name, value in samples.values.items()}
        valid = None if samples.valid is None else samples.valid.tolist()
        return Answer(tuple(lines), {"values": data, "valid": valid, "tries": samples.tries.tolist()})

    def blocks(self, config: Any) -> dict[str, tuple[int, int]]:
        """Rows and columns of the blocks that pictures separate by lines, by variable; none by default."""
        return {}

    def verdict(self, run: Trained, samples: Samples) -> str:
        """Describe in one line how many samples satisfy the constraints."""
        count = len(samples.tries)
        if samples.valid is None:
            return f"{count} {self.noun}"
        wrong = [str(k + 1) for k in range(count) if not samples.valid[k]]
        return f"{count - len(wrong)} of {count} {self.noun} are valid" + (f"; not valid: {', '.join(wrong)}" if wrong else "")


def _given_cells(value: Tensor | Partial, shape: tuple[int, ...]) -> Tensor:
    """Mask of the given nodes of the first example, shape of the node axes."""
    import torch

    from unn import Partial

    if not isinstance(value, Partial):
        return torch.ones(shape, dtype=torch.bool)
    mask = value.mask[0]
    mask = mask.reshape(*mask.shape, *[1] * (len(shape) - mask.ndim))
    if mask.ndim > len(shape):
        mask = mask.flatten(len(shape)).all(-1)
    return mask.expand(shape)
