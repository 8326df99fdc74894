"""Experiments of the hierarchical-filtering paper: encoders on filtered trees against exact marginals.

    python tests/benchmarks/hierarchy.py agreement OUT.csv --levels 3 --filtering 0 1 2 3 --grammars 0 1 15
    python tests/benchmarks/hierarchy.py staircase OUT.csv --agreement FILE.csv
    python tests/benchmarks/hierarchy.py attention OUT.png --levels 3 --weights FOLDER
    python tests/benchmarks/hierarchy.py probes OUT.csv --levels 3 --weights FOLDER
    python tests/benchmarks/hierarchy.py pretraining OUT.csv --levels 3 --weights FOLDER

``agreement`` trains encoders of the root and of masked leaves, and writes at growing numbers of steps the
divergence from the exact marginals of every filtering (Fig. 1c and d), and at the end accuracy, divergence,
matches of the most probable value and Spearman correlations, on data of every filtering and on random leaves
(Fig. 1b, 2, 9, 10); ``staircase`` reads the smallest divergences from its file. With ``--weights`` it keeps
the trained networks, of which the other experiments draw their figures (Fig. 4, 3b and 1f). ``--paper`` takes
the sizes and the training of the paper, for a GPU.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unn
from problems.hierarchy.grammar import Grammar, draw_rules, draw_trees
from problems.hierarchy.graph import declare
from unn.graph.latents import contract_latents

SYMBOLS = 4
TASKS = ("root", "leaf")
"""What an encoder estimates: the root given all leaves, or one masked leaf given the others."""

FIELDS = ["task", "levels", "filtering", "grammar", "step", "data", "oracle", "measure", "value"]
"""One figure a row: ``data`` is the filtering of the test sequences or "random", ``oracle`` the filtering of
the exact marginals."""


@dataclass(frozen=True)
class Training:
    """How an encoder is trained: on fresh sequences, or on ``sequences`` fixed ones if it is not 0."""

    steps: int = 8000
    batch: int = 64
    rate: float = 1e-3
    hidden: int = 256
    dropout: float = 0.0
    sequences: int = 0
    cosine: bool = True


PAPER = {
    "root": Training(10 * 2**17 // 32, 32, 1e-4, 2048, 0.1, 2**17, cosine=False),
    "leaf": Training(1000 * 2**18 // 32, 32, 1e-4, 2048, 0.1, 2**18, cosine=False),
}
"""The training of the paper, by task."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Test sequences with what is hidden of them.

    Attributes:
        leaves: symbols, shape ``(count, leaves)``.
        root: true roots, shape ``(count,)``; of random leaves there are none, and they are -1.
        masked: the masked leaf of each, shape ``(count,)``.
    """

    leaves: Tensor
    root: Tensor
    masked: Tensor

    def truth(self, task: str) -> Tensor:
        """The hidden symbols, shape ``(count,)``."""
        return self.root if task == "root" else self.leaves.gather(1, self.masked[:, None])[:, 0]

    def given(self, task: str) -> dict[str, unn.Partial]:
        """The evidence of the exact oracle."""
        known = torch.ones_like(self.leaves, dtype=torch.bool)
        if task == "leaf":
            known.scatter_(1, self.masked[:, None], False)
        return {"leaf": unn.Partial(F.one_hot(self.leaves, SYMBOLS).double(), known)}

    def exact(self, task: str, grammar: Grammar) -> Tensor:
        """Exact marginals of the hidden symbols, shape ``(count, q)``."""
        means = unn.exact.marginals(declare(grammar), self.given(task))
        if task == "root":
            return means["root"]
        return means["leaf"][torch.arange(len(self.masked)), self.masked]


def grammar_of(seed: int, levels: int, filtering: int) -> Grammar:
    """The grammar of a seed with a uniform prior of the root."""
    return Grammar(draw_rules(SYMBOLS, 1.0, seed), np.full(SYMBOLS, 1 / SYMBOLS), levels, filtering)


def draw_questions(grammar: Grammar, count: int, generator: torch.Generator) -> Questions:
    """Sequences of a grammar, with a random masked leaf each."""
    trees = draw_trees(grammar, count, generator)
    masked = torch.randint(grammar.leaves, (count,), generator=generator)
    return Questions(trees[grammar.levels], trees[0][:, 0], masked)


def random_questions(levels: int, count: int, generator: torch.Generator) -> Questions:
    """Uniformly random leaves."""
    leaves = torch.randint(SYMBOLS, (count, 2**levels), generator=generator)
    masked = torch.randint(2**levels, (count,), generator=generator)
    return Questions(leaves, torch.full((count,), -1), masked)


def encoder(levels: int, training: Training) -> unn.Encoder:
    """An untrained encoder with as many blocks as levels; its tokens are the leaves."""
    graph = contract_latents(declare(grammar_of(0, levels, 0)), ("root", "leaf"), {}).float()
    options = unn.EncoderOptions(
        blocks=levels, hidden=training.hidden, dropout=training.dropout, tokens=("leaf",)
    )
    return unn.Encoder(graph, options, {})


def logits_of(model: unn.Encoder, questions: Questions, task: str) -> Tensor:
    """Logits of the hidden symbols, shape ``(count, q)``."""
    leaves, masked = questions.leaves, questions.masked
    count, n = leaves.shape
    tokens = SYMBOLS + 2 + leaves
    if task == "leaf":
        tokens = tokens.scatter(1, masked[:, None], SYMBOLS + 1)
    logits: Tensor = model.network(tokens.to(next(model.parameters()).device))
    return logits[:, n] if task == "root" else logits[torch.arange(count), masked]


def divergence(exact: Tensor, logits: Tensor) -> float:
    """Mean KL(exact || estimate) in nats."""
    return float(F.kl_div(logits.double().log_softmax(-1), exact, reduction="batchmean"))


def spearman(exact: Tensor, logits: Tensor) -> float:
    """Mean over the sequences of the rank correlation of the two distributions."""
    ranks = [x.argsort(1).argsort(1).double() for x in (exact, logits)]
    a, b = ((x - x.mean(1, keepdim=True)) for x in ranks)
    return float(((a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()).mean())


def train(
    model: unn.Encoder,
    grammar: Grammar,
    task: str,
    training: Training,
    seed: int,
    tested: Questions,
    exact: dict[int, Tensor],
) -> list[tuple[int, dict[int, float]]]:
    """Train an encoder.

    Args:
        model: encoder, trained in place.
        grammar: source of the sequences.
        task: what is hidden.
        training: steps and rates.
        seed: seed of the sequences.
        tested: test questions.
        exact: their exact marginals by filtering.

    Returns:
        Divergences from each of the exact marginals, by number of steps.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    fixed = draw_questions(grammar, training.sequences, generator) if training.sequences else None
    optimizer = torch.optim.Adam(model.parameters(), lr=training.rate)
    shown = {round(1.6**j) for j in range(60)} | {training.steps}
    curve = []
    for step in range(1, training.steps + 1):
        if fixed is None:
            batch = draw_questions(grammar, training.batch, generator)
        else:
            rows = torch.randint(training.sequences, (training.batch,), generator=generator)
            batch = Questions(fixed.leaves[rows], fixed.root[rows], fixed.masked[rows])
        if training.cosine:
            share = step / training.steps
            rate = training.rate * min(1.0, share / 0.05) * 0.5 * (1 + np.cos(np.pi * share))
            optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        logits = logits_of(model, batch, task)
        F.cross_entropy(logits, batch.truth(task).to(logits.device)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in shown:
            with torch.no_grad():
                model.eval()
                logits = logits_of(model, tested, task).cpu()
                model.train()
            curve.append((step, {k: divergence(x, logits) for k, x in exact.items()}))
    return curve


@torch.no_grad()
def final_rows(
    model: unn.Encoder, task: str, grammar: Grammar, seed: int, count: int
) -> list[tuple[str, int, str, float]]:
    """Figures of a trained encoder: data, oracle, measure, value."""
    model.eval()
    rows: list[tuple[str, int, str, float]] = []
    k = grammar.filtering
    generator = torch.Generator().manual_seed(10_000 + seed)
    sources = {str(j): grammar_of(seed, grammar.levels, j) for j in range(grammar.levels + 1)}
    for name, source in [*sources.items(), ("random", None)]:
        if source is None:
            questions = random_questions(grammar.levels, count, generator)
        else:
            questions = draw_questions(source, count, generator)
        exact = questions.exact(task, grammar)
        logits = logits_of(model, questions, task).cpu()
        figures = {
            "divergence": divergence(exact, logits),
            "match": float((exact.argmax(1) == logits.argmax(1)).double().mean()),
            "spearman": spearman(exact, logits),
        }
        if source is not None:
            truth = questions.truth(task)
            figures["accuracy"] = float((logits.argmax(1) == truth).double().mean())
            figures["exact accuracy"] = float((exact.argmax(1) == truth).double().mean())
        rows += [(name, k, measure, value) for measure, value in figures.items()]
    return rows


def agreement(options: argparse.Namespace) -> None:
    """Train and measure; rows are written after each network."""
    with options.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(FIELDS)
        for seed in options.grammars:
            for filtering in options.filtering:
                for task in options.tasks:
                    for row in _one_network(options, seed, filtering, task):
                        writer.writerow(row)
                    file.flush()


def _one_network(options: argparse.Namespace, seed: int, filtering: int, task: str) -> list[list[object]]:
    levels = options.levels
    training = PAPER[task] if options.paper else Training(steps=options.steps)
    grammar = grammar_of(seed, levels, filtering)
    torch.manual_seed(seed)
    model = encoder(levels, training).to(options.device)
    questions = draw_questions(grammar, 1000, torch.Generator().manual_seed(20_000 + seed))
    exact = {j: questions.exact(task, grammar_of(seed, levels, j)) for j in range(levels + 1)}
    started = time.perf_counter()
    curve = train(model, grammar, task, training, seed, questions, exact)
    seconds = time.perf_counter() - started
    own: list[object] = [task, levels, filtering, seed]
    rows = [
        [*own, step, filtering, oracle, "divergence", f"{value:.5f}"]
        for step, values in curve
        for oracle, value in values.items()
    ]
    final = final_rows(model, task, grammar, seed, 10_000)
    rows += [[*own, training.steps, data, k, name, f"{value:.5f}"] for data, k, name, value in final]
    rows.append([*own, training.steps, filtering, filtering, "seconds", f"{seconds:.0f}"])
    if options.weights:
        options.weights.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), options.weights / f"{task}-{levels}-{filtering}-{seed}.pt")
    shown = {name: value for data, _, name, value in final if data == str(filtering)}
    print(own, {name: round(value, 4) for name, value in shown.items()}, f"{seconds:.0f} s", flush=True)
    return rows


