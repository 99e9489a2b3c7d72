"""Workers that are forked from a template: what they share with it, what each has for itself, and when none is forked."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lzero_async import ConfigError, Worker, make_backend
from lzero_async.testing import ScriptedRole
from lzero_async.workers import template as templates
from lzero_async.workers.process import ProcessBackend
from tests.process_tools import children, ended

ROOT = Path(__file__).resolve().parents[2]
WHERE = "import sys; result = 'warm_marker' in sys.modules"
FORKED = "import sys; result = '_template import main' in ' '.join(sys.orig_argv)"


@pytest.fixture(autouse=True)
def _no_template_is_left() -> Iterator[None]:
    before = children()
    yield
    templates.close_idle()
    assert children() <= before


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that can be preloaded; it writes a line for each process that imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    log = tmp_path / "imports"
    (tmp_path / "warm_marker.py").write_text(f"open({str(log)!r}, 'a').write('x')\n")
    return log


def start(backend: ProcessBackend, **options: Any) -> Worker:
    return backend.start("scripted", ScriptedRole, **options)


def test_the_imports_are_made_once_for_all_workers_restarts_and_backends(marker: Path) -> None:
    for _ in range(2):
        backend = ProcessBackend(preload=["warm_marker"])
        try:
            workers = [start(backend) for _ in range(3)]
            assert [worker.call("do", WHERE) for worker in workers] == [True] * 3
            os.kill(workers[0].pid, signal.SIGKILL)
            workers[0].restart()
            assert workers[0].call("do", WHERE)
        finally:
            backend.close()
    assert marker.read_text() == "x"


def test_each_worker_has_its_own_variables_output_folder_session_and_random_numbers(
    marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ProcessBackend(preload=["warm_marker"])
    look = """
    import os, random, sys
    import numpy as np
    print("said", flush=True)
    result = {
        "variables": (os.environ.get("OMP_NUM_THREADS"), os.environ.get("LATER")), "folder": os.getcwd(),
        "session": os.getsid(0) == os.getpgid(0) == os.getpid(), "parent": os.getppid(),
        "numbers": (random.random(), np.random.random()), "streams": (sys.stdin.read(), os.isatty(0)),
    }
    """
    (tmp_path / "elsewhere").mkdir()
    try:
        found = []
        for number in (1, 2):
            monkeypatch.setenv("LATER", str(number))
            monkeypatch.chdir(tmp_path if number == 1 else tmp_path / "elsewhere")
            output = tmp_path / f"{number}.out"
            worker = start(backend, environment={"OMP_NUM_THREADS": str(number + 2)}, output=str(output))
            found.append(worker.call("do", look))
            assert output.read_text() == "said\n"
        one, two = found
        assert (one["variables"], two["variables"]) == (("3", "1"), ("4", "2"))
        assert (one["folder"], two["folder"]) == (str(tmp_path), str(tmp_path / "elsewhere"))
        assert one["session"] and two["session"] and one["parent"] == two["parent"] == os.getpid()
        assert one["streams"] == ("", False)
        assert one["numbers"][0] != two["numbers"][0] and one["numbers"][1] != two["numbers"][1]
    finally:
        backend.close()
    assert marker.read_text() == "x"


def test_a_worker_has_the_cores_and_the_umask_that_its_program_has_now(marker: Path) -> None:
    backend = ProcessBackend(preload=["warm_marker"])
    look = "import os; result = os.sched_getaffinity(0), os.umask(0)"
    cores, umask = os.sched_getaffinity(0), os.umask(0o022)
    try:
        assert start(backend).call("do", look) == (cores, 0o022)
        os.umask(0o077)
        os.sched_setaffinity(0, {min(cores)})
        assert start(backend).call("do", look) == ({min(cores)}, 0o077)
    finally:
        os.umask(umask)
        os.sched_setaffinity(0, cores)
        backend.close()


def test_torch_has_the_threads_and_the_random_numbers_of_a_new_process() -> None:
    pytest.importorskip("torch")
    backend = ProcessBackend(preload=["torch"])
    look = "import sys; torch = sys.modules['torch']; result = torch.get_num_threads(), torch.initial_seed()"
    try:
        found = [start(backend, environment={"OMP_NUM_THREADS": str(n)}).call("do", look) for n in (1, 3, 3)]
    finally:
        backend.close()
    assert [threads for threads, _ in found] == [1, 3, 3]
    assert len({seed for _, seed in found}) == 3


def test_a_worker_holds_nothing_of_the_template_or_of_other_workers(marker: Path) -> None:
    backend = ProcessBackend(preload=["warm_marker"])
    count = "import os; result = len(os.listdir('/proc/self/fd'))"
    try:
        counts = [start(backend).call("do", count) for _ in range(4)]
        spawned = ProcessBackend()
        try:
            assert counts == [start(spawned).call("do", count)] * 4
        finally:
            spawned.close()
        (template,) = children() - {worker.pid for worker in backend._workers}
        assert len(os.listdir(f"/proc/{template}/fd")) == 5  # the standard streams, the connection, the lifeline
        assert os.listdir(f"/proc/{template}/task") == [str(template)]
    finally:
        backend.close()


def spawns(backend: ProcessBackend, caplog: pytest.LogCaptureFixture, why: str, **options: Any) -> None:
    """The workers of this backend are spawned, which is said once if there is anything to say."""
    with caplog.at_level(logging.WARNING, "lzero_async"):
        for _ in range(2):
            worker = start(backend, **options)
            assert worker.call("do", "import sys; result = sys.orig_argv[-1]")
            assert (
                worker.call("do", "import threading; result = 'lzero_async.workers._template' in sys.modules") is False
            )
    said = [record.getMessage() for record in caplog.records if "without a template" in record.getMessage()]
    assert len(said) == bool(why) and all(why in line for line in said), said


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "1 more thread",
        ),
        ("raise ValueError('not today')", "warm_bad cannot be imported (ValueError('not today'))"),
        ("import os; os._exit(3)", "it is dead, or does not answer"),
    ],
    ids=["a thread", "an error", "the end"],
)
def test_a_module_that_cannot_be_preloaded_leaves_workers_spawned(
    source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "warm_bad.py").write_text(source)
    backend = ProcessBackend(preload=["warm_bad"])
    try:
        spawns(backend, caplog, why)
    finally:
        backend.close()


def test_a_thread_that_begins_later_is_seen_before_the_next_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A signal's handler starts it: nothing else runs in a template."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "warm_late.py").write_text(
        "import signal, threading, time\n"
        "def begin(*_): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "signal.signal(signal.SIGUSR1, begin)\n"
    )
    backend = ProcessBackend(preload=["warm_late"])
    try:
        worker = start(backend)
        assert worker.call("do", FORKED)
        (template,) = children() - {worker.pid}
        os.kill(template, signal.SIGUSR1)
        spawns(backend, caplog, "1 more thread")
    finally:
        backend.close()


def test_a_dead_template_leaves_its_workers_alive_and_new_ones_spawned(
    marker: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ProcessBackend(preload=["warm_marker"])
    try:
        worker = start(backend)
        worker.call("do", "")
        (template,) = children() - {worker.pid}
        os.kill(template, signal.SIGKILL)
        assert ended([template])
        assert worker.call("do", WHERE)
        spawns(backend, caplog, "it is dead")
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(Exception, match="was ended by SIGSEGV"):
            worker.call("do", "")
    finally:
        backend.close()
    backend = ProcessBackend(preload=["warm_marker"])  # the next one has a template again
    try:
        assert start(backend).call("do", WHERE)
    finally:
        backend.close()


def test_a_dead_template_that_is_replaced_leaves_nothing_behind(marker: Path) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    first = ProcessBackend(preload=["warm_marker"])
    try:
        assert start(first).call("do", WHERE)
        os.kill(first._template._process.pid, signal.SIGKILL)
        assert not start(first).call("do", FORKED)
        second = ProcessBackend(preload=["warm_marker"])
        assert start(second).call("do", FORKED)
        second.close()
    finally:
        first.close()
    templates.close_idle()
    assert len(os.listdir("/proc/self/fd")) == opened and children() == set()


def test_code_that_was_changed_is_imported_again_by_the_next_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: edit a module, and run again. Workers of a backend that is still open agree with each other."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "warm_edited.py"
    look = "import warm_edited; result = warm_edited.NUMBER"
    open_backends = []
    try:
        for number in range(3):
            module.write_text(f"NUMBER = {number}\n")
            os.utime(module, (number, number))
            open_backends.append(ProcessBackend(preload=["warm_edited"]))
            assert start(open_backends[-1]).call("do", look) == number
            assert start(open_backends[-1]).call("do", FORKED)
        for number, backend in enumerate(open_backends):
            assert start(backend).call("do", look) == number
    finally:
        for backend in open_backends:
            backend.close()


def test_what_is_read_at_the_start_of_a_process_is_spawned(
    marker: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ProcessBackend(preload=["warm_marker"])
    try:
        spawns(backend, caplog, "", environment={"CUDA_VISIBLE_DEVICES": "0"})
        assert start(backend).call("do", WHERE)
    finally:
        backend.close()
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    backend = ProcessBackend(preload=["warm_marker"])  # another template
    try:
        found = start(backend).call("do", "import sys; result = hash('a'), 'warm_marker' in sys.modules")
        fresh = subprocess.run([sys.executable, "-c", "print(hash('a'))"], capture_output=True, text=True, check=True)
        assert found == (int(fresh.stdout), True)
    finally:
        backend.close()
    assert marker.read_text() == "xx"


def test_with_a_gpu_every_worker_is_spawned(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates.glob, "glob", lambda pattern: ["/dev/nvidia0"] if "nvidia" in pattern else [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    backend = ProcessBackend(preload=["warm_marker"])
    try:
        assert start(backend).call("do", WHERE) is False
        assert not marker.exists()
    finally:
        backend.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not templates.gpu_in_reach()


def test_names_of_modules_are_wanted() -> None:
    for wrong in ("torch", [1]):
        with pytest.raises(ConfigError, match=r"preload is .* it must be a list of names of modules"):
            make_backend("process", preload=wrong)  # type: ignore[arg-type]


PROGRAM = """
    import sys
    from lzero_async import make_backend

    print("imported", __name__, flush=True)

    class Role:
        def __init__(self, emit): ...
        def look(self): return str(sys.flags), sys.warnoptions, sorted(sys._xoptions.items()), "colorsys" in sys.modules

    if __name__ == "__main__":
        backend = make_backend("process", preload=["colorsys"])
        worker = backend.start("role", Role)
        print(worker.call("look") == (str(sys.flags), sys.warnoptions, sorted(sys._xoptions.items()), True))
        backend.close()
