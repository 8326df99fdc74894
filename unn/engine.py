"""Engines: what turns a declaration into a model that answers queries.

A package adds an engine by an entry point of the group ``unn.engines``. Importing an engine should not import
torch, because the command line parses its options first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .entries import entry_points
from .errors import ArgumentError, DeclarationError, UnnError, is_whole, suggest, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor, nn

    from .graph.declaration import Declaration
    from .graph.partial import Partial

GROUP = "unn.engines"

_OWN = ("unn.", "problems.")
"""Beginnings of the modules of the package's own engines, which others of the same name do not replace."""

QUERIES = ("infer", "sample", "solve")
"""Kinds of queries: the best values of some variables given others, samples of all that are not given, and
values that meet all constraints."""


@dataclass(frozen=True)
class Verdict:
    """Whether an engine serves a kind of query of a graph; true if it does.

    Attributes:
        reason: why it does not, in one sentence that names the variable or factor; empty if it does.
    """

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


class Engine(ABC):
    """A way to answer queries about any declaration that it serves.

    Attributes:
        name: name on the command line, that of the entry point.
        summary: one line for the help texts.
        options: a frozen dataclass with defaults, whose fields become the options of ``--engine NAME``. Its
            docstring documents them; a method ``check(where)`` may raise ``ArgumentError`` for values out
            of range.
        answers: the kinds of queries that its models answer, of ``QUERIES``.
        needs_all_values: whether training needs values of all variables. Variables without examples are then
            contracted: the neighbours of a latent variable become neighbours of one another.
        one_size: whether a model has weights for one size of the graph only.
        trains: whether a model needs training before it answers.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: ClassVar[type]
    answers: ClassVar[tuple[str, ...]]
    needs_all_values: ClassVar[bool] = True
    one_size: ClassVar[bool] = False
    trains: ClassVar[bool] = True

    @abstractmethod
    def refusal(self, graph: Declaration) -> str:
        """Why no model of a graph can be made, in one sentence that names the variable or factor; empty if it
        can."""

    @abstractmethod
    def build(self, graph: Declaration, options: Any, sizes: Mapping[str, int]) -> nn.Module:
        """Make a model of a graph with initial weights from torch's global generator.

        The model has the attribute ``graph`` and derives from the classes of what it can do: ``CanLearn``,
        ``CanInfer``, ``CanSample``, ``CanSolve``.

        Args:
            graph: declaration, of which ``refusal`` is empty.
            options: an instance of ``self.options``.
            sizes: sizes of the axes without a static size.

        Raises:
            ArgumentError: for options that do not fit the graph.
        """

    def serves(self, graph: Declaration, query: str) -> Verdict:
        """Whether the engine answers a kind of query of a graph.

        Args:
            graph: declaration, in which latent variables are contracted if ``needs_all_values``.
            query: one of ``QUERIES``.
        """
        if query not in self.answers:
            return Verdict(
                f"engine {self.name!r} answers {' and '.join(self.answers)} queries, and no {query} queries"
            )
        return Verdict(self.refusal(graph))


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling; None stands for the default of the model."""

    steps: int | None = None
    """Number of denoising steps; that of the run by default."""
    sampler: Literal["ancestral", "ddim", "heun", "dpm-solver", "dpm-solver-sde", "churn"] | None = None
    """Sampler, where the run diffuses; that of the run by default. churn sharpens when steps are few."""
    spacing: Literal["log-snr", "schedule", "restarts"] | None = None
    """Spacing of the noise levels, where the run diffuses; that of the run by default. restarts sharpen when
    steps are few."""
    seed: int | None = None
    """Seed of all samples. By default evaluation takes the same one for all runs, and sampling a fresh
    one."""
    tries: int = 1
    """Maximum number of attempts per sample until it meets the constraints, where the run samples."""
    at_once: int = 256
    """Samples in memory at a time."""

    def completed_by(self, defaults: SamplingOptions) -> SamplingOptions:
        """Replace what is None by defaults."""
        return replace(
            self,
            steps=defaults.steps if self.steps is None else self.steps,
            sampler=self.sampler or defaults.sampler,
            spacing=self.spacing or defaults.spacing,
        )

    def check(self) -> None:
        """Check the ranges.

        Raises:
            UnnError: names the first option that is out of range.
        """
        for option, value in (("steps", self.steps), ("tries", self.tries), ("at-once", self.at_once)):
            if value is None and option == "steps":
                continue
            if not is_whole(value, 1) or value > 10**6:
                raise UnnError(f"--{option} must lie between 1 and {10**6}, got {value}.")
        if self.seed is not None and (not is_whole(self.seed, 0) or self.seed >= 2**63):
            raise UnnError(f"--seed must be a whole number from 0 to 2**63 - 1, got {self.seed}.")


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples and the result of their verification.

    Attributes:
        values: values by variable, shape ``(count, *axes)``; given values are returned unchanged.
        valid: mask of samples that satisfy all constraints of the graph, shape ``(count,)``; None
            without ``verify``.
        tries: number of attempts per sample, shape ``(count,)``.
    """

    values: Mapping[str, Tensor]
    valid: Tensor | None
    tries: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


@dataclass(frozen=True)
class SolvingOptions:
    """Options of solving."""

    steps: int | None = None
    """Maximum number of steps of a try; that of the engine by default."""
    tries: int = 8
    """Maximum number of tries per instance, each from another random state."""
    count: int = 1
    """Number of different answers to each instance."""
    seconds: float | None = None
    """Time limit for all instances together; none by default."""
    seed: int = 0
    """Seed of all random states."""
    at_once: int = 256
    """Instances in memory at a time."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            UnnError: names the first option that is out of range.
        """
        numbers = {"tries": self.tries, "count": self.count, "at-once": self.at_once, "steps": self.steps}
        for option, value in numbers.items():
            if value is None and option == "steps":
                continue
            if not is_whole(value, 1) or value > 10**6:
                raise UnnError(f"--{option} must lie between 1 and {10**6}, got {value}.")
        if self.seconds is not None and not (
            isinstance(self.seconds, (int, float)) and 0 < self.seconds < float("inf")
        ):
            raise UnnError(f"--seconds must be a number > 0, got {self.seconds}.")
        if not is_whole(self.seed, 0) or self.seed >= 2**63:
            raise UnnError(f"--seed must be a whole number from 0 to 2**63 - 1, got {self.seed}.")


class CanLearn(ABC):  # noqa: B024 (a model without parameters needs neither method)
    """Capability of a model: it learns from examples.

    A model with parameters needs ``loss``, which is minimised by gradient descent. One without parameters,
    such as a table of examples, learns in ``prepare`` alone.

    Attributes:
        prepared_examples: number of examples that ``prepare`` receives of an endless stream.
    """

    prepared_examples: int = 256

    def loss(self, values: Mapping[str, Tensor], observed: Mapping[str, Tensor], **sizes: int) -> Tensor:
        """Mean training loss over a batch, a scalar; may draw from torch's global generator.

        Args:
            values: examples by variable, shape ``(batch, *axes)``.
            observed: mask of observed nodes by variable, boolean, shape ``(batch or 1, *node axes)`` with
                axes of size 1 repeated; variables that are left out are not observed.
            sizes: sizes of the axes without a static size.

        Raises:
            NotImplementedError: if the model has none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has parameters, so it needs a method loss(values, observed, **sizes)."
        )

    def prepare(self, values: Mapping[str, Tensor], **sizes: int) -> None:
        """Adapt the initial state to examples, before the first step and before weights are loaded.

        Nothing by default; diffusion models standardise continuous variables.

        Args:
            values: all examples of a fixed training set, or ``prepared_examples`` of a stream, by variable,
                shape ``(examples, *axes)``.
            sizes: sizes of the axes without a static size.
        """

    def is_prepared(self) -> bool:
        """Whether ``prepare`` has set what it sets, so that ``unn.fit`` leaves it out; always by default."""
        return True

    def training_state(self) -> dict[str, Tensor]:
        """Tensors beside the weights that training continues from, such as states that persist between
        steps; they are saved in checkpoints. None by default."""
        return {}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of ``training_state``; nothing by default."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode, without dropout and batch statistics, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def check_iterations(iterations: object) -> None:
    """Check the number of rounds or steps of a call; None is that of the model.

    Raises:
        ArgumentError: for anything but a whole number, at least 1.
    """
    if iterations is not None:
        whole_number("inference: iterations", iterations, 1, ArgumentError)


