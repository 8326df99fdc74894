"""Files called problems or factors in the current folder do not take the place of the installed packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unn.cli import packages
from unn.cli.main import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
KINDS = {
    "a file": lambda folder, name: (folder / f"{name}.py").write_text("raise RuntimeError('not mine')\n"),
    "a package": lambda folder, name: (
        (folder / name).mkdir(),
        (folder / name / "__init__.py").write_text("raise RuntimeError('not mine')\n"),
    ),
    "a folder": lambda folder, name: (folder / name).mkdir(),
}


def run(folder, *arguments, **variables):
    """A command in a folder, with the folder first on the path as ``python -m`` puts it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def shadow(folder, kind):
    for name in packages.BESIDE:
        KINDS[kind](folder, name)
    # a module of the user's own is still found
    (folder / "mine.py").write_text("x = 1\n")
    return folder


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    """What ``unn problems`` prints in an empty folder."""
    done = run(tmp_path_factory.mktemp("empty"), "-m", "unn", "problems")
    assert done.returncode == 0 and done.stdout
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_python_m_unn_imports_its_own_packages(tmp_path, listing, kind):
    done = run(shadow(tmp_path, kind), "-m", "unn", "problems")
    assert done.returncode == 0 and done.stdout == listing and "cannot be loaded" not in done.stdout


def test_the_command_imports_its_own_packages_where_the_path_has_the_current_folder_too(tmp_path):
    code = """
from importlib.util import find_spec
from unn.cli.main import main
main(["problems"])
import mine
print(find_spec("factors").origin)
"""
    shadow(tmp_path, "a file")
    done = run(tmp_path, "-c", code, PYTHONPATH=os.pathsep.join(["", str(tmp_path), str(ROOT)]))
    assert done.returncode == 0 and "cannot be loaded" not in done.stdout
    assert done.stdout.splitlines()[-1] == str(ROOT / "factors" / "__init__.py")


def test_torchrun_m_unn_imports_its_own_packages(tmp_path, listing):
    shadow(tmp_path, "a file")
    done = run(
        tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m", "unn", "problems"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == listing and "cannot be loaded" not in done.stdout


def test_the_doctor_names_a_file_that_shadows_a_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "factors.py").write_text("")
    (tmp_path / "problems").mkdir()
    assert main(["doctor"]) == 1
    faults = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fault:")]
    assert len(faults) == 1
    assert all(
        word in faults[0]
        for word in (str(tmp_path / "factors.py"), "shadows the package factors", "rename it")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_only_files_that_would_be_imported_count_and_only_their_folders_are_moved(
    tmp_path, monkeypatch, kind
):
    other = tmp_path / "other"
    other.mkdir()
    shadow(other, kind)
    path = [str(tmp_path), str(other), "", str(packages.home()), str(other / "later")]
    monkeypatch.setattr(sys, "path", list(path))
    monkeypatch.chdir(tmp_path)
    packages.import_own_packages_first()
    expected = path if kind == "a folder" else [path[0], *path[2:], path[1]]
    assert sys.path == expected
    assert {shadowing.package for shadowing in packages.shadows([other, packages.home()])} == (
        set() if kind == "a folder" else set(packages.BESIDE)
    )
