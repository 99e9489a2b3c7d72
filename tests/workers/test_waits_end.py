"""Every wait has an end: limits are checked where they are given, and whatever happens to the thread that listens to a worker,
or to the system's descriptors and threads, whoever waits is released and told why. (What every backend promises of timeouts,
stops and events is in `lzero_async.testing.conformance`.)"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async import (
    AsyncTrainingCoordinator,
    ConfigError,
    LzeroAsyncError,
    Recovery,
    Stopped,
    WorkerDied,
    make_backend,
)
from lzero_async.testing import ScriptedRole
from lzero_async.validation import LONGEST, MAX_BACKOFF, backoff, duration, time_limit
from lzero_async.workers import _channel as wire
from lzero_async.workers import supervision as lives
from lzero_async.workers.backend import ask_again
from lzero_async.workers.calls import CallStop
from lzero_async.workers.process import ProcessBackend
from lzero_async.workers.ray.backend import RayBackend
from tests.process_tools import children, ended
from zoo.mbpo.queues import BoundedQueue

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0  # seconds; only what is broken waits that long


START = threading.Thread.start


def elsewhere(work: Callable[[], Any]) -> Future[Any]:
    """Do it in a thread that nobody waits for, so that what never ends fails one test and not all."""
    future: Future[Any] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    START(threading.Thread(target=body, daemon=True))
    return future


# -- limits ------------------------------------------------------------------------------------------------------------------

NO_SECONDS = st.one_of(
    st.booleans(),
    st.text(max_size=3),
    st.sampled_from(["5", b"5", [1.0], {}, 1j, math.nan, math.inf, -math.inf, np.float64("nan"), 10**400, -(10**400)]),
    st.floats(min_value=LONGEST, exclude_min=True),
    st.floats(max_value=0, exclude_max=True),
    st.integers(min_value=int(LONGEST) + 1),
    st.integers(max_value=-1),
)


class Given:
    """Every public function that takes seconds, by name."""

    def __init__(self) -> None:
        self.backends = [make_backend(kind) for kind in ("inline", "thread", "process")]
        self.workers = [backend.start("scripted", ScriptedRole) for backend in self.backends]
        for worker in self.workers:
            worker.call("do", "")  # so that its thread is there before any test
        self.coordinator = AsyncTrainingCoordinator(1, True, get_weights=dict)
        self.queue: BoundedQueue[int] = BoundedQueue(1)

    def functions(self) -> Iterator[tuple[str, Callable[[Any], object]]]:
        for kind in ("inline", "thread", "process", "ray"):
            yield f"make_backend {kind}", lambda value, kind=kind: make_backend(kind, hang_timeout=value)
        yield "ProcessBackend", lambda value: ProcessBackend(hang_timeout=value)
        yield "RayBackend", lambda value: RayBackend(hang_timeout=value)
        for backend, worker in zip(self.backends, self.workers, strict=True):
            yield f"call {backend.kind}", lambda value, worker=worker: worker.call("do", "", timeout=value)
            yield f"close {backend.kind}", lambda value, worker=worker: worker.close(value)
            yield f"close all {backend.kind}", lambda value, backend=backend: backend.close(value)
        one = self.coordinator
        yield "run_collect", lambda value: one.run_collect(lambda: 1, timeout=value)
        yield "run_train", lambda value: one.run_train(lambda: 1, timeout=value)
        yield "run_eval", lambda value: one.run_eval(lambda: 1, timeout=value)
        yield "start_background_eval", lambda value: one.start_background_eval(int, with_context=False, timeout=value)
        yield "wait_for_eval", lambda value: one.wait_for_eval(value)
        yield "close", lambda value: one.close(value)
        yield (
            "run",
            lambda value: one.run(lambda c: 1, lambda b: 1, max_seconds=value, max_train=1, handle_signals=False),
        )
        yield "restart_backoff", lambda value: AsyncTrainingCoordinator(recovery=Recovery(restart_backoff=value))
        yield "put", lambda value: self.queue.put(1, timeout=value)
        yield "get", lambda value: self.queue.get(timeout=value)
        yield "ask_again", lambda value: self.ask(value)

    def ask(self, pause: Any) -> None:
        ask_again(
            self.workers[0], "do", "", stop=CallStop(), max_restarts=0, restart_backoff=pause, given_up=lambda: False,
            on_restart=lambda: None,
        )  # fmt: skip

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        self.coordinator.close()


@pytest.fixture(scope="module")
def taking() -> Iterator[Given]:
    given = Given()
    yield given
    given.close()


NEEDED = (
    "make_backend",
    "ProcessBackend",
    "RayBackend",
    "close",
    "restart_backoff",
    "ask_again",
)  # None is no limit there


@settings(max_examples=60, deadline=None)
@given(value=NO_SECONDS)
def test_what_is_no_number_of_seconds_is_refused_wherever_seconds_are_given(taking: Given, value: Any) -> None:
    for name, function in taking.functions():
        with pytest.raises(ConfigError, match="number of seconds") as caught:
            function(value)
        text = str(caught.value)
        assert len(text) < 200 and "\n" not in text, (name, text)


def test_no_limit_is_allowed_where_one_can_wait_for_ever_and_nothing_happened_to_what_refused(taking: Given) -> None:
    for name, function in taking.functions():
        if name.startswith(NEEDED):
            with pytest.raises(ConfigError, match="number of seconds"):
                function(None)
    assert time_limit("timeout", None) is None
    assert all(worker.alive and worker.call("do", "result = 5", timeout=LONGEST) == 5 for worker in taking.workers)
    assert taking.coordinator.run_collect(lambda: 7, timeout=None) == 7


@given(st.one_of(st.floats(min_value=1e-9, max_value=LONGEST), st.integers(1, int(LONGEST)), st.just(Fraction(1, 3))))
def test_seconds_are_taken_as_they_are(value: Any) -> None:
    assert duration("seconds", value) == float(value) == time_limit("seconds", np.float64(float(value)))
    assert duration("seconds", 0, zero=True) == 0.0


def test_the_longest_limit_works() -> None:
    backend = ProcessBackend(hang_timeout=LONGEST)
    try:
        worker = backend.start("scripted", ScriptedRole)
        assert elsewhere(lambda: worker.call("do", "result = 5", timeout=LONGEST)).result(PATIENCE) == 5
    finally:
        backend.close()


# -- back-off ----------------------------------------------------------------------------------------------------------------


@given(st.floats(min_value=1e-9, max_value=LONGEST), st.integers(0, 10**6))
def test_a_pause_doubles_up_to_its_cap_at_any_count(first: float, failures: int) -> None:
    pause, longer = backoff(first, failures), backoff(first, failures + 1)
    assert first <= pause <= longer <= max(first, MAX_BACKOFF)
    assert longer in (2 * pause, max(first, MAX_BACKOFF))


def test_an_evaluator_that_always_fails_is_asked_again_after_pauses_that_do_not_grow_for_ever() -> None:
    pauses: list[float] = []

    class Stop(CallStop):
        def wait(self, seconds: float | None = None) -> bool:
            pauses.append(seconds or 0.0)
            return False

    class Failing:
        name = "evaluator"
        restarts = 0

        def call(self, *_: Any, **__: Any) -> None:
            raise ValueError("no score")

        def wait_until_ready(self, stop: Any = None) -> None: ...

        def restart(self) -> None:
            self.restarts += 1

    worker = Failing()
    with pytest.raises(ValueError, match="no score"):
        ask_again(
            worker, "evaluate", stop=Stop(), max_restarts=1100, restart_backoff=0.5, given_up=lambda: False,  # type: ignore[arg-type]
            on_restart=lambda error: None,
        )  # fmt: skip
    assert worker.restarts == len(pauses) == 1100
    assert pauses[:3] == [0.5, 1.0, 2.0] and max(pauses) == MAX_BACKOFF


@pytest.mark.parametrize(
    ("reason", "expected"), [("max_train", 42), ("SIGINT", Stopped)], ids=["its own end", "interrupted"]
)
def test_what_is_due_at_a_runs_own_end_waits_for_its_role(reason: str, expected: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    backend, events = ProcessBackend(), queue.SimpleQueue[Any]()
    try:
        from lzero_async.testing.conformance.roles import Gated

        worker = backend.start("evaluator", partial(Gated, gate=str(gate)), on_event=events.put)
        assert events.get(timeout=PATIENCE) == "making"
        stop = CallStop()
        stop.set(reason)
        asked = elsewhere(
            lambda: ask_again(
                worker,
                "answer",
                stop=stop,
                max_restarts=0,
                restart_backoff=1.0,
                given_up=lambda: False,
                on_restart=lambda: None,
            )
        )
        if expected is Stopped:
            with pytest.raises(Stopped):
                asked.result(PATIENCE)
        else:
            gate.write_text("go on")
            assert asked.result(PATIENCE) == expected
    finally:
        backend.close(1.0)


# -- listening ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [OverflowError("too long"), MemoryError(), KeyboardInterrupt("now"), SystemExit(3), RuntimeError("no thread")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ends_the_listening_ends_the_worker_and_says_so(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    backend = ProcessBackend()
    worker = backend.start("scripted", ScriptedRole)
    worker.call("do", "")
    pid, receive = worker.pid, wire.Wire.receive

    def broken(self: wire.Wire) -> wire.Message:
        receive(self)
        raise error

    monkeypatch.setattr(wire.Wire, "receive", broken)
    called = elsewhere(lambda: worker.call("do", "import time; emit(1); time.sleep(60)"))
    with pytest.raises(WorkerDied, match=rf"scripted was ended: .*{type(error).__name__}"):
        called.result(PATIENCE)
    assert not worker.alive and pid not in children()
    monkeypatch.undo()
    worker.restart()
    assert worker.call("do", "result = 5") == 5
    backend.close()
    assert children() == before


def test_hang_detection_goes_on_while_an_event_is_not_taken_in() -> None:
    begun, free = threading.Event(), threading.Event()

    def told(event: Any) -> None:
        begun.set()
        free.wait(PATIENCE)

    backend = ProcessBackend(hang_timeout=1.0)
    try:
        worker = backend.start("scripted", ScriptedRole, on_event=told)
        called = elsewhere(
            lambda: worker.call("do", "import os, signal; emit(1); os.kill(os.getpid(), signal.SIGSTOP)")
        )
        assert begun.wait(PATIENCE)
        with pytest.raises(WorkerDied, match="hung: it gave no sign of life for 1 s"):
            called.result(PATIENCE / 2)
    finally:
        free.set()
        backend.close()


def test_a_role_that_tells_more_than_is_taken_in_waits_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "_FULL", 10)
    free, events = threading.Event(), []

    def told(event: Any) -> None:
        free.wait(PATIENCE)
        events.append(event)

    backend = ProcessBackend(hang_timeout=2.0)
    try:
        worker = backend.start("scripted", ScriptedRole, on_event=told)
        worker.call("do", "")
        telling = "for i in range(3000): emit((i, bytes(1000)))"
        with pytest.raises(WorkerDied, match=r"did not answer do within 0\.3 s"):
            elsewhere(lambda: worker.call("do", telling, timeout=0.3)).result(PATIENCE / 2)
        free.set()
        worker.restart()
        events.clear()
        free.clear()
        called = elsewhere(lambda: worker.call("do", telling + "\nresult = 5"))
        free.set()
        assert called.result(PATIENCE) == 5
        told_now = [number for number, _ in events if number >= 0][-3000:]
        assert told_now == list(range(3000))
    finally:
        free.set()
        backend.close()


# -- descriptors and threads -------------------------------------------------------------------------------------------------

OUT_OF_FILES = """
    import resource, time
    from lzero_async import LzeroAsyncError, make_backend
    from lzero_async.testing import ScriptedRole

    MAKE = "result = Parcel({'data': PickleBuffer(bytearray([7]) * 100_000)})"
    LOOK = "result = sorted(set(bytes(args[0].open()['data'])))"

    def cut(limit):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    if __name__ == "__main__":
        backend = make_backend("process")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        worker = backend.start("scripted", ScriptedRole)
        worker.call("do", "")
        pid, kept = worker.pid, []
        cut(40)
        begin = time.monotonic()
        for _ in range(3):  # taking what a worker sends
            try:
                while True:
                    kept.append(worker.call("do", MAKE))
            except LzeroAsyncError as error:
                print(error)
        try:  # starting a worker
            backend.start("another", ScriptedRole)
        except LzeroAsyncError as error:
            print(error)
        print(worker.alive, worker.pid == pid, len(kept) > 5, time.monotonic() - begin < 30)
        print(worker.call("do", LOOK, kept[0]))
        kept.clear()
        print(worker.call("do", LOOK, worker.call("do", MAKE)))
        cut(hard)
        made, limit = worker.call("do", MAKE), "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({}, 4096))"
        worker.call("do", limit.format(3))
        try:  # sending to a worker that has no room
            worker.call("do", LOOK, made)
        except LzeroAsyncError as error:
            print(error)
        worker.call("do", limit.format(4096))
        print(worker.call("do", LOOK, made), worker.pid == pid)
        backend.close()
