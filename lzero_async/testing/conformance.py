"""What every backend promises, as checks that any test runner can run: `run_check(check, make_backend)` for each of CHECKS.

A check gets a fresh backend, which is closed after it. What a kind of backend cannot promise stands in EXEMPT, with the
reason. The roles are in this module, so that another process can import them.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.core.keeping.stopping import RunStop
from lzero_async.errors import GateTimeout, RemoteError, Stopped, WorkerDied
from lzero_async.testing.fakes import Block
from lzero_async.threads import ThreadGroup
from lzero_async.workers.backend import Backend, Worker
from lzero_async.workers.calls import RemoteTraceback
from lzero_async.workers.parcels import Parcel

Check = Callable[[Backend], None]
CHECKS: Final[list[Check]] = []
PATIENCE: Final = 20.0  # seconds; only a broken backend waits that long
AT_ONCE: Final = 1.0  # seconds in which a death must have reached the caller
EXEMPT: Final[dict[tuple[str, str], str]] = {
    ("kill_during_a_call", "inline"): "code in the calling thread cannot be ended from outside",
    ("a_call_that_takes_too_long_ends_the_worker", "inline"): "nobody is there to watch the calling thread",
    ("a_timeout_holds_while_the_role_is_made", "inline"): "nobody is there to watch the calling thread",
    ("a_stop_holds_while_the_role_is_made", "inline"): "a role of this process is made by its first call",
    ("a_stop_holds_while_the_role_is_made", "thread"): "a role of this process is made by its first call",
    ("close_does_not_wait_for_a_role_that_is_being_made", "inline"): "a role of this process is made by its first call",
    ("close_does_not_wait_for_a_role_that_is_being_made", "thread"): "a role of this process is made by its first call",
    ("an_event_that_is_not_taken_in_disables_nothing", "inline"): "it is taken in by the calling thread",
    ("a_remote_traceback_is_the_cause", "inline"): "the exception itself is raised, with its own traceback",
    ("a_remote_traceback_is_the_cause", "thread"): "the exception itself is raised, with its own traceback",
    ("an_exception_that_cannot_travel", "inline"): "the exception itself is raised, wherever its class lives",
    ("an_exception_that_cannot_travel", "thread"): "the exception itself is raised, wherever its class lives",
    ("a_result_that_cannot_travel", "inline"): "results stay where they are",
    ("a_result_that_cannot_travel", "thread"): "results stay where they are",
    ("an_argument_that_cannot_travel", "inline"): "arguments stay where they are",
    ("an_argument_that_cannot_travel", "thread"): "arguments stay where they are",
}


def applicable(kind: str) -> list[Check]:
    """The checks that a backend of this kind must pass."""
    return [check for check in CHECKS if (check.__name__, kind) not in EXEMPT]


def run_check(check: Check, make_backend: Callable[[], Backend]) -> None:
    """Run one check on a backend of its own."""
    backend = make_backend()
    try:
        check(backend)
    finally:
        backend.close()


def _check(check: Check) -> Check:
    CHECKS.append(check)
    return check


# -- roles -----------------------------------------------------------------------------------------------------------------


class Unpicklable(Exception):
    """An exception that does not survive pickling."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.lock = threading.Lock()


class Broken:
    """A role whose constructor raises."""

    def __init__(self, emit: Callable[[Any], None], text: str = "no model") -> None:
        raise ValueError(text)


