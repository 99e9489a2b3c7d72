"""One use of a coordinator from its first stage to its last: limits, failures, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from lzero_async.core.evaluator import EvalOwner
from lzero_async.core.keeping.parked import Holder
from lzero_async.core.running.coroutines import is_coroutine_function
from lzero_async.core.running.signals import OrderlyStop
from lzero_async.core.stages import Stage
from lzero_async.errors import GateTimeout, LzeroAsyncError, tell_refusal
from lzero_async.threads import LoopRunner
from lzero_async.types import EvalResult
from lzero_async.validation import backoff, time_limit, whole_number

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator

GRACE: Final = 0.5
LEFT_BEHIND_PATIENCE: Final = 0.5
MOMENT: Final = 0.05  # seconds between two looks at a clock that stands still
log = logging.getLogger("lzero_async")


class Session:
    """What a run and a `for` loop over batches share. It has the coordinator from `begin` to `_shut_down`."""

    def __init__(
        self,
        coordinator: AsyncTrainingCoordinator,
        *,
        max_train: int | None,
        max_collect: int | None,
        max_seconds: float | None,
        patient: bool,
    ) -> None:
        self.coordinator = coordinator
        self.keeper = coordinator._keeper
        self.signal = self.keeper.signal
        self.clock = coordinator.clock
        self.max_train = None if max_train is None else whole_number("max_train", max_train, 0)
        self.max_collect = None if max_collect is None else whole_number("max_collect", max_collect, 0)
        self.max_seconds = time_limit("max_seconds", max_seconds, zero=False)
        self.deadline: float | None = None
        self.patient = patient
        self.reason = ""
        self.over = self.hurried = False
        self.signals = OrderlyStop(self._request_stop)
        self.failure: BaseException | None = None
        self.runners: list[LoopRunner] = []
        self.logged: set[type[Exception]] = set()

    def begin(self, handle_signals: bool) -> None:
        """Before the first stage."""
        self.keeper.begin_run(self.max_collect, self.max_train)
        self.coordinator.publish()
        now = self.clock.now()
        self.deadline = None if self.max_seconds is None else now + self.max_seconds - self.keeper.pauses.seconds(now)
        if handle_signals:
            self.signals.install()

    def deliver(self) -> None:
        """Hand on what has arrived so far."""

    def eval_ended(self, result: EvalResult | None, error: BaseException | None) -> None:
        """An evaluation of this session ended."""
        raise AssertionError("nobody evaluates here")

    def _shut_down(self) -> None:
        """Leave nothing running that can be ended, deliver what has arrived, and make the coordinator usable again. After an
        interrupt it is done once more."""
        coordinator = self.coordinator
        self.keeper.heal()
        self.signals.restore()
        coordinator.stop(self.reason or "the run has ended", patient=False)
        self._cancel_runners()
        if self.failure is not None and not self.hurried:
            coordinator.threads.join(GRACE)
        coordinator.evaluator.abandon(self, 0.0)
        self.over = True
        try:
            self.deliver()
        except BaseException as error:
            self._fail(error)
        if self.reason == "max_collect":
            self.keeper.abandon_remainder()
        self.keeper.set_limits(None, None)
        coordinator.end_run()

    def _ended(self) -> bool:
        coordinator, gate, left = self.coordinator, self.keeper.gate, self._time_left()
        if self.signal.is_set():
            self._end(self.signal.stop_reason)
        elif self.max_train is not None and coordinator.train_count >= self.max_train:
            self._end("max_train")
        elif self._all_collected() and not (gate.ready or gate.tickets):
            self._end("max_collect")
        elif left is not None and left <= 0:
            self._end("max_seconds")
        return bool(self.reason)

    def _all_collected(self) -> bool:
        return self.max_collect is not None and self.coordinator.collect_count >= self.max_collect

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason

    def _time_left(self) -> float | None:
        """Seconds until `max_seconds` are over; they stand still while the coordinator is paused."""
        if self.deadline is None:
            return None
        now = self.clock.now()
        return self.deadline + self.keeper.pauses.seconds(now) - now

    def _patience(self) -> float | None:
        """How long to wait for the gate, or for a change, before looking at the time again."""
        left = self._time_left()
        return left if left is None or not self.keeper.pauses.count else max(left, MOMENT)

    def _was_paused(self, error: GateTimeout) -> bool:
        """Whether a wait of this session's own ran out although its time has not: it was paused meanwhile."""
        return isinstance(error.holder, Holder) and error.holder.run is self and not self._time_is_over()

    def _time_is_over(self) -> bool:
        left = self._time_left()
        if left is not None and left <= 0:
            self._end("max_seconds")
        return bool(self.reason)

    def _supervise(self) -> None:
        """Wait for the roles to end; when one failed or the stop is not patient, only for a moment."""
        threads, signal = self.coordinator.threads, self.signal
        hurry: float | None = None
        changes = 0
        while threads.alive():
            if self._time_is_over() and not signal.is_set():
                self.coordinator.stop(self.reason, patient=self.patient)
            failed = bool(threads.failures or self.failure)
            if hurry is None and (failed or signal.closed or (signal.is_set() and not self.keeper.patient)):
                self.hurried = True
                hurry = self.clock.now() + GRACE
                if signal.is_set() and not failed:
                    self._end(signal.stop_reason)
                self.coordinator.stop("another role failed", patient=False)
                self._cancel_runners()
            left = None if hurry is None else hurry - self.clock.now()
            if left is None and not signal.is_set():
                left = self._patience()
            elif left is not None and left <= 0:
                log.warning("left behind, still inside their functions: %s", ", ".join(threads.alive()))
                break
            changes = threads.wait_for_change(changes, left)
        for error in threads.failures:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure; the run raises it."""
        if self.failure is None:
            self.failure = error
        elif error is not self.failure:
            log.error("another role failed too: %r", error, exc_info=error)

    def _request_stop(self, reason: str) -> None:
        if self.over:
            return
        self._end(reason)
        self.coordinator.stop(reason, patient=self.patient)
        if not self.patient:
            self._cancel_runners()

    def _cancel_runners(self) -> None:
        for runner in self.runners:
            runner.cancel()

    def _new_runner(self) -> LoopRunner:
        runner = LoopRunner()
        self.runners.append(runner)
        return runner

    def _call(self, runner: LoopRunner, stage: Stage, fn: Any, timeout: float | None = None) -> Any:
        """Run a stage; if its function is a coroutine function, on the thread's own event loop."""
        passing = self.coordinator.pass_through(stage, fn, True, timeout)
        if not is_coroutine_function(fn):
            return passing
        try:
            return runner.run(passing)
        except asyncio.CancelledError:
            self.signal.raise_if_set()
            raise

    # -- after a failure -----------------------------------------------------------------------------------------------

    def _pause_after(self, who: str, error: Exception, failures: int) -> None:
        """A role failed: by `on_failure`, raise that, or count and log it and wait for its back-off."""
        coordinator, keeper = self.coordinator, self.keeper
        tell_refusal(error)
        if coordinator.recovery.on_failure == "restart" and self.signal.is_set():  # its work was to be given up anyway
            log.warning("%s failed while the run was stopping: %r", who, error)
            self.signal.raise_if_set()
        if coordinator.recovery.on_failure != "restart" or failures >= coordinator.recovery.max_restarts:
            raise error
        pause = self._pause(failures)
        log.warning(
            "%s failed (%r); restart %d of at most %d in %.3g s",
            who, error, failures + 1, coordinator.recovery.max_restarts, pause, exc_info=self._first_of_its_kind(error),
        )  # fmt: skip
        with keeper.lock:
            keeper.recorder.sums["restarts"] += 1
        self._wait(pause)

    def _pause(self, times: int) -> float:
        """Seconds to wait after so many pauses in a row, at most until the time of the run is over."""
        pause, left = backoff(self.coordinator.recovery.restart_backoff, times), self._time_left()
        return pause if left is None else min(pause, max(0.0, left))

    def _wait(self, seconds: float) -> None:
        if self.signal.wait(seconds):
            self.signal.raise_if_set()

    def _first_of_its_kind(self, error: Exception) -> Exception | None:
        """The error if its traceback was not logged yet: one per type is enough to read."""
        known = type(error) in self.logged
        self.logged.add(type(error))
        return None if known else error


