"""UAS, LAS and CLAS of the CoNLL 2018 shared task: words may differ from the gold ones, the text may not.

Words are aligned by the characters that they stand for
(https://universaldependencies.org/conll18/evaluation.html), white space left out. A word of its own is
aligned with one of exactly the same characters. The words of a multiword token have no characters of their
own: where such tokens of either file overlap, the words of that stretch are aligned by a longest common
subsequence of their forms in lower case. Sentence boundaries play no part in it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unn.errors import DataError

from ..conllu.treebank import Treebank

# relations between content words, which CLAS counts
CONTENT = frozenset(
    {
        "nsubj",
        "obj",
        "iobj",
        "csubj",
        "ccomp",
        "xcomp",
        "obl",
        "vocative",
        "expl",
        "dislocated",
        "advcl",
        "advmod",
        "discourse",
        "nmod",
        "appos",
        "nummod",
        "acl",
        "amod",
        "conj",
        "fixed",
        "flat",
        "compound",
        "list",
        "parataxis",
        "orphan",
        "goeswith",
        "reparandum",
        "root",
        "dep",
    }
)
_ROOT, _UNALIGNED = -1, -2


@dataclass(frozen=True)
class Score:
    """Counts and their fractions in [0, 1]; 0 if the denominator is 0.

    Attributes:
        correct: number of correct aligned words.
        gold: number of counted words of the gold file.
        system: number of counted words of the system's file.
        aligned: number of aligned words whose gold word counts.
    """

    correct: int
    gold: int
    system: int
    aligned: int

    @property
    def precision(self) -> float:
        """Fraction of the system's words that are correct."""
        return self.correct / self.system if self.system else 0.0

    @property
    def recall(self) -> float:
        """Fraction of the gold words that are correct."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall: the figure of the shared task."""
        return 2 * self.correct / (self.gold + self.system) if self.gold + self.system else 0.0

    @property
    def aligned_accuracy(self) -> float:
        """Fraction of the aligned words that are correct."""
        return self.correct / self.aligned if self.aligned else 0.0


@dataclass(frozen=True)
class Conll18:
    """Scores of one file.

    Attributes:
        words: all aligned words are correct.
        uas: heads must be aligned, too.
        las: labels must be equal, too, ignoring subtypes (``nmod:poss``).
        clas: as ``las``, but only for words with a relation in ``CONTENT``.
    """

    words: Score
    uas: Score
    las: Score
    clas: Score


