"""What training writes into the folder of its run; nothing at all without a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from ..errors import DataError
from ..runs.checkpoint import Checkpoint, checkpoint_steps, write_checkpoint
from ..runs.metrics import MetricsFile, read_metrics
from ..runs.weights import WEIGHTS, save_weights


class RunFiles:
    """Metrics, checkpoints and weights of one run.

    A checkpoint that cannot be written is reported and does not end the training, since the next one may succeed; at the end it does.

    Args:
        folder: of the run; None writes nothing.
        warn: called with what could not be written, and why.
    """

    def __init__(self, folder: Path | None, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.warn = warn
        self._metrics: MetricsFile | None = None
        self._failure: str | None = None

    def begin(self, step: int, entries: int, over: bool) -> list[dict[str, Any]]:
        """Open the metrics, without those after ``step``, and return them.

        Args:
            step: from which training goes on.
            entries: how many there should be up to it.
            over: no step will follow; otherwise final weights that are there are of no use any more.
        """
        if self.folder is None:
            return []
        self._metrics = MetricsFile(self.folder, until_step=step)
        found = read_metrics(self.folder)
        if len(found) < entries:
            self.warn(f"{self._metrics.path} has lost {entries - len(found)} of {entries} entries up to step {step}; training goes on without them.")
        if not over:
            (self.folder / WEIGHTS).unlink(missing_ok=True)
        return found

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of metrics."""
        if self._metrics is not None:
            self._metrics.append(entry)

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write the metrics so far and a checkpoint."""
        if self.folder is None or self._metrics is None:
            return
        try:
            # a checkpoint must never be ahead of the metrics
            self._metrics.sync()
            write_checkpoint(self.folder, checkpoint, keep)
            self._failure = None
        except DataError as error:
            self._failure = str(error)
            self.warn(f"{error} Training goes on in memory and will try again; {self.last_good()}.")

    def require_saved(self) -> None:
        """Check that the last checkpoint was written.

        Raises:
            DataError: if it was not.
        """
        if self._failure is not None:
            raise DataError(f"{self._failure} {self.last_good().capitalize()}. Make room there, then unn resume {self.folder}.")

    def finish(self, network: nn.Module) -> None:
        """Write the final weights.

        Raises:
            DataError: if they, or the last checkpoint and the metrics, cannot be written.
        """
        if self.folder is None:
            return
        try:
            save_weights(self.folder, network)
        except DataError as error:
            raise DataError(f"{error} {self.last_good().capitalize()}. Make room there, then unn resume {self.folder}.") from None
        self.require_saved()

    def last_good(self) -> str:
        """The newest checkpoint, in words."""
        steps = checkpoint_steps(self.folder) if self.folder is not None else []
        return f"the last good checkpoint is that of step {steps[-1]}" if steps else "there is no checkpoint yet"

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._metrics is not None:
            self._metrics.close()
