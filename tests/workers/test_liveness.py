"""Machines that are attended to, as sockets of this one; tests/workers/test_ray_hosts.py pulls a cable."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lzero_async.workers.ray import liveness as machines
from lzero_async.workers.ray.liveness import Machines

SOON = 30.0  # seconds; only a test that fails waits so long


class Somebody:
    """Who listens at a port, as another machine would."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(SOON)
        self.place: tuple[str, int] = self.server.getsockname()

    def accept(self) -> socket.socket:
        return self.server.accept()[0]

    def leave(self) -> None:
        self.server.close()


class Told:
    """Who was told, and waiting for that."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._count = threading.Semaphore(0)

    def by(self, name: str = "") -> Any:
        def tell() -> None:
            self.names.append(name)
            self._count.release()

        return tell

    def wait(self, count: int = 1) -> bool:
        return all(self._count.acquire(timeout=SOON) for _ in range(count))


@pytest.fixture
def somebody() -> Iterator[Somebody]:
    somebody = Somebody()
    yield somebody
    somebody.leave()


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setattr(machines, "REST", 0.0)
    monkeypatch.setattr(machines, "AGAIN", 0.01)
    attended = Machines()
    yield attended
    attended.close()
    assert attended._threads.alive() == [] == attended._threads.failures


@pytest.fixture
def told() -> Told:
    return Told()


def test_everybody_is_told_once_that_nobody_is_there(
    attended: Machines,
    somebody: Somebody,
    told: Told,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "PATIENCE", 1000.0)  # which one who refuses does not need
    attended.attend(*somebody.place, told.by("first"))
    attended.attend(*somebody.place, lambda: 1 // 0)
    leave = attended.attend(*somebody.place, told.by("left"))
    attended.attend(*somebody.place, told.by("last"))
    leave()
    connection = somebody.accept()
    assert told.names == []
    somebody.leave()
    connection.close()
    assert told.wait(2)
    attended.close()
    assert told.names == ["first", "last"] and "ZeroDivisionError" in caplog.text


def test_a_connection_that_they_end_is_made_again(attended: Machines, somebody: Somebody, told: Told) -> None:
    attended.attend(*somebody.place, told.by())
    for _ in range(3):
        with somebody.accept() as connection:
            connection.sendall(b"what nobody asked for")
    with somebody.accept():
        attended.close()
    assert told.names == []


def test_the_end_wakes_who_waits_for_an_answer(
    attended: Machines, somebody: Somebody, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.Event()

    class Connection(socket.socket):
        def recv(self, *args: Any) -> bytes:
            reading.set()
            return super().recv(*args)

    def watched(connection: socket.socket) -> socket.socket:
        connection.settimeout(None)
        return Connection(fileno=connection.detach())

    monkeypatch.setattr(machines, "_ask", watched)
    attended.attend(*somebody.place, lambda: None)
    with somebody.accept():
        assert reading.wait(SOON)
        attended.close()
        assert attended._threads.alive() == []  # though they end nothing


def test_nobody_is_told_after_the_end(
    attended: Machines, somebody: Somebody, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    trying, fail = threading.Event(), threading.Event()
    attended.attend(*somebody.place, told.by())
    connection = somebody.accept()

    def slowly(*args: Any, **options: Any) -> socket.socket:
        trying.set()
        fail.wait(SOON)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", slowly)
    connection.close()
    assert trying.wait(SOON)
    attended.close(timeout=0.0)
    fail.set()
    attended._threads.join(SOON)
    assert told.names == []


def test_one_who_was_gone_is_attended_to_again(attended: Machines, somebody: Somebody, told: Told) -> None:
    attended.attend(*somebody.place, told.by("gone"))
    connection = somebody.accept()
    somebody.leave()
    connection.close()
    assert told.wait()
    back = socket.create_server(somebody.place)
    attended.attend(*somebody.place, told.by("again"))
    connection = back.accept()[0]
    back.close()
    connection.close()
    assert told.wait()
    assert told.names == ["gone", "again"]


def test_silence_is_believed_only_if_no_new_connection_is_made(
    attended: Machines, somebody: Somebody, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the kernel says after questions without an answer, only sooner.
    monkeypatch.setattr(machines, "_ask", lambda connection: (connection.settimeout(0.05), connection)[1])
    attended.attend(*somebody.place, told.by())
    connections = [somebody.accept() for _ in range(3)]
    assert told.names == []
    somebody.leave()
    assert told.wait()
    for connection in connections:
        connection.close()


def test_a_way_that_is_closed_for_a_moment_is_tried_again(
    attended: Machines, somebody: Somebody, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(
        [None, OSError(errno.EHOSTUNREACH, "no way"), TimeoutError(), OSError(errno.ENETUNREACH, "no way"), None]
    )
    connect = socket.create_connection

    def now_and_then(*args: Any, **options: Any) -> socket.socket:
        if (error := next(tries)) is not None:
            raise error
        return connect(*args, **options)

    monkeypatch.setattr(socket, "create_connection", now_and_then)
    attended.attend(*somebody.place, told.by())
    somebody.accept().close()
    with somebody.accept():
        attended.close()
    assert told.names == []


def test_a_port_that_never_answered_is_warned_of_and_left_alone(
    attended: Machines, somebody: Somebody, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    somebody.leave()
    attended.attend(*somebody.place, told.by())
    attended._threads.join(SOON)
    assert told.names == []
    assert f"127.0.0.1:{somebody.place[1]} cannot be reached" in caplog.text


def test_the_kernel_asks_within_seconds_and_nobody_else_does() -> None:
    with socket.socket() as connection:
        connection.settimeout(1.0)
        machines._ask(connection)
        assert connection.gettimeout() is None
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        quiet, pause, questions = (connection.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        assert quiet + pause * questions + machines.PATIENCE <= 10


def test_after_its_end_nobody_is_attended_to(somebody: Somebody, told: Told) -> None:
    attended = Machines()
    attended.close()
    attended.attend(*somebody.place, told.by())()
    assert attended._threads.alive() == [] and attended._listeners == {}
    somebody.server.setblocking(False)
    with pytest.raises(BlockingIOError):
        somebody.accept()
