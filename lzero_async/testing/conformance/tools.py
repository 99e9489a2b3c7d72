"""What checks are made of: workers that are started, calls in other threads, a gate, a stop."""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.core.keeping.stopping import RunStop
from lzero_async.testing.conformance.roles import PATIENCE, Subject
from lzero_async.threads import ThreadGroup
from lzero_async.workers.backend import Backend, Worker

AT_ONCE: Final = 1.0  # seconds in which a death must have reached the caller


def raised(kind: type[BaseException], work: Callable[[], Any], text: str = "") -> Any:
    """What the work raised, which must be of this kind."""
    try:
        result = work()
    except kind as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
        return error
    raise AssertionError(f"{kind.__name__} was expected, not the result {result!r}")


class Others:
    """Work in other threads, and what came of it."""

    def __init__(self) -> None:
        self._threads = ThreadGroup(RealClock(), "lzero-check")

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        """Do it in a thread of its own."""
        future: Future[Any] = Future()

        def body() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._threads.start("other", body)
        return future

    def __enter__(self) -> Others:
        return self

    def __exit__(self, *_: object) -> None:
        left = self._threads.join(PATIENCE)
        assert not left, f"calls that never came back: {left}"


def started(backend: Backend, role: Any = Subject, **options: Any) -> tuple[Worker, queue.SimpleQueue[Any]]:
    """A worker, and what it emits."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return backend.start("subject", partial(role, **options), on_event=events.put), events


@contextmanager
def new_gate() -> Iterator[tuple[str, Callable[[], None]]]:
    """The name of a pipe, and what opens it for all who read from it, then and later."""
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "gate")
        os.mkfifo(name)

        def release() -> None:
            os.close(os.open(name, os.O_RDWR))  # never waits, and whoever waits for a writer has seen one
            os.unlink(name)
            with open(name, "w"):
                pass

        yield name, release


def new_stop() -> RunStop:
    """A stop that is not set."""
    return RunStop(RealClock())
