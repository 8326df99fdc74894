"""Options of a run: none that changes a number can be changed by hand after a checkpoint; runs are
extended."""

import json
import shutil
from dataclasses import asdict, replace
from typing import get_args, get_type_hints

import pytest
from support.toy import ToyTask, same_tensors, tensors_of, toy_network, without_times
from support.toy_problems import PatternsProblem, SumsProblem

import unn
from unn import runs
from unn.cli.compare import flattened
from unn.cli.main import main
from unn.training import TrainingConfig, fit
from unn.training.options import FREE, LATER, option_signature, problem_signature
from unn.training.state import rate_factor

SMALL = {
    "patterns": ["--epochs", "1", "--channels", "2", "--iterations", "1", "--gamma", "0", "--batch", "1440"],
    "sums": [
        "--length",
        "3",
        "--steps",
        "1",
        "--evaluate-every",
        "1",
        "--width",
        "8",
        "--depth",
        "1",
        "--heads",
        "2",
        "--sampling-steps",
        "1",
    ],
}
PICTURES, SUMS = PatternsProblem().config_for(None), SumsProblem().config_for(None)
CONFIGS = {"patterns": PICTURES, "sums": SUMS}
LEAVES = [(problem, name) for problem, config in CONFIGS.items() for name in flattened(asdict(config()))]


@pytest.fixture(scope="module")
def made(tmp_path_factory, toys_of_module):
    """A run of one step of each problem."""
    root = tmp_path_factory.mktemp("runs")
    for problem, options in SMALL.items():
        assert main(["train", problem, *options, "--quiet", "--folder", str(root / problem)]) == 0
    return root


def another_value(config_type, name, value):
    """A value of an option, by its dotted name, that its problem allows as well."""
    special = {"observe": "any", "heads": 4, "ema": 0.5, "device": "cpu"}
    *parents, last = name.split(".")
    if last in special:
        return special[last]
    kind = config_type
    for part in (*parents, last):
        kind = get_type_hints(kind)[part]
    if get_args(kind):
        return next(other for other in get_args(kind) if other != value)
    if kind is bool:
        return not value
    return value + 2 if kind is int else 0.7 * value + 0.0003


def set_option(folder, name, change):
    content = json.loads((folder / "config.json").read_text())
    *parents, last = name.split(".")
    place = content["config"]
    for part in parents:
        place = place[part]
    place[last] = change(place[last])
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("problem", "name"),
    [(p, n) for p, n in LEAVES if n.rpartition(".")[2] not in FREE | {"engine"}],
    ids=lambda x: x,
)
def test_no_option_of_a_run_can_be_changed_by_hand(capsys, made, tmp_path, problem, name):
    shutil.copytree(made / problem, tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    set_option(tmp_path / "run", name, lambda value: another_value(CONFIGS[problem], name, value))
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 2
    message = capsys.readouterr().err
    shown = name.removeprefix("training.")
    assert f"option {shown}: " in message and "other options" in message, message
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FREE))
def test_options_that_change_no_number_can_be_changed_by_hand(made, tmp_path, name):
    shutil.copytree(made / "patterns", tmp_path / "run")
    set_option(
        tmp_path / "run",
        f"training.{name}",
        lambda value: another_value(PICTURES, f"training.{name}", value),
    )
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0


