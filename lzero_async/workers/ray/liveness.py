"""Whether other machines are there. One that loses its power or its network says nothing: a connection to it stays open, on
which the kernel asks for signs of life, so it is missed within seconds, and nobody has to ask again and again."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from lzero_async.clock import RealClock
from lzero_async.threads import ThreadGroup

log = logging.getLogger("lzero_async")
QUIET: Final = 2  # seconds after which the kernel asks
PAUSE: Final = 1  # seconds between two questions
QUESTIONS: Final = 3  # without an answer: then the connection is given up
PATIENCE: Final = 2.0  # seconds for a new connection; if there is none by then, the machine is gone
AGAIN: Final = 0.2  # seconds between two tries of one that fails at once
REST: Final = 2.0  # seconds between two connections, if they end one at once


class Machines:
    """Attends to machines, a thread each, which sleeps until something happens."""

    def __init__(self) -> None:
        self._threads = ThreadGroup(RealClock(), "lzero-machines")
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, int], dict[object, Callable[[], None]]] = {}
        self._connections: dict[tuple[str, int], socket.socket] = {}
        self._closed = threading.Event()

    def attend(self, host: str, port: int, tell: Callable[[], None]) -> Callable[[], None]:
        """Have `tell()` called once, in another thread, when nobody answers at that port any more. It must not take long.
        A port that cannot be reached in the first place is warned of, and not attended to. Returns what ends that."""
        place, key = (host, port), object()
        with self._lock:
            if self._closed.is_set():
                return lambda: None
            begin = place not in self._listeners
            self._listeners.setdefault(place, {})[key] = tell
        if begin:
            self._threads.start(f"{host}:{port}", lambda: self._attend(place))

        def leave() -> None:
            with self._lock:
                self._listeners.get(place, {}).pop(key, None)

        return leave

    def close(self, timeout: float = 5.0) -> None:
        """End all connections; nobody is told anything any more."""
        with self._lock:
            self._closed.set()
            for connection in self._connections.values():
                with contextlib.suppress(OSError):  # it has ended already
                    connection.shutdown(socket.SHUT_RDWR)  # which wakes whoever reads from it
        self._threads.join(timeout)

    def _attend(self, place: tuple[str, int]) -> None:
        reached = False
        try:
            while not self._closed.is_set():
                connection, began = self._connect(place), time.monotonic()
                reached = True
                self._read(connection, place)
                # It was silent, or they ended it, perhaps because nothing is said here: one who is there takes another one.
                if time.monotonic() - began < REST:
                    self._closed.wait(REST)
        except OSError as error:
            self._gone(place, reached, error)

    def _gone(self, place: tuple[str, int], reached: bool, error: OSError) -> None:
        with self._lock:
            listeners = list(self._listeners.pop(place, {}).values())
            if self._closed.is_set():
                return
        if not reached:
            log.warning(
                "%s:%d cannot be reached (%s), so it would be missed late if that machine vanished", *place, error
            )
            return
        for tell in listeners:
            try:
                tell()
            except Exception:
                log.exception("somebody could not be told that %s:%d is gone", *place)

    def _connect(self, place: tuple[str, int]) -> socket.socket:
        """A connection on which the kernel asks. Raises OSError if nobody is there."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return _ask(socket.create_connection(place, timeout=max(AGAIN, deadline - time.monotonic())))
            except ConnectionRefusedError:
                raise
            except OSError:
                if self._closed.wait(AGAIN) or time.monotonic() >= deadline:
                    raise

    def _read(self, connection: socket.socket, place: tuple[str, int]) -> None:
        """Wait until the connection ends, in whatever way."""
        with connection:
            with self._lock:
                if self._closed.is_set():
                    return
                self._connections[place] = connection
            with contextlib.suppress(OSError):
                while connection.recv(4096):
                    pass  # whatever is said: that somebody is there is enough
            with self._lock:
                del self._connections[place]


def _ask(connection: socket.socket) -> socket.socket:
    """Have the kernel ask for signs of life on a connection, which nobody needs to wait for with a time of their own."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", QUIET), ("TCP_KEEPINTVL", PAUSE), ("TCP_KEEPCNT", QUESTIONS)):
        if hasattr(socket, name):  # elsewhere than on Linux some are the system's own
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
