"""Where roles live: the promises of every backend, and those of processes.

A sleep inside a role is work that the test never waits for (the role is ended in it), but for one that has to outlast a real
heartbeat; `holds` polls, with a deadline, for what only the kernel knows.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lzero_async import ConfigError, Parcel, Worker, WorkerDied, make_backend
from lzero_async.testing import ScriptedRole, conformance
from lzero_async.workers.backend import BACKENDS, Backend
from lzero_async.workers.calls import CallStop
from lzero_async.workers.process import ProcessBackend
from tests.process_tools import children, ended

ROOT = Path(__file__).resolve().parents[2]
WARM = ("lzero_async.testing",)  # what a template imports, from which workers are then forked
CASES = [
    (kind, preload, check)
    for kind, preload in [*((kind, ()) for kind in BACKENDS if kind != "ray"), ("process", WARM)]
    for check in conformance.applicable(kind)
]  # Ray's are in test_ray_backend.py
BIG = 200_000
HOLD_THE_LOCK = "import ctypes; sleep = ctypes.PyDLL(None).sleep; emit('busy'); sleep(60)"  # in C, with the GIL


@pytest.mark.parametrize(
    ("kind", "preload", "check"),
    CASES,
    ids=[f"{'forked' if preload else kind}-{check.__name__}" for kind, preload, check in CASES],
)
def test_every_backend_keeps_its_promises(kind: str, preload: tuple[str, ...], check: conformance.Check) -> None:
    conformance.run_check(check, partial(make_backend, kind, preload=preload))


def test_what_a_backend_is_exempt_from_is_a_check() -> None:
    names = {check.__name__ for check in conformance.CHECKS}
    assert len(names) == len(conformance.CHECKS)
    assert {name for name, _ in conformance.EXEMPT} <= names
    assert {kind for _, kind in conformance.EXEMPT} <= set(BACKENDS)
    assert all(check.__doc__ for check in conformance.CHECKS)


def test_processes_elsewhere_than_on_linux_are_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="Processes need Linux, but this is darwin; use the backend 'thread'"):
        make_backend("process")
    make_backend("thread").close()


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend"):
        make_backend("carrier pigeon")
    with pytest.raises(ConfigError, match="hang_timeout"):
        make_backend("process", hang_timeout=0)


# -- processes ---------------------------------------------------------------------------------------------------------------


def state_of(pid: int) -> str:
    """The kernel's letter for a process (Z: dead and not reaped), or nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def holds(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it becomes true in time; for what the kernel does and nobody tells us of."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=[pytest.param((), id="spawned", marks=pytest.mark.slow), pytest.param(WARM, id="forked")])
def backend(request: pytest.FixtureRequest) -> Iterator[ProcessBackend]:
    """A process backend that leaves nothing behind but its template: no process, no descriptor, nothing in /dev/shm."""
    ProcessBackend(preload=request.param).close()
    before, shared, opened = children(), set(os.listdir("/dev/shm")), descriptors()
    backend = ProcessBackend(preload=request.param)
    yield backend
    backend.close()
    assert children() - before == set()
    assert {name for name in os.listdir("/dev/shm") if "lzero" in name} <= shared
    assert descriptors() <= opened


def start(backend: Backend, events: queue.SimpleQueue[Any] | None = None, **options: Any) -> Worker:
    return backend.start("scripted", ScriptedRole, on_event=None if events is None else events.put, **options)


def fails_at_once(work: Callable[[], Any], text: str) -> None:
    begin = time.monotonic()
    with pytest.raises(WorkerDied, match=text):
        work()
    assert time.monotonic() - begin < conformance.AT_ONCE


def test_a_failure_in_a_process_reaches_the_caller_at_once(backend: ProcessBackend) -> None:
    worker = start(backend)
    worker.call("do", "")
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError) as caught:
        worker.call("do", "1 / 0")
    assert time.monotonic() - begin < conformance.AT_ONCE
    assert "in do" in str(caught.value.__cause__)