def begin_run(coordinator: AsyncTrainingCoordinator, run: EvalOwner) -> None:
    """Take the coordinator for one run; refuses a second one, and one while roles of an earlier run are left."""
    if coordinator._keeper.signal.closed:
        coordinator._keeper.signal.raise_if_set()
    left = coordinator.threads.join(LEFT_BEHIND_PATIENCE) if coordinator._run is None else []
    if left:
        raise LzeroAsyncError(
            f"Roles of an earlier run are still inside their functions ({', '.join(left)}); close() the "
            "coordinator, or let long functions look at context.stop."
        )
    with coordinator._keeper.lock:
        if coordinator._run is not None:
            raise LzeroAsyncError("This coordinator is in a run already; use another one, or wait until it has ended.")
        coordinator._run = run
    if coordinator._left_behind:
        coordinator._keeper.restart()
        coordinator._left_behind = False


def is_run_by(coordinator: AsyncTrainingCoordinator, run: EvalOwner) -> bool:
    """Whether this run has the coordinator."""
    return coordinator._run is run


def end_run(coordinator: AsyncTrainingCoordinator) -> None:
    """Give the coordinator back; a stop stays in force until the last role has ended."""
    coordinator._left_behind = bool(coordinator.threads.alive())
    if not coordinator._left_behind:
        coordinator._keeper.restart()
    coordinator._run = None
