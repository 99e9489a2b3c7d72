"""What a program says of an error of the system: one sentence about its own folder, and of anything else the traceback with
the right remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.run_dir import exit_code, free_folder, naming, write_json
from lzero_async.testing import ScriptedRole
from lzero_async.workers.backend import make_backend

FOLDER_SENTENCE = "make room or choose another --exp_name"


def failing(folder: Path, error: OSError) -> Any:
    def program() -> int:
        with FolderLock() as lock:
            free_folder(str(folder), None, lock)
        raise error

    return program


@pytest.mark.parametrize(
    ("number", "filename", "said"),
    [
        (errno.ENOSPC, "/elsewhere/cache.db", "No space left on device /elsewhere/cache.db; make room there."),
        (errno.EMFILE, "/elsewhere/cache.db", "raise the limit (ulimit -n)"),
        (errno.EMFILE, None, "raise the limit (ulimit -n)"),
        (errno.EACCES, "/elsewhere/secret", "/elsewhere/secret; let the user of this program read and write it."),
        (errno.ECONNREFUSED, None, "Connection refused; see whether the server that is asked runs, and where."),
        (errno.ENOSPC, None, "make room on the disk that it writes to."),
    ],
)
def test_an_error_that_is_not_about_the_runs_folder_keeps_its_traceback_and_gets_its_own_remedy(
    number: int, filename: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, os.strerror(number), *([] if filename is None else [filename]))
    assert exit_code(failing(tmp_path / "run", error)) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "in program" in shown
    assert said in shown.splitlines()[-1] and FOLDER_SENTENCE not in shown


def test_an_error_that_nobody_knows_a_remedy_for_is_raised(tmp_path: Path) -> None:
    for error in (OSError(errno.ENOTTY, "no terminal"), FileNotFoundError(2, "No such file", "/elsewhere/model")):
        with pytest.raises(OSError, match=r"no terminal|/elsewhere/model"):
            exit_code(failing(tmp_path / "run", error))


def test_an_error_about_the_runs_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))
    assert exit_code(failing(tmp_path / "run", error)) == 2
    said = capsys.readouterr().err
    assert FOLDER_SENTENCE in said and "Traceback" not in said


def test_what_is_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"options\.json"):
        write_json(tmp_path / "options.json", {})
    with pytest.raises(OSError, match="own name"), naming(tmp_path):
        raise OSError(errno.ENOSPC, "full", "own name")


def test_an_error_of_a_role_shows_where_in_the_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        with FolderLock() as lock:
            free_folder(str(tmp_path / "run"), None, lock)
        backend = make_backend("process")
        try:
            backend.start("scripted", ScriptedRole).call(
                "do", "import socket; socket.create_connection(('127.0.0.1', 1))"
            )
        finally:
            backend.close()
        return 0

    assert exit_code(program) == 1
    said = capsys.readouterr().err
    assert "in create_connection" in said and "Connection refused" in said and FOLDER_SENTENCE not in said
