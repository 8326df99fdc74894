"""Files that training writes into its run folder; without a folder nothing is written."""

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

    A checkpoint that cannot be written causes a warning, since the next one may succeed; at the end
    of training it raises an error.

    Args:
        folder: run folder; None writes nothing.
        warn: callback that receives the text of each warning.
    """

    def __init__(self, folder: Path | None, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.warn = warn
        self._metrics: MetricsFile | None = None
        self._failure: str | None = None

    def begin(self, step: int, entries: int, over: bool) -> list[dict[str, Any]]:
        """Open the metrics file, delete the entries after ``step`` and return the others.

        Args:
            step: step from which training continues.
            entries: expected number of entries up to this step.
            over: whether training has finished; otherwise existing final weights are outdated and deleted.
        """
        if self.folder is None:
            return []
        self._metrics = MetricsFile(self.folder, until_step=step)
        history = read_metrics(self.folder)
        if len(history) < entries:
            self.warn(
                f"{self._metrics.path} has lost {entries - len(history)} of {entries} entries up to step "
                f"{step}; training continues without them."
            )
        if not over:
            (self.folder / WEIGHTS).unlink(missing_ok=True)
        return history

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append one entry of metrics."""
        if self._metrics is not None:
            self._metrics.append(entry)

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write the pending metrics and a checkpoint."""
        if self.folder is None or self._metrics is None:
            return
        try:
            # a checkpoint must never be ahead of the metrics
            self._metrics.sync()
            write_checkpoint(self.folder, checkpoint, keep)
            self._failure = None
        except DataError as error:
            self._failure = str(error)
            self.warn(f"{error} Training continues in memory and will retry; {self.last_good()}.")

    def require_saved(self) -> None:
        """Require that the last checkpoint was written.

        Raises:
            DataError: if it could not be written.
        """
        if self._failure is not None:
            raise DataError(
                f"{self._failure} {self.last_good().capitalize()}. Free disk space, then {self._next()}."
            )

    def finish(self, network: nn.Module) -> None:
        """Write the final weights.

        Raises:
            DataError: if the weights, the last checkpoint or the metrics cannot be written.
        """
        if self.folder is None:
            return
        try:
            save_weights(self.folder, network)
        except DataError as error:
            raise DataError(
                f"{error} {self.last_good().capitalize()}. Free disk space, then {self._next()}."
            ) from None
        self.require_saved()

    def last_good(self) -> str:
        """Description of the newest checkpoint."""
        steps = checkpoint_steps(self.folder) if self.folder is not None else []
        return (
            f"the last good checkpoint is that of step {steps[-1]}" if steps else "there is no checkpoint yet"
        )

    def _next(self) -> str:
        """What continues a run whose last files were not written."""
        assert self.folder is not None
        return f"run unn resume {self.folder}" if checkpoint_steps(self.folder) else "train again"

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._metrics is not None:
            self._metrics.close()
