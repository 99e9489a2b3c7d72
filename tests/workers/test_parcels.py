"""Parcels, the memory they lie in, the wire they travel on; and that no reader ever sees a mixture of two versions."""

from __future__ import annotations

import copy
import gc
import mmap
import os
import pickle
import random
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lzero_async import Parcel, Worker, make_backend
from lzero_async.core.weights import WeightStore
from lzero_async.testing import ScriptedRole
from lzero_async.workers import parcels, regions
from lzero_async.workers._channel import Wire, WireClosed
from lzero_async.workers.parcels import SMALL, Stored
from lzero_async.workers.regions import KEPT_REGIONS, WATCHED_REGIONS, RegionPool

BIG = 100_000


def descriptors() -> int:
    """Open sockets and anonymous files, without those that wait to be read again."""
    regions._windows.clear()
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
        self.maker_pool, self.owner_pool = RegionPool(), RegionPool()
        self.maker, self.owner = Wire(ends[0], self.maker_pool), Wire(ends[1], self.owner_pool)

    def bring(self, value: Any) -> Any:
        """Send a value from the maker to the owner; return what arrived."""
        self.maker.send("reply", 1, value)
        return self.owner.receive().value()

    def close(self) -> None:
        for part in (self.maker, self.owner, self.maker_pool, self.owner_pool):
            part.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
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


def test_a_parcel_is_opened_and_sent_on_after_its_message(pair: Pair) -> None:
    parcel = pair.bring(Parcel(filled(5)))
    pair.owner.send("call", 2, parcel)
    message = pair.maker.receive()
    given = message.value()
    message.close()
    assert given.open()[0] == 5
    del parcel, message
    again = pair.bring(given)
    del given
    assert set(again.open()) == {5}


@pytest.mark.parametrize("look", [Parcel.open, Parcel.read])
def test_memory_is_in_use_while_anybody_holds_an_array(pair: Pair, look: Callable[[Parcel], Any]) -> None:
    arrays = look(pair.bring(Parcel([filled(1), filled(2)])))
    part = arrays[1][10:20]
    assert pair.maker_pool.regions == (1, 0)
    del arrays
    assert pair.maker_pool.regions == (1, 0)
    del part
    assert pair.maker_pool.regions == (0, 1)


@pytest.mark.parametrize("look", [Parcel.open, Parcel.read])
def test_a_tensor_holds_its_memory(pair: Pair, look: Callable[[Parcel], Any]) -> None:
    torch = pytest.importorskip("torch")
    kept = look(pair.bring(Parcel({"weights": torch.ones(BIG)})))["weights"][7:].view(-1)
    assert pair.maker_pool.regions == (1, 0)
    for number in range(2, 12):
        pair.bring(Parcel(torch.full((BIG,), float(number))))
    assert set(kept.tolist()) == {1.0}
    del kept
    assert pair.maker_pool.regions[0] == 0


def test_memory_is_in_use_while_a_message_is_under_way(pair: Pair) -> None:
    pair.maker.send("reply", 1, Parcel(filled(1)))
    assert pair.maker_pool.regions == (1, 0)
    for number in range(2, 5):
        pair.maker.send("reply", 1, Parcel(filled(number)))
    for number in range(1, 5):
        assert set(pair.owner.receive().value().open()) == {number}
    assert pair.maker_pool.regions == (0, 4)


