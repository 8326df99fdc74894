"""Error messages for missing attributes of ``unn``."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def explanation(name: str, names: Sequence[str]) -> str:
    """The message of an AttributeError.

    Args:
        name: name of the missing attribute of ``unn``.
        names: names of its public attributes.
    """
    message = f"module 'unn' has no attribute {name!r}."
    if name.startswith("__"):
        # tools probe these in every module
        return message
    factors = factor_names()
    if name in factors:
        return f"{message} It is in the factor library: factors.{name}."
    options = {
        **{factor: f"factors.{factor}" for factor in factors},
        **{public: f"unn.{public}" for public in names},
    }
    by_lower_case = {option.lower(): option for option in options}
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.75)
    close = close or [
        by_lower_case[match]
        for match in difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.75)
    ]
    return f"{message} Did you mean {options[close[0]]}?" if close else message


@cache
def factor_names() -> tuple[str, ...]:
    """The public names of the factor library, read from its source without importing it."""
    try:
        spec = find_spec("factors")
    except (ImportError, ValueError):
        return ()
    if spec is None or spec.origin is None:
        return ()
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    imports = [statement for statement in tree.body if isinstance(statement, ast.ImportFrom)]
    return tuple(alias.asname or alias.name for statement in imports for alias in statement.names)
