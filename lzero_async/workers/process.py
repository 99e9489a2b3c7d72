"""Workers in processes of their own: spawned, watched, restarted, and gone with their parent."""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.errors import LzeroAsyncError, WorkerDied, WorkerStuck, out_of_files, tell_refusal
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.validation import duration
from lzero_async.workers._bootstrap import specification
from lzero_async.workers._channel import Message, Wire, WireClosed, WireStalled
from lzero_async.workers.backend import Factory, Worker, close_all
from lzero_async.workers.calls import PackedError, Patience, Signal, unpack_error
from lzero_async.workers.launching import allow_descriptors, how_it_ended, kill, last_words, launch, remedy
from lzero_async.workers.regions import RegionPool
from lzero_async.workers.supervision import Deliveries, LivingWorker
from lzero_async.workers.template import Process, acquire, gpu_in_reach, release

log = logging.getLogger("lzero_async")
_GRACE: Final = 10.0  # seconds for a process to end after its connection
_BEGIN: Final = 30.0  # seconds for a new process to give its first sign of life
_MOMENT: Final = 0.1  # seconds for threads that were told to end
_LOOK: Final = 0.1  # seconds between two looks at a process that tells more than is taken in


class ProcessBackend:
    """Starts roles in processes. `hang_timeout`: seconds without a sign of life after which one is ended. They are forked from
    one that has imported the modules of `preload`; without these, and where that cannot be done, each is spawned."""

    kind = "process"

    def __init__(self, *, hang_timeout: float = 60.0, preload: Sequence[str] = ()) -> None:
        self._hang_timeout = duration("hang_timeout", hang_timeout)
        allow_descriptors()
        self._template = acquire(["lzero_async.workers._child", *preload]) if preload and not gpu_in_reach() else None
        self._threads = ThreadGroup(RealClock(), "lzero-link")
        self._pool = RegionPool()
        self._workers: list[LivingWorker[_Life]] = []

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
        """See `Backend.start`."""
        spec = {**specification(name, factory), "heartbeat": self._hang_timeout / 6, "parent": os.getpid()}
        launched = partial(launch, self._template, dict(environment or {}), output)
        new_life = partial(_Life, name, spec, launched, output, self._hang_timeout, self._pool, on_event)
        worker = LivingWorker(name, new_life, self._threads)
        self._workers.append(worker)
        return worker

    def close(self, timeout: float = 5.0) -> None:
        """Close every worker, all at the same time."""
        deadline = time.monotonic() + duration("timeout", timeout, zero=True)
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.begin_close(for_good=True)
        try:
            close_all([*workers], timeout)
        finally:
            if self._template is not None:
                release(self._template)
                self._template = None
            self._threads.join(max(_MOMENT, deadline - time.monotonic()))
            self._pool.close()


