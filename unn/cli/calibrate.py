"""unn calibrate."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from ..engine import CanInfer, CanSample, SamplingOptions, load_engine
from ..errors import UnnError, suggest
from .declared import DeclaredProblem
from .open import open_problem, open_trained
from .options import Json, Quiet, require_number, shows_progress
from .problem import Trained, load_problem, problem_names
from .resume import resume
from .train import train
from .verb import Answer, Verb

if TYPE_CHECKING:
    from torch import Tensor

    from ..exact.nodes import Nodes
    from ..factor_graph import FactorGraph
    from .declared import Query

_BINS = 10
"""Bins of probabilities in the calibration error."""


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


@dataclass(frozen=True, eq=False)
class Scores:
    """Probabilities of hidden nodes against the exact ones.

    Attributes:
        kl: mean Kullback-Leibler divergence of a node from the exact probabilities, in nats.
        total_variation: mean total variation distance of a node.
        log_score: expected logarithm of the probability of the value of a node, by the exact probabilities.
        calibration_error: mean absolute difference between probabilities and exact ones in bins of the
            former.
        argmax_match: share of the nodes whose most probable value is the exact one.
        seconds: time of a query.
        bins: mean probability and mean exact probability in each bin that is not empty.
    """

    kl: float
    total_variation: float
    log_score: float
    calibration_error: float
    argmax_match: float
    seconds: float
    bins: tuple[tuple[float, float], ...]

    def figures(self) -> dict[str, float]:
        """The figures of the table."""
        return {
            "kl": self.kl,
            "total_variation": self.total_variation,
            "log_score": self.log_score,
            "calibration_error": self.calibration_error,
            "argmax_match": self.argmax_match,
            "seconds": self.seconds,
        }


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
    from ..exact.queries import marginals, nodes_of

    sizes = problem.test_sizes(first.config)
    nodes = nodes_of(graph, sizes)[0]
    queries = problem.test_queries(first.config, count, torch.Generator().manual_seed(1))
    lines: list[str] = []
    data: dict[str, Any] = {}
    diagrams: dict[str, tuple[tuple[float, float], ...]] = {}
    for name, query in queries.items():
        began = time.perf_counter()
        with torch.no_grad():
            exact = marginals(graph, query.given, sizes=sizes)
        seconds = (time.perf_counter() - began) / count
        truth = {v: x.expand(count, *x.shape[1:]) for v, x in exact.means.items()}
        hidden = _hidden(nodes, query, problem.observable(first.config), count)
        title = f"{problem.name}, {name or 'test queries'}"
        if not bool(hidden.any()):
            lines += [f"{title}: every node is given, so there is nothing to compare", ""]
            continue
        p = _probabilities(nodes, truth, hidden)
        rows = {"exact": score(p, p, seconds)}
        rows[f"exact, {draws} samples"] = score(p, _sampled_exactly(p, draws), seconds)
        for run in (run for _, run in opened):
            began = time.perf_counter()
            q = _answer(nodes, run, query, hidden, count, draws, sizes)
            rows[_label(run)] = score(p, q, (time.perf_counter() - began) / count)
        lines += [title, *_table(rows), ""]
        data[name] = {label: row.figures() for label, row in rows.items()}
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


def score(exact: Tensor, probabilities: Tensor, seconds: float) -> Scores:
    """Score probabilities against exact ones.

    Args:
        exact: shape ``(hidden nodes, most states)``, 0 beyond the states of a node.
        probabilities: the same shape.
        seconds: time of a query.
    """
    import torch

    safe = probabilities.clamp(min=1e-12)
    log_score = (exact * safe.log()).sum(1)
    entropy: Tensor = torch.special.entr(exact).sum(1)
    flat, true = probabilities.flatten(), exact.flatten()
    place = (flat * _BINS).long().clamp(0, _BINS - 1)
    bins, error = [], 0.0
    for number in range(_BINS):
        here = place == number
        # states that a node does not have would fill the first bin
        here = here & ((flat > 0) | (true > 0))
        if bool(here.any()):
            mean, true_mean = float(flat[here].mean()), float(true[here].mean())
            bins.append((mean, true_mean))
            error += float(here.sum()) * abs(mean - true_mean)
    counted = int(((flat > 0) | (true > 0)).sum())
    # of equally probable values any is right
    best = exact.gather(1, probabilities.argmax(1)[:, None])[:, 0] >= exact.amax(1) - 1e-6
    return Scores(
        float((-entropy - log_score).mean()),
        float((exact - probabilities).abs().sum(1).mean() / 2),
        float(log_score.mean()),
        error / max(1, counted),
        float(best.double().mean()),
        seconds,
        tuple(bins),
    )


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


def _hidden(nodes: Nodes, query: Query, observable: Sequence[str], count: int) -> Tensor:
    """Mask of the observable nodes that a query leaves open, shape ``(count, nodes)``."""
    values = nodes.evidence(query.given, batch=count).values
    hidden = values < 0
    for name, own in nodes.ranges.items():
        if name not in observable:
            hidden[:, own.first : own.first + own.nodes] = False
    return hidden


def _probabilities(nodes: Nodes, means: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Probabilities of the states of hidden nodes, shape ``(hidden nodes, most states)``."""
    import torch

    count, most = len(hidden), max(nodes.states)
    result = torch.zeros(count, nodes.count, most, dtype=torch.float64)
    for name, own in nodes.ranges.items():
        if name not in means:
            continue
        x = means[name].double().reshape(count, own.nodes, -1)
        if not own.feature_shape:
            share = (x - own.low) / (own.high - own.low)
            x = torch.cat([1 - share, share], 2)
        result[:, own.first : own.first + own.nodes, : own.states] = x
    return result[hidden]


