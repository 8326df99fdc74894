"""unn parse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional, arg

from unn.extending import (
    Answer,
    Json,
    RunFolder,
    Trained,
    Verb,
    open_trained,
    require,
    require_number,
    require_rounds,
)


class ParsesSentences(ABC):
    """A problem whose runs parse sentences."""

    @abstractmethod
    def parse(self, run: Trained, request: ParseFile) -> Answer:
        """Parse the sentences of a file.

        Raises:
            DataError: if the file cannot be read.
        """


@dataclass(frozen=True)
class ParseFile(Verb):
    """Parse sentences with a run of the parsing problem."""

    name: ClassVar[str] = "parse"

    run: RunFolder
    file: Annotated[Positional[str], arg(metavar="FILE")]
    """Sentences in CoNLL-U (.gz too) or raw tokens, one sentence per line; - reads standard input."""
    out: Path | None = None
    """File for the result; standard output by default."""
    format: Literal["auto", "conllu", "tokens"] = "auto"
    """Format of the file; by default it is recognised by its content."""
    iterations: int | None = None
    """Number of rounds of updates; that of training by default."""
    complete: bool = False
    """Keep the heads that the file has (HEAD not _), obey NotHead=2,5 in MISC, and infer the rest."""
    skip_bad: bool = False
    """Copy malformed sentences unchanged and list them, instead of refusing the file."""
    show: Literal["conllu", "tree", "heat"] = "conllu"
    """Print trees or arc marginals as text instead of CoNLL-U."""
    draw: Path | None = None
    """Folder for drawings of each tree and its arc marginals (SVG)."""
    batch: int = 2000
    """Number of words that are parsed at once; fewer need less memory."""
    json: Json = False

    def __call__(self) -> Answer:
        if self.iterations is not None:
            require_rounds(self.iterations)
        require_number("batch", self.batch, 10**9)
        problem, run = open_trained(self.run)
        return require(problem, ParsesSentences, "does not parse sentences").parse(run, self)
