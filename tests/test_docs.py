"""The documentation says nothing that is not run: all code is executed, every page is reached, every public
name is described."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
ROOT = DOCS.parent

FENCE = re.compile(r"^([`~:]{3,})\s*(\{[\w-]+\}|[\w+-]*)[^\n]*\n(.*?)^\1\s*$", re.M | re.S)
EXECUTED = "file_format: mystnb"
PYTHON = {"python", "py", "python3", "ipython", "ipython3", "pycon", "{code-block}", "{code}", "{sourcecode}"}


def name_of(page):
    return page.relative_to(DOCS).as_posix()


def fences(text):
    """The language or directive of each fenced block, and its content; of containers, those inside as
    well."""
    for marks, kind, body in FENCE.findall(text):
        yield kind, body
        if marks.startswith(":"):
            yield from fences(body)


def cells(notebook):
    return json.loads(notebook.read_text())["cells"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_all_python_of_a_page_is_executed(page):
    """Code cells run in the build of the site; plain python blocks run in test_readme, which reads the pages
    directly in docs/."""
    text = page.read_text()
    kinds = [kind for kind, _ in fences(text)]
    if "{code-cell}" in kinds:
        assert text.startswith("---\n") and EXECUTED in text.split("---")[1], (
            f"{name_of(page)} has code cells, but no header that makes them run"
        )
    for word in ("skip-execution", "nb_execution"):
        assert word not in text
    if page.parent == DOCS:
        kinds = [kind for kind in kinds if kind != "python"]
    assert not PYTHON & set(kinds), f"{name_of(page)} shows code that nothing runs"
    assert ">>> " not in text


def test_the_build_executes_everything_and_stops_at_errors():
    conf = (DOCS / "conf.py").read_text()
    assert re.search(r'^nb_execution_mode = "(force|cache)"$', conf, re.M)
    assert re.search(r"^nb_execution_raise_on_error = True$", conf, re.M)
    assert "nb_execution_excludepatterns" not in conf


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_a_page_can_be_read_by_python(page):
    for kind, body in fences(page.read_text()):
        # cells of shell commands fail in the build, if they are wrong
        source = re.sub(r"\A(:.*\n)*\n?", "", body)
        if kind == "{code-cell}" and not source.startswith("%%sh\n"):
            compile(re.sub(r"^%.*$", "", source, flags=re.M), name_of(page), "exec")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_notebooks_are_stored_without_outputs(notebook):
    for cell in cells(notebook):
        assert "skip-execution" not in cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, (
                f"clear the outputs of {notebook.name}"
            )


def test_there_are_notebooks():
    assert {notebook.stem for notebook in NOTEBOOKS} >= {"first_steps", "declaring", "inferring"}


def test_every_page_is_reached_from_the_first():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        if page.suffix != ".md":
            continue
        for kind, body in fences(page.read_text()):
            if kind == "{toctree}":
                for entry in body.splitlines():
                    if entry and not entry.startswith(":"):
                        files = [
                            path
                            for path in (page.parent / f"{entry}.md", page.parent / f"{entry}.ipynb")
                            if path.is_file()
                        ]
                        assert files, f"{name_of(page)} lists {entry}, which is no page"
                        waiting += [path.resolve() for path in files]
    assert sorted(map(name_of, reached)) == sorted(map(name_of, [*PAGES, *NOTEBOOKS]))


def prose(page):
    """The text of a page or notebook without its code."""
    if page.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in cells(page) if cell["cell_type"] == "markdown")
    return re.sub(r"^```(\w|\{code-cell\}).*?^```$", "", page.read_text(), flags=re.M | re.S)


def headings(page):
    """The anchors of a page: of its headings, and its labels."""
    text = prose(page)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(
        re.findall(r"^\(([\w-]+)\)=$", text, re.M)
    )


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=name_of)
def test_internal_links_lead_somewhere(page):
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in headings(linked), f"{name_of(page)} links to {target}"


def public_names(stub):
    return re.findall(r"^from \S+ import \w+ as (\w+)$", stub.read_text(), re.M)


@pytest.mark.parametrize(
    ("stub", "module"),
    [
        ("unn/__init__.pyi", "unn"),
        ("factors/__init__.py", "factors"),
        ("unn/regularizers/__init__.py", "unn.regularizers"),
        ("unn/draw/__init__.py", "unn.draw"),
        ("unn/testing/__init__.py", "unn.testing"),
    ],
)
def test_every_public_name_is_in_the_reference(stub, module):
    reference = "\n".join(page.read_text() for page in PAGES if page.parent.name == "api")
    described = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", reference, re.M))
    names = public_names(ROOT / stub)
    assert names
    for name in names:
        if isinstance(getattr(importlib.import_module(module), name), ModuleType):
            continue
        # regularizers are described once, under the shorter of their two names
        assert described & {f"{module}.{name}", f"unn.{name}"}, f"{module}.{name} is not in docs/api"


def test_the_text_names_no_machine():
    for page in [*PAGES, *NOTEBOOKS]:
        assert not re.search(r"/(home|root|work|tmp|Users)/", page.read_text()), name_of(page)
