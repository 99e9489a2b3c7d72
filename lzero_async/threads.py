"""The one module that starts threads. A thread's failure is kept with its traceback, never swallowed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from lzero_async.types import Clock, Waiter


class ThreadGroup:
    """Threads that are started, watched and waited for together."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._started = 0
        self._changes = 0
        self._watchers: list[Waiter] = []
        self.failures: list[BaseException] = []

    def start(self, name: str, target: Callable[[], object]) -> None:
        """Run `target()` in a new daemon thread; what it raises goes to `failures`."""
        token = self._clock.thread_starting()
        with self._lock:
            key = self._started = self._started + 1
            self._names[key] = name

        def body() -> None:
            self._clock.thread_started(token)
            try:
                target()
            except BaseException as error:
                self.failures.append(error)
            finally:
                with self._lock:
                    del self._names[key]
                self.nudge()
                self._clock.thread_ended()

        threading.Thread(target=body, name=f"{self._name}-{name}", daemon=True).start()

    def alive(self) -> list[str]:
        """The names of the threads that have not ended."""
        with self._lock:
            return list(self._names.values())

    def nudge(self) -> None:
        """Count a change and wake everybody in `wait_for_change`."""
        with self._lock:
            self._changes += 1
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.wake()

    def wait_for_change(self, since: int, timeout: float | None = None) -> int:
        """Wait until there were more than `since` changes (threads that ended, and nudges); return their number."""
        with self._lock:
            if self._changes > since:
                return self._changes
            waiter = self._clock.waiter()
            self._watchers.append(waiter)
        try:
            waiter.wait(timeout)
        finally:
            with self._lock:
                if waiter in self._watchers:
                    self._watchers.remove(waiter)
        return self._changes

    def join(self, timeout: float | None) -> list[str]:
        """Wait until all threads have ended or the time is over; return the names of those that are left."""
        deadline = None if timeout is None else self._clock.now() + timeout
        changes = 0
        while left := self.alive():
            remaining = None if deadline is None else deadline - self._clock.now()
            if remaining is not None and remaining <= 0:
                return left
            changes = self.wait_for_change(changes, remaining)
        return []


class LoopRunner:
    """Runs coroutines of one thread on one event loop of its own, so that clients bound to a loop keep working."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end in the calling thread; an interrupt cancels it first."""
        with self._lock:
            if self._cancelled:
                coroutine.close()
                raise asyncio.CancelledError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            loop, task = self._loop, self._loop.create_task(coroutine)
            self._task = task
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                loop.run_until_complete(asyncio.wait([task]))
            raise
        finally:
            with self._lock:
                self._task = None

    def cancel(self) -> None:
        """Cancel what runs now and what would run later; callable from any thread."""
        with self._lock:
            self._cancelled = True
            if self._loop is not None and self._task is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)

    def close(self) -> None:
        """Cancel tasks that were left on the loop and close it; called by its own thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
