"""The scalars under async/: names, shares since the last record, the histogram of staleness, and how seldom they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound
from lzero_async.core.activity import RoleActivity
from lzero_async.telemetry.quantities import COUNTS, tag
from lzero_async.telemetry.scalars import AsyncScalars, role_kind, role_shares, staleness_since, values
from lzero_async.telemetry.tensorboard import Board, buckets, layout
from lzero_async.telemetry.view import View
from tests.telemetry.sample_view import ROLES, sample_view


def test_every_number_comes_from_its_statistic() -> None:
    found = values(sample_view())
    assert found == {
        "async/lag": 1.0,
        "async/lag_mean": 1.25,
        "async/lag_max": 3.0,
        "async/lag_bound": 4.0,
        "async/degree": 4.0,
        "async/staleness_mean": 1.5,
        "async/staleness_max": 3.0,
        "async/collect_seconds": 20.0,
        "async/train_seconds": 15.0,
        "async/eval_seconds": 6.0,
        "async/collect_wait_seconds": 7.0,
        "async/train_wait_seconds": 2.5,
        "async/eval_wait_seconds": 0.5,
        "async/overlap_efficiency": 0.75,
        "async/weights_version": 16.0,
        "async/collects": 12.0,
        "async/trains": 11.0,
        "async/trained_collects": 23.0,
        "async/replays": 5.0,
        "async/evaluations": 3.0,
        "async/skipped_evaluations": 1.0,
        "async/open_collects": 2.0,
        "async/active_collectors": 2.0,
        "async/dropped_batches": 6.0,
        "async/failed_collects": 7.0,
        "async/failed_trains": 14.0,
        "async/refused_threads": 21.0,
        "async/missing_descriptors": 22.0,
        "async/rejected_collects": 15.0,
        "async/abandoned_batches": 8.0,
        "async/restarts": 9.0,
        "async/retired_collectors": 10.0,
        "async/degree_changes": 13.0,
        "async/bad_episodes": 15.0,
        "async/environment_timeouts": 17.0,
        "async/refused_batches": 18.0,
        "async/skipped_updates": 19.0,
        "async/sample_age_mean": 8.5,
        "async/sample_age_max": 30.0,
        "async/queue_fill": 0.5,
        "async/steps_trained": 1234.0,
        "async/steps_trained_per_second": 123.4,
        "async/steps_played": 1500.0,
        "async/steps_played_per_second": 150.0,
        "async/episodes_trained": 20.0,
        "async/episodes_trained_per_second": 2.0,
        "async/episodes_played": 25.0,
        "async/episodes_played_per_second": 2.5,
        "async/updates": 70.0,
        "async/updates_per_second": 3.5,
        "async/active/collector": 0.5,
        "async/waiting/collector": 0.4,
        "async/idle/collector": 0.1,
        "async/active/learner": 0.9,
        "async/waiting/learner": 0.1,
        "async/idle/learner": 0.0,
    }


def test_a_run_without_replayed_samples_has_no_age_of_them() -> None:
    assert not [name for name in values(sample_view(sample_age_max=0.0, sample_age_mean=0.0)) if "age" in name]


@pytest.mark.parametrize(("degree", "capacity", "bound"), [(0, None, 1), (3, None, 3), (3, 7, 8)])
def test_the_lag_s_bound(degree: int, capacity: int | None, bound: int) -> None:
    """A queue's capacity does not count the batch that is being trained."""
    queue = Bound() if capacity is None else Bound(queue_capacity=capacity, staleness_policy="drop")
    with AsyncTrainingCoordinator(degree, bound=queue) as coordinator:
        found = values(sample_view(**coordinator.get_statistics()))
    assert (found["async/lag_bound"], found["async/degree"]) == (bound, degree)


def test_a_lag_never_passes_its_bound() -> None:
    lags = []
    with AsyncTrainingCoordinator(
        3, bound=Bound(queue_capacity=2, staleness_policy="allow"), num_collectors=3
    ) as coordinator:
        coordinator.run(
            lambda context: 1, lambda batch: lags.append(coordinator.collect_train_lag), max_train=200,
            print_statistics=False,
        )  # fmt: skip
        statistics = coordinator.get_statistics()
    assert max(lags) <= statistics["max_lag"] <= statistics["lag_bound"] == 3


def role(name: str, active: float, waiting: float, idle: float) -> RoleActivity:
    return RoleActivity(name, "idle", "", 0.0, active, waiting, idle)


def test_shares_are_of_the_time_since_the_last_record() -> None:
    later = (role("collector 0", 8.0, 3.0, 1.0), role("collector 1", 4.0, 6.0, 2.0), role("learner", 9.0, 1.0, 0.0))
    shares = role_shares((*later, role("evaluator", 1.0, 0.0, 3.0)), ROLES)
    assert shares == {
        "active/collector": 0.5,
        "waiting/collector": 0.25,
        "idle/collector": 0.25,
        "active/evaluator": 0.25,  # it is new: its whole time counts
        "waiting/evaluator": 0.0,
        "idle/evaluator": 0.75,
    }  # the learner had no time since


def test_after_counters_began_anew_all_of_the_time_counts() -> None:
    assert role_shares((role("learner", 1.0, 1.0, 2.0),), ROLES)["idle/learner"] == 0.5
    assert staleness_since(sample_view(staleness_counts={1: 1}), sample_view()) == {1: 1}
    assert staleness_since(sample_view(staleness_counts={9: 50}), sample_view()) == {9: 50}
    assert staleness_since(sample_view(staleness_counts={1: 5}), sample_view()) == {1: 5}


