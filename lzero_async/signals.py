"""SIGINT and SIGTERM end a run in order."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def orderly_stop(stop: Callable[[str], None]) -> Iterator[None]:
    """In the main thread, the first SIGINT or SIGTERM calls `stop` with its name; the next one acts as it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def handle(number: int, frame: Any) -> None:
        restore()
        # The interrupted code may hold the coordinator's lock, so another thread takes it.
        _thread.start_new_thread(announce_and_stop, (signal.Signals(number).name,))

    def announce_and_stop(name: str) -> None:
        print(f"{name}: ending in order, after what runs now; once more to interrupt.", file=sys.stderr, flush=True)
        stop(name)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