def test_memory_is_in_use_while_a_forked_process_may_read_it(pair: Pair) -> None:
    kept = pair.bring(Parcel(filled(1))).open()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.read(ours, 1)
        os._exit(set(kept) != {1})
    del kept
    assert pair.maker_pool.regions == (1, 0)
    for number in range(2, 5):
        pair.bring(Parcel(filled(number)))
    os.write(theirs, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(ours), os.close(theirs)
    assert pair.maker_pool.regions[0] == 0


class Unreadable:
    """Can be pickled, and not read again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_what_fails_half_way_holds_no_memory(pair: Pair) -> None:
    arrived = pair.bring(Parcel([filled(1), Unreadable()]))
    for look in (arrived.open, arrived.read):
        with pytest.raises(ValueError, match="no number"):
            look()
    del arrived, look
    assert pair.maker_pool.regions == (0, 1)


def test_garbage_does_not_hold_more_and_more_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays in cycles wait for the garbage collector, which does not know how large they are."""
    monkeypatch.setattr(regions, "_PRESSURE", 10 * BIG)
    monkeypatch.setattr(regions, "_pressure", regions._Pressure())
    gc.disable()
    try:
        most = 0
        for number in range(100):
            cycle: list[Any] = [pair.bring(Parcel(filled(number))).open()]
            cycle.append(cycle)
            most = max(most, pair.maker_pool.regions[0])
    finally:
        gc.enable()
    assert 5 < most < 15


def test_what_is_held_costs_few_looks_for_garbage(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(regions, "_PRESSURE", 10 * BIG)
    monkeypatch.setattr(regions, "_pressure", regions._Pressure())
    monkeypatch.setattr(regions.gc, "collect", lambda: looks.append(1))
    kept = [pair.bring(Parcel(filled(number))).open() for number in range(100)]
    assert len(looks) == 4  # at 11, 22, 44 and 88
    assert [set(array) for array in kept] == [{number} for number in range(100)]


def test_a_live_parcel_that_nobody_settled_is_copied_when_it_is_opened() -> None:
    mine = {"a": filled(1)}
    parcel = Parcel(mine, live=True)
    found = parcel.open()
    mine["a"][:] = 2
    assert set(found["a"]) == set(parcel.open()["a"]) == {1}


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


@dataclass
class Report:
    """What a role returns."""

    weights: Parcel
    loss: float = 0.0


class Trained:
    """A role whose weights change."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._weights, self._emit = np.zeros(3), emit

    def train(self) -> Report:
        self._weights += 1
        report = Report(Parcel(self._weights, live=True))
        self._emit([report])
        return report


@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_a_live_parcel_in_a_dataclass_is_what_it_was(kind: str) -> None:
    told: list[Any] = []
    backend = make_backend(kind)
    try:
        worker = backend.start("learner", Trained, on_event=told.append)
        reports = [worker.call("train") for _ in range(3)]
    finally:
        backend.close()
    assert [report.weights.open()[0] for report in reports] == [1, 2, 3]
    assert [event[0].weights.open()[0] for event in told] == [1, 2, 3]


def test_a_parcel_that_two_threads_send_at_once_is_packed_once() -> None:
    pool, slow = RegionPool(), Slow()
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


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:torch.quantize", "ignore:TypedStorage")
def test_tensors_of_types_that_numpy_does_not_know_travel_too(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.arange(2_000.0)
    tensors = {
        "bfloat": torch.arange(70_000).to(torch.bfloat16),
        "eighth": numbers.to(torch.float8_e4m3fn),
        "complex": torch.arange(2_000, dtype=torch.int32).view(torch.complex32),
        "single": torch.tensor(1.5).to(torch.float8_e5m2),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "quantised": torch.quantize_per_tensor(numbers[:9], 0.1, 3, torch.qint8),
        "sparse": torch.eye(3).to_sparse(),
    }
    parcel = pair.bring(Parcel(tensors))
    for found in (parcel.open(), parcel.read()):
        for name, tensor in tensors.items():
            assert found[name].dtype is tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found["bfloat"], tensors["bfloat"])
        assert torch.equal(found["eighth"].view(torch.uint8), tensors["eighth"].view(torch.uint8))
        assert torch.equal(found["complex"].view(torch.int32), tensors["complex"].view(torch.int32))
        assert found["single"].float() == 1.5
        assert found["conjugate"].resolve_conj()[0] == 1 - 2j
        assert torch.equal(found["quantised"].dequantize(), tensors["quantised"].dequantize())
        assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert pair.bring(Parcel(torch.empty(2, 3, device="meta"))).open().shape == (2, 3)


def test_a_network_that_travels_can_still_be_trained(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 1))
    network[0].bias.requires_grad_(False)
    network[1].tied = network[0].weight
    start = torch.ones(2_000, requires_grad=True)
    for sent in (pair.bring(Parcel((network, start))).open(), pair.bring((network, start))):
        arrived, leaf = sent
        assert [type(part) for part in arrived.parameters()] == [torch.nn.Parameter] * 4
        assert [part.requires_grad for part in arrived.parameters()] == [True, False, True, True]
        assert arrived[1].tied is arrived[0].weight
        assert leaf.requires_grad and leaf.is_leaf
        arrived(torch.ones(1, 100)).sum().backward()
        assert arrived[0].weight.grad is not None and arrived[0].bias.grad is None
    assert not pair.bring(start * 2).requires_grad  # how it was computed stays behind


class Marked(list[Any]):
    """A value with a parcel of itself in it."""


def test_a_parcel_in_its_own_value_is_packed_once(pair: Pair) -> None:
    value = Marked([filled(3)])
    value.append(Parcel(value, "inner"))
    brought: list[Any] = []
    thread = threading.Thread(target=lambda: brought.append(pair.bring(value[1])), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    found = brought.pop().open()
    assert set(found[0]) == {3}
    assert found[1].meta == "inner" and found[1].open() is found
    live = Parcel(value, live=True)
    value[1] = live
    assert live.open()[1].open() is live.open()[1].open()[1].open()
    value.clear(), found.clear()
    del found, live
    gc.collect()


# -- regions -----------------------------------------------------------------------------------------------------------------


def test_a_region_is_used_again_when_its_parcel_is_gone_on_both_sides(pair: Pair) -> None:
    made = Parcel(filled(1))
    arrived = pair.bring(made)
    del arrived
    assert pair.maker_pool.regions == (1, 0)  # the maker may send it again
    del made
    assert pair.maker_pool.regions == (0, 1)
    arrived = pair.bring(Parcel(filled(2)))
    assert pair.maker_pool.regions == (1, 0)
    assert arrived.open()[0] == 2


def test_a_region_that_was_sent_twice_is_free_after_both(pair: Pair) -> None:
    made = Parcel(filled(1))
    arrived = [*pair.bring((made, made)), pair.bring(made)]
    del made
    for left in (2, 1, 0):
        assert pair.maker_pool.regions == (1, 0)
        arrived.pop()
        assert pair.maker_pool.regions == ((1, 0) if left else (0, 1))


def test_a_region_that_somebody_keeps_is_not_used_again(pair: Pair) -> None:
    kept = [pair.bring(Parcel(filled(byte))).open() for byte in range(2 * WATCHED_REGIONS)]
    assert pair.maker_pool.regions == (WATCHED_REGIONS, 0)  # the others are freed by the kernel, not used again
    assert [set(array) for array in kept] == [{byte} for byte in range(len(kept))]


def test_what_the_maker_opens_of_its_own_parcel_stays_as_it_is(pair: Pair) -> None:
    made = Parcel(filled(1))
    pair.bring(made)
    kept = [made.open(), made.read()]
    del made
    for byte in range(2, 10):
        pair.bring(Parcel(filled(byte)))
    assert [set(array) for array in kept] == [{1}, {1}]


def test_freed_memory_is_poisoned_if_a_test_wants_that(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "POISON", True)
    kept = pair.bring(Parcel(filled(1))).open()
    made = Parcel(filled(2))
    pair.bring(made)
    without_lease = regions._opened_anew(made._lease.descriptor)
    early = np.frombuffer(mmap.mmap(without_lease.descriptor, BIG, access=mmap.ACCESS_READ), np.uint8)
    assert pair.maker_pool.regions == (2, 0)
    assert set(early) == {2}
    del made
    assert pair.maker_pool.regions == (1, 1)
    assert set(early) == {0xDB}  # it looked at memory that it had no lease of
    assert set(kept) == {1}


def test_without_the_kernels_word_no_region_is_used_twice(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As elsewhere than on Linux."""
    monkeypatch.setattr(regions, "kernel_counts", lambda: False)
    kept = []
    for byte in range(20):
        parcel = pair.bring(Parcel(filled(byte)))
        kept += [parcel.open(), parcel.read()]
    assert [set(array) for array in kept] == [{place // 2} for place in range(40)]
    assert pair.maker_pool.regions == (0, 0)


def test_only_a_few_free_regions_are_kept_and_the_smallest_that_fits_is_used() -> None:
    pool = RegionPool()
    parcels = [Parcel(filled(1, 1 << (17 + step))) for step in range(KEPT_REGIONS + 2)]
    for parcel in parcels:
        parcel.pack(pool)
    assert pool.regions == (KEPT_REGIONS + 2, 0)
    del parcel
    parcels.clear()
    assert pool.regions == (0, KEPT_REGIONS)
    small = Parcel(filled(2, 1 << 19))
    assert os.fstat(small.pack(pool)[1].descriptor).st_size == 1 << 19  # not one of the larger ones
    del small
    assert pool.regions == (0, KEPT_REGIONS)
    pool.close()


def test_a_small_array_does_not_keep_the_memory_of_a_large_one(pair: Pair) -> None:
    kept, inodes = [], set()
    for byte in range(6):
        pair.bring(Parcel(filled(byte, 8 << 20)))
        small = pair.bring(Parcel(filled(byte, 40_000)))
        status = os.fstat(small._lease.descriptor)
        inodes.add((status.st_ino, status.st_blocks * 512))
        kept.append(small.open())
    assert [set(array) for array in kept] == [{byte} for byte in range(6)]
    assert len(inodes) == 6
    assert sum(size for _, size in inodes) < 6 * 4 * 40_000
    del small


def test_a_parcel_may_be_collected_while_its_pool_is_locked() -> None:
    """The garbage collector runs finalizers wherever it likes: also in a thread that holds the pool's lock."""
    pool = RegionPool()
    parcel = Parcel(filled(1))
    parcel.pack(pool)
    with pool._lock:
        del parcel
    assert pool.regions == (0, 1)
    pool.close()


def test_a_parcel_that_is_still_in_use_outlives_its_pool() -> None:
    pool = RegionPool()
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

    def send(worker: int) -> None:
        stream = random.Random(worker)
        for number in range(60):
            size = stream.choice(sizes)
            pair.owner.send("call", number, (worker, Parcel(filled(worker, size)), bytes([worker]) * size))

    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(send, worker) for worker in range(4)]
        numbers: dict[int, list[int]] = {worker: [] for worker in range(4)}
        for _ in range(240):
            message = pair.maker.receive()
            worker, parcel, raw = message.value()
            numbers[worker].append(message.number)
            assert set(raw) <= {worker}
            assert set(parcel.open()) <= {worker}
            del parcel
            message.close()
        for one in sent:
            one.result(10)
    assert all(found == list(range(60)) for found in numbers.values())
    assert pair.owner_pool.regions[0] == 0


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 200])
def test_any_number_of_parcels_goes_with_one_message(pair: Pair, count: int) -> None:
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(pair.owner.send, "call", 1, [Parcel(filled(n, SMALL), meta=n) for n in range(count)])
        message = pair.maker.receive()
        sent.result(10)
    assert [(parcel.meta, parcel.open()[0]) for parcel in message.value()] == [(n, n) for n in range(count)]


def test_what_arrives_is_not_inherited(pair: Pair) -> None:
    pair.owner.send("call", 1, Parcel(filled(1)))
    message = pair.maker.receive()
    assert not os.get_inheritable(message.value()._lease.descriptor)


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
from lzero_async.workers import regions
def take(pool, size, made={}):
    region = made.setdefault(size, None) or regions._Region(1 << 22)
    made[size] = region
    return region, region.give_away()
regions.RegionPool._take = take
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
        packed, lease = Parcel({"a": np.full(50_000, float(number))}).pack(pool)
        arrived = Parcel.of(packed, None, lease)
        value = arrived.read()
        assert float(value["a"].sum()) == 50_000 * number
        with pytest.raises(ValueError, match="read-only"):
            value["a"][0] = 1.0
        del arrived, lease
        assert pool.regions == (1, 0)  # the array is still held
        del value
        assert pool.regions == (0, 1)  # though the memory is still mapped
        maps.append(set(regions._windows))
    assert maps[0] == maps[1] == maps[2]  # one region, mapped once
    pool.close()


def test_small_parcels_are_read_as_they_are_opened() -> None:
    packed, descriptor = Parcel({"a": 1}).pack(RegionPool())
    assert Parcel.of(packed, None, descriptor).read() == {"a": 1}
    assert Parcel([1, 2]).read() == [1, 2]


def test_a_torch_that_another_thread_is_importing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert parcels.loads(parcels.dumps({"a": range(3)})) == {"a": range(3)}


def test_a_stored_parcel_is_read_and_opened_from_where_it_lies() -> None:
    parcel = Parcel({"x": np.arange(4.0)}, meta="mine")
    stored = parcel.store(lambda payload, buffers: Stored(payload, [bytes(buffer) for buffer in buffers]))
    assert parcel.store(lambda payload, buffers: pytest.fail("it is stored already")) is stored
    arrived = Parcel.of_stored(stored, parcel.meta)
    assert arrived.nbytes == len(stored.payload) + 32
    read, opened = arrived.read()["x"], arrived.open()["x"]
    assert read.tolist() == opened.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not read.flags.writeable
    opened[0] = 9.0
    assert arrived.open()["x"][0] == 0.0
