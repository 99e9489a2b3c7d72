"""The three stages as the coordinator runs them: enter through the gate, run the user's function, leave.

A stage says what to ask, what to pass, and what to do with the outcome; `run_blocking` here and `run_awaitable` in
coroutines.py are the only code that differs between plain callables and coroutine functions.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any, Final

from lzero_async.core.activity import ACTIVE, WAITING
from lzero_async.core.gate import Ticket
from lzero_async.core.keeping.gatekeeper import Gatekeeper
from lzero_async.core.keeping.parked import REPLAY, Holder, MakeWaiter, Parked
from lzero_async.core.trace import EVALUATOR, LEARNER, TraceWriter, collector
from lzero_async.core.weights import WeightStore
from lzero_async.errors import Stopped, tell_refusal
from lzero_async.types import Batch, CollectContext, EvalContext, LearnerState
from lzero_async.validation import real_number

log = logging.getLogger("lzero_async")
_WAITS: Final = {kind: f"wait {kind}" for kind in ("collect", "commit", "train", "eval")}
_GIVEN_UP: Final = (Stopped, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)  # ends of a run, no failures


class StageParts:
    """What the stages of one coordinator share. `publish` makes up for weights that are overdue, `get_weights` returns the
    learner's, `on_publish(version)` hears of new ones, `after(result, starved)` is called under the lock after every train."""

    def __init__(
        self,
        keeper: Gatekeeper,
        weights: WeightStore,
        *,
        priority: Callable[[Any], float] | None,
        publish: Callable[[], None],
        get_weights: Callable[[], Any] | None,
        on_publish: Callable[[int], object] | None,
        after: Callable[[Any, bool], None],
        retries: int,
        learner: LearnerState | None,
    ) -> None:
        self.keeper, self.weights = keeper, weights
        self.trace: TraceWriter | None = None
        self.priority, self.publish = priority, publish
        self.get_weights, self.on_publish, self.after = get_weights, on_publish, after
        self.retries, self.learner = retries, learner
        self.report: Any = None  # of a train that is a block
        self.block_of = -1  # the thread whose block trains


class Stage(Holder):
    """One pass of one role through the gate. `result` holds what the function returned, once it has."""

    name = ""
    track = LEARNER
    start = -1.0
    ticket: Ticket = REPLAY
    result: tuple[Any] | None = None
    shown = ""

    def __init__(self, parts: StageParts, run: object) -> None:
        self.parts = parts
        self.keeper = parts.keeper
        self.run = run

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        """Ask the gate to let this stage start."""
        raise AssertionError

    def enter(self, ticket: Ticket) -> None:
        """The stage may start."""
        self.ticket = ticket
        self.start = self.keeper.clock.now()
        self.began()

    def began(self) -> None:
        """Tell whoever looks on that the stage is at work."""
        self.shown = ACTIVE
        self.keeper.activity.enter(self.track, self.name, self.start)
        if self.parts.trace is not None:
            self.parts.trace.counters(self.start, **_counters(self.keeper))

    def ended(self, now: float) -> None:
        """Tell whoever looks on that it is not any more."""
        self.keeper.activity.leave(self.track, now)
        self.shown = ""

    def context(self) -> Any:
        """What the function gets if it wants it."""
        raise AssertionError

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        """The function returned `result`."""
        raise AssertionError

    def finish(self) -> None:
        """Under the lock, with a result: count what ran, since an interrupt came before that."""
        raise AssertionError

    def again(self, error: BaseException) -> bool:
        """The function raised: return whether to start it again."""
        return False

    def let_go(self, error: BaseException, *, locked: bool = False) -> None:
        """The call ends with `error`, from the function or from anywhere else: nothing may be left behind."""
        now = self.keeper.clock.now()
        given_up = isinstance(error, _GIVEN_UP)
        let_go = self.keeper.let_go_locked if locked else self.keeper.let_go
        let_go(self, failed=not given_up, result=self.result, finish=self.finish, since=self.start)
        tell_refusal(error)
        if self.shown == ACTIVE:
            self.ended(now)
            self.show_failure(error, now)
        elif self.shown:
            self.keeper.activity.leave(self.track, now, WAITING)

    def show_failure(self, error: BaseException, end: float) -> None:
        """Trace the end without a result, which is a failure unless the run has ended."""
        if self.parts.trace is not None:
            how = "cut off" if isinstance(error, _GIVEN_UP) else "failed"
            self.parts.trace.span(self.track, f"{self.name} {how}", self.start, end, version=self.ticket.version)

    def waits(self, parked: Parked) -> None:
        """A wait begins."""
        self.shown = WAITING
        self.keeper.activity.enter(self.track, _WAITS[parked.kind], parked.since, WAITING)

    def waited(self, parked: Parked) -> Ticket:
        """A wait is over: trace it, and return what was granted."""
        end = self.keeper.clock.now()
        self.keeper.activity.leave(self.track, end, WAITING)
        self.shown = ""
        if self.parts.trace is not None:
            self.parts.trace.span(self.track, _WAITS[parked.kind], parked.since, end)
            if parked.kind == "commit":
                self.parts.trace.counters(end, **_counters(self.keeper))
        return self.keeper.served(parked)


