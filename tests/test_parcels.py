"""Parcels, the memory they lie in, the wire they travel on; and that no reader ever sees a mixture of two versions."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import socket
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lzero_async import LzeroAsyncError, Parcel, WeightStore, Worker, make_backend, parcels
from lzero_async.parcels import KEPT_REGIONS, SMALL, RegionPool
from lzero_async.testing import ScriptedRole
from lzero_async.wire import Wire, WireClosed

BIG = 100_000


def descriptors() -> int:
    """Open sockets and anonymous files."""
    gc.collect()
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "/memfd:", "pipe:"))
        except FileNotFoundError:  # the one that listed the folder
            continue
    return found


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before


class Pair:
    """Two ends of a connection: `maker` packs into a pool like a worker's, `owner` into one like its parent's."""

    def __init__(self) -> None:
        ends = socket.socketpair()
        self.maker_pool, self.owner_pool = RegionPool(), RegionPool(reuse_when_gone=True)
        self.maker, self.owner = Wire(ends[0], self.maker_pool), Wire(ends[1], self.owner_pool)
        self.given_back: list[tuple[int, bool]] = []

    def bring(self, value: Any) -> Any:
        """Send a value from the maker to the owner; return what arrived."""
        self.maker.send("reply", 1, value)
        message = self.owner.receive()
        for parcel in message.parcels:
            parcel.when_gone(self.given_back.append)
        return message.value()

    def close(self) -> None:
        for part in (self.maker, self.owner, self.maker_pool, self.owner_pool):
            part.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    gc.collect()
    pair.maker_pool.give_back(pair.given_back)
    pair.close()


def filled(byte: int, size: int = BIG) -> np.ndarray:
    return np.full(size, byte, np.uint8)


# -- parcels -----------------------------------------------------------------------------------------------------------------


def test_a_parcel_that_did_not_travel_is_its_value() -> None:
    value = [1, 2]
    parcel = Parcel(value, meta="two")
    assert parcel.open() is value
    assert parcel.meta == "two"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3, dtype=np.int64),
        np.arange(SMALL, dtype=np.float32),
        np.asfortranarray(np.arange(60_000, dtype=np.float64).reshape(300, 200)),
        np.arange(200_000, dtype=np.int16)[::2],
        np.zeros((0, 5)),
        np.array(3.5),
        np.array([{"an": "object"}, None], dtype=object),
    ],
    ids=["small", "large", "fortran", "strided", "empty", "scalar", "objects"],
)
def test_every_kind_of_array_arrives_as_it_was(pair: Pair, array: np.ndarray) -> None:
    parcel, note = pair.bring((Parcel({"one": array, "two": [filled(7), "text"]}, meta=(1, "a")), "note"))
    value = parcel.open()
    assert parcel.meta == (1, "a")
    assert note == "note"
    np.testing.assert_array_equal(value["one"], array)
    assert value["one"].dtype == array.dtype and value["one"].shape == array.shape
    np.testing.assert_array_equal(value["two"][0], filled(7))
    assert value["two"][1] == "text"
    if array.dtype != object:
        value["two"][0][:] = 1  # what is opened may be changed,
        np.testing.assert_array_equal(parcel.open()["two"][0], filled(7))  # and nobody notices
    assert pair.maker_pool.regions == (1, 0)


def test_a_small_parcel_needs_no_descriptor(pair: Pair) -> None:
    parcel = pair.bring(Parcel(filled(1, SMALL - 1)))
    assert pair.maker_pool.regions == (0, 0)
    assert parcel.open().sum() == SMALL - 1


def test_parcels_that_wait_in_a_checkpoint_are_saved_with_their_content(pair: Pair) -> None:
    """What is pickled into a file must not depend on a descriptor of this process."""
    parcel = pair.bring(Parcel({"data": filled(5)}, meta="five"))
    for other in (pickle.loads(pickle.dumps(parcel)), copy.deepcopy(parcel), Parcel([parcel])):
        if isinstance(other.open(), list):  # a parcel in a parcel
            other = pair.bring(other)
            other = other.open()[0]
        assert other.meta == "five"
        np.testing.assert_array_equal(other.open()["data"], filled(5))


def test_a_parcel_cannot_be_opened_or_sent_when_its_message_is_closed(pair: Pair) -> None:
    parcel = pair.bring(Parcel(filled(5)))
    pair.owner.send("call", 2, parcel)
    message = pair.maker.receive()
    given = message.value()
    assert given.open()[0] == 5
    with pytest.raises(LzeroAsyncError, match="cannot send on a parcel that it got"):
        pair.maker.send("reply", 2, given)
    assert given.let_go()
    message.close()
    with pytest.raises(LzeroAsyncError, match="came with a call that has ended"):
        given.open()
    with pytest.raises(LzeroAsyncError, match="came with a call that has ended"):
        pair.maker.send("reply", 2, given)


def test_let_go_tells_whether_an_array_is_held(pair: Pair) -> None:
    parcel = pair.bring(Parcel([filled(1), filled(2)]))
    arrays = parcel.open()
    part = arrays[1][10:20]
    assert not parcel.let_go()
    del arrays
    assert not parcel.let_go()
    del part
    assert parcel.let_go()
    cycle: list[Any] = [parcel.open()]
    cycle.append(cycle)
    del cycle
    assert parcel.let_go()  # only garbage held it


class Slow:
    """Pickling it takes as long as the test wants."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.times = 0

    def __reduce__(self) -> tuple[Any, ...]:
        self.times += 1
        self.entered.set()
        assert self.go_on.wait(10)
        return bytes, (b"slow",)


