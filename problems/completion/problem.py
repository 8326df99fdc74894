"""Sequence completion on the command line; importing it does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unn.errors import ArgumentError, ObservationError
from unn.extending import (
    Answer,
    DeclaredProblem,
    Defaults,
    DenoiserOptions,
    DescentOptions,
    ExactOptions,
    GibbsOptions,
    Query,
    RegressorOptions,
    Trained,
    TrainingConfig,
    VAEACOptions,
    check_ranges,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    import unn
    from unn.networks.tokens import Given


_SHORT = TrainingConfig(steps=2000, evaluate_every=2000, batch=64, rate=2e-3, clip=1.0, ema=0.99)
"""Training of the engines that take sequences of one length."""


@dataclass(frozen=True)
class CompletionConfig:
    """Options of sequence completion.

    Attributes:
        features: Width of an embedding, and of all heads of the attention together.
        attention_heads: Number of heads.
        attention: "undirected" as in the paper, which is accurate with the number of iterations of training
            alone, or "bounded", whose energy has a minimum.
        embeddings: Whether the embeddings of given tokens are "held", as in the paper, or "updated" by the
            rounds after the first.
        split: What the test set holds out: "sequences" with any of their tokens missing, or "instances" as
            in the paper, of which most sequences also occur in training.
    """

    features: int = 64
    attention_heads: int = 1
    attention: Literal["undirected", "bounded"] = "undirected"
    embeddings: Literal["held", "updated"] = "held"
    split: Literal["sequences", "instances"] = "sequences"


class CompletionProblem(DeclaredProblem):
    """Complete sequences of consecutive numbers, anywhere in them."""

    name = "completion"
    summary = (
        "sequence completion: missing numbers of ascending and descending sequences, by undirected attention"
    )
    config = CompletionConfig
    noun = "sequences"
    monitor, larger_is_better = "accuracy", True
    defaults = {
        "descent": Defaults(
            DescentOptions(iterations=1),
            TrainingConfig(steps=20_000, evaluate_every=5000, batch=128, rate=2e-3, clip=10.0),
        ),
        "denoiser": Defaults(
            DenoiserOptions(width=32, depth=4, heads=2, embedding="array", sampling_steps=20), _SHORT
        ),
        "regressor": Defaults(RegressorOptions(width=32, depth=4, heads=2, embedding="array"), _SHORT),
        "vaeac": Defaults(VAEACOptions(width=64, depth=3), _SHORT),
        # distributions need an energy with a lower bound
        "exact": Defaults(ExactOptions(), problem={"attention": "bounded"}),
        "gibbs": Defaults(GibbsOptions(), problem={"attention": "bounded"}),
    }

    def check(self, config: Any) -> None:
        """Check the ranges of all options."""
        check_ranges(
            self.name,
            {
                "features": (config.features, 1, 100_000),
                "attention_heads": (config.attention_heads, 1, 1000),
            },
        )
        if config.features % config.attention_heads:
            raise ArgumentError(
                f"{self.name}: option attention_heads must divide features={config.features}, got "
                f"{config.attention_heads}."
            )
        super().check(config)

    def declare(self, config: CompletionConfig) -> unn.FactorGraph:
        """The graph, for sequences of any length."""
        from .graph import declare

        return declare(config.features, config.attention_heads, config.attention == "bounded")

    def network(self, config: CompletionConfig, facts: Mapping[str, Any]) -> nn.Module:
        """The model of the engine; that of coordinate descent observes the embeddings of given tokens."""
        from unn import DescentModel

        from .graph import embedded

        network = super().network(config, facts)
        if isinstance(network, DescentModel) and config.embeddings == "held":
            network.derived = embedded
        return network

    def earlier_config(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Runs from before embeddings could be held updated them."""
        return {"embeddings": "updated", **super().earlier_config(content)}

    def observable(self, config: CompletionConfig) -> tuple[str, ...]:
        """Tokens and embeddings of positions."""
        return ("token", "P")

    def sizes(self, config: CompletionConfig, generator: torch.Generator) -> dict[str, int]:
        """A random length for each batch; one length for engines whose graph has no latent variables."""
        import torch

        from .data import LENGTHS

        if not self.sizes_vary(config):
            return self.test_sizes(config)
        return {"n": LENGTHS[int(torch.randint(len(LENGTHS), (), generator=generator))]}

    def sizes_vary(self, config: CompletionConfig) -> bool:
        """Whether the engine takes latent variables."""
        engine = getattr(config, "engine", None)
        return engine is None or not self.engine_of(config).needs_all_values

    def test_sizes(self, config: CompletionConfig) -> dict[str, int]:
        """The middle length."""
        return {"n": 16}

    def examples(
        self, config: CompletionConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Training instances."""
        from .data import masks_of, sequences, values_of

        tokens, missing = sequences(sizes["n"], config.split).draw(count, False, generator)
        return values_of(tokens, config.features), masks_of(missing)

    def generate(
        self, config: CompletionConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Sequences of training instances."""
        return self.examples(config, count, generator, sizes)[0]

    def observed(
        self, config: CompletionConfig, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """All but the missing tokens of training instances."""
        return self.examples(config, count, generator, sizes)[1]

    def test_queries(
        self, config: CompletionConfig, count: int, generator: torch.Generator
    ) -> dict[str, Query]:
        """Test instances of the shortest, the middle and the greatest length."""
        from .data import LENGTHS, sequences

        queries = {}
        lengths = {"": self.test_sizes(config)["n"]}
        if self.sizes_vary(config):
            lengths |= {"shortest": LENGTHS[0], "longest": LENGTHS[-1]}
        for name, length in lengths.items():
            tokens, missing = sequences(length, config.split).draw(count, True, generator)
            queries[name] = _query(config, tokens, missing)
        return queries

    def metrics(
        self, config: CompletionConfig, query: Query, values: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Share of the missing tokens that are right."""
        right, missing = _right(query, values)
        return {"accuracy": int(right.sum()) / int(missing.sum())}

    def evaluate(self, run: Trained, iterations: tuple[int, ...]) -> Answer:
        """On the whole test set: the share of right tokens among the missing, in all, at the ends of
        sequences, and of the length with the lowest share; and a picture of attention weights."""
        from unn import DescentModel

        if not isinstance(run.network, DescentModel):
            return super().evaluate(run, iterations)
        from .measures import draw_weights, measure

        default = run.config.model.iterations
        lines, data = [], {}
        for k in iterations or (default,):
            figures = measure(run.network, run.config.features, run.config.split, k)
            data[str(k)] = figures
            lines.append(f"{k} iterations: " + ", ".join(f"{name} {x:.5g}" for name, x in figures.items()))
        lines.append(f"attention weights drawn in {draw_weights(run)}")
        return Answer(tuple(lines), data)

    def read_given(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int]]:
        """``token="12 13 _ 15"``: numbers from 1 to 64, and _ for a missing one."""
        from .graph import positions

        given, sizes = super().read_given(run, texts)
        given = dict(given)
        if "token" in given and "P" not in given:
            given["P"] = positions(sizes["n"], run.config.features)[None]
        return given, sizes

    def read_value(self, run: Trained, name: str, text: str) -> Tensor | unn.Partial:
        """Numbers from 1 to 64, separated by spaces or commas, and _ for a missing one."""
        import torch

        import unn

        from .graph import SYMBOLS

        if name != "token":
            return super().read_value(run, name, text)
        words = text.replace(",", " ").split()
        if not words:
            raise ObservationError("--given token: no numbers; give a sequence such as token='12 13 _ 15'.")
        for place, word in enumerate(words, 1):
            if word != "_" and not (word.isdecimal() and 1 <= int(word) <= SYMBOLS):
                raise ObservationError(
                    f"--given token: item {place}, {word!r}, is neither a number from 1 to {SYMBOLS} nor _ "
                    "for a missing one."
                )
        known = torch.tensor([[word != "_" for word in words]])
        numbers = torch.tensor([[0 if word == "_" else int(word) - 1 for word in words]])
        one_hot = torch.nn.functional.one_hot(numbers, SYMBOLS).float()
        return unn.Partial(one_hot, known[..., None].expand_as(one_hot))

    def show_value(self, run: Trained, name: str, value: Tensor) -> Any:
        """The most probable sequence, and the probability of each number that is not certain."""
        if name != "token":
            return super().show_value(run, name, value)
        best = value[0].max(-1)
        return " ".join(
            f"{int(k) + 1}" if p > 0.9995 else f"{int(k) + 1} ({float(p):.1%})"
            for p, k in zip(best.values, best.indices, strict=True)
        )

    def describe(self, run: Trained, values: Mapping[str, Tensor], k: int) -> list[str]:
        """The sequence of a sample."""
        return [" ".join(str(int(number) + 1) for number in values["token"][k].argmax(-1))]


def _query(config: CompletionConfig, tokens: Tensor, missing: Tensor) -> Query:
    from unn import Partial

    from .data import values_of

    values = values_of(tokens, config.features)
    known = (~missing)[..., None].expand_as(values["token"])
    return Query({"token": Partial(values["token"], known), "P": values["P"]}, values)


def _right(query: Query, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Missing tokens that are right, and missing tokens, shape ``(count, n)``."""
    evidence: Any = query.given["token"]
    missing = ~evidence.mask[..., 0]
    return missing & (values["token"].argmax(-1) == query.truth["token"].argmax(-1)), missing
