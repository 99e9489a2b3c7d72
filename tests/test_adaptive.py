"""The adaptive degree: the pure controller, in the simulator, and in the loop."""

from __future__ import annotations

import pytest

from lzero_async import AsyncTrainingCoordinator, TrainReport
from lzero_async.adaptive import AdaptiveDegree, drift_of
from lzero_async.testing import FakeCollector, FakeLearner, VirtualClock, lognormal, simulate, switch


def test_it_rises_by_one_while_starved_and_never_above_its_maximum() -> None:
    controller = AdaptiveDegree(1, 1, 4)
    degrees = []
    for _ in range(6):
        controller.after_train(True, None)
        degrees.append(controller.degree)
    assert degrees == [2, 3, 4, 4, 4, 4]
    assert controller.after_train(False, None) is None


def test_it_halves_on_drift_then_rests_as_long_as_old_batches_arrive() -> None:
    controller = AdaptiveDegree(9, 2, 10, drift_threshold=0.5)
    assert "drift 0.6 above 0.5" in controller.after_train(True, 0.6)
    assert controller.degree == 4
    for _ in range(9):
        assert controller.after_train(True, 0.6) is None
    controller.after_train(True, 0.6)
    assert controller.degree == 2
    for _ in range(20):
        controller.after_train(False, 0.9)
    assert controller.degree == 2


def test_a_drift_that_is_not_a_number_is_a_drift() -> None:
    controller = AdaptiveDegree(8, 1, 10, drift_threshold=0.5)
    assert controller.after_train(False, float("nan")) is not None
    assert controller.degree == 4


def test_what_counts_as_a_drift_signal() -> None:
    assert drift_of(0.25) == 0.25
    assert drift_of(TrainReport(drift=2)) == 2.0
    for other in (None, True, "0.5", {"drift": 1}, TrainReport()):
        assert drift_of(other) is None


@pytest.mark.parametrize(("collect", "train"), [(2.0, 1.0), (1.0, 1.0), (3.5, 1.0)])
def test_it_finds_95_percent_of_the_best_fixed_degree_and_again_after_a_change(collect: float, train: float) -> None:
    """Bar 5, on lognormal (sigma 1) stages with 4 collectors."""
    high = 16
    for durations, start in (
        (lognormal(collect, 1), 50),
        (switch(75, lognormal(collect, 1), lognormal(3 * collect, 1)), 350),
        (switch(75, lognormal(3 * collect, 1), lognormal(collect, 1)), 350),
    ):
        best = max(
            simulate(
                durations, lognormal(train, 1), num_collectors=4, off_policy_degree=degree, trains=2000
            ).throughput_after(start)
            for degree in range(1, high + 1)
        )
        run = simulate(
            durations, lognormal(train, 1), num_collectors=4, trains=2000, adaptive=AdaptiveDegree(1, 1, high)
        )
        assert run.throughput_after(start) >= 0.95 * best
        assert max(run.degrees) <= high


def test_the_loop_adapts_as_the_simulator_and_records_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, num_collectors=4, adaptive=True, max_degree=9, clock=clock)
        stats = coordinator.run(
            FakeCollector(clock, lognormal(2, 1)), FakeLearner(clock, lognormal(1, 1)), max_train=300
        ).statistics
        coordinator.close()
    told = simulate(lognormal(2, 1), lognormal(1, 1), num_collectors=4, trains=300, adaptive=AdaptiveDegree(1, 1, 9))
    assert stats["wall_time"] == pytest.approx(told.wall)
    assert coordinator.off_policy_degree == told.degrees[-1] > 1
    changes = coordinator.degree_changes
    assert len(changes) == stats["degree_changes"] == told.degrees[-1] - 1
    assert all(c.after == c.before + 1 and "waited for data" in c.reason for c in changes)


def test_drift_from_the_train_function_lowers_the_degree_for_new_admissions_only() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            8, num_collectors=8, adaptive=True, max_degree=8, drift_threshold=0.5, clock=clock
        )
        learner = FakeLearner(clock, 1.0, drift=0.9)
        stats = coordinator.run(FakeCollector(clock, 4.0), learner, max_train=60).statistics
        coordinator.close()
    assert coordinator.off_policy_degree == 1
    assert [(c.before, c.after) for c in coordinator.degree_changes] == [(8, 4), (4, 2), (2, 1)]
    assert learner.max_staleness <= 8
    assert (stats["dropped"], stats["abandoned"], stats["train_count"]) == (0, 0, 60)


def test_a_resumed_run_keeps_its_adapted_degree_inside_the_new_range() -> None:
    first = AsyncTrainingCoordinator(6, adaptive=True, max_degree=9)
    second = AsyncTrainingCoordinator(1, adaptive=True, max_degree=4)
    second.load_state_dict(first.state_dict())
    assert second.off_policy_degree == 4
