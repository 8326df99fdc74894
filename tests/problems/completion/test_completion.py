"""Sequence completion: the data of the paper, the network of the paper, and answers on the command line."""

import json
import math
from itertools import combinations

import pytest
import torch
from support.commands import printed, refused
from support.helpers import says

import unn
from problems.completion.data import LENGTHS, masks_of, most_missing, sequences, values_of
from problems.completion.graph import SYMBOLS, declare, embedded, positions
from problems.completion.measures import complete
from problems.completion.problem import CompletionProblem
from unn.errors import ObservationError
from unn.extending import DescentOptions, open_trained

D = torch.float64


def test_there_are_as_many_instances_as_in_the_paper():
    total = sum(sequences(n, "sequences").held_out.numel() for n in LENGTHS)
    assert total == 785_142


def instances(data, test):
    tokens, missing = (x.tolist() for x in data.all_instances(test))
    return {(tuple(t), tuple(m)) for t, m in zip(tokens, missing, strict=True)}


@pytest.mark.parametrize("length", [8, 11, 24])
def test_sequences_are_consecutive_and_all_choices_of_missing_tokens_occur_once(length):
    data = sequences(length, "sequences")
    steps = data.tokens.diff(dim=1)
    assert ((steps == 1).all(1) | (steps == -1).all(1)).all()
    assert len(data.tokens) == 2 * (SYMBOLS - length + 1) == len(data.tokens.unique(dim=0))
    assert int(data.tokens.min()) == 0 and int(data.tokens.max()) == SYMBOLS - 1
    most = math.ceil(length / 10)
    assert most_missing(length) == most
    expected = {c for m in range(1, most + 1) for c in combinations(range(length), m)}
    assert {tuple(row.nonzero()[:, 0].tolist()) for row in data.missing} == expected
    assert len(data.missing) == len(expected)


@pytest.mark.parametrize("length", [8, 24])
def test_a_sequence_that_is_held_out_occurs_in_no_training_instance(length):
    data = sequences(length, "sequences")
    train, _ = data.all_instances(test=False)
    test, _ = data.all_instances(test=True)
    assert not {tuple(row) for row in train.tolist()} & {tuple(row) for row in test.tolist()}
    assert len(train) + len(test) == data.held_out.numel()
    assert 0.08 < len(test) / data.held_out.numel() < 0.12


def test_with_the_split_of_the_paper_most_test_sequences_occur_in_training_but_no_instance_does():
    data = sequences(16, "instances")
    train, test = (instances(data, test) for test in (False, True))
    assert not train & test
    assert len(test) == round(0.1 * data.held_out.numel())
    seen = {tokens for tokens, _ in train}
    assert all(tokens in seen for tokens, _ in test)


def test_drawn_instances_are_of_their_set_and_determined_by_the_seed():
    data = sequences(8, "sequences")
    held_out = {tuple(row) for row in data.all_instances(test=True)[0].tolist()}
    for test in (False, True):
        tokens, missing = data.draw(200, test, torch.Generator().manual_seed(0))
        again, _ = data.draw(200, test, torch.Generator().manual_seed(0))
        assert torch.equal(tokens, again) and missing.any(1).all()
        assert all((tuple(row) in held_out) == test for row in tokens.tolist())


@pytest.mark.parametrize("features", [8, 7])
def test_positions_are_sines_and_cosines(features):
    P = positions(5, features)
    assert P.shape == (5, features)
    assert not P[0, 0::2].any() and (P[0, 1::2] == 1).all()
    torch.testing.assert_close(P[3, 0], torch.tensor(3.0).sin())
    torch.testing.assert_close(P[3, 1], torch.tensor(3.0).cos())


