"""The gate's rules, one by one, and what it refuses."""

from __future__ import annotations

import json

import pytest

from lzero_async import ConfigError
from lzero_async.core.gate import Gate, GateError


def trained(gate: Gate) -> None:
    gate.start_train()
    gate.finish_train()
    if gate.publish_due:
        gate.publish()


def test_degree_0_is_strictly_in_turn() -> None:
    gate = Gate(0)
    ticket = gate.start_collect()
    assert gate.collect_rule() == "a collect is open"
    assert gate.eval_rule() == "a collect is open"
    gate.commit(ticket.id)
    assert gate.collect_rule() == "a batch waits for its train"
    gate.start_train()
    assert gate.collect_rule() == "the learner is busy"
    gate.finish_train()
    assert gate.collect_rule() == "the newest weights are not published"
    gate.publish()
    assert gate.collect_rule() is None


def test_from_degree_1_a_collect_overlaps_the_train_before_it() -> None:
    gate = Gate(1)
    gate.commit(gate.start_collect().id)
    assert gate.collect_rule() == "lag"
    gate.start_train()
    assert gate.collect_rule() is None
    second = gate.start_collect()
    assert gate.commit_rule(second.id) == "lag"
    gate.finish_train()
    gate.publish()
    assert gate.commit_rule(second.id) is None


def test_a_fast_collector_overtakes_a_straggler_exactly_as_far_as_its_deadline() -> None:
    gate = Gate(2, num_collectors=2)
    straggler = gate.start_collect()
    assert straggler.deadline == 2
    for _ in range(2):
        gate.commit(gate.start_collect().id)
        trained(gate)
    fast = gate.start_collect()
    assert gate.commit_rule(fast.id) == "an older collect must come first"
    gate.commit(straggler.id)
    gate.commit(fast.id)
    assert gate.start_train().id == straggler.id
    assert gate.version - straggler.version == 2


def test_drop_counts_what_came_too_late_and_allow_trains_it() -> None:
    for policy, dropped in (("drop", 1), ("allow", 0)):
        gate = Gate(1, num_collectors=2, policy=policy)
        gate.set_degree(2)
        late = gate.start_collect()
        gate.set_degree(1)
        for _ in range(3):
            gate.set_degree(2)
            gate.commit(gate.start_collect().id)
            trained(gate)
        gate.commit(late.id)
        assert gate.dropped == dropped
        assert len(gate.waiting) == 1 - dropped
        assert not gate.violations()


def test_replays_are_bounded_in_a_row_and_wait_for_the_first_batch() -> None:
    gate = Gate(2, max_train_ahead=2)
    assert gate.replay_rule() == "no batch was trained yet"
    gate.commit(gate.start_collect().id)
    trained(gate)
    for _ in range(2):
        gate.start_replay()
        gate.finish_train()
    assert gate.replay_rule() == "max_train_ahead"
    assert (gate.version, gate.trained, gate.replayed) == (3, 1, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"degree": -1}, "off_policy_degree is -1"),
        ({"degree": 1.5}, "off_policy_degree is 1.5"),
        ({"degree": True}, "off_policy_degree is True"),
        ({"degree": 1, "num_collectors": 0}, "num_collectors is 0"),
        ({"degree": 1, "policy": "hope"}, "'hope'; choose one of wait, drop, allow"),
        ({"degree": 1, "publish_every": 3}, "at most 2"),
        ({"degree": 0, "max_train_ahead": 1}, "max_train_ahead is 1"),
    ],
)
def test_settings_that_cannot_work_are_rejected(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Gate(**settings)


def test_steps_out_of_turn_raise_and_change_nothing() -> None:
    gate = Gate(1)
    before = gate.state_dict()
    for step in (gate.start_train, gate.finish_train, gate.fail_train, gate.start_replay, gate.finish_eval):
        with pytest.raises(GateError):
            step()
    for close in (gate.commit, gate.fail, gate.abandon):
        with pytest.raises(GateError, match="Ticket 7 is not open"):
            close(7)
    assert gate.state_dict() == before


def test_a_replay_that_a_resume_cut_off_was_none() -> None:
    gate = Gate(1, max_train_ahead=2)
    gate.commit(gate.start_collect().id)
    trained(gate)
    for _ in range(5):
        gate.start_replay()
        state = gate.state_dict()
        gate = Gate(1, max_train_ahead=2)
        gate.load_state_dict(state)
    assert (gate.replayed, gate.replays_in_row, gate.replay_rule()) == (0, 0, None)


def test_resume_abandons_tickets_and_owes_the_running_train_again() -> None:
    gate = Gate(3, num_collectors=2)
    gate.commit(gate.start_collect().id)
    gate.commit(gate.start_collect().id)
    trained(gate)
    gate.start_collect()
    gate.start_train()
    state = json.loads(json.dumps(gate.state_dict()))

    resumed = Gate(1)
    resumed.load_state_dict(state)
    assert (resumed.version, resumed.trained, len(resumed.waiting), resumed.abandoned) == (1, 1, 1, 1)
    assert resumed.running is None
    assert resumed.collect_rule() == "lag"
    trained(resumed)
    assert (resumed.version, resumed.trained) == (2, 2)
    assert not resumed.violations()

    without_data = Gate(3)
    without_data.load_state_dict(state, keep_waiting=False)
    assert without_data.abandoned == 2
    assert not without_data.waiting


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.pop("waiting"),
        lambda s: s.update(trained=99),
        lambda s: s.update(version="7"),
        lambda s: s.update(version=-1),
        lambda s: s.update(waiting=[[1, 2]]),
        lambda s: s.update(tickets=None),
    ],
)
def test_a_damaged_state_is_refused_whole(damage) -> None:
    gate = Gate(2)
    gate.commit(gate.start_collect().id)
    state = gate.state_dict()
    damage(state)
    other = Gate(2)
    with pytest.raises(ConfigError, match="checkpoint"):
        other.load_state_dict(state)
    assert other.state_dict() == Gate(2).state_dict()


