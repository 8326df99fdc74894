"""Runs that are killed, interrupted, or out of disk: resuming gives the numbers of a run that never
stopped."""

import copy
import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import time
from dataclasses import replace

import pytest
import torch
from support.helpers import says
from support.toy import ToyTask, same_tensors, tensors_of, toy_network, without_times

import unn
from unn import runs
from unn.runs import checkpoint as checkpoints
from unn.runs import files
from unn.training import TrainingConfig, fit
from unn.training.state import TrainingState

CONFIG = TrainingConfig(epochs=4, batch=8, rate=0.05, log_every=3, checkpoint_every=5, ema=0.9, clip=1.0)


class StopError(Exception):
    """Ends a run in the middle of a step."""


class Stopping(ToyTask):
    """Stops in the loss of one step."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def loss(self, network, batch):
        self.at -= 1
        if self.at < 0:
            raise StopError
        return super().loss(network, batch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return fit(toy_network(), ToyTask(), CONFIG, folder), folder


def check_same(folder, whole, config=CONFIG):
    _result, other = whole
    assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert without_times(runs.read_metrics(folder)) == without_times(runs.read_metrics(other))
    steps = runs.checkpoint_steps(folder)
    assert steps == runs.checkpoint_steps(other) and len(steps) == config.keep
    read = [
        runs.read_checkpoint(root / "checkpoints" / f"step-{steps[-1]:09d}").state for root in (folder, other)
    ]
    assert same_tensors(read[0]["network"], read[1]["network"]) and same_tensors(
        read[0]["average"], read[1]["average"]
    )
    assert not [
        path.name
        for path in (*folder.iterdir(), *(folder / "checkpoints").iterdir())
        if path.name.startswith(files.TEMPORARY)
    ]


# -- stopped between steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 5, 6, 11, 14, 27])
def test_a_run_that_stops_at_any_step_ends_with_the_same_numbers(at, whole, tmp_path):
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(at), CONFIG, tmp_path)
    assert all(entry["step"] <= at for entry in runs.read_metrics(tmp_path))
    seen = []
    fit(toy_network(seed=9), ToyTask(), CONFIG, tmp_path, report=seen.append) if at >= 5 else fit(
        toy_network(), ToyTask(), CONFIG, tmp_path
    )
    assert all(entry["step"] > at - at % 5 for entry in seen)
    check_same(tmp_path, whole)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd"},
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"schedule": "linear", "warmup": 0.3},
        {"optimizer": "adamax", "floor": 0.1, "skip": 1e-1},
        {"ema": 0.0},
        {"accumulate": 3},
        {"patience": 1, "evaluate_every": 2},
        {"workers": 1},
        {"precision": "bfloat16"},
        {"checkpoint_every": 1, "keep": 5},
    ],
    ids=str,
)
def test_resuming_is_exact_with_every_option(change, tmp_path):
    config = replace(CONFIG, **change)
    expected = fit(toy_network(), ToyTask(), config)
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(13 * config.accumulate), config, tmp_path)
    result = fit(toy_network(seed=9), ToyTask(), config, tmp_path)
    assert same_tensors(tensors_of(result.network), tensors_of(expected.network))
    assert without_times(result.history) == without_times(expected.history)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_optimizers_step_alike_before_and_after_loading_however_parameters_lie_in_memory(optimizer, layout):
    config = replace(CONFIG, optimizer=optimizer)
    slope = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))

    def made():
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).T
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(x.contiguous() if layout == "contiguous" else x)
        return TrainingState(module, config, 10)

    def step(state):
        state.network.weight.grad = slope * state.network.weight.detach().cos()
        state.optimizer.step()

    whole = made()
    for _ in range(3):
        step(whole)
    saved = copy.deepcopy(whole.state_dict())
    saved["optimizer"]["state"] = {
        k: {name: x.contiguous() if isinstance(x, torch.Tensor) else x for name, x in kept.items()}
        for k, kept in saved["optimizer"]["state"].items()
    }
    # as a program before fused steps would have written it
    for group in saved["optimizer"]["param_groups"]:
        group["fused"] = None
    resumed = made()
    resumed.load_state_dict(saved, "here")
    assert [group["fused"] for group in resumed.optimizer.param_groups] == [layout == "contiguous"]
    step(whole)
    step(resumed)
    assert torch.equal(whole.network.weight, resumed.network.weight)


def test_a_finished_run_resumes_to_itself(whole, tmp_path):
    fit(toy_network(), ToyTask(), CONFIG, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    again = fit(toy_network(seed=9), ToyTask(), CONFIG, tmp_path)
    assert again.step == 28
    check_same(tmp_path, whole)


# -- killed --------------------------------------------------------------------------------------------------


def train_in(folder, config, pause, limit=None):
    torch.set_num_threads(1)
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with runs.lock_run(folder):
        fit(toy_network(), ToyTask(pause=pause), config, folder)


def train_and_die(folder, config, at):
    """Kill this process, without any notice, at the n-th call that changes something on the disk."""
    torch.set_num_threads(1)
    left = [at]

    def dying(call):
        def wrapped(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    for name in ("fsync", "replace", "rename", "mkdir", "rmdir", "unlink", "chmod"):
        setattr(os, name, dying(getattr(os, name)))
    with runs.lock_run(folder):
        fit(toy_network(), ToyTask(), config, folder)


@pytest.fixture(scope="module")
def processes():
    """Processes that are forked from one that has torch in memory already, but has never computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unn.training.loop", "toy", "torch._dynamo"])
    return context


