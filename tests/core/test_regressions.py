"""Bugs that were found once. Each test failed before its fix."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import pickle
import signal
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

from lzero_async import (
    Adaptation,
    AsyncTrainingCoordinator,
    Batch,
    Bound,
    CollectContext,
    ConfigError,
    GateTimeout,
    LzeroAsyncError,
    Recovery,
    Stopped,
)
from lzero_async.core.adaptive import drift_of
from lzero_async.core.weights import WeightStore
from lzero_async.simulate.pipeline import simulate
from lzero_async.testing import FakeCollector, FakeEvaluator, FakeLearner, VirtualClock
from lzero_async.threads import LoopRunner
from lzero_async.types import TrainReport
from zoo.mbpo.queues import BoundedQueue

quiet = {"print_statistics": False, "handle_signals": False}


def test_a_stop_condition_that_comes_true_between_collect_and_train_does_not_hang_degree_0() -> None:
    answers = iter([False, True, True, True])
    with AsyncTrainingCoordinator(0) as coordinator:
        result = coordinator.run(lambda c: 1, lambda b: None, stop_fn=lambda: next(answers), **quiet)
    assert (result.reason, result.statistics["train_count"]) == ("stop_fn", 1)

    with (
        VirtualClock() as clock,
        AsyncTrainingCoordinator(0, recovery=Recovery(on_failure="restart"), clock=clock) as coordinator,
    ):
        failing = FakeCollector(clock, 1.0, fail_at=range(100))
        assert coordinator.run(failing, FakeLearner(clock, 1.0), max_seconds=2.5, **quiet).reason == "max_seconds"


def test_a_run_after_a_failure_is_not_joined_by_roles_that_were_left_behind() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(2, clock=clock)
        old = FakeLearner(clock, 60.0)
        with pytest.raises(RuntimeError):
            coordinator.run(FakeCollector(clock, 1.0, fail_at={2}), old, **quiet)
        with pytest.raises(LzeroAsyncError, match=r"still inside their functions \(learner\)"):
            coordinator.run(FakeCollector(clock, 1.0), old, **quiet)
        clock.sleep(100)
        new = FakeLearner(clock, 1.0)
        stats = coordinator.run(FakeCollector(clock, 1.0), new, max_train=8, **quiet).statistics
        assert stats["train_count"] == 8
        assert len(old.trained) + len(new.trained) == 8
        assert len(old.trained) == 1
        coordinator.close()


def test_a_second_run_at_the_same_time_is_refused() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        errors = []

        def collect(context: CollectContext) -> int:
            with pytest.raises(LzeroAsyncError, match="in a run already") as caught:
                coordinator.run(lambda c: 1, lambda b: None, **quiet)
            errors.append(caught)
            return 1

        coordinator.run(collect, lambda b: None, max_train=1, **quiet)
        assert errors


@pytest.mark.parametrize("background", [False, True])
def test_a_score_that_is_no_number_ends_the_run_with_a_clear_error(background: bool) -> None:
    with AsyncTrainingCoordinator(1, background, get_weights=dict) as coordinator:
        with pytest.raises(ConfigError, match="needs a number"):
            coordinator.run(lambda c: 1, lambda b: None, lambda c: np.array([1.0, 2.0]), eval_every=1, eval_target=1.5,
                            max_train=5, **quiet)  # fmt: skip
        with pytest.raises(ConfigError, match="eval_target is 'x'"):
            coordinator.run(lambda c: 1, lambda b: None, lambda c: 1.0, eval_every=1, eval_target="x", **quiet)
        with pytest.raises(ConfigError, match="no eval_fn to reach it"):
            coordinator.run(lambda c: 1, lambda b: None, eval_target=1.0, **quiet)


def test_scores_that_are_not_numbers_are_never_best() -> None:
    scores = iter([float("nan"), 1.0, np.array([9.0, 9.0]), 0.5])
    with AsyncTrainingCoordinator(0) as coordinator:
        result = coordinator.run(
            lambda c: 1, lambda b: None, lambda c: next(scores), eval_every=1, max_train=4, **quiet
        )
    assert (result.best_eval.value, result.last_eval.value) == (1.0, 0.5)


def test_an_on_eval_that_raises_at_the_end_does_not_hide_the_failure_and_statistics_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def on_eval(result) -> None:
        raise ValueError("cannot save")

    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        coordinator = AsyncTrainingCoordinator(1, True, get_weights=learner.get_weights, clock=clock)
        with pytest.raises(ValueError, match="cannot save"):
            coordinator.run(FakeCollector(clock, 1.0), learner, FakeEvaluator(clock, 50.0), eval_every=5, max_train=5,
                            on_eval=on_eval, handle_signals=False)  # fmt: skip
        coordinator.close()
    assert "Async Training Statistics" in capsys.readouterr().out


def test_an_abandoned_background_coroutine_is_no_failure() -> None:
    async def evaluate(context) -> None:
        await _never()

    with AsyncTrainingCoordinator(1, True, get_weights=dict) as coordinator:
        result = coordinator.run(
            lambda c: 1, lambda b: None, evaluate, eval_every=1, max_train=5, on_stop="abandon", **quiet
        )
        assert result.reason == "max_train"
    for _ in range(5):
        coordinator = AsyncTrainingCoordinator(1, True, get_weights=dict)
        coordinator.start_background_eval(evaluate, with_context=True)
        coordinator.close()


def test_close_cancels_an_evaluation_on_the_callers_own_loop() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def evaluate() -> None:
            started.set()
            await _never()

        coordinator = AsyncTrainingCoordinator(1, True, get_weights=dict)
        await coordinator.run_eval(evaluate)
        await started.wait()
        await asyncio.to_thread(coordinator.close)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # close() warns of what it could not end
        asyncio.run(main())


def test_close_cancels_an_evaluation_that_has_only_just_been_handed_to_the_callers_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        coordinator = AsyncTrainingCoordinator(1, True, get_weights=dict)
        hand_over = asyncio.run_coroutine_threadsafe

        def and_cancel(*arguments: Any) -> Any:
            future = hand_over(*arguments)
            coordinator.evaluator._cancel()
            return future

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", and_cancel)
        await coordinator.run_eval(_never)
        await asyncio.to_thread(coordinator.wait_for_eval, 10)
        await asyncio.to_thread(coordinator.close)

    asyncio.run(main())


def test_a_cancel_before_the_start_is_not_lost() -> None:
    runner = LoopRunner()
    runner.cancel()

    async def never() -> None:
        raise AssertionError

    with pytest.raises(asyncio.CancelledError):
        runner.run(never())


def test_a_closed_event_loop_does_not_break_the_thread_that_would_wake_it() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 0)
    go, training = threading.Event(), threading.Event()
    results = []
    thread = threading.Thread(
        target=lambda: results.append(coordinator.run_train(lambda: training.set() or go.wait(10)))
    )
    thread.start()
    assert training.wait(10)

    async def collect() -> int:
        return 1

    with pytest.raises(GateTimeout, match="its batch stays in line"):
        asyncio.run(coordinator.run_collect(collect, timeout=0.01))
    go.set()
    thread.join(10)
    assert results == [True]
    assert coordinator.run_train(lambda b: b.data, with_batch=True, timeout=1) == 1
    coordinator.close()


def test_what_is_granted_to_a_task_of_a_closed_loop_is_taken_back() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(coordinator.run_train(_never))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    coordinator.run_collect(lambda: "data")
    assert coordinator.run_train(lambda b: b.data, with_batch=True, timeout=1) == "data"
    task._log_destroy_pending = False
    coordinator.close()


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def test_the_garbage_collector_may_finalize_a_stage_while_the_lock_is_held() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(coordinator.run_collect(_never))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False
    with coordinator._keeper.lock:
        del task
        gc.collect()
    coordinator._keeper.settle()
    assert coordinator.get_statistics()["abandoned"] == 1
    assert coordinator.can_collect()
    coordinator.close()


def test_an_interrupted_run_gives_back_what_it_held() -> None:
    async def collect(context: CollectContext) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await _never()

    async def quick(context: CollectContext) -> int:
        return 1

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        for degree in (0, 1):
            coordinator = AsyncTrainingCoordinator(degree)
            with pytest.raises(KeyboardInterrupt):
                coordinator.run(collect, lambda b: None, **quiet)
            assert coordinator.run(quick, lambda b: None, max_train=1, max_seconds=5, **quiet).reason == "max_train"
            assert not coordinator._keeper.gate.violations()
            coordinator.close()
    finally:
        signal.signal(signal.SIGINT, before)


def test_time_outs_and_stops_of_other_objects_are_failures_of_the_stage() -> None:
    queue: BoundedQueue[int] = BoundedQueue(1)
    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(GateTimeout, match="the queue is empty"):
        coordinator.run(lambda c: 1, lambda b: queue.get(timeout=0.01), max_seconds=3600, **quiet)
    inner = AsyncTrainingCoordinator(1)
    inner.close()
    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(Stopped, match="closed"):
        coordinator.run(lambda c: inner.run_collect(lambda: 1), lambda b: None, max_train=3, **quiet)


@pytest.mark.parametrize(("degree", "publish_every"), [(0, 1), (1, 2)])
def test_a_run_after_a_failed_publication_does_not_hang(degree: int, publish_every: int) -> None:
    calls = iter(range(100))

    def get_weights():
        if next(calls) == 1:
            raise OSError("disk")
        return {}

    with AsyncTrainingCoordinator(
        degree, bound=Bound(publish_every=publish_every), get_weights=get_weights
    ) as coordinator:
        with pytest.raises(OSError, match="disk"):
            coordinator.run(lambda c: 1, lambda b: None, max_train=5, **quiet)
        assert coordinator.run(lambda c: 1, lambda b: None, max_train=8, **quiet).statistics["train_count"] == 8


def test_a_report_that_cannot_be_used_wakes_whoever_the_train_made_room_for() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 0)

    def train(batch: Batch) -> TrainReport:
        with pytest.raises(GateTimeout):
            coordinator.run_collect(lambda: 1, timeout=0)
        return TrainReport(sample_age_mean=1.0, sample_count=None)

    with pytest.raises(TypeError):
        coordinator.run_train(train, with_batch=True)
    assert coordinator.collect_count == 2
    coordinator.run_train(lambda: None, timeout=1)
    coordinator.close()


def test_numbers_of_numpy_and_torch_are_drift_signals() -> None:
    assert drift_of(np.float32(9)) == 9.0
    assert drift_of(np.int64(2)) == 2.0
    assert drift_of(np.array(0.5)) == 0.5
    with pytest.raises(ConfigError, match="not one number"):
        drift_of(np.array([1.0, 2.0]))
    torch = pytest.importorskip("torch")
    assert drift_of(torch.tensor(0.25)) == 0.25


def test_the_reason_of_a_stop_is_the_one_that_was_given() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, clock=clock)

        def train(batch: Batch) -> None:
            coordinator.stop("user asked", patient=False)

        assert coordinator.run(FakeCollector(clock, 1.0), train, on_stop="abandon", **quiet).reason == "user asked"
        clock.sleep(5)
        coordinator.close()
        coordinator = AsyncTrainingCoordinator(1, clock=clock)
        coordinator.stop("before it began")
        assert coordinator.run(FakeCollector(clock, 1.0), FakeLearner(clock, 1.0), **quiet).reason == "before it began"
        coordinator.close()
        assert not coordinator.can_collect()


def test_the_coordinator_is_usable_after_a_run() -> None:
    with AsyncTrainingCoordinator(2) as coordinator:
        coordinator.run(lambda c: 1, lambda b: None, max_train=3, **quiet)
        assert coordinator.run_eval(lambda: 5) == 5
        coordinator.run_collect(lambda: 1)
        coordinator.run_train(lambda: None, timeout=1)


def test_a_plain_function_that_returns_a_coroutine_is_refused_and_partials_are_unwrapped() -> None:
    async def collect() -> int:
        return 1

    class Collect:
        async def __call__(self) -> int:
            return 2

    with AsyncTrainingCoordinator(1) as coordinator:
        with pytest.raises(TypeError, match="declare it with async def"):
            coordinator.run_collect(lambda: collect())
        assert coordinator.get_statistics()["failed"] == 1
        assert asyncio.run(coordinator.run_collect(functools.partial(Collect()))) == 2


def test_a_coroutine_on_a_virtual_clock_is_refused() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, clock=clock)
        with pytest.raises(ConfigError, match="knows threads only"):
            asyncio.run(coordinator.run_collect(_never))


def test_run_with_coroutine_functions_inside_an_event_loop_says_what_to_do() -> None:
    async def main() -> None:
        with (
            AsyncTrainingCoordinator(0) as coordinator,
            pytest.raises(ConfigError, match=r"await coordinator\.run_async"),
        ):
            coordinator.run(_never, lambda b: None, **quiet)

    asyncio.run(main())


def test_the_simulator_checks_its_arguments_and_roles_draw_from_their_own_streams() -> None:
    for options in ({"trains": 0}, {"trains": 1.5}, {"eval": 1.0}, {"eval_every": 2}):
        with pytest.raises(ConfigError):
            simulate(1.0, 1.0, **options)
    drawn: dict[str, list[float]] = {"collect": [], "train": []}

    def draw(role):
        return lambda generator, index: drawn[role].append(generator.random()) or 1.0

    simulate(draw("collect"), draw("train"), trains=20)
    assert drawn["collect"][:20] != drawn["train"][:20]


def test_an_abandoned_coroutine_at_degree_0_is_cancelled_by_a_stop() -> None:
    async def collect(context: CollectContext) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await _never()

    started = time.monotonic()
    with AsyncTrainingCoordinator(0) as coordinator:
        result = coordinator.run(collect, lambda b: None, on_stop="abandon", print_statistics=False)
    assert result.reason == "SIGINT"
    assert result.statistics["abandoned"] == 1
    assert time.monotonic() - started < 20


def test_a_broken_adaptive_state_changes_nothing() -> None:
    first = AsyncTrainingCoordinator(2, adaptation=Adaptation())
    first.run_collect(lambda: 1)
    state = first.state_dict(with_batches=True) | {"adaptive": {"degree": "x"}}
    second = AsyncTrainingCoordinator(2, adaptation=Adaptation())
    before = second.state_dict()
    with pytest.raises(ConfigError):
        second.load_state_dict(state)
    assert second.state_dict() == before


def test_overlap_efficiency_stays_below_one_when_the_degree_falls() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            8, num_collectors=8, adaptation=Adaptation(max_degree=8, drift_threshold=0.5), clock=clock
        )
        stats = coordinator.run(
            FakeCollector(clock, 8.0), FakeLearner(clock, 1.0, drift=0.9), max_train=12, **quiet
        ).statistics
        coordinator.close()
    assert stats["overlap_efficiency"] <= 1


def test_a_retry_starts_from_a_copy_even_if_the_state_is_made_of_references() -> None:
    class Learner:
        def __init__(self) -> None:
            self.w = np.zeros(2)

        def state_dict(self):
            return {"w": self.w}

        def load_state_dict(self, state) -> None:
            self.w[:] = state["w"]

    learner, tries = Learner(), []

    def train() -> None:
        learner.w += 1
        tries.append(1)
        if len(tries) == 1:
            raise OSError

    with AsyncTrainingCoordinator(1, recovery=Recovery(train_retries=1, learner=learner)) as coordinator:
        coordinator.run_collect(lambda: 1)
        coordinator.run_train(train)
    assert learner.w.tolist() == [1, 1]


@pytest.mark.parametrize("adaptation", [Adaptation(max_degree=0), Adaptation(min_degree=3), Adaptation(max_degree=1)])
def test_limits_of_the_adaptive_degree_are_never_ignored(adaptation: Adaptation) -> None:
    with pytest.raises(ConfigError):
        AsyncTrainingCoordinator(2, adaptation=adaptation)


def test_tasks_that_a_stage_leaves_on_its_loop_are_cancelled() -> None:
    cancelled = []

    async def forever() -> None:
        try:
            await _never()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    kept = []

    async def collect(context: CollectContext) -> int:
        kept.append(asyncio.get_running_loop().create_task(forever()))
        await asyncio.sleep(0)
        return 1

    with AsyncTrainingCoordinator(1) as coordinator:
        coordinator.run(collect, lambda b: None, max_train=2, **quiet)
    assert len(cancelled) >= 2


def test_snapshots_can_be_pickled_and_stay_frozen() -> None:
    store = WeightStore()
    store.publish({"layer": {"w": np.ones(2)}}, 0)
    copy = pickle.loads(pickle.dumps(store.latest()))
    assert copy.state["layer"]["w"].tolist() == [1, 1]
    with pytest.raises(TypeError, match="cannot be changed"):
        copy.state["layer"]["w2"] = 1
    with pytest.raises(TypeError, match="cannot be changed"):
        store.latest().state.update(x=1)
