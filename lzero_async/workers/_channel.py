"""Messages between a process and its workers, over a Unix socket: a pickle each, with the parcels' descriptors beside it.

Both ends are ours: a socket pair without a name, that nobody else can reach, so what is unpickled here is what we pickled.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from lzero_async.errors import DESCRIPTOR, TOO_MANY_FILES, SystemRefused, tell_refusal
from lzero_async.workers.parcels import Packed, Parcel, dumps, loads
from lzero_async.workers.regions import Lease, RegionPool

_HEAD: Final = struct.Struct("<QI")
_DESCRIPTORS_AT_ONCE: Final = 64
_ROOM: Final = socket.CMSG_LEN(_DESCRIPTORS_AT_ONCE * array("i").itemsize)
_FLAGS: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # programs that a role starts do not inherit them


class WireClosed(Exception):
    """The other side is gone."""


class WireStalled(WireClosed):
    """The other side stopped in the middle of a message."""


class Message:
    """One message: its kind and number at once, its value when somebody asks for it. `lost`: there was no room for the
    descriptors of its parcels, so it has no value."""

    __slots__ = ("_body", "_parcels", "kind", "lost", "number")

    def __init__(self, kind: str, number: int, body: bytes, parcels: list[Parcel], lost: bool = False) -> None:
        self.kind, self.number, self.lost = kind, number, lost
        self._body, self._parcels = body, parcels

    def value(self) -> Any:
        """What was sent. Raises what unpickling raises, and SystemRefused if its parcels were lost."""
        if self.lost:
            refused = SystemRefused(f"What was sent cannot be taken: {TOO_MANY_FILES}")
            refused.kind = DESCRIPTOR
            tell_refusal(refused)
            raise refused
        return loads(self._body, None, self._parcels)

    def close(self) -> None:
        """Let go of its parcels; whoever took one from its value still has it."""
        self._parcels = []


class Wire:
    """One end of the connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket, pool: RegionPool) -> None:
        self._socket = connection
        self._pool = pool
        self._sending = threading.Lock()
        self._limit: float | None = None

    def limit(self, seconds: float) -> None:
        """Give up, as if the other side were gone, when it stops for this long in the middle of a message."""
        self._limit = seconds
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, _timeval(seconds))

    def send(self, kind: str, number: int, value: Any = None, seconds: float | None = None) -> None:
        """Send a message. Raises WireClosed when nobody is there, and what pickling raises. With `seconds`, give up when the
        other side takes nothing for so long: then only half of it may have been sent. What else cuts it off in the middle (a
        signal) ends the connection: the other side must not take the next message for the rest of this one."""
        parcels: list[Parcel] = []
        body = dumps(value, None, parcels)
        records, descriptors = [], []
        for parcel in parcels:
            packed, lease = parcel.pack(self._pool)
            records.append((tuple(packed), parcel.meta, lease is not None))
            if lease is not None:
                descriptors.append(lease.descriptor)
        data = dumps((kind, number, body, records))
        with self._turn(seconds):
            try:
                while len(descriptors) > _DESCRIPTORS_AT_ONCE:
                    first, descriptors = descriptors[:_DESCRIPTORS_AT_ONCE], descriptors[_DESCRIPTORS_AT_ONCE:]
                    socket.send_fds(self._socket, [_HEAD.pack(0, len(first))], first)
                socket.send_fds(self._socket, [_HEAD.pack(len(data), len(descriptors))], descriptors)
                self._socket.sendall(data)
            except OSError as error:
                raise _closed(error) from error
            except BaseException:
                self._shut_down()
                raise

    @contextmanager
    def _turn(self, seconds: float | None) -> Iterator[None]:
        """Send alone, and give up after so long."""
        if not self._sending.acquire(timeout=-1 if seconds is None else seconds):
            raise WireStalled("the other side does not take another message")
        shorter = seconds is not None and (self._limit is None or seconds < self._limit)
        try:
            if shorter:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
            yield
        except OSError as error:
            raise _closed(error) from error
        finally:
            if shorter:
                with suppress(OSError):  # it was closed meanwhile
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._limit))
            self._sending.release()

    def receive(self) -> Message:
        """The next message. Raises WireClosed at the end."""
        leases: list[Lease] = []
        size, whole = 0, True
        while not size:
            size, all_there = self._receive_head(leases)
            whole = whole and all_there
        kind, number, body, records = loads(self._receive_exactly(size))
        if not whole:
            return Message(kind, number, body, [], lost=True)
        place = iter(leases)
        parcels = [Parcel.of(Packed(*packed), meta, next(place) if has else None) for packed, meta, has in records]
        return Message(kind, number, body, parcels)

    def wait_for_message(self, seconds: float | None, other: int = -1) -> bool:
        """Wait until something arrives (or the other side is gone), or the descriptor `other` can be read, or the time is
        over; return whether something arrived."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if other >= 0:
            poll.register(other, select.POLLIN)
        found = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        return any(descriptor != other for descriptor, _ in found)

    def close(self) -> None:
        """Close this end; the other one sees it."""
        self._shut_down()
        self._socket.close()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed from the other side already
            pass

    def _receive_head(self, leases: list[Lease]) -> tuple[int, bool]:
        """The size of what follows, and whether all descriptors that came with it could be taken."""
        try:
            # Not socket.recv_fds, which takes flags and leaves them out.
            data, extras, flags, _ = self._socket.recvmsg(_HEAD.size, _ROOM, _FLAGS)
            for level, kind, raw in extras:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    found = array("i")
                    found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
                    leases += map(Lease, found)
            if not data:
                raise WireClosed("the other side has ended")
            if len(data) < _HEAD.size:
                data += self._receive_exactly(_HEAD.size - len(data))
        except OSError as error:
            raise _closed(error) from error
        size, _ = _HEAD.unpack(data)
        return int(size), not flags & socket.MSG_CTRUNC

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            try:
                count = self._socket.recv_into(view[got:])
            except OSError as error:
                raise _closed(error) from error
            if not count:
                raise WireClosed("the other side ended in the middle of a message")
            got += count
        return bytes(data)


def _timeval(seconds: float | None) -> bytes:
    """As the kernel wants it; nothing at all means for ever."""
    if seconds is None:
        return struct.pack("ll", 0, 0)
    return struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))


def _closed(error: OSError) -> WireClosed:
    if isinstance(error, BlockingIOError):
        return WireStalled("the other side stopped in the middle of a message")
    return WireClosed(str(error))
