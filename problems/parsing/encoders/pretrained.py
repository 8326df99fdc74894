"""Hugging Face encoders from a local folder as encoders of the parser, fine-tuned with the network.

A folder holds ``config.json``, the files of the tokenizer and, as safetensors, the weights. Nothing is
downloaded, and nothing in the folder is
executed: models with custom code, and pickled weights, are refused.

A run saves all weights, those of the encoder too, but not its configuration and tokenizer: they are read
again from the folder that the run's config.json names, so that the folder must stay where it is for as long
as the run is used.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unn.errors import DataError

from ..conllu.treebank import Sentence
from ..vocabulary import NOTHING, Reader

CHOOSE = "choose an encoder such as BERT, RoBERTa or XLM-R"
MOST_PIECES = 16
"""Maximum number of pieces per word; longer words keep the first and last eight."""

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_UNSAFE = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "model.ckpt.index",
)
_TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model")
_SAMPLE = (
    "the",
    "The",
    "naïve",
    "don't",
    "3,141.59",
    "x/y-z",
    "ÉTÉ",
    "слово",
    "言葉",
    "كلمة",
    "ﬁ",
    "e\u0301",
    "🙂",
    "\u200b",
)


class Pieces(Reader):
    """Pieces of each word by the tokenizer of an encoder: rows contain ids plus 1, CLS (or BOS) for the root.

    Words are tokenised separately, each preceded by a space, as for pre-split input. A word without any piece
    is the unknown token. Sentences may have any length.

    Args:
        folder: folder of the encoder.

    Raises:
        DataError: if there is no such folder, its tokenizer cannot be loaded, or transformers is not
            installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tokenizer = _load_tokenizer(folder)
        self._special = _special_tokens(folder, self._tokenizer)
        self._reserved = frozenset(self._tokenizer.all_special_ids)
        self._known: dict[str, list[int]] = {}

    def pieces(self, form: str) -> list[int]:
        """The ids of the pieces of one word, at least one and at most ``MOST_PIECES``."""
        # tokenizers refuse text that cannot be encoded
        text = form.encode(errors="replace").decode()
        ids: list[int] = self._tokenizer(
            " " + text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]
        half, unknown = MOST_PIECES // 2, self._special.unknown
        chosen = ids if len(ids) <= MOST_PIECES else ids[:half] + ids[-half:]
        # a word spelled like a special token is not that token
        return [unknown if k in self._reserved else k for k in chosen] or [unknown]

    def row(self, sentence: Sentence) -> Tensor:
        """Shape ``(n + 1, most pieces of a word)``, zeros where a word has fewer."""
        rows = [[self._special.first]]
        for form in sentence.forms:
            if form not in self._known:
                self._known[form] = self.pieces(form)
            rows.append(self._known[form])
        most = max(map(len, rows))
        return torch.tensor(
            [[k + 1 for k in ids] + [NOTHING] * (most - len(ids)) for ids in rows], dtype=torch.float32
        )

    def facts(self) -> dict[str, Any]:
        """Vocabulary size, and a hash of vocabulary, special tokens and the pieces of sample words."""
        content = [
            sorted(self._tokenizer.get_vocab().items()),
            list(vars(self._special).values()),
            [self.pieces(form) for form in _SAMPLE],
        ]
        return {
            "encoder_vocabulary": len(self._tokenizer),
            "encoder_tokenizer": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        }

    def check_facts(self, facts: Mapping[str, Any]) -> None:
        """Check that this is the tokenizer with which a run was trained.

        Raises:
            DataError: if it is another one.
        """
        for name, value in self.facts().items():
            if facts.get(name) != value:
                raise DataError(
                    f"encoder folder {self.folder} contains a different tokenizer than in training ({name} "
                    f"is {value}, was {facts.get(name)}); the weights do not apply to its pieces. Restore "
                    "the original folder."
                )


