"""unn calibrate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from ..engine import load_engine
from ..errors import UnnError, suggest
from .declared import DeclaredProblem
from .open import open_problem, open_trained
from .options import Json, Quiet, require_number, shows_progress
from .problem import Trained, load_problem, problem_names
from .resume import resume
from .train import train
from .verb import Answer, Verb

if TYPE_CHECKING:
    from ..factor_graph import FactorGraph


@dataclass(frozen=True)
class Calibrate(Verb):
    """Compare the probabilities of runs of a problem with the exact ones, on the same held-out queries."""

    name: ClassVar[str] = "calibrate"

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="PROBLEM|RUN [RUN ...]")]
    """A problem, whose engines are trained with their defaults; or runs of one problem with the same
    options."""
    engines: tuple[str, ...] = ()
    """Engines of a problem; all that give means or samples by default."""
    folder: Path | None = None
    """Folder of the runs of a problem, one for each engine, which are used again; runs/calibrate-PROBLEM by
    default."""
    count: int = 64
    """Number of test queries of each kind."""
    draws: int = 100
    """Samples of each query, for engines that give samples and no probabilities."""
    draw: Path | None = None
    """File for a reliability diagram."""
    json: Json = False
    quiet: Quiet = False

    def __call__(self) -> Answer:
        require_number("count", self.count)
        require_number("draws", self.draws)
        name = str(self.runs[0]) if len(self.runs) == 1 else ""
        if name in problem_names() and not self.runs[0].is_dir():
            folder = self.folder or Path("runs") / f"calibrate-{name}"
            progress = shows_progress(self.json, self.quiet)
            return calibrate(
                trained_runs(name, self.engines, folder, progress), self.count, self.draws, self.draw
            )
        for option in ("engines", "folder"):
            if getattr(self, option):
                raise UnnError(f"--{option} is for a problem, but runs were given; leave it out.")
        return calibrate(self.runs, self.count, self.draws, self.draw)


def trained_runs(name: str, engines: Sequence[str], folder: Path, progress: bool) -> list[Path]:
    """Runs of the engines of a problem with their default options, trained where they are not yet.

    Args:
        name: name of the problem.
        engines: names of engines; without any, all that serve the problem and give means or samples.
        folder: folder of the runs.
        progress: whether to show progress bars.

    Raises:
        UnnError: for an engine that does not serve the problem, or gives neither means nor samples.
    """
    problem = load_problem(name)
    if not isinstance(problem, DeclaredProblem):
        raise UnnError(f"problem {name!r} has a network of its own, and no exact answer.")
    exact_graph_of(problem, problem.config_for(None)())
    verdicts = problem.verdicts()
    able = [
        engine
        for engine, verdict in verdicts.items()
        if verdict and {"infer", "sample"} & {*load_engine(engine).answers}
    ]
    for engine in engines:
        if engine not in able:
            known = f"those that do: {', '.join(able)}"
            reason = verdicts[engine].reason if engine in verdicts else ""
            raise UnnError(
                f"engine {engine!r} gives no means or samples of problem {name!r}"
                f"{f' ({reason})' if reason else ''}; {known}.{suggest(engine, able)}"
            )
    runs = []
    for engine in engines or able:
        path = folder / engine
        if path.is_dir():
            _, config, run = open_problem(path)
            if run.problem != name or config != problem.in_folder(problem.config_for(engine)(), path):
                raise UnnError(
                    f"{path} holds another run than that of problem {name!r} with engine {engine!r} and "
                    "default options; give another --folder, or compare runs by their folders."
                )
            resume(path, progress)
        else:
            train(problem, problem.config_for(engine)(), path, progress)
        runs.append(path)
    return runs


def calibrate(folders: Sequence[Path], count: int, draws: int, picture: Path | None) -> Answer:
    """Score the runs on the test queries of their problem.

    Args:
        folders: folders of the runs.
        count: number of queries of each kind.
        draws: samples of each query.
        picture: file for a reliability diagram; None draws none.

    Raises:
        UnnError: for runs of different problems or options, or a problem without an exact answer.
    """
    import torch

    from ..exact.mixed import continuous_variables
    from .truth.answers import answer_of, check_finite
    from .truth.discrete import DiscreteTruth, discrete_truth
    from .truth.normal import NormalTruth, normal_truth
    from .truth.scores import table

    if not folders:
        raise UnnError("unn calibrate needs a problem, or the folder of at least one run.")
    opened = [open_trained(folder) for folder in folders]
    problem, first = opened[0]
    if not isinstance(problem, DeclaredProblem):
        raise UnnError(f"problem {problem.name!r} has a network of its own, and no exact answer.")
    own = _options(problem, first.config)
    for other, run in opened[1:]:
        if other.name != problem.name or _options(problem, run.config) != own:
            raise UnnError(
                f"{run.folder} is a run of another problem, or with other options of it, than "
                f"{first.folder}; compare runs of one problem."
            )
    graph = exact_graph_of(problem, first.config)
    if continuous_variables(graph) and draws < 2:
        raise UnnError(f"problem {problem.name!r} is continuous: deviations need --draws of at least 2.")
    truth_of: Callable[..., DiscreteTruth | NormalTruth | None]
    truth_of = normal_truth if continuous_variables(graph) else discrete_truth
    sizes = problem.test_sizes(first.config)
    queries = problem.test_queries(first.config, count, torch.Generator().manual_seed(1))
    lines: list[str] = []
    data: dict[str, Any] = {}
    diagrams: dict[str, tuple[tuple[float, float], ...]] = {}
    for name, query in queries.items():
        began = time.perf_counter()
        truth = truth_of(graph, query.given, problem.observable(first.config), count, sizes)
        seconds = (time.perf_counter() - began) / count
        title = f"{problem.name}, {name or 'test queries'}"
        if truth is None:
            lines += [f"{title}: every node is given, so there is nothing to compare", ""]
            continue
        rows = {
            "exact": truth.scores_of_exact(seconds),
            f"exact, {draws} samples": truth.scores_of_samples(draws, seconds),
        }
        for run in (run for _, run in opened):
            began = time.perf_counter()
            answer = answer_of(run, query.given, count, draws, sizes, truth.needs_variances)
            check_finite(run, answer)
            rows[_label(run)] = truth.scores_of(answer, (time.perf_counter() - began) / count)
        lines += [title, *table(rows), ""]
        data[name] = {label: {**row.figures, "seconds": row.seconds} for label, row in rows.items()}
        diagrams |= {f"{label}, {name}" if name else label: row.bins for label, row in rows.items()}
    if picture is not None:
        from ..draw import draw_reliability, save_figure

        save_figure(draw_reliability(diagrams), picture)
        lines.append(f"reliability: drawn in {picture}")
    return Answer(tuple(lines), data)


def exact_graph_of(problem: DeclaredProblem, config: Any) -> FactorGraph:
    """The graph that has the exact answers.

    Raises:
        UnnError: if there is none, or exact inference cannot serve it.
    """
    graph = problem.exact_graph(config)
    if graph is None:
        raise UnnError(
            f"problem {problem.name!r}: the distribution of its examples is not that of its declaration, so "
            "that there is no exact answer to compare with."
        )
    reason = load_engine("exact").refusal(graph)
    if reason:
        raise UnnError(f"problem {problem.name!r} has no exact answer to compare with: {reason}.")
    return graph


def _options(problem: DeclaredProblem, config: Any) -> dict[str, Any]:
    """The options of the problem in the configuration of a run; of files, which each run has a copy of, their
    contents."""
    from dataclasses import fields

    options = {option.name: getattr(config, option.name) for option in fields(problem.config)}
    contents = problem.files(config)
    for name, value in options.items():
        if isinstance(value, str) and Path(value).name in contents:
            options[name] = contents[Path(value).name]
    return options


def _label(run: Trained) -> str:
    return f"{run.config.engine} ({Path(run.folder).name})"
