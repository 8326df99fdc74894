"""The command line. Arguments are read before torch is imported; what a command needs is imported when it runs."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import DataError, UnnError, unknown
from .packages import import_own_packages_first

if TYPE_CHECKING:
    from .problem import Answer, Problem

SUMMARY = "Declare a factor graph once; infer any of its variables given any others. --version prints the version."
VERBS = (
    "show", "train", "evaluate", "infer", "sample", "parse", "resume", "compare", "problems", "baselines", "demo", "bench", "doctor",
)  # fmt: skip
"""The commands, in the order of ``--help``: those of everyday use first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0; 1 if a check failed; 2 for an error of the user, one line on standard error; 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    import_own_packages_first()
    if arguments == ["--version"]:
        from .. import __version__

        print(f"unn {__version__}")
        return 0
    try:
        command, problem = parse(arguments)
        answer, code = _run(command, problem)
        # of several processes that train together, one speaks
        if os.environ.get("RANK", "0") == "0":
            _print(answer, getattr(command, "json", False))
        return code
    except UnnError as error:
        print(f"unn: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unn: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output has gone, as in unn show digits | head
        sys.stderr.close()
        return 141


def _print(answer: Answer, as_json: bool) -> None:
    """Print the lines of an answer, or its data.

    Raises:
        DataError: if standard output takes no more.
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
                # an unbuffered stream (PYTHONUNBUFFERED) may take a part only, and says nothing of a full disk until it is asked again
                rest = rest[sys.stdout.buffer.write(rest) :]
            sys.stdout.buffer.flush()
        if text:
            print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"standard output cannot be written: {error.strerror or error}.") from None


def parse(arguments: Sequence[str]) -> tuple[Any, Problem | None]:
    """The command with its options, as one of the dataclasses in ``unn.cli.arguments``, and the problem if it is one of a problem.

    Raises:
        UnnError: for an unknown command or problem.
        SystemExit: after --help, or for arguments that cannot be read.
    """
    import tyro

    from . import arguments as commands
    from .problem import load_problem

    if arguments and not arguments[0].startswith("-") and arguments[0] not in VERBS:
        raise UnnError(f"{unknown('command', arguments[0], VERBS)} unn --help explains each.")
    by_problem: dict[str, Any] = {"train": commands.Train, "show": commands.Show, "baselines": commands.Baselines}
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    if len(arguments) > 1 and arguments[0] in by_problem and ".py:" in arguments[1]:
        # a program of one's own is an option of the problem that traces programs
        arguments = [arguments[0], "program", "--program", *arguments[1:]]
    if len(arguments) > 1 and arguments[0] in by_problem and not arguments[1].startswith("-"):
        problem = load_problem(arguments[1])
        kind = by_problem[arguments[0]][problem.config]
        prog = f"unn {arguments[0]} {arguments[1]}"
        return tyro.cli(kind, prog=prog, description=problem.summary, args=list(arguments[2:]), config=options), problem
    kinds: dict[str, Any] = {
        "evaluate": commands.Evaluate, "infer": commands.Infer, "sample": commands.Sample, "parse": commands.Parse,
        "resume": commands.Resume, "compare": commands.Compare, "problems": commands.Problems, "demo": commands.Demo,
        "bench": commands.Bench, "doctor": commands.Doctor,
    }  # fmt: skip
    # importing all problems would slow down every other command
    load_all = (bool(arguments) and arguments[0] in by_problem) or any(word.startswith("--tyro-") for word in arguments)
    choices = []
    for name in VERBS:
        if name in kinds:
            choices.append(Annotated[kinds[name], tyro.conf.subcommand(name)])
            continue
        kind = by_problem[name]
        text = f"{kind.__doc__} unn {name} PROBLEM --help lists its options."
        choices.append(Annotated[_all_problems(kind) if load_all else commands.Problems, tyro.conf.subcommand(name, description=text)])
    union: Any = functools.reduce(operator.or_, choices)
    return tyro.cli(union, prog="unn", description=SUMMARY, args=list(arguments), config=options), None


def _all_problems(kind: Any) -> Any:
    """A dataclass whose only field chooses among all problems, each with its own options."""
    import tyro

    from .arguments import Problems
    from .problem import load_problem, problem_names

    problems = []
    for name in problem_names():
        # one that is broken spares the others; unn doctor says what is wrong with it
        with contextlib.suppress(UnnError):
            problems.append(load_problem(name))
    choices = [Annotated[kind[p.config], tyro.conf.subcommand(p.name, description=p.summary)] for p in problems]
    if len(choices) < 2:
        # a choice of one would be none
        choices.append(Annotated[Problems, tyro.conf.subcommand("another", description="Any other installed problem.")])
    choice = make_dataclass("Choice", [("problem", functools.reduce(operator.or_, choices))], frozen=True)
    choice.__doc__ = kind.__doc__
    return choice


def _run(command: Any, problem: Problem | None) -> tuple[Answer, int]:
    """The answer of a command and its exit code."""
    from . import arguments as commands

    progress = sys.stderr.isatty() and not getattr(command, "json", False) and not getattr(command, "quiet", False)
    match command:
        case commands.Problems():
            from .problems import problems

            return problems(), 0
        case commands.Show() if problem is not None:
            from .show import show

            return show(problem, command.config, command.out, command.theme), 0
        case commands.Baselines() if problem is not None:
            from .baselines import baselines

            return baselines(problem, command.config, command.count, command.chain_steps), 0
        case commands.Train() if problem is not None:
            from .train import train

            return train(problem, command.config, command.folder, progress)
        case commands.Resume():
            from .train import resume

            return resume(command.run, progress, command.epochs, command.steps)
        case commands.Evaluate():
            from .evaluate import evaluate

            return evaluate(command), 0
        case commands.Parse():
            from .parse import parse as parse_sentences

            return parse_sentences(command), 0
        case commands.Sample():
            from .sample import sample

            return sample(command), 0
        case commands.Infer():
            from .infer import infer

            return infer(command), 0
        case commands.Compare():
            from .compare import compare

            return compare(command.runs, command.out, command.theme), 0
        case commands.Demo():
            from .problem import load_problem

            return load_problem(command.problem).demo(command.folder, progress), 0
        case commands.Bench():
            from .bench import bench

            return bench(command.quick, command.only), 0
        case commands.Doctor():
            from .doctor import doctor

            return doctor()
    raise UnnError("this is no complete command; see unn --help.")


if __name__ == "__main__":
    sys.exit(main())
