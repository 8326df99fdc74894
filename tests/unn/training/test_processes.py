"""Several processes: the losses, weights and checkpoints of one process with the same batches."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.toy import same_tensors

from unn import runs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path
from support.toy import ToyTask, toy_network
from unn.training import TrainingConfig, fit, several_processes

folder, change = Path(sys.argv[1]), json.loads(sys.argv[2])
base = TrainingConfig(
    epochs=3, batch=9, rate=0.05, log_every=1, checkpoint_every=4, clip=1.0, ema=0.5, threads=1
)
config = replace(base, **change)
with several_processes("cpu") as group:
    fit(toy_network(dropout=0), ToyTask(), config, folder, processes=group)
"""


def train(folder, count, **change):
    """Train in so many processes, as torchrun starts them."""
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    folder.mkdir(exist_ok=True)
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *start, str(script), str(folder), json.dumps(change)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [entry["loss"] for entry in runs.read_metrics(folder)]


def weights(folder):
    step = runs.checkpoint_steps(folder)[-1]
    return runs.read_checkpoint(folder / "checkpoints" / f"step-{step:09d}").state["network"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    return train(folder, 1), weights(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    return train(folder, 2), folder


def check_close(losses, folder, alone):
    assert len(losses) == 18 and losses == pytest.approx(alone[0], abs=1e-5)
    for name, x in weights(folder).items():
        torch.testing.assert_close(x, alone[1][name], atol=1e-5, rtol=1e-4)


def test_two_processes_give_the_losses_of_one_with_the_same_global_batch(two, alone):
    check_close(*two, alone)


def test_two_processes_with_parts_give_the_losses_of_one_with_the_same_global_batch(alone, tmp_path):
    check_close(train(tmp_path / "run", 2, accumulate=2), tmp_path / "run", alone)


def test_a_run_of_two_processes_goes_on_in_two_processes_as_if_it_had_not_stopped(two, tmp_path):
    losses, folder = two
    shutil.copytree(folder, tmp_path / "run")
    for step in runs.checkpoint_steps(folder)[1:]:
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:09d}")
    assert runs.checkpoint_steps(tmp_path / "run") == [16]
    assert train(tmp_path / "run", 2) == losses
    assert same_tensors(weights(tmp_path / "run"), weights(folder))
