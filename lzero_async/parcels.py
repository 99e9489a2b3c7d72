"""Values that travel once between processes: packed into shared memory where they are made, mapped where they are used.

A parcel's arrays and tensors lie in one anonymous file in memory; everybody in between passes its descriptor on without
looking inside. No name exists for such a file, so the kernel frees it with the last process that holds it, however that
process ends. The process that made it uses it again once the one that hands parcels around says that nobody needs it.
"""

from __future__ import annotations

import gc
import io
import mmap
import os
import pickle
import sys
import tempfile
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lzero_async.errors import LzeroAsyncError

SMALL: Final = 32_768  # bytes that are cheaper to send than to map
KEPT_REGIONS: Final = 4
_ALIGN: Final = 64


class Packed(NamedTuple):
    """A packed value: its pickle, and its buffers either in here (`inside`) or at `spans` (offset, size) of a file."""

    payload: bytes
    inside: tuple[bytes, ...]
    spans: tuple[tuple[int, int], ...]
    region: int
    size: int


class Stored(NamedTuple):
    """A packed value whose buffers lie in memory that nobody writes to and that somebody else looks after; `source` is for
    him."""

    payload: bytes
    buffers: Sequence[Any]
    source: Any = None


class Parcel:
    """A value to hand on, with a little `meta` that everybody may read. `open()` gives the value.

    An opened value's arrays lie in shared memory: they may be changed without anybody noticing, and are valid while the
    call lasts that got the parcel; a role that keeps an array longer costs the memory's reuse, nothing else. `live` says
    that the maker goes on changing the value, so that within one process it is copied, too.
    """

    __slots__ = (
        "__weakref__", "_descriptor", "_held", "_live", "_lock", "_maps", "_packed", "_pool", "_stored", "_value", "meta",
    )  # fmt: skip

    def __init__(self, value: Any, meta: Any = None, *, live: bool = False) -> None:
        self.meta = meta
        self._value = value
        self._live = live
        self._lock = threading.Lock()
        self._packed: Packed | None = None
        self._stored: Stored | None = None
        self._pool: RegionPool | None = None
        self._descriptor = -1
        self._maps: list[mmap.mmap] = []
        self._held = _Held()

    @classmethod
    def of(cls, packed: Packed, meta: Any, descriptor: int) -> Parcel:
        """One that arrived: whoever calls this looks after the descriptor."""
        parcel = cls(None, meta)
        parcel._packed, parcel._descriptor = packed, descriptor
        return parcel

    @classmethod
    def of_stored(cls, stored: Stored, meta: Any) -> Parcel:
        """One that lies in a store."""
        parcel = cls(None, meta)
        parcel._stored = stored
        return parcel

    @property
    def nbytes(self) -> int | None:
        """Its size on its way; None where it was not packed, since it stays in this process."""
        packed, stored = self._packed, self._stored
        if stored is not None:
            return len(stored.payload) + sum(memoryview(buffer).nbytes for buffer in stored.buffers)
        return None if packed is None else len(packed.payload) + sum(map(len, packed.inside)) + packed.size

    def open(self) -> Any:
        """The value. Raises LzeroAsyncError after the call that the parcel came with."""
        with self._lock:
            packed, stored = self._packed, self._stored
            if packed is None and stored is None:
                return self._value
        if stored is not None:  # its memory cannot be mapped for writing
            return loads(stored.payload, [bytearray(buffer) for buffer in stored.buffers])
        assert packed is not None
        if not packed.spans:
            return loads(packed.payload, [bytearray(buffer) for buffer in packed.inside])
        self._raise_if_closed()
        # Private: pages are shared until somebody writes to them, and what is written stays here.
        mapped = mmap.mmap(self._descriptor, packed.size, access=mmap.ACCESS_COPY)
        self._maps.append(mapped)
        view = memoryview(mapped)
        return loads(packed.payload, [view[start : start + size] for start, size in packed.spans])

    def read(self) -> Any:
        """The value, to be copied from only: writing to its arrays raises, writing to its tensors ends the process. Cheaper
        than `open` for what comes again and again, like weights: the memory stays mapped from one call to the next."""
        with self._lock:
            packed, stored = self._packed, self._stored
        if stored is not None:
            return loads(stored.payload, stored.buffers, read_only=True)
        if packed is None or not packed.spans:
            return self.open()
        self._raise_if_closed()
        window = _window(self._descriptor, packed.size)
        self._maps.append(window)
        view = memoryview(window)
        return loads(packed.payload, [view[start : start + size] for start, size in packed.spans], read_only=True)

    def settled(self, copy: Callable[[Any], Any]) -> Parcel:
        """Itself, with a copy of its value if its maker goes on changing that."""
        with self._lock:
            if self._live and self._packed is None and self._stored is None:
                self._value, self._live = copy(self._value), False
        return self

    def pack(self, pool: RegionPool) -> tuple[Packed, int]:
        """Its packed form and the descriptor that goes with it (-1: none); made once, and sent by the caller."""
        with self._lock:
            if self._packed is None:
                stored = self._stored
                value = self._value if stored is None else loads(stored.payload, stored.buffers, read_only=True)
                self._packed, self._descriptor = pool.pack(value)
                del value
                self._value = None
                if self._descriptor >= 0:
                    self._pool = pool
                    weakref.finalize(self, pool.gone, self._packed.region, self._held).atexit = False
            if self._packed.spans:
                self._raise_if_closed()
                pool.sending(self._packed.region, own=self._pool is pool)
            return self._packed, self._descriptor

    def contents(self) -> tuple[bytes, Sequence[Any]]:
        """Its pickle and its buffers as they are now, not copied."""
        with self._lock:
            if self._stored is not None:
                return self._stored.payload, self._stored.buffers
        buffers: list[pickle.PickleBuffer] = []
        payload = dumps(self.read(), buffers.append)
        return payload, [buffer.raw() for buffer in buffers]

    def store(self, put: Callable[[bytes, Sequence[Any]], Stored]) -> Stored:
        """Its stored form: `put(payload, buffers)` makes it, once; from then on the value lies there only."""
        payload, buffers = self.contents()
        with self._lock:
            if self._stored is None:
                self._stored = put(payload, buffers)
                self._value = None
            return self._stored

    def __reduce__(self) -> tuple[type[Parcel], tuple[Any, Any]]:
        """Pickled for a file, or copied: with its content."""
        return Parcel, (self.open(), self.meta)

    def closed(self) -> None:
        """Its descriptor is closed: it can neither be opened nor sent any more."""
        self._descriptor = -1

    def _raise_if_closed(self) -> None:
        if self._descriptor < 0:
            raise LzeroAsyncError(
                "This parcel came with a call that has ended; open it during the call, and return a new one."
            )

    def let_go(self) -> bool:
        """Unmap what was opened; return False if somebody still holds an array of it."""
        self._maps = [mapped for mapped in self._maps if not _closed(mapped)]
        if self._maps:
            gc.collect()
            self._maps = [mapped for mapped in self._maps if not _closed(mapped)]
        return not self._maps

    def keep(self) -> None:
        """Somebody still holds an array of it: its memory must not be used again."""
        self._held.reusable = False

    def when_gone(self, done: Callable[[tuple[int, bool]], object]) -> None:
        """When this object is gone, close its descriptor and call `done((region, reusable))`. Until then `done` is kept
        alive, so it must not hold on to whoever may hold this parcel."""
        region = -1 if self._packed is None else self._packed.region
        weakref.finalize(self, _gone, self._descriptor, region, self._held, done).atexit = False


