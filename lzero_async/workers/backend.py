"""Where a role lives: in the calling thread, in a thread of its own, in a process of its own, or in an actor of a Ray cluster.

A role is any object; a factory makes it: a picklable callable that gets one argument, `emit`, with which the role can tell
its owner something while a call runs. The owner calls the role's methods through a `Worker`, one call at a time, and needs
not know where it lives.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from lzero_async.errors import ConfigError, Stopped
from lzero_async.types import StopSignal
from lzero_async.validation import backoff, duration, one_of, whole_number
from lzero_async.workers.calls import (
    OWN_ENDS,
    interrupted,
    listen,
    stopped,
)

Factory = Callable[[Callable[[Any], None]], Any]
log = logging.getLogger("lzero_async")
BACKENDS: Final = ("inline", "thread", "process", "ray")
_MOMENT: Final = 0.1  # seconds for threads that were told to end


class Worker(Protocol):
    """One role. Every method may be called from any thread; calls are served one after the other."""

    name: str

    @property
    def host(self) -> str:
        """The address of the machine that the role lives on; '' is this one."""

    @property
    def pid(self) -> int:
        """The process that the role lives in; 0 while that is not known, since Ray has found no place for it yet."""

    @property
    def alive(self) -> bool:
        """Whether it can be called."""

    @property
    def restarts(self) -> int:
        """How often it was restarted."""

    def call(self, method: str, *args: Any, stop: StopSignal | None = None, timeout: float | None = None) -> Any:
        """Call a method of the role and return its result, or raise what it raised, with its traceback.

        With `stop`, the method gets a keyword argument `stop` that is set when that one is, or by `cancel`; a call that has
        not reached the role by then, because another one runs or the role is still being made in a process of its own, raises
        Stopped. Raises WorkerDied when the worker dies under the call, or does not answer within `timeout` seconds from now
        (which ends it), and GateTimeout when another call runs for so long (which ends nothing).
        """

    def wait_until_ready(self, stop: StopSignal | None = None) -> None:
        """Wait until the role is made, as long as `stop` is not set; whoever calls it then need not wait for that. Returns
        as well if it could not be made, which the next call says. A role of this process is made by its first call."""

    def cancel(self, reason: str = "cancelled") -> None:
        """Set the stop signal of the call that runs, if any; the call ends when the role looks at it."""

    def kill(self) -> None:
        """End it at once; a call that runs raises WorkerDied."""

    def restart(self) -> None:
        """Make the role anew, whatever became of the last one; returns at once, and errors of the factory come with the
        next call."""

    def close(self, timeout: float = 5.0) -> None:
        """Let the role's `close` run if it has one, then end it; after `timeout` seconds at once. A role that is still being
        made, in a process of its own, is ended at once."""


class Backend(Protocol):
    """Starts workers of one kind."""

    kind: str

    def start(
        self,
        name: str,
        factory: Factory,
        *,
        on_event: Callable[[Any], None] | None = None,
        environment: Mapping[str, str] | None = None,
        output: str = "",
        pin_to_driver: bool = False,
    ) -> Worker:
        """A worker with the role that `factory` makes; returns at once, and errors of the factory come with the first call.

        `on_event` gets what the role emits, in order, in any thread; it may call the worker. For a process,
        `environment` is added to its environment variables, and what it prints goes to the file `output` instead of the
        terminal. `pin_to_driver` keeps the role on this machine, because it writes files that belong here.
        """

    def close(self, timeout: float = 5.0) -> None:
        """Close every worker."""


def make_backend(
    kind: str,
    *,
    hang_timeout: float = 60.0,
    preload: Sequence[str] = (),
    ray_address: str = "",
    ray_resources: Mapping[str, Mapping[str, float]] | None = None,
) -> Backend:
    """The backend of that name; `hang_timeout` is the seconds without a sign of life after which a process counts as hung.

    For processes: the names of modules that roles import, `preload`. They are imported once, in the background, and roles are
    forked from there, restarts too; the first start waits for that. With a GPU, and for a role whose `environment` says more
    than numbers of threads, each process makes its own imports.
    For Ray: the address of a cluster ('': one of its own on this machine), and what a role needs of a machine, by the kind
    of role: {"collector": {"CPU": 1}}.
    """
    one_of("backend", kind, BACKENDS)
    duration("hang_timeout", hang_timeout)
    if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
        raise ConfigError(f"preload is {preload!r}; it must be a list of names of modules.")
    if kind == "process":
        if sys.platform != "linux":
            raise ConfigError(
                f"Processes need Linux, but this is {sys.platform}; use the backend 'thread' or a Linux machine."
            )
        from lzero_async.workers.process import ProcessBackend

        return ProcessBackend(hang_timeout=hang_timeout, preload=preload)
    if kind == "ray":
        from lzero_async.workers.ray.backend import RayBackend

        return RayBackend(hang_timeout=hang_timeout, address=ray_address, resources=ray_resources)
    from lzero_async.workers.local import InlineBackend, ThreadBackend

    return InlineBackend() if kind == "inline" else ThreadBackend()


def ask_again(
    worker: Worker,
    method: str,
    *args: Any,
    stop: StopSignal,
    max_restarts: int,
    restart_backoff: float,
    given_up: Callable[[], bool],
    on_restart: Callable[[Exception], None],
) -> Any:
    """Call a role that keeps nothing from call to call, an evaluator say: one that fails is made anew after a pause
    (`restart_backoff` seconds, doubling up to 30) and asked again, at most `max_restarts` times, unless the run was
    interrupted or `given_up()`. `on_restart(error)` is called after each restart."""
    whole_number("max_restarts", max_restarts, 0)
    duration("restart_backoff", restart_backoff)
    for attempt in range(max_restarts + 1):
        try:
            worker.wait_until_ready(_Interruption(stop))  # what is due at a run's own end waits for the role, too
            return worker.call(method, *args, stop=stop)
        except Exception as error:
            pause = backoff(restart_backoff, attempt)
            if isinstance(error, (Stopped, ConfigError)) or attempt == max_restarts:
                raise  # what cannot be used does not become usable
            # What is due at a run's own end is finished.
            if (stop.wait(pause) and interrupted(stop)) or given_up():
                raise stopped(stop) from error
            log.warning("the %s failed (%r); it is made anew after %.3g s and asked again", worker.name, error, pause)
            worker.restart()
            worker.wait_until_ready(_Interruption(stop))
            on_restart(error)
    raise AssertionError


class _Interruption:
    """The stop of a run, but not for an end of its own."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        if hasattr(stop, "listen"):
            self.listen = self._listen

    def is_set(self) -> bool:
        return interrupted(self._stop)

    def wait(self, seconds: float) -> bool:
        self._stop.wait(seconds)
        return self.is_set()

    def _listen(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return listen(self._stop, lambda reason: None if reason in OWN_ENDS else callback(reason))


def close_all(workers: list[Worker], timeout: float) -> None:
    """Close every worker, each whatever becomes of the others, in `timeout` seconds together; raise the first error, log
    the others."""
    deadline = time.monotonic() + timeout
    failed: Exception | None = None
    for worker in workers:
        try:
            worker.close(max(0.0, deadline - time.monotonic()))
        except Exception as error:
            if failed is not None:
                log.error("while closing after %r: %r", failed, error)
            failed = failed or error
    if failed is not None:
        raise failed
