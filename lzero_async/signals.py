"""SIGINT and SIGTERM end a run in order."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


class OrderlyStop:
    """From `install` to `restore`, in the main thread: the first SIGINT or SIGTERM calls `stop` with its name; the next one
    acts as it did before."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            for number in self._before:
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give the signals back; any number of times."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: Any) -> None:
        self.restore()
        # The interrupted code may hold the coordinator's lock, so another thread takes it.
        _thread.start_new_thread(self._announce_and_stop, (signal.Signals(number).name,))

    def _announce_and_stop(self, name: str) -> None:
        print(f"{name}: ending in order, after what runs now; once more to interrupt.", file=sys.stderr, flush=True)
        self._stop(name)
