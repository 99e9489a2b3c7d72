"""Processes that are forked from one that has made their imports already: started in a moment, not in seconds."""

from __future__ import annotations

import atexit
import contextlib
import glob
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

from lzero_async.workers._bootstrap import standard_first, standard_library
from lzero_async.workers._template import changed, receive, send

log = logging.getLogger("lzero_async")
_ROOT: Final = str(Path(__file__).resolve().parents[2])
# Nothing is imported before the path begins with the standard library (-c puts the current folder first).
_PROGRAM: Final = (
    "import sys; _, own, *first = sys.argv; sys.path[:] = first[2:] + [own] + [each for each in sys.path if each]; "
    "from lzero_async.workers.{} import main; main(int(first[0]), int(first[1]))"
)
_IMPORTS: Final = 300.0  # seconds that the imports may take
_ANSWER: Final = 30.0  # seconds that a fork may take
_GRACE: Final = 1.0  # seconds for a template to end by itself
_ADOPT, _ADOPTS = 36, 37  # prctl's PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER
_adopting = threading.Lock()


class Process(Protocol):
    """A child of this process; as subprocess.Popen."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, minus the signal that ended it; None while it is not reaped."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and reap it."""


def spawn(
    module: str, files: list[int], environment: Mapping[str, str], output: int | None = None
) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs `main` of a module of this package with these two open files."""
    command = [sys.executable, *_interpreter_flags(), "-c", _PROGRAM.format(module), _ROOT, *map(str, files)]
    return subprocess.Popen(
        [*command, *standard_library(sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=files,
        env=environment,
        start_new_session=True,  # not in the terminal's group: Ctrl+C is for the parent
    )


def _interpreter_flags() -> list[str]:
    """Those that this process was started with."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for name, value in sys._xoptions.items():
        given = name if value is True else f"{name}={value}"
        if given not in flags:
            flags += ["-X", given]
    return flags


