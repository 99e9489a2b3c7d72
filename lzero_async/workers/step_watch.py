"""A limit on how long one call, such as an environment's step, may take. It costs a call no more than storing the time.

What happens to a call that is overdue depends on where it runs, from the least loss to the greatest:

1. In the main thread of its process (a role on the process and inline backends) it is interrupted: StepOverdue is raised
   out of it, wherever Python code, a sleep, a lock or a system call can be interrupted. The caller treats that as an
   exception of the environment, which must not be used again.
2. If that has not ended it within GRACE seconds, or it runs in another thread (Ray), a worker process says so and ends
   itself with the code EXIT_STUCK. Its owner's call raises WorkerStuck, a WorkerDied, and the worker is restarted.
3. The owner's own process cannot be ended like that: `on_overdue` gets the sentence and ends the run, and a call in
   another thread is left behind. If it is the main thread that hangs, nobody else can end the run: GRACE seconds later
   the process ends with EXIT_STUCK. Checkpoints are whole at any moment.

A call that holds the interpreter's lock stops the watch as well; the owner finds that out by `hang_timeout`.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from lzero_async.clock import RealClock
from lzero_async.errors import StepOverdue
from lzero_async.threads import ThreadGroup
from lzero_async.types import Clock, Waiter
from lzero_async.validation import positive_number

EXIT_STUCK: Final = 86  # the code of a process that ended itself
GRACE: Final = 2.0  # seconds from one way to end a call to the next
_SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # one that nobody else uses
log = logging.getLogger("lzero_async")

_leave: Callable[[str], NoReturn] | None = None
_to_interrupt: _Call | None = None


def leave_by(leave: Callable[[str], NoReturn] | None) -> None:
    """This process is a worker that may be ended: `leave(sentence)` tells its owner why, and ends it."""
    global _leave
    _leave = leave


class StepWatch:
    """Watches calls: `with watch.running("environment 3, step 17"): env.step(action)`.

    One thread, started by the first call and ended by `close`, sleeps until the earliest moment at which a call can be
    overdue. Any number of threads may be inside a call. `overdue` counts the calls that took too long. See the module for
    what becomes of them.
    """

    def __init__(
        self, timeout: float, *, on_overdue: Callable[[str], None] | None = None, clock: Clock | None = None
    ) -> None:
        self.timeout = positive_number("step_timeout", timeout)
        self.overdue = 0
        self.longest = 0.0  # seconds of the longest call that returned in time
        self._on_overdue = on_overdue
        self._clock: Clock = clock or RealClock()
        self._now = self._clock.now
        self._threads = ThreadGroup(self._clock, "lzero-watch")
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiter: Waiter | None = None
        self._turn: object | None = None  # of the thread that watches now, if one does
        if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            signal.signal(_SIGNAL, _interrupt)

    def running(self, what: object) -> _Call:
        """A context for one call; `what` names it, if it becomes overdue, by its `str`."""
        return _Call(self, what)

    def limit(self, timeout: float) -> None:
        """From now on calls may take so long, those that run included: of a run that stops, nobody wants to wait for."""
        self.timeout = positive_number("step_timeout", timeout)
        self._wake()

    def close(self) -> None:
        """End the watching thread. Calls that run are watched no more; the next one that begins starts it again, so a role
        that may be dropped at any time closes its watch whenever it is idle."""
        with self._lock:
            self._turn = None
        self._wake()
        self._threads.join(GRACE)

    def _wake(self) -> None:
        with self._lock:
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.wake()

    def _start(self) -> None:
        with self._lock:
            if self._turn is not None:
                return
            turn = self._turn = object()
        try:
            self._threads.start("steps", lambda: self._watch(turn))
        except BaseException:  # the next call tries again
            self._turn = None
            raise

    def _watch(self, turn: object) -> None:
        while True:
            with self._lock:
                if self._turn is not turn:
                    return
                waiter = self._waiter = self._clock.waiter()
            now = self._now()
            due = now + self.timeout  # of a call that begins at this moment
            for call in list(self._calls.values()):
                if call.due <= now:
                    self._act(call, now)
                due = min(due, call.due)
            waiter.wait(max(0.0, due - self._now()))

    def _act(self, call: _Call, now: float) -> None:
        """A call is overdue: take the next step towards its end."""
        call.tries += 1
        if call.tries == 1:
            self.overdue += 1
            call.next = now + min(GRACE, self.timeout)
            if call.interrupt():
                return
            call.tries += 1
        sentence = f"{call.what} did not return within {self.timeout:g} s (step_timeout)"
        if _leave is not None:
            _leave(sentence)
        if call.tries == 2:
            call.next = now + GRACE if call.in_main_thread else float("inf")
            log.error("%s", sentence)
            if self._on_overdue is not None:
                self._on_overdue(sentence)
            return
        print(f"{sentence}; it cannot be interrupted, so the program ends.", file=sys.stderr, flush=True)
        os._exit(EXIT_STUCK)


class _Call:
    """One call, from its begin to its end."""

    __slots__ = ("_began", "_key", "_watch", "in_main_thread", "next", "thread", "tries", "what")

    def __init__(self, watch: StepWatch, what: object) -> None:
        self._watch, self.what = watch, what
        self.tries, self.next = 0, 0.0

    def __enter__(self) -> None:
        watch = self._watch
        if watch._turn is None:
            watch._start()
        self.thread = threading.get_ident()
        self._began = watch._now()
        self._key = next(watch._numbers)
        watch._calls[self._key] = self

    def __exit__(self, *exc: object) -> None:
        watch = self._watch
        watch._calls.pop(self._key, None)
        seconds = watch._now() - self._began
        if watch.longest < seconds < watch.timeout:
            watch.longest = seconds

    @property
    def due(self) -> float:
        """When something is to be done about it."""
        return self.next if self.tries else self._began + self._watch.timeout

    @property
    def runs(self) -> bool:
        return self._key in self._watch._calls

    def interrupt(self) -> bool:
        """Have StepOverdue raised in the main thread, if the call runs there; whether that can be tried."""
        global _to_interrupt
        main = threading.main_thread().ident
        self.in_main_thread = self.thread == main
        if not self.in_main_thread or main is None or signal.getsignal(_SIGNAL) is not _interrupt:
            return False
        _to_interrupt = self
        signal.pthread_kill(main, _SIGNAL)
        return True


_EDGES: Final = (_Call.__enter__.__code__, _Call.__exit__.__code__)  # an exception there would leave the call behind


def _interrupt(number: int, frame: Any) -> None:
    """In the main thread: raise out of the call that is overdue, if it has not ended since."""
    global _to_interrupt
    call, _to_interrupt = _to_interrupt, None
    if call is not None and frame is not None and frame.f_code in _EDGES:
        call.tries = 0  # it ends at this very moment; one that only begins is interrupted inside
    elif call is not None and call.runs:
        raise StepOverdue(f"{call.what} did not return within {call._watch.timeout:g} s (step_timeout)")
