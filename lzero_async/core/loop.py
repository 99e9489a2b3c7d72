"""The loop: collect, train, publish, evaluate. One for all degrees; only where the roles run differs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.coroutines import is_coroutine_function, running_loop
from lzero_async.core.evaluator import Scores
from lzero_async.core.settings import refuse_coroutine
from lzero_async.core.signals import OrderlyStop
from lzero_async.core.stages import Stage
from lzero_async.errors import ConfigError, GateTimeout, Stopped, tell_refusal
from lzero_async.threads import LoopRunner
from lzero_async.types import BackgroundContext, EvalContext, EvalResult, RunResult
from lzero_async.validation import backoff, one_of, time_limit, whole_number

ON_STOP: Final = ("finish", "abandon")
GRACE: Final = 0.5
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
    after_train: Callable[[], None] | None = None,
    on_restart: Callable[[int, Exception], None] | None = None,
    on_retire: Callable[[int], None] | None = None,
    background: Mapping[str, Callable[[BackgroundContext], object]] | None = None,
    on_stop: str = "finish",
    handle_signals: bool = True,
    print_statistics: bool = True,
) -> RunResult:
    """Run until a stop condition holds; return why, with the statistics and the best and last evaluation.

    `collect_fn(CollectContext)` returns the data of one batch, or None if it has nothing to train on, `train_fn(Batch)`
    trains on it, `eval_fn(EvalContext)` returns a score; each is a plain callable or a coroutine function. At degree 0 all
    of them run in the calling thread in strict turn; above, collectors and learner each have a thread and the calling
    thread watches them.

    eval_every: trains between evaluations (0: none). max_train, max_collect: counts to reach, those before a resume
    included; no collect is started that they leave no use for. max_seconds: of the clock. stop_fn: asked before
    every train. eval_target: a score that ends the run, from a background evaluation too, if a second evaluation of the
    same weights (its context's `repeat` is 1) confirms it: the mean of both is the result. on_eval: called with every
    result, in the learner's thread. after_train: called there after every train and its evaluation, while no train runs:
    the moment to save a checkpoint. on_restart: called before a failed collector goes on; on_retire: when one is
    given up. background: further roles by name, each called again and again in a thread of its own until the run stops
    (from degree 1 on); one that raises is treated as a collector that does, but never retired. on_stop: on Ctrl+C and SIGTERM
    (the first one; a second one interrupts at once) and on stop(), let running collects and evaluations finish, or abandon
    them. An exception in any role ends the run with that exception. Without a stop condition it
    runs until a signal or stop(). `best_eval` and `last_eval` are of this call; they are None if none was made.
    """
    if eval_target is not None and eval_fn is None:
        raise ConfigError(f"eval_target is {eval_target!r}, but there is no eval_fn to reach it; pass one.")
    one = _Run(
        coordinator,
        collect_fn,
        train_fn,
        eval_fn,
        eval_every=whole_number("eval_every", eval_every, 0),
        max_train=None if max_train is None else whole_number("max_train", max_train, 0),
        max_collect=None if max_collect is None else whole_number("max_collect", max_collect, 0),
        max_seconds=time_limit("max_seconds", max_seconds, zero=False),
        stop_fn=stop_fn,
        scores=Scores(eval_target, on_eval),
        after_train=after_train,
        on_restart=on_restart,
        on_retire=on_retire,
        background=dict(background or {}),
        patient=one_of("on_stop", on_stop, ON_STOP) == "finish",
    )
    try:
        return one.run(handle_signals, print_statistics)
    except BaseException:
        coordinator._keeper.unlock()
        raise


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
        scores: Scores,
        after_train: Callable[[], None] | None,
        on_restart: Callable[[int, Exception], None] | None,
        on_retire: Callable[[int], None] | None,
        background: dict[str, Callable[[BackgroundContext], object]],
        patient: bool,
    ) -> None:
        for name, fn in (("collect_fn", collect_fn), ("train_fn", train_fn), ("eval_fn", eval_fn)):
            if not callable(fn) and not (name == "eval_fn" and fn is None):
                raise ConfigError(f"{name} is {fn!r}; it must be a function.")
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
        if background and coordinator.is_synchronous:
            raise ConfigError(
                f"background roles ({', '.join(background)}) run beside the others, but at off_policy_degree 0 everything "
                "runs in turn; set the degree to at least 1, or do their work in train_fn."
            )
        callbacks = {
            "stop_fn": stop_fn, "on_eval": scores.on_eval, "after_train": after_train, "on_restart": on_restart,
            "on_retire": on_retire, **{f"background role {name!r}": role for name, role in background.items()},
        }  # fmt: skip
        for name, callback in callbacks.items():
            refuse_coroutine(name, callback)
        asynchronous = any(is_coroutine_function(fn) for fn in (collect_fn, train_fn, eval_fn) if fn is not None)
        if asynchronous and running_loop() is not None:
            raise ConfigError(
                "run() would block this event loop, which its coroutine functions may need; call it with "
                "`await asyncio.to_thread(coordinator.run, ...)`."
            )
        self.coordinator = coordinator
        self.keeper = coordinator._keeper
        self.signal = self.keeper.signal
        self.clock = coordinator.clock
        self.collect_fn, self.train_fn = collect_fn, train_fn
        self.eval_fn = None if eval_fn is None else scores.confirming(eval_fn)
        self.eval_every, self.max_train, self.max_collect = eval_every, max_train, max_collect
        self.max_seconds = max_seconds
        self.deadline: float | None = None
        self.stop_fn, self.scores, self.after_train = stop_fn, scores, after_train
        self.on_restart, self.on_retire = on_restart, on_retire
        self.background = background
        self.patient = patient
        self.reason = ""
        self.over = self.hurried = False
        self.signals = OrderlyStop(self._request_stop)
        self.failure: BaseException | None = None
        self.runners: list[LoopRunner] = []
        self.logged: set[type[Exception]] = set()
        self.collectors_left = coordinator.num_collectors
        self.proven: set[int] = set()  # collectors that have collected
        self.rejections: Counter[int] = Counter()  # in a row, by collector

    def run(self, handle_signals: bool, print_statistics: bool) -> RunResult:
        coordinator = self.coordinator
        try:
            coordinator.begin_run(self)
            self._try_to_work(handle_signals)
            self._wind_up()
            if print_statistics:
                coordinator.print_statistics()
        except BaseException as error:  # refused, or interrupted between any two lines
            self.keeper.heal()
            if not coordinator.is_run_by(self):
                raise
            self._fail(error)
            self._wind_up()
        if self.failure is not None:
            raise self.failure
        reason = "closed" if self.signal.closed else self.reason
        return RunResult(reason, coordinator.get_statistics(), self.scores.best, self.scores.last)

    def _try_to_work(self, handle_signals: bool) -> None:
        try:
            self._work(handle_signals)
        except BaseException as error:
            self._fail(error)

    def _work(self, handle_signals: bool) -> None:
        """From the first stage to the last."""
        coordinator = self.coordinator
        self.keeper.begin_run(self.max_collect, self.max_train)
        coordinator.publish()
        self.deadline = None if self.max_seconds is None else self.clock.now() + self.max_seconds
        if handle_signals:
            self.signals.install()
        if coordinator.is_synchronous:
            self._learn(here=True)
        else:
            self._start_roles()
            self._supervise()
        self._await_evaluation()

    def _wind_up(self) -> None:
        """Leave nothing running that can be ended, deliver what has arrived, and make the coordinator usable again. After an
        interrupt it is done once more."""
        coordinator = self.coordinator
        self.keeper.heal()
        self.signals.restore()
        coordinator.stop(self.reason or "the run has ended", patient=False)
        for runner in self.runners:
            runner.cancel()
        if self.failure is not None and not self.hurried:
            coordinator.threads.join(GRACE)
        coordinator.evaluator.abandon(self, 0.0)
        self.over = True
        try:
            self.scores.deliver()
        except BaseException as error:
            self._fail(error)
        self.keeper.set_limits(None, None)
        coordinator.end_run()

    # -- the learner: the loop itself ----------------------------------------------------------------------------------

    def _learn(self, *, here: bool) -> None:
        """Collect (only `here`, at degree 0; else collectors do), train, evaluate, until a stop condition holds."""
        coordinator, runner = self.coordinator, self._new_runner()
        try:
            while not self._ended() and not self._asked_to_stop():
                if here and (not self._collect_here(runner) or self._time_is_over()):
                    break
                replayed = self.keeper.gate.replayed
                self._call(runner, coordinator.train_stage(self), self.train_fn, self._time_left())
                if self.keeper.gate.replayed == replayed:
                    self._evaluate_if_due(runner)
                self.scores.deliver()
                if self.after_train is not None:
                    self.after_train()
        except GateTimeout as error:
            if error.origin is not self.signal or not self._time_is_over():  # else one of the user's own waits
                raise
        except Stopped as error:
            if error.origin is not self.signal:
                raise
            self._end(self.signal.stop_reason or str(error))  # a stage that gave up only says that the run is stopping
        finally:
            runner.close()
            coordinator.stop(self.reason or "the learner ended", patient=self.patient)

    def _ended(self) -> bool:
        coordinator, gate, left = self.coordinator, self.keeper.gate, self._time_left()
        if self.signal.is_set():
            self._end(self.signal.stop_reason)
        elif self.max_train is not None and coordinator.train_count >= self.max_train:
            self._end("max_train")
        elif self._all_collected() and not (gate.waiting or gate.tickets):
            self._end("max_collect")
        elif left is not None and left <= 0:
            self._end("max_seconds")
        return bool(self.reason)

    def _all_collected(self) -> bool:
        return self.max_collect is not None and self.coordinator.collect_count >= self.max_collect

    def _asked_to_stop(self) -> bool:
        if self.stop_fn is not None and self.stop_fn():
            self._end("stop_fn")
        return bool(self.reason)

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason

    def _time_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - self.clock.now()

    def _time_is_over(self) -> bool:
        left = self._time_left()
        if left is not None and left <= 0:
            self._end("max_seconds")
        return bool(self.reason)

    def _evaluate_if_due(self, runner: LoopRunner) -> None:
        """Evaluate, or have it done, unless the run has to end: then the train that was made is taken into account only."""
        if not self.eval_every or self.coordinator.train_count % self.eval_every or self._time_is_over():
            return
        try:
            self._evaluate(runner)
        except GateTimeout:
            if not self._time_is_over():
                raise
        except Stopped as error:
            if error.origin is not self.signal:
                raise

    def _evaluate(self, runner: LoopRunner) -> None:
        coordinator = self.coordinator
        if coordinator.enable_async_eval:
            assert self.eval_fn is not None
            left = self._time_left()
            limit = None if left is None else max(0.0, left)
            coordinator.start_background_eval(self.eval_fn, with_context=True, timeout=limit, run=self)
            return
        start = self.clock.now()
        seen: list[EvalContext] = []
        value = self._call(runner, coordinator.eval_stage(self), _noting(self.eval_fn, seen), self._time_left())
        self.eval_ended(EvalResult(seen[0].version, value, self.clock.now() - start, seen[0].snapshot), None)

    # -- collectors ----------------------------------------------------------------------------------------------------

    def _collect_here(self, runner: LoopRunner) -> bool:
        """Degree 0: collect the batch to train next, unless one is owed; return whether there is one."""
        failures = 0
        while not self.keeper.gate.waiting and not self._ended():
            failures = self._collect_once(0, runner, failures, self._time_left())
        return bool(self.keeper.gate.waiting)

    def _collect_on_and_on(self, worker: int) -> None:
        """The body of a collector thread."""
        runner = self._new_runner()
        failures = 0
        try:
            while True:
                failures = self._collect_once(worker, runner, failures)
        except Stopped as error:
            if error.origin is not self.signal:
                raise
        except Exception as error:
            if not self._retire(worker, error, failures + 1):
                raise
        finally:
            runner.close()

    def _retire(self, worker: int, error: Exception, failures: int) -> bool:
        """A collector failed too often, or could not be restarted: go on without it if another one is left; return whether."""
        keeper, coordinator = self.keeper, self.coordinator
        with keeper.lock:
            hopeless = self.collectors_left <= 1 or self._is_refused(worker, error, 0)
            if coordinator.recovery.on_failure != "restart" or self.signal.is_set() or hopeless:
                return False
            self.collectors_left -= 1
            keeper.recorder.sums["retired"] += 1
        log.error("collector %d failed %s and is retired; the others go on: %r", worker,
                  f"{failures} times in a row" if failures > 1 else "once", error)  # fmt: skip
        if self.on_retire is not None:
            self.on_retire(worker)
        return True

    def _collect_once(self, worker: int, runner: LoopRunner, failures: int, timeout: float | None = None) -> int:
        """Collect one batch; return the failures in a row. By `on_failure`, a failure ends the run or costs a pause."""
        coordinator = self.coordinator
        try:
            data = self._call(runner, coordinator.collect_stage(worker, self), self.collect_fn, timeout)
            self.proven.add(worker)
        except Exception as error:
            if getattr(error, "origin", None) is self.signal:
                raise
            if self._is_refused(worker, error, failures):
                raise
            self._pause_after(f"collector {worker}", error, failures)
            if self.on_restart is not None:
                self.on_restart(worker, error)
            return failures + 1
        self.rejections[worker] = 0 if data is not None else self.rejections[worker] + 1
        if data is None:
            self._pause_after_rejection(worker)
        return 0

    def _pause_after_rejection(self, worker: int) -> None:
        """A collect returned None. From `max_restarts` in a row on, wait as after a failure, but for ever again."""
        coordinator, rejections = self.coordinator, self.rejections[worker]
        times = rejections - max(1, coordinator.recovery.max_restarts)
        if times >= 0:
            pause = self._pause(times)
            log.warning(
                "collector %d returned None %d times in a row; it collects again in %.3g s", worker, rejections, pause
            )
            self._wait(pause)

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

    def _is_refused(self, worker: int, error: Exception, failures: int) -> bool:
        """Whether a collector cannot be used at all. What cannot be used does not become usable; but of one that had come
        further before, the same words may pass: a server that it needs is starting again, say."""
        return isinstance(error, ConfigError) and not failures and worker not in self.proven

    def _first_of_its_kind(self, error: Exception) -> Exception | None:
        """The error if its traceback was not logged yet: one per type is enough to read."""
        known = type(error) in self.logged
        self.logged.add(type(error))
        return None if known else error

    # -- background roles ----------------------------------------------------------------------------------------------

    def _work_on_and_on(self, name: str) -> None:
        """The body of a background role's thread."""
        work, context = self.background[name], BackgroundContext(name, self.signal)
        failures = 0
        try:
            while not self.signal.is_set():
                try:
                    work(context)
                    failures = 0
                except Exception as error:
                    if getattr(error, "origin", None) is self.signal:
                        raise
                    if isinstance(error, ConfigError) and not failures:  # what cannot be used does not become usable
                        raise
                    self._pause_after(name, error, failures)
                    failures += 1
        except Stopped as error:
            if error.origin is not self.signal:
                raise

    # -- threads -------------------------------------------------------------------------------------------------------

    def _start_roles(self) -> None:
        threads = self.coordinator.threads
        threads.failures.clear()
        for worker in range(self.coordinator.num_collectors):
            threads.start(f"collector-{worker}", partial(self._collect_on_and_on, worker))
        for name in self.background:
            threads.start(name, partial(self._work_on_and_on, name))
        threads.start("learner", partial(self._learn, here=False))

    def _supervise(self) -> None:
        """Wait for the roles to end; when one failed or the stop is not patient, only for a moment."""
        threads, signal = self.coordinator.threads, self.signal
        hurry: float | None = None
        changes = 0
        while threads.alive():
            if self._time_is_over() and not signal.is_set():
                self.coordinator.stop(self.reason, patient=self.patient)
            failed = bool(threads.failures or self.failure)
            if hurry is None and (failed or signal.closed or (signal.is_set() and not self.patient)):
                self.hurried = True
                hurry = self.clock.now() + GRACE
                if signal.is_set() and not failed:
                    self._end(signal.stop_reason)
                self.coordinator.stop("another role failed", patient=False)
                for runner in self.runners:
                    runner.cancel()
            left = None if hurry is None else hurry - self.clock.now()
            if left is None and not signal.is_set():
                left = self._time_left()
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

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def eval_ended(self, result: EvalResult | None, error: BaseException | None) -> None:
        """An evaluation ended, in whatever thread: see whether it ends the run; `on_eval` comes in the learner's."""
        try:
            if result is not None and self.scores.arrived(result):
                self.coordinator.evaluator.forget_queued(self)  # else it begins before anybody else could say so
                self._request_stop("eval_target")
        except ConfigError as broken:
            error = broken
        if error is not None:
            self._fail(error)
            self.coordinator.stop("an evaluation failed", patient=False)

    def _await_evaluation(self) -> None:
        """An evaluation that still runs at the end: let it finish, or leave it, as `on_stop` says."""
        if self.failure is None and not self.signal.closed:
            evaluator = self.coordinator.evaluator
            if self.patient:
                if self.reason not in ("max_train", "max_collect"):
                    evaluator.forget_queued(self)
                evaluator.wait(None, self)
            else:
                evaluator.abandon(self, GRACE)


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
