"""How much of the queue is in use: by time, without the batch that is being trained."""

from __future__ import annotations

from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound
from lzero_async.telemetry.scalars import values
from lzero_async.telemetry.utilisation import QueueUse, compare
from lzero_async.testing import VirtualClock
from tests.telemetry.sample_view import sample_view


def use_of(collect: float, train: float, trains: int = 50, **settings: Any) -> tuple[float, str, dict[str, Any]]:
    """Run stages of so many seconds; the mean use, its verdict and the statistics."""
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(clock=clock, **settings)
        found = coordinator.run(
            lambda context: clock.sleep(collect) or 1, lambda batch: clock.sleep(train), max_train=trains,
            handle_signals=False, print_statistics=False,
        ).statistics  # fmt: skip
        mean = QueueUse(coordinator.queue_seconds).mean
        coordinator.close()
    assert mean is not None and mean == pytest.approx(found["queue_fill"])
    return mean, next(row.verdict for row in compare({"queue": mean}) if row.name == "queue"), found


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_learner_that_starves_leaves_the_queue_empty(degree: int) -> None:
    mean, verdict, _ = use_of(10.0, 1.0, off_policy_degree=degree)
    assert mean < 0.01 and verdict == "below"


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_learner_that_is_slow_has_a_full_queue(degree: int) -> None:
    """The last batches are collected before the run ends, so the queue empties at the very end."""
    mean, verdict, _ = use_of(0.01, 10.0, 400, off_policy_degree=degree)
    assert mean > 0.98 and verdict == "above"


def test_a_bounded_queue_that_is_always_full() -> None:
    mean, verdict, _ = use_of(
        0.1, 10.0, 300, off_policy_degree=4, bound=Bound(staleness_policy="allow", queue_capacity=3)
    )
    assert mean > 0.98 and verdict == "above"


def test_half_full_is_half() -> None:
    """A batch is ready after 5 s and its train of 10 s begins at once; the next waits 5 s of each 10 for its turn."""
    mean, verdict, _ = use_of(5.0, 10.0, 200, off_policy_degree=1)
    assert mean == pytest.approx(0.5, abs=0.01) and verdict in ("ok", "below")


def test_a_pause_between_runs_does_not_count() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(2, clock=clock)
        use = QueueUse(coordinator.queue_seconds)

        def run(trains: int) -> float:
            coordinator.run(
                lambda context: clock.sleep(10.0) or 1, lambda batch: clock.sleep(1.0), max_train=trains,
                handle_signals=False, print_statistics=False,
            )  # fmt: skip
            return use.lately()

        first = run(20)
        coordinator.run_collect(lambda: 1)  # waits through the pause
        clock.sleep(10_000.0)
        assert run(40) == pytest.approx(first, abs=0.05)
        coordinator.close()


def test_a_resumed_run_goes_on_counting_and_a_change_of_the_degree_counts_from_then_on() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, clock=clock)
        coordinator.run_collect(lambda: clock.sleep(1.0) or 1)  # ready at 1, and one of one waits
        clock.sleep(4.0)
        coordinator.run_train(lambda: clock.sleep(5.0))  # from 5 to 10
        assert coordinator.queue_seconds() == pytest.approx((4.0, 9.0))
        resumed = AsyncTrainingCoordinator(4, clock=clock)
        resumed.load_state_dict(coordinator.state_dict())
        assert resumed.queue_seconds() == pytest.approx((4.0, 9.0))
        resumed.run_collect(lambda: 1)  # one of four waits, and then one of two, for 10 s each
        clock.sleep(10.0)
        resumed._keeper.set_degree(2)
        clock.sleep(10.0)
        resumed.run_train(lambda: None)
        used, room = resumed.queue_seconds()
        assert used == pytest.approx(4.0 + 20.0) and room == pytest.approx(9.0 + 40.0 + 20.0)


def test_at_degree_0_there_is_no_queue() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(0, clock=clock)
        coordinator.run(
            lambda context: clock.sleep(1.0) or 1, lambda batch: clock.sleep(1.0), max_train=3, handle_signals=False,
            print_statistics=False,
        )  # fmt: skip
        assert QueueUse(coordinator.queue_seconds).mean is None
        coordinator.close()


def test_it_is_called_fill_and_is_one_number_wherever_it_is_shown() -> None:
    view = sample_view()
    assert values(view)["async/queue_fill"] == view.fills["queue"]
    assert "queue_fill" in AsyncTrainingCoordinator(1).get_statistics()