def staircase(options: argparse.Namespace) -> None:
    """Steps at which networks of unfiltered data are closest to the exact marginals of each filtering."""
    if options.agreement is None:
        raise SystemExit("--agreement is missing: the file that `agreement` wrote")
    smallest: dict[tuple[str, ...], tuple[float, int]] = {}
    with options.agreement.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["measure"] == "divergence" and row["filtering"] == row["data"] == "0":
                key = (row["task"], row["levels"], row["grammar"], row["oracle"])
                now = float(row["value"]), int(row["step"])
                smallest[key] = min(smallest.get(key, now), now)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["task", "levels", "grammar", "oracle", "step", "divergence"])
        for key, (value, step) in smallest.items():
            writer.writerow([*key, step, f"{value:.3f}"])
            print(*key, step, f"{value:.3f}")


def trained(options: argparse.Namespace, task: str, filtering: int, seed: int) -> unn.Encoder:
    """An encoder that ``agreement`` has kept."""
    if options.weights is None:
        raise SystemExit("--weights is missing: the folder in which `agreement --weights` kept networks")
    training = PAPER[task] if options.paper else Training()
    model = encoder(options.levels, training)
    path = options.weights / f"{task}-{options.levels}-{filtering}-{seed}.pt"
    if not path.exists():
        raise SystemExit(
            f"{path} does not exist: train it with `agreement --tasks {task} --levels {options.levels} "
            f"--filtering {filtering} --grammars {seed} --weights {options.weights}`"
        )
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.to(options.device).eval()


