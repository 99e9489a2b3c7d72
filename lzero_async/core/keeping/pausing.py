"""`with coordinator.paused():` nothing new starts, what runs ends and commits, and the clocks of the run stand still."""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from lzero_async.errors import GateTimeout, LzeroAsyncError
from lzero_async.types import Waiter
from lzero_async.validation import time_limit

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator


class Pauses:
    """How many `paused()` blocks are open, since when everything is at rest, and for how long that was so before. Its owner
    holds the lock."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self.count = 0
        self.ever = False  # there was one: until then no wait has to be looked at
        self.since: float | None = None
        self._past = 0.0
        self.waiters: list[Waiter] = []  # of blocks that wait until what runs has ended
        self.sleepers: list[Waiter] = []  # of those who wait until the pause is over

    def seconds(self, now: float) -> float:
        """All seconds of rest until now."""
        return self._past if self.since is None else self._past + max(0.0, now - self.since)

    def open(self, block: int) -> None:
        """One more block; asking twice is allowed."""
        self._blocks.add(block)
        self.count, self.ever = len(self._blocks), True

    def is_last(self, block: int) -> bool:
        """Whether no other block is open."""
        return self._blocks == {block}

    def close(self, block: int) -> None:
        """The block has ended."""
        self.count = len(self._blocks - {block})
        self._blocks.discard(block)

    def begin(self, now: float) -> bool:
        """Everything is at rest from now on; return whether it was not before."""
        if self.since is not None:
            return False
        self.since = now
        return True

    def end(self, now: float) -> None:
        """Work goes on from now on."""
        self._past, self.since = self.seconds(now), None

    @staticmethod
    def wake(waiters: list[Waiter]) -> None:
        """Wake everybody in a list, and empty it."""
        while waiters:
            try:
                waiters.pop().wake()
            except RuntimeError:  # the event loop of the waiting task is closed: nobody waits any more
                continue


class Pause:
    """One `paused()` block."""

    _begun = False

    def __init__(self, coordinator: AsyncTrainingCoordinator, timeout: float | None) -> None:
        self._coordinator, self._timeout = coordinator, timeout

    def __enter__(self) -> None:
        try:
            self._pause()
        except BaseException:
            self._coordinator._keeper.unlock()
            self._resume()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._resume()
            self._coordinator.mark("resumed")
        except BaseException:
            self._coordinator._keeper.unlock()
            self._resume()
            raise

    def _resume(self) -> None:
        self._coordinator._keeper.resume(id(self))
        self._begun = False  # or, when this object is gone, what has its number next would be resumed
        self._coordinator.threads.nudge()  # who watches the time looks again

    def __del__(self) -> None:
        if self._begun:  # an interrupt may have come before the block, or cut its end off
            keeper = self._coordinator._keeper
            if keeper.pauses.count:
                keeper.when_unlocked(partial(keeper.resume, id(self)))

    def _pause(self) -> None:
        coordinator, keeper, timeout = self._coordinator, self._coordinator._keeper, self._timeout
        if coordinator._parts.block_of == threading.get_ident():
            raise LzeroAsyncError(
                "A block of this thread trains, and a pause would wait for its end; pause after it, or in another thread."
            )
        deadline = None if timeout is None else coordinator.clock.now() + timeout
        self._begun = True
        keeper.pause(id(self))
        keeper.wait_until_quiet(timeout)
        try:
            left = None if deadline is None else max(0.0, deadline - coordinator.clock.now())
            coordinator.evaluator.wait_until_idle(left)
        except GateTimeout:
            raise GateTimeout(f"Waited {timeout:.3g} s in vain to pause: an evaluation still runs.") from None
        keeper.rest()
        coordinator.mark("paused")


def paused(coordinator: AsyncTrainingCoordinator, *, timeout: float | None = None) -> Pause:
    """`with coordinator.paused():` stops what would start, and waits (at most `timeout` seconds) until what runs has ended
    and is committed; then, until the block ends, `max_seconds` and the statistics stand still.

    Collects, trains and evaluations wait, each with its own time-out; `stop()` and `close()` release them as always. Not from
    inside a collect, train or evaluation, which would wait for its own end. Passes of background roles that run go on.
    """
    return Pause(coordinator, time_limit("timeout", timeout))
