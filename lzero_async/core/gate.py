"""The gate: who may go next. A pure state machine without threads, clocks or torch.

Words (all counted in collects): `version` is the number of finished trains and replays, `published` the version of the
weights that a new collect loads, `waiting` the committed batches that are neither trained nor dropped (those being trained
included), a ticket a collect that was admitted and has not been committed. A ticket's `deadline` is the version it loaded
plus the degree at its admission; the batch keeps it. A train takes the `per_train` oldest batches and makes one version, so
place p of the line is trained p // per_train versions after the first.

With a `capacity` the line is a queue that never holds a collector back: when it is full, a batch that waits makes way for
the one that comes, and is counted as dropped. With `oversampling` that many more collects may be open than can be trained in
time; the line is in the order in which they started, and what no longer fits is past its deadline and dropped.

Every rule is a method `*_rule` that returns None when the step is allowed and the name of the blocking rule when it is
not; `explain` puts the numbers to that name. Every step checks its rule and raises `GateError` when it is broken, so a
caller that steps out of turn cannot corrupt the accounting.
"""

from __future__ import annotations

from collections import deque

from lzero_async.core.account import Account, GateError, Policy, Running, Ticket
from lzero_async.core.ordering import Deadlines
from lzero_async.errors import ConfigError
from lzero_async.validation import whole_number

__all__ = ["Gate", "GateError", "Policy", "Running", "Ticket"]