class Slow:
    """A role whose constructor takes as long as somebody is patient."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        emit("making")
        time.sleep(PATIENCE)


class Gated:
    """A role that is made when somebody opens the pipe `gate` for writing."""

    def __init__(self, emit: Callable[[Any], None], gate: str) -> None:
        emit("making")
        with open(gate) as pipe:
            pipe.read()

    def answer(self, stop: Any = None) -> int:
        """Be there."""
        return 42


class Subject:
    """A role that does whatever a check asks for."""

    def __init__(self, emit: Callable[[Any], None], start: int = 0) -> None:
        self._emit = emit
        self.total = start
        self.inside = 0
        self.most_inside = 0
        self.array = bytearray(100_000)
        self.tensors: Any = None

    def add(self, number: int) -> int:
        """Count."""
        self.total += number
        return self.total

    def fail(self, text: str) -> None:
        """Raise something that can be pickled."""
        raise KeyError(text)

    def fail_unpicklably(self) -> None:
        """Raise something that cannot."""
        raise Unpicklable("one", "two")

    def fail_for_good(self) -> None:
        """Raise what is no Exception."""
        raise SystemExit(3)

    def unpicklable(self) -> Any:
        """Return what cannot be pickled."""
        return threading.Lock()

    def tell(self, *events: Any) -> int:
        """Emit events."""
        for event in events:
            self._emit(event)
        return len(events)

    def wait_for_stop(self, stop: Any = None) -> tuple[bool, str]:
        """Say that it began; wait until it is stopped."""
        self._emit("began")
        return stop.wait(PATIENCE), stop.stop_reason

    def stopped(self, stop: Any = None) -> None:
        """Raise what a role raises that gives up because of its stop."""
        stop.wait(PATIENCE)
        error = Stopped("gave up")
        error.origin = stop
        raise error

    def sleep(self, seconds: float, stop: Any = None) -> str:
        """Say that it began; sleep, deaf to any stop."""
        self._emit("began")
        time.sleep(seconds)
        return "slept"

    def busy(self, seconds: float) -> int:
        """Note how many calls are inside at once; return the most so far."""
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        time.sleep(seconds)
        self.inside -= 1
        return self.most_inside

    def parcel(self, byte: int, size: int = 100_000) -> Parcel:
        """A parcel of that many equal bytes."""
        return Parcel({"data": pickle.PickleBuffer(bytearray([byte]) * size), "byte": byte}, meta=("made", byte))

    def live(self) -> Parcel:
        """A parcel of an array that this role goes on changing."""
        return Parcel(Block(self.array), live=True)

    def live_inside(self) -> dict[str, Any]:
        """The same, inside of something else."""
        return {"parts": [(1, Parcel(Block(self.array), live=True))]}

    def scribble(self, byte: int) -> None:
        """Change that array."""
        self.array[:] = bytes([byte]) * len(self.array)

    def look(self, parcel: Parcel) -> tuple[int, list[int]]:
        """Open a parcel of bytes: how many, and which ones."""
        data = parcel.open()["data"]
        return len(memoryview(data)), sorted(set(bytes(data)))

    def look_at_live(self, parcel: Parcel) -> list[int]:
        """Open a parcel of the changing array: which bytes it has."""
        return sorted(set(bytes(parcel.open())))

    def tensor_parcel(self) -> Parcel:
        """A parcel of torch tensors."""
        import torch

        self.tensors = {
            "float": torch.arange(50_000, dtype=torch.float32),
            "bfloat": torch.arange(256, dtype=torch.bfloat16),
            "half": torch.ones(3, 3, dtype=torch.float16).t(),
            "scalar": torch.tensor(7),
            "empty": torch.empty(0, 4),
            "leaf": torch.nn.Parameter(torch.ones(2)),
            "strided": torch.arange(10)[::2],
        }
        return Parcel(self.tensors, live=True)

    def change_tensors(self) -> None:
        """Change the tensors of the last parcel."""
        for tensor in self.tensors.values():
            tensor.data.add_(1)

    def look_at_tensors(self, parcel: Parcel) -> dict[str, Any]:
        """Open a parcel of tensors; change them, too, which nobody else may notice."""
        found = {}
        for name, tensor in parcel.open().items():
            found[name] = (str(tensor.dtype), list(tensor.shape), tensor.sum().item())
        return found


class Closing(Subject):
    """A role that emits when it is closed."""

    def close(self) -> None:
        """Tell it."""
        self._emit(("closed", self.total))


class ClosingBadly(Subject):
    """A role that cannot be closed."""

    def close(self) -> None:
        """Fail."""
        raise OSError("the disk is full")


# -- helpers ---------------------------------------------------------------------------------------------------------------


def _raised(kind: type[BaseException], work: Callable[[], Any], text: str = "") -> Any:
    """What the work raised, which must be of this kind."""
    try:
        result = work()
    except kind as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
        return error
    raise AssertionError(f"{kind.__name__} was expected, not the result {result!r}")


class _Others:
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

    def __enter__(self) -> _Others:
        return self

    def __exit__(self, *_: object) -> None:
        left = self._threads.join(PATIENCE)
        assert not left, f"calls that never came back: {left}"


def _started(backend: Backend, role: Any = Subject, **options: Any) -> tuple[Worker, queue.SimpleQueue[Any]]:
    """A worker, and what it emits."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return backend.start("subject", partial(role, **options), on_event=events.put), events


