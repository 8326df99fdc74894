"""Tests lie where their subject lies, and what problems are built on is tested without any problem."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_named(node):
    """Modules that a node of a syntax tree imports, or names as an entry point does."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [node.module]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        module, _, name = node.value.partition(":")
        return [module] if name.isidentifier() else []
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("import_module", "importorskip"):
        return [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return []


def imports_of_problems(text):
    """Numbers of the lines that import the problems of the package, at any depth."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        for module in modules_named(node)
        if str(module).split(".")[0] == "problems"
    ]


@pytest.mark.parametrize("package", ["unn", "factors"])
def test_tests_of_what_problems_are_built_on_import_no_problem(package):
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests" / package).rglob("*.py"))
        for line in imports_of_problems(path.read_text(encoding="utf-8"))
    ]
    assert not lines


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("import problems", True),
        ("from problems.sudoku import grids", True),
        ("def f():\n    from problems.sudoku import grids", True),
        ("EntryPoint('digits', 'problems.digits.problem:DigitsProblem', 'unn.problems')", True),
        ("importlib.import_module('problems.digits')", True),
        ("from unn import problem", False),
        ("from support.problem_graphs import sudoku", False),
        ("EntryPoint('toy', 'support.toy_problems:SumsProblem', 'unn.problems')", False),
        ("text = 'problems: none'", False),
    ],
)
def test_an_import_of_a_problem_is_noticed_in_a_statement_and_in_an_entry_point(text, imports):
    assert bool(imports_of_problems(text)) is imports


@pytest.mark.parametrize("package", ["unn", "factors", "problems"])
def test_every_folder_of_tests_is_a_folder_of_the_package(package):
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests" / package).rglob("*.py")}
    assert folders and [folder for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []
