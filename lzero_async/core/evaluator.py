"""Background evaluation: one at a time, on a frozen snapshot, beside collecting and training; and what the scores came to."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final, NamedTuple, Protocol

from lzero_async.core.keeping.gatekeeper import Gatekeeper
from lzero_async.core.keeping.parked import MakeWaiter
from lzero_async.core.running.coroutines import is_coroutine_function, running_loop
from lzero_async.core.trace import EVALUATOR, TraceWriter
from lzero_async.errors import ConfigError, GateTimeout, Stopped, tell_refusal
from lzero_async.threads import LoopRunner, ThreadGroup
from lzero_async.types import EvalContext, EvalResult, Waiter
from lzero_async.validation import real_number

EVAL_OVERLAPS: Final = ("skip", "latest", "wait")
log = logging.getLogger("lzero_async")


class EvalOwner(Protocol):
    """The run that an evaluation belongs to."""

    over: bool

    def eval_ended(self, result: EvalResult | None, error: BaseException | None) -> None:
        """Called with every end, in the evaluator's thread; responsible for the exception."""


class Job(NamedTuple):
    """An evaluation to run: `fn(context)` or `fn()`, on `loop` if it is a coroutine of a caller's event loop. `run` gets its
    end, unless it is over by then; without one it is kept until somebody asks."""

    fn: Callable[..., Any]
    with_context: bool
    context: EvalContext
    loop: asyncio.AbstractEventLoop | None
    run: EvalOwner | None = None

    @property
    def wanted(self) -> bool:
        """Whether anybody still wants to know how it ends."""
        return self.run is None or not self.run.over


class BackgroundEvaluator:
    """Runs evaluations in a thread of its own, one at a time, and keeps the last result, or the exception, until somebody
    asks."""

    def __init__(self, keeper: Gatekeeper, overlap: str, trace: TraceWriter | None) -> None:
        self._keeper = keeper
        self._overlap = overlap
        self.trace = trace
        self._lock = threading.RLock()
        self._threads = ThreadGroup(keeper.clock, "lzero-evaluator")
        self.locks = (self._lock, self._threads.lock)
        self._runner = LoopRunner()
        self._future: Future[Any] | None = None
        self._closing = False
        self._working = False  # a thread takes what is queued
        self._current: Job | None = None
        self._queued: Job | None = None
        self._waiters: list[Waiter] = []
        self._last: EvalResult | None = None
        self._error: BaseException | None = None
        self._started = 0
        self.skipped = 0

    def submit(self, job: Job, make_waiter: MakeWaiter) -> Waiter | None:
        """Start the evaluation, queue it or leave it out; with `wait`, return what to wait on before asking again."""
        try:
            with self._lock:
                self._keeper.signal.raise_if_set()
                busy = self._current is not None or self._queued is not None
                if busy and self._overlap == "wait":
                    return self._new_waiter(make_waiter)
                if busy:
                    self.skipped += self._overlap == "skip" or self._queued is not None
                if busy and self._overlap == "skip":
                    return None
                self._queued = job
                if self._working:
                    return None
                self._started += 1
            self._threads.start(str(self._started), self._work)
            return None
        except BaseException:  # nobody may wait for what nobody evaluates
            self._keeper.unlock()
            with self._lock:
                if self._queued is job:
                    self._queued = None
            raise

    @property
    def failed(self) -> bool:
        """Whether an exception waits to be seen."""
        return self._error is not None

    def last(self) -> EvalResult | None:
        """The newest finished evaluation, or None; raises the exception of a failed one, once."""
        try:
            with self._lock:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return self._last
        except BaseException:
            self._keeper.unlock()
            raise

    def wait(self, timeout: float | None, run: EvalOwner | None = None) -> EvalResult | None:
        """Wait until none runs or waits to run, or none of `run`; return as `last` does."""
        try:
            self._wait(timeout, run)
            return self.last()
        except BaseException:
            self._keeper.unlock()
            raise

    def _wait(self, timeout: float | None, run: EvalOwner | None) -> None:
        clock = self._keeper.clock
        deadline = None if timeout is None else clock.now() + timeout
        while True:
            with self._lock:
                jobs = [job for job in (self._current, self._queued) if job is not None]
                if not any(run is None or job.run is run for job in jobs):
                    return
                if self._on_loop is not None and self._on_loop is running_loop():
                    raise RuntimeError(
                        "This would wait for an evaluation that needs this very event loop; "
                        "use `await asyncio.to_thread(coordinator.wait_for_eval)`."
                    )
                waiter = self._new_waiter(clock.waiter)
            remaining = None if deadline is None else deadline - clock.now()
            if not waiter.wait(remaining) and deadline is not None and clock.now() >= deadline:
                raise GateTimeout(f"The evaluation was still running after {timeout:.3g} s.")

    def wait_until_idle(self, timeout: float | None) -> None:
        """Wait until none runs or waits to run; what failed is told to whoever asks next."""
        try:
            self._wait(timeout, None)
        except BaseException:
            self._keeper.unlock()
            raise

    def forget_queued(self, run: EvalOwner) -> None:
        """Leave out the evaluation of this run that waits for the one that runs."""
        with self._lock:
            if self._queued is not None and self._queued.run is run:
                self._queued = None
        self.nudge()

    def nudge(self) -> None:
        """Wake everybody who waits, to look again."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            try:
                waiter.wake()
            except RuntimeError:  # the event loop of the waiting task is closed: nobody waits any more
                continue

    def abandon(self, run: EvalOwner, timeout: float) -> None:
        """Drop what this run has queued, cancel a coroutine of it that runs, and wait a moment for its end."""
        self.forget_queued(run)
        with self._lock:
            own = self._current is not None and self._current.run is run
            if own:
                self._cancel()
        if own:
            try:
                self._wait(timeout, run)
            except GateTimeout:
                return  # left behind; nobody hears of its end any more

    def close(self, timeout: float) -> list[str]:
        """Drop what is queued, cancel a coroutine that runs, and wait for the thread; return those that are left."""
        with self._lock:
            self._queued = None
        self._cancel()
        self.nudge()
        return self._threads.join(timeout)

    def _cancel(self) -> None:
        with self._lock:
            self._closing = True
            future = self._future
        self._runner.cancel()
        if future is not None:
            future.cancel()

    _on_loop: asyncio.AbstractEventLoop | None = None

    def _new_waiter(self, make_waiter: MakeWaiter) -> Waiter:
        waiter = make_waiter()
        self._waiters.append(waiter)
        return waiter

    def _work(self) -> None:
        """The body of the evaluator's thread: take what is queued until nothing is."""
        runner = LoopRunner()  # one per thread: the next may start before the last has ended
        with self._lock:
            if self._working:
                return
            self._working, self._runner, self._closing = True, runner, False
        while (job := self._take()) is not None:
            if runner.cancelled:  # which was meant for the one before
                runner.close()
                runner = LoopRunner()
                with self._lock:
                    self._runner, self._closing = runner, False
            result, error = self._evaluate(job, runner)
            if result is None and self._given_up(error):
                error = None  # abandoned by a stop
            self._deliver(job, result, error)
        runner.close()

    def _take(self) -> Job | None:
        with self._lock:
            job = None if self._keeper.signal.closed else self._queued
            self._queued, self._current, self._working = None, job, job is not None
        self.nudge()
        return job

    def _deliver(self, job: Job, result: EvalResult | None, error: BaseException | None) -> None:
        """Say how an evaluation ended to whoever is to know; nobody, once its run is over."""
        if not job.wanted:
            if error is not None:
                log.error("an evaluation failed after its run had ended: %r", error, exc_info=error)
            return
        with self._lock:
            self._last = result or self._last
            if job.run is None:
                self._error = error or self._error
                return
        if result is not None or error is not None:
            try:
                job.run.eval_ended(result, error)
            except BaseException as broken:
                with self._lock:
                    self._error = broken

    def _given_up(self, error: BaseException | None) -> bool:
        """Whether an evaluation ended early because the run stops, which is no failure of it."""
        if isinstance(error, Stopped):
            return error.origin is self._keeper.signal
        cancelled = isinstance(error, (asyncio.CancelledError, CancelledError))
        return cancelled and (self._closing or self._keeper.signal.is_set())

    def _evaluate(self, job: Job, runner: LoopRunner) -> tuple[EvalResult | None, BaseException | None]:
        clock, context = self._keeper.clock, job.context
        start = clock.now()
        self._keeper.activity.enter(EVALUATOR, "eval", start)
        try:
            value = job.fn(context) if job.with_context else job.fn()
            if asyncio.iscoroutine(value):
                self._on_loop = job.loop
                if job.loop is not None:
                    with self._lock:  # whoever cancels sees the future, or is seen here
                        future = self._future = asyncio.run_coroutine_threadsafe(value, job.loop)
                        closing = self._closing
                    if closing:
                        future.cancel()
                    value = future.result()
                else:
                    value = runner.run(value)
        except BaseException as error:
            tell_refusal(error)
            return None, error
        finally:
            self._on_loop = self._future = None
            end = clock.now()
            self._keeper.activity.leave(EVALUATOR, end)
        if job.wanted:
            with self._keeper.lock:
                self._keeper.recorder.ran("eval", start, end)
            if self.trace is not None:
                self.trace.span(EVALUATOR, "eval", start, end, version=context.version)
        return EvalResult(context.version, value, end - start, context.snapshot), None