@contextmanager
def _gate() -> Iterator[tuple[str, Callable[[], None]]]:
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


def _stop() -> RunStop:
    return RunStop(RealClock())


# -- calls -----------------------------------------------------------------------------------------------------------------


@_check
def a_call_returns_its_result(backend: Backend) -> None:
    """A role is made by its factory and keeps its state from call to call."""
    worker, _ = _started(backend, start=40)
    assert [worker.call("add", 1), worker.call("add", 1)] == [41, 42]
    assert worker.alive and worker.restarts == 0 and worker.pid > 0 and worker.name == "subject"


@_check
def an_exception_keeps_its_type(backend: Backend) -> None:
    """What a role raises is raised in the caller, and the role goes on."""
    worker, _ = _started(backend)
    assert _raised(KeyError, lambda: worker.call("fail", "lost")).args == ("lost",)
    _raised(AttributeError, lambda: worker.call("no_such_method"))
    _raised(TypeError, lambda: worker.call("add"))
    assert worker.call("add", 1) == 1


@_check
def a_remote_traceback_is_the_cause(backend: Backend) -> None:
    """The exception shows where in the role it was raised."""
    worker, _ = _started(backend)
    error = _raised(KeyError, lambda: worker.call("fail", "lost"))
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail" in str(error.__cause__) and "conformance.py" in str(error.__cause__)


@_check
def an_exception_that_cannot_travel(backend: Backend) -> None:
    """What cannot be pickled, or is no Exception, comes as a RemoteError with its text."""
    worker, _ = _started(backend)
    error = _raised(RemoteError, lambda: worker.call("fail_unpicklably"), "subject failed with Unpicklable: one")
    assert "in fail_unpicklably" in str(error.__cause__)
    _raised(RemoteError, lambda: worker.call("fail_for_good"), "SystemExit")
    assert worker.call("add", 1) == 1


@_check
def a_result_that_cannot_travel(backend: Backend) -> None:
    """A result that cannot be pickled is an error of the call, and the role goes on."""
    worker, _ = _started(backend)
    _raised(TypeError, lambda: worker.call("unpicklable"), "pickle")
    assert worker.call("add", 1) == 1


@_check
def an_argument_that_cannot_travel(backend: Backend) -> None:
    """An argument that cannot be pickled is an error of the call, and the role goes on."""
    worker, _ = _started(backend)
    _raised(TypeError, lambda: worker.call("add", threading.Lock()), "pickle")
    assert worker.call("add", 1) == 1


@_check
def an_error_of_the_factory_comes_with_the_first_call(backend: Backend) -> None:
    """Starting never fails because of the role; the first call does, and so does the next."""
    worker, _ = _started(backend, Broken, text="no weights")
    _raised(ValueError, lambda: worker.call("add", 1), "no weights")
    again = _raised((ValueError, WorkerDied), lambda: worker.call("add", 1))  # type: ignore[arg-type]
    assert "None" not in str(again)
    worker.restart()
    _raised(ValueError, lambda: worker.call("add", 1), "no weights")


@_check
def whoever_is_ready_can_be_waited_for(backend: Backend) -> None:
    """Waiting ends when the role is made, also anew, and when it cannot be made, which the next call says."""
    worker, _ = _started(backend, start=3)
    for restart in (False, True):
        if restart:
            worker.restart()
        worker.wait_until_ready()
        assert worker.pid and worker.call("add", 1) == 4
    broken, _ = _started(backend, Broken, text="no weights")
    broken.wait_until_ready()
    _raised(ValueError, lambda: broken.call("add", 1), "no weights")


@_check
def a_stop_ends_the_wait_for_a_role(backend: Backend) -> None:
    """However long the role takes to be made. (A role of this process is made by its first call: nobody waits for it.)"""
    worker, events = _started(backend, Slow)
    stop = _stop()
    with _Others() as others:
        waiting = others.start(lambda: worker.wait_until_ready(stop))
        if backend.kind in ("process", "ray"):
            assert events.get(timeout=PATIENCE) == "making"
            assert not waiting.done()
        stop.stop(Stopped("enough"))
        start = time.monotonic()
        waiting.result(PATIENCE)
        assert time.monotonic() - start < AT_ONCE
        worker.wait_until_ready(stop)
    worker.kill()