def run(processes, target, *arguments):
    process = processes.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    assert not process.is_alive()
    return process.exitcode


@pytest.mark.slow
def test_a_run_killed_25_times_at_random_moments_loses_nothing_but_the_steps_since_its_last_checkpoint(
    processes, whole, tmp_path
):
    generator = random.Random(0)
    kills, newest, tries = 0, 0, 0
    config = replace(CONFIG, checkpoint_every=5)
    while kills < 25:
        tries += 1
        assert tries < 200, "the process ends before it can be killed"
        process = processes.Process(target=train_in, args=(tmp_path, config, 0.02))
        process.start()
        begun = time.monotonic()
        # wait until it writes, so that kills hit the training rather than the start of the process
        while not (tmp_path / "lock").exists() and time.monotonic() - begun < 60:
            time.sleep(0.01)
        process.join(generator.uniform(0.05, 0.5))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        steps = runs.checkpoint_steps(tmp_path)
        assert not steps or steps[-1] >= newest, "a checkpoint was lost"
        newest = steps[-1] if steps else 0
        if newest:
            runs.read_checkpoint(tmp_path / "checkpoints" / f"step-{newest:09d}")
        if newest == 28:
            # begin again: what is left of it may not disturb the new one
            (tmp_path / "model.safetensors").unlink(missing_ok=True)
            for step in steps:
                files.delete_folder(tmp_path / "checkpoints" / f"step-{step:09d}")
            newest = 0
    assert run(processes, train_in, tmp_path, config, 0) == 0
    check_same(tmp_path, whole)


@pytest.mark.slow
def test_a_run_killed_at_every_single_write_in_turn_loses_no_checkpoint(processes, whole, tmp_path):
    at, deaths = 0, 0
    while True:
        before = runs.checkpoint_steps(tmp_path)
        code = run(processes, train_and_die, tmp_path, CONFIG, at)
        after = runs.checkpoint_steps(tmp_path)
        assert not before or after[-1] >= before[-1]
        assert all(
            runs.read_checkpoint(tmp_path / "checkpoints" / f"step-{step:09d}").step == step for step in after
        )
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
        # a process that cannot get further than its first checkpoint is given one more write
        at = at + 1 if after == before else at
        assert deaths < 300
    assert deaths >= 20
    check_same(tmp_path, whole)


# -- a full or read-only disk --------------------------------------------------------------------------------


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*arguments, **options):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize(
    ("fault", "words"), [(full, "No space left on device"), (read_only, "Read-only file system")]
)
def test_a_disk_that_is_full_for_a_while_is_reported_and_loses_nothing(
    fault, words, whole, tmp_path, monkeypatch
):
    warnings = []

    class Filling(ToyTask):
        step = 0

        def loss(self, network, batch):
            self.step += 1
            if self.step == 8:
                monkeypatch.setattr(files.tempfile, "mkdtemp", fault)
            if self.step == 18:
                monkeypatch.undo()
            return super().loss(network, batch)

    fit(toy_network(), Filling(), CONFIG, tmp_path, warn=warnings.append)
    assert len(warnings) == 2
    assert all(
        words in text and "last good checkpoint is that of step 5" in text and "step-0000000" in text
        for text in warnings
    )
    check_same(tmp_path, whole)


def test_a_disk_that_stays_full_ends_the_run_with_an_error_and_keeps_the_last_good_checkpoint(
    whole, tmp_path, monkeypatch
):
    class Filling(ToyTask):
        step = 0

        def loss(self, network, batch):
            self.step += 1
            if self.step == 8:
                monkeypatch.setattr(files.tempfile, "mkdtemp", full)
                monkeypatch.setattr(files.tempfile, "mkstemp", full)
            return super().loss(network, batch)

    with pytest.raises(
        unn.DataError, match=says("No space left", "last good checkpoint is that of step 5", "unn resume")
    ):
        fit(toy_network(), Filling(), CONFIG, tmp_path, warn=lambda text: None)
    monkeypatch.undo()
    assert runs.checkpoint_steps(tmp_path) == [5]
    fit(toy_network(), ToyTask(), CONFIG, tmp_path)
    check_same(tmp_path, whole)


