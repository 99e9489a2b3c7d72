"""Checks of parcels between workers."""

from __future__ import annotations

import importlib.util
import pickle
from functools import partial

from lzero_async.testing.conformance.tools import Others, started
from lzero_async.workers.backend import Backend
from lzero_async.workers.parcels import Parcel


def a_parcel_of_one_worker_is_opened_in_another(backend: Backend) -> None:
    """Large and small ones; who passes them on reads only their meta."""
    maker, _ = started(backend)
    reader, _ = started(backend)
    for size in (10, 100_000, 3_000_000):
        parcel = maker.call("parcel", 7, size)
        assert isinstance(parcel, Parcel) and parcel.meta == ("made", 7)
        assert reader.call("look", parcel) == (size, [7])
        assert maker.call("look", parcel) == (size, [7])
        assert bytes(parcel.open()["data"]) == b"\x07" * size


def a_parcel_of_the_caller_is_opened_in_a_worker(backend: Backend) -> None:
    """Several readers at once get the same content."""
    readers = [started(backend)[0] for _ in range(2)]
    for reader in readers:
        reader.call("add", 0)
    for byte in range(5):
        parcel = Parcel({"data": pickle.PickleBuffer(bytearray([byte]) * 200_000)}, meta=byte)
        with Others() as others:
            found = [others.start(partial(reader.call, "look", parcel)) for reader in readers]
        assert [one.result() for one in found] == [(200_000, [byte])] * 2
        assert parcel.meta == byte


def a_parcel_outlives_its_maker(backend: Backend) -> None:
    """What was handed over stays, whatever becomes of the worker that made it."""
    maker, _ = started(backend)
    reader, _ = started(backend)
    parcel = maker.call("parcel", 9)
    maker.kill()
    assert reader.call("look", parcel) == (100_000, [9])
    maker.restart()
    assert maker.call("look", parcel) == (100_000, [9])


def a_live_parcel_is_a_copy(backend: Backend) -> None:
    """What the maker changes later is not seen, wherever in the result the parcel is."""
    maker, _ = started(backend)
    reader, _ = started(backend)
    maker.call("scribble", 1)
    parcel = maker.call("live")
    inside = maker.call("live_inside")["parts"][0][1]
    maker.call("scribble", 2)
    assert reader.call("look_at_live", parcel) == [1]
    assert reader.call("look_at_live", inside) == [1]
    assert reader.call("look_at_live", maker.call("live")) == [2]


def tensors_travel_in_parcels(backend: Backend) -> None:
    """Torch tensors keep type, shape and values (without torch this check says nothing)."""
    if importlib.util.find_spec("torch") is None:
        return
    maker, _ = started(backend)
    reader, _ = started(backend)
    parcel = maker.call("tensor_parcel")
    maker.call("change_tensors")
    found = reader.call("look_at_tensors", parcel)
    assert found == {
        "float": ("torch.float32", [50_000], found["float"][2]),
        "bfloat": ("torch.bfloat16", [256], 32_640.0),
        "half": ("torch.float16", [3, 3], 9.0),
        "scalar": ("torch.int64", [], 7),
        "empty": ("torch.float32", [0, 4], 0.0),
        "leaf": ("torch.float32", [2], 2.0),
        "strided": ("torch.int64", [5], 20),
    }
    assert abs(found["float"][2] / 1_249_975_000 - 1) < 1e-6
