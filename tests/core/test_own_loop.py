"""The exact forms for a loop of one's own, `training()` and `collecting()`; and what may change while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lzero_async import (
    Adaptation,
    AsyncTrainingCoordinator,
    Bound,
    ConfigError,
    GateTimeout,
    LzeroAsyncError,
    Recovery,
    Stopped,
)
from lzero_async.errors import CoordinatorClosed
from lzero_async.testing import FakeLearner, VirtualClock
from lzero_async.threads import ThreadGroup
from lzero_async.types import TrainReport


def collect(coordinator: AsyncTrainingCoordinator, data: Any = "data") -> int:
    with coordinator.collecting(timeout=1.0) as ticket:
        ticket.data = data
    return ticket.version


def train(coordinator: AsyncTrainingCoordinator) -> Any:
    with coordinator.training(timeout=1.0) as batch:
        pass
    return batch


def account(coordinator: AsyncTrainingCoordinator) -> dict[str, int]:
    assert coordinator.violations() == []
    stats = coordinator.get_statistics()
    names = ("collect_count", "train_count", "failed", "rejected", "abandoned", "open_collects", "collect_train_lag")
    return {name: stats[name] for name in names if stats[name]}


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_blocks_collect_train_and_publish(degree: int) -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        with AsyncTrainingCoordinator(degree, get_weights=learner.get_weights, clock=clock) as coordinator:
            for number in range(3):
                with coordinator.collecting() as ticket:
                    assert ticket.snapshot is not None and ticket.snapshot.version == ticket.version == number
                    clock.sleep(2.0)
                    ticket.data = f"data {number}"
                assert coordinator.waiting_batches == (f"data {number}",)
                with coordinator.training() as batch:
                    assert (batch.data, batch.version, batch.staleness) == (f"data {number}", number, 0)
                    learner(batch)
            assert account(coordinator) == {"collect_count": 3, "train_count": 3}
            stats = coordinator.get_statistics()
            assert (stats["collect_total_time"], stats["train_total_time"], coordinator.version) == (6.0, 3.0, 3)
            latest = coordinator.weights.latest()
            assert latest is not None and latest.version == 3


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_an_exception_gives_back_what_a_block_holds(degree: int) -> None:
    with AsyncTrainingCoordinator(degree) as coordinator:
        with pytest.raises(ZeroDivisionError), coordinator.collecting():
            raise ZeroDivisionError
        assert account(coordinator) == {"failed": 1}
        collect(coordinator)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), coordinator.training() as batch:
                raise ZeroDivisionError
            assert batch.data == "data"
            assert account(coordinator) == {"failed": 1, "collect_count": 1, "collect_train_lag": 1}
        assert coordinator.get_statistics()["train_failures"] == 3
        assert train(coordinator).id == batch.id  # it was first in line
        assert coordinator.version == 1


def test_the_end_of_a_run_is_no_failure_of_a_block() -> None:
    with AsyncTrainingCoordinator(2) as coordinator:
        with pytest.raises(Stopped), coordinator.collecting() as ticket:
            coordinator.stop("enough")
            ticket.stop.wait(60.0)
            raise Stopped("given up")
        assert account(coordinator) == {"abandoned": 1}
    with pytest.raises(CoordinatorClosed), coordinator.training():
        raise AssertionError("a closed coordinator has no batch")


def test_a_block_without_data_is_rejected() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        with coordinator.collecting():
            pass
        assert account(coordinator) == {"rejected": 1}


def test_waits_of_blocks_have_time_outs() -> None:
    with VirtualClock() as clock, AsyncTrainingCoordinator(1, num_collectors=1, clock=clock) as coordinator:
        with pytest.raises(GateTimeout, match="no batch waits"), coordinator.training(timeout=5.0):
            pass
        assert clock.now() == 5.0
        busy = pytest.raises(GateTimeout, match="every collector")
        with coordinator.collecting(), busy, coordinator.collecting(timeout=2.0):
            pass
        assert clock.now() == 7.0
        with pytest.raises(ConfigError, match="timeout is -1"):
            coordinator.training(timeout=-1)
    assert account(coordinator) == {"rejected": 1}


def test_a_commit_that_timed_out_stays_in_line() -> None:
    with VirtualClock() as clock, AsyncTrainingCoordinator(2, num_collectors=2, clock=clock) as coordinator:
        with coordinator.collecting(worker=0) as first:
            for _ in range(2):
                collect(coordinator, "quick")
                train(coordinator)
            too_soon = pytest.raises(GateTimeout, match="an older collect must come first")
            with too_soon, coordinator.collecting(worker=1, timeout=1.0) as second:
                second.data = "second"
            assert "second" in coordinator.waiting_batches
            first.data = "first"
        assert [train(coordinator).data, train(coordinator).data] == ["first", "second"]
        assert account(coordinator) == {"collect_count": 4, "train_count": 4}


def test_a_block_is_entered_once() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        block = coordinator.collecting()
        with block:
            pass
        with pytest.raises(LzeroAsyncError, match="entered before"), block:
            pass


def test_a_block_that_nobody_left_gives_back_what_it_holds() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        collect(coordinator)
        coordinator.training().__enter__()  # thrown away at once, as by an interrupt before the block
        assert account(coordinator) == {"collect_count": 1, "collect_train_lag": 1}
        train(coordinator)


def test_a_blocks_report_outlives_what_another_thread_asks_for() -> None:
    with AsyncTrainingCoordinator(2) as coordinator:
        collect(coordinator)
        with coordinator.training():
            coordinator.report(TrainReport(sample_age_mean=2.0, sample_age_max=3.0))
            coordinator.training()  # made, and not entered yet
        assert coordinator.get_statistics()["sample_age_max"] == 3.0


def test_a_blocks_report_moves_an_adaptive_degree() -> None:
    adaptation = Adaptation(max_degree=8, drift_threshold=0.5)
    with AsyncTrainingCoordinator(8, adaptation=adaptation) as coordinator:
        collect(coordinator)
        with coordinator.training():
            coordinator.report(TrainReport(drift=0.9, sample_age_mean=2.0, sample_age_max=3.0))
        assert coordinator.off_policy_degree == 4
        assert coordinator.get_statistics()["sample_age_mean"] == 2.0
        for _ in range(9):  # as many as the old degree pass without a change
            collect(coordinator)
            train(coordinator)
        assert coordinator.off_policy_degree == 4  # a report is of one train


def test_a_block_is_not_tried_again() -> None:
    class Learner:
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError("nobody goes back to this")

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError("nobody goes back to this")

    with AsyncTrainingCoordinator(1, recovery=Recovery(train_retries=2, learner=Learner())) as coordinator:
        collect(coordinator)
        with pytest.raises(ZeroDivisionError), coordinator.training():
            raise ZeroDivisionError


def test_a_block_waits_for_the_other_side() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, clock=clock)
        seen: list[float] = []

        def learner() -> None:
            for _ in range(3):
                with coordinator.training():
                    clock.sleep(2.0)
                seen.append(clock.now())

        threads = ThreadGroup(clock, "own")
        threads.start("learner", learner)
        for _ in range(3):
            with coordinator.collecting() as ticket:
                clock.sleep(1.0)
                ticket.data = "data"
        assert threads.join(60.0) == [] and threads.failures == []
        assert seen == [3.0, 5.0, 7.0]
        coordinator.close()


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_tasks_use_the_same_blocks(degree: int) -> None:
    async def play(coordinator: AsyncTrainingCoordinator) -> None:
        for _ in range(5):
            async with coordinator.collecting() as ticket:
                await asyncio.sleep(0)
                ticket.data = "data"

    async def learn(coordinator: AsyncTrainingCoordinator) -> None:
        for _ in range(5):
            async with coordinator.training() as batch:
                await asyncio.sleep(0)
                assert batch.staleness <= degree
        with pytest.raises(ZeroDivisionError):
            async with coordinator.collecting():
                raise ZeroDivisionError
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.01):
                async with coordinator.training():
                    raise AssertionError("there is no batch")

    async def both(coordinator: AsyncTrainingCoordinator) -> None:
        with pytest.raises(GateTimeout, match="no batch waits"):
            async with coordinator.training(timeout=0.01):
                pass
        await asyncio.wait_for(asyncio.gather(learn(coordinator), play(coordinator)), 10.0)

    with AsyncTrainingCoordinator(degree) as coordinator:
        asyncio.run(both(coordinator))
        assert account(coordinator) == {"collect_count": 5, "train_count": 5, "failed": 1}


# -- the degree and the hook ---------------------------------------------------------------------------------------------


def test_set_degree_holds_for_what_starts_later_and_is_counted(tmp_path: Any) -> None:
    with AsyncTrainingCoordinator(3, num_collectors=3, trace=tmp_path / "trace.json") as coordinator:
        with coordinator.collecting() as old:
            old.data = "old"
            coordinator.set_degree(1)
            assert coordinator.state_dict()["gate"]["tickets"] == [[0, 0, 3]]  # its deadline stays
            assert not coordinator.can_collect()
        assert coordinator.off_policy_degree == 1
        train(coordinator)
        with coordinator.collecting() as new:
            assert coordinator.state_dict()["gate"]["tickets"] == [[1, 1, 2]]
            new.data = "new"
        coordinator.set_degree(1)  # no change
        changes = [(change.before, change.after, change.reason) for change in coordinator.degree_changes]
        assert changes == [(3, 1, "set_degree")]
        assert coordinator.get_statistics()["degree_changes"] == 1
    assert "degree 3 to 1: set_degree" in (tmp_path / "trace.json").read_text()


def test_a_higher_degree_lets_waiting_collectors_go() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, num_collectors=1, clock=clock)
        collect(coordinator)
        threads = ThreadGroup(clock, "own")
        threads.start("collector", lambda: collect(coordinator))
        clock.sleep(0.5)
        assert coordinator.collect_count == 1
        coordinator.set_degree(2)
        assert threads.join(60.0) == [] and coordinator.collect_count == 2
        coordinator.close()


@pytest.mark.parametrize(
    ("degree", "words"),
    [(-1, "off_policy_degree is -1"), ("2", "off_policy_degree is '2'"), (0, "publish_every is 2.*at most 1")],
)
def test_a_degree_that_cannot_be_kept_is_refused(degree: Any, words: str) -> None:
    with AsyncTrainingCoordinator(2, bound=Bound(publish_every=2)) as coordinator:
        with pytest.raises(ConfigError, match=words):
            coordinator.set_degree(degree)
        assert coordinator.off_policy_degree == 2 and coordinator.degree_changes == ()


def test_an_adaptive_degree_goes_on_from_what_was_set() -> None:
    with AsyncTrainingCoordinator(6, adaptation=Adaptation(max_degree=8, drift_threshold=0.5)) as coordinator:
        with pytest.raises(ConfigError, match="outside the adaptive range 1 to 8"):
            coordinator.set_degree(9)
        coordinator.set_degree(4)
        coordinator.run_collect(dict)
        coordinator.run_train(lambda: 0.9)
        assert coordinator.off_policy_degree == 2


@pytest.mark.parametrize("publish_every", [1, 2])
def test_the_hook_hears_of_every_publication(publish_every: int) -> None:
    heard: list[tuple[int, int, int]] = []

    def on_publish(version: int) -> None:
        latest = coordinator.weights.latest()
        assert latest is not None
        heard.append((version, latest.version, coordinator.train_count))

    coordinator = AsyncTrainingCoordinator(
        2, bound=Bound(publish_every=publish_every), get_weights=dict, on_publish=on_publish
    )
    with coordinator:
        for _ in range(4):
            collect(coordinator)
            train(coordinator)
    assert heard == [(version, version, version) for version in range(publish_every, 5, publish_every)]


def test_a_hook_that_raises_fails_the_call_but_not_the_account() -> None:
    def on_publish(version: int) -> None:
        raise OSError("no space")

    with AsyncTrainingCoordinator(1, on_publish=on_publish) as coordinator:
        collect(coordinator)
        with pytest.raises(OSError, match="no space"):
            coordinator.run_train(lambda: None)
        assert account(coordinator) == {"collect_count": 1, "train_count": 1}
        collect(coordinator)


def test_the_hook_hears_of_weights_that_came_late() -> None:
    heard: list[int] = []
    broken = [False]

    def get_weights() -> dict[str, Any]:
        if broken[0]:
            raise OSError("not now")
        return {}

    with AsyncTrainingCoordinator(1, get_weights=get_weights, on_publish=heard.append) as coordinator:
        collect(coordinator)
        broken[0] = True
        with pytest.raises(OSError, match="not now"):
            train(coordinator)
        assert heard == [] and coordinator.train_count == 1
        broken[0] = False
        collect(coordinator)
    assert heard == [1]


def test_a_hook_is_a_plain_function() -> None:
    async def on_publish(version: int) -> None:
        """Nobody would await this."""

    with pytest.raises(ConfigError, match="on_publish is a coroutine function"):
        AsyncTrainingCoordinator(1, on_publish=on_publish)
