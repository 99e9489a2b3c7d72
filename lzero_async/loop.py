"""The loop: collect, train, publish, evaluate. One for all degrees; only where the roles run differs."""

from __future__ import annotations

import _thread
import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from lzero_async.config import one_of, positive_number, whole_number
from lzero_async.coordinator import AsyncTrainingCoordinator, is_coroutine_function
from lzero_async.errors import ConfigError, GateTimeout, Stopped
from lzero_async.threads import LoopRunner
from lzero_async.types import EvalContext, EvalResult, RunResult

ON_STOP: Final = ("finish", "abandon")
GRACE: Final = 0.5
MAX_BACKOFF: Final = 30.0
log = logging.getLogger("lzero_async")


def run(
    coordinator: AsyncTrainingCoordinator,
    collect_fn: Callable[..., Any],
    train_fn: Callable[..., Any],
    eval_fn: Callable[..., Any] | None = None,
    *,
    eval_every: int = 0,
    max_train: int | None = None,
    max_collect: int | None = None,
    max_seconds: float | None = None,
    stop_fn: Callable[[], bool] | None = None,
    eval_target: float | None = None,
    on_eval: Callable[[EvalResult], None] | None = None,
    on_restart: Callable[[int, Exception], None] | None = None,
    on_stop: str = "finish",
    handle_signals: bool = True,
    print_statistics: bool = True,
) -> RunResult:
    """Run until a stop condition holds; return why, with the statistics and the best and last evaluation.

    `collect_fn(CollectContext)` returns the data of one batch, `train_fn(Batch)` trains on it, `eval_fn(EvalContext)`
    returns a score; each is a plain callable or a coroutine function. At degree 0 all of them run in the calling thread
    in strict turn; above, collectors and learner each have a thread and the calling thread watches them.

    eval_every: trains between evaluations (0: none). max_train, max_collect: counts to reach, those before a resume
    included; no collect is started that they leave no use for. max_seconds: of the clock. stop_fn: asked after every
    train. eval_target: a score that ends the run, from a background evaluation too. on_eval: called with every result,
    in the learner's thread. on_restart: called before a failed collector goes on. on_stop: on Ctrl+C and SIGTERM (the
    first one; a second one interrupts at once) and on stop(), let running collects and evaluations finish, or abandon
    them. An exception in any role ends the run with that exception.
    """
    return _Run(
        coordinator,
        collect_fn,
        train_fn,
        eval_fn,
        eval_every=whole_number("eval_every", eval_every, 0),
        max_train=max_train,
        max_collect=max_collect,
        max_seconds=None if max_seconds is None else positive_number("max_seconds", max_seconds),
        stop_fn=stop_fn,
        eval_target=eval_target,
        on_eval=on_eval,
        on_restart=on_restart,
        patient=one_of("on_stop", on_stop, ON_STOP) == "finish",
    ).run(handle_signals, print_statistics)


