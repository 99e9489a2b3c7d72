"""All that differs for coroutine functions: they wait in tasks, and never block their event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from lzero_async.clock import RealClock
from lzero_async.core.gate import Ticket
from lzero_async.core.keeping.parked import MakeWaiter, Parked
from lzero_async.errors import ConfigError
from lzero_async.threads import ThreadGroup
from lzero_async.types import Clock, RunResult

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator
    from lzero_async.core.stages import Stage


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


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of the calling thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def waiters_of(clock: Clock) -> MakeWaiter:
    """Makes places to wait in for tasks of the running event loop."""
    if not isinstance(clock, RealClock):
        raise ConfigError("A virtual clock knows threads only; run coroutine functions on the real clock.")
    return partial(FutureWaiter, asyncio.get_running_loop())


async def run_awaitable(
    stage: Stage, fn: Callable[..., Awaitable[Any]], with_context: bool, timeout: float | None
) -> Any:
    """Run a stage with a coroutine function; the event loop is never blocked."""
    try:
        return await _await_through(stage, fn, with_context, timeout)
    except GeneratorExit as error:  # the garbage collector ends a task whose loop is closed, maybe under the lock
        stage.keeper.when_unlocked(partial(stage.let_go, error, locked=True))
        raise
    except BaseException as error:
        stage.let_go(error)
        raise


async def _await_through(
    stage: Stage, fn: Callable[..., Awaitable[Any]], with_context: bool, timeout: float | None
) -> Any:
    make_waiter = waiters_of(stage.keeper.clock)
    asked = stage.ask(make_waiter)
    ticket = stage.ticket = asked if isinstance(asked, Ticket) else await pause(stage, asked, timeout)
    while stage.result is None:
        try:
            stage.enter(ticket)
            stage.result = (await (fn(stage.context()) if with_context else fn()),)
        except BaseException as error:
            if not stage.again(error):
                raise
    left = stage.leave(stage.result[0], make_waiter)
    if isinstance(left, Parked):
        await pause(stage, left, timeout)
    return stage.result[0]


async def pause(stage: Stage, parked: Parked, timeout: float | None) -> Ticket:
    """Wait in a task for what was asked."""
    assert isinstance(parked.waiter, FutureWaiter)
    stage.waits(parked)
    await asyncio.wait((parked.waiter.future,), timeout=timeout)
    return stage.waited(parked)


async def enter_awaiting(stage: Stage, timeout: float | None) -> Ticket:
    """Wait in a task until the stage may start."""
    asked = stage.ask(waiters_of(stage.keeper.clock))
    return asked if isinstance(asked, Ticket) else await pause(stage, asked, timeout)


async def leave_awaiting(stage: Stage, timeout: float | None) -> None:
    """End a stage that has its result, in a task."""
    assert stage.result is not None
    left = stage.leave(stage.result[0], waiters_of(stage.keeper.clock))
    if isinstance(left, Parked):
        await pause(stage, left, timeout)


async def run_async(
    coordinator: AsyncTrainingCoordinator,
    collect: Any,
    train_fn: Callable[..., Any],
    eval_fn: Callable[..., Any] | None = None,
    **options: Any,
) -> RunResult:
    """`run` for an event loop, which it does not block: the whole run has threads of its own, coroutine functions included.

    Cancelling the task stops the run in order, as `on_stop` says, and waits for its end; cancelling it once more abandons
    what runs. The options are those of `run`; signals are the event loop's.
    """
    waiters_of(coordinator.clock)
    done: Future[RunResult] = Future()

    def run() -> None:
        try:
            done.set_result(coordinator.run(collect, train_fn, eval_fn, **options))
        except BaseException as error:
            done.set_exception(error)

    ThreadGroup(coordinator.clock, "lzero").start("run", run)
    ending, cancelled = asyncio.wrap_future(done), None
    while not ending.done():
        try:
            await asyncio.wait((ending,))
        except asyncio.CancelledError as error:
            coordinator.stop("cancelled", patient=cancelled is None and options.get("on_stop") != "abandon")
            cancelled = error
    if cancelled is not None:
        raise cancelled from ending.exception()
    return ending.result()