@pytest.mark.slow
def test_a_limit_of_the_system_on_files_ends_the_run_and_resuming_without_it_loses_nothing(
    processes, whole, tmp_path
):
    assert run(processes, train_in, tmp_path, CONFIG, 0, 1500) == 1
    assert runs.checkpoint_steps(tmp_path) == []
    assert run(processes, train_in, tmp_path, CONFIG, 0) == 0
    check_same(tmp_path, whole)


def test_metrics_that_did_not_fit_are_written_later(tmp_path):
    class Failing:
        """A file whose disk is full for a while: it takes half of what it is given, then nothing."""

        def __init__(self, file):
            self.file, self.full = file, False

        def write(self, content):
            if self.full:
                self.file.write(bytes(content[: len(content) // 2]))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(content)

        def __getattr__(self, name):
            return getattr(self.file, name)

    with runs.MetricsFile(tmp_path) as metrics:
        metrics._file = Failing(metrics._file)
        metrics.append({"step": 1, "loss": 0.5})
        metrics._file.full = True
        metrics.append({"step": 2, "loss": 0.25})
        with pytest.raises(unn.DataError, match=says("metrics.jsonl", "No space left")):
            metrics.sync()
        assert [entry["step"] for entry in runs.read_metrics(tmp_path)] == [1]
        metrics._file.full = False
        metrics.append({"step": 3, "loss": 0.125})
        metrics.sync()
    assert [entry["loss"] for entry in runs.read_metrics(tmp_path)] == [0.5, 0.25, 0.125]


# -- two writers ---------------------------------------------------------------------------------------------


def hold(folder, ready, release):
    with runs.lock_run(folder):
        ready.set()
        release.wait(60)


@pytest.mark.slow
def test_two_processes_on_one_run_are_refused_until_the_first_has_ended(processes, tmp_path):
    ready, release = processes.Event(), processes.Event()
    process = processes.Process(target=hold, args=(tmp_path, ready, release))
    process.start()
    assert ready.wait(60)
    with (
        pytest.raises(runs.RunBusyError, match=says(str(tmp_path), "in use by another process")),
        runs.lock_run(tmp_path),
    ):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with runs.lock_run(tmp_path):
        pass


# -- wrong checkpoints ---------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path):
    """A run with checkpoints at steps 5 and 10."""
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(12), CONFIG, tmp_path)
    assert runs.checkpoint_steps(tmp_path) == [5, 10]
    return tmp_path


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("damage", ["empty", "half", "flipped", "missing"])
def test_a_corrupt_checkpoint_is_reported_and_the_one_before_it_taken(stopped, name, damage, whole):
    path = stopped / "checkpoints" / "step-000000010" / name
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "missing":
        path.unlink()
    else:
        # near the end, among the numbers of the tensors
        flipped = content[:-3] + bytes([content[-3] ^ 0x80]) + content[-2:]
        path.write_bytes({"empty": b"", "half": content[:middle], "flipped": flipped}[damage])
    warnings = []
    fit(toy_network(), ToyTask(), CONFIG, stopped, warn=warnings.append)
    assert len(warnings) == 1 and "step-000000010" in warnings[0] and "corrupt" in warnings[0]
    check_same(stopped, whole)


def test_a_run_whose_checkpoints_are_all_corrupt_is_refused(stopped):
    for step in (5, 10):
        (stopped / "checkpoints" / f"step-{step:09d}" / "state.json").write_text("{")
    with pytest.raises(
        unn.DataError, match=says("step-000000005", "step-000000010", "corrupt", "train it anew")
    ):
        fit(toy_network(), ToyTask(), CONFIG, stopped)


def edited(folder, change):
    for step in runs.checkpoint_steps(folder):
        path = folder / "checkpoints" / f"step-{step:09d}" / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_a_checkpoint_of_another_format_names_both_versions(stopped):
    edited(stopped, {"format": 99, "unn": "7.1"})
    with pytest.raises(unn.DataError, match=says("format 99", "unn 7.1", "format 1")):
        fit(toy_network(), ToyTask(), CONFIG, stopped)


def other_regularizer():
    network = toy_network()
    g = unn.FactorGraph("toy", pixel=5, hidden=4, label=3)
    from factors import Multilinear

    X, H = g.variable("X", "pixel", unn.SquaredNorm()), g.variable("H", "hidden", unn.NonNegative())
    Y = g.variable("Y", "label", unn.Entropy())
    g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel")["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden")["c h"], H["h"]))
    return unn.Unrolled(g, "X", "Y", order=network.order)


def test_a_checkpoint_of_another_size_or_graph_is_refused_with_the_difference_and_changes_nothing(stopped):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    wider = toy_network(hidden=7)
    with pytest.raises(unn.DataError, match=says("another graph", "axis hidden: 4", "axis hidden: 7")):
        fit(wider, ToyTask(), CONFIG, stopped)
    with pytest.raises(
        unn.DataError, match=says("another graph", "variable H", "SignedEntropy", "NonNegative")
    ):
        fit(other_regularizer(), ToyTask(), CONFIG, stopped)
    more = toy_network()
    more.graph.parameter("extra", "pixel")
    with pytest.raises(unn.DataError, match=says("another graph", "extra")):
        fit(more, ToyTask(), CONFIG, stopped)
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


def test_metrics_after_the_checkpoint_are_dropped_and_a_line_without_an_end_too(stopped, whole):
    with open(stopped / "metrics.jsonl", "a") as file:
        file.write('{"step": 12, "loss": 1.0}\n{"step": 13, "lo')
    fit(toy_network(), ToyTask(), CONFIG, stopped)
    check_same(stopped, whole)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"loss": 1}', '{"step": "x"}', ""])
def test_a_corrupt_line_of_metrics_is_named(stopped, line):
    path = stopped / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(unn.DataError, match=says("metrics.jsonl", "line 2")):
        fit(toy_network(), ToyTask(), CONFIG, stopped)


def test_nothing_in_a_checkpoint_executes_on_load(stopped):
    for path in (stopped / "checkpoints").rglob("*"):
        assert path.is_dir() or path.suffix in (".json", ".safetensors")


# -- what would otherwise be lost quietly --------------------------------------------------------------------


def test_checkpoints_after_the_one_that_training_went_on_from_make_way(stopped):
    (stopped / "checkpoints" / "step-000000010" / "state.safetensors").write_bytes(b"")
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(3), replace(CONFIG, checkpoint_every=2), stopped, warn=lambda text: None)
    assert runs.checkpoint_steps(stopped) == [6, 8]
    runs.read_checkpoint(stopped / "checkpoints" / "step-000000008")


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 0.1},
        {"ema": 0.0},
        {"precision": "float16"},
        {"optimizer": "sgd"},
        {"epochs": 2},
        {"seed": 5},
        {"batch": 7},
    ],
    ids=str,
)
def test_a_run_goes_on_with_the_options_that_it_was_begun_with(stopped, change):
    ((name, value),) = change.items()
    with pytest.raises(
        unn.DataError,
        match=says(
            "other options",
            f"option {name}: {getattr(CONFIG, name)}",
            f"option {name}: {value}",
            "train again",
        ),
    ):
        fit(toy_network(), ToyTask(), replace(CONFIG, **change), stopped)