def test_a_state_of_another_policy_abandons_what_wait_could_not_train_in_time() -> None:
    gate = Gate(1, num_collectors=2, policy="allow")
    gate.set_degree(2)
    late = gate.start_collect()
    for _ in range(3):
        gate.commit(gate.start_collect().id)
        trained(gate)
    gate.commit(late.id)
    strict = Gate(2, num_collectors=2)
    strict.load_state_dict(gate.state_dict())
    assert strict.abandoned == 1
    assert not strict.violations()


# -- a queue that drops ----------------------------------------------------------------------------------------------------


def queue(**settings) -> Gate:
    return Gate(1, **{"num_collectors": 2, "policy": "allow", "capacity": 2, **settings})


def test_a_full_queue_drops_its_oldest_batch_and_never_holds_a_collector_back() -> None:
    gate = queue()
    first, second, third = (gate.start_collect().id, gate.start_collect().id, None)
    assert gate.collect_rule() == "every collector is busy"
    assert gate.commit(first) == gate.commit(second) == []
    third = gate.start_collect().id
    assert [t.id for t in gate.commit(third)] == [first]
    assert [t.id for t in gate.waiting] == [second, third]
    assert (gate.dropped, gate.committed) == (1, 3)
    assert gate.violations() == []


@pytest.mark.parametrize("order", ["fifo", "priority"])
def test_the_oldest_batch_is_the_one_that_waited_longest_not_the_one_that_was_begun_first(order: str) -> None:
    gate = queue(order=order)
    slow = gate.start_collect().id
    waited = []
    for _ in range(2):
        waited.append(gate.start_collect().id)
        gate.commit(waited[-1], 3.0)
    assert [t.id for t in gate.commit(slow, 3.0)] == waited[:1]
    assert [t.id for t in gate.waiting] == [waited[1], slow]
    assert [t.id for t in gate.set_capacity(1)] == waited[1:]
    assert (gate.dropped, gate.violations()) == (2, [])


def test_what_is_being_trained_is_not_in_the_queue_any_more() -> None:
    gate = queue(capacity=1)
    ids = []
    for _ in range(3):
        ids.append(gate.start_collect().id)
        gate.commit(ids[-1])
        if len(ids) == 1:
            assert gate.start_train().id == ids[0]
    assert [t.id for t in gate.waiting] == [ids[0], ids[2]]
    gate.finish_train()
    assert gate.start_train().id == ids[2]


