"""unn infer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import arg

from ..errors import DataError, UnnError
from .open import open_trained
from .options import Json, RunFolder, Theme, require_rounds
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
    given = assignments(command.given)
    if command.out is not None and command.out == command.energy:
        raise DataError(f"--out and --energy are both {command.out}; give two files.")
    problem, run = open_trained(command.run)
    problem.require_inference(run)
    from ..descent.infer import infer as minimise
    from ..descent.solution import Status
    from ..draw import draw_energy_terms, save_figure, theme_named

    theme = theme_named(command.theme)
    graph = problem.graph(run.network)
    observed = {name: problem.read_value(run, name, text) for name, text in given.items()}
    rounds = command.iterations or problem.iterations(run)
    solution = minimise(
        graph, observed, order=problem.order(run, given), iterations=rounds, want=command.want,
        terms=command.energy is not None,
    )  # fmt: skip
    assert solution.energy is not None
    message = solution.message
    if solution.status is Status.LIMIT:
        # the engine's message is for Python callers
        message = f"ran {rounds} round{'s' if rounds > 1 else ''}; --iterations sets another number."
    lines = [message, f"energy {float(solution.energy[-1, 0]):.4f} after {solution.updates} updates"]
    data: dict[str, Any] = {"status": solution.status.value, "energy": solution.energy[:, 0].tolist()}
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
            path = command.out or run.folder / f"{name}-{'-'.join(f'{n}-{Path(t).name}' for n, t in given.items())}.png"
            save_figure(shown, path)
            lines.append(f"{name}: drawn in {path}")
            files.append(path)
            continue
        lines.append(f"{name}: {shown}")
    if command.out is not None and command.out not in files:
        raise DataError(f"--out {command.out}: {', '.join(command.want)} has no picture; give a file ending in .npy to save its values.")
    if command.energy is not None:
        assert solution.terms is not None
        save_figure(draw_energy_terms(solution.terms, solution.schedule, theme=theme), command.energy)
        lines.append(f"energy by factor: drawn in {command.energy}")
        files.append(command.energy)
    data["files"] = [str(path) for path in files]
    return Answer(tuple(lines), data)


def assignments(texts: Sequence[str]) -> Mapping[str, str]:
    """Parse arguments NAME=VALUE into a mapping.

    Raises:
        UnnError: if an argument has no name or no equals sign, or a name occurs twice.
    """
    given: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UnnError(f"--given takes NAME=VALUE, such as label=3, got {text!r}.")
        if name in given:
            raise UnnError(f"--given names {name!r} twice.")
        given[name] = value
    return given


def _save_array(path: Path, want: Sequence[str], value: Tensor) -> None:
    import io

    import numpy as np

    from ..runs.files import write_atomically

    if len(want) > 1:
        raise DataError(f"--out {path}: a .npy file holds one variable; --want one at a time.")
    buffer = io.BytesIO()
    np.save(buffer, value.numpy())
    write_atomically(path, buffer.getvalue())