def test_a_parcel_that_two_threads_send_at_once_is_packed_once() -> None:
    pool, slow = RegionPool(reuse_when_gone=True), Slow()
    parcel = Parcel([slow, filled(1)])
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(parcel.pack, pool)
        assert slow.entered.wait(10)
        second, opened = threads.submit(parcel.pack, pool), threads.submit(parcel.open)
        slow.go_on.set()
        assert first.result(10) == second.result(10)
        assert opened.result(10)[0] == b"slow"
    assert slow.times == 1
    assert pool.regions == (1, 0)
    del parcel, opened
    gc.collect()
    pool.close()


def test_tensors_of_types_that_numpy_does_not_know_travel_too(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "bfloat": torch.arange(70_000).to(torch.bfloat16),
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    parcel = pair.bring(Parcel(tensors))
    found = parcel.open()
    assert torch.equal(found["bfloat"], tensors["bfloat"])
    assert found["conjugate"].resolve_conj()[0] == 1 - 2j


# -- regions -----------------------------------------------------------------------------------------------------------------


def test_a_region_is_used_again_when_its_parcel_is_gone_on_both_sides(pair: Pair) -> None:
    made = Parcel(filled(1))
    arrived = pair.bring(made)
    del arrived
    gc.collect()
    assert pair.given_back == [(1, True)]
    pair.maker_pool.give_back(pair.given_back)
    assert pair.maker_pool.regions == (1, 0)  # the maker may send it again
    del made
    assert pair.maker_pool.regions == (0, 1)
    arrived = pair.bring(Parcel(filled(2)))
    assert pair.maker_pool.regions == (1, 0)
    assert arrived.open()[0] == 2


def test_a_region_that_was_sent_twice_comes_back_twice(pair: Pair) -> None:
    made = Parcel(filled(1))
    arrived = [*pair.bring((made, made)), pair.bring(made)]
    del made
    for left in (2, 1, 0):
        assert pair.maker_pool.regions == (1, 0)
        arrived.pop()
        gc.collect()
        pair.maker_pool.give_back(pair.given_back)
        pair.given_back.clear()
        assert pair.maker_pool.regions == ((1, 0) if left else (0, 1))


def test_a_region_that_somebody_keeps_is_never_used_again(pair: Pair) -> None:
    arrived = pair.bring(Parcel(filled(1)))
    kept = arrived.open()
    arrived.keep()
    del arrived
    gc.collect()
    assert pair.given_back == [(1, False)]
    pair.maker_pool.give_back(pair.given_back)
    assert pair.maker_pool.regions == (0, 0)
    for byte in range(2, 10):
        pair.bring(Parcel(filled(byte)))
    assert set(kept) == {1}


def test_regions_that_come_back_twice_or_of_nobody_do_no_harm() -> None:
    pool = RegionPool()
    pool.give_back([(1, True), (-1, True), (99, False)])
    parcel = Parcel(filled(1))
    parcel.pack(pool)
    del parcel
    pool.give_back([(1, True), (1, True), (1, False)])
    assert pool.regions == (0, 1)
    pool.close()


def test_only_a_few_free_regions_are_kept_and_the_smallest_that_fits_is_used() -> None:
    pool = RegionPool(reuse_when_gone=True)
    parcels = [Parcel(filled(1, 1 << (17 + step))) for step in range(KEPT_REGIONS + 2)]
    for parcel in parcels:
        parcel.pack(pool)
    assert pool.regions == (KEPT_REGIONS + 2, 0)
    del parcel
    parcels.clear()
    assert pool.regions == (0, KEPT_REGIONS)
    small = Parcel(filled(2, 1 << 19))
    assert small.pack(pool)[0].region == 3  # not one of the larger ones
    del small
    assert pool.regions == (0, KEPT_REGIONS)
    pool.close()


def test_a_parcel_may_be_collected_while_its_pool_is_locked() -> None:
    """The garbage collector runs finalizers wherever it likes: also in a thread that holds the pool's lock."""
    pool = RegionPool(reuse_when_gone=True)
    parcel = Parcel(filled(1))
    parcel.pack(pool)
    with pool._lock:
        del parcel
    assert pool.regions == (0, 1)
    pool.close()


def test_a_parcel_that_is_still_in_use_outlives_its_pool() -> None:
    pool = RegionPool(reuse_when_gone=True)
    free, parcel = Parcel(filled(1)), Parcel(filled(2))
    free.pack(pool), parcel.pack(pool)
    del free
    pool.close()
    other = os.open("/dev/null", os.O_RDONLY)  # takes the number of a descriptor that was closed too early
    assert set(parcel.open()) == {2}
    os.close(other)
    del parcel
    assert pool.regions == (0, 0)


# -- the wire ----------------------------------------------------------------------------------------------------------------


def test_messages_of_many_threads_do_not_mix(pair: Pair) -> None:
    sizes = [0, 10, 3_000, 70_000, 300_000]
    held: list[Parcel] = []

    def send(worker: int) -> None:
        stream = random.Random(worker)
        for number in range(60):
            size = stream.choice(sizes)
            parcel = Parcel(filled(worker, size))
            held.append(parcel)  # until it was read, as a call does until its reply
            pair.owner.send("call", number, (worker, parcel, bytes([worker]) * size))

    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(send, worker) for worker in range(4)]
        numbers: dict[int, list[int]] = {worker: [] for worker in range(4)}
        for _ in range(240):
            message = pair.maker.receive()
            worker, parcel, raw = message.value()
            numbers[worker].append(message.number)
            assert set(raw) <= {worker}
            assert set(parcel.open()) <= {worker}
            assert parcel.let_go()
            message.close()
        for one in sent:
            one.result(10)
    assert all(found == list(range(60)) for found in numbers.values())
    held.clear()
    assert pair.owner_pool.regions[0] == 0


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 200])
def test_any_number_of_parcels_goes_with_one_message(pair: Pair, count: int) -> None:
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(pair.owner.send, "call", 1, [Parcel(filled(n, SMALL), meta=n) for n in range(count)])
        message = pair.maker.receive()
        sent.result(10)
    assert [(parcel.meta, parcel.open()[0]) for parcel in message.value()] == [(n, n) for n in range(count)]
    assert all(parcel.let_go() for parcel in message.parcels)
    message.close()


