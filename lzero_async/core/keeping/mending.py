"""After an exception or an interrupt: take back what a call still holds, and put right what was left half done.

Whatever is given out has a holder, and a parked request leaves its line last. So after an interrupt between any two lines of a
call, `let_go` knows what that call still holds, and `_mend` finds what was half done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lzero_async.core.keeping.parked import Holder, Nobody, Parked
from lzero_async.core.keeping.serving import Serving


class Mending(Serving):
    """Gives back, frees and completes."""

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
                self._park(Parked("commit", Nobody(), self.clock.now(), ticket, holder))
            elif failed:
                self._fail(ticket)
            else:
                self._abandon(ticket)

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
