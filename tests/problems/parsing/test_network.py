"""The parsing problem: training, encoders, vocabularies, options; no sentence is left out; resuming."""

import io
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from problems.parsing.config import ParsingConfig, check_config
from problems.parsing.conllu.treebank import read_conllu, read_tokens
from problems.parsing.data import SentenceExamples, Treebanks, by_length
from problems.parsing.network import ORDER
from problems.parsing.output import batches, parse_sentences
from problems.parsing.problem import ParsingProblem
from problems.parsing.toy import generated_treebank
from problems.parsing.train import ParsingTask, build, evaluate, labels_of_run, predict, reader_of_run
from problems.parsing.verb import ParseFile
from problems.parsing.vocabulary import NOTHING, ROOT, SPELLED, UNIVERSAL_TAGS, UNKNOWN, Vocabulary
from unn import runs
from unn.training import TrainingConfig, fit

TINY = ParsingConfig(
    hidden=24,
    width=32,
    dropout=0.0,
    input_dropout=0.1,
    characters=False,
    training=TrainingConfig(epochs=6, batch=10, rate=1e-2, clip=5.0, threads=1),
)
ENCODERS = pytest.mark.parametrize("encoder", ["bilstm", "transformer"])


@pytest.fixture(scope="module")
def language():
    return Treebanks(generated_treebank(200, 0), generated_treebank(40, 1), generated_treebank(20, 2))


def fresh(config, treebanks, seed=0):
    task = ParsingTask(config, treebanks)
    torch.manual_seed(seed)
    return task, build(config, task.facts)


def trained(config, treebanks):
    task, network = fresh(config, treebanks)
    return fit(network, task, config.training)


def tokens(*texts):
    return read_tokens(io.BytesIO("\n".join(texts).encode())).sentences


def chain(n, form="w{}"):
    """A sentence of n words, each attached to the one before."""
    return (
        "".join(
            f"{i}\t{form.format(i)}\t_\tX\t_\t_\t{i - 1}\t{'dep' if i > 1 else 'root'}\t_\t_\n"
            for i in range(1, n + 1)
        )
        + "\n"
    )


def chains(*lengths):
    return read_conllu(io.BytesIO("".join(map(chain, lengths)).encode()), trees=True)


# -- training ------------------------------------------------------------------------------------------------


def best_constant(sentences):
    """The attachment of the best rule that looks at no word: a fixed head, or a fixed distance to it."""
    pairs = [(i, head) for sentence in sentences for i, head in enumerate(sentence.heads, 1)]
    distances = max(sum(head == i + d for i, head in pairs) for d in range(-10, 11))
    return max(distances, *(sum(head == h for _, head in pairs) for h in range(15))) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, 0.1),
        ({"activation": "tanh", "labels": True}, 0.2),
        ({"encoder": "transformer", "activation": "tanh", "tags": True}, 0.4),
    ],
    ids=["bilstm", "bilstm with labels", "transformer"],
)
def test_a_tiny_network_learns_the_generated_language(language, options, more):
    history = trained(replace(TINY, **options), language).history
    assert history[-1]["dev_uas"] > best_constant(language.dev.sentences) + more
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]