def test_what_arrives_is_not_inherited(pair: Pair) -> None:
    pair.owner.send("call", 1, Parcel(filled(1)))
    message = pair.maker.receive()
    assert not any(os.get_inheritable(descriptor) for descriptor in message._descriptors)
    message.close()


def test_a_message_that_cannot_be_pickled_is_not_sent(pair: Pair) -> None:
    for value in (threading.Lock(), [Parcel(filled(1)), Parcel(threading.Lock())], Parcel(filled(1), threading.Lock())):
        for wire in (pair.maker, pair.owner):
            with pytest.raises(TypeError, match="pickle"):
                wire.send("call", 1, value)
        del value
    gc.collect()
    assert pair.maker_pool.regions[0] == 0
    assert pair.owner_pool.regions[0] == 0
    assert pair.bring("fine") == "fine"


def test_the_end_of_the_other_side_is_an_error_of_its_own(pair: Pair) -> None:
    pair.owner.send("call", 1, Parcel(filled(1)))
    pair.owner.close()
    message = pair.maker.receive()  # what was sent before the end arrives
    message.close()
    assert pair.maker.wait_for_message(0.0)
    with pytest.raises(WireClosed, match="ended"):
        pair.maker.receive()
    with pytest.raises(WireClosed):
        pair.maker.send("reply", 1, "x" * 1_000_000)


def test_an_end_in_the_middle_of_a_message_is_found(pair: Pair) -> None:
    pair.owner._socket.sendall(b"\x10\x00")
    pair.owner._socket.shutdown(socket.SHUT_WR)
    with pytest.raises(WireClosed, match="in the middle"):
        pair.maker.receive()


