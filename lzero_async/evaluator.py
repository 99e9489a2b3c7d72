"""Background evaluation: one at a time, on a frozen snapshot, beside collecting and training."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final, NamedTuple

from lzero_async.errors import GateTimeout, Stopped
from lzero_async.shell import GateShell, MakeWaiter
from lzero_async.threads import LoopRunner, ThreadGroup
from lzero_async.trace import EVALUATOR, TraceWriter
from lzero_async.types import EvalContext, EvalResult, Waiter

EVAL_OVERLAPS: Final = ("skip", "latest", "wait")


class Job(NamedTuple):
    """An evaluation to run: `fn(context)` or `fn()`, on `loop` if it is a coroutine of a caller's event loop."""

    fn: Callable[..., Any]
    with_context: bool
    context: EvalContext
    loop: asyncio.AbstractEventLoop | None


class BackgroundEvaluator:
    """Runs evaluations in a thread of its own and keeps the last result, or the exception, until somebody asks."""

    def __init__(self, shell: GateShell, overlap: str, trace: TraceWriter | None) -> None:
        self._shell = shell
        self._overlap = overlap
        self.trace = trace
        self._lock = threading.Lock()
        self._threads = ThreadGroup(shell.clock, "lzero-evaluator")
        self._runner = LoopRunner()
        self._future: Future[Any] | None = None
        self._closing = False
        self._busy = False
        self._queued: Job | None = None
        self._waiters: list[Waiter] = []
        self._last: EvalResult | None = None
        self._error: BaseException | None = None
        self._started = 0
        self.skipped = 0
        self.listener: Callable[[EvalResult | None, BaseException | None], None] | None = None
        """Told of every end, in the evaluator's thread; takes over the responsibility for exceptions."""

    def submit(self, job: Job, make_waiter: MakeWaiter) -> Waiter | None:
        """Start the evaluation, queue it or leave it out; with `wait`, return what to wait on before asking again."""
        with self._lock:
            self._shell.raise_if_stopped()
            if not self._busy:
                self._busy = True
                self._closing = False
                self._started += 1
                name = str(self._started)
                runner = self._runner = LoopRunner()  # one per thread: the next may start before the last has ended
            elif self._overlap == "wait":
                return self._new_waiter(make_waiter)
            else:
                self.skipped += self._overlap == "skip" or self._queued is not None
                if self._overlap == "latest":
                    self._queued = job
                return None
        self._threads.start(name, partial(self._work, job, runner))
        return None

    @property
    def failed(self) -> bool:
        """Whether an exception waits to be seen."""
        return self._error is not None

    def last(self) -> EvalResult | None:
        """The newest finished evaluation, or None; raises the exception of a failed one, once."""
        with self._lock:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return self._last

    def wait(self, timeout: float | None) -> EvalResult | None:
        """Wait until none runs or waits to run; return as `last` does."""
        clock = self._shell.clock
        deadline = None if timeout is None else clock.now() + timeout
        while True:
            with self._lock:
                if not self._busy:
                    break
                if self._on_loop is not None and self._on_loop is running_loop():
                    raise RuntimeError(
                        "This would wait for an evaluation that needs this very event loop; "
                        "use `await asyncio.to_thread(coordinator.wait_for_eval)`."
                    )
                waiter = self._new_waiter(clock.waiter)
            remaining = None if deadline is None else deadline - clock.now()
            if not waiter.wait(remaining) and deadline is not None and clock.now() >= deadline:
                raise GateTimeout(f"The evaluation was still running after {timeout:.3g} s.")
        return self.last()

    def nudge(self) -> None:
        """Wake everybody who waits, to look again."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            try:
                waiter.wake()
            except RuntimeError:  # the event loop of the waiting task is closed: nobody waits any more
                continue

    def close(self, timeout: float) -> list[str]:
        """Drop what is queued, cancel a coroutine that runs, and wait for the thread; return those that are left."""
        with self._lock:
            self._queued = None
            self._closing = True
            future = self._future
        self._runner.cancel()
        if future is not None:
            future.cancel()
        self.nudge()
        return self._threads.join(timeout)

    _on_loop: asyncio.AbstractEventLoop | None = None

    def _new_waiter(self, make_waiter: MakeWaiter) -> Waiter:
        waiter = make_waiter()
        self._waiters.append(waiter)
        return waiter

    def _work(self, job: Job | None, runner: LoopRunner) -> None:
        while job is not None:
            result, error = self._evaluate(job, runner)
            listener = self.listener
            with self._lock:
                if result is not None:
                    self._last = result
                elif self._given_up(error):
                    error = None  # abandoned by a stop
                elif listener is None:
                    self._error = error
            if listener is not None and (result is not None or error is not None):
                try:
                    listener(result, error)
                except BaseException as broken:
                    with self._lock:
                        self._error = broken
            with self._lock:
                job, self._queued = self._queued, None
                if self._shell.closed:
                    job = None
                self._busy = job is not None
            self.nudge()
        runner.close()

    def _given_up(self, error: BaseException | None) -> bool:
        """Whether an evaluation ended early because the run stops, which is no failure of it."""
        if isinstance(error, Stopped):
            return error.origin is self._shell
        cancelled = isinstance(error, (asyncio.CancelledError, CancelledError))
        return cancelled and (self._closing or self._shell.is_set())

    def _evaluate(self, job: Job, runner: LoopRunner) -> tuple[EvalResult | None, BaseException | None]:
        clock, context = self._shell.clock, job.context
        start = clock.now()
        self._shell.activity.enter(EVALUATOR, "eval", start)
        try:
            value = job.fn(context) if job.with_context else job.fn()
            if asyncio.iscoroutine(value):
                self._on_loop = job.loop
                if job.loop is not None:
                    self._future = asyncio.run_coroutine_threadsafe(value, job.loop)
                    value = self._future.result()
                else:
                    value = runner.run(value)
        except BaseException as error:
            return None, error
        finally:
            self._on_loop = self._future = None
            end = clock.now()
            self._shell.activity.leave(EVALUATOR, end)
        with self._shell.lock:
            self._shell.recorder.ran("eval", start, end)
        if self.trace is not None:
            self.trace.span(EVALUATOR, "eval", start, end, version=context.version)
        return EvalResult(context.version, value, end - start, context.snapshot), None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of the calling thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