def _sampled_exactly(p: Tensor, draws: int) -> Tensor:
    """Frequencies of independent exact samples: what a perfect sampler would score."""
    import torch

    generator = torch.Generator().manual_seed(0)
    chosen = torch.multinomial(p, draws, replacement=True, generator=generator)
    counts = torch.zeros_like(p).scatter_add_(1, chosen, torch.ones(chosen.shape, dtype=p.dtype))
    return _smoothed(counts, p.shape[1])


def _smoothed(counts: Tensor, states: int) -> Tensor:
    """Probabilities from counts, with half a count added to each state."""
    return (counts + 0.5) / (counts.sum(1, keepdim=True) + 0.5 * states)


def _answer(
    nodes: Nodes,
    run: Trained,
    query: Query,
    hidden: Tensor,
    count: int,
    draws: int,
    sizes: Mapping[str, int],
) -> Tensor:
    """The probabilities of a run, shape ``(hidden nodes, most states)``."""
    import torch

    from ..graph.partial import Partial

    network = run.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if isinstance(network, CanInfer):
            return _probabilities(nodes, network.infer_values(query.given, count, sizes), hidden)
        if not isinstance(network, CanSample):
            raise UnnError(f"{run.folder}: engine {run.config.engine!r} gives neither means nor samples.")
        repeated = {
            name: Partial(_repeat(x.value, count, draws), _repeat(x.mask, count, draws))
            if isinstance(x, Partial)
            else _repeat(x, count, draws)
            for name, x in query.given.items()
        }
        samples = network.sample_with(repeated, count * draws, SamplingOptions(seed=0, at_once=2048), sizes)
    means = {name: x.view(count, draws, *x.shape[1:]).double().mean(1) for name, x in samples.values.items()}
    p = _probabilities(nodes, means, hidden)
    return _smoothed(p * draws, p.shape[1])


def _repeat(x: Tensor, count: int, draws: int) -> Tensor:
    return x.expand(count, *x.shape[1:]).repeat_interleave(draws, 0)


def _table(rows: Mapping[str, Scores]) -> list[str]:
    """The scores as lines of text."""
    width = max(map(len, rows))
    head = f"{'':{width}}      KL      TV  log score  calibration  argmax     ms"
    return [
        head,
        *(
            f"{label:{width}} {row.kl:7.4f} {row.total_variation:7.4f} {row.log_score:10.4f} "
            f"{row.calibration_error:12.4f} {row.argmax_match:7.1%} {1000 * row.seconds:6.1f}"
            for label, row in rows.items()
        ),
    ]
