"""Machines that are attended to, as sockets of this one; tests/test_ray_hosts.py pulls a cable."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from lzero_async import machines
from lzero_async.machines import Machines

SOON = 30.0  # seconds; only a test that fails waits so long


class Somebody:
    """Who listens at a port, as another machine would."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(SOON)
        self.place: tuple[str, int] = self._server.getsockname()

    def accept(self) -> socket.socket:
        return self._server.accept()[0]

    def leave(self) -> None:
        self._server.close()


@pytest.fixture
def somebody() -> Iterator[Somebody]:
    somebody = Somebody()
    yield somebody
    somebody.leave()


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setattr(machines, "REST", 0.0)
    attended = Machines()
    yield attended
    attended.close()


def test_everybody_is_told_once_that_nobody_is_there(attended: Machines, somebody: Somebody) -> None:
    told, all_told = [], threading.Semaphore(0)

    def tell(name: str) -> None:
        told.append(name)
        all_told.release()

    attended.attend(*somebody.place, lambda: tell("first"))
    leave = attended.attend(*somebody.place, lambda: tell("left"))
    attended.attend(*somebody.place, lambda: tell("second"))
    leave()
    connection = somebody.accept()
    assert told == []
    somebody.leave()
    connection.close()
    assert all_told.acquire(timeout=SOON) and all_told.acquire(timeout=SOON)
    attended.close()
    assert sorted(told) == ["first", "second"]


def test_a_connection_that_they_end_is_made_again(attended: Machines, somebody: Somebody) -> None:
    gone = threading.Event()
    attended.attend(*somebody.place, gone.set)
    for _ in range(3):
        with somebody.accept() as connection:
            connection.sendall(b"what nobody asked for")
    with somebody.accept():
        assert not gone.is_set()
        attended.close()
    assert not gone.is_set()


def test_one_who_was_gone_is_attended_to_again(attended: Machines, somebody: Somebody) -> None:
    gone, again = threading.Event(), threading.Event()
    nobody = Somebody()
    nobody.leave()
    attended.attend(*nobody.place, gone.set)
    assert gone.wait(SOON)
    back = socket.create_server(nobody.place)
    attended.attend(*nobody.place, again.set)
    connection = back.accept()[0]
    assert not again.is_set()
    back.close()
    connection.close()
    assert again.wait(SOON)


def test_the_kernel_asks_within_seconds(attended: Machines, somebody: Somebody) -> None:
    attended.attend(*somebody.place, lambda: None)
    with somebody.accept() as connection, attended._lock:
        (ours,) = attended._connections.values()
        assert ours.getsockname() == connection.getpeername()
        asked = [
            ours.getsockopt(socket.IPPROTO_TCP, name)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert asked[0] + asked[1] * asked[2] <= 10


def test_after_its_end_nobody_is_attended_to(somebody: Somebody) -> None:
    attended = Machines()
    attended.close()
    leave = attended.attend(*somebody.place, pytest.fail)
    leave()
    attended.close()
