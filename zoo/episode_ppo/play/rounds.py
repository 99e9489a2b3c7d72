"""Rounds: what one batch is made of, and the counts of every episode that was ever started.

A *round* is the collect of one batch: a number of episodes that start one after the other, all with the same version of the
weights. It is complete when every one of them has ended, so what is trained is what was started: a collector that took whatever
ended first would see short episodes too often. An episode that fails is begun once more with another seed; if that fails, too, it
is left out of its round.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lzero_async.errors import ConfigError, LzeroAsyncError, WorkerDied, WorkerStuck
from lzero_async.types import CollectContext, Snapshot
from lzero_async.workers.backend import Worker
from lzero_async.workers.parcels import Parcel
from zoo.episode_ppo.play.player import BAD_DATA, REFUSED, TIMEOUT, TRIES, Failure, Slot, timed_out

FIRST_TRIES = (
    8  # if at least so many, and one in every environment, fail for one cause before any episode ends, all will
)
MOST_CAUSES = 100  # of failures that are told apart in the log
RECENT_EPISODES = 100
log = logging.getLogger(__name__)


class Round:
    """The episodes of one batch as they come back."""

    def __init__(self, number: int, snapshot: Snapshot, count: int, first: int) -> None:
        self.number, self.snapshot, self.count = number, snapshot, count
        self.slots = [Slot(first + place, number, snapshot.version) for place in range(count)]
        self.parcels: list[Parcel] = []
        self.missing = count  # episodes that are neither back nor left out
        self.left_out = 0
        self.failures: dict[int, int] = {}  # tries of an episode that failed
        self.lost: set[int] = set()  # episodes whose worker died under them
        self.error: Exception | None = None
        self.begun = self.said = time.monotonic()  # `said`: when something was last said about it

    @property
    def steps(self) -> int:
        """Environment steps of the episodes that are back."""
        return sum(sum(parcel.meta["lengths"]) for parcel in self.parcels)


Progress = Callable[[Round, int], None]
SAVED = ("started", "complete", "left_out", "failed", "bad_data", "env_timeouts", "replayed", "steps", "busy_seconds")


class PoolStatistics(NamedTuple):
    """Counts over the whole run, resumes included; `started` = `complete` + `left_out` + `abandoned` + those of rounds that are
    open."""

    started: int  # episodes that were given a number
    complete: int  # episodes handed on in whole rounds
    abandoned: int  # episodes of rounds that were given up: a stop, a dead worker, no episode that could be played
    left_out: int  # episodes that failed in every try and were left out of their round
    failed: int  # tries that failed: the environment raised, gave bad data or hung
    bad_data: int  # of these, because of numbers that are not finite, or a wrong shape or type
    env_timeouts: int  # of these, because a step took longer than step_timeout
    replayed: int  # episodes played again because their worker's process ended under them, through no fault of theirs
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
        self._started = self._complete = self._abandoned = self._left_out = self._steps = 0
        self._failed = self._bad_data = self._env_timeouts = self._replayed = 0
        self._busy_seconds = 0.0
        self._at_once = list(shares)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self._on_progress = on_progress
        self._causes: dict[str, int] = {}  # failures by cause; of this process, as is the next one
        self._ended = 0  # episodes that came back
        self._gave_up: ConfigError | None = None  # why no episode can ever succeed
        self._told: dict[int, str] = {}  # what was said of a worker that is stuck

    @abstractmethod
    def play(self, context: CollectContext, count: int) -> Round:
        """Have `count` episodes played with the weights of the context; wait until all of them have ended."""

    def _open(self, snapshot: Snapshot, count: int) -> Round:
        """Under the lock: a new round."""
        wanted = Round(self._next_round, snapshot, count, self._started)
        wanted.error = self._gave_up
        self._next_round += 1
        self._rounds[wanted.number] = wanted
        self._started += count
        return wanted

    def _close(self, wanted: Round) -> None:
        """Under the lock: the round is whole, or given up."""
        del self._rounds[wanted.number]
        if wanted.missing or wanted.error is not None:
            self._abandoned += wanted.count
            return
        self._complete += wanted.count - wanted.left_out
        self._left_out += wanted.left_out
        wanted.parcels[0].meta["started"] = (wanted.slots[0].number, wanted.count)  # a resumed run counts on from there

    def _count(self, place: int, wanted: Round | None, parcel: Parcel) -> bool:
        """Under the lock: episodes came back from a worker; `wanted` is None if their round was given up meanwhile. Whether any
        are of use."""
        meta = parcel.meta
        self._at_once[place] = meta["at_once"]
        self._ended += len(meta["numbers"])
        self._steps += sum(meta["lengths"])
        self._busy_seconds += meta["seconds"]
        self._recent.extend(zip(meta["returns"], meta["lengths"], strict=True))
        if wanted is None or not meta["numbers"]:
            return False
        wanted.parcels.append(parcel)
        wanted.missing -= len(meta["numbers"])
        return True

    def told(self, place: int, what: Failure | str) -> None:
        """What a worker tells at once: that an episode failed, which counts even if the worker ends before it returns it; or,
        from a process that it shares with others, that an environment hangs: then the worker is ended from here."""
        if isinstance(what, Failure):
            self._note(place, what)
        else:
            self._told[place] = what
            self.workers[place].kill()

    def _note(self, place: int, failure: Failure) -> None:
        """Count a try that failed."""
        with self._changed:
            self._failed += 1
            self._bad_data += failure.sort == BAD_DATA
            self._env_timeouts += failure.sort == TIMEOUT
            self._log(place, failure)

    def _again(self, wanted: Round | None, slot: Slot | None, failure: Failure) -> Slot | None:
        """Under the lock: an environment failed in an episode, which is counted. What is to be played in its place: the same
        episode with another seed; or None, because it is left out, or nobody wants it any more."""
        if wanted is None or slot is None or wanted.error is not None:
            return None
        if (hopeless := self._hopeless(wanted, failure)) is not None:
            self._gave_up = hopeless
            for each in self._rounds.values():  # all end with one error, which is told once
                each.error = each.error or hopeless
            self._changed.notify_all()
            return None
        times = wanted.failures[failure.number] = wanted.failures.get(failure.number, 0) + 1
        if times < TRIES:
            return slot._replace(attempt=slot.attempt + 1)
        wanted.left_out += 1
        wanted.missing -= 1
        if wanted.left_out == wanted.count:
            wanted.error = LzeroAsyncError(
                f"All {wanted.count} episodes of a round failed, {TRIES} times each; the last one: {failure.error}; its "
                "traceback is in the log."
            )
        return None

    def _log(self, worker: int, failure: Failure) -> None:
        """The first of a cause with its traceback, then one line each time that there are ten times as many."""
        cause = failure.cause if failure.cause in self._causes or len(self._causes) < MOST_CAUSES else "others"
        times = self._causes[cause] = self._causes.get(cause, 0) + 1
        if failure.sort == REFUSED:  # which ends the run with that sentence
            return
        if times == 1:
            log.warning("episode %d failed in worker %d: %s\n%s", failure.number, worker, failure.error, failure.trace)
        elif str(times).strip("0") == "1":
            log.warning("episode %d failed in worker %d: %s (the %dth for this cause)", failure.number, worker,
                        failure.error, times)  # fmt: skip

    def _hopeless(self, wanted: Round, failure: Failure) -> ConfigError | None:
        """The error that ends the run if no episode can ever succeed."""
        if failure.sort == REFUSED:
            return ConfigError(failure.error)
        tries = sum(self._causes.values())
        if self._ended or len(self._causes) > 1 or tries < max(FIRST_TRIES, min(sum(self._at_once), wanted.count)):
            return None
        return ConfigError(
            f"The first {tries} tries to play an episode, in every environment, all failed for one cause: {failure.error}; "
            "correct the environment. The traceback is in run.log."
        )

    def _lost(self, playing: Mapping[int, Slot], failure: Failure | None) -> list[Slot]:
        """Under the lock: a worker ended under these episodes; which are to be played again. `failure` is that of the one in
        which an environment hung; without it nobody knows whose fault it was, and one that was there twice gets another seed."""
        again = []
        for slot in playing.values():
            wanted = self._rounds.get(slot.round)
            if failure is not None and slot.number == failure.number:
                again.append(self._again(wanted, slot, failure))
            elif wanted is not None:
                self._replayed += 1
                suspect = failure is None and slot.number in wanted.lost
                again.append(slot._replace(attempt=slot.attempt + 1) if suspect else slot)
                wanted.lost.update([slot.number] if failure is None else [])
        return [slot for slot in again if slot is not None]

    def _hung(self, place: int, error: WorkerDied) -> Failure | None:
        """The episode that a worker ended for, if it was an environment that hung; it is counted."""
        words = self._told.pop(place, "")
        failure = timed_out(str(error) if isinstance(error, WorkerStuck) else words)
        if failure is not None:
            self._note(place, failure)
        return failure

    def _tell(self, wanted: Round | None, changed: bool) -> None:
        """Outside of the lock: more episodes of the round are back, or left out."""
        if wanted is not None and changed and self._on_progress is not None:
            self._on_progress(wanted, wanted.count - wanted.missing)

    def statistics(self) -> PoolStatistics:
        """A snapshot of the counts."""
        with self._changed:
            recent = list(self._recent)
            returns, lengths = (
                (sum(column) / len(recent) for column in zip(*recent, strict=True)) if recent else (None, None)
            )
            return PoolStatistics(
                self._started, self._complete, self._abandoned, self._left_out, self._failed, self._bad_data,
                self._env_timeouts, self._replayed, self._steps, self._busy_seconds, sum(self._at_once), returns, lengths,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs; rounds that are open now are abandoned then."""
        with self._changed:
            return {
                **{name: getattr(self, f"_{name}") for name in SAVED},
                "open": [wanted.slots[0].number for wanted in self._rounds.values()],
                "recent": [list(pair) for pair in self._recent],
            }

    def load_state_dict(self, state: Mapping[str, Any], waiting: Sequence[Sequence[Parcel]]) -> None:
        """Go on counting, with numbers that no episode had before. `waiting` are the rounds that wait to be trained; one of them
        may have been begun or become whole after `state` was taken."""
        with self._changed:
            for name in SAVED:
                setattr(self, f"_{name}", (float if name == "busy_seconds" else int)(state[name]))
            was_open, begun = set(state["open"]), self._started
            for parcels in waiting:
                first, count = parcels[0].meta["started"]
                if first in was_open or first >= begun:
                    whole = sum(len(parcel.meta["numbers"]) for parcel in parcels)
                    self._started = max(self._started, first + count)
                    self._complete += whole
                    self._left_out += count - whole
            self._abandoned = self._started - self._complete - self._left_out
            self._recent.extend((float(ret), int(length)) for ret, length in state["recent"])
