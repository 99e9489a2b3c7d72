"""Under the gate's lock: serve every parked request that the state allows, in the right order."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from lzero_async.core.activity import Activity
from lzero_async.core.gate import Gate, Ticket
from lzero_async.core.keeping.parked import PAUSED, REPLAY, Holder, Parked
from lzero_async.core.keeping.pausing import Pauses
from lzero_async.core.keeping.stopping import RunStop
from lzero_async.core.statistics import Recorder
from lzero_async.errors import Stopped
from lzero_async.types import Clock


class Serving:
    """The gate, its lock, the lines in front of it, and the numbers recorded under the same lock. All methods need the lock."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self.lock = threading.RLock()
        self.locks = [self.lock]
        """Every lock that a call through the gate takes: an interrupt may leave it locked (see `let_go`)."""
        self.gate = gate
        self.clock = clock
        self.signal = RunStop(clock, self.lock)
        self.pauses = Pauses()
        self.recorder = Recorder()
        self._look_at_room()
        self.activity = Activity()
        self.locks.append(self.activity.lock)
        self.data: dict[int, Any] = {}
        self._holders: dict[int, Holder] = {}  # of the open tickets
        self._turn: Holder | None = None  # who has the learner's turn
        self._lines: dict[str, deque[Parked]] = {kind: deque() for kind in ("collect", "train", "eval")}
        self._order = self._lines["eval"], self._lines["train"], self._lines["collect"]
        self._commits: list[Parked] = []  # a heap: the first deadline first, since where that may not go, none may
        self._arrivals = 0
        self._max_collect: int | None = None
        self._max_train: int | None = None
        self._limited = False
        self.patient = False
        self._orphans: deque[Callable[[], None]] = deque()
        self._starved = False
        self._failures: set[type[BaseException]] = set()  # of trains that were tried again

    def _settle(self) -> None:
        """Serve every parked request that the state now allows."""
        while self._orphans:
            self._orphans.popleft()()
        commits = self._commits
        evals, trains, collects = self._order
        while commits or evals or trains or collects:
            if commits and self._serve_commits():
                continue
            if evals and self._may_evaluate() and not self._serve(evals[0], self._start_eval()):
                continue
            if trains:
                if (ticket := self._start_train()) is not None:
                    if not self._serve(trains[0], ticket):
                        continue
                elif self._max_collect is not None and self._drained(self._max_collect):
                    self._release(trains[0], Stopped("max_collect"))
            if not collects or (ticket := self._try_collect()) is None:
                break
            self._serve(collects[0], ticket)
        # What waits for a train: committed batches that are not being trained, and finished collects that the degree holds back.
        gate, recorder = self.gate, self.recorder
        queued = len(gate.waiting) + len(commits) - (gate.per_train if gate.running == "train" else 0)
        if queued != recorder.queued:
            recorder.queue_is(queued, self.clock.now())
        if self._limited and self.pauses.waiters and self._is_quiet():
            self.pauses.wake(self.pauses.waiters)

    def _look_at_room(self) -> None:
        """The room for batches that wait may have changed."""
        room = self.gate.capacity or self.gate.degree * self.gate.per_train
        if room != self.recorder.room:
            self.recorder.room_is(room, self.clock.now())

    def _serve_commits(self) -> bool:
        """Commit the parked collect of the first deadline if it may; after a stop, release those that nothing can help: a
        role's batch is abandoned, and anybody else's stays in line unless the stop is for good."""
        line = self._commits
        parked = line[0]
        assert parked.ticket is not None
        if self._try_commit(parked.ticket):
            self._serve(parked, parked.ticket)
            self.recorder.lag_is(len(self.gate.waiting))
            return True
        if self.signal.error is None:
            return False
        if self.patient and (self.gate.running in ("train", "replay") or len(self.gate.tickets) > len(line)):
            return False
        for parked in line:
            assert parked.ticket is not None
            if self.signal.closed or parked.holder.run is not None:
                self._abandon(parked.ticket)
                self._release(parked)
                return bool(line)
            if parked.error is None:
                self._tell(parked, self.signal.error)
        return False

    def _may_evaluate(self) -> bool:
        return not self.pauses.count and self.gate.eval_rule() is None

    def _park(self, parked: Parked) -> Parked:
        if self.pauses.ever:
            parked.paused = self.pauses.seconds(parked.since)
        if parked.ticket is None:
            self._lines[parked.kind].append(parked)
        else:
            self._arrivals += 1
            oversampled = self.gate.oversampling > 0  # then the order is that of the starts
            parked.rank = parked.ticket.id if oversampled else parked.ticket.deadline, self._arrivals
            heapq.heappush(self._commits, parked)
        return parked

    def _leave(self, parked: Parked) -> None:
        """Take a request out of its line, where it is the first as a rule."""
        if parked.ticket is None:
            self._lines[parked.kind].remove(parked)
        elif self._commits[0] is parked:
            heapq.heappop(self._commits)
        else:
            self._commits.remove(parked)
            heapq.heapify(self._commits)

    def _serve(self, parked: Parked, grant: Ticket) -> bool:
        """Give a request what it waits for; return whether somebody comes for it. Wake first: what is counted after that
        overlaps with the time the other thread takes to wake up."""
        if parked.kind == "collect":
            parked.grant, self._holders[grant.id] = grant, parked.holder
        elif parked.kind == "commit":
            parked.grant = grant
            del self._holders[grant.id]
        else:
            parked.grant, self._turn = grant, parked.holder
        reached = parked.error is not None or self._wake(parked)  # after a stop its batch may be all that is in line
        self._leave(parked)
        if not reached:
            self._take_back(parked)
            return False
        if parked.error is None:
            self._count_wait(parked)
        if parked.kind == "train":
            self._starved = parked.held_back
        return True

    def _wake(self, parked: Parked) -> bool:
        """Wake whoever waits; False if the event loop of the waiting task is closed: nobody will come for it."""
        try:
            parked.waiter.wake()
        except RuntimeError:
            return False
        return True

    def _take_back(self, parked: Parked) -> None:
        """Undo what was granted to somebody who is gone. A commit stands: its batch is not lost."""
        assert parked.grant is not None
        if parked.kind == "collect":
            self._abandon(parked.grant)
        elif parked.kind != "commit":
            self._let_go_of_turn(None)

    def _release(self, parked: Parked, error: Stopped | None = None) -> None:
        """Let a request go without what it waits for."""
        error = error or self.signal.error
        assert error is not None
        if parked.error is None:
            self._tell(parked, error)
        self._leave(parked)

    def _tell(self, parked: Parked, error: Stopped) -> None:
        self._count_wait(parked)
        parked.error = self.signal.copy(error)
        self._wake(parked)

    def _count_wait(self, parked: Parked) -> None:
        now = self.clock.now()
        seconds = now - parked.since
        if self.pauses.ever:
            seconds -= self.pauses.seconds(now) - parked.paused
        self.recorder.waited("collect" if parked.kind == "commit" else parked.kind, seconds)

    def _try_collect(self) -> Ticket | None:
        return None if self._limited and self._limit_rule() is not None else self.gate.try_collect()

    def _limit_rule(self) -> str | None:
        if self.pauses.count:
            return PAUSED
        gate, count, tickets = self.gate, self.recorder.count, len(self.gate.tickets)
        if self._max_collect is not None and count(gate, "committed") + tickets >= self._max_collect:
            return "max_collect"
        if self._max_train is not None:
            wanted = (self._max_train - count(gate, "trains")) * gate.per_train + gate.oversampling
            if len(gate.waiting) + tickets >= wanted:
                return "max_train"
        return None

    def _drained(self, max_collect: int) -> bool:
        """Whether max_collect batches were collected and everything that could be trained was."""
        gate = self.gate
        if gate.tickets or gate.ready or gate.running is not None:
            return False
        return self.recorder.count(gate, "committed") >= max_collect

    def _collectors_are_held_back(self) -> bool:
        return bool(self._lines["collect"] or self._commits)

    def _start_train(self) -> Ticket | None:
        if self._limited and self.pauses.count:
            return None
        gate = self.gate
        if gate.train_rule() is None:
            return gate.start_train()
        if gate.max_train_ahead and gate.replay_rule() is None:
            gate.start_replay()
            return REPLAY
        return None

    def _at_once(self) -> int:
        gate = self.gate
        return gate.active_collectors if gate.capacity is not None else min(gate.active_collectors, gate.room or 1)

    def _start_eval(self) -> Ticket:
        self.gate.start_eval()
        return Ticket(-1, self.gate.version, self.gate.version)

    def _try_commit(self, ticket: Ticket, priority: float = 0.0) -> bool:
        dropped = self.gate.try_commit(ticket.id, priority)
        if dropped is None:
            return False
        if dropped:
            self._forget(dropped)
        return True

    def _abandon(self, ticket: Ticket) -> None:
        self.gate.abandon(ticket.id)
        self._holders.pop(ticket.id, None)
        self.data.pop(ticket.id, None)

    def _fail(self, ticket: Ticket) -> None:
        self.gate.fail(ticket.id)
        self._holders.pop(ticket.id, None)

    def _reject(self, ticket: Ticket) -> None:
        self.gate.reject(ticket.id)
        self._holders.pop(ticket.id, None)

    def _forget(self, dropped: Iterable[Ticket]) -> None:
        for ticket in dropped:
            self.data.pop(ticket.id, None)

    def _explain(self, parked: Parked) -> str:
        gate = self.gate
        if parked.kind == "collect":
            rule = self._limit_rule() or gate.collect_rule()
        elif parked.kind != "commit" and self.pauses.count:
            rule = PAUSED
        elif parked.kind == "train":
            rule = gate.train_rule()
        elif parked.kind == "eval":
            rule = gate.eval_rule()
        else:
            assert parked.ticket is not None
            rule = gate.commit_rule(parked.ticket.id)
        return gate.explain(rule or "others are first in line")

    def _let_go_of_turn(self, finish: Callable[[], None] | None) -> None:
        if self.gate.running == "eval":
            self.gate.finish_eval()
            self._turn = None
        elif finish is not None:
            finish()
        else:
            self._forget(self.gate.fail_train())
            self._turn = None

    def _is_quiet(self) -> bool:
        return self.gate.running is None and len(self.gate.tickets) == len(self._commits)
