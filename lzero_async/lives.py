"""A worker whose role lives outside this process: it has one life after another, and each is watched by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from lzero_async.calls import PackedError, Signal, listen, unpack_error
from lzero_async.errors import WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal


class Life(Protocol):
    """One process or actor of a worker, from its start to its end. `death` says how it ended, and is None until then."""

    death: str | None
    started: Signal
    """Its role is made, could not be made, or will not be."""

    @property
    def pid(self) -> int:
        """Its process; 0 while that is not known."""

    @property
    def host(self) -> str:
        """The address of its machine; '' is this one."""

    def listen(self) -> None:
        """Take what it says until it ends; runs in a thread of its own."""

    def wait_until_ready(self, stop: StopSignal | None) -> None:
        """Wait until the role is made; raise what its factory raised."""

    def call(self, method: str, args: tuple[Any, ...], stop: StopSignal | None, timeout: float | None) -> Any:
        """Call the role, which does nothing else meanwhile."""

    def cancel(self, reason: str) -> None:
        """Set the stop signal of the call that runs."""

    def end(self, why: str) -> None:
        """End it at once, if it has not ended, for this reason."""

    def begin_close(self) -> None:
        """Ask the role to close after the call that runs, which is asked to end."""

    def finish_close(self, timeout: float) -> PackedError | None:
        """Wait for the role to close, at most so long, and end it; return what closing raised, once."""


L = TypeVar("L", bound=Life)


class LivingWorker(Generic[L]):
    """One role, life after life; see `Worker`. `new_life()` makes one."""

    def __init__(self, name: str, new_life: Callable[[], L], threads: ThreadGroup) -> None:
        self.name = name
        self.restarts = 0
        self._new_life, self._threads = new_life, threads
        self._calling = threading.Lock()
        self._changing = threading.Lock()
        self._closed_for_good = False
        self._life = self._begin()

    @property
    def pid(self) -> int:
        return self._life.pid

    @property
    def host(self) -> str:
        return self._life.host

    @property
    def alive(self) -> bool:
        return self._life.death is None

    def call(self, method: str, *args: Any, stop: StopSignal | None = None, timeout: float | None = None) -> Any:
        with self._calling:
            life = self._life
            life.wait_until_ready(stop)
            return life.call(method, args, stop, timeout)

    def wait_until_ready(self, stop: StopSignal | None = None) -> None:
        woken = threading.Event()
        ends = [listen(signal, lambda reason: woken.set()) for signal in (self._life.started, stop)]
        woken.wait()
        for end in ends:
            end()

    def cancel(self, reason: str = "cancelled") -> None:
        self._life.cancel(reason)

    def kill(self) -> None:
        self._life.end("was ended")

    def restart(self) -> None:
        with self._changing:
            if self._closed_for_good:
                raise WorkerDied(f"{self.name} cannot be restarted: its backend is closed.")
            self.kill()
            self.restarts += 1
            self._life = self._begin()

    def begin_close(self, *, for_good: bool = False) -> None:
        """Ask the role to close, without waiting for it; `for_good` refuses restarts after that."""
        if for_good:
            with self._changing:
                self._closed_for_good = True
        self._life.begin_close()

    def close(self, timeout: float = 5.0) -> None:
        self.begin_close()
        error = self._life.finish_close(timeout)
        if error is not None:
            raise unpack_error(error, self.name, None)

    def _begin(self) -> L:
        life = self._new_life()
        self._threads.start(self.name, life.listen)
        return life
