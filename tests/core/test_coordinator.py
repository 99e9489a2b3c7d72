"""The coordinator's stages called by hand: from one thread, many threads and event loops."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
import threading
import time
import warnings

import pytest

from lzero_async import (
    Adaptation,
    AsyncTrainingCoordinator,
    Bound,
    ConfigError,
    EvalContext,
    GateTimeout,
    Recovery,
    Stopped,
)
from lzero_async.errors import CoordinatorClosed
from lzero_async.testing import FakeEvaluator, FakeLearner, Sequencer, VirtualClock
from lzero_async.types import TrainReport

nothing = dict.fromkeys(("dropped", "failed", "abandoned"), 0)


def in_thread(target) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def wait_until_parked(coordinator: AsyncTrainingCoordinator, kind: str) -> None:
    """Spin (bounded) until a request of this kind stands in line; its thread holds no lock then."""
    deadline = time.monotonic() + 10
    while not coordinator._keeper._lines[kind]:
        assert time.monotonic() < deadline, f"no {kind} request came"


# -- one thread --------------------------------------------------------------------------------------------------------


def test_stages_return_their_results_and_count() -> None:
    with AsyncTrainingCoordinator(0) as coordinator:
        assert coordinator.is_synchronous
        assert coordinator.can_collect()
        assert not coordinator.can_train()
        assert coordinator.run_collect(lambda: "data") == "data"
        assert not coordinator.can_collect()
        assert coordinator.can_train()
        assert coordinator.collect_train_lag == 1
        assert coordinator.run_train(lambda batch: batch.data, with_batch=True) == "data"
        assert coordinator.run_eval(lambda: 7) == 7
        stats = coordinator.get_statistics()
    assert (stats["collect_count"], stats["train_count"], stats["eval_count"], stats["collect_train_lag"]) == (
        1,
        1,
        1,
        0,
    )


def test_evaluation_between_collect_and_train_does_not_hang_at_degree_0() -> None:
    with AsyncTrainingCoordinator(0) as coordinator:
        coordinator.run_eval(lambda: None, timeout=1)
        coordinator.run_collect(lambda: 1)
        coordinator.run_eval(lambda: None, timeout=1)
        coordinator.run_train(lambda: None)
        assert coordinator.get_statistics()["eval_count"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"off_policy_degree": -2}, r"off_policy_degree is -2; .* at least -1.*Use 0 for synchronous"),
        ({"off_policy_degree": 1.0}, "off_policy_degree is 1.0"),
        ({"off_policy_degree": "3"}, "off_policy_degree is '3'"),
        ({"off_policy_degree": None}, "off_policy_degree is None"),
        ({"buffer_size": 0}, "buffer_size is 0; .* at least 1"),
        ({"batch_size": 0.5}, "batch_size is 0.5"),
        ({"num_collectors": 0}, "num_collectors is 0"),
        ({"bound": {"staleness_policy": "block"}}, "staleness_policy is 'block'; choose one of wait, drop, allow"),
        ({"eval_overlap": "both"}, "choose one of skip, latest, wait"),
        ({"recovery": {"on_failure": "ignore"}}, "choose one of raise, restart"),
        ({"recovery": {"restart_backoff": 0}}, "restart_backoff is 0"),
        ({"recovery": {"max_restarts": -1}}, "max_restarts is -1"),
        ({"recovery": {"train_retries": 1}}, "without learner="),
        ({"off_policy_degree": 1, "bound": {"publish_every": 3}}, "publish_every is 3.*at most 2"),
        ({"bound": {"max_train_ahead": 1}}, "max_train_ahead is 1"),
        ({"adaptation": {}}, "outside the adaptive range 1"),
        ({"off_policy_degree": 5, "adaptation": {"max_degree": 4}}, "outside the adaptive range 1 to 4"),
        ({"off_policy_degree": 5, "adaptation": {"min_degree": 0}}, "min_degree is 0"),
        ({"off_policy_degree": 5, "adaptation": {}, "bound": {"publish_every": 3}}, "publish_every is 3"),
    ],
)
def test_bad_arguments_name_value_range_and_remedy(arguments: dict, words: str) -> None:
    groups = {"bound": Bound, "recovery": Recovery, "adaptation": Adaptation}
    with pytest.raises(ValueError, match=words):
        AsyncTrainingCoordinator(
            **{name: groups[name](**value) if name in groups else value for name, value in arguments.items()}
        )


@pytest.mark.parametrize("name", ["bound", "recovery", "adaptation"])
def test_a_group_is_its_dataclass_which_is_frozen(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is {{}}; pass a {name.capitalize()}\(...\)"):
        AsyncTrainingCoordinator(1, **{name: {}})
    with pytest.raises(dataclasses.FrozenInstanceError):
        Bound().publish_every = 2  # type: ignore[misc]


def test_numpy_integers_are_whole_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert AsyncTrainingCoordinator(numpy.int64(3)).off_policy_degree == 3


def test_more_collectors_than_the_degree_admits_warn_once_with_the_numbers() -> None:
    with pytest.warns(UserWarning, match="num_collectors is 4, but off_policy_degree 2 admits at most 2") as caught:
        AsyncTrainingCoordinator(2, num_collectors=4)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AsyncTrainingCoordinator(4, num_collectors=4)


def test_the_automatic_degree_says_what_it_came_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert AsyncTrainingCoordinator(-1, buffer_size=10_000, batch_size=256).off_policy_degree == 3
    assert "7.7% of the buffer may wait" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="off_policy_degree 100 is high"):
        assert AsyncTrainingCoordinator(-1, buffer_size=1000, batch_size=1).off_policy_degree == 100
    with pytest.warns(UserWarning, match="more than buffer_size 10"):
        assert AsyncTrainingCoordinator(-1, buffer_size=10, batch_size=64).off_policy_degree == 1


def test_a_failed_collect_gives_its_ticket_back() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        for _ in range(5):
            with pytest.raises(ZeroDivisionError) as caught:
                coordinator.run_collect(lambda: 1 / 0)
            assert caught.traceback[-1].name == "<lambda>"
        coordinator.run_collect(lambda: 1, timeout=1)
        coordinator.run_train(lambda: None, timeout=1)
        stats = coordinator.get_statistics()
    assert (stats["failed"], stats["collect_count"], stats["train_count"]) == (5, 1, 1)


def test_stop_iteration_in_a_stage_stays_stop_iteration() -> None:
    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(StopIteration):
        coordinator.run_collect(lambda: next(iter(())))


def test_a_failed_train_keeps_its_batch_first_in_line() -> None:
    seen = []

    def train(batch) -> None:
        seen.append(batch.data)
        if len(seen) == 1:
            raise OSError("disk")

    with AsyncTrainingCoordinator(2) as coordinator:
        coordinator.run_collect(lambda: "a")
        coordinator.run_collect(lambda: "b")
        with pytest.raises(OSError, match="disk"):
            coordinator.run_train(train, with_batch=True)
        assert coordinator.collect_train_lag == 2
        coordinator.run_train(train, with_batch=True)
        coordinator.run_train(train, with_batch=True)
    assert seen == ["a", "a", "b"]
    assert coordinator.train_count == 2


def test_train_retries_start_from_the_state_before() -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0, fail_at={1, 2})
        with AsyncTrainingCoordinator(
            1, recovery=Recovery(train_retries=2, learner=learner), get_weights=learner.get_weights, clock=clock
        ) as coordinator:
            for _ in range(2):
                coordinator.run_collect(lambda: 1)
                coordinator.run_train(learner, with_batch=True)
            assert learner.weight == 2
            assert learner.trained == [0, 1]
            assert coordinator.weights.latest() == (2, {"weight": 2})


def test_a_learner_whose_state_cannot_be_saved_or_restored_fails_the_train_and_not_the_gate() -> None:
    class Learner:
        save = load = True

        def state_dict(self):
            assert self.save
            return {}

        def load_state_dict(self, state):
            assert self.load

    learner = Learner()
    with AsyncTrainingCoordinator(1, recovery=Recovery(train_retries=1, learner=learner)) as coordinator:
        coordinator.run_collect(lambda: 1)
        learner.save = False
        with pytest.raises(AssertionError):
            coordinator.run_train(lambda: None)
        learner.save, learner.load = True, False
        with pytest.raises(AssertionError):
            coordinator.run_train(lambda: 1 / 0)
        assert coordinator.can_train()


def test_replays_fill_the_learners_spare_time() -> None:
    with AsyncTrainingCoordinator(2, bound=Bound(max_train_ahead=2)) as coordinator:
        coordinator.run_collect(lambda: 1)
        kinds = [coordinator.run_train(lambda batch: batch.replay, with_batch=True) for _ in range(3)]
        with pytest.raises(GateTimeout, match="no batch waits"):
            coordinator.run_train(lambda: None, timeout=0)
        stats = coordinator.get_statistics()
    assert kinds == [False, True, True]
    assert (stats["train_count"], stats["replay_count"], stats["version"]) == (1, 2, 3)


def test_timeouts_say_which_rule_blocks_with_the_numbers() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        with pytest.raises(
            GateTimeout, match=r"in vain to start a train: no batch waits \(off_policy_degree 1, waiting 0"
        ):
            coordinator.run_train(lambda: None, timeout=0)
        coordinator.run_collect(lambda: 1)
        with pytest.raises(TimeoutError, match=r"start a collect: lag \(off_policy_degree 1, waiting 1"):
            coordinator.run_collect(lambda: 1, timeout=0.001)
        assert coordinator.run_train(lambda: "still works") == "still works"


def test_a_commit_that_times_out_stays_in_line_and_is_trained() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: "first")

    def train(batch) -> None:
        with pytest.raises(GateTimeout, match="its batch stays in line"):
            coordinator.run_collect(lambda: "second", timeout=0)

    coordinator.run_train(train, with_batch=True)
    assert coordinator.run_train(lambda batch: batch.data, with_batch=True, timeout=1) == "second"
    assert coordinator.collect_count == 2


def test_reset_counters_counts_from_zero_and_keeps_versions() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        coordinator.run_collect(lambda: 1)
        coordinator.run_train(lambda: None)
        coordinator.run_collect(lambda: 1)
        coordinator.reset_counters()
        stats = coordinator.get_statistics()
        assert (stats["collect_count"], stats["train_count"], stats["collect_total_time"]) == (0, 0, 0)
        assert (stats["version"], stats["collect_train_lag"]) == (1, 1)
        coordinator.run_train(lambda: None)
        assert coordinator.train_count == 1


def test_sample_ages_are_another_statistic() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        for mean, top, count in ((2.0, 5, 10), (4.0, 6, 30)):
            coordinator.run_collect(lambda: 1)
            report = TrainReport(sample_age_mean=mean, sample_age_max=top, sample_count=count)
            coordinator.run_train(lambda r=report: r)
        stats = coordinator.get_statistics()
    assert (stats["sample_age_mean"], stats["sample_age_max"], stats["staleness_max"]) == (3.5, 6, 0)


def test_ages_of_no_samples_spoil_neither_the_statistics_nor_the_saved_state() -> None:
    with AsyncTrainingCoordinator(1) as coordinator, AsyncTrainingCoordinator(1) as resumed:
        for age in (2.0, math.nan, math.inf):
            coordinator.run_collect(lambda: 1)
            coordinator.run_train(lambda age=age: TrainReport(sample_age_mean=age, sample_age_max=age))
        resumed.load_state_dict(coordinator.state_dict())
        stats = resumed.get_statistics()
    assert (stats["sample_age_mean"], stats["sample_age_max"], stats["train_count"]) == (2.0, 2.0, 3)


def test_weights_are_published_as_often_as_asked() -> None:
    with AsyncTrainingCoordinator(2, bound=Bound(publish_every=2), get_weights=dict) as coordinator:
        seen = []
        for _ in range(5):
            coordinator.run_collect(lambda context: seen.append(context.snapshot.version) or 1, with_context=True)
            coordinator.run_train(lambda: None)
    assert seen == [0, 0, 2, 2, 4]


def test_a_failed_publication_counts_the_train_and_raises() -> None:
    fail = False

    def get_weights():
        if fail:
            raise MemoryError("no room")
        return {}

    with AsyncTrainingCoordinator(1, get_weights=get_weights) as coordinator:
        coordinator.run_collect(lambda: 1)
        fail = True
        with pytest.raises(MemoryError):
            coordinator.run_train(lambda: None)
        assert coordinator.train_count == 1
        fail = False
        coordinator.run_collect(lambda: 1, timeout=1)
        coordinator.run_train(lambda: None)
        assert coordinator.weights.latest().version == 2


# -- many threads --------------------------------------------------------------------------------------------------------


def test_a_parked_collect_is_admitted_at_the_moment_a_train_starts() -> None:
    """Lost wake-up: starting a train makes room for one more collect, so the start itself must serve the line."""
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 1)
    collected = threading.Event()
    thread = in_thread(lambda: coordinator.run_collect(lambda: collected.set() or 1))
    wait_until_parked(coordinator, "collect")
    coordinator.run_train(lambda: collected.wait(10) or pytest.fail("the collect did not start"))
    thread.join(10)
    assert coordinator.collect_count == 2
    coordinator.close()


def test_many_threads_at_once_keep_bound_and_account() -> None:
    coordinator = AsyncTrainingCoordinator(3, num_collectors=3)
    lags, staleness = [], []

    def collect_some() -> None:
        for _ in range(200):
            coordinator.run_collect(lambda: 1)

    def train(batch) -> None:
        lags.append(coordinator.collect_train_lag)
        staleness.append(batch.staleness)

    threads = [in_thread(collect_some) for _ in range(5)]
    for _ in range(1000):
        coordinator.run_train(train, with_batch=True, timeout=30)
    for thread in threads:
        thread.join(10)
    assert max(lags) <= 3
    assert max(staleness) <= 3
    stats = coordinator.get_statistics()
    assert stats["collect_count"] == stats["train_count"] == 1000
    assert {name: stats[name] for name in nothing} == nothing
    coordinator.close()


def test_close_releases_every_waiter() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    errors = []

    def attempt(call) -> None:
        try:
            call()
        except CoordinatorClosed as error:
            errors.append(error)

    coordinator.run_collect(lambda: 1)
    threads = [in_thread(lambda: attempt(lambda: coordinator.run_collect(lambda: 1)))]
    wait_until_parked(coordinator, "collect")
    coordinator.close()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 1
    for call in (coordinator.run_collect, coordinator.run_train, coordinator.run_eval):
        with pytest.raises(CoordinatorClosed, match="closed"):
            call(lambda: None)
    coordinator.close()


def test_a_coordinator_that_was_stopped_can_be_closed_for_good() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.stop("enough")
    coordinator.close()
    with pytest.raises(CoordinatorClosed, match="closed"):
        coordinator.run_collect(lambda: 1)


def test_a_collect_that_ends_after_close_is_committed_or_abandoned_never_lost() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    sequence = Sequencer()

    def collect() -> int:
        with sequence(0):
            pass
        with sequence(2):
            pass
        return 1

    thread = in_thread(lambda: coordinator.run_collect(collect))
    with sequence(1):
        coordinator.close()
    thread.join(10)
    gate = coordinator._keeper.gate
    assert gate.committed + gate.abandoned == gate.admitted == 1
    assert not gate.violations()


def test_synchronous_evaluation_takes_the_learners_turn_but_not_the_collectors() -> None:
    coordinator = AsyncTrainingCoordinator(2)
    coordinator.run_collect(lambda: 1)

    def evaluate() -> None:
        assert not coordinator.can_train()
        coordinator.run_collect(lambda: 1, timeout=5)
        with pytest.raises(GateTimeout, match="the learner is busy"):
            coordinator.run_train(lambda: None, timeout=0)

    coordinator.run_eval(evaluate)
    assert coordinator.can_train()
    assert coordinator.collect_train_lag == 2
    coordinator.close()


def test_at_degree_0_an_evaluation_holds_everything() -> None:
    with AsyncTrainingCoordinator(0) as coordinator:

        def evaluate() -> None:
            with pytest.raises(GateTimeout, match="the learner is busy"):
                coordinator.run_collect(lambda: 1, timeout=0)

        coordinator.run_eval(evaluate)
        assert coordinator.get_statistics()["eval_count"] == 1


def test_an_interrupted_wait_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def wait(self, timeout):
            raise KeyboardInterrupt

        def wake(self):
            pass

    coordinator = AsyncTrainingCoordinator(1)
    monkeypatch.setattr(coordinator.clock, "waiter", Interrupting, raising=False)
    with pytest.raises(KeyboardInterrupt):
        coordinator.run_train(lambda: None)
    monkeypatch.undo()
    coordinator.run_collect(lambda: "kept")
    assert coordinator.run_train(lambda batch: batch.data, with_batch=True, timeout=1) == "kept"
    coordinator.close()


def test_a_grant_that_comes_with_an_interrupt_is_given_back() -> None:
    """The wait is broken off after the waker has already taken the step on our behalf."""
    coordinator = AsyncTrainingCoordinator(1)

    class InterruptedAfterTheGrant:
        def wait(self, timeout):
            coordinator.run_collect(lambda: "data")
            raise KeyboardInterrupt

        def wake(self):
            pass

    real, coordinator.clock.waiter = coordinator.clock.waiter, InterruptedAfterTheGrant
    with pytest.raises(KeyboardInterrupt):
        coordinator.run_train(lambda: None)
    coordinator.clock.waiter = real
    assert coordinator.run_train(lambda batch: batch.data, with_batch=True, timeout=1) == "data"
    assert coordinator.train_count == 1
    coordinator.close()


# -- background evaluation -------------------------------------------------------------------------------------------------


def background(clock: VirtualClock, **settings) -> tuple[AsyncTrainingCoordinator, FakeLearner]:
    learner = FakeLearner(clock, 1.0)
    return AsyncTrainingCoordinator(1, True, get_weights=learner.get_weights, clock=clock, **settings), learner


def step(coordinator: AsyncTrainingCoordinator, learner: FakeLearner) -> None:
    coordinator.run_collect(lambda: 1)
    coordinator.run_train(learner, with_batch=True)


def test_background_evaluation_sees_a_frozen_version_while_training_goes_on() -> None:
    with VirtualClock() as clock:
        coordinator, learner = background(clock)
        evaluator = FakeEvaluator(clock, 10.0)
        step(coordinator, learner)
        assert coordinator.run_eval(evaluator, with_context=True) is None
        assert coordinator.poll_eval() is None
        for _ in range(5):
            step(coordinator, learner)
        assert coordinator.poll_eval() is None
        result = coordinator.wait_for_eval()
        assert (result.version, result.value, result.seconds) == (1, 1.0, 10.0)
        assert evaluator.seen == [(1, 1)]
        assert learner.weight == 6
        assert coordinator.poll_eval() == result
        coordinator.close()


@pytest.mark.parametrize(
    ("overlap", "versions", "skipped"), [("skip", [1], 2), ("latest", [1, 3], 1), ("wait", [1, 2, 3], 0)]
)
def test_what_happens_when_an_evaluation_still_runs(overlap: str, versions: list[int], skipped: int) -> None:
    with VirtualClock() as clock:
        coordinator, learner = background(clock, eval_overlap=overlap)
        evaluator = FakeEvaluator(clock, 10.0)
        for _ in range(3):
            step(coordinator, learner)
            coordinator.run_eval(evaluator, with_context=True)
        coordinator.wait_for_eval()
        assert [version for version, _ in evaluator.seen] == versions
        assert coordinator.get_statistics()["evals_skipped"] == skipped
        assert coordinator.get_statistics()["eval_count"] == len(versions)
        coordinator.close()


@pytest.mark.parametrize("asker", ["poll_eval", "wait_for_eval", "run_train", "run_eval", "close"])
def test_the_exception_of_a_background_evaluation_is_never_swallowed(asker: str) -> None:
    with VirtualClock() as clock:
        coordinator, learner = background(clock)

        def broken(context: EvalContext) -> None:
            raise RuntimeError("cannot play")

        step(coordinator, learner)
        coordinator.run_eval(broken, with_context=True)
        clock.sleep(1)
        call = getattr(coordinator, asker)
        with pytest.raises(RuntimeError, match="cannot play") as caught:
            call(lambda: None) if asker.startswith("run") else call()
        assert caught.traceback[-1].name == "broken"
        coordinator.close()


def test_waiting_for_an_evaluation_can_time_out() -> None:
    with VirtualClock() as clock:
        coordinator, _ = background(clock)
        coordinator.run_eval(FakeEvaluator(clock, 10.0), with_context=True)
        with pytest.raises(GateTimeout, match="still running after 2 s"):
            coordinator.wait_for_eval(timeout=2)
        assert coordinator.wait_for_eval().value == 0.0
        coordinator.close()


# -- event loops -----------------------------------------------------------------------------------------------------------


def test_coroutine_functions_never_block_the_loop() -> None:
    async def main() -> dict:
        order: list[str] = []
        coordinator = AsyncTrainingCoordinator(2, num_collectors=2)

        async def collect() -> str:
            await asyncio.sleep(0)
            return "data"

        async def train(batch) -> str:
            order.append(batch.data)
            await asyncio.sleep(0)
            return batch.data

        async def collect_some() -> None:
            for _ in range(10):
                await coordinator.run_collect(collect)

        async def train_some() -> None:
            for _ in range(20):
                assert await coordinator.run_train(train, with_batch=True) == "data"

        await asyncio.wait_for(asyncio.gather(train_some(), collect_some(), collect_some()), 30)
        coordinator.close()
        return coordinator.get_statistics()

    stats = asyncio.run(main())
    assert stats["train_count"] == stats["collect_count"] == 20
    assert stats["max_lag"] <= 2


def test_partials_and_objects_with_an_async_call_are_coroutine_functions() -> None:
    class Collect:
        async def __call__(self) -> int:
            return 2

    async def collect(value: int) -> int:
        return value

    async def main() -> list[int]:
        with AsyncTrainingCoordinator(3) as coordinator:
            return [
                await coordinator.run_collect(functools.partial(collect, 1)),
                await coordinator.run_collect(Collect()),
            ]

    assert asyncio.run(main()) == [1, 2]


def test_a_cancelled_task_gives_back_what_it_holds() -> None:
    async def main() -> None:
        with AsyncTrainingCoordinator(1) as coordinator:
            waiting = asyncio.create_task(coordinator.run_train(_never))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            collecting = asyncio.create_task(coordinator.run_collect(_never))
            await asyncio.sleep(0)
            collecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await collecting
            stats = coordinator.get_statistics()
            assert (stats["failed"], stats["abandoned"]) == (0, 1)
            assert coordinator.can_collect()

    asyncio.run(main())


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def test_background_evaluation_of_a_coroutine_runs_on_the_callers_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with AsyncTrainingCoordinator(1, True) as coordinator:

            async def evaluate() -> float:
                assert asyncio.get_running_loop() is loop
                await asyncio.sleep(0)
                return 3.0

            assert await coordinator.run_eval(evaluate) is None
            result = await asyncio.to_thread(coordinator.wait_for_eval, 10)
            assert result.value == 3.0

    asyncio.run(main())


def test_timeouts_of_coroutines() -> None:
    async def main() -> None:
        with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(GateTimeout, match="no batch waits"):
            await coordinator.run_train(_never, timeout=0.01)

    asyncio.run(main())


# -- resume ------------------------------------------------------------------------------------------------------------------


def test_only_so_many_collectors_are_active_as_were_asked_for() -> None:
    coordinator = AsyncTrainingCoordinator(3, num_collectors=3)
    coordinator.set_active_collectors(1)
    with coordinator.collecting() as ticket:
        assert not coordinator.can_collect()
        coordinator.set_active_collectors(2)
        assert coordinator.can_collect()
        ticket.data = "a"
    with pytest.raises(ConfigError, match="only 3 collectors"):
        coordinator.set_active_collectors(4)


@pytest.mark.parametrize("number", [1, 3])
def test_resume_wants_one_batch_for_each_that_waits(number: int) -> None:
    first, second = AsyncTrainingCoordinator(3), AsyncTrainingCoordinator(3)
    for name in ("a", "b"):
        first.run_collect(lambda n=name: n)
    with pytest.raises(ConfigError, match=f"2 waiting batches, but {number} were given"):
        second.load_state_dict(first.state_dict(), batches=["data"] * number)
    assert second.collect_count == 0


def test_resume_continues_counts_versions_and_waiting_batches() -> None:
    first = AsyncTrainingCoordinator(3, num_collectors=2)
    for name in ("a", "b", "c"):
        first.run_collect(lambda n=name: n)
    first.run_train(lambda: None)
    state = first.state_dict(with_batches=True)
    first.close()

    weights = []
    second = AsyncTrainingCoordinator(3, num_collectors=2, get_weights=lambda: weights.append(1) or {"w": 1})
    second.load_state_dict(state)
    assert (second.collect_count, second.train_count, second.collect_train_lag) == (3, 1, 2)
    assert second.weights.latest().version == 1
    assert [second.run_train(lambda b: b.data, with_batch=True) for _ in range(2)] == ["b", "c"]
    assert second.train_count == 3
    second.close()


def test_the_saved_state_is_plain_json_and_without_batches_they_are_abandoned() -> None:
    first = AsyncTrainingCoordinator(2)
    first.run_collect(lambda: "a")
    state = json.loads(json.dumps(first.state_dict()))
    second = AsyncTrainingCoordinator(2)
    second.load_state_dict(state)
    assert (second.get_statistics()["abandoned"], second.collect_train_lag) == (1, 0)
    third = AsyncTrainingCoordinator(2)
    third.load_state_dict(state, batches=["from my buffer"])
    assert third.run_train(lambda b: b.data, with_batch=True) == "from my buffer"


def test_capacity_does_not_inflate_and_lag_stays_bounded_after_resumes() -> None:
    state = None
    for _ in range(5):
        coordinator = AsyncTrainingCoordinator(2, num_collectors=2)
        if state is not None:
            coordinator.load_state_dict(state)
        admitted = 0
        while coordinator.can_collect():
            coordinator.run_collect(lambda: "x")
            admitted += 1
            assert coordinator.collect_train_lag <= 2
        assert admitted == (2 if state is None else 0)
        state = coordinator.state_dict(with_batches=True)


def test_a_save_in_the_middle_of_a_train_repeats_it_and_counts_it_once() -> None:
    states = []
    first = AsyncTrainingCoordinator(1)
    first.run_collect(lambda: "a")
    first.run_train(lambda: states.append(first.state_dict(with_batches=True)))
    second = AsyncTrainingCoordinator(1)
    second.load_state_dict(states[0])
    assert (second.train_count, second.collect_train_lag) == (0, 1)
    second.run_train(lambda: None)
    assert second.train_count == second.collect_count == second.get_statistics()["version"] == 1


def test_a_smaller_degree_drains_first() -> None:
    first = AsyncTrainingCoordinator(4)
    for _ in range(4):
        first.run_collect(lambda: 1)
    second = AsyncTrainingCoordinator(1)
    second.load_state_dict(first.state_dict(with_batches=True))
    lags = []
    while second.collect_train_lag:
        assert not second.can_collect()
        second.run_train(lambda: lags.append(second.collect_train_lag))
    assert lags == [4, 3, 2, 1]
    assert second.can_collect()


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"format": 99},
        {"format": 1},
        {"format": 1, "gate": {}, "statistics": {}},
        {"format": 1, "gate": {"waiting": 3}, "statistics": {"sums": {}, "base": {}, "wall": 0}},
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(state) -> None:
    coordinator = AsyncTrainingCoordinator(1)
    before = coordinator.state_dict()
    with pytest.raises(ConfigError, match="checkpoint"):
        coordinator.load_state_dict(state)
    assert coordinator.state_dict() == before


def test_loading_while_something_runs_is_refused() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    state = coordinator.state_dict()
    with pytest.raises(ConfigError, match="before the run starts"):
        coordinator.run_collect(lambda: coordinator.load_state_dict(state))


def test_stopped_is_the_base_of_closed() -> None:
    assert issubclass(CoordinatorClosed, Stopped)
