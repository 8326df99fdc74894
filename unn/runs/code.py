"""Provenance of a run: versions and git commits."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any


def code_version(*modules: str) -> dict[str, Any]:
    """Versions of Python, torch and this package, and the git commit of each module that lies in a checkout.

    Args:
        modules: names of imported modules, such as the module of the problem.
    """
    from .. import __version__

    commits: dict[str, Any] = {}
    for name in ("unn", *modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            commits[name] = _commit(Path(file).resolve().parent)
    return {
        "unn": __version__,
        "torch": _installed("torch"),
        "numpy": _installed("numpy"),
        "python": platform.python_version(),
        "commits": {name: commit for name, commit in commits.items() if commit},
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    """Commit of a checkout, with "+changes" if its files were modified; None outside a checkout or
    without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    tracked = _git(folder, "ls-files", ".")
    # an ignored folder inside a checkout, such as a virtual environment, is not part of it
    if not commit or not tracked:
        return None
    return commit + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