@torch.no_grad()
def attention_maps(options: argparse.Namespace, filtering: int, seed: int) -> Tensor:
    """Mean attention of each block of the encoder of masked leaves, shape ``(levels, leaves, leaves)``."""
    grammar = grammar_of(seed, options.levels, filtering)
    model = trained(options, "leaf", filtering, seed)
    questions = draw_questions(grammar, 10_000, torch.Generator().manual_seed(0))
    tokens = SYMBOLS + 2 + questions.leaves
    tokens = tokens.scatter(1, questions.masked[:, None], SYMBOLS + 1).to(options.device)
    maps: Tensor = model.network.attention(tokens).mean((1, 2)).cpu()
    return maps


def attention(options: argparse.Namespace) -> None:
    """Mean attention maps, and beside them the share of attention within groups of leaves (Fig. 4)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    levels, n = options.levels, 2**options.levels
    rows, columns = len(options.filtering), levels * len(options.grammars)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(1.5 * columns, 1.6 * rows), squeeze=False, layout="constrained"
    )
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["grammar", "k", "block", "share within groups", "uniform"])
        for column, seed in enumerate(options.grammars):
            for row, k in enumerate(options.filtering):
                maps = attention_maps(options, k, seed)
                group = torch.arange(n) // 2 ** (levels - k)
                same = group[:, None] == group
                for layer in range(levels):
                    share = float(maps[layer][same].sum() / n)
                    uniform = float(same.double().mean())
                    writer.writerow([seed, k, layer + 1, f"{share:.3f}", f"{uniform:.3f}"])
                    axis = axes[row, column * levels + layer]
                    axis.imshow(maps[layer], cmap="Greys", vmin=0)
                    axis.set(xticks=[], yticks=[])
                    axis.set_title(f"grammar {seed}, k={k}, block {layer + 1}", fontsize=6)
    figure.savefig(options.out, dpi=120)


def probes(options: argparse.Namespace) -> None:
    """Accuracy of reading the ancestor at each level from the state of a leaf after each block (Fig. 3b)."""
    levels = options.levels
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["grammar", "block", "level", "accuracy", "most frequent"])
        for seed in options.grammars:
            model = trained(options, "leaf", 0, seed)
            generator = torch.Generator().manual_seed(3)
            sets = [draw_trees(grammar_of(seed, levels, 0), count, generator) for count in (2**14, 2**12)]
            with torch.no_grad():
                states = [[s.cpu() for s in model.network.states(SYMBOLS + 2 + x[levels])] for x in sets]
            for block in range(levels + 1):
                for level in range(levels):
                    truth = [x[level].repeat_interleave(2 ** (levels - level), 1) for x in sets]
                    accuracy = _probe(*(s[block] for s in states), *truth)
                    frequent = float(truth[1].flatten().bincount().max() / truth[1].numel())
                    writer.writerow([seed, block, level, f"{accuracy:.4f}", f"{frequent:.4f}"])
                    print(seed, block, level, round(accuracy, 4), flush=True)


def _probe(inputs: Tensor, tested: Tensor, labels: Tensor, truth: Tensor) -> float:
    """Test accuracy of a network with 64 units, the same for all positions."""
    torch.manual_seed(0)
    probe = nn.Sequential(nn.Linear(inputs.shape[-1], 64), nn.ReLU(), nn.Linear(64, SYMBOLS))
    optimizer = torch.optim.Adam(probe.parameters(), lr=3e-3)
    x, y = inputs.flatten(0, 1), labels.flatten()
    for _ in range(800):
        rows = torch.randint(len(x), (512,))
        loss = F.cross_entropy(probe(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float((probe(tested).argmax(-1) == truth).double().mean())


def pretraining(options: argparse.Namespace) -> None:
    """Accuracy of the root by the number of labelled sequences, with and without pre-training (Fig. 1f)."""
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["grammar", "labelled", "start", "draw", "accuracy"])
        for seed in options.grammars:
            for labelled in options.labelled:
                for draw in range(3):
                    for start in ("random", "frozen", "pretrained"):
                        accuracy = _labelled_accuracy(options, seed, labelled, draw, start)
                        writer.writerow([seed, labelled, start, draw, f"{accuracy:.4f}"])
                        file.flush()
                        print(seed, labelled, start, draw, round(accuracy, 4), flush=True)


def _labelled_accuracy(options: argparse.Namespace, seed: int, labelled: int, draw: int, start: str) -> float:
    """Accuracy of the root after training on labelled sequences from one of the three starts."""
    grammar = grammar_of(seed, options.levels, 0)
    tested = draw_questions(grammar, 10_000, torch.Generator().manual_seed(7))
    torch.manual_seed(draw)
    model = encoder(options.levels, Training()).to(options.device)
    if start != "random":
        source = trained(options, "leaf", 0, seed).state_dict()
        own = {name: x for name, x in source.items() if "head" not in name}
        model.load_state_dict(own, strict=False)
    if start == "frozen":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("head" in name)
    training = Training(steps=options.steps, sequences=labelled)
    train(model, grammar, "root", training, 100 + draw, tested, {})
    model.eval()
    with torch.no_grad():
        answers = logits_of(model, tested, "root").cpu().argmax(1)
    return float((answers == tested.root).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    experiments = {f.__name__: f for f in (agreement, staircase, attention, probes, pretraining)}
    parser.add_argument("experiment", choices=experiments)
    parser.add_argument("out", type=Path)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--filtering", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--grammars", type=int, nargs="+", default=[0, 1, 15])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--labelled", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--agreement", type=Path, help="the file of `agreement` that `staircase` reads")
    parser.add_argument("--paper", action="store_true", help="sizes and training of the paper")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    experiments[options.experiment](options)


if __name__ == "__main__":
    main()
