"""How the process of a worker begins and ends: forked or spawned, killed with what it started, and its end put into words."""

from __future__ import annotations

import errno
import os
import signal
from typing import Final

from lzero_async.errors import TOO_MANY_FILES, out_of_files
from lzero_async.workers import _child
from lzero_async.workers.template import Process, Template, spawn

_TAIL: Final = 400  # characters of a dead worker's last words


def launch(template: Template | None, environment: dict[str, str], output: str, files: list[int]) -> Process:
    """A new process of a worker, with these two open files: forked if that can be done, else spawned."""
    variables = {**os.environ, **environment}
    file = open(output, "ab") if output else None  # noqa: SIM115
    try:
        # Libraries read variables when they are imported; of the number of threads they are told.
        if template is not None and all(name.endswith("_NUM_THREADS") for name in environment):
            with open(os.devnull) as nothing:
                streams = (nothing.fileno(), *((1, 2) if file is None else (file.fileno(),) * 2))
                forked = template.fork((_child.__name__, "main"), files=files, environment=variables, streams=streams)
            if forked is not None:
                return forked
        return spawn("_child", files, variables, None if file is None else file.fileno())
    finally:
        if file is not None:
            file.close()


def remedy(error: OSError) -> str:
    """What is wrong, and what to do about it."""
    if out_of_files(error):
        return TOO_MANY_FILES
    if error.errno == errno.EAGAIN:
        return "no more processes are allowed: raise the limit (ulimit -u), or use fewer workers."
    if error.errno == errno.ENOMEM:
        return "there is not enough memory for another process: use fewer workers."
    place = f" {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{place}."


def kill(process: Process) -> None:
    """End the process and whatever it started in its session."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has ended; its number may be somebody else's by now
            return


def allow_descriptors() -> None:
    """As many open files as the system lets us have: every parcel that waits is one. None has a standard stream's number."""
    import resource

    while (unused := os.open(os.devnull, os.O_RDWR)) <= 2:  # this process was started without that stream
        os.set_inheritable(unused, True)
    os.close(unused)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def how_it_ended(code: int) -> str:
    """The exit code of a process in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # most of the real-time signals have no name
        return f"was ended by signal {-code}"


def last_words(output: str, start: int) -> str:
    """The end of what a process wrote into a file that it began at `start`."""
    if not output:
        return ""
    try:
        with open(output, "rb") as file:
            file.seek(max(start, os.path.getsize(output) - _TAIL))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
