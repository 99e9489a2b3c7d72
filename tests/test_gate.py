"""The gate's rules, one by one, and what it refuses."""

from __future__ import annotations

import json

import pytest

from lzero_async import ConfigError, Gate
from lzero_async.gate import GateError


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
        gate.degree = 2
        late = gate.start_collect()
        gate.degree = 1
        for _ in range(3):
            gate.degree = 2
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
