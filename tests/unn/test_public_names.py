"""The names of the package: all of them are reached from ``import unn``, and one that is not there is
explained."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import unn

ROOT = Path(__file__).parents[2]
STUB = ast.parse((ROOT / "unn" / "__init__.pyi").read_text())
NAMES = [
    alias.asname
    for statement in STUB.body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
]


def python(code):
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_stub_is_there(name):
    assert name in dir(unn)
    value = getattr(unn, name)
    if name in unn.SUBMODULES or name == "regularizers":
        assert value is importlib.import_module(f"unn.{name}")


def test_every_package_with_public_names_is_reached_from_the_top():
    packages = {module.name for module in pkgutil.iter_modules(unn.__path__) if module.ispkg}
    # the inside of declarations, of engines and of the command line
    modules = {"errors", "attention", "models", "problem", "tracing"}
    inside = {"graph", "ops", "cli", "descent", "encoder", "solver", "recurrent", "search", "perception"}
    inside |= {"latent"}
    assert packages - inside == {*unn.SUBMODULES, "regularizers"} - modules


def test_submodules_that_moved_keep_their_public_name():
    moved = {
        "attention": "ops.attention",
        "models": "networks",
        "problem": "cli.problem",
        "tracing": "programs",
    }
    for name, room in moved.items():
        assert getattr(unn, name) is importlib.import_module(f"unn.{room}")
    imports = "; ".join(f"import unn.{name} as m; print(m.__name__)" for name in moved)
    assert python(imports).split() == [f"unn.{room}" for room in moved.values()]


def test_submodules_are_there_after_importing_the_package_alone():
    # those that need no torch, since this interpreter has loaded nothing yet
    assert (
        python("import unn; print(unn.runs.__name__, unn.errors.__name__, unn.problem.__name__)")
        == "unn.runs unn.errors unn.cli.problem"
    )


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, unn; print(sorted({'torch', 'numpy', 'matplotlib', 'tyro', 'hypothesis', 'factors'} & "
        "set(sys.modules)))"
    )
    assert python(code) == "[]"


@pytest.mark.slow
def test_a_star_imports_names_but_no_submodules_that_may_lack_a_package():
    names = ("testing", "draw", "infer", "regularizers")
    assert (
        python(f"from unn import *; print([name in globals() for name in {names}])")
        == "[False, False, True, True]"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Multilinear", "factors.Multilinear"),
        ("TreeEntropy", "factors.TreeEntropy"),
        ("multilinear", "Did you mean factors.Multilinear?"),
        ("Factorgraph", "Did you mean unn.FactorGraph?"),
        ("Difusion", "Did you mean unn.Diffusion?"),
        ("difusion", "Did you mean unn.diffusion?"),
        ("FACTORGRAPH", "Did you mean unn.FactorGraph?"),
        ("program", "Did you mean unn.programs?"),
        ("zzz", "attribute 'zzz'."),
        ("__wrapped__", "attribute '__wrapped__'."),
    ],
)
def test_a_name_that_is_not_there_is_explained(name, words):
    with pytest.raises(AttributeError) as error:
        getattr(unn, name)
    message = str(error.value)
    assert message.startswith(f"module 'unn' has no attribute {name!r}") and message.endswith(
        words if words[-1] in "?." else f"{words}."
    )
    assert not hasattr(unn, name)


def test_looking_for_a_name_does_not_load_torch():
    assert (
        python(
            "import sys, unn; print(hasattr(unn, 'Multilinear'), hasattr(unn, 'Nothing'), 'torch' in "
            "sys.modules)"
        )
        == "False False False"
    )
