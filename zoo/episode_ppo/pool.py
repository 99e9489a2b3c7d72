"""The parent's side of the asynchronous environments: rounds of episodes, dealt out one by one, and their return.

A *round* is the collect of one batch: a number of episodes that start one after the other, all with the same version of the
weights. It is complete when every one of them has ended, so what is trained is what was started: a collector that took whatever
ended first would see short episodes too often. While a round waits for its last episodes, free environments play those of the
next round. So no environment waits for another, within the bound that the gate keeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lzero_async.backends import Worker
from lzero_async.calls import listen, stopped
from lzero_async.errors import LzeroAsyncError
from lzero_async.parcels import Parcel
from lzero_async.types import BackgroundContext, CollectContext, Snapshot, StopSignal
from zoo.episode_ppo.parallel_env_async import Slot

MAX_FAILURES = 3  # of one episode, after which the collect fails with it
log = logging.getLogger(__name__)


class Round:
    """The episodes of one batch as they come back."""

    def __init__(self, number: int, snapshot: Snapshot, count: int, first: int) -> None:
        self.number, self.snapshot, self.count, self.first = number, snapshot, count, first
        self.parcels: list[Parcel] = []
        self.missing = count
        self.failures: dict[int, int] = {}
        self.error: Exception | None = None
        self.begun = time.monotonic()


class EpisodePool:
    """Deals episodes out to workers, each of which plays as many at once as it has environments.

    `play` is called by collector threads and waits for a whole round; `drive` is the background role of one worker.
    """

    def __init__(
        self, workers: Sequence[Worker], shares: Sequence[int], on_progress: Callable[[Round], None] | None = None
    ) -> None:
        self.workers, self.shares = list(workers), list(shares)
        self._changed = threading.Condition()
        self._pending: deque[Slot] = deque()
        self._playing: list[dict[int, Slot]] = [{} for _ in workers]
        self._known: list[set[int]] = [set() for _ in workers]  # versions whose weights each worker has
        self._calling = [False] * len(self.workers)
        self._rounds: dict[int, Round] = {}
        self._next_round = 0
        self.started = 0  # episodes, over the whole life of the run: the number of the next one
        self.ended = 0
        self.failed = 0
        self.steps = 0
        self._on_progress = on_progress
        self._stopping = False

    # -- rounds --------------------------------------------------------------------------------------------------------

    def play(self, context: CollectContext, count: int) -> Round:
        """Have `count` episodes played with the weights of the context; wait until all of them have ended."""
        assert context.snapshot is not None
        wanted = self._open(context.snapshot, count)
        unlisten = listen(context.stop, lambda reason: self._wake())
        try:
            with self._changed:
                while wanted.missing and wanted.error is None and not context.stop.is_set():
                    self._changed.wait()
        finally:
            unlisten()
            self._close(wanted)
        if wanted.error is not None:
            raise wanted.error
        if wanted.missing:
            raise stopped(context.stop)
        return wanted

    def _open(self, snapshot: Snapshot, count: int) -> Round:
        with self._changed:
            wanted = Round(self._next_round, snapshot, count, self.started)
            self._next_round += 1
            self._rounds[wanted.number] = wanted
            self._pending.extend(Slot(self.started + place, wanted.number, snapshot.version) for place in range(count))
            self.started += count
            self._changed.notify_all()
            idle = [place for place in range(len(self.workers)) if self._calling[place] and self._free(place)]
        for place in idle:  # it waits for an episode to end, with environments that could begin one
            self.workers[place].cancel("there are more episodes to play")
        return wanted

    def _close(self, wanted: Round) -> None:
        """Forget a round, and with it the episodes that nobody has begun."""
        with self._changed:
            del self._rounds[wanted.number]
            if wanted.missing:
                self._pending = deque(slot for slot in self._pending if slot.round != wanted.number)

    # -- workers -------------------------------------------------------------------------------------------------------

    def drive(self, place: int, context: BackgroundContext) -> None:
        """One pass of a worker: give it what it has room for, and take what has ended."""
        worker = self.workers[place]
        if not worker.alive:
            self._bring_back(place)
        slots, weights, oldest = self._wait_for_work(place, context.stop)
        try:
            found = worker.call("play", slots, weights, oldest, stop=context.stop)
        finally:
            with self._changed:
                self._calling[place] = False
        for number, parcel, failures in found:
            self._take(place, number, parcel, failures)

    def _wait_for_work(self, place: int, stop: StopSignal) -> tuple[list[Slot], list[tuple[int, Parcel]], int]:
        unlisten = listen(stop, lambda reason: self._wake())
        try:
            with self._changed:
                while not self._playing[place] and not self._pending and not stop.is_set():
                    self._changed.wait()
                if stop.is_set():
                    raise stopped(stop)
                slots = [self._pending.popleft() for _ in range(min(self._free(place), len(self._pending)))]
                self._playing[place].update((slot.number, slot) for slot in slots)
                self._calling[place] = True
                return slots, self._weights_for(place, slots), self._oldest()
        finally:
            unlisten()

    def _weights_for(self, place: int, slots: Sequence[Slot]) -> list[tuple[int, Parcel]]:
        """Weights of versions that a worker has not seen."""
        new = {
            slot.version: self._rounds[slot.round].snapshot.state
            for slot in slots
            if slot.version not in self._known[place]
        }
        self._known[place].update(new)
        return sorted(new.items())

    def _oldest(self) -> int:
        """The oldest version that an episode may still need."""
        slots = [*self._pending, *(slot for playing in self._playing for slot in playing.values())]
        oldest = min((slot.version for slot in slots), default=0)
        for known in self._known:
            known -= {version for version in known if version < oldest}
        return oldest

    def _free(self, place: int) -> int:
        return self.shares[place] - len(self._playing[place])

    def _take(self, place: int, number: int, parcel: Parcel, failures: Sequence[Any]) -> None:
        """Episodes of one round came back."""
        with self._changed:
            wanted = self._rounds.get(number)  # None if it was given up meanwhile
            for ended in parcel.meta["numbers"]:
                self._playing[place].pop(ended, None)
            self.ended += len(parcel.meta["numbers"])
            self.steps += sum(parcel.meta["lengths"])
            if wanted is not None and parcel.meta["numbers"]:
                wanted.parcels.append(parcel)
                wanted.missing -= len(parcel.meta["numbers"])
            for failure in failures:
                self._count_failure(place, wanted, failure)
            self._changed.notify_all()
        if wanted is not None and self._on_progress is not None:
            self._on_progress(wanted)

    def _count_failure(self, place: int, wanted: Round | None, failure: Any) -> None:
        """Under the lock: an environment failed; the episode is played again, a few times."""
        slot = self._playing[place].pop(failure.number, None)
        self.failed += 1
        log.warning("episode %d failed in worker %d: %s", failure.number, place, failure.error)
        if slot is None or wanted is None:
            return
        times = wanted.failures[slot.number] = wanted.failures.get(slot.number, 0) + 1
        if times > MAX_FAILURES:
            wanted.error = LzeroAsyncError(f"Episode {slot.number} failed {times} times: {failure.error}")
        else:
            self._pending.appendleft(slot)

    def _bring_back(self, place: int) -> None:
        """A worker died: its episodes are played again, from the start, by whoever is free."""
        self.workers[place].restart()
        with self._changed:
            lost = [slot for slot in self._playing[place].values() if slot.round in self._rounds]
            self._playing[place].clear()
            self._known[place].clear()
            self.failed += len(lost)
            self._pending.extendleft(reversed(lost))
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
