"""Run folders: read as they were written; the right error, what was wrong and what to do."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.helpers import mlp, says

import unn
from factors import Directed
from unn import runs

# -- run folders ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """A configuration."""

    epochs: int = 3
    rate: float = 0.1


def read_options(folder, kind=Options):
    return runs.config_from_json(kind, runs.open_run(folder).config, str(folder / "config.json"))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    runs.create_run(folder, "toy", Options(epochs=5), {"size": 4})
    runs.save_weights(folder, mlp())
    return folder


def test_a_run_folder_is_read_as_it_was_written(run):
    opened = runs.open_run(run)
    assert (opened.problem, opened.config, opened.facts) == ("toy", {"epochs": 5, "rate": 0.1}, {"size": 4})
    assert read_options(run) == Options(epochs=5)
    g = mlp()
    g.W.data.zero_()
    runs.load_weights(run, g)
    assert torch.equal(g.W, mlp().W)


def test_a_missing_run_folder_is_named(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(
            unn.DataError, match=says(str(folder), "no run folder", "config.json", "unn train")
        ):
            runs.open_run(folder)


WHOLE = {"problem": "toy", "config": {"epochs": 5}, "facts": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(WHOLE)[:30],
        json.dumps(WHOLE) + "x",
        "null",
        "[]",
        "3",
        '"toy"',
        "{}",
        json.dumps({"problem": "toy", "config": {}}),
        json.dumps({**WHOLE, "config": None}),
        json.dumps({**WHOLE, "config": 5}),
        json.dumps({**WHOLE, "config": []}),
        json.dumps({**WHOLE, "facts": None}),
        "[" * 100_000,
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_a_corrupt_configuration_is_named(run, text):
    (run / "config.json").write_text(text)
    with pytest.raises(unn.DataError, match=says(str(run / "config.json"))):
        read_options(run)


def test_a_configuration_of_bytes_is_corrupt(run):
    (run / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(unn.DataError, match=says("config.json", "corrupt")):
        read_options(run)


def test_an_unknown_option_is_named_with_the_closest_known_one(run):
    (run / "config.json").write_text(json.dumps({**WHOLE, "config": {"epoch": 5}}))
    with pytest.raises(
        unn.DataError,
        match=says("config.json", "unknown option 'epoch'", "another version", "Did you mean 'epochs'"),
    ):
        read_options(run)


def test_a_missing_option_without_default_is_an_error(run):
    @dataclass(frozen=True)
    class Needed:
        epochs: int
        width: int

    with pytest.raises(unn.DataError, match=says("config.json")):
        read_options(run, Needed)


def test_a_folder_that_holds_a_run_is_not_written_into(run, tmp_path):
    before = (run / "config.json").read_bytes()
    with pytest.raises(unn.DataError, match=says(str(run), "holds a run already", "--folder")):
        runs.create_run(run, "toy", Options(), {})
    assert (run / "config.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(unn.DataError, match=says(str(folder), "cannot be made")):
            runs.create_run(folder, "toy", Options(), {})


@pytest.mark.parametrize("keep", [0, 4, 9, 60, 0.5, -1])
def test_truncated_weights_are_named_and_change_nothing(run, keep):
    path = run / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    check_weights(run, mlp(), "truncated or corrupt", "model.safetensors")


def test_every_flipped_bit_in_the_weights_is_noticed_and_changes_nothing(run):
    path = run / "model.safetensors"
    content = path.read_bytes()
    g = mlp()
    # all of the length and the names, every 13th bit after them, and all of the last number
    places = [
        *range(0, 8 * 100),
        *range(8 * 100, 8 * len(content), 13),
        *range(8 * len(content) - 64, 8 * len(content)),
    ]
    for place in places:
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        check_weights(run, g, "model.safetensors", "corrupt")
    path.write_bytes(content)
    runs.load_weights(run, g)


def test_weights_that_were_written_without_a_checksum_still_load(run):
    from safetensors.torch import save_file

    g = mlp()
    g.W.data.fill_(0.5)
    save_file(
        {name: x.detach().clone() for name, x in runs.named_tensors(g).items()}, run / "model.safetensors"
    )
    loaded = mlp()
    runs.load_weights(run, loaded)
    assert torch.equal(loaded.W, g.W)


def test_the_metadata_of_weights_are_a_checksum_and_nothing_else(run):
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", "pt") as file:
        ((name, value),) = file.metadata().items()
    assert name == "sha256" and len(value) == 64


@pytest.mark.parametrize("content", [b"junk" * 50, b"\0" * 100, b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"])
def test_corrupt_weights_are_named_and_change_nothing(run, content):
    (run / "model.safetensors").write_bytes(content)
    check_weights(run, mlp(), "model.safetensors")


def test_missing_weights_are_named(run):
    (run / "model.safetensors").unlink()
    check_weights(run, mlp(), str(run), "model.safetensors", "not finished")


def test_weights_of_another_graph_are_refused_and_change_nothing(run):
    g = mlp()
    g.parameter("Q", "pixel")
    check_weights(run, g, "lacks 'Q'", "another graph")
    smaller = unn.FactorGraph("smaller", hidden=5, pixel=4)
    smaller.parameter("W", "hidden pixel")
    check_weights(run, smaller, "'V'", "another graph")
    narrow = unn.FactorGraph("narrow", hidden=5, pixel=4, label=2)
    narrow.parameter("W", "hidden pixel")
    narrow.parameter("V", "label hidden")
    check_weights(run, narrow, "'V'", "(3, 5)", "(2, 5)")


def test_weights_with_the_metadata_of_other_packages_are_read_without_a_checksum(run):
    from safetensors.torch import save_file

    g = mlp()
    g.W.data.fill_(0.5)
    tensors = {name: x.detach().clone() for name, x in runs.named_tensors(g).items()}
    save_file(tensors, run / "model.safetensors", metadata={"format": "pt"})
    loaded = mlp()
    runs.load_weights(run, loaded)
    assert torch.equal(loaded.W, g.W)
    save_file(tensors, run / "model.safetensors", metadata={"sha257": "0" * 64})
    check_weights(run, mlp(), "model.safetensors", "corrupt")


def test_whole_numbers_are_not_read_as_weights(run):
    from safetensors.torch import save_file

    tensors = {name: torch.ones_like(x, dtype=torch.int8) for name, x in runs.named_tensors(mlp()).items()}
    save_file(tensors, run / "model.safetensors")
    check_weights(run, mlp(), "'W'", "int8", "float")


def test_modules_with_tensors_that_cannot_be_written_to_are_unchanged(tmp_path):
    def build():
        module = torch.nn.Linear(2, 2)
        module.register_buffer("repeated", torch.zeros(1).expand(4))
        return module

    runs.save_weights(tmp_path, build())
    check_weights(tmp_path, build(), "'repeated'", "expanded")


def check_weights(folder, module, *words):
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(unn.DataError, match=says(*words)):
        runs.load_weights(folder, module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_constants_that_share_memory_are_saved_and_loaded(tmp_path):
    def build(values):
        g = unn.FactorGraph("g")
        g.constant("A", "n", values)
        g.constant("B", "m", values[:2])
        return g

    runs.save_weights(tmp_path, build(torch.arange(4.0)))
    loaded = build(torch.zeros(4))
    runs.load_weights(tmp_path, loaded)
    assert loaded.A.tolist() == [0, 1, 2, 3] and loaded.B.tolist() == [0, 1]


def test_buffers_that_are_not_saved_are_not_asked_for(tmp_path):
    def build():
        g = mlp()
        module = torch.nn.Linear(4, 4)
        module.register_buffer("positions", torch.arange(4.0), persistent=False)
        g.factor(Directed(module, g.variable("Z", "pixel", unn.SquaredNorm()), g["X"]))
        return g

    runs.save_weights(tmp_path, build())
    runs.load_weights(tmp_path, build())


@pytest.mark.parametrize(
    "value", [{1, 2}, frozenset({3}), np.int64(5), object()], ids=["set", "frozenset", "numpy", "object"]
)
def test_what_json_cannot_hold_is_refused_before_training(tmp_path, value):
    @dataclass(frozen=True)
    class Odd:
        value: object

    with pytest.raises(unn.ArgumentError, match=says("config")):
        runs.create_run(tmp_path / "config", "toy", Odd(value), {})
    with pytest.raises(unn.ArgumentError, match=says("facts", "JSON")):
        runs.create_run(tmp_path / "facts", "toy", Options(), {"value": value})
    assert not (tmp_path / "facts").exists() and not (tmp_path / "config").exists()


def test_facts_are_what_is_read_back(tmp_path):
    run = runs.create_run(tmp_path, "toy", Options(), {"shape": (8, 8)})
    assert run.facts == {"shape": [8, 8]} == runs.open_run(tmp_path).facts


def test_checkpoints_with_earlier_names_of_tensors_in_blocks_belong_to_the_same_graph(tmp_path):
    start = "tensor denoiser.blocks"
    earlier = (
        "axis n: 3",
        f"{start}.0.told.weight: (8, 8)",
        f"{start}.11.everyone.bias: (8,)",
        "tensor told.x: (1,)",
    )
    now = (
        "axis n: 3",
        f"{start}.0.conditioning.weight: (8, 8)",
        f"{start}.11.global_token.bias: (8,)",
        "tensor told.x: (1,)",
    )
    runs.write_checkpoint(tmp_path, runs.Checkpoint(5, earlier, {"x": torch.ones(2)}), keep=1)
    checkpoint, problems = runs.newest_checkpoint(tmp_path, now)
    assert checkpoint is not None and checkpoint.step == 5 and checkpoint.signature == now and not problems
