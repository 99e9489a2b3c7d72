"""The loop: collect, train, publish, evaluate. One for all degrees; only where the roles run differs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lzero_async.core.evaluator import Scores
from lzero_async.core.running.collectors import Collect, CollectorSession
from lzero_async.core.running.coroutines import is_coroutine_function, running_loop
from lzero_async.core.running.session import GRACE
from lzero_async.core.settings import refuse_coroutine
from lzero_async.errors import ConfigError, GateTimeout, Stopped
from lzero_async.threads import LoopRunner
from lzero_async.types import BackgroundContext, EvalContext, EvalResult, RunResult
from lzero_async.validation import one_of, whole_number

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator

ON_STOP: Final = ("finish", "abandon")
log = logging.getLogger("lzero_async")


def run(
    coordinator: AsyncTrainingCoordinator,
    collect: Collect,
    train_fn: Callable[..., Any],
    eval_fn: Callable[..., Any] | None = None,
    *,
    eval_every: int | Callable[[], bool] = 0,
    eval_first: int = 0,
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

    `collect(CollectContext)` returns the data of one batch, or None if it has nothing to train on; instead of a function
    it may be a list of `num_collectors` workers whose roles have `collect(version, state, stop)`: one that has died is
    restarted if `on_failure` is `restart`. `train_fn(Batch)` trains on it, `eval_fn(EvalContext)` returns a score; each
    function is plain or a coroutine function. At degree 0 all of them run in the calling thread in strict turn; above,
    collectors and learner each have a thread and the calling thread watches them.

    eval_every: trains between evaluations (0: none), or a function that is asked after every train whether one is due.
    eval_first: evaluations before the first train. max_train, max_collect: counts to reach, those before a resume
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
        collect,
        train_fn,
        eval_fn,
        eval_every=eval_every if callable(eval_every) else whole_number("eval_every", eval_every, 0),
        eval_first=whole_number("eval_first", eval_first, 0),
        max_train=max_train,
        max_collect=max_collect,
        max_seconds=max_seconds,
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


class _Run(CollectorSession):
    """One call of `run`."""

    def __init__(
        self,
        coordinator: AsyncTrainingCoordinator,
        collect: Collect,
        train_fn: Callable[..., Any],
        eval_fn: Callable[..., Any] | None,
        *,
        eval_every: int | Callable[[], bool],
        eval_first: int,
        stop_fn: Callable[[], bool] | None,
        scores: Scores,
        after_train: Callable[[], object] | None,
        background: dict[str, Callable[[BackgroundContext], object]],
        **session: Any,
    ) -> None:
        for name, fn in (("train_fn", train_fn), ("eval_fn", eval_fn)):
            if not callable(fn) and not (name == "eval_fn" and fn is None):
                raise ConfigError(f"{name} is {fn!r}; it must be a function.")
        for name, given in (("eval_every", eval_every), ("eval_first", eval_first)):
            if given and eval_fn is None:
                raise ConfigError(f"{name} is {given}, but there is no eval_fn; pass one or set {name} to 0.")
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
            "stop_fn": stop_fn, "on_eval": scores.on_eval, "after_train": after_train,
            "eval_every": eval_every if callable(eval_every) else None,
            **{f"background role {name!r}": role for name, role in background.items()},
        }  # fmt: skip
        for name, callback in callbacks.items():
            refuse_coroutine(name, callback)
        asynchronous = any(is_coroutine_function(fn) for fn in (collect, train_fn, eval_fn) if fn is not None)
        if asynchronous and running_loop() is not None:
            raise ConfigError(
                "run() would block this event loop, which its coroutine functions may need; use "
                "`await coordinator.run_async(...)`."
            )
        super().__init__(coordinator, collect, **session)
        self.train_fn = train_fn
        self.eval_fn = None if eval_fn is None else scores.confirming(eval_fn)
        self._is_due = eval_every if callable(eval_every) else partial(self._is_time, eval_every)
        self.eval_first = eval_first
        self.stop_fn, self.scores, self.after_train = stop_fn, scores, after_train
        self.background = background

    def run(self, handle_signals: bool, print_statistics: bool) -> RunResult:
        coordinator = self.coordinator
        try:
            coordinator.begin_run(self)
            self._try_to_work(handle_signals)
            self._shut_down()
            if print_statistics:
                coordinator.print_statistics()
        except BaseException as error:  # refused, or interrupted between any two lines
            self.keeper.heal()
            if not coordinator.is_run_by(self):
                raise
            self._fail(error)
            self._shut_down()
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
        self.begin(handle_signals)
        if self.coordinator.is_synchronous:
            self._learn(here=True)
        else:
            self._start_roles()
            self._supervise()
        self._await_evaluation()

    def deliver(self) -> None:
        self.scores.deliver()

    # -- the learner: the loop itself ----------------------------------------------------------------------------------

    def _learn(self, *, here: bool) -> None:
        """Collect (only `here`, at degree 0; else collectors do), train, evaluate, until a stop condition holds."""
        coordinator, runner = self.coordinator, self._new_runner()
        try:
            for _ in range(self.eval_first):
                self._evaluate_unless_over(runner)
                self.scores.deliver()
            while not self._ended() and not self._asked_to_stop():
                try:
                    if here and (not self._collect_here(runner) or self._time_is_over()):
                        break
                    replayed = self.keeper.gate.replayed
                    self._call(runner, coordinator.train_stage(self), self.train_fn, self._patience())
                except GateTimeout as error:
                    if not self._was_paused(error):
                        raise
                    continue
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

    def _asked_to_stop(self) -> bool:
        if self.stop_fn is not None and self.stop_fn():
            self._end("stop_fn")
        return bool(self.reason)

    def _is_time(self, every: int) -> bool:
        return bool(every) and self.coordinator.train_count % every == 0

    def _evaluate_if_due(self, runner: LoopRunner) -> None:
        if self._is_due():
            self._evaluate_unless_over(runner)

    def _evaluate_unless_over(self, runner: LoopRunner) -> None:
        """Evaluate, or have it done, unless the run has to end: then the train that was made is taken into account only."""
        if self._time_is_over():
            return
        try:
            self._evaluate(runner)
        except GateTimeout as error:
            if self._was_paused(error):
                self._evaluate_unless_over(runner)
            elif not self._time_is_over():
                raise
        except Stopped as error:
            if error.origin is not self.signal:
                raise

    def _evaluate(self, runner: LoopRunner) -> None:
        coordinator = self.coordinator
        if coordinator.enable_async_eval:
            assert self.eval_fn is not None
            left = self._patience()
            limit = None if left is None else max(0.0, left)
            coordinator.start_background_eval(self.eval_fn, with_context=True, timeout=limit, run=self)
            return
        start = self.clock.now()
        seen: list[EvalContext] = []
        value = self._call(runner, coordinator.eval_stage(self), _noting(self.eval_fn, seen), self._patience())
        self.eval_ended(EvalResult(seen[0].version, value, self.clock.now() - start, seen[0].snapshot), None)

    # -- background roles ----------------------------------------------------------------------------------------------

    def _work_on_and_on(self, name: str) -> None:
        """The body of a background role's thread."""
        work, context = self.background[name], BackgroundContext(name, self.signal)
        failures = 0
        try:
            while not self.signal.is_set():
                try:
                    while (waiter := self.keeper.while_paused(self.clock.waiter)) is not None:
                        waiter.wait(None)
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
        self.start_collectors()
        for name in self.background:
            threads.start(name, partial(self._work_on_and_on, name))
        threads.start("learner", partial(self._learn, here=False))

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