def test_the_highest_priority_is_trained_first_and_the_oldest_of_the_lowest_dropped() -> None:
    gate = queue(order="priority", capacity=3, num_collectors=1)
    for priority in (1.0, 5.0, 1.0, 3.0, 5.0):
        gate.commit(gate.start_collect().id, priority)
    assert [t.id for t in gate.waiting] == [1, 4, 3]
    assert gate.dropped == 2
    saved = json.loads(json.dumps(gate.state_dict()))
    twin = queue(order="priority", capacity=3, num_collectors=1)
    twin.load_state_dict(saved)
    assert [t.id for t in twin.waiting] == [1, 4, 3]
    twin.commit(twin.start_collect().id, 4.0)
    assert [t.id for t in twin.waiting] == [1, 4, 5]


def test_a_batch_whose_train_failed_keeps_its_turn_in_a_full_queue() -> None:
    gate = queue(order="priority", capacity=1, num_collectors=1)
    owed = gate.start_collect().id
    gate.commit(owed, 1.0)
    gate.start_train()
    gate.commit(gate.start_collect().id, 9.0)
    gate.fail_train()
    gate.commit(gate.start_collect().id, 8.0)
    assert gate.start_train().id == owed
    assert (len(gate.waiting), gate.dropped) == (2, 1)
    assert gate.violations() == []


def test_a_batch_of_a_lower_priority_goes_before_one_that_waited_longer() -> None:
    gate = queue(order="priority", num_collectors=3)
    late, early, between = (gate.start_collect().id for _ in range(3))
    gate.commit(early, 2.0)
    gate.commit(between, 2.0)
    assert [t.id for t in gate.commit(late, 1.0)] == [late]
    assert [t.id for t in gate.waiting] == [early, between]


def test_the_queue_changes_its_length_and_the_collectors_their_number() -> None:
    gate = queue(capacity=3, num_collectors=3)
    for _ in range(3):
        gate.commit(gate.start_collect().id)
    assert [t.id for t in gate.set_capacity(1)] == [0, 1]
    gate.set_active_collectors(1)
    gate.start_collect()
    assert gate.collect_rule() == "every collector is busy"
    gate.set_active_collectors(2)
    assert gate.collect_rule() is None
    with pytest.raises(ConfigError, match="only 3"):
        gate.set_active_collectors(4)
    with pytest.raises(ConfigError, match="no queue"):
        Gate(1).set_capacity(3)


def test_under_drop_a_batch_past_its_deadline_leaves_the_queue_wherever_it_stands() -> None:
    gate = queue(policy="drop", order="priority", capacity=3)
    straggler = gate.start_collect()
    for _ in range(2):
        gate.commit(gate.start_collect().id, 1.0)
        trained(gate)
    gate.commit(gate.start_collect().id, 2.0)
    assert [t.id for t in gate.commit(straggler.id, 1.0)] == [straggler.id]
    assert gate.violations() == []


def test_under_drop_what_came_too_late_during_a_replay_is_dropped_though_the_replay_fails() -> None:
    gate = queue(policy="drop", capacity=3, max_train_ahead=2)
    for _ in range(2):
        gate.commit(gate.start_collect().id)
        gate.start_train()
        gate.finish_train()  # and its weights cannot be published
    gate.start_replay()
    late = gate.start_collect()
    assert late.deadline < gate.version
    assert gate.commit(late.id) == []
    assert gate.fail_train() == [late]
    assert gate.train_rule() == "no batch waits"
    assert (gate.dropped, gate.violations()) == (1, [])


def test_under_allow_a_failure_anywhere_drops_no_old_batch_of_a_queue_with_priorities() -> None:
    gate = queue(order="priority", capacity=5, num_collectors=1)
    for priority in (1.0, 2.0, 3.0, 4.0):
        gate.commit(gate.start_collect().id, priority)
    for _ in range(3):
        trained(gate)
    assert gate.waiting[0].deadline < gate.version
    gate.mend()
    assert ([t.id for t in gate.waiting], gate.dropped) == ([0], 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(policy="wait"), "loses none"),
        (dict(degree=0), "nothing is queued"),
        (dict(capacity=0), "queue_capacity is 0"),
        (dict(capacity=None, order="priority"), "needs a queue"),
        (dict(order="best"), "fifo, priority"),
    ],
)
def test_queues_that_make_no_sense_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Gate(**{"degree": 1, "policy": "allow", "capacity": 2, **settings})


def test_weights_of_a_version_that_is_not_there_are_a_violation() -> None:
    gate = Gate(1)
    gate.published = 1
    assert gate.violations() == ["version 0: 0 trains of 0 collects, 0 replayed, 1 published"]
