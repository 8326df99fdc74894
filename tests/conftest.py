"""What holds for all tests."""

import os
import random
import sys
import zlib
from collections.abc import Generator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# processes that share the cores must not each have a thread on all of them: with two of two threads the tests
# take three times as long
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long an example takes says more about the machine and what else runs on it than about the package
settings.register_profile("unn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unn")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Coverage is that of the fast tests: tracing each line doubles the time of those that loop in Python."""
    tracer = sys.gettrace()
    if not (item.get_closest_marker("slow") and type(tracer).__module__.startswith("coverage")):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Every test draws the same values each time, whichever tests run before it or beside it."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """What tests measure is remembered for the tests alone, those in other processes included."""
    before = os.environ.get("UNN_CACHE")
    os.environ["UNN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["UNN_CACHE"]
    else:
        os.environ["UNN_CACHE"] = before
