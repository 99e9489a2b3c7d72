"""The stop signal of a coordinator, which every context carries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lzero_async.errors import CoordinatorClosed, Stopped
from lzero_async.types import Clock, Waiter

log = logging.getLogger("lzero_async")


class RunStop:
    """Work looks at this signal, waits on it or listens to it; the gatekeeper sets it, under its own lock."""

    def __init__(self, clock: Clock, lock: AbstractContextManager[Any] | None = None) -> None:
        self._clock = clock
        self._lock: AbstractContextManager[Any] = threading.RLock() if lock is None else lock
        self._sleepers: dict[int, Waiter] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}
        self.error: Stopped | None = None
        """What ended the run; None while nothing has."""

    def is_set(self) -> bool:
        """Whether the run is stopping."""
        return self.error is not None

    def wait(self, seconds: float) -> bool:
        """Wait this long or until the run stops; return whether it stops."""
        waiter = self._clock.waiter()
        with self._lock:
            if self.error is not None:
                return True
            self._sleepers[id(waiter)] = waiter
        try:
            waiter.wait(seconds)
        finally:
            with self._lock:
                self._sleepers.pop(id(waiter), None)
        return self.error is not None

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(reason)` at every stop, at once if it is stopping already; return what ends this."""
        key = id(listener)
        with self._lock:
            self._listeners[key] = listener
            reason = None if self.error is None else str(self.error)
        if reason is not None:
            listener(reason)
        return lambda: self._forget_listener(key)

    @property
    def stop_reason(self) -> str:
        """Why the run is stopping; empty while it is not."""
        return "" if self.error is None else str(self.error)

    @property
    def closed(self) -> bool:
        """Whether the coordinator was closed for good."""
        return isinstance(self.error, CoordinatorClosed)

    def raise_if_set(self) -> None:
        """Raise what a request would raise now."""
        if (error := self.error) is not None:
            raise self.copy(error)

    def copy(self, error: Stopped) -> Stopped:
        """An exception of its own for each thread, so that tracebacks do not mix."""
        copy = type(error)(*error.args)
        copy.origin = self
        return copy

    def stop(self, error: Stopped) -> None:
        """Set the signal and tell everybody."""
        self.set(error)
        self.tell()

    def set(self, error: Stopped) -> None:
        """Note why the run stops, and wake those who sleep. The first reason stays; closing is for good."""
        with self._lock:
            if self.error is None or isinstance(error, CoordinatorClosed):
                self.error = error
            for waiter in self._sleepers.values():
                waiter.wake()
            self._sleepers.clear()

    def tell(self) -> None:
        """Call the listeners, without any lock."""
        with self._lock:
            listeners, reason = list(self._listeners.values()), str(self.error)
        for listener in listeners:
            try:
                listener(reason)
            except Exception:  # of somebody's code: the others are told all the same
                log.exception("a listener to the stop failed")

    def clear(self) -> None:
        """Forget a stop, unless it was a close."""
        if not self.closed:
            self.error = None

    def _forget_listener(self, key: int) -> None:
        with self._lock:
            self._listeners.pop(key, None)
