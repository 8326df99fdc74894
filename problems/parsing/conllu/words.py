"""Words of one CoNLL-U sentence: parsing of columns and validation of the tree."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
ID = re.compile(r"([1-9][0-9]*)")
RANGE = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
_EMPTY = re.compile(r"(0|[1-9][0-9]{0,8})\.([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Word:
    """One syntactic word: nine columns of the file, HEAD as a number (None for ``_``), and its line
    number."""

    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int | None
    deprel: str
    deps: str
    misc: str
    line: int


class SentenceError(Exception):
    """Error in one sentence: reason, remedy and line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines without a blank one."""

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    line: int


def name_of(i: int, form: str) -> str:
    return f"word {i} {form if len(form) <= 40 else form[:37] + '...'!r}"


def too_long(longest: int) -> str:
    return f"the sentence has more than {longest} words. Split it, or allow longer sentences."


def words_of(block: LineBlock, numbers: dict[str, int], longest: int) -> tuple[Word, ...]:
    """The words of one sentence; ids, ranges and empty nodes are checked, heads only for being 0 to n or
    ``_``.

    Raises:
        SentenceError: for malformed lines, with the line.
    """
    rows: list[tuple[int, list[str]]] = []
    ranges: list[tuple[int, int, int]] = []
    empty, begun = 0, False
    for number, line in enumerate(block.lines, block.line):
        if "\r" in line:
            raise SentenceError(
                number, "a carriage return stands inside the line. Remove it, or convert the line ends to LF."
            )
        if line[0] == "#":
            if begun:
                raise SentenceError(
                    number,
                    "a comment stands among the words. Put it before the first, or a blank line before the "
                    "next sentence.",
                )
            continue
        columns, begun = line.split("\t"), True
        if len(columns) != 10 or "" in columns or not columns[1].strip():
            raise SentenceError(number, _wrong_columns(line, columns))
        n = len(rows)
        if numbers.get(columns[0]) == n + 1:
            rows.append((number, columns))
            empty = 0
        elif match := _EMPTY.fullmatch(columns[0]):
            empty += 1
            if columns[0] != f"{n}.{empty}" or (ranges and ranges[-1][0] > n):
                raise SentenceError(
                    number,
                    f"empty node {columns[0]} is out of place. After word {n} and its empty nodes comes "
                    f"{n}.{empty}.",
                )
        elif match := RANGE.fullmatch(columns[0]):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise SentenceError(number, f"range {columns[0]} goes backwards. Write the smaller id first.")
            if ranges and first <= ranges[-1][1]:
                raise SentenceError(
                    number,
                    f"range {columns[0]} overlaps with {ranges[-1][0]}-{ranges[-1][1]}. A word is in one "
                    "multiword token.",
                )
            if first != n + 1:
                raise SentenceError(
                    number,
                    f"range {columns[0]} is out of place: the next word is {n + 1}. Put it right before word "
                    f"{first}.",
                )
            ranges.append((first, last, number))
        else:
            raise SentenceError(number, _wrong_id(columns[0], n, longest))
    n = len(rows)
    if not n:
        raise SentenceError(block.line, "the sentence has no words. Remove it, or give it words.")
    for first, last, number in ranges:
        if last > n:
            raise SentenceError(
                number, f"range {first}-{last} exceeds the sentence of {n} words. Correct the ids."
            )
    words: list[Word] = []
    intern = sys.intern  # tags repeat: a third of the memory
    for number, (_, form, lemma, upos, xpos, feats, given, deprel, deps, misc) in rows:
        head = None if given == "_" else numbers.get(given, -1)
        if head is not None and not 0 <= head <= n:
            i = len(words) + 1
            if ID.fullmatch(given):
                raise SentenceError(
                    number,
                    f"HEAD {given[:20]} of {name_of(i, form)} is out of range. Heads are 0 (root) to {n}, "
                    "the last word.",
                )
            raise SentenceError(
                number,
                f"HEAD {given[:20]!r} of {name_of(i, form)} is not a number. Heads are 0 (root) to {n}, or _ "
                "for none.",
            )
        words.append(
            Word(
                form,
                lemma,
                intern(upos),
                intern(xpos),
                intern(feats),
                head,
                intern(deprel),
                deps,
                misc,
                number,
            )
        )
    return tuple(words)


def _wrong_columns(line: str, columns: list[str]) -> str:
    """Explain why a line does not have ten columns."""
    if not line.strip():
        return "the line has only white space. A line between sentences must be empty: remove it."
    if len(columns) != 10:
        one = f"the line has {len(columns)} column{'s' * (len(columns) != 1)}, not 10"
        if len(columns) == 1 and len(line.split()) > 1:
            return f"{one}: they seem to be separated by spaces. Separate them by tabs."
        if len(line.split()) == 10:
            return f"{one}: some seem to be separated by spaces. Separate them by single tabs."
        return f"{one}. Write ID to MISC, separated by tabs, _ for what is not known."
    empty = columns.index("") if "" in columns else 1
    return f"column {empty + 1} ({COLUMNS[empty]}) is empty. Write _ for what is not known."


def _wrong_id(given: str, n: int, longest: int) -> str:
    """Explain why an id cannot follow n words."""
    if given == str(n + 1):
        return too_long(longest)
    if not ID.fullmatch(given):
        return (
            f"id {given[:20]!r} is neither a number (3) nor a range (3-4) nor an empty node (8.1). The next "
            f"word is {n + 1}."
        )
    if n and given == "1":
        return f"ids begin again at 1 after word {n}. Put a blank line between sentences."
    if len(given) < 10 and int(given) <= n:
        return f"id {given} stands twice. The next word is {n + 1}."
    return f"id {given[:20]} cannot follow {n}: ids are consecutive. The next word is {n + 1}."


def check_tree(words: Sequence[Word], needed: bool) -> None:
    """Check that there is one root and no cycle; heads may be missing unless a tree is needed.

    Raises:
        SentenceError: for an invalid tree, with the line of a word.
    """
    heads = [word.head for word in words]
    if needed and None in heads:
        i = heads.index(None)
        raise SentenceError(
            words[i].line, f"{name_of(i + 1, words[i].form)} has no head (HEAD is _). Give every word a head."
        )
    for i, (word, head) in enumerate(zip(words, heads, strict=True), 1):
        if head == i:
            raise SentenceError(word.line, f"{name_of(i, word.form)} is its own head. Give it another head.")
    if heads.count(0) > 1:
        first = heads.index(0)
        second = heads.index(0, first + 1)
        both = f"{name_of(first + 1, words[first].form)} and {name_of(second + 1, words[second].form)}"
        raise SentenceError(
            words[second].line,
            f"several roots: {both} have head 0. A tree has one root: give the others another head.",
        )
    if 0 not in heads and None not in heads:
        raise SentenceError(words[0].line, "no word has head 0. A tree has one root: give it head 0.")
    if cycle := find_cycle(heads):
        names = [name_of(i, words[i - 1].form) for i in cycle]
        shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
        line, path = words[cycle[0] - 1].line, " -> ".join([*shown, names[0]])
        raise SentenceError(line, f"heads form a cycle: {path}. Give one of these words another head.")


def find_cycle(heads: Sequence[int | None]) -> list[int]:
    """The numbers of the words of the first cycle, each before its head; empty if there is none.

    Args:
        heads: number of the head of each word from 1; 0 for the root, None if it is missing.
    """
    seen = [0] * (len(heads) + 1)
    for start in range(1, len(heads) + 1):
        path: list[int] = []
        at: int | None = start
        while at and not seen[at]:
            seen[at] = start
            path.append(at)
            at = heads[at - 1]
        if at and seen[at] == start:
            return path[path.index(at) :]
    return []
