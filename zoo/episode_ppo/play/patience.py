"""Calls of workers whose environments may hang: one that hangs is replaced, and when the run stops, nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from lzero_async.errors import WorkerDied, WorkerStuck
from lzero_async.types import StopSignal
from lzero_async.workers.backend import Worker
from lzero_async.workers.calls import interrupted, listen, stopped
from zoo.episode_ppo.play.player import Failure, timed_out

GRACE = 1.0  # seconds that calls have to end after a stop


@contextmanager
def ended_soon(
    workers: Sequence[Worker], stop: StopSignal, counts: Callable[[StopSignal], bool] = lambda stop: True
) -> Iterator[None]:
    """While this lasts, a stop (one that `counts`) ends these workers a moment later, so that their calls raise WorkerDied."""
    over = threading.Event()

    def end() -> None:
        if not over.wait(GRACE):
            for worker in workers:
                worker.kill()

    def begin(reason: str) -> None:
        if counts(stop) and not over.is_set():
            with suppress(RuntimeError):  # it is over at this very moment
                threads.submit(end)

    with ThreadPoolExecutor(1) as threads:  # a thread of it is started only when there is a stop
        unlisten = listen(stop, begin)
        try:
            yield
        finally:
            over.set()
            unlisten()


class PatientEvaluator:
    """The evaluator, of which an evaluation is asked for again when one of its environments hung in it: then that episode has
    another seed, or, after all its tries, is left out. `on_failure(failure)` is told of every try that failed, in
    any thread; `on_restart()` each time that the evaluator was made anew. Apart from that, the worker."""

    def __init__(self, worker: Worker, on_failure: Callable[[Failure], None], on_restart: Callable[[], None]) -> None:
        self._worker, self._on_failure, self._on_restart, self._told = worker, on_failure, on_restart, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def told(self, what: Failure | str) -> None:
        """What it tells at once: that a try failed; or, from a process that it shares with others, that an environment hangs:
        then it is ended from here."""
        if isinstance(what, Failure):
            self._on_failure(what)
        else:
            self._told = what
            self._worker.kill()

    def call(self, method: str, *arguments: Any, stop: StopSignal | None = None) -> Any:
        """As that of the worker; `evaluate` gets how often each episode has hung as its last argument."""
        if method != "evaluate" or stop is None:
            return self._worker.call(method, *arguments, stop=stop)
        hung: dict[int, int] = {}
        while True:
            try:
                with ended_soon([self._worker], stop, interrupted):
                    return self._worker.call(method, *arguments, hung, stop=stop)
            except WorkerDied as error:
                if interrupted(stop):
                    raise stopped(stop) from error
                words, self._told = (str(error) if isinstance(error, WorkerStuck) else self._told), ""
                if (failure := timed_out(words)) is None:
                    raise
            hung[failure.number] = hung.get(failure.number, 0) + 1
            self._on_failure(failure)
            self._worker.restart()
            self._worker.wait_until_ready(stop)
            self._on_restart()
