"""Background reanalysis as its owner sees it: which batch is searched again next, and what came back for the learner.

Recent batches are kept as the parcels that they came in, so nothing is asked of the learner; what comes back travels to it
with its next train.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from lzero_async import AsyncTrainingCoordinator, Worker
from lzero_async.errors import Stopped
from lzero_async.types import StopSignal
from lzero_async.workers.calls import listen, stopped
from lzero_async.workers.parcels import Parcel


class Job(NamedTuple):
    """A batch to search again, and the version of the targets that it has."""

    batch: int
    version: int
    data: Parcel


class Reanalysis:
    """The last `kept` trained batches. Any thread may use it."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._changed = threading.Condition()
        self._jobs: OrderedDict[int, Job] = OrderedDict()  # by batch, the oldest first
        self._busy: set[int] = set()
        self._fresh: list[Parcel] = []
        self._newest = 0
        self.batches = self.steps = 0
        self.seconds = 0.0

    def add(self, batch: int, version: int, data: Parcel) -> None:
        """A batch was trained; the oldest batch is forgotten for it."""
        with self._changed:
            self._jobs[batch] = Job(batch, version, data)
            while len(self._jobs) > self._kept:
                self._jobs.popitem(last=False)

    def published(self, version: int) -> None:
        """Weights of this version are there to search with."""
        with self._changed:
            self._newest = version
            self._changed.notify_all()

    def next(self, stop: StopSignal) -> Job:
        """Wait for a batch whose targets are of older weights than the newest; the one with the oldest is next. Raises
        Stopped."""
        unlisten = listen(stop, self._wake)
        try:
            with self._changed:
                while True:
                    if stop.is_set():
                        raise stopped(stop)
                    old = [
                        job for job in self._jobs.values() if job.version < self._newest and job.batch not in self._busy
                    ]
                    if old:
                        job = min(old, key=lambda job: job.version)
                        self._busy.add(job.batch)
                        return job
                    self._changed.wait()
        finally:
            unlisten()

    def work(self, worker: Worker, coordinator: AsyncTrainingCoordinator, share: float, stop: StopSignal) -> None:
        """One pass of a reanalyzer: search the batch with the oldest targets again, then rest, so that it works no more than
        its share of the time."""
        job, fresh = self.next(stop), None
        start = time.monotonic()
        try:
            newest = coordinator.weights.latest()
            assert newest is not None
            with coordinator.working(worker.name, "reanalyze", batch=job.batch, version=newest.version):
                fresh = worker.call("research", job.batch, newest.version, newest.state, job.data, stop=stop)
        except Stopped:
            raise
        except Exception:
            worker.kill()  # whatever state it is in, the next pass begins with a new one
            raise
        finally:
            self.finish(job, fresh)
        stop.wait((time.monotonic() - start) * (1 / share - 1))

    def finish(self, job: Job, fresh: Parcel | None) -> None:
        """A job is over: with new targets for the learner, or without."""
        with self._changed:
            self._busy.discard(job.batch)
            if fresh is not None:
                self._fresh.append(fresh)
                self.batches += 1
                self.steps += fresh.meta["steps"]
                self.seconds += fresh.meta["seconds"]
                if job.batch in self._jobs:
                    self._jobs[job.batch] = job._replace(version=fresh.meta["version"])
            self._changed.notify_all()

    def take(self) -> list[Parcel]:
        """What came back since the last time."""
        with self._changed:
            fresh, self._fresh = self._fresh, []
            return fresh

    def _wake(self, reason: str) -> None:
        with self._changed:
            self._changed.notify_all()
