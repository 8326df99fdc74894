"""Latent groups where the truth is known: filtered trees, and posteriors without amortisation.

    python -m tests.benchmarks.latent_truth trees OUT.csv --filtering 0 1 2 3 --seeds 0 1 2
    python -m tests.benchmarks.latent_truth gaps OUT.csv --seeds 0 1 2

``trees`` learns the leaves of filtered trees from vectors, and compares the log-likelihood of held-out
leaves, and the marginals of one masked leaf given the others, with exact inference on the declared trees.
``gaps`` learns digits, and splits what the bound lacks into what a posterior of the same kind would gain if
it were optimised for each image alone (amortisation), and the rest (its kind); beside them the most probable
latent values by coordinate descent on the same declaration.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unn
from factors import Depends, Directed, LayerAttention
from problems.hierarchy.grammar import Grammar, draw_rules, draw_trees
from problems.hierarchy.graph import declare as declare_tree
from problems.vae.problem import VAEProblem

LEVELS, SYMBOLS = 3, 4
MASKED = 0.5


def leaves_from_vectors(layers: int, channels: int) -> unn.FactorGraph:
    """Eight leaves of four symbols from latent vectors."""
    g = unn.FactorGraph("leaves", layer=layers, channel=channels, position=2**LEVELS, symbol=SYMBOLS)
    z = g.variable("z", "layer channel", unn.SquaredNorm())
    leaf = g.variable("leaf", "position | symbol", unn.Entropy())
    g.factor(Depends(leaf["i s"], z["l k"], ordered="i s l k"))
    g.factor(LayerAttention(z["l k"], "l"))
    return g


def tree_row(filtering: int, seed: int, steps: int, tested: int) -> list[object]:
    """Learn the leaves of one grammar and compare with exact inference."""
    grammar = Grammar(draw_rules(SYMBOLS, 1.0, seed), np.full(SYMBOLS, 1 / SYMBOLS), LEVELS, filtering)
    torch.manual_seed(seed)
    options = unn.LatentOptions(width=64, divergence_warmup=steps // 4, masked=MASKED)
    model = unn.AttentiveVAE(leaves_from_vectors(2, 16), options, {})

    def draw(count: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"leaf": F.one_hot(draw_trees(grammar, count, generator)[LEVELS], SYMBOLS).float()}

    def observed(count: int, generator: torch.Generator) -> dict[str, Tensor]:
        share = torch.rand(count, 1, generator=generator)
        return {"leaf": torch.rand(count, 2**LEVELS, generator=generator) < share}

    started = time.process_time()
    unn.fit(model, draw, observed=observed, steps=steps, batch=64, rate=5e-3, ema=0.99, seed=seed)
    seconds = time.process_time() - started
    model.eval()
    generator = torch.Generator().manual_seed(99)
    leaves = draw(tested, generator)
    tree = declare_tree(grammar)
    one_hot = leaves["leaf"].double()
    partition = unn.exact.log_partition(tree)
    exact = (unn.exact.log_partition(tree, {"leaf": one_hot}) - partition).detach()
    estimate = model.log_likelihood(leaves, 500, generator=generator)
    bound = model.bound_summary(leaves, generator=generator).bound
    masked = torch.randint(2**LEVELS, (tested,), generator=generator)
    known = torch.ones(tested, 2**LEVELS, dtype=torch.bool).scatter(1, masked[:, None], False)
    row = torch.arange(tested)
    truth = unn.exact.marginals(tree, {"leaf": unn.Partial(one_hot, known)})["leaf"][row, masked].detach()
    own = model.infer_values({"leaf": unn.Partial(leaves["leaf"], known)}, tested, {}, iterations=200)
    answer = own["leaf"][row, masked].double().clamp(min=1e-6)
    divergence = (torch.special.xlogy(truth, truth) - truth * answer.log()).sum(1)
    match = (truth.argmax(1) == answer.argmax(1)).double()
    return [
        f"{seconds:.0f}",
        f"{float(exact.mean()):.3f}",
        f"{float(estimate.value.mean()):.3f}",
        f"{bound:.3f}",
        f"{float(estimate.effective.median()):.0f}",
        f"{float(divergence.mean()):.4f}",
        f"{float(match.mean()):.3f}",
    ]


def digits_from_a_vector(channels: int) -> unn.FactorGraph:
    """Binary 8 x 8 digits from one latent vector."""
    g = unn.FactorGraph("digits", layer=1, channel=channels, height=8, width=8)
    z = g.variable("z", "layer channel", unn.SquaredNorm())
    x = g.variable("x", "height width", unn.BinaryEntropy())
    g.factor(Depends(x["h w"], z["l k"], ordered="h w l k"))
    return g


class Decoder(nn.Module):
    """Logits of the pixels given the latent vector, by the network of a trained model."""

    def __init__(self, model: unn.AttentiveVAE) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor) -> Tensor:
        groups = self.model.hierarchy.from_groups(z)
        parameters = self.model.network.traverse(len(z), lambda condition: groups[condition.number])[1]
        return parameters.flatten(1).view(len(z), 8, 8)


def with_energy(model: unn.AttentiveVAE) -> unn.FactorGraph:
    """The declaration of a trained model with an energy, E = ||z||^2 / 2 - log p(x | z)."""
    g = unn.FactorGraph("energy", layer=1, channel=model.hierarchy.channels, height=8, width=8)
    z = g.variable("z", "layer channel", unn.SquaredNorm())
    x = g.variable("x", "height width", unn.BinaryEntropy())
    g.factor(Directed(Decoder(model), x, z))
    return g


def optimised_bound(model: unn.AttentiveVAE, x: Tensor, steps: int = 400, draws: int = 50) -> Tensor:
    """The largest evidence lower bound of a normal posterior of independent units for each image."""
    decoder = Decoder(model)
    start = model.infer_values({"x": x}, len(x), {}, iterations=1)["z"]
    mean = start.clone().requires_grad_()
    log_scale = torch.full_like(start, -1.0).requires_grad_()
    optimizer = torch.optim.Adam([mean, log_scale], lr=0.05)
    generator = torch.Generator().manual_seed(0)

    def bound(count: int) -> Tensor:
        noise = torch.randn(count, *mean.shape, generator=generator)
        z = mean + log_scale.exp() * noise
        logits = decoder(z.flatten(0, 1)).view(count, *x.shape)
        likelihood = (x * logits - F.softplus(logits)).sum((-1, -2)).mean(0)
        divergence = 0.5 * ((2 * log_scale).exp() + mean.square() - 1) - log_scale
        return likelihood - divergence.flatten(1).sum(1)

    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / steps)
        optimizer.zero_grad()
        (-bound(4).sum()).backward()
        optimizer.step()
    with torch.no_grad():
        return torch.stack([bound(draws) for _ in range(10)]).mean(0)


def trained_by_descent(seed: int, steps: int) -> unn.AttentiveVAE:
    """The decoder of the same model, trained on the most probable latent values by coordinate descent."""
    problem = VAEProblem()
    config = problem.config_for("latent")()
    torch.manual_seed(seed)
    model = unn.AttentiveVAE(digits_from_a_vector(16), unn.LatentOptions(width=64), {})
    g = with_energy(model)
    optimizer = torch.optim.Adam(model.network.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / steps)
        x = problem.generate(config, 64, generator, {})["x"]
        model.eval().requires_grad_(False)
        z = unn.infer(g, {"x": x}, order=["z"], iterations=3)["z"]
        model.train().requires_grad_(True)
        optimizer.zero_grad()
        logits = Decoder(model)(z)
        (-(x * logits - F.softplus(logits)).sum((1, 2)).mean()).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def gap_row(seed: int, steps: int, tested: int) -> list[object]:
    """Train on digits and split the gap of the bound."""
    problem = VAEProblem()
    config = problem.config_for("latent")()
    torch.manual_seed(seed)
    model = unn.AttentiveVAE(
        digits_from_a_vector(16), unn.LatentOptions(width=64, divergence_warmup=steps // 4), {}
    )

    def draw(count: int, generator: torch.Generator) -> dict[str, Tensor]:
        return problem.generate(config, count, generator, {})

    def everything(count: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": torch.ones(count, 8, 8, dtype=torch.bool)}

    unn.fit(model, draw, observed=everything, steps=steps, batch=64, rate=5e-3, ema=0.99, seed=seed)
    model.eval().requires_grad_(False)
    query = problem.test_queries(config, tested, torch.Generator().manual_seed(11))["upper half given"]
    x = query.truth["x"]
    generator = torch.Generator().manual_seed(11)
    estimate = model.log_likelihood({"x": x}, 2000, generator=generator)
    amortised = np.mean([model.bound_summary({"x": x}, generator=generator).bound for _ in range(50)])
    best = float(optimised_bound(model, x).mean())
    g = with_energy(model)
    mean = model.infer_values({"x": x}, tested, {}, iterations=500)["z"]
    solution = unn.infer(g, {"x": x}, order=["z"], initial={"z": mean}, iterations=20)
    before, after = (g.energy({"x": x, "z": z}).detach() for z in (mean, solution["z"]))
    distance = (solution["z"] - mean).flatten(1).norm(dim=1).detach()
    by_descent = optimised_bound(trained_by_descent(seed, steps // 2), x)
    return [
        f"{float(estimate.value.mean()):.3f}",
        f"{best:.3f}",
        f"{amortised:.3f}",
        f"{float(estimate.value.mean()) - best:.3f}",
        f"{best - amortised:.3f}",
        f"{float(before.mean()):.3f}",
        f"{float(after.mean()):.3f}",
        f"{float(distance.mean()):.3f}",
        f"{float(by_descent.mean()):.3f}",
    ]


TREES = (
    "filtering",
    "seed",
    "seconds",
    "exact log-likelihood",
    "log-likelihood",
    "bound",
    "effective draws",
    "KL of a masked leaf",
    "match",
)
GAPS = (
    "seed",
    "log-likelihood",
    "bound, optimised",
    "bound, amortised",
    "gap of the kind",
    "gap of amortisation",
    "energy at the mean",
    "energy by descent",
    "distance",
    "bound, trained by descent",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["trees", "gaps"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--filtering", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--tested", type=int, default=300)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TREES if options.what == "trees" else GAPS)
        for seed in options.seeds:
            if options.what == "gaps":
                writer.writerow([seed, *gap_row(seed, options.steps, options.tested)])
            else:
                for k in options.filtering:
                    writer.writerow([k, seed, *tree_row(k, seed, options.steps, options.tested)])
            file.flush()


if __name__ == "__main__":
    main()
