"""A bounded queue with three rules for a full one, and a count of everything that passed or was lost."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from typing import Any, Generic, NamedTuple, TypeVar

from lzero_async.clock import RealClock
from lzero_async.errors import GateTimeout, LzeroAsyncError
from lzero_async.types import Clock, Waiter
from lzero_async.validation import one_of, time_limit, whole_number

T = TypeVar("T")
QUEUE_POLICIES = ("block", "drop_oldest", "priority")


class QueueClosed(LzeroAsyncError):
    """The queue was closed: nothing more goes in, and nothing is left to take out."""


class QueueStatistics(NamedTuple):
    """Counts since the start; `put = got + dropped + size`."""

    size: int
    max_size: int
    put: int
    got: int
    dropped: int
    rejected: int
    put_waits: int
    get_waits: int


class BoundedQueue(Generic[T]):
    """At most `max_size` items. A full queue makes `put` wait (`block`), loses its oldest item (`drop_oldest`), or keeps
    the items of highest priority and gives those out first (`priority`; equals in order of arrival)."""

    def __init__(self, max_size: int, policy: str = "block", *, clock: Clock | None = None) -> None:
        self._max_size = whole_number("max_size", max_size, 1)
        self._policy = one_of("policy", policy, QUEUE_POLICIES)
        self._clock = clock or RealClock()
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._best: list[tuple[float, int, T]] = []
        self._order = itertools.count()
        self._getters: deque[Waiter] = deque()
        self._putters: deque[Waiter] = deque()
        self._closed = False
        self._put = self._got = self._dropped = self._rejected = self._put_waits = self._get_waits = 0

    def put(self, item: T, *, priority: float = 0.0, timeout: float | None = None) -> bool:
        """Add an item; return False when `priority` rejected it because the queue is full of better ones."""
        limit = time_limit("timeout", timeout)
        deadline = None if limit is None else self._clock.now() + limit
        while True:
            with self._lock:
                if self._closed:
                    raise QueueClosed("The queue is closed: nothing more can be put in.")
                if len(self) < self._max_size or self._policy != "block":
                    accepted = self._store(item, priority)
                    if accepted and self._getters:
                        self._getters.popleft().wake()
                    return accepted
                waiter = self._clock.waiter()
                self._putters.append(waiter)
                self._put_waits += 1
            self._wait(waiter, self._putters, deadline, f"the queue is full ({self._max_size} items)")

    def get(self, *, timeout: float | None = None) -> T:
        """Take the next item; raises QueueClosed when the queue is closed and empty."""
        limit = time_limit("timeout", timeout)
        deadline = None if limit is None else self._clock.now() + limit
        while True:
            with self._lock:
                if len(self):
                    item = heapq.heappop(self._best)[2] if self._policy == "priority" else self._items.popleft()
                    self._got += 1
                    if self._putters:
                        self._putters.popleft().wake()
                    return item
                if self._closed:
                    raise QueueClosed("The queue is closed and empty.")
                waiter = self._clock.waiter()
                self._getters.append(waiter)
                self._get_waits += 1
            self._wait(waiter, self._getters, deadline, "the queue is empty")

    def close(self) -> None:
        """Release every waiter. Items that are in can still be taken out."""
        with self._lock:
            self._closed = True
            waiters = [*self._getters, *self._putters]
            self._getters.clear()
            self._putters.clear()
        for waiter in waiters:
            waiter.wake()

    def statistics(self) -> QueueStatistics:
        """An immutable snapshot of the counts."""
        with self._lock:
            return QueueStatistics(
                len(self),
                self._max_size,
                self._put,
                self._got,
                self._dropped,
                self._rejected,
                self._put_waits,
                self._get_waits,
            )

    def __len__(self) -> int:
        return len(self._items) + len(self._best)

    def _store(self, item: T, priority: float) -> bool:
        if self._policy == "priority":
            if len(self) == self._max_size:
                worst = max(self._best)
                if -priority >= worst[0]:
                    self._rejected += 1
                    return False
                self._best.remove(worst)
                heapq.heapify(self._best)
                self._dropped += 1
            heapq.heappush(self._best, (-priority, next(self._order), item))
        else:
            if len(self) == self._max_size:
                self._items.popleft()
                self._dropped += 1
            self._items.append(item)
        self._put += 1
        return True

    def _wait(self, waiter: Waiter, line: deque[Waiter], deadline: float | None, why: str) -> None:
        """Wait for a change; a waiter that gives up hands a wake-up it has already got to the next in line."""
        remaining = None if deadline is None else deadline - self._clock.now()
        woken: Any = False
        try:
            woken = waiter.wait(remaining)
        finally:
            if not woken:
                with self._lock:
                    if waiter in line:
                        line.remove(waiter)
                    elif line:
                        line.popleft().wake()
        if not woken:
            raise GateTimeout(f"Waited in vain: {why}.")
