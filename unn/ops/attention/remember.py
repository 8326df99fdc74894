"""Kernels measured on this machine, remembered in small files, so that every process chooses the same one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

import torch


def cache_folder() -> Path:
    """Folder of what the package remembers: ``$UNN_CACHE``, or one in the user's folder for caches."""
    from platformdirs import user_cache_path

    named = os.environ.get("UNN_CACHE")
    return Path(named) if named else user_cache_path("unn", appauthor=False)


def remember(
    problem: Mapping[str, object], kernels: Collection[str], measure: Callable[[], str]
) -> str | None:
    """The kernel for a problem on this machine: that of an earlier process, or else the measured one.

    Of several processes that measure at once, the first to finish decides for all. None where nothing can
    be remembered, since the folder cannot be written; nothing is measured then.

    Args:
        problem: what the choice depends on, apart from the machine; values that JSON can hold.
        kernels: names of the kernels; files with other names are replaced.
        measure: returns the fastest kernel.
    """
    content = {"machine": machine(), **problem}
    text = json.dumps(content, sort_keys=True)
    place = cache_folder() / "kernels" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    kernel = _read(place, kernels)
    if kernel is not None:
        return kernel
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, written = tempfile.mkstemp(dir=place.parent, suffix=".new")
    except OSError:
        return None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"kernel": measure(), **content}, file, indent=1)
        try:
            os.link(written, place)
        except OSError:
            # a file of another process, an unreadable one, or a file system without links
            if _read(place, kernels) is None:
                os.replace(written, place)
        return _read(place, kernels)
    except OSError:
        return None
    finally:
        Path(written).unlink(missing_ok=True)


@cache
def machine() -> dict[str, str]:
    """What measured times depend on: the processor and the version of torch."""
    names = []
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def _read(place: Path, kernels: Collection[str]) -> str | None:
    """The kernel that a file names; None without a file, or with another content."""
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kernel = content.get("kernel") if isinstance(content, dict) else None
    return kernel if isinstance(kernel, str) and kernel in kernels else None
