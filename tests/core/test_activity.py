"""What each role does and did: by hand, and of real runs on the virtual clock; and what the trace shows of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lzero_async import AsyncTrainingCoordinator, Recovery
from lzero_async.core.activity import WAITING, Activity
from lzero_async.core.statistics import Recorder
from lzero_async.core.trace import TraceWriter
from lzero_async.testing import FakeCollector, FakeEvaluator, FakeLearner, VirtualClock
from lzero_async.tools.traces import read_events


def test_states_and_seconds_by_hand() -> None:
    activity = Activity()
    assert activity.snapshot(5.0) == ()
    activity.enter("learner", "wait train", 10.0, WAITING)
    activity.enter("collector 1", "collect", 10.0)
    activity.leave("learner", 13.0, WAITING)
    activity.enter("learner", "train", 13.0)
    collector, learner = activity.snapshot(14.0)
    assert collector == ("collector 1", "active", "collect", 4.0, 4.0, 0.0, 0.0)
    assert learner == ("learner", "active", "train", 1.0, 1.0, 3.0, 0.0)
    activity.leave("learner", 15.0)
    activity.leave("collector 1", 16.0)
    learner = activity.snapshot(99.0)[1]
    assert learner == ("learner", "idle", "", 1.0, 2.0, 3.0, 1.0)  # time stands still after the last end
    activity.leave("nobody", 17.0)
    activity.reset(20.0)
    assert activity.snapshot(100.0) == ()


def test_several_threads_under_one_name_are_one_role_that_works_while_one_of_them_does() -> None:
    activity = Activity()
    activity.enter("collector 0", "collect", 0.0)
    activity.enter("collector 0", "collect", 1.0)
    activity.enter("collector 0", "wait collect", 1.0, WAITING)
    activity.leave("collector 0", 3.0)
    assert activity.snapshot(4.0)[0][1:6] == ("active", "collect", 3.0, 4.0, 0.0)
    activity.leave("collector 0", 5.0)
    assert activity.snapshot(7.0)[0][1:6] == ("waiting", "wait collect", 2.0, 5.0, 2.0)
    activity.leave("collector 0", 8.0, WAITING)
    assert activity.snapshot(9.0)[0][4:] == (5.0, 3.0, 0.0)


def test_who_is_at_work_when_counting_begins_anew_stays_so() -> None:
    activity = Activity()
    activity.enter("learner", "train", 0.0)
    activity.enter("collector 0", "collect", 0.0)
    activity.leave("collector 0", 1.0)
    activity.reset(2.0)
    assert activity.snapshot(5.0) == (("learner", "active", "train", 3.0, 3.0, 0.0, 0.0),)


def test_roles_come_collectors_first_by_number_and_the_evaluator_last() -> None:
    activity = Activity()
    for role in ("evaluator", "rollouts", "collector 10", "learner", "collector 2"):
        activity.enter(role, "work", 0.0)
    assert [one.role for one in activity.snapshot(1.0)] == [
        "collector 2", "collector 10", "learner", "rollouts", "evaluator",
    ]  # fmt: skip


def test_a_role_of_the_applications_own_is_seen_while_it_works_and_its_sums_never_fall(tmp_path: Path) -> None:
    with (
        VirtualClock() as clock,
        AsyncTrainingCoordinator(1, clock=clock, trace=tmp_path / "trace.json") as coordinator,
    ):
        with coordinator.working("rollouts", 'roll "a"', version=3) as shown:
            clock.sleep(2.0)
            at_work = coordinator.get_activity()[0]
            shown["rows"] = "many"
        after = coordinator.get_activity()[0]
    assert at_work == ("rollouts", "active", 'roll "a"', 2.0, 2.0, 0.0, 0.0)
    assert (after.state, after.active, after.idle) == ("idle", 2.0, 0.0)
    span = next(e for e in read_events(tmp_path / "trace.json") if e["ph"] == "X")
    assert (span["name"], span["dur"], span["args"]) == ('roll "a"', 2e6, {"version": 3, "rows": "many"})


def test_a_train_that_is_tried_again_is_at_work_once() -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0, fail_at={0})
        with AsyncTrainingCoordinator(
            1, recovery=Recovery(train_retries=1, learner=learner), clock=clock
        ) as coordinator:
            coordinator.run(FakeCollector(clock, 1.0), learner, max_train=2, print_statistics=False)
            learned = next(one for one in coordinator.get_activity() if one.role == "learner")
    assert learned.state == "idle" and learned.active == pytest.approx(3.0)


def test_an_evaluation_in_the_learners_turn_is_the_evaluators_work_and_the_learner_waits() -> None:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        with AsyncTrainingCoordinator(1, get_weights=learner.get_weights, clock=clock) as coordinator:
            coordinator.run(FakeCollector(clock, 1.0), learner, FakeEvaluator(clock, 4.0), eval_every=2, max_train=4)
            roles = {one.role: one for one in coordinator.get_activity()}
            assert coordinator.get_statistics()["async_eval"] is False
    assert roles["evaluator"].active == pytest.approx(8.0) and roles["learner"].active == pytest.approx(4.0)
    assert roles["learner"].waiting == pytest.approx(8.0 + 1.0)  # and for the first batch


def test_a_run_is_active_waiting_and_nothing_else() -> None:
    """Collects of 3 s by two collectors, trains of 2 s: the learner is the bottleneck from its first batch on."""
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 2.0)
        with AsyncTrainingCoordinator(
            2, True, num_collectors=2, get_weights=learner.get_weights, clock=clock
        ) as coordinator:
            coordinator.run(FakeCollector(clock, 3.0), learner, FakeEvaluator(clock, 4.0), eval_every=5, max_train=10)
            roles = {one.role: one for one in coordinator.get_activity()}
            stats = coordinator.get_statistics()
    assert list(roles) == ["collector 0", "collector 1", "learner", "evaluator"]
    assert roles["learner"].active == pytest.approx(20.0) and roles["learner"].waiting == pytest.approx(3.0)
    assert roles["evaluator"].active == pytest.approx(8.0) and roles["evaluator"].waiting == 0.0
    collecting = [roles["collector 0"], roles["collector 1"]]
    assert sum(one.active for one in collecting) == pytest.approx(stats["collect_total_time"]) == pytest.approx(30.0)
    assert sum(one.waiting for one in collecting) == pytest.approx(stats["collect_wait_time"])
    assert all(one.state == "idle" for one in roles.values())


def test_a_failed_collect_and_its_pause_are_active_and_idle() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            1, recovery=Recovery(on_failure="restart", restart_backoff=5.0), clock=clock
        )
        coordinator.run(FakeCollector(clock, 3.0, fail_at={0}), FakeLearner(clock, 1.0), max_train=1)
        collector = coordinator.get_activity()[0]
        coordinator.close()
    assert collector.active == pytest.approx(6.0)
    assert collector.idle == pytest.approx(5.0)  # the pause
    assert collector.waiting == pytest.approx(1.0)  # the last train: no further collect is wanted


def test_who_is_looked_at_meanwhile_is_at_work() -> None:
    seen = []
    with AsyncTrainingCoordinator(1) as coordinator:
        coordinator.run_collect(lambda: seen.append(coordinator.get_activity()[0]) or 1)
        coordinator.run_train(lambda: seen.append(coordinator.get_activity()[1]))
        coordinator.run_eval(lambda: seen.extend(coordinator.get_activity()[1:]))
    assert [(one.role, one.state, one.doing) for one in seen] == [
        ("collector 0", "active", "collect"), ("learner", "active", "train"), ("learner", "waiting", "wait eval"),
        ("evaluator", "active", "eval"),
    ]  # fmt: skip


def test_staleness_is_counted_exactly_and_stays_small() -> None:
    recorder = Recorder()
    for staleness in (0, 2, 2, 64, 101, 127, 128, 255, 256, 10**6):
        recorder.trained_on(staleness)
    assert recorder.staleness == {0: 1, 2: 2, 64: 1, 101: 1, 127: 1, 128: 2, 256: 1, 2**19: 1}
    again = Recorder()
    again.load_state_dict(recorder.state_dict())
    assert again.staleness == recorder.staleness
    again.reset({})
    assert again.staleness == {}


# -- arrows and counters of the trace ----------------------------------------------------------------------------------


def traced(path: Path) -> list[dict]:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 2.0)
        with AsyncTrainingCoordinator(
            2, num_collectors=2, get_weights=learner.get_weights, clock=clock, trace=path
        ) as coordinator:
            coordinator.run(FakeCollector(clock, 3.0), learner, max_train=10)
    return list(read_events(path))


def span_around(events: list[dict], arrow: dict) -> dict:
    found = [
        e for e in events
        if e["ph"] == "X" and (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])
        and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"] and (arrow["ph"] == "s") == (e["name"] in ("collect", "publish")
        and e["ts"] + e["dur"] - arrow["ts"] < 1)
    ]  # fmt: skip
    assert found, arrow
    return found[-1]


def test_an_arrow_goes_from_each_collect_to_its_train(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e["cat"] == "batch"}
    ends = {e["id"]: e for e in events if e["ph"] == "f" and e["cat"] == "batch"}
    assert sorted(ends) == list(range(10)) and set(ends) <= set(starts)
    for batch, end in ends.items():
        collect, train = span_around(events, starts[batch]), span_around(events, end)
        assert (collect["name"], collect["args"]["batch"]) == ("collect", batch)
        assert (train["name"], train["args"]["batch"]) == ("train", batch)
        assert end["bp"] == "e" and starts[batch]["ts"] < end["ts"]


def test_an_arrow_goes_from_each_publication_to_the_collects_that_loaded_it(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    collects = {e["args"]["batch"]: e for e in events if e["name"] == "collect" and e["ph"] == "X"}
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e["cat"] == "weights"}
    ends = {e["id"]: e for e in events if e["ph"] == "f" and e["cat"] == "weights"}
    loaded = {batch for batch, e in collects.items() if e["args"]["version"] > 0}  # the first weights are nobody's span
    assert loaded == set(starts) == set(ends) and len(loaded) >= 6
    for batch in loaded:
        collect = collects[batch]
        assert ends[batch]["ts"] == collect["ts"] and ends[batch]["tid"] == collect["tid"]
        publishes = [e for e in events if e["name"] == "publish" and e["args"]["version"] == collect["args"]["version"]]
        assert len(publishes) == 1
        assert publishes[0]["ts"] <= starts[batch]["ts"] <= publishes[0]["ts"] + publishes[0]["dur"] <= collect["ts"]


def test_counters_follow_the_line_and_are_written_when_they_change(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    lag = [e["args"]["batches"] for e in events if e["ph"] == "C" and e["name"] == "lag"]
    assert max(lag) == 2 and lag[-1] == 0
    assert all(a != b for a, b in pairwise(lag))
    queue = [e["args"]["batches"] for e in events if e["ph"] == "C" and e["name"] == "queue"]
    assert max(queue) == 1
    assert [e["args"][""] for e in events if e["name"] == "degree"] == [2]
    assert max(e["args"][""] for e in events if e["name"] == "open collects") == 2


def test_publications_that_are_remembered_stay_few(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.json")
    for version in range(3_000):
        trace.published(version, version + 0.5, version)
    trace.collect("collector 0", 3_001.0, 3_002.0, 7, 2_999)
    trace.collect("collector 0", 3_003.0, 3_004.0, 8, 5)
    assert len(trace._publications) == 1_000
    trace.close()
    assert [e["id"] for e in read_events(tmp_path / "trace.json") if e.get("cat") == "weights" and e["ph"] == "f"] == [
        7
    ]
