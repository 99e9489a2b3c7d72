"""Checks of calls, events and stops."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import Any

from lzero_async.errors import GateTimeout, RemoteError, Stopped, WorkerDied
from lzero_async.testing.conformance.roles import PATIENCE, Broken, Closing, Gated, Slow, Subject
from lzero_async.testing.conformance.tools import AT_ONCE, Others, new_gate, new_stop, raised, started
from lzero_async.workers.backend import Backend
from lzero_async.workers.calls import RemoteTraceback


def a_call_returns_its_result(backend: Backend) -> None:
    """A role is made by its factory and keeps its state from call to call."""
    worker, _ = started(backend, start=40)
    assert [worker.call("add", 1), worker.call("add", 1)] == [41, 42]
    assert worker.alive and worker.restarts == 0 and worker.pid > 0 and worker.name == "subject"


def an_exception_keeps_its_type(backend: Backend) -> None:
    """What a role raises is raised in the caller, and the role goes on."""
    worker, _ = started(backend)
    assert raised(KeyError, lambda: worker.call("fail", "lost")).args == ("lost",)
    raised(AttributeError, lambda: worker.call("no_such_method"))
    raised(TypeError, lambda: worker.call("add"))
    assert worker.call("add", 1) == 1


def a_remote_traceback_is_the_cause(backend: Backend) -> None:
    """The exception shows where in the role it was raised."""
    worker, _ = started(backend)
    error = raised(KeyError, lambda: worker.call("fail", "lost"))
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail" in str(error.__cause__) and "conformance/roles.py" in str(error.__cause__)


def an_exception_that_cannot_travel(backend: Backend) -> None:
    """What cannot be pickled, or is no Exception, comes as a RemoteError with its text."""
    worker, _ = started(backend)
    error = raised(RemoteError, lambda: worker.call("fail_unpicklably"), "subject failed with Unpicklable: one")
    assert "in fail_unpicklably" in str(error.__cause__)
    raised(RemoteError, lambda: worker.call("fail_for_good"), "SystemExit")
    assert worker.call("add", 1) == 1


def a_result_that_cannot_travel(backend: Backend) -> None:
    """A result that cannot be pickled is an error of the call, and the role goes on."""
    worker, _ = started(backend)
    raised(TypeError, lambda: worker.call("unpicklable"), "pickle")
    assert worker.call("add", 1) == 1


def an_argument_that_cannot_travel(backend: Backend) -> None:
    """An argument that cannot be pickled is an error of the call, and the role goes on."""
    worker, _ = started(backend)
    raised(TypeError, lambda: worker.call("add", threading.Lock()), "pickle")
    assert worker.call("add", 1) == 1


def an_error_of_the_factory_comes_with_the_first_call(backend: Backend) -> None:
    """Starting never fails because of the role; the first call does, and so does the next."""
    worker, _ = started(backend, Broken, text="no weights")
    raised(ValueError, lambda: worker.call("add", 1), "no weights")
    again = raised((ValueError, WorkerDied), lambda: worker.call("add", 1))  # type: ignore[arg-type]
    assert "None" not in str(again)
    worker.restart()
    raised(ValueError, lambda: worker.call("add", 1), "no weights")


def whoever_is_ready_can_be_waited_for(backend: Backend) -> None:
    """Waiting ends when the role is made, also anew, and when it cannot be made, which the next call says."""
    worker, _ = started(backend, start=3)
    for restart in (False, True):
        if restart:
            worker.restart()
        worker.wait_until_ready()
        assert worker.pid and worker.call("add", 1) == 4
    broken, _ = started(backend, Broken, text="no weights")
    broken.wait_until_ready()
    raised(ValueError, lambda: broken.call("add", 1), "no weights")


def a_stop_ends_the_wait_for_a_role(backend: Backend) -> None:
    """However long the role takes to be made. (A role of this process is made by its first call: nobody waits for it.)"""
    worker, events = started(backend, Slow)
    stop = new_stop()
    with Others() as others:
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


def two_callers_are_served_one_after_the_other(backend: Backend) -> None:
    """A role is never entered twice at once."""
    worker, _ = started(backend)
    with Others() as others:
        results = [others.start(lambda: worker.call("busy", 0.01)) for _ in range(6)]
    assert [result.result() for result in results] == [1] * 6


def events_arrive_in_order(backend: Backend) -> None:
    """What a role emits is there, in order, when its call returns."""
    worker, events = started(backend)
    assert worker.call("tell", 1, {"two": 2}, (3,)) == 3
    assert [events.get(timeout=PATIENCE) for _ in range(3)] == [1, {"two": 2}, (3,)]


def a_timeout_holds_while_the_role_is_made(backend: Backend) -> None:
    """The time of a call is counted from the call on, and a role that takes too long to be made is ended, too."""
    with new_gate() as (gate, release), Others() as others:
        worker, _ = started(backend, Gated, gate=gate)
        late = others.start(lambda: worker.call("answer", timeout=0.2))
        try:
            raised(WorkerDied, lambda: late.result(PATIENCE / 2), "did not answer answer within 0.2 s")
            assert not worker.alive
        finally:
            release()
        worker.restart()
        assert worker.call("answer", timeout=PATIENCE) == 42


def a_stop_holds_while_the_role_is_made(backend: Backend) -> None:
    """Whatever kind of stop that is; the role goes on being made."""
    with new_gate() as (gate, release), Others() as others:
        worker, events = started(backend, Gated, gate=gate)
        assert events.get(timeout=PATIENCE) == "making"
        try:
            stop, event = new_stop(), threading.Event()
            first = others.start(lambda: worker.call("answer", stop=stop))
            second = others.start(lambda: worker.call("answer", stop=event))
            stop.stop(Stopped("enough"))
            event.set()
            assert raised(Stopped, lambda: first.result(PATIENCE / 2)).origin is stop
            assert raised(Stopped, lambda: second.result(PATIENCE / 2)).origin is event
            raised(Stopped, lambda: worker.call("answer", stop=stop))
            assert worker.alive
        finally:
            release()
        assert worker.call("answer", timeout=PATIENCE) == 42


def timeouts_and_stops_hold_behind_another_call(backend: Backend) -> None:
    """Whoever waits for his turn gives up in time, and the call that runs goes on."""
    worker, events = started(backend)
    stop, other = new_stop(), threading.Event()
    with Others() as others:
        running = others.start(lambda: worker.call("wait_for_stop", stop=stop))
        assert events.get(timeout=PATIENCE) == "began"
        try:
            late = others.start(lambda: worker.call("add", 1, timeout=0.2))
            stopped = others.start(lambda: worker.call("sleep", 0, stop=other))
            patient = others.start(lambda: worker.call("add", 2))
            raised(GateTimeout, lambda: late.result(PATIENCE / 2), "another call of it still runs")
            other.set()
            assert raised(Stopped, lambda: stopped.result(PATIENCE / 2)).origin is other
            assert worker.alive and not running.done() and not patient.done()
        finally:
            stop.stop(Stopped("now"))
        assert running.result(PATIENCE) == (True, "now")
        assert patient.result(PATIENCE) == 2


def an_event_may_call_the_worker(backend: Backend) -> None:
    """Whoever is told something may call the role, whether its call still runs or not."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def told(event: Any) -> None:
        answers.put((event, worker.call("add", 1)))

    worker = backend.start("subject", Subject, on_event=told)
    with Others() as others:
        outer = others.start(lambda: worker.call("tell", "one", "two"))
        try:
            assert outer.result(PATIENCE / 2) == 2
        except BaseException:
            worker.kill()
            raise
        assert [answers.get(timeout=PATIENCE) for _ in range(2)] == [("one", 1), ("two", 2)]


