"""A problem of somebody else's that every engine can serve: points of a wave of unknown phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unn.extending import DeclaredProblem, Defaults, DenoiserOptions, Query, TrainingConfig


@dataclass(frozen=True)
class WavesConfig:
    """Options of the waves problem.

    Attributes:
        points: Number of points.
    """

    points: int = 6


class WavesProblem(DeclaredProblem):
    name = "waves"
    summary = "points of a wave of unknown phase, given the first of them"
    config = WavesConfig
    defaults = {
        "denoiser": Defaults(
            DenoiserOptions(width=16, depth=2, heads=2, embedding="array"),
            TrainingConfig(steps=100, batch=32),
        )
    }

    def declare(self, config: WavesConfig) -> Any:
        import unn
        from factors import Multilinear

        g = unn.FactorGraph("waves", point=config.points, side=2)
        x = g.variable("x", "point", unn.SquaredNorm())
        phase = g.variable("phase", "side", unn.SquaredNorm())
        W = g.parameter("W", "point side")
        g.factor(Multilinear(x["i"], W["i k"], phase["k"]))
        return g

    def generate(self, config: WavesConfig, count: int, generator: Any, sizes: Any) -> dict[str, Any]:
        import torch

        angle = 6.2832 * torch.rand(count, 1, generator=generator)
        return {
            "x": torch.sin(angle + torch.arange(config.points)),
            "phase": torch.cat([angle.sin(), angle.cos()], 1),
        }

    def observed(self, config: WavesConfig, count: int, generator: Any, sizes: Any) -> dict[str, Any]:
        import torch

        return {"x": (torch.arange(config.points) < 2)[None]}

    def metrics(self, config: WavesConfig, query: Query, values: Any) -> dict[str, float]:
        return {"rmse": float((values["phase"] - query.truth["phase"]).square().mean().sqrt())}
