"""Parcels under stress: an owner hands them from makers to readers, who hold and drop arrays at random while calls are cut
off at random. Every array has a checksum, looked at when it is opened, again while it is held, and when it is dropped.

Owner, makers and readers each live where some backend puts them; every role here can be any of the three.
"""

from __future__ import annotations

import itertools
import linecache
import random
import signal
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from lzero_async import Parcel, WorkerDied, make_backend
from lzero_async.workers.backend import BACKENDS, Worker
from lzero_async.workers.calls import CallStop
from lzero_async.workers.parcels import SMALL

COMBINATIONS: Final = frozenset(itertools.product(BACKENDS, repeat=3))  # owner, maker, reader
LARGEST: Final = 50_000_000
BORDERS: Final = tuple(border + step for border in (4096, SMALL, 65_536, 1 << 20) for step in (-1, 0, 1))
HELD_BYTES: Final = 110_000_000  # that one role holds at most
HELD_ARRAYS: Final = 60  # more than the maker watches
LONG: Final = 30.0  # seconds that nothing here takes on any machine


class Wrong(Exception):
    """An array is not what it was."""


class Report(NamedTuple):
    """What an owner saw: arrays opened by (maker, reader), and calls that were cut off, by how."""

    opened: dict[tuple[str, str], int]
    cut_off: dict[str, int]


def size_of(draw: random.Random) -> int:
    """From one byte to 2 MB, most of them small."""
    kind = draw.random()
    if kind < 0.15:
        return draw.choice(BORDERS)
    return int(2 ** draw.uniform(0, 21 if kind > 0.97 else 17))


class Array(NamedTuple):
    """An array with its checksum."""

    data: np.ndarray
    checksum: int
    name: str

    def is_right(self) -> bool:
        return zlib.crc32(self.data) == self.checksum


