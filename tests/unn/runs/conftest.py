"""Tests of runs have the toy problems."""

import pytest


@pytest.fixture(autouse=True)
def _toys(toys):
    """The toy problems are installed."""
