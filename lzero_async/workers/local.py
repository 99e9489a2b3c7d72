"""Roles of this process: in the calling thread, or in a thread of its own."""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.core.weights import freeze
from lzero_async.errors import GateTimeout, LzeroAsyncError, Stopped, WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.validation import duration, time_limit
from lzero_async.workers.backend import Factory, Worker, close_all
from lzero_async.workers.calls import (
    CallStop,
    Line,
    Patience,
    Signal,
    listen,
    pack_error,
    unpack_error,
)
from lzero_async.workers.parcels import Parcel

_MOMENT: Final = 0.1  # seconds for threads that were told to end


class InlineWorker:
    """A role in whatever thread calls it."""

    def __init__(self, name: str, factory: Factory, on_event: Callable[[Any], None] | None) -> None:
        self.name = name
        self.host = ""
        self.restarts = 0
        self._factory, self._on_event = factory, on_event
        self._line = Line(name, nested=True)
        self._stop: CallStop | None = None
        self._home = _Home()
        self._dead = ""

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def alive(self) -> bool:
        return not self._dead

    def call(self, method: str, *args: Any, stop: StopSignal | None = None, timeout: float | None = None) -> Any:
        patience = Patience(stop, time_limit("timeout", timeout))
        with self._line.turn(patience):
            self._raise_if_dead()
            signal, before = CallStop(), self._stop
            self._stop = signal
            try:
                return self._execute(method, _settled(args), patience, signal)
            except Stopped as error:
                if error.origin is signal:
                    error.origin = stop
                raise
            finally:
                self._stop = before

    def _execute(self, method: str, args: Any, patience: Patience, signal: CallStop) -> Any:
        unlisten = listen(patience.stop, signal.set)
        try:
            return self._invoke(self._home, method, args, {} if patience.stop is None else {"stop": signal})
        finally:
            unlisten()

    def _invoke(self, home: _Home, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if home.role is None:
            if home.making:
                raise LzeroAsyncError(f"{self.name} is called by its own factory; its role is still being made.")
            home.making = True
            try:
                home.role = self._factory(self._emit)
            finally:
                home.making = False
        return _settled(getattr(home.role, method)(*args, **options))

    def _emit(self, event: Any) -> None:
        if self._on_event is not None:
            self._on_event(_settled(event))

    def wait_until_ready(self, stop: StopSignal | None = None) -> None:
        return

    def cancel(self, reason: str = "cancelled") -> None:
        if (signal := self._stop) is not None:
            signal.set(reason)

    def kill(self) -> None:
        self._dead = self._dead or "was ended"
        self.cancel("the worker was ended")
        self._home = _Home()

    def restart(self) -> None:
        self.kill()
        self.restarts += 1
        self._dead = ""

    def close(self, timeout: float = 5.0) -> None:
        patience = Patience(None, duration("timeout", timeout, zero=True))
        self._dead = self._dead or "is closed"  # first, so that no call that waits in line begins
        self.cancel("the worker was closed")
        reached = False
        try:
            with self._line.turn(patience):
                reached = True
                home, self._home = self._home, _Home()
                close = getattr(home.role, "close", None)
                if close is not None:
                    close()
        except GateTimeout:
            if reached:
                raise  # of the role; else a call goes on inside, and nothing can be closed safely

    def _raise_if_dead(self) -> None:
        if self._dead:
            raise WorkerDied(f"{self.name} {self._dead}.")


class _Home:
    """Where one role lives from its first call on. A kill or a restart gives the worker a new one, so that what is left of
    an old role never answers for the next."""

    role: Any = None
    making = False


def _settled(value: Any) -> Any:
    """The value, with a copy of every live parcel's content; parcels are looked for in tuples, lists, dictionaries and
    dataclasses."""
    if isinstance(value, Parcel):
        return value.settled(freeze)
    if isinstance(value, (tuple, list)):
        for part in value:
            _settled(part)
    elif isinstance(value, dict):
        for part in value.values():
            _settled(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _settled(getattr(value, field.name, None))
    return value


class InlineBackend:
    """Roles in the calling thread: the schedule of degree 0."""

    kind = "inline"

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def start(
        self,
        name: str,
        factory: Factory,
        *,
        on_event: Callable[[Any], None] | None = None,
        environment: Mapping[str, str] | None = None,
        output: str = "",
        pin_to_driver: bool = False,
    ) -> Worker:
        worker = self._make(name, factory, on_event)
        self._workers.append(worker)
        return worker

    def _make(self, name: str, factory: Factory, on_event: Callable[[Any], None] | None) -> Worker:
        return InlineWorker(name, factory, on_event)

    def close(self, timeout: float = 5.0) -> None:
        duration("timeout", timeout, zero=True)
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel("the worker was closed")
        close_all(workers, timeout)


class ThreadWorker(InlineWorker):
    """A role in a thread of its own. Nothing ends a thread from outside: a killed role's thread ends with its call."""

    def __init__(
        self, name: str, factory: Factory, on_event: Callable[[Any], None] | None, threads: ThreadGroup
    ) -> None:
        super().__init__(name, factory, on_event)
        self._threads = threads
        self._life: _Life | None = None

    def call(self, method: str, *args: Any, stop: StopSignal | None = None, timeout: float | None = None) -> Any:
        life = self._life
        if life is None or life.thread != threading.get_ident():
            return super().call(method, *args, stop=stop, timeout=timeout)
        # The role itself, or whoever it tells something: nobody else can serve it now.
        return InlineWorker._execute(self, method, args, Patience(stop, None), CallStop())

    def _execute(self, method: str, args: Any, patience: Patience, signal: CallStop) -> Any:
        if self._life is None:
            life = _Life()
            self._threads.start(self.name, lambda: self._serve(life))
            self._life = life
        life = self._life
        job = life.job = _Job(self._home, method, args, {} if patience.stop is None else {"stop": signal})
        life.jobs.put(job)
        if not patience.watch(job.done, signal.set):
            self._dead = f"did not answer {method} within {patience.timeout:g} s"
            self.kill()
        life.job = None
        if job.error is not None:
            raise job.error
        return job.result

    def _serve(self, life: _Life) -> None:
        life.thread = threading.get_ident()
        while (job := life.jobs.get()) is not None:
            try:
                job.result = self._invoke(job.home, job.method, job.args, job.options)
            except BaseException as error:
                job.error = error if isinstance(error, Exception) else unpack_error(pack_error(error), self.name, None)
            job.done.set()
            job = None

    def kill(self) -> None:
        super().kill()
        self._end_life()

    def close(self, timeout: float = 5.0) -> None:
        duration("timeout", timeout, zero=True)
        try:
            super().close(timeout)
        finally:
            self._end_life()

    def _end_life(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.jobs.put(None)
            if (job := life.job) is not None and not job.done.is_set():
                job.error = WorkerDied(f"{self.name} {self._dead}.")
                job.done.set()


class _Job:
    """One call on its way to a role's thread."""

    def __init__(self, home: _Home, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.home, self.method, self.args, self.options = home, method, args, options
        self.result: Any = None
        self.error: Exception | None = None
        self.done = Signal()


class _Life:
    """One thread of a worker, from start to end."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.job: _Job | None = None
        self.thread = 0


class ThreadBackend(InlineBackend):
    """Roles in threads of this process."""

    kind = "thread"

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadGroup(RealClock(), "lzero-role")

    def _make(self, name: str, factory: Factory, on_event: Callable[[Any], None] | None) -> Worker:
        return ThreadWorker(name, factory, on_event, self._threads)

    def close(self, timeout: float = 5.0) -> None:
        deadline = time.monotonic() + duration("timeout", timeout, zero=True)
        try:
            super().close(timeout)
        finally:
            self._threads.join(max(_MOMENT, deadline - time.monotonic()))