"""


def test_without_descriptors_the_call_fails_in_one_sentence_and_nothing_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(OUT_OF_FILES))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=55,
    )  # fmt: skip
    lost = (
        "What was sent cannot be taken: no more files can be open; raise the limit (ulimit -n), or keep fewer parcels and "
        "workers at once."
    )
    assert done.stdout.splitlines() == [
        *[lost] * 3,
        lost.replace("What was sent cannot be taken", "another cannot be started"),
        "True True True True", "[7]", "[7]", lost, "[7] True",
    ], done.stderr  # fmt: skip


def test_without_a_thread_to_listen_no_worker_is_started_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    backend = ProcessBackend()
    worker = backend.start("first", ScriptedRole, on_event=print)
    worker.call("do", "")
    opened = len(os.listdir("/proc/self/fd"))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(3):
        with pytest.raises(LzeroAsyncError, match=r"No thread can be started for second .*ulimit -u"):
            backend.start("second", ScriptedRole)
    assert len(children() - before) == 1
    assert len(os.listdir("/proc/self/fd")) <= opened
    with pytest.raises(
        WorkerDied, match=r"first was ended: .*No thread can be started for first"
    ):  # to hand on an event
        elsewhere(lambda: worker.call("do", "import time; emit(1); time.sleep(60)")).result(PATIENCE)
    with pytest.raises(LzeroAsyncError, match="No thread"):
        worker.restart()
    assert not worker.alive
    monkeypatch.undo()
    worker.restart()
    assert worker.call("do", "result = 5") == 5
    elsewhere(backend.close).result(PATIENCE)
    assert children() == before


def test_a_large_message_to_a_stopped_worker_does_not_outlast_its_timeout() -> None:
    backend = ProcessBackend()
    try:
        worker = backend.start("scripted", ScriptedRole)
        worker.call("do", "")
        pid = worker.pid
        os.kill(pid, signal.SIGSTOP)
        called = elsewhere(lambda: worker.call("do", "", os.urandom(20_000_000), timeout=0.5))
        with pytest.raises(WorkerDied, match="did not"):
            called.result(PATIENCE / 2)
        assert ended([pid])
    finally:
        backend.close()
