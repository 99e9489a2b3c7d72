"""Runs of one coordinator do not reach into each other, and a user's own threads beside a run keep what is theirs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Batch, Bound, CollectContext, EvalContext
from lzero_async.errors import LzeroAsyncError, Stopped
from lzero_async.testing import VirtualClock
from lzero_async.testing.fakes import FakeCollector, FakeLearner
from lzero_async.threads import ThreadGroup

quiet: dict[str, Any] = {"print_statistics": False, "handle_signals": False}


# -- evaluations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("ends_with", ["a score above the target", "an exception"])
def test_an_evaluation_left_from_one_run_never_reaches_the_next(
    degree: int, ends_with: str, caplog: pytest.LogCaptureFixture
) -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        coordinator = AsyncTrainingCoordinator(degree, True, get_weights=learner.get_weights, clock=clock)

        def long(context: EvalContext) -> float:
            clock.sleep(100.0)
            if ends_with == "an exception":
                raise ValueError("too late")
            return 1000.0

        def broken(context: CollectContext) -> int:
            clock.sleep(1.0)
            if coordinator.train_count == 2:
                raise RuntimeError("the end of the first run")
            return context.ticket

        with pytest.raises(RuntimeError, match="first run"):
            coordinator.run(broken, learner, long, eval_every=1, eval_target=500.0, **quiet)
        evaluations = coordinator.get_statistics()["eval_count"]
        with caplog.at_level(logging.ERROR):
            result = coordinator.run(
                FakeCollector(clock, 10.0), learner, lambda c: 7.0, eval_every=20, eval_target=500.0,
                max_train=coordinator.train_count + 25, **quiet,
            )  # fmt: skip
        assert result.reason == "max_train"
        assert result.last_eval is not None
        assert (result.best_eval, result.last_eval.value) == (result.last_eval, 7.0)
        assert coordinator.get_statistics()["eval_count"] - evaluations <= 2
        assert ("too late" in caplog.text) == (ends_with == "an exception")
        coordinator.close()


def test_what_a_failed_run_had_queued_is_not_evaluated_in_the_next() -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        coordinator = AsyncTrainingCoordinator(1, True, get_weights=learner.get_weights, clock=clock)
        seen: list[str] = []

        def evaluate(name: str) -> Callable[[EvalContext], float]:
            def fn(context: EvalContext) -> float:
                seen.append(name)
                clock.sleep(20.0)
                return 1.0

            return fn

        failing = FakeCollector(clock, 1.0, fail_at={4})
        with pytest.raises(RuntimeError):
            coordinator.run(failing, learner, evaluate("first"), eval_every=1, **quiet)
        coordinator.run(
            FakeCollector(clock, 1.0), learner, evaluate("second"), eval_every=10,
            max_train=coordinator.train_count + 40, **quiet,
        )  # fmt: skip
        coordinator.close()
    assert seen[0] == "first"
    assert "first" not in seen[1:]


def test_an_evaluation_of_the_next_run_is_made_though_one_of_the_last_run_had_to_be_given_up() -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        coordinator = AsyncTrainingCoordinator(1, True, get_weights=learner.get_weights, clock=clock)

        def long(context: EvalContext) -> float:
            clock.sleep(20.0)
            return 1.0

        async def quick(context: EvalContext) -> float:
            return 7.0

        with pytest.raises(RuntimeError):
            coordinator.run(FakeCollector(clock, 1.0, fail_at={4}), learner, long, eval_every=1, **quiet)
        last = coordinator.train_count + 3  # it is due while the long one still runs
        result = coordinator.run(FakeCollector(clock, 1.0), learner, quick, eval_every=last, max_train=last, **quiet)
        assert result.last_eval is not None
        assert (result.last_eval.value, result.last_eval.version) == (7.0, last)
        coordinator.close()


# -- a user's own threads ------------------------------------------------------------------------------------------------


def own_thread(coordinator: AsyncTrainingCoordinator, work: Callable[[], object]) -> ThreadGroup:
    threads = ThreadGroup(coordinator.clock, "lzero-own")
    threads.start("own", work)
    return threads


@pytest.mark.parametrize("degree", [1, 2])
def test_a_train_of_a_users_own_thread_goes_on_when_a_run_ends(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(degree, clock=clock)
        trained: list[int] = []

        def slow(batch: Batch) -> None:
            clock.sleep(50.0)
            trained.append(batch.id)

        own = own_thread(coordinator, lambda: coordinator.run_train(slow, with_batch=True))
        clock.sleep(0.1)
        result = coordinator.run(
            FakeCollector(clock, 1.0), FakeLearner(clock, 1.0), max_seconds=10.0, on_stop="abandon", **quiet
        )
        assert result.reason == "max_seconds"
        assert coordinator.train_count == 0
        assert coordinator._keeper.gate.running == "train"
        assert own.join(1000.0) == []
        assert own.failures == []
        assert trained == [0]
        assert coordinator.train_count == 1
        assert coordinator._keeper.gate.violations() == []
        learner = FakeLearner(clock, 1.0)
        coordinator.run(FakeCollector(clock, 1.0), learner, max_train=5, **quiet)
        assert 0 not in learner.trained
        coordinator.close()


@pytest.mark.parametrize("degree", [1, 2])
def test_a_collect_of_a_users_own_thread_is_committed_after_a_run_and_trained_by_the_next(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(degree, num_collectors=degree, clock=clock)

        def slow() -> str:
            clock.sleep(50.0)
            return "mine"

        own = own_thread(coordinator, lambda: coordinator.run_collect(slow))
        clock.sleep(0.1)
        coordinator.run(
            FakeCollector(clock, 1.0), FakeLearner(clock, 1.0), max_seconds=10.0, on_stop="abandon", **quiet
        )
        assert own.join(1000.0) == []
        assert own.failures == []
        trained: list[Any] = []
        coordinator.run(
            FakeCollector(clock, 1.0), lambda batch: trained.append(batch.data), max_train=coordinator.train_count + 4,
            **quiet,
        )  # fmt: skip
        assert trained.count("mine") == 1
        assert coordinator._keeper.gate.violations() == []
        coordinator.close()


def test_a_finished_collect_of_a_users_own_thread_stays_in_line_when_a_run_ends() -> None:
    """The run's own batches fill the line; the user's waits for its commit when the run stops."""
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, num_collectors=1, clock=clock)
        coordinator.run_collect(lambda: "first")

        def train(batch: Batch) -> None:
            clock.sleep(30.0)

        def collect() -> str:
            return "mine"

        def own() -> None:
            try:
                coordinator.run_collect(collect)
            except Stopped:
                return

        learning = own_thread(coordinator, lambda: coordinator.run_train(train, with_batch=True))
        clock.sleep(0.1)
        thread = own_thread(coordinator, own)
        clock.sleep(0.1)
        assert coordinator._keeper.gate.tickets
        coordinator.run(FakeCollector(clock, 1.0), FakeLearner(clock, 1.0), max_seconds=5.0, **quiet)
        assert thread.join(1000.0) == []
        assert learning.join(1000.0) == []
        assert [*coordinator._keeper.data.values()] == ["mine"]
        trained: list[Any] = []
        coordinator.run_train(lambda batch: trained.append(batch.data), with_batch=True)
        assert trained == ["mine"]
        assert coordinator.get_statistics()["abandoned"] == 0
        coordinator.close()


# -- wake-ups ------------------------------------------------------------------------------------------------------------


def test_a_learner_is_not_starved_by_a_coroutine_whose_event_loop_is_closed() -> None:
    async def train() -> None:
        return None

    coordinator = AsyncTrainingCoordinator(1)
    loop = asyncio.new_event_loop()
    parked = [loop.create_task(coordinator.run_train(train)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    done = threading.Event()

    def learn() -> None:
        coordinator.run_train(lambda: None)
        done.set()

    threads = ThreadGroup(coordinator.clock, "lzero-own")
    threads.start("learner", learn)
    while len(coordinator._keeper._lines["train"]) < 4:
        coordinator.clock.sleep(0.001)
    loop.close()
    coordinator.run_collect(lambda: 1)
    assert done.wait(60.0)
    assert threads.join(60.0) == []
    assert coordinator.train_count == 1
    for task in parked:
        task._log_destroy_pending = False
    coordinator.close()


# -- threads that cannot be started ----------------------------------------------------------------------------------------


def test_threads_that_the_system_refuses_leave_no_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with AsyncTrainingCoordinator(1, True, get_weights=dict) as coordinator:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(LzeroAsyncError, match="No thread can be started for collector-0"):
                coordinator.run(lambda c: 1, lambda b: None, max_train=1, **quiet)
            with pytest.raises(LzeroAsyncError, match="No thread can be started"):
                coordinator.run_eval(lambda: 1.0)
        assert coordinator.threads.alive() == []
        assert coordinator.wait_for_eval(60.0) is None
        assert (
            coordinator.run(lambda c: 1, lambda b: None, max_train=1, max_seconds=60.0, **quiet).reason == "max_train"
        )


# -- closing, and details that have the names of arguments -------------------------------------------------------------------


@pytest.mark.parametrize("role", ["collector", "learner", "evaluator"])
def test_close_inside_of_a_stage_does_not_wait_for_that_stage(role: str) -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        coordinator = AsyncTrainingCoordinator(1, True, get_weights=learner.get_weights, clock=clock)
        took: list[float] = []

        def closing(context: Any) -> float:
            start = clock.now()
            coordinator.close(timeout=1000.0)
            took.append(clock.now() - start)
            return 1.0

        collect = closing if role == "collector" else FakeCollector(clock, 1.0)
        train = closing if role == "learner" else learner
        evaluate = closing if role == "evaluator" else lambda context: 1.0
        result = coordinator.run(collect, train, evaluate, eval_every=1, max_train=50, **quiet)
        assert result.reason == "closed"
        clock.sleep(500.0)
        assert took
        assert took[0] < 100.0


def test_details_of_work_may_have_any_name_and_the_users_exception_comes_through(tmp_path: Any) -> None:
    coordinator = AsyncTrainingCoordinator(0, trace=tmp_path / "trace.json")
    working = coordinator.working("role", "work", start=1, end=2, track="x", name="y")
    with pytest.raises(KeyError, match="the user's own"), working:
        raise KeyError("the user's own")
    coordinator.close()
    assert '"start":1' in (tmp_path / "trace.json").read_text()


def test_weights_that_could_not_be_published_are_published_by_the_next_collect() -> None:
    broken = [False]

    def get_weights() -> int:
        if broken[0]:
            raise KeyboardInterrupt
        return 1

    with AsyncTrainingCoordinator(0, get_weights=get_weights) as coordinator:
        coordinator.run_collect(lambda: 1)
        broken[0] = True
        with pytest.raises(KeyboardInterrupt):
            coordinator.run_train(lambda: None)
        broken[0] = False
        assert coordinator.train_count == 1
        assert coordinator.run_collect(lambda context: context.version, with_context=True, timeout=10.0) == 1


@pytest.mark.parametrize(("degree", "publish_every"), [(0, 1), (1, 2)])
def test_a_collector_that_waits_already_gets_the_weights_that_could_not_be_published(
    degree: int, publish_every: int
) -> None:
    with VirtualClock() as clock:
        broken = [False]

        def get_weights() -> int:
            if broken[0]:
                raise OSError("for a moment")
            return 1

        coordinator = AsyncTrainingCoordinator(
            degree, bound=Bound(publish_every=publish_every), get_weights=get_weights, clock=clock
        )
        for last in range(publish_every):
            coordinator.run_collect(lambda: 1)
            broken[0] = last == publish_every - 1
            if not broken[0]:
                coordinator.run_train(lambda: None)
        versions: list[int] = []

        def collect() -> None:
            while len(versions) < 2:
                coordinator.run_collect(lambda context: versions.append(context.version) or 1, with_context=True)

        def train() -> None:
            threads.start("collector", collect)
            clock.sleep(1.0)  # it waits now for the newest weights

        threads = ThreadGroup(clock, "test")
        with pytest.raises(OSError, match="for a moment"):
            coordinator.run_train(train)
        broken[0] = False
        coordinator.run_train(lambda: None, timeout=100.0)
        assert versions[0] == publish_every
        coordinator.close()
        assert threads.join(10.0) == []


@pytest.mark.parametrize("first", [0, 1])
def test_a_listener_that_raises_keeps_the_stop_from_nobody(first: int, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def broken(reason: str) -> None:
        raise RuntimeError("broken")

    with AsyncTrainingCoordinator(1) as coordinator:
        for listener in (broken, told.append) if first else (told.append, broken):
            coordinator._keeper.signal.listen(listener)
        coordinator.stop("enough")
    assert told[0] == "enough"
    assert "a listener to the stop failed" in caplog.text