def test_checkpoints_from_before_options_of_the_problem_were_signed_still_open(capsys, made, tmp_path):
    shutil.copytree(made / "patterns", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    (step,) = runs.checkpoint_steps(tmp_path / "run")
    checkpoint = runs.read_checkpoint(tmp_path / "run" / "checkpoints" / f"step-{step:09d}")
    of_problem = problem_signature(runs.open_run(tmp_path / "run").config)
    assert "option gamma: 0.0" in of_problem and not any(
        line.startswith("option rate") for line in of_problem
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unn.runs.checkpoint.FORMAT", 1)
        lines = tuple(line for line in checkpoint.signature if line not in of_problem)
        runs.write_checkpoint(tmp_path / "run", replace(checkpoint, signature=lines))
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    set_option(tmp_path / "run", "training.rate", lambda value: 2 * value)
    assert (
        main(["resume", str(tmp_path / "run"), "--quiet"]) == 2 and "option rate" in capsys.readouterr().err
    )


# -- longer runs ---------------------------------------------------------------------------------------------

BASE = TrainingConfig(
    epochs=4,
    batch=8,
    rate=0.05,
    log_every=3,
    checkpoint_every=5,
    ema=0.9,
    clip=1.0,
    schedule="constant",
    warmup=0.0,
)


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


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, 3, 12], ids=["finished", "stopped before a checkpoint", "stopped"])
@pytest.mark.parametrize("change", [{"epochs": 7}, {"steps": 40}], ids=str)
@pytest.mark.parametrize("patience", [0, 50])
def test_an_extended_run_has_the_numbers_of_one_begun_with_that_length(tmp_path, stop, change, patience):
    base = replace(BASE, patience=patience, evaluate_every=7 if "steps" in change else 0)
    longer = replace(base, **change)
    expected = fit(toy_network(), ToyTask(), longer)
    if stop is None:
        fit(toy_network(), ToyTask(), base, tmp_path)
    else:
        with pytest.raises(StopError):
            fit(toy_network(), Stopping(stop), base, tmp_path)
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(6), longer, tmp_path, earlier=[base])
    result = fit(toy_network(), ToyTask(), longer, tmp_path, earlier=[base])
    assert same_tensors(tensors_of(result.network), tensors_of(expected.network))
    assert without_times(result.history) == without_times(expected.history)
    again = fit(toy_network(), ToyTask(), longer, tmp_path)
    assert again.begun == again.step == result.step == (49 if "epochs" in change else 40)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rest_of_an_extended_run_has_the_learning_rates_of_the_new_length(tmp_path, schedule):
    base = replace(BASE, schedule=schedule, warmup=0.2, log_every=1)
    longer = replace(base, epochs=8)
    fit(toy_network(), ToyTask(), base, tmp_path)
    result = fit(toy_network(), ToyTask(), longer, tmp_path, earlier=[base])
    rates = {entry["step"]: entry["rate"] for entry in result.history}
    # an entry has the rate of the step after it
    for total, steps in ((28, range(1, 28)), (56, range(29, 57))):
        factor = rate_factor(longer, total)
        assert [rates[step] for step in steps] == pytest.approx(
            [longer.rate * factor(step) for step in steps]
        )
    assert result.step == 56


def test_the_rates_of_an_extended_run_do_not_depend_on_where_it_was_stopped(tmp_path):
    base, longer = replace(BASE, schedule="cosine"), replace(BASE, schedule="cosine", epochs=8)
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
        fit(toy_network(), ToyTask(), base, tmp_path / name)
    whole = fit(toy_network(), ToyTask(), longer, tmp_path / "whole", earlier=[base])
    with pytest.raises(StopError):
        fit(toy_network(), Stopping(13), longer, tmp_path / "stopped", earlier=[base])
    stopped = fit(toy_network(), ToyTask(), longer, tmp_path / "stopped", earlier=[base])
    assert same_tensors(tensors_of(stopped.network), tensors_of(whole.network))


def test_a_length_is_no_other_length_unless_the_run_was_extended(tmp_path):
    fit(toy_network(), ToyTask(), BASE, tmp_path)
    with pytest.raises(unn.DataError, match="option epochs: 4.*option epochs: 7"):
        fit(toy_network(), ToyTask(), replace(BASE, epochs=7), tmp_path)