def an_event_that_is_not_taken_in_disables_nothing(backend: Backend) -> None:
    """Neither timeouts nor kill, restart or close wait for somebody who was told something and does not return."""
    begun, free = threading.Event(), threading.Event()

    def told(event: Any) -> None:
        begun.set()
        free.wait(PATIENCE)

    worker = backend.start("subject", Subject, on_event=told)
    worker.call("add", 1)
    with Others() as others:
        try:
            late = others.start(lambda: worker.call("sleep", 1.5, timeout=0.5))
            assert begun.wait(PATIENCE)
            raised(WorkerDied, lambda: late.result(PATIENCE / 2), "did not answer sleep within 0.5 s")
            others.start(worker.restart).result(PATIENCE / 2)
            others.start(partial(worker.close, 0.2)).result(PATIENCE / 2)
            assert not worker.alive
        finally:
            free.set()


def many_events_arrive_all_and_in_order(backend: Backend) -> None:
    """None is lost, however slowly they are taken in; all are there when the worker is closed."""
    events: list[Any] = []
    worker = backend.start("subject", Closing, on_event=events.append)
    worker.call("tell", *range(1000))
    assert events == list(range(1000))
    worker.close(PATIENCE)
    assert events == [*range(1000), ("closed", 0)]


def a_stop_reaches_the_role(backend: Backend) -> None:
    """The stop of a run ends a call that looks at its own."""
    worker, events = started(backend)
    stop = new_stop()
    with Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=stop))
        assert events.get(timeout=PATIENCE) == "began"
        stop.stop(Stopped("enough"))
        assert result.result(PATIENCE) == (True, "enough")


def a_stop_that_is_set_already_reaches_the_role(backend: Backend) -> None:
    """A call that begins after the stop sees it, whatever kind of stop that is."""
    worker, _ = started(backend)
    worker.wait_until_ready()
    stop = new_stop()
    stop.stop(Stopped("over"))
    assert worker.call("wait_for_stop", stop=stop) == (True, "over")
    event = threading.Event()
    event.set()
    assert worker.call("wait_for_stop", stop=event)[0]


def a_role_that_gives_up_points_at_the_callers_stop(backend: Backend) -> None:
    """The loop tells a call that was stopped from one that failed by the origin of the exception."""
    worker, _ = started(backend)
    worker.wait_until_ready()
    stop = new_stop()
    stop.stop(Stopped("over"))
    assert raised(Stopped, lambda: worker.call("stopped", stop=stop), "gave up").origin is stop


def the_stop_of_one_call_is_not_that_of_the_next(backend: Backend) -> None:
    """Every call has a stop of its own."""
    worker, events = started(backend)
    worker.wait_until_ready()
    first, second = new_stop(), new_stop()
    first.stop(Stopped("first"))
    assert worker.call("wait_for_stop", stop=first) == (True, "first")
    assert events.get(timeout=PATIENCE) == "began"
    with Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=second))
        assert events.get(timeout=PATIENCE) == "began"
        first.stop(Stopped("again"))
        second.stop(Stopped("second"))
        assert result.result(PATIENCE) == (True, "second")


def cancel_sets_the_stop_of_the_running_call(backend: Backend) -> None:
    """Cancelling ends a call early; when none runs, it does nothing."""
    worker, events = started(backend)
    worker.cancel()
    with Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=new_stop()))
        assert events.get(timeout=PATIENCE) == "began"
        worker.cancel("no longer needed")
        assert result.result(PATIENCE) == (True, "no longer needed")
    worker.cancel()
    assert worker.call("add", 1) == 1
