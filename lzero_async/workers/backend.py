"""Where a role lives: in the calling thread, in a thread of its own, in a process of its own, or in an actor of a Ray cluster.

A role is any object; a factory makes it: a picklable callable that gets one argument, `emit`, with which the role can tell
its owner something while a call runs. The owner calls the role's methods through a `Worker`, one call at a time, and needs
not know where it lives.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from lzero_async.clock import RealClock
from lzero_async.core.weights import freeze
from lzero_async.errors import ConfigError, GateTimeout, LzeroAsyncError, Stopped, WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.validation import backoff, duration, one_of, time_limit, whole_number
from lzero_async.workers.calls import (
    OWN_ENDS,
    CallStop,
    Line,
    Patience,
    Signal,
    interrupted,
    listen,
    pack_error,
    stopped,
    unpack_error,
)
from lzero_async.workers.parcels import Parcel

Factory = Callable[[Callable[[Any], None]], Any]
log = logging.getLogger("lzero_async")
BACKENDS: Final = ("inline", "thread", "process", "ray")
_MOMENT: Final = 0.1  # seconds for threads that were told to end


class Worker(Protocol):
    """One role. Every method may be called from any thread; calls are served one after the other."""

    name: str

    @property
    def host(self) -> str:
        """The address of the machine that the role lives on; '' is this one."""

    @property
    def pid(self) -> int:
        """The process that the role lives in; 0 while that is not known, since Ray has found no place for it yet."""

    @property
    def alive(self) -> bool:
        """Whether it can be called."""

    @property
    def restarts(self) -> int:
        """How often it was restarted."""

    def call(self, method: str, *args: Any, stop: StopSignal | None = None, timeout: float | None = None) -> Any:
        """Call a method of the role and return its result, or raise what it raised, with its traceback.

        With `stop`, the method gets a keyword argument `stop` that is set when that one is, or by `cancel`; a call that has
        not reached the role by then, because another one runs or the role is still being made in a process of its own, raises
        Stopped. Raises WorkerDied when the worker dies under the call, or does not answer within `timeout` seconds from now
        (which ends it), and GateTimeout when another call runs for so long (which ends nothing).
        """

    def wait_until_ready(self, stop: StopSignal | None = None) -> None:
        """Wait until the role is made, as long as `stop` is not set; whoever calls it then need not wait for that. Returns
        as well if it could not be made, which the next call says. A role of this process is made by its first call."""

    def cancel(self, reason: str = "cancelled") -> None:
        """Set the stop signal of the call that runs, if any; the call ends when the role looks at it."""

    def kill(self) -> None:
        """End it at once; a call that runs raises WorkerDied."""

    def restart(self) -> None:
        """Make the role anew, whatever became of the last one; returns at once, and errors of the factory come with the
        next call."""

    def close(self, timeout: float = 5.0) -> None:
        """Let the role's `close` run if it has one, then end it; after `timeout` seconds at once. A role that is still being
        made, in a process of its own, is ended at once."""


class Backend(Protocol):
    """Starts workers of one kind."""

    kind: str

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
        """A worker with the role that `factory` makes; returns at once, and errors of the factory come with the first call.

        `on_event` gets what the role emits, in order, in any thread; it may call the worker. For a process,
        `environment` is added to its environment variables, and what it prints goes to the file `output` instead of the
        terminal. `pin_to_driver` keeps the role on this machine, because it writes files that belong here.
        """

    def close(self, timeout: float = 5.0) -> None:
        """Close every worker."""


def make_backend(
    kind: str,
    *,
    hang_timeout: float = 60.0,
    preload: Sequence[str] = (),
    ray_address: str = "",
    ray_resources: Mapping[str, Mapping[str, float]] | None = None,
) -> Backend:
    """The backend of that name; `hang_timeout` is the seconds without a sign of life after which a process counts as hung.

    For processes: the names of modules that roles import, `preload`. They are imported once, in the background, and roles are
    forked from there, restarts too; the first start waits for that. With a GPU, and for a role whose `environment` says more
    than numbers of threads, each process makes its own imports.
    For Ray: the address of a cluster ('': one of its own on this machine), and what a role needs of a machine, by the kind
    of role: {"collector": {"CPU": 1}}.
    """
    one_of("backend", kind, BACKENDS)
    duration("hang_timeout", hang_timeout)
    if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
        raise ConfigError(f"preload is {preload!r}; it must be a list of names of modules.")
    if kind == "process":
        if sys.platform != "linux":
            raise ConfigError(
                f"Processes need Linux, but this is {sys.platform}; use the backend 'thread' or a Linux machine."
            )
        from lzero_async.workers.process import ProcessBackend

        return ProcessBackend(hang_timeout=hang_timeout, preload=preload)
    if kind == "ray":
        from lzero_async.workers.ray.backend import RayBackend

        return RayBackend(hang_timeout=hang_timeout, address=ray_address, resources=ray_resources)
    return InlineBackend() if kind == "inline" else ThreadBackend()


def ask_again(
    worker: Worker,
    method: str,
    *args: Any,
    stop: StopSignal,
    max_restarts: int,
    restart_backoff: float,
    given_up: Callable[[], bool],
    on_restart: Callable[[Exception], None],
) -> Any:
    """Call a role that keeps nothing from call to call, an evaluator say: one that fails is made anew after a pause
    (`restart_backoff` seconds, doubling up to 30) and asked again, at most `max_restarts` times, unless the run was
    interrupted or `given_up()`. `on_restart(error)` is called after each restart."""
    whole_number("max_restarts", max_restarts, 0)
    duration("restart_backoff", restart_backoff)
    for attempt in range(max_restarts + 1):
        try:
            worker.wait_until_ready(_Interruption(stop))  # what is due at a run's own end waits for the role, too
            return worker.call(method, *args, stop=stop)
        except Exception as error:
            pause = backoff(restart_backoff, attempt)
            if isinstance(error, (Stopped, ConfigError)) or attempt == max_restarts:
                raise  # what cannot be used does not become usable
            # What is due at a run's own end is finished.
            if (stop.wait(pause) and interrupted(stop)) or given_up():
                raise stopped(stop) from error
            log.warning("the %s failed (%r); it is made anew after %.3g s and asked again", worker.name, error, pause)
            worker.restart()
            worker.wait_until_ready(_Interruption(stop))
            on_restart(error)
    raise AssertionError


class _Interruption:
    """The stop of a run, but not for an end of its own."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        if hasattr(stop, "listen"):
            self.listen = self._listen

    def is_set(self) -> bool:
        return interrupted(self._stop)

    def wait(self, seconds: float) -> bool:
        self._stop.wait(seconds)
        return self.is_set()

    def _listen(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return listen(self._stop, lambda reason: None if reason in OWN_ENDS else callback(reason))


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


def close_all(workers: list[Worker], timeout: float) -> None:
    """Close every worker, each whatever becomes of the others, in `timeout` seconds together; raise the first error, log
    the others."""
    deadline = time.monotonic() + timeout
    failed: Exception | None = None
    for worker in workers:
        try:
            worker.close(max(0.0, deadline - time.monotonic()))
        except Exception as error:
            if failed is not None:
                log.error("while closing after %r: %r", failed, error)
            failed = failed or error
    if failed is not None:
        raise failed