class Gate(Account):
    """The staleness rules of `off_policy_degree` and the steps that follow them."""

    # -- the rules ---------------------------------------------------------------------------------------------------

    def collect_rule(self) -> str | None:
        """The rule that forbids a new collect now, or None."""
        tickets, waiting, per_train = len(self.tickets), len(self.waiting), self.per_train
        if self.degree == 0:
            if tickets:
                return "a collect is open"
            if self.running is not None:
                return "the learner is busy"
            if waiting >= per_train:
                return "a batch waits for its train"
            return None if self.published == self.version else "the newest weights are not published"
        if tickets >= self.active_collectors:
            return "every collector is busy"
        if self.capacity is not None:
            return None
        if waiting + tickets >= self.room + (per_train if self.running == "train" else 0):
            return "lag"
        if self.published == self.version and self.running != "replay":
            return None  # with the newest weights, what the lag allows comes in time
        if self._next_place() + tickets >= (self.published + 1) * per_train + self.room:
            return "staleness"
        if self.oversampling and self.version + (self.running == "replay") > self.published + self.degree:
            return "staleness"
        return None

    def commit_rule(self, ticket_id: int) -> str | None:
        """The rule that forbids committing this finished collect now, or None."""
        if self.capacity is not None:
            return None
        if len(self.waiting) >= self.lag_bound:
            return "lag"
        if self.policy == "wait" and len(self.tickets) > 1:
            # As things are, every open collect comes in time. One place later that holds for those behind this one, which has
            # left their line; so only a deadline before its own can be missed.
            pressed = self._deadlines().pressed(self._next_place() + 1)
            if pressed is not None and (ticket := self.tickets.get(ticket_id)) and pressed < ticket.deadline:
                return "an older collect must come first"
        return None

    def train_rule(self) -> str | None:
        """The rule that forbids training the oldest waiting batches now, or None."""
        if self.running is not None:
            return "the learner is busy"
        if len(self.waiting) >= self.per_train:
            return None
        return "fewer batches wait than a train takes" if self.waiting else "no batch waits"

    def replay_rule(self) -> str | None:
        """The rule that forbids an extra train on old data now, or None."""
        if self.running is not None:
            return "the learner is busy"
        if self.ready:
            return "a batch waits for its train"
        if self.degree == 0 or self.replays_in_row >= self.max_train_ahead:
            return "max_train_ahead"
        if self.trained == 0:
            return "no batch was trained yet"
        if self.capacity is not None and self.policy == "allow":
            return None
        if any(ticket.deadline <= self.version for ticket in self.waiting):
            return "a waiting batch would become too old"
        place = self._next_place() + self.per_train - self.oversampling
        if self.tickets and self._deadlines().pressed(place) is not None:
            return "an open collect would become too old"
        return None

    def eval_rule(self) -> str | None:
        """The rule that forbids an evaluation in the learner's turn now, or None."""
        if self.running is not None:
            return "the learner is busy"
        return "a collect is open" if self.degree == 0 and self.tickets else None

    def _next_place(self) -> int:
        """The place at which a batch committed now would stand: those of version v are v * per_train and the next ones."""
        return (self.version + (self.running == "replay")) * self.per_train + len(self.waiting)

    def _deadlines(self) -> Deadlines:
        """The open collects by deadline; made when it is first asked for, and kept up from then on."""
        index = self._index
        if index is None or index.of is not self.tickets:
            index = self._index = Deadlines(self.tickets, self.per_train)
        return index

    def explain(self, rule: str) -> str:
        """The blocking rule with the numbers behind it."""
        more = f", collects_per_train {self.per_train}" if self.per_train > 1 else ""
        more += f", oversampling {self.oversampling}" if self.oversampling else ""
        return (
            f"{rule} (off_policy_degree {self.degree}, waiting {len(self.waiting)}, open collects {len(self.tickets)} "
            f"of {self.num_collectors}, version {self.version}, published {self.published}, "
            f"learner {self.running or 'idle'}, policy {self.policy}{more})"
        )

    # -- the steps ---------------------------------------------------------------------------------------------------

    def start_collect(self) -> Ticket:
        """Admit a collect on the published weights."""
        if (rule := self.collect_rule()) is not None:
            self._refuse("start a collect", rule)
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
        if (rule := self.commit_rule(ticket_id)) is not None:
            self._refuse("commit a collect", rule)
        return self._line_up(ticket_id, priority)

    def try_commit(self, ticket_id: int, priority: float = 0.0) -> list[Ticket] | None:
        """Commit if the rules allow it now; None if they do not."""
        return self._line_up(ticket_id, priority) if self.commit_rule(ticket_id) is None else None

    def _line_up(self, ticket_id: int, priority: float) -> list[Ticket]:
        if ticket_id not in self.tickets:
            self._require_open(ticket_id)
        ticket, waiting = self.tickets[ticket_id], self.waiting
        if isinstance(waiting, deque):
            if self.oversampling:
                waiting.insert(self._place_by_start(ticket_id), ticket)
            else:
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
        if self.capacity is None and self.policy != "drop":
            return []
        return (self._drop_expired() if self.policy == "drop" else []) + self._make_room()

    def _place_by_start(self, ticket_id: int) -> int:
        """Where a batch stands among those that wait by the start of their collects, behind those being trained."""
        place, taken = len(self.waiting), self._taken()
        while place > taken and self.waiting[place - 1].id > ticket_id:
            place -= 1
        return place

    def fail(self, ticket_id: int) -> None:
        """Give back the ticket of a collect that raised."""
        self._require_open(ticket_id)
        self.failed, self.ended = self.failed + 1, (self.tickets[ticket_id],)
        self._close(ticket_id)

    def reject(self, ticket_id: int) -> None:
        """Give back the ticket of a collect that had nothing to train on."""
        self._require_open(ticket_id)
        self.rejected, self.ended = self.rejected + 1, (self.tickets[ticket_id],)
        self._close(ticket_id)

    def abandon(self, ticket_id: int) -> None:
        """Give back the ticket of a collect whose batch will never be committed."""
        self._require_open(ticket_id)
        self.abandoned, self.ended = self.abandoned + 1, (self.tickets[ticket_id],)
        self._close(ticket_id)

    def abandon_remainder(self) -> tuple[Ticket, ...]:
        """Give up the batches that wait, too few for a train and with no collect to come; return them."""
        left = () if self.ready or self.running == "train" else tuple(self.waiting)
        if left:
            self.abandoned, self.waiting = self.abandoned + len(left), deque()
        return left

    def start_train(self) -> Ticket:
        """Start the train of the batches that are first in line and return the oldest of them; they wait until it ends."""
        if (rule := self.train_rule()) is not None:
            self._refuse("start a train", rule)
        self.running, self.owed, self.replays_in_row = "train", False, 0
        return self.waiting[0] if self.per_train == 1 else min(self.group())

    def start_replay(self) -> None:
        """Start an extra train on old data."""
        if (rule := self.replay_rule()) is not None:
            self._refuse("start a replay", rule)
        self.running, self.replays_in_row = "replay", self.replays_in_row + 1

    def finish_train(self) -> list[Ticket]:
        """Count the running train or replay; return the batches that its new version dropped."""
        version = self.version + 1
        if self.running == "train":
            done = (self.waiting[0],) if self.per_train == 1 else self.group()
            trained, trains = self.trained + self.per_train, self.trains + 1
            self.trained, self.trains, self.version, self.running, self.ended = trained, trains, version, None, done
            for ticket in done:
                self.waiting.popleft()
                if self.priorities:
                    self._left(ticket)
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
        if (rule := self.eval_rule()) is not None:
            self._refuse("start an evaluation", rule)
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
        self._bind(degree)

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

    # -- helpers -----------------------------------------------------------------------------------------------------

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

    def _refuse(self, step: str, rule: str) -> None:
        raise GateError(f"Cannot {step}: {self.explain(rule)}.")
