"""The exhaustive walk of the gate, and broken gates that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from lzero_async.core.gate import Gate, Ticket
from lzero_async.testing import Budget, WalkFailure, walk

POLICIES = ("wait", "drop", "allow")


def settings(degrees: range, collectors: tuple[int, ...]) -> list[tuple[int, int, str, int, int]]:
    return [
        (degree, workers, policy, publish_every, ahead)
        for degree in degrees
        for workers in collectors
        for policy in POLICIES
        for publish_every in range(1, degree + 2)
        for ahead in ((0, 1) if degree else (0,))
    ]


def visit(case: tuple[int, int, str, int, int], budget: Budget) -> int:
    degree, workers, policy, publish_every, ahead = case
    result = walk(
        lambda: Gate(degree, num_collectors=workers, policy=policy, publish_every=publish_every, max_train_ahead=ahead),
        budget,
    )
    assert result.finished > 0
    return result.states


@pytest.mark.parametrize(("degree", "batches"), [(0, 7), (1, 5), (2, 4), pytest.param(3, 4, marks=pytest.mark.soak)])
def test_walk_with_an_interruption_anywhere(degree: int, batches: int) -> None:
    """1 and 3 collectors, all policies and publish intervals, replays; a failure, a degree change, a save and load, or an
    evaluation at every step."""
    states = sum(visit(case, Budget(batches, interruptions=1)) for case in settings(range(degree, degree + 1), (1, 3)))
    assert states > 10_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("degree", range(5))
def test_walk_seven_batches_with_an_interruption_anywhere(degree: int, policy: str) -> None:
    """Degrees 0 to 4, 1 to 3 collectors, and the rest as above."""
    states = sum(
        visit(case, Budget(batches=7, interruptions=1))
        for case in settings(range(degree, degree + 1), (1, 2, 3))
        if case[2] == policy
    )
    assert states > 1000


def visit_trains(per_train: int, extra: int, degrees: range, collectors: tuple[int, ...], batches: int) -> int:
    """Trains of several collects, and over-sampling; publications every train and every second one."""
    states = 0
    for degree, workers, policy, publish_every, ahead in settings(degrees, collectors):
        if publish_every > 2 or (extra and (policy != "drop" or not degree)):
            continue
        result = walk(
            lambda: Gate(
                degree, num_collectors=workers, policy=policy, publish_every=publish_every, max_train_ahead=ahead,  # noqa: B023
                collects_per_train=per_train, oversampling=extra,
            ),
            Budget(batches, interruptions=1),
            degrees=(0, 1, 2, 3),
        )  # fmt: skip
        assert result.finished > 0
        states += result.states
    return states


@pytest.mark.parametrize(
    ("per_train", "extra", "degrees", "batches"),
    [(2, 0, range(2), 5), (3, 0, range(2), 6), (1, 1, range(1, 2), 4), (1, 2, range(1, 2), 4), (2, 1, range(1, 2), 5)],
)
def test_walk_of_trains_that_take_several_collects(per_train: int, extra: int, degrees: range, batches: int) -> None:
    assert visit_trains(per_train, extra, degrees, (1, 3), batches) > 4_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("extra", range(3))
@pytest.mark.parametrize("per_train", [1, 2, 3])
def test_walk_of_longer_trains_that_take_several_collects(per_train: int, extra: int) -> None:
    degrees, batches = (range(1, 3), 6) if extra else (range(4), 7)
    assert visit_trains(per_train, extra, degrees, (1, 2, 3), batches) > 10_000


QUEUES = [("drop", "fifo"), ("allow", "fifo"), ("drop", "priority"), ("allow", "priority")]
queues = pytest.mark.parametrize(("policy", "order"), QUEUES)


def visit_queue(policy: str, order: str, batches: int, degree: int, workers: int, capacity: int, ahead: int) -> None:
    result = walk(
        lambda: Gate(
            degree, num_collectors=workers, policy=policy, publish_every=1 + ahead, max_train_ahead=ahead, capacity=capacity,
            order=order,
        ),
        Budget(batches, interruptions=1),
    )  # fmt: skip
    assert result.finished > 0


@pytest.mark.parametrize(("policy", "order"), QUEUES[:3])
def test_walk_of_a_queue_that_drops(policy: str, order: str) -> None:
    """A change of the capacity and of the number of active collectors are interruptions, too."""
    for case in [(1, 1, 1, 0), (1, 2, 2, 1), (2, 1, 2, 1), (2, 2, 1, 0)]:
        visit_queue(policy, order, 4, *case)


@pytest.mark.soak
@queues
def test_walk_of_a_queue_that_drops_some_of_five_batches(policy: str, order: str) -> None:
    for case in product((1, 2), (1, 2), (1, 2), (0, 1)):
        visit_queue(policy, order, 5, *case)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("degree", range(4))
def test_walk_with_two_interruptions_anywhere(degree: int) -> None:
    for case in settings(range(degree, degree + 1), (1, 2)):
        visit(case, Budget(batches=6, interruptions=2))


class LagOneTooHigh(Gate):
    def commit_rule(self, ticket_id: int) -> str | None:
        rule = super().commit_rule(ticket_id)
        return None if rule == "lag" and len(self.waiting) <= self.degree else rule


class CommitInAnyOrder(Gate):
    def commit_rule(self, ticket_id: int) -> str | None:
        rule = super().commit_rule(ticket_id)
        return None if rule == "an older collect must come first" else rule


class ForgetsTheReplay(Gate):
    def _next_place(self) -> int:
        return self.version + len(self.waiting)


class AdmitsTooLate(Gate):
    def collect_rule(self) -> str | None:
        rule = super().collect_rule()
        return None if rule == "staleness" else rule


class NeverAdmitsASecond(Gate):
    def collect_rule(self) -> str | None:
        return "never" if self.admitted else super().collect_rule()


class ReplaysAtAnyCost(Gate):
    def replay_rule(self) -> str | None:
        rule = super().replay_rule()
        return None if rule == "an open collect would become too old" else rule


class LosesAFailedBatch(Gate):
    def fail_train(self) -> None:
        if self.running == "train":
            self.waiting.popleft()
        super().fail_train()


class CountsAResumedTrainTwice(Gate):
    def load_state_dict(self, state: dict, *, keep_waiting: bool = True) -> None:
        super().load_state_dict(state, keep_waiting=keep_waiting)
        self.trained += bool(self.waiting)


class ForgetsTheRejected(Gate):
    def reject(self, ticket_id: int) -> None:
        super().reject(ticket_id)
        self.rejected -= 1


class KeepsTicketsOnResume(Gate):
    def load_state_dict(self, state: dict, *, keep_waiting: bool = True) -> None:
        super().load_state_dict(state, keep_waiting=keep_waiting)
        self.tickets = {t[0]: Ticket(*t) for t in state["tickets"]}


class LowersOldDeadlines(Gate):
    def set_degree(self, degree: int) -> None:
        super().set_degree(degree)
        self.tickets = {i: Ticket(i, t.version, t.version + degree) for i, t in self.tickets.items()}


class NeverMakesRoom(Gate):
    def _make_room(self) -> list[Ticket]:
        return []


class DropsWhatIsTrained(Gate):
    def _taken(self) -> int:
        return 0


class DropsWithoutCounting(Gate):
    def _drop(self, tickets: list[Ticket]) -> list[Ticket]:
        dropped = super()._drop(tickets)
        self.dropped -= len(dropped)
        return dropped


class ForgetsThePriority(Gate):
    def _line_up(self, ticket_id: int, priority: float) -> list[Ticket]:
        dropped = super()._line_up(ticket_id, 0.0)
        if priority and not dropped:
            self.priorities[ticket_id] = priority
        return dropped


class AdmitsForALaterTrain(Gate):
    def collect_rule(self) -> str | None:
        rule = super().collect_rule()
        place = self._next_place() + len(self.tickets) - self.per_train
        late = place >= (self.published + 1 + self.degree) * self.per_train
        return None if rule == "staleness" and not late else rule


class TrainsTooFew(Gate):
    @property
    def ready(self) -> bool:
        return bool(self.waiting)

    def train_rule(self) -> str | None:
        rule = super().train_rule()
        return None if rule == "fewer batches wait than a train takes" else rule


class CountsATrainAsOneCollect(Gate):
    def finish_train(self) -> list[Ticket]:
        self.trained -= self.per_train - 1 if self.running == "train" else 0
        return super().finish_train()


class ReplaysOverARemainder(Gate):
    def replay_rule(self) -> str | None:
        rule = super().replay_rule()
        return None if rule == "a waiting batch would become too old" else rule


class OversamplesOneMore(Gate):
    def collect_rule(self) -> str | None:
        self.room += 1
        rule = super().collect_rule()
        self.room -= 1
        return rule


class LinesUpAsTheyCome(Gate):
    def _place_by_start(self, ticket_id: int) -> int:
        return len(self.waiting)


class BreaksInOnATrain(Gate):
    def _place_by_start(self, ticket_id: int) -> int:
        return sum(ticket.id < ticket_id for ticket in self.waiting)


class TrainsTheLate(Gate):
    def _drop_expired(self) -> list[Ticket]:
        return []


@pytest.mark.parametrize(
    ("broken", "degree", "settings"),
    [
        (AdmitsForALaterTrain, 1, {"publish_every": 2}),
        (CommitInAnyOrder, 2, {}),
        (TrainsTooFew, 1, {}),
        (CountsATrainAsOneCollect, 1, {}),
        (ReplaysOverARemainder, 1, {"max_train_ahead": 2}),
        (OversamplesOneMore, 1, {"policy": "drop", "oversampling": 1}),
        (LinesUpAsTheyCome, 1, {"policy": "drop", "oversampling": 1}),
        (BreaksInOnATrain, 2, {"policy": "drop", "oversampling": 1}),
        (TrainsTheLate, 1, {"policy": "drop", "oversampling": 1}),
    ],
)
def test_a_broken_rule_for_several_collects_fails_the_walk(
    broken: Callable[..., Gate], degree: int, settings: dict[str, Any]
) -> None:
    with pytest.raises(WalkFailure, match="after: "):
        walk(lambda: broken(degree, num_collectors=3, collects_per_train=2, **settings), Budget(batches=7))


@pytest.mark.parametrize("broken", [NeverMakesRoom, DropsWhatIsTrained, DropsWithoutCounting, ForgetsThePriority])
def test_a_broken_queue_fails_the_walk(broken: Callable[..., Gate]) -> None:
    with pytest.raises(WalkFailure, match="after: "):
        walk(lambda: broken(1, num_collectors=2, policy="allow", capacity=1, order="priority"), Budget(batches=5))


@pytest.mark.parametrize(
    ("broken", "degree", "workers", "policy", "ahead", "publish_every"),
    [
        (LagOneTooHigh, 2, 3, "allow", 0, 1),
        (CommitInAnyOrder, 2, 2, "wait", 0, 1),
        (ForgetsTheReplay, 1, 1, "wait", 1, 2),
        (AdmitsTooLate, 3, 2, "wait", 0, 2),
        (NeverAdmitsASecond, 1, 1, "wait", 0, 1),
        (ReplaysAtAnyCost, 1, 1, "wait", 1, 1),
        (LosesAFailedBatch, 1, 1, "wait", 0, 1),
        (CountsAResumedTrainTwice, 1, 1, "wait", 0, 1),
        (ForgetsTheRejected, 1, 1, "wait", 0, 1),
        (KeepsTicketsOnResume, 1, 1, "wait", 0, 1),
        (LowersOldDeadlines, 3, 2, "wait", 0, 1),
    ],
)
def test_a_broken_rule_fails_the_walk(
    broken: Callable[..., Gate], degree: int, workers: int, policy: str, ahead: int, publish_every: int
) -> None:
    with pytest.raises(WalkFailure, match="after: "):
        walk(
            lambda: broken(
                degree, num_collectors=workers, policy=policy, max_train_ahead=ahead, publish_every=publish_every
            ),
            Budget(batches=6),
        )