class CanInfer(ABC):
    """Capability of a model: it gives the best values of the variables that are not given.

    Attributes:
        has_rounds: whether answers take rounds, steps or draws, whose number is an option.
    """

    has_rounds: ClassVar[bool] = True

    @abstractmethod
    def infer_values(
        self,
        given: Mapping[str, Tensor | Partial],
        count: int,
        sizes: Mapping[str, int],
        iterations: int | None = None,
    ) -> Mapping[str, Tensor]:
        """Infer all variables.

        Args:
            given: evidence by variable, complete or partial, on the CPU whatever the device of the model;
                a batch axis of 1 is repeated.
            count: batch size.
            sizes: sizes of the axes without a static size.
            iterations: number of rounds, where the model has rounds; None for its own.

        Returns:
            Values by variable, shape ``(count, *axes)``; means of discrete variables, given values unchanged.
        """


class CanSample(ABC):
    """Capability of a model: it samples all variables that are not given.

    Attributes:
        has_steps: whether samples take several steps, whose number is an option.
    """

    has_steps: ClassVar[bool] = False

    @abstractmethod
    def sample_with(
        self,
        given: Mapping[str, Tensor | Partial],
        count: int,
        options: SamplingOptions,
        sizes: Mapping[str, int],
        *,
        verify: bool = False,
        trace: Callable[[int, dict[str, Tensor]], None] | None = None,
    ) -> Samples:
        """Sample all variables that are not given.

        Args:
            given: evidence by variable, complete or partial; a batch axis of 1 is repeated.
            count: number of samples.
            options: how samples are drawn.
            sizes: sizes of the axes without a static size.
            verify: check the constraints of the graph.
            trace: callback after each step with its number and the current values by variable.

        Raises:
            ArgumentError: for an option that the model does not have.
            ObservationError: for values that do not fit the graph.
        """


