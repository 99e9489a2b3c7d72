"""What `make` runs, and how it finds Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from zoo.jericho.priorzero.priorzero_config import policy_config

ROOT = Path(__file__).resolve().parents[2]


def make(*words: str, **more: str) -> str:
    """What `make` would run."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_train_is_asynchronous_and_the_program_is_not() -> None:
    command = next(line for line in make("train", "ARGS=--seed 3").splitlines() if "priorzero_entry.py" in line)
    assert "--off_policy_degree 2 --async_eval" in command
    assert command.endswith("--seed 3")
    assert policy_config["off_policy_degree"] == 0
    assert policy_config["async_eval"] is False


# -- Python ------------------------------------------------------------------------------------------------------------------

PYTHON_SCRIPT = """case "$1" in -c) exit {wrong};; esac
echo "{name} $*" >> "$LOG"
"""
UV_SCRIPT = """echo "uv $*" >> "$LOG"
case "$2" in find) echo "$FETCHED";; esac
"""


class Programs:
    """A folder of programs, which is the whole PATH; `asked` is what they were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.fetched = self.add_python("fetched/python3.11")
        self.add("uname", "echo Linux\n")

    def add(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shutil.which('sh')}\n{text}")
        path.chmod(0o755)
        return path

    def add_python(self, name: str, *, right: bool = True) -> Path:
        return self.add(name, PYTHON_SCRIPT.format(wrong=int(not right), name=name))

    def make_venv(self, *python: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.folder), "LOG": str(self.log), "FETCHED": str(self.fetched)}
        script = ROOT / "requirements" / "venv.sh"
        return subprocess.run([script, "FOLDER", *python], env=environment, capture_output=True, text=True, check=False)

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_python_on_the_path_is_taken_before_uv_is_asked(programs: Programs) -> None:
    programs.add("uv", UV_SCRIPT)
    programs.add_python("python3.11", right=False)  # a shim that names a version that is not there
    programs.add_python("python3")
    assert programs.make_venv().returncode == 0
    assert programs.asked == ["python3 -m venv --clear FOLDER"]


def test_uv_fetches_python_where_there_is_none(programs: Programs) -> None:
    programs.add("uv", UV_SCRIPT)
    programs.add_python("python3", right=False)
    assert programs.make_venv().returncode == 0
    assert programs.asked == [
        "uv python install 3.11",
        "uv python find 3.11",
        "fetched/python3.11 -m venv --clear FOLDER",
    ]


def test_without_python_and_uv_one_sentence_says_what_to_do(programs: Programs) -> None:
    done = programs.make_venv()
    assert done.returncode == 2
    assert done.stderr == (
        "error: Python 3.11 was not found; install it or uv, which fetches it, or name it: make PYTHON=/path/to/python3.11.\n"
    )


def test_a_given_python_is_used_or_refused(programs: Programs) -> None:
    programs.add_python("python3.11")
    wrong, right = programs.add_python("wrong", right=False), programs.add_python("right")
    done = programs.make_venv(str(wrong))
    assert (done.returncode, programs.asked) == (2, [])
    assert (
        done.stderr
        == f"error: PYTHON is {wrong}, which is not a Python 3.11; LightZero and the lock need that version.\n"
    )
    assert programs.make_venv(str(right)).returncode == 0
    assert programs.asked == ["right -m venv --clear FOLDER"]


def test_another_system_is_refused(programs: Programs) -> None:
    programs.add_python("python3.11")
    programs.add("uname", "echo Darwin\n")
    done = programs.make_venv()
    assert (done.returncode, programs.asked) == (2, [])
    assert done.stderr.startswith("error: lzero-async runs on Linux only, but this is Darwin;")


def test_an_environment_that_works_is_kept(programs: Programs, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    programs.add("kept/bin/python", "exit 0\n")
    done = subprocess.run(
        [ROOT / "requirements" / "venv.sh", kept], env={**os.environ, "PATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 0
    assert (kept / "bin" / "python").exists()
