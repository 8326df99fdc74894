"""unn doctor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..engine import engine_names, load_engine
from ..errors import UnnError
from ..runs.code import code_version
from .options import Json
from .packages import current_shadows
from .problem import load_problem, problem_names
from .verb import Answer, Verb

OPTIONAL = ("hypothesis", "pytest", "torch-struct")


@dataclass(frozen=True)
class Doctor(Verb):
    """Check the installation: print versions, devices, problems, engines and data."""

    name: ClassVar[str] = "doctor"

    json: Json = False

    def __call__(self) -> Answer:
        return doctor()


def doctor() -> Answer:
    """Report versions, devices, problems, engines and data; exit code 1 if a requirement is missing, with the
    remedy."""
    faults: list[str] = []
    required = _required()
    versions = {name: _version(name) for name in (*required, *OPTIONAL)}
    faults += [f"{name} is not installed; pip install {name}" for name in required if versions[name] is None]
    shadowing = current_shadows()
    faults += [
        f"{shadow.file} shadows the package {shadow.package} of unn for Python programs that are started in "
        f"{Path.cwd()} (the command unn itself takes its own); rename it"
        for shadow in shadowing
    ]
    devices = _devices(faults)
    problems = _states(problem_names(), load_problem, faults)
    engines = _states(engine_names(), load_engine, faults)
    data = _data()
    code = code_version()
    report: dict[str, Any] = {
        "unn": code["unn"],
        "commits": code["commits"],
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
        "devices": devices,
        "problems": problems,
        "engines": engines,
        "data": data,
        "faults": faults,
    }
    lines = [
        f"unn {code['unn']}"
        + "".join(f" (commit {commit[:12]}{commit[40:]})" for commit in code["commits"].values()),
        f"python {platform.python_version()} on {platform.platform()}",
        "versions: "
        + ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items()),
        *(f"device: {device}" for device in devices),
        *(f"problem: {name}: {state}" for name, state in problems.items()),
        *(f"engine: {name}: {state}" for name, state in engines.items()),
        f"data: {data['UNN_DATA'] or 'UNN_DATA is not set; problems with embedded data need none'}",
        *(f"data: found {name}" for name in data["folders"]),
        *(f"fault: {fault}" for fault in faults),
        "no faults found" if not faults else f"{len(faults)} faults found",
    ]
    return Answer(tuple(lines), report, code=1 if faults else 0)


def _required() -> list[str]:
    """Required dependencies of the installed package, without extras."""
    try:
        lines = importlib.metadata.requires("unn") or []
    except importlib.metadata.PackageNotFoundError:
        return ["torch"]
    return [re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(faults: list[str]) -> list[str]:
    try:
        import torch
    except (ImportError, OSError) as error:
        faults.append(f"torch cannot be imported ({error}); install it anew")
        return []
    devices = [f"cpu: {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        for k in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(k)
            devices.append(f"cuda:{k}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    elif torch.accelerator.is_available():
        devices.append(str(torch.accelerator.current_accelerator()))
    else:
        devices.append("no accelerator")
    return devices


def _states(names: Sequence[str], load: Callable[[str], object], faults: list[str]) -> dict[str, str]:
    """Whether each of the installed problems or engines loads; the errors are faults."""
    states = {}
    for name in names:
        try:
            load(name)
            states[name] = "loads"
        except UnnError as error:
            states[name] = "does not load"
            faults.append(str(error).rstrip("."))
    return states


def _data() -> dict[str, Any]:
    root = os.environ.get("UNN_DATA", "")
    folder = Path(root)
    names = (
        sorted(path.name for path in folder.iterdir() if path.is_dir()) if root and folder.is_dir() else []
    )
    return {"UNN_DATA": root, "folders": names}