class Attempt(ABC):
    """One try at a batch of instances, from one random state each.

    Attributes:
        ends: reading of ``time.perf_counter`` from which ``advance`` may return before it has taken all of
            its steps, since the caller's time is over.
    """

    ends: float = math.inf

    @abstractmethod
    def advance(self) -> Mapping[str, Tensor] | None:
        """Take some steps.

        Returns:
            The present answer, discrete values by variable, shape ``(rows, *axes)``; None after the last
            step.
        """

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Continue with some of the rows only.

        Args:
            rows: indices among the present rows, shape ``(kept,)``.
        """

    def refuted(self) -> Tensor | None:
        """Mask of the present rows that are proved to have no answer, or no other than those of this try,
        shape ``(rows,)``; None if the model proves nothing."""
        return None


class TakesWeights(ABC):
    """Capability of a model: it decides itself which weights, trained on another graph, serve its own.

    Other models take weights of equal names and shapes.
    """

    @abstractmethod
    def take_weights(self, trained: nn.Module) -> None:
        """Use the weights of a trained model of the same engine.

        Args:
            trained: a model of another graph.

        Raises:
            DeclarationError: says why its weights do not serve this graph.
        """


class CanSolve(ABC):
    """Capability of a model: it proposes values that meet all constraints of its graph.

    ``unn.solve`` verifies the proposals and starts new tries.

    Attributes:
        is_ranked: whether the model proposes the answers that it prefers first, so that others are no answers
            although they meet the constraints.
    """

    is_ranked: ClassVar[bool] = False

    @property
    def enumerates(self) -> bool:
        """Whether a try goes on to other answers after one; otherwise another try looks for them."""
        return self.is_ranked

    @abstractmethod
    def attempt(
        self,
        given: Mapping[str, Tensor | Partial],
        count: int,
        sizes: Mapping[str, int],
        steps: int | None,
        generator: torch.Generator,
        number: int,
    ) -> Attempt:
        """Start a try.

        Args:
            given: evidence by variable, complete or partial, with a row for each instance.
            count: number of instances.
            sizes: sizes of the axes without a static size.
            steps: maximum number of steps; None for the default of the model.
            generator: random number generator.
            number: number of the try, from 0.
        """


def check_model(name: str, options: object, kind: type, refusal: str) -> None:
    """Check what a model is made of.

    Args:
        name: name of the model, for messages.
        options: its options.
        kind: class of the options.
        refusal: why the engine cannot serve the graph; empty if it can.

    Raises:
        ArgumentError: for options of another kind, or out of range.
        DeclarationError: for a graph that the engine does not serve.
    """
    if not isinstance(options, kind):
        raise ArgumentError(
            f"{name}: the options must be a unn.{kind.__name__}, got {type(options).__name__}."
        )
    checked: Any = options
    checked.check(name)
    if refusal:
        raise DeclarationError(f"{name}: {refusal}.")


def build_model(engine: Engine, graph: Declaration, options: Any, sizes: Mapping[str, int]) -> nn.Module:
    """Make a model of an engine and check what it can do.

    Args:
        engine: engine, which serves the graph.
        graph: declaration.
        options: an instance of ``engine.options``.
        sizes: sizes of the axes without a static size.

    Raises:
        UnnError: if the model is not a module with the attribute ``graph``, or lacks a capability.
    """
    from torch import nn

    model = engine.build(graph, options, sizes)
    if not isinstance(model, nn.Module) or not hasattr(model, "graph"):
        raise UnnError(
            f"engine {engine.name!r}: build must return an nn.Module with the attribute graph, got "
            f"{type(model).__name__}."
        )
    needed = {"infer": CanInfer, "sample": CanSample, "solve": CanSolve}
    for capability in (CanLearn, *(needed[query] for query in engine.answers)):
        if not isinstance(model, capability):
            raise UnnError(
                f"engine {engine.name!r}: its model {type(model).__name__} must derive from "
                f"unn.{capability.__name__}, since the engine answers {' and '.join(engine.answers)} queries."
            )
    return model


def engine_names() -> list[str]:
    """Names of all installed engines."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_engine(name: str) -> Engine:
    """Load the installed engine with the given name.

    Raises:
        UnnError: if there is no such engine, with the closest name, or it cannot be loaded.
    """
    entries = sorted(entry_points(group=GROUP), key=lambda entry: not entry.value.startswith(_OWN))
    for entry in entries:
        if entry.name == name:
            try:
                engine = entry.load()()
            except (Exception, SystemExit) as error:
                raise UnnError(
                    f"engine {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}."
                ) from error
            _check_engine(name, entry.value, engine)
            checked: Engine = engine
            return checked
    raise UnnError(f"unknown engine {name!r}.{suggest(name, engine_names())}")


