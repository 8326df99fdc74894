"""Engines of other packages on the command line: without parameters, with faults, with partial evidence."""

import json
import sys
import types
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch

from unn import engine as engines
from unn.cli.main import main
from unn.extending import ConditionalModel, Engine, Frames

SMALL = ["--units", "6", "--patterns", "3"]


@dataclass(frozen=True)
class Options:
    """Options.

    Attributes:
        stored: Number of stored examples.
    """

    stored: int = 300


class Memory(ConditionalModel):
    """The nearest stored example in the given entries; it has no parameters."""

    def __init__(self, graph, options, sizes):
        super().__init__(Frames(graph))
        self.prepared_examples = options.stored
        self.register_buffer("rows", torch.zeros(options.stored, self.frames.at(**sizes).numbers))
        self.register_buffer("received", torch.tensor(0))

    def prepare(self, values, **sizes):
        super().prepare(values, **sizes)
        rows = self.example(values, {}, **sizes)[0]
        self.received.fill_(len(rows))
        self.rows.copy_(rows[torch.arange(len(self.rows)) % len(rows)])

    def drawing(self, options, trace):
        def draw(batch, generators):
            squares = ((batch.rows[:, None] - self.rows) ** 2 * batch.numbers[:, None]).sum(2)
            return torch.where(batch.numbers, batch.rows, self.rows[squares.argmin(1)])

        return draw


class Memories(Engine):
    name, summary, options, answers = "memory", "the nearest example", Options, ("sample",)

    def refusal(self, graph):
        return ""

    def build(self, graph, options, sizes):
        return Memory(graph, options, sizes)


class Raising(Memories):
    name = "raising"

    def refusal(self, graph):
        raise KeyError("boom")


class Numbers(Memories):
    name = "numbers"

    def build(self, graph, options, sizes):
        return 3


@dataclass
class Changing:
    """Options that are not frozen."""

    stored: int = 3


@dataclass(frozen=True)
class Lacking:
    """Options without a default."""

    stored: int


class Unfrozen(Memories):
    name, options = "unfrozen", Changing


class Undefined(Memories):
    name, options = "undefined", Lacking


class Wordless(Memories):
    name, answers = "wordless", 5


@pytest.fixture(autouse=True)
def _engines(monkeypatch):
    module = types.ModuleType("engines_of_others")
    for engine in (Memories, Raising, Numbers, Unfrozen, Undefined, Wordless):
        setattr(module, engine.__name__, engine)
    monkeypatch.setitem(sys.modules, "engines_of_others", module)
    names = {"memory": "Memories", "raising": "Raising", "numbers": "Numbers"}
    names |= {"unfrozen": "Unfrozen", "undefined": "Undefined", "wordless": "Wordless", "descent": "Memories"}
    own = [EntryPoint(name, f"engines_of_others:{value}", engines.GROUP) for name, value in names.items()]
    entries = [*own, *engines.entry_points(group=engines.GROUP)]
    monkeypatch.setattr(engines, "entry_points", lambda group: entries)
    # one problem is enough to see what an engine of others does to the list
    monkeypatch.setattr("unn.cli.problems.problem_names", lambda: ["hopfield"])


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def trained(capsys, folder, *options):
    code, _, err = run(
        capsys, "train", "hopfield", "--engine", "memory", *SMALL, *options, "--folder", folder, "--quiet"
    )
    assert code == 0, err
    return folder


def test_an_engine_without_parameters_is_prepared_evaluated_and_sampled(capsys, tmp_path):
    folder = trained(capsys, tmp_path / "run")
    code, out, err = run(capsys, "evaluate", folder, "--json")
    assert code == 0, err
    figures = next(iter(json.loads(out).values()))
    assert figures["recalled_half_given"] > 0.5 and figures["stored"] == 1
    code, out, _ = run(capsys, "sample", folder, "--count", 2, "--seed", 0)
    assert code == 0
    code, out, _ = run(capsys, "resume", folder, "--quiet")
    assert code == 0 and "has nothing to train" in out