class Forked:
    """A process that was forked from a template; a child of this one, with the methods of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code if it has ended."""
        with self._reaping:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                    if pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
                except ChildProcessError:  # somebody waited for any child
                    self.returncode = 0
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most so long, and reap it; subprocess.TimeoutExpired after that."""
        with contextlib.suppress(ProcessLookupError), _descriptor(self.pid) as ended:
            if self.returncode is None and not select.select([ended], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        """End it, if it has not ended."""
        with self._reaping:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)


def _umask() -> int:
    """That of this process. It is not asked for by setting another one, which other threads would meet."""
    with open("/proc/self/status") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022)


@contextlib.contextmanager
def _descriptor(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Template:
    """A process that imports `modules` in the background and is then forked. For any thread. `fork` returns None where that
    cannot be done, and says why, once: then a process is to be started in the ordinary way. With a `connection` it is there
    already."""

    def __init__(self, modules: Sequence[str], connection: socket.socket | None = None) -> None:
        self.users = 0
        self._lock = threading.Lock()
        self._ready = False
        self._why = ""  # nothing is forked from it
        self._files: dict[str, int] = {}  # what it has imported, and when that was changed last
        self._process: subprocess.Popen[bytes] | None = None
        if connection is not None:
            self._connection, self._ready = connection, True
            return
        with ExitStack() as theirs:
            try:
                self._start(list(modules), theirs)
            except (OSError, AttributeError) as error:  # AttributeError: not on this system
                self._give_up(f"it cannot be started ({error})")

    def _start(self, modules: list[str], theirs: ExitStack) -> None:
        with _adopts(), _descriptor(os.getpid()):
            pass  # both are possible here
        self._connection, end = socket.socketpair()
        theirs.callback(end.close)
        lifeline, self._lifeline = os.pipe()
        theirs.callback(os.close, lifeline)
        # OpenBLAS starts its threads when it is loaded.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = spawn("_template", [end.fileno(), lifeline], environment, subprocess.DEVNULL)
        path = standard_first([os.getcwd() if entry == "" else entry for entry in sys.path])
        send(self._connection, {"modules": modules, "sys_path": path, "parent": os.getpid()})

    def fork(
        self,
        entry: tuple[str, str],
        arguments: tuple[Any, ...] = (),
        files: Sequence[int] = (),
        *,
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
        argv: Sequence[str] = (),
    ) -> Forked | None:
        """A new process, in a session of its own, that calls `entry`, a module and a function, with `arguments` and then its own
        numbers of `files`. It has this environment, these as its standard streams, and the folder, cores and umask of
        this process. Waits until the imports are made. Raises OSError when the system allows no more processes."""
        request = {
            "entry": entry, "arguments": arguments, "environment": dict(environment), "argv": list(argv),
            "cores": os.sched_getaffinity(0), "umask": _umask(),
        }  # fmt: skip
        with self._lock:
            if self._why or not self._wait_until_ready():
                return None
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                with _adopts():
                    answer = self._ask(request, [*streams, folder, *files])
            finally:
                os.close(folder)
        if answer is None:
            return None
        pid, error, wrong = answer
        if error:
            raise OSError(error, os.strerror(error))
        if not pid:
            self._give_up(wrong or "a process that was forked from it ended at once")
            return None
        return self._taken_over(pid)

    def is_usable(self) -> bool:
        """Whether nothing is known that speaks against forking from it for one user more; a change of what it has imported
        does."""
        if self._why or not (self._ready or self.users):
            return False
        return all(changed(path) == time for path, time in self._files.items())

    def _taken_over(self, pid: int) -> Forked | None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            os.kill(pid, signal.SIGKILL)
            self._give_up("this system does not let a process take over another one's child")
            return None
        return Forked(pid)

    def _wait_until_ready(self) -> bool:
        if not self._ready:
            answer = self._ask(None, [])
            if answer is None:
                return False
            wrong, self._files = answer
            if wrong:
                self._give_up(wrong)
                return False
            self._ready = True
        return True

    def _ask(self, request: dict[str, Any] | None, files: list[int]) -> Any:
        """Send a request, if it is one, and return the answer; None if there will be none."""
        try:
            self._connection.settimeout(_IMPORTS if request is None else _ANSWER)
            if request is not None:
                send(self._connection, request, files)
            return receive(self._connection)[0]
        except (EOFError, TimeoutError, ConnectionError):
            self._give_up("it is dead, or does not answer")
            return None
        except BaseException:  # an interrupt: whatever it answers, nobody would know to what
            self._give_up("")
            raise

    def _give_up(self, why: str) -> None:
        self._why = why or "it was interrupted"
        if why:
            log.warning("processes are started without a template: %s; each makes its own imports", why)
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End it; processes that were forked from it live on."""
        process, self._process = self._process, None
        self._why = self._why or "it is closed"
        if process is None:
            return
        self._connection.close()
        try:
            process.wait(_GRACE if process.returncode is None and self._ready else 0.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(self._lifeline)


_templates: dict[tuple[Any, ...], Template] = {}
_changing = threading.Lock()


def acquire(modules: Sequence[str]) -> Template:
    """The template of this process with these imports, for whoever uses it until `release`; then it stays, for the next one,
    until another one is wanted instead or the program ends."""
    key = key_of(modules)
    with _changing:
        template = _templates.get(key)
        if template is None or not template.is_usable():
            _close_idle()
            template = _templates[key] = Template(modules)
        template.users += 1
        return template


def key_of(modules: Sequence[str]) -> tuple[Any, ...]:
    """What templates are known by: a fork of this process does not use those of this one."""
    return (os.getpid(), tuple(modules), *at_start(os.environ))


def release(template: Template) -> None:
    """It is not used any more."""
    with _changing:
        template.users -= 1
        if not template.users and template not in _templates.values():  # another one took its place
            template.close()


def close_idle() -> None:
    """End the templates that nobody uses."""
    with _changing:
        _close_idle()


def _close_idle() -> None:
    for key in [key for key, template in _templates.items() if not template.users]:
        _templates.pop(key).close()


def gpu_in_reach() -> bool:
    """Whether a process that is started here may use a GPU, whose driver a forked process should not meet."""
    devices = [*glob.glob("/dev/nvidia[0-9]*"), *glob.glob("/dev/kfd"), *glob.glob("/dev/dxg")]
    return bool(devices) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


@atexit.register
def _close_all() -> None:
    for (owner, *_), template in _templates.items():
        if owner == os.getpid():
            template.close()


def at_start(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the interpreter and the system's loader read before a program begins: a fork comes too late for it."""
    early = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
    return sorted(item for item in environment.items() if item[0].startswith(early))


@contextlib.contextmanager
def _adopts() -> Iterator[None]:
    """Meanwhile this process, not the system's first, becomes the parent of descendants whose own parent ends."""
    import ctypes

    prctl, before = ctypes.CDLL(None, use_errno=True).prctl, ctypes.c_int()
    with _adopting:
        if prctl(_ADOPTS, ctypes.byref(before), 0, 0, 0) or prctl(_ADOPT, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl cannot be used here")
        try:
            yield
        finally:
            prctl(_ADOPT, before.value, 0, 0, 0)
