"""A worker whose role lives outside this process: it has one life after another, and each is watched by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from lzero_async.errors import Stopped, WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.validation import duration, time_limit
from lzero_async.workers.calls import Line, PackedError, Patience, Signal, listen, unpack_error

log = logging.getLogger("lzero_async")
_FULL: Final = 10_000  # things told that wait to be taken in: then no more are read
_MOMENT: Final = 0.1  # seconds for what is told to be taken in, even if no time is left


class Deliveries:
    """What a role tells, handed on in order by a thread of its own, so that whoever takes it may be slow, or call the
    worker. The thread is started when it is needed, and ends after `rest` when nothing is left."""

    def __init__(self, name: str, threads: ThreadGroup) -> None:
        self._name, self._threads = name, threads
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._put = self._done = 0
        self._running = self._resting = self._calling_back = False
        self._thread = 0

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should be read."""
        return len(self._waiting) >= _FULL

    def wait_for_room(self, seconds: float) -> None:
        """Wait until it is not full, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self.full, seconds)

    def put(self, deliver: Callable[[], object]) -> None:
        """Have `deliver()` called, after what was put before; what it raises is logged. Raises LzeroAsyncError if there is
        no thread for it."""
        with self._changed:
            self._waiting.append(deliver)
            self._put += 1
            begin, self._running, self._resting = not self._running, True, False
            self._changed.notify_all()
        if begin:
            try:
                self._threads.start(f"{self._name}-events", self._work)
            except BaseException:
                with self._changed:
                    self._waiting.clear()
                    self._done, self._running = self._put, False
                raise

    def rest(self) -> None:
        """Nothing more is to come for a while."""
        with self._changed:
            self._resting = True
            self._changed.notify_all()

    def settle(self, seconds: float | None, stop: StopSignal | None = None) -> bool:
        """Wait until what was put before is handed on, at most so long, and only a moment from a stop on; return whether it is.
        Nobody waits for one who calls the worker while he is told something: his call comes after those that wait."""
        with self._changed:
            put = self._put

            def over() -> bool:
                return self._done >= put or self._calling_back or self._thread == threading.get_ident()

            moment = _MOMENT if seconds is None else min(_MOMENT, seconds)
            if self._changed.wait_for(over, moment) or (seconds is not None and seconds <= _MOMENT):
                return over()
        unlisten = listen(stop, lambda reason: self._wake())
        try:
            with self._changed:
                self._changed.wait_for(lambda: over() or (stop is not None and stop.is_set()), seconds)
                return over()
        finally:
            unlisten()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While the worker is called."""
        if self._thread != threading.get_ident():
            yield
            return
        with self._changed:
            before, self._calling_back = self._calling_back, True
            self._changed.notify_all()
        try:
            yield
        finally:
            self._calling_back = before

    def _work(self) -> None:
        self._thread = threading.get_ident()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._resting)
                if not self._waiting:
                    self._thread, self._running = 0, False
                    return
                deliver = self._waiting.popleft()
                self._changed.notify_all()
            try:
                deliver()
            except BaseException:  # of somebody's code: the next thing told is handed on all the same
                log.exception("what %s told could not be taken in", self._name)
            del deliver
            with self._changed:
                self._done += 1
                self._changed.notify_all()


class Life(Protocol):
    """One process or actor of a worker, from its start to its end. `death` says how it ended, and is None until then."""

    death: str | None
    placed: Signal
    """It is known where it runs, or it has ended."""
    started: Signal
    """Its role is made, could not be made, or will not be."""

    @property
    def pid(self) -> int:
        """Its process; 0 while that is not known."""

    @property
    def host(self) -> str:
        """The address of its machine; '' is this one."""

    def listen(self) -> None:
        """Take what it says until it ends; runs in a thread of its own."""

    def wait_until_ready(self, patience: Patience) -> bool:
        """Wait until the role is made; raise what its factory raised. Returns False when the time is over."""

    def call(self, method: str, args: tuple[Any, ...], patience: Patience) -> Any:
        """Call the role, which does nothing else meanwhile."""

    def cancel(self, reason: str) -> None:
        """Set the stop signal of the call that runs."""

    def end(self, why: str) -> None:
        """End it at once, if it has not ended, for this reason."""

    def abandon(self) -> None:
        """End it without anybody who listens."""

    def begin_close(self) -> None:
        """Ask the role to close after the call that runs, which is asked to end."""

    def finish_close(self, timeout: float) -> PackedError | None:
        """Wait for the role to close, at most so long, and end it; return what closing raised, once."""


L = TypeVar("L", bound=Life)


class LivingWorker(Generic[L]):
    """One role, life after life; see `Worker`. `new_life(deliveries)` makes one."""

    def __init__(self, name: str, new_life: Callable[[Deliveries], L], threads: ThreadGroup) -> None:
        self.name = name
        self.restarts = 0
        self._new_life, self._threads = new_life, threads
        self._deliveries = Deliveries(name, threads)
        self._line = Line(name)
        self._changing = threading.Lock()
        self._closed_for_good = False
        self._life = self._begin()

    @property
    def pid(self) -> int:
        return self._life.pid

    @property
    def host(self) -> str:
        return self._life.host

    @property
    def alive(self) -> bool:
        return self._life.death is None

    def call(self, method: str, *args: Any, stop: StopSignal | None = None, timeout: float | None = None) -> Any:
        patience = Patience(stop, time_limit("timeout", timeout))
        with self._deliveries.calling(), self._line.turn(patience):
            life = self._life
            if not life.wait_until_ready(patience):
                life.end(f"did not answer {method} within {timeout:g} s: its role was still being made")
                raise WorkerDied(f"{self.name} {life.death}.")
            return life.call(method, args, patience)

    def wait_until_ready(self, stop: StopSignal | None = None) -> None:
        with suppress(Stopped):
            patience, life = Patience(stop, None), self._life
            patience.wait_for(life.placed)
            patience.wait_for(life.started)

    def cancel(self, reason: str = "cancelled") -> None:
        self._life.cancel(reason)

    def kill(self) -> None:
        self._life.end("was ended")

    def restart(self) -> None:
        with self._changing:
            if self._closed_for_good:
                raise WorkerDied(f"{self.name} cannot be restarted: its backend is closed.")
            self.kill()
            self.restarts += 1
            self._life = self._begin()

    def begin_close(self, *, for_good: bool = False) -> None:
        """Ask the role to close, without waiting for it; `for_good` refuses restarts after that. One that is still being made
        has nothing to close, and is ended at once."""
        if for_good:
            with self._changing:
                self._closed_for_good = True
        life = self._life
        if life.started.is_set():
            life.begin_close()
        else:
            life.end("is closed")

    def close(self, timeout: float = 5.0) -> None:
        deadline = time.monotonic() + duration("timeout", timeout, zero=True)
        self.begin_close()
        error = self._life.finish_close(timeout)
        if not self._deliveries.settle(max(_MOMENT, deadline - time.monotonic())):
            log.warning("what %s told is not taken in yet: its on_event does not return", self.name)
        if error is not None:
            raise unpack_error(error, self.name, None)

    def _begin(self) -> L:
        life = self._new_life(self._deliveries)
        try:
            self._threads.start(self.name, life.listen)
        except BaseException:
            life.abandon()
            raise
        return life
