"""One train from several collects (`collects_per_train`), and more collects than can be trained in time (`oversampling`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Batch, Bound, CollectContext, ConfigError, GateTimeout
from lzero_async.core.gate import Gate
from lzero_async.core.statistics import format_box
from lzero_async.testing import VirtualClock
from lzero_async.tools.traces import read_events
from tests.core.trace_rules import violations

QUIET: dict[str, Any] = {"handle_signals": False, "print_statistics": False}
POLICIES = ("wait", "drop", "allow")


def collected(gate: Gate, number: int = 1) -> list[int]:
    return [gate.start_collect().id for _ in range(number)]


# -- the rules -----------------------------------------------------------------------------------------------------------


def test_a_train_takes_the_oldest_batches_and_makes_one_version() -> None:
    gate = Gate(2, num_collectors=6, collects_per_train=3)
    first = collected(gate, 4)
    for number in (2, 0, 1):
        assert gate.train_rule() in ("no batch waits", "fewer batches wait than a train takes")
        gate.commit(number)
    assert gate.start_train().id == 0  # the oldest, though another was committed before it
    gate.commit(first[3])
    assert [ticket.id for ticket in gate.group()] == [2, 0, 1]
    gate.finish_train()
    assert (gate.version, gate.trains, gate.trained, len(gate.waiting)) == (1, 1, 3, 1)
    assert gate.train_rule() == "fewer batches wait than a train takes"


def test_degree_0_collects_what_a_train_takes_one_at_a_time() -> None:
    gate = Gate(0, num_collectors=3, collects_per_train=2)
    (one,) = collected(gate)
    assert gate.collect_rule() == "a collect is open"
    gate.commit(one)
    (two,) = collected(gate)
    gate.commit(two)
    assert gate.collect_rule() == "a batch waits for its train"
    gate.start_train()
    assert gate.collect_rule() == "the learner is busy"


@pytest.mark.parametrize("degree", [1, 2])
def test_the_lag_is_bounded_by_so_many_times_the_degree(degree: int) -> None:
    gate = Gate(degree, num_collectors=99, collects_per_train=3)
    tickets = []
    while gate.collect_rule() is None:
        tickets += collected(gate)
    assert len(tickets) == 3 * degree and gate.collect_rule() == "lag"
    for ticket in tickets:
        gate.commit(ticket)
    gate.start_train()
    more = []
    while gate.collect_rule() is None:
        more += collected(gate)
    assert len(more) == 3 and gate.commit_rule(more[0]) == "lag"


def test_a_straggler_is_overtaken_as_far_as_its_train_allows() -> None:
    """Its deadline is version 2, whose train takes the places 4 and 5: five may come before it, and not a sixth."""
    gate = Gate(2, num_collectors=9, collects_per_train=2)
    straggler, *others = collected(gate, 4)
    gate.commit(others.pop(0))
    gate.commit(others.pop(0))
    gate.start_train()
    others += collected(gate, 2)
    gate.finish_train()
    gate.publish()
    for _ in range(3):
        assert gate.commit_rule(others[0]) is None
        gate.commit(others.pop(0))
    gate.start_train()
    others += collected(gate, 2)
    assert gate.commit_rule(others[0]) == "an older collect must come first"
    gate.commit(straggler)
    assert gate.commit_rule(others[0]) == "lag" and gate.violations() == []


def test_replays_run_while_a_train_is_not_full_and_make_nothing_too_old() -> None:
    gate = Gate(1, num_collectors=2, collects_per_train=2, max_train_ahead=5)
    for ticket in collected(gate, 2):
        gate.commit(ticket)
    gate.start_train()
    gate.finish_train()
    gate.publish()
    gate.commit(collected(gate)[0])  # of version 1: it may start at 2, and not at 3
    gate.start_replay()
    gate.finish_train()
    assert gate.replay_rule() == "a waiting batch would become too old"


def test_oversampling_admits_that_many_more_and_drops_what_is_too_late() -> None:
    gate = Gate(1, num_collectors=9, policy="drop", oversampling=2)
    assert len(fill(gate)) == 3
    gate.commit(2)
    gate.start_train()
    gate.finish_train()
    gate.publish()
    gate.commit(1)
    assert gate.waiting[0].id == 1 and gate.dropped == 0
    gate.start_train()
    gate.finish_train()
    assert gate.commit(0) == [(0, 0, 1)] and gate.dropped == 1


def fill(gate: Gate) -> list[int]:
    found = []
    while gate.collect_rule() is None:
        found += collected(gate)
    return found


def test_oversampled_batches_stand_in_the_order_of_their_start_behind_those_being_trained() -> None:
    gate = Gate(3, num_collectors=9, policy="drop", oversampling=2, collects_per_train=2)
    collected(gate, 6)
    for number in (5, 3):
        gate.commit(number)
    assert [ticket.id for ticket in gate.waiting] == [3, 5]
    gate.start_train()
    for number in (4, 0, 2):
        gate.commit(number)
    assert [ticket.id for ticket in gate.waiting] == [3, 5, 0, 2, 4]
    gate.fail_train()  # which keeps its turn
    gate.commit(1)
    assert [ticket.id for ticket in gate.waiting] == [3, 5, 0, 1, 2, 4]


@pytest.mark.parametrize(
    ("degree", "settings", "words"),
    [
        (1, {"collects_per_train": 0}, "collects_per_train is 0"),
        (1, {"collects_per_train": 2, "queue_capacity": 3, "staleness_policy": "drop"}, "leave one of the two out"),
        (1, {"oversampling": -1, "staleness_policy": "drop"}, "oversampling is -1"),
        (1, {"oversampling": 1}, "staleness_policy 'wait' drops none"),
        (1, {"oversampling": 1, "staleness_policy": "allow"}, "staleness_policy 'allow' drops none"),
        (1, {"oversampling": 1, "staleness_policy": "drop", "queue_capacity": 3}, "leave one of the two out"),
        (0, {"oversampling": 1, "staleness_policy": "drop"}, "one collect runs at a time"),
    ],
)
def test_what_cannot_work_is_refused(degree: int, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AsyncTrainingCoordinator(degree, bound=Bound(**settings))


def test_a_degree_of_0_is_refused_later_too() -> None:
    gate = Gate(1, policy="drop", oversampling=1)
    with pytest.raises(ConfigError, match="oversampling"):
        gate.set_degree(0)


def test_the_warning_about_collectors_knows_both() -> None:
    AsyncTrainingCoordinator(
        2, num_collectors=7, bound=Bound(collects_per_train=3, oversampling=1, staleness_policy="drop")
    )
    with pytest.warns(UserWarning, match="Raise the degree to 3 or use 6"):
        AsyncTrainingCoordinator(2, num_collectors=7, bound=Bound(collects_per_train=3))


# -- runs ----------------------------------------------------------------------------------------------------------------


def number(context: CollectContext) -> int:
    return context.ticket


async def number_awaited(context: CollectContext) -> int:
    await asyncio.sleep(0)
    return context.ticket


@pytest.mark.parametrize("collect", [number, number_awaited])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("degree", "workers"), [(0, 1), (1, 1), (2, 3)])
def test_every_train_gets_its_collects_and_none_twice(degree: int, workers: int, policy: Any, collect: Any) -> None:
    batches: list[Batch] = []
    bound = Bound(collects_per_train=3, staleness_policy=policy)
    with AsyncTrainingCoordinator(degree, num_collectors=workers, bound=bound) as coordinator:
        result = coordinator.run(collect, batches.append, max_train=6, **QUIET)
        assert coordinator.violations() == []
    stats = result.statistics
    data = [batch.data for batch in batches]
    assert all(
        len(one) == 3 and one == sorted(one) and one[0] == batch.id for one, batch in zip(data, batches, strict=True)
    )
    assert len({ticket for one in data for ticket in one}) == 18
    assert (stats["train_count"], stats["trained_collects"], stats["version"]) == (6, 18, 6)
    assert stats["max_lag"] <= stats["lag_bound"] == 3 * max(1, degree)
    assert sum(stats["staleness_counts"].values()) == 6
    if policy != "allow":
        assert stats["staleness_max"] <= degree
    if not stats["dropped"]:
        assert stats["collect_count"] == 18 + stats["collect_train_lag"]


@pytest.mark.parametrize("degree", [0, 2])
def test_a_remainder_at_the_end_is_abandoned(degree: int) -> None:
    with AsyncTrainingCoordinator(degree, bound=Bound(collects_per_train=3)) as coordinator:
        result = coordinator.run(number, lambda batch: None, max_collect=8, **QUIET)
        assert coordinator.violations() == [] and coordinator.waiting_batches == ()
    stats = result.statistics
    assert (result.reason, stats["train_count"], stats["abandoned"], stats["collect_train_lag"]) == (
        "max_collect",
        2,
        2,
        0,
    )


def test_what_a_stop_leaves_waits_for_the_next_run() -> None:
    """Only when all is collected can a remainder not be trained any more."""
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, bound=Bound(collects_per_train=4), clock=clock)

        def collect(context: CollectContext) -> int:
            clock.sleep(1.0)
            return context.ticket

        first = coordinator.run(collect, lambda batch: None, max_seconds=6.5, **QUIET)
        assert (first.statistics["train_count"], first.statistics["collect_train_lag"]) == (1, 3)
        batches: list[Batch] = []
        coordinator.run(collect, batches.append, max_train=2, **QUIET)
        assert batches[0].data == [4, 5, 6, 7]
        coordinator.close()


def test_a_train_that_fails_keeps_all_its_collects() -> None:
    with AsyncTrainingCoordinator(2, num_collectors=2, bound=Bound(collects_per_train=2)) as coordinator:
        for ticket in range(3):
            coordinator.run_collect(lambda ticket=ticket: ticket)
        with pytest.raises(OSError):
            coordinator.run_train(lambda: (_ for _ in ()).throw(OSError()))
        assert coordinator.run_train(lambda batch: batch.data, with_batch=True) == [0, 1]
        with pytest.raises(GateTimeout, match=r"fewer batches wait than a train takes .*collects_per_train 2"):
            coordinator.run_train(lambda: None, timeout=0)


@pytest.mark.parametrize("saved_with", [2, 3])
def test_a_resumed_run_goes_on_also_with_another_number(saved_with: int) -> None:
    with AsyncTrainingCoordinator(3, bound=Bound(collects_per_train=saved_with)) as first:
        for ticket in range(5):
            first.run_collect(lambda ticket=ticket: ticket)
        first.run_train(lambda: None)
        state = first.state_dict(with_batches=True)
    with AsyncTrainingCoordinator(3, bound=Bound(collects_per_train=2)) as second:
        second.load_state_dict(state)
        assert (second.train_count, second.version, second.collect_train_lag) == (1, 1, 5 - saved_with)
        assert second.run_train(lambda batch: batch.data, with_batch=True) == [saved_with, saved_with + 1]
        assert second.get_statistics()["trained_collects"] == saved_with + 2
        assert second.violations() == []


def test_the_staleness_is_that_of_the_oldest_collect_and_the_trace_shows_all(tmp_path: Path) -> None:
    bound = Bound(collects_per_train=2)
    with AsyncTrainingCoordinator(2, num_collectors=3, bound=bound, trace=tmp_path / "trace.json") as coordinator:
        for _ in range(3):
            coordinator.run_collect(lambda: "old")
        coordinator.run_train(lambda: None)
        coordinator.run_collect(lambda: "new")
        batch = coordinator.run_train(lambda batch: batch, with_batch=True)
        assert (batch.id, batch.data, batch.version, batch.staleness) == (2, ["old", "new"], 0, 1)
        assert "degree 2, 2 collects per train" in format_box(coordinator.get_statistics())
    events = list(read_events(tmp_path / "trace.json"))
    assert violations(events) == []
    trains = [event["args"] for event in events if event["name"] == "train"]
    assert [(train["batch"], train["batches"]) for train in trains] == [(0, [0, 1]), (2, [2, 3])]
    assert sum(event["ph"] == "f" and event["cat"] == "batch" for event in events if "cat" in event) == 4


@pytest.mark.filterwarnings("ignore:num_collectors")
def test_over_sampling_lets_the_learner_go_on_without_a_straggler() -> None:
    """Collect 0 takes 100 s. Alone it holds the learner up; over-sampled, it is too late and dropped."""
    slow, _, first = a_straggler(0)
    quick, stats, trained = a_straggler(1)
    assert first[0] == 0 and slow >= 100.0
    assert quick < 20.0 and 0 not in trained
    assert stats["staleness_max"] <= 1 and stats["lag_bound"] == 1


def a_straggler(oversampling: int) -> tuple[float, dict[str, Any], list[int]]:
    trained: list[int] = []
    with VirtualClock() as clock:
        bound = Bound(staleness_policy="drop", oversampling=oversampling)
        coordinator = AsyncTrainingCoordinator(1, num_collectors=2, bound=bound, clock=clock)

        def collect(context: CollectContext) -> int:
            context.stop.wait(100.0 if context.ticket == 0 else 1.0)
            return context.ticket

        def train(batch: Batch) -> None:
            clock.sleep(1.0)
            trained.append(batch.data)

        stats = coordinator.run(collect, train, max_train=8, **QUIET).statistics
        seconds = clock.now()
        coordinator.close()
    return seconds, stats, trained


def test_a_loop_of_ones_own_gets_the_lists_too() -> None:
    with AsyncTrainingCoordinator(2, num_collectors=2, bound=Bound(collects_per_train=2)) as coordinator:
        found = [batch.data for batch in coordinator.batches(collect=number, max_collect=5, handle_signals=False)]
        stats = coordinator.get_statistics()
    assert len({ticket for data in found for ticket in data}) == 4 and all(len(data) == 2 for data in found)
    assert (stats["train_count"], stats["trained_collects"], stats["abandoned"]) == (2, 4, 1)
