"""The loop `run`: schedules, stop conditions, failures, restarts, signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async import AsyncTrainingCoordinator, Batch, Bound, CollectContext, ConfigError, EvalResult, Recovery
from lzero_async.errors import Stopped
from lzero_async.simulate.distributions import lognormal
from lzero_async.simulate.pipeline import simulate
from lzero_async.testing import (
    FakeCollector,
    FakeEvaluator,
    FakeLearner,
    Interrupted,
    VirtualClock,
)
from lzero_async.types import EvalContext

ROOT = Path(__file__).resolve().parents[2]


def account(stats: dict) -> int:
    return stats["train_count"] + stats["collect_train_lag"] + stats["dropped"]


def pipeline(clock: VirtualClock, degree: int, collect: float = 1.0, train: float = 1.0, **settings):
    learner = FakeLearner(clock, train)
    coordinator = AsyncTrainingCoordinator(degree, get_weights=learner.get_weights, clock=clock, **settings)
    return coordinator, FakeCollector(clock, collect), learner


# -- degree 0 ------------------------------------------------------------------------------------------------------------


class TinyAgent:
    """A linear model trained by SGD on data that global random generators produce."""

    def __init__(self) -> None:
        random.seed(5)
        np.random.seed(5)
        self.w = np.zeros(4)
        self.order: list[str] = []

    def collect(self, context: CollectContext | None = None):
        self.order.append(f"collect {random.random():.6f}")
        x = np.random.randn(8, 4)
        return x, x @ np.arange(4.0) + self.w.sum()

    def train(self, batch) -> None:
        x, y = batch.data if isinstance(batch, Batch) else batch
        self.order.append("train")
        self.w -= 0.05 * x.T @ (x @ self.w - y) / len(y) + 0.001 * np.random.randn(4)

    def evaluate(self, context=None) -> float:
        self.order.append(f"eval {np.random.rand():.6f}")
        return float(-np.abs(self.w - np.arange(4.0)).sum())


def test_degree_0_equals_a_hand_written_serial_loop_exactly() -> None:
    serial = TinyAgent()
    for step in range(1, 41):
        serial.train(serial.collect())
        if step % 7 == 0:
            serial.evaluate()
    serial_state = (random.getstate(), np.random.get_state())

    ours = TinyAgent()
    thread = threading.get_ident()
    seen = set()

    def collect(context: CollectContext):
        seen.add(threading.get_ident())
        return ours.collect(context)

    with AsyncTrainingCoordinator(0) as coordinator:
        coordinator.run(collect, ours.train, ours.evaluate, eval_every=7, max_train=40)
    assert ours.order == serial.order
    assert np.array_equal(ours.w, serial.w)
    assert random.getstate() == serial_state[0]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), serial_state[1], strict=True))
    assert seen == {thread}


# -- overlap and the simulator -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_equal_stages_overlap_completely(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, degree)
        stats = coordinator.run(collect, learner, max_train=100).statistics
        coordinator.close()
    assert stats["wall_time"] == 101
    assert stats["collect_count"] == stats["train_count"] == 100


def test_degree_0_takes_the_sum() -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, 0)
        assert coordinator.run(collect, learner, max_train=100).statistics["wall_time"] == 200


@pytest.mark.parametrize("policy", ["wait", "drop", "allow"])
@pytest.mark.parametrize(
    ("degree", "workers", "publish_every"), [(1, 1, 1), (2, 4, 1), (3, 2, 2), (8, 4, 1), (5, 3, 4)]
)
@pytest.mark.filterwarnings("ignore:num_collectors")
def test_the_loop_does_exactly_what_the_simulator_says(
    degree: int, workers: int, publish_every: int, policy: str
) -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, lognormal(1, 1), seed=3)
        coordinator = AsyncTrainingCoordinator(
            degree,
            num_collectors=workers,
            bound=Bound(publish_every=publish_every, staleness_policy=policy),
            clock=clock,
        )
        stats = coordinator.run(FakeCollector(clock, lognormal(2, 1.2), seed=3), learner, max_train=300).statistics
        coordinator.close()
    told = simulate(
        lognormal(2, 1.2),
        lognormal(1, 1),
        num_collectors=workers,
        off_policy_degree=degree,
        trains=300,
        policy=policy,
        publish_every=publish_every,
        seed=3,
    )
    assert stats["wall_time"] == pytest.approx(told.wall)
    assert stats["mean_lag"] == pytest.approx(told.mean_lag)
    assert stats["staleness_mean"] == pytest.approx(told.mean_staleness)
    assert stats["dropped"] == told.dropped
    if policy != "allow":
        assert learner.max_staleness <= degree


@pytest.mark.filterwarnings("ignore:num_collectors")
def test_a_straggler_never_makes_staleness_grow() -> None:
    """Bar 4: lognormal sigma 1.5, 4 collectors, degree 2, 2,000 batches."""
    with VirtualClock() as clock:
        learner = FakeLearner(clock, lognormal(1, 1.5))
        coordinator = AsyncTrainingCoordinator(2, num_collectors=4, clock=clock)
        stats = coordinator.run(FakeCollector(clock, lognormal(2, 1.5)), learner, max_train=2000).statistics
        coordinator.close()
    assert learner.max_staleness == stats["staleness_max"] == 2
    assert (stats["dropped"], stats["abandoned"], stats["train_count"]) == (0, 0, 2000)
    assert sorted(learner.trained) == list(range(2000))


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_threads_keeps_bound_and_account(seed: int) -> None:
    """The virtual clock draws which ready thread runs next; failures, restarts and evaluations in between."""
    with VirtualClock(seed) as clock:
        learner = FakeLearner(clock, lognormal(1, 1), seed=seed)
        coordinator = AsyncTrainingCoordinator(
            3, num_collectors=3, recovery=Recovery(on_failure="restart"), clock=clock
        )
        collect = FakeCollector(clock, lognormal(1, 1), seed=seed, fail_at=set(range(5, 200, 17)))
        result = coordinator.run(collect, learner, FakeEvaluator(clock, 2.0), eval_every=9, max_train=150)
        coordinator.close()
    stats = result.statistics
    assert stats["train_count"] == 150
    assert stats["max_lag"] <= 3
    assert learner.max_staleness <= 3
    assert stats["failed"] == stats["restarts"] > 0
    assert not coordinator._keeper.gate.violations()


# -- stop conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [0, 2])
def test_stop_conditions(degree: int) -> None:
    seen: list[FakeLearner] = []
    for options, reason, trains in (
        ({"max_train": 7}, "max_train", 7),
        ({"max_collect": 6}, "max_collect", 6),
        ({"max_train": 0}, "max_train", 0),
        ({"stop_fn": lambda: seen[-1].calls >= 5}, "stop_fn", 5),
    ):
        with VirtualClock() as clock:
            coordinator, collect, learner = pipeline(clock, degree)
            seen.append(learner)
            result = coordinator.run(collect, learner, **options)
            assert result.reason == reason
            assert result.statistics["train_count"] == trains == len(learner.trained)
            coordinator.close()


@pytest.mark.parametrize("degree", [0, 2])
def test_max_seconds_ends_a_learner_that_waits(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, degree)
        result = coordinator.run(FakeCollector(clock, 4.0), learner, max_seconds=10)
        assert result.reason == "max_seconds"
        assert result.statistics["train_count"] == 2
        assert account(result.statistics) == result.statistics["collect_count"]
        coordinator.close()


def test_a_run_can_be_continued() -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, 2)
        coordinator.run(collect, learner, max_train=5)
        assert coordinator.run(collect, learner, max_train=12).statistics["train_count"] == 12
        coordinator.close()
    assert learner.trained == list(range(12))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("degree", [0, 2])
def test_a_reached_target_ends_the_run(degree: int, background: bool) -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, degree, enable_async_eval=background)
        arrived: list[EvalResult] = []
        result = coordinator.run(
            collect,
            learner,
            FakeEvaluator(clock, 2.5),
            eval_every=4,
            eval_target=8.0,
            max_train=1000,
            on_eval=arrived.append,
        )
        coordinator.close()
    assert result.reason == "eval_target"
    assert [r.version for r in arrived] == [4, 8]
    assert result.best_eval.value == result.last_eval.value == 8.0
    assert result.statistics["train_count"] < 16


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("degree", [0, 2])
def test_a_lucky_evaluation_does_not_end_the_run(degree: int, background: bool) -> None:
    """Target 8: 9 and 5 make 7, which is the score of version 4; 7 is not looked at twice; 8 and 10 make 9."""
    scores = {(4, 0): 9.0, (4, 1): 5.0, (8, 0): 7.0, (12, 0): 8.0, (12, 1): 10.0}
    seen: list[tuple[int, int]] = []
    weights: dict[int, set[Any]] = {}

    def evaluate(context: EvalContext) -> float:
        weights.setdefault(context.version, set()).add(id(context.snapshot))
        seen.append((context.version, context.repeat))
        return scores[seen[-1]]

    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, degree, enable_async_eval=background)
        arrived: list[EvalResult] = []
        result = coordinator.run(
            collect, learner, evaluate, eval_every=4, eval_target=8.0, max_train=1000, on_eval=arrived.append
        )
        coordinator.close()
    assert result.reason == "eval_target"
    assert seen == list(scores)
    assert [len(found) for found in weights.values()] == [1, 1, 1]  # both looked at the same frozen weights
    assert [(one.version, one.value) for one in arrived] == [(4, 7.0), (8, 7.0), (12, 9.0)]
    assert (result.best_eval.version, result.best_eval.value) == (12, 9.0)
    assert result.statistics["eval_count"] == 3


def test_a_coroutine_confirms_a_target_too() -> None:
    scores = {(1, 0): 9.0, (1, 1): 5.0, (2, 0): 9.0, (2, 1): 8.0}

    async def evaluate(context: EvalContext) -> float:
        return scores[context.version, context.repeat]

    with AsyncTrainingCoordinator(0) as coordinator:
        result = coordinator.run(lambda c: 1, lambda b: None, evaluate, eval_every=1, eval_target=8.0, max_train=9)
    assert (result.reason, result.last_eval.version, result.last_eval.value) == ("eval_target", 2, 8.5)


@pytest.mark.parametrize("degree", [0, 2])
def test_after_train_is_called_between_trains_and_after_their_evaluation(degree: int) -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, degree)
        seen: list[tuple[int, int, str | None]] = []

        def look() -> None:
            seen.append(
                (coordinator.train_count, coordinator.get_statistics()["eval_count"], coordinator._keeper.gate.running)
            )

        coordinator.run(collect, learner, FakeEvaluator(clock, 2.5), eval_every=2, max_train=4, after_train=look)
        coordinator.close()
    assert seen == [(1, 0, None), (2, 1, None), (3, 1, None), (4, 2, None)]


def test_a_target_reached_in_the_background_wakes_a_learner_that_waits() -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 1, enable_async_eval=True)

        def collect(context: CollectContext) -> int:
            context.stop.wait(1.0 if context.ticket < 1 else 1e9)
            return 1

        result = coordinator.run(collect, learner, FakeEvaluator(clock, 5.0), eval_every=1, eval_target=1.0)
        coordinator.close()
    assert (result.reason, clock.now()) == ("eval_target", 12.0)  # the second evaluation confirms the first


@pytest.mark.parametrize("ours", [True, False])
def test_an_evaluation_given_up_because_of_the_stop_is_no_failure(ours: bool) -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, 2, enable_async_eval=True)

        def evaluate(context: EvalContext) -> float:
            context.stop.wait(1e9)
            error = Stopped("given up")
            error.origin = context.stop if ours else None
            raise error

        if ours:
            result = coordinator.run(collect, learner, evaluate, eval_every=1, max_train=3)
            assert (result.reason, result.last_eval) == ("max_train", None)
        else:
            with pytest.raises(Stopped, match="given up"):
                coordinator.run(collect, learner, evaluate, eval_every=1, max_train=3)
        coordinator.close()


def test_an_evaluation_that_still_runs_at_the_end_is_delivered() -> None:
    with VirtualClock() as clock:
        coordinator, collect, learner = pipeline(clock, 2, enable_async_eval=True)
        arrived: list[EvalResult] = []
        result = coordinator.run(
            collect, learner, FakeEvaluator(clock, 50.0), eval_every=5, max_train=5, on_eval=arrived.append
        )
        coordinator.close()
    assert [r.version for r in arrived] == [5]
    assert result.last_eval == arrived[0]
    assert result.statistics["eval_count"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_every": 3}, "there is no eval_fn"),
        ({"eval_every": -1}, "eval_every is -1"),
        ({"max_train": -1}, "max_train is -1"),
        ({"max_collect": 2.5}, "max_collect is 2.5"),
        ({"max_seconds": 0}, "max_seconds is 0"),
        ({"on_stop": "never"}, "choose one of finish, abandon"),
        ({"eval_fn": lambda c: 0}, "eval_every is 0"),
        ({"eval_fn": 3, "eval_every": 1}, "eval_fn is 3; it must be a function"),
    ],
)
def test_bad_options_are_rejected(options: dict, words: str) -> None:
    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(ConfigError, match=words):
        coordinator.run(lambda c: 1, lambda b: None, **options)


def test_background_evaluation_without_frozen_weights_is_rejected() -> None:
    with AsyncTrainingCoordinator(1, True) as coordinator, pytest.raises(ConfigError, match="get_weights="):
        coordinator.run(lambda c: 1, lambda b: None, lambda c: 0, eval_every=1)


def test_a_target_needs_numbers() -> None:
    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(ConfigError, match="needs a number"):
        coordinator.run(lambda c: 1, lambda b: None, lambda c: "good", eval_every=1, eval_target=1.0, max_train=9)


# -- failures ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("role", ["collect", "train", "eval"])
@pytest.mark.parametrize("degree", [0, 2])
def test_a_failure_in_any_role_ends_the_run_with_its_own_traceback(degree: int, role: str, background: bool) -> None:
    with VirtualClock() as clock:
        fail = {role: {3}}
        learner = FakeLearner(clock, 1.0, fail_at=fail.get("train", ()))
        coordinator = AsyncTrainingCoordinator(degree, background, get_weights=learner.get_weights, clock=clock)
        with pytest.raises(Interrupted) as caught:
            coordinator.run(
                FakeCollector(clock, 1.0, fail_at=fail.get("collect", ())),
                learner,
                FakeEvaluator(clock, 1.0, fail_at=fail.get("eval", ())),
                eval_every=1,
                max_train=50,
            )
        assert "_spend" in "".join(traceback.format_tb(caught.value.__traceback__))
        assert clock.now() < 20
        coordinator.close()
    assert not coordinator._keeper.gate.violations()


def test_a_collector_that_dies_while_the_learner_waits_ends_the_run_within_a_second() -> None:
    def collect(context: CollectContext) -> int:
        if context.ticket == 1:
            raise ValueError("the environment is gone")
        return 1

    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(ValueError, match="the environment is gone"):
        coordinator.run(collect, lambda batch: None, max_train=10)


def test_a_failure_does_not_wait_for_a_long_train() -> None:
    """The caller gets the failure after a moment's grace, though another role is still inside its function."""
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 2, train=60.0)
        with pytest.raises(Interrupted):
            coordinator.run(FakeCollector(clock, 1.0, fail_at={2}), learner, max_train=10)
        assert clock.now() < 4
        clock.sleep(200)
        gate = coordinator._keeper.gate
        assert gate.trained == 1
        assert not gate.violations()
        coordinator.close()