def test_training_is_deterministic_under_its_seed(language):
    config = replace(TINY, dropout=0.2, characters=True, training=replace(TINY.training, epochs=1, batch=40))
    runs_of_one_seed = [trained(config, language) for _ in range(2)]
    assert runs_of_one_seed[0].history[-1]["loss"] == runs_of_one_seed[1].history[-1]["loss"]
    first, second = (run.network.state_dict() for run in runs_of_one_seed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = trained(replace(config, training=replace(config.training, seed=1)), language)
    assert other.history[-1]["loss"] != runs_of_one_seed[0].history[-1]["loss"]


class StopError(Exception):
    """Ends a run in the middle of a step."""


class Stopping(ParsingTask):
    """Stops in the loss of one step."""

    at = 0

    def loss(self, network, batch):
        self.at -= 1
        if self.at < 0:
            raise StopError
        return super().loss(network, batch)


def test_a_run_that_was_stopped_ends_with_the_numbers_of_one_that_never_stopped(language, tmp_path):
    config = replace(
        TINY, dropout=0.2, training=replace(TINY.training, epochs=2, batch=50, checkpoint_every=3)
    )
    results = []
    for name, at in (("whole", None), ("stopped", 5)):
        folder = tmp_path / name
        folder.mkdir()
        if at is not None:
            task, network = Stopping(config, language), fresh(config, language)[1]
            task.at = at
            with pytest.raises(StopError):
                fit(network, task, config.training, folder)
        task, network = fresh(config, language, seed=0 if at is None else 7)
        results.append((fit(network, task, config.training, folder), folder))
    (whole, first), (resumed, second) = results
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert whole.step == resumed.step == 8
    drop = [
        [
            {key: value for key, value in entry.items() if key != "seconds"}
            for entry in runs.read_metrics(folder)
        ]
        for _, folder in results
    ]
    assert drop[0] == drop[1]


def test_what_is_measured_is_the_network_with_the_best_attachment(language):
    """With patience, the weights of the best epoch come back."""
    config = replace(
        TINY, training=replace(TINY.training, epochs=5, batch=20, rate=5e-2, schedule="constant", patience=5)
    )
    task, network = fresh(config, language)
    result = fit(network, task, config.training)
    assert task.evaluate(result.network)["dev_uas"] == max(entry["dev_uas"] for entry in result.history)


# -- the loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [False, True])
def test_the_loss_in_parts_of_like_length_is_that_of_the_whole_batch(language, labels):
    config = replace(TINY, labels=labels, input_dropout=0.0, characters=True)
    task, network = fresh(config, language)
    network.double()
    for count in (1, 7, 8, 33):
        batch = task.examples().batch(torch.arange(count), torch.Generator())
        words, lengths, heads, names = batch
        whole = network.loss(words.double(), lengths, heads, names if labels else None)
        parts = task.loss(network, (words.double(), lengths, heads, names))
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(loss, list(network.parameters())) for loss in (whole, parts)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_the_loss_is_that_of_every_sentence_by_itself(language):
    config = replace(TINY, labels=True, input_dropout=0.0, tags=True)
    task, network = fresh(config, language)
    examples = SentenceExamples(
        [*language.dev.sentences[:6], *chains(1, 40, 2).sentences], task.reader, task.labels
    )
    indices = torch.arange(len(examples))
    alone = torch.stack(
        [task.loss(network, examples.batch(indices[k : k + 1], torch.Generator())) for k in indices]
    )
    torch.testing.assert_close(
        task.loss(network, examples.batch(indices, torch.Generator())), alone.mean(), rtol=1e-5, atol=1e-5
    )


# -- encoders ------------------------------------------------------------------------------------------------


@ENCODERS
@pytest.mark.parametrize("characters", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_sentence_alone_is_parsed_as_in_a_padded_batch(language, encoder, characters, layers):
    config = replace(
        TINY, encoder=encoder, characters=characters, tags=True, labels=True, layers=layers, iterations=3
    )
    task, network = fresh(config, language)
    network.eval()
    sentences = [*language.dev.sentences[:5], *tokens("cat", "the cat " * 12)]
    together = task.reader.batch(sentences)
    lengths = torch.tensor([len(sentence.words) for sentence in sentences])
    x, scores = network.scores(together, lengths)
    parse = network.parse(together, lengths)
    for b, (sentence, n) in enumerate(zip(sentences, lengths.tolist(), strict=True)):
        one = task.reader.batch([sentence])
        x_alone, scores_alone = network.scores(one, lengths[b : b + 1])
        torch.testing.assert_close(x[b, : n + 1], x_alone[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scores[b, : n + 1, :n], scores_alone[0], rtol=1e-4, atol=1e-5)
        alone = network.parse(one, lengths[b : b + 1])
        torch.testing.assert_close(parse.marginals[b, : n + 1, :n], alone.marginals[0], rtol=1e-4, atol=1e-5)
        assert (
            (parse.heads[b, n:] == -1).all()
            and not x[b, n + 1 :].any()
            and not parse.marginals[b, :, n:].any()
        )


@ENCODERS
def test_the_representation_of_a_word_depends_on_the_words_around_it(language, encoder):
    task, network = fresh(replace(TINY, encoder=encoder), language)
    network.eval()
    lengths = torch.tensor([4, 4])
    x, _ = network.scores(task.reader.batch(tokens("the cat sees birds", "the cat likes birds")), lengths)
    assert not torch.allclose(x[0, 1], x[1, 1]) and not torch.allclose(x[0, 0], x[1, 0])


@pytest.mark.parametrize("width", [8, 9, 12, 50])
@ENCODERS
def test_every_width_is_one_that_both_encoders_have_or_is_refused(language, encoder, width):
    config = replace(TINY, encoder=encoder, width=width)
    if encoder == "bilstm" and width % 2:
        with pytest.raises(unn.ArgumentError, match=says("width", "9", "even")):
            ParsingProblem().check(config)
        return
    ParsingProblem().check(config)
    task, network = fresh(config, language)
    assert network.scores(task.reader.batch(tokens("the cat")), torch.tensor([2]))[0].shape == (1, 3, width)


@pytest.mark.slow
@pytest.mark.parametrize(("tags", "labels", "characters"), list(product([False, True], repeat=3)))
def test_every_choice_of_inputs_and_outputs_trains_and_parses(language, tags, labels, characters):
    config = replace(
        TINY,
        tags=tags,
        labels=labels,
        characters=characters,
        training=replace(TINY.training, epochs=1, batch=100),
    )
    task, network = fresh(config, language)
    result = fit(network, task, config.training)
    assert ("dev_las" in result.history[-1]) == labels and result.history[-1]["dev_uas"] > 0
    heads, numbers = predict(
        result.network, SentenceExamples(language.test.sentences, task.reader, task.labels)
    )
    assert all(bool(row) == labels for row in numbers) and len(heads) == 20
    gradients = task.loss(network.train(), task.examples().batch(torch.arange(20), torch.Generator()))
    gradients.backward()
    missing = [name for name, p in network.named_parameters() if p.grad is None]
    assert not missing


def test_tags_are_read_where_they_are_asked_for_and_only_there(language):
    sentence = language.dev.sentences[0]
    other = replace(sentence, words=tuple(replace(word, upos="X") for word in sentence.words))
    for tags in (False, True):
        task, network = fresh(replace(TINY, tags=tags), language)
        network.eval()
        scores = [
            network.scores(task.reader.batch([s]), torch.tensor([len(s.words)]))[1] for s in (sentence, other)
        ]
        assert torch.equal(*scores) != tags


def test_spellings_are_read_where_they_are_asked_for_and_only_there(language):
    for characters in (False, True):
        task, network = fresh(replace(TINY, characters=characters), language)
        network.eval()
        scores = [
            network.scores(task.reader.batch(tokens(text)), torch.tensor([2]))[1]
            for text in ("the catteacher", "the birdriver")
        ]
        assert torch.equal(*scores) != characters


@pytest.mark.parametrize(
    ("activation", "word"), [("relu", "depends"), ("tanh", "bounded below"), ("ball", "bounded below")]
)
def test_activations_train_and_say_whether_their_energy_is_bounded(language, activation, word):
    config = replace(
        TINY, activation=activation, dropout=0.3, training=replace(TINY.training, epochs=2, batch=50)
    )
    task, network = fresh(config, language)
    assert word in str(network.graph.boundedness(["words"]))
    history = fit(network, task, config.training).history
    assert history[-1]["loss"] < history[0]["loss"]


@pytest.mark.parametrize("activation", ["tanh", "ball"])
def test_bounded_activations_never_diverge_however_large_the_weights_are(language, activation):
    task, network = fresh(replace(TINY, activation=activation), language)
    with torch.no_grad():
        network.graph.V *= 1e5
    parse = network.eval().parse(task.reader.batch(tokens("the cat sees birds")), torch.tensor([4]), 200)
    assert parse.marginals.isfinite().all() and parse.heads.tolist()[0].count(0) == 1


def test_the_graph_is_that_of_the_paper(language):
    g = fresh(TINY, language)[1].graph
    assert set(g.variables) == {"X", *ORDER} and {"XH", "XM", "YHM"} < set(g.factors)
    assert g.V.std() < 0.05 and not g.b_H.any() and not g.b_M.any()


# -- words as numbers ----------------------------------------------------------------------------------------


def test_what_was_never_seen_is_unknown():
    reader = Vocabulary(["cat", "the"], ["a", "c", "t"])
    sentence = replace(tokens("The dog")[0])
    words = tuple(
        replace(word, upos=tag) for word, tag in zip(sentence.words, ("DET", "ANIMAL"), strict=True)
    )
    row = reader.row(replace(sentence, words=words))
    assert row.shape == (3, 2 + SPELLED)
    assert row[0].tolist() == [ROOT] * 3 + [NOTHING] * (SPELLED - 1)
    assert row[1, :2].tolist() == [4, 3 + UNIVERSAL_TAGS.index("DET")]
    assert row[2].tolist() == [UNKNOWN] * 5 + [NOTHING] * (SPELLED - 3)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Zs", "Cc", "Zl", "Zp"]), min_size=1, max_size=60),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=30, deadline=None)
def test_every_word_has_a_row_that_is_no_padding(forms):
    [sentence] = tokens(" ".join(forms))
    for reader in (Vocabulary([], []), Vocabulary.of([sentence] * 2)):
        row = reader.row(sentence)
        assert len(row) == len(sentence.words) + 1 and (row != NOTHING).any(1).all()
        assert torch.equal(row, reader.row(sentence))


def test_of_a_long_word_both_ends_are_read():
    reader = Vocabulary([], list("abcdefghijklmnopqrstuvwxyz"))
    [sentence] = tokens("abcdefghij" + "x" * 10_000 + "klmnopqrst " + "a" * SPELLED)
    assert reader.row(sentence)[1, 2:].tolist() == list(range(3, 23))
    assert reader.row(sentence)[2, 2:].tolist() == [3] * SPELLED


def test_a_vocabulary_comes_back_from_its_facts(language):
    task, network = fresh(replace(TINY, labels=True), language)
    facts = json.loads(json.dumps(task.facts))
    again = reader_of_run(TINY, facts)
    for sentence in (*language.dev.sentences, *tokens("Ünknown 𝔘 words")):
        assert torch.equal(again.row(sentence), task.reader.row(sentence))
    assert labels_of_run(facts) == task.labels and "nsubj" in task.labels
    assert {name: p.shape for name, p in build(replace(TINY, labels=True), facts).state_dict().items()} == {
        name: p.shape for name, p in network.state_dict().items()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"forms": None},
        {"forms": "abc"},
        {"forms": ["a", "a"]},
        {"forms": ["a", 3]},
        {"forms": {"a": 1}},
        {"forms": [["a"]]},
        {"characters": None},
        {"characters": 3},
        {"characters": [None]},
        {"labels": "root"},
        {"labels": [1]},
        {"labels": None},
        {"labels": {"root": 0}},
    ],
    ids=str,
)
def test_facts_that_are_not_as_they_were_written_are_refused(change):
    facts = {"forms": ["a"], "characters": ["a"], "labels": ["root"], **change}
    with pytest.raises(unn.DataError, match=says("config.json", "changed", *list(change)[:1])):
        build(TINY, facts)


def test_a_treebank_in_which_no_word_occurs_twice_trains():
    treebank = chains(2, 1)
    treebanks = Treebanks(treebank, treebank, None)
    config = replace(TINY, characters=True, labels=True, training=replace(TINY.training, epochs=2, batch=2))
    task, network = fresh(config, treebanks)
    assert task.reader.forms == ("w1",) and fit(network, task, config.training).step == 2


# -- no sentence is left out ---------------------------------------------------------------------------------


@ENCODERS
def test_sentences_of_one_word_and_of_three_hundred_words_are_trained_on_and_parsed(encoder):
    treebank = chains(1, 300, 2, 1)
    config = replace(TINY, encoder=encoder, labels=True, training=replace(TINY.training, epochs=1, batch=4))
    task, network = fresh(config, Treebanks(treebank, treebank, None))
    assert len(task.examples()) == 4
    result = fit(network, task, config.training)
    heads, labels = predict(result.network, SentenceExamples(treebank.sentences, task.reader, task.labels))
    assert [len(row) for row in heads] == [len(row) for row in labels] == [1, 300, 2, 1]
    assert heads[0] == heads[3] == [0] and all(row.count(0) == 1 for row in heads)
    assert (
        evaluate(
            result.network, SentenceExamples(treebank.sentences, task.reader, task.labels), task.labels
        ).words
        == 304
    )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 100))