class _Run:
    """One call of `run`."""

    def __init__(
        self,
        coordinator: AsyncTrainingCoordinator,
        collect_fn: Callable[..., Any],
        train_fn: Callable[..., Any],
        eval_fn: Callable[..., Any] | None,
        *,
        eval_every: int,
        max_train: int | None,
        max_collect: int | None,
        max_seconds: float | None,
        stop_fn: Callable[[], bool] | None,
        eval_target: float | None,
        on_eval: Callable[[EvalResult], None] | None,
        on_restart: Callable[[int, Exception], None] | None,
        patient: bool,
    ) -> None:
        if eval_every and eval_fn is None:
            raise ConfigError(f"eval_every is {eval_every}, but there is no eval_fn; pass one or set eval_every to 0.")
        if eval_fn is not None and not eval_every:
            raise ConfigError(
                "eval_fn would never be called: eval_every is 0; set it to the trains between evaluations."
            )
        if eval_every and coordinator.enable_async_eval and coordinator.weights.latest() is None:
            raise ConfigError(
                "A background evaluation needs frozen weights; give the coordinator get_weights=, or set "
                "enable_async_eval to False."
            )
        self.coordinator = coordinator
        self.clock = coordinator.clock
        self.collect_fn, self.train_fn, self.eval_fn = collect_fn, train_fn, eval_fn
        self.eval_every, self.max_train, self.max_collect = eval_every, max_train, max_collect
        self.deadline = None if max_seconds is None else self.clock.now() + max_seconds
        self.stop_fn, self.eval_target, self.on_eval, self.on_restart = stop_fn, eval_target, on_eval, on_restart
        self.patient = patient
        self.reason = ""
        self.failure: BaseException | None = None
        self.best_eval: EvalResult | None = None
        self.last_eval: EvalResult | None = None
        self.runners: list[LoopRunner] = []
        self._arrived: list[EvalResult] = []
        self._inline_failures = 0

    def run(self, handle_signals: bool, print_statistics: bool) -> RunResult:
        coordinator = self.coordinator
        coordinator.shell.restart()
        coordinator.shell.set_limits(self.max_collect, self.max_train)
        coordinator.evaluator.listener = self._eval_ended
        try:
            with _signals(self._request_stop) if handle_signals else _nothing():
                if coordinator.is_synchronous:
                    self._learn(self._collect_here)
                else:
                    self._start_roles()
                    self._supervise()
                self._await_evaluation()
        except BaseException as error:
            self._fail(error)
        finally:
            coordinator.evaluator.listener = None
            coordinator.shell.set_limits(None, None)
            coordinator.stop(self.reason or "the run has ended", patient=False)
            self._deliver_evals()
            if print_statistics:
                coordinator.print_statistics()
        if self.failure is not None:
            raise self.failure
        reason = "closed" if coordinator.shell.closed else self.reason
        return RunResult(reason, coordinator.get_statistics(), self.best_eval, self.last_eval)

    # -- the learner: the loop itself ----------------------------------------------------------------------------------

    def _learn(self, collect_first: Callable[[LoopRunner], None] | None) -> None:
        """Train batch after batch until a stop condition holds."""
        runner = self._new_runner()
        try:
            while not self._ended():
                if collect_first is not None:
                    collect_first(runner)
                replayed = self.coordinator.shell.gate.replayed
                self._call(
                    runner, self.coordinator.run_train, self.train_fn, with_batch=True, timeout=self._time_left()
                )
                if self.coordinator.shell.gate.replayed == replayed:
                    self._evaluate_if_due(runner)
                self._deliver_evals()
        except GateTimeout:
            if self._time_left() is None:
                raise
            self._end("max_seconds")
        except Stopped as stopped:
            self._end(str(stopped))
        finally:
            runner.close()
            self.coordinator.stop(self.reason or "the learner ended", patient=self.patient)

    def _ended(self) -> bool:
        coordinator, shell = self.coordinator, self.coordinator.shell
        left = self._time_left()
        if shell.is_set():
            self._end(shell.stop_reason)
        elif self.max_train is not None and coordinator.train_count >= self.max_train:
            self._end("max_train")
        elif (
            self.max_collect is not None
            and coordinator.collect_count >= self.max_collect
            and not (shell.gate.waiting or shell.gate.tickets)
        ):
            self._end("max_collect")
        elif left is not None and left <= 0:
            self._end("max_seconds")
        elif self.stop_fn is not None and self.stop_fn():
            self._end("stop_fn")
        return bool(self.reason)

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason

    def _time_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - self.clock.now()

    def _evaluate_if_due(self, runner: LoopRunner) -> None:
        coordinator = self.coordinator
        if not self.eval_every or coordinator.train_count % self.eval_every:
            return
        if coordinator.enable_async_eval:
            assert self.eval_fn is not None
            coordinator.start_background_eval(self.eval_fn, with_context=True)
            return
        start = self.clock.now()
        seen: list[EvalContext] = []
        value = self._call(runner, coordinator.run_eval, _noting(self.eval_fn, seen), with_context=True)
        self._eval_ended(EvalResult(seen[0].version, value, self.clock.now() - start, seen[0].snapshot), None)

    # -- collectors ----------------------------------------------------------------------------------------------------

    def _collect_here(self, runner: LoopRunner) -> None:
        """Degree 0: the learner's own thread collects the batch that it is about to train, unless one is owed."""
        while not self.coordinator.shell.gate.waiting and not self._ended():
            self._inline_failures = self._collect_once(0, runner, self._inline_failures)

    def _collect_on_and_on(self, worker: int) -> None:
        """The body of a collector thread."""
        runner = self._new_runner()
        failures = 0
        try:
            while True:
                failures = self._collect_once(worker, runner, failures)
        except Stopped:
            return
        finally:
            runner.close()

    def _collect_once(self, worker: int, runner: LoopRunner, failures: int) -> int:
        """Collect one batch; return the failures in a row. By `on_failure`, a failure ends the run or costs a pause."""
        coordinator = self.coordinator
        try:
            self._call(runner, coordinator.run_collect, self.collect_fn, worker=worker, with_context=True)
            return 0
        except Stopped:
            raise
        except Exception as error:
            if (
                coordinator.on_failure != "restart"
                or failures >= coordinator.max_restarts
                or coordinator.shell.is_set()
            ):
                raise
            pause = min(MAX_BACKOFF, coordinator.restart_backoff * 2**failures)
            log.warning(
                "collector %d failed (%r); restart %d of at most %d in %.3g s",
                worker,
                error,
                failures + 1,
                coordinator.max_restarts,
                pause,
                exc_info=error,
            )
            with coordinator.shell.lock:
                coordinator.shell.recorder.sums["restarts"] += 1
            if coordinator.shell.wait(pause):
                raise Stopped("the run ended while a collector was restarting") from error
            if self.on_restart is not None:
                self.on_restart(worker, error)
            return failures + 1

    # -- threads -------------------------------------------------------------------------------------------------------

    def _start_roles(self) -> None:
        threads = self.coordinator.threads
        threads.failures.clear()
        for worker in range(self.coordinator.num_collectors):
            threads.start(f"collector-{worker}", partial(self._collect_on_and_on, worker))
        threads.start("learner", lambda: self._learn(None))

    def _supervise(self) -> None:
        """Wait for the roles to end; when one failed or the stop is not patient, only for a moment."""
        threads, shell = self.coordinator.threads, self.coordinator.shell
        hurry: float | None = None
        changes = 0
        while threads.alive():
            if hurry is None and (
                threads.failures or self.failure or shell.closed or (shell.is_set() and not self.patient)
            ):
                hurry = self.clock.now() + GRACE
                self.coordinator.stop("another role failed", patient=False)
                for runner in self.runners:
                    runner.cancel()
            left = None if hurry is None else hurry - self.clock.now()
            if left is not None and left <= 0:
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
        self._end(reason)
        self.coordinator.stop(reason, patient=self.patient)

    def _new_runner(self) -> LoopRunner:
        runner = LoopRunner()
        self.runners.append(runner)
        return runner

    def _call(self, runner: LoopRunner, stage: Callable[..., Any], fn: Any, **options: Any) -> Any:
        """Run a stage; if its function is a coroutine function, on the thread's own event loop."""
        if not is_coroutine_function(fn):
            return stage(fn, **options)
        try:
            return runner.run(stage(fn, **options))
        except asyncio.CancelledError as error:
            if self.coordinator.shell.is_set():
                raise Stopped(self.coordinator.shell.stop_reason) from error
            raise

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def _eval_ended(self, result: EvalResult | None, error: BaseException | None) -> None:
        """An evaluation ended, in whatever thread: see whether it ends the run; `on_eval` comes in the learner's."""
        if error is None and result is not None:
            self._arrived.append(result)
            if self.eval_target is None:
                return
            if isinstance(result.value, bool) or not hasattr(result.value, "__float__"):
                error = ConfigError(
                    f"eval_fn returned {result.value!r}, but eval_target {self.eval_target} needs a number."
                )
            elif float(result.value) >= self.eval_target:
                self._request_stop("eval_target")
        if error is not None:
            self._fail(error)
            self.coordinator.stop("an evaluation failed", patient=False)

    def _deliver_evals(self) -> None:
        while self._arrived:
            result = self._arrived.pop(0)
            self.last_eval = result
            if hasattr(result.value, "__float__") and (
                self.best_eval is None or float(result.value) > float(self.best_eval.value)
            ):
                self.best_eval = result
            if self.on_eval is not None:
                self.on_eval(result)

    def _await_evaluation(self) -> None:
        """An evaluation that still runs at the end: let it finish, or leave it, as `on_stop` says."""
        if self.failure is None and not self.coordinator.shell.closed:
            if self.patient:
                self.coordinator.wait_for_eval()
            else:
                self.coordinator.evaluator.close(GRACE)


def _noting(fn: Any, seen: list[EvalContext]) -> Any:
    """`fn`, remembering the context it got; stays a coroutine function if `fn` is one."""
    if is_coroutine_function(fn):

        async def awaited(context: EvalContext) -> Any:
            seen.append(context)
            return await fn(context)

        return awaited

    def called(context: EvalContext) -> Any:
        seen.append(context)
        return fn(context)

    return called


@contextmanager
def _signals(stop: Callable[[str], None]) -> Iterator[None]:
    """In the main thread: the first SIGINT or SIGTERM asks for a stop, the next one acts as it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: Any) -> None:
        restore()
        # The interrupted code may hold the coordinator's lock, so another thread takes it.
        _thread.start_new_thread(stop, (signal.Signals(number).name,))

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


@contextmanager
def _nothing() -> Iterator[None]:
    yield
