"""Handling of signals: training stops after the current step."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

ONE_REQUEST = 2.0
"""Seconds within which several signals count as one: process launchers forward signals that the
terminal sent to all."""


class Interrupt:
    """Context that records signals; a later second one has its usual effect at once.

    Args:
        signals: numbers of the signals; others keep their effect.

    Attributes:
        requested: whether a signal was received.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.requested = False
        self._signals = signals
        self._since = 0.0
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        # only the main thread can receive signals
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _record(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._since = True, time.monotonic()
        elif time.monotonic() - self._since > ONE_REQUEST:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._handlers = {}
