"""Programs that tests run: forked from a process that has made their imports already, and otherwise as from a shell.

`Command` and `run_command` are subprocess.Popen and subprocess.run for `[sys.executable, FILE, ...]` and `[sys.executable, "-m",
MODULE, ...]`. Exit codes, signals, streams, folder and environment are those of a program that was started; it always has its own
session. What else is to be run, or needs variables that only a start reads, is started. One test of each command starts it cold.
"""

from __future__ import annotations

import atexit
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lzero_async.workers import _child
from lzero_async.workers import template as templates
from lzero_async.workers._template import serve
from zoo.episode_ppo import roles as episode_ppo
from zoo.jericho.priorzero.roles import factories as priorzero
from zoo.mbpo import roles as mbpo

ROOT: Final = Path(__file__).resolve().parents[1]
LIGHT: Final = (
    "tests.commands", "tensorboardX", "lzero_async.tools.report.command", *episode_ppo.PRELOAD, "zoo.episode_ppo.train",
    *mbpo.PRELOAD, "zoo.mbpo.train",
)  # fmt: skip
HEAVY: Final = ("zoo.jericho.priorzero.roles.preload", "lzero_async.lightzero.preload", *LIGHT)
_pids: set[int] = set()


def template_pids() -> set[int]:
    """The processes that programs are forked from; they stay until the tests end."""
    return _pids


class Command(subprocess.Popen[Any]):
    """A program that a test runs; see above."""

    def _execute_child(self, args: Any, *rest: Any) -> None:  # type: ignore[override]
        executable, preexec, _, pass_fds, cwd, env, _, _, shell = rest[:9]
        streams = dict(zip(("in", "to_in", "from_out", "out", "from_err", "err"), rest[9:15], strict=True))
        variables = {**os.environ} if env is None else {**env}
        words = [] if isinstance(args, (str, Path)) else [os.fspath(word) for word in args]
        plain = not (shell or executable or preexec or pass_fds) and words[:1] == [sys.executable] and len(words) > 1
        forked = None
        if plain and (words[1] == "-m" or not words[1].startswith("-")) and _same_start(variables):
            template = _template(HEAVY if re.search("priorzero|lightzero", " ".join(words)) else LIGHT)
            given = [
                streams[name] if streams[name] != -1 else number for number, name in enumerate(("in", "out", "err"))
            ]
            forked = template.fork(
                (__name__, "run_program"), (words[1:], os.fspath(cwd or os.getcwd()), _import_path(variables)),
                environment=variables, streams=tuple(given), argv=words[1:],  # type: ignore[arg-type]
            )  # fmt: skip
        if forked is None:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        self.pid, self._child_created = forked.pid, True
        self._close_pipe_fds(*(streams[name] for name in ("in", "to_in", "from_out", "out", "from_err", "err")))  # type: ignore[attr-defined]


def run_command(
    args: Sequence[Any], *, timeout: float | None = None, check: bool = False, input: Any = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """A program from its start to its end, as subprocess.run."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Command(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _template(modules: tuple[str, ...]) -> templates.Template:
    template = templates.acquire(modules)  # and never released
    if template._process is not None:
        _pids.add(template._process.pid)
    return template


def _same_start(variables: dict[str, str]) -> bool:
    """Whether an interpreter that starts with these variables is as this one is, but for its import path."""
    mine, theirs = (
        {**dict(templates.at_start(each)), "PYTHON": "", "PYTHONPATH": ""} for each in (os.environ, variables)
    )
    return mine == theirs


def _import_path(variables: dict[str, str]) -> list[str]:
    """The import path of an interpreter that starts with these variables, but for its first entry."""
    named = [entry or os.getcwd() for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [*named, *_installed()]


def _installed() -> list[str]:
    if not _path:
        code = "import sys; print(*sys.path, sep='\\n')"
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
        _path.extend(done.stdout.splitlines())
    return _path


_path: list[str] = []


def _leave_template() -> None:
    """Fork once more, for a template from which the program's workers are forked; it ends with the program."""
    ours, theirs = socket.socketpair()
    program = os.getpid()
    if os.fork() == 0:
        os.setsid()
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # or whoever reads them would wait for the end of this process, too
            os.dup2(nothing, stream)
        os.close(nothing)
        serve(theirs, program)
        os._exit(0)
    theirs.close()
    for preload in (episode_ppo.PRELOAD, mbpo.PRELOAD, priorzero.PRELOAD):
        if all(name in sys.modules for name in preload):
            key = templates.key_of([_child.__name__, *preload])
            templates._templates[key] = templates.Template(preload, ours)


def run_program(words: list[str], cwd: str, path: list[str]) -> None:
    """In the forked process: be the program. Its workers are forked from here as well."""
    os.chdir(cwd)
    _leave_template()
    interrupted: list[bool] = []
    atexit.register(_end_by_interrupt, interrupted)  # the first one is called last
    module = words[0] == "-m"
    sys.path[:] = [os.getcwd() if module else os.path.dirname(os.path.realpath(words[0])), *path]
    try:
        if module:
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except KeyboardInterrupt:
        interrupted.append(True)
        raise


def _end_by_interrupt(interrupted: list[bool]) -> None:
    """As the interpreter does for a file or a module, though not for what `-c` gives it, which is what this is."""
    if interrupted:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