def test_of_two_failures_the_first_is_raised_and_the_other_logged(caplog: pytest.LogCaptureFixture) -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 2, num_collectors=2)

        def collect(context: CollectContext) -> None:
            clock.sleep(1.0 + 0.1 * context.worker)
            raise ValueError(f"collector {context.worker}")

        with pytest.raises(ValueError, match="collector 0"):
            coordinator.run(collect, learner, max_train=10)
        coordinator.close()
    assert "another role failed too: ValueError('collector 1')" in caplog.text


def test_collectors_are_restarted_with_back_off_and_bounded() -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(
            clock, 1, recovery=Recovery(on_failure="restart", max_restarts=3, restart_backoff=10.0)
        )
        restarted: list[tuple[int, str]] = []
        result = coordinator.run(
            FakeCollector(clock, 1.0, fail_at={2, 3, 4}),
            learner,
            max_train=5,
            on_restart=lambda worker, error: restarted.append((worker, str(error))),
        )
        assert result.statistics["restarts"] == result.statistics["failed"] == 3
        assert result.statistics["train_count"] == 5
        assert 60 < clock.now() < 75  # 10 + 20 + 30 (the longest pause), and the stages
        assert [worker for worker, _ in restarted] == [0, 0, 0]

        failing = FakeCollector(clock, 1.0, fail_at=range(1000))
        with pytest.raises(Interrupted):
            coordinator.run(failing, learner, max_train=50)
        assert failing.calls == 4
        coordinator.close()


