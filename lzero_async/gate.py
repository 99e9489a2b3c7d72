"""The gate: who may go next. A pure state machine without threads, clocks or torch.

Words (all counted in batches): `version` is the number of finished trains and replays, `published` the version of the
weights that a new collect loads, `waiting` the committed batches that are neither trained nor dropped (the one being
trained included), a ticket a collect that was admitted and has not been committed. A ticket's `deadline` is the version
it loaded plus the degree at its admission; the batch keeps it.

With a `capacity` the line is a queue that never holds a collector back: when it is full, a batch that waits makes way for
the one that comes, and is counted as dropped.

Every rule is a method `*_rule` that returns None when the step is allowed and the name of the blocking rule when it is
not; `explain` puts the numbers to that name. Every step checks its rule and raises `GateError` when it is broken, so a
caller that steps out of turn cannot corrupt the accounting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from lzero_async.config import one_of, whole_number
from lzero_async.errors import ConfigError, LzeroAsyncError

Policy = Literal["wait", "drop", "allow"]
POLICIES: Final = ("wait", "drop", "allow")
ORDERS: Final = ("fifo", "priority")
Running = Literal["train", "replay", "eval"]


class GateError(LzeroAsyncError):
    """A step was asked for that the rules forbid at this moment."""


class Ticket(NamedTuple):
    """One admitted collect, and later its batch: the version it loaded and the last version its train may start at."""

    id: int
    version: int
    deadline: int


class Gate:
    """The staleness rules of `off_policy_degree` and the exact account of every batch."""

    def __init__(
        self,
        degree: int,
        *,
        num_collectors: int = 1,
        policy: Policy = "wait",
        publish_every: int = 1,
        max_train_ahead: int = 0,
        capacity: int | None = None,
        order: str = "fifo",
    ) -> None:
        one_of("staleness_policy", policy, POLICIES)
        self.num_collectors = whole_number("num_collectors", num_collectors, 1)
        self.policy = policy
        self.publish_every = whole_number("publish_every", publish_every, 1)
        self.max_train_ahead = whole_number("max_train_ahead", max_train_ahead, 0)
        self.order = one_of("queue_order", order, ORDERS)
        self.capacity = self._checked_capacity(capacity)
        self.active_collectors = self.num_collectors
        self.degree = self._checked_degree(degree)
        self.version = 0
        self.published = 0
        self.running: Running | None = None
        self.waiting: deque[Ticket] = deque()
        self.tickets: dict[int, Ticket] = {}
        self.priorities: dict[int, float] = {}  # of the waiting batches, where they differ from 0
        self.owed = False  # the train of the first batch failed: it keeps its turn, whatever comes in behind it
        self.replays_in_row = 0
        self.admitted = 0
        self.committed = 0
        self.trained = 0
        self.replayed = 0
        self.failed = 0
        self.dropped = 0
        self.abandoned = 0

    # -- the rules ---------------------------------------------------------------------------------------------------

    def collect_rule(self) -> str | None:
        """The rule that forbids a new collect now, or None."""
        tickets, waiting = len(self.tickets), len(self.waiting)
        if self.degree == 0:
            if tickets:
                return "a collect is open"
            if self.running is not None:
                return "the learner is busy"
            if waiting:
                return "a batch waits for its train"
            return None if self.published == self.version else "the newest weights are not published"
        if tickets >= self.active_collectors:
            return "every collector is busy"
        if self.capacity is not None:
            return None
        if waiting + tickets >= self.degree + (self.running == "train"):
            return "lag"
        if self._next_start() + tickets > self.published + self.degree:
            return "staleness"
        return None

    def commit_rule(self, ticket_id: int) -> str | None:
        """The rule that forbids committing this finished collect now, or None."""
        if self.capacity is not None:
            return None
        if len(self.waiting) >= max(1, self.degree):
            return "lag"
        if self.policy == "wait" and len(self.tickets) > 1:
            start = self._next_start() + 1
            others = sorted(t.deadline for t in self.tickets.values() if t.id != ticket_id)
            if any(start + j > deadline for j, deadline in enumerate(others)):
                return "an older collect must come first"
        return None

    def train_rule(self) -> str | None:
        """The rule that forbids training the oldest waiting batch now, or None."""
        if self.running is not None:
            return "the learner is busy"
        return None if self.waiting else "no batch waits"

    def replay_rule(self) -> str | None:
        """The rule that forbids an extra train on old data now, or None."""
        if self.running is not None:
            return "the learner is busy"
        if self.waiting:
            return "a batch waits for its train"
        if self.degree == 0 or self.replays_in_row >= self.max_train_ahead:
            return "max_train_ahead"
        if self.trained == 0:
            return "no batch was trained yet"
        if self.tickets and not (self.capacity is not None and self.policy == "allow"):
            deadlines = sorted(t.deadline for t in self.tickets.values())
            if any(self.version + 1 + j > deadline for j, deadline in enumerate(deadlines)):
                return "an open collect would become too old"
        return None

    def eval_rule(self) -> str | None:
        """The rule that forbids an evaluation in the learner's turn now, or None."""
        if self.running is not None:
            return "the learner is busy"
        return "a collect is open" if self.degree == 0 and self.tickets else None

    def _next_start(self) -> int:
        """The version at which a batch committed now would start its train."""
        return self.version + (self.running == "replay") + len(self.waiting)

    def explain(self, rule: str) -> str:
        """The blocking rule with the numbers behind it."""
        return (
            f"{rule} (off_policy_degree {self.degree}, waiting {len(self.waiting)}, open collects {len(self.tickets)} "
            f"of {self.num_collectors}, version {self.version}, published {self.published}, "
            f"learner {self.running or 'idle'}, policy {self.policy})"
        )

    # -- the steps ---------------------------------------------------------------------------------------------------

    def start_collect(self) -> Ticket:
        """Admit a collect on the published weights."""
        self._require(self.collect_rule(), "start a collect")
        return self._admit()

    def try_collect(self) -> Ticket | None:
        """Admit a collect if the rules allow it now."""
        return self._admit() if self.collect_rule() is None else None

    def _admit(self) -> Ticket:
        ticket = Ticket(self.admitted, self.published, self.published + self.degree)
        self.tickets[ticket.id] = ticket
        self.admitted += 1
        return ticket

    def commit(self, ticket_id: int, priority: float = 0.0) -> list[Ticket]:
        """Turn a finished collect into a waiting batch; return the batches that this dropped."""
        self._require(self.commit_rule(ticket_id), "commit a collect")
        return self._line_up(ticket_id, priority)

    def try_commit(self, ticket_id: int, priority: float = 0.0) -> list[Ticket] | None:
        """Commit if the rules allow it now; None if they do not."""
        return self._line_up(ticket_id, priority) if self.commit_rule(ticket_id) is None else None

    def _line_up(self, ticket_id: int, priority: float) -> list[Ticket]:
        ticket = self._close(ticket_id)
        place = len(self.waiting)
        if self.order == "priority":
            while place > self._taken() and self._priority(self.waiting[place - 1]) < priority:
                place -= 1
            if priority:
                self.priorities[ticket_id] = priority
        self.waiting.insert(place, ticket)
        self.committed += 1
        dropped = self._drop_expired() if self.policy == "drop" else []
        return dropped + self._make_room()

    def fail(self, ticket_id: int) -> None:
        """Give back the ticket of a collect that raised."""
        self._close(ticket_id)
        self.failed += 1

    def abandon(self, ticket_id: int) -> None:
        """Give back the ticket of a collect whose batch will never be committed."""
        self._close(ticket_id)
        self.abandoned += 1

    def start_train(self) -> Ticket:
        """Start the train of the oldest waiting batch; it stays waiting until it is finished."""
        self._require(self.train_rule(), "start a train")
        self.running = "train"
        self.owed = False
        self.replays_in_row = 0
        return self.waiting[0]

    def start_replay(self) -> None:
        """Start an extra train on old data."""
        self._require(self.replay_rule(), "start a replay")
        self.running = "replay"
        self.replays_in_row += 1

    def finish_train(self) -> list[Ticket]:
        """Count the running train or replay; return the batches that its new version dropped."""
        if self.running == "train":
            self._left(self.waiting.popleft())
            self.trained += 1
        elif self.running == "replay":
            self.replayed += 1
        else:
            raise GateError(f"Nothing trains, so nothing can finish: the learner is {self.running or 'idle'}.")
        self.running = None
        self.version += 1
        return self._drop_expired() if self.policy == "drop" else []

    def fail_train(self) -> None:
        """Take back the running train or replay: nothing is counted and its batch stays first in line."""
        if self.running not in ("train", "replay"):
            raise GateError(f"Nothing trains, so nothing can fail: the learner is {self.running or 'idle'}.")
        if self.running == "replay":
            self.replays_in_row -= 1
        self.owed = self.running == "train"
        self.running = None

    def start_eval(self) -> None:
        """Take the learner's turn for an evaluation."""
        self._require(self.eval_rule(), "start an evaluation")
        self.running = "eval"

    def finish_eval(self) -> None:
        """Give the learner's turn back."""
        if self.running != "eval":
            raise GateError(f"No evaluation has the learner's turn: the learner is {self.running or 'idle'}.")
        self.running = None

    @property
    def publish_due(self) -> bool:
        """Whether the weights of `version` are owed to the collectors."""
        return self.version - self.published >= self.publish_every

    def publish(self) -> None:
        """Note that the weights of `version` can be loaded from now on."""
        self.published = self.version

    def set_degree(self, degree: int) -> None:
        """Change the bound for new admissions; open tickets and waiting batches keep their deadlines."""
        self.degree = self._checked_degree(degree)

    def set_capacity(self, capacity: int) -> list[Ticket]:
        """Change the length of the queue; return the batches that a shorter one has no room for."""
        if self.capacity is None:
            raise ConfigError("This gate has no queue whose capacity could change; give it a capacity when it is made.")
        self.capacity = self._checked_capacity(capacity)
        return self._make_room()

    def set_active_collectors(self, number: int) -> None:
        """Admit only so many collects at once, at most `num_collectors`; those that are open go on."""
        if whole_number("active_collectors", number, 1) > self.num_collectors:
            raise ConfigError(f"active_collectors is {number}, but there are only {self.num_collectors} collectors.")
        self.active_collectors = number

    # -- accounting --------------------------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """What is wrong with this state; an empty list, always."""
        found = []
        ended = self.trained + self.failed + self.dropped + self.abandoned
        if self.admitted != ended + len(self.waiting) + len(self.tickets):
            found.append(
                f"{self.admitted} admitted, but {ended} ended, {len(self.waiting)} waiting and {len(self.tickets)} open"
            )
        if self.version != self.trained + self.replayed or self.published > self.version:
            found.append(
                f"version {self.version}: {self.trained} trained, {self.replayed} replayed, {self.published} published"
            )
        if self.running == "train" and not self.waiting:
            found.append("a train runs without a batch")
        if self.policy == "wait":
            line = [t.deadline for t in self.waiting] + sorted(t.deadline for t in self.tickets.values())
            first = self.version + (self.running == "replay")
            found += [
                f"batch {j} in line starts at {first + j}, past its deadline {deadline}"
                for j, deadline in enumerate(line)
                if first + j > deadline
            ]
        if self.capacity is not None:
            found += self._queue_violations(self.capacity)
        if self.policy == "drop" and self.running == "train" and self.waiting[0].deadline < self.version:
            found.append(f"a batch past its deadline {self.waiting[0].deadline} trains at {self.version}")
        return found

    def _queue_violations(self, capacity: int) -> list[str]:
        found = []
        line = list(self.waiting)[self._taken() :]
        if len(line) > capacity:
            found.append(f"{len(line)} batches in a queue of {capacity}")
        ranks = [self._priority(ticket) for ticket in line]
        if any(first < second for first, second in pairwise(ranks)):
            found.append(f"the queue is not in order of its priorities: {ranks}")
        if set(self.priorities) - {ticket.id for ticket in self.waiting}:
            found.append("priorities are kept of batches that do not wait")
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as plain numbers and lists."""
        return {
            "version": self.version,
            "waiting": [list(t) for t in self.waiting],
            "tickets": [list(t) for t in self.tickets.values()],
            "priorities": [self._priority(t) for t in self.waiting],
            **{name: getattr(self, name) for name in _COUNTERS},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, keep_waiting: bool = True) -> None:
        """Resume: open tickets are abandoned, waiting batches come back, and a train that ran is owed again.

        The settings (degree, policy and so on) stay those of this gate. Batches that its rules can no longer train in
        time are abandoned; with ``keep_waiting=False`` (their data was not saved) all are.
        """
        try:
            waiting = [Ticket(*_ints(t, 3)) for t in state["waiting"]]
            tickets = [Ticket(*_ints(t, 3)) for t in state["tickets"]]
            priorities = [float(priority) for priority in state.get("priorities", ())] or [0.0] * len(waiting)
            if len(priorities) != len(waiting):
                raise TypeError(f"{len(priorities)} priorities of {len(waiting)} batches")
            version, *counters = _ints([state["version"], *(state[name] for name in _COUNTERS)], 1 + len(_COUNTERS))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"The saved state of the gate cannot be read ({error!r}); use another checkpoint."
            ) from error
        kept: deque[Ticket] = deque()
        for ticket in waiting if keep_waiting else ():
            if self.policy != "wait" or version + len(kept) <= ticket.deadline:
                kept.append(ticket)
        fresh = Gate(
            self.degree,
            num_collectors=self.num_collectors,
            policy=self.policy,
            publish_every=self.publish_every,
            max_train_ahead=self.max_train_ahead,
            capacity=self.capacity,
            order=self.order,
        )
        fresh.active_collectors = self.active_collectors
        for name, value in zip(_COUNTERS, counters, strict=True):
            setattr(fresh, name, value)
        fresh.version = fresh.published = version
        fresh.waiting = kept
        fresh.abandoned += len(tickets) + len(waiting) - len(kept)
        if fresh.order == "priority":
            ranks = {t.id: priority for t, priority in zip(waiting, priorities, strict=True)}
            fresh.waiting = deque(
                sorted(kept, key=lambda t: -ranks[t.id])
            )  # one whose train was cut off has no turn any more
            fresh.priorities = {t.id: ranks[t.id] for t in kept if ranks[t.id]}
        if fresh.policy == "drop":
            fresh._drop_expired()
        fresh._make_room()
        if wrong := fresh.violations():
            raise ConfigError(f"The saved state is not consistent ({wrong[0]}); use another checkpoint.")
        self.__dict__.update(fresh.__dict__)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _close(self, ticket_id: int) -> Ticket:
        try:
            return self.tickets.pop(ticket_id)
        except KeyError:
            raise GateError(f"Ticket {ticket_id} is not open: it was committed or given back before.") from None

    def _drop_expired(self) -> list[Ticket]:
        if self.running not in (None, "eval"):
            return []
        return self._drop([ticket for ticket in self.waiting if ticket.deadline < self.version])

    def _make_room(self) -> list[Ticket]:
        """Drop what the queue has no room for: the lowest priority first, and of equals the oldest."""
        dropped: list[Ticket] = []
        while self.capacity is not None and len(self.waiting) - self._taken() > self.capacity:
            line = list(self.waiting)[self._taken() :]
            dropped += self._drop([min(line, key=self._priority)])  # of equals the first, which has waited longest
        return dropped

    def _drop(self, tickets: list[Ticket]) -> list[Ticket]:
        for ticket in tickets:
            self.owed = self.owed and ticket is not self.waiting[0]
            self.waiting.remove(ticket)
            self._left(ticket)
        self.dropped += len(tickets)
        return tickets

    def _left(self, ticket: Ticket) -> None:
        self.priorities.pop(ticket.id, None)

    def _priority(self, ticket: Ticket) -> float:
        return self.priorities.get(ticket.id, 0.0)

    def _taken(self) -> int:
        """1 while the first of the waiting batches is being trained, or is owed after a train that failed."""
        return int(self.running == "train" or self.owed)

    def _checked_capacity(self, capacity: int | None) -> int | None:
        if capacity is None:
            if self.order != "fifo":
                raise ConfigError("queue_order 'priority' needs a queue; set queue_capacity, or queue_order to 'fifo'.")
            return None
        if self.policy == "wait":
            raise ConfigError(
                f"queue_capacity is {capacity}, and a full queue drops batches, but staleness_policy 'wait' loses none. "
                "Choose 'allow' or 'drop', or no queue_capacity."
            )
        return whole_number("queue_capacity", capacity, 1)

    def _require(self, rule: str | None, step: str) -> None:
        if rule is not None:
            raise GateError(f"Cannot {step}: {self.explain(rule)}.")

    def _checked_degree(self, degree: int) -> int:
        degree = whole_number("off_policy_degree", degree, 0)
        if self.publish_every > degree + 1:
            raise ConfigError(
                f"publish_every is {self.publish_every}, but off_policy_degree {degree} allows at most {degree + 1}: "
                "collectors would wait for ever for newer weights. Lower publish_every or raise the degree."
            )
        if degree == 0 and self.capacity is not None:
            raise ConfigError(
                f"queue_capacity is {self.capacity}, but at off_policy_degree 0 nothing is queued: every train follows its "
                "own collect. Set the degree to at least 1, or no queue_capacity."
            )
        if degree == 0 and self.max_train_ahead:
            raise ConfigError(
                f"max_train_ahead is {self.max_train_ahead}, but at off_policy_degree 0 every train follows its own "
                "collect. Set max_train_ahead to 0 or the degree to at least 1."
            )
        return degree


_COUNTERS: Final = ("admitted", "committed", "trained", "replayed", "failed", "dropped", "abandoned", "replays_in_row")


def _ints(numbers: Any, count: int) -> list[int]:
    values: list[Any] = list(numbers)
    if len(values) != count or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in values):
        raise ConfigError(
            f"The saved state holds {values!r} where {count} whole numbers belong; use another checkpoint."
        )
    return values
