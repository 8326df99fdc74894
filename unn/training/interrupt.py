"""Ctrl-C and requests to end: training stops after the step that it is in."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """Notes SIGINT and SIGTERM while its context lasts; a second one stops at once, as usual.

    Attributes:
        requested: has one come?
    """

    def __init__(self) -> None:
        self.requested = False
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
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
