"""The three stages as the coordinator runs them: enter through the gate, run the user's function, leave.

A stage says what to ask, what to pass, and what to do with the outcome; the two drivers at the end (`run_blocking`,
`run_awaitable`) are the only code that differs between plain callables and coroutine functions.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import CoroutineType, FunctionType
from typing import Any, Final

from lzero_async.activity import WAITING
from lzero_async.clock import RealClock
from lzero_async.config import real_number
from lzero_async.errors import ConfigError, Stopped
from lzero_async.gate import Ticket
from lzero_async.shell import REPLAY, GateShell, MakeWaiter, Parked
from lzero_async.trace import EVALUATOR, LEARNER, TraceWriter, collector
from lzero_async.types import Batch, CollectContext, EvalContext, LearnerState
from lzero_async.weights import WeightStore

_GIVEN_UP: Final = (Stopped, asyncio.CancelledError, KeyboardInterrupt)  # ends of a run, no failures


class Stage:
    """One pass of one role through the gate."""

    name = ""
    __slots__ = ("shell", "start", "ticket", "trace", "track", "weights")

    def __init__(self, shell: GateShell, weights: WeightStore, trace: TraceWriter | None) -> None:
        self.shell = shell
        self.weights = weights
        self.trace = trace
        self.track = LEARNER
        self.start = -1.0
        self.ticket: Ticket = REPLAY

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        """Ask the gate to let this stage start."""
        raise AssertionError

    def enter(self, ticket: Ticket) -> None:
        """The stage may start."""
        self.ticket = ticket
        self.start = self.shell.clock.now()
        self.began()

    def began(self) -> None:
        """Tell whoever looks on that the stage is at work."""
        self.shell.activity.enter(self.track, self.name, self.start)
        if self.trace is not None:
            self.trace.counters(self.start, **_counters(self.shell))

    def ended(self, now: float) -> None:
        """Tell whoever looks on that it is not any more."""
        self.shell.activity.leave(self.track, now)

    def context(self) -> Any:
        """What the function gets if it wants it."""
        raise AssertionError

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        """The function returned `result`."""
        raise AssertionError

    def fail(self, error: BaseException) -> None:
        """The stage ends without a result."""
        raise AssertionError

    def recover(self, error: BaseException) -> bool:
        """The function raised: return whether to start it again; otherwise the stage has failed."""
        self.fail(error)
        return False

    def failed_at(self, error: BaseException) -> float:
        """Trace the end without a result, which is a failure unless the run has ended; return the time."""
        end = self.shell.clock.now()
        if self.start < 0:  # interrupted before it began
            self.start = end
        self.ended(end)
        if self.trace is not None:
            how = "cut off" if isinstance(error, _GIVEN_UP) else "failed"
            self.trace.span(self.track, f"{self.name} {how}", self.start, end, version=self.ticket.version)
        return end

    def waits(self, parked: Parked) -> None:
        """A wait begins."""
        self.shell.activity.enter(self.track, f"wait {parked.kind}", parked.since, WAITING)

    def gave_up(self, parked: Parked) -> None:
        """A wait was interrupted."""
        self.shell.activity.leave(self.track, self.shell.clock.now(), WAITING)
        self.shell.withdraw(parked)

    def waited(self, parked: Parked) -> Ticket:
        """A wait is over: trace it, and return what was granted."""
        end = self.shell.clock.now()
        self.shell.activity.leave(self.track, end, WAITING)
        if self.trace is not None:
            self.trace.span(self.track, f"wait {parked.kind}", parked.since, end)
            if parked.kind == "commit":
                self.trace.counters(end, **_counters(self.shell))
        return self.shell.served(parked)


class CollectStage(Stage):
    """A collect: admitted with a ticket, committed as a batch."""

    name = "collect"
    __slots__ = ("priority", "worker")

    def __init__(
        self,
        shell: GateShell,
        weights: WeightStore,
        trace: TraceWriter | None,
        worker: int,
        priority: Callable[[Any], float] | None = None,
    ) -> None:
        self.shell = shell
        self.weights = weights
        self.trace = trace
        self.start = -1.0
        self.worker = worker
        self.priority = priority
        self.track = collector(worker)

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        return self.shell.request_collect(make_waiter)

    def context(self) -> CollectContext:
        ticket = self.ticket
        return CollectContext(self.worker, ticket.id, ticket.version, self.weights.latest(), self.shell)

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        shell, ticket = self.shell, self.ticket
        end = shell.clock.now()
        priority = self._ranked(result)
        self.ended(end)
        if self.trace is not None:
            self.trace.collect(self.track, self.start, end, ticket.id, ticket.version)
        left = shell.request_commit(ticket, result, self.start, end, make_waiter, priority)
        if self.trace is not None:
            self.trace.counters(end, **_counters(shell))
        return left

    def _ranked(self, result: Any) -> float:
        """The batch's priority, if there are priorities; a failure of the user's function is one of the collect."""
        if self.priority is None:
            return 0.0
        try:
            return real_number("the priority of a batch", self.priority(result))
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        end = self.failed_at(error)
        self.shell.end_collect(self.ticket, self.start, end, failed=not isinstance(error, _GIVEN_UP))


class TrainStage(Stage):
    """A train of the oldest batch, or a replay; publishes the weights when they are due."""

    name = "train"
    __slots__ = ("_after", "_before", "_get_weights", "_learner", "_retries")

    def __init__(
        self,
        shell: GateShell,
        weights: WeightStore,
        trace: TraceWriter | None,
        get_weights: Callable[[], Any] | None,
        after: Callable[[Any, bool], None],
        retries: int,
        learner: LearnerState | None,
    ) -> None:
        super().__init__(shell, weights, trace)
        self._get_weights = get_weights
        self._after = after
        self._retries = retries
        self._learner = learner
        self._before: Mapping[str, Any] | None = None

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        return self.shell.request_train(make_waiter)

    def enter(self, ticket: Ticket) -> None:
        self.ticket = ticket
        if self._retries and self._learner is not None:
            self._before = copy.deepcopy(self._learner.state_dict())  # torch's state_dict holds references
        self.start = self.shell.clock.now()
        self.began()

    def context(self) -> Batch:
        shell, ticket = self.shell, self.ticket
        if ticket is REPLAY:
            return Batch(-1, None, shell.gate.version, 0, True, shell)
        staleness = shell.gate.version - ticket.version
        return Batch(ticket.id, shell.data[ticket.id], ticket.version, staleness, False, shell)

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        shell, gate = self.shell, self.shell.gate
        end = shell.clock.now()
        version = gate.version + 1
        published = False
        try:
            if version - gate.published >= gate.publish_every:
                if self._get_weights is not None:
                    self.weights.publish(self._get_weights(), version)
                    if self.trace is not None:
                        self.trace.published(end, shell.clock.now(), version)
                published = True
        finally:
            self.ended(shell.clock.now())
            shell.finish_train(self.start, end, published, self._after, result)
        if self.trace is not None:
            self._show(end, version)
            self.trace.counters(shell.clock.now(), **_counters(shell))
        return None

    def _show(self, end: float, version: int) -> None:
        assert self.trace is not None
        if self.ticket is REPLAY:
            self.trace.span(LEARNER, "replay", self.start, end, version=version)
        else:
            self.trace.train(self.start, end, self.ticket.id, version, version - 1 - self.ticket.version)

    def fail(self, error: BaseException) -> None:
        end = self.failed_at(error)
        self.shell.fail_train(self.start, end)

    def recover(self, error: BaseException) -> bool:
        again = self._retries > 0 and self._before is not None and isinstance(error, Exception)
        if not again or self._learner is None or self.shell.is_set():
            self.fail(error)
            return False
        self._retries -= 1
        self.ended(self.shell.clock.now())
        try:
            self._learner.load_state_dict(self._before or {})
        except BaseException:
            self.fail(error)
            raise
        return True


class EvalStage(Stage):
    """An evaluation in the learner's turn: the evaluator is at work, and the learner waits for it."""

    name = "eval"
    __slots__ = ()

    def began(self) -> None:
        self.shell.activity.enter(EVALUATOR, self.name, self.start)
        self.shell.activity.enter(LEARNER, "wait eval", self.start, WAITING)

    def ended(self, now: float) -> None:
        self.shell.activity.leave(EVALUATOR, now)
        self.shell.activity.leave(LEARNER, now, WAITING)

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        return self.shell.request_eval(make_waiter)

    def context(self) -> EvalContext:
        snapshot = self.weights.latest()
        return EvalContext(self.ticket.version if snapshot is None else snapshot.version, snapshot, self.shell)

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        end = self.shell.clock.now()
        self.shell.finish_eval(self.start, end, failed=False)
        self.ended(end)
        if self.trace is not None:
            self.trace.span(LEARNER, "eval", self.start, end, version=self.ticket.version)
        return None

    def fail(self, error: BaseException) -> None:
        end = self.failed_at(error)
        self.shell.finish_eval(self.start, end, failed=True)