def test_a_worker_that_is_killed_while_idle_is_found_dead(backend: ProcessBackend) -> None:
    worker = start(backend)
    worker.call("do", "")
    pid = worker.pid
    os.kill(pid, signal.SIGKILL)
    fails_at_once(lambda: worker.call("do", ""), "scripted was ended by SIGKILL")
    assert not worker.alive
    assert state_of(pid) == ""  # not a zombie either
    worker.restart()
    assert worker.call("do", "result = 5") == 5


def test_a_worker_that_is_killed_while_nobody_calls_is_not_alive(backend: ProcessBackend) -> None:
    worker = start(backend)
    worker.call("do", "")
    os.kill(worker.pid, signal.SIGKILL)
    assert holds(lambda: not worker.alive, conformance.AT_ONCE)


@pytest.mark.parametrize(
    ("last_deed", "text"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "was ended by signal 40"),  # a signal without a name
        ("import os; os._exit(3)", "ended with code 3"),
        ("import os; os._exit(0)", "ended with code 0"),
    ],
)
def test_a_worker_that_ends_in_a_call_fails_that_call_at_once(
    backend: ProcessBackend, last_deed: str, text: str
) -> None:
    worker = start(backend)
    worker.call("do", "")
    fails_at_once(lambda: worker.call("do", last_deed), text)


def test_the_last_words_of_a_worker_are_told(backend: ProcessBackend, tmp_path: Path) -> None:
    worker = start(backend, output=str(tmp_path / "worker.log"))
    with pytest.raises(WorkerDied, match=r"ended with code 3; its last words: out of memory"):
        worker.call("do", "import os, sys; print('out of memory', flush=True); os._exit(3)")


def test_a_worker_that_is_killed_is_found_though_its_children_live_on_and_they_are_ended(
    backend: ProcessBackend,
) -> None:
    """A forked child holds the worker's end of the connection, so the connection does not break."""
    worker = start(backend)
    fork = """
    import os, time
    result = os.fork()
    if not result:
        time.sleep(60)
        os._exit(0)
    """
    child = worker.call("do", fork)
    os.kill(worker.pid, signal.SIGKILL)
    fails_at_once(lambda: worker.call("do", ""), "SIGKILL")
    assert ended([child])
    worker.restart()
    child = worker.call("do", fork)
    worker.close()
    assert ended([child])


@pytest.mark.parametrize(
    "preload", [pytest.param((), id="spawned", marks=pytest.mark.slow), pytest.param(WARM, id="forked")]
)
def test_a_worker_that_gives_no_sign_of_life_is_ended(preload: tuple[str, ...]) -> None:
    backend = ProcessBackend(hang_timeout=1.0, preload=preload)
    before = children()
    try:
        worker = start(backend)
        worker.call("do", "")
        pid = worker.pid
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(WorkerDied, match="hung: it gave no sign of life for 1 s"):
            worker.call("do", "")
        assert time.monotonic() - begin < 1.0 + conformance.AT_ONCE
        assert state_of(pid) == ""
        worker.restart()
        pid = worker.pid
        worker.call("do", "")
        fails = pytest.raises(WorkerDied, match="hung")
        with fails:
            worker.call("do", HOLD_THE_LOCK)
        assert state_of(pid) == ""
    finally:
        backend.close()
    assert children() == before


def test_a_worker_that_is_busy_for_longer_than_the_hang_timeout_is_not_hung() -> None:
    backend = ProcessBackend(hang_timeout=0.6)
    try:
        worker = start(backend)
        assert worker.call("do", "import time; time.sleep(1.5); result = 'fine'") == "fine"
        assert worker.alive
    finally:
        backend.close()


