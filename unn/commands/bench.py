"""unn bench."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ..errors import UnnError
from ..problem import Answer


def bench(quick: bool, only: str | None) -> Answer:
    """Run the benchmarks of the checkout, on the CPU and then on a GPU if there is one; they print their tables with a verdict on each limit.

    Raises:
        UnnError: outside a checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "benchmarks" / "core.py").is_file():
        raise UnnError("the benchmarks are part of the repository, not of the installed package; run unn bench in a checkout.")
    arguments = (["--quick"] if quick else []) + (["--only", only] if only else [])
    sys.path.insert(0, str(root))
    try:
        sections = [importlib.import_module(f"tests.benchmarks.{name}") for name in ("core", "trees", "gpu")]
        for section in sections:
            section.main(arguments)
    finally:
        sys.path.remove(str(root))
    return Answer((), {})
