"""The arguments of every command, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from tyro.conf import Positional, arg

Config = TypeVar("Config")
Json = Annotated[bool, arg(help="Print JSON instead of text.")]
Quiet = Annotated[bool, arg(help="Show no progress bar.")]
Theme = Annotated[str, arg(metavar="{light,dark}", help="Colour theme of pictures.")]
Sampler = Literal["ancestral", "ddim", "heun", "dpm-solver", "dpm-solver-sde", "churn"]
Spacing = Literal["log-snr", "schedule", "restarts"]
RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help="Folder of a run.")]


@dataclass(frozen=True)
class Problems:
    """List the installed problems."""

    json: Json = False


@dataclass(frozen=True)
class Show(Generic[Config]):
    """Explain a problem's graph and draw it."""

    config: Config
    out: Path | None = None
    """Folder for the pictures; none are drawn without it."""
    theme: Theme = "light"
    json: Json = False


@dataclass(frozen=True)
class Train(Generic[Config]):
    """Train a problem."""

    config: Config
    folder: Path | None = None
    """Folder of the new run; runs/PROBLEM-NNN by default."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Baselines(Generic[Config]):
    """Measure methods that need no training on a problem's test conditions."""

    config: Config
    count: int = 256
    """Number of test conditions."""
    chain_steps: int = 10_000
    """Number of steps of each Markov chain."""
    json: Json = False


@dataclass(frozen=True)
class Demo:
    """Train a small model of a problem and draw pictures of it."""

    problem: Annotated[Positional[str], arg(metavar="PROBLEM", help="Name of a problem that has a demo.")] = "digits"
    folder: Path = Path("runs/demo")
    """Folder for the pictures."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Resume:
    """Resume an interrupted run, or extend one."""

    run: RunFolder
    epochs: int | None = None
    """Extend the run to this number of epochs in all."""
    steps: int | None = None
    """Extend the run to this number of steps in all."""
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained run."""

    run: RunFolder
    iterations: tuple[int, ...] = ()
    """Numbers of rounds (or sampling steps) to measure with; several are compared. That of training by default."""
    data: Path | None = None
    """Measure on these data instead of the run's own, where the problem offers it."""
    tries: int = 1
    """Maximum number of attempts per sample until it meets the constraints, where the problem samples."""
    count: int | None = None
    """Conditions to measure on, with one sample each, where the problem samples."""
    sampler: Sampler | None = None
    """Sampler, where the problem samples; that of the run by default. churn sharpens when steps are few."""
    spacing: Spacing | None = None
    """Spacing of the noise levels, where the problem samples; that of the run by default. restarts sharpen when steps are few."""
    seed: int | None = None
    """Seed of conditions and samples; one that is the same for all runs by default."""
    at_once: int = 256
    """Samples in memory at a time."""
    draw: Path | None = None
    """File for a picture of the rank histograms of simulation-based calibration."""
    json: Json = False


@dataclass(frozen=True)
class Parse:
    """Parse sentences with a run of the parsing problem."""

    run: RunFolder
    file: Annotated[Positional[str], arg(metavar="FILE")]
    """Sentences in CoNLL-U (.gz too) or raw tokens, one sentence per line; - reads standard input."""
    out: Path | None = None
    """File for the result; standard output by default."""
    format: Literal["auto", "conllu", "tokens"] = "auto"
    """Format of the file; by default it is recognised by its content."""
    iterations: int | None = None
    """Number of rounds of updates; that of training by default."""
    complete: bool = False
    """Keep the heads that the file has (HEAD not _), obey NotHead=2,5 in MISC, and infer the rest."""
    skip_bad: bool = False
    """Copy malformed sentences unchanged and list them, instead of refusing the file."""
    show: Literal["conllu", "tree", "heat"] = "conllu"
    """Print trees or arc marginals as text instead of CoNLL-U."""
    draw: Path | None = None
    """Folder for drawings of each tree and its arc marginals (SVG)."""
    batch: int = 2000
    """Number of words that are parsed at once; fewer need less memory."""
    json: Json = False


@dataclass(frozen=True)
class Sample:
    """Sample variables of a run given others, by diffusion."""

    run: RunFolder
    given: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE|FILE [...]")] = ()
    """Observed values: of variables, or what the problem reads, such as the file of a puzzle."""
    count: int = 1
    """Number of samples."""
    steps: int | None = None
    """Number of denoising steps; that of the run by default."""
    sampler: Sampler | None = None
    """Sampler; that of the run by default. churn sharpens when steps are few."""
    spacing: Spacing | None = None
    """Spacing of the noise levels; that of the run by default. restarts sharpen when steps are few."""
    seed: int | None = None
    """Seed of all samples; a fresh one by default."""
    tries: int = 1
    """Maximum number of attempts per sample until it meets the constraints."""
    at_once: int = 256
    """Samples in memory at a time."""
    draw: Path | None = None
    """File for a picture of the samples."""
    trace: Path | None = None
    """File for a picture of the steps of the first sample."""
    json: Json = False


@dataclass(frozen=True)
class Infer:
    """Infer some variables of a run given others."""

    run: RunFolder
    given: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE [NAME=VALUE ...]")]
    """Observed values: a category, numbers (0.1,0.2), a .npy file, or what the problem reads."""
    want: Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")]
    """Variables to infer."""
    iterations: int | None = None
    """Number of rounds of updates; that of the run by default."""
    out: Path | None = None
    """File for a picture, or for the values of the one wanted variable as .npy."""
    energy: Path | None = None
    """File for a picture of the energy by factor."""
    theme: Theme = "light"
    json: Json = False


@dataclass(frozen=True)
class Compare:
    """Compare runs: print a table of the options in which they differ and of their last metrics, and plot these."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Folders of runs."""
    out: Path | None = None
    """File for a plot of their metrics."""
    theme: Theme = "light"
    json: Json = False


@dataclass(frozen=True)
class Bench:
    """Time the engine against plain torch loops (in a checkout)."""

    only: Annotated[Positional[str | None], arg(metavar="SECTION|CASE")] = None
    """A section (core, trees, attention, undirected_attention, gpu), or part of the names of the cases to run; everything by default."""
    quick: bool = False
    """Fewer repetitions."""


@dataclass(frozen=True)
class Doctor:
    """Check the installation: print versions, devices, problems and data."""

    json: Json = False