class Scores:
    """Results arrive in any thread and are delivered, in order, in the one that calls `deliver`."""

    def __init__(self, target: float | None, on_eval: Callable[[EvalResult], None] | None) -> None:
        self._target = None if target is None else real_number("eval_target", target)
        self.on_eval = on_eval
        self._arrived: deque[EvalResult] = deque()
        self.best: EvalResult | None = None
        self.last: EvalResult | None = None

    def confirming(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, which evaluates the same weights once more when its score reaches the target; then the mean of both is the
        score. One lucky evaluation ends no run. Stays a coroutine function if `fn` is one."""
        target = self._target
        if target is None:
            return fn
        if is_coroutine_function(fn):

            async def awaited(context: EvalContext) -> Any:
                first = await fn(context)
                return _mean(first, await fn(context._replace(repeat=1))) if _reaches(first, target) else first

            return awaited

        def called(context: EvalContext) -> Any:
            first = fn(context)
            return _mean(first, fn(context._replace(repeat=1))) if _reaches(first, target) else first

        return called

    def arrived(self, result: EvalResult) -> bool:
        """Note a result; return whether it reached the target."""
        self._arrived.append(result)
        if self._target is None:
            return False
        score = score_of(result.value)
        if score is None:
            raise ConfigError(
                f"eval_fn returned {result.value!r}, but eval_target {self._target:g} needs a number; return a score."
            )
        return score >= self._target

    def deliver(self) -> None:
        """Take what has arrived into account and call `on_eval`. Scores that are not numbers are never best."""
        while self._arrived:
            result = self._arrived.popleft()
            self.last = result
            score = score_of(result.value)
            best = None if self.best is None else score_of(self.best.value)
            if score is not None and not math.isnan(score) and (best is None or score > best):
                self.best = result
            if self.on_eval is not None:
                self.on_eval(result)


def _reaches(value: Any, target: float) -> bool:
    score = score_of(value)
    return score is not None and score >= target


def _mean(first: Any, second: Any) -> Any:
    """The mean of two scores; the second itself if it is none, so that whoever needs a score says so."""
    one, other = score_of(first), score_of(second)
    return second if one is None or other is None else (one + other) / 2


def score_of(value: Any) -> float | None:
    """`value` as one number, or None."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
