"""Engines: every problem with every engine trains and answers, or is refused with the reason and the engines
that can."""

import json
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Depends, Multilinear
from unn import engine as engines
from unn.cli.main import main
from unn.cli.open import open_trained
from unn.cli.problem import load_problem, problem_names
from unn.extending import (
    CanInfer,
    CanLearn,
    CanSample,
    Engine,
    SamplingOptions,
    Verdict,
    engine_names,
    load_engine,
)

FAST = ("ising", "sorting")
MATRIX = [
    pytest.param(problem, engine, marks=() if problem in FAST else pytest.mark.slow)
    for problem in problem_names()
    for engine in engine_names()
]
SMALL = {
    "denoiser": ["--width", "8", "--depth", "2", "--heads", "2", "--sampling-steps", "2"],
    "regressor": ["--width", "8", "--depth", "2", "--heads", "2"],
    "vaeac": ["--width", "8", "--depth", "1"],
    "descent": ["--iterations", "2"],
    "untied": ["--iterations", "2"],
}
OPTIONS = {"digits": ["--channels", "2"], "sudoku": ["--batch", "4"], "hopfield": ["--units", "6"]}
GIVEN = {
    "boolean": "L0=1,0,1,0,1,1,1,0",
    "digits": "image=test:3",
    "hopfield": "x=0,1,1,0,1,1",
    "ising": None,
    "program": "slope=0.5",
    "sorting": "u=3,1,2,5,4",
    "sudoku": "1..." + "." * 12,
}