def test_a_collector_that_fails_while_the_run_stops_does_not_fail_the_run() -> None:
    """Its collect would have been given up anyway."""
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 1, recovery=Recovery(on_failure="restart"))

        def dies_when_told_to_stop(context: CollectContext) -> str:
            if context.ticket == 1:
                context.stop.wait(1000.0)
                raise Interrupted("killed while it was to end")
            clock.sleep(1.0)
            return "data"

        result = coordinator.run(dies_when_told_to_stop, learner, stop_fn=lambda: coordinator.train_count >= 1)
        assert result.reason == "stop_fn"
        assert (result.statistics["failed"], result.statistics["restarts"]) == (1, 0)
        coordinator.close()


def test_a_collector_that_keeps_failing_is_retired_and_the_others_go_on() -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(
            clock, 2, recovery=Recovery(on_failure="restart", max_restarts=2), num_collectors=2
        )
        retired: list[int] = []

        def one_is_poisoned(context: CollectContext) -> str:
            clock.sleep(1.0)
            if context.worker == 1:
                raise Interrupted("again")
            return "data"

        result = coordinator.run(one_is_poisoned, learner, max_train=20, on_retire=retired.append)
        assert retired == [1]
        names = ("train_count", "failed", "restarts", "retired")
        assert [result.statistics[name] for name in names] == [20, 3, 2, 1]
        coordinator.close()


