"""Reading and writing CoNLL-U: every byte is preserved, and errors contain the line.

The format: https://universaldependencies.org/format.html. Syntactic words (ids 1 to n) make the tree;
comments, multiword ranges (``3-4``) and empty nodes (``8.1``) are checked and preserved.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from unn.errors import DataError

from .words import ID, RANGE, LineBlock, SentenceError, check_tree, name_of, too_long, words_of
from .words import Word as Word

_WORD_START = re.compile(r"[0-9]+([-.][0-9]+)?\t")
_KNOWN_COMMENT = re.compile(r"# *(sent_id|text|newdoc|newpar|global\.columns)\b")
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}

Source = str | Path | BinaryIO


@dataclass(frozen=True)
class Sentence:
    """One sentence.

    Attributes:
        lines: every original line without its end: comments, multiword ranges, empty nodes and words.
        words: the syntactic words; the word with id i is ``words[i - 1]``.
        line: number of the first line in the file.
        ends: end of each line (``"\\n"``, ``"\\r\\n"``, or nothing at the end of the file); () for that of
            the rest of the file.
    """

    lines: tuple[str, ...]
    words: tuple[Word, ...]
    line: int
    ends: tuple[str, ...] = ()

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the n words."""
        return tuple(word.form for word in self.words)

    @property
    def has_tree(self) -> bool:
        """Whether every word has a head."""
        return all(word.head is not None for word in self.words)

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of the n words, 0 for the root.

        Raises:
            DataError: if a head is missing (``_``).
        """
        heads = []
        for i, word in enumerate(self.words, 1):
            if word.head is None:
                raise DataError(
                    f"line {word.line}: {name_of(i, word.form)} has no head (HEAD is _). Give sentences with "
                    "trees."
                )
            heads.append(word.head)
        return tuple(heads)

    @property
    def ranges(self) -> tuple[tuple[int, int, str], ...]:
        """Multiword tokens: first word, last word, form."""
        rows = (line.split("\t", 2) for line in self.lines if line[0] != "#")
        matches = ((RANGE.fullmatch(row[0]), row) for row in rows)
        return tuple((int(match[1]), int(match[2]), row[1]) for match, row in matches if match)

    def with_heads(self, heads: Sequence[int], deprels: Sequence[str] | None = None) -> Sentence:
        """Replace the heads; all bytes except three columns of the word lines are preserved.

        HEAD is replaced. DEPREL becomes ``deprels``; without them it is preserved where the head is unchanged
        and DEPREL is not ``_``, and is otherwise ``root`` for head 0 and ``dep`` for others. DEPS becomes
        ``_`` where the head changes, since it described the old one.

        Args:
            heads: n numbers, 0 for the root; they need not form a tree.
            deprels: n labels.

        Raises:
            DataError: if the number of heads or labels is wrong, a head is not in 0 to n, or a label is empty
                or has white space.
        """
        n = len(self.words)
        heads = [int(head) for head in heads]
        for what, values in (("heads", heads), ("labels", deprels)):
            if values is not None and len(values) != n:
                raise DataError(
                    f"line {self.line}: {len(values)} {what} for a sentence of {n} words. Give one for each "
                    "word."
                )
        lines, words, rows = list(self.lines), [], _word_rows(self.lines)
        for i, (row, word, head) in enumerate(zip(rows, self.words, heads, strict=True)):
            if not 0 <= head <= n:
                raise DataError(
                    f"line {word.line}: head {head} for {name_of(i + 1, word.form)} of {n}. Give heads 0 "
                    f"(root) to {n}."
                )
            unchanged = head == word.head
            if deprels is not None:
                deprel = deprels[i]
                if deprel.split() != [deprel]:
                    raise DataError(
                        f"line {word.line}: label {deprel!r} is empty or has white space. Give labels "
                        "without it."
                    )
            elif unchanged and word.deprel != "_":
                deprel = word.deprel
            else:
                deprel = "dep" if head else "root"
            deps = word.deps if unchanged else "_"
            columns = lines[row].split("\t")
            columns[6:9] = str(head), deprel, deps
            lines[row] = "\t".join(columns)
            words.append(replace(word, head=head, deprel=deprel, deps=deps))
        return replace(self, lines=tuple(lines), words=tuple(words))


@dataclass(frozen=True)
class Skipped:
    """A malformed sentence, to be copied unchanged.

    Attributes:
        line: number of the malformed line.
        reason: error message with remedy.
        lines: every line of the sentence, without its end.
        index: index among all sentences of the file, from 0, including skipped ones.
        ends: end of each line; () for that of the rest of the file.
    """

    line: int
    reason: str
    lines: tuple[str, ...]
    index: int
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Treebank:
    """A whole file: writing it reproduces every byte that was read.

    Attributes:
        sentences: valid sentences, in order.
        skipped: malformed sentences, in order.
        line_end: the more frequent of ``"\\n"`` and ``"\\r\\n"``.
        source: name of the file.
        gaps: the text before each sentence, skipped or not, and after the last: blank lines, comments without
            words, a byte order mark. () for a blank line after each.
    """

    sentences: tuple[Sentence, ...]
    skipped: tuple[Skipped, ...] = ()
    line_end: str = "\n"
    source: str = "<memory>"
    gaps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        total = len(self.sentences) + len(self.skipped)
        if self.gaps and len(self.gaps) != total + 1:
            raise DataError(
                f"{self.source}: {total} sentences for a file of {len(self.gaps) - 1}. Keep all of them, or "
                "leave `gaps` empty."
            )

    def with_heads(
        self, heads: Sequence[Sequence[int]], deprels: Sequence[Sequence[str]] | None = None
    ) -> Treebank:
        """Replace the heads in `sentences`; see ``Sentence.with_heads``.

        Raises:
            DataError: for wrong numbers of sentences or words, or an invalid head or label.
        """
        if len(heads) != len(self.sentences) or (deprels is not None and len(deprels) != len(self.sentences)):
            raise DataError(
                f"{self.source}: heads or labels of another number of sentences than {len(self.sentences)}. "
                "Give one list for each."
            )
        labels = [None] * len(heads) if deprels is None else deprels
        return replace(
            self,
            sentences=tuple(
                s.with_heads(h, d) for s, h, d in zip(self.sentences, heads, labels, strict=True)
            ),
        )

    def pieces(self) -> Iterator[str]:
        """Text of the file, in pieces."""
        total = len(self.sentences) + len(self.skipped)
        gaps = self.gaps or ("", *[self.line_end] * total)
        bad = {block.index: block for block in self.skipped}
        good = iter(self.sentences)
        yield gaps[0]
        for index in range(total):
            block = bad[index] if index in bad else next(good)
            for line, end in zip(block.lines, block.ends or (self.line_end,) * len(block.lines), strict=True):
                yield line + end
            yield gaps[index + 1]

    def to_bytes(self) -> bytes:
        """The file in UTF-8, not compressed."""
        return "".join(self.pieces()).encode()

    def write(self, target: str | Path | BinaryIO) -> None:
        """Write the file, not compressed, to a path or a binary stream.

        Raises:
            OSError: if it cannot be written.
        """
        if isinstance(target, str | Path):
            Path(target).write_bytes(self.to_bytes())
        else:
            target.write(self.to_bytes())


def read_conllu(source: Source, *, trees: bool, skip_bad: bool = False, longest: int = 1000) -> Treebank:
    """Read a file of CoNLL-U, optionally gzip-compressed (detected by its content, not its name).

    Args:
        source: path or binary stream.
        trees: require a tree of every sentence: heads 0 to n, one root, no cycle. Otherwise HEAD may also be
            ``_``.
        skip_bad: collect malformed sentences in `skipped`; errors of the file as a whole still raise.
        longest: maximum number of words of a sentence.

    Raises:
        DataError: 'FILE, line N: reason. What to do.'
    """
    name, text = _read(source)
    blocks, gaps = _split(text)
    if not blocks:
        raise DataError(
            f"{name}, line 1: the file has no sentences, only blank lines or comments. Check that it is the "
            "right file."
        )
    most = min(longest, max(len(block.lines) for block in blocks))
    numbers = {str(i): i for i in range(most + 1)}
    sentences, skipped = [], []
    for index, block in enumerate(blocks):
        try:
            words = words_of(block, numbers, longest)
            check_tree(words, trees)
            sentences.append(Sentence(block.lines, words, block.line, block.ends))
        except SentenceError as error:
            if not skip_bad:
                raise DataError(f"{name}, line {error.line}: {error}") from None
            skipped.append(Skipped(error.line, str(error), block.lines, index, block.ends))
    return Treebank(tuple(sentences), tuple(skipped), _line_end(text), name, gaps)


def read_tokens(source: Source, *, longest: int = 1000) -> Treebank:
    """Read raw text, one sentence per line of tokens separated by white space; empty lines are ignored.

    Raises:
        DataError: 'FILE, line N: reason. What to do.'
    """
    name, text = _read(source)
    end, sentences = _line_end(text), []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        tokens = line.split()
        if len(tokens) > longest:
            raise DataError(f"{name}, line {number}: {too_long(longest)}")
        if tokens:
            words = tuple(Word(token, "_", "_", "_", "_", None, "_", "_", "_", number) for token in tokens)
            rows = (f"{i}\t{token}" + "\t_" * 8 for i, token in enumerate(tokens, 1))
            lines = (f"# text = {' '.join(tokens)}", *rows)
            sentences.append(Sentence(lines, words, number, (end,) * len(lines)))
    if not sentences:
        raise DataError(
            f"{name}, line 1: the file has no tokens. Give one sentence per line, tokens separated by spaces."
        )
    return Treebank(tuple(sentences), (), end, name)


def looks_like_conllu(first: bytes) -> bool:
    """Whether a file that begins with these bytes (a few thousand, of gzip or not) is CoNLL-U rather than raw
    tokens.

    Decided by the first line that is neither blank nor a comment: an id and a tab, or ten columns without
    tabs. If all are comments, decided by whether one is defined by CoNLL-U (``# sent_id``, ``# text``, ...).
    """
    if first.startswith(_GZIP):
        try:
            first = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(first, 65536)
        except zlib.error:
            return False
    lines = first.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    for line in lines:
        if line.strip() and not line.startswith("#"):
            columns = line.split()
            spaced = (
                len(columns) == 10
                and re.fullmatch(r"1(-[0-9]+)?", columns[0])
                and re.fullmatch(r"_|[0-9]+", columns[6])
            )
            return bool(_WORD_START.match(line) or spaced)
    return any(_KNOWN_COMMENT.match(line) for line in lines)


def _line_end(text: str) -> str:
    return "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"


def _word_rows(lines: Sequence[str]) -> list[int]:
    """Indices of the lines of syntactic words."""
    return [row for row, line in enumerate(lines) if ID.fullmatch(line.partition("\t")[0])]


def _read(source: Source) -> tuple[str, str]:
    """Name and text of a file, including a byte order mark.

    Raises:
        DataError: if it cannot be read, or is not text in UTF-8.
    """
    given = getattr(source, "name", None)
    name = str(source) if isinstance(source, str | Path) else given if isinstance(given, str) else "<stream>"
    try:
        raw = Path(source).read_bytes() if isinstance(source, str | Path) else source.read()
    except (OSError, ValueError) as error:
        raise DataError(
            f"{name}: cannot be read ({getattr(error, 'strerror', None) or error}). Check the path."
        ) from None
    if not isinstance(raw, bytes):
        raise DataError(
            f"{name}: the stream gives text, not bytes. Open it in binary mode, as sys.stdin.buffer is."
        )
    if raw.startswith(_GZIP):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{name}: cannot be decompressed ({error}). Compress or download it again."
            ) from None
    if not raw:
        raise DataError(f"{name}, line 1: the file is empty. Check that it is the right file.")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            raise DataError(
                f"{name}, line 1: the file is {encoding}, by its byte order mark. Convert it to UTF-8: iconv "
                f"-f {encoding} -t UTF-8."
            )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line, byte = _place(raw, error.start)
        raise DataError(
            f"{name}, line {line}: byte {byte} of the line (0x{raw[error.start]:02x}) is not UTF-8 "
            f"({error.reason}). Convert the file to UTF-8, for example by iconv, or repair it."
        ) from None
    if "\0" in text:
        line, byte = _place(raw, raw.index(0))
        raise DataError(
            f"{name}, line {line}: byte {byte} of the line is NUL, so the file is not text in UTF-8. Convert "
            "it or repair it."
        )
    if "\r" in text and "\n" not in text:
        raise DataError(
            f"{name}, line 1: lines end with a carriage return alone. Convert the line ends to LF: tr '\\r' "
            "'\\n'."
        )
    return name, text


def _place(raw: bytes, position: int) -> tuple[int, int]:
    """Line number and byte within the line, both from 1."""
    return raw.count(b"\n", 0, position) + 1, position - raw.rfind(b"\n", 0, position)


def _split(text: str) -> tuple[list[LineBlock], tuple[str, ...]]:
    """Sentences, and the text before, between and after them.

    Only LF ends a line: other Unicode separators may occur in fields.
    """
    blocks: list[LineBlock] = []
    gaps: list[str] = []
    gap = ["\ufeff"] if text.startswith("\ufeff") else []
    rows = text.removeprefix("\ufeff").split("\n")
    last = len(rows) - 1
    rows.append("")  # a blank line that closes the last sentence
    lines: list[str] = []
    ends: list[str] = []
    for row, line in enumerate(rows):
        end = "\n" if row < last else ""
        if end and line.endswith("\r"):
            line, end = line[:-1], "\r\n"
        if line:
            lines.append(line)
            ends.append(end)
            continue
        if lines:
            if all(comment.startswith("#") and "\r" not in comment for comment in lines):
                gap += map("".join, zip(lines, ends, strict=True))
            else:
                blocks.append(LineBlock(tuple(lines), tuple(ends), row - len(lines) + 1))
                gaps.append("".join(gap))
                gap = []
            lines, ends = [], []
        gap.append(end)
    return blocks, (*gaps, "".join(gap))
