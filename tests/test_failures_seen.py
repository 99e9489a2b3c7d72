"""Failures are logged, counted and traced, and the statistics count what they say."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, ConfigError
from lzero_async.testing import VirtualClock


class Learner:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def failing_train(clock: VirtualClock, times: int, error: type[Exception] = OSError) -> Any:
    """A train of one second whose first tries raise."""
    tries = iter(range(10**6))

    def train(*batch: Any) -> None:
        clock.sleep(1.0)
        if next(tries) < times:
            raise error("out of order")

    return train


def test_every_failed_try_of_a_train_is_logged_counted_and_traced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, train_retries=3, learner=Learner(), trace=trace, clock=clock)
        coordinator.run(lambda context: 1, failing_train(clock, 3), max_train=2, handle_signals=False)
        found = coordinator.get_statistics()
        coordinator.close()
    assert found["train_count"] == 2 and found["train_failures"] == 3
    assert sum(found["staleness_counts"].values()) == 2
    said = [record for record in caplog.records if record.getMessage().startswith("train failed (OSError")]
    assert len(said) == 3 and [record.exc_info is not None for record in said] == [True, False, False]
    spans = [event for event in json.loads(trace.read_text()) if event.get("name") == "train failed"]
    assert [span["dur"] for span in spans] == [1e6] * 3
    assert "Trains that failed: 3" in capsys.readouterr().out


def test_a_train_that_fails_for_good_is_counted_and_one_that_is_given_up_is_not() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinator.run_train(interrupt)
    assert coordinator.get_statistics()["train_failures"] == 0
    with pytest.raises(ZeroDivisionError):
        coordinator.run_train(lambda: 1 // 0)
    found = coordinator.get_statistics()
    assert found["train_failures"] == 1 and found["staleness_counts"] == {} and found["staleness_mean"] == 0.0
    coordinator.run_train(lambda: 1)
    assert coordinator.get_statistics()["staleness_counts"] == {0: 1}
    coordinator.close()


def test_the_count_of_failed_trains_survives_a_resume() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 1)
    with pytest.raises(ZeroDivisionError):
        coordinator.run_train(lambda: 1 // 0)
    resumed = AsyncTrainingCoordinator(1)
    resumed.load_state_dict(coordinator.state_dict())
    assert resumed.get_statistics()["train_failures"] == 1


def test_a_pause_between_runs_is_no_part_of_the_wall_time() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(2, clock=clock)
        options: dict[str, Any] = {"handle_signals": False, "print_statistics": False}

        def run(trains: int) -> dict[str, Any]:
            work = lambda context: clock.sleep(1.0)  # noqa: E731
            return coordinator.run(work, work, max_train=trains, **options).statistics

        first = run(10)
        clock.sleep(1000.0)
        second = run(20)
        assert first["wall_time"] == 11.0 and second["wall_time"] == 22.0
        assert second["overlap_efficiency"] == pytest.approx(first["overlap_efficiency"])
        for role in coordinator.get_activity():
            assert role.active + role.waiting + role.idle == pytest.approx(22.0)
        coordinator.close()


def test_a_collector_that_cannot_be_restarted_did_not_fail_more_often_than_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def collect(context: Any) -> int:
        clock.sleep(1.0)
        if context.worker == 0:
            raise OSError("out of order")
        return 1

    def cannot(worker: int, error: Exception) -> None:
        raise RuntimeError("no machine")

    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(2, num_collectors=2, on_failure="restart", clock=clock)
        coordinator.run(
            collect, lambda batch: None, max_train=5, on_restart=cannot, handle_signals=False, print_statistics=False
        )
        coordinator.close()
    said = [record.getMessage() for record in caplog.records if "is retired" in record.getMessage()]
    assert said == ["collector 0 failed once and is retired; the others go on: RuntimeError('no machine')"]


@pytest.mark.parametrize("name", ["after_train", "on_eval", "stop_fn", "on_restart", "on_retire", "background"])
def test_a_coroutine_function_that_nobody_would_await_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    async def never(*args: Any) -> bool:
        return False

    coordinator = AsyncTrainingCoordinator(1)
    given: Any = {"helper": never} if name == "background" else never
    with pytest.raises(
        ConfigError, match=r"is a coroutine function, which nobody would await; pass a plain function\."
    ):
        coordinator.run(
            lambda context: 1, lambda batch: None, lambda context: 0.0, eval_every=1, max_train=2, handle_signals=False,
            print_statistics=False, **{name: given},
        )  # fmt: skip
    assert coordinator.get_statistics()["collect_count"] == 0
    coordinator.close()


@pytest.mark.parametrize("name", ["get_weights", "priority"])
def test_the_coordinator_refuses_them_too(name: str) -> None:
    async def never(*args: Any) -> float:
        return 0.0

    queue: dict[str, Any] = {"queue_capacity": 2, "queue_order": "priority", "staleness_policy": "allow"}
    with pytest.raises(ConfigError, match=f"{name} is a coroutine function"):
        AsyncTrainingCoordinator(1, **(queue if name == "priority" else {}), **{name: never})