def test_options_that_change_no_number_may_change(stopped, whole):
    fit(toy_network(), ToyTask(), replace(CONFIG, workers=1, keep=2), stopped)
    check_same(stopped, whole)


def test_final_weights_of_an_earlier_end_do_not_outlive_it(stopped):
    runs.save_weights(stopped, toy_network(seed=5))
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(1), CONFIG, stopped)
    assert not (stopped / "model.safetensors").exists()


def test_metrics_that_are_gone_are_reported(stopped):
    (stopped / "metrics.jsonl").unlink()
    warnings = []
    fit(toy_network(), ToyTask(), CONFIG, stopped, warn=warnings.append)
    assert len(warnings) == 1 and "lost 4 of 4 entries" in warnings[0]


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_the_new_one_stays(
    stopped, monkeypatch, whole
):
    warnings = []
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "delete_folder", read_only)
        with pytest.raises(StopError):
            fit(toy_network(), Stopping(6), CONFIG, stopped, warn=warnings.append)
    assert (
        len(warnings) == 1
        and "cannot be deleted: Read-only" in warnings[0]
        and runs.checkpoint_steps(stopped) == [5, 10, 15]
    )
    fit(toy_network(), ToyTask(), CONFIG, stopped)
    check_same(stopped, whole)


def test_other_things_among_the_checkpoints_are_left_alone(stopped, whole):
    (stopped / "checkpoints" / "step-1").mkdir()
    (stopped / "checkpoints" / "step-000000099").write_text("no folder")
    fit(toy_network(), ToyTask(), CONFIG, stopped)
    assert {"step-1", "step-000000099"} <= {path.name for path in (stopped / "checkpoints").iterdir()}
    check_same(stopped, whole)


@pytest.mark.parametrize(
    "damage",
    [lambda s: s.pop("network"), lambda s: s.pop("schedule"), lambda s: s["progress"].update(other=1)],
)
def test_a_checkpoint_that_lacks_a_part_is_corrupt_and_no_traceback(stopped, damage):
    newest = runs.read_checkpoint(stopped / "checkpoints" / "step-000000010")
    damage(newest.state)
    runs.write_checkpoint(stopped, newest)
    with pytest.raises(unn.DataError, match=says("checkpoint of step 10", "corrupt")):
        fit(toy_network(), ToyTask(), CONFIG, stopped)
