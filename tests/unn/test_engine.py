"""Engines: verdicts, engines that cannot be loaded, options."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
from support.commands import printed, refused

import unn
from factors import Cardinality
from unn import engine as engines
from unn.cli.main import main
from unn.extending import DenoiserOptions, DescentOptions, Engine, SamplingOptions, Verdict


@dataclass(frozen=True)
class NoOptions:
    """No options."""


class Nothing(Engine):
    name, summary, options, answers = "nothing", "serves nothing", NoOptions, ("infer",)

    def refusal(self, graph):
        return "variable 'X' is of no use"

    def build(self, graph, options, sizes):
        raise AssertionError("never built")


def test_a_verdict_is_true_without_a_reason_and_names_queries_that_an_engine_does_not_answer():
    assert Verdict() and not Verdict("because")
    graph = unn.FactorGraph("g")
    assert Nothing().serves(graph, "infer").reason == "variable 'X' is of no use"
    assert "no sample queries" in Nothing().serves(graph, "sample").reason


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_module:Engine", ["'bad'", "ModuleNotFoundError"]), ("json:dumps", ["'bad'", "TypeError"]),
        ("fractions:Fraction", ["'bad'", "Fraction"]), ("test_engine_stub:Nothing", ["name = 'bad'"]),
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_loaded_is_one_line(monkeypatch, capsys, value, words):
    import sys
    import types

    stub = types.ModuleType("test_engine_stub")
    stub.Nothing = Nothing
    monkeypatch.setitem(sys.modules, "test_engine_stub", stub)
    entries = [EntryPoint("bad", value, engines.GROUP), *engines.entry_points(group=engines.GROUP)]
    monkeypatch.setattr(engines, "entry_points", lambda group: entries)
    monkeypatch.setattr("unn.cli.problems.problem_names", lambda: ["sums"])
    message = refused(capsys, "train", "sums", "--engine", "bad")
    assert all(word in message for word in words)
    # the others are not disabled
    assert "denoiser" in printed(capsys, "problems")


@pytest.mark.usefixtures("toys")
def test_unknown_engines_and_options_of_others_are_refused(capsys):
    assert "denoiser" in refused(capsys, "train", "sums", "--engine", "denoisr")
    with pytest.raises(SystemExit):
        main(["train", "sums", "--engine", "vaeac", "--sampler", "ddim"])
    assert "--sampler" in capsys.readouterr().err


def test_sampling_options_out_of_range_are_refused():
    for options, name in (
        (SamplingOptions(steps=0), "steps"),
        (SamplingOptions(tries=0), "tries"),
        (SamplingOptions(at_once=0), "at-once"),
    ):
        with pytest.raises(unn.UnnError, match=name):
            options.check()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (unn.SearchOptions(mode="depht-first"), "mode"),
        (unn.SolverOptions(propagation="twice"), "propagation"),
        (unn.RecurrentOptions(structure="random"), "structure"),
        (DescentOptions(initial="ones"), "initial"),
        (DescentOptions(sweep="backward"), "sweep"),
        (DenoiserOptions(noise="none"), "noise"),
        (DenoiserOptions(sampler="euler"), "sampler"),
    ],
)
def test_values_that_an_option_does_not_have_are_refused_with_those_that_it_has(options, name):
    with pytest.raises(unn.ArgumentError, match=f"here: unknown {name} .*(Known|mean)"):
        options.check("here")


def test_a_model_that_is_made_in_python_checks_its_options():
    g = unn.FactorGraph("row", cell=3, digit=3)
    X = g.variable("X", "cell | digit", unn.Entropy())
    g.factor(Cardinality(X["c d"], each="d", equals=1))
    with pytest.raises(unn.ArgumentError, match="Search: unknown mode 'depht-first'.*depth-first"):
        unn.Search(g, unn.SearchOptions(mode="depht-first"))
    with pytest.raises(unn.ArgumentError, match="Search: option chains"):
        unn.Search(g, unn.SearchOptions(chains=0))