@settings(max_examples=40, deadline=None)
def test_batches_hold_every_sentence_once_and_no_more_words_than_allowed(lengths, most):
    sentences = [tokens("w " * n)[0] for n in lengths]
    parts = batches(sentences, most)
    assert sorted(k for part in parts for k in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or len(part) * max(lengths[k] for k in part) <= most for part in parts)
    parts = by_length(sentences, 7)
    assert (
        sorted(k for part in parts for k in part) == list(range(len(lengths))) and max(map(len, parts)) <= 7
    )


def test_predictions_are_in_the_order_of_the_sentences(language):
    task, network = fresh(replace(TINY, labels=True), language)
    network.eval()
    sentences = [*language.dev.sentences[:9], *tokens("cat", "a b c", "sees"), *language.dev.sentences[:2]]
    heads, labels = predict(network, SentenceExamples(language.dev.sentences[:9], task.reader, task.labels))
    for k in range(9):
        alone = predict(
            network, SentenceExamples(language.dev.sentences[k : k + 1], task.reader, task.labels)
        )
        assert (heads[k], labels[k]) == (alone[0][0], alone[1][0])
    parsed = parse_sentences(
        network, task.reader, task.labels, sentences, ParseFile(Path("."), "-", batch=40, show="heat")
    )
    assert [own.heads for own in parsed[:9]] == heads
    assert [own.labels for own in parsed[:9]] == [[task.labels[k] for k in row] for row in labels]
    assert [len(own.heads) for own in parsed] == [len(sentence.words) for sentence in sentences]
    assert parsed[12].heads == parsed[0].heads
    assert all(own.marginals.shape == (len(own.heads) + 1, len(own.heads)) for own in parsed)
    assert all(torch.allclose(own.marginals.sum(0), torch.ones(len(own.heads)), atol=1e-5) for own in parsed)


