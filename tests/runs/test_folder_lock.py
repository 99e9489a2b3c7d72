"""One run, one folder: its lock, held for the run and freed by the kernel, and what programs make of it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.folder_lock import LOCK, FolderLock, holder
from lzero_async.runs.options import as_dict
from lzero_async.runs.run_dir import find_checkpoint, free_folder, say_folder
from tests.sentences import assert_one_sentence

PROGRAMS = 20
FOREVER = 60
ROOT = Path(__file__).resolve().parents[2]
TAKES = """
import os, sys
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.run_dir import free_folder
os.write(1, b"ready\\n")
os.read(0, 1)  # until the other end is closed, for all programs at the same moment
with FolderLock() as lock:
    folder = free_folder(sys.argv[1], None, lock)
    assert lock.holds(folder)
    (folder / "options.json").open("x").write(str(os.getpid()))
    os.write(1, f"{folder}\\n".encode())
    os.read(int(sys.argv[2]), 1)
"""
LEAVES_CHILDREN = """
import os, subprocess, sys
from lzero_async.runs.folder_lock import FolderLock
from pathlib import Path
lock = FolderLock()
assert lock.take(Path(sys.argv[1]))
gate = int(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", f"import os; os.read({gate}, 1)"], pass_fds=[gate])
fork = os.fork()
if not fork:
    os.close(1)
    os.read(gate, 1)
    os._exit(0)
os.write(1, f"{child.pid} {fork}\\n".encode())
os.read(gate, 1)
"""


def start(code: str, *words: str, pass_fds: tuple[int, ...] = (), stdin: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        pass_fds=pass_fds,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def says(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], FOREVER)[0], "it says nothing"
    return process.stdout.readline().decode().strip()


def test_twenty_programs_at_once_have_twenty_folders(tmp_path: Path) -> None:
    waiting, go = os.pipe()
    held, end = os.pipe()
    processes = [
        start(TAKES, str(tmp_path / "run"), str(held), pass_fds=(held,), stdin=waiting) for _ in range(PROGRAMS)
    ]
    try:
        assert [says(process) for process in processes] == ["ready"] * PROGRAMS
        os.close(go)
        folders = [Path(says(process)) for process in processes]
        assert {folder.name for folder in folders} == {"run", *(f"run-{number}" for number in range(2, PROGRAMS + 1))}
        for folder, process in zip(folders, processes, strict=True):
            assert (folder / "options.json").read_text() == str(process.pid)
            assert holder(folder) == f"pid {process.pid}"
        os.close(end)
        assert [process.wait(FOREVER) for process in processes] == [0] * PROGRAMS
        assert not any(holder(folder) for folder in folders)
    finally:
        os.close(waiting)
        os.close(held)
        for process in processes:
            process.kill()
            process.communicate()


def test_a_killed_run_frees_its_folder_at_once_whatever_it_left_running(tmp_path: Path) -> None:
    held, end = os.pipe()
    process = start(LEAVES_CHILDREN, str(tmp_path), str(held), pass_fds=(held,))
    try:
        children = [int(pid) for pid in says(process).split()]
        assert len(children) == 2
        with FolderLock() as lock:
            assert not lock.take(tmp_path)
            process.kill()
            process.wait(FOREVER)
            for child in children:
                os.kill(child, 0)  # they are still there
            assert lock.take(tmp_path)
            assert holder(tmp_path) == f"pid {os.getpid()}"
    finally:
        process.kill()
        os.close(held)
        os.close(end)
        process.communicate()


def test_a_run_that_is_still_running_is_not_resumed(tmp_path: Path) -> None:
    saved = tmp_path / "run" / "ckpt" / "last.safetensors"
    saved.parent.mkdir(parents=True)
    saved.touch()
    with FolderLock() as running:
        assert running.take(tmp_path / "run")
        for resume in (tmp_path / "run", saved):
            with FolderLock() as lock, pytest.raises(ConfigError, match=rf"still running \(pid {os.getpid()}\)"):
                find_checkpoint(str(resume), "", lock)
    with FolderLock() as lock:
        assert find_checkpoint(str(saved), "", lock) == saved
        assert lock.holds(tmp_path / "run")
        assert free_folder(str(tmp_path / "run"), saved, lock) == tmp_path / "run"
        assert holder(tmp_path / "run") is not None
        # A run that goes on elsewhere lets the old folder go.
        assert free_folder(str(tmp_path / "branch"), saved, lock) == tmp_path / "branch"
        assert holder(tmp_path / "run") is None
        assert holder(tmp_path / "branch") is not None


def test_a_holder_elsewhere_is_named_with_its_machine(tmp_path: Path) -> None:
    with FolderLock() as lock:
        lock.take(tmp_path)
        (tmp_path / LOCK).write_text("7 another-machine\n")
        assert holder(tmp_path) == "pid 7 on another-machine"


def test_a_fork_that_releases_closes_no_other_file(tmp_path: Path) -> None:
    with FolderLock() as lock:
        lock.take(tmp_path)
        if not (fork := os.fork()):
            another = os.open(os.devnull, os.O_RDONLY)  # gets the number of the lock's file
            lock.release()
            os.fstat(another)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
        assert holder(tmp_path) == f"pid {os.getpid()}"


def test_a_folder_without_locks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", none_here)
    with FolderLock() as lock, pytest.raises(ConfigError, match=r"cannot be locked \(No locks available\)"):
        free_folder(str(tmp_path / "run"), None, lock)


def test_a_folder_on_nfs_is_held_and_its_holder_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There an exclusive lock needs a file that is open for writing."""
    flock = fcntl.flock

    def as_on_nfs(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        flock(handle, operation)

    monkeypatch.setattr("fcntl.flock", as_on_nfs)
    saved = tmp_path / "run" / "ckpt" / "last.safetensors"
    with FolderLock() as first, FolderLock() as second:
        folder = free_folder(str(tmp_path / "run"), None, first)
        saved.parent.mkdir()
        saved.touch()
        with pytest.raises(ConfigError, match=f"still running .pid {os.getpid()}"):
            find_checkpoint(str(folder), str(folder), second)
        first.release()
        say_folder(free_folder(str(folder), None, second), str(folder), None)
        assert "--resume" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run/", "run//", "./run/.", "run", "other/../run/"])
def test_a_second_run_is_beside_the_first_however_its_name_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with FolderLock() as first, FolderLock() as second:
        folder = free_folder(name, None, first)
        (folder / "summary.json").touch()
        assert folder.resolve() == tmp_path / "run"
        assert free_folder(name, None, second).resolve() == tmp_path / "run-2"


@pytest.mark.parametrize("name", [".", "within/.."])
def test_a_run_where_one_stands_has_a_folder_beside_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = tmp_path / "stand"
    (stand / "within").mkdir(parents=True)
    monkeypatch.chdir(stand)
    with FolderLock() as lock:
        assert free_folder(name, None, lock) == tmp_path / "stand-2"


def test_a_checkpoint_is_of_its_run_also_for_who_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "run" / "ckpt" / "last.safetensors"
    saved.parent.mkdir(parents=True)
    saved.touch()
    monkeypatch.chdir(saved.parent)
    with FolderLock() as first, FolderLock() as second:
        assert find_checkpoint("last.safetensors", "runs/default", first) == Path("last.safetensors")
        assert first.holds(tmp_path / "run")
        with pytest.raises(ConfigError, match="still running"):
            find_checkpoint("last.safetensors", "runs/default", second)


def test_who_holds_the_name_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(tmp_path / "run")
    with FolderLock() as first, FolderLock() as second:
        free_folder(name, None, first)
        folder = free_folder(name, None, second)
        say_folder(folder, name, None)
        assert (
            f"{name}-2 ({name} holds another run, which is still running, pid {os.getpid()})" in capsys.readouterr().out
        )
        first.release()
        say_folder(folder, name, None)
        assert f"{name} holds another run; --resume {name} goes on with that one" in capsys.readouterr().out


# -- the programs ------------------------------------------------------------------------------------------------------


def mbpo() -> tuple[Any, list[str], Any]:
    from zoo.mbpo import train
    from zoo.mbpo.saving import KIND

    return train, ["--trainer", "sync", "--env", "Pendulum-v1"], KIND


def episode_ppo() -> tuple[Any, list[str], Any]:
    from zoo.episode_ppo import train
    from zoo.episode_ppo.learn.saving import KIND

    return train, ["--collector", "sync", "--env", "CartPole-v1"], KIND


def priorzero() -> tuple[Any, list[str], Any]:
    from zoo.jericho.priorzero import priorzero_entry
    from zoo.jericho.priorzero.learn.saving import CHECKPOINT

    return priorzero_entry, ["--quick_test"], CHECKPOINT


@pytest.mark.parametrize("application", [mbpo, episode_ppo, priorzero])
def test_a_second_program_has_its_own_folder_and_cannot_resume_the_first(
    application: Callable[[], tuple[Any, list[str], Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While the first one runs, the same command again, and the same with --resume."""
    module, words, kind = application()
    pytest.importorskip("easydict")
    words += ["--exp_name", str(tmp_path / "run")]
    folders: list[Path] = []
    codes: list[int] = []

    def train(options: Any, *more: Any) -> int:
        folder = next(value for value in more if isinstance(value, Path))
        folders.append(folder)
        if len(folders) == 1:
            codes.append(module.main(words))
            plain = json.loads(json.dumps(as_dict(options)))
            checkpoint.save(folder / "ckpt" / "last.safetensors", {"options": plain, "learner": 1}, kind)
            capsys.readouterr()
            codes.append(module.main([*words, "--resume"]))
            assert_one_sentence(capsys.readouterr().err, ["still running", f"pid {os.getpid()}"])
        return 0

    monkeypatch.setattr(module, "_train", train)
    assert module.main(words) == 0
    assert folders == [tmp_path / "run", tmp_path / "run-2"]
    assert codes == [0, 2]
