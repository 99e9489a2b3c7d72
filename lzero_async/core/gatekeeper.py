"""The gate's only lock, and the waiting around it.

A request that the gate cannot serve is parked in a line. Whoever changes the state serves, before it lets go of the
lock, every parked request that has become possible: it takes the step on the waiter's behalf and wakes that waiter.
So nobody polls, nobody is woken in vain, and a wake-up cannot be lost: it carries the step that was taken.

Whatever is given out has a holder, and a parked request leaves its line last. So after an interrupt between any two lines
of a call, `let_go` knows what that call still holds, and `_mend` finds what was half done.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from lzero_async.core.activity import Activity
from lzero_async.core.gate import Gate, Ticket
from lzero_async.core.pausing import Pauses
from lzero_async.core.statistics import Recorder
from lzero_async.core.stopping import RunStop
from lzero_async.errors import GateTimeout, Stopped
from lzero_async.types import Clock, Waiter

REPLAY: Final = Ticket(-1, -1, -1)
PAUSED: Final = "the coordinator is paused"
MakeWaiter = Callable[[], Waiter]


class Holder:
    """Whoever passes through the gate: what is given out is somebody's. `run` is the run whose role this is, or None."""

    def __init__(self, run: object = None) -> None:
        self.run = run


ANYBODY: Final = Holder()


class Parked:
    """One request that waits: what it asks for, and what it was given."""

    __slots__ = ("error", "grant", "held_back", "holder", "kind", "paused", "rank", "since", "ticket", "waiter")

    def __init__(
        self, kind: str, waiter: Waiter, since: float, ticket: Ticket | None = None, holder: Holder = ANYBODY
    ) -> None:
        self.kind = kind
        self.waiter = waiter
        self.since = since
        self.ticket = ticket
        self.holder = holder
        self.grant: Ticket | None = None
        self.error: Stopped | None = None
        self.held_back = False
        self.paused = 0.0  # seconds of all pauses before it
        self.rank = (0, 0)  # of a finished collect: its deadline (or start), and who came first

    def __lt__(self, other: Parked) -> bool:
        return self.rank < other.rank