class _Held:
    """Whether a region may be used again; outlives the parcel."""

    reusable = True


def _gone(descriptor: int, region: int, held: _Held, done: Callable[[tuple[int, bool]], object]) -> None:
    if descriptor >= 0:
        os.close(descriptor)
        done((region, held.reusable))


class _Window(mmap.mmap):
    """A read-only mapping that is kept; closing it only says, by BufferError, that an array still lies in it."""

    def close(self) -> None:
        try:
            self.resize(len(self))  # refused: first because of such an array, then because nothing read-only is resized
        except TypeError:
            return


_windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()  # by the identity of the file
_opening = threading.Lock()


def _window(descriptor: int, size: int) -> _Window:
    """The read-only mapping of a file, made once. A file keeps its number as long as it is mapped."""
    status = os.fstat(descriptor)
    key = status.st_dev, status.st_ino
    with _opening:
        window = _windows.pop(key, None)
        if window is None or len(window) < size:
            window = _Window(descriptor, status.st_size, access=mmap.ACCESS_READ)
        _windows[key] = window
        while len(_windows) > KEPT_REGIONS:
            _windows.popitem(last=False)  # unmapped with its last array
        return window


def _closed(mapped: mmap.mmap) -> bool:
    """Close a mapping; False if an array still lies in it."""
    try:
        mapped.close()
    except BufferError:
        return False
    return True