class Role:
    """Makes parcels, and reads those of others."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._draw = random.Random(0)
        self._held: list[Array] = []
        self._wrong: list[Wrong] = []  # also in calls whose result nobody got
        self._made: list[Parcel] = []
        self._changing = bytearray(200_000)

    def seed(self, seed: int) -> None:
        """Start over with its decisions."""
        self._draw = random.Random(seed)

    def make(self, number: int, sizes: list[int], live: bool = False) -> Parcel:
        """A parcel of arrays of these sizes; a live one is of memory that the next live one is made in."""
        bits = np.random.default_rng(number)
        arrays, end = [], 0
        for place, size in enumerate(sizes):
            data = np.frombuffer(bytearray(bits.bytes(size)), np.uint8)
            if live and end + size <= len(self._changing):
                shared = np.frombuffer(self._changing, np.uint8)[end : end + size]
                shared[:] = data
                data, end = shared, end + size
            arrays.append(Array(data, zlib.crc32(data), f"array {number}.{place}"))
        made = Parcel(arrays, meta=number, live=live)
        if self._draw.random() < 0.1 and sum(sizes) < 1_000_000:  # kept to be opened by its own maker
            self._made = [*self._made[-3:], made]
        for own in self._made[:-1]:
            if own.nbytes and self._draw.random() < 0.2:
                self._hold(own.open())
        return made

    def look(self, parcel: Parcel, seconds: float = 0.0, *, stop: Any = None) -> int:
        """Open it, once or twice, at least so long; hold some arrays and drop others. Return how many were opened."""
        opened = 0
        for _ in range(1 + (self._draw.random() < 0.1)):
            arrays = parcel.open() if self._draw.random() < 0.6 else parcel.read()
            opened += len(arrays)
            for array in arrays:
                self._check(array, "when it was opened")
            if seconds:
                (time.sleep if stop is None else stop.wait)(seconds)
                for array in arrays:
                    self._check(array, "later in the call")
            if self._draw.random() < 0.6:
                self._hold(arrays)
        if self._held:
            self._check(self._draw.choice(self._held), "while it was held")
        return opened

    def pass_on(self, parcel: Parcel) -> Parcel:
        """Itself, to whoever asks."""
        return parcel

    def check(self) -> int:
        """Look at everything that is held, and drop it."""
        if self._wrong:
            raise self._wrong[0]
        for array in self._held:
            self._check(array, "at the end")
        held, self._held, self._made = len(self._held), [], []
        return held

    def _check(self, array: Array, when: str) -> None:
        if not array.is_right():
            said = f"{array.name} of {array.data.nbytes} bytes was wrong {when}: it begins with {array.data[:4]}"
            self._wrong.append(Wrong(said))
        if self._wrong:
            raise self._wrong[0]

    def _hold(self, arrays: list[Array]) -> None:
        self._held += arrays
        while (
            len(self._held) > HELD_ARRAYS
            or sum(array.data.nbytes for array in self._held) > HELD_BYTES
            or (self._held and self._draw.random() < 0.35)
        ):
            self._check(self._held.pop(self._draw.randrange(len(self._held))), "when it was dropped")


class CutOff(Exception):
    """What the signal handler raises."""


@contextmanager
def alarm(wait: Callable[[], object]) -> Iterator[None]:
    """Raise CutOff in the main thread after a wait, wherever it is then. The one exception is Python's own threading module
    anywhere but where it waits: it would never give back a lock that it is about to take."""
    over: list[bool] = []

    def ring(number: int, frame: Any) -> None:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if not over and (frame.f_code.co_filename != threading.__file__ or "waiter.acquire(" in line):
            over.append(True)
            raise CutOff

    def strike() -> None:
        wait()
        while not over:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(0.0005)

    before = signal.signal(signal.SIGUSR1, ring)
    striker = threading.Thread(target=strike)
    striker.start()
    try:
        yield
    finally:
        over.append(True)
        striker.join()
        signal.signal(signal.SIGUSR1, before)


class Owner:
    """Starts two roles on each of some backends and hands parcels around between them, and keeps some."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._parcels: list[Parcel] = []
        self._opened: Counter[tuple[str, str]] = Counter()
        self._cut_off: Counter[str] = Counter()

    def stress(
        self,
        seed: int,
        pairs: list[tuple[str, str]],
        arrays: int,
        large: int = 1,
        deaths: int = 2,
        ray_address: str = "",
    ) -> Report:
        """Have every (maker, reader) of `pairs` open at least so many arrays; `large` parcels of each process as maker are
        of the largest size, and so many calls of each kind of worker end with the worker. Raises Wrong."""
        self._draw = random.Random(seed)
        self._numbers = itertools.count(seed * 1_000_000)
        kinds = [kind for kind in BACKENDS if any(kind in pair for pair in pairs)]
        backends = {kind: make_backend(kind, **_settings(kind, ray_address)) for kind in kinds}
        try:
            self._workers = {
                kind: [backend.start(f"worker {number}", Role) for number in range(2)]
                for kind, backend in backends.items()
            }
            for worker in itertools.chain(*self._workers.values()):
                self._call(worker, "seed", self._draw.randrange(1 << 30))
            left = {kind: deaths for kind in kinds if kind != "inline"}
            self._large = {kind: large for kind in kinds if kind != "inline"}
            while todo := [pair for pair in pairs if self._opened[pair] < arrays]:
                maker, reader = self._draw.choice(todo)
                self._step(maker, reader, left)
            self._parcels = []
            for worker in itertools.chain(*self._workers.values()):
                self._call(worker, "check")
        finally:
            for backend in backends.values():
                backend.close()
        return Report(dict(self._opened), dict(self._cut_off))

    def _step(self, maker: str, reader: str, deaths: dict[str, int]) -> None:
        """One parcel from a maker to a reader."""
        made = self._make(maker)
        if self._draw.random() < 0.1:
            self._parcels = [*self._parcels[-5:], made]
        if self._draw.random() < 0.1:
            return  # dropped, unopened
        worker = self._draw.choice(self._workers[reader])
        if self._draw.random() < 0.1:
            made = self._call(self._draw.choice(self._workers[reader]), "pass_on", made)
        draw = self._draw.random()
        if draw < 0.1:
            self._cut("alarm", self._ring, worker, made)
        elif draw < 0.2:
            self._cut("stop", self._stop, worker, made)
        elif draw < 0.3 and deaths.get(reader):
            deaths[reader] -= 1
            self._cut(*[("kill", self._kill), ("timeout", self._time_out)][deaths[reader] % 2], worker, made)
        else:
            self._opened[maker, reader] += self._call(worker, "look", made)
        if self._parcels and self._draw.random() < 0.1:
            self._call(self._workers["inline"][0], "look", self._draw.choice(self._parcels))

    def _make(self, maker: str) -> Parcel:
        sizes = [size_of(self._draw) for _ in range(self._draw.choice((1, 1, 2, 4)))]
        if self._large.get(maker) and self._draw.random() < 0.1:
            self._large[maker] -= 1
            sizes = [LARGEST]
        worker = self._draw.choice(self._workers[maker])
        return self._call(worker, "make", next(self._numbers), sizes, self._draw.random() < 0.2)

    def _call(self, worker: Worker, method: str, *args: Any) -> Any:
        """Call a worker, which may just be dying."""
        try:
            return worker.call(method, *args)
        except WorkerDied:
            worker.restart()
            worker.call("seed", self._draw.randrange(1 << 30))
            return worker.call(method, *args)

    def _cut(self, how: str, cut: Callable[[Worker, Parcel], None], worker: Worker, parcel: Parcel) -> None:
        """Cut a call off, and use the memory of its parcel again, if anybody thinks that it is free."""
        try:
            cut(worker, parcel)
        except (CutOff, WorkerDied):
            self._cut_off[how] += 1
        del parcel
        for workers in self._workers.values():
            self._call(workers[0], "make", next(self._numbers), [40_000, 10])

    def _ring(self, worker: Worker, parcel: Parcel) -> None:
        if threading.current_thread() is threading.main_thread():
            with alarm(partial(time.sleep, self._draw.uniform(0.0001, 0.01))):
                worker.call("look", parcel, 0.02, stop=CallStop())

    def _stop(self, worker: Worker, parcel: Parcel) -> None:
        stop = CallStop()
        timer = threading.Timer(self._draw.uniform(0.0, 0.01), stop.set)
        timer.start()
        worker.call("look", parcel, LONG, stop=stop)
        timer.join()
        self._cut_off["stop"] += 1

    def _kill(self, worker: Worker, parcel: Parcel) -> None:
        timer = threading.Timer(self._draw.uniform(0.0, 0.03), worker.kill)
        timer.start()
        try:
            worker.call("look", parcel, LONG, stop=CallStop())
        finally:
            timer.join()

    def _time_out(self, worker: Worker, parcel: Parcel) -> None:
        worker.call("look", parcel, LONG, stop=CallStop(), timeout=self._draw.uniform(0.001, 0.03))


def _settings(kind: str, ray_address: str) -> dict[str, Any]:
    if kind != "ray":
        return {}
    return {"ray_address": ray_address, "ray_resources": {"worker": {"CPU": 0}}}


def run_owner(
    kind: str,
    seed: int,
    pairs: list[tuple[str, str]],
    arrays: int,
    large: int = 1,
    deaths: int = 2,
    ray_address: str = "",
) -> Report:
    """Let an owner live on that backend, and hand parcels around there."""
    backend = make_backend(kind, **_settings(kind, ray_address))
    try:
        return backend.start("worker", Owner).call("stress", seed, pairs, arrays, large, deaths, ray_address)
    finally:
        backend.close()
