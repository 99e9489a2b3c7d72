"""Whether other machines are there. One that loses its power or its network says nothing: a connection to it stays open, on
which the kernel asks for signs of life, so it is missed within seconds, and nobody has to ask again and again."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from lzero_async.clock import RealClock
from lzero_async.threads import ThreadGroup

QUIET: Final = 2  # seconds after which the kernel asks
PAUSE: Final = 1  # seconds between two questions
QUESTIONS: Final = 4  # without an answer: then the machine is gone
PATIENCE: Final = 2.0  # seconds for a connection
TRIES: Final = 3  # of a connection that is not answered
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
        """Have `tell()` called once, in another thread, when nobody answers at that port any more; somebody has to listen
        there. Returns what ends that."""
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
            self._listeners.clear()
            for connection in self._connections.values():
                with contextlib.suppress(OSError):  # it has ended already
                    connection.shutdown(socket.SHUT_RDWR)  # which wakes whoever reads from it
        self._threads.join(timeout)

    def _attend(self, place: tuple[str, int]) -> None:
        try:
            while not self._closed.is_set():
                began = time.monotonic()
                self._read(self._connect(place), place)
                # They ended it, perhaps only because nothing is said here: one who is there takes another one.
                if time.monotonic() - began < REST:
                    self._closed.wait(REST)
        except OSError:
            with self._lock:
                listeners = list(self._listeners.pop(place, {}).values())
            for tell in listeners:
                tell()

    def _connect(self, place: tuple[str, int]) -> socket.socket:
        """A connection on which the kernel asks. Raises OSError if nobody is there."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(TimeoutError):
                return _ask(socket.create_connection(place, timeout=PATIENCE))
            if self._closed.is_set():
                break
        return _ask(socket.create_connection(place, timeout=PATIENCE))

    def _read(self, connection: socket.socket, place: tuple[str, int]) -> None:
        """Wait until the connection ends. Raises OSError if nobody answers on it."""
        with connection:
            with self._lock:
                if self._closed.is_set():
                    return
                self._connections[place] = connection
            try:
                while connection.recv(4096):
                    pass  # whatever is said: that somebody is there is enough
            except ConnectionError:
                pass  # as if they had ended it in order
            finally:
                with self._lock:
                    self._connections.pop(place, None)


def _ask(connection: socket.socket) -> socket.socket:
    """Have the kernel ask for signs of life on a connection, which nobody needs to wait for with a time of their own."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", QUIET), ("TCP_KEEPINTVL", PAUSE), ("TCP_KEEPCNT", QUESTIONS)):
        if hasattr(socket, name):  # elsewhere than on Linux some are the system's own
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