"""


def test_the_users_program_and_the_flags_of_its_interpreter_are_there(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    flags = ("-O", "-W", "error::UserWarning", "-X", "utf8=1", "-X", "anything=3")
    done = subprocess.run(
        [sys.executable, *flags, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["imported __main__", "imported __mp_main__", "True"], done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("preload", [[], ["colorsys"]], ids=["spawned", "forked"])
@pytest.mark.parametrize("closed", [[1], [0, 1, 2]])
def test_a_program_without_standard_streams_starts_workers_with_quiet_ones(
    preload: list[str], closed: list[int], tmp_path: Path
) -> None:
    """Else a connection gets the number of its output, and what a worker prints goes there."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys
        from lzero_async import make_backend
        from lzero_async.testing import ScriptedRole

        if __name__ == "__main__":
            backend = make_backend("process", preload={preload})
            look = "import os; print('said', flush=True); result = [os.readlink(f'/proc/self/fd/{{n}}') for n in range(3)]"
            found = backend.start("role", ScriptedRole).call("do", look)
            backend.close()
            open({str(tmp_path / "found")!r}, "w").write(" ".join(found))
    """)
    )
    shell = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$1" {shell}', sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    found = (tmp_path / "found").read_text().split()
    assert [found[number] for number in {0, *closed}] == ["/dev/null"] * len({0, *closed})
