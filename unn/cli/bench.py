"""unn bench."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from ..errors import UnnError
from .verb import Answer, Verb

SECTIONS = (
    "core",
    "trees",
    "attention",
    "undirected_attention",
    "constraints",
    "equilibrium",
    "exact",
    "vae",
    "gpu",
)


@dataclass(frozen=True)
class Bench(Verb):
    """Time the engines against plain torch loops (in a checkout)."""

    name: ClassVar[str] = "bench"

    only: Annotated[Positional[str | None], arg(metavar="SECTION|CASE|uai")] = None
    """A section (core, trees, attention, undirected_attention, constraints, equilibrium, exact, vae, gpu), or
    part of the names of the cases to run; everything by default. uai: exact inference on the models of a
    folder."""
    folder: Annotated[Positional[Path | None], arg(metavar="DIR")] = None
    """Folder of models in the UAI format, with uai."""
    quick: bool = False
    """Fewer repetitions."""
    seconds: float = 20.0
    """Time limit of each model, with uai."""

    def __call__(self) -> Answer:
        if (self.folder is not None) != (self.only == "uai"):
            raise UnnError(
                "unn bench uai DIR measures the models of a folder; other sections take no folder."
            )
        if self.folder is not None:
            return bench_models(self.folder, self.seconds)
        return bench(self.quick, self.only)


def bench_models(folder: Path, seconds: float) -> Answer:
    """Exact inference on the models of a folder.

    Raises:
        UnnError: outside a checkout, for a folder without models, or a time that is not above 0.
    """
    if not 0 < seconds < 1e6:
        raise UnnError(f"--seconds must be a number > 0, got {seconds}.")
    with _checkout():
        importlib.import_module("tests.benchmarks.uai").main([str(folder), "--seconds", str(seconds)])
    return Answer((), {})


def bench(quick: bool, only: str | None) -> Answer:
    """Run the benchmarks of the checkout on the CPU, and on a GPU if there is one.

    Each benchmark prints a table with a verdict on each limit.

    Args:
        quick: whether to use fewer repetitions.
        only: a section, or part of the names of cases in all sections.

    Raises:
        UnnError: outside a checkout, or if no case matches; lists the cases.
    """
    arguments = (["--quick"] if quick else []) + (["--only", only] if only and only not in SECTIONS else [])
    with _checkout():
        sections = [
            importlib.import_module(f"tests.benchmarks.{name}")
            for name in ((only,) if only in SECTIONS else SECTIONS)
        ]
        names = list(dict.fromkeys(name for section in sections for name in section.main(arguments)))
    if only and only not in SECTIONS and not any(only in name for name in names):
        left_out = " (--quick leaves some out)" if quick else ""
        raise UnnError(
            f"unn bench: no section or case matches {only!r}. Sections: {', '.join(SECTIONS)}. "
            f"Cases{left_out}: {'; '.join(names)}."
        )
    return Answer((), {})


@contextlib.contextmanager
def _checkout() -> Iterator[None]:
    """Make the benchmarks of the checkout importable.

    Raises:
        UnnError: outside a checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "benchmarks" / "core.py").is_file():
        raise UnnError(
            "the benchmarks are part of the repository, not of the installed package; run unn bench in a "
            "checkout."
        )
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))
