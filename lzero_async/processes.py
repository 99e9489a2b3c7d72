"""Workers in processes of their own: spawned, watched, restarted, and gone with their parent."""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from lzero_async.backends import Factory, Worker, close_all
from lzero_async.calls import PackedError, Signal, listen, unpack_error
from lzero_async.clock import RealClock
from lzero_async.config import positive_number
from lzero_async.errors import LzeroAsyncError, WorkerDied
from lzero_async.lives import LivingWorker
from lzero_async.parcels import Parcel, RegionPool
from lzero_async.role_process import specification
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.wire import Message, Wire, WireClosed

log = logging.getLogger("lzero_async")
_ROOT: Final = str(Path(__file__).resolve().parent.parent)
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from lzero_async.worker import main; main(*map(int, sys.argv[2:]))"
)
_TAIL: Final = 400  # characters of a dead worker's last words


class ProcessBackend:
    """Starts roles in spawned processes. `hang_timeout`: seconds without a sign of life after which one is ended."""

    kind = "process"

    def __init__(self, *, hang_timeout: float = 60.0) -> None:
        self._hang_timeout = positive_number("hang_timeout", hang_timeout)
        _allow_descriptors()
        self._threads = ThreadGroup(RealClock(), "lzero-link")
        self._pool = RegionPool(reuse_when_gone=True)
        self._workers: list[LivingWorker[_Life]] = []

    def start(
        self,
        name: str,
        factory: Factory,
        *,
        on_event: Callable[[Any], None] | None = None,
        environment: Mapping[str, str] | None = None,
        output: str = "",
        here: bool = False,
    ) -> Worker:
        """See `Backend.start`."""
        spec = {**specification(name, factory), "heartbeat": self._hang_timeout / 6, "parent": os.getpid()}
        new_life = partial(_Life, name, spec, dict(environment or {}), output, self._hang_timeout, self._pool, on_event)
        worker = LivingWorker(name, new_life, self._threads)
        self._workers.append(worker)
        return worker

    def close(self, timeout: float = 5.0) -> None:
        """Close every worker, all at the same time."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.begin_close(for_good=True)
        try:
            close_all([*workers], timeout)
        finally:
            self._threads.join(timeout)
            self._pool.close()


class _Call:
    """One call under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.parcels: list[Parcel] = []
        self.reply: Message | None = None
        self.done = Signal()

    def keep_parcels(self) -> None:
        """Nobody will tell which parcels are still in use: let none of their memory be used again."""
        for parcel in self.parcels:
            parcel.keep()


