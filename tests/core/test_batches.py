"""`for batch in coordinator.batches(...)`: the same rules as `run`, with the learner in the loop's body."""

from __future__ import annotations

import asyncio
import os
import random
import re
import runpy
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lzero_async import (
    AsyncTrainingCoordinator,
    CollectContext,
    ConfigError,
    GateTimeout,
    LzeroAsyncError,
    Recovery,
    Worker,
    WorkerDied,
    make_backend,
)
from lzero_async.errors import CoordinatorClosed
from lzero_async.testing import FakeCollector, FakeLearner, VirtualClock
from lzero_async.threads import ThreadGroup

DEGREES = pytest.mark.parametrize("degree", [0, 1, 3])


def counts(coordinator: AsyncTrainingCoordinator) -> tuple[int, int, int]:
    """Committed, trained, waiting; nothing is open."""
    assert coordinator.violations() == []
    stats = coordinator.get_statistics()
    assert stats["open_collects"] == 0
    return stats["collect_count"], stats["train_count"], stats["collect_train_lag"]


def make(clock: VirtualClock, degree: int, **settings: Any) -> tuple[AsyncTrainingCoordinator, FakeLearner]:
    learner = FakeLearner(clock, 1.0)
    return AsyncTrainingCoordinator(degree, get_weights=learner.get_weights, clock=clock, **settings), learner


# -- the loop ----------------------------------------------------------------------------------------------------------


@DEGREES
@pytest.mark.parametrize("workers", [1, 3])
def test_asking_for_the_next_batch_counts_the_last_one_and_publishes(degree: int, workers: int) -> None:
    if workers > max(1, degree):
        pytest.skip("the degree admits fewer")
    with VirtualClock() as clock:
        coordinator, learner = make(clock, degree, num_collectors=workers)
        loop = coordinator.batches(FakeCollector(clock, 1.0), max_train=6)
        for number, batch in enumerate(loop):
            assert (coordinator.train_count, coordinator.version) == (number, number)
            latest = coordinator.weights.latest()
            assert latest is not None and latest.version == number
            assert batch.staleness <= degree
            learner(batch)
        assert loop.reason == "max_train"
        assert counts(coordinator) == (6, 6, 0)
        assert coordinator.threads.alive() == []
        assert clock.now() == (12.0 if degree == 0 else 7.0)
        stats = coordinator.get_statistics()
        assert (stats["train_total_time"], stats["failed"], stats["abandoned"]) == (6.0, 0, 0)
        coordinator.close()


@DEGREES
@pytest.mark.parametrize("how", ["break", "exception"])
def test_leaving_the_loop_leaves_its_batch_owed_and_stops_everything(degree: int, how: str) -> None:
    with VirtualClock() as clock:
        coordinator, learner = make(clock, degree)

        def leave() -> Any:
            for batch in coordinator.batches(FakeCollector(clock, 0.25)):
                learner(batch)
                if coordinator.train_count == 2:
                    if how == "exception":
                        raise ZeroDivisionError
                    break
            return batch

        if how == "exception":
            with pytest.raises(ZeroDivisionError):
                leave()
            left = None
        else:
            left = leave()
        committed, trained, waiting = counts(coordinator)
        assert trained == coordinator.version == 2 and waiting == committed - 2 >= 1
        assert coordinator.threads.alive() == [] and not coordinator.stop_signal.is_set()
        assert coordinator.get_statistics()["failed"] == 0
        first = next(iter(coordinator.batches(FakeCollector(clock, 0.25), max_train=5)))  # thrown away at once, too
        assert left is None or first.id == left.id
        for batch in coordinator.batches(FakeCollector(clock, 0.25), max_train=5):
            learner(batch)
        assert coordinator.train_count == 5
        coordinator.close()


