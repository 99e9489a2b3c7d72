"""Values that travel once between processes: packed into shared memory where they are made, mapped where they are used.

A parcel's arrays and tensors lie in one anonymous file in memory (`regions`); everybody in between passes its descriptor on
without looking inside.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lzero_async.errors import ConfigError
from lzero_async.workers.regions import Lease, RegionPool

SMALL: Final = 32_768  # bytes that are cheaper to send than to map
_WHOLE: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # torch's types by their bytes


class Packed(NamedTuple):
    """A packed value: its pickle, and its buffers either in here (`inside`) or at `spans` (offset, size) of a file."""

    payload: bytes
    inside: tuple[bytes, ...]
    spans: tuple[tuple[int, int], ...]
    size: int


class Stored(NamedTuple):
    """A packed value whose buffers lie in memory that nobody writes to and that somebody else looks after; `source` is for
    him."""

    payload: bytes
    buffers: Sequence[Any]
    source: Any = None


class Parcel:
    """A value to hand on, with a little `meta` that everybody may read. `open()` gives the value.

    Whoever opens a parcel keeps the value as it is for as long as he holds it, wherever he lives and whatever becomes of
    the parcel, the call and the maker. In another process than the maker's its arrays may be changed without anybody
    noticing; in the maker's process the value is not copied, unless `live` says that the maker goes on changing it.
    """

    __slots__ = ("__weakref__", "_lease", "_live", "_lock", "_packed", "_stored", "_value", "meta")

    def __init__(self, value: Any, meta: Any = None, *, live: bool = False) -> None:
        self.meta = meta
        self._value = value
        self._live = live
        self._lock = threading.RLock()  # its value may hold the parcel itself
        self._packed: Packed | None = None
        self._stored: Stored | None = None
        self._lease: Lease | None = None

    @classmethod
    def of(cls, packed: Packed, meta: Any, lease: Lease | None) -> Parcel:
        """One that arrived, with what holds its memory."""
        parcel = cls(None, meta)
        parcel._packed, parcel._lease = packed, lease
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
        """The value."""
        with self._lock:
            packed, stored, lease = self._packed, self._stored, self._lease
            if packed is None and stored is None:
                if self._live:  # nobody settled it on its way here
                    self._live = False  # now: the value may hold the parcel itself
                    try:
                        self._value = _copied(self._value)
                    except BaseException:
                        self._live = True
                        raise
                return self._value
        if stored is not None:  # its memory cannot be mapped for writing
            return loads(stored.payload, [bytearray(buffer) for buffer in stored.buffers])
        assert packed is not None
        if lease is None:
            return loads(packed.payload, [bytearray(buffer) for buffer in packed.inside])
        view = lease.map_private(packed.size)
        return loads(packed.payload, [view[start : start + size] for start, size in packed.spans])

    def read(self) -> Any:
        """The value, to be copied from only: writing to its arrays raises, writing to its tensors ends the process. Cheaper
        than `open` for what comes again and again, like weights: the memory stays mapped from one call to the next."""
        with self._lock:
            packed, stored, lease = self._packed, self._stored, self._lease
        if stored is not None:
            return loads(stored.payload, stored.buffers, read_only=True)
        if packed is None or lease is None:
            return self.open()
        view = lease.map_read_only(packed.size)
        return loads(packed.payload, [view[start : start + size] for start, size in packed.spans], read_only=True)

    def settled(self, copy: Callable[[Any], Any]) -> Parcel:
        """Itself, with a copy of its value if its maker goes on changing that."""
        with self._lock:
            if self._live and self._packed is None and self._stored is None:
                self._value, self._live = copy(self._value), False
        return self

    def pack(self, pool: RegionPool) -> tuple[Packed, Lease | None]:
        """Its packed form and what holds its memory (None: it needs none); made once, and sent by the caller."""
        with self._lock:
            if self._packed is None:
                stored = self._stored
                value = self._value if stored is None else loads(stored.payload, stored.buffers, read_only=True)
                packed, self._lease = pack(value, pool)
                del value
                self._packed, self._value = packed, None
            return self._packed, self._lease

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


def pack(value: Any, pool: RegionPool) -> tuple[Packed, Lease | None]:
    """Pickle a value, its large buffers copied once into a region that the lease holds (None: they are small)."""
    buffers: list[pickle.PickleBuffer] = []
    payload = dumps(value, buffers.append)
    raws = [buffer.raw() for buffer in buffers]
    if sum(raw.nbytes for raw in raws) < SMALL:
        return Packed(payload, tuple(bytes(raw) for raw in raws), (), 0), None
    spans, end, lease = pool.pack(raws)
    return Packed(payload, (), spans, end), lease


# -- pickling ------------------------------------------------------------------------------------------------------------


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
        if not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided or obj.is_quantized:
            return NotImplemented
        is_parameter = type(obj) is torch.nn.Parameter
        if type(obj) is not torch.Tensor and not is_parameter:
            return NotImplemented
        try:
            tensor = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
            try:
                array, dtype = tensor.numpy(), ""
            except TypeError:  # numpy has no such type: as whole numbers of the same size
                array, dtype = tensor.view(getattr(torch, _WHOLE[tensor.itemsize])).numpy(), str(tensor.dtype)[6:]
        except (TypeError, RuntimeError, KeyError):  # it has no data, say: as torch pickles it
            return NotImplemented
        return _tensor, (array, dtype, obj.requires_grad and obj.is_leaf, is_parameter)


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
    """Pickle a value. Raises what pickling raises, and ConfigError if a stop signal is in it."""
    file = io.BytesIO()
    try:
        Pickler(file, buffers, parcels).dump(value)
    except TypeError:
        _refuse_stops(value)
        raise
    return file.getvalue()


def _refuse_stops(value: Any) -> None:
    """Raise ConfigError if this value cannot be sent because a context, or its stop signal, is in it."""
    with contextlib.suppress(TypeError, pickle.PicklingError):
        _StopFinder(io.BytesIO(), lambda buffer: None, []).dump(value)


class _StopFinder(Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if hasattr(obj, "is_set") and hasattr(obj, "wait"):
            raise ConfigError(
                f"A {type(obj).__name__}, which is a stop signal, cannot be sent to another process: give call() the "
                "argument stop=ctx.stop, and of a context or a batch pass only what the worker needs, such as "
                "ctx.snapshot.state or batch.data."
            )
        return super().reducer_override(obj)


def loads(
    payload: bytes,
    buffers: Iterable[Any] | None = None,
    parcels: Sequence[Parcel] = (),
    *,
    read_only: bool = False,
) -> Any:
    """Read a pickled value; with `read_only`, tensors lie in the buffers even if those cannot be written to."""
    value = Unpickler(io.BytesIO(payload), buffers, parcels, read_only).load()
    # torch keeps every sparse tensor that it made until its own `load` has looked at them: for ever, where nobody calls that.
    if kept := getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", None):
        kept.clear()
    return value


def _copied(value: Any) -> Any:
    """The value as if it had been sent."""
    buffers: list[pickle.PickleBuffer] = []
    payload = dumps(value, buffers.append)
    return loads(payload, [bytearray(buffer) for buffer in buffers])


def _tensor(array: Any, dtype: str, requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    if not array.flags.writeable:
        array = array.copy()
    return _as_it_was(torch.from_numpy(array), dtype, requires_grad, is_parameter)


def _read_only_tensor(array: Any, dtype: str, requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch knows no read-only tensors and says so
        tensor = torch.from_numpy(array)
    return _as_it_was(tensor, dtype, requires_grad, is_parameter)


def _as_it_was(tensor: Any, dtype: str, requires_grad: bool, is_parameter: bool) -> Any:
    """The tensor with its own type, and a parameter if it was one: a network that travels can still be trained."""
    import torch

    if dtype:
        tensor = tensor.view(getattr(torch, dtype))
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
