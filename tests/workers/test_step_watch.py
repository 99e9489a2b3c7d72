"""A call that takes too long is ended: interrupted, with its worker process, or with the run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from lzero_async import make_backend
from lzero_async.errors import ConfigError, LzeroAsyncError, StepOverdue, WorkerStuck
from lzero_async.testing import VirtualClock
from lzero_async.threads import ThreadGroup
from lzero_async.workers import step_watch
from lzero_async.workers.step_watch import EXIT_STUCK, StepWatch

FOR_EVER = 3600.0


class Hanging:
    """A role whose environment never returns."""

    def __init__(self, emit: Callable[[Any], None], timeout: float = 0.05) -> None:
        self._watch = StepWatch(timeout, on_overdue=emit)

    def interruptible(self) -> str:
        try:
            with self._watch.running("environment 3, step 17"):
                time.sleep(FOR_EVER)
        except StepOverdue as error:
            return str(error)
        return "it returned"

    def stubborn(self) -> None:
        with self._watch.running("environment 3, step 17"):
            while True:
                try:
                    time.sleep(FOR_EVER)
                except StepOverdue:
                    continue

    def until(self, released: threading.Event) -> str:
        with self._watch.running("environment 3, step 17"):
            released.wait()
        return "it returned"

    def close(self) -> None:
        self._watch.close()

    def quick(self, calls: int) -> int:
        for _ in range(calls):
            with self._watch.running("a step"):
                pass
        return self._watch.overdue


SENTENCE = "environment 3, step 17 did not return within 0.05 s (step_timeout)"


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_a_call_in_the_main_thread_is_interrupted(kind: str) -> None:
    backend = make_backend(kind)
    try:
        worker = backend.start("collector 1", Hanging)
        assert worker.call("interruptible") == SENTENCE
        assert worker.call("quick", 100) == 1  # the same role goes on
        assert worker.restarts == 0
    finally:
        backend.close()


def test_a_worker_that_cannot_be_interrupted_ends_and_says_why() -> None:
    backend = make_backend("process")
    try:
        worker = backend.start("collector 1", Hanging)
        with pytest.raises(WorkerStuck, match=r"^collector 1 was ended: environment 3, step 17 did not return within"):
            worker.call("stubborn")
        worker.restart()
        assert worker.call("quick", 1) == 0
    finally:
        backend.close()


def test_of_a_call_in_another_thread_the_owner_is_told() -> None:
    told: list[str] = []
    heard, released = threading.Event(), threading.Event()
    backend = make_backend("thread")
    try:
        worker = backend.start("collector 1", Hanging, on_event=lambda event: (told.append(event), heard.set()))
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(worker.call, "until", released)
            assert heard.wait(60)
            released.set()
            assert answer.result(60) == "it returned"
    finally:
        backend.close()
    assert told == [SENTENCE]


def test_a_main_thread_that_cannot_be_interrupted_ends_the_program() -> None:
    code = "from tests.workers.test_step_watch import Hanging; Hanging(print).stubborn()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == EXIT_STUCK
    assert done.stdout == SENTENCE + "\n"
    assert "it cannot be interrupted, so the program ends" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_of_many_calls_has_its_own_limit() -> None:
    """On a virtual clock: of calls of 3, 9 and 12 s with a limit of 10 s one is overdue, 10 s after its own begin."""
    told: list[tuple[float, str]] = []
    with VirtualClock() as clock:
        watch = StepWatch(10.0, on_overdue=lambda text: told.append((clock.now(), text)), clock=clock)
        threads = ThreadGroup(clock, "test")

        def call(begin: float, seconds: float) -> None:
            clock.sleep(begin)
            with watch.running(f"the call of {seconds:g} s"):
                clock.sleep(seconds)

        for begin, seconds in ((0.0, 9.0), (4.0, 12.0), (5.0, 3.0)):
            threads.start(f"{seconds}", lambda begin=begin, seconds=seconds: call(begin, seconds))  # type: ignore[misc]
        assert threads.join(100.0) == []
        assert threads.failures == []
        watch.close()
    assert told == [(14.0, "the call of 12 s did not return within 10 s (step_timeout)")]
    assert watch.overdue == 1


def test_a_closed_watch_leaves_no_thread_and_watches_again() -> None:
    watch, others = StepWatch(300.0), _watchers()  # of what earlier tests have left running
    for _ in range(3):
        with watch.running("a step"):
            (own,) = (thread for thread in _watchers() if thread not in others)
        watch.close()
        own.join(10.0)  # one that is at its last line has ended
        assert not own.is_alive()
    watch.limit(0.05)
    with pytest.raises(StepOverdue), watch.running("a step"):
        time.sleep(FOR_EVER)
    watch.close()


@pytest.mark.parametrize("edge", ["__enter__", "__exit__"])
def test_an_interrupt_at_the_very_begin_or_end_of_a_call_leaves_no_call_behind(
    edge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while `with` enters or leaves: a call that was never taken out would end its process later."""
    watch = StepWatch(FOR_EVER)
    call = watch.running("a step")
    monkeypatch.setattr(step_watch, "_to_interrupt", call)

    wanted = "return" if edge == "__enter__" else "call"

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is getattr(type(call), edge).__code__ and event == wanted:
            sys.settrace(None)
            step_watch._interrupt(0, frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with call:
            begun = watch._calls.copy()
    finally:
        sys.settrace(before)
    assert list(begun.values()) == [call]
    assert (watch._calls, call.tries) == ({}, 0)
    watch.close()


def test_a_watch_whose_thread_the_system_refused_tries_again_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StepWatch(0.05)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(LzeroAsyncError, match="No thread can be started"), watch.running("a step"):
            pytest.fail("it would not be watched")
    with pytest.raises(StepOverdue), watch.running("a step"):
        time.sleep(30.0)
    watch.close()


def _refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lzero-watch")]


def test_a_lower_limit_holds_for_calls_that_run() -> None:
    told: list[float] = []
    with VirtualClock() as clock:
        watch = StepWatch(300.0, on_overdue=lambda text: told.append(clock.now()), clock=clock)
        threads = ThreadGroup(clock, "test")

        def call() -> None:
            with watch.running("a step"):
                clock.sleep(100.0)

        threads.start("hanging", call)
        clock.sleep(50.0)
        watch.limit(1.0)
        assert threads.join(200.0) == []
        watch.close()
    assert told == [50.0]
    assert watch.longest == 0.0


def test_watching_wakes_up_rarely() -> None:
    """100,000 short calls in 1000 virtual seconds with a limit of 100 s: at most two wake-ups for each limit."""
    with VirtualClock() as clock:
        watch = StepWatch(100.0, clock=clock)
        waits: list[float] = []
        waiter = clock.waiter

        def counted() -> Any:
            if threading.current_thread().name.startswith("lzero-watch"):
                waits.append(clock.now())
            return waiter()

        clock.waiter = counted  # type: ignore[method-assign]
        for _ in range(1000):
            for _ in range(100):
                with watch.running("a step"):
                    pass
            clock.sleep(1.0)
        watch.close()
    assert watch.overdue == 0
    assert 1 <= len(waits) <= 21


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "3", None, True])
def test_the_limit_is_checked(bad: Any) -> None:
    with pytest.raises(ConfigError, match="step_timeout is"):
        StepWatch(bad)
