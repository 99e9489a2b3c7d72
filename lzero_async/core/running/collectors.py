"""The collectors of a session: functions or workers that collect again and again, and come back after a failure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lzero_async.core.running.session import Session
from lzero_async.core.settings import refuse_coroutine
from lzero_async.errors import ConfigError, Stopped
from lzero_async.threads import LoopRunner
from lzero_async.types import CollectContext, CollectWorker

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator

Collect = Callable[..., Any] | Sequence[CollectWorker]
log = logging.getLogger("lzero_async")


class CollectorSession(Session):
    """A session whose collectors run in threads, or, at degree 0, in the learner's."""

    def __init__(
        self,
        coordinator: AsyncTrainingCoordinator,
        collect: Collect,
        *,
        on_restart: Callable[[int, Exception], object] | None,
        on_retire: Callable[[int], object] | None,
        **limits: Any,
    ) -> None:
        super().__init__(coordinator, **limits)
        refuse_coroutine("on_restart", on_restart)
        refuse_coroutine("on_retire", on_retire)
        self.workers: tuple[CollectWorker, ...] = ()
        if callable(collect):
            self.collect_fn: Callable[..., Any] = collect
        else:
            self.workers = _checked(collect, coordinator.num_collectors)
            self.collect_fn = self._collect_by_worker
        self.on_restart, self.on_retire = on_restart, on_retire
        self.collectors_left = coordinator.num_collectors
        self.proven: set[int] = set()  # collectors that have collected
        self.rejections: Counter[int] = Counter()  # in a row, by collector

    def start_collectors(self) -> None:
        """Start a thread for each."""
        threads = self.coordinator.threads
        for worker in range(self.coordinator.num_collectors):
            threads.start(f"collector-{worker}", partial(self._collect_on_and_on, worker))

    def _collect_here(self, runner: LoopRunner) -> bool:
        """Degree 0: collect what the next train takes, unless that is owed; return whether it is there."""
        failures = 0
        while not self.keeper.gate.ready and not self._ended():
            failures = self._collect_once(0, runner, failures, self._patience())
        return self.keeper.gate.ready

    def _collect_on_and_on(self, worker: int) -> None:
        """The body of a collector thread."""
        runner = self._new_runner()
        failures = 0
        try:
            while True:
                failures = self._collect_once(worker, runner, failures)
        except Stopped as error:
            if error.origin is not self.signal:
                raise
        except Exception as error:
            if not self._retire(worker, error, failures + 1):
                raise
        finally:
            runner.close()

    def _retire(self, worker: int, error: Exception, failures: int) -> bool:
        """A collector failed too often, or could not be restarted: go on without it if another one is left; return whether."""
        keeper, coordinator = self.keeper, self.coordinator
        with keeper.lock:
            hopeless = self.collectors_left <= 1 or self._is_refused(worker, error, 0)
            if coordinator.recovery.on_failure != "restart" or self.signal.is_set() or hopeless:
                return False
            self.collectors_left -= 1
            keeper.recorder.sums["retired"] += 1
        log.error("collector %d failed %s and is retired; the others go on: %r", worker,
                  f"{failures} times in a row" if failures > 1 else "once", error)  # fmt: skip
        if self.on_retire is not None:
            self.on_retire(worker)
        return True

    def _collect_once(self, worker: int, runner: LoopRunner, failures: int, timeout: float | None = None) -> int:
        """Collect one batch; return the failures in a row. By `on_failure`, a failure ends the run or costs a pause."""
        coordinator = self.coordinator
        try:
            data = self._call(runner, coordinator.collect_stage(worker, self), self.collect_fn, timeout)
            self.proven.add(worker)
        except Exception as error:
            if getattr(error, "origin", None) is self.signal:
                raise
            if self._is_refused(worker, error, failures):
                raise
            self._pause_after(f"collector {worker}", error, failures)
            self._revive(worker, error)
            return failures + 1
        self.rejections[worker] = 0 if data is not None else self.rejections[worker] + 1
        if data is None:
            self._pause_after_rejection(worker)
        return 0

    def _pause_after_rejection(self, worker: int) -> None:
        """A collect returned None. From `max_restarts` in a row on, wait as after a failure, but for ever again."""
        coordinator, rejections = self.coordinator, self.rejections[worker]
        times = rejections - max(1, coordinator.recovery.max_restarts)
        if times >= 0:
            pause = self._pause(times)
            log.warning(
                "collector %d returned None %d times in a row; it collects again in %.3g s", worker, rejections, pause
            )
            self._wait(pause)

    def _is_refused(self, worker: int, error: Exception, failures: int) -> bool:
        """Whether a collector cannot be used at all. What cannot be used does not become usable; but of one that had come
        further before, the same words may pass: a server that it needs is starting again, say."""
        return isinstance(error, ConfigError) and not failures and worker not in self.proven

    # -- workers -------------------------------------------------------------------------------------------------------

    def _collect_by_worker(self, context: CollectContext) -> Any:
        version, state = context.snapshot or (context.version, None)  # it may be newer by a hair than the ticket
        return self.workers[context.worker].call("collect", version, state, stop=context.stop)

    def _revive(self, number: int, error: Exception) -> None:
        """After the pause: restart a worker that has died, and wait for it without a ticket, which others would wait for."""
        if self.workers and not self.workers[number].alive:
            self.workers[number].restart()
            self.workers[number].wait_until_ready(self.signal)
        if self.on_restart is not None:
            self.on_restart(number, error)


def _checked(workers: Any, num_collectors: int) -> tuple[CollectWorker, ...]:
    """The workers, one for each collector, or a ConfigError."""
    if isinstance(workers, (str, bytes)) or not isinstance(workers, Sequence):
        raise ConfigError(f"collect is {workers!r}; it must be a function, or a list of workers.")
    for worker in workers:
        if not all(hasattr(worker, name) for name in ("call", "alive", "restart", "wait_until_ready")):
            raise ConfigError(f"collect has {worker!r} in it; it must be a function, or a list of workers.")
    if len(workers) != num_collectors:
        raise ConfigError(
            f"collect has {len(workers)} workers, but num_collectors is {num_collectors}; give the coordinator as many."
        )
    return tuple(workers)