def run_blocking(stage: Stage, fn: Callable[..., Any], with_context: bool, timeout: float | None) -> Any:
    """Run a stage with a plain callable in the calling thread."""
    make_waiter = stage.shell.clock.waiter
    asked = stage.ask(make_waiter)
    ticket = stage.ticket = asked if isinstance(asked, Ticket) else _block(stage, asked, timeout)
    while True:
        try:
            stage.enter(ticket)
            result = fn(stage.context()) if with_context else fn()
            if type(result) is CoroutineType:
                result.close()
                raise TypeError(
                    f"{fn!r} returned a coroutine but is not a coroutine function; declare it with async def."
                )
            break
        except BaseException as error:
            if not stage.recover(error):
                raise
    left = stage.leave(result, make_waiter)
    if isinstance(left, Parked):
        _block(stage, left, timeout)
    return result


def _block(stage: Stage, parked: Parked, timeout: float | None) -> Ticket:
    stage.waits(parked)
    try:
        parked.waiter.wait(timeout)
    except BaseException:
        stage.gave_up(parked)
        raise
    return stage.waited(parked)


async def run_awaitable(
    stage: Stage, fn: Callable[..., Awaitable[Any]], with_context: bool, timeout: float | None
) -> Any:
    """Run a stage with a coroutine function; the event loop is never blocked."""
    if not isinstance(stage.shell.clock, RealClock):
        raise ConfigError("A virtual clock knows threads only; run coroutine functions on the real clock.")
    loop = asyncio.get_running_loop()

    def make_waiter() -> FutureWaiter:
        return FutureWaiter(loop)

    asked = stage.ask(make_waiter)
    ticket = stage.ticket = asked if isinstance(asked, Ticket) else await _pause(stage, asked, timeout)
    while True:
        try:
            stage.enter(ticket)
            result = await (fn(stage.context()) if with_context else fn())
            break
        except GeneratorExit:
            stage.shell.when_unlocked(partial(_forget, stage))
            raise
        except BaseException as error:
            if not stage.recover(error):
                raise
    left = stage.leave(result, make_waiter)
    if isinstance(left, Parked):
        await _pause(stage, left, timeout)
    return result


