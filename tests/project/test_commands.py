"""Programs that tests fork instead of starting them do what they do when they are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command, run_command, template_pids
from tests.process_tools import ended

LOOK = """
import os, sys
import __main__
print(sys.argv, __name__, __main__.__file__, __main__.__spec__ and __main__.__spec__.name, os.getcwd(), os.environ["SEEN"])
print([entry for entry in sys.path], sys.stdin.read(), sys.flags, sys.warnoptions)
print("aside", file=sys.stderr)
"""
PROGRAMS = {
    "looks around": LOOK,
    "leaves by a number": "import sys; print('out'); sys.exit(3)",
    "leaves by a sentence": "import sys; sys.exit('it cannot be done')",
    "leaves by a signal": "import os, signal; print('out', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "at exit": "import atexit, threading; atexit.register(print, 'last'); threading.Timer(0.01, print, ['late']).start()",
}


def both(words: list[str], **options: Any) -> list[subprocess.CompletedProcess[str]]:
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return [run([sys.executable, *words], **options) for run in (run_command, subprocess.run)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("module", [False, True], ids=["file", "module"])
def test_a_forked_program_is_as_a_started_one(name: str, module: bool, tmp_path: Path) -> None:
    (tmp_path / "a_program.py").write_text(PROGRAMS[name])
    words = ["-m", "a_program"] if module else [str(tmp_path / "a_program.py")]
    environment = {**os.environ, "SEEN": "yes", "PYTHONPATH": str(tmp_path / "more")}
    forked, started = both([*words, "--one", "two"], cwd=tmp_path, env=environment, input="given")
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    if name == "interrupted":  # the forked one's traceback begins with what ran it
        assert forked.stderr.splitlines()[-1] == started.stderr.splitlines()[-1] == "KeyboardInterrupt"
    else:
        assert forked.stderr == started.stderr


def test_an_error_ends_a_forked_program_with_its_traceback(tmp_path: Path) -> None:
    program = tmp_path / "a_program.py"
    program.write_text("def fail():\n    raise ValueError('no')\nfail()\n")
    forked, started = both([str(program)])
    assert forked.returncode == started.returncode == 1
    assert forked.stderr.splitlines()[-5:] == started.stderr.splitlines()[-5:]


def test_a_forked_program_is_a_group_that_can_be_signalled_and_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "a_program.py"
    program.write_text("import os, time\nprint(os.getpgid(0), os.getppid(), flush=True)\ntime.sleep(60)\n")
    with Command([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(process.pid), str(os.getpid())]
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    assert ended([process.pid])


def test_the_same_imports_serve_every_program(tmp_path: Path) -> None:
    program = tmp_path / "a_program.py"
    program.write_text("import sys; print('torch' in sys.modules)")
    forked, started = both([str(program)])
    assert (forked.stdout, started.stdout) == ("True\n", "False\n")
    before = set(template_pids())
    run_command([sys.executable, str(program)], stdout=subprocess.DEVNULL)
    assert template_pids() == before


@pytest.mark.parametrize("words", [["-c", "print(1)"], ["-O", "a_program.py"]])
def test_what_cannot_be_forked_is_started(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "a_program.py").write_text("print(__debug__)")
    forked, started = both(words, cwd=tmp_path)
    assert (forked.returncode, forked.stdout) == (0, started.stdout)