class _Life:
    """One process of a worker, from its start to its end. `listen` runs in a thread of its own; that thread alone reads
    from the process and reaps it."""

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        environment: dict[str, str],
        output: str,
        hang_timeout: float,
        pool: RegionPool,
        on_event: Callable[[Any], None] | None,
    ) -> None:
        self.name, self.host = name, ""
        self.death: str | None = None
        self._close_error: PackedError | None = None
        self._hang_timeout, self._on_event, self._output = hang_timeout, on_event, output
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: _Call | None = None
        self._start = _Call(0)
        self.started = self._start.done
        self._ready = False
        self._given_back: deque[tuple[int, bool]] = deque()
        self._gone = threading.Event()
        self._listener = 0
        self._output_from = os.path.getsize(output) if output and os.path.exists(output) else 0
        ours, theirs = socket.socketpair()
        their_lifeline, self._lifeline = os.pipe()
        try:
            self.process = _spawn([theirs.fileno(), their_lifeline], environment, output)
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(their_lifeline)
        self._ended = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else -1
        self._wire = Wire(ours, pool)
        self._wire.limit(hang_timeout)
        self.tell("start", spec)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    # -- the calling side --------------------------------------------------------------------------------------------

    def wait_until_ready(self, stop: StopSignal | None) -> None:
        """Wait until the role is made; raise what its factory raised."""
        if not self._ready:
            self._start.done.wait()
            self._result(self._start, None)
            self._ready = True

    def call(self, method: str, args: tuple[Any, ...], stop: StopSignal | None, timeout: float | None) -> Any:
        """Send the call, wait for its reply, and return or raise what it holds."""
        call = _Call(next(self._numbers))
        with self._lock:
            self._running = call
        given_back = [self._given_back.popleft() for _ in range(len(self._given_back))]
        try:
            call.parcels = self._wire.send("call", call.number, (method, args, stop is not None, given_back))
        except WireClosed:
            self._gone.wait(self._hang_timeout)
        except BaseException:
            self._given_back.extend(given_back)
            raise
        if self.death is not None:
            call.done.set()
        unlisten: Callable[[], None] | None = None
        try:
            unlisten = listen(stop, self.cancel)
            if not call.done.wait(timeout):
                self.end(f"did not answer {method} within {timeout:g} s")
                call.done.wait()
            return self._result(call, stop)
        except (KeyboardInterrupt, SystemExit):  # the call goes on, and with it its use of what it was given
            self.tell("stop", "SIGINT", call.number)
            call.keep_parcels()
            raise
        finally:
            if unlisten is not None:
                unlisten()
            with self._lock:
                self._running = None

    def _result(self, call: _Call, stop: StopSignal | None) -> Any:
        reply, call.reply = call.reply, None
        if reply is None:
            self._gone.wait(self._hang_timeout)
            raise WorkerDied(f"{self.name} {self.death}.")
        try:
            fine, value, kept = reply.value()
        except BaseException:
            call.keep_parcels()
            raise
        for place in kept:
            call.parcels[place].keep()
        if not fine:
            raise unpack_error(value, self.name, stop)
        return value

    def cancel(self, reason: str) -> None:
        """Set the stop signal of the call that runs."""
        with self._lock:
            number = None if self._running is None else self._running.number
        if number is not None:
            self.tell("stop", reason, number)

    def tell(self, kind: str, value: Any = None, number: int = 0) -> None:
        """Send a message that nobody answers; when nobody is there, the listening thread finds out."""
        try:
            self._wire.send(kind, number, value)
        except WireClosed:
            return

    def end(self, why: str) -> None:
        """Kill the process, if it has not ended, for this reason."""
        with self._lock:
            self.death = self.death or why
        _kill(self.process)
        if threading.get_ident() != self._listener:  # whoever is told of an event may kill
            self._gone.wait()

    def begin_close(self) -> None:
        """Ask the role to close after the call that runs, which is asked to end."""
        self.cancel("the worker was closed")
        self.tell("close")

    def finish_close(self, timeout: float) -> PackedError | None:
        """Wait for the process to end by itself, at most so long, and end it; return what closing raised, once."""
        self._gone.wait(timeout)
        self.end("is closed")
        error, self._close_error = self._close_error, None
        return error

    # -- the listening side --------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take what the process says until it ends; then reap it and release whoever waits for it."""
        self._listener = threading.get_ident()
        try:
            why = self._listen()
        except WireClosed:
            why = None
        except Exception as error:
            why = f"said what cannot be understood ({error!r})"
            log.exception("%s", why)
        if why is not None:
            _kill(self.process)
        code = self._reap()
        with self._lock:
            self.death = self.death or why or _how_it_ended(code)
            if code not in (0, -signal.SIGKILL) and (said := _last_words(self._output, self._output_from)):
                self.death += f"; its last words: {said}"
            running = self._running
        self._wire.close()
        os.close(self._lifeline)
        if self._ended >= 0:
            os.close(self._ended)
        self._gone.set()
        for call in (self._start, running):
            if call is not None:
                call.done.set()

    def _listen(self) -> str | None:
        silent = 0
        while True:
            if self._wire.wait_for_message(self._hang_timeout / 2, self._ended):
                silent = 0
                self._take(self._wire.receive())
            elif self._has_ended(0.0):  # something that it forked keeps its end of the connection open
                return None
            else:
                silent += 1
                if silent == 2:  # twice: after this process itself was stopped, the first time says nothing
                    return f"hung: it gave no sign of life for {self._hang_timeout:g} s"

    def _take(self, message: Message) -> None:
        for parcel in message.parcels:
            parcel.when_gone(self._given_back.append)
        if message.kind == "reply":
            if message.number < 0:
                fine, error, _ = message.value()
                self._close_error = None if fine else error
                return
            with self._lock:
                call = self._start if message.number == 0 else self._running
            if call is not None and call.number == message.number:
                call.reply = message
                call.done.set()
        elif message.kind == "log":
            name, level, text = message.value()
            logging.getLogger(name).log(level, "%s: %s", self.name, text)
        elif message.kind == "event" and self._on_event is not None:
            try:
                self._on_event(message.value())
            except Exception:
                log.exception("what %s told could not be taken in", self.name)

    def _has_ended(self, seconds: float) -> bool:
        """Whether the process ends within this time; it is not reaped."""
        if self._ended < 0:
            return False
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _reap(self) -> int:
        if self._ended >= 0:
            self._has_ended(self._hang_timeout)
            _kill(self.process)  # before it is reaped its number is its own, so this ends what it started and left
            return self.process.wait()
        try:
            return self.process.wait(timeout=self._hang_timeout)
        except subprocess.TimeoutExpired:
            _kill(self.process)
            return self.process.wait()


def _spawn(descriptors: list[int], environment: dict[str, str], output: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _PROGRAM, _ROOT, *map(str, descriptors)]
    file = open(output, "ab") if output else None  # noqa: SIM115
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            pass_fds=descriptors,
            env={**os.environ, **environment},
            start_new_session=True,  # not in the terminal's group: Ctrl+C is for the parent
        )
    except OSError as error:
        raise LzeroAsyncError(f"A worker process cannot be started ({error.strerror}).") from error
    finally:
        if file is not None:
            file.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started in its session."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has ended; its number may be somebody else's by now
            return


def _allow_descriptors() -> None:
    """As many open files as the system lets us have: every parcel that waits is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # most of the real-time signals have no name
        return f"was ended by signal {-code}"


def _last_words(output: str, start: int) -> str:
    """The end of what a process wrote into a file that it began at `start`."""
    if not output:
        return ""
    try:
        with open(output, "rb") as file:
            file.seek(max(start, os.path.getsize(output) - _TAIL))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
