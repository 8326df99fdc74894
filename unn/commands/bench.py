"""unn bench."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ..errors import UnnError
from ..problem import Answer

SECTIONS = ("core", "trees", "attention", "undirected_attention", "gpu")


def bench(quick: bool, only: str | None) -> Answer:
    """Run the benchmarks of the checkout, on the CPU and then on a GPU if there is one; they print their tables with a verdict on each limit.

    Args:
        quick: with fewer repetitions.
        only: a section, or part of the names of cases in all of them.

    Raises:
        UnnError: outside a checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "benchmarks" / "core.py").is_file():
        raise UnnError("the benchmarks are part of the repository, not of the installed package; run unn bench in a checkout.")
    arguments = (["--quick"] if quick else []) + (["--only", only] if only and only not in SECTIONS else [])
    sys.path.insert(0, str(root))
    try:
        sections = [importlib.import_module(f"tests.benchmarks.{name}") for name in ((only,) if only in SECTIONS else SECTIONS)]
        for section in sections:
            section.main(arguments)
    finally:
        sys.path.remove(str(root))
    return Answer((), {})
