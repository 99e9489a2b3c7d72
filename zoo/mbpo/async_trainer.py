"""AsyncTrainer v1, continuous: collection, agent training, dynamics training and model rollout all run all the time.

Collectors put real batches into a queue that drops its oldest when it is full (or lets them wait). The agent takes them one by
one and, while none is there, goes on with the data at hand. Every batch it takes goes on to the dynamics and to the rollouts,
which are roles of their own; what the rollouts make comes back to the agent through a queue of model data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lzero_async import Bound, Parcel, Worker
from lzero_async.core.weights import WeightStore
from lzero_async.errors import WorkerError
from lzero_async.types import BackgroundContext, Batch
from lzero_async.workers.calls import listen, stopped
from zoo.mbpo.options import AUTOMATIC, CONTINUOUS, MbpoOptions, queue_batches
from zoo.mbpo.queues import BoundedQueue, QueueClosed
from zoo.mbpo.trainer import Trainer
from zoo.mbpo.tuning import Tuning

INBOX = 64  # batches that may wait for the dynamics or the rollouts; of more, the oldest is not learned from there
log = logging.getLogger(__name__)


class Work(NamedTuple):
    """What the agent's train of one batch means for dynamics and rollouts: transitions to work for, and the new ones."""

    steps: int
    batch: Parcel | None
    real_data: int  # real transitions that the agent has had, the new ones included