def _check_engine(name: str, where: str, engine: object) -> None:
    """Check the attributes of an engine.

    Raises:
        UnnError: names the first that is missing or wrong.
    """
    if not isinstance(engine, Engine):
        raise UnnError(
            f"entry point {name!r} of group {GROUP!r} is not a unn.Engine, but {type(engine).__name__}."
        )
    if getattr(engine, "name", None) != name or not isinstance(getattr(engine, "summary", None), str):
        raise UnnError(
            f"engine {name!r} ({where}) needs name = {name!r}, as its entry point, and a summary of one line."
        )
    options = getattr(engine, "options", None)
    if not (isinstance(options, type) and is_dataclass(options)):
        raise UnnError(f"engine {name!r} ({where}): its options must be a dataclass, got {options!r}.")
    frozen = options.__dataclass_params__.frozen  # type: ignore[attr-defined]
    lacking = [x.name for x in fields(options) if x.default is MISSING and x.default_factory is MISSING]
    if not frozen or lacking:
        problem = f"has an option {lacking[0]!r} without a default" if lacking else "is not frozen"
        raise UnnError(
            f"engine {name!r} ({where}): the dataclass {options.__name__} of its options {problem}."
        )
    answers: object = getattr(engine, "answers", ())
    if not isinstance(answers, tuple) or not answers or any(query not in QUERIES for query in answers):
        raise UnnError(
            f"engine {name!r} ({where}): answers must be of {', '.join(QUERIES)}, got {answers!r}."
        )
