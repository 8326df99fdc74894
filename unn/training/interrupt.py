"""Ctrl-C and requests to end: training stops after the step that it is in."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

ONE_REQUEST = 2.0
"""Seconds within which several signals are one request: a launcher of processes passes on what the terminal sent them already."""


class Interrupt:
    """Notes SIGINT and SIGTERM while its context lasts; a later second one stops at once, as usual.

    Attributes:
        requested: has one come?
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        # only the main thread can receive signals
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._since = True, time.monotonic()
        elif time.monotonic() - self._since > ONE_REQUEST:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