def printed(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(capsys, *arguments):
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    _, err = capsys.readouterr()
    assert len(err.strip().splitlines()) == 1
    return err


@pytest.mark.parametrize(("name", "engine"), MATRIX)
def test_every_cell_of_the_matrix_trains_and_answers_or_says_why_not_and_who_can(
    name, engine, tmp_path, capsys
):
    problem = load_problem(name)
    if problem.own_engine:
        # a network of the problem's own is trained in its own tests
        if engine != problem.own_engine:
            assert "network of its own" in refused(capsys, "train", name, "--engine", engine)
        return
    verdict = problem.verdicts()[engine]
    options = [*SMALL[engine], *OPTIONS.get(name, [])]
    train = [
        "train",
        name,
        "--engine",
        engine,
        "--steps",
        2,
        "--batch",
        4,
        "--evaluate-every",
        2,
        *options,
        "--quiet",
    ]
    if not verdict:
        message = refused(capsys, *train, "--folder", tmp_path / "run")
        able = [other for other, each in problem.verdicts().items() if each]
        assert verdict.reason in message and all(other in message for other in able)
        assert not (tmp_path / "run").exists()
        return
    report = json.loads(printed(capsys, *train, "--folder", tmp_path / "run", "--json"))
    assert report["step"] == 2 and torch.tensor(report["loss"]).isfinite()
    figures = json.loads(printed(capsys, "evaluate", tmp_path / "run", "--json"))
    assert figures
    _, run = open_trained(tmp_path / "run")
    assert isinstance(run.network, CanLearn) and isinstance(run.network, CanInfer | CanSample)
    answers = load_engine(engine).answers
    assert ("infer" in answers) == isinstance(run.network, CanInfer)
    assert ("sample" in answers) == isinstance(run.network, CanSample)
    given_text = GIVEN.get(name)
    if "sample" in answers:
        given_options = ["--given", given_text] if given_text else []
        data = json.loads(
            printed(capsys, "sample", tmp_path / "run", *given_options, "--count", 2, "--seed", 0, "--json")
        )
        assert all(len(value) == 2 for value in data["values"].values())
    else:
        assert engine in refused(capsys, "sample", tmp_path / "run")
    if "infer" in answers and given_text:
        want = {"digits": "label", "sudoku": "X"}.get(name)
        if want:
            data = json.loads(
                printed(capsys, "infer", tmp_path / "run", "--given", given_text, "--want", want, "--json")
            )
            assert torch.tensor(data[want]).isfinite().all()
    if "infer" not in answers:
        message = refused(capsys, "infer", tmp_path / "run", "--given", "A=1", "--want", "B")
        assert engine in message and "unn sample" in message


def test_the_matrix_is_printed_with_the_reasons(capsys):
    text = printed(capsys, "problems")
    data = json.loads(printed(capsys, "problems", "--json"))
    assert set(data["matrix"]) == set(problem_names()) and set(data["engines"]) == set(engine_names())
    for name, row in data["matrix"].items():
        assert set(row) == set(engine_names())
        assert row[data["defaults"][name]] is None
        assert all(reason is None or reason in text for reason in row.values())


def test_digits_answer_in_both_directions_with_descent_and_with_the_denoiser():
    matrix = load_problem("digits").verdicts()
    assert matrix["descent"] and matrix["denoiser"]


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
    message = refused(capsys, "train", "sorting", "--engine", "bad")
    assert all(word in message for word in words)
    # the others are not disabled
    assert "denoiser" in printed(capsys, "problems")


def test_unknown_engines_and_options_of_others_are_refused(capsys):
    assert "denoiser" in refused(capsys, "train", "sorting", "--engine", "denoisr")
    with pytest.raises(SystemExit):
        main(["train", "sorting", "--engine", "vaeac", "--sampler", "ddim"])
    assert "--sampler" in capsys.readouterr().err


def test_help_lists_the_options_of_the_chosen_engine(capsys):
    for engine, option in (("denoiser", "--sampling-steps"), ("vaeac", "--width"), ("descent", "--sweep")):
        with pytest.raises(SystemExit):
            main(["train", "digits", "--engine", engine, "--help"])
        shown = capsys.readouterr().out
        assert option in shown and ("--sampling-steps" in shown) == (engine == "denoiser")


def test_runs_of_versions_without_engines_open_with_the_engine_of_their_process(tmp_path, capsys):
    common = ["--steps", 2, "--batch", 4, "--quiet"]
    for engine, process in (("regressor", "regressor"), ("vaeac", "vaeac"), ("denoiser", "gaussian")):
        folder = tmp_path / engine
        printed(capsys, "train", "sorting", "--engine", engine, *SMALL[engine], *common, "--folder", folder)
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


# -- contraction of latent variables -------------------------------------------------------------------------


def chain(lengths):
    """Variables in a chain of multilinear factors over one axis each."""
    g = unn.FactorGraph("chain", **{f"n{k}": size for k, size in enumerate(lengths)})
    variables = [g.variable(f"X{k}", f"n{k}", unn.SquaredNorm()) for k in range(len(lengths))]
    for k in range(len(lengths) - 1):
        W = g.parameter(f"W{k}", f"n{k} n{k + 1}")
        g.factor(Multilinear(variables[k]["i"], W["i j"], variables[k + 1]["j"]))
    return g


def eliminated(matrix, hidden):
    """Edges after eliminating nodes one at a time, by the textbook rule."""
    edges = matrix.copy()
    for node in hidden:
        neighbours = [k for k in range(len(edges)) if edges[node, k] and k not in hidden]
        others = [k for k in range(len(edges)) if edges[node, k]]
        for a in others:
            for b in others:
                edges[a, b] = True
        assert set(neighbours) <= set(others)
    keep = [k for k in range(len(edges)) if k not in hidden]
    return edges[keep][:, keep]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_contraction_gives_the_edges_of_elimination(seed, count):
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("random", n=3)
    variables = [g.variable(f"X{k}", "n", unn.SquaredNorm()) for k in range(count)]
    for k, one in enumerate(variables):
        for other in variables[k + 1 :]:
            kind = int(torch.randint(3, (), generator=generator))
            if kind == 1:
                g.factor(Depends(one["i"], other["i"]))
            elif kind == 2:
                g.factor(Depends(one["i"], other["j"], ordered="i j"))
    hidden = [f"X{k}" for k in range(count) if int(torch.randint(2, (), generator=generator)) and k]
    contracted = unn.contract_latents(g, [v.name for v in variables if v.name not in hidden])
    whole = g.adjacency()
    nodes = [start + k for name, start in whole.starts.items() if name in hidden for k in range(3)]
    expected = eliminated(whole.matrix.toarray().astype(bool), nodes)
    assert (contracted.adjacency().matrix.toarray().astype(bool) == expected).all()
    assert list(contracted.variables) == [name for name in g.variables if name not in hidden]


def test_contraction_of_nothing_is_the_graph_and_unknown_names_are_refused():
    g = chain([2, 3, 4])
    assert unn.contract_latents(g, ["X0", "X1", "X2"]) is g
    with pytest.raises(unn.DeclarationError, match="X3"):
        unn.contract_latents(g, ["X0", "X3"])
    with pytest.raises(unn.DeclarationError, match="no variable"):
        unn.contract_latents(g, [])
    ends = unn.contract_latents(g, ["X0", "X2"])
    assert ends.adjacency().matrix.toarray().all()


# -- coordinate descent as a model ---------------------------------------------------------------------------


def test_a_descent_model_learns_each_direction_of_a_linear_map():
    from unn.extending import DescentOptions

    torch.manual_seed(0)
    g = unn.FactorGraph("line", n=2, m=2)
    x, y = g.variable("x", "n", unn.SquaredNorm()), g.variable("y", "m", unn.SquaredNorm())
    W = g.parameter("W", "m n")
    g.factor(Multilinear(y["i"], W["i j"], x["j"]))
    # a rotation is the inverse of its transpose, so that both directions have the same weights
    angle = torch.tensor(0.7)
    R = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    data = torch.randn(256, 2)
    values = {"x": data, "y": data @ R.T}
    model = unn.DescentModel(g, DescentOptions(iterations=1))

    def loss(model, batch):
        every = torch.ones(1, 1, dtype=torch.bool)
        return model.loss(batch, {"x": every}) + model.loss(batch, {"y": every})

    unn.fit(model, values, steps=300, rate=0.05, loss=loss)
    torch.testing.assert_close(g.W.detach(), R, atol=0.02, rtol=0)
    forward = model.infer_values({"x": data}, 256, {})["y"]
    reverse = model.infer_values({"y": values["y"]}, 256, {})["x"]
    torch.testing.assert_close(forward, values["y"], atol=0.1, rtol=0)
    torch.testing.assert_close(reverse, data, atol=0.1, rtol=0)


@pytest.mark.parametrize("observed", ["nothing", "some", "all"])
def test_the_loss_of_a_descent_model_is_the_fenchel_young_loss_of_what_is_not_observed(observed):
    from unn.extending import DescentOptions

    torch.manual_seed(1)
    g = unn.FactorGraph("mlp", pixel=4, hidden=5, label=3)
    X = g.variable("X", "pixel", unn.SignedEntropy())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel")["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden")["c h"], H["h"]))
    model = unn.DescentModel(g, DescentOptions(iterations=2))
    labels = torch.eye(3)[[0, 2, 1]]
    values = {"X": torch.rand(3, 4) * 2 - 1, "Y": labels}
    every = torch.ones(1, 4, dtype=torch.bool)
    if observed == "all":
        assert model.loss(values, {"X": every, "Y": torch.ones(1, dtype=torch.bool)}).item() == 0
        return
    if observed == "nothing":
        loss = model.loss(values, {"X": every})
        scores = model.unrolled(["X"], [], ["Y"]).preactivations(values["X"])[0]
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, labels.argmax(1)))
        return
    mask = torch.tensor([[True, False, True, True]]).expand(3, 4)
    loss = model.loss(values, {"X": mask, "Y": torch.ones(1, dtype=torch.bool)})
    network = model.unrolled(["Y"], ["X"], [])
    (scores,) = network.preactivations(labels, unn.Partial(values["X"], mask))
    expected = unn.SignedEntropy().loss(scores[:, 1:2], values["X"][:, 1:2]).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert g.W.grad.abs().sum() > 0


def test_the_answer_of_a_descent_model_to_one_query_is_its_row_in_a_batch():
    from unn.extending import DescentOptions

    torch.manual_seed(2)
    g = unn.FactorGraph("ring", n=6)
    X = g.variable("X", "n", unn.BinaryEntropy())
    g.factor(Multilinear(g.parameter("w", "", init="ones")[""], X["i"], X["i+1"]))
    model = unn.DescentModel(g, DescentOptions(iterations=3))
    x, mask = torch.rand(5, 6).round(), torch.rand(5, 6) < 0.5
    together = model.infer_values({"X": unn.Partial(x, mask)}, 5, {})["X"]
    for k in range(5):
        alone = model.infer_values({"X": unn.Partial(x[k : k + 1], mask[k : k + 1])}, 1, {})["X"]
        torch.testing.assert_close(alone[0], together[k])
    assert model.infer_values({}, 4, {})["X"].shape == (4, 6)


def test_sampling_options_out_of_range_are_refused():
    for options, name in (
        (SamplingOptions(steps=0), "steps"),
        (SamplingOptions(tries=0), "tries"),
        (SamplingOptions(at_once=0), "at-once"),
    ):
        with pytest.raises(unn.UnnError, match=name):
            options.check()
