"""The adaptive degree: the pure controller, in the simulator, and in the loop."""

from __future__ import annotations

import statistics

import pytest

from lzero_async import Adaptation, AsyncTrainingCoordinator
from lzero_async.core.adaptive import AdaptiveDegree, drift_of
from lzero_async.simulate.distributions import lognormal, switch
from lzero_async.simulate.pipeline import Simulation, simulate
from lzero_async.testing import FakeCollector, FakeLearner, VirtualClock
from lzero_async.types import TrainReport


def test_it_rises_by_two_while_starved_and_never_above_its_maximum() -> None:
    controller = AdaptiveDegree(1, 1, 6)
    degrees = []
    for _ in range(5):
        controller.after_train(True, None)
        degrees.append(controller.degree)
    assert degrees == [3, 3, 5, 5, 6]
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


def rate(run: Simulation, first: int) -> float:
    """Trains per second in the 200 trains after the first `first`."""
    return 200 / (run.finished_at[first + 199] - run.finished_at[first - 1])


@pytest.mark.parametrize(
    ("collect", "change"),
    [
        (2.0, None), (3.5, 1 / 3),
        *(
            pytest.param(collect, change, marks=pytest.mark.soak)
            for collect, change in [(1.0, None), (1.0, 3.0), (1.0, 1 / 3), (2.0, 3.0), (2.0, 1 / 3), (3.5, None), (3.5, 3.0)]
        ),
    ],
)  # fmt: skip
def test_after_50_trains_it_has_95_percent_of_the_best_fixed_degree_and_again_after_a_change(
    collect: float, change: float | None
) -> None:
    """Bar 5, lognormal (sigma 1) stages, 4 collectors, mean of 12 seeds; the change comes at train 300."""
    durations, first = lognormal(collect, 1), 50
    if change is not None:
        durations, first = switch(75, lognormal(collect, 1), lognormal(collect * change, 1)), 350

    def mean_rate(**options) -> float:
        runs = [simulate(durations, lognormal(1, 1), num_collectors=4, trains=first + 200, seed=seed,
                         **{k: v() if callable(v) else v for k, v in options.items()}) for seed in range(12)]  # fmt: skip
        assert all(max(run.degrees) <= 16 for run in runs)
        return statistics.mean(rate(run, first) for run in runs)

    best = max(mean_rate(off_policy_degree=degree) for degree in range(1, 17))
    assert mean_rate(adaptive=lambda: AdaptiveDegree(1, 1, 16)) >= 0.95 * best


def test_the_loop_adapts_as_the_simulator_and_records_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, num_collectors=4, adaptation=Adaptation(max_degree=9), clock=clock)
        stats = coordinator.run(
            FakeCollector(clock, lognormal(2, 1)), FakeLearner(clock, lognormal(1, 1)), max_train=300
        ).statistics
        coordinator.close()
    told = simulate(lognormal(2, 1), lognormal(1, 1), num_collectors=4, trains=300, adaptive=AdaptiveDegree(1, 1, 9))
    assert stats["wall_time"] == pytest.approx(told.wall)
    assert coordinator.off_policy_degree == told.degrees[-1] > 1
    changes = coordinator.degree_changes
    assert len(changes) == stats["degree_changes"] == len(set(told.degrees) | {1}) - 1
    assert [c.after for c in changes] == sorted(set(told.degrees) - {1})
    assert all("waited for data" in c.reason for c in changes)


def test_drift_from_the_train_function_lowers_the_degree_for_new_admissions_only() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            8, num_collectors=8, adaptation=Adaptation(max_degree=8, drift_threshold=0.5), clock=clock
        )
        learner = FakeLearner(clock, 1.0, drift=0.9)
        stats = coordinator.run(FakeCollector(clock, 4.0), learner, max_train=60).statistics
        coordinator.close()
    assert coordinator.off_policy_degree == 1
    assert [(c.before, c.after) for c in coordinator.degree_changes] == [(8, 4), (4, 2), (2, 1)]
    assert learner.max_staleness <= 8
    assert (stats["dropped"], stats["abandoned"], stats["train_count"]) == (0, 0, 60)


def test_a_resumed_run_keeps_its_adapted_degree_inside_the_new_range() -> None:
    first = AsyncTrainingCoordinator(6, adaptation=Adaptation(max_degree=9))
    second = AsyncTrainingCoordinator(1, adaptation=Adaptation(max_degree=4))
    second.load_state_dict(first.state_dict())
    assert second.off_policy_degree == 4
