"""Roles as actors of a Ray cluster on this machine: the promises of every backend, and what Ray adds."""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lzero_async import ConfigError, Parcel, Stopped, WorkerDied, make_backend
from lzero_async.runs.checks import resources
from lzero_async.testing import ScriptedRole, conformance
from lzero_async.testing.fakes import Block
from lzero_async.validation import role_resources
from lzero_async.workers.calls import CallStop
from lzero_async.workers.ray.life import Life

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
ROOT = Path(__file__).resolve().parents[2]
BIG = 200_000
make_ray = partial(make_backend, "ray", ray_resources={"subject": {"CPU": 0}, "scripted": {"CPU": 0}})


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all: each backend finds this program connected already."""
    from lzero_async.workers.ray.cluster import join_cluster

    cluster = join_cluster("", {})
    yield
    cluster.leave()


@pytest.fixture
def backend() -> Iterator[Any]:
    backend = make_ray()
    yield backend
    backend.close()


@pytest.mark.parametrize("check", conformance.applicable("ray"), ids=lambda check: check.__name__)
def test_ray_keeps_the_promises_of_every_backend(check: conformance.Check) -> None:
    conformance.run_check(check, make_ray)


def test_a_worker_that_is_ready_has_a_process(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the word that its role is made may come before the one that says where."""
    first_word, let_go = Life._first_word, threading.Event()

    def late(life: Any) -> Any:
        found = first_word(life)
        assert let_go.wait(60)
        return found

    monkeypatch.setattr(Life, "_first_word", late)
    worker = backend.start("scripted", ScriptedRole)
    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(lambda: (worker.wait_until_ready(), worker.pid)[1])
        try:
            worker._life.started.wait(60)
            with pytest.raises(FutureTimeout):
                seen.result(0.5)
        finally:
            let_go.set()
        assert seen.result(60) > 0


def test_a_killed_process_is_seen_and_comes_back_elsewhere(backend: Any) -> None:
    worker = backend.start("scripted", ScriptedRole)
    pid = worker.call("do", "import os; result = os.getpid()")
    assert worker.pid == pid and worker.host == "" and worker.node
    with pytest.raises(WorkerDied, match="scripted was lost"):
        worker.call("do", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert not worker.alive
    worker.restart()
    assert worker.call("do", "import os; result = os.getpid()") != pid and worker.alive


def test_a_death_between_two_calls_is_seen(backend: Any) -> None:
    worker = backend.start("scripted", ScriptedRole)
    worker.call("do", "result = 1")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="was lost"):
        worker.call("do", "result = 1")


def test_a_role_that_holds_the_interpreter_counts_as_hung() -> None:
    backend = make_ray(hang_timeout=1.5)
    try:
        worker = backend.start("scripted", ScriptedRole)
        worker.call("do", "result = 1")
        with pytest.raises(WorkerDied, match=r"hung: it gave no sign of life for 1\.5 s"):
            worker.call("do", "import ctypes; ctypes.PyDLL(None).sleep(60)")
    finally:
        backend.close()


def test_a_parcel_goes_into_the_store_once_however_many_read_it(backend: Any) -> None:
    readers = [backend.start("scripted", ScriptedRole) for _ in range(2)]
    parcel = Parcel(Block(bytearray(b"\x05") * BIG), "weights")
    for reader in readers:
        assert reader.call("do", "result = bytes(args[0].read())[:3], args[0].meta", parcel) == (b"\x05" * 3, "weights")
    first = parcel._stored.source[0]
    assert readers[0].call("do", "result = len(bytes(args[0].open()))", parcel) == BIG
    assert parcel._stored.source[0] is first
    assert parcel.nbytes >= BIG and bytes(parcel.open()) == b"\x05" * BIG


def test_what_one_role_returns_is_passed_on_without_another_copy(backend: Any) -> None:
    maker, reader = (backend.start("scripted", ScriptedRole) for _ in range(2))
    source = f"from lzero_async.testing.fakes import Block; result = Parcel(Block(bytearray(b'\\x07') * {BIG}), 'made')"
    parcel = maker.call("do", source)
    reference, path = parcel._stored.source
    maker.kill()
    assert reader.call("do", "result = sum(bytes(args[0].read()))", parcel) == 7 * BIG
    assert parcel._stored.source == (reference, path)


def test_a_parcel_in_an_event_arrives(backend: Any) -> None:
    told: list[Any] = []
    worker = backend.start("scripted", ScriptedRole, on_event=told.append)
    source = f"""
        from lzero_async.testing.fakes import Block
        data = bytearray(b"\\x03") * {BIG}
        emit(("here", Parcel(Block(data), 3)))
        data[:] = b"\\x09" * {BIG}
    """
    worker.call("do", source)
    ((word, parcel),) = told
    assert (word, parcel.meta) == ("here", 3) and bytes(parcel.open()) == b"\x03" * BIG
    assert worker.call("do", "result = bytes(args[0].open())[:2]", parcel) == b"\x03\x03"


