"""What the command line needs of a problem; problems are found by entry points of the group ``unn.problems``.

Importing a problem should not import torch: the command line reads its configuration before it needs anything else.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import UnnError, suggest
from ..training.options import TrainingConfig
from .verb import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from ..descent.orders import Order
    from ..factor_graph import FactorGraph
    from ..training import Task
    from .evaluate import Evaluate
    from .sample import Sample

GROUP = "unn.problems"


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

    def pretrained(self) -> Path | None:
        """The folder of a run that comes with the package, which commands open by the problem's name; None if there is none."""
        folder = Path(sys.modules[type(self).__module__].__file__ or "").parent / "pretrained" / self.name
        return folder if folder.is_dir() else None

    def arguments_for(self, text: str) -> list[str] | None:
        """Options that stand for a text in the place of the name of a problem, such as ``FILE.py:NAME``; None if it is not of this problem."""
        return None


class Sampleable(ABC):
    """A problem whose runs sample any variables given any others."""

    @abstractmethod
    def sample(self, run: Trained, request: Sample) -> Answer:
        """Sample variables given others.

        Raises:
            UnnError: for options that the run does not have, or values that cannot be read.
        """

    @abstractmethod
    def evaluate_samples(self, run: Trained, request: Evaluate) -> Answer:
        """Measure samples of a trained run, drawn as the request says.

        Raises:
            UnnError: for options that the run does not have.
        """


class HasBaselines(ABC):
    """A problem with methods that need no training."""

    @abstractmethod
    def baselines(self, config: Any, count: int, chain_steps: int) -> Answer:
        """Measure these methods on the conditions that a trained run is measured on.

        Args:
            config: the options.
            count: of conditions.
            chain_steps: of each Markov chain.

        Raises:
            UnnError: if the problem with these options has none.
        """


class TakesData(ABC):
    """A problem whose runs can be measured on other data than their own."""

    @abstractmethod
    def on_data(self, run: Trained, data: Path) -> Trained:
        """The run, to be evaluated on other data."""


class HasDemo(ABC):
    """A problem with a complete small run that draws pictures."""

    @abstractmethod
    def demo(self, folder: Path, progress: bool) -> Answer:
        """Train, measure and draw.

        Args:
            folder: for the pictures.
            progress: show a bar.
        """


Capability = TypeVar("Capability")


def require(problem: Problem, capability: type[Capability], what: str) -> Capability:
    """The problem, if it has a capability.

    Args:
        problem: to ask.
        capability: one of the classes above, or of another package.
        what: completes "problem 'digits' ...", for the message.

    Raises:
        UnnError: if it has not; lists the problems that have.
    """
    if isinstance(problem, capability):
        return problem
    others = []
    for name in problem_names():
        # one that is broken spares the others
        with contextlib.suppress(UnnError):
            others += [name] if isinstance(load_problem(name), capability) else []
    able = f" Those that do: {', '.join(others)}." if others else ""
    raise UnnError(f"problem {problem.name!r} {what}.{able}")


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
