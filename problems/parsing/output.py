"""Parsing files: input, given arcs and output."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

import unn
from unn.errors import DataError, DivergenceError, ObservationError
from unn.extending import Answer
from unn.runs.files import make_folder, write_atomically

from .conllu.treebank import Sentence, Treebank, looks_like_conllu, read_conllu, read_tokens
from .data import list_skipped
from .network import ParsingNetwork
from .train import divergence
from .verb import ParseFile
from .vocabulary import Reader

FORBIDDEN = "NotHead"
"""Attribute in MISC that forbids heads, as in ``NotHead=2,5``."""


@dataclass(frozen=True)
class Parsed:
    """One sentence with its tree.

    Attributes:
        heads: 0 for the root, shape ``(n,)``.
        labels: labels of the arcs; None if the parser has none.
        marginals: marginal probability of each arc, shape ``(n + 1, n)``, row 0 the root; None if not shown,
            to save memory.
    """

    heads: list[int]
    labels: list[str] | None
    marginals: Tensor | None


def read_sentences(request: ParseFile) -> Treebank:
    """Read the sentences of a file or of standard input, with or without heads.

    Raises:
        DataError: for a file that cannot be read or is malformed, with the line.
    """
    # read once, since a pipe cannot be read again
    raw = _read(request.file)
    source = io.BytesIO(raw)
    source.name = "<stdin>" if request.file == "-" else request.file
    if request.format == "tokens" or (request.format == "auto" and not looks_like_conllu(raw[:4096])):
        return read_tokens(source)
    return read_conllu(source, trees=False, skip_bad=request.skip_bad)


def _read(file: str) -> bytes:
    if file == "-" and sys.stdin is None:
        raise DataError("<stdin>: standard input is closed. Give a file, or pipe sentences in.")
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{file}: cannot be read ({reason}). Give a CoNLL-U file, or one sentence per line."
        ) from None


def given_arcs(sentences: Sequence[Sentence]) -> unn.Partial:
    """Given arcs from the heads of sentences, and forbidden arcs from ``NotHead`` in MISC.

    Raises:
        DataError: for a ``NotHead`` without valid heads, with the line.
    """
    longest = max(len(sentence.words) for sentence in sentences)
    value = torch.zeros(len(sentences), longest + 1, longest)
    mask = torch.zeros(value.shape, dtype=torch.bool)
    for b, sentence in enumerate(sentences):
        for m, word in enumerate(sentence.words):
            if word.head is not None:
                value[b, word.head, m] = 1
                mask[b, word.head, m] = True
            for head in _forbidden(word.misc, word.line, len(sentence.words)):
                if head == word.head:
                    raise DataError(
                        f"line {word.line}: head {head} is both given and forbidden by {FORBIDDEN}; drop one "
                        "of the two."
                    )
                mask[b, head, m] = True
    return unn.Partial(value, mask)


def _forbidden(misc: str, line: int, count: int) -> list[int]:
    """Heads of all attributes ``NotHead`` of a word.

    Raises:
        DataError: for a head that is no word of the sentence, with the line.
    """
    forbidden: list[int] = []
    for attribute in misc.split("|"):
        name, _, text = attribute.partition("=")
        if name != FORBIDDEN:
            continue
        heads = text.split(",")
        if not all(
            head.isascii() and head.isdecimal() and len(head) < 10 and int(head) <= count for head in heads
        ):
            raise DataError(
                f"line {line}: {attribute!r} in MISC must list heads from 0 to {count}, as in "
                f"{FORBIDDEN}=2,5."
            )
        forbidden += map(int, heads)
    return forbidden


@torch.no_grad()
def parse_sentences(
    network: ParsingNetwork,
    reader: Reader,
    labels: Sequence[str],
    sentences: Sequence[Sentence],
    request: ParseFile,
) -> list[Parsed]:
    """Trees of all sentences, in order; sentences of similar length are parsed in one batch.

    Raises:
        DataError: if no tree agrees with the given and forbidden arcs, with the line.
        DivergenceError: if the scores of a sentence are NaN or infinite, with the line.
    """
    results: list[Parsed | None] = [None] * len(sentences)
    for numbers in batches(sentences, request.batch):
        chosen = [sentences[k] for k in numbers]
        for k, parsed in zip(numbers, _parse_batch(network, reader, labels, chosen, request), strict=True):
            results[k] = parsed
    return cast(list[Parsed], results)


def _parse_batch(
    network: ParsingNetwork,
    reader: Reader,
    labels: Sequence[str],
    sentences: Sequence[Sentence],
    request: ParseFile,
) -> Iterator[Parsed]:
    device = next(network.parameters()).device
    lengths = torch.tensor([len(sentence.words) for sentence in sentences])
    words = reader.batch(sentences)
    arcs = given_arcs(sentences) if request.complete else None
    try:
        moved = None if arcs is None else unn.Partial(arcs.value.to(device), arcs.mask.to(device))
        parse = network.parse(words.to(device), lengths.to(device), request.iterations, moved)
    except (ObservationError, DivergenceError) as error:
        if len(sentences) > 1:
            # one by one, to identify the sentence
            for sentence in sentences:
                yield from _parse_batch(network, reader, labels, [sentence], request)
            return
        if isinstance(error, DivergenceError):
            raise divergence(f"line {sentences[0].line}", request.iterations, network.config) from None
        raise DataError(
            f"line {sentences[0].line}: no tree agrees with the heads that are given and forbidden in this "
            f"sentence ({error})"
        ) from None
    for b, sentence in enumerate(sentences):
        n = len(sentence.words)
        own = None if parse.labels is None else [labels[k] for k in parse.labels[b, :n].tolist()]
        if own is not None and request.complete:
            own = [
                word.deprel if word.head is not None and word.deprel != "_" else label
                for word, label in zip(sentence.words, own, strict=True)
            ]
        shown = request.show != "conllu" or request.draw is not None
        yield Parsed(
            parse.heads[b, :n].tolist(), own, parse.marginals[b, : n + 1, :n].cpu().clone() if shown else None
        )


def batches(sentences: Sequence[Sentence], most: int) -> list[list[int]]:
    """Indices of sentences in batches of similar length, of at most ``most`` padded words or one sentence."""
    ordered = sorted(range(len(sentences)), key=lambda k: len(sentences[k].words))
    parts: list[list[int]] = []
    for k in ordered:
        if parts and (len(parts[-1]) + 1) * len(sentences[k].words) <= most:
            parts[-1].append(k)
        else:
            parts.append([k])
    return parts


def insert_trees(treebank: Treebank, parsed: Sequence[Parsed]) -> Treebank:
    """Insert the parsed trees into the file.

    Raises:
        DataError: for an invalid given label, with the line.
    """
    labels = [own.labels for own in parsed]
    known = cast(list[Sequence[str]], labels) if all(own is not None for own in labels) else None
    try:
        return treebank.with_heads([own.heads for own in parsed], known)
    except DataError as error:
        raise DataError(f"{treebank.source}, {error}") from None


def answer(treebank: Treebank, parsed: Sequence[Parsed], request: ParseFile) -> Answer:
    """Write the requested output, and list skipped sentences on standard error.

    Raises:
        DataError: if a file cannot be written, or a given label is invalid.
    """
    list_skipped(treebank, "copied unchanged")
    content = (
        insert_trees(treebank, parsed).to_bytes()
        if request.show == "conllu"
        else _as_text(treebank, parsed, request.show).encode()
    )
    files: list[str] = []
    lines: list[str] = []
    if request.draw is not None:
        files += _draw(treebank, parsed, request.draw)
    if request.out is not None:
        _write(request.out, content)
        lines.append(f"{len(parsed)} sentences parsed, written to {request.out}")
        files.append(str(request.out))
    data = {
        "sentences": [
            {"line": sentence.line, "forms": list(sentence.forms), "heads": own.heads, "labels": own.labels}
            for sentence, own in zip(treebank.sentences, parsed, strict=True)
        ],
        "skipped": [{"line": skipped.line, "reason": skipped.reason} for skipped in treebank.skipped],
        "files": files,
    }
    return Answer(tuple(lines), data, content if request.out is None else None)


def _write(path: Path, content: bytes) -> None:
    """Write a file, compressed if its name ends in .gz; special files such as pipes are not replaced.

    Raises:
        DataError: if it cannot be written; an existing file is then unchanged.
    """
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    if path.is_file() or not path.exists():
        write_atomically(path.resolve(), content)
        return
    try:
        path.write_bytes(content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _as_text(treebank: Treebank, parsed: Sequence[Parsed], show: str) -> str:
    from .draw import heat_text, tree_text

    parts = []
    for sentence, own in zip(treebank.sentences, parsed, strict=True):
        if show == "tree":
            parts.append(tree_text(own.heads, sentence.forms, own.labels, own.marginals))
        else:
            assert own.marginals is not None
            parts.append(heat_text(own.marginals, sentence.forms))
    return "\n\n".join(parts) + "\n"


def _draw(treebank: Treebank, parsed: Sequence[Parsed], folder: Path) -> list[str]:
    from unn.draw import save_figure

    from .draw import draw_arcs, draw_marginals

    make_folder(folder)
    files = []
    digits = len(str(len(parsed)))
    for number, (sentence, own) in enumerate(zip(treebank.sentences, parsed, strict=True), 1):
        for kind, figure in (
            ("tree", draw_arcs(own.heads, sentence.forms, own.labels, weights=own.marginals)),
            ("marginals", draw_marginals(cast(Tensor, own.marginals), sentence.forms)),
        ):
            path = folder / f"{number:0{digits}}-{kind}.svg"
            save_figure(figure, path)
            files.append(str(path))
    return files
