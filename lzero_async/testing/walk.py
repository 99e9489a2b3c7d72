"""An exhaustive walk of the gate: every order of every step, with faults, checked at every state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

from lzero_async.core.gate import Gate, Ticket


class WalkFailure(AssertionError):
    """A reachable state breaks a rule; the message holds the steps that lead there."""


@dataclass(frozen=True)
class Budget:
    """How much one path may contain. An interruption is a failed or rejected collect, a failed train, a change of
    the degree, a save and load (with and without the waiting batches), or an evaluation in the learner's turn; each can
    come at any step."""

    batches: int = 7
    interruptions: int = 1


@dataclass(frozen=True)
class WalkResult:
    """What was visited."""

    states: int
    steps: int
    finished: int


@dataclass
class _Node:
    gate: Gate
    left: Budget
    path: tuple[Any, ...] | None

    def steps_so_far(self) -> list[str]:
        steps: list[str] = []
        path = self.path
        while path is not None:
            path, step = path
            steps.append(step)
        return steps[::-1]


def walk(
    make_gate: Callable[[], Gate], budget: Budget | None = None, degrees: tuple[int, ...] = (0, 1, 2, 3, 4)
) -> WalkResult:
    """Visit every state that `make_gate()` can reach within `budget`; raise WalkFailure at the first broken one."""
    start = _Node(make_gate(), budget or Budget(), None)
    seen = {_key(start)}
    todo = deque([start])
    steps = finished = 0
    while todo:
        node = todo.popleft()
        progress = False
        for progresses, successor in _successors(node, degrees):
            steps += 1
            progress |= progresses
            key = _key(successor)
            if key not in seen:
                seen.add(key)
                todo.append(successor)
        if not progress:
            gate = node.gate
            if gate.running or gate.ready or gate.tickets or gate.admitted < node.left.batches:
                raise _failure(node, "deadlock: nothing can go on")
            finished += 1
    return WalkResult(len(seen), steps, finished)


def _successors(node: _Node, degrees: tuple[int, ...]) -> Iterator[tuple[bool, _Node]]:
    """Each step that is possible now, and whether it brings the pipeline forward (faults and evaluations do not)."""
    gate, left = node.gate, node.left
    if gate.admitted < left.batches and gate.collect_rule() is None:
        yield True, _after(node, "collect", _checked_start)
    for ticket in _different(gate):
        if gate.commit_rule(ticket.id) is None:
            for priority in (0.0, 1.0) if gate.order == "priority" else (0.0,):
                commit = partial(_checked_commit, ticket_id=ticket.id, priority=priority)
                yield True, _after(node, f"commit {ticket.id} with priority {priority:g}", commit)
        if left.interruptions:
            yield False, _after(node, f"fail {ticket.id}", methodcaller("fail", ticket.id), interrupts=True)
            yield False, _after(node, f"reject {ticket.id}", methodcaller("reject", ticket.id), interrupts=True)
    if gate.train_rule() is None:
        yield True, _after(node, "train", _checked_train)
    if gate.replay_rule() is None:
        yield False, _after(node, "replay", methodcaller("start_replay"))
    if gate.running in ("train", "replay"):
        yield True, _after(node, "finish", _finish_and_publish)
        if left.interruptions:
            yield False, _after(node, "fail train", methodcaller("fail_train"), interrupts=True)
    if gate.running == "eval":
        yield True, _after(node, "end eval", methodcaller("finish_eval"))
    elif left.interruptions and gate.eval_rule() is None:
        yield False, _after(node, "eval", methodcaller("start_eval"), interrupts=True)
    if left.interruptions:
        for degree in degrees:
            if degree != gate.degree and _can_have(gate, degree):
                yield False, _after(node, f"degree {degree}", partial(_set_degree, degree=degree), interrupts=True)
        if gate.capacity is not None:
            for capacity in (1, 2, 3):
                resized = partial(_set_capacity, capacity=capacity)
                yield False, _after(node, f"capacity {capacity}", resized, interrupts=True)
            for number in range(1, gate.num_collectors):
                fewer = methodcaller("set_active_collectors", number)
                yield False, _after(node, f"{number} active collectors", fewer, interrupts=True)
    if left.interruptions:
        for keep in (True, False):
            yield False, _after(node, f"resume keep={keep}", partial(_resume, keep_waiting=keep), interrupts=True)


def _different(gate: Gate) -> Iterable[Ticket]:
    """The open tickets, of equals one; where batches stand in the order of their start, none is like another."""
    if gate.oversampling:
        return gate.tickets.values()
    return {(t.version, t.deadline): t for t in gate.tickets.values()}.values()


def _after(node: _Node, step: str, act: Callable[[Gate], object], *, interrupts: bool = False) -> _Node:
    gate = _copy(node.gate)
    left = Budget(node.left.batches, node.left.interruptions - 1) if interrupts else node.left
    successor = _Node(gate, left, (node.path, step))
    try:
        act(gate)
    except AssertionError as error:
        raise _failure(successor, str(error)) from None
    if wrong := gate.violations():
        raise _failure(successor, wrong[0])
    return successor


def _checked_start(gate: Gate) -> None:
    ticket = gate.start_collect()
    assert len(gate.tickets) <= gate.num_collectors, "more open collects than collectors"
    assert ticket.deadline == ticket.version + gate.degree, "a deadline that is not version + degree"
    if gate.degree == 0:
        assert gate.running is None and not gate.ready and len(gate.tickets) == 1, "two stages at once at degree 0"
        assert ticket.version == gate.version, "old weights at degree 0"
    elif gate.capacity is None:
        most = gate.per_train * (gate.degree + (gate.running == "train")) + gate.oversampling
        assert len(gate.waiting) + len(gate.tickets) <= most, "more collects than the lag and the oversampling allow"


def _checked_commit(gate: Gate, ticket_id: int, priority: float) -> None:
    before, training = gate.dropped, gate.group() if gate.running == "train" else ()
    dropped = gate.commit(ticket_id, priority)
    assert gate.dropped - before == len(dropped), "drops that are not counted"
    if gate.capacity is None:
        bound = gate.per_train * max(1, gate.degree)
        assert len(gate.waiting) <= bound, f"lag {len(gate.waiting)}, and the bound is {bound}"
    else:
        assert len(gate.waiting) <= gate.capacity + 1, f"lag {len(gate.waiting)} at capacity {gate.capacity}"
    assert not training or gate.group() == training, "the batch that is being trained is not the first any more"


def _set_capacity(gate: Gate, capacity: int) -> None:
    gate.set_capacity(capacity)


def _can_have(gate: Gate, degree: int) -> bool:
    needs_some = gate.max_train_ahead or gate.capacity is not None or gate.oversampling
    return gate.publish_every <= degree + 1 and (degree > 0 or not needs_some)


def _checked_train(gate: Gate) -> None:
    oldest = gate.start_train()
    assert oldest in gate.group() and all(oldest.version <= ticket.version for ticket in gate.group()), "not the oldest"
    if gate.policy != "allow":
        for ticket in gate.group():
            assert gate.version <= ticket.deadline, f"staleness {gate.version - ticket.version} past the bound"


def _set_degree(gate: Gate, degree: int) -> None:
    gate.set_degree(degree)


def _resume(gate: Gate, keep_waiting: bool) -> None:
    gate.load_state_dict(gate.state_dict(), keep_waiting=keep_waiting)


def _finish_and_publish(gate: Gate) -> None:
    version, trained, used = gate.version, gate.trained, gate.per_train if gate.running == "train" else 0
    gate.finish_train()
    assert gate.version == version + 1 and gate.trained == trained + used, "a train that is not one of its collects"
    if gate.publish_due:
        gate.publish()


def _copy(gate: Gate) -> Gate:
    twin = gate.__class__.__new__(gate.__class__)
    twin.__dict__.update(gate.__dict__)
    twin.waiting = gate.waiting.copy()
    twin.tickets = gate.tickets.copy()
    twin.priorities = gate.priorities.copy()
    return twin


def _key(node: _Node) -> tuple[Any, ...]:
    """What the future depends on; versions count from the current one."""
    gate, now = node.gate, node.gate.version
    start = _places(gate) if gate.oversampling else {}
    return (
        gate.degree,
        gate.running,
        now - gate.published,
        gate.replays_in_row,
        gate.trained > 0,
        gate.admitted,
        gate.capacity,
        gate.active_collectors,
        gate.owed and (gate.capacity is not None or gate.oversampling > 0),
        tuple(
            (now - t.version, t.deadline - now, gate.priorities.get(t.id, 0.0), start.get(t.id)) for t in gate.waiting
        ),
        tuple(sorted((now - t.version, t.deadline - now, start.get(t.id, 0)) for t in gate.tickets.values())),
        node.left.interruptions,
    )


def _places(gate: Gate) -> dict[int, int]:
    """Of what waits and is open, which started first, second and so on."""
    return {number: place for place, number in enumerate(sorted([*gate.tickets, *(t.id for t in gate.waiting)]))}


def _failure(node: _Node, what: str) -> WalkFailure:
    return WalkFailure(f"{what}; after: {', '.join(node.steps_so_far())}; state: {node.gate.explain('now')}")
