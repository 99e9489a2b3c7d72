"""The gate's only lock, and the waiting around it.

A request that the gate cannot serve is parked in a line. Whoever changes the state serves, before it lets go of the
lock, every parked request that has become possible: it takes the step on the waiter's behalf and wakes that waiter.
So nobody polls, nobody is woken in vain, and a wake-up cannot be lost: it carries the step that was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lzero_async.core.gate import Ticket
from lzero_async.core.keeping.mending import Mending
from lzero_async.core.keeping.parked import ANYBODY, Holder, MakeWaiter, Parked
from lzero_async.errors import GateTimeout, Stopped
from lzero_async.types import Waiter


class Gatekeeper(Mending):
    """A gate that many threads and event loops may use at once, and the numbers recorded under the same lock."""

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
        """A pause is over; after the last one, go on. After an interrupt between any two lines it is done once more."""
        with self.lock:
            pauses, now = self.pauses, self.clock.now()
            if pauses.is_last(block):
                if pauses.since is not None:
                    self.activity.thaw(now)
                    self.recorder.new_stretch()
                    self._look_at_room()
                pauses.end(now)
                self._limited = self._max_collect is not None or self._max_train is not None
            pauses.close(block)
            if not pauses.count:
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


_DOING: Final = {
    "collect": "start a collect",
    "commit": "commit a collect (its batch stays in line)",
    "train": "start a train",
    "eval": "start an evaluation",
}