class _Call:
    """One call under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reply: Message | None = None
        self.done = Signal()


class _Life:
    """One process of a worker, from its start to its end. `listen` runs in a thread of its own; that thread alone reads
    from the process and reaps it."""

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        launch: Callable[[list[int]], Process],
        output: str,
        hang_timeout: float,
        pool: RegionPool,
        on_event: Callable[[Any], None] | None,
        deliveries: Deliveries,
    ) -> None:
        self.name, self.host = name, ""
        self._deliveries = deliveries
        self.death: str | None = None
        self._close_error: PackedError | None = None
        self._hang_timeout, self._on_event, self._output = hang_timeout, on_event, output
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: _Call | None = None
        self._start = _Call(0)
        self.placed = self.started = self._start.done
        self._ready = False
        self._gone = threading.Event()
        self._stuck = ""
        self._output_from = os.path.getsize(output) if output and os.path.exists(output) else 0
        with ExitStack() as opened:
            self._open(opened, launch, hang_timeout, pool)
            self.tell("start", spec)
            opened.pop_all()

    def _open(
        self, opened: ExitStack, launch: Callable[[list[int]], Process], hang_timeout: float, pool: RegionPool
    ) -> None:
        """Start the process; `opened` gets what is to be undone if that fails."""
        try:
            with ExitStack() as theirs:
                ours, their_end = socket.socketpair()
                opened.callback(ours.close)
                theirs.callback(their_end.close)
                their_lifeline, self._lifeline = os.pipe()
                opened.callback(os.close, self._lifeline)
                theirs.callback(os.close, their_lifeline)
                self.process = launch([their_end.fileno(), their_lifeline])
            opened.callback(self.process.wait)
            opened.callback(kill, self.process)  # the last one is undone first
            self._ended = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else -1
        except OSError as error:
            if error.filename == self._output and not out_of_files(error):
                raise  # about the folder that it is to write into
            tell_refusal(error)
            raise LzeroAsyncError(f"{self.name} cannot be started: {remedy(error)}") from error
        self._wire = Wire(ours, pool)
        self._wire.limit(hang_timeout)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    # -- the calling side --------------------------------------------------------------------------------------------

    def wait_until_ready(self, patience: Patience) -> bool:
        """Wait until the role is made; raise what its factory raised. Returns False when the time is over."""
        if not self._ready:
            if not patience.wait_for(self._start.done):
                return False
            self._result(self._start, None)
            self._ready = True
        return True

    def call(self, method: str, args: tuple[Any, ...], patience: Patience) -> Any:
        """Send the call, wait for its reply, and return or raise what it holds."""
        stop = patience.stop
        call = _Call(next(self._numbers))
        with self._lock:
            self._running = call
        try:
            self._wire.send("call", call.number, (method, args, stop is not None), patience.left())
        except WireClosed as error:
            if not self._gone.wait(patience.left(self._hang_timeout)):  # half of the message may be there
                self.end(f"did not take the call of {method} ({error})")
        if self.death is not None:
            call.done.set()
        try:
            if not patience.watch(call.done, self.cancel):
                self.end(f"did not answer {method} within {patience.timeout:g} s")
            self._deliveries.settle(patience.left(self._hang_timeout), stop)  # what was told before the reply
            return self._result(call, stop)
        except BaseException as error:
            if not call.done.is_set():  # a signal's exception: nobody waits for the call any more, but it goes on
                self.tell("stop", "SIGINT" if isinstance(error, KeyboardInterrupt) else repr(error), call.number)
            raise
        finally:
            with self._lock:
                self._running = None

    def _result(self, call: _Call, stop: StopSignal | None) -> Any:
        reply, call.reply = call.reply, None
        if reply is None:
            self._gone.wait(self._hang_timeout)
            raise (WorkerStuck if self._stuck else WorkerDied)(f"{self.name} {self.death}.")
        fine, value = reply.value()
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
        kill(self.process)
        self._gone.wait(self._hang_timeout)  # not for ever: a process that waits for a dead disk cannot be ended

    def abandon(self) -> None:
        """End it without anybody who listens."""
        self._release("was ended: nobody could listen to it")

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
        why: str | None = "was ended: the thread that listens to it ended"
        try:
            why = self._listen()
        except WireStalled:
            why = f"hung: it stopped in the middle of a message for {self._hang_timeout:g} s"
        except WireClosed as error:
            why = None if self._ends_by_itself() else f"was ended: its connection broke ({error})"
        except BaseException as error:  # whatever it is: it is what the callers are told
            why = f"was ended: it could not be listened to ({error!r})"
            log.exception("%s %s", self.name, why)
        finally:
            self._release(why)

    def _release(self, why: str | None) -> None:
        """Reap the process, which is killed for this reason if there is one, and release whoever waits for it."""
        try:
            if why is not None:
                with self._lock:
                    self.death = self.death or why
                kill(self.process)
            code = self._reap()
            with self._lock:
                self.death = self.death or self._stuck or how_it_ended(code)
                silent = bool(self._stuck) or code in (0, -signal.SIGKILL)
                if not silent and (said := last_words(self._output, self._output_from)):
                    self.death += f"; its last words: {said}"
        finally:
            with self._lock:
                self.death = self.death or "was ended"
                running = self._running
            self._deliveries.rest()
            self._wire.close()
            os.close(self._lifeline)
            if self._ended >= 0:
                os.close(self._ended)
            self._gone.set()
            for call in (self._start, running):
                if call is not None:
                    call.done.set()

    def _listen(self) -> str | None:
        silent, limit = 0, max(_BEGIN, self._hang_timeout)  # until it has begun; on a busy machine that takes seconds
        while True:
            if self._deliveries.full:  # not silent: nothing is read until somebody takes in what was told
                silent = 0
                self._deliveries.wait_for_room(_LOOK)
                if self._has_ended(0.0) or self.death is not None:
                    return None
            elif self._wire.wait_for_message(limit / 2, self._ended):
                silent, limit = 0, self._hang_timeout
                self._take(self._wire.receive())
            elif self._has_ended(0.0):  # something that it forked keeps its end of the connection open
                return None
            else:
                silent += 1
                if silent == 2:  # twice: after this process itself was stopped, the first time says nothing
                    return f"hung: it gave no sign of life for {limit:g} s"

    def _take(self, message: Message) -> None:
        if message.kind == "reply":
            if message.number < 0:
                fine, error = message.value()
                self._close_error = None if fine else error
                return
            with self._lock:
                call = self._start if message.number == 0 else self._running
            if call is not None and call.number == message.number:
                call.reply = message
                call.done.set()
        elif message.kind == "log":
            self._deliveries.put(lambda: self._log(*message.value()))
        elif message.kind == "stuck":
            self._stuck = f"was ended: {message.value()}"
        elif message.kind == "event" and self._on_event is not None:
            on_event = self._on_event
            self._deliveries.put(lambda: on_event(message.value()))

    def _log(self, name: str, level: int, text: str) -> None:
        logging.getLogger(name).log(level, "%s: %s", self.name, text)

    def _has_ended(self, seconds: float) -> bool:
        """Whether the process ends within this time; it is not reaped."""
        if self._ended < 0:
            return False
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _ends_by_itself(self) -> bool:
        """Whether the process, whose connection is gone, ends soon."""
        if self._ended >= 0:
            return self._has_ended(min(_GRACE, self._hang_timeout))
        try:
            self.process.wait(timeout=min(_GRACE, self._hang_timeout))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _reap(self) -> int:
        """Before it is reaped its number is its own, so this ends what it started and left, too."""
        if self._ended >= 0 and not self._has_ended(self._hang_timeout):
            raise TimeoutError(f"{self.pid} cannot be ended")
        kill(self.process)
        return self.process.wait()
