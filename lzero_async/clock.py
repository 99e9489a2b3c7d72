"""The real clock: monotonic time, and waiting on a lock (no timer runs while a thread waits without a limit)."""

from __future__ import annotations

import threading
import time
from typing import Any

from lzero_async.types import Waiter


class LockWaiter:
    """A one-time wait on a plain lock, which the waker releases."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float | None) -> bool:
        """Block until `wake` or for `timeout` seconds; return whether it was woken."""
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """Wake the thread that waits, or will wait, here. Once is enough, and more does no harm."""
        if self._lock.locked():
            self._lock.release()


class RealClock:
    """Wall time as `time.perf_counter` counts it."""

    now = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)

    def waiter(self) -> Waiter:
        """A new place to wait in."""
        return LockWaiter()

    def thread_starting(self) -> Any:
        """Nothing to prepare: the operating system schedules real threads."""
        return None

    def thread_started(self, token: Any) -> None:
        """Nothing to do."""

    def thread_not_started(self, token: Any) -> None:
        """Nothing to take back."""

    def thread_ended(self) -> None:
        """Nothing to do."""
