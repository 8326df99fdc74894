"""The versions that pyproject.toml allows are those that are tested: the oldest and the pinned ones."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [
    Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["testing"]
]


def pinned(file):
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {name.lower().replace("_", "-"): Version(version) for name, version in pairs}


@pytest.mark.parametrize("requirement", REQUIRED, ids=lambda requirement: requirement.name)
def test_the_oldest_version_that_is_allowed_is_tested(requirement):
    (bound,) = requirement.specifier
    name = requirement.name.lower().replace("_", "-")
    assert bound.operator == ">="
    assert pinned("constraints-lowest.txt")[name] == Version(bound.version)
    assert pinned("constraints.txt")[name] >= Version(bound.version)