class _Region:
    """One anonymous file in memory, mapped for writing."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.capacity = number, capacity
        self.users = 0
        self.reusable = True
        self.descriptor = _anonymous_file()
        try:
            os.ftruncate(self.descriptor, capacity)
            self.view = mmap.mmap(self.descriptor, capacity)
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        self.view.close()
        os.close(self.descriptor)


class RegionPool:
    """The files of one process, each used again when nobody needs it: its parcel is gone in this process, and, unless
    `reuse_when_gone` says that this is enough, every parcel that was sent was given back by whoever hands them around.
    Safe to use from many threads."""

    def __init__(self, *, reuse_when_gone: bool = False) -> None:
        self.reuse_when_gone = reuse_when_gone
        self._lock = threading.Lock()
        self._free: list[_Region] = []
        self._used: dict[int, _Region] = {}
        self._gone: deque[tuple[int, _Held]] = deque()
        self._made = 0
        self._closed = False

    def pack(self, value: Any) -> tuple[Packed, int]:
        """Pickle a value, its large buffers copied once into a region; the descriptor is that region's (-1: none)."""
        buffers: list[pickle.PickleBuffer] = []
        payload = dumps(value, buffers.append)
        raws = [buffer.raw() for buffer in buffers]
        if sum(raw.nbytes for raw in raws) < SMALL:
            return Packed(payload, tuple(bytes(raw) for raw in raws), (), -1, 0), -1
        spans, end = [], 0
        for raw in raws:
            spans.append((end, raw.nbytes))
            end += -(-raw.nbytes // _ALIGN) * _ALIGN
        region = self._take(end)
        with memoryview(region.view) as target:
            for raw, (start, size) in zip(raws, spans, strict=True):
                target[start : start + size] = raw
        return Packed(payload, (), tuple(spans), region.number, end), region.descriptor

    def sending(self, number: int, *, own: bool) -> None:
        """The region is sent to somebody who will give it back. Raises LzeroAsyncError if it is not of this pool."""
        if self.reuse_when_gone:  # whoever hands parcels around sends those of others, too, and gets none back
            return
        if not own:
            raise LzeroAsyncError("A worker cannot send on a parcel that it got; open it, and send a new one.")
        with self._lock:
            if (region := self._used.get(number)) is not None:
                region.users += 1

    def not_sent(self, regions: Iterable[int]) -> None:
        """The message of these regions could not be sent after all."""
        if not self.reuse_when_gone:
            self.give_back((number, True) for number in regions)

    def gone(self, number: int, held: _Held) -> None:
        """The parcel of this region is gone in this process. Takes no lock: the garbage collector may call it in a thread
        that holds the lock; the next one who takes a region looks at it."""
        self._gone.append((number, held))
        if self._closed and self._lock.acquire(blocking=False):
            try:
                surplus = self._look_at_gone()
            finally:
                self._lock.release()
            for region in surplus:
                region.close()

    def give_back(self, regions: Iterable[tuple[int, bool]]) -> None:
        """These regions were sent once each and came back; what is not reusable is somebody else's for good."""
        with self._lock:
            surplus = [*self._look_at_gone(), *(found for item in regions if (found := self._leave(*item)))]
        for region in surplus:
            region.close()

    def _look_at_gone(self) -> list[_Region]:
        """Under the lock: count the parcels that are gone; return the regions to close."""
        surplus = []
        while self._gone:
            number, held = self._gone.popleft()
            if region := self._leave(number, held.reusable):
                surplus.append(region)
        return surplus

    def _leave(self, number: int, reusable: bool) -> _Region | None:
        """Under the lock: one user less; return a region to close."""
        region = self._used.get(number)
        if region is None:
            return None
        region.users -= 1
        region.reusable &= reusable
        if region.users:
            return None
        del self._used[number]
        if self._closed or not region.reusable:
            return region
        self._free.append(region)
        return self._free.pop(0) if len(self._free) > KEPT_REGIONS else None

    def close(self) -> None:
        """Let go of everything: at once, or with the last parcel that still is in use here."""
        with self._lock:
            self._closed = True
            regions, self._free = [*self._look_at_gone(), *self._free], []
        for region in regions:
            region.close()

    @property
    def regions(self) -> tuple[int, int]:
        """How many regions are in use and how many wait to be used again."""
        self.give_back(())
        with self._lock:
            return len(self._used), len(self._free)

    def _take(self, size: int) -> _Region:
        self.give_back(())
        with self._lock:
            fitting = [region for region in self._free if region.capacity >= size]
            if fitting:
                region = min(fitting, key=lambda candidate: candidate.capacity)
                self._free.remove(region)
            else:
                self._made += 1
                # A power of two, so that others fit later; pages that are not touched cost nothing.
                region = _Region(self._made, 1 << max(16, (size - 1).bit_length()))
            region.users, region.reusable = 1, True
            self._used[region.number] = region
            return region


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lzero-async", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# -- pickling --------------------------------------------------------------------------------------------------------------


class Pickler(pickle.Pickler):
    """Protocol 5; a torch tensor goes as the array behind it, so that its memory is shared like an array's. With
    `parcels`, parcels are taken out of the message and collected there."""

    def __init__(
        self,
        file: io.BytesIO,
        buffers: Callable[[pickle.PickleBuffer], Any] | None,
        parcels: list[Parcel] | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        self._parcels = parcels

    def persistent_id(self, obj: Any) -> Any:
        """The place of a parcel among the message's parcels."""
        if self._parcels is None or type(obj) is not Parcel:
            return None
        self._parcels.append(obj)
        return len(self._parcels) - 1

    def reducer_override(self, obj: Any) -> Any:
        """Tensors as arrays; everything else as usual."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):  # another thread may be importing it: no tensor is there yet
            return NotImplemented
        if not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided:
            return NotImplemented
        tensor = obj.detach().cpu().contiguous()
        if tensor.dtype is torch.bfloat16:
            return _tensor, (tensor.view(torch.int16).numpy(), "bfloat16")
        try:
            return _tensor, (tensor.numpy(), "")
        except (TypeError, RuntimeError):  # numpy has no such type: as torch pickles it
            return NotImplemented


class Unpickler(pickle.Unpickler):
    """Reads what Pickler wrote."""

    def __init__(
        self, file: io.BytesIO, buffers: Iterable[Any] | None, parcels: Sequence[Parcel] = (), read_only: bool = False
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._parcels, self._read_only = parcels, read_only

    def find_class(self, module: str, name: str) -> Any:
        """Tensors over memory that nobody writes to need no copy."""
        if self._read_only and (module, name) == (__name__, "_tensor"):
            return _read_only_tensor
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """The parcel of that place."""
        return self._parcels[pid]


def dumps(
    value: Any, buffers: Callable[[pickle.PickleBuffer], Any] | None = None, parcels: list[Parcel] | None = None
) -> bytes:
    """Pickle a value."""
    file = io.BytesIO()
    Pickler(file, buffers, parcels).dump(value)
    return file.getvalue()


def loads(
    payload: bytes,
    buffers: Iterable[Any] | None = None,
    parcels: Sequence[Parcel] = (),
    *,
    read_only: bool = False,
) -> Any:
    """Read a pickled value; with `read_only`, tensors lie in the buffers even if those cannot be written to."""
    return Unpickler(io.BytesIO(payload), buffers, parcels, read_only).load()


def _tensor(array: Any, kind: str) -> Any:
    import torch

    if not array.flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor


def _read_only_tensor(array: Any, kind: str) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch knows no read-only tensors and says so
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