def test_runs_are_extended_from_the_command_line_and_remember_it(capsys, tmp_path):
    def answered(*arguments):
        assert main([*arguments, "--quiet", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    run, begun = str(tmp_path / "run"), str(tmp_path / "begun")
    constant = ["--schedule", "constant", "--warmup", "0", "--batch", "500"]
    answered("train", "patterns", *SMALL["patterns"], *constant, "--folder", run)
    assert answered("resume", run)["already_finished"]
    assert answered("resume", run, "--epochs", "3")["step"] == 9
    whole = answered("train", "patterns", *SMALL["patterns"], *constant, "--epochs", "3", "--folder", begun)
    assert whole["step"] == 9
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "begun")]
    assert files[0] == files[1]
    opened = runs.open_run(tmp_path / "run")
    assert opened.config["training"]["epochs"] == 3 and opened.lengths == ({"epochs": 1, "steps": 0},)
    assert answered("resume", run)["already_finished"]
    assert answered("resume", run, "--steps", "10")["step"] == 10
    for arguments, words in (
        (["--epochs", "2"], ["10 steps", "6 steps", "no extension"]),
        (["--steps", "0"], ["--steps", "at least 1"]),
        (["--epochs", "0"], ["epochs", "between 1"]),
        (["--epochs", "9", "--steps", "9"], ["not both"]),
    ):
        assert main(["resume", run, *arguments]) == 2
        message = capsys.readouterr().err
        assert all(word in message for word in words), message
    (tmp_path / "run" / "model.safetensors").unlink()
    assert main(["evaluate", run]) == 0


def test_a_finished_run_says_that_nothing_was_trained(capsys, made, tmp_path):
    shutil.copytree(made / "patterns", tmp_path / "run")
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("already finished: 1 steps") and "trained 1" not in first
    assert main(["resume", str(tmp_path / "run"), "--epochs", "3", "--quiet"]) == 0
    assert "trained 2 more steps, 3 in all" in capsys.readouterr().out


def test_the_signature_of_a_configuration_has_every_option():
    for config in (PICTURES(), SUMS()):
        content = runs.folder.json_of("config", asdict(config))
        subjects = {
            line.split(":")[0].removeprefix("option ")
            for line in (*problem_signature(content), *option_signature(config.training))
        }
        options = {name.removeprefix("training.") for name in flattened(content)} - FREE
        # options that checkpoints of earlier versions do not name count where they are used
        assert subjects == options - set(LATER)
        changed = replace(config.training, **{name: value + 0.5 for name, value in LATER.items()})
        assert {f"option {name}: 0.5" for name in LATER} <= set(option_signature(changed))


# -- early stopping ------------------------------------------------------------------------------------------


class Measuring(ToyTask):
    """Measures what it was given, evaluation after evaluation."""

    def __init__(self, values):
        super().__init__()
        self.values = list(values)

    def evaluate(self, network):
        return {"accuracy": self.values.pop(0)}


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "stop", "words"),
    [
        ([NAN] * 9, 3, ["NaN in all of 3 evaluations", "weights are those of the last step"]),
        (
            [0.5, NAN, NAN, NAN, 0.9],
            4,
            ["not improved in 3 evaluations and is NaN now", "weights are those of step 7", "0.5"],
        ),
        (
            [NAN, NAN, 0.5, 0.4, 0.4, 0.4, 0.9],
            6,
            ["not improved in 3 evaluations", "weights are those of step 21"],
        ),
        ([NAN, 0.1, NAN, 0.2, NAN, 0.3, NAN, 0.4, NAN], None, []),
    ],
    ids=str,
)
def test_early_stopping_counts_nan_as_no_improvement_and_says_why_it_stopped(values, stop, words):
    result = fit(toy_network(), Measuring(values), replace(BASE, epochs=9, patience=3))
    assert result.step == 7 * (stop or 9)
    assert bool(result.stopped_early) == (stop is not None) and all(
        word in result.stopped_early for word in words
    )
    assert all(x.isfinite().all() for x in tensors_of(result.network).values())


def test_a_run_that_stopped_early_is_not_extended_beyond_it_as_one_begun_with_that_length_is_not(tmp_path):
    base, longer = replace(BASE, epochs=5, patience=2), replace(BASE, epochs=9, patience=2)
    values = [0.5, 0.4, 0.3]
    fit(toy_network(), Measuring(values), base, tmp_path)
    extended = fit(toy_network(), Measuring([]), longer, tmp_path, earlier=[base])
    begun = fit(toy_network(), Measuring(values), longer)
    assert extended.step == begun.step == 21 and extended.stopped_early == begun.stopped_early
    assert same_tensors(tensors_of(extended.network), tensors_of(begun.network))