class Gatekeeper:
    """A gate that many threads and event loops may use at once, and the numbers recorded under the same lock."""

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

    # -- asking the gate: each returns what was granted, or the parked request to wait on -------------------------------

    def request_collect(self, make_waiter: MakeWaiter, holder: Holder = ANYBODY) -> Ticket | Parked:
        """Ask to start a collect."""
        signal = self.signal
        with self.lock:
            if signal.error is not None:
                signal.raise_if_set()
            if (ticket := self._try_collect()) is not None:
                self._holders[ticket.id] = holder
                return ticket
            return self._park(Parked("collect", make_waiter(), self.clock.now(), None, holder))

    def request_commit(
        self,
        ticket: Ticket,
        data: Any,
        start: float,
        end: float,
        make_waiter: MakeWaiter,
        priority: float = 0.0,
        holder: Holder = ANYBODY,
    ) -> Ticket | Parked:
        """Ask to commit a finished collect; after a stop it is committed or abandoned without waiting. Only a queue with a
        capacity knows priorities, and it lets nobody wait."""
        with self.lock:
            self.data[ticket.id] = data
            if self._try_commit(ticket, priority):
                del self._holders[ticket.id]
                lag = len(self.gate.waiting)
                self._settle()
                self.recorder.collected(start, end, self._at_once())
                self.recorder.lag_is(lag)
                return ticket
            self.recorder.collected(start, end, self._at_once())
            parked = self._park(Parked("commit", make_waiter(), end, ticket, holder))
            self._settle()
            return parked

    def reject(self, ticket: Ticket, start: float, end: float) -> None:
        """A collect had nothing to train on: take its ticket back."""
        with self.lock:
            self._reject(ticket)
            self.recorder.failed(start, end)
            self._settle()

    def request_train(self, make_waiter: MakeWaiter, holder: Holder = ANYBODY) -> Ticket | Parked:
        """Ask to train the oldest batch, or, if none waits and the rules allow it, to replay."""
        signal = self.signal
        with self.lock:
            if signal.error is not None:
                signal.raise_if_set()
            gate = self.gate
            may_start = gate.waiting or gate.max_train_ahead
            if may_start and not self._lines["train"] and (ticket := self._start_train()) is not None:
                self._turn = holder
                self._settle()
                return ticket
            parked = self._park(Parked("train", make_waiter(), self.clock.now(), None, holder))
            parked.held_back = self._collectors_are_held_back()
            return parked

    def request_eval(self, make_waiter: MakeWaiter, holder: Holder = ANYBODY) -> Ticket | Parked:
        """Ask for the learner's turn to evaluate."""
        with self.lock:
            self.signal.raise_if_set()
            if not self.pauses.count and self.gate.eval_rule() is None:
                ticket = self._start_eval()
                self._turn = holder
                return ticket
            return self._park(Parked("eval", make_waiter(), self.clock.now(), None, holder))

    def request_publication(self, holder: Holder) -> int | None:
        """Take the learner's turn to publish weights that are overdue, since `get_weights` failed; the version, or None if
        nothing is owed or the learner is busy."""
        with self.lock:
            gate = self.gate
            if not gate.publish_due or gate.running is not None:
                return None
            gate.running = "eval"
            self._turn = holder
            return gate.version

    def finish_publication(self) -> None:
        """The overdue weights are published: give the learner's turn back."""
        with self.lock:
            self.gate.finish_eval()
            self._turn = None
            self.gate.publish()
            self._settle()

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
            error.origin, error.holder = self.signal, parked.holder
            raise error

    def let_go(self, holder: Holder, **how: Any) -> None:
        """A call ends with an exception, wherever that came from: free the locks that an interrupt left locked, and see
        `let_go_locked`."""
        self.unlock()
        with self.lock:
            self.let_go_locked(holder, **how)

    def let_go_locked(
        self,
        holder: Holder,
        *,
        failed: bool = False,
        result: tuple[Any] | None = None,
        finish: Callable[[], None] | None = None,
        since: float = -1.0,
    ) -> None:
        """Put right what an interrupt left half done, and take back what the call still holds.

        Without a `result` an open ticket has failed or is abandoned, and a train's batch stays first in line. With one, a
        collect stays in line, so that its batch is not lost (or is rejected, if it is None), and a train is counted by
        `finish`. `since`: when it began.
        """
        self._mend()
        for kind in ("collect", "train", "eval"):
            for parked in [parked for parked in self._lines[kind] if parked.holder is holder]:
                self._lines[kind].remove(parked)
                self._count_wait(parked)
        if since >= 0.0 and result is None:
            self.recorder.failed(since, self.clock.now())
        self._let_go_of_tickets(holder, failed, result)
        if self._turn is holder:
            self.recorder.sums["train_failures"] += failed and result is None and self.gate.running != "eval"
            self._let_go_of_turn(finish if result is not None else None)
        self._settle()

    def _let_go_of_tickets(self, holder: Holder, failed: bool, result: tuple[Any] | None) -> None:
        lined_up = {parked.ticket for parked in self._commits}
        for ticket in [ticket for ticket in self.gate.tickets.values() if self._holders[ticket.id] is holder]:
            if ticket in lined_up:
                continue
            if result is not None and result[0] is None:
                self._reject(ticket)
            elif result is not None:
                self.data[ticket.id] = result[0]
                self._park(Parked("commit", _Nobody(), self.clock.now(), ticket, holder))
            elif failed:
                self._fail(ticket)
            else:
                self._abandon(ticket)

    def _let_go_of_turn(self, finish: Callable[[], None] | None) -> None:
        if self.gate.running == "eval":
            self.gate.finish_eval()
            self._turn = None
        elif finish is not None:
            finish()
        else:
            self._forget(self.gate.fail_train())
            self._turn = None

    def heal(self) -> None:
        """After an interrupt between any two lines: free what is locked, and put right what was half done."""
        self.unlock()
        with self.lock:
            self._mend()
            self._settle()

    def unlock(self) -> None:
        """Free the locks that an interrupt left locked in this thread, which is not inside of any of them."""
        for lock in self.locks:
            while lock._is_owned():  # type: ignore[attr-defined]
                lock.release()

    def _mend(self) -> None:
        """Under the lock, after an interrupt: complete what its holder had begun to change, or undo it."""
        gate, commits = self.gate, self._commits
        gate.mend()
        for parked in commits:
            assert parked.ticket is not None
            if parked.ticket.id not in gate.tickets and parked.error is None:
                parked.grant = parked.ticket
        for line in (commits, *self._lines.values()):
            for parked in [parked for parked in line if parked.grant or (parked.error and not parked.ticket)]:
                self._wake(parked)
                self._leave(parked)
        for ticket in [ticket for ticket in gate.tickets.values() if ticket.id not in self._holders]:
            self._abandon(ticket)
        for ticket_id in [number for number in self._holders if number not in gate.tickets]:
            del self._holders[ticket_id]
        if gate.running is None:
            self._turn = None
        elif self._turn is None:
            self._let_go_of_turn(None)
        kept = {ticket.id for ticket in gate.waiting} | {parked.ticket.id for parked in commits if parked.ticket}
        for number in [number for number in self.data if number not in kept]:
            del self.data[number]

    def when_unlocked(self, action: Callable[[], None]) -> None:
        """Run `action` under the lock now, or, if the lock is held, when its holder or the next one settles.

        For the finalizers of coroutines: the garbage collector may run them in a thread that holds the lock.
        """
        self._orphans.append(action)
        if not self.lock._is_owned() and self.lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                self._settle()
            finally:
                self.lock.release()

    # -- telling the gate ----------------------------------------------------------------------------------------------

    def finish_train(
        self, start: float, end: float, published: bool, then: Callable[[Any, bool], None], result: Any
    ) -> None:
        """Count the train or replay that ran; `then(result, starved)` runs before the lock is let go."""
        with self.lock:
            gate = self.gate
            replay = gate.running == "replay"
            version = gate.version
            if dropped := gate.finish_train():
                self._forget(dropped)
            self._turn = None
            if not replay:
                done = gate.ended
                for ticket in done:
                    del self.data[ticket.id]
                self.recorder.trained_on(version - (done[0] if len(done) == 1 else min(done)).version)
            if published:
                gate.publish()
            try:
                then(result, self._starved)
            finally:
                self._look_at_room()
                self._starved = False
                self._settle()
                self.recorder.ran("replay" if replay else "train", start, end)

    def training(self) -> tuple[Ticket, ...]:
        """The batches of the train that runs, in the order in which their collects started."""
        with self.lock:
            return tuple(sorted(self.gate.group()))

    def abandon_remainder(self) -> None:
        """All is collected: give up the batches that are too few for a train."""
        with self.lock:
            if not self.gate.tickets:
                self._forget(self.gate.abandon_remainder())
                self._settle()

    def count_failed_train(self, start: float, end: float, error: BaseException) -> bool:
        """A train raised and is tried again at once; return whether one has failed with such an error before."""
        with self.lock:
            self.recorder.failed(start, end)
            self.recorder.sums["train_failures"] += 1
            known = type(error) in self._failures
            self._failures.add(type(error))
            return known

    def finish_eval(self, start: float, end: float, *, failed: bool) -> None:
        """Give the learner's turn back after an evaluation."""
        with self.lock:
            self.gate.finish_eval()
            self._turn = None
            if failed:
                self.recorder.failed(start, end)
            else:
                self.recorder.ran("eval", start, end)
            self._settle()

    def set_degree(self, degree: int) -> None:
        """Change the bound for new admissions."""
        with self.lock:
            self.gate.set_degree(degree)
            self._look_at_room()
            self._settle()

    def set_capacity(self, capacity: int) -> None:
        """Change the length of the queue; what a shorter one has no room for is dropped."""
        with self.lock:
            self._forget(self.gate.set_capacity(capacity))
            self._look_at_room()
            self._settle()

    def set_active_collectors(self, number: int) -> None:
        """Admit only so many collects at once."""
        with self.lock:
            self.gate.set_active_collectors(number)
            self._settle()

    def begin_run(self, max_collect: int | None, max_train: int | None) -> None:
        """Set the limits of a run. If nobody is at work, the time since the last one ended was a pause."""
        with self.lock:
            if not self.gate.tickets and self.gate.running is None:
                self.recorder.new_stretch()
                self._look_at_room()
                self.activity.new_stretch(self.clock.now())
        self.set_limits(max_collect, max_train)

    def set_limits(self, max_collect: int | None, max_train: int | None) -> None:
        """Admit no collect that these counts could not use; counts since the last reset."""
        with self.lock:
            self._max_collect, self._max_train = max_collect, max_train
            self._limited = max_collect is not None or max_train is not None or self.pauses.count > 0
            self._settle()

    # -- pausing -------------------------------------------------------------------------------------------------------

    def pause(self, block: int) -> None:
        """Let nothing new start until `resume`."""
        with self.lock:
            self.pauses.open(block)
            self._limited = True

    def wait_until_quiet(self, timeout: float | None) -> None:
        """Wait until no stage runs: finished collects may still be in line."""
        waiter = self.clock.waiter()
        with self.lock:
            self.signal.raise_if_set()
            if self._is_quiet():
                return
            self.pauses.waiters.append(waiter)
        waiter.wait(timeout)
        with self.lock:
            if waiter in self.pauses.waiters:
                self.pauses.waiters.remove(waiter)
                gate, running = self.gate, len(self.gate.tickets) - len(self._commits)
                raise GateTimeout(
                    f"Waited {timeout:.3g} s in vain to pause: {running} collect(s) run, and the learner is "
                    f"{gate.running or 'idle'}."
                )
            if not self._is_quiet():
                self.signal.raise_if_set()

    def rest(self) -> None:
        """Everything is at rest: the clocks stand still."""
        with self.lock:
            if self.pauses.begin(self.clock.now()):
                self.activity.freeze(self.clock.now())

    def resume(self, block: int) -> None:
        """A pause is over; after the last one, go on."""
        with self.lock:
            pauses, now = self.pauses, self.clock.now()
            if not pauses.close(block):
                return
            if pauses.since is not None:
                self.activity.thaw(now)
                self.recorder.new_stretch()
                self._look_at_room()
            pauses.end(now)
            self._limited = self._max_collect is not None or self._max_train is not None
            pauses.wake(pauses.sleepers)
            self._settle()

    def while_paused(self, make_waiter: MakeWaiter) -> Waiter | None:
        """What to wait on before something starts that is no stage; None if it may start now."""
        with self.lock:
            self.signal.raise_if_set()
            if not self.pauses.count:
                return None
            waiter = make_waiter()
            self.pauses.sleepers.append(waiter)
            return waiter

    def _is_quiet(self) -> bool:
        return self.gate.running is None and len(self.gate.tickets) == len(self._commits)

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, error: Stopped, *, patient: bool) -> None:
        """Release every waiter with `error`. A patient stop lets finished collects wait for their commit while a train
        or another collect still runs that could make room; otherwise they are abandoned now. Closing is for good."""
        with self.lock:
            self.signal.set(error)
            self.patient = patient and not self.signal.closed
            for kind in ("collect", "train", "eval"):
                while self._lines[kind]:
                    self._release(self._lines[kind][0])
            self._settle()
            self.pauses.wake(self.pauses.waiters)
            self.pauses.wake(self.pauses.sleepers)
        self.signal.tell()

    def restart(self) -> None:
        """Forget a stop, unless it was a close: its run has ended and none of its roles is left."""
        with self.lock:
            self.signal.clear()
            self._settle()

    def settle(self) -> None:
        """Serve whoever can go after the state was changed from outside."""
        with self.lock:
            self._look_at_room()
            self._settle()

    # -- under the lock ------------------------------------------------------------------------------------------------

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
                elif self._drained():
                    self._release(trains[0], Stopped("max_collect"))
            if not collects or (ticket := self._try_collect()) is None:
                break
            self._serve(collects[0], ticket)
        # What waits for a train: committed batches that are not being trained, and finished collects that the degree holds back.
        gate, recorder = self.gate, self.recorder
        queued = len(gate.waiting) + len(commits) - (gate.per_train if gate.running == "train" else 0)
        if queued != recorder.queued:
            recorder.queue_is(queued, self.clock.now())
        if self.pauses.waiters and self._is_quiet():
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
        seconds = now - parked.since - (self.pauses.seconds(now) - parked.paused)
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

    def _drained(self) -> bool:
        """Whether max_collect batches were collected and everything that could be trained was."""
        gate = self.gate
        return (
            self._max_collect is not None
            and not gate.tickets
            and not gate.ready
            and gate.running is None
            and self.recorder.count(gate, "committed") >= self._max_collect
        )

    def _collectors_are_held_back(self) -> bool:
        return bool(self._lines["collect"] or self._commits)

    def _start_train(self) -> Ticket | None:
        if self.pauses.count:
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


class _Nobody:
    """Where nobody waits: the call of a finished collect was interrupted, and its batch is in line."""

    def wait(self, timeout: float | None) -> bool:
        """Nobody waits here."""
        raise AssertionError("nobody waits here")

    def wake(self) -> None:
        """Nobody has to be told."""


_DOING: Final = {
    "collect": "start a collect",
    "commit": "commit a collect (its batch stays in line)",
    "train": "start a train",
    "eval": "start an evaluation",
}
