"""The simulation on cores that the stages share, and what runs in it beside collectors and learner."""

from __future__ import annotations

from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator
from lzero_async.errors import ConfigError
from lzero_async.simulate.cores import Shared, stretch_of
from lzero_async.simulate.distributions import lognormal
from lzero_async.simulate.pipeline import simulate
from lzero_async.testing import FakeCollector, FakeLearner, VirtualClock


def test_with_cores_enough_for_all_nothing_changes() -> None:
    for options in (
        {"off_policy_degree": 0},
        {"off_policy_degree": 2, "num_collectors": 3},
        {"off_policy_degree": 4, "num_collectors": 2, "eval": 3.0, "eval_every": 7},
        {"off_policy_degree": 4, "eval": 3.0, "eval_every": 2, "async_eval": True},
        {"policy": "allow", "queue_capacity": 2, "num_collectors": 2},
    ):
        alone = simulate(lognormal(2, 1), lognormal(1, 1), trains=200, **options)
        shared = simulate(lognormal(2, 1), lognormal(1, 1), trains=200, cores=100, **options)
        assert shared.wall == pytest.approx(alone.wall)
        assert shared.staleness == alone.staleness
        assert shared.seconds["train"] == pytest.approx(alone.seconds["train"])
        assert (shared.evals, shared.evals_skipped) == (alone.evals, alone.evals_skipped)
    assert (alone.cores_used, alone.seconds["train"]) == (None, pytest.approx(1.0, rel=0.3))


def test_two_stages_that_compute_share_one_core_and_have_two() -> None:
    one = simulate(1.0, 1.0, trains=100, cores=1)
    assert one.throughput == pytest.approx(0.5, rel=0.01)
    assert one.seconds["collect"] == pytest.approx(2.0, rel=0.01)
    assert one.cores_used == pytest.approx(1.0)
    two = simulate(1.0, 1.0, trains=100, cores=2)
    assert two.wall == pytest.approx(101)
    assert two.cores_used == pytest.approx(200 / 101)


def test_waiting_takes_no_core_and_is_not_stretched() -> None:
    run = simulate(1.0, 1.0, trains=100, cores=1, cpu={"collect": 0.0})
    assert run.wall == pytest.approx(101)
    assert run.cores_used == pytest.approx(100 / 101)


def test_only_the_computing_part_of_a_stage_is_stretched() -> None:
    stretch = stretch_of([(0.5, 2), (1.0, 1)], 1.0)
    paces = 1 / (0.5 + 0.5 * stretch), 1 / stretch
    assert 2 * 0.5 * paces[0] + 1.0 * paces[1] == pytest.approx(1.0)
    assert stretch_of([(0.5, 2)], 1.0) == 1.0
    assert stretch_of([(1.0, 5)], 2.0) == pytest.approx(2.5)


def test_a_stage_may_want_several_cores() -> None:
    assert stretch_of([(4.0, 1)], 2.0) == pytest.approx(2.0)
    run = simulate(1.0, 1.0, trains=200, off_policy_degree=0, cores=2, cpu={"train": 4.0})
    assert run.seconds == {"collect": pytest.approx(1.0), "train": pytest.approx(2.0)}
    assert run.throughput == pytest.approx(1 / 3)


def test_what_is_computed_is_what_the_stages_want() -> None:
    stages = Shared(2, {"a": 0.7, "b": 1.5})
    for place, role in enumerate("abab"):
        stages.start(role, 1.0 + place, None)
    ended = [stages.next() for _ in range(4)]
    assert [one.role for one in ended] == ["a", "b", "a", "b"]
    assert stages.cpu_seconds == pytest.approx(0.7 * (1 + 3) + 1.5 * (2 + 4))
    assert sum(one.seconds for one in ended) == pytest.approx(stages.busy["a"] + stages.busy["b"])
    assert stages.now == pytest.approx(max(one.seconds for one in ended))


def test_background_evaluations_take_cores() -> None:
    options: dict[str, Any] = {"off_policy_degree": 2, "trains": 200, "eval": 5.0, "eval_every": 5, "async_eval": True}
    free = simulate(1.0, 1.0, cores=3, **options)
    tight = simulate(1.0, 1.0, cores=2, **options)
    assert free.wall == pytest.approx(201)
    assert tight.throughput < 0.75 * free.throughput
    asleep = simulate(1.0, 1.0, cores=2, cpu={"eval": 0.0}, **options)
    assert asleep.wall == pytest.approx(201)


@pytest.mark.parametrize("overlap", ["latest", "skip"])
def test_background_evaluations_overlap_as_the_coordinators_do(overlap: str) -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(2, True, eval_overlap=overlap, clock=clock, get_weights=lambda: 0)
        coordinator.run(
            FakeCollector(clock, 1.0),
            FakeLearner(clock, 1.0),
            lambda context: clock.sleep(4.5) or 0.0,
            eval_every=2,
            max_train=40,
            print_statistics=False,
        )
        skipped = coordinator.evaluator.skipped
        coordinator.close()
    told = simulate(1.0, 1.0, 4.5, off_policy_degree=2, trains=40, eval_every=2, async_eval=True, eval_overlap=overlap)
    assert told.evals_skipped == skipped > 0


def test_trains_on_old_data_fill_the_learners_time() -> None:
    run = simulate(4.0, 1.0, off_policy_degree=8, trains=50, max_train_ahead=2)
    assert run.trains == 50
    assert 95 <= run.replays <= 98
    assert run.seconds["train"] == 1.0
    assert simulate(4.0, 1.0, off_policy_degree=8, trains=50).replays == 0


def test_background_roles_make_a_pass_per_train_and_take_cores() -> None:
    drawn: list[int] = []
    passes = {"dynamics": lambda generator, index: drawn.append(index) or 0.5}
    run = simulate(1.0, 1.0, off_policy_degree=2, trains=100, cores=3, background=passes)
    assert run.wall == pytest.approx(101)
    assert drawn == list(range(100))
    tight = simulate(1.0, 1.0, off_policy_degree=2, trains=100, cores=2, background={"dynamics": 0.5})
    assert tight.throughput == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cpu": {"collect": 0.5}}, "cores is None"),
        ({"cores": 0}, "cores is 0"),
        ({"cores": 1, "cpu": {"learn": 1.0}}, "the roles here are collect, train, eval"),
        ({"cores": 1, "cpu": {"train": -0.1}}, "between 0 and"),
        ({"eval_overlap": "wait"}, "choose one of latest, skip"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(1.0, 1.0, **options)