@pytest.mark.parametrize(("options", "count"), [(["--examples", "30"], 30), ([], 300)])
def test_a_model_is_prepared_by_the_training_set_or_as_many_examples_of_the_stream_as_it_says(
    capsys, tmp_path, options, count
):
    from safetensors.torch import load_file

    folder = trained(capsys, tmp_path / "run", *options)
    assert int(load_file(folder / "model.safetensors")["received"]) == count


def test_entries_marked_by_a_question_mark_are_inferred_and_the_others_kept(capsys, tmp_path):
    folder = trained(capsys, tmp_path / "run")
    given = "1,?,0,?,?,1"
    code, out, err = run(capsys, "sample", folder, "--given", f"x={given}", "--count", 3, "--json")
    assert code == 0, err
    for row in json.loads(out)["values"]["x"]:
        assert [row[0], row[2], row[5]] == [1, 0, 1] and set(row) <= {0, 1}


def test_a_trace_of_samples_in_one_step_is_refused_with_the_engine(capsys, tmp_path):
    folder = trained(capsys, tmp_path / "run")
    code, _, err = run(capsys, "sample", folder, "--trace", tmp_path / "f.png")
    assert code == 2 and "--trace" in err and "'memory'" in err
    assert not (tmp_path / "f.png").exists()


def test_an_engine_whose_refusal_fails_does_not_disable_the_others(capsys, tmp_path):
    code, out, _ = run(capsys, "problems")
    assert code == 0 and "'raising'" in out and "boom" in out
    code, _, err = run(capsys, "train", "hopfield", "--engine", "raising", *SMALL)
    assert code == 2 and "boom" in err and "denoiser" in err and len(err.strip().splitlines()) == 1


def test_a_build_that_returns_no_model_is_one_line_and_makes_no_folder(capsys, tmp_path):
    folder = tmp_path / "run"
    code, _, err = run(capsys, "train", "hopfield", "--engine", "numbers", *SMALL, "--folder", folder)
    assert code == 2 and "'numbers'" in err and "int" in err and len(err.strip().splitlines()) == 1
    assert not folder.exists()


@pytest.mark.parametrize(
    ("engine", "fact"), [("unfrozen", "not frozen"), ("undefined", "'stored'"), ("wordless", "answers")]
)
def test_a_malformed_engine_is_one_line_and_does_not_disable_the_others(capsys, engine, fact):
    code, _, err = run(capsys, "train", "hopfield", "--engine", engine, *SMALL)
    assert code == 2 and fact in err and repr(engine) in err and len(err.strip().splitlines()) == 1
    code, out, _ = run(capsys, "problems")
    assert code == 0 and "denoiser" in out


def test_an_engine_of_the_package_is_not_replaced_by_another_of_the_same_name():
    assert engines.load_engine("descent").summary != Memories.summary


def test_a_value_of_several_entries_is_given_whole_or_not_at_all(capsys, tmp_path):
    options = ["--engine", "memory", "--rows", "2", "--columns", "2", "--rank", "2", "--quiet"]
    code, _, err = run(capsys, "train", "hierarchical", *options, "--folder", tmp_path / "run")
    assert code == 0, err
    code, _, err = run(capsys, "sample", tmp_path / "run", "--given", "K=1,?")
    assert code == 2 and "K=1,?" in err and "all of them or none" in err


def test_finished_runs_without_checkpoints_are_not_trained_again(capsys, tmp_path):
    import shutil

    folder = tmp_path / "run"
    small = ["--units", "4", "--patterns", "2", "--steps", "2", "--batch", "4", "--quiet"]
    code, _, err = run(capsys, "train", "hopfield", *small, "--folder", folder)
    assert code == 0, err
    before = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    code, _, err = run(capsys, "resume", folder, "--quiet")
    assert code == 2 and "no checkpoint" in err
    assert (folder / "model.safetensors").read_bytes() == before


def test_measured_defaults_of_unknown_options_are_refused():
    import unn
    from problems.hopfield.problem import HopfieldProblem
    from unn.cli.run_options import run_config
    from unn.extending import Defaults, DenoiserOptions

    class Misspelt(HopfieldProblem):
        defaults = {"denoiser": Defaults(DenoiserOptions(), problem={"unit": 3})}

    with pytest.raises(unn.UnnError, match="'unit'.*Did you mean 'units'"):
        run_config(Misspelt, "denoiser")