async def _pause(stage: Stage, parked: Parked, timeout: float | None) -> Ticket:
    assert isinstance(parked.waiter, FutureWaiter)
    stage.waits(parked)
    try:
        await asyncio.wait((parked.waiter.future,), timeout=timeout)
    except GeneratorExit:  # the garbage collector ends a task whose loop is closed; whoever serves it finds that out
        stage.shell.activity.leave(stage.track, stage.shell.clock.now(), WAITING)
        raise
    except BaseException:
        stage.gave_up(parked)
        raise
    return stage.waited(parked)


def _counters(shell: GateShell) -> dict[str, int]:
    """What the trace counts, as it is now; nobody holds the lock for it, so each value is one of the last moment."""
    gate = shell.gate
    lag = len(gate.waiting)
    queue = lag - (gate.running == "train")
    counters = {"lag": lag, "queue": max(0, queue), "open_collects": len(gate.tickets), "degree": gate.degree}
    return counters if gate.capacity is None else {**counters, "queue_capacity": gate.capacity}


def _forget(stage: Stage) -> None:
    """Under the lock: the coroutine of this stage was thrown away."""
    gate = stage.shell.gate
    stage.ended(stage.shell.clock.now())
    if isinstance(stage, CollectStage):
        if stage.ticket.id in gate.tickets:
            gate.abandon(stage.ticket.id)
    elif isinstance(stage, TrainStage):
        if gate.running in ("train", "replay"):
            gate.fail_train()
    elif gate.running == "eval":
        gate.finish_eval()


class FutureWaiter:
    """A place for one task to wait in; woken from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def wait(self, timeout: float | None) -> bool:
        """A task awaits `future` instead."""
        raise AssertionError("a task awaits its future")

    def wake(self) -> None:
        """Wake the task; callable from any thread."""
        self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def is_coroutine_function(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine: a coroutine function, a partial of one, or an object with such a call."""
    if type(fn) is FunctionType and not fn.__dict__:
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
