"""How fast the engines of constraint problems are, against loops written by hand.

The loop of the solver computes all candidates of all boards with gathered indices. That of the recurrent
transformer is written as in its published code: three projections, attention by matrices, and a call of the
head after each block. Run as ``python -m tests.benchmarks.constraints [--quick] [--only NAME]``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import unn
from problems.colouring.graph import declare as declare_colouring
from problems.colouring.graph import random_edges
from problems.sudoku.grids import declare, draw_grids, one_hot
from tests.benchmarks import measure as bench
from tests.benchmarks.core import report
from tests.benchmarks.measure import Case, Figure, Run
from unn.engine import SolvingOptions
from unn.recurrent.model import RecurrentModel
from unn.recurrent.options import RecurrentOptions
from unn.search.model import Search
from unn.search.options import SearchOptions
from unn.solver.losses import label_losses
from unn.solver.model import Solver
from unn.solver.options import SolverOptions
from unn.solver.packing import pack
from unn.solver.propagation import evidence, exclude


def boards(count: int, share: float = 0.35) -> tuple[Tensor, Tensor]:
    """Grids with random given cells."""
    generator = torch.Generator().manual_seed(0)
    X = one_hot(draw_grids(count, 3, 3, generator), 9)
    return X, torch.rand(count, 9, 9, generator=generator) < share


def solver_case(steps: int = 8, count: int = 32) -> Case:
    """Steps of the solver with their gradients."""
    torch.manual_seed(0)
    model = Solver(declare(3, 3), SolverOptions(), {})
    layout, network = model.layout({}), model.network
    X, given = boards(count)
    known = exclude(layout, evidence(layout, X.flatten(1), given.flatten(1)))
    truth = X.flatten(1)
    start = torch.randn(count, layout.candidates, 32)
    members = torch.cat([family.entries for family in layout.families])
    place = members.flatten().argsort(stable=True)
    groups = (place // 9).view(layout.candidates, 4)
    is_open = known.open[:, :, None].float()
    open_groups = known.open[:, members].any(2)

    # the losses do not depend on the bias of the score
    parameters = [p for name, p in network.named_parameters() if name != "score.bias"]

    def ours() -> tuple[Tensor, ...]:
        packed = pack(layout, known)
        state = start[packed.row, packed.candidate]
        target = truth[packed.row, packed.candidate]
        losses = []
        for _ in range(steps):
            state = network(state, packed)
            losses.append(label_losses(network.scores(state), target, packed).mean())
        return torch.autograd.grad(torch.stack(losses).mean(), parameters)

    def by_hand() -> tuple[Tensor, ...]:
        state, losses = start, []
        for _ in range(steps):
            a = network.summand(state)
            x = torch.cat([a[..., :16].relu(), a[..., 16:].clamp(-12, 12).exp()], -1) * is_open
            sums = x[:, members].sum(2)
            summary = torch.cat([sums[..., :16], (sums[..., 16:] + 1e-6).log()], -1)
            messages = summary @ network.summary[0].T + network.summary_bias
            alive = open_groups[:, groups, None]
            sent = ((network.query(state)[:, :, None] + messages[:, groups]).relu() * alive).sum(2)
            gate, value = network.update(sent).split(32, -1)
            state = state + gate.sigmoid() * (value.tanh() - state)
            scores = network.scores(state.flatten(0, 1)).view(count, -1).clamp(-40, 40)
            scores = scores.masked_fill(~known.open, -torch.inf)[:, members]
            label = truth[:, members].argmax(2)
            losses.append(F.cross_entropy(scores[open_groups], label[open_groups]))
        return torch.autograd.grad(torch.stack(losses).mean(), parameters)

    return Case(f"solver: {steps} steps, {count} boards, backward", ours, by_hand, 0.7, "gathered indices")


def recurrent_runs(recurrences: int, count: int, dropped: float, dtype: torch.dtype) -> tuple[Run, Run]:
    """The training loss of the recurrent transformer with its gradients, and as the published code computes
    it, in float32."""
    torch.manual_seed(0)
    options = RecurrentOptions(recurrences=recurrences, dropout=dropped)
    model = RecurrentModel(declare(3, 3), options, {}).train()
    network, block = model.network, model.network.blocks[0]
    X, given = boards(count)
    tokens = torch.where(given, X.argmax(-1) + 1, 0).flatten(1)
    target = X.argmax(-1).masked_fill(given, -100).flatten()
    weights, biases = (x.chunk(3) for x in (block.query_key_value.weight, block.query_key_value.bias))
    parameters = list(network.parameters())

    def ours() -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model.loss({"X": X}, {"X": given})
        return torch.autograd.grad(loss, parameters)

    def by_hand() -> tuple[Tensor, ...]:
        x = F.dropout(network.token(tokens) + network.position, dropped)
        total = x.new_zeros(())
        for _ in range(recurrences):
            h = block.attention_norm(x)
            q, k, v = (
                F.linear(h, w, b).view(count, 81, 4, 32).transpose(1, 2)
                for w, b in zip(weights, biases, strict=True)
            )
            attention = F.softmax(q @ k.transpose(-2, -1) * (1 / math.sqrt(32)), dim=-1)
            y = (F.dropout(attention, dropped) @ v).transpose(1, 2).contiguous().view(count, 81, 128)
            x = x + F.dropout(block.out(y), dropped)
            x = x + F.dropout(block.narrow(F.gelu(block.widen(block.forward_norm(x)))), dropped)
            logits = network.head(network.norm(x))
            total = total + F.cross_entropy(logits.view(-1, 9), target, ignore_index=-100)
        return torch.autograd.grad(total, parameters)

    return ours, by_hand


def recurrent_case(recurrences: int = 8, count: int = 16) -> Case:
    """The training loss of the recurrent transformer with its gradients, without dropout, so that both ways
    have the same result."""
    ours, by_hand = recurrent_runs(recurrences, count, 0.0, torch.float32)
    name = f"recurrent: {recurrences} recurrences, {count} boards, backward"
    return Case(name, ours, by_hand, None, "published code")


def recurrent_figures(samples: int) -> list[Figure]:
    """Time of a training step with the dropout of the paper; results differ by random numbers."""
    figures = []
    for dtype, limit in ((torch.float32, None), (torch.bfloat16, 0.6)):
        ours, by_hand = recurrent_runs(8, 16, 0.1, dtype)
        pairs = [[bench.median_seconds(run, 1, warmup=1) for run in (ours, by_hand)] for _ in range(samples)]
        ratio = statistics.median(one / other for one, other in pairs)
        name = f"recurrent: training step with dropout, {str(dtype)[6:]}, against the published code"
        figures.append(Figure(name, ratio, "x", limit))
    return figures


def cases() -> list[Case]:
    """Training steps of both learned engines."""
    return [solver_case(), recurrent_case()]


def memory_figures(samples: int) -> list[Figure]:
    """Memory of a training step by the greatest age of an example, and the time of large queries."""
    X, given = boards(64)
    peaks = []
    for oldest in (16, 64):
        torch.manual_seed(0)
        model = Solver(declare(3, 3), SolverOptions(oldest=oldest), {}).train()
        for _ in range(4):
            model.loss({"X": X}, {"X": given}).backward()
        peaks.append(bench.peak_memory(lambda: model.loss({"X": X}, {"X": given}).backward()))
    torch.manual_seed(0)
    many, cells = boards(1000)
    solver = Solver(declare(3, 3), SolverOptions(propagation="once"), {}).eval()
    options = SolvingOptions(tries=1, steps=64, at_once=1000)
    solve = unn.solve(solver, {"X": unn.Partial(many, cells)}, options=options)
    nodes = 16_384
    edges = random_edges(nodes, 5.0, torch.Generator().manual_seed(0))
    search = Search(declare_colouring(nodes, edges, 5), SearchOptions(chains=1))
    colouring = unn.solve(search, {}, options=SolvingOptions(tries=1))
    return [
        Figure("solver: memory of a training step, age 64 / age 16", peaks[1] / peaks[0], "x", 1.05),
        Figure("solver: 1,000 boards in one batch, 64 steps, untrained", solve.seconds, "s"),
        Figure("search: 5-colouring of 16,384 nodes, degree 5", colouring.seconds, "s"),
    ]


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Measure and print; the names of all cases."""
    return report(
        __doc__,
        cases,
        {"solving": memory_figures, "recurrent": recurrent_figures},
        arguments,
        lambda case: 1e-3,
    )


if __name__ == "__main__":
    main()
