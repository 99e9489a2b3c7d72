"""The program of a template process: it imports what it is told to, once, and forks a process for each request.

It has one thread, which is looked at before every fork: what another thread holds at that moment nobody would release. A
new process becomes the child of the template's parent, which waits for it as for one that it started by itself.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import os
import pickle
import select
import socket
import struct
import sys
import time
from typing import Any, Final

_HEAD: Final = struct.Struct("!Q")
_BORN: Final = struct.Struct("!qq")  # number of the new process, error number
_MOST_FILES: Final = 64
_LOOK: Final = 5.0  # seconds between two looks for the parent
_OPENBLAS: Final = ("openblas_set_num_threads", "scipy_openblas_set_num_threads")


def send(connection: socket.socket, value: Any, files: list[int] | None = None) -> None:
    """Send a value, and open files with it."""
    data = pickle.dumps(value)
    socket.send_fds(connection, [_HEAD.pack(len(data))], files or [])
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """The next value and the files that came with it; EOFError when nobody is there any more."""
    head, files, _, _ = socket.recv_fds(connection, _HEAD.size, _MOST_FILES)
    for file in files:
        os.set_inheritable(file, False)
    head += _exactly(connection, _HEAD.size - len(head))
    return pickle.loads(_exactly(connection, *_HEAD.unpack(head))), files


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def main(descriptor: int, lifeline: int) -> None:
    """Serve the parent on the other end of the socket `descriptor`; it never writes to the pipe `lifeline`."""
    from lzero_async.workers._child import die_with

    die_with(lifeline)
    connection = socket.socket(fileno=descriptor)
    order, _ = receive(connection)
    sys.path[:] = order["sys_path"]
    send(connection, _preload(order["modules"]))
    gc.collect()
    gc.freeze()  # a collection in a forked process would write to, and so copy, every page
    serve(connection, order["parent"], lifeline)


def serve(connection: socket.socket, parent: int, *held: int) -> None:
    """Fork for the parent until it is gone, which ends this process. In a new process, close what is `held`, do what was
    requested, and return."""
    try:
        request, files = _next(connection, parent)
    except (EOFError, OSError):
        os._exit(0)
    connection.close()
    for file in held:
        os.close(file)
    _become(request, files)
    module, function = request["entry"]
    getattr(importlib.import_module(module), function)(*request["arguments"], *files[4:])


def _preload(modules: list[str]) -> tuple[str, dict[str, int]]:
    """Import them; what speaks against forking from here, or nothing, and the files that were imported, with their times."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module does while it is imported
            return f"{name} cannot be imported ({error!r})", {}
    paths = [getattr(module, "__dict__", {}).get("__file__") for module in [*sys.modules.values()]]
    return _other_threads(), {path: changed(path) for path in paths if isinstance(path, str)}


def changed(path: str) -> int:
    """When a file was changed last, in nanoseconds; 0 if it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _other_threads() -> str:
    number = len(os.listdir("/proc/self/task"))
    return "" if number == 1 else f"{number - 1} more threads run after the imports"


def _next(connection: socket.socket, parent: int) -> tuple[dict[str, Any], list[int]]:
    """Fork at every request, and answer with (process, error number, what is wrong); returns in the new process only."""
    while True:
        while not select.select([connection], [], [], _LOOK)[0]:
            if os.getppid() != parent:  # though something that it forked keeps its end open
                raise EOFError
        request, files = receive(connection)
        wrong = _other_threads()
        born, error = (0, 0) if wrong else _fork()
        if born < 0:
            return request, files
        for file in files:
            os.close(file)
        send(connection, (born, error, wrong))


def _fork() -> tuple[int, int]:
    """Two forks, of which the first ends: its child is then the parent's. Returns the number of the new process, there -1,
    and an error number."""
    reading, writing = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        return 0, error.errno or 0
    if middle == 0:
        middle = os.getpid()
        try:
            if os.fork() == 0:
                os.setsid()  # before anybody is told of it: it is ended as a group
                os.close(reading)
                while os.getppid() == middle:
                    time.sleep(0.0002)
                os.write(writing, _BORN.pack(os.getpid(), 0))
                os.close(writing)
                return -1, 0
        except OSError as error:
            os.write(writing, _BORN.pack(0, error.errno or 0))
        os._exit(0)
    os.close(writing)
    os.waitpid(middle, 0)
    told = os.read(reading, _BORN.size)
    os.close(reading)
    return _BORN.unpack(told) if len(told) == _BORN.size else (0, 0)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Be as a process that was just started: with these files, variables and folder, and random numbers of its own."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    os.chdir(files[3])
    for file in files[:4]:
        os.close(file)
    os.sched_setaffinity(0, request["cores"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["argv"] or sys.argv
    _open_streams()
    _limit_threads()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator does so by itself
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _open_streams() -> None:
    """As the interpreter does at its start: buffered by lines on a terminal, not at all if that is wished for."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "w" if number else "r"
        if number and old.write_through:  # as with -u
            raw: Any = io.FileIO(number, mode, closefd=False)
            new = io.TextIOWrapper(raw, encoding=old.encoding, errors=old.errors, write_through=True)
        else:
            new = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # type: ignore[assignment] # noqa: SIM115
        if name == "stderr":
            new.reconfigure(line_buffering=True)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _limit_threads() -> None:
    """Numerical libraries read the variables when they are loaded, so they are told."""
    cores = len(os.sched_getaffinity(0))
    if "torch" in sys.modules and (number := _number("MKL_NUM_THREADS", "OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(number)
    if (number := _number("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS") or cores) > 1:
        with open("/proc/self/maps") as maps:
            paths = {line.rsplit(maxsplit=1)[-1] for line in maps if "openblas" in line}
        for library in map(ctypes.CDLL, paths):
            for name in (*_OPENBLAS, *(f"{name}64_" for name in _OPENBLAS)):
                if hasattr(library, name):
                    getattr(library, name)(number)


def _number(*variables: str) -> int:
    """The first of these variables that has a number, or 0."""
    for variable in variables:
        first = os.environ.get(variable, "").partition(",")[0].strip()
        if first.isdigit() and int(first):
            return int(first)
    return 0
