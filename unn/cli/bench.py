"""unn bench."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ..errors import UnnError
from .problem import Answer

SECTIONS = ("core", "trees", "attention", "undirected_attention", "gpu")


def bench(quick: bool, only: str | None) -> Answer:
    """Run the benchmarks of the checkout, on the CPU and then on a GPU if there is one; they print their tables with a verdict on each limit.

    Args:
        quick: with fewer repetitions.
        only: a section, or part of the names of cases in all of them.

    Raises:
        UnnError: outside a checkout, or if no case has such a name; lists the cases.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "benchmarks" / "core.py").is_file():
        raise UnnError("the benchmarks are part of the repository, not of the installed package; run unn bench in a checkout.")
    arguments = (["--quick"] if quick else []) + (["--only", only] if only and only not in SECTIONS else [])
    sys.path.insert(0, str(root))
    try:
        sections = [importlib.import_module(f"tests.benchmarks.{name}") for name in ((only,) if only in SECTIONS else SECTIONS)]
        names = list(dict.fromkeys(name for section in sections for name in section.main(arguments)))
    finally:
        sys.path.remove(str(root))
    if only and only not in SECTIONS and not any(only in name for name in names):
        left_out = " (--quick leaves some out)" if quick else ""
        raise UnnError(
            f"unn bench: no case has {only!r} in its name, and no section is called so. Sections: {', '.join(SECTIONS)}. "
            f"Cases{left_out}: {'; '.join(names)}."
        )
    return Answer((), {})
