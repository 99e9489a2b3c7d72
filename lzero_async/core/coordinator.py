"""The coordinator: the gate, its lock and its numbers behind one small API."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.core import resume
from lzero_async.core.adaptive import AdaptiveDegree, adaptive_degree, drift_of
from lzero_async.core.background import EvaluationStarter
from lzero_async.core.evaluator import EVAL_OVERLAPS, BackgroundEvaluator, EvalOwner
from lzero_async.core.gate import Gate
from lzero_async.core.keeping import pausing
from lzero_async.core.keeping.gatekeeper import Gatekeeper
from lzero_async.core.keeping.parked import Holder
from lzero_async.core.running import batches, coroutines, loop, session
from lzero_async.core.running.coroutines import is_coroutine_function, run_awaitable
from lzero_async.core.running.own_loop import HeldCollect, HeldTrain
from lzero_async.core.settings import Adaptation, Bound, Recovery, group_of, refuse_coroutine
from lzero_async.core.stages import (
    CollectStage,
    EvalStage,
    Stage,
    StageParts,
    TrainStage,
    run_blocking,
)
from lzero_async.core.statistics import COUNTERS
from lzero_async.core.trace import LEARNER, TraceWriter
from lzero_async.core.weights import WeightStore
from lzero_async.errors import (
    DESCRIPTOR,
    THREAD,
    ConfigError,
    CoordinatorClosed,
    LzeroAsyncError,
    Stopped,
    hear_refusals,
    ignore_refusals,
)
from lzero_async.threads import ThreadGroup
from lzero_async.types import Clock, DegreeChange, EvalResult, TrainReport
from lzero_async.validation import (
    HIGH_DEGREE,
    auto_degree,
    duration,
    one_of,
    resolve_degree,
    time_limit,
    warn_about_collectors,
    whole_number,
)

log = logging.getLogger("lzero_async")
_KEPT_CHANGES: Final = 1000
_REFUSED: Final = {  # what is counted, and what the trace says
    THREAD: ("refused_threads", "thread refused"),
    DESCRIPTOR: ("missing_descriptors", "no descriptor left"),
}


class AsyncTrainingCoordinator(EvaluationStarter):
    """Lets collecting, training and evaluating run at the same time, within the staleness bound that the user sets.

    `off_policy_degree`: 0 runs the stages strictly in turn; d >= 1 keeps the lag and the staleness of every batch at
    most d; -1 derives d from `buffer_size` and `batch_size` (both in samples). `enable_async_eval` evaluates in the
    background, on a frozen snapshot. All other arguments:

    num_collectors: collects that may run at once. bound, recovery: see `Bound` and `Recovery`. adaptation: given, the degree
    follows the run; see `Adaptation`. eval_overlap: what a new background evaluation does while one still runs (`skip`,
    `latest`, `wait`). get_weights: returns the learner's weights; called after construction, loading and every due train,
    always while no train runs. on_publish: called with the version of weights that collects can load from now on, in the
    thread of the train that made them, once that is counted; not for those of construction and loading. trace: path of a
    Chrome trace to write. clock: for tests.
    """

    def __init__(
        self,
        off_policy_degree: int = 0,
        enable_async_eval: bool = False,
        buffer_size: int = 10_000,
        batch_size: int = 256,
        *,
        num_collectors: int = 1,
        bound: Bound = Bound(),  # noqa: B008 - frozen
        recovery: Recovery = Recovery(),  # noqa: B008 - frozen
        adaptation: Adaptation | None = None,
        eval_overlap: str = "latest",
        get_weights: Callable[[], Any] | None = None,
        on_publish: Callable[[int], object] | None = None,
        trace: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        buffer_size = whole_number("buffer_size", buffer_size, 1)
        batch_size = whole_number("batch_size", batch_size, 1)
        num_collectors = whole_number("num_collectors", num_collectors, 1)
        one_of("eval_overlap", eval_overlap, EVAL_OVERLAPS)
        group_of("bound", bound, Bound)
        self.recovery = group_of("recovery", recovery, Recovery)
        refuse_coroutine("get_weights", get_weights)
        refuse_coroutine("on_publish", on_publish)
        degree, how = resolve_degree(off_policy_degree, buffer_size, batch_size)
        gate = Gate(
            degree,
            num_collectors=num_collectors,
            policy=bound.staleness_policy,
            publish_every=bound.publish_every,
            max_train_ahead=bound.max_train_ahead,
            collects_per_train=bound.collects_per_train,
            oversampling=bound.oversampling,
            capacity=bound.queue_capacity,
            order=bound.queue_order,
        )
        self._adaptive: AdaptiveDegree | None = None
        if adaptation is not None:
            highest = max(degree, num_collectors, min(HIGH_DEGREE, auto_degree(buffer_size, batch_size)))
            self._adaptive = adaptive_degree(gate, group_of("adaptation", adaptation, Adaptation), highest)
        if bound.queue_capacity is None:
            high = degree if self._adaptive is None else self._adaptive.high
            warn_about_collectors(num_collectors, high, gate.per_train, gate.oversampling)
        if how:
            print(how, flush=True)
        self.clock: Clock = clock or RealClock()
        self._keeper = Gatekeeper(gate, self.clock)
        self.weights = WeightStore()
        self.enable_async_eval = bool(enable_async_eval)
        self._get_weights = get_weights
        self._trace = None if trace is None else TraceWriter(trace)
        self.evaluator = BackgroundEvaluator(self._keeper, eval_overlap, self._trace)
        self._changes: deque[DegreeChange] = deque(maxlen=_KEPT_CHANGES)
        self.threads = ThreadGroup(self.clock, "lzero")
        self._run: EvalOwner | None = None
        self._left_behind = False
        self._parts = StageParts(
            self._keeper,
            self.weights,
            priority=bound.priority,
            publish=self.publish,
            get_weights=get_weights,
            on_publish=on_publish,
            after=self._after_train,
            retries=recovery.train_retries,
            learner=recovery.learner,
        )
        self._parts.trace = self._trace
        self._keeper.locks += (self.weights.writing, self.threads.lock, *self.evaluator.locks)
        if self._trace is not None:
            self._keeper.locks.append(self._trace.lock)
        if get_weights is not None:
            self.weights.publish(get_weights(), 0)
        hear_refusals(self)

    # -- changing ------------------------------------------------------------------------------------------------------

    def start_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace from now on; for whoever could not say where when the coordinator was made."""
        if self._trace is not None:
            raise ConfigError(f"A trace is written to {self._trace.path} already; leave one of the two out.")
        self._trace = self.evaluator.trace = self._parts.trace = TraceWriter(path)
        self._keeper.locks.append(self._trace.lock)

    def mark(self, said: str) -> None:
        """Put a mark on the learner's line of the trace, if there is one."""
        if self._trace is not None:
            self._trace.instant(LEARNER, said, self.clock.now())

    def set_degree(self, degree: int) -> None:
        """Change the bound for what starts from now on; open collects and waiting batches keep their deadlines. An adaptive
        degree goes on from there. A run that started at degree 0 stays in one thread."""
        degree = whole_number("off_policy_degree", degree, 0)
        with self._keeper.lock:
            before = self.off_policy_degree
            if self._adaptive is not None:
                self._adaptive.check(degree)
            self._keeper.set_degree(degree)
            if self._adaptive is not None:
                self._adaptive.degree = degree
            if degree != before:
                self._changed_degree(before, degree, "set_degree")

    def set_queue_capacity(self, capacity: int) -> None:
        """Change the length of a queue that has one; a shorter one drops what it has no room for."""
        self._keeper.set_capacity(capacity)

    def set_active_collectors(self, number: int) -> None:
        """Let only so many of the collectors collect at once; the others wait, and collects that run go on."""
        self._keeper.set_active_collectors(number)

    def count_restart(self) -> None:
        """Count the restart of a role that the loop does not restart itself."""
        with self._keeper.lock:
            self._keeper.recorder.sums["restarts"] += 1

    def refused(self, kind: str) -> None:
        """Count and trace that the system refused this process a thread or an open file; see `tell_refusal`."""
        name, said = _REFUSED[kind]
        with self._keeper.lock:
            self._keeper.recorder.sums[name] += 1
        self.mark(said)

    # -- the stages ----------------------------------------------------------------------------------------------------

    def run_collect(
        self, fn: Callable[..., Any], *, worker: int = 0, with_context: bool = False, timeout: float | None = None
    ) -> Any:
        """Wait until the gate admits a collect, run `fn`, and commit what it returns as a batch; return that.

        None is rejected: counted, not trained. With `with_context`, `fn` gets a CollectContext. `timeout` (seconds) bounds
        each wait; a batch whose commit timed out stays in line. A coroutine function makes this return an awaitable.
        """
        if timeout is not None:
            time_limit("timeout", timeout)
        return self.pass_through(CollectStage(self._parts, None, worker), fn, with_context, timeout)

    def run_train(self, fn: Callable[..., Any], *, with_batch: bool = False, timeout: float | None = None) -> Any:
        """Wait for a batch and run `fn`, with the Batch if `with_batch`; return its result.

        If `fn` raises, the batch stays first in line. If it returns a number or a TrainReport, an adaptive degree takes
        that as its drift signal.
        """
        if timeout is not None:
            time_limit("timeout", timeout)
        if self.evaluator.failed:
            self.evaluator.last()
        return self.pass_through(TrainStage(self._parts, None), fn, with_batch, timeout)

    def collecting(self, *, worker: int = 0, timeout: float | None = None) -> HeldCollect:
        """`with coordinator.collecting() as ticket:` waits for the gate; the block collects with `ticket.snapshot` and sets
        `ticket.data`, which is then committed. An exception gives the ticket back as failed. Also for `async with`."""
        return HeldCollect(CollectStage(self._parts, None, worker), time_limit("timeout", timeout))

    def training(self, *, timeout: float | None = None) -> HeldTrain:
        """`with coordinator.training() as batch:` waits for a batch; after the block it is counted as trained, and the
        weights are published. An exception leaves it first in line. Also for `async with`; there are no `train_retries`."""
        self.raise_background_failure()
        return HeldTrain(TrainStage(self._parts, None), time_limit("timeout", timeout))

    def report(self, result: TrainReport | float) -> None:
        """What a train function would return (a drift or a TrainReport), for a train that is a block."""
        self._parts.report = result

    def run_eval(self, fn: Callable[..., Any], *, with_context: bool = False, timeout: float | None = None) -> Any:
        """Evaluate: in the learner's turn, returning `fn`'s result; or, with `enable_async_eval`, in the background,
        returning None at once (see `poll_eval` and `wait_for_eval`)."""
        time_limit("timeout", timeout)
        self.raise_background_failure()
        if not self.enable_async_eval:
            if self._parts.block_of == threading.get_ident():
                raise LzeroAsyncError(
                    "A block of this thread trains, so the learner's turn is taken; evaluate without run_eval, or set "
                    "enable_async_eval."
                )
            return self.pass_through(EvalStage(self._parts, None), fn, with_context, timeout)
        if is_coroutine_function(fn):
            return self._submit_from_loop(fn, with_context, timeout)
        return self.start_background_eval(fn, with_context=with_context, timeout=timeout)

    def publish(self) -> None:
        """Publish the learner's weights if that is overdue, since `get_weights` has raised after a train. The next collect and
        the next run do so, too."""
        holder = Holder()
        try:
            version = self._keeper.request_publication(holder)
            if version is None:
                return
            latest = self.weights.latest()
            if self._get_weights is not None and (latest is None or latest.version < version):
                self.weights.publish(self._get_weights(), version)
            self._keeper.finish_publication()
            if self._parts.on_publish is not None:
                self._parts.on_publish(version)
        except BaseException:
            self._keeper.let_go(holder)
            raise

    def poll_eval(self) -> EvalResult | None:
        """The newest finished background evaluation, or None; raises the exception of one that failed, once."""
        return self.evaluator.last()

    def wait_for_eval(self, timeout: float | None = None) -> EvalResult | None:
        """Wait until no background evaluation runs or is queued; return as `poll_eval` does."""
        return self.evaluator.wait(time_limit("timeout", timeout))

    run = loop.run
    run_async = coroutines.run_async
    batches = batches.batches
    paused = pausing.paused
    state_dict = resume.state_dict
    load_state_dict = resume.load_state_dict

    # -- numbers and state -----------------------------------------------------------------------------------------------

    def reset_counters(self) -> None:
        """Count from zero again. What waits, runs or is open goes on; versions do not change."""
        with self._keeper.lock:
            self._keeper.activity.reset(self.clock.now())
            self._keeper.recorder.reset({name: getattr(self._keeper.gate, name) for name in COUNTERS})

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop(self, reason: str = "stop", *, patient: bool = True) -> None:
        """Ask a run to end; callable from any thread. See `Gatekeeper.stop` for `patient`."""
        self._keeper.stop(Stopped(reason), patient=patient)
        self.evaluator.nudge()
        self.threads.nudge()

    def close(self, timeout: float = 2.0) -> None:
        """Release every waiter, end what runs and wait at most `timeout` seconds for it. Closing twice is allowed.

        Raises the exception of a background evaluation that nobody asked about. A function that does not return in time
        cannot be ended from outside; it is named in a warning.
        """
        duration("timeout", timeout, zero=True)
        self._keeper.stop(CoordinatorClosed("The coordinator is closed."), patient=False)
        self.threads.nudge()
        deadline = self.clock.now() + timeout
        left = self.evaluator.close(timeout)
        left += self.threads.join(max(0.0, deadline - self.clock.now()))
        ignore_refusals(self)
        if self._trace is not None:
            self._trace.close()
        if left:
            warnings.warn(
                f"close() did not wait longer than {timeout:g} s for: {', '.join(left)}. Let long functions look "
                "at context.stop.is_set().",
                stacklevel=2,
            )
        self.raise_background_failure()

    def __enter__(self) -> AsyncTrainingCoordinator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        except BaseException as late:
            if error is None:
                raise
            log.error("while closing after %r: %r", error, late, exc_info=late)

    begin_run, is_run_by, end_run = session.begin_run, session.is_run_by, session.end_run

    # -- passing through the gate --------------------------------------------------------------------------------------

    def collect_stage(self, worker: int, run: object) -> CollectStage:
        """One collect, of a role of `run`."""
        return CollectStage(self._parts, run, worker)

    def train_stage(self, run: object) -> TrainStage:
        """One train."""
        return TrainStage(self._parts, run)

    def eval_stage(self, run: object) -> EvalStage:
        """One evaluation in the learner's turn."""
        return EvalStage(self._parts, run)

    def pass_through(self, stage: Stage, fn: Callable[..., Any], with_context: bool, timeout: float | None) -> Any:
        """Run `fn` as this stage; if it is a coroutine function, return an awaitable."""
        if is_coroutine_function(fn):
            return run_awaitable(stage, fn, with_context, timeout)
        return run_blocking(stage, fn, with_context, timeout)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def raise_background_failure(self) -> None:
        """Raise the exception of a background evaluation that nobody has seen yet."""
        if self.evaluator.failed:
            self.evaluator.last()

    def _after_train(self, result: Any, starved: bool) -> None:
        """Under the lock: take the train function's report into account."""
        if isinstance(result, TrainReport):
            self._keeper.recorder.sampled(result)
        if self._adaptive is None:
            return
        before = self._adaptive.degree
        reason = self._adaptive.after_train(starved, drift_of(result))
        if reason is not None:
            after = self._adaptive.degree
            self._keeper.gate.set_degree(after)
            self._changed_degree(before, after, reason)

    def _changed_degree(self, before: int, after: int, reason: str) -> None:
        """Under the lock: count and trace it."""
        self._keeper.recorder.sums["degree_changes"] += 1
        self._changes.append(DegreeChange(self.train_count, before, after, reason))
        self.mark(f"degree {before} to {after}: {reason}")
