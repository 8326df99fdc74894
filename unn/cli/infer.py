"""unn infer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import arg

from ..errors import DataError
from .open import open_trained
from .options import Json, RunFolder, Theme, require_other_file, require_rounds
from .verb import Answer, Verb

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Infer(Verb):
    """Infer some variables of a run given others."""

    name: ClassVar[str] = "infer"

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

    def __call__(self) -> Answer:
        return infer(self)


def infer(command: Infer) -> Answer:
    """Infer some variables of a run given others.

    Raises:
        UnnError: if a value cannot be read, a name is unknown, or a file cannot be written.
    """
    if command.iterations is not None:
        require_rounds(command.iterations)
    if command.out is not None and command.out == command.energy:
        raise DataError(f"--out and --energy are both {command.out}; give two files.")
    require_other_file(command.out, *(Path(text.partition("=")[2]) for text in command.given))
    problem, run = open_trained(command.run)
    problem.require_inference(run)
    from ..descent.solution import Status
    from ..draw import draw_energy_terms, save_figure, theme_named

    theme = theme_named(command.theme)
    given, sizes = problem.read_given(run, command.given)
    solution = problem.infer(run, given, sizes, command.iterations, command.want, command.energy is not None)
    if solution.energy is None and command.energy is not None:
        raise DataError("--energy: the engine of this run has no energy to draw; leave it out.")
    message = solution.message
    if solution.status is Status.LIMIT:
        # the engine's message is for Python callers
        plural = "s" if solution.rounds > 1 else ""
        message = f"ran {solution.rounds} round{plural}; --iterations sets another number."
        model = getattr(run.config, "model", None)
        if not solution.schedule and not hasattr(model, "iterations"):
            number = "" if command.iterations is None else f" with --iterations {command.iterations}"
            message = f"answered by engine {run.config.engine}{number}."
    lines = [message]
    data: dict[str, Any] = {"status": solution.status.value}
    if solution.energy is not None:
        lines.append(f"energy {float(solution.energy[-1, 0]):.4f} after {solution.updates} updates")
        data["energy"] = solution.energy[:, 0].tolist()
    files: list[Path] = []
    for name in command.want:
        value = solution[name].detach()
        data[name] = (value[0] if len(value) == 1 else value).tolist()
        if command.out is not None and command.out.suffix == ".npy":
            _save_array(command.out, command.want, value)
            lines.append(f"{name}: saved in {command.out}")
            files.append(command.out)
            continue
        shown = problem.show_value(run, name, value)
        if not isinstance(shown, str):
            evidence = "-".join(
                "-".join((key, Path(text).name)) for key, _, text in (t.partition("=") for t in command.given)
            )
            path = command.out or run.folder / f"{name}-{evidence}.png"
            save_figure(shown, path)
            lines.append(f"{name}: drawn in {path}")
            files.append(path)
            continue
        lines.append(f"{name}: {shown}")
    if command.out is not None and command.out not in files:
        raise DataError(
            f"--out {command.out}: {', '.join(command.want)} has no picture; give a file ending in .npy to "
            "save its values."
        )
    if command.energy is not None:
        assert solution.terms is not None
        save_figure(draw_energy_terms(solution.terms, solution.schedule, theme=theme), command.energy)
        lines.append(f"energy by factor: drawn in {command.energy}")
        files.append(command.energy)
    data["files"] = [str(path) for path in files]
    return Answer(tuple(lines), data)


def _save_array(path: Path, want: Sequence[str], value: Tensor) -> None:
    import io

    import numpy as np

    from ..runs.files import write_atomically

    if len(want) > 1:
        raise DataError(f"--out {path}: a .npy file holds one variable; --want one at a time.")
    buffer = io.BytesIO()
    np.save(buffer, value.numpy())
    write_atomically(path, buffer.getvalue())
