"""Small trained runs of the problems."""

import pytest
from support.commands import tiny

from unn.cli.main import main


@pytest.fixture
def undrawn(monkeypatch):
    """Training draws no pictures."""
    monkeypatch.setattr("unn.cli.train._draw", lambda *_: None)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A run of any problem, trained when it is first asked for."""
    made = {}

    def run(name, *options):
        if (name, options) not in made:
            folder = tmp_path_factory.mktemp("runs") / name
            assert main(["train", name, *tiny(options), *options, "--folder", str(folder)]) == 0
            made[name, options] = folder
        return made[name, options]

    return run
