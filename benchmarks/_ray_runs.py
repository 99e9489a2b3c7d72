"""A run of collectors that wait, on either backend, for the benchmarks of Ray."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from lzero_async import AsyncTrainingCoordinator, make_backend
from tests.workers.roles import CollectorRole, LearnerRole

COLLECTORS, DEGREE, SECONDS, SIZE, BATCHES = 8, 16, 0.2, 500_000, 300


class WaitingRun(NamedTuple):
    """Batches per second, and the seconds of this process's CPU that each of them took."""

    rate: float
    owner_cpu: float


def waiting_run(kind: str) -> WaitingRun:
    """Eight collectors that wait, and a learner that only counts."""
    backend = make_backend(kind)
    try:
        learner = backend.start("learner", partial(LearnerRole, size=SIZE), pin_to_driver=True)
        collectors = [
            backend.start(f"collector {worker}", partial(CollectorRole, worker=worker, seconds=SECONDS, size=SIZE))
            for worker in range(COLLECTORS)
        ]
        for collector in collectors:
            collector.call("collect", learner.call("weights"))
        with AsyncTrainingCoordinator(
            DEGREE, num_collectors=COLLECTORS, get_weights=lambda: learner.call("weights")
        ) as coordinator:
            began, used = time.monotonic(), time.process_time()
            coordinator.run(
                lambda context: collectors[context.worker].call("collect", context.snapshot.state, stop=context.stop),
                lambda batch: learner.call("train", batch.id, batch.data),
                max_train=BATCHES,
                print_statistics=False,
            )
            seconds, cpu = time.monotonic() - began, time.process_time() - used
        return WaitingRun(BATCHES / seconds, cpu / BATCHES)
    finally:
        backend.close()
