"""AsyncDataCollector: workers that collect, each with its own environments, and live numbers about them.

The coordinator says when each may collect and keeps what they bring in its queue; this is where they live, what they are told,
and how one that failed comes back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lzero_async.types import CollectContext
from lzero_async.validation import whole_number
from lzero_async.workers.backend import Backend, Worker
from lzero_async.workers.parcels import Parcel
from zoo.mbpo.collect.roles import CollectOrder
from zoo.mbpo.envs.sources import EnvSource
from zoo.mbpo.envs.vectorised import split

RECENT_EPISODES = 100
log = logging.getLogger(__name__)


class CollectorStatistics(NamedTuple):
    """What the collectors did since the start, resumes included (`steps`), or since this process began (the rest)."""

    steps: int  # real transitions collected
    collects: int
    episodes: int
    mean_return: float | None  # of the last 100 episodes
    steps_per_second: float
    busy: float  # share of the collectors' time spent collecting
    left_out: int  # transitions that an environment lost because it kept no last observation
    restarts: int
    alive: int
    by_worker: tuple[dict[str, float], ...]


class AsyncDataCollector:
    """`num_collectors` workers of a backend that share `num_envs` environments.

    `collection_batch_size` is the number of transitions of one collect: each worker makes as many steps of its own
    environments as that takes. `random_steps`: real steps at the start with uniform actions. `staggered`: first collects
    of different lengths, so that batches come one by one from then on, and not all at once, which no short queue could hold.
    """

    def __init__(
        self,
        backend: Backend,
        source: EnvSource,
        *,
        num_envs: int,
        num_collectors: int,
        collection_batch_size: int,
        random_steps: int = 0,
        staggered: bool = False,
        environment: Mapping[str, str] | None = None,
        output: Callable[[str], str] = lambda name: "",
        on_event: Callable[[Any], None] | None = None,
    ) -> None:
        self.shares = split(num_envs, num_collectors)
        self.collection_batch_size = whole_number("collection_batch_size", collection_batch_size, 1)
        self.random_steps = whole_number("random_steps", random_steps, 0)
        self.workers: list[Worker] = [
            backend.start(
                f"collector {number}",
                source.collector(envs, number),
                on_event=on_event,
                environment=environment,
                output=output(f"collector {number}"),
            )
            for number, envs in enumerate(self.shares)
        ]
        self.streams = [0] * num_collectors  # collects that each worker has begun
        self._in_step = [staggered] * num_collectors  # workers whose next collect would end with all the others'
        self.steps = 0
        self._lock = threading.Lock()
        self._by_worker: list[dict[str, Any]] = [{"steps": 0, "collects": 0, "busy_seconds": 0.0} for _ in self.workers]
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._episodes = self._left_out = 0
        self._began = time.monotonic()
        self._steps_before = 0

    def vector_steps(self, worker: int) -> int:
        """Steps of its environments that a worker's collect takes."""
        return -(-self.collection_batch_size // self.shares[worker])

    def _next_steps(self, worker: int) -> int:
        """The same for its next collect: `staggered`, the first ones differ in length, from short to whole."""
        steps = self.vector_steps(worker)
        if self._in_step[worker]:
            self._in_step[worker] = False
            return -(-steps * (worker + 1) // len(self.workers))
        return steps

    def ready(self) -> tuple[int, int]:
        """Wait until every worker is made; sizes of observation and action."""
        sizes = [worker.call("ready") for worker in self.workers]
        self._began = time.monotonic()
        return int(sizes[0]["obs_size"]), int(sizes[0]["action_size"])

    def collect(self, context: CollectContext) -> Parcel:
        """One batch by the worker of the context, with its weights: the collect function of a run."""
        assert context.snapshot is not None
        worker, number = self.workers[context.worker], self.streams[context.worker]
        self.streams[context.worker] = number + 1
        random = self.steps < self.random_steps
        order = CollectOrder(context.snapshot.version, number, self._next_steps(context.worker), random)
        begun = time.monotonic()
        batch: Parcel = worker.call("collect", order, context.snapshot.state, stop=context.stop)
        self._count(context.worker, batch.meta, time.monotonic() - begun)
        return batch

    def _count(self, worker: int, meta: Mapping[str, Any], seconds: float) -> None:
        with self._lock:
            own = self._by_worker[worker]
            own["steps"] += meta["steps"]
            own["collects"] += 1
            own["busy_seconds"] += seconds
            self.steps += meta["steps"]
            self._returns.extend(meta["returns"])
            self._episodes += len(meta["returns"])
            self._left_out += meta["left_out"]

    def restarted(self, worker: int, error: Exception) -> None:
        """A collect failed: whatever state its role is in, the next one starts from a new one."""
        log.warning("collector %d starts anew after %r", worker, error)
        self.workers[worker].restart()

    def retire(self, worker: int) -> None:
        """A collector failed too often: the others go on without it."""
        self.workers[worker].kill()

    def statistics(self) -> CollectorStatistics:
        """A snapshot of the counts."""
        with self._lock:
            seconds = max(1e-9, time.monotonic() - self._began)
            own = tuple(
                {**counts, "restarts": worker.restarts, "alive": worker.alive, "envs": envs}
                for counts, worker, envs in zip(self._by_worker, self.workers, self.shares, strict=True)
            )
            return CollectorStatistics(
                steps=self.steps,
                collects=sum(counts["collects"] for counts in self._by_worker),
                episodes=self._episodes,
                mean_return=float(np.mean(self._returns)) if self._returns else None,
                steps_per_second=(self.steps - self._steps_before) / seconds,
                busy=sum(counts["busy_seconds"] for counts in self._by_worker) / (seconds * len(self.workers)),
                left_out=self._left_out,
                restarts=sum(worker.restarts for worker in self.workers),
                alive=sum(worker.alive for worker in self.workers),
                by_worker=own,
            )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        with self._lock:
            return {"streams": list(self.streams), "steps": self.steps, "returns": list(self._returns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting, and draw random numbers that were not drawn before, also with another number of collectors."""
        first = max(map(int, state["streams"]), default=0)
        self.streams = [first] * len(self.streams)
        self.steps = self._steps_before = int(state["steps"])
        self._returns.extend(map(float, state["returns"]))