def test_a_bad_argument_is_not_tried_again() -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 2, recovery=Recovery(on_failure="restart"), num_collectors=2)
        calls: list[int] = []

        def refused(context: CollectContext) -> None:
            calls.append(context.worker)
            raise ConfigError("no such game")

        with pytest.raises(ConfigError, match="no such game"):
            coordinator.run(refused, learner, max_train=5)
        assert len(calls) == len(set(calls))
        coordinator.close()


def test_restart_works_at_degree_0_too() -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 0, recovery=Recovery(on_failure="restart"))
        result = coordinator.run(FakeCollector(clock, 1.0, fail_at={1, 3}), learner, max_train=5)
        assert (result.statistics["restarts"], result.statistics["train_count"]) == (2, 5)


def test_train_retries_in_the_loop_count_each_batch_once() -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0, fail_at={4})
        coordinator = AsyncTrainingCoordinator(2, recovery=Recovery(train_retries=1, learner=learner), clock=clock)
        stats = coordinator.run(FakeCollector(clock, 1.0), learner, max_train=10).statistics
        coordinator.close()
    assert learner.trained == list(range(10))
    assert (stats["train_count"], stats["version"]) == (10, 10)


# -- stopping ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_stop", ["finish", "abandon"])
def test_stop_lets_running_collects_finish_or_abandons_them(on_stop: str) -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 4, num_collectors=2)

        def train(batch: Batch) -> None:
            learner(batch)
            if len(learner.trained) == 3:
                coordinator.stop("enough", patient=on_stop == "finish")

        result = coordinator.run(FakeCollector(clock, 5.0), train, on_stop=on_stop)
        ended = clock.now()
        assert result.reason == "enough"
        clock.sleep(30)
        coordinator.close()
    gate = coordinator._keeper.gate
    assert not gate.violations()
    assert not gate.tickets
    assert (ended >= 15) == (on_stop == "finish")


