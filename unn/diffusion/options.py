"""Options of the engines that learn to sample; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError
from ..ranges import check_kinds, check_ranges


@dataclass(frozen=True)
class NetworkSize:
    """Options that all networks which learn to sample share.

    Attributes:
        width: Width of hidden layers.
        depth: Number of layers.
        coordinates: Numbers of continuous variables in which the model works: "domain", without bounds, so
            that samples stay in the domain; "auto", these with logarithms of positive numbers and counts
            that become linear; "quantiles", those of the domain, warped to normal quantiles of the examples;
            or "linear", the values.
    """

    width: int = 64
    depth: int = 6
    coordinates: Literal["auto", "domain", "quantiles", "linear"] = "auto"


@dataclass(frozen=True)
class RegressorOptions(NetworkSize):
    """Options of the engine ``regressor``.

    Attributes:
        width: Token width.
        depth: Number of layers; 0 for as many as information needs to cross the graph.
        coordinates: Numbers of continuous variables in which the model works: "domain", without bounds, so
            that samples stay in the domain; "auto", these with logarithms of positive numbers and counts
            that become linear; "quantiles", those of the domain, warped to normal quantiles of the examples;
            or "linear", the values.
        heads: Number of attention heads.
        embedding: Node embedding: shared along exchangeable indices, positional along all axes, or one per
            node.
        structure: Attention mask: the graph, or one of its ablations.
        global_token: Add the mean of all tokens to each layer, bypassing the attention mask.
        dropout: Dropout probability in the residual blocks, in training.
    """

    heads: int = 4
    embedding: Literal["exchangeable", "array", "independent"] = "exchangeable"
    structure: Literal["graph", "dense", "directed", "random"] = "graph"
    global_token: bool = False
    dropout: float = 0.0

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        ranges: dict[str, tuple[float, float, float]] = {
            "width": (self.width, 2, 16384),
            "depth": (self.depth, 0, 10_000),
            "heads": (self.heads, 1, 1024),
            "dropout": (self.dropout, 0, 0.99),
        }
        check_ranges(where, ranges)
        check_kinds(where, self)
        if self.width % self.heads or self.width % 2:
            raise ArgumentError(
                f"{where}: the width must be even and a multiple of the heads, got width {self.width} and "
                f"{self.heads} heads."
            )


@dataclass(frozen=True)
class DenoiserOptions(RegressorOptions):
    """Options of the engine ``denoiser``.

    Attributes:
        width: Token width.
        depth: Number of layers; 0 for as many as information needs to cross the graph.
        coordinates: Numbers of continuous variables in which the model works: "domain", without bounds, so
            that samples stay in the domain; "auto", these with logarithms of positive numbers and counts
            that become linear; "quantiles", those of the domain, warped to normal quantiles of the examples;
            or "linear", the values.
        heads: Number of attention heads.
        embedding: Node embedding: shared along exchangeable indices, positional along all axes, or one per
            node.
        structure: Attention mask: the graph, or one of its ablations.
        global_token: Add the mean of all tokens to each layer, bypassing the attention mask.
        dropout: Dropout probability in the residual blocks, in training.
        process: Process: "gaussian" noise; or "masked": reveal categories a few at a time, for problems
            without continuous variables.
        prediction: Prediction target: "mixed", velocity for continuous variables and log-odds for binary
            variables and categories; or for all of them the clean sample ("x0", as in the paper) or the
            velocity.
        preconditioning: Estimate of continuous values that the network corrects: from each noisy value alone
            ("scalar"), or the best linear one from all noisy values and the evidence ("linear"), which "auto"
            takes for at most 64 numbers of static size.
        noise: Noise levels in training: Gaussian or uniform in the logarithm, or the linear steps of the
            paper.
        noise_mean: Mean of the logarithm of Gaussian noise levels, in standard deviations of the data;
            lower for thin distributions.
        noise_deviation: Standard deviation of this logarithm.
        lowest_noise: Least noise level in sampling, for levels that are Gaussian in training.
        highest_noise: Largest noise level in sampling, likewise.
        last_beta: Last beta of the linear steps; 0.005 in the paper.
        self_conditioning: Feedback from the last estimate: the final token embeddings (Jabri et al., 2023),
            or the estimate alone (Chen et al., 2023).
        passes: Maximum number of self-conditioning passes before the training loss; use four with tokens.
        sampler: Sampler: ancestral, ddim, heun, dpm-solver, dpm-solver-sde, or churn, which is sharper with
            few steps.
        sampling_steps: Number of denoising steps per sample.
        spacing: Spacing of noise levels in sampling: even in the log-SNR, the schedule's own, or with
            restarts, which are sharper with few steps.
    """

    process: Literal["gaussian", "masked"] = "gaussian"
    prediction: Literal["mixed", "x0", "velocity"] = "mixed"
    preconditioning: Literal["auto", "linear", "scalar"] = "auto"
    noise: Literal["log-normal", "log-uniform", "linear"] = "log-normal"
    noise_mean: float = -0.5
    noise_deviation: float = 1.6
    lowest_noise: float = 0.002
    highest_noise: float = 80.0
    last_beta: float = 0.02
    self_conditioning: Literal["tokens", "estimate", "none"] = "estimate"
    passes: int = 1
    sampler: Literal["ancestral", "ddim", "heun", "dpm-solver", "dpm-solver-sde", "churn"] = "dpm-solver"
    sampling_steps: int = 100
    spacing: Literal["log-snr", "schedule", "restarts"] = "log-snr"

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        super().check(where)
        ranges: dict[str, tuple[float, float, float]] = {
            "noise_mean": (self.noise_mean, -20, 20),
            "noise_deviation": (self.noise_deviation, 1e-3, 20),
            "lowest_noise": (self.lowest_noise, 1e-6, 10),
            "highest_noise": (self.highest_noise, 1, 1e6),
            "last_beta": (self.last_beta, 1e-6, 0.999),
            "passes": (self.passes, 1, 1000),
            "sampling_steps": (self.sampling_steps, 1, 10**6),
        }
        check_ranges(where, ranges)


@dataclass(frozen=True)
class VAEACOptions(NetworkSize):
    """Options of the engine ``vaeac``.

    Attributes:
        width: Width of hidden layers, and number of latent variables.
        depth: Number of residual blocks of each network.
        coordinates: Numbers of continuous variables in which the model works: "domain", without bounds, so
            that samples stay in the domain; "auto", these with logarithms of positive numbers and counts
            that become linear; "quantiles", those of the domain, warped to normal quantiles of the examples;
            or "linear", the values.
    """

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        check_ranges(where, {"width": (self.width, 1, 16384), "depth": (self.depth, 1, 10_000)})
        check_kinds(where, self)
