"""Configurations: frozen dataclasses to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ..errors import DataError, suggest

C = TypeVar("C")


def config_from_json(config_type: type[C], content: Mapping[str, Any], where: str) -> C:
    """Restore a configuration from its JSON form, the inverse of ``dataclasses.asdict``.

    Args:
        config_type: a dataclass; its fields may be dataclasses.
        content: values by the names of the fields.
        where: path of the file, for messages.

    Raises:
        DataError: names an option that is unknown (and the closest known one), missing, or of another type.
    """
    import dacite

    _require_known(config_type, content, where)
    try:
        return dacite.from_dict(config_type, content, dacite.Config(strict=True, cast=[tuple, Path]))
    except dacite.MissingValueError as error:
        raise DataError(
            f"{where} lacks the option {error.field_path!r}; it was written by another version."
        ) from None
    except (dacite.DaciteError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}; it was written by another version, or changed by hand.") from None


def _require_known(config_type: type, content: Mapping[str, Any], where: str) -> None:
    types = get_type_hints(config_type)
    known = {field.name for field in fields(config_type)}
    for name, value in content.items():
        if name not in known:
            raise DataError(
                f"{where}: unknown option {name!r}, written by another version.{suggest(name, known)}"
            )
        if is_dataclass(types[name]) and isinstance(value, Mapping):
            _require_known(types[name], value, where)
    for name in known:
        if name not in content:
            raise DataError(f"{where} lacks the option {name!r}; it was written by another version.")
