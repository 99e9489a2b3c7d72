"""`with coordinator.paused():` nothing new starts, what runs ends and commits, and the clocks of the run stand still."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, ConfigError, GateTimeout, LzeroAsyncError, RunResult, Stopped
from lzero_async.errors import CoordinatorClosed
from lzero_async.testing import FakeCollector, FakeEvaluator, FakeLearner, VirtualClock
from lzero_async.threads import ThreadGroup

QUIET: dict[str, Any] = {"print_statistics": False, "handle_signals": False}


class Beside:
    """A run in a thread of the virtual clock, and its result."""

    def __init__(self, clock: VirtualClock, start: Callable[[], Any]) -> None:
        self.threads, self.result, self._start = ThreadGroup(clock, "beside"), None, start
        self.threads.start("run", self._run)

    def _run(self) -> None:
        self.result = self._start()

    def end(self) -> Any:
        assert self.threads.join(10_000.0) == []
        if self.threads.failures:
            raise self.threads.failures[0]
        return self.result


def make(clock: VirtualClock, degree: int, **settings: Any) -> AsyncTrainingCoordinator:
    learner = FakeLearner(clock, 1.0)
    coordinator = AsyncTrainingCoordinator(degree, get_weights=learner.get_weights, clock=clock, **settings)
    coordinator.test_learner = learner  # type: ignore[attr-defined]
    return coordinator


def running(clock: VirtualClock, coordinator: AsyncTrainingCoordinator, **options: Any) -> Beside:
    learner = coordinator.test_learner  # type: ignore[attr-defined]
    return Beside(clock, lambda: coordinator.run(FakeCollector(clock, 2.0), learner, **options, **QUIET))


def frozen(coordinator: AsyncTrainingCoordinator) -> tuple[Any, ...]:
    assert coordinator.violations() == []
    return coordinator.get_statistics(), coordinator.get_activity(), coordinator.queue_seconds()


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_nothing_starts_and_what_runs_ends_and_commits(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, degree, num_collectors=max(1, degree))
        run = running(clock, coordinator, max_train=20)
        clock.sleep(10.5)
        assert coordinator.get_statistics()["open_collects"] or degree == 0
        with coordinator.paused():
            assert clock.now() <= 12.5  # what ran has ended
            stats = coordinator.get_statistics()
            assert (stats["failed"], stats["abandoned"], stats["open_collects"]) == (0, 0, 0)
            assert not coordinator.can_collect() and not coordinator.can_train()
            before = frozen(coordinator)
            clock.sleep(1000.0)
            assert frozen(coordinator) == before
        result: RunResult = run.end()
        assert (result.reason, result.statistics["train_count"]) == ("max_train", 20)
        coordinator.close()


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_max_seconds_and_the_statistics_stand_still(degree: int) -> None:
    def measured(pause: float) -> tuple[float, dict[str, Any]]:
        with VirtualClock() as clock:
            coordinator = make(clock, degree, num_collectors=max(1, degree))
            run = running(clock, coordinator, max_seconds=30.0)
            clock.sleep(10.5)
            if pause:
                with coordinator.paused():
                    quiet = clock.now()
                    clock.sleep(pause)
                assert clock.now() == quiet + pause
            result: RunResult = run.end()
            assert result.reason == "max_seconds"
            coordinator.close()
            return clock.now() - pause, result.statistics

    plain, paused = measured(0.0), measured(1000.0)
    assert paused[0] == pytest.approx(plain[0], abs=3.0)  # a stage more or less
    for name in ("wall_time", "collect_wait_time", "train_wait_time", "train_count"):
        assert paused[1][name] == pytest.approx(plain[1][name], abs=6.0), name
    assert paused[1]["overlap_efficiency"] == pytest.approx(plain[1]["overlap_efficiency"], abs=0.2)


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_a_loop_of_ones_own_is_paused_too(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, degree)
        learner = coordinator.test_learner  # type: ignore[attr-defined]

        def loop() -> tuple[str, float]:
            batches = coordinator.batches(FakeCollector(clock, 2.0), max_seconds=20.0, handle_signals=False)
            for batch in batches:
                learner(batch)
            return batches.reason, clock.now()

        run = Beside(clock, loop)
        clock.sleep(5.5)
        with coordinator.paused():
            made = coordinator.train_count
            clock.sleep(500.0)
            assert coordinator.train_count == made
        reason, end = run.end()
        assert reason == "max_seconds" and 518.0 <= end <= 525.0
        assert coordinator.train_count > made + 3
        coordinator.close()


def test_waits_have_their_time_outs_and_say_why() -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, 2)
        coordinator.run_collect(dict)
        with coordinator.paused():
            start = clock.now()
            with pytest.raises(GateTimeout, match="start a collect: the coordinator is paused"):
                coordinator.run_collect(dict, timeout=3.0)
            with pytest.raises(GateTimeout, match="start a train: the coordinator is paused"):
                coordinator.run_train(lambda: None, timeout=3.0)
            with pytest.raises(GateTimeout, match="start an evaluation: the coordinator is paused"):
                coordinator.run_eval(lambda: None, timeout=3.0)
            assert clock.now() == start + 9.0
            stats = coordinator.get_statistics()
            assert stats["collect_wait_time"] == stats["train_wait_time"] == stats["eval_wait_time"] == 0.0
        coordinator.run_train(lambda: None, timeout=0.0)
        coordinator.close()


def test_a_background_evaluation_ends_first_and_none_starts() -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, 1, enable_async_eval=True)
        evaluate = FakeEvaluator(clock, 8.0)
        coordinator.run_eval(evaluate, with_context=True)
        clock.sleep(1.0)
        with coordinator.paused():
            assert clock.now() == 8.0
            with pytest.raises(GateTimeout, match="the coordinator is paused"):
                coordinator.run_eval(evaluate, with_context=True, timeout=5.0)
        coordinator.run_eval(evaluate, with_context=True, timeout=5.0)
        assert coordinator.wait_for_eval(60.0) is not None
        coordinator.run_eval(evaluate, with_context=True)
        with (
            pytest.raises(GateTimeout, match="in vain to pause: an evaluation still runs"),
            coordinator.paused(timeout=2.0),
        ):
            raise AssertionError("not paused yet")
        assert coordinator.can_collect()
        coordinator.close(timeout=10.0)


def test_evaluations_of_a_run_wait_for_the_end_of_a_pause() -> None:
    for background in (False, True):
        with VirtualClock() as clock:
            coordinator = make(clock, 1, enable_async_eval=background)
            evaluate = FakeEvaluator(clock, 0.5)
            run = running(clock, coordinator, eval_fn=evaluate, eval_every=1, max_train=8, max_seconds=200.0)
            clock.sleep(3.2)
            with coordinator.paused():
                made = coordinator.get_statistics()["eval_count"]
                clock.sleep(1000.0)
                assert coordinator.get_statistics()["eval_count"] == made
            result: RunResult = run.end()
            assert (result.reason, result.statistics["eval_count"]) == ("max_train", 8)
            coordinator.close()


def test_background_roles_wait_between_two_passes() -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, 1)
        passes: list[float] = []

        def work(context: Any) -> None:
            passes.append(clock.now())
            clock.sleep(1.0)

        run = running(clock, coordinator, max_train=10, background={"other": work})
        clock.sleep(5.5)
        with coordinator.paused():
            clock.sleep(1.0)
            made = len(passes)
            clock.sleep(100.0)
            assert len(passes) == made
        run.end()
        assert len(passes) > made
        coordinator.close()


def test_a_pause_that_cannot_begin_says_what_runs() -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, 2)
        run = running(clock, coordinator, max_train=5)
        clock.sleep(3.5)
        in_vain = pytest.raises(GateTimeout, match=r"in vain to pause: \d collect\(s\) run, and the learner is")
        with in_vain, coordinator.paused(timeout=0.1):
            raise AssertionError("not paused yet")
        assert run.end().reason == "max_train"  # as if nothing had been
        with pytest.raises(ConfigError, match="timeout is -1"):
            coordinator.paused(timeout=-1)
        coordinator.close()


def test_pauses_may_be_nested() -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, 2)
        with coordinator.paused():
            with coordinator.paused():
                clock.sleep(5.0)
            assert not coordinator.can_collect()
            clock.sleep(5.0)
        assert coordinator.can_collect()
        coordinator.close()


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize("how", ["stop", "close"])
def test_stop_and_close_work_while_paused(degree: int, how: str) -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, degree)
        run = running(clock, coordinator)
        clock.sleep(4.5)
        with coordinator.paused():
            clock.sleep(10.0)
            if how == "stop":
                coordinator.stop("enough")
            else:
                coordinator.close()
            assert run.end().reason == ("enough" if how == "stop" else "closed")
        assert coordinator.violations() == []
        if how == "stop":
            coordinator.run(
                FakeCollector(clock, 1.0), lambda batch: None, max_train=coordinator.train_count + 2, **QUIET
            )
            coordinator.close()
        else:
            with pytest.raises(CoordinatorClosed), coordinator.paused():
                pass


def test_a_stop_ends_the_wait_for_a_pause() -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, 1)
        threads = ThreadGroup(clock, "own")
        threads.start("slow", lambda: coordinator.run_collect(lambda: clock.sleep(50.0) or "data"))
        threads.start("stop", lambda: (clock.sleep(2.0), coordinator.stop("enough")))
        clock.sleep(1.0)
        with pytest.raises(Stopped, match="enough"), coordinator.paused():
            pass
        assert clock.now() == 2.0
        assert threads.join(100.0) == []
        coordinator.close()


def test_the_trace_shows_pauses(tmp_path: Path) -> None:
    with AsyncTrainingCoordinator(1, trace=tmp_path / "trace.json") as coordinator, coordinator.paused():
        pass
    text = (tmp_path / "trace.json").read_text()
    assert '"paused"' in text and '"resumed"' in text


def test_tasks_wait_without_blocking_their_event_loop() -> None:
    async def train() -> str:
        return "trained"

    async def main() -> None:
        with coordinator.paused():
            waiting = asyncio.create_task(coordinator.run_train(train))
            evaluating = asyncio.create_task(coordinator.run_eval(train))
            await asyncio.sleep(0.01)
            assert not waiting.done() and not evaluating.done()
        assert await asyncio.wait_for(waiting, 10.0) == "trained"
        await asyncio.wait_for(evaluating, 10.0)

    with AsyncTrainingCoordinator(1, True, get_weights=dict) as coordinator:
        coordinator.run_collect(dict)
        asyncio.run(main())


def test_a_pause_from_another_thread_holds_for_all() -> None:
    paused, over = threading.Event(), threading.Event()

    def pause() -> None:
        with coordinator.paused():
            paused.set()
            assert over.wait(20.0)

    with AsyncTrainingCoordinator(1) as coordinator:
        threads = ThreadGroup(coordinator.clock, "own")
        threads.start("pause", pause)
        assert paused.wait(20.0)
        with pytest.raises(GateTimeout, match="paused"):
            coordinator.run_collect(dict, timeout=0.01)
        over.set()
        coordinator.run_collect(dict, timeout=20.0)
        assert threads.join(20.0) == [] and threads.failures == []


def test_a_pause_in_the_block_that_trains_is_refused() -> None:
    """It would wait for the end of that block, for ever."""
    with AsyncTrainingCoordinator(1) as coordinator:
        refused = pytest.raises(LzeroAsyncError, match="A block of this thread trains")
        for _ in coordinator.batches(lambda context: "data", max_train=2):
            with refused, coordinator.paused():
                pass
        coordinator.run_collect(lambda: "data")
        with coordinator.training(), refused, coordinator.paused():
            pass
        assert coordinator.train_count == 3
        with coordinator.paused(timeout=10.0):
            assert not coordinator.can_collect()
        assert coordinator.can_collect()


def test_a_pause_that_is_over_ends_no_later_one() -> None:
    """Its object goes while another thread has the lock; the next one may get the same number."""
    with AsyncTrainingCoordinator(1) as coordinator:
        locked, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with coordinator._keeper.lock:
                locked.set()
                go_on.wait(10.0)

        with coordinator.paused():
            first = coordinator.paused()
            with first:
                pass
            holder = threading.Thread(target=hold)
            holder.start()
            assert locked.wait(10.0)
            del first
            later = coordinator.paused()
            go_on.set()
            holder.join()
            later.__enter__()
            coordinator.set_degree(2)  # settles
        assert not coordinator.can_collect()
        later.__exit__(None, None, None)
        assert coordinator.can_collect()


@pytest.mark.parametrize("degree", [0, 1])
def test_a_run_that_begins_in_a_pause_waits_for_its_end(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator = make(clock, degree)
        with coordinator.paused():
            run = running(clock, coordinator, max_seconds=10.0)
            clock.sleep(100.0)
            stats = coordinator.get_statistics()
            assert (stats["collect_count"], stats["open_collects"]) == (0, 0)
        assert run.end().statistics["train_count"] > 1
        coordinator.close()
