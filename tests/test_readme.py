"""The README tells the truth: its example prints what it says, its files exist, its commands are the
Makefile's."""

import contextlib
import io
import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def numbers_and_words(text):
    """Numbers rounded to what agrees across machines, and the words between them."""
    parts = re.split(r"(-?\d+\.\d+)", text.strip())
    return [round(float(p), 4) if re.fullmatch(r"-?\d+\.\d+", p) else p for p in parts]


def test_the_example_prints_what_the_readme_says():
    code = re.search(r"```python\n(.*?)```", TEXT, re.S).group(1)
    printed = re.search(r"```text\n(.*?)```", TEXT, re.S).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 13
    out = io.StringIO()
    with contextlib.redirect_stdout(out), torch.random.fork_rng(devices=[]):
        exec(compile(code, "README.md", "exec"), {})
    assert numbers_and_words(out.getvalue()) == numbers_and_words(printed)


def test_every_linked_file_exists():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_code_blocks_of_the_docs_run():
    for page in sorted((ROOT / "docs").glob("*.md")):
        names = {}
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
                exec(compile(code, page.name, "exec"), names)


def test_the_commands_are_targets_of_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    for command in re.findall(r"^make (\w+)", TEXT, re.M):
        assert command in targets
