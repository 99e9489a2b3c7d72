"""Shared memory without names: files that the kernel frees with the last process that holds them.

A region is one anonymous file in memory. No name exists for it, so it goes with the last process that holds it, however that
process ends. The process that made it uses it again when the kernel says that nobody can see it any more: each use has an
opened file of its own (a lease) with a lock, and all its descriptors and mappings, in all processes and under way between them,
belong to that opened file. The kernel takes the lock away with the last of them. Nobody keeps books, so no exception, signal or
death at the wrong moment can falsify them.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

KEPT_REGIONS: Final = 4
WATCHED_REGIONS: Final = 32
POISON: Final = bool(os.environ.get("LZERO_ASYNC_POISON_PARCELS"))  # for tests: overwrite memory when it becomes free
_ALIGN: Final = 64
_PRESSURE: Final = 256 << 20  # mapped bytes above which garbage may hold too many of them


class Lease:
    """An open descriptor of a region, closed with this object. The region is in use while any descriptor or mapping of the
    same opened file is left, in whatever process."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)

    def map_private(self, size: int) -> memoryview:
        """So much of the region, to write to: pages are shared until somebody does, and what is written stays here."""
        return memoryview(_Mapping.of(self, size))

    def map_read_only(self, size: int) -> memoryview:
        """So much of the region, to read; cheaper for what comes again and again."""
        return _window(self, size)


class _Mapping(mmap.mmap):
    """A private mapping of a region, unmapped with its last array."""

    @classmethod
    def of(cls, lease: Lease, size: int) -> _Mapping:
        """Map that much of a region."""
        mapped = cls(lease.descriptor, size, access=mmap.ACCESS_COPY)
        mapped.counted = size
        _pressure.add(size)
        return mapped

    counted = 0

    def __del__(self) -> None:
        _pressure.ended.append(self.counted)


class _Pressure:
    """Counts mapped bytes. The garbage collector knows nothing of them, so that arrays in cycles of garbage could hold
    more and more memory: when there is twice as much as it left the last time, it is asked to look."""

    def __init__(self) -> None:
        self.ended: deque[int] = deque()  # its own lock: objects end also in a thread that holds ours
        self._lock = threading.Lock()
        self._mapped, self._limit = 0, _PRESSURE

    def add(self, size: int) -> None:
        """So much more is mapped."""
        if self._count(size) > self._limit:
            gc.collect()
            self._limit = max(_PRESSURE, 2 * self._count(0))

    def _count(self, more: int) -> int:
        with self._lock:
            self._mapped += more
            while self.ended:
                self._mapped -= self.ended.popleft()
            return self._mapped


_pressure = _Pressure()
_windows: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()  # by the identity of the file
_opening = threading.Lock()


def _window(lease: Lease, size: int) -> memoryview:
    """A read-only view of a region that holds its lease. The mapping below it is made once and kept, as its first use is
    what costs: it is of an opened file of its own, so that it alone keeps no region in use."""
    numpy = sys.modules.get("numpy")
    if not kernel_counts() or numpy is None:  # what is left is a new mapping each time
        return memoryview(mmap.mmap(lease.descriptor, size, access=mmap.ACCESS_READ))
    status = os.fstat(lease.descriptor)
    key = status.st_dev, status.st_ino  # a file keeps its number as long as it is mapped
    with _opening:
        window = _windows.pop(key, None)
        if window is None:
            own = _opened_anew(lease.descriptor)
            window = mmap.mmap(own.descriptor, status.st_size, access=mmap.ACCESS_READ)
        _windows[key] = window
        while len(_windows) > KEPT_REGIONS:
            _windows.popitem(last=False)  # unmapped with its last array
    array = numpy.frombuffer(window, numpy.uint8, size)  # every view of it holds this object
    weakref.finalize(array, _nothing, lease).atexit = False
    return memoryview(array)


def _nothing(lease: Lease) -> None:
    """What held the lease is gone."""


def _opened_anew(descriptor: int) -> Lease:
    """The same file, opened another time, to read."""
    return Lease(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC))


