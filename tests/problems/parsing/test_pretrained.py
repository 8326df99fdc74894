"""Encoders from a folder: pieces of words, windows over long sentences, vectors computed by hand, wrong
folders, and a whole parser."""

import builtins
import io
import json
import shutil
import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.helpers import says

from problems.parsing.config import ParsingConfig
from problems.parsing.conllu.treebank import read_conllu, read_tokens
from problems.parsing.data import Treebanks
from problems.parsing.encoders.pretrained import (
    MOST_PIECES,
    Pieces,
    PretrainedEncoder,
    cut_windows,
    lay_windows,
    most_central,
)
from problems.parsing.toy import generated_treebank
from problems.parsing.train import ParsingTask, build, reader_of
from unn import DataError
from unn.cli.main import main
from unn.training import TrainingConfig, fit

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDPIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sees",
    "gar",
    "##den",
    "##s",
    ".",
    *LETTERS,
    *("##" + k for k in LETTERS if k != "s"),
]
SPECIAL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
}
ODD = [
    "\u200b",
    "\u200d\ufeff",
    "\u00ad",
    "\ufffd",
    "東",
    chr(0xDC80),
    "e\u0301",
    "10 000",
    "🙂",
    "\x85",
    "[SEP]",
    "</s>",
    "<pad>",
    "q" * 500,
]
TREEBANK = generated_treebank(30, 0).sentences
FOLDERS = pytest.mark.parametrize("kind", ["bert", "roberta", "unigram"])


def tokens(*texts):
    return read_tokens(io.BytesIO("\n".join(texts).encode())).sentences


def save_model(folder, config):
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)


def save_bert(folder, positions=64, size=None):
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    save_model(
        folder,
        transformers.BertConfig(
            vocab_size=size or len(WORDPIECES), max_position_embeddings=positions, **SIZES
        ),
    )
    return folder


def save_roberta(folder, tokenizer, name):
    folder.mkdir()
    if name == "RobertaTokenizer":
        tokenizer.model.save(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **SPECIAL}))
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=34,
        pad_token_id=1,
        type_vocab_size=1,
        **SIZES,
    )
    save_model(folder, config)
    return folder