@_check
def two_callers_are_served_one_after_the_other(backend: Backend) -> None:
    """A role is never entered twice at once."""
    worker, _ = _started(backend)
    with _Others() as others:
        results = [others.start(lambda: worker.call("busy", 0.01)) for _ in range(6)]
    assert [result.result() for result in results] == [1] * 6


@_check
def events_arrive_in_order(backend: Backend) -> None:
    """What a role emits is there, in order, when its call returns."""
    worker, events = _started(backend)
    assert worker.call("tell", 1, {"two": 2}, (3,)) == 3
    assert [events.get(timeout=PATIENCE) for _ in range(3)] == [1, {"two": 2}, (3,)]


@_check
def a_timeout_holds_while_the_role_is_made(backend: Backend) -> None:
    """The time of a call is counted from the call on, and a role that takes too long to be made is ended, too."""
    with _gate() as (gate, release), _Others() as others:
        worker, _ = _started(backend, Gated, gate=gate)
        late = others.start(lambda: worker.call("answer", timeout=0.2))
        try:
            _raised(WorkerDied, lambda: late.result(PATIENCE / 2), "did not answer answer within 0.2 s")
            assert not worker.alive
        finally:
            release()
        worker.restart()
        assert worker.call("answer", timeout=PATIENCE) == 42


@_check
def a_stop_holds_while_the_role_is_made(backend: Backend) -> None:
    """Whatever kind of stop that is; the role goes on being made."""
    with _gate() as (gate, release), _Others() as others:
        worker, events = _started(backend, Gated, gate=gate)
        assert events.get(timeout=PATIENCE) == "making"
        try:
            stop, event = _stop(), threading.Event()
            first = others.start(lambda: worker.call("answer", stop=stop))
            second = others.start(lambda: worker.call("answer", stop=event))
            stop.stop(Stopped("enough"))
            event.set()
            assert _raised(Stopped, lambda: first.result(PATIENCE / 2)).origin is stop
            assert _raised(Stopped, lambda: second.result(PATIENCE / 2)).origin is event
            _raised(Stopped, lambda: worker.call("answer", stop=stop))
            assert worker.alive
        finally:
            release()
        assert worker.call("answer", timeout=PATIENCE) == 42


@_check
def timeouts_and_stops_hold_behind_another_call(backend: Backend) -> None:
    """Whoever waits for his turn gives up in time, and the call that runs goes on."""
    worker, events = _started(backend)
    stop, other = _stop(), threading.Event()
    with _Others() as others:
        running = others.start(lambda: worker.call("wait_for_stop", stop=stop))
        assert events.get(timeout=PATIENCE) == "began"
        try:
            late = others.start(lambda: worker.call("add", 1, timeout=0.2))
            stopped = others.start(lambda: worker.call("sleep", 0, stop=other))
            patient = others.start(lambda: worker.call("add", 2))
            _raised(GateTimeout, lambda: late.result(PATIENCE / 2), "another call of it still runs")
            other.set()
            assert _raised(Stopped, lambda: stopped.result(PATIENCE / 2)).origin is other
            assert worker.alive and not running.done() and not patient.done()
        finally:
            stop.stop(Stopped("now"))
        assert running.result(PATIENCE) == (True, "now")
        assert patient.result(PATIENCE) == 2


