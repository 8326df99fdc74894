"""unn bench."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from ..errors import UnnError
from .verb import Answer, Verb

SECTIONS = ("core", "trees", "attention", "undirected_attention", "constraints", "gpu")


@dataclass(frozen=True)
class Bench(Verb):
    """Time the engine against plain torch loops (in a checkout)."""

    name: ClassVar[str] = "bench"

    only: Annotated[Positional[str | None], arg(metavar="SECTION|CASE")] = None
    """A section (core, trees, attention, undirected_attention, constraints, gpu), or part of the names of
    the cases to run; everything by default."""
    quick: bool = False
    """Fewer repetitions."""

    def __call__(self) -> Answer:
        return bench(self.quick, self.only)


def bench(quick: bool, only: str | None) -> Answer:
    """Run the benchmarks of the checkout on the CPU, and on a GPU if there is one.

    Each benchmark prints a table with a verdict on each limit.

    Args:
        quick: whether to use fewer repetitions.
        only: a section, or part of the names of cases in all sections.

    Raises:
        UnnError: outside a checkout, or if no case matches; lists the cases.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "benchmarks" / "core.py").is_file():
        raise UnnError(
            "the benchmarks are part of the repository, not of the installed package; run unn bench in a "
            "checkout."
        )
    arguments = (["--quick"] if quick else []) + (["--only", only] if only and only not in SECTIONS else [])
    sys.path.insert(0, str(root))
    try:
        sections = [
            importlib.import_module(f"tests.benchmarks.{name}")
            for name in ((only,) if only in SECTIONS else SECTIONS)
        ]
        names = list(dict.fromkeys(name for section in sections for name in section.main(arguments)))
    finally:
        sys.path.remove(str(root))
    if only and only not in SECTIONS and not any(only in name for name in names):
        left_out = " (--quick leaves some out)" if quick else ""
        raise UnnError(
            f"unn bench: no section or case matches {only!r}. Sections: {', '.join(SECTIONS)}. "
            f"Cases{left_out}: {'; '.join(names)}."
        )
    return Answer((), {})
