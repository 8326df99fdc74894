"""The problems of ``support.toy_problems``, installed."""

import pytest
from support.toy_problems import write_distribution


@pytest.fixture(scope="session")
def toy_distribution(tmp_path_factory):
    """A folder that installs the toy problems where it is on the path."""
    return write_distribution(tmp_path_factory.mktemp("toy_problems"))


@pytest.fixture
def toys(toy_distribution, monkeypatch):
    """The toy problems are installed besides those of the package."""
    monkeypatch.syspath_prepend(toy_distribution)


@pytest.fixture(scope="module")
def toys_of_module(toy_distribution):
    """The toy problems are installed for fixtures of the scope of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(toy_distribution)
        yield
