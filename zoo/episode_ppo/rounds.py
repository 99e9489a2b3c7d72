"""Rounds: what one batch is made of, and the counts of every episode that was ever started.

A *round* is the collect of one batch: a number of episodes that start one after the other, all with the same version of the
weights. It is complete when every one of them has ended, so what is trained is what was started: a collector that took whatever
ended first would see short episodes too often.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lzero_async.backends import Worker
from lzero_async.errors import LzeroAsyncError
from lzero_async.parcels import Parcel
from lzero_async.types import CollectContext, Snapshot
from zoo.episode_ppo.playing import Failure, Slot

MAX_FAILURES = 3  # of one episode, after which the collect fails with it
RECENT_EPISODES = 100
log = logging.getLogger(__name__)


class Round:
    """The episodes of one batch as they come back."""

    def __init__(self, number: int, snapshot: Snapshot, count: int, first: int) -> None:
        self.number, self.snapshot, self.count = number, snapshot, count
        self.slots = [Slot(first + place, number, snapshot.version) for place in range(count)]
        self.parcels: list[Parcel] = []
        self.missing = count
        self.failures: dict[int, int] = {}
        self.error: Exception | None = None
        self.begun = self.said = time.monotonic()  # `said`: when something was last said about it

    @property
    def steps(self) -> int:
        """Environment steps of the episodes that are back."""
        return sum(sum(parcel.meta["lengths"]) for parcel in self.parcels)


Progress = Callable[[Round, int], None]


class PoolStatistics(NamedTuple):
    """Counts over the whole run, resumes included; `started` = `complete` + `abandoned` + those of rounds that are open."""

    started: int  # episodes that were given a number
    complete: int  # episodes of rounds that are whole
    abandoned: int  # episodes of rounds that were given up: a stop, or a failure that could not be mended
    failed: int  # times that an episode had to be given out again, because its environment or its process failed
    steps: int
    busy_seconds: float  # that environments spent in their episodes
    at_once: int  # environments that play at the same time: all, or of those that compute, one in each worker
    mean_return: float | None  # of the last 100 episodes
    mean_length: float | None


class Pool(ABC):
    """Workers with environments, `shares` of them each, that play rounds. `on_progress(round, done)` is called as episodes come
    back, by whoever got them; one of these calls has all of them."""

    def __init__(self, workers: Sequence[Worker], shares: Sequence[int], on_progress: Progress | None = None) -> None:
        self.workers, self.shares = list(workers), list(shares)
        self._changed = threading.Condition()
        self._rounds: dict[int, Round] = {}
        self._next_round = 0
        self._started = self._complete = self._abandoned = self._failed = self._steps = 0
        self._busy_seconds = 0.0
        self._at_once = list(shares)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self._on_progress = on_progress
        self._traced: set[str] = set()

    @abstractmethod
    def play(self, context: CollectContext, count: int) -> Round:
        """Have `count` episodes played with the weights of the context; wait until all of them have ended."""

    def _open(self, snapshot: Snapshot, count: int) -> Round:
        """Under the lock: a new round."""
        wanted = Round(self._next_round, snapshot, count, self._started)
        self._next_round += 1
        self._rounds[wanted.number] = wanted
        self._started += count
        return wanted

    def _close(self, wanted: Round) -> None:
        """Under the lock: the round is whole, or given up."""
        del self._rounds[wanted.number]
        if wanted.missing:
            self._abandoned += wanted.count
        else:
            self._complete += wanted.count

    def _count(self, place: int, wanted: Round | None, parcel: Parcel) -> int:
        """Under the lock: episodes came back from a worker; `wanted` is None if their round was given up meanwhile. How many of
        the round are back, or 0 if none came."""
        meta = parcel.meta
        self._at_once[place] = meta["at_once"]
        self._steps += sum(meta["lengths"])
        self._busy_seconds += meta["seconds"]
        self._recent.extend(zip(meta["returns"], meta["lengths"], strict=True))
        if wanted is None or not meta["numbers"]:
            return 0
        wanted.parcels.append(parcel)
        wanted.missing -= len(meta["numbers"])
        return wanted.count - wanted.missing

    def _again(self, wanted: Round | None, worker: int, failure: Failure) -> bool:
        """Under the lock: whether an episode that an environment failed in is to be played again; not too often."""
        self._failed += 1
        trace = "" if failure.error in self._traced else f"\n{failure.trace}"  # one of each kind is enough to read
        self._traced.add(failure.error)
        log.warning("episode %d failed in worker %d: %s%s", failure.number, worker, failure.error, trace)
        if wanted is None:
            return False
        times = wanted.failures[failure.number] = wanted.failures.get(failure.number, 0) + 1
        if times > MAX_FAILURES:
            wanted.error = LzeroAsyncError(
                f"Episode {failure.number} failed {times} times: {failure.error}; its traceback is in the log."
            )
        return times <= MAX_FAILURES

    def _tell(self, wanted: Round | None, done: int) -> None:
        """Outside of the lock: so many episodes of the round were back."""
        if wanted is not None and done and self._on_progress is not None:
            self._on_progress(wanted, done)

    def statistics(self) -> PoolStatistics:
        """A snapshot of the counts."""
        with self._changed:
            recent = list(self._recent)
            returns, lengths = (
                (sum(column) / len(recent) for column in zip(*recent, strict=True)) if recent else (None, None)
            )
            return PoolStatistics(
                self._started, self._complete, self._abandoned, self._failed, self._steps, self._busy_seconds,
                sum(self._at_once), returns, lengths,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs; rounds that are open now are abandoned then."""
        with self._changed:
            names = ("started", "complete", "failed", "steps", "busy_seconds")
            return {
                **{name: getattr(self, f"_{name}") for name in names},
                "open": [wanted.slots[0].number for wanted in self._rounds.values()],
                "recent": [list(pair) for pair in self._recent],
            }

    def load_state_dict(self, state: Mapping[str, Any], waiting: Sequence[Sequence[int]]) -> None:
        """Go on counting, with numbers that no episode had before. `waiting` are the episodes of each round that waits to be
        trained; one of them may have been begun or become whole after `state` was taken."""
        with self._changed:
            started, was_open = int(state["started"]), set(state["open"])
            late = [numbers for numbers in waiting if min(numbers) in was_open or min(numbers) >= started]
            self._started = max([started, *(max(numbers) + 1 for numbers in late)])
            self._complete = int(state["complete"]) + sum(map(len, late))
            self._abandoned = self._started - self._complete
            self._failed, self._steps = int(state["failed"]), int(state["steps"])
            self._busy_seconds = float(state["busy_seconds"])
            self._recent.extend((float(ret), int(length)) for ret, length in state["recent"])