def test_finished_collects_wait_for_their_commit_while_a_train_can_still_make_room() -> None:
    with VirtualClock() as clock:
        coordinator, _, learner = pipeline(clock, 1, train=10.0)

        def collect(context: CollectContext) -> str:
            clock.sleep(1.0)
            if context.ticket == 1:
                coordinator.stop("enough")
            return "data"

        result = coordinator.run(collect, learner)
        coordinator.close()
    assert (result.statistics["collect_count"], result.statistics["abandoned"]) == (2, 0)


def test_close_ends_a_run_of_another_thread_from_any_state() -> None:
    for stage in ("collect", "train", "eval", "waiting"):
        entered = threading.Event()
        coordinator = AsyncTrainingCoordinator(1, enable_async_eval=True, get_weights=dict)

        def hang(context, entered=entered) -> float:
            entered.set()
            context.stop.wait(600)
            return 0.0

        def quick(context) -> float:
            return 0.0

        fns = [hang if name == stage else quick for name in ("collect", "train", "eval")]
        if stage == "waiting":
            fns[0] = hang
        results = []
        thread = threading.Thread(
            target=lambda c=coordinator, f=fns, r=results: r.append(
                c.run(*f, eval_every=1, handle_signals=False, print_statistics=False)
            )
        )
        thread.start()
        assert entered.wait(10)
        coordinator.close()
        thread.join(10)
        assert [r.reason for r in results] == ["closed"], stage
        assert not coordinator._keeper.gate.violations()


