"""SIGINT and SIGTERM end a run in order.

Python runs signal handlers in the main thread only, and a signal that arrives just before that thread blocks on a lock stays
unseen until the lock is free. So a thread of its own reads the numbers of signals from a pipe, into which the interpreter
writes them at once, and asks the run to stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.errors import SystemRefused
from lzero_async.threads import ThreadGroup

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)
_END: Final = 0  # no signal has this number


class OrderlyStop:
    """From `install` to `restore`, in the main thread: the first SIGINT or SIGTERM calls `stop` with its name, in another
    thread; the next one acts as it did before."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}
        self._pipe = -1  # where the numbers of signals are written
        self._screen = sys.stderr  # a stage may send what is printed meanwhile elsewhere

    def install(self) -> None:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._screen = sys.stderr
        self._before = {number: signal.getsignal(number) for number in _NUMBERS}
        _installed.append(self)
        numbers, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            # The interrupted code may hold the coordinator's lock, so another thread takes it.
            ThreadGroup(RealClock(), "lzero").start("signals", lambda: self._listen(numbers))
        except SystemRefused:
            os.close(numbers)
            raise
        foreign = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        if foreign != -1:  # an event loop's, which cannot do without; the handler writes, too
            signal.set_wakeup_fd(foreign)
        for number in self._before:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give the signals back; any number of times."""
        self._give_back()
        if self._pipe != -1:
            self._write(_END)  # a forked process may hold the pipe open, and then its closing would not be seen
            pipe, self._pipe = self._pipe, -1
            os.close(pipe)
        if self in _installed:
            _installed.remove(self)

    def forked(self) -> None:
        """In a forked process: its signals are its own, and the pipe is its parent's."""
        self._give_back()
        pipe, self._pipe = self._pipe, -1
        if pipe != -1:
            os.close(pipe)

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self._pipe != -1:
            foreign = signal.set_wakeup_fd(-1)
            if foreign not in (-1, self._pipe):
                signal.set_wakeup_fd(foreign)

    def _handle(self, number: int, frame: Any) -> None:
        if self._pipe != -1:
            self._write(number)
        self.restore()

    def _write(self, number: int) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # nobody reads any more
            os.write(self._pipe, bytes([number]))

    def _listen(self, numbers: int) -> None:
        stopped = False
        with open(numbers, "rb", 0) as pipe:
            while (byte := pipe.read(1)) and byte[0] != _END:
                if byte[0] in _NUMBERS and not stopped:
                    stopped = True
                    self._announce_and_stop(signal.Signals(byte[0]).name)

    def _announce_and_stop(self, name: str) -> None:
        try:
            print(
                f"{name}: ending in order, after what runs now; once more to interrupt.", file=self._screen, flush=True
            )
        finally:
            self._stop(name)


_installed: list[OrderlyStop] = []


def _forked() -> None:
    while _installed:
        _installed.pop().forked()


os.register_at_fork(after_in_child=_forked)