class PretrainedEncoder(nn.Module):
    """Mean of the last layer's states over the pieces of each word, CLS for the root, with a linear map.

    The input is CLS, the pieces of a sentence, SEP. Sentences with more pieces than positions are split into
    windows that overlap by half; each word uses the window with the most context on both sides, and the root
    the first one. All weights are fine-tuned.

    Args:
        folder: folder of the encoder. Without any weights, they are random, with a warning.
        width: width of the result.
        dropout: dropout probability for the states of words; the model's own dropout is set by its
            config.json.

    Raises:
        DataError: if there is no such folder; if its configuration, tokenizer or weights cannot be loaded, do
            not belong together or would execute code; if the model is not a text encoder; or if transformers
            is not installed.
    """

    def __init__(self, folder: Path, width: int, dropout: float) -> None:
        super().__init__()
        tokenizer = _load_tokenizer(folder)
        self.folder = folder
        self._special = _special_tokens(folder, tokenizer)
        self.model, missing = _load_model(folder)
        self._table = _table_size(folder, self.model)
        needed = max(self._special.first, self._special.last, self._special.padding, tokenizer.vocab_size - 1)
        if needed >= self._table:
            raise self._foreign(needed)
        self._longest = _positions(self.model) - 2
        if self._longest < MOST_PIECES:
            raise DataError(
                f"encoder folder {folder}: the model has {self._longest + 2} positions, but a word alone can "
                f"take {MOST_PIECES + 2}. Choose a model with more positions."
            )
        states = _probe(folder, self.model, self._special)
        _check_missing(folder, states, missing)
        self.model.train()
        self.dropout = nn.Dropout(dropout)
        self.leave = nn.Linear(states.shape[2], width)

    def forward(self, words: Tensor) -> Tensor:
        """Numbers that ``Pieces`` makes, shape ``(batch, n + 1, pieces)``, zeros in padding, to ``(batch, n +
        1, width)``, zeros in padding.

        Raises:
            DataError: for an id outside the model's embedding table.
        """
        present = words != NOTHING
        counts = present.sum(2)
        largest = int(words.max()) - 1
        if largest >= self._table:
            raise self._foreign(largest)
        out: Tensor = self.leave(self.dropout(self._pooled(words, present, counts)))
        return torch.where((counts > 0)[:, :, None], out, 0)

    def _pooled(self, words: Tensor, present: Tensor, counts: Tensor) -> Tensor:
        """Mean state of each word, shape ``(batch, n + 1, states)``, zeros in padding."""
        windows = lay_windows(counts, self._longest)
        sentences, column = counts.sum(1), torch.arange(2 + int(windows.size.max()), device=words.device)
        # place 0 of a sentence is the root, the others are the pieces of its words in order
        begin = sentences.cumsum(0) - sentences
        pieces = words[present].long() - 1
        place = (begin[windows.sentence] + windows.start)[:, None] + column
        inside = (column > 0) & (column <= windows.size[:, None])
        ids = torch.where(inside, pieces[place.clamp(max=len(pieces) - 1)], self._special.padding)
        ids[:, 0] = self._special.first
        ids.scatter_(1, windows.size[:, None] + 1, self._special.last)
        states = self.model(
            input_ids=ids, attention_mask=(column < windows.size[:, None] + 2).long()
        ).last_hidden_state
        sentence, node, _ = present.nonzero(as_tuple=True)
        row = windows.chosen[sentence, node]
        column_in_window = (
            torch.arange(len(pieces), device=words.device) - begin[sentence] - windows.start[row]
        )
        ends = counts.flatten().cumsum(0)
        means = nn.functional.embedding_bag(
            row * len(column) + column_in_window, states.flatten(0, 1), ends - counts.flatten(), mode="mean"
        )
        return means.view(*counts.shape, -1)

    def _foreign(self, number: int) -> DataError:
        return DataError(
            f"encoder folder {self.folder}: the tokenizer has a piece with id {number}, but the model's "
            f"table ends at {self._table - 1}; tokenizer and model do not belong together. Take both from "
            "the same model."
        )


@dataclass(frozen=True)
class Windows:
    """Windows of sentences.

    Attributes:
        sentence: index of the sentence, shape ``(windows,)``.
        start: number of pieces of the sentence before the window, shape ``(windows,)``.
        size: number of pieces in the window, shape ``(windows,)``.
        chosen: index of the window used for the root and each word, shape ``(batch, n + 1)``; arbitrary in
            padding.
    """

    sentence: Tensor
    start: Tensor
    size: Tensor
    chosen: Tensor


