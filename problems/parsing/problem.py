"""The parsing problem on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unn.errors import ArgumentError, DataError, DivergenceError, ObservationError
from unn.extending import Answer, HasDemo, Problem, TakesData, Trained
from unn.training.options import TrainingConfig

from .config import ParsingConfig, check_config
from .verb import ParseFile, ParsesSentences

if TYPE_CHECKING:
    from torch import Tensor, nn

    import unn

    from .metrics.attachment import Attachment
    from .train import ParsingTask

DEMO = ParsingConfig(
    iterations=2, hidden=64, width=64, training=TrainingConfig(epochs=15, batch=32, rate=1e-2, clip=5.0)
)


class ParsingProblem(Problem, ParsesSentences, HasDemo, TakesData):
    """Dependency trees of sentences."""

    name = "parsing"
    summary = (
        "dependency parsing: trees of sentences by the matrix-tree theorem, trained on CoNLL-U treebanks"
    )
    config = ParsingConfig
    own_engine = "descent"

    def check(self, config: ParsingConfig) -> None:
        """Check the ranges of all options."""
        check_config(config)
        if config.encoder == "bilstm" and config.width % 2:
            raise ArgumentError(
                f"parsing: option width must be even for the encoder bilstm, half for each direction, got "
                f"{config.width}."
            )

    def declare(self, config: ParsingConfig) -> unn.FactorGraph:
        """The graph, with an encoder for the words of the generated language."""
        from .toy import generated_treebank
        from .train import build, reader_of

        sentences = generated_treebank(20, 0).sentences
        return build(config, {**reader_of(config, sentences).facts(), "labels": []}).graph

    def task(self, config: ParsingConfig) -> ParsingTask:
        """Read the treebank."""
        from .data import list_skipped
        from .train import ParsingTask

        task = ParsingTask(config)
        for part in (task.treebanks.train, task.treebanks.dev, task.treebanks.test):
            if part is not None:
                list_skipped(part, "left out")
        return task

    def network(self, config: ParsingConfig, facts: Mapping[str, Any]) -> nn.Module:
        """The encoder and the graph."""
        from .train import build

        return build(config, facts)

    def order(self, run: Trained, given: Mapping[str, Tensor | unn.Partial]) -> list[str]:
        """The encoder once, then rounds of heads, modifiers and tree, without given variables."""
        from .network import ORDER

        names = ["X", *ORDER * run.config.iterations]
        return [name for name in names if name not in given]

    def iterations(self, run: Trained) -> int:
        """1, since the order contains the rounds."""
        return 1

    def read_value(self, run: Trained, name: str, text: str) -> Tensor | unn.Partial:
        """``words="the cat sees a bird"``, and ``Y=2,3,0,5,3``: the head of each word, 0 for the root."""
        import torch

        if name == "words":
            import io

            from .conllu.treebank import read_tokens
            from .train import reader_of_run

            if not text.split():
                raise ObservationError(
                    '--given words=: give the words of one sentence, separated by spaces, as in words="the '
                    'cat sees a bird".'
                )
            sentences = read_tokens(io.BytesIO(text.replace("\n", " ").encode())).sentences
            return reader_of_run(run.config, run.facts).batch(sentences)
        if name == "Y":
            heads = text.split(",")
            if not all(
                head.isascii() and head.isdecimal() and len(head) < 10 and int(head) <= len(heads)
                for head in heads
            ):
                raise ObservationError(
                    f"--given Y={text}: give the head of each of the n words, from 0 (the root) to n, such "
                    "as Y=2,0,2."
                )
            numbers = [int(head) for head in heads]
            cycle = _cycle(numbers)
            if cycle:
                words = " to ".join(map(str, [*cycle, cycle[0]]))
                raise ObservationError(
                    f"--given Y={text}: the heads form no tree, since they lead from word {words} and not to "
                    "the root, 0."
                )
            return torch.eye(len(heads) + 1)[numbers].T[None]
        return super().read_value(run, name, text)

    def show_value(self, run: Trained, name: str, value: Tensor) -> str:
        """For the tree, the most probable head of each word."""
        if name == "Y":
            best = value[0].max(0)
            return ", ".join(
                f"{m}<-{h} ({p:.0%})"
                for m, (h, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), 1)
            )
        shown = super().show_value(run, name, value)
        assert isinstance(shown, str)
        return shown

    def on_data(self, run: Trained, data: Path) -> Trained:
        """The run with another treebank for evaluation."""
        return replace(run, config=replace(run.config, test=str(data)))

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """Attachment, modifier lists and exact match on the test part."""
        from .data import SentenceExamples, load_test
        from .network import ParsingNetwork
        from .train import divergence, evaluate, labels_of_run, reader_of_run

        assert isinstance(run.network, ParsingNetwork)
        _require_finite(run)
        treebank = load_test(run.config)
        labels = labels_of_run(run.facts)
        examples = SentenceExamples(treebank.sentences, reader_of_run(run.config, run.facts), labels)
        lines = [f"{treebank.source}: {len(treebank.sentences)} sentences, {len(treebank.skipped)} skipped"]
        lines += [f"line {skipped.line}: skipped: {skipped.reason}" for skipped in treebank.skipped]
        data: dict[str, Any] = {"file": treebank.source, "skipped": len(treebank.skipped), "iterations": {}}
        for k in iterations or (run.config.iterations,):
            try:
                metrics = evaluate(run.network, examples, labels, k)
            except DivergenceError:
                raise divergence(treebank.source, k, run.config) from None
            data["iterations"][k] = vars(metrics)
            lines.append(f"{k} iterations (trained with {run.config.iterations}): {describe(metrics)}")
        return Answer(tuple(lines), data)

    def parse(self, run: Trained, request: ParseFile) -> Answer:
        """Trees for the sentences of a file."""
        from .network import ParsingNetwork
        from .output import answer, parse_sentences, read_sentences
        from .train import labels_of_run, reader_of_run

        assert isinstance(run.network, ParsingNetwork)
        _require_finite(run)
        treebank = read_sentences(request)
        try:
            parsed = parse_sentences(
                run.network,
                reader_of_run(run.config, run.facts),
                labels_of_run(run.facts),
                treebank.sentences,
                request,
            )
        except (DataError, DivergenceError) as error:
            # the message contains the line
            raise type(error)(f"{treebank.source}, {error}") from None
        return answer(treebank, parsed, request)

    def demo(self, folder: Path, progress: bool) -> Answer:
        """Train on the generated language, parse, draw a tree."""
        import torch

        from unn.draw import draw_graph, save_figure
        from unn.runs import make_folder
        from unn.training import fit

        from .data import SentenceExamples, load_test
        from .draw import draw_arcs, draw_marginals, tree_text
        from .output import parse_sentences
        from .train import ParsingTask, build, evaluate

        make_folder(folder)
        task = ParsingTask(DEMO)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(DEMO.training.seed)
            network = build(DEMO, task.facts)
        fit(network, task, DEMO.training, progress=progress)
        network.cpu().eval()
        test = load_test(DEMO).sentences
        metrics = evaluate(network, SentenceExamples(test, task.reader), [])
        chosen = max(test, key=lambda sentence: len(sentence.words))
        parsed = parse_sentences(network, task.reader, [], [chosen], ParseFile(folder, "-", show="tree"))[0]
        assert parsed.marginals is not None
        pictures = {
            "tree.svg": draw_arcs(parsed.heads, chosen.forms, weights=parsed.marginals, gold=chosen.heads),
            "marginals.svg": draw_marginals(parsed.marginals, chosen.forms, gold=chosen.heads),
            "graph.png": draw_graph(network.graph, given=["words"]),
        }
        for name, figure in pictures.items():
            save_figure(figure, folder / name)
        lines = [
            f"{len(test)} generated sentences: {describe(metrics)}",
            *tree_text(parsed.heads, chosen.forms, None, parsed.marginals).split("\n"),
        ]
        lines.append("pictures: " + ", ".join(str(folder / name) for name in pictures))
        return Answer(tuple(lines), vars(metrics))


def _cycle(heads: Sequence[int]) -> list[int]:
    """Words from 1 whose heads lead back to themselves; none if all lead to the root, 0."""
    for word in range(1, len(heads) + 1):
        path: list[int] = []
        while word and word not in path:
            path.append(word)
            word = heads[word - 1]
        if word:
            return path[path.index(word) :]
    return []


def _require_finite(run: Trained) -> None:
    """Check the weights of a run, since labels would be predicted even from NaN.

    Raises:
        DataError: if weights are NaN or infinite.
    """
    for name, x in run.network.state_dict().items():
        if not bool(x.isfinite().all()):
            raise DataError(
                f"{run.folder}: the weights {name!r} contain NaN or infinite entries. Use another run, or "
                "train again."
            )


def describe(metrics: Attachment) -> str:
    """Metrics in one line, in per cent."""
    parts = [
        ("UAS", metrics.uas),
        ("UAS without punctuation", metrics.uas_without_punctuation),
        ("LAS", metrics.las),
    ]
    parts += [("modifier lists", metrics.modifier_lists), ("exact match", metrics.exact_match)]
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in parts if value is not None)