def test_a_function_that_does_not_return_is_named_by_close() -> None:
    release = threading.Event()
    entered = threading.Event()

    def collect(context: CollectContext) -> int:
        entered.set()
        release.wait(30)
        return 1

    coordinator = AsyncTrainingCoordinator(1)
    thread = threading.Thread(target=lambda: coordinator.run(collect, lambda b: None, handle_signals=False))
    thread.start()
    assert entered.wait(10)
    with pytest.warns(UserWarning, match="collector-0"):
        coordinator.close(timeout=0.01)
    release.set()
    thread.join(10)
    coordinator.threads.join(10)


def test_coroutine_functions_in_the_loop() -> None:
    loops = set()

    async def collect(context: CollectContext) -> int:
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return context.ticket

    async def train(batch: Batch) -> None:
        await asyncio.sleep(0)

    async def evaluate(context) -> float:
        await asyncio.sleep(0)
        return 1.0

    for degree in (0, 2):
        for background in (False, True):
            with AsyncTrainingCoordinator(
                degree, background, num_collectors=max(1, degree), get_weights=dict
            ) as coordinator:
                result = coordinator.run(collect, train, evaluate, eval_every=5, max_train=20)
            assert result.statistics["train_count"] == 20
            assert result.last_eval.value == 1.0


def test_an_abandoned_coroutine_is_cancelled() -> None:
    cancelled = []

    async def collect(context: CollectContext) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(context.worker)
            raise

    with AsyncTrainingCoordinator(2, num_collectors=2) as coordinator:
        result = coordinator.run(collect, lambda b: None, max_seconds=0.05, on_stop="abandon")
    assert result.reason == "max_seconds"
    assert sorted(cancelled) == [0, 1]
    assert result.statistics["abandoned"] == 2


SIGNAL_PROGRAM = """
    import sys, time
    from lzero_async import AsyncTrainingCoordinator

    def collect(context):
        print("collecting", flush=True)
        context.stop.wait(600)
        return 1

    with AsyncTrainingCoordinator({degree}) as coordinator:
        result = coordinator.run(collect, lambda batch: None)
    print("reason", result.reason)
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("degree", [0, 2])
def test_signals_end_the_run_in_order_and_statistics_are_printed(degree: int, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SIGNAL_PROGRAM.format(degree=degree))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout.readline() == "collecting\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert f"reason {signal.Signals(number).name}" in out
    assert "Async Training Statistics:" in out
    assert "Traceback" not in err
    assert f"{signal.Signals(number).name}: ending in order" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("degree", [0, 2])
def test_a_signal_that_the_main_thread_does_not_notice_ends_the_run(degree: int, number: int) -> None:
    """One that comes just before that thread blocks on a lock; here it is another thread's from the start."""
    seen: list[bool] = []

    def collect(context: CollectContext) -> int:
        elsewhere = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), number))
        elsewhere.start()
        seen.append(context.stop.wait(30.0))
        return 1

    with AsyncTrainingCoordinator(degree) as coordinator:
        result = coordinator.run(collect, lambda b: None, max_train=1, print_statistics=False)
    assert (seen[0], result.reason) == (True, signal.Signals(number).name)


