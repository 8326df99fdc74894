"""Models of the field's files on the command line: what the commands on them share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from ..errors import ObservationError, UnnError
from ..exact.options import ExactOptions

if TYPE_CHECKING:
    from ..exact.files import ModelFile
    from ..exact.tables import TableEvidence

SUFFIXES = (".uai", ".bif")
"""Ends of the names of model files; each may be followed by .gz."""

ModelPath = Annotated[Positional[Path], arg(metavar="FILE.uai|FILE.bif", help="File of a model.")]
Observed = Annotated[
    tuple[str, ...],
    arg(metavar="VARIABLE=STATE [...]", help="Observed variables, by the names of the model."),
]


@dataclass(frozen=True)
class Limits:
    """Limits of exact inference."""

    seconds: float = 60.0
    """Time that the contraction may take by its estimate; the search for an order takes a quarter of it."""
    memory: float = 4.0
    """Memory of the tables in GiB."""

    def options(self) -> ExactOptions:
        """The options of the engine.

        Raises:
            UnnError: for limits out of range.
        """
        if not 0 < self.seconds <= 1e6:
            raise UnnError(f"--seconds must be a number > 0, at most 1,000,000, got {self.seconds}.")
        if not 0 < self.memory <= 1e6:
            raise UnnError(f"--memory must be a number > 0, at most 1,000,000, got {self.memory}.")
        operations = math.log2(max(2.0, self.seconds * OPERATIONS_PER_SECOND))
        return ExactOptions(min(self.seconds / 4, 30.0), 10_000, self.memory, operations)


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show on a terminal how far queries within the block are, from the first second on."""
    from tqdm import tqdm

    from ..exact.progress import watched

    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
    with tqdm(total=1.0, delay=1.0, leave=False, disable=None, bar_format=layout) as bar:
        if bar.disable:
            yield
            return
        shown = ""

        def update(stage: str, share: float) -> None:
            nonlocal shown
            if stage != shown or share < bar.n:
                shown = stage
                bar.set_description_str(stage, refresh=False)
                bar.reset()
            bar.update(share - bar.n)

        with watched(update):
            yield


OPERATIONS_PER_SECOND = 1e9
"""Multiplications in a second, roughly, by which the limit of seconds is one of operations."""


def is_model(path: Path) -> bool:
    """Whether a path is that of a model file, by its name."""
    return path.name.removesuffix(".gz").endswith(SUFFIXES)


def open_model(path: Path) -> ModelFile:
    """Read a model file.

    Raises:
        UnnError: for a file with another name.
        DataError: for a file that is missing or malformed, with the line.
    """
    from ..exact.bif import read_bif
    from ..exact.uai import read_uai

    if not is_model(path):
        raise UnnError(f"{path}: models are files that end in .uai, .bif, .uai.gz or .bif.gz.")
    return read_uai(path) if path.name.removesuffix(".gz").endswith(".uai") else read_bif(path)


def evidence_of(model: ModelFile, file: Path | None, given: Sequence[str]) -> TableEvidence:
    """Evidence from a file of evidence, and from the command line.

    Raises:
        UnnError: for text of another form, unknown names, or a variable with two states.
    """
    import torch

    from ..exact.tables import TableEvidence
    from ..exact.uai import read_uai_evidence

    pairs: dict[str, str] = {}
    for text in given:
        if "=" not in text:
            raise UnnError(f"--given {text}: write VARIABLE=STATE.")
        # names of variables may contain the sign
        places = [k for k, sign in enumerate(text) if sign == "="]
        place = next((k for k in places if text[:k] in model.names), places[0])
        name, state = text[:place], text[place + 1 :]
        if pairs.setdefault(name, state) != state:
            raise UnnError(f"--given {text}: variable {name!r} is given twice.")
    evidence = model.evidence(pairs)
    if file is None:
        return evidence
    values = read_uai_evidence(file, model.model).values
    clash = (values >= 0) & (evidence.values >= 0) & (values != evidence.values)
    if bool(clash.any()):
        name = model.names[int(clash.nonzero()[0, 1])]
        raise ObservationError(f"{file} and --given give different states of variable {name!r}.")
    return TableEvidence(torch.where(evidence.values >= 0, evidence.values, values))


def require_possible(model: ModelFile, log_partition: float) -> None:
    """Check that evidence has a probability above zero.

    Raises:
        ObservationError: otherwise.
    """
    if log_partition == -math.inf:
        raise ObservationError(
            f"{model.name}: the evidence, or without evidence every assignment, has probability zero, so "
            "that nothing follows from it; the log-partition (unn logz) is -inf."
        )


def require_one_row(evidence: TableEvidence, file: Path | None) -> None:
    """Check that evidence has one row.

    Raises:
        ObservationError: for a file of several samples.
    """
    if len(evidence.values) > 1:
        raise ObservationError(f"{file} has {len(evidence.values)} samples of evidence; give one.")


def write_result(path: Path, text: str) -> None:
    """Write a result file.

    Raises:
        DataError: if it cannot be written.
    """
    from ..runs.files import write_atomically

    write_atomically(path, text.encode())
