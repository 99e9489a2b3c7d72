"""The program of a worker process: it builds one role and serves its calls until its parent closes it or is gone.

The main thread runs the role; the link thread reads what the parent says and gives a sign of life now and then. When the
parent is gone the process ends at once, whatever the role is doing: the kernel ends it when the parent's end of the
lifeline closes, and where it cannot, or a child of the parent keeps that end open, the link thread does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import queue
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from lzero_async.clock import RealClock
from lzero_async.threads import ThreadGroup
from lzero_async.workers._bootstrap import Stops, build_role, send_logs
from lzero_async.workers._channel import Message, Wire, WireClosed
from lzero_async.workers.calls import pack_error
from lzero_async.workers.regions import RegionPool
from lzero_async.workers.step_watch import EXIT_STUCK, leave_by


def main(descriptor: int, lifeline: int) -> None:
    """Serve the parent on the other end of the socket `descriptor`; it never writes to the pipe `lifeline`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these are for the parent, which then ends its workers in order
        signal.signal(number, _pass_over)
    die_with(lifeline)
    faulthandler.enable()
    pool = RegionPool()
    wire = Wire(socket.socket(fileno=descriptor), pool)
    start = wire.receive()
    spec = start.value()
    sys.path[:] = spec["sys_path"]
    link = _Link(wire, spec["heartbeat"], spec["parent"])
    ThreadGroup(RealClock(), "lzero-worker").start("link", link.serve)
    send_logs(link.log, spec["log_levels"])
    leave_by(link.leave)
    role = _answer(wire, start, lambda: build_role(spec, link.emit))
    if role is not None:
        _serve(role, link, wire, pool)
    # Not sys.exit: threads and finalizers of the role's libraries may hang, and everything worth keeping was closed.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if role is not None else 1)


def die_with(lifeline: int) -> None:
    """Let the kernel kill this process and what it started when the pipe's other end closes: a thread could not, while
    the role is in a C function that holds the interpreter's lock."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _pass_over(number: int, frame: Any) -> None:
    """Not SIG_IGN, which the programs that a role starts would inherit."""


def _serve(role: Any, link: _Link, wire: Wire, pool: RegionPool) -> None:
    while (message := link.calls.get()) is not None:
        pool.tidy()
        _answer(wire, message, lambda message=message: _call(role, link, message))
        link.stops.finished(message.number)
        message = None
    close = getattr(role, "close", None)
    if close is not None:
        _answer(wire, None, close)


def _call(role: Any, link: _Link, message: Message) -> Any:
    method, args, with_stop = message.value()
    options = {"stop": link.stops.of(message.number)} if with_stop else {}
    return getattr(role, method)(*args, **options)


def _answer(wire: Wire, message: Message | None, work: Any) -> Any:
    """Do the work and send what it returned or raised. The first answer, to the start, sends nothing but the fact."""
    number = -1 if message is None else message.number
    result, failure = None, None
    try:
        result = work()
    except BaseException as error:
        failure = pack_error(error)
    if message is not None:
        message.close()  # before the reply, so that whoever gets that finds the memory free
    if number > 0 and failure is None:
        try:
            wire.send("reply", number, (True, result))
            return result
        except WireClosed:
            raise
        except Exception as error:  # a result that cannot be pickled
            failure = pack_error(error)
    with contextlib.suppress(WireClosed):
        wire.send("reply", number, (failure is None, failure))
    return result


class _Link:
    """What the parent says: calls in a queue for the main thread, stops of calls at once."""

    def __init__(self, wire: Wire, heartbeat: float, parent: int) -> None:
        self.calls: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._wire = wire
        self._heartbeat = heartbeat
        self._parent = parent
        self.stops = Stops()

    def emit(self, event: Any) -> None:
        """Tell the parent something while a call runs."""
        self._wire.send("event", 0, event)

    def log(self, record: tuple[str, int, str]) -> None:
        """Let the parent's handlers have what was logged; when nobody is there, nobody reads it."""
        with contextlib.suppress(WireClosed):
            self._wire.send("log", 0, record)

    def leave(self, sentence: str) -> NoReturn:
        """A watched call hangs: tell the parent, and end this process."""
        with contextlib.suppress(WireClosed):
            self._wire.send("stuck", 0, sentence)
        os._exit(EXIT_STUCK)

    def serve(self) -> None:
        """The link thread."""
        try:
            due = time.monotonic() + self._heartbeat
            while True:
                if not self._wire.wait_for_message(due - time.monotonic()):
                    if os.getppid() != self._parent:
                        raise WireClosed("the parent is gone, though something that it forked keeps its end open")
                    self._wire.send("beat", 0)
                    due = time.monotonic() + self._heartbeat
                    continue
                message = self._wire.receive()
                if message.kind == "call":
                    self.calls.put(message)
                elif message.kind == "stop":
                    self.stops.of(message.number).set(message.value())
                elif message.kind == "close":
                    self.calls.put(None)
        except BaseException:
            # The parent is gone, or the connection is in disorder: nobody can use this process, so it ends now.
            os.killpg(os.getpgid(0), signal.SIGKILL)