def test_prediction_leaves_the_network_in_its_mode_and_draws_no_random_numbers(language):
    task, network = fresh(TINY, language)
    examples = SentenceExamples(language.test.sentences, task.reader)
    for mode in (True, False):
        network.train(mode)
        state = torch.get_rng_state()
        assert predict(network, examples) == predict(network, examples)
        assert network.training is mode and torch.equal(torch.get_rng_state(), state)


# -- data ----------------------------------------------------------------------------------------------------


def test_the_generated_language_is_the_same_for_the_same_seed():
    first, again, other = (generated_treebank(30, seed) for seed in (0, 0, 1))
    assert first.to_bytes() == again.to_bytes() != other.to_bytes()
    assert any(crosses(sentence.heads) for sentence in generated_treebank(100, 0).sentences)


def crosses(heads):
    """Are there arcs of which one begins inside and ends outside of the other?"""
    spans = [tuple(sorted((m, h))) for m, h in enumerate(heads, 1)]
    return any(a < c < b < d for a, b in spans for c, d in spans)


def test_options_out_of_range_are_refused():
    for name, value in (
        ("iterations", 0), ("iterations", 1001), ("hidden", 0), ("dropout", 1.0), ("dropout", float("nan")),
        ("width", 7), ("layers", 0), ("input_dropout", -0.1),
    ):  # fmt: skip
        with pytest.raises(unn.ArgumentError, match=says("parsing", name)):
            check_config(replace(TINY, **{name: value}))
