"""Messages between a process and its workers, over a Unix socket: a pickle each, with the parcels' descriptors beside it.

Both ends are ours: a socket pair without a name, that nobody else can reach, so what is unpickled here is what we pickled.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from array import array
from typing import Any, Final

from lzero_async.parcels import Packed, Parcel, RegionPool, dumps, loads

_HEAD: Final = struct.Struct("<QI")
_DESCRIPTORS_AT_ONCE: Final = 64
_ROOM: Final = socket.CMSG_LEN(_DESCRIPTORS_AT_ONCE * array("i").itemsize)
_FLAGS: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # programs that a role starts do not inherit them


class WireClosed(Exception):
    """The other side is gone."""


class Message:
    """One message: its kind and number at once, its value when somebody asks for it."""

    __slots__ = ("_body", "_descriptors", "kind", "number", "parcels")

    def __init__(self, kind: str, number: int, body: bytes, parcels: list[Parcel], descriptors: list[int]) -> None:
        self.kind, self.number, self.parcels = kind, number, parcels
        self._body, self._descriptors = body, descriptors

    def value(self) -> Any:
        """What was sent. Raises what unpickling raises."""
        return loads(self._body, None, self.parcels)

    def close(self) -> None:
        """Close the descriptors of its parcels; those parcels cannot be opened or sent any more."""
        for parcel in self.parcels:
            parcel.closed()
        while self._descriptors:
            os.close(self._descriptors.pop())


class Wire:
    """One end of the connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket, pool: RegionPool) -> None:
        self._socket = connection
        self._pool = pool
        self._sending = threading.Lock()

    def limit(self, seconds: float) -> None:
        """Give up, as if the other side were gone, when it stops for this long in the middle of a message."""
        pause = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, pause)

    def send(self, kind: str, number: int, value: Any = None) -> list[Parcel]:
        """Send a message; return the parcels in it. Raises WireClosed when nobody is there, and what pickling raises."""
        parcels: list[Parcel] = []
        body = dumps(value, None, parcels)
        records, descriptors, regions = [], [], []
        try:
            for parcel in parcels:
                packed, descriptor = parcel.pack(self._pool)
                records.append((tuple(packed), parcel.meta, descriptor >= 0))
                if descriptor >= 0:
                    descriptors.append(descriptor)
                    regions.append(packed.region)
            data = dumps((kind, number, body, records))
        except BaseException:
            self._pool.not_sent(regions)
            raise
        with self._sending:
            try:
                while len(descriptors) > _DESCRIPTORS_AT_ONCE:
                    first, descriptors = descriptors[:_DESCRIPTORS_AT_ONCE], descriptors[_DESCRIPTORS_AT_ONCE:]
                    socket.send_fds(self._socket, [_HEAD.pack(0, len(first))], first)
                socket.send_fds(self._socket, [_HEAD.pack(len(data), len(descriptors))], descriptors)
                self._socket.sendall(data)
            except OSError as error:
                raise WireClosed(str(error)) from error
        return parcels

    def receive(self) -> Message:
        """The next message; the descriptors of its parcels are the caller's to close. Raises WireClosed at the end."""
        descriptors: list[int] = []
        try:
            size = 0
            while not size:
                size = self._receive_head(descriptors)
            kind, number, body, records = loads(self._receive_exactly(size))
            place = iter(descriptors)
            parcels = [Parcel.of(Packed(*packed), meta, next(place) if has else -1) for packed, meta, has in records]
            return Message(kind, number, body, parcels, descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

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
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed from the other side already
            pass
        self._socket.close()

    def _receive_head(self, descriptors: list[int]) -> int:
        try:
            # Not socket.recv_fds, which takes flags and leaves them out.
            data, extras, flags, _ = self._socket.recvmsg(_HEAD.size, _ROOM, _FLAGS)
            for level, kind, raw in extras:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    found = array("i")
                    found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
                    descriptors += found
            if flags & socket.MSG_CTRUNC:
                raise WireClosed("too many files are open for what was sent; raise the limit (ulimit -n)")
            if not data:
                raise WireClosed("the other side has ended")
            if len(data) < _HEAD.size:
                data += self._receive_exactly(_HEAD.size - len(data))
        except OSError as error:
            raise WireClosed(str(error)) from error
        size, _ = _HEAD.unpack(data)
        return int(size)

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            try:
                count = self._socket.recv_into(view[got:])
            except OSError as error:
                raise WireClosed(str(error)) from error
            if not count:
                raise WireClosed("the other side ended in the middle of a message")
            got += count
        return bytes(data)