class CollectStage(Stage):
    """A collect: admitted with a ticket, committed as a batch, or rejected if its function returned None."""

    name = "collect"

    def __init__(self, parts: StageParts, run: object, worker: int) -> None:
        self.parts = parts
        self.keeper = parts.keeper
        self.run = run
        self.track = collector(worker)
        self.worker = worker

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        gate = self.keeper.gate
        if gate.version - gate.published >= gate.publish_every:
            self.parts.publish()
        return self.keeper.request_collect(make_waiter, self)

    def context(self) -> CollectContext:
        ticket = self.ticket
        return CollectContext(self.worker, ticket.id, ticket.version, self.parts.weights.latest(), self.keeper.signal)

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        keeper, ticket = self.keeper, self.ticket
        end = keeper.clock.now()
        if result is None:
            self._reject(end)
            return None
        priority = self._ranked(result)
        self.ended(end)
        if self.parts.trace is not None:
            self.parts.trace.collect(self.track, self.start, end, ticket.id, ticket.version)
        left = keeper.request_commit(ticket, result, self.start, end, make_waiter, priority, self)
        if self.parts.trace is not None:
            self.parts.trace.counters(end, **_counters(keeper))
        return left

    def _reject(self, end: float) -> None:
        self.ended(end)
        if self.parts.trace is not None:
            self.parts.trace.span(self.track, "collect rejected", self.start, end, version=self.ticket.version)
        self.keeper.reject(self.ticket, self.start, end)
        if self.parts.trace is not None:
            self.parts.trace.counters(end, **_counters(self.keeper))

    def _ranked(self, result: Any) -> float:
        """The batch's priority, if there are priorities; a failure of the user's function is one of the collect."""
        if self.parts.priority is None:
            return 0.0
        try:
            return real_number("the priority of a batch", self.parts.priority(result))
        except BaseException:
            self.result = None
            raise


class TrainStage(Stage):
    """A train of the oldest batch or batches, or a replay; publishes the weights when they are due."""

    name = "train"
    _before: Mapping[str, Any] | None = None

    def __init__(self, parts: StageParts, run: object) -> None:
        self.parts = parts
        self.keeper = parts.keeper
        self.run = run
        self.retries = parts.retries

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        gate = self.keeper.gate
        if gate.version - gate.published >= gate.publish_every:  # collectors may be waiting for that already
            self.parts.publish()
        return self.keeper.request_train(make_waiter, self)

    def enter(self, ticket: Ticket) -> None:
        self.ticket = ticket
        if self.retries and self.parts.learner is not None:
            self._before = copy.deepcopy(self.parts.learner.state_dict())  # torch's state_dict holds references
        self.start = self.keeper.clock.now()
        self.began()

    def context(self) -> Batch:
        keeper, ticket = self.keeper, self.ticket
        if ticket is REPLAY:
            return Batch(-1, None, keeper.gate.version, 0, True, keeper.signal)
        staleness = keeper.gate.version - ticket.version
        several = keeper.gate.per_train > 1
        data = [keeper.data[one.id] for one in keeper.training()] if several else keeper.data[ticket.id]
        return Batch(ticket.id, data, ticket.version, staleness, False, keeper.signal)

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        keeper, gate = self.keeper, self.keeper.gate
        end = keeper.clock.now()
        version = gate.version + 1
        if version - gate.published >= gate.publish_every and self.parts.get_weights is not None:
            self.parts.weights.publish(self.parts.get_weights(), version)
            if self.parts.trace is not None:
                self.parts.trace.published(end, keeper.clock.now(), version)
        self.ended(keeper.clock.now())
        if self.parts.trace is None:
            self._finish(end)
        else:
            several = gate.per_train > 1 and self.ticket is not REPLAY
            batches = [ticket.id for ticket in keeper.training()] if several else []
            self._finish(end)
            self._show(end, version, batches)
            self.parts.trace.counters(keeper.clock.now(), **_counters(keeper))
        if self.parts.on_publish is not None and gate.published == version:
            self.parts.on_publish(version)
        return None

    def finish(self) -> None:
        self._finish(self.keeper.clock.now())

    def _finish(self, end: float) -> None:
        assert self.result is not None
        gate = self.keeper.gate
        version = gate.version + 1
        published = version - gate.published >= gate.publish_every
        if published and self.parts.get_weights is not None:
            latest = self.parts.weights.latest()
            published = latest is not None and latest.version == version
        self.keeper.finish_train(self.start, end, published, self.parts.after, self.result[0])

    def _show(self, end: float, version: int, batches: list[int]) -> None:
        assert self.parts.trace is not None
        if self.ticket is REPLAY:
            self.parts.trace.span(LEARNER, "replay", self.start, end, version=version)
        else:
            staleness = version - 1 - self.ticket.version
            self.parts.trace.train(self.start, end, self.ticket.id, version, staleness, batches)

    def again(self, error: BaseException) -> bool:
        again = self.retries > 0 and self._before is not None and isinstance(error, Exception)
        if not again or self.parts.learner is None or self.keeper.signal.is_set():
            return False
        self.retries -= 1
        tell_refusal(error)
        end = self.keeper.clock.now()
        self.ended(end)
        self.show_failure(error, end)
        known = self.keeper.count_failed_train(self.start, end, error)
        log.warning(
            "train failed (%r); it is tried again from the state before it, at most %d more time(s)",
            error, self.retries + 1, exc_info=None if known else error,
        )  # fmt: skip
        self.parts.learner.load_state_dict(self._before or {})
        return True


