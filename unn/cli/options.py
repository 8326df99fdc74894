"""Options and checks that several commands share."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from ..engine import SamplingOptions as SamplingOptions
from ..errors import UnnError, unknown
from ..ranges import choices_of

Json = Annotated[bool, arg(help="Print JSON instead of text.")]
Quiet = Annotated[bool, arg(help="Show no progress bar.")]
Theme = Annotated[str, arg(metavar="{light,dark}", help="Colour theme of pictures.")]
RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help="Folder of a run.")]

MOST_ROUNDS = 100_000

DRAWN = 8
"""Maximum number of samples, answers or steps in a picture."""


def shows_progress(json: bool, quiet: bool) -> bool:
    """Whether to show a progress bar: only on a terminal, without ``--json`` and ``--quiet``."""
    return sys.stderr.isatty() and not json and not quiet


def require_rounds(*iterations: int) -> None:
    """Check numbers of rounds.

    Raises:
        UnnError: if a number is below 1 or above 100,000.
    """
    if any(not 1 <= k <= MOST_ROUNDS for k in iterations):
        raise UnnError(
            f"--iterations must lie between 1 and {MOST_ROUNDS}, got {' '.join(map(str, iterations))}."
        )


def require_number(option: str, value: int, most: int = 10**6) -> None:
    """Check a number of samples, steps or attempts.

    Raises:
        UnnError: if it is below 1 or above ``most``.
    """
    if not 1 <= value <= most:
        raise UnnError(f"--{option} must lie between 1 and {most}, got {value}.")


def require_other_file(out: Path | None, *read: Path | None) -> None:
    """Check that a result does not replace a file that is read.

    Raises:
        UnnError: if it would.
    """
    if out is not None and out.resolve() in [path.resolve() for path in read if path is not None]:
        raise UnnError(f"--out {out} would replace the file that is read; give another one.")


def check_picture(path: Path, several: bool = False) -> None:
    """Check the file of a picture before the work for it begins.

    Args:
        path: file.
        several: whether it holds several pictures below one another, which only PNG can.

    Raises:
        UnnError: for an unknown ending, or a folder that does not exist.
    """
    from ..draw.save import picture_format

    kind = picture_format(path)
    if several and kind != "png":
        raise UnnError(f"{path}: several pictures below one another are a PNG file; end its name in .png.")
    if not path.parent.is_dir():
        raise UnnError(f"{path}: there is no folder {path.parent}; make it first.")


def read_options(configs: tuple[type, ...], texts: tuple[str, ...]) -> dict[str, Any]:
    """Read options given as ``NAME=VALUE``, of the types of their defaults.

    Args:
        configs: dataclasses of the options; the first one with a name has it.
        texts: the arguments.

    Raises:
        UnnError: for an argument of another form, an unknown option, or a value of another type.
    """
    defaults = {option.name: option.default for config in configs[::-1] for option in fields(config)}
    defaults = {name: value for name, value in defaults.items() if isinstance(value, (int, float, str))}
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator:
            raise UnnError(f"--options {text}: write NAME=VALUE.")
        if name not in defaults:
            raise UnnError(f"--options {text}: " + unknown("option", name, defaults))
        if name in values:
            raise UnnError(f"--options {text}: {name} has another value already; give one.")
        kind: Any = type(defaults[name])
        if kind is bool:
            values[name] = {"true": True, "false": False}.get(value.lower(), value)
        else:
            try:
                values[name] = kind(value)
            except ValueError:
                values[name] = value
        if type(values[name]) is not kind:
            raise UnnError(f"--options {text}: {name} is of type {kind.__name__}, got {value!r}.")
        allowed = next((choices[name] for choices in map(choices_of, configs) if name in choices), ())
        if allowed and value not in allowed:
            raise UnnError(f"--options {text}: " + unknown("value", value, allowed))
    return values