def score(gold: Treebank, system: Treebank) -> Conll18:
    """Score a system's file against the gold one; both were read with ``trees=True``.

    Raises:
        DataError: if the files hold different text, a head is missing, or a sentence was skipped.
    """
    ours, theirs = _tokens(gold), _tokens(system)
    _check_text(gold, ours, system, theirs)
    partner = {s: g for g, s in _align(ours.words, theirs.words)}
    # heads in terms of gold words, so that those of both files can be compared
    aligned_heads = [
        head if head == _ROOT else partner.get(head, _UNALIGNED)
        for head in (word.head for word in theirs.words)
    ]

    def count(right: Callable[[int, int], bool], labels: frozenset[str] | None = None) -> Score:
        counts = [labels is None or word.label in labels for word in ours.words]
        pairs = [(g, s) for s, g in partner.items() if counts[g]]
        system_total = sum(labels is None or word.label in labels for word in theirs.words)
        return Score(sum(right(g, s) for g, s in pairs), sum(counts), system_total, len(pairs))

    def attached(g: int, s: int) -> bool:
        return ours.words[g].head == aligned_heads[s]

    def labelled(g: int, s: int) -> bool:
        return attached(g, s) and ours.words[g].label == theirs.words[s].label

    return Conll18(count(lambda g, s: True), count(attached), count(labelled), count(labelled, CONTENT))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A word: the characters start to end of the text that it, or the multiword token that it is part of,
    stands for."""

    start: int
    end: int
    form: str
    multiword: bool
    head: int
    label: str
    line: int


@dataclass(frozen=True)
class _Tokens:
    text: str
    words: list[_Unit]


def _tokens(treebank: Treebank) -> _Tokens:
    """The text without white space and the words; heads are positions among all words, or _ROOT."""
    if treebank.skipped:
        raise DataError(
            f"{treebank.source}, line {treebank.skipped[0].line}: {treebank.skipped[0].reason} Sentences "
            "cannot be skipped in scoring."
        )
    pieces: list[str] = []
    units: list[_Unit] = []
    end = 0
    for sentence in treebank.sentences:
        ranges = {first: (last, form) for first, last, form in sentence.ranges}
        first_unit, covered, start = len(units), 0, 0
        for i, (word, head) in enumerate(zip(sentence.words, sentence.heads, strict=True), 1):
            if i > covered:
                covered, token = ranges.get(i, (i, word.form))
                pieces.append("".join(c for c in token if unicodedata.category(c) != "Zs"))
                start, end = end, end + len(pieces[-1])
                multiword = i in ranges
            label = word.deprel.partition(":")[0]
            units.append(
                _Unit(
                    start,
                    end,
                    word.form.lower(),
                    multiword,
                    first_unit + head - 1 if head else _ROOT,
                    label,
                    word.line,
                )
            )
    return _Tokens("".join(pieces), units)


def _check_text(gold: Treebank, ours: _Tokens, system: Treebank, theirs: _Tokens) -> None:
    """Raises: DataError: if the characters differ, with the place of the first that does."""
    if ours.text == theirs.text:
        return
    shorter = min(len(ours.text), len(theirs.text))
    at = next((i for i in range(shorter) if ours.text[i] != theirs.text[i]), shorter)
    places = []
    for treebank, tokens in ((gold, ours), (system, theirs)):
        line = next((word.line for word in tokens.words if word.end > at), None)
        places.append(
            f"{treebank.source}{'' if line is None else f', line {line}'}: "
            f"{tokens.text[at : at + 20] or 'the end'!r}"
        )
    raise DataError(
        f"{places[1]} instead of {places[0]}. Both files must hold the same text; only the division into "
        "words may differ."
    )


def _align(gold: Sequence[_Unit], system: Sequence[_Unit]) -> list[tuple[int, int]]:
    """Pairs of positions of aligned words, in order."""
    pairs = []
    g = s = 0
    while g < len(gold) and s < len(system):
        a, b = gold[g], system[s]
        if a.multiword or b.multiword:
            # a single word that begins earlier stays outside the stretch
            if a.multiword and not b.multiword and b.start < a.start:
                s += 1
            elif b.multiword and not a.multiword and a.start < b.start:
                g += 1
            g_end, s_end = _stretch(gold, system, g, s, a.end if a.multiword else b.end)
            common = _common([word.form for word in gold[g:g_end]], [word.form for word in system[s:s_end]])
            pairs += [(g + i, s + j) for i, j in common]
            g, s = g_end, s_end
        elif (a.start, a.end) == (b.start, b.end):
            pairs.append((g, s))
            g, s = g + 1, s + 1
        elif a.start <= b.start:
            g += 1
        else:
            s += 1
    return pairs


def _stretch(gold: Sequence[_Unit], system: Sequence[_Unit], g: int, s: int, end: int) -> tuple[int, int]:
    """End of the stretch of overlapping multiword tokens that begins at words g and s, in both files.

    Words join in the order of their first characters, gold ones first; each multiword token may extend its
    end.
    """

    def joins(words: Sequence[_Unit], i: int) -> bool:
        return i < len(words) and (words[i].start < end if words[i].multiword else words[i].end <= end)

    while joins(gold, g) or joins(system, s):
        if s == len(system) or (g < len(gold) and gold[g].start <= system[s].start):
            word, g = gold[g], g + 1
        else:
            word, s = system[s], s + 1
        if word.multiword:
            end = max(end, word.end)
    return g, s


def _common(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence; ties prefer pairs late in ``a``."""
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = 1 + best[i + 1][j + 1] if a[i] == b[j] else max(best[i + 1][j], best[i][j + 1])
    pairs = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i + 1][j] == best[i][j]:
            i += 1
        else:
            j += 1
    return pairs
