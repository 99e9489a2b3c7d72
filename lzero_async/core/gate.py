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

import math
import reprlib
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from lzero_async.core.ordering import Deadlines, Line
from lzero_async.errors import ConfigError, LzeroAsyncError
from lzero_async.validation import one_of, whole_number

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
        self.waiting: deque[Ticket] | Line[Ticket] = Line() if self._out_of_turn() else deque()
        self.tickets: dict[int, Ticket] = {}
        self._index: Deadlines | None = None  # of the open collects, from the first question on
        self.priorities: dict[int, float] = {}  # of the waiting batches, where they differ from 0
        self.owed = False  # the train of the first batch failed: it keeps its turn, whatever comes in behind it
        self.replays_in_row = 0
        self.admitted = 0
        self.committed = 0
        self.trained = 0
        self.replayed = 0
        self.failed = 0
        self.rejected = 0
        self.dropped = 0
        self.abandoned = 0
        self._lined_up = -1  # the ticket that was counted last as committed
        self._ended = -1  # the ticket that was counted last as trained, failed, rejected or abandoned

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
            # As things are, every open collect comes in time. One turn later that holds for those behind this one, which has
            # left their line; so only a deadline before its own can be missed.
            pressed = self._deadlines().pressed(self._next_start() + 1)
            if pressed is not None and (ticket := self.tickets.get(ticket_id)) and pressed < ticket.deadline:
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
        bound = self.tickets and not (self.capacity is not None and self.policy == "allow")
        if bound and self._deadlines().pressed(self.version + 1) is not None:
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
        self.admitted, self.tickets[ticket.id] = self.admitted + 1, ticket
        if (index := self._index) is not None and index.of is self.tickets:
            index.change(ticket.deadline, 1)
        return ticket

    def commit(self, ticket_id: int, priority: float = 0.0) -> list[Ticket]:
        """Turn a finished collect into a waiting batch; return the batches that this dropped."""
        self._require(self.commit_rule(ticket_id), "commit a collect")
        return self._line_up(ticket_id, priority)

    def try_commit(self, ticket_id: int, priority: float = 0.0) -> list[Ticket] | None:
        """Commit if the rules allow it now; None if they do not."""
        return self._line_up(ticket_id, priority) if self.commit_rule(ticket_id) is None else None

    def _line_up(self, ticket_id: int, priority: float) -> list[Ticket]:
        if ticket_id not in self.tickets:
            self._require_open(ticket_id)
        ticket, waiting = self.tickets[ticket_id], self.waiting
        if isinstance(waiting, deque):
            waiting.append(ticket)
        else:
            if self.order != "priority":
                priority = 0.0
            elif priority:
                self.priorities[ticket_id] = priority
            waiting.put(ticket, priority, first_stays=bool(self._taken()))
        self.committed, self._lined_up = self.committed + 1, ticket_id
        del self.tickets[ticket_id]
        if (index := self._index) is not None and index.of is self.tickets:
            index.change(ticket.deadline, -1)
        if isinstance(waiting, deque):
            return [] if self.capacity is None else self._make_room()
        dropped = self._drop_expired() if self.policy == "drop" else []
        return dropped + self._make_room()

    def fail(self, ticket_id: int) -> None:
        """Give back the ticket of a collect that raised."""
        self._require_open(ticket_id)
        self.failed, self._ended = self.failed + 1, ticket_id
        self._close(ticket_id)

    def reject(self, ticket_id: int) -> None:
        """Give back the ticket of a collect that had nothing to train on."""
        self._require_open(ticket_id)
        self.rejected, self._ended = self.rejected + 1, ticket_id
        self._close(ticket_id)

    def abandon(self, ticket_id: int) -> None:
        """Give back the ticket of a collect whose batch will never be committed."""
        self._require_open(ticket_id)
        self.abandoned, self._ended = self.abandoned + 1, ticket_id
        self._close(ticket_id)

    def start_train(self) -> Ticket:
        """Start the train of the oldest waiting batch; it stays waiting until it is finished."""
        self._require(self.train_rule(), "start a train")
        self.running, self.owed, self.replays_in_row = "train", False, 0
        return self.waiting[0]

    def start_replay(self) -> None:
        """Start an extra train on old data."""
        self._require(self.replay_rule(), "start a replay")
        self.running, self.replays_in_row = "replay", self.replays_in_row + 1

    def finish_train(self) -> list[Ticket]:
        """Count the running train or replay; return the batches that its new version dropped."""
        version = self.version + 1
        if self.running == "train":
            done = self.waiting[0]
            self.trained, self.version, self.running, self._ended = self.trained + 1, version, None, done.id
            self.waiting.popleft()
            self._left(done)
        elif self.running == "replay":
            self.replayed, self.version, self.running = self.replayed + 1, version, None
        else:
            raise GateError(f"Nothing trains, so nothing can finish: the learner is {self.running or 'idle'}.")
        return self._drop_expired() if self.policy == "drop" else []

    def fail_train(self) -> list[Ticket]:
        """Take back the running train or replay: nothing is counted and its batch stays first in line. Return the batches that
        came in too late while it ran, and are dropped."""
        if self.running not in ("train", "replay"):
            raise GateError(f"Nothing trains, so nothing can fail: the learner is {self.running or 'idle'}.")
        replays = self.replays_in_row - (self.running == "replay")
        self.owed, self.replays_in_row, self.running = self.running == "train", replays, None
        return self._drop_expired() if self.policy == "drop" else []

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
        ended = self.trained + self.failed + self.dropped + self.rejected + self.abandoned
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
            "replays_in_row": self.replays_in_row - (self.running == "replay"),  # one that runs is not resumed
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
            _check_saved(version, dict(zip(_COUNTERS, counters, strict=True)), waiting, tickets, priorities)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"The saved state of the gate cannot be read ({error!r}); use another checkpoint."
            ) from error
        kept: list[Ticket] = []
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
        fresh.abandoned += len(tickets) + len(waiting) - len(kept)
        ranks = {t.id: priority for t, priority in zip(waiting, priorities, strict=True)}
        for ticket in kept:  # by priority, if that counts: one whose train was cut off has no turn any more
            if isinstance(fresh.waiting, deque):
                fresh.waiting.append(ticket)
            elif fresh.order != "priority":
                fresh.waiting.put(ticket)
            else:
                fresh.waiting.put(ticket, ranks[ticket.id])
                if ranks[ticket.id]:
                    fresh.priorities[ticket.id] = ranks[ticket.id]
        if fresh.policy == "drop":
            fresh._drop_expired()
        fresh._make_room()
        if wrong := fresh.violations():
            raise ConfigError(f"The saved state is not consistent ({wrong[0]}); use another checkpoint.")
        self.__dict__.update(fresh.__dict__)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Complete the step that an interrupt between any two lines cut off.

        What belongs together is changed in one line: either all of it or nothing. A ticket that is counted leaves afterwards,
        so one that is still there is taken out; one that is in line is not open any more; only batches that are dropped leave
        before they are counted.
        """
        self._index = None
        if isinstance(self.waiting, Line):
            self.waiting.mend()
        for ticket in [ticket for ticket in self.waiting if ticket.id == self._ended]:
            self.waiting.remove(ticket)
        self.tickets.pop(self._ended, None)
        for ticket in [ticket for ticket in self.waiting if ticket.id in self.tickets]:
            self.committed += ticket.id != self._lined_up
            self._lined_up = ticket.id
            del self.tickets[ticket.id]
        waiting = {ticket.id for ticket in self.waiting}
        self.priorities = {number: rank for number, rank in self.priorities.items() if number in waiting}
        ended = self.trained + self.failed + self.dropped + self.rejected + self.abandoned
        self.dropped += self.admitted - ended - len(self.waiting) - len(self.tickets)  # taken out, and not counted yet
        if self.policy == "drop":
            self._drop_expired()
        self._make_room()

    def _require_open(self, ticket_id: int) -> None:
        if ticket_id not in self.tickets:
            raise GateError(f"Ticket {ticket_id} is not open: it was committed or given back before.")

    def _close(self, ticket_id: int) -> Ticket:
        try:
            ticket = self.tickets.pop(ticket_id)
        except KeyError:
            raise GateError(f"Ticket {ticket_id} is not open: it was committed or given back before.") from None
        if (index := self._index) is not None and index.of is self.tickets:
            index.change(ticket.deadline, -1)
        return ticket

    def _deadlines(self) -> Deadlines:
        """The open collects by deadline; made when it is first asked for, and kept up from then on."""
        index = self._index
        if index is None or index.of is not self.tickets:
            index = self._index = Deadlines(self.tickets)
        return index

    def _out_of_turn(self) -> bool:
        """Whether batches leave the line other than at its ends: by their priority, or past their deadline."""
        return self.order == "priority" or self.policy == "drop"

    def _drop_expired(self) -> list[Ticket]:
        if self.running not in (None, "eval") or not isinstance(self.waiting, Line):
            return []
        first = self.waiting[0] if self.owed else None
        late = self.waiting.drop_late(self.version)
        self.owed = self.owed and first not in late
        return self._drop(late)

    def _make_room(self) -> list[Ticket]:
        """Drop what the queue has no room for: the lowest priority first, and of equals the oldest."""
        waiting, taken = self.waiting, self._taken()
        excess = 0 if self.capacity is None else len(waiting) - taken - self.capacity
        if excess <= 0:
            return []
        if isinstance(waiting, Line):
            return self._drop([waiting.drop_worst(first_stays=bool(taken)) for _ in range(excess)])
        dropped = []
        for _ in range(excess):
            dropped.append(waiting[taken])
            del waiting[taken]
        return self._drop(dropped)

    def _drop(self, tickets: list[Ticket]) -> list[Ticket]:
        """Count batches that have been taken out of the line."""
        for ticket in tickets:
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


_COUNTERS: Final = (
    "admitted", "committed", "trained", "replayed", "failed", "dropped", "rejected", "abandoned", "replays_in_row",
)  # fmt: skip


def _check_saved(
    version: int, counters: Mapping[str, int], waiting: list[Ticket], tickets: list[Ticket], priorities: list[float]
) -> None:
    """Raise a ConfigError if no gate can have been in this state."""
    known = [ticket.id for ticket in (*waiting, *tickets)]
    if len(set(known)) != len(known) or any(number >= counters["admitted"] for number in known):
        wrong = f"its {len(known)} batches do not have numbers of their own below the {counters['admitted']} admitted"
    elif any(not ticket.version <= min(version, ticket.deadline) for ticket in (*waiting, *tickets)):
        wrong = f"a batch was collected after version {version} or after its own deadline"
    elif any(math.isnan(priority) for priority in priorities):
        wrong = "a priority is not a number"
    elif counters["committed"] < counters["trained"] + len(waiting) or counters["committed"] > counters["admitted"]:
        wrong = f"{counters['committed']} committed, {counters['trained']} trained, {len(waiting)} waiting"
    elif counters["replays_in_row"] > counters["replayed"]:
        wrong = f"{counters['replays_in_row']} replays in a row of {counters['replayed']}"
    else:
        return
    raise ConfigError(f"The saved state is not consistent ({wrong}); use another checkpoint.")


def _ints(numbers: Any, count: int) -> list[int]:
    values: list[Any] = list(numbers)
    if len(values) != count or any(isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < 2**63 for v in values):
        raise ConfigError(
            f"The saved state holds {reprlib.repr(values)} where {count} whole numbers belong; use another checkpoint."
        )
    return values
