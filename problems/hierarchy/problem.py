"""Filtered hierarchical trees on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unn.extending import (
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    EncoderOptions,
    ExactOptions,
    Query,
    TrainingConfig,
    check_ranges,
)

from ..generated.observations import check_observe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn

    from .grammar import Grammar

OBSERVE = ("leaves", "all-but-one", "any")


@dataclass(frozen=True)
class HierarchyConfig:
    """Options of the hierarchical problem.

    Attributes:
        symbols: Number of symbols q.
        levels: Depth of the tree l; it has 2^l leaves.
        filtering: Level k whose nodes are independent given the root, 0 to l: correlations reach over 2^(l-k)
            leaves, those of a whole tree over all.
        sigma: Standard deviation of the logarithms of the rules.
        grammar_seed: Seed of the rules.
        observe: What is observed in training: "leaves" (the root is hidden), "all-but-one" (one leaf
            and the root are hidden) or "any" (any subset of the leaves).
        examples: Number of training examples; 0 for an infinite stream.
    """

    symbols: int = 4
    levels: int = 3
    filtering: int = 1
    sigma: float = 1.0
    grammar_seed: int = 0
    observe: str = "any"
    examples: int = 0


class HierarchyProblem(DeclaredProblem):
    """Infer the root and masked leaves of trees of a random grammar, whose inner nodes are latent."""

    name = "hierarchy"
    summary = "filtered hierarchical trees: infer the root and masked leaves; checked against exact marginals"
    config = HierarchyConfig
    noun = "sequences"
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(width=64, depth=4, heads=4, sampling_steps=20),
            TrainingConfig(steps=1500, evaluate_every=1500, batch=64, rate=2e-3, clip=1.0, ema=0.99),
        ),
        "encoder": Defaults(
            EncoderOptions(blocks=3, tokens=("leaf",)),
            TrainingConfig(
                steps=2000, evaluate_every=2000, batch=128, rate=1e-3, warmup=0.05, clip=1.0, ema=0.0
            ),
        ),
        "exact": Defaults(ExactOptions(), TrainingConfig(steps=1, evaluate_every=1, batch=64)),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "symbols": (config.symbols, 2, 32),
            "levels": (config.levels, 1, 8),
            "filtering": (config.filtering, 0, config.levels),
            "sigma": (config.sigma, 0, 100),
            "grammar_seed": (config.grammar_seed, 0, 2**32 - 1),
            "examples": (config.examples, 0, 10**9),
        }
        check_ranges(self.name, ranges)
        check_observe(self.name, config.observe, OBSERVE)
        super().check(config)

    def grammar(self, config: HierarchyConfig) -> Grammar:
        """The rules, with a uniform prior of the root."""
        import numpy as np

        from .grammar import Grammar, draw_rules

        rules = draw_rules(config.symbols, config.sigma, config.grammar_seed)
        prior = np.full(config.symbols, 1 / config.symbols)
        return Grammar(rules, prior, config.levels, config.filtering)

    def declare(self, config: HierarchyConfig) -> unn.FactorGraph:
        """The graph."""
        from .graph import declare

        # examples are float32, as the parameters of networks
        return declare(self.grammar(config)).float()

    def observable(self, config: HierarchyConfig) -> tuple[str, ...]:
        """The root and the leaves."""
        return ("root", "leaf")

    def generate(
        self, config: HierarchyConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Exact samples."""
        import torch

        from .grammar import draw_trees

        trees = draw_trees(self.grammar(config), count, generator)
        root, leaf = trees[0][:, 0], trees[config.levels]
        one_hot = torch.nn.functional.one_hot
        return {"root": one_hot(root, config.symbols).float(), "leaf": one_hot(leaf, config.symbols).float()}

    def observed(
        self, config: HierarchyConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Leaves, according to the option ``observe``; never the root."""
        import torch

        leaves = 2**config.levels
        rank = torch.rand(count, leaves, generator=generator).argsort(1).argsort(1)
        hidden = {
            "leaves": torch.zeros(count, 1, dtype=torch.long),
            "all-but-one": torch.ones(count, 1, dtype=torch.long),
            "any": torch.randint(leaves + 1, (count, 1), generator=generator),
        }[config.observe]
        return {"leaf": rank >= hidden, "root": torch.zeros(count, dtype=torch.bool)}

    def test_queries(
        self, config: HierarchyConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """The root given the leaves, and one masked leaf given the others."""
        import torch

        from unn import Partial

        values = self.generate(config, count, generator, {})
        masked = torch.randint(2**config.levels, (count,), generator=generator)
        others = torch.arange(2**config.levels) != masked[:, None]
        whole = torch.ones(count, 2**config.levels, dtype=torch.bool)
        return {
            "": Query({"leaf": Partial(values["leaf"], whole)}, values),
            "masked leaf": Query({"leaf": Partial(values["leaf"], others)}, values),
        }

    def compared_variables(self, config: HierarchyConfig) -> tuple[str, ...]:
        """The root."""
        return ("root",)

    def metrics(
        self, config: HierarchyConfig, query: Query, values: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Probability of the answers by the exact marginals, against those of the best and of exact samples.

        ``probability`` is the mean exact probability of the answered root, and of the answered leaf
        where one is
        masked: ``highest`` for the most probable values, ``of_samples`` for exact samples.
        """
        import torch

        from unn import exact

        answer = exact.marginals(self.declare(config), query.given)
        given: Any = query.given["leaf"]
        hidden = ~given.mask
        p, x = answer["root"], values["root"].double()
        if bool(hidden.any()):
            p, x = torch.cat([p, answer["leaf"][hidden]]), torch.cat([x, values["leaf"][hidden].double()])
        figures = {
            "probability": float((p * x).sum(-1).mean()),
            "highest": float(p.amax(-1).mean()),
            "of_samples": float(p.square().sum(-1).mean()),
        }
        if query.truth:
            right = (values["root"].argmax(-1) == query.truth["root"].argmax(-1)).double()
            figures["root_accuracy"] = float(right.mean())
        return figures