@pytest.mark.parametrize("handled", [False, True])
def test_signals_of_a_forked_process_are_its_own(handled: bool) -> None:
    seen: list[bool] = []

    def collect(context: CollectContext) -> int:
        child = os.fork()
        if not child:
            if handled:
                signal.signal(signal.SIGTERM, lambda number, frame: os._exit(3))
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (3 if handled else -signal.SIGTERM)
        if context.version == 1:
            os.kill(os.getpid(), signal.SIGINT)
            seen.append(context.stop.wait(30.0))
        return 1

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with AsyncTrainingCoordinator(0) as coordinator:
            result = coordinator.run(collect, lambda b: None, max_train=3, print_statistics=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.statistics["train_count"], result.reason, seen) == (1, "SIGINT", [True])


def test_a_signal_ends_the_run_though_somebody_else_has_taken_the_wakeup_descriptor() -> None:
    seen: list[bool] = []

    def collect(context: CollectContext) -> int:
        loop = asyncio.new_event_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        loop.remove_signal_handler(signal.SIGUSR1)
        loop.close()
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(context.stop.wait(30.0))
        return 1

    with AsyncTrainingCoordinator(0) as coordinator:
        result = coordinator.run(collect, lambda b: None, max_train=1, print_statistics=False)
    assert (result.reason, seen) == ("SIGINT", [True])


def test_signals_reach_an_event_loop_of_the_main_thread_too() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            with AsyncTrainingCoordinator(0) as coordinator:
                result = coordinator.run(
                    lambda context: (signal.raise_signal(signal.SIGTERM), context.stop.wait(30.0)),
                    lambda b: None, max_train=1, print_statistics=False,
                )  # fmt: skip
            assert signal.set_wakeup_fd(-1) == writer.fileno()
        finally:
            signal.set_wakeup_fd(before)
        assert result.reason == "SIGTERM"
        assert reader.recv(1) == bytes([signal.SIGTERM])


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with AsyncTrainingCoordinator(1) as coordinator:
            coordinator.run(lambda c: 1, lambda b: None, max_train=2, print_statistics=False)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) < files + 10  # the last ones may be about to be closed


def test_waiting_threads_use_no_timers() -> None:
    """A blocked learner is not woken while nothing happens; a poll every 0.1 s would show as 5 wake-ups."""
    entered, release = threading.Event(), threading.Event()

    def collect(context: CollectContext) -> int:
        if context.ticket == 1:
            entered.set()
            release.wait(30)
        return 1

    coordinator = AsyncTrainingCoordinator(1)
    thread = threading.Thread(
        target=lambda: coordinator.run(collect, lambda b: None, max_train=3, handle_signals=False)
    )
    thread.start()
    try:
        assert entered.wait(10)
        deadline = time.monotonic() + 10
        while not coordinator._keeper._lines["train"]:
            assert time.monotonic() < deadline
        learner = next(t for t in threading.enumerate() if t.name == "lzero-learner")
        before, started = wake_ups(learner), time.monotonic()
        while time.monotonic() < started + 0.5:
            pass
        assert wake_ups(learner) - before <= 1  # falling asleep itself may be counted
    finally:
        release.set()
        thread.join(10)
        coordinator.close()


