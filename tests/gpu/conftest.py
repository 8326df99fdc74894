"""Checks to run where a GPU is: ``pytest tests/gpu``. Elsewhere they are skipped.

``UNN_GPU_DEVICE=cpu pytest tests/gpu`` runs them on the CPU, which shows that the checks themselves are
sound; those that ask CUDA itself are skipped then. ``UNN_GPU_DEVICE=cuda:1`` takes another GPU.
"""

import os

import pytest
import torch

from tests.benchmarks.gpu import full_precision


@pytest.fixture(scope="session")
def device():
    """The device to check."""
    name = os.environ.get("UNN_GPU_DEVICE", "cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip(
            "no GPU here: torch.cuda.is_available() is false; UNN_GPU_DEVICE=cpu runs these checks on the CPU"
        )
    # with its number, as tensors have it
    return torch.zeros((), device=name).device


@pytest.fixture
def cuda(device):
    """The device, where it is a GPU."""
    if device.type != "cuda":
        pytest.skip("asks CUDA itself")
    return device


@pytest.fixture(autouse=True)
def _full_precision(device):
    with full_precision():
        yield


@pytest.fixture(autouse=True)
def _seed(device):
    torch.manual_seed(0)