def byte_pieces(space=False):
    """Byte-level BPE."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=space)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(sentence.forms) for sentence in TREEBANK], trainer)
    return tokenizer


def unigram_pieces():
    """As those of XLM-R."""
    pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [
        ("▁", -3.0),
        ("▁the", -4.0),
        ("▁gar", -6.0),
        ("den", -6.0),
        ("s", -5.0),
        *((k, -7.0) for k in LETTERS if k != "s"),
    ]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    before = [
        tokenizers.pre_tokenizers.WhitespaceSplit(),
        tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always"),
    ]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(before)
    return tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoders")
    return {
        "bert": save_bert(root / "bert", positions=32),
        "roberta": save_roberta(root / "roberta", byte_pieces(), "RobertaTokenizer"),
        "unigram": save_roberta(root / "unigram", unigram_pieces(), "PreTrainedTokenizerFast"),
    }


@pytest.fixture
def copied(folders, tmp_path):
    """A folder to spoil."""
    return shutil.copytree(folders["bert"], tmp_path / "encoder")


def encoder_of(folder, width=8, dropout=0.0):
    torch.manual_seed(1)
    return PretrainedEncoder(folder, width, dropout).eval()


# -- pieces --------------------------------------------------------------------------------------------------


def test_a_row_holds_cls_and_the_pieces_of_each_word_plus_one(folders):
    row = Pieces(folders["bert"]).row(tokens("The gardens .")[0])
    assert row.tolist() == [[3, 0, 0], [6, 0, 0], [9, 10, 11], [12, 0, 0]]
    assert row.dtype == torch.float32


@FOLDERS
def test_words_are_cut_as_the_tokenizer_cuts_words_that_are_split_already(folders, kind):
    reader = Pieces(folders[kind])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind], add_prefix_space=True)
    assert tokenizer.is_fast
    for sentence in TREEBANK:
        whole = tokenizer(list(sentence.forms), is_split_into_words=True, add_special_tokens=False)[
            "input_ids"
        ]
        assert [piece for form in sentence.forms for piece in reader.pieces(form)] == whole


@pytest.mark.parametrize("space", [False, True])
@pytest.mark.parametrize("name", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
def test_byte_pieces_of_a_word_are_those_after_a_space_whatever_the_folder_says_of_spaces(
    tmp_path, name, space
):
    reader = Pieces(save_roberta(tmp_path / "encoder", byte_pieces(space), name))
    pieces = tokenizers.Tokenizer.from_file(str(tmp_path / "encoder" / "tokenizer.json"))
    for form in ("the", "garden", "unseen", "東"):
        assert [pieces.id_to_token(k) for k in reader.pieces(form)] == pieces.encode("x " + form).tokens[
            -len(reader.pieces(form)) :
        ]
        assert pieces.id_to_token(reader.pieces(form)[0]).startswith("Ġ")


@FOLDERS
@pytest.mark.parametrize("form", ODD, ids=ascii)
def test_every_word_has_pieces_and_none_of_them_is_a_special_token(folders, kind, form):
    reader = Pieces(folders[kind])
    pieces = reader.pieces(form)
    unknown = 1 if kind == "bert" else 3
    assert 1 <= len(pieces) <= MOST_PIECES
    assert all(k >= 4 or k == unknown for k in pieces)


def test_a_word_of_which_nothing_is_left_is_the_unknown_token(folders):
    assert Pieces(folders["bert"]).pieces("\u200b") == [WORDPIECES.index("[UNK]")]


def test_of_a_word_in_many_pieces_the_first_and_the_last_eight_are_read(folders):
    pieces = Pieces(folders["bert"]).pieces(LETTERS)
    assert [WORDPIECES[k] for k in pieces] == [
        "a",
        *("##" + k for k in LETTERS[1:8]),
        *("##" + k for k in LETTERS[-8:]),
    ]


def test_no_sentence_is_too_long_for_a_row(folders):
    sentence = tokens(" ".join(["gardens"] * 1000))[0]
    row = Pieces(folders["bert"]).row(sentence)
    assert row.shape == (1001, 3) and bool((row != 0).any(1).all())


def test_facts_are_those_of_the_tokenizer_alone_and_another_tokenizer_is_refused(folders, copied):
    reader = Pieces(folders["bert"])
    facts = json.loads(json.dumps(reader.facts()))
    assert facts["encoder_vocabulary"] == len(WORDPIECES)
    reader.check_facts({**facts, "labels": []})
    Pieces(copied).check_facts(facts)
    (copied / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    )
    with pytest.raises(DataError, match=says(str(copied), "tokenizer", "encoder_tokenizer", "Restore")):
        Pieces(copied).check_facts(facts)
    with pytest.raises(DataError, match=says("encoder_vocabulary", "was None")):
        reader.check_facts({})


# -- vectors -------------------------------------------------------------------------------------------------


def by_hand(encoder, model_ids, groups):
    """The vectors of groups of places of one sequence."""
    states = encoder.model(input_ids=torch.tensor([model_ids])).last_hidden_state[0]
    return encoder.leave(torch.stack([states[group].mean(0) for group in groups]))


@FOLDERS
def test_the_vector_of_a_word_is_the_mean_over_its_pieces_and_that_of_the_root_is_cls(folders, kind):
    reader, encoder = Pieces(folders[kind]), encoder_of(folders[kind])
    first, last = (2, 3) if kind == "bert" else (0, 2)
    sentence = tokens("the gardens sees a cat")[0]
    ids, groups = [first], [[0]]
    for form in sentence.forms:
        groups.append(list(range(len(ids), len(ids) + len(reader.pieces(form)))))
        ids += reader.pieces(form)
    torch.testing.assert_close(
        encoder(reader.batch([sentence]))[0], by_hand(encoder, [*ids, last], groups), rtol=1e-5, atol=1e-5
    )


@FOLDERS
def test_a_sentence_alone_is_as_in_a_padded_batch_and_padding_is_zero(folders, kind):
    reader, encoder = Pieces(folders[kind]), encoder_of(folders[kind])
    sentences = [*TREEBANK[:8], *tokens(" ".join(["gardens"] * 60), "a")]
    batch = encoder(reader.batch(sentences))
    assert batch.shape == (10, 61, 8)
    for vectors, sentence in zip(batch, sentences, strict=True):
        alone = encoder(reader.batch([sentence]))[0]
        torch.testing.assert_close(vectors[: len(alone)], alone, rtol=1e-5, atol=1e-5)
        assert not vectors[len(alone) :].any() and bool(alone.any(1).all())


def test_a_batch_of_long_sentences_has_windows_between_words_and_vectors_from_their_middles(folders):
    """200 words and 32 positions; each window is run by hand."""
    reader, encoder = Pieces(folders["bert"]), encoder_of(folders["bert"])
    sentence = tokens(" ".join(["gardens", "the", "aaaa", "qwertyuiop"][k % 4] for k in range(200)))[0]
    pieces = [reader.pieces(form) for form in sentence.forms]
    ends = [sum(map(len, pieces[:k])) for k in range(201)]
    windows = cut_windows(ends, 30)
    vectors = encoder(reader.batch([sentence, *TREEBANK[:2]]))[0]
    assert vectors.shape == (201, 8)
    for k, window in enumerate(most_central(ends, windows)):
        start, stop = windows[window]
        ids = [2, *(piece for word in pieces[start:stop] for piece in word), 3]
        group = list(range(1 + ends[k] - ends[start], 1 + ends[k + 1] - ends[start]))
        torch.testing.assert_close(vectors[k + 1], by_hand(encoder, ids, [group])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_each_word_of_a_long_sentence_is_read(folders, kind):
    """Another word gives another vector at its place, wherever it stands."""
    reader, encoder = Pieces(folders[kind]), encoder_of(folders[kind])
    places = range(0, 200, 7)
    texts = [["cat"] * 200 for _ in range(len(places) + 1)]
    for text, place in zip(texts[1:], places, strict=True):
        text[place] = "sees"
    with torch.no_grad():
        before, *after = encoder(reader.batch(tokens(*map(" ".join, texts))))
    assert all(
        not torch.allclose(before[place + 1], other[place + 1], atol=1e-4)
        for place, other in zip(places, after, strict=True)
    )


def test_a_batch_has_vectors_where_some_rows_are_padding_alone(folders):
    reader, encoder = Pieces(folders["bert"]), encoder_of(folders["bert"])
    words = torch.cat([reader.batch(TREEBANK[:1]), torch.zeros_like(reader.batch(TREEBANK[:1]))])
    vectors = encoder(words)
    torch.testing.assert_close(vectors[:1], encoder(words[:1]))
    assert not vectors[1].any()
    assert encoder(words[:, :1]).shape == (2, 1, 8)


COUNTS = st.lists(st.integers(1, MOST_PIECES), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(COUNTS, st.integers(MOST_PIECES, 60))
def test_windows_hold_every_word_whole_and_never_too_much(counts, most):
    ends = [sum(counts[:k]) for k in range(len(counts) + 1)]
    windows = cut_windows(ends, most)
    assert {word for start, stop in windows for word in range(start, stop)} == set(range(len(counts)))
    assert all(0 < ends[stop] - ends[start] <= most for start, stop in windows)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(windows))
    assert (len(windows) == 1) == (ends[-1] <= most)


@settings(max_examples=150, deadline=None)
@given(COUNTS, st.integers(2 * MOST_PIECES + 4, 100))
@example([1, 1, 3, 16, 16, 16, 16, 5, 16], 68)
def test_each_word_comes_from_the_window_that_gives_it_most_context(counts, most):
    ends = [sum(counts[:k]) for k in range(len(counts) + 1)]
    windows = cut_windows(ends, most)
    for word, chosen in enumerate(most_central(ends, windows)):
        contexts = [
            min(ends[word] - ends[a], ends[b] - ends[word + 1]) if a <= word < b else -1 for a, b in windows
        ]
        assert contexts[chosen] == max(contexts) >= 0
        start, stop = windows[chosen]
        # context is cut off only far away, unless the sentence ends there
        least = most // 4 - MOST_PIECES
        assert start == 0 or ends[word] - ends[start] >= least
        assert stop == len(counts) or ends[stop] - ends[word + 1] >= least


@settings(max_examples=100, deadline=None)
@given(st.lists(COUNTS, min_size=1, max_size=5), st.integers(MOST_PIECES, 60))
def test_windows_of_a_batch_are_those_of_its_sentences(sentences, most):
    counts = torch.zeros(len(sentences), 1 + max(map(len, sentences)), dtype=torch.int64)
    for row, words in zip(counts, sentences, strict=True):
        row[: len(words) + 1] = torch.tensor([1, *words])
    batch_windows = lay_windows(counts, most)
    for b, words in enumerate(sentences):
        ends = [sum(words[:k]) for k in range(len(words) + 1)]
        windows = cut_windows(ends, most)
        own = batch_windows.sentence == b
        assert batch_windows.start[own].tolist() == [ends[start] for start, _ in windows]
        assert batch_windows.size[own].tolist() == [ends[stop] - ends[start] for start, stop in windows]
        first = int(own.nonzero()[0])
        assert (batch_windows.chosen[b, : len(words) + 1] - first).tolist() == [
            0,
            *most_central(ends, windows),
        ]


@FOLDERS
def test_gradients_reach_all_weights_on_which_the_states_depend(folders, kind):
    reader, encoder = Pieces(folders[kind]), encoder_of(folders[kind])
    encoder(reader.batch(TREEBANK[:4])).square().sum().backward()
    without = {
        name
        for name, weight in encoder.named_parameters()
        if weight.grad is None or not weight.grad.isfinite().all()
    }
    assert without == {"model.pooler.dense.weight", "model.pooler.dense.bias"}
    assert all(weight.requires_grad for weight in encoder.parameters())


def test_in_half_precision_the_vectors_are_those_of_full_precision_nearly(folders):
    reader, encoder = Pieces(folders["bert"]), encoder_of(folders["bert"])
    words = reader.batch([*TREEBANK[:4], *tokens("gardens " * 40)])
    expected = encoder(words)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = encoder(words)
    torch.testing.assert_close(vectors.float(), expected, rtol=0.1, atol=0.1)
    vectors.float().square().sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in encoder.parameters())


def test_dropout_is_for_training_alone(folders):
    reader, encoder = Pieces(folders["bert"]), encoder_of(folders["bert"], dropout=0.5)
    words = reader.batch(TREEBANK[:2])
    assert torch.equal(encoder(words), encoder(words))
    encoder.train()
    assert encoder.model.training and not torch.allclose(encoder(words), encoder(words))


def test_a_fresh_encoder_is_in_training_as_every_module(folders):
    assert all(module.training for module in PretrainedEncoder(folders["bert"], 8, 0.1).modules())


def test_weights_are_those_of_the_folder_and_in_float32(folders, copied):
    model = transformers.AutoModel.from_pretrained(folders["bert"])
    model.half().save_pretrained(copied)
    loaded_model = encoder_of(copied).model
    assert all(weight.dtype == torch.float32 for weight in loaded_model.parameters())
    torch.testing.assert_close(
        loaded_model.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight.float()
    )


def test_weights_saved_with_a_head_for_another_task_are_read_without_it(copied):
    config = transformers.AutoConfig.from_pretrained(copied)
    torch.manual_seed(5)
    whole = transformers.BertForMaskedLM(config)
    whole.save_pretrained(copied)
    torch.testing.assert_close(
        encoder_of(copied).model.encoder.layer[1].output.dense.weight,
        whole.bert.encoder.layer[1].output.dense.weight,
    )


def test_loading_says_nothing_and_leaves_the_settings_of_the_library_alone(folders, capfd):
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    encoder_of(folders["bert"])
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


# -- folders that are wrong ----------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    for attempt in (lambda: Pieces(tmp_path / "bart"), lambda: PretrainedEncoder(tmp_path / "bart", 8, 0.0)):
        with pytest.raises(DataError, match=says("bart", "bilstm", "hf download", "run needs it too")):
            attempt()


def test_an_installation_without_transformers_says_what_to_install(folders, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for attempt in (lambda: Pieces(folders["bert"]), lambda: PretrainedEncoder(folders["bert"], 8, 0.0)):
        with pytest.raises(DataError, match=says("transformers", "pip install 'unn[pretrained]'")):
            attempt()


def spoiled(folder, name, content):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


SPOILED = [
    ("config.json", None, ["has no config.json"]),
    ("config.json", b"{", ["config.json cannot be used"]),
    ("config.json", b"[]", ["config.json cannot be used"]),
    (
        "config.json",
        b'{"model_type": "nonesuch"}',
        ["config.json cannot be used", "nonesuch", transformers.__version__],
    ),
    (
        "config.json",
        b'{"model_type": "x", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}',
        ["config.json cannot be used", "code of their own"],
    ),
    ("vocab.txt", None, ["has no tokenizer"]),
    ("tokenizer.json", b"{", ["tokenizer cannot be loaded", "again"]),
    ("tokenizer.json", b'{"version": "1.0"}', ["tokenizer cannot be loaded", "again"]),
    ("model.safetensors", b"", ["weights cannot be loaded", "model.safetensors"]),
    (
        "model.safetensors",
        b"version https://git-lfs.github.com/spec/v1\n",
        ["weights cannot be loaded", "again"],
    ),
    ("model.safetensors.index.json", b"{", ["weights cannot be loaded"]),
]


@pytest.mark.parametrize(("name", "content", "words"), SPOILED)
def test_a_folder_with_a_missing_or_corrupt_file_is_refused(copied, name, content, words):
    (copied / "evil.py").write_text("raise SystemExit('was executed')")
    if name == "model.safetensors.index.json":
        (copied / "model.safetensors").unlink()
    spoiled(copied, name, content)
    with pytest.raises(DataError, match=says(str(copied), *words)):
        encoder_of(copied)


def test_truncated_weights_are_refused(copied):
    spoiled(copied, "model.safetensors", (copied / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(DataError, match=says("weights cannot be loaded", str(copied))):
        encoder_of(copied)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "tf_model.h5"])
def test_weights_in_pickled_files_are_refused_with_a_way_to_convert_them(copied, name):
    (copied / "model.safetensors").rename(copied / name)
    with pytest.raises(DataError, match=says(name, "execute code", "save_pretrained", str(copied))):
        encoder_of(copied)


def test_the_way_to_convert_pickled_weights_works(copied):
    encoder = encoder_of(copied)
    torch.save(encoder.model.state_dict(), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    transformers.AutoModel.from_pretrained(str(copied)).save_pretrained(str(copied))
    again = encoder_of(copied)
    words = Pieces(copied).batch(TREEBANK[:2])
    # weights of a mapped file lie elsewhere in memory, which decides how products are summed
    torch.testing.assert_close(again(words), encoder(words))


def test_a_folder_without_weights_warns_that_they_are_random(copied):
    (copied / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match=says(str(copied), "no weights", "random")):
        encoder = encoder_of(copied)
    assert encoder(Pieces(copied).batch(TREEBANK[:2])).isfinite().all()


def test_weights_that_lack_a_layer_of_the_configuration_are_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(
        DataError, match=says(str(copied), "lack 16 tensors", "encoder.layer.2", "same model")
    ):
        encoder_of(copied)


def test_weights_of_another_size_than_the_configuration_are_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "intermediate_size": 32}))
    with pytest.raises(DataError, match=says(str(copied), "weights cannot be loaded")):
        encoder_of(copied)


def test_an_encoder_with_a_decoder_is_refused(copied):
    save_model(
        copied, transformers.T5Config(vocab_size=80, d_model=16, d_ff=24, num_layers=1, num_heads=2, d_kv=8)
    )
    with pytest.raises(DataError, match=says(str(copied), "'t5'", "decoder", "BERT")):
        encoder_of(copied)


VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.mark.parametrize(
    "config",
    [
        lambda: transformers.ViTConfig(image_size=32, **VISION),
        lambda: transformers.CLIPConfig(
            text_config={"vocab_size": 80, **VISION},
            vision_config={"image_size": 32, "patch_size": 16, **VISION},
            projection_dim=8,
        ),
    ],
    ids=["images", "images and text"],
)
def test_a_model_that_gives_no_state_for_each_piece_is_refused(copied, config):
    save_model(copied, config())
    with pytest.raises(
        DataError, match=says(str(copied), "does not turn pieces of text into states", "BERT")
    ):
        encoder_of(copied)


def test_a_tokenizer_with_more_pieces_than_the_model_knows_is_refused(tmp_path):
    folder = save_bert(tmp_path / "encoder", size=40)
    with pytest.raises(
        DataError,
        match=says(str(folder), f"id {len(WORDPIECES) - 1}", "ends at 39", "do not belong together"),
    ):
        encoder_of(folder)


def test_an_id_that_the_model_does_not_know_is_refused(folders):
    encoder = encoder_of(folders["bert"])
    words = Pieces(folders["bert"]).batch(TREEBANK[:2])
    words[1, 2, 0] = len(WORDPIECES) + 1
    with pytest.raises(DataError, match=says(f"id {len(WORDPIECES)},", "do not belong together")):
        encoder(words)


def test_a_model_with_fewer_positions_than_one_word_can_take_is_refused(tmp_path):
    with pytest.raises(DataError, match=says("17 positions", str(MOST_PIECES + 2))):
        encoder_of(save_bert(tmp_path / "encoder", positions=17))
    assert encoder_of(save_bert(tmp_path / "enough", positions=18))(
        Pieces(tmp_path / "enough").batch(tokens("gardens " * 50 + LETTERS))
    ).shape == (
        1,
        52,
        8,
    )


def test_a_tokenizer_without_a_token_to_begin_with_is_refused(folders, tmp_path):
    folder = shutil.copytree(folders["unigram"], tmp_path / "encoder")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"})
    )
    with pytest.raises(DataError, match=says(str(folder), "CLS or BOS", "tokenizer_config.json")):
        Pieces(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>"})
    )
    with pytest.raises(DataError, match=says(str(folder), "SEP or EOS")):
        Pieces(folder)


# -- a whole parser ------------------------------------------------------------------------------------------


def config_of(folder, **options):
    training = TrainingConfig(
        **{"steps": 30, "batch": 16, "rate": 5e-3, "clip": 5.0, "threads": 1, **options}
    )
    return ParsingConfig(
        encoder=str(folder), hidden=16, width=16, dropout=0.0, input_dropout=0.0, training=training
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_parser_on_a_folder_learns_and_trains_its_encoder(folders, kind):
    treebanks = Treebanks(generated_treebank(60, 0), generated_treebank(20, 1), None)
    config = config_of(folders[kind])
    task = ParsingTask(config, treebanks)
    torch.manual_seed(0)
    network = build(config, task.facts)
    before = {name: weight.clone() for name, weight in network.named_parameters() if "pooler" not in name}
    untrained = task.evaluate(network)["dev_uas"]
    fit(network, task, config.training)
    assert task.evaluate(network)["dev_uas"] > max(0.3, untrained + 0.1)
    assert not [
        name
        for name, weight in network.named_parameters()
        if "model." in name and name in before and torch.equal(weight, before[name])
    ]


def test_a_sentence_longer_than_the_model_reads_is_trained_on(folders):
    lines = [f"{k}\tcat\t_\tX\t_\t_\t{k - 1}\t{'dep' if k > 1 else 'root'}\t_\t_" for k in range(1, 101)]
    treebank = read_conllu(io.BytesIO(("\n".join(lines) + "\n\n").encode()), trees=True)
    config = config_of(folders["bert"])
    task = ParsingTask(config, Treebanks(treebank, treebank, None))
    network = build(config, task.facts)
    loss = task.loss(network, task.examples().batch(torch.tensor([0]), torch.Generator()))
    loss.backward()
    assert loss.isfinite() and len(task.examples()) == 1
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in network.parameters())


def test_a_run_trains_evaluates_parses_and_infers_on_the_command_line(copied, tmp_path, capsysbinary):
    run, text, out = tmp_path / "run", tmp_path / "text.txt", tmp_path / "out.conllu"
    options = ["--hidden", "8", "--width", "16", "--steps", "4", "--batch", "8", "--threads", "1", "--labels"]
    assert (
        main(["train", "parsing", "--encoder", str(copied), *options, "--folder", str(run), "--quiet"]) == 0
    )
    facts = json.loads((run / "config.json").read_text())["facts"]
    Pieces(copied).check_facts(facts)
    # the weights of the run replace those of the folder
    save_model(copied, replace_seed(copied))
    assert main(["evaluate", str(run)]) == 0
    assert b"60 sentences, 0 skipped" in capsysbinary.readouterr().out
    text.write_text("the gardens sees a cat .\n" + "cat " * 80 + "\n\u200b q\u200b 東\n")
    assert main(["parse", str(run), str(text), "--out", str(out)]) == 0
    parsed = read_conllu(out, trees=True)
    assert [len(sentence.words) for sentence in parsed.sentences] == [6, 80, 3]
    assert main(["infer", str(run), "--given", "words=the gardens sees", "--want", "Y"]) == 0
    shutil.rmtree(copied)
    capsysbinary.readouterr()
    assert main(["parse", str(run), str(text)]) == 2
    said = capsysbinary.readouterr().err.decode()
    assert str(copied) in said and "A trained run needs it too" in said


def replace_seed(folder):
    """The configuration, for other random weights."""
    config = transformers.AutoConfig.from_pretrained(folder)
    config.initializer_range = 0.5
    return config


def test_the_weights_of_a_folder_may_go_once_a_run_has_them(copied):
    config = config_of(copied, steps=2)
    treebanks = Treebanks(generated_treebank(20, 0), generated_treebank(5, 1), None)
    task = ParsingTask(config, treebanks)
    network = build(config, task.facts).eval()
    words = task.reader.batch(TREEBANK[:3])
    lengths = torch.tensor([len(sentence.words) for sentence in TREEBANK[:3]])
    expected = network.scores(words, lengths)
    (copied / "model.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = build(config, task.facts).eval()
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again.scores(words, lengths), expected)


def test_the_reader_of_a_configuration_with_a_folder_is_its_tokenizer(folders):
    reader = reader_of(replace(config_of(folders["bert"]), labels=True), TREEBANK)
    assert isinstance(reader, Pieces) and reader.facts() == Pieces(folders["bert"]).facts()
