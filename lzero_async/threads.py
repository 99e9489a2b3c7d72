"""The one module that starts threads. A thread's failure is kept with its traceback, never swallowed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from lzero_async.errors import THREAD, SystemRefused, tell_refusal
from lzero_async.types import Clock, Waiter


class ThreadGroup:
    """Threads that are started, watched and waited for together."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self.lock = threading.RLock()
        self._names: dict[int, str] = {}
        self._keys: dict[int, int] = {}  # by the thread's identity
        self._started = 0
        self._changes = 0
        self._watchers: list[Waiter] = []
        self.failures: list[BaseException] = []

    def start(self, name: str, target: Callable[[], object]) -> None:
        """Run `target()` in a new daemon thread; what it raises goes to `failures`. Raises SystemRefused if the system
        has no thread left."""
        key, token = -1, None

        def body() -> None:
            self._clock.thread_started(token)
            try:
                with self.lock:
                    wanted = key in self._names
                    self._keys[threading.get_ident()] = key
                if wanted:
                    target()
            except BaseException as error:
                self.failures.append(error)
            finally:
                with self.lock:
                    self._names.pop(key, None)
                    self._keys.pop(threading.get_ident(), None)
                self.nudge()
                self._clock.thread_ended()

        thread = threading.Thread(target=body, name=f"{self._name}-{name}", daemon=True)
        try:
            with self.lock:
                key = self._started = self._started + 1
                self._names[key] = name
            token = self._clock.thread_starting()
            thread.start()
        except BaseException as error:
            if thread.ident is None:  # also one that is interrupted on its way: it finds that it is not wanted
                with self.lock:
                    self._names.pop(key, None)
                if token is not None:
                    self._clock.thread_not_started(token)
            if isinstance(error, (RuntimeError, MemoryError)):
                refused = SystemRefused(
                    f"No thread can be started for {name} ({error}); raise the limit of threads (ulimit -u), or use fewer "
                    "workers."
                )
                refused.kind = THREAD
                tell_refusal(refused)
                raise refused from error
            raise

    def alive(self) -> list[str]:
        """The names of the threads that have not ended."""
        with self.lock:
            return list(self._names.values())

    def _others(self) -> list[str]:
        with self.lock:
            own = self._keys.get(threading.get_ident())
            return [name for key, name in self._names.items() if key != own]

    def nudge(self) -> None:
        """Count a change and wake everybody in `wait_for_change`."""
        with self.lock:
            self._changes += 1
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.wake()

    def wait_for_change(self, since: int, timeout: float | None = None) -> int:
        """Wait until there were more than `since` changes (threads that ended, and nudges); return their number."""
        with self.lock:
            if self._changes > since:
                return self._changes
            waiter = self._clock.waiter()
            self._watchers.append(waiter)
        try:
            waiter.wait(timeout)
        finally:
            with self.lock:
                if waiter in self._watchers:
                    self._watchers.remove(waiter)
        return self._changes

    def join(self, timeout: float | None) -> list[str]:
        """Wait until all threads but the calling one have ended or the time is over; return the names of those left."""
        deadline = None if timeout is None else self._clock.now() + timeout
        changes = 0
        while left := self._others():
            remaining = None if deadline is None else deadline - self._clock.now()
            if remaining is not None and remaining <= 0:
                return left
            changes = self.wait_for_change(changes, remaining)
        return []


class LoopRunner:
    """Runs coroutines of one thread on one event loop of its own, so that clients bound to a loop keep working."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an interrupt may leave it locked in its own thread, which asks again
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

    @property
    def cancelled(self) -> bool:
        """Whether nothing runs here any more."""
        return self._cancelled

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