def test_a_stop_holds_while_an_event_is_being_taken_in(backend: ProcessBackend) -> None:
    taken, release, stop = threading.Event(), threading.Event(), CallStop()
    worker = backend.start("worker", ScriptedRole, on_event=lambda event: (taken.set(), release.wait(60)))
    with ThreadPoolExecutor(1) as threads:
        try:
            result = threads.submit(lambda: worker.call("do", "emit(1); result = 2", stop=stop))
            assert taken.wait(30)
            stop.set("enough")
            assert result.result(20) == 2
        finally:
            release.set()


PARENT = """
import os, sys, time
from lzero_async import make_backend
from lzero_async.testing import ScriptedRole

preload = ["lzero_async.testing"] if "forked" in sys.argv else []
backend = make_backend("process", hang_timeout=float(sys.argv[2]), preload=preload)
worker = backend.start("orphan", ScriptedRole, on_event=lambda event: print(event, flush=True))
worker.call("do", "import os; emit(os.getpid())")
if "fork" in sys.argv[3:]:
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    print(child, flush=True)
worker.call("do", sys.argv[1])
print("idle", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("doing", "last_line"),
    [
        ("", "idle"),
        ("import time; emit('busy'); time.sleep(60)", "busy"),
        (HOLD_THE_LOCK, "busy"),
        ("import os; emit('busy'); os.system('sleep 60')", "busy"),
    ],
    ids=["idle", "asleep", "in C with the lock", "waiting for a program"],
)
@pytest.mark.parametrize("how", [pytest.param("spawned", marks=pytest.mark.slow), "forked"])
def test_a_worker_dies_with_its_parent(doing: str, last_line: str, how: str, tmp_path: Path) -> None:
    with parent_script(tmp_path, doing, "60", how) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline().strip() == last_line
        pids = children(parent.pid)
        assert pid in pids
        parent.kill()
        assert parent.wait() == -signal.SIGKILL
        assert ended(pids)


@pytest.mark.parametrize("how", [pytest.param("spawned", marks=pytest.mark.slow), "forked"])
def test_a_worker_dies_with_its_parent_though_a_fork_of_the_parent_lives_on(how: str, tmp_path: Path) -> None:
    """The fork holds the parent's ends of every connection."""
    with parent_script(tmp_path, "", "0.6", "fork", how) as parent:
        assert parent.stdout is not None
        pid, fork = int(parent.stdout.readline()), int(parent.stdout.readline())
        assert parent.stdout.readline().strip() == "idle"
        parent.kill()
        assert parent.wait() == -signal.SIGKILL
        try:
            assert state_of(fork) not in ("", "Z")
            assert ended([pid])
        finally:
            os.kill(fork, signal.SIGKILL)