class EvalStage(Stage):
    """An evaluation in the learner's turn: the evaluator is at work, and the learner waits for it."""

    name = "eval"

    def began(self) -> None:
        self.shown = ACTIVE
        self.keeper.activity.enter(EVALUATOR, self.name, self.start)
        self.keeper.activity.enter(LEARNER, "wait eval", self.start, WAITING)

    def ended(self, now: float) -> None:
        self.keeper.activity.leave(EVALUATOR, now)
        self.keeper.activity.leave(LEARNER, now, WAITING)
        self.shown = ""

    def ask(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        return self.keeper.request_eval(make_waiter, self)

    def context(self) -> EvalContext:
        snapshot = self.parts.weights.latest()
        return EvalContext(self.ticket.version if snapshot is None else snapshot.version, snapshot, self.keeper.signal)

    def leave(self, result: Any, make_waiter: MakeWaiter) -> Ticket | Parked | None:
        end = self.keeper.clock.now()
        self.keeper.finish_eval(self.start, end, failed=False)
        self.ended(end)
        if self.parts.trace is not None:
            self.parts.trace.span(LEARNER, "eval", self.start, end, version=self.ticket.version)
        return None


# A driver catches everything around a function of its own: Python does not guard the line of an inner `try` itself.


def run_blocking(stage: Stage, fn: Callable[..., Any], with_context: bool, timeout: float | None) -> Any:
    """Run a stage with a plain callable in the calling thread."""
    try:
        return _pass_through(stage, fn, with_context, timeout)
    except BaseException as error:
        stage.let_go(error)
        raise


def _pass_through(stage: Stage, fn: Callable[..., Any], with_context: bool, timeout: float | None) -> Any:
    make_waiter = stage.keeper.clock.waiter
    asked = stage.ask(make_waiter)
    ticket = stage.ticket = asked if isinstance(asked, Ticket) else block(stage, asked, timeout)
    while stage.result is None:
        try:
            stage.enter(ticket)
            stage.result = (fn(stage.context()) if with_context else fn(),)
        except BaseException as error:
            if not stage.again(error):
                raise
    result = stage.result[0]
    if type(result) is CoroutineType:
        stage.result = None
        result.close()
        raise TypeError(f"{fn!r} returned a coroutine but is not a coroutine function; declare it with async def.")
    left = stage.leave(result, make_waiter)
    if isinstance(left, Parked):
        block(stage, left, timeout)
    return result


def block(stage: Stage, parked: Parked, timeout: float | None) -> Ticket:
    """Wait in the calling thread for what was asked."""
    stage.waits(parked)
    parked.waiter.wait(timeout)
    return stage.waited(parked)


def _counters(keeper: Gatekeeper) -> dict[str, int]:
    """What the trace counts, as it is now."""
    gate = keeper.gate
    with keeper.lock:  # a full queue holds one more for the moment in which it drops one
        lag = len(gate.waiting)
        queue = lag - (gate.per_train if gate.running == "train" else 0)
        counters = {"lag": lag, "queue": queue, "open_collects": len(gate.tickets), "degree": gate.degree}
        return counters if gate.capacity is None else {**counters, "queue_capacity": gate.capacity}
