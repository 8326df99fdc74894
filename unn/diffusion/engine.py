"""The engines that learn to sample: denoiser, and the baselines regressor and VAEAC. They load torch when
they build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine import Engine, SamplingOptions
from .options import DenoiserOptions, RegressorOptions, VAEACOptions

if TYPE_CHECKING:
    from torch import nn

    from ..graph.declaration import Declaration
    from ..networks.denoiser import Denoiser
    from .schedule import Schedule


class DenoiserEngine(Engine):
    """Diffusion, by Gaussian noise or by masks, with a denoiser whose attention mask is the graph."""

    name = "denoiser"
    summary = (
        "diffusion whose attention mask and embeddings are the graph's: samples of any variables given any "
        "others"
    )
    options = DenoiserOptions
    answers = ("sample",)

    def refusal(self, graph: Declaration) -> str:
        """A variable without separate values of its nodes, or a feature axis without a static size."""
        return unsampled(graph)

    def build(self, graph: Declaration, options: DenoiserOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``Diffusion``, or a ``MaskedDiffusion``."""
        from .diffusion import Diffusion
        from .masked import MaskedDiffusion

        if options.process == "masked":
            return MaskedDiffusion(_network(graph, options, sizes, "none"))
        denoiser = _network(graph, options, sizes, options.self_conditioning)
        model = Diffusion(
            denoiser,
            schedule=_schedule(options),
            prediction=options.prediction,
            passes=options.passes,
            coordinates=options.coordinates,
            preconditioning=options.preconditioning,
        )
        model.sampling = SamplingOptions(options.sampling_steps, options.sampler, options.spacing)
        return model


class RegressorEngine(Engine):
    """One estimate of all variables by the network of the denoiser, without noise."""

    name = "regressor"
    summary = "baseline: one estimate of all variables by the network of the denoiser, without noise"
    options = RegressorOptions
    answers = ("sample",)

    def refusal(self, graph: Declaration) -> str:
        """As of the denoiser."""
        return unsampled(graph)

    def build(self, graph: Declaration, options: RegressorOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``Regressor``."""
        from .regressor import Regressor

        return Regressor(_network(graph, options, sizes, "none"), options.coordinates)


class VAEACEngine(Engine):
    """A variational auto-encoder with arbitrary conditioning, which ignores the structure of the graph."""

    name = "vaeac"
    summary = "baseline: a variational auto-encoder with arbitrary conditioning, which ignores the graph"
    options = VAEACOptions
    answers = ("sample",)
    one_size = True

    def refusal(self, graph: Declaration) -> str:
        """As of the denoiser."""
        return unsampled(graph)

    def build(self, graph: Declaration, options: VAEACOptions, sizes: Mapping[str, int]) -> nn.Module:
        """A ``VAEAC`` for one size of the graph."""
        from .vaeac import VAEAC

        return VAEAC(
            graph,
            width=options.width,
            depth=options.depth,
            latent=options.width,
            sizes=sizes,
            coordinates=options.coordinates,
        )


def unsampled(graph: Declaration) -> str:
    """Why samples of a graph have no tokens, in one sentence; empty if they have."""
    from ..errors import DeclarationError
    from ..networks.tokens import Frames
    from ..regularizers import LogPartition

    for name, variable in graph.variables.items():
        if isinstance(variable.regularizer, LogPartition):
            return (
                f"the entries of variable {name!r} form one structure "
                f"({type(variable.regularizer).__name__}), and a network with a token for each node has no "
                "such values"
            )
    try:
        Frames(graph)
    except DeclarationError as error:
        return str(error).rstrip(".")
    return ""


def _network(
    graph: Declaration, options: RegressorOptions, sizes: Mapping[str, int], self_conditioning: str
) -> Denoiser:
    from ..networks.denoiser import Denoiser

    return Denoiser(
        graph,
        width=options.width,
        depth=options.depth or None,
        heads=options.heads,
        embedding=options.embedding,
        dropout=options.dropout,
        global_token=options.global_token,
        structure=options.structure,
        self_conditioning=self_conditioning,  # type: ignore[arg-type]
        sizes=sizes,
    )


def _schedule(options: DenoiserOptions) -> Schedule:
    from .schedule import LinearSteps, LogNormal, LogUniform

    if options.noise == "linear":
        return LinearSteps(last=options.last_beta)
    if options.noise == "log-uniform":
        return LogUniform()
    return LogNormal(options.noise_mean, options.noise_deviation, options.lowest_noise, options.highest_noise)
