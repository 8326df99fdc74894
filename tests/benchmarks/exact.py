"""How fast exact inference is: against sweeps written by hand, and against packages where they are installed.

Run as ``python -m tests.benchmarks.exact [--quick] [--only NAME]``. pyAgrum and pgmpy (``pip install
'unn[exact-rivals]'``) are compared on the Bayesian networks under ``$UNN_DATA``, where both are there.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch_struct
from torch import Tensor

import unn
from factors import Multilinear, Structured
from problems.hierarchy.grammar import Grammar, draw_rules, draw_trees
from problems.hierarchy.graph import declare
from tests.benchmarks import measure as bench
from tests.benchmarks.core import report
from tests.benchmarks.measure import Case, Figure
from unn.exact import ExactOptions, inference, read_bif
from unn.exact.queries import tables_of
from unn.exact.tables import TableEvidence

NETWORKS = {
    "cancer": 1000,
    "earthquake": 1000,
    "survey": 1000,
    "sachs": 1000,
    "asia": 1000,
    "child": 1000,
    "alarm": 1000,
    "insurance": 1000,
    "hailfinder": 1000,
    "win95pts": 1000,
    "pigs": 200,
    "pathfinder": 200,
    "mildew": 100,
    "munin1": 10,
}
"""Rows in a batch; large tables leave no memory for a thousand."""


def trees(filtering: int, count: int) -> tuple[Grammar, Tensor]:
    """A grammar of four symbols and four levels, and sequences of leaves."""
    grammar = Grammar(draw_rules(4, 1.0, 0), np.full(4, 0.25), 4, filtering)
    return grammar, draw_trees(grammar, count, torch.Generator().manual_seed(0))[4]


def tree_case(filtering: int, count: int = 10_000) -> Case:
    """Log-partition and marginals of all nodes of filtered trees, given the numbers of observed states."""
    grammar, leaves = trees(filtering, count)
    g = declare(grammar)
    one_hot = torch.nn.functional.one_hot(leaves, 4).double()
    seen = torch.rand(count, 16, generator=torch.Generator().manual_seed(1)) < 0.8
    given = {"leaf": unn.Partial(one_hot, seen)}
    _, model, evidence = tables_of(g, given, None, None)
    states = torch.where(seen, leaves, -1)[..., None]

    def ours() -> tuple[Tensor, ...]:
        answer = inference.marginals(model, evidence)
        return answer.log_partition, answer.probabilities[:, 0]

    rules = torch.from_numpy(grammar.rules)
    up_rules, star = rules.reshape(4, 16).T.contiguous(), torch.from_numpy(grammar.star())

    def by_hand() -> tuple[Tensor, ...]:
        """An upward and a downward sweep, a matrix product for each level."""
        total = torch.zeros(count, dtype=torch.float64)
        weights = ((states < 0) | (states == torch.arange(4))).double()
        levels, pairs = {4: weights}, {}
        for level in range(3, filtering - 1, -1):
            both = levels[level + 1].view(count, -1, 2, 4)
            pairs[level] = (both[:, :, 0, :, None] * both[:, :, 1, None]).flatten(2)
            message = pairs[level] @ up_rules
            top = message.amax(2, keepdim=True)
            total = total + top.log().sum((1, 2))
            levels[level] = message / top
        if filtering:
            star_messages = torch.einsum("jab,njb->nja", star, levels[filtering])
            logs = star_messages.log()
            joint = logs.sum(1)
            top = joint.amax(1, keepdim=True)
            root = (joint - top).exp() / 4
            total = total + top[:, 0]
            # to each node of the star all others, by subtraction in logarithms
            others = (joint[:, None] - logs - (joint[:, None] - logs).amax(2, keepdim=True)).exp()
            down = torch.einsum("nja,jab->njb", others, star)
        else:
            root = levels[0][:, 0] / 4
            down = torch.full((count, 1, 4), 0.25, dtype=torch.float64)
        total = total + root.sum(1).log()
        marginals = []
        if filtering:
            belief = down * levels[filtering]
            marginals.append(belief / belief.sum(2, keepdim=True))
        for level in range(filtering, 4):
            outside = (down @ rules.reshape(4, 16)).view(count, -1, 4, 4)
            both = levels[level + 1].view(count, -1, 2, 4)
            left = (outside * both[:, :, 1, None]).sum(3)
            right = (outside * both[:, :, 0, :, None]).sum(2)
            down = torch.stack([left, right], 2).flatten(1, 2)
            down = down / down.amax(2, keepdim=True).clamp(min=1e-300)
            belief = down * levels[level + 1]
            marginals.append(belief / belief.sum(2, keepdim=True))
        return total, root / root.sum(1, keepdim=True)

    name = f"exact: {count:,} filtered trees k={filtering}, marginals"
    return Case(name, ours, by_hand, 1.05, "two batched sweeps written by hand")


def chain_graph(length: int, states: int) -> unn.FactorGraph:
    """A chain with random tables."""
    g = unn.FactorGraph("chain", time=length, state=states)
    s = g.variable("s", "time | state", unn.Entropy())
    torch.manual_seed(0)
    T, b = g.parameter("T", "state next", init=1.0), g.parameter("b", "time state", init=1.0)
    g.factor(Multilinear(s["t i"], T["i j"], s["t+1 j"]))
    g.factor(Multilinear(b["t i"], s["t i"]))
    return g


def marginals_of_chain(g: unn.FactorGraph) -> tuple[Tensor, ...]:
    """Log-partition and marginals of a chain."""
    with torch.no_grad():
        answer = unn.exact.marginals(g)
    return answer.log_partition, answer["s"][0]


def chain_case(length: int = 10_000, states: int = 4) -> Case:
    """Marginals of a chain, against forward-backward over its nodes in float64 as a loop."""
    g = chain_graph(length, states)
    transition, scores = g.T.detach().double().exp(), g.b.detach().double().exp()

    def ours() -> tuple[Tensor, ...]:
        return marginals_of_chain(g)

    def by_hand() -> tuple[Tensor, ...]:
        forward, total = [scores[0]], torch.zeros(1, dtype=torch.float64)
        for t in range(1, length):
            message = (forward[-1] @ transition) * scores[t]
            top = message.max()
            total = total + top.log()
            forward.append(message / top)
        backward = [torch.ones(states, dtype=torch.float64)]
        for t in range(length - 1, 0, -1):
            message = transition @ (scores[t] * backward[-1])
            backward.append(message / message.max())
        belief = torch.stack(forward) * torch.stack(backward[::-1])
        return total + forward[-1].sum().log(), belief / belief.sum(1, keepdim=True)

    return Case(f"exact: chain of {length:,} nodes, marginals", ours, by_hand, None, "loop over the nodes")


def chain_kernel_case(length: int = 10_000, states: int = 4) -> Case:
    """Marginals of a chain as a graph of tables, against the regularizer of label sequences."""
    g = chain_graph(length, states)
    transition, scores = g.T.detach().double(), g.b.detach().double()
    pairs = scores[1:, :, None] + transition.T
    pairs[0] += scores[0]
    sequences = Structured(torch_struct.LinearChainCRF)

    def ours() -> tuple[Tensor, ...]:
        return marginals_of_chain(g)

    def structured() -> tuple[Tensor, ...]:
        with torch.no_grad():
            total, p = sequences.conjugate(pairs[None]), sequences.mirror(pairs[None])[0]
        return total, torch.cat([p[:1].sum(1), p.sum(2)])

    name = f"exact: chain of {length:,} nodes, against sequences"
    return Case(name, ours, structured, 2.0, "log-partition and marginals by Structured(LinearChainCRF)")


def network_figures(samples: int) -> list[Figure]:
    """All marginals of Bayesian networks given random evidence, in batches, against pyAgrum and pgmpy."""
    return [figure for name, rows in NETWORKS.items() for figure in figures_of_network(name, samples, rows)]


def figures_of_network(name: str, samples: int, rows: int) -> list[Figure]:
    """Milliseconds of a row of a batch of evidence, and its share of the time of packages.

    Args:
        name: of a network under ``$UNN_DATA``; no figures without its file.
        samples: repetitions.
        rows: of evidence in a batch.
    """
    path = Path(os.environ.get("UNN_DATA", "")) / "exact" / "bif" / f"{name}.bif.gz"
    if not path.exists():
        return []
    file = read_bif(path)
    model = file.model
    generator = torch.Generator().manual_seed(0)
    states = inference.sample(model, rows, generator=generator)[0]
    observed = torch.randperm(len(file.names), generator=generator)[: max(1, len(file.names) // 5)]
    values = torch.full_like(states, -1)
    values[:, observed] = states[:, observed]
    evidence, options = TableEvidence(values), ExactOptions()
    inference.marginals(model, evidence, options)
    seconds = bench.median_seconds(lambda: inference.marginals(model, evidence), samples, warmup=1)
    figures = [Figure(f"exact: {name}, {rows} evidences in a batch", 1000 * seconds / rows, "ms")]
    rivals = {"pyagrum": (agrum_seconds, 20, 1.0), "pgmpy": (pgmpy_seconds, 3, 0.1)}
    for rival, (measure, few, limit) in rivals.items():
        if importlib.util.find_spec(rival):
            p = inference.marginals(model, TableEvidence(values[:few])).probabilities
            own = measure(file, values[:few], p)
            figures.append(Figure(f"exact: {name}, against {rival}", seconds / rows / own, "x", limit))
    return figures


def agrum_seconds(file: unn.exact.ModelFile, values: Tensor, ours: Tensor) -> float:
    """Seconds of pyAgrum for one row of evidence; its marginals must be ours."""
    import pyagrum

    net = pyagrum.BayesNet()
    for name, states in zip(file.names, file.states, strict=True):
        net.add(pyagrum.LabelizedVariable(name, name, list(states)))
    for scope in file.scopes:
        for parent in scope[:-1]:
            net.addArc(file.names[parent], file.names[scope[-1]])
    for scope, weights in zip(file.scopes, file.weights, strict=True):
        table = net.cpt(file.names[scope[-1]])
        order = [file.names.index(n) for n in table.names[::-1]]
        table[:] = np.ascontiguousarray(weights.transpose([scope.index(v) for v in order]))
    engine = pyagrum.LazyPropagation(net)
    times = []
    for row, p in zip(values.tolist(), ours, strict=True):
        started = time.perf_counter()
        engine.setEvidence({file.names[v]: s for v, s in enumerate(row) if s >= 0})
        engine.makeInference()
        own = [engine.posterior(name).toarray() for name in file.names]
        times.append(time.perf_counter() - started)
        for v, theirs in enumerate(own):
            np.testing.assert_allclose(theirs, p[v, : len(theirs)], atol=1e-6)
    return statistics.median(times)


def pgmpy_seconds(file: unn.exact.ModelFile, values: Tensor, ours: Tensor) -> float:
    """Seconds of pgmpy's variable elimination for one row of evidence; its marginals must be ours."""
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteBayesianNetwork

    net = DiscreteBayesianNetwork([(file.names[p], file.names[s[-1]]) for s in file.scopes for p in s[:-1]])
    net.add_nodes_from(file.names)
    for scope, weights in zip(file.scopes, file.weights, strict=True):
        parents = [file.names[p] for p in scope[:-1]]
        cards = [len(file.states[p]) for p in scope[:-1]]
        table = weights.reshape(-1, weights.shape[-1]).T
        table = table / table.sum(0)
        net.add_cpds(TabularCPD(file.names[scope[-1]], len(table), table, parents or None, cards or None))
    engine = VariableElimination(net)
    times = []
    for row, p in zip(values.tolist(), ours, strict=True):
        evidence = {file.names[v]: s for v, s in enumerate(row) if s >= 0}
        started = time.perf_counter()
        own = {
            v: engine.query([name], evidence=evidence, show_progress=False).values
            for v, name in enumerate(file.names)
            if name not in evidence
        }
        times.append(time.perf_counter() - started)
        for v, theirs in own.items():
            np.testing.assert_allclose(theirs, p[v, : len(theirs)], atol=1e-6)
    return statistics.median(times)


def cases() -> list[Case]:
    """All cases."""
    return [*(tree_case(filtering) for filtering in (0, 2, 4)), chain_case(), chain_kernel_case()]


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    return report(__doc__, cases, {"networks": network_figures}, arguments, lambda case: 1e-9)


if __name__ == "__main__":
    main()
