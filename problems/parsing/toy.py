"""Sentences of a small generated language with trees, for using the parser without data.

Prepositional phrases attach to the verb or to the noun before them by the preposition, and relative clauses
can be extraposed, which makes trees that are not projective.
"""

from __future__ import annotations

import io
from dataclasses import replace
from random import Random

from .conllu.treebank import Treebank, read_conllu

_DETERMINERS = ("the", "a", "this", "every")
_ADJECTIVES = ("small", "old", "green", "quiet", "strange", "heavy")
_NOUNS = ("cat", "teacher", "river", "garden", "letter", "machine", "bird", "city", "child", "book")
_VERBS = ("sees", "finds", "likes", "builds", "reads", "follows")
_OF_NOUN = ("of", "from")
_OF_VERB = ("with", "during")


def generated_treebank(count: int, seed: int) -> Treebank:
    """Generate ``count`` sentences, deterministically by seed."""
    random = Random(seed)
    text = "".join(_sentence(random, number) for number in range(count))
    return replace(read_conllu(io.BytesIO(text.encode()), trees=True), source="generated sentences")


def _sentence(random: Random, number: int) -> str:
    words: list[list[str]] = []

    def add(form: str, tag: str, label: str) -> int:
        words.append([form, tag, "0", label])
        return len(words)

    def noun_phrase(label: str) -> int:
        determiner = add(random.choice(_DETERMINERS), "DET", "det")
        adjectives = [
            add(random.choice(_ADJECTIVES), "ADJ", "amod") for _ in range(random.choice((0, 0, 1, 2)))
        ]
        noun = add(random.choice(_NOUNS), "NOUN", label)
        for word in (determiner, *adjectives):
            words[word - 1][2] = str(noun)
        return noun

    def phrase(prepositions: tuple[str, ...], label: str) -> int:
        preposition = add(random.choice(prepositions), "ADP", "case")
        noun = noun_phrase(label)
        words[preposition - 1][2] = str(noun)
        return noun

    subject = noun_phrase("nsubj")
    verb = add(random.choice(_VERBS), "VERB", "root")
    words[subject - 1][2] = str(verb)
    direct_object = noun_phrase("obj")
    words[direct_object - 1][2] = str(verb)
    last = direct_object
    for _ in range(random.choice((0, 1, 1, 2))):
        if random.random() < 0.5:
            last_one = phrase(_OF_NOUN, "nmod")
            words[last_one - 1][2] = str(last)
            last = last_one
        else:
            words[phrase(_OF_VERB, "obl") - 1][2] = str(verb)
    if random.random() < 0.25:
        # an extraposed relative clause of the subject
        that = add("that", "PRON", "nsubj")
        clause = add(random.choice(_VERBS), "VERB", "acl")
        words[that - 1][2], words[clause - 1][2] = str(clause), str(subject)
        inside = noun_phrase("obj")
        words[inside - 1][2] = str(clause)
    words[add(".", "PUNCT", "punct") - 1][2] = str(verb)
    lines = [f"# sent_id = generated-{number}", f"# text = {' '.join(word[0] for word in words)}"]
    lines += [
        f"{k}\t{form}\t{form}\t{tag}\t_\t_\t{head}\t{label}\t_\t_"
        for k, (form, tag, head, label) in enumerate(words, 1)
    ]
    return "\n".join(lines) + "\n\n"
