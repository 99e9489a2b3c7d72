"""What the gate counts and saves: its settings, the line of waiting batches, the exact account of every collect.

What is counted here changes only in the steps of `Gate`. After an interrupt between any two lines of a step, `mend`
completes it.
"""

from __future__ import annotations

import math
import reprlib
from collections import deque
from collections.abc import Mapping
from itertools import islice, pairwise
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


class Account:
    """The settings and the state of a gate. `trained` counts collects, `trains` the trains that used them up."""

    def __init__(
        self,
        degree: int,
        *,
        num_collectors: int = 1,
        policy: Policy = "wait",
        publish_every: int = 1,
        max_train_ahead: int = 0,
        collects_per_train: int = 1,
        oversampling: int = 0,
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
        self.per_train = self._checked_per_train(collects_per_train)
        self.oversampling = self._checked_oversampling(oversampling)
        self.active_collectors = self.num_collectors
        self._bind(degree)
        self.version = 0
        self.published = 0
        self.running: Running | None = None
        self.waiting: deque[Ticket] | Line[Ticket] = Line() if self._out_of_turn() else deque()
        self.tickets: dict[int, Ticket] = {}
        self._index: Deadlines | None = None  # of the open collects, from the first question on
        self.priorities: dict[int, float] = {}  # of the waiting batches, where they differ from 0
        self.owed = False  # the train of the first batches failed: they keep their turn, whatever comes in behind them
        self.replays_in_row = 0
        self.admitted = 0
        self.committed = 0
        self.trained = 0
        self.trains = 0
        self.replayed = 0
        self.failed = 0
        self.rejected = 0
        self.dropped = 0
        self.abandoned = 0
        self._lined_up = -1  # the ticket that was counted last as committed
        self.ended: tuple[Ticket, ...] = ()  # what was counted last as trained, failed, rejected or abandoned

    @property
    def ready(self) -> bool:
        """Whether enough batches wait for a train."""
        return len(self.waiting) >= self.per_train

    def group(self) -> tuple[Ticket, ...]:
        """The batches of the train that runs, or comes next, as they stand in line."""
        return (self.waiting[0],) if self.per_train == 1 else tuple(islice(self.waiting, self.per_train))

    # -- what always holds ---------------------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """What is wrong with this state; an empty list, always."""
        found = []
        ended = self._all_ended()
        if self.admitted != ended + len(self.waiting) + len(self.tickets):
            found.append(
                f"{self.admitted} admitted, but {ended} ended, {len(self.waiting)} waiting and {len(self.tickets)} open"
            )
        if self.version != self.trains + self.replayed or self.published > self.version or self.trained < self.trains:
            found.append(
                f"version {self.version}: {self.trains} trains of {self.trained} collects, {self.replayed} replayed, "
                f"{self.published} published"
            )
        if self.running == "train" and not self.ready:
            found.append("a train runs without a batch")
        if self.policy == "wait":
            line = [t.deadline for t in self.waiting] + sorted(t.deadline for t in self.tickets.values())
            first = self.version + (self.running == "replay")
            found += [
                f"batch {j} in line starts at {first + j // self.per_train}, past its deadline {deadline}"
                for j, deadline in enumerate(line)
                if first + j // self.per_train > deadline
            ]
        if self.capacity is not None:
            found += self._queue_violations(self.capacity)
        if self.oversampling:
            line = [ticket.id for ticket in islice(self.waiting, self._taken(), None)]
            found += [f"batches wait in the order {line}, and started in another"] if line != sorted(line) else []
        if self.policy == "drop" and self.running == "train":
            late = [ticket.deadline for ticket in self.group() if ticket.deadline < self.version]
            found += [f"a batch past its deadline {deadline} trains at {self.version}" for deadline in late]
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

    # -- saving and resuming -------------------------------------------------------------------------------------------

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
            if self.policy != "wait" or version + len(kept) // self.per_train <= ticket.deadline:
                kept.append(ticket)
        fresh = self._fresh()
        for name, value in zip(_COUNTERS, counters, strict=True):
            setattr(fresh, name, value)
        fresh.version = fresh.published = version
        fresh.abandoned += len(tickets) + len(waiting) - len(kept)
        fresh._come_back(kept, {t.id: priority for t, priority in zip(waiting, priorities, strict=True)})
        if fresh.policy == "drop":
            fresh._drop_expired()
        fresh._make_room()
        if wrong := fresh.violations():
            raise ConfigError(f"The saved state is not consistent ({wrong[0]}); use another checkpoint.")
        self.__dict__.update(fresh.__dict__)

    def _fresh(self) -> Account:
        """One with the same settings and nothing in it."""
        fresh = Account(
            self.degree,
            num_collectors=self.num_collectors,
            policy=self.policy,
            publish_every=self.publish_every,
            max_train_ahead=self.max_train_ahead,
            collects_per_train=self.per_train,
            oversampling=self.oversampling,
            capacity=self.capacity,
            order=self.order,
        )
        fresh.active_collectors = self.active_collectors
        return fresh

    def _come_back(self, kept: list[Ticket], ranks: Mapping[int, float]) -> None:
        """Line up what waited, by priority if that counts: what was being trained has no turn any more."""
        for ticket in sorted(kept) if self.oversampling else kept:
            if isinstance(self.waiting, deque):
                self.waiting.append(ticket)
            elif self.order != "priority":
                self.waiting.put(ticket)
            else:
                self.waiting.put(ticket, ranks[ticket.id])
                if ranks[ticket.id]:
                    self.priorities[ticket.id] = ranks[ticket.id]

    def mend(self) -> None:
        """Complete the step that an interrupt between any two lines cut off.

        What belongs together is changed in one line: either all of it or nothing. A ticket that is counted leaves afterwards,
        so one that is still there is taken out; one that is in line is not open any more; only batches that are dropped leave
        before they are counted.
        """
        self._index = None
        if isinstance(self.waiting, Line):
            self.waiting.mend()
        gone = {ticket.id for ticket in self.ended}
        for ticket in [ticket for ticket in self.waiting if ticket.id in gone]:
            self.waiting.remove(ticket)
        for number in gone:
            self.tickets.pop(number, None)
        for ticket in [ticket for ticket in self.waiting if ticket.id in self.tickets]:
            self.committed += ticket.id != self._lined_up
            self._lined_up = ticket.id
            del self.tickets[ticket.id]
        waiting = {ticket.id for ticket in self.waiting}
        self.priorities = {number: rank for number, rank in self.priorities.items() if number in waiting}
        uncounted = self.admitted - self._all_ended() - len(self.waiting) - len(self.tickets)
        self.dropped += uncounted  # taken out, and not counted yet
        if self.policy == "drop":
            self._drop_expired()
        self._make_room()

    # -- the line --------------------------------------------------------------------------------------------------------

    def _all_ended(self) -> int:
        return self.trained + self.failed + self.dropped + self.rejected + self.abandoned

    def _out_of_turn(self) -> bool:
        """Whether batches leave a queue of any length other than at its ends: by their priority, or past their deadline."""
        return self.order == "priority" or (self.policy == "drop" and self.capacity is not None)

    def _drop_expired(self) -> list[Ticket]:
        if self.running not in (None, "eval"):
            return []
        waiting, version = self.waiting, self.version
        first = waiting[0] if self.owed else None
        if isinstance(waiting, Line):
            late = waiting.drop_late(version)
        elif late := [ticket for ticket in waiting if ticket.deadline < version]:
            self.waiting = deque(ticket for ticket in waiting if ticket.deadline >= version)
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
        """How many of the first waiting batches are being trained, or are owed after a train that failed."""
        return self.per_train if self.running == "train" or self.owed else 0

    def _bind(self, degree: int) -> None:
        """Take a degree, and what follows from it: the most that may wait, and wait or be open while nothing trains."""
        self.degree = self._checked_degree(degree)
        self.lag_bound = max(1, degree) * self.per_train
        self.room = degree * self.per_train + self.oversampling

    # -- checking settings -----------------------------------------------------------------------------------------------

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

    def _checked_per_train(self, number: int) -> int:
        if whole_number("collects_per_train", number, 1) > 1 and self.capacity is not None:
            raise ConfigError(
                f"collects_per_train is {number} and queue_capacity {self.capacity}, but a queue drops batches that its train "
                "still waits for; leave one of the two out."
            )
        return number

    def _checked_oversampling(self, number: int) -> int:
        if whole_number("oversampling", number, 0) and self.policy != "drop":
            raise ConfigError(
                f"oversampling is {number}, and batches that no longer fit are dropped, but staleness_policy {self.policy!r} "
                "drops none. Choose 'drop', or set oversampling to 0."
            )
        if number and self.capacity is not None:
            raise ConfigError(
                f"oversampling is {number}, but with queue_capacity {self.capacity} no collect ever waits for its turn; leave "
                "one of the two out."
            )
        return number

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
        if degree == 0 and self.oversampling:
            raise ConfigError(
                f"oversampling is {self.oversampling}, but at off_policy_degree 0 one collect runs at a time. Set oversampling "
                "to 0 or the degree to at least 1."
            )
        return degree


_COUNTERS: Final = (
    "admitted", "committed", "trained", "trains", "replayed", "failed", "dropped", "rejected", "abandoned", "replays_in_row",
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
