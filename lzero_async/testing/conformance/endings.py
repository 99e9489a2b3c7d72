"""Checks of death, restart and closing."""

from __future__ import annotations

import time
from functools import partial

from lzero_async.errors import WorkerDied
from lzero_async.testing.conformance.roles import PATIENCE, Closing, ClosingBadly, Gated
from lzero_async.testing.conformance.tools import AT_ONCE, Others, new_gate, new_stop, raised, started
from lzero_async.workers.backend import Backend


def kill_during_a_call(backend: Backend) -> None:
    """The caller learns of the death at once. (The code of a thread runs on until it returns; nobody waits for it.)"""
    worker, events = started(backend)
    with Others() as others:
        result = others.start(lambda: worker.call("sleep", 2.0 if backend.kind == "thread" else PATIENCE))
        assert events.get(timeout=PATIENCE) == "began"
        start = time.monotonic()
        worker.kill()
        error = result.exception(PATIENCE)
        assert time.monotonic() - start < AT_ONCE
    assert isinstance(error, WorkerDied) and "subject" in str(error)
    assert not worker.alive


def a_call_after_death_says_so(backend: Backend) -> None:
    """A dead worker refuses calls until it is restarted."""
    worker, _ = started(backend)
    assert worker.call("add", 1) == 1
    worker.kill()
    worker.kill()
    assert not worker.alive
    for _ in range(2):
        raised(WorkerDied, lambda: worker.call("add", 1), "subject")


def a_restart_makes_the_role_anew(backend: Backend) -> None:
    """After a restart, of a dead or a living worker, the role begins again."""
    worker, _ = started(backend, start=10)
    assert worker.call("add", 1) == 11
    for count in (1, 2, 3):
        if count != 2:
            worker.kill()
        worker.restart()
        assert worker.alive and worker.restarts == count
        assert worker.call("add", 1) == 11


def a_restart_during_a_call_of_a_killed_role(backend: Backend) -> None:
    """What is left of an old role never answers for the new one."""
    if backend.kind == "inline":
        return
    worker, events = started(backend)
    with Others() as others:
        old = others.start(lambda: worker.call("sleep", 0.3))
        assert events.get(timeout=PATIENCE) == "began"
        worker.restart()
        assert worker.call("add", 1) == 1
        assert isinstance(old.exception(PATIENCE), WorkerDied)
        assert worker.call("add", 1) == 2


def a_call_that_takes_too_long_ends_the_worker(backend: Backend) -> None:
    """After its timeout a call raises, and the worker must be restarted."""
    worker, _ = started(backend)
    assert worker.call("add", 1, timeout=PATIENCE) == 1
    start = time.monotonic()
    raised(WorkerDied, lambda: worker.call("sleep", 1.5, timeout=0.1), "did not answer sleep within 0.1 s")
    assert time.monotonic() - start < 0.1 + AT_ONCE
    assert not worker.alive
    worker.restart()
    assert worker.call("add", 1) == 1


def close_runs_the_close_of_the_role_once(backend: Backend) -> None:
    """Closing lets the role close itself; closing twice is allowed."""
    worker, events = started(backend, Closing)
    worker.call("add", 5)
    worker.close()
    worker.close()
    assert events.get(timeout=PATIENCE) == ("closed", 5)
    assert events.empty() and not worker.alive
    raised(WorkerDied, lambda: worker.call("add", 1), "subject")
    backend.close()
    backend.close()


def an_error_of_closing_is_raised(backend: Backend) -> None:
    """What the role's close raises comes out of close, once; the worker is closed all the same."""
    worker, _ = started(backend, ClosingBadly)
    worker.call("add", 1)
    raised(OSError, worker.close, "the disk is full")
    worker.close()
    assert not worker.alive


def closing_the_backend_closes_every_worker(backend: Backend) -> None:
    """All of them, whatever becomes of one; its error is raised after that."""
    first, _ = started(backend, ClosingBadly)
    second, events = started(backend, Closing)
    third, _ = started(backend, Closing)
    for worker in (first, second, third):
        worker.call("add", 1)
    third.kill()
    raised(OSError, backend.close, "the disk is full")
    assert events.get(timeout=PATIENCE) == ("closed", 1)
    assert not any(worker.alive for worker in (first, second, third))


def close_while_a_call_runs(backend: Backend) -> None:
    """Closing asks the call to stop, lets it end, and then closes the role."""
    worker, events = started(backend, Closing)
    with Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=new_stop()))
        assert events.get(timeout=PATIENCE) == "began"
        worker.close()
        assert result.result(PATIENCE) == (True, "the worker was closed")
    assert events.get(timeout=PATIENCE) == ("closed", 0)
    assert not worker.alive


def close_while_calls_wait_in_line(backend: Backend) -> None:
    """A call that waits for its turn is not served by a role that is closing."""
    worker, events = started(backend, Closing)
    with Others() as others:
        result = others.start(lambda: worker.call("wait_for_stop", stop=new_stop()))
        assert events.get(timeout=PATIENCE) == "began"
        waiting = [others.start(lambda: worker.call("add", 1)) for _ in range(3)]
        worker.close()
        assert result.result(PATIENCE)[0]
        assert all(isinstance(call.exception(PATIENCE), WorkerDied) for call in waiting)
    assert events.get(timeout=PATIENCE) == ("closed", 0)


def close_does_not_wait_for_deaf_calls(backend: Backend) -> None:
    """Several workers that do not listen cost one timeout together, not one each."""
    if backend.kind == "inline":
        return
    workers = [started(backend) for _ in range(3)]
    for worker, _ in workers:
        worker.wait_until_ready()  # which takes long on a busy machine
    with Others() as others:
        results = [others.start(partial(worker.call, "sleep", 2.5)) for worker, _ in workers]
        for _, events in workers:
            assert events.get(timeout=PATIENCE) == "began"
        start = time.monotonic()
        backend.close(timeout=0.6)
        took = time.monotonic() - start
        assert took < 1.7, f"{took:.2f} s"
        assert all(isinstance(result.exception(PATIENCE), WorkerDied) for result in results)


def close_does_not_wait_for_a_role_that_is_being_made(backend: Backend) -> None:
    """It has nothing to close, and it may take minutes to be made."""
    with new_gate() as (gate, release), Others() as others:
        worker, events = started(backend, Gated, gate=gate)
        assert events.get(timeout=PATIENCE) == "making"
        try:
            call = others.start(lambda: worker.call("answer"))
            others.start(partial(backend.close, PATIENCE)).result(PATIENCE / 2)
            assert not worker.alive
            assert isinstance(call.exception(PATIENCE), WorkerDied)
        finally:
            release()
