"""The interface between a problem and the command line; problems are entry points of the group
``unn.problems``.

Importing a problem should not import torch, because the command line parses its options first.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..engine import Verdict, engine_names
from ..entries import entry_points
from ..errors import UnnError, suggest
from ..runs.folder import CONFIG, open_run
from ..training.options import TrainingConfig
from .verb import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from ..descent.evidence import Given
    from ..descent.orders import Order
    from ..descent.solution import Solution
    from ..factor_graph import FactorGraph
    from ..graph.partial import Partial
    from ..training import Task
    from .evaluate import Evaluate
    from .sample import Sample
    from .solve import Solve

GROUP = "unn.problems"


@dataclass(frozen=True)
class Trained:
    """A run with its network.

    Attributes:
        folder: run folder.
        config: configuration, of the problem's own type.
        facts: ``Task.facts`` at training time.
        network: network with its weights, in evaluation mode.
    """

    folder: Path
    config: Any
    facts: Mapping[str, Any]
    network: nn.Module


class Problem(ABC):
    """A problem on the command line, with a network of its own.

    Problems that any engine can serve derive from ``DeclaredProblem`` instead. A package adds a problem by an
    entry point: ``[project.entry-points."unn.problems"]`` with ``name = "module:Class"``. Three methods
    suffice for all commands; the others have defaults.

    Attributes:
        name: name on the command line.
        summary: one line for the help texts.
        own_engine: name of the engine that the network of the problem uses; empty for none of the installed
            ones.
        config: a frozen dataclass whose fields become the options of ``unn train NAME``; one of them is
            ``training``, a ``unn.training.TrainingConfig``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config: ClassVar[type]
    own_engine: ClassVar[str] = ""

    @abstractmethod
    def declare(self, config: Any) -> FactorGraph:
        """Declare the graph, for data of the usual size."""

    @abstractmethod
    def task(self, config: Any) -> Task:
        """Load the data and make the training task.

        Raises:
            DataError: if the data are missing or corrupt; names the file to get and its place.
        """

    @abstractmethod
    def network(self, config: Any, facts: Mapping[str, Any]) -> nn.Module:
        """Make the network with initial weights from torch's global generator.

        The network is a graph, ``unn.Unrolled``, or a module that contains them.

        Args:
            config: configuration of the run.
            facts: ``Task.facts`` at training time; read from a file, so they need to be checked.
        """

    def config_for(self, engine: str | None) -> type:
        """The configuration of a run with an engine; None for the default engine.

        Raises:
            UnnError: if the problem has a network of its own, which uses no other engine.
        """
        if engine not in (None, self.own_engine):
            raise UnnError(f"{self._own_network()}; leave out --engine {engine}.")
        return self.config

    @property
    def default_engine(self) -> str:
        """Name of the engine of a run without ``--engine``; empty for a network of the problem's own."""
        return self.own_engine

    def _own_network(self) -> str:
        uses = f" of engine {self.own_engine!r}" if self.own_engine else ""
        return f"problem {self.name!r} has a network of its own{uses}"

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the configuration of a run of an earlier version; by default it is unchanged."""
        return content

    def verdicts(self) -> dict[str, Verdict]:
        """Whether each installed engine serves the problem with its default options, and why not."""
        return {
            name: Verdict("" if name == self.own_engine else self._own_network()) for name in engine_names()
        }

    def prepare(self, config: Any, network: nn.Module) -> None:
        """Adapt a network with initial weights to the data, before training; nothing by default."""

    def read_given(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int]]:
        """Read the evidence from the command line, by name, and the sizes of the graph; by default
        NAME=VALUE.

        Dynamic axes have the sizes of the evidence, or else those of the options.

        Raises:
            UnnError: for malformed evidence, with the item and the place in it.
        """
        from ..graph.partial import Partial
        from .values import assignments

        given: dict[str, Tensor | Partial] = {
            name: self.read_value(run, name, text) for name, text in assignments(texts).items()
        }
        sizes = self.test_sizes(run.config)
        for name, evidence in given.items():
            value = evidence.value if isinstance(evidence, Partial) else evidence
            variable = self.graph(run.network).variables.get(name)
            axes = zip(variable.axes if variable else (), value.shape[1:], strict=False)
            sizes |= {axis: size for axis, size in axes if axis in sizes}
        return given, sizes

    def infer(
        self,
        run: Trained,
        given: Given,
        sizes: Mapping[str, int],
        iterations: int | None,
        want: tuple[str, ...],
        terms: bool,
    ) -> Solution:
        """Infer variables of one example, or of as many as the evidence has; by default by ``unn.infer`` on
        the graph.

        Args:
            run: the trained run.
            given: evidence by variable.
            sizes: sizes of dynamic axes.
            iterations: number of rounds; None for that of the run.
            want: names of the wanted variables.
            terms: whether to record the energy by factor.
        """
        from ..descent.infer import infer

        return infer(
            self.graph(run.network),
            given,
            order=self.order(run, given),
            iterations=iterations or self.iterations(run),
            want=want,
            terms=terms,
        )

    def require_inference(self, run: Trained) -> None:
        """Check that ``unn infer`` can answer queries to a run; all runs by default.

        Raises:
            UnnError: if its network has no energy to minimise.
        """

    def check(self, config: Any) -> None:
        """Check constraints on options beyond the types of the fields; by default those of the
        training options.

        Raises:
            DeclarationError: names the first option that is out of range.
        """
        config.training.check()

    def files(self, config: Any) -> Mapping[str, bytes]:
        """Contents, by name, of further files that a run needs; they are copied into its new
        folder. None by default.

        Raises:
            DataError: if a file cannot be read.
        """
        return {}

    def in_folder(self, config: Any, folder: Path) -> Any:
        """Replace the paths of ``files`` in the configuration of a run by those of the copies in
        its folder."""
        return config

    def test_sizes(self, config: Any) -> dict[str, int]:
        """Sizes of the axes without a static size, for showing and measuring the graph; none by default."""
        return {}

    def graph(self, network: nn.Module) -> FactorGraph:
        """The graph for ``unn infer``: by default the first in the network."""
        from ..factor_graph import FactorGraph

        for module in network.modules():
            if isinstance(module, FactorGraph):
                return module
        raise UnnError(
            f"problem {self.name!r}: its network contains no factor graph, so nothing can be inferred."
        )

    def order(self, run: Trained, given: Given) -> Order | list[str] | None:
        """The update order of ``unn infer``; None for the default of the engine, by distance from
        the evidence."""
        return None

    def iterations(self, run: Trained) -> int:
        """Default number of rounds of ``unn infer``.

        By default that of the first ``unn.Unrolled`` in the network (the middle of a range), else the option
        ``iterations`` of the configuration, else 10.
        """
        from ..descent.unrolled import Unrolled

        unrolled = next(
            (module.iterations for module in run.network.modules() if isinstance(module, Unrolled)), None
        )
        if isinstance(unrolled, range):
            return unrolled[len(unrolled) // 2]
        rounds = getattr(run.config, "iterations", None) if unrolled is None else unrolled
        return rounds if isinstance(rounds, int) else 10

    def read_value(self, run: Trained, name: str, text: str) -> Tensor | Partial:
        """Parse a value given as ``NAME=TEXT``, shape ``(batch, *axes)``: by default a .npy file, a
        category or numbers."""
        from .values import read_value

        return read_value(self.graph(run.network), name, text)

    def show_value(self, run: Trained, name: str, value: Tensor) -> str | Figure:
        """Show an inferred value, shape ``(batch, *axes)``, as a line of text or a picture."""
        from .values import describe_value

        return describe_value(value)

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """Measure a trained run: by default with the metrics of training.

        Args:
            run: the trained run.
            iterations: numbers of rounds at test time; those of training if empty.

        Raises:
            UnnError: if the problem does not support these iterations.
        """
        import torch

        if iterations:
            raise UnnError(
                f"problem {self.name!r} is evaluated with the iterations of its training only; leave out "
                "--iterations."
            )
        with torch.no_grad():
            metrics = self.task(run.config).evaluate(run.network)
        lines = tuple(f"{name} {value:.6g}" for name, value in metrics.items())
        return Answer(lines or ("this problem measures nothing",), metrics)

    def pretrained(self, engine: str = "") -> Path | None:
        """Folder of a pretrained run, which commands open by the name of the problem; None if there is none.

        Args:
            engine: name of its engine, for the folder ``NAME-ENGINE``; empty for the folder ``NAME``.
        """
        name = f"{self.name}-{engine}" if engine else self.name
        folder = Path(sys.modules[type(self).__module__].__file__ or "").parent / "pretrained" / name
        return folder if folder.is_dir() else None

    def arguments_for(self, text: str) -> list[str] | None:
        """Expand a shorthand such as ``FILE.py:NAME`` to options; None if it does not belong to
        this problem."""
        return None


class Sampleable(ABC):
    """Capability: runs of the problem sample any variables given any others."""

    @abstractmethod
    def sample(self, run: Trained, request: Sample) -> Answer:
        """Sample variables given others.

        Raises:
            UnnError: if the run does not support an option, or a value cannot be read.
        """

    @abstractmethod
    def evaluate_samples(self, run: Trained, request: Evaluate) -> Answer:
        """Measure samples of a trained run, drawn with the options of the request.

        Raises:
            UnnError: if the run does not support an option.
        """


class Solvable(ABC):
    """Capability: runs of the problem solve instances, with answers that are verified."""

    @abstractmethod
    def solve(self, run: Trained, request: Solve) -> Answer:
        """Solve the instances of some files.

        Raises:
            UnnError: if the run does not solve, or a file cannot be read.
        """


class HasBaselines(ABC):
    """Capability: the problem has methods that need no training."""

    @abstractmethod
    def baselines(self, config: Any, count: int, chain_steps: int) -> Answer:
        """Measure these methods on the conditions that a trained run is measured on.

        Args:
            config: the options.
            count: number of conditions.
            chain_steps: number of steps of each Markov chain.

        Raises:
            UnnError: if the problem has no baselines with these options.
        """


class TakesData(ABC):
    """Capability: runs of the problem can be measured on other data than their own."""

    @abstractmethod
    def on_data(self, run: Trained, data: Path) -> Trained:
        """Return the run with other evaluation data."""


class HasDemo(ABC):
    """Capability: the problem has a small complete run that draws pictures."""

    @abstractmethod
    def demo(self, folder: Path, progress: bool) -> Answer:
        """Train, measure and draw.

        Args:
            folder: folder for the pictures.
            progress: whether to show a progress bar.
        """


Capability = TypeVar("Capability")


def require(problem: Problem, capability: type[Capability], what: str) -> Capability:
    """Require that a problem has a capability, and return it.

    Args:
        problem: the problem.
        capability: one of the classes above, or of another package.
        what: completion of "problem 'digits' ..." in the error message.

    Raises:
        UnnError: if it does not have the capability; lists the problems that do.
    """
    if isinstance(problem, capability):
        return problem
    others = []
    for name in problem_names():
        # a broken problem must not disable the others
        with contextlib.suppress(UnnError):
            others += [name] if isinstance(load_problem(name), capability) else []
    able = f" Those that do: {', '.join(others)}." if others else ""
    raise UnnError(f"problem {problem.name!r} {what}.{able}")


def problem_names() -> list[str]:
    """Names of all installed problems."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_problem(name: str) -> Problem:
    """Load the installed problem with the given name.

    Raises:
        UnnError: if there is no such problem, with the closest name, or it cannot be loaded.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                problem = entry.load()()
            except (Exception, SystemExit) as error:
                raise UnnError(
                    f"problem {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}."
                ) from error
            if not isinstance(problem, Problem):
                raise UnnError(
                    f"entry point {name!r} of group {GROUP!r} is not a unn.cli.problem.Problem, but "
                    f"{type(problem).__name__}."
                )
            if getattr(problem, "name", None) != name or not isinstance(
                getattr(problem, "summary", None), str
            ):
                raise UnnError(
                    f"problem {name!r} ({entry.value}) needs name = {name!r}, as its entry point, and a "
                    "summary of one line."
                )
            _check_config_type(name, getattr(problem, "config", None))
            try:
                _check_run_options(problem)
            except UnnError:
                raise
            except Exception as error:
                raise UnnError(
                    f"problem {name!r} ({entry.value}): its options cannot be read: {type(error).__name__}: "
                    f"{error}. They are a frozen dataclass with defaults; defaults holds a "
                    f"Defaults(...) for each "
                    "engine."
                ) from error
            return problem
    if (Path(name) / CONFIG).is_file():
        raise UnnError(
            f"{name} is the folder of a run, but this command takes the name of a problem: "
            f"{open_run(Path(name)).problem}."
        )
    raise UnnError(f"unknown problem {name!r}.{suggest(name, problem_names())}")


def _check_config_type(name: str, config: object) -> None:
    """Check that the command line can derive options from a configuration class.

    Raises:
        UnnError: if it is not a dataclass.
    """
    if not (isinstance(config, type) and is_dataclass(config)):
        raise UnnError(f"problem {name!r}: its config must be a dataclass, got {config!r}.")


def _check_run_options(problem: Problem) -> None:
    """Check the options of a run with the default engine.

    Raises:
        UnnError: if options of training are missing, or an option has the name of one of training or of a
            command.
    """
    config: Any = problem.config_for(None)
    training = next((option for option in fields(config) if option.name == "training"), None)
    if training is None or not isinstance(training.default, TrainingConfig):
        raise UnnError(
            f"problem {problem.name!r}: {config.__name__} needs a field training: TrainingConfig = "
            "TrainingConfig(...)."
        )
    taken = {option.name for option in fields(TrainingConfig)}
    taken |= {"config", "folder", "out", "theme", "json", "quiet", "count", "chain_steps"}
    clash = next((option.name for option in fields(config) if option.name in taken), None)
    if clash is not None:
        raise UnnError(
            f"problem {problem.name!r}: the option {clash!r} of {config.__name__} is one of training or of "
            "the command; give it another name."
        )
