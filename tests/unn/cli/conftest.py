"""Tests of the command line have the toy problems, in this process and in others."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _toys(toys, toy_distribution, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests", toy_distribution))))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