def lay_windows(counts: Tensor, most: int) -> Windows:
    """Cut sentences into windows between words; short ones are one window.

    Args:
        counts: pieces of the root (1) and of each word, 0 in padding, shape ``(batch, n + 1)``.
        most: pieces of words in a window, at least as many as a word has.
    """
    sizes = counts[:, 1:].sum(1)
    rows = torch.arange(len(counts), device=counts.device)
    chosen = rows[:, None].expand_as(counts)
    if int(sizes.max()) <= most:
        return Windows(rows, torch.zeros_like(sizes), sizes, chosen)
    places = chosen.tolist()
    laid: list[tuple[int, int, int]] = []
    for b, row in enumerate(counts.tolist()):
        first = len(laid)
        ends = [0]
        for count in row[1:]:
            ends.append(ends[-1] + count)
        cut = cut_windows(ends, most)
        laid += [(b, ends[start], ends[stop] - ends[start]) for start, stop in cut]
        places[b] = [first] + [first + k for k in most_central(ends, cut)]
    sentence, start, size = torch.tensor(laid, device=counts.device).T
    return Windows(sentence, start, size, torch.tensor(places, device=counts.device))


def cut_windows(ends: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Windows ``words[start:stop]`` that cover all words and overlap by half, up to one word.

    Args:
        ends: number of pieces of the first 0, 1, ... n words.
        most: pieces in a window, at least as many as a word has.
    """
    last = len(ends) - 1
    start, windows = 0, list[tuple[int, int]]()
    while True:
        stop = start
        while stop < last and ends[stop + 1] - ends[start] <= most:
            stop += 1
        if stop == last:
            # extend the last window to the full size
            while start > 0 and ends[last] - ends[start - 1] <= most:
                start -= 1
            return [*windows, (start, last)]
        windows.append((start, stop))
        middle = ends[start] + most // 2
        start += 1
        # advance to the middle, and until another word fits
        while start < stop and (ends[start + 1] <= middle or ends[stop + 1] - ends[start] > most):
            start += 1


def most_central(ends: Sequence[int], windows: Sequence[tuple[int, int]]) -> list[int]:
    """For each word, the window with the largest context on its shorter side, in pieces."""
    best, chosen = [-1] * (len(ends) - 1), [0] * (len(ends) - 1)
    for k, (start, stop) in enumerate(windows):
        for word in range(start, stop):
            context = min(ends[word] - ends[start], ends[stop] - ends[word + 1])
            if context > best[word]:
                best[word], chosen[word] = context, k
    return chosen


@dataclass(frozen=True)
class _Special:
    """Ids of the first, last, unknown and padding tokens."""

    first: int
    last: int
    unknown: int
    padding: int


def _special_tokens(folder: Path, tokenizer: Any) -> _Special:
    first = _either(tokenizer.cls_token_id, tokenizer.bos_token_id)
    last = _either(tokenizer.sep_token_id, tokenizer.eos_token_id)
    if first is None or last is None:
        lacking = "CLS or BOS token to begin" if first is None else "SEP or EOS token to end"
        raise DataError(
            f"encoder folder {folder}: the tokenizer has no {lacking} a sentence with. Name one in its "
            f"tokenizer_config.json, or {CHOOSE}."
        )
    unknown, padding = _either(tokenizer.unk_token_id, last), _either(tokenizer.pad_token_id, last)
    assert unknown is not None and padding is not None
    return _Special(first, last, unknown, padding)


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise DataError(
            f"an encoder from a folder needs the package transformers ({error}). Install it: pip install "
            "'unn[pretrained]'."
        ) from None
    return transformers


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Suppress progress bars and lists of unused weights."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(
            f"encoder {str(folder)!r} is neither bilstm nor transformer nor a folder here. Give the folder "
            "of a Hugging Face encoder; hf download NAME --local-dir FOLDER makes one. A trained run needs "
            "it too, where it was in training."
        )
    if not (folder / "config.json").is_file():
        raise DataError(
            f"encoder folder {folder} has no config.json; give a folder with configuration, tokenizer and "
            "weights of a Hugging Face model."
        )


def _load_config(folder: Path) -> Any:
    transformers = _transformers()
    _check_folder(folder)
    try:
        with _quietly(transformers):
            config = transformers.AutoConfig.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    # transformers passes on any exception of its parts, including plain Exception
    except Exception as error:
        raise DataError(
            f"encoder folder {folder}: config.json cannot be used ({_brief(error)}). Copy it there again, "
            f"choose a model that transformers {transformers.__version__} has, or install a later one; "
            "models with code of their own are not run."
        ) from None
    if getattr(config, "is_encoder_decoder", False):
        raise DataError(
            f"encoder folder {folder} holds a model of type {config.model_type!r}, which is an encoder and a "
            f"decoder; {CHOOSE}."
        )
    return config


def _load_tokenizer(folder: Path) -> Any:
    transformers = _transformers()
    _load_config(folder)
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise DataError(
            f"encoder folder {folder} has no tokenizer (no tokenizer.json); copy the files of the model's "
            "tokenizer there."
        )
    try:
        with _quietly(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise DataError(
            f"encoder folder {folder}: the tokenizer cannot be loaded ({_brief(error)}). Copy its files "
            "there again; tokenizers with code of their own are not run."
        ) from None
    return tokenizer


def _load_model(folder: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model in float32, and its parameters that are missing in the file of weights."""
    transformers, config = _transformers(), _load_config(folder)
    if not any((folder / name).is_file() for name in _SAFE):
        return _without_weights(folder, config), {}
    try:
        with _quietly(transformers):
            model, info = transformers.AutoModel.from_pretrained(
                str(folder),
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:
        raise DataError(
            f"encoder folder {folder}: the weights cannot be loaded ({_brief(error)}). "
            "Copy model.safetensors and config.json there again, from the same model."
        ) from None
    missing = {name: weight for name, weight in model.named_parameters() if name in info["missing_keys"]}
    network: nn.Module = model.float()
    return network, missing


def _without_weights(folder: Path, config: Any) -> nn.Module:
    pickled = [name for name in _UNSAFE if (folder / name).is_file()]
    if pickled:
        raise DataError(
            f"encoder folder {folder} has its weights in {pickled[0]}; reading such files can execute code. "
            f'If you trust it, make safetensors of it: python -c "import transformers; '
            f"transformers.AutoModel.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    warnings.warn(
        f"encoder folder {folder} has no weights (model.safetensors): they are random, which is of use only "
        "where those of a run replace them.",
        stacklevel=4,
    )
    transformers = _transformers()
    try:
        model: nn.Module = transformers.AutoModel.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise _no_encoder(folder, config.model_type, _brief(error)) from None
    return model.float()


def _table_size(folder: Path, model: nn.Module) -> int:
    """Number of embeddings of a model."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    except (AttributeError, NotImplementedError) as error:
        raise _no_encoder(folder, type(model).__name__, _brief(error)) from None


def _positions(model: nn.Module) -> int:
    """Maximum number of pieces of an input of the model."""
    config: Any = model.config
    configured = getattr(config, "max_position_embeddings", None)
    limits = [configured] if isinstance(configured, int) and configured > 0 else []
    for name, module in model.named_modules():
        # models such as RoBERTa start positions after the padding index
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and "position" in name:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min(limits, default=sys.maxsize)


def _probe(folder: Path, model: nn.Module, special: _Special) -> Tensor:
    """States of an empty sentence, shape ``(1, 2, states)``."""
    ids = torch.tensor([[special.first, special.last]])
    model.eval()
    try:
        states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    except Exception as error:
        raise _no_encoder(folder, type(model).__name__, _brief(error)) from None
    if not isinstance(states, Tensor) or states.dim() != 3 or states.shape[:2] != ids.shape:
        raise _no_encoder(folder, type(model).__name__, "it gives no state for each piece")
    return states


def _no_encoder(folder: Path, kind: str, why: str) -> DataError:
    return DataError(
        f"encoder folder {folder} holds a model {kind!r} that does not turn pieces of text into states "
        f"({why}); {CHOOSE}."
    )


def _check_missing(folder: Path, states: Tensor, missing: Mapping[str, Tensor]) -> None:
    """Refuse missing weights that influence the states, unlike a pooling layer on CLS."""
    if not missing:
        return
    gradients = torch.autograd.grad(states.sum(), list(missing.values()), allow_unused=True)
    needed = [name for name, gradient in zip(missing, gradients, strict=True) if gradient is not None]
    if needed:
        raise DataError(
            f"encoder folder {folder}: the weights lack {len(needed)} tensors, such as {needed[0]!r}; they "
            "belong to another model than config.json. Copy both there again, from the same model."
        )


def _brief(error: Exception) -> str:
    """Type and first line of a library's error message."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
