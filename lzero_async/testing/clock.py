"""A virtual clock for threads: time passes only when every thread waits, and one thread runs at a time.

The thread that makes the clock takes part from the start; threads that the library starts join by themselves. Which of
several ready threads goes next is first come, first served, or drawn from `seed`: the same seed gives the same run.
When everybody waits and no timer is left, every waiting thread gets a Deadlock.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque

from lzero_async.errors import Deadlock
from lzero_async.types import Waiter


class VirtualClock:
    """Use as a context manager around everything that waits on it, so that a failing test releases its threads."""

    def __init__(self, seed: int | None = None) -> None:
        self._mutex = threading.Lock()
        self._time = 0.0
        self._ready: deque[_Place] = deque()
        self._timers: list[tuple[float, int, _Place]] = []
        self._order = itertools.count()
        self._waiting: set[_Place] = set()
        self._random = None if seed is None else random.Random(seed)
        self._dead = ""

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._time

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the calling thread."""
        self._wait_in(_Place(), seconds)

    def waiter(self) -> Waiter:
        """A new place to wait in."""
        return _VirtualWaiter(self)

    def thread_starting(self) -> _Place:
        """Put the new thread in line before it exists, so that the order does not depend on the system."""
        place = _Place()
        with self._mutex:
            self._ready.append(place)
        return place

    def thread_started(self, token: _Place) -> None:
        """Wait for the first turn."""
        token.turn.acquire()

    def thread_not_started(self, token: _Place) -> None:
        """Nobody will come for its turn."""
        with self._mutex:
            self._ready.remove(token)

    def thread_ended(self) -> None:
        """Pass the turn on."""
        with self._mutex:
            self._pass_turn()

    def __enter__(self) -> VirtualClock:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._mutex:
            self._release_all("the virtual clock was closed")

    def _wait_in(self, place: _Place, timeout: float | None) -> None:
        with self._mutex:
            if self._dead:
                raise Deadlock(self._dead)
            if timeout is not None:
                heapq.heappush(self._timers, (self._time + max(0.0, timeout), next(self._order), place))
            self._waiting.add(place)
            self._pass_turn()
        place.turn.acquire()
        if place.dead:
            raise Deadlock(place.dead)

    def _make_ready(self, place: _Place) -> None:
        if place in self._waiting:
            self._waiting.remove(place)
            self._ready.append(place)

    def _pass_turn(self) -> None:
        while not self._ready:
            if not self._timers:
                if self._waiting:
                    self._release_all(
                        f"all {len(self._waiting)} threads wait at {self._time:.6g} s and no timer is left"
                    )
                return
            when, _, place = heapq.heappop(self._timers)
            if place in self._waiting:
                self._time = max(self._time, when)
                self._make_ready(place)
        index = 0 if self._random is None else self._random.randrange(len(self._ready))
        place = self._ready[index]
        del self._ready[index]
        place.turn.release()

    def _release_all(self, why: str) -> None:
        self._dead = why
        for place in [*self._waiting, *self._ready]:
            place.dead = why
            place.turn.release()
        self._waiting.clear()
        self._ready.clear()


class _Place:
    """Where one thread waits for its turn."""

    __slots__ = ("dead", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.dead = ""


class _VirtualWaiter:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._place = _Place()
        self._woken = False

    def wait(self, timeout: float | None) -> bool:
        if not self._woken:
            self._clock._wait_in(self._place, timeout)
        return self._woken

    def wake(self) -> None:
        with self._clock._mutex:
            self._woken = True
            self._clock._make_ready(self._place)
