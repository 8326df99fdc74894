"""Problems that any engine serves: the options of the chosen engine, and runs of earlier versions."""

import json
from dataclasses import field, make_dataclass

import pytest
from support.commands import printed
from support.toy_problems import PatternsProblem

from unn.cli.main import main
from unn.cli.open import open_trained
from unn.errors import UnnError

SMALL = {
    "denoiser": ["--width", "8", "--depth", "2", "--heads", "2", "--sampling-steps", "2"],
    "regressor": ["--width", "8", "--depth", "2", "--heads", "2"],
    "vaeac": ["--width", "8", "--depth", "1"],
}


def test_help_lists_the_options_of_the_chosen_engine(capsys):
    for engine, option in (("denoiser", "--sampling-steps"), ("vaeac", "--width"), ("descent", "--sweep")):
        with pytest.raises(SystemExit):
            main(["train", "patterns", "--engine", engine, "--help"])
        shown = capsys.readouterr().out
        assert option in shown and ("--sampling-steps" in shown) == (engine == "denoiser")


def test_runs_of_versions_without_engines_open_with_the_engine_of_their_process(tmp_path, capsys):
    common = ["--steps", 2, "--batch", 4, "--quiet"]
    for engine, process in (("regressor", "regressor"), ("vaeac", "vaeac"), ("denoiser", "gaussian")):
        folder = tmp_path / engine
        printed(capsys, "train", "sums", "--engine", engine, *SMALL[engine], *common, "--folder", folder)
        path = folder / "config.json"
        content = json.loads(path.read_text())
        del content["config"]["engine"]
        earlier = {
            "heads": 4,
            "embedding": "exchangeable",
            "sampling_steps": 100,
            **content["config"]["model"],
        }
        content["config"]["model"] = {**earlier, "process": process}
        if engine == "denoiser":
            content["config"]["model"] = {**content["config"]["model"], "process": "gaussian"}
        path.write_text(json.dumps(content))
        _, run = open_trained(folder)
        assert run.config.engine == engine


@pytest.mark.parametrize("name", ["model", "engine", "training"])
def test_an_option_with_the_name_of_one_of_every_run_is_refused(name):
    config = make_dataclass("OwnConfig", [(name, str, field(default="file"))], frozen=True)
    problem = type("OwnProblem", (PatternsProblem,), {"config": config})()
    with pytest.raises(UnnError, match=f"option {name!r} of OwnConfig is one of every run"):
        problem.config_for("descent")
