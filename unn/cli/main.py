"""The command line: arguments are parsed before torch is imported, and each command imports its
dependencies when it runs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from ..entries import entry_points
from ..errors import DataError, UnnError, unknown
from .baselines import Baselines
from .bench import Bench
from .calibrate import Calibrate
from .compare import Compare
from .demo import Demo
from .doctor import Doctor
from .evaluate import Evaluate
from .infer import Infer
from .logz import LogPartition
from .map import MostProbable
from .marginals import Marginals
from .packages import import_own_packages_first
from .problem import Problem, load_problem, problem_names
from .problems import Problems
from .resume import Resume
from .sample import Sample
from .show import Show
from .solve import Solve
from .train import Train
from .verb import Answer, ProblemVerb, Verb

SUMMARY = (
    "Declare a factor graph once; infer any of its variables given any others. --version prints the version."
)
GROUP = "unn.verbs"

EVERYDAY = (Show, Train, Evaluate, Infer, Sample, Solve)
"""The commands that ``--help`` lists first, followed by those of other packages."""
OTHERS = (
    Marginals,
    LogPartition,
    MostProbable,
    Resume,
    Compare,
    Calibrate,
    Problems,
    Baselines,
    Demo,
    Bench,
    Doctor,
)


def verbs() -> dict[str, type[Verb] | type[ProblemVerb[Any]]]:
    """Commands by name, in the order of ``--help``; commands that cannot be loaded are omitted, as are those
    with the name of a built-in one."""
    own = {kind.name for kind in (*EVERYDAY, *OTHERS)}
    added = [_load(name) for name in verb_names() if name not in own]
    kinds: list[type[Verb] | type[ProblemVerb[Any]]] = [
        *EVERYDAY,
        *(kind for kind in added if isinstance(kind, type)),
        *OTHERS,
    ]
    return {kind.name: kind for kind in kinds}


def verb_names() -> list[str]:
    """Names of the commands of installed packages."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def _load(name: str) -> type[Verb] | str:
    """Load a command of an installed package, or return an error message."""
    (entry, *_) = (entry for entry in entry_points(group=GROUP) if entry.name == name)
    try:
        kind = entry.load()
    except Exception as error:
        return f"command {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}."
    if not (isinstance(kind, type) and issubclass(kind, Verb) and is_dataclass(kind)) or kind.name != name:
        return (
            f"command {name!r} ({entry.value}) must be a dataclass that derives from unn.extending.Verb, "
            f"with name = {name!r}."
        )
    return kind


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 for success; 1 if a check failed; 2 for a user error, with one line on
        standard error; 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    import_own_packages_first()
    with _warnings_in_one_line():
        return _run(arguments)


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show warnings of this package without the line of its code that issued them, which says nothing to
    users of a command."""
    original = warnings.formatwarning
    own = Path(__file__).parents[2]

    def of_command(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        path = Path(filename)
        is_own = path.is_relative_to(own) and path.relative_to(own).parts[0] in ("unn", "problems", "factors")
        if is_own and issubclass(category, UserWarning):
            return f"unn: warning: {' '.join(str(message).split())}\n"
        return original(message, category, filename, lineno, line)

    warnings.formatwarning = of_command
    try:
        yield
    finally:
        warnings.formatwarning = original


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        from .. import __version__

        print(f"unn {__version__}")
        return 0
    try:
        _refuse_empty_names(arguments)
        command, problem = parse(_joined(arguments))
        answer: Answer = command() if problem is None else command(problem)
        # of several processes that train together, only rank 0 prints
        if os.environ.get("RANK", "0") == "0":
            _print(answer, getattr(command, "json", False))
        return answer.code
    except UnnError as error:
        print(f"unn: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unn: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader closed the pipe, as in unn show digits | head
        sys.stderr.close()
        return 141


_REPEATED = (
    "--engines",
    "--given",
    "--metric",
    "--options",
    "--targets",
    "--temperatures",
    "--tokens",
    "--want",
)
"""Options of several values, whose occurrences belong together."""
_REPEATED_IN = {"evaluate": ("--iterations",)}
"""Further ones of commands; other commands take one value of them, the last one."""


def _refuse_empty_names(arguments: Sequence[str]) -> None:
    """Check that no folder or file is named by empty text, as by an unset variable of a shell: it would be
    the current folder.

    Raises:
        UnnError: if one is.
    """
    pairs = itertools.pairwise(arguments)
    if "--folder=" in arguments or any(
        not value and (before == "--folder" or not before.startswith("--")) for before, value in pairs
    ):
        raise UnnError("an argument is empty; the current folder is named . there.")


def _joined(arguments: Sequence[str]) -> list[str]:
    """Arguments with the values of a repeated option after its first occurrence.

    Otherwise the last occurrence would replace the others, and evidence would be lost.
    """
    repeated = (*_REPEATED, *_REPEATED_IN.get(arguments[0] if arguments else "", ()))
    groups: list[list[str]] = [[]]
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in repeated and value:
            groups.append([name, value])
        elif argument.startswith("--"):
            groups.append([argument])
        else:
            groups[-1].append(argument)
    first: dict[str, list[str]] = {}
    joined = []
    for group in groups:
        if group and group[0] in first:
            first[group[0]] += group[1:]
            continue
        joined.append(group)
        if group and group[0] in repeated:
            first[group[0]] = group
    return [argument for group in joined for argument in group]


def _print(answer: Answer, as_json: bool) -> None:
    """Print the lines of an answer, or its data.

    Raises:
        DataError: if standard output cannot be written.
    """
    from ..runs.metrics import strict

    text = json.dumps(strict(dict(answer.data)), allow_nan=False) if as_json else "\n".join(answer.lines)
    try:
        if answer.content is not None and not as_json:
            if sys.stdout is None:
                raise DataError("standard output cannot be written: it is closed.")
            sys.stdout.flush()
            rest = memoryview(answer.content)
            while rest:
                # an unbuffered stream (PYTHONUNBUFFERED) may write only a part, and report a full disk only
                # at the next call
                rest = rest[sys.stdout.buffer.write(rest) :]
            sys.stdout.buffer.flush()
        if text:
            print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"standard output cannot be written: {error.strerror or error}.") from None


def parse(arguments: Sequence[str]) -> tuple[Any, Problem | None]:
    """Parse a command with its options, and its problem if it needs one.

    Raises:
        UnnError: if the command or the problem is unknown.
        SystemExit: after --help, or if the arguments cannot be parsed.
    """
    import tyro

    kinds = verbs()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in kinds:
        if arguments[0] in verb_names():
            raise UnnError(str(_load(arguments[0])))
        raise UnnError(f"{unknown('command', arguments[0], kinds)} unn --help explains each.")
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    on_problems = {name: kind for name, kind in kinds.items() if issubclass(kind, ProblemVerb)}
    if len(arguments) > 1 and arguments[0] in on_problems and not arguments[1].startswith("-"):
        problem, rest = _problem_of(arguments[1], list(arguments[2:]))
        kind: Any = on_problems[arguments[0]]
        prog = f"unn {arguments[0]} {problem.name}"
        engine = _engine_in(rest)
        if engine is not None:
            prog += f" --engine {engine}"
        config_type = problem.config_for(engine)
        if engine and engine == problem.own_engine:
            # the configuration of a network of the problem's own has no option for it
            rest = _without_engine(rest)
        return tyro.cli(
            kind[config_type], prog=prog, description=problem.summary, args=rest, config=options
        ), problem
    # importing all problems would slow down every other command
    load_all = (bool(arguments) and arguments[0] in on_problems) or any(
        word.startswith("--tyro-") for word in arguments
    )
    choices = []
    for name, kind in kinds.items():
        if name not in on_problems:
            choices.append(Annotated[kind, tyro.conf.subcommand(name)])
            continue
        text = f"{kind.__doc__} unn {name} PROBLEM --help lists its options."
        choices.append(
            Annotated[
                _all_problems(kind) if load_all else Problems, tyro.conf.subcommand(name, description=text)
            ]
        )
    union: Any = functools.reduce(operator.or_, choices)
    command = tyro.cli(union, prog="unn", description=SUMMARY, args=list(arguments), config=options)
    if not isinstance(command, Verb):
        raise UnnError("the command is incomplete; see unn --help.")
    return command, None


def _problem_of(text: str, rest: list[str]) -> tuple[Problem, list[str]]:
    """Find a problem by its name or by a shorthand for it, and expand its options."""
    if text not in problem_names():
        for name in problem_names():
            # a broken problem must not disable the others
            with contextlib.suppress(UnnError):
                problem = load_problem(name)
                expanded = problem.arguments_for(text)
                if expanded is not None:
                    return problem, [*expanded, *rest]
    return load_problem(text), rest


def _engine_in(arguments: Sequence[str]) -> str | None:
    """The value of the last option ``--engine``, on which the other options depend; None without one."""
    engine = None
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if word == "--engine":
            engine = following
        elif word.startswith("--engine="):
            engine = word.removeprefix("--engine=")
    return engine


def _without_engine(arguments: Sequence[str]) -> list[str]:
    """Arguments without the option ``--engine``."""
    before = ["", *arguments[:-1]]
    return [
        word
        for word, previous in zip(arguments, before, strict=True)
        if word != "--engine" and previous != "--engine" and not word.startswith("--engine=")
    ]


def _all_problems(kind: Any) -> Any:
    """Make a dataclass whose only field selects among all problems, each with its own options."""
    import tyro

    problems = []
    for name in problem_names():
        # a broken problem must not disable the others; unn doctor reports its error
        with contextlib.suppress(UnnError):
            problems.append(load_problem(name))
    choices = [
        Annotated[kind[p.config_for(None)], tyro.conf.subcommand(p.name, description=p.summary)]
        for p in problems
    ]
    if len(choices) < 2:
        # tyro needs at least two subcommands
        choices.append(
            Annotated[Problems, tyro.conf.subcommand("another", description="Any other installed problem.")]
        )
    choice = make_dataclass("Choice", [("problem", functools.reduce(operator.or_, choices))], frozen=True)
    choice.__doc__ = kind.__doc__
    return choice


if __name__ == "__main__":
    sys.exit(main())
