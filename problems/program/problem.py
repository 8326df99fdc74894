"""User-defined generative programs on the command line: tracing yields graph, training data and denoiser."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import ArgumentError, DataError, UnnError, suggest
from unn.extending import Defaults, DenoiserOptions, Query, TrainingConfig, check_ranges

from ..generated.observations import any_nodes
from ..generated.traced import Source, TracedProblem

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from unn.training import Task


EXAMPLE = f"{Path(__file__).parent / 'example.py'}:line"
"""The program that is traced if none is named."""

COPY = "program.py"
"""File name of the copy of the program in a run folder."""


@dataclass(frozen=True)
class ProgramConfig:
    """Configuration of a run of a generative program.

    Attributes:
        program: Function to trace, FILE.py:NAME; empty for an example, a line through noisy points. The file
            is copied into the run folder, so it must be self-contained; the copy is executed whenever the run
            is opened.
        arguments: Arguments of the function, such as m=3,n=3; numbers and strings.
        plates: Arguments that are sizes of plates, with their least and largest values in training, such as
            points=1-20; comma-separated.
        observe: Comma-separated names of variables observed in training; "any" for any subset of all entries.
        examples: Number of training examples; 0 for an infinite stream.
    """

    program: str = ""
    arguments: str = ""
    plates: str = ""
    observe: str = "any"
    examples: int = 0


class ProgramProblem(TracedProblem):
    """Learn to invert a generative program: sample any of its variables given any others."""

    name = "program"
    summary = "a generative program, FILE.py:NAME: sample any of its variables given any others"
    config = ProgramConfig
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(width=32, depth=3, heads=2, self_conditioning="none", sampling_steps=50),
            TrainingConfig(steps=6000, evaluate_every=6000, batch=256, rate=5e-3, clip=1.0, ema=0.999),
        ),
    }

    def check(self, config: ProgramConfig) -> None:
        """Check the ranges of all options, and that the program can be traced."""
        check_ranges(self.name, {"examples": (config.examples, 0, 10**9)})
        if config.examples and self.sizes_vary(config):
            raise ArgumentError(
                "program: plates whose sizes vary need a stream of examples; leave out examples."
            )
        known = self.traced(config).graph.variables
        for name in _names(config.observe):
            if name not in known:
                raise ArgumentError(
                    f"program: option observe names {name!r}, which is not a variable of "
                    f"{config.program}.{suggest(name, known)}"
                )
        if not known.keys() - _names(config.observe):
            raise ArgumentError(
                "program: option observe names all variables, so that there is nothing to learn; leave out "
                "one."
            )
        super().check(config)

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Runs of earlier versions have no plates."""
        return {"plates": "", **super().earlier_config(content)}

    def arguments_for(self, text: str) -> list[str] | None:
        """``FILE.py:NAME`` is shorthand for ``program --program FILE.py:NAME``."""
        return ["--program", text] if ".py:" in text else None

    def files(self, config: ProgramConfig) -> dict[str, bytes]:
        """The file of the program."""
        path, _ = _split(config.program)
        return {COPY: _read(path)}

    def in_folder(self, config: ProgramConfig, folder: Path) -> ProgramConfig:
        """Use the copy of the program in the run folder; runs of versions without a copy refer to the
        original."""
        _, name = _split(config.program)
        return replace(config, program=f"{folder / COPY}:{name}") if (folder / COPY).is_file() else config

    def source(self, config: ProgramConfig) -> Source:
        """The function, with its arguments but the sizes of plates.

        Raises:
            DataError: if the file or the function cannot be loaded.
            ArgumentError: if it cannot be called with these arguments, or plates are malformed.
        """
        plates = _read_plates(config.plates)
        key = (_digest(config.program), _split(config.program)[1], config.arguments, config.plates)
        return Source(key, _bound(config, plates), plates)

    def task(self, config: ProgramConfig) -> Task:
        """Draws from the program during training."""
        task = super().task(config)
        digest = _digest(config.program)
        task.facts = {"program": digest, "data": {COPY: digest}}
        return task

    def network(self, config: ProgramConfig, facts: Mapping[str, Any]) -> nn.Module:
        """The model of the program.

        Raises:
            DataError: if the program has changed since the run was made.
        """
        if facts.get("program", _digest(config.program)) != _digest(config.program):
            raise DataError(
                f"{config.program} has changed since the run was made; its weights are those of another "
                "program. Restore it, or train again."
            )
        return super().network(config, facts)

    def observed(
        self, config: ProgramConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any entries, or all of some variables."""
        import torch

        graph = self.traced(config, sizes).graph
        if config.observe == "any":
            return any_nodes(graph, count, generator, {})
        shapes = graph.adjacency().shapes
        return {
            name: torch.ones(1, *(1 for _ in shapes[name]), dtype=torch.bool)
            for name in _names(config.observe)
        }

    def metrics(self, config: ProgramConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Largest deviation of sample means from those of the program, in its standard deviations."""
        import torch

        count = len(next(iter(values.values())))
        drawn = self.traced(config).draw(max(1000, count), torch.Generator().manual_seed(1))
        worst = 0.0
        for name, value in values.items():
            mean, spread = drawn[name].mean(0), drawn[name].std(0)
            # numbers that are equal in all draws have no deviation to measure by
            varied = spread > _CONSTANT * mean.abs()
            if bool(varied.any()):
                worst = max(worst, float(((value.mean(0) - mean).abs()[varied] / spread[varied]).max()))
        return {"worst_mean": worst}


_CONSTANT = 1e-6
"""Largest deviation of a number that counts as constant, as a share of its mean."""


def _names(observe: str) -> list[str]:
    return [] if observe == "any" else [name.strip() for name in observe.split(",")]


def _split(program: str) -> tuple[Path, str]:
    program = program or EXAMPLE
    path, colon, name = program.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise ArgumentError(
            f"program: option program is FILE.py:NAME, the function to trace, got {program!r}."
        )
    return Path(path), name


def _digest(program: str) -> str:
    path, _ = _split(program)
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the program cannot be read: {error.strerror or error}.") from None


def _load(program: str) -> Callable[..., object]:
    path, name = _split(program)
    # copies in run folders share a name, so their modules are named after their contents
    spec = importlib.util.spec_from_file_location(f"unn_program_{path.stem}_{_digest(program)[:16]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise DataError(f"{path}: the program cannot be loaded: {type(error).__name__}: {error}.") from error
    attribute: Any = getattr(module, name, None)
    if not callable(attribute):
        functions = [
            key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
        ]
        raise DataError(f"{path}: it contains no function {name!r}.{suggest(name, functions)}")
    function: Callable[..., object] = attribute
    return function


def _bound(config: ProgramConfig, plates: Mapping[str, tuple[int, int]]) -> Callable[..., object]:
    """Bind the arguments of the function except the tracer and the sizes of plates."""
    program, options = _load(config.program), _arguments(config.arguments)
    parameters = inspect.signature(program).parameters
    for name in plates:
        if name in options:
            raise ArgumentError(f"program: options arguments and plates both name {name!r}.")
        if name not in parameters and not any(x.kind is x.VAR_KEYWORD for x in parameters.values()):
            raise ArgumentError(
                f"program: option plates names {name!r}, but {config.program} has no such argument."
                f"{suggest(name, parameters)}"
            )
    try:
        inspect.signature(program).bind(None, **options, **dict.fromkeys(plates, 1))
    except TypeError as error:
        raise ArgumentError(
            f"program: {config.program} cannot be called with arguments {config.arguments!r}: {error}."
        ) from None

    def bound(t: Any, **sizes: int) -> object:
        try:
            return program(t, **options, **sizes)
        except UnnError:
            raise
        except (Exception, SystemExit) as error:
            place = _place_of(error, config.program)
            raise DataError(f"{place}: {type(error).__name__}: {error}.") from error

    bound.__name__ = getattr(program, "__name__", _split(config.program)[1])
    return bound


def _place_of(error: BaseException, program: str) -> str:
    """The program and the last of its lines that ran."""
    own = Path(_split(program)[0]).resolve()
    lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if Path(x.filename).resolve() == own]
    return f"{program}, line {lines[-1]}" if lines else program


def _arguments(text: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = item.partition("=")
        if not sign or not name.strip().isidentifier():
            raise ArgumentError(
                f"program: option arguments must be comma-separated NAME=VALUE pairs, such as m=3,n=3, got "
                f"{text!r}."
            )
        if name.strip() in arguments:
            raise ArgumentError(f"program: option arguments names {name.strip()!r} twice.")
        try:
            arguments[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            arguments[name.strip()] = value.strip()
    return arguments


def _read_plates(text: str) -> dict[str, tuple[int, int]]:
    """Read plates such as ``points=1-20,groups=2-5``.

    Raises:
        ArgumentError: for another form.
    """
    plates = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, sign, bounds = item.partition("=")
        least, dash, most = bounds.partition("-")
        if not (
            sign
            and dash
            and name.strip().isidentifier()
            and least.strip().isdecimal()
            and most.strip().isdecimal()
        ):
            raise ArgumentError(
                f"program: option plates must be comma-separated NAME=LEAST-LARGEST, such as points=1-20, "
                f"got {text!r}."
            )
        if name.strip() in plates:
            raise ArgumentError(f"program: option plates names {name.strip()!r} twice.")
        plates[name.strip()] = int(least), int(most)
    return plates