@_check
def an_event_may_call_the_worker(backend: Backend) -> None:
    """Whoever is told something may call the role, whether its call still runs or not."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def told(event: Any) -> None:
        answers.put((event, worker.call("add", 1)))

    worker = backend.start("subject", Subject, on_event=told)
    with _Others() as others:
        outer = others.start(lambda: worker.call("tell", "one", "two"))
        try:
            assert outer.result(PATIENCE / 2) == 2
        except BaseException:
            worker.kill()
            raise
        assert [answers.get(timeout=PATIENCE) for _ in range(2)] == [("one", 1), ("two", 2)]


@_check
def an_event_that_is_not_taken_in_disables_nothing(backend: Backend) -> None:
    """Neither timeouts nor kill, restart or close wait for somebody who was told something and does not return."""
    begun, free = threading.Event(), threading.Event()

    def told(event: Any) -> None:
        begun.set()
        free.wait(PATIENCE)

    worker = backend.start("subject", Subject, on_event=told)
    worker.call("add", 1)
    with _Others() as others:
        try:
            late = others.start(lambda: worker.call("sleep", 1.5, timeout=0.5))
            assert begun.wait(PATIENCE)
            _raised(WorkerDied, lambda: late.result(PATIENCE / 2), "did not answer sleep within 0.5 s")
            others.start(worker.restart).result(PATIENCE / 2)
            others.start(partial(worker.close, 0.2)).result(PATIENCE / 2)
            assert not worker.alive
        finally:
            free.set()


@_check
def many_events_arrive_all_and_in_order(backend: Backend) -> None:
    """None is lost, however slowly they are taken in; all are there when the worker is closed."""
    events: list[Any] = []
    worker = backend.start("subject", Closing, on_event=events.append)
    worker.call("tell", *range(1000))
    assert events == list(range(1000))
    worker.close(PATIENCE)
    assert events == [*range(1000), ("closed", 0)]


# -- stops -----------------------------------------------------------------------------------------------------------------


@_check
def a_stop_reaches_the_role(backend: Backend) -> None:
    """The stop of a run ends a call that looks at its own."""
    worker, events = _started(backend)
    stop = _stop()
    with _Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=stop))
        assert events.get(timeout=PATIENCE) == "began"
        stop.stop(Stopped("enough"))
        assert result.result(PATIENCE) == (True, "enough")


@_check
def a_stop_that_is_set_already_reaches_the_role(backend: Backend) -> None:
    """A call that begins after the stop sees it, whatever kind of stop that is."""
    worker, _ = _started(backend)
    worker.wait_until_ready()
    stop = _stop()
    stop.stop(Stopped("over"))
    assert worker.call("wait_for_stop", stop=stop) == (True, "over")
    event = threading.Event()
    event.set()
    assert worker.call("wait_for_stop", stop=event)[0]


@_check
def a_role_that_gives_up_points_at_the_callers_stop(backend: Backend) -> None:
    """The loop tells a call that was stopped from one that failed by the origin of the exception."""
    worker, _ = _started(backend)
    worker.wait_until_ready()
    stop = _stop()
    stop.stop(Stopped("over"))
    assert _raised(Stopped, lambda: worker.call("stopped", stop=stop), "gave up").origin is stop


@_check
def the_stop_of_one_call_is_not_that_of_the_next(backend: Backend) -> None:
    """Every call has a stop of its own."""
    worker, events = _started(backend)
    worker.wait_until_ready()
    first, second = _stop(), _stop()
    first.stop(Stopped("first"))
    assert worker.call("wait_for_stop", stop=first) == (True, "first")
    assert events.get(timeout=PATIENCE) == "began"
    with _Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=second))
        assert events.get(timeout=PATIENCE) == "began"
        first.stop(Stopped("again"))
        second.stop(Stopped("second"))
        assert result.result(PATIENCE) == (True, "second")


@_check
def cancel_sets_the_stop_of_the_running_call(backend: Backend) -> None:
    """Cancelling ends a call early; when none runs, it does nothing."""
    worker, events = _started(backend)
    worker.cancel()
    with _Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=_stop()))
        assert events.get(timeout=PATIENCE) == "began"
        worker.cancel("no longer needed")
        assert result.result(PATIENCE) == (True, "no longer needed")
    worker.cancel()
    assert worker.call("add", 1) == 1


# -- death and restart -----------------------------------------------------------------------------------------------------


@_check
def kill_during_a_call(backend: Backend) -> None:
    """The caller learns of the death at once. (The code of a thread runs on until it returns; nobody waits for it.)"""
    worker, events = _started(backend)
    with _Others() as others:
        result = others.start(lambda: worker.call("sleep", 2.0 if backend.kind == "thread" else PATIENCE))
        assert events.get(timeout=PATIENCE) == "began"
        start = time.monotonic()
        worker.kill()
        error = result.exception(PATIENCE)
        assert time.monotonic() - start < AT_ONCE
    assert isinstance(error, WorkerDied) and "subject" in str(error)
    assert not worker.alive


@_check
def a_call_after_death_says_so(backend: Backend) -> None:
    """A dead worker refuses calls until it is restarted."""
    worker, _ = _started(backend)
    assert worker.call("add", 1) == 1
    worker.kill()
    worker.kill()
    assert not worker.alive
    for _ in range(2):
        _raised(WorkerDied, lambda: worker.call("add", 1), "subject")


@_check
def a_restart_makes_the_role_anew(backend: Backend) -> None:
    """After a restart, of a dead or a living worker, the role begins again."""
    worker, _ = _started(backend, start=10)
    assert worker.call("add", 1) == 11
    for count in (1, 2, 3):
        if count != 2:
            worker.kill()
        worker.restart()
        assert worker.alive and worker.restarts == count
        assert worker.call("add", 1) == 11


@_check
def a_restart_during_a_call_of_a_killed_role(backend: Backend) -> None:
    """What is left of an old role never answers for the new one."""
    if backend.kind == "inline":
        return
    worker, events = _started(backend)
    with _Others() as others:
        old = others.start(lambda: worker.call("sleep", 0.3))
        assert events.get(timeout=PATIENCE) == "began"
        worker.restart()
        assert worker.call("add", 1) == 1
        assert isinstance(old.exception(PATIENCE), WorkerDied)
        assert worker.call("add", 1) == 2


@_check
def a_call_that_takes_too_long_ends_the_worker(backend: Backend) -> None:
    """After its timeout a call raises, and the worker must be restarted."""
    worker, _ = _started(backend)
    assert worker.call("add", 1, timeout=PATIENCE) == 1
    start = time.monotonic()
    _raised(WorkerDied, lambda: worker.call("sleep", 1.5, timeout=0.1), "did not answer sleep within 0.1 s")
    assert time.monotonic() - start < 0.1 + AT_ONCE
    assert not worker.alive
    worker.restart()
    assert worker.call("add", 1) == 1


# -- closing ---------------------------------------------------------------------------------------------------------------


@_check
def close_runs_the_close_of_the_role_once(backend: Backend) -> None:
    """Closing lets the role close itself; closing twice is allowed."""
    worker, events = _started(backend, Closing)
    worker.call("add", 5)
    worker.close()
    worker.close()
    assert events.get(timeout=PATIENCE) == ("closed", 5)
    assert events.empty() and not worker.alive
    _raised(WorkerDied, lambda: worker.call("add", 1), "subject")
    backend.close()
    backend.close()


@_check
def an_error_of_closing_is_raised(backend: Backend) -> None:
    """What the role's close raises comes out of close, once; the worker is closed all the same."""
    worker, _ = _started(backend, ClosingBadly)
    worker.call("add", 1)
    _raised(OSError, worker.close, "the disk is full")
    worker.close()
    assert not worker.alive


