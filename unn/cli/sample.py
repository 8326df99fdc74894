"""unn sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from ..engine import SamplingOptions
from ..errors import UnnError
from .open import open_trained
from .options import Json, RunFolder, require_number
from .problem import Sampleable, require
from .tables import Limits, evidence_of, is_model, open_model, shown_progress
from .verb import Answer, Verb


@dataclass(frozen=True)
class Sample(Verb):
    """Sample variables of a run, or of a model file (.uai, .bif), given others."""

    name: ClassVar[str] = "sample"

    run: RunFolder
    given: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE|FILE [...]")] = ()
    """Observed values: of variables, or what the problem reads, such as the file of a puzzle."""
    count: int = 1
    """Number of samples."""
    sampling: SamplingOptions = SamplingOptions()
    draw: Path | None = None
    """File for a picture of the samples."""
    trace: Path | None = None
    """File for a picture of the steps of the first sample."""
    json: Json = False

    def __call__(self) -> Answer:
        require_number("count", self.count)
        self.sampling.check()
        if is_model(self.run):
            return sample_model(self)
        problem, run = open_trained(self.run)
        return require(
            problem,
            Sampleable,
            "has no generative model to sample from; unn infer finds its most probable values",
        ).sample(run, self)


def sample_model(command: Sample) -> Answer:
    """Draw independent exact samples of a model file.

    Raises:
        UnnError: for a file that cannot be read, options of runs, or evidence of probability zero.
    """
    sampling = command.sampling
    usual = SamplingOptions(seed=sampling.seed)
    if command.draw or command.trace or sampling != usual:
        raise UnnError(
            f"{command.run}: samples of a model file are exact; leave out --draw, --trace and all options of "
            "sampling but --seed."
        )
    model = open_model(command.run)
    evidence = evidence_of(model, None, command.given)
    import torch

    from ..exact import inference

    generator = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
    with shown_progress():
        draws = inference.sample(model.model, command.count, evidence, Limits().options(), generator)
    states = draws[0].tolist()
    samples = [
        {name: model.states[v][state] for v, (name, state) in enumerate(zip(model.names, row, strict=True))}
        for row in states
    ]
    lines = [" ".join(f"{name}={state}" for name, state in sample.items()) for sample in samples]
    return Answer(tuple(lines), {"samples": samples})
