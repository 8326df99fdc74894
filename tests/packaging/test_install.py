"""The wheel and the sdist, installed into an empty environment, outside the repository. Run by `make
package`; needs a package index."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.package


def run(*command, folder):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """The python of an environment with nothing in it but pip."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def test_the_wheel_holds_the_packages_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"unn", "factors", "problems", "unn-0.1.0.dist-info"}
    assert {"unn/py.typed", "unn/__init__.pyi", "unn/runs/__init__.pyi", "unn/training/__init__.pyi"} <= set(
        names
    )


def test_the_sdist_holds_what_is_needed_to_test_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "constraints-lowest.txt",
        "pyproject.toml",
        "tests/test_readme.py",
        "docs/index.md",
    } <= names


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_the_example_of_the_readme_runs_in_an_empty_environment(kind, built, empty, tmp_path):
    (package,) = built.glob(kind)
    run(
        empty,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--force-reinstall",
        "--constraint",
        ROOT / "constraints.txt",
        package,
        folder=tmp_path,
    )
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    printed = run(empty, "-c", code, folder=tmp_path)
    assert "converged" in printed and "(3, 6)" in printed
    where = run(empty, "-c", "import unn, factors, problems; print(unn.__file__)", folder=tmp_path)
    assert str(empty.parents[1]) in where
    assert "digits" in run(empty.parent / "unn", "problems", folder=tmp_path)
    run(empty.parent / "unn", "train", "digits", "--epochs", "1", "--channels", "2", folder=tmp_path)
