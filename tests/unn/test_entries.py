"""Entry points are those of the packages that are installed now."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest

from unn.entries import entry_points


def install(folder: Path, name: str) -> Path:
    """Metadata of a package with one entry point of the group ``some.group``."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[some.group]\n{name} = module:{name}\n")
    return info


def test_entry_points_are_those_of_the_standard_library() -> None:
    listed = {(entry.name, entry.value) for entry in entry_points("unn.engines")}
    assert listed == {(entry.name, entry.value) for entry in metadata.entry_points(group="unn.engines")}
    assert listed


def test_packages_that_are_installed_or_removed_later_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entry_points("some.group") == ()
    install(tmp_path, "first")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [entry.name for entry in entry_points("some.group")] == ["first"]
    second = install(tmp_path, "second")
    assert sorted(entry.name for entry in entry_points("some.group")) == ["first", "second"]
    shutil.rmtree(second)
    assert [entry.name for entry in entry_points("some.group")] == ["first"]


def test_a_second_query_reads_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points("unn.problems")
    monkeypatch.setattr(metadata, "entry_points", lambda group: pytest.fail("metadata were read again"))
    assert entry_points("unn.problems")


def test_folders_that_do_not_exist_are_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "missing"))
    assert entry_points("unn.engines")