def test_kinds_of_roles() -> None:
    names = ("collector 3", "learner", "envs 12", "model learner", "model learner 2")
    assert [role_kind(name) for name in names] == ["collector", "learner", "envs", "model_learner", "model_learner"]


def test_staleness_since_the_last_record() -> None:
    before, now = sample_view(), sample_view(staleness_counts={0: 2, 1: 5, 2: 3, 3: 1, 4: 2})
    assert staleness_since(now, before) == {1: 1, 4: 2}
    assert staleness_since(now, None) == {0: 2, 1: 5, 2: 3, 3: 1, 4: 2}
    assert staleness_since(now, now) == {}


class Kept:
    """Records that keep what they are given."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], int]] = []
        self.histograms: list[tuple[str, dict[int, int], int]] = []

    def scalars(self, found: dict[str, float], step: int) -> None:
        self.rows.append((found, step))

    def histogram(self, name: str, counts: dict[int, int], step: int) -> None:
        self.histograms.append((name, counts, step))


def scalars_of(view: Callable[[], View], clock: Callable[[], float]) -> tuple[AsyncScalars, Kept]:
    kept = Kept()
    return AsyncScalars(kept, view, clock=clock), kept  # type: ignore[arg-type]


def test_a_thousand_trains_a_second_are_recorded_every_five_seconds_and_at_the_end() -> None:
    moment, made = 0.0, 0

    def view() -> View:
        nonlocal made
        made += 1
        return sample_view(steps=round(moment * 1000), staleness_counts={1: made})

    scalars, kept = scalars_of(view, lambda: moment)
    wrote = 0
    for train in range(12_000):
        moment = 100 + train / 1000
        wrote += scalars.record()
    scalars.record(now=True)
    assert wrote == 3
    assert made == 4  # a view is taken only for a record
    assert [step for _, step in kept.rows] == [100_000, 105_000, 110_000, 111_999]
    assert kept.histograms == [("async/staleness", {1: 1}, step) for _, step in kept.rows]


def test_without_a_train_since_there_is_no_histogram() -> None:
    scalars, kept = scalars_of(sample_view, lambda: 0.0)
    scalars.record()
    scalars.record(now=True)
    assert (len(kept.rows), len(kept.histograms)) == (2, 1)
    assert "async/active/learner" in kept.rows[0][0]
    assert "async/active/learner" not in kept.rows[1][0]  # no time has passed since the first


def test_buckets_are_exact_and_wide_only_above_what_is_counted_exactly() -> None:
    assert buckets({0: 2, 1: 4, 5: 1}) == ([-0.5, 0.5, 1.5, 4.5, 5.5], [2, 4, 0, 1])
    assert buckets({100: 1, 128: 3}) == ([99.5, 100.5, 127.5, 255.5], [1, 0, 3])
    with pytest.raises(ValueError, match="at least one"):
        buckets({})


def test_the_layout_has_charts_for_what_is_recorded_only() -> None:
    assert layout(["data/rows"]) == {}
    assert layout(["learner/loss", "async/lag", "async/lag_mean"]) == {
        "async": {"lag and its bound": ["Multiline", ["async/lag$", "async/lag_mean$"]]},
        "learner": {"losses": ["Multiline", ["learner/.*loss.*$"]]},
    }
    scores = ["evaluator/mean_return", "evaluator/min_return", "evaluator/max_return"]
    assert layout(scores)["evaluation"]["mean, worst and best"] == ["Margin", scores]
    assert "mean, worst and best" not in layout(scores[:2])["evaluation"]


def test_every_async_scalar_but_counts_has_a_chart() -> None:
    shown = [tag for title, tags in layout(values(sample_view()))["async"].values() for tag in tags]
    missing = {name for name in values(sample_view()) if not any(re.match(tag, name) for tag in shown)}
    keys = (
        *COUNTS, "collect_count", "train_count", "trained_collects", "replay_count", "eval_count", "version", "open_collects",
        "active_collectors", "degree_changes", "max_lag", "collect_total_time", "train_total_time", "eval_total_time",
    )  # fmt: skip
    assert missing == {tag(key) for key in keys}


def test_tensorboard_reads_scalars_histogram_and_layout_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = Board(tmp_path / "log")
    board.scalars({"async/lag": 2, "learner/a_loss": 0.5}, 10)
    board.scalars({"async/lag": 3}, 20)
    board.scalars({"evaluator/prior/mean": 7.0}, 15)
    board.histogram("async/staleness", {0: 2, 2: 3}, 20)
    board.close()
    events: Any = accumulator.EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"async/lag", "learner/a_loss", "evaluator/prior/mean"}
    assert [(event.step, event.value) for event in events.Scalars("async/lag")] == [(10, 2.0), (20, 3.0)]
    (event,) = events.Histograms("async/staleness")
    kept = event.histogram_value
    assert (kept.min, kept.max, kept.num, kept.sum, kept.sum_squares) == (-0.5, 2.5, 5, 6, 12)
    assert (list(kept.bucket_limit), list(kept.bucket), event.step) == ([0.5, 1.5, 2.5], [2, 0, 3], 20)
    assert categories(tmp_path) == ["async", "learner", "evaluation"]


def categories(folder: Path) -> list[str]:
    """What TensorBoard's own plugin makes of the layout that counts."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin

    events = EventMultiplexer().AddRunsFromDirectory(str(folder))
    events.Reload()
    context = TBContext(data_provider=MultiplexerDataProvider(events, str(folder)), logdir=str(folder))
    found = CustomScalarsPlugin(context).layout_impl(RequestContext(), "")
    shown = json.loads(found) if isinstance(found, str) else found
    return [category["title"] for category in shown["category"]]
