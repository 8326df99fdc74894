"""The command line: unn problems | train | evaluate | infer | demo | bench."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import UnnError
from .problem import Answer, load_problem, problem_names
from .runs import new_folder, read_config


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors of the user are one line on standard error and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except UnnError as error:
        print(f"unn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unn: interrupted.", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command != "train" and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    progress = sys.stderr.isatty() and not getattr(options, "json", False)
    rounds = getattr(options, "iterations", None)
    if any(k < 1 for k in (rounds if isinstance(rounds, list) else [] if rounds is None else [rounds])):
        raise UnnError(f"--iterations must be at least 1, got {rounds}.")
    if options.command == "problems":
        for name in problem_names():
            print(f"{name:12} {load_problem(name).summary}")
        return 0
    if options.command == "bench":
        return _bench(options)
    if options.command == "train":
        answer = _train(options, rest, progress)
    elif options.command == "demo":
        answer = load_problem(options.problem).demo(options.folder, progress)
    elif options.command == "evaluate":
        answer = load_problem(read_config(options.run)[0]).evaluate(options.run, options.iterations)
    else:
        given = _assignments(options.given)
        answer = load_problem(read_config(options.run)[0]).infer(options.run, given, options.want, options.iterations, options.out)
    _print(answer, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unn", description="Declare a factor graph once; infer any variables given any others.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("problems", help="list the installed problems")
    train = commands.add_parser("train", help="train a problem; unn train PROBLEM --help lists its options", add_help=False)
    train.add_argument("problem")
    train.add_argument("--folder", type=Path, help="of the run; runs/PROBLEM-NNN by default")
    evaluate = commands.add_parser("evaluate", help="measure a trained run")
    evaluate.add_argument("run", type=Path)
    evaluate.add_argument("--iterations", type=int, nargs="*", default=[], metavar="K", help="rounds at test time, if not those of training")
    infer = commands.add_parser("infer", help="infer some variables of a run given others")
    infer.add_argument("run", type=Path)
    infer.add_argument("--given", nargs="+", required=True, metavar="NAME=VALUE")
    infer.add_argument("--want", nargs="+", required=True, metavar="NAME")
    infer.add_argument("--iterations", type=int, metavar="K")
    infer.add_argument("--out", type=Path, help="file for a picture")
    demo = commands.add_parser("demo", help="a complete small run with pictures")
    demo.add_argument("problem", nargs="?", default="digits")
    demo.add_argument("--folder", type=Path, default=Path("runs/demo"))
    bench = commands.add_parser("bench", help="time the engine against plain torch loops (in a checkout)")
    bench.add_argument("--quick", action="store_true", help="fewer repetitions")
    bench.add_argument("--only", help="part of the names of the cases to run")
    for command in (train, evaluate, infer, demo):
        command.add_argument("--json", action="store_true", help="print data instead of text")
    return parser


def _train(options: argparse.Namespace, rest: list[str], progress: bool) -> Answer:
    import tyro

    problem = load_problem(options.problem)
    config: Any = tyro.cli(problem.config, args=rest, prog=f"unn train {problem.name}", description=problem.summary)
    folder = options.folder or new_folder(Path("runs"), problem.name)
    return problem.train(config, folder, progress)


def _bench(options: argparse.Namespace) -> int:
    path = Path(__file__).resolve().parent.parent / "tests" / "benchmarks" / "core.py"
    if not path.is_file():
        raise UnnError("the benchmarks are part of the repository, not of the installed package; run unn bench in a checkout.")
    import runpy

    benchmark = runpy.run_path(str(path))
    arguments = (["--quick"] if options.quick else []) + (["--only", options.only] if options.only else [])
    return int(benchmark["main"](arguments) or 0)


def _assignments(texts: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in map(_assignment, texts):
        if name in given:
            raise UnnError(f"--given names {name!r} twice.")
        given[name] = value
    return given


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UnnError(f"--given takes NAME=VALUE, such as label=3, got {text!r}.")
    return name, value


def _print(answer: Answer, as_json: bool) -> None:
    print(json.dumps(dict(answer.data)) if as_json else "\n".join(answer.lines))


if __name__ == "__main__":
    sys.exit(main())
