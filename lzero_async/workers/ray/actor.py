"""The actor that a role lives in on Ray: one thread runs the role, one tells its owner what happens, one takes stops.

What a call returns belongs to the caller, so it outlives this actor. Parcels travel as parts of such values: their buffers
lie in Ray's object store, once for each machine that reads them.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import ray

from lzero_async.errors import LzeroAsyncError
from lzero_async.workers._bootstrap import Stops, build_role, send_logs, standard_first
from lzero_async.workers.calls import pack_error
from lzero_async.workers.parcels import Parcel, Stored, dumps, loads
from lzero_async.workers.step_watch import EXIT_STUCK, GRACE, leave_by

Content = tuple[bytes, Sequence[Any]]  # a parcel's pickle and its buffers
Encoded = tuple[bytes, list[Content]]  # a value's pickle, and its parcels' contents


class Where:
    """A parcel's content on its way to an actor: its meta, and the path to it in the argument that holds it."""

    def __init__(self, meta: Any, path: tuple[int, ...]) -> None:
        self.meta, self.path = meta, path


def encode(value: Any, content: Callable[[bytes, Sequence[Any]], Content]) -> Encoded:
    """A value as Ray takes it; `content` makes of a parcel's pickle and buffers what travels. Raises what pickling raises."""
    parcels: list[Parcel] = []
    body = dumps(value, None, parcels)
    return dumps((body, [parcel.meta for parcel in parcels])), [content(*parcel.contents()) for parcel in parcels]


def decode(encoded: Encoded, source: Callable[[int], Any]) -> Any:
    """What was encoded; `source(place)` is kept with each of its parcels."""
    head, contents = encoded
    body, metas = loads(head)
    parcels = [
        Parcel.of_stored(Stored(payload, buffers, source(place)), meta)
        for place, (meta, (payload, buffers)) in enumerate(zip(metas, contents, strict=True))
    ]
    return loads(body, None, parcels)


def as_arrays(payload: bytes, buffers: Sequence[Any]) -> Content:
    """A parcel's content with its buffers as Ray copies them into its store: once, and not at all where they are read."""
    return payload, [np.frombuffer(buffer, np.uint8) for buffer in buffers]


def as_copies(payload: bytes, buffers: Sequence[Any]) -> Content:
    """The same for what is sent later: nobody can change it any more."""
    return payload, [np.array(np.frombuffer(buffer, np.uint8)) for buffer in buffers]


@ray.remote(concurrency_groups={"watch": 1, "stop": 1}, max_restarts=0)
class Host:
    """Builds one role and serves its calls, one after the other."""

    def __init__(self) -> None:
        self._out: queue.SimpleQueue[tuple[str, Encoded]] = queue.SimpleQueue()
        self._emitting = threading.Lock()
        self._told = 0
        self._stops = Stops()
        self._role: Any = None

    def start(self, spec: dict[str, Any], output: str) -> Encoded:
        """Make the role; what it prints goes to the file `output`, if its folder is there."""
        # Ray started this process somewhere else, and relative paths are those of the owner.
        if os.path.isdir(spec["folder"]):
            os.chdir(spec["folder"])
        _print_to(output)
        sys.path[:] = standard_first([*sys.path, *(entry for entry in spec["sys_path"] if entry not in sys.path)])
        send_logs(lambda record: self._tell("log", record), spec["log_levels"])
        leave_by(self._leave)
        return self._answer(lambda: self._make(spec))

    def _make(self, spec: dict[str, Any]) -> None:
        self._role = build_role(spec, lambda event: self._tell("event", event))

    def serve(self, number: int, body: bytes, with_stop: bool, places: list[Where], *boxes: Any) -> Encoded:
        """One call; `boxes` hold the contents of its parcels."""
        try:
            return self._answer(lambda: self._call(number, body, with_stop, places, boxes))
        finally:
            self._stops.finished(number)

    def _call(self, number: int, body: bytes, with_stop: bool, places: list[Where], boxes: Sequence[Any]) -> Any:
        if self._role is None:
            raise LzeroAsyncError("the role is closed")
        method, args = loads(body, None, [_unbox(where, box) for where, box in zip(places, boxes, strict=True)])
        options = {"stop": self._stops.of(number)} if with_stop else {}
        return getattr(self._role, method)(*args, **options)

    def close(self) -> Encoded:
        """Let the role close itself; no call is served after that."""
        role, self._role = self._role, None
        return self._answer(getattr(role, "close", _nothing))

    def _answer(self, work: Callable[[], Any]) -> Encoded:
        """What the work returned or raised, and how much was told until then."""
        try:
            return encode((True, work(), self._told), as_arrays)
        except BaseException as error:  # of the role, or because its result cannot be pickled
            return encode((False, pack_error(error), self._told), as_arrays)

    def _tell(self, kind: str, value: Any) -> None:
        encoded = encode(value, as_copies)
        with self._emitting:
            self._told += 1
            self._out.put((kind, encoded))

    def _leave(self, sentence: str) -> NoReturn:
        """A watched call hangs: tell the owner, who kills this actor, and end this process if nobody does."""
        self._tell("stuck", sentence)
        time.sleep(GRACE)
        os._exit(EXIT_STUCK)

    @ray.method(concurrency_group="watch")
    def hello(self) -> tuple[int, str, str]:
        """The process, the node and the address of its machine."""
        return (
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            ray.util.get_node_ip_address() or socket.gethostname(),
        )

    @ray.method(concurrency_group="watch")
    def watch(self, seconds: float) -> list[tuple[str, Encoded]]:
        """What was told since the last time, as soon as there is something; nothing, as a sign of life, after `seconds`."""
        try:
            found = [self._out.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._out.empty():
            found.append(self._out.get())
        return found

    @ray.method(concurrency_group="stop")
    def stop(self, number: int, reason: str) -> None:
        """Set the stop signal of a call."""
        self._stops.of(number).set(reason)


def _unbox(where: Where, box: Any) -> Parcel:
    for place in where.path:
        box = box[place]
    payload, buffers = box
    return Parcel.of_stored(Stored(payload, buffers), where.meta)


def _print_to(output: str) -> None:
    if not output or not os.path.isdir(os.path.dirname(output)):
        return
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:  # a folder of another user, say: then it goes to Ray's logs
        return
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)


def _nothing() -> None:
    return None
