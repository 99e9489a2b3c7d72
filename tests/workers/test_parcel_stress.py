"""Whoever opened an array keeps it as it was: every combination of owner, maker and reader without Ray (test_ray_parcels.py
has the others), and the mistakes of earlier versions one by one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async import AsyncTrainingCoordinator, ConfigError, Parcel, Worker, WorkerDied, make_backend
from lzero_async.testing import ScriptedRole
from lzero_async.workers import regions
from lzero_async.workers.calls import CallStop
from tests.workers.parcel_stress import COMBINATIONS, CutOff, alarm, run_owner

OWNERS = ("inline", "thread", "process")
PAIRS = [(maker, reader) for maker in OWNERS for reader in OWNERS]


def check_owner(owner: str, arrays: int, seed: int) -> None:
    """Let every maker and reader of this owner open so many arrays."""
    report = run_owner(owner, seed, PAIRS, arrays)
    assert min(report.opened.values()) >= arrays
    expected = {(maker, reader) for who, maker, reader in COMBINATIONS if who == owner and "ray" not in (maker, reader)}
    assert set(report.opened) == expected
    assert set(report.cut_off) == {"stop", "kill", "timeout", *(["alarm"] if owner != "thread" else [])}


def test_every_combination_without_ray_has_its_owner() -> None:
    assert {owner for owner, *others in COMBINATIONS if "ray" not in (owner, *others)} == set(OWNERS)


@pytest.mark.parametrize("owner", OWNERS)
def test_nobody_ever_finds_a_wrong_array(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory that is overwritten as soon as it counts as free."""
    monkeypatch.setenv("LZERO_ASYNC_POISON_PARCELS", "1")  # of workers
    monkeypatch.setattr(regions, "POISON", True)
    check_owner(owner, 185, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("owner", OWNERS)
def test_nobody_ever_finds_a_wrong_array_in_a_hundred_thousand(owner: str) -> None:
    check_owner(owner, 3_710, seed=2)  # for each of 27


# -- one by one ----------------------------------------------------------------------------------------------------------------

BIG = 1_000_000
SETUP = """
import numpy as np
number = 0
def made():
    global number
    number += 1
    return Parcel(np.full(args[0], number))
"""
Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts scripted roles that make arrays of 1, 2, 3 and so on."""
    backends: list[Any] = []

    def begin(kind: str = "process", **settings: Any) -> Worker:
        backends.append(make_backend(kind))
        worker = backends[-1].start("worker", ScriptedRole, **settings)
        worker.call("do", SETUP)
        return worker

    yield begin
    for backend in backends:
        backend.close()


def values(arrays: list[np.ndarray]) -> list[list[int]]:
    """Which numbers are in each."""
    return [np.unique(array).tolist() for array in arrays]


def one_to(last: int) -> list[list[int]]:
    return [[number] for number in range(1, last + 1)]


@pytest.mark.parametrize("look", [Parcel.open, Parcel.read])
def test_the_owner_keeps_what_it_opened(start: Start, look: Callable[[Parcel], np.ndarray]) -> None:
    worker = start()
    kept = [look(worker.call("do", "result = made()", BIG)) for _ in range(5)]
    assert values(kept) == one_to(5)


def test_a_replay_of_opened_batches_keeps_them(start: Start) -> None:
    worker, replay = start(), list[np.ndarray]()
    with AsyncTrainingCoordinator(2) as coordinator:
        coordinator.run(
            lambda ctx: worker.call("do", "result = made()", 100_000),
            lambda batch: replay.append(batch.data.open()),
            max_train=12,
            print_statistics=False,
        )
    assert values(replay) == one_to(12)


def test_an_evaluation_keeps_the_weights_that_it_opened(start: Start) -> None:
    learner, kept = start(), list[tuple[int, np.ndarray]]()

    def evaluate(ctx: Any) -> float:
        kept.append((ctx.snapshot.state.meta, ctx.snapshot.state.open()))
        return 0.0

    def weights() -> Parcel:
        return learner.call("do", "result = made(); result.meta = number", 100_000)

    with AsyncTrainingCoordinator(0, get_weights=weights) as coordinator:
        coordinator.run(
            lambda ctx: ctx.version, lambda batch: None, evaluate, eval_every=1, max_train=10, print_statistics=False
        )
    assert len(kept) >= 10
    assert values([array for _, array in kept]) == [[number] for number, _ in kept]


def test_a_learner_in_a_thread_keeps_what_it_opened(start: Start) -> None:
    collector, learner = start(), start("thread")
    learner.call("do", "kept = []")
    for _ in range(8):
        learner.call("do", "kept.append(args[0].open())", collector.call("do", "result = made()", BIG))
    assert values(learner.call("do", "result = kept")) == one_to(8)


def test_a_call_that_a_signal_cut_off_reads_on(start: Start, tmp_path: Path) -> None:
    """Whatever the handler raises: the role still reads what it was given."""
    begun = threading.Event()
    maker, reader = start(), start(on_event=lambda event: begun.set())
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    parcel = maker.call("do", "result = made()", BIG)
    looking = "data = args[0].read(); seen = [set(data)]; emit(0); open(args[1]).read(); seen.append(set(data))"
    with pytest.raises(CutOff), alarm(begun.wait):
        reader.call("do", looking, parcel, str(gate))
    del parcel
    for _ in range(8):
        maker.call("do", "result = made()", BIG)
    gate.write_text("go on")
    assert reader.call("do", "result = seen + [set(data)]") == [{1}] * 3


def test_a_call_that_a_signal_cut_off_is_told_to_stop(start: Start) -> None:
    begun = threading.Event()
    reader = start(on_event=lambda event: begun.set())
    with pytest.raises(CutOff), alarm(begun.wait):
        reader.call("do", "emit(0); stop.wait(1e6); reason = stop.stop_reason", stop=CallStop())
    assert reader.call("do", "result = reason") == "CutOff()"


@pytest.mark.parametrize("place", range(3))
def test_a_message_that_is_cut_off_in_the_middle_is_never_finished_by_another(
    start: Start, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The worker is lost then, which is said; it must not read the next call as the rest of this one."""
    worker = start()
    real = socket.socket.send

    class Cut:
        def __init__(self, connection: socket.socket) -> None:
            self.connection = connection

        def sendall(self, data: bytes) -> None:
            real(self.connection, data[: len(data) * place // 2])
            raise CutOff

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

    wire = worker._life._wire
    with monkeypatch.context() as patch, pytest.raises(CutOff):
        patch.setattr(wire, "_socket", Cut(wire._socket))
        worker.call("do", "result = 1")
    with pytest.raises(WorkerDied):
        worker.call("do", "result = 2")
    worker.restart()
    assert worker.call("do", "result = 3") == 3


def test_an_owners_live_parcel_is_what_it_was_at_the_call(start: Start) -> None:
    mine = np.ones(10)
    for kind in ("inline", "thread", "process"):
        worker, mine[:] = start(kind), 1
        worker.call("do", "kept = args[0]", Parcel(mine, live=True))
        mine[:] = 2
        assert worker.call("do", "result = set(kept.open())") == {1}


def test_arrays_outlive_their_maker_and_its_backend(start: Start) -> None:
    backend = make_backend("process")
    worker = backend.start("worker", ScriptedRole)
    worker.call("do", SETUP)
    parcels_ = [worker.call("do", "result = made()", BIG) for _ in range(4)]
    kept = [parcels_[0].open(), parcels_[1].read()]
    worker.kill()
    kept.append(parcels_[2].open())
    worker.restart()
    worker.call("do", SETUP)
    for _ in range(8):
        worker.call("do", "result = made()", BIG)
    backend.close()
    kept.append(parcels_[3].open())
    assert values(kept) == one_to(4)


def test_a_parcel_is_opened_while_others_drop_it(start: Start) -> None:
    """Opening takes its own hold of the memory first."""
    worker, held = start(), dict[int, Parcel]()
    over = threading.Event()

    def drop() -> None:
        while not over.is_set():
            held.clear()

    dropper = threading.Thread(target=drop)
    dropper.start()
    kept = []
    try:
        while len(kept) < 40:
            held[0] = worker.call("do", "result = made()", 10_000)
            try:
                kept.append((len(kept) + 1, held[0].open()))
            except KeyError:  # dropped before; its number is taken
                kept.append((0, np.zeros(1)))
    finally:
        over.set()
        dropper.join()
    assert values([array for _, array in kept]) == [[number] for number, _ in kept]


def test_a_context_in_a_call_is_explained(start: Start) -> None:
    worker, said = start(), list[str]()

    def collect(ctx: Any) -> int:
        for value in (ctx, {"of": [ctx]}, ctx.stop, Parcel(ctx)):
            with pytest.raises(ConfigError) as caught:
                worker.call("do", "", value)
            said.append(str(caught.value))
        return 1

    with AsyncTrainingCoordinator(0) as coordinator:
        coordinator.run(collect, lambda batch: None, max_train=1, print_statistics=False)
    assert len(said) == 4
    assert all("give call() the argument stop=ctx.stop" in sentence for sentence in said), said
