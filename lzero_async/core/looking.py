"""What a coordinator shows: its counts, its state, its statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lzero_async.core.activity import RoleActivity
from lzero_async.core.evaluator import BackgroundEvaluator
from lzero_async.core.keeping.gatekeeper import Gatekeeper
from lzero_async.core.statistics import format_box
from lzero_async.core.trace import TraceWriter
from lzero_async.types import Clock, DegreeChange, StopSignal


class CoordinatorView:
    """The part of a coordinator that changes nothing, and can be asked from any thread."""

    _keeper: Gatekeeper
    _trace: TraceWriter | None
    _changes: deque[DegreeChange]
    clock: Clock
    evaluator: BackgroundEvaluator
    enable_async_eval: bool

    def can_collect(self) -> bool:
        """Whether a collect could start now."""
        return self._could_start(self._keeper.gate.collect_rule)

    def can_train(self) -> bool:
        """Whether a batch could be trained now."""
        return self._could_start(self._keeper.gate.train_rule)

    def _could_start(self, rule: Callable[[], str | None]) -> bool:
        keeper = self._keeper
        try:
            with keeper.lock:
                return not keeper.signal.is_set() and not keeper.pauses.count and rule() is None
        except BaseException:  # an interrupt, which may have left it locked
            keeper.unlock()
            raise

    @property
    def collect_count(self) -> int:
        """Committed collects since the start or the last reset."""
        return self._keeper.recorder.count(self._keeper.gate, "committed")

    @property
    def train_count(self) -> int:
        """Finished trains since the start or the last reset; replays are counted apart."""
        return self._keeper.recorder.count(self._keeper.gate, "trains")

    @property
    def collect_train_lag(self) -> int:
        """Batches that wait for their train, the one being trained included."""
        gate = self._keeper.gate
        lag = len(gate.waiting)  # a full queue holds one more for the moment in which it drops one
        return lag if gate.capacity is None else min(lag, gate.capacity + 1)

    @property
    def off_policy_degree(self) -> int:
        """The bound in force."""
        return self._keeper.gate.degree

    @property
    def is_synchronous(self) -> bool:
        """Whether the stages run strictly in turn."""
        return self._keeper.gate.degree == 0

    @property
    def version(self) -> int:
        """The number of finished trains and replays, which the weights published next carry."""
        return self._keeper.gate.version

    @property
    def waiting_batches(self) -> tuple[Any, ...]:
        """The data of the batches that are not trained yet, in the order in which they were collected: the one being
        trained, those that wait, and finished collects that the bound holds back."""
        with self._keeper.lock:
            return tuple(self._keeper.data.values())

    @property
    def last_was_replay(self) -> bool:
        """Whether the newest train, finished or running, is an extra one on old data."""
        return self._keeper.gate.replays_in_row > 0

    @property
    def has_queue(self) -> bool:
        """Whether the waiting batches are a queue that drops instead of holding collectors back (`queue_capacity`)."""
        return self._keeper.gate.capacity is not None

    @property
    def stop_signal(self) -> StopSignal:
        """Set while a run stops, and for good after `close()`: the same signal as every context's `stop`."""
        return self._keeper.signal

    @property
    def num_collectors(self) -> int:
        """Collects that may run at once."""
        return self._keeper.gate.num_collectors

    @property
    def degree_changes(self) -> tuple[DegreeChange, ...]:
        """The last changes of the degree, with their reasons."""
        return tuple(self._changes)

    def locate(self, role: str, pid: int) -> None:
        """Tell the trace which process does the work of `learner`, `evaluator` or `collector N`."""
        if self._trace is not None:
            self._trace.locate(role, pid)

    @contextmanager
    def working(self, role: str, name: str, /, **details: Any) -> Iterator[dict[str, Any]]:
        """Show what the block does as work of a role of the application's own, in the trace and among the activities. The
        details are shown too, and the block may add some."""
        start = self.clock.now()
        self._keeper.activity.enter(role, name, start)
        try:
            yield details
        finally:
            end = self.clock.now()
            self._keeper.activity.leave(role, end)
            if self._trace is not None:
                self._trace.span(role, name, start, end, **details)

    def violations(self) -> list[str]:
        """What is wrong with the account of the batches; an empty list, always. For tests and benchmarks."""
        with self._keeper.lock:
            return self._keeper.gate.violations()

    def get_statistics(self) -> dict[str, Any]:
        """A snapshot of counts, times (seconds), lag and staleness; the names are listed in docs/statistics.md."""
        with self._keeper.lock:
            found = self._keeper.recorder.snapshot(self._keeper.gate)
        return {**found, "async_eval": self.enable_async_eval, "evals_skipped": self.evaluator.skipped}

    def queue_seconds(self) -> tuple[float, float]:
        """The seconds that batches have waited for a train, and the most that they could have; see `queue_fill`."""
        with self._keeper.lock:
            return self._keeper.recorder.queue_seconds()

    def get_activity(self) -> tuple[RoleActivity, ...]:
        """What each role does now, and its seconds of work, of waiting for the gate and of neither; cheap, from any thread."""
        return self._keeper.activity.snapshot(self.clock.now())

    def print_statistics(self) -> None:
        """Print the statistics as a box."""
        print(format_box(self.get_statistics()), flush=True)
