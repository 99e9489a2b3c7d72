"""What adapts in the continuous trainer while it runs: the queue's length, the active collectors, the batch size."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lzero_async.telemetry.utilisation import Utilisation
from lzero_async.types import Batch
from zoo.mbpo.controllers import BatchSizeTuner, CollectorTuner, QueueSizeTuner
from zoo.mbpo.options import MbpoOptions, queue_batches

if TYPE_CHECKING:
    from zoo.mbpo.async_trainer import AsyncTrainer

WAITED: Final = 1e-3  # seconds of waiting for a batch from which on the learner counts as starved
KEPT_CHANGES: Final = 200
QUEUE_RANGE: Final = (2, 64)  # batches
BATCH_RANGE: Final = 4  # from a fourth of collection_batch_size to four times as much
log = logging.getLogger(__name__)


class Tuning:
    """Asks the controllers after every train, and makes their changes. Those that are not wanted are not there."""

    def __init__(self, options: MbpoOptions) -> None:
        batches, size = queue_batches(options), options.collection_batch_size
        cores = os.cpu_count() or 1
        low, high = min(QUEUE_RANGE[0], batches), max(QUEUE_RANGE[1], batches)
        self._tuners: dict[str, Any] = {}
        if options.adaptive_queue:
            self._tuners["queue"] = QueueSizeTuner(batches, low, high)
        if options.adaptive_collectors:
            first = min(cores, options.num_collectors)
            self._tuners["collectors"] = CollectorTuner(first, 1, options.num_collectors, cores)
        if options.adaptive_batch:
            self._tuners["batch"] = BatchSizeTuner(size, max(1, size // BATCH_RANGE), size * BATCH_RANGE)
        self._queue_size = options.max_queue_size
        self._changes: list[dict[str, Any]] = []
        self._utilisation = Utilisation(lambda: ())
        self._waited = 0.0
        self._dropped = 0
        self._at = time.monotonic()

    def trained(self, trainer: AsyncTrainer, batch: Batch) -> None:
        """A train has been made: adapt."""
        if not self._tuners:
            return
        statistics = trainer.coordinator.get_statistics()
        now = time.monotonic()
        starved = batch.replay or statistics["train_wait_time"] - self._waited > WAITED
        dropped = statistics["dropped"] - self._dropped
        fed = 0 if batch.replay else batch.data.meta["steps"]
        feed = fed / max(now - self._at, 1e-9)
        self._waited, self._dropped, self._at = statistics["train_wait_time"], statistics["dropped"], now
        capacity = statistics["queue_capacity"]
        use = trainer.queue.lately()
        for name, tuner in self._tuners.items():
            if name == "queue":
                change = tuner.after_train(use * capacity)
            elif name == "collectors":
                cores = self._utilisation.sample().cores
                change = tuner.after_train(starved, feed, dropped=dropped, queue_use=use, cpu_use=cores)
            else:
                every = statistics["active_collectors"] == len(trainer.collectors.workers)
                change = tuner.after_train(starved, dropped=dropped, all_active=every)
            if change is not None:
                self._note(name, change, statistics["train_count"])
                self._set(trainer, name, change.value)

    def apply(self, trainer: AsyncTrainer) -> None:
        """Put every number in force: at the start, and after a resume."""
        for name, tuner in self._tuners.items():
            self._set(trainer, name, tuner.value)

    def _set(self, trainer: AsyncTrainer, name: str, value: int) -> None:
        if name == "queue":
            trainer.coordinator.set_queue_capacity(value)
        elif name == "collectors":
            trainer.coordinator.set_active_collectors(value)
        else:
            trainer.collectors.collection_batch_size = value
            if "queue" not in self._tuners:  # as many transitions as before, in other batches
                trainer.coordinator.set_queue_capacity(max(1, round(self._queue_size / value)))

    def _note(self, name: str, change: Any, train: int) -> None:
        log.info("train %d: %s is %d now: %s", train, name, change.value, change.reason)
        self._changes.append({"train": train, "what": name, "value": change.value, "reason": change.reason})
        del self._changes[:-KEPT_CHANGES]

    def changes(self) -> list[dict[str, Any]]:
        """The last changes, with their reasons."""
        return list(self._changes)

    def values(self) -> dict[str, int]:
        """The numbers in force."""
        return {name: tuner.value for name, tuner in self._tuners.items()}

    def state_dict(self) -> dict[str, Any]:
        """The controllers' states."""
        return {name: tuner.state_dict() for name, tuner in self._tuners.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; controllers that were not there before start afresh."""
        for name, tuner in self._tuners.items():
            if name in state:
                tuner.load_state_dict(state[name])
