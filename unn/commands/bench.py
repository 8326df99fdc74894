"""unn bench."""

from __future__ import annotations

from pathlib import Path

from ..errors import UnnError
from ..problem import Answer


def bench(quick: bool, only: str | None) -> tuple[Answer, int]:
    """Run the benchmarks of the checkout; 1 if one misses its limit.

    Raises:
        UnnError: outside a checkout.
    """
    path = Path(__file__).resolve().parents[2] / "tests" / "benchmarks" / "core.py"
    if not path.is_file():
        raise UnnError("the benchmarks are part of the repository, not of the installed package; run unn bench in a checkout.")
    import runpy

    benchmark = runpy.run_path(str(path))
    arguments = (["--quick"] if quick else []) + (["--only", only] if only else [])
    return Answer((), {}), int(benchmark["main"](arguments) or 0)
