"""What the command line needs of a problem; problems are found by entry points of the group ``unn.problems``.

Importing a problem should not import torch: the command line reads its configuration before it needs anything else.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnnError, suggest
from ..training.options import TrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from ..descent.orders import Order
    from ..factor_graph import FactorGraph
    from ..training import Task

GROUP = "unn.problems"


@dataclass(frozen=True)
class Answer:
    """What a command prints: lines for people, the same as data for machines.

    Attributes:
        lines: of text.
        data: for ``--json``.
        content: bytes to print as they are, before the lines; None for none.
    """

    lines: tuple[str, ...]
    data: Mapping[str, Any]
    content: bytes | None = None


@dataclass(frozen=True)
class ParseRequest:
    """What ``unn parse`` asks for.

    Attributes:
        file: to parse; "-" for standard input.
        out: file for the result; None for standard output.
        format: "conllu", "tokens" (one sentence a line), or "auto" to see by the content.
        iterations: rounds, if not those of training.
        complete: heads in the file are given, and what is forbidden there is forbidden; the rest is found.
        skip_bad: copy malformed sentences unchanged, and say which, instead of refusing the file.
        show: "conllu", "tree" or "heat" for text that people read.
        draw: folder for a drawing of each tree and a heat map of its marginals, as SVG.
        batch: words that are parsed at once, padding included.
    """

    file: str
    out: Path | None = None
    format: str = "auto"
    iterations: int | None = None
    complete: bool = False
    skip_bad: bool = False
    show: str = "conllu"
    draw: Path | None = None
    batch: int = 2000


@dataclass(frozen=True)
class SampleRequest:
    """What ``unn sample`` asks for.

    Attributes:
        given: what is known, NAME=VALUE or what else the problem reads, such as the file of a puzzle.
        count: of samples.
        steps: denoising steps, if not those of the configuration.
        sampler: if not that of the configuration.
        spacing: of the noise levels, if not that of the configuration.
        seed: of all samples; None takes a fresh one.
        tries: attempts per sample until it meets the constraints.
        at_once: samples in memory at a time.
        draw: file for a picture of the samples.
        trace: file for a picture of how they came about.
    """

    given: tuple[str, ...] = ()
    count: int = 1
    steps: int | None = None
    sampler: str | None = None
    spacing: str | None = None
    seed: int | None = None
    tries: int = 1
    at_once: int = 256
    draw: Path | None = None
    trace: Path | None = None


@dataclass(frozen=True)
class EvaluationRequest:
    """What ``unn evaluate`` asks of a problem that samples.

    Attributes:
        iterations: numbers of denoising steps, each measured; that of the configuration if empty.
        count: of conditions, with one sample each; None for the problem's own number.
        sampler: if not that of the configuration.
        spacing: of the noise levels, if not that of the configuration.
        seed: of conditions and samples; None for the one that all runs are compared with.
        tries: attempts per sample until it meets the constraints.
        at_once: samples in memory at a time.
        draw: file for a picture of rank histograms.
    """

    iterations: tuple[int, ...] = ()
    count: int | None = None
    sampler: str | None = None
    spacing: str | None = None
    seed: int | None = None
    tries: int = 1
    at_once: int = 256
    draw: Path | None = None


@dataclass(frozen=True)
class Trained:
    """A run with its network.

    Attributes:
        folder: of the run.
        config: its configuration, of the problem's own type.
        facts: found in the data when it was trained.
        network: with its weights, in evaluation mode.
    """

    folder: Path
    config: Any
    facts: Mapping[str, Any]
    network: nn.Module


class Problem(ABC):
    """A problem on the command line: its declaration, its network, and what to train it on.

    A package adds one by an entry point: ``[project.entry-points."unn.problems"]`` with ``name = "module:Class"``. Three methods give it
    all commands; the others have defaults to refine.

    Attributes:
        name: on the command line.
        summary: one line.
        config: a frozen dataclass whose fields become the options of ``unn train NAME``; one of them is ``training``, a
            ``unn.training.TrainingConfig``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config: ClassVar[type]

    @abstractmethod
    def declare(self, config: Any) -> FactorGraph:
        """The graph, for data of the usual size."""

    @abstractmethod
    def task(self, config: Any) -> Task:
        """Load the data.

        Raises:
            DataError: if they are missing or corrupt; says what to get and where to put it.
        """

    @abstractmethod
    def network(self, config: Any, facts: Mapping[str, Any]) -> nn.Module:
        """The network with fresh weights from torch's global generator: a graph, ``unn.Unrolled``, or a module that holds them.

        Args:
            config: of the run.
            facts: ``Task.facts``, as they were when it was trained; read from a file, so to be checked.
        """

    def check(self, config: Any) -> None:
        """Check the options that the types of the fields do not; by default those of training.

        Raises:
            DeclarationError: names the first option that is out of range.
        """
        config.training.check()

    def files(self, config: Any) -> Mapping[str, bytes]:
        """Files, by name, that a run needs beside its options; they are copied into its folder when it is made. None by default.

        Raises:
            DataError: if one cannot be read.
        """
        return {}

    def in_folder(self, config: Any, folder: Path) -> Any:
        """The configuration of a run, with the copies of ``files`` in its folder in the place of the originals."""
        return config

    def test_sizes(self, config: Any) -> dict[str, int]:
        """Sizes of the axes of the graph without a static one, to show and to measure it at; by default none are known."""
        return {}

    def baselines(self, config: Any, count: int, chain_steps: int) -> Answer:
        """Measure methods that need no training on the conditions that a trained run is measured on.

        Args:
            config: the options.
            count: of conditions.
            chain_steps: of each Markov chain.

        Raises:
            UnnError: if there are none.
        """
        raise UnnError(f"problem {self.name!r} has no baselines without training.")

    def graph(self, network: nn.Module) -> FactorGraph:
        """The graph on which ``unn infer`` works: by default the first in the network."""
        from ..factor_graph import FactorGraph

        for module in network.modules():
            if isinstance(module, FactorGraph):
                return module
        raise UnnError(f"problem {self.name!r}: its network holds no factor graph, so nothing can be inferred.")

    def order(self, run: Trained, given: Mapping[str, str]) -> Order | list[str] | None:
        """The order of updates of ``unn infer``; None for the engine's default, by distance from what is given."""
        return None

    def iterations(self, run: Trained) -> int:
        """Rounds of updates of ``unn infer``, if the command does not say.

        By default those of the first ``unn.Unrolled`` in the network (of a range, the middle), else the option ``iterations`` of the
        configuration, else 10.
        """
        from ..descent.unrolled import Unrolled

        unrolled = next((module.iterations for module in run.network.modules() if isinstance(module, Unrolled)), None)
        if isinstance(unrolled, range):
            return unrolled[len(unrolled) // 2]
        rounds = getattr(run.config, "iterations", None) if unrolled is None else unrolled
        return rounds if isinstance(rounds, int) else 10

    def read_value(self, run: Trained, name: str, text: str) -> Tensor:
        """A value given on the command line as ``NAME=TEXT``, shape ``(batch, *axes)``: by default a file of numpy, a category or numbers."""
        from .values import read_value

        return read_value(self.graph(run.network), name, text)

    def show_value(self, run: Trained, name: str, value: Tensor) -> str | Figure:
        """An inferred value, shape ``(batch, *axes)``, as a line of text or a picture."""
        from .values import describe_value

        return describe_value(value)

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """Measure a trained run: by default what training measured.

        Args:
            run: trained.
            iterations: numbers of rounds at test time; those of training if empty.

        Raises:
            UnnError: for iterations that the problem does not offer.
        """
        import torch

        if iterations:
            raise UnnError(f"problem {self.name!r} is evaluated with the iterations of its training only; leave out --iterations.")
        with torch.no_grad():
            found = self.task(run.config).evaluate(run.network)
        return Answer(tuple(f"{name} {value:.6g}" for name, value in found.items()) or ("this problem measures nothing",), found)

    def on_data(self, run: Trained, data: Path) -> Trained:
        """The run, to be evaluated on other data.

        Raises:
            UnnError: if the problem has none but its own.
        """
        raise UnnError(f"problem {self.name!r} is evaluated on its own data only; leave out --data.")

    def evaluate_samples(self, run: Trained, request: EvaluationRequest) -> Answer:
        """Measure samples of a trained run, drawn as the request says.

        Args:
            run: trained.
            request: options of sampling.

        Raises:
            UnnError: if the problem is evaluated without sampling.
        """
        raise UnnError(
            f"problem {self.name!r} is evaluated without sampling; leave out --tries, --sampler, --spacing, --count, --seed, --at-once and --draw."
        )

    def parse(self, run: Trained, request: ParseRequest) -> Answer:
        """Parse sentences.

        Raises:
            UnnError: if that is not what the problem is about.
        """
        raise UnnError(f"problem {self.name!r} does not parse sentences; unn problems lists what each is about.")

    def sample(self, run: Trained, request: SampleRequest) -> Answer:
        """Sample variables given others.

        Raises:
            UnnError: if the problem has no generative model.
        """
        raise UnnError(f"problem {self.name!r} has no generative model to sample from; unn infer finds its most probable values.")

    def pretrained(self) -> Path | None:
        """The folder of a run that comes with the package, which commands open by the problem's name; None if there is none."""
        folder = Path(sys.modules[type(self).__module__].__file__ or "").parent / "pretrained" / self.name
        return folder if folder.is_dir() else None

    def demo(self, folder: Path, progress: bool) -> Answer:
        """A complete small run with pictures.

        Raises:
            UnnError: if the problem has none.
        """
        raise UnnError(f"problem {self.name!r} has no demo; use unn train {self.name}.")


def problem_names() -> list[str]:
    """The names of all installed problems."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_problem(name: str) -> Problem:
    """The installed problem with this name.

    Raises:
        UnnError: if there is none; suggests the closest.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                problem = entry.load()()
            except Exception as error:
                raise UnnError(f"problem {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}.") from error
            if not isinstance(problem, Problem):
                raise UnnError(f"entry point {name!r} of group {GROUP!r} is not a unn.cli.problem.Problem, but {type(problem).__name__}.")
            if getattr(problem, "name", None) != name or not isinstance(getattr(problem, "summary", None), str):
                raise UnnError(f"problem {name!r} ({entry.value}) needs name = {name!r}, as its entry point, and a summary of one line.")
            _check_config_type(name, getattr(problem, "config", None))
            return problem
    raise UnnError(f"unknown problem {name!r}.{suggest(name, problem_names())}")


def _check_config_type(name: str, config: object) -> None:
    """Check what the command line makes options of.

    Raises:
        UnnError: if it is no dataclass with defaults and a ``TrainingConfig``.
    """
    if not (isinstance(config, type) and is_dataclass(config)):
        raise UnnError(f"problem {name!r}: its config must be a dataclass, got {config!r}.")
    training = next((field for field in fields(config) if field.name == "training"), None)
    if training is None or not isinstance(training.default, TrainingConfig):
        raise UnnError(f"problem {name!r}: {config.__name__} needs a field training: TrainingConfig = TrainingConfig(...).")
    taken = {field.name for field in fields(TrainingConfig)} | {"config", "folder", "out", "theme", "json", "quiet", "count", "chain_steps"}
    clash = next((field.name for field in fields(config) if field.name in taken), None)
    if clash is not None:
        raise UnnError(f"problem {name!r}: the option {clash!r} of {config.__name__} is one of training or of the command; give it another name.")
