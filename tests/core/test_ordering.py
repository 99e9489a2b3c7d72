"""The gate's orders against the simple rules they stand for, and what they cost as queues get longer and collectors more."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.under_lock import full_queue, put
from lzero_async.clock import RealClock
from lzero_async.core.gate import Gate, Ticket
from lzero_async.core.keeping.gatekeeper import Gatekeeper
from lzero_async.core.keeping.parked import Parked


class SimpleGate(Gate):
    """The same rules, as simply as they can be said: lists, looked through from end to end."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.waiting = deque()

    def commit_rule(self, ticket_id: int) -> str | None:
        if self.capacity is not None:
            return None
        if len(self.waiting) >= max(1, self.degree) * self.per_train:
            return "lag"
        if self.policy == "wait" and len(self.tickets) > 1:
            now, ahead = self.version + (self.running == "replay"), len(self.waiting) + 1
            others = sorted(t.deadline for t in self.tickets.values() if t.id != ticket_id)
            if any(now + (ahead + j) // self.per_train > deadline for j, deadline in enumerate(others)):
                return "an older collect must come first"
        return None

    def replay_rule(self) -> str | None:
        tickets, self.tickets = self.tickets, {}
        rule = super().replay_rule()
        self.tickets = tickets
        if rule is None and tickets and not (self.capacity is not None and self.policy == "allow"):
            now, ahead = self.version + 1, len(self.waiting) - self.oversampling
            deadlines = sorted(t.deadline for t in tickets.values())
            if any(now + (ahead + j) // self.per_train > deadline for j, deadline in enumerate(deadlines)):
                return "an open collect would become too old"
        return rule

    def _line_up(self, ticket_id: int, priority: float) -> list[Ticket]:
        ticket = self._close(ticket_id)
        place = len(self.waiting)
        if self.order == "priority":
            while place > self._taken() and self._priority(self.waiting[place - 1]) < priority:
                place -= 1
            if priority:
                self.priorities[ticket_id] = priority
        self.waiting.insert(place, ticket)
        if self.oversampling:
            line = list(self.waiting)
            self.waiting = deque(line[: self._taken()] + sorted(line[self._taken() :]))
        self.committed += 1
        return (self._drop_expired() if self.policy == "drop" else []) + self._make_room()

    def _drop_expired(self) -> list[Ticket]:
        if self.running not in (None, "eval"):
            return []
        return self._drop([ticket for ticket in self.waiting if ticket.deadline < self.version])

    def _make_room(self) -> list[Ticket]:
        dropped: list[Ticket] = []
        while self.capacity is not None and len(self.waiting) - self._taken() > self.capacity:
            line = list(self.waiting)[self._taken() :]
            dropped += self._drop([min(line, key=self._priority)])
        return dropped

    def _drop(self, tickets: list[Ticket]) -> list[Ticket]:
        for ticket in tickets:
            self.owed = self.owed and ticket is not self.waiting[0]
            self.waiting.remove(ticket)
        return super()._drop(tickets)


def rules(gate: Gate) -> list[str | None]:
    return [gate.collect_rule(), gate.train_rule(), gate.replay_rule(), *(gate.commit_rule(i) for i in gate.tickets)]


def seen(gate: Gate) -> dict[str, Any]:
    return {**gate.state_dict(), "running": gate.running, "owed": gate.owed, "rules": rules(gate)}


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_every_step_does_what_the_simple_rules_do(data: st.DataObject) -> None:
    """Any order of collects, commits, trains, failures, replays, and changes of degree, capacity and collectors."""
    policy = data.draw(st.sampled_from(("wait", "drop", "allow")))
    degree = data.draw(st.integers(1, 9))
    ahead = data.draw(st.integers(0, 2))
    workers = data.draw(st.integers(1, 9))
    capacity = None if policy == "wait" else data.draw(st.none() | st.integers(1, 6))
    order = "fifo" if capacity is None else data.draw(st.sampled_from(("fifo", "priority")))
    every = data.draw(st.integers(1, 2))
    per_train = data.draw(st.integers(1, 3)) if capacity is None else 1
    oversampling = data.draw(st.integers(0, 3)) if capacity is None and policy == "drop" else 0
    options: dict[str, Any] = {
        "num_collectors": workers, "policy": policy, "publish_every": every, "max_train_ahead": ahead,
        "capacity": capacity, "order": order, "collects_per_train": per_train, "oversampling": oversampling,
    }  # fmt: skip
    ours, model = Gate(degree, **options), SimpleGate(degree, **options)

    for _ in range(data.draw(st.integers(10, 80))):
        one, two, three = (data.draw(st.integers(0, 11)) for _ in range(3))
        steps: list[tuple[Any, ...]] = [("set_degree", one + 1), ("set_active_collectors", 1 + two % workers)]
        if ours.collect_rule() is None:
            steps += [("start_collect",)] * 6
        steps += [("commit", i, float(three % 3)) for i in ours.tickets if ours.commit_rule(i) is None] * 3
        if ours.tickets:
            steps.append((("fail", "reject")[one % 2], list(ours.tickets)[two % len(ours.tickets)]))
        if ours.train_rule() is None:
            steps += [("start_train",)] * 4
        if ours.replay_rule() is None:
            steps.append(("start_replay",))
        if ours.running in ("train", "replay"):
            steps += [("finish_train",)] * 4 + [("fail_train",)]
        if capacity is not None:
            steps.append(("set_capacity", 1 + one % 8))
        step = data.draw(st.sampled_from(steps))
        answers = [take(gate, *step) for gate in (ours, model)]
        assert answers[0] == answers[1]
        assert seen(ours) == seen(model)
        assert not ours.violations()


def take(gate: Gate, step: str, *args: Any) -> Any:
    """Take a step; of batches that it dropped, the order does not matter."""
    answer = getattr(gate, step)(*args)
    if step == "finish_train" and gate.publish_due:
        gate.publish()
    return sorted(answer) if isinstance(answer, list) else answer


def lines_run(step: Callable[[], object]) -> int:
    """How many lines of Python one step runs: its cost, whatever else the machine does."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("policy", "order"), [("allow", "fifo"), ("drop", "fifo"), ("allow", "priority"), ("drop", "priority")]
)
def test_a_put_into_a_long_full_queue_costs_what_one_into_a_short_one_does(policy: str, order: str) -> None:
    """Also while the first batch is being trained, and right after that. What runs in C is not counted: a heap's few
    comparisons."""

    def cost(size: int) -> int:
        gate = full_queue(size, policy, order)
        gate.start_train()
        total = sum(lines_run(partial(put, gate, float(n % 7))) for n in range(200))
        total += lines_run(lambda: take(gate, "finish_train"))
        return total + sum(lines_run(partial(put, gate, float(n % 7))) for n in range(200))

    assert cost(20_000) <= 2 * cost(100)


def test_a_shorter_queue_costs_what_it_drops() -> None:
    def cost(size: int) -> int:
        gate = full_queue(size)
        return lines_run(lambda: gate.set_capacity(size - 50))

    assert cost(10_000) <= 2 * cost(100)


def waiting_collectors(number: int) -> Gatekeeper:
    """All collects but the oldest wait for their commit, and that must come first."""
    keeper = Gatekeeper(Gate(number, num_collectors=number), RealClock())
    gate = keeper.gate
    gate.start_collect()
    for _ in range(number):
        gate.commit(gate.start_collect().id)
        gate.start_train()
        gate.finish_train()
        gate.publish()
    for ticket in [gate.start_collect() for _ in range(number - 1)]:
        assert isinstance(keeper.request_commit(ticket, None, 0.0, 0.0, RealClock().waiter), Parked)
    return keeper


def test_a_settle_costs_the_same_with_a_thousand_collectors() -> None:
    """All but one wait for their commit, and that one must come first: the worst there is."""
    assert lines_run(waiting_collectors(1000).settle) <= 3 * lines_run(waiting_collectors(10).settle)


def test_a_cycle_with_a_thousand_collectors_costs_little_more_than_with_ten() -> None:
    """Every collector has weights of its own version: admit, commit, train and publish, over and over."""

    def cost(number: int) -> int:
        gate = Gate(number, num_collectors=number)
        tickets = deque(gate.start_collect().id for _ in range(number))

        def turn() -> None:
            gate.commit(tickets.popleft())
            gate.start_train()
            tickets.append(gate.start_collect().id)
            take(gate, "finish_train")

        for _ in range(number):
            turn()
        return sum(lines_run(turn) for _ in range(100))

    assert cost(1000) <= 3 * cost(10)