@functools.cache
def kernel_counts() -> bool:
    """Whether a lock on an opened file stays until its last mapping is gone, as on Linux; tried once. Elsewhere no region is
    used twice."""
    region = _Region(1)
    try:
        lease = region.lend()
        if region.is_free():
            return False
        mapped = mmap.mmap(lease.descriptor, 1, access=mmap.ACCESS_READ)
        del lease
        if region.is_free():
            return False
        del mapped
        return region.is_free()
    except OSError:
        return False


class _Region:
    """One anonymous file in memory, mapped for writing."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._file = Lease(_anonymous_file())
        os.ftruncate(self._file.descriptor, capacity)
        self.view = mmap.mmap(self._file.descriptor, capacity)
        self._poisoned = False

    def lend(self) -> Lease:
        """A lease; the only one. Raises BlockingIOError if there is one already."""
        lease = _opened_anew(self._file.descriptor)
        fcntl.flock(lease.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._poisoned = False
        return lease

    def give_away(self) -> Lease:
        """What holds it for good: it is never lent again."""
        return self._file

    def is_free(self) -> bool:
        """Whether nobody has a lease."""
        try:
            fcntl.flock(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file.descriptor, fcntl.LOCK_UN)
        if POISON and not self._poisoned:
            self._poisoned = True
            self.view[:] = b"\xdb" * self.capacity
        return True


class RegionPool:
    """The files of one process, each used again when nobody sees it any more. Safe to use from many threads.

    It watches the last WATCHED_REGIONS; what somebody keeps for longer is freed by the kernel when he lets it go. Of free
    ones it keeps KEPT_REGIONS."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[_Region] = []  # the one that was used last is the last
        self._closed = False

    def pack(self, raws: Sequence[memoryview]) -> tuple[tuple[tuple[int, int], ...], int, Lease]:
        """Copy buffers once into a region: where each lies in it (offset, size), how much of it is used, and what holds it."""
        spans, end = [], 0
        for raw in raws:
            spans.append((end, raw.nbytes))
            end += -(-raw.nbytes // _ALIGN) * _ALIGN
        region, lease = self._take(end)
        with memoryview(region.view) as target:
            for raw, (start, size) in zip(raws, spans, strict=True):
                target[start : start + size] = raw
        return tuple(spans), end, lease

    def close(self) -> None:
        """Keep nothing from now on; parcels that are in use stay what they are."""
        with self._lock:
            self._closed = True
            self._watched = []

    @property
    def regions(self) -> tuple[int, int]:
        """How many watched regions are in use, and how many wait to be used again."""
        with self._lock:
            free = len(self._forget_surplus(self._free()))
            return len(self._watched) - free, free

    def tidy(self) -> None:
        """Let the system have the memory of regions that have become free and are too many."""
        with self._lock:
            self._forget_surplus(self._free())

    def _take(self, size: int) -> tuple[_Region, Lease]:
        """A region that nobody sees, and its lease."""
        if not kernel_counts():
            region = _Region(size)
            return region, region.give_away()
        with self._lock:
            free = self._free()
            # A power of two, so that others fit later; pages that are not touched cost nothing. A region that is much larger
            # may be full of pages that were: whoever kept a small array in it would keep them all.
            capacity = 1 << max(16, (size - 1).bit_length())
            fitting = [region for region in free if size <= region.capacity <= 2 * capacity]
            if fitting:
                region = min(fitting, key=lambda candidate: candidate.capacity)
                free.remove(region)
                self._watched.remove(region)
            else:
                region = _Region(capacity)
            lease = region.lend()
            self._forget_surplus(free)
            if not self._closed:
                self._watched = [*self._watched, region][-WATCHED_REGIONS:]
            return region, lease

    def _free(self) -> list[_Region]:
        """Under the lock: those that nobody sees."""
        return [region for region in self._watched if region.is_free()]

    def _forget_surplus(self, free: list[_Region]) -> list[_Region]:
        """Under the lock: forget the free ones that are too many; return the others, which were used last."""
        surplus = free[:-KEPT_REGIONS]
        if surplus:
            self._watched = [region for region in self._watched if region not in surplus]
        return free[-KEPT_REGIONS:]


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lzero-async", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