def parent_script(folder: Path, *args: str) -> subprocess.Popen[str]:
    script = folder / "parent.py"
    script.write_text(PARENT)
    return subprocess.Popen(
        [sys.executable, str(script), *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_many_starts_restarts_and_ends_leave_nothing(backend: ProcessBackend) -> None:
    threads, opened = threading.active_count(), descriptors()
    worker = start(backend)
    worker.call("do", "")
    one = descriptors() - opened
    for count in range(8):
        if count % 4 == 0:
            worker.call("do", "result = Parcel(PickleBuffer(bytearray(args[0])))", BIG)
        elif count % 4 == 1:
            os.kill(worker.pid, signal.SIGKILL)
        elif count % 4 == 2:
            worker.close()
        worker.restart()
    worker.call("do", "")
    assert worker.restarts == 8
    assert descriptors() - opened <= one
    assert threading.active_count() <= threads + 1
    worker.close()
    assert descriptors() <= opened
    assert holds(lambda: threading.active_count() == threads)


def test_restarts_from_several_threads_leave_one_process(backend: ProcessBackend) -> None:
    before = children()
    worker = start(backend)
    threads = [threading.Thread(target=worker.restart) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.restarts == 4
    assert children() - before == {worker.pid}


def test_a_worker_cannot_be_restarted_when_its_backend_is_closed(backend: ProcessBackend) -> None:
    worker = start(backend)
    backend.close()
    with pytest.raises(WorkerDied, match="scripted cannot be restarted: its backend is closed"):
        worker.restart()
    assert not worker.alive


def test_whoever_is_told_of_an_event_may_kill_the_worker(backend: ProcessBackend) -> None:
    worker = backend.start("scripted", ScriptedRole, on_event=lambda event: worker.kill())
    fails_at_once(lambda: worker.call("do", "") or worker.call("do", "emit(1); import time; time.sleep(60)"), "ended")


def test_an_event_that_cannot_be_taken_in_is_logged(backend: ProcessBackend, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(event: Any) -> None:
        raise ValueError(f"no {event}")

    worker = backend.start("scripted", ScriptedRole, on_event=refuse)
    assert worker.call("do", "emit('news'); result = 1") == 1
    assert "what scripted told could not be taken in" in caplog.text


# -- what a process is given ---------------------------------------------------------------------------------------------------


def test_a_factory_of_a_script_works(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from functools import partial
        from lzero_async import make_backend

        print("imported")

        class Role:
            def __init__(self, emit, start):
                self.total = start
            def add(self, number):
                self.total += number
                return self.total

        if __name__ == "__main__":
            backend = make_backend("process")
            worker = backend.start("role", partial(Role, start=40))
            print(worker.call("add", 2))
            backend.close()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["imported", "imported", "42"], done.stderr


def test_a_factory_that_cannot_be_sent_is_refused(backend: ProcessBackend) -> None:
    with pytest.raises(
        ConfigError, match=r"The factory of role cannot be sent to another process .*functools\.partial"
    ):
        backend.start("role", lambda emit: ScriptedRole(emit))


def test_a_factory_that_makes_nothing_is_refused(backend: ProcessBackend) -> None:
    worker = backend.start("role", print)
    with pytest.raises(TypeError, match="returned None; it must return the role"):
        worker.call("do", "")


def test_the_environment_is_there_before_anything_is_imported(backend: ProcessBackend, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, builtins; builtins.SEEN = os.environ.get('OMP_NUM_THREADS')")
    worker = start(backend, environment={"OMP_NUM_THREADS": "3", "PYTHONPATH": str(tmp_path)})
    assert worker.call("do", "import builtins; result = builtins.SEEN") == "3"


def test_what_a_worker_logs_reaches_the_handlers_here(
    backend: ProcessBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lzero_async")
    worker = start(backend)
    worker.call(
        "do",
        """
        import logging
        log = logging.getLogger("lzero_async.inside")
        log.info("loaded %d weights", 12)
        log.debug("nobody asked for this")
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("it went wrong")
        """,
    )
    assert ("lzero_async.inside", logging.INFO, "scripted: loaded 12 weights") in caplog.record_tuples
    assert "ZeroDivisionError" in caplog.text
    assert "nobody asked" not in caplog.text


def test_a_log_message_that_does_not_fit_its_arguments_does_not_fail_the_role(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    worker = start(backend, output=str(tmp_path / "worker.log"))
    source = "import logging; logging.getLogger('lzero_async').warning('%d', 'x'); result = 1"
    assert worker.call("do", source) == 1
    assert "Logging error" in (tmp_path / "worker.log").read_text()


def test_ctrl_c_and_sigterm_are_for_the_parent(backend: ProcessBackend) -> None:
    worker = start(backend)
    for number in (2, 15):
        assert worker.call("do", f"import os; os.kill(os.getpid(), {number}); result = 1") == 1


# -- messages and parcels between processes ------------------------------------------------------------------------------------


def test_a_large_message_goes_in_band(backend: ProcessBackend) -> None:
    worker = start(backend)
    data = os.urandom(1000) * 50_000
    assert worker.call("do", "result = args[0]", data) == data


MAKE = "result = Parcel({'data': PickleBuffer(bytearray([args[0]]) * args[1])}, meta=args[0])"
LOOK = "result = [sorted(set(bytes(parcel.open()['data']))) for parcel in args]"


def test_more_parcels_than_descriptors_fit_one_message(backend: ProcessBackend) -> None:
    maker, reader = start(backend), start(backend)
    source = "result = [Parcel({'data': PickleBuffer(bytearray([i]) * args[0])}, meta=i) for i in range(150)]"
    opened = descriptors()
    parcels = maker.call("do", source, 40_000)
    assert [parcel.meta for parcel in parcels] == list(range(150))
    assert reader.call("do", LOOK, *parcels) == [[i] for i in range(150)]
    assert reader.call("do", "import os; result = len(os.listdir('/proc/self/fd'))") < 30
    del parcels
    assert descriptors() <= opened
    assert maker.call("do", "import os; result = len(os.listdir('/proc/self/fd'))") < 30


def footprint(worker: Worker) -> tuple[int, int]:
    """Open descriptors and resident kilobytes."""
    source = """
    import gc, os
    gc.collect()
    result = len(os.listdir("/proc/self/fd")), int(open("/proc/self/statm").read().split()[1]) * 4
    """
    return worker.call("do", source)


def test_the_memory_of_parcels_is_used_again(backend: ProcessBackend) -> None:
    maker, reader = start(backend), start(backend)
    ours: list[int] = []
    theirs: list[tuple[int, int]] = []
    for round_ in range(2):
        for count in range(50 if round_ == 0 else 950):
            parcel = maker.call("do", MAKE, count % 256, BIG)
            assert reader.call("do", LOOK, parcel) == [[count % 256]]
            del parcel
        ours.append(descriptors())
        theirs += [footprint(maker), footprint(reader)]
    assert ours[1] <= ours[0]
    for early, late in zip(theirs[:2], theirs[2:], strict=True):
        assert late[0] <= early[0]
        assert late[1] < early[1] + 10_000  # 950 parcels were 190 MB


def test_what_a_role_keeps_of_a_parcel_never_changes(backend: ProcessBackend) -> None:
    maker, reader = start(backend), start(backend)
    reader.call("do", "kept = []")
    for count in range(40):
        parcel = maker.call("do", MAKE, count, BIG)
        reader.call(
            "do", "data = args[0].open()['data']; kept += [data] if args[1] else []; del data", parcel, count % 4 == 0
        )
        del parcel
    found = reader.call("do", "result = [sorted(set(bytes(data))) for data in kept]")
    assert found == [[count] for count in range(0, 40, 4)]


def test_what_a_role_keeps_of_the_callers_parcel_never_changes(backend: ProcessBackend) -> None:
    reader = start(backend)
    reader.call("do", "kept = []")
    for count in range(20):
        parcel = Parcel({"data": pickle_buffer(count)})
        reader.call("do", "kept.append(args[0].open()['data'])", parcel)
        del parcel
    found = reader.call("do", "result = [sorted(set(bytes(data))) for data in kept]")
    assert found == [[count] for count in range(20)]


def pickle_buffer(byte: int) -> Any:
    return pickle.PickleBuffer(bytearray([byte]) * BIG)


def test_what_is_left_in_an_exception_of_a_parcel_is_let_go(backend: ProcessBackend) -> None:
    """A frame of the failed call holds an array; the memory is used again all the same."""
    maker, reader = start(backend), start(backend)
    for count in range(30):
        parcel = maker.call("do", MAKE, count, BIG)
        with pytest.raises(ZeroDivisionError):
            reader.call("do", "def f(p):\n data = p.open()['data']\n 1 / 0\nf(args[0])", parcel)
        del parcel
    assert footprint(maker)[0] < 20
    assert footprint(reader)[0] < 20


def test_a_parcel_that_is_returned_twice_is_used_again_only_after_both(backend: ProcessBackend) -> None:
    """A learner may return the same parcel until its weights change."""
    maker, reader = start(backend), start(backend)
    maker.call("do", "same = Parcel({'data': PickleBuffer(bytearray([1]) * args[0])})", BIG)
    for _ in range(3):
        first, second = maker.call("do", "result = same"), maker.call("do", "result = same")
        del first
        for count in range(10):
            maker.call("do", MAKE, 100 + count, BIG)
        assert reader.call("do", LOOK, second) == [[1]]
        del second
    maker.call("do", "same = None")
    for count in range(10):
        maker.call("do", MAKE, count, BIG)
    assert footprint(maker)[0] < 20


@pytest.mark.parametrize("size", [10, BIG])
def test_a_role_sends_on_a_parcel_that_it_got_and_opens_it_later(backend: ProcessBackend, size: int) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    maker, reader = start(backend), backend.start("scripted", ScriptedRole, on_event=events.put)
    parcel = maker.call("do", MAKE, 1, size)
    found = [reader.call("do", "emit(args[0]); later = args[0]; result = later", parcel), events.get(timeout=20)]
    del parcel
    for count in range(2, 12):
        maker.call("do", MAKE, count, size)
    assert reader.call("do", LOOK, *found) == [[1], [1]]
    maker.kill()
    assert reader.call("do", "result = sorted(set(bytes(later.open()['data'])))") == [1]


def test_a_result_that_cannot_be_sent_costs_no_memory(backend: ProcessBackend) -> None:
    maker = start(backend)
    for _ in range(30):
        with pytest.raises(TypeError, match="pickle"):
            maker.call(
                "do", "import threading\nresult = Parcel(PickleBuffer(bytearray(args[0])), threading.Lock())", BIG
            )
    assert footprint(maker)[0] < 20


def test_a_caller_that_is_interrupted_leaves_its_parcels_to_the_role(backend: ProcessBackend, tmp_path: Path) -> None:
    """The call goes on without its caller; the memory that it reads must not be used again."""
    maker, reader = start(backend), start(backend)
    reader.call("do", "")
    parcel = maker.call("do", MAKE, 1, BIG)

    class Interrupting:
        def listen(self, callback: Callable[[str], None]) -> Callable[[], None]:
            raise KeyboardInterrupt

        def is_set(self) -> bool:
            return False

        def wait(self, seconds: float) -> bool:
            return False

    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waiting = "open(args[1]).read(); kept = args[0].open()['data']"
    with pytest.raises(KeyboardInterrupt):
        reader.call("do", waiting, parcel, str(gate), stop=Interrupting())
    del parcel
    for count in range(2, 12):
        maker.call("do", MAKE, count, BIG)
    gate.write_text("go on")
    assert reader.call("do", "result = sorted(set(bytes(kept)))") == [1]


def test_programs_that_a_role_starts_inherit_no_descriptor(backend: ProcessBackend, tmp_path: Path) -> None:
    maker, reader = start(backend), start(backend)
    parcel = maker.call("do", MAKE, 1, BIG)
    reader.call("do", "import os; os.system('ls -l /proc/self/fd > ' + args[1])", parcel, str(tmp_path / "list"))
    found = (tmp_path / "list").read_text()
    assert "/dev/null" in found and "memfd" not in found


class Owner:
    """Gets the events of a worker, and keeps a parcel that came from it."""

    def __init__(self, backend: Backend) -> None:
        self.worker = backend.start("scripted", ScriptedRole, on_event=self.note)
        self.latest = self.worker.call("do", MAKE, 1, BIG)

    def note(self, event: Any) -> None: ...


def test_a_parcel_does_not_keep_its_own_holder_alive() -> None:
    backend = make_backend("process")
    owner = Owner(backend)
    backend.close()
    gone = weakref.ref(owner)
    del owner, backend
    gc.collect()
    assert gone() is None
