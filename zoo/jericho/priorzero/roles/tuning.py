"""The language model's training as the coordinating process sees it: when it is due, on which batches, and what it has become.

It trains in every `every`-th train, on the batches of the last `every` trains, and its weights are published with the world
model's, under the same version. So the gate's bound holds for it, too: counted in its own versions, a batch is at most
ceil(staleness / every) old, and the staleness is at most the degree.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from lzero_async.clock import RealClock
from lzero_async.errors import LzeroAsyncError, WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.types import Batch, StopSignal
from lzero_async.validation import backoff
from lzero_async.workers.backend import Worker
from lzero_async.workers.calls import interrupted, stopped
from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.play.batch import LLMWeights, Weights

log = logging.getLogger(__name__)


class Schedule(NamedTuple):
    """In which trains, counted from 1, the language model trains: every `every`-th, after the first `warmup`."""

    every: int = 1
    warmup: int = 0

    def is_due(self, train: int) -> bool:
        """Whether it trains in this train."""
        return train % self.every == 0 and train > self.warmup

    def version(self, trains: int) -> int:
        """How often it was trained after so many trains."""
        return max(0, trains // self.every - self.warmup // self.every)

    def oldest(self, staleness: int) -> int:
        """The most versions of its own that a batch of this staleness may be old."""
        return math.ceil(staleness / self.every)


class Kept(NamedTuple):
    """A batch that the language model has not trained on, and how old it was when the world model did."""

    parcel: Parcel
    staleness: int


class Tuning:
    """One run's. A dead learner of the language model is made anew from what it handed over with its last version, and makes
    its part of the train again; the world model's learner, whose part is made, does not. `working` notes what it does when."""

    def __init__(
        self,
        learner: Worker,
        schedule: Schedule,
        *,
        alternate: bool,
        beside: bool,
        share: float,
        max_restarts: int,
        restart_backoff: float,
        given_up: Callable[[], bool],
        on_restart: Callable[[], None],
        working: Callable[..., AbstractContextManager[Any]] = lambda *_, **__: nullcontext(),
    ) -> None:
        self._working = working
        self.learner, self.schedule = learner, schedule
        self._alternate, self._beside, self._share = alternate, beside, share
        self._max_restarts, self._backoff = max_restarts, restart_backoff
        self._given_up, self._on_restart = given_up, on_restart
        self._kept: list[Kept] = []
        self._state: Parcel | None = None  # handed over with the last version
        self._known = True  # whether the learner has it
        self.published: LLMWeights | None = None
        self.version = 0
        self.oldest = 0  # the most versions of its own that a batch was old
        self.skipped = 0  # trains left out because another one like the last would be more than its share of the time
        self.seconds = self.cpu_seconds = self._last_cost = 0.0

    def weights(self, world_model: Parcel) -> Weights:
        """What is published together."""
        return Weights(world_model, self.published)

    def train(
        self, number: int, batch: Batch, world_model: Callable[[], dict[str, Any]], elapsed: float
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """One train of both, the run's `number`-th: what the world model's learner and the language model's say. If one of them
        fails, neither has trained: call `take_back` of the world model's learner."""
        kept = [*self._kept, Kept(batch.data, batch.staleness)]
        if not self.schedule.is_due(number):
            done = world_model()
            # Batches of the warm-up are trained on as soon as it is over, but no more of them than of any other time.
            self._kept = kept[-self.schedule.every + 1 :] if self.schedule.every > 1 else []
            return done, {}
        ages = [self._check_age(one) for one in kept]
        if self._share and self.version and self.cpu_seconds + self._last_cost > self._share * elapsed:
            done = world_model()
            self._kept = []
            self.skipped += 1
            return done, {"skipped": float(self.skipped)}
        done, tuned = self._both(world_model, [one.parcel for one in kept], batch.stop)
        self._kept = []
        self._state, self.published = tuned["state"], tuned["weights"]
        self.version += 1
        self.seconds += tuned["seconds"]
        self._last_cost = tuned["cpu_seconds"]
        self.cpu_seconds += self._last_cost
        self.oldest = max(self.oldest, *ages)
        numbers = {name: value for name, value in tuned["values"].items() if math.isfinite(value)}
        return done, {
            **numbers,
            "version": float(self.version),
            "staleness": float(max(ages)),
            "seconds": tuned["seconds"],
        }

    def _check_age(self, kept: Kept) -> int:
        """How many versions of its own a batch is old. It is never older than the schedule says, whatever went wrong before."""
        age, oldest = self.version - int(kept.parcel.meta.get("llm_version", 0)), self.schedule.oldest(kept.staleness)
        if not 0 <= age <= oldest:
            raise LzeroAsyncError(
                f"A batch is {age} versions of the language model old, and its staleness of {kept.staleness} allows 0 to "
                f"{oldest}; this is a fault of the program."
            )
        return age

    def _both(
        self, world_model: Callable[[], dict[str, Any]], batches: Sequence[Parcel], stop: StopSignal
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What both learners say. What fails in either is raised once nobody works any more."""
        if self._alternate or not self._beside:
            done = world_model()
            return done, self._tune(batches, stop, threading.Event())
        abandoned = threading.Event()
        tuned: list[dict[str, Any]] = []
        failed: list[BaseException] = []

        def tune() -> None:
            try:
                tuned.append(self._tune(batches, stop, abandoned))
            except BaseException as error:
                failed.append(error)

        threads = ThreadGroup(RealClock(), "lzero-llm")
        threads.start("llm learner", tune)
        try:
            done = world_model()
        except BaseException:
            abandoned.set()
            self.learner.kill()  # nobody takes what it makes
            threads.join(None)
            self._known = False
            raise
        threads.join(None)
        if failed:
            raise failed[0]
        return done, tuned[0]

    def _tune(self, batches: Sequence[Parcel], stop: StopSignal, abandoned: threading.Event) -> dict[str, Any]:
        for attempt in range(self._max_restarts + 1):
            try:
                self._bring_back()
                self._known = False  # until its train is handed over
                with self._working(self.learner.name, "llm train", version=self.version):
                    tuned: dict[str, Any] = self.learner.call("train", list(batches))
            except WorkerDied as error:
                if attempt == self._max_restarts or abandoned.is_set() or self._given_up():
                    raise
                pause = backoff(self._backoff, attempt)
                log.warning("the language model's learner died (%s); it trains again after %.3g s", error, pause)
                if (stop.wait(pause) and interrupted(stop)) or self._given_up():
                    raise stopped(stop) from error
            else:
                self._known = True
                return tuned
        raise AssertionError

    def _bring_back(self) -> None:
        """The learner as it was after its last version."""
        if not self.learner.alive:
            self.learner.restart()
            self._on_restart()
            self.learner.call("ready")
            self._known = False
        if not self._known:
            self.learner.call("load", self._state)
            self._known = True

    def told(self) -> dict[str, Any]:
        """Its counts, for the summary."""
        names = ("version", "oldest", "skipped", "seconds", "cpu_seconds")
        return {**{name: getattr(self, name) for name in names}, "digest": self._digest}

    @property
    def _digest(self) -> str:
        return "" if self.published is None else self.published.digest

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What a checkpoint needs; its parcels are opened where it is written."""
        return {
            **self.told(), "state": self._state, "kept": [one.parcel for one in self._kept],
            "stalenesses": [one.staleness for one in self._kept], "last_cost": self._last_cost,
        }  # fmt: skip

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.version, self.oldest, self.skipped = (int(saved[name]) for name in ("version", "oldest", "skipped"))
        self.seconds, self.cpu_seconds = float(saved["seconds"]), float(saved["cpu_seconds"])
        self._last_cost = float(saved["last_cost"])
        self._kept = [Kept(*pair) for pair in zip(saved["kept"], saved["stalenesses"], strict=True)]
        self._state, self._known = saved["state"], False
        self.published = None
        if self._state is not None:
            self.published = LLMWeights(self.version, str(saved["digest"]), saved["trained"])
