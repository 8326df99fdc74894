"""Models of tables on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
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

from ..generated.observations import any_nodes
from ..reading import read_bytes, read_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    import unn


@dataclass(frozen=True)
class TablesConfig:
    """Options of the problem of models of tables.

    Attributes:
        file: Bayesian network (BIF) or model in the UAI format, also compressed by gzip; without one, a
            random chain.
        nodes: Number of nodes of the chain.
        states: Number of states of its nodes.
        scale: Standard deviation of its scores.
        chain_seed: Seed of its scores.
        examples: Number of training examples; 0 for an infinite stream.
    """

    file: str = ""
    nodes: int = 20
    states: int = 3
    scale: float = 1.0
    chain_seed: int = 0
    examples: int = 0


class TablesProblem(DeclaredProblem):
    """Infer any variables of a Bayesian or Markov network given any others."""

    name = "tables"
    summary = "Bayesian and Markov networks (BIF, UAI) or a random chain: any variables given any others"
    config = TablesConfig
    noun = "samples"
    defaults = {
        "exact": Defaults(ExactOptions(), TrainingConfig(steps=1, evaluate_every=1, batch=64)),
        "denoiser": Defaults(
            DenoiserOptions(width=64, depth=4, heads=4, sampling_steps=20),
            TrainingConfig(steps=1500, evaluate_every=1500, batch=64, rate=1e-3, clip=1.0, ema=0.99),
        ),
        "encoder": Defaults(
            EncoderOptions(width=64, blocks=3, hidden=128, dropout=0.0),
            TrainingConfig(
                steps=1500, evaluate_every=1500, batch=64, rate=1e-3, warmup=0.05, clip=1.0, ema=0.0
            ),
        ),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        ranges: dict[str, tuple[float, float, float]] = {
            "nodes": (config.nodes, 2, 10_000),
            "states": (config.states, 2, 1000),
            "scale": (config.scale, 0, 100),
            "chain_seed": (config.chain_seed, 0, 2**63 - 1),
            "examples": (config.examples, 0, 10**9),
        }
        check_ranges(self.name, ranges)
        super().check(config)

    def files(self, config: TablesConfig) -> Mapping[str, bytes]:
        """The file of the model."""
        return {Path(config.file).name: read_bytes(config.file, "model")} if config.file else {}

    def in_folder(self, config: TablesConfig, folder: Path) -> TablesConfig:
        """The configuration with the copy of the model in a run folder."""
        copy = folder / Path(config.file).name
        return replace(config, file=str(copy)) if config.file and copy.is_file() else config

    def declare(self, config: TablesConfig) -> unn.FactorGraph:
        """The graph.

        Raises:
            DataError: for a file that cannot be read, with the line.
        """
        text = read_text(config.file, "model") if config.file else ""
        return _declared(text, Path(config.file).name, replace(config, examples=0, file=""))

    def generate(
        self, config: TablesConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Exact samples.

        Raises:
            InferenceError: for a model beyond the limits of exact inference, with its width.
        """
        from unn import exact

        graph = self.declare(config)
        return {name: x[0].float() for name, x in exact.sample(graph, count, generator=generator).items()}

    def observed(
        self, config: TablesConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Any subset of the nodes."""
        return any_nodes(self.declare(config), count, generator, sizes)

    def test_queries(self, config: TablesConfig, count: int, generator: torch.Generator) -> dict[str, Query]:
        """No node given; and half of the nodes of held-out samples."""
        import torch

        from unn import Partial

        values = self.generate(config, count, generator, {})
        shapes = self.declare(config).adjacency().shapes
        half = {name: torch.rand(count, *shape, generator=generator) < 0.5 for name, shape in shapes.items()}
        given = {name: Partial(values[name], mask) for name, mask in half.items()}
        return {"": Query({}), "half given": Query(given, values)}

    def metrics(self, config: TablesConfig, query: Query, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Probability of the answers by the exact marginals of hidden nodes.

        ``probability`` is that of the answers; ``highest`` that of the most probable value of each node, and
        ``of_samples`` that of exact samples, which are as probable on average as a sampler should be.
        """
        import torch

        from unn import exact

        answer = exact.marginals(self.declare(config), query.given)
        answered, highest, squared = [], [], []
        for name, p in answer.means.items():
            given: Any = query.given.get(name)
            x = values[name].double()
            p = p.expand_as(x)
            hidden = torch.ones(p.shape[:-1], dtype=torch.bool) if given is None else ~given.mask
            p, x = p[hidden.expand(p.shape[:-1])], x[hidden.expand(p.shape[:-1])]
            answered.append((p * x).sum(-1))
            highest.append(p.amax(-1))
            squared.append(p.square().sum(-1))
        return {
            "probability": float(torch.cat(answered).mean()),
            "highest": float(torch.cat(highest).mean()),
            "of_samples": float(torch.cat(squared).mean()),
        }


@lru_cache(maxsize=4)
def _declared(text: str, name: str, config: TablesConfig) -> unn.FactorGraph:
    """The graph of a file's text, or of a chain; the plans of exact inference are kept with it."""
    from .graph import chain, declare, read

    if name:
        return declare(read(text, name)).float()
    return chain(config.nodes, config.states, config.scale, config.chain_seed)