@pytest.mark.parametrize(("held", "rounds"), [(False, 1), (True, 1), (True, 3)])
def test_rounds_of_the_engine_are_the_passes_of_the_paper(held, rounds):
    """Embeddings, zero where tokens are missing; Q K V S H S V K Q and the missing rows of X; logits.

    Rounds after the first begin with X, to whose missing rows the estimated tokens contribute.
    """
    torch.manual_seed(0)
    d, n = 8, 9
    g = declare(d, 1, bounded=False).double()
    with torch.no_grad():
        for p in g.parameters():
            p.mul_(0.5)
    model = unn.DescentModel(g, DescentOptions(iterations=rounds), embedded if held else None).eval()
    tokens = torch.arange(n)[None] + torch.tensor([[3], [20]])
    missing = torch.zeros(2, n, dtype=torch.bool)
    missing[0, 4] = missing[1, 0] = True
    values = {name: x.to(D) for name, x in values_of(tokens, d).items()}
    known = (~missing)[..., None]
    seen = unn.Partial(values["token"], known.expand_as(values["token"]))
    network, inputs = model.query({"P": values["P"]}, {"token": seen})
    (scores,) = network.preactivations(*inputs)

    X, P = torch.where(known, g.embedding[tokens], 0), values["P"]
    S = H = Q = K = V = logits = torch.zeros(1, dtype=D)
    for index in range(rounds):
        if index:
            message = Q @ g.W_Q + K @ g.W_K + V @ g.W_V + torch.softmax(logits, -1) @ g.embedding
            X = torch.where(known, X, message)
        Z = X + P
        Q = Z @ g.W_Q.T + (S @ K if index else 0)
        K = Z @ g.W_K.T + (S.mT @ Q if index else 0)
        V = Z @ g.W_V.T + (S.mT @ H if index else 0)
        S = torch.softmax((Q @ K.mT + (H @ V.mT if index else 0)) / d**0.5, -1)
        H = S @ V
        S = torch.softmax((Q @ K.mT + H @ V.mT) / d**0.5, -1)
        V = Z @ g.W_V.T + S.mT @ H
        K = Z @ g.W_K.T + S.mT @ Q
        Q = Z @ g.W_Q.T + S @ K
        message = Q @ g.W_Q + K @ g.W_K + V @ g.W_V
        if index:
            message = message + torch.softmax(logits, -1) @ g.embedding
        X = torch.where(known, X, message)
        logits = X @ g.embedding.T
    torch.testing.assert_close(scores[missing], logits[missing], rtol=1e-9, atol=1e-9)
    given = {"P": values["P"], "token": seen}
    answer = model.infer_values(given, 2, {})["token"]
    torch.testing.assert_close(answer[missing], torch.softmax(logits, -1)[missing], rtol=1e-9, atol=1e-9)


def test_embeddings_that_are_observed_are_trained_through_and_have_no_loss():
    torch.manual_seed(0)
    model = unn.DescentModel(declare(8, 1, bounded=False), DescentOptions(iterations=2), embedded)
    tokens, missing = sequences(8, "sequences").draw(5, False, torch.Generator().manual_seed(0))
    loss = model.loss(values_of(tokens, 8), masks_of(missing))
    network, inputs = model.query(
        {"P": values_of(tokens, 8)["P"]},
        {"token": unn.Partial(values_of(tokens, 8)["token"], ~missing[..., None].expand(-1, -1, SYMBOLS))},
    )
    (scores,) = network.preactivations(*inputs)
    expected = torch.nn.functional.cross_entropy(scores[missing], tokens[missing])
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, [model.graph.embedding])
    # numbers that only occur as evidence have gradients through it
    assert (gradient.abs().sum(1) > 0).all()


@pytest.mark.parametrize("complete_tokens", [False, True])
def test_embeddings_of_observed_tokens_do_not_move_and_given_ones_are_taken(complete_tokens):
    torch.manual_seed(0)
    model = unn.DescentModel(declare(8, 1, bounded=False), DescentOptions(iterations=3), embedded)
    tokens, missing = sequences(8, "sequences").draw(2, False, torch.Generator().manual_seed(0))
    values = values_of(tokens, 8)
    known = torch.ones_like(missing) if complete_tokens else ~missing
    token = unn.Partial(
        values["token"].masked_fill(~known[..., None], torch.nan), known[..., None].expand(-1, -1, SYMBOLS)
    )
    given = {"P": values["P"], "token": values["token"] if complete_tokens else token}
    x = model.infer_values(given, 2, {})["X"]
    torch.testing.assert_close(x[known], model.graph.embedding[tokens][known])
    other = torch.randn(2, 8, 8)
    assert torch.equal(model.infer_values({**given, "X": other}, 2, {})["X"], other)