@DEGREES
def test_limits_end_the_loop(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator, learner = make(clock, degree)
        loop = coordinator.batches(FakeCollector(clock, 1.0), max_collect=4)
        assert [learner(batch) for batch in loop] and loop.reason == "max_collect"
        assert counts(coordinator) == (4, 4, 0)
        start = clock.now()
        loop = coordinator.batches(FakeCollector(clock, 1.0), max_seconds=10.0)
        for batch in loop:
            learner(batch)
        assert loop.reason == "max_seconds" and 10.0 <= clock.now() - start <= 12.0
        loop = coordinator.batches(FakeCollector(clock, 1.0))
        for batch in loop:
            learner(batch)
            if coordinator.train_count > 20:
                coordinator.stop("enough")
        assert loop.reason == "enough"
        assert coordinator.violations() == []
        coordinator.close()


def test_waiting_for_a_batch_has_a_time_out() -> None:
    with VirtualClock() as clock:
        coordinator, _ = make(clock, 2)
        with pytest.raises(GateTimeout, match="no batch waits"):
            for _ in coordinator.batches(FakeCollector(clock, 60.0), timeout=5.0):
                raise AssertionError("there is no batch yet")
        assert clock.now() < 6.0
        clock.sleep(60.0)  # the collect that was left behind ends
        assert counts(coordinator) == (1, 0, 1)
        coordinator.close()


@DEGREES
def test_a_collector_that_raises_ends_the_loop_with_its_exception(degree: int) -> None:
    def collect(context: CollectContext) -> str:
        if context.ticket == 2:
            raise OSError("no more")
        return "data"

    with VirtualClock() as clock:
        coordinator, learner = make(clock, degree)
        with pytest.raises(OSError, match="no more") as caught:
            for batch in coordinator.batches(collect):
                learner(batch)
        assert caught.traceback[-1].name == "collect"
        assert coordinator.get_statistics()["failed"] == 1
        assert coordinator.train_count >= 1 and coordinator.threads.alive() == []
        coordinator.close()


@DEGREES
def test_collectors_come_back_after_failures(degree: int) -> None:
    restarted: list[int] = []

    def collect(context: CollectContext) -> str:
        if context.ticket in (1, 3):
            raise OSError("again")
        return "data"

    with VirtualClock() as clock:
        recovery = Recovery(on_failure="restart", restart_backoff=2.0)
        coordinator, learner = make(clock, degree, recovery=recovery)
        loop = coordinator.batches(collect, max_train=5, on_restart=lambda worker, error: restarted.append(worker))
        for batch in loop:
            learner(batch)
        stats = coordinator.get_statistics()
        assert (stats["failed"], stats["restarts"], restarted) == (2, 2, [0, 0])
        coordinator.close()


def test_a_signal_ends_the_loop_in_order() -> None:
    with AsyncTrainingCoordinator(2) as coordinator:
        loop = coordinator.batches(lambda context: "data")
        for _ in loop:
            if coordinator.train_count == 3:
                os.kill(os.getpid(), signal.SIGINT)
                while not coordinator.stop_signal.wait(1.0):  # another thread looks at the signal
                    pass
        assert (loop.reason, coordinator.train_count) == ("SIGINT", 4)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_closing_ends_a_loop_that_waits() -> None:
    with VirtualClock() as clock:
        coordinator, _ = make(clock, 1)
        threads = ThreadGroup(clock, "own")
        threads.start("closer", lambda: (clock.sleep(3.0), coordinator.close()))
        loop = coordinator.batches(lambda context: context.stop.wait(60.0) or "data")
        assert list(loop) == [] and loop.reason == "The coordinator is closed."
        assert clock.now() < 4.0
        with pytest.raises(CoordinatorClosed):
            list(coordinator.batches(lambda context: "data"))


def test_an_interrupt_while_a_loop_that_was_left_ends_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        join, interrupted = coordinator.threads.join, []

        def join_once_interrupted(timeout: float) -> list[str]:
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            return join(timeout)

        loop = coordinator.batches(lambda context: "data", timeout=10.0)
        first = next(loop)
        monkeypatch.setattr(coordinator.threads, "join", join_once_interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.close()
        assert coordinator.train_count == 0
        assert next(coordinator.batches(lambda context: "data", timeout=10.0)).id == first.id


def test_only_one_loop_at_a_time() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        with coordinator.batches(lambda context: "data") as loop:
            next(loop)
            with pytest.raises(LzeroAsyncError, match="in a run already"):
                next(coordinator.batches(lambda context: "data"))
            assert next(loop).id == 1  # which was not disturbed
        assert coordinator.train_count == 1
        coordinator.run(lambda context: "data", lambda batch: None, max_train=3, print_statistics=False)


@DEGREES
def test_coroutine_functions_collect_too(degree: int) -> None:
    async def collect(context: CollectContext) -> str:
        await asyncio.sleep(0)
        return f"data of version {context.version}"

    with AsyncTrainingCoordinator(degree) as coordinator:
        found = [batch.data for batch in coordinator.batches(collect, max_train=4)]
        assert len(found) == 4 and found[0] == "data of version 0"

        async def inside() -> None:
            coordinator.batches(collect)

        with pytest.raises(ConfigError, match="would block this event loop"):
            asyncio.run(inside())


def test_an_evaluation_in_the_learners_turn_is_refused_in_the_body() -> None:
    with AsyncTrainingCoordinator(1, get_weights=dict) as coordinator:
        for _ in coordinator.batches(lambda context: "data", max_train=1):
            with pytest.raises(LzeroAsyncError, match="the learner's turn is taken"):
                coordinator.run_eval(lambda: 1.0)
        assert coordinator.run_eval(lambda: 1.0) == 1.0


def test_a_background_evaluation_that_failed_ends_the_loop() -> None:
    with AsyncTrainingCoordinator(1, True, get_weights=dict) as coordinator:
        with pytest.raises(ZeroDivisionError):
            for _ in coordinator.batches(lambda context: "data", timeout=10.0):
                coordinator.run_eval(lambda: 1 / 0)
                while not coordinator.evaluator.failed:
                    coordinator.stop_signal.wait(0.001)
        assert coordinator.threads.alive() == []


def test_degree_0_collects_in_the_thread_of_the_loop() -> None:
    threads: list[int] = []
    with AsyncTrainingCoordinator(0) as coordinator:
        for _ in coordinator.batches(lambda context: threads.append(threading.get_ident()) or "data", max_train=3):
            assert len(threads) == coordinator.train_count + 1
    assert threads == [threading.get_ident()] * 3


# -- workers as collectors -----------------------------------------------------------------------------------------------


class Player:
    """A role that dies, or fails, when it is told to."""

    def __init__(self, number: int, die_at: int, fail_at: int) -> None:
        self.number, self.die_at, self.fail_at = number, die_at, fail_at
        self.collects = 0

    def collect(self, version: int, state: Any, stop: Any) -> tuple[int, int, Any]:
        self.collects += 1
        if self.collects == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.collects == self.fail_at:
            raise OSError("a bad episode")
        return self.number, version, state


class PlayerFactory:
    """Makes a player; only its first life dies."""

    def __init__(self, number: int, folder: str, die_at: int = 0, fail_at: int = 0) -> None:
        self.number, self.folder, self.die_at, self.fail_at = number, folder, die_at, fail_at

    def __call__(self, emit: Callable[..., None]) -> Player:
        mark = os.path.join(self.folder, f"lived-{self.number}")
        first = not os.path.exists(mark)
        open(mark, "w").close()
        return Player(self.number, self.die_at if first else 0, self.fail_at if first else 0)


def start(kind: str, number: int, folder: Any, **fate: int) -> tuple[Any, list[Worker]]:
    backend = make_backend(kind)
    return backend, [backend.start(f"collector {i}", PlayerFactory(i, str(folder), **fate)) for i in range(number)]


def test_a_worker_is_told_the_version_of_the_weights_that_it_gets(tmp_path: Any) -> None:
    """Weights are published a moment before the train that made them is counted; a collect may start in between."""
    backend, workers = start("thread", 1, tmp_path)
    with AsyncTrainingCoordinator(1, get_weights=lambda: {"of": 0}) as coordinator:
        coordinator.weights.publish({"of": 1}, 1)
        with coordinator.batches(workers, timeout=10.0) as loop:
            assert next(loop).data == (0, 1, {"of": 1})
    backend.close()


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
@pytest.mark.parametrize("form", ["run", "batches"])
def test_workers_collect_with_the_version_and_the_weights_of_their_context(kind: str, form: str, tmp_path: Any) -> None:
    degree = 0 if kind == "inline" else 2
    number = max(1, degree)
    weights = {"w": 0}
    _, workers = start(kind, number, tmp_path)
    seen: list[tuple[int, int, Any]] = []

    def train(batch: Any) -> None:
        assert batch.version <= batch.data[1]  # newer by a hair, at most
        seen.append(batch.data)
        weights["w"] += 1

    try:
        with AsyncTrainingCoordinator(degree, num_collectors=number, get_weights=lambda: dict(weights)) as coordinator:
            if form == "run":
                coordinator.run(workers, train, max_train=8, print_statistics=False)
            else:
                for batch in coordinator.batches(workers, max_train=8):
                    train(batch)
            assert counts(coordinator)[1] == 8
    finally:
        for worker in workers:
            worker.close()
    assert {number for number, _, _ in seen} <= set(range(number))
    assert all(version == state["w"] for _, version, state in seen)


@pytest.mark.parametrize("form", ["run", "batches"])
def test_a_worker_that_dies_is_restarted_and_its_ticket_given_back(form: str, tmp_path: Any) -> None:
    _, workers = start("process", 2, tmp_path, die_at=2)
    recovery = Recovery(on_failure="restart", restart_backoff=0.01)
    told: list[int] = []
    try:
        with AsyncTrainingCoordinator(2, num_collectors=2, recovery=recovery) as coordinator:
            options: dict[str, Any] = {"max_train": 12, "on_restart": lambda worker, error: told.append(worker)}
            if form == "run":
                coordinator.run(workers, lambda batch: None, print_statistics=False, **options)
            else:
                for _ in coordinator.batches(workers, **options):
                    pass
            stats = coordinator.get_statistics()
            deaths = [worker.restarts for worker in workers]
            assert stats["failed"] == stats["restarts"] == sum(deaths) == len(told) >= 1
            assert max(deaths) == 1 and stats["train_count"] == 12
            assert coordinator.violations() == []
    finally:
        for worker in workers:
            worker.close()


def test_without_recovery_a_dead_worker_ends_the_run(tmp_path: Any) -> None:
    _, workers = start("process", 1, tmp_path, die_at=2)
    try:
        with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(WorkerDied, match="SIGKILL"):
            coordinator.run(workers, lambda batch: None, max_train=5, print_statistics=False)
    finally:
        workers[0].close()


def test_a_worker_that_only_failed_is_not_restarted(tmp_path: Any) -> None:
    _, workers = start("thread", 1, tmp_path, fail_at=2)
    try:
        recovery = Recovery(on_failure="restart", restart_backoff=0.01)
        with AsyncTrainingCoordinator(1, recovery=recovery) as coordinator:
            coordinator.run(workers, lambda batch: None, max_train=5, print_statistics=False)
            assert (coordinator.get_statistics()["failed"], workers[0].restarts) == (1, 0)
    finally:
        workers[0].close()


@pytest.mark.parametrize(
    ("collect", "words"),
    [
        (None, "collect is None; it must be a function, or a list of workers"),
        ("collect", "collect is 'collect'"),
        ([1, 2], "collect has 1 in it"),
        ([], "collect has 0 workers, but num_collectors is 2"),
    ],
)
def test_what_cannot_collect_is_refused(collect: Any, words: str) -> None:
    with AsyncTrainingCoordinator(2, num_collectors=2) as coordinator:
        with pytest.raises(ConfigError, match=words):
            coordinator.run(collect, lambda batch: None, max_train=1)
        with pytest.raises(ConfigError, match=words):
            coordinator.batches(collect)


# -- the example -----------------------------------------------------------------------------------------------------------


def test_the_example_is_a_loop_of_at_most_twelve_lines_that_learns(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[2] / "docs" / "examples" / "own_loop.py"
    code = [line for line in path.read_text().partition('"""\n')[2].splitlines() if line.strip()]
    assert len(code) <= 12
    random.seed(5)
    runpy.run_path(str(path))
    found = re.fullmatch(
        r"looked for 3, found ([\d.]+); batches were at most (\d) versions old\n", capsys.readouterr().out
    )
    assert found is not None
    assert abs(float(found[1]) - 3) < 1 and int(found[2]) <= 2