def test_what_a_role_logs_reaches_our_handlers(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = backend.start("scripted", ScriptedRole)
    with caplog.at_level(logging.WARNING, "lzero_async"):
        worker.call("do", "import logging; logging.getLogger('lzero_async').warning('the %s is low', 'oil')")
    assert "scripted: the oil is low" in caplog.text


def test_the_environment_and_the_output_are_the_roles_own(backend: Any, tmp_path: Path) -> None:
    output = tmp_path / "role.out"
    worker = backend.start("scripted", ScriptedRole, environment={"LZERO_TEST": "yes"}, output=str(output))
    assert worker.call("do", "import os; print('hello', flush=True); result = os.environ['LZERO_TEST']") == "yes"
    assert output.read_text() == "hello\n"


def test_a_role_without_a_place_is_said_and_does_not_outlast_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from lzero_async.workers.ray import life

    monkeypatch.setattr(life, "_PATIENCE", 0.2)
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    handler.emit = lambda record: said.put(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lzero_async").addHandler(handler)
    backend = make_backend("ray", ray_resources={"scripted": {"unobtainium": 1}})
    try:
        worker = backend.start("scripted", ScriptedRole)
        assert "it needs 1 unobtainium, and all machines together have" in said.get(timeout=60)
        assert worker.pid == 0 and worker.alive
        stop = CallStop()
        stop.set("max_train")
        with pytest.raises(Stopped) as raised:
            worker.call("do", "result = 1", stop=stop)
        assert raised.value.origin is stop
    finally:
        logging.getLogger("lzero_async").removeHandler(handler)
        backend.close(timeout=1.0)


def test_a_role_sees_relative_paths_as_the_program_does(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Ray's own processes were started elsewhere
    worker = backend.start("scripted", ScriptedRole, pin_to_driver=True, output="role.out")
    assert worker.call("do", "import os; print('hello', flush=True); result = os.getcwd()") == str(tmp_path)
    assert (tmp_path / "role.out").read_text() == "hello\n"


def test_a_role_whose_output_cannot_be_written_lives(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "role.out").mkdir()
    worker = backend.start("scripted", ScriptedRole, output=str(tmp_path / "role.out"))
    assert worker.call("do", "result = 1") == 1


def test_an_actor_without_a_role_ends(backend: Any) -> None:
    worker = backend.start("scripted", partial(ScriptedRole, no_such_argument=1))
    with pytest.raises(TypeError, match="no_such_argument"):
        worker.call("do", "result = 1")
    assert not worker.alive


@pytest.mark.parametrize(
    ("needs", "pin_to_driver", "words"),
    [
        ({"unobtainium": 1}, True, "cannot be placed in the Ray cluster: it needs 1 unobtainium"),
        ({"GPU": 1.5}, False, "Ray does not take what scripted needs"),
        ({"object_store_memory": 1e9}, False, "Ray does not take what scripted needs"),
    ],
)
def test_needs_that_cannot_be_met_are_one_sentence(
    needs: dict[str, float], pin_to_driver: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = make_backend("ray", ray_resources={"scripted": needs})
    try:
        with pytest.raises(ConfigError, match=words):
            backend.start("scripted", ScriptedRole, pin_to_driver=pin_to_driver).call("do", "result = 1")
        assert "Traceback" not in caplog.text
    finally:
        backend.close()


def test_memory_is_a_need_like_others() -> None:
    backend = make_backend("ray", ray_resources={"scripted": {"memory": 1e6}})
    try:
        assert backend.start("scripted", ScriptedRole).call("do", "result = 1") == 1
    finally:
        backend.close()


def test_a_cluster_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**settings: Any) -> None:
        raise ValueError("The configured object store size exceeds\n  /dev/shm.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        ConfigError, match=r"no Ray cluster can be started on this machine \(The configured object store size"
    ):
        make_backend("ray")


def test_bad_needs_and_addresses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    check = resources("collector", "evaluator")
    for value, said in (
        ("{", "not JSON"),
        ('{"collector": 1}', "for collector"),
        ('{"collector": {"CPU": -1}}', "for CPU of collector"),
        ('{"collectors": {"CPU": 1}}', "has needs of 'collectors', but the kinds of roles are collector, evaluator"),
    ):
        with pytest.raises(ConfigError, match=said):
            check("ray_resources", value)
    with pytest.raises(ConfigError, match="ray_resources"):
        role_resources("ray_resources", [])
    assert check("ray_resources", '{"collector": {"CPU": 1, "GPU": 0.5}}') == {"collector": {"CPU": 1, "GPU": 0.5}}
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="Ray is not installed; pip install"):
        make_backend("ray")


PROGRAM = """
    import psutil, sys
    sys.path.insert(0, {root!r})
    from lzero_async import ConfigError, make_backend
    from lzero_async.testing import ScriptedRole
    if __name__ == "__main__":
        for address in ("127.0.0.1:1", "ray://127.0.0.1:10001", "here"):
            try:
                make_backend("ray", ray_address=address)
            except ConfigError as error:
                print(str(error).split(" (")[0])
        backend = make_backend("ray")
        worker = backend.start("scripted", ScriptedRole)
        worker.call("do", "result = 1")
        family = psutil.Process().children(recursive=True)
        listening = [
            place.laddr.ip for one in [psutil.Process(), *family] for place in one.net_connections("inet")
            if place.status == psutil.CONN_LISTEN
        ]
        print(sorted({{address.removeprefix("::ffff:") for address in listening}}))
        backend.close()
        gone, alive = psutil.wait_procs(family, timeout=20)
        print([one.name() for one in alive])
"""


def test_a_cluster_of_its_own_listens_on_loopback_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM.format(root=str(ROOT))))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(
            f"ray_address is {address!r}, but no Ray cluster answers there"
            for address in ("127.0.0.1:1", "ray://127.0.0.1:10001", "here")
        ), "['127.0.0.1']", "[]",
    ]  # fmt: skip


def test_a_cluster_of_its_own_is_started_although_the_environment_names_another(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom lzero_async import make_backend\n"
        "if __name__ == '__main__':\n    backend = make_backend('ray')\n    print(backend.cluster is not None)\n"
        "    backend.close()\n"
    )
    named = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=named)
    assert done.stdout == "True\n", done.stderr