@_check
def closing_the_backend_closes_every_worker(backend: Backend) -> None:
    """All of them, whatever becomes of one; its error is raised after that."""
    first, _ = _started(backend, ClosingBadly)
    second, events = _started(backend, Closing)
    third, _ = _started(backend, Closing)
    for worker in (first, second, third):
        worker.call("add", 1)
    third.kill()
    _raised(OSError, backend.close, "the disk is full")
    assert events.get(timeout=PATIENCE) == ("closed", 1)
    assert not any(worker.alive for worker in (first, second, third))


@_check
def close_while_a_call_runs(backend: Backend) -> None:
    """Closing asks the call to stop, lets it end, and then closes the role."""
    worker, events = _started(backend, Closing)
    with _Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=_stop()))
        assert events.get(timeout=PATIENCE) == "began"
        worker.close()
        assert result.result(PATIENCE) == (True, "the worker was closed")
    assert events.get(timeout=PATIENCE) == ("closed", 0)
    assert not worker.alive


@_check
def close_while_calls_wait_in_line(backend: Backend) -> None:
    """A call that waits for its turn is not served by a role that is closing."""
    worker, events = _started(backend, Closing)
    with _Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=_stop()))
        assert events.get(timeout=PATIENCE) == "began"
        waiting = [others.start(lambda: worker.call("add", 1)) for _ in range(3)]
        worker.close()
        assert result.result(PATIENCE)[0]
        assert all(isinstance(call.exception(PATIENCE), WorkerDied) for call in waiting)
    assert events.get(timeout=PATIENCE) == ("closed", 0)