def test_a_side_that_stops_in_the_middle_of_a_message_counts_as_gone(pair: Pair) -> None:
    pair.maker.limit(0.05)
    pair.owner._socket.sendall(b"\x10\x00")
    with pytest.raises(WireClosed):
        pair.maker.receive()
    with pytest.raises(WireClosed):
        pair.maker.send("reply", 1, "x" * 10_000_000)  # nobody reads


# -- a reader can never mix two versions ---------------------------------------------------------------------------------------

PUBLISHER = """
def publish(version):
    pattern = version.to_bytes(8, "little")
    return Parcel([PickleBuffer(bytearray(pattern * words)) for words in (131_072, 150_000, 140_001)], meta=version)
"""
READER = """
def read(parcel):
    arrays = parcel.read()
    seen = set()
    for array in (*arrays, arrays[0]):
        raw = bytes(array)
        first = raw[:8]
        seen.add(int.from_bytes(first, "little") if raw == first * (len(raw) // 8) else "a mixture")
    return sorted(map(str, seen))
"""
REUSE_AT_ONCE = """
from lzero_async import parcels
def take(pool, size, regions={}):
    region = regions.setdefault(size, None) or parcels._Region(1, 1 << 22)
    regions[size] = region
    return region
parcels.RegionPool._take = take
"""


def readings(reads: int, prepare: str = "") -> tuple[list[str], int]:
    """Publish versions as fast as possible while three processes read the newest one, as the coordinator and its
    collectors do; return what was wrong, and the number of versions."""
    backend = make_backend("process")
    store, over, wrong = WeightStore(), threading.Event(), list[str]()
    workers = [backend.start(name, ScriptedRole) for name in ("publisher", "reader 0", "reader 1", "reader 2")]
    publisher, *readers = workers

    def publish() -> int:
        version = 0
        while not over.is_set():
            version += 1
            store.publish(publisher.call("do", "result = publish(args[0])", version), version)
        return version

    def read(reader: Worker) -> None:
        last = 0
        for _ in range(reads):
            snapshot = store.latest()
            assert snapshot is not None
            seen = reader.call("do", "result = read(args[0])", snapshot.state)
            if seen != [str(snapshot.version)] or snapshot.state.meta != snapshot.version:
                wrong.append(f"{reader.name} was given version {snapshot.version} and saw {seen}")
                return
            if snapshot.version < last:
                wrong.append(f"{reader.name} went back from {last} to {snapshot.version}")
            last = snapshot.version

    try:
        publisher.call("do", prepare + PUBLISHER)
        for reader in readers:
            reader.call("do", READER)
        store.publish(publisher.call("do", "result = publish(0)"), 0)
        with ThreadPoolExecutor(4) as threads:
            published = threads.submit(publish)
            try:
                for one in [threads.submit(read, reader) for reader in readers]:
                    one.result(120)
            finally:
                over.set()
            return wrong, published.result(30)
    finally:
        backend.close()


def test_a_reader_never_sees_a_mixture_of_two_versions() -> None:
    wrong, versions = readings(reads=700)
    assert wrong == []
    assert versions > 100


def test_the_test_above_finds_a_mixture() -> None:
    """With a pool that uses a region again at once."""
    wrong, _ = readings(reads=1000, prepare=REUSE_AT_ONCE)
    assert wrong


def test_what_is_read_cannot_be_changed_and_costs_no_new_mapping() -> None:
    pool = RegionPool()
    maps = []
    for number in range(3):
        packed, descriptor = Parcel({"a": np.full(50_000, float(number))}).pack(pool)
        arrived = Parcel.of(packed, None, os.dup(descriptor))
        value = arrived.read()
        assert float(value["a"].sum()) == 50_000 * number
        with pytest.raises(ValueError, match="read-only"):
            value["a"][0] = 1.0
        assert not arrived.let_go()  # the array is still held
        del value
        assert arrived.let_go()
        os.close(arrived._descriptor)
        pool.give_back([(packed.region, True)])
        maps.append(set(parcels._windows))
    assert maps[0] == maps[1] == maps[2]  # one region, mapped once
    pool.close()
    parcels._windows.clear()


def test_small_parcels_are_read_as_they_are_opened() -> None:
    packed, descriptor = Parcel({"a": 1}).pack(RegionPool())
    assert Parcel.of(packed, None, descriptor).read() == {"a": 1}
    assert Parcel([1, 2]).read() == [1, 2]


def test_a_torch_that_another_thread_is_importing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert parcels.loads(parcels.dumps({"a": range(3)})) == {"a": range(3)}
