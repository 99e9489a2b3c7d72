"""Saved states that were damaged: refused in one sentence with nothing changed, or a gate that goes on without fault."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async import AsyncTrainingCoordinator, ConfigError
from lzero_async.core.gate import Gate

SETTINGS: list[dict[str, Any]] = [
    {"degree": 2, "num_collectors": 2},
    {"degree": 0},
    {"degree": 3, "num_collectors": 2, "policy": "drop", "max_train_ahead": 1},
    {"degree": 2, "num_collectors": 2, "policy": "allow", "capacity": 3, "order": "priority"},
    {"degree": 2, "num_collectors": 3, "policy": "drop", "capacity": 2},
]
VALUES = (
    -1,
    0,
    1,
    2,
    5,
    99,
    2**31,
    10**30,
    -(10**30),
    1.5,
    float("nan"),
    float("inf"),
    None,
    True,
    "7",
    [],
    {},
    [1],
    [[0, 0, 0]],
)


def go_on(gate: Gate, draw: random.Random, steps: int) -> None:
    """Take steps that the rules allow; each must be possible and leave nothing wrong."""
    for _ in range(steps):
        able = []
        if gate.collect_rule() is None:
            able.append(gate.start_collect)
        able += [
            lambda i=i: gate.commit(i, float(draw.randrange(3))) for i in gate.tickets if gate.commit_rule(i) is None
        ]
        if gate.train_rule() is None:
            able.append(gate.start_train)
        if gate.replay_rule() is None:
            able.append(gate.start_replay)
        if gate.running is not None:
            able.append(gate.finish_train)
        assert able, f"stuck: {gate.explain('now')}"
        draw.choice(able)()
        if gate.publish_due and gate.running is None:
            gate.publish()
        assert not gate.violations()


def places(state: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested lists and mappings."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def change(state: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(state)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    if how == "delete":
        del holder[path[-1]]
    elif how == "twice" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[path[-1]]))
    elif how == "nudge" and isinstance(holder[path[-1]], int):
        holder[path[-1]] += 1 if value else -1
    else:
        holder[path[-1]] = value
    return changed


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(
    case=st.sampled_from(SETTINGS),
    seed=st.integers(0, 10**6),
    changes=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(("set", "delete", "twice", "nudge")), st.sampled_from(VALUES)),
        min_size=1, max_size=3,
    ),
    keep=st.booleans(),
)  # fmt: skip
def test_a_damaged_state_of_a_gate(case: dict[str, Any], seed: int, changes: list[Any], keep: bool) -> None:
    draw = random.Random(seed)
    gate = Gate(**case)
    go_on(gate, draw, draw.randrange(40))
    state = gate.state_dict()
    for number, how, value in changes:
        found = places(state)
        state = change(state, found[number % len(found)], how, value)
    fresh = Gate(**case)
    before = fresh.state_dict()
    try:
        fresh.load_state_dict(state, keep_waiting=keep)
    except ConfigError as error:
        assert str(error).endswith("use another checkpoint.") and "\n" not in str(error)
        assert fresh.state_dict() == before
    else:
        assert not fresh.violations()
        go_on(fresh, draw, 40)


def test_the_number_of_a_batch_is_finite() -> None:
    coordinator = AsyncTrainingCoordinator(2)
    coordinator.run_collect(lambda: 1)
    state = coordinator.state_dict(with_batches=True)
    state["gate"]["waiting"][0][0] = float("inf")
    with pytest.raises(ConfigError, match="cannot be read"):
        AsyncTrainingCoordinator(2).load_state_dict(state)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6), number=st.integers(0, 10**6), value=st.sampled_from(VALUES))
def test_a_damaged_state_of_a_coordinator(seed: int, number: int, value: Any) -> None:
    coordinator = AsyncTrainingCoordinator(2)
    draw = random.Random(seed)
    for _ in range(draw.randrange(6)):
        coordinator.run_collect(lambda: 1)
        coordinator.run_train(lambda: 1)
    coordinator.run_collect(lambda: 2)
    state = json.loads(json.dumps(coordinator.state_dict(with_batches=True)))
    found = [place for place in places(state) if "batches" not in place]
    state = change(state, found[number % len(found)], "set", value)
    fresh = AsyncTrainingCoordinator(2)
    before = fresh.state_dict()
    try:
        fresh.load_state_dict(state)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert fresh.state_dict() == before
        return
    fresh.get_statistics()
    while fresh.can_train():
        fresh.run_train(lambda: 1)
    fresh.run_collect(lambda: 1)
    fresh.run_train(lambda: 1)
    assert not fresh.violations()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"waiting": [[3, 1, 3], [3, 1, 3]]}, "numbers of their own"),
        ({"waiting": [[3, 1, 3], [5, 1, 3]]}, "numbers of their own"),
        ({"waiting": [[3, 9, 11], [4, 1, 3]]}, "collected after"),
        ({"waiting": [[3, 2, 1], [4, 1, 3]]}, "collected after"),
        ({"priorities": [float("nan"), 0.0]}, "not a number"),
        ({"committed": 1}, "1 committed"),
        ({"replays_in_row": 7}, "7 replays"),
        ({"version": 10**30}, "whole numbers"),
    ],
)
def test_states_that_no_gate_was_ever_in(changes: dict[str, Any], words: str) -> None:
    gate = Gate(2, policy="allow")
    for _ in range(3):
        gate.commit(gate.start_collect().id)
        gate.start_train()
        gate.finish_train()
        gate.publish()
    for _ in range(2):
        gate.commit(gate.start_collect().id)
    state = gate.state_dict()
    assert [ticket[0] for ticket in state["waiting"]] == [3, 4]
    fresh = Gate(2, policy="allow")
    with pytest.raises(ConfigError, match=words):
        fresh.load_state_dict({**state, **changes})
    assert fresh.admitted == 0
    fresh.load_state_dict(state)
    assert len(fresh.waiting) == 2


def test_statistics_that_were_reset_after_the_end_are_refused_and_so_are_batches_that_are_none() -> None:
    state = AsyncTrainingCoordinator(1).state_dict()
    fresh = AsyncTrainingCoordinator(1)
    later = {**state["statistics"], "base": {**state["statistics"]["base"], "committed": 1}}
    with pytest.raises(ConfigError, match="committed is 0, and was 1 at the last reset"):
        fresh.load_state_dict({**state, "statistics": later})
    with pytest.raises(ConfigError, match="cannot be read"):
        fresh.load_state_dict({**state, "batches": 5})
    assert fresh.state_dict() == state