def test_the_energy_of_bounded_attention_has_a_minimum_and_that_of_the_paper_has_none():
    assert declare(8, 2, bounded=True).boundedness(given=["P"]).bounded
    assert declare(8, 2, bounded=False).boundedness(given=["P"]).bounded is False


def test_padding_by_other_sequences_of_a_batch_changes_nothing():
    model = unn.DescentModel(declare(8, 1, bounded=True), DescentOptions(iterations=2))
    tokens, missing = sequences(10, "sequences").all_instances(test=True)
    together = complete(model, tokens[:6], missing[:6], 8, 2)
    alone = torch.cat([complete(model, tokens[k : k + 1], missing[k : k + 1], 8, 2) for k in range(6)])
    assert torch.equal(together, alone)


def test_masks_and_values_belong_together():
    tokens, missing = sequences(8, "sequences").draw(3, False, torch.Generator().manual_seed(0))
    values, masks = values_of(tokens, 6), masks_of(missing)
    assert values["token"].shape == (3, 8, SYMBOLS) and values["P"].shape == (3, 8, 6)
    assert torch.equal(values["token"].argmax(-1), tokens)
    assert masks["token"].shape == (3, 8) and masks["P"].all()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["bounded", "undirected"])
def test_a_short_training_is_far_better_than_chance(attention, tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--features", 32, "--steps", 1200, "--evaluate-every", 1200, "--attention", attention]
    printed(capsys, "train", "completion", *options, "--threads", 1, "--folder", run, "--quiet")
    figures = json.loads(printed(capsys, "evaluate", run, "--json"))["1"]
    assert figures["accuracy"] > 0.2
    assert figures["shortest"] > 0.2
    assert (run / "plots" / "attention.png").stat().st_size > 1000
    text = printed(capsys, "infer", run, "--given", "token=30 31 32 _ 34 35 36 37 38", "--want", "token")
    assert "token: 30 31 32" in text and "34 35 36 37 38" in text


def test_runs_from_before_embeddings_could_be_held_update_them(tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--features", 4, "--steps", 1, "--evaluate-every", 1, "--batch", 2]
    printed(capsys, "train", "completion", *options, "--folder", run, "--quiet")
    assert open_trained(run)[1].network.derived is embedded
    content = json.loads((run / "config.json").read_text())
    assert content["config"].pop("embeddings") == "held"
    (run / "config.json").write_text(json.dumps(content))
    assert open_trained(run)[1].network.derived is None


def test_bad_sequences_on_the_command_line_are_refused_with_the_item(tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--features", 4, "--steps", 1, "--evaluate-every", 1, "--batch", 2]
    printed(capsys, "train", "completion", *options, "--folder", run, "--quiet")
    for text, parts in (
        ("token=1 2 x", ["item 3", "'x'"]),
        ("token=1 65", ["item 2", "'65'"]),
        ("token=0 1", ["item 1", "'0'"]),
        ("token= ", ["no numbers"]),
    ):
        message = refused(capsys, "infer", run, "--given", text, "--want", "token")
        assert all(part in message for part in parts)
    printed(capsys, "infer", run, "--given", "token=_", "--want", "token")
    heads = ["--features", 6, "--attention-heads", 4]
    assert "attention_heads" in refused(capsys, "train", "completion", *heads)


def test_evidence_for_unknown_symbols_is_refused():
    problem = CompletionProblem()
    with pytest.raises(ObservationError, match=says("item 1", "½")):
        problem.read_value(None, "token", "½")