@_check
def close_does_not_wait_for_deaf_calls(backend: Backend) -> None:
    """Several workers that do not listen cost one timeout together, not one each."""
    if backend.kind == "inline":
        return
    workers = [_started(backend) for _ in range(3)]
    for worker, _ in workers:
        worker.wait_until_ready()  # which takes long on a busy machine
    with _Others() as others:
        results = [others.start(partial(worker.call, "sleep", 2.5)) for worker, _ in workers]
        for _, events in workers:
            assert events.get(timeout=PATIENCE) == "began"
        start = time.monotonic()
        backend.close(timeout=0.6)
        took = time.monotonic() - start
        assert took < 1.7, f"{took:.2f} s"
        assert all(isinstance(result.exception(PATIENCE), WorkerDied) for result in results)


@_check
def close_does_not_wait_for_a_role_that_is_being_made(backend: Backend) -> None:
    """It has nothing to close, and it may take minutes to be made."""
    with _gate() as (gate, release), _Others() as others:
        worker, events = _started(backend, Gated, gate=gate)
        assert events.get(timeout=PATIENCE) == "making"
        try:
            call = others.start(lambda: worker.call("answer"))
            others.start(partial(backend.close, PATIENCE)).result(PATIENCE / 2)
            assert not worker.alive
            assert isinstance(call.exception(PATIENCE), WorkerDied)
        finally:
            release()


# -- parcels ---------------------------------------------------------------------------------------------------------------


@_check
def a_parcel_of_one_worker_is_opened_in_another(backend: Backend) -> None:
    """Large and small ones; who passes them on reads only their meta."""
    maker, _ = _started(backend)
    reader, _ = _started(backend)
    for size in (10, 100_000, 3_000_000):
        parcel = maker.call("parcel", 7, size)
        assert isinstance(parcel, Parcel) and parcel.meta == ("made", 7)
        assert reader.call("look", parcel) == (size, [7])
        assert maker.call("look", parcel) == (size, [7])
        assert bytes(parcel.open()["data"]) == b"\x07" * size


@_check
def a_parcel_of_the_caller_is_opened_in_a_worker(backend: Backend) -> None:
    """Several readers at once get the same content."""
    readers = [_started(backend)[0] for _ in range(2)]
    for reader in readers:
        reader.call("add", 0)
    for byte in range(5):
        parcel = Parcel({"data": pickle.PickleBuffer(bytearray([byte]) * 200_000)}, meta=byte)
        with _Others() as others:
            found = [others.start(partial(reader.call, "look", parcel)) for reader in readers]
        assert [one.result() for one in found] == [(200_000, [byte])] * 2
        assert parcel.meta == byte


@_check
def a_parcel_outlives_its_maker(backend: Backend) -> None:
    """What was handed over stays, whatever becomes of the worker that made it."""
    maker, _ = _started(backend)
    reader, _ = _started(backend)
    parcel = maker.call("parcel", 9)
    maker.kill()
    assert reader.call("look", parcel) == (100_000, [9])
    maker.restart()
    assert maker.call("look", parcel) == (100_000, [9])


@_check
def a_live_parcel_is_a_copy(backend: Backend) -> None:
    """What the maker changes later is not seen, wherever in the result the parcel is."""
    maker, _ = _started(backend)
    reader, _ = _started(backend)
    maker.call("scribble", 1)
    parcel = maker.call("live")
    inside = maker.call("live_inside")["parts"][0][1]
    maker.call("scribble", 2)
    assert reader.call("look_at_live", parcel) == [1]
    assert reader.call("look_at_live", inside) == [1]
    assert reader.call("look_at_live", maker.call("live")) == [2]


@_check
def tensors_travel_in_parcels(backend: Backend) -> None:
    """Torch tensors keep type, shape and values (without torch this check says nothing)."""
    if importlib.util.find_spec("torch") is None:
        return
    maker, _ = _started(backend)
    reader, _ = _started(backend)
    parcel = maker.call("tensor_parcel")
    maker.call("change_tensors")
    found = reader.call("look_at_tensors", parcel)
    assert found == {
        "float": ("torch.float32", [50_000], found["float"][2]),
        "bfloat": ("torch.bfloat16", [256], 32_640.0),
        "half": ("torch.float16", [3, 3], 9.0),
        "scalar": ("torch.int64", [], 7),
        "empty": ("torch.float32", [0, 4], 0.0),
        "leaf": ("torch.float32", [2], 2.0),
        "strided": ("torch.int64", [5], 20),
    }
    assert abs(found["float"][2] / 1_249_975_000 - 1) < 1e-6
