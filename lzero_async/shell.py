"""The gate's only lock, and the waiting around it.

A request that the gate cannot serve is parked in a line. Whoever changes the state serves, before it lets go of the
lock, every parked request that has become possible: it takes the step on the waiter's behalf and wakes that waiter.
So nobody polls, nobody is woken in vain, and a wake-up cannot be lost: it carries the step that was taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from lzero_async.activity import Activity
from lzero_async.errors import CoordinatorClosed, GateTimeout, Stopped
from lzero_async.gate import Gate, Ticket
from lzero_async.stats import Recorder
from lzero_async.types import Clock, Waiter

REPLAY: Final = Ticket(-1, -1, -1)
MakeWaiter = Callable[[], Waiter]


class Parked:
    """One request that waits: what it asks for, and what it was given."""

    __slots__ = ("error", "grant", "held_back", "kind", "since", "ticket", "waiter")

    def __init__(self, kind: str, waiter: Waiter, since: float, ticket: Ticket | None = None) -> None:
        self.kind = kind
        self.waiter = waiter
        self.since = since
        self.ticket = ticket
        self.grant: Ticket | None = None
        self.error: Stopped | None = None
        self.held_back = False


class GateShell:
    """A gate that many threads and event loops may use at once, and the numbers recorded under the same lock."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self.lock = threading.Lock()
        self.gate = gate
        self.clock = clock
        self.recorder = Recorder()
        self.activity = Activity()
        self.data: dict[int, Any] = {}
        self._lines: dict[str, deque[Parked]] = {kind: deque() for kind in ("collect", "commit", "train", "eval")}
        self._order = tuple(self._lines[kind] for kind in ("commit", "eval", "train", "collect"))
        self._sleepers: dict[int, Waiter] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._max_collect: int | None = None
        self._max_train: int | None = None
        self._limited = False
        self._stop: Stopped | None = None
        self._patient = False
        self._orphans: deque[Callable[[], None]] = deque()
        self._starved = False

    # -- asking the gate: each returns what was granted, or the parked request to wait on -------------------------------

    def request_collect(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        """Ask to start a collect."""
        with self.lock:
            if self._stop is not None:
                self._raise_if_stopped()
            if (ticket := self._try_collect()) is not None:
                return ticket
            return self._park(Parked("collect", make_waiter(), self.clock.now()))

    def request_commit(
        self, ticket: Ticket, data: Any, start: float, end: float, make_waiter: MakeWaiter, priority: float = 0.0
    ) -> Ticket | Parked:
        """Ask to commit a finished collect; after a stop it is committed or abandoned without waiting. Only a queue with a
        capacity knows priorities, and it lets nobody wait."""
        with self.lock:
            self.data[ticket.id] = data
            if self._try_commit(ticket, priority):
                lag = len(self.gate.waiting)
                self._settle()
                self.recorder.collected(start, end, self._at_once())
                self.recorder.lag_is(lag)
                return ticket
            self.recorder.collected(start, end, self._at_once())
            parked = self._park(Parked("commit", make_waiter(), end, ticket))
            if self._stop is not None:
                self._settle()
            return parked

    def request_train(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        """Ask to train the oldest batch, or, if none waits and the rules allow it, to replay."""
        with self.lock:
            if self._stop is not None:
                self._raise_if_stopped()
            gate = self.gate
            may_start = gate.waiting or gate.max_train_ahead
            if may_start and not self._lines["train"] and (ticket := self._start_train()) is not None:
                self._settle()
                self._count_start(ticket)
                return ticket
            parked = self._park(Parked("train", make_waiter(), self.clock.now()))
            parked.held_back = self._collectors_are_held_back()
            return parked

    def request_eval(self, make_waiter: MakeWaiter) -> Ticket | Parked:
        """Ask for the learner's turn to evaluate."""
        with self.lock:
            self._raise_if_stopped()
            if self.gate.eval_rule() is None:
                return self._start_eval()
            return self._park(Parked("eval", make_waiter(), self.clock.now()))

    def served(self, parked: Parked) -> Ticket:
        """After the wait: what was granted, or the error that ended it. A commit that timed out stays in line."""
        if parked.grant is not None:
            return parked.grant
        with self.lock:
            if parked.grant is not None:
                return parked.grant
            if parked.error is not None:
                raise parked.error
            why = self._explain(parked)
            if parked.kind != "commit":
                self._lines[parked.kind].remove(parked)
                self._count_wait(parked)
            waited = self.clock.now() - parked.since
            error = GateTimeout(f"Waited {waited:.3g} s in vain to {_DOING[parked.kind]}: {why}.")
            error.origin = self
            raise error

    def withdraw(self, parked: Parked) -> None:
        """The waiting call was interrupted: leave the line, or give back what was granted meanwhile. A finished collect
        stays in line, so that its batch is not lost."""
        with self.lock:
            if parked.grant is None and parked.error is None:
                if parked.kind != "commit":
                    self._lines[parked.kind].remove(parked)
            elif parked.grant is not None:
                self._take_back(parked)
            self._settle()

    def when_unlocked(self, action: Callable[[], None]) -> None:
        """Run `action` under the lock now, or, if the lock is held, when its holder or the next one settles.

        For the finalizers of coroutines: the garbage collector may run them in a thread that holds the lock.
        """
        self._orphans.append(action)
        if self.lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self.lock.release()

    # -- telling the gate ----------------------------------------------------------------------------------------------

    def end_collect(self, ticket: Ticket, start: float, end: float, *, failed: bool) -> None:
        """A collect ended without a batch: give its ticket back."""
        with self.lock:
            self.recorder.failed(start, end)
            if failed:
                self.gate.fail(ticket.id)
            else:
                self.gate.abandon(ticket.id)
            self._settle()

    def finish_train(
        self, start: float, end: float, published: bool, then: Callable[[Any, bool], None], result: Any
    ) -> None:
        """Count the train or replay that ran; `then(result, starved)` runs before the lock is let go."""
        with self.lock:
            gate = self.gate
            replay = gate.running == "replay"
            done = None if replay else gate.waiting[0].id
            if dropped := gate.finish_train():
                self._forget(dropped)
            if done is not None:
                del self.data[done]
            if published:
                gate.publish()
            try:
                then(result, self._starved)
            finally:
                self._starved = False
                self._settle()
                self.recorder.ran("replay" if replay else "train", start, end)

    def fail_train(self, start: float, end: float) -> None:
        """A train raised: its batch stays first in line."""
        with self.lock:
            self.recorder.failed(start, end)
            self.gate.fail_train()
            self._settle()

    def finish_eval(self, start: float, end: float, *, failed: bool) -> None:
        """Give the learner's turn back after an evaluation."""
        with self.lock:
            self.gate.finish_eval()
            if failed:
                self.recorder.failed(start, end)
            else:
                self.recorder.ran("eval", start, end)
            self._settle()

    def set_degree(self, degree: int) -> None:
        """Change the bound for new admissions."""
        with self.lock:
            self.gate.set_degree(degree)
            self._settle()

    def set_capacity(self, capacity: int) -> None:
        """Change the length of the queue; what a shorter one has no room for is dropped."""
        with self.lock:
            self._forget(self.gate.set_capacity(capacity))
            self._settle()

    def set_active_collectors(self, number: int) -> None:
        """Admit only so many collects at once."""
        with self.lock:
            self.gate.set_active_collectors(number)
            self._settle()

    def set_limits(self, max_collect: int | None, max_train: int | None) -> None:
        """Admit no collect that these counts could not use; counts since the last reset."""
        with self.lock:
            self._max_collect, self._max_train = max_collect, max_train
            self._limited = max_collect is not None or max_train is not None
            self._settle()

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, error: Stopped, *, patient: bool) -> None:
        """Release every waiter with `error`. A patient stop lets finished collects wait for their commit while a train
        or another collect still runs that could make room; otherwise they are abandoned now. Closing is for good."""
        with self.lock:
            if self._stop is None or isinstance(error, CoordinatorClosed):
                self._stop = error
            self._patient = patient and not isinstance(self._stop, CoordinatorClosed)
            for kind in ("collect", "train", "eval"):
                while self._lines[kind]:
                    self._release(self._lines[kind].popleft())
            for waiter in self._sleepers.values():
                waiter.wake()
            self._sleepers.clear()
            self._settle()
            listeners, reason = list(self._listeners.values()), str(self._stop)
        for listener in listeners:
            listener(reason)

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(reason)` at every stop, at once if it is stopping already; return what ends this."""
        key = id(listener)
        with self.lock:
            self._listeners[key] = listener
            reason = None if self._stop is None else str(self._stop)
        if reason is not None:
            listener(reason)
        return lambda: self._forget_listener(key)

    def _forget_listener(self, key: int) -> None:
        with self.lock:
            self._listeners.pop(key, None)

    def restart(self) -> None:
        """Forget a stop, unless it was a close, and give back what a role that is gone still holds.

        Called when a run has ended and none of its roles is left: an interrupt can cut a role off between any two steps.
        """
        with self.lock:
            gate = self.gate
            parked = {p.ticket.id for p in self._lines["commit"] if p.ticket is not None}
            for ticket_id in [i for i in gate.tickets if i not in parked]:
                gate.abandon(ticket_id)
                self.data.pop(ticket_id, None)
            if gate.running == "eval":
                gate.finish_eval()
            elif gate.running is not None:
                gate.fail_train()
            if not isinstance(self._stop, CoordinatorClosed):
                self._stop = None
            self._settle()

    def raise_if_stopped(self) -> None:
        """Raise what a request would raise now."""
        with self.lock:
            self._raise_if_stopped()

    def raise_if_closed(self) -> None:
        """Raise if it was closed for good."""
        if self.closed:
            self.raise_if_stopped()

    def settle(self) -> None:
        """Serve whoever can go after the state was changed from outside."""
        with self.lock:
            self._settle()

    def is_set(self) -> bool:
        """Whether the run is stopping."""
        return self._stop is not None

    @property
    def stop_reason(self) -> str:
        """Why the run is stopping; empty while it is not."""
        return "" if self._stop is None else str(self._stop)

    @property
    def closed(self) -> bool:
        """Whether it was closed for good."""
        return isinstance(self._stop, CoordinatorClosed)

    def wait(self, seconds: float) -> bool:
        """Wait this long or until the run stops; return whether it stops."""
        waiter = self.clock.waiter()
        with self.lock:
            if self._stop is not None:
                return True
            self._sleepers[id(waiter)] = waiter
        try:
            waiter.wait(seconds)
        finally:
            with self.lock:
                self._sleepers.pop(id(waiter), None)
        return self._stop is not None

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Serve every parked request that the state now allows."""
        while self._orphans:
            self._orphans.popleft()()
        commits, evals, trains, collects = self._order
        while commits or evals or trains or collects:
            if commits and self._serve_commits():
                continue
            if evals and self.gate.eval_rule() is None:
                self._serve(evals.popleft(), self._start_eval())
            if trains:
                if (ticket := self._start_train()) is not None:
                    self._serve(trains.popleft(), ticket)
                elif self._drained():
                    self._release(trains.popleft(), Stopped("max_collect"))
            if not collects or (ticket := self._try_collect()) is None:
                return
            self._serve(collects.popleft(), ticket)

    def _serve_commits(self) -> bool:
        """Commit the first parked collect that may; after a stop, abandon those that nothing can help any more."""
        line = self._lines["commit"]
        for parked in line:
            assert parked.ticket is not None
            if self._try_commit(parked.ticket):
                line.remove(parked)
                self._serve(parked, parked.ticket)
                self.recorder.lag_is(len(self.gate.waiting))
                return True
        if self._stop is not None:
            hope = self._patient and (self.gate.running in ("train", "replay") or len(self.gate.tickets) > len(line))
            if not hope:
                parked = line.popleft()
                assert parked.ticket is not None
                self._abandon(parked.ticket)
                self._release(parked)
                return bool(line)
        return False

    def _park(self, parked: Parked) -> Parked:
        self._lines[parked.kind].append(parked)
        return parked

    def _serve(self, parked: Parked, grant: Ticket) -> None:
        """Wake first: what is counted after that overlaps with the time the other thread takes to wake up."""
        parked.grant = grant
        try:
            parked.waiter.wake()
        except RuntimeError:  # the event loop of the waiting task is closed: nobody will come for it
            self._take_back(parked)
            return
        self._count_wait(parked)
        if parked.kind == "train":
            self._starved = parked.held_back
            self._count_start(grant)

    def _take_back(self, parked: Parked) -> None:
        """Undo what was granted to somebody who is gone. A commit stands: its batch is not lost."""
        assert parked.grant is not None
        if parked.kind == "collect":
            self.gate.abandon(parked.grant.id)
        elif parked.kind == "train":
            self.gate.fail_train()
        elif parked.kind == "eval":
            self.gate.finish_eval()

    def _release(self, parked: Parked, error: Stopped | None = None) -> None:
        error = error or self._stop
        assert error is not None
        self._count_wait(parked)
        parked.error = self._copy(error)
        try:
            parked.waiter.wake()
        except RuntimeError:  # as in _serve
            return

    def _copy(self, error: Stopped) -> Stopped:
        """An exception of its own for each thread, so that tracebacks do not mix."""
        copy = type(error)(*error.args)
        copy.origin = self
        return copy

    def _count_wait(self, parked: Parked) -> None:
        self.recorder.waited("collect" if parked.kind == "commit" else parked.kind, self.clock.now() - parked.since)

    def _raise_if_stopped(self) -> None:
        if self._stop is not None:
            raise self._copy(self._stop)

    def _try_collect(self) -> Ticket | None:
        return None if self._limited and self._limit_rule() is not None else self.gate.try_collect()

    def _limit_rule(self) -> str | None:
        gate, count, tickets = self.gate, self.recorder.count, len(self.gate.tickets)
        if self._max_collect is not None and count(gate, "committed") + tickets >= self._max_collect:
            return "max_collect"
        if self._max_train is not None and count(gate, "trained") + len(gate.waiting) + tickets >= self._max_train:
            return "max_train"
        return None

    def _drained(self) -> bool:
        """Whether max_collect batches were collected and everything that could be trained was."""
        gate = self.gate
        return (
            self._max_collect is not None
            and not gate.tickets
            and not gate.waiting
            and gate.running is None
            and self.recorder.count(gate, "committed") >= self._max_collect
        )

    def _collectors_are_held_back(self) -> bool:
        return bool(self._lines["collect"] or self._lines["commit"])

    def _start_train(self) -> Ticket | None:
        gate = self.gate
        if gate.train_rule() is None:
            return gate.start_train()
        if gate.max_train_ahead and gate.replay_rule() is None:
            gate.start_replay()
            return REPLAY
        return None

    def _at_once(self) -> int:
        gate = self.gate
        return gate.active_collectors if gate.capacity is not None else min(gate.active_collectors, gate.degree or 1)

    def _count_start(self, ticket: Ticket) -> None:
        if ticket is not REPLAY:
            self.recorder.train_started(self.gate.version - ticket.version)

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
        self.data.pop(ticket.id, None)

    def _forget(self, dropped: list[Ticket]) -> None:
        for ticket in dropped:
            self.data.pop(ticket.id, None)

    def _explain(self, parked: Parked) -> str:
        gate = self.gate
        if parked.kind == "collect":
            rule = self._limit_rule() or gate.collect_rule()
        elif parked.kind == "train":
            rule = gate.train_rule()
        elif parked.kind == "eval":
            rule = gate.eval_rule()
        else:
            assert parked.ticket is not None
            rule = gate.commit_rule(parked.ticket.id)
        return gate.explain(rule or "others are first in line")


_DOING: Final = {
    "collect": "start a collect",
    "commit": "commit a collect (its batch stays in line)",
    "train": "start a train",
    "eval": "start an evaluation",
}