class AsyncTrainer(Trainer):
    """The continuous trainer."""

    trainers = (CONTINUOUS,)

    def _collecting(self) -> dict[str, Any]:
        options = self.options
        return {
            "num_collectors": options.num_collectors,
            "collection_batch_size": options.collection_batch_size,
            "staggered": options.when_full != "wait",
        }

    def _coordination(self) -> dict[str, Any]:
        options = self.options
        batches = queue_batches(options)
        common = {
            "num_collectors": options.num_collectors,
            "buffer_size": options.real_buffer_size,
            "batch_size": options.collection_batch_size,
        }
        if options.when_full == "wait":
            degree = options.off_policy_degree
            if degree == AUTOMATIC:
                degree = max(batches, options.num_collectors)
            return {**common, "off_policy_degree": degree, "bound": Bound(max_train_ahead=options.max_train_ahead)}
        bounded = options.off_policy_degree != AUTOMATIC
        ordered = options.queue_order != "fifo"
        return {
            **common,
            "off_policy_degree": options.off_policy_degree if bounded else batches,
            "bound": Bound(
                staleness_policy="drop" if bounded else "allow",
                max_train_ahead=options.max_train_ahead,
                queue_capacity=batches,
                queue_order="priority" if ordered else "fifo",
                priority=PRIORITIES[options.queue_order] if ordered else None,
            ),
        }

    def _start_learners(self, options: MbpoOptions, sizes: tuple[int, int]) -> None:
        self.learner = self._start_role("learner", "AgentRole", options, sizes)
        self.dynamics = self._start_role("dynamics", "DynamicsRole", options, sizes)
        self.rollouts = self._start_role("rollouts", "RolloutRole", options, sizes)
        self.dynamics_weights = WeightStore()
        self._to_dynamics: BoundedQueue[Work] = BoundedQueue(INBOX, "drop_oldest")
        self._to_rollouts: BoundedQueue[Work] = BoundedQueue(INBOX, "drop_oldest")
        self.model_queue: BoundedQueue[Parcel] = BoundedQueue(options.model_queue_size, "drop_oldest")
        self._reports: dict[str, dict[str, Any]] = {"dynamics": {}, "rollouts": {}}
        self._restored = {"dynamics": 0, "rollouts": 0}  # the agent's real data that a role got when it was restarted
        self._dynamics_state: Parcel | None = None  # as it was saved last
        self._blank: set[str] = set()  # roles that were restarted and know nothing yet
        self._last_steps = 0
        self.tuning = Tuning(self.options)

    def _learners(self) -> list[Worker]:
        return [self.learner, self.dynamics, self.rollouts]

    # -- the agent -----------------------------------------------------------------------------------------------------

    def _learn(self, batch: Batch) -> dict[str, Any]:
        data: Parcel | None = None if batch.replay else batch.data
        model = [self.model_queue.get() for _ in range(len(self.model_queue))]  # nobody else takes any
        if data is not None:
            self._last_steps = data.meta["steps"]
        work = Work(self._last_steps, data, self.counters["real_data"] + (0 if data is None else self._last_steps))
        for queue in (self._to_dynamics, self._to_rollouts):
            _offer(queue, work)
        now = self.coordinator.version
        report: dict[str, Any] = self.learner.call(
            "train", batch.version, now, data, self._last_steps, model, self._dynamics_version()
        )
        self.tuning.trained(self, batch)
        return {**report, **self._model_counters()}

    def _dynamics_version(self) -> int:
        latest = self.dynamics_weights.latest()
        return 0 if latest is None else latest.version

    def _model_counters(self) -> dict[str, Any]:
        found = {
            name: value for report in self._reports.values() for name, value in report.items() if name != "weights"
        }
        queue = self.model_queue.statistics()
        return found | {"model_queue": queue.size, "model_queue_dropped": queue.dropped}

    def _loop(self) -> dict[str, Any]:
        self.tuning.apply(self)
        return super()._loop()

    # -- in the background -----------------------------------------------------------------------------------------------

    def _background(self) -> dict[str, Callable[[BackgroundContext], object]]:
        return {"dynamics": self._fit, "rollouts": self._roll}

    def _fit(self, context: BackgroundContext) -> None:
        """One pass of the dynamics: whatever came since the last one."""
        work = _take_all(self._to_dynamics, context)
        with self.coordinator.working("dynamics", "fit") as shown:
            report = self._ask(self.dynamics, "fit", work)
            shown["version"] = report["dynamics_version"]
        seconds = report.pop("seconds")
        if (weights := report.pop("weights")) is not None:
            self.dynamics_weights.publish(weights, report["dynamics_version"])
        self._worked("dynamics", seconds)
        self._reports["dynamics"] = report

    def _roll(self, context: BackgroundContext) -> None:
        """One pass of the rollouts, with the newest policy and dynamics."""
        work = _take_all(self._to_rollouts, context)
        policy, dynamics = self.coordinator.weights.latest(), self.dynamics_weights.latest()
        assert policy is not None
        newest = (0, None) if dynamics is None else (dynamics.version, dynamics.state)
        with self.coordinator.working("rollouts", "roll", version=newest[0]):
            rows: Parcel | None = self._ask(self.rollouts, "roll", work, (policy.version, policy.state), newest)
        if rows is None:
            return
        self.model_queue.put(rows)
        names = ("model_clamped", "model_dropped", "rollouts_forgotten")
        self._reports["rollouts"] = {name: rows.meta[name] for name in names}
        self._worked("rollouts", rows.meta["seconds"])

    def _worked(self, role: str, seconds: float) -> None:
        self._busy[role] = self._busy.get(role, 0.0) + seconds

    def _ask(self, worker: Worker, method: str, work: list[Work], *arguments: Any) -> Any:
        """Call a role with what came since its last pass. One that has died is brought back first; one that raises is
        ended, since nobody knows what state it is in."""
        if not worker.alive:
            self._bring_back(worker)
        batches = [
            item.batch for item in work if item.batch is not None and item.real_data > self._restored[worker.name]
        ]
        try:
            return worker.call(method, [item.steps for item in work], batches, *arguments)
        except Exception:
            worker.kill()
            raise

    def _bring_back(self, worker: Worker) -> None:
        """Restart a role that died, with what the others know of its state."""
        self._blank.add(worker.name)
        worker.restart()
        self._locate()
        try:
            rows = self.learner.call("real_rows")
            if worker is self.rollouts:
                worker.call("restore", rows)
            else:
                self._restore_dynamics(rows)
        except BaseException:
            worker.kill()  # it knows nothing yet, so it must not be taken for one that does
            raise
        self._restored[worker.name] = rows.meta["real_data"]
        self._blank.discard(worker.name)

    def _restore_dynamics(self, rows: Parcel) -> None:
        latest = self.dynamics_weights.latest()
        updates = int(self._reports["dynamics"].get("dynamics_updates", 0))
        weights, version = (None, 0) if latest is None else (latest.state, latest.version)
        self.dynamics.call("restore", weights, version, updates, rows)
        log.warning("the dynamics go on from version %d with a new optimizer", version)

    # -- numbers, saving and resuming --------------------------------------------------------------------------------------

    def _steps_per_collect(self) -> int | None:
        return None if self.options.adaptive_batch else super()._steps_per_collect()

    def results(self) -> dict[str, Any]:
        queues: dict[str, BoundedQueue[Any]] = {
            "model": self.model_queue,
            "to_dynamics": self._to_dynamics,
            "to_rollouts": self._to_rollouts,
        }
        return {
            **super().results(),
            "queues": {name: queue.statistics()._asdict() for name, queue in queues.items()},
            "tuning": self.tuning.changes(),
        }

    def _other_state(self) -> Parcel | None:
        try:
            state = self.dynamics.call("state")
        except WorkerError as error:
            log.warning("the checkpoint has the dynamics of the one before, because they just died: %r", error)
            return self._dynamics_state
        if "dynamics" not in self._blank:  # else it was asked between its restart and its restoring
            self._dynamics_state = state
        return self._dynamics_state

    def _load_others(self, path: Path) -> None:
        report = self.dynamics.call("load", str(path))
        self._dynamics_state = self.dynamics.call("state")
        self.rollouts.call("load", str(path))
        if (weights := report.pop("weights")) is not None:
            self.dynamics_weights.publish(weights, report["dynamics_version"])
        self._reports["dynamics"] = report

    def _state_of_own(self) -> dict[str, Any]:
        return {"tuning": self.tuning.state_dict(), "last_steps": self._last_steps}

    def _load_own(self, state: Mapping[str, Any]) -> None:
        # After another trainer, whose batches were of another size, a train without a batch owes as much as one of this size.
        self._last_steps = int(state.get("last_steps", self.options.collection_batch_size))
        if "tuning" in state:
            self.tuning.load_state_dict(state["tuning"])


PRIORITIES: dict[str, Callable[[Parcel], float]] = {
    "newest": lambda batch: float(batch.meta["version"]),
    "reward": lambda batch: float(batch.meta["reward_mean"]),
}


def _take_all(queue: BoundedQueue[Work], context: BackgroundContext) -> list[Work]:
    """Wait for the first item and take all there are; the stop of the run ends the wait."""
    unlisten = listen(context.stop, lambda reason: queue.close())
    try:
        work = [queue.get()]
        work += [queue.get() for _ in range(len(queue))]
    except QueueClosed:
        raise stopped(context.stop) from None
    finally:
        unlisten()
    return work


def _offer(queue: BoundedQueue[Work], work: Work) -> None:
    try:
        queue.put(work)
    except QueueClosed:  # the run is stopping; a resumed one finds the batch among the agent's real data
        return