def wake_ups(thread: threading.Thread) -> int:
    """How often the system has resumed this thread after it waited."""
    status = Path(f"/proc/self/task/{thread.native_id}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(status.read_text().split("voluntary_ctxt_switches:")[1].split()[0])


# -- a queue that drops, and background roles --------------------------------------------------------------------------------


def test_fast_collectors_are_never_held_back_by_a_queue_and_every_batch_is_accounted_for() -> None:
    clock = VirtualClock()
    coordinator, collector, learner = pipeline(
        clock, 1, 1.0, 4.0, num_collectors=2, bound=Bound(staleness_policy="allow", queue_capacity=3)
    )
    with coordinator:
        result = coordinator.run(collector, learner, max_seconds=40.0, print_statistics=False)
    stats = result.statistics
    assert stats["collect_wait_time"] == 0.0
    assert stats["max_lag"] == 4
    assert stats["collect_count"] == account(stats)
    assert stats["dropped"] > 50
    assert stats["overlap_efficiency"] > 0.95


def test_a_queue_in_order_of_priority_gives_the_learner_the_best_batch_first() -> None:
    clock = VirtualClock()
    seen: list[int] = []

    def collect(context: CollectContext) -> int:
        clock.sleep(1.0)
        return context.ticket % 7

    def train(batch: Batch) -> None:
        seen.append(batch.data)
        clock.sleep(7.0)

    with AsyncTrainingCoordinator(
        1, bound=Bound(staleness_policy="allow", queue_capacity=7, queue_order="priority", priority=float), clock=clock
    ) as coordinator:
        coordinator.run(collect, train, max_seconds=60.0, print_statistics=False)
    assert seen[0] == 0
    assert len(seen) > 7
    assert set(seen[1:]) <= {5, 6}


def test_a_priority_that_raises_is_a_failed_collect() -> None:
    with AsyncTrainingCoordinator(
        1,
        bound=Bound(
            staleness_policy="allow", queue_capacity=2, queue_order="priority", priority=lambda data: data["missing"]
        ),
    ) as coordinator:
        with pytest.raises(KeyError):
            coordinator.run_collect(dict)
        assert coordinator.get_statistics()["failed"] == 1
    with pytest.raises(ConfigError, match="priority="):
        AsyncTrainingCoordinator(1, bound=Bound(staleness_policy="allow", queue_capacity=2, queue_order="priority"))


def test_a_background_role_runs_until_the_run_stops_and_comes_back_after_a_failure() -> None:
    clock = VirtualClock()
    passes: list[float] = []

    def watch(context) -> None:
        passes.append(clock.now())
        if len(passes) == 3:
            raise RuntimeError("a bad moment")
        context.stop.wait(1.0)

    coordinator, collector, learner = pipeline(clock, 1, recovery=Recovery(on_failure="restart", restart_backoff=0.5))
    with coordinator:
        result = coordinator.run(collector, learner, background={"watch": watch}, max_train=10, print_statistics=False)
    assert passes[:5] == [0.0, 1.0, 2.0, 2.5, 3.5]
    assert result.statistics["restarts"] == 1
    assert coordinator.threads.alive() == []


def test_a_background_role_that_fails_ends_the_run_with_its_own_exception() -> None:
    def broken(context) -> None:
        raise RuntimeError("no model")

    clock = VirtualClock()
    coordinator, collector, learner = pipeline(clock, 1)
    with coordinator, pytest.raises(RuntimeError, match="no model"):
        coordinator.run(collector, learner, background={"broken": broken}, max_train=1000, print_statistics=False)
    clock = VirtualClock()
    coordinator, collector, learner = pipeline(clock, 1, recovery=Recovery(on_failure="restart", max_restarts=2))
    with coordinator, pytest.raises(RuntimeError, match="no model"):
        coordinator.run(collector, learner, background={"broken": broken}, max_train=1000, print_statistics=False)
    assert coordinator.get_statistics()["restarts"] == 2


def test_a_background_role_has_no_place_at_degree_0() -> None:
    with AsyncTrainingCoordinator(0) as coordinator, pytest.raises(ConfigError, match="in turn"):
        coordinator.run(lambda context: 1, lambda batch: None, background={"model": print}, max_train=1)


@pytest.mark.parametrize("degree", [0, 2])
def test_a_function_says_when_an_evaluation_is_due_and_the_first_ones_come_before_any_train(degree: int) -> None:
    """LightZero counts updates, not trains, and evaluates the untrained weights once."""
    evaluated: list[int] = []
    trains = 0

    def train(batch: Batch) -> None:
        nonlocal trains
        trains += 1

    def evaluate(context: EvalContext) -> float:
        evaluated.append(trains)
        return 0.0

    with AsyncTrainingCoordinator(degree, get_weights=lambda: 0) as coordinator:
        coordinator.run(
            lambda context: 1, train, evaluate, eval_every=lambda: trains in (2, 3, 7), eval_first=2, max_train=8,
            print_statistics=False,
        )  # fmt: skip
        assert coordinator.get_statistics()["eval_count"] == 5
    assert evaluated == [0, 0, 2, 3, 7]


def test_first_evaluations_need_a_function_that_evaluates() -> None:
    with (
        AsyncTrainingCoordinator(0) as coordinator,
        pytest.raises(ConfigError, match="eval_first is 1, but there is no eval_fn"),
    ):
        coordinator.run(lambda context: 1, lambda batch: None, eval_first=1, max_train=1)
